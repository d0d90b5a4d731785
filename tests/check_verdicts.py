#!/usr/bin/env python3
"""Does our firewall decide as Linux does? The same rules, a million packets, and the same ones come out.

The rules are generated, loaded with iptables-restore in the namespace of a router, and read back with
iptables-save: that is what our firewall gets. The packets come at the edges of the rules. In a run without
rules all of them must come out of the router. Where namespaces can't be made nothing is checked, and that is
a failure.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import connections
import fragments
import harness
import malformed
import netns
import packets
from peer import Peer
from rule_sets import FEATURES, RuleSet

GAP = 1000  # ns between packets
EMPTY = "*filter\n:INPUT ACCEPT\n:FORWARD ACCEPT\n:OUTPUT ACCEPT\nCOMMIT\n"
FLAVOURS = ("legacy", "nft")
SCALE = int(os.environ.get("VERDICTS_SCALE", "1"))  # so many times the packets of a usual run


def tool(version, flavour, what):
    return f"{'ip6' if version == 6 else 'ip'}tables-{flavour}-{what}"


def tools(version, flavour):
    """The flavour, and how its rules are loaded and printed."""
    return (flavour, *([tool(version, flavour, what)] for what in ("restore", "save")))


def features(net, version, flavour):
    """What the kernel can match; the rest is said."""
    found, host = set(), "10.0.0.1" if version == 4 else "2001:db8::1"
    for name, rule in FEATURES.items():
        text = EMPTY.replace("COMMIT", f"-A FORWARD {rule.format(a=host)}\nCOMMIT")
        wrong = net.try_rules([tool(version, flavour, "restore")], text)
        found |= set() if wrong else {name}
        if wrong:
            print(f"       left out of the rules, since {tool(version, flavour, 'restore')} can't: {name} ({wrong[-80:]})")
    net.load([tool(version, flavour, "restore")], EMPTY)
    return found


def ours(case, binary, scratch, capture, rules, settings=""):
    """The numbers of packets that our firewall lets pass, in order, and its report."""
    out = scratch / "ours.pcap"
    graph = f"firewall(rules=\"{rules}\", format=iptables{settings})"
    run = harness.Run(binary, ["run", "-i", capture, "-o", out, "--format", "json", "-e", graph], timeout=200)
    report = run.json()
    dropped = sum(report["dropped"].values())
    made = report["packets_in"] + report["stages"][0]["counters"]["replies"]
    case.equal(made, report["packets_out"] + dropped, "packets in and made against out and dropped")
    case.equal(report["left_inside"], 0, "left inside")
    return packets.numbers(out), report


def compare(case, what, frames, kernel, mine):
    """Checks that the same packets came out, in the same order."""
    only_kernel, only_mine = np.setdiff1d(kernel, mine), np.setdiff1d(mine, kernel)
    for name, numbers in (("only Linux passes", only_kernel), ("only we pass", only_mine)):
        shown = "; ".join(f"{n}: {frames[n, 12:82].tobytes().hex()}" for n in numbers[:3])
        case.check(len(numbers) == 0, f"{what}: {name} {len(numbers)} packets: {shown}")
    if len(only_kernel) == len(only_mine) == 0:
        case.check(bool((kernel == mine).all()), f"{what}: the packets come out in another order")


def judged(frames, version, flavour, numbers):
    """The packets that are compared. What rules of nftables about ports and flags say of fragments other than
    the first differs from what the same rules say in the older iptables, which is what ours say."""
    if version == 6 or flavour != "nft":
        return numbers
    later = ((frames[:, 20] & 0x1F) != 0) | (frames[:, 21] != 0)
    return numbers[~later[numbers]]


def agree(case, binary, scratch, net, version, flavour, made, frames, settings):
    """One rule set, one stream of packets, both firewalls."""
    restore, save = ([tool(version, flavour, what)] for what in ("restore", "save"))
    count, capture, since = len(frames), scratch / "in.pcap", time.monotonic()
    packets.write(capture, frames, GAP)
    net.load(restore, EMPTY)
    arrived, lost = net.through(frames, scratch / "control.pcap")
    case.equal(lost, [], "losses without rules")
    if not case.equal(len(arrived), count, "packets that came through without rules"):
        return
    net.load(restore, made)
    rules = scratch / "rules.txt"
    rules.write_text(net.sh("m", *save, "-t", "filter"))
    began = time.monotonic()
    kernel, lost = net.through(frames, scratch / "kernel.pcap")
    took = time.monotonic() - began
    net.load(restore, EMPTY)
    case.equal(lost, [], "losses")
    share = len(kernel) / count
    case.check(0.1 < share < 0.9, f"{share:.0%} of packets pass, which says little about the others")
    for setting in settings:
        began = time.monotonic()
        mine, report = ours(case, binary, scratch, capture, rules, setting)
        kept = [judged(frames, version, flavour, numbers) for numbers in (kernel, mine)]
        compare(case, f"iptables-{flavour} against firewall({setting})", frames, *kept)
    hit = report["stages"][0]["report"]["hits"] if "stages" in report else []
    print(f"       {save[0].replace('-save', '')}: {count:,} packets, {share:.1%} pass; {rules.read_text().count('-A ')} rules, "
          f"{len({h['line'] for h in hit})} of them met; "
          f"{took:.1f} s in Linux, {time.monotonic() - since:.1f} s in all", flush=True)


def stateless(case, binary, scratch, version, flavour, count, size, seed):
    """Prefixes, ranges, ports, protocols, flags and code points."""
    with Peer() as net:
        made = RuleSet(seed, version, size, features(net, version, flavour))
        frames = made.packets(count, seed, net.mac["a"], net.mac["ma"])
        # Nobody tracks connections, so that Linux decides about each fragment by itself.
        alone = ", fragments=0"
        settings = tuple(alone + more for more in ("", ", decide=packet", ", cache=65536", ", classifier=linear"))
        agree(case, binary, scratch, net, version, flavour, made.text, frames, settings)


def stateful(case, binary, scratch, flavour, count, size, seed):
    """States of connections. Both sides leave sequence numbers alone and forget nothing during the check."""
    with Peer() as net:
        for name, value in {"tcp_be_liberal": 1, "tcp_timeout_close": 600, "tcp_timeout_last_ack": 600, "udp_timeout": 600,
                            "icmp_timeout": 600, "tcp_timeout_unacknowledged": 600, "tcp_timeout_max_retrans": 600}.items():
            net.sh("m", "sysctl", "-qw", f"net.netfilter.nf_conntrack_{name}={value}")
        stream = connections.Connections(seed).stream(count)
        frames = connections.frames(stream, net.mac["a"], net.mac["ma"])
        settings = ("", ", decide=packet", ", classifier=linear")
        agree(case, binary, scratch, net, 4, flavour, connections.rules(seed, size), frames, settings)


def odd(case, binary, scratch, version, flavour, count, seed):
    """Packets that are odd or can't be. Linux verifies checksums in its tracker, and ours is told to."""
    malformed.odd(case, Strict, binary, scratch, tools(version, flavour), version, count, seed)


