//! Work that a sender left to a network card which its packets never met: transport checksums, and cutting a
//! super-frame of up to 64 KiB into frames that a wire takes. Linux tells of both in a header before the
//! packet (`virtio_net_hdr`), of packet sockets and TAP interfaces alike.

use slipstream_wire::checksum::{checksum, combine, fill_ip, fill_transport, sum};
use slipstream_wire::field::be16;
use slipstream_wire::protocol::{
    AH, GRE, IPV4, IPV6, ROUTING, SCTP_CHECKSUM, TCP, TCP_CHECKSUM, UDP, UDP_CHECKSUM,
};
use slipstream_wire::view::{Ipv6, Sctp};
use slipstream_wire::{Flags, Headers, LinkType, classify, ip_end};

/// Bytes of the header.
pub(crate) const HEADER: usize = 10;
/// Bytes of the longest super-frame, with its header.
pub(crate) const LONGEST: usize = HEADER + 14 + 8 + (1 << 16);

/// Bytes from a tunnel's header to the transport header inside, at most: the longest headers of UDP and
/// Geneve (RFC 8926, 268 bytes), Ethernet with two tags, and IP with as many bytes again. A sender that says
/// more would have each byte before that looked at.
const LONGEST_TUNNEL: usize = 512;

/// Bytes of all headers of a packet that is cut off a super-frame, at most. Each packet has them anew: with
/// IPv6 extension headers of 32 KiB before payloads of a byte, one frame would become a gigabyte.
const LONGEST_HEADERS: usize = 1024;

const FIN: u8 = 0x01;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;

/// The header before a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Offload {
    /// The start of the checksummed bytes, and the offset from there at which the checksum stands; none if it
    /// is whole.
    checksum: Option<(usize, usize)>,
    /// Bytes of payload of each packet that a super-frame is to be cut into; none of a usual frame.
    segment: Option<usize>,
    /// The transport protocol of these packets; 0 where it is none that is known.
    protocol: u8,
}

impl Offload {
    /// Reads it, in the order of bytes of this machine.
    pub(crate) fn read(bytes: &[u8; HEADER]) -> Self {
        let [flags, kind, _, _, s0, s1, c0, c1, o0, o1] = *bytes;
        let number = |a, b| usize::from(u16::from_ne_bytes([a, b]));
        // Bit 0: the checksum is missing. Bit 7 of the kind says that the connection has ECN.
        let checksum = (flags & 1 != 0).then(|| (number(c0, c1), number(o0, o1)));
        let segment = (kind & 0x7f != 0).then(|| number(s0, s1));
        let protocol = match kind & 0x7f {
            1 | 4 => TCP,
            5 => UDP,
            _ => 0,
        };
        Self { checksum, segment, protocol }
    }

    /// Returns true if it is a super-frame.
    pub(crate) fn is_super_frame(self) -> bool {
        self.segment.is_some()
    }

    /// That of the frame with so many bytes more before its headers.
    pub(crate) fn behind(self, bytes: usize) -> Self {
        Self { checksum: self.checksum.map(|(start, offset)| (start + bytes, offset)), ..self }
    }

    /// The way to the transport checksums of a super-frame's packets, which have these headers; `None` where
    /// there is none to right ones.
    fn sums(self, frame: &[u8], layer: &Layer, tunnel: Option<&Layer>) -> Option<Sums> {
        if tunnel.into_iter().chain([layer]).any(|layer| layer.is_authenticated(frame)) {
            return None;
        }
        // Nothing says which sum that of the tunnel is made with.
        if let Some(layer) = tunnel
            && (layer.protocol == UDP && word(frame, layer.l4 + UDP_CHECKSUM) != 0)
            && layer.is_on_its_way(frame)
        {
            return None;
        }
        if !layer.is_on_its_way(frame) {
            return Some(Sums::Own);
        }
        // The field has the sum of the pseudo-header, whose length is that of the super-frame.
        let offset = checksum_offset(layer.protocol);
        self.checksum.filter(|place| *place == (layer.l4, offset))?;
        let len = (frame.len() - layer.l4) as u32;
        let len = sum(&len.to_be_bytes());
        Some(Sums::With(combine(word(frame, layer.l4 + offset), !len)))
    }

