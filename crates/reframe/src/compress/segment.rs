//! A packet of a train as the compressor and the TCP order see it: a TCP segment in an IP packet that is no
//! fragment.

use slipstream_wire::checksum::{combine, sum};
use slipstream_wire::view::{Ipv4, Ipv6, Tcp};

/// A captured packet and where its headers are. What is not TCP, or a fragment, has no business here: the
/// flow table knows.
#[derive(Clone, Copy, Debug)]
pub struct PacketView<'a> {
    /// The captured bytes, from the link-layer header on.
    pub data: &'a [u8],
    /// Offset of the IP header in bytes.
    pub l3: u16,
    /// Offset of the TCP header in bytes.
    pub l4: u16,
}

/// A TCP segment whose headers were captured whole and whose lengths agree.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment<'a> {
    /// The bytes before the IP header.
    pub(super) link: &'a [u8],
    /// The IP header with its options or extension headers.
    pub(super) ip: &'a [u8],
    /// The TCP header with its options.
    pub(super) tcp: Tcp<&'a [u8]>,
    /// Bytes of payload by the IP length, captured or not.
    payload: usize,
}

impl<'a> PacketView<'a> {
    /// TCP flags (twelve bits) and acknowledgement number, where they were captured.
    pub(super) fn acknowledgement(&self) -> Option<(u16, u32)> {
        let bytes = self.data.get(usize::from(self.l4)..)?;
        let tcp = Tcp::new_unchecked(bytes);
        (bytes.len() >= 14).then(|| (tcp.flags(), tcp.ack()))
    }

    /// Sequence number, where it was captured.
    pub(crate) fn seq(&self) -> Option<u32> {
        let bytes = self.data.get(usize::from(self.l4)..)?;
        (bytes.len() >= 8).then(|| Tcp::new_unchecked(bytes).seq())
    }

    /// The segment; `None` where its headers are cut, or its lengths contradict each other (the IP length of
    /// a packet captured before the network card segments it may be 0).
    pub(crate) fn segment(&self) -> Option<Segment<'a>> {
        let (l3, l4) = (usize::from(self.l3), usize::from(self.l4));
        let link = self.data.get(..l3)?;
        let ip = self.data.get(l3..l4)?;
        let length = if let Ok(v4) = Ipv4::new_checked(ip) {
            (v4.header_len() == ip.len() && !v4.is_fragment()).then(|| usize::from(v4.total_length()))?
        } else {
            Ipv6::new_checked(ip).ok().map(|v6| usize::from(v6.payload_length()) + 40)?
        };
        let rest = self.data.get(l4..)?;
        let header = Tcp::new_checked(rest).ok()?.header_len();
        let payload = length.checked_sub(ip.len() + header)?;
        Some(Segment { link, ip, tcp: Tcp::new_unchecked(rest.get(..header)?), payload })
    }
}

impl Segment<'_> {
    /// Returns true if the packet is IPv6.
    pub(super) fn is_ipv6(&self) -> bool {
        self.ip.first().is_some_and(|b| b >> 4 == 6)
    }

    /// Sequence number.
    pub(crate) fn seq(&self) -> u32 {
        self.tcp.seq()
    }

    /// The twelve bits of TCP flags.
    pub(crate) fn flags(&self) -> u16 {
        self.tcp.flags()
    }

    /// Returns true if there is payload, by the IP length.
    pub(crate) fn has_payload(&self) -> bool {
        self.payload > 0
    }

    /// Returns true if the IPv4 header checksum and the TCP checksum are right, for a segment without
    /// payload.
    pub(super) fn checksums_are_right(&self) -> bool {
        let (addresses, ip_right) = if self.is_ipv6() {
            (self.ip.get(8..40), true)
        } else {
            (self.ip.get(12..20), sum(self.ip) == u16::MAX)
        };
        let header = self.tcp.bytes();
        let pseudo = [0, 6, 0, header.len() as u8]; // at most 60 bytes
        let total = combine(combine(sum(addresses.unwrap_or_default()), sum(&pseudo)), sum(header));
        ip_right && total == u16::MAX
    }
}
