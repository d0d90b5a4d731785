"""Sliced packets through an unmodified function in a namespace of its own: Linux forwarding with NAT by
nftables.

    a (a0) ==== (ma) m (mb) ==== (b0) b
                    m (fa) ==== (f0) f (f1) ==== (fb) m

m parks payloads of what comes from a and b, and puts packets together again when their headers come back from
f.
"""

import os
import subprocess

from harness import have
from live_functions import JSON, ended, fetch, iperf, nginx
from netns import Middlebox, Net

NAT = """
table ip nat {
    chain after {
        type nat hook postrouting priority 100
        oifname "f1" masquerade
    }
}
"""
GRAPH = """
a :: af_packet(interface=ma, ring=16384); b :: af_packet(interface=mb, ring=16384);
fa :: af_packet(interface=fa, ring=16384); fb :: af_packet(interface=fb, ring=16384);
a -> [a]park :: slice(ports=[a, b], entries=65536); b -> [b]park; park[a] -> fa; park[b] -> fb;
fa -> [a]join :: splice(ports=[a, b], mtu=1500); fb -> [b]join; join[a] -> a; join[b] -> b
"""


def function(net, scratch):
    """Linux as a router with NAT in namespace f, between the middlebox's interfaces fa and fb; the way of a
    and b leads there."""
    net.spaces["f"] = f"slip{os.getpid()}f"
    subprocess.run(["ip", "netns", "add", net.spaces["f"]], check=True)
    for inner, outer, address in (("f0", "fa", "10.77.1.254"), ("f1", "fb", "10.77.2.254")):
        net.ip("f", "link", "add", inner, "type", "veth", "peer", "name", outer, "netns", net.spaces["m"])
        net.sh("m", "sysctl", "-qw", f"net.ipv6.conf.{outer}.disable_ipv6=1")
        for space, interface in (("f", inner), ("m", outer)):
            net.ip(space, "link", "set", "dev", interface, "up")
        net.sh("f", "ethtool", "-K", inner, "tx", "off", "tso", "off", "gso", "off", "gro", "off")
        net.ip("f", "addr", "add", f"{address}/24", "dev", inner)
    net.sh("f", "sysctl", "-qw", "net.ipv4.ip_forward=1")
    rules = scratch / "nat.nft"
    rules.write_text(NAT)
    net.sh("f", "nft", "-f", rules)
    # The lengths of what is sliced don't add up to sequence numbers, which conntrack would watch.
    net.sh("f", "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_be_liberal=1")
    for end, number in (("a", 1), ("b", 2)):
        net.ip(end, "route", "add", "default", "via", f"10.77.{number}.254")


def sliced_function(case, binary, scratch):
    """Files and bulk traffic through Linux's NAT, which has headers only: all bytes arrive, and payloads did
    wait."""
    if not have(case, "curl", "nginx", "iperf3", "nft", "ss"):
        return
    fetches = int(os.environ.get("SLIPSTREAM_SLICE_FILES", "6"))
    with Net(routed=True) as net:
        function(net, scratch)
        box = Middlebox(net, binary, "run", *JSON, "-e", GRAPH).ready()
        page = nginx(net, "b", scratch)
        for _ in range(fetches):
            fetch(case, net, "http://10.77.2.2/page", page, scratch)
        clients = {line.split()[0] for line in (scratch / "access.log").read_text().splitlines()}
        case.equal(clients, {"10.77.2.254"}, "clients that nginx saw")
        print(f"       through Linux's NAT in slices: iperf3 {iperf(net, '10.77.2.2'):.0f} Mbit/s")
        report = ended(case, box)
        if report:
            park, join = (next(s["counters"] for s in report["stages"] if s["name"] == name) for name in ("park", "join"))
            case.check(park["sliced"] > 1000, f"sliced: {park}")
            case.equal((join["spliced"], park["payloads_waiting"]), (park["sliced"], 0), "put together again, and payloads left")
            case.equal({name: join[name] for name in ("forged", "stale", "late", "mangled")}, dict.fromkeys(("forged", "stale", "late", "mangled"), 0),
                       "packets that could not be put together")


SLICED = (sliced_function,)
