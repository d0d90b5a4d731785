"""Live ports by themselves: AF_PACKET with its options, TAP. What goes in is made here, packet by
packet; what comes out is captured by tcpdump on the far side."""

import json
import os
import signal
import socket
import struct
import sys
import time

from live_operation import talk
from netns import Middlebox, Net, checksum, is_udp, number_of, udp

JSON = ("--format", "json")
# A test run sends few packets, to take little time; `make soak` sends a million.
PACKETS = int(os.environ.get("SLIPSTREAM_LIVE_PACKETS", 100_000))
RATE = 25_000
FLOWS = 64
AT_ONCE = 25


def ended(case, box, how=signal.SIGINT):
    """Its report, once interrupted: everything that came in has left, or is accounted for."""
    status, out, err = box.stop(how)
    if not case.equal(status, 0, f"exit status ({err.strip()[-400:]})"):
        return None
    case.check("panicked" not in err, err)
    report = json.loads(out)
    case.equal(report["packets_in"], report["packets_out"] + sum(report["dropped"].values()), "packets in against out and dropped")
    case.equal(report["left_inside"], 0, "left inside")
    return report


def counters(report, name):
    """What a port counted on the way in, and on the way out."""
    both = [next((s["counters"] for s in report[part] if s["name"] == name), {}) for part in ("sources", "stages")]
    return both


class Capture:
    """tcpdump at an interface: a program that has nothing to do with ours."""

    def __init__(self, net, end, interface, path):
        self.path = path
        words = ("tcpdump", "-i", interface, "-Q", "in", "-n", "-s", "96", "-B", "65536", "-w", path, "udp port 9")
        self.child = net.start(end, *words)
        first = self.child.stderr.readline()
        assert "listening" in first, first

    def frames(self, case):
        """What it saw, once nothing more comes."""
        time.sleep(1)
        self.child.send_signal(signal.SIGINT)
        _, said = self.child.communicate(timeout=20)
        case.check("\n0 packets dropped by kernel" in "\n" + said, f"tcpdump: {said}")
        return records(self.path)


def records(path):
    """The frames of a capture in the old format."""
    data = path.read_bytes()
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    frames, at = [], 24
    while at + 16 <= len(data):
        length, = struct.unpack_from(order + "I", data, at + 8)
        frames.append(data[at + 16:at + 16 + length])
        at += 16 + length
    return frames


def stream(net, near, packets):
    """Sends packets of many flows in turn, at RATE or somewhat less where this program isn't given the
    time."""
    templates = []
    for flow in range(FLOWS):
        frame = bytearray(udp(net, 0, flow))
        frame[40:42] = b"\0\0"  # a datagram may go without a checksum
        templates.append(frame)
    since, send = time.monotonic(), near.raw.send
    for first in range(0, packets, AT_ONCE):
        for number in range(first, min(first + AT_ONCE, packets)):
            frame = templates[number % FLOWS]
            struct.pack_into("!I", frame, 42, number)
            send(frame)
        ahead = since + (first + AT_ONCE) / RATE - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
    return packets / (time.monotonic() - since)


