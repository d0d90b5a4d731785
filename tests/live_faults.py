"""What happens to interfaces and processes, and what the program does then: a clear message, or a counted
drop, never a hang.

Rows that other checks have are named in ROWS; here are the rest, each over AF_PACKET, AF_XDP and two shards
where that may differ.
"""

import json
import os
import signal
import struct
import time

from live_ports import counters, ended
from netlink import attached
from netns import Middlebox, Net, is_udp, number_of, udp

JSON = ("--format", "json")
# Interfaces are gone, and back, within this time.
SETTLE = 0.3
DOORS = {
    "af_packet": ("a :: af_packet(interface=ma); b :: af_packet(interface=mb); ", ()),
    "af_xdp": ("a :: af_xdp(interface=ma, ring=512); b :: af_xdp(interface=mb, ring=512); ", ()),
    "af_packet in shards": ("a :: af_packet(interface=ma); b :: af_packet(interface=mb); ", ("--shards", "2")),
}
BOTH_WAYS = "a -> reframe(hold=200us) -> b; b -> a"


def box_of(net, binary, door, graph=BOTH_WAYS):
    ports, words = DOORS[door]
    return Middlebox(net, binary, "run", *JSON, *words, "-e", ports + graph).ready()


def arrives(near, far, net, number, seconds=2):
    """True if a packet that is sent now arrives, before any other of this kind."""
    near.send(udp(net, number))
    return [number_of(frame)[1] for _, frame in far.receive(seconds, is_udp, 1)] == [number]


def fault_renamed(case, binary, _):
    """An interface that is renamed is the same, whoever has its old name then."""
    for door in DOORS:
        with Net() as net:
            near, far = net.wire("a"), net.wire("b")
            box = box_of(net, binary, door)
            case.check(arrives(near, far, net, 1), f"{door}: a packet before")
            for old, new in (("ma", "mc"), ("mb", "md")):
                net.ip("m", "link", "set", "dev", old, "down")
                net.ip("m", "link", "set", "dev", old, "name", new)
                net.ip("m", "link", "set", "dev", new, "up")
            time.sleep(SETTLE)
            case.check(arrives(near, far, net, 2), f"{door}: a packet after both interfaces were renamed")
            # Its MTU is none of their business.
            net.ip("m", "link", "add", "name", "ma", "mtu", 600, "type", "veth", "peer", "name", "mb", "mtu", 600)
            time.sleep(SETTLE)
            case.check(arrives(near, far, net, 3), f"{door}: a packet after others have the old names")
            near.send(udp(net, 4, payload=1000))
            case.equal([number_of(f)[1] for _, f in far.receive(2, is_udp, 1)], [4], f"{door}: a long packet then")
            ended(case, box)


def fault_replaced(case, binary, _):
    """An interface that was taken away is gone, though another one has its name and number at once."""
    for door in DOORS:
        for down in (False, True):
            with Net() as net:
                box = box_of(net, binary, door)
                if down:
                    net.ip("m", "link", "set", "dev", "ma", "down")
                    time.sleep(SETTLE)
                number = net.sh("m", "cat", "/sys/class/net/ma/ifindex").strip()
                at_once = (f"link del dev ma\\nlink add name ma index {number} type veth peer name mx\\n"
                           "link set dev ma up\\n")
                net.sh("m", "sh", "-c", f"printf '{at_once}' | ip -batch -")
                status, out, err = box.wait(5)
                case.check(status == 2 and "`ma` is gone" in err, f"{door}, down before: {down}: {status} {err[-300:]}")
                case.check(out.startswith("{"), f"{door}: no report: {out}")


def fault_mtu(case, binary, _):
    """Another MTU counts from then on: what is too long is counted, and what follows passes."""
    for door in DOORS:
        with Net() as net:
            near, far = net.wire("a"), net.wire("b")
            box = box_of(net, binary, door)
            case.check(arrives(near, far, net, 1), f"{door}: a packet before")
            net.ip("m", "link", "set", "dev", "mb", "mtu", 600)
            time.sleep(SETTLE)
            # The port looks at its interface when it has something to send.
            case.check(arrives(near, far, net, 2), f"{door}: a short packet")
            near.send(udp(net, 3, payload=1000))
            case.check(arrives(near, far, net, 4), f"{door}: a short packet behind a long one")
            net.ip("m", "link", "set", "dev", "mb", "mtu", 1500)
            time.sleep(SETTLE)
            case.check(arrives(near, far, net, 5), f"{door}: a packet after the MTU is as it was")
            near.send(udp(net, 6, payload=1000))
            case.equal([number_of(f)[1] for _, f in far.receive(2, is_udp, 1)], [6], f"{door}: a long packet then")
            report = ended(case, box)
            if report:
                case.equal((report["dropped"], counters(report, "b")[1]["too_long"]), ({"not_sent": 1}, 1), f"{door}: too long")


