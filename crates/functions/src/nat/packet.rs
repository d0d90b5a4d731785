//! The fields of a packet that a NAT reads.
//!
//! Endpoints are in a [`NarrowKey`] as in an untagged IPv4 [`FlowKey`](slipstream_wire::FlowKey). An ICMP
//! query has its identifier as the port of the end that asks, and its type (of the request, in the upper
//! byte) as the port of the other, so that request and reply have keys of opposite directions.

use slipstream_wire::NarrowKey;
use slipstream_wire::protocol::{ICMP, SCTP, TCP, UDP};

use crate::bytes::{be16, be32};

/// A key from its parts.
#[inline]
#[must_use]
pub const fn key_of(protocol: u8, src: u32, src_port: u16, dst: u32, dst_port: u16) -> NarrowKey {
    NarrowKey([
        (src as u64) << 32 | dst as u64,
        (src_port as u64) << 48 | (dst_port as u64) << 32 | (protocol as u64) << 24,
    ])
}

/// The parts of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuple {
    /// IP protocol.
    pub protocol: u8,
    /// Source address.
    pub src: u32,
    /// Source port.
    pub src_port: u16,
    /// Destination address.
    pub dst: u32,
    /// Destination port.
    pub dst_port: u16,
}

impl Tuple {
    /// The parts of `key`.
    #[inline]
    #[must_use]
    pub const fn of(key: NarrowKey) -> Self {
        let NarrowKey([addresses, rest]) = key;
        Self {
            protocol: (rest >> 24) as u8,
            src: (addresses >> 32) as u32,
            src_port: (rest >> 48) as u16,
            dst: addresses as u32,
            dst_port: (rest >> 32) as u16,
        }
    }

    /// The key of these parts.
    #[inline]
    #[must_use]
    pub const fn key(&self) -> NarrowKey {
        key_of(self.protocol, self.src, self.src_port, self.dst, self.dst_port)
    }

    /// The opposite direction.
    #[inline]
    #[must_use]
    pub const fn reversed(&self) -> Self {
        Self {
            protocol: self.protocol,
            src: self.dst,
            src_port: self.dst_port,
            dst: self.src,
            dst_port: self.src_port,
        }
    }
}

/// The kind of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// May begin a session: TCP, UDP, another protocol.
    Opens,
    /// An ICMP request: may begin a session from inside, and belongs to none where it comes from outside. Its
    /// key may be that of a reply, whose identifier can be any number.
    Asks,
    /// An ICMP reply: belongs to a session or to nothing.
    Reply,
    /// An ICMP error: the key of the packet that it quotes.
    Error(NarrowKey),
    /// A fragment other than a datagram's first.
    LaterFragment,
}

/// The fields that a NAT reads of an IPv4 packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Its endpoints; ports are 0 for protocols without, ICMP errors and later fragments.
    pub key: NarrowKey,
    /// Its kind.
    pub kind: Kind,
    /// TCP flags; 0 for other protocols, and where they were not captured.
    pub tcp_flags: u8,
}

/// The reason why a packet can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Not IPv4, or a header length that can't be.
    #[error("no IPv4 header")]
    NotIpv4,
    /// The captured bytes, or the packet itself, end before the endpoints do.
    #[error("the packet ends before the ports")]
    Truncated,
    /// An ICMP error about a later fragment, which has no ports.
    #[error("an ICMP error quotes a later fragment")]
    QuotedFragment,
    /// An ICMP message other than queries and errors.
    #[error("ICMP type {0} is neither query nor error")]
    IcmpType(u8),
}

impl Packet {
    /// Reads the IPv4 packet at `l3` in `frame`.
    ///
    /// # Errors
    /// [`ReadError`] where there are no endpoints to translate.
    #[inline(always)]
    pub fn read(frame: &[u8], l3: usize) -> Result<Self, ReadError> {
        match Self::parse_fast(frame, l3) {
            Some(packet) => Ok(packet),
            None => Self::any(frame, l3),
        }
    }

