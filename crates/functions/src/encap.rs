//! IP in IP: the header that takes a packet to a backend as it is, so that the backend answers the client
//! directly (direct server return). IPv4 outside: RFC 2003; IPv6 outside: RFC 2473; ECN: RFC 6040.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::checksum::checksum;
use slipstream_wire::protocol::{IPV4, IPV6};

use super::bytes::be16;
use super::fragment::{self, Fragment};
use slipstream_core::pool::Lengths;

/// The reason why a packet can't be encapsulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EncapError {
    /// With the outer header it is longer than the link takes (or than any IPv4 packet), and may not be
    /// fragmented: the sender gets "fragmentation needed" or "packet too big".
    #[error("the packet is too long for the tunnel, which takes {mtu} bytes")]
    TooBig {
        /// Longest inner packet that the tunnel takes, in bytes.
        mtu: u16,
    },
    /// Neither IPv4 nor IPv6, its header was not captured, or it tells of another length than it can have.
    #[error("no IP packet")]
    NotIp,
    /// Its time to live, or hop limit, is 0 (RFC 2003 §3.1, RFC 2473 §3.1).
    #[error("the packet's time to live is over")]
    Expired,
}

/// An outer header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outer {
    bytes: [u8; 40],
    len: u8,
    /// True if the whole is longer than the link takes: it is to be fragmented.
    pub oversize: bool,
}

impl Outer {
    /// The bytes to prepend: 20 or 40.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

/// A tunnel's ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// IPv4 outside.
    V4 {
        /// Source address of outer packets.
        src: Ipv4Addr,
        /// The backend.
        dst: Ipv4Addr,
        /// Longest IP packet that the link takes, in bytes; at least 68.
        mtu: u16,
        /// Time to live of the outer header.
        ttl: u8,
    },
    /// IPv6 outside.
    V6 {
        /// Source address of outer packets.
        src: Ipv6Addr,
        /// The backend.
        dst: Ipv6Addr,
        /// Longest IP packet that the link takes, in bytes; at least 1280.
        mtu: u16,
        /// Hop limit of the outer header.
        hop_limit: u8,
    },
}

/// Longest IPv6 packet that every link takes, in bytes.
const LEAST_IPV6: u16 = 1280;

/// The fields of an inner packet that its encapsulation depends on.
struct Inner {
    length: u16,
    protocol: u8,
    tos: u8,
    /// It must not be fragmented.
    whole: bool,
}

impl Inner {
    /// Of a packet that has at most so many bytes here. One whose header says nothing, as offloads leave it,
    /// has them all.
    fn read(packet: &[u8], here: u32) -> Result<Self, EncapError> {
        let field = |at| be16(packet, at).ok_or(EncapError::NotIp);
        let first = field(0)?;
        let (said, least, life, inner) = match first >> 12 {
            4 => {
                let whole = field(6)? & 0x4000 != 0;
                let inner = Self { length: 0, protocol: IPV4, tos: first as u8, whole };
                (u32::from(field(2)?), u32::from(first >> 8 & 15) * 4, field(8)? >> 8, inner)
            }
            6 => {
                let inner = Self { length: 0, protocol: IPV6, tos: (first >> 4) as u8, whole: true };
                let payload = Some(u32::from(field(4)?)).filter(|payload| *payload > 0);
                (payload.map_or(0, |payload| payload + 40), 40, field(6)? & 0xff, inner)
            }
            _ => return Err(EncapError::NotIp),
        };
        if life == 0 {
            return Err(EncapError::Expired);
        }
        let length = if said == 0 { here } else { said };
        let length = u16::try_from(length).ok().filter(|length| (least..=here).contains(&u32::from(*length)));
        Ok(Self { length: length.ok_or(EncapError::NotIp)?, ..inner })
    }

    /// Returns true if the outer packet may be fragmented where it is too long. IPv4 says so itself (RFC 2003
    /// §3.1, RFC 2473 §7.2); IPv6 packets that any link takes have to come through (RFC 2473 §7.1, RFC 4213
    /// §3.2.2).
    fn may_be_cut(&self, elsewhere: i64) -> bool {
        if self.protocol == IPV6 {
            i64::from(self.length) + elsewhere <= i64::from(LEAST_IPV6)
        } else {
            !self.whole
        }
    }

    /// The error for a tunnel that takes packets of so many bytes at once.
    fn too_big(&self, room: u16) -> EncapError {
        EncapError::TooBig { mtu: if self.protocol == IPV6 { room.max(LEAST_IPV6) } else { room } }
    }
}

