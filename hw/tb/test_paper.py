"""The size of the paper: 250 entries of 1454 bytes; 100 Gb/s of frames worth slicing, with functions that
take 10 µs."""

import cocotb
from bench import Bench, cycles, frame, is_sliced, padded, stream, token_of
from test_streams import in_a_row, watch_all


@cocotb.test(timeout_time=500, timeout_unit="us")
async def little_s_law_holds(dut):
    """Frames of 500 bytes back to back, each back after 10 µs: 250 entries are enough, and the tags are made
    in time."""
    bench = Bench(dut)
    await bench.start(threshold=500)
    notes = watch_all(dut)
    count = 300
    frames = [frame(payload=458, seed=n % 7) for n in range(count)]
    for data in frames:
        bench.net_in.send_nowait(stream(data))
    delay = []

    async def function():
        while True:
            got = await bench.host_out.recv()
            delay.append(got)
            await bench.host_in.send(stream(padded(got.tdata)))

    # Each frame takes 16 beats of 2.56 ns: 240 of them are 10 µs.
    await cycles(dut.clk, 240 * 16)
    cocotb.start_soon(function())
    for data in frames:
        assert bytes((await bench.net_out.recv()).tdata) == data
    assert in_a_row(notes["s_axis_net"])
    assert all(is_sliced(bytes(got.tdata)) for got in delay)
    assert len({token_of(bytes(got.tdata)) for got in delay}) == count
    assert await bench.counters() == {"sliced": count, "spliced": count}
