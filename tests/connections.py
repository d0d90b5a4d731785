"""Connections, well-behaved and not, their packets in one stream; and rules that ask for their states.

Sequence numbers are always those that the other end expects: this is about states. A packet that comes to
nothing (an answer to nothing, impossible flags, an error about nobody's packet) is there as well.

Rules drop new connections by addresses and ports alone, so that all packets of a direction are dropped or
none: Linux follows a connection whose packets it drops, our firewall only those it lets pass. SCTP, which
Linux knows the states of, is left out.
"""

import random
import struct

import numpy as np

import packets
from packets import ICMP, TCP, UDP

FIN, SYN, RST, PSH, ACK, URG = (1 << bit for bit in range(6))
HEAD = 14 + 20
CLIENTS, SERVERS = 0x0A010000, 0xAC100000  # 10.1.0.0/16, 172.16.0.0/16
PORTS = (22, 25, 53, 80, 123, 443, 993, 3306, 5060, 8080)
ESP = 50

HANDSHAKE = [(0, SYN), (1, SYN | ACK), (0, ACK)]
DATA = [(0, PSH | ACK), (1, ACK), (1, PSH | ACK), (0, ACK)]
CLOSE = [(0, FIN | ACK), (1, ACK), (1, FIN | ACK), (0, ACK)]
# The server resets and the client opens again: here Linux lets segments pass as the old connection's until
# the server's answer has come, so that nothing is lost or odd in these.
REOPENED = HANDSHAKE + [(1, RST | ACK), (0, SYN), (1, SYN | ACK), (0, ACK)] + DATA
# What becomes of a TCP connection: (direction, flags) of its packets.
LIVES = (
    HANDSHAKE + DATA + CLOSE,
    HANDSHAKE + DATA * 2 + [(1, FIN | ACK), (0, FIN | ACK), (1, ACK)],
    HANDSHAKE + DATA + [(0, RST | ACK)],
    REOPENED,
    HANDSHAKE + DATA + CLOSE + HANDSHAKE + DATA,
    [(0, SYN)] * 3,
    [(0, SYN), (1, RST | ACK)],
    [(0, SYN), (0, SYN), (1, SYN | ACK), (1, SYN | ACK), (0, ACK)] + DATA,
    [(0, SYN), (1, SYN), (0, SYN | ACK), (1, SYN | ACK), (0, ACK)] + DATA,
    DATA + CLOSE,
    [(1, SYN | ACK), (0, RST)],
    [(0, SYN), (0, ACK)],
    [(0, FIN | ACK), (0, RST), (0, SYN | ACK)],
    HANDSHAKE + [(0, 0), (1, SYN | FIN), (0, FIN | PSH | URG), (1, SYN)] + DATA,
)
ODD = (0, FIN, SYN | FIN, SYN | RST, FIN | PSH | URG, 0x3F, PSH, SYN | ACK, SYN)


def rules(seed, size):
    """Rules by state, and `size` for new connections."""
    rng = random.Random(seed)
    head = ["*filter", ":INPUT ACCEPT [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT ACCEPT [0:0]", ":fresh - [0:0]", ":odd - [0:0]"]
    lines = [
        "-A FORWARD -m conntrack --ctstate INVALID -j odd",
        "-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
        "-A FORWARD -m conntrack ! --ctstate NEW -j DROP",
        "-A FORWARD -j fresh",
        "-A odd -s 10.1.0.0/17 -j ACCEPT",
        "-A odd -d 10.1.192.0/18 -p tcp -m tcp --dport 1024:65535 -j ACCEPT",
        "-A odd -j DROP",
        # Both ways or none: who began may be taken for the other end where the first packets were lost.
        "-A fresh -s 172.16.0.0/18 -j ACCEPT",
        "-A fresh -d 172.16.0.0/18 -j ACCEPT",
    ]
    for _ in range(size):
        net = f"-d {address(SERVERS + rng.getrandbits(16))}/{rng.choice((20, 22, 24))}"
        if rng.random() < 0.4:
            net += f" -s {address(CLIENTS + rng.getrandbits(16))}/{rng.choice((18, 20))}"
        what = rng.choice(("tcp", "tcp", "udp", "icmp", "50"))
        if what in ("tcp", "udp"):
            what = f"{what} -m {what} --dport {rng.choice((f'{rng.choice(PORTS)}', '0:1023', '1024:65535'))}"
        state = rng.choice(("", "-m conntrack --ctstate NEW "))
        lines.append(f"-A fresh {net} -p {what} {state}-j {rng.choice(('ACCEPT', 'ACCEPT', 'DROP'))}")
    lines += ["-A fresh -p tcp -m tcp --dport 80 -j ACCEPT", "-A fresh -p udp -m udp --dport 53 -j ACCEPT",
              "-A fresh -p icmp -j ACCEPT", "-A fresh -s 10.1.64.0/18 -j ACCEPT"]
    return "\n".join([*head, *lines, "COMMIT", ""])


