//! Rule sets and packets for measurement: made from a seed, like those of ClassBench (Taylor and Turner,
//! 2007) in what makes classification hard, namely how specific the two addresses are together, how prefixes
//! nest, and which ports and protocols come with them. Nothing is copied from its seed files.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use slipstream_wire::{Flags, FlowKey, Headers, protocol};

use super::conjunction::{ALL_PORTS, Conjunction};
use super::fields::{PROTOCOL, PROTOCOL_AT};
use super::rules::{Action, FirewallRule, RuleSet, Verdict};

/// The kind of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Access lists: the destination almost always specific, the source often, destination ports exact.
    Acl,
    /// Firewalls: one address or the other often free, and many ranges of ports.
    Firewall,
    /// IP chains: between the two, both addresses mostly specific.
    Chain,
    /// A third of each.
    Mixed,
    /// Sources that are hosts, everything else free.
    Hosts,
    /// As [`Acl`](Self::Acl), over IPv6.
    Acl6,
    /// Made to be hard for trees: nested ranges of both ports, and little else.
    NestedPorts,
    /// Made to be hard for trees: short prefixes of both addresses and wide ranges, so that almost everything
    /// overlaps.
    Overlapping,
}

impl Kind {
    /// Every kind, with its name.
    pub const ALL: [(&'static str, Self); 8] = [
        ("acl", Self::Acl),
        ("fw", Self::Firewall),
        ("ipc", Self::Chain),
        ("mixed", Self::Mixed),
        ("hosts", Self::Hosts),
        ("acl6", Self::Acl6),
        ("nested-ports", Self::NestedPorts),
        ("overlapping", Self::Overlapping),
    ];
}

/// Up to `count` different rules of a kind that allow and deny in turn, the more specific ones mostly first,
/// and a default of deny. The same seed gives the same rules.
#[must_use]
pub fn rules(kind: Kind, count: usize, seed: u64) -> RuleSet {
    let mut maker = Maker::new(seed, count);
    let mut parts: Vec<Conjunction> = (0..count).map(|_| maker.rule(kind)).collect();
    // Lists that people keep have the general rules behind the special ones, with exceptions.
    parts.sort_by_cached_key(|part| {
        let len = |net: Option<IpNet>| net.map_or(0, |net| u32::from(net.prefix_len()));
        64 - (len(part.src) + len(part.dst)).min(64) + maker.random.random_range(0..24)
    });
    let verdict = |i: usize| if i.is_multiple_of(3) { Verdict::Deny } else { Verdict::Allow };
    let rule = |(i, part)| FirewallRule { action: Action::Decide(verdict(i)), line: 0, parts: vec![part] };
    RuleSet {
        rules: parts.into_iter().enumerate().map(rule).collect(),
        default: Verdict::Deny,
        ..RuleSet::default()
    }
}

/// `count` packets, each in the box of a random rule, most of them hosts seen before: a packet that a rule
/// before that one matches, or one that has other flags, is as likely as the rules make it.
#[must_use]
pub fn packets(rules: &RuleSet, count: usize, seed: u64) -> Vec<Headers> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    (0..count)
        .map(|_| {
            let part =
                rules.rules.choose(&mut random).and_then(|rule| rule.parts.choose(&mut random)).cloned();
            packet(&part.unwrap_or_default(), &mut random)
        })
        .collect()
}

/// A packet in the box of a rule.
fn packet(part: &Conjunction, random: &mut ChaCha8Rng) -> Headers {
    let six = part.six.unwrap_or_else(|| random.random_ratio(1, 8));
    let src = address(part.src, six, random);
    let dst = address(part.dst, six, random);
    let any = [protocol::TCP, protocol::TCP, protocol::UDP, protocol::ICMP];
    let proto = if part.mask & PROTOCOL == PROTOCOL {
        (part.value >> PROTOCOL_AT) as u8
    } else if part.mask & u32::from(Flags::PORTS) != 0 {
        *[protocol::TCP, protocol::UDP].choose(random).unwrap_or(&protocol::TCP)
    } else {
        *any.choose(random).unwrap_or(&protocol::TCP)
    };
    let mut port = |(first, last): (u16, u16)| random.random_range(first..=last);
    let (src_port, dst_port) = (port(part.src_ports), port(part.dst_ports));
    let tcp = proto == protocol::TCP;
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    let flags = bit(six, Flags::IPV6) | bit(protocol::has_ports(proto), Flags::PORTS) | bit(tcp, Flags::TCP);
    let tcp_flags = if tcp { *[0x02, 0x12, 0x10, 0x18, 0x11].choose(random).unwrap_or(&0x10) } else { 0 };
    // Both addresses are of one version.
    let key = FlowKey::new(&[], src, dst, proto, src_port, dst_port);
    let key = key.unwrap_or(FlowKey::Narrow(slipstream_wire::NarrowKey([0; 2])));
    Headers { key, l3: 14, l4: if six { 54 } else { 34 }, flags: Flags(flags), tcp_flags, tos: 0 }
}

