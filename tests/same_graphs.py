"""Pipelines that `same_bytes.py` runs with two builds: random ones of all stage types, the chain, and the
bundled configurations.

A random pipeline is a line of stages; what leaves it by the side goes to a capture of its own or to another
stage.
"""

from collections import namedtuple

import capture
import harness
from check_functions import service_of

# One run. `known`: whether the words' options must be known to both builds. `beside`: words of a process at
# the other end of shared memory. `keep`: endings of files that later runs of the case need. `ignored`: keys
# of its report that may differ.
Call = namedtuple("Call", "words stdin known live beside keep ignored", defaults=(None, True, False, None, (), frozenset()))
# Runs in one directory. `weight`: about how long they take, so that long ones begin first.
Case = namedtuple("Case", "name calls files weight", defaults=({}, 1))

JSON = ("--format", "json")
CAMPUS = harness.ROOT / "traces/campus.pcap.gz"
LARGE = 3_000_000  # bytes of a capture, from which on it gets fewer settings
BYPASS_RULES = "# What never waits.\ntcp syn\nudp port 53,123\nicmp or icmp6\n"
RULES = """count udp
reset tcp dst port 443
deny udp dst port 53 and dscp 0
log 1/100 tcp syn
reset udp src port 1024-9000
deny icmp fragment
allow src net 10.0.0.0/8,192.168.0.0/16
default allow
"""
STATES = """allow state established,related
deny state invalid
allow tcp syn dst port 1-1024
allow udp
allow icmp or icmp6
default deny
"""
ROUTES = """default via 192.0.2.254
::/0 via fd99::fe port b
10.8.0.0/16 via 192.0.2.253
blackhole 172.17.0.0/16
prohibit 203.0.113.0/28
192.168.0.0/17 port a
"""
# Resets have a rate, which is one by the wall clock in a live run.
LIVE_RULES = "deny udp dst port 53\ndeny tcp dst port 443\ndeny tcp src port 1024-9000\ndefault allow\n"
FILES = {"live.txt": LIVE_RULES, "rules.txt": RULES, "states.txt": STATES, "routes.txt": ROUTES, "bypass.rules": BYPASS_RULES}
STAGES = ("pcap", "synth", "null", "shm", "af_packet", "paced", "reframe", "router", "l2fwd", "firewall", "nat", "nptv6", "meter", "balancer", "flow_stats",
          "counter", "discard", "limit", "measure", "slice", "splice", "switch", "tap", "tee", "vlan_push", "vlan_pop")
WRONG = ("refrane(hold=64 parsecs) -> limit(rate=3, brst=2)", "reframe(hold=64us", "a -> b", "slice -> counter", "counter[7] -> discard",
         "switch(ports=[\"x: tcp prot 80\"])[x] -> counter", "firewall(rules=\"nothing.txt\")", "nat(pool=[10.0.0.1/33])", "tee",
         "reframe -> reframe -> reframe", "slice -> reframe(tcp_order=true) -> splice", "router(interfaces=[\"a 10.0.0.1/24\"])")
MTU = (1280, 1400, 1500)


class Line:
    """A line of stages that is being written."""

    def __init__(self, rng, service):
        self.rng, self.service = rng, service or ("192.0.2.80", 80, "tcp")
        self.names, self.here, self.more = 0, "", []

    def name(self, letter):
        self.names += 1
        return f"{letter}{self.names}"

    def put(self, text, leave=""):
        """Goes on by a stage, whose port `leave` is the way on."""
        self.here += f" -> {text}{leave}" if self.here else f"{text}{leave}"

    def branch(self, port):
        """Where a side way leads: to a file, through another reframer, or nowhere."""
        name, way = self.name("side"), self.rng.random()
        if way < 0.15:
            self.more.append(f"{port} -> {name} :: discard")
            return
        file = f"{name}.{self.rng.choice(('pcap', 'pcapng'))}"
        between = f"{name}r :: reframe({reframe_settings(self.rng)}) -> " if way > 0.75 else ""
        self.more.append(f'{port} -> {between}{name} :: pcap(path="{file}"{self.rng.choice(("", ", stamp=arrival"))})')

    def text(self):
        return "; ".join([f"in -> {self.here} -> out", *self.more])


