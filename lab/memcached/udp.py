#!/usr/bin/env python3
"""Compares servers of gets over UDP on two network namespaces (root, ethtool): CPU time and latency, in interleaved rounds.

Server and its queue are on core 0, loadgen and its queue on core 1. CPU time is all that core 0 was not idle. Build first:
cargo build --release -p lull-servers -p lull-loadgen -p lull-policies-cli -p lull-adapters --bins --example udp_misses
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time

from common import ROOT

ADDRESS = "198.18.0.1"
PORT = "11211"
NAMESPACES = ["udp-server", "udp-client"]
BUILT = ROOT / "target/release"


def ip(*words):
    subprocess.run(["ip", *words], check=True)


def within(namespace, *command):
    return ["ip", "netns", "exec", namespace, *map(str, command)]


def remove_testbed():
    for name in NAMESPACES:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def make_testbed():
    if not shutil.which("ethtool"):
        sys.exit("ethtool is missing: without GRO a veth has no NAPIs")
    remove_testbed()
    for name in NAMESPACES:
        ip("netns", "add", name)
    ip("link", "add", "us0", "netns", "udp-server", "type", "veth", "peer", "name", "uc0", "netns", "udp-client")
    for name, link, address in [("udp-server", "us0", ADDRESS), ("udp-client", "uc0", "198.18.0.2")]:
        ip("-n", name, "addr", "add", address + "/24", "dev", link)
        ip("-n", name, "link", "set", "lo", "up")
        # With GRO a veth has NAPIs.
        subprocess.run(within(name, "ethtool", "-K", link, "gro", "on", "tso", "off"), check=True)
        ip("-n", name, "link", "set", link, "up")


def contestants():
    ours = [BUILT / "memcached", "-u", "root", "-l", ADDRESS, "-p", PORT, "-U", PORT, "--listen-unauthenticated"]
    ours += ["-t", "1", "--cores", "0", "--interface", "us0"]
    misses = BUILT / "examples/udp_misses"
    polls = {"RUNTIME_POLICY": "kernel-polling", "RUNTIME_INTERFACE": "us0"}
    vanilla = {"RUNTIME_POLICY": "vanilla", "RUNTIME_INTERFACE": "us0"}
    # The queue's thread as under vanilla, for a server that sets no policy.
    apply = [BUILT / "policies", "apply", "us0", "--policy", "vanilla", "--worker-cores", "0"]
    rows = {}
    for driver in ["uring", "epoll"]:
        named = {"RUNTIME_DRIVER": driver}
        for policy in ["vanilla", "packing", "suppression", "kernel-polling"]:
            rows[f"memcached, {policy}, {driver}"] = ([*ours, "--policy", policy, "--driver", driver], {}, None)
        budget = ["--policy", "kernel-polling", "--latency-budget", "50", "--driver", driver]
        rows[f"memcached, kernel-polling with 50 µs, {driver}"] = ([*ours, *budget], {}, None)
        address = f"{ADDRESS}:{PORT}"
        rows[f"misses, vanilla, {driver}"] = ([misses, "lull", address], vanilla | named, None)
        rows[f"misses, kernel-polling, {driver}"] = ([misses, "lull", address], polls | named, None)
        budget = {"RUNTIME_LATENCY_BUDGET": "50"}
        rows[f"misses, kernel-polling with 50 µs, {driver}"] = ([misses, "lull", address], polls | named | budget, None)
    rows["misses, vanilla, tokio"] = ([misses, "tokio", f"{ADDRESS}:{PORT}"], {}, apply)
    return rows


def busy():
    """Returns how long core 0 was not idle, in seconds."""
    with open("/proc/stat") as file:
        fields = next(line for line in file if line.startswith("cpu0 ")).split()[1:]
    idle = int(fields[3]) + int(fields[4])
    return (sum(map(int, fields[:8])) - idle) / os.sysconf("SC_CLK_TCK")


def measure(name, options, command, environment, apply):
    if apply:
        subprocess.run(within("udp-server", *apply), check=True, stdout=subprocess.DEVNULL)
    server = subprocess.Popen(
        within("udp-server", *command), env=os.environ | environment, stdout=subprocess.DEVNULL, stderr=sys.stderr
    )
    try:
        time.sleep(1)
        load = [BUILT / "loadgen", "-s", f"{ADDRESS}:{PORT}", "--udp", "-c", options.connections, "-w", "0"]
        load += ["-r", "1000", "--cores", "1", "--policy", "packing", "--interface", "uc0", "--format", "json"]
        load += ["-q", options.rate] if options.rate else []
        run = lambda seconds, *more: subprocess.run(
            within("udp-client", *load, "-t", seconds, *more), check=True, capture_output=True, text=True
        ).stdout
        # Stores the records, and lets a law settle.
        run(3, *(["--noload"] if name.startswith("misses") else []))
        before = busy()
        report = json.loads(run(options.seconds, "--noload"))
        return busy() - before, report
    finally:
        server.terminate()
        server.wait()
        if apply:
            subprocess.run(within("udp-server", BUILT / "policies", "restore"), check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=int, default=20_000, help="requests per second; 0: closed loop")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows with this in their names, for example misses")
    options = parser.parse_args()
    rows = {name: row for name, row in contestants().items() if options.only in name}
    results = {name: [] for name in rows}
    try:
        make_testbed()
        for _ in range(options.rounds):
            for name, row in rows.items():
                results[name].append(measure(name, options, *row))
                print(".", end="", file=sys.stderr, flush=True)
    finally:
        remove_testbed()
    print()
    print(f"{'':48} {'CPU µs':>8} {'p50 µs':>8} {'p99 µs':>8} {'requests/s':>11} {'unanswered':>11}")
    for name, measured in results.items():
        median = lambda value: statistics.median(value(*one) for one in measured)
        cpu = median(lambda busy, report: busy * 1e6 / report["requests"])
        print(
            f"{name:48} {cpu:8.2f} {median(lambda _, report: report['latency']['p50']):8.1f} "
            f"{median(lambda _, report: report['latency']['p99']):8.1f} "
            f"{median(lambda _, report: report['qps']):11.0f} "
            f"{median(lambda _, report: report['unanswered']):11.0f}"
        )


if __name__ == "__main__":
    main()
