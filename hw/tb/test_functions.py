"""Rows of the table of edges that a function makes: what it changes in a sliced packet, and which packets are
never sliced."""

import cocotb
from bench import Bench, checksums_hold, frame, is_sliced, offsets, ones, padded, stream, taken


def word(data, at):
    return int.from_bytes(data[at : at + 2], "big")


def put(data, at, value):
    return data[:at] + value.to_bytes(2, "big") + data[at + 2 :]


def rewritten(data, recompute):
    """What a NAT makes of a frame: MACs, TTL, addresses and ports are others; checksums are updated, or
    computed anew."""
    l3, l4, end, six, number = offsets(data)
    out = bytes([2, 9, 9, 9, 9, 9]) + data[6:]
    at = l4 + (16 if number == 6 else 6)
    changes = [(l3 + (14 if six else 18), 0xBEEF), (l3 + (30 if six else 14), 0x0A07), (l4, 40000), (l4 + 2, 53)]
    hop = l3 + (6 if six else 8)
    value, ip_value = word(out, at), word(out, l3 + 10)
    for place, new in changes + [(hop, word(out, hop) - (1 if six else 0x100))]:
        old = word(out, place)
        out = put(out, place, new)
        # RFC 1624, equation 3.
        if place != hop:
            value = ones(b"", (value ^ 0xFFFF) + (old ^ 0xFFFF) + new) ^ 0xFFFF
        if place < l4:
            ip_value = ones(b"", (ip_value ^ 0xFFFF) + (old ^ 0xFFFF) + new) ^ 0xFFFF
    if recompute:
        blank = put(out, at, 0)
        addresses = out[l3 + 8 : l3 + 40] if six else out[l3 + 12 : l3 + 20]
        value = ones(blank[l4:end], ones(addresses, number + end - l4)) ^ 0xFFFF
        if not six:
            ip_value = ones(put(out, l3 + 10, 0)[l3:l4]) ^ 0xFFFF
    if number == 17 and value == 0:
        value = 0xFFFF
    out = put(out, at, value)
    return out if six else put(out, l3 + 10, ip_value)


