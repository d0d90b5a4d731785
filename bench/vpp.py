#!/usr/bin/env python3
"""The same work by VPP and by us, over the same DPDK ports: forwarding, and a chain behind 10,000 rules.

usage: python3 bench/vpp.py BUILD [--binary target/dpdk/release/slipstream] [--runs 3] [--packets 5000000]

BUILD is the folder that VPP was built in (`vpp`, `vppctl` and the plugins acl, dpdk, flowprobe, nat and
ping). Packets come from a capture that net_pcap has in memory, over and over, and leave by net_null: so both
are busy all the time. VPP's figure is the time of its one worker, alone on core 1, over the packets that came
by net_pcap; ours is what `bench/dpdk.py` measures. They take turns; medians are told.

VPP forwards by a cross connect of layer 2. Its chain is a record per flow (flowprobe), an ACL of the same
rules, a session per flow before it, where that is said, and NAT44 between two routed interfaces; ours is
flow_stats, firewall and nat, with a reframer before them, where that is said. It takes root, for huge pages.
"""
import argparse
import os
import re
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dpdk

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from huge_pages import huge_pages  # noqa: E402

PAGES = 1000
# Packets that we take at once at most: as many as VPP does.
BURST = 256
STARTUP = """unix {{ nodaemon cli-listen {folder}/cli.sock log {folder}/vpp.log }}
memory {{ main-heap-size 3G main-heap-page-size 4k }}
buffers {{ buffers-per-numa 65536 }}
statseg {{ page-size 4k size 128m }}
plugins {{ path {build}/lib/x86_64-linux-gnu/vpp_plugins }}
cpu {{ main-core 0 corelist-workers 1 }}
dpdk {{ no-pci vdev net_pcap0,rx_pcap={capture},infinite_rx=1 vdev net_null1,no-rx=1 }}
ethernet {{ default-mtu 1500 }}
"""
# The Ethernet address of the first port of net_pcap. VPP routes what is sent to it.
ADDRESS = b"\x02pcap\0"
# Rules of one ACL: VPP takes so many in a line of its command line.
LIST = 400
# The default, and one in which all flows of a capture come again.
HOLDS = ("64us", "2ms")


def addressed_to(path, into, address):
    """Copies a capture (little endian pcap) whose frames go to this Ethernet address."""
    data = bytearray(Path(path).read_bytes())
    at = 24
    while at < len(data):
        captured = struct.unpack_from("<I", data, at + 8)[0]
        data[at + 16:at + 22] = address
        at += 16 + captured
    Path(into).write_bytes(data)


def acl(rules, sessions):
    """Our rules as VPP's."""
    entries = []
    for line in Path(rules).read_text(encoding="utf-8").splitlines():
        words = re.fullmatch(r"deny (tcp|udp) src net (\S+) dst net (\S+) dst port (\d+)", line)
        if words:
            protocol = {"tcp": 6, "udp": 17}[words[1]]
            entries.append(f"deny src {words[2]} dst {words[3]} proto {protocol} sport 0-65535 dport {words[4]}")
    return [*entries, "permit+reflect" if sessions else "permit"]


class Vpp:
    """A running VPP."""

    def __init__(self, build, folder, capture):
        libraries = f"{build}/lib/x86_64-linux-gnu:{os.environ.get('LD_LIBRARY_PATH', '')}"
        self.environment = {**os.environ, "LD_LIBRARY_PATH": libraries}
        self.control = [f"{build}/bin/vppctl", "-s", f"{folder}/cli.sock"]
        Path(f"{folder}/startup.conf").write_text(STARTUP.format(folder=folder, build=build, capture=capture), encoding="utf-8")
        Path("/run/vpp").mkdir(exist_ok=True)
        self.log = open(f"{folder}/out", "w", encoding="utf-8")
        self.process = subprocess.Popen([f"{build}/bin/vpp", "-c", f"{folder}/startup.conf"], env=self.environment, stdout=self.log,
                                        stderr=subprocess.STDOUT)
        until = time.monotonic() + 30
        while not Path(f"{folder}/cli.sock").exists() or "v" not in self.say("show version"):
            if self.process.poll() is not None or time.monotonic() > until:
                self.end()
                sys.exit(f"VPP doesn't start: {Path(folder, 'out').read_text(encoding='utf-8')[-2000:]}")
            time.sleep(0.2)
        self.ports = re.findall(r"^(\S*Ethernet\S*)\s+\d+", self.say("show interface"), re.M)
        if len(self.ports) != 2:
            said = f"{self.say('show interface')} {self.say('show log')}"
            self.end()
            sys.exit(f"VPP has not two ports: {said}")

    def say(self, command):
        """A command of its command line, and what it says."""
        return subprocess.run([*self.control, command], env=self.environment, capture_output=True, text=True, check=False).stdout

    def must(self, command):
        """The same of a command that says nothing if all is well."""
        said = self.say(command).strip()
        if said:
            sys.exit(f"VPP: {command[:200]}: {said}")

    def packets(self, port, way):
        """Packets that came by a port (`rx`) or left by it (`tx`)."""
        return int((re.search(rf"{way} packets\s+(\d+)", self.say(f"show interface {port}")) or [0, 0])[1])

    def end(self):
        """Ends it."""
        self.process.terminate()
        self.process.wait(20)
        self.log.close()

    def forward(self):
        """A cross connect."""
        near, far = self.ports
        for port, other in ((near, far), (far, near)):
            self.must(f"set interface l2 xconnect {port} {other}")

    def chain(self, rules, sessions, folder):
        """Records, rules and NAT between two routed ports."""
        near, far = self.ports
        self.must(f"set interface ip address {near} 10.255.255.1/24")
        self.must(f"set interface ip address {far} 192.0.2.1/24")
        self.must(f"set ip neighbor static {far} 192.0.2.9 02:00:00:00:01:09")
        self.must(f"ip route add 0.0.0.0/0 via 192.0.2.9 {far}")
        entries = acl(rules, sessions)
        lists = [entries[at:at + LIST] for at in range(0, len(entries), LIST)]
        commands = [f"set acl-plugin acl {', '.join(some)}" for some in lists]
        commands += [f"set acl-plugin interface {near} input acl {n}" for n in range(len(lists))]
        Path(folder, "acl.cli").write_text("\n".join(commands) + "\n", encoding="utf-8")
        self.say(f"exec {folder}/acl.cli")
        said = self.say("show acl-plugin interface")
        taken = re.search(r"input acl\(s\): ([\d, ]+)", said)
        if not taken or len(taken[1].split(",")) != len(lists):
            sys.exit(f"VPP has not taken {len(lists)} lists of rules: {said}")
        self.must("nat44 plugin enable sessions 65536")
        self.must("nat44 add address 203.0.113.0 - 203.0.113.31")
        self.must(f"set interface nat44 in {near} out {far}")
        self.say("set ipfix exporter collector 192.0.2.9 src 192.0.2.1 template-interval 20 port 4739 path-mtu 1450")
        self.must("flowprobe params record l3 l4 active 120 passive 300")
        self.must(f"flowprobe feature add-del {far} ip4")


