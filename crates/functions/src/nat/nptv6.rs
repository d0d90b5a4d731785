//! IPv6-to-IPv6 network prefix translation (NPTv6, RFC 6296): one prefix stands for another, address by
//! address, without state. A word of the address below the prefix takes up the difference, so that no
//! checksum changes.

use std::net::Ipv6Addr;

use ipnet::Ipv6Net;

use crate::bytes::{be16, be128, put};

/// Why two prefixes can't stand for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Nptv6Error {
    /// Longer than 64 bits: no place for the difference that is not an interface's (RFC 6296 §3.5).
    #[error("a prefix of {0} bits is too long, 64 at most")]
    TooLong(u8),
}

/// An inside and an external prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Nptv6 {
    inside: u128,
    external: u128,
    /// The prefix bits.
    mask: u128,
    /// External minus inside prefix, as sums of ones' complement.
    adjustment: u16,
    /// Prefixes of at most 48 bits leave word 3 free for the difference.
    short: bool,
}

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
    /// [`Nptv6Error`] for a prefix of more than 64 bits.
    pub fn new(inside: Ipv6Net, external: Ipv6Net) -> Result<Self, Nptv6Error> {
        let length = inside.prefix_len().max(external.prefix_len());
        if length > 64 {
            return Err(Nptv6Error::TooLong(length));
        }
        let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
        let (inside, external) = (inside.trunc().addr().to_bits(), external.trunc().addr().to_bits());
        Ok(Self { inside, external, mask, adjustment: add(sum(inside), !sum(external)), short: length <= 48 })
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

    /// Translates the source of the IPv6 packet at `l3`, on its way out. `error`: where its ICMPv6 header is,
    /// if it is an error; the destination of the packet that it quotes is translated too. No checksum
    /// changes. False, and nothing changed, where the source can't be translated: the packet is to be dropped
    /// with an ICMPv6 destination unreachable (RFC 6296 §3.4).
    #[must_use]
    pub fn apply_outbound(&self, frame: &mut [u8], l3: usize, error: Option<usize>) -> bool {
        self.apply(frame, [l3 + 8, 24], error, |address| self.outbound(address))
    }

    /// Translates the destination of the IPv6 packet at `l3`, on its way in, and the source of a packet
    /// quoted by an error.
    #[must_use]
    pub fn apply_inbound(&self, frame: &mut [u8], l3: usize, error: Option<usize>) -> bool {
        self.apply(frame, [l3 + 24, 8], error, |address| self.inbound(address))
    }

    /// `fields`: where the address is, and from the start of a quoted header the address there.
    fn apply(
        &self,
        frame: &mut [u8],
        fields: [usize; 2],
        error: Option<usize>,
        translate: impl Fn(Ipv6Addr) -> Option<Ipv6Addr>,
    ) -> bool {
        let [at, in_quoted] = fields;
        let Some(new) = be128(frame, at).and_then(|old| translate(old.into())) else { return false };
        put(frame, at, &new.octets());
        let quoted =
            error.map(|icmp| icmp + 8).filter(|&ip| be16(frame, ip).is_some_and(|word| word >> 12 == 6));
        // A quoted address of another prefix stays: that packet was not translated.
        if let Some(at) = quoted.map(|ip| ip + in_quoted)
            && let Some(new) = be128(frame, at).and_then(|old| translate(old.into()))
        {
            put(frame, at, &new.octets());
        }
        true
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

    proptest! {
        #[test]
        fn reversible_injective_and_neutral(
            inside: u128, external: u128, lengths: [u8; 2], address: u128, ones: u16, payload: Vec<u8>, kind in 0..4_u8,
        ) {
            let net = |address: u128, length| Ipv6Net::new(address.into(), length % 65).unwrap().trunc();
            let (a, b) = (net(inside, lengths[0]), net(external, lengths[1]));
            let npt = Nptv6::new(a, b).unwrap();
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
            prop_assert!(b.contains(&out));
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
            let before = packet.clone();
            let icmp_error = (kind == 3).then_some(40);
            prop_assert!(npt.apply_outbound(&mut packet, 0, icmp_error));
            prop_assert!(is_right(&packet));
            prop_assert_eq!(&packet[8..24], &out.octets());
            if kind == 3 {
                prop_assert_eq!(&packet[72..88], &out.octets(), "the quoted destination");
                prop_assert!(is_right(&packet[48..]));
            }
            // Back in, as a packet to the external address would come.
            let (s, d) = packet[8..40].split_at(16);
            let swapped = [&packet[..8], d, s, &packet[40..]].concat();
            let mut reply = swapped.clone();
            prop_assert!(npt.apply_inbound(&mut reply, 0, None));
            prop_assert_eq!(&reply[24..40], &before[8..24]);
            prop_assert!(kind == 3 || is_right(&reply));
        }
    }
}
