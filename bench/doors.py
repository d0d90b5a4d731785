#!/usr/bin/env python3
"""A million packets through each type of live port: what is lost, overtaken, and how late packets are.

usage: bench/doors.py [--binary target/release/slipstream] [--dpdk BINARY] [--packets 1000000]
                      [--rate 25000] [--only DOOR] [--picture FILE.svg]

    a (a0) ==== (ma) m (mb) ==== (b0) b

Packets of 64 flows in turn leave one by one, each with its number and the time at which it leaves. tcpdump on
the far side writes down what arrives, with the kernel's time; the delay is from the one time to the other,
all that is on the way included. Each packet is held for 64 µs, since the next one of its flow comes later.
The sender sleeps between packets. Nothing else should run on the machine. Needs root, ip, ethtool, tcpdump
and a C compiler; `--dpdk` names a binary with ports of DPDK (make dpdk).
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The tests have a module of the same name, which isn't the one that is meant.
sys.path[:0] = [str(HERE), str(HERE.parent / "tests")]
import harness  # noqa: E402
import live_ports  # noqa: E402
import netns  # noqa: E402
from netns import Middlebox, Net  # noqa: E402

import numpy as np  # noqa: E402

FLOWS = 64
HOLD_US = 64
MOST_US = HOLD_US + 60
HOLD = f"reframe(hold={HOLD_US}us)"
ROOM = "ring=16384, buffers=65536"
EAL = "--no-huge -m 256 --no-pci"
# Of each record of the capture: its header, and the whole frame.
RECORD = np.dtype([("seconds", "<u4"), ("ns", "<u4"), ("captured", "<u4"), ("length", "<u4"), ("before", "V34"),
                   ("port", ">u2"), ("between", "V6"), ("number", ">u8"), ("left", ">u8"), ("behind", "V2")])


class Door:
    """A way between two interfaces: the command's words, where packets go in and where they come out."""

    def __init__(self, name, *words, near=("a", "a0"), far=("b", "b0"), binary=None, beside=()):
        self.name, self.words, self.near, self.far = name, words, near, far
        self.binary, self.beside = binary, beside


def doors(dpdk, scratch):
    """All of them."""
    graph = lambda one, other, through=f"{HOLD} -> ": ("-e", f"in :: {one}; out :: {other}; in -> {through}out")
    packet = ("af_packet(interface=ma, ring=16384)", "af_packet(interface=mb)")
    xdp = [f"af_xdp(interface={interface}, mode=native, {ROOM})" for interface in ("ma", "mb")]
    generic = [f"af_xdp(interface={interface}, mode=generic, {ROOM})" for interface in ("ma", "mb")]
    tap = [f"tap_interface(interface={interface})" for interface in ("t0", "t1")]
    link = f'shm(path="{scratch}/link")'
    yield Door("AF_PACKET, nothing held", *graph(*packet, ""))
    yield Door("AF_PACKET", *graph(*packet))
    yield Door("AF_PACKET, two shards", "--shards", "2", *graph(*packet))
    yield Door("AF_XDP, native", *graph(*xdp))
    yield Door("AF_XDP, generic", *graph(*generic))
    yield Door("TAP", *graph(*tap), near=("m", "t0"), far=("m", "t1"))
    yield Door("shared memory", *graph(link, packet[1]), beside=("-e", f"in :: {packet[0]}; in -> out :: {link}"))
    if dpdk:
        ports = (f'dpdk(device="net_af_packet0,iface=ma", eal="{EAL}")', 'dpdk(device="net_af_packet1,iface=mb")')
        yield Door("DPDK, net_af_packet", *graph(*ports), binary=dpdk)


def sent_through(door, binary, flood, packets, rate, capture):
    """Packets through a door: the command's reports, and what was captured behind it."""
    with Net() as net:
        live_ports.quiet(net)
        words = [door.words] if not door.beside else [door.beside, door.words]
        boxes = [Middlebox(net, door.binary or binary, "run", "--format", "json", *each).ready() for each in words]
        for box in boxes:
            if box.child.poll() is not None:
                sys.exit(f"{door.name}: {box.child.stderr.read()}")
        listener = net.start(door.far[0], "tcpdump", "-i", door.far[1], "-Q", "in", "-n", "-s", "64", "-B", "65536",
                             "--time-stamp-precision=nano", "-w", capture, "udp port 9 and len == 60")
        if "listening" not in listener.stderr.readline():
            sys.exit(f"{door.name}: tcpdump: {listener.stderr.read()}")
        sender = net.start(door.near[0], flood, door.near[1], live_ports.far_address(net), rate, packets / rate, FLOWS, 1, "stamped")
        live_ports.ended(sender)
        sent = int(sender.stdout.read())
        time.sleep(1)
        listener.send_signal(signal.SIGINT)
        _, said = listener.communicate(timeout=60)
        if "\n0 packets dropped by kernel" not in "\n" + said:
            sys.exit(f"{door.name}: tcpdump: {said}")
        reports = []
        # Whoever sends to the other ends first.
        for box in boxes:
            status, out, err = box.stop()
            if status != 0:
                sys.exit(f"{door.name}: exit status {status}: {err}")
            reports.append(json.loads(out))
    frames = np.fromfile(capture, RECORD, offset=24)
    if len(frames) and not (frames["captured"] == 60).all():
        sys.exit(f"{door.name}: other frames than were sent")
    return sent, reports, frames


