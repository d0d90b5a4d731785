//! IPv6-to-IPv6 network prefix translation (NPTv6, RFC 6296): one prefix stands for another, address by
//! address, without state. A word of the address below the prefix takes up the difference, so that no
//! checksum changes.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::bytes::{be16, be128, put};

/// The reason why two prefixes can't stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nptv6Error {
    /// Longer than 64 bits: no place for the difference that is not an interface's (RFC 6296 §3.5).
    #[error("a prefix of {0} bits is too long, 64 at most")]
    TooLong(u8),
    /// It has multicast or link-local addresses, which mean something on their own link only.
    #[error("{0} has multicast or link-local addresses, which are no prefix's to translate")]
    Link(Ipv6Net),
    /// One is a part of the other, so that an address would be on both sides.
    #[error("{0} and {1} have addresses in common")]
    Overlap(Ipv6Net, Ipv6Net),
}

/// An inside and an external prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nptv6 {
    /// The prefixes as they are said to be, of which the longer one may leave addresses of the other out.
    inside_net: Ipv6Net,
    external_net: Ipv6Net,
    inside: u128,
    external: u128,
    /// The prefix bits.
    mask: u128,
    /// External minus inside prefix, as sums of ones' complement.
    adjustment: u16,
    /// Prefixes of at most 48 bits leave word 3 free for the difference.
    short: bool,
}

/// The prefixes of multicast and of link-local addresses (RFC 4291 §2.4).
const OF_A_LINK: [Ipv6Net; 2] = [
    Ipv6Net::new_assert(Ipv6Addr::new(0xff00, 0, 0, 0, 0, 0, 0, 0), 8),
    Ipv6Net::new_assert(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0), 10),
];

/// Ones' complement addition.
fn add(a: u16, b: u16) -> u16 {
    let sum = u32::from(a) + u32::from(b);
    (sum & 0xffff) as u16 + (sum >> 16) as u16
}

fn sum(address: u128) -> u16 {
    (0..8).fold(0, |total, n| add(total, (address >> (16 * n)) as u16))
}

