#!/usr/bin/env python3
"""The package under Debian's systemd, and the image of the container file, each at work between two hosts.

usage: ci/installed.py [BINARY] [--only service|container] [--root DIRECTORY]

`service`: Debian 12 is put into a directory by debootstrap and booted by systemd-nspawn; the package is
installed there, and its unit started, reloaded, stopped, killed and left without an answer, while packets
pass. `container`: an image of the container file's last stage is made upon the same Debian with podman, and
packets pass through it. Needs root, debootstrap, systemd-container (podman and runc for the second), ip and
ethtool, and a mirror of Debian; takes minutes, and so is no part of `make test`. Ends with status 1 where a
check fails.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests"))
import harness  # noqa: E402
import netns  # noqa: E402
from netns import Net, is_udp, number_of, udp  # noqa: E402

WIRE = """graph = "lan -> held -> wan; wan -> lan"
[stage.lan]
type = "{port}"
interface = "ma"
[stage.wan]
type = "{port}"
interface = "mb"
[stage.held]
type = "reframe"
hold = "{hold}"
"""
PACKAGES = "systemd,systemd-sysv,dbus,procps,python3"
# CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF.
CAPABILITIES = 1 << 12 | 1 << 13 | 1 << 39
# As the unit, but it tries what a service must not do. Each line: the name and the error's number.
PROBE = """[Service]
Type=oneshot
Restart=no
ExecStartPre=
ExecStart=
ExecStart=/usr/bin/python3 /usr/local/bin/probe
ExecReload=
"""
TRIES = """
import ctypes, errno, mmap, socket
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *words):
    ctypes.set_errno(0)
    libc.syscall(*words)
    print("tried", name, errno.errorcode.get(ctypes.get_errno(), "allowed"), flush=True)
tried("mount", 165, b"none", b"/tmp", b"tmpfs", 0, None)
tried("reboot", 169, 0, 0, 0, None)
tried("kexec_load", 246, 0, 0, None, 0)
tried("init_module", 175, None, 0, b"")
tried("clock_settime", 227, 0, ctypes.create_string_buffer(16))
tried("unshare", 272, 0x10000000)
tried("writable and executable", 9, None, 4096, 7, 0x22, -1, 0)
try:
    open("/usr/bin/slipstream", "ab")
    print("tried write allowed")
except OSError as error:
    print("tried write", errno.errorcode[error.errno])
try:
    socket.socket(socket.AF_BLUETOOTH, socket.SOCK_RAW, 1)
    print("tried bluetooth allowed")
except OSError as error:
    print("tried bluetooth", errno.errorcode[error.errno])
"""


def run(*words, check=True, timeout=900):
    """The status of a command, and everything that it said."""
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, check=False, timeout=timeout)
    if check and done.returncode:
        sys.exit(f"{' '.join(map(str, words))}: exit status {done.returncode}: {done.stdout[-2000:]}")
    return done.returncode, done.stdout


def debian(root):
    """Debian 12 in a directory, where it isn't there."""
    if not (root / "usr/bin/systemctl").exists():
        run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", "bookworm", root)
    return root


def until(holds, seconds=20):
    """Waits for something to become true; what it became."""
    end = time.monotonic() + seconds
    while not (value := holds()) and time.monotonic() < end:
        time.sleep(0.2)
    return value


class Machine:
    """A machine with its own systemd, whose network is a namespace."""

    def __init__(self, root, space):
        self.log = open(root.parent / f"{root.name}.console", "w", encoding="utf-8")
        self.child = subprocess.Popen(
            ["systemd-nspawn", "-q", "-D", str(root), "--machine", f"slip{os.getpid()}", "--register=no", "--keep-unit",
             f"--network-namespace-path=/run/netns/{space}", "--capability=CAP_BPF,CAP_NET_ADMIN,CAP_NET_RAW,CAP_IPC_LOCK",
             "--system-call-filter=bpf", "--volatile=overlay", "--console=pipe", "--boot"],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)

    def __enter__(self):
        children = Path(f"/proc/{self.child.pid}/task/{self.child.pid}/children")
        self.init = until(lambda: next(iter(children.read_text().split()), None))
        ready = until(lambda: self("systemctl", "is-system-running", check=False)[1].strip() in ("running", "degraded"), 60)
        if not ready:
            self.__exit__()
            sys.exit(f"systemd did not come up: {Path(self.log.name).read_text()[-2000:]}")
        return self

    def __exit__(self, *_):
        self("systemctl", "poweroff", check=False)
        try:
            self.child.wait(20)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
        self.log.close()

    def __call__(self, *words, check=True):
        """A command on that machine."""
        return run("nsenter", "-t", self.init, "-m", "-u", "-i", "-p", "-n", "-r", "-w", "--", "env", "-i",
                   "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C", *words, check=check, timeout=120)

    def write(self, path, text):
        self("/bin/sh", "-c", 'mkdir -p "$(dirname "$0")" && printf %s "$1" > "$0"', path, text)

    def unit(self, name, what):
        return self("systemctl", "show", "--value", "-p", what, name)[1].strip()

    def journal(self, name):
        return self("journalctl", "-u", name, "--no-pager", "-o", "cat")[1]


