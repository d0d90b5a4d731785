//! A packet that may be part of a super-frame.

use super::Refusal;
use crate::bytes::{be16, be32, byte};
use crate::checksum::{combine, is_right_ipv4, sum};
use crate::protocol::{TCP, UDP};

/// Flags after which a train of segments goes on with another super-frame.
pub(super) const LAST: u8 = 0x01 | 0x02 | 0x04 | 0x08 | 0x20 | 0x80; // FIN, SYN, RST, PSH, URG, CWR
pub(super) const FIN_PSH: u8 = 0x01 | 0x08;

/// A whole TCP segment with payload, or UDP datagram with payload and checksum, whose lengths agree.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// The bytes before the IP header.
    pub(super) link: &'a [u8],
    pub(super) ip: Ip<'a>,
    /// The transport header's fixed part, and all from its start on.
    pub(super) transport: Transport<'a>,
    pub(super) from_transport: &'a [u8],
    /// Bytes of the transport header with options.
    pub(super) header: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Ip<'a> {
    V4(&'a [u8; 20]),
    V6(&'a [u8; 40]),
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Transport<'a> {
    Tcp(&'a [u8; 20]),
    Udp(&'a [u8; 8]),
}

/// Returns true if so many bytes before an IP header are none, or those of Ethernet with at most two VLAN
/// tags. A tag of the old type 0x9100 is none that Linux can look behind, so that it cuts no such packet.
#[inline]
fn is_link(link: &[u8]) -> bool {
    match link {
        [] => true,
        [_, _, _, _, _, _, _, _, _, _, _, _, tags @ .., a, b] if tags.len() <= 8 => {
            let (tags, rest) = tags.as_chunks::<4>();
            let tagged = |tag: &[u8; 4]| matches!(tag, [0x81, 0, ..] | [0x88, 0xa8, ..]);
            rest.is_empty() && tags.iter().all(tagged) && matches!([*a, *b], [8, 0] | [0x86, 0xdd])
        }
        _ => false,
    }
}

impl<'a> Segment<'a> {
    /// Reads a packet that classification found whole headers in: `l3` and `l4` are the offsets of the IP and
    /// the transport header in bytes.
    ///
    /// # Errors
    /// The reason why it is in no super-frame, whatever comes before and after it.
    #[inline]
    pub fn parse(frame: &'a [u8], l3: u16, l4: u16) -> Result<Self, Refusal> {
        let (l3, l4) = (usize::from(l3), usize::from(l4));
        let (link, rest) = frame.split_at_checked(l3).ok_or(Refusal::Truncated)?;
        if !is_link(link) {
            return Err(Refusal::Protocol);
        }
        let (ip, protocol) = match byte(rest, 0) >> 4 {
            4 => {
                let ip: &[u8; 20] = rest.first_chunk().ok_or(Refusal::Truncated)?;
                let [version, _, a, b, _, _, flags, offset, _, protocol, ..] = *ip;
                if version != 0x45 {
                    return Err(Refusal::IpOptions);
                }
                // Neither a fragment nor the reserved bit.
                if flags & 0xbf | offset != 0 {
                    return Err(Refusal::Protocol);
                }
                if usize::from(u16::from_be_bytes([a, b])) != rest.len() {
                    return Err(Refusal::Length);
                }
                (Ip::V4(ip), protocol)
            }
            6 => {
                let ip: &[u8; 40] = rest.first_chunk().ok_or(Refusal::Truncated)?;
                let [_, _, _, _, a, b, protocol, ..] = *ip;
                if l4 != l3 + 40 {
                    return Err(Refusal::IpOptions);
                }
                if usize::from(u16::from_be_bytes([a, b])) + 40 != rest.len() {
                    return Err(Refusal::Length);
                }
                (Ip::V6(ip), protocol)
            }
            _ => return Err(Refusal::Protocol),
        };
        let from_transport = frame.get(l4..).ok_or(Refusal::Truncated)?;
        let (transport, header) = match protocol {
            TCP => {
                let tcp: &[u8; 20] = from_transport.first_chunk().ok_or(Refusal::Length)?;
                (Transport::Tcp(tcp), usize::from(byte(tcp, 12) >> 4) * 4)
            }
            UDP => {
                let udp: &[u8; 8] = from_transport.first_chunk().ok_or(Refusal::Length)?;
                if usize::from(be16(udp, 4)) != from_transport.len() {
                    return Err(Refusal::Length);
                }
                if be16(udp, 6) == 0 {
                    return Err(Refusal::NoChecksum);
                }
                (Transport::Udp(udp), 8)
            }
            _ => return Err(Refusal::Protocol),
        };
        if header > from_transport.len() || header < if protocol == TCP { 20 } else { 8 } {
            return Err(Refusal::Length);
        }
        if header == from_transport.len() {
            return Err(Refusal::NoPayload);
        }
        Ok(Self { link, ip, transport, from_transport, header })
    }

    /// All its headers, link layer and options included.
    #[must_use]
    pub fn headers(&self) -> (&'a [u8], &'a [u8], &'a [u8]) {
        let ip: &[u8] = match self.ip {
            Ip::V4(ip) => ip,
            Ip::V6(ip) => ip,
        };
        (self.link, ip, self.from_transport.get(..self.header).unwrap_or_default())
    }

    /// Its payload.
    #[inline]
    #[must_use]
    pub fn payload(&self) -> &'a [u8] {
        self.from_transport.get(self.header..).unwrap_or_default()
    }

    /// Bytes of payload: 1 to 65,515.
    #[inline]
    pub(super) fn payload_len(&self) -> u32 {
        (self.from_transport.len() - self.header) as u32
    }

    /// Bytes from the IP header on.
    #[inline]
    pub(super) fn ip_len(&self) -> u32 {
        let ip = match self.ip {
            Ip::V4(_) => 20,
            Ip::V6(_) => 40,
        };
        ip + self.from_transport.len() as u32
    }

    /// TCP flags; 0 of UDP.
    #[inline]
    pub(super) fn flags(&self) -> u8 {
        match self.transport {
            Transport::Tcp(tcp) => byte(tcp, 13),
            Transport::Udp(_) => 0,
        }
    }

    /// Sequence number; 0 of UDP.
    #[inline]
    pub(super) fn seq(&self) -> u32 {
        match self.transport {
            Transport::Tcp(tcp) => be32(tcp, 4),
            Transport::Udp(_) => 0,
        }
    }

    /// IPv4 identification.
    #[inline]
    pub(super) fn id(&self) -> Option<u16> {
        match self.ip {
            Ip::V4(ip) => Some(be16(ip, 4)),
            Ip::V6(_) => None,
        }
    }

    /// Returns true if all checksums are right, and written as one that calculates them would.
    #[inline]
    #[must_use]
    pub fn checksums_are_right(&self) -> bool {
        let (addresses, ip_right) = match self.ip {
            // 0xffff stands for the same sum as 0, which is what a calculation gives.
            Ip::V4(ip) => {
                (sum(ip.last_chunk::<8>().unwrap_or(&[0; 8])), is_right_ipv4(ip) && be16(ip, 10) != 0xffff)
            }
            Ip::V6(ip) => (sum(ip.last_chunk::<32>().unwrap_or(&[0; 32])), true),
        };
        let (protocol, plain) = match self.transport {
            Transport::Tcp(tcp) => (TCP, be16(tcp, 16) != 0xffff),
            // Of UDP it is the other way round: 0 means none, and was refused.
            Transport::Udp(_) => (UDP, true),
        };
        // An IP length is 16 bits, so that the upper half of IPv6's 32-bit length is 0.
        let pseudo = combine(addresses, combine(self.from_transport.len() as u16, u16::from(protocol)));
        ip_right && plain && combine(pseudo, sum(self.from_transport)) == 0xffff
    }
}