def limits(case, binary, scratch, flavour):
    """Limits of rules."""
    malformed.limits(case, Strict, binary, scratch, tools(4, flavour))


def timers(case, binary, scratch, version, flavour, count, seed):
    """Timeouts of connections, ten times as fast in Linux as here."""
    malformed.timers(case, Strict, binary, scratch, tools(version, flavour), version, count, seed)


def states_v6(case, binary, scratch, flavour, count, size, seed):
    """States of connections of IPv6."""
    stream, rules = connections.Connections(seed).stream(count), connections.rules(seed, size)
    malformed.states_v6(case, Strict, binary, scratch, tools(6, flavour), stream, rules)


class Strict(Peer):
    """A router that looks at checksums before it tracks connections, and not at sequence numbers."""

    def _build(self):
        super()._build()
        self.sh("m", "sysctl", "-qw", "net.netfilter.nf_conntrack_tcp_be_liberal=1", "net.netfilter.nf_conntrack_checksum=1")


CHECKS = {
    "ipv4_legacy": lambda *a: stateless(*a, 4, "legacy", 600_000, 600, 1),
    "ipv4_nft": lambda *a: stateless(*a, 4, "nft", 200_000, 1000, 2),
    "ipv6_legacy": lambda *a: stateless(*a, 6, "legacy", 100_000, 400, 3),
    "ipv6_nft": lambda *a: stateless(*a, 6, "nft", 100_000, 400, 4),
    "states_legacy": lambda *a: stateful(*a, "legacy", 200_000, 300, 5),
    "states_nft": lambda *a: stateful(*a, "nft", 100_000, 300, 6),
    "odd_ipv4_legacy": lambda *a: odd(*a, 4, "legacy", 50_000 * SCALE, 7),
    "odd_ipv4_nft": lambda *a: odd(*a, 4, "nft", 20_000 * SCALE, 8),
    "odd_ipv6_legacy": lambda *a: odd(*a, 6, "legacy", 50_000 * SCALE, 9),
    "odd_ipv6_nft": lambda *a: odd(*a, 6, "nft", 20_000 * SCALE, 10),
    "states_ipv6_legacy": lambda *a: states_v6(*a, "legacy", 50_000, 300, 11),
    "states_ipv6_nft": lambda *a: states_v6(*a, "nft", 20_000, 300, 12),
    "limits_legacy": lambda *a: limits(*a, "legacy"),
    "limits_nft": lambda *a: limits(*a, "nft"),
    "timers_ipv4": lambda *a: timers(*a, 4, "legacy", 20_000, 13),
    "timers_ipv6": lambda *a: timers(*a, 6, "nft", 20_000, 14),
    "fragments_ipv4_legacy": lambda *a: fragments.check(*a, 4, "legacy", 6000, 7),
    "fragments_ipv4_nft": lambda *a: fragments.check(*a, 4, "nft", 6000, 8),
    "fragments_ipv6_legacy": lambda *a: fragments.check(*a, 6, "legacy", 6000, 9),
    "fragments_ipv6_nft": lambda *a: fragments.check(*a, 6, "nft", 6000, 10),
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", nargs="?", default=harness.ROOT / "target/release/slipstream", type=Path)
    parser.add_argument("--only", default="", help="only checks that have this text in their name")
    arguments = parser.parse_args()
    harness.ends_tidily()
    binary = harness.program(arguments.binary)
    reason = netns.why_not()
    if reason:
        sys.exit(f"no comparison with Linux: {reason}")
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None

    def run(check, case):
        with harness.token(), tempfile.TemporaryDirectory(dir=memory) as directory:
            check(case, binary, Path(directory))

    harness.one_by_one(CHECKS.items(), arguments.only, run)


if __name__ == "__main__":
    main()
