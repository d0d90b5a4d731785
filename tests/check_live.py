#!/usr/bin/env python3
"""Does `slipstream` work between network interfaces, with real end hosts at both ends?

Each check sets up namespaces of its own (see netns.py) and a wire with the program in its middle. Where
namespaces can't be made, nothing is checked between interfaces, which is a failure.
"""

import argparse
import json
import multiprocessing
import multiprocessing.connection
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

import harness
import netns
from check_functions import ipfix
from live_attacks import ATTACKS
from live_faults import FAULTS, ROWS
from live_functions import FUNCTIONS
from live_gateway import GATEWAYS
from live_operation import OPERATION
from live_package import PACKAGE
from live_ports import LIVE_PORTS, refused
from live_setup import SETUP
from live_slice import SLICED
from live_shard_operation import SHARD_OPERATION
from live_shards import SHARDED
from live_xdp import LIVE_XDP
from netns import Middlebox, Net, is_udp, number_of, udp

BOTH_WAYS = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); "
JSON = ("--format", "json")
SETTLE = 0.15


def bump(net, binary, hold="64us", *words, graph=None):
    """A reframer in the wire, both ways, at work."""
    graph = graph or f"a -> east :: reframe(hold={hold}) -> b; b -> west :: reframe(hold={hold}) -> a"
    return Middlebox(net, binary, "run", *JSON, *words, "-e", BOTH_WAYS + graph).ready()


def ended(case, box, how=signal.SIGINT):
    """Its report, once interrupted: everything that came in has left, or is accounted for."""
    status, out, err = box.stop(how)
    if not case.equal(status, 0, f"exit status ({err.strip()[-300:]})"):
        return None
    case.check("panicked" not in err, err)
    report = json.loads(out)
    dropped = sum(report["dropped"].values())
    case.equal(report["packets_in"], report["packets_out"] + dropped, "packets in against out and dropped")
    case.equal(report["left_inside"], 0, "left inside")
    return report


def ping(case, binary, _):
    """ping, IPv4 and IPv6, over a reframer in the wire."""
    with Net() as net:
        box = bump(net, binary)
        for target in ("10.77.0.2", "fd77:0::2"):
            text = net.sh("a", "ping", "-c", "40", "-i", "0.01", "-W", "2", "-q", target, check=False)
            case.check("40 received" in text or " 0% packet loss" in text, text)
        report = ended(case, box)
        if report:
            case.check(report["packets_in"] >= 160, f"only {report['packets_in']} packets came in")
            case.equal(report["dropped"], {}, "dropped")


SERVER = """
import hashlib, socket, sys
with socket.create_server(("::" if ":" in sys.argv[1] else "", 7000), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET) as s:
    print("ready", flush=True)
    c, _ = s.accept()
    h, n = hashlib.sha256(), 0
    while d := c.recv(1 << 16):
        h.update(d); n += len(d)
    c.sendall(h.digest())
    print(n, h.hexdigest(), flush=True)
"""
CLIENT = """
import hashlib, socket, sys
data = b"".join(hashlib.sha256(n.to_bytes(4, "big")).digest() for n in range(int(sys.argv[2]) // 32))
with socket.create_connection((sys.argv[1], 7000), timeout=20) as c:
    c.sendall(data); c.shutdown(socket.SHUT_WR)
    print(c.recv(32).hex(), hashlib.sha256(data).hexdigest(), len(data))
"""


def tcp(case, binary, _):
    """A transfer over TCP arrives as it was sent, in both directions, over both versions of IP."""
    with Net() as net:
        box = bump(net, binary)
        hosts = {"a": ("10.77.0.1", "fd77:0::1"), "b": ("10.77.0.2", "fd77:0::2")}
        for client, server, family in (("a", "b", 0), ("b", "a", 1)):
            target = hosts[server][family]
            listening = net.start(server, sys.executable, "-c", SERVER, target)
            listening.stdout.readline()
            words = net.sh(client, sys.executable, "-c", CLIENT, target, 4 << 20, timeout=60).split()
            case.check(words[0] == words[1] and int(words[2]) == 4 << 20, f"{client} to {target}: {words}")
            listening.communicate(timeout=10)
        report = ended(case, box)
        if report:
            case.equal(report["dropped"], {}, "dropped")
            stage = {s["name"]: s for s in report["stages"]}
            case.check(stage["east"]["report"]["slf_out"] >= stage["east"]["report"]["slf_in"], "locality got worse")


