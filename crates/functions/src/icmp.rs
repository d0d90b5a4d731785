//! Answers to packets that go no further: ICMP and ICMPv6 errors (RFC 792, RFC 1812 §4.3.2, RFC 4443) and TCP
//! resets (RFC 9293 §3.10.7.1).
//!
//! Packets are IP packets without a link-layer header. Who sends answers should limit them ([`RateLimiter`],
//! RFC 1812 §4.3.2.8, RFC 4443 §2.4 f).
//!
//! [`RateLimiter`]: super::RateLimiter

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::protocol::{ICMP, ICMPV6, TCP, is_extension};
use slipstream_wire::{Flags, Headers, LinkType, classify, tcp_segment};

use super::bytes::be16;
use super::martian::is_martian_source;
use super::tcp_state::{ACK, FIN, RST, SYN};

/// The largest ICMP error that is sent: what every IPv4 host takes (RFC 1812 §4.3.2.3).
pub const MAX_ICMP: usize = 576;
/// The largest ICMPv6 error that is sent: the least MTU (RFC 4443 §2.4 c).
pub const MAX_ICMPV6: usize = 1280;

/// The message to the sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Message {
    /// The time to live, or the hop limit, ran out.
    TimeExceeded,
    /// No route.
    NetUnreachable,
    /// A route, but the next hop or host does not answer.
    HostUnreachable,
    /// Nobody listens at the port.
    PortUnreachable,
    /// A rule forbids it.
    AdminProhibited,
    /// Its source is no address that may leave here (RFC 4443 §3.1, code 5).
    SourcePolicy,
    /// It is too long for the next link and must not be fragmented.
    TooBig {
        /// Longest IP packet that the next link takes, in bytes.
        mtu: u32,
    },
    /// A field of a header has a value that makes no sense, or that is not understood.
    ParameterProblem {
        /// The offset of the field from the start of the packet, in bytes.
        pointer: u32,
    },
    /// An option is unknown, and its type asks for this error (RFC 8200 §4.2).
    UnknownOption {
        /// The offset of the option's type from the start of the packet, in bytes.
        pointer: u32,
    },
}

impl Message {
    /// Type, code and the last four bytes of the ICMP header.
    fn v4(self) -> ([u8; 2], u32) {
        match self {
            Self::TimeExceeded => ([11, 0], 0),
            Self::NetUnreachable => ([3, 0], 0),
            Self::HostUnreachable => ([3, 1], 0),
            Self::PortUnreachable => ([3, 3], 0),
            Self::AdminProhibited | Self::SourcePolicy => ([3, 13], 0),
            // RFC 1191 §4: the MTU is in the lower 16 bits.
            Self::TooBig { mtu } => ([3, 4], mtu.min(0xffff)),
            // The pointer is in the uppermost 8 bits; a header of IPv4 is shorter.
            Self::ParameterProblem { pointer } | Self::UnknownOption { pointer } => ([12, 0], pointer << 24),
        }
    }

    fn v6(self) -> ([u8; 2], u32) {
        match self {
            Self::TimeExceeded => ([3, 0], 0),
            Self::NetUnreachable => ([1, 0], 0),
            Self::AdminProhibited => ([1, 1], 0),
            Self::HostUnreachable => ([1, 3], 0),
            Self::PortUnreachable => ([1, 4], 0),
            Self::SourcePolicy => ([1, 5], 0),
            Self::TooBig { mtu } => ([2, 0], mtu),
            Self::ParameterProblem { pointer } => ([4, 0], pointer),
            Self::UnknownOption { pointer } => ([4, 2], pointer),
        }
    }
}

/// The reason why a packet gets no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Silent {
    /// It is an ICMP error itself, or a redirect.
    #[error("no error about an ICMP error")]
    Error,
    /// A fragment other than the first of its datagram; of IPv6 only where the error is not about its way, or
    /// it may be a part of an ICMPv6 error.
    #[error("no answer to a later fragment")]
    Fragment,
    /// It was sent to many: multicast or broadcast, by IP or by link layer.
    #[error("no answer to what was sent to many")]
    Destination,
    /// Its source is no single host: unspecified, loopback, multicast, broadcast, reserved, IPv4-mapped.
    #[error("no answer to a source that is no host")]
    Source,
    /// It can't be read, or not enough of it was captured.
    #[error("the packet can't be read")]
    Unreadable,
    /// The answer would have another IP version than the address that it is to come from.
    #[error("the address to answer from is of another IP version")]
    Version,
    /// A TCP reset, which is never answered by one; or no TCP.
    #[error("no reset for a reset, or for what is not TCP")]
    Reset,
}

