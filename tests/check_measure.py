#!/usr/bin/env python3
"""`slipstream measure` against counting with dictionaries: captures, tasks, sketches, states, bad input.

usage: check_measure.py [target/release/slipstream] [--only TEXT]
"""

import csv
import io
import json

import capture
import counts
import harness
import measure_shards
from harness import Case, Run

ALL_TASKS = ("flow-size", "heavy-hitters", "heavy-changes", "superspreaders", "ddos-victims", "size-distribution",
             "cardinality", "entropy")
LISTS = ("flow-size", "heavy-hitters", "heavy-changes", "superspreaders", "ddos-victims")
ANSWERS = {
    "count-min": ("flow-size", "heavy-hitters"),
    "flow-radar": ALL_TASKS,
    "space-saving": ("flow-size", "heavy-hitters"),
    "rev-sketch": ("flow-size", "heavy-hitters", "heavy-changes"),
    "two-level": ("superspreaders", "ddos-victims"),
    "mrac": ("size-distribution", "cardinality"),
    "fm": ("cardinality",),
    "linear-counting": ("cardinality",),
    "univmon": ("flow-size", "heavy-hitters", "heavy-changes", "cardinality", "entropy"),
    "exact": ALL_TASKS,
}
COMBINATIONS = [(task, sketch) for task in ALL_TASKS for sketch in ANSWERS if task in ANSWERS[sketch]]
# State depends on what was put in, not on its order; keys beside the counters are another matter.
LINEAR = ("flow-radar", "rev-sketch", "two-level", "mrac", "fm", "linear-counting", "exact")
KEYS = ("src", "5tuple", "src-dst", "dst", "src/24/48")
PAIR_KEYS = {"superspreaders": ("src", "src/24/48"), "ddos-victims": ("dst", "dst/16/64")}
TOP = 20
APART = 8  # of so many odd captures one has every task asked by itself
COUNTERS = 8192  # of Space-Saving in a megabyte at least, IPv6 too
# For a run of which only the state matters: to find the heaviest flows takes longer than all else.
UNASKED = ("--threshold", 2**63)
# Keys where an answer may be null: no estimate of a full sketch, nothing to compare with, no packet to divide
# by.
NULLS = {"estimate", "upper", "relative_error", "wmrd", "ns_per_packet", "truncated_at_byte"}


def no_constant(text):
    raise AssertionError(f"{text} in JSON")


def nulls(value, key=""):
    """The keys of all nulls in a result."""
    if isinstance(value, dict):
        return {k for key, v in value.items() for k in nulls(v, key)}
    if isinstance(value, list):
        return {k for v in value for k in nulls(v, key)}
    return {key} if value is None else set()


def measure(binary, *words):
    return Run(binary, ["measure", *words, "--format", "json"])


def result(run, case):
    """What a run printed, or None where it failed."""
    if not case.check(run.status == 0, f"exit status {run.status}: {run.stderr.strip()[-300:]}"):
        return None
    got = json.loads(run.stdout, parse_constant=no_constant)
    case.check(nulls(got) <= NULLS, f"null: {nulls(got) - NULLS}")
    return got


def refused(run, case, *saying):
    """Exit status 2, nothing on stdout, and a message that has these words in it."""
    case.equal(run.status, 2, "exit status")
    case.equal(run.stdout, b"", "stdout")
    case.check(run.stderr.strip() and "panicked" not in run.stderr, f"message {run.stderr!r}")
    for word in saying:
        case.check(word in run.stderr, f"{word!r} is not in {run.stderr.strip()!r}")


