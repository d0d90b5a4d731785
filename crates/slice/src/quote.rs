//! ICMP errors that quote a sliced packet: the sender that reads the quote never heard of slicing. The quoted
//! lengths, DSCP and checksums become those of the whole packet, and the token goes; the quoted payload with
//! it, which an error may leave out (RFC 792, RFC 4443 §3). Where the quote does not end in the token,
//! because something stands behind it or it was cut off, zeros take the token's place: extensions stay where
//! they have to be (RFC 4884 §5.1).

use slipstream_wire::checksum::{Delta, combine, sum};
use slipstream_wire::field::be16;
use slipstream_wire::protocol::{ICMP, ICMPV6};
use slipstream_wire::{Flags, Headers, LinkType, classify, ip_end};

use super::DSCP_SLICED;
use super::layers::Layers;
use super::layout::{put16, set_ip};
use super::parked::Parked;
use super::payload_table::Refusal;
use super::token::TOKEN_LEN;

/// Bytes of an ICMP header, behind which the quote begins.
const HEADER: usize = 8;

/// Returns true if a packet is an ICMP error with a quote.
#[inline]
pub(super) fn is_error(packet: &[u8], headers: &Headers) -> bool {
    let kind = || packet.get(usize::from(headers.l4)).copied().unwrap_or(0);
    if headers.flags.has(Flags::FRAGMENT) {
        return false;
    }
    match headers.key.protocol() {
        ICMP => matches!(kind(), 3 | 4 | 5 | 11 | 12),
        ICMPV6 => matches!(kind(), 1..=4),
        _ => false,
    }
}

/// An ICMP error's quote of a sliced packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Quote {
    /// Offset of its token in the frame, and the bytes of the token that are there.
    pub(super) at: usize,
    pub(super) len: usize,
    /// End of the IP packet of the error.
    pub(super) end: usize,
    /// The record of the sliced packet.
    pub(super) parked: Parked,
}

/// Offset of the token, or of the place for one, of the packet that an error quotes: the last eight bytes, by
/// the quoted length.
pub(super) fn token_place(packet: &[u8], headers: &Headers) -> Option<usize> {
    let start = usize::from(headers.l4) + HEADER;
    let quoted = packet.get(start..)?;
    let of_quote = classify(LinkType::RawIp, quoted).ok()?;
    (start + ip_end(quoted, &of_quote)).checked_sub(TOKEN_LEN).filter(|at| *at < packet.len())
}

/// Restores what the error in the frame `packet` quotes. Returns the length of the frame, which is 8 bytes
/// shorter where the quote ended in the token.
///
/// # Errors
/// [`Refusal::Mangled`] where the quote is not the sliced packet; the frame stays as it is.
pub(super) fn restore(packet: &mut [u8], headers: &Headers, quote: &Quote) -> Result<usize, Refusal> {
    let Quote { at, len, end, parked } = quote;
    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
    let six = headers.flags.has(Flags::IPV6);
    let length = |body: &[u8]| if six { body.len() as u16 } else { 0 };
    let body = packet.get(l4..*end).ok_or(Refusal::Mangled)?;
    let before = combine(sum(body), length(body));
    let start = l4 + HEADER;
    let quoted = packet.get_mut(start..at + len).ok_or(Refusal::Mangled)?;
    let of_quote = classify(LinkType::RawIp, quoted).map_err(|_| Refusal::Mangled)?;
    let layers = Layers::find(quoted, &of_quote, parked)?;
    if start + layers.end != at + TOKEN_LEN {
        return Err(Refusal::Mangled);
    }
    // The token, which is about to go, stands in place of the payload.
    let (quoted, token) = quoted.split_at_mut(at - start);
    layers.repair(quoted, parked);
    token.fill(0);
    let new_end = if at + TOKEN_LEN == *end { *at } else { *end };
    let frame = packet.len();
    packet.copy_within(*end..frame, new_end);
    let word = be16(packet, l3).unwrap_or(0);
    let dscp = (word >> if six { 6 } else { 2 }) as u8 & DSCP_SLICED;
    // An error may have the DSCP of the packet that it is about (RFC 1812 §4.3.2.5).
    set_ip(packet, l3, six, if dscp == DSCP_SLICED { parked.dscp } else { dscp }, new_end);
    let body = packet.get(l4..new_end).ok_or(Refusal::Mangled)?;
    let delta = Delta::new().word(before, combine(sum(body), length(body)));
    let checksum = be16(packet, l4 + 2).unwrap_or(0);
    put16(packet, l4 + 2, delta.apply(checksum));
    Ok(frame - (end - new_end))
}