def passes(case, binary, scratch, name, ports, packets, placed, through="reframe(hold=100us) -> "):
    """So many packets `through` stages between two ports: each arrives once, those of a flow in order."""
    with Net() as net:
        near = net.wire("a")
        capture = Capture(net, "b", "b0", scratch / f"{name}.pcap")
        graph = f"in :: {ports[0]}; out :: {ports[1]}; in -> {through}out"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        rate = stream(net, near, packets)
        got = [number_of(frame) for frame in capture.frames(case)]
        case.equal(len(got), packets, f"{name}: packets that arrived")
        case.equal(len({number for _, number in got}), packets, f"{name}: different packets that arrived")
        latest = {}
        overtaken = 0
        for flow, number in got:
            overtaken += latest.get(flow, -1) >= number
            latest[flow] = number
        case.equal(overtaken, 0, f"{name}: packets that were overtaken in their flow")
        report = ended(case, box)
        if not report:
            return
        case.equal(report["dropped"], {}, f"{name}: dropped")
        came, left = counters(report, "in")[0], counters(report, "out")[1]
        case.equal(came["dropped_by_kernel"], 0, f"{name}: dropped by the kernel")
        case.check(report["packets_in"] >= packets, f"{name}: {report['packets_in']} packets came in")
        case.equal(left["packets_sent"], report["packets_out"], f"{name}: sent, by the port and by the report")
        case.check(left["bytes_sent"] <= came["bytes"] and left["bytes_sent"] >= 60 * packets, f"{name}: {left['bytes_sent']} bytes")
        if placed:
            case.equal((came["copied"], left["copied"]), (0, 0), f"{name}: copies")
            case.equal(came["stamped_by_kernel"], report["packets_in"], f"{name}: packets with the kernel's time")
        excess, transit = (report["stages"][-1][kind] for kind in ("excess_delay_ns", "transit_ns"))
        print(f"       {name}: {packets} packets at {rate / 1e3:.1f} kpps, later than due {excess['p50'] / 1e3:.0f} µs median, "
              f"{excess['p99'] / 1e3:.0f} µs 99 %; all in all {transit['p50'] / 1e3:.0f} and {transit['p99'] / 1e3:.0f} µs; "
              f"{report['cpu_ns'] / report['packets_in']:.0f} ns CPU a packet")


ROOM = "ring=16384, buffers=65536"