    /// Completes the checksum of a usual frame; returns true if one was missing.
    pub(crate) fn complete(self, frame: &mut [u8]) -> bool {
        let Some((start, offset)) = self.checksum else { return false };
        // Of the checksums that Linux leaves to a card, that of SCTP alone stands there.
        if offset == SCTP_CHECKSUM {
            return fill_sctp(frame, start);
        }
        let Some(bytes) = frame.get_mut(start..) else { return false };
        // The field has the sum of the pseudo-header, which counts.
        let value = match checksum(bytes) {
            // Of UDP, 0 means none; of others it is the same number.
            0 => 0xffff,
            value => value,
        };
        put(bytes, offset, value)
    }
}

/// Writes the CRC32c of SCTP, whose header is at `start`, up to the end of the IP packet; in a tunnel up to
/// the end of the frame. False where there is no whole header.
fn fill_sctp(frame: &mut [u8], start: usize) -> bool {
    let ends = classify(LinkType::Ethernet, frame)
        .ok()
        .filter(|headers| usize::from(headers.l4) == start)
        .map_or(frame.len(), |headers| ip_end(frame, &headers));
    let Some(bytes) = frame.get_mut(start..ends.max(start)) else { return false };
    let is_whole = bytes.len() >= SCTP_CHECKSUM + 4;
    if is_whole {
        Sctp::new_unchecked(bytes).fill_checksum();
    }
    is_whole
}

/// An IP header of a super-frame, the header behind it, and the protocol of that.
#[derive(Clone, Copy, Debug, Default)]
struct Layer {
    l3: usize,
    l4: usize,
    six: bool,
    protocol: u8,
}

impl Layer {
    /// That of the headers that were found behind so many bytes.
    fn new(headers: &Headers, behind: usize) -> Self {
        Self {
            l3: behind + usize::from(headers.l3),
            l4: behind + usize::from(headers.l4),
            six: headers.flags.has(Flags::IPV6),
            protocol: headers.key.protocol(),
        }
    }

    /// The IP header in a tunnel whose packets have this one before it, where the packet in it has its
    /// transport header at `start`. `None` where there is none, or another one in between.
    fn inside(&self, frame: &[u8], start: usize) -> Option<Self> {
        let sequence = || frame.get(self.l4).is_none_or(|flags| flags & GRE_SEQUENCE != 0);
        match self.protocol {
            UDP | IPV4 | IPV6 => {}
            // Each packet would have a number of its own.
            GRE if !sequence() => {}
            _ => return None,
        }
        if start > self.l4 + LONGEST_TUNNEL {
            return None;
        }
        // Tunnels over UDP have any port: a header is one that goes to the end of the frame by its length.
        let mut found = (self.l4..start).filter_map(|l3| {
            let ip = frame.get(l3..).filter(|ip| matches!(ip.first(), Some(0x45..=0x4f | 0x60..=0x6f)))?;
            let headers = classify(LinkType::RawIp, ip).ok()?;
            let whole = ip_end(ip, &headers) == ip.len() && !headers.flags.has(Flags::FRAGMENT);
            whole.then(|| Self::new(&headers, l3))
        });
        let one = found.next().filter(|layer| layer.l4 == start)?;
        // A header that is found later lies in that one, and only looks like one by chance.
        found.all(|other| other.l4 != start).then_some(one)
    }

    /// Returns true if its length fields can be those of a packet of so many bytes.
    fn has_room_for(&self, bytes: usize) -> bool {
        let fixed = if self.six { 40 } else { 0 };
        bytes.saturating_sub(self.l3 + fixed) <= usize::from(u16::MAX)
    }

