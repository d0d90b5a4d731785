//! Work that a sender left to a network card which its packets never met: transport checksums, and cutting a
//! super-frame of up to 64 KiB into frames that a wire takes. Linux tells of both in a header before the
//! packet (`virtio_net_hdr`), of packet sockets and TAP interfaces alike.

use slipstream_wire::checksum::{checksum, combine, fill_ip, fill_transport, sum};
use slipstream_wire::protocol::{AH, GRE, IPV4, IPV6, ROUTING};
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

/// The offset of SCTP's checksum in its header: of those that Linux leaves to a card, it alone stands there.
const SCTP_CHECKSUM: usize = 8;

const TCP: u8 = 6;
const UDP: u8 = 17;
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
            && (layer.protocol == UDP && be16(frame, layer.l4 + 6) != 0)
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
        Some(Sums::With(combine(be16(frame, layer.l4 + offset), !len)))
    }

    /// Completes the checksum of a usual frame; returns true if one was missing.
    pub(crate) fn complete(self, frame: &mut [u8]) -> bool {
        let Some((start, offset)) = self.checksum else { return false };
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
            let id = be16(packet, l3 + 4);
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
            (UDP, Sums::IfThere) if be16(packet, l4 + 6) == 0 => {}
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
    if protocol == TCP { 16 } else { 6 }
}

/// Flags in the first byte of a GRE header: that it has a checksum, and a sequence number.
const GRE_CHECKSUM: u8 = 0x80;
const GRE_SEQUENCE: u8 = 0x10;

/// Writes a field; false where the bytes end before it does.
fn put(bytes: &mut [u8], at: usize, value: u16) -> bool {
    let field = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut());
    field.map(|field| *field = value.to_be_bytes()).is_some()
}

