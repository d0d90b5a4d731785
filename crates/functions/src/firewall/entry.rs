//! Conjunctive rules of one IP version, packed for comparison: 40 bytes for IPv4, 88 for IPv6.

use ipnet::IpNet;

use super::conjunction::{ALL_PORTS, Conjunction, Rest};
use super::fields::{DST, DST_HIGH, DST_PORT, PROTOCOL, PROTOCOL_AT, SRC, SRC_HIGH, SRC_PORT};
use super::four::Four;
use super::{PacketFields, RuleSet};

/// A rule without conditions beyond those that are packed.
pub(super) const NO_REST: u32 = u32::MAX;

/// Dimensions of the space that rules are boxes in: source, destination, their ports, protocol.
pub(super) const DIMS: usize = 5;

/// The differences between the IP versions.
pub(super) trait Family: Copy + std::fmt::Debug {
    /// True if this is IPv6.
    const SIX: bool;
    /// Bits of an address.
    const BITS: u8;
    /// Addresses and masks of a rule.
    type Addresses: Copy + std::fmt::Debug;
    fn addresses(src: Option<IpNet>, dst: Option<IpNet>) -> Self::Addresses;
    fn matches(addresses: &Self::Addresses, words: &[u64; 8]) -> bool;
    /// Addresses and masks of four rules, word by word.
    type Nets: Copy + std::fmt::Debug;
    /// A packet's addresses, each word four times.
    type Asked: Copy + std::fmt::Debug;
    fn nets(addresses: [&Self::Addresses; 4]) -> Self::Nets;
    fn ask(words: &[u64; 8]) -> Self::Asked;
    /// Not 0 for the rules whose addresses are not the packet's.
    fn differing(asked: &Self::Asked, nets: &Self::Nets) -> Four;
}

const fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

const fn low(word: u64) -> u32 {
    word as u32
}

/// IPv4.
#[derive(Clone, Copy, Debug)]
pub(super) struct V4;

/// IPv6.
#[derive(Clone, Copy, Debug)]
pub(super) struct V6;

impl Family for V4 {
    const SIX: bool = false;
    const BITS: u8 = 32;
    /// Source and destination in one word, and their masks.
    type Addresses = [u64; 2];

    fn addresses(src: Option<IpNet>, dst: Option<IpNet>) -> [u64; 2] {
        let of = |net| match net {
            Some(IpNet::V4(net)) => (net.network().to_bits(), net.netmask().to_bits()),
            _ => (0, 0),
        };
        let ((src, src_mask), (dst, dst_mask)) = (of(src), of(dst));
        let both = |src, dst| u64::from(src) << 32 | u64::from(dst);
        [both(src, dst), both(src_mask, dst_mask)]
    }

    #[inline(always)]
    fn matches(&[both, mask]: &[u64; 2], words: &[u64; 8]) -> bool {
        let [.., packet] = *words;
        (packet ^ both) & mask == 0
    }

    type Nets = [[Four; 2]; 2];
    type Asked = [Four; 2];

    fn nets(addresses: [&[u64; 2]; 4]) -> Self::Nets {
        let side = |half: fn(u64) -> u32| {
            [
                Four::new(addresses.map(|&[both, _]| half(both))),
                Four::new(addresses.map(|&[_, mask]| half(mask))),
            ]
        };
        [side(high), side(low)]
    }

    #[inline(always)]
    fn ask(words: &[u64; 8]) -> [Four; 2] {
        let [.., both] = *words;
        [Four::splat(high(both)), Four::splat(low(both))]
    }

    #[inline(always)]
    fn differing(&[src, dst]: &[Four; 2], &[[a, am], [b, bm]]: &Self::Nets) -> Four {
        src.differing(a, am).or(dst.differing(b, bm))
    }
}

impl Family for V6 {
    const SIX: bool = true;
    const BITS: u8 = 128;
    type Addresses = [u64; 8];

