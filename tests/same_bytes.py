#!/usr/bin/env python3
"""Do two builds do the same? `same_bytes.py OLD NEW [--only TEXT] [--quick]` runs both and compares.

Every run has a directory of its own for each build, with the same relative names in it. Compared are the exit
status, what is on stderr, reports key by key but for what was measured by a clock, other output as text, and
every file that was written, byte for byte (packets of live runs without their times). The inputs are the
bundled and the shared captures and what `same_cases.py` makes; the settings and pipelines are those of its
fixed lists and random ones from `--seed`. Options that one of the builds doesn't know yet are left out, and
it is said how many runs had them.

With `--workers 2,3` only replays by `run` and `reframe` are compared: on one thread in the old build, on so
many in the new one. Both may be the same program, since nothing that comes out may depend on the number.

With `--known`, differences to builds before packets went on in batches are told apart (`same_known.py` says
which), counted by kind, and no failure.

What differs stays under target/same_bytes/differ, the files of both builds in `old` and `new`. Exit status 1
if anything did.
"""

import argparse
import collections
import json
import multiprocessing
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import capture
import harness
import same_cases
import same_known

WORK = harness.ROOT / "target/same_bytes"
TIMEOUT = 60
MEMORY = 3 << 30  # bytes of address space of one run: no setting here needs as much
# Keys of reports whose values a clock gave.
TIMED = {"elapsed_ns", "cpu_ns", "busy_ns", "ns_per_packet", "excess_delay_ns", "own_time", "transit_ns"}
# Lines, and the columns of tables under such a heading, that say how long something took.
TIMED_LINES = re.compile(r"CPU a packet|CPU time|[Ee]lapsed|ns a packet +[0-9.]|took |cpu ns|Mpps through")
WALL = "wall ns a packet"
SHOWN = 6  # differences of one run that are printed

Outcome = collections.namedtuple("Outcome", "status stdout stderr")


def strip(value, ignored):
    """A report without the keys that may differ between any two runs."""
    if isinstance(value, dict):
        return {key: strip(inner, ignored) for key, inner in value.items() if key not in ignored}
    return [strip(inner, ignored) for inner in value] if isinstance(value, list) else value


def compare_values(old, new, where, new_keys):
    """What differs between two reports, as lines."""
    if isinstance(old, dict) and isinstance(new, dict):
        for key, inner in old.items():
            if key not in new:
                yield f"{where}.{key} is missing in the new report; it was {json.dumps(inner)[:80]}"
            else:
                yield from compare_values(inner, new[key], f"{where}.{key}", new_keys)
        for key in new:
            if key not in old and not new_keys:
                yield f"{where}.{key} is new: {json.dumps(new[key])[:80]}"
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield f"{where} had {len(old)} items, has {len(new)}"
        for n, (one, two) in enumerate(zip(old, new)):
            yield from compare_values(one, two, f"{where}.{n}", new_keys)
    elif old != new or type(old) is not type(new):
        yield f"{where} was {json.dumps(old)[:80]}, is {json.dumps(new)[:80]}"


def table(text):
    """The lines of a table for people without times: cells apart by one space."""
    wall = False
    for line in text.splitlines():
        wall = (wall or WALL in line) and bool(line.strip())
        cells = re.sub(r" {2,}", "  ", line.strip()).split("  ")
        if wall and WALL not in line and len(cells) > 2:
            del cells[-2]
        if not TIMED_LINES.search(line):
            yield "  ".join(cells)


def compare_text(old, new, what, known=None):
    old, new = list(table(old)), list(table(new))
    if known is not None and old != new and same_known.within(same_known.text(old), same_known.text(new)):
        known.add("tables for people say how many packets came at a time, or more than before")
        return
    if old != new:
        pairs = [(n, one, two) for n, (one, two) in enumerate(zip(old, new)) if one != two]
        n, one, two = pairs[0] if pairs else (min(len(old), len(new)), "", "")
        yield f"{what}, line {n + 1} of {len(old)} and {len(new)}: was {one[:120]!r}, is {two[:120]!r}"


def report(data):
    """A report in JSON; none where it is something else."""
    try:
        return json.loads(data) if data[:1] in (b"{", b"[") else None
    except ValueError:
        return None


