//! The fields of a packet that a firewall reads, laid out so that rules of either IP version can be asked
//! quickly.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::{Flags, FlowKey, Headers, NarrowKey, Vlans, WideKey};

/// Bits of a packet's [`word`](PacketFields::word): [`Flags`] (0..8), TCP flags (8..16), TOS (16..24),
/// protocol (24..32).
pub(super) const TCP_FLAGS_AT: u32 = 8;
pub(super) const TOS_AT: u32 = 16;
pub(super) const PROTOCOL_AT: u32 = 24;
pub(super) const PROTOCOL: u32 = 0xff << PROTOCOL_AT;

/// Places in [`PacketFields::words`]. The last word has both addresses of IPv4, the source in the upper half:
/// no tree looks at it, but rules are compared with it.
pub(super) const SRC_HIGH: usize = 0;
pub(super) const SRC: usize = 1;
pub(super) const DST_HIGH: usize = 2;
pub(super) const DST: usize = 3;
pub(super) const SRC_PORT: usize = 4;
pub(super) const DST_PORT: usize = 5;
pub(super) const PROTO: usize = 6;

/// In place of type and code: the packet is no ICMP, or a fragment, or its type wasn't captured.
pub(super) const NO_ICMP: u32 = u32::MAX;

/// Type and code of ICMP in one number: [`PacketFields::icmp`].
#[inline]
pub(super) const fn icmp_word(kind: u8, code: u8) -> u32 {
    (kind as u32) << 8 | code as u32
}

/// State of a packet's connection, as a connection tracker says; one bit each, so that sets of states are
/// masks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ConnState {
    /// Begins a connection.
    New = 1,
    /// Belongs to one that both ends have taken part in.
    Established = 2,
    /// Begins one that an existing connection announced, or is an ICMP error about one.
    Related = 4,
    /// Fits no connection and can't begin one.
    Invalid = 8,
    /// Nobody tracks connections, or not this one.
    Untracked = 16,
}

impl ConnState {
    /// Every state, with the name that rules give it.
    pub(super) const NAMES: [(&'static str, Self); 5] = [
        ("new", Self::New),
        ("established", Self::Established),
        ("related", Self::Related),
        ("invalid", Self::Invalid),
        ("untracked", Self::Untracked),
    ];
    pub(super) const ALL: u8 = 31;
}

/// The fields of one packet that rules can ask for.
#[derive(Clone, Debug)]
pub struct PacketFields {
    pub(super) words: [u64; 8],
    pub(super) word: u32,
    pub(super) length: u32,
    pub(super) state: u8,
    pub(super) vlans: Vlans,
    /// ICMP type (bits 8 to 16) and code (0 to 8), or [`NO_ICMP`].
    pub(super) icmp: u32,
}

impl PacketFields {
    /// The fields of a packet from its classified headers. `length` is that on the wire in bytes, link-layer
    /// header included. No connection tracker knows the packet.
    #[must_use]
    pub fn new(headers: &Headers, length: u32) -> Self {
        let Headers { flags, tcp_flags, tos, .. } = *headers;
        Self::of(&headers.key, u32::from_le_bytes([flags.0, tcp_flags, tos, 0]), length)
    }

    /// The same from a packet's key and its [`word`](Self::word), whose byte of the protocol is 0.
    #[inline(always)]
    pub(super) fn of(key: &FlowKey, word: u32, length: u32) -> Self {
        let (src_port, dst_port) = (u64::from(key.src_port()), u64::from(key.dst_port()));
        let protocol = key.protocol();
        let [src_high, src, dst_high, dst, both] = match *key {
            FlowKey::Narrow(NarrowKey([addresses, _])) => {
                [0, addresses >> 32, 0, addresses & 0xffff_ffff, addresses]
            }
            FlowKey::Wide(WideKey([a, b, c, d, ..])) => [a, b, c, d, b << 32 | d & 0xffff_ffff],
        };
        Self {
            words: [src_high, src, dst_high, dst, src_port, dst_port, u64::from(protocol), both],
            word: word | u32::from(protocol) << PROTOCOL_AT,
            length,
            state: ConnState::Untracked as u8,
            vlans: key.vlans(),
            icmp: NO_ICMP,
        }
    }

    /// The same packet, which is ICMP or ICMPv6 of this type and code.
    #[inline]
    #[must_use]
    pub fn with_icmp(mut self, kind: u8, code: u8) -> Self {
        self.icmp = icmp_word(kind, code);
        self
    }

    /// The same packet in a connection.
    #[inline]
    #[must_use]
    pub fn with_state(mut self, state: ConnState) -> Self {
        self.state = state as u8;
        self
    }

    /// Flags (bits 0 to 8), TCP flags (8 to 16), TOS or traffic class (16 to 24), protocol (24 to 32): what
    /// [`Reads::word`] is a mask of.
    #[inline]
    #[must_use]
    pub const fn word(&self) -> u32 {
        self.word
    }

    /// Returns true if the addresses are IPv6.
    #[inline]
    #[must_use]
    pub const fn is_ipv6(&self) -> bool {
        self.word & Flags::IPV6 as u32 != 0
    }

    /// Source address.
    #[must_use]
    pub fn src(&self) -> IpAddr {
        let [high, low, ..] = self.words;
        self.address(high, low)
    }

    /// Destination address.
    #[must_use]
    pub fn dst(&self) -> IpAddr {
        let [_, _, high, low, ..] = self.words;
        self.address(high, low)
    }

    fn address(&self, high: u64, low: u64) -> IpAddr {
        if self.is_ipv6() {
            Ipv6Addr::from_bits(u128::from(high) << 64 | u128::from(low)).into()
        } else {
            Ipv4Addr::from_bits(low as u32).into()
        }
    }

    pub(super) fn src_port(&self) -> u16 {
        let [_, _, _, _, port, ..] = self.words;
        port as u16
    }

    pub(super) fn dst_port(&self) -> u16 {
        let [_, _, _, _, _, port, ..] = self.words;
        port as u16
    }

    pub(super) const fn protocol(&self) -> u8 {
        (self.word >> PROTOCOL_AT) as u8
    }

    pub(super) const fn tos(&self) -> u8 {
        (self.word >> TOS_AT) as u8
    }
}

/// The fields of packets that a rule set reads beyond their flow key: a decision may be shared by packets of
/// one flow that agree in all of it, and by no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// Bits of [`PacketFields::word`]; never those of the protocol and the IP version, which are in the key.
    ///
    /// The bit of [`Flags::PORTS`] tells packets with ports from others whose key has none; among packets of
    /// a key with a port other than 0 it is always the same.
    pub word: u32,
    /// The packet's length.
    pub length: bool,
    /// The state of its connection.
    pub state: bool,
    /// Type and code of ICMP.
    pub icmp: bool,
}

impl Reads {
    /// The TCP flags that are read, as a mask.
    #[must_use]
    pub const fn tcp_flags(self) -> u8 {
        (self.word >> TCP_FLAGS_AT) as u8
    }

    /// The bits of TOS or traffic class that are read, as a mask.
    #[must_use]
    pub const fn tos(self) -> u8 {
        (self.word >> TOS_AT) as u8
    }

    pub(super) fn add(&mut self, other: Self) {
        self.word |= other.word;
        self.length |= other.length;
        self.state |= other.state;
        self.icmp |= other.icmp;
    }
}
