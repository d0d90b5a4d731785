"""Rows of the table of edges that only hardware sees, or sees in time; attacks; what is wrong on purpose."""

import cocotb
from bench import (
    KEY, Bench, checksums_hold, cycles, frame, is_sliced, offsets, padded, stream, taken, token_of, with_token,
)
from cocotb.triggers import RisingEdge


def counted(counters, **expected):
    assert counters == expected, (counters, expected)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def table_full_and_ttl(dut):
    """No free entry: forwarded whole. An entry passed over `ttl` times is free again, and its packet comes
    too late."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=3)
    sliced = [await bench.slice(frame(seed=n)) for n in range(4)]
    assert all(is_sliced(data) for data in sliced)
    for turn in range(3):
        for n in range(4):
            data = frame(seed=10 + 4 * turn + n)
            assert await bench.slice(data) == data, "sliced, though the entry is in use"
    assert await bench.read("status") & 0x1FFFF == 0
    assert is_sliced(await bench.slice(frame(seed=99)))
    assert await bench.splice(padded(sliced[1])) is None
    counted(await bench.counters(), sliced=5, full=12, expired=4, late=1)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def ttl_survives_one_turn_less(dut):
    """The last turn but one: the payload is still there."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=3)
    whole = [frame(seed=n) for n in range(4)]
    sliced = [await bench.slice(data) for data in whole]
    for n in range(11):
        await bench.slice(frame(seed=10 + n))
    assert await bench.splice(padded(sliced[3])) == whole[3]
    assert await bench.splice(padded(sliced[2])) is None


