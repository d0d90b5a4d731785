//! TCP segments of classified frames, for stages that look into them.

use core::ops::Range;

use crate::bytes::{be16, be32, between, byte};
use crate::view::TcpOptions;
use crate::{Flags, Headers};

/// The fields of a TCP header, and where its options and its payload are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpSegment {
    /// Sequence number.
    pub seq: u32,
    /// Acknowledgement number; means something if ACK is set.
    pub ack: u32,
    /// The twelve bits from the reserved ones (0x800 to 0x200) over AE (0x100) and CWR (0x80) to FIN (0x01).
    pub flags: u16,
    /// Window, unscaled; 0 if it was not captured.
    pub window: u16,
    /// Offset of the header in the frame, in bytes.
    pub at: u16,
    /// Length of the header by its data offset, in bytes, 0 to 60; below 20 the header is malformed.
    pub header_len: u8,
    /// Says that the whole header was captured and has at least 20 bytes: window and options can be relied
    /// on.
    pub complete: bool,
    /// Length of the payload by the IP length, in bytes, captured or not; padding does not count. 0 if the IP
    /// length is smaller than the headers, as of packets captured before the network card segments them.
    pub payload_len: u32,
}

impl TcpSegment {
    /// The place of the options in the frame; empty unless [`complete`](Self::complete).
    #[must_use]
    pub fn options_range(&self) -> Range<usize> {
        let start = usize::from(self.at) + 20;
        if self.complete { start..usize::from(self.at) + usize::from(self.header_len) } else { start..start }
    }

    /// The options in `frame`, the one that the segment was read from.
    #[must_use]
    pub fn options<'a>(&self, frame: &'a [u8]) -> TcpOptions<'a> {
        let Range { start, end } = self.options_range();
        TcpOptions::new(between(frame, start, end))
    }

    /// The place of the payload in the frame, as far as it was captured.
    #[must_use]
    pub fn payload_range(&self, frame: &[u8]) -> Range<usize> {
        let start = (usize::from(self.at) + usize::from(self.header_len)).min(frame.len());
        start..(start + self.payload_len as usize).min(frame.len())
    }
}

/// The TCP header of a classified frame; `None` unless [`Flags::TCP`] is set: another protocol, a fragment,
/// or fewer than 14 bytes of the header captured. `headers` must come from classifying `frame`.
#[inline]
#[must_use]
pub fn tcp_segment(frame: &[u8], headers: &Headers) -> Option<TcpSegment> {
    let at = usize::from(headers.l4);
    let bytes = frame.get(at..)?;
    if !headers.flags.has(Flags::TCP) || headers.l4 == u16::MAX {
        return None;
    }
    let offset_flags = be16(bytes, 12);
    let header_len = (offset_flags >> 12) as u8 * 4;
    let end = at + usize::from(header_len);
    Some(TcpSegment {
        seq: be32(bytes, 4),
        ack: be32(bytes, 8),
        flags: offset_flags & 0xfff,
        window: be16(bytes, 14),
        at: headers.l4,
        header_len,
        complete: header_len >= 20 && end <= frame.len(),
        payload_len: ip_end(frame, headers).saturating_sub(end) as u32,
    })
}

/// The end of the packet by its IP length, in bytes from the start of the frame. `headers` must come from
/// classifying `frame`. It may lie beyond the captured bytes, or, for lengths that lie, before the transport
/// header.
#[inline]
#[must_use]
pub fn ip_end(frame: &[u8], headers: &Headers) -> usize {
    let at = usize::from(headers.l3);
    if headers.flags.has(Flags::IPV6) {
        at + 40 + usize::from(be16(frame, at + 4))
    } else {
        at + usize::from(be16(frame, at + 2))
    }
}

/// Hops left: IPv4 time to live or IPv6 hop limit. `headers` must come from classifying `frame`.
#[inline]
#[must_use]
pub fn ttl(frame: &[u8], headers: &Headers) -> u8 {
    byte(frame, usize::from(headers.l3) + if headers.flags.has(Flags::IPV6) { 7 } else { 8 })
}
