#!/usr/bin/env python3
"""The goals of live operation, each beside its peer, in one run: the table of the book.

usage: bench/goals.py [--binary target/release/slipstream] [--dpdk target/dpdk/release/slipstream] [--rounds 5] [--quick]

All contestants of a row take turns, and the table has medians of the rounds; ratios are medians of the ratios
within rounds. CPU is that of all processes: the forwarder, the sender, and the kernel's threads
(bench/live_ports.py). Rows over DPDK are left out, and said to be, where there is no such binary
(`make dpdk`) or no dpdk-testpmd. Needs root, ip, ethtool, chrt, nginx, curl and a C compiler.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The tests have modules of the same names, which aren't those that are meant.
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
import harness  # noqa: E402
import live_ports  # noqa: E402
import netns  # noqa: E402
import waiting  # noqa: E402
from netns import Middlebox, Net  # noqa: E402

RATE = 100_000
CHAIN = "reframe -> flow_stats -> firewall(rules=\"{rules}\") -> [inside]nat(pool=[192.0.2.2])"
FORWARD = "in :: {0}(interface=ma); out :: {0}(interface=mb); in -> out"
WEB = {
    "forwarding": "a -> b; b -> a",
    "hold = auto": "a -> reframe(hold=auto) -> b; b -> reframe(hold=auto) -> a",
    "admit = adaptive": "a -> reframe(admit=adaptive) -> b; b -> reframe(admit=adaptive) -> a",
}
NGINX = "daemon off; pid {0}/pid; events {{}} http {{ access_log off; server {{ listen 80; root {0}; }} }}"


class Table:
    """Rows as they are measured: what, figure, peer's figure, ratio, goal, and a verdict."""

    def __init__(self):
        print("| what | ours | peer | ratio | goal | |\n|---|---|---|---|---|---|", flush=True)

    def row(self, what, ours, peer, ratio, goal, met):
        verdict = "–" if met is None else "met" if met else "missed"
        print(f"| {what} | {ours} | {peer} | {ratio} | {goal} | {verdict} |", flush=True)


def bridged(net):
    """A bridge of the kernel's in the middle."""
    net.ip("m", "link", "add", "br0", "type", "bridge")
    for interface in ("ma", "mb"):
        net.ip("m", "link", "set", "dev", interface, "master", "br0")
    net.ip("m", "link", "set", "dev", "br0", "up")


def forwarding(table, binary, programs, rounds, seconds):
    """CPU of all processes for a packet of 60 bytes from veth to veth."""
    contestants = {
        "af_packet": ([binary, "run", "-e", FORWARD.format("af_packet")], None),
        "af_packet C": ([programs["af_packet_forward"], "ma", "mb"], None),
        # It has no process of its own: this one waits, and ends well when it is told to.
        "bridge": (["sh", "-c", "trap 'kill $!; exit 0' INT; sleep 1000 & wait"], bridged),
        "af_xdp": ([binary, "run", "-e", FORWARD.format("af_xdp")], None),
        "af_xdp C": ([programs["af_xdp_forward"], "ma", "mb"], None),
    }
    seen = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, (command, prepare) in contestants.items():
            sent, passed, own, whole = live_ports.measure(command, programs["flood"], RATE, seconds, prepare)
            seen[name].append((1e9 * own / max(passed, 1), 1e9 * whole / max(passed, 1), passed / sent))
    median = {name: [statistics.median(r[i] for r in runs) for i in range(3)] for name, runs in seen.items()}
    for ours, peer, goal in (("af_packet", "af_packet C", 1.0), ("af_packet", "bridge", None), ("af_xdp", "af_xdp C", 1.1)):
        for i, whose in ((0, "the forwarder's CPU"), (1, "everybody's CPU")):
            if peer == "bridge" and i == 0:
                continue  # its work is done in the sender's time
            ratio = statistics.median(a[i] / b[i] for a, b in zip(seen[ours], seen[peer]))
            table.row(f"{ours.upper()} forward, {whose} a packet", f"{median[ours][i]:.0f} ns", f"{peer}: {median[peer][i]:.0f} ns",
                      f"{ratio:.2f}", f"≤ {goal}" if goal else "–", ratio <= goal if goal else None)
    print(f"<!-- forwarded of {RATE} pps: " + ", ".join(f"{name} {m[2]:.1%}" for name, m in median.items()) + " -->", flush=True)


