//! Work that a sender left to a network card which its packets never met: transport checksums, and cutting a
//! super-frame of up to 64 KiB into frames that a wire takes. Linux tells of both in a header before the
//! packet (`virtio_net_hdr`), of packet sockets and TAP interfaces alike.

use slipstream_wire::checksum::{checksum, fill_ip, fill_transport};
use slipstream_wire::protocol::{GRE, IPV4, IPV6};
use slipstream_wire::view::Sctp;
use slipstream_wire::{Flags, Headers, LinkType, classify, ip_end};

/// Bytes of the header.
pub(crate) const HEADER: usize = 10;
/// Bytes of the longest super-frame, with its header.
pub(crate) const LONGEST: usize = HEADER + 14 + 8 + (1 << 16);

/// Bytes from a tunnel's header to the transport header inside, at most: the longest headers of UDP and
/// Geneve (RFC 8926, 268 bytes), Ethernet with two tags, and IP with as many bytes again. A sender that says
/// more would have each byte before that looked at.
const LONGEST_TUNNEL: usize = 512;

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
        // What comes later lies in that header, and may look like one by chance.
        found.all(|other| other.l4 != start).then_some(one)
    }

    /// Returns true if its length fields can be those of a packet of so many bytes.
    fn has_room_for(&self, bytes: usize) -> bool {
        let fixed = if self.six { 40 } else { 0 };
        bytes.saturating_sub(self.l3 + fixed) <= usize::from(u16::MAX)
    }

    /// Has lengths and checksums go by the bytes that there are; `number` is that of the packet among those
    /// of its super-frame. `always`: a checksum of 0 of UDP is one that is missing.
    fn repair(&self, packet: &mut [u8], number: u16, always: bool) {
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
        match protocol {
            UDP if !always && be16(packet, l4 + 6) == 0 => {}
            TCP | UDP => {
                fill_transport(packet, &headers);
            }
            GRE if packet.get(l4).is_some_and(|flags| flags & GRE_CHECKSUM != 0) => {
                put(packet, l4 + 4, 0);
                let value = checksum(packet.get(l4..).unwrap_or_default());
                put(packet, l4 + 4, value);
            }
            _ => {}
        }
    }
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
    /// UDP. False where it is none of these; nothing comes of it then.
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
        let header = match layer.protocol {
            TCP => frame.get(layer.l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4),
            UDP => 8,
            _ => 0,
        };
        let payload = layer.l4 + header;
        if header < 8 || payload >= frame.len() || layer.protocol != offload.protocol {
            return false;
        }
        let longest = frame.len().min(payload.saturating_add(size));
        if !tunnel.iter().chain([&layer]).all(|layer| layer.has_room_for(longest)) {
            return false;
        }
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        (self.layer, self.tunnel) = (layer, tunnel);
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
        self.layer.repair(packet, self.made, true);
        if let Some(tunnel) = &self.tunnel {
            tunnel.repair(packet, self.made, false);
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
