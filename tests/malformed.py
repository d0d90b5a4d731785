"""Packets that are odd or can't be, and what Linux' tracker and rules make of them beside ours.

A batch is of short flows: packets that set a connection up, one that is odd in some way (its kind), and one
behind it that shows what the odd one left. Frames are of any length; a packet is known again by the
identification of IPv4 or the flow label of IPv6, since what is behind an IP packet's end, such as a number
there, doesn't come through a router.

Where ours may differ from Linux stands in one table of the book (`functions/firewall.md`): its first column
names the exceptions that are listed here, and nothing else may differ.
"""

import random
import re
import struct

import harness
from connections import ACK, FIN, PSH, RST, SYN
from netns import checksum
from packets import ICMP, ICMP6, TCP, UDP

BOOK = harness.ROOT / "book/src/functions/firewall.md"
BATCH = 60_000  # the most that identifications tell apart
ESP, AH, NONE, HOP, ROUTING, FRAGMENT, OPTIONS, MOBILITY = 50, 51, 59, 0, 43, 44, 60, 135
PROBES = {"NEW": 1, "ESTABLISHED": 2, "INVALID": 3, "RELATED": 4}  # DSCP of packets that are dropped in this state

# Of each exception in the book's table: whether packets of a kind may be decided differently, by (kind,
# flavour, rules with states).
EXCEPTIONS = {
    "before-rules": lambda kind, flavour, states: kind.startswith("dropped:"),
    "cut-transport": lambda kind, flavour, states: kind == "cut:header" and not states,
    "cut-extension": lambda kind, flavour, states: kind.startswith("cut:extension"),
    "udp-trailer": lambda kind, flavour, states: kind == "udp-length" and states,
    "ah-nft": lambda kind, flavour, states: re.search(r"\bah\b", kind) and flavour == "nft" and not states,
    "reopened": lambda kind, flavour, states: kind == "after-reset" and states,
    "udp-stream": lambda kind, flavour, states: kind == "udp-answered" and states,
    "mobility": lambda kind, flavour, states: "mobility" in kind,
    "segments-left": lambda kind, flavour, states: kind.startswith("segments-left") and states,
}

# The others of the table, and why no packet here is of them.
APART = {
    "checksums": "ours is told to verify them", "fragments": "there are none here", "sequence-numbers": "Linux is told not to look",
    "denied": "the last packet of a flow is the only one that is denied", "helpers": "none is loaded",
    "protocols": "SCTP and DCCP are left out", "other-version": "one version at a time", "reject": "no rule rejects here",
    "limit-clock": "pauses are no multiples of ticks", "many-extensions": "no packet has so many", "picked-up": "no pause is so long",
}


