#!/usr/bin/env python3
"""Are saved states what the book's page on formats says? Read by that page alone, hash functions included.

The tables of a state are computed anew from the packets, which `capture.py` reads, and must be those of the
file to the bit. Sliding windows, gaps and what two states share are held against dictionaries, and what the
stage tells and saves against the verb.
"""

import collections
import fractions
import ipaddress
import json
import struct
import zlib

import capture
import harness
from harness import ROOT, Case, Run

CAMPUS = ROOT / "traces/campus.pcap.gz"
MASK, MASK32 = (1 << 64) - 1, (1 << 32) - 1


def rotate(value, by):
    return (value << by | value >> (64 - by)) & MASK


def mix(a, b):
    product = a * b
    return (product ^ product >> 64) & MASK


class Hash:
    """Function number `purpose` of a seed, for keys of 4 or 16 bytes."""

    def __init__(self, seed, purpose):
        state = seed ^ rotate(purpose * 0xA24BAED4963EE407 & MASK, 17)
        self.secrets = []
        for _ in range(4):
            state = (state + 0x9E3779B97F4A7C15) & MASK
            z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & MASK
            z = (z ^ z >> 27) * 0x94D049BB133111EB & MASK
            self.secrets.append((z ^ z >> 31) | 1)

    def halves(self, key):
        s0, s1, s2, s3 = self.secrets
        if len(key) <= 8:
            folded = mix(int.from_bytes(key, "little") ^ s0, s1)
        else:
            folded = mix(int.from_bytes(key[:8], "little") ^ s0, int.from_bytes(key[-8:], "little") ^ s1)
        return mix(folded ^ s2, rotate(s1, 24)), mix(folded ^ s3, rotate(s1, 48))

    def pieces(self, key):
        a, b = self.halves(key)
        return a & 0xFFFFFFFF, a >> 32, b & 0xFFFFFFFF, b >> 32


def below(piece, n):
    return piece * n >> 32


WEIGHTS = [tuple(map(int, pair.split(":"))) for pair in (
    "4096:1 4096:1 2980:1 285:1 54:1 32:2 32:5 28:9 31:18 32:31 24:37 14:33 13:46 6:31 4:30 5:54 2:31 2:44 1:32 1:45 1:64").split()]