impl Tunnel {
    /// A tunnel from one address to another of the same IP version; `None` if they are not.
    #[must_use]
    pub fn new(src: IpAddr, dst: IpAddr, mtu: u16) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src, dst, mtu: mtu.max(68), ttl: 64 }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => {
                Some(Self::V6 { src, dst, mtu: mtu.max(LEAST_IPV6), hop_limit: 64 })
            }
            _ => None,
        }
    }

    /// The header to put before `packet`, a whole IP packet. `ident` is its IPv4 identification where it
    /// may be fragmented, the lower half of it: a counter does (RFC 6864 §4.1: what may not be needs
    /// none).
    ///
    /// # Errors
    /// [`EncapError`] for a packet that does not fit, or is not IP.
    pub fn header(&self, packet: &[u8], ident: u32) -> Result<Outer, EncapError> {
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        self.header_of(packet, Lengths { wire: len, here: len, elsewhere: 0 }, ident)
    }

    /// The same for a packet of these lengths from its IP header on.
    pub(crate) fn header_of(&self, packet: &[u8], lengths: Lengths, ident: u32) -> Result<Outer, EncapError> {
        let (inner, elsewhere) = (Inner::read(packet, lengths.here)?, lengths.elsewhere);
        let is_oversize = |mtu: u16, outer: i64| i64::from(inner.length) + elsewhere + outer > i64::from(mtu);
        match *self {
            Self::V4 { src, dst, mtu, ttl } => {
                let total = u32::from(inner.length) + 20;
                let oversize = is_oversize(mtu, 20);
                if (oversize && !inner.may_be_cut(elsewhere)) || total > 0xffff {
                    return Err(inner.too_big(mtu.saturating_sub(20)));
                }
                // RFC 2003 §3.1: an inner don't-fragment is the outer's too.
                let ident = (oversize || !inner.whole).then_some(ident as u16);
                Ok(Outer { bytes: ipv4(&inner, total as u16, ident, ttl, src, dst), len: 20, oversize })
            }
            Self::V6 { src, dst, mtu, hop_limit } => {
                let oversize = is_oversize(mtu, 40);
                if oversize && !inner.may_be_cut(elsewhere) {
                    return Err(inner.too_big(mtu.saturating_sub(40)));
                }
                Ok(Outer { bytes: ipv6(&inner, hop_limit, src, dst), len: 40, oversize })
            }
        }
    }

    /// The fragments of `packet`, which begins with an outer header that is [oversize](Outer::oversize). With
    /// IPv6 outside `ident` is their identification. `None` if the header says more than the `on_wire` bytes
    /// that there were.
    pub(crate) fn fragments(&self, packet: &[u8], on_wire: u32, ident: u32) -> Option<Vec<Fragment>> {
        let (total, mtu) = match *self {
            Self::V4 { mtu, .. } => (u32::from(be16(packet, 2)?), mtu),
            Self::V6 { mtu, .. } => (u32::from(be16(packet, 4)?) + 40, mtu),
        };
        match self {
            _ if total > on_wire => None,
            Self::V4 { .. } => fragment::of_ipv4(packet, mtu.into(), 0),
            Self::V6 { .. } => fragment::of_ipv6(packet, mtu.into(), ident),
        }
    }
}

/// Without an identification the packet must not be fragmented.
fn ipv4(inner: &Inner, total: u16, ident: Option<u16>, ttl: u8, src: Ipv4Addr, dst: Ipv4Addr) -> [u8; 40] {
    let [l0, l1] = total.to_be_bytes();
    let [i0, i1] = ident.unwrap_or(0).to_be_bytes();
    let fragment = if ident.is_none() { 0x40 } else { 0 };
    let start = [0x45, inner.tos, l0, l1, i0, i1, fragment, 0, ttl, inner.protocol, 0, 0];
    let mut header = [0; 40];
    let fields = start.into_iter().chain(src.octets()).chain(dst.octets());
    header.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    let sum = checksum(header.get(..20).unwrap_or_default()).to_be_bytes();
    super::bytes::put(&mut header, 10, &sum);
    header
}

fn ipv6(inner: &Inner, hop_limit: u8, src: Ipv6Addr, dst: Ipv6Addr) -> [u8; 40] {
    let [l0, l1] = inner.length.to_be_bytes();
    let start = [0x60 | inner.tos >> 4, inner.tos << 4, 0, 0, l0, l1, inner.protocol, hop_limit];
    let mut header = [0; 40];
    let fields = start.into_iter().chain(src.octets()).chain(dst.octets());
    header.iter_mut().zip(fields).for_each(|(byte, field)| *byte = field);
    header
}

