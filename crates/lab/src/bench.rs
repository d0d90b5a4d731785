//! Common parts of the labs about network functions: functions, rules, traffic that the rules let pass.

use anyhow::{Context, bail};
use slipstream::functions::firewall::generate::{self, Kind};
use slipstream::functions::firewall::{Firewall, FirewallStage, Method, PacketFields, RuleSet, Verdict};
use slipstream::functions::flow_stats::FlowStatsConfig;
use slipstream::functions::ipfix::IpfixConfig;
use slipstream::functions::nat::{Nat, NatConfig, NatStage, Pooling};
use slipstream::functions::stages::{FlowStatsStage, Target};
use slipstream::functions::{NetworkFunction, PerPacket, PerTrain};
use slipstream::pipeline::Plan;
use slipstream::runtime::{Pipeline, Traffic};
use slipstream::stage::Stage;
use slipstream::time::Nanos;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{FlowKey, LinkType, classify, protocol};

use crate::random::Random;

/// The unit for which a function decides once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Per {
    Packet,
    Train,
}

impl Per {
    pub(super) const BOTH: [Self; 2] = [Self::Packet, Self::Train];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Packet => "packet",
            Self::Train => "train",
        }
    }
}

pub(super) type NamedStage = (String, Box<dyn Stage + Send>);

fn stage<F: NetworkFunction + Send + 'static>(name: &str, per: Per, function: F) -> NamedStage {
    let stage: Box<dyn Stage + Send> = match per {
        Per::Packet => Box::new(PerPacket::new(function)),
        Per::Train => Box::new(PerTrain::new(function)),
    };
    (name.to_owned(), stage)
}

const SEED: u64 = 11;

/// The environment variable that names the one point to run, under Callgrind or to be timed.
pub(super) const POINT: &str = "SLIPSTREAM_LAB_POINT";
/// Packets of the one turn that is counted, behind one that fills the tables.
pub(super) const COUNTED_PACKETS: usize = 20_000;

pub(super) fn firewall(firewall: &Firewall, cache: usize, per: Per) -> NamedStage {
    stage("firewall", per, FirewallStage::new(firewall.clone(), cache, true, SEED))
}

pub(super) fn nat(per: Per) -> anyhow::Result<NamedStage> {
    let config = NatConfig {
        pool: (0..32).map(|n| [203, 0, 113, n].into()).collect(),
        pooling: Pooling::Arbitrary,
        sessions: 1 << 20,
        mappings: 1 << 20,
        ..NatConfig::default()
    };
    Ok(stage("nat", per, NatStage::new(Nat::new(&config)?)))
}

pub(super) fn flow_stats(per: Per) -> NamedStage {
    let config = FlowStatsConfig { flows: 1 << 20, ..FlowStatsConfig::default() };
    stage("flow_stats", per, FlowStatsStage::new(&config, &IpfixConfig::default(), Target::None))
}

/// A router with so many routes: prefixes of /8 to /24 all over IPv4, and a default.
pub(super) fn router(routes: usize, per: Per) -> anyhow::Result<NamedStage> {
    let mut text = String::from("default via 192.0.2.254\n");
    for n in 1..routes as u32 {
        // Odd multipliers scatter prefixes and lengths.
        let length = 8 + n.wrapping_mul(7) % 17;
        let address = (n.wrapping_mul(0x9e37_79b1) | 1 << 24) & (u32::MAX << (32 - length));
        let address = std::net::Ipv4Addr::from_bits(address);
        if !address.is_multicast() && !address.is_loopback() {
            text.push_str(&format!("{address}/{length} via 192.0.2.{}\n", 2 + n % 200));
        }
    }
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), text)?;
    let neighbours: Vec<String> =
        (2..255).map(|n| format!("\"192.0.2.{n} 02:00:00:00:01:{n:02x}\"")).collect();
    let graph = format!(
        "in :: null -> router(routes=\"{}\", decide={}, interfaces=[\"wan 192.0.2.1/24 02:00:00:00:00:02\"], \
         neighbours=[{}]) -> out :: null",
        file.path().display(),
        per.name(),
        neighbours.join(", ")
    );
    let plan = Plan::from_graph(&graph, None, None, "".as_ref())?;
    let stages = plan.build(SEED)?.into_stages();
    stages.into_iter().find(|(name, _)| name == "router").context("the router was not built")
}

/// The chain of the paper's §5.1.
pub(super) fn chain(wall: &Firewall, routes: usize, per: Per) -> anyhow::Result<Vec<NamedStage>> {
    Ok(vec![flow_stats(per), router(routes, per)?, firewall(wall, 0, per), nat(per)?])
}

/// The pipeline of these stages, packets being forgotten behind them.
pub(super) fn pipeline(mut stages: Vec<NamedStage>) -> anyhow::Result<Pipeline> {
    let plan = Plan::from_graph("in :: null -> out :: null", None, None, "".as_ref())?;
    stages.extend(plan.build(SEED)?.into_stages());
    Ok(Pipeline::chain(stages))
}

/// Rules of a kind, and what they let pass.
pub(super) fn rules(kind: Kind, count: usize) -> Firewall {
    Firewall::new(generate::rules(kind, count, SEED), Method::Fast)
}