def delay(table, binary, programs, rounds, seconds):
    """Delay from stamp to system call of packets that come one at a time."""
    runs = [waiting.measure(binary, ("--coalesce", "0us"), waiting.GRAPHS["hold 64 µs"], programs["flood"], 10_000, seconds)
            for _ in range(rounds)]
    p50, p99 = (statistics.median(run[i] for run in runs) for i in (4, 5))
    table.row("delay at 10 kpps, hold 64 µs, median", f"{p50:.0f} µs", "–", "–", "≤ 70 µs", p50 <= 70)
    table.row("delay at 10 kpps, hold 64 µs, 99th percentile", f"{p99:.0f} µs", "–", "–", "≤ 110 µs", p99 <= 110)


def elapsed(command, processes=1):
    """Seconds until so many processes that begin together have all ended."""
    words = list(map(str, command))
    with tempfile.TemporaryFile() as errors:
        since = time.monotonic()
        running = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors) for _ in range(processes)]
        failed = any([process.wait() for process in running])
        took = time.monotonic() - since
        errors.seek(0)
        if failed:
            sys.exit(f"{command}: {errors.read()[-500:].decode(errors='replace')}")
    return took


def core_distance(directory):
    """Time in which a word goes round between two cores, in ns."""
    program = directory / "core_distance"
    subprocess.run([os.environ.get("CC", "cc"), "-O2", "-pthread", "-o", program, HERE / "peers/core_distance.c"], check=True)
    return float(subprocess.run([program], check=True, capture_output=True, text=True).stdout)


def two_cores(table, binary, directory, rounds, packets):
    """The same on one thread and on two, and by two processes of one thread each, which share nothing but the
    machine: what two cores of it can do."""
    distances = [core_distance(directory)]
    rules = HERE.parent / "configs/acl.txt"
    capture = directory / "campus.pcap"
    subprocess.run([binary, "synth", capture, "--profile", "campus", "--copies", "4", "--packets", str(packets), "--seed", "1",
                    "--snap-len", "64"], check=True, stdout=subprocess.DEVNULL)
    chain = CHAIN.format(rules=rules)
    replay = lambda source, graph: ("run", "-i", source, "-o", "null", "-e", graph)
    for what, words in (("chain over traffic made in memory", replay(f"synth:flows=10000,packets={packets},size=60", chain)),
                        ("chain over a capture", replay(capture, chain)),
                        ("reframe of a capture", replay(capture, "reframe")),
                        ("analyze of a capture", ("analyze", capture)),
                        ("measure of a capture, heavy hitters", ("measure", "--task", "heavy-hitters", capture))):
        contestants = [(binary, *words, "--workers", n) for n in (1, 2)]
        runs = [(*map(elapsed, contestants), elapsed(contestants[0], processes=2)) for _ in range(rounds)]
        one, two, apart = (statistics.median(run[i] for run in runs) for i in range(3))
        gain, bound = (statistics.median(r) for r in zip(*((a / b, 2 * a / c) for a, b, c in runs)))
        table.row(f"{what}, two threads", f"{two:.2f} s", f"one thread: {one:.2f} s", f"{gain:.2f}", "≥ 1.8", gain >= 1.8)
        table.row(f"{what}, twice at once", f"{apart:.2f} s", f"once: {one:.2f} s", f"{bound:.2f}", "–", None)
        distances.append(core_distance(directory))
    print(f"<!-- a word goes round between the two cores in {min(distances):.0f} to {max(distances):.0f} ns -->")


def web(table, binary, directory, rounds, seconds):
    """Throughput of one connection to nginx."""
    www = directory / "www"
    www.mkdir(exist_ok=True)
    size = 64 << 20
    with open(www / "page", "wb") as page:
        page.truncate(size)
    config = www / "nginx.conf"
    config.write_text(NGINX.format(www))
    seen = {name: [] for name in ("bridge", *WEB)}
    for _ in range(rounds):
        for name in seen:
            with Net() as net:
                if name == "bridge":
                    bridged(net)
                else:
                    graph = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); " + WEB[name]
                    Middlebox(net, binary, "run", "-e", graph).ready()
                server = net.start("b", "nginx", "-p", www, "-c", config, "-e", www / "error.log")
                net.listens("b", 80)
                took = net.sh("a", "curl", "-sS", "-m", "60", "-o", "/dev/null", "-w", "%{time_total} %{size_download}",
                              "http://10.77.0.2/page", timeout=90)
                total, got = took.split()
                if int(got) != size:
                    sys.exit(f"{name}: {got} bytes of {size}")
                seen[name].append(size / float(total) / 1e6)
                server.terminate()
    for name in list(WEB)[1:]:
        for peer, goal in (("forwarding", 0.9), ("bridge", None)):
            ratio = statistics.median(a / b for a, b in zip(seen[name], seen[peer]))
            table.row(f"nginx, one connection, {name}", f"{statistics.median(seen[name]):.0f} MB/s",
                      f"{peer}: {statistics.median(seen[peer]):.0f} MB/s", f"{ratio:.2f}", f"≥ {goal}" if goal else "–",
                      ratio >= goal if goal else None)


