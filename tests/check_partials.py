#!/usr/bin/env python3
"""`analyze --part --save` and `analyze merge`: parts joined in any order are the whole to the last digit.

Captures are cut into 1, 2 and 4 parts, each analysed by a process of its own: all large ones, and one in
twelve of the small, or all with SLIPSTREAM_ALL_PARTS=1. What is missing, damaged, or of other settings is an
error that names file and byte.
"""

import os
import shutil
import sys
from pathlib import Path

import harness
from harness import ROOT, Case, Run

CAMPUS = ROOT / "traces/campus.pcap.gz"


def fields(run):
    """The JSON as text: equal to the last digit, keys in their order."""
    return run.stdout if run.status == 0 else f"exit status {run.status}: {run.stderr[-300:]}"


def same(case, got, want, what):
    """Both runs went well and have printed the same; else the place where they begin to differ."""
    case.equal(want.status, 0, f"{what}: exit status of {want.command}")
    got, want = (str(fields(run)) for run in (got, want))
    at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
    case.check(got == want, f"{what}: got …{got[max(0, at - 60):at + 60]}…, expected …{want[max(0, at - 60):at + 60]}…")


def save(binary, trace, part, path, *more):
    return Run(binary, ["analyze", "--part", part, "--save", path, "--format", "json", *more, trace])


def joins(binary, job, scratch):
    """A capture in 1, 2 and 4 parts."""
    _, path = job
    want = Run(binary, ["analyze", "--format", "json", path])
    for number in (1, 2, 4):
        parts, case = [scratch / f"{n}of{number}.part" for n in range(1, number + 1)], Case()
        runs = [save(binary, path, f"{n}/{number}", part) for n, part in enumerate(parts, 1)]
        if want.status != 0:
            case.equal({run.status for run in runs}, {2}, "exit status of what is no capture")
            case.check(all(str(path) in run.stderr for run in runs), "the file is named")
            case.check(not any(part.exists() for part in parts), "nothing was saved")
            yield runs[0].command, case.wrong
            continue
        merged = Run(binary, ["analyze", "merge", "--format", "json", *reversed(parts)])
        same(case, merged, want, f"{number} parts")
        yield merged.command, case.wrong


def order(binary, _, scratch):
    """Parts of several traces, in any order, by way of parts that were joined; pipes and made traffic."""
    trace, other = scratch / "a.pcap", scratch / "b.pcapng"
    Run(binary, ["synth", "--format", "json", "--packets", "20000", "--flows", "500", "--slf", "2", "--snap-len", "80", trace]).json()
    Run(binary, ["synth", "--format", "json", "--packets", "9000", "--flows", "90", "--ipv6", "0.3", "--snap-len", "90", other]).json()
    case, parts = Case(), {}
    for path in (trace, other):
        for n in range(1, 6):
            parts[path.name, n] = scratch / f"{path.name}.{n}"
            run = save(binary, path, f"{n}/5", parts[path.name, n], "--window", "5us,1ms", "--burst", "7", "--top", "3")
            case.equal(run.status, 0, run.stderr)
            part = run.json()["part"]
            case.check(part["from_byte"] < part["to_byte"] and part["kept_packets"] <= 5000, f"{part}")
    words = ["--window", "5us,1ms", "--burst", "7", "--top", "3", "--format", "json"]
    # As several are printed, in the order in which they are first named.
    want = Run(binary, ["analyze", *words, other, trace])
    shuffled = [parts[key] for key in (("b.pcapng", 4), ("a.pcap", 5), ("a.pcap", 1), ("b.pcapng", 1), ("b.pcapng", 5), ("a.pcap", 3),
                                       ("a.pcap", 2), ("b.pcapng", 3), ("b.pcapng", 2), ("a.pcap", 4))]
    merged = Run(binary, ["analyze", "merge", "--format", "json", *shuffled])
    same(case, merged, want, "two traces")
    yield merged.command, case.wrong
    # Joined in steps: those in the middle first.
    case = Case()
    for name, of in (("mid", (3, 4, 2)), ("left", (1, "mid")), ("all", ("left", 5))):
        paths = [parts["a.pcap", n] for n in of]
        parts["a.pcap", name] = scratch / name
        run = Run(binary, ["analyze", "merge", "--save", scratch / name, "--format", "json", *paths])
        case.equal((run.status, "part" in run.json()), (0, name != "all"), f"{name}: {run.stderr}")
    want = Run(binary, ["analyze", *words, trace])
    run = Run(binary, ["analyze", "merge", "--format", "json", scratch / "all"])
    same(case, run, want, "joined in steps")
    flows = scratch / "flows.parquet"
    page = scratch / "page.html"
    run = Run(binary, ["analyze", "merge", "--parquet", flows, "--report", page, "--fail-if", "ip.slf<100", scratch / "all"])
    case.equal((run.status, flows.read_bytes()[:4], "a.pcap" in page.read_text()), (1, b"PAR1", True), "what is written beside")
    yield run.command, case.wrong
    # Payloads of zeros in the first second of 1970 are no records.
    case, parts = Case(), [scratch / "1.part", scratch / "2.part"]
    Run(binary, ["synth", "--format", "json", "--packets", "5000", "--flows", "200", scratch / "zeros.pcap"]).json()
    begins = [save(binary, scratch / "zeros.pcap", f"{n}/2", part).json()["part"]["from_byte"] for n, part in enumerate(parts, 1)]
    case.check(begins[0] == 0 and 1_500_000 < begins[1] < 3_000_000, f"parts begin at {begins}")
    same(case, Run(binary, ["analyze", "merge", "--format", "json", *parts]), Run(binary, ["analyze", "--format", "json", scratch / "zeros.pcap"]), "zeros")
    yield run.command, case.wrong
    case = Case()
    made = "synth:flows=100,packets=3000,slf=3"
    for name, stdin in ((made, None), ("-", trace)):
        for n, part in enumerate(parts, 1):
            run = Run(binary, ["analyze", "--part", f"{n}/2", "--save", part, name], stdin=stdin)
            case.equal(run.status, 0, run.stderr)
        merged = Run(binary, ["analyze", "merge", "--format", "json", *reversed(parts)])
        same(case, merged, Run(binary, ["analyze", "--format", "json", name], stdin=stdin), name)
    yield merged.command, case.wrong


