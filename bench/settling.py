#!/usr/bin/env python3
"""How soon does an adaptive hold keep its mean delay again, after a step?

On campus traffic whose gaps become four times as long half-way, an adaptive hold with a budget of 30 µs is
to have a mean delay within a quarter of it, in every 20 ms. For each seed: the time after the step from which
on that is so, and the mean delay of all packets. Several binaries are told side by side.
"""

import argparse
import collections
import pathlib
import statistics
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import capture  # noqa: E402
import harness  # noqa: E402

BUDGET_NS, WINDOW_NS = 30_000, 20_000_000


def made(binary, path, packets, seed):
    """Writes such a trace; returns the time of the step, in ns."""
    subprocess.run([binary, "synth", path, "--profile", "campus", "--packets", str(packets), "--seed", str(seed), "--snap-len", "96"],
                   check=True, stdout=subprocess.DEVNULL)
    records = capture.read(path).records
    half = len(records) // 2
    step = records[half - 1].time
    later = [record._replace(time=step + 4 * (record.time - step)) for record in records[half:]]
    capture.write_pcap(path, records[:half] + later, 1)
    return step


def settled(binary, path, out, step):
    """ms from the step until the delay is kept for good, and the mean delay of all packets, in ns."""
    subprocess.run([binary, "reframe", path, out, "--hold", "1ms", "--admit", "adaptive", "--budget", f"delay={BUDGET_NS}ns",
                    "--bypass", "none"], check=True, stdout=subprocess.DEVNULL)
    came = collections.defaultdict(collections.deque)
    for record in capture.read(path).records:
        came[record.data].append(record.time)
    windows = collections.defaultdict(list)
    for record in capture.read(out).records:
        # Packets with the same bytes are of one flow, and leave as they came.
        time = came[record.data].popleft()
        windows[(time - step) // WINDOW_NS].append(record.time - time)
    # The last one is not whole.
    kept = {n: abs(statistics.fmean(windows[n]) - BUDGET_NS) <= BUDGET_NS / 4 for n in range(max(windows)) if n in windows}
    late = max((n + 1 for n, well in kept.items() if not well), default=0)
    return late * WINDOW_NS // 1_000_000, statistics.fmean(delay for window in windows.values() for delay in window)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binaries", nargs="+", type=harness.program, help="slipstream, and others to compare it with")
    parser.add_argument("--packets", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=12, help="traces (default: 12)")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path, out = pathlib.Path(directory) / "step.pcap", pathlib.Path(directory) / "out.pcap"
        for seed in range(1, asked.seeds + 1):
            path.unlink(missing_ok=True)
            step = made(asked.binaries[0], path, asked.packets, seed)
            told = []
            for binary in asked.binaries:
                out.unlink(missing_ok=True)
                told.append("{} ms, mean {:.0f} ns".format(*settled(binary, path, out, step)))
            print(f"seed {seed}: {'; '.join(told)}", flush=True)


if __name__ == "__main__":
    main()
