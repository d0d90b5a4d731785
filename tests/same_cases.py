"""What `same_bytes.py` runs with two builds: inputs, settings and pipelines, fixed lists and random ones.

A case is a list of runs in one directory, so that later ones may use files of earlier ones (states of
`measure`).
"""

import random
import struct

import capture
import connections
import fragments
import harness
import malformed
import packets
import same_graphs
from check_measure import COMBINATIONS, KEYS, PAIR_KEYS
from same_graphs import BYPASS_RULES, CAMPUS, JSON, LARGE, Call, Case

HOLDS = ("0", "100ns", "10us", "64us", "64us", "1ms", "100ms", "4s")
BURSTS = (1, 2, 5, 32, 32, 256)
POLICIES = ("oldest", "waiting", "shortest")
BYPASSES = ("none", "tcp syn", "tcp syn; udp dst port 53; dscp ef", "@bypass.rules", "length 0-100 or fragment", "tcp fin or icmp")
CLASSES = ("dns: udp port 53 => bypass", "web: tcp port 80,443 => hold=200us, burst=8", "other: udp => hold=0",
           "v6: ip6 => hold=1ms, weight=3", "small: length 0-120 => burst=4, weight=0.5", "frag: fragment => bypass")
OUTPUTS = ("out.pcapng", "out.pcapng", "out.pcap", "out.pcap.gz", "out.pcapng.gz", "out.pcapng.zst", "-", "null")
SYNTH = {
    "plain": ("--flows", 600, "--packets", 12_000, "--slf", 2, "--size", "64..1514", "--rate", "1mpps", "--seed", 3),
    "tcp": ("--flows", 400, "--packets", 12_000, "--slf", 3, "--protocol", "tcp", "--ipv6", 0.3, "--vlan", 0.2, "--size", "90..1514",
            "--rate", "200kpps", "--seed", 5),
    "mix": ("--flows", 500, "--packets", 10_000, "--slf", 4, "--protocol", "mix:0.6", "--ipv6", 0.3, "--size", "90..600", "--zipf", 1.1, "--arrivals", "poisson",
            "--train", "geometric", "--seed", 9),
    "campus": ("--profile", "campus", "--packets", 20_000, "--copies", 2, "--seed", 7, "--snap-len", 96),
}