    /// Finds an IPv6 extension header of this protocol in a frame, of which `is` says that it is the one.
    fn has_extension(&self, frame: &[u8], protocol: u8, is: impl Fn(&[u8]) -> bool) -> bool {
        let packet = frame.get(self.l3..).filter(|_| self.six).unwrap_or_default();
        let packet = Ipv6::new_unchecked(packet);
        packet.extensions().any(|extension| extension.protocol == protocol && is(extension.bytes))
    }

    /// Returns true if it has a header that authenticates the packet: nobody but its sender can make one.
    fn is_authenticated(&self, frame: &[u8]) -> bool {
        self.has_extension(frame, AH, |_| true)
    }

    /// Returns true if the packet is on its way through a routing header: its checksum is made with its last
    /// destination, which is not the one in the header.
    fn is_on_its_way(&self, frame: &[u8]) -> bool {
        self.has_extension(frame, ROUTING, |bytes| bytes.get(3).is_some_and(|left| *left != 0))
    }

    /// Has lengths and checksums go by the bytes that there are; `number` is that of the packet among those
    /// of its super-frame. `sums`: how the transport checksum is made.
    fn repair(&self, packet: &mut [u8], number: u16, sums: Sums) {
        let Self { l3, l4, six, protocol } = *self;
        // That of IPv6 leaves out the fixed header, so that packets may be longer than 65,535 bytes.
        let fixed = if six { 40 } else { 0 };
        let (ip, transport) = ((packet.len() - l3 - fixed) as u16, (packet.len() - l4) as u16);
        if six {
            put(packet, l3 + 4, ip);
        } else {
            put(packet, l3 + 2, ip);
            let id = word(packet, l3 + 4);
            put(packet, l3 + 4, id.wrapping_add(number));
        }
        if protocol == UDP {
            put(packet, l4 + 4, transport);
        }
        let Some(packet) = packet.get_mut(l3..) else { return };
        let l4 = l4 - l3;
        let Ok(headers) = classify(LinkType::RawIp, packet) else { return };
        fill_ip(packet, &headers);
        match (protocol, sums) {
            (UDP, Sums::IfThere) if word(packet, l4 + UDP_CHECKSUM) == 0 => {}
            (TCP | UDP, Sums::With(pseudo)) => {
                let field = l4 + checksum_offset(protocol);
                // This counts, as in a usual frame whose checksum is missing.
                put(packet, field, combine(pseudo, transport));
                let value = checksum(packet.get(l4..).unwrap_or_default());
                put(packet, field, if value == 0 { 0xffff } else { value });
            }
            (TCP | UDP, _) => {
                fill_transport(packet, &headers);
            }
            (GRE, _) if packet.get(l4).is_some_and(|flags| flags & GRE_CHECKSUM != 0) => {
                put(packet, l4 + 4, 0);
                let value = checksum(packet.get(l4..).unwrap_or_default());
                put(packet, l4 + 4, value);
            }
            _ => {}
        }
    }
}

/// The transport checksum of a packet that is cut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Sums {
    /// By its own headers.
    #[default]
    Own,
    /// By its own headers, but that of UDP stays away where it was.
    IfThere,
    /// With this sum of addresses and protocol.
    With(u16),
}

/// The offset of the checksum in the header of TCP or UDP.
fn checksum_offset(protocol: u8) -> usize {
    if protocol == TCP { TCP_CHECKSUM } else { UDP_CHECKSUM }
}

/// Flags in the first byte of a GRE header: that it has a checksum, and a sequence number.
const GRE_CHECKSUM: u8 = 0x80;
const GRE_SEQUENCE: u8 = 0x10;

/// Writes a field; false where the bytes end before it does.
fn put(bytes: &mut [u8], at: usize, value: u16) -> bool {
    let field = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
    field.map(|field| *field = value.to_be_bytes()).is_some()
}

/// Two bytes at `at`; 0 where the bytes end before them.
fn word(packet: &[u8], at: usize) -> u16 {
    be16(packet, at).unwrap_or(0)
}