class Packets:
    """Numbered packets from one host to the other."""

    def __init__(self, net):
        self.net, self.near, self.far, self.number = net, net.wire("a"), net.wire("b"), 0

    def pass_by(self, count=200):
        """How many of so many arrive, in order."""
        first = self.number
        for self.number in range(first, first + count):
            self.near.send(udp(self.net, self.number))
            time.sleep(0.0002)
        self.number += 1
        got = [number_of(frame)[1] for _, frame in self.far.receive(2, is_udp, count)]
        return len(got) if got == sorted(got) else f"{got}: not in order"


def service(case, binary, scratch, root):
    """The unit of the package."""
    package = Path(run(HERE / "deb.sh", binary, scratch)[1].split()[-1])
    name = "slipstream@wire"
    with Net() as net, Machine(debian(root), net.spaces["m"]) as machine:
        packets = Packets(net)
        machine.write("/etc/slipstream/wire.toml", WIRE.format(port="af_packet", hold="64us"))
        subprocess.run(["nsenter", "-t", machine.init, "-m", "-r", "-w", "--", "/bin/sh", "-c", "cat > /root/slipstream.deb"],
                       stdin=package.open("rb"), check=True)
        case.equal(machine("dpkg", "-i", "/root/slipstream.deb", check=False)[0], 0, "dpkg -i")
        machine("systemctl", "enable", name)
        status, said = machine("systemctl", "start", name, check=False)
        if not case.equal(status, 0, f"systemctl start: {said} {machine.journal(name)}"):
            return
        case.equal((machine.unit(name, "ActiveState"), machine.unit(name, "StatusText")), ("active", "running"), "behind `start`")
        case.equal(packets.pass_by(), 200, "packets that passed")

        # Another user, three capabilities, a filter of system calls.
        pid = machine.unit(name, "MainPID")
        text = machine("cat", f"/proc/{pid}/status")[1]
        state = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
        case.check("0" not in state["Uid"].split(), f"it runs as {state['Uid'].split()}")
        for what in ("CapEff", "CapPrm", "CapBnd"):
            case.equal(int(state[what], 16), CAPABILITIES, what)
        case.equal((state["NoNewPrivs"].strip(), state["Seccomp"].strip()), ("1", "2"), "no new privileges, system calls filtered")
        case.check("are not refused" not in machine.journal(name), f"the run itself gives up no system calls: {machine.journal(name)}")
        machine.write("/usr/local/bin/probe", TRIES)
        machine.write("/etc/systemd/system/slipstream@probe.service.d/probe.conf", PROBE)
        machine("cp", "/etc/slipstream/wire.toml", "/etc/slipstream/probe.toml")
        machine("systemctl", "daemon-reload")
        machine("systemctl", "start", "slipstream@probe", check=False)
        tried = dict(re.findall(r"^tried (.+) (\w+)$", machine.journal("slipstream@probe"), re.M))
        print(f"service: what it must not do: {tried}")
        case.check(len(tried) == 9 and not {"allowed"} & set(tried.values()), f"what it must not do: {tried}")

        # New words count; wrong ones are refused, and named.
        machine.write("/etc/slipstream/wire.toml", WIRE.format(port="af_packet", hold="80us"))
        status, said = machine("systemctl", "reload", name, check=False)
        case.check(status == 0 and "held.hold" in machine.journal(name), f"systemctl reload: {status} {said}")
        machine.write("/etc/slipstream/wire.toml", WIRE.format(port="af_packet", hold="8 parsecs"))
        status, said = machine("systemctl", "reload", name, check=False)
        case.check(status != 0 and "line 10" in machine.journal(name), f"a wrong reload: {status} {said}")
        case.equal((machine.unit(name, "ActiveState"), machine.unit(name, "MainPID")), ("active", pid), "behind a wrong reload")
        case.equal(packets.pass_by(), 200, "packets that passed behind it")
        machine.write("/etc/slipstream/wire.toml", WIRE.format(port="af_packet", hold="64us"))

        # An operator's commands.
        status, said = machine("slipstream", "ctl", "--control", "/run/slipstream-wire/control", "show", "--format", "json", check=False)
        case.check(status == 0 and json.loads(said)["stages"], f"slipstream ctl show: {status} {said}")

        def another(pid):
            new = machine.unit(name, "MainPID")
            return new not in ("0", pid) and machine.unit(name, "ActiveState") == "active" and new

        # It dies: the next one takes its place.
        machine("kill", "-KILL", pid)
        since = time.monotonic()
        second = until(lambda: another(pid))
        print(f"service: up again {time.monotonic() - since:.1f} s behind kill -9")
        case.check(second, "it was not started again when it was killed")
        case.equal(packets.pass_by(), 200, "packets that passed behind that")
        # It lives and doesn't answer: the manager ends it.
        machine.write("/etc/systemd/system/slipstream@.service.d/soon.conf", "[Service]\nWatchdogSec=3\nTimeoutAbortSec=2\n")
        machine("systemctl", "daemon-reload")
        machine("systemctl", "restart", name)
        case.check("state restored" in machine.journal(name), "a restart did not restore the state")
        third = machine.unit(name, "MainPID")
        time.sleep(5)
        case.equal(machine.unit(name, "MainPID"), third, "it answers the watchdog")
        machine("kill", "-STOP", third)
        since = time.monotonic()
        case.check(until(lambda: another(third)), "it was not started again when it did not answer")
        print(f"service: up again {time.monotonic() - since:.1f} s behind kill -STOP, with WatchdogSec=3")
        case.equal(packets.pass_by(), 200, "packets that passed behind that")

        # AF_XDP takes all three capabilities and locked memory.
        # A machine whose own limit of locked memory is 8 MiB, and that may not raise it, has room for this.
        text = WIRE.format(port="af_xdp", hold="64us")
        machine.write("/etc/slipstream/wire.toml", re.sub(r"(interface = .*)", r"\1\nring = 128\nbuffers = 640", text))
        status, said = machine("systemctl", "restart", name, check=False)
        if case.equal(status, 0, f"AF_XDP: {said} {machine.journal(name)[-600:]}"):
            case.equal(packets.pass_by(), 200, "packets that passed over AF_XDP")

        # It ends with its report, and leaves its state.
        machine("systemctl", "stop", name)
        case.equal((machine.unit(name, "Result"), machine.unit(name, "ActiveState")), ("success", "inactive"), "behind `stop`")
        journal = machine.journal(name)
        case.check("packets in" in journal and "state saved" in journal, f"no report in the journal: {journal[-800:]}")
        case.equal(machine("stat", "-L", "-c", "%a", "/var/lib/slipstream/wire/state")[1].strip(), "600", "mode of the state")
        case.check("panicked" not in journal, journal)
        # A configuration that is wrong doesn't start.
        machine.write("/etc/slipstream/wire.toml", "graph = 'nothing'\n")
        case.check(machine("systemctl", "start", name, check=False)[0] != 0, "a wrong configuration starts")
        # A service goes on over an upgrade, and ends with the package.
        machine.write("/etc/slipstream/wire.toml", WIRE.format(port="af_packet", hold="64us"))
        machine("systemctl", "restart", name)
        pid = machine.unit(name, "MainPID")
        machine("dpkg", "-i", "/root/slipstream.deb")
        case.equal((machine.unit(name, "ActiveState"), machine.unit(name, "MainPID")), ("active", pid), "behind an upgrade")
        case.equal(machine("dpkg", "-r", "slipstream", check=False)[0], 0, "dpkg -r")
        case.equal(machine("pidof", "slipstream", check=False)[1].strip(), "", "what runs behind `dpkg -r`")
        case.equal(machine("dpkg", "-P", "slipstream", check=False)[0], 0, "dpkg -P")
        wanted = "/etc/systemd/system/multi-user.target.wants"
        case.check("slipstream" not in machine("ls", wanted)[1], f"{wanted} names it behind `dpkg -P`")


