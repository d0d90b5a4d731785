#!/usr/bin/env python3
"""Runs every check of the binary in turn: `run_all.py [target/release/slipstream]`. Exit status 1 if any failed."""

import subprocess
import sys
import time
from pathlib import Path

CHECKS = ("check_analyze.py", "check_odd.py", "check_reframe.py", "check_model.py", "check_functions.py",
          "check_live.py", "check_slice.py", "check_verdicts.py", "check_measure.py")


def main():
    failed = []
    for check in CHECKS:
        since = time.monotonic()
        print(f"== {check}", flush=True)
        done = subprocess.run([sys.executable, Path(__file__).parent / check, *sys.argv[1:]], check=False)
        print(f"== {check}: {time.monotonic() - since:.0f} s", flush=True)
        if done.returncode:
            failed.append(check)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
