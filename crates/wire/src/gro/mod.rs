//! Consecutive TCP segments, or UDP datagrams, of a flow as one super-frame, by the rules of Linux (generic
//! receive offload), and the headers under which it travels.
//!
//! Nothing is lost by that: a super-frame is only what generic segmentation, which cuts it again, turns into
//! the very bytes that came. [`Segment::parse`] reads a packet, [`SuperFrame::start`] begins with it, and
//! [`SuperFrame::join`] says for each further one if it belongs to it, or why not ([`Refusal`]):
//!
//! - **Link layer**: Ethernet with up to two VLAN tags (0x8100 or 0x88a8), or none at all; the same bytes in
//!   each packet. PPPoE and 802.3 have lengths there, and behind a tag of the type 0x9100 Linux doesn't see
//!   what to cut, so they don't pass.
//! - **IPv4** without options, no fragment, **IPv6** without extension headers; the IP length is that of the
//!   frame, to the byte. Equal in all: TOS or traffic class, TTL or hop limit, the bit DF, flow label. The
//!   identification grows by one from packet to packet, or stays as it is.
//! - **TCP**: with payload, in sequence (mod 2³²), the first one as long as all others but the last, which
//!   may be shorter. Equal in all: acknowledgement number, window, urgent pointer, options with their content
//!   (so timestamps as well), flags but for PSH and FIN, which may be set in the last one. No SYN, RST, URG,
//!   and no CWR, which means something of its own in each packet (RFC 9768).
//! - **UDP**: equal lengths, the last one may be shorter; with a checksum, at most 64.
//! - **Checksums** are right, and written as one that calculates them writes them: a sum of which there are
//!   two ways to write would not come back as it was. So a wrong checksum stays with its packet, wrong.

mod header;
mod segment;
mod super_frame;
#[cfg(test)]
#[path = "tests.rs"]
mod tests;

pub use header::{Kind, SuperHeader};
pub use segment::Segment;
pub use super_frame::{Limits, SuperFrame};

/// The reason for which a packet doesn't join the one before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Refusal {
    /// Neither TCP nor UDP; a fragment; headers of a tunnel, or of a link layer that is not Ethernet.
    Protocol,
    /// Not wholly there.
    Truncated,
    /// Lengths that contradict each other or the frame's, such as that of a padded one.
    Length,
    /// IPv4 options, IPv6 extension headers.
    IpOptions,
    /// No payload.
    NoPayload,
    /// Link layer, TOS, TTL, flow label or DF differ.
    IpHeader,
    /// The IPv4 identification is not the next one.
    IpId,
    /// Flags that end a train of segments, or differ.
    TcpFlags,
    /// Acknowledgement number, window or urgent pointer differ.
    TcpHeader,
    /// TCP options differ, such as timestamps.
    TcpOptions,
    /// The sequence number is not the next one.
    Sequence,
    /// Longer than the first.
    Size,
    /// This packet's checksum, or that of the first one, is wrong.
    Checksum,
    /// UDP without a checksum.
    NoChecksum,
    /// The super-frame has as many bytes or packets as it may.
    Limit,
    /// Nothing can follow the packet before: it is shorter than those before it, has PSH or FIN, or can be in
    /// no super-frame itself.
    Ended,
}

impl Refusal {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 16] = [
        Self::Protocol,
        Self::Truncated,
        Self::Length,
        Self::IpOptions,
        Self::NoPayload,
        Self::IpHeader,
        Self::IpId,
        Self::TcpFlags,
        Self::TcpHeader,
        Self::TcpOptions,
        Self::Sequence,
        Self::Size,
        Self::Checksum,
        Self::NoChecksum,
        Self::Limit,
        Self::Ended,
    ];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Protocol => "protocol",
            Self::Truncated => "truncated",
            Self::Length => "length",
            Self::IpOptions => "ip_options",
            Self::NoPayload => "no_payload",
            Self::IpHeader => "ip_header",
            Self::IpId => "ip_id",
            Self::TcpFlags => "tcp_flags",
            Self::TcpHeader => "tcp_header",
            Self::TcpOptions => "tcp_options",
            Self::Sequence => "sequence",
            Self::Size => "size",
            Self::Checksum => "checksum",
            Self::NoChecksum => "no_checksum",
            Self::Limit => "limit",
            Self::Ended => "ended",
        }
    }
}
