//! Checksums in classified frames: IPv4 header; TCP, UDP and ICMPv6 with their pseudo-header (RFC 9293 §3.1,
//! RFC 768, RFC 8200 §8.1); ICMP; SCTP's CRC32c.

use core::ops::Range;

use super::{checksum, combine, sum};
use crate::bytes::{be16, between, byte, put};
use crate::protocol::{
    ICMP, ICMP_CHECKSUM, ICMPV6, ROUTING, SCTP, SCTP_CHECKSUM, TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM,
};
use crate::view::{Ipv6, Sctp};
use crate::{Flags, Headers, ip_end};

/// The result of verifying a checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It is right.
    Right,
    /// It is wrong; also before a network card that was to fill it in has done so.
    Wrong,
    /// There is none: IPv6 has no header checksum; UDP's is 0. (Over IPv6 only tunnels may do that, RFC
    /// 6935.)
    Absent,
    /// It can't be told: a fragment, not wholly captured, a length that can't be, an IPv6 packet on its way
    /// through a routing header (its last destination is elsewhere), another protocol.
    Unknown,
}

/// Verifies the IPv4 header checksum.
#[must_use]
pub fn verify_ip(frame: &[u8], headers: &Headers) -> Verdict {
    if headers.flags.has(Flags::IPV6) {
        return Verdict::Absent;
    }
    match frame.get(usize::from(headers.l3)..usize::from(headers.l4)) {
        None | Some([]) => Verdict::Unknown,
        Some(header) if sum(header) == 0xffff => Verdict::Right,
        Some(_) => Verdict::Wrong,
    }
}

/// Writes the right IPv4 header checksum; false if the header has none or is not wholly there.
pub fn fill_ip(frame: &mut [u8], headers: &Headers) -> bool {
    let range = usize::from(headers.l3)..usize::from(headers.l4);
    match frame.get_mut(range) {
        Some(header) if header.len() >= 20 && !headers.flags.has(Flags::IPV6) => {
            put(header, 10, &[0; 2]);
            let value = checksum(header);
            put(header, 10, &value.to_be_bytes());
            true
        }
        _ => false,
    }
}

/// Verifies the checksum of TCP, UDP, ICMP, ICMPv6 or SCTP.
#[must_use]
pub fn verify_transport(frame: &[u8], headers: &Headers) -> Verdict {
    let Some(Transport { covered, field, pseudo }) = transport(frame, headers) else {
        return Verdict::Unknown;
    };
    let bytes = between(frame, covered.start, covered.end);
    let right = match headers.key.protocol() {
        SCTP => Sctp::new_unchecked(bytes).verify_checksum(),
        UDP if be16(bytes, field) == 0 => return Verdict::Absent,
        _ => combine(pseudo, sum(bytes)) == 0xffff,
    };
    if right { Verdict::Right } else { Verdict::Wrong }
}

/// Writes the right checksum of TCP, UDP, ICMP, ICMPv6 or SCTP; false, and nothing written, if it can't be
/// told (see [`Verdict::Unknown`]). UDP gets one even if it had none.
pub fn fill_transport(frame: &mut [u8], headers: &Headers) -> bool {
    let Some(Transport { covered, field, pseudo }) = transport(frame, headers) else {
        return false;
    };
    let Some(bytes) = frame.get_mut(covered) else {
        return false;
    };
    let protocol = headers.key.protocol();
    if protocol == SCTP {
        Sctp::new_unchecked(bytes).fill_checksum();
        return true;
    }
    put(bytes, field, &[0; 2]);
    let value = match !combine(pseudo, sum(bytes)) {
        0 if protocol == UDP => 0xffff,
        value => value,
    };
    put(bytes, field, &value.to_be_bytes());
    true
}

/// The bytes that a transport checksum covers.
struct Transport {
    /// Header and payload, wholly captured, in bytes from the start of the frame.
    covered: Range<usize>,
    /// Offset of the checksum from the start of the transport header.
    field: usize,
    /// Sum of the pseudo-header; 0 for protocols without.
    pseudo: u16,
}

fn transport(frame: &[u8], headers: &Headers) -> Option<Transport> {
    let (start, mut end) = (usize::from(headers.l4), ip_end(frame, headers));
    if headers.flags.has(Flags::FRAGMENT) || headers.l4 == u16::MAX || on_its_way(frame, headers) {
        return None;
    }
    let protocol = headers.key.protocol();
    let (field, header, with_pseudo) = match (protocol, headers.flags.has(Flags::IPV6)) {
        (TCP, _) => (TCP_CHECKSUM, 20, true),
        (UDP, _) => (UDP_CHECKSUM, 8, true),
        (ICMPV6, true) => (ICMP_CHECKSUM, 4, true),
        (ICMP, false) => (ICMP_CHECKSUM, 4, false),
        (SCTP, _) => (SCTP_CHECKSUM, 12, false),
        _ => return None,
    };
    if protocol == UDP {
        let length = usize::from(be16(frame, start + 4));
        if start + length > end {
            return None;
        }
        end = start + length;
    }
    if end < start + header || end > frame.len() {
        return None;
    }
    let pseudo = if with_pseudo { pseudo_header(frame, headers, end - start) } else { 0 };
    Some(Transport { covered: start..end, field, pseudo })
}

/// Sum of addresses, protocol and length.
fn pseudo_header(frame: &[u8], headers: &Headers, length: usize) -> u16 {
    let l3 = usize::from(headers.l3);
    let addresses = if headers.flags.has(Flags::IPV6) {
        between(frame, l3 + 8, l3 + 40)
    } else {
        between(frame, l3 + 12, l3 + 20)
    };
    // An IP length is 16 bits, so the upper half of IPv6's 32-bit length is 0.
    combine(sum(addresses), combine(length as u16, u16::from(headers.key.protocol())))
}

/// Says that, by an IPv6 routing header, the destination address is not yet the last one.
fn on_its_way(frame: &[u8], headers: &Headers) -> bool {
    headers.flags.has(Flags::IPV6)
        && Ipv6::new_unchecked(crate::bytes::from(frame, usize::from(headers.l3)))
            .extensions()
            .any(|extension| extension.protocol == ROUTING && byte(extension.bytes, 3) != 0)
}