class Packet:
    """One packet in parts that can be made wrong one by one."""

    def __init__(self, version, source, target, protocol, body, dscp=0):
        self.version, self.source, self.target, self.protocol = version, source, target, protocol
        self.body, self.dscp = bytearray(body), dscp
        self.options, self.extensions = b"", []  # extensions: (number, bytes whose first is to say what follows)
        self.nibble, self.words, self.length, self.behind = version, None, None, b""
        self.header_sum, self.transport_sum = True, True
        self.sums = True  # whether a transport checksum is written at all

    def bytes(self, number):
        """The IP packet and what is behind it."""
        size = 4 if self.version == 4 else 16
        source, target = self.source.to_bytes(size, "big"), self.target.to_bytes(size, "big")
        # A length that ends early ends what is summed as well.
        front = 20 + len(self.options) if self.version == 4 else sum(len(data) for _, data in self.extensions)
        end = len(self.body) if self.length is None else max(min(self.length - front, len(self.body)), 0)
        self._sum(source, target, end)
        if self.version == 4:
            words = 5 + len(self.options) // 4 if self.words is None else self.words
            length = 20 + len(self.options) + len(self.body) if self.length is None else self.length
            head = struct.pack("!BBHHHBBH4s4s", self.nibble << 4 | words, self.dscp << 2, length, number, 0, 64, self.protocol, 0,
                               source, target) + self.options
            value = checksum(head[:words * 4].ljust(20, b"\0")) ^ (0 if self.header_sum else 0x1234)
            return head[:10] + struct.pack("!H", value) + head[12:] + self.body + self.behind
        chain, follows = b"", self.protocol
        for kind, data in reversed(self.extensions):
            chain, follows = bytes([follows]) + data[1:] + chain, kind
        length = len(chain) + len(self.body) if self.length is None else self.length
        head = struct.pack("!IHBB16s16s", self.nibble << 28 | self.dscp << 22 | number, length, follows, 64, source, target)
        return head + chain + self.body + self.behind

    def _sum(self, source, target, end):
        field = {TCP: 16, UDP: 6, ICMP: 2, ICMP6: 2}.get(self.protocol)
        if field is None or not self.sums or end < field + 2:
            return
        covered = end
        if self.protocol == UDP:
            said = struct.unpack("!H", self.body[4:6])[0]
            covered = said if 8 <= said <= end else end
        self.body[field:field + 2] = b"\0\0"
        pseudo = b"" if self.protocol == ICMP else source + target + struct.pack("!II", covered, self.protocol)
        value = checksum(pseudo + bytes(self.body[:covered])) or (0xFFFF if self.protocol == UDP else 0)
        if not self.transport_sum:
            value ^= 0x0101
        self.body[field:field + 2] = struct.pack("!H", value)


def tcp(ports, flags, seq, ack, payload=b"payload!"):
    return struct.pack("!HHIIBBHHH", *ports, seq, ack if flags & ACK else 0, 0x50, flags, 65_000, 0, 0) + payload


def udp(ports, payload=b"datagram"):
    return struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload


def echo(kind, ident, payload=b"question"):
    return struct.pack("!BBHHH", kind, 0, 0, ident, 1) + payload


