"""Capture files and flow keys, read without any help from the product: what its results are held against.

`read` gives the records of a pcap or pcapng file (plain, gzip, zstd); `flow_key` the directional key of a
packet: VLAN ids, IP version, addresses, protocol, ports. Every fragment has ports 0, and so has every
protocol but TCP, UDP and SCTP.
"""

import functools
import itertools
import struct
import subprocess
import zlib
from collections import namedtuple

# `time` in ns since 1970, `link` the link type's number, `length` the bytes that the packet had on the wire.
Record = namedtuple("Record", "time link length data")
# `whole` is false where the file ends within a record or holds something that can't be.
Capture = namedtuple("Capture", "format records links snap_lengths whole")

PCAP_MAGIC = {
    bytes.fromhex("a1b2c3d4"): (">", 1000),
    bytes.fromhex("d4c3b2a1"): ("<", 1000),
    bytes.fromhex("a1b23c4d"): (">", 1),
    bytes.fromhex("4d3cb2a1"): ("<", 1),
}
SECTION = bytes.fromhex("0a0d0d0a")
TCP, UDP, SCTP = 6, 17, 132
FRAGMENT, AUTHENTICATION = 44, 51
EXTENSIONS = {0, 43, FRAGMENT, AUTHENTICATION, 60, 135}


class Unreadable(Exception):
    """This reader doesn't know the format."""


def _inflate(data):
    """All members of a gzip file, as far as they go."""
    out, whole = [], True
    while data[:2] == b"\x1f\x8b":
        member = zlib.decompressobj(wbits=31)
        try:
            out.append(member.decompress(data))
        except zlib.error:
            return b"".join(out), False
        whole = member.eof
        data = member.unused_data
    return b"".join(out), whole


def _plain(data):
    if data[:2] == b"\x1f\x8b":
        return _inflate(data)
    if data[:4] == bytes.fromhex("28b52ffd"):
        done = subprocess.run(["zstd", "-dc"], input=data, capture_output=True, check=False)
        return done.stdout, done.returncode == 0
    return data, True


def read(path):
    """The capture in a file; `Unreadable` where it is none."""
    with open(path, "rb") as file:
        return parse(file.read())


def parse(data):
    data, whole = _plain(data)
    if data[:4] in PCAP_MAGIC:
        capture = _pcap(data)
    elif data[:4] == SECTION:
        capture = _pcapng(data)
    else:
        raise Unreadable(data[:4].hex())
    return capture._replace(whole=capture.whole and whole)


# Makes a record of four fields without a call of Python's for each of millions.
_record = functools.partial(tuple.__new__, Record)


def _pcap(data):
    order, unit = PCAP_MAGIC[data[:4]]
    if len(data) < 24:
        return Capture("pcap", [], [], [], False)
    major, minor = struct.unpack_from(order + "HH", data, 4)
    if major != 2:
        raise Unreadable(f"pcap {major}.{minor}")
    snap_length, link = struct.unpack_from(order + "II", data, 16)
    link &= 0xFFFF
    head = struct.Struct(order + "4I").unpack_from
    times, lengths, packets, at, last = [], [], [], 24, len(data) - 16
    while at <= last:
        seconds, fraction, captured, length = head(data, at)
        if minor < 4 and captured > length:  # the older writers had the two the other way round
            captured, length = length, captured
        at += 16
        end = at + captured
        # Zeros are what nobody wrote, and no packet.
        if end - 16 > last or not (seconds or fraction or captured or length):
            at -= 16
            break
        times.append(seconds * 1_000_000_000 + fraction * unit)
        lengths.append(length)
        packets.append(data[at:end])
        at = end
    records = list(map(_record, zip(times, itertools.repeat(link), lengths, packets)))
    return Capture("pcap", records, [link], [snap_length], at == len(data))


def _options(body, order):
    found, at = {}, 0
    while at + 4 <= len(body):
        code, length = struct.unpack_from(order + "HH", body, at)
        if code == 0:
            break
        found.setdefault(code, body[at + 4 : at + 4 + length])
        at += 4 + (length + 3) // 4 * 4
    return found


def _interface(body, order):
    link, _, snap_length = struct.unpack_from(order + "HHI", body)
    options = _options(body[8:], order)
    resolution = options.get(9, b"\x06")[0]
    ticks = 2 ** (resolution & 127) if resolution & 128 else 10**resolution
    offset = struct.unpack(order + "q", options[14])[0] if len(options.get(14, b"")) == 8 else 0
    return link, snap_length, ticks, offset * 10**9