#[cfg(test)]
mod tests {
    use slipstream_wire::{Encapsulation, LinkType, classify, classify_with};

    use super::*;
    use crate::test_packets::{ipv4 as packet4, ipv4_fragment, ipv6 as packet6, is_right, tcp, udp};

    fn six(n: u16) -> Ipv6Addr {
        Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
    }

    /// A receiver decapsulates the packet that was encapsulated, for all four combinations.
    #[test]
    fn in_and_out() {
        let four = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 1500).unwrap();
        let outer6 = Tunnel::new(six(1).into(), six(2).into(), 1500).unwrap();
        assert_eq!(Tunnel::new([192, 0, 2, 1].into(), six(2).into(), 1500), None);
        let mut marked = packet6(6, six(7), six(8), &tcp(1, 2, 2, b"x"));
        (marked[0], marked[1]) = (0x6b, 0x90);
        for tunnel in [four, outer6] {
            for inner in [
                packet4(17, 1, 2, &udp(3, 4, b"data")),
                ipv4_fragment(6, 1, 2, 0x4000, &[], &tcp(1, 2, 2, b"")),
                marked.clone(),
            ] {
                let header = tunnel.header(&inner, 77).unwrap();
                let whole = [header.bytes(), &inner].concat();
                assert!(is_right(&whole) && !header.oversize);
                let outside = classify(LinkType::RawIp, &whole).unwrap();
                let inside = classify_with(LinkType::RawIp, &whole, Encapsulation::Inner).unwrap();
                let alone = classify(LinkType::RawIp, &inner).unwrap();
                assert_eq!(inside.key, alone.key);
                assert_eq!(outside.tos, alone.tos);
                etherparse::SlicedPacket::from_ip(&whole).unwrap();
                if whole[0] >> 4 == 4 {
                    assert_eq!(whole[2..4], (whole.len() as u16).to_be_bytes());
                    let whole_inner = inner[0] >> 4 == 6 || inner[6] & 0x40 != 0;
                    assert_eq!((whole[4..6] == [0, 0], whole[6] == 0x40), (whole_inner, whole_inner));
                }
            }
        }
    }

    /// IPv6 packets of 1280 bytes come through every tunnel; senders of longer ones are told no less.
    #[test]
    fn ipv6_packets_that_any_link_takes() {
        let of = |size: usize| packet6(17, six(7), six(8), &udp(3, 4, &vec![0; size - 48]));
        let four = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 576).unwrap();
        let outer6 = Tunnel::new(six(1).into(), six(2).into(), 1280).unwrap();
        for (tunnel, fits) in [(four, 556), (outer6, 1240)] {
            assert!(tunnel.header(&of(fits), 5).is_ok_and(|h| !h.oversize));
            for size in [fits + 1, 1280] {
                let outer = tunnel.header(&of(size), 5).unwrap();
                assert!(
                    outer.oversize && (outer.bytes()[0] >> 4 == 6 || outer.bytes()[4..8] == [0, 5, 0, 0])
                );
            }
            assert_eq!(tunnel.header(&of(1281), 5), Err(EncapError::TooBig { mtu: 1280 }));
        }
    }

    /// A receiver puts the fragments together to the packet that was encapsulated.
    #[test]
    fn fragments_of_what_is_too_long() {
        let four = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 1500).unwrap();
        let outer6 = Tunnel::new(six(1).into(), six(2).into(), 1500).unwrap();
        for size in [1481, 1500, 2952, 9000, 65_515] {
            let data: Vec<u8> = (0..size - 28).map(|n| (n % 251) as u8).collect();
            let inner = ipv4_fragment(17, 1, 2, 0x2000, &[], &udp(3, 4, &data));
            for (tunnel, header, id) in [(four, 20, [4, 210].to_vec()), (outer6, 48, [0, 9, 4, 210].to_vec())]
            {
                let ident = 9 << 16 | 1234;
                let outer = tunnel.header(&inner, ident).unwrap();
                let whole = [outer.bytes(), &inner].concat();
                assert_eq!(tunnel.fragments(&whole, whole.len() as u32 - 1, ident), None);
                let parts = tunnel.fragments(&whole, whole.len() as u32, ident).unwrap();
                let mut joined: Vec<u8> = Vec::new();
                for (n, (bytes, on_wire)) in parts.iter().enumerate() {
                    assert!(is_right(bytes) && bytes.len() <= 1500 && *on_wire as usize == bytes.len());
                    etherparse::SlicedPacket::from_ip(bytes).unwrap();
                    let more = n + 1 < parts.len();
                    let (at, next) = if header == 20 {
                        let word = be16(bytes, 6).unwrap();
                        assert_eq!((&bytes[4..6], bytes[8], word >> 13), (&id[..], 64, u16::from(more)));
                        (word << 3, bytes[9])
                    } else {
                        let word = be16(bytes, 42).unwrap();
                        assert_eq!((bytes[6], &bytes[44..48], word & 7), (44, &id[..], u16::from(more)));
                        assert_eq!(usize::from(be16(bytes, 4).unwrap()) + 40, bytes.len());
                        (word & !7, bytes[40])
                    };
                    assert_eq!((usize::from(at), next), (joined.len(), 4));
                    joined.extend(&bytes[header..]);
                }
                assert_eq!(joined, inner);
                // Of a packet that was not captured whole there is as much as was captured.
                let short = tunnel.fragments(&whole[..1000], whole.len() as u32, ident).unwrap();
                let lengths = |parts: &[Fragment]| parts.iter().map(|part| part.1).collect::<Vec<_>>();
                assert_eq!(lengths(&short), lengths(&parts));
                let captured: usize = short.iter().map(|(bytes, _)| bytes.len() - header).sum();
                assert_eq!(captured, 1000 - outer.bytes().len());
            }
        }
    }

    #[test]
    fn what_does_not_fit() {
        let tunnel = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 1500).unwrap();
        let of = |size: usize, df| ipv4_fragment(17, 1, 2, df, &[], &udp(3, 4, &vec![0; size - 28]));
        assert!(tunnel.header(&of(1480, 0x4000), 0).is_ok_and(|h| !h.oversize));
        assert_eq!(tunnel.header(&of(1481, 0x4000), 0), Err(EncapError::TooBig { mtu: 1480 }));
        assert!(tunnel.header(&of(1481, 0), 5).is_ok_and(|h| h.oversize));
        assert_eq!(tunnel.header(&of(65_520, 0), 5), Err(EncapError::TooBig { mtu: 1480 }));
        let tunnel = Tunnel::new(six(1).into(), six(2).into(), 1500).unwrap();
        assert!(tunnel.header(&of(1460, 0x4000), 0).is_ok_and(|h| !h.oversize));
        assert_eq!(tunnel.header(&of(1461, 0x4000), 0), Err(EncapError::TooBig { mtu: 1460 }));
        assert!(tunnel.header(&of(1461, 0), 0).is_ok_and(|h| h.oversize));
        assert!(tunnel.header(&of(1461, 0x2000), 0).is_ok_and(|h| h.oversize));
        for bad in [&[][..], &[0x45], &[0x45, 0, 0, 28], &[0x50; 40]] {
            assert_eq!(tunnel.header(bad, 0), Err(EncapError::NotIp));
        }
    }

    /// A header that says nothing of the length stands for all that is there; one that says what can't be,
    /// or whose time is over, is not sent on.
    #[test]
    fn lengths_and_times_that_cannot_be() {
        let tunnel = Tunnel::new([192, 0, 2, 1].into(), [192, 0, 2, 2].into(), 1500).unwrap();
        let four = packet4(17, 1, 2, &udp(3, 4, b"abcdef"));
        let six = packet6(17, six(7), six(8), &udp(3, 4, b"abcdef"));
        let len = |packet: &[u8]| tunnel.header(packet, 0).map(|outer| be16(outer.bytes(), 2).unwrap());
        for (packet, at, life, header) in [(&four, 2, 8, 0), (&six, 4, 7, 40)] {
            let with = |at: usize, value: &[u8]| {
                let mut other = packet.clone();
                other[at..at + value.len()].copy_from_slice(value);
                len(&other)
            };
            let all = packet.len() as u16;
            assert_eq!(with(at, &[0, 0]), Ok(all + 20));
            assert_eq!(with(at, &(all - 1 - header).to_be_bytes()), Ok(all + 19));
            assert_eq!(with(at, &(all + 1 - header).to_be_bytes()), Err(EncapError::NotIp));
            assert_eq!(with(life, &[0]), Err(EncapError::Expired));
        }
        let mut short = four;
        short[2..4].copy_from_slice(&19u16.to_be_bytes());
        assert_eq!(len(&short), Err(EncapError::NotIp));
    }
}
