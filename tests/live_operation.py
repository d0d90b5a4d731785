"""What an operator does with a pipeline at work between real end hosts: reloads, restarts with state, the
control socket.

Reloads go on for ten seconds; SLIPSTREAM_RELOADS=600 makes it ten minutes (`make soak`).
"""

import fcntl
import json
import os
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path

from live_attacks import resident
from netns import F_SETPIPE_SZ, Middlebox, Net

JSON = ("--format", "json")
CONNECTIONS = 200
ADDRESS = "10.77.2.100"
SERVER = "10.77.2.2"
RULES = "allow state established,related\nallow state new src net 10.77.1.0/24\ndefault deny\n"
GATEWAY = """
graph = '''
lan -> from_lan :: reframe -> fw -> [lan]r
r[lan] -> [back]fw[back] -> lan
r[wan] -> [inside]n[outside] -> wan
wan -> from_wan :: reframe -> [outside]n[inside] -> [wan]r
'''
[stage.lan]
type = "af_packet"
interface = "ma"
[stage.wan]
type = "af_packet"
interface = "mb"
[stage.from_lan]
hold = "{hold}"
[stage.from_wan]
hold = "{hold}"
[stage.fw]
type = "firewall"
rules = "{rules}"
[stage.r]
type = "router"
interfaces = ["lan 10.77.1.254/24 {ma}", "wan 10.77.2.254/24 {mb}"]
[stage.n]
type = "nat"
pool = [{pool}]
loose = false
"""


class Controlled:
    """A pipeline of `binary` that serves an operator at `socket`."""

    def ctl(self, *words):
        """A request; the exit status and the answer, or what was said."""
        done = subprocess.run([self.binary, *map(str, words), "--control", self.socket, *JSON], capture_output=True, text=True,
                              check=False, timeout=60)
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr


class Gateway(Controlled):
    """A firewall, a NAT and reframers between two hosts, by a configuration file."""

    def __init__(self, net, binary, scratch):
        self.net, self.binary, self.scratch = net, binary, scratch
        self.config, self.rules = scratch / "gateway.toml", scratch / "rules.txt"
        self.socket, self.state = scratch / "control", scratch / "state"
        self.rules.write_text(RULES)
        self.write()
        for end, here, there in (("a", 1, 2), ("b", 2, 1)):
            net.ip(end, "route", "add", f"10.77.{there}.0/24", "via", f"10.77.{here}.254")

    def write(self, hold="64us", pool=(ADDRESS,), text=GATEWAY):
        listed = ", ".join(f'"{address}"' for address in pool)
        ma, mb = (":".join(f"{byte:02x}" for byte in self.net.mac[end]) for end in ("ma", "mb"))
        self.config.write_text(text.format(rules=self.rules, hold=hold, pool=listed, ma=ma, mb=mb))

    def start(self, *words, log=None, watched=False):
        words = ("run", *JSON, "--control", self.socket, *words, self.config)
        return Middlebox(self.net, self.binary, *words, log=log, watched=watched).ready()


def connect(net, hosts, server=SERVER, port=7000):
    """Connections from these addresses of a ("": any) to a server in b: pairs of both ends' sockets."""
    listener = net.socket("b", socket.AF_INET, socket.SOCK_STREAM)
    listener.bind((server, port))
    listener.listen(len(hosts))
    listener.settimeout(10)
    pairs = []
    for host in hosts:
        near = net.socket("a", socket.AF_INET, socket.SOCK_STREAM)
        near.bind((host, 0))
        near.settimeout(10)
        near.connect((server, port))
        far, _ = listener.accept()
        far.settimeout(10)
        pairs.append((near, far))
    listener.close()
    return pairs


def exchange(pairs, first, seconds=10):
    """Each pair exchanges a word, `first` (0: a, 1: b) speaks; how many of the words arrived in time."""
    for number, pair in enumerate(pairs):
        pair[first].send(b"%08d" % number)
    waiting = {pair[1 - first]: number for number, pair in enumerate(pairs)}
    arrived, end = 0, time.monotonic() + seconds
    while waiting and (left := end - time.monotonic()) > 0:
        ready, _, _ = select.select(list(waiting), [], [], left)
        for end_of in ready:
            arrived += end_of.recv(64) == b"%08d" % waiting.pop(end_of)
    return arrived


def close(pairs):
    for pair in pairs:
        for end in pair:
            end.close()