fn address(net: Option<IpNet>, six: bool, random: &mut ChaCha8Rng) -> IpAddr {
    match net {
        Some(IpNet::V4(net)) => {
            Ipv4Addr::from_bits(random.random_range(net.network().to_bits()..=net.broadcast().to_bits()))
                .into()
        }
        Some(IpNet::V6(net)) => {
            Ipv6Addr::from_bits(random.random_range(net.network().to_bits()..=net.broadcast().to_bits()))
                .into()
        }
        None if six => Ipv6Addr::from_bits(random.random::<u128>() >> 3 | 1 << 125).into(),
        None => Ipv4Addr::from_bits(random.random()).into(),
    }
}

/// Ports that services listen on.
const SERVICES: [u16; 24] = [
    20, 21, 22, 23, 25, 53, 80, 110, 119, 123, 135, 137, 139, 143, 161, 389, 443, 445, 993, 1433, 1521, 3306,
    3389, 8080,
];

/// Makes rules around networks of its own.
struct Maker {
    random: ChaCha8Rng,
    /// Networks of /16 (IPv6: /40) that sites have, first bits alike for many.
    sites: Vec<u32>,
}

impl Maker {
    fn new(seed: u64, count: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let heads: Vec<u32> = (0..12).map(|_| random.random_range(1..224)).collect();
        let sites = (0..(count / 40).clamp(8, 2000))
            .map(|_| {
                let head = heads.choose(&mut random).copied().unwrap_or(10);
                head << 24 | random.random_range(0..256_u32) << 16
            })
            .collect();
        Self { random, sites }
    }

    fn rule(&mut self, kind: Kind) -> Conjunction {
        let pick = self.random.random_range(0..100);
        match kind {
            Kind::Acl => self.acl(pick, false),
            Kind::Acl6 => self.acl(pick, true),
            Kind::Firewall => self.firewall(pick),
            Kind::Chain => self.chain(pick),
            Kind::Mixed => match self.random.random_range(0..3) {
                0 => self.acl(pick, false),
                1 => self.firewall(pick),
                _ => self.chain(pick),
            },
            Kind::Hosts => {
                let host = Ipv4Net::from(Ipv4Addr::from_bits(self.random.random()));
                Conjunction::net(true, host.into())
            }
            Kind::NestedPorts => {
                let mut range = || {
                    let first = self.random.random_range(0..32_768);
                    Conjunction::ports(true, (first, u16::MAX - self.random.random_range(0..32_768)))
                };
                let (a, b) = (range(), range());
                self.transport(Conjunction { dst_ports: b.src_ports, ..a }, pick)
            }
            Kind::Overlapping => {
                let mut short = |src| {
                    let (len, bits) = (self.random.random_range(0..=6), self.random.random());
                    Conjunction::net(src, v4(bits, len))
                };
                let (src, dst) = (short(true), short(false));
                let ports = self.wide_range();
                both(&both(&src, &dst), &Conjunction::ports(false, ports))
            }
        }
    }

    fn acl(&mut self, pick: u32, six: bool) -> Conjunction {
        let src_len = match pick {
            0..45 => 0,
            45..55 => self.random.random_range(8..=16),
            55..80 => self.random.random_range(17..=28),
            _ => 32,
        };
        let dst_len = *[32, 32, 32, 24, 28, 26, 16].choose(&mut self.random).unwrap_or(&32);
        let addresses = self.addresses(src_len, dst_len, six);
        let ports = match self.random.random_range(0..100) {
            0..30 => ALL_PORTS,
            30..85 => self.service(),
            85..95 => (1024, u16::MAX),
            _ => self.range(),
        };
        let pick = self.random.random_range(0..100);
        self.transport(with_ports(addresses, ALL_PORTS, ports), pick)
    }