def reframe_settings(rng, inside_slice=False):
    settings = [f"hold={rng.choice(('0', '10us', '64us', '1ms', '100ms'))}", f"burst={rng.choice((1, 2, 5, 32, 256))}"]
    for share, text in ((0.4, f"policy={rng.choice(('waiting', 'shortest'))}"), (0.2, f"capacity={rng.choice((1, 7, 100))}"),
                        (0.15, "admit=second"), (0.2, "compress=ack"), (0.3, f'bypass="{rng.choice(("none", "udp; tcp fin", "tcp syn"))}"'),
                        (0.2, 'class=["web: tcp port 80,443 => hold=200us, burst=8", "udp: udp => bypass"]')):
        if rng.random() < share:
            settings.append(text)
    if not inside_slice:
        settings += ["tcp_order=true"] if rng.random() < 0.2 else []
        settings += ["tunnel=inner"] if rng.random() < 0.2 else []
    return ", ".join(settings)


def reframe(line):
    line.put(f"{line.name('r')} :: reframe({reframe_settings(line.rng)})")


def decide(rng):
    return rng.choice(("", ", decide=packet"))


def firewall(line):
    rng, name = line.rng, line.name("fw")
    rules = rng.choice(("rules.txt", "states.txt"))
    extra = rng.choice(("", "", ", classifier=linear", ", cache=64", ", track=on", ", fragments=0", ", connections=20, early_drop=true",
                        ", checksum=all", ", other=deny"))
    line.put(f'{name} :: firewall(rules="{rules}"{extra}{decide(rng)})')
    for port in ("denied", "replies"):
        if rng.random() < 0.8:
            line.branch(f"{name}[{port}]")


def nat(line):
    rng, name = line.rng, line.name("n")
    extra = rng.choice(("", "", ", pooling=arbitrary", ", filtering=address-and-port-dependent", ", ports=2000-2040", ", sessions=50",
                        ", inside=[10.0.0.0/8, 192.168.0.0/16]", ", loose=false", ", fragments=16", ", udp_timeout=1s"))
    line.put(f"{name} :: nat(pool=[203.0.113.0/29], routed=true{extra}{decide(rng)})")
    line.branch(f"{name}[inside]")


def router(line):
    rng, name = line.rng, line.name("rt")
    mtu = rng.choice(MTU)
    line.put(f'[a]{name} :: router(interfaces=["a 10.255.0.1/24 fd98::1/64 02:00:00:00:00:01", "b 192.0.2.1/24 fd99::1/64 '
             f'02:00:00:00:00:02 mtu {mtu}"], routes="routes.txt", icmp_rate={rng.choice((10, 100000))}, icmp_burst=1000, '
             'neighbours=["b 192.0.2.254 02:00:00:00:00:fe", "b 192.0.2.253 02:00:00:00:00:fd", "b fd99::fe 02:00:00:00:00:fe"]'
             f'{decide(rng)})', "[b]")
    line.branch(f"{name}[a]")


def l2fwd(line):
    rng, name = line.rng, line.name("br")
    extra = rng.choice(("", ", learn=false, static=[\"02:00:00:00:00:01 b\"]", ", stations=16", ", map=[\"a > b\"]", ", reserved=true", ", ageing=1s"))
    line.put(f"[a]{name} :: l2fwd(ports=[a, b, c]{extra}{decide(rng)})", "[b]")
    line.more.append(f"{name}[a] -> {name}a :: discard")
    line.branch(f"{name}[c]")


def meter(line):
    rng, name = line.rng, line.name("m")
    rates = rng.choice(("cir=1mbps, cbs=20KB, ebs=30KB", "cir=50kbps, pir=100kbps, cbs=3KB, pbs=6KB", "cir=100kbps, cbs=2KB, ebs=0"))
    extra = rng.choice(("", ", per=flow", ", per=flow, flows=20", ", aware=true")) + rng.choice(("", ", mark=af1", ", mark=\"10,12,-\""))
    red = rng.random() < 0.5
    line.put(f"{name} :: meter({rates}{extra}{', red=port' if red else ''}{decide(rng)})")
    if red:
        line.branch(f"{name}[red]")


def nptv6(line):
    """Inside are those whose addresses begin with some bits, whichever they are."""
    name = line.name("np")
    prefixes = line.rng.choice(("inside=2001:db8::/32, external=fd00:77::/48", "inside=2000::/4, external=fd77:1::/48", "inside=::/1, external=fd77:2::/64"))
    line.put(f"{name} :: nptv6({prefixes}{decide(line.rng)})")


