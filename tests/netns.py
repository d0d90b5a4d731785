"""Namespaces of network interfaces for the live checks: two end hosts and a middlebox between them.

    a (a0) ==== (ma) m (mb) ==== (b0) b

The middlebox's interfaces have no addresses: what passes there, passes through the program. End hosts compute
checksums themselves and don't leave segmentation to a card that isn't there.
"""

import ctypes
import fcntl
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from pathlib import Path

from harness import until

NEEDS = ("ip", "ethtool")
CLONE_NEWNET = 0x40000000
F_SETPIPE_SZ = 1031
ETH_P_ALL = 3
SOL_PACKET = 263
PACKET_AUXDATA = 8
PACKET_IGNORE_OUTGOING = 23
TP_STATUS_VLAN_VALID = 1 << 4
_libc = ctypes.CDLL(None, use_errno=True)


def why_not():
    """Tells why namespaces can't be had here; nothing where they can."""
    missing = [program for program in NEEDS if not shutil.which(program)]
    if missing:
        return f"{', '.join(missing)} not installed"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    clear()
    name = f"slip{os.getpid()}t"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"network namespaces can't be made: {made.stderr.strip()}"
    try:
        pair = ["ip", "-n", name, "link", "add", "x0", "type", "veth", "peer", "name", "x1"]
        veth = subprocess.run(pair, capture_output=True, text=True, check=False)
    finally:
        subprocess.run(["ip", "netns", "del", name], check=False)
    return f"virtual interfaces can't be made: {veth.stderr.strip()}" if veth.returncode else None


def clear():
    """Takes away the namespaces of checks that were killed: those of processes that are no more."""
    for path in Path("/run/netns").glob("slip*"):
        owner = re.fullmatch(r"slip(\d+)[a-z]", path.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            subprocess.run(["ip", "netns", "del", path.name], capture_output=True, check=False)


class Net:
    """The three namespaces, taken away at the end."""

    def __init__(self, mtu=1500, routed=False, queues=1):
        self.spaces = {end: f"slip{os.getpid()}{end}" for end in "amb"}
        self.children = []
        # Programs of another user find their sockets here.
        self.scratch = tempfile.TemporaryDirectory(prefix="slip")
        os.chmod(self.scratch.name, 0o711)
        self.routed = routed
        self.mtu = mtu
        self.queues = queues

    def __enter__(self):
        try:
            self._build()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _build(self):
        for space in self.spaces.values():
            self._ip("netns", "add", space)
        for end, number in (("a", 1), ("b", 2)):
            host, box = f"{end}0", f"m{end}"
            several = ("numtxqueues", self.queues, "numrxqueues", self.queues) if self.queues > 1 else ()
            self._ip("link", "add", host, "netns", self.spaces[end], *several, "type", "veth",
                     "peer", "name", box, "netns", self.spaces["m"], *several)
            self.sh("m", "sysctl", "-qw", f"net.ipv6.conf.{box}.disable_ipv6=1")
            # Nobody needs to wait until addresses have been found to be free.
            self.sh(end, "sysctl", "-qw", f"net.ipv6.conf.{host}.accept_dad=0")
            for space, interface in ((end, host), ("m", box)):
                self.ip(space, "link", "set", "dev", interface, "mtu", self.mtu, "up")
            self.ip(end, "link", "set", "dev", "lo", "up")
            self.sh(end, "ethtool", "-K", host, "tx", "off", "tso", "off", "gso", "off")
            self.sh("m", "ethtool", "-K", box, "gro", "off", "lro", "off", check=False)
            net = number if self.routed else 0
            self.ip(end, "addr", "add", f"10.77.{net}.{number}/24", "dev", host)
            self.ip(end, "addr", "add", f"fd77:{net}::{number}/64", "dev", host)
        self.mac = {end: self._mac(end, f"{end}0") for end in "ab"}
        self.mac |= {f"m{end}": self._mac("m", f"m{end}") for end in "ab"}

    def _mac(self, end, interface):
        text = self.sh(end, "cat", f"/sys/class/net/{interface}/address")
        return bytes.fromhex(text.strip().replace(":", ""))

    def __exit__(self, *_):
        for child in self.children:
            if child.poll() is None:
                child.kill()
                child.wait()
        for space in self.spaces.values():
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        self.scratch.cleanup()

    @staticmethod
    def _ip(*words):
        subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)

    def ip(self, end, *words):
        """`ip` in a namespace."""
        self._ip("-n", self.spaces[end], *words)

    def sh(self, end, *words, check=True, timeout=30):
        """A command in a namespace; its output."""
        words = ["ip", "netns", "exec", self.spaces[end], *map(str, words)]
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=timeout)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: exit status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    def start(self, end, *words, out=subprocess.PIPE, err=subprocess.PIPE, env=None):
        """A command in a namespace that goes on in the background, until the end at the latest. Who says much
        for long has files for `out` and `err`: a pipe is full some time."""
        words = ["ip", "netns", "exec", self.spaces[end], *map(str, words)]
        child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, text=True, env=env)
        self.children.append(child)
        return child

    def listens(self, end, port):
        """Waits until somebody in a namespace listens at a port of TCP."""
        waits = re.compile(rf":{port:04X} [0-9A-F]+:0000 0A ")
        if not until(lambda: waits.search(self.sh(end, "cat", "/proc/net/tcp", "/proc/net/tcp6")), 20):
            raise AssertionError(f"nobody listens at port {port} of {end}")

    def socket(self, end, *arguments):
        """A socket of this process in a namespace."""
        here = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        there = os.open(f"/run/netns/{self.spaces[end]}", os.O_RDONLY)
        try:
            if _libc.setns(there, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns")
            return socket.socket(*arguments)
        finally:
            if _libc.setns(here, CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "setns back")
            os.close(here)
            os.close(there)

    def wire(self, end):
        """The wire at an end host's interface."""
        return Wire(self.socket(end, socket.AF_PACKET, socket.SOCK_RAW, 0), f"{end}0")


class Wire:
    """Frames out and in at an interface, VLAN tags put back."""

    def __init__(self, raw, interface):
        self.raw = raw
        raw.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
        raw.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        raw.setsockopt(socket.SOL_SOCKET, 33, 32 << 20)  # SO_RCVBUFFORCE
        raw.bind((interface, ETH_P_ALL))

    def send(self, frame):
        self.raw.send(frame)

    def receive(self, seconds, wanted=lambda frame: True, most=None):
        """Frames that come within this time and are wanted, each with the time at which it was read; `most`
        are enough."""
        got, end = [], time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and (most is None or len(got) < most):
            self.raw.settimeout(left)
            try:
                data, extra, _, _ = self.raw.recvmsg(1 << 17, 256)
            except TimeoutError:
                break
            now = time.monotonic()
            for level, kind, content in extra:
                if level == SOL_PACKET and kind == PACKET_AUXDATA:
                    status, _, _, _, _, tci, tpid = struct.unpack("IIIHHHH", content[:20])
                    if status & TP_STATUS_VLAN_VALID:
                        data = data[:12] + struct.pack("!HH", tpid or 0x8100, tci) + data[12:]
            if wanted(data):
                got.append((now, data))
        return got


def checksum(data):
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return 0xFFFF - total


def udp(net, number, flow=0, payload=18, tag=b""):
    """A frame from a to b with its number in the payload. Its port of origin is that of the flow."""
    content = struct.pack("!I", number) + bytes(payload - 4)
    length = 8 + len(content)
    source, target = bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2])
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 20 + length, number & 0xFFFF, 0x4000, 64, 17, 0, source, target)
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    datagram = struct.pack("!HHHH", 40_000 + flow, 9, length, 0) + content
    pseudo = source + target + struct.pack("!BBH", 0, 17, length)
    datagram = datagram[:6] + struct.pack("!H", checksum(pseudo + datagram) or 0xFFFF) + datagram[8:]
    return net.mac["b"] + net.mac["a"] + tag + b"\x08\0" + header + datagram


