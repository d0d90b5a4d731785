#!/usr/bin/env python3
"""Is `slipstream reframe` what it says? Every capture, many settings, judged by an own reader and a twin.

What no setting may break (`invariants`) is checked on the files alone; where one worker did the work, the
twin must also agree on every packet's place and time and on every counter.
"""

import functools
import gzip
import signal
import subprocess
import time
from collections import Counter, defaultdict, namedtuple
from operator import attrgetter, itemgetter
from pathlib import Path

import numpy as np

import capture
import harness
from twin import Twin

US = 1000
HOLDS = {"0": 0, "10us": 10 * US, "64us": 64 * US, "1ms": 10**6, "100ms": 10**8}
BURSTS = (1, 2, 5, 32, 256)
POLICIES = ("oldest", "waiting", "shortest")
BIG = 20_000  # captures with more packets than this get fewer settings
COARSE = 10**6  # ns to which the clock of a coarse copy is cut
CAUSES = ("full", "deadline", "capacity", "bypass", "drain")
CLASSES = ("dns: udp port 53 => bypass", "web: tcp port 80,443 => hold=200us, burst=8", "other: udp => hold=0")
# Flows that are heavy, ranked anew every so many packets.
HEAVY, TOP_MILLIONTHS, TOP_WINDOW = "elephants: top 5 % => hold=200us, burst=8", 50_000, 64

# The time of a record, and all else, by which equal packets are found.
TIME, IDENTITY = attrgetter("time"), itemgetter(slice(1, None))

# Settings of one run. `options`: further options; `extra`: names of further checks.
Setting = namedtuple("Setting", "hold burst policy bypass options extra output")


def setting(hold="64us", burst=32, policy="oldest", bypass=True, options=(), extra=(), output="out.pcapng"):
    return Setting(hold, burst, policy, bypass, tuple(options), frozenset(extra), output)