def compare_output(old, new, what, ignored, new_keys, known=None):
    """Two outputs: reports key by key, text by lines, anything else by its bytes."""
    if old == new:
        return
    if what == "stderr" and b"\n}\n" in old and b"\n}\n" in new:
        # A report stands there, perhaps behind warnings, where packets go to stdout.
        (old_text, old), (new_text, new) = ((text[:(at := text.find(b"{\n"))], text[at:]) for text in (old, new))
        yield from compare_text(old_text.decode(errors="replace"), new_text.decode(errors="replace"), what, known)
    reports = report(old), report(new)
    if None not in reports:
        one, two = (strip(value, ignored) for value in reports)
        if known is not None and one != two:
            one, two = same_known.report(one), same_known.report(two)
            known.add("counts that follow from batches")
        yield from compare_values(one, two, what, new_keys)
        return
    try:
        yield from compare_text(old.decode(), new.decode(), what, known)
    except UnicodeDecodeError:
        if not same_known.file(old, new, what, known):
            yield compare_bytes(old, new, what)


def compare_bytes(old, new, what):
    """Says where two files begin to differ, by packets where both are captures."""
    at = next((n for n, (a, b) in enumerate(zip(old, new)) if a != b), min(len(old), len(new)))
    said = f"{what}: {len(old)} bytes were {len(new)}" if len(old) != len(new) else f"{what}: {len(old)} bytes"
    try:
        one, two = (capture.parse(data).records for data in (old, new))
        n = next((n for n, (a, b) in enumerate(zip(one, two)) if a != b), min(len(one), len(two)))
        said += f", {len(one)} packets and {len(two)}; the first that differs is number {n}"
        if n < min(len(one), len(two)):
            fields = [name for name in one[n]._fields if getattr(one[n], name) != getattr(two[n], name)]
            said += f", in its {', '.join(fields)}"
    except (capture.Unreadable, ValueError):
        pass
    return f"{said}; they differ from byte {at} on"


def without_times(data):
    """The packets of a capture from a live run."""
    return b"".join(record.data for record in capture.parse(data).records)


def compare_files(old, new, call, new_keys, known=None):
    """Every file that a run left behind."""
    names = [sorted(str(f.relative_to(d)) for f in d.rglob("*") if f.is_file()) for d in (old, new)]
    for name in sorted(set(names[0]) ^ set(names[1])):
        yield f"{name}: only the {'old' if name in names[0] else 'new'} build wrote it"
    for name in names[0]:
        if name in names[1]:
            one, two = (old / name).read_bytes(), (new / name).read_bytes()
            if call.live and name.endswith(".pcap"):
                one, two = without_times(one), without_times(two)
            if one != two:
                if name.endswith((".json", ".html", ".csv", ".toml", ".svg")):
                    yield from compare_output(one, two, name, TIMED | call.ignored, new_keys, known)
                elif not same_known.file(one, two, name, known):
                    yield compare_bytes(one, two, name)


def on_workers(words, workers):
    """The words of a run on so many threads, whatever they said before."""
    words = [str(word) for word in words]
    while "--workers" in words:
        at = words.index("--workers")
        del words[at:at + 2]
    return words if workers == 1 else [*words, "--workers", str(workers)]


