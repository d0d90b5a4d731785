//! One pass over a frame's headers: from its first byte to the flow key.

use core::fmt;

use crate::{FlowKey, LinkType, fast, general, tunnel};

/// The headers that [`classify`] finds in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Headers {
    /// The directional flow key.
    pub key: FlowKey,
    /// Offset of the IP header that the key comes from, in bytes from the start of the frame.
    pub l3: u16,
    /// Offset of the transport header (after IPv4 options or IPv6 extension headers). It may lie beyond the
    /// captured bytes; [`Flags::PORTS`] and [`Flags::TCP`] say what is there.
    pub l4: u16,
    /// Facts about the packet.
    pub flags: Flags,
    /// TCP flags (FIN 0x01 … CWR 0x80); 0 where [`Flags::TCP`] is not set.
    pub tcp_flags: u8,
    /// IPv4 TOS or IPv6 traffic class: DSCP in the upper six bits, ECN in the lower two.
    pub tos: u8,
}

/// Facts about a packet, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flags(pub u8);

impl Flags {
    /// IP version 6.
    pub const IPV6: u8 = 1;
    /// A fragment: more-fragments set or offset above 0 (first fragments too).
    pub const FRAGMENT: u8 = 2;
    /// The ports were captured and are in the key.
    pub const PORTS: u8 = 4;
    /// TCP, no fragment, and at least the first 14 bytes of its header captured: flags, sequence and
    /// acknowledgement numbers can be read.
    pub const TCP: u8 = 8;
    /// The key comes from an inner header of a tunnel.
    pub const INNER: u8 = 16;

    /// Says that some bit of `bits` is set.
    #[inline]
    #[must_use]
    pub const fn has(self, bits: u8) -> bool {
        self.0 & bits != 0
    }
}

/// The reason why a frame has no flow key. Such a frame is passed through untouched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Skip {
    /// Not IP: ARP, LLDP, MPLS, PPPoE, an 802.3 length, an IP ethertype over a different version.
    NonIp,
    /// A link type that is not understood.
    UnsupportedLinkType,
    /// The captured bytes end before the IP header does.
    Truncated,
    /// A malformed IP header (IPv4 header length under 20 bytes) or more VLAN tags than a key can hold.
    Malformed,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NonIp => "the frame is not of IP",
            Self::UnsupportedLinkType => "the link type is not understood",
            Self::Truncated => "the captured bytes end before the IP header does",
            Self::Malformed => "the IP header is malformed, or there are more VLAN tags than a key holds",
        })
    }
}

impl core::error::Error for Skip {}

/// The IP header that the flow key comes from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encapsulation {
    /// The outermost IP header.
    #[default]
    Outer,
    /// The innermost IP header of GRE, VXLAN, GENEVE and IP-in-IP.
    Inner,
}

/// Headers of a frame, the key from the outermost IP header.
///
/// The usual frame (untagged Ethernet, IPv4 without options, TCP or UDP, no fragment) is read inline with one
/// length check; every other takes a call.
///
/// ```
/// use slipstream_wire::{LinkType, Skip, classify};
///
/// let udp = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0, 53, 4, 210, 0, 8, 0, 0];
/// let headers = classify(LinkType::RawIp, &udp)?;
/// assert_eq!(headers.key.to_string(), "10.0.0.1:53 > 10.0.0.2:1234 udp");
/// assert_eq!(headers.l4, 20);
///
/// let cut = classify(LinkType::RawIp, &udp[..10]);
/// assert_eq!(cut, Err(Skip::Truncated));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Skip`] where the frame has no flow key.
#[inline]
pub fn classify(link: LinkType, frame: &[u8]) -> Result<Headers, Skip> {
    if matches!(link, LinkType::Ethernet) {
        if let Some(headers) = frame.first_chunk().and_then(fast::untagged) {
            return Ok(headers);
        }
        return fast::uncommon(frame);
    }
    classify_reference(link, frame)
}

/// Bytes of a frame that [`classify_usual`] reads.
pub const USUAL: usize = fast::UNTAGGED;

/// As [`classify`] on Ethernet for the usual frame (untagged, IPv4 without options, TCP or UDP, no fragment)
/// of at least [`USUAL`] bytes, which these are the first of; `None` for any other, which [`classify`] has to
/// be asked about.
///
/// Whoever handles the usual frame apart from all others spares it the way through memory that a result of
/// two kinds takes.
#[inline(always)]
#[must_use]
pub fn classify_usual(frame: &[u8; USUAL]) -> Option<Headers> {
    fast::untagged(frame)
}

/// As [`classify`], without its fast paths: the obvious walk through the headers, which [`classify`] must
/// equal on any bytes. Tests and benchmarks compare with it.
///
/// # Errors
/// [`Skip`] where the frame has no flow key.
#[inline(never)]
pub fn classify_reference(link: LinkType, frame: &[u8]) -> Result<Headers, Skip> {
    general::classify(link, frame).map(|parsed| parsed.headers)
}

/// As [`classify`], with a choice of the header in tunnels.
///
/// # Errors
/// [`Skip`] where the frame has no flow key.
#[inline]
pub fn classify_with(link: LinkType, frame: &[u8], encapsulation: Encapsulation) -> Result<Headers, Skip> {
    match encapsulation {
        Encapsulation::Outer => classify(link, frame),
        Encapsulation::Inner => tunnel::innermost(link, frame),
    }
}