class Flows:
    """Short flows of one IP version, each with an odd packet of a random kind."""

    def __init__(self, seed, version, odd=True):
        self.random, self.version, self.odd = random.Random(seed), version, odd
        self.icmp = ICMP if version == 4 else ICMP6
        self.count = 0

    def batch(self, count):
        """`count` packets or a few less: (packet, kind), kind empty for those that are as they should be."""
        out = []
        while len(out) < count - 8:
            out += self._flow()
        return out

    def _ends(self):
        # Every flow has addresses and ports of its own.
        self.count += 1
        client, server = 0x0A010000 + (self.count >> 8) % 0xFFFF + 1, 0xAC100001 + self.count % 251
        ports = (1024 + self.count % 60_000, self.random.choice((22, 53, 80, 443, 8080)))
        if self.version == 6:
            client, server = ((0x20010DB8 << 96) + end for end in (client, server))
        return (client, server), ports

    def _flow(self):
        (ends, ports), rng = self._ends(), self.random
        make = rng.choice((self._tcp, self._tcp, self._udp, self._icmp, self._other))
        packets, at = make(ends, ports)
        out = [(packet, "") for packet in packets]
        if self.odd:
            out[at] = (packets[at], self._spoil(packets[at]))
            if rng.random() < 0.5:
                packets[at].dscp = PROBES["INVALID"]
            # What comes behind may be seen otherwise where the odd one was.
            out[at + 1:] = [(packet, f"after {out[at][1]}" if out[at][1] else "") for packet in packets[at + 1:]]
        if packets[0].protocol == TCP and packets[-2].body[13] & RST and not packets[-1].body[13] & ACK:
            out[-1] = (packets[-1], "after-reset")
        if at < len(packets) - 1:
            packets[-1].dscp = rng.choice(tuple(PROBES.values()))
        return out

    def _segment(self, ends, ports, way, flags, seq, payload=b"payload!"):
        body = tcp((ports[way], ports[1 - way]), flags, seq[way], seq[1 - way], payload)
        if flags & (SYN | FIN | RST) in (0, SYN, FIN):
            seq[way] = (seq[way] + len(payload) + bool(flags & (SYN | FIN))) & 0xFFFFFFFF
        return Packet(self.version, ends[way], ends[1 - way], TCP, body)

    def _tcp(self, ends, ports):
        rng, seq = self.random, [1000, 900_000]
        life = rng.choice((
            [(0, SYN), (1, SYN | ACK)],
            [(0, SYN), (1, SYN | ACK), (0, ACK), (1, PSH | ACK)],
            [(0, SYN), (1, SYN | ACK), (0, ACK), (0, FIN | ACK), (1, ACK)],
            [(0, SYN), (1, SYN | ACK), (0, ACK), (1, RST | ACK), (0, SYN)],
            [(0, ACK), (1, ACK)],
            [(0, SYN), (1, RST | ACK), (1, ACK)],
            [(0, SYN), (0, RST), (1, SYN | ACK)],
        ))
        packets = [self._segment(ends, ports, way, flags, seq) for way, flags in life]
        # Linux takes a reset for one if its sequence number is right, which what was odd before may have
        # changed.
        resets = [at for at, (_, flags) in enumerate(life) if flags & RST]
        return packets, resets[0] if resets else rng.randrange(len(packets) - 1)

    def _udp(self, ends, ports):
        rng = self.random
        ways = rng.choice(((0, 1), (0, 1, 0), (0, 1, 1)))
        packets = [Packet(self.version, ends[way], ends[1 - way], UDP, udp((ports[way], ports[1 - way]))) for way in ways]
        return packets, rng.randrange(len(packets) - 1)

    def _icmp(self, ends, ports):
        rng = self.random
        ask, answer = (8, 0) if self.version == 4 else (128, 129)
        kinds = ((0, ask), (1, answer))
        packets = [Packet(self.version, ends[way], ends[1 - way], self.icmp, echo(kind, ports[0])) for way, kind in kinds]
        if self.odd and rng.random() < 0.4:
            # Any type, some of which are errors that quote nothing, or the question.
            quoted = packets[0].bytes(7)[:48] if rng.random() < 0.5 else b"nothing quoted here, nothing."
            body = struct.pack("!BBHI", rng.randrange(256), rng.choice((0, 1, 3, 4)), 0, 0) + quoted
            packets.append(Packet(self.version, ends[1], ends[0], self.icmp, body))
            return packets, 2
        return packets, 0

    def _other(self, ends, _):
        protocol = self.random.choice((ESP, 47, 253, 97, 255, 4, 94))
        body = struct.pack("!II", 7, 1) if protocol != 47 else struct.pack("!HHHH", 0, 0x0800, 5, 6)
        packets = [Packet(self.version, ends[way], ends[1 - way], protocol, body + b"whatever") for way in (0, 1)]
        return packets, 0

    def _spoil(self, packet):
        """Makes a packet odd; what kind it is of then."""
        rng = self.random
        if rng.random() < 0.1:
            return ""
        if rng.random() < 0.5:
            kind = self._spoil_transport(packet)
            if kind:
                return kind
        return self._spoil_v4(packet) if self.version == 4 else self._spoil_v6(packet)

    def _spoil_transport(self, packet):
        rng, least = self.random, {TCP: 20, UDP: 8}.get(packet.protocol, 8)
        front = 20 if packet.version == 4 else 0
        which = rng.randrange(6)
        if packet.protocol not in (TCP, UDP, self.icmp):
            return ""
        if which == 0:
            packet.transport_sum = False
            return "checksum"
        if which == 1:
            packet.length = front + rng.randrange(0, least)
            return "dropped:length" if packet.version == 6 and packet.length == 0 else "cut:header"
        if which == 2:
            packet.length = front + rng.randrange(least, len(packet.body))
            return self._settle(packet, packet.length - front)
        if which == 3:
            packet.behind = rng.randbytes(rng.randrange(1, 20))
            return "trailer"
        if packet.protocol == TCP:
            words = rng.choice((0, 1, 2, 3, 4, 6, 7, 8, 15))
            packet.body[12] = words << 4
            return "data-offset"
        if packet.protocol == UDP:
            if which == 4:
                packet.sums = False
                packet.body[6:8] = b"\0\0"
                return "no-checksum"
            packet.body[4:6] = struct.pack("!H", rng.choice((0, 1, 7, 8, 9, len(packet.body) + 1, 65_535)))
            return "udp-length"
        return ""

    @staticmethod
    def _settle(packet, room):
        """A length within the payload: what is covered ends there as well."""
        if packet.protocol == UDP:
            packet.body[4:6] = struct.pack("!H", room)
        return "shorter"

    def _spoil_v4(self, packet):
        rng = self.random
        which = rng.randrange(8)
        if which == 0:
            packet.header_sum = False
            return "dropped:header-checksum"
        if which == 1:
            packet.nibble = rng.choice((0, 1, 5, 6, 15))
            return "dropped:version"
        if which == 2:
            packet.words = rng.randrange(5)
            return "dropped:header-length"
        if which == 3:
            packet.length = rng.randrange(1, 20)
            return "dropped:length"
        if which == 4:
            packet.length = 20 + len(packet.body) + rng.randrange(1, 1000)
            return "dropped:length"
        # Options: padding, router alert, record route, timestamp, stream, unknown, source routes, and such
        # that can't be.
        packet.options = rng.choice((b"\1\1\1\0", b"\0\0\0\0", b"\x94\4\0\0", b"\7\x07\4\0\0\0\0\0", b"\x44\x0c\5\0" + bytes(8),
                                     b"\x88\4\0\1", b"\x1e\4\1\2", b"\x83\7\4\xc0\0\2\1\0", b"\x89\7\4\xc0\0\2\1\0",
                                     b"\7\x02\4\0", b"\x94\0\0\0", b"\x94\x28\0\0", b"\7\7\1\0\0\0\0\0"))
        odd = packet.options[0] in (0x83, 0x89) or packet.options[:2] in (b"\7\x02", b"\x94\0", b"\x94\x28") or packet.options[:3] == b"\7\7\1"
        return "dropped:options" if odd else "options"

    def _spoil_v6(self, packet):
        rng = self.random
        which = rng.randrange(12)
        if which == 0:
            packet.nibble = rng.choice((0, 4, 5, 15))
            return "dropped:version"
        if which == 1:
            packet.length = len(packet.body) + rng.randrange(1, 1000)
            return "dropped:length"
        pad = bytes([0, 0, 1, 4, 0, 0, 0, 0])
        makers = {
            "hop-by-hop": (HOP, pad), "unknown-option": (HOP, bytes([0, 0, 0x1E, 4, 1, 2, 3, 4])),
            "dropped:option": (HOP, bytes([0, 0, 0x5E, 4, 1, 2, 3, 4])), "destination-options": (OPTIONS, pad),
            "routing": (ROUTING, bytes([0, 2, rng.choice((0, 2, 3, 4)), 0, 0, 0, 0, 0]) + bytes(16)),
            "segments-left": (ROUTING, bytes([0, 2, rng.choice((0, 2, 3, 4)), 1, 0, 0, 0, 0]) + bytes(16)),
            "ah": (AH, bytes([0, 4, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1]) + bytes(12)), "atomic": (FRAGMENT, bytes([0, 0, 0, 0, 0, 0, 0, 9])),
            "mobility": (MOBILITY, bytes([0, 0, 1, 0, 0, 0, 0, 0])),
        }
        if which == 2:
            packet.protocol = NONE
            return "nothing-follows"
        if which == 3:
            packet.protocol = rng.choice((139, 140, 253, 254, 42, 62))
            return "unknown-header"
        names = rng.sample(sorted(makers), rng.choice((1, 1, 2, 3)))
        names.sort(key=lambda name: makers[name][0] != HOP)
        while sum(makers[name][0] == HOP for name in names) > 1:
            names.pop(0)
        packet.extensions = [makers[name] for name in names]
        total = sum(len(data) for _, data in packet.extensions)
        if which == 4:
            # The packet ends within its extension headers.
            packet.length = rng.randrange(1, total)
            return "cut:extension " + " ".join(names)
        if which == 5:
            # The last header is longer than the packet.
            kind, data = packet.extensions[-1]
            if kind not in (FRAGMENT, HOP):
                packet.extensions[-1] = (kind, data[:1] + b"\xf0" + data[2:])
                return "cut:extension " + " ".join(names)
        for name in ("dropped:option", "segments-left", "mobility"):
            if name in names:
                return " ".join((name, *(other for other in names if other != name)))
        return " ".join(names)


