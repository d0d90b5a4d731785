#!/usr/bin/env python3
"""`analyze`, `measure` and `reframe` on a part of a trace, by group, on several traces, and as Parquet.

What comes out is held against dictionaries over packets that `capture.py` reads, which knows nothing of the
product, and against the same command over a capture that has only the packets that were asked for. DuckDB,
Polars and pandas read the Parquet files, in a virtual environment of their own.
"""

import collections
import fcntl
import functools
import ipaddress
import json
import os
import subprocess
import sys
from pathlib import Path

import capture
import harness
from harness import ROOT, Case, Run

CAMPUS = ROOT / "traces/campus.pcap.gz"
WINDOWS, BURST = (16_000, 64_000, 128_000), 32
PORTS = {6: "tcp", 17: "udp", 132: "sctp"}
ALONE = {1: "icmp", 58: "icmpv6"}


@functools.lru_cache(maxsize=1 << 16)
def written(address):
    """An address as it is written: few occur in many packets, and text is compared faster than `ipaddress`
    compares."""
    return str(ipaddress.ip_address(bytes(address)))


def flow_of(record):
    """VLAN ids, IP version, source, destination, protocol, ports; None where a packet has no flow."""
    key = capture.flow_key(record.link, record.data)
    if key is None:
        return None
    vlans, version, addresses, protocol, ports = key
    half = len(addresses) // 2
    src, dst = written(addresses[:half]), written(addresses[half:])
    return tuple(vlans), version, src, dst, protocol, int.from_bytes(ports[:2], "big"), int.from_bytes(ports[2:], "big")


def keyed(records):
    """(time, length, key) of every packet that has a flow."""
    return [(r.time, r.length, key) for r in records if (key := flow_of(r)) is not None]


def by_port(key):
    *_, protocol, _, port = key
    return f"{port}/{PORTS[protocol]}" if protocol in PORTS else ALONE.get(protocol, f"protocol {protocol}")


def trains(times, window):
    """(number, of one packet) of a flow's trains."""
    number = alone = size = 0
    opened = None
    for at in times:
        if size in (0, BURST) or at - opened >= window:
            opened, size = at, 0
            number, alone = number + 1, alone + 1
        size += 1
        alone -= size == 2
    return number, alone


def by_flow(packets):
    """By flow, packets, bytes, runs and trains by window."""
    flows, before, clock = {}, None, 0
    for at, length, key in packets:
        clock = max(clock, at)
        flow = flows.get(key)
        if flow is None:
            flow = flows[key] = {"packets": 0, "bytes": 0, "runs": 0, "flows": 1, "times": []}
        flow["packets"] += 1
        flow["bytes"] += length
        flow["runs"] += key != before
        flow["times"].append(clock)
        before = key
    for flow in flows.values():
        times = flow.pop("times")
        for window in WINDOWS:
            flow[f"batches {window}"], flow[f"alone {window}"] = trains(times, window)
    return flows


def grouped(flows, name):
    """The same of groups of flows, by name."""
    groups = collections.defaultdict(collections.Counter)
    for key, flow in flows.items():
        for group in name(key):
            groups[group].update(flow)
    return groups


def compare_group(case, got, want, what):
    for key in ("packets", "bytes", "flows", "runs"):
        case.equal(got[key], want[key], f"{what}: {key}")
    case.close(got["slf"], want["packets"] / want["runs"], f"{what}: slf")
    for window in got["windows"]:
        ns = window["window_ns"]
        case.equal(window["batches"], want[f"batches {ns}"], f"{what}: batches of {ns}")
        case.close(window["mean_train"], want["packets"] / want[f"batches {ns}"], f"{what}: mean train of {ns}")
        share = (want["packets"] - want[f"alone {ns}"]) / want["packets"]
        case.close(window["share_packets_in_trains"], share, f"{what}: share in trains of {ns}")


def groups(binary, job, _):
    """Groups of a capture, those that are listed and the sum of the rest."""
    _, path = job
    flows = by_flow(keyed(capture.read(path).records))
    names = {"dst-port": lambda key: [by_port(key)], "vlan": lambda key: [".".join(map(str, key[0])) or "none"],
             "endpoint": lambda key: {key[2], key[3]}}
    for by, name in names.items():
        want = grouped(flows, name)
        for most, threads in ((5, 2), (5, 1), (100_000, 2)):
            run, case = Run(binary, ["analyze", "--by", by, "--groups", most, "--threads", threads, "--format", "json", path]), Case()
            got = run.json()["groups"]
            case.equal(got["groups"], len(want), "number of groups")
            case.equal(len(got["listed"]), min(most, len(want)), "groups listed")
            sizes = sorted((g["packets"] for g in want.values()), reverse=True)[:most]
            case.equal([g["packets"] for g in got["listed"]], sizes, "packets of the largest")
            rest = collections.Counter()
            for sums in want.values():
                rest.update(sums)
            for group in got["listed"]:
                compare_group(case, group, want[group["name"]], f"{by} {group['name']}")
                rest.subtract(want[group["name"]])
            if got["rest"]:
                compare_group(case, got["rest"], rest, f"the rest of {by}")
            else:
                case.equal(len(want) <= most, True, "nothing is left over")
            yield run.command, case.wrong


