//! One packet as bytes: Ethernet, VLAN, IPv4 or IPv6, then TCP, UDP or an ICMP echo, with right lengths and
//! checksums.

use slipstream_wire::checksum::{checksum, combine, sum};

/// Length of an Ethernet header.
const ETHERNET: usize = 14;
/// Shortest frame (without its frame check sequence); shorter ones are padded with zeros behind the datagram.
const SHORTEST: usize = 60;
/// Payload is cut from a block of this many bytes.
const BLOCK: usize = 1 << 12;

/// TCP flags.
pub(super) mod flag {
    pub(in super::super) const FIN: u8 = 0x01;
    pub(in super::super) const SYN: u8 = 0x02;
    pub(in super::super) const PSH: u8 = 0x08;
    pub(in super::super) const ACK: u8 = 0x10;
}

/// Source and destination address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Addresses {
    /// IPv4.
    V4([u8; 4], [u8; 4]),
    /// IPv6.
    V6([u8; 16], [u8; 16]),
}

/// Fields that a directional flow puts into every packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) addresses: Addresses,
    pub(super) ports: (u16, u16),
    pub(super) vlan: Option<u16>,
}

impl Path {
    /// The other direction.
    pub(super) const fn reversed(self) -> Self {
        let addresses = match self.addresses {
            Addresses::V4(src, dst) => Addresses::V4(dst, src),
            Addresses::V6(src, dst) => Addresses::V6(dst, src),
        };
        Self { addresses, ports: (self.ports.1, self.ports.0), vlan: self.vlan }
    }

    /// Bytes before the transport header.
    pub(super) const fn network_headers(self) -> usize {
        let tag = if self.vlan.is_some() { 4 } else { 0 };
        let ip = match self.addresses {
            Addresses::V4(..) => 20,
            Addresses::V6(..) => 40,
        };
        ETHERNET + tag + ip
    }
}

/// The fields of a TCP header that change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tcp {
    pub(super) seq: u32,
    pub(super) ack: u32,
    pub(super) flags: u8,
    pub(super) window: u16,
    /// Value and echo of the timestamps option.
    pub(super) timestamps: Option<(u32, u32)>,
    /// On SYN segments: the largest segment that the sender takes.
    pub(super) mss: u16,
}

/// Shift of the window on connections that are opened here.
pub(super) const WINDOW_SHIFT: u8 = 7;

impl Tcp {
    /// Bytes of the header with its options.
    pub(super) const fn header_len(flags: u8, timestamps: bool) -> usize {
        match (flags & flag::SYN != 0, timestamps) {
            (true, true) => 40,
            (true, false) | (false, true) => 32,
            (false, false) => 20,
        }
    }

    fn write(&self, ports: (u16, u16), out: &mut Vec<u8>) {
        let len = Self::header_len(self.flags, self.timestamps.is_some());
        let start = out.len();
        out.extend_from_slice(&ports.0.to_be_bytes());
        out.extend_from_slice(&ports.1.to_be_bytes());
        out.extend_from_slice(&self.seq.to_be_bytes());
        out.extend_from_slice(&self.ack.to_be_bytes());
        out.extend_from_slice(&[(len as u8 / 4) << 4, self.flags]);
        out.extend_from_slice(&self.window.to_be_bytes());
        out.extend_from_slice(&[0; 4]);
        if self.flags & flag::SYN != 0 {
            let [hi, lo] = self.mss.to_be_bytes();
            // MSS, SACK permitted.
            out.extend_from_slice(&[2, 4, hi, lo, 4, 2]);
        } else if self.timestamps.is_some() {
            out.extend_from_slice(&[1, 1]);
        }
        if let Some((value, echo)) = self.timestamps {
            out.extend_from_slice(&[8, 10]);
            out.extend_from_slice(&value.to_be_bytes());
            out.extend_from_slice(&echo.to_be_bytes());
        }
        if self.flags & flag::SYN != 0 {
            out.extend_from_slice(&[1, 3, 3, WINDOW_SHIFT]);
        }
        // No-operation up to the length that was announced.
        out.resize(start + len, 1);
    }
}

/// The layer above IP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport {
    Tcp(Tcp),
    Udp,
    /// ICMP (ICMPv6 over IPv6) echo with identifier and sequence number.
    Echo {
        reply: bool,
        id: u16,
        seq: u16,
    },
}

impl Transport {
    pub(super) const fn header_len(self) -> usize {
        match self {
            Self::Tcp(tcp) => Tcp::header_len(tcp.flags, tcp.timestamps.is_some()),
            Self::Udp | Self::Echo { .. } => 8,
        }
    }

    const fn protocol(self, v6: bool) -> u8 {
        match self {
            Self::Tcp(_) => 6,
            Self::Udp => 17,
            Self::Echo { .. } if v6 => 58,
            Self::Echo { .. } => 1,
        }
    }
}

/// One packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet {
    pub(super) path: Path,
    pub(super) transport: Transport,
    /// Bytes behind the transport header.
    pub(super) payload_len: usize,
    /// Position of the payload in the flow's stream of bytes: equal positions hold equal bytes.
    pub(super) position: u64,
    /// IPv4 identification.
    pub(super) ip_id: u16,
    /// Time to live, hop limit.
    pub(super) ttl: u8,
}

impl Packet {
    /// Length of the frame.
    pub(super) fn frame_len(&self) -> usize {
        (self.path.network_headers() + self.transport.header_len() + self.payload_len).max(SHORTEST)
    }
}

