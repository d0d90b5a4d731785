//! Transport checksums that a neighbour on the same machine left to a network card that its packets never
//! met.
//!
//! Linux then has the sum of the pseudo-header in the checksum's field, uncomplemented, and nothing tells the
//! XDP program. So packets are looked at: where the field has that sum, the checksum is computed. A packet
//! whose whole checksum happens to be that number gets the same number again. SCTP has no pseudo-header; the
//! field of its CRC is 0 then.

use slipstream_wire::checksum::{combine, fill_transport, sum_of_words};
use slipstream_wire::field::be16;
use slipstream_wire::protocol::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_SERVICE_VLAN, ETHERTYPE_VLAN, SCTP, SCTP_CHECKSUM, TCP,
    TCP_CHECKSUM, UDP, UDP_CHECKSUM,
};
use slipstream_wire::{LinkType, classify};

/// Says that the checksum is that of a pseudo-header only, in a TCP segment, UDP datagram or SCTP packet over
/// IPv4, or over IPv6 without extension headers, under up to two VLAN tags.
#[inline]
fn is_partial(frame: &[u8]) -> Option<bool> {
    let mut at = 12;
    while matches!(be16(frame, at)?, ETHERTYPE_VLAN | ETHERTYPE_SERVICE_VLAN) && at < 20 {
        at += 4;
    }
    let (kind, ip) = (be16(frame, at)?, frame.get(at + 2..)?);
    let (protocol, header, addresses, len) = match kind {
        ETHERTYPE_IPV4 => {
            let header = usize::from(ip.first()? & 15) * 4;
            // A fragment has no checksum that could be filled in.
            if be16(ip, 6)? & 0x3fff != 0 {
                return None;
            }
            (*ip.get(9)?, header, ip.get(12..20)?, be16(ip, 2)?.checked_sub(header as u16)?)
        }
        ETHERTYPE_IPV6 => (*ip.get(6)?, 40, ip.get(8..40)?, be16(ip, 4)?),
        _ => return None,
    };
    let field = match protocol {
        TCP => header + TCP_CHECKSUM,
        UDP => header + UDP_CHECKSUM,
        SCTP => return Some(*ip.get(header + SCTP_CHECKSUM..)?.first_chunk::<4>()? == [0; 4]),
        _ => return None,
    };
    let pseudo = combine(combine(sum_of_words(addresses.as_chunks().0), u16::from(protocol)), len);
    Some(be16(ip, field)? == pseudo)
}

/// Fills in a transport checksum that is missing; returns true if it did.
#[inline]
pub(super) fn complete(frame: &mut [u8]) -> bool {
    is_partial(frame) == Some(true)
        && classify(LinkType::Ethernet, frame).is_ok_and(|headers| fill_transport(frame, &headers))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::{Synth, SynthConfig};
    use slipstream_wire::checksum::{Verdict, verify_transport};

    /// The sum that Linux leaves there, computed the long way.
    fn pseudo(frame: &[u8], v6: bool, l4: usize, protocol: u8) -> u16 {
        let mut bytes = if v6 { frame[22..54].to_vec() } else { frame[26..34].to_vec() };
        let len = if v6 {
            u32::from(be16(frame, 18).unwrap())
        } else {
            u32::from(be16(frame, 16).unwrap()) - (l4 as u32 - 14)
        };
        bytes.extend([0, protocol]);
        bytes.extend(len.to_be_bytes());
        let mut total: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
        while total > 0xffff {
            total = (total & 0xffff) + (total >> 16);
        }
        total as u16
    }

    #[test]
    fn the_checksum_of_sctp_is_filled_in() {
        let mut frame = vec![2; 12];
        frame.extend([8, 0, 0x45, 0, 0, 48, 0, 1, 0x40, 0, 64, SCTP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.extend([4, 87, 8, 174, 0, 0, 0, 7, 0, 0, 0, 0, 3, 0, 0, 16]);
        // Its chunk, and what pads the frame.
        frame.resize(34 + 28 + 6, 0);
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        assert!(complete(&mut frame));
        assert_eq!(verify_transport(&frame, &headers), Verdict::Right);
        assert!(!complete(&mut frame), "it has one");
    }

    #[test]
    fn what_is_missing_is_filled_in_and_nothing_else_changes() {
        let config = SynthConfig { packets: 400, ipv6: 0.5, ..SynthConfig::default() };
        let mut synth = Synth::new(config).unwrap();
        let (mut frame, mut n) = (Vec::new(), 0);
        while synth.next_packet(&mut frame).is_some() {
            let headers = classify(LinkType::Ethernet, &frame).unwrap();
            let (protocol, l4) = (headers.key.protocol(), usize::from(headers.l4));
            let right = frame.clone();
            assert!(!complete(&mut frame) || frame == right, "a whole packet changed");
            let field = l4 + if protocol == TCP { 16 } else { 6 };
            let partial = pseudo(&frame, frame[12] == 0x86, l4, protocol);
            frame[field..field + 2].copy_from_slice(&partial.to_be_bytes());
            for tags in [&[][..], &[0x81, 0, 0, 5], &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]] {
                let with = |bytes: &[u8]| [&bytes[..12], tags, &bytes[12..]].concat();
                let mut tagged = with(&frame);
                assert!(complete(&mut tagged));
                assert_eq!(tagged, with(&right));
            }
            // A checksum that is wrong otherwise stays wrong.
            frame[field..field + 2].copy_from_slice(&partial.wrapping_add(1).to_be_bytes());
            let wrong = frame.clone();
            if verify_transport(&wrong, &headers) == Verdict::Wrong {
                assert!(!complete(&mut frame) && frame == wrong);
                n += 1;
            }
        }
        assert!(n > 390);
        for short in 0..60 {
            complete(&mut vec![0x08; short]);
        }
    }
}