def slices(binary, job, _):
    """Every slice is as a trace of its own."""
    _, path = job
    packets = keyed(capture.read(path).records)
    span = max(p[0] for p in packets) - min(p[0] for p in packets) + 1
    length = max(1, span // 7)
    run, case = Run(binary, ["analyze", "--by", f"slice {length}ns", "--format", "json", path]), Case()
    got, clock, want = run.json()["groups"], 0, collections.defaultdict(list)
    for at, size, key in packets:
        clock = max(clock, at)
        want[clock // length * length].append((at, size, key))
    case.equal([g["name"] for g in got["listed"]], [str(start) for start in want], "starts of slices")
    for group in got["listed"]:
        compare_group(case, group, grouped(by_flow(want[int(group["name"])]), lambda _: ["all"])["all"], f"slice {group['name']}")
    yield run.command, case.wrong


def bare(result, *keys):
    return {k: v for k, v in result.items() if k not in ("file", "left_out", "traces", "input", "output", "elapsed_ns", "cpu_ns", *keys)}


def selections(binary, job, scratch):
    """A selection is as a capture of the packets that were selected."""
    _, path = job
    read = capture.read(path)
    first = read.records[0].time
    middle = sorted(r.time for r in read.records)[len(read.records) // 2]

    def tcp_443(record):
        key = flow_of(record)
        return key is not None and key[-3] == 6 and 443 in key[-2:]

    ways = [
        (["--rules", "tcp port 443"], lambda rs: [r for r in rs if tcp_443(r)]),
        (["--time", f"..{middle - first}ns"], lambda rs: [r for r in rs if r.time < middle]),
        (["--time", f"@{middle // 10**9}.{middle % 10**9:09}.."], lambda rs: [r for r in rs if r.time >= middle]),
        (["-c", "100"], lambda rs: rs[:100]),
        (["--rules", "tcp port 443", "-c", "10", "--time", "0s.."], lambda rs: [r for r in rs if tcp_443(r)][:10]),
    ]
    for words, choose in ways:
        chosen = choose(read.records)
        if not chosen:
            continue
        only = scratch / "only.pcap"
        capture.write_pcap(only, chosen, read.links[0], "<", 1)
        for threads in (1, 2):
            run, case = Run(binary, ["analyze", *words, "--threads", threads, "--format", "json", path]), Case()
            got, want = run.json(), Run(binary, ["analyze", "--format", "json", only]).json()
            case.equal(bare(got), bare(want), "the whole report")
            if "-c" not in words:
                case.equal(got["left_out"], len(read.records) - len(chosen), "left_out")
            yield run.command, case.wrong
        words = [*words, "--format", "json"]
        measure = ["measure", "--task", "cardinality", "--sketch", "exact", "--key", "5tuple"]
        run, case = Run(binary, [*measure, *words, path]), Case()
        got, want = run.json(), Run(binary, [*measure, "--format", "json", only]).json()
        case.equal(got["epochs"], want["epochs"], "epochs")
        yield run.command, case.wrong
        run, case = Run(binary, ["reframe", path, scratch / "a.pcap", *words]), Case()
        got, want = run.json(), Run(binary, ["reframe", only, scratch / "b.pcap", "--format", "json"]).json()
        case.equal(bare(got), bare(want), "the whole report")
        case.equal([r.data for r in capture.read(scratch / "a.pcap").records],
                   [r.data for r in capture.read(scratch / "b.pcap").records], "packets written")
        yield run.command, case.wrong


def several(binary, job, scratch):
    """Parts of a trace, named in order, are the trace."""
    _, path = job
    read = capture.read(path)
    cut = len(read.records) // 3
    parts = [scratch / "part1.pcap", scratch / "part2.pcap"]
    for part, records in zip(parts, (read.records[:cut], read.records[cut:])):
        capture.write_pcap(part, records, read.links[0], "<", 1)
    for words in (["--task", "heavy-hitters", "--sketch", "exact"], ["--task", "cardinality", "--epoch", "20ms"],
                  ["--task", "quantiles", "--weight", "bytes"]):
        run, case = Run(binary, ["measure", *words, "--format", "json", *parts]), Case()
        case.equal(run.json()["epochs"], Run(binary, ["measure", *words, "--format", "json", path]).json()["epochs"], "epochs")
        yield run.command, case.wrong
    tasks = ["cardinality", "entropy", "heavy-hitters"]
    run, case = Run(binary, ["measure", *(w for t in tasks for w in ("--task", t)), "--format", "json", *parts]), Case()
    for task, got in zip(tasks, run.json()["tasks"]):
        case.equal(got["task"], task, "order of tasks")
        alone = Run(binary, ["measure", "--task", task, "--format", "json", path]).json()
        case.equal(got["epochs"], alone["epochs"], f"{task} among others")
    yield run.command, case.wrong
    run, case = Run(binary, ["reframe", *parts, scratch / "a.pcap", "--format", "json"]), Case()
    got, want = run.json(), Run(binary, ["reframe", path, scratch / "b.pcap", "--format", "json"]).json()
    case.equal(bare(got), bare(want), "the whole report")
    case.equal([(r.time, r.data) for r in capture.read(scratch / "a.pcap").records],
               [(r.time, r.data) for r in capture.read(scratch / "b.pcap").records], "packets written")
    yield run.command, case.wrong
    missing = Run(binary, ["reframe", parts[0], scratch / "none.pcap", scratch / "a.pcap"])
    yield missing.command, [] if missing.status == 2 and "none.pcap" in missing.stderr else [missing.stderr or "no error"]


def keep_going(binary, job, scratch):
    """One that is no capture and a damaged one among others: listed, and the rest right."""
    _, path = job
    (scratch / "text.pcap").write_text("this is no capture at all, whatever its name says")
    whole = scratch / "whole.pcap"
    read = capture.read(path)
    capture.write_pcap(whole, read.records, read.links[0], "<", 1)
    (scratch / "cut.pcap").write_bytes(whole.read_bytes()[:-5])
    want = Run(binary, ["analyze", "--format", "json", path]).json()
    names = [path, scratch / "text.pcap", scratch / "cut.pcap"]
    for words, status, left in (([], 2, 2), (["--keep-going"], 0, 2), (["--keep-going", "--strict"], 0, 1), (["--strict"], 2, 0)):
        run, case = Run(binary, ["analyze", *words, "--format", "json", *names]), Case()
        case.equal(run.status, status, "exit status")
        if left:
            got = json.loads(run.stdout)
            case.equal(len(got["traces"]), left, "traces analysed")
            case.equal(len(got["failed"]), 3 - left, "traces listed as failed")
            case.check("text.pcap" in got["failed"][0]["file"], "the failed one is named")
            case.equal(bare(got["traces"][0], "truncated_at_byte"), bare(want, "truncated_at_byte", "schema"), "the first trace")
        yield run.command, case.wrong


def diff(binary, job, scratch):
    """Every figure beside its like."""
    _, path = job
    read = capture.read(path)
    half = scratch / "half.pcap"
    capture.write_pcap(half, read.records[::2], read.links[0], "<", 1)
    run, case = Run(binary, ["analyze", "--diff", "--by", "dst-port", "--format", "json", path, half]), Case()
    got, a, b = run.json(), Run(binary, ["analyze", "--format", "json", path]).json(), Run(binary, ["analyze", "--format", "json", half]).json()
    rows = {row["key"]: row for row in got["diff"]["rows"]}
    for key in ("records", "ip.slf", "ip.windows.1.mean_train", "tcp.flow_size.mean"):
        of_a, of_b = a, b
        for step in key.split("."):
            of_a, of_b = ((r[int(step)] if isinstance(r, list) else r[step]) for r in (of_a, of_b))
        case.equal((rows[key]["a"], rows[key]["b"]), (of_a, of_b), key)
        case.close(rows[key]["change"], of_b - of_a, f"{key}: change")
        case.close(rows[key]["ratio"], of_b / of_a, f"{key}: ratio")
    want = [grouped(by_flow(keyed(records)), lambda k: [by_port(k)]) for records in (read.records, read.records[::2])]
    named = [row["name"] for row in got["diff"]["groups"]]
    case.equal((len(set(named)), set(named) <= want[0].keys() | want[1].keys()), (len(named), True), f"names of groups {named}")
    case.check(len(named) >= min(5, len(want[0])), f"only {len(named)} of {len(want[0])} groups")
    for row in got["diff"]["groups"]:
        for side, groups_of in zip("ab", want):
            packets = (row[side] or {"packets": 0})["packets"]
            case.equal(packets, groups_of[row["name"]]["packets"], f"group {row['name']}, {side}")
    yield run.command, case.wrong
    run = Run(binary, ["analyze", "--diff", path])
    yield run.command, [] if run.status == 2 else ["one trace was compared with nothing"]


READERS = {
    "duckdb": "import duckdb; rows = duckdb.sql(f\"select * from '{path}'\").fetchall(); "
              "names = [d[0] for d in duckdb.sql(f\"select * from '{path}'\").description]",
    "polars": "import polars; table = polars.read_parquet(path); rows = table.rows(); names = table.columns",
    "pandas": "import pandas; table = pandas.read_parquet(path); names = list(table.columns); "
              "rows = table.astype(object).where(table.notna(), None).values.tolist()",
}


def tables():
    """The Python of a virtual environment that has the readers. Jobs that run at once build it once."""
    where = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve() / "python-tables"
    python = where / "bin/python"
    where.parent.mkdir(parents=True, exist_ok=True)
    with open(where.with_suffix(".lock"), "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        good = [python, "-c", "import duckdb, polars, pandas, pyarrow"]
        if not python.exists() or subprocess.run(good, capture_output=True, check=False).returncode:
            subprocess.run([sys.executable, "-m", "venv", "--clear", where], check=True)
            # To compile all of it takes longer than what is used of it.
            words = ["-m", "pip", "install", "--quiet", "--no-compile", "--disable-pip-version-check", "duckdb", "polars", "pandas", "pyarrow"]
            subprocess.run([python, *words], check=True, stdin=subprocess.DEVNULL)
    return python


def read_by(python, reader, *paths):
    """The rows of files by one of the readers, which takes longer to start than to read."""
    code = f"import json\nfound = []\nfor path in {list(map(str, paths))!r}:\n    {READERS[reader]}\n" \
           "    found.append([dict(zip(names, row)) for row in rows])\nprint(json.dumps(found, default=int))"
    return json.loads(subprocess.run([python, "-c", code], capture_output=True, check=True).stdout)


def parquet(binary, job, scratch):
    """Rows of packets and of flows, read by three programs, against dictionaries."""
    _, path = job
    python, read = tables(), capture.read(path)
    flows, packets = scratch / "flows.parquet", scratch / "packets.parquet"
    run = Run(binary, ["analyze", "--parquet", flows, "--parquet-packets", packets, "--format", "json", path])
    report, numbers, want_packets, want_flows = run.json(), {}, [], {}
    for number, record in enumerate(read.records, 1):
        key = flow_of(record)
        row = {"file": str(path), "number": number, "time_ns": record.time, "length": record.length, "captured": len(record.data)}
        if key is None:
            want_packets.append({**row, "flow": None, "src": None, "dst_port": None})
            continue
        flow = numbers.setdefault(key, len(numbers))
        vlans, version, src, dst, protocol, src_port, dst_port = key
        about = {"vlans": ".".join(map(str, vlans)), "ip_version": version, "src": src, "dst": dst,
                 "protocol": protocol, "src_port": src_port, "dst_port": dst_port, "flow": flow}
        want_packets.append({**row, **about})
        sums = want_flows.setdefault(flow, {**about, "packets": 0, "bytes": 0, "first_ns": record.time, "last_ns": record.time})
        sums["packets"] += 1
        sums["bytes"] += record.length
        sums["first_ns"], sums["last_ns"] = min(sums["first_ns"], record.time), max(sums["last_ns"], record.time)
    for reader in READERS:
        case = Case()
        got, got_flows = read_by(python, reader, packets, flows)
        case.equal(len(got), len(want_packets), "rows of packets")
        for row, want in zip(got, want_packets):
            if not case.equal({k: row[k] for k in want}, want, f"packet {want['number']}"):
                break
        case.equal(len(got_flows), len(want_flows), "rows of flows")
        case.equal(len(got_flows), report["ip"]["flows"], "flows of the report")
        flags = collections.Counter()
        for row in got:
            if row["flow"] is not None:
                flags[row["flow"]] |= int(row["tcp_flags"] or 0)
        for row in got_flows:
            want = want_flows[row["flow"]]
            case.equal({k: row[k] for k in want}, want, f"flow {row['flow']}")
            case.equal(row["tcp_flags"], flags[row["flow"]], f"flags of flow {row['flow']}")
        yield f"{run.command} ({reader})", case.wrong


def jobs(where):
    small = [CAMPUS, *sorted(p for p in (where / "multi").iterdir() if p.stat().st_size < 1_500_000)]
    yield "parquet", CAMPUS
    yield "parquet", small[-1]
    for path in small:
        yield "groups", path
        yield "slices", path
    plain = [path for path in small if len(set(capture.read(path).links)) == 1]
    for path in plain[:4]:
        yield "selections", path
    yield "several", CAMPUS
    yield "keep_going", CAMPUS
    yield "diff", CAMPUS


def work(binary, job, scratch):
    kinds = {"groups": groups, "slices": slices, "selections": selections, "several": several, "keep_going": keep_going,
             "diff": diff, "parquet": parquet}
    return kinds[job[0]](binary, job, scratch)


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=1)
