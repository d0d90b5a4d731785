"""Datagrams in fragments of every kind, through Linux with connection tracking and through our firewall: the
same ones pass.

Every datagram has a source address of its own, by which it is known again, and goes through whole or not at
all. Linux sends on what it reassembled, cut anew: what is compared is datagrams, each with all of its bytes.
"""

import random
import struct
import time
from ipaddress import IPv6Address

import numpy as np

import capture
import harness
import packets
from netns import checksum
from packets import ICMP, ICMP6, TCP, UDP
from peer import NEXT_HOP, Peer

FRAGMENT = 44
PIECE = {4: 56, 6: 32}  # bytes of a datagram in a frame at most
TARGET = {4: bytes([203, 0, 113, 9]), 6: IPv6Address("2600:9000::9").packed}
RULES = """*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -p udp -m udp --dport 5353 -j DROP
-A FORWARD -p udp -m udp --sport 1024:65535 -j ACCEPT
-A FORWARD -p tcp -m tcp --dport 23 --tcp-flags FIN,SYN,RST,ACK SYN -j DROP
-A FORWARD -p tcp -m conntrack --ctstate NEW -j ACCEPT
-A FORWARD -s {net} -p {icmp} -m conntrack --ctstate NEW -j ACCEPT
COMMIT
"""


def source(version, number):
    return struct.pack("!I", 10 << 24 | number + 1) if version == 4 else IPv6Address(0x20010DB8 << 96 | number + 1).packed