def vpp(build, capture, configure, seconds):
    """ns a packet of VPP's worker, where `configure` says what it does. All packets must leave, but for what
    is on its way."""
    with tempfile.TemporaryDirectory() as folder:
        running = Vpp(build, folder, capture)
        try:
            configure(running, folder)
            near, far = running.ports
            for port in (near, far):
                running.must(f"set interface state {port} up")
            time.sleep(2)
            come, left, since = running.packets(near, "rx"), running.packets(far, "tx"), time.monotonic()
            time.sleep(seconds)
            packets, gone = running.packets(near, "rx") - come, running.packets(far, "tx") - left
            took = time.monotonic() - since
            if not packets or abs(gone - packets) > 0.01 * packets:
                sys.exit(f"VPP passed {gone} of {packets} packets: {running.say('show errors')}")
            return took * 1e9 / packets
        finally:
            running.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--binary", default=dpdk.harness.ROOT / "target/dpdk/release/slipstream", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--packets", type=int, default=5_000_000)
    parser.add_argument("--seconds", type=float, default=2)
    arguments = parser.parse_args()
    dpdk.harness.ends_tidily()
    binary = str(dpdk.harness.program(arguments.binary, "make dpdk"))
    for name in ("vpp", "vppctl"):
        dpdk.harness.program(Path(arguments.build, "bin", name), "BUILD is the folder that VPP was built in")
    dpdk.harness.needed(root=True)
    out = f"out :: {dpdk.null(1, BURST)}"
    rows = {}
    with tempfile.TemporaryDirectory() as folder, huge_pages(PAGES):
        rules = f"{folder}/rules"
        dpdk.write_rules(rules, 10_000)
        captures = {}
        for slf in (1, 16):
            made, captures[slf] = f"{folder}/made{slf}.pcap", f"{folder}/slf{slf}.pcap"
            dpdk.write_capture(binary, made, slf)
            addressed_to(made, captures[slf], ADDRESS)
        for _ in range(arguments.runs):
            for slf, capture in captures.items():
                start, chain = f"in :: {dpdk.pcap(capture, BURST)}", dpdk.CHAIN.format(rules=f'"{rules}"')
                ours = lambda graph: dpdk.slipstream(binary, graph, arguments.packets)[1]
                theirs = lambda configure: vpp(arguments.build, capture, configure, arguments.seconds)
                turn = {
                    "forward": (ours(f"{start} -> {out}"), theirs(lambda v, _: v.forward())),
                    "chain of 10 k rules": (ours(f"{start} -> {chain} -> {out}"), theirs(lambda v, f: v.chain(rules, False, f))),
                }
                each, sessions = turn["chain of 10 k rules"][1], theirs(lambda v, f: v.chain(rules, True, f))
                turn["the same; VPP with a session per flow"] = (turn["chain of 10 k rules"][0], sessions)
                for hold in HOLDS:
                    held = ours(f"{start} -> reframe(hold={hold}) -> {chain} -> {out}")
                    turn[f"reframe, hold {hold}, and the chain; VPP's chain"] = (held, each)
                    turn[f"reframe, hold {hold}, and the chain; VPP's with a session per flow"] = (held, sessions)
                for name, figures in turn.items():
                    rows.setdefault(f"{name}, SLF {slf}", []).append(figures)
    print("| | ours, ns a packet | VPP's | VPP's over ours |\n|---|---|---|---|")
    for name, figures in rows.items():
        ours, theirs = (statistics.median(f[n] for f in figures) for n in (0, 1))
        print(f"| {name} | {ours:.1f} | {theirs:.1f} | {statistics.median(b / a for a, b in figures):.1f} |")


if __name__ == "__main__":
    main()
