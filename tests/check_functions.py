#!/usr/bin/env python3
"""Are packets still right after network functions? Captures through each behind a reframer, by tshark.

Of every capture the packets are taken that tshark finds nothing wrong with: after a function nothing may be
wrong with them either. Deciding once a train and once a packet must give the same files, byte for byte; no
packet may be lost without being counted; and what `flow_stats` exports by IPFIX must sum up to what was in
the capture.
"""

import hashlib
import ipaddress
import shutil
import struct
import subprocess
from collections import Counter, defaultdict, namedtuple

import capture
import harness

ROUTER_MAC = bytes.fromhex("020000000001")
MOST = 15_000  # packets of a capture
GAP = 2 * 10**9  # ns between packets, at most
CHECK = [word for layer in ("ip", "tcp", "udp") for word in ("-o", f"{layer}.check_checksum:TRUE")]
# What an ICMP error quotes is cut off, and its checksum can't be told, though tshark does.
WRONG = " || ".join([*(f"{layer}.checksum.status == 0" for layer in ("ip", "icmp", "icmpv6")), "ip.bogus_header_length",
                     "(!icmp && !icmpv6 && (tcp.checksum.status == 0 || udp.checksum.status == 0 || ip.bogus_ip_length || "
                     "udp.length.bad))"])
SYNTH = ("--flows", 600, "--packets", 12_000, "--slf", 4, "--protocol", 0.6, "--ipv6", 0.3, "--vlan", 0.2, "--size", "90..1500",
         "--rate", "200kpps", "--seed", 9)
RULES = "count udp\nreset tcp dst port 443\ndeny udp dst port 53 and dscp 0\nlog 1/100 tcp syn\nreset udp src port 1024-9000\ndefault allow\n"
ROUTES = "default via 192.0.2.254\n::/0 via fd99::fe port b\n"

# A function: the graph, with {settings} to go on with; other ports than `out` that packets leave by.
Function = namedtuple("Function", "graph others decides")


def functions(path, service):
    """The functions, with the files that they need beside `path`."""
    (path / "rules.txt").write_text(RULES)
    (path / "routes.txt").write_text(ROUTES)
    router = (f'in -> reframe -> [a]f :: router(interfaces=["a 10.255.0.1/24 fd98::1/64 02:00:00:00:00:01", '
              f'"b 192.0.2.1/24 fd99::1/64 02:00:00:00:00:02"], routes="{path}/routes.txt", icmp_rate=100000, icmp_burst=1000, '
              'neighbours=["b 192.0.2.254 02:00:00:00:00:fe", "b fd99::fe 02:00:00:00:00:fe"], {settings}); f[b] -> out')
    firewall = f'in -> reframe -> f :: firewall(rules="{path}/rules.txt", {{settings}}) -> out'
    nat = "in -> reframe -> f :: nat(pool=[203.0.113.0/29], {settings}) -> out"
    balance = 'in -> reframe -> f :: balancer(service="{service}", protocol={protocol}, backends=["10.1.0.1", "10.1.0.2 weight=3"], '
    chosen = {
        "router": Function(router, {"f[a]": "replies"}, True),
        "firewall": Function(firewall, {"f[replies]": "replies", "f[denied]": "denied"}, True),
        "nat": Function(nat, {"f[inside]": "inside"}, True),
        "nptv6": Function("in -> reframe -> f :: nptv6(inside=2000::/3, external=4000::/3, {settings}) -> out", {"f[inside]": "inside"}, True),
        "meter": Function("in -> reframe -> f :: meter(cir=2mbps, cbs=20KB, ebs=30KB, mark=af1, {settings}) -> out", {}, True),
        "meter_flows": Function("in -> reframe -> f :: meter(cir=50kbps, pir=100kbps, cbs=3KB, pbs=6KB, per=flow, mark=\"10,12,14\", "
                                "red=port, {settings}) -> out", {"f[red]": "red"}, True),
        "vlan_push": Function("in -> reframe -> vlan_push(id=77, priority=3) -> f :: vlan_push(id=5, ethertype=802.1ad) -> out", {}, False),
        "vlan_pop": Function("in -> reframe -> vlan_push(id=77) -> vlan_pop -> f :: vlan_pop -> out", {}, False),
    }
    if service:
        address, port, protocol = service
        head = balance.replace("{service}", f"{address}:{port}").replace("{protocol}", protocol)
        chosen |= {
            "balancer_dsr": Function(head + "source=192.0.2.79, {settings}); f[backends] -> out", {"f[clients]": "clients"}, True),
            "balancer_nat": Function(head + "mode=nat, port=8080, {settings}); f[backends] -> out", {"f[clients]": "clients"}, True),
        }
    return chosen