class Threads:
    """Runs `threads` as long as a block does; `over` tells them that it has ended."""

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join()


class Datagrams(Threads):
    """Numbered datagrams from 16 ports of a to b, a thousand a second, from `with` to its end; those that
    arrived."""

    def __init__(self, net):
        self.near = [net.socket("a", socket.AF_INET, socket.SOCK_DGRAM) for _ in range(16)]
        self.far = net.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        self.far.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        self.far.bind((SERVER, 9))
        self.far.settimeout(2)
        self.over, self.sent, self.got = threading.Event(), 0, []
        self.threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def _send(self):
        # Neighbours find each other first.
        while not self.over.is_set():
            for _ in range(8):
                self.near[self.sent % 16].sendto(struct.pack("!I", self.sent), (SERVER, 9))
                self.sent += 1
            time.sleep(0.008)

    def _receive(self):
        try:
            while True:
                data, _ = self.far.recvfrom(64)
                self.got.append(struct.unpack("!I", data)[0])
        except TimeoutError:
            pass

    def __exit__(self, *_):
        super().__exit__()
        for end in (*self.near, self.far):
            end.close()

    def check(self, case):
        """None was lost, and those of a flow came in order."""
        missing = sorted(set(range(self.sent)) - set(self.got))
        case.check(not missing and len(self.got) == self.sent, f"{len(missing)} of {self.sent} datagrams were lost: {missing[:9]}")
        for flow in range(16):
            mine = [number for number in self.got if number % 16 == flow]
            case.equal(mine, sorted(mine), f"order of flow {flow}")


def ended(case, box, how=signal.SIGTERM):
    status, out, err = box.stop(how)
    if not case.equal(status, 0, f"exit status ({err.strip()[-600:]})"):
        return None, err
    report = json.loads(out)
    case.equal(report["left_inside"], 0, "left inside")
    case.check("panicked" not in err, err)
    return report, err


def restart(case, binary, scratch):
    """200 connections through a firewall and a NAT survive a restart with their state, whichever side speaks
    first; without it they don't. A state that is damaged is refused."""
    with Net(routed=True) as net:
        gateway = Gateway(net, binary, scratch)
        box = gateway.start("--state", gateway.state, "--session-log", f"json:{scratch / 'sessions.json'}")
        pairs = connect(net, [""] * CONNECTIONS)
        half = CONNECTIONS // 2
        case.equal(exchange(pairs, 0), CONNECTIONS, "words before the restart")
        status, answer = gateway.ctl("ctl", "list", "n", "sessions", "--limit", "0")
        if case.equal(status, 0, f"ctl list: {answer}"):
            ports = {row["external_port"] for row in answer["rows"] if row["remote_port"] == 7000 and row["external"] == ADDRESS}
            case.equal(len(ports), CONNECTIONS, "external ports of the sessions that are listed")
        _, err = ended(case, box)
        # Names are quoted, whatever is in them.
        case.check(f'state saved file="{gateway.state}"' in err, err[-600:])
        logged = [json.loads(line) for line in (scratch / "sessions.json").read_text().splitlines()]
        begun = {line["inside_port"] for line in logged if line["event"] == "session_created" and line["remote_port"] == 7000}
        case.equal(len(begun), CONNECTIONS, "sessions that were logged")
        box = gateway.start("--state", gateway.state)
        case.equal(exchange(pairs[:half], 1), half, "words after the restart where the server speaks first")
        case.equal(exchange(pairs[half:], 0), CONNECTIONS - half, "words after the restart where the client speaks first")
        case.equal(exchange(pairs, 1), CONNECTIONS, "words behind those")
        # Somebody may be made to leave.
        port = pairs[0][0].getsockname()[1]
        status, answer = gateway.ctl("ctl", "delete", "n", "sessions", "--only", f"inside_port={port}")
        case.check(status == 0 and answer["removed"] == 1, f"ctl delete: {answer}")
        case.equal(exchange(pairs[:1], 1, 1), 0, "words of a session that was deleted")
        _, err = ended(case, box)
        case.check("state restored" in err and f"entries={2 * CONNECTIONS}" in err, err)
        # Without the state nothing of it comes through.
        box = gateway.start()
        case.equal(exchange(pairs[1:half], 1, 1), 0, "words after a restart without state")
        ended(case, box)
        close(pairs)
        whole = gateway.state.read_bytes()
        case.equal(gateway.state.stat().st_mode & 0o777, 0o600, "mode of the state")
        for bad, why in ((whole[:-9], "damaged"), (b"\xd4\xc3\xb2\xa1" * 9, "no state"), (whole[:8] + b"\7" + whole[9:], "layout 7")):
            gateway.state.write_bytes(bad)
            status, _, err = gateway.start("--state", gateway.state).wait(10)
            case.check(status == 2 and why in err and "--state-unreadable" in err, f"{why}: {status} {err}")
        _, err = ended(case, gateway.start("--state", gateway.state, "--state-unreadable", "ignore"))
        case.check("left out" in err, err)
        # One that can't be written is told of where something else has ended the run, too.
        folder = scratch / "taken-away"
        folder.mkdir()
        box = gateway.start("--state", folder / "state")
        shutil.rmtree(folder)
        net.ip("m", "link", "del", "dev", "ma")
        status, _, err = box.wait(10)
        case.check(status == 2 and "could not be saved" in err and "`ma` is gone" in err, f"{status} {err}")


