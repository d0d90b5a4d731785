#!/usr/bin/env python3
"""Draws which crate of the workspace uses which, from what Cargo knows: book/src/img/house.svg.

usage: ci/house.py [--check]

A crate stands above those that it uses. An arrow that follows from others is left out: who uses `reframe` has
`core` by it. With --check nothing is written; exit status 1 says that the committed picture is another than
the one that would be drawn.
"""

import json
import subprocess
import sys
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "book" / "src" / "img" / "house.svg"

BOX_WIDTH, BOX_HEIGHT, GAP, FLOOR, MARGIN = 216, 78, 26, 140, 24
# Where an arrow passes a floor on its way to a lower one.
PASS_WIDTH = 10


def crates():
    """Of each crate, by its folder: what it is, and the folders of those that it uses itself, tests and
    benchmarks aside."""
    command = ["cargo", "metadata", "--no-deps", "--format-version", "1", "--locked"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    packages = json.loads(done.stdout)["packages"]
    folder = {p["name"]: Path(p["manifest_path"]).parent.name for p in packages}
    return {
        folder[p["name"]]: (p["description"] or "", sorted({folder[d["name"]] for d in p["dependencies"]
                                                          if d["kind"] is None and d["name"] in folder}))
        for p in packages
    }


def reached(uses, start):
    """All that a crate has by those that it uses."""
    seen, todo = set(), list(uses[start])
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            todo.extend(uses[one])
    return seen


def without_detours(uses):
    """The arrows that don't follow from others."""
    return {one: [to for to in all_of if not any(to in reached(uses, other) for other in all_of)]
            for one, all_of in uses.items()}


def floors(uses):
    """The floor of each crate, from 0 below: right under the lowest one that uses it, so that arrows are
    short."""
    height = {}

    def highest(one):
        if one not in height:
            height[one] = 1 + max((highest(to) for to in uses[one]), default=-1)
        return height[one]

    for one in uses:
        highest(one)
    users = {one: [other for other in uses if one in uses[other]] for one in uses}
    for one in sorted(uses, key=lambda one: -height[one]):
        height[one] = min((height[user] for user in users[one]), default=height[one] + 1) - 1
    return height


def with_passes(arrows, floor):
    """Rows of names from the top floor down, and the steps between neighbouring rows; an arrow over several
    floors gets a place on each of them, a pair of names."""
    rows = [sorted(one for one in floor if floor[one] == at) for at in range(max(floor.values()), -1, -1)]
    top, steps = len(rows) - 1, []
    for one in sorted(arrows):
        for to in arrows[one]:
            before = one
            for at in range(floor[one] - 1, floor[to], -1):
                rows[top - at].append((one, to))
                steps.append((before, (one, to)))
                before = (one, to)
            steps.append((before, to))
    # A place on several floors has a name of its own on each.
    return rows, steps


def placed(rows, steps):
    """The middle of each box and pass, rows put into an order with few crossings."""
    near = {}
    for row, (upper, lower) in ((r, s) for r in range(len(rows) - 1) for s in steps):
        if upper in rows[row] and lower in rows[row + 1]:
            near.setdefault((row, upper), []).append((row + 1, lower))
            near.setdefault((row + 1, lower), []).append((row, upper))
    width = {key: PASS_WIDTH if isinstance(key[1], tuple) else BOX_WIDTH
             for key in ((r, name) for r, row in enumerate(rows) for name in row)}
    middle = {(r, name): i * (BOX_WIDTH + GAP) for r, row in enumerate(rows) for i, name in enumerate(row)}

    def settle(row, wanted):
        """Puts a row's boxes where they want to be, or as near as their neighbours let them."""
        row.sort(key=lambda key: (wanted[key], str(key)))
        groups = []
        for key in row:
            # Boxes that touch move together, to the mean of what they want.
            groups.append([[key], [wanted[key]], 0.0])
            while True:
                keys, wants, _ = groups[-1]
                offsets, at = [], 0.0
                for i, k in enumerate(keys):
                    at += (width[keys[i - 1]] + width[k]) / 2 + GAP if i else 0.0
                    offsets.append(at)
                start = sum(w - o for w, o in zip(wants, offsets)) / len(keys)
                groups[-1][2] = start
                for k, o in zip(keys, offsets):
                    middle[k] = start + o
                if len(groups) < 2:
                    break
                last = groups[-2][0][-1]
                if middle[last] + (width[last] + width[keys[0]]) / 2 + GAP <= middle[keys[0]]:
                    break
                groups[-2][0] += keys
                groups[-2][1] += wants
                groups.pop()

    for turn in range(24):
        order = range(len(rows)) if turn % 2 == 0 else range(len(rows) - 1, -1, -1)
        for r in order:
            keys = [(r, name) for name in rows[r]]
            wanted = {}
            for key in keys:
                there = [middle[other] for other in near.get(key, []) if turn >= 20 or (other[0] < r) == (turn % 2 == 0)]
                wanted[key] = sum(there) / len(there) if there else middle[key]
            settle(keys, wanted)
    return middle


def draw():
    """The picture as text."""
    house = crates()
    uses = {one: all_of for one, (_, all_of) in house.items()}
    arrows = without_detours(uses)
    floor = floors(uses)
    rows, steps = with_passes(arrows, floor)
    middle = placed(rows, steps)
    left = min(middle[key] - BOX_WIDTH / 2 for key in middle)
    right = max(middle[key] + BOX_WIDTH / 2 for key in middle)
    total = right - left + 2 * MARGIN
    height = (len(rows) - 1) * FLOOR + BOX_HEIGHT + 2 * MARGIN
    x = {key: round(at - left + MARGIN) for key, at in middle.items()}
    y = [MARGIN + r * FLOOR for r in range(len(rows))]
    words = "; ".join(f"{one} uses {', '.join(all_of)}" for one, all_of in sorted(uses.items()) if all_of)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {round(total)} {height}" role="img" aria-labelledby="t d">',
        '<title id="t">The crates of Slipstream, each above those that it uses</title>',
        f'<desc id="d">{escape(words)}.</desc>',
        "<style>text{font-family:Helvetica,Arial,sans-serif;fill:#333;text-anchor:middle}.n{font-size:16px;font-weight:bold}"
        ".w{font-size:11px;fill:#555}.a{fill:none;stroke:#7a8aa0;stroke-width:1.5}</style>",
        '<defs><marker id="h" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#7a8aa0"/></marker></defs>',
        f'<rect x="1" y="1" width="{round(total) - 2}" height="{height - 2}" rx="10" fill="#fff" stroke="#ccc"/>',
    ]
    for one in sorted(arrows):
        for to in arrows[one]:
            out.append(arrow(one, to, rows, floor, arrows, x, y))
    for r, row in enumerate(rows):
        for name in row:
            if isinstance(name, str):
                out.extend(box(name, house[name][0], x[r, name], y[r]))
    return "\n".join([*out, "</svg>", ""])


