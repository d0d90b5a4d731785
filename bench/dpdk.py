#!/usr/bin/env python3
"""Speed over DPDK's virtual devices: forwarding beside dpdk-testpmd, reframe, a chain behind 10,000 rules.

usage: python3 bench/dpdk.py [--binary target/dpdk/release/slipstream] [--runs 5] [--packets 5000000] [--quick]

Everything is measured in turn, so often; the tables show medians, and ratios are medians of the ratios within
a turn. Times are CPU time: of testpmd the difference between a longer and a shorter run, so that its start
doesn't count, of ours what `run --format json` tells of the data path. It takes root, for huge pages. Packets
of net_null are zeros and belong to no flow; those of a known locality come from net_pcap with infinite_rx.
"""
import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import harness  # noqa: E402
from huge_pages import huge_pages  # noqa: E402

PAGES = 320
MBUFS = 65535
# Packets of a capture that net_pcap has in memory.
LOOP = 16384
CHAIN = "flow_stats -> firewall(rules={rules}) -> [inside]nat(pool=[192.0.2.2])[outside]"


def testpmd_once(devices, burst, seconds):
    """CPU time of testpmd in io mode, in ns, and packets that it forwarded."""
    vdevs = [word for device in devices for word in ("--vdev", device)]
    command = ["dpdk-testpmd", "-l", "0,1", "--in-memory", "--no-pci", "--no-telemetry", *vdevs, "--",
               "--forward-mode=io", "--auto-start", "--nb-cores=1", f"--burst={burst}", "--total-num-mbufs=65535"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        time.sleep(1 + seconds)
        # One that has ended already says why, below.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write("\n")
            process.stdin.close()
        said = process.stdout.read()
    except BaseException:
        process.kill()
        raise
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = status
    total = re.search(r"Accumulated forward statistics.*?RX-packets:\s*(\d+)", said, re.S)
    if status or not total or not int(total[1]):
        sys.exit(f"testpmd: {said[-2000:]}")
    return (used.ru_utime + used.ru_stime) * 1e9, int(total[1])


def testpmd(devices, burst, seconds):
    """ns of CPU a packet: the difference of two runs, so that starting doesn't count."""
    (short, few), (long, many) = (testpmd_once(devices, burst, s) for s in (0.5, 0.5 + seconds))
    return (long - short) / (many - few)


def slipstream(binary, graph, packets, workers=1):
    """ns of CPU, and of the wall, a packet of a pipeline."""
    command = [binary, "run", "-e", graph, "--packets", str(packets), "--workers", str(workers), "--format", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        sys.exit(f"{graph}: {done.stderr}")
    result = json.loads(done.stdout)
    sent = sum(stage["counters"]["packets_sent"] for stage in result["stages"] if stage["type"] == "dpdk")
    if result["packets_in"] < packets or sent != packets or result["dpdk"]["mbufs_left"] or result["dropped"]:
        sys.exit(f"{graph}: {result['packets_in']} in, {sent} sent, {result['dropped']}, {result['dpdk']}")
    return result["cpu_ns"] / packets, result["elapsed_ns"] / packets


def write_rules(path, count):
    """Rules of the usual kinds, of which traffic mostly matches none."""
    pick = random.Random(7)
    with open(path, "w", encoding="utf-8") as file:
        for _ in range(count):
            source = f"172.{pick.randrange(16, 32)}.{pick.randrange(256)}.0/24"
            target = f"10.{pick.randrange(256)}.{pick.randrange(256)}.{pick.randrange(256)}/32"
            protocol = pick.choice(["tcp", "udp"])
            file.write(f"deny {protocol} src net {source} dst net {target} dst port {pick.randrange(1, 65535)}\n")
        file.write("default allow\n")


def write_capture(binary, path, slf):
    """Packets of a known locality, as many as net_pcap has in memory."""
    subprocess.run([binary, "synth", "--packets", str(LOOP), "--flows", "1024", "--slf", str(slf), "--size", "64", "--seed", "7", path],
                   check=True, stdout=subprocess.DEVNULL)


def null(number, burst, eal=""):
    return f'dpdk(device="net_null{number},size=64", eal="{eal}", burst={burst}, mbufs={MBUFS})'


def pcap(path, burst):
    return f'dpdk(device="net_pcap0,rx_pcap={path},infinite_rx=1", eal="--no-pci", burst={burst}, mbufs={MBUFS})'


def rows(binary, directory, packets, seconds):
    """Of each row: its name, what is measured (a function that gives CPU and wall time), and the row that it
    is a ratio of."""
    def ours(graph, workers=1):
        return lambda: slipstream(binary, graph, packets, workers)

    def theirs(devices, burst):
        return lambda: (testpmd(devices, burst, seconds), None)

    rules = f"{directory}/rules"
    write_rules(rules, 10_000)
    nulls = ["net_null0,size=64", "net_null1,size=64"]
    for burst in (32, 64):
        peer = f"testpmd io, net_null, bursts of {burst}"
        yield peer, theirs(nulls, burst), None
        start, end = null(0, burst, "--no-pci"), null(1, burst)
        yield f"forward, net_null, bursts of {burst}", ours(f"in :: {start} -> out :: {end}"), peer
        yield f"reframe, net_null, bursts of {burst}", ours(f"in :: {start} -> reframe -> out :: {end}"), peer
    out = f"out :: {null(1, 64)}"
    for slf in (1, 16):
        path = f"{directory}/slf{slf}.pcap"
        write_capture(binary, path, slf)
        peer = f"testpmd io, net_pcap to net_null, SLF {slf}"
        # testpmd forwards both ways: nothing comes back.
        yield peer, theirs([f"net_pcap0,rx_pcap={path},infinite_rx=1", f"{nulls[1]},no-rx=1"], 64), None
        start, chain = f"in :: {pcap(path, 64)}", CHAIN.format(rules=f'"{rules}"')
        forward = f"forward, net_pcap, SLF {slf}"
        yield forward, ours(f"{start} -> {out}"), peer
        yield f"reframe, SLF {slf}", ours(f"{start} -> reframe(hold=64us) -> {out}"), forward
        yield f"chain of 10 k rules, SLF {slf}", ours(f"{start} -> {chain} -> {out}"), forward
        one = f"reframe and chain of 10 k rules, SLF {slf}"
        yield one, ours(f"{start} -> reframe(hold=64us) -> {chain} -> {out}"), forward
        if (os.cpu_count() or 1) > 1:
            yield f"{one}, two cores", ours(f"{start} -> reframe(hold=64us) -> {chain} -> {out}", 2), one


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=harness.ROOT / "target/dpdk/release/slipstream", type=Path)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--packets", type=int, default=5_000_000)
    parser.add_argument("--quick", action="store_true", help="little of everything: to see that it works, not how fast it is")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = str(harness.program(arguments.binary, "make dpdk"))
    harness.needed("dpdk-testpmd", root=True)
    packets, seconds, runs = (200_000, 0.5, 1) if arguments.quick else (arguments.packets, 2, arguments.runs)
    with tempfile.TemporaryDirectory() as directory, huge_pages(PAGES):
        all_rows = list(rows(binary, directory, packets, seconds))
        measured = {name: [] for name, _, _ in all_rows}
        for _ in range(runs):
            for name, measure, _ in all_rows:
                measured[name].append(measure())
    print("| | CPU ns a packet | wall ns a packet | beside | CPU | wall |\n|---|---|---|---|---|---|")
    for name, _, peer in all_rows:
        cpu = statistics.median(m[0] for m in measured[name])
        wall = [m[1] for m in measured[name] if m[1]]
        ratios = ["–", "–"]
        if peer:
            for i in range(2):
                pairs = [(a[i], b[i]) for a, b in zip(measured[name], measured[peer]) if a[i] and b[i]]
                if pairs:
                    ratios[i] = f"{statistics.median(a / b for a, b in pairs):.2f}"
        shown = f"{statistics.median(wall):.1f}" if wall else "–"
        print(f"| {name} | {cpu:.1f} | {shown} | {peer or '–'} | {ratios[0]} | {ratios[1]} |")


if __name__ == "__main__":
    main()