# A frame that stands for the end of a file where several are judged by one run of tshark: of an EtherType for
# experiments, which nothing dissects.
MARK = bytes(12) + b"\x88\xb5" + bytes(46)
# Findings, by the packets that were asked about.
FOUND = {}


def faulty(*paths):
    """For each file, the numbers of the frames that tshark finds something wrong with, and how many packets
    are `overlong`. The same packets are judged once, whatever their times."""
    digests, asked = [], {}
    for path in paths:
        read, packets = capture.read(path), hashlib.blake2b()
        if not read.whole:
            raise AssertionError(f"{path.name} is no whole capture")
        for record in read.records:
            packets.update(b"%d %d %d " % (record.link, record.length, len(record.data)))
            packets.update(record.data)
        digests.append(packets.digest())
        if digests[-1] not in FOUND:
            asked.setdefault(digests[-1], (path, read.records))
    if asked:
        found = judged([(path, len(records)) for path, records in asked.values()])
        FOUND.update((digest, (wrong, overlong(asked[digest][1]))) for digest, wrong in zip(asked, found))
    return [FOUND[digest] for digest in digests]


def judged(files):
    """Judges files with so many packets by one run of tshark over their bytes. It forgets everything after as
    many frames as the longest has and a mark; the others are filled up with marks."""
    joined, size = files[0][0].with_name("judged.pcap"), 1 + max(packets for _, packets in files)
    head = files[0][0].read_bytes()[:24]
    order, _ = capture.PCAP_MAGIC[head[:4]]
    mark = struct.pack(order + "4I", 0, 0, len(MARK), len(MARK)) + MARK
    with open(joined, "wb") as file:
        file.write(head)
        for path, packets in files:
            data = path.read_bytes()
            if data[:24] != head:
                raise AssertionError(f"{path.name} begins otherwise than {files[0][0].name}: {data[:24].hex()}, {head.hex()}")
            file.write(data[24:] + mark * (size - packets))
    # The numbers come as a column: with fields (-T fields) tshark puts every field of every packet into
    # words, which takes as long as all else.
    shown = f"frame.number == {size} && eth.type == 0x88b5 || frame.number != {size} && ({WRONG})"
    words = ["tshark", "-n", "-M", size, "-r", joined, *CHECK, "-o", 'gui.column.format:"Number","%m"', "-Y", shown]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise AssertionError(f"tshark: {done.stderr.strip()[-300:]}")
    found = [set()]
    for number in map(int, done.stdout.splitlines()):
        if number < size:
            found[-1].add(number - 1)
        elif number == size:
            found.append(set())
        else:
            raise AssertionError(f"tshark gives frame {number} where one of {size} ends")
    if len(found) != len(files) + 1 or found.pop():
        raise AssertionError(f"tshark found the ends of {len(found) - 1} files, not of {len(files)}")
    return found


def overlong(records):
    """How many packets have an IP length that doesn't fit what was on the wire."""
    found = ((r, capture.headers(r.link, r.data)) for r in records)
    return sum(h is not None and h.end > r.length for r, h in found)


def prepare(path, scratch):
    """A copy of a capture with the packets that nothing is wrong with, all addressed to the router."""
    read = capture.read(path)
    raw, clean = scratch / "raw.pcap", scratch / "in.pcap"
    records = [r for r in read.records[:MOST] if r.link == 1 and r.time is not None]
    capture.write_pcap(raw, records, 1)
    ((wrong, _),) = faulty(raw)
    records = [r._replace(data=addressed(r.data)) for n, r in enumerate(records) if n not in wrong and not overlong([r])]
    capture.write_pcap(clean, records, 1)
    ((still, _),) = faulty(clean)
    # Datagrams of whose fragments some were left out.
    records = closer([r for n, r in enumerate(records) if n not in still])
    capture.write_pcap(clean, records, 1)
    return clean, records


