//! The flow key: which packets belong to one flow.
//!
//! Directional: VLAN ids (all tags, outermost first), IP version, source, destination, protocol, and the
//! ports of TCP, UDP and SCTP; ports are 0 for every fragment and for every other protocol. A key is exact:
//! two flows never have equal keys, whatever a hash says.

use core::fmt;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::protocol;

/// A directional flow key in canonical form: one flow has exactly one representation, so `==` and `Hash` are
/// exact.
///
/// IPv4 with at most one VLAN tag, the common case, is 16 bytes ([`NarrowKey`]); everything else is
/// [`WideKey`]. Keys come from [`classify`](fn@crate::classify) or [`FlowKey::new`], which choose the form.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum FlowKey {
    /// IPv4 with at most one VLAN tag.
    Narrow(NarrowKey),
    /// IPv6, or more than one VLAN tag.
    Wide(WideKey),
}

/// IPv4 with at most one VLAN tag, in 16 bytes.
///
/// Word 0: source (high 32 bits), destination (low). Word 1: source port (bits 48..64), destination port
/// (32..48), protocol (24..32), bits 13..24 zero, tagged (12), VLAN id (0..12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NarrowKey(pub [u64; 2]);

/// Any other flow key, in 56 bytes.
///
/// Words 0 to 3: source and destination, 16 bytes each, an IPv4 address in the low 32 bits. Word 4: source
/// port (48..64), destination port (32..48), protocol (24..32), IP version (16..24), number of VLAN tags
/// (0..16). Words 5 and 6: up to [`WideKey::MAX_TAGS`] VLAN ids of 12 bits, the outermost in the highest bits
/// of word 5, five a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WideKey(pub [u64; 7]);

impl WideKey {
    /// VLAN tags that a key can hold. A frame with more can't be classified, and is passed through.
    pub const MAX_TAGS: usize = 10;
}

/// The reason why parts make no flow key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    /// More VLAN tags than [`WideKey::MAX_TAGS`].
    TooManyTags(usize),
    /// A VLAN id above 4095.
    VlanId(u16),
    /// One address is IPv4, the other IPv6.
    MixedVersions,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManyTags(tags) => {
                write!(f, "{tags} VLAN tags, a flow key holds at most {}", WideKey::MAX_TAGS)
            }
            Self::VlanId(id) => write!(f, "VLAN id {id} is above 4095"),
            Self::MixedVersions => f.write_str("source and destination are of different IP versions"),
        }
    }
}

impl core::error::Error for KeyError {}

/// VLAN ids in the packed form of words 5 and 6 of a [`WideKey`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct VlanStack {
    words: [u64; 2],
    count: u8,
}

impl VlanStack {
    /// Adds the next inner id (its low 12 bits); false if the stack is full.
    #[inline]
    pub(crate) fn push(&mut self, id: u16) -> bool {
        let id = u64::from(id & 0xfff);
        let [first, second] = &mut self.words;
        match self.count {
            n @ 0..=4 => *first |= id << (52 - 12 * u32::from(n)),
            n @ 5..=9 => *second |= id << (52 - 12 * u32::from(n - 5)),
            _ => return false,
        }
        self.count += 1;
        true
    }
}

/// The VLAN ids of a key, outermost first.
#[derive(Clone, Debug)]
pub struct Vlans {
    stack: VlanStack,
    next: u8,
}

impl Iterator for Vlans {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let n = self.next;
        if n >= self.stack.count {
            return None;
        }
        self.next += 1;
        let [first, second] = self.stack.words;
        let (word, place) = if n < 5 { (first, n) } else { (second, n - 5) };
        Some((word >> (52 - 12 * u32::from(place)) & 0xfff) as u16)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = usize::from(self.stack.count.saturating_sub(self.next));
        (left, Some(left))
    }
}

impl ExactSizeIterator for Vlans {}

