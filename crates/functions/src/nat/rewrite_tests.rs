//! Rewritten packets, against packets that are built with the new endpoints.

use proptest::array::uniform3;
use proptest::prelude::*;

use super::tests::{A, EXT, R};
use super::*;
use crate::test_packets::{echo, ipv4, ipv4_fragment, is_right, tcp, udp};

/// The reply to a ping with identifier 0 and number 0 and nothing but zeros is a message of zeros, whose
/// checksum is 0xffff: with 0 its receiver would drop it.
#[test]
fn a_message_that_becomes_all_zeros_has_a_checksum_of_ones() {
    let reply = |id, wrong: u16| {
        let mut packet = ipv4(1, R, A, &[&[0, 0, 0, 0], &u16::to_be_bytes(id)[..], &[0; 10]].concat());
        let sum = u16::from_be_bytes([packet[22], packet[23]]);
        packet[22..24].copy_from_slice(&(sum ^ wrong).to_be_bytes());
        packet
    };
    let key = |packet: &[u8]| Packet::read(packet, 0).unwrap().key;
    let rewritten = |wrong| {
        let mut packet = reply(0x1234, wrong);
        // What follows the packet in its frame is no part of the message.
        packet.extend([9; 4]);
        Rewrite::between(key(&packet), key(&reply(0, 0))).apply(&mut packet, 0, 20).unwrap();
        packet.truncate(packet.len() - 4);
        packet
    };
    assert_eq!(rewritten(0), reply(0, 0));
    assert_eq!(rewritten(0)[22..24], [0xff, 0xff]);
    assert!(is_right(&rewritten(0)) && !is_right(&rewritten(0x0100)), "a wrong one stays wrong");
}

fn payload() -> impl Strategy<Value = (u8, Vec<u8>)> {
    let data = || proptest::collection::vec(any::<u8>(), 0..60);
    prop_oneof![
        (any::<[u16; 2]>(), any::<u8>(), data()).prop_map(|([s, d], f, data)| (6, tcp(s, d, f, &data))),
        (any::<[u16; 2]>(), data()).prop_map(|([s, d], data)| (17, udp(s, d, &data))),
        (any::<u16>(), data()).prop_map(|(id, data)| (1, echo(8, id, &data))),
        (any::<u16>(), data()).prop_map(|(id, data)| (1, echo(0, id, &data))),
        data().prop_map(|data| (50, data)),
    ]
}

