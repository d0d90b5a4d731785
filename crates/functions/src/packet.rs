//! The packets that ICMP errors quote, and their keys.

use slipstream_wire::{Flags, FlowKey, Headers, LinkType, NarrowKey, WideKey, classify, protocol};

pub(crate) use slipstream_core::packet::is_ethernet;

use crate::bytes::be16;
use crate::icmp::is_first_fragment;

/// The same key with other ports.
pub(super) fn with_ports(key: FlowKey, src: u16, dst: u16) -> FlowKey {
    let ports = u64::from(src) << 48 | u64::from(dst) << 32;
    match key {
        FlowKey::Narrow(NarrowKey([a, rest])) => FlowKey::Narrow(NarrowKey([a, rest & 0xffff_ffff | ports])),
        FlowKey::Wide(WideKey([a, b, c, d, rest, f, g])) => {
            FlowKey::Wide(WideKey([a, b, c, d, rest & 0xffff_ffff | ports, f, g]))
        }
    }
}

/// The IP packet that an ICMP error quotes from `at` on, and its headers: those of a first fragment are read
/// like those of a whole packet. `None` for what can't be read, and for a later fragment, which has no ports.
pub(super) fn quoted(message: &[u8], at: usize) -> Option<(&[u8], Headers)> {
    let quote = message.get(at..)?;
    let headers = classify(LinkType::RawIp, quote).ok()?;
    if !headers.flags.has(Flags::FRAGMENT) {
        return Some((quote, headers));
    }
    if !is_first_fragment(quote, &headers) {
        return None;
    }
    let flags = headers.flags.0 & !Flags::FRAGMENT;
    if !protocol::has_ports(headers.key.protocol()) {
        return Some((quote, Headers { flags: Flags(flags), ..headers }));
    }
    let l4 = usize::from(headers.l4);
    let key = with_ports(headers.key, be16(quote, l4)?, be16(quote, l4 + 2)?);
    Some((quote, Headers { key, flags: Flags(flags | Flags::PORTS), ..headers }))
}
