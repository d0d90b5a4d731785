#!/usr/bin/env python3
"""Is `slipstream analyze` right? Held to another program's figures, in every form a capture comes in.

The expected figures lie beside the captures (`expected.jsonl`). Counts, means, shares and SLF must be exact;
quantiles may be off by one part in a hundred.
"""

import gzip
import json
import subprocess

import capture
import harness

EXACT = 1e-9
BACKWARDS = 1e-3  # where the clock ran backwards, windows may be understood in more than one way
QUANTILE = 0.01
SMALL = 2_000_000  # bytes of a capture that is worth copying in many formats
FORMATS = ("pcap", "nsecpcap", "pcapng")


def compare_sequence(case, got, want, name, windows):
    """`got` is `ip` or `tcp` of the product, `want` of the expected figures; `windows` the tolerance of
    windows."""
    for ours, theirs in (("packets", "packets"), ("flows", "flows_dir"), ("runs", "runs"), ("pairs", "pairs"),
                         ("single_packet_flows", "single_packet_flows")):
        case.equal(got[ours], want.get(theirs, 0), f"{name}.{ours}")
    case.close(got["slf"], want.get("slf"), f"{name}.slf")
    spatial, temporal, sizes = got["spatial_distance"], got["temporal_distance_ns"], got["flow_size"]
    if "spatial" in want:
        theirs = want["spatial"]
        case.close(got["share_spatial_distance_gt_1"], theirs["share_gt1"], f"{name}.share_spatial_distance_gt_1")
        case.close(spatial["mean"], theirs["mean"], f"{name}.spatial_distance.mean")
        case.close(spatial["p50"], theirs["median"], f"{name}.spatial_distance.p50", QUANTILE)
    if "temporal_ns" in want:
        theirs = want["temporal_ns"]
        case.close(temporal["mean"], theirs["mean"], f"{name}.temporal_distance_ns.mean")
        for ours, key in (("p25", "p25"), ("p50", "median"), ("p75", "p75")):
            case.close(temporal[ours], theirs[key], f"{name}.temporal_distance_ns.{ours}", QUANTILE)
    if want.get("flow_size"):
        theirs = want["flow_size"]
        case.close(sizes["mean"], theirs["mean"], f"{name}.flow_size.mean")
        case.close(sizes["min"], theirs["min"], f"{name}.flow_size.min")
        case.close(sizes["max"], theirs["max"], f"{name}.flow_size.max")
        for ours, key in (("p25", "p25"), ("p50", "median"), ("p75", "p75"), ("p99", "p99")):
            case.close(sizes[ours], theirs[key], f"{name}.flow_size.{ours}", QUANTILE)
    for window in got["windows"]:
        compare_window(case, window, want, f"{name}.windows[{window['window_ns']}]", windows)
    ours = {s["batch"]: s for s in got["flow_switches"]}
    theirs = {int(k.removeprefix("switch_")): v for k, v in want.items() if k.startswith("switch_")}
    for batch, switches in theirs.items():
        if case.check(batch in ours, f"{name}.flow_switches has no batch of {batch}"):
            for key, value in switches.items():
                case.close(ours[batch][key], value, f"{name}.flow_switches[{batch}].{key}")


def compare_window(case, window, want, name, tolerance):
    theirs = want.get(f"train_{window['window_ns'] // 1000}us")
    if theirs is None:
        case.equal(window["batches"], 0, f"{name}.batches")
        return
    exact = tolerance == EXACT
    case.close(window["batches"], theirs["batches"], f"{name}.batches", tolerance)
    case.close(window["mean_train"], theirs["mean"], f"{name}.mean_train", tolerance)
    case.close(window["share_packets_in_trains"], theirs["share_pkts_in_batch_ge2"], f"{name}.share", tolerance)
    case.close(window["slf_after"], theirs["slf_out"], f"{name}.slf_after", tolerance)
    if exact:
        ours = {b["from"]: b["count"] for b in window["histogram"] if b["count"]}
        case.equal(ours, {int(k): v for k, v in theirs["hist"].items()}, f"{name}.histogram")
    if "pure_acks" in theirs:
        case.equal(window["pure_acks"], theirs["pure_acks"], f"{name}.pure_acks")
        for ours, key in (("ack_coalescable_simple", "coal_simple"), ("ack_coalescable_strict", "coal_strict")):
            case.close(window[ours], theirs[key], f"{name}.{ours}", tolerance)


