//! The places of fields in a packet that is to be sliced, and the change of its headers to those of the
//! sliced packet.

use slipstream_wire::checksum::Delta;
use slipstream_wire::field::be16;
use slipstream_wire::protocol::{
    DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, ICMP, ICMP_CHECKSUM, ICMPV6, ROUTING, TCP, TCP_CHECKSUM, UDP,
    UDP_CHECKSUM, is_extension,
};
use slipstream_wire::view::Ipv6;
use slipstream_wire::{Flags, Headers, LinkType, ip_end};

use super::parked::{Pair, Parked, Transport};
use super::payload_table::{PayloadTable, Place};
use super::token::{TOKEN_LEN, Token, TokenFormat};
use super::{DSCP_SLICED, Why};

/// Bytes behind the IP packet that a sliced packet carries along; a frame with more is forwarded whole.
const MAX_TRAILER: usize = 64;

/// The place at which a packet is cut.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    pub(super) l3: usize,
    pub(super) l4: usize,
    pub(super) six: bool,
    pub(super) kind: Transport,
    /// Bytes of the transport header.
    header: usize,
    /// Start of the payload that is parked: the token will stand there.
    pub(super) at: usize,
    /// Bytes that are parked.
    pub(super) parked: usize,
    /// End of the IP packet.
    pub(super) end: usize,
    /// Bytes behind it.
    pub(super) trailer: usize,
}

/// Writes two bytes at `at`, if they are there.
#[inline]
pub(super) fn put16(bytes: &mut [u8], at: usize, value: u16) {
    if let Some(place) = bytes.get_mut(at..).and_then(<[u8]>::first_chunk_mut) {
        *place = value.to_be_bytes();
    }
}

/// The eight bytes before `end`.
#[inline]
pub(super) fn token_before(packet: &[u8], end: usize) -> Option<Token> {
    packet.get(..end).and_then(<[u8]>::last_chunk).map(|bytes| Token::from_bytes(*bytes))
}

/// Returns true if a packet was sent to many, by link layer or IP: functions multiply such packets.
#[inline]
fn to_many(link: LinkType, packet: &[u8], headers: &Headers) -> bool {
    let l3 = usize::from(headers.l3);
    let group = matches!(link, LinkType::Ethernet) && packet.first().is_some_and(|b| b & 1 != 0);
    // IPv4 from 224 on is multicast, reserved or broadcast.
    let many = if headers.flags.has(Flags::IPV6) {
        packet.get(l3 + 24) == Some(&0xff)
    } else {
        packet.get(l3 + 16).is_some_and(|b| *b >= 224)
    };
    group || many
}

/// Returns true if the extension headers are such that the transport header behind them is the last hop's,
/// and free to change.
fn known_extensions(packet: &[u8], headers: &Headers) -> bool {
    let ip = packet.get(usize::from(headers.l3)..usize::from(headers.l4)).unwrap_or_default();
    Ipv6::new_unchecked(ip).extensions().all(|e| match e.protocol {
        HOP_BY_HOP | DESTINATION_OPTIONS | FRAGMENT => true,
        // On its way the checksum is for a destination that is yet to come.
        ROUTING => e.bytes.get(3) == Some(&0),
        _ => false,
    })
}

/// Kind and length of the transport header at `l4`.
#[inline]
fn transport(packet: &[u8], headers: &Headers, end: usize) -> Option<(Transport, usize)> {
    let l4 = usize::from(headers.l4);
    if headers.flags.has(Flags::FRAGMENT) {
        return None;
    }
    let (kind, header) = match headers.key.protocol() {
        TCP => (Transport::Tcp, usize::from(packet.get(l4 + 12)? >> 4) * 4),
        UDP if usize::from(be16(packet, l4 + 4)?) == end.checked_sub(l4)? => (Transport::Udp, 8),
        _ => return None,
    };
    let least = if kind == Transport::Tcp { 20 } else { 8 };
    (header >= least && l4 + header <= end).then_some((kind, header))
}

