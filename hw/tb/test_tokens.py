"""The tokens of two entries, one after the other, until the generation of 8 bits has gone round twice:
`tests/vectors/tokens.txt`."""

from pathlib import Path

import cocotb
from bench import Bench, cycles, frame, stream, token_of

VECTORS = Path(__file__).resolve().parents[2] / "tests/vectors/tokens.txt"


@cocotb.test(timeout_time=400, timeout_unit="us")
async def generations_go_round(dut):
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=100)
    first = None
    for number, line in enumerate(VECTORS.read_text().splitlines()):
        # Each frame comes as soon as the one before it has left whole, and the next tag of its entry is
        # there.
        bench.net_in.send_nowait(stream(whole))
        sliced = bytes((await bench.host_out.recv()).tdata)
        assert token_of(sliced).hex() == line.split()[1], number
        first = first or sliced
        bench.host_in.send_nowait(stream(sliced))
        assert bytes((await bench.net_out.recv()).tdata) == whole
        await cycles(dut.clk, 8)
        if number == 300:
            assert await bench.splice(first) is None
    await bench.settle()
    assert bench.host_out.empty() and bench.net_out.empty(), "more came out than went in"
    assert (await bench.counters())["spliced"] == 530