def packet_stream(case, binary, scratch):
    """Packets from a packet socket to AF_XDP, and to a packet socket: none lost, in order."""
    for name, out in (("af_packet to af_xdp", f"af_xdp(interface=mb, {ROOM})"), ("af_packet", "af_packet(interface=mb)")):
        passes(case, binary, scratch, name, ("af_packet(interface=ma, ring=16384)", out), PACKETS // 4, False)


def packet_relay(case, binary, scratch):
    """Straight from packet socket to packet socket, where packets are sent from the ring that they came in:
    none is lost, and what has to be changed on the way is."""
    ports = ("af_packet(interface=ma, ring=16384)", "af_packet(interface=mb)")
    passes(case, binary, scratch, "af_packet, nothing between", ports, PACKETS // 4, False, "")
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = Middlebox(net, binary, "run", *JSON, "-e", "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> b").ready()
        # Runs of plain frames, of frames with a tag that the kernel takes out, and of both in turn.
        tagged = lambda number: number // 200 % 3 == 1 or number // 200 % 3 == 2 and number % 2
        sent = []
        for number in range(3000):
            sent.append(segment(net, number % 7, number, 100, tag=b"\x81\0\0\x09" if tagged(number) else b""))
            near.send(sent[-1])
            if number % 20 == 19:
                time.sleep(0.001)
        got = [f for _, f in far.receive(5, lambda f: b"\x0f\xa0\x13" in f[34:70], most=len(sent))]
        case.equal(len(got), len(sent), "frames that arrived")
        case.check(got == sent, "other frames, or in another order")
        report = ended(case, box)
        if report:
            came, left = counters(report, "a")[0], counters(report, "b")[1]
            case.equal(came["vlan_tags_restored"], sum(map(bool, map(tagged, range(3000)))), "tags put back")
            case.equal((left["packets_sent"], left["bytes_sent"]), (report["packets_in"], came["bytes"]), "sent")
    with Net() as net:
        lazy(net)
        box = Middlebox(net, binary, "run", *JSON, "-e", "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> b; b -> a").ready()
        transfer(case, net, "a", "b", "10.77.0.2")
        transfer(case, net, "b", "a", "10.77.0.1")
        report = ended(case, box)
        if report:
            case.equal(report["dropped"], {}, "dropped")
            for name in "ab":
                came = counters(report, name)[0]
                case.check(came["super_frames"] > 10 and came["segments"] > 10 * came["super_frames"], f"{name}: {came}")


def packet_ring_full(case, binary, scratch):
    """The ring is full again and again, while somebody asks for counters: what the kernel dropped is counted
    once, and stays counted."""
    with Net() as net:
        near, path = net.wire("a"), scratch / "ring-full"
        graph = "a :: af_packet(interface=ma, ring=32) -> b :: af_packet(interface=mb)"
        box = Middlebox(net, binary, "run", *JSON, "--control", path, "-e", graph).ready()
        turns, each, told = 20, 100, []
        for _ in range(turns):
            box.child.send_signal(signal.SIGSTOP)
            for number in range(each):
                near.send(udp(net, number))
            box.child.send_signal(signal.SIGCONT)
            for _ in range(3):
                report = talk(path, b'{"do": "report"}\n')[0]["report"]
                told.append(counters(report, "a")[0]["dropped_by_kernel"])
        case.equal(told, sorted(told), "what the kernel dropped, time after time")
        report = ended(case, box)
        if report:
            dropped = counters(report, "a")[0]["dropped_by_kernel"]
            case.check(dropped >= told[-1] > 0, f"{dropped} dropped in the end, {told[-1]} before")
            seen = report["packets_in"] + dropped
            case.check(turns * each <= seen < turns * each + 20, f"{seen} packets that came or were dropped, {turns * each} sent")


def left_in_ring(case, binary, _):
    """A run that ends before it has read all that came tells how many packets it leaves in the ring."""
    for port in ("af_packet", "af_xdp"):
        with Net() as net:
            near, each = net.wire("a"), 200
            graph = f"a :: {port}(interface=ma, ring=1024) -> null"
            box = Middlebox(net, binary, "run", *JSON, "--packets", "10", "-e", graph).ready()
            box.child.send_signal(signal.SIGSTOP)
            for number in range(each):
                near.send(udp(net, number))
            box.child.send_signal(signal.SIGCONT)
            status, out, err = box.wait(10)
            if not case.equal(status, 0, f"{port}: exit status ({err.strip()[-400:]})"):
                continue
            report = json.loads(out)
            came = counters(report, "a")[0]
            left = came["left_in_ring"]
            case.check(left > 0, f"{port}: {report['packets_in']} came in, and {left} are left in the ring")
            # Others on the link may have said something.
            seen = report["packets_in"] + left
            case.check(each <= seen < each + 20, f"{port}: {seen} packets that came in or are left, {each} sent")


SERVER = """
import hashlib, socket, sys
with socket.create_server(("", 7000)) as s:
    print("ready", flush=True)
    c, _ = s.accept()
    h = hashlib.sha256()
    while d := c.recv(1 << 16):
        h.update(d)
    c.sendall(h.digest())
"""
CLIENT = """
import hashlib, os, socket, sys
data = os.urandom(1 << 20) * int(sys.argv[2])
with socket.create_connection((sys.argv[1], 7000), timeout=20) as c:
    c.sendall(data); c.shutdown(socket.SHUT_WR)
    print(c.recv(32) == hashlib.sha256(data).digest())
"""


def transfer(case, net, client, server, target, megabytes=8):
    """Data over TCP arrive as they were sent."""
    listening = net.start(server, sys.executable, "-c", SERVER)
    listening.stdout.readline()
    said = net.sh(client, sys.executable, "-c", CLIENT, target, megabytes, timeout=60)
    case.equal(said.strip(), "True", f"a transfer from {client} to {target}")
    listening.communicate(timeout=10)


def refused(case, net, runs):
    """Each of these commands, in m, ends at once, without a result: with exit status 2 and these words."""
    for words, want in runs:
        child = net.start("m", *words)
        out, err = child.communicate(timeout=10)
        case.check(child.returncode == 2 and want in err and not out, f"{' '.join(map(str, words))}: {child.returncode} {err}")


def lazy(net):
    """End hosts leave checksums and segmentation to a card."""
    for end in "ab":
        net.sh(end, "ethtool", "-K", f"{end}0", "tx", "on", "tso", "on", "gso", "on")


def super_frames(case, binary, _):
    """Hosts that leave segmentation to their cards talk through packet sockets: super-frames are cut."""
    with Net() as net:
        lazy(net)
        graph = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> reframe -> b; b -> a"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        transfer(case, net, "a", "b", "10.77.0.2")
        transfer(case, net, "b", "a", "10.77.0.1")
        report = ended(case, box)
        if report:
            for name in "ab":
                came = counters(report, name)[0]
                case.check(came["super_frames"] > 10 and came["segments"] > 10 * came["super_frames"], f"{name}: {came}")
                case.equal((came["super_frames_uncut"], came["too_long"]), (0, 0), f"{name}: uncut, too long")


def super_frames_in_tunnels(case, binary, _):
    """The same through a tunnel between the hosts (VXLAN, on a port of its own, with checksums of its own and
    without): each packet is in a tunnel of its own."""
    for words in (("noudpcsum",), ("udpcsum",)):
        with Net(mtu=1550) as net:
            lazy(net)
            for end, near, far in (("a", 1, 2), ("b", 2, 1)):
                net.ip(end, "link", "add", "vx", "type", "vxlan", "id", 7, "dstport", 8472, "dev", f"{end}0",
                       "local", f"10.77.0.{near}", "remote", f"10.77.0.{far}", *words)
                net.ip(end, "addr", "add", f"10.78.0.{near}/24", "dev", "vx")
                net.ip(end, "link", "set", "dev", "vx", "up")
            graph = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> reframe -> b; b -> a"
            box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
            transfer(case, net, "a", "b", "10.78.0.2")
            report = ended(case, box)
            if report:
                came = counters(report, "a")[0]
                case.check(came["super_frames"] > 10 and came["segments"] > 10 * came["super_frames"], f"{words}: {came}")
                case.equal((came["super_frames_uncut"], came["too_long"]), (0, 0), f"{words}: uncut, too long")


def super_frames_out(case, binary, _):
    """Bulk traffic leaves in super-frames, and the kernel of the receiver has the stream as it was."""
    graph = ("a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> reframe(hold=500us, compress=gro) -> b; "
             "b -> reframe(hold=200us, compress=gro) -> a")
    with Net() as net:
        lazy(net)
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        transfer(case, net, "a", "b", "10.77.0.2")
        report = ended(case, box)
        if report:
            went = counters(report, "b")[1]
            case.check(went["super_frames_sent"] > 10 and went["packets_in_super_frames"] > 4 * went["super_frames_sent"], f"{went}")
            case.equal((went["super_frames_refused"], went["too_long"], report["dropped"]), (0, 0, {}), "refused, too long, dropped")


def segment(net, flow, number, size, last=False, v6=False, udp=False, tag=b""):
    """A TCP segment or a UDP datagram of a flow with the bytes that follow those before, numbers close to
    where they wrap."""
    payload = bytes((number * size + i) & 0xFF for i in range(size))
    ports = struct.pack("!HH", 4000, 5000 + flow)
    if udp:
        transport, at, protocol = ports + struct.pack("!HH", 8 + size, 0) + payload, 6, 17
    else:
        seq = (2**32 - 3 * size + number * size) % 2**32
        stamps = b"\x01\x01\x08\x0a\0\0\0\x09\0\0\0\x05"
        transport = ports + struct.pack("!IIBBHHH", seq, 77, 0x80, 0x18 if last else 0x10, 500, 0, 0) + stamps + payload
        at, protocol = 16, 6
    source, target = (bytes([0xFD, 0x77] + 13 * [0] + [end]) if v6 else bytes([10, 77, 0, end]) for end in (1, 2))
    pseudo = source + target + struct.pack("!IHBB", len(transport), 0, 0, protocol)
    transport = transport[:at] + struct.pack("!H", checksum(pseudo + transport) or 0xFFFF) + transport[at + 2:]
    if v6:
        header = struct.pack("!IHBB", 0x60000000, len(transport), protocol, 64) + source + target
    else:
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(transport), (0xFFFE + number) & 0xFFFF, 0x4000, 64, protocol, 0) + source + target
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return net.mac["b"] + net.mac["a"] + tag + (b"\x86\xdd" if v6 else b"\x08\0") + header + transport


def cut_by_the_kernel(case, binary, _):
    """Super-frames that leave by an interface which can't send them are cut by the kernel: what arrives are
    the bytes that came. Behind a tag that the kernel doesn't know there are none, as it would drop them."""
    with Net() as net:
        net.sh("m", "ethtool", "-K", "mb", "tx", "off", "tso", "off", "gso", "off", "tx-udp-segmentation", "off")
        box = Middlebox(net, binary, "run", *JSON, "-e", "af_packet(interface=ma) -> reframe(hold=20ms, compress=gro) -> b :: af_packet(interface=mb)")
        box.ready()
        near, far = net.wire("a"), net.wire("b")
        known, unknown = (b"", b"\x81\0\0\x09", b"\x88\xa8\0\x07\x81\0\0\x09"), (b"\x91\0\0\x09", b"\x91\0\0\x07\x81\0\0\x09")
        kinds = [(v6, udp, tag) for tag in known + unknown for v6 in (False, True) for udp in (False, True)]
        cut = 4 * len(known)
        sent = [segment(net, flow, n, 300 if n < 11 else 120, n == 11, *kind) for flow, kind in enumerate(kinds) for n in range(12)]
        # One in each flow has a wrong checksum, which must stay with it.
        sent = [frame[:-9] + bytes([frame[-9] ^ 0x55]) + frame[-8:] if n % 12 == 5 else frame for n, frame in enumerate(sent)]
        for frame in sent:
            near.send(frame)
        got = [f for _, f in far.receive(5, lambda f: b"\x0f\xa0\x13" in f[34:70], most=len(sent))]
        report = ended(case, box)
        by_flow = lambda frames: sorted(frames, key=lambda f: f[:60])
        case.equal(len(got), len(sent), "frames")
        case.check(by_flow(got) == by_flow(sent), "other bytes than those that were sent")
        if report:
            went = counters(report, "b")[1]
            case.check(went["super_frames_sent"] >= 2 * cut and went["super_frames_refused"] == 0, f"{went}")
            case.equal(went["packets_with_wrong_checksums"], cut, "packets with a wrong checksum")


def datagrams_out(case, binary, _):
    """Datagrams of one size leave in super-frames, and come to the far socket one by one, each as it was."""
    with Net() as net:
        graph = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> reframe(hold=2ms, compress=gro) -> b; b -> a"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        net.sh("a", "ping", "-c", "1", "-W", "2", "-q", "10.77.0.2")
        far, near = (net.socket(end, socket.AF_INET, socket.SOCK_DGRAM) for end in "ba")
        far.bind(("10.77.0.2", 7077))
        far.settimeout(2)
        sent = [bytes([n]) * (100 if n % 7 else 60) for n in range(200)]
        # Of a connected socket, datagrams are numbered one after the other.
        near.connect(("10.77.0.2", 7077))
        for datagram in sent:
            near.send(datagram)
        got = [far.recv(2000) for _ in sent]
        case.check(got == sent, f"{len(got)} datagrams, not as they were sent")
        report = ended(case, box)
        if report:
            went = counters(report, "b")[1]
            case.check(went["super_frames_sent"] >= 10 and went["super_frames_refused"] == 0, f"{went}")


def fanout(case, binary, scratch):
    """Two processes share an interface: each packet comes to one, and both directions of a flow to the
    same."""
    with Net() as net:
        near = net.wire("a")
        files = [scratch / f"{n}.pcap" for n in range(2)]
        boxes = [Middlebox(net, binary, "run", *JSON, "-e", f'af_packet(interface=ma, fanout=77) -> pcap(path="{file}")')
                 for file in files]
        for box in boxes:
            box.ready()
        flows = 60
        for flow in range(flows):
            frame = udp(net, flow, flow)
            near.send(frame)
            # The same the other way round; the sums don't change.
            near.send(frame[:26] + frame[30:34] + frame[26:30] + frame[36:38] + frame[34:36] + frame[38:])
        time.sleep(0.5)
        other = net.start("m", binary, "reframe", "af_packet:mb", "null", "--duration", "1ms")
        other.communicate(timeout=10)
        wrong = net.start("m", binary, "run", "-e", "af_packet(interface=mb, fanout=77) -> null")
        _, err = wrong.communicate(timeout=10)
        case.check(wrong.returncode == 2 and "fanout group 77" in err, f"a group on two interfaces: {err}")
        shares = []
        for box, file in zip(boxes, files):
            ended(case, box)
            ports = [struct.unpack("!HH", f[34:38]) for f in records(file) if f[12:14] == b"\x08\0" and 9 in struct.unpack("!HH", f[34:38])]
            shares.append(ports)
        case.equal(sum(map(len, shares)), 2 * flows, "packets of both")
        case.check(all(len(share) > flows / 4 for share in shares), f"shares: {[len(s) for s in shares]}")
        for share in shares:
            case.check(all((b, a) in share for a, b in share), "two directions of a flow came to different processes")


def tap_port(case, binary, _):
    """A host behind a TAP interface talks to one on the wire; the interface goes away with the program."""
    with Net() as net:
        graph = "host :: tap_interface(interface=t0); wire :: af_packet(interface=mb); host -> reframe -> wire; " \
                "wire -> reframe(hold=500us, compress=gro) -> host"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        net.ip("m", "addr", "add", "10.77.0.9/24", "dev", "t0")
        net.sh("m", "ping", "-c", "20", "-i", "0.01", "-W", "2", "-q", "10.77.0.2")
        transfer(case, net, "m", "b", "10.77.0.2")
        transfer(case, net, "b", "m", "10.77.0.9")
        second = net.start("m", binary, "reframe", "tap:t0", "null")
        _, err = second.communicate(timeout=10)
        case.check(second.returncode == 2 and "in use" in err, f"two on one interface: {err}")
        other = net.start("m", binary, "reframe", "tap:mb", "null")
        _, err = other.communicate(timeout=10)
        case.check(other.returncode == 2 and "no TAP interface" in err, f"no TAP interface: {err}")
        # One that is there has as many queues as whoever made it said.
        for name, several, wants, hint in (("t2", (), "true", "has one queue only"),
                                           ("t3", ("multi_queue",), "false", "was made for several queues")):
            net.ip("m", "tuntap", "add", "dev", name, "mode", "tap", *several)
            other = net.start("m", binary, "run", "-e", f"tap_interface(interface={name}, multi_queue={wants}) -> null")
            _, err = other.communicate(timeout=10)
            case.check(other.returncode == 2 and hint in err, f"queues: {err}")
            net.ip("m", "link", "del", "dev", name)
        report = ended(case, box)
        if report:
            came = counters(report, "host")[0]
            case.check(came["super_frames"] > 10 and came["segments"] > 10 * came["super_frames"], f"on the way in: {came}")
            went = counters(report, "host")[1]
            case.check(went["super_frames_sent"] > 10 and went["super_frames_refused"] == 0, f"on the way out: {went}")
            case.equal(report["dropped"], {}, "dropped")
        case.check("t0" not in net.sh("m", "ip", "link"), "the interface is still there")
        # One that was made to stay stays, by another name too, and one that is taken away ends the run.
        net.ip("m", "tuntap", "add", "dev", "t1", "mode", "tap")
        box = Middlebox(net, binary, "run", *JSON, "-e", "tap_interface(interface=t1) -> null").ready()
        case.check("UP" in net.sh("m", "ip", "link", "show", "t1"), "it is down")
        ended(case, box, signal.SIGINT)
        for graph in ("tap_interface(interface=t1) -> null", "af_packet(interface=ma) -> tap_interface(interface=t1)"):
            box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
            net.ip("m", "link", "set", "dev", "t1", "down")
            net.ip("m", "link", "set", "dev", "t1", "name", "t4")
            ended(case, box, signal.SIGINT)
            net.ip("m", "link", "set", "dev", "t4", "name", "t1")
        case.check("t1" in net.sh("m", "ip", "link"), "an interface that was to stay is gone")
        box = Middlebox(net, binary, "run", *JSON, "-e", "tap_interface(interface=t1) -> null").ready()
        net.ip("m", "link", "del", "dev", "t1")
        status, _, err = box.wait(10)
        case.check(status == 2 and "`t1` is gone" in err, f"interface taken away: {status} {err}")


def tap_queue(case, binary, _):
    """What finds no room in a TAP interface's queue is counted and told of, by one thread as in shards, by
    whatever name the interface has."""
    sent = 3000
    flood = f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); " \
            f"[s.sendto(bytes(50), ('10.9.0.2', 9)) for _ in range({sent})]"
    for more in ((), ("--shards", "2")):
        with Net() as net:
            box = Middlebox(net, binary, "run", *JSON, *more, "-e", "tap_interface(interface=t0) -> null").ready()
            net.ip("m", "link", "set", "dev", "t0", "name", "t1")
            net.sh("m", "sysctl", "-qw", "net.ipv6.conf.t1.disable_ipv6=1")
            net.ip("m", "addr", "add", "10.9.0.1/24", "dev", "t1")
            net.ip("m", "neigh", "add", "10.9.0.2", "lladdr", "02:00:00:00:00:02", "dev", "t1")
            box.child.send_signal(signal.SIGSTOP)
            net.sh("m", sys.executable, "-c", flood)
            box.child.send_signal(signal.SIGCONT)
            # Whoever looks on does so every second.
            time.sleep(2.5)
            status, out, err = box.stop()
            if case.equal(status, 0, f"exit status: {err[-300:]}"):
                report = json.loads(out)
                lost = report["sources"][0]["counters"]["dropped_by_kernel"]
                case.check(lost > sent / 4 and report["packets_in"] + lost >= sent, f"{more}: {report['packets_in']} came, {lost} lost")
                case.check("dropped_by_kernel" in err, f"{more}: {err}")
                # Its queue is no `ring`, which is no setting of this port.
                case.check("txqueuelen" in err and "`ring`" not in err, f"{more}: the remedy: {err}")