def iperf(case, binary, _):
    """iperf3 over four connections at once."""
    if not harness.have(case, "iperf3"):
        return
    with Net() as net:
        box = bump(net, binary)
        server = net.start("b", "iperf3", "-s", "-1")
        net.listens("b", 5201)
        text = net.sh("a", "iperf3", "-c", "10.77.0.2", "-t", "2", "-P", "4", "-J", timeout=40)
        # The client has the result; a server may miss the end of a connection over which nothing more comes.
        server.kill()
        server.communicate()
        rate = json.loads(text)["end"]["sum_received"]["bits_per_second"]
        case.check(rate > 20e6, f"only {rate / 1e6:.0f} Mbit/s")
        report = ended(case, box)
        if report:
            excess = report["excess_delay_ns"]
            print(f"       iperf3, 4 connections: {rate / 1e6:.0f} Mbit/s, later than due "
                  f"{excess['p50'] / 1e3:.0f} µs median, {excess['p99'] / 1e3:.0f} µs 99 %; "
                  f"{report['cpu_ns'] / max(report['packets_in'], 1):.0f} ns CPU a packet")


def order(case, binary, _):
    """Four flows, one packet of each in turn: they arrive as trains, whole, each flow in order."""
    # A machine that stands still for a moment makes packets late, but not in one run after the other.
    late = []
    for _ in range(4):
        late.append(order_once(case, binary))
        if late[-1] is None or late[-1]["p50"] < 5_000_000:
            return
    case.check(False, f"too late in each run: {late}")


def order_once(case, binary):
    """One run of it: how much later than due the packets left, in nanoseconds; none without a report."""
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = Middlebox(net, binary, "reframe", "af_packet:ma", "af_packet:mb", "--hold", "20ms", "--burst", "16", *JSON)
        box.ready()
        all_packets = 2000
        for number in range(all_packets):
            near.send(udp(net, number, number % 4))
            if number % 50 == 49:
                time.sleep(0.002)
        got = [number_of(frame) for _, frame in far.receive(5, is_udp, all_packets)]
        case.equal(len(got), all_packets, "packets that arrived")
        for flow in range(4):
            want = [n for n in range(all_packets) if n % 4 == flow]
            case.equal([n for f, n in got if f == flow], want, f"order of flow {flow}")
        # The other way nothing passes: only the way from IN to OUT was asked for.
        far.send(udp(net, 1))
        case.equal(near.receive(0.3, is_udp), [], "packets against the direction")
        status, out, err = box.stop()
        if not case.equal(status, 0, f"exit status ({err})"):
            return None
        report = json.loads(out)
        case.check(report["packets_in"] >= all_packets, f"{report['packets_in']} packets in")
        case.equal(report["packets_in"], report["packets_out"], "packets in and out")
        case.check(report["mean_train"] > 8, f"trains of {report['mean_train']}")
        case.check(report["delay_ns"]["max"] <= 20_000_000, f"held for {report['delay_ns']}")
        return report["excess_delay_ns"]


def idle(case, binary, _):
    """A packet that nobody follows leaves when its time is up, and waiting for that takes no CPU."""
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary, "200ms")
        waits = []
        for number in range(3):
            before = time.monotonic()
            near.send(udp(net, number))
            got = far.receive(2, is_udp, 1)
            if case.equal(len(got), 1, "packets that arrived"):
                waits.append(got[0][0] - before)
        text = ", ".join(f"{wait * 1e3:.1f}" for wait in waits)
        # Any of them may come later where the machine stands still for a moment, but not all three.
        if waits:
            case.check(0.2 <= min(waits) < 0.3, f"packets held for 200 ms arrived after {text} ms")
        time.sleep(1)
        report = ended(case, box)
        if report:
            case.check(report["cpu_ns"] < 0.1 * report["elapsed_ns"],
                       f"{report['cpu_ns'] / 1e6:.0f} ms of CPU in {report['elapsed_ns'] / 1e6:.0f} ms")


def interrupt(case, binary, _):
    """What is held leaves at an interrupt, and at a request to terminate."""
    for how in (signal.SIGINT, signal.SIGTERM):
        with Net() as net:
            near, far = net.wire("a"), net.wire("b")
            box = bump(net, binary, "3s")
            for number in range(10):
                near.send(udp(net, number))
            case.equal(far.receive(0.3, is_udp), [], "packets before their time")
            box.child.send_signal(how)
            got = far.receive(1, is_udp, 10)
            case.equal([number_of(f)[1] for _, f in got], list(range(10)), "packets that left at the end")
            report = ended(case, box, None)
            if report:
                released = {s["name"]: s["report"]["released"] for s in report["stages"] if s["report"]}
                case.check(released["east"]["drain"] >= 1, f"released: {released}")