/// The destination of a packet at the link layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// It was sent to us.
    #[default]
    Unicast,
    /// It was sent to many.
    Group,
}

/// The error that the sender of `packet` gets, into `out` (cleared first; up to [`MAX_ICMPV6`] bytes). It
/// comes from `source` and quotes as much of the packet as it may.
///
/// # Errors
/// [`Silent`], and `out` empty, where no error may be sent.
pub fn answer(
    message: Message,
    packet: &[u8],
    link: Link,
    source: IpAddr,
    out: &mut Vec<u8>,
) -> Result<(), Silent> {
    out.clear();
    let headers = classify(LinkType::RawIp, packet).map_err(|_| Silent::Unreadable)?;
    may_answer(packet, &headers, link, Some(message))?;
    let quoted = packet.get(..ip_length(packet, &headers).min(packet.len())).ok_or(Silent::Unreadable)?;
    match (source, headers.key.src()) {
        (IpAddr::V4(source), IpAddr::V4(to)) => {
            let quoted = quoted.get(..MAX_ICMP - 28).unwrap_or(quoted);
            let (kind, rest) = message.v4();
            ipv4_header(out, ICMP, source, to, 8 + quoted.len());
            icmp_message(out, kind, rest, quoted);
        }
        (IpAddr::V6(source), IpAddr::V6(to)) => {
            let quoted = quoted.get(..MAX_ICMPV6 - 48).unwrap_or(quoted);
            let (kind, rest) = message.v6();
            ipv6_header(out, ICMPV6, source, to, 8 + quoted.len());
            icmp_message(out, kind, rest, quoted);
        }
        _ => return Err(Silent::Version),
    }
    fill(out);
    Ok(())
}

/// The reset that the sender of a TCP segment gets from the one that it was for, into `out` (cleared first).
/// It has `elsewhere` bytes more than its headers tell of, where it was sliced: see
/// [`Lengths::elsewhere`](slipstream_core::pool::Lengths::elsewhere).
///
/// # Errors
/// [`Silent`], and `out` empty, where none may be sent.
pub fn reset(packet: &[u8], elsewhere: i64, link: Link, out: &mut Vec<u8>) -> Result<(), Silent> {
    out.clear();
    let headers = classify(LinkType::RawIp, packet).map_err(|_| Silent::Unreadable)?;
    if headers.key.protocol() != TCP {
        return Err(Silent::Reset);
    }
    may_answer(packet, &headers, link, None)?;
    let segment = tcp_segment(packet, &headers).ok_or(Silent::Unreadable)?;
    if headers.tcp_flags & RST != 0 {
        return Err(Silent::Reset);
    }
    match (headers.key.src(), headers.key.dst()) {
        (IpAddr::V4(to), IpAddr::V4(from)) => ipv4_header(out, TCP, from, to, 20),
        (IpAddr::V6(to), IpAddr::V6(from)) => ipv6_header(out, TCP, from, to, 20),
        _ => return Err(Silent::Version),
    }
    let (seq, ack, flags) = if headers.tcp_flags & ACK != 0 {
        (segment.ack, 0, RST)
    } else {
        let controls = u32::from(headers.tcp_flags & SYN != 0) + u32::from(headers.tcp_flags & FIN != 0);
        let payload = segment.payload_len.wrapping_add(elsewhere as u32);
        (0, segment.seq.wrapping_add(payload).wrapping_add(controls), RST | ACK)
    };
    out.extend(headers.key.dst_port().to_be_bytes());
    out.extend(headers.key.src_port().to_be_bytes());
    out.extend(seq.to_be_bytes());
    out.extend(ack.to_be_bytes());
    out.extend([0x50, flags, 0, 0, 0, 0, 0, 0]);
    fill(out);
    Ok(())
}

