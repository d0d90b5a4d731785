"""A function that does anything: drops, holds, repeats, forges, cuts, exchanges bytes. No packet leaves with
another's payload."""

import random

import cocotb
from bench import Bench, cycles, frame, is_bad, is_sliced, offsets, padded, stream, token_of, with_token


@cocotb.test(timeout_time=2000, timeout_unit="us")
@cocotb.parametrize(seed=[1, 2])
async def chaos(dut, seed):
    rng = random.Random(seed)
    bench = Bench(dut)
    await bench.start(threshold=100, ttl=2, patience=40)
    for end, share in ((bench.net_in, 0.2), (bench.host_in, 0.3), (bench.host_out, 0.2), (bench.net_out, 0.3)):
        end.set_pause_generator(iter(lambda share=share: rng.random() < share, None))
    # A payload says whose it is in every eight bytes, and its ports say whose the headers are.
    bodies, held, leaving, left = {}, [], {}, 0

    def make(number, size):
        data = bytearray(frame(payload=size, tcp=number % 3 == 0, seed=number, body=number.to_bytes(8, "big") * (size // 8)))
        _, l4, _, _, _ = offsets(data)
        data[l4 : l4 + 4] = number.to_bytes(4, "big")
        return bytes(data)

    async def sink():
        nonlocal left
        while True:
            got = await bench.net_out.recv()
            data = bytes(got.tdata)
            # Less than headers is no packet any more, and has no payload.
            if is_bad(got) or len(data) < 42:
                continue
            _, l4, end, _, kind = offsets(data)
            number = int.from_bytes(data[l4 : l4 + 4], "big")
            assert len(data) >= end, "cut off"
            at = l4 + (20 if kind == 6 else 8)
            body = data[at:end]
            assert body in (number.to_bytes(8, "big") * (len(body) // 8), b""), "another's payload"
            assert number in bodies and len(body) == bodies[number], "not all of it"
            leaving[number] = leaving.get(number, 0) + 1
            left += len(body) > 20

    cocotb.start_soon(sink())
    tokens = []
    for number in range(1, 260):
        size = rng.choice([0, 24, 104, 200, 400])
        bodies[number] = size
        data = make(number, size)
        bad = rng.random() < 0.05
        if rng.random() < 0.05:
            data = data[: rng.randrange(60, len(data))] if len(data) > 110 else data
        await bench.net_in.send(stream(data, bad))
        await cycles(dut.clk, rng.choice([1, 10, 60]))
        while not bench.host_out.empty():
            got = bench.host_out.recv_nowait()
            data = bytes(got.tdata)
            if is_bad(got) or len(data) < 42:
                continue
            held.append(data)
            if is_sliced(data):
                tokens.append(token_of(data))
        for _ in range(len(held)):
            if rng.random() < 0.5:
                break
            data = held.pop(rng.randrange(len(held)))
            sliced = is_sliced(data)
            if not sliced and len(data) < offsets(data)[2]:
                continue
            what = rng.random()
            if what < 0.1:
                continue
            if what < 0.2:
                held.append(data)
            elif what < 0.3 and sliced:
                token = int.from_bytes(token_of(data), "big") ^ 1 << rng.randrange(64)
                data = with_token(data, token.to_bytes(8, "big"))
            elif what < 0.35 and sliced:
                data = data[: rng.randrange(20, len(data))]
            elif what < 0.4 and sliced:
                data = with_token(data, rng.randbytes(8))
            await bench.host_in.send(stream(padded(data) if len(data) > 48 else data, rng.random() < 0.05))
    await bench.settle(500)
    counters = await bench.counters()
    dut._log.info("%s", counters)
    assert left > 40
    for name in ("spliced", "stale", "forged", "expired", "full", "damaged", "mangled", "late"):
        assert counters.get(name), f"{name} never happened"
