"""Network functions at work between real end hosts: what ping, traceroute, curl, nginx and iperf3 make of
them."""

import json
import os
import socket
import struct
import time

from harness import have
from netns import Middlebox, Net, checksum, is_udp, number_of, udp

PORTS = "lan :: af_packet(interface=ma); wan :: af_packet(interface=mb); "
JSON = ("--format", "json")

NGINX = """
daemon off; master_process off; pid {dir}/pid; error_log {dir}/error.log;
events {{}}
http {{
    access_log {dir}/access.log;
    client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy; fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;
    server {{ listen 80; listen [::]:80; root {dir}/www; }}
}}
"""


def mac(net, name):
    return ":".join(f"{byte:02x}" for byte in net.mac[name])


def ended(case, box):
    """The report of an interrupted run that ended well."""
    status, out, err = box.stop()
    if not case.equal(status, 0, f"exit status ({err.strip()[-400:]})"):
        return None
    report = json.loads(out)
    case.equal(report["left_inside"], 0, "left inside")
    return report


def nginx(net, end, scratch):
    """nginx with a megabyte to give; the page."""
    www = scratch / "www"
    www.mkdir()
    page = os.urandom(1 << 20)
    (www / "page").write_bytes(page)
    (scratch / "nginx.conf").write_text(NGINX.format(dir=scratch))
    net.start(end, "nginx", "-p", scratch, "-c", scratch / "nginx.conf", "-e", scratch / "error.log")
    net.listens(end, 80)
    return page


def fetch(case, net, url, page, scratch, end="a"):
    into = scratch / "got"
    net.sh(end, "curl", "-sS", "-g", "-m", "20", "-o", into, url)
    case.check(into.read_bytes() == page, f"{end}: {url}: not what nginx has")


def iperf(net, target):
    """Mbit/s over two connections."""
    server = net.start("b", "iperf3", "-s", "-1")
    net.listens("b", 5201)
    text = net.sh("a", "iperf3", "-c", target, "-t", "1", "-P", "2", "-J", timeout=30)
    # The client has the result; a server may miss the end of a connection over which nothing more comes.
    server.kill()
    server.communicate()
    return json.loads(text)["end"]["sum_received"]["bits_per_second"] / 1e6


def routed(net):
    """The end hosts' way through a router, whose addresses end in 254 (fe)."""
    for end, here, there in (("a", 1, 2), ("b", 2, 1)):
        net.ip(end, "route", "add", f"10.77.{there}.0/24", "via", f"10.77.{here}.254")
        net.ip(end, "route", "add", f"fd77:{there}::/64", "via", f"fd77:{here}::fe")


def routers(net, name="r"):
    return (f"{name} :: router(interfaces=[\"lan 10.77.1.254/24 fd77:1::fe/64 {mac(net, 'ma')}\", "
            f"\"wan 10.77.2.254/24 fd77:2::fe/64 {mac(net, 'mb')}\"]); ")


def router(case, binary, scratch):
    """A router: neighbours find each other, ping, traceroute sees a hop, what is too large is said, curl and
    iperf3 work."""
    if not have(case, "ping", "traceroute", "curl", "nginx", "iperf3", "ss"):
        return
    with Net(routed=True) as net:
        routed(net)
        graph = PORTS + routers(net) + "lan -> [lan]r; wan -> [wan]r; r[lan] -> lan; r[wan] -> wan"
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        for target in ("10.77.1.254", "10.77.2.2", "fd77:1::fe", "fd77:2::2"):
            text = net.sh("a", "ping", "-c", "5", "-i", "0.05", "-W", "2", target, check=False)
            case.check("5 received" in text, text)
        for target, hop in (("10.77.2.2", "10.77.1.254"), ("fd77:2::2", "fd77:1::fe")):
            lines = net.sh("a", "traceroute", "-n", "-q", "1", "-w", "2", "-m", "4", target).splitlines()[1:]
            case.equal([line.split()[1] for line in lines], [hop, target], f"hops to {target}")
        net.ip("a", "route", "add", "10.77.9.0/24", "via", "10.77.1.254")
        text = net.sh("a", "ping", "-c", "1", "-W", "2", "10.77.9.9", check=False)
        case.check("nreachable" in text, f"no route: {text}")
        page = nginx(net, "b", scratch)
        for url in ("http://10.77.2.2/page", "http://[fd77:2::2]/page"):
            fetch(case, net, url, page, scratch)
        print(f"       router: iperf3 {iperf(net, '10.77.2.2'):.0f} Mbit/s")
        ended(case, box)