def fault_far_side_stops(case, binary, _):
    """The far end goes down while packets come: they are counted as lost somewhere, nothing waits, and later
    all is as before."""
    for door in DOORS:
        with Net() as net:
            near, far = net.wire("a"), net.wire("b")
            box = box_of(net, binary, door)
            case.check(arrives(near, far, net, 1), f"{door}: a packet before")
            net.ip("b", "link", "set", "dev", "b0", "down")
            for number in range(2000):
                near.send(udp(net, number, number % 50))
                if number % 50 == 49:
                    time.sleep(0.002)
            time.sleep(SETTLE)
            net.ip("b", "link", "set", "dev", "b0", "up")
            time.sleep(2 * SETTLE)
            far = net.wire("b")
            case.check(arrives(near, far, net, 9999), f"{door}: a packet after the far end is up again")
            began = time.monotonic()
            report = ended(case, box)
            case.check(time.monotonic() - began < 3, f"{door}: it took {time.monotonic() - began:.1f} s to end")
            if report:
                lost = sum(source["counters"]["dropped_by_kernel"] for source in report["sources"])
                case.check(report["packets_in"] + lost >= 2002, f"{door}: {report['packets_in']} came in, {lost} found no room")


def fault_killed(case, binary, _):
    """Killed at any moment: nothing stays on the interfaces, and another one takes the wire over at once."""
    for door in DOORS:
        with Net() as net:
            near = net.wire("a")
            for turn, delay in enumerate((0, 0.01, 0.03, 0.1, 0.2)):
                # While it opens its ports, and while it is at work.
                ports, words = DOORS[door]
                box = Middlebox(net, binary, "run", *JSON, *words, "-e", ports + BOTH_WAYS)
                end = time.monotonic() + delay
                number = 0
                while time.monotonic() < end:
                    near.send(udp(net, number))
                    number += 1
                box.child.kill()
                box.child.wait()
                end = time.monotonic() + 5
                while (left := attached(net, "ma") + attached(net, "mb")) and time.monotonic() < end:
                    time.sleep(0.02)
                case.equal(left, 0, f"{door}: programs on interfaces, killed after {delay} s")
                if turn == 2:
                    case.check("PROMISC" not in net.sh("m", "ip", "link", "show", "ma"), f"{door}: it stayed promiscuous")
            box = box_of(net, binary, door)
            far = net.wire("b")
            case.check(arrives(near, far, net, 7777), f"{door}: a packet through the next one")
            ended(case, box)


def fault_two_processes(case, binary, _):
    """A second process on an interface: AF_XDP refuses; packet sockets each get everything, so that packets
    come twice, and a fanout group shares them."""
    with Net() as net:
        box = box_of(net, binary, "af_xdp")
        began = time.monotonic()
        child = net.start("m", binary, "run", "-e", "af_xdp(interface=ma) -> null")
        _, err = child.communicate(timeout=10)
        case.check(child.returncode == 2 and "already" in err, f"two on one interface: {child.returncode} {err}")
        case.check(time.monotonic() - began < 5, "it took long to say so")
        ended(case, box)
    for fanout, times in (("", 2), (", fanout=77", 1)):
        with Net() as net:
            near, far = net.wire("a"), net.wire("b")
            graph = f"af_packet(interface=ma{fanout}) -> af_packet(interface=mb)"
            boxes = [Middlebox(net, binary, "run", *JSON, "-e", graph).ready() for n in range(2)]
            for number in range(40):
                near.send(udp(net, number, number))
            got = [number_of(f)[1] for _, f in far.receive(1, is_udp, 40 * times)]
            case.equal(sorted(got), sorted(list(range(40)) * times), f"packets by two processes{fanout}")
            for box in boxes:
                status, out, err = box.stop(signal.SIGINT)
                case.equal((status, json.loads(out)["left_inside"] if status == 0 else err), (0, 0), "end of one of them")


