//! Packets for tests, written out field by field.

use super::PacketView;

pub(crate) const FIN: u16 = 0x001;
pub(crate) const SYN: u16 = 0x002;
pub(crate) const RST: u16 = 0x004;
pub(crate) const PSH: u16 = 0x008;
pub(crate) const ACK: u16 = 0x010;
pub(crate) const URG: u16 = 0x020;
pub(crate) const ECE: u16 = 0x040;
pub(crate) const CWR: u16 = 0x080;
pub(crate) const AE: u16 = 0x100;

/// A TCP packet on Ethernet. The default is a pure acknowledgement over IPv4 with right checksums.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    pub(crate) ipv6: bool,
    /// The last byte of the destination's hardware address.
    pub(crate) hardware: u8,
    /// TOS or traffic class.
    pub(crate) tos: u8,
    pub(crate) ttl: u8,
    /// IPv4 identification, or IPv6 flow label.
    pub(crate) ident: u16,
    /// The IPv4 word with fragment flags and offset.
    pub(crate) fragment: u16,
    /// IPv4 options, or IPv6 destination options; a multiple of 4, or 8 with a header to be made of them.
    pub(crate) ip_options: Vec<u8>,
    /// The IP length field, where it is not to be right.
    pub(crate) ip_length: Option<u16>,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    pub(crate) flags: u16,
    pub(crate) window: u16,
    pub(crate) urgent: u16,
    /// TCP options; padded with zeros.
    pub(crate) options: Vec<u8>,
    /// Bytes of payload.
    pub(crate) payload: usize,
    /// An amount to add to the right checksums.
    pub(crate) tcp_checksum_error: u16,
    pub(crate) ip_checksum_error: u16,
    /// Bytes captured, if not all.
    pub(crate) snap: Option<usize>,
}

impl Default for Packet {
    fn default() -> Self {
        Self {
            ipv6: false,
            hardware: 1,
            tos: 0,
            ttl: 64,
            ident: 0,
            fragment: 0x4000,
            ip_options: Vec::new(),
            ip_length: None,
            seq: 1000,
            ack: 100,
            flags: ACK,
            window: 500,
            urgent: 0,
            options: Vec::new(),
            payload: 0,
            tcp_checksum_error: 0,
            ip_checksum_error: 0,
            snap: None,
        }
    }
}

impl Packet {
    fn ip_header_len(&self) -> usize {
        if self.ipv6 { 40 } else { 20 }
    }

    fn tcp(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = (20 + options.len()) / 4;
        let mut tcp = vec![0x1f, 0x90, 0x04, 0xd2];
        tcp.extend(self.seq.to_be_bytes());
        tcp.extend(self.ack.to_be_bytes());
        tcp.extend(((words as u16) << 12 | self.flags).to_be_bytes());
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0, 0]);
        tcp.extend(self.urgent.to_be_bytes());
        tcp.extend(options);
        tcp.extend((0..self.payload).map(|i| i as u8));
        tcp
    }

    fn ip(&self, tcp_len: usize) -> Vec<u8> {
        let length = self.ip_options.len() + tcp_len;
        if self.ipv6 {
            let length = self.ip_length.unwrap_or(length as u16);
            let mut ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0, 0];
            ip[2..4].copy_from_slice(&self.ident.to_be_bytes());
            ip.extend(length.to_be_bytes());
            ip.extend([if self.ip_options.is_empty() { 6 } else { 60 }, self.ttl]);
            ip.extend([0x20; 16]);
            ip.extend([0x30; 16]);
            ip.extend(&self.ip_options);
            return ip;
        }
        let length = self.ip_length.unwrap_or((20 + length) as u16);
        let mut ip = vec![0x45 + (self.ip_options.len() / 4) as u8, self.tos];
        ip.extend(length.to_be_bytes());
        ip.extend(self.ident.to_be_bytes());
        ip.extend(self.fragment.to_be_bytes());
        ip.extend([self.ttl, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        ip.extend(&self.ip_options);
        let checksum = checksum(&ip).wrapping_add(self.ip_checksum_error);
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        ip
    }

    /// Its bytes, as captured.
    pub(crate) fn frame(&self) -> Vec<u8> {
        let mut tcp = self.tcp();
        let ip = self.ip(tcp.len());
        let mut sums = if self.ipv6 { ip[8..40].to_vec() } else { ip[12..20].to_vec() };
        sums.extend([0, 6]);
        sums.extend((tcp.len() as u16).to_be_bytes());
        sums.extend(&tcp);
        let checksum = checksum(&sums).wrapping_add(self.tcp_checksum_error);
        tcp[16..18].copy_from_slice(&checksum.to_be_bytes());

        let mut frame = vec![2, 0, 0, 0, 0, self.hardware, 2, 0, 0, 0, 0, 9];
        frame.extend(if self.ipv6 { [0x86, 0xdd] } else { [8, 0] });
        frame.extend(ip);
        frame.extend(tcp);
        if frame.len() < 60 {
            frame.resize(60, 0);
        }
        frame.truncate(self.snap.unwrap_or(usize::MAX));
        frame
    }

    /// A view of `frame`, which [`frame`](Self::frame) made.
    pub(crate) fn view<'a>(&self, frame: &'a [u8]) -> PacketView<'a> {
        let l4 = 14 + self.ip_header_len() + self.ip_options.len();
        PacketView { data: frame, l3: 14, l4: l4 as u16 }
    }
}

/// The Internet checksum by the book (RFC 1071): word by word.
fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).map_or(0, |&b| u32::from(b)));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}
