//! A packet while it is inside: a 32-byte handle; the bytes stay in the [`Pool`](crate::pool::Pool).

use slipstream_wire::{Flags, FlowKey, Headers};

use crate::pool::BufId;
use crate::time::Nanos;

/// Longest frame, in captured bytes, that is classified; a longer one is passed through.
pub const MAX_FRAME_LEN: u32 = (1 << 24) - 1;

/// A packet's handle. Its headers were parsed once, at classification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(32))]
pub struct Frame {
    /// Time of its arrival, clamped so that a stage never sees time run backwards.
    pub arrival: Nanos,
    /// Its bytes.
    pub buf: BufId,
    /// Captured length in bytes.
    pub len: u32,
    /// The result of classification.
    pub info: Info,
    /// The flow's number in the flow table: unique among the flows that the table knows at the moment.
    /// [`Frame::NO_FLOW`] for what can't be classified.
    pub flow: u32,
    /// Upper half of the flow key's hash.
    pub hash: u32,
}

const _: () = assert!(size_of::<Frame>() == 32);

impl Frame {
    /// The flow number of a packet that belongs to none.
    pub const NO_FLOW: u32 = u32::MAX;

    /// A packet that was not classified (yet).
    #[inline]
    #[must_use]
    pub fn unclassified(arrival: Nanos, buf: BufId, len: u32) -> Self {
        Self { arrival, buf, len, info: Info::default(), flow: Self::NO_FLOW, hash: 0 }
    }

    /// The headers as classification gave them, `key` being this frame's key.
    #[inline]
    #[must_use]
    pub fn headers(&self, key: FlowKey) -> Headers {
        let Info(info) = self.info;
        let [a, b, c, d, flags, tcp_flags, tos, _] = info.to_le_bytes();
        // A datagram that came in fragments is whole.
        let no_flags =
            if self.info.is_datagram() { Info::CLASSIFIED | Flags::FRAGMENT } else { Info::CLASSIFIED };
        Headers {
            key,
            l3: u16::from_le_bytes([a, b]),
            l4: u16::from_le_bytes([c, d]),
            flags: Flags(flags & !no_flags),
            tcp_flags,
            tos,
        }
    }
}

/// The result of classification, in one word: offsets of layer 3 (bits 0..16) and layer 4 (16..32) in bytes,
/// bits of [`Flags`] (32..39), a bit that says that the word is valid (39), TCP flags (40..48), TOS or
/// traffic class (48..56), a bit for a packet that stands for a datagram that came in fragments (56), and one
/// for a packet that is of one super-frame with the packet before it (57).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Info(u64);

impl Info {
    const CLASSIFIED: u8 = 1 << 7;
    const DATAGRAM: u64 = 1 << 56;
    const JOINS: u64 = 1 << 57;

    /// Mask and value that no packet has; see [`Info::is`].
    pub const NOTHING: (u64, u64) = (0, 1);

    /// From headers.
    #[inline]
    #[must_use]
    pub fn new(headers: &Headers) -> Self {
        let low = u64::from(headers.l3) | u64::from(headers.l4) << 16;
        let flags = u64::from(headers.flags.0 | Self::CLASSIFIED);
        Self(low | flags << 32 | u64::from(headers.tcp_flags) << 40 | u64::from(headers.tos) << 48)
    }

    /// The same with another TOS or traffic class.
    #[inline]
    #[must_use]
    pub fn with_tos(self, tos: u8) -> Self {
        Self(self.0 & !(0xff << 48) | u64::from(tos) << 48)
    }

    /// The same with another DSCP where anything was found; ECN stays.
    #[inline]
    #[must_use]
    pub fn remarked(self, dscp: u8) -> Self {
        if self.classified() { self.with_tos(self.tos() & 3 | dscp << 2) } else { self }
    }

    /// Returns true if there are fragments among packets.
    #[inline(always)]
    pub fn has_fragments(frames: &[Frame]) -> bool {
        // All of them are looked at, so that many are at once.
        let all = frames.iter().fold(0, |all, frame| all | frame.info.0);
        all & u64::from(Flags::FRAGMENT) << 32 != 0
    }