def dpdk_shards(binary, shards, packets_seconds):
    """Packets a second of forwarding on so many shards."""
    import dpdk

    graph = f"in :: {dpdk.null(0, 64, '--no-pci')[:-1]}, steer=false) -> out :: {dpdk.null(1, 64)}"
    command = [binary, "run", "-e", graph, "--shards", str(shards), "--duration", f"{packets_seconds}s", "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{graph}: {done.stderr}")
    report = json.loads(done.stdout)
    return report["packets_out"] / report["elapsed_ns"] * 1e9


def over_dpdk(table, binary, directory, rounds, packets, seconds):
    """Forwarding beside testpmd, and the chain of 10,000 rules."""
    import dpdk

    with dpdk.huge_pages(dpdk.PAGES):
        all_rows = list(dpdk.rows(binary, directory, packets, seconds))
        measured = {name: [] for name, _, _ in all_rows}
        for _ in range(rounds):
            for name, measure, _ in all_rows:
                measured[name].append(measure())
        shards = [[dpdk_shards(binary, n, seconds) for n in (1, 2)] for _ in range(rounds)]
    cpu = {name: statistics.median(m[0] for m in runs) for name, runs in measured.items()}
    for name, _, peer in all_rows:
        if not peer:
            continue
        ratio = statistics.median(a[0] / b[0] for a, b in zip(measured[name], measured[peer]))
        goal = 1.5 if name.startswith("forward, net_null") else None
        table.row(f"DPDK: {name}", f"{cpu[name]:.1f} ns", f"{peer}: {cpu[peer]:.1f} ns", f"{ratio:.2f}", f"≤ {goal}" if goal else "–",
                  ratio <= goal if goal else None)
    gain = statistics.median(b / a for a, b in shards)
    one, two = (statistics.median(run[i] for run in shards) / 1e6 for i in range(2))
    table.row("DPDK: forward, net_null, two shards", f"{two:.1f} Mpps", f"one: {one:.1f} Mpps", f"{gain:.2f}", "≥ 1.8", gain >= 1.8)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--dpdk", default=HERE.parent / "target/dpdk/release/slipstream", type=Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works, not how fast it is")
    parser.add_argument("--only", default="", help="only parts that have this in their name: forwarding, delay, two_cores, web, dpdk")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary, dpdk = harness.program(arguments.binary), arguments.dpdk.resolve()
    reason = netns.why_not()
    if reason:
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed("chrt", "nginx", "curl", os.environ.get("CC", "cc"))
    rounds, seconds, packets = (1, 0.5, 200_000) if arguments.quick else (arguments.rounds, 2, 5_000_000)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)
        programs = live_ports.built(directory)
        table = Table()
        parts = {
            "forwarding": lambda: forwarding(table, binary, programs, rounds, seconds),
            "delay": lambda: delay(table, binary, programs, rounds, seconds),
            "two_cores": lambda: two_cores(table, binary, directory, rounds, 2 * packets),
            "web": lambda: web(table, binary, directory, rounds, seconds),
            "dpdk": lambda: over_dpdk(table, dpdk, directory, rounds, packets, seconds),
        }
        if not any(arguments.only in part for part in parts):
            sys.exit(f"no part has {arguments.only!r} in its name: {', '.join(parts)}")
        for part, measure in parts.items():
            if arguments.only not in part:
                continue
            lacking = not os.access(dpdk, os.X_OK) and f"{arguments.dpdk}: make dpdk" or not shutil.which("dpdk-testpmd") and "dpdk-testpmd"
            if part == "dpdk" and lacking:
                print(f"<!-- left out: rows over DPDK, since there is no {lacking} -->")
                continue
            measure()
        print(f"<!-- load of the machine at the beginning {load:.1f}, at the end {os.getloadavg()[0]:.1f} -->")


if __name__ == "__main__":
    main()