    fn firewall(&mut self, pick: u32) -> Conjunction {
        let mut len = |free: u32| match self.random.random_range(0..100) {
            n if n < free => 0,
            n if n < free + 10 => self.random.random_range(4..=15),
            n if n < free + 35 => self.random.random_range(16..=31),
            _ => 32,
        };
        let (src_len, dst_len) = if pick < 50 { (len(70), len(15)) } else { (len(15), len(60)) };
        let addresses = self.addresses(src_len, dst_len, false);
        let mut ports = |any: u32| match self.random.random_range(0..100) {
            n if n < any => ALL_PORTS,
            n if n < any + 15 => (1024, u16::MAX),
            n if n < any + 45 => self.service(),
            n if n < any + 70 => self.range(),
            _ => self.wide_range(),
        };
        let (src_ports, dst_ports) = (ports(75), ports(30));
        let pick = self.random.random_range(0..100);
        self.transport(with_ports(addresses, src_ports, dst_ports), pick)
    }

    fn chain(&mut self, pick: u32) -> Conjunction {
        let mut len = || match self.random.random_range(0..100) {
            0..12 => 0,
            12..20 => self.random.random_range(8..=15),
            20..60 => self.random.random_range(16..=30),
            _ => 32,
        };
        let (src_len, dst_len) = (len(), len());
        let addresses = self.addresses(src_len, dst_len, false);
        let (src_ports, dst_ports) = match pick {
            0..40 => (ALL_PORTS, ALL_PORTS),
            40..70 => (ALL_PORTS, self.service()),
            70..85 => (self.service(), ALL_PORTS),
            85..95 => ((1024, u16::MAX), self.service()),
            _ => (ALL_PORTS, self.range()),
        };
        let pick = self.random.random_range(0..100);
        self.transport(with_ports(addresses, src_ports, dst_ports), pick)
    }

    /// The rule for one protocol, mostly.
    fn transport(&mut self, part: Conjunction, pick: u32) -> Conjunction {
        let ports = part.mask & u32::from(Flags::PORTS) != 0;
        let proto = match pick {
            0..60 => protocol::TCP,
            60..85 => protocol::UDP,
            85..92 if !ports => protocol::ICMP,
            _ => return part,
        };
        both(&part, &Conjunction::word(PROTOCOL, u32::from(proto) << PROTOCOL_AT))
    }

    fn addresses(&mut self, src_len: u8, dst_len: u8, six: bool) -> Conjunction {
        let (src, dst) = (self.net(true, src_len, six), self.net(false, dst_len, six));
        let any = Conjunction { six: Some(six), ..Conjunction::default() };
        [src, dst].iter().flatten().fold(any, |all, net| both(&all, net))
    }

    /// A prefix in one of the networks; `None` for one of no bits.
    fn net(&mut self, src: bool, len: u8, six: bool) -> Option<Conjunction> {
        let site = self.sites.choose(&mut self.random).copied().unwrap_or(0);
        // Few subnets and hosts of each site, so that prefixes nest.
        let (subnet, host) = (self.random.random_range(0..24_u32) << 8, self.random.random_range(1..96_u32));
        let bits = site | subnet | host;
        if len == 0 {
            return None;
        }
        if !six {
            return Some(Conjunction::net(src, v4(bits, len)));
        }
        let wide = 0x2001_u128 << 112
            | u128::from(site >> 16) << 88
            | u128::from(subnet >> 8) << 64
            | u128::from(host);
        let len = match len {
            32 => 128,
            17.. => 32 + len,
            _ => 24 + len,
        };
        Ipv6Net::new(wide.into(), len).ok().map(|net| Conjunction::net(src, net.trunc().into()))
    }

    fn service(&mut self) -> (u16, u16) {
        let port = SERVICES.choose(&mut self.random).copied().unwrap_or(80);
        (port, port)
    }

    fn range(&mut self) -> (u16, u16) {
        let first = self.random.random_range(1024..60_000);
        (first, first + self.random.random_range(1..1000))
    }

    fn wide_range(&mut self) -> (u16, u16) {
        (self.random.random_range(0..20_000), self.random.random_range(40_000..=u16::MAX))
    }
}

fn v4(bits: u32, len: u8) -> IpNet {
    Ipv4Net::new(bits.into(), len).unwrap_or_default().trunc().into()
}

/// Conditions of both, which are about different fields.
fn both(a: &Conjunction, b: &Conjunction) -> Conjunction {
    a.and(b).unwrap_or_else(|| a.clone())
}

fn with_ports(part: Conjunction, src: (u16, u16), dst: (u16, u16)) -> Conjunction {
    let mut all = part;
    if src != ALL_PORTS {
        all = both(&all, &Conjunction::ports(true, src));
    }
    if dst != ALL_PORTS {
        all = both(&all, &Conjunction::ports(false, dst));
    }
    all
}