RULES = """
allow icmp
allow icmp6
allow tcp dst port 80
reset tcp dst port 81
allow tcp src port 80
deny any
"""


def firewall(case, binary, scratch):
    """A firewall in the wire: what rules allow works, what they deny doesn't, what they reset is told so at
    once."""
    if not have(case, "ping", "curl", "nginx", "ss"):
        return
    rules = scratch / "rules.txt"
    rules.write_text(RULES)
    with Net() as net:
        east = f"lan -> east :: firewall(rules=\"{rules}\") -> wan; east[replies] -> lan; "
        west = f"wan -> west :: firewall(rules=\"{rules}\") -> lan"
        near, far = net.wire("a"), net.wire("b")
        box = Middlebox(net, binary, "run", *JSON, "-e", PORTS + east + west).ready()
        text = net.sh("a", "ping", "-c", "3", "-i", "0.05", "-W", "2", "10.77.0.2", check=False)
        case.check("3 received" in text, text)
        page = nginx(net, "b", scratch)
        fetch(case, net, "http://10.77.0.2/page", page, scratch)
        since = time.monotonic()
        text = net.sh("a", "sh", "-c", "curl -sS -m 5 http://10.77.0.2:81/ 2>&1", check=False)
        case.check(time.monotonic() - since < 2, f"a connection that is reset: {text}")
        text = net.sh("a", "sh", "-c", "curl -sS -m 1 http://10.77.0.2:82/ 2>&1", check=False)
        case.check("timed out" in text, f"a connection that is denied: {text}")
        near.send(udp(net, 1))
        case.equal([number_of(f) for _, f in far.receive(0.3, is_udp)], [], "denied packets that arrived")
        report = ended(case, box)
        if report:
            case.check(report["dropped"].get("denied", 0) >= 2, f"dropped: {report['dropped']}")


def nat(case, binary, scratch):
    """A NAT in the wire: ping and curl to nginx, which sees the external address only."""
    if not have(case, "ping", "curl", "nginx", "iperf3", "ss"):
        return
    with Net() as net:
        # The inside is another network; who is where on the link is told, since the NAT is no router.
        net.ip("a", "addr", "flush", "dev", "a0")
        net.ip("a", "addr", "add", "192.168.7.1/24", "dev", "a0")
        net.ip("a", "route", "add", "10.77.0.0/24", "dev", "a0")
        net.ip("a", "neigh", "replace", "10.77.0.2", "lladdr", mac(net, "b"), "dev", "a0")
        net.ip("b", "neigh", "replace", "10.77.0.100", "lladdr", mac(net, "a"), "dev", "b0")
        graph = ("lan -> n :: nat(pool=[10.77.0.100], inside=[192.168.7.0/24], routed=true) -> wan; "
                 "wan -> [outside]n[inside] -> lan")
        box = Middlebox(net, binary, "run", *JSON, "-e", PORTS + graph).ready()
        text = net.sh("a", "ping", "-c", "5", "-i", "0.05", "-W", "2", "10.77.0.2", check=False)
        case.check("5 received" in text, text)
        page = nginx(net, "b", scratch)
        fetch(case, net, "http://10.77.0.2/page", page, scratch)
        clients = {line.split()[0] for line in (scratch / "access.log").read_text().splitlines()}
        case.equal(clients, {"10.77.0.100"}, "clients that nginx saw")
        print(f"       NAT: iperf3 {iperf(net, '10.77.0.2'):.0f} Mbit/s")
        ended(case, box)


FRAGMENT_RULES = """
allow ip6
deny udp dst port 5353
allow state established,related
allow state new src host 10.77.0.1
default deny
"""


