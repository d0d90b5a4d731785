#!/usr/bin/env python3
"""Builds the block with Icarus and runs the tests:
`run.py [--only REGEX] [--rtl FOLDER] [--waves] [--first] MODULE...`. Exit status 1 if any fails."""

import argparse
import os
import sys
import xml.etree.ElementTree as tree
from pathlib import Path

import functional
from cocotb_tools.runner import get_runner

HERE = Path(__file__).resolve().parent
# Parameters of the block for each module of tests.
BUILDS = {
    "test_vectors": [dict(ENTRIES=8)],
    "test_tokens": [dict(ENTRIES=2, TAG_W=40)],
    "test_streams": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_line_rate": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_edges": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_attacks": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_functions": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_disturbed": [dict(ENTRIES=4), dict(ENTRIES=4, DATA_W=512)],
    "test_limits": [
        dict(ENTRIES=2, MAX_PAYLOAD=9, TAG_W=32), dict(ENTRIES=3, MAX_PAYLOAD=9600), dict(ENTRIES=3, MAX_PAYLOAD=9600, DATA_W=512),
    ],
    "test_chaos": [dict(ENTRIES=4, TAG_W=40, MAX_PAYLOAD=400)],
    "test_paper": [dict(ENTRIES=250)],
    # With the binary in $SLIPSTREAM.
    "test_cosim": [dict(ENTRIES=64)],
    "test_picture": [dict(ENTRIES=4)],
}


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("modules", nargs="+", choices=list(BUILDS))
    arguments.add_argument("--only")
    arguments.add_argument("--rtl", type=Path, default=HERE.parent / "rtl")
    arguments.add_argument("--build", type=Path, default=HERE.parent / "build")
    arguments.add_argument("--waves", action="store_true")
    arguments.add_argument("--first", action="store_true", help="only the first parameters of each module; ends at the first failure")
    arguments.add_argument("--coverage", action="store_true", help="notes what happens; what should happen and doesn't is a failure")
    chosen = arguments.parse_args()
    failed, total, notes = [], 0, []
    for module in chosen.modules:
        if module == "test_cosim" and not os.environ.get("SLIPSTREAM"):
            print("no binary in $SLIPSTREAM: no co-simulation", flush=True)
            continue
        for number, parameters in enumerate(BUILDS[module][: 1 if chosen.first else None]):
            into = chosen.build / f"{module}{number}"
            into.mkdir(parents=True, exist_ok=True)
            runner = get_runner("icarus")
            runner.build(
                sources=sorted(chosen.rtl.glob("*.sv")), hdl_toplevel="slice_splice", build_dir=into, parameters=parameters,
                build_args=["-g2012"], timescale=("1ns", "1ps"), always=True, waves=chosen.waves, log_file=str(into / "build.log"),
            )
            environment = {"PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")]), "COCOTB_LOG_LEVEL": "INFO"}
            if chosen.first:
                environment["COCOTB_MAX_FAILURES"] = "1"
            if chosen.coverage:
                notes.append(environment.setdefault("FUNCTIONAL_COVERAGE", str((into / "coverage.json").resolve())))
            results = runner.test(
                test_module=module, hdl_toplevel="slice_splice", build_dir=into, test_dir=into, waves=chosen.waves,
                extra_env=environment, test_filter=chosen.only, results_xml=str(into / "results.xml"), log_file=str(into / "test.log"),
            )
            try:
                cases = list(tree.parse(results).iter("testcase"))
            except (OSError, tree.ParseError):
                cases = []
            if not cases:
                failed.append(f"{module}{number}: no results, see {into / 'test.log'}")
            for case in cases:
                bad = case.find("failure") is not None or case.find("error") is not None
                if case.find("skipped") is not None:
                    continue
                total += 1
                title = f"{module} {parameters} {case.get('name')}"
                print(f"{'FAIL' if bad else 'ok  '} {title} {float(case.get('time')):.1f} s", flush=True)
                if bad:
                    failed.append(title)
            if failed and chosen.first:
                sys.exit(1)
    if chosen.coverage:
        failed += [f"never happened: {name}" for name in functional.report(notes)]
    print(*failed, sep="\n")
    print(f"{total} tests, {len(failed)} failures", flush=True)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
