//! Views: every field where the specification puts it, what `new_checked` declines, and nothing that panics.

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;
use slipstream_wire::view::{
    Arp, Ethernet, Geneve, Gre, HeaderError, Icmpv4, Icmpv6, Ipv4, Ipv4Option, Ipv6, Sctp, Sll, Sll2, Tcp,
    TcpOption, TcpOptions, Udp, Vlan, Vxlan,
};

use crate::frames::*;

fn truncated(needed: usize, have: usize) -> Option<HeaderError> {
    Some(HeaderError::Truncated { needed, have })
}

#[test]
fn ethernet_and_vlan() {
    let mut frame = tagged(&[(0x88a8, 0xb064)], 0x800, b"ip");
    let mut view = Ethernet::new_checked(&mut frame[..]).unwrap();
    assert_eq!((view.dst(), view.src(), view.ethertype()), ([2; 6], [4; 6], 0x88a8));
    view.set_dst([6; 6]);
    view.set_src([8; 6]);
    view.set_ethertype(0x8100);
    let mut tag = Vlan::new_checked(&mut frame[14..]).unwrap();
    assert_eq!((tag.tci(), tag.id(), tag.priority(), tag.drop_eligible()), (0xb064, 100, 5, true));
    assert_eq!((tag.ethertype(), tag.payload()), (0x800, &b"ip"[..]));
    tag.set_id(0xf007);
    assert_eq!(tag.tci(), 0xb007, "priority stays");
    tag.set_ethertype(0x86dd);
    tag.set_tci(0x2001);
    assert_eq!(frame, [&[6; 6][..], &[8; 6], &[0x81, 0, 0x20, 1, 0x86, 0xdd], b"ip"].concat());
    assert_eq!(Ethernet::new_checked(&frame[..13]).err(), truncated(14, 13));
    assert_eq!(Vlan::new_checked([0; 3]).err(), truncated(4, 3));
}

#[test]
fn arp() {
    let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1];
    packet.extend([1, 2, 3, 4, 5, 6, 10, 0, 0, 1, 0, 0, 0, 0, 0, 0, 10, 0, 0, 2, 99]);
    let view = Arp::new_checked(&packet[..]).unwrap();
    assert_eq!((view.hardware(), view.protocol(), view.operation()), (1, 0x800, 1));
    assert_eq!((view.hardware_length(), view.protocol_length()), (6, 4));
    assert_eq!(
        (view.sender_hardware(), view.sender_protocol()),
        (&[1, 2, 3, 4, 5, 6][..], &[10, 0, 0, 1][..])
    );
    assert_eq!((view.target_hardware(), view.target_protocol()), (&[0; 6][..], &[10, 0, 0, 2][..]));
    assert_eq!(view.ipv4(), Some((Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2))));
    Arp::new_checked(&mut packet[..]).unwrap().set_operation(2);
    assert_eq!(packet[6..8], [0, 2]);
    packet[5] = 5;
    assert_eq!(Arp::new_checked(&packet[..]).err(), truncated(30, 29));
    assert_eq!(Arp::new_unchecked(&packet[..]).ipv4(), None);
    assert_eq!(Arp::new_checked([0; 7]).err(), truncated(8, 7));
}

