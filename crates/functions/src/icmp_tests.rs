use etherparse::{Icmpv4Slice, Icmpv4Type, Icmpv6Slice, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice};
use etherparse::{icmpv4, icmpv6};
use proptest::prelude::*;

use super::*;
use crate::test_packets::{echo, error, ipv4, ipv4_fragment, ipv6, is_right, tcp, udp};

const A: u32 = 0x0a00_0001;
const B: u32 = 0x0a00_0002;

fn six(n: u16) -> Ipv6Addr {
    Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, n)
}

fn router(packet: &[u8]) -> IpAddr {
    if packet[0] >> 4 == 4 { IpAddr::from([192, 0, 2, 1]) } else { six(99).into() }
}

fn answered(message: Message, packet: &[u8]) -> Result<Vec<u8>, Silent> {
    let mut out = vec![1, 2, 3];
    let result = answer(message, packet, Link::Unicast, router(packet), &mut out);
    assert_eq!(result.is_err(), out.is_empty());
    result.map(|()| out)
}

/// Types and codes as another implementation names them.
#[test]
fn messages() {
    use Message::*;
    use icmpv4::DestUnreachableHeader as V4;
    use icmpv6::DestUnreachableCode as V6;
    let v4 = ipv4(17, A, B, &udp(1, 2, b"data"));
    let v6 = ipv6(17, six(1), six(2), &udp(1, 2, b"data"));
    for (message, four, six) in [
        (
            TimeExceeded,
            Icmpv4Type::TimeExceeded(icmpv4::TimeExceededCode::TtlExceededInTransit),
            Icmpv6Type::TimeExceeded(icmpv6::TimeExceededCode::HopLimitExceeded),
        ),
        (
            NetUnreachable,
            Icmpv4Type::DestinationUnreachable(V4::Network),
            Icmpv6Type::DestinationUnreachable(V6::NoRoute),
        ),
        (
            HostUnreachable,
            Icmpv4Type::DestinationUnreachable(V4::Host),
            Icmpv6Type::DestinationUnreachable(V6::Address),
        ),
        (
            PortUnreachable,
            Icmpv4Type::DestinationUnreachable(V4::Port),
            Icmpv6Type::DestinationUnreachable(V6::Port),
        ),
        (
            AdminProhibited,
            Icmpv4Type::DestinationUnreachable(V4::FilterProhibited),
            Icmpv6Type::DestinationUnreachable(V6::Prohibited),
        ),
        (
            TooBig { mtu: 1400 },
            Icmpv4Type::DestinationUnreachable(V4::FragmentationNeeded { next_hop_mtu: 1400 }),
            Icmpv6Type::PacketTooBig { mtu: 1400 },
        ),
        (
            ParameterProblem { pointer: 42 },
            Icmpv4Type::ParameterProblem(icmpv4::ParameterProblemHeader::PointerIndicatesError(42)),
            Icmpv6Type::ParameterProblem(icmpv6::ParameterProblemHeader {
                code: icmpv6::ParameterProblemCode::ErroneousHeaderField,
                pointer: 42,
            }),
        ),
        (
            UnknownOption { pointer: 42 },
            Icmpv4Type::ParameterProblem(icmpv4::ParameterProblemHeader::PointerIndicatesError(42)),
            Icmpv6Type::ParameterProblem(icmpv6::ParameterProblemHeader {
                code: icmpv6::ParameterProblemCode::UnrecognizedIpv6Option,
                pointer: 42,
            }),
        ),
    ] {
        let out = answered(message, &v4).unwrap();
        assert!(is_right(&out));
        let sliced = SlicedPacket::from_ip(&out).unwrap();
        let Some(NetSlice::Ipv4(ip)) = &sliced.net else { panic!("{sliced:?}") };
        assert_eq!(ip.header().destination(), A.to_be_bytes());
        assert_eq!(ip.header().dcp().value(), 0xc0 >> 2);
        let icmp = Icmpv4Slice::from_slice(&out[20..]).unwrap();
        assert_eq!((icmp.icmp_type(), icmp.payload()), (four, &v4[..]));

        let out = answered(message, &v6).unwrap();
        assert!(is_right(&out));
        let icmp = Icmpv6Slice::from_slice(&out[40..]).unwrap();
        assert_eq!((icmp.icmp_type(), icmp.payload()), (six, &v6[..]));
    }
}