    fn addresses(src: Option<IpNet>, dst: Option<IpNet>) -> [u64; 8] {
        let of = |net| match net {
            Some(IpNet::V6(net)) => (net.network().to_bits(), net.netmask().to_bits()),
            _ => (0, 0),
        };
        let halves = |x: u128| [(x >> 64) as u64, x as u64];
        let ((src, src_mask), (dst, dst_mask)) = (of(src), of(dst));
        let ([a, b], [am, bm], [c, d], [cm, dm]) =
            (halves(src), halves(src_mask), halves(dst), halves(dst_mask));
        [a, am, b, bm, c, cm, d, dm]
    }

    #[inline(always)]
    fn matches(&[a, am, b, bm, c, cm, d, dm]: &[u64; 8], words: &[u64; 8]) -> bool {
        let [w, x, y, z, ..] = *words;
        ((w ^ a) & am) | ((x ^ b) & bm) | ((y ^ c) & cm) | ((z ^ d) & dm) == 0
    }

    type Nets = [[Four; 2]; 8];
    type Asked = [Four; 8];

    fn nets(addresses: [&[u64; 8]; 4]) -> Self::Nets {
        let word = |value: fn(&[u64; 8]) -> u64, mask: fn(&[u64; 8]) -> u64| {
            let half = |half: fn(u64) -> u32| {
                [Four::new(addresses.map(|a| half(value(a)))), Four::new(addresses.map(|a| half(mask(a))))]
            };
            [half(high), half(low)]
        };
        let [a, b] = word(|a| a[0], |a| a[1]);
        let [c, d] = word(|a| a[2], |a| a[3]);
        let [e, f] = word(|a| a[4], |a| a[5]);
        let [g, h] = word(|a| a[6], |a| a[7]);
        [a, b, c, d, e, f, g, h]
    }

    #[inline(always)]
    fn ask(&[w, x, y, z, ..]: &[u64; 8]) -> [Four; 8] {
        [high(w), low(w), high(x), low(x), high(y), low(y), high(z), low(z)].map(Four::splat)
    }

    #[inline(always)]
    fn differing(asked: &[Four; 8], nets: &Self::Nets) -> Four {
        let each = asked.iter().zip(nets).map(|(word, &[value, mask])| word.differing(value, mask));
        each.fold(Four::splat(0), Four::or)
    }
}

/// A packed conjunctive rule.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry<F: Family> {
    pub(super) addresses: F::Addresses,
    /// First port, and how many follow it.
    pub(super) src_ports: (u16, u16),
    pub(super) dst_ports: (u16, u16),
    pub(super) mask: u32,
    pub(super) value: u32,
    /// Index of the rest of its conditions, or [`NO_REST`].
    pub(super) rest: u32,
    /// The index of its rule.
    pub(super) rule: u32,
}

impl<F: Family> Entry<F> {
    #[inline(always)]
    pub(super) fn matches(&self, packet: &PacketFields, rests: &[Rest]) -> bool {
        let words = &packet.words;
        // Most rules of a leaf differ in their addresses: those are told from the packet by one comparison.
        if !F::matches(&self.addresses, words) {
            return false;
        }
        let [_, _, _, _, src_port, dst_port, ..] = *words;
        let within = |port: u64, (first, more): (u16, u16)| (port as u16).wrapping_sub(first) <= more;
        let quick = ((packet.word ^ self.value) & self.mask == 0)
            & within(src_port, self.src_ports)
            & within(dst_port, self.dst_ports);
        quick
            && (self.rest == NO_REST || rests.get(self.rest as usize).is_some_and(|rest| rest.holds(packet)))
    }

    /// Returns true if every packet in this entry's box with the word of `other` matches this one.
    pub(super) fn needs_no_more_than(&self, other: &Self) -> bool {
        let mask = self.mask & !PROTOCOL;
        self.rest == NO_REST && other.mask & mask == mask && (other.value ^ self.value) & mask == 0
    }
}

