"""What a live run does around its packets: offloads switched off and on again, captures that are there as
they are written."""

import os
import signal
import subprocess
import time
from pathlib import Path

from live_ports import ended, records
from netns import Middlebox, Net, is_udp, udp

JSON = ("--format", "json")


def feature(net, end, interface, name):
    lines = net.sh(end, "ethtool", "-k", interface).splitlines()
    return next(line.split(":")[1].split()[0] for line in lines if line.strip().startswith(name + ":"))


def fix_offloads(case, binary, _):
    """--fix-offloads switches off what merges packets while it runs, also at the other end of a pair; all is
    restored."""
    with Net() as net:
        net.sh("m", "ethtool", "-K", "ma", "gro", "on")
        net.ip("m", "link", "add", "x0", "type", "veth", "peer", "name", "x1")
        for interface in ("x0", "x1"):
            net.ip("m", "link", "set", "dev", interface, "up")
        watched = (("ma", "generic-receive-offload"), ("x1", "tx-tcp-segmentation"), ("x1", "tx-checksumming"))
        state = lambda: [feature(net, "m", *what) for what in watched]
        # Off already, though the groups are on that they belong to.
        net.sh("m", "ethtool", "-K", "x1", "tx-tcp-ecn-segmentation", "off", "tx-checksum-sctp", "off")
        every = lambda: [net.sh("m", "ethtool", "-k", interface) for interface in ("ma", "x0", "x1")]
        case.equal(state(), ["on"] * 3, "before")
        before = every()
        graph = "af_packet(interface=ma) -> null; af_packet(interface=x0) -> null"
        for how in (signal.SIGINT, signal.SIGTERM):
            box = Middlebox(net, binary, "run", *JSON, "--fix-offloads", "-e", graph).ready()
            case.equal(state(), ["off"] * 3, "while it runs")
            ended(case, box, how)
            case.equal(state(), ["on"] * 3, f"after {how.name}")
            case.check(every() == before, f"features of a group that were off before are on after {how.name}")
        # As soon as something is changed, also while tables are being made.
        slow = f"{graph}; paced(rate=1kpps) -> nat(pool=[192.0.2.1], sessions=4000000) -> null"
        for how in (signal.SIGINT, signal.SIGTERM):
            early = net.start("m", binary, "run", *JSON, "--fix-offloads", "-e", slow)
            until = time.monotonic() + 10
            while feature(net, "m", *watched[0]) == "on" and time.monotonic() < until:
                pass
            early.send_signal(how)
            _, err = early.communicate(timeout=20)
            case.check(early.returncode == 0, f"{how.name} at the start: {early.returncode}, {err}")
            case.equal(state(), ["on"] * 3, f"after {how.name} at the start")
        wrong = net.start("m", binary, "run", "--fix-offloads", "-e", "paced(rate=1kpps, packets=5) -> null")
        _, err = wrong.communicate(timeout=10)
        case.check(wrong.returncode == 2 and "no port of type" in err, f"no interface: {err}")


def fix_offloads_of_others(case, binary, _):
    """--fix-offloads leaves an interface alone that isn't the other end of a pair: that may be in another
    namespace, where it has the number that another interface has here."""
    with Net() as net:
        for name, number, other, far, space in (("x0", 110, "far0", 111, "a"), ("x1", 111, "far1", 110, "b")):
            net.ip("m", "link", "add", name, "index", number, "type", "veth",
                   "peer", "name", other, "index", far, "netns", net.spaces[space])
            net.ip("m", "link", "set", "dev", name, "up")
        net.sh("m", "ethtool", "-K", "x0", "gro", "on")
        before = net.sh("m", "ethtool", "-k", "x1")
        box = Middlebox(net, binary, "run", *JSON, "--fix-offloads", "-e", "af_packet(interface=x0) -> null").ready()
        case.equal(feature(net, "m", "x0", "generic-receive-offload"), "off", "of its own interface")
        case.equal(net.sh("m", "ethtool", "-k", "x1"), before, "of another one")
        ended(case, box)


def live_capture(case, binary, scratch):
    """What was captured a second ago is there after kill -9; files are cut by size, and the oldest go."""
    with Net() as net:
        near = net.wire("a")
        graph = f'af_packet(interface=ma) -> pcap(path="{scratch}/all.pcap")'
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        for number in range(100):
            near.send(udp(net, number))
        time.sleep(1.6)
        box.stop(signal.SIGKILL)
        got = [frame for frame in records(scratch / "all.pcap") if is_udp(frame)]
        case.equal(len(got), 100, "packets after kill -9")
        graph = f'af_packet(interface=ma) -> pcap(path="{scratch}/part.pcap", rotate_size=2KiB, keep=3)'
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        for number in range(200):
            near.send(udp(net, number))
        time.sleep(0.3)
        ended(case, box)
        files = sorted(name for name in os.listdir(scratch) if name.startswith("part-"))
        case.equal(len(files), 3, f"files that are kept: {files}")
        numbers = [frame[42:46] for name in files for frame in records(scratch / name) if is_udp(frame)]
        case.equal(numbers, [n.to_bytes(4, "big") for n in range(200 - len(numbers), 200)], "the latest packets, in order")
        case.check(len(numbers) >= 40, f"{len(numbers)} packets")


