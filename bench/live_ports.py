#!/usr/bin/env python3
"""Forwarding between two interfaces: Slipstream beside minimal forwarders in C of its kind (bench/peers).

usage: bench/live_ports.py [--binary target/release/slipstream] [--before BINARY]
                           [--rounds 7] [--seconds 2] [--rates 50000,200000]

    a (a0) ==== (ma) m (mb) ==== (b0) b

Frames of 60 bytes of 1,024 flows come at a set rate by ma and leave by mb. All contestants take turns, and
the table has medians of rounds; the last column is the median of the ratios within rounds. CPU is that of all
processes: the forwarder, the sender, in whose time the kernel hands packets over, and the kernel's own
threads for it (ksoftirqd). Needs root, ip, ethtool and a C compiler.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import harness  # noqa: E402
import netns  # noqa: E402
from netns import Net  # noqa: E402

PEERS = ("flood", "af_packet_forward", "af_xdp_forward")
FLOWS = 1024
TICK = os.sysconf("SC_CLK_TCK")


def built(directory):
    """The C programs, by name."""
    programs = {}
    for name in PEERS:
        programs[name] = directory / name
        subprocess.run([os.environ.get("CC", "cc"), "-O2", "-o", programs[name], HERE / "peers" / f"{name}.c"], check=True)
    return programs


def threads_of_the_kernel():
    """CPU seconds of ksoftirqd, all cores."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().rpartition(")")
        except OSError:
            continue
        if "(ksoftirqd/" in name:
            fields = rest.split()
            total += int(fields[11]) + int(fields[12])
    return total / TICK


def so_far(child):
    """CPU seconds of a program that runs, all threads."""
    tasks = Path(f"/proc/{child.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def quiet(net):
    """Has the end hosts send nothing of their own."""
    for end, interface in (("a", "a0"), ("b", "b0")):
        net.sh(end, "sysctl", "-qw", f"net.ipv6.conf.{interface}.disable_ipv6=1")


def far_address(net):
    """The Ethernet address of the far end, as the sender takes it."""
    return ":".join(f"{byte:02x}" for byte in net.mac["b"])


def received(net):
    return int(net.sh("b", "cat", "/sys/class/net/b0/statistics/rx_packets"))


def ended(child):
    """CPU seconds of a program that was told to end."""
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"{' '.join(map(str, child.args))}: {child.stderr.read()}")
    return usage.ru_utime + usage.ru_stime


def measure(command, flood, rate, seconds, prepare=None):
    """Packets that were sent and forwarded, and CPU seconds: of the forwarder, of all. `prepare` has the
    namespaces first."""
    with Net() as net:
        if prepare:
            prepare(net)
        quiet(net)
        child = net.start("m", *command)
        time.sleep(0.7)
        if child.poll() is not None:
            sys.exit(f"{' '.join(map(str, command))}: {child.stderr.read()}")
        begun = so_far(child)
        before, kernel = received(net), threads_of_the_kernel()
        sender = net.start("a", flood, "a0", far_address(net), rate, seconds, FLOWS)
        sent_cpu = ended(sender)
        sent = int(sender.stdout.read())
        time.sleep(0.1)
        forwarded = received(net) - before
        own = so_far(child) - begun
        child.send_signal(signal.SIGINT)
        ended(child)
        kernel = threads_of_the_kernel() - kernel
    return sent, forwarded, own, own + sent_cpu + kernel


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--before", type=Path, help="another build, which takes its turns")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--seconds", default=2.0, type=float)
    parser.add_argument("--rates", default="50000,200000")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    before = arguments.before and harness.program(arguments.before)
    reason = netns.why_not()
    if reason:
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed(os.environ.get("CC", "cc"))
    with tempfile.TemporaryDirectory() as directory:
        programs = built(Path(directory))
        both = "in :: {0}(interface=ma); out :: {0}(interface=mb); in -> out"
        contestants = {
            "AF_PACKET, C": [programs["af_packet_forward"], "ma", "mb"],
            "AF_PACKET, Slipstream": [binary, "run", "-e", both.format("af_packet")],
            "AF_XDP, C": [programs["af_xdp_forward"], "ma", "mb"],
            "AF_XDP, Slipstream": [binary, "run", "-e", both.format("af_xdp")],
        }
        if before:
            for port in ("af_packet", "af_xdp"):
                name = f"{port.upper()}, before"
                contestants[name] = [before, "run", "-e", both.format(port)]
        print("| pps sent | forwarder | forwarded | its CPU a packet | all CPU a packet | of C's: own | of C's: all |")
        print("|---|---|---|---|---|---|---|")
        for rate in map(int, arguments.rates.split(",")):
            rounds = []
            for first in range(arguments.rounds):
                # Another one begins each round: the machine's speed drifts within one.
                order = list(contestants)
                order = order[first % len(order):] + order[:first % len(order)]
                rounds.append({name: measure(contestants[name], programs["flood"], rate, arguments.seconds)
                               for name in order})
            for name in contestants:
                share = statistics.median(r[name][1] / r[name][0] for r in rounds)
                own, whole = (lambda r, name=name, i=i: 1e9 * r[name][i] / max(r[name][1], 1) for i in (2, 3))
                peer = name.split(",")[0] + ", C"
                ratios = ["", ""]
                if name != peer:
                    ratios = [f"{statistics.median(f(r) / f(r, peer) for r in rounds):.2f}" for f in (own, whole)]
                figures = [f"{statistics.median(f(r) for r in rounds):.0f} ns" for f in (own, whole)]
                print(f"| {rate:,} | {name} | {share:.1%} | {figures[0]} | {figures[1]} | {ratios[0]} | {ratios[1]} |", flush=True)


if __name__ == "__main__":
    main()