def limits(case, binary, _):
    """--packets and --duration end a run."""
    with Net() as net:
        # Nothing but what is sent here.
        net.sh("a", "sysctl", "-qw", "net.ipv6.conf.a0.disable_ipv6=1")
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary, "1ms", "--packets", "5", graph="a -> reframe(hold=1ms) -> b")
        for number in range(9):
            near.send(udp(net, number))
        status, out, err = box.wait(5)
        if case.equal(status, 0, f"exit status ({err})"):
            case.equal(json.loads(out)["packets_in"], 5, "packets")
        case.equal(len(far.receive(0.3, is_udp)), 5, "packets that arrived")
        since = time.monotonic()
        box = Middlebox(net, binary, "reframe", "af_packet:ma", "null", "--duration", "300ms", *JSON)
        status, _, err = box.wait(5)
        case.equal(status, 0, f"exit status ({err})")
        case.check(0.3 <= time.monotonic() - since < 2, "--duration 300ms took its time")


def vlan(case, binary, _):
    """Frames pass with their VLAN tags, one or two, which the kernel takes out on the way in."""
    tags = {"none": b"", "one": b"\x81\0\x20\x05", "priority only": b"\x81\0\x60\0",
            "two": b"\x88\xa8\0\x07\x81\0\0\x08", "two alike": b"\x81\0\0\x07\x81\0\0\x08"}
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary)
        for number, (name, tag) in enumerate(tags.items()):
            frame = udp(net, number, tag=tag)
            near.send(frame)
            got = far.receive(1, is_udp, 1)
            case.equal([f.hex() for _, f in got], [frame.hex()], f"tags: {name}")
        report = ended(case, box)
        if report:
            restored = [s["counters"]["vlan_tags_restored"] for s in report["sources"] if s["name"] == "a"]
            case.equal(restored, [4], "tags restored")


def too_long(case, binary, _):
    """What the way out can't take, or the way in has no room for, is counted; what follows passes."""
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        net.ip("m", "link", "set", "dev", "mb", "mtu", 600)
        box = bump(net, binary)
        near.send(udp(net, 1, payload=1000))
        near.send(udp(net, 2, payload=500))
        case.equal([number_of(f)[1] for _, f in far.receive(1, is_udp, 2)], [2], "packets that arrived")
        report = ended(case, box)
        if report:
            case.equal(report["dropped"], {"not_sent": 1}, "dropped")
            stage = {s["name"]: s["counters"] for s in report["stages"]}
            case.equal(stage["b"]["too_long"], 1, "too long for the way out")
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        graph = "a :: af_packet(interface=ma, longest=64); a -> out :: af_packet(interface=mb)"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        # Slots are of 2 KiB at least.
        net.ip("a", "link", "set", "dev", "a0", "mtu", 9000)
        net.ip("m", "link", "set", "dev", "ma", "mtu", 9000)
        near.send(udp(net, 1, payload=4000))
        near.send(udp(net, 2))
        case.equal([number_of(f)[1] for _, f in far.receive(1, is_udp, 2)], [2], "packets that arrived")
        status, out, err = box.stop()
        case.equal(status, 0, f"exit status ({err})")
        counters = json.loads(out)["sources"][0]["counters"]
        case.equal(counters["too_long"], 1, "too long for the way in")
        case.check("ethtool" in err, f"no advice: {err}")
    with Net(mtu=9000) as net:
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary)
        frame = udp(net, 3, payload=8900)
        near.send(frame)
        case.equal([f for _, f in far.receive(1, is_udp, 1)], [frame], "a jumbo frame")
        ended(case, box)


def checksums(case, binary, _):
    """A sender that leaves checksums to its card, which isn't there: they are right all the same where they
    arrive."""
    with Net() as net:
        net.sh("a", "ethtool", "-K", "a0", "tx", "on", "tso", "off", "gso", "off")
        far = net.wire("b")
        box = bump(net, binary)
        net.sh("a", "ping", "-c", "1", "-W", "2", "10.77.0.2")
        sender = net.socket("a", netns.socket.AF_INET, netns.socket.SOCK_DGRAM)
        sender.sendto(b"checksums", ("10.77.0.2", 9))
        for _, frame in far.receive(1, is_udp, 1):
            length = struct.unpack("!H", frame[38:40])[0]
            pseudo = frame[26:34] + struct.pack("!BBH", 0, 17, length)
            case.equal(netns.checksum(pseudo + frame[34:34 + length]), 0, "sum over a datagram")
        report = ended(case, box)
        if report:
            filled = sum(s["counters"]["checksums_filled_in"] for s in report["sources"])
            case.check(filled >= 1, "no checksum was missing, so nothing was shown")


