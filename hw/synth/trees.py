#!/usr/bin/env python3
"""Buffers and sizes of cells in a mapped netlist: `trees.py NETLIST.json LIBERTY OUT.json`, both netlists as
Yosys writes them.

Yosys' ABC places buffers one behind the other where many inputs hang on one output: hundreds of inputs are
then twenty buffers away. Here they stand in trees. From the ends of all paths backwards, every net's sinks
are ordered by how long the rest of their path is; those with the shortest rest are put behind buffers first,
as in Huffman's tree. A cell gets the smallest size of its family that drives its load. Nothing else changes:
each input still has its driver, behind buffers, and each cell its function, which is checked.
"""

import json
import re
import sys
from collections import defaultdict
from pathlib import Path

# Shares of a pin's greatest load (`max_capacitance`) up to which a cell is used. All are tried: with small
# ones a cell is fast and a tree deep, and which is better depends on how many inputs hang on one output.
SHARES = (0.08, 0.1, 0.12, 0.15)


def parse(text):
    """Groups of a liberty file: (kind, name, attributes, groups within)."""
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.S).replace("\\\n", " ")
    token = re.compile(r'[\s;]*(?:([\w.]+)\s*\(([^()]*)\)\s*(\{|;)?|([\w.]+)\s*:\s*("[^"]*"|[^;\n}]+)\s*;?|(\}))')
    stack, at = [("", "", {}, [])], 0
    while found := token.match(text, at):
        at = found.end()
        call, inside, opens, name, value, closes = found.groups()
        if closes:
            group = stack.pop()
            stack[-1][3].append(group)
        elif call and opens == "{":
            stack.append((call, inside.strip().strip('"'), {}, []))
        elif call:
            stack[-1][2][call] = inside
        else:
            stack[-1][2][name] = value.strip().strip('"')
    return stack[0][3][0]


def numbers(text):
    return [float(n) for n in re.findall(r"[-+\d.eE]+", text)]


