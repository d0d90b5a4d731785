"""Resets and writes to registers at every moment of a packet."""

import cocotb
from bench import Bench, cycles, frame, is_sliced, padded, stream, token_of


@cocotb.test(timeout_time=400, timeout_unit="us")
async def reset_at_every_cycle_of_a_packet(dut):
    """Wherever a reset cuts a slice or a splice, the next packets pass, no old token brings a payload, and no
    generation comes again."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    seen = set()
    # A reset of one cycle is one, too.
    for cycle, length in ((cycle, length) for cycle in range(0, 24) for length in (1, 3)):
        old = await bench.slice(frame(payload=300, seed=cycle))
        assert token_of(old) not in seen
        seen.add(token_of(old))
        bench.net_in.send_nowait(stream(frame(payload=500)))
        bench.host_in.send_nowait(stream(padded(old)))
        await cycles(dut.clk, cycle + 1)
        dut.rst.value = 1
        for end in (bench.net_in, bench.host_in):
            end.clear()
        await cycles(dut.clk, length)
        dut.rst.value = 0
        # The rest of a frame that was cut sticks to the one behind it.
        for end in (bench.net_in, bench.host_in):
            await end.send(stream(frame(payload=20)))
        await cycles(dut.clk, 100)
        for end in (bench.host_out, bench.net_out):
            end.clear()
        assert await bench.read("status") & 0x1FFFF == 0
        assert await bench.splice(padded(old)) is None, cycle
        fresh = await bench.slice(frame(payload=250, seed=99))
        assert token_of(fresh) not in seen, cycle
        seen.add(token_of(fresh))
        assert await bench.splice(padded(fresh)) == frame(payload=250, seed=99), cycle


@cocotb.test(timeout_time=400, timeout_unit="us")
async def registers_written_at_any_moment(dut):
    """Threshold, TTL, MTU, patience, policy, table reset and key change while both ways are busy: nothing
    hangs, nothing gets another's payload."""
    bench = Bench(dut)
    await bench.start(threshold=120)
    frames = {}

    async def traffic():
        for number in range(150):
            body = number.to_bytes(4, "big") * 60
            whole = frame(body=body, seed=number)
            frames[whole] = number
            await bench.net_in.send(stream(whole))
            got = bytes((await bench.host_out.recv()).tdata)
            await bench.host_in.send(stream(padded(got)))

    task = cocotb.start_soon(traffic())
    number = 0
    while not task.done():
        number += 1
        name, value = (("threshold", 100 + number % 300), ("ttl", 1 + number % 3), ("mtu", 68 + 20 * (number % 40)), ("patience", number % 50),
                       ("marked", number % 62), ("control", 3 | (number % 3 == 0) << 3), ("mtu", 1500))[number % 7]
        assert await bench.write(name, value) == 0
        if number % 40 == 0:
            await bench.write("control", 7)
        await cycles(dut.clk, number % 13)
    await bench.settle(300)
    left = 0
    while not bench.net_out.empty():
        data = bytes(bench.net_out.recv_nowait().tdata)
        assert data in frames, "another's payload, or a part"
        left += 1
    assert left > 40
    await bench.write("control", 3)
    await bench.write("threshold", 120)
    await bench.write("mtu", 1500)
    while not await bench.read("status") >> 31:
        await cycles(dut.clk, 8)
    await cycles(dut.clk, 200)
    sliced = await bench.slice(frame(payload=555))
    assert is_sliced(sliced) and await bench.splice(padded(sliced)) == frame(payload=555)