/// Writes packets, with payload out of one block of random bytes.
#[derive(Clone, Debug)]
pub(super) struct Writer {
    /// The block, and then its beginning again, so that a slice never wraps in the common case.
    block: Vec<u8>,
}

impl Writer {
    /// The block depends on the seed alone.
    pub(super) fn new(rng: &mut super::random::Rng) -> Self {
        let mut block: Vec<u8> = (0..BLOCK / 8).flat_map(|_| rng.bits().to_le_bytes()).collect();
        block.extend_from_within(..BLOCK / 2);
        Self { block }
    }

    /// Replaces `out` by the frame.
    pub(super) fn write(&self, packet: &Packet, out: &mut Vec<u8>) {
        out.clear();
        let l4_len = packet.transport.header_len() + packet.payload_len;
        ethernet(&packet.path, out);
        let pseudo_header = ip(packet, l4_len, out);
        let l4 = out.len();
        let checksum_at = match packet.transport {
            Transport::Tcp(tcp) => {
                tcp.write(packet.path.ports, out);
                l4 + 16
            }
            Transport::Udp => {
                out.extend_from_slice(&packet.path.ports.0.to_be_bytes());
                out.extend_from_slice(&packet.path.ports.1.to_be_bytes());
                out.extend_from_slice(&(l4_len as u16).to_be_bytes());
                out.extend_from_slice(&[0; 2]);
                l4 + 6
            }
            Transport::Echo { reply, id, seq } => {
                let v6 = matches!(packet.path.addresses, Addresses::V6(..));
                out.extend_from_slice(&[
                    if v6 { 128 + u8::from(reply) } else { 8 * u8::from(!reply) },
                    0,
                    0,
                    0,
                ]);
                out.extend_from_slice(&id.to_be_bytes());
                out.extend_from_slice(&seq.to_be_bytes());
                l4 + 2
            }
        };
        self.payload(packet.position, packet.payload_len, out);
        let mut checksum = !combine(pseudo_header, sum(out.get(l4..).unwrap_or_default()));
        if checksum == 0 && packet.transport == Transport::Udp {
            // RFC 768: 0 would mean that there is none.
            checksum = 0xffff;
        }
        if let Some(field) = out.get_mut(checksum_at..checksum_at + 2) {
            field.copy_from_slice(&checksum.to_be_bytes());
        }
        if out.len() < SHORTEST {
            out.resize(SHORTEST, 0);
        }
    }

    fn payload(&self, position: u64, len: usize, out: &mut Vec<u8>) {
        let mut at = position as usize % BLOCK;
        let mut left = len;
        while left > 0 {
            let run = left.min(self.block.len() - at);
            out.extend_from_slice(self.block.get(at..at + run).unwrap_or_default());
            at = (at + run) % BLOCK;
            left -= run;
        }
    }
}

/// Locally administered addresses that follow from the IP addresses.
fn ethernet(path: &Path, out: &mut Vec<u8>) {
    let (src, dst, ethertype) = match path.addresses {
        Addresses::V4(src, dst) => (src, dst, 0x0800_u16),
        Addresses::V6(src, dst) => (tail(&src), tail(&dst), 0x86dd),
    };
    out.extend_from_slice(&[2, 0]);
    out.extend_from_slice(&dst);
    out.extend_from_slice(&[2, 0]);
    out.extend_from_slice(&src);
    if let Some(id) = path.vlan {
        out.extend_from_slice(&[0x81, 0]);
        out.extend_from_slice(&id.to_be_bytes());
    }
    out.extend_from_slice(&ethertype.to_be_bytes());
}

const fn tail(address: &[u8; 16]) -> [u8; 4] {
    let [.., a, b, c, d] = *address;
    [a, b, c, d]
}

/// Writes the IP header; the sum of the pseudo-header (RFC 768, 9293, 8200 §8.1) comes back.
fn ip(packet: &Packet, l4_len: usize, out: &mut Vec<u8>) -> u16 {
    let start = out.len();
    match packet.path.addresses {
        Addresses::V4(src, dst) => {
            let protocol = packet.transport.protocol(false);
            let total = (20 + l4_len) as u16;
            out.extend_from_slice(&[0x45, 0]);
            out.extend_from_slice(&total.to_be_bytes());
            out.extend_from_slice(&packet.ip_id.to_be_bytes());
            // Don't fragment.
            out.extend_from_slice(&[0x40, 0, packet.ttl, protocol, 0, 0]);
            out.extend_from_slice(&src);
            out.extend_from_slice(&dst);
            let checksum = checksum(out.get(start..).unwrap_or_default());
            if let Some(field) = out.get_mut(start + 10..start + 12) {
                field.copy_from_slice(&checksum.to_be_bytes());
            }
            // ICMP over IPv4 has no pseudo-header.
            if protocol == 1 { 0 } else { pseudo_header(&src, &dst, protocol, l4_len) }
        }
        Addresses::V6(src, dst) => {
            let protocol = packet.transport.protocol(true);
            out.extend_from_slice(&[0x60, 0, 0, 0]);
            out.extend_from_slice(&(l4_len as u16).to_be_bytes());
            out.extend_from_slice(&[protocol, packet.ttl]);
            out.extend_from_slice(&src);
            out.extend_from_slice(&dst);
            pseudo_header(&src, &dst, protocol, l4_len)
        }
    }
}

/// Sum of a pseudo-header; `l4_len` is below 65,536, as frames are.
fn pseudo_header(src: &[u8], dst: &[u8], protocol: u8, l4_len: usize) -> u16 {
    combine(combine(sum(src), sum(dst)), combine(u16::from(protocol), l4_len as u16))
}