def is_udp(frame):
    """True if it is one of ours, tagged or not."""
    at = 12
    while frame[at:at + 2] in (b"\x81\0", b"\x88\xa8"):
        at += 4
    return frame[at:at + 2] == b"\x08\0" and frame[at + 11] == 17 and frame[at + 24:at + 26] == b"\0\x09"


def number_of(frame):
    """(flow, number) of one of our frames without tags."""
    return struct.unpack("!H", frame[34:36])[0] - 40_000, struct.unpack("!I", frame[42:46])[0]


class Middlebox:
    """The program at work in the middlebox's namespace; its log goes to the file `log`, or is kept in a pipe
    until the end. It tells its manager, which this is, when it is ready; with `watched`, until it ends and
    that it is alive."""

    def __init__(self, net, binary, *words, log=None, watched=False):
        self.command = f"slipstream {' '.join(map(str, words))}"
        self.log = log
        self.watched = watched
        path = f"{net.scratch.name}/{len(net.children)}"
        self.manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.manager.bind(path)
        os.chmod(path, 0o666)
        env = os.environ | {"NOTIFY_SOCKET": path} | ({"WATCHDOG_USEC": "5000000"} if watched else {})
        if log:
            with open(log, "w", encoding="utf-8") as into:
                self.child = net.start("m", binary, *words, err=into, env=env)
        else:
            self.child = net.start("m", binary, *words, env=env)
            # A log that nobody reads until the end finds room, or lines of it would be left out.
            fcntl.fcntl(self.child.stderr, F_SETPIPE_SZ, 1 << 20)
        self.net = net
        self.told = []

    def hear(self, seconds):
        """Adds to `told` what it tells within this time, if anything."""
        self.manager.settimeout(seconds)
        try:
            self.told.append(self.manager.recv(4096).decode())
            return True
        except TimeoutError:
            return False

    def ready(self):
        """Waits until its ports are open, or it has ended. From then on nobody hears it but who watches
        it."""
        end = time.monotonic() + 20
        while self.child.poll() is None:
            if self.hear(0.05) and self.told[-1].startswith("READY=1"):
                break
            if time.monotonic() > end:
                raise AssertionError(f"{self.command}: not ready after 20 s: {self.told}")
        if not self.watched:
            self.manager.close()
        return self

    def stop(self, how=signal.SIGINT):
        """Interrupts it, unless `how` is None; its exit status, output and what it said."""
        if how is not None and self.child.poll() is None:
            self.child.send_signal(how)
        return self.wait(10)

    def wait(self, seconds):
        try:
            out, err = self.child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            self.child.kill()
            out, err = self.child.communicate()
            return None, out, f"still running after {seconds} s: {err if err is not None else self.log.read_text()}"
        return self.child.returncode, out, err if err is not None else self.log.read_text()
