"""Order, content and time: any mix of frames under backpressure and gaps, line rate without a bubble, latency
in cycles."""

import itertools
import random

import cocotb
from bench import Bench, checksums_hold, cycles, frame, is_bad, is_sliced, offsets, padded, stream
from cocotb.triggers import RisingEdge


def mix(rng, count):
    """Frames of all kinds; those that are sliced among them."""
    for seed in range(count):
        tcp = rng.random() < 0.5
        kind = dict(tcp=tcp, six=rng.random() < 0.3, tags=rng.choice([0, 0, 0, 1, 2]), tos=rng.randrange(256), seed=seed)
        if not kind["six"]:
            kind["ip_options"] = rng.choice([0, 0, 0, 8])
        if tcp:
            kind["tcp_options"] = rng.choice([0, 12, 0, 20])
        size = rng.choice([rng.randrange(20), rng.randrange(120, 300), rng.randrange(500, 1455)])
        yield frame(payload=size, **kind)


def unmarked(data):
    """As the block forwards a whole packet that came with the mark."""
    data = bytearray(data)
    l3, _, _, six, _ = offsets(data)
    word = int.from_bytes(data[l3 : l3 + 2], "big")
    if six and word >> 6 & 63 == 63:
        data[l3 : l3 + 2] = (word & 0xF03F).to_bytes(2, "big")
    elif not six and data[l3 + 1] >> 2 == 63:
        from bench import ones

        data[l3 + 1] &= 3
        check = int.from_bytes(data[l3 + 10 : l3 + 12], "big")
        total = (check ^ 0xFFFF) + (word ^ 0xFFFF) + (word & 0xFF03)
        data[l3 + 10 : l3 + 12] = (ones(b"", total) ^ 0xFFFF).to_bytes(2, "big")
    return bytes(data)


@cocotb.test(timeout_time=100, timeout_unit="us")
@cocotb.parametrize(pauses=[(0, 0), (0.3, 0.3), (0, 0.7), (0.7, 0)])
async def any_mix_there_and_back(dut, pauses):
    """Both directions at the same time; what leaves is what came, in order."""
    gaps, backpressure = pauses
    rng = random.Random(f"{pauses}")
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=1000)
    chance = lambda share: (rng.random() < share for _ in itertools.count())
    for end, share in ((bench.net_in, gaps), (bench.host_in, gaps), (bench.host_out, backpressure), (bench.net_out, backpressure)):
        if share:
            end.set_pause_generator(chance(share))
    frames = list(mix(rng, 40))
    for data in frames:
        bench.net_in.send_nowait(stream(data))
    sliced = 0
    for data in frames:
        got = bytes((await bench.host_out.recv()).tdata)
        if is_sliced(got):
            assert checksums_hold(got)
            sliced += 1
        await bench.host_in.send(stream(padded(got)))
        back = await bench.net_out.recv()
        assert not is_bad(back)
        back = bytes(back.tdata)
        assert back == (data if is_sliced(got) else padded(unmarked(data))), (data.hex(), back.hex())
    assert sliced > 4
    await bench.settle()
    assert (await bench.read("status")) & 0x1FFFF == 0


async def watch(dut, prefix, beats):
    """Notes (cycle, last) of every beat that is handed over, and of every cycle in which one has to wait."""
    valid, ready, last = (getattr(dut, f"{prefix}_{name}") for name in ("tvalid", "tready", "tlast"))
    for cycle in itertools.count():
        await RisingEdge(dut.clk)
        if int(valid.value) and int(ready.value):
            beats.append((cycle, int(last.value)))
        elif int(valid.value):
            beats.append((cycle, None))


def watch_all(dut):
    notes = {}
    for prefix in ("s_axis_net", "m_axis_host", "s_axis_host", "m_axis_net"):
        notes[prefix] = []
        cocotb.start_soon(watch(dut, prefix, notes[prefix]))
    return notes


def in_a_row(notes):
    """Beats on consecutive cycles, none of which had to wait."""
    return all(last is not None for _, last in notes) and notes[-1][0] - notes[0][0] == len(notes) - 1


@cocotb.test(timeout_time=100, timeout_unit="us")
async def line_rate_without_a_bubble(dut):
    """Shortest and longest frames, back to back, on both ways in; every cycle has its beat."""
    bench = Bench(dut)
    await bench.start(threshold=500)
    notes = watch_all(dut)
    for sizes in ([18] * 60, [1472] * 6, [18, 1472, 23, 86, 87, 1000] * 3):
        for note in notes.values():
            note.clear()
        for seed, size in enumerate(sizes):
            bench.net_in.send_nowait(stream(frame(payload=size, seed=seed, six=size == 87)))
            bench.host_in.send_nowait(stream(frame(payload=size, seed=seed)))
        await bench.settle(60)
        assert in_a_row(notes["s_axis_net"]), "a beat from the network had to wait"
        assert in_a_row(notes["s_axis_host"]), "a beat from the functions had to wait"
        assert in_a_row(notes["m_axis_net"]), "a bubble between or in frames"
    bench.host_out.clear()


