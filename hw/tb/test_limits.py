"""The least and the most that the block's parameters allow: payloads as long as an entry holds go and come
back, one byte more goes whole, and the index comes round where the entries are no power of two."""

import cocotb
from bench import Bench, frame, is_sliced, padded, stream, token_of


@cocotb.test(timeout_time=200, timeout_unit="us")
async def payloads_as_long_as_an_entry_holds(dut):
    bench = Bench(dut)
    most, entries = int(dut.MAX_PAYLOAD.value), int(dut.ENTRIES.value)
    await bench.start(threshold=0, mtu=65535)
    sliced = 0
    for seed, kind in enumerate((dict(), dict(tcp=True), dict(six=True), dict(tcp=True, tags=2, tcp_options=12))):
        longest, longer = frame(payload=most, seed=seed, **kind), frame(payload=most + 1, seed=seed, **kind)
        got = await bench.slice(longest)
        # A frame of one beat is not sliced.
        assert is_sliced(got) == (len(longest) > len(dut.s_axis_net_tkeep))
        sliced += is_sliced(got)
        assert await bench.splice(padded(got), count=700) == (longest if is_sliced(got) else padded(longest))
        assert await bench.slice(longer) == longer
    counters = await bench.counters()
    assert counters["sliced"] == counters["spliced"] == sliced, counters
    # All entries in use at once, from where the index stands after that; a token has the index of its entry.
    frames = [frame(payload=most, tcp=True, tags=1, seed=n) for n in range(entries)]
    out = [padded(await bench.slice(data)) for data in frames]
    assert sorted(token_of(data)[1] for data in out) == list(range(entries))
    assert await bench.slice(frames[0]) == frames[0]
    for data, there in zip(out, frames):
        assert await bench.splice(data, count=700) == there
    assert await bench.read("status") & 0x1FFFF == 0


@cocotb.test(timeout_time=200, timeout_unit="us")
async def longest_payloads_back_to_back(dut):
    """As many as there are entries, each back as soon as its headers have left: by default it waits as long
    as the rest of it takes."""
    bench = Bench(dut)
    await bench.start(threshold=0, mtu=65535)
    frames = [frame(payload=int(dut.MAX_PAYLOAD.value), tcp=True, seed=n) for n in range(int(dut.ENTRIES.value))]
    for data in frames:
        bench.net_in.send_nowait(stream(data))
    for _ in frames:
        await bench.host_in.send(stream(padded((await bench.host_out.recv()).tdata)))
    for data in frames:
        assert bytes((await bench.net_out.recv()).tdata) == data
    assert "early" not in await bench.counters()