def balancer(line):
    rng, name = line.rng, line.name("lb")
    address, port, protocol = line.service
    service = f"[{address}]:{port}" if ":" in str(address) else f"{address}:{port}"
    backends = '["10.1.0.1", "10.1.0.2 weight=3", "10.1.0.3 down"]'
    mode = rng.choice(("source=192.0.2.79", "source=192.0.2.79, mtu=1400", "mode=nat, port=8080", "mode=nat, connections=20"))
    line.put(f'{name} :: balancer(service="{service}", protocol={protocol}, backends={backends}, {mode}{decide(rng)})')
    line.branch(f"{name}[clients]")


def flow_stats(line):
    name = line.name("fs")
    extra = line.rng.choice(("", ", idle=1s", ", active=1s", ", flows=20"))
    line.put(f'{name} :: flow_stats(export="{name}.ipfix"{extra}{decide(line.rng)})')


def counter(line):
    line.put(f'{line.name("c")} :: counter(rules="{line.rng.choice(("any", "tcp syn", "udp or fragment", "ip6"))}")')


def limit(line):
    name = line.name("li")
    line.put(f"{name} :: limit({line.rng.choice(('rate=1mbps', 'rate=1kpps, burst=5', 'rate=100mbps, burst=64KiB'))})")
    line.branch(f"{name}[exceeded]")


def switch(line):
    name = line.name("sw")
    line.put(f'{name} :: switch(ports=["dns: udp port 53", "syn: tcp syn"]{decide(line.rng)})', "[other]")
    line.branch(f"{name}[dns]")
    line.branch(f"{name}[syn]")


def tap(line):
    name = line.name("t")
    line.put(f'{name} :: tap(path="{name}.pcapng", rules="{line.rng.choice(("any", "tcp", "length 0-100"))}")')


def tee(line):
    name = line.name("te")
    line.put(f"{name} :: tee(ports=3)", "[0]")
    line.branch(f"{name}[1]")
    line.branch(f"{name}[2]")


def vlan(line):
    line.put(line.rng.choice((f"{line.name('v')} :: vlan_push(id=77, priority=3)", f"{line.name('v')} :: vlan_pop",
                              f"{line.name('v')} :: vlan_push(id=5, ethertype=802.1ad)")))


def measure(line):
    asked = line.rng.choice(("task=heavy-hitters, key=src", "task=cardinality, key=5tuple", "task=entropy, key=dst, sketch=univmon",
                             "task=heavy-changes, key=src", "task=superspreaders", "task=flow-size, key=src-dst, sketch=count-min",
                             "task=size-distribution, key=src", "task=ddos-victims, sketch=flow-radar"))
    extra = line.rng.choice((", epoch=5000p, keep=5", ", epoch=60s, keep=3", ", by=packets", ", aggregate=lru", ", rules=\"tcp\""))
    line.put(f"{line.name('q')} :: measure({asked}{extra})")


def sliced(line):
    """Stages that see headers only."""
    rng, name = line.rng, line.name("s")
    extra = rng.choice(("", "threshold=0, keep_bytes=100", "fraction=0.5", "part=64", "storage=copy, entries=64", "mode=paper", "entries=4, ttl=1",
                        "marked=remark", "bind=flow", "explicit_drop=false", "tag_bits=40", "rules=\"tcp\""))
    line.put(f"{name} :: slice({extra})")
    inner = [meter, counter, flow_stats, limit] + ([] if "bind" in extra else [nat, nptv6, firewall, router])
    for stage in rng.sample(inner, rng.randint(1, 2)):
        mark, before = len(line.more), len(line.here)
        stage(line)
        # Whoever verifies checksums needs payloads.
        line.here = line.here[:before] + line.here[before:].replace(", checksum=all", "")
        # Nothing that is sliced may leave by a side way.
        line.more[mark:] = [f"{more.split(' -> ')[0]} -> {line.name('x')} :: discard" for more in line.more[mark:]]
    line.put(f"{line.name('j')} :: splice({rng.choice(('', '', 'mtu=1400'))})")


KINDS = (reframe, reframe, firewall, nat, nptv6, router, l2fwd, meter, balancer, flow_stats, counter, limit, switch, tap, tee, vlan, measure, sliced, sliced)


