"""What `slipstream measure` should answer, counted with dictionaries: flows by key, weight and epoch.

Keys are bytes of packet headers, as `capture` reads them; keys that the product prints are read back into the
same form (`parse`), so that spelling doesn't matter, only what is meant.
"""

import functools
import ipaddress
import math
import re
from collections import Counter, namedtuple

import capture

# An IP packet as far as measuring goes.
Packet = namedtuple("Packet", "version source target protocol ports length")

PROTOCOLS = {"icmp": 1, "igmp": 2, "ipip": 4, "tcp": 6, "udp": 17, "ipv6": 41, "gre": 47, "esp": 50, "proto 51": 51, "ah": 51,
             "icmp6": 58, "ospf": 89, "pim": 103, "vrrp": 112, "sctp": 132, "udplite": 136}
PAIRS = ("superspreaders", "ddos-victims")


class Packets(list):
    """Packets, and the true answers that were found of them, since many sketches and tasks ask for the same
    ones."""

    def __init__(self, given=()):
        super().__init__(given)
        self.known, self.keys = {}, {}

    def by(self, key):
        """The key of each packet."""
        if key.name not in self.keys:
            self.keys[key.name] = list(map(key.of, self))
        return self.keys[key.name]


def packets(records):
    """The IP packets among records, in order."""
    return Packets(packet for packet in map(packet_of, records) if packet)


def packet_of(record):
    """The IP packet in a record, or None."""
    headers = capture.headers(record.link, record.data)
    if headers is None:
        return None
    _, version, addresses, protocol, ports = headers.key
    half = len(addresses) // 2
    return Packet(version, addresses[:half], addresses[half:], protocol, ports, record.length)


@functools.lru_cache(maxsize=1 << 16)
def cut(address, bits):
    """An address with all but its first bits cleared; `bits` for IPv4 and IPv6."""
    size = 8 * len(address)
    keep = min(bits[size == 128], size)
    return (int.from_bytes(address, "big") >> (size - keep) << (size - keep)).to_bytes(len(address), "big")


class Key:
    """A kind of key: `src`, `dst`, `src-dst`, `5tuple`, with networks of IPv4 (`src/24`), IPv6 (`src/56`) or
    both (`src/24/56`)."""

    def __init__(self, text):
        self.fields, *prefixes = text.split("/")
        first = int(prefixes[0]) if prefixes else 128
        # One prefix alone is of one version; addresses of the other stay whole.
        self.bits = bits = (first, int(prefixes[1]) if len(prefixes) > 1 else first if first > 32 else 128)
        self.name = self.fields, bits
        self.of = {"src": lambda p: (cut(p.source, bits),), "dst": lambda p: (cut(p.target, bits),),
                   "src-dst": lambda p: (cut(p.source, bits), cut(p.target, bits)),
                   "5tuple": lambda p: (cut(p.source, bits), cut(p.target, bits), p.ports, p.protocol)}[self.fields]

    def parse(self, text):
        """What a printed key means."""
        def address(text):
            return ipaddress.ip_address(text.partition("/")[0]).packed

        def endpoint(text):
            try:
                return address(text), b"\0\0"
            except ValueError:
                host, _, port = text.rpartition(":")
                return address(host.strip("[]")), int(port).to_bytes(2, "big")

        if self.fields in ("src", "dst"):
            return (address(text),)
        if self.fields == "src-dst":
            return tuple(address(part) for part in text.split(" > "))
        first, second, name = re.fullmatch(r"(\S+) > (\S+) (.+)", text).groups()
        (source, sp), (target, dp) = endpoint(first), endpoint(second)
        protocol = PROTOCOLS.get(name) or int(name.removeprefix("proto "))
        return source, target, sp + dp, protocol


class Epoch:
    """The true answers for some packets, with the key of each if they are known."""

    def __init__(self, some, task, key, by_bytes, keys=None):
        keys = list(map(key.of, some)) if keys is None else keys
        self.packets = len(some)
        self.weight = sum(p.length for p in some) if by_bytes else len(some)
        self.spread = None
        if task in PAIRS:
            # The source's side is cut to the prefix, its counterpart is whole.
            others = (p.target for p in some) if task == "superspreaders" else (p.source for p in some)
            self.sizes = Counter(zip(keys, others))
            self.spread = Counter(end for end, _ in self.sizes)
        else:
            self.sizes = Counter() if by_bytes else Counter(keys)
            for k, p in zip(keys, some) if by_bytes else ():
                self.sizes[k] += p.length
        self.flows = len(self.sizes)

    def entropy(self):
        n = self.weight
        return max(0.0, -sum(s / n * math.log2(s / n) for s in self.sizes.values() if s))

    def distribution(self):
        return Counter(self.sizes.values())


def epochs(all_packets, length, task, key, by_bytes=False):
    """The true answers, epoch by epoch of so many packets; a trace without packets has one epoch without
    any."""
    question = length, task if task in PAIRS else None, key.name, by_bytes
    if question not in all_packets.known:
        keys = all_packets.by(key)
        parts = [slice(i, i + length) for i in range(0, len(all_packets), length)] or [slice(0)]
        all_packets.known[question] = [Epoch(all_packets[part], task, key, by_bytes, keys[part]) for part in parts]
    return all_packets.known[question]


def changes(earlier, later):
    """By how much sizes changed: signed, those that didn't change left out."""
    both = Counter(later.sizes)
    both.subtract(earlier.sizes)
    return {key: change for key, change in both.items() if change}