class Datagrams:
    """Datagrams and the frames that they come in, some that never are complete, or lie."""

    ODD = ("overlapping", "ends", "beyond", "empty", "long")
    # Empty fragments of IPv6 leave traces in Linux though they are dropped.
    KINDS = ("ordered", "reversed", "shuffled", "whole", "tiny", "missing", "repeated", "within", *ODD)

    def __init__(self, version, count, seed, link):
        self.version, self.link, self.random = version, link, random.Random(seed)
        # Those of which some first fragment ends before TCP's flags.
        self.kinds, self.headless, timed = [], set(), []
        for number in range(count):
            kind = self.random.choice([k for k in self.KINDS if version == 4 or k != "empty"])
            self.kinds.append(kind)
            pieces = self._pieces(kind, self._payload(number, kind))
            if version == 4 and any(protocol == TCP and at == 0 and len(data) < 14 for protocol, at, data, _, cut in pieces if cut):
                self.headless.add(number)
            frames = [self._frame(number, *piece) for piece in pieces]
            # Those of neighbours come between each other, each datagram's in their order.
            times = sorted(number + self.random.random() * self.random.choice((0.1, 30)) for _ in frames)
            timed += zip(times, frames)
        timed.sort(key=lambda pair: pair[0])
        self.frames = np.frombuffer(b"".join(frame for _, frame in timed), np.uint8).reshape(-1, packets.SIZE)

    def _payload(self, number, odd):
        """A datagram with a right checksum. What may end early is one of ICMP, which has no length to be held
        against."""
        kind, length = self.random.choice(("udp", "udp", "tcp", "icmp")), self.random.randrange(24, 160)
        kind = "icmp" if odd in self.ODD else kind
        length = 8 if odd == "whole" else length
        # No multiple of eight with any header, so that only a last fragment ends where the datagram does.
        data = struct.pack("!I", number) + self.random.randbytes(length // 8 * 8 + 1)
        sport = self.random.choice((80, 1024, 40_000))
        if kind == "udp":
            protocol, at = UDP, 6
            data = struct.pack("!HHHH", sport, self.random.choice((53, 5353)), 8 + len(data), 0) + data
        elif kind == "tcp":
            protocol, at = TCP, 16
            data = struct.pack("!HHIIHHHH", sport, self.random.choice((23, 80)), 7, 0, 0x5002, 1024, 0, 0) + data
        else:
            protocol, at = (ICMP, 2) if self.version == 4 else (ICMP6, 2)
            data = struct.pack("!BBHHH", 8 if self.version == 4 else 128, 0, 0, number & 0xFFFF, 1) + data
        pseudo = source(self.version, number) + TARGET[self.version] + struct.pack("!IHBB", len(data), 0, 0, protocol)
        total = checksum((b"" if protocol == ICMP else pseudo) + data) or 0xFFFF
        return protocol, data[:at] + struct.pack("!H", total) + data[at + 2:]

    def _pieces(self, kind, datagram):
        """(protocol, place, bytes, whether more follow, whether it is a fragment)"""
        protocol, data = datagram
        most = PIECE[self.version]
        if kind == "whole":
            return [(protocol, 0, data, False, False)]
        size = 8 if kind == "tiny" else 8 * self.random.randrange(1, most // 8 + 1)
        cut = [(protocol, at, data[at:at + size], at + size < len(data), True) for at in range(0, len(data), size)]
        if kind != "ordered":
            self.random.shuffle(cut)
        if kind == "reversed":
            cut.sort(key=lambda piece: -piece[1])
        some = self.random.choice(cut)
        odd = None
        if kind == "missing":
            cut.remove(some)
        elif kind == "repeated":
            odd = some
        elif kind == "within" and len(some[2]) > 8:
            odd = (protocol, some[1], bytes(8), True, True)
        elif kind == "overlapping":
            at = max(0, some[1] - 8)
            odd = (protocol, at, bytes(self.random.choice((16, 24))), True, True)
        elif kind == "ends":
            # No multiple of eight, so that it repeats no other; IPv6 takes one that is first and last for a
            # whole packet.
            odd = (protocol, max(some[1], 8), bytes(min(len(some[2]), PIECE[self.version] - 8) + 4), False, True)
        elif kind == "beyond":
            odd = (protocol, (len(data) + 15) // 8 * 8, bytes(8), True, True)
        elif kind == "empty":
            odd = (protocol, some[1], b"", self.random.random() < 0.5, True)
        elif kind == "long":
            odd = (protocol, 65_512, bytes(32), True, True)
        if odd:
            cut.insert(self.random.randrange(len(cut) + 1), odd)
        return cut

    def _frame(self, number, protocol, at, data, more, fragment):
        head, target = source(self.version, number), TARGET[self.version]
        if self.version == 4:
            word = at // 8 | (0x2000 if more else 0)
            ip = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(data), number & 0xFFFF, word, 64, protocol, 0) + head + target
            ip = ip[:10] + struct.pack("!H", checksum(ip)) + ip[12:] + data
        else:
            header = struct.pack("!BBHI", protocol, 0, at | more, number) if fragment else b""
            following = FRAGMENT if fragment else protocol
            ip = struct.pack("!IHBB", 6 << 28, len(header) + len(data), following, 64) + head + target + header + data
        frame = self.link + (b"\x08\0" if self.version == 4 else b"\x86\xdd") + ip
        return frame.ljust(packets.SIZE, b"\0")


def passed(path, version):
    """The lengths of the datagrams in a capture, by their numbers, and the numbers of those of which not all
    bytes are there."""
    found, under_way = {}, {}
    for record in capture.read(path).records:
        ip = record.data[14:]
        if version == 4 and ip[16:20] == TARGET[4]:
            number = struct.unpack("!I", ip[12:16])[0] - (10 << 24) - 1
            length, _, word = struct.unpack("!HHH", ip[2:8])
            at, more, length = (word & 0x1FFF) * 8, word & 0x2000, length - 20
        elif version == 6 and ip[24:40] == TARGET[6]:
            number, length = struct.unpack("!I", ip[20:24])[0] - 1, struct.unpack("!H", ip[4:6])[0]
            at, more = 0, 0
            if ip[6] == FRAGMENT:
                word = struct.unpack("!H", ip[42:44])[0]
                at, more, length = word & 0xFFF8, word & 1, length - 8
        else:
            continue
        if under_way.pop(number, 0) != at:
            found.setdefault(number, []).append(None)
        elif more:
            under_way[number] = at + length
        else:
            found.setdefault(number, []).append(at + length)
    return found, {*under_way, *(number for number, lengths in found.items() if None in lengths)}


def linux(net, frames, into):
    """What Linux lets through, as a capture."""
    words = ["tcpdump", "-i", "b0", "-n", "-s", 256, "-B", 262_144, "-Z", "root", "-Q", "in", "-w", into, f"ether dst {NEXT_HOP}"]
    return net.captured(frames, into, words)


def check(case, binary, scratch, version, flavour, count, seed):
    """One rule set that tracks connections, many datagrams, both firewalls."""
    icmp, hosts = ("icmp", "10.0.0.0/8") if version == 4 else ("ipv6-icmp", "2001:db8::/32")
    tool = f"{'ip6' if version == 6 else 'ip'}tables-{flavour}"
    since = time.monotonic()
    with Peer() as net:
        net.load([f"{tool}-restore"], RULES.format(icmp=icmp, net=hosts))
        # Nothing but time and contradictions may end a datagram.
        for name, value in (("ipv4.ipfrag_max_dist", 0), ("ipv4.ipfrag_high_thresh", 1 << 28),
                            # What may end early has another checksum then.
                            ("netfilter.nf_conntrack_checksum", 0),
                            ("netfilter.nf_conntrack_frag6_high_thresh", 1 << 28)):
            net.sh("m", "sysctl", "-qw", f"net.{name}={value}")
        made = Datagrams(version, count, seed, net.mac["ma"] + net.mac["a"])
        lost = linux(net, made.frames, scratch / "kernel.pcap")
        rules = scratch / "rules.txt"
        rules.write_text(net.sh("m", f"{tool}-save", "-t", "filter"))
    case.equal(lost, [], "losses")
    kernel, parts = passed(scratch / "kernel.pcap", version)
    case.equal(parts, set(), "datagrams that Linux sent on in part")
    packets.write(scratch / "in.pcap", made.frames, 1000)
    for settings in ("", ", decide=packet"):
        graph = f"firewall(rules=\"{rules}\", format=iptables, fragments=1048576, fragment_bytes=1GiB{settings})"
        words = ["run", "-i", scratch / "in.pcap", "-o", scratch / "ours.pcap", "--format", "json", "-e", graph]
        report = harness.Run(binary, words, timeout=200).json()
        dropped = sum(report["dropped"].values())
        case.equal(report["packets_in"], report["packets_out"] + dropped, "packets in against out and dropped")
        case.equal(report["left_inside"], 0, "left inside")
        ours, parts = passed(scratch / "ours.pcap", version)
        case.equal(parts, set(), "datagrams that we sent on in part")
        # Of those without a header ours drops the fragment, whatever that was: the table in the book says so.
        differ = [n for n in range(count) if kernel.get(n) != ours.get(n) and n not in made.headless]
        shown = [f"{n}, {made.kinds[n]}: {kernel.get(n)} against {ours.get(n)}" for n in differ[:5]]
        case.check(not differ, f"{tool} against firewall({settings}): {len(differ)} datagrams differ: {shown}")
    case.check(0.2 < len(kernel) / count < 0.8, f"{len(kernel)} of {count} datagrams pass, which says little")
    by_kind = {kind: sum(made.kinds[n] == kind for n in kernel) for kind in Datagrams.KINDS}
    print(f"       {tool}: {count:,} datagrams in {len(made.frames):,} packets, {len(kernel)} pass ({by_kind}), "
          f"{time.monotonic() - since:.1f} s", flush=True)
