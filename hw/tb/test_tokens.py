"""The tokens of two entries, one after the other, until the generation of 8 bits has gone round twice: `tests/vectors/tokens.txt`."""

from pathlib import Path

import cocotb
from bench import Bench, frame, token_of

VECTORS = Path(__file__).resolve().parents[2] / "tests/vectors/tokens.txt"


@cocotb.test(timeout_time=400, timeout_unit="us")
async def generations_go_round(dut):
    bench = Bench(dut)
    await bench.start(threshold=120)
    whole = frame(payload=100)
    first = None
    for number, line in enumerate(VECTORS.read_text().splitlines()):
        sliced = await bench.slice(whole)
        assert token_of(sliced).hex() == line.split()[1], number
        first = first or sliced
        assert await bench.splice(sliced) == whole
        if number == 300:
            assert await bench.splice(first) is None
    assert (await bench.counters())["spliced"] == 530