impl Nptv6 {
    /// A translation between two prefixes. The longer of them is the length of both; the shorter one's bits
    /// up to there are 0 (RFC 6296 §3.1).
    ///
    /// # Errors
    /// [`Nptv6Error`] for a prefix of more than 64 bits or with addresses of a link, and for two that
    /// overlap.
    pub fn new(inside: Ipv6Net, external: Ipv6Net) -> Result<Self, Nptv6Error> {
        let length = inside.prefix_len().max(external.prefix_len());
        if length > 64 {
            return Err(Nptv6Error::TooLong(length));
        }
        let overlap = |a: &Ipv6Net, b: &Ipv6Net| a.contains(b) || b.contains(a);
        for net in [inside, external] {
            if OF_A_LINK.iter().any(|other| overlap(&net, other)) {
                return Err(Nptv6Error::Link(net));
            }
        }
        if overlap(&inside, &external) {
            return Err(Nptv6Error::Overlap(inside, external));
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        let (inside_net, external_net) = (inside.trunc(), external.trunc());
        let (inside, external) = (inside_net.addr().to_bits(), external_net.addr().to_bits());
        Ok(Self {
            inside_net,
            external_net,
            inside,
            external,
            mask,
            adjustment: add(sum(inside), !sum(external)),
            short: length <= 48,
        })
    }

    /// The shorter prefix, and the part of it whose addresses have counterparts; `None` where both are of one
    /// length, so that all have.
    #[must_use]
    pub fn left_out(&self) -> Option<(Ipv6Net, Ipv6Net)> {
        let (inside, external) = (self.inside_net, self.external_net);
        let length = inside.prefix_len().max(external.prefix_len());
        let shorter = [inside, external].into_iter().find(|net| net.prefix_len() < length)?;
        Some((shorter, Ipv6Net::new(shorter.addr(), length).ok()?))
    }

    /// Returns true for an address of the inside prefix, which may have no external one.
    #[must_use]
    pub fn is_inside(&self, address: Ipv6Addr) -> bool {
        self.inside_net.contains(&address)
    }

    /// Returns true for an address of the external prefix, which may have no inside one.
    #[must_use]
    pub fn is_external(&self, address: Ipv6Addr) -> bool {
        self.external_net.contains(&address)
    }

    /// The external address of an inside one; `None` if it is not in the inside prefix or can't be translated
    /// (RFC 6296 §3.4: a subnet of 0xffff, §3.5: an interface identifier of ones).
    #[must_use]
    pub fn outbound(&self, address: Ipv6Addr) -> Option<Ipv6Addr> {
        self.translate(address.to_bits(), self.inside, self.external, self.adjustment)
    }

    /// The inside address of an external one, likewise.
    #[must_use]
    pub fn inbound(&self, address: Ipv6Addr) -> Option<Ipv6Addr> {
        self.translate(address.to_bits(), self.external, self.inside, !self.adjustment)
    }

    fn translate(&self, address: u128, from: u128, to: u128, adjustment: u16) -> Option<Ipv6Addr> {
        if address & self.mask != from {
            return None;
        }
        let word = |n: u32| (address >> (112 - 16 * n)) as u16;
        let n = if self.short { 3 } else { (4..8).find(|&n| word(n) != 0xffff)? };
        // 0xffff is another 0: both would become the same address.
        if word(n) == 0xffff {
            return None;
        }
        let adjusted = match add(word(n), adjustment) {
            0xffff => 0,
            other => other,
        };
        let shift = 112 - 16 * n;
        let rest = address & !self.mask & !(0xffff << shift);
        Some((to | rest | u128::from(adjusted) << shift).into())
    }

    /// Translates the destination of the packet that an ICMPv6 error on its way out quotes: it came from
    /// outside, or from another inside host that takes it for one. The error's header is at `icmp`, and ends
    /// at `end`, both offsets in `frame`. A quoted address of another prefix stays, since that packet was not
    /// translated. No checksum changes.
    pub fn quoted_outbound(&self, frame: &mut [u8], icmp: usize, end: usize) {
        quoted(frame, [icmp + 8, 24], end, |address| self.outbound(address));
    }

    /// The same of the source that an error on its way in quotes.
    pub fn quoted_inbound(&self, frame: &mut [u8], icmp: usize, end: usize) {
        quoted(frame, [icmp + 8, 8], end, |address| self.inbound(address));
    }
}

/// Translates an address of the IPv6 header at `ip`, `field` bytes behind its start, if it lies before `end`:
/// else a part of it would change, and the checksum with it.
fn quoted(
    frame: &mut [u8],
    [ip, field]: [usize; 2],
    end: usize,
    translate: impl Fn(Ipv6Addr) -> Option<Ipv6Addr>,
) {
    let at = ip + field;
    if be16(frame, ip).is_some_and(|word| word >> 12 == 6)
        && at + 16 <= end
        && let Some(new) = be128(frame, at).and_then(|old| translate(old.into()))
    {
        put(frame, at, &new.octets());
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::test_packets::{echo, error, ipv6, is_right, tcp, udp};

    fn npt(inside: &str, external: &str) -> Nptv6 {
        Nptv6::new(inside.parse().unwrap(), external.parse().unwrap()).unwrap()
    }

    /// The example of RFC 6296 §3.4's network: the difference is 0xd550.
    #[test]
    fn an_example() {
        let npt = npt("fd01:203:405::/48", "2001:db8:1::/48");
        let inside: Ipv6Addr = "fd01:203:405:1::1234".parse().unwrap();
        let external: Ipv6Addr = "2001:db8:1:d550::1234".parse().unwrap();
        assert_eq!(npt.outbound(inside), Some(external));
        assert_eq!(npt.inbound(external), Some(inside));
        assert_eq!(npt.outbound("fd01:203:405:ffff::1".parse().unwrap()), None);
        assert_eq!(npt.outbound(external), None);
        let prefix = |p: &str| p.parse().unwrap();
        assert_eq!(Nptv6::new(prefix("fd00::/65"), prefix("2001:db8::/48")), Err(Nptv6Error::TooLong(65)));
    }

    /// Prefixes of different lengths: the longer one leaves no place for most subnets of the other.
    #[test]
    fn a_longer_prefix_leaves_addresses_out() {
        let npt = npt("fd00::/48", "2001:db8:0:100::/64");
        let [first, second] = ["fd00::1", "fd00:0:0:1::1"].map(|a| a.parse::<Ipv6Addr>().unwrap());
        assert!(npt.outbound(first).is_some_and(|a| npt.is_external(a)));
        assert!(npt.is_inside(second) && npt.outbound(second).is_none());
        let prefix = |p: &str| p.parse().unwrap();
        let (part, whole) = (prefix("fd00:0:0:7::/64"), prefix("fd00::/48"));
        assert_eq!(Nptv6::new(part, whole), Err(Nptv6Error::Overlap(part, whole)));
        assert_eq!(Nptv6::new(whole, whole), Err(Nptv6Error::Overlap(whole, whole)));
    }

    /// Sums of ones' complement don't change by a whole address, but they do by a part of one.
    #[test]
    fn a_quoted_address_that_ends_early_stays() {
        let npt = npt("fd01:203:405::/48", "2001:db8:1::/48");
        let inside: Ipv6Addr = "fd01:203:405:1::1234".parse().unwrap();
        let quote = ipv6(17, "2001:db8:ffff::1".parse().unwrap(), inside, &udp(1, 2, &[]));
        let before = error(1, 4, &quote);
        for end in 0..=before.len() {
            let mut message = before.clone();
            npt.quoted_outbound(&mut message, 0, end);
            assert_eq!(message == before, end < 8 + 40, "{end}");
        }
    }

    proptest! {
        #[test]
        fn reversible_injective_and_neutral(
            inside: u128, external: u128, lengths: [u8; 2], address: u128, ones: u16, payload: Vec<u8>, kind in 0..4_u8,
        ) {
            let net = |address: u128, length| Ipv6Net::new(address.into(), length % 65).unwrap().trunc();
            let (a, b) = (net(inside, lengths[0]), net(external, lengths[1]));
            let Ok(npt) = Nptv6::new(a, b) else {
                let of_a_link = [a, b].into_iter().any(|net| {
                    let ends = [net.network(), net.broadcast()].map(|address| address.segments()[0]);
                    ends[0] <= 0xfebf && ends[1] >= 0xfe80 || ends[1] >= 0xff00
                });
                prop_assert!(of_a_link || a.contains(&b) || b.contains(&a));
                return Ok(());
            };
            let length = a.prefix_len().max(b.prefix_len());
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            // Some words of ones, where the search for a word has to go on.
            let mut host = address;
            for n in 0..5 {
                if ones >> n & 1 != 0 {
                    host |= 0xffff << (64 - 16 * n);
                }
            }
            let source = Ipv6Addr::from_bits(host & !mask | a.addr().to_bits() & mask);
            let Some(out) = npt.outbound(source) else {
                let words = source.segments();
                let full = if length <= 48 { words[3] == 0xffff } else { words[4..].iter().all(|w| *w == 0xffff) };
                prop_assert!(full);
                return Ok(());
            };
            prop_assert!(npt.is_inside(source) && npt.is_external(out) && b.contains(&out));
            // 0 and 0xffff are one number: only an address that has the latter can't come back, and such are
            // refused.
            prop_assert_eq!(npt.inbound(out), Some(source));

            let remote: Ipv6Addr = "2001:db8:ffff::1".parse().unwrap();
            let transport = match kind {
                0 => (6, tcp(1, 2, 2, &payload)),
                1 => (17, udp(1, 2, &payload)),
                2 => (58, echo(128, 3, &payload)),
                _ => (58, error(1, 4, &ipv6(17, remote, source, &udp(1, 2, &payload)))),
            };
            let mut packet = ipv6(transport.0, source, remote, &transport.1);
            packet[8..24].copy_from_slice(&out.octets());
            let end = packet.len();
            if kind == 3 {
                npt.quoted_outbound(&mut packet, 40, end);
                prop_assert_eq!(&packet[72..88], &out.octets(), "the quoted destination");
                prop_assert!(is_right(&packet[48..]));
            }
            prop_assert!(is_right(&packet));
            // Back in, as an error about a packet from the external address would come.
            let mut back = ipv6(58, remote, out, &error(1, 4, &ipv6(17, out, remote, &udp(1, 2, &payload))));
            back[24..40].copy_from_slice(&source.octets());
            npt.quoted_inbound(&mut back, 40, end.max(88));
            prop_assert_eq!(&back[56..72], &source.octets(), "the quoted source");
            prop_assert!(is_right(&back) && is_right(&back[48..]));
        }
    }
}
