#!/usr/bin/env python3
"""CPU time a request, one thread each, the server on core 0 and the load on core 1.

Rounds are interleaved, and repeated where the hypervisor stole more than 5 % of a core. The generator of multigets is
this script, and is what limits their rate.
"""

import json
import random
import select
import statistics
import subprocess
import sys
import time

import common


def stolen():
    with open("/proc/stat") as stat:
        return int(stat.readline().split()[8]) / 100


def multigets(server, seconds, keys=24):
    streams = [server.connect() for _ in range(8)]
    whole = keys * (6 + 30 + 2 + 1 + 3 + 2 + 202) + 5
    left = {}

    def ask(stream):
        names = b" ".join(b"%030d" % random.randrange(10_000) for _ in range(keys))
        stream.sendall(b"get " + names + b"\r\n")
        left[stream] = whole

    for stream in streams:
        ask(stream)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for stream in select.select(streams, [], [])[0]:
            left[stream] -= len(stream.recv(65536))
            if left[stream] == 0:
                ask(stream)
    for stream in streams:
        stream.close()


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--loadgen", default=str(common.ROOT / "target/release/loadgen"))
    options = parser.parse_args()
    common.print_versions(options)
    servers = {
        name: common.Server(command, core=0)
        for name, command in common.contestants(options, ("-m", "256")).items()
    }
    loads = {
        "get, depth 1": ["-c", "16", "-d", "1"],
        "get, depth 16": ["-c", "16", "-d", "16"],
        "ETC mix": ["-c", "16", "-d", "1", "--etc", "-u", "0.033", "-r", "20000"],
        "multiget of 24": None,
    }

    def load(server, flags, *more):
        address = f"127.0.0.1:{server.port}"
        command = ["taskset", "-c", "1", options.loadgen, "-s", address, *flags, *more]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def requests(server):
        stats = server.stats()
        return int(stats["cmd_get"]) + int(stats["cmd_set"])

    try:
        for name, flags in loads.items():
            for server in servers.values():
                load(server, flags or ["-c", "16"], "--loadonly")
            found = {contestant: [] for contestant in servers}
            for turn in range(options.rounds):
                order = list(servers)[:: 1 if turn % 2 == 0 else -1]
                for contestant in order:
                    server = servers[contestant]
                    while True:
                        before = requests(server), server.cpu_seconds(), stolen(), time.monotonic()
                        if flags:
                            load(server, flags, "--noload", "-t", str(options.seconds), "-w", "0.3")
                        else:
                            multigets(server, options.seconds)
                        after = requests(server), server.cpu_seconds(), stolen(), time.monotonic()
                        done, cpu, lost, passed = (late - early for late, early in zip(after, before))
                        if lost <= 0.05 * passed:
                            found[contestant].append((cpu / done * 1e6, done / passed, cpu / passed))
                            break
                        print(f"repeated: {name}, {contestant}: {lost:.2f} s stolen", file=sys.stderr)
            for contestant, rounds in found.items():
                cost = sorted(cost for cost, _, _ in rounds)
                ratios = sorted(ours[0] / theirs[0] for ours, theirs in zip(rounds, found["memcached"]))
                print(
                    f"{name:15} {contestant:12} {statistics.median(cost):6.3f} µs/request [{cost[0]:.3f}, {cost[-1]:.3f}]"
                    f"  {statistics.median(rate for _, rate, _ in rounds):9.0f} requests/s"
                    f"  core {statistics.median(busy for _, _, busy in rounds) * 100:3.0f} % busy"
                    f"  {statistics.median(ratios):.2f} [{ratios[0]:.2f}, {ratios[-1]:.2f}] of memcached's",
                    flush=True,
                )
    finally:
        for server in servers.values():
            server.stop()


if __name__ == "__main__":
    main()