def bounded():
    """Keeps a run that wants too much memory from taking that of others."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def execute(binary, call, words, directory):
    """One run in a directory; a live one with the process at the other end of its memory."""
    other = None
    if call.beside:
        other = subprocess.Popen([str(binary), *call.beside], cwd=directory, stdin=subprocess.DEVNULL,
                                 stdout=open(directory / "beside.json", "wb"), stderr=subprocess.DEVNULL, preexec_fn=bounded)
    try:
        with open(call.stdin or os.devnull, "rb") as file:
            # By one name, which usage messages repeat.
            done = subprocess.run(["slipstream", *words], executable=binary, cwd=directory, stdin=file, capture_output=True,
                                  timeout=TIMEOUT, check=False, preexec_fn=bounded)
        if other:
            other.wait(timeout=TIMEOUT)
        return Outcome(done.returncode, done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        return Outcome("still running", b"", b"")
    finally:
        if other and other.poll() is None:
            other.kill()
            other.wait()


def both_words(call, workers):
    """What both builds are to run."""
    if workers is None:
        return [[str(word) for word in call.words]] * 2
    return [on_workers(call.words, number) for number in (1, workers)]


def compare_run(builds, call, directories, workers, new_keys, known):
    """One run by both builds, in their directories; its status, and what differs. Where what differs is
    known, its kinds are added to `known`."""
    words = both_words(call, workers)
    if known is not None and "--workers" in words[0]:
        words[0] = on_workers(words[0], 1)
    every = zip(builds, words, directories)
    one, two = (execute(binary, call, some, directory) for binary, some, directory in every)
    ignored = TIMED | call.ignored | (set() if words[0] == words[1] else {"workers"})
    differ = differences(one, two, directories, call, ignored, new_keys)
    if differ and known is not None:
        kinds = set()
        differ = differences(one, two, directories, call, ignored, new_keys, kinds)
        known.update([] if differ else kinds)
    return one.status, differ


def differences(one, two, directories, call, ignored, new_keys, known=None):
    """What two runs did otherwise."""
    differ = []
    if one.status != two.status:
        differ.append(f"exit status was {one.status}, is {two.status} ({two.stderr.decode(errors='replace').strip()[-200:]})")
    elif not isinstance(one.status, int) or one.status < 0 or one.status == 101:
        differ.append(f"both ended by {one.status}, which can't be right")
    differ += compare_output(one.stdout, two.stdout, "stdout", ignored, new_keys, known)
    # A live run says who waited for whom.
    differ += [] if call.live else compare_output(one.stderr, two.stderr, "stderr", ignored, new_keys, known)
    return [*differ, *compare_files(*directories, call, new_keys, known)]


def typed(builds, call, workers, where):
    """How to repeat a run: both commands in the directories that were kept."""
    stdin = f" < {shlex.quote(str(call.stdin))}" if call.stdin else ""
    beside = (lambda binary: f"{shlex.join([str(binary), *call.beside])} > beside.json & ") if call.beside else lambda _: ""
    lines = [f"(cd {where / side}; {beside(binary)}{shlex.join([str(binary), *words])}{stdin})"
             for binary, words, side in zip(builds, both_words(call, workers), ("old", "new"))]
    return "\n       ".join(lines)


def judge(arguments):
    """All runs of a case, one after the other, in one pair of directories. Runs that follow may need files of
    those before."""
    builds, (case, workers), directory, new_keys, with_known, number = arguments
    passed, failed, refused, kinds = 0, [], 0, collections.Counter()
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        directories = [Path(scratch) / side for side in ("old", "new")]
        for side in directories:
            side.mkdir()
            for name, content in case.files.items():
                (side / name).write_text(content)
        for n, call in enumerate(case.calls):
            known = set() if with_known else None
            try:
                status, differ = compare_run(builds, call, directories, workers, new_keys, known)
            except Exception:  # one case that can't be judged must not hide the others
                status, differ = None, [traceback.format_exc(limit=-3)]
            refused += status not in (0, None)
            passed += not differ
            kinds.update([*known, "anything"] if known else [])
            if differ:
                kept = WORK / f"differ/{number}-{n}"
                for side in directories:
                    shutil.copytree(side, kept / side.name)
                failed.append((case.name, typed(builds, call, workers, kept), differ))
            for side in directories:
                for file in side.rglob("*"):
                    if file.is_file() and file.name not in case.files and not file.name.endswith(call.keep):
                        file.unlink()
    return passed, failed, refused, kinds


def options(binary, verb):
    """The long options of a verb."""
    done = subprocess.run([str(binary), *verb, "--help"], capture_output=True, text=True, check=False)
    return set(re.findall(r"(?:^|[\s,])(--[a-z][a-z0-9-]*)", done.stdout)) if done.returncode == 0 else set()


class Known:
    """The options that a build knows, by verb."""

    def __init__(self, builds):
        self.builds, self.seen = builds, {}
        self.missing = collections.Counter()

    def all(self, call):
        """True if both builds know all options of a run. A setting of a stage is none, nor is what comes
        behind `=`."""
        words = [str(word) for word in call.words]
        verb = tuple(words[:2] if words[0] in ("model", "slice") or words[:2] in (["measure", "merge"], ["measure", "query"]) else words[:1])
        if verb not in self.seen:
            self.seen[verb] = [options(binary, verb) for binary in self.builds]
        for word in words[len(verb):]:
            option = word.split("=")[0]
            if option.startswith("--") and call.known:
                for found, which in zip(self.seen[verb], ("old", "new")):
                    if option not in found:
                        self.missing[f"{' '.join(verb)} {option}", which] += 1
                        return False
        return True


def chosen(arguments, builds, where, inputs):
    """The cases to judge, each with a number of threads or none, without the runs that a build can't do; long
    ones first."""
    known, cases = Known(builds), []
    for case in same_cases.cases(where, inputs, arguments.quick, arguments.seed):
        if arguments.only in case.name or any(arguments.only in shlex.join(map(str, call.words)) for call in case.calls):
            if arguments.known and case.name in ("fixed words", "fixed refused"):
                continue  # help, lists and messages name what has been added since
            calls = [call._replace(ignored=call.ignored | arguments.ignore) for call in case.calls if known.all(call)]
            if arguments.workers is None:
                cases.append((case._replace(calls=calls), None))
                continue
            calls = [call for call in calls if call.words[0] in ("run", "reframe") and not call.live]
            cases += [(case._replace(calls=calls), number) for number in arguments.workers if calls]
    for (option, which), count in sorted(known.missing.items()):
        print(f"left out: {count} runs with `{option}`, which the {which} build doesn't know", flush=True)
    return sorted(cases, key=lambda case: -case[0].weight)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--only", default="", metavar="TEXT", help="only cases that have this text in their names or commands")
    parser.add_argument("--quick", action="store_true", help="a tenth of the cases")
    parser.add_argument("--jobs", type=int, default=harness.PROCESSES, metavar="N", help="cases at a time")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the random settings and pipelines")
    parser.add_argument("--new-keys", action="store_true", help="reports may have keys that the old build's have not")
    parser.add_argument("--known", action="store_true", help="tell known differences to builds up to fc9c63c apart (and --new-keys)")
    parser.add_argument("--workers", type=lambda text: [int(n) for n in text.split(",")], metavar="N,N",
                        help="compare replays on one thread with those on so many")
    parser.add_argument("--ignore", type=lambda text: frozenset(text.split(",")), default=frozenset(), metavar="KEY,KEY",
                        help="keys of reports that may differ")
    arguments = parser.parse_args()
    builds = [path.resolve() for path in (arguments.old, arguments.new)]
    for path in builds:
        if not os.access(path, os.X_OK):
            sys.exit(f"{path} is no program; build it first: cargo build --release")
    since = time.monotonic()
    shutil.rmtree(WORK, ignore_errors=True)
    inputs = WORK / "inputs"
    inputs.mkdir(parents=True)
    where = harness.traces()
    if not (where / "multi").is_dir():
        print(f"no captures in {where} (SLIPSTREAM_TRACES names their folder): only the bundled ones are used")
        where = None
    same_cases.prepare(builds[0], where, inputs)
    cases = chosen(arguments, builds, where, inputs)
    passed, failed, refused, kinds = 0, 0, 0, collections.Counter()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as directory, multiprocessing.Pool(arguments.jobs) as pool:
        work = ((builds, case, directory, arguments.new_keys or arguments.known, arguments.known, n) for n, case in enumerate(cases))
        for good, bad, no, some in pool.imap_unordered(judge, work):
            passed, failed, refused = passed + good, failed + len(bad), refused + no
            kinds.update(some)
            for name, command, differ in bad:
                print(f"FAILED {name}\n       {command}", *(f"       {what}" for what in differ[:SHOWN]), sep="\n", flush=True)
                if len(differ) > SHOWN:
                    print(f"       and {len(differ) - SHOWN} more differences", flush=True)
    for kind, count in kinds.most_common():
        print(f"known, in {count} runs: {kind}")
    print(f"{refused} of the runs were refused, or ended otherwise than with status 0; {time.monotonic() - since:.0f} s")
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
