//! One fragment as reassembly reads it, and the datagram that fragments make together.

use slipstream_wire::checksum::Delta;
use slipstream_wire::{Flags, FlowKey, NarrowKey, WideKey, classify, protocol};

use crate::bytes::{be16, be32, put};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::packet::any_key_of;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::Context;

/// Bytes of an IPv6 fragment header.
const FRAGMENT_HEADER: usize = 8;
/// Bytes of a TCP header up to the flags.
const TCP_FLAGS: usize = 14;
/// The longest payload of an IPv6 packet, in bytes.
const LONGEST: usize = 65_535;

/// A fragment's place in its datagram, in bytes of what is fragmented: IPv4's payload (RFC 791 §3.2), or all
/// behind IPv6's fragment header (RFC 8200 §4.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Tells datagrams apart.
    pub(super) key: FlowKey,
    /// IPv6.
    pub(super) six: bool,
    /// Its first byte.
    pub(super) start: u32,
    /// The first byte behind it.
    pub(super) end: u32,
    /// No fragment follows it.
    pub(super) last: bool,
    /// It ends where no IPv6 packet can. (Of IPv4 that depends on the first fragment's header.)
    pub(super) too_long: bool,
}

impl Piece {
    /// Reads a fragment. `None` where its headers say what can't be: an end before its beginning, or more
    /// bytes than there were on the wire; and for a first fragment of IPv6 without all headers, or of IPv4's
    /// TCP without flags (RFC 1858 §3, RFC 3128). Fragments travel on by themselves: who sees to it that some
    /// of them get lost, as by their time to live, would have the receiver put the ports of one datagram and
    /// the flags of another together.
    pub(super) fn read(cx: &Context<'_>, frame: &Frame) -> Option<Self> {
        let key = any_key_of(cx, frame)?;
        let (data, info) = (cx.data(frame), frame.info);
        let (l3, l4) = (usize::from(info.l3()), usize::from(info.l4()));
        let six = Flags(info.flags()).has(Flags::IPV6);
        let (word, ident, packet_end) = if six {
            let header = l4.checked_sub(FRAGMENT_HEADER)?;
            let payload = usize::from(be16(data, l3 + 4)?);
            (be16(data, header + 2)?, be32(data, header + 4)?, l3 + 40 + payload)
        } else {
            (be16(data, l3 + 6)?, u32::from(be16(data, l3 + 4)?), l3 + usize::from(be16(data, l3 + 2)?))
        };
        // A fragment has no payload that waits elsewhere, but may carry a token, which is none of the
        // datagram's bytes.
        let lengths = cx.pool.lengths(frame.buf, frame.len);
        if packet_end > lengths.here as usize {
            return None;
        }
        let packet_end = lengths.whole(packet_end as u32) as usize;
        let len = packet_end.checked_sub(l4)?;
        let (start, last) =
            if six { (word & 0xfff8, word & 1 == 0) } else { ((word & 0x1fff) << 3, word & 0x2000 == 0) };
        if six && start == 0 {
            let next = *data.get(l4 - FRAGMENT_HEADER)?;
            let captured = packet_end.min(data.len());
            if !has_headers(data.get(l4..captured)?, next) {
                return None;
            }
        }
        if !six && start == 0 && len < TCP_FLAGS && data.get(l3 + 9) == Some(&protocol::TCP) {
            return None;
        }
        let end = usize::from(start) + len;
        Some(Self {
            key: datagram_key(key, six, ident, cx.input),
            six,
            start: start.into(),
            end: end as u32,
            last,
            too_long: six && end > LONGEST,
        })
    }
}

/// Returns true if a first fragment of IPv6 has all headers, that of the transport included: one that hasn't
/// is to be dropped (RFC 7112, RFC 8200 §4.5). That of a datagram which would be a fragment again has none of
/// those behind it. `next` is the first of the headers in `payload`.
fn has_headers(payload: &[u8], mut next: u8) -> bool {
    let mut at = 0;
    while protocol::is_extension(next) {
        let Some(&[following, units, o0, o1]) = payload.get(at..).and_then(<[u8]>::first_chunk) else {
            return false;
        };
        if next == protocol::FRAGMENT && is_part(u16::from_be_bytes([o0, o1])) {
            return false;
        }
        at += match next {
            protocol::FRAGMENT => FRAGMENT_HEADER,
            protocol::AH => (usize::from(units) + 2) * 4,
            _ => (usize::from(units) + 1) * 8,
        };
        next = following;
    }
    let transport = match next {
        protocol::TCP => 20,
        protocol::UDP | protocol::ICMPV6 => 8,
        _ => 1,
    };
    at + transport <= payload.len()
}

