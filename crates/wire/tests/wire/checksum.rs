//! Checksums in frames: filled, verified, wrong, absent, not to be told.

use proptest::prelude::*;
use slipstream_wire::checksum::Verdict::{Absent, Right, Unknown, Wrong};
use slipstream_wire::checksum::{Verdict, fill_ip, fill_transport, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify};

use crate::frames::*;

fn verdicts(frame: &[u8]) -> (Verdict, Verdict) {
    let headers = classify(LinkType::Ethernet, frame).unwrap();
    (verify_ip(frame, &headers), verify_transport(frame, &headers))
}

fn filled(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = classify(LinkType::Ethernet, &frame).unwrap();
    assert_eq!(fill_ip(&mut frame, &headers), !headers.key.is_ipv6());
    assert!(fill_transport(&mut frame, &headers));
    frame
}

fn whole_tcp(payload: &[u8]) -> Vec<u8> {
    [&tcp(80, 1234)[..], payload].concat()
}

fn sctp() -> Vec<u8> {
    [&[0, 5, 0, 6, 0, 0, 0, 9, 0, 0, 0, 0][..], b"chunks"].concat()
}

#[test]
fn filled_then_right_then_damaged() {
    let echo = [8, 0, 0, 0, 0, 1, 0, 2, 3];
    let v4 = |protocol, payload: &[u8]| ethernet(0x800, &ipv4_with(protocol, 0, &[1; 8], payload));
    let v6 = |protocol, payload: &[u8]| ethernet(0x86dd, &ipv6(protocol, payload));
    for (description, frame) in [
        ("TCP", v4(6, &whole_tcp(b"odd"))),
        ("UDP", v4(17, &udp(53, 99, b"odd"))),
        ("ICMP", v4(1, &echo)),
        ("SCTP", v4(132, &sctp())),
        ("TCP over IPv6", v6(6, &whole_tcp(b"even"))),
        ("UDP over IPv6", v6(17, &udp(53, 99, b"odd"))),
        ("UDP over IPv6 behind an extension", v6(60, &extension(17, 0, 0, &udp(53, 99, b"odd")))),
        ("ICMPv6", v6(58, &echo)),
        ("SCTP over IPv6", v6(132, &sctp())),
        ("TCP in a tag", tagged(&[(0x8100, 9)], 0x800, &ipv4(6, &whole_tcp(b"")))),
    ] {
        let is_v4 = !description.contains("v6");
        let right = padded(filled(frame), 120);
        assert_eq!(verdicts(&right), (if is_v4 { Right } else { Absent }, Right), "{description}");
        let headers = classify(LinkType::Ethernet, &right).unwrap();
        for at in (headers.l3 + 12..headers.l3 + 16).chain(headers.l4..headers.l4 + 2) {
            let mut wrong = right.clone();
            wrong[usize::from(at)] ^= 0x10;
            let (ip, transport) = verdicts(&wrong);
            assert_eq!(ip == Wrong, is_v4 && at < headers.l4, "{description}: byte {at}");
            let covered = at >= headers.l4 || !matches!(headers.key.protocol(), 1 | 132);
            assert_eq!(transport == Wrong, covered, "{description}: byte {at}");
        }
    }
}

/// TCP SYN from 192.0.2.1 to 198.51.100.7, the expected checksums computed apart, 16 bits at a time.
#[test]
fn known_values() {
    let ip = [0x45, 0, 0, 40, 0, 1, 0x40, 0, 0x40, 6, 0, 0, 192, 0, 2, 1, 198, 51, 100, 7];
    let tcp = [0, 80, 0x30, 0x39, 0, 0, 0, 1, 0, 0, 0, 0, 0x50, 2, 0xff, 0xff, 0, 0, 0, 0];
    let frame = filled(ethernet(0x800, &[ip, tcp].concat()));
    assert_eq!(&frame[24..26], [0x4e, 0x93]);
    assert_eq!(&frame[50..52], [0x93, 0x1c]);
}

#[test]
fn udp_without_checksum() {
    for frame in
        [ethernet(0x800, &ipv4(17, &udp(53, 99, b"x"))), ethernet(0x86dd, &ipv6(17, &udp(53, 99, b"x")))]
    {
        assert_eq!(verdicts(&frame).1, Absent);
        assert_eq!(verdicts(&filled(frame)).1, Right);
    }
}