class Judge:
    """Holds what one sketch answered to the truth."""

    def __init__(self, case, task, sketch, key, by_bytes=False):
        self.case, self.task, self.sketch, self.key, self.by_bytes = case, task, sketch, key, by_bytes
        self.exact = False

    def epoch(self, got, want, before):
        """One epoch; `before` is the truth of the one before, if there was one."""
        c = self.case
        c.equal(got["packets"], want.packets, "packets")
        c.equal(got["weight"], want.weight, "weight")
        if "flows" in got:
            c.equal(got["flows"], want.flows, "flows")
        # A table of everything, and a decoded FlowRadar, know everything.
        self.exact = self.sketch == "exact" or self.sketch == "flow-radar" and not got["saturated"]
        if self.task in LISTS:
            self.keys(got, want, before)
        elif self.task == "size-distribution":
            self.distribution(got, want)
        else:
            self.figure(got, want)

    def truth(self, want, before):
        if self.task == "heavy-changes":
            return counts.changes(before, want) if before else {}
        return want.spread if want.spread is not None else want.sizes

    def slack(self, size, weight):
        """By how much an estimate of this size may be off: generously, for a sketch of a megabyte."""
        if self.exact:
            return 0
        if self.sketch == "two-level":
            return 0.6 * size + 16
        return {"count-min": 0.001, "space-saving": 1 / COUNTERS, "rev-sketch": 0.01, "univmon": 0.02,
                "flow-radar": 1}[self.sketch] * weight + 2 * (1500 if self.by_bytes else 1)

    def keys(self, got, want, before):
        c, rows, truth = self.case, got["answers"], self.truth(want, before)
        weight = want.weight + (before.weight if before and self.task == "heavy-changes" else 0)
        c.check(len(rows) <= TOP, f"{len(rows)} rows")
        sizes = [r["estimate"] for r in rows]
        c.equal(sizes, sorted(sizes, reverse=True), "descending order")
        listed = set()
        for r in rows:
            key, slack = self.key.parse(r["key"]), self.slack(0, weight)
            c.check(key not in listed, f"{r['key']} is there twice")
            listed.add(key)
            true = truth.get(key, 0)
            slack = self.slack(abs(true), weight)
            if "true" in r:
                c.equal(r["true"], abs(true), f"true size of {r['key']}")
            c.check(r["lower"] <= r["estimate"] <= r["upper"], f"bounds {r}")
            c.check(abs(r["estimate"] - abs(true)) <= slack, f"{r}, really {true} of {weight}")
            if self.task == "heavy-changes" and abs(true) > slack:
                c.equal(r["direction"], "up" if true > 0 else "down", f"direction of {r['key']}")
            self.certain(r, abs(true))
        sizes = sorted((abs(t) for t in truth.values()), reverse=True)
        if self.exact or self.sketch == "space-saving" and len(truth) <= COUNTERS:
            c.equal([r["estimate"] for r in rows], [s for s in sizes[:TOP] if s], "the greatest")
        self.none_missing(listed, truth, sizes, weight)

    def certain(self, row, true):
        """Bounds that hold always."""
        if self.sketch == "count-min":
            self.case.check(row["estimate"] >= true, f"Count-Min gave too little: {row}, really {true}")
        if self.sketch in ("space-saving", "count-min"):
            self.case.check(row["upper"] >= true, f"upper end {row}, really {true}")
        if self.sketch == "space-saving":
            self.case.check(row["lower"] <= true, f"lower end {row}, really {true}")

    def none_missing(self, listed, truth, sizes, weight):
        """What is far greater than the sketch's noise, and than what the list has room for, is listed."""
        last = sizes[TOP] if len(sizes) > TOP else 0
        for key, true in truth.items():
            if self.sketch == "rev-sketch" and sum(len(part) for part in key if isinstance(part, bytes)) > 16:
                continue  # a quarter of a megabyte holds too small tables to tell keys of more than one IPv6 address
            slack = self.slack(abs(true), weight)
            if abs(true) > last + 2 * slack and (self.sketch != "two-level" or abs(true) > 4 * last + 60):
                self.case.check(key in listed, f"{key} of {true} is not listed")

    def distribution(self, got, want):
        c, rows = self.case, got["distribution"]
        c.equal({r["size"]: r["true"] for r in rows if r["true"]}, dict(want.distribution()), "true distribution")
        c.equal([r["size"] for r in rows], sorted(r["size"] for r in rows), "sizes in order")
        c.check(all(r["flows"] >= 0 for r in rows), "numbers of flows")
        apart, both = sum(abs(r["flows"] - r["true"]) for r in rows), sum(r["flows"] + r["true"] for r in rows) / 2
        c.close(got["wmrd"], apart / both if both else None, "wmrd", 1e-9)
        if self.exact:
            c.equal(apart, 0, "difference from the truth")
        elif both:
            # Few flows in very many counters: all but a collision or two is told right.
            c.check(got["wmrd"] < 0.05 + 2 / both, f"wmrd {got['wmrd']} of {want.flows} flows")

    def figure(self, got, want):
        c = self.case
        true = want.flows if self.task == "cardinality" else want.entropy() if want.packets else 0.0
        c.check(abs(got["true"] - true) <= 1e-9 * (1 + true), f"true value {got['true']}, really {true}")
        estimate = got["estimate"]
        if not c.check(estimate is not None, "no estimate"):
            return
        c.check(got["lower"] <= estimate <= got["upper"], f"bounds {got['lower']}, {estimate}, {got['upper']}")
        error = abs(estimate - true)
        if got["true"] > 1e-12:
            relative = abs(got["relative_error"] - error / got["true"])
            c.check(relative <= 1e-9, f"relative_error {got['relative_error']} of {estimate} and {true}")
        elif not got["true"]:
            c.equal(got["relative_error"], None, "relative_error")
        # Standard errors in a megabyte are below 0.3 %; of UnivMon what its documentation says.
        limit = 0 if self.exact else 0.10 * true + 0.1 if self.sketch == "univmon" else 0.02 * true + 1
        c.check(error <= limit + 1e-9 * (1 + true), f"{estimate}, really {true}")


