#!/usr/bin/env python3
"""Compares a service on Lull with its twin on two network namespaces (root): CPU time and latency, in interleaved rounds.

CPU time is all that the server's core was not idle. `client`: how busy the client's core was; near 100 % it was the limit.
Build first:
cargo build --release -p lull-servers -p lull-loadgen -p lull-policies-cli -p lull-adapters --bins --example udp_misses --example service_pairs
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

import testbed
from testbed import CLIENT, CLIENT_ADDRESS, CLIENT_LINK, SERVER, SERVER_ADDRESS, SERVER_LINK, within

ROOT = Path(__file__).resolve().parents[2]
ADDRESS, UPSTREAM = f"{SERVER_ADDRESS}:11211", f"{CLIENT_ADDRESS}:8080"
# Requests a second; 0: a closed loop.
RATES = {"udp": [20_000], "axum": [0, 20_000], "grpc": [0, 10_000], "websocket": [0, 20_000], "proxy": [0, 5_000]}
# Seconds in which a controller settles, and in which a client starts: it is late by some milliseconds there.
WARM_UP = 3
# loadgen's exit codes of reports that are invalid, or have failures.
REPORTED = (0, 3, 4)


def row(command, policy=None, driver=None, budget=None):
    """A server's command and environment; without a policy it is not on Lull, and its queue is as under vanilla."""
    values = {"POLICY": policy, "DRIVER": driver, "LATENCY_BUDGET": budget, "INTERFACE": policy and SERVER_LINK}
    return command, {f"RUNTIME_{name}": value for name, value in values.items() if value}, policy is None


def udp(built):
    memcached = [built / "memcached", "-u", "root", "-l", SERVER_ADDRESS, "-U", "11211", "--listen-unauthenticated"]
    memcached += ["-t", "1", "--cores", "0", "--interface", SERVER_LINK]
    misses = built / "examples/udp_misses"
    rows = {}
    for driver in ["uring", "epoll"]:
        for policy in ["vanilla", "packing", "suppression", "kernel-polling"]:
            rows[f"memcached, {policy}, {driver}"] = row(memcached, policy, driver)
        rows[f"memcached, kernel-polling with 50 µs, {driver}"] = row(memcached, "kernel-polling", driver, "50")
        for policy in ["vanilla", "kernel-polling"]:
            rows[f"misses, {policy}, {driver}"] = row([misses, "lull", ADDRESS], policy, driver)
        rows[f"misses, kernel-polling with 50 µs, {driver}"] = row([misses, "lull", ADDRESS], "kernel-polling", driver, "50")
    return rows | {"misses, tokio": row([misses, "tokio", ADDRESS])}


def pairs(service, built, folder):
    command = lambda on: [built / "examples/service_pairs", service, on, ADDRESS, *([UPSTREAM] if service == "proxy" else [])]
    rows = {}
    for driver in ["uring", "epoll"]:
        for policy in ["vanilla", "kernel-polling"]:
            rows[f"Lull, {policy}, {driver}"] = row(command("lull"), policy, driver)
    rows["tokio"] = row(command("tokio"))
    if service == "websocket":
        rows["tokio, read buffer of 8 KiB as Lull's"] = row(command("tokio-8k"))
    if service == "proxy":
        web = [built / "web", "-u", "root", "-l", ADDRESS, "--proxy", f"/=http://{UPSTREAM}", "-t", "1", "--cores", "0"]
        for policy in ["vanilla", "kernel-polling"]:
            rows[f"web, {policy}"] = row([*web, "--interface", SERVER_LINK], policy)
        forward = 'proxy_pass http://upstream; proxy_http_version 1.1; proxy_set_header Connection "";'
        rows["nginx"] = row(nginx(folder, ADDRESS, forward))
    return rows


def nginx(folder, address, what):
    """Returns the command of an nginx with one worker that does something for each request."""
    config = Path(folder) / f"{address}.conf"
    config.write_text(
        f"daemon off; master_process off; pid {config}.pid; error_log stderr; events {{ worker_connections 4096; }}\n"
        f"http {{ access_log off; keepalive_requests 1000000000;\n"
        f"upstream upstream {{ server {UPSTREAM}; keepalive 64; keepalive_requests 1000000000; }}\n"
        f"server {{ listen {address} backlog=4096; location / {{ {what} }} }} }}\n"
    )
    return ["nginx", "-c", config]


@contextmanager
def running(namespace, command, environment, stdout=subprocess.DEVNULL):
    """A program that is ended after `with`."""
    process = subprocess.Popen(within(namespace, *command), env=os.environ | environment, stdout=stdout)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


@contextmanager
def serving(namespace, command, environment):
    with running(namespace, command, environment) as process:
        time.sleep(1)
        if process.poll() is not None:
            sys.exit(f"{' '.join(process.args)} has ended with exit code {process.returncode}")
        yield


def client(options, name, rate):
    """Returns a command that prints a report, which has what `loadgen` reports."""
    if options.service != "udp":
        load = [options.service, "load", ADDRESS, options.connections, rate, WARM_UP, options.seconds]
        return [options.built / "examples/service_pairs", *load]
    command = [options.built / "loadgen", "-s", ADDRESS, "--udp", "-c", options.connections, "-r", "1000", "--cores", "1"]
    command += ["-w", WARM_UP, "-t", options.seconds, "--format", "json", "--quiet", *(["-q", rate] if rate else [])]
    # Nobody stores what misses.
    return command + (["--noload"] if name.startswith("misses") else [])