@cocotb.test(timeout_time=200, timeout_unit="us")
@cocotb.parametrize(recompute=[False, True])
async def addresses_ports_ttl_and_macs_are_kept(dut, recompute):
    """A NAT on the sliced packet gives what it gives on the whole one, if it updates checksums or computes
    them anew."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    for seed, (tcp, six, tags) in enumerate((a, b, c) for a in (False, True) for b in (False, True) for c in (0, 1, 2)):
        whole = frame(payload=301 + seed, tcp=tcp, six=six, tags=tags, seed=seed)
        sliced = await bench.slice(whole)
        assert is_sliced(sliced) and checksums_hold(sliced)
        back = await bench.splice(padded(rewritten(sliced, recompute)))
        assert back == rewritten(whole, recompute) and checksums_hold(back), (tcp, six, tags)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_dscp_that_the_function_gives_wins(dut):
    """Another DSCP: it stays, and the payload is found by its token. None: that with which the packet came,
    63 too."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    for tos in (0, 0xB9, 0xFE):
        for six in (False, True):
            whole = frame(payload=400, tos=tos, six=six)
            assert await bench.splice(padded(await bench.slice(whole))) == whole
            sliced = await bench.slice(whole)
            l3, *_ = offsets(sliced)
            for new in (0x12,):
                first = word(sliced, l3)
                mask = 0xF03F if six else 0xFF03
                changed = put(sliced, l3, first & mask | new << (6 if six else 2))
                if not six:
                    check = ones(b"", (word(sliced, l3 + 10) ^ 0xFFFF) + (first ^ 0xFFFF) + word(changed, l3)) ^ 0xFFFF
                    changed = put(changed, l3 + 10, check)
                back = await bench.splice(padded(changed))
                # The ECN bits are those with which it came.
                assert back == frame(payload=400, tos=new << 2 | tos & 3, six=six), (tos, six)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_wrong_checksum_stays_wrong(dut):
    """By the same difference: slicing repairs nothing, and UDP without a checksum has none afterwards."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    for tcp in (False, True):
        whole = frame(payload=333, tcp=tcp)
        at = offsets(whole)[1] + (16 if tcp else 6)
        for value in (0x1234, 0xFFFF, word(whole, at) ^ 1, 0):
            wrong = put(whole, at, value)
            sliced = await bench.slice(wrong)
            assert is_sliced(sliced)
            assert await bench.splice(padded(sliced)) == wrong
            if value == 0 and not tcp:
                assert word(sliced, at) == 0


@cocotb.test(timeout_time=200, timeout_unit="us")
async def only_shallow_packets_are_sliced(dut):
    """Fragments, ESP, SCTP, ICMP, multicast, broadcast, ARP, extension headers, a third tag: forwarded whole,
    and counted."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=600)
    others = [frame(payload=600, proto=number) for number in (1, 2, 47, 50, 51, 132)]
    others += [frame(payload=600, proto=number, six=True) for number in (0, 43, 44, 50, 58, 59, 60, 132, 135)]
    others += [put(whole, 20, value) for value in (0x2000, 0x0001, 0x1FFF, 0x3FFF)]
    others += [b"\xff" * 6 + whole[6:], b"\x01\x00\x5e\0\0\1" + whole[6:], whole[:30] + b"\xe0" + whole[31:], whole[:30] + b"\xef" + whole[31:]]
    six = frame(payload=600, six=True)
    others += [six[:38] + b"\xff" + six[39:], put(whole, 12, 0x0806), put(whole, 12, 0x05DC), frame(payload=600, tags=3)]
    # A version that doesn't fit, a header that is too short, a TCP header that is too short or too long.
    others += [put(whole, 14, 0x5500), put(whole, 14, 0x4400), put(six, 14, 0x4000)]
    others += [frame(payload=600, tcp=True)[:46] + bytes([length << 4]) + frame(payload=600, tcp=True)[47:] for length in (0, 4)]
    for data in others:
        assert await bench.slice(data) == data, data[:48].hex()
    # Reserved bit and "don't fragment" make no fragment.
    for value in (0x4000, 0x8000, 0xC000):
        assert is_sliced(await bench.slice(put(whole, 20, value)))
    assert await bench.counters() == {"kind": len(others), "sliced": 3}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def the_threshold_is_met_exactly(dut):
    """A frame of the threshold's length is sliced, one of a byte less isn't; the trailer of a frame doesn't
    count."""
    bench = Bench(dut)
    await bench.start(threshold=500)
    assert is_sliced(await bench.slice(frame(payload=458)))
    assert await bench.slice(frame(payload=457)) == frame(payload=457)
    assert await bench.slice(frame(payload=457) + bytes(9)) == frame(payload=457) + bytes(9)
    await bench.write("threshold", 0)
    for tcp in (False, True):
        assert await bench.slice(frame(payload=0, tcp=tcp)) == frame(payload=0, tcp=tcp)
    assert await bench.counters() == {"sliced": 1, "small": 4}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def headers_up_to_96_bytes(dut):
    """Options and tags are carried as long as all headers end in the first 96 bytes; beyond that a packet
    goes on whole."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    expected = dict(sliced=0, spliced=0, kind=0)
    for six in (False, True):
        for tags in (0, 1, 2):
            for ip_options in (0, 8, 40) if not six else (0,):
                for tcp_options in (None, 0, 4, 20, 24, 28, 32, 36, 40):
                    kind = dict(tcp=tcp_options is not None, tcp_options=tcp_options or 0)
                    whole = frame(payload=200, six=six, tags=tags, ip_options=ip_options, seed=tags, **kind)
                    got = await bench.slice(whole)
                    if len(whole) - 200 <= 96:
                        assert is_sliced(got) and checksums_hold(got) and len(got) == len(whole) - 192
                        assert await bench.splice(padded(got)) == whole
                        expected["sliced"] += 1
                        expected["spliced"] += 1
                    else:
                        assert got == whole
                        expected["kind"] += 1
    assert await bench.counters() == expected and min(expected.values()) > 10, expected


@cocotb.test(timeout_time=200, timeout_unit="us")
async def lengths_that_lie_are_of_no_kind(dut):
    """TCP in an IP packet shorter than its headers, or longer than the frame: as it came, and no payload is
    parked."""
    bench = Bench(dut)
    await bench.start(threshold=0)
    for six in (False, True):
        whole = frame(payload=300, tcp=True, six=six)
        at, size = (18, 320) if six else (16, 340)
        for length in (0, 1, 19, 60000) if six else (0, 19, 20, 39, 60000):
            assert await bench.slice(put(whole, at, length)) == put(whole, at, length), length
    # An end far behind what an entry holds is seen before the end of the frame is.
    assert await bench.counters() == {"kind": 7, "no_room": 2}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def an_icmp_error_that_quotes_a_sliced_packet(dut):
    """It passes as it is, but if it ends in the token: then it doesn't leave, and the payload waits for its
    own."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=700)
    sliced = await bench.slice(whole)
    short = frame(body=bytes(8) + sliced[14:42], proto=1)
    icmp = short[:34] + short[42:]
    icmp = put(icmp, 16, len(icmp) - 14)
    assert await bench.splice(padded(icmp)) == padded(icmp)
    full = frame(body=sliced[14:], proto=1)
    assert await bench.splice(padded(full)) is None
    assert (await bench.counters())["hidden"] == 1
    assert await bench.splice(padded(sliced)) == whole


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_flood_brings_its_payload_once(dut):
    """A function that sends copies: the first leaves whole, every other one is dropped and counted."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=1200)
    sliced = padded(await bench.slice(whole))
    for _ in range(6):
        bench.host_in.send_nowait(stream(sliced))
    await bench.settle(200)
    assert taken(bench.net_out) == whole
    assert await bench.counters() == {"sliced": 1, "spliced": 1, "duplicate": 5}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_token_that_is_cut_off_is_none(dut):
    """A sliced packet that ends before its token does is dropped as none of ours; the whole one still gets
    its payload."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=600)
    sliced = await bench.slice(whole)
    for size in (34, 41, 42, 45, 49):
        assert await bench.splice(sliced[:size]) is None, size
    assert await bench.splice(sliced) == whole
    assert await bench.counters() == {"sliced": 1, "mangled": 5, "spliced": 1}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_stale_packet_without_the_mark_is_not_known(dut):
    """The book's table: the last token of each entry is all that the block knows. A packet that the function
    took the mark from is dropped as late while its entry is free, and passes once another has the entry."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=1)
    entries = int(dut.ENTRIES.value)
    sliced = await bench.slice(frame(payload=700))
    unmarked = padded(put(sliced, 14, 0x4520))
    for seed in range(entries):
        await bench.slice(frame(payload=700, seed=seed))
    assert await bench.splice(unmarked) is None
    for seed in range(entries):
        await bench.slice(frame(payload=700, seed=seed))
    assert await bench.splice(padded(sliced)) is None
    assert await bench.splice(unmarked) == unmarked
    counters = await bench.counters()
    assert (counters["late"], counters["stale"], counters["untouched"]) == (1, 1, 1), counters


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_mark_in_an_ip_header_that_is_none(dut):
    """The book's table: a header that is cut off, or that is longer than the packet says it is, is not read;
    the mark in it stays, on both ways."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    marked = frame(payload=700, tos=0xFC, ip_options=40)
    for data in (marked[:50], put(marked, 16, 5), put(marked, 16, 59), put(marked, 14, 0x44FC)):
        assert await bench.slice(data) == data
        assert await bench.splice(data) == data
    assert await bench.counters() == {"kind": 4, "untouched": 4}


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_sliced_packet_that_is_no_longer_like_one(dut):
    """The book's table: another UDP length, so much behind the packet that its end is not seen in four beats,
    or so much before its transport header that this is not seen in 96 bytes. It doesn't leave, and the
    payload waits for its own."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=700)
    sliced = await bench.slice(whole)
    four = 4 * len(dut.s_axis_net_tkeep)
    for length in (0, 8, 15, 17, 708):
        assert await bench.splice(padded(put(sliced, 38, length))) is None
    assert await bench.splice(sliced + bytes(four + 1 - len(sliced))) is None
    assert await bench.splice(sliced + bytes(four - len(sliced))) == whole
    assert await bench.counters() == {"sliced": 1, "mangled": 6, "spliced": 1}
    # A tag in front of the longest IP header takes the end of TCP's first 20 bytes to byte 98.
    whole = frame(payload=700, tcp=True, ip_options=40)
    sliced = await bench.slice(whole)
    for data in (sliced, put(sliced, 14, 0x4F20)):
        assert await bench.splice(data[:12] + bytes([0x81, 0, 0, 7]) + data[12:]) is None
    assert await bench.splice(sliced) == whole
    assert await bench.counters() == {"sliced": 2, "mangled": 7, "untouched": 1, "hidden": 1, "spliced": 2}
