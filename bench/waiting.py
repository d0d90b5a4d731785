#!/usr/bin/env python3
"""Delay and CPU of a reframer and of plain forwarding between two veths, packets coming one at a time.

usage: bench/waiting.py [--binary target/release/slipstream] [--rates 10000,40000] [--coalesce 40us,0us] [--rounds 3] [--seconds 1.5] [--peers]

    a (a0) ==== (ma) m (mb) ==== (b0) b

All contestants take turns; the table has medians of rounds. "its CPU" is that of the program, "all" that of
the sender, which waits awake for the time of the next packet, and of the kernel's threads, too. The program
precedes those that share time (`chrt -f 50`), since another program's turn would be measured as delay. The
sender doesn't: it never sleeps, and would keep the kernel's thread that delivers its packets from running.
Needs root, ip, ethtool, chrt and a C compiler.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The tests have a module of the same name, which isn't the one that is meant.
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
import harness  # noqa: E402
import live_ports  # noqa: E402
import netns  # noqa: E402
from netns import Net  # noqa: E402

FLOWS = 64
GRAPHS = {
    "hold 64 µs": "in :: af_packet(interface=ma); out :: af_packet(interface=mb); in -> reframe(hold=64us) -> out",
    "forwarding": "in :: af_packet(interface=ma); out :: af_packet(interface=mb); in -> out",
}


def under_load(command, flood, rate, seconds):
    """Of a program between the two: packets sent, its CPU and everybody's in ns a packet, and what it said at
    the end."""
    with Net() as net:
        live_ports.quiet(net)
        child = net.start("m", "chrt", "-f", "50", *command)
        time.sleep(0.7)
        if child.poll() is not None:
            sys.exit(child.stderr.read())
        own, kernel = live_ports.so_far(child), live_ports.threads_of_the_kernel()
        sender = net.start("a", flood, "a0", live_ports.far_address(net), rate, seconds, FLOWS, 1)
        sender_cpu = live_ports.ended(sender)
        sent = int(sender.stdout.read())
        time.sleep(0.05)
        own, kernel = live_ports.so_far(child) - own, live_ports.threads_of_the_kernel() - kernel
        child.send_signal(signal.SIGINT)
        out, _ = child.communicate(timeout=10)
        return 1e9 * own / sent, 1e9 * (own + sender_cpu + kernel) / sent, out


def measure(binary, words, graph, flood, rate, seconds):
    """Of one run: the program's CPU and everybody's in ns a packet, and its report's times."""
    command = (binary, "run", "--format", "json", *words, "-e", graph)
    own, whole, out = under_load(command, flood, rate, seconds)
    last = json.loads(out)["stages"][-1]
    late, transit = last["excess_delay_ns"], last["transit_ns"]
    return own, whole, late["p50"] / 1e3, late["p99"] / 1e3, transit["p50"] / 1e3, transit["p99"] / 1e3


def peers(programs, rate, rounds, seconds):
    """What receiving, and forwarding, cost a minimal program in C: woken by each packet, or asleep for a set
    time."""
    forward = programs["af_packet_forward"]
    commands = {f"C, {what}, {how}": (forward, "ma", out, *nap)
                for what, out in (("receiving only", "-"), ("forwarding", "mb"))
                for how, nap in (("woken by each packet", ()), ("asleep for 50 µs", ("50",)))}
    seen = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            seen[name].append(under_load(command, programs["flood"], rate, seconds)[:2])
    for name, runs in seen.items():
        own, whole = (statistics.median(run[n] for run in runs) / 1e3 for n in range(2))
        print(f"| {rate:,} | {name} | – | {own:.1f} µs | {whole:.1f} µs | – | – | – | – |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--rates", default="10000,40000")
    parser.add_argument("--coalesce", default="40us,0us")
    parser.add_argument("--rounds", default=3, type=int)
    parser.add_argument("--seconds", default=1.5, type=float)
    parser.add_argument("--peers", action="store_true", help="beside programs in C (bench/peers)")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    reason = netns.why_not()
    if reason:
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed("chrt", os.environ.get("CC", "cc"))
    print("| pps | | `--coalesce` | its CPU a packet | all | late, median | late, p99 | in all, median | p99 |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as directory:
        programs = live_ports.built(Path(directory))
        flood = programs["flood"]
        for rate in map(int, arguments.rates.split(",")):
            for name, graph in GRAPHS.items():
                rows = {coalesce: [] for coalesce in arguments.coalesce.split(",")}
                for _ in range(arguments.rounds):
                    for coalesce, runs in rows.items():
                        words = ("--coalesce", coalesce)
                        runs.append(measure(binary, words, graph, flood, rate, arguments.seconds))
                for coalesce, runs in rows.items():
                    own, whole, *times = (statistics.median(run[n] for run in runs) for n in range(6))
                    cells = [f"{own / 1e3:.1f} µs", f"{whole / 1e3:.1f} µs", *(f"{t:.0f} µs" for t in times)]
                    print(f"| {rate:,} | {name} | {coalesce} | {' | '.join(cells)} |", flush=True)
            if arguments.peers:
                peers(programs, rate, arguments.rounds, arguments.seconds)


if __name__ == "__main__":
    main()
