"""Linux as a router with a packet filter: what it lets through of many packets, none of them lost on the way.

    a (a0) ==== (ma) m (mb) ==== (b0) b

All packets come in at `ma` and leave at `mb`, those of both directions of a connection alike, so that they
come in the order in which they were sent. Whoever sends works off their reception as well, on one core: a
queue that runs over can't hide.
"""

import ctypes
import os
import re
import signal
import subprocess
import time

import numpy as np

import packets
from netns import Net

STRAYS = 2
CHUNK = 256  # frames a call
NEXT_HOP = "02:00:00:00:00:99"  # nobody, so that b leaves them to tcpdump
IOVEC = np.dtype([("base", "u8"), ("size", "u8")])
MESSAGE = np.dtype([("name", "u8"), ("name_size", "u8"), ("iov", "u8"), ("iov_count", "u8"), ("control", "u8"),
                    ("control_size", "u8"), ("flags", "u8"), ("sent", "u8")])
_libc = ctypes.CDLL(None, use_errno=True)


class Peer(Net):
    """The router and its neighbours."""

    def _build(self):
        super()._build()
        for end in "ab":
            self.ip(end, "addr", "flush", "dev", f"{end}0")
        for name, value in {
            "ipv4.ip_forward": 1, "ipv4.conf.all.rp_filter": 0, "ipv4.conf.ma.rp_filter": 0, "ipv6.conf.ma.disable_ipv6": 0,
            "ipv6.conf.mb.disable_ipv6": 0, "ipv6.conf.all.forwarding": 1, "ipv6.conf.mb.accept_dad": 0,
        }.items():
            self.sh("m", "sysctl", "-qw", f"net.{name}={value}")
        self.ip("m", "addr", "add", "198.18.0.1/24", "dev", "ma")
        for network, version in (("198.18.1.{}", 4), ("fd99:1::{}", 6)):
            self.ip("m", "addr", "add", network.format(1) + ("/24" if version == 4 else "/64"), "dev", "mb")
            self.ip("m", "neigh", "replace", network.format(2), "lladdr", NEXT_HOP, "dev", "mb", "nud", "permanent")
            self.ip("m", f"-{version}", "route", "add", "default", "via", network.format(2))

    def try_rules(self, tool, text):
        """What is wrong with a rule set for iptables-restore or nft, loaded in the router; empty where
        nothing."""
        words = ["ip", "netns", "exec", self.spaces["m"], *tool]
        done = subprocess.run(words, input=text, capture_output=True, text=True, check=False, timeout=60)
        return done.stderr.strip() or f"exit status {done.returncode}" if done.returncode else ""

    def load(self, tool, text):
        wrong = self.try_rules(tool, text)
        if wrong:
            raise AssertionError(f"{' '.join(tool)}: {wrong[-400:]}")

    def through(self, frames, into):
        """The numbers of the frames that came out, in order, and what speaks for losses, which is to be
        empty."""
        words = ["tcpdump", "-i", "b0", "-n", "-s", packets.SIZE, "-B", 262_144, "-Z", "root", "-Q", "in", "-w", into,
                 f"ether dst {NEXT_HOP} and len == {packets.SIZE}"]
        lost = self.captured(frames, into, words)
        return packets.numbers(into), lost

    def captured(self, frames, into, words):
        """Sends frames while tcpdump, called by `words`, writes into a file what comes out; what speaks for
        losses."""
        before = self._counters()
        listener = self._started(words)
        self.send(frames)
        said = self._stop(listener, into)
        return self._losses(before, self._counters(), len(frames), said)

    def through_any(self, groups, into):
        """Sends frames of any length, each group (time in seconds, frames) when its time has come, and
        captures what comes out. What speaks for losses; that the router discards what can't be is none."""
        before, count = self._counters(), sum(len(frames) for _, frames in groups)
        own = "src net 198.18.0.0/15 or src net fd99:1::/64 or src net fe80::/10"
        listener, began = self._listen(into, 256, f"ether dst {NEXT_HOP} and not ({own})"), time.monotonic()
        for when, frames in groups:
            time.sleep(max(0.0, began + when - time.monotonic()))
            width = max(map(len, frames))
            rows = np.frombuffer(b"".join(frame.ljust(width, b"\0") for frame in frames), np.uint8).reshape(-1, width)
            self.send(rows, [len(frame) for frame in frames])
        said = self._stop(listener, into)
        return [what for what in self._losses(before, self._counters(), count, said)
                if not re.match(r"Ip6?(InHdrErrors|InDiscards|InTruncatedPkts|InAddrErrors)|Ip6In", what)]

    def _listen(self, into, size, wanted):
        words = ["tcpdump", "-i", "b0", "-n", "-s", size, "-B", 262_144, "-Z", "root", "-Q", "in", "-w", into, wanted]
        return self._started(words)

    def _started(self, words):
        listener = self.start("b", *words)
        os.set_blocking(listener.stderr.fileno(), True)
        line = listener.stderr.readline()
        if "listening on" not in line:
            raise AssertionError(f"tcpdump: {line}{listener.stderr.read()}")
        return listener

    def _stop(self, listener, into):
        self._settle(into)
        listener.send_signal(signal.SIGINT)
        return listener.communicate(timeout=20)[1]

    def send(self, frames, sizes=None):
        """Sends them all at a's interface, on one core; of each so many bytes as `sizes` says, or the whole
        row."""
        frames = np.ascontiguousarray(frames)
        iov = np.zeros(len(frames), IOVEC)
        iov["base"] = frames.ctypes.data + np.arange(len(frames), dtype=np.uint64) * np.uint64(frames.shape[1])
        iov["size"] = frames.shape[1] if sizes is None else sizes
        messages = np.zeros(len(frames), MESSAGE)
        messages["iov"] = iov.ctypes.data + np.arange(len(frames), dtype=np.uint64) * np.uint64(IOVEC.itemsize)
        messages["iov_count"] = 1
        allowed = os.sched_getaffinity(0)
        raw = self.wire("a").raw
        try:
            os.sched_setaffinity(0, {max(allowed)})
            done = 0
            while done < len(frames):
                at = ctypes.c_void_p(messages.ctypes.data + done * MESSAGE.itemsize)
                sent = _libc.sendmmsg(raw.fileno(), at, min(CHUNK, len(frames) - done), 0)
                if sent <= 0:
                    raise OSError(ctypes.get_errno(), "sendmmsg")
                done += sent
        finally:
            os.sched_setaffinity(0, allowed)
            raw.close()

    def _settle(self, into):
        """Waits until the capture has been quiet for longer than tcpdump keeps packets to itself."""
        size, since = -1, time.monotonic()
        while time.monotonic() - since < 1.5:
            time.sleep(0.1)
            now = os.path.getsize(into)
            if now != size:
                size, since = now, time.monotonic()

    def _counters(self):
        """Of the router's stack and of the interfaces before and behind it."""
        found = {}
        for line in self.sh("m", "cat", "/proc/net/snmp6").splitlines():
            name, value = line.split()
            found[name] = int(value)
        names, values = [line.split()[1:] for line in self.sh("m", "cat", "/proc/net/snmp").splitlines()[:2]]
        found |= {f"Ip{name}": int(value) for name, value in zip(names, values)}
        for end, interface in (("a", "a0"), ("m", "ma"), ("m", "mb"), ("b", "b0")):
            line = next(l for l in self.sh(end, "cat", "/proc/net/dev").splitlines() if l.strip().startswith(f"{interface}:"))
            numbers = line.split(":")[1].split()
            for name, n in (("rx", 0 + 1), ("rx_errors", 2), ("rx_dropped", 3), ("tx", 9), ("tx_errors", 10), ("tx_dropped", 11)):
                found[f"{interface}.{name}"] = int(numbers[n])
        return found

    @staticmethod
    def _losses(before, after, count, said):
        grown = {name: after[name] - before.get(name, 0) for name in after}
        lost = [f"{name}: {grown[name]}" for name in grown if grown[name] and (
            re.search(r"(InHdrErrors|InAddrErrors|InDiscards|OutDiscards|OutNoRoutes|InNoRoutes|InTruncatedPkts)$", name)
            or name in ("a0.tx_dropped", "a0.tx_errors", "ma.rx_dropped", "mb.tx_dropped", "mb.tx_errors"))]
        if grown["ma.rx"] < count:
            lost.append(f"{count - grown['ma.rx']} of {count} packets never came to the router")
        captured, filtered, dropped = (re.search(rf"^(\d+) packets? {what}", said, re.M)
                                       for what in ("captured", "received by filter", "dropped by kernel"))
        # The kernel's own packets, such as those of neighbour discovery, may come in the moment in which
        # tcpdump ends.
        if None in (captured, filtered, dropped) or int(filtered[1]) - int(captured[1]) > STRAYS or dropped[1] != "0":
            lost.append(f"tcpdump: {said.strip()}")
        return lost
