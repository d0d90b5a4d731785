#!/usr/bin/env python3
"""Speed of the engine in memory and of `analyze`: the tables in book/src/results-speed.md.

usage: python3 bench/speed.py [--binary target/release/slipstream] [--runs 7] [--quick] [--beside OTHER]

Every row is measured several times in turn; the table shows minimum and median of CPU ns per packet (engine:
of the data path alone, as `reframe --format json` reports it; analyze: user + system time of the whole
process). With `--beside` another build runs the engine's rows in turn with this one, on the same packets, and
the table has a row for each.
"""
import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import inputs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
import harness  # noqa: E402

# input, packets, hold, loops, options; the goal of a row in ns per packet, where it has one.
ROWS = [
    ("1k-rr", 1_000_000, "64us", 5, [], 45),
    ("1k-rr", 1_000_000, "1700us", 5, [], 32),
    ("1k-random", 1_000_000, "1700us", 5, [], 32),
    ("1k-runs", 1_000_000, "64us", 5, [], None),
    ("64k-1k-active", 2_000_000, "2ms", 3, [], 36),
    ("1M-1k-active", 10_000_000, "2ms", 1, [], 40),
    ("1M-random", 4_000_000, "64us", 2, [], 65),
    ("1M-random", 4_000_000, "64us", 2, ["--policy", "waiting"], 65),
]


def engine(binary, path, hold, loops, options):
    command = [binary, "reframe", path, "null", "--preload", "--loop", str(loops), "--hold", hold]
    command += ["--capacity", "65536", "--format", "json", *options]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    return result["cpu_ns"] / result["packets_in"], result["mean_train"]


def cpu_of(command):
    """User and system seconds of a command."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def engine_table(binaries, directory, runs, quick):
    names = [""] if len(binaries) == 1 else [f"{binary} | " for binary in binaries]
    print(f"| {'build | ' if len(binaries) > 1 else ''}input | hold | options | mean train | ns/packet, min | median | goal |\n|{'---|' * (len(binaries) > 1)}---|---|---|---|---|---|---|")
    for name, packets, hold, loops, options, goal in ROWS:
        packets = min(packets, 200_000) if quick else packets
        path = inputs.engine_input(binaries[0], directory, name, packets)
        rounds = [[engine(binary, path, hold, loops, options) for binary in binaries] for _ in range(runs)]
        os.unlink(path)
        shown = " ".join(options) or "–"
        for build, measured in zip(names, zip(*rounds)):
            ns = [m[0] for m in measured]
            mean = f"{measured[0][1]:.1f}"
            wanted = f"≤ {goal}" if goal else "–"
            print(f"| {build}{name} | {hold} | {shown} | {mean} | {min(ns):.1f} | {statistics.median(ns):.1f} | {wanted} |", flush=True)


def analyze_table(binary, directory, runs, quick):
    packets = 200_000 if quick else 1_000_000
    path = inputs.snapped_input(binary, directory, packets)
    commands = {"slipstream analyze --threads 1": [binary, "analyze", "--threads", "1", "--format", "json", path]}
    if shutil.which("tcpdump"):
        commands["tcpdump -r F -w /dev/null"] = ["tcpdump", "-r", path, "-w", "/dev/null"]
    seconds = {name: [] for name in commands}
    for _ in range(runs):
        for name, command in commands.items():
            seconds[name].append(cpu_of(command))
    print("\n| 1 M packets, snap length 96 | CPU ns/packet, min | median | Mpps (median) |\n|---|---|---|---|")
    for name, all_runs in seconds.items():
        low, middle = min(all_runs), statistics.median(all_runs)
        ns = [t / packets * 1e9 for t in (low, middle)]
        print(f"| {name} | {ns[0]:.0f} | {ns[1]:.0f} | {1e3 / ns[1]:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/slipstream")
    parser.add_argument("--runs", type=int, default=7)
    parser.add_argument("--beside", help="another build, which runs in turn with this one")
    parser.add_argument("--quick", action="store_true", help="small inputs: to see that it works, not how fast it is")
    arguments = parser.parse_args()
    binaries = [str(harness.program(binary)) for binary in (arguments.binary, arguments.beside) if binary]
    with tempfile.TemporaryDirectory() as directory:
        engine_table(binaries, directory, arguments.runs, arguments.quick)
        analyze_table(binaries[0], directory, arguments.runs, arguments.quick)


if __name__ == "__main__":
    main()