def prepare(binary, where, inputs):
    """Makes the inputs that aren't captures of somebody: they are the same for every run of the
    comparison."""
    for name, words in SYNTH.items():
        harness.Run(binary, ["synth", *words, inputs / f"{name}.pcap", *JSON]).json()
    near, far = bytes.fromhex("020000000005"), bytes.fromhex("020000000001")
    for version in (4, 6):
        frames = malformed.frames(malformed.Flows(11, version).batch(8000), near, far)
        malformed.write(inputs / f"malformed{version}.pcap", frames, range(0, len(frames) * 2000, 2000))
        packets.write(inputs / f"fragments{version}.pcap", fragments.Datagrams(version, 2500, 5, far + near).frames, 1000)
    packets.write(inputs / "connections.pcap", connections.frames(connections.Connections(3).stream(12_000), near, far), 1000)
    (inputs / "connections.rules").write_text(connections.rules(3, 150))
    for path in [CAMPUS, *captures(where)]:
        if path.stat().st_size < LARGE:
            addressed(path, inputs / f"to-router-{path.name.split('.')[0]}.pcap", far)
    whole = CAMPUS.read_bytes()
    (inputs / "cut.pcap.gz").write_bytes(whole[: len(whole) * 2 // 3])
    (inputs / "not-a-capture.txt").write_text("Nothing that could be read.\n")
    (inputs / "empty.pcap").write_bytes(b"")
    (inputs / "header.pcap").write_bytes(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, 1))


def addressed(path, to, mac):
    """A copy of a capture, its unicast frames addressed to a router, with no pause longer than a second in
    it."""
    out, before, now = [], None, 0
    for record in capture.read(path).records:
        if record.link == 1 and record.time is not None:
            now = record.time if before is None else now + max(0, min(record.time - before, 10**9))
            before = record.time
            data = mac + record.data[6:] if len(record.data) > 14 and not record.data[0] & 1 else record.data
            out.append(record._replace(time=now, data=data))
    capture.write_pcap(to, out, 1)


def captures(where):
    """The shared captures that have traffic of several flows, the largest last."""
    if where is None:
        return []
    return sorted([*(where / "multi").iterdir(), *(where / "large").iterdir()], key=lambda path: path.stat().st_size)


def cases(where, inputs, quick, seed):
    """Every case; a tenth of those that are many where it shall be quick."""
    rng = random.Random(seed)
    made = sorted(path for path in inputs.iterdir() if path.name.endswith(".pcap"))
    main = [CAMPUS, *captures(where), *made]
    odd = sorted((where / "odd").iterdir()) if where else []
    yield from fixed(inputs)
    for n, path in enumerate(main):
        large = path.stat().st_size > LARGE
        yield from reframes(path, rng, 4 if quick or large else 45)
        yield from analyses(path, rng, 1 if quick or large else 4)
        yield from measures(path, rng, 3 if quick else 6 if large else 14)
        yield from same_graphs.cases(path, rng, n, 3 if quick else 5 if large else 30)
    yield from merged(main, rng, 4 if quick else 25)
    yield from states(rng, 4 if quick else len(COMBINATIONS))
    yield from odd_captures(odd[:: 10 if quick else 1], rng)
    yield from same_graphs.chains(inputs)
    yield from same_graphs.configs([CAMPUS, *captures(where)[:: 4 if quick else 1]])
    yield from same_graphs.through_memory(inputs)


def reframe_words(rng, path, output):
    """One run of `reframe` with random settings."""
    words = ["reframe", path, output, *JSON, "--hold", rng.choice(HOLDS), "--burst", rng.choice(BURSTS), "--policy", rng.choice(POLICIES)]
    if rng.random() < 0.7:
        words += ["--bypass", rng.choice(BYPASSES)]
    if rng.random() < 0.3:
        words += [word for text in rng.sample(CLASSES, rng.randint(1, 4)) for word in ("--class", text)]
    for share, option, values in (
            (0.2, "--capacity", (1, 2, 7, 100)), (0.1, "--capacity-bytes", ("2KiB", "64KiB")), (0.15, "--flows", (1, 3, 64, 1000)),
            (0.15, "--admit", ("second",)), (0.25, "--compress", ("ack",)), (0.2, "--tunnel", ("inner",)),
            (0.15, "--stamp", ("arrival",)), (0.25, "--workers", (2, 3, 8)), (0.1, "--loop", (2, 3))):
        if rng.random() < share:
            words += [option, rng.choice(values)]
    words += ["--tcp-order"] if rng.random() < 0.25 else []
    return words + (["--preload"] if rng.random() < 0.15 else [])


def reframes(path, rng, count):
    """`reframe` on a capture: plain settings, and random ones."""
    calls = [Call(("reframe", path, "out.pcapng", *JSON)), Call(("reframe", path, "out.pcapng")),
             Call(("reframe", "-", "-", "--hold", "1ms", "--tunnel", "inner", "--tcp-order"), stdin=path),
             Call(("reframe", path, "out.pcap", *JSON, "--workers", 3, "--strict", "--policy", "waiting"))]
    for _ in range(count):
        words, output = [], rng.choice(OUTPUTS)
        given = "-" if rng.random() < 0.1 else path
        words = reframe_words(rng, given, output)
        calls.append(Call(tuple(words), stdin=path if given == "-" else None))
    return split(f"reframe {path.name}", calls, {"bypass.rules": BYPASS_RULES}, path)


def split(name, calls, files, path, size=8):
    """Cases of a few runs each, so that none takes long."""
    weight = path.stat().st_size
    for at in range(0, len(calls), size):
        some = calls[at:at + size]
        yield Case(name, some, files, weight * len(some))


def analyses(path, rng, count):
    calls = [Call(("analyze", path)), Call(("analyze", path, *JSON, "--report", "page.html", "--parquet", "flows.parquet"))]
    for _ in range(count):
        windows = ",".join(rng.sample(("0", "1us", "16us", "64us", "1ms", "100ms", "1s"), rng.randint(1, 4)))
        words = ["analyze", path, *JSON, "--window", windows, "--burst", rng.choice((1, 2, 32, 1000)), "--threads", rng.choice((1, 2, 3))]
        calls.append(Call((*words, "--top", rng.choice((0, 3, 50)), "--tunnel", rng.choice(("inner", "outer")))))
    if path == CAMPUS:
        calls.append(Call(("recommend", path, "--holds", "0,16us,1ms", "--queue", 256, "--batch", 32, "--costs", "costs.json", *JSON)))
    costs = '{"per_train_ns": 500, "per_packet_ns": 200, "per_batch_ns": 300, "per_held_packet_ns": 60, "empty_poll_ns": 90}'
    return split(f"analyze {path.name}", calls, {"costs.json": costs}, path)


def measures(path, rng, count):
    calls = []
    for _ in range(count):
        task, sketch = rng.choice(COMBINATIONS)
        words = ["measure", path, *JSON, "--task", task, "--sketch", sketch, "--key", rng.choice(PAIR_KEYS.get(task, KEYS))]
        words += ["--memory", rng.choice(("64KiB", "1MiB")), "--epoch", rng.choice(("2000000p", "5000p", "60s"))]
        words += ["--aggregate", rng.choice(("grr", "lru", "off")), "--top", rng.choice((1, 20, 500))]
        words += ["--compare", "exact"] if rng.random() < 0.6 else []
        words += ["--weight", "bytes"] if rng.random() < 0.3 and task != "size-distribution" else []
        words += ["--tunnel", "inner"] if rng.random() < 0.2 else []
        words += ["--seed", 77] if rng.random() < 0.3 else []
        calls.append(Call((*words, *(["--save", "one.state"] if rng.random() < 0.5 else []))))
    return split(f"measure {path.name}", calls, {}, path)


def states(rng, count):
    """States of every sketch: saved, merged, asked."""
    for task, sketch in rng.sample(list(COMBINATIONS), min(count, len(COMBINATIONS))):
        words = ("--task", task, "--sketch", sketch, "--key", PAIR_KEYS.get(task, KEYS)[0], *JSON)
        keep = (".state",)
        calls = [Call(("measure", CAMPUS, *words, "--save", "a.state"), keep=keep),
                 Call(("measure", "synth:packets=9k,seed=3", *words, "--save", "b.state"), keep=keep),
                 Call(("measure", "merge", "a.state", "b.state", "--save", "both.state", *JSON), keep=keep),
                 Call(("measure", "query", "both.state", "--task", task, *JSON), keep=keep),
                 Call(("measure", "query", "a.state", "--top", 3), keep=keep)]
        yield Case(f"measure states of {sketch}", calls, {}, CAMPUS.stat().st_size * 3)


def odd_captures(paths, rng):
    """Damaged, rare and tiny captures: something of each verb."""
    for path in paths:
        calls = [Call(("analyze", path, *JSON, "--tunnel", rng.choice(("inner", "outer")))), Call(("reframe", path, "out.pcapng", *JSON)),
                 Call(tuple(reframe_words(rng, path, rng.choice(OUTPUTS))))]
        task, sketch = rng.choice(COMBINATIONS)
        calls.append(Call(("measure", path, *JSON, "--task", task, "--sketch", sketch, "--key", rng.choice(PAIR_KEYS.get(task, KEYS)))))
        graph, files = same_graphs.random_graph(rng, None)
        calls.append(Call(("run", "-i", path, "-o", "out.pcapng", *JSON, "-e", graph)))
        yield Case(f"odd {path.name}", calls, {"bypass.rules": BYPASS_RULES, **files}, path.stat().st_size)


def merged(paths, rng, count):
    """Several captures in one run of `analyze`, and several sources of one pipeline, merged by time."""
    small = [path for path in paths if path.stat().st_size < LARGE]
    for _ in range(count):
        some = rng.sample(small, rng.randint(2, min(4, len(small))))
        weight = sum(path.stat().st_size for path in some) * 3
        graph, files = same_graphs.sources(rng, some)
        calls = [Call(("run", "pipeline.toml", *JSON)), Call(("analyze", *some, *JSON))]
        yield Case(f"merged {' '.join(path.name for path in some)}", calls, {"pipeline.toml": graph, **files}, weight)


MODEL = ("--service-base", "600ns", "--service-per-packet", "77ns", *JSON)
FIXED = {
    "model": [
        ("model", "solve", "--queue", 512, "--batch", 32, "--rate", "9mpps", "--simulate", 2000, *MODEL),
        ("model", "solve", "--queue", 256, "--batch", 64, "--interarrival", "negbin", "--cv", 2, "--mean", 120, *MODEL),
        ("model", "sweep", "--queue", 256, "--batch", 32, "--loads", "0.5,1.1", "--processes", "poisson,negbin:2", *MODEL),
        ("model", "dimension", "--rate", "20mpps", "--queues", 512, "--batches", 32, "--slot", "10ns", *MODEL),
        ("model", "fit", "polls.csv", *JSON), ("model", "compare", "polls.csv", *JSON, "--report", "page.html"),
        ("slice", "model", "--size", "64,512,1518", "--rate", "1mpps,7mpps", *JSON), ("slice", "model", "--explain"),
        ("slice", "size", "--link", "25gbps", "--service", "50us", *JSON), ("slice", "switch", "--card", "40,100", *JSON),
    ],
    "synth": [
        ("synth", "--packets", 5000, "--seed", seed, *words, file, *JSON)
        for seed, (file, words) in enumerate((
            ("a.pcap", ("--flows", 100, "--slf", 3, "--order", "round-robin", "--size", "60")),
            ("b.pcapng", ("--size", "imix", "--zipf", 1.2, "--rate", "10gbps", "--arrivals", "poisson")),
            ("c.pcap.gz", ("--protocol", "mix:0.5", "--ipv6", 0.5, "--vlan", 0.5, "--train", "geometric", "--slf", 2.5)),
            ("d.pcapng.zst", ("--profile", "campus", "--copies", 3)), ("e.pcap", ("--active", 16, "--flows", 1000, "--snap-len", 80)),
            ("f.pcap", ("--protocol", "tcp", "--size", "64:3,1500:1")), ("-", ()), ("g.pcap", ("--slf", 0.5)), ("h.pcap", ("--flows", 0))))
    ],
    "words": [
        ("list",), ("list", *JSON), ("list", "--schema"), ("completions", "bash"), ("man",), ("--version",), ("--help",),
        *((verb, "--help") for verb in ("analyze", "reframe", "run", "graph", "validate", "list", "synth", "measure", "lab", "model", "slice",
                                        "recommend", "top")),
        *(("list", name) for name in same_graphs.STAGES),
    ],
    "refused": [
        ("reframe",), ("reframe", "nothing.pcap", "out.pcap"), ("reframe", CAMPUS, "out.txt"), ("reframe", CAMPUS, "out.pcap", "--hold", "5s"),
        ("reframe", CAMPUS, "out.pcap", "--hold", "64"), ("reframe", CAMPUS, "out.pcap", "--burst", "0"), ("analyze",),
        ("reframe", CAMPUS, "null", "--bypass", "tcp prot 80"), ("reframe", CAMPUS, "null", "--class", "a: udp"), ("nothing",),
        ("measure", CAMPUS, "--task", "entropy", "--sketch", "mrac"), ("measure", CAMPUS, "--key", "port"), ("run",), ("run", "nothing.toml"),
        ("reframe", CAMPUS, "null", *JSON, "--fail-if", "slf_out<100"), ("analyze", CAMPUS, "--fail-if", "nothing<1"),
        *(("run", "-i", CAMPUS, "-o", "null", "-e", graph) for graph in same_graphs.WRONG),
        *(("validate", "-i", "synth:", "-o", "null", *JSON, "-e", graph) for graph in same_graphs.WRONG),
    ],
}


def fixed(inputs):
    """What needs no capture, and captures that are none."""
    polls = "time_ns,batch\n" + "".join(f"{n * 1000 + (n * n) % 97 * 9},{5 + n * 7 % 11}\n" for n in range(400))
    for name, lists in FIXED.items():
        for n in range(0, len(lists), 6):
            calls = [Call(words, known=name not in ("refused", "words")) for words in lists[n:n + 6]]
            yield Case(f"fixed {name}", calls, {"polls.csv": polls}, 10**8 if name == "model" else 1)
    calls = []
    for file in ("cut.pcap.gz", "not-a-capture.txt", "empty.pcap", "header.pcap"):
        path = inputs / file
        calls += [Call(("analyze", path, *JSON)), Call(("reframe", path, "out.pcapng", *JSON)), Call(("reframe", path, "o.pcap", "--strict")),
                  Call(("measure", path, *JSON)), Call(("run", "-i", path, "-o", "out.pcap", *JSON, "-e", "reframe -> counter"))]
    yield Case("fixed damaged", calls)