# Memory of rings and tables that is touched for the first time, in KiB. What a reload leaves behind would be
# more than that in half an hour. For a moment the tables of before are there beside the new ones, twice where
# the machine is slow; what is left behind is there in between, too, so that the least of several counts.
GROWTH = 65536


def reloads(case, binary, scratch):
    """Other rules, addresses and hold times every half second while connections and datagrams go on: none is
    lost. What is wrong, or can't change, is refused with its line."""
    seconds = float(os.environ.get("SLIPSTREAM_RELOADS", "10"))
    with Net(routed=True) as net:
        gateway = Gateway(net, binary, scratch)
        box = gateway.start()
        pairs = connect(net, [""] * 20)
        with Datagrams(net) as datagrams:
            since, turn, words, early, late = time.monotonic(), 0, 0, [resident(box)], []
            while time.monotonic() - since < seconds:
                turn += 1
                pool = (ADDRESS, "10.77.2.101", "10.77.2.102")[:1 + turn % 3]
                gateway.rules.write_text(RULES + "".join(f"deny tcp port {port}\n" for port in range(100, 100 + turn % 50)))
                gateway.write(("64us", "32us", "100us")[turn % 3], pool)
                if turn % 2:
                    box.child.send_signal(signal.SIGHUP)
                else:
                    status, answer = gateway.ctl("reload")
                    case.check(status == 0 and "n.pool" in answer["changes"], f"reload: {answer}")
                words += exchange(pairs, turn % 2)
                time.sleep(0.3)
                # What takes memory for the first time has done so within the first third.
                passed = (time.monotonic() - since) / seconds
                if passed < 1 / 3:
                    early.append(resident(box))
                elif passed > 2 / 3:
                    late.append(resident(box))
                status, shown = gateway.ctl("ctl", "show")
                held = sum(stage["held"] for stage in shown["stages"]) if status == 0 else shown
                case.check(status == 0 and held < 64, f"packets held after {turn} reloads: {held}")
            case.equal(words, turn * len(pairs), "words over connections while it reloads")
            case.check(late and min(late) <= max(early) + GROWTH, f"KiB resident in the last third of {turn} reloads: {late}, "
                                                                  f"in the first: {early}")
            # Nothing of these changes anything.
            for text, line, why in ((GATEWAY.replace("loose", "louse"), "line 27", "louse"),
                                    (GATEWAY + "sessions = 4096\n", "line 28", "`sessions` of `n` can't change"),
                                    (GATEWAY.replace("fw -> [lan]r", "fw -> c :: counter -> [lan]r"), "line 3", "no stage `c`")):
                gateway.write(text=text)
                status, answer = gateway.ctl("reload")
                case.check(status == 2 and line in answer and why in answer, f"{why}: {status} {answer}")
            gateway.write()
            gateway.rules.write_text(RULES + "deny nonsense\n")
            status, answer = gateway.ctl("reload")
            case.check(status == 2 and "rules.txt:4:" in answer, f"wrong rules: {status} {answer}")
            case.equal(exchange(pairs, 0), len(pairs), "words after reloads that were refused")
            time.sleep(0.3)
        datagrams.check(case)
        close(pairs)
        report, err = ended(case, box)
        if report:
            case.equal(report["dropped"].get("no_mapping", 0), 0, "packets of no session")
        case.check(err.count("reload refused") == 4 and "reloaded" in err, err)


