#!/usr/bin/env python3
"""Draws the book's pictures of the hardware: `pictures.py FOLDER`. The block diagram, and waveforms from a
simulation."""

import json
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
STYLE = (
    "<style>text{font:13px sans-serif;fill:#222}.n{font:12px monospace}.s{font-size:11px;fill:#666}"
    ".b{fill:#eef3f8;stroke:#456;stroke-width:1.2}.m{fill:#fdf3e0;stroke:#a72;stroke-width:1.2}"
    ".w{fill:none;stroke:#246;stroke-width:1.6}.a{fill:none;stroke:#456;stroke-width:1.4;marker-end:url(#h)}"
    ".g{stroke:#ddd;stroke-width:1}.d{fill:#2a6;fill-opacity:.12}.l{fill:#2a6;stroke:none;font-weight:bold}</style>"
    '<defs><marker id="h" markerWidth="8" markerHeight="8" refX="7" refY="3" orient="auto">'
    '<path d="M0,0 L7,3 L0,6 z" fill="#456"/></marker></defs>'
)


def picture(width, height, parts, title):
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img">'
        f'<title>{title}</title><rect width="{width}" height="{height}" fill="#fff"/>{STYLE}{"".join(parts)}</svg>\n'
    )


def box(x, y, w, h, lines, kind="b"):
    text = ""
    for n, line in enumerate(lines):
        at = y + h / 2 + 5 + 16 * (n - (len(lines) - 1) / 2)
        text += label(x + w / 2, at, line, "s" if n else "")
    return f'<rect class="{kind}" x="{x}" y="{y}" width="{w}" height="{h}" rx="4"/>{text}'


def arrow(*points):
    return '<path class="a" d="M' + " L".join(f"{x},{y}" for x, y in points) + '"/>'


def label(x, y, text, kind="s", anchor="middle"):
    return f'<text x="{x}" y="{y}" class="{kind}" text-anchor="{anchor}">{text}</text>'


def blocks():
    parts = [
        box(90, 40, 130, 60, ["two registers", "IP header read"]), box(260, 40, 160, 60, ["transport header", "decision, parts of the sum"]),
        box(460, 40, 140, 60, ["headers + token", "sum, changed fields"]), box(640, 40, 90, 60, ["output", "register"]),
        box(90, 300, 130, 60, ["queue of 3 beats", "IP header read"]), box(260, 300, 160, 60, ["transport header", "token, repair"]),
        box(460, 300, 140, 60, ["headers | payload", "moved by bytes"]), box(640, 300, 90, 60, ["output", "register"]),
        box(90, 165, 130, 70, ["token maker", "AES-128, 12 cycles"], "m"), box(260, 165, 160, 70, ["metadata table", "N entries"], "m"),
        box(460, 165, 140, 70, ["payload memory", "N x 47 x 256 bits"], "m"), box(640, 165, 90, 70, ["registers", "AXI4-Lite", "counters"], "m"),
    ]
    for y in (70, 330):
        parts += [arrow((20, y), (90, y)), arrow((220, y), (260, y)), arrow((420, y), (460, y)), arrow((600, y), (640, y)), arrow((730, y), (800, y))]
    parts += [
        label(50, 60, "network"), label(770, 60, "functions"), label(50, 320, "functions"), label(770, 320, "network"),
        label(410, 25, "slice: 3 cycles", "l"), label(410, 385, "splice: 2 cycles", "l"),
        arrow((330, 100), (330, 165)), label(336, 137, "entry, record", anchor="start"),
        arrow((530, 100), (530, 165)), label(536, 137, "payload", anchor="start"),
        arrow((330, 300), (330, 235)), label(336, 272, "token", anchor="start"), arrow((400, 235), (400, 300)),
        label(406, 272, "record", anchor="start"), arrow((530, 235), (530, 300)), label(536, 272, "rows", anchor="start"),
        arrow((220, 200), (260, 200)), label(240, 192, "tag"),
    ]
    return picture(820, 400, parts, "The block: slice pipeline above, splice pipeline below, table and memory between")


def waves(title, notes):
    """Signals by cycle; the cycles from the first beat in to the first beat out are shaded."""
    cycles = len(next(iter(notes.values())))
    left, step, height = 190, 34, 34
    parts = [label(left, 20, title, "", "start")]
    bottom = 50 + height * len(notes)
    came, left_at = (next(values for name, values in notes.items() if name.startswith(side) and name.endswith("_tvalid")).index(1) for side in "sm")
    parts.append(f'<rect class="d" x="{left + came * step}" y="34" width="{(left_at - came) * step}" height="{bottom - 34}"/>')
    parts.append(label(left + (came + left_at) * step / 2, bottom + 12, f"{left_at - came} cycles", "l"))
    for n in range(cycles + 1):
        parts.append(f'<line class="g" x1="{left + n * step}" y1="34" x2="{left + n * step}" y2="{bottom}"/>')
        if n < cycles:
            parts.append(label(left + n * step + step / 2, 45, n))
    for row, (name, values) in enumerate(notes.items()):
        low, high = 50 + height * row + 26, 50 + height * row + 6
        parts.append(label(left - 10, low - 6, name.replace(".", " "), "n", "end"))
        if max(values) > 1:
            enabled = notes[name + ("_wen" if name + "_wen" in notes else "_ren")]
            for n, value in enumerate(values):
                if not enabled[n]:
                    continue
                parts.append(f'<rect class="w" x="{left + n * step + 2}" y="{high}" width="{step - 4}" height="{low - high}"/>')
                parts.append(label(left + n * step + step / 2, low - 6, value))
            continue
        # `tlast` counts with `tvalid` alone.
        if name.endswith("_tlast"):
            values = [a and b for a, b in zip(values, notes[name.replace("_tlast", "_tvalid")])]
        path = [f"M{left},{low if not values[0] else high}"]
        for n, value in enumerate(values):
            y = high if value else low
            path.append(f"L{left + n * step},{y} L{left + (n + 1) * step},{y}")
        parts.append(f'<path class="w" d="{" ".join(path)}"/>')
    return picture(left + cycles * step + 20, bottom + 28, parts, title)


def main():
    into = Path(sys.argv[1])
    dump = HERE / "build/waves.json"
    dump.parent.mkdir(exist_ok=True)
    subprocess.run([sys.executable, HERE / "tb/run.py", "test_picture"], check=True, env={**os.environ, "PICTURE_DUMP": str(dump)})
    notes = json.loads(dump.read_text())
    # A cycle before the first beat and one after the last event are enough.
    for side in notes:
        first = next(iter(notes[side].values())).index(1)
        last = max(n for name, values in notes[side].items() if not name.endswith((".row", "_tlast")) for n, value in enumerate(values) if value)
        shown = slice(max(first - 1, 0), last + 2)
        notes[side] = {name: values[shown] for name, values in notes[side].items()}
    files = {
        "hardware-blocks.svg": blocks(),
        "hardware-slice.svg": waves("Slice: a frame of 242 bytes, 8 beats of 256 bits", notes["in"]),
        "hardware-splice.svg": waves("Splice: its headers and token come back, 2 beats", notes["out"]),
    }
    for name, text in files.items():
        scratch = into / (name + ".new")
        scratch.write_text(text)
        scratch.rename(into / name)


if __name__ == "__main__":
    main()