fn be16(packet: &[u8], at: usize) -> u16 {
    packet.get(at..).and_then(|rest| rest.first_chunk()).map_or(0, |two| u16::from_be_bytes(*two))
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
mod tests {
    use super::*;
    use proptest::prelude::*;
    use slipstream_wire::checksum::{Verdict, verify_ip, verify_transport};

    /// A frame by itself, checksums and all.
    fn frame(v6: bool, tcp: bool, tag: bool, id: u16, seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![2; 12];
        if tag {
            frame.extend([0x81, 0, 0, 9]);
        }
        let transport = if tcp { 32 } else { 8 } + payload.len() as u16;
        let protocol = if tcp { TCP } else { UDP };
        if v6 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(transport.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0x20; 32]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + transport).to_be_bytes());
            frame.extend(id.to_be_bytes());
            frame.extend([0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        }
        frame.extend([0x10, 0, 0x20, 0]);
        if tcp {
            frame.extend(seq.to_be_bytes());
            frame.extend([0, 0, 0, 1, 0x80, flags, 1, 0, 0, 0, 0, 0]);
            // Options: time stamps.
            frame.extend([1, 1, 8, 10, 0, 0, 0, 5, 0, 0, 0, 6]);
        } else {
            frame.extend(transport.to_be_bytes());
            frame.extend([0, 0]);
        }
        frame.extend(payload);
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        fill_ip(&mut frame, &headers);
        fill_transport(&mut frame, &headers);
        frame
    }

    /// Returns true if a way of tunnels has Ethernet frames in it.
    fn is_of_ethernet(way: usize) -> bool {
        way < 3
    }

    /// Returns true if a way of tunnels is over UDP.
    fn is_udp(way: usize) -> bool {
        way < 2
    }

    /// A frame in a tunnel: VXLAN with a checksum or without, on a port that is none of its own; GRE with a
    /// checksum, with Ethernet frames or IP packets in it, or with a key; IP in IP.
    fn in_tunnel(way: usize, inner: &[u8], id: u16) -> Vec<u8> {
        let at = if inner[12..14] == [0x81, 0] { 16 } else { 12 };
        let six = inner[at] == 0x86;
        let inside = if is_of_ethernet(way) { inner } else { &inner[at + 2..] };
        let ethertype = match (is_of_ethernet(way), six) {
            (true, _) => [0x65, 0x58],
            (false, true) => [0x86, 0xdd],
            (false, false) => [8, 0],
        };
        let (protocol, header) = match way {
            0 | 1 => {
                let len = (16 + inside.len() as u16).to_be_bytes();
                (UDP, vec![0xc0, 1, 0x21, 0x18, len[0], len[1], 0, 0, 8, 0, 0, 0, 0, 0, 7, 0])
            }
            2 | 3 => (GRE, vec![0x80, 0, ethertype[0], ethertype[1], 0, 0, 0, 0]),
            4 => (GRE, vec![0x20, 0, ethertype[0], ethertype[1], 1, 2, 3, 4]),
            _ => (if six { IPV6 } else { IPV4 }, Vec::new()),
        };
        let mut frame = vec![4; 12];
        let len = (header.len() + inside.len()) as u16;
        if way == 1 {
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            frame.extend(len.to_be_bytes());
            frame.extend([protocol, 64]);
            frame.extend([0xfd; 32]);
        } else {
            frame.extend([8, 0, 0x45, 0]);
            frame.extend((20 + len).to_be_bytes());
            frame.extend(id.to_be_bytes());
            frame.extend([0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
        }
        let l4 = frame.len();
        frame.extend(header);
        frame.extend(inside);
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        assert_eq!(usize::from(headers.l4), l4);
        fill_ip(&mut frame, &headers);
        match way {
            1 => assert!(fill_transport(&mut frame, &headers)),
            2 | 3 => {
                let value = checksum(&frame[l4..]);
                put(&mut frame, l4 + 4, value);
            }
            _ => {}
        }
        frame
    }

    /// Senders leave SCTP's checksum to the card, too, which is a CRC of the packet without padding.
    #[test]
    fn checksums_of_sctp_are_completed() {
        for (tag, padding) in [(false, 0), (true, 0), (false, 6)] {
            let mut frame = frame(false, false, tag, 1, 0, 0, &[7; 20]);
            let l4 = frame.len() - 28;
            frame[l4 - 11] = 132;
            frame[l4 + 8..l4 + 12].fill(0);
            frame.resize(frame.len() + padding, 0);
            let headers = classify(LinkType::Ethernet, &frame).unwrap();
            let offload = Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, 8, 0]);
            assert!(offload.complete(&mut frame));
            assert_eq!(verify_transport(&frame, &headers), Verdict::Right);
            // One whose header is cut short has no place for it.
            assert!(!offload.complete(&mut frame[..l4 + 11]));
        }
        // In a tunnel, the header says where.
        let mut inner = frame(true, false, false, 1, 0, 0, &[7; 20]);
        let at = inner.len() - 28;
        inner[20] = 132;
        inner[at + 8..at + 12].fill(0);
        let mut outer = in_tunnel(0, &inner, 5);
        let l4 = outer.len() - 28;
        assert!(Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, 8, 0]).complete(&mut outer));
        inner[at..].copy_from_slice(&outer[l4..]);
        let headers = classify(LinkType::Ethernet, &inner).unwrap();
        assert_eq!(verify_transport(&inner, &headers), Verdict::Right);
    }

    #[test]
    fn packets_of_a_tunnel_that_have_numbers_are_not_cut() {
        let mut whole = in_tunnel(4, &frame(false, true, false, 1, 2, 0x10, &[7; 3000]), 5);
        let header = [1, 1, 0, 0, 100, 0, (whole.len() - 3032) as u8, 0, 16, 0];
        let mut segmenter = Segmenter::default();
        assert!(segmenter.take(&whole, Offload::read(&header)));
        whole[34] |= GRE_SEQUENCE;
        assert!(!segmenter.take(&whole, Offload::read(&header)));
        // Two tunnels, one in the other: the header tells of the innermost packet only.
        let once = in_tunnel(5, &frame(false, true, false, 1, 2, 0x10, &[7; 3000]), 5);
        let twice = in_tunnel(0, &once, 6);
        let header = [1, 1, 0, 0, 100, 0, (twice.len() - 3032) as u8, 0, 16, 0];
        assert!(!segmenter.take(&twice, Offload::read(&header)));
    }

    /// The low byte of a length may be that which IPv6 begins with, the hops behind it a length that fits.
    #[test]
    fn bytes_of_a_header_that_look_like_another_one_are_none() {
        for payload in 1..300_usize {
            let whole = in_tunnel(0, &frame(false, true, false, 0, 2, 0x10, &vec![7; payload]), 5);
            let header = [1, 1, 0, 0, 10, 0, (whole.len() - payload - 32) as u8, 0, 16, 0];
            assert!(Segmenter::default().take(&whole, Offload::read(&header)), "{payload}");
        }
    }

    #[test]
    fn a_tunnel_has_headers_of_a_bounded_length() {
        let takes = |options: usize| {
            let inner = frame(true, true, true, 1, 2, 0x10, &[7; 3000]);
            let mut outer = frame(true, false, true, 1, 2, 0, &[]);
            let l4 = outer.len() - 8;
            // A header of Geneve, whose options nobody reads.
            outer.extend([63, 0, 0x65, 0x58, 0, 0, 7, 0]);
            outer.extend(vec![0; options]);
            outer.extend(inner);
            let len = ((outer.len() - l4) as u16).to_be_bytes();
            outer[l4 + 4..][..2].copy_from_slice(&len);
            outer[22..24].copy_from_slice(&len);
            let (size, start) = (100u16.to_ne_bytes(), ((outer.len() - 3032) as u16).to_ne_bytes());
            let header = [&[1, 4, 0, 0][..], &size, &start, &[16, 0]].concat();
            Segmenter::default().take(&outer, Offload::read(header.first_chunk().unwrap()))
        };
        assert!(takes(252));
        assert!(!takes(600));
    }

    /// A frame of TCP over IPv6 with these extension headers: their kinds, and their lengths in units of
    /// eight bytes, the first of which is not counted.
    fn extended(extensions: &[(u8, u8)], seq: u32, flags: u8, payload: &[u8]) -> Vec<u8> {
        let mut frame = frame(true, true, false, 1, seq, flags, payload);
        let (mut chain, mut before) = (Vec::new(), 20);
        for (kind, len) in extensions {
            let next = if before == 20 { &mut frame[before] } else { &mut chain[before - 54] };
            *next = *kind;
            before = 54 + chain.len();
            // A routing header names one more place to go to: a last destination, which sums are made with.
            chain.extend([TCP, *len, 4, u8::from(*kind == 43), 0, 0, 0, 0]);
            chain.resize(chain.len() + usize::from(*len) * 8, 0x31);
        }
        frame.splice(54..54, chain.iter().copied());
        let len = ((frame.len() - 54) as u16).to_be_bytes();
        frame[18..20].copy_from_slice(&len);
        let l4 = 54 + chain.len();
        let last = if extensions.iter().any(|(kind, _)| *kind == 43) { [0x31; 16] } else { [0x20; 16] };
        let mut pseudo = [[0x20; 16], last].concat();
        pseudo.extend(((frame.len() - l4) as u32).to_be_bytes());
        pseudo.extend([0, 0, 0, TCP]);
        put(&mut frame, l4 + 16, 0);
        let value = checksum(&[&pseudo, &frame[l4..]].concat());
        put(&mut frame, l4 + 16, value);
        frame
    }

    /// The header of a super-frame that `extended` makes; its checksum is missing or not.
    fn of_extended(whole: &[u8], payload: usize, size: u16, missing: bool) -> Offload {
        let l4 = (whole.len() - payload - 32) as u16;
        let numbers =
            [0, size, if missing { l4 } else { 0 }, if missing { 16 } else { 0 }].map(u16::to_ne_bytes);
        Offload::read([&[u8::from(missing), 4][..], &numbers.concat()].concat().first_chunk().unwrap())
    }

    /// On its way through a routing header a packet has another destination than the one that its checksum is
    /// made with. What the sender has put into the field knows that one.
    #[test]
    fn checksums_behind_a_routing_header_are_right() {
        let payload: Vec<u8> = (0..3001_u32).map(|n| n as u8).collect();
        for extensions in [&[(43, 2)][..], &[(0, 0), (43, 4), (60, 1)]] {
            let mut whole = extended(extensions, 7, 0x18, &payload);
            let l4 = whole.len() - payload.len() - 32;
            let offload = of_extended(&whole, payload.len(), 1000, true);
            // The sum of the pseudo-header, as the kernel hands it over.
            let mut pseudo = [[0x20; 16], [0x31; 16]].concat();
            pseudo.extend(((whole.len() - l4) as u32).to_be_bytes());
            pseudo.extend([0, 0, 0, TCP]);
            put(&mut whole, l4 + 16, !checksum(&pseudo));
            let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
            assert!(segmenter.take(&whole, offload));
            while segmenter.next(&mut packet) {
                got.push(packet.clone());
            }
            let twin = payload.chunks(1000).enumerate().map(|(n, part)| {
                extended(extensions, 7 + 1000 * n as u32, if n < 3 { 0x10 } else { 0x18 }, part)
            });
            assert!(got == twin.collect::<Vec<_>>());
            // Where nothing is missing, nobody says what the sum was made with.
            assert!(!segmenter.take(&whole, of_extended(&whole, payload.len(), 1000, false)));
        }
    }

    /// Each packet would need a proof of its own that nobody but its sender can make.
    #[test]
    fn packets_with_an_authentication_header_are_not_cut() {
        for (kind, cuts) in [(60, true), (51, false)] {
            let mut whole = extended(&[(60, 1)], 7, 0x18, &[7; 3000]);
            if kind == 51 {
                // Its length is in units of four bytes, two of which are not counted.
                (whole[20], whole[55]) = (51, 2);
            }
            for missing in [false, true] {
                let offload = of_extended(&whole, 3000, 1000, missing);
                assert_eq!(Segmenter::default().take(&whole, offload), cuts, "{kind}");
            }
        }
    }

    /// Each packet has all headers of its super-frame: long ones before few bytes each would make gigabytes
    /// of a single frame.
    #[test]
    fn headers_of_packets_are_of_a_bounded_length() {
        for (len, cuts) in [(20, true), (110, true), (120, false), (255, false)] {
            let whole = extended(&[(60, len)], 7, 0x18, &[7; 3000]);
            let offload = of_extended(&whole, 3000, 1, true);
            assert_eq!(Segmenter::default().take(&whole, offload), cuts, "{len}");
        }
        let whole = extended(&[(60, 255); 16], 7, 0x18, &[7; 3000]);
        assert!(!Segmenter::default().take(&whole, of_extended(&whole, 3000, 1, true)));
    }

    /// A header of TCP has 20 bytes at least; with fewer, what is changed in it would be payload.
    #[test]
    fn a_tcp_header_that_is_too_short_is_refused() {
        for words in 0..16_u8 {
            let mut whole = frame(false, true, false, 1, 2, 0x18, &[0xff; 3000]);
            whole[46] = words << 4;
            let offload = Offload::read(&[0, 1, 0, 0, 100, 100, 0, 0, 0, 0]);
            assert_eq!(Segmenter::default().take(&whole, offload), words >= 5, "{words}");
        }
    }

    /// A packet that is not cut may be as long as there is room for: IPv6 has lengths for it, IPv4 has none.
    #[test]
    fn packets_of_64_kib_keep_their_lengths() {
        for tcp in [false, true] {
            let len = LONGEST - HEADER - 8 - 14 - 40 - if tcp { 32 } else { 8 };
            let whole = frame(true, tcp, false, 1, 2, 0x10, &vec![7; len]);
            assert_eq!(whole.len(), 14 + (1 << 16));
            let header = |kind: u8| {
                let [low, high] = u16::MAX.to_ne_bytes();
                Offload::read(&[0, kind, 0, 0, low, high, 0, 0, 0, 0])
            };
            let (mut segmenter, mut packet) = (Segmenter::default(), Vec::new());
            assert!(segmenter.take(&whole, header(if tcp { 4 } else { 5 })));
            assert!(segmenter.next(&mut packet) && packet == whole);
            assert!(!segmenter.next(&mut packet));
            let mut whole = frame(false, tcp, false, 1, 2, 0x10, &[7; 20]);
            whole.resize(14 + (1 << 16), 7);
            assert!(!segmenter.take(&whole, header(if tcp { 1 } else { 5 })));
        }
    }

    fn survives(mut bytes: Vec<u8>, header: [u8; HEADER]) -> Result<(), TestCaseError> {
        let (mut segmenter, mut packet) = (Segmenter::default(), Vec::new());
        let offload = Offload::read(&header);
        segmenter.take(&bytes, offload);
        let mut n = 0;
        while segmenter.next(&mut packet) {
            n += 1;
        }
        prop_assert!(n <= bytes.len());
        offload.complete(&mut bytes);
        Ok(())
    }

    proptest! {
        /// Against the obvious twin: the packets that a sender without such a card makes.
        #[test]
        fn super_frames_are_cut_as_senders_cut(
            (v6, tcp, tag, ecn) in any::<(bool, bool, bool, bool)>(), (id, seq) in any::<(u16, u32)>(),
            size in 1usize..1500, len in 1usize..9000, flags in any::<u8>(),
        ) {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let whole = frame(v6, tcp, tag, id, seq, flags, &payload);
            let parts = len.div_ceil(size);
            let twin: Vec<_> = payload.chunks(size).enumerate().map(|(n, part)| {
                let mut flags = flags;
                if n + 1 < parts {
                    flags &= !0x09;
                }
                if n > 0 {
                    flags &= !0x80;
                }
                frame(v6, tcp, tag, id.wrapping_add(n as u16), seq.wrapping_add((n * size) as u32), flags, part)
            }).collect();
            let kind = match (tcp, v6) { (true, false) => 1u8, (true, true) => 4, _ => 5 } | if ecn { 0x80 } else { 0 };
            let [s0, s1] = (size as u16).to_ne_bytes();
            let offload = Offload::read(&[1, kind, 0, 0, s0, s1, 34, 0, 16, 0]);
            prop_assert!(offload.is_super_frame());
            let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
            prop_assert!(segmenter.take(&whole, offload));
            while segmenter.next(&mut packet) {
                got.push(packet.clone());
            }
            for packet in &got {
                let headers = classify(LinkType::Ethernet, packet).unwrap();
                prop_assert_eq!(verify_transport(packet, &headers), Verdict::Right);
                prop_assert!(verify_ip(packet, &headers) != Verdict::Wrong);
            }
            prop_assert_eq!(got, twin);
        }

        /// The same in tunnels: each packet is in one of its own, as if it had been put there by itself.
        #[test]
        fn super_frames_in_tunnels_are_cut_as_senders_cut(
            way in 0usize..6, (v6, tcp, tag) in any::<(bool, bool, bool)>(), (id, seq) in any::<(u16, u32)>(),
            size in 1usize..1500, len in 1usize..9000, outer_id in any::<u16>(),
        ) {
            let payload: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let tag = tag && is_of_ethernet(way);
            let whole = in_tunnel(way, &frame(v6, tcp, tag, id, seq, 0x10, &payload), outer_id);
            let twin: Vec<_> = payload.chunks(size).enumerate().map(|(n, part)| {
                let number = n as u16;
                let seq = seq.wrapping_add((n * size) as u32);
                let inner = frame(v6, tcp, tag, id.wrapping_add(number), seq, 0x10, part);
                in_tunnel(way, &inner, outer_id.wrapping_add(number))
            }).collect();
            let kind = match (tcp, v6) { (true, false) => 1u8, (true, true) => 4, _ => 5 };
            let ([s0, s1], start) = ((size as u16).to_ne_bytes(), whole.len() - len - if tcp { 32 } else { 8 });
            let ([c0, c1], offset) = ((start as u16).to_ne_bytes(), if tcp { 16 } else { 6 });
            let header = [1, kind, 0, 0, s0, s1, c0, c1, offset, 0];
            let (mut segmenter, mut packet, mut got) = (Segmenter::default(), Vec::new(), Vec::new());
            prop_assert!(segmenter.take(&whole, Offload::read(&header)));
            while segmenter.next(&mut packet) {
                got.push(packet.clone());
            }
            prop_assert_eq!(got, twin);
            // A header that doesn't say where the packet in the tunnel is tells of the outermost one.
            let header = [0, kind, 0, 0, s0, s1, 0, 0, 0, 0];
            prop_assert!(is_udp(way) && !tcp || !segmenter.take(&whole, Offload::read(&header)));
        }

        /// Any bytes at all are cut, or refused, and nothing else happens.
        #[test]
        fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in any::<[u8; HEADER]>()) {
            survives(bytes, header)?;
        }

        /// So are super-frames of any length that were changed in any places, in tunnels or not.
        #[test]
        fn what_is_half_right_is_refused_or_cut(
            (v6, tcp, tag) in any::<(bool, bool, bool)>(),
            way in proptest::option::of(0usize..6),
            len in prop_oneof![0usize..300, 65_000usize..65_472],
            edits in proptest::collection::vec((0usize..140, any::<u8>()), 0..4),
            behind in 0usize..100,
            header in any::<[u8; HEADER]>(),
            right in any::<bool>(),
        ) {
            let mut bytes = frame(v6, tcp, tag, 1, 2, 0x10, &vec![7; len.min(65_400)]);
            let start = bytes.len() - len.min(65_400) - if tcp { 32 } else { 8 };
            let alone = bytes.len();
            if let Some(way) = way.filter(|_| len < 300) {
                bytes = in_tunnel(way, &bytes, 5);
            }
            let start = start + bytes.len() - alone;
            for (at, byte) in edits {
                if let Some(there) = bytes.get_mut(at) {
                    *there = byte;
                }
            }
            bytes.resize((bytes.len() + behind).min(LONGEST - HEADER), 0);
            let mut header = header;
            if right {
                (header[0], header[1]) = (1, if tcp { 1 } else { 5 });
                [header[6], header[7]] = (start as u16).to_ne_bytes();
            }
            survives(bytes, header)?;
        }

        /// Missing checksums become what they are of whole packets.
        #[test]
        fn checksums_are_completed((v6, tcp) in any::<(bool, bool)>(), payload in proptest::collection::vec(any::<u8>(), 0..99)) {
            let right = frame(v6, tcp, false, 1, 2, 0x18, &payload);
            let (l4, field) = (if v6 { 54 } else { 34 }, if tcp { 16 } else { 6 });
            let mut partial = right.clone();
            let mut pseudo = if v6 { right[22..54].to_vec() } else { right[26..34].to_vec() };
            pseudo.extend([0, if tcp { TCP } else { UDP }]);
            pseudo.extend(((right.len() - l4) as u16).to_be_bytes());
            partial[l4 + field..l4 + field + 2].copy_from_slice(&(!checksum(&pseudo)).to_be_bytes());
            let offload = Offload::read(&[1, 0, 0, 0, 0, 0, l4 as u8, 0, field as u8, 0]);
            prop_assert!(offload.complete(&mut partial));
            prop_assert_eq!(partial, right);
        }
    }
}
