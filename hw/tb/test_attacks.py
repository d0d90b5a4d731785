"""Attacks on the block, under the names that the software's tests give them
(`crates/engine/tests/engine/slice/`).

An attacker in the network, who may have seen a token, never gets a payload, and no victim loses its own. Not
here is what the block doesn't have: tokens of the paper, tokens bound to flows, empty slices, least ages.
"""

import cocotb
from bench import Bench, frame, padded, stream, token_of, with_token

VICTIM = frame(payload=1200, seed=77)
# Packets with the mark that are not sliced: given the DSCP 0, or dropped.
POLICIES = (0, 0x100)
TAKEN_FOR_SLICED = "forged stale late duplicate released mangled oversize early bad".split()


def number(token):
    return int.from_bytes(token, "big")


def ending_in(token, size=8, tos=0, **kind):
    """A datagram of the attacker: `size` bytes of payload, the last eight of them a token."""
    token = token if isinstance(token, bytes) else token.to_bytes(8, "big")
    return padded(frame(body=bytes(size - 8) + token, tos=tos, seed=6, **kind))


def put(data, at, value):
    return data[:at] + value.to_bytes(2, "big") + data[at + 2 :]


async def set_up(dut, marked=0):
    """A block with a victim's packet under way, and its token. What an attacker sends is below the
    threshold."""
    bench = Bench(dut)
    await bench.start(threshold=1000, ttl=1000, marked=marked)
    sliced = padded(await bench.slice(VICTIM))
    return bench, sliced, token_of(sliced)


async def attack(bench, sliced, frames, function=lambda data: data):
    """Frames from the network leave as they came, but for the mark, or not at all; then the victim's with its
    own payload."""
    for data in frames:
        through = await bench.slice(data)
        if through is None:
            continue
        out = await bench.splice(function(through))
        if out is None:
            continue
        if data[15] >> 2 == 63 and out[15] >> 2 != 63:
            out = out[:15] + data[15:16] + out[16:24] + data[24:26] + out[26:]
        assert out == function(data), f"the attacker's packet got something else:\n{data.hex()}\n{out.hex()}"
    counters = await bench.counters()
    wrong = {name: counters[name] for name in TAKEN_FOR_SLICED if name in counters}
    assert not wrong, f"packets of the network were taken for sliced ones: {wrong}"
    assert await bench.splice(sliced) == VICTIM, "the victim's payload is gone"
    assert (await bench.counters())["spliced"] == 1


@cocotb.test(timeout_time=200, timeout_unit="us")
@cocotb.parametrize(marked=POLICIES)
async def dscp_63_with_a_guessed_token(dut, marked):
    bench, sliced, _ = await set_up(dut, marked)
    guesses = [index << 48 | generation << 24 for index in range(4) for generation in range(2)]
    guesses += [n * 0x9E3779B97F4A7C15 & 0x0003_FFFF_FFFF_FFFF for n in range(1, 20)]
    await attack(bench, sliced, [ending_in(n, size, tos) for n in guesses for size, tos in ((8, 0xFC), (100, 0xFF))])


@cocotb.test(timeout_time=200, timeout_unit="us")
@cocotb.parametrize(marked=POLICIES)
async def dscp_63_with_the_very_token_of_a_victim(dut, marked):
    bench, sliced, token = await set_up(dut, marked)
    await attack(bench, sliced, [ending_in(token, size, 0xFC, tcp=tcp) for size in (8, 9, 100, 400, 458) for tcp in (False, True)])


@cocotb.test(timeout_time=200, timeout_unit="us")
@cocotb.parametrize(marked=POLICIES)
async def a_seen_token_without_the_mark(dut, marked):
    bench, sliced, token = await set_up(dut, marked)
    await attack(bench, sliced, [ending_in(token, size) for size in (8, 100, 450)])
    assert (await bench.counters())["token_from_network"] == 3, "nobody is told"


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_replayed_sliced_packet(dut):
    """As it was seen between the block and the function: sent in before the victim's has left, and after; and
    on the function's side."""
    bench, sliced, _ = await set_up(dut)
    await attack(bench, sliced, [sliced, sliced])
    assert await bench.slice(sliced) is None
    assert (await bench.counters())["token_from_network"] == 3
    assert await bench.splice(sliced) is None
    assert (await bench.counters())["duplicate"] == 1


@cocotb.test(timeout_time=200, timeout_unit="us")
async def tokens_of_generations_that_are_yet_to_come(dut):
    """On the function's side as well: no generation but the one that is out, with whatever tag."""
    bench, sliced, token = await set_up(dut)
    # The index stays, as the generation goes round.
    last = number(token)
    steps = [(step, tag) for step in (0, 1, 2, 0x800000) for tag in (0, 1, 2, 0x555555)][1:]
    ahead = [last & ~(0xFFFFFF << 24) ^ tag | ((last >> 24) + step & 0xFFFFFF) << 24 for step, tag in steps]
    for n in ahead:
        assert await bench.splice(with_token(sliced, n.to_bytes(8, "big"))) is None, hex(n)
    counters = await bench.counters()
    assert counters["forged"] == len(ahead) and "stale" not in counters, counters
    assert await bench.splice(sliced) == VICTIM