#[test]
fn quotes_end_with_the_packet_or_the_limit() {
    let long = ipv4(17, A, B, &udp(1, 2, &[7; 1000]));
    let out = answered(Message::TimeExceeded, &long).unwrap();
    assert_eq!((out.len(), &out[28..]), (576, &long[..548]));
    let long = ipv6(17, six(1), six(2), &udp(1, 2, &[7; 1400]));
    let out = answered(Message::TimeExceeded, &long).unwrap();
    assert_eq!((out.len(), &out[48..]), (1280, &long[..1232]));
    let short = ipv4(17, A, B, &udp(1, 2, b""));
    let padded = [&short[..], &[0; 18]].concat();
    assert_eq!(&answered(Message::TimeExceeded, &padded).unwrap()[28..], &short);
    let cut = &ipv4(17, A, B, &udp(1, 2, &[1; 50]))[..40];
    assert_eq!(&answered(Message::TimeExceeded, cut).unwrap()[28..], cut);
}

#[test]
fn what_is_never_answered() {
    let data = udp(1, 2, b"x");
    let ok = ipv4(17, A, B, &data);
    let ok6 = ipv6(17, six(1), six(2), &data);
    let all: Ipv6Addr = "ff02::1".parse().unwrap();
    let later6 = [&[17, 0, 0, 9, 0, 0, 0, 1][..], b"payload."].concat();
    for (packet, why) in [
        (ipv4(1, A, B, &error(3, 1, &ok)), Silent::Error),
        (ipv4(1, A, B, &error(11, 0, &ok)), Silent::Error),
        (ipv4(1, A, B, &error(5, 0, &ok)), Silent::Error),
        (ipv6(58, six(1), six(2), &error(1, 0, &ok6)), Silent::Error),
        (ipv6(58, six(1), six(2), &error(100, 0, &ok6)), Silent::Error),
        (ipv6(58, six(1), six(2), &error(137, 0, &ok6)), Silent::Error),
        (ipv4_fragment(17, A, B, 3, &[], b"payload."), Silent::Fragment),
        (ipv6(44, six(1), six(2), &later6), Silent::Fragment),
        (ipv4(17, A, 0xe000_0001, &data), Silent::Destination),
        (ipv4(17, A, u32::MAX, &data), Silent::Destination),
        (ipv6(17, six(1), all, &data), Silent::Destination),
        (ipv4(17, 0, B, &data), Silent::Source),
        (ipv4(17, 0x7f00_0001, B, &data), Silent::Source),
        (ipv4(17, 0xe000_0001, B, &data), Silent::Source),
        (ipv4(17, u32::MAX, B, &data), Silent::Source),
        (ipv6(17, Ipv6Addr::UNSPECIFIED, six(2), &data), Silent::Source),
        (ipv6(17, all, six(2), &data), Silent::Source),
        (ipv6(17, Ipv4Addr::new(10, 0, 0, 9).to_ipv6_mapped(), six(2), &data), Silent::Source),
        (ok[..19].to_vec(), Silent::Unreadable),
        (ipv4(1, A, B, b""), Silent::Unreadable),
    ] {
        assert_eq!(answered(Message::PortUnreachable, &packet), Err(why), "{packet:?}");
    }
    let mut out = vec![];
    let group = answer(Message::TimeExceeded, &ok, Link::Group, router(&ok), &mut out);
    assert_eq!(group, Err(Silent::Destination));
    assert_eq!(
        answer(Message::TimeExceeded, &ok, Link::Unicast, router(&ok6), &mut out),
        Err(Silent::Version)
    );
    // A later fragment of IPv6 is, where it is too long or comes too far.
    let fragment = |protocol| {
        let header = [protocol, 0, 0, 9, 0, 0, 0, 1];
        ipv6(44, six(1), six(2), &[&header[..], b"payload."].concat())
    };
    for message in [Message::TimeExceeded, Message::TooBig { mtu: 1280 }, Message::NetUnreachable] {
        assert!(answered(message, &fragment(17)).is_ok());
        assert_eq!(answered(message, &fragment(58)), Err(Silent::Fragment));
        let later = ipv4_fragment(17, A, B, 3, &[], b"payload.");
        assert_eq!(answered(message, &later), Err(Silent::Fragment));
    }
    // Behind further extension headers of a fragment there may be an error.
    for offset in [0, 8_u8] {
        let options =
            [&[60, 0, 0, offset | 1, 0, 0, 0, 1, 58, 0, 1, 4, 0, 0, 0, 0][..], &error(1, 0, &ok6)].concat();
        let fragment = ipv6(44, six(1), six(2), &options);
        assert_eq!(answered(Message::TimeExceeded, &fragment), Err(Silent::Fragment), "{offset}");
    }
    // Echoes and first fragments are; and multicast of IPv6 is where it is too big.
    assert!(answered(Message::TimeExceeded, &ipv4(1, A, B, &echo(8, 1, b""))).is_ok());
    assert!(answered(Message::TimeExceeded, &ipv4_fragment(17, A, B, 0x2000, &[], &data)).is_ok());
    assert!(answered(Message::TooBig { mtu: 1280 }, &ipv6(17, six(1), all, &data)).is_ok());
}