def trouble(case, binary, scratch):
    """Ports that can't be opened, and one that goes away: an error that says what to do."""
    with Net() as net:
        net.ip("m", "link", "set", "dev", "mb", "down")
        program = scratch / "slipstream"
        shutil.copy(binary, program)
        program.chmod(0o755)
        nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all", "--inh-caps=-all")
        refused(case, net, (
            ((binary, "reframe", "af_packet:nope", "null"), "no interface `nope`"),
            ((binary, "reframe", "af_packet:ma", "af_packet:mb"), "ip link set dev mb up"),
            ((binary, "reframe", "af_packet:far-too-long-a-name", "null"), "can't be an interface's name"),
            ((*nobody, program, "reframe", "af_packet:ma", "null"), "CAP_NET_RAW"),
            ((*nobody, program, "reframe", "tap:t1", "null"), "ip tuntap add t1 mode tap"),
        ))
        # One that root made is down at first, which is what is said then.
        net.ip("m", "tuntap", "add", "dev", "t1", "mode", "tap", "user", "65534")
        refused(case, net, (((*nobody, program, "reframe", "tap:t1", "null"), "ip link set t1 up"),))
        net.ip("m", "link", "set", "dev", "mb", "up")
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary)
        # Down and up again: packets in between are lost, what comes later passes.
        net.ip("m", "link", "set", "dev", "mb", "down")
        near.send(udp(net, 1))
        time.sleep(SETTLE)
        net.ip("m", "link", "set", "dev", "mb", "up")
        time.sleep(SETTLE)
        near.send(udp(net, 2))
        case.equal([number_of(f)[1] for _, f in far.receive(1, is_udp, 1)], [2], "packets after a pause of the link")
        net.ip("m", "link", "del", "dev", "ma")
        status, out, err = box.wait(20)
        case.check(status == 2 and "`ma` is gone" in err, f"interface taken away: {status} {err}")
        report = json.loads(out)
        case.check(report["packets_in"] >= 1, f"report of a run whose interface was taken away: {out}")


def hang_up(case, binary, scratch):
    """At a hang-up routes are read anew; where nothing can be, what is held leaves and the report is
    printed."""
    routes = scratch / "routes.txt"
    routes.write_text("10.9.0.0/16 via 10.77.0.2\n")
    with Net() as net:
        box = bump(net, binary)
        status, out, err = box.stop(signal.SIGHUP)
        case.equal((status, json.loads(out)["left_inside"]), (0, 0), f"nothing to reload: {err}")
        router = (f'a -> [lan]r :: router(interfaces=["lan 10.77.0.254/24 02:00:00:00:00:01"], reload=1000s, '
                  f'routes="{routes}"); r[lan] -> b')
        box = bump(net, binary, graph=router)
        routes.write_text("10.9.0.0/16 via 10.77.0.2\n10.8.0.0/16 via 10.77.0.3\n")
        box.child.send_signal(signal.SIGHUP)
        time.sleep(0.5)
        case.check(box.child.poll() is None, "a hang-up ended the run")
        status, out, err = box.stop(signal.SIGTERM)
        if case.equal(status, 0, f"exit status ({err})"):
            counters = json.loads(out)["stages"][0]["counters"]
            case.equal((counters["routes"], counters["route_reloads"]), (2, 1), "routes, reloads")
            case.check("reloaded" in err, err)


