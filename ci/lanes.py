#!/usr/bin/env python3
"""Runs several lists of make's targets side by side: `ci/lanes.py "clippy unit" "suite docs"`.

Their output doesn't mix: that of the first list is printed as it comes, that of each other one when it has
ended. Exit status 1 if any failed. No list is run by `make --jobs`, whose jobserver cargo would take for its
own.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time


def terminated(number, _):
    """A request to terminate ends this as an interrupt from the terminal does."""
    sys.exit(128 + number)


def main():
    signal.signal(signal.SIGTERM, terminated)
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "MAKELEVEL")}
    lanes, failed = [], []
    for targets in sys.argv[1:]:
        into = tempfile.TemporaryFile() if lanes else None
        words = [os.environ.get("MAKE", "make"), "--no-print-directory", *targets.split()]
        since = time.monotonic()
        lanes.append((targets, since, into, subprocess.Popen(words, env=environment, stdout=into, stderr=into and subprocess.STDOUT)))
    try:
        for targets, since, into, process in lanes:
            _, status, usage = os.wait4(process.pid, 0)
            status = process.returncode = os.waitstatus_to_exitcode(status)
            if into:
                into.seek(0)
                sys.stdout.buffer.write(into.read())
            cpu = usage.ru_utime + usage.ru_stime
            print(f"== {targets}: status {status}, {time.monotonic() - since:.0f} s until here, {cpu:.0f} s of CPU time", flush=True)
            if status:
                failed.append(targets)
    finally:
        # Lanes that are under way when this is interrupted end with it.
        for *_, process in lanes:
            if process.returncode is None:
                process.terminate()
        for *_, process in lanes:
            process.wait()
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
