"""What an operator does with a pipeline in shards: reloads, restarts with state, the log of sessions, the
control socket."""

import json
import re
import signal
import socket
import struct
import subprocess
import threading
import time

import live_operation
from live_functions import have, mac
from live_operation import Controlled, close, connect, exchange
from netns import Middlebox, Net, checksum, udp

JSON = ("--format", "json")
HOSTS = 20
EACH = 2
SERVER = "10.77.0.2"
RULES = "allow tcp src host 10.77.0.2\ndefault deny\n"
GATEWAY = """
graph = '''
lan -> held -> [inside]n[outside] -> wan
wan -> [outside]n[inside] -> fw -> lan
'''
[stage.lan]
type = "af_packet"
interface = "ma"
[stage.wan]
type = "af_packet"
interface = "mb"
[stage.held]
type = "reframe"
hold = "{hold}"
[stage.fw]
type = "firewall"
rules = "{rules}"
[stage.n]
type = "nat"
pool = [{pool}]
inside = ["192.168.7.0/24"]
routed = true
hairpin = {hairpin}
{more}
"""


class Gateway(Controlled):
    """A firewall and a NAT on two shards between hosts of a and one of b."""

    def __init__(self, net, binary, scratch):
        self.net, self.binary, self.scratch = net, binary, scratch
        self.config, self.rules = scratch / "shards.toml", scratch / "rules.txt"
        self.socket, self.state, self.log = scratch / "control", scratch / "state", scratch / "sessions.json"
        self.rules.write_text(RULES)
        self.write()
        net.ip("a", "addr", "flush", "dev", "a0")
        for host in range(1, HOSTS + 1):
            net.ip("a", "addr", "add", f"192.168.7.{host}/24", "dev", "a0")
        net.ip("a", "route", "add", "10.77.0.0/24", "dev", "a0")
        net.ip("a", "neigh", "replace", SERVER, "lladdr", mac(net, "b"), "dev", "a0")
        for address in (100, 101):
            net.ip("b", "neigh", "replace", f"10.77.0.{address}", "lladdr", mac(net, "a"), "dev", "b0")

    def write(self, hold="64us", pool=(100,), hairpin="false", more=""):
        listed = ", ".join(f'"10.77.0.{address}"' for address in pool)
        self.config.write_text(GATEWAY.format(rules=self.rules, hold=hold, pool=listed, hairpin=hairpin, more=more))

    def start(self, shards=2):
        words = ("run", *JSON, "--shards", shards, "--control", self.socket, "--state", self.state,
                 "--session-log", f"json:{self.log}", "--log-denied", self.config)
        return Middlebox(self.net, self.binary, *words).ready()

    def connect(self, port=7000):
        return connect(self.net, [f"192.168.7.{n % HOSTS + 1}" for n in range(HOSTS * EACH)], SERVER, port)