impl FlowKey {
    /// A key from its parts. VLAN ids come outermost first. The ports are taken as 0 for protocols other than
    /// TCP, UDP and SCTP.
    ///
    /// ```
    /// use slipstream_wire::FlowKey;
    ///
    /// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 80, 1234)?;
    /// assert_eq!(key.to_string(), "10.0.0.1:80 > 10.0.0.2:1234 tcp");
    /// # Ok::<(), slipstream_wire::KeyError>(())
    /// ```
    ///
    /// # Errors
    /// [`KeyError`] for too many tags, an id above 4095, or addresses of different IP versions.
    pub fn new(
        vlans: &[u16],
        src: IpAddr,
        dst: IpAddr,
        protocol: u8,
        src_port: u16,
        dst_port: u16,
    ) -> Result<Self, KeyError> {
        let mut stack = VlanStack::default();
        for &id in vlans {
            if id > 0xfff {
                return Err(KeyError::VlanId(id));
            }
            if !stack.push(id) {
                return Err(KeyError::TooManyTags(vlans.len()));
            }
        }
        let ports =
            if protocol::has_ports(protocol) { u32::from(src_port) << 16 | u32::from(dst_port) } else { 0 };
        match (src, dst) {
            (IpAddr::V4(s), IpAddr::V4(d)) => Ok(Self::pack_v4(
                &stack,
                u64::from(s.to_bits()) << 32 | u64::from(d.to_bits()),
                protocol,
                ports,
            )),
            (IpAddr::V6(s), IpAddr::V6(d)) => {
                Ok(Self::pack_v6(&stack, halves(s.to_bits()), halves(d.to_bits()), protocol, ports))
            }
            _ => Err(KeyError::MixedVersions),
        }
    }

    /// IPv4: `addresses` as in word 0 of a narrow key, `ports` source high, destination low.
    #[inline]
    pub(crate) fn pack_v4(vlans: &VlanStack, addresses: u64, protocol: u8, ports: u32) -> Self {
        let rest = u64::from(ports) << 32 | u64::from(protocol) << 24;
        let [first, second] = vlans.words;
        match vlans.count {
            0 => Self::Narrow(NarrowKey([addresses, rest])),
            1 => Self::Narrow(NarrowKey([addresses, rest | 1 << 12 | first >> 52])),
            n => Self::Wide(WideKey([
                0,
                addresses >> 32,
                0,
                addresses & 0xffff_ffff,
                rest | 4 << 16 | u64::from(n),
                first,
                second,
            ])),
        }
    }

    /// IPv6: addresses as two words each, the high one first.
    #[inline]
    pub(crate) fn pack_v6(vlans: &VlanStack, src: [u64; 2], dst: [u64; 2], protocol: u8, ports: u32) -> Self {
        let rest = u64::from(ports) << 32 | u64::from(protocol) << 24 | 6 << 16 | u64::from(vlans.count);
        let [first, second] = vlans.words;
        Self::Wide(WideKey([src[0], src[1], dst[0], dst[1], rest, first, second]))
    }

    /// A 64-bit hash, uniform in all bits for a secret `seed` (two rounds of folded 64×64→128-bit
    /// multiplication; not CRC32c, which is linear and can be flooded). The seed enters every factor, so that
    /// nobody who does not know it can build packets that make one zero, and no two words of a key are joined
    /// before each has met it, so that no keys collide under every seed. The same on every machine.
    #[inline]
    #[must_use]
    pub fn hash64(&self, seed: u64) -> u64 {
        let (left, right) = (seed ^ K1, seed.rotate_left(32) ^ K2);
        match self {
            Self::Narrow(NarrowKey([a, b])) => mix(mix(a ^ left, b ^ right), K3),
            Self::Wide(WideKey(w)) => {
                let [a, b, c, d, e, f, g] = *w;
                let x = mix(a ^ left, b ^ right);
                let y = mix(c ^ left ^ K3, d ^ right);
                let z = mix(e ^ left ^ K4, f ^ right);
                let z = if g == 0 { z } else { deep(z, g, seed) };
                mix(x ^ y.rotate_left(23) ^ left, z ^ right)
            }
        }
    }

    /// The word with the ports (32..64) and the protocol (24..32): the same in both forms.
    #[inline]
    const fn rest(&self) -> u64 {
        match self {
            Self::Narrow(NarrowKey([_, rest])) | Self::Wide(WideKey([_, _, _, _, rest, _, _])) => *rest,
        }
    }

