//! Flows spread over several cores by a hash of their own: that of the packet filter which
//! [`af_packet`](crate::af_packet) gives the kernel, here as a function, for packets that came another way.
//!
//! The hash is symmetric: both directions of a connection have the same. It goes by the addresses, and by the
//! ports of TCP, UDP and SCTP, which the kernel's filter sees where the packet is no fragment and has no
//! extension headers.

use slipstream_wire::protocol;

/// A multiplier whose bits are well mixed: 2³² divided by the golden ratio.
pub(crate) const MIX: u32 = 0x9e37_79b1;
/// Protocols with ports in front.
pub(crate) const WITH_PORTS: [u8; 3] = [6, 17, 132];

/// Extension headers that are looked behind.
const MOST_EXTENSIONS: u32 = 32;

/// The parts of a packet by which it is led to a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends<'a> {
    /// Protocol behind the IP header and IPv6 extension headers.
    pub protocol: u8,
    /// Source address, 4 or 16 bytes.
    pub source: &'a [u8],
    /// Destination address, as long.
    pub destination: &'a [u8],
    /// The payload of that protocol, as far as it is there.
    pub payload: &'a [u8],
    /// Of a fragment: its identification, and true for the first one.
    pub fragment: Option<(u32, bool)>,
    /// The payload is behind IPv6 extension headers.
    pub extended: bool,
}

impl<'a> Ends<'a> {
    /// Of an Ethernet frame, with a VLAN tag or without; none if it isn't IP, or is cut off before its
    /// addresses end.
    #[must_use]
    pub fn of_frame(frame: &'a [u8]) -> Option<Self> {
        let kind = |at: usize| frame.get(at..at + 2);
        let at = if matches!(kind(12)?, [0x81, 0] | [0x88, 0xa8]) { 16 } else { 12 };
        let packet = frame.get(at + 2..)?;
        match kind(at)? {
            [0x08, 0] => Self::of_ipv4(packet),
            [0x86, 0xdd] => Self::of_ipv6(packet),
            _ => None,
        }
    }

    /// Of an IPv6 packet.
    #[must_use]
    pub fn of_ipv6(packet: &'a [u8]) -> Option<Self> {
        let protocol = *packet.get(6)?;
        let mut ends = Self {
            protocol,
            source: packet.get(8..24)?,
            destination: packet.get(24..40)?,
            payload: packet.get(40..)?,
            fragment: None,
            extended: protocol::is_extension(protocol),
        };
        if ends.extended {
            ends.skip_extensions();
        }
        Some(ends)
    }

    /// Goes on to what is behind extension headers (RFC 8200 §4; RFC 4302 §2.2), or to the first one that is
    /// cut off. In a later fragment that is anything.
    #[cold]
    fn skip_extensions(&mut self) {
        for _ in 0..MOST_EXTENSIONS {
            if !protocol::is_extension(self.protocol) {
                return;
            }
            let Some(&[next, length, a, b, id @ ..]) = self.payload.first_chunk::<8>() else { return };
            let bytes = match self.protocol {
                protocol::FRAGMENT => 8,
                protocol::AH => (usize::from(length) + 2) * 4,
                _ => (usize::from(length) + 1) * 8,
            };
            let is_fragment_header = self.protocol == protocol::FRAGMENT;
            self.protocol = next;
            self.payload = self.payload.get(bytes..).unwrap_or_default();
            // The offset, and the bit that says that more follow: a packet may be whole behind such a header
            // (RFC 6946).
            let part = u16::from_be_bytes([a, b]) & 0xfff9;
            if is_fragment_header && part != 0 {
                self.fragment = Some((u32::from_be_bytes(id), part & 0xfff8 == 0));
                if part & 0xfff8 != 0 {
                    return;
                }
            }
        }
    }

    /// Of an IPv4 packet.
    #[must_use]
    pub fn of_ipv4(packet: &'a [u8]) -> Option<Self> {
        let header = usize::from(packet.first()? & 15) * 4;
        let part = u16::from_be_bytes([*packet.get(6)?, *packet.get(7)?]);
        let id = u16::from_be_bytes([*packet.get(4)?, *packet.get(5)?]);
        Some(Self {
            protocol: *packet.get(9)?,
            source: packet.get(12..16)?,
            destination: packet.get(16..20)?,
            payload: packet.get(header..).unwrap_or_default(),
            // All but "don't fragment": more fragments, or an offset.
            fragment: (part & 0x3fff != 0).then_some((id.into(), part & 0x1fff == 0)),
            extended: false,
        })
    }

    /// Both ports, where it has some in front; of fragments only the first one has.
    #[must_use]
    pub fn ports(&self) -> Option<[u16; 2]> {
        let first = self.fragment.is_none_or(|(_, first)| first);
        if !first || !WITH_PORTS.contains(&self.protocol) {
            return None;
        }
        let [a, b, c, d] = *self.payload.first_chunk()?;
        Some([u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])])
    }

    /// The hash by which the kernel's filter would choose a socket: the same for both directions. With `all`,
    /// ports count too that it doesn't see: those of a first fragment, and behind extension headers.
    #[must_use]
    pub fn hash(&self, all: bool) -> u32 {
        let mut hash = words(self.source) ^ words(self.destination);
        let seen = self.fragment.is_none() && !self.extended;
        if let Some([from, to]) = self.ports().filter(|_| seen || all) {
            hash ^= u32::from(from ^ to).wrapping_mul(MIX);
        }
        mixed(hash)
    }
}

/// The hash of one address.
#[must_use]
pub fn address(bytes: &[u8]) -> u32 {
    mixed(words(bytes))
}

fn mixed(hash: u32) -> u32 {
    hash.wrapping_mul(MIX) >> 12
}

fn words(bytes: &[u8]) -> u32 {
    bytes.as_chunks().0.iter().fold(0, |all, word| all ^ u32::from_be_bytes(*word))
}