#[test]
fn ipv4_fields() {
    let mut packet = ipv4_with(6, 0x6003, &[7, 3, 4, 1, 148, 4, 0, 0], b"payload");
    packet.push(0);
    let mut view = Ipv4::new_checked(&mut packet[..]).unwrap();
    assert_eq!((view.header_len(), view.total_length(), view.ident()), (28, 35, 1));
    assert_eq!((view.tos(), view.dscp(), view.ttl(), view.protocol()), (0xb8, 46, 64, 6));
    assert_eq!((view.dont_fragment(), view.more_fragments(), view.fragment_offset()), (true, true, 24));
    assert!(view.is_fragment());
    assert_eq!((view.src(), view.dst()), (Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)));
    assert_eq!((view.header().len(), view.payload()), (28, &b"payload"[..]), "no padding");
    let options: Vec<_> = view.options().map(Result::unwrap).collect();
    let option = |kind, data| Ipv4Option { kind, data };
    assert_eq!(options, [option(7, &[4][..]), option(1, &[]), option(148, &[0, 0])]);

    view.set_tos(1);
    view.set_dscp(10);
    assert_eq!(view.tos(), 41, "ECN stays");
    view.set_dont_fragment(false);
    assert_eq!((view.dont_fragment(), view.fragment_offset(), view.more_fragments()), (false, 24, true));
    view.set_dont_fragment(true);
    view.set_total_length(30);
    view.set_ident(0x0506);
    view.set_ttl(63);
    view.set_protocol(17);
    view.set_checksum(0xabcd);
    view.set_src(Ipv4Addr::new(1, 2, 3, 4));
    view.set_dst(Ipv4Addr::new(5, 6, 7, 8));
    assert_eq!(view.checksum(), 0xabcd);
    assert_eq!(packet[..20], [0x47, 41, 0, 30, 5, 6, 0x60, 3, 63, 17, 0xab, 0xcd, 1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Each flag is the bit that the specification gives it: set alone, and missing alone.
#[test]
fn flags_are_single_bits() {
    for word in (0..16).map(|bit| 1_u16 << bit).flat_map(|bit| [bit, !bit]) {
        let bytes = word.to_be_bytes();
        let view = Ipv4::new_unchecked(ipv4_with(17, word, &[], &[]));
        let flags = (view.dont_fragment(), view.more_fragments(), view.is_fragment());
        let offset = word & 0x1fff;
        assert_eq!(flags, (word & 0x4000 != 0, word & 0x2000 != 0, word & 0x2000 != 0 || offset != 0));
        assert_eq!(view.fragment_offset(), offset.wrapping_mul(8), "{word:#06x}");
        let tag = Vlan::new_unchecked(bytes);
        assert_eq!(tag.drop_eligible(), word & 0x1000 != 0, "{word:#06x}");
        let geneve = Geneve::new_unchecked([0, bytes[0], 0, 0, 0, 0, 0, 0]);
        let flags = (geneve.is_control(), geneve.has_critical_options());
        assert_eq!(flags, (word & 0x8000 != 0, word & 0x4000 != 0), "{word:#06x}");
        let vxlan = Vxlan::new_unchecked([bytes[0], 0, 0, 0, 0, 0, 7, 0]);
        assert_eq!(vxlan.vni(), (word & 0x0800 != 0).then_some(7), "{word:#06x}");
        let gre = Gre::new_unchecked([&bytes[..], &[8, 0], &[1; 12]].concat());
        let there = [0x8000, 0x2000, 0x1000].map(|bit| word & bit != 0);
        let fields = [gre.checksum().is_some(), gre.key().is_some(), gre.sequence().is_some()];
        assert_eq!(fields, there, "{word:#06x}");
        assert_eq!(gre.header_len(), 4 + 4 * there.iter().filter(|f| **f).count(), "{word:#06x}");
        let packet = ipv6(44, &extension(6, 0, word, &[]));
        let view = Ipv6::new_unchecked(&packet[..]);
        let is_fragment = view.extensions().next().unwrap().is_fragment();
        assert_eq!(is_fragment, word & !6 != 0, "{word:#06x}");
    }
}

/// An extension header that is captured to its last byte is read, though nothing of it follows.
#[test]
fn the_last_extension_header_may_end_the_packet() {
    let whole = ipv6(0, &extension(60, 0, 0, &extension(6, 0, 0, &[])));
    for (captured, headers) in [(whole.len(), 2), (whole.len() - 1, 1), (whole.len() - 8, 1), (47, 0)] {
        let view = Ipv6::new_unchecked(&whole[..captured]);
        assert_eq!(view.extensions().count(), headers, "{captured} bytes");
    }
}

/// An authentication header counts its length in words of four bytes, two of them not counted (RFC 4302
/// §2.2); all others count in eight.
#[test]
fn extension_headers_count_their_length_in_two_units() {
    for (protocol, units, length) in [(51, 1, 12), (51, 4, 24), (60, 1, 16), (43, 0, 8), (44, 9, 8)] {
        let packet = ipv6(protocol, &extension(6, units, 0, &[7; 16]));
        let view = Ipv6::new_unchecked(&packet[..]);
        let mut extensions = view.extensions();
        assert_eq!(extensions.next().map(|e| e.bytes.len()), Some(length), "{protocol}");
        assert_eq!((extensions.next(), extensions.protocol(), extensions.at()), (None, 6, 40 + length));
    }
}

#[test]
fn ipv4_declined() {
    let whole = ipv4_with(6, 0, &[1; 4], &[]);
    assert_eq!(Ipv4::new_checked(&whole[..19]).err(), truncated(20, 19));
    assert_eq!(Ipv4::new_checked(&whole[..23]).err(), truncated(24, 23));
    assert_eq!(Ipv4::new_checked(ipv6(6, &[])).err(), Some(HeaderError::Version(6)));
    assert_eq!(Ipv4::new_checked([0x44; 20]).err(), Some(HeaderError::Length(16)));
}

#[test]
fn ipv6_fields() {
    let payload = extension(44, 0, 0, &extension(6, 0, 1, b"tcp"));
    let mut packet = padded(ipv6(0, &payload), 64);
    packet[3] = 5;
    let mut view = Ipv6::new_checked(&mut packet[..]).unwrap();
    assert_eq!((view.traffic_class(), view.dscp(), view.flow_label()), (0xb8, 46, 5));
    assert_eq!((view.payload_length(), view.next_header(), view.hop_limit()), (19, 0, 64));
    assert_eq!((view.src(), view.dst()), ("2001:db8::1".parse().unwrap(), "2001:db8::2".parse().unwrap()));
    assert_eq!(view.payload(), payload, "no padding");

    let mut extensions = view.extensions();
    let first = extensions.next().unwrap();
    assert_eq!((first.protocol, first.at, first.next_header(), first.is_fragment()), (0, 40, 44, false));
    let second = extensions.next().unwrap();
    assert_eq!((second.protocol, second.at, second.bytes.len(), second.is_fragment()), (44, 48, 8, true));
    assert_eq!(extensions.next(), None);
    assert_eq!((extensions.protocol(), extensions.at()), (6, 56));

    view.set_traffic_class(0xff);
    assert_eq!((view.traffic_class(), view.flow_label()), (0xff, 5));
    view.set_dscp(1);
    assert_eq!(view.traffic_class(), 7, "ECN stays");
    view.set_payload_length(0x0102);
    view.set_next_header(17);
    view.set_hop_limit(63);
    view.set_src(Ipv6Addr::LOCALHOST);
    view.set_dst(Ipv6Addr::UNSPECIFIED);
    assert_eq!(packet[..8], [0x60, 0x70, 0, 5, 1, 2, 17, 63]);
    assert_eq!(packet[8..40], [Ipv6Addr::LOCALHOST.octets(), [0; 16]].concat());
    assert_eq!(Ipv6::new_checked(&packet[..39]).err(), truncated(40, 39));
    assert_eq!(Ipv6::new_checked([0x45; 40]).err(), Some(HeaderError::Version(4)));
}

#[test]
fn tcp_fields() {
    let mut segment = [&tcp(80, 1234)[..], b"data"].concat();
    segment[16..20].copy_from_slice(&[0xab, 0xcd, 0, 9]);
    let mut view = Tcp::new_checked(&mut segment[..]).unwrap();
    assert_eq!((view.src_port(), view.dst_port(), view.seq(), view.ack()), (80, 1234, 7, 9));
    assert_eq!((view.header_len(), view.window(), view.checksum(), view.urgent()), (20, 256, 0xabcd, 9));
    assert_eq!(view.flags(), Tcp::<()>::AE | Tcp::<()>::ACK | Tcp::<()>::PSH);
    assert_eq!((view.options().count(), view.payload()), (0, &b"data"[..]));
    view.set_src_port(1);
    view.set_dst_port(2);
    view.set_seq(3);
    view.set_ack(4);
    view.set_flags(0xf000 | Tcp::<()>::SYN | Tcp::<()>::CWR);
    view.set_window(5);
    view.set_checksum(6);
    view.set_urgent(7);
    assert_eq!(segment[..20], [0, 1, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0x50, 0x82, 0, 5, 0, 6, 0, 7]);
    segment[12] = 0x40;
    assert_eq!(Tcp::new_checked(&segment[..]).err(), Some(HeaderError::Length(16)));
    segment[12] = 0x70;
    assert_eq!(Tcp::new_checked(&segment[..]).err(), truncated(28, 24));
    assert_eq!(Tcp::new_checked(&segment[..19]).err(), truncated(20, 19));
}

#[test]
fn tcp_options() {
    let read = |bytes: &'static [u8]| TcpOptions::new(bytes).collect::<Vec<_>>();
    let unknown = |kind, data| Ok(TcpOption::Unknown { kind, data });
    assert_eq!(
        read(&[2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2, 1, 3, 3, 7]),
        [
            Ok(TcpOption::MaxSegmentSize(1460)),
            Ok(TcpOption::SackPermitted),
            Ok(TcpOption::Timestamps { value: 1, echo: 2 }),
            Ok(TcpOption::NoOperation),
            Ok(TcpOption::WindowScale(7)),
        ]
    );
    let sack = read(&[5, 18, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 5, 0, 0, 0, 6]);
    let [Ok(TcpOption::Sack(blocks))] = sack[..] else { panic!("{sack:?}") };
    assert_eq!(blocks.collect::<Vec<_>>(), [(1, 2), (5, 6)]);
    assert_eq!(read(&[30, 3, 9, 0, 2, 4, 0, 0]), [unknown(30, &[9])], "the list ends at its mark");
    assert_eq!(read(&[2, 3, 9, 5, 3, 1]), [unknown(2, &[9]), unknown(5, &[1])], "known kinds, wrong lengths");
    for (bytes, error) in [
        (&[8, 10, 0, 0][..], HeaderError::Truncated { needed: 10, have: 4 }),
        (&[8], HeaderError::Truncated { needed: 2, have: 1 }),
        (&[8, 0, 1, 1], HeaderError::Length(0)),
        (&[8, 1, 1, 1], HeaderError::Length(1)),
    ] {
        assert_eq!(TcpOptions::new(bytes).collect::<Vec<_>>(), [Err(error)], "the last item");
    }
}

#[test]
fn udp_fields() {
    let mut datagram = padded(udp(53, 99, b"data"), 20);
    let mut view = Udp::new_checked(&mut datagram[..]).unwrap();
    assert_eq!((view.src_port(), view.dst_port(), view.length(), view.checksum()), (53, 99, 12, 0));
    assert_eq!(view.payload(), b"data", "no padding");
    view.set_src_port(1);
    view.set_dst_port(2);
    view.set_length(3);
    view.set_checksum(4);
    assert_eq!(view.payload(), b"", "a length below the header's");
    assert_eq!(datagram[..8], [0, 1, 0, 2, 0, 3, 0, 4]);
    assert_eq!(Udp::new_checked([0; 7]).err(), truncated(8, 7));
}

#[test]
fn icmp_fields() {
    let expected = [1, 2, 0, 3, 4, 5, 6, 7, 9];
    let mut message = [8, 0, 0, 0, 0, 0, 0, 0, 9];
    let mut v4 = Icmpv4::new_checked(&mut message[..]).unwrap();
    assert_eq!((v4.kind(), v4.code(), v4.payload()), (8, 0, &[9][..]));
    v4.set_kind(1);
    v4.set_code(2);
    v4.set_checksum(3);
    v4.set_rest([4, 5, 6, 7]);
    assert_eq!((v4.checksum(), v4.rest()), (3, [4, 5, 6, 7]));
    assert_eq!(message, expected);
    let mut message = [128, 0, 0, 0, 0, 0, 0, 0, 9];
    let mut v6 = Icmpv6::new_checked(&mut message[..]).unwrap();
    assert_eq!((v6.kind(), v6.code(), v6.payload()), (128, 0, &[9][..]));
    v6.set_kind(1);
    v6.set_code(2);
    v6.set_checksum(3);
    v6.set_rest([4, 5, 6, 7]);
    assert_eq!((v6.checksum(), v6.rest()), (3, [4, 5, 6, 7]));
    assert_eq!(message, expected);
    assert_eq!(Icmpv4::new_checked([0; 7]).err(), truncated(8, 7));
    assert_eq!(Icmpv6::new_checked([0; 7]).err(), truncated(8, 7));
}

#[test]
fn sctp_fields() {
    let mut packet = [0, 5, 0, 6, 0, 0, 0, 7, 0, 0, 0, 0, 1];
    let mut view = Sctp::new_checked(&mut packet[..]).unwrap();
    assert_eq!((view.src_port(), view.dst_port(), view.tag(), view.payload()), (5, 6, 7, &[1][..]));
    assert!(!view.verify_checksum());
    view.fill_checksum();
    assert!(view.verify_checksum());
    assert_eq!(view.checksum(), view.computed_checksum());
    view.set_src_port(1);
    assert!(!view.verify_checksum());
    view.set_dst_port(2);
    view.set_tag(3);
    assert_eq!(packet[..8], [0, 1, 0, 2, 0, 0, 0, 3]);
    assert_eq!(Sctp::new_checked([0; 11]).err(), truncated(12, 11));
}

#[test]
fn tunnel_fields() {
    let bare = [0, 0, 8, 0, 1];
    let view = Gre::new_checked(&bare[..]).unwrap();
    assert_eq!((view.protocol(), view.checksum(), view.key(), view.sequence()), (0x800, None, None, None));
    assert_eq!(view.payload(), [1]);
    let all = [0xb0, 0, 8, 0, 0xab, 0xcd, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 1];
    let view = Gre::new_checked(&all[..]).unwrap();
    assert_eq!((view.checksum(), view.key(), view.sequence()), (Some(0xabcd), Some(5), Some(6)));
    assert_eq!((view.header_len(), view.payload()), (16, &[1][..]));
    let sequence = [0x10, 0, 8, 0, 0, 0, 0, 6];
    let view = Gre::new_checked(&sequence[..]).unwrap();
    assert_eq!((view.checksum(), view.key(), view.sequence()), (None, None, Some(6)));
    assert_eq!(Gre::new_checked(&all[..15]).err(), truncated(16, 15));
    assert_eq!(Gre::new_checked([0x20, 1, 0x88, 0x0b]).err(), Some(HeaderError::Version(1)));

    let view = Vxlan::new_checked(&[8, 0, 0, 0, 0, 1, 2, 0, 9][..]).unwrap();
    assert_eq!((view.flags(), view.vni(), view.payload()), (8, Some(0x102), &[9][..]));
    assert_eq!(Vxlan::new_checked(&[0; 8]).unwrap().vni(), None);
    assert_eq!(Vxlan::new_checked([0; 7]).err(), truncated(8, 7));

    let mut packet = [1, 0xc0, 0x65, 0x58, 0, 1, 2, 0, 1, 2, 3, 0, 9];
    let mut view = Geneve::new_checked(&mut packet[..]).unwrap();
    assert_eq!((view.is_control(), view.has_critical_options(), view.protocol()), (true, true, 0x6558));
    assert_eq!((view.header_len(), view.vni()), (12, 0x102));
    assert_eq!((view.options(), view.payload()), (&[1, 2, 3, 0][..], &[9][..]));
    view.set_protocol(0x800);
    assert_eq!(packet[2..4], [8, 0]);
    assert_eq!(Geneve::new_checked(&packet[..11]).err(), truncated(12, 11));
    assert_eq!(Geneve::new_checked([0x80; 8]).err(), Some(HeaderError::Version(2)));
}

#[test]
fn cooked_fields() {
    let v1 = [0, 4, 0, 1, 0, 6, 1, 2, 3, 4, 5, 6, 0, 0, 8, 0, 9];
    let view = Sll::new_checked(&v1[..]).unwrap();
    assert_eq!((view.packet_type(), view.hardware(), view.ethertype()), (4, 1, 0x800));
    assert_eq!((view.address_length(), view.address()), (6, &[1, 2, 3, 4, 5, 6][..]));
    assert_eq!(view.payload(), [9]);
    let v2 = [8, 0, 0, 0, 0, 0, 0, 3, 0, 1, 4, 200, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    let view = Sll2::new_checked(&v2[..]).unwrap();
    assert_eq!((view.ethertype(), view.interface(), view.hardware(), view.packet_type()), (0x800, 3, 1, 4));
    assert_eq!((view.address_length(), view.address()), (200, &[1, 2, 3, 4, 5, 6, 7, 8][..]));
    assert_eq!(view.payload(), [9]);
    assert_eq!(Sll::new_checked(&v1[..15]).err(), truncated(16, 15));
    assert_eq!(Sll2::new_checked(&v2[..19]).err(), truncated(20, 19));
}

/// Calls accessors, for their panics alone, on the view made with and without checks.
macro_rules! call {
    ($bytes:expr, $view:ident: $($method:ident),*) => {
        for view in [Some($view::new_unchecked($bytes)), $view::new_checked($bytes).ok()].into_iter().flatten() {
            $(let _ = view.$method();)*
            prop_assert_eq!(view.bytes(), $bytes);
        }
    };
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn no_accessor_panics(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
        let b = &bytes[..];
        call!(b, Ethernet: dst, src, ethertype, payload);
        call!(b, Vlan: tci, id, priority, drop_eligible, ethertype, payload);
        call!(b, Arp: hardware, operation, sender_hardware, sender_protocol, target_hardware, target_protocol, ipv4);
        call!(b, Ipv4: header_len, total_length, tos, is_fragment, fragment_offset, src, dst, header, payload);
        call!(b, Ipv6: traffic_class, flow_label, payload_length, src, dst, payload);
        call!(b, Tcp: src_port, seq, ack, flags, window, header_len, payload, urgent);
        call!(b, Udp: src_port, length, checksum, payload);
        call!(b, Icmpv4: kind, code, checksum, rest, payload);
        call!(b, Icmpv6: kind, code, checksum, rest, payload);
        call!(b, Sctp: src_port, tag, checksum, computed_checksum, verify_checksum, payload);
        call!(b, Gre: flags, header_len, checksum, key, sequence, payload);
        call!(b, Vxlan: flags, vni, payload);
        call!(b, Geneve: header_len, is_control, has_critical_options, vni, options, payload);
        call!(b, Sll: packet_type, address, ethertype, payload);
        call!(b, Sll2: interface, address, ethertype, payload);
        prop_assert!(Ipv4::new_unchecked(b).options().count() <= 40);
        prop_assert!(Tcp::new_unchecked(b).options().count() <= 40);
        prop_assert!(TcpOptions::new(b).count() <= b.len());
        prop_assert!(Ipv6::new_unchecked(b).extensions().count() <= 32);
    }

    /// Setters on bytes that are too few write nothing and don't panic.
    #[test]
    fn no_setter_panics(mut bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
        let before = bytes.clone();
        let mut ip = Ipv6::new_unchecked(&mut bytes[..]);
        ip.set_dst(Ipv6Addr::UNSPECIFIED);
        prop_assert_eq!(ip.bytes(), &before[..], "the destination lies beyond");
        ip.set_traffic_class(1);
        let mut tcp = Tcp::new_unchecked(&mut bytes[..]);
        tcp.set_urgent(1);
        tcp.set_flags(1);
        tcp.set_seq(1);
        Sctp::new_unchecked(&mut bytes[..]).fill_checksum();
        Ipv4::new_unchecked(&mut bytes[..]).set_dont_fragment(true);
        Vlan::new_unchecked(&mut bytes[..]).set_id(1);
        prop_assert_eq!(bytes.len(), before.len());
    }
}