def ends(at, name, others, x):
    """Where the arrows at one side of a box meet it: spread out, in the order of their other ends."""
    order = sorted(others, key=lambda key: (x[key], str(key)))
    return {key: x[at, name] + round((i - (len(order) - 1) / 2) * min(26, (BOX_WIDTH - 30) / max(1, len(order))))
            for i, key in enumerate(order)}


def arrow(one, to, rows, floor, arrows, x, y):
    """From a crate to one that it uses, by its passes."""
    top = len(rows) - 1
    first, last = top - floor[one], top - floor[to]

    def beside(name, other, row, step):
        """The neighbour of a box on the way to another one."""
        return (row + step, other if top - floor[other] == row + step else (name, other) if step > 0 else (other, name))

    outs = ends(first, one, [beside(one, other, first, 1) for other in arrows[one]], x)
    ins = ends(last, to, [beside(to, user, last, -1) for user in arrows if to in arrows[user]], x)
    at, path = (outs[beside(one, to, first, 1)], y[first] + BOX_HEIGHT), ""
    for row in range(first + 1, last + 1):
        arrived = row == last
        there = (ins[beside(to, one, last, -1)] if arrived else x[row, (one, to)], y[row] - (1 if arrived else 0))
        bend = (there[1] - at[1]) // 2
        path += f"C{at[0]} {at[1] + bend} {there[0]} {there[1] - bend} {there[0]} {there[1]}"
        at = there
        if not arrived:
            path += f"V{y[row] + BOX_HEIGHT}"
            at = (there[0], y[row] + BOX_HEIGHT)
    start = outs[beside(one, to, first, 1)]
    return f'<path class="a" d="M{start} {y[first] + BOX_HEIGHT}{path}" marker-end="url(#h)"/>'


def box(name, what, x, y):
    """A crate, with what it is."""
    lines = textwrap.wrap(what, 34)
    if len(lines) > 3:
        lines = [*lines[:2], f"{lines[2][:33].rstrip(' ,')}…"]
    yield (f'<rect x="{x - BOX_WIDTH // 2}" y="{y}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="#eef3f9" '
           'stroke="#2f6db5"/>')
    yield f'<text x="{x}" y="{y + 22}" class="n">{escape(name)}</text>'
    for i, line in enumerate(lines):
        yield f'<text x="{x}" y="{y + 40 + 14 * i}" class="w">{escape(line)}</text>'


def write():
    """Draws the picture anew."""
    PICTURE.write_text(draw(), encoding="utf-8")


def wrong():
    """What is wrong with the committed picture, if anything."""
    if PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == draw():
        return None
    return f"{PICTURE.relative_to(ROOT)} does not show the crates as they are: ci/house.py draws it anew"


def main():
    if "--check" not in sys.argv:
        return write()
    return wrong()


if __name__ == "__main__":
    sys.exit(main())
