"""The bench: clock, resets, registers, the four streams, and frames to send; what the tests share."""

import random

import cocotb
import functional
from cocotb.clock import Clock
from cocotb.triggers import ClockCycles, RisingEdge, Timer
from cocotbext.axi import AxiLiteBus, AxiLiteMaster, AxiStreamBus, AxiStreamFrame, AxiStreamSink, AxiStreamSource

KEY = bytes(range(16))
EVENTS = (
    "sliced small kind no_room full remarked dropped damaged token_from_network "
    "spliced untouched forged stale late duplicate released mangled oversize early bad hidden expired refused_writes"
).split()
REGISTERS = dict(id=0, control=4, status=8, threshold=12, ttl=16, mtu=20, marked=24, patience=28, key=32)

PERIOD = 2560


async def cycles(clk, count):
    """From an edge so many edges on, as `ClockCycles` does, which wakes Python at each of them: first to the
    middle before the last one."""
    if count > 1:
        await Timer(count * PERIOD - PERIOD // 2, "ps")
    await RisingEdge(clk)


class Source(AxiStreamSource):
    """Sends as its base does, in the same cycles, but makes a beat at once and not byte by byte. Where
    nothing has to be read there is noise: in bytes without `tkeep`, and everywhere in a cycle without
    `tvalid`."""

    async def _run(self):
        bus, lanes, edge = self.bus, self.byte_lanes, RisingEdge(self.clock)
        noise = int.from_bytes(random.Random(lanes).randbytes(lanes), "little")
        full, side = (1 << lanes) - 1, (None, None, None)
        frame, at, valid, self.active = None, 0, False, False
        while True:
            await edge
            if valid and not bus.tready.value:
                continue
            if frame is None and not self.queue.empty():
                frame = self.queue.get_nowait()
                self.dequeue_event.set()
                self.queue_occupancy_bytes -= len(frame)
                self.queue_occupancy_frames -= 1
                frame.normalize()
                self.active, at = True, 0
            sends = frame is not None and not self.pause
            if sends:
                beat = frame.tdata[at : at + lanes]
                at += len(beat)
                data, keep, user = int.from_bytes(beat, "little"), (1 << len(beat)) - 1, frame.tuser[at - 1]
                data |= noise >> 8 * len(beat) << 8 * len(beat)
                last = at == len(frame.tdata)
                if last:
                    frame = None
                wanted = (last, keep, user)
            else:
                data, wanted = noise, (True, full, 1)
            if sends or valid:
                bus.tdata.value = data
            if sends != valid:
                bus.tvalid.value = valid = sends
            for signal, old, new in zip((bus.tlast, bus.tkeep, bus.tuser), side, wanted):
                if old != new:
                    signal.value = new
            side = wanted
            if not sends:
                self.active = frame is not None
                if frame is None and self.queue.empty():
                    self.idle_event.set()
                    self.active_event.clear()
                    await self.active_event.wait()


class Sink(AxiStreamSink):
    """Takes beats as its base does, in the same cycles, but reads each once and not once for every byte; and
    it holds `tkeep` against the rules: full but for the last beat, without gaps, never empty."""

    async def _run(self):
        bus, lanes, edge = self.bus, self.byte_lanes, RisingEdge(self.clock)
        data, users, ready, self.active = bytearray(), [], False, False
        while True:
            pause = bool(self.pause)
            await edge
            valid = bool(bus.tvalid.value)
            if ready and valid:
                self.active = True
                keep, last = int(bus.tkeep.value), bool(bus.tlast.value)
                count = keep.bit_length()
                assert keep and keep == (1 << count) - 1 and (last or count == lanes), f"tkeep {keep:x}, tlast {last}"
                data += int(bus.tdata.value).to_bytes(lanes, "little")[:count]
                users.append(int(bus.tuser.value))
                if last:
                    # `tuser` by beats, and nothing that would have to be compacted.
                    frame = AxiStreamFrame(data, [], [], [], users)
                    data, users = bytearray(), []
                    self.queue_occupancy_bytes += len(frame)
                    self.queue_occupancy_frames += 1
                    self.queue.put_nowait(frame)
                    self.active_event.set()
            else:
                self.active = bool(data)
            paused = self.full() or pause
            if ready == paused:
                ready = not paused
                bus.tready.value = ready
            if (not valid or paused) and pause == bool(self.pause):
                self.wake_event.clear()
                await self.wake_event.wait()


class Bench:
    """A block under test with everything around it."""

    def __init__(self, dut):
        self.dut = dut
        quiet = [
            Source(AxiStreamBus.from_prefix(dut, "s_axis_net"), dut.clk, dut.cold_rst),
            Sink(AxiStreamBus.from_prefix(dut, "m_axis_host"), dut.clk, dut.cold_rst),
            Source(AxiStreamBus.from_prefix(dut, "s_axis_host"), dut.clk, dut.cold_rst),
            Sink(AxiStreamBus.from_prefix(dut, "m_axis_net"), dut.clk, dut.cold_rst),
        ]
        self.net_in, self.host_out, self.host_in, self.net_out = quiet
        self.axil = AxiLiteMaster(AxiLiteBus.from_prefix(dut, "s_axil"), dut.clk, dut.cold_rst)
        for end in (*quiet, self.axil.write_if, self.axil.read_if):
            end.log.setLevel("ERROR")

    async def start(self, enable=3, key=KEY, **settings):
        """Power-on, settings, key; returns when tokens are ready."""
        dut = self.dut
        # Not driven from Python, twice a cycle; the resets are there before its first edge.
        Clock(dut.clk, PERIOD, "ps", impl="gpi").start(start_high=False)
        if functional.asked_for():
            cocotb.start_soon(functional.note(dut))
        dut.rst.value = 0
        dut.cold_rst.value = 1
        await ClockCycles(dut.clk, 4)
        dut.cold_rst.value = 0
        await ClockCycles(dut.clk, 2)
        for name, value in settings.items():
            await self.write(name, value)
        if key:
            await self.load_key(key, enable)

    async def load_key(self, key, enable=3):
        for at in range(4):
            await self.axil.write(REGISTERS["key"] + 4 * at, key[4 * at : 4 * at + 4])
        await self.write("control", enable | 4)
        await cycles(self.dut.clk, 4)
        while not await self.read("status") >> 31:
            await cycles(self.dut.clk, 8)
        # The next token of every entry, too.
        await cycles(self.dut.clk, 16 * (int(self.dut.ENTRIES.value) + 2))

    async def write(self, name, value):
        at = REGISTERS[name] if isinstance(name, str) else name
        return int((await self.axil.write(at, value.to_bytes(4, "little"))).resp)

    async def read(self, name):
        at = REGISTERS[name] if isinstance(name, str) else name
        return int.from_bytes((await self.axil.read(at, 4)).data, "little")

    async def counters(self):
        """Counters that are not zero, by name."""
        all_of_them = {name: await self.read(0x80 + 4 * n) for n, name in enumerate(EVENTS)}
        return {name: value for name, value in all_of_them.items() if value}

    async def settle(self, count=40):
        """Waits until nothing has moved for so many cycles."""
        while not (self.net_in.idle() and self.host_in.idle()):
            await RisingEdge(self.dut.clk)
        await cycles(self.dut.clk, count)
        while not (self.host_out.idle() and self.net_out.idle()):
            await RisingEdge(self.dut.clk)

    async def slice(self, frame, bad=False):
        """One frame from the network; what goes to the functions, or None."""
        await self.net_in.send(stream(frame, bad))
        await self.settle(30)
        return taken(self.host_out)

    async def splice(self, frame, bad=False, count=30):
        """One frame from the functions; what goes to the network, or None."""
        await self.host_in.send(stream(frame, bad))
        await self.settle(count)
        return taken(self.net_out)


def stream(frame, bad=False):
    return AxiStreamFrame(bytes(frame), tuser=[0] * (len(frame) - 1) + [int(bad)])


def taken(sink):
    """The frame that came out, None if there was none or it is marked as bad; there are no two."""
    if sink.empty():
        return None
    frame = sink.recv_nowait()
    assert sink.empty(), "two frames came out"
    return None if is_bad(frame) else bytes(frame.tdata)


def is_bad(frame):
    users = frame.tuser
    return bool(users[-1] if isinstance(users, (list, bytes, bytearray)) else users)


def ones(data, start=0):
    if len(data) % 2:
        data = bytes(data) + b"\0"
    total = start + sum(int.from_bytes(data[i : i + 2], "big") for i in range(0, len(data), 2))
    while total > 0xFFFF:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def frame(payload=600, tcp=False, six=False, tags=0, ip_options=0, tcp_options=0, tos=0, seed=0, body=None, proto=None):
    """A frame with right checksums."""
    rng = random.Random(seed)
    body = rng.randbytes(payload) if body is None else bytes(body)
    out = bytes([2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2]) + b"\x81\x00\x00\x07" * tags
    size = len(body) + (20 + tcp_options if tcp else 8)
    number = proto if proto is not None else 6 if tcp else 17
    if six:
        addresses = bytes([0x20, *rng.randbytes(15), 0x20, *rng.randbytes(15)])
        head = bytes([0x60 | tos >> 4, (tos & 15) << 4, 0, 1]) + size.to_bytes(2, "big") + bytes([number, 64]) + addresses
    else:
        addresses = bytes([10, *rng.randbytes(3), 10, *rng.randbytes(3)])
        head = bytes([0x45 + ip_options // 4, tos]) + (20 + ip_options + size).to_bytes(2, "big")
        head += bytes([seed & 255, 1, 0x40, 0, 64, number, 0, 0]) + addresses + bytes([1]) * ip_options
        head = head[:10] + (ones(head) ^ 0xFFFF).to_bytes(2, "big") + head[12:]
    ports = rng.randbytes(4)
    if tcp:
        l4 = ports + rng.randbytes(8) + bytes([(20 + tcp_options) * 4, 16, 2, 0, 0, 0, 0, 0]) + bytes([1]) * tcp_options + body
        at = 16
    else:
        l4 = ports + size.to_bytes(2, "big") + bytes(2) + body
        at = 6
    value = ones(l4, ones(addresses, number + size)) ^ 0xFFFF or (0 if tcp else 0xFFFF)
    l4 = l4[:at] + value.to_bytes(2, "big") + l4[at + 2 :]
    return out + (b"\x86\xdd" if six else b"\x08\x00") + head + l4


def offsets(data):
    """Start of the IP header and of the transport header, end of the packet, true if IPv6, protocol."""
    l3 = 14
    while data[l3 - 2 : l3] in (b"\x81\x00", b"\x88\xa8"):
        l3 += 4
    if data[l3 - 2 : l3] == b"\x86\xdd":
        return l3, l3 + 40, l3 + 40 + int.from_bytes(data[l3 + 4 : l3 + 6], "big"), True, data[l3 + 6]
    return l3, l3 + (data[l3] & 15) * 4, l3 + int.from_bytes(data[l3 + 2 : l3 + 4], "big"), False, data[l3 + 9]


def checksums_hold(data):
    l3, l4, end, six, number = offsets(data)
    addresses = data[l3 + 8 : l3 + 40] if six else data[l3 + 12 : l3 + 20]
    whole = ones(data[l4:end], ones(addresses, number + end - l4)) == 0xFFFF
    return whole and (six or ones(data[l3:l4]) == 0xFFFF)


def token_of(data):
    end = offsets(data)[2]
    return data[end - 8 : end]


def with_token(data, token):
    end = offsets(data)[2]
    return data[: end - 8] + token + data[end:]


def padded(data):
    return bytes(data) + bytes(max(0, 60 - len(data)))


def is_sliced(data):
    """Sliced, or looks like it: the mark, and room for a token."""
    if data is None or len(data) > 128:
        return False
    l3, _, _, six, _ = offsets(data)
    word = int.from_bytes(data[l3 : l3 + 2], "big")
    return (word >> 6 if six else word >> 2) & 63 == 63