@cocotb.test(timeout_time=100, timeout_unit="us")
async def forged_replayed_and_stale_tokens(dut):
    """Attack: no token but the right one brings a payload, and each brings it once."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=700)
    sliced = padded(await bench.slice(whole))
    token = int.from_bytes(token_of(sliced), "big")
    forged = 0
    for bit in range(64):
        assert await bench.splice(with_token(sliced, (token ^ 1 << bit).to_bytes(8, "big"))) is None, bit
        forged += 1
    assert await bench.splice(sliced) == whole, "the victim lost its payload"
    assert await bench.splice(sliced) is None, "replayed"
    for n in range(4):
        assert await bench.splice(await bench.slice(frame(seed=n))) == frame(seed=n)
    assert await bench.splice(sliced) is None, "stale"
    counters = await bench.counters()
    assert counters["duplicate"] == 1 and counters["spliced"] == 5
    assert counters["forged"] + counters["stale"] == forged + 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def tokens_from_the_network_are_refused(dut):
    """Attack: a packet from the network that ends in a token that is out leaves as bad, with the mark or
    without, short or long."""
    bench = Bench(dut)
    await bench.start(threshold=1000)
    await bench.write("threshold", 120)
    sliced = await bench.slice(frame(payload=700))
    await bench.write("threshold", 2000)
    token = token_of(sliced)
    for tos in (0, 0xFC):
        for size in (0, 1, 2, 14, 16, 17, 18, 19, 22, 23, 24, 200, 1001):
            for tcp in (False, True):
                body = bytes(size) + token
                assert await bench.slice(frame(body=body, tos=tos, tcp=tcp)) is None, (tos, size, tcp)
    assert (await bench.counters())["token_from_network"] == 52
    assert await bench.splice(sliced) == frame(payload=700)
    # An entry that was never used has no token.
    assert await bench.slice(frame(body=bytes([0, 3, 0, 0, 0, 0, 0, 0]))) is not None


@cocotb.test(timeout_time=100, timeout_unit="us")
async def tunnels_around_sliced_packets_don_t_leave(dut):
    """What hardware can't repair is dropped if it is marked, and spoiled if it isn't: no packet leaves
    without its payload."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    sliced = await bench.slice(frame(payload=700))
    for tos in (0, 0xFC):
        assert await bench.splice(frame(body=sliced[22:], proto=4, tos=tos)[:34] + sliced[14:]) is None
        assert await bench.splice(frame(body=bytes(8) + sliced, tos=tos)) is None
    counters = await bench.counters()
    assert counters["mangled"] == 2 and counters["hidden"] == 2, counters
    assert await bench.splice(padded(sliced)) == frame(payload=700)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def marked_packets_by_policy(dut):
    """DSCP 63 from the network, not sliced: another DSCP, or dropped."""
    bench = Bench(dut)
    await bench.start(threshold=500, marked=5)
    for six in (False, True):
        data = frame(payload=40, tos=0xFE, six=six)
        got = await bench.slice(data)
        l3, *_ = offsets(got)
        word = int.from_bytes(got[l3 : l3 + 2], "big")
        assert (word >> 6 if six else word >> 2) & 63 == 5
        assert (word >> 4 if six else word) & 3 == 2 and checksums_hold(got) and len(got) == len(data)
    await bench.write("marked", 0x100)
    assert await bench.slice(frame(payload=40, tos=0xFE)) is None
    assert await bench.slice(frame(payload=1000, tos=0xFE)) is not None
    # On the way back a mark without a token is none of ours.
    assert await bench.splice(frame(payload=40, tos=0xFE)) is None
    counted(await bench.counters(), remarked=2, dropped=1, sliced=1, mangled=1)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def damaged_frames_give_their_payload_up(dut):
    """Bad by `tuser`, cut off, more behind the packet than an entry holds: the headers are gone, the payload
    is refused."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=700)
    # One that ends in its first three beats is known to be cut off when its headers leave.
    known = 3 * len(dut.s_axis_net_tdata) // 8
    cut_later = whole[:known + 24]
    for data, bad in ((whole, True), (whole[:-1], False), (cut_later, False), (whole + bytes(900), False), (whole + bytes(9000), False)):
        sliced = await bench.slice(data, bad)
        assert is_sliced(sliced)
        assert await bench.splice(padded(sliced)) is None
    # Cut off before the token has a place, or in the headers: forwarded as it is.
    for size in (10, 14, 20, 34, 41, 60, *range(96, known + 1, 8)):
        assert await bench.slice(whole[:size]) == whole[:size]
    # What stands behind the packet comes back with it.
    with_trailer = whole + bytes(range(20))
    assert await bench.splice(padded(await bench.slice(with_trailer))) == with_trailer
    # A bad frame that is not sliced stays bad.
    assert await bench.slice(frame(payload=20), bad=True) is None
    assert await bench.splice(frame(payload=20), bad=True) is None
    sliced = await bench.slice(whole)
    assert await bench.splice(padded(sliced), bad=True) is None
    assert await bench.splice(padded(sliced)) == whole
    counters = await bench.counters()
    assert counters["damaged"] == 5 and counters["late"] == 5 and counters["bad"] == 1, counters
    assert await bench.read("status") & 0x1FFFF == 0


@cocotb.test(timeout_time=100, timeout_unit="us")
async def splice_before_the_payload_is_there(dut):
    """The packet waits for its payload; not for longer than it may."""
    bench = Bench(dut)
    await bench.start(threshold=120, patience=200)
    whole = frame(payload=1400)
    for gap, there in ((60, True), (300, False)):
        await bench.net_in.send(stream(whole))
        for _ in range(8):
            await RisingEdge(dut.clk)
        bench.net_in.pause = True
        sliced = bytes((await bench.host_out.recv()).tdata)
        await bench.host_in.send(stream(padded(sliced)))
        # A packet behind it waits as well.
        await bench.host_in.send(stream(frame(payload=20)))
        await cycles(dut.clk, gap)
        assert bench.net_out.empty() == there
        bench.net_in.pause = False
        await bench.settle(150)
        if there:
            assert bytes((await bench.net_out.recv()).tdata) == whole
        assert taken(bench.net_out) == frame(payload=20)
    counters = await bench.counters()
    assert counters["early"] == 1 and counters["spliced"] == 1
    # The payload came after all, and waits for its time to end.
    assert await bench.read("status") & 0x1FFFF == 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def the_wait_ends_behind_a_way_out_that_stands_still(dut):
    """The longest patience is over while nothing can leave: the packet is dropped once something can, and
    does not wait as long again."""
    bench = Bench(dut)
    await bench.start(threshold=120, patience=65535)
    await bench.net_in.send(stream(frame(payload=1400)))
    await cycles(dut.clk, 8)
    bench.net_in.pause = True
    sliced = bytes((await bench.host_out.recv()).tdata)
    # Two beats fill the register of the output.
    ahead = frame(payload=2 * len(dut.s_axis_net_tkeep) - 42)
    bench.net_out.pause = True
    for data in (ahead, padded(sliced)):
        await bench.host_in.send(stream(data))
    await cycles(dut.clk, 20)
    waited = dut.egress.waited_reg
    assert int(waited.value) > 0
    waited.value = 65530
    await cycles(dut.clk, 20)
    bench.net_out.pause = False
    await cycles(dut.clk, 20)
    counters = await bench.counters()
    assert counters["early"] == 1 and "spliced" not in counters, counters
    assert taken(bench.net_out) == ahead


@cocotb.test(timeout_time=100, timeout_unit="us")
async def damage_while_the_packet_waits(dut):
    """The frame turns out bad when its packet is already back."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    await bench.net_in.send(stream(frame(payload=1400), bad=True))
    for _ in range(8):
        await RisingEdge(dut.clk)
    bench.net_in.pause = True
    sliced = bytes((await bench.host_out.recv()).tdata)
    await bench.host_in.send(stream(padded(sliced)))
    await cycles(dut.clk, 50)
    bench.net_in.pause = False
    await bench.settle(100)
    assert bench.net_out.empty()
    assert (await bench.counters())["late"] == 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def oversize_and_wrong_lengths(dut):
    """A whole packet beyond the MTU is dropped, with its payload; lengths that lie reach nobody's payload."""
    bench = Bench(dut)
    await bench.start(threshold=120, mtu=1000)
    sliced = await bench.slice(frame(payload=973))
    assert await bench.splice(padded(sliced)) is None
    assert await bench.splice(padded(sliced)) is None
    assert await bench.splice(padded(await bench.slice(frame(payload=972)))) == frame(payload=972)
    counted(await bench.counters(), sliced=2, spliced=1, oversize=1, released=1)
    sliced = padded(await bench.slice(frame(payload=400)))
    for length in (0, 19, 20, 28, 35, 37, 44, 46, 47, 300, 0xFFFF):
        lie = sliced[:16] + length.to_bytes(2, "big") + sliced[18:]
        assert await bench.splice(lie) is None or length < 20, length
    assert await bench.splice(sliced[:49]) is None
    assert await bench.splice(sliced) == frame(payload=400)
    whole = frame(payload=400)
    for length in (0, 19, 20, 27, 28, 36, 100, 429, 1600, 0xFFFF):
        lie = whole[:16] + length.to_bytes(2, "big") + whole[18:]
        got = await bench.slice(lie)
        assert got == lie, length
    # One more than an entry holds.
    assert await bench.slice(frame(payload=1455)) == frame(payload=1455)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def reset_in_the_middle(dut):
    """Reset ends what is under way and the time of what waits; generations go on, and the block works."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    old = [await bench.slice(frame(seed=n)) for n in range(3)]
    bench.net_in.send_nowait(stream(frame(payload=1400)))
    bench.host_in.send_nowait(stream(padded(old[0])))
    await cycles(dut.clk, 9)
    for end in (bench.net_in, bench.host_in):
        end.clear()
    dut.rst.value = 1
    await cycles(dut.clk, 3)
    dut.rst.value = 0
    # What was cut in two has no end, so that it sticks to the next frame.
    for end in (bench.net_in, bench.host_in):
        await end.send(stream(frame(payload=20)))
    await cycles(dut.clk, 150)
    for end in (bench.host_out, bench.net_out):
        end.clear()
    assert await bench.read("status") & 0x1FFFF == 0
    for data in old[1:]:
        assert await bench.splice(padded(data)) is None
    new = [await bench.slice(frame(seed=9)) for _ in range(1)]
    assert token_of(new[0]) not in [token_of(data) for data in old]
    assert await bench.splice(padded(new[0])) == frame(seed=9)
    assert (await bench.counters())["late"] == 2


@cocotb.test(timeout_time=100, timeout_unit="us")
async def table_reset_by_register(dut):
    """What waits is given up; a frame that is coming in as well; what is leaving leaves."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    sliced = [await bench.slice(frame(payload=1400, seed=n)) for n in range(2)]
    await bench.host_in.send(stream(padded(sliced[0])))
    await bench.net_in.send(stream(frame(payload=1400, seed=5)))
    await cycles(dut.clk, 6)
    await bench.write("control", 3 | 8)
    await bench.settle(80)
    assert bytes((await bench.net_out.recv()).tdata) == frame(payload=1400, seed=0)
    coming = bytes((await bench.host_out.recv()).tdata)
    for data in (sliced[1], coming):
        assert await bench.splice(padded(data)) is None
    assert await bench.read("status") & 0x1FFFF == 0
    counters = await bench.counters()
    assert counters["late"] == 2 and counters["spliced"] == 1
    assert await bench.splice(padded(await bench.slice(frame(seed=8)))) == frame(seed=8)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def new_key_while_traffic_flows(dut):
    """A key in the middle: no payload leaves under an old token, traffic goes on whole until tokens are ready
    again."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    old = [await bench.slice(frame(seed=n)) for n in range(4)]
    for n in range(12):
        bench.net_in.send_nowait(stream(frame(payload=600, seed=40 + n)))
    await bench.load_key(bytes(range(100, 116)))
    await bench.settle()
    frames = [frame(payload=600, seed=40 + n) for n in range(12)]
    out = [bytes((await bench.host_out.recv()).tdata) for _ in frames]
    assert all(a == b or is_sliced(a) for a, b in zip(out, frames))
    assert sum(a == b for a, b in zip(out, frames)) >= 4
    for data in old:
        assert await bench.splice(padded(data)) is None
    sliced = await bench.slice(frame(seed=1))
    assert token_of(sliced) != token_of(old[0])
    assert await bench.splice(padded(sliced)) == frame(seed=1)
    # The same generations as software draws under this key: twice the same key, the same tokens.
    await bench.load_key(KEY)
    assert await bench.read("status") & 0x1FFFF == 0
    again = [token_of(await bench.slice(frame(seed=n))) for n in range(4)]
    assert sorted(again) == sorted(token_of(data) for data in old)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def registers_out_of_range(dut):
    """Refused, counted, and without effect; the key can't be read."""
    bench = Bench(dut)
    await bench.start(threshold=321, ttl=7)
    refused = [
        ("ttl", 0), ("ttl", 1 << 16), ("mtu", 67), ("mtu", 1 << 16), ("threshold", 1 << 16), ("marked", 63), ("marked", 0x200),
        ("patience", 1 << 16), ("control", 16), ("id", 1), ("status", 1), (0x30, 1), (0x7C, 1), (0x84, 1),
    ]
    for name, value in refused:
        assert await bench.write(name, value) == 2, (name, value)
    assert await bench.read("threshold") == 321 and await bench.read("ttl") == 7 and await bench.read("mtu") == 1500
    assert await bench.read("control") == 3 and await bench.read("id") == 0x534C4943
    for name, value in (("mtu", 68), ("ttl", 1), ("ttl", 65535), ("threshold", 0), ("marked", 62), ("patience", 0)):
        assert await bench.write(name, value) == 0
        assert await bench.read(name) == value
    for at in range(0x20, 0x30, 4):
        answer = await bench.axil.read(at, 4)
        assert answer.data == bytes(4) and int(answer.resp) == 2
    # Less than a whole register is no write either.
    for size in (1, 2, 3):
        assert int((await bench.axil.write(0x0C, b"\1" * size)).resp) == 2
    assert await bench.read("threshold") == 0
    # Nothing is read beyond the counters, or beside a register.
    for at in (0x30, 0x7C, 0x80 + 4 * 23, 0xFC):
        assert int((await bench.axil.read(at, 4)).resp) == 2, hex(at)
    assert (await bench.counters())["refused_writes"] == len(refused) + 3


