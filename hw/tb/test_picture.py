"""One slice and one splice, cycle by cycle, for the waveforms of the book: written to the file in
$PICTURE_DUMP."""

import json
import os

import cocotb
from bench import Bench, frame, padded, stream
from cocotb.triggers import RisingEdge

SIGNALS = {
    "in": ["s_axis_net_tvalid", "s_axis_net_tlast", "ingress.take", "ingress.row_wen", "ingress.row", "m_axis_host_tvalid",
           "m_axis_host_tlast", "ingress.stored"],
    "out": ["s_axis_host_tvalid", "s_axis_host_tlast", "egress.claim", "egress.row_ren", "egress.row", "m_axis_net_tvalid",
            "m_axis_net_tlast", "egress.leave"],
}


@cocotb.test()
async def waves(dut):
    bench = Bench(dut)
    await bench.start(threshold=120)
    notes = {}

    async def watch(side, cycles):
        notes[side] = {name: [] for name in SIGNALS[side]}
        for _ in range(cycles):
            await RisingEdge(dut.clk)
            for name in SIGNALS[side]:
                at = dut
                for part in name.split("."):
                    at = getattr(at, part)
                notes[side][name].append(int(at.value) if at.value.is_resolvable else 0)

    data = frame(payload=200)
    cocotb.start_soon(watch("in", 17))
    await bench.net_in.send(stream(data))
    sliced = bytes((await bench.host_out.recv()).tdata)
    await bench.settle(20)
    cocotb.start_soon(watch("out", 17))
    await bench.host_in.send(stream(padded(sliced)))
    assert bytes((await bench.net_out.recv()).tdata) == data
    await bench.settle(20)
    with open(os.environ["PICTURE_DUMP"], "w") as out:
        json.dump(notes, out)