/// Returns true if this word of an IPv6 fragment header is that of a fragment, not of a whole packet (RFC
/// 6946): it has a place, or others follow.
const fn is_part(offset: u16) -> bool {
    offset & 0xfff9 != 0
}

/// Addresses and identification, for IPv4 the protocol too (RFC 791 §3.2, RFC 8200 §4.5: the next header may
/// differ between fragments of IPv6). VLAN ids and the input are part of it: who may send there only can't
/// spoil datagrams of another network.
fn datagram_key(key: FlowKey, six: bool, ident: u32, input: u8) -> FlowKey {
    let v4 = |rest: u64| rest & 0xffff_ffff | u64::from(ident & 0xffff) << 32 | u64::from(input) << 48;
    let v6 = |rest: u64| rest & 0x00ff_ffff | u64::from(ident) << 32 | u64::from(input) << 24;
    match key {
        FlowKey::Narrow(NarrowKey([a, rest])) => FlowKey::Narrow(NarrowKey([a, v4(rest)])),
        FlowKey::Wide(WideKey([a, b, c, d, rest, f, g])) => {
            FlowKey::Wide(WideKey([a, b, c, d, if six { v6(rest) } else { v4(rest) }, f, g]))
        }
    }
}

/// The datagram that fragments make, in the order of their places: a packet as if it had never been
/// fragmented, but for what of it was not captured. `None` where it is longer than any packet can be. `bytes`
/// is scratch.
pub(super) fn datagram(
    cx: &mut Context<'_>,
    fragments: &[(Frame, u32)],
    marked: bool,
    bytes: &mut Vec<u8>,
) -> Option<Frame> {
    let (first, _) = *fragments.first()?;
    let (l3, l4) = (usize::from(first.info.l3()), usize::from(first.info.l4()));
    let six = Flags(first.info.flags()).has(Flags::IPV6);
    let total: usize = fragments.iter().map(|(_, len)| *len as usize).sum();
    bytes.clear();
    bytes.extend_from_slice(cx.data(&first).get(..l4)?);
    if six {
        whole_v6(bytes, l3, total)?
    } else {
        whole_v4(bytes, l3, l4 - l3 + total)?
    }
    let original_len = bytes.len() + total;
    for (frame, len) in fragments {
        let (l4, len) = (usize::from(frame.info.l4()), *len as usize);
        let payload = cx.data(frame).get(l4..).unwrap_or_default();
        bytes.extend_from_slice(payload.get(..len).unwrap_or(payload));
        if payload.len() < len {
            break;
        }
    }
    let info = classify(cx.link(&first), bytes).map_or(Info::default(), |h| Info::new(&h));
    let buf = store(cx.pool, first, original_len, bytes);
    Some(Frame { arrival: cx.now, buf, len: bytes.len() as u32, info: info.of_datagram(marked), ..first })
}

fn store(pool: &mut Pool, first: Frame, original_len: usize, bytes: &[u8]) -> slipstream_core::pool::BufId {
    let meta = PacketMeta { original_len: original_len as u32, ..pool.meta(first.buf) };
    pool.insert(meta, bytes)
}

/// Makes the IPv4 header of a first fragment that of the whole packet; a wrong checksum stays wrong.
fn whole_v4(bytes: &mut [u8], l3: usize, length: usize) -> Option<()> {
    let length = u16::try_from(length).ok()?;
    let fragment = be16(bytes, l3 + 6)?;
    // Only "don't fragment" stays.
    let word = fragment & 0x4000;
    let delta = Delta::new().word(be16(bytes, l3 + 2)?, length).word(fragment, word);
    let sum = delta.apply(be16(bytes, l3 + 10)?);
    for (at, value) in [(2, length), (6, word), (10, sum)] {
        put(bytes, l3 + at, &value.to_be_bytes());
    }
    Some(())
}

/// The same for IPv6, whose fragment header, the last of these bytes, goes.
fn whole_v6(bytes: &mut Vec<u8>, l3: usize, total: usize) -> Option<()> {
    let fragment = bytes.len().checked_sub(FRAGMENT_HEADER)?;
    let next = *bytes.get(fragment)?;
    let (mut field, mut header) = (l3 + 6, l3 + 40);
    while header < fragment {
        let units = usize::from(*bytes.get(header + 1)?);
        let len = if bytes.get(field) == Some(&protocol::AH) { (units + 2) * 4 } else { (units + 1) * 8 };
        (field, header) = (header, header + len);
    }
    let length = u16::try_from(fragment.checked_sub(l3 + 40)? + total).ok()?;
    bytes.truncate(fragment);
    put(bytes, field, &[next]);
    put(bytes, l3 + 4, &length.to_be_bytes());
    Some(())
}
