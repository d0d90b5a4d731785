"""The checks share this: running the binary, finding the traces, counting what passed, and saying what did
not."""

import argparse
import concurrent.futures
import contextlib
import fcntl
import gc
import itertools
import json
import multiprocessing
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROCESSES = 2
# Whatever the caller has Python do: packages are installed without byte code, and where none may be kept,
# each of many short programs compiles pandas or PySpark again, which takes longer than all that it is for.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def traces():
    """The directory of captures to test with: $SLIPSTREAM_TRACES, else ../shared/traces beside the
    checkout."""
    return Path(os.environ.get("SLIPSTREAM_TRACES") or ROOT.parent / "shared" / "traces")


def ends_tidily():
    """From now on a request to terminate ends this process as an error does: whatever it has made, such as
    namespaces, huge pages, processes and folders, is taken away on the way out."""
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def program(path, how="cargo build --release"):
    """The absolute path of a program that was built; ends with the way to build it where it is missing."""
    if not (os.path.isfile(path) and os.access(path, os.X_OK)):
        sys.exit(f"{path} is no program; build it first: {how}")
    return Path(path).resolve()


def needed(*programs, root=False):
    """Ends with a clear word unless these programs are installed, and this is root if it has to be."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        sys.exit(f"{', '.join(missing)} not installed (ci/deps.sh installs what the tests need)")
    if root and os.geteuid():
        sys.exit("root is needed")


def have(case, *programs):
    """True if these are installed; where CI is set, they must be."""
    missing = [name for name in programs if not shutil.which(name)]
    if missing:
        case.check(not os.environ.get("CI"), f"{', '.join(missing)} not installed")
        print(f"       not checked: {', '.join(missing)} not installed")
    return not missing


def until(holds, seconds=10, step=0.02):
    """Waits for something to become true; returns what it was in the end."""
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(step)
    return value


def summary(passed, failed):
    """Prints how many checks passed and failed, and ends with status 1 if any failed or there was none."""
    if not passed + failed:
        print("nothing was checked: no check has the text of --only")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


def one_by_one(checks, only, run):
    """Runs `run(check, case)` for each (name, check) with this text in its name, tells what is wrong and how
    long it took, and ends with the summary."""
    passed = failed = 0
    for name, check in checks:
        if only not in name:
            continue
        case, since = Case(), time.monotonic()
        try:
            run(check, case)
        except Exception:  # one check that can't be judged must not hide the others
            case.wrong.append(traceback.format_exc(limit=-4))
        passed += not case.wrong
        failed += bool(case.wrong)
        for what in case.wrong[:5]:
            print(f"FAILED {name}: {check.__doc__ or ''}\n       {what}", flush=True)
        print(f"{name}: {time.monotonic() - since:.1f} s", flush=True)
    summary(passed, failed)


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
    while. There are as many as cores, each a file that is locked by whoever has the token, so that nobody can
    lose one by being killed. A check that runs by itself waits for nothing."""
    folder = os.environ.get("SLIPSTREAM_TOKENS")
    if folder is None:
        yield
        return
    with contextlib.ExitStack() as held:
        # One process looks for a free token at a time; the others sleep until it has found one.
        with open(Path(folder) / "queue", "wb") as queue:
            fcntl.flock(queue, fcntl.LOCK_EX)
            files = [held.enter_context(open(path, "wb")) for path in sorted(Path(folder).glob("token*"))]
            while not any(_locked(file) for file in files):
                time.sleep(0.005)
        yield


def _locked(file):
    """True if the lock of a file was free, and is this process's now."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_stopping = False


def _stops_soon():
    """A worker that is asked to end drops what it does, and takes nothing more up."""
    def stop(number, _):
        global _stopping
        _stopping = True
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def _guarded(function, binary, jobs, directory):
    """What is wrong with the cases of some jobs."""
    found = []
    for job in jobs:
        if _stopping:
            break
        with token(), tempfile.TemporaryDirectory(dir=directory) as scratch:
            try:
                cases = list(function(binary, job, Path(scratch)))
                found += cases or [(f"{function.__name__} {job!r}", ["not a single case was checked"])]
            except Exception:  # one case that can't be judged must not hide the others
                found.append((f"{function.__name__} {job!r}", [traceback.format_exc(limit=-3)]))
    return found


def judged(function, binary, jobs, directory, chunk):
    """(command, what is wrong) of each case of the jobs, so many of which are given to a process at a time;
    a process that dies takes its jobs with it, and they are told of."""
    chunks = [list(some) for some in iter(lambda it=iter(jobs): tuple(itertools.islice(it, chunk)), ())]
    context = multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(PROCESSES, context, _stops_soon) as pool:
        pending = {pool.submit(_guarded, function, binary, some, directory): some for some in chunks}
        try:
            for done in concurrent.futures.as_completed(pending):
                try:
                    yield from done.result()
                except concurrent.futures.process.BrokenProcessPool as error:
                    yield f"{function.__name__} {pending[done]!r}", [f"not judged: {error}"]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            raise


def main(description, jobs, function, chunk=4):
    """Runs `function(binary, job, scratch)` for every job, on two processes. It gives (command, what is
    wrong) a case, and a case at least."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("binary", nargs="?", default=ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only jobs that have this text in them")
    arguments = parser.parse_args()
    ends_tidily()
    where = traces()
    if not (where / "expected.jsonl").exists():
        left_out = os.environ.get("SLIPSTREAM_TRACES") == "none"
        print("SLIPSTREAM_TRACES=none" if left_out else f"no captures in {where} (SLIPSTREAM_TRACES names their folder, or is none)",
              "nothing was checked", sep=": ")
        print("0 passed, 0 failed")
        sys.exit(0 if left_out else 1)
    binary = program(arguments.binary)
    chosen = [job for job in jobs(where) if arguments.only in repr(job)]
    # Captures are lists of a million tuples and have no cycles: to look for cycles in them again and again
    # takes longer than some checks.
    gc.freeze()
    gc.set_threshold(200_000, 50, 1000)
    passed = failed = 0
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory:
        for command, wrong in judged(function, binary, chosen, directory, chunk):
            passed += not wrong
            failed += bool(wrong)
            for what in wrong[:5]:
                print(f"FAILED {command}\n       {what}", flush=True)
    summary(passed, failed)