@cocotb.test(timeout_time=100, timeout_unit="us")
async def switched_off(dut):
    """Without slicing and splicing, and without a key, packets go through as they are."""
    bench = Bench(dut)
    await bench.start(key=None, enable=3)
    await bench.write("control", 3)
    whole = frame(payload=900)
    assert await bench.slice(whole) == whole
    await bench.load_key(KEY, enable=0)
    marked = frame(payload=40, tos=0xFC)
    assert await bench.slice(whole) == whole
    assert await bench.splice(whole) == whole and await bench.splice(marked) == marked
    # Nobody asks for the mark then, whatever the policy for it says.
    for policy in (5, 0x100):
        await bench.write("marked", policy)
        for six in (False, True):
            for tos in (0xFC, 0xFF):
                data = frame(payload=40, tos=tos, six=six)
                assert await bench.slice(data) == data, (policy, six, tos)
    # One of the two is enough: the other end has to tell its own packets from those of the network.
    for enable in (1, 2):
        await bench.write("control", enable)
        assert await bench.slice(marked) is None, enable


@cocotb.test(timeout_time=100, timeout_unit="us")
async def switched_off_one_after_the_other(dut):
    """As the book says it: no more is sliced, what comes back gets its payload, the rest is given up."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    frames = [frame(payload=900, seed=n) for n in range(3)]
    sliced = [await bench.slice(data) for data in frames]
    await bench.write("control", 2)
    assert await bench.slice(frames[0]) == frames[0]
    for whole, data in zip(frames[:2], sliced):
        assert await bench.splice(padded(data)) == whole
    # The functions dropped the third: while nothing is sliced no turn is over, and its payload waits on.
    assert await bench.read("status") & 0x1FFFF == 1
    await bench.write("control", 2 | 8)
    assert await bench.read("status") & 0x1FFFF == 0
    await bench.write("control", 0)
    marked = frame(payload=40, tos=0xFC)
    for data in (frames[0], marked):
        assert await bench.slice(data) == data and await bench.splice(data) == data


@cocotb.test(timeout_time=100, timeout_unit="us")
async def an_entry_in_use_is_not_overwritten(dut):
    """The way out stands still while a payload leaves; as many packets come in as would fill the table
    several times."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=1)
    whole = frame(payload=1400, seed=3)
    sliced = await bench.slice(whole)
    bench.net_out.pause = True
    await bench.host_in.send(stream(padded(sliced)))
    await bench.host_in.send(stream(padded(sliced)))
    await cycles(dut.clk, 20)
    for n in range(14):
        await bench.slice(frame(payload=1400, seed=100 + n))
    bench.net_out.pause = False
    await bench.settle(100)
    assert taken(bench.net_out) == whole
    assert (await bench.counters())["duplicate"] == 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def no_payload_as_short_as_a_token(dut):
    """Slicing eight bytes off would make nothing shorter; nine it does. A frame of one beat isn't sliced
    either."""
    bench = Bench(dut)
    await bench.start(threshold=0)
    one_beat = 0
    for tcp in (False, True):
        assert await bench.slice(frame(payload=8, tcp=tcp)) == frame(payload=8, tcp=tcp)
        whole = frame(payload=9, tcp=tcp)
        sliced = await bench.slice(whole)
        if len(whole) <= len(dut.s_axis_net_tkeep):
            assert sliced == whole
            one_beat += 1
            continue
        assert is_sliced(sliced)
        assert await bench.splice(padded(sliced)) == whole
    rest = 2 - one_beat
    counted(await bench.counters(), small=2 + one_beat, **({"sliced": rest, "spliced": rest} if rest else {}))


@cocotb.test(timeout_time=100, timeout_unit="us")
async def another_transport_gets_no_payload(dut):
    """The token of a UDP packet at the end of a TCP packet: dropped, and the payload still waits for its
    own."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    for tcp in (False, True):
        sliced = await bench.slice(frame(payload=700, tcp=tcp))
        for tos in (0, 0xFC):
            assert await bench.splice(frame(body=token_of(sliced), tcp=not tcp, tos=tos)) is None
        assert await bench.splice(padded(sliced)) == frame(payload=700, tcp=tcp)
    counted(await bench.counters(), sliced=2, spliced=2, mangled=4)