def tap_left(case, binary, _):
    """A TAP interface that stays has its offloads as it had them before, however the run ends but by
    SIGKILL: who opens it next needn't know how to complete checksums."""
    with Net() as net:
        net.ip("m", "tuntap", "add", "dev", "tp", "mode", "tap", "multi_queue")
        net.ip("m", "link", "set", "dev", "tp", "up")
        on = lambda: [line.strip() for line in net.sh("m", "ethtool", "-k", "tp").splitlines() if line.endswith(": on")]
        before = on()
        for more in ((), ("--shards", "2")):
            graph = "a :: tap_interface(interface=tp, multi_queue=true); a -> counter -> a"
            box = Middlebox(net, binary, "run", *JSON, *more, "-e", graph).ready()
            case.check("tx-checksumming: on" in on(), f"{more}: the machine leaves no checksums to this program")
            ended(case, box)
            case.equal(on(), before, f"{more}: offloads afterwards")


def taken_from_senders(case, binary, _):
    """A run ends when an interface is taken away by which it only sends, whatever else it writes, on one
    thread, in sections and in shards; one that is only down is waited for."""
    with Net() as net:
        paced = "paced(rate=10kpps)"
        cases = [
            (f"{paced} -> tap_interface(interface=t1)", "t1"),
            (f"{paced} -> af_packet(interface=d0)", "d0"),
            (f"{paced} -> af_xdp(interface=d0)", "d0"),
            (f"t :: tee; {paced} -> t; t[0] -> af_packet(interface=d0); t[1] -> null", "d0"),
            (f"{paced} -> reframe -> af_packet(interface=d0)", "d0", "--workers", "2"),
            (f"{paced} -> reframe -> tap_interface(interface=t1)", "t1", "--shards", "2"),
        ]
        for graph, interface, *more in cases:
            net.ip("m", "link", "add", "d0", "type", "veth", "peer", "name", "d1")
            for end in ("d0", "d1"):
                net.ip("m", "link", "set", "dev", end, "up")
            box = Middlebox(net, binary, "run", *JSON, *more, "-e", graph).ready()
            net.ip("m", "link", "set", "dev", interface, "down")
            time.sleep(0.3)
            case.check(box.child.poll() is None, f"{graph} {more}: it ended when the interface went down")
            net.ip("m", "link", "set", "dev", interface, "up")
            net.ip("m", "link", "del", "dev", interface)
            status, out, err = box.wait(10)
            case.check(status == 2 and f"`{interface}` is gone" in err and '"stages"' in out, f"{graph} {more}: {status} {err[-300:]}")
            if interface != "d0":
                net.ip("m", "link", "del", "dev", "d0")


