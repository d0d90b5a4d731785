"""Differences to builds before the driver took packets in batches, each told exactly: `same_bytes.py --known`
counts them by kind.

Builds up to commit fc9c63c ran a stage that holds packets, and all behind it, for one packet at a time. A
batch of up to 256 goes through them since. That changes nothing of what leaves but for two mistakes that were
mended on the way (commit 507f29c):

- A datagram whose fragments filled up a batch left fragment by fragment, each at its own arrival; it leaves
  with its last one.
- A router cut a train at a packet before which something was due, so that an ICMP error about it left before
  packets of the train.

And `reframe --workers N` gave each thread a table of its own and a part of the capacity; now the result is
that of one thread.
"""

import re
import struct

import capture

# Counters that say how many packets came at a time, and what follows from that: how many decisions a train
# took, how often a table looked for what had expired, how many payloads waited at a time, whether a small
# table had room for them, messages of an export.
BATCHED = {"batches", "decisions", "expiry_turns", "messages", "payloads_most_waiting"}
PARKED = {"sliced", "whole_full", "parked_bytes", "payloads_released"}
# Space-Saving counts in half the memory a key, so that a budget holds more of them.
MEMORY = {"memory_bytes"}
# Counters and lines that there were none of before.
COLUMNS = ("a batch", "a train", "trains")
NAMES = re.compile(r"^(decisions|expiry turns|messages|payloads most waiting|memory bytes|sliced|whole full|parked bytes|payloads released)\b")
ICMP = (1, 58)


def report(value, key=""):
    """A report without what follows from batches, at whose ends trains that come to a stage are cut. Those
    that a reframer makes are among its counters, and stay."""
    if isinstance(value, dict):
        gone = BATCHED | MEMORY | (PARKED if "whole_full" in value else set())
        gone |= {"trains"} if key == "stages" else set()
        return {name: report(inner, name) for name, inner in value.items() if name not in gone}
    return [report(inner, key) for inner in value] if isinstance(value, list) else value


def text(lines):
    """The lines of tables without columns and lines that follow from batches."""
    found, gone = [], ()
    for line in lines:
        cells = line.split("  ")
        if "a batch" in cells:
            gone = [n - len(cells) for n, cell in enumerate(cells) if cell in COLUMNS]
        elif not line.strip():
            gone = ()
        if gone and len(cells) + min(gone) > 0:
            cells = [cell for n, cell in enumerate(cells) if n - len(cells) not in gone]
        if not NAMES.match(cells[0]) and line.strip():
            # Warnings of runs are lines of a log since, with their time.
            found.append(re.sub(r"^\d{4}-\d\d-\d\dT\S+Z +", "", "  ".join(cells)))
    return found


def within(old, new):
    """True if all old lines are there, in their order; the sentences of a page may go on."""
    rest = iter(new)
    same = lambda one, line: line == one or one.endswith("</p>") and line.startswith(one.removesuffix("</p>"))
    return all(any(same(one, line) for line in rest) for one in old)


def records(export):
    """The records of an IPFIX export, each with its template, sorted: whatever the messages that it was sent
    in, and the order in which a table came upon flows that were idle. None where it can't be read."""
    sizes, found, at = {}, [], 0
    while at + 16 <= len(export):
        version, length, _, _, domain = struct.unpack_from(">HHIII", export, at)
        if version != 10 or length < 16:
            return None
        body, at = export[at + 16:at + length], at + length
        while len(body) >= 4:
            number, size = struct.unpack_from(">HH", body)
            data, body = body[4:size], body[max(size, 4):]
            if number == 2:
                sizes.update(((domain, template), fields) for template, fields in templates(data))
            elif number > 255:
                each = sum(size for _, size in sizes[domain, number])
                fields = sizes[domain, number]
                if not each or any(size == 65535 for _, size in fields):
                    return None
                found += [(fields, data[n:n + each]) for n in range(0, len(data) - each + 1, each)]
    return sorted(found)


def templates(data):
    """The templates of a set: number, and kind and size of each field."""
    at = 0
    while at + 4 <= len(data):
        number, count = struct.unpack_from(">HH", data, at)
        at, fields = at + 4, []
        for _ in range(count):
            fields.append(struct.unpack_from(">HH", data, at))
            at += 8 if fields[-1][0] & 0x8000 else 4
        yield number, tuple(fields)


def file(old, new, name, known):
    """True if two files differ in a known way; its kind is added to `known`."""
    if known is None:
        return False
    kind = None
    if name.endswith(".parquet"):
        kind = "flows.parquet has more columns, and was not compared"
    elif name.endswith(".ipfix"):
        one, two = records(old), records(new)
        kind = "an IPFIX export has the same records in other messages" if one is not None and one == two else None
    elif name.endswith(".state"):
        apart = [n for n, (one, two) in enumerate(zip(old, new)) if one != two]
        # Numbers of counters in the head of each table, and the checksums behind them.
        few = len(old) == len(new) and not any(b - a < 5 for a, b in zip(apart, apart[4:]))
        kind = "a state of Space-Saving has room for more counters in the same memory" if few else None
    elif ".pcap" in name or name in ("stdout", "stderr"):
        kind = captures(old, new)
    known.update([kind] if kind else [])
    return kind is not None


def captures(old, new):
    """The kind of difference between two captures; None where it is another one."""
    try:
        one, two = capture.parse(old), capture.parse(new)
    except (capture.Unreadable, ValueError):
        return None
    if one._replace(records=()) != two._replace(records=()) or len(one.records) != len(two.records):
        return None
    if one.records == two.records:
        return "the same packets, compressed otherwise"
    said = lambda record: capture.headers(record.link, record.data)
    what = [(record, said(record)) for record in one.records], [(record, said(record)) for record in two.records]
    others = [[pair for pair in pairs if pair[1] is None or pair[1].protocol not in ICMP or pair[1].fragment] for pairs in what]
    errors = [[pair for pair in pairs if pair[1] is not None and pair[1].protocol in ICMP and not pair[1].fragment] for pairs in what]
    kinds = set()
    if [r for r, _ in what[0]] != [r for r, _ in what[1]] and [r[1:] for r, _ in what[0]] != [r[1:] for r, _ in what[1]]:
        kinds.add("an ICMP error leaves behind the packets of its train")
    for before, after in (*zip(*others), *zip(*errors)):
        if before[0][1:] != after[0][1:]:
            return None
        if before[0].time != after[0].time:
            if before[1] is None or not before[1].fragment or after[0].time < before[0].time:
                return None
            kinds.add("fragments leave with their datagram")
    return " and ".join(sorted(kinds))