/// The end of the IP packet; `None` if its length can't be, or not all of it is there.
#[inline]
pub(super) fn whole_end(packet: &[u8], headers: &Headers) -> Option<usize> {
    let end = ip_end(packet, headers);
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    // An IPv6 length of 0 is that of a jumbogram, or of a packet that a network card is yet to cut.
    let jumbo = headers.flags.has(Flags::IPV6) && end == l3 + 40;
    (!jumbo && headers.l4 != u16::MAX && l4 <= end && end <= packet.len()).then_some(end)
}

/// Finds the cut of a packet whose payload is parked; `parks` gives the bytes of a payload that are.
#[inline]
pub(super) fn cut(
    link: LinkType,
    packet: &[u8],
    headers: &Headers,
    parks: impl FnOnce(u32) -> u32,
) -> Result<Cut, Why> {
    let end = whole_end(packet, headers).ok_or(Why::Kind)?;
    let (kind, header) = transport(packet, headers, end).ok_or(Why::Kind)?;
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let six = headers.flags.has(Flags::IPV6);
    let trailer = packet.len() - end;
    if to_many(link, packet, headers) {
        return Err(Why::Kind);
    }
    if trailer > MAX_TRAILER || (six && l4 > l3 + 40 && !known_extensions(packet, headers)) {
        return Err(Why::Kind);
    }
    let parked = parks((end - l4 - header) as u32) as usize;
    if parked == 0 {
        return Err(Why::Small);
    }
    let at = end - parked;
    // The record of a packet has two bytes for it. A frame's link layer comes on top of 65,535 bytes of IP.
    if at > usize::from(u16::MAX) {
        return Err(Why::Kind);
    }
    Ok(Cut { l3, l4, six, kind, header, at, parked, end, trailer })
}

/// Finds the cut of a packet that only gets a token: any IP packet that has room for it.
pub(super) fn empty_cut(packet: &[u8], headers: &Headers) -> Option<Cut> {
    let end = whole_end(packet, headers)?;
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let six = headers.flags.has(Flags::IPV6);
    let counted = end - if six { l3 + 40 } else { l3 };
    if counted + TOKEN_LEN > usize::from(u16::MAX) || end + TOKEN_LEN > usize::from(u16::MAX) {
        return None;
    }
    if six && end < l4 + 8 && is_extension(headers.key.protocol()) {
        // A header that is cut off: the token behind it would be read as its rest.
        return None;
    }
    let whole_icmp = !headers.flags.has(Flags::FRAGMENT) && end >= l4 + 4;
    let (kind, header) = match transport(packet, headers, end) {
        Some(known) => known,
        None => match (headers.key.protocol(), six) {
            (ICMP, false) | (ICMPV6, true) if whole_icmp => (Transport::Icmp, 0),
            _ => (Transport::Other, 0),
        },
    };
    let kind =
        if six && l4 > l3 + 40 && !known_extensions(packet, headers) { Transport::Other } else { kind };
    let header = if kind == Transport::Other { 0 } else { header };
    let trailer = packet.len() - end;
    Some(Cut { l3, l4, six, kind, header, at: end, parked: 0, end, trailer })
}

/// Offset of a transport header's checksum.
#[inline]
pub(super) fn checksum_field(kind: Transport) -> Option<usize> {
    match kind {
        Transport::Tcp => Some(TCP_CHECKSUM),
        Transport::Udp => Some(UDP_CHECKSUM),
        Transport::Icmp => Some(ICMP_CHECKSUM),
        Transport::Other => None,
    }
}

/// Adds 64-bit words with end-around carry.
#[inline(always)]
pub(super) fn carry(sum: u64, word: u64) -> u64 {
    let (sum, over) = sum.overflowing_add(word);
    sum + u64::from(over)
}