def address(number):
    return ".".join(str(byte) for byte in number.to_bytes(4, "big"))


class Connections:
    """Packets of many connections: of each (source, target, protocol, first bytes behind the IP header)."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def stream(self, count):
        """`count` packets, those of 500 connections at a time mixed."""
        rng, alive, out = self.random, [], []
        while len(out) < count:
            if len(alive) < 500:
                alive.append(self._connection())
            at = rng.randrange(len(alive))
            packet = next(alive[at], None)
            if packet is None:
                alive[at] = alive[-1]
                alive.pop()
            else:
                out.append(packet)
        return out

    def _connection(self):
        rng = self.random
        ends = (CLIENTS + rng.randrange(1, 65_535), SERVERS + rng.randrange(1, 65_535))
        ports = (rng.randrange(1024, 65_536), rng.choice(PORTS))
        kind = rng.choices((self._tcp, self._udp, self._ping, self._esp), (6, 3, 1, 0.3))[0]
        return kind(ends, ports)

    def _tcp(self, ends, ports):
        rng, seq = self.random, [self.random.getrandbits(32), self.random.getrandbits(32)]
        length = packets.SIZE - HEAD - 20
        life = rng.choice(LIVES)
        rough = 0 if life is REOPENED else 0.02
        for way, flags in life:
            if rng.random() < rough:
                flags = rng.choice(ODD)
            if rng.random() < rough:
                continue
            if rng.random() < 0.01:
                yield self._error(ends, way, TCP, struct.pack("!HHI", ports[way], ports[1 - way], seq[way]))
            ack = seq[1 - way] if flags & ACK else 0
            header = struct.pack("!HHIIBBHHH", ports[way], ports[1 - way], seq[way], ack, 0x50, flags, 65_000, 0, 0)
            yield ends[way], ends[1 - way], TCP, header
            if flags & (SYN | FIN | RST) in (0, SYN, FIN) and flags & (SYN | ACK):
                seq[way] = (seq[way] + length + bool(flags & (SYN | FIN))) & 0xFFFFFFFF

    def _udp(self, ends, ports):
        rng = self.random
        for way in rng.choice(((0, 1), (0, 0, 1, 0, 1), (0, 0, 0), (1, 0), (1, 1))):
            yield ends[way], ends[1 - way], UDP, struct.pack("!HHHH", ports[way], ports[1 - way], packets.SIZE - HEAD, 0)
            if rng.random() < 0.1:
                yield self._error(ends, way, UDP, struct.pack("!HHHH", ports[way], ports[1 - way], 80, 0))

    def _ping(self, ends, ports):
        ask, answer = self.random.choice(((8, 0), (8, 0), (13, 14)))
        for way, kind in self.random.choice((((0, ask), (1, answer), (0, ask)), ((1, answer),), ((0, ask), (0, ask), (1, answer)))):
            yield ends[way], ends[1 - way], ICMP, struct.pack("!BBHHH", kind, 0, 0, ports[0], 1)

    def _esp(self, ends, _):
        for way in self.random.choice(((0, 1, 0), (0, 0), (1, 0))):
            yield ends[way], ends[1 - way], ESP, struct.pack("!II", 7, 1)

    def _error(self, ends, way, protocol, quoted):
        """That a packet could not be delivered: to the one who sent it, or to another, who sent nothing."""
        source, target = ends[way], ends[1 - way]
        receiver = source if self.random.random() < 0.9 else CLIENTS + self.random.randrange(1, 65_535)
        kind, code = self.random.choice(((3, 1), (3, 3), (3, 13), (11, 0)))
        inner = struct.pack("!BBHHHBBHII", 0x45, 0, 76, 1, 0, 60, protocol, 0, source, target)
        total = sum(struct.unpack("!10H", inner))
        total = (total & 0xFFFF) + (total >> 16)
        inner = inner[:10] + struct.pack("!H", 0xFFFF - ((total & 0xFFFF) + (total >> 16))) + inner[12:]
        return target, receiver, ICMP, struct.pack("!BBHI", kind, code, 0, 0) + inner + quoted


def frames(stream, source_mac, target_mac):
    """The frames of a stream."""
    made = packets.blank(len(stream), 4, source_mac, target_mac)
    for at, column in ((26, 0), (30, 1)):
        packets.put(made, at, 4, [packet[column] for packet in stream])
    protocol = np.array([packet[2] for packet in stream])
    made[:, 23] = protocol
    head = b"".join(packet[3].ljust(packets.SIZE - HEAD - 8, b"\0") for packet in stream)
    made[:, HEAD:packets.SIZE - 8] = np.frombuffer(head, np.uint8).reshape(len(stream), -1)
    packets.finish(made, 4, protocol, np.ones(len(stream), dtype=bool))
    return made
