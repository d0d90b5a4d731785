//! The headers of a super-frame: those of its first packet, for the payload of all.

use super::SuperFrame;
use super::segment::{FIN_PSH, Ip, Segment, Transport};
use crate::bytes::put;
use crate::checksum::{checksum, combine, sum};
use crate::protocol::{TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM};

/// Longest headers: Ethernet with two tags, IPv6, TCP with options.
const LONGEST: usize = 14 + 8 + 40 + 60;

/// Kind of a super-frame, by the name that cards and kernels have for the work of cutting it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// TCP over IPv4.
    Tcp4,
    /// TCP over IPv6.
    Tcp6,
    /// UDP.
    Udp,
}

/// The headers of a super-frame, without its payload. The transport checksum is left to whoever cuts it: in
/// its place is the sum of the pseudo-header.
#[derive(Clone, Copy, Debug)]
pub struct SuperHeader {
    bytes: [u8; LONGEST],
    len: u8,
    l4: u8,
    /// Kind of the super-frame.
    pub kind: Kind,
    /// Bytes of payload of each packet but the last.
    pub size: u16,
}

impl SuperHeader {
    /// Of a super-frame that begins and ends with these packets.
    #[must_use]
    pub fn new(run: &SuperFrame, first: &Segment<'_>, last: &Segment<'_>) -> Self {
        let mut bytes = [0; LONGEST];
        let (link, ip, transport) = first.headers();
        let (l3, l4) = (link.len(), link.len() + ip.len());
        let len = l4 + transport.len();
        for (at, part) in [(0, link), (l3, ip), (l4, transport)] {
            put(&mut bytes, at, part);
        }
        let total = run.bytes() as u16; // An IP packet at most.
        let transport_len = total - ip.len() as u16;
        let (kind, protocol, checksum_at, addresses) = match (first.transport, first.ip) {
            (Transport::Tcp(_), Ip::V4(ip)) => {
                (Kind::Tcp4, TCP, TCP_CHECKSUM, sum(ip.last_chunk::<8>().unwrap_or(&[0; 8])))
            }
            (Transport::Tcp(_), Ip::V6(ip)) => {
                (Kind::Tcp6, TCP, TCP_CHECKSUM, sum(ip.last_chunk::<32>().unwrap_or(&[0; 32])))
            }
            (Transport::Udp(_), Ip::V4(ip)) => {
                (Kind::Udp, UDP, UDP_CHECKSUM, sum(ip.last_chunk::<8>().unwrap_or(&[0; 8])))
            }
            (Transport::Udp(_), Ip::V6(ip)) => {
                (Kind::Udp, UDP, UDP_CHECKSUM, sum(ip.last_chunk::<32>().unwrap_or(&[0; 32])))
            }
        };
        match first.ip {
            Ip::V4(_) => {
                put(&mut bytes, l3 + 2, &total.to_be_bytes());
                put(&mut bytes, l3 + 10, &[0; 2]);
                let value = checksum(bytes.get(l3..l4).unwrap_or_default());
                put(&mut bytes, l3 + 10, &value.to_be_bytes());
            }
            Ip::V6(_) => put(&mut bytes, l3 + 4, &(total - 40).to_be_bytes()),
        }
        match first.transport {
            Transport::Tcp(_) => {
                let flags = first.flags() | last.flags() & FIN_PSH;
                put(&mut bytes, l4 + 13, &[flags]);
            }
            Transport::Udp(_) => put(&mut bytes, l4 + 4, &transport_len.to_be_bytes()),
        }
        let pseudo = combine(addresses, combine(transport_len, u16::from(protocol)));
        put(&mut bytes, l4 + checksum_at, &pseudo.to_be_bytes());
        Self { bytes, len: len as u8, l4: l4 as u8, kind, size: run.size() as u16 }
    }

    /// The headers' bytes, from the link layer on.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// Offset of the transport header in bytes, from which on is checksummed, and of the checksum in it.
    #[must_use]
    pub fn checksum_place(&self) -> (u16, u16) {
        (u16::from(self.l4), if self.kind == Kind::Udp { 6 } else { 16 })
    }
}
