//! Work that a sender left to a network card which its packets never met: transport checksums, and cutting a
//! super-frame of up to 64 KiB into frames that a wire takes. Linux tells of both in a header before the
//! packet (`virtio_net_hdr`), of packet sockets and TAP interfaces alike.

use slipstream_wire::checksum::{checksum, fill_ip, fill_transport};
use slipstream_wire::{Flags, Headers, LinkType, classify};

/// Bytes of the header.
pub(crate) const HEADER: usize = 10;
/// Bytes of the longest super-frame, with its header.
pub(crate) const LONGEST: usize = HEADER + 14 + 8 + (1 << 16);

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
}

impl Offload {
    /// Reads it, in the order of bytes of this machine.
    pub(crate) fn read(bytes: &[u8; HEADER]) -> Self {
        let [flags, kind, _, _, s0, s1, c0, c1, o0, o1] = *bytes;
        let number = |a, b| usize::from(u16::from_ne_bytes([a, b]));
        // Bit 0: the checksum is missing. Bit 7 of the kind says that the connection has ECN.
        let checksum = (flags & 1 != 0).then(|| (number(c0, c1), number(o0, o1)));
        let segment = (kind & 0x7f != 0).then(|| number(s0, s1));
        Self { checksum, segment }
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
        let Some(bytes) = frame.get_mut(start..) else { return false };
        // The field has the sum of the pseudo-header, which counts.
        let value = match checksum(bytes) {
            // Of UDP, 0 means none; of others it is the same number.
            0 => 0xffff,
            value => value,
        };
        match bytes.get_mut(offset..offset + 2) {
            Some(field) => {
                field.copy_from_slice(&value.to_be_bytes());
                true
            }
            None => false,
        }
    }
}

/// A super-frame that is being cut.
#[derive(Debug, Default)]
pub(crate) struct Segmenter {
    frame: Vec<u8>,
    headers: Option<Headers>,
    /// Offset of the payload, and the bytes of it that each packet gets.
    payload: usize,
    size: usize,
    /// Offset of the next packet's payload.
    at: usize,
    /// Packets so far.
    made: u16,
}

impl Segmenter {
    /// Takes a super-frame: TCP or UDP over IPv4 or IPv6. False where it is none of these; nothing comes of
    /// it then.
    pub(crate) fn take(&mut self, frame: &[u8], offload: Offload) -> bool {
        self.headers = None;
        let Some(size) = offload.segment.filter(|size| *size > 0) else { return false };
        let Ok(headers) = classify(LinkType::Ethernet, frame) else { return false };
        let l4 = usize::from(headers.l4);
        let header = match headers.key.protocol() {
            TCP => frame.get(l4 + 12).map_or(0, |byte| usize::from(byte >> 4) * 4),
            UDP => 8,
            _ => 0,
        };
        if header < 8 || l4 + header >= frame.len() || headers.flags.has(Flags::FRAGMENT) {
            return false;
        }
        self.frame.clear();
        self.frame.extend_from_slice(frame);
        (self.payload, self.size, self.at, self.made) = (l4 + header, size, l4 + header, 0);
        self.headers = Some(headers);
        true
    }

    /// Writes the next packet; false when there is none.
    pub(crate) fn next(&mut self, packet: &mut Vec<u8>) -> bool {
        let Some(headers) = self.headers else { return false };
        let end = (self.at + self.size).min(self.frame.len());
        let (Some(front), Some(payload)) = (self.frame.get(..self.payload), self.frame.get(self.at..end))
        else {
            return false;
        };
        packet.clear();
        packet.extend_from_slice(front);
        packet.extend_from_slice(payload);
        let (first, last) = (self.at == self.payload, end == self.frame.len());
        let (l3, l4) = (usize::from(headers.l3), usize::from(headers.l4));
        let (ip, transport) = ((packet.len() - l3) as u16, (packet.len() - l4) as u16);
        let put = |packet: &mut [u8], at: usize, value: u16| {
            if let Some(field) = packet.get_mut(at..at + 2) {
                field.copy_from_slice(&value.to_be_bytes());
            }
        };
        if headers.flags.has(Flags::IPV6) {
            put(packet, l3 + 4, ip - 40);
        } else {
            put(packet, l3 + 2, ip);
            let id = self
                .frame
                .get(l3 + 4..)
                .and_then(|id| id.first_chunk())
                .map_or(0, |id| u16::from_be_bytes(*id));
            put(packet, l3 + 4, id.wrapping_add(self.made));
        }
        if headers.key.protocol() == UDP {
            put(packet, l4 + 4, transport);
        } else if let Some(tcp) = packet.get_mut(l4..) {
            if let Some(seq) = tcp.get_mut(4..8).and_then(|seq| seq.first_chunk_mut::<4>()) {
                let past = (self.at - self.payload) as u32;
                *seq = u32::from_be_bytes(*seq).wrapping_add(past).to_be_bytes();
            }
            if let Some(flags) = tcp.get_mut(13) {
                *flags &= if last { 0xff } else { !(FIN | PSH) } & if first { 0xff } else { !CWR };
            }
        }
        // Lengths have changed: the checksums go by what stands there now.
        fill_ip(packet, &headers);
        if let Ok(headers) = classify(LinkType::Ethernet, packet) {
            fill_transport(packet, &headers);
        }
        (self.at, self.made) = (end, self.made.wrapping_add(1));
        if last {
            self.headers = None;
        }
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

        /// Any bytes at all are cut, or refused, and nothing else happens.
        #[test]
        fn nonsense_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200), header in any::<[u8; HEADER]>()) {
            let (mut segmenter, mut packet) = (Segmenter::default(), Vec::new());
            let offload = Offload::read(&header);
            segmenter.take(&bytes, offload);
            let mut n = 0;
            while segmenter.next(&mut packet) {
                n += 1;
            }
            prop_assert!(n <= 200);
            let mut bytes = bytes;
            offload.complete(&mut bytes);
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