    /// Parses the most frequent kind of packet: TCP or UDP behind a header without options, whole.
    #[inline(always)]
    pub(super) fn parse_fast(frame: &[u8], l3: usize) -> Option<Self> {
        let ip: &[u8; 34] = frame.get(l3..)?.first_chunk()?;
        let [first, _, l0, l1, _, _, f0, f1, _, protocol, _, _, a, b, c, d, e, f, g, h, ports @ ..] = ip;
        let [p0, p1, p2, p3, _, _, _, _, _, _, _, _, _, flags] = ports;
        let whole = u16::from_be_bytes([*f0, *f1]) & 0x3fff == 0 && spans(u16::from_be_bytes([*l0, *l1]), 34);
        // It is not asked here which of the two it is: that would be a guess.
        if *first != 0x45 || !whole || !((*protocol == TCP) | (*protocol == UDP)) {
            return None;
        }
        let ports = u32::from_be_bytes([*p0, *p1, *p2, *p3]);
        Some(Self {
            key: NarrowKey([
                u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]),
                u64::from(ports) << 32 | u64::from(*protocol) << 24,
            ]),
            kind: Kind::Opens,
            tcp_flags: if *protocol == TCP { *flags } else { 0 },
        })
    }

    #[inline(never)]
    pub(super) fn any(frame: &[u8], l3: usize) -> Result<Self, ReadError> {
        let ip = frame.get(l3..).ok_or(ReadError::Truncated)?;
        let header = Ip::read(ip)?;
        let plain = |kind, src_port, dst_port, tcp_flags| Self {
            key: key_of(header.protocol, header.src, src_port, header.dst, dst_port),
            kind,
            tcp_flags,
        };
        if header.fragment & 0x1fff != 0 {
            return Ok(plain(Kind::LaterFragment, 0, 0, 0));
        }
        let ip = ip.get(..end(ip, header.fragment)).unwrap_or_default();
        match header.protocol {
            TCP | UDP | SCTP => {
                let ports = be32(ip, header.len).ok_or(ReadError::Truncated)?;
                let flags =
                    if header.protocol == TCP { ip.get(header.len + 13).copied().unwrap_or(0) } else { 0 };
                Ok(plain(Kind::Opens, (ports >> 16) as u16, ports as u16, flags))
            }
            ICMP => match Icmp::read(ip, header.len)? {
                Icmp::Query { asker, other, request: true } => Ok(plain(Kind::Asks, asker, other, 0)),
                Icmp::Query { asker, other, request: false } => Ok(plain(Kind::Reply, other, asker, 0)),
                Icmp::Error => {
                    let quoted = ip.get(header.len + 8..).ok_or(ReadError::Truncated)?;
                    Ok(plain(Kind::Error(Self::quoted(quoted)?), 0, 0, 0))
                }
            },
            _ => Ok(plain(Kind::Opens, 0, 0, 0)),
        }
    }

    /// Source and destination of the IPv4 packet at `l3` in `frame`, whatever it carries.
    pub(super) fn addresses(frame: &[u8], l3: usize) -> Option<(u32, u32)> {
        let Ip { src, dst, .. } = Ip::read(frame.get(l3..)?).ok()?;
        Some((src, dst))
    }

    /// Returns true if the whole IPv4 packet at `l3` goes up to `end` or beyond by its own length: what
    /// follows is padding.
    #[inline(always)]
    pub(super) fn reaches(frame: &[u8], l3: usize, end: usize) -> bool {
        spans(be16(frame, l3 + 2).unwrap_or(0), end.wrapping_sub(l3) as u16)
    }

    /// The endpoints of a packet quoted by an ICMP error.
    fn quoted(ip: &[u8]) -> Result<NarrowKey, ReadError> {
        let header = Ip::read(ip)?;
        let (src_port, dst_port) = match header.protocol {
            // A later fragment never causes an error (RFC 1812 §4.3.2.7), so its ports can't be looked for.
            _ if header.fragment & 0x1fff != 0 => return Err(ReadError::QuotedFragment),
            TCP | UDP | SCTP => {
                let ports = be32(ip, header.len).ok_or(ReadError::Truncated)?;
                ((ports >> 16) as u16, ports as u16)
            }
            ICMP => match Icmp::read(ip, header.len)? {
                Icmp::Query { asker, other, request: true } => (asker, other),
                Icmp::Query { asker, other, request: false } => (other, asker),
                // Errors about errors are not sent.
                Icmp::Error => return Err(ReadError::IcmpType(ip.get(header.len).copied().unwrap_or(0))),
            },
            _ => (0, 0),
        };
        Ok(key_of(header.protocol, header.src, src_port, header.dst, dst_port))
    }
}

/// The end of what a translation reads and changes of an IPv4 packet, given the word with its place in a
/// datagram: bytes behind it are padding. A whole packet that was captured before the network card segments
/// it says no length.
pub(super) fn end(ip: &[u8], fragment: u16) -> usize {
    match be16(ip, 2).map_or(0, usize::from) {
        0 if fragment & 0x3fff == 0 => ip.len(),
        length => length.min(ip.len()),
    }
}

/// Returns true if a whole packet of this total length has so many bytes, at least 1: 0 says nothing.
#[inline(always)]
pub(super) const fn spans(length: u16, bytes: u16) -> bool {
    length.wrapping_sub(1) >= bytes - 1
}

/// The fields of an IPv4 header.
pub(super) struct Ip {
    pub(super) len: usize,
    pub(super) protocol: u8,
    pub(super) fragment: u16,
    src: u32,
    dst: u32,
}

impl Ip {
    #[inline]
    pub(super) fn read(ip: &[u8]) -> Result<Self, ReadError> {
        let header: &[u8; 20] = ip.first_chunk().ok_or(ReadError::Truncated)?;
        let [vihl, _, _, _, _, _, f0, f1, _, protocol, _, _, s0, s1, s2, s3, d0, d1, d2, d3] = *header;
        let len = usize::from(vihl & 15) * 4;
        if vihl >> 4 != 4 || len < 20 {
            return Err(ReadError::NotIpv4);
        }
        Ok(Self {
            len,
            protocol,
            fragment: u16::from_be_bytes([f0, f1]),
            src: u32::from_be_bytes([s0, s1, s2, s3]),
            dst: u32::from_be_bytes([d0, d1, d2, d3]),
        })
    }
}

/// ICMP messages by what a NAT does with them.
pub(super) enum Icmp {
    /// Identifier and marker, as ports of the end that asks and of the other.
    Query {
        asker: u16,
        other: u16,
        request: bool,
    },
    Error,
}

impl Icmp {
    pub(super) fn read(ip: &[u8], at: usize) -> Result<Self, ReadError> {
        let kind = *ip.get(at).ok_or(ReadError::Truncated)?;
        let (request, other) = match kind {
            8 => (true, 8),
            0 => (false, 8),
            13 => (true, 13),
            14 => (false, 13),
            // A redirect is of the link on which it was sent (RFC 1812 §4.3.3.2), and names a gateway there:
            // nobody on the other side may tell a host its ways.
            3 | 4 | 11 | 12 => return Ok(Self::Error),
            _ => return Err(ReadError::IcmpType(kind)),
        };
        let asker = be16(ip, at + 4).ok_or(ReadError::Truncated)?;
        Ok(Self::Query { asker, other: other << 8, request })
    }
}
