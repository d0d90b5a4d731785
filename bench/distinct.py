#!/usr/bin/env python3
"""What the aggregator costs where all keys are distinct: instructions and misses an update, by Cachegrind.

usage: python3 bench/distinct.py PROGRAM

PROGRAM is the benchmark's, which `cargo bench -p slipstream-sketch --bench update --no-run` builds and names.
A count is that of two epochs less that of one, so that start-up doesn't show. Counts repeat on any machine;
times of tables that fill a shared cache don't.
"""
import argparse

from gate import harness, per_packet

UPDATES = 2_000_000
KINDS = ["count-min", "flow-radar", "space-saving", "rev-sketch", "two-level", "mrac", "fm", "linear-counting", "univmon"]


def counts(program, kind, front, size):
    command = [program, "only", kind, front, "all distinct", *size, "--rounds"]
    return per_packet([*command, "1"], [*command, "2"], UPDATES)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    arguments = parser.parse_args()
    harness.needed("valgrind")
    harness.program(arguments.program, "cargo bench -p slipstream-sketch --bench update --no-run")
    print("| sketch, bytes of a key | instructions | ratio | misses, first level | misses, last level |")
    print("|---|---|---|---|---|")
    for size in [], ["13"]:
        for kind in KINDS:
            if size and kind == "two-level":
                continue
            plain, behind = (counts(arguments.program, kind, front, size) for front in ("plain", "aggregator"))
            cell = lambda key: f"{plain[key]:.2f} → {behind[key]:.2f}"
            ratio = behind["instructions"] / plain["instructions"]
            print(
                f"| {kind}, {size[0] if size else 8 if kind == 'two-level' else 4} | {cell('instructions')} | {ratio:.3f} "
                f"| {cell('d1_misses')} | {cell('ll_misses')} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