/// A super-frame that is being cut.
#[derive(Debug, Default)]
pub(crate) struct Segmenter {
    frame: Vec<u8>,
    /// There is one.
    cuts: bool,
    /// The headers of its packets, and those of a tunnel around them.
    layer: Layer,
    tunnel: Option<Layer>,
    sums: Sums,
    /// Offset of the payload, and the bytes of it that each packet gets.
    payload: usize,
    size: usize,
    /// Offset of the next packet's payload.
    at: usize,
    /// Packets so far.
    made: u16,
}

impl Segmenter {
    /// Takes a super-frame: TCP or UDP over IPv4 or IPv6, perhaps in a tunnel: IP in IP, GRE, or any over
    /// UDP. False where it is none of these, or its packets can't be made right; nothing comes of it then.
    pub(crate) fn take(&mut self, frame: &[u8], offload: Offload) -> bool {
        self.cuts = false;
        let Some(size) = offload.segment.filter(|size| *size > 0) else { return false };
        let Ok(headers) = classify(LinkType::Ethernet, frame) else { return false };
        if headers.flags.has(Flags::FRAGMENT) {
            return false;
        }
        let outer = Layer::new(&headers, 0);
        // The checksum that is missing is that of the packets: of those in a tunnel, where there is one.
        let start = offload.checksum.map_or(outer.l4, |(start, _)| start);
        let (layer, tunnel) = if start > outer.l4 {
            let Some(inner) = outer.inside(frame, start) else { return false };
            (inner, Some(outer))
        } else {
            (outer, None)
        };
        let (header, least) = match layer.protocol {
            TCP => (frame.get(layer.l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4), 20),
            UDP => (8, 8),
            _ => return false,
        };
        let payload = layer.l4 + header;
        if header < least || payload >= frame.len().min(LONGEST_HEADERS + 1) {
            return false;
        }
        if layer.protocol != offload.protocol {
            return false;
        }
        let Some(sums) = offload.sums(frame, &layer, tunnel.as_ref()) else { return false };
        let longest = frame.len().min(payload.saturating_add(size));
        if !tunnel.iter().chain([&layer]).all(|layer| layer.has_room_for(longest)) {
            return false;
        }
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        (self.layer, self.tunnel, self.sums) = (layer, tunnel, sums);
        (self.payload, self.size, self.at, self.made) = (payload, size, payload, 0);
        self.cuts = true;
        true
    }

    /// Writes the next packet; false when there is none.
    pub(crate) fn next(&mut self, packet: &mut Vec<u8>) -> bool {
        if !self.cuts {
            return false;
        }
        let end = (self.at + self.size).min(self.frame.len());
        let (Some(front), Some(payload)) = (self.frame.get(..self.payload), self.frame.get(self.at..end))
        else {
            return false;
        };
        packet.clear();
        packet.extend_from_slice(front);
        packet.extend_from_slice(payload);
        let (first, last) = (self.at == self.payload, end == self.frame.len());
        if self.layer.protocol == TCP
            && let Some(tcp) = packet.get_mut(self.layer.l4..)
        {
            if let Some(seq) = tcp.get_mut(4..8).and_then(|seq| seq.first_chunk_mut::<4>()) {
                let past = (self.at - self.payload) as u32;
                *seq = u32::from_be_bytes(*seq).wrapping_add(past).to_be_bytes();
            }
            if let Some(flags) = tcp.get_mut(13) {
                *flags &= if last { 0xff } else { !(FIN | PSH) } & if first { 0xff } else { !CWR };
            }
        }
        // The checksum of a tunnel covers what is inside of it.
        self.layer.repair(packet, self.made, self.sums);
        if let Some(tunnel) = &self.tunnel {
            tunnel.repair(packet, self.made, Sums::IfThere);
        }
        (self.at, self.made) = (end, self.made.wrapping_add(1));
        self.cuts = !last;
        true
    }
}

#[cfg(test)]
mod tests;
