//! A packet as connection tracking sees it.

use slipstream_wire::protocol::{ICMP, ICMPV6, TCP};
use slipstream_wire::{Flags, FlowKey, Headers, NarrowKey, WideKey};

use crate::bytes::be16;
use crate::packet::{quoted, with_ports};

/// The role of a packet for the tracker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// May begin a connection.
    Opens,
    /// The same of a fragment: it has no ports and no flags, whatever its protocol.
    Fragment,
    /// An ICMP reply.
    Reply,
    /// An ICMP error; the key is that of the quoted packet.
    Error,
    Untracked,
    Invalid,
}

/// The fields of a packet that the tracker reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tracked {
    /// Both directions have this one.
    pub(super) key: FlowKey,
    /// True if the packet goes from the key's source to its destination.
    pub(super) forward: bool,
    pub(super) kind: Kind,
    /// TCP flags, where they were captured.
    pub(super) tcp_flags: Option<u8>,
}

impl Tracked {
    /// Reads a classified packet.
    #[must_use]
    pub fn read(frame: &[u8], headers: &Headers) -> Self {
        let plain = untagged(headers.key);
        if headers.flags.has(Flags::FRAGMENT) {
            return Self::new(plain, Kind::Fragment, None);
        }
        match (headers.key.protocol(), headers.flags.has(Flags::IPV6)) {
            (TCP, _) => {
                let flags = headers.flags.has(Flags::TCP).then_some(headers.tcp_flags);
                Self::new(plain, Kind::Opens, flags)
            }
            (ICMP, false) | (ICMPV6, true) => Self::icmp(frame, headers, plain, true),
            _ => Self::new(plain, Kind::Opens, None),
        }
    }

    fn new(key: FlowKey, kind: Kind, tcp_flags: Option<u8>) -> Self {
        let both = key.bidirectional();
        Self { key: both, forward: both == key, kind, tcp_flags }
    }

    /// An ICMP query, from the end that asks or from the other.
    fn query(key: FlowKey, asks: bool) -> Self {
        let kind = if asks { Kind::Opens } else { Kind::Reply };
        let packet = Self::new(key, kind, None);
        Self { key: asked_by(packet.key, asks == packet.forward), ..packet }
    }

    /// Queries have their identifier as the port of the end that asks, and the request's type as that of the
    /// other.
    fn icmp(frame: &[u8], headers: &Headers, plain: FlowKey, may_quote: bool) -> Self {
        let at = usize::from(headers.l4);
        // A header that isn't wholly there says nothing, also where it is quoted.
        let header = frame.get(at..at + 8).unwrap_or_default();
        let (Some(&kind), Some(id)) = (header.first(), be16(header, 4)) else {
            return Self::new(plain, Kind::Invalid, None);
        };
        let asks = |request: u16| Self::query(with_ports(plain, id, request << 8), true);
        let answers = |request: u16| Self::query(with_ports(plain, request << 8, id), false);
        match (headers.flags.has(Flags::IPV6), kind) {
            (false, 8 | 13 | 15 | 17) => asks(u16::from(kind)),
            (false, 0) => answers(8),
            (false, 14 | 16 | 18) => answers(u16::from(kind) - 1),
            // Echo (RFC 4443 §4), node information (RFC 4620).
            (true, 128 | 139) => asks(u16::from(kind)),
            (true, 129 | 140) => answers(u16::from(kind) - 1),
            // Multicast listeners and routers, neighbours.
            (true, 130..=136 | 143 | 151 | 152) => Self::new(plain, Kind::Untracked, None),
            (false, 3 | 4 | 5 | 11 | 12) | (true, 0..=127) if may_quote => {
                Self::error(frame, at + 8, plain).unwrap_or_else(|| Self::new(plain, Kind::Invalid, None))
            }
            _ => Self::new(plain, Kind::Invalid, None),
        }
    }

    /// An error is about the packet that it quotes, and goes to the one who sent that.
    fn error(frame: &[u8], at: usize, outer: FlowKey) -> Option<Self> {
        let (quote, headers) = quoted(frame, at)?;
        let plain = untagged(headers.key);
        if headers.key.src() != outer.dst() || headers.key.is_ipv6() != outer.is_ipv6() {
            return None;
        }
        let read = match (headers.key.protocol(), headers.flags.has(Flags::IPV6)) {
            (ICMP, false) | (ICMPV6, true) => Self::icmp(quote, &headers, plain, false),
            _ => Self::new(plain, Kind::Opens, None),
        };
        matches!(read.kind, Kind::Opens | Kind::Reply).then_some(Self { kind: Kind::Error, ..read })
    }
}

/// The key of an ICMP query for both directions, with a mark unless the end that asks is its source: an
/// identifier may be any number, also one that stands for a type of request. Without the mark a request of
/// one end with such an identifier would belong to a query of the other.
fn asked_by(key: FlowKey, source: bool) -> FlowKey {
    match key {
        _ if source => key,
        FlowKey::Narrow(NarrowKey([a, rest])) => FlowKey::Narrow(NarrowKey([a, rest | 1 << 13])),
        FlowKey::Wide(WideKey([a, b, c, d, rest, f, g])) => {
            FlowKey::Wide(WideKey([a, b, c, d, rest, f | 1, g]))
        }
    }
}

/// The key for both directions of the connection that a packet with this key begins, and whether that goes
/// from its source to its destination.
pub(super) fn key_of_connection(first: FlowKey) -> (FlowKey, bool) {
    let both = first.bidirectional();
    let forward = both == first;
    // Fragments by themselves have no type.
    let is_query = matches!(first.protocol(), ICMP | ICMPV6) && first.dst_port() != 0;
    (asked_by(both, forward || !is_query), forward)
}

/// The key without VLAN ids.
pub(crate) fn untagged(key: FlowKey) -> FlowKey {
    match key {
        FlowKey::Narrow(NarrowKey([a, rest])) => FlowKey::Narrow(NarrowKey([a, rest & !0xff_ffff])),
        FlowKey::Wide(WideKey([_, s, _, d, rest, ..])) if !key.is_ipv6() => {
            FlowKey::Narrow(NarrowKey([s << 32 | d, rest & !0xff_ffff]))
        }
        FlowKey::Wide(WideKey([a, b, c, d, rest, ..])) => {
            FlowKey::Wide(WideKey([a, b, c, d, rest & !0xffff, 0, 0]))
        }
    }
}