    /// The same of a packet that stands for a datagram, whose fragments follow it; `marked`: rules that ask
    /// for fragments match it.
    #[must_use]
    pub fn of_datagram(self, marked: bool) -> Self {
        let fragment = if marked { u64::from(Flags::FRAGMENT) << 32 } else { 0 };
        Self(self.0 | Self::DATAGRAM | fragment)
    }

    /// Returns true if the packet stands for a datagram, whose fragments follow it.
    #[inline(always)]
    pub fn is_datagram(self) -> bool {
        self.0 & Self::DATAGRAM != 0
    }

    /// The same of a packet that is of one super-frame with the packet before it in its train.
    #[inline]
    #[must_use]
    pub fn joined(self) -> Self {
        Self(self.0 | Self::JOINS)
    }

    /// Returns true if the packet may travel in one super-frame with the packet before it in its train.
    ///
    /// A stage that changes the headers of all packets of a train alike may leave the mark. It need not
    /// take it off where it changes or takes out single ones either: who makes one frame of several holds
    /// their headers against each other. But packets whose checksums are wrong must not have it.
    #[inline(always)]
    #[must_use]
    pub fn joins(self) -> bool {
        self.0 & Self::JOINS != 0
    }

    /// All of it.
    #[inline]
    #[must_use]
    pub fn bits(self) -> u64 {
        self.0
    }

    /// Offsets of both layers, as they stand in its lower half.
    #[inline(always)]
    pub fn layers(self) -> u32 {
        self.0 as u32
    }

    /// Its upper half: all but [`Info::layers`].
    #[inline(always)]
    pub fn rest(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Of [`Info::layers`] and [`Info::rest`].
    #[inline(always)]
    pub fn of_halves(layers: u32, rest: u32) -> Self {
        Self(u64::from(rest) << 32 | u64::from(layers))
    }

    /// Bits of [`Flags`] (0..7), TCP flags (8..16), TOS or traffic class (16..24).
    #[inline]
    #[must_use]
    pub fn word(self) -> u32 {
        (self.0 >> 32) as u32 & 0xff_ff7f
    }

    /// Returns true if the packet could be classified.
    #[inline]
    #[must_use]
    pub fn classified(self) -> bool {
        self.flags() & Self::CLASSIFIED != 0
    }

    /// Offset of the IP header, in bytes.
    #[inline]
    #[must_use]
    pub fn l3(self) -> u16 {
        self.0 as u16
    }

    /// Offset of the transport header, in bytes.
    #[inline]
    #[must_use]
    pub fn l4(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Bits of [`Flags`]; bit 7 says whether the packet was classified.
    #[inline]
    #[must_use]
    pub fn flags(self) -> u8 {
        (self.0 >> 32) as u8
    }

    /// Returns true if the TCP header can be read.
    #[inline]
    #[must_use]
    pub fn is_tcp(self) -> bool {
        self.flags() & Flags::TCP != 0
    }

    /// TCP flags; 0 where there are none.
    #[inline]
    #[must_use]
    pub fn tcp_flags(self) -> u8 {
        (self.0 >> 40) as u8
    }

    /// Mask and value of the whole word for packets whose TCP header can be read and whose flags, as far as
    /// `mask` says, are `value`; to be held against [`Info::is`].
    #[must_use]
    pub fn of_tcp_flags(mask: u8, value: u8) -> (u64, u64) {
        let tcp = u64::from(Flags::TCP) << 32;
        (tcp | u64::from(mask) << 40, tcp | u64::from(value) << 40)
    }

    /// Returns true if the bits of `mask` are `value`.
    #[inline(always)]
    #[must_use]
    pub fn is(self, (mask, value): (u64, u64)) -> bool {
        self.0 & mask == value
    }

    /// TOS or traffic class.
    #[inline]
    #[must_use]
    pub fn tos(self) -> u8 {
        (self.0 >> 48) as u8
    }
}