fn reset_of(packet: &[u8]) -> Result<(u32, u32, u8), Silent> {
    let mut out = vec![];
    reset(packet, 0, Link::Unicast, &mut out)?;
    assert!(is_right(&out));
    let sliced = SlicedPacket::from_ip(&out).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { panic!("no TCP") };
    assert_eq!((tcp.source_port(), tcp.destination_port()), (80, 5000));
    let back = classify(LinkType::RawIp, &out).unwrap().key;
    assert_eq!(back.reversed(), classify(LinkType::RawIp, packet).unwrap().key);
    Ok((tcp.sequence_number(), tcp.acknowledgment_number(), out[out.len() - 7]))
}

/// The test packets have sequence number 7 and acknowledgement number 9.
#[test]
fn resets() {
    for build in [|payload: &[u8]| ipv4(6, A, B, payload), |payload: &[u8]| ipv6(6, six(1), six(2), payload)]
    {
        let of = |flags, data: &[u8]| reset_of(&build(&tcp(5000, 80, flags, data)));
        assert_eq!(of(SYN, b""), Ok((0, 8, RST | ACK)));
        assert_eq!(of(SYN | FIN, b"abc"), Ok((0, 12, RST | ACK)));
        assert_eq!(of(ACK, b"abc"), Ok((9, 0, RST)));
        assert_eq!(of(FIN | ACK, b""), Ok((9, 0, RST)));
        assert_eq!(of(RST, b""), Err(Silent::Reset));
        assert_eq!(of(RST | ACK, b""), Err(Silent::Reset));
    }
    // Of a sliced segment the whole payload counts, and of a token that stands for none nothing.
    for (elsewhere, payload) in [(1000, 1008), (-8, 0)] {
        let (segment, mut out) = (ipv4(6, A, B, &tcp(5000, 80, SYN, b"a token.")), vec![]);
        reset(&segment, elsewhere, Link::Unicast, &mut out).unwrap();
        assert_eq!(out[28..32], (7u32 + payload + 1).to_be_bytes());
    }
    assert_eq!(reset_of(&ipv4(17, A, B, &udp(1, 2, b""))), Err(Silent::Reset));
    assert_eq!(reset_of(&ipv4(6, A, 0xe000_0001, &tcp(1, 2, SYN, b""))), Err(Silent::Destination));
}

proptest! {
    /// Any bytes: no panic; and what is sent is right, short enough, and never answered by an error again.
    #[test]
    fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..120), v6: bool, mtu: u32) {
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        let mut out = vec![];
        if !bytes.is_empty() && answer(Message::TooBig { mtu }, &bytes, Link::Unicast, router(&bytes), &mut out).is_ok() {
            prop_assert!(is_right(&out));
            let most = if v6 { MAX_ICMPV6 } else { MAX_ICMP };
            prop_assert!(out.len() <= most);
            let again = out.clone();
            prop_assert_eq!(answer(Message::TimeExceeded, &again, Link::Unicast, router(&bytes), &mut out), Err(Silent::Error));
        }
        if reset(&bytes, 0, Link::Unicast, &mut out).is_ok() {
            prop_assert!(is_right(&out));
            let again = out.clone();
            let silent = reset(&again, 0, Link::Unicast, &mut out);
            prop_assert!(matches!(silent, Err(Silent::Reset | Silent::Source)));
        }
    }
}