def ask(binary, path, tasks, sketch, key, *words):
    """Asks one sketch for some tasks, in one run."""
    return measure(binary, path, *(word for task in tasks for word in ("--task", task)), "--sketch", sketch, "--key", key, *words)


def answers(run, tasks):
    """Each task, a case for it, and what the run printed about it: None where it failed."""
    cases = [Case() for _ in tasks]
    got = [result(run, case) for case in cases]
    if len(tasks) > 1 and None not in got:
        several = got[0]["tasks"]
        got = several if all(case.equal(len(several), len(tasks), "tasks") for case in cases) else [None] * len(tasks)
    return zip(tasks, cases, got)


def held_to_truth(binary, path, packets, tasks, sketch, key, by_bytes=False, words=()):
    """Tasks by one sketch, in one run over a capture in three epochs, beside the exact table and ours."""
    length = max(1, -(-len(packets) // 3))
    weight = ["--weight", "bytes"] if by_bytes else []
    run = ask(binary, path, tasks, sketch, key, "--epoch", f"{length}p", "--top", TOP, "--compare", "exact", *weight, *words)
    for task, case, got in answers(run, tasks):
        if got is not None:
            hold(case, got, packets, length, task, sketch, key, by_bytes)
        yield run.command, case.wrong


def hold(case, got, packets, length, task, sketch, key, by_bytes):
    """Holds what was printed about one task to the truth."""
    for name, value in (("schema", 1), ("task", task), ("sketch", sketch), ("key", key), ("packets", len(packets))):
        case.equal(got[name], value, name)
    parsed = counts.Key(key)
    want = counts.epochs(packets, length, task, parsed, by_bytes)
    judge = Judge(case, task, sketch, parsed, by_bytes)
    if case.equal(len(got["epochs"]), len(want), "epochs"):
        for one, true, before in zip(got["epochs"], want, [None, *want]):
            judge.epoch(one, true, before)


def key_of(task, n):
    keys = PAIR_KEYS.get(task, KEYS)
    return keys[n % len(keys)]


def captured(binary, path, _scratch):
    """A capture through all tasks and all sketches that answer them."""
    packets = counts.packets(capture.read(path).records)
    for n, (task, sketch) in enumerate(COMBINATIONS):
        yield from held_to_truth(binary, path, packets, [task], sketch, key_of(task, n))
        if sketch != "mrac" and n % 3 == 0:
            yield from held_to_truth(binary, path, packets, [task], sketch, key_of(task, n + 1), True, ["--aggregate", "lru"])


def odd(binary, job, _scratch):
    """An odd capture through all tasks, each by one sketch, in turn; one that can't be read is refused. Tasks
    with the same sketch and key are asked in one run, but for some captures."""
    number, path = job
    try:
        packets = counts.packets(capture.read(path).records)
    except capture.Unreadable:
        packets = None
    asking = {}
    for n, task in enumerate(ALL_TASKS):
        sketches = [s for t, s in COMBINATIONS if t == task]
        by_itself = n if number % APART == 0 else None
        asking.setdefault((sketches[number % len(sketches)], key_of(task, number), by_itself), []).append(task)
    for (sketch, key, _), tasks in asking.items():
        if packets:
            yield from held_to_truth(binary, path, packets, tasks, sketch, key)
            continue
        run = ask(binary, path, tasks, sketch, key)
        if run.status == 0:
            for _, case, got in answers(run, tasks):
                case.equal(got and [e["packets"] for e in got["epochs"]], [0] if packets is not None else None, "packets of epochs")
                yield run.command, case.wrong
            continue
        for _ in tasks:
            case = Case()
            refused(run, case, path.name)
            yield run.command, case.wrong


def tight(binary, path, _scratch):
    """Sketches that are far too small: what is certain stays certain, what is full says so, nothing is
    invented."""
    packets = counts.packets(capture.read(path).records)
    for (task, sketch), memory in [(c, m) for c in COMBINATIONS for m in ("1KiB", "12KiB")]:
        key, case = key_of(task, 1), Case()
        run = measure(binary, path, "--task", task, "--sketch", sketch, "--key", key, "--memory", memory, "--top", TOP)
        if run.status == 2:
            refused(run, case, sketch, "at least")
            yield run.command, case.wrong
            continue
        got = result(run, case)
        if got is not None and case.equal(len(got["epochs"]), 1, "epochs"):
            (want,) = counts.epochs(packets, len(packets), task, counts.Key(key))
            small(case, task, sketch, counts.Key(key), got, want)
        yield run.command, case.wrong


def small(case, task, sketch, key, got, want):
    (epoch,) = got["epochs"]
    judge = Judge(case, task, sketch, key)
    judge.exact = sketch == "exact"
    case.check(got["memory_bytes"] <= 12 << 10 or sketch == "exact", f"{got['memory_bytes']} bytes")
    for row in epoch.get("answers", []):
        true = (want.spread if want.spread is not None else want.sizes)[key.parse(row["key"])]
        if task != "heavy-changes":
            judge.certain(row, true)
        case.check(row["lower"] <= row["estimate"] <= row["upper"], f"bounds {row}")
        if sketch == "flow-radar":
            case.check(row["lower"] <= true, f"{row}, really {true}")
    if task == "cardinality":
        if epoch["estimate"] is None:
            case.check(epoch["saturated"] and epoch["upper"] is None, f"no estimate, not saturated: {epoch}")
        elif not epoch["saturated"] and sketch in ("fm", "linear-counting", "exact"):
            error = abs(epoch["estimate"] - want.flows)
            case.check(error <= 0.5 * want.flows + 2, f"{epoch['estimate']} flows, really {want.flows}")


def named(binary, path, _scratch):
    """Flow-size of flows that are named, also of one that isn't there."""
    packets = counts.packets(capture.read(path).records)
    for text in ("src", "5tuple", "src-dst", "dst/24/56"):
        key = counts.Key(text)
        (want,) = counts.epochs(packets, len(packets), "flow-size", key)
        top = measure(binary, path, "--sketch", "exact", "--key", text, "--top", 5).json()
        names = [r["key"] for r in top["epochs"][0]["answers"]]
        absent = {"5tuple": "192.0.2.0:5 > 192.0.2.8:7 udp", "src-dst": "192.0.2.0 > 192.0.2.8"}.get(text, "192.0.2.0")
        for sketch in [s for s in ANSWERS if "flow-size" in ANSWERS[s]]:
            words = [w for name in [*names, absent] for w in ("--flow", name)]
            run = measure(binary, path, "--task", "flow-size", "--sketch", sketch, "--key", text, "--compare", "exact", *words)
            case = Case()
            got = result(run, case)
            if got is not None:
                rows = got["epochs"][0]["answers"]
                case.equal({key.parse(r["key"]) for r in rows}, {key.parse(n) for n in [*names, absent]}, "keys")
                judge = Judge(case, "flow-size", sketch, key)
                judge.exact = sketch in ("exact", "flow-radar")
                for r in rows:
                    true = want.sizes.get(key.parse(r["key"]), 0)
                    case.equal(r["true"], true, f"true size of {r['key']}")
                    case.check(abs(r["estimate"] - true) <= judge.slack(true, want.weight), f"{r}, really {true}")
                    judge.certain(r, true)
            yield run.command, case.wrong


def without_times(epochs):
    return [{k: v for k, v in e.items() if not k.endswith("_ns")} for e in epochs]


def shards(binary, path, scratch):
    """Two halves of a capture, measured apart and merged, say what one pass says; saved states say what the
    run said."""
    read = capture.read(path)
    whole, parts, link = counts.packets(read.records), [scratch / "even.pcap", scratch / "odd.pcap"], read.links[0]
    for part, file in enumerate(parts):
        capture.write_pcap(file, read.records[part::2], link)
    for n, (task, sketch) in enumerate(COMBINATIONS):
        key, case, files = key_of(task, n), Case(), [scratch / f"{name}.state" for name in ("whole", "even", "odd", "both")]
        words = ["--task", task, "--sketch", sketch, "--key", key, "--top", TOP]
        one = measure(binary, path, *words, "--save", files[0])
        live = result(one, case)
        for trace, file in zip(parts, files[1:]):
            result(measure(binary, trace, *words, *UNASKED, "--save", file), case)
        asked = result(measure(binary, "query", files[0], "--top", TOP), case)
        merged = result(measure(binary, "merge", *files[1:3], "--save", files[3], "--top", TOP), case)
        again = result(measure(binary, "query", files[3], "--task", task, "--top", TOP), case)
        if case.wrong:
            yield one.command, case.wrong
            continue
        case.equal(asked["epochs"], live["epochs"], "a saved state, asked")
        case.equal(again["epochs"], merged["epochs"], "a merged state, asked again")
        if sketch in LINEAR:
            case.equal(without_times(merged["epochs"]), without_times(live["epochs"]), "two halves, merged")
        elif task in LISTS:
            want = counts.epochs(whole, max(1, len(whole)), task, counts.Key(key))
            Judge(case, task, sketch, counts.Key(key)).epoch(merged["epochs"][0], want[0], None)
        yield f"{one.command} (halves)", case.wrong
    yield from misfits(binary, path, scratch)


def misfits(binary, path, scratch):
    """States that can't be merged, questions that a state can't answer, and states that were damaged."""
    base = scratch / "base.state"
    measure(binary, path, "--sketch", "univmon", "--memory", "128KiB", "--save", base).json()
    for words, saying in ((("--seed", 9), "seeds"), (("--memory", "64KiB"), "shapes"), (("--key", "dst"), "key"),
                          (("--sketch", "count-min"), "sketch"), (("--weight", "bytes"), "weight"), (("--epoch", "1s"), "epoch")):
        other, case = scratch / "other.state", Case()
        given = {"--sketch": "univmon", "--memory": "128KiB"} | dict([words])
        measure(binary, path, *(w for option in given.items() for w in option), "--save", other).json()
        target = scratch / "never.state"
        run = measure(binary, "merge", base, other, "--save", target)
        refused(run, case, saying)
        case.check(not target.exists(), "a failed merge left a state behind")
        yield run.command, case.wrong
    for task in ("superspreaders", "size-distribution"):
        run, case = measure(binary, "query", base, "--task", task), Case()
        refused(run, case)
        yield run.command, case.wrong
    data, bad = base.read_bytes(), scratch / "bad.state"
    step = max(1, len(data) // 40)
    for at in [*range(0, 64, 3), *range(64, len(data), step), len(data) - 1]:
        bad.write_bytes(data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :])
        run, case = measure(binary, "query", bad), Case()
        refused(run, case, "bad.state")
        yield f"{run.command} (byte {at} changed)", case.wrong
    for end in (0, 7, 13, 200, len(data) // 2, len(data) - 1):
        bad.write_bytes(data[:end])
        run, case = measure(binary, "query", bad), Case()
        refused(run, case, "bad.state")
        yield f"{run.command} (cut at {end})", case.wrong


def absurd(binary, path, _scratch):
    """Parameters that can't be, budgets that hold no sketch, and some that are only odd."""
    for words, saying in (
            (("--memory", "0"), "bytes"), (("--memory", "1"), "at least"), (("--memory", "65GiB"), "64GiB"),
            (("--memory=-1",), "--memory"), (("--epoch", "0p"), "epoch"), (("--epoch", "0s"), "epoch"), (("--epoch", "5"), "epoch"),
            (("--top", "0"), "--top"), (("--top", "9999999999"), "--top"), (("--threshold=-1",), "--threshold"),
            (("--error", "0"), "error"), (("--error", "1"), "error"), (("--error=-0.1",), "error"), (("--error", "nan"), "error"),
            (("--error", "inf"), "error"), (("--error", "1e-300"), "space-saving"), (("--confidence", "0.9"), "--error"),
            (("--error", "0.1", "--confidence", "0"), "confidence"), (("--error", "0.1", "--confidence", "1"), "confidence"),
            (("--error", "0.1", "--confidence", "nan"), "confidence"), (("--error", "0.1", "--flows", "0"), "flows"),
            (("--error", "0.1", "--memory", "1MiB"), "--memory"), (("--key", "port"), "port"), (("--key", "src/0"), "prefix"),
            (("--key", "src/129"), "prefix"), (("--key", "5tuple/8"), "5tuple"), (("--seed=-1",), "--seed"),
            (("--seed", "18446744073709551616"), "--seed"), (("--sketch", "bloom"), "bloom"), (("--task", "heavy"), "heavy"),
            (("--task", "cardinality", "--flow", "10.0.0.1"), "flow-size"), (("--task", "flow-size", "--flow", "x"), "x"),
            (("--task", "superspreaders", "--key", "dst"), "dst"), (("--task", "ddos-victims", "--key", "5tuple"), "5tuple"),
            (("--task", "size-distribution", "--weight", "bytes"), "packets"), (("--save", "/nowhere/x.state"), "/nowhere")):
        run, case = measure(binary, path, *words), Case()
        refused(run, case, saying)
        yield run.command, case.wrong
    for sketch, tasks in ANSWERS.items():
        for task in ALL_TASKS:
            if task not in tasks:
                run, case = measure(binary, path, "--task", task, "--sketch", sketch), Case()
                refused(run, case, sketch)
                yield run.command, case.wrong
        if sketch != "exact":
            for memory in (0, 1, 3):
                run, case = measure(binary, path, "--task", tasks[0], "--sketch", sketch, "--memory", memory), Case()
                refused(run, case, sketch, "bytes")
                yield run.command, case.wrong
        for words in (("--seed", 2**64 - 1), ("--seed", 0), ("--top", 1000, "--threshold", 2**63), ("--memory", "64MiB")):
            run, case = measure(binary, path, "--task", tasks[0], "--sketch", sketch, *words), Case()
            result(run, case)
            yield run.command, case.wrong


def silence(binary, path, scratch):
    """Epochs in which nothing came: between two packets a day apart, and a capture without any packet."""
    read = capture.read(path)
    first = next(r for r in read.records if capture.headers(r.link, r.data))
    gap, none = scratch / "gap.pcap", scratch / "none.pcap"
    capture.write_pcap(gap, [first, first._replace(time=first.time + 86_400 * 10**9)], first.link)
    capture.write_pcap(none, [], first.link)
    for task, sketch in COMBINATIONS:
        for file, words, packets in ((gap, ["--epoch", "1s"], [1, 0, 1]), (none, [], [0])):
            run = measure(binary, file, "--task", task, "--sketch", sketch, "--compare", "exact", *words)
            case = Case()
            got = result(run, case)
            if got is not None and case.equal([e["packets"] for e in got["epochs"]], packets, "packets"):
                case.check(not any(e["saturated"] for e in got["epochs"]), "saturated")
                for e in (e for e in got["epochs"] if not e["packets"]):
                    rows = e.get("distribution", [r for r in e.get("answers", []) if task != "heavy-changes"])
                    case.equal((rows, e.get("estimate", 0), e["weight"], e["flows"]), ([], 0, 0, 0), "an empty epoch")
            yield run.command, case.wrong
            table, case = Run(binary, ["measure", file, "--task", task, "--sketch", sketch, "--format", "csv", *words]), Case()
            case.equal(table.status, 0, "exit status")
            cells = [cell.lower() for row in csv.reader(io.StringIO(table.stdout.decode())) for cell in row]
            case.check(not {"nan", "inf", "-inf", "infinity"} & set(cells), "a figure that is none")
            yield table.command, case.wrong


def bounded(binary, path, _scratch):
    """Bounds hold as often as `confidence` says, over seeds: every sketch and task, from far too little
    memory to plenty."""
    packets = counts.packets(capture.read(path).records)
    for n, (task, sketch) in enumerate(c for c in COMBINATIONS if c[0] != "size-distribution"):
        key = key_of(task, n)
        parsed = counts.Key(key)
        length = max(1, -(-len(packets) // 2))
        want = counts.epochs(packets, length, task, parsed)
        for memory in ("16KiB", "256KiB"):
            case, held, answers, share, run = Case(), 0, 0, 1.0, None
            for seed in range(6):
                run = measure(binary, path, "--task", task, "--sketch", sketch, "--key", key, "--memory", memory, "--top", TOP,
                              "--epoch", f"{length}p", "--seed", 1000 + seed)
                if run.status == 2:
                    break
                got = result(run, case)
                if got is None or not case.equal(len(got["epochs"]), len(want), "epochs"):
                    break
                for epoch, true, before in zip(got["epochs"], want, [None, *want]):
                    if sketch == "flow-radar" and epoch["saturated"]:
                        continue
                    share = min(share, epoch["confidence"])
                    for lower, upper, truth in intervals(task, parsed, epoch, true, before):
                        answers += 1
                        held += lower - 1e-9 <= truth and (upper is None or truth <= upper + 1e-9)
            if run.status == 2:
                refused(run, case, sketch, "at least")
            else:
                # Answers of one run share their noise, so that a binomial margin is for runs, of which there
                # are 12.
                margin = 3 * (answers * share * (1 - share) * max(1, answers / 12) ** 0.5) ** 0.5
                case.check(held >= answers * share - margin, f"{held} of {answers} bounds hold, stated {share}")
                # In little memory a FlowRadar may be saturated each time; in more, something is answered.
                case.check(answers > 0 or memory == "16KiB", "not a single bound was held to the truth")
            yield f"{run.command} (6 seeds)", case.wrong


def intervals(task, key, epoch, want, before):
    """The bounds of an epoch's answers, each with the truth."""
    if task not in LISTS:
        yield epoch["lower"], epoch["upper"], want.flows if task == "cardinality" else want.entropy() if want.packets else 0.0
        return
    if task == "heavy-changes":
        truth = counts.changes(before, want) if before else {}
    else:
        truth = want.spread if want.spread is not None else want.sizes
    for row in epoch["answers"]:
        yield row["lower"], row["upper"], abs(truth.get(key.parse(row["key"]), 0))


def sharded(binary, path, scratch):
    """One, two, four and seven shards in epochs by time, merged: what one pass says, within what is true and
    what is stated."""
    read = capture.read(path)
    records, link = measure_shards.two_days(read.records), read.links[0]
    span = max(r.time for r in read.records) - min(r.time for r in read.records)
    length = max(1, span // 5)
    traces = {}
    for shards in measure_shards.SHARDS:
        for shard, some in enumerate(measure_shards.deal(records, shards)):
            traces[shards, shard] = scratch / f"{shards}-{shard}.pcap"
            capture.write_pcap(traces[shards, shard], some, link, unit=1)
    packets = measure_shards.by_time(records, length)
    for n, (task, sketch) in enumerate(measure_shards.different(COMBINATIONS)):
        text = key_of(task, n)
        truth = measure_shards.true_epochs(packets, length, task, counts.Key(text))
        # In little memory only what is certain can be held to anything.
        for memory in ("1MiB", "16KiB") if sketch in ("count-min", "space-saving") else ("1MiB",):
            words = ["--task", task, "--sketch", sketch, "--key", text, "--epoch", f"{length}ns", "--memory", memory]
            one = measure(binary, traces[1, 0], *words, "--top", TOP, "--save", scratch / "1-0.state")
            case = Case()
            live = result(one, case)
            if live is None:
                yield one.command, case.wrong
                continue
            for shards in measure_shards.SHARDS:
                case, files = Case(), [scratch / f"{shards}-{shard}.state" for shard in range(shards)]
                for shard, file in enumerate(files):
                    if shards > 1:
                        result(measure(binary, traces[shards, shard], *words, *UNASKED, "--save", file), case)
                run = measure(binary, "merge", *files, "--top", TOP)
                got = result(run, case)
                if got is not None:
                    merged(case, (task, sketch, counts.Key(text)), got["epochs"], live["epochs"], truth, memory)
                yield f"{one.command} ({shards} shards)", case.wrong


def merged(case, what, got, live, truth, memory):
    """Holds merged epochs to those of one pass and to the truth."""
    task, sketch, key = what
    times = [(e["start_ns"], e["end_ns"]) for e in got]
    if not case.equal(times, [(start, end) for start, end, _ in truth], "epochs"):
        return
    if sketch in LINEAR:
        case.equal(measure_shards.without_partial(got), measure_shards.without_partial(live), "one pass")
        return
    judge, before = Judge(case, task, sketch, key), None
    for epoch, (_, _, want) in zip(got, truth):
        case.equal((epoch["packets"], epoch["weight"]), (want.packets, want.weight), "packets and weight")
        if task not in LISTS:
            true = want.flows if task == "cardinality" else want.entropy() if want.packets else 0.0
            case.check(epoch["lower"] <= epoch["estimate"] <= epoch["upper"], "bounds")
            case.check(abs(epoch["estimate"] - true) <= 0.1 * true + 0.1, f"{epoch['estimate']}, really {true}")
        elif memory == "1MiB":
            judge.keys(epoch, want, before)
        else:
            for row in epoch["answers"]:
                judge.certain(row, want.sizes.get(key.parse(row["key"]), 0))
        if "unlisted_at_most" in epoch and sketch != "univmon":
            measure_shards.unlisted(case, epoch, want.sizes, key)
        before = want


FUNCTIONS = {f.__name__: f for f in (captured, odd, tight, named, shards, sharded, absurd, silence, bounded)}


def jobs(where):
    captures = sorted((*(where / "large").iterdir(), *(where / "multi").iterdir()), key=lambda p: -p.stat().st_size)
    for path in captures:
        yield "captured", path
    # These can be written anew as one pcap file: they have one link type, and all packets have times.
    names = ("pcpp-many-protocols.pcap", "ndpi-gnutella.pcap", "ndpi-alexa-app.pcapng")
    few = [p for p in captures if p.name in names]
    if len(few) != len(names):
        raise SystemExit(f"of {', '.join(names)} only {len(few)} are in {where}")
    for path in few:
        for name in ("tight", "named", "shards", *(("bounded",) if path == few[-1] else ())):
            yield name, path
    for path in few[-2:]:
        yield "sharded", path
    yield "absurd", few[-1]
    yield "silence", few[-1]
    for job in enumerate(sorted((where / "odd").iterdir())):
        yield "odd", job


def work(binary, job, scratch):
    return FUNCTIONS[job[0]](binary, job[1], scratch)


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=2)
