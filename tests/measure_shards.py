"""Shards of a capture, measured apart and merged, against one pass over everything and against counting with
dictionaries.

Epochs are by time; packets are dealt out one by one, in bursts, or flow by flow, so that some shards have
nothing in some epochs.
"""

import counts

SHARDS = (1, 2, 4, 7)
DAY = 86_400 * 10**9


def different(combinations):
    """Of tasks and sketches one for each kind of state and of answer: some tasks put the same into the same
    sketch."""
    alike = {"flow-size", "ddos-victims"}
    return [(task, sketch) for task, sketch in combinations
            if task not in alike and not (sketch in ("exact", "flow-radar") and task in ("heavy-hitters", "cardinality"))]


def deal(records, shards):
    """The records of each shard: by flow for seven of them, in bursts for four, else one by one."""
    parts = [[] for _ in range(shards)]
    for i, record in enumerate(records):
        if shards == 7:
            packet = counts.packet_of(record)
            at = sum(packet.source + packet.target) if packet else i
        else:
            at = i // 50 if shards == 4 else i
        parts[at % shards].append(record)
    return parts


def two_days(records):
    """The records in the order of their times, the later half a day later: between them lies an epoch without
    packets."""
    ordered = sorted(records, key=lambda r: r.time)
    half = len(ordered) // 2
    return [*ordered[:half], *(r._replace(time=r.time + DAY) for r in ordered[half:])]


def by_time(records, length):
    """The IP packets by epochs of so many ns."""
    found = {}
    for record in records:
        packet = counts.packet_of(record)
        if packet:
            found.setdefault(record.time // length, []).append(packet)
    return found


def true_epochs(packets, length, task, key):
    """Start, end and true answers by epochs of so many ns, those of nothing put together."""
    found, last = [], None
    for number, some in sorted(packets.items()):
        if last is not None and number > last + 1:
            found.append(((last + 1) * length, number * length, counts.Epoch([], task, key, False)))
        found.append((number * length, (number + 1) * length, counts.Epoch(some, task, key, False)))
        last = number
    return found


def without_partial(epochs):
    """Epochs without the mark of the first and the last one, which may be other ones of a shard."""
    return [{k: v for k, v in e.items() if k != "partial"} for e in epochs]


def unlisted(case, epoch, truth, key):
    """Whatever isn't in the answer weighs no more than the answer says."""
    listed = {key.parse(row["key"]) for row in epoch["answers"]}
    most = max((size for name, size in truth.items() if name not in listed), default=0)
    case.check(most <= epoch["unlisted_at_most"],
               f"a flow of {most} isn't listed, and at most {epoch['unlisted_at_most']} are stated")