    /// Source address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        match *self {
            Self::Narrow(NarrowKey([a, _])) => Ipv4Addr::from_bits((a >> 32) as u32).into(),
            Self::Wide(WideKey([high, low, ..])) => self.wide_address(high, low),
        }
    }

    /// Destination address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        match *self {
            Self::Narrow(NarrowKey([a, _])) => Ipv4Addr::from_bits(a as u32).into(),
            Self::Wide(WideKey([_, _, high, low, ..])) => self.wide_address(high, low),
        }
    }

    fn wide_address(&self, high: u64, low: u64) -> IpAddr {
        if self.is_ipv6() {
            Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
        } else {
            Ipv4Addr::from_bits(low as u32).into()
        }
    }

    /// Source port; 0 for fragments and protocols without ports.
    #[inline]
    #[must_use]
    pub const fn src_port(&self) -> u16 {
        (self.rest() >> 48) as u16
    }

    /// Destination port; 0 for fragments and protocols without ports.
    #[inline]
    #[must_use]
    pub const fn dst_port(&self) -> u16 {
        (self.rest() >> 32) as u16
    }

    /// IP protocol: of IPv6 the header after the extension headers that could be walked.
    #[inline]
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        (self.rest() >> 24) as u8
    }

    /// Says that the addresses are IPv6.
    #[inline]
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        match self {
            Self::Narrow(_) => false,
            Self::Wide(WideKey([_, _, _, _, rest, _, _])) => (*rest >> 16) as u8 == 6,
        }
    }

    /// VLAN ids (0 to 4095), outermost first.
    #[must_use]
    #[inline]
    pub fn vlans(&self) -> Vlans {
        let stack = match *self {
            Self::Narrow(NarrowKey([_, rest])) => {
                VlanStack { words: [(rest & 0xfff) << 52, 0], count: (rest >> 12 & 1) as u8 }
            }
            Self::Wide(WideKey([_, _, _, _, rest, first, second])) => VlanStack {
                words: [first, second],
                count: (rest & 0xffff).min(WideKey::MAX_TAGS as u64) as u8,
            },
        };
        Vlans { stack, next: 0 }
    }

    /// The key of the opposite direction: addresses and ports swapped.
    #[inline]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        match *self {
            Self::Narrow(NarrowKey([a, rest])) => {
                Self::Narrow(NarrowKey([a.rotate_left(32), swap_ports(rest)]))
            }
            Self::Wide(WideKey([s0, s1, d0, d1, rest, first, second])) => {
                Self::Wide(WideKey([d0, d1, s0, s1, swap_ports(rest), first, second]))
            }
        }
    }

    /// One key for both directions of a connection: the endpoints ordered by (address, port), smaller first.
    /// VLAN ids, IP version and protocol stay.
    #[inline]
    #[must_use]
    pub fn bidirectional(&self) -> Self {
        let ports = (self.src_port(), self.dst_port());
        let ordered = match *self {
            Self::Narrow(NarrowKey([a, _])) => (a >> 32, ports.0) <= (a & 0xffff_ffff, ports.1),
            Self::Wide(WideKey([s0, s1, d0, d1, ..])) => (s0, s1, ports.0) <= (d0, d1, ports.1),
        };
        if ordered { *self } else { self.reversed() }
    }
}

/// `10.0.0.1:80 > 10.0.0.2:1234 tcp`, `[2001:db8::1]:53 > [2001:db8::2]:4000 udp vlan 7.100`; addresses alone
/// where both ports are 0: protocols without ports, and fragments.
impl fmt::Display for FlowKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (src, dst, sp, dp) = (self.src(), self.dst(), self.src_port(), self.dst_port());
        match (src, dst) {
            _ if sp == 0 && dp == 0 => write!(f, "{src} > {dst}")?,
            (IpAddr::V6(src), IpAddr::V6(dst)) => write!(f, "[{src}]:{sp} > [{dst}]:{dp}")?,
            _ => write!(f, "{src}:{sp} > {dst}:{dp}")?,
        }
        match protocol::name(self.protocol()) {
            Some(name) => write!(f, " {name}")?,
            None => write!(f, " proto {}", self.protocol())?,
        }
        for (i, id) in self.vlans().enumerate() {
            write!(f, "{}{id}", if i == 0 { " vlan " } else { "." })?;
        }
        Ok(())
    }
}

const K1: u64 = 0x9e37_79b9_7f4a_7c15;
const K2: u64 = 0xd6e8_feb8_6659_fd93;
const K3: u64 = 0xa076_1d64_78bd_642f;
const K4: u64 = 0xe703_7ed1_a0b4_28db;

#[inline]
const fn mix(a: u64, b: u64) -> u64 {
    let p = a as u128 * b as u128;
    (p as u64) ^ ((p >> 64) as u64)
}

/// Joins the word of a key of more than five VLAN tags, which is seldom, with what its other words came to.
#[cold]
#[inline(never)]
const fn deep(z: u64, word: u64, seed: u64) -> u64 {
    mix(z ^ seed ^ K1, word ^ seed.rotate_left(32) ^ K2)
}

#[inline]
const fn swap_ports(rest: u64) -> u64 {
    (rest >> 48) << 32 | (rest >> 32 & 0xffff) << 48 | rest & 0xffff_ffff
}

const fn halves(address: u128) -> [u64; 2] {
    [(address >> 64) as u64, address as u64]
}

#[cfg(test)]
#[path = "key_tests.rs"]
mod tests;