def _pcapng(data):
    fields, interfaces, links, snap_lengths = [], [], [], []
    at, end, order = 0, len(data), "<"
    head, enhanced, last = (struct.Struct(form).unpack_from for form in ("<II", "<7I", "<I"))
    while at + 12 <= end:
        # Most blocks are of this kind. One that isn't as it should be is looked at below.
        while at + 32 <= end:
            kind, size, number, high, low, captured, length = enhanced(data, at)
            after = at + size
            if (kind != 6 or size < 32 or size & 3 or after > end or captured > size - 32 or number >= len(interfaces)
                    or last(data, after - 4)[0] != size):
                break
            link, _, ticks, offset = interfaces[number]
            ticked = high << 32 | low
            time = (ticked if ticks == 1_000_000_000 else ticked * 1_000_000_000 // ticks) + offset
            fields.append((time, link, length, data[at + 28 : at + 28 + captured]))
            at = after
        if at + 12 > end:
            break
        if data[at : at + 4] == SECTION:
            order = {b"\x1a\x2b\x3c\x4d": ">", b"\x4d\x3c\x2b\x1a": "<"}.get(data[at + 8 : at + 12])
            if order is None:
                break
            interfaces = []
            (major,) = struct.unpack_from(order + "H", data, at + 12)
            if major != 1:
                raise Unreadable(f"pcapng {major}")
            head, enhanced, last = (struct.Struct(order + form).unpack_from for form in ("II", "7I", "I"))
        kind, size = head(data, at)
        if size < 12 or size % 4 or size > end - at or data[at + size - 4 : at + size] != data[at + 4 : at + 8]:
            break
        body = data[at + 8 : at + size - 4]
        if kind == 1:
            if len(body) < 8:
                break
            interfaces.append(_interface(body, order))
            links.append(interfaces[-1][0])
            snap_lengths.append(interfaces[-1][1])
        elif kind == 6:
            break  # too short, or its packet is too long for it, or of no interface
        elif kind == 2:
            if len(body) < 20:
                break
            number, _, high, low, captured, length = struct.unpack_from(order + "HHIIII", body)
            if number >= len(interfaces) or captured > len(body) - 20:
                break
            link, _, ticks, offset = interfaces[number]
            time = (high << 32 | low) * 10**9 // ticks + offset
            fields.append((time, link, length, body[20 : 20 + captured]))
        elif kind == 3:
            if len(body) < 4 or not interfaces:
                break
            (length,) = struct.unpack_from(order + "I", body)
            link, snap_length, _, _ = interfaces[0]
            captured = min(length, snap_length or length)
            if captured > len(body) - 4:
                break
            # A simple packet block has no time: `None`, for whoever reads it to decide.
            fields.append((None, link, length, body[4 : 4 + captured]))
        at += size
    return Capture("pcapng", list(map(_record, fields)), links, snap_lengths, at == end)


def write_pcap(path, records, link, order="<", unit=1, snap_length=0):
    """A pcap file with these records; `unit` is 1 for nanoseconds, 1000 for microseconds."""
    magic = next(m for m, form in PCAP_MAGIC.items() if form == (order, unit))
    with open(path, "wb") as file:
        file.write(magic + struct.pack(order + "HHiIII", 2, 4, 0, 0, snap_length, link))
        for record in records:
            seconds, rest = divmod(record.time, 10**9)
            file.write(struct.pack(order + "4I", seconds, rest // unit, len(record.data), record.length) + record.data)


def _network(link, data):
    """Where the IP header is, the version that the layer below announced (0: it doesn't), VLAN ids; or
    None."""
    ethertype, at, vlans = None, 0, ()
    if link == 1:
        at, ethertype = 14, data[12:14]
    elif link == 113:
        at, ethertype = 16, data[14:16]
    elif link == 276:
        at, ethertype = 20, data[0:2]
    elif link in (0, 108):
        at = 4
    elif link not in (12, 14, 101, 228, 229):
        return None
    while ethertype in (b"\x81\x00", b"\x88\xa8", b"\x91\x00"):
        tag = data[at : at + 2]
        ethertype = data[at + 2 : at + 4]
        vlans += (int.from_bytes(tag, "big") & 4095,)
        at += 4
    if at >= len(data):
        return None
    version = data[at] >> 4
    if ethertype is not None and {b"\x08\x00": 4, b"\x86\xdd": 6}.get(ethertype) != version:
        return None
    return at, version, vlans


# What a packet's headers say. `protocol` is the last in the chain, `at` where its header begins, `end` where
# the IP packet ends on the wire.
Headers = namedtuple("Headers", "key version protocol fragment at end")


def headers(link, data):
    """The headers of a packet, or None where it has no flow: not IP, or cut off within the IP header."""
    found = _network(link, data)
    if found is None:
        return None
    at, version, vlans = found
    if version == 4:
        if len(data) < at + 20 or data[at] & 15 < 5:
            return None
        total, _, offset = struct.unpack_from(">HHH", data, at + 2)
        fragment = offset & 0x3FFF != 0
        protocol, addresses, end = data[at + 9], data[at + 12 : at + 20], at + total
        at += (data[at] & 15) * 4
    elif version == 6:
        if len(data) < at + 40:
            return None
        protocol, addresses, fragment = data[at + 6], data[at + 8 : at + 40], False
        end = at + 40 + int.from_bytes(data[at + 4 : at + 6], "big")
        at += 40
        for _ in range(32):
            if fragment or protocol not in EXTENSIONS or len(data) < at + 8:
                break
            if protocol == FRAGMENT:
                fragment = int.from_bytes(data[at + 2 : at + 4], "big") & 0xFFF9 != 0
                size = 8
            elif protocol == AUTHENTICATION:
                size = 4 * data[at + 1] + 8
            else:
                size = 8 * data[at + 1] + 8
            protocol = data[at]
            at += size
    else:
        return None
    ports = b"\0\0\0\0"
    if not fragment and protocol in (TCP, UDP, SCTP) and len(data) >= at + 4:
        ports = data[at : at + 4]
    return Headers((vlans, version, addresses, protocol, ports), version, protocol, fragment, at, end)


def flow_key(link, data):
    """The directional flow key, or None."""
    found = headers(link, data)
    return found and found.key


# Of TCP: flags, sequence and acknowledgement number, bytes of payload by the IP header's length (below 0: it
# can't be).
Tcp = namedtuple("Tcp", "flags seq ack payload")


def tcp(data, found):
    """The TCP header, or None where there is none, or not enough of it."""
    if found is None or found.fragment or found.protocol != TCP or len(data) < found.at + 14:
        return None
    at = found.at
    seq, ack, words, flags = struct.unpack_from(">IIBB", data, at + 4)
    return Tcp(flags, seq, ack, found.end - at - (words >> 4) * 4)