def other_rules(case, binary, scratch):
    """At a hang-up a firewall reads its rules anew, between two packets; wrong ones change nothing and say
    where they are wrong."""
    rules = scratch / "rules.txt"
    rules.write_text("allow udp\ndefault deny\n")
    with Net() as net:
        near, far = net.wire("a"), net.wire("b")
        box = bump(net, binary, graph=f'a -> fw :: firewall(rules="{rules}") -> b; b -> a')

        def passed(first, n=50):
            for number in range(first, first + n):
                near.send(udp(net, number))
            return [number_of(f)[1] for _, f in far.receive(1, is_udp, n)]

        case.equal(passed(0), list(range(50)), "packets that the first rules allow")
        rules.write_text("allow udp\ndeny nonsense\n")
        box.child.send_signal(signal.SIGHUP)
        time.sleep(SETTLE)
        case.equal(passed(100), list(range(100, 150)), "packets after a reload of wrong rules")
        rules.write_text("deny udp\n")
        box.child.send_signal(signal.SIGHUP)
        time.sleep(SETTLE)
        case.equal(passed(200), [], "packets that other rules deny")
        rules.write_text("allow udp\ndefault deny\n")
        # Again and again while packets go by: the rules allow them all, so none may be lost.
        sent = range(1000, 3000)
        for number in sent:
            near.send(udp(net, number))
            if number % 20 == 0:
                box.child.send_signal(signal.SIGHUP)
                time.sleep(0.002)
        got = [number_of(f)[1] for _, f in far.receive(2, is_udp, len(sent))]
        # Until the first of these reloads the old rules held.
        missing = sorted(set(sent) - set(got))
        case.check(len(missing) < 1000 and missing == list(range(1000, 1000 + len(missing))),
                   f"{len(missing)} lost, the last {missing[-1:]}")
        case.equal(got, sorted(got), "order")
        status, out, err = box.stop(signal.SIGTERM)
        if case.equal(status, 0, f"exit status ({err})"):
            counters = next(stage for stage in json.loads(out)["stages"] if stage["name"] == "fw")["counters"]
            case.check(counters["rule_reloads"] >= 3 and counters["rule_reload_errors"] == 0, f"reloads: {counters}")
            case.check("rules.txt:2:6" in err and "nothing is read anew" in err, err)


def captures(case, binary, scratch):
    """A capture goes out by an interface at its own pace, and what comes in is written to one."""
    with Net() as net:
        far = net.wire("b")
        into = scratch / "in.pcapng"
        graph = ("s :: synth(traffic=\"flows=10,packets=1000,rate=2kpps,size=200\"); s -> out :: af_packet(interface=ma); "
                 f"in :: af_packet(interface=mb) -> pcap(path=\"{into}\")")
        near = net.wire("a")
        since = time.monotonic()
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        got = near.receive(5, lambda f: len(f) == 200, 1000)
        took = time.monotonic() - since
        case.equal(len(got), 1000, "packets that arrived")
        case.check(0.49 < took < 3, f"1000 packets at 2 kpps took {took:.2f} s")
        for number in range(100):
            far.send(udp(net, number))
        time.sleep(SETTLE)
        status, _, err = box.stop()
        case.equal(status, 0, f"exit status ({err})")
        again = harness.Run(binary, ["analyze", into, *JSON]).json()
        case.check(again["records"] >= 100, f"{again['records']} packets in the capture")


def paced(case, binary, scratch):
    """Traffic at a set pace through a bounded queue; the log of polls says what the report says."""
    log = scratch / "polls.csv"
    for arrivals in ("constant", "poisson", "bursty"):
        graph = f"in :: paced(rate=100kpps, arrivals={arrivals}, packets=30k, queue=256, batch=32) -> counter -> null"
        report = harness.Run(binary, ["run", *JSON, "-e", graph, "--poll-log", log]).json()
        counters = report["sources"][0]["counters"]
        case.equal(counters["offered"], 30_000, f"{arrivals}: offered")
        case.equal(report["packets_in"] + counters["dropped_by_queue"], 30_000, f"{arrivals}: taken and dropped")
        head, *lines = log.read_text().splitlines()
        case.equal(head, "time_ns,batch,empty_before,source,newest_ns", "names of columns")
        polls = [tuple(map(int, line.split(","))) for line in lines]
        case.equal(sum(batch for _, batch, *_ in polls), report["packets_in"], f"{arrivals}: packets in the log")
        case.check(all(1 <= batch <= 32 for _, batch, *_ in polls), f"{arrivals}: a batch of more than 32")
        case.check(all(a[0] <= b[0] for a, b in zip(polls, polls[1:])), f"{arrivals}: time runs backwards")
        away = counters["generator_away_ns"]
        case.check(report["elapsed_ns"] - away > 0.8 * 0.3e9, f"{arrivals}: faster than its rate: {report['elapsed_ns']}")
    short = harness.Run(binary, ["run", *JSON, "-e", graph, "--poll-log", log, "--poll-log-max", 10])
    case.equal((short.status, len(log.read_text().splitlines())), (0, 11), "a log of 10")
    case.check("--poll-log-max" in short.stderr, short.stderr)


