"""100 Gb/s, exactly: the beats that frames of each length take, counted at all four ports, and what follows
for each clock.

A frame of `size` bytes (with FCS) has a wire time of 0.08 ns x (size + 20) at 100 Gb/s; it keeps up if its
beats take no longer. The tests count the beats of frames back to back, and hold the book's table against what
was counted.
"""

import re
import sys
from pathlib import Path

import cocotb
from bench import Bench, frame, stream
from test_streams import in_a_row, watch_all

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "hw/synth"))
from table import FCS, line_rate, ranges  # noqa: E402

# Shortest and longest frames, and all that a last beat can be in between.
SIZES = [*range(60, 141), *range(1487, 1519)]


async def beats_by_size(dut, bench):
    """Beats that frames of each size take on the way in and out, none with a cycle to spare."""
    notes, counted = watch_all(dut), {}
    for size in SIZES:
        for note in notes.values():
            note.clear()
        # A frame of 60 bytes has 18 bytes in UDP over IPv4.
        data = frame(payload=size - 42, seed=size)
        assert len(data) == size
        for _ in range(3):
            bench.net_in.send_nowait(stream(data))
            bench.host_in.send_nowait(stream(data))
        for _ in range(3):
            assert bytes((await bench.host_out.recv()).tdata) == data
            assert bytes((await bench.net_out.recv()).tdata) == data
        for name, note in notes.items():
            assert in_a_row(note), f"{size} bytes: a bubble at {name}"
            assert len(note) % 3 == 0, f"{size} bytes: {len(note)} beats of three frames at {name}"
        found = {len(note) // 3 for note in notes.values()}
        assert len(found) == 1, f"{size} bytes: {found} beats"
        counted[size] = found.pop()
    return counted


@cocotb.test(timeout_time=200, timeout_unit="us")
async def beats_of_each_length(dut):
    """A frame takes the beats that its bytes fill, the last one counted whole, and no other cycle; so 100
    Gb/s hold for these lengths."""
    bench = Bench(dut)
    # Switched off, so that the same frame goes both ways; `line_rate_without_a_bubble` has sliced ones.
    await bench.start(enable=0)
    width = len(dut.s_axis_net_tdata)
    counted = await beats_by_size(dut, bench)
    assert counted == {size: -(-size // (width // 8)) for size in SIZES}
    for period, fcs in ((2.56, True), (2.56, False), (2.26, True), (2.26, False)):
        carried = {size: size - (0 if fcs else FCS) for size in range(64, 1519)}
        late = [size for size, there in carried.items() if there in counted and counted[there] * period > 0.08 * (size + 20) + 1e-9]
        expected = line_rate(width, period, 100, fcs)
        assert late == [size for size in expected if carried[size] in counted], (period, fcs)
        print(f"{width} bits, {period} ns, FCS {'in the stream' if fcs else 'taken off'}: late {ranges(expected) or 'none'}", flush=True)
    if width != 256:
        return
    # At 2.26 ns all keep up; at 2.56 ns those whose last beat has 1 to 11 bytes don't (less the FCS: 1 to 7
    # of what is on the wire).
    assert line_rate(256, 2.26, 100, True) == []
    # At 2.34 ns all from 68 bytes on, and without the FCS in the stream all.
    assert line_rate(256, 2.34, 100, True) == [65, 66, 67] and line_rate(256, 2.34, 100, False) == []
    assert line_rate(256, 2.56, 100, True) == [size for size in range(64, 1519) if 1 <= size % 32 <= 11]
    assert line_rate(256, 2.56, 100, False) == [size for size in range(64, 1519) if 1 <= (size - FCS) % 32 <= 7]
    # The book's table: length, beats, the longest clock that keeps up, and what that means at two clocks.
    rows = re.findall(r"^\| (\d+)(?: to (\d+))? \| (\d+) \| ([\d.]+) ns( or more)? \| (yes|no) \| (yes|no) \|$", (ROOT / "book/src/hardware.md").read_text(), re.M)
    assert len(rows) >= 5, "the book's table of line rate has gone"
    for first, last, beats, needs, _, slow, fast in rows:
        for size in (int(first), int(last or first)):
            assert -(-size // 32) == int(beats) and counted.get(size, int(beats)) == int(beats), size
        need = 0.08 * (int(first) + 20) / int(beats)
        assert abs(need - float(needs)) < 0.005, (first, need)
        assert (slow, fast) == tuple("yes" if need >= period - 1e-9 else "no" for period in (2.56, 2.26)), first