class Code:
    """The range coder's reader."""

    def __init__(self, data, k):
        self.data, self.at, self.range, self.code = data, 0, MASK32, 0
        for _ in range(4):
            self.shift()
        self.weights = [list(WEIGHTS[i] if i < len(WEIGHTS) else (1, 64 << (i - 20) // 2))
                        for i in (min(38, max(0, k + 2 * g + 8)) for g in range(63))]

    def shift(self):
        self.code = (self.code << 8 | (self.data[self.at] if self.at < len(self.data) else 0)) & MASK32
        self.at += 1

    def occurred(self, group):
        weights = self.weights[group]
        bound = self.range // sum(weights) * weights[0]
        yes = self.code < bound
        if yes:
            self.range = bound
        else:
            self.code, self.range = self.code - bound, self.range - bound
        while self.range < 1 << 24:
            self.range <<= 8
            self.shift()
        weights[not yes] += 1
        if sum(weights) >= 1 << 16:
            weights[:] = [(w + 1) // 2 for w in weights]
        return yes


def registers(data, n, t, d):
    """Did registers forget nothing; and of n of them the highest event, and the set of those below it that it
    has."""
    if data[0] == 0:
        words = struct.unpack(f"<{n}I", data[1:])
        return False, [(word >> 24, {(word >> 24) - i for i in range(1, d + 1) if word >> 24 - i & 1}) for word in words]
    code, found, everything = Code(data[3:], struct.unpack("b", data[2:3])[0]), [], data[0] == 2
    for _ in range(n):
        highest = next((e for e in range(data[1], 0, -1) if code.occurred(e - 1 >> t)), 0)
        last = 0 if everything else max(0, highest - d - 1)
        found.append((highest, {e for e in range(highest - 1, last, -1) if code.occurred(e - 1 >> t)}))
    assert code.at >= len(data) - 3, "bytes behind the code"
    return everything, found


def events(kind, seed, n, d, packets):
    """The registers that the packets make, as above, and the sum of the inverse chances that they would
    change some."""
    t, purpose = (2, 0x656C6C) if kind == 11 else (1, 0x686970)
    hashes, kept, seen, last = Hash(seed, purpose), [set() for _ in range(n)], fractions.Fraction(0), 63 - t
    size = (n * (5 + d) + 7) // 8 + 3
    entries = (size - n) // 3
    everything, room = kind == 13 and n <= 1 << 15 and size >= n, entries - (entries + 7) // 8

    def open_events(of):
        return [e for e in range(1 if everything else max(1, max(of, default=0) - d), (last + 1 << t) + 1) if e not in of]

    def chance(of):
        return sum(1 << 62 - min(last - 1, e - 1 >> t) - t for e in open_events(of))

    total = n * chance(())
    for key in dict.fromkeys(key for key, _ in packets):
        h1, h2 = hashes.halves(key)
        of = kept[below(h1 & MASK32, n)]
        event = (min(last, 64 - h2.bit_length()) << t) + h2 % (1 << t) + 1
        if event in of or not everything and event < max(of, default=0) - d:
            continue
        seen += fractions.Fraction(n << 63, total)
        total -= chance(of)
        of.add(event)
        total += chance(of)
        if everything and event > 8:
            room -= 1
            if room < 0:
                everything = False
                total = sum(map(chance, kept))
    return (everything, [(max(of, default=0), {e for e in of if (everything or max(of) - d <= e) and e < max(of)}) for of in kept]), float(seen)


def sketch(data):
    """Kind, seed, weight and the bytes of parameters and tables."""
    magic, version, kind, zero, keys, zeros, seed, weight = struct.unpack_from("<8sHBBHHQQ", data)
    assert magic == b"SLIPSKCH" and zero == zeros == 0 and version in (1, 2), (magic, version)
    assert zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"), "checksum"
    return kind, keys, seed, weight, data[32:-4]


def saved(data):
    """The description, and for each epoch its two sketches."""
    magic, version, length = struct.unpack_from("<8sHI", data)
    assert magic == b"SLIPMEAS" and version == 2
    assert zlib.crc32(data[:-4]) == int.from_bytes(data[-4:], "little"), "checksum"
    about, at, epochs = json.loads(data[14 : 14 + length]), 14 + length, []
    for _ in about["epochs"]:
        states = []
        for _ in range(2):
            size = int.from_bytes(data[at : at + 8], "little")
            states.append(data[at + 8 : at + 8 + size])
            at += 8 + size
        epochs.append(states)
    assert at == len(data) - 4
    return about, epochs


def same(kind, seed, body, packets):
    """Are the tables those that the packets (key, weight) make? Their order makes a difference to what a hip
    has seen."""
    if kind not in (11, 13):
        return body == tables(kind, seed, body, packets)
    n = int.from_bytes(body[:4], "little")
    d, at = (24, 4) if kind == 11 else (body[4], 14)
    want, seen = events(kind, seed, n, d, packets)
    if kind == 13:
        merged, told = struct.unpack_from("<Bd", body, 5)
        if merged or abs(told - seen) > 1e-9 * seen:
            return False
    return registers(body[at:], n, 2 if kind == 11 else 1, d) == want


def tables(kind, seed, body, packets):
    """The parameters as in the state, and the tables as the packets (key, weight) make them."""
    if kind == 1:
        rows, width = struct.unpack_from("<II", body)
        counters, hashes = [0] * (rows * width), Hash(seed, 0x636D00)
        for key, weight in packets:
            for row, piece in enumerate(hashes.pieces(key)[:rows]):
                counters[row * width + below(piece, width)] += weight
        return struct.pack(f"<II{rows * width}I", rows, width, *counters) + struct.pack("<IQI", 0, 0, 0)
    n = int.from_bytes(body[:4], "little")
    if kind == 12:
        buckets = [0] * ((65 - n) << n)
        for _, value in packets:
            shift = max(0, value.bit_length() - n - 1)
            buckets[(shift << n) + (value >> shift)] += 1
        return struct.pack(f"<I{len(buckets)}Q", n, *buckets)
    cells, hashes = [0] * n, Hash(seed, {6: 0x6D72, 7: 0x666D, 8: 0x6C63}[kind])
    for key, weight in packets:
        h1, h2 = hashes.halves(key)
        low, high = below(h1 & 0xFFFFFFFF, n), below(h1 >> 32, n)
        if kind == 6:
            cells[high] += weight
        elif kind == 7:
            cells[low] |= 1 << min(31, (h2 & -h2).bit_length() - 1 if h2 else 31)
        else:
            cells[high] |= 1 << (h1 & 63)
    return struct.pack(f"<I{n}{'Q' if kind == 8 else 'I'}", n, *cells)


def sources(records, by_bytes):
    """(key, weight) of the packets of IPv4 and of those of IPv6."""
    found = ([], [])
    for record in records:
        key = capture.flow_key(record.link, record.data)
        if key is not None:
            addresses = bytes(key[2])
            found[key[1] == 6].append((addresses[: len(addresses) // 2], record.length if by_bytes else 1))
    return found


def state(binary, job, scratch):
    """A state of one epoch, table by table."""
    _, path, words = job
    file = scratch / "a.state"
    run, case = Run(binary, ["measure", path, *words, "--seed", 77, "--save", file, "--format", "json"]), Case()
    run.json()
    about, epochs = saved(file.read_bytes())
    case.equal(about["seed"], 77, "the seed of the description")
    packets = sources(capture.read(path).records, "bytes" in words)
    for data, of_version in zip(epochs[0], packets):
        if not data:
            case.equal(of_version, [], "packets of the sketch that isn't there")
            continue
        kind, keys, seed, weight, body = sketch(data)
        case.equal((keys, seed), (len(of_version[0][0]) if of_version else keys, 77), "key length and seed")
        case.equal(weight, sum(w for _, w in of_version), "weight")
        case.check(same(kind, seed, body, of_version), f"the tables of kind {kind}, keys of {keys} bytes, are others")
    yield run.command, case.wrong


def windows(binary, job, _):
    """Windows are the sums of their panes."""
    _, path = job
    words = ["--task", "heavy-hitters", "--sketch", "exact", "--window", "30ms", "--slide", "10ms", "--top", 100_000]
    run, case = Run(binary, ["measure", path, *words, "--format", "json"]), Case()
    got = run.json()["epochs"]
    packets = [(r.time, key) for r in capture.read(path).records if (key := capture.flow_key(r.link, r.data))]
    first, last = packets[0][0], packets[-1][0]
    ends = range((first // 10**7 + 1) * 10**7, (last // 10**7 + 1) * 10**7 + 1, 10**7)
    case.equal([e["end_ns"] for e in got], list(ends), "ends of windows")
    for epoch in got:
        start, end = epoch["end_ns"] - 3 * 10**7, epoch["end_ns"]
        case.equal(epoch["start_ns"], start, "start of a window")
        want = collections.Counter()
        for at, key in packets:
            if start <= at < end:
                half = len(key[2]) // 2
                want[str(ipaddress.ip_address(bytes(key[2][:half])))] += 1
        case.equal({a["key"]: a["estimate"] for a in epoch["answers"]}, dict(want), f"sizes of the window that ends at {end}")
    yield run.command, case.wrong


def stage(binary, job, scratch):
    """What the stage saves is what the verb saves, and can be asked."""
    _, path = job
    folder = scratch / "states"
    folder.mkdir()
    graph = f"measure(task=cardinality, sketch=exaloglog, memory=4KiB, epoch=20ms, seed=5, save={folder})"
    run, case = Run(binary, ["run", "-i", path, "-o", "null", "-e", graph, "--format", "json"]), Case()
    run.json()
    words = ["--task", "cardinality", "--sketch", "hll", "--memory", "4KiB", "--epoch", "20ms", "--seed", 5]
    whole = scratch / "whole.state"
    want = Run(binary, ["measure", path, *words, "--save", whole, "--format", "json"]).json()["epochs"]
    about, epochs = saved(whole.read_bytes())
    files = sorted(folder.iterdir(), key=lambda p: int(p.stem))
    case.equal([p.name for p in files], [f"{e['start_ns']}.state" for e in want], "names of files")
    for file, states in zip(files, epochs):
        head, mine = saved(file.read_bytes())
        # A stage makes both sketches from the beginning: one that nothing came in is there, and empty.
        case.equal([s for s in mine[0] if sketch(s)[3]], [s for s in states if s], f"states of {file.name}")
        case.equal({k: v for k, v in head.items() if k not in ("epochs", "aggregate")},
                   {k: v for k, v in about.items() if k not in ("epochs", "aggregate")}, f"the head of {file.name}")
    merged = Run(binary, ["measure", "merge", *files, "--format", "json"]).json()["epochs"]
    case.equal([e.get("estimate") for e in merged], [e.get("estimate") for e in want], "estimates of all files together")
    yield run.command, case.wrong
    missing = Run(binary, ["run", "-i", path, "-o", "null", "-e", f"measure(save={scratch / 'none'})"])
    yield missing.command, [] if missing.status == 2 and "no such folder" in missing.stderr else [missing.stderr]
    first = files[0].read_bytes()
    case = Case()
    for at in (3, 9, 12, 40, len(first) // 2, len(first) - 2):
        bad = scratch / "bad.state"
        bad.write_bytes(first[:at] + bytes([first[at] ^ 4]) + first[at + 1 :])
        run = Run(binary, ["measure", "query", bad])
        case.equal(run.status, 2, f"exit status with byte {at} changed")
        case.check("bad.state" in run.stderr, f"byte {at}: the file isn't named: {run.stderr}")
    yield "measure query of damaged states", case.wrong


def gaps(binary, job, _):
    """Quantiles of gaps: within their bounds, and the stage's to the last digit."""
    _, path = job
    words = ["--task", "quantiles", "--weight", "gap", "--key", "src", "--memory", "64KiB"]
    run, case = Run(binary, ["measure", path, *words, "--format", "json"]), Case()
    got, last, values = run.json(), {}, []
    for record in capture.read(path).records:
        if key := capture.flow_key(record.link, record.data):
            source = bytes(key[2])[: len(key[2]) // 2]
            if source in last:
                values.append(max(0, record.time - last[source]))
            last[source] = max(record.time, last.get(source, 0))
    values.sort()
    case.equal((got["without_gap"], got["forgotten_flows"]), (len(last), 0), "first packets of flows")
    sizes = Run(binary, ["measure", path, "--task", "quantiles", "--weight", "bytes", "--format", "json"]).json()
    case.equal({"without_gap", "forgotten_flows"} & set(sizes), set(), "counts of gaps where there are none")
    case.equal((got["packets"], got["epochs"][0]["weight"]), (len(values), sum(values)), "gaps and their sum")
    for row in got["epochs"][0]["quantiles"]:
        value = values[int(row["quantile"] * (len(values) - 1))]
        case.check(row["lower"] <= value <= row["upper"], f"quantile {row['quantile']} is {value}: {row}")
    one = Run(binary, ["measure", path, *words, "--workers", 1, "--format", "json"]).json()
    several = Run(binary, ["measure", path, *words, "--task", "quantiles", "--format", "json"]).json()["tasks"]
    for other in (one, *several):
        case.equal(other["epochs"], got["epochs"], "with one worker, and for two tasks")
    yield run.command, case.wrong
    graph = "measure(task=quantiles, weight=gap, key=src, memory=64KiB, seed=1)"
    run, case = Run(binary, ["run", "-i", path, "-o", "null", "-e", graph, "--format", "json"]), Case()
    told, look = [], [run.json()]
    while look:
        value = look.pop()
        if isinstance(value, list):
            look.extend(value)
        elif isinstance(value, dict):
            told.extend([value["quantiles"]] if "quantiles" in value else [])
            look.extend(value.values())
    case.equal(told, [got["epochs"][0]["quantiles"]], "the stage's quantiles")
    yield run.command, case.wrong
    for words, what in ((["--task", "quantiles", "--weight", "delay"], "stage"), (["--weight", "gap"], "task quantiles"),
                        (["--task", "quantiles"], "gap")):
        run = Run(binary, ["measure", path, *words])
        yield run.command, [] if run.status == 2 and what in run.stderr else [f"status {run.status}: {run.stderr}"]


def shared(binary, job, scratch):
    """What two states share, beside sets of the sources; and states that don't go together."""
    _, path = job
    records = [(r.time, key) for r in capture.read(path).records if (key := capture.flow_key(r.link, r.data))]
    middle = 20_000_000

    def made(name, *words):
        file = scratch / name
        Run(binary, ["measure", path, "--format", "json", "--save", file, *words]).json()
        return file

    first = capture.read(path).records[0].time
    early, late = (({bytes(k[2])[: len(k[2]) // 2] for t, k in records if (t - first < middle) == before}) for before in (True, False))
    want = {"union": early | late, "intersection": early & late, "only_first": early - late, "only_second": late - early}
    for sketch, epoch in (("exact", "1s"), ("exaloglog", "7ms"), ("exaloglog-hip", "2000000p"), ("linear-counting", "7ms")):
        words = ["--task", "cardinality", "--sketch", sketch, "--epoch", epoch, "--memory", "8KiB"]
        files = [made("early.state", *words, "--time", "..20ms"), made("late.state", *words, "--time", "20ms..")]
        run, case = Run(binary, ["measure", "sets", *files, "--format", "json"]), Case()
        got = run.json()
        for part, keys in want.items():
            size = got[part]
            # The chance that one of so few is outside of its bounds is small, and the seed always the same.
            case.check(size["lower"] <= len(keys) <= size["upper"], f"{part} is {len(keys)}: {size}")
            case.check(sketch != "exact" or size["estimate"] == size["lower"] == size["upper"], f"{part} is exact: {size}")
        case.equal(got["confidence"], 1 if sketch == "exact" else 0.95, "confidence")
        case.equal(got["first"]["packets"] + got["second"]["packets"], len(records), "packets")
        lines = Run(binary, ["measure", "sets", *files, "--format", "csv"]).stdout.decode().split()
        case.equal([line.split(",")[0] for line in lines], ["part", *want], "lines of CSV")
        table = Run(binary, ["measure", "sets", *files]).stdout.decode()
        case.check("in the second alone" in table, f"the table: {table}")
        check = Run(binary, ["measure", "sets", *files, "--fail-if", "union.estimate>1"])
        case.equal(check.status, 1, "exit status of a check that holds")
        yield run.command, case.wrong
    early, case = made("early.state", "--task", "cardinality", "--sketch", "exaloglog"), Case()
    for words, what in ((["--task", "cardinality", "--sketch", "fm"], "sketch"), (["--task", "cardinality", "--sketch", "exaloglog", "--key", "dst"], "key"),
                        (["--task", "cardinality", "--sketch", "exaloglog", "--seed", 2], "seed"),
                        (["--task", "cardinality", "--sketch", "exaloglog", "--memory", "2KiB"], "registers")):
        run = Run(binary, ["measure", "sets", early, made("other.state", *words)])
        case.check(run.status == 2 and what in run.stderr, f"{words}: status {run.status}: {run.stderr}")
    hitters = made("hitters.state", "--task", "heavy-hitters")
    run = Run(binary, ["measure", "sets", hitters, hitters])
    case.check(run.status == 2 and "space-saving" in run.stderr, f"of heavy hitters: status {run.status}: {run.stderr}")
    run = Run(binary, ["measure", "sets", early, scratch / "none.state"])
    case.check(run.status == 2 and "none.state" in run.stderr, f"without a file: status {run.status}: {run.stderr}")
    yield "measure sets of states that don't go together", case.wrong


def jobs(where):
    words = [["--task", "flow-size", "--sketch", "count-min", "--flow", "10.0.0.1", "--memory", "64KiB"],
             *(["--task", "cardinality", "--sketch", name, "--memory", "2KiB"] for name in ("fm", "linear-counting", "hll")),
             *(["--task", "cardinality", "--sketch", "exaloglog-hip", "--memory", memory, "--aggregate", "off"] for memory in ("2KiB", "128")),
             ["--task", "size-distribution", "--sketch", "mrac", "--memory", "64KiB"],
             ["--task", "quantiles", "--weight", "bytes", "--memory", "64KiB"]]
    for each in words:
        yield "state", CAMPUS, each
        yield "state", where / "multi/pcpp-sll.pcap", each
    yield "windows", CAMPUS
    yield "stage", CAMPUS
    yield "gaps", CAMPUS
    yield "gaps", where / "multi/ndpi-alexa-app.pcapng"
    yield "shared", CAMPUS


def work(binary, job, scratch):
    return {"state": state, "windows": windows, "stage": stage, "gaps": gaps, "shared": shared}[job[0]](binary, job, scratch)


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=1)
