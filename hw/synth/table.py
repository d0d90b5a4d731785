#!/usr/bin/env python3
"""Our figures beside the paper's, from what synth.sh left: `table.py FOLDER ENTRIES WIDTH`. Says which can be
compared."""

import json
import re
import sys
from pathlib import Path

PREAMBLE_AND_GAP = 20
FCS = 4


def load(path):
    try:
        modules = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return modules.get("design") or next(iter(modules["modules"].values()))


def line_rate(width, period_ns, gbps, fcs):
    """Frame lengths on the wire (FCS included) from 64 to 1518 bytes that can't follow each other without
    end, one beat a cycle."""
    beat = width // 8
    short = []
    for size in range(64, 1519):
        carried = size if fcs else size - FCS
        cycles = -(-carried // beat)
        if cycles * period_ns > (size + PREAMBLE_AND_GAP) * 8 / gbps + 1e-9:
            short.append(size)
    return short


def ranges(numbers):
    out = []
    for n in numbers:
        if out and out[-1][1] == n - 1:
            out[-1][1] = n
        else:
            out.append([n, n])
    return ", ".join(f"{a}-{b}" if a != b else f"{a}" for a, b in out[:4]) + (" and so on" if len(out) > 4 else "")


def main():
    folder, entries, width = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    beat = width // 8
    rows = (1454 + beat - 2 + beat - 1) // beat
    table = [("", "here", "the paper", "comparable")]
    table.append(("bits a beat", width, 256, "yes"))
    table.append(("cycles added, in / out", "3 / 2 (more out for long headers)", "3 / 2", "yes: measured by the tests"))
    memory = entries * rows * beat
    table.append((f"payload memory, {entries} entries", f"{memory / 1024:.0f} KiB ({rows} rows each)", "355 KB (250 x 1454 B)", "at 250: yes, rows of a beat"))
    arrays = load(folder / "memory.json")
    if arrays:
        table.append(("look-up memory", f"{arrays['num_memory_bits'] / 8192:.1f} KiB in {arrays['num_memories']} arrays", "-", "no figure there"))
    gates = load(folder / "gates.json")
    if gates:
        kinds = gates["num_cells_by_type"]
        flops = sum(n for kind, n in kinds.items() if "DFF" in kind)
        others = sum(n for kind, n in kinds.items() if kind.startswith("$_")) - flops
        table.append(("simple gates, not optimised; flip-flops", f"{others:,}; {flops:,}", "-", "no figure there"))
        depth = re.search(r"length=(\d+)", (folder / "depth.txt").read_text())
        table.append(("longest path between registers or memories", f"{depth.group(1)} gates" if depth else "?", "-", "no figure there"))
    for name, parts in (("ecp5", "LUT4 TRELLIS_FF TRELLIS_DPR16X4 CCU2C"), ("xilinx", "LUT FD RAMB RAM")):
        cells = load(folder / f"{name}.json")
        if cells:
            kinds = cells["num_cells_by_type"]
            found = [f"{part} {sum(n for kind, n in kinds.items() if kind.startswith(part)):,}" for part in parts.split()]
            table.append((f"cells, {name}", ", ".join(found), "-", "no figure there"))
    liberty = folder / "liberty.txt"
    if liberty.exists():
        area = re.search(r"Chip area .*: ([\d.]+)", liberty.read_text())
        table.append(("area without memory", f"{area.group(1) if area else '?'} (units of the library)", "6.4 mm2 at 15 nm", "no: another library, and the memory is not in it"))
        for period in ("2.56", "2.26"):
            timing = folder / f"timing_{period}.txt"
            if timing.exists():
                report = timing.read_text()
                slacks = [float(slack) for slack in re.findall(r"worst slack (-?[\d.]+)", report)]
                longest = [f"{float(period) - slack:.3f} ns" for slack in slacks]
                said = f"{longest[0]} ({'met' if slacks[0] >= 0 else 'missed'})" + (f"; {longest[1]} with wire loads" if longest[1:] else "")
                table.append((f"longest path, clock of {period} ns", said, "2.56 ns (about 400 MHz) at 15 nm", "no: another library; not laid out"))
                if drawn := re.search(r"^Total\s+\S+\s+\S+\s+\S+\s+(\S+)", report, re.M):
                    table.append(("power without memory, a fifth of nets change a cycle", f"{float(drawn.group(1)):.3f} W", "2.4 W", "no: another library, memory not in it"))
                elif "Switching" in report:
                    table.append(("power without memory", "not summed up: OpenSTA has no number for some cell", "2.4 W", "no"))
    else:
        table.append(("area", "not without a library", "6.4 mm2 at 15 nm", "no"))
        table.append(("clock", "not without a library", "400 MHz", "no"))
        table.append(("power", "not without a library", "2.4 W", "no"))
    widths = [max(len(str(row[n])) for row in table) for n in range(4)]
    for row in table:
        print("  ".join(str(cell).ljust(size) for cell, size in zip(row, widths)).rstrip())
    print()
    print("Frames (with FCS, on the wire) that can't follow each other without end, one beat a cycle, and the share of the rate that the worst has:")
    for bits, period, gbps in ((256, 2.56, 100), (256, 2.5, 100), (256, 2.34, 100), (256, 2.26, 100), (256, 1.13, 200), (512, 2.56, 200), (512, 2.26, 200), (512, 1.73, 200)):
        for fcs in (True, False):
            found = line_rate(bits, period, gbps, fcs)
            carried = "FCS in the stream" if fcs else "FCS taken off"
            worst = min([1] + [(size + PREAMBLE_AND_GAP) * 8 / gbps / (-(-(size if fcs else size - FCS) * 8 // bits) * period) for size in found])
            print(f"  {bits} bits, {period} ns, {gbps} Gb/s, {carried}: {len(found)} lengths{': ' + ranges(found) + f'; {worst:.1%}' if found else ''}")


if __name__ == "__main__":
    main()
