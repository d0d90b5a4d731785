"""Network functions under attack, between real end hosts: what a flood leaves of real connections, and what
chosen flows cost.

How long the flood of SYNs lasts, how many real connections there are, and for how many connections the
firewall has room, can be set: SLIPSTREAM_FLOOD="seconds=60,connections=200,table=131072" tests/check_live.py
BINARY --only syn_flood
"""

import json
import multiprocessing
import os
import random
import socket
import struct
import threading
import time
from pathlib import Path

from netns import Middlebox, Net, checksum

JSON = ("--format", "json")
WIRE = "lan :: af_packet(interface=ma); wan :: af_packet(interface=mb); "
STATES = """
allow state established,related
allow state new dst net 10.77.0.2/31
deny any
"""
TCP, UDP, SYN = 6, 17, 0x02
SYNS_A_SECOND = 5000
# b, and an address that b gets packets for, but hasn't: it says nothing.
SERVER, NOBODY = 0x0A4D0002, 0x0A4D0003
MASK = (1 << 64) - 1


def settings():
    """How long, how many, how large."""
    wanted = {"seconds": 8, "connections": 50, "table": 8192}
    for part in filter(None, os.environ.get("SLIPSTREAM_FLOOD", "").split(",")):
        name, _, number = part.partition("=")
        if name not in wanted:
            raise AssertionError(f"SLIPSTREAM_FLOOD: {name!r} is none of {', '.join(wanted)}")
        wanted[name] = int(number)
    return wanted


def packet(net, protocol, source, ports, target=SERVER):
    """A SYN, or a datagram without payload, from a to b."""
    if protocol == TCP:
        transport = struct.pack("!HHIIBBHHH", *ports, random.getrandbits(32), 0, 0x50, SYN, 65535, 0, 0)
    else:
        transport = struct.pack("!HHHH", *ports, 8, 0)
    pseudo = struct.pack("!IIHH", source, target, protocol, len(transport))
    at = 16 if protocol == TCP else 6
    transport = transport[:at] + struct.pack("!H", checksum(pseudo + transport)) + transport[at + 2:]
    header = struct.pack("!BBHHHBBHII", 0x45, 0, 20 + len(transport), 0, 0x4000, 64, protocol, 0, source, target)
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return net.mac["b"] + net.mac["a"] + b"\x08\0" + header + transport


