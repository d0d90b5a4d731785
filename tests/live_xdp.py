"""The port of AF_XDP by itself. Packets that go in are made here, one by one; those that come out are
captured by tcpdump on the far side."""

import json
import signal
import socket
import struct
import threading
import time

import netns
from live_operation import talk
from live_ports import JSON, PACKETS, ROOM, counters, ended, lazy, passes, refused, transfer
from netlink import attached
from netns import Middlebox, Net, checksum, is_udp, number_of, udp


def xdp_stream(case, binary, scratch):
    """Packets from AF_XDP to AF_XDP, as drivers hand them over: none lost, none copied, in order."""
    ports = [f"af_xdp(interface={interface}, mode=native, {ROOM})" for interface in ("ma", "mb")]
    passes(case, binary, scratch, "af_xdp", ports, PACKETS, True)


def xdp_generic_stream(case, binary, scratch):
    """The same behind the drivers, out by a packet socket."""
    ports = (f"af_xdp(interface=ma, mode=generic, {ROOM})", "af_packet(interface=mb)")
    passes(case, binary, scratch, "af_xdp generic to af_packet", ports, PACKETS // 4, False)


def xdp_busy_poll_stream(case, binary, scratch):
    """The same with a driver that is asked, not one that interrupts."""
    ports = [f"af_xdp(interface={interface}, busy_poll=true, {ROOM})" for interface in ("ma", "mb")]
    passes(case, binary, scratch, "af_xdp, busy_poll", ports, PACKETS // 10, True)


def xdp_killed(case, binary, _):
    """Whoever dies, however, leaves nothing on the interfaces; another one takes them over at once."""
    both = "a :: af_xdp(interface=ma); b :: af_xdp(interface=mb); a -> reframe -> b; b -> a"
    for how in (signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM):
        with Net() as net:
            box = Middlebox(net, binary, "run", *JSON, "-e", both).ready()
            case.equal((attached(net, "ma"), attached(net, "mb")), (1, 1), "programs while it runs")
            near, far = net.wire("a"), net.wire("b")
            for number in range(300):
                near.send(udp(net, number))
            box.stop(how)
            end = time.monotonic() + 5
            while (left := (attached(net, "ma"), attached(net, "mb"))) != (0, 0) and time.monotonic() < end:
                time.sleep(0.02)
            case.equal(left, (0, 0), f"programs after {how.name}")
            case.check("PROMISC" not in net.sh("m", "ip", "link", "show", "ma"), "the interface stayed promiscuous")
            # The kernel has its interfaces back, and the next one finds them free.
            net.ip("m", "addr", "add", "10.77.0.7/24", "dev", "ma")
            net.sh("a", "ping", "-c", "1", "-W", "2", "10.77.0.7")
            box = Middlebox(net, binary, "run", *JSON, "-e", both).ready()
            far.receive(0.2)
            near.send(udp(net, 7777))
            case.equal([number_of(f)[1] for _, f in far.receive(2, is_udp, 1)], [7777], "a packet through the next one")
            ended(case, box)


def xdp_trouble(case, binary, scratch):
    """Ports that can't be opened, and such that go away: an error that says what to do."""
    with Net() as net:
        net.ip("m", "link", "set", "dev", "mb", "down")
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
        raw_only = ("setpriv", "--bounding-set=-all,+net_raw", "--inh-caps=-all,+net_raw", "--reuid=65534", "--regid=65534",
                    "--clear-groups", "--ambient-caps=-all,+net_raw")
        program = scratch / "slipstream"
        program.write_bytes(binary.read_bytes())
        program.chmod(0o755)
        net.ip("m", "link", "add", "dev", "big", "mtu", 9000, "type", "veth", "peer", "name", "gib", "mtu", 9000)
        for name in ("big", "lo"):
            net.ip("m", "link", "set", "dev", name, "up")
        refused(case, net, (
            ((binary, "reframe", "af_xdp:nope", "null"), "no interface `nope`"),
            ((binary, "reframe", "null", "af_xdp:mb"), "ip link set dev mb up"),
            ((binary, "reframe", "af_xdp:far-too-long-a-name", "null"), "can't be an interface's name"),
            ((binary, "reframe", "af_xdp:ma:7", "null"), "has no queue 7"),
            ((binary, "reframe", "af_xdp:ma:x", "null"), "names no queues"),
            ((binary, "reframe", "af_xdp:big", "null"), "takes 3802; set a smaller MTU, or use af_packet:big"),
            ((binary, "run", "-e", "af_xdp(interface=ma, ring=4096, buffers=4096) -> null"), "4096 packet buffers are too few"),
            ((binary, "run", "-e", "af_xdp(interface=lo, mode=native) -> null"), "not supported by the kernel or the driver"),
            ((*nobody, program, "reframe", "af_xdp:ma", "null"), "CAP_NET_RAW"),
            ((*raw_only, program, "run", "-e", "af_xdp(interface=ma, ring=64, buffers=256) -> null"), "CAP_BPF"),
        ))
        net.ip("m", "link", "set", "dev", "mb", "up")
        near, far = net.wire("a"), net.wire("b")
        both = "a :: af_xdp(interface=ma); b :: af_xdp(interface=mb); a -> b; b -> a"
        box = Middlebox(net, binary, "run", *JSON, "-e", both).ready()
        # A second one on the same interface.
        child = net.start("m", binary, "reframe", "af_xdp:ma", "null")
        _, err = child.communicate(timeout=10)
        case.check(child.returncode == 2 and "has an AF_XDP socket already" in err, f"two on one interface: {err}")
        # Down and up again: packets in between are lost, and counted; what comes later passes.
        net.ip("m", "link", "set", "dev", "mb", "down")
        for number in range(100):
            near.send(udp(net, number))
            if number == 49:
                time.sleep(0.3)
        time.sleep(0.3)
        net.ip("m", "link", "set", "dev", "mb", "up")
        time.sleep(0.3)
        near.send(udp(net, 1002))
        arrived = [number_of(f)[1] for _, f in far.receive(1, is_udp)]
        case.check(arrived[-1:] == [1002], f"packets after a pause of the way out: {arrived}")
        net.ip("m", "link", "set", "dev", "ma", "down")
        time.sleep(0.3)
        net.ip("m", "link", "set", "dev", "ma", "up")
        time.sleep(0.5)
        near.send(udp(net, 1003))
        arrived = [number_of(f)[1] for _, f in far.receive(1, is_udp)]
        case.equal(arrived, [1003], "packets after a pause of the way in")
        # Another MTU counts from then on.
        net.ip("m", "link", "set", "dev", "mb", "mtu", 600)
        time.sleep(0.3)
        near.send(udp(net, 1004))
        far.receive(1, is_udp, 1)
        near.send(udp(net, 1005, payload=1000))
        near.send(udp(net, 1006))
        arrived = [number_of(f)[1] for _, f in far.receive(1, is_udp, 1)]
        case.equal(arrived, [1006], "packets, one of them longer than the MTU")
        # An interface that is renamed is the same.
        net.ip("m", "link", "set", "dev", "mb", "down")
        net.ip("m", "link", "set", "dev", "mb", "name", "mc")
        net.ip("m", "link", "set", "dev", "mc", "up")
        time.sleep(0.3)
        near.send(udp(net, 1007))
        arrived = [number_of(f)[1] for _, f in far.receive(1, is_udp)]
        case.equal(arrived[-1:], [1007], "packets after the interface was renamed")
        net.ip("m", "link", "del", "dev", "ma")
        status, out, err = box.wait(20)
        case.check(status == 2 and "`ma` is gone" in err, f"interface taken away: {status} {err}")
        report = json.loads(out)
        case.equal(counters(report, "b")[1]["too_long"], 1, "too long for the way out")
        lost = sum(report["dropped"].values())
        case.equal(report["packets_in"], report["packets_out"] + lost, "packets in against out and dropped")
        case.check(lost >= 50, "nothing was counted as dropped while the way out was down")
    # Two processes may have a queue each, but one program stands on an interface.
    with Net() as net:
        queues(net, 2)
        box = Middlebox(net, binary, "run", *JSON, "-i", "af_xdp:ma:0", "-o", "null", "-e", "counter").ready()
        child = net.start("m", binary, "reframe", "af_xdp:ma:1", "null")
        _, err = child.communicate(timeout=10)
        case.check(child.returncode == 2 and "has an XDP program already" in err, f"a second program: {err}")
        ended(case, box)


def queues(net, number):
    """Gives the link from a to m so many queues."""
    for end, interface in (("a", "a0"), ("m", "ma")):
        net.sh(end, "ethtool", "-L", interface, "rx", number, "tx", number)


def xdp_queues(case, binary, _):
    """All queues of an interface are served, or some: the rest stays with the kernel."""
    with Net() as net:
        queues(net, 2)
        near, far = net.wire("a"), net.wire("b")
        kernel = netns.Wire(net.socket("m", socket.AF_PACKET, socket.SOCK_RAW, 0), "ma")
        flows, each = 40, 10

        def send():
            for number in range(each):
                for flow in range(flows):
                    near.send(udp(net, number, flow))
                time.sleep(0.002)

        box = Middlebox(net, binary, "run", *JSON, "-e", "af_xdp(interface=ma) -> af_xdp(interface=mb)").ready()
        send()
        got = [number_of(f) for _, f in far.receive(2, is_udp, flows * each)]
        case.equal(len(got), flows * each, "packets by both queues")
        for flow in range(flows):
            case.equal([n for f, n in got if f == flow], list(range(each)), f"order of flow {flow}")
        case.equal(kernel.receive(0.1, is_udp), [], "packets that the kernel saw")
        report = ended(case, box)
        if report:
            case.equal(counters(report, report["sources"][0]["name"])[0]["queues"], 2, "queues")
        box = Middlebox(net, binary, "run", *JSON, "-i", "af_xdp:ma:1", "-o", "af_xdp:mb", "-e", "reframe").ready()
        send()
        ours, theirs = (len(wire.receive(1, is_udp)) for wire in (far, kernel))
        case.equal(ours + theirs, flows * each, "packets by one queue, and those that stayed with the kernel")
        case.check(ours % each == 0 and 0 < ours < flows * each, f"{ours} packets by one queue")
        case.check(ended(case, box) is not None, "no report")


def fragments(frame):
    """A datagram of ours in two fragments."""
    head, payload = frame[14:34], frame[34:]
    for at, part in ((0, payload[:16]), (16, payload[16:])):
        header = head[:2] + struct.pack("!H", 20 + len(part)) + head[4:6] + struct.pack("!H", at // 8 | (0 if at else 0x2000)) + head[8:10] + b"\0\0" + head[12:]
        yield frame[:14] + header[:10] + struct.pack("!H", checksum(header)) + header[12:] + part


def with_headers(frame):
    """Datagrams of ours to the same port behind IPv4 options, and behind IPv6 extension headers."""
    header, datagram = frame[14:34], frame[34:]
    header = b"\x47" + header[1:2] + struct.pack("!H", 28 + len(datagram)) + header[4:10] + b"\0\0" + header[12:] + b"\x01" * 7 + b"\0"
    yield frame[:14] + header[:10] + struct.pack("!H", checksum(header)) + header[12:] + datagram
    # Hop-by-hop and destination options of padding, and a fragment header of a whole datagram.
    headers = bytes([60, 1, 1, 12, *[0] * 12]) + bytes([44, 0, 1, 4, 0, 0, 0, 0]) + bytes([17, 0, 0, 0, 0, 0, 0, 7])
    addresses = b"".join(socket.inet_pton(socket.AF_INET6, f"fd77::{end}") for end in (1, 2))
    pseudo = addresses + struct.pack("!II", len(datagram), 17)
    datagram = datagram[:6] + struct.pack("!H", checksum(pseudo + datagram[:6] + b"\0\0" + datagram[8:])) + datagram[8:]
    yield frame[:12] + b"\x86\xdd\x60\0\0\0" + struct.pack("!HBB", len(headers) + len(datagram), 0, 64) + addresses + headers + datagram


def xdp_only_reload(case, binary, scratch):
    """Other rules of a port count from one packet to the next, in both modes and in shards: none is lost,
    each is taken or stays with the kernel. What is wrong changes nothing."""
    rules, control = scratch / "rules", scratch / "control"
    for mode, more in (("native", ()), ("generic", ()), ("native", ("--shards", 2))):
        with Net() as net:
            queues(net, 2)
            near, far = net.wire("a"), net.wire("b")
            kernel = netns.Wire(net.socket("m", socket.AF_PACKET, socket.SOCK_RAW, 0), "ma")
            rules.write_text("udp dst port 9\n")
            graph = f"a :: af_xdp(interface=ma, only='@{rules}', mode={mode}) -> af_packet(interface=mb)"
            words = ("run", *JSON, *more, "--control", control, "-e", graph)
            box = Middlebox(net, binary, *words).ready()
            ask = lambda: talk(control, b'{"do": "reload"}\n', seconds=30)[0]
            name = f"{mode} {more}"
            far.receive(0.2)
            kernel.receive(0.1)
            count = 0

            answers = []
            over = threading.Event()

            def packets():
                nonlocal count
                while not over.is_set():
                    near.send(udp(net, count, count % 16))
                    count += 1
                    time.sleep(0.0005)

            thread = threading.Thread(target=packets)
            thread.start()
            for turn in range(10):
                # By turns they ask for the packets, and for others.
                rules.write_text(("tcp\n", "udp dst port 9\n")[turn % 2] + f"src 192.0.2.{turn}\n")
                answers.append(ask())
                time.sleep(0.05)
            over.set()
            thread.join()
            case.equal([(one["ok"], one.get("changes")) for one in answers], [(True, ["a.only"])] * 10, f"{name}: answers")
            ours = [number_of(f)[1] for _, f in far.receive(1, is_udp)]
            theirs = [number_of(f)[1] for _, f in kernel.receive(0.3, is_udp)]
            case.equal(sorted(ours + theirs), list(range(count)), f"{name}: packets, each once")
            case.check(min(len(ours), len(theirs)) > count / 10, f"{name}: {len(ours)} taken, {len(theirs)} left")
            rules.write_text("udp prot 9\n")
            wrong = ask()
            case.check(not wrong["ok"] and str(rules) in wrong["error"], f"{name}: wrong rules: {wrong}")
            for _ in range(20):
                near.send(udp(net, 7))
            case.equal(len(far.receive(1, is_udp, 20)), 20, f"{name}: packets behind what was refused")
            report = ended(case, box)
            if report:
                left = sum(source["counters"].get("left_to_kernel", 0) for source in report["sources"])
                case.check(left >= len(theirs), f"{name}: {left} were counted as left to the kernel, {len(theirs)} were seen there")


def xdp_only(case, binary, scratch):
    """A port takes what its rules ask for, in both modes and in shards, and the kernel answers all else: ARP,
    pings, datagrams for others. The capabilities that the book names are enough."""
    program = scratch / "slipstream"
    program.write_bytes(binary.read_bytes())
    program.chmod(0o755)
    mine = "+net_raw,+net_admin,+cap_39"
    bounded = ("setpriv", f"--bounding-set=-all,{mine}", f"--inh-caps=-all,{mine}", "--reuid=65534", "--regid=65534", "--clear-groups",
               f"--ambient-caps=-all,{mine}")
    tag, rules = b"\x81\0\0\x05", scratch / "rules"
    rules.write_text("# What passes.\nudp dst port 9 and not vlan 6\nfragment and vlan\nlength 1500-\n")
    rules.chmod(0o644)
    for words, mode, more in (((), "native", ()), ((), "generic", ()), (bounded, "auto", ()), ((), "native", ("--shards", 2))):
        with Net() as net:
            queues(net, 2)
            net.ip("m", "addr", "add", "10.77.0.9/24", "dev", "ma")
            near, far = net.wire("a"), net.wire("b")
            kernel = netns.Wire(net.socket("m", socket.AF_PACKET, socket.SOCK_RAW, 0), "ma")
            room = "ring=64, buffers=1024, chunk=2048"
            out = "af_packet(interface=mb)" if more or mode == "generic" else f"af_xdp(interface=mb, {room})"
            graph = f"a :: af_xdp(interface=ma, only='@{rules}', mode={mode}, {room}) -> {out}"
            box = Middlebox(net, *(words or ()), program, "run", *JSON, *more, "-e", graph).ready()
            name = f"{mode} {more} {words[:1]}"
            case.check(" 0% packet loss" in net.sh("a", "ping", "-c", 3, "-i", 0.2, "10.77.0.9"), f"{name}: pings of the kernel")
            kernel.receive(0.2)
            taken = [udp(net, number, flow) for number in range(20) for flow in range(8)]
            taken += [udp(net, number, 1, tag=tag) for number in range(20)]
            taken.append((frame := udp(net, 7, 1, payload=1472))[:36] + b"\0\x0a" + frame[38:])
            left = [udp(net, number, flow, tag=b"\x81\0\0\x06") for number in range(10) for flow in range(8)]
            # To port 10, and fragments without a tag, of which no rule sees a port.
            left += [(frame := udp(net, number))[:36] + b"\0\x0a" + frame[38:] for number in range(10)]
            for number in range(10):
                taken += with_headers(udp(net, number, 2))
                left += with_headers((frame := udp(net, number, 2))[:36] + b"\0\x0a" + frame[38:])
            left += [part for number in range(5) for part in fragments(udp(net, number, payload=40))]
            for number, frame in enumerate(taken + left):
                near.send(frame)
                if number % 20 == 19:
                    time.sleep(0.005)
            ours = [f for _, f in far.receive(1, lambda f: f[0:6] == net.mac["b"] and f[6:12] == net.mac["a"])]
            case.check(sorted(ours) == sorted(taken), f"{name}: {len(ours)} frames came by the port, and {len(taken)} should have")
            theirs = [f for _, f in kernel.receive(0.3, lambda f: f[0:6] == net.mac["b"])]
            case.check(sorted(theirs) == sorted(left), f"{name}: {len(theirs)} frames stayed with the kernel, and {len(left)} should have")
            case.check(" 0% packet loss" in net.sh("a", "ping", "-c", 3, "-i", 0.2, "10.77.0.9"), f"{name}: later pings")
            report = ended(case, box)
            if report:
                case.equal(report["packets_in"], len(taken), f"{name}: packets in")
                counted = counters(report, "a")[0]["left_to_kernel"]
                # Pings, ARP, and what hosts say of their own accord stay with it, too.
                case.check(len(left) + 6 <= counted < len(left) + 60, f"{name}: {counted} packets left to the kernel, {len(left)} sent")
    with Net() as net:
        config, control = scratch / "p.toml", scratch / "control"
        config.write_text(f'graph = "a :: af_xdp -> null"\n[stage.a]\ninterface = "ma"\nonly = "@{rules}"\n')
        box = Middlebox(net, binary, "run", *JSON, "--control", control, config).ready()
        text = config.read_text()
        config.write_text(f"{text}ring = 128\n")
        answer = talk(control, b'{"do": "reload"}\n')[0]
        case.check(not answer["ok"] and "line 5" in answer["error"] and "`ring` of `a` can't change" in answer["error"],
                   f"another ring: {answer}")
        # Without rules all packets are taken, and with them again the kernel answers.
        net.ip("m", "addr", "add", "10.77.0.9/24", "dev", "ma")
        for only, answers in (("", "100%"), (text.splitlines()[-1], "0%")):
            config.write_text("\n".join([*text.splitlines()[:-1], only, ""]))
            answer = talk(control, b'{"do": "reload"}\n')[0]
            case.check(answer["ok"] and answer["changes"] == ["a.only"] and answer["stages"] == ["a"], f"{only!r}: {answer}")
            said = net.sh("a", "ping", "-c", 2, "-i", 0.2, "-W", 1, "10.77.0.9", check=False)
            case.check(f" {answers} packet loss" in said, f"{only!r}: {said}")
        ended(case, box)


def xdp_few_buffers(case, binary, _):
    """More packets are held than there are buffers: they are copied elsewhere, and more can come."""
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        graph = ("a :: af_xdp(interface=ma, ring=512, buffers=1024); b :: af_xdp(interface=mb, ring=512); "
                 "a -> reframe(hold=400ms, burst=256) -> b")
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        packets = 2400
        for number in range(packets):
            near.send(udp(net, number, number % 8))
            if number % 8 == 7:
                time.sleep(0.001)
        got = [number_of(f) for _, f in far.receive(4, is_udp, packets)]
        report = ended(case, box)
        if not report:
            return
        came, left = counters(report, "a")[0], counters(report, "b")[1]
        lost = came["dropped_by_kernel"] + left["no_room"]
        # On a machine that has other things to do the ring may be full for a moment, which is counted.
        case.check(len(got) + lost >= packets and lost < packets / 4, f"{len(got)} packets arrived, {lost} are counted as lost")
        case.check(came["copied"] > 0 and left["copied"] > 0, f"nothing was copied: {came} {left}")


def xdp_counts(case, binary, _):
    """Frames that fit no buffer are told apart from such as found none; what was refused counts neither as
    sent nor its bytes."""
    with Net() as net:
        near = net.wire("a")
        box = Middlebox(net, binary, "run", *JSON, "-e", 'af_xdp(interface=ma, mode=generic, only="udp port 9") -> null').ready()
        for end, interface in (("a", "a0"), ("m", "ma")):
            net.ip(end, "link", "set", "dev", interface, "mtu", 9000)
        near.send(udp(net, 1))
        for number in range(5):
            near.send(udp(net, number, payload=3000))
        time.sleep(0.2)
        status, out, err = box.stop()
        case.equal(status, 0, f"exit status: {err}")
        came = json.loads(out)["sources"][0]
        told = tuple(came["counters"][name] for name in ("too_long", "dropped_by_kernel"))
        case.equal((came["packets"], *told), (1, 5, 0), "packets, too long, without room")
        case.check("MTU" in err and "`ring`" not in err, f"the remedy: {err}")
    with Net() as net:
        near = net.wire("a")
        graph = 'af_xdp(interface=ma, only="udp port 9") -> reframe -> b :: af_xdp(interface=mb)'
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        for number in range(100):
            if number == 50:
                net.ip("b", "link", "set", "dev", "b0", "down")
                time.sleep(0.3)
            near.send(udp(net, number))
            time.sleep(0.001)
        report = ended(case, box)
        if report:
            left = counters(report, "b")[1]
            case.check(left["packets_sent"] >= 50 and left["refused"] > 0, f"{left}")
            case.equal(left["bytes_sent"], 60 * left["packets_sent"], "bytes sent")


def xdp_offloads(case, binary, _):
    """Hosts that leave checksums to their cards talk through AF_XDP in both modes: what is missing is filled
    in."""
    for mode in ("native", "generic"):
        with Net() as net:
            lazy(net)
            if mode == "generic":
                # Behind the driver nobody tells the neighbour to cut its packets.
                for end in "ab":
                    net.sh(end, "ethtool", "-K", f"{end}0", "tso", "off", "gso", "off")
            graph = f"a :: af_xdp(interface=ma, mode={mode}); b :: af_xdp(interface=mb, mode={mode}); a -> b; b -> a"
            box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
            transfer(case, net, "a", "b", "10.77.0.2")
            report = ended(case, box)
            if report:
                filled = counters(report, "a")[0]["checksums_filled_in"]
                case.check(filled > 100, f"{mode}: {filled} checksums were missing, so nothing was shown")
                case.equal(report["dropped"], {}, f"{mode}: dropped")


LIVE_XDP = (xdp_stream, xdp_generic_stream, xdp_busy_poll_stream, xdp_killed, xdp_trouble, xdp_queues, xdp_only, xdp_only_reload,
            xdp_few_buffers, xdp_counts, xdp_offloads)
