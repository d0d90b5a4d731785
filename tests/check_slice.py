#!/usr/bin/env python3
"""Are packets whole again after slicing? Middlebox and functions, joined by shared memory, by tshark.

Captures and generated TCP go through slice, NAT and firewall in another process, splice; and the same way
with nothing sliced. Both must give the same packets, byte for byte, and tshark must find every checksum and
length right. What crosses the boundary is counted at both ends. Then the boundary itself: a process that is
killed, one that is interrupted, one that drops, files that are something else, and rings that are damaged
while in use.
"""

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import time

import capture
import harness
from check_functions import faulty, prepare

RULES = "deny udp dst port 53\ndeny tcp dst port 443\ndeny icmp\ndefault allow\n"
TCP = ("--flows", 400, "--packets", 12_000, "--slf", 3, "--protocol", "tcp", "--ipv6", 0.3, "--vlan", 0.2, "--size", "90..1514",
       "--rate", "200kpps", "--seed", 5)
SECONDS = 120
F_OFD_SETLK = 37


def functions(scratch):
    """Graphs between the two ends of the memory."""
    (scratch / "rules.txt").write_text(RULES)
    firewall = f'firewall(rules="{scratch}/rules.txt")'
    nat = "nat(pool=[203.0.113.0/29])"
    return {"nat": nat, "firewall": firewall, "firewall-nat": f"{firewall} -> {nat}", "meter": "meter(cir=100gbps)"}


class Process:
    """The binary at work; its report when it has ended."""

    def __init__(self, binary, *words):
        self.words = [str(binary), *map(str, words)]
        self.process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, timeout=SECONDS):
        """Exit status, output, errors."""
        try:
            out, err = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.process.kill()
            out, err = self.process.communicate()
            return None, out, f"still running after {timeout} s: {err}"
        return self.process.returncode, out, err

    def __enter__(self):
        return self

    def __exit__(self, *_):
        # Whoever fails in between leaves no process behind.
        if self.process.poll() is None:
            self.process.kill()
            self.process.communicate()


def reached(there):
    """Arguments of the process with the functions."""
    # Ports of shared memory are live: without a seed a NAT would choose other addresses and ports each time.
    return ("run", "--seed", "1", "-i", f"shm:{there}", "-o", f"shm:{there}", "--format", "json", "-e")


def through(case, binary, given, out, graph, *how):
    """One run of both processes; their reports."""
    there = out.with_suffix(".shm")
    far = Process(binary, *reached(there), graph)
    near = Process(binary, "slice", "run", given, out, "--through", there, "--format", "json", *how)
    reports = ended(case, near, far)
    case.check(not there.exists(), "the file in memory is left behind")
    return reports


def ended(case, near, far, timeout=SECONDS):
    """The reports of both, which must end by themselves and well; none for one that did not."""
    reports = []
    for name, process in (("middlebox", near), ("functions", far)):
        status, text, err = process.end(timeout)
        case.equal(status, 0, f"exit status of the {name} ({err.strip()[-300:]})")
        case.check("panicked" not in err, err)
        reports.append(json.loads(text) if status == 0 else None)
        if status != 0:
            # The other one would wait for it.
            far.process.kill()
    return reports


def counters(report, kind):
    """The counters of sources and stages of a type, together."""
    found = {}
    for stage in report["sources"] + report["stages"]:
        if stage["type"] == kind:
            found |= stage["counters"]
    return found


def boundary(case, near, far, what):
    """What one side sent the other received; nothing was lost on the way."""
    a, b = counters(near, "shm"), counters(far, "shm")
    for name in ("packets", "bytes", "ring_bytes"):
        case.equal(b[f"{name}_received"], a[f"{name}_sent"], f"{what}: {name} to the functions")
        case.equal(a[f"{name}_received"], b[f"{name}_sent"], f"{what}: {name} from the functions")
    for side in (a, b):
        case.equal([side[name] for name in ("ring_full", "too_long", "abandoned", "never_taken")], [0, 0, 0, 0], f"{what}: not sent")
    for report in (near, far):
        case.equal(report["left_inside"], 0, f"{what}: left inside")
    return a