# Some machines may not raise limits to what is usual.
LIMITS = ("--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024")


class Podman:
    """podman with a store of its own, taken away at the end; no registry of images is needed."""

    def __init__(self, scratch):
        self.images = scratch / "images"
        self.words = ("podman", "--runtime", "runc", "--root", scratch / "images", "--runroot", scratch / "run", "--cgroup-manager", "cgroupfs",
                      "--events-backend", "none")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self("rm", "-a", "-f", "-t", "0", check=False)
        run("umount", "-l", self.images / "overlay", check=False)

    def __call__(self, *words, check=True):
        return run(*self.words, *words, check=check)

    def take(self, root, name):
        """An image of a directory."""
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as tar:
            subprocess.run([*map(str, self.words), "import", "-q", "-", name], stdin=tar.stdout, check=True, stdout=subprocess.DEVNULL)


def container(case, binary, scratch, root):
    """The last stage of the container file, upon Debian as debootstrap makes it, with the options of the book
    but for the network, which is a namespace's instead of the host's."""
    with Net() as net, Podman(scratch) as podman:
        podman.take(debian(root), "docker.io/library/debian:12-slim")
        # The first stage compiles; what it makes is there already.
        text = (HERE.parent / "contrib/container/Containerfile").read_text()
        context = scratch / "context"
        context.mkdir()
        run("strip", "-o", context / "slipstream", binary)
        last = text[text.rindex("FROM "):]
        (context / "Containerfile").write_text(f"FROM scratch AS build\nCOPY slipstream /slipstream\n\n{last}")
        status, said = podman("build", "-t", "slipstream", "-f", context / "Containerfile", context, check=False)
        if not case.equal(status, 0, f"podman build: {said[-1500:]}"):
            return
        case.check("Usage: slipstream" in podman("run", "--rm", *LIMITS, "--network", "none", "slipstream")[1],
                   "its usual command is no help")
        config = scratch / "wire.toml"
        config.write_text(WIRE.format(port="af_packet", hold="64us"))
        usual = (*LIMITS, "--network", f"ns:/run/netns/{net.spaces['m']}", "--cap-drop", "all", "-v", f"{config}:/etc/slipstream.toml:ro")
        ask = ("slipstream", "run", "--format", "json", "/etc/slipstream.toml")
        status, said = podman("run", "--rm", *usual, *ask, check=False)
        case.check(status == 2 and "CAP_NET_RAW" in said, f"without a capability: {status} {said}")
        box = podman("run", "-d", *usual, "--cap-add", "net_raw", *ask)[1].strip()
        running = until(lambda: " running" in podman("logs", box)[1])
        if case.check(running, f"it does not run: {podman('logs', box)[1]}"):
            pid = podman("inspect", "-f", "{{.State.Pid}}", box)[1].strip()
            has = re.search(r"CapEff:\s+(\w+)", Path(f"/proc/{pid}/status").read_text())
            case.equal(int(has[1], 16), 1 << 13, "capabilities of the container")
            packets = Packets(net)
            case.equal(packets.pass_by(), 200, "packets that passed")
            config.write_text(WIRE.format(port="af_packet", hold="80us"))
            podman("kill", "-s", "HUP", box)
            case.check(until(lambda: "held.hold" in podman("logs", box)[1]), "a hang-up did not reload")
            case.equal(packets.pass_by(), 200, "packets that passed behind a reload")
        podman("stop", box)
        case.equal(podman("inspect", "-f", "{{.State.ExitCode}}", box)[1].strip(), "0", "exit status")
        said = podman("logs", box)[1]
        case.check('"left_inside": 0' in said, f"no report: {said[-600:]}")
        podman("rm", box)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", nargs="?", default=HERE.parent / "target/release/slipstream", type=Path)
    parser.add_argument("--only", choices=("service", "container"))
    parser.add_argument("--root", type=Path, help="the directory with Debian, made if it isn't there; else a temporary one")
    arguments = parser.parse_args()
    reason = netns.why_not()
    missing = [name for name in ("debootstrap", "systemd-nspawn", "nsenter", "podman", "runc") if not shutil.which(name)]
    if reason or missing:
        sys.exit(f"nothing can be checked: {reason or f'{missing} not installed'}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed = 0
    with tempfile.TemporaryDirectory(prefix="slipstream", dir="/var/tmp") as name:
        root = (arguments.root or Path(name) / "debian").resolve()
        for check in (service, container):
            if arguments.only in (None, check.__name__):
                case = harness.Case()
                check(case, arguments.binary.resolve(), Path(name), root)
                for what in case.wrong:
                    print(f"FAILED {check.__name__}: {what}")
                print(f"{check.__name__}: {'failed' if case.wrong else 'passed'}", flush=True)
                failed += bool(case.wrong)
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