def closer(records):
    """No packet comes more than GAP after the one before: some captures are joined from several years."""
    out, before, now = [], None, 0
    for record in records:
        now = record.time if before is None else now + max(0, min(record.time - before, GAP))
        before = record.time
        out.append(record._replace(time=now))
    return out


def addressed(data):
    """A unicast frame of IP comes to the router."""
    return ROUTER_MAC + data[6:] if len(data) > 14 and not data[0] & 1 else data


def service_of(records):
    """The IPv4 address, port and protocol that most packets go to."""
    seen = Counter()
    for record in records:
        found = capture.headers(1, record.data)
        if found and found.version == 4 and found.protocol in (capture.TCP, capture.UDP) and not found.fragment:
            if ipaddress.ip_address(found.key[2][4:]).is_multicast:
                continue
            seen[found.key[2][4:], found.key[4][2:], found.protocol] += 1
    for (address, port, protocol), _ in seen.most_common(1):
        return ipaddress.ip_address(address), int.from_bytes(port, "big"), "tcp" if protocol == capture.TCP else "udp"
    return None


def run(case, binary, given, function, settings, scratch, name):
    """One run; its files and its report."""
    files = [scratch / f"{name}-out.pcap"]
    graph = function.graph.replace("{settings}", settings)
    for port, file in function.others.items():
        files.append(scratch / f"{name}-{file}.pcap")
        graph += f"; {port} -> {file} :: pcap(path=\"{files[-1]}\")"
    done = harness.Run(binary, ["run", "-i", given, "-o", files[0], "--format", "json", "-e", graph])
    report = done.json()
    case.equal(report["left_inside"], 0, "left inside")
    return files, report, done.command.replace(str(scratch), "/tmp")


MADE = ("replies", "icmp_errors", "echo_replies", "neighbour_questions", "neighbour_answers")


def conserved(case, records, report, too_big):
    """Packets that came in, and that the function made, went out or were dropped for a reason."""
    stage = next(s for s in report["stages"] if s["name"] == "f")
    counters = stage["counters"]
    made = sum(counters.get(name, 0) for name in MADE) + too_big
    made += counters.get("fragments", 0) - counters.get("fragmented", 0)
    case.equal(report["packets_in"], len(records), "packets in")
    case.equal(report["packets_out"] + sum(report["dropped"].values()), len(records) + made, f"packets out and dropped ({counters})")


def by_flow(file):
    """The packets of each flow, with their times. The router's own ICMP errors come behind the train that
    they are about, or between its packets; they are of other flows."""
    found = defaultdict(list)
    for record in capture.read(file).records:
        found[capture.flow_key(1, record.data)].append(record)
    return found


def function(binary, path, scratch):
    """All functions on one capture."""
    if path == "synth":
        path = scratch / "synth.pcap"
        harness.Run(binary, ["synth", *SYNTH, path, "--format", "json"]).json()
    given, records = prepare(path, scratch)
    done = []
    for name, what in functions(scratch, service_of(records)).items():
        case = harness.Case()
        files, report, command = run(case, binary, given, what, "decide=train", scratch, name)
        # In a tunnel there is less room: the balancer says so in errors to the clients, which it has no
        # counter for.
        too_big = len(capture.read(files[1]).records) if name == "balancer_dsr" else 0
        conserved(case, records, report, too_big)
        if what.decides:
            others, other, _ = run(case, binary, given, what, "decide=packet", scratch, f"{name}-packet")
            case.equal(other["dropped"], report["dropped"], "dropped by one decision a packet")
            for one, two in zip(files, others):
                same = one.read_bytes() == two.read_bytes() or name == "router" and by_flow(one) == by_flow(two)
                case.check(same, f"{one.name}: other packets by one decision a packet")
        if name == "vlan_pop":
            tagged = sum(r.data[12:14] in (b"\x81\0", b"\x88\xa8") for r in capture.read(files[0]).records)
            case.check(tagged <= sum(r.data[16:18] in (b"\x81\0", b"\x88\xa8") for r in records), f"{tagged} tags left")
        done.append((command, case, files))
    found = iter(faulty(*(file for _, _, files in done for file in files)))
    for command, case, files in done:
        for file, (wrong, long) in zip(files, found):
            case.check(not wrong, f"{file.name}: {len(wrong)} packets are wrong, the first is number {sorted(wrong)[:1]}")
            case.equal(long, 0, f"{file.name}: packets longer than what was on the wire")
        yield f"{command} ({path.name}, {len(records)} packets)", case.wrong
    yield statistics(binary, given, records, scratch)


