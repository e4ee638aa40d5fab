"""Runs memcached servers as processes, for the comparisons in this folder."""

import argparse
import socket
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def arguments(description):
    """Returns a parser with the options that all comparisons share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--ours", default=str(ROOT / "target/release/memcached"), help="path of this project's server")
    parser.add_argument("--theirs", default="memcached", help="path of the memcached to compare with")
    return parser


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Server:
    """A server on a free port of loopback."""

    def __init__(self, command, start_within=10):
        self.port = free_port()
        self.process = subprocess.Popen(
            command + ["-p", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + start_within
        while True:
            try:
                self.connect().close()
                return
            except OSError:
                if self.process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{' '.join(command)} did not start")
                time.sleep(0.02)

    def connect(self):
        stream = socket.create_connection(("127.0.0.1", self.port))
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return stream

    def stats(self):
        with self.connect() as stream:
            stream.sendall(b"stats\r\n")
            reply = b""
            while not reply.endswith(b"END\r\n"):
                reply += stream.recv(65536)
        lines = (line.split(b" ", 2) for line in reply.split(b"\r\n") if line.startswith(b"STAT"))
        return {name.decode(): value.decode() for _, name, value in lines}

    def resident(self):
        """Returns its resident memory in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    def stop(self):
        self.process.kill()
        self.process.wait()


def print_versions(options):
    for name, program in [("lull", options.ours), ("memcached", options.theirs)]:
        version = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout.strip()
        print(f"{name}: {version}", flush=True)


def contestants(options, extra=()):
    """Returns commands by name: this project's server on two drivers, and memcached."""
    return {
        "lull, uring": [options.ours, "-u", "root", "--driver", "uring", "-t", "1", *extra],
        "lull, epoll": [options.ours, "-u", "root", "--driver", "epoll", "-t", "1", *extra],
        "memcached": [options.theirs, "-u", "root", "-l", "127.0.0.1", "-t", "1", *extra],
    }