/// RFC 1812 §4.3.2.7 and RFC 4443 §2.4 e.
fn may_answer(packet: &[u8], headers: &Headers, link: Link, message: Option<Message>) -> Result<(), Silent> {
    let v6 = headers.flags.has(Flags::IPV6);
    let (src, dst) = (headers.key.src(), headers.key.dst());
    let later = headers.flags.has(Flags::FRAGMENT) && !is_first_fragment(packet, headers);
    // Only IPv4 has no error about a later fragment. But there may be an ICMPv6 error in it, and what is no
    // matter of the way is said about the first one.
    let of_the_way = matches!(
        message,
        Some(
            Message::TimeExceeded
                | Message::TooBig { .. }
                | Message::NetUnreachable
                | Message::HostUnreachable
        )
    );
    if later && !(v6 && of_the_way && headers.key.protocol() != ICMPV6) {
        return Err(Silent::Fragment);
    }
    // A fragment may have an error behind further extension headers, which nobody has read.
    if headers.flags.has(Flags::FRAGMENT) && v6 && may_lead_on(headers.key.protocol()) {
        return Err(Silent::Fragment);
    }
    let too_big = matches!(message, Some(Message::TooBig { .. }));
    let kind = packet.get(usize::from(headers.l4)).copied();
    match (headers.key.protocol(), v6, kind) {
        (ICMP, false, Some(3 | 4 | 5 | 11 | 12)) | (ICMPV6, true, Some(0..=127 | 137)) => {
            return Err(Silent::Error);
        }
        (ICMP, false, None) | (ICMPV6, true, None) => return Err(Silent::Unreadable),
        _ => {}
    }
    // Path MTU discovery of multicast needs "too big".
    let many = link == Link::Group || dst.is_multicast() || matches!(dst, IpAddr::V4(a) if a.is_broadcast());
    if many && !(v6 && too_big) {
        return Err(Silent::Destination);
    }
    if is_martian_source(src) { Err(Silent::Source) } else { Ok(()) }
}

/// Returns true if a header of IPv6 that has this number may be followed by another one (RFC 7045 §2.2),
/// whether classification walks it or not.
fn may_lead_on(number: u8) -> bool {
    is_extension(number) || matches!(number, 139 | 140 | 253 | 254)
}

/// Returns true if a fragment is the first of its datagram.
pub(super) fn is_first_fragment(packet: &[u8], headers: &Headers) -> bool {
    if headers.flags.has(Flags::IPV6) {
        let ip = slipstream_wire::view::Ipv6::new_unchecked(packet);
        let fragment = ip.extensions().find(|extension| extension.is_fragment());
        fragment.and_then(|extension| be16(extension.bytes, 2)).is_some_and(|word| word >> 3 == 0)
    } else {
        be16(packet, 6).is_some_and(|word| word & 0x1fff == 0)
    }
}

/// Bytes of the IP packet, without padding behind it.
fn ip_length(packet: &[u8], headers: &Headers) -> usize {
    let field = |at| be16(packet, at).map(usize::from).filter(|length| *length > 0);
    if headers.flags.has(Flags::IPV6) { field(4).map(|n| n + 40) } else { field(2) }.unwrap_or(packet.len())
}

fn ipv4_header(out: &mut Vec<u8>, protocol: u8, src: Ipv4Addr, dst: Ipv4Addr, payload: usize) {
    // Precedence 6, internetwork control (RFC 1812 §4.3.2.5), for errors; never fragmented, so no
    // identification.
    let tos = if protocol == ICMP { 0xc0 } else { 0 };
    out.extend([0x45, tos]);
    out.extend(((20 + payload) as u16).to_be_bytes());
    out.extend([0, 0, 0x40, 0, 64, protocol, 0, 0]);
    out.extend(src.octets());
    out.extend(dst.octets());
}

fn ipv6_header(out: &mut Vec<u8>, next: u8, src: Ipv6Addr, dst: Ipv6Addr, payload: usize) {
    out.extend([0x60, 0, 0, 0]);
    out.extend((payload as u16).to_be_bytes());
    out.extend([next, 64]);
    out.extend(src.octets());
    out.extend(dst.octets());
}

fn icmp_message(out: &mut Vec<u8>, kind: [u8; 2], rest: u32, quoted: &[u8]) {
    out.extend(kind);
    out.extend([0, 0]);
    out.extend(rest.to_be_bytes());
    out.extend(quoted);
}

fn fill(out: &mut [u8]) {
    if let Ok(headers) = classify(LinkType::RawIp, out) {
        fill_ip(out, &headers);

        fill_transport(out, &headers);
    }
}

#[cfg(test)]
#[path = "icmp_tests.rs"]
mod tests;
