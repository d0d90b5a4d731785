//! A conjunctive rule: one prefix, one range of ports, one set of protocols and so on a side, all of which
//! must hold. What classifiers are made of; rules of the project's language are lists of them (`expand`).

use std::sync::Arc;

use ipnet::IpNet;
use slipstream_wire::{Flags, protocol};

use super::fields::{ConnState, PROTOCOL, PROTOCOL_AT, PacketFields, Reads, TCP_FLAGS_AT, TOS_AT};
use super::ipset::IpSet;
use slipstream_core::rules::expr::{ByteSet, Ranges};

pub(super) const ALL_PORTS: (u16, u16) = (0, u16::MAX);

/// Conditions on a packet, all of which must hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Conjunction {
    /// IPv4 alone (false) or IPv6 alone (true).
    pub(super) six: Option<bool>,
    pub(super) src: Option<IpNet>,
    pub(super) dst: Option<IpNet>,
    /// First and last port. A range other than [`ALL_PORTS`] comes with [`Flags::PORTS`] in the word.
    pub(super) src_ports: (u16, u16),
    pub(super) dst_ports: (u16, u16),
    /// [`PacketFields::word`] must be `value` under `mask`.
    pub(super) mask: u32,
    pub(super) value: u32,
    pub(super) rest: Rest,
}

/// Conditions that few rules have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    pub(super) protocols: ByteSet,
    /// Code points as bits.
    pub(super) dscp: u64,
    pub(super) ecn: u8,
    /// States as bits.
    pub(super) states: u8,
    pub(super) not_src: Vec<IpNet>,
    pub(super) not_dst: Vec<IpNet>,
    /// Tags (with an id in the ranges) that must be there (true) or must not.
    pub(super) vlans: Vec<(bool, Option<Ranges>)>,
    pub(super) lengths: Vec<Ranges>,
    /// Ranges of ICMP types and codes, type in the upper byte. Without any, packets need not be ICMP.
    pub(super) icmp: Vec<Ranges>,
    pub(super) sets: Vec<SetTest>,
}

/// A test of a packet against a set, by its source (true) or destination address, and the same for ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SetTest {
    pub(super) set: Arc<IpSet>,
    pub(super) sides: [bool; 2],
    pub(super) wanted: bool,
}

impl Default for Rest {
    fn default() -> Self {
        Self {
            protocols: ByteSet::default().complement(),
            dscp: u64::MAX,
            ecn: 15,
            states: ConnState::ALL,
            not_src: Vec::new(),
            not_dst: Vec::new(),
            vlans: Vec::new(),
            lengths: Vec::new(),
            icmp: Vec::new(),
            sets: Vec::new(),
        }
    }
}

impl Default for Conjunction {
    fn default() -> Self {
        Self {
            six: None,
            src: None,
            dst: None,
            src_ports: ALL_PORTS,
            dst_ports: ALL_PORTS,
            mask: 0,
            value: 0,
            rest: Rest::default(),
        }
    }
}

impl Rest {
    pub(super) fn holds(&self, p: &PacketFields) -> bool {
        self.protocols.contains(p.protocol())
            && self.dscp >> (p.tos() >> 2) & 1 == 1
            && self.ecn >> (p.tos() & 3) & 1 == 1
            && self.states & p.state != 0
            && !self.not_src.iter().any(|net| net.contains(&p.src()))
            && !self.not_dst.iter().any(|net| net.contains(&p.dst()))
            && self.lengths.iter().all(|bytes| bytes.contains(p.length))
            && self.icmp.iter().all(|types| types.contains(p.icmp))
            && self.sets.iter().all(|test| test.set.contains(p, test.sides) == test.wanted)
            && self.vlans.iter().all(|(there, ids)| {
                let tag = |id| ids.as_ref().is_none_or(|ids| ids.contains(u32::from(id)));
                p.vlans.clone().any(tag) == *there
            })
    }
}