def compare(case, got, want):
    """A whole result with a line of the expected figures."""
    for ours, theirs in (("records", "records"), ("bytes", "bytes_wire"), ("ipv6", "ipv6"), ("fragments", "fragments"),
                         ("flows_bidirectional", "flows_bidir")):
        case.equal(got[ours], want[theirs], ours)
    skipped = dict(got["skipped"])
    case.equal(skipped.pop("unsupported_link_type"), want["other_linktype"], "skipped.unsupported_link_type")
    case.equal(sum(skipped.values()), want["non_ip"], "skipped for other reasons")
    if "duration_s" in want:
        case.close(got["duration_ns"] / 1e9, want["duration_s"], "duration_ns")
    for name in ("ip", "tcp"):
        theirs = want.get(name) or {"packets": 0}
        # The windows of `tcp` are over its own times, but it is the whole capture's clock that may run
        # backwards.
        monotone = got["clock_backwards"] == 0
        compare_sequence(case, got[name], theirs, name, EXACT if monotone else BACKWARDS)


def bare(result):
    """A result without the name of what was read."""
    if isinstance(result, dict):
        return {k: bare(v) for k, v in result.items() if k != "file"}
    return [bare(v) for v in result] if isinstance(result, list) else result


def forms(case, path, scratch):
    """Copies of a capture that must give the same figures: (name, file, whether the times are cut to
    microseconds)."""
    data = path.read_bytes()
    plain = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    (scratch / "copy.gz").write_bytes(gzip.compress(plain, 1))
    yield "gzip", scratch / "copy.gz", False
    if harness.have(case, "zstd"):
        (scratch / "plain").write_bytes(plain)
        subprocess.run(["zstd", "-q", "-1", scratch / "plain", "-o", scratch / "copy.zst"], check=True)
        yield "zstd", scratch / "copy.zst", False
    if path.stat().st_size > SMALL:
        return
    read = capture.read(path)
    if len(set(read.links)) == 1:
        for order in "<>":
            for unit in (1, 1000):
                other = scratch / f"copy{'le' if order == '<' else 'be'}{unit}.pcap"
                capture.write_pcap(other, read.records, read.links[0], order, unit)
                yield f"pcap {order} {unit} ns", other, unit == 1000
    if harness.have(case, "editcap"):
        for form in FORMATS:
            other = scratch / f"editcap.{form}"
            subprocess.run(["editcap", "-F", form, path, other], check=True, capture_output=True)
            yield f"editcap -F {form}", other, form == "pcap"


def analyze(binary, *words, stdin=None):
    return harness.Run(binary, ["analyze", "--format", "json", *words], stdin)


def one(binary, job, scratch):
    """A capture against its expected figures, and every form of it against the capture itself."""
    _, path, want = job
    run, case = analyze(binary, path), harness.Case()
    result = run.json()
    compare(case, result, want)
    yield run.command, case.wrong
    for name, words, stdin in (("stdin", ["-"], path), ("--threads 1", ["--threads", 1, path], None),
                               ("--threads 5", ["--threads", 5, path], None)):
        other, case = analyze(binary, *words, stdin=stdin), harness.Case()
        case.check(bare(other.json()) == bare(result), f"{name}: another result than {run.command}")
        yield other.command, case.wrong
    cut = all(r.time % 1000 == 0 for r in capture.read(path).records) if path.stat().st_size <= SMALL else True
    lacking = harness.Case()
    for name, file, micro in forms(lacking, path, scratch):
        other, case = analyze(binary, file), harness.Case()
        got = other.json()
        if micro and not cut:
            got, ref = got["ip"]["runs"], result["ip"]["runs"]
        else:
            got, ref = bare(got), bare(result)
        case.check(got == ref, f"{name}: another result than {run.command}")
        yield f"{other.command} ({name} of {path})", case.wrong
    yield f"programs for other forms of {path}", lacking.wrong


