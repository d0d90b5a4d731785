#!/usr/bin/env python3
"""TCP through Linux's NAT in slices and whole: 10 GB in all, files with checksums among it.

usage: bench/slices.py [--binary target/release/slipstream] [--gigabytes 10] [--rounds 5]

    a (a0) ==== (ma) m (mb) ==== (b0) b
                    m (fa) ==== (f0) f (f1) ==== (fb) m

m parks payloads of what comes from a and b, and f, an unmodified Linux that routes and translates addresses,
sees headers; or m hands packets on as they are. Both take turns. Half of all bytes are iperf3's (two
connections), half are files that curl fetches from nginx, each of which is compared by its SHA-256. Needs
root, ip, ethtool, nft, iperf3, curl and nginx.
"""

import argparse
import hashlib
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import harness  # noqa: E402
import netns  # noqa: E402
from live_functions import JSON, nginx  # noqa: E402
from live_slice import GRAPH, function  # noqa: E402
from netns import Middlebox, Net  # noqa: E402

PORTS = "".join(f"{name} :: af_packet(interface={interface}, ring=16384); "
                for name, interface in (("a", "ma"), ("b", "mb"), ("fa", "fa"), ("fb", "fb")))
WAYS = {"whole": PORTS + "a -> fa; fa -> a; b -> fb; fb -> b", "in slices": GRAPH}
FILE = 256 << 20
SERVER = "10.77.2.2"


def digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def measure(binary, graph, each, scratch):
    """Mbit/s of iperf3 and of curl, files that were not as sent, CPU of the program in s a GB, and its
    report."""
    with Net(routed=True) as net:
        function(net, scratch)
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        nginx(net, "b", scratch)
        wanted = scratch / "www/large"
        with open(wanted, "wb") as file:
            for _ in range(FILE >> 20):
                file.write(os.urandom(1 << 20))
        right = digest(wanted)
        server = net.start("b", "iperf3", "-s", "-1")
        net.listens("b", 5201)
        text = net.sh("a", "iperf3", "-c", SERVER, "-n", str(each // 2), "-P", "2", "-J", timeout=600)
        server.kill()
        server.communicate()
        bulk = json.loads(text)["end"]["sum_received"]
        wrong, times = 0, []
        for _ in range(max(1, round(each / 2 / FILE))):
            since = time.monotonic()
            net.sh("a", "curl", "-sS", "-m", "300", "-o", scratch / "got", f"http://{SERVER}/large", timeout=310)
            times.append(time.monotonic() - since)
            wrong += digest(scratch / "got") != right
        status, out, err = box.stop()
        if status:
            sys.exit(f"exit status {status}: {err}")
        report = json.loads(out)
        received = bulk["bytes"] + len(times) * FILE
        return (bulk["bits_per_second"] / 1e6, FILE * len(times) * 8 / sum(times) / 1e6, wrong, report["cpu_ns"] / received,
                received, report)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--gigabytes", default=10, type=float)
    parser.add_argument("--rounds", default=5, type=int)
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    reason = netns.why_not()
    if reason:
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed("iperf3", "nginx", "curl", "nft")
    each = int(arguments.gigabytes * 1e9 / arguments.rounds / len(WAYS))
    seen = {name: [] for name in WAYS}
    for _ in range(arguments.rounds):
        for name, graph in WAYS.items():
            with tempfile.TemporaryDirectory() as directory:
                scratch = Path(directory)
                scratch.chmod(0o755)
                seen[name].append(measure(binary, graph, each, scratch))
    print("| | iperf3 | curl | the program's CPU | bytes | files not as sent |\n|---|---|---|---|---|---|")
    for name, runs in seen.items():
        bulk, files, cpu = (statistics.median(run[n] for run in runs) for n in (0, 1, 3))
        print(f"| {name} | {bulk:.0f} Mbit/s | {files:.0f} Mbit/s | {cpu:.2f} ns a byte | {sum(run[4] for run in runs) / 1e9:.1f} GB | "
              f"{sum(run[2] for run in runs)} |")
    pairs = list(zip(seen["in slices"], seen["whole"]))
    print("in slices, of whole: " + ", ".join(f"{what} {statistics.median(a[n] / b[n] for a, b in pairs):.2f}"
                                              for n, what in ((0, "iperf3"), (1, "curl"), (3, "CPU a byte"))))
    park = [next(stage["counters"] for stage in run[5]["stages"] if stage["name"] == "park") for run in seen["in slices"]]
    join = [next(stage["counters"] for stage in run[5]["stages"] if stage["name"] == "join") for run in seen["in slices"]]
    print(f"sliced {sum(p['sliced'] for p in park)}, put together again {sum(j['spliced'] for j in join)}; "
          + ", ".join(f"{name} {sum(j[name] for j in join)}" for name in ("forged", "stale", "late", "mangled"))
          + f", payloads left {sum(p['payloads_waiting'] for p in park)}; load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