proptest! {
    /// Any change of endpoints: the packet is the one that would have been built with the new ones, and back
    /// again.
    #[test]
    fn a_rewritten_packet_is_the_packet_of_the_new_endpoints(
        (protocol, payload) in payload(), src: u32, dst: u32, new_src: u32, new_dst: u32, ports: [u16; 2],
        options in prop_oneof![Just(vec![]), Just(vec![1, 1, 1, 0]), Just(vec![1; 40])],
        no_checksum: bool, cut in any::<prop::sample::Index>(),
    ) {
        let mut packet = ipv4_fragment(protocol, src, dst, 0x4000, &options, &payload);
        let l4 = 20 + options.len();
        let old = Packet::read(&packet, 0).unwrap().key;
        let [src_port, dst_port] = ports;
        let was = Tuple::of(old);
        let new = match (protocol, payload[..].first()) {
            (6 | 17, _) => Tuple { protocol, src: new_src, src_port, dst: new_dst, dst_port },
            (1, Some(8)) => Tuple { src: new_src, src_port, dst: new_dst, ..was },
            (1, _) => Tuple { src: new_src, dst: new_dst, dst_port, ..was },
            _ => Tuple { src: new_src, dst: new_dst, ..was },
        };
        let mut expected_payload = payload.clone();
        match (protocol, payload.first()) {
            (6 | 17, _) => {
                expected_payload[..2].copy_from_slice(&src_port.to_be_bytes());
                expected_payload[2..4].copy_from_slice(&dst_port.to_be_bytes());
            }
            (1, Some(8)) => expected_payload[4..6].copy_from_slice(&src_port.to_be_bytes()),
            (1, _) => expected_payload[4..6].copy_from_slice(&dst_port.to_be_bytes()),
            _ => {}
        }
        let mut expected = ipv4_fragment(protocol, new_src, new_dst, 0x4000, &options, &expected_payload);
        if protocol == 17 && no_checksum {
            packet[l4 + 6..l4 + 8].fill(0);
            expected[l4 + 6..l4 + 8].fill(0);
        }
        let original = packet.clone();
        let rewrite = Rewrite::between(old, new.key());
        rewrite.apply(&mut packet, 0, l4).unwrap();
        prop_assert_eq!(&packet, &expected);
        prop_assert!(is_right(&packet));
        Rewrite::between(new.key(), old).apply(&mut packet, 0, l4).unwrap();
        prop_assert_eq!(&packet, &original);

        // The captured part of a packet is rewritten as in the whole one.
        let cut = cut.index(original.len() + 1);
        let mut short = original[..cut].to_vec();
        let applied = rewrite.apply(&mut short, 0, l4);
        prop_assert_eq!(applied.is_ok(), cut >= 20);
        let partial = |at: usize| cut == at + 1;
        if !(l4..l4 + 18).any(partial) {
            prop_assert_eq!(&short[..], if cut >= 20 { &expected[..cut] } else { &original[..cut] });
        }
    }

    /// Messages of zeros and ones, whose sums are the two zeros of ones' complement: an updated checksum is
    /// the one that the packet would have been built with.
    #[test]
    fn a_checksum_of_zeros_is_updated_as_if_computed_anew(
        protocol in prop_oneof![Just(1_u8), Just(6), Just(17)], query: bool,
        data in prop_oneof![
            proptest::collection::vec(Just(0_u8), 0..24),
            proptest::collection::vec(prop_oneof![4 => Just(0_u8), 1 => Just(0xff)], 0..24),
        ],
        [id, new_id, number] in uniform3(prop_oneof![4 => Just(0_u16), 4 => Just(0xffff), 1 => any::<u16>()]),
        address in prop_oneof![Just(0_u32), Just(u32::MAX), any::<u32>()],
    ) {
        let built = |id: u16, src: u32| {
            let bytes = match protocol {
                1 => {
                    let mut message = echo(if query { 8 } else { 0 }, id, &data);
                    message[6..8].copy_from_slice(&number.to_be_bytes());
                    message
                }
                6 => tcp(id, number, 0, &data),
                _ => udp(id, number, &data),
            };
            ipv4(protocol, src, 0, &bytes)
        };
        let (mut packet, expected) = (built(id, 0), built(new_id, address));
        let key = |packet: &[u8]| Packet::read(packet, 0).unwrap().key;
        Rewrite::between(key(&packet), key(&expected)).apply(&mut packet, 0, 20).unwrap();
        prop_assert!(is_right(&packet));
        prop_assert_eq!(packet, expected);
    }

    /// As another implementation sees it.
    #[test]
    fn etherparse_agrees(data in proptest::collection::vec(any::<u8>(), 0..60), src: [u8; 4], dst: [u8; 4], ports: [u16; 4]) {
        use etherparse::{PacketBuilder, SlicedPacket, TransportSlice};
        let [s, d, new_s, new_d] = ports;
        for protocol in [6, 17] {
            let mut packet = Vec::new();
            let builder = PacketBuilder::ipv4(src, dst, 64);
            if protocol == 6 {
                builder.tcp(s, d, 1, 100).write(&mut packet, &data).unwrap();
            } else {
                builder.udp(s, d).write(&mut packet, &data).unwrap();
            }
            let old = Packet::read(&packet, 0).unwrap().key;
            let new = key_of(protocol, EXT, new_s, R, new_d);
            Rewrite::between(old, new).apply(&mut packet, 0, 20).unwrap();
            let sliced = SlicedPacket::from_ip(&packet).unwrap();
            let Some(etherparse::NetSlice::Ipv4(ip)) = &sliced.net else { panic!("no IPv4") };
            let header = ip.header().to_header();
            prop_assert_eq!(header.calc_header_checksum(), header.header_checksum);
            prop_assert_eq!((header.source, header.destination), (EXT.to_be_bytes(), R.to_be_bytes()));
            match sliced.transport.unwrap() {
                TransportSlice::Tcp(tcp) => {
                    prop_assert_eq!((tcp.source_port(), tcp.destination_port()), (new_s, new_d));
                    prop_assert_eq!(tcp.calc_checksum_ipv4(header.source, header.destination).unwrap(), tcp.checksum());
                }
                TransportSlice::Udp(udp) => {
                    prop_assert_eq!((udp.source_port(), udp.destination_port()), (new_s, new_d));
                    let computed = udp.to_header().calc_checksum_ipv4(&header, udp.payload()).unwrap();
                    prop_assert_eq!(computed, udp.checksum());
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
