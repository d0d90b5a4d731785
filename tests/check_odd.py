#!/usr/bin/env python3
"""Does any capture, however odd, make `slipstream` crash, hang, eat memory or lie?

Every file of `odd` goes through analyze and reframe. Each run must end in time, within memory, with exit
status 0 or a message that names the file; what is written must be the packets of the input, and what is
reported must be what an own reader of captures finds.
"""

import json
import os
import shlex
import subprocess
import threading
from collections import Counter

import capture
import harness
from twin import Twin

SECONDS = 10
MEGABYTES = 200
HOLD = 64_000


class Watched:
    """A run with an eye on its time and memory."""

    def __init__(self, binary, arguments, scratch):
        words = [str(binary), *map(str, arguments)]
        self.command = shlex.join(words).replace(str(scratch), "/tmp")
        out, err = scratch / "stdout", scratch / "stderr"
        with open(out, "wb") as stdout, open(err, "wb") as stderr:
            child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr)
            self.late = False
            timer = threading.Timer(SECONDS, self.stop, [child])
            timer.start()
            _, status, usage = os.wait4(child.pid, 0)
            timer.cancel()
            child.returncode = self.status = os.waitstatus_to_exitcode(status)
        self.megabytes = usage.ru_maxrss / 1024
        self.stdout, self.stderr = out.read_text(), err.read_text(errors="replace")

    def stop(self, child):
        self.late = True
        child.kill()

    def behaved(self, case, path):
        """Checks that it ended as a program should; returns its result where it has one."""
        case.check(not self.late, f"still running after {SECONDS} s")
        case.check(self.megabytes < MEGABYTES, f"took {self.megabytes:.0f} MB")
        case.check("panicked" not in self.stderr, f"panicked: {self.stderr[:300]}")
        if not case.check(self.status in (0, 2), f"exit status {self.status}: {self.stderr[:300]}"):
            return None
        if self.status == 2:
            case.check(path.name in self.stderr, f"the error doesn't name the file: {self.stderr[:300]!r}")
            case.equal(self.stdout, "", "stdout of a failed run")
            return None
        return json.loads(self.stdout)


class Facts:
    """What our reader finds in a capture."""

    def __init__(self, read):
        self.records = read.records
        self.headers = [capture.headers(r.link, r.data) for r in self.records]
        found = [h for h in self.headers if h]
        numbers = {}
        self.flows = [numbers.setdefault(h.key, len(numbers)) if h else None for h in self.headers]
        sizes = Counter(f for f in self.flows if f is not None)
        line = [f for f in self.flows if f is not None]
        runs = sum(a != b for a, b in zip([None, *line], line))
        self.expected = {
            "packets": len(line), "flows": len(sizes), "single_packet_flows": sum(n == 1 for n in sizes.values()),
            "runs": runs, "pairs": len(line) - len(sizes), "slf": len(line) / runs if line else None,
        }
        self.ipv6 = sum(h.version == 6 for h in found)
        self.fragments = sum(h.fragment for h in found)
        self.bytes = sum(r.length for r in self.records)
        self.flows_bidirectional = len({two_way(h.key) for h in found})

    def times(self):
        """When packets come: never before the one before, and with it where a packet has no time."""
        latest, times = 0, []
        for r in self.records:
            latest = max(latest, r.time or 0)
            times.append(latest)
        return times


def two_way(key):
    vlans, version, addresses, protocol, ports = key
    half = len(addresses) // 2
    ends = sorted([(addresses[:half], ports[:2]), (addresses[half:], ports[2:])])
    return vlans, version, protocol, *ends


def compare(case, result, facts):
    case.equal(result["records"], len(facts.records), "records")
    case.equal(result["bytes"], facts.bytes, "bytes")
    case.equal(result["ipv6"], facts.ipv6, "ipv6")
    case.equal(result["fragments"], facts.fragments, "fragments")
    case.equal(result["flows_bidirectional"], facts.flows_bidirectional, "flows_bidirectional")
    case.equal(result["ip"]["packets"] + sum(result["skipped"].values()), len(facts.records), "packets + skipped")
    for key, value in facts.expected.items():
        case.equal(result["ip"][key], value, f"ip.{key}")


def windows(case, result, facts):
    """`slf_after` and batches of a window, by the twin."""
    times = facts.times()
    twin = Twin(times, facts.flows, [0] * len(times), [(HOLD, 32)], "waiting")
    line = [facts.flows[i] for i, _ in twin.out if facts.flows[i] is not None]
    runs = sum(a != b for a, b in zip([None, *line], line))
    window = result["ip"]["windows"][0]
    case.equal(window["batches"], len(twin.trains), "ip.windows[0].batches")
    case.equal(window["slf_after"], len(line) / runs if line else None, "ip.windows[0].slf_after")


def analyze(binary, path, facts, scratch):
    case = harness.Case()
    run = Watched(binary, ["analyze", path, "--format", "json", "--window", "64us"], scratch)
    result = run.behaved(case, path)
    if result is not None and facts is not None:
        compare(case, result, facts)
        windows(case, result, facts)
    if result is None and facts is not None and facts.records:
        case.check(False, f"refused, though {len(facts.records)} packets can be read: {run.stderr.strip()[:300]}")
    return run, result, case.wrong


def reframe(binary, path, facts, scratch, analyzed):
    case, output = harness.Case(), scratch / "out.pcapng"
    words = ["reframe", path, output, "--format", "json", "--bypass", "none", "--policy", "waiting"]
    run = Watched(binary, words, scratch)
    result = run.behaved(case, path)
    if result is None:
        case.check(not output.exists(), "failed, and left an output behind")
        case.equal(analyzed is None, True, "analyze failed")
    else:
        out = capture.read(output)
        case.check(out.whole, "the output is not a whole capture")
        case.equal(len(out.records), result["packets_out"], "packets_out")
        times = [r.time for r in out.records]
        case.equal(times, sorted(times), "written times never decrease")
        if facts is not None:
            case.equal(result["packets_in"], len(facts.records), "packets_in")
            bag = lambda records: Counter((r.link, r.length, r.data) for r in records)
            case.check(bag(out.records) == bag(facts.records), "the output has other packets than the input")
            case.equal(result["slf_in"], facts.expected["slf"], "slf_in")
            others = lambda records: [r.data for r in records if capture.flow_key(r.link, r.data) is None]
            case.check(others(out.records) == others(facts.records), "packets without a flow changed places")
        if analyzed is not None:
            case.equal(result["slf_out"], analyzed["ip"]["windows"][0]["slf_after"], "slf_out against slf_after")
            case.equal(result["truncated_at_byte"], analyzed["truncated_at_byte"], "truncated_at_byte")
    return run, case.wrong


def work(binary, path, scratch):
    try:
        facts = Facts(capture.read(path))
    except capture.Unreadable:
        facts = None
    run, analyzed, wrong = analyze(binary, path, facts, scratch)
    yield run.command, wrong
    run, wrong = reframe(binary, path, facts, scratch, analyzed)
    yield run.command, wrong


def jobs(where):
    return sorted((where / "odd").iterdir())


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, work, chunk=8)