def shard_reload(case, binary, scratch):
    """Rules, pool and hold time change on all shards, or on none; no connection is lost, nor is one by a
    restart."""
    if not have(case, "ping"):
        return
    with Net() as net:
        gate = Gateway(net, binary, scratch)
        box = gate.start()
        pairs = gate.connect()
        count = len(pairs)
        case.equal((exchange(pairs, 0), exchange(pairs, 1)), (count, count), "words before")
        # Again and again while words go both ways.
        over = threading.Event()
        refused = []

        def reloads():
            for turn in range(30):
                gate.write(hold=f"{50 + turn}us")
                gate.rules.write_text(f"deny udp dst port {2000 + turn}\n" + RULES)
                status, answer = gate.ctl("reload")
                if status or answer["changes"] != ["held.hold"] or "fw" not in answer["stages"]:
                    refused.append((status, answer))
            over.set()

        thread = threading.Thread(target=reloads)
        thread.start()
        rounds = 0
        while not over.is_set():
            case.equal((exchange(pairs, 0), exchange(pairs, 1)), (count, count), "words while it reloads")
            rounds += 1
        thread.join()
        case.equal(refused, [], "reloads that failed")
        case.check(rounds > 3, f"only {rounds} rounds of words")
        # Another address: sessions stay, and those that have the new one are answered.
        gate.write(pool=(101, 100))
        status, answer = gate.ctl("reload")
        case.equal((status, answer if status else sorted(answer["changes"])), (0, ["held.hold", "n.pool"]), "another pool")
        more = gate.connect(7001)
        case.equal(exchange(more, 0), count, "words of connections that began behind it")
        case.equal(exchange(pairs, 1), count, "words of those before")
        close(more)
        # What is wrong, or can't be, changes nothing on any shard.
        gate.rules.write_text("allow nonsense\n")
        status, said = gate.ctl("reload")
        case.check(status == 2 and "rules.txt:1" in said, f"wrong rules: {status} {said}")
        gate.rules.write_text(RULES)
        for words, wanted in (({"hairpin": "true"}, "two shards"), ({"more": 'ports = "3000-9000"'}, "start the pipeline anew")):
            gate.write(pool=(101, 100), **words)
            status, said = gate.ctl("reload")
            case.check(status == 2 and wanted in said, f"{words}: {status} {said}")
        case.equal(exchange(pairs, 0), count, "words behind what was refused")
        gate.write(pool=(101, 100))
        _, listed = gate.ctl("ctl", "list", "n", "sessions", "--only", "remote_port=7000")
        case.equal(len(listed["rows"]), count, "sessions of both shards")
        # A restart, the far side speaks first; another one, the near side does.
        for first in (1, 0):
            _, _, err = box.stop(signal.SIGTERM)
            case.check("state saved" in err and "panicked" not in err, err[-600:])
            box = gate.start()
            case.equal(exchange(pairs, first, 20), count, f"words behind a restart, {'ab'[first]} speaks first")
        status, out, err = box.stop(signal.SIGTERM)
        restored = re.search(r"state restored.*entries=(\d+) left_out=(\d+)", err)
        case.check(bool(restored) and int(restored[1]) >= count and restored[2] == "0", f"{restored} {err[-600:]}")
        report = json.loads(out)
        case.check(len(report["shards"]) == 2 and all(shard["packets_in"] > 5 for shard in report["shards"]), f"{status} {err[-300:]}")
        # Of four shards: a session whose port belongs to another shard than its host is left out, the others
        # stay.
        box = gate.start(4)
        alive = exchange(pairs, 0, 3)
        case.check(0 < alive < count, f"{alive} of {count} connections on twice as many shards")
        _, _, err = box.stop(signal.SIGTERM)
        case.check(bool(re.search(r"state restored.*left_out=[1-9]", err)), err[-600:])
        lines = [json.loads(line) for line in gate.log.read_text().splitlines()]
        begun = [line for line in lines if line["event"] == "session_created" and line["remote_port"] == 7000]
        # Restored ones began long ago; those that were left out begin anew.
        case.check(count < len(begun) < 2 * count, f"{len(begun)} sessions began")
        case.equal({line["shard"] for line in begun[:count]}, {0, 1}, "shards of the sessions that began first")
        close(pairs)


TRACKED = "allow arp\nallow state established,related\nallow state new src host 10.77.0.1\ndefault deny\n"


def shard_restart(case, binary, scratch):
    """Connections that a firewall tracks on two shards survive a restart on three, and on one; the far side
    speaks first, which without the state nobody would let pass."""
    rules, state = scratch / "rules.txt", scratch / "state"
    rules.write_text(TRACKED.replace("allow arp\n", ""))
    graph = ("lan :: af_packet(interface=ma); wan :: af_packet(interface=mb); "
             f"lan -> fw :: firewall(rules=\"{rules}\") -> side :: switch(ports=[\"out: src host 10.77.0.1\"]); "
             "wan -> fw; side[out] -> wan; side[other] -> lan")
    with Net() as net:
        for end, other, address in (("a", "b", SERVER), ("b", "a", "10.77.0.1")):
            net.ip(end, "neigh", "replace", address, "lladdr", mac(net, other), "dev", f"{end}0")

        def start(shards, *words):
            return Middlebox(net, binary, "run", *JSON, "--shards", shards, *words, "-e", graph).ready()

        box = start(2, "--state", state)
        pairs = connect(net, ["10.77.0.1"] * 30, SERVER)
        case.equal(exchange(pairs, 0), len(pairs), "words before")
        for shards in (3, 1):
            _, _, err = box.stop(signal.SIGTERM)
            case.check("state saved" in err and "panicked" not in err, err[-600:])
            box = start(shards, "--state", state)
            case.equal(exchange(pairs, 1, 20), len(pairs), f"words behind a restart on {shards} shards")
        _, _, err = box.stop(signal.SIGTERM)
        case.check("left_out=0" in err, err[-600:])
        box = start(2)
        case.equal(exchange(pairs, 1, 1), 0, "words behind a restart without the state")
        box.stop(signal.SIGTERM)
        close(pairs)


