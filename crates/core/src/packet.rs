//! Reading packets whose headers were found at classification.

use slipstream_wire::field::{be32, be64};
use slipstream_wire::{Encapsulation, Flags, FlowKey, Headers, LinkType, NarrowKey, classify_with};

use crate::frame::{Frame, Info};
use crate::stage::Context;

/// Bytes of an Ethernet header without tags.
const ETHERNET: u16 = 14;

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
        let addresses = be64(data, l3 + 12)?;
        let ports = if flags.has(Flags::PORTS) { be32(data, usize::from(info.l4()))? } else { 0 };
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::classify;

    use super::*;
    use crate::pool::{PacketMeta, Pool};
    use crate::time::Nanos;

    /// A packet with a number of VLAN tags, of which IP is version 4 with options or version 6, whole or a
    /// fragment; and the rest, which has ports or is too short for them.
    fn packet() -> impl Strategy<Value = (LinkType, Vec<u8>)> {
        let protocol = prop_oneof![Just(6u8), Just(17), Just(132), Just(1), any::<u8>()];
        let rest = prop::collection::vec(any::<u8>(), 0..40);
        let addresses = prop::array::uniform32(any::<u8>());
        let what =
            (0usize..4, any::<bool>(), any::<bool>(), 5u8..8, prop_oneof![4 => Just(0u8), 1 => any::<u8>()]);
        (what, protocol, addresses, rest).prop_map(
            |((tags, raw, six, words, part), protocol, addresses, rest)| {
                let mut bytes = Vec::new();
                if !raw {
                    bytes.extend([2; 12]);
                    (0..tags).for_each(|tag| bytes.extend([0x81, 0, 0, tag as u8 + 1]));
                    bytes.extend(if six { [0x86, 0xdd] } else { [8, 0] });
                }
                if six {
                    let length = (rest.len() as u16).to_be_bytes();
                    bytes.extend([0x60, 0, 0, 0, length[0], length[1], protocol, 64]);
                    bytes.extend(addresses);
                } else {
                    let length = (u16::from(words) * 4 + rest.len() as u16).to_be_bytes();
                    bytes.extend([0x40 | words, 0, length[0], length[1], 0, 0, part, 0, 64, protocol, 0, 0]);
                    bytes.extend(&addresses[..8]);
                    bytes.extend((5..words).flat_map(|_| [1; 4]));
                }
                bytes.extend(rest);
                (if raw { LinkType::RawIp } else { LinkType::Ethernet }, bytes)
            },
        )
    }

    proptest! {
        /// Against classification anew, of the packet as it came and with other addresses and ports.
        #[test]
        fn keys_are_those_of_the_packet_as_it_is((link, mut bytes) in packet(), other in any::<u8>()) {
            let Ok(headers) = classify(link, &bytes) else { return Ok(()) };
            let mut pool = Pool::new();
            let len = bytes.len() as u32;
            let buf = pool.insert(PacketMeta::default(), &bytes);
            let frame = Frame { info: Info::new(&headers), ..Frame::unclassified(Nanos(1), buf, len) };
            for changed in [false, true] {
                if changed {
                    // The last byte of the destination of IPv4, one of the source of IPv6; and the ports.
                    let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
                    bytes[l3 + 19] = other;
                    if Flags(frame.info.flags()).has(Flags::PORTS) {
                        bytes[l4 + 1] = other;
                    }
                    pool.data_mut(buf, len).copy_from_slice(&bytes);
                }
                let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[link] };
                let key = classify(link, &bytes).unwrap().key;
                prop_assert_eq!(key_of(&cx, &frame), Some(key));
                prop_assert_eq!(any_key_of(&cx, &frame), Some(key));
                if let Some(fast) = fast_key_of(&cx, &frame) {
                    prop_assert_eq!(FlowKey::Narrow(fast), key);
                }
                prop_assert_eq!(headers_of(&cx, &frame), Some(Headers { key, ..headers }));
            }
        }
    }

    #[test]
    fn a_packet_without_a_flow_has_no_key() {
        let mut pool = Pool::new();
        let buf = pool.insert(PacketMeta::default(), &[0; 60]);
        let frame = Frame::unclassified(Nanos(1), buf, 60);
        let cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
        assert_eq!(
            (key_of(&cx, &frame), any_key_of(&cx, &frame), fast_key_of(&cx, &frame)),
            (None, None, None)
        );
        assert!(is_ethernet(&cx, &frame) && !is_ethernet(&cx, &Frame { len: 13, ..frame }));
    }
}