def fault_silent_stream(case, binary, scratch):
    """A capture that comes by a pipe, and ceases to, in the middle of a record, too: nothing waits for it but
    what it has not brought, and a run that is asked to end does so well."""
    path = scratch / "silent.fifo"
    os.mkfifo(path)
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        header = struct.pack("<IHHiIII", 0xa1b23c4d, 2, 4, 0, 0, 0, 1)
        record = lambda number: struct.pack("<IIII", 1, number, 60, 60) + udp(net, number)
        numbers = lambda most, seconds=2: [number_of(f)[1] for _, f in far.receive(seconds, is_udp, most)]
        stream = os.open(path, os.O_RDWR)
        os.write(stream, header)
        graph = f"f :: pcap(path={path}); a :: af_packet(interface=ma); b :: af_packet(interface=mb); f -> b; a -> reframe -> b"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        case.check(arrives(near, far, net, 1), "a packet of the interface before any of the pipe")
        os.write(stream, record(2))
        case.equal(numbers(1), [2], "the pipe's first packet")
        os.write(stream, record(3)[:30])
        case.check(arrives(near, far, net, 4), "a packet of the interface while a record of the pipe is cut")
        os.write(stream, record(3)[30:] + record(5))
        case.equal(numbers(2), [3, 5], "the rest of the record, and the next one")
        cpu = lambda: sum(map(int, open(f"/proc/{box.child.pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()[11:13]))
        before = cpu()
        time.sleep(1)
        case.check(cpu() - before < 50, f"{cpu() - before} hundredths of a second of CPU time to wait for a second")
        # What comes later has not come when it ends.
        os.write(stream, struct.pack("<IIII", 100, 0, 60, 60) + udp(net, 6) + record(7)[:70])
        time.sleep(SETTLE)
        report = ended(case, box, signal.SIGTERM)
        if report:
            case.equal(report["sources"][0]["packets"], 3, "packets of the pipe")
        # One whose writer ends is over, and the rest of the run goes on.
        box = Middlebox(net, binary, "run", *JSON, "-e", graph)
        os.write(stream, header + record(7))
        box.ready()
        os.close(stream)
        case.equal(numbers(1), [7], "the last packet of a pipe")
        case.check(arrives(near, far, net, 8), "a packet of the interface behind the end of the pipe")
        ended(case, box)


def fault_capture_removed(case, binary, scratch):
    """A capture that is removed while it is written is told of, and its packets are counted as lost; one that
    is moved is written on."""
    for what in ("removed", "moved"):
        with Net() as net:
            near = net.wire("a")
            folder = scratch / f"capture-{what}"
            folder.mkdir()
            path, elsewhere = folder / "a.pcap", folder / "b.pcap"
            box = Middlebox(net, binary, "run", *JSON, "-e", f"af_packet(interface=ma) -> pcap(path={path})").ready()
            near.send(udp(net, 1))
            end = time.monotonic() + 5
            while not path.exists() and time.monotonic() < end:
                time.sleep(0.05)
            if what == "removed":
                path.unlink()
            else:
                path.rename(elsewhere)
            near.send(udp(net, 2))
            if what == "removed":
                status, out, err = box.wait(5)
                case.check(status == 2 and "was removed" in err, f"{what}: {status} {err[-300:]}")
                report = json.loads(out)
                case.equal(report["dropped"], {"not_sent": report["packets_in"]}, f"{what}: lost")
            elif report := ended(case, box):
                case.equal((report["dropped"], path.exists(), elsewhere.exists()), ({}, False, True), what)


# Rows of faults, and the checks that have them.
ROWS = {
    "interface down and up": ("trouble", "xdp_trouble"),
    "interface renamed": ("fault_renamed", "xdp_trouble"),
    "interface removed": ("trouble", "xdp_trouble", "shard_trouble"),
    "interface replaced": ("fault_replaced",),
    "MTU changed": ("fault_mtu", "too_long", "xdp_trouble"),
    "far side stops": ("fault_far_side_stops",),
    "killed at any moment": ("fault_killed", "xdp_killed"),
    "two processes on one interface": ("fault_two_processes", "xdp_trouble"),
    "wrong name": ("trouble", "xdp_trouble"),
    "missing capability": ("trouble", "xdp_trouble"),
    "unsupported driver": ("xdp_trouble",),
    "packet memory exhausted": ("xdp_few_buffers", "xdp_trouble"),
    "mixed load with reloads": ("reloads", "shard_reload"),
    "a capture that is read from a pipe ceases to come": ("fault_silent_stream",),
    "a capture is removed while it is written": ("fault_capture_removed",),
}
FAULTS = (fault_renamed, fault_replaced, fault_mtu, fault_far_side_stops, fault_killed, fault_two_processes,
          fault_silent_stream, fault_capture_removed)