/// Ones' complement sum of words as the machine has them, an odd end padded with zeros: for stretches of a
/// few words.
#[inline]
fn words(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let sum = words.iter().fold(0, |sum, w| carry(sum, u64::from_ne_bytes(*w)));
    let (half, rest) = match rest.split_first_chunk::<4>() {
        Some((half, rest)) => (u64::from(u32::from_ne_bytes(*half)), rest),
        None => (0, rest),
    };
    let mut last = [0; 4];
    last.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    carry(sum, half + u64::from(u32::from_ne_bytes(last)))
}

/// The checksum that a sum of words makes.
#[inline]
pub(super) fn folded(sum: u64) -> u16 {
    let sum = (sum & 0xffff_ffff) + (sum >> 32);
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    // Sums commute with the byte order (RFC 1071 §2 B).
    !u16::from_be(((sum & 0xffff) + (sum >> 16)) as u16)
}

/// The checksum over a packet's transport header and what is behind it, up to `end`; its field holds 0.
#[inline]
pub(super) fn transport_checksum(
    packet: &[u8],
    (l3, l4, end): (usize, usize, usize),
    six: bool,
    kind: Transport,
) -> u16 {
    let covered = words(packet.get(l4..end).unwrap_or_default());
    let protocol = match (kind, six) {
        (Transport::Tcp, _) => TCP,
        (Transport::Udp, _) => UDP,
        (_, true) => ICMPV6,
        // ICMP has no pseudo-header.
        (_, false) => return folded(covered),
    };
    let addresses = if six { l3 + 8..l3 + 40 } else { l3 + 12..l3 + 20 };
    let pseudo = u64::from(u16::from(protocol).to_be()) + u64::from(((end - l4) as u16).to_be());
    let addresses = words(packet.get(addresses).unwrap_or_default());
    match folded(carry(carry(covered, addresses), pseudo)) {
        0 if kind == Transport::Udp => 0xffff,
        value => value,
    }
}

/// Writes the DSCP and the length of the IP header at `l3`, whose packet ends at `end`; the checksum of IPv4
/// follows. Returns that as it was and as it is.
#[inline]
pub(super) fn set_ip(packet: &mut [u8], l3: usize, six: bool, dscp: u8, end: usize) -> Pair {
    // The part of the header that is examined has 20 bytes in both versions.
    let Some(ip) = packet.get_mut(l3..).and_then(<[u8]>::first_chunk_mut::<20>) else {
        return Pair::default();
    };
    let first = u16::from_be_bytes([ip[0], ip[1]]);
    if six {
        let [a, b] = (first & 0xf03f | u16::from(dscp) << 6).to_be_bytes();
        let [c, d] = ((end - l3 - 40) as u16).to_be_bytes();
        [ip[0], ip[1], ip[4], ip[5]] = [a, b, c, d];
        return Pair::default();
    }
    let (old, length) = (u16::from_be_bytes([ip[2], ip[3]]), (end - l3) as u16);
    let marked = first & 0xff03 | u16::from(dscp) << 2;
    let whole = u16::from_be_bytes([ip[10], ip[11]]);
    let sliced = Delta::new().word(first, marked).word(old, length).apply(whole);
    let ([a, b], [c, d], [e, f]) = (marked.to_be_bytes(), length.to_be_bytes(), sliced.to_be_bytes());
    [ip[0], ip[1], ip[2], ip[3], ip[10], ip[11]] = [a, b, c, d, e, f];
    Pair { whole, sliced }
}

impl Cut {
    /// Bytes of the sliced frame.
    #[inline]
    pub(super) fn sliced_len(&self) -> usize {
        self.at + TOKEN_LEN + self.trailer
    }