def flood(net, target, sent, over):
    """SYNs to a target from forged sources of 10.99.0.0/16 until it is over, 50 each hundredth of a
    second."""
    wire, numbers = net.wire("a"), random.Random(1)
    began, tick = time.monotonic(), 0
    while not over.is_set():
        for _ in range(SYNS_A_SECOND // 100):
            source = 0x0A630000 | numbers.randrange(1, 1 << 16)
            wire.send(packet(net, TCP, source, (numbers.randrange(1024, 1 << 16), 7007), target))
        sent.value += SYNS_A_SECOND // 100
        tick += 1
        time.sleep(max(0.0, began + tick / 100 - time.monotonic()))


def echo_server(listener):
    """Sends back what comes, on every connection."""
    def serve(peer):
        with peer:
            while data := peer.recv(4096):
                peer.sendall(data)

    def accept():
        while True:
            try:
                peer, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(peer,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def says(connection, text):
    connection.sendall(text)
    got = b""
    while len(got) < len(text):
        part = connection.recv(len(text) - len(got))
        if not part:
            return False
        got += part
    return got == text


def resident(box):
    """Memory that the program has, in KiB. Its process is the child of `ip netns exec`, or that itself."""
    status = Path(f"/proc/{box.child.pid}/status").read_text()
    return next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS"))


def tracked_wire(net, binary, scratch, table):
    """A firewall that follows connections, in the wire both ways, at work."""
    rules = scratch / "states.txt"
    rules.write_text(STATES)
    # Nobody asks for addresses: all packets are IP, and tell by their destination where they go.
    net.ip("a", "neigh", "replace", "10.77.0.2", "lladdr", mac(net, "b"), "dev", "a0")
    net.ip("b", "neigh", "replace", "10.77.0.1", "lladdr", mac(net, "a"), "dev", "b0")
    # The answers to forged sources leave, and get lost behind a.
    net.ip("b", "route", "add", "10.99.0.0/16", "via", "10.77.0.1")
    graph = WIRE + (f"fw :: firewall(rules=\"{rules}\", connections={table}); lan -> fw; wan -> fw; "
                    "fw -> way :: switch(ports=[\"east: dst net 10.77.0.2/31\"]); way[east] -> wan; way[other] -> lan")
    return Middlebox(net, binary, "run", *JSON, "-e", graph).ready()


def mac(net, name):
    return ":".join(f"{byte:02x}" for byte in net.mac[name])


def connect_all(case, net, wanted, kept):
    """Opens the real connections one after the other while the flood goes on; how long the slowest took."""
    slowest = 0.0
    for number in range(wanted["connections"]):
        since = time.monotonic()
        connection = net.socket("a", socket.AF_INET, socket.SOCK_STREAM)
        connection.settimeout(10)
        try:
            connection.connect(("10.77.0.2", 7007))
            case.check(says(connection, b"first"), f"connection {number}: not what was sent")
            kept.append(connection)
        except OSError as error:
            case.check(False, f"connection {number} of {wanted['connections']}: {error}")
        took = time.monotonic() - since
        slowest = max(slowest, took)
        time.sleep(max(0.0, wanted["seconds"] / wanted["connections"] - took))
    return slowest


def syn_flood(case, binary, scratch):
    """SYNs from forged sources, answered and not, 5,000 a second each: every real connection opens, and
    lasts; memory stays."""
    wanted = settings()
    for answered in (False, True):
        with Net() as net:
            box = tracked_wire(net, binary, scratch, wanted["table"])
            listener = net.socket("b", socket.AF_INET, socket.SOCK_STREAM)
            listener.bind(("10.77.0.2", 7007))
            listener.listen(512)
            echo_server(listener)
            sent, over = multiprocessing.Value("q", 0), multiprocessing.Event()
            target = SERVER if answered else NOBODY
            attacker = multiprocessing.Process(target=flood, args=(net, target, sent, over), daemon=True)
            attacker.start()
            kept = []
            try:
                # Until the table is full.
                time.sleep(wanted["table"] / SYNS_A_SECOND + 1)
                before = resident(box)
                slowest = connect_all(case, net, wanted, kept)
                after = resident(box)
                lasting = sum(says(connection, b"again") for connection in kept)
            finally:
                over.set()
                attacker.join(5)
                listener.close()
            case.equal(lasting, wanted["connections"], "real connections that open and last")
            # A huge page that is touched for the first time counts 2048 KiB.
            case.check(after - before < 4096, f"{after - before} KiB more memory than before")
            status, out, err = box.stop()
            if not case.equal(status, 0, f"exit status ({err.strip()[-400:]})"):
                continue
            counters = next(s for s in json.loads(out)["stages"] if s["type"] == "firewall")["counters"]
            kind = "answered" if answered else "unanswered"
            case.equal(counters["connections_refused"], 0, f"{kind}: connections that found no room")
            case.equal(counters["connections_displaced_assured"], 0, f"{kind}: assured ones that made room")
            case.check(counters["connections_displaced"] > wanted["table"] // 2, f"{kind}: no pressure: {counters}")
            print(f"       {sent.value} SYNs {kind}: {lasting} of {wanted['connections']} connections, the slowest "
                  f"{slowest * 1e3:.0f} ms; {counters['connections_displaced_unanswered']} and "
                  f"{counters['connections_displaced_answered']} displaced; {before} KiB, then {after} KiB")


def mix(a, b):
    product = a * b
    return (product ^ product >> 64) & MASK


def hash_of(source, ports, seed):
    """The hash of a flow key from `source` to b, as in `crates/wire/src/key.rs`."""
    left = seed ^ 0x9E3779B97F4A7C15
    right = (seed << 32 | seed >> 32) & MASK ^ 0xD6E8FEB86659FD93
    first = source << 32 | SERVER
    second = ports[0] << 48 | ports[1] << 32 | UDP << 24
    return mix(mix(first ^ left, second ^ right), 0xA0761D6478BD642F)


def collisions(case, binary, scratch):
    """Flows chosen to collide under the seed of replays: found out where that seed is asked for, and harmless
    where none is."""
    numbers, chosen = random.Random(2), []
    while len(chosen) < 900:
        flow = 0x0A630000 | numbers.getrandbits(16), (numbers.randrange(1024, 1 << 16), 9)
        if hash_of(*flow, 1) >> 60 == 0:
            chosen.append(flow)
    del scratch
    for words, expected in ((("--seed", "1"), True), ((), False)):
        with Net() as net:
            graph = ("in :: af_packet(interface=ma) -> flow_stats(flows=1024) -> meter(per=flow, cir=1gbps, flows=1024) -> "
                     "out :: af_packet(interface=mb)")
            box = Middlebox(net, binary, "run", *JSON, *words, "-e", graph).ready()
            wire = net.wire("a")
            for flow in chosen:
                wire.send(packet(net, UDP, *flow))
            time.sleep(0.3)
            status, out, err = box.stop()
            if not case.equal(status, 0, f"exit status ({err.strip()[-400:]})"):
                continue
            stages = {s["type"]: s["counters"] for s in json.loads(out)["stages"]}
            for name in ("flow_stats", "meter"):
                case.check(stages[name]["packets"] >= len(chosen), f"{name}: {stages[name]}")
                case.equal(stages[name]["long_probes"] > 0, expected, f"{name}, {words or 'no seed'}: collisions noticed")
            case.equal("collided" in err, expected, f"{words or 'no seed'}: a warning: {err}")
            case.equal("--seed 1" in err, expected, f"{words or 'no seed'}: says that the seed is known: {err}")


ATTACKS = (syn_flood, collisions)