def fragments(case, binary, scratch):
    """Datagrams of 3,000 bytes, which hosts send in fragments: a question and its answer pass a firewall that
    tracks connections, and a NAT; one to a port that is denied is stopped, in any order."""
    rules = scratch / "fragments.txt"
    rules.write_text(FRAGMENT_RULES)
    stateful = (f"lan -> fw :: firewall(rules=\"{rules}\") -> side :: switch(ports=[\"out: src host 10.77.0.1\"]); "
                "wan -> fw; side[out] -> wan; side[other] -> lan")
    translated = "lan -> n :: nat(pool=[10.77.0.100], inside=[10.77.0.1/32], routed=true) -> wan; wan -> [outside]n[inside] -> lan"
    for graph, asker in ((stateful, "10.77.0.1"), (translated, "10.77.0.100")):
        with Net() as net:
            # ARP is no IP: nobody would know which side it belongs to.
            for end, other, address in (("a", "b", "10.77.0.2"), ("b", "a", "10.77.0.1"), ("b", "a", "10.77.0.100")):
                net.ip(end, "neigh", "replace", address, "lladdr", mac(net, other), "dev", f"{end}0")
            box = Middlebox(net, binary, "run", *JSON, "-e", PORTS + graph).ready()
            near, far = (net.socket(end, socket.AF_INET, socket.SOCK_DGRAM) for end in "ab")
            near.bind(("10.77.0.1", 4000))
            far.bind(("10.77.0.2", 53))
            near.settimeout(5)
            far.settimeout(5)
            question, answer = os.urandom(3000), os.urandom(4000)
            near.sendto(question, ("10.77.0.2", 53))
            got, client = far.recvfrom(1 << 16)
            case.equal((got == question, client[0]), (True, asker), "the question, and who asked")
            far.sendto(answer, client)
            case.check(near.recv(1 << 16) == answer, "the answer came as another")
            report = denied(case, net, box, near, question) if graph == stateful else ended(case, box)
            if report:
                case.equal(report["dropped"].get("denied", 0), 6 if graph == stateful else 0, "denied fragments")
            near.close()
            far.close()


def denied(case, net, box, near, question):
    """What comes for a denied port doesn't arrive, as the host sends it and the other way round."""
    wire, seen = net.wire("a"), net.wire("b")
    near.sendto(question, ("10.77.0.2", 5353))
    for frame in cut(net, question):
        wire.send(frame)
    arrived = seen.receive(0.5, lambda frame: frame[12:14] == b"\x08\0")
    case.equal([frame[:60].hex() for _, frame in arrived], [], "denied fragments that arrived")
    return ended(case, box)


def cut(net, payload):
    """A datagram to the denied port in fragments, the last one first."""
    datagram = struct.pack("!HHHH", 4001, 5353, 8 + len(payload), 0) + payload
    frames = []
    for at in range(0, len(datagram), 1480):
        data = datagram[at:at + 1480]
        word = at // 8 | (0x2000 if at + 1480 < len(datagram) else 0)
        header = struct.pack("!BBHHHBBH", 0x45, 0, 20 + len(data), 77, word, 64, 17, 0) + bytes([10, 77, 0, 1, 10, 77, 0, 2])
        header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
        frames.insert(0, net.mac["b"] + net.mac["a"] + b"\x08\0" + header + data)
    return frames


def gateway(case, binary, scratch):
    """A router with a NAT before its outer port, in one graph: ping, traceroute and curl from inside, whose
    addresses nobody outside has a way to."""
    if not have(case, "ping", "traceroute", "curl", "nginx", "ss"):
        return
    with Net(routed=True) as net:
        net.ip("a", "route", "add", "10.77.2.0/24", "via", "10.77.1.254")
        graph = PORTS + routers(net) + (
            "lan -> [lan]r; r[lan] -> lan; r[wan] -> [inside]n :: nat(pool=[10.77.2.254], inside=[10.77.1.0/24]); "
            "n[outside] -> wan; wan -> [outside]n; n[inside] -> [wan]r"
        )
        box = Middlebox(net, binary, "run", *JSON, "-e", graph).ready()
        text = net.sh("a", "ping", "-c", "5", "-i", "0.05", "-W", "2", "10.77.2.2", check=False)
        case.check("5 received" in text, text)
        lines = net.sh("a", "traceroute", "-n", "-q", "1", "-w", "2", "-m", "4", "10.77.2.2").splitlines()[1:]
        case.equal([line.split()[1] for line in lines], ["10.77.1.254", "10.77.2.2"], "hops")
        page = nginx(net, "b", scratch)
        fetch(case, net, "http://10.77.2.2/page", page, scratch)
        clients = {line.split()[0] for line in (scratch / "access.log").read_text().splitlines()}
        case.equal(clients, {"10.77.2.254"}, "clients that nginx saw")
        ended(case, box)


FUNCTIONS = (router, firewall, nat, fragments, gateway)