@cocotb.test(timeout_time=200, timeout_unit="us")
async def late_stale_and_duplicate_packets_are_dropped_each_by_its_cause(dut):
    """Twice, after the entry has gone to another, and after its time: one counter each."""
    bench = Bench(dut)
    await bench.start(threshold=120, ttl=1)
    entries = int(dut.ENTRIES.value)
    sliced = [padded(await bench.slice(frame(payload=700, seed=n))) for n in range(entries)]
    assert await bench.splice(sliced[0]) == frame(payload=700, seed=0)
    assert await bench.splice(sliced[0]) is None
    assert (await bench.counters())["duplicate"] == 1
    # Entry 0 goes to another; entry 1 is passed over, and its time is over.
    for n in range(2):
        await bench.slice(frame(payload=700, seed=20 + n))
    assert await bench.splice(sliced[0]) is None
    assert await bench.splice(sliced[1]) is None
    # Tags are not looked at where the generation is another: any older one is stale, any younger one forged.
    for step, cause in ((-1, "stale"), (-0x7FFFFF, "stale"), (1, "forged"), (0x800000, "forged")):
        before = (await bench.counters()).get(cause, 0)
        last = number(token_of(sliced[2]))
        generation = ((last >> 24) + step) & 0xFFFFFF
        token = last & ~(0xFFFFFF << 24) | generation << 24
        assert await bench.splice(with_token(sliced[2], token.to_bytes(8, "big"))) is None
        assert (await bench.counters())[cause] == before + 1, (step, cause)
    counters = await bench.counters()
    assert (counters["stale"], counters["late"], counters["duplicate"], counters["forged"]) == (3, 1, 1, 2), counters


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_token_where_the_padding_ends(dut):
    """The frame ends in the token, its IP packet before: it is none."""
    bench, sliced, token = await set_up(dut)
    frames = [frame(payload=4, tos=0xFC) + bytes(6) + token, frame(payload=4) + token, frame(payload=4) + bytes(2) + token]
    await attack(bench, sliced, [padded(data) for data in frames])
    assert "token_from_network" not in await bench.counters()


@cocotb.test(timeout_time=200, timeout_unit="us")
async def a_token_at_the_end_of_a_fragment_or_of_what_is_no_tcp_or_udp(dut):
    bench, sliced, token = await set_up(dut)
    frames = []
    for tos in (0, 0xFC):
        for protocol, fragment in ((17, 0x2000), (17, 9), (1, 0), (50, 0), (132, 0), (4, 0)):
            data = put(ending_in(token, 200, tos), 20, fragment)
            frames.append(data[:23] + bytes([protocol]) + data[24:])
    await attack(bench, sliced, frames)
    assert (await bench.counters())["token_from_network"] == len(frames)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def an_icmp_error_that_quotes_a_token(dut):
    bench, sliced, token = await set_up(dut)
    quotes = [frame(body=data[14:50], proto=1, tos=tos) for data in (ending_in(token, 8, 0xFC), sliced) for tos in (0, 0xFC)]
    await attack(bench, sliced, [padded(data) for data in quotes])
    assert (await bench.counters())["token_from_network"] == 4


@cocotb.test(timeout_time=200, timeout_unit="us")
async def lengths_that_lie(dut):
    bench, sliced, token = await set_up(dut)
    frames = []
    for length in (0, 19, 20, 27, 28, 35, 36, 37, 1000, 65535):
        for tos in (0, 0xFC):
            lie = put(ending_in(token, 8, tos), 16, length)
            frames += [lie, put(lie, 38, max(length - 20, 0))]
    await attack(bench, sliced, frames)


@cocotb.test(timeout_time=300, timeout_unit="us")
async def short_packets_spend_no_turns_of_payloads(dut):
    """Short packets with the mark or a token that was seen, many times the turns that a payload has: it is
    there, and others find entries."""
    bench = Bench(dut)
    await bench.start(threshold=500, ttl=1)
    sliced = padded(await bench.slice(VICTIM))
    for n in range(24):
        data = ending_in(token_of(sliced)) if n % 2 else ending_in(n, 60, 0xFC)
        await bench.net_in.send(stream(data))
    await bench.settle(60)
    bench.host_out.clear()
    others = [frame(payload=700, seed=n) for n in range(3)]
    for data in others:
        assert await bench.splice(padded(await bench.slice(data))) == data
    assert await bench.splice(sliced) == VICTIM


@cocotb.test(timeout_time=200, timeout_unit="us")
async def the_function_itself_can_not_make_a_token_up(dut):
    """Where tokens are accepted: any bit changed, and the packet is dropped."""
    bench, sliced, token = await set_up(dut)
    for bit in range(64):
        assert await bench.splice(with_token(sliced, (number(token) ^ 1 << bit).to_bytes(8, "big"))) is None, bit
    assert await bench.splice(sliced) == VICTIM


@cocotb.test(timeout_time=200, timeout_unit="us")
async def tags_that_a_function_takes_off_bring_no_token_in(dut):
    """Up to the two tags that the block reads."""
    bench, sliced, token = await set_up(dut)
    for tags in (0, 1, 2):
        for tos in (0, 0xFC):
            assert await bench.slice(ending_in(token, 8, tos, tags=tags)) is None, (tags, tos)
    await attack(bench, sliced, [ending_in(number(token) ^ 1, 60, 0, tags=tags) for tags in (1, 2)], lambda data: data)


@cocotb.test(timeout_time=200, timeout_unit="us")
async def what_holds_no_token_passes_as_it_is(dut):
    """At both ends: no IP, many tags, a token with one bit wrong, bytes behind the packet."""
    bench, sliced, token = await set_up(dut)
    nearly = (number(token) ^ 1).to_bytes(8, "big")
    arp = b"\xff" * 6 + bytes([2, 0, 0, 0, 0, 1, 8, 6]) + bytes(46)
    for data in (arp, frame(payload=60, tags=14), ending_in(nearly), ending_in(nearly, 100, tcp=True), frame(payload=30) + bytes(20)):
        assert await bench.slice(data) == data, data.hex()
        assert await bench.splice(data) == data, data.hex()
    assert await bench.splice(sliced) == VICTIM
