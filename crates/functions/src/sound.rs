//! Consistency of a packet's headers: the checks that Linux' connection tracker makes before
//! it looks at ports, so that no other end reads a packet in another way than the tracker did.

use slipstream_wire::checksum::{Verdict, verify_ip, verify_transport};
use slipstream_wire::protocol::{self, ICMP, ICMPV6, TCP, UDP};
use slipstream_wire::{Flags, Headers};

use super::bytes::be16;

/// "No next header" of IPv6 (RFC 8200 §4.7): nothing follows that could belong to a connection.
const NOTHING: u8 = 59;

/// End of the IP packet, in bytes from the start of the frame. A length of 0 is that of a packet which a
/// network card cuts later, or a jumbogram: the frame says how long it is.
fn end(frame: &[u8], headers: &Headers) -> usize {
    let (l3, six) = (usize::from(headers.l3), headers.flags.has(Flags::IPV6));
    match be16(frame, if six { l3 + 4 } else { l3 + 2 }) {
        Some(0) | None => frame.len(),
        Some(length) => l3 + usize::from(length) + if six { 40 } else { 0 },
    }
}

/// The frame without what is behind the IP packet.
#[must_use]
pub(super) fn without_trailer<'a>(frame: &'a [u8], headers: &Headers) -> &'a [u8] {
    frame.get(..end(frame, headers)).unwrap_or(frame)
}

/// Returns true if the transport header lies within the IP packet, and is as long as it says: at least 20
/// bytes of TCP (RFC 9293 §3.1), 8 of UDP or ICMP; UDP's length within the packet (RFC 768). Of fragments it
/// is not asked; what was not captured is taken for right.
#[must_use]
pub(super) fn is_sound(frame: &[u8], headers: &Headers) -> bool {
    if headers.flags.has(Flags::FRAGMENT) {
        return true;
    }
    let six = headers.flags.has(Flags::IPV6);
    let l4 = usize::from(headers.l4);
    let Some(room) = end(frame, headers).checked_sub(l4) else { return false };
    match headers.key.protocol() {
        TCP => {
            let length = frame.get(l4 + 12).map(|byte| usize::from(byte >> 4) * 4);
            room >= 20 && length.is_none_or(|length| (20..=room).contains(&length))
        }
        UDP => {
            let length = be16(frame, l4 + 4).map(usize::from);
            room >= 8 && length.is_none_or(|length| (8..=room).contains(&length))
        }
        ICMP if !six => room >= 8,
        ICMPV6 if six => room >= 8,
        // The classifier stands before an extension header that the packet has no room for.
        other if six => other != NOTHING && (!protocol::is_extension(other) || other == protocol::MOBILITY),
        _ => true,
    }
}

/// Returns true if a checksum of the packet is known to be wrong: that of the IPv4 header, of TCP, UDP, ICMP
/// or SCTP.
#[must_use]
pub(super) fn has_wrong_checksum(frame: &[u8], headers: &Headers) -> bool {
    verify_transport(frame, headers) == Verdict::Wrong || verify_ip(frame, headers) == Verdict::Wrong
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_wire::{LinkType, classify};

    fn packet(protocol: u8, total: u16, rest: &[u8]) -> Vec<u8> {
        let [a, b] = total.to_be_bytes();
        let mut bytes = vec![0x45, 0, a, b, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
        bytes.extend(rest);
        bytes
    }

    fn sound(bytes: &[u8]) -> bool {
        is_sound(bytes, &classify(LinkType::RawIp, bytes).unwrap())
    }

    fn tcp(offset: u8) -> [u8; 26] {
        let mut header = [0; 26];
        (header[1], header[3], header[12], header[13]) = (1, 2, offset << 4, 0x10);
        header
    }

    #[test]
    fn headers_lie_within_the_packet_and_say_so() {
        assert!(sound(&packet(TCP, 40, &tcp(5))) && sound(&packet(TCP, 44, &tcp(6))));
        // Bytes behind the packet's end are none of its header.
        assert!(!sound(&packet(TCP, 39, &tcp(5))) && !sound(&packet(TCP, 40, &tcp(6))));
        assert!(!sound(&packet(TCP, 40, &tcp(4))) && !sound(&packet(TCP, 40, &tcp(0))));
        // As a card gets it that cuts it in pieces.
        assert!(sound(&packet(TCP, 0, &tcp(5))));
        assert_eq!(
            without_trailer(
                &packet(TCP, 40, &tcp(5)),
                &classify(LinkType::RawIp, &packet(TCP, 40, &tcp(5))).unwrap()
            )
            .len(),
            40
        );
        // Not captured.
        assert!(sound(&packet(TCP, 40, &tcp(5)[..8])) && !sound(&packet(TCP, 30, &tcp(5)[..8])));
        let udp = |length: u8| [0, 1, 0, 2, 0, length, 0, 0, 1, 2, 3, 4];
        assert!(sound(&packet(UDP, 32, &udp(12))) && sound(&packet(UDP, 32, &udp(8))));
        assert!(!sound(&packet(UDP, 32, &udp(13))) && !sound(&packet(UDP, 32, &udp(7))));
        assert!(!sound(&packet(UDP, 27, &udp(8))));
        assert!(sound(&packet(ICMP, 28, &[8; 8])) && !sound(&packet(ICMP, 27, &[8; 8])));
        assert!(sound(&packet(47, 20, &[])));
        // Anything may be in a fragment.
        let mut fragment = packet(TCP, 30, &tcp(0));
        fragment[7] = 1;
        assert!(sound(&fragment));
    }

    fn six(next: u8, payload: u16, rest: &[u8]) -> Vec<u8> {
        let [a, b] = payload.to_be_bytes();
        let mut bytes = vec![0x60, 0, 0, 0, a, b, next, 64];
        bytes.extend([[1; 16], [2; 16]].concat());
        bytes.extend(rest);
        bytes
    }

    #[test]
    fn extension_headers_lead_somewhere() {
        let after = |next: u8, rest: &[u8]| [&[next, 0, 1, 4, 0, 0, 0, 0], rest].concat();
        assert!(sound(&six(0, 28, &after(TCP, &tcp(5)[..20]))));
        assert!(!sound(&six(0, 27, &after(TCP, &tcp(5)[..20]))));
        assert!(!sound(&six(0, 8, &after(NOTHING, &[]))) && !sound(&six(NOTHING, 8, &[0; 8])));
        assert!(!sound(&six(0, 4, &[6, 0, 1, 4])) && !sound(&six(43, 8, &after(60, &[]))));
        assert!(!sound(&six(0, 8, &[6, 9, 1, 4, 0, 0, 0, 0])));
        assert!(sound(&six(50, 8, &[0; 8])));
    }

    #[test]
    fn a_wrong_checksum_is_known_as_such() {
        let mut udp = packet(UDP, 32, &[0, 1, 0, 2, 0, 12, 0, 0, 1, 2, 3, 4]);
        let wrong = |bytes: &[u8]| has_wrong_checksum(bytes, &classify(LinkType::RawIp, bytes).unwrap());
        let headers = classify(LinkType::RawIp, &udp).unwrap();
        slipstream_wire::checksum::fill_ip(&mut udp, &headers);
        assert!(!wrong(&udp), "without one");
        slipstream_wire::checksum::fill_transport(&mut udp, &headers);
        assert!(!wrong(&udp));
        udp[30] ^= 1;
        assert!(wrong(&udp));
        udp[30] ^= 1;
        udp[8] ^= 1;
        assert!(wrong(&udp), "the header's");
    }
}
