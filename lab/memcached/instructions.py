#!/usr/bin/env python3
"""Compares instructions per request in user space, on the epoll driver, counted by callgrind.

The difference between two runs with different numbers of requests leaves out the server's start.
"""

import os
import re
import resource
import signal
import subprocess
import tempfile

import common


def run(command, requests, depth, kind):
    with tempfile.TemporaryDirectory() as folder:
        log = open(os.path.join(folder, "log"), "w+")
        valgrind = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out", f"--log-file={folder}/log"]
        server = common.Server(valgrind + command, start_within=60)
        stream = server.connect()
        replies = stream.makefile("rb")
        keys = [b"%030d" % index for index in range(1000)]
        for key in keys:
            stream.sendall(b"set " + key + b" 0 0 200\r\n" + b"v" * 200 + b"\r\n")
            replies.readline()
        item = 6 + 30 + 2 + 1 + 3 + 2 + 202
        for start in range(0, requests, depth):
            names = [keys[(start + index) % 1000] for index in range(depth)]
            if kind == "get":
                stream.sendall(b"".join(b"get " + name + b"\r\n" for name in names))
                replies.read(depth * (item + 5))
            else:
                stream.sendall(b"get " + b" ".join(names) + b"\r\n")
                replies.read(depth * item + 5)
        stream.close()
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
        log.seek(0)
        return int(re.search(r"Collected : (\d+)", log.read()).group(1))


def main():
    options = common.arguments(__doc__).parse_args()
    common.print_versions(options)
    # memcached raises this limit, and valgrind reserves some descriptors for itself.
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 12
    commands = {
        "lull": [options.ours, "-u", "root", "--driver", "epoll", "-t", "1"],
        "memcached": [options.theirs, "-u", "root", "-l", "127.0.0.1", "-t", "1", "-c", str(hard)],
    }
    for kind, depth in [("get", 1), ("get", 16), ("multiget", 24)]:
        few, many = 1200, 6000
        cost = {
            name: (run(command, many, depth, kind) - run(command, few, depth, kind)) / (many - few)
            for name, command in commands.items()
        }
        ratio = cost["lull"] / cost["memcached"]
        print(
            f"{kind}, depth {depth:2}  lull {cost['lull']:6.0f}  memcached {cost['memcached']:6.0f} instructions"
            f" a request  ratio {ratio:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
