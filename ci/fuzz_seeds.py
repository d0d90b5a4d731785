#!/usr/bin/env python3
"""Inputs for fuzz targets to begin with, into fuzz/corpus/TARGET: made of the golden files of saved states,
of the configurations that are part of the repository, and of a text or a packet of each kind that a target
reads.

Targets that make checksums right take what stands before them.
"""

import gzip
import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
from netns import checksum  # noqa: E402

# Expressions of the language of rules: every word of it stands in one.
RULES = [
    "tcp dst port 80,443,8000-8080 and not src net 10.0.0.0/8",
    "udp or icmp; sctp && (ip6 || !vlan 7,100-199)\n# a comment\nfragment",
    "proto 47,esp-ah src host 10.0.0.1,2001:db8::1 dst net 2001:db8::/32",
    "dscp ef,cs1,af41 ecn ce,1-2 length 60-1500 ip vlan",
    "tcp flags syn,!ack or tcp fin rst psh urg ece cwr",
    "any none",
]
IPTABLES = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:web - [0:0]
-A FORWARD -i eth0 ! -o wan+ -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -m set --match-set hosts src -m set ! --match-set ports dst,dst -j REJECT
-A FORWARD -p tcp -m multiport ! --dports 80,443,8000:8080 -m dscp --dscp-class EF -j web
-A FORWARD -p tcp -m limit --limit 7/day --limit-burst 2 -m tcp --tcp-flags SYN,ACK SYN -j LOG
-A FORWARD -m iprange --src-range 10.0.0.1-10.0.0.9 -m addrtype --dst-type MULTICAST -g web
-A FORWARD -p icmp -m icmp --icmp-type 3/4 -m comment --comment "a \\"word\\"" -j REJECT --reject-with icmp-port-unreachable
-A web ! -s 10.0.0.0/8 -d 192.0.2.1 -p udp --sport 53 -j RETURN
-A web -f -j DROP
COMMIT
"""
IP_SETS = """create hosts hash:ip family inet hashsize 1024 maxelem 65536
add hosts 10.0.0.1
create nets hash:net family inet6
add nets 2001:db8::/32
create services hash:ip,port family inet
add services 192.0.2.1,udp:53
create open bitmap:port range 0-65535
add open 8000-8010
"""
FIREWALL = "count udp\nlog 1/10 tcp syn\nreset tcp dst port 23\nallow state established,related any\ndeny length 0-99\ndefault allow\n"
GRAPHS = [
    'in :: synth(traffic="flows=4,packets=9") -> reframe(hold=1ms, class=["web: tcp port 80 => hold=2ms, burst=3"]) -> out :: null',
    "in :: null -> t :: tee(ports=2); t[0] -> c :: counter -> out :: null; t[1] -> slice -> splice -> out",
    'in :: null -> sw :: switch(ports=["dns: udp port 53"]); sw[dns] -> out :: null; sw[other] -> delay(time=1us) -> out',
    'lan :: null -> [lan]r :: router(interfaces=["lan 10.0.0.1/24", "wan 192.0.2.1/24"]); r[wan] -> wan :: null',
    'a :: null -> [x]r :: router(interfaces=["x 10.0.0.1/24 02:00:00:00:00:01 mtu 1400", "y 2001:db8::1/64 02:00:00:00:00:02"], neighbours=["x 10.0.0.9 02:00:00:00:00:09"], proxy=["x 10.0.0.64/28"], neighbour_table=16); r[y] -> b :: null',
    'a :: null -> b :: balancer(service="192.0.2.80:80", backends=[10.1.0.1, "10.1.0.2 weight=2 down"], source=192.0.2.79, connections=64) -> c :: null',
    'a :: null -> n :: nat(pool=[192.0.2.0/30], inside=10.0.0.0/8, ports=1024-2047, low_ports=none, static=["10.0.0.9 = 192.0.2.9", "tcp 10.0.0.1:80 = 192.0.2.1:80"], sessions=64) -> b :: null',
    'a :: null -> [p]br :: l2fwd(ports=[p, q], static=["vlan 7 02:00:00:00:00:01 p"], map=["p > q"], stations=16); br[q] -> b :: null',
    'a :: null -> meter(cir=8bps, cbs=200, pir=9bps, pbs=300, mark="1,2,-") -> limit(rate=9pps) -> measure(task=heavy-hitters, key=src-dst/24, epoch=9p) -> slice(mode=paper, fraction=0.5) -> splice -> b :: null',
    "in :: null -> [a]br :: l2fwd(ports=[a, b]); br[b] -> vlan_push(id=7) -> vlan_pop -> out :: null",
]
REQUESTS = [
    '{"do": "list", "stage": "nat", "table": "sessions", "where": {"inside": "10.0.0.1", "inside_port": 5}}',
    '{"do": "delete", "stage": "fw", "table": "connections", "from": 3, "limit": 7}',
    '{"do": "drain", "stage": "lb", "backend": "10.0.0.1"}',
    '{"do": "rules", "stage": "fw"}',
]
POLLS = [
    "# clock 3393 MHz\nrate,run,cycles,batch,empty_before\n10,1,100,3,0\n10,1,400,2,1\n20,2,900,0,0\n20,2,1300,7,0\n",
    "time_ns,batch\n1,2\n300,4\n700,0\n900,32\n",
]
SETTINGS = [
    "web: tcp port 80 => hold=2ms, burst=3, weight=2",
    "big: top 1 % of udp => bypass",
    "price=30us",
    "src-dst/24/56 10.0.0.0/24 > 10.1.0.0",
    "5tuple tcp 10.0.0.1:1 > 10.0.0.2:80",
    "2.5gbps",
    "10.0.0.0/8",
    "64KiB",
    "flows=4,packets=20,size=64:7,594:4,1518:1,order=round-robin,rate=1mpps,seed=3",
    "profile=campus,packets=30,copies=2,seed=1,start=9,snap-len=96",
    "packets=20,size=60..100,protocol=0.5,ipv6=0.5,vlan=0.5,slf=2,arrivals=poisson",
]


def ipv4(protocol, body, source=(10, 0, 0, 1), target=(192, 0, 2, 1)):
    head = struct.pack("!BBHHHBBH4B4B", 0x45, 0, 20 + len(body), 1, 0, 64, protocol, 0, *source, *target)
    return head[:10] + checksum(head).to_bytes(2, "big") + head[12:] + body


def ipv6(protocol, body):
    ends = bytes.fromhex("20010db8000000000000000000000001" "20010db8000000000000000000000002")
    return struct.pack("!IHBB", 0x60000000, len(body), protocol, 64) + ends + body


def udp(source, target, body):
    return struct.pack("!HHHH", source, target, 8 + len(body), 0) + body


def tcp(flags, body=b""):
    options = bytes.fromhex("0101080a0000000500000006")
    return struct.pack("!HHIIBBHHH", 4000, 80, 1, 2, 0x80, flags, 500, 0, 0) + options + body


def packets():
    """IP packets of each kind: with one or the other transport, fragments, extension headers, tunnels."""
    inner = ipv4(17, udp(1, 53, b"12345678"))
    fragment = bytearray(ipv4(17, udp(1, 53, b"1234567890123456")))
    fragment[6] = 0x20
    vxlan = bytes([8, 0, 0, 0, 0, 0, 9, 0, *[2] * 12, 8, 0])
    geneve = bytes([1, 0, 0x65, 0x58, 0, 0, 9, 0, 1, 2, 3, 0, *[2] * 12, 8, 0])
    return {
        "tcp": ipv4(6, tcp(2)),
        "udp": inner,
        "tcp6": ipv6(6, tcp(16, b"payload")),
        "extensions": ipv6(0, bytes([60, 0, 1, 4, 0, 0, 0, 0, 44, 0, 1, 4, 0, 0, 0, 0, 17, 0, 0, 1, 0, 0, 0, 7]) + udp(1, 53, b"")),
        "fragment": bytes(fragment),
        "icmp-error": ipv4(1, bytes([3, 4, 0, 0, 0, 0, 5, 0]) + inner),
        "echo": ipv4(1, bytes([8, 0, 0, 0, 0, 7, 0, 1])),
        "ipip": ipv4(4, inner),
        "6in4": ipv4(41, ipv6(17, udp(1, 53, b""))),
        "gre": ipv4(47, bytes([0xB0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]) + inner),
        "vxlan": ipv4(17, udp(1, 4789, vxlan + inner)),
        "geneve": ipv4(17, udp(1, 6081, geneve + inner)),
    }


def ether(packet):
    """An IP packet behind its Ethernet type."""
    return (b"\x86\xdd" if packet[0] >> 4 == 6 else b"\x08\0") + packet


def pcap(order, magic, unit, frames, link=1):
    out = struct.pack(order + "IHHiIII", magic, 2, 4, 0, 0, 65535, link)
    for number, frame in enumerate(frames):
        more = b"\0" * 8 if magic == 0xA1B2CD34 else b""
        out += struct.pack(order + "IIII", 100 + number, number * unit, len(frame), len(frame)) + more + frame
    return out


def pcapng(order, frames):
    def block(kind, body):
        body += b"\0" * (-len(body) % 4)
        return struct.pack(order + "II", kind, len(body) + 12) + body + struct.pack(order + "I", len(body) + 12)

    def option(code, value):
        return struct.pack(order + "HH", code, len(value)) + value + b"\0" * (-len(value) % 4)

    end = b"\0" * 4
    section = block(0x0A0D0D0A, struct.pack(order + "IHHq", 0x1A2B3C4D, 1, 0, -1))
    out = section
    for resolution in (9, 6, 0x8A):
        options = option(2, b"eth0") + option(9, bytes([resolution])) + option(14, struct.pack(order + "q", 3)) + end
        out += block(1, struct.pack(order + "HHI", 1, 0, 0) + options)
    for number, frame in enumerate(frames):
        time = (number % 3, 0, 5000 + number, len(frame), len(frame))
        out += block(6, struct.pack(order + "IIIII", *time) + frame + b"\0" * (-len(frame) % 4) + option(1, b"word") + end)
    out += block(4, struct.pack(order + "HH", 1, 8) + bytes([10, 0, 0, 1]) + b"a\0b\0" + end)
    out += block(5, struct.pack(order + "III", 0, 0, 9) + option(5, b"\0" * 8) + end)
    out += block(2, struct.pack(order + "HHIIII", 0, 0, 0, 7000, len(frames[0]), len(frames[0])) + frames[0])
    out += block(3, struct.pack(order + "I", len(frames[0])) + frames[0])
    return out + section + block(1, struct.pack(order + "HHI", 101, 0, 0))


def write(target, name, data):
    folder = ROOT / "fuzz/corpus" / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"seed-{name}").write_bytes(data)


def captures():
    frames = [bytes([2] * 12) + ether(packet) for packet in packets().values()]
    for name, order in (("le", "<"), ("be", ">")):
        yield f"{name}-us.pcap", pcap(order, 0xA1B2C3D4, 1, frames)
        yield f"{name}-ns.pcap", pcap(order, 0xA1B23C4D, 1000, frames[:4])
        yield f"{name}-patched.pcap", pcap(order, 0xA1B2CD34, 1, frames[:4])
        yield f"{name}.pcapng", pcapng(order, frames[:5])


def texts():
    """Of each target that reads text the texts, and whether a packet follows."""
    configs = [(path.name, path.read_text()) for path in sorted((ROOT / "configs").glob("*.toml"))]
    rules = [(path.name, path.read_text()) for path in sorted((ROOT / "configs").glob("*.rules"))]
    gateway = (ROOT / "crates/functions/tests/gateway.rules").read_text()
    yield "rules", enumerate(RULES), True
    yield "firewall", [*rules, ("acl", (ROOT / "configs/acl.txt").read_text()), ("every", FIREWALL)], True
    yield "iptables", [("gateway", gateway), ("every", IPTABLES), ("sets", IP_SETS)], True
    yield "pipeline", [*configs, *enumerate(GRAPHS)], False
    yield "routes", [("lan", (ROOT / "configs/lan_gateway.routes").read_text()), ("more", "10.0.0.0/8 via 192.0.2.254\n10.1.0.0/16 dev wan\n")], False
    yield "control", enumerate(REQUESTS), False
    yield "poll_log", enumerate(POLLS), False
    yield "settings", enumerate(SETTINGS), False


def main():
    for path in sorted((ROOT / "crates/sketch/tests/golden").glob("*.sketch")):
        state = path.read_bytes()
        version, kind = int.from_bytes(state[8:10], "little"), state[10]
        write("sketch_state", path.name, state[:-4])
        write("sketch_tables", path.name, bytes([kind - 1, version]) + state[24:-4])
    for path in sorted((ROOT / "crates/measure/tests/golden").glob("*.state")):
        write("measure_state", path.name, path.read_bytes()[:-4])
    for path in sorted((ROOT / "crates/trace/tests/trace/golden").glob("*.partial")):
        write("trace_part", path.name, path.read_bytes())
    for target, all_texts, with_packet in texts():
        for name, text in all_texts:
            packet = packets()["tcp"].ljust(60, b"\0") if with_packet else b""
            write(target, name, text.encode() + packet)
    for name, packet in packets().items():
        write("classify", name, b"\x02" + packet)
        write("tunnel", name, b"\0" + packet)
        write("checksum", name, packet)
        # Twice, from inside and from outside.
        whole = bytes([len(packet), 0]) + packet
        write("functions", name, b"\0" + whole + bytes([len(packet), 0x80]) + packet)
        write("fragments", name, whole + whole)
        for stage in range(19 if name in ("tcp", "udp", "tcp6", "fragment", "icmp-error") else 0):
            frame = bytes([0x40 * (stage % 2), stage, len(packet) + 2, 8]) + ether(packet)
            write("stages", f"{stage}-{name}", bytes([stage, 1, 0]) + frame + frame)
    # Chains of five functions, and packets that go through both ways.
    for first in range(19):
        functions = bytes((first + 5 * n) % 19 for n in range(5))
        packet = packets()[("tcp", "udp", "tcp6", "fragment", "icmp-error")[first % 5]]
        frames = [bytes([side, 1, len(packet) + 2, 8]) + ether(packet) for side in (0, 0x40)]
        write("chain", first, bytes([1 + 4 * (first % 4), 4, 3, 0]) + functions + b"".join(frames) * 2)
    # Super-frames of TCP and of UDP, in tunnels and behind extension headers, into packets of 100 bytes.
    for shape in range(16):
        for way in range(5):
            header = bytes([1, 1]) + bytes(2) + struct.pack("=H", 100) + bytes(4)
            extensions = bytes([1, 2, 2, 1]) if shape & 8 else b""
            frame = bytes([shape | (0x20 if shape & 8 else 0), way, 0x80]) + extensions + struct.pack("<I", 3001) + b"\0"
            write("offload", f"{shape}-{way}", header + frame)
    header = b"slipshm\n" + struct.pack("=QQ", 2, 1 << 16)
    write("shm", "header", b"\0" + header)
    write("shm", "second", bytes([2, 0, 2, 0, 129, 0, 1]))
    for how in (1, 5):
        record = struct.pack("=IIIIQQ", 60, 60, 0, 1, 9, 9) + bytes(60)
        write("shm", f"ring-{how}", bytes([how]) + struct.pack("=Q", 128) + record.ljust(512, b"\0") + struct.pack("=Q", 64))
    # Two packets without a byte at the time 0, in pcap.
    write("capture_round_trip", "empty", bytes(30))
    for name, data in captures():
        write("capture", name, data)
        write("capture_parts", name, bytes([60, 2, 20]) + data)
        write("capture", name + ".gz", gzip.compress(data, mtime=0))


if __name__ == "__main__":
    main()
