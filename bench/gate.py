#!/usr/bin/env python3
"""Regression gate: instructions and cache misses a packet, by Cachegrind, against bench/baseline.json.

usage: python3 bench/gate.py [--binary target/release/slipstream] [--update]

A count is that of a long run minus that of a short one, divided by the packets between them, so that start-up
doesn't show. Counts repeat to a fraction of a per cent on any machine; times don't, so no time is looked at.
`--update` writes the counts as the new baseline: do it in the commit that explains why they changed.
"""
import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import inputs

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tests"))
import harness  # noqa: E402

BASELINE = pathlib.Path(__file__).with_name("baseline.json")
# How much worse a count may get: relative, and in counts per packet.
# Misses of instructions go by where the linker puts functions, too: code that no row runs moves them by up to
# 3 % from one change to the next.
TOLERANCE = {"instructions": (0.03, 2.0), "d1_misses": (0.15, 0.5), "i1_misses": (0.25, 0.5), "ll_misses": (0.25, 0.3)}
# A row of far fewer instructions than in the record has lost what it measured, such as a function by whose
# name the lab is counted; a real gain is recorded with --update.
LEAST = 0.5
# The cache of the machine that the goals were set on, whatever this one has.
CACHES = ["--I1=32768,8,64", "--D1=32768,8,64", "--LL=524288,8,64"]
PACKETS = 50_000
# Packets of the one turn that the lab counts.
FUNCTION_PACKETS = 20_000
MANY_FLOWS = 50_000


def cachegrind(command):
    """Instructions, first-level data misses and last-level data misses of a command."""
    full = ["valgrind", "--tool=cachegrind", "--cache-sim=yes", "--cachegrind-out-file=/dev/null", *CACHES, *command]
    run = subprocess.run(full, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(full)}\n{run.stderr}")


    def number(label):
        found = re.search(label + r"\s*:\s*([\d,]+)", run.stderr)
        if not found:
            sys.exit(f"{' '.join(full)}: Cachegrind doesn't tell {label!r}: {run.stderr[-1000:]}")
        return int(found[1].replace(",", ""))

    return {
        "instructions": number("I +refs"),
        "d1_misses": number("D1 +misses"),
        "ll_misses": number("LLd +misses"),
    }


def per_packet(short, long, packets):
    a, b = cachegrind(short), cachegrind(long)
    return {key: round((b[key] - a[key]) / packets, 2) for key in a}


def engine(binary, path, *options):
    base = [binary, "reframe", path, "null", "--preload", "--capacity", "65536", "--format", "json", *options]
    return per_packet([*base, "--loop", "1"], [*base, "--loop", "3"], 2 * PACKETS)


def lab(binary, name, point):
    """A point of a lab, of one turn behind one that fills the tables."""
    command = ["valgrind", "--tool=callgrind", "--cache-sim=yes", *CACHES, "--toggle-collect=*rehearsal*Bench*pass*"]
    with tempfile.NamedTemporaryFile() as out:
        run = subprocess.run([*command, f"--callgrind-out-file={out.name}", binary, "lab", name, "--quick"],
                             capture_output=True, text=True, env=os.environ | {"SLIPSTREAM_LAB_POINT": point})
        text = pathlib.Path(out.name).read_text()
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{run.stderr}")
    names, totals = (re.search(form, text, re.M) for form in (r"^events: (.*)", r"^(?:totals|summary): (.*)"))
    if not names or not totals:
        sys.exit(f"{' '.join(command)}: nothing was counted of the lab's point {point}: {run.stderr[-1000:]}")
    counts = dict(zip(names[1].split(), map(int, totals[1].split())))
    per_packet = lambda *events: round(sum(counts[event] for event in events) / FUNCTION_PACKETS, 2)
    return {
        "instructions": per_packet("Ir"),
        "d1_misses": per_packet("D1mr", "D1mw"),
        "i1_misses": per_packet("I1mr"),
        "ll_misses": per_packet("DLmr", "DLmw", "ILmr"),
    }


def measure(binary, directory):
    rows = {}
    one_k = inputs.engine_input(binary, directory, "1k-rr", PACKETS)
    rows["engine, trains of 1"] = engine(binary, one_k, "--hold", "64us")
    rows["engine, trains of 17"] = engine(binary, one_k, "--hold", "1700us")
    runs = inputs.engine_input(binary, directory, "1k-runs", PACKETS)
    rows["engine, trains of 16 in the input"] = engine(binary, runs, "--hold", "64us")
    rows["engine, trains of 17, ack + order"] = engine(
        binary, one_k, "--hold", "1700us", "--compress", "ack", "--tcp-order"
    )
    rows["engine, trains of 17, adaptive hold"] = engine(
        binary, one_k, "--hold", "1700us", "--admit", "adaptive", "--budget", "price=1s"
    )
    random = inputs.engine_input(binary, directory, "1M-random", PACKETS)
    rows["engine, all flows distinct"] = engine(binary, random, "--hold", "64us")
    short = inputs.snapped_input(binary, directory, PACKETS)
    long = inputs.snapped_input(binary, directory, 3 * PACKETS)
    analyze = lambda path: [binary, "analyze", "--threads", "1", "--format", "json", path]
    rows["analyze"] = per_packet(analyze(short), analyze(long), 2 * PACKETS)
    # Functions that decide once per train, with 10,000 flows without fragments. Of so many flows that each
    # packet counted finds nothing of its own in the cache, as of a million, there is a row of its own:
    # counting a million would take minutes.
    for subject, slfs in (("chain", (1, 4, 16)), ("firewall", (1, 16))):
        for slf in slfs:
            rows[f"{subject}, SLF {slf}"] = lab(binary, "nf-locality", f"{subject},train,{slf}")
    for slf in (1, 4, 16):
        rows[f"chain, many flows, SLF {slf}"] = lab(binary, "nf-locality", f"chain,train,{slf},0,{MANY_FLOWS}")
    rows["chain with a reframer, 64 us"] = lab(binary, "chain", "inside,64000,8,mixed")
    copy = lambda path: [binary, "reframe", path, "null", "--hold", "0"]
    rows["read and pass through"] = per_packet(copy(short), copy(long), 2 * PACKETS)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default="target/release/slipstream")
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    harness.needed("valgrind")
    binary = str(harness.program(arguments.binary))
    with tempfile.TemporaryDirectory() as directory:
        rows = measure(binary, directory)
    if arguments.update:
        BASELINE.write_text(json.dumps(rows, indent=2) + "\n")
    told = list(judged(rows, json.loads(BASELINE.read_text())))
    for ok, what in told:
        print(f"{'ok  ' if ok else 'FAIL'} {what}")
    passed = sum(ok for ok, _ in told)
    print(f"{passed} passed, {len(told) - passed} failed")
    sys.exit(1 if passed < len(told) else 0)


def judged(rows, baseline):
    """Of each count, and of each row that is only here or only in the record: whether it is well, and a
    word about it."""
    for name in [*rows, *(name for name in baseline if name not in rows)]:
        if name not in rows or name not in baseline:
            yield False, f"{name}: {'not measured any more' if name in baseline else 'not in the record'} (--update records it)"
            continue
        for key, count in rows[name].items():
            base = baseline[name].get(key)
            if base is None:
                yield False, f"{name}: {key} {count} is not in the record (--update records it)"
                continue
            relative, absolute = TOLERANCE[key]
            least = LEAST * base if key == "instructions" else 0
            yield least <= count <= base * (1 + relative) + absolute, f"{name}: {key} {count} (baseline {base})"


if __name__ == "__main__":
    main()
