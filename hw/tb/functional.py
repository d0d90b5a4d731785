"""Functional coverage: what the tests made happen, noted at every clock, and what they should have."""

import atexit
import itertools
import json
import os
from collections import Counter

from cocotb.triggers import RisingEdge

EVENTS = (
    "sliced small kind no_room full remarked dropped damaged token_from_network "
    "spliced untouched forged stale late duplicate released mangled oversize early bad hidden expired"
).split()
KINDS = [f"{six} {l4}" for six in ("IPv4", "IPv6") for l4 in ("TCP", "UDP")]
WANTED = (
    [f"event {name}" for name in EVENTS]
    + [f"sliced {kind}" for kind in KINDS]
    + [f"sliced with {tags} tags" for tags in range(3)]
    + [f"spliced {kind}" for kind in KINDS]
    + [f"payload moved {way}" for way in ("not at all", "to the right", "to the left")]
    + [f"token in beat {beat}" for beat in (1, 2, 3)]
    + [f"{port} had to wait" for port in ("net_in", "host_out", "host_in", "net_out")]
    + ["both ways at once", "a packet waited for its payload"]
)
hits = Counter()


def asked_for():
    return "FUNCTIONAL_COVERAGE" in os.environ


def save():
    if asked_for():
        with open(os.environ["FUNCTIONAL_COVERAGE"], "w") as out:
            json.dump(hits, out)


def report(files):
    """Prints how much of what was wanted has happened; returns what has not."""
    total = Counter()
    for path in files:
        try:
            with open(path) as notes:
                total.update(json.load(notes))
        except OSError:
            print(f"no coverage in {path}")
    missing = [name for name in WANTED if not total[name]]
    print(f"functional coverage: {len(WANTED) - len(missing)} of {len(WANTED)}")
    for name in WANTED:
        print(f"  {total[name]:>7,}  {name}")
    return missing


atexit.register(save)


async def note(dut):
    """Notes what happens, as long as the simulation runs."""
    inside, outside = dut.ingress, dut.egress
    events = dut.settings.events
    ports = [
        (name, getattr(dut, f"{prefix}_tvalid"), getattr(dut, f"{prefix}_tready"))
        for name, prefix in (("net_in", "s_axis_net"), ("host_out", "m_axis_host"), ("host_in", "s_axis_host"), ("net_out", "m_axis_net"))
    ]
    kind = lambda at: f"{'IPv6' if int(at.six.value) else 'IPv4'} {'TCP' if int(at.tcp.value) else 'UDP'}"
    for cycle in itertools.count():
        await RisingEdge(dut.clk)
        value = events.value
        if "1" in str(value) and value.is_resolvable:
            value = int(value)
            for n, name in enumerate(EVENTS):
                if value >> n & 1:
                    hits[f"event {name}"] += 1
            if value & 1:
                hits[f"sliced {kind(inside)}"] += 1
                hits[f"sliced with {(int(inside.l3.value) - 14) // 4} tags"] += 1
            if value >> 9 & 1:
                hits[f"spliced {kind(outside)}"] += 1
                way = "to the left" if int(outside.ahead.value) else "to the right" if int(outside.move.value) else "not at all"
                hits[f"payload moved {way}"] += 1
                hits[f"token in beat {(int(outside.at.value) + 7) // len(dut.s_axis_net_tkeep)}"] += 1
                if int(dut.ingress.row_wen.value):
                    hits["both ways at once"] += 1
        if cycle % 4 == 0:
            for name, valid, ready in ports:
                if valid.value == 1 and ready.value == 0:
                    hits[f"{name} had to wait"] += 1
            if outside.waited_reg.value.is_resolvable and int(outside.waited_reg.value) > 0:
                hits["a packet waited for its payload"] += 1
