"""What the software makes of each frame, the hardware makes too, bit for bit: `tests/vectors/slice.txt`."""

from pathlib import Path

import cocotb
from bench import Bench

VECTORS = Path(__file__).resolve().parents[2] / "tests/vectors/slice.txt"


def bytes_of(text):
    if text == "-":
        return None
    head, _, rest = text.partition("~")
    data = bytearray.fromhex(head)
    if rest:
        seed, count = map(int, rest.split(","))
        data += bytes((31 * seed + 7 * i + i // 256) & 255 for i in range(count))
    return bytes(data)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def every_vector(dut):
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=2)
    expected = {}
    lines = VECTORS.read_text().splitlines()
    for number, line in enumerate(lines, 1):
        verb, came, result, leaves = line.split()
        got = await (bench.slice if verb == "slice" else bench.splice)(bytes_of(came))
        want = bytes_of(leaves)
        assert got == want, f"line {number}, {result}:\ncame {came}\ngot  {got and got.hex()}\nwant {want and want.hex()}"
        result = result.removeprefix("whole_")
        expected[result] = expected.get(result, 0) + 1
    counted = await bench.counters()
    counted.pop("expired")
    # A token whose tag is wrong and whose generation is old counts as stale here, as forged in the software,
    # which has time to make its tag.
    unknown = ("forged", "stale")
    assert sum(counted.pop(name, 0) for name in unknown) == sum(expected.pop(name, 0) for name in unknown)
    assert counted == expected, (counted, expected)
    dut._log.info("%d vectors", len(lines))