def exported(case, binary, scratch):
    """Flow records of a live run are in their file all the time, and stay there, whole messages, where no
    more find room."""
    file, most = scratch / "flows.ipfix", 30_000

    def small_disk():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))

    graph = ("in :: paced(rate=5kpps, traffic=\"flows=100000,order=round-robin,size=60\") -> "
             f"f :: flow_stats(export=\"{file}\", flows=100) -> null")
    words = [binary, "run", *JSON, "--duration", "4s", "-e", graph]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False, preexec_fn=small_disk)
    case.check(done.returncode == 2 and "cannot be written: File too large" in done.stderr, done.stderr)
    case.check("can't write" in done.stderr and 'stage="f"' in done.stderr, done.stderr)
    counters = next(s for s in json.loads(done.stdout)["stages"] if s["name"] == "f")["counters"]
    data = file.read_bytes() if file.exists() else b""
    case.check(most - 1420 < len(data) <= most, f"{len(data)} bytes in the file")
    records = sum(1 for _ in ipfix(data))
    some = 0 < records < counters["records"] and counters["messages_lost"] > 0
    case.check(some, f"{records} in the file: {counters}")


CHECKS = (ping, tcp, iperf, order, idle, interrupt, limits, vlan, too_long, checksums, trouble, hang_up, other_rules, captures, *FUNCTIONS,
          *GATEWAYS, *OPERATION, *ATTACKS, *LIVE_PORTS, *LIVE_XDP, *SHARDED, *SHARD_OPERATION, *SETUP, *SLICED, *FAULTS,
          *PACKAGE)
ANYWHERE = (paced, exported)
# These say how fast something went, or need both cores for it, so that nothing else may run meanwhile.
MEASURING = ("paced", "tcp", "iperf", "router", "nat", "xdp_stream", "xdp_generic_stream", "xdp_busy_poll_stream", "packet_stream",
             "shard_stream", "shard_xdp_stream")
# The others wait most of the time: for silence, for deadlines, for what a peer says. These take longest, and
# begin first.
LONG = ("package", "syn_flood", "unread", "reloads", "xdp_killed")
SIDE_BY_SIDE = 5


def judge(check, binary):
    """Runs one check and says what is wrong; ends the process with status 1 if anything is."""
    case = harness.Case()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        try:
            check(case, binary, Path(directory))
        except Exception:  # what can't be judged has failed
            case.wrong.append(traceback.format_exc(limit=-3))
    for what in case.wrong[:5]:
        print(f"FAILED {check.__name__}: {check.__doc__}\n       {what}")
    sys.exit(bool(case.wrong))


def side_by_side(checks, at_once, binary):
    """Runs each check in a process of its own, whose number is in the names of its namespaces; yields whether
    it went well."""
    fork, waiting, running = multiprocessing.get_context("fork"), list(checks), []
    try:
        while waiting or running:
            while waiting and len(running) < at_once:
                # What is not yet written would be written by the child, too.
                sys.stdout.flush()
                check = waiting.pop(0)
                child = fork.Process(target=judge, args=(check, binary), name=check.__name__)
                child.start()
                running.append(child)
            multiprocessing.connection.wait([child.sentinel for child in running])
            for child in [child for child in running if not child.is_alive()]:
                running.remove(child)
                if child.exitcode not in (0, 1):
                    print(f"FAILED {child.name} ended with {child.exitcode}", flush=True)
                yield child.exitcode == 0
    finally:
        # Each takes its namespaces away.
        for child in running:
            child.terminate()
        for child in running:
            child.join()


def main():
    # Whoever runs this under `nohup` would hand that on to the programs that are to be told of a hang-up.
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=harness.ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    names = {check.__name__ for check in CHECKS}
    unknown = [name for row in ROWS.values() for name in row if name not in names]
    if unknown:
        sys.exit(f"rows of faults name checks that there are not: {unknown}")
    reason = netns.why_not()
    if reason:
        print(f"FAILED: no check between interfaces: {reason}")
    chosen = [check for check in ANYWHERE + (() if reason else CHECKS) if arguments.only in check.__name__]
    measuring = [check for check in chosen if check.__name__ in MEASURING]
    others = sorted((check for check in chosen if check not in measuring), key=lambda check: check.__name__ not in LONG)
    passed = sum(side_by_side(measuring, 1, binary)) + sum(side_by_side(others, SIDE_BY_SIDE, binary))
    # Where nothing can be checked between interfaces, that is one more failure.
    harness.summary(passed, len(chosen) - passed + bool(reason))


if __name__ == "__main__":
    main()