/// The box of packets that an entry can match, first and last value of each dimension.
#[derive(Clone, Copy, Debug)]
pub(super) struct Region {
    pub(super) lo: [u128; DIMS],
    pub(super) hi: [u128; DIMS],
}

impl Region {
    /// Returns true if all of `other` is in it.
    pub(super) fn covers(&self, other: &Self) -> bool {
        let low = self.lo.iter().zip(&other.lo).all(|(a, b)| a <= b);
        low && self.hi.iter().zip(&other.hi).all(|(a, b)| a >= b)
    }
}

/// The rules of one IP version, in their order.
#[derive(Debug)]
pub(super) struct Input<F: Family> {
    pub(super) entries: Vec<Entry<F>>,
    pub(super) regions: Vec<Region>,
    /// True for entries that end evaluation if they match, and that no rule jumps over.
    pub(super) final_: Vec<bool>,
    pub(super) rests: Vec<Rest>,
}

impl<F: Family> Input<F> {
    pub(super) fn new(rules: &RuleSet) -> Self {
        let mut input =
            Self { entries: Vec::new(), regions: Vec::new(), final_: Vec::new(), rests: Vec::new() };
        let mut jumped_over = 0;
        for (index, rule) in (0_u32..).zip(rules.rules()) {
            let decides = rule.action.verdict().is_some() && index >= jumped_over;
            for part in rule.parts.iter().filter(|p| p.six.is_none_or(|six| six == F::SIX)) {
                input.push(index, decides, part);
            }
            jumped_over = jumped_over.max(rule.action.farthest(index));
        }
        input
    }

    fn push(&mut self, rule: u32, decides: bool, part: &Conjunction) {
        let rest = if part.rest == Rest::default() {
            NO_REST
        } else {
            self.rests.push(part.rest.clone());
            u32::try_from(self.rests.len() - 1).unwrap_or(NO_REST)
        };
        let ports = |(first, last): (u16, u16)| (first, last - first);
        self.entries.push(Entry {
            addresses: F::addresses(part.src, part.dst),
            src_ports: ports(part.src_ports),
            dst_ports: ports(part.dst_ports),
            mask: part.mask,
            value: part.value,
            rest,
            rule,
        });
        self.regions.push(region::<F>(part));
        self.final_.push(decides);
    }
}

fn region<F: Family>(part: &Conjunction) -> Region {
    let most = u128::MAX >> (128 - u32::from(F::BITS));
    let net = |net: Option<IpNet>| match net {
        Some(IpNet::V4(net)) => (net.network().to_bits().into(), net.broadcast().to_bits().into()),
        Some(IpNet::V6(net)) => (net.network().to_bits(), net.broadcast().to_bits()),
        None => (0, most),
    };
    let port = |(first, last): (u16, u16)| (u128::from(first), u128::from(last));
    let protocol = if part.mask & PROTOCOL == PROTOCOL {
        let one = u128::from(part.value >> PROTOCOL_AT);
        (one, one)
    } else {
        let set = part.rest.protocols;
        (set.iter().min().map_or(0, u128::from), set.iter().max().map_or(255, u128::from))
    };
    debug_assert!(
        part.src_ports == ALL_PORTS || part.mask != 0,
        "ports need the bit that says they can be seen"
    );
    let sides = [net(part.src), net(part.dst), port(part.src_ports), port(part.dst_ports), protocol];
    Region { lo: sides.map(|(lo, _)| lo), hi: sides.map(|(_, hi)| hi) }
}

/// The packet's place in the space of [`Region`]s.
pub(super) fn point(packet: &PacketFields) -> [u128; DIMS] {
    let at = |i: usize| packet.words.get(i).copied().map_or(0, u128::from);
    let address = |high, low| at(high) << 64 | at(low);
    [
        address(SRC_HIGH, SRC),
        address(DST_HIGH, DST),
        at(SRC_PORT),
        at(DST_PORT),
        u128::from(packet.protocol()),
    ]
}