def overtaken(frames):
    """Packets that arrived behind a later one of their flow."""
    number = frames["number"].astype(np.int64)
    count = 0
    for port in np.unique(frames["port"]):
        of_flow = number[frames["port"] == port]
        count += int((of_flow[1:] < np.maximum.accumulate(of_flow)[:-1]).sum())
    return count


def wrong(sent, reports, frames):
    """What counters and capture say that should not be; nothing if all is well."""
    found = []
    if len(frames) != sent or len(np.unique(frames["number"])) != sent:
        found.append(f"{sent} sent, {len(np.unique(frames['number']))} of them arrived, {len(frames)} in all")
    for report in reports:
        if report["dropped"] or report["left_inside"] or report["packets_in"] != report["packets_out"]:
            found.append(f"{report['packets_in']} in, {report['packets_out']} out, dropped: {report['dropped']}")
        if report["packets_out"] < sent:
            found.append(f"{report['packets_out']} out by the report, {sent} sent")
    if late := overtaken(frames):
        found.append(f"{late} overtaken")
    return found


def picture(rows):
    """Histograms of delays, one below the other: of all packets, the share in each two microseconds, its
    height by its logarithm."""
    left, width, row, top, most_us, step = 190, 560, 64, 36, 300, 2
    height = top + row * len(rows) + 44
    x = lambda us: left + width * min(us, most_us) / most_us
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 40} {height}" role="img" aria-labelledby="t">',
        '<title id="t">Delay of packets by live port, in microseconds; heights are logarithms of shares</title>',
        "<style>text{font:12px Helvetica,Arial,sans-serif;fill:#333}.s{fill:#666;font-size:11px}</style>",
        f'<rect x="1" y="1" width="{left + width + 38}" height="{height - 2}" rx="10" fill="#fff" stroke="#ccc"/>',
    ]
    bottom = top + row * len(rows)
    for us, text in ((HOLD_US, f"hold, {HOLD_US} µs"), (MOST_US, "hold + 60 µs")):
        out.append(f'<path d="M{x(us):.1f} {top - 6}V{bottom}" stroke="#c05030" stroke-dasharray="4 3"/>'
                   f'<text class="s" x="{x(us) + 4:.1f}" y="{top - 10}">{text}</text>')
    for n, (name, delays) in enumerate(rows):
        base = top + row * (n + 1) - 8
        shares = np.bincount(np.minimum(delays / step, most_us / step - 1).astype(int), minlength=most_us // step) / len(delays)
        bars = "".join(f"M{x(at * step):.1f} {base}v{-(row - 18) * (6 + np.log10(share)) / 6:.1f}h{width * step / most_us:.1f}V{base}"
                       for at, share in enumerate(shares) if share > 1e-6)
        out.append(f'<path d="{bars}" fill="#4a78b0"/><path d="M{left} {base}h{width}" stroke="#999"/>'
                   f'<text x="{left - 10}" y="{base - 14}" text-anchor="end">{name}</text>'
                   f'<text class="s" x="{left - 10}" y="{base}" text-anchor="end">99 %: {np.percentile(delays, 99):.0f} µs</text>')
    for us in range(0, most_us + 1, 50):
        text, anchor = (f"{us}", "middle") if us < most_us else (f"{us} and more", "end")
        out.append(f'<text class="s" x="{x(us):.1f}" y="{bottom + 12}" text-anchor="{anchor}">{text}</text>')
    out.append(f'<text x="{left + width / 2}" y="{bottom + 32}" text-anchor="middle">delay from sender to receiver, µs '
               '(heights: logarithms of shares, from one in a million)</text>')
    return "\n".join([*out, "</svg>", ""])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--dpdk", type=Path, help="a binary with ports of DPDK, whose port is measured, too")
    parser.add_argument("--packets", default=1_000_000, type=int)
    parser.add_argument("--rate", default=25_000, type=int)
    parser.add_argument("--only", help="the doors whose names begin with this")
    parser.add_argument("--picture", type=Path, help="histograms of the delays")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    dpdk = arguments.dpdk and harness.program(arguments.dpdk, "make dpdk")
    if reason := netns.why_not():
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed("tcpdump", os.environ.get("CC", "cc"))
    print("| port | packets | lost, twice, overtaken | median | 90 % | 99 % | 99.9 % | longest | CPU a packet |")
    print("|---|---|---|---|---|---|---|---|---|")
    rows, failed = [], False
    with tempfile.TemporaryDirectory() as directory:
        scratch = Path(directory)
        flood = live_ports.built(scratch)["flood"]
        for door in doors(dpdk, scratch):
            if arguments.only and not door.name.startswith(arguments.only):
                continue
            sent, reports, frames = sent_through(door, binary, flood, arguments.packets, arguments.rate, scratch / "seen.pcap")
            found = wrong(sent, reports, frames)
            failed |= bool(found)
            arrived = frames["seconds"].astype(np.int64) * 1_000_000_000 + frames["ns"]
            delays = (arrived - frames["left"].astype(np.int64)) / 1e3
            if not len(delays):
                sys.exit(f"{door.name}: nothing arrived: {found}")
            rows.append((door.name, delays))
            cells = [f"{np.percentile(delays, share):.0f} µs" for share in (50, 90, 99, 99.9, 100)]
            cpu = sum(report["cpu_ns"] for report in reports) / sent / 1e3
            print(f"| {door.name} | {sent:,} | {'; '.join(found) or 'none'} | {' | '.join(cells)} | {cpu:.1f} µs |", flush=True)
    if arguments.picture:
        arguments.picture.write_text(picture(rows), encoding="utf-8")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