    /// Makes the headers those of the sliced packet. `front` is that packet: headers, what is kept of the
    /// payload, token, trailer.
    #[inline]
    pub(super) fn write(&self, front: &mut [u8], token: Token) -> Parked {
        let end = self.at + TOKEN_LEN;
        if let Some(place) = front.get_mut(self.at..).and_then(<[u8]>::first_chunk_mut) {
            *place = token.to_bytes();
        }
        let tos = be16(front, self.l3).unwrap_or(0);
        let dscp = (if self.six { tos >> 6 } else { tos >> 2 }) as u8 & DSCP_SLICED;
        let ip = set_ip(front, self.l3, self.six, DSCP_SLICED, end);
        if self.kind == Transport::Udp {
            put16(front, self.l4 + 4, (end - self.l4) as u16);
        }
        let mut transport = Pair::default();
        if let Some(field) = checksum_field(self.kind).map(|field| self.l4 + field) {
            transport.whole = be16(front, field).unwrap_or(0);
            if transport.whole != 0 || self.kind != Transport::Udp {
                put16(front, field, 0);
                let places = (self.l3, self.l4, end);
                transport.sliced = transport_checksum(front, places, self.six, self.kind);
                put16(front, field, transport.sliced);
            }
        }
        // No IPv4 header has these sums: IPv6 has no checksum to be found again.
        let ip = if self.six { Pair { whole: 0xffff, sliced: 0xffff } } else { ip };
        Parked {
            len: self.parked as u16,
            at: self.at as u16,
            rest: (end - self.l4 - self.header) as u16,
            trailer: self.trailer as u16,
            transport,
            ip,
            dscp,
            kind: self.kind,
        }
    }
}

/// A keyed hash of the flow of the packet whose IP header is at `l3` and whose transport header at `l4`:
/// addresses and, of TCP and UDP, ports.
fn flow(format: &TokenFormat, packet: &[u8], (l3, l4): (usize, usize), six: bool, kind: Transport) -> u64 {
    let address = |at: usize| match (six, packet.get(l3 + at..)) {
        (true, Some(bytes)) => bytes.first_chunk().map_or(0, |b| u128::from_be_bytes(*b)),
        (false, Some(bytes)) => bytes.first_chunk().map_or(0, |b| u128::from(u32::from_be_bytes(*b))),
        (_, None) => 0,
    };
    let addresses = if six { [address(8), address(24)] } else { [address(12), address(16)] };
    let ports = match kind {
        Transport::Tcp | Transport::Udp => {
            packet.get(l4..).and_then(<[u8]>::first_chunk).map_or(0, |b| u32::from_be_bytes(*b))
        }
        Transport::Icmp | Transport::Other => 0,
    };
    format.flow(addresses, u64::from(ports) << 16 | u64::from(kind as u8) << 8 | u64::from(six))
}

impl PayloadTable {
    /// Binds the payload that is about to be parked at `place` to the flow of the packet `front` that was cut
    /// so.
    #[inline]
    pub(super) fn bind(&mut self, place: &Place, front: &[u8], cut: &Cut) {
        if let Some(of_entry) = self.flows.get_mut(place.entry as usize) {
            *of_entry = flow(&self.format, front, (cut.l3, cut.l4), cut.six, cut.kind);
        }
    }

    /// Returns true if a packet with a header at `l3` is of the flow that the payload of `entry` is bound to,
    /// if it is bound to one.
    #[inline]
    pub(super) fn is_of_flow(
        &self,
        entry: u32,
        packet: &[u8],
        (l3, l4): (usize, usize),
        six: bool,
        kind: Transport,
    ) -> bool {
        self.flows
            .get(entry as usize)
            .is_none_or(|of_entry| *of_entry == flow(&self.format, packet, (l3, l4), six, kind))
    }
}

/// Gives a packet another DSCP; ECN stays, and the checksum of IPv4 follows.
pub(super) fn set_dscp(packet: &mut [u8], headers: &Headers, dscp: u8) {
    let (l3, six) = (usize::from(headers.l3), headers.flags.has(Flags::IPV6));
    let length = be16(packet, if six { l3 + 4 } else { l3 + 2 }).unwrap_or(0);
    let end = l3 + usize::from(length) + if six { 40 } else { 0 };
    set_ip(packet, l3, six, dscp, end);
}
