//! Reading packets whose headers were found at classification.

use slipstream_wire::{Encapsulation, Flags, FlowKey, Headers, LinkType, NarrowKey, classify_with};

use crate::frame::{Frame, Info};
use crate::stage::Context;

/// Bytes of an Ethernet header without tags.
const ETHERNET: u16 = 14;

fn be<const N: usize>(data: &[u8], at: usize) -> Option<[u8; N]> {
    data.get(at..at.checked_add(N)?)?.first_chunk().copied()
}

/// The flow key that a packet has now: functions before may have changed its addresses and ports. None if
/// it can't be classified.
#[inline(always)]
#[must_use]
pub fn key_of(cx: &Context<'_>, frame: &Frame) -> Option<FlowKey> {
    match fast_key_of(cx, frame) {
        Some(key) => Some(FlowKey::Narrow(key)),
        None => any_key_of(cx, frame),
    }
}

/// The key of the most frequent kind of packet: IPv4 without options or a VLAN tag, with ports.
#[inline(always)]
pub fn fast_key_of(cx: &Context<'_>, frame: &Frame) -> Option<NarrowKey> {
    fast_key_in(frame.info, cx.data(frame))
}

/// The same from the bytes of a packet.
#[inline(always)]
pub fn fast_key_in(info: Info, data: &[u8]) -> Option<NarrowKey> {
    let (l3, l4) = (info.l3(), info.l4());
    let flags = info.flags() & (Flags::PORTS | Flags::IPV6 | Flags::INNER);
    if flags != Flags::PORTS || (l3 != ETHERNET && l3 != 0) || l4 != l3 + 20 || !info.classified() {
        return None;
    }
    let ip: &[u8; 24] = data.get(usize::from(l3)..)?.first_chunk()?;
    let [_, _, _, _, _, _, _, _, _, protocol, _, _, a, b, c, d, e, f, g, h, i, j, k, l] = *ip;
    let ports = u32::from_be_bytes([i, j, k, l]);
    let rest = u64::from(ports) << 32 | u64::from(protocol) << 24;
    Some(NarrowKey([u64::from_be_bytes([a, b, c, d, e, f, g, h]), rest]))
}

/// The key of any packet.
#[inline(never)]
pub fn any_key_of(cx: &Context<'_>, frame: &Frame) -> Option<FlowKey> {
    let info = frame.info;
    if !info.classified() {
        return None;
    }
    let (l3, flags) = (info.l3(), Flags(info.flags()));
    if !flags.has(Flags::IPV6 | Flags::INNER) && (l3 == 0 || l3 == ETHERNET) {
        let data = cx.data(frame);
        let l3 = usize::from(l3);
        let protocol = *data.get(l3 + 9)?;
        let addresses = u64::from_be_bytes(be(data, l3 + 12)?);
        let ports =
            if flags.has(Flags::PORTS) { u32::from_be_bytes(be(data, usize::from(info.l4()))?) } else { 0 };
        let rest = u64::from(ports) << 32 | u64::from(protocol) << 24;
        // A cooked or other link header may be as long as Ethernet's; tags are told by the offset alone.
        return Some(FlowKey::Narrow(NarrowKey([addresses, rest])));
    }
    let from = if flags.has(Flags::INNER) { Encapsulation::Inner } else { Encapsulation::Outer };
    classify_with(cx.link(frame), cx.data(frame), from).ok().map(|h| h.key)
}

/// Headers as classification gives them, of the packet as it is now.
#[inline]
#[must_use]
pub fn headers_of(cx: &Context<'_>, frame: &Frame) -> Option<Headers> {
    key_of(cx, frame).map(|key| frame.headers(key))
}

/// Returns true if a packet has an Ethernet header.
#[inline]
#[must_use]
pub fn is_ethernet(cx: &Context<'_>, frame: &Frame) -> bool {
    matches!(cx.link(frame), LinkType::Ethernet) && frame.len >= u32::from(ETHERNET)
}