class Input:
    """A capture, and what this side knows of its packets."""

    def __init__(self, path):
        self.path = path
        self.capture = capture.read(path)
        self.records = self.capture.records
        self.times = np.maximum.accumulate(np.array([r.time for r in self.records], dtype=np.int64))
        self.time_list = self.times.tolist()
        self.backwards = any(a.time > b.time for a, b in zip(self.records, self.records[1:]))
        self.headers = [capture.headers(r.link, r.data) for r in self.records]
        numbers = {}
        self.flows = [None if h is None else numbers.setdefault(h.key, len(numbers)) for h in self.headers]
        self.flow_array = np.array([-1 if f is None else f for f in self.flows], dtype=np.int64)
        self.tcp = [capture.tcp(r.data, h) for r, h in zip(self.records, self.headers)]
        self.classified = int((self.flow_array >= 0).sum())
        # Where each packet is, by what it is. Equal ones are of one flow, so that the first to come is the
        # first to go.
        self.places = defaultdict(list)
        for i, r in enumerate(self.records):
            self.places[r[1:]].append(i)
        # The same as arrays: packets by what they are, and for each such kind how many and from where on.
        self.numbers = {identity: n for n, identity in enumerate(self.places)}
        self.by_number = np.array([i for places in self.places.values() for i in places], dtype=np.int64)
        self.counts = np.array([len(places) for places in self.places.values()], dtype=np.int64)
        self.starts = np.cumsum(self.counts) - self.counts
        self.known_kinds = {}

    def syn(self, i):
        return self.tcp[i] is not None and self.tcp[i].flags & 2 != 0

    def heavy(self):
        """For each packet, whether its flow is heavy by HEAVY: by the packets of a window and the one before,
        those of flows that had two packets in it at least; as from the packet that ends the window."""
        windows, heavy = [Counter(), Counter()], set()
        for flow in self.flows:
            if flow is not None:
                windows[1][flow] += 1
                if windows[1].total() == TOP_WINDOW:
                    most = max(1, -(-len(windows[1]) * TOP_MILLIONTHS // 10**6))
                    before, now = (Counter({f: n for f, n in w.items() if n > 1}) for w in windows)
                    ranked = sorted((before + now).items(), key=lambda item: (-item[1], item[0]))
                    heavy = {f for f, _ in ranked[:most]}
                    windows = [now, Counter()]
            yield flow in heavy

    def kind(self, i):
        """The class by CLASSES: 0 default, 1 web, 2 other; None bypasses."""
        h = self.headers[i]
        if h is None:
            return 0
        ports = {int.from_bytes(h.key[4][:2], "big"), int.from_bytes(h.key[4][2:], "big")} if not h.fragment else set()
        if h.protocol == capture.UDP:
            return None if 53 in ports else 2
        return 1 if h.protocol == capture.TCP and ports & {80, 443} else 0


@functools.lru_cache(maxsize=20)
def load(path):
    return Input(path)


def slf(flows):
    """Packets a run, over those that have a flow."""
    flows = flows[flows >= 0]
    return len(flows) / (1 + int((flows[1:] != flows[:-1]).sum())) if len(flows) else None


def arguments(given, s, output):
    words = ["reframe", given, output, "--format", "json", "--hold", s.hold, "--burst", s.burst, "--policy", s.policy]
    return words + ([] if s.bypass else ["--bypass", "none"]) + list(s.options)


def match(case, given, out):
    """For each packet that came out, which one of the input it is; None where one is not of the input."""
    numbers = list(map(given.numbers.get, map(IDENTITY, out.records)))
    wrong = numbers.index(None) if None in numbers else len(numbers)
    numbers = np.array(numbers[:wrong], dtype=np.int64)
    # Of packets that are equal the n-th that came out is the n-th that came in.
    by_number = np.argsort(numbers, kind="stable")
    ordered = numbers[by_number]
    nth = np.arange(wrong) - np.searchsorted(ordered, ordered)
    often = by_number[nth >= given.counts[ordered]]
    if len(often) or wrong < len(out.records):
        case.check(False, f"packet {min(often.min(initial=wrong), wrong)} of the output is not in the input (so often)")
        return None
    order = np.empty(wrong, dtype=np.int64)
    order[by_number] = given.by_number[given.starts[ordered] + nth]
    return order


def treatments(given, s):
    """(hold, burst) by kind, and the kind of every packet."""
    default = (HOLDS[s.hold], s.burst)
    classes, heavy = "classes" in s.extra, "heavy" in s.extra
    if (classes, heavy, s.bypass) not in given.known_kinds:
        kinds = [given.kind(i) if classes else 0 for i in range(len(given.records))]
        if heavy:
            kinds = [int(heavy) for heavy in given.heavy()]
        if s.bypass:
            kinds = [None if given.syn(i) else k for i, k in enumerate(kinds)]
        given.known_kinds[classes, heavy, s.bypass] = kinds
    kinds = given.known_kinds[classes, heavy, s.bypass]
    others = [(200 * US, 8), (0, s.burst)] if classes else [(200 * US, 8)] if heavy else []
    return [default, *others], kinds


def invariants(case, given, s, out, order, result):
    """What holds for any setting, from the files alone."""
    times = np.array(list(map(TIME, out.records)), dtype=np.int64)
    flows = given.flow_array[order]
    how, kinds = treatments(given, s)
    holds = {None: 0, **{k: hold for k, (hold, _) in enumerate(how)}}
    hold = np.array(list(map(holds.get, kinds)), dtype=np.int64)[order]
    if "stamp" in s.extra:
        case.check(all(r.time == given.records[i].time for r, i in zip(out.records, order)), "times were not kept")
    else:
        case.check(bool((np.diff(times) >= 0).all()), "written times decrease")
        late = times - given.times[order]
        if "ack" not in s.extra:
            case.check(bool((late >= 0).all()), f"a packet left {-late.min()} ns before it came" if len(late) else "")
        over = np.flatnonzero(late > hold)
        if "ack" in s.extra:  # of equal packets it can't be known which one was left out
            over = [i for i in over if len(given.places[tuple(out.records[i][1:])]) == 1]
        case.check(len(over) == 0, f"{len(over)} packets were held too long, the first at {over[:1]}")
        longest = int(late[flows >= 0].max(initial=0))
        if "ack" not in s.extra:
            case.equal(result["delay_ns"]["max"], longest if given.classified else None, "delay_ns.max")
            if given.classified:
                case.close(result["delay_ns"]["mean"], float(late[flows >= 0].mean()), "delay_ns.mean", 1e-9)
        case.check(bool((late[flows < 0] == 0).all()), "packets without a flow were held")
        trains(case, given, s, order, times, flows)
    if "tcp_order" not in s.extra:
        by_flow = np.argsort(flows, kind="stable")
        same = flows[by_flow][1:] == flows[by_flow][:-1]
        case.check(bool((np.diff(order[by_flow])[same] > 0).all()), "packets of a flow changed places")
    others = order[flows < 0]
    case.check(bool((np.diff(others) > 0).all()), "packets without a flow changed places")
    return flows


def trains(case, given, s, order, times, flows):
    """Of the packets of a flow that leave at an instant, those that came earlier were one train."""
    if s.extra & {"classes", "heavy"}:
        return
    waited = (given.times[order] < times) & (flows >= 0)
    _, instants = np.unique(times[waited], return_inverse=True)
    _, sizes = np.unique(instants * (1 + flows.max(initial=0)) + flows[waited], return_counts=True)
    case.check(int(sizes.max(initial=0)) <= s.burst, "a train is longer than the burst")


def counters(case, given, s, out, flows, result):
    """What the report says, against the files and against itself."""
    n = len(given.records)
    case.equal(result["packets_in"], n, "packets_in")
    case.equal(result["packets_out"], len(out.records), "packets_out")
    case.equal(result["packets_out"] + result["packets_coalesced"], n, "packets_out + packets_coalesced")
    case.equal(result["packets_unclassified"], n - given.classified, "packets_unclassified")
    case.equal(sum(result["released"].values()), result["trains"], "sum of released")
    case.equal(sorted(result["released"]), sorted(CAUSES), "keys of released")
    case.equal(result["dropped"], {}, "dropped")
    lengths = {b["from"]: b["count"] for b in result["train_lengths"]}
    case.equal(sum(lengths.values()), result["trains"], "sum of train_lengths")
    case.equal(sum(k * v for k, v in lengths.items()), given.classified, "packets in train_lengths")
    case.check(all(k <= max(s.burst, 8) for k in lengths), "train_lengths has trains longer than the burst")
    if result["trains"]:
        case.close(result["mean_train"] * result["trains"], given.classified, "mean_train * trains")
    case.equal(result["slf_in"], slf(given.flow_array), "slf_in")
    case.equal(result["slf_out"], slf(flows), "slf_out")
    case.check(result["held_max"] <= capacity_of(s), f"held_max {result['held_max']} is over the capacity")
    case.equal(result["truncated_at_byte"] is None, given.capture.whole, "truncated_at_byte")


def option(s, name, otherwise):
    return s.options[s.options.index(name) + 1] if name in s.options else otherwise


def capacity_of(s):
    return int(option(s, "--capacity", 8192))


def agree(case, given, s, out, order, result):
    """The twin's word on every packet; of several workers' only on the times."""
    how, kinds = treatments(given, s)
    second = option(s, "--admit", "always") == "second"
    twin = Twin(given.time_list, given.flows, kinds, how, s.policy, second, capacity_of(s))
    want, got = twin.out, list(zip(order.tolist(), map(TIME, out.records)))
    if given.classified < len(given.records):
        want, got = ([p for p in packets if given.flows[p[0]] is not None] for packets in (want, got))
    if "workers" in s.extra:
        got, want = sorted(got), sorted(want)
    elif "tcp_order" in s.extra:
        same_bag = lambda packets: sorted((time, given.flows[i], i) for i, time in packets)
        got, want = same_bag(got), same_bag(want)
    for n, (a, b) in enumerate(zip(got, want) if got != want else ()):
        if not case.check(a == b, f"packet {n} out is (number in, time) {a}, the twin has {b}"):
            return
    if "tcp_order" in s.extra:
        ascending(case, given, order, twin.trains)
    released = Counter(cause for cause, _ in twin.trains)
    case.equal(result["released"], {c: released[c] for c in CAUSES}, "released")
    case.equal(result["packets_bypassed"], twin.bypassed, "packets_bypassed")
    futile = [p[0] for _, p in twin.trains if len(p) == 1]
    left = dict(twin.out)
    case.equal(result["futile_wait_ns"], sum(left[i] - given.time_list[i] for i in futile), "futile_wait_ns")


def ascending(case, given, order, trains):
    """With --tcp-order, data segments of a train ascend by sequence number, and nothing else changes its
    place."""
    place = {i: n for n, i in enumerate(order.tolist())}
    for _, packets in trains:
        tcp = [given.tcp[i] for i in packets]
        got = sorted(packets, key=place.get)
        if None in tcp or any(t.flags & 0x06 for t in tcp):
            if not case.check(got == packets, f"packets {packets} left as {got}, though it is not for them"):
                return
        elif all(t.payload >= 0 for t in tcp):
            data = {i for i, t in zip(packets, tcp) if t.payload > 0 or t.flags & 1}
            first = given.tcp[next(i for i in packets if i in data)].seq if data else 0
            away = lambda i: (given.tcp[i].seq - first + 2**31) % 2**32
            ranks = [away(i) for i in packets if i in data]
            if data and max(ranks) - min(ranks) >= 2**31:
                want = packets
            else:
                sent = iter(sorted((i for i in packets if i in data), key=away))
                want = [next(sent) if i in data else i for i in packets]
            if not case.check(got == want, f"packets {packets} left as {got}, by sequence numbers they are {want}"):
                return


def acks(case, given, order, out, s):
    """Only pure ACKs may be missing, and each only if a later one of its flow that left in time says all it
    said."""
    kept = dict(zip(order.tolist(), (r.time for r in out.records)))
    by_flow = defaultdict(list)
    for i, flow in enumerate(given.flows):
        by_flow[flow].append(i)
    ambiguous = {i for places in given.places.values() if len(places) > 1 for i in places}
    for i in set(range(len(given.records))) - set(kept) - ambiguous:
        tcp = given.tcp[i]
        if not case.check(tcp is not None and tcp.flags == 0x10 and tcp.payload == 0, f"packet {i} is lost, no pure ACK"):
            return
        line = by_flow[given.flows[i]]
        later = next((j for j in line[line.index(i) + 1 :] if j in kept), None)
        if not case.check(later is not None, f"packet {i} is lost and none of its flow follows"):
            return
        if later in ambiguous:
            continue
        newer = given.tcp[later]
        pure = newer is not None and newer.flags == 0x10 and newer.payload == 0
        case.check(pure and 0 < (newer.ack - tcp.ack) % 2**32 < 2**31, f"packet {later} doesn't stand for packet {i}")
        case.check(kept[later] <= given.times[i] + HOLDS[s.hold], f"packet {i} would have left earlier than {later}")


def shape(case, given, out, output):
    """The file itself: format by its name, link types, snap lengths for which libpcap reads every packet."""
    want = "pcapng" if ".pcapng" in output.name else "pcap"
    case.equal(out.format, want, "format of the output")
    case.check(out.whole, "the output is not a whole capture")
    case.equal(out.links, given.capture.links, "link types")
    if want == "pcapng":
        case.check(not any(out.snap_lengths), "an interface has a snap length")
    else:
        case.check(min(out.snap_lengths) >= 262_144, "a snap length that packets may exceed")


def reframe(binary, job, scratch):
    path, s = job
    given, case = load(path), harness.Case()
    output = scratch / s.output
    run = harness.Run(binary, arguments(path, s, output))
    command = run.command.replace(str(scratch), "/tmp")
    result = run.json()
    out = capture.read(output)
    order = match(case, given, out)
    if order is not None:
        flows = invariants(case, given, s, out, order, result)
        counters(case, given, s, out, flows, result)
        if "ack" in s.extra:
            acks(case, given, order, out, s)
        else:
            case.equal(result["packets_coalesced"], 0, "packets_coalesced")
            case.equal(len(out.records), len(given.records), "packets out")
            if not ("stamp" in s.extra or {"workers", "capacity"} <= s.extra):
                agree(case, given, s, out, order, result)
        shape(case, given, out, output)
    yield command, case.wrong
    for name in ("again", "preload", "stdin", "analyze", "outside", "compressed"):
        if name in s.extra:
            yield globals()[name](binary, path, s, output, result, scratch)


def same_bytes(binary, words, output, other, stdin=None):
    run, case = harness.Run(binary, words, stdin), harness.Case()
    case.equal(run.status, 0, "exit status")
    case.check(other.exists() and output.read_bytes() == other.read_bytes(), f"other bytes than {output.name} before")
    return run.command.replace(str(output.parent), "/tmp"), case.wrong


def again(binary, path, s, output, _, scratch):
    """The same command gives the same bytes."""
    other = scratch / f"again-{output.name}"
    return same_bytes(binary, arguments(path, s, other), output, other)


def preload(binary, path, s, output, _, scratch):
    """So does reading it all first."""
    other = scratch / f"preload-{output.name}"
    return same_bytes(binary, arguments(path, s, other) + ["--preload"], output, other)


def stdin(binary, path, s, output, _, scratch):
    """And reading it from a pipe."""
    other = scratch / f"stdin-{output.name}"
    return same_bytes(binary, arguments("-", s, other), output, other, stdin=path)


def compressed(_, path, s, output, result, scratch):
    """What is in a compressed file is what would be in a plain one."""
    case = harness.Case()
    done = {".gz": lambda: gzip.decompress(output.read_bytes()),
            ".zst": lambda: subprocess.run(["zstd", "-dc", output], capture_output=True, check=True).stdout}
    plain = capture.parse(done[output.suffix]())
    case.check(plain.whole and len(plain.records) == result["packets_out"], "not what a plain file has")
    return f"decompressing {output.name} of {path}", case.wrong


def analyze(binary, path, s, _, result, __):
    """What `analyze` promises for this hold and burst is what came out."""
    case = harness.Case()
    run = harness.Run(binary, ["analyze", path, "--format", "json", "--window", s.hold, "--burst", s.burst])
    window = run.json()["ip"]["windows"][0]
    case.equal(window["slf_after"], result["slf_out"], "slf_after against slf_out of reframe")
    case.equal(window["batches"], result["trains"], "batches against trains of reframe")
    return run.command, case.wrong


def outside(_, path, s, output, result, __):
    """Others can read the written file and count its packets; they don't look into these."""
    case = harness.Case()
    for tool, words in (("capinfos", ["-c", "-M", "-T", "-r"]), ("tshark", ["-n", "--disable-protocol", "eth", "-T", "fields", "-e", "frame.number", "-r"])):
        if not harness.have(case, tool):
            continue
        done = subprocess.run([tool, *words, output], capture_output=True, check=False, text=True)
        case.equal(done.returncode, 0, f"{tool}: {done.stderr.strip()[:200]}")
        if done.returncode == 0:
            lines = done.stdout.split()
            count = int(lines[-1].replace(",", "")) if lines else 0
            case.equal(count, result["packets_out"], f"packets by {tool}")
    return f"capinfos, tshark on {output.name} of {path}", case.wrong


def loop(binary, path, scratch):
    """Three turns of a capture have three times its packets, in the order of time, each turn as the one
    before."""
    given, case = load(path), harness.Case()
    output = scratch / "loop.pcapng"
    run = harness.Run(binary, ["reframe", path, output, "--loop", 3, "--format", "json", "--bypass", "none"])
    result = run.json()
    out = capture.read(output)
    case.equal(result["packets_in"], 3 * len(given.records), "packets_in")
    times = [r.time for r in out.records]
    case.equal(times, sorted(times), "written times never decrease")
    bag = Counter((r.link, r.length, r.data) for r in out.records)
    case.check(bag == Counter({k: 3 * len(v) for k, v in given.places.items()}), "not every packet three times")
    yield run.command.replace(str(scratch), "/tmp"), case.wrong


def catches(child, number):
    """True if a program has a handler for this signal by now."""
    status = Path(f"/proc/{child.pid}/status").read_text(encoding="ascii")
    caught = next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
    return int(caught, 16) >> (number - 1) & 1


def interrupted(binary, path, scratch):
    """Who waits for a pipe that has nothing ends at the first interrupt, and leaves no file."""
    case, output = harness.Case(), scratch / "interrupted.pcapng"
    for words in (["reframe", "-", output], ["reframe", "-", output, "--preload"], ["reframe", "-", "null", "--workers", 2],
                  ["measure", "-", "--task", "cardinality"], ["run", "-i", "-", "-o", output, "-e", "counter"]):
        name = " ".join(map(str, words))
        with subprocess.Popen([binary, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            child.stdin.write(path.read_bytes()[:2000])
            child.stdin.flush()
            case.check(harness.until(lambda child=child: catches(child, signal.SIGINT), 20, 0.01), f"{name}: it catches no interrupt")
            time.sleep(0.2)
            child.send_signal(signal.SIGINT)
            try:
                case.equal(child.wait(timeout=20), 130, f"{name}: exit status")
            except subprocess.TimeoutExpired:
                case.check(False, f"{name}: it goes on")
                child.kill()
        case.check(not output.exists(), f"{name}: a file is left")
    yield f"an interrupt of those who wait for a pipe ({path})", case.wrong


def coarse(path, scratch):
    """A copy of a capture whose clock ticks only every ms: many packets come, and many trains leave, at one
    instant. Some packets of a flow are out of order in it."""
    read = capture.read(path)
    records = [r._replace(time=r.time // COARSE * COARSE) for r in read.records]
    for i in range(0, len(records) - 3, 5):
        a, b = records[i], records[i + 3]
        records[i], records[i + 3] = b._replace(time=a.time), a._replace(time=b.time)
    file = scratch / f"coarse-{path.stem}.pcap"
    capture.write_pcap(file, records, read.links[0])
    return file


def ticking(binary, path, scratch):
    """Every policy and burst on a coarse copy, where the order among trains that leave together shows."""
    file = coarse(path, scratch)
    for policy in POLICIES:
        for hold, burst in (("64us", 32), ("1ms", 5), ("100ms", 32), ("100ms", 2)):
            for options, extra in (([], set()), (["--workers", 3], {"workers"}), (["--capacity", 20], set())):
                s = setting(hold, burst, policy, burst != 5, options, extra, "out.pcapng")
                for command, wrong in reframe(binary, (file, s), scratch):
                    yield f"{command} (a coarse copy of {path})", wrong
    s = setting("100ms", 32, options=["--tcp-order"], extra={"tcp_order"})
    for command, wrong in reframe(binary, (file, s), scratch):
        yield f"{command} (a coarse copy of {path})", wrong


def settings(given, big):
    """The settings for a capture: all of the grid where it is small."""
    monotone = not given.backwards
    for p, policy in enumerate(POLICIES):
        for h, hold in enumerate(HOLDS):
            for b, burst in enumerate(BURSTS):
                if big and (p + h + b) % 5:
                    continue
                promise = {"analyze"} if policy == "waiting" and monotone and hold != "0" else set()
                # The promise is for --bypass none; of the other policies, some with the default.
                yield setting(hold, burst, policy, bool(p + h + b & 1) and not promise, extra=promise)
    out = "out.pcap" if len(set(given.capture.links)) == 1 else "out.pcapng"
    yield setting("1ms", 32, extra={"again", "preload", "stdin", "outside"}, output=out)
    yield setting("1ms", 32, "waiting", extra={"compressed"}, output=f"{out}.gz")
    yield setting("1ms", 5, "shortest", False, extra={"compressed"}, output="out.pcapng.zst")
    yield setting("1ms", 32, options=["--admit", "second"], extra={"outside"})
    yield setting("64us", 5, "shortest", False, options=["--admit", "second"])
    for policy in POLICIES[: 1 if big else 3]:
        yield setting("100ms", 32, policy, options=["--compress", "ack"], extra={"ack"})
        yield setting("10us", 5, policy, options=["--stamp", "arrival"], extra={"stamp"})
        yield setting("1ms", 32, policy, options=["--workers", 3], extra={"workers", "again"})
        yield setting("1ms", 32, policy, options=[w for c in CLASSES for w in ("--class", c)], extra={"classes"})
        heavy = ["--class", HEAVY, "--top-window", TOP_WINDOW, "--workers", 1 + POLICIES.index(policy)]
        yield setting("1ms", 32, policy, options=heavy, extra={"heavy", "again"})
    # Super-frames are cut again on their way into a file: what comes out is what comes out without them.
    yield setting("1ms", 32, options=["--compress", "gro"], extra={"gro"})
    yield setting("100ms", 256, "waiting", options=["--compress", "gro", "--gro-segments", 9], extra={"gro"})
    yield setting("100ms", 256, options=["--tcp-order"], extra={"tcp_order"})
    yield setting("100ms", 32, options=["--tcp-order", "--compress", "ack"], extra={"tcp_order", "ack"})
    for capacity in (1, 7):
        yield setting("100ms", 32, POLICIES[capacity % 3], options=["--capacity", capacity], extra={"preload"})
        yield setting("1ms", 5, "waiting", False, options=["--capacity", capacity])
    yield setting("1ms", 32, options=["--workers", 3, "--capacity", 7], extra={"workers", "capacity", "again"})


def jobs(where):
    paths = sorted((where / "multi").iterdir()) + sorted((where / "large").iterdir())
    first = paths[0]
    for path in paths:
        given = load(path)
        chosen = list(settings(given, len(given.records) > BIG))
        if len(given.records) > 5 * BIG:
            chosen = chosen[::7]
        yield from ((path, s) for s in chosen)
        if path == first:
            yield path, "interrupted"
        if len(given.records) < BIG:
            yield path, "loop"
            yield path, "ticking"


def work(binary, job, scratch):
    path, what = job
    return globals()[what](binary, path, scratch) if isinstance(what, str) else reframe(binary, job, scratch)


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=12)