def stop_takes_what_came(case, binary, scratch):
    """Packets that wait in a port's ring when a run is asked to end go in before it does."""
    for kind in ("af_packet", "af_xdp"):
        with Net() as net:
            near = net.wire("a")
            path = scratch / f"{kind}.pcap"
            box = Middlebox(net, binary, "run", *JSON, "-e", f'{kind}(interface=ma) -> pcap(path="{path}")').ready()
            box.child.send_signal(signal.SIGSTOP)
            for number in range(800):
                near.send(udp(net, number))
            time.sleep(0.2)
            box.child.send_signal(signal.SIGTERM)
            box.child.send_signal(signal.SIGCONT)
            status, _, err = box.wait(10)
            case.equal(status, 0, f"{kind}: status ({err.strip()[-400:]})")
            got = [int.from_bytes(frame[42:46]) for frame in records(path) if is_udp(frame)]
            case.check(got == list(range(800)), f"{kind}: {len(got)} of 800 packets that had come")


def lock_memory(case, binary, _):
    """--lock-memory keeps in memory what a run has of it, and takes no more of it than without; who has a
    limit is told so before ports are open."""
    without = ("setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock", "--ambient-caps=-all", "prlimit")
    with Net() as net:
        sizes = {}
        for words in ((), ("--lock-memory",), ("--shards", 2, "--lock-memory")):
            graph = "a :: af_packet(interface=ma) -> b :: af_packet(interface=mb)"
            box = Middlebox(net, binary, "run", *JSON, *words, "-e", graph).ready()
            with open(f"/proc/{box.child.pid}/status", encoding="ascii") as status:
                kib = {line.split()[0]: int(line.split()[1]) for line in status if line.endswith("kB\n")}
            sizes[words] = kib["VmRSS:"]
            if words:
                case.check(kib["VmLck:"] > kib["VmData:"], f"{words}: {kib['VmLck:']} KiB locked, {kib['VmData:']} KiB of data")
            else:
                case.equal(kib["VmLck:"], 0, "locked without the option")
            case.check(ended(case, box) is not None, "no report")
        alone, locked = (sizes[words] for words in ((), ("--lock-memory",)))
        case.check(locked < 2 * alone + 16384, f"{locked} KiB in memory, {alone} KiB without")
        run = (binary, "run", *JSON, "--lock-memory", "--duration", "300ms", "-e", "af_packet(interface=ma) -> null")
        limits = [("65536:4194304", 2, "RLIMIT_MEMLOCK) is 4096 KiB")]
        # Who may not raise its own limit can't try this.
        if subprocess.run(["prlimit", "--memlock=unlimited:unlimited", "true"], capture_output=True, check=False).returncode == 0:
            limits.append(("65536:unlimited", 0, ""))
        for limit, status, want in limits:
            child = net.start("m", *without, f"--memlock={limit}", *run)
            _, err = child.communicate(timeout=10)
            case.check(child.returncode == status and want in err and ("running" in err) == (status == 0), f"{limit}: {child.returncode} {err}")


def confined(case, binary, scratch):
    """Once ports are open all threads are confined to the system calls that a run has use for; it reloads,
    answers and ends as it would without."""
    with Net() as net:
        config, control = scratch / "confined.toml", scratch / "confined.sock"
        text = 'graph = "a :: af_packet(interface=ma) -> reframe(hold={}us) -> b :: af_packet(interface=mb)"\n'
        config.write_text(text.format(50), encoding="utf-8")
        for words in ((), ("--shards", 2)):
            box = Middlebox(net, binary, "run", *JSON, *words, "--control", control, config).ready()
            threads = list(Path(f"/proc/{box.child.pid}/task").iterdir())
            case.check(len(threads) >= 3, f"{words}: {len(threads)} threads")
            for thread in threads:
                lines = dict(line.split(":", 1) for line in (thread / "status").read_text(encoding="ascii").splitlines())
                got = lines["Seccomp"].strip(), lines["NoNewPrivs"].strip()
                case.equal(got, ("2", "1"), f"{words}: {lines['Name'].strip()}: mode of system calls, no new privileges")
            config.write_text(text.format(60), encoding="utf-8")
            done = subprocess.run([binary, "reload", "--control", control], capture_output=True, text=True, check=False)
            case.equal(done.returncode, 0, f"{words}: reload: {done.stderr}")
            case.check(ended(case, box) is not None, f"{words}: no report")


SETUP = (fix_offloads, fix_offloads_of_others, live_capture, stop_takes_what_came, lock_memory, confined)