/// A sum that comes to 0 is sent as 0xffff, since 0 would say that there is none.
#[test]
fn udp_sum_of_zero() {
    let frame = filled(ethernet(0x800, &ipv4(17, &udp(53, 99, &[0, 0]))));
    let checksum = [frame[40], frame[41]];
    let zero = filled(ethernet(0x800, &ipv4(17, &udp(53, 99, &checksum))));
    assert_eq!([zero[40], zero[41]], [0xff, 0xff]);
    assert_eq!(verdicts(&zero).1, Right);
}

#[test]
fn not_to_be_told() {
    let whole = filled(ethernet(0x800, &ipv4(6, &whole_tcp(b"payload"))));
    let mut lying = ethernet(0x800, &ipv4(17, &udp(53, 99, b"payload")));
    lying[38..40].copy_from_slice(&[0, 60]);
    let mut no_length = whole.clone();
    no_length[16..18].fill(0);
    let routed = |left: u16| ethernet(0x86dd, &ipv6(43, &extension(6, 0, left, &whole_tcp(b""))));
    for (description, mut frame) in [
        ("cut", cut(whole.clone(), whole.len() - 1)),
        ("a fragment", ethernet(0x800, &ipv4_with(6, 1, &[], &whole_tcp(b"payload")))),
        ("another protocol", ethernet(0x800, &ipv4(47, &[0; 20]))),
        ("ICMPv6 in IPv4", ethernet(0x800, &ipv4(58, &[0; 20]))),
        ("a UDP length beyond the packet", lying),
        ("no IP length", no_length),
        ("too short for its header", ethernet(0x800, &ipv4(6, &tcp(1, 2)[..19]))),
        ("on its way through a routing header", routed(1)),
    ] {
        let headers = classify(LinkType::Ethernet, &frame).unwrap();
        assert_eq!(verify_transport(&frame, &headers), Unknown, "{description}");
        let before = frame.clone();
        assert!(!fill_transport(&mut frame, &headers), "{description}");
        assert_eq!(frame, before, "{description}: nothing is written");
    }
    assert_eq!(verdicts(&filled(routed(0))).1, Right, "at the last destination");

    let mut cut_header = ethernet(0x800, &ipv4_with(6, 0, &[1; 8], &[]));
    cut_header.truncate(40);
    let headers = classify(LinkType::Ethernet, &cut_header).unwrap();
    assert_eq!(verify_ip(&cut_header, &headers), Unknown);
    assert!(!fill_ip(&mut cut_header, &headers));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// A checksum that was filled in is right, whatever the packet; nothing panics on any bytes.
    #[test]
    fn fill_then_verify(
        link in proptest::sample::select(vec![1_u16, 101]), start in proptest::sample::select(vec![0x45_u8, 0x46, 0x60]),
        protocol in proptest::sample::select(vec![1_u8, 6, 17, 58, 132]), mut frame in proptest::collection::vec(any::<u8>(), 60..120),
        length in 20_u16..80,
    ) {
        let at = if link == 1 { 14 } else { 0 };
        let is_v4 = start >> 4 == 4;
        frame[at] = start;
        if link == 1 {
            frame[12..14].copy_from_slice(&if is_v4 { [8, 0] } else { [0x86, 0xdd] });
        }
        let (length_at, protocol_at) = if is_v4 { (at + 2, at + 9) } else { (at + 4, at + 6) };
        frame[length_at..length_at + 2].copy_from_slice(&length.to_be_bytes());
        frame[protocol_at] = protocol;
        if is_v4 {
            frame[at + 6] &= 0xc0;
            frame[at + 7] = 0;
        }
        let headers = classify(LinkType::from_number(link), &frame).unwrap();
        let before = verify_transport(&frame, &headers);
        prop_assert_eq!(fill_transport(&mut frame, &headers), before != Unknown);
        if before != Unknown {
            prop_assert_eq!(verify_transport(&frame, &headers), Right);
        }
        prop_assert_eq!(fill_ip(&mut frame, &headers), is_v4);
        prop_assert_eq!(verify_ip(&frame, &headers), if is_v4 { Right } else { Absent });
    }
}