impl Conjunction {
    /// Bits of the word under a mask.
    pub(super) fn word(mask: u32, value: u32) -> Self {
        Self { mask, value: value & mask, ..Self::default() }
    }

    /// Packets that have a flag of [`Flags`], or that have not.
    pub(super) fn flag(flag: u8, set: bool) -> Self {
        Self::word(u32::from(flag), if set { u32::from(flag) } else { 0 })
    }

    /// The TCP flags under a mask, where they can be seen.
    pub(super) fn tcp_flags(mask: u8, value: u8) -> Self {
        let tcp = u32::from(Flags::TCP);
        Self::word(tcp | u32::from(mask) << TCP_FLAGS_AT, tcp | u32::from(value & mask) << TCP_FLAGS_AT)
    }

    /// Ports that can be seen and are in a range.
    pub(super) fn ports(src: bool, (first, last): (u16, u16)) -> Self {
        let any = Self::flag(Flags::PORTS, true);
        if src { Self { src_ports: (first, last), ..any } } else { Self { dst_ports: (first, last), ..any } }
    }

    /// An address in a prefix.
    pub(super) fn net(src: bool, net: IpNet) -> Self {
        let any = Self { six: Some(matches!(net, IpNet::V6(_))), ..Self::default() };
        if src { Self { src: Some(net), ..any } } else { Self { dst: Some(net), ..any } }
    }

    /// A condition that few rules have.
    pub(super) fn rest(set: impl FnOnce(&mut Rest)) -> Self {
        let mut all = Self::default();
        set(&mut all.rest);
        all
    }

    /// Returns true if a packet fulfils all conditions, by the letter.
    pub(super) fn matches(&self, p: &PacketFields) -> bool {
        let within = |(first, last): (u16, u16), port: u16| first <= port && port <= last;
        self.six.is_none_or(|six| six == p.is_ipv6())
            && (p.word ^ self.value) & self.mask == 0
            && self.src.is_none_or(|net| net.contains(&p.src()))
            && self.dst.is_none_or(|net| net.contains(&p.dst()))
            && within(self.src_ports, p.src_port())
            && within(self.dst_ports, p.dst_port())
            && self.rest.holds(p)
    }

    /// The conditions of both; `None` where they are known to exclude each other.
    pub(super) fn and(&self, other: &Self) -> Option<Self> {
        let six = match (self.six, other.six) {
            (Some(a), Some(b)) if a != b => return None,
            (a, b) => a.or(b),
        };
        if (self.value ^ other.value) & self.mask & other.mask != 0 {
            return None;
        }
        let ports = |a: (u16, u16), b: (u16, u16)| {
            let both = (a.0.max(b.0), a.1.min(b.1));
            (both.0 <= both.1).then_some(both)
        };
        let both = Self {
            six,
            src: narrower(self.src, other.src)?,
            dst: narrower(self.dst, other.dst)?,
            src_ports: ports(self.src_ports, other.src_ports)?,
            dst_ports: ports(self.dst_ports, other.dst_ports)?,
            mask: self.mask | other.mask,
            value: self.value | other.value,
            rest: self.rest.and(&other.rest),
        };
        both.normal()
    }

