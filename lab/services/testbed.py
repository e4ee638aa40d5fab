"""Two network namespaces on a veth pair: server and its queue on core 0, client and its queue on core 1."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

SERVER, CLIENT = "lull-server", "lull-client"
SERVER_LINK, CLIENT_LINK = "ls0", "lc0"
SERVER_ADDRESS, CLIENT_ADDRESS = "198.18.0.1", "198.18.0.2"
CORES = {SERVER: 0, CLIENT: 1}


def require(program, package):
    if not shutil.which(program):
        sys.exit(f"{program} is missing: apt-get install {package}")


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def within(namespace, *command):
    """Returns a command that runs in a namespace, on its core."""
    return ["ip", "netns", "exec", namespace, "taskset", "-c", str(CORES[namespace]), *map(str, command)]


def remove():
    for name in CORES:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


@contextmanager
def testbed():
    """Makes the namespaces, keeps idle cores awake, and undoes both, whatever happens."""
    if os.geteuid() != 0:
        sys.exit("namespaces need root")
    if not {0, 1} <= os.sched_getaffinity(0):
        sys.exit("cores 0 and 1 are needed")
    require("ip", "iproute2")
    require("ethtool", "ethtool")
    # An exception, so that what follows `finally` runs.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    remove()
    awake = os.open("/dev/cpu_dma_latency", os.O_WRONLY)
    os.write(awake, bytes(4))
    try:
        for name in CORES:
            ip("netns", "add", name)
        ip("link", "add", SERVER_LINK, "netns", SERVER, "type", "veth", "peer", "name", CLIENT_LINK, "netns", CLIENT)
        for name, link, address in [(SERVER, SERVER_LINK, SERVER_ADDRESS), (CLIENT, CLIENT_LINK, CLIENT_ADDRESS)]:
            ip("-n", name, "addr", "add", address + "/24", "dev", link)
            ip("-n", name, "link", "set", "lo", "up")
            # With GRO a veth has NAPIs.
            subprocess.run(within(name, "ethtool", "-K", link, "gro", "on", "tso", "off"), check=True)
            ip("-n", name, "link", "set", link, "up")
        yield
    finally:
        os.close(awake)
        remove()


def busy(core):
    """Returns the time so far, less that in which a core was idle or another machine had it, in seconds.

    The kernel measures idle time; what it calls user and system is sampled by ticks.
    """
    with open("/proc/stat") as file:
        fields = next(line for line in file if line.startswith(f"cpu{core} ")).split()
    idle, iowait, steal = int(fields[4]), int(fields[5]), int(fields[8])
    return time.monotonic() - (idle + iowait + steal) / os.sysconf("SC_CLK_TCK")
