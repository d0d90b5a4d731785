#!/usr/bin/env python3
"""Runs the checks of the binary: `run_all.py [BINARY] [--beside | --alone]`. Exit status 1 if any failed.

Those that can stand a load run beside one another: each begins a job when one of as many tokens as there are
cores is free (see `harness.token`), so that no core waits while there is something to do. What a check says
is printed in one piece when it has ended. Checks in which seconds of the wall clock count run afterwards, one
at a time; `--beside` and `--alone` run only the ones or the others. Each of `--and COMMAND` runs beside the
checks, too, with the binary as its last word.
"""

import argparse
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import harness

HERE = Path(__file__).parent
# The longest first: those that build something, then by CPU time.
BESIDE = ("check_spark.py", "check_python.py", "check_capi.py", "check_measure.py", "check_reframe.py", "check_slice.py", "check_functions.py",
          "check_verdicts.py", "check_model.py", "check_large.py", "check_frontier.py", "check_odd.py", "check_partials.py", "check_analyze.py",
          "check_states.py")
ALONE = ("check_live.py",)


class Check:
    """A check that is under way."""

    def __init__(self, name, words, **how):
        self.name, self.since, self.output, self.cpu = name, time.monotonic(), tempfile.TemporaryFile(), 0.0
        self.status = None
        self.process = subprocess.Popen([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=self.output,
                                        stderr=subprocess.STDOUT, **how)

    def is_over(self):
        """True if it has ended."""
        pid, status, usage = os.wait4(self.process.pid, os.WNOHANG)
        if pid:
            self.status = self.process.returncode = os.waitstatus_to_exitcode(status)
            self.cpu = usage.ru_utime + usage.ru_stime
        return bool(pid)

    def ended(self):
        """Prints what it said; true if it went well."""
        self.output.seek(0)
        print(f"== {self.name}", flush=True)
        sys.stdout.buffer.write(self.output.read())
        # One that was killed has said nothing of it.
        how = f", ended by {signal.Signals(-self.status).name}" if self.status < 0 else ""
        print(f"== {self.name}: {time.monotonic() - self.since:.0f} s, {self.cpu:.0f} s of CPU time{how}", flush=True)
        return self.status == 0


def beside(commands):
    """Runs all at once, with a token for every core; the names of those that failed."""
    with tempfile.TemporaryDirectory() as directory:
        for number in range(os.cpu_count() or 2):
            (Path(directory) / f"token{number}").touch()
        environment = {**os.environ, "SLIPSTREAM_TOKENS": directory}
        running = [Check(name, words, env=environment) for name, words in commands]
        return wait(running)


def wait(running):
    """Waits for all; the names of those that failed. Whoever still runs when this is interrupted is asked to
    end, and waited for while it tidies up."""
    failed = []
    try:
        while running:
            for check in [check for check in running if check.is_over()]:
                running.remove(check)
                if not check.ended():
                    failed.append(check.name)
            time.sleep(0.1)
    finally:
        for check in running:
            check.process.terminate()
        for check in running:
            check.process.wait()
    return failed


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--beside", action="store_true", help="only the checks that can stand a load")
    parser.add_argument("--alone", action="store_true", help="only those that can't")
    parser.add_argument("--and", action="append", default=[], dest="others", metavar="COMMAND", help="runs beside the checks")
    arguments = parser.parse_args()
    harness.ends_tidily()
    harness.program(arguments.binary)
    failed = []
    if not arguments.alone:
        commands = [(check, (sys.executable, HERE / check, arguments.binary)) for check in BESIDE]
        commands += [(text, (*shlex.split(text), arguments.binary)) for text in arguments.others]
        failed += beside(commands)
    if not arguments.beside:
        for check in ALONE:
            failed += wait([Check(check, (sys.executable, HERE / check, arguments.binary))])
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