def frames(batch, source_mac, target_mac):
    """The frames of a batch, numbered from 0."""
    head = {4: target_mac + source_mac + b"\x08\0", 6: target_mac + source_mac + b"\x86\xdd"}
    return [head[packet.version] + packet.bytes(number) for number, (packet, _) in enumerate(batch)]


def numbers(path):
    """The numbers of the packets in a capture."""
    with open(path, "rb") as file:
        data = file.read()
    nano = struct.unpack("<I", data[:4])[0]
    assert nano in (0xA1B2C3D4, 0xA1B23C4D), "a little-endian capture"
    at, found = 24, []
    while at + 16 <= len(data):
        length = struct.unpack("<I", data[at + 8:at + 12])[0]
        frame = data[at + 16:at + 16 + length]
        found.append(struct.unpack("!H", frame[18:20])[0] if frame[12:14] == b"\x08\0"
                     else struct.unpack("!I", frame[14:18])[0] & 0xFFFFF)
        at += 16 + length
    return found


def write(path, frames, times):
    """A capture of frames at times in ns."""
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65_535, 1))
        for frame, time in zip(frames, times):
            file.write(struct.pack("<IIII", 1_700_000_000 + time // 10**9, time % 10**9, len(frame), len(frame)) + frame)


def state_rules(version):
    """A packet whose DSCP is that of a state is dropped in that state; all others pass."""
    lines = [f"-A FORWARD -m conntrack --ctstate {state} -m dscp --dscp {dscp:#x} -j DROP" for state, dscp in PROBES.items()]
    return _set(lines, "ACCEPT")


def plain_rules(version):
    """Rules about every field that an odd packet may have in another place."""
    icmp = "-p icmp -m icmp --icmp-type" if version == 4 else "-p ipv6-icmp -m icmp6 --icmpv6-type"
    ask, error = ("8", "3/4") if version == 4 else ("128", "1/4")
    lines = [
        "-A FORWARD -i mb -j ACCEPT", "-A FORWARD -i m+ ! -o mb -j ACCEPT", "-A FORWARD ! -i a+ -o m+ -p etherip -j ACCEPT",
        "-A FORWARD -p tcp -m tcp --dport 22 -j DROP",
        "-A FORWARD -p tcp -m tcp --dport 80 --tcp-flags FIN,SYN,RST,ACK SYN -j ACCEPT",
        "-A FORWARD -p tcp -m multiport --sports 443,8080 -j ACCEPT",
        "-A FORWARD -p tcp -m tcp --tcp-flags SYN,ACK ACK -j ACCEPT",
        "-A FORWARD -p udp -m udp --dport 53 -j ACCEPT",
        "-A FORWARD -p udp -m udp ! --sport 1024:40000 -j ACCEPT",
        f"-A FORWARD {icmp} {ask} -j ACCEPT",
        f"-A FORWARD {icmp} {error} -j ACCEPT",
        "-A FORWARD -p ipencap -j ACCEPT",
        "-A FORWARD -p 253 -j ACCEPT",
        "-A FORWARD -p esp -j ACCEPT",
        "-A FORWARD -p tcp -j DROP",
        "-A FORWARD -p 139 -j ACCEPT",
    ]
    return _set(lines, "DROP")


def _set(lines, policy):
    head = ["*filter", ":INPUT ACCEPT [0:0]", f":FORWARD {policy} [0:0]", ":OUTPUT ACCEPT [0:0]"]
    return "\n".join([*head, *lines, "COMMIT", ""])


def table(path):
    """The names of the exceptions in the book's table, its first column."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    section = text.split("## What differs from Linux", 1)[1].split("\n## ", 1)[0]
    return re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.M)


def excused(kind, flavour, states):
    """The exceptions that a difference may be of."""
    # A connection differs where a packet of it did.
    kind = kind.removeprefix("after ")
    return [name for name, applies in EXCEPTIONS.items() if applies(kind, flavour, states)]


def ours(case, binary, scratch, capture, rules, settings):
    """The numbers of the packets that our firewall lets pass."""
    out = scratch / "ours.pcap"
    graph = f'firewall(rules="{rules}", format=iptables{settings})'
    report = harness.Run(binary, ["run", "-i", capture, "-o", out, "--format", "json", "-e", graph], timeout=200).json()
    case.equal(report["packets_in"], report["packets_out"] + sum(report["dropped"].values()), "packets in against out and dropped")
    return set(numbers(out))


def compare(case, net, binary, scratch, made, plan, settings):
    """Sends groups of frames through Linux without rules and with them, and the same through ours."""
    (flavour, restore, save, rules, empty), (groups, times, kinds, states) = made, plan
    frames = [frame for _, group in groups for frame in group]
    everything = [(0, frames)]
    capture, saved = scratch / "in.pcap", scratch / "rules.txt"
    net.load(restore, empty)
    case.equal(net.through_any(everything, scratch / "control.pcap"), [], "losses without rules")
    control = set(numbers(scratch / "control.pcap"))
    net.load(restore, rules)
    saved.write_text(net.sh("m", *save, "-t", "filter"))
    case.equal(net.through_any(groups, scratch / "kernel.pcap"), [], "losses")
    kernel = set(numbers(scratch / "kernel.pcap"))
    net.load(restore, empty)
    for n in sorted(set(range(len(frames))) - control):
        if not case.check(kinds[n].startswith(("dropped:", "cut:")), f"Linux discards without rules a packet that is {kinds[n] or 'right'}: {frames[n].hex()}"):
            break
    # What never comes to the rules of a router isn't theirs to decide, nor to be remembered.
    come = sorted(control)
    write(capture, [frames[n] for n in come], [times[n] for n in come])
    met = {"before-rules": len(frames) - len(come)}
    for setting in settings:
        mine = ours(case, binary, scratch, capture, saved, setting)
        wrong = {}
        for n in sorted(kernel ^ mine):
            names = excused(kinds[n], flavour, states)
            for name in names:
                met[name] = met.get(name, 0) + 1
            if not names:
                wrong.setdefault((kinds[n], n in kernel), []).append(n)
        for (kind, passed), found in sorted(wrong.items())[:12]:
            case.check(False, f"iptables-{flavour} against firewall({setting}): {'only Linux passes' if passed else 'only we pass'} "
                              f"{len(found)} packets that are {kind or 'right'}: {found[0]}: {frames[found[0]].hex()}")
    return control, kernel, met


def odd(case, router, binary, scratch, tools, version, count, seed):
    """Odd packets against rules with states and without. Every batch gets a router of its own, which knows no
    connections."""
    met, passed, sent = {}, 0, 0
    case.equal(sorted(table(BOOK)), sorted(EXCEPTIONS | APART), "exceptions in the book's table against those of this check")
    for states in (True, False):
        flows = Flows(seed, version)
        for _ in range(-(-count // BATCH)):
            batch = flows.batch(min(count, BATCH))
            with router() as net:
                made = frames(batch, net.mac["a"], net.mac["ma"])
                rules = (state_rules if states else plain_rules)(version)
                settings = (", checksum=all", ", checksum=all, decide=packet") if states else \
                    (", in=ma, out=mb", ", in=ma, out=mb, decide=packet, classifier=linear")
                plan = ([(0, made)], [1000 * n for n in range(len(made))], [kind for _, kind in batch], states)
                _, kernel, seen = compare(case, net, binary, scratch, (*tools, rules, EMPTY), plan, settings)
            passed, sent = passed + len(kernel), sent + len(made)
            met = {name: met.get(name, 0) + seen.get(name, 0) for name in met | seen}
    print(f"       {tools[1][0]}: {sent:,} packets, {passed / sent:.1%} pass; decided differently, as the book says: {met or 'none'}", flush=True)


def in_ipv6(stream):
    """Packets of connections of IPv4 (see `connections.py`) as packets of IPv6: addresses embedded, ICMP
    turned into ICMPv6."""
    kinds = {8: 128, 0: 129, 3: 1, 11: 3}
    out = []
    for source, target, protocol, head in stream:
        room = 54 if protocol != ICMP else 8
        body = head if protocol != TCP else head.ljust(room, b"\0")
        if protocol == UDP:
            body = udp(struct.unpack("!HH", head[:4]))
        elif protocol == ICMP:
            if head[0] not in kinds:
                continue
            body = struct.pack("!B", kinds[head[0]]) + (b"\0" if head[0] in (3, 11) else head[1:2]) + head[2:8] + b"question"
            if head[0] in (3, 11):
                inner, quoted = head[8:28], head[28:36]
                ends = [SIX + int.from_bytes(inner[at:at + 4], "big") for at in (12, 16)]
                body = body[:8] + struct.pack("!IHBB16s16s", 6 << 28, 50, inner[9], 60, *(end.to_bytes(16, "big") for end in ends)) + quoted
        out.append((Packet(6, SIX + source, SIX + target, ICMP6 if protocol == ICMP else protocol, body), ""))
    return out


SIX = 0x20010DB8 << 96


def limits(case, router, binary, scratch, tools):
    """Bursts and pauses against a limit: the same packets pass."""
    flows = Flows(1, 4, odd=False)
    rules = _set([
        "-A FORWARD -p udp -m limit --limit 2/sec --limit-burst 4 -m udp --dport 53 -j ACCEPT",
        "-A FORWARD -p udp -m limit --limit 90/min -j ACCEPT",
    ], "DROP")
    seconds = (0, 0.35, 1.2, 1.95, 5.6)
    groups = []
    for when in seconds:
        group = []
        for n in range(9):
            ends, ports = flows._ends()
            group.append((Packet(4, ends[0], ends[1], UDP, udp((ports[0], 53 if n % 3 else 80))), ""))
        groups.append((when, group))
    batch = [entry for _, group in groups for entry in group]
    with router() as net:
        made = frames(batch, net.mac["a"], net.mac["ma"])
        parts = [(when, made[9 * n:9 * n + 9]) for n, when in enumerate(seconds)]
        times = [int(when * 1e9) + 1000 * n for when in seconds for n in range(9)]
        plan = (parts, times, [""] * len(made), False)
        _, kernel, _ = compare(case, net, binary, scratch, (*tools, rules, EMPTY), plan, ("", ", decide=packet", ", classifier=linear"))
    case.check(8 < len(kernel) < 40, f"{len(kernel)} of {len(made)} packets pass")
    print(f"       {tools[1][0]}: {len(made)} packets, {len(kernel)} pass", flush=True)


def rules_in_ipv6(text):
    """Rules of `connections.py` for those packets."""
    def prefix(found):
        number = int.from_bytes(bytes(map(int, found[1].split("."))), "big")
        return f"2001:db8::{number >> 16:x}:{number & 0xFFFF:x}/{96 + int(found[2])}"

    text = re.sub(r"(\d+\.\d+\.\d+\.\d+)/(\d+)", prefix, text)
    return text.replace("-p icmp ", "-p ipv6-icmp ")


def states_v6(case, router, binary, scratch, tools, stream, rules):
    """States of connections over IPv6."""
    batch = in_ipv6(stream)
    with router() as net:
        made = frames(batch, net.mac["a"], net.mac["ma"])
        plan = ([(0, made)], [1000 * n for n in range(len(made))], [""] * len(made), True)
        settings = ("", ", checksum=all, decide=packet", ", checksum=state, classifier=linear")
        _, kernel, _ = compare(case, net, binary, scratch, (*tools, rules_in_ipv6(rules), EMPTY), plan, settings)
    share = len(kernel) / len(made)
    case.check(0.1 < share < 0.9, f"{share:.0%} of packets pass, which says little about the others")
    print(f"       {tools[1][0]}: {len(made):,} packets, {share:.1%} pass", flush=True)


# Linux' timeouts in seconds as the router has them: a tenth of the usual ones, which are those of ours.
TIMEOUTS = {"tcp_timeout_syn_sent": 12, "tcp_timeout_syn_recv": 6, "tcp_timeout_fin_wait": 12, "tcp_timeout_close_wait": 6,
            "tcp_timeout_last_ack": 3, "tcp_timeout_time_wait": 12, "tcp_timeout_close": 1, "udp_timeout": 3, "udp_timeout_stream": 12,
            "icmp_timeout": 3, "icmpv6_timeout": 3, "generic_timeout": 60, "tcp_timeout_unacknowledged": 600,
            "tcp_timeout_max_retrans": 600}
TENTH = 10
SECONDS = (0, 0.5, 1.6, 2.4, 3.7, 5.2, 7.0, 10.8, 13.4)


def timers(case, router, binary, scratch, tools, version, count, seed):
    """Connections in every state, a pause, and a packet that shows whether they are still known."""
    flows, rng = Flows(seed, version, odd=False), random.Random(seed)
    groups = [[] for _ in SECONDS]
    while sum(map(len, groups)) < count:
        batch = flows._flow()
        for packet, _ in batch:
            packet.dscp = 0
        split, later = rng.randrange(1, len(batch)), rng.randrange(1, len(SECONDS))
        batch[-1][0].dscp = rng.choice((1, 2, 3))
        # One packet behind the pause, the last: more would need the connection as the pause left it.
        last, kind = batch[-1]
        if last.protocol == UDP and len({packet.source for packet, _ in batch[:split]}) == 2:
            kind = "udp-answered"
        groups[0] += batch[:split]
        groups[later].append((last, kind))
    with router() as net:
        for name, seconds in TIMEOUTS.items():
            net.sh("m", "sysctl", "-qw", f"net.netfilter.nf_conntrack_{name}={seconds}", check=name != "icmpv6_timeout")
        batch = [entry for group in groups for entry in group]
        made = frames(batch, net.mac["a"], net.mac["ma"])
        plan_groups, times, at = [], [], 0
        for when, group in zip(SECONDS, groups):
            plan_groups.append((when, made[at:at + len(group)]))
            times += [int(when * TENTH * 1e9) + 1000 * n for n in range(len(group))]
            at += len(group)
        plan = (plan_groups, times, [kind for _, kind in batch], True)
        _, kernel, met = compare(case, net, binary, scratch, (*tools, state_rules(version), EMPTY), plan, ("", ", decide=packet"))
    print(f"       {tools[1][0]}: {len(made):,} packets, {len(kernel) / len(made):.1%} pass; decided differently, as the book says: "
          f"{met}", flush=True)


EMPTY = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"