def ip_bytes(record, found):
    """Bytes of an IP packet without padding; where its length is 0, as offloads leave it, all there was."""
    at = 14 + 4 * len(found.key[0])
    said = record.data[at + 2:at + 4] if found.version == 4 else record.data[at + 4:at + 6]
    return found.end - at if said != b"\0\0" else record.length - at


def statistics(binary, given, records, scratch):
    """What `flow_stats` exports is what was in the capture, flow by flow."""
    case = harness.Case()
    want, octets = Counter(), Counter()
    for record in records:
        found = capture.headers(1, record.data)
        if found:
            vlans, *rest = found.key
            key = (vlans[0] if vlans else 0, *rest[1:])
            want[key] += 1
            octets[key] += ip_bytes(record, found)
    file = scratch / "flows.ipfix"
    done = harness.Run(binary, ["run", "-i", given, "-o", "null", "--format", "json", "-e",
                                f'reframe -> flow_stats(export="{file}", idle=1s)'])
    done.json()
    packets, sizes = Counter(), Counter()
    for flow in ipfix(file.read_bytes()):
        key = (flow[58], flow.get(8, flow.get(27)) + flow.get(12, flow.get(28)), flow[4][0], flow[7] + flow[11])
        key = (int.from_bytes(key[0], "big") & 4095, *key[1:])
        packets[key] += int.from_bytes(flow[2], "big")
        sizes[key] += int.from_bytes(flow[1], "big")
    case.equal(sum(packets.values()), sum(want.values()), "packets of all flows")
    case.equal(sum(sizes.values()), sum(octets.values()), "bytes of all flows")
    case.check(packets == want, f"packets by flow: {list((packets - want).items())[:2]} {list((want - packets).items())[:2]}")
    case.check(sizes == octets, f"bytes by flow: {list((sizes - octets).items())[:2]} {list((octets - sizes).items())[:2]}")
    return f"{done.command.replace(str(scratch), '/tmp')} ({len(records)} packets)", case.wrong


def ipfix(data):
    """The flow records of IPFIX messages back to back: information element by number."""
    templates, at = {}, 0
    while at < len(data):
        version, length = struct.unpack_from("!HH", data, at)
        if version != 10 or length < 16 or at + length > len(data):
            raise AssertionError(f"no IPFIX message at byte {at}")
        place, end = at + 16, at + length
        while place < end:
            number, size = struct.unpack_from("!HH", data, place)
            if size < 4 or place + size > end:
                raise AssertionError(f"a set of {size} bytes at byte {place}")
            body = data[place + 4:place + size]
            if number == 2:
                learn(templates, body)
            elif number in templates:
                yield from flows(templates[number], body)
            else:
                raise AssertionError(f"a set of the unknown template {number}")
            place += size
        at = end


def learn(templates, body):
    at = 0
    while at + 4 <= len(body):
        number, count = struct.unpack_from("!HH", body, at)
        fields = struct.unpack_from(f"!{2 * count}H", body, at + 4)
        templates[number] = list(zip(fields[::2], fields[1::2]))
        at += 4 + 4 * count


def flows(template, body):
    size, at = sum(length for _, length in template), 0
    while at + size <= len(body):
        flow = {}
        for element, length in template:
            flow[element] = body[at:at + length]
            at += length
        yield flow


def jobs(where):
    if shutil.which("tshark") is None:
        raise SystemExit("tshark is not installed, so that nothing can be checked")
    chosen = [harness.ROOT / "traces/campus.pcap.gz", "synth"]
    chosen += [p for p in sorted((where / "multi").iterdir()) if p.stat().st_size < 5_000_000]
    return chosen


if __name__ == "__main__":
    harness.main(__doc__.splitlines()[0], jobs, function, chunk=1)