def anew(binary, _, scratch):
    """Where parts don't join, the later one is analysed anew if the trace is there; else an option does
    it."""
    data = bytearray((Path(make(binary, scratch))).read_bytes())
    half = len(data) // 2
    at, middle = 24, None
    while at < len(data):
        if at >= half:
            # From here on, clocks are two seconds behind.
            middle = middle or at
            seconds = int.from_bytes(data[at:at + 4], "little")
            data[at:at + 4] = (seconds - 2).to_bytes(4, "little")
        at += 16 + int.from_bytes(data[at + 8:at + 12], "little")
    trace, gone = scratch / "back.pcap", scratch / "gone.pcap"
    trace.write_bytes(data)
    parts, case = [scratch / "1.part", scratch / "2.part"], Case()
    for part, span in zip(parts, (f"..{middle}", f"{middle}..")):
        case.equal(save(binary, trace, span, part).status, 0, span)
    want = Run(binary, ["analyze", "--format", "json", trace])
    merged = Run(binary, ["analyze", "merge", "--format", "json", *parts])
    same(case, merged, want, "made anew")
    case.check("2.part: was analysed anew, since times run backwards" in merged.stderr, merged.stderr)
    yield merged.command, case.wrong
    case = Case()
    trace.rename(gone)
    merged = Run(binary, ["analyze", "merge", *parts])
    case.equal(merged.status, 2, "exit status where the trace is gone")
    case.check("2.part" in merged.stderr and "--keep-packets" in merged.stderr, merged.stderr)
    gone.rename(trace)
    case.equal(save(binary, trace, f"{middle}..", parts[1], "--keep-packets").status, 0, "--keep-packets")
    trace.rename(gone)
    same(case, Run(binary, ["analyze", "merge", "--format", "json", *parts]), want, "kept packets")
    yield merged.command, case.wrong
    # A pcapng file that describes a second interface in the middle.
    case, trace = Case(), scratch / "two.pcapng"
    Run(binary, ["synth", "--format", "json", "--packets", "4000", "--snap-len", "80", trace]).json()
    data = trace.read_bytes()
    section = int.from_bytes(data[4:8], "little")
    interface = data[section:section + int.from_bytes(data[section + 4:section + 8], "little")]
    first = section + len(interface)
    block = int.from_bytes(data[first + 4:first + 8], "little")
    packet = data[first:first + 8] + (1).to_bytes(4, "little") + data[first + 12:first + block]
    middle = len(data) + len(interface)
    trace.write_bytes(data + interface[:8] + (101).to_bytes(2, "little") + interface[10:] + packet * 1000)
    for part, span in zip(parts, (f"..{middle}", f"{middle}..")):
        save(binary, trace, span, part)
    want = Run(binary, ["analyze", "--format", "json", trace])
    merged = Run(binary, ["analyze", "merge", "--format", "json", *parts])
    same(case, merged, want, "an interface in the middle")
    case.check("2.part" in merged.stderr and "--walk" in merged.stderr, merged.stderr)
    case.equal(save(binary, trace, f"{middle}..", parts[1], "--walk").status, 0, "--walk")
    merged = Run(binary, ["analyze", "merge", "--format", "json", *parts])
    same(case, merged, want, "--walk")
    case.equal(merged.stderr, "", "--walk")
    yield merged.command, case.wrong


def make(binary, scratch):
    Run(binary, ["synth", "--format", "json", "--packets", "6000", "--flows", "300", "--start", "1000", "--snap-len", "60", scratch / "made.pcap"]).json()
    return scratch / "made.pcap"