@cocotb.test(timeout_time=100, timeout_unit="us")
async def spliced_frames_without_a_bubble(dut):
    """Sliced packets that wait in a row leave whole in a row: not a cycle between them (512 bits: one, for
    the memory)."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    frames = [frame(payload=n, seed=n, tcp=n % 2 == 0) for n in (900, 1001, 906, 1310)]
    notes = watch_all(dut)
    for data in frames:
        bench.net_in.send_nowait(stream(data))
    await bench.settle(60)
    assert in_a_row(notes["s_axis_net"])
    for _ in frames:
        bench.host_in.send_nowait(stream(padded((await bench.host_out.recv()).tdata)))
    await bench.settle(400)
    for data in frames:
        assert bytes((await bench.net_out.recv()).tdata) == data
    wide = len(dut.s_axis_net_tkeep) == 64
    beats = notes["m_axis_net"]
    bubbles = beats[-1][0] - beats[0][0] - len(beats) + 1
    # No beat without a byte, at lengths of whole beats either.
    assert len(beats) == sum(-(-len(data) // len(dut.s_axis_net_tkeep)) for data in frames)
    assert bubbles == (len(frames) - 1 if wide else 0), bubbles
    inside = all(b[0] - a[0] == 1 for a, b in itertools.pairwise(beats) if not a[1])
    assert inside, "a bubble in a frame"


@cocotb.test(timeout_time=100, timeout_unit="us")
async def frames_that_end_like_sliced_ones_back_to_back(dut):
    """Whole frames from the functions with eight bytes of payload are known at their end. If that is in the
    fourth beat a cycle is lost behind each, and with fewer beats none."""
    bench = Bench(dut)
    await bench.start()
    notes = watch_all(dut)
    wide = len(dut.s_axis_net_tkeep) == 64
    for kind, lost in ((dict(tcp_options=20), 0), (dict(six=True, tcp_options=12), 0), (dict(tcp_options=40), 1), (dict(six=True, tags=2, tcp_options=20), 1)):
        for note in notes.values():
            note.clear()
        frames = [frame(payload=8, tcp=True, seed=seed, **kind) for seed in range(6)]
        for data in frames:
            bench.host_in.send_nowait(stream(data))
        await bench.settle(60)
        assert [bytes(bench.net_out.recv_nowait().tdata) for _ in frames] == frames
        beats = [cycle for cycle, _ in notes["m_axis_net"]]
        assert beats[-1] - beats[0] + 1 - len(beats) == (0 if wide else lost * (len(frames) - 1)), kind


@cocotb.test(timeout_time=100, timeout_unit="us")
async def latency_in_cycles(dut):
    """+3 on the way in for every frame; +2 on the way out, +1 for every beat behind the second that a token
    stands in."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    notes = watch_all(dut)
    wide = len(dut.s_axis_net_tkeep) == 64
    cases = [
        # Frame, cycles of the packet on its way back if it is sliced (256 bits, 512 bits).
        (frame(payload=18), 2, 2),
        (frame(payload=70, tcp=True), 2, 3),
        (frame(payload=1400), 2, 3),
        (frame(payload=1400, tcp=True), 2, 3),
        (frame(payload=1400, tcp=True, tcp_options=12), 3, 2),
        (frame(payload=1200, six=True, tcp=True), 3, 2),
    ]
    for data, narrow_cycles, wide_cycles in cases:
        for note in notes.values():
            note.clear()
        got = await bench.slice(data)
        assert notes["m_axis_host"][0][0] - notes["s_axis_net"][0][0] == 3
        back = await bench.splice(padded(got), count=80)
        assert back == padded(data)
        took = notes["m_axis_net"][0][0] - notes["s_axis_host"][0][0]
        dut._log.info("%d bytes: in 3, out %d", len(data), took)
        assert took == (wide_cycles if wide else narrow_cycles), took
    # From the functions, and not sliced: it is known when the IP header has come, and of a short packet the
    # transport header; with eight bytes of payload it ends like a sliced one.
    passing = [
        (dict(payload=200, tcp=True, six=True), 2), (dict(payload=0, tcp=True), 2), (dict(payload=0, six=True), 2),
        (dict(payload=0, tcp=True, six=True), 3), (dict(payload=0, tcp=True, six=True, tcp_options=12), 3),
        (dict(payload=200, ip_options=40, tags=2), 3),
        (dict(payload=8, tcp=True), 2), (dict(payload=8, tcp=True, tcp_options=20), 3), (dict(payload=8, tcp=True, tcp_options=40), 4),
    ]
    for kind, narrow_cycles in passing:
        for note in notes.values():
            note.clear()
        data = frame(**kind)
        assert await bench.splice(data) == data
        took = notes["m_axis_net"][0][0] - notes["s_axis_host"][0][0]
        assert took == (2 if wide else narrow_cycles), (kind, took)
    # A function that took a tag off: the payload moves to the left, and needs a row ahead.
    got = await bench.slice(frame(payload=1400, tags=1))
    for note in notes.values():
        note.clear()
    back = await bench.splice(padded(got[:12] + got[16:]), count=80)
    assert back == frame(payload=1400)
    assert notes["m_axis_net"][0][0] - notes["s_axis_host"][0][0] == (4 if wide else 3)


@cocotb.test(timeout_time=100, timeout_unit="us")
async def whole_table_at_line_rate(dut):
    """Longest frames for all entries, back to back, then what comes when none is free: whole, in order,
    without a wait."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=100)
    entries = int(dut.ENTRIES.value)
    notes = watch_all(dut)
    frames = [frame(payload=1400, seed=n) for n in range(entries + 3)]
    for data in frames:
        bench.net_in.send_nowait(stream(data))
    await bench.settle(60)
    assert in_a_row(notes["s_axis_net"])
    out = [bytes((await bench.host_out.recv()).tdata) for _ in frames]
    assert all(is_sliced(data) for data in out[:entries])
    assert out[entries:] == frames[entries:]
    for data in reversed(out[:entries]):
        assert await bench.splice(padded(data), count=80) in frames
    await cycles(dut.clk, 4)
