"""Rule sets as iptables-restore reads them, and packets at their edges: generated, the same for the same
seed."""

import ipaddress
import random

import numpy as np

import packets
from packets import ICMP, ICMP6, SCTP, TCP, UDP

FLAGS = ("FIN", "SYN", "RST", "PSH", "ACK", "URG")
# What a rule may ask for, and a rule that asks it, to see whether the kernel can.
FEATURES = {
    "tcp": "-p tcp -m tcp --dport 1:9",
    "udp": "-p udp -m udp ! --sport 53",
    "sctp": "-p sctp -m sctp --dport 5",
    "multiport": "-p tcp -m multiport --dports 1,3:9",
    "flags": "-p tcp -m tcp --tcp-flags SYN,ACK SYN",
    "dscp": "-m dscp --dscp 0x2e",
    "iprange": "-m iprange --src-range {a}-{a}",
    "comment": "-m comment --comment edge",
    "REJECT": "-p tcp -j REJECT --reject-with tcp-reset",
}


PROTOCOLS = {"tcp": TCP, "udp": UDP, "sctp": SCTP, "icmp": ICMP, "ipv6-icmp": ICMP6}

def edges(first, last, top):
    """Inside, at both ends, and just outside."""
    return (first + last) // 2, first, last, max(first - 1, 0), min(last + 1, top)