def random_graph(rng, service):
    """A line of one to five stages, and the files that they need."""
    line = Line(rng, service)
    if rng.random() < 0.6:
        reframe(line)
    for stage in rng.sample(KINDS, rng.randint(1, 4)):
        # Payloads are parked once, and what makes copies may not stand where they are.
        if not (stage is sliced and "slice(" in line.here):
            stage(line)
    return line.text(), FILES


def graph_of(stage, rng, service):
    """A pipeline of one stage behind a reframer."""
    line = Line(rng, service)
    reframe(line)
    stage(line)
    return line.text()


def service_in(path):
    """The address, port and protocol that most packets of a capture go to, for a balancer."""
    try:
        return service_of([record for record in capture.read(path).records if record.link == 1][:20_000])
    except capture.Unreadable:
        return None


def cases(path, rng, number, count):
    """Random pipelines on a capture; every type of stage comes up on some capture."""
    service, output = service_in(path), ("out.pcapng", "out.pcap", "out.pcapng.zst", "null", "-")
    graphs = [graph_of(KINDS[1 + (number + n) % (len(KINDS) - 1)], rng, service) for n in range(3)]
    graphs += [random_graph(rng, service)[0] for _ in range(count)]
    for at in range(0, len(graphs), 6):
        calls = []
        for graph in graphs[at:at + 6]:
            seed = ("--seed", rng.choice((1, 99))) if rng.random() < 0.3 else ()
            form = JSON if rng.random() < 0.9 else ()
            calls.append(Call(("run", "-i", path, "-o", rng.choice(output), *form, *seed, "-e", graph)))
        if path.stat().st_size < LARGE:
            calls.append(Call(("graph", "--to", rng.choice(("click", "dot", "mermaid", "svg")), "-i", "synth:", "-o", "null", "-e", graphs[at])))
            calls.append(Call(("validate", "-i", "synth:", "-o", "null", "-e", graphs[at])))
        yield Case(f"run {path.name}", calls, FILES, path.stat().st_size * len(calls) * 2)


def source_table(name, path):
    return f'[stage.{name}]\ntype = "pcap"\npath = "{path}"\n'


def sources(rng, paths):
    """A configuration with several captures merged, each reframed alone or all together."""
    graph, tables, line = [], [], Line(rng, None)
    for n, path in enumerate(paths):
        own = f" -> r{n} :: reframe({reframe_settings(rng)})" if rng.random() < 0.4 else ""
        graph.append(f"src{n}{own} -> join")
        tables.append(source_table(f"src{n}", path))
    for stage in rng.sample([stage for stage in KINDS if stage not in (router, l2fwd)], rng.randint(1, 3)):
        stage(line)
    graph.append(f"join :: counter -> {line.here} -> out")
    tables.append('[stage.out]\ntype = "pcap"\npath = "out.pcapng"\n')
    return 'graph = """\n' + "\n".join([*graph, *line.more]) + '\n"""\n' + "\n".join(tables), FILES


GATEWAY = """graph = \"\"\"
lan -> from_lan :: reframe -> fw -> [lan]r
r[lan] -> [back]fw[back] -> to_lan
fw[replies] -> to_lan
r[wan] -> [inside]nat[outside] -> to_wan
wan -> from_wan :: reframe -> [outside]nat[inside] -> [wan]r
\"\"\"
{lan}{wan}
[stage.to_lan]
type = "pcap"
path = "to_lan.pcapng"
[stage.to_wan]
type = "pcap"
path = "to_wan.pcapng"
[stage.from_lan]
hold = "{hold}"
[stage.from_wan]
hold = "64us"
[stage.fw]
type = "firewall"
rules = "{rules}"
{decide}
[stage.r]
type = "router"
interfaces = [
    "lan 10.1.0.1/16 2001:db8:1::1/64 02:00:00:00:00:01",
    "wan 172.16.0.1/16 2001:db8:2::2/64 02:00:00:00:00:02",
]
neighbours = ["lan 10.1.0.9 02:00:00:00:00:09", "wan 172.16.0.9 02:00:00:00:00:19"]
{decide}
[stage.nat]
pool = ["172.16.0.8/30"]
inside = ["10.0.0.0/8"]
static = ["tcp 10.1.0.6:80 = 172.16.0.8:8080"]
{decide}
"""
CHAIN = ("{head} -> fs :: flow_stats(export=\"flows.ipfix\"{d}) -> fw :: firewall(rules=\"rules.txt\"{d}) -> "
         "[a]rt :: router(interfaces=[\"a 10.255.0.1/24 02:00:00:00:00:01\", \"b 192.0.2.1/24 02:00:00:00:00:02\"], routes=\"v4.txt\", "
         "neighbours=[\"b 192.0.2.254 02:00:00:00:00:fe\"]{d}) -> discarded :: discard; rt[b] -> n :: nat(pool=[203.0.113.0/28], routed=true{d}) -> "
         "m :: meter(cir=1mbps, mark=af1{d}) -> out; fw[denied] -> denied :: pcap(path=\"denied.pcap\"); n[inside] -> back :: pcap(path=\"back.pcap\")")


