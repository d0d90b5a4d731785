//! A super-frame that is being made: what the next packet must be to belong to it.

use super::Refusal;
use super::segment::{FIN_PSH, Ip, LAST, Segment, Transport};
use crate::bytes::be16;

/// Most of what a super-frame may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes from the IP header on, up to [`Limits::MOST_BYTES`].
    pub bytes: u32,
    /// Packets.
    pub segments: u16,
}

impl Limits {
    /// The longest IP packet.
    pub const MOST_BYTES: u32 = 65_535;
    /// Most datagrams of UDP, as in Linux.
    pub const MOST_DATAGRAMS: u16 = 64;
}

impl Default for Limits {
    fn default() -> Self {
        Self { bytes: Self::MOST_BYTES, segments: 64 }
    }
}

/// A super-frame, as far as it has come: the packets themselves are elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SuperFrame {
    /// Bytes of payload of the first packet.
    size: u32,
    /// Bytes from the IP header on, of all together under one header.
    bytes: u32,
    segments: u16,
    next_seq: u32,
    first_id: u16,
    /// The identification stays the same.
    fixed_id: bool,
    ended: bool,
}

impl SuperFrame {
    /// With its first packet.
    #[inline]
    #[must_use]
    pub fn start(first: &Segment<'_>) -> Self {
        Self {
            size: first.payload_len(),
            bytes: first.ip_len(),
            segments: 1,
            next_seq: first.seq().wrapping_add(first.payload_len()),
            first_id: first.id().unwrap_or(0),
            fixed_id: false,
            ended: first.flags() & LAST != 0,
        }
    }

    /// Packets so far.
    #[inline]
    #[must_use]
    pub fn segments(&self) -> u16 {
        self.segments
    }

    /// Bytes of payload of each packet but the last: the size by which it is to be cut.
    #[inline]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// Bytes from the IP header on, all payloads under one header.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Returns true if its packets have the same IPv4 identification: no header before a packet can tell that
    /// to whoever cuts it, who would number them.
    #[inline]
    #[must_use]
    pub fn has_fixed_id(&self) -> bool {
        self.fixed_id
    }

    /// Takes the next packet, `last` being the one before it; all but checksums is compared.
    ///
    /// # Errors
    /// The reason why it is none of this super-frame, which stays as it was.
    #[inline]
    pub fn join(&mut self, last: &Segment<'_>, next: &Segment<'_>, limits: Limits) -> Result<(), Refusal> {
        if !same_ip(last, next) {
            return Err(Refusal::IpHeader);
        }
        same_transport(last, next)?;
        if self.ended {
            return Err(Refusal::Ended);
        }
        let (payload, tcp) = (next.payload_len(), matches!(next.transport, Transport::Tcp(_)));
        if tcp && next.seq() != self.next_seq {
            return Err(Refusal::Sequence);
        }
        if payload > self.size {
            return Err(Refusal::Size);
        }
        let mut fixed = self.fixed_id;
        if let Some(id) = next.id() {
            let past = id.wrapping_sub(self.first_id);
            if self.segments == 1 && past == 0 {
                fixed = true;
            }
            if past != if fixed { 0 } else { self.segments } {
                return Err(Refusal::IpId);
            }
        }
        let segments = if tcp { limits.segments } else { limits.segments.min(Limits::MOST_DATAGRAMS) };
        let bytes = self.bytes + payload;
        if bytes > limits.bytes.min(Limits::MOST_BYTES) || self.segments >= segments {
            return Err(Refusal::Limit);
        }
        self.fixed_id = fixed;
        self.bytes = bytes;
        self.segments += 1;
        self.next_seq = self.next_seq.wrapping_add(payload);
        self.ended = payload < self.size || next.flags() & LAST != 0;
        Ok(())
    }
}

/// Bytes of a header from `AT` on, to be compared at once.
#[inline(always)]
fn word<const AT: usize, const N: usize, const ALL: usize>(header: &[u8; ALL]) -> Option<&[u8; N]> {
    header.get(AT..).and_then(<[u8]>::first_chunk)
}

#[inline]
fn same_ip(a: &Segment<'_>, b: &Segment<'_>) -> bool {
    let link = match (a.link.first_chunk::<14>(), b.link.first_chunk::<14>()) {
        (Some(first), Some(second)) if a.link.len() == 14 && b.link.len() == 14 => first == second,
        _ => a.link == b.link,
    };
    link && match (a.ip, b.ip) {
        // TOS; then fragment bits, TTL and protocol; then addresses.
        (Ip::V4(a), Ip::V4(b)) => {
            word::<0, 2, _>(a) == word::<0, 2, _>(b)
                && word::<6, 4, _>(a) == word::<6, 4, _>(b)
                && word::<12, 8, _>(a) == word::<12, 8, _>(b)
        }
        // Traffic class and flow label; then protocol, hop limit and addresses.
        (Ip::V6(a), Ip::V6(b)) => {
            word::<0, 4, _>(a) == word::<0, 4, _>(b) && word::<6, 34, _>(a) == word::<6, 34, _>(b)
        }
        _ => false,
    }
}

#[inline]
fn same_transport(last: &Segment<'_>, next: &Segment<'_>) -> Result<(), Refusal> {
    match (last.transport, next.transport) {
        (Transport::Tcp(a), Transport::Tcp(b)) => {
            if word::<0, 4, _>(a) != word::<0, 4, _>(b) {
                return Err(Refusal::Protocol);
            }
            // PSH and FIN end a super-frame.
            let flags = |tcp: &[u8; 20]| be16(tcp, 12) & 0xfff;
            let (a_flags, b_flags) = (flags(a), flags(b));
            if (a_flags ^ b_flags) & !u16::from(FIN_PSH) != 0 {
                return Err(Refusal::TcpFlags);
            }
            let equal = word::<8, 4, _>(a) == word::<8, 4, _>(b)
                && word::<14, 2, _>(a) == word::<14, 2, _>(b)
                && word::<18, 2, _>(a) == word::<18, 2, _>(b);
            if !equal {
                return Err(Refusal::TcpHeader);
            }
            same_options(last, next).then_some(()).ok_or(Refusal::TcpOptions)
        }
        (Transport::Udp(a), Transport::Udp(b)) => {
            (word::<0, 4, _>(a) == word::<0, 4, _>(b)).then_some(()).ok_or(Refusal::Protocol)
        }
        _ => Err(Refusal::Protocol),
    }
}

#[inline]
fn same_options(a: &Segment<'_>, b: &Segment<'_>) -> bool {
    match (a.header, b.header) {
        (20, 20) => true,
        // Timestamps, as almost always.
        (32, 32) => {
            let options =
                |s: &Segment<'_>| s.from_transport.get(20..).and_then(<[u8]>::first_chunk::<12>).copied();
            options(a) == options(b)
        }
        (n, m) => n == m && a.from_transport.get(20..n) == b.from_transport.get(20..m),
    }
}