def same(binary, path, scratch):
    """Sliced and whole, through each function."""
    if path == "tcp":
        path = scratch / "tcp.pcap"
        harness.Run(binary, ["synth", *TCP, path, "--format", "json"]).json()
    given, records = prepare(path, scratch)
    done = []
    for name, graph in functions(scratch).items():
        case = harness.Case()
        sliced, whole = scratch / f"{name}-sliced.pcap", scratch / f"{name}-whole.pcap"
        near, far = through(case, binary, given, sliced, graph)
        plain, plain_far = through(case, binary, given, whole, graph, "--whole")
        both = bool(near and far and plain and plain_far)
        if both:
            compare(case, records, (near, far, sliced), (plain, plain_far, whole))
        done.append((name, case, (sliced, whole) if both else ()))
    found = iter(faulty(*(file for _, _, files in done for file in files)))
    for name, case, files in done:
        for file, (wrong, long) in zip(files, found):
            case.check(not wrong, f"{file.name}: {len(wrong)} packets are wrong, the first is number {sorted(wrong)[:1]}")
            case.equal(long, 0, f"{file.name}: packets longer than what was on the wire")
        yield f"slice run {path.name} ({len(records)} packets) --through {name}", case.wrong


def compare(case, records, one, two):
    """The files, what was parked, and what crossed."""
    near, far, sliced = one
    plain, plain_far, whole = two
    moved, all_bytes = boundary(case, near, far, "sliced"), boundary(case, plain, plain_far, "whole")
    got, want = capture.read(sliced).records, capture.read(whole).records
    case.equal(len(got), len(want), "packets")
    different = [n for n, (a, b) in enumerate(zip(got, want)) if a.data != b.data or a.length != b.length]
    case.check(not different, f"{len(different)} packets are not as they are without slicing, the first is number {different[:1]}")
    case.equal(far["dropped"], plain_far["dropped"], "dropped by the functions")
    case.equal(near["dropped"], {}, "dropped by the middlebox")
    slices, splices = counters(near, "slice"), counters(near, "splice")
    lost = slices["sliced"] + slices["empty_slices"] - splices["spliced"]
    case.check(0 <= lost <= sum(far["dropped"].values()), f"{lost} payloads that came back to no packet")
    large = sum(worth_slicing(r) for r in records)
    if large > 100:
        case.check(slices["sliced"] > 0.5 * large, f"only {slices['sliced']} of {large} large packets were sliced")
        saved = all_bytes["bytes_sent"] - moved["bytes_sent"]
        case.equal(saved, slices["parked_bytes"] - 8 * (slices["sliced"] + slices["empty_slices"]), "bytes that did not cross")


def worth_slicing(record):
    """A whole TCP or UDP packet of 500 bytes and more, of which an entry of the payload table has room for
    the payload (captures on hosts have packets of many segments)."""
    found = capture.headers(1, record.data) if 500 <= len(record.data) <= 1518 else None
    return found is not None and not found.fragment and found.protocol in (capture.TCP, capture.UDP)


def come_back(out):
    """Waits until more than a thousand packets of 1500 bytes have come back from the functions."""
    wait_for(lambda: out.exists() and out.stat().st_size > 2000 * 1516, 20)


def wait_for(holds, seconds=10):
    if not harness.until(holds, seconds, 0.01):
        raise AssertionError("it did not happen")


def killed(case, binary, scratch):
    """A process with functions that is killed: the middlebox says so, and ends with an error, its output
    whole."""
    there, out = scratch / "there", scratch / "out.pcap"
    stream = ("synth:packets=100M,size=1500,rate=20kpps", out, "--through", there, "--pace", "real")
    with Process(binary, *reached(there), "counter") as far, Process(binary, "slice", "run", *stream) as near:
        come_back(out)
        far.process.send_signal(signal.SIGKILL)
        status, _, err = near.end(20)
        far.end(20)
    case.equal(status, 2, f"exit status ({err.strip()[-300:]})")
    case.check("ended without finishing" in err, err)
    case.check(len(capture.read(out).records) > 1000, "what had come back is in the file")
    case.check(not there.exists(), "the file in memory is left behind")


