//! Types of ICMP and ICMPv6 by the names that iptables has for them.

/// A name, a type, and its code where the name means one.
type Named = (&'static str, u8, Option<u8>);

const ICMP: &[Named] = &[
    ("echo-reply", 0, None),
    ("pong", 0, None),
    ("destination-unreachable", 3, None),
    ("network-unreachable", 3, Some(0)),
    ("host-unreachable", 3, Some(1)),
    ("protocol-unreachable", 3, Some(2)),
    ("port-unreachable", 3, Some(3)),
    ("fragmentation-needed", 3, Some(4)),
    ("source-route-failed", 3, Some(5)),
    ("network-unknown", 3, Some(6)),
    ("host-unknown", 3, Some(7)),
    ("network-prohibited", 3, Some(9)),
    ("host-prohibited", 3, Some(10)),
    ("tos-network-unreachable", 3, Some(11)),
    ("tos-host-unreachable", 3, Some(12)),
    ("communication-prohibited", 3, Some(13)),
    ("host-precedence-violation", 3, Some(14)),
    ("precedence-cutoff", 3, Some(15)),
    ("source-quench", 4, None),
    ("redirect", 5, None),
    ("network-redirect", 5, Some(0)),
    ("host-redirect", 5, Some(1)),
    ("tos-network-redirect", 5, Some(2)),
    ("tos-host-redirect", 5, Some(3)),
    ("echo-request", 8, None),
    ("ping", 8, None),
    ("router-advertisement", 9, None),
    ("router-solicitation", 10, None),
    ("time-exceeded", 11, None),
    ("ttl-exceeded", 11, None),
    ("ttl-zero-during-transit", 11, Some(0)),
    ("ttl-zero-during-reassembly", 11, Some(1)),
    ("parameter-problem", 12, None),
    ("ip-header-bad", 12, Some(0)),
    ("required-option-missing", 12, Some(1)),
    ("timestamp-request", 13, None),
    ("timestamp-reply", 14, None),
    ("address-mask-request", 17, None),
    ("address-mask-reply", 18, None),
];

const ICMPV6: &[Named] = &[
    ("destination-unreachable", 1, None),
    ("no-route", 1, Some(0)),
    ("communication-prohibited", 1, Some(1)),
    ("beyond-scope", 1, Some(2)),
    ("address-unreachable", 1, Some(3)),
    ("port-unreachable", 1, Some(4)),
    ("failed-policy", 1, Some(5)),
    ("reject-route", 1, Some(6)),
    ("packet-too-big", 2, None),
    ("time-exceeded", 3, None),
    ("ttl-exceeded", 3, None),
    ("ttl-zero-during-transit", 3, Some(0)),
    ("ttl-zero-during-reassembly", 3, Some(1)),
    ("parameter-problem", 4, None),
    ("bad-header", 4, Some(0)),
    ("unknown-header-type", 4, Some(1)),
    ("unknown-option", 4, Some(2)),
    ("echo-request", 128, None),
    ("ping", 128, None),
    ("echo-reply", 129, None),
    ("pong", 129, None),
    ("router-solicitation", 133, None),
    ("router-advertisement", 134, None),
    ("neighbour-solicitation", 135, None),
    ("neighbor-solicitation", 135, None),
    ("neighbour-advertisement", 136, None),
    ("neighbor-advertisement", 136, None),
    ("redirect", 137, None),
];

/// The first and last type and code (type in the upper byte) of `8`, `3/1`, `echo-request` or `any`.
pub(super) fn types(six: bool, text: &str) -> Option<(u32, u32)> {
    let span = |kind: u8, code: Option<u8>| {
        let of = |code: u8| u32::from(kind) << 8 | u32::from(code);
        (of(code.unwrap_or(0)), of(code.unwrap_or(u8::MAX)))
    };
    if text == "any" || (text == "255" && !six) {
        return Some((0, 0xffff));
    }
    let name = text.to_ascii_lowercase();
    let table = if six { ICMPV6 } else { ICMP };
    if let Some(&(_, kind, code)) = table.iter().find(|(known, ..)| *known == name) {
        return Some(span(kind, code));
    }
    match text.split_once('/') {
        None => text.parse().ok().map(|kind| span(kind, None)),
        Some((kind, code)) => {
            kind.parse().ok().zip(code.parse().ok()).map(|(kind, code)| span(kind, Some(code)))
        }
    }
}

/// The names, for the nearest to a misspelt one.
pub(super) fn names(six: bool) -> impl Iterator<Item = &'static str> {
    let table = if six { ICMPV6 } else { ICMP };
    table.iter().map(|(name, ..)| *name)
}