def block(kind, body):
    """A block of a pcapng file."""
    body += bytes(-len(body) % 4)
    length = struct.pack("<I", len(body) + 12)
    return struct.pack("<I", kind) + length + body + length


def pcapng(links, packets):
    """A capture of these interfaces and (interface, packet)s; each interface comes before its first
    packet."""
    capture = block(0x0A0D0D0A, struct.pack("<IHHq", 0x1A2B3C4D, 1, 0, -1))
    named = 0
    for interface, packet in packets:
        for link in links[named:interface + 1]:
            capture += block(1, struct.pack("<HHI", link, 0, 0))
            named += 1
        capture += block(6, struct.pack("<IIIII", interface, 0, 0, len(packet), len(packet)) + packet)
    return capture


def other_links(case, binary, scratch):
    """Packets that are no Ethernet frames don't leave by an interface: where a capture has nothing else, the
    run says so and does nothing; where they come later, they are dropped."""
    with Net() as net:
        far = net.wire("b")
        frame = udp(net, 1)
        ports = ("af_packet(interface=mb)", "af_xdp(interface=mb)", "tap_interface(interface=t0)")
        for link, start in ((101, 14), (113, 0)):
            path = scratch / f"{link}.pcap"
            record = frame[start:]
            head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, link)
            path.write_bytes(head + 50 * (struct.pack("<IIII", 1, 0, len(record), len(record)) + record))
            runs = [("run", "-e", f'c :: pcap(path="{path}"); c -> reframe -> out :: {port}') for port in ports]
            runs.append(("run", "--workers", 2, "-e", f'c :: pcap(path="{path}"); c -> reframe -> out :: {ports[0]}'))
            for words in (*runs, ("reframe", path, "af_packet:mb")):
                child = net.start("m", binary, *words)
                out, err = child.communicate(timeout=10)
                said = f"link type {link}" in err and "Ethernet frames only" in err
                case.check(child.returncode == 2 and said and not out, f"{words}: {child.returncode} {out} {err}")
        case.equal(far.receive(0.3), [], "packets that left")
        # More packets than are read at once come before the first of another interface.
        first, last = [(0, udp(net, n)) for n in range(600)], [(1, udp(net, n)[14:]) for n in range(20)]
        later = scratch / "later.pcapng"
        later.write_bytes(pcapng((1, 101), first + last + first[:5]))
        for number, port in enumerate(ports):
            words = ("--pace", "fast", "-e", f'pcap(path="{later}") -> out :: {port}')
            child = net.start("m", binary, "run", *JSON, *words)
            out, err = child.communicate(timeout=20)
            if case.equal(child.returncode, 0, f"{port}: exit status ({err})"):
                report = json.loads(out)
                sent = counters(report, "out")[1]
                case.equal((report["dropped"], sent["not_ethernet"], sent["packets_sent"]), ({"not_sent": 20}, 20, 605), port)
            if number < 2:
                case.equal(len(far.receive(2, is_udp, 605)), 605, f"{port}: packets that arrived")
        # All of another type that come with the first packets.
        at_once = scratch / "at_once.pcapng"
        at_once.write_bytes(pcapng((101,), [(0, packet) for _, packet in last]))
        child = net.start("m", binary, "run", "-e", f'pcap(path="{at_once}") -> out :: {ports[0]}')
        _, err = child.communicate(timeout=10)
        case.check(child.returncode == 2 and "link type 101" in err, f"pcapng: {child.returncode} {err}")
        # Those that were captured in part leave, and the run tells of them.
        head = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 50, 1)
        (scratch / "short.pcap").write_bytes(head + 7 * (struct.pack("<IIII", 1, 0, 50, 60) + frame[:50]))
        for port in ports[:2]:
            child = net.start("m", binary, "run", *JSON, "-e", f'pcap(path="{scratch}/short.pcap") -> out :: {port}')
            out, err = child.communicate(timeout=10)
            if case.equal(child.returncode, 0, f"{port}: exit status ({err})"):
                sent = counters(json.loads(out), "out")[1]
                case.equal((sent["packets_sent"], sent["captured_in_part"]), (7, 7), f"{port}: captured in part")
                case.check("7 packets left as short" in err, f"{port}: no warning: {err}")
        # A capture that leads elsewhere is nothing to the port.
        graph = f'pcap(path="{scratch}/101.pcap") -> null; af_packet(interface=ma) -> af_packet(interface=mb)'
        near = net.wire("a")
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        far.receive(0.3)
        near.send(frame)
        case.equal([f for _, f in far.receive(2, is_udp, 1)], [frame], "a frame beside such a capture")
        ended(case, box)


LIVE_PORTS = (packet_stream, packet_relay, packet_ring_full, left_in_ring, super_frames, super_frames_in_tunnels, super_frames_out, cut_by_the_kernel,
              datagrams_out, fanout, tap_port, tap_queue, tap_left, taken_from_senders, other_links)