def waiting(case, binary, scratch):
    """A middlebox without functions says that it waits for them, for as long as it was told to."""
    there = scratch / "there"
    near = Process(binary, "slice", "run", "synth:packets=10", "null", "--through", there, "--wait", "500ms")
    status, _, err = near.end(20)
    case.equal(status, 2, "exit status")
    case.check("waiting for the process with the functions" in err and "nobody came" in err, err)
    case.check(not there.exists(), "the file in memory is left behind")


def interrupted(case, binary, scratch):
    """A middlebox that is interrupted lets the functions end too; nothing is an error."""
    there, out = scratch / "there", scratch / "out.pcap"
    stream = ("synth:packets=100M,size=1500,rate=20kpps", out, "--through", there, "--pace", "real", "--format", "json")
    with Process(binary, *reached(there), "counter") as far, Process(binary, "slice", "run", *stream) as near:
        come_back(out)
        near.process.send_signal(signal.SIGINT)
        reports = ended(case, near, far, 20)
    for report in reports:
        case.check(report is None or report["packets_in"] > 1000, "packets came in")
        if report is not None and counters(report, "slice"):
            came = sum(source["packets"] for source in report["sources"] if source["type"] != "shm")
            case.equal(report["packets_in"], came, "a packet counts once")


def overload(case, binary, scratch):
    """A ring that is full drops and counts, where that is asked for; and what comes from the other side is
    all that was sent."""
    there = scratch / "there"
    far = Process(binary, *reached(there), "limit(rate=1gpps)")
    graph = f'functions :: shm(path="{there}", ring=64KiB, when_full=drop); slice(storage=copy) -> functions; functions -> splice'
    near = Process(binary, "run", "--pace", "fast", "-i", "synth:packets=300k,size=300,rate=1mpps", "-o", "null", "--format", "json", "-e", graph)
    reports = ended(case, near, far)
    if all(reports):
        a, b = counters(reports[0], "shm"), counters(reports[1], "shm")
        case.equal(a["packets_sent"] + a["ring_full"], 300_000, "sent and dropped")
        case.equal(b["packets_received"], a["packets_sent"], "received")
        case.equal(a["packets_received"], b["packets_sent"], "came back")
        case.equal(reports[0]["dropped"].get("not_sent", 0), a["ring_full"], "dropped")


def dropped(case, binary, scratch):
    """What the functions drop is told to the middlebox, whose payloads then wait no longer."""
    # There is an entry for each packet in the one case, however late the middlebox hears of drops, and too
    # few in the other.
    for explicit, packets, entries in (("true", 60_000, 65_536), ("false", 100_000, 4096)):
        there = scratch / f"there-{explicit}"
        far = Process(binary, *reached(there), "limit(rate=1pps, burst=10000)")
        graph = (f'functions :: shm(path="{there}"); slice(entries={entries}, ttl=65535, explicit_drop={explicit}) -> functions; '
                 "functions -> splice")
        given = f"synth:packets={packets},flows=1000,size=1000,rate=200kpps"
        near = Process(binary, "run", "-i", given, "-o", "null", "--format", "json", "-e", graph)
        reports = ended(case, near, far)
        if not all(reports):
            continue
        a, b = counters(reports[0], "shm"), counters(reports[1], "shm")
        gone = sum(reports[1]["dropped"].values())
        case.check(packets - 20_000 < gone < packets, f"{gone} packets dropped by the functions")
        slices = counters(reports[0], "slice")
        case.equal(a["packets_received"], packets - gone, "packets that came back")
        if explicit == "true":
            case.equal([b["drops_told"], a["told_of_drops"]], [gone, gone], "drops that were told")
            case.equal(slices["payloads_released"] + slices["payloads_left_at_end"], gone, "payloads given up")
            case.equal(slices["whole_full"], 0, "packets that met an entry in use")
        else:
            case.equal(slices["payloads_released"], 0, "payloads given up at once")
            case.check(slices["whole_full"] > 10_000, f"only {slices['whole_full']} packets met an entry in use")