    /// The same conditions with sets of one protocol or code point in the word, where comparing them costs
    /// nothing; `None` where nothing can fulfil them.
    pub(super) fn normal(mut self) -> Option<Self> {
        let rest = &mut self.rest;
        if rest.dscp == 0 || rest.ecn == 0 || rest.states == 0 {
            return None;
        }
        let ports = u32::from(Flags::PORTS);
        let mut word = |mask: u32, value: u32| {
            let differ = (self.value ^ value) & self.mask & mask != 0;
            (self.mask, self.value) = (self.mask | mask, self.value | value);
            !differ
        };
        if rest.dscp.count_ones() == 1 {
            let fits = word(0xfc << TOS_AT, rest.dscp.trailing_zeros() << 2 << TOS_AT);
            if !fits {
                return None;
            }
            rest.dscp = u64::MAX;
        }
        if rest.ecn.count_ones() == 1 {
            if !word(3 << TOS_AT, rest.ecn.trailing_zeros() << TOS_AT) {
                return None;
            }
            rest.ecn = 15;
        }
        match rest.protocols.len() {
            0 => return None,
            1 => {
                let one = rest.protocols.iter().next().map_or(0, u32::from);
                if !word(PROTOCOL, one << PROTOCOL_AT) {
                    return None;
                }
                rest.protocols = ByteSet::default().complement();
            }
            _ => {}
        }
        if self.mask & PROTOCOL == PROTOCOL {
            let protocol = (self.value >> PROTOCOL_AT) as u8;
            let fits = rest.protocols.contains(protocol)
                && (self.value & ports == 0 || protocol::has_ports(protocol))
                && (self.value & u32::from(Flags::TCP) == 0 || protocol == protocol::TCP);
            rest.protocols = ByteSet::default().complement();
            if !fits {
                return None;
            }
        }
        Some(self)
    }

    /// Returns true if every fragment of a datagram tells by itself if this holds: nothing is asked but
    /// addresses, VLAN ids, code points, and whether it is a fragment.
    pub(super) fn holds_by_fragment(&self) -> bool {
        let any = Self::default();
        let ip = 0xff << TOS_AT | u32::from(Flags::IPV6 | Flags::FRAGMENT);
        let rest = Rest {
            dscp: any.rest.dscp,
            ecn: any.rest.ecn,
            not_src: Vec::new(),
            not_dst: Vec::new(),
            vlans: Vec::new(),
            ..self.rest.clone()
        };
        let (mask, value) = (self.mask & !ip, self.value & !ip);
        Self { six: any.six, src: any.src, dst: any.dst, mask, value, rest, ..self.clone() } == any
    }

    /// The fields of packets that it reads beyond the flow key.
    pub(super) fn reads(&self) -> Reads {
        let any = Rest::default();
        let rest = &self.rest;
        let dscp = if rest.dscp == any.dscp { 0 } else { 0xfc << TOS_AT };
        let ecn = if rest.ecn == any.ecn { 0 } else { 3 << TOS_AT };
        let seen = if rest.sets.iter().any(|test| test.set.has_ports()) { Flags::PORTS } else { 0 };
        Reads {
            icmp: !rest.icmp.is_empty(),
            word: (self.mask | dscp | ecn | u32::from(seen)) & !PROTOCOL & !u32::from(Flags::IPV6),
            length: !rest.lengths.is_empty(),
            state: rest.states != any.states,
        }
    }
}

impl Rest {
    fn and(&self, other: &Self) -> Self {
        fn join<T: Clone>(a: &[T], b: &[T]) -> Vec<T> {
            a.iter().chain(b).cloned().collect()
        }
        Self {
            protocols: self.protocols.intersection(other.protocols),
            dscp: self.dscp & other.dscp,
            ecn: self.ecn & other.ecn,
            states: self.states & other.states,
            not_src: join(&self.not_src, &other.not_src),
            not_dst: join(&self.not_dst, &other.not_dst),
            vlans: join(&self.vlans, &other.vlans),
            lengths: join(&self.lengths, &other.lengths),
            icmp: join(&self.icmp, &other.icmp),
            sets: join(&self.sets, &other.sets),
        }
    }
}

/// The one prefix that lies in the other; outer `None` where they have no address in common.
fn narrower(a: Option<IpNet>, b: Option<IpNet>) -> Option<Option<IpNet>> {
    match (a, b) {
        (Some(a), Some(b)) if a.contains(&b) => Some(Some(b)),
        (Some(a), Some(b)) if b.contains(&a) => Some(Some(a)),
        (Some(_), Some(_)) => None,
        (a, b) => Some(a.or(b)),
    }
}