/// Rules that let exactly these hosts pass: each the source of one of `keys`, or one that never sends.
pub(super) fn host_rules(keys: &[FlowKey], count: usize) -> anyhow::Result<Firewall> {
    let mut hosts: Vec<_> = keys.iter().map(FlowKey::src).collect();
    hosts.sort_unstable();
    hosts.dedup();
    hosts.truncate(count);
    let host = |n| std::net::IpAddr::from(std::net::Ipv4Addr::from_bits(0xc000_0000 + n as u32));
    let silent = (hosts.len()..count).map(host);
    hosts.extend(silent);
    let lines: String = hosts.iter().map(|h| format!("allow src host {h}\n")).collect();
    let rules = RuleSet::parse(&format!("{lines}default allow\n"))?;
    Ok(Firewall::new(rules, Method::Fast))
}

/// Keys of IPv4 flows that a firewall lets pass, each different.
pub(super) fn keys(wall: &Firewall, count: usize) -> anyhow::Result<Vec<FlowKey>> {
    let mut all = Vec::with_capacity(count);
    let mut seen = std::collections::HashSet::new();
    for turn in 0..64 {
        for headers in generate::packets(wall.rules(), count, SEED + turn) {
            let key = headers.key;
            let ports = matches!(key.protocol(), protocol::TCP | protocol::UDP);
            let host = |a: std::net::IpAddr| match a {
                std::net::IpAddr::V4(a) => matches!(a.octets(), [1..=126 | 128..=223, ..]),
                std::net::IpAddr::V6(_) => false,
            };
            if !ports || !host(key.src()) || !host(key.dst()) || key.vlans().len() > 0 || !seen.insert(key) {
                continue;
            }
            let bytes = frame(&key);
            let Ok(headers) = classify(LinkType::Ethernet, &bytes) else { continue };
            if wall.decide(&PacketFields::new(&headers, 60), |_, _| {}).verdict == Verdict::Allow {
                all.push(key);
                if all.len() == count {
                    return Ok(all);
                }
            }
        }
    }
    bail!("the rules let only {} different flows pass", all.len())
}

/// A frame of 60 bytes of this flow, TCP with ACK set.
pub(super) fn frame(key: &FlowKey) -> Vec<u8> {
    frame_with_dscp(key, 0)
}

/// As [`frame`], with this code point.
pub(super) fn frame_with_dscp(key: &FlowKey, dscp: u8) -> Vec<u8> {
    let mut bytes = vec![0u8; 60];
    let put = |bytes: &mut [u8], at: usize, value: &[u8]| {
        if let Some(to) = bytes.get_mut(at..at + value.len()) {
            to.copy_from_slice(value);
        }
    };
    put(&mut bytes, 0, &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45, dscp << 2, 0, 46]);
    put(&mut bytes, 20, &[0x40, 0, 64, key.protocol()]);
    if let (std::net::IpAddr::V4(src), std::net::IpAddr::V4(dst)) = (key.src(), key.dst()) {
        put(&mut bytes, 26, &src.octets());
        put(&mut bytes, 30, &dst.octets());
    }
    put(&mut bytes, 34, &key.src_port().to_be_bytes());
    put(&mut bytes, 36, &key.dst_port().to_be_bytes());
    if key.protocol() == protocol::TCP {
        put(&mut bytes, 46, &[0x50, 0x10, 0xff, 0xff]);
    } else {
        put(&mut bytes, 38, &[0, 26]);
    }
    if let Ok(headers) = classify(LinkType::Ethernet, &bytes) {
        fill_ip(&mut bytes, &headers);
        fill_transport(&mut bytes, &headers);
    }
    bytes
}

/// Traffic of these flows, `slf` packets of one back to back, in an order that no cache foresees, one packet
/// each 100 ns.
pub(super) fn traffic(keys: &[FlowKey], slf: usize, packets: usize) -> Traffic {
    runs(keys, packets, |_| slf)
}

/// The same with runs of mixed lengths, distributed geometrically about a mean, as trains of mixed flows are:
/// no processor foresees where one ends.
pub(super) fn mixed_traffic(keys: &[FlowKey], mean: f64, packets: usize) -> Traffic {
    runs(keys, packets, |random| {
        let mut len = 1;
        while random.share() * mean >= 1.0 {
            len += 1;
        }
        len
    })
}

/// Traffic of these flows in random order, in runs of so many packets.
fn runs(keys: &[FlowKey], packets: usize, mut length: impl FnMut(&mut Random) -> usize) -> Traffic {
    let frames: Vec<Vec<u8>> = keys.iter().map(frame).collect();
    let mut traffic = Traffic::default();
    let mut random = Random(SEED);
    let mut last = usize::MAX;
    while traffic.len() < packets {
        let flow = random.below(frames.len());
        if flow == last {
            continue;
        }
        last = flow;
        for _ in 0..length(&mut random) {
            let time = Nanos(1_000_000_000 + traffic.len() as u64 * 100);
            if let Some(frame) = frames.get(flow) {
                traffic.push(time, frame.len() as u32, frame);
            }
        }
    }
    traffic
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_as_long_as_they_should_be() {
        let keys = keys(&rules(Kind::Mixed, 100), 300).unwrap();
        for slf in [1, 3] {
            assert!((traffic(&keys, slf, 9000).slf() - slf as f64).abs() < 1e-9);
        }
        assert!((mixed_traffic(&keys, 1.0, 5000).slf() - 1.0).abs() < 1e-9);
        for mean in [1.5, 4.0] {
            let slf = mixed_traffic(&keys, mean, 60_000).slf();
            assert!((slf / mean - 1.0).abs() < 0.03, "{slf} for {mean}");
        }
    }
}
