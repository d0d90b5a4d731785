#!/usr/bin/env python3
"""Reloads every second under load: iperf3, wrk, 10,000 UDP flows; reframers, firewall, router and NAT.

usage: bench/reloads.py [--binary target/release/slipstream] [--seconds 600]

Hold times, rules and the NAT's addresses change with each reload. Told at the end: connections of iperf3 and
wrk that broke, datagrams that were lost or came twice, what the program says of reloads, its memory early on
and at the end, and packets that it held. iperf3's rate is bounded, so that the machine isn't the bottleneck.
Needs root, ip, ethtool, iperf3, wrk and nginx.
"""

import argparse
import json
import os
import signal
import struct
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import harness  # noqa: E402
import netns  # noqa: E402
from live_attacks import resident  # noqa: E402
from live_functions import nginx  # noqa: E402
from live_operation import ADDRESS, GATEWAY, RULES, SERVER, Gateway, Threads  # noqa: E402
from netns import Net, udp  # noqa: E402

# Four programs share the machine's cores: packets wait for a while.
CONFIGURATION = GATEWAY.replace('interface = "ma"', 'interface = "ma"\nring = 32768').replace('interface = "mb"', 'interface = "mb"\nring = 32768')
FLOWS = 10_000
RATE = 2_000
PORT = 9