def shard_restart_v6(case, binary, scratch):
    """Beside a NAT, which leaves IPv6 alone, a firewall's connections of IPv6 survive a restart on as many
    shards, whoever has begun them, and on others where an inside host has. The end speaks first that rules
    don't let begin."""
    rules, state = scratch / "rules.txt", scratch / "state"
    rules.write_text("allow icmp6\nallow state established\nallow state new dst port 7000\ndefault deny\n")
    graph = f"""
        lan :: af_packet(interface=ma); wan :: af_packet(interface=mb)
        n :: nat(pool=[10.77.0.100], inside=[192.168.7.0/24], hairpin=false, routed=true)
        f :: firewall(rules="{rules}")
        lan -> out :: switch(ports=["v4: ip dst net 0.0.0.0/0"]); out[v4] -> [inside]n[outside] -> wan
        out[other] -> [in]f[out] -> wan
        wan -> back :: switch(ports=["v4: ip dst net 0.0.0.0/0"]); back[v4] -> [outside]n[inside] -> lan
        back[other] -> [back]f[back] -> lan
    """
    inside, outside = ([f"fd77::{end}{n}" for n in range(10, 40)] for end in (1, 2))
    with Net() as net:
        for end, other, own, others in (("a", "b", inside, outside), ("b", "a", outside, inside)):
            for address in own:
                net.ip(end, "addr", "add", f"{address}/64", "dev", f"{end}0", "nodad")
            for address in others:
                net.ip(end, "neigh", "replace", address, "lladdr", mac(net, other), "dev", f"{end}0")

        def bound(end, address, port):
            made = net.socket(end, socket.AF_INET6, socket.SOCK_DGRAM)
            made.bind((address, port))
            return made

        # Of every other pair the inside host has the port that anybody may begin with.
        ports = [(7000, 5000) if n % 2 else (5000, 7000) for n in range(len(inside))]
        pairs = [(bound("a", a, p), bound("b", b, q)) for a, b, (p, q) in zip(inside, outside, ports)]
        # The one that begins stands first.
        pairs = [pair[::-1] if n % 2 else pair for n, pair in enumerate(pairs)]

        def come(first, those=pairs):
            for pair in those:
                pair[first].sendto(b"word", pair[1 - first].getsockname()[:2])
            heard = 0
            for pair in those:
                pair[1 - first].settimeout(0.5)
                try:
                    heard += pair[1 - first].recv(9) == b"word"
                except TimeoutError:
                    pass
            return heard

        def start(shards):
            return Middlebox(net, binary, "run", *JSON, "--shards", shards, "--state", state, "-e", graph).ready()

        box = start(2)
        case.equal((come(0), come(1)), (len(pairs), len(pairs)), "words before")
        for shards, those in ((2, pairs), (3, pairs[::2])):
            _, _, err = box.stop(signal.SIGTERM)
            case.check("state saved" in err and "panicked" not in err, err[-600:])
            box = start(shards)
            case.equal(come(1, those), len(those), f"words behind a restart on {shards} shards")
        _, _, err = box.stop(signal.SIGTERM)
        case.check(f"entries={len(pairs)} left_out=0" in err, err[-600:])
        for one in [one for pair in pairs for one in pair]:
            one.close()


def shard_gateway(case, binary, scratch):
    """The usual gateway on two shards: reframers, a firewall, a router that asks its neighbours, a NAT.
    Connections of 20 hosts come through whichever side speaks, over reloads and a neighbour that is
    forgotten; ARP is answered once, by copies all shards hear it."""
    text = live_operation.GATEWAY + "hairpin = false\n"
    hosts = [f"10.77.1.{number}" for number in range(10, 10 + HOSTS)]
    with Net(routed=True) as net:
        gate = live_operation.Gateway(net, binary, scratch)
        gate.write(text=text)
        for host in hosts:
            net.ip("a", "addr", "add", f"{host}/24", "dev", "a0")
        explained = net.sh("m", binary, "validate", "--explain", gate.config)
        case.check("ARP and neighbour discovery go to all shards" in explained, explained)
        words = ("run", *JSON, "--shards", 2, "--control", gate.socket, gate.config)
        box = Middlebox(net, binary, *words).ready()
        pairs = connect(net, hosts * EACH, live_operation.SERVER)
        count = len(pairs)
        case.equal((exchange(pairs, 0), exchange(pairs, 1)), (count, count), "words of all hosts")
        # A host asks once, and is answered once.
        near = net.wire("a")
        asks = net.mac["a"] + bytes([10, 77, 1, 10]) + bytes(6) + bytes([10, 77, 1, 254])
        near.send(b"\xff" * 6 + net.mac["a"] + bytes([8, 6, 0, 1, 8, 0, 6, 4, 0, 1]) + asks)
        answers = near.receive(0.5, lambda frame: frame[12:14] == b"\x08\x06" and frame[21] == 2)
        case.equal([frame[22:32] for _, frame in answers], [net.mac["ma"] + bytes([10, 77, 1, 254])], "answers to a question by ARP")
        for turn in range(4):
            gate.write(("32us", "64us")[turn % 2], text=text)
            status, answer = gate.ctl("reload")
            case.check(status == 0 and "from_lan.hold" in answer["changes"], f"reload: {status} {answer}")
            # Both ends forget where the gateway is.
            for end in "ab":
                net.sh(end, "ip", "neigh", "flush", "dev", f"{end}0")
            case.equal((exchange(pairs, 0), exchange(pairs, 1)), (count, count), "words behind a reload, of hosts that had to ask")
        case.check("64 bytes" in net.sh("a", "ping", "-c", "1", "-W", "2", "10.77.1.254", check=False), "the router answers no ping")
        close(pairs)
        status, out, err = box.stop(signal.SIGTERM)
        if not case.equal(status, 0, err[-600:]):
            return
        report = json.loads(out)
        case.check(all(shard["packets_in"] > count for shard in report["shards"]), f"shares: {[s['packets_in'] for s in report['shards']]}")
        asked = [next(s["counters"] for s in shard["stages"] if s["name"] == "r") for shard in report["shards"]]
        case.check(all(one["neighbour_questions"] > 0 for one in asked), f"questions of the routers: {asked}")
        case.check(asked[0]["neighbour_answers"] > 0 and asked[1]["neighbour_answers"] == asked[1]["neighbour_announcements"] == 0, f"who answers: {asked}")
        case.equal((report["left_inside"], report["dropped"].get("unresolved", 0)), (0, 0), "left inside, unresolved")