def additive(result):
    """What adds up over captures: counts of packets, pairs and trains."""
    found = {"records": result["records"], "bytes": result["bytes"], "ipv6": result["ipv6"],
             "fragments": result["fragments"], **{f"skipped.{k}": v for k, v in result["skipped"].items()}}
    for name in ("ip", "tcp"):
        part = result[name]
        found |= {f"{name}.{k}": part[k] for k in ("packets", "runs")}
        found |= {f"{name}.{w['window_ns']}.{k}": w[k] for w in part["windows"] for k in ("batches", "pure_acks") if k in w}
    return found


def total(binary, job, _):
    """Several captures at once: each as alone, and a total that is their sum."""
    _, paths = job
    run, case = analyze(binary, *paths), harness.Case()
    result = run.json()
    alone = [analyze(binary, path).json() for path in paths]
    case.equal([t["file"] for t in result["traces"]], [str(p) for p in paths], "files of traces")
    for path, got, want in zip(paths, result["traces"], alone):
        case.check({"records", "bytes", "ip", "tcp"} <= set(got) and all(got[k] == want[k] for k in got), f"traces: {path.name} is not as alone")
    sums = [additive(a) for a in alone]
    for key, value in additive(result["total"]).items():
        case.equal(value, sum(s[key] for s in sums), f"total.{key}")
    packets, runs = result["total"]["ip"]["packets"], result["total"]["ip"]["runs"]
    case.close(result["total"]["ip"]["slf"], packets / runs, "total.ip.slf")
    turned = analyze(binary, *reversed(paths)).json()
    case.equal(additive(turned["total"]), additive(result["total"]), "total, captures named the other way round")
    yield run.command, case.wrong


def halves(binary, job, scratch):
    """A capture cut in two: the halves have together what the whole has, but for what crosses the cut."""
    _, path = job
    case = harness.Case()
    if not harness.have(case, "editcap"):
        yield f"halves of {path}", case.wrong
        return
    records = len(capture.read(path).records)
    first, second = scratch / "first.pcapng", scratch / "second.pcapng"
    subprocess.run(["editcap", "-r", path, first, f"1-{records // 2}"], check=True, capture_output=True)
    subprocess.run(["editcap", "-r", path, second, f"{records // 2 + 1}-{records}"], check=True, capture_output=True)
    whole, run = additive(analyze(binary, path).json()), analyze(binary, first, second)
    for key, value in additive(run.json()["total"]).items():
        if key.endswith(("runs", "batches")):
            case.check(whole[key] <= value, f"total.{key}: {value} is less than the {whole[key]} of the whole")
            case.check(key.endswith("batches") or value <= whole[key] + 1, f"total.{key}: {value}, of the whole {whole[key]}")
        else:
            case.equal(value, whole[key], f"total.{key}")
    yield f"{run.command} (halves of {path})", case.wrong


def jobs(where):
    files = {p.name: p for d in ("large", "multi") for p in (where / d).iterdir()}
    with open(where / "expected.jsonl", encoding="utf-8") as lines:
        expected = [json.loads(line) for line in lines]
    missing = sorted({e["file"] for e in expected} ^ set(files))
    if missing:
        raise SystemExit(f"captures and expected.jsonl disagree on {', '.join(missing)}")
    for want in sorted(expected, key=lambda e: -e["records"]):
        yield "one", files[want["file"]], want
    small = sorted(p for p in files.values() if p.stat().st_size < SMALL)
    yield "total", small
    yield "total", small[:2]
    for path in small:
        yield "halves", path


def work(binary, job, scratch):
    return {"one": one, "total": total, "halves": halves}[job[0]](binary, job, scratch)


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=1)