def measure(options, name, rate, command, environment, is_foreign):
    """Returns the report of a load, and in it how busy either core was."""
    policies = lambda *words: subprocess.run(
        within(SERVER, options.built / "policies", *words), check=True, stdout=subprocess.DEVNULL
    )
    if is_foreign:
        policies("apply", SERVER_LINK, "--policy", "vanilla", "--worker-cores", "0")
    try:
        by_queue = {"RUNTIME_POLICY": "vanilla", "RUNTIME_INTERFACE": CLIENT_LINK}
        with serving(SERVER, command, environment), running(
            CLIENT, client(options, name, rate), by_queue, subprocess.PIPE
        ) as load:
            # Within the time that the report is about.
            time.sleep(WARM_UP + 0.3)
            start, before = time.monotonic(), [testbed.busy(core) for core in (0, 1)]
            time.sleep(max(options.seconds - 0.6, 0.1))
            shares = [(testbed.busy(core) - earlier) / (time.monotonic() - start) for core, earlier in enumerate(before)]
            report, _ = load.communicate()
        if load.returncode not in REPORTED:
            sys.exit(f"{' '.join(load.args)} has ended with exit code {load.returncode}")
        report = json.loads(report)
        return report | {"cpu": shares[0] * 1e6 / max(report["qps"], 1), "client": shares[1] * 100}
    finally:
        if is_foreign:
            policies("restore")


def show(rate, results, reference):
    """Prints a table in Markdown: of each row the medians of its valid turns, with their least and largest."""
    figures = {
        f"CPU / {reference}": (2, lambda report, beside: report["cpu"] / beside["cpu"] if beside else None),
        "CPU µs": (2, lambda report, _: report["cpu"]),
        "requests/s": (0, lambda report, _: report["qps"]),
        "p50 µs": (1, lambda report, _: report["latency"]["p50"]),
        "p99 µs": (1, lambda report, _: report["latency"]["p99"]),
        "client %": (0, lambda report, _: report["client"]),
    }
    print(f"\n| {f'{rate} requests/s' if rate else 'closed loop'} | {' | '.join(figures)} |\n|---|{'---:|' * len(figures)}")
    is_valid, notes = lambda report: not report.get("invalid"), []
    for name, reports in results.items():
        beside = results.get(reference, [None] * len(reports))
        turns = [(one, other if other and is_valid(other) else None) for one, other in zip(reports, beside) if is_valid(one)]
        cells = [name]
        for digits, figure in figures.values():
            values = [value for value in (figure(*turn) for turn in turns) if value is not None]
            form = lambda value: f"{value:.{digits}f}"
            cells.append(f"{form(statistics.median(values))} [{form(min(values))}, {form(max(values))}]" if values else "-")
        print(f"| {' | '.join(cells)} |")
        if invalid := [report["invalid"] for report in reports if not is_valid(report)]:
            notes.append(f"{name}: {len(invalid)} of {len(reports)} turns are left out. {invalid[-1]}")
        if failed := sum(report.get(what, 0) for report, _ in turns for what in ["unanswered", "errors", "wrong"]):
            asked = sum(report["requests"] for report, _ in turns) + failed
            notes.append(f"{name}: {failed} of {asked} requests were not answered, or wrongly")
    print("".join(f"\n- {note}" for note in notes))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("service", choices=RATES)
    parser.add_argument("--rates", type=int, nargs="+", help=f"requests per second; 0: closed loop; default: {RATES}")
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=5, help="of each measurement")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="rows with this in their names, for example misses")
    parser.add_argument("--built", type=Path, default=ROOT / "target/release", help="folder of the programs")
    options = parser.parse_args()
    of_udp, of_pairs = ["loadgen", "memcached", "examples/udp_misses"], ["web", "examples/service_pairs"]
    needed = ["policies", *(of_udp if options.service == "udp" else of_pairs)]
    if missing := [name for name in needed if not (options.built / name).exists()]:
        sys.exit(f"{', '.join(missing)}: not in {options.built}. {__doc__[__doc__.index('Build first') :]}")
    if options.service == "proxy":
        testbed.require("nginx", "nginx-light")
    with tempfile.TemporaryDirectory() as folder, testbed.testbed():
        rows = udp(options.built) if options.service == "udp" else pairs(options.service, options.built, folder)
        rows = {name: row for name, row in rows.items() if options.only in name}
        reference = {"udp": "misses, tokio", "proxy": "nginx"}.get(options.service, "tokio")
        rates = options.rates or RATES[options.service]
        results = {rate: {name: [] for name in rows} for rate in rates}
        upstream = nginx(folder, UPSTREAM, 'return 200 "Hello, World!";')
        with serving(CLIENT, upstream if options.service == "proxy" else ["sleep", "infinity"], {}):
            for _ in range(options.rounds):
                for name, row in rows.items():
                    for rate in rates:
                        results[rate][name].append(measure(options, name, rate, *row))
                        print(".", end="", file=sys.stderr, flush=True)
    print(f"\n{options.service}, {options.connections} connections, {options.rounds} rounds of {options.seconds} s")
    for rate in rates:
        show(rate, results[rate], reference)


if __name__ == "__main__":
    main()
