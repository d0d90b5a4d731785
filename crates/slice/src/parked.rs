//! The record of a packet whose payload waits.

use slipstream_core::pool::BufId;

/// The kind of transport header that a sliced packet has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Transport {
    Tcp,
    Udp,
    /// ICMP or ICMPv6, of packets that were given an empty slice.
    Icmp,
    /// None that is looked into: fragments, other protocols, of packets that were given an empty slice.
    #[default]
    Other,
}

/// A checksum as it arrived, and as the sliced packet has it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pair {
    pub(super) whole: u16,
    pub(super) sliced: u16,
}

/// The record of a packet besides its payload.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Parked {
    /// Bytes parked.
    pub(super) len: u16,
    /// Their offset in the frame.
    pub(super) at: u16,
    /// Bytes behind the transport header of the sliced packet: what was kept of the payload, and the token.
    /// Of [`Transport::Icmp`] and [`Transport::Other`], behind the IP headers.
    pub(super) rest: u16,
    /// Bytes behind the IP packet in the frame.
    pub(super) trailer: u16,
    pub(super) transport: Pair,
    pub(super) ip: Pair,
    pub(super) dscp: u8,
    pub(super) kind: Transport,
}

/// The place of a payload that waits in a buffer of the pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Held {
    /// The buffer, and how much of it is the packet as it came.
    pub(super) buf: BufId,
    pub(super) len: u32,
    /// The sliced packet is, or was, in the same buffer, before its payload.
    pub(super) in_place: bool,
    /// There the token stands in the place of the payload's first eight bytes: these, as the machine has
    /// them.
    pub(super) start: u64,
}
