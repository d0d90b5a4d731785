"""The gateway of configs/, as it stands, between a LAN with two hosts and a provider's network: what the
hosts make of it.

    a (a0) ==== (lan-a) s             s: a switch (a Linux bridge)
    c (c0) ==== (lan-c) s (lan-m) ==== (ma) m (mb) ==== (b0) b

Only the names of the interfaces are put into the configuration. The upstream router `b` has addresses beyond
its own link, and no way to the IPv4 addresses of the LAN. It finds the gateway's external addresses as
everybody does: it asks for them.
"""

import re
import shutil
import signal
import time

import harness
from harness import have
from live_functions import ended, fetch, nginx
from netns import Middlebox, Net

CONFIGS = harness.ROOT / "configs"
JSON = ("--format", "json")
A, C, FAR = "10.0.0.5", "10.0.0.6", "198.51.100.1"
A6, C6, FAR6 = "2001:db8:1::5", "2001:db8:1::6", "2001:db8:3::1"
GATEWAY, GATEWAY6, OUTER, OUTER6 = "10.0.0.1", "2001:db8:1::1", "192.0.2.2", "2001:db8:2::2"
EXTERNAL = "192.0.2.8"


class Lan(Net):
    """The namespaces, taken away at the end."""

    def __init__(self):
        super().__init__()
        self.spaces |= {end: self.spaces["a"][:-1] + end for end in "cs"}

    def _build(self):
        for space in self.spaces.values():
            self._ip("netns", "add", space)
        for space, end, other, there in (("a", "a0", "s", "lan-a"), ("c", "c0", "s", "lan-c"), ("s", "lan-m", "m", "ma"),
                                         ("b", "b0", "m", "mb")):
            self._ip("link", "add", end, "netns", self.spaces[space], "type", "veth",
                     "peer", "name", there, "netns", self.spaces[other])
        self.ip("s", "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
        for port in ("lan-a", "lan-c", "lan-m"):
            self.sh("s", "sysctl", "-qw", f"net.ipv6.conf.{port}.disable_ipv6=1")
            self.ip("s", "link", "set", "dev", port, "master", "br0", "up")
        self.ip("s", "link", "set", "dev", "br0", "up")
        for port in ("ma", "mb"):
            self.sh("m", "sysctl", "-qw", f"net.ipv6.conf.{port}.disable_ipv6=1")
            self.sh("m", "ethtool", "-K", port, "gro", "off", "lro", "off", check=False)
            self.ip("m", "link", "set", "dev", port, "up")
        self._host("a", A, A6)
        self._host("c", C, C6)
        self._host("b", "192.0.2.254", "2001:db8:2::254")
        for end in "ac":
            self.ip(end, "route", "add", "default", "via", GATEWAY)
            self.ip(end, "-6", "route", "add", "default", "via", GATEWAY6)
        self.ip("b", "addr", "add", f"{FAR}/32", "dev", "lo")
        self.ip("b", "-6", "addr", "add", f"{FAR6}/128", "dev", "lo")
        self.ip("b", "-6", "route", "add", "2001:db8:1::/64", "via", OUTER6)

    def _host(self, end, v4, v6):
        # Nobody needs to wait until addresses have been found to be free.
        self.sh(end, "sysctl", "-qw", f"net.ipv6.conf.{end}0.accept_dad=0")
        self.sh(end, "ethtool", "-K", f"{end}0", "tx", "off", "tso", "off", "gso", "off")
        self.ip(end, "addr", "add", f"{v4}/24", "dev", f"{end}0")
        self.ip(end, "-6", "addr", "add", f"{v6}/64", "dev", f"{end}0")
        for interface in ("lo", f"{end}0"):
            self.ip(end, "link", "set", "dev", interface, "up")


def configured(scratch, change=()):
    """The configuration with the names of our interfaces, and beyond that only what `change` says."""
    for name in ("lan_gateway.rules", "lan_gateway.routes"):
        shutil.copy(CONFIGS / name, scratch / name)
    text = (CONFIGS / "lan_gateway.toml").read_text()
    for old, new in (('interface = "eth1"', 'interface = "ma"'), ('interface = "eth2"', 'interface = "mb"'), *change):
        if text.count(old) != 1:
            raise AssertionError(f"lan_gateway.toml has {old!r} {text.count(old)} times")
        text = text.replace(old, new)
    (scratch / "gateway.toml").write_text(text)
    return scratch / "gateway.toml"


def directory(scratch, name):
    made = scratch / name
    made.mkdir()
    made.chmod(0o755)
    return made


def pings(case, net, end, target, count=3):
    """Checks that each of some echo requests is answered."""
    text = net.sh(end, "ping", "-c", count, "-i", "0.05", "-W", "2", target, check=False)
    case.check(f"{count} received" in text, f"{end} to {target}: {text}")


def hops(net, end, target, *words):
    lines = net.sh(end, "traceroute", "-n", "-q", "1", "-w", "2", "-m", "5", *words, target).splitlines()[1:]
    return [line.split()[1] for line in lines]


def clients(log):
    return {line.split()[0] for line in (log / "access.log").read_text().splitlines()}


def refused(case, net, end, url):
    text = net.sh(end, "sh", "-c", f"curl -sS -g -m 1 '{url}' 2>&1", check=False)
    case.check("timed out" in text or "imeout" in text, f"{end}: {url}: {text}")


def serve(case, binary, scratch, change, external):
    """The gateway at work: from inside, from outside, and from inside to inside by its external address."""
    if not case.check(have(case, "ping", "traceroute", "curl", "nginx", "ss"), "programs that this needs are missing"):
        return
    with Lan() as net:
        box = Middlebox(net, binary, "run", *JSON, configured(scratch, change)).ready()
        for end in "ac":
            for target in (GATEWAY, OUTER, FAR, GATEWAY6, OUTER6, FAR6):
                pings(case, net, end, target)
        case.equal(hops(net, "a", FAR), [GATEWAY, FAR], f"hops to {FAR}")
        case.equal(hops(net, "a", FAR6), [GATEWAY6, FAR6], f"hops to {FAR6}")
        far, near = directory(scratch, "far"), directory(scratch, "near")
        page = nginx(net, "b", far)
        for end in "ac":
            for url in (f"http://{FAR}/page", f"http://[{FAR6}]/page"):
                fetch(case, net, url, page, far, end)
        inside = {f"192.0.2.{n}" for n in external}
        seen = clients(far)
        case.check(seen - {A6, C6} and seen <= inside | {A6, C6}, f"clients that the far server saw: {seen}")
        # The LAN's server, from outside and from inside, by the same address.
        page = nginx(net, "c", near)
        address = f"192.0.2.{external[0]}"
        for end in "bac":
            fetch(case, net, f"http://{address}:8080/page", page, near, end)
        seen = clients(near)
        case.check("192.0.2.254" in seen and seen <= inside | {"192.0.2.254"}, f"clients that the LAN's server saw: {seen}")
        case.equal(hops(net, "a", address, "-T", "-p", "8080")[-1:], [address], "end of the way to the LAN's server")
        fetch(case, net, f"http://[{C6}]/page", page, near, "b")
        # Nothing else.
        for url in (f"http://[{C6}]:81/", f"http://{address}:8081/", f"http://[{A6}]/"):
            refused(case, net, "b", url)
        text = net.sh("b", "ping", "-c", "1", "-W", "1", C6, check=False)
        case.check("0 received" in text, f"a ping from outside: {text}")
        known = net.sh("b", "ip", "neigh", "show", address)
        case.check("02:00:00:00:00:02" in known, f"who has {address}: {known}")
        report = ended(case, box)
        if report:
            stages = {stage["name"]: stage for stage in report["stages"]}
            counters = stages["r"]["counters"]
            case.check(counters["neighbour_announcements"] >= 1, f"announcements: {counters}")
            case.equal(stages["r"]["dropped"].get("martian", 0), 0, "martian packets")


def lan_gateway(case, binary, scratch):
    """The gateway of configs/ as it stands, which shares addresses that no interface has."""
    serve(case, binary, scratch, (), range(8, 12))


def lan_gateway_own_address(case, binary, scratch):
    """The same with the interface's own address, as its comment says."""
    text = (CONFIGS / "lan_gateway.toml").read_text()
    alone = re.search(r'alone: (pool = \["192\.0\.2\.2"\])', text)
    change = (('pool = ["192.0.2.8/30"]', alone[1]), ("= 192.0.2.8:8080", "= 192.0.2.2:8080"))
    serve(case, binary, scratch, change, range(2, 3))


def unreachable_pool(case, binary, scratch):
    """A pool that nobody can reach is refused, also by `validate`, before any interface is opened."""
    path = configured(scratch, (('pool = ["192.0.2.8/30"]', 'pool = ["203.0.113.8/30"]'),))
    for verb in ("validate", "run"):
        done = harness.Run(binary, [verb, path])
        case.equal(done.status, 2, f"{verb}: exit status")
        for part in ("nobody can reach 203.0.113.8/30", "routed = true"):
            case.check(part in done.stderr, f"{verb}: {done.stderr}")
    routed = path.read_text().replace("[stage.nat]", "[stage.nat]\nrouted = true").replace("= 192.0.2.8:", "= 203.0.113.8:")
    path.write_text(routed)
    case.equal(harness.Run(binary, ["validate", path]).status, 0, "routed: exit status")


def restart(case, binary, scratch):
    """An upstream router that remembers another station for the pool is told at the start who has it now."""
    if not case.check(have(case, "ping"), "ping is missing"):
        return
    with Lan() as net:
        net.ip("b", "neigh", "replace", EXTERNAL, "lladdr", "02:00:00:00:00:99", "dev", "b0", "nud", "reachable")
        box = Middlebox(net, binary, "run", *JSON, configured(scratch)).ready()
        deadline = time.monotonic() + 5
        net.sh("a", "ping", "-c", "1", "-W", "1", FAR, check=False)
        while "00:02" not in net.sh("b", "ip", "neigh", "show", EXTERNAL) and time.monotonic() < deadline:
            time.sleep(0.05)
        known = net.sh("b", "ip", "neigh", "show", EXTERNAL)
        case.check("02:00:00:00:00:02" in known, f"who has {EXTERNAL}: {known}")
        ended(case, box)


def announced(case, binary, scratch):
    """Hosts that remember another station for the gateway's own addresses are told at the start, and for
    addresses that a reload adds to the pool with the next packet."""
    if not case.check(have(case, "ping"), "ping is missing"):
        return
    path = configured(scratch)
    added = "192.0.2.40"
    with Lan() as net:
        for end, address in (("b", OUTER), ("b", added), ("c", GATEWAY)):
            net.ip(end, "neigh", "replace", address, "lladdr", "02:00:00:00:00:99", "dev", f"{end}0", "nud", "stale")
        box = Middlebox(net, binary, "run", *JSON, path, log=scratch / "log").ready()

        def told(end, address, mac):
            deadline = time.monotonic() + 5
            net.sh("a", "ping", "-c", "1", "-W", "1", FAR, check=False)
            while mac not in (known := net.sh(end, "ip", "neigh", "show", address)) and time.monotonic() < deadline:
                time.sleep(0.05)
            case.check(mac in known, f"who has {address}, for {end}: {known}")

        told("b", OUTER, "02:00:00:00:00:02")
        told("c", GATEWAY, "02:00:00:00:00:01")
        path.write_text(path.read_text().replace('pool = ["192.0.2.8/30"]', f'pool = ["192.0.2.8/30", "{added}"]'))
        box.child.send_signal(signal.SIGHUP)
        case.check(logged(scratch / "log", " reloaded "), "reloaded")
        told("b", added, "02:00:00:00:00:02")
        ended(case, box)


def logged(log, wanted, seconds=5):
    """The line of a log that has this, once it is there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for line in log.read_text().splitlines():
            if wanted in line:
                return line
        time.sleep(0.05)
    return ""


def told_in_the_log(case, binary, scratch):
    """The log tells of a link that takes less than the router sends, of the system's addresses on an
    interface, and of a file of routes that was saved with a mistake."""
    if not case.check(have(case, "ping"), "ping is missing"):
        return
    path, log = configured(scratch), scratch / "log"
    with Lan() as net:
        net.ip("m", "addr", "add", "10.0.0.77/24", "dev", "ma")
        box = Middlebox(net, binary, "run", *JSON, path, log=log).ready()
        line = logged(log, "addresses on the interface")
        case.check('port="lan"' in line and 'addresses="10.0.0.77"' in line, f"addresses: {line}")
        case.check("too long for the link" not in log.read_text(), "the MTU of before is right")
        net.ip("m", "link", "set", "dev", "mb", "mtu", 1400)
        line = logged(log, "too long for the link")
        case.check(all(w in line for w in ('interface="mb"', "mtu=1400", 'router="r"', "router_mtu=1500")), f"MTU: {line}")
        net.ip("m", "link", "set", "dev", "mb", "mtu", 1500)
        case.check(logged(log, "link takes all packets"), "the MTU is as it was")
        routes = scratch / "lan_gateway.routes"
        for text, wanted in ((routes.read_text().replace("via", "vai", 1), "routes refused"), (routes.read_text(), "routes read anew")):
            # A file that changes within the time stamps' resolution has another length.
            (scratch / "new").write_text(text + "# changed\n")
            (scratch / "new").replace(routes)
            for _ in range(4):
                net.sh("a", "ping", "-c", "1", "-W", "1", FAR, check=False)
                if logged(log, wanted, 1):
                    break
            line = logged(log, wanted, 0.1)
            case.check(line and ("vai" in log.read_text()), f"{wanted}: {line}")
        ended(case, box)


def received_twice(case, binary, scratch):
    """Two stages that receive from one interface, as after a copy that was not changed, are remarked."""
    path = configured(scratch, (('interface = "mb"', 'interface = "ma"'),))
    done = harness.Run(binary, ["validate", path])
    case.equal(done.status, 0, "exit status")
    case.check("receives from interface `ma`, and so does `lan`" in done.stdout.decode() + done.stderr, done.stderr)


def placed(case, binary, scratch):
    """Mistakes are placed where they were made, and nothing else is said."""
    one = 'static = ["tcp 10.0.0.6:80 = 192.0.2.8:8080"'
    for old, new, part, about in (
            ('pool = ["192.0.2.8/30"]', 'pool = ["192.0.2.8/30", "192.0.2.9"]', "192.0.2.9 is used twice", "pool = "),
            (one, one + ', "tcp 10.0.0.7:80 = 192.0.2.8:8080"', "192.0.2.8:8080 is mapped twice", "static = "),
            ('pool = ["192.0.2.8/30"]', 'pool = ["192.0.2.8/30", "192.0.2.254"]', "the gateway 192.0.2.254 is among", "routes = "),
            ('type = "firewall"', 'type = "firewal"', "`firewal` is neither", "type = "),
            ('type = "firewall"\n', "", "stage `fw` says no type", "[stage.fw]")):
        path = configured(scratch, ((old, new),))
        done = harness.Run(binary, ["validate", path])
        case.equal(done.status, 2, f"{new}: exit status")
        case.check(part in done.stderr and f"\n  | {about}" in done.stderr, f"{new}: {done.stderr}")
        case.equal(done.stderr.count("gateway.toml: line "), 1, f"{new}: {done.stderr}")


def forged(case, binary, scratch):
    """Nobody outside sends as from the LAN, whose addresses the firewall lets begin what they like."""
    if not case.check(have(case, "ping"), "ping is missing"):
        return
    with Lan() as net:
        box = Middlebox(net, binary, "run", *JSON, configured(scratch)).ready()
        net.ip("b", "route", "add", f"{C}/32", "via", OUTER)
        for source, length, target in (("10.0.0.99", 32, C), ("2001:db8:1::77", 128, C6)):
            net.ip("b", "addr", "add", f"{source}/{length}", "dev", "lo")
            net.sh("b", "ping", "-c", "3", "-i", "0.05", "-W", "1", "-I", source, target, check=False)
        report = ended(case, box)
        if report:
            stages = {stage["name"]: stage for stage in report["stages"]}
            case.equal(stages["r"]["dropped"].get("martian", 0), 6, "martian packets")


def snooping(case, binary, scratch):
    """Hosts find the gateway by IPv6 where their switch sends packets of a group only to where somebody has
    reported it: the gateway reports its groups, in answer to queries of either version."""
    if not case.check(have(case, "ping", "bridge"), "programs that this needs are missing"):
        return
    for version in (1, 2):
        with Lan() as net:
            net.sh("s", "bridge", "link", "set", "dev", "lan-m", "mcast_flood", "off")
            box = Middlebox(net, binary, "run", *JSON, configured(scratch)).ready()
            # The bridge itself asks, every second in the beginning.
            net.ip("s", "link", "set", "dev", "br0", "type", "bridge", "mcast_mld_version", version, "mcast_snooping", "1",
                   "mcast_startup_query_interval", "100", "mcast_startup_query_count", "20",
                   "mcast_query_response_interval", "100", "mcast_querier", "1")
            # Of 2001:db8:1::1 and of the gateway's link-local address, and of all routers on the link.
            wanted = {"ff02::1:ff00:1", "ff02::1:ff00:0"}
            deadline = time.monotonic() + 30
            while not wanted <= (known := groups(net)) and time.monotonic() < deadline:
                time.sleep(0.1)
            case.check(wanted <= known, f"version {version}: groups on the gateway's port: {known}")
            # The bridge goes by its groups as soon as all have had the time to answer.
            for host, to in (("a", GATEWAY6), ("c", FAR6)):
                while not (there := found(net, host, to)) and time.monotonic() < deadline:
                    pass
                case.check(there, f"version {version}: {host} doesn't reach {to}")
            report = ended(case, box)
            if report:
                counters = {stage["name"]: stage for stage in report["stages"]}["r"]["counters"]
                # Unasked on both links, and at least one answer.
                case.check(counters["listener_reports"] >= 3, f"version {version}: {counters}")


def found(net, host, to):
    """True if a host gets an answer."""
    return "1 received" in net.sh(host, "ping", "-c", "1", "-W", "1", to, check=False)


def groups(net):
    """The groups that the switch knows on the gateway's port."""
    lines = net.sh("s", "bridge", "mdb", "show", "dev", "br0").splitlines()
    return {line.split(" grp ")[1].split()[0] for line in lines if " port lan-m " in line}


GATEWAYS = (lan_gateway, lan_gateway_own_address, unreachable_pool, restart, announced, told_in_the_log,
            received_twice, placed, forged, snooping)
