"""Many packets at once: Ethernet frames of one length as rows of an array, with checksums, and captures of
them.

The last eight bytes of a frame are a mark and the packet's number, by which it is known again wherever it
comes out.
"""

import struct

import numpy as np

SIZE = 96  # bytes of a frame
MARK = 0x736C6970
ICMP, TCP, UDP, ICMP6, SCTP = 1, 6, 17, 58, 132
TRANSPORT = {4: 34, 6: 54}  # where the header behind IP's begins


def put(frames, at, size, values):
    """Writes a big-endian number into a field of every frame."""
    values = np.asarray(values, dtype=np.uint64)
    for n in range(size):
        frames[:, at + n] = (values >> np.uint64(8 * (size - 1 - n))).astype(np.uint8)


def folded(total):
    """The Internet checksum of sums of 16-bit words."""
    for _ in range(3):
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def words(frames, begin, end):
    return frames[:, begin:end].copy().view(">u2").astype(np.uint64).sum(axis=1)


def blank(count, version, source_mac, target_mac):
    """Frames with Ethernet and IP headers, numbered; addresses, protocol and what follows are to be
    written."""
    frames = np.zeros((count, SIZE), dtype=np.uint8)
    frames[:, :6] = np.frombuffer(target_mac, np.uint8)
    frames[:, 6:12] = np.frombuffer(source_mac, np.uint8)
    put(frames, 12, 2, np.full(count, 0x0800 if version == 4 else 0x86DD))
    if version == 4:
        frames[:, 14] = 0x45
        put(frames, 16, 2, np.full(count, SIZE - 14))
        put(frames, 18, 2, np.arange(count) & 0xFFFF)
        frames[:, 22] = 64
    else:
        frames[:, 14] = 0x60
        put(frames, 18, 2, np.full(count, SIZE - 54))
        frames[:, 21] = 64
    put(frames, SIZE - 8, 4, np.full(count, MARK))
    put(frames, SIZE - 4, 4, np.arange(count))
    return frames


def finish(frames, version, protocol, whole):
    """Writes checksums: IPv4's, and those of TCP, UDP and ICMP in the packets that are `whole`, no
    fragments."""
    at = TRANSPORT[version]
    addresses = words(frames, 26, 34) if version == 4 else words(frames, 22, 54)
    for number, field in ((TCP, 16), (UDP, 6), (ICMP, 2), (ICMP6, 2)):
        rows = np.flatnonzero(whole & (protocol == number))
        put_rows(frames, rows, at + field, 0)
        total = words(frames[rows], at, SIZE)
        if number != ICMP:
            total = total + addresses[rows] + np.uint64(number + SIZE - at)
        value = folded(total)
        put_rows(frames, rows, at + field, np.where((value == 0) & (number == UDP), 0xFFFF, value))
    if version == 4:
        put(frames, 24, 2, np.zeros(len(frames)))
        put(frames, 24, 2, folded(words(frames, 14, 34)))


def put_rows(frames, rows, at, values):
    values = np.broadcast_to(np.asarray(values, dtype=np.uint64), rows.shape)
    frames[rows, at] = (values >> np.uint64(8)).astype(np.uint8)
    frames[rows, at + 1] = values.astype(np.uint8)


RECORD = np.dtype([("seconds", "<u4"), ("fraction", "<u4"), ("captured", "<u4"), ("length", "<u4"), ("data", "u1", SIZE)])


def write(path, frames, gap):
    """A capture of the frames, `gap` ns apart."""
    records = np.zeros(len(frames), RECORD)
    times = np.arange(len(frames), dtype=np.int64) * gap
    records["seconds"], records["fraction"] = 1_700_000_000 + times // 10**9, times % 10**9
    records["captured"] = records["length"] = SIZE
    records["data"] = frames
    with open(path, "wb") as file:
        file.write(struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 0, 1))
        records.tofile(file)


def numbers(path):
    """The numbers of the packets in a pcap file, whose records are all of one length."""
    with open(path, "rb") as file:
        if len(file.read(24)) != 24:
            raise AssertionError(f"{path} is no capture")
        records = np.fromfile(file, RECORD)
    if not (records["captured"] == SIZE).all():
        raise AssertionError(f"{path} has packets that aren't {SIZE} bytes long")
    tail = records["data"][:, SIZE - 8:].copy().view(">u4")
    if not (tail[:, 0] == MARK).all():
        raise AssertionError(f"{path} has packets that nobody sent")
    return tail[:, 1].astype(np.int64)