class RuleSet:
    """A chain FORWARD, which calls others, of about `size` rules."""

    def __init__(self, seed, version, size, features):
        self.random = random.Random(seed)
        self.version, self.features = version, features
        self.bits = 32 if version == 4 else 128
        # Networks where hosts are: everything happens there, so that rules and packets meet.
        base = ["10.0.0.0", "10.99.0.0", "172.16.0.0", "192.168.0.0", "203.0.0.0"]
        six = ["2001:db8::", "2001:db8:1::", "2001:db8:ffff::", "2600:9000::", "fd00:77::"]
        self.bases = [int(ipaddress.ip_address(a)) for a in (base if version == 4 else six)]
        self.highest = self.bases[-1] + 2**16
        # Of each rule that was written: for each field that it asks about, five values of which it may matter
        # which one it is.
        self.interests = []
        self.text = self._write(size)

    def _write(self, size):
        names = [f"part{n}" for n in range(8)]
        last = [f"leaf{n}" for n in range(3)]
        lines, calls = [], []
        for n, name in enumerate(names):
            side, base = "sd"[n % 2], self.bases[n % len(self.bases)]
            lines += [f"-A {name} {self._rule(last if n % 2 else [], {side: base})}" for _ in range(size // 10)]
            net = f"{self._text(base)}/{16 if self.version == 4 else 48}"
            calls.append(f"-A FORWARD -{side} {net} {'-g' if n == 7 else '-j'} {name}")
        for name in last:
            lines += [f"-A {name} {self._rule([], {})}" for _ in range(size // 30)]
        forward = [f"-A FORWARD {self._rule([], {})}" for _ in range(size // 10)]
        for n, call in enumerate(calls):
            forward.insert(len(forward) * (n + 1) // (len(calls) + 1), call)
        head = ["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT ACCEPT [0:0]"]
        return "\n".join([*head, *(f":{name} - [0:0]" for name in names + last), *forward, *lines, "COMMIT", ""])

    def _text(self, number):
        return str(ipaddress.ip_address(number) if self.version == 4 else ipaddress.IPv6Address(number))

    def _not(self, share=0.12):
        return "! " if self.random.random() < share else ""

    def _address(self, side, home):
        base = home.get(side) or self.random.choice(self.bases)
        spread = 16 if self.version == 4 else self.random.choice((16, 64, 80))
        value = base + self.random.getrandbits(spread)
        if "iprange" in self.features and self.random.random() < 0.08:
            last = value + self.random.randrange(3000)
            self.interest[side] = edges(value, last, self.highest)
            option = "src" if side == "s" else "dst"
            return f"-m iprange {self._not()}--{option}-range {self._text(value)}-{self._text(last)}"
        free = self.random.choice((0, 0, 4, 8, 8, 11, spread - 4, spread))
        value = value >> free << free
        self.interest[side] = edges(value, value + 2**free - 1, self.highest)
        return f"{self._not()}-{side} {self._text(value)}/{self.bits - free}"

    def _port(self, field):
        first = self.random.choice((0, 22, 53, 80, 443, 1024, self.random.randrange(65_536)))
        last = first if self.random.random() < 0.6 else min(65_535, first + self.random.choice((1, 7, 600, 30_000)))
        self.interest[field] = edges(first, last, 65_535)
        return str(first) if first == last else f"{first}:{last}"

    def _ports(self):
        field, name = self.random.choice((("sport", "sports"), ("dport", "dports"), ("dport", "ports")))
        items = sorted({self._port(field) for _ in range(self.random.randrange(2, 7))})
        return f"-m multiport {self._not()}--{name} {','.join(items)}"

    def _transport(self):
        known = [p for p in ("tcp", "tcp", "tcp", "udp", "udp", "sctp") if p in self.features]
        protocol = self.random.choice(known)
        self.interest["protocol"] = (PROTOCOLS[protocol],) * 5
        option = [f"-p {protocol}"]
        if "multiport" in self.features and self.random.random() < 0.25:
            option.append(self._ports())
        elif self.random.random() < 0.85:
            field = self.random.choice(("sport", "dport", "dport"))
            option.append(f"-m {protocol} {self._not()}--{field} {self._port(field)}")
            if field == "dport" and self.random.random() < 0.3:
                option.append(f"{self._not()}--sport {self._port('sport')}")
        if protocol == "tcp" and "flags" in self.features and self.random.random() < 0.25:
            mask = self.random.sample(range(6), self.random.randrange(1, 5))
            value = self.random.sample(mask, self.random.randrange(0, len(mask) + 1))
            self.interest["flags"] = tuple(sum(1 << bit for bit in value) ^ other for other in (0, 0, 0xC0, 1, 2))
            option.append(f"-m tcp {self._not()}--tcp-flags {','.join(FLAGS[bit] for bit in mask)} "
                          f"{','.join(FLAGS[bit] for bit in value) or 'NONE'}")
        return option

    def _rule(self, calls, home):
        some, parts = self.random.random, []
        self.interest = {side: edges(base, base + 2**16 - 1, self.highest)[:3] * 2 for side, base in home.items()}
        if some() < 0.75:
            parts.append(self._address("s", home))
        if some() < 0.75 or not parts:
            parts.append(self._address("d", home))
        if some() < 0.75:
            parts += self._transport()
        elif some() < 0.5:
            icmp = "icmp" if self.version == 4 else "ipv6-icmp"
            protocol = self.random.choice((icmp, "udp", "47", "50"))
            self.interest["protocol"] = (PROTOCOLS.get(protocol) or int(protocol),) * 5
            parts.append(f"{self._not(0.2)}-p {protocol}")
        if "dscp" in self.features and some() < 0.12:
            value = self.random.choice((0, 10, 26, 46, 63))
            self.interest["dscp"] = (value, value, value, value ^ 1, 0)
            parts.append(f"-m dscp {self._not()}--dscp 0x{value:02x}")
        if "comment" in self.features and some() < 0.05:
            parts.append(f"-m comment --comment \"rule's {self.random.randrange(99)}\"")
        # What rules ask in vain says nothing: of the wide ones few may decide.
        asks = len([part for part in parts if "!" not in part]) + len(self.interest) - len(home)
        self.interests.append(self.interest)
        return " ".join([*parts, self._target(calls, asks >= 5, "-p tcp" in parts)]).strip()

    def _target(self, calls, narrow, tcp):
        some = self.random.random()
        if calls and some > 0.93:
            return f"-j {self.random.choice(calls)}"
        if not narrow and some > 0.1:
            return ""
        if tcp and "REJECT" in self.features and some < 0.05:
            return "-j REJECT --reject-with tcp-reset"
        return self.random.choice(("-j ACCEPT", "-j ACCEPT", "-j ACCEPT", "-j DROP", "-j DROP", "-j RETURN", ""))

    def _values(self, rng, rules, field, others):
        """A value of the field for each packet: mostly one that matters to the packet's rule, else one of the
        others."""
        count = len(rules)
        rows = [interest.get(field) for interest in self.interests]
        table = np.array([row[:5] if row else [0] * 5 for row in rows], dtype=object)
        found = table[rules, rng.choice(5, count, p=(0.4, 0.16, 0.16, 0.14, 0.14))]
        asked = np.array([row is not None for row in rows])[rules] & (rng.random(count) < 0.97)
        free = np.array(others, dtype=object)[rng.integers(0, len(others), count)]
        return np.where(asked, found, free)

    def packets(self, count, seed, source_mac, target_mac):
        """Packets at the edges of rules: each has one of them that it is likely to be about."""
        rng = np.random.default_rng(seed)
        frames = packets.blank(count, self.version, source_mac, target_mac)
        rules = rng.integers(0, len(self.interests), count)
        size, last = self.bits // 8, ICMP if self.version == 4 else ICMP6
        hosts = [base + n for base in self.bases for n in (1, 77, 2**15 + 9)]
        for side, at in (("s", 26), ("d", 30)) if self.version == 4 else (("s", 22), ("d", 38)):
            chosen = self._values(rng, rules, side, hosts)
            # What a router doesn't forward is never sent.
            data = b"".join(min(max(a, self.bases[0] + 1), self.highest).to_bytes(size, "big") for a in chosen)
            frames[:, at:at + size] = np.frombuffer(data, np.uint8).reshape(-1, size)
        value = {
            "sport": (0, 53, 80, 443, 40_000, 65_535), "dport": (0, 53, 80, 443, 40_000, 65_535), "dscp": range(64),
            "flags": (2, 2, 16, 16, 18, 17, 4, 24, *range(256)),
            "protocol": (TCP, TCP, TCP, UDP, UDP, SCTP, last, 47, 50),
        }
        value = {field: self._values(rng, rules, field, others).astype(np.int64) for field, others in value.items()}
        protocol, tos = value["protocol"], value["dscp"] << 2 | rng.integers(0, 4, count)
        whole = np.ones(count, dtype=bool)
        if self.version == 4:
            frames[:, 15], frames[:, 23] = tos, protocol
            # Fragments but the first of a datagram: what is where ports would be are none.
            whole = rng.random(count) >= 0.02
            offset = np.where(whole, rng.choice((0, 0x4000), count), rng.choice((2, 185, 0x2000 | 370, 8191 - 12), count))
            packets.put(frames, 20, 2, offset)
        else:
            frames[:, 14] |= (tos >> 4).astype(np.uint8)
            frames[:, 15] = tos << 4 & 0xFF
            frames[:, 20] = protocol
        at = packets.TRANSPORT[self.version]
        packets.put(frames, at, 2, value["sport"])
        packets.put(frames, at + 2, 2, value["dport"])
        is_tcp = protocol == TCP
        frames[is_tcp, at + 12] = 0x50
        frames[is_tcp, at + 13] = value["flags"][is_tcp]
        packets.put_rows(frames, np.flatnonzero(protocol == UDP), at + 4, packets.SIZE - at)
        icmp = np.flatnonzero((protocol == last) & whole)
        packets.put_rows(frames, icmp, at, 8 << 8 if self.version == 4 else 128 << 8)
        packets.finish(frames, self.version, protocol, whole)
        return frames