def talk(path, data, answers=1, seconds=5):
    """What the socket says to these bytes."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(seconds)
        client.connect(str(path))
        client.sendall(data)
        got = b""
        while got.count(b"\n") < answers and (more := client.recv(1 << 16)):
            got += more
        return [json.loads(line) for line in got.splitlines()]


def abuse(case, binary, scratch):
    """The control socket under garbage, slow readers and a thousand connections: packets go on, and its owner
    is served."""
    with Net(routed=True) as net:
        gateway = Gateway(net, binary, scratch)
        box = gateway.start()
        path = gateway.socket
        case.equal(path.stat().st_mode & 0o777, 0o600, "mode of the socket")
        close(connect(net, [""]))
        with Datagrams(net) as datagrams:
            for garbage in (b"\n\nhello\n", b"\x00\xff\n", b"[" * 5000 + b"\n", b'{"do": 5}\n', b'{"do": "list", "stage": "n"}\n', b"x" * 20000):
                answers = talk(path, garbage)
                case.check(answers and answers[0]["ok"] is False and answers[0]["error"], f"{garbage[:20]}: {answers}")
            many = []
            for number in range(1000):
                client = socket.socket(socket.AF_UNIX)
                client.setblocking(False)
                try:
                    client.connect(str(path))
                    # Half a request, or many of which nobody reads the answers.
                    client.send(b'{"do": "li' if number % 2 else b'{"do": "report"}\n' * 100)
                except (BlockingIOError, ConnectionError):
                    pass
                many.append(client)
            case.check(talk(path, b'{"do": "ping"}\n', seconds=30)[0]["ok"], "its owner is served")
            for client in many:
                client.close()
            status, answer = gateway.ctl("ctl", "show")
            case.check(status == 0 and {"fw", "n", "from_lan"} <= {stage["name"] for stage in answer["stages"]}, f"ctl show: {answer}")
            status, answer = gateway.ctl("ctl", "rules", "fw")
            case.check(status == 0 and sum(hit["packets"] for hit in answer["hits"]) > 0, f"ctl rules: {answer}")
            second = gateway.start()
            status, _, err = second.wait(10)
            case.check(status == 2 and "another process serves there" in err, f"two at one socket: {status} {err}")
        datagrams.check(case)
        ended(case, box)
        case.check(not path.exists(), "the socket is left behind")


def log(case, binary, scratch):
    """The log: running, a link that goes down and comes up, the first drop and the denials with their rule; a
    service manager hears that it runs, lives and ends."""
    with Net(routed=True) as net:
        gateway = Gateway(net, binary, scratch)
        gateway.rules.write_text("allow tcp\ndeny udp dst port 9\n")
        box = gateway.start("--log-format", "json", "--log-denied", watched=True)
        near = net.socket("a", socket.AF_INET, socket.SOCK_DGRAM)
        for number in range(50):
            near.sendto(b"no", (SERVER, 9))
            time.sleep(0.01)
        near.close()
        time.sleep(1.2)
        net.ip("m", "link", "set", "dev", "mb", "down")
        time.sleep(1.3)
        net.ip("m", "link", "set", "dev", "mb", "up")
        time.sleep(1.5)
        asked = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        box.child.send_signal(signal.SIGHUP)
        while not any(said.startswith("RELOADING=1") for said in box.told):
            if not box.hear(5):
                break
        reloading = [said for said in box.told if said.startswith("RELOADING=1")]
        case.equal(len(reloading), 1, f"notes of a reload in {box.told}")
        at = int(reloading[0].partition("MONOTONIC_USEC=")[2] or 0)
        case.check(asked <= at < asked + 5_000_000, f"a reload asked for at {asked} µs is said to begin at {at}")
        status, _, err = box.stop(signal.SIGTERM)
        case.equal(status, 0, f"exit status ({err})")
        lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        said = [(line["message"], line.get("state") or line.get("reason") or line.get("rule")) for line in lines]
        for wanted in (("running", None), ("first drop for this reason", "denied"), ("denied", "line 2"), ("link", "down"), ("link", "up"),
                       ("ended", "it was asked to")):
            case.check(wanted in said, f"{wanted} is not among {said}")
        case.check(said.count(("denied", "line 2")) <= 20, "denials are not bounded")
        while box.hear(1):
            pass
        case.check(box.told[:1] == ["READY=1\nSTATUS=running"] and "WATCHDOG=1" in box.told and box.told[-1] == "STOPPING=1", f"{box.told}")


def unread(case, binary, scratch):
    """A log that nobody reads: reloads and packets go on, lines are left out and counted, and the run ends
    when it is asked to."""
    many = 400
    with Net(routed=True) as net:
        gateway = Gateway(net, binary, scratch)

        def full(box):
            fcntl.fcntl(box.child.stderr, F_SETPIPE_SZ, 4096)
            answers = talk(gateway.socket, b'{"do": "reload"}\n' * many, many, 30)
            case.equal([answer["ok"] for answer in answers], [True] * many, "reloads while nobody reads the log")
            return box

        box = gateway.start()
        pairs = connect(net, [""])
        with Datagrams(net) as datagrams:
            full(box)
            case.equal(exchange(pairs, 0), 1, "words while nobody reads the log")
        datagrams.check(case)
        close(pairs)
        # Once somebody does, the log says how much is missing; what was kept is whole.
        text = b""
        while b"lines_left_out" not in text and select.select([box.child.stderr], [], [], 10)[0]:
            text += os.read(box.child.stderr.fileno(), 1 << 16)
        told = re.search(rb"lines_left_out=(\d+)", text)
        if case.check(bool(told), f"the log doesn't say how many lines it lost: {text[-300:]}"):
            # Among those that were left out may be a few about other things, such as packets that were late.
            lines = text.count(b" reloaded ") + int(told[1])
            case.check(many <= lines <= many + 20, f"lines that were kept and those that were left out: {lines} of {many}")
        ended(case, box)
        box = full(gateway.start())
        box.child.send_signal(signal.SIGTERM)
        try:
            case.equal(box.child.wait(10), 0, "exit status while nobody reads the log")
        except subprocess.TimeoutExpired:
            case.check(False, "it waits for somebody to read the log")


def exporting(net, binary, collector):
    """Sockets of a collector of a NAT's sessions and of one of flows, at this address, and a pipeline that
    exports to both."""
    readers = {}
    for what in ("sessions", "flows"):
        readers[what] = net.socket("b", socket.AF_INET, socket.SOCK_DGRAM)
        readers[what].bind((collector, 0))
        readers[what].settimeout(15)
    ports = {what: reader.getsockname()[1] for what, reader in readers.items()}
    graph = ("in :: paced(rate=1kpps, traffic=\"flows=100000,order=round-robin,size=60\") -> "
             f"f :: flow_stats(export=\"udp:{collector}:{ports['flows']}\", idle=1s) -> nat(pool=\"192.0.2.1\") -> null")
    return readers, Middlebox(net, binary, "run", *JSON, "--session-log", f"ipfix:{collector}:{ports['sessions']}", "-e", graph).ready()


def renumbered(case, binary, _):
    """Collectors go on to hear of sessions and flows where this machine's address is another one by and by;
    the first message by the new one has the templates."""
    before, after, collector = "10.77.0.50", "10.77.0.51", "10.77.0.2"
    with Net() as net:
        net.ip("m", "addr", "add", f"{before}/24", "dev", "mb")
        readers, box = exporting(net, binary, collector)
        for reader in readers.values():
            case.equal(reader.recvfrom(2000)[1][0], before, "the address in the beginning")
        net.ip("m", "addr", "del", f"{before}/24", "dev", "mb")
        net.ip("m", "addr", "add", f"{after}/24", "dev", "mb")
        for what, reader in readers.items():
            try:
                message, sender = reader.recvfrom(2000)
                while sender[0] != after:
                    message, sender = reader.recvfrom(2000)
                case.equal(message[16:18], b"\0\2", f"{what}: the first set of the first message")
            except TimeoutError:
                case.check(False, f"nothing is heard of {what} any more")
            reader.close()
        status, _, err = box.stop()
        case.equal(status, 0, f"exit status ({err})")
        case.check("the log of sessions can't be written" in err, err)


def no_way_yet(case, binary, _):
    """A machine that has no way to its collectors yet, as while it starts: the pipeline starts, the log says
    what can't be sent, and collectors hear of it from when there is a way; the first message has the
    templates."""
    collector = "10.77.0.2"
    with Net() as net:
        readers, box = exporting(net, binary, collector)
        time.sleep(3.5)
        if not case.check(box.child.poll() is None, "it doesn't start without a way"):
            case.check(False, box.stop()[2])
            return
        net.ip("m", "addr", "add", "10.77.0.50/24", "dev", "mb")
        for what, reader in readers.items():
            try:
                case.equal(reader.recv(2000)[16:18], b"\0\2", f"{what}: the first set of the first message")
            except TimeoutError:
                case.check(False, f"nothing is heard of {what}")
            reader.close()
        time.sleep(2)
        status, _, err = box.stop()
        case.equal(status, 0, f"exit status ({err})")
        for words in ("the log of sessions can't be written", "nothing can be sent to the collector", "writes again"):
            case.check(words in err, f"{words}: {err}")


def addressed(case, binary, scratch):
    """An address that the system gets on an interface while packets pass there is told of."""
    with Net() as net:
        graph = "a :: af_packet(interface=ma); b :: af_packet(interface=mb); a -> b; b -> a"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph, log=scratch / "log").ready()
        time.sleep(1)
        case.check("has addresses" not in box.log.read_text(), "addresses before there are any")
        net.ip("m", "addr", "add", "10.99.0.1/24", "dev", "ma")
        end = time.monotonic() + 15
        while "10.99.0.1" not in box.log.read_text() and time.monotonic() < end:
            time.sleep(0.2)
        status, _, err = box.stop()
        case.equal((status, err.count("the system has addresses")), (0, 1), f"exit status and warnings ({err})")


def screen(case, binary, _):
    """A signal ends the screen of `top`, and its terminal is as it was before."""
    words = ("run", "-e", "paced(rate=1kpps) -> null", "--metrics", "127.0.0.1:0", "--duration", "60s")
    run = subprocess.Popen([binary, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    address = next(line for line in run.stderr if line.startswith("metrics: ")).split("/")[2]
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        ours, theirs = os.openpty()
        line_mode = termios.ICANON | termios.ECHO | termios.ISIG
        before = termios.tcgetattr(theirs)[3] & line_mode
        top = subprocess.Popen([binary, "top", address], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE,
                               text=True, start_new_session=True, env={**os.environ, "TERM": "xterm"})
        shown = b""

        def shows(what):
            nonlocal shown
            while what not in shown and select.select([ours], [], [], 10)[0]:
                shown += os.read(ours, 65536)
            return what in shown

        case.check(shows(b"\x1b[?1049h"), f"{number.name}: the screen isn't there: {shown}")
        top.send_signal(number)
        case.check(shows(b"\x1b[?1049l"), f"{number.name}: the screen stays: {shown[-200:]}")
        case.equal(top.wait(10), 130, f"{number.name}: exit status")
        case.equal(top.stderr.read(), "slipstream: interrupted\n", f"{number.name}: on stderr")
        case.equal(termios.tcgetattr(theirs)[3] & line_mode, before, f"{number.name}: the terminal's settings")
        top.stderr.close()
        os.close(ours)
        os.close(theirs)
    run.terminate()
    run.stderr.read()
    case.equal(run.wait(10), 0, "exit status of the pipeline")


def socket_of_another(case, binary, scratch):
    """Who may not ask another user's socket, and takes its place all the same, is told so; one of another
    type stays, and the run doesn't start."""
    folder = scratch / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    path = folder / "control"
    as_nobody = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=+net_raw", "--ambient-caps=+net_raw")
    with Net() as net:
        # The program's own folder may be closed to other users.
        program = Path(net.scratch.name) / "slipstream"
        shutil.copy(binary, program)
        run = (program, "run", *JSON, "--duration", "200ms", "--control", path, "-e", "af_packet(interface=ma) -> null")
        with socket.socket(socket.AF_UNIX) as other:
            other.bind(str(path))
            path.chmod(0o600)
            other.listen()
            child = net.start("m", *as_nobody, *run)
            _, err = child.communicate(timeout=10)
            case.check(child.returncode == 0 and "another user's socket" in err, f"another user's: {child.returncode} {err}")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
            other.bind(str(path))
            child = net.start("m", *run)
            _, err = child.communicate(timeout=10)
            case.check(child.returncode == 2 and "another type" in err, f"for datagrams: {child.returncode} {err}")
            case.check(path.is_socket(), "it was taken away")


OPERATION = (restart, reloads, abuse, socket_of_another, log, unread, renumbered, no_way_yet, addressed, screen)
