"""Pipelines in shards: several threads, each with a share of the flows, between real end hosts."""

import os
import select
import signal
import socket
import struct
import threading
import time

from harness import have
from live_functions import JSON, PORTS, ended, fetch, mac, nginx
from live_ports import PACKETS, Capture, stream
from netns import Middlebox, Net, checksum, number_of, udp

SHARDS = ("--shards", "2")


def shares(case, report, least):
    """What each shard took in, together all; none took in fewer packets than `least`.

    That is a number of packets and not a part of all: a few large downloads may all come to the same shard.
    """
    taken = [shard["packets_in"] for shard in report["shards"]]
    case.equal(sum(taken), report["packets_in"], "packets of the shards, and of all")
    case.check(all(n >= least for n in taken), f"shares: {taken}")
    for shard in report["shards"]:
        dropped = sum(shard["dropped"].values())
        case.equal(shard["packets_in"], shard["packets_out"] + dropped, "of a shard: packets in against out and dropped")
    return taken


def counted(report, name):
    return sum(source["counters"].get(name, 0) for source in report["sources"])


XDP = "ring=8192, buffers=32768"


def start(net, binary, graph):
    """A pipeline on two shards, once it receives."""
    return Middlebox(net, binary, "run", *JSON, *SHARDS, "-e", graph).ready()


def shard_stream(case, binary, scratch):
    """Packets of 64 flows through a reframer on two shards: each arrives once, those of a flow in order."""
    several(case, binary, scratch, "af_packet(interface=ma, ring=16384)", "af_packet(interface=mb)", 0.01)


def shard_xdp_stream(case, binary, scratch):
    """The same with a queue a shard: those that came by the other one's are handed over, or stay where nobody
    minds."""
    several(case, binary, scratch, f"af_xdp(interface=ma, {XDP})", f"af_xdp(interface=mb, {XDP})", 1)
    several(case, binary, scratch, f"af_xdp(interface=ma, {XDP}, steer=false)", f"af_xdp(interface=mb, {XDP})", 0)