def bad(binary, _, scratch):
    """What doesn't join, and what is no part."""
    trace = make(binary, scratch)
    part = {n: scratch / f"{n}.part" for n in range(1, 4)}
    for n, path in part.items():
        save(binary, trace, f"{n}/3", path)
    other = scratch / "other.part"
    save(binary, trace, "2/3", other, "--burst", "7")
    damaged, newer, cut, text = (scratch / f"{name}.part" for name in ("damaged", "newer", "cut", "text"))
    data = part[2].read_bytes()
    damaged.write_bytes(data[:300] + bytes([data[300] ^ 1]) + data[301:])
    newer.write_bytes(data[:8] + b"\x09\0" + data[10:])
    cut.write_bytes(data[:500])
    text.write_text("this is no part")
    many = scratch / "many.part"
    save(binary, CAMPUS, "1/1", many)
    missing = scratch / "none.part"
    empty = scratch / "empty.pcap"
    empty.write_bytes(b"")
    cases = [
        (["merge", part[1], part[3]], ["1.part", "3.part", "byte", "don't follow"]), (["merge", part[2], part[3]], ["2.part", "no part begins"]),
        (["merge", part[1], part[2]], ["2.part", "no part ends", "byte"]), (["merge", part[1], part[1], part[2]], ["1.part", "begins its trace"]),
        (["merge", part[1], other, part[3]], ["other.part", "settings"]), (["merge", part[1], damaged], ["damaged.part", "byte ", "checksum"]),
        (["merge", newer], ["newer.part", "byte 8", "version 9"]), (["merge", cut], ["cut.part", "byte "]),
        (["merge", text], ["text.part", "byte 0"]), (["merge", part[1], missing], ["none.part"]), (["merge"], ["<PART>"]),
        (["merge", "--save", scratch / "all", part[1], many], ["several traces"]), (["merge", trace], ["made.pcap", "byte 0"]),
        (["--part", "4/3", trace], ["4/3"]), (["--part", "0/3", trace], ["0/3"]), (["--part", "9..5", trace], ["9..5"]),
        (["--part", "100..", "--save", scratch / "x", CAMPUS], ["campus", "no parts"]), (["--part", "..101", trace], ["byte 101", "made.pcap"]),
        (["--save", scratch / "x", trace, trace], ["one trace"]), (["--part", "1/2", empty], ["empty.pcap"]),
        (["--part", "1/2", "--by", "vlan", trace], ["--by"]), (["--part", "1/2", "-c", "5", trace], ["--count"]), (["--walk", trace], ["--part"]),
        (["--part", "1..2", "synth:packets=10"], ["synth:packets=10"]),
    ]
    for words, texts in cases:
        run, case = Run(binary, ["analyze", *words]), Case()
        case.equal(run.status, 2, "exit status")
        for text in texts:
            case.check(text in run.stderr, f"{text!r} isn't in {run.stderr!r}")
        yield run.command, case.wrong
    case = Case()
    case.check(not (scratch / "x").exists() and not (scratch / "all").exists(), "nothing was saved")
    # A damaged trace ends with the damage, whatever follows.
    broken = scratch / "broken.pcap"
    shutil.copyfile(trace, broken)
    with open(broken, "r+b") as file:
        file.truncate(broken.stat().st_size - 5)
    saved = {n: save(binary, broken, f"{n}/3", path).json() for n, path in part.items()}
    damaged = next(part[n] for n, one in saved.items() if one["truncated_at_byte"] is not None)
    merged = Run(binary, ["analyze", "merge", "--format", "json", *part.values()])
    same(case, merged, Run(binary, ["analyze", "--format", "json", broken]), "damaged at its end")
    case.check("damaged at byte" in merged.stderr, merged.stderr)
    twice = Run(binary, ["analyze", "merge", *part.values(), damaged])
    case.equal(twice.status, 2, "exit status where the damaged part is named twice")
    case.check("both begin at byte" in twice.stderr, twice.stderr)
    strict = save(binary, broken, "1/1", scratch / "x", "--strict")
    case.equal((strict.status, (scratch / "x").exists()), (2, False), "--strict")
    yield merged.command, case.wrong


def jobs(where):
    files = sorted(path for path in where.rglob("*") if path.is_file() and path.parent != where)
    sample = os.environ.get("SLIPSTREAM_ALL_PARTS") is None
    small = [path for path in files if path.parent.name == "odd"]
    chosen = [path for path in files if path.parent.name != "odd"] + (small[::12] if sample else small)
    yield from (("order", None), ("anew", None), ("bad", None))
    yield from (("joins", path) for path in [*chosen, CAMPUS])


def work(binary, job, scratch):
    return {"joins": joins, "order": order, "anew": anew, "bad": bad}[job[0]](binary, job, scratch)


if __name__ == "__main__":
    sys.exit(harness.main(__doc__.splitlines()[0], jobs, work))