def not_ours(case, binary, scratch):
    """Files that are something else are left alone."""
    file = scratch / "notes.txt"
    file.touch(mode=0o600)
    for text in ("my notes\n" * 1000, "x", "slipshm\n" + "\0" * 5000):
        file.write_text(text)
        done = harness.Run(binary, [*reached(file), "counter"], timeout=20)
        case.equal(done.status, 2, f"exit status for {text[:10]!r}")
        case.check(str(file) in done.stderr and "panicked" not in done.stderr, done.stderr)
        case.equal(file.read_text(), text, "the file's content")
    file.chmod(0o666)
    done = harness.Run(binary, [*reached(file), "counter"], timeout=20)
    case.equal(done.status, 2, "exit status for a file that others may use")
    case.check("mode 666" in done.stderr, done.stderr)
    done = harness.Run(binary, [*reached(scratch / "no" / "such"), "counter"], timeout=20)
    case.equal(done.status, 2, "exit status where there is no directory")
    done = harness.Run(binary, ["validate", "-i", "null", "-o", "null", "-e", 'shm(path="x", ring=100KB) -> counter'], timeout=20)
    case.equal(done.status, 2, "exit status for a ring that is no power of two")


def damaged(case, binary, scratch):
    """A ring that says what can't be: an error, whatever it says."""
    file = scratch / "there"
    ring = 1 << 16
    whole = struct.Struct("=IIIIQQ")
    cases = {
        "a position without end": (struct.pack("=Q", 1 << 60), b""),
        "a crooked position": (struct.pack("=Q", 65), b""),
        "a record beyond what there is": (struct.pack("=Q", 128), whole.pack(5000, 0, 0, 1, 0, 0)),
        "a record of four gigabytes": (struct.pack("=Q", ring), whole.pack(0xFFFFFFF0, 0, 0, 1, 0, 0)),
        "a mark that leads out": (struct.pack("=Q", 128), whole.pack(0xFFFFFFFF, 0, 0, 1, 0, 0)),
    }
    for name, (tail, record) in cases.items():
        far = Process(binary, "run", "-i", f"shm:{file}", "-o", "null", "-e", "counter")
        wait_for(lambda: file.exists() and file.stat().st_size > 4096)
        size = (file.stat().st_size - 4096) // 2
        with open(file, "r+b") as memory:
            # The ring that the second side sends by; then its position.
            memory.seek(4096 + size)
            memory.write(record)
            memory.flush()
            memory.seek(768)
            memory.write(tail)
        status, _, err = far.end(20)
        case.equal(status, 2, f"{name}: exit status ({err.strip()[-200:]})")
        case.check("is damaged" in err and "panicked" not in err, f"{name}: {err}")


def locked(case, binary, scratch):
    """A process that was stopped while it took or left a side keeps nobody waiting for ever."""
    file = scratch / "there"
    file.touch(mode=0o600)
    with open(file, "r+b") as there:
        # As such a process has it locked (layout.rs).
        fcntl.fcntl(there, F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 2, 1, 0))
        near, far = (Process(binary, *reached(file), "counter") for _ in range(2))
        time.sleep(1)
        near.process.send_signal(signal.SIGINT)
        status, _, err = near.end(20)
        case.check(status not in (None, 0), f"interrupted: {status} {err}")
        status, _, err = far.end(30)
        case.check(status == 2 and "about to take or leave" in err, f"left alone: {status} {err}")


EDGES = (killed, waiting, interrupted, overload, dropped, not_ours, damaged, locked)


def check(binary, job, scratch):
    """One capture, or one edge."""
    edge = next((e for e in EDGES if e.__name__ == job), None)
    if edge is None:
        yield from same(binary, job, scratch)
        return
    case = harness.Case()
    edge(case, binary, scratch)
    yield edge.__doc__.splitlines()[0], case.wrong


def jobs(where):
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is not installed, so that nothing can be checked")
    chosen = [e.__name__ for e in EDGES] + ["tcp", harness.ROOT / "traces/campus.pcap.gz"]
    return chosen + [p for p in sorted((where / "multi").iterdir()) if p.stat().st_size < 5_000_000]


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, check, chunk=1)