def chains(inputs):
    """All functions in a row, and the gateway with its two directions, on captures addressed to the
    router."""
    paths = sorted(inputs.glob("to-router-*.pcap")) + [inputs / "malformed4.pcap", inputs / "connections.pcap", inputs / "fragments4.pcap"]
    files = {**FILES, "v4.txt": "default via 192.0.2.254\nblackhole 10.66.0.0/16\n"}
    for path in paths:
        calls = []
        for head in ("counter", "reframe(hold=64us)", "reframe(hold=1ms, burst=256) -> vlan_pop", "reframe(hold=64us) -> two :: reframe(hold=1ms, burst=8)"):
            for d in ("", ", decide=packet"):
                calls.append(Call(("run", "-i", path, "-o", "out.pcapng", *JSON, "-e", CHAIN.format(head=head, d=d))))
        yield Case(f"chain {path.name}", calls, files, path.stat().st_size * 20)
        calls, tables = [], {"lan": source_table("lan", path), "wan": source_table("wan", inputs / "connections.pcap")}
        (files := dict(files))["connections.rules"] = (inputs / "connections.rules").read_text()
        for n, (hold, rules) in enumerate((("64us", "rules.txt"), ("1ms", "states.txt"), ("64us", "connections.rules"))):
            for d in ("", 'decide = "packet"'):
                name = f"gateway{n}{len(d)}.toml"
                files[name] = GATEWAY.format(hold=hold, rules=rules, decide=d, **tables)
                calls.append(Call(("run", name, *JSON)))
        yield Case(f"gateway {path.name}", calls, files, path.stat().st_size * 20)
    for version in (4, 6):
        # What Linux decides of the same packets is another check's; here both builds must agree on all of it.
        graph = "firewall(rules=\"states.txt\", checksum={c}) -> nat(pool=[203.0.113.0/28], routed=true) -> out"
        calls = [Call(("run", "-i", inputs / f"{kind}{version}.pcap", "-o", "out.pcap", *JSON, "-e", graph.format(c=c)))
                 for kind in ("malformed", "fragments") for c in ("off", "state", "all")]
        yield Case(f"odd packets of IPv{version}", calls, FILES, 3_000_000)


def configs(paths):
    """The bundled configurations: those that replay files with every capture, the live ones checked and
    drawn."""
    for file in sorted((harness.ROOT / "configs").glob("*.toml")):
        if "af_packet" in file.read_text():
            calls = [Call(("validate", file)), Call(("graph", file)), Call(("graph", file, "--to", "dot"))]
            yield Case(f"config {file.name}", calls)
            continue
        yield Case(f"config {file.name}", [Call(("run", file, *JSON)), Call(("run", file)), Call(("graph", file, "--to", "svg")), Call(("validate", file))])
        for path in paths:
            calls = [Call(("run", file, "-i", path, "-o", output, *JSON)) for output in ("out.pcapng", "out.pcap")]
            yield Case(f"config {file.name} {path.name}", calls, {}, path.stat().st_size * 4)


def through_memory(inputs):
    """`slice run` with functions in another process. It is live: packets have the times of the run, and
    batches their sizes."""
    ignored = frozenset(("batches", "trains", "counters", "report", "dropped"))
    for name in ("tcp", "mix"):
        for graph in ("nat(pool=[203.0.113.0/29], routed=true)", 'firewall(rules="live.txt")'):
            beside = ("run", "--seed", "1", "-i", "shm:there", "-o", "shm:there", *JSON, "-e", graph)
            for how in ((), ("--whole",), ("--slice", "threshold=100, keep_bytes=20, storage=copy, entries=4096")):
                words = ("slice", "run", inputs / f"{name}.pcap", "out.pcap", "--through", "there", "--seed", 3, *JSON, *how)
                yield Case(f"slice run {name}", [Call(words, live=True, beside=beside, ignored=ignored)], FILES, 10**7)
