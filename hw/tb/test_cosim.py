"""Co-simulation: a middlebox (NFSlicer, Fig. 5) whose slicing port is the block, and whose functions are
`slipstream` itself.

Packets from the network go through the block; what it gives to the functions is a capture that
`slipstream run` processes, by NAT and a firewall that drops some, and a tag that moves what is behind it; its
output goes back through the block, whose state has stood still meanwhile. What leaves must be what the same
functions make of the whole packets, and what they make between the software's own `slice` and `splice`, byte
for byte and in order.
"""

import gzip
import os
import struct
import subprocess
import tempfile
from pathlib import Path

import cocotb
from bench import Bench, frame, is_bad, is_sliced, padded, stream
from cocotb.triggers import with_timeout

ROOT = Path(__file__).resolve().parents[2]
FUNCTIONS = "nat(pool=[192.0.2.1]) -> firewall(rules={rules}) -> vlan_push(id=7)"


def read_capture(data, count):
    order = "<" if data[:4] in (b"\xd4\xc3\xb2\xa1", b"\x4d\x3c\xb2\xa1") else ">"
    at, frames = 24, []
    while at + 16 <= len(data) and len(frames) < count:
        _, _, length, wire = struct.unpack(order + "4I", data[at : at + 16])
        if length == wire:
            frames.append(data[at + 16 : at + 16 + length])
        at += 16 + length
    return frames


def write_capture(path, frames):
    with open(path, "wb") as out:
        out.write(struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1))
        for number, data in enumerate(frames):
            out.write(struct.pack("<4I", 1, number, len(data), len(data)) + data)


def run(folder, frames, pipeline):
    """What `slipstream run` makes of frames."""
    came, left = folder / "came.pcap", folder / "left.pcap"
    write_capture(came, frames)
    subprocess.run([os.environ["SLIPSTREAM"], "run", "-i", came, "-o", left, "-e", pipeline], check=True, capture_output=True)
    return read_capture(left.read_bytes(), 1 << 20)


@cocotb.test(timeout_time=3000, timeout_unit="us")
async def the_middlebox_with_the_block_in_it(dut):
    bench = Bench(dut)
    await bench.start(threshold=500, mtu=2000)
    made = [
        frame(payload=size, tcp=tcp, six=six, seed=seed, tos=tos)
        for seed, (size, tcp, six, tos) in enumerate(
            [(size, tcp, six, tos) for size in (20, 470, 900, 1440) for tcp in (True, False) for six in (False, True) for tos in (0, 0xB9)]
        )
    ]
    recorded = read_capture(gzip.decompress((ROOT / "traces/campus.pcap.gz").read_bytes()), 90)
    frames = [bytes(padded(data)) for data in made + recorded if len(data) <= 1514]
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        rules = folder / "rules"
        rules.write_text("deny udp dst port 53\nallow any\n")
        functions = FUNCTIONS.format(rules=rules)
        whole = run(folder, frames, functions)
        software = run(folder, frames, f"slice(marked=remark) -> {functions} -> splice")
        for data in frames:
            bench.net_in.send_nowait(stream(data))
        headers = [bytes((await with_timeout(bench.host_out.recv(), 100, "us")).tdata) for _ in frames]
        sliced = sum(map(is_sliced, headers))
        answered = run(folder, headers, functions)
        hardware = []
        for data in answered:
            bench.host_in.send_nowait(stream(padded(data)))
        for _ in answered:
            got = await with_timeout(bench.net_out.recv(), 100, "us")
            assert not is_bad(got)
            hardware.append(bytes(got.tdata))
    dut._log.info("%d frames, %d sliced, %d left", len(frames), sliced, len(hardware))
    print(f"co-simulation: {len(frames)} frames, {sliced} sliced, {len(hardware)} left, equal", flush=True)
    assert sliced >= 24 and len(hardware) == len(whole)
    assert software == whole
    for number, (a, b) in enumerate(zip(hardware, whole)):
        assert a == b, f"frame {number}:\nhardware {a.hex()}\nsoftware {b.hex()}"