TOLD = """
graph = "a -> fw -> [lan]r; b -> [wan]r; r[lan] -> a; r[wan] -> held -> b"
[stage.a]
type = "af_packet"
interface = "ma"
[stage.b]
type = "af_packet"
interface = "mb"
[stage.fw]
type = "firewall"
rules = "{rules}"
[stage.held]
type = "reframe"
hold = "auto"
hold_min = "16us"
[stage.r]
type = "router"
interfaces = ["lan 02:00:00:00:00:0a 10.77.1.254/24", "wan 02:00:00:00:00:0b 10.77.2.254/24"]
routes = "{routes}"
reload = "100ms"
"""


def shard_told(case, binary, scratch):
    """All shards together tell what each counts or refuses by itself: rules without hits are those that no
    shard has hits of, routes that a router refuses stand in the log, and one hold isn't the sum of two."""
    config, rules, routes, control, log = (scratch / f"told.{name}" for name in ("toml", "rules", "routes", "control", "log"))
    rules.write_text("".join(f"count udp src port {port}\n" for port in (*range(40_000, 40_016), 1)) + "default allow\n")
    routes.write_text("10.8.0.0/16 via 10.77.2.2\n10.9.0.0/16 via 10.77.2.2\n")
    config.write_text(TOLD.format(rules=rules, routes=routes))
    with Net(routed=True) as net:
        near = net.wire("a")
        frames = []
        for flow in range(16):
            frame = bytearray(udp(net, flow, flow))
            frame[:6] = bytes.fromhex("02000000000a")
            frame[28], frame[32] = 1, 2
            frame[24:26] = b"\0\0"
            frame[24:26] = struct.pack("!H", checksum(bytes(frame[14:34])))
            frame[40:42] = b"\0\0"
            frames.append(bytes(frame))
        box = Middlebox(net, binary, "run", *JSON, "--shards", 2, "--control", control, config, log=log).ready()

        def until(come):
            end = time.monotonic() + 10
            while not come() and time.monotonic() < end and box.child.poll() is None:
                for frame in frames:
                    near.send(frame)
                time.sleep(0.05)

        ask = lambda *words: json.loads(subprocess.run([binary, "ctl", *JSON, "--control", control, *words],
                                                       capture_output=True, text=True, check=True).stdout)
        until(lambda: len(ask("rules", "fw")["hits"]) == len(frames))
        told = ask("rules", "fw")
        case.equal([hit["line"] for hit in told["hits"]], list(range(1, 17)), "lines with hits")
        case.equal((told["rules_without_hits"], told["lines_without_hits"]), (1, [17]), "without hits")
        routes.write_text("10.8.0.0/16 via nobody\n")
        until(lambda: "routes refused" in log.read_text())
        case.check("`nobody` is no address" in log.read_text(), f"routes that are wrong: {log.read_text()[-400:]}")
        status, out, err = box.stop(signal.SIGTERM)
        if case.equal(status, 0, f"exit status ({err[-400:]})"):
            report = json.loads(out)
            of = lambda report, name: next(s for s in report["stages"] if s["name"] == name)
            case.equal(of(report, "r")["counters"]["routes"], 2, "routes")
            case.check("nobody" in str(of(report, "r")["report"]), f"the router's report: {of(report, 'r')}")
            holds = [of(shard, "held")["counters"]["hold_ns"] for shard in report["shards"]]
            case.equal(of(report, "held")["counters"]["hold_ns"], max(holds), f"holds of {holds}")


SHARD_OPERATION = (shard_reload, shard_restart, shard_restart_v6, shard_gateway, shard_told)