class Cell:
    """A cell of the library: areas, loads and a delay that is typical for it."""

    def __init__(self, name, attributes, groups):
        self.name, self.area = name, float(attributes.get("area", 0))
        pins = [group for group in groups if group[0] == "pin"]
        self.load = {pin[1]: float(pin[2].get("capacitance", 0)) for pin in pins if pin[2].get("direction") == "input"}
        outs = [pin for pin in pins if pin[2].get("direction") == "output"]
        self.outs = {pin[1]: float(pin[2].get("max_capacitance", 1e9)) for pin in outs}
        self.register = any(group[0] in ("ff", "latch") for group in groups)
        self.function = {pin[1]: pin[2].get("function", "") for pin in outs}
        self.family = (tuple(sorted(self.load)), tuple(sorted(self.function.items())), self.register,
                       tuple(sorted((g[0], *sorted(g[2].items())) for g in groups if g[0] in ("ff", "latch"))) if self.register else ())
        self.arcs = [self.arc(pin) for pin in outs]
        self.buffer = len(self.load) == 1 and len(outs) == 1 and not self.register and self.function[outs[0][1]].strip("() ") == next(iter(self.load))

    @staticmethod
    def arc(pin):
        """Loads and delays of the slowest arc to this pin, at a middling slope of its input."""
        slowest = ([0.0], [0.0])
        for timing in pin[3]:
            for table in timing[3] if timing[0] == "timing" else ():
                if table[0] in ("cell_rise", "cell_fall"):
                    rows = [numbers(row) for row in re.findall(r'"([^"]*)"', table[2].get("values", ""))]
                    loads = numbers(table[2].get("index_2", "0"))
                    if rows and len(loads) == len(rows[0]) and rows[len(rows) // 2][-1] > slowest[1][-1]:
                        slowest = (loads, rows[len(rows) // 2])
        return slowest

    def delay(self, load):
        """The slowest arc at this load, in the units of the library."""
        longest = 0.0
        for loads, delays in self.arcs:
            if len(loads) == 1:
                longest = max(longest, delays[0])
                continue
            n = next((n for n in range(1, len(loads)) if loads[n] >= load), len(loads) - 1)
            slope = (delays[n] - delays[n - 1]) / (loads[n] - loads[n - 1])
            longest = max(longest, delays[n - 1] + slope * (load - loads[n - 1]))
        return longest


def library(path):
    cells = {}
    for kind, name, attributes, groups in parse(Path(path).read_text())[3]:
        if kind == "cell" and attributes.get("dont_use") != "true":
            cells[name] = Cell(name, attributes, groups)
    return cells


class Netlist:
    """The top module: who drives each net, who hangs on it."""

    def __init__(self, design, cells):
        self.module = next(m for m in design["modules"].values() if m.get("attributes", {}).get("top"))
        self.cells, self.instances = cells, self.module["cells"]
        self.driver, self.sinks = {}, defaultdict(list)
        for name, cell in self.instances.items():
            known = cells.get(cell["type"])
            for port, bits in cell["connections"].items():
                out = port in known.outs if known else cell["port_directions"][port] == "output"
                for n, bit in enumerate(bits):
                    if isinstance(bit, int):
                        if out:
                            self.driver[bit] = (name, port)
                        else:
                            self.sinks[bit].append((name, port, n))
        for port, wires in self.module["ports"].items():
            for n, bit in enumerate(wires["bits"]):
                if wires["direction"] == "output" and isinstance(bit, int):
                    self.sinks[bit].append((None, port, n))
        self.next_net = 1 + max(max(self.driver, default=0), max(self.sinks, default=0))

    def kind(self, name):
        return self.cells.get(self.instances[name]["type"])

    def passes(self, name):
        """A path goes through this cell."""
        kind = self.kind(name)
        return kind is not None and not kind.register

    def backwards(self):
        """Nets, each behind all those that come later on a path."""
        left = {}
        ready = []
        for name in self.instances:
            if self.passes(name):
                nets = [bit for port in self.kind(name).outs for bit in self.instances[name]["connections"].get(port, []) if isinstance(bit, int)]
                left[name] = len(nets)
        for net in set(self.sinks) | set(self.driver):
            users = {name for name, _, _ in self.sinks[net] if name and self.passes(name)}
            left[net] = len(users)
            if not users:
                ready.append(net)
        waiting = defaultdict(set)
        for net in self.sinks:
            for name, _, _ in self.sinks[net]:
                if name and self.passes(name):
                    waiting[name].add(net)
        while ready:
            net = ready.pop()
            yield net
            name = self.driver.get(net, (None, None))[0]
            if name is None or not self.passes(name):
                continue
            left[name] -= 1
            if left[name] == 0:
                for before in waiting[name]:
                    left[before] -= 1
                    if left[before] == 0:
                        ready.append(before)


def place(netlist, share):
    """Places buffers; returns how many, and the longest path as far as the typical delays of cells tell."""
    cells, instances = netlist.cells, netlist.instances
    buffers = sorted((c for c in cells.values() if c.buffer), key=lambda c: max(c.outs.values()))
    families = defaultdict(list)
    for cell in cells.values():
        families[cell.family].append(cell)
    for sizes in families.values():
        sizes.sort(key=lambda c: (c.area, c.name))
    strongest = {family: max(max(c.outs.values(), default=0) for c in sizes) for family, sizes in families.items()}
    # Slow buffers (those for clocks) are left alone. A buffer of middling size is what a tree is made of.
    pace = {b.name: b.delay(share * max(b.outs.values())) for b in buffers}
    buffers = [b for b in buffers if pace[b.name] <= 1.1 * min(pace.values(), default=0.0)]
    if not buffers:
        sys.exit("no buffer in the library: none can be placed")
    middle = buffers[min(len(buffers) - 1, len(buffers) // 2)]
    span = share * max(middle.outs.values())
    tail, added, order = {}, 0, list(netlist.backwards())

    def load_of(sink):
        name, port, _ = sink
        if name is None:
            return 0.0
        kind = netlist.kind(name)
        return kind.load.get(port, 0.0) if kind else 0.0

    for net in order:
        items = sorted(((tail[sink[0]] if sink[0] and netlist.passes(sink[0]) else 0.0, load_of(sink), n, sink) for n, sink in enumerate(netlist.sinks[net])), key=lambda i: i[:3])
        name, port = netlist.driver.get(net, (None, None))
        kind = netlist.kind(name) if name else None
        # A port of the block is driven as by a buffer of middling size. A cell may grow to four times its
        # size.
        smallest = max(families[kind.family][0].outs.values()) if kind else span / share
        room = share * min(strongest[kind.family], 4 * smallest) if kind else span
        total = sum(item[1] for item in items)
        while total > room and len(items) > 1:
            group, load = [], 0.0
            while items and (not group or load + items[0][1] <= span):
                group.append(items.pop(0))
                load += group[-1][1]
            if len(group) == 1 and group[0][1] <= next(iter(middle.load.values())) * 1.01:
                break
            size = next((b for b in buffers if share * max(b.outs.values()) >= load), buffers[-1])
            source, behind = next(iter(size.load)), next(iter(size.outs))
            new, called = netlist.next_net, f"tree_{added}"
            netlist.next_net += 1
            added += 1
            instances[called] = dict(hide_name=0, type=size.name, parameters={}, attributes={}, port_directions={source: "input", behind: "output"},
                                     connections={source: [net], behind: [new]})
            for _, _, _, sink in group:
                where = instances[sink[0]]["connections"][sink[1]] if sink[0] else netlist.module["ports"][sink[1]]["bits"]
                where[sink[2]] = new
            tail[called] = max(item[0] for item in group) + size.delay(load)
            total += size.load[source] - load
            item = (tail[called], size.load[source], -added, (called, source, 0))
            at = next((n for n, other in enumerate(items) if other[0] > item[0]), len(items))
            items.insert(at, item)
        if kind:
            fitting = [c for c in families[kind.family] if share * c.outs[port] >= total and c.outs[port] >= kind.outs[port]]
            if fitting and total > share * kind.outs[port]:
                instances[name]["type"] = fitting[0].name
            elif total > share * kind.outs[port]:
                instances[name]["type"] = max(families[kind.family], key=lambda c: c.outs[port]).name
            rest = max((item[0] for item in items), default=0.0)
            tail[name] = max(tail.get(name, 0.0), rest + netlist.kind(name).delay(total))
    return added, max(tail.values(), default=0.0)


def roots(module, cells):
    """For every input of every cell, the driver behind all buffers; and how many cells of each family there
    are."""
    source = {}
    for name, cell in module["cells"].items():
        if name.startswith("tree_"):
            kind = cells[cell["type"]]
            source[cell["connections"][next(iter(kind.outs))][0]] = cell["connections"][next(iter(kind.load))][0]

    def root(bit):
        while bit in source:
            bit = source[bit]
        return bit

    found = {(name, port): [root(bit) for bit in bits]
             for name, cell in module["cells"].items() if not name.startswith("tree_") for port, bits in cell["connections"].items()}
    found.update({(None, port): [root(bit) for bit in wires["bits"]] for port, wires in module["ports"].items()})
    kinds = {name: cells[cell["type"]].family if cell["type"] in cells else cell["type"]
             for name, cell in module["cells"].items() if not name.startswith("tree_")}
    return found, kinds


def main():
    text, cells = Path(sys.argv[1]).read_text(), library(sys.argv[2])
    best = None
    for share in SHARES:
        design = json.loads(text)
        netlist = Netlist(design, cells)
        before = roots(netlist.module, cells)
        added, longest = place(netlist, share)
        if roots(netlist.module, cells) != before:
            sys.exit("a buffer changed what drives an input: a mistake in trees.py")
        print(f"loads up to {share:.0%} of the greatest: {added} buffers, longest path about {longest:.2f}")
        if best is None or longest < best[0]:
            best = longest, share, added, len(netlist.instances)
            Path(sys.argv[3]).write_text(json.dumps(design))
    print(f"{best[1]:.0%} is taken: {best[2]} buffers in trees, {best[3]} cells with them")


if __name__ == "__main__":
    main()
