#!/usr/bin/env python3
"""Checks ports of DPDK over its virtual devices: net_null, net_ring, net_pcap, net_tap.

usage: check_dpdk.py [target/release/slipstream] [--dpdk BINARY] [--only TEXT]

It builds the program with DPDK (`make dpdk`), unless --dpdk names one, and holds it against the one without.
Root is needed for huge pages and a network namespace, and Debian's libdpdk-dev and dpdk, which are installed
where that is possible; without, it fails.
"""

import argparse
import collections
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import capture
import harness
from harness import ROOT, until
from huge_pages import free, huge_pages

NO_HUGE = "--no-huge --no-pci"
# Times of the trace are stretched by so much, and the hold time too: a busy machine follows, and trains are
# the same.
SLOWER = 50


class Dpdk:
    """The program, and a capture for it."""

    def __init__(self, directory, plain, program):
        self.directory, self.plain, self.program = directory, plain, program
        self.capture, self.slow = directory / "in.pcap", directory / "slow.pcap"
        records = [r._replace(length=len(r.data)) for r in capture.read(ROOT / "traces" / "campus.pcap.gz").records]
        capture.write_pcap(self.capture, records, 1, unit=1000)
        first = records[0].time
        slow = [r._replace(time=first + (r.time // 1000 * 1000 - first) * SLOWER) for r in records]
        capture.write_pcap(self.slow, slow, 1, unit=1000)
        self.packets = [r.data for r in records]

    def run(self, *words, timeout=120):
        """What a run of a pipeline says in JSON; an exception where it fails, or something of it is left."""
        words = [str(word) for word in (self.program, "run", *words, "--format", "json")]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=timeout)
        if done.returncode:
            raise AssertionError(f"{' '.join(words)}: exit status {done.returncode}: {done.stderr[-1500:]}")
        result = json.loads(done.stdout)
        if (result["left_inside"], result["dpdk"]["mbufs_left"]) != (0, 0):
            raise AssertionError(f"{' '.join(words)}: left inside {result['left_inside']}, {result['dpdk']}")
        return result

    def fails(self, *words):
        """What a run says that has to fail."""
        words = [str(word) for word in (self.program, "run", *words)]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60)
        if done.returncode != 2 or done.stdout:
            raise AssertionError(f"{' '.join(words)}: exit status {done.returncode}: {done.stdout[-300:]}{done.stderr[-500:]}")
        return done.stderr


def source(result, name):
    return next(s for s in result["sources"] if s["name"] == name)


def stage(result, name):
    return next(s for s in result["stages"] if s["name"] == name)


def contents(path):
    return [r.data for r in capture.read(path).records]


def null(case, d):
    """net_null brings and takes a million packets; nothing is copied, nothing stays, on one core and on
    two."""
    graph = 'in :: dpdk(device="net_null0,size=64", eal="{}", queues=2) -> reframe -> counter -> out :: dpdk(device=net_null1)'
    files = set(Path("/var/run/dpdk").glob("*"))
    with huge_pages(128):
        for eal in (NO_HUGE, "--no-pci"):
            for workers in (1, 2):
                result = d.run("-e", graph.format(eal), "--packets", "1m", "--workers", workers)
                what = f"{eal}, {workers} workers"
                came, left = source(result, "in"), stage(result, "out")
                case.equal((result["packets_in"], result["packets_out"], result["dropped"]), (10**6, 10**6, {}), what)
                case.equal((came["counters"]["packets_received"], left["counters"]["packets_sent"]), (10**6, 10**6), what)
                case.equal(left["counters"]["bytes_sent"], 64 * 10**6, what)
                case.equal((came["counters"]["copied"], left["counters"]["copied"]), (0, 0), f"{what}: copied")
        case.equal(free(), 128, "huge pages that are free again")
    case.equal(set(Path("/var/run/dpdk").glob("*")) - files, set(), "files left behind")


def trains(case, d):
    """A capture through net_pcap, reframe and net_pcap has the trains of `slipstream reframe`."""
    hold, by_file, out = f"{64 * SLOWER}us", d.directory / "by-file.pcap", d.directory / "out.pcap"
    subprocess.run([d.plain, "reframe", d.slow, by_file, "--hold", hold], check=True, capture_output=True, timeout=120)
    expected = contents(by_file)
    graph = (f'in :: dpdk(device="net_pcap0,rx_pcap={d.slow},tx_pcap={d.directory}/unused.pcap", eal="{NO_HUGE}", time=captured)'
             f' -> reframe(hold={hold}) -> out :: dpdk(device="net_pcap1,rx_pcap={d.slow},tx_pcap={out}")')
    # Only where something else has the core for milliseconds may a train be another: that is not so three
    # times.
    for _ in range(3):
        result = d.run("-e", graph)
        case.equal((result["packets_in"], result["packets_out"]), (len(expected), len(expected)), "packets")
        case.equal(stage(result, "out")["counters"]["copied"], 0, "copied")
        got = contents(out)
        case.check(sorted(got) == sorted(expected), "other packets")
        if got == expected:
            return
    case.check(False, f"other trains: {sum(a != b for a, b in zip(got, expected))} packets at other places")


def forward(case, d):
    """What net_pcap reads is what it writes, from several files by several queues, too; `-i` and `-o` say the
    same as a graph."""
    out = d.directory / "forwarded.pcap"
    devices = (f"dpdk:net_pcap2,rx_pcap={d.capture},tx_pcap={d.directory}/unused.pcap;eal={NO_HUGE}",
               f"dpdk:net_pcap3,rx_pcap={d.capture},tx_pcap={out}")
    result = d.run("-i", devices[0], "-o", devices[1], "-e", "counter", "--packets", len(d.packets))
    case.equal(stage(result, "out")["counters"]["packets_sent"], len(d.packets), "packets sent")
    case.check(contents(out) == d.packets, "other packets, or another order")
    graph = (f'in :: dpdk(device="net_pcap4,rx_pcap={d.capture},rx_pcap={d.capture},tx_pcap={out},tx_pcap={out}", eal="{NO_HUGE}",'
             ' queues=2, burst=256) -> reframe -> null')
    result = d.run("-e", graph, "--packets", 2 * len(d.packets))
    case.equal(result["packets_out"], 2 * len(d.packets), "packets of two queues")
    done = subprocess.run([d.program, "reframe", devices[0], devices[1], "--duration", "1s", "--format", "json"],
                          capture_output=True, text=True, check=True, timeout=60)
    case.equal(json.loads(done.stdout)["packets_out"], len(d.packets), "packets of `reframe`")
    case.check(sorted(contents(out)) == sorted(d.packets), "`reframe`: other packets")


def ring(case, d):
    """What goes into net_ring comes out of it."""
    out = d.directory / "ring.pcap"
    graph = (f'in :: pcap(path="{d.slow}") -> ring :: dpdk(device=net_ring0, eal="{NO_HUGE}") -> reframe -> out :: pcap(path="{out}")')
    result = d.run("-e", graph, "--packets", 2 * len(d.packets))
    case.equal(source(result, "ring")["packets"], len(d.packets), "packets from the ring")
    case.equal((stage(result, "ring")["counters"]["copied"], result["dropped"]), (0, {}), "copied, dropped")
    case.check(sorted(contents(out)) == sorted(d.packets), "other packets")


def tap(case, d):
    """What goes to net_tap comes up at its interface, in a namespace of our own."""
    space, interface = f"sdpdk{os.getpid()}", f"sdt{os.getpid() % 10**6}"
    seen = d.directory / "tap.pcap"
    children = []
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        inside = ["ip", "netns", "exec", space]
        graph = (f'in :: pcap(path="{d.slow}") -> tap :: dpdk(device="net_tap0,iface={interface}", eal="{NO_HUGE}", idle=1ms)'
                 ' -> counter -> null')
        runs = subprocess.Popen([*inside, d.program, "run", "-e", graph, "--duration", "8s", "--format", "json"],
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        children.append(runs)
        shown = [*inside, "ip", "link", "show", interface]
        case.check(until(lambda: subprocess.run(shown, capture_output=True, check=False).returncode == 0), "no interface")
        dump = subprocess.Popen([*inside, "tcpdump", "-i", interface, "-Q", "in", "-w", seen, "-U", "-Z", "root", "-B", "65536"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        children.append(dump)
        out, err = runs.communicate(timeout=60)
        dump.send_signal(signal.SIGINT)
        dump.wait(10)
        if not case.check(runs.returncode == 0, err[-800:]):
            return
        result = json.loads(out)
        sent = stage(result, "tap")
        case.equal((sent["counters"]["packets_sent"], sent["dropped"]), (len(d.packets), {}), "packets sent")
        case.equal(result["dpdk"]["mbufs_left"], 0, "mbufs left")
        # tcpdump begins some time after the first packet.
        got = contents(seen)
        expected = d.packets[len(d.packets) - len(got):]
        first = next((i for i, pair in enumerate(zip(got, expected)) if pair[0] != pair[1]), None)
        strange = sum((collections.Counter(got) - collections.Counter(d.packets)).values())
        case.check(len(got) > len(d.packets) // 4 and first is None,
                   f"{len(got)} packets, {strange} of them not ours, another one than sent at {first}; tcpdump: {dump.stderr.read()[-300:]}")
    finally:
        ended(children)
        subprocess.run(["ip", "netns", "del", space], check=False)


def ended(children):
    """Sees to it that no process of a check goes on when the check is over."""
    for child in children:
        if child.poll() is None:
            child.kill()
            child.communicate()


def exhausted(case, d):
    """A pipeline that holds all mbufs gets no packets until it lets some go: that is counted, and nothing is
    lost."""
    # The device has its whole capture in mbufs.
    graph = (f'in :: dpdk(device="net_pcap0,rx_pcap={d.capture},infinite_rx=1", eal="{NO_HUGE}", mbufs=32767)'
             ' -> reframe(hold=50ms, burst=256, capacity=100000) -> out :: dpdk(device=net_null1, mbufs=32767)')
    result = d.run("-e", graph, "--packets", "100k")
    case.equal((result["packets_in"], result["packets_out"]), (100_000, 100_000), "packets")
    case.check(source(result, "in")["counters"]["mempool_empty"] > 0, "an empty mempool was not counted")


def killed(case, d):
    """A run that is killed leaves no huge page and no file behind, with huge pages or without."""
    files = set(Path("/var/run/dpdk").glob("*"))
    with huge_pages(128):
        graph = 'in :: dpdk(device=net_null0, eal="--no-pci") -> reframe -> out :: dpdk(device=net_null1)'
        runs = subprocess.Popen([d.program, "run", "-e", graph], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            case.check(until(lambda: free() < 128), "it uses no huge pages")
        finally:
            ended([runs])
        until(lambda: free() == 128, 5)
        case.equal(free(), 128, "huge pages that are free again")
    # Without huge pages EAL makes a folder of this process's, which is to be gone before packets come.
    graph = f'in :: dpdk(device=net_null0, eal="{NO_HUGE}", idle=1ms) -> reframe -> out :: dpdk(device=net_null1)'
    runs = subprocess.Popen([d.program, "run", "-e", graph], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        began = any("INFO running" in line for line in runs.stderr)
    finally:
        ended([runs])
    case.check(began, "it doesn't run without huge pages")
    case.equal(set(Path("/var/run/dpdk").glob("*")) - files, set(), "files left behind")


def errors(case, d):
    """Errors say what is wrong and what to do, and leave nothing on stdout, nor a folder of EAL."""
    folders = set(Path("/var/run/dpdk").glob("slipstream-*"))
    with huge_pages(0):
        said = d.fails("-e", "dpdk(device=net_null0) -> null")
        for word in ("no free huge pages", "nr_hugepages", "--no-huge"):
            case.check(word in said, f"without huge pages: {said}")
    with huge_pages(4):
        said = d.fails("-e", 'dpdk(device=net_null0, eal="--no-pci") -> null')
        case.check("mbufs" in said and "huge pages" in said, f"too few huge pages: {said}")
    for settings, words in (
        (f'device=eth9, eal="{NO_HUGE}"', ("no DPDK device `eth9`", "net_null0")),
        (f'device=net_wrong0, eal="{NO_HUGE}"', ("no DPDK device `net_wrong0`",)),
        ('device=net_null0, eal="--no-huge --in-memory"', ("--no-huge", "--in-memory", "not both")),
        (f'device=net_null0, eal="{NO_HUGE} --sigh"', ("EAL doesn't start", "--sigh")),
        (f'device=net_null0, eal="{NO_HUGE} --proc-type=secondary"', ("--proc-type", "`primary`")),
        (f'device=net_null0, eal="{NO_HUGE} --help"', ("--help",)),
        ('device=net_null0, eal="no-huge no-pci"', ("`no-huge`", "--no-huge")),
        (f'device=net_null0, eal="{NO_HUGE} --no-telemetry stray"', ("EAL doesn't start", "1 of these words")),
        (f'device=net_null0, eal="{NO_HUGE}", mbufs=12', ("mbufs", "256")),
        ("eal=--no-huge", ("device",)),
        (f'device=net_null0, eal="{NO_HUGE}", time=captured', ("net_pcap",)),
    ):
        said = d.fails("-e", f"dpdk({settings}) -> null")
        for word in words:
            case.check(word in said, f"{settings}: no {word!r} in {said}")
    # A port of the command line is no part of the graph, and no place in the graph is shown for it.
    said = d.fails("-i", f"dpdk:net_null0;eal={NO_HUGE} -m 8", "-o", "null", "-e", "reframe", "--packets", 5)
    case.check("in: no memory for a mempool" in said and "graph" not in said, f"too little for `-m`: {said}")
    case.check("`-m`" in said and "huge pages" not in said, f"the remedy without huge pages: {said}")
    said = d.fails("-i", f"dpdk:net_null0;eal={NO_HUGE} -l 4095", "-o", "null", "-e", "reframe", "--packets", 5)
    case.check("EAL doesn't start" in said, f"a core that is not there: {said}")
    case.equal(set(Path("/var/run/dpdk").glob("slipstream-*")) - folders, set(), "folders left behind")
    # Queues that were made for shards are not what is wrong with a device that can't be opened.
    graph = f'dpdk(device="net_tap0,iface=sde{os.getpid() % 10**6}", eal="{NO_HUGE}", mtu=65000) -> null'
    said = d.fails("--shards", 2, "-e", graph, "--duration", "1s")
    case.check("can't be opened: Invalid argument" in said and "queues" not in said, f"an MTU that is too long: {said}")


def documented(case, d):
    """The book has the settings as `list` has them."""
    page = (ROOT / "book" / "src" / "dpdk.md").read_text(encoding="utf-8")
    table = subprocess.run([d.program, "list", "--markdown", "dpdk"], capture_output=True, text=True, check=True).stdout.strip()
    case.check(table in page, f"book/src/dpdk.md has other settings than\n{table}")


CHECKS = (null, trains, forward, ring, tap, exhausted, killed, errors, documented)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--dpdk", type=Path, help="a program that was built with DPDK")
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    if not shutil.which("dpdk-testpmd"):
        subprocess.run([ROOT / "ci" / "deps.sh"], check=True)
    if os.geteuid():
        sys.exit("root is needed, for huge pages and a network namespace")
    program = arguments.dpdk
    if program is None:
        subprocess.run(["make", "--no-print-directory", "dpdk"], cwd=ROOT, check=True)
        program = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target") / "dpdk" / "release" / "slipstream"
    program = harness.program(program, "make dpdk")
    with tempfile.TemporaryDirectory() as directory:
        d = Dpdk(Path(directory), binary, program)
        harness.one_by_one([(check.__name__, check) for check in CHECKS], arguments.only, lambda check, case: check(case, d))


if __name__ == "__main__":
    main()
