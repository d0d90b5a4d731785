"""What the checks share: running the binary, finding the traces, counting what passed, and saying what did
not."""

import argparse
import contextlib
import gc
import json
import multiprocessing
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2


def traces():
    """The directory of captures to test with: $SLIPSTREAM_TRACES, else ../shared/traces beside the
    checkout."""
    return Path(os.environ.get("SLIPSTREAM_TRACES") or ROOT.parent / "shared" / "traces")


class Run:
    """One run of the binary: `command` as one would type it, `status` (negative: killed by that signal),
    output."""

    def __init__(self, binary, arguments, stdin=None, timeout=120):
        words = [str(binary), *map(str, arguments)]
        self.command = shlex.join(words) + (f" < {shlex.quote(str(stdin))}" if stdin else "")
        with open(stdin or os.devnull, "rb") as file:
            try:
                done = subprocess.run(words, stdin=file, capture_output=True, timeout=timeout, check=False)
                self.status, self.stdout, self.stderr = done.returncode, done.stdout, done.stderr.decode(errors="replace")
            except subprocess.TimeoutExpired:
                self.status, self.stdout, self.stderr = None, b"", f"still running after {timeout} s"

    def json(self):
        """Its result, or an exception that says what came instead."""
        if self.status != 0:
            raise AssertionError(f"exit status {self.status}: {self.stderr.strip()[-300:]}")
        return json.loads(self.stdout)


class Case:
    """Collects what is wrong with one case."""

    def __init__(self):
        self.wrong = []

    def check(self, holds, what):
        if not holds:
            self.wrong.append(what)
        return holds

    def equal(self, got, want, what):
        return self.check(got == want, f"{what}: got {got!r}, expected {want!r}")

    def close(self, got, want, what, relative=1e-9):
        if got is None or want is None:
            return self.equal(got, want, what)
        return self.check(abs(got - want) <= relative * abs(want), f"{what}: got {got!r}, expected {want!r}")


@contextlib.contextmanager
def token():
    """Waits for one of the tokens that `run_all.py` gives to checks beside one another, and has it for a
    while. There are as many as cores. A check that runs by itself waits for nothing."""
    path = os.environ.get("SLIPSTREAM_TOKENS")
    if path is None:
        yield
        return
    fifo = os.open(path, os.O_RDWR)
    had = os.read(fifo, 1)
    try:
        yield
    finally:
        os.write(fifo, had)
        os.close(fifo)


def _guarded(arguments):
    function, binary, job, directory = arguments
    with token(), tempfile.TemporaryDirectory(dir=directory) as scratch:
        try:
            return list(function(binary, job, Path(scratch)))
        except Exception:  # one case that can't be judged must not hide the others
            return [(f"{function.__name__} {job!r}", [traceback.format_exc(limit=-3)])]


def main(description, jobs, function, chunk=4):
    """Runs `function(binary, job, scratch)` for every job, on two processes. It gives (command, what is
    wrong) a case."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("binary", nargs="?", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only jobs that have this text in them")
    arguments = parser.parse_args()
    where = traces()
    if not (where / "expected.jsonl").exists():
        left_out = os.environ.get("SLIPSTREAM_TRACES") == "none"
        print("SLIPSTREAM_TRACES=none" if left_out else f"no captures in {where} (SLIPSTREAM_TRACES names their folder, or is none)",
              "nothing was checked", sep=": ")
        print("0 passed, 0 failed")
        sys.exit(0 if left_out else 1)
    if not os.access(arguments.binary, os.X_OK):
        sys.exit(f"{arguments.binary} is no program; build it first: cargo build --release")
    binary = arguments.binary.resolve()
    chosen = [job for job in jobs(where) if arguments.only in repr(job)]
    # Captures are lists of a million tuples and have no cycles: to look for cycles in them again and again
    # takes longer than some checks.
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
    passed = failed = 0
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory, multiprocessing.Pool(PROCESSES) as pool:
        work = ((function, binary, job, directory) for job in chosen)
        for cases in pool.imap_unordered(_guarded, work, chunk):
            for command, wrong in cases:
                passed += not wrong
                failed += bool(wrong)
                for what in wrong[:5]:
                    print(f"FAILED {command}\n       {what}", flush=True)
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed else 0)