def several(case, binary, scratch, come, leave, most_handed):
    packets = PACKETS // 4
    with Net(queues=2) as net:
        near = net.wire("a")
        capture = Capture(net, "b", "b0", scratch / "far.pcap")
        box = start(net, binary, f"in :: {come}; out :: {leave}; in -> reframe(hold=100us) -> out")
        stream(net, near, packets)
        got = [number_of(frame) for frame in capture.frames(case)]
        case.equal((len(got), len({number for _, number in got})), (packets, packets), "packets, and different ones")
        latest, overtaken = {}, 0
        for flow, number in got:
            overtaken += latest.get(flow, -1) >= number
            latest[flow] = number
        case.equal(overtaken, 0, "packets that were overtaken in their flow")
        report = ended(case, box)
        if report:
            taken = shares(case, report, packets // 5)
            case.equal(counted(report, "dropped_by_kernel") + counted(report, "lost_between_shards"), 0, "lost")
            handed = counted(report, "to_other_shards")
            case.check(handed <= packets * most_handed, f"{handed} packets came to the wrong shard")
            case.check(most_handed < 1 or handed > packets / 10, f"only {handed} packets were handed over, so nothing was shown")
            print(f"       two shards, {come.partition('(')[0]}: {taken} packets, {handed} handed over, {report['cpu_ns'] / report['packets_in']:.0f} ns CPU a packet")


def answers(case, far, near, rounds):
    """Each of the near sockets asks the far one, which answers; how many answers came."""
    came = 0
    for number in range(rounds):
        question = struct.pack("!I", number)
        for sock in near:
            sock.sendto(question, ("10.77.0.2", 53))
        for _ in near:
            if not select.select([far], [], [], 2)[0]:
                break
            data, client = far.recvfrom(2048)
            far.sendto(data, client)
        for sock in near:
            if select.select([sock], [], [], 2)[0]:
                came += sock.recv(2048) == question
    return came


STATEFUL = """
allow arp
allow ip6
allow state established,related
allow state new src host 10.77.0.1
default deny
"""


def shard_firewall(case, binary, scratch):
    """A firewall that tracks connections, on two shards: both directions of each come to the same one."""
    tracking(case, binary, scratch, PORTS)


XDP_PORTS = f"lan :: af_xdp(interface=ma, {XDP}); wan :: af_xdp(interface=mb, {XDP}); "


def shard_xdp_firewall(case, binary, scratch):
    """The same over queues, which know nothing of connections, fragments and errors."""
    tracking(case, binary, scratch, XDP_PORTS)


def tracking(case, binary, scratch, ports):
    if not have(case, "curl", "nginx", "ss", "ping", "traceroute"):
        return
    rules = scratch / "rules.txt"
    rules.write_text(STATEFUL.replace("allow arp\n", ""))
    with Net(queues=2) as net:
        for end, other, address in (("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1")):
            net.ip(end, "neigh", "replace", address, "lladdr", mac(net, other), "dev", f"{end}0")
        graph = (f"lan -> fw :: firewall(rules=\"{rules}\") -> side :: switch(ports=[\"out: src host 10.77.0.1\"]); "
                 "wan -> fw; side[out] -> wan; side[other] -> lan")
        box = start(net, binary, ports + graph)
        page = nginx(net, "b", scratch)
        for _ in range(8):
            fetch(case, net, "http://10.77.0.2/page", page, scratch)
        near = []
        for flow in range(40):
            near.append(net.socket("a", socket.AF_INET, socket.SOCK_DGRAM))
            near[-1].bind(("10.77.0.1", 5000 + flow))
        far = net.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        far.bind(("10.77.0.2", 53))
        case.equal(answers(case, far, near, 5), 5 * len(near), "answers through the firewall")
        # An ICMP error about a connection belongs to it.
        near[0].connect(("10.77.0.2", 54))
        near[0].send(b"nobody is there")
        try:
            select.select([near[0]], [], [], 2)
            near[0].recv(100)
            case.check(False, "no error for a port that nobody listens at")
        except ConnectionRefusedError:
            pass
        # In fragments there and back.
        near[1].settimeout(3)
        far.settimeout(3)
        question = os.urandom(3000)
        near[1].sendto(question, ("10.77.0.2", 53))
        data, client = far.recvfrom(1 << 16)
        far.sendto(data, client)
        case.check(near[1].recv(1 << 16) == question, "in fragments")
        report = ended(case, box)
        if report:
            # Of the 40 flows that ask five questions each, no shard has fewer than five.
            shares(case, report, 50)
            case.equal(report["dropped"], {}, "dropped")


def shard_nat(case, binary, scratch):
    """A NAT on two shards: inside hosts of both are answered, also by ping, and files come whole."""
    translating(case, binary, scratch, PORTS)


def shard_xdp_nat(case, binary, scratch):
    """The same over queues."""
    translating(case, binary, scratch, XDP_PORTS)


def translating(case, binary, scratch, ports):
    if not have(case, "ping", "curl", "nginx", "ss"):
        return
    hosts = 24
    with Net(queues=2) as net:
        net.ip("a", "addr", "flush", "dev", "a0")
        for host in range(1, hosts + 1):
            net.ip("a", "addr", "add", f"192.168.7.{host}/24", "dev", "a0")
        net.ip("a", "route", "add", "10.77.0.0/24", "dev", "a0")
        net.ip("a", "neigh", "replace", "10.77.0.2", "lladdr", mac(net, "b"), "dev", "a0")
        net.ip("b", "neigh", "replace", "10.77.0.100", "lladdr", mac(net, "a"), "dev", "b0")
        graph = ("lan -> n :: nat(pool=[10.77.0.100], inside=[192.168.7.0/24], routed=true, hairpin=false) -> wan; "
                 "wan -> [outside]n[inside] -> lan")
        box = start(net, binary, ports + graph)
        near = []
        for host in range(1, hosts + 1):
            for port in (4000, 4001):
                near.append(net.socket("a", socket.AF_INET, socket.SOCK_DGRAM))
                near[-1].bind((f"192.168.7.{host}", port))
        far = net.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        far.bind(("10.77.0.2", 53))
        case.equal(answers(case, far, near, 5), 5 * len(near), "answers through the NAT")
        page = nginx(net, "b", scratch)
        for host in (1, 2, 3, 4):
            text = net.sh("a", "ping", "-c", "3", "-i", "0.05", "-W", "2", "-I", f"192.168.7.{host}", "10.77.0.2", check=False)
            case.check("3 received" in text, text)
            net.sh("a", "curl", "-sS", "-m", "20", "--interface", f"192.168.7.{host}", "-o", scratch / "got", "http://10.77.0.2/page")
            case.check((scratch / "got").read_bytes() == page, f"host {host}: not what nginx has")
        report = ended(case, box)
        if report:
            # The questions and answers of one host at least.
            shares(case, report, 20)
            case.equal(counted(report, "lost_between_shards"), 0, "lost between shards")


def shard_tap(case, binary, _):
    """A TAP interface with several queues on two shards."""
    with Net() as net:
        graph = "host :: tap_interface(interface=t0); wire :: af_packet(interface=mb); host -> reframe -> wire; wire -> host"
        box = Middlebox(net, binary, "run", *JSON, *SHARDS, "-e", graph).ready()
        net.ip("m", "addr", "add", "10.77.0.9/24", "dev", "t0")
        near = []
        for flow in range(24):
            near.append(net.socket("m", socket.AF_INET, socket.SOCK_DGRAM))
            near[-1].bind(("10.77.0.9", 5000 + flow))
        far = net.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        far.bind(("10.77.0.2", 53))
        case.equal(answers(case, far, near, 5), 5 * len(near), "answers")
        report = ended(case, box)
        if report:
            shares(case, report, 10)


def shard_trouble(case, binary, scratch):
    """Pipelines that can't be replicated are refused, with the reason and a way out."""
    rules = scratch / "r.txt"
    rules.write_text("allow ip\n")
    port = "af_packet(interface=ma)"
    with Net() as net:
        for graph, words, wanted in (
                (f"{port} -> meter(cir=1mbps) -> null", (), ("all packets together", "per=flow")),
                (f"a :: {port}; a -> n :: nat(pool=[10.0.0.1]) -> null; af_packet(interface=mb) -> [outside]n[inside] -> null", (),
                 ("hairpin=false",)),
                (f"a :: {port}; b :: af_packet(interface=mb); a -> [lan]r :: router(interfaces=[\"lan 10.0.0.1/24 02:00:00:00:00:01\"]); "
                 "r[lan] -> a; a -> b", (), ("ARP", "`b`", "once for each shard")),
                (f"{port} -> pcap(path=\"{scratch}/x.pcap\")", (), ("can't be shared",)),
                ("af_xdp(interface=ma) -> null", (), ("serves 1 of its queues", "2 shards", "ethtool -L ma combined 2")),
                ("af_xdp(interface=ma, queues=0) -> null", (), ("serves 1 of its queues",)),
                (f"af_xdp(interface=ma, steer=false) -> firewall(rules=\"{rules}\") -> null", (), ("steer=false", "ICMP errors")),
                (f"{port} -> null", ("--packets", "5"), ("--duration",)),
                (f"{port} -> null", ("--workers", "2"), ("not both",)),
                (f"{port} -> null", ("--cores", "0,1,2"), ("more numbers",)),
                (f"{port} -> null", ("--cores", "999"), ("core 999",)),
                ("synth -> null", (), ("live ports",))):
            child = net.start("m", binary, "run", *SHARDS, *words, "-e", graph)
            _, err = child.communicate(timeout=20)
            case.check(child.returncode == 2 and all(text in err for text in wanted), f"{graph} {words}: {child.returncode} {err}")
        case.check(not (scratch / "x.pcap").exists(), "a file of a run that was refused")
        text = net.sh("m", binary, "validate", "--explain", "-e", f"{port} -> firewall(rules=\"{rules}\") -> null")
        case.check("needs all packets of a connection" in text and "both directions alike" in text, text)
        text = net.sh("m", binary, "validate", "--explain", "-e", f"af_xdp(interface=ma) -> firewall(rules=\"{rules}\") -> null")
        case.check("handed over" in text and "both directions alike" in text, text)
        # The interface goes: all shards end, with their report.
        box = Middlebox(net, binary, "run", *JSON, *SHARDS, "-e", f"{port} -> null").ready()
        net.ip("m", "link", "del", "dev", "ma")
        status, out, err = box.wait(10)
        case.check(status == 2 and "is gone" in err and "\"shards\"" in out, f"interface taken away: {status} {err}")


def later_fragment(net, number, ident):
    """The second fragment of a datagram whose first one never comes."""
    frame = udp(net, number, payload=40)
    header = frame[14:18] + struct.pack("!HH", ident, 2) + frame[22:24] + b"\0\0" + frame[26:34]
    return frame[:14] + header[:10] + struct.pack("!H", checksum(header)) + header[12:] + frame[34:]


def shard_end(case, binary, _):
    """A run that ends under traffic: what one shard handed to another has come there, and fragments that wait
    for the first one of their datagram wait no longer, and leave."""
    graph = f"in :: af_xdp(interface=ma, {XDP}) -> out :: af_packet(interface=mb)"
    for turn in range(4):
        with Net(queues=2) as net:
            near, far = net.wire("a"), net.wire("b")
            box, over = start(net, binary, graph), threading.Event()
            frames = [udp(net, number, number % 64) for number in range(1024)]

            def send():
                while not over.is_set():
                    for frame in frames:
                        near.send(frame)

            thread = threading.Thread(target=send)
            thread.start()
            time.sleep(0.5)
            box.child.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            over.set()
            thread.join()
            report = ended(case, box)
            if report:
                handed = counted(report, "to_other_shards")
                case.check(handed > 100, f"{handed} packets were handed over")
                case.equal(counted(report, "from_other_shards"), handed, f"turn {turn}: packets that came to the other shard")
                case.equal(report["packets_in"], report["packets_out"] + sum(report["dropped"].values()), "in against out and dropped")
    with Net(queues=2) as net:
        near, far = net.wire("a"), net.wire("b")
        box, ours = start(net, binary, "in :: af_packet(interface=ma) -> out :: af_packet(interface=mb)"), net.mac["a"]
        sent = [later_fragment(net, number, number) for number in range(200)]
        for frame in sent:
            near.send(frame)
        report = ended(case, box)
        got = [frame for _, frame in far.receive(0.5, lambda frame: frame[6:12] == ours and frame[23:24] == b"\x11")]
        case.check(sorted(got) == sorted(sent), f"{len(got)} of {len(sent)} fragments left at the end")
        if report:
            case.equal((counted(report, "fragments_waiting"), counted(report, "fragments_without_first")), (0, len(sent)),
                       "fragments that wait, and without their first")


def shard_begin(case, binary, scratch):
    """A run that begins under traffic: what comes while one socket after the other is opened comes once."""
    graph = "in :: af_packet(interface=ma, ring=256) -> out :: af_packet(interface=mb)"
    with Net() as net:
        near, over = net.wire("a"), threading.Event()
        capture = Capture(net, "b", "b0", scratch / "far.pcap")
        # Datagrams without a checksum, of which only the number changes.
        frames = [bytearray(udp(net, 0, flow)) for flow in range(64)]
        sent = [0]

        def send():
            for frame in frames:
                frame[40:42] = b"\0\0"
            while not over.is_set():
                frame = frames[sent[0] % len(frames)]
                struct.pack_into("!I", frame, 42, sent[0])
                near.raw.send(frame)
                sent[0] += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            for _ in range(4):
                ended(case, Middlebox(net, binary, "run", *JSON, "--shards", "32", "-e", graph).ready())
        finally:
            over.set()
            thread.join()
        got = [number for _, number in map(number_of, capture.frames(case))]
        case.check(len(got) > 100, f"{len(got)} packets of {sent[0]}")
        case.equal(len(got) - len(set(got)), 0, f"packets that came twice, of {len(got)}")


SHARDED = (shard_begin, shard_end, shard_stream, shard_xdp_stream, shard_firewall, shard_xdp_firewall, shard_nat, shard_xdp_nat, shard_tap, shard_trouble)