class Flows(Threads):
    """Datagrams of many flows, numbered, in turn; what arrived of them."""

    def __init__(self, net):
        self.near = net.wire("a")
        self.far = net.socket("b", netns.socket.AF_INET, netns.socket.SOCK_DGRAM)
        self.far.setsockopt(netns.socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self.far.bind((SERVER, PORT))
        self.far.settimeout(1)
        frame = bytearray(udp(net, 0))
        frame[0:6] = net.mac["ma"]
        frame[26:34] = bytes([10, 77, 1, 1, 10, 77, 2, 2])
        frame[24:26] = b"\0\0"
        frame[24:26] = struct.pack("!H", netns.checksum(bytes(frame[14:34])))
        frame[40:42] = b"\0\0"  # a datagram may go without a checksum
        self.frame, self.sent, self.seen, self.twice = frame, 0, bytearray(), 0
        # The longest time in which this process itself was not on a core: of the machine, not of what is
        # measured.
        self.stood_still = 0.0
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self._send), threading.Thread(target=self._receive)]

    def _send(self):
        since, frame = time.monotonic(), self.frame
        last = since
        while not self.over.is_set():
            for _ in range(20):
                struct.pack_into("!H", frame, 34, 20_000 + self.sent % FLOWS)
                struct.pack_into("!I", frame, 42, self.sent)
                self.near.send(frame)
                self.sent += 1
            ahead = since + self.sent / RATE - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            last, before = time.monotonic(), last
            self.stood_still = max(self.stood_still, last - before - max(0, ahead))

    def _receive(self):
        quiet = 0
        while quiet < 3:
            try:
                number = struct.unpack("!I", self.far.recv(64)[:4])[0]
            except TimeoutError:
                # A machine that stands still isn't the end.
                quiet = quiet + 1 if self.over.is_set() else 0
                continue
            if number >= len(self.seen):
                self.seen.extend(bytes(number + 100_000 - len(self.seen)))
            self.twice += self.seen[number]
            self.seen[number] = 1

    def lost(self):
        return self.sent - sum(self.seen)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--seconds", default=600, type=int)
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    reason = netns.why_not()
    if reason:
        sys.exit(f"nothing can be measured: {reason}")
    harness.needed("iperf3", "wrk", "nginx", "curl", "ping")
    with tempfile.TemporaryDirectory() as name, Net(routed=True) as net:
        scratch = Path(name)
        scratch.chmod(0o755)
        gateway = Gateway(net, binary, scratch)
        gateway.write(text=CONFIGURATION)
        box = gateway.start(log=scratch / "log")
        nginx(net, "b", scratch)
        length = arguments.seconds
        with open(scratch / "iperf_server", "w", encoding="utf-8") as said:
            iperf_server = net.start("b", "iperf3", "-s", "-1", "-i", "0", out=said, err=said)
        net.listens("b", 5201)
        # Neighbours are known, and the first packets have passed.
        net.sh("a", "ping", "-c", "3", "-W", "2", SERVER, check=False)
        net.sh("a", "curl", "-sS", "-m", "20", "-o", "/dev/null", f"http://{SERVER}/page")
        with open(scratch / "iperf", "w", encoding="utf-8") as out, open(scratch / "iperf_error", "w", encoding="utf-8") as err:
            iperf = net.start("a", "iperf3", "-c", SERVER, "-t", length, "-P", "4", "-b", "10M", "-i", "0", "-J", out=out, err=err)
        with open(scratch / "wrk", "w", encoding="utf-8") as said:
            wrk = net.start("a", "wrk", "-t", "1", "-c", "16", "-d", f"{length}s", "--timeout", "10s", f"http://{SERVER}/page",
                            out=said, err=said)
        reloads = refused = 0
        held, sizes, load = [], [], []
        with Flows(net) as flows:
            since = time.monotonic()
            while (passed := time.monotonic() - since) < length - 2:
                pool = (ADDRESS, "10.77.2.101", "10.77.2.102")[:1 + reloads % 3]
                gateway.rules.write_text(RULES + "".join(f"deny tcp port {port}\n" for port in range(100, 100 + reloads % 50)))
                gateway.write(("64us", "32us", "100us")[reloads % 3], pool, CONFIGURATION)
                status, answer = gateway.ctl("reload")
                reloads += status == 0
                refused += status != 0
                if status:
                    print(answer, file=sys.stderr)
                _, shown = gateway.ctl("ctl", "show")
                held.append(sum(stage["held"] for stage in shown["stages"]))
                sizes.append(resident(box))
                load.append(os.getloadavg()[0])
                time.sleep(max(0, 1 - (time.monotonic() - since - passed)))
        for child in (iperf, wrk):
            child.wait(60)
        out, err, page = ((scratch / name).read_text() for name in ("iperf", "iperf_error", "wrk"))
        iperf_server.kill()
        status, report, log = box.stop(signal.SIGTERM)
        result = json.loads(out or "{}")
        report = json.loads(report)
        rate = result.get("end", {}).get("sum_received", {}).get("bits_per_second", 0) / 1e6
        errors = [line.strip() for line in page.splitlines() if "Socket errors" in line or "Non-2xx" in line]
        requests = next((line.strip() for line in page.splitlines() if "requests in" in line), page)
        tenth = max(1, len(sizes) // 10)
        print(f"reloads {reloads}, refused {refused}, in {length} s; exit status {status}")
        print(f"iperf3: {len(result.get('start', {}).get('connected', []))} connections, {rate:.1f} Mbit/s, "
              f"{result.get('error', 'no error')} {err.strip()}")
        print(f"wrk: {requests}; {errors or 'no socket error'}")
        print(f"UDP: {FLOWS} flows, {flows.sent} datagrams, {flows.lost()} lost, {flows.twice} twice")
        print(f"the machine stood still for {flows.stood_still:.2f} s at most")
        print(f"held: median {sorted(held)[len(held) // 2]}, most {max(held)}, at the end {report['left_inside']}")
        print(f"memory at the end of each tenth, in MiB: {' '.join(f'{size / 1024:.0f}' for size in sizes[tenth - 1::tenth])}")
        print(f"held, the most of each tenth: {' '.join(str(max(held[n:n + tenth])) for n in range(0, len(held), tenth))}")
        ring = sum(source["counters"]["dropped_by_kernel"] for source in report["sources"])
        print(f"dropped: {report['dropped']}, {ring} found the ring full; reloads in the log {log.count(' reloaded ')}; load {min(load):.1f} to {max(load):.1f}")


if __name__ == "__main__":
    main()
