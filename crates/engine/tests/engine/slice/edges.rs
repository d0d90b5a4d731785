//! The edges, each by name: what is not sliced, what comes back odd, what comes back twice or never.

use slipstream::rules::Rule;
use slipstream::slice::splicer::token_of;
use slipstream::slice::{
    Amount, DSCP_SLICED, Marked, PayloadTable, Refusal, SliceConfig, Sliced, Slicer, Spliced, Splicer,
    Storage, TOKEN_LEN, TokenMode, Why, unsliced_share,
};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{Verdict, checksum, fill_ip, fill_transport, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::packets::Spec;
use super::rewrite::{Rewrite, Tunnel};
use super::same::{Pair, config};

const ETHERNET: LinkType = LinkType::Ethernet;

pub(crate) fn udp(payload: usize) -> Vec<u8> {
    Spec { payload, ..Spec::plain(false, false) }.build()
}

fn tcp(payload: usize) -> Vec<u8> {
    Spec { payload, ..Spec::plain(false, true) }.build()
}

/// An untagged IPv4 frame with another TOS; the header checksum is right again.
pub(crate) fn with_tos(mut frame: Vec<u8>, tos: u8) -> Vec<u8> {
    frame[15] = tos;
    filled_ip(frame)
}

pub(crate) fn filled_ip(mut frame: Vec<u8>) -> Vec<u8> {
    let headers = classify(ETHERNET, &frame).unwrap();
    fill_ip(&mut frame, &headers);
    frame
}

fn whole(pair: &mut Pair, frame: &[u8]) -> Why {
    match pair.slice(ETHERNET, frame, 0) {
        (Sliced::Whole(why), out) => {
            assert_eq!(out, frame, "a packet that is not sliced has changed");
            why
        }
        other => panic!("{other:?}"),
    }
}

fn sliced(pair: &mut Pair, frame: &[u8]) -> Vec<u8> {
    match pair.slice(ETHERNET, frame, 0) {
        (Sliced::Sliced { .. }, out) => out,
        other => panic!("{other:?}"),
    }
}

fn spliced(pair: &mut Pair, frame: &[u8]) -> Vec<u8> {
    match pair.splice(ETHERNET, frame, 0) {
        Ok((Spliced::Whole { .. }, out)) => out,
        other => panic!("{other:?}"),
    }
}

fn refused(pair: &mut Pair, frame: &[u8]) -> Refusal {
    pair.splice(ETHERNET, frame, 0).expect_err("it should have been refused")
}

#[test]
fn below_the_threshold_and_without_an_entry_packets_are_forwarded_whole_and_counted() {
    let mut pair = Pair::new(&SliceConfig { threshold: 500, entries: 1, ..config() });
    assert_eq!(whole(&mut pair, &tcp(445)), Why::Small);
    let first = sliced(&mut pair, &tcp(446));
    assert_eq!(whole(&mut pair, &tcp(1000)), Why::Full);
    assert_eq!(spliced(&mut pair, &first), tcp(446));
    sliced(&mut pair, &tcp(1000));
    let counters = pair.slicer.counters();
    assert_eq!((counters.sliced, counters.packets()), (2, 4));
    assert_eq!((counters.whole[Why::Small as usize], counters.whole[Why::Full as usize]), (1, 1));
    assert_eq!(counters.parked_bytes, 1446);
}

#[test]
fn slicing_that_would_not_make_a_packet_shorter_is_left_out() {
    let mut pair = Pair::new(&config());
    assert_eq!(whole(&mut pair, &udp(8)), Why::Small);
    assert_eq!(sliced(&mut pair, &udp(9)).len(), udp(9).len() - 1);
    let mut keeps = Pair::new(&SliceConfig { keep_bytes: 100, ..config() });
    assert_eq!(whole(&mut keeps, &udp(108)), Why::Small);
    assert_eq!(sliced(&mut keeps, &udp(109)).len(), 14 + 28 + 100 + TOKEN_LEN);
}

#[test]
fn a_fraction_of_the_payload_is_parked() {
    for (amount, parked) in [
        (Amount::Share(0.0), None),
        (Amount::Share(0.25), Some(250)),
        (Amount::Share(0.5), Some(500)),
        (Amount::Share(1.0), Some(1000)),
        (Amount::Bytes(160), Some(160)),
        (Amount::Bytes(320), Some(320)),
        (Amount::Bytes(8), None),
    ] {
        let mut pair = Pair::new(&SliceConfig { amount, ..config() });
        let (done, out) = pair.slice(ETHERNET, &udp(1000), 0);
        match parked {
            None => assert_eq!(done, Sliced::Whole(Why::Small), "{amount:?}"),
            Some(parked) => {
                assert_eq!(out.len(), udp(1000).len() - parked + TOKEN_LEN, "{amount:?}");
                let kept = 42..1042 - parked;
                assert_eq!(out[kept.clone()], udp(1000)[kept]);
                assert_eq!(spliced(&mut pair, &out), udp(1000));
            }
        }
    }
}

#[test]
fn rules_choose_what_is_sliced() {
    let rules = Rule::parse("tcp dst port 443 and length 600-2000").unwrap();
    let mut pair = Pair::new(&SliceConfig { rules, ..config() });
    assert_eq!(whole(&mut pair, &udp(1000)), Why::NotSelected);
    assert_eq!(whole(&mut pair, &tcp(500)), Why::NotSelected);
    sliced(&mut pair, &tcp(1000));
}

#[test]
fn what_is_too_long_for_an_entry_is_forwarded_whole() {
    let mut pair = Pair::new(&SliceConfig { storage: Storage::Copied { entry_bytes: 1000 }, ..config() });
    assert_eq!(whole(&mut pair, &udp(1001)), Why::NoRoom);
    sliced(&mut pair, &udp(1000));
}

#[test]
fn a_packet_that_comes_with_dscp_63_and_is_sliced_gets_it_back() {
    let mut pair = Pair::new(&config());
    let frame = with_tos(tcp(1000), 0xfe);
    let out = sliced(&mut pair, &frame);
    assert_eq!(spliced(&mut pair, &out), frame);
}

#[test]
fn a_packet_that_comes_with_dscp_63_and_is_not_sliced_gets_an_empty_slice() {
    let mut pair = Pair::new(&SliceConfig { threshold: 500, ..config() });
    // Whatever its last bytes are, they are not read as a token.
    let frame = with_tos(udp(100), 0xfc);
    let (done, out) = pair.slice(ETHERNET, &frame, 0);
    assert!(matches!(done, Sliced::Empty { len, .. } if len == frame.len() + TOKEN_LEN), "{done:?}");
    let headers = classify(ETHERNET, &out).unwrap();
    assert_eq!(verify_transport(&out, &headers), Verdict::Right);
    assert_eq!(verify_ip(&out, &headers), Verdict::Right);
    assert_eq!(spliced(&mut pair, &out), frame);
    assert_eq!(pair.slicer.counters().empty, 1);
}

#[test]
fn marked_packets_are_remarked_or_dropped_where_the_policy_says_so() {
    let frame = with_tos(udp(100), 0xfd);
    let mut pair = Pair::new(&SliceConfig { threshold: 500, marked: Marked::Remark(10), ..config() });
    let (done, out) = pair.slice(ETHERNET, &frame, 0);
    assert_eq!((done, out), (Sliced::Remarked, with_tos(udp(100), 10 << 2 | 1)));
    let mut pair = Pair::new(&SliceConfig { threshold: 500, marked: Marked::Drop, ..config() });
    assert_eq!(pair.slice(ETHERNET, &frame, 0).0, Sliced::Dropped);
    // No entry for an empty slice: DSCP 0, and never forwarded with the mark.
    let mut pair = Pair::new(&SliceConfig { threshold: 500, entries: 1, ..config() });
    sliced(&mut pair, &tcp(1000));
    assert_eq!(pair.slice(ETHERNET, &frame, 0), (Sliced::Remarked, with_tos(udp(100), 1)));
    // Nor room behind it.
    let (mut pair, mut tight) = (Pair::new(&SliceConfig { threshold: 500, ..config() }), frame.clone());
    let len = tight.len();
    let done = pair.slicer.slice(&mut pair.table, ETHERNET, &mut tight, len, Nanos(0));
    assert_eq!((done, tight), (Sliced::Remarked, with_tos(udp(100), 1)));
}

/// A packet is not made too long for functions to pass it on, and one that they have to answer goes whole.
#[test]
fn the_mtu_of_functions_bounds_slices_and_tokens() {
    let at_mtu = |mtu| Pair::new(&SliceConfig { functions_mtu: mtu, ..config() });
    // On the fast path and on the general one.
    let tagged = Spec { tags: vec![7], ..Spec::plain(false, true) };
    for spec in [Spec::plain(false, true), Spec::plain(true, true), tagged] {
        let frame = Spec { payload: 1000, ..spec }.build();
        let ip = frame.len() as u32 - u32::from(classify(ETHERNET, &frame).unwrap().l3);
        assert_eq!(whole(&mut at_mtu(ip - 1), &frame), Why::TooLong);
        let mut pair = at_mtu(ip);
        let out = sliced(&mut pair, &frame);
        assert_eq!(spliced(&mut pair, &out), frame);
    }
    let short = with_tos(udp(100), 0xfc);
    let ip = short.len() as u32 - 14;
    let slice = |mtu, frame: &[u8]| {
        let config = SliceConfig { functions_mtu: mtu, threshold: 500, ..config() };
        Pair::new(&config).slice(ETHERNET, frame, 0)
    };
    assert!(matches!(slice(ip + 8, &short).0, Sliced::Empty { .. }));
    for mtu in [ip + 7, ip, ip - 1] {
        assert_eq!(slice(mtu, &short), (Sliced::Remarked, with_tos(udp(100), 0)));
    }
}

#[test]
fn the_function_changes_the_dscp_and_its_value_wins() {
    let mut pair = Pair::new(&config());
    let out = sliced(&mut pair, &with_tos(tcp(1000), 0x28));
    let changed = Rewrite::Dscp(46).apply(ETHERNET, out);
    assert_eq!(spliced(&mut pair, &changed), with_tos(tcp(1000), 46 << 2));
    // The paper's token can be guessed, so there the mark must stand.
    let mut pair = Pair::new(&SliceConfig { mode: TokenMode::Paper, ..config() });
    let out = sliced(&mut pair, &tcp(1000));
    let changed = Rewrite::Dscp(46).apply(ETHERNET, out);
    assert_eq!(pair.splice(ETHERNET, &changed, 0), Ok((Spliced::Untouched, changed)));
}

#[test]
fn ecn_bits_are_never_touched() {
    for ecn in 0..4 {
        let mut pair = Pair::new(&config());
        let out = sliced(&mut pair, &with_tos(tcp(1000), 0x28 | ecn));
        assert_eq!(out[15], DSCP_SLICED << 2 | ecn);
        // A queue on the way marks congestion.
        let marked = Rewrite::Ce.apply(ETHERNET, out);
        assert_eq!(spliced(&mut pair, &marked), with_tos(tcp(1000), 0x2b));
    }
}

#[test]
fn addresses_ports_hops_and_macs_are_kept_and_all_is_repaired() {
    for spec in [Spec::plain(false, true), Spec::plain(true, false)] {
        let mut pair = Pair::new(&config());
        let mut out = sliced(&mut pair, &spec.build());
        let mut alone = spec.build();
        for rewrite in [Rewrite::Macs, Rewrite::Hop, Rewrite::Translate(0xc000_0207, 4321)] {
            (out, alone) = (rewrite.apply(ETHERNET, out), rewrite.apply(ETHERNET, alone));
        }
        let out = spliced(&mut pair, &out);
        assert_eq!(out, alone);
        let headers = classify(ETHERNET, &out).unwrap();
        assert_eq!(verify_transport(&out, &headers), Verdict::Right);
        assert_eq!(headers.key.src_port(), 4321);
    }
}

#[test]
fn what_the_function_encapsulates_has_every_nested_length_repaired() {
    for kind in [Tunnel::IpInIp, Tunnel::Gre, Tunnel::Vxlan, Tunnel::Geneve, Tunnel::Gue] {
        for (six, checksum, copies_tos) in [(false, false, true), (true, true, false), (false, true, false)] {
            let rewrite = Rewrite::Tunnel { kind, six, copies_tos, checksum, keeps_trailer: false };
            let mut pair = Pair::new(&config());
            let out = sliced(&mut pair, &tcp(1000));
            let out = spliced(&mut pair, &rewrite.apply(ETHERNET, out));
            assert_eq!(out, rewrite.apply(ETHERNET, tcp(1000)), "{rewrite:?}");
            let headers = classify(ETHERNET, &out).unwrap();
            assert_ne!(verify_transport(&out, &headers), Verdict::Wrong, "{rewrite:?}");
        }
    }
}

/// At 10 % drops with 10 turns half of the traffic is not sliced: dT / (1 + dT). Said explicitly, all of it
/// is.
#[test]
fn dropped_packets_block_their_entries_for_ttl_turns_unless_the_drop_is_said() {
    for (share, ttl) in [(0.1f64, 10u16), (0.02, 10), (0.1, 3), (0.5, 4)] {
        let every = (1.0 / share).round() as u64;
        for explicit in [false, true] {
            // Entries are many, so that which of them a dropped packet takes looks random.
            let mut pair = Pair::new(&SliceConfig { entries: 97, ttl, ..config() });
            let mut random = 1u64;
            for n in 0..30_000u64 {
                let (done, out) = pair.slice(ETHERNET, &udp(40), n);
                if !matches!(done, Sliced::Sliced { .. }) {
                    continue;
                }
                random =
                    random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                if (random >> 33).is_multiple_of(every) {
                    if explicit {
                        pair.table.release(token_of(ETHERNET, &out).unwrap()).unwrap();
                    }
                } else {
                    spliced(&mut pair, &out);
                }
            }
            let counters = pair.slicer.counters();
            let expected = if explicit { 0.0 } else { unsliced_share(1.0 / every as f64, ttl) };
            let got = counters.unsliced_share();
            println!(
                "drops {share}, ttl {ttl}, explicit {explicit}: {got:.3} not sliced, {expected:.3} expected"
            );
            assert!((got - expected).abs() < 0.02, "{share} {ttl} {explicit}: {got} instead of {expected}");
            pair.table.audit().unwrap();
        }
    }
}

#[test]
fn a_packet_that_the_function_duplicates_is_spliced_once() {
    let mut pair = Pair::new(&config());
    let out = sliced(&mut pair, &tcp(1000));
    spliced(&mut pair, &out);
    assert_eq!(refused(&mut pair, &out), Refusal::Duplicate);
    assert_eq!(pair.splicer.counters().refused, [0, 0, 0, 1, 0, 0, 0, 0, 0]);
}

#[test]
fn what_is_sent_to_many_is_not_sliced() {
    let mut pair = Pair::new(&config());
    let mut broadcast = tcp(1000);
    broadcast[..6].fill(0xff);
    assert_eq!(whole(&mut pair, &broadcast), Why::Kind);
    for address in [[224, 0, 0, 5], [239, 1, 2, 3], [255, 255, 255, 255]] {
        let mut multicast = udp(1000);
        multicast[30..34].copy_from_slice(&address);
        assert_eq!(whole(&mut pair, &filled_ip(multicast)), Why::Kind, "{address:?}");
    }
    let mut six = Spec::plain(true, false).build();
    six[38] = 0xff;
    assert_eq!(whole(&mut pair, &six), Why::Kind);
}

#[test]
fn late_stale_and_duplicate_packets_are_dropped_each_by_its_cause() {
    let mut pair = Pair::new(&SliceConfig { entries: 1, ttl: 1, ..config() });
    let first = sliced(&mut pair, &tcp(1000));
    // The index meets it once, and its turn is over.
    assert_eq!(whole(&mut pair, &tcp(1000)), Why::Full);
    assert_eq!(refused(&mut pair, &first), Refusal::Late);
    let second = sliced(&mut pair, &udp(1000));
    assert_eq!(refused(&mut pair, &first), Refusal::Stale);
    assert_eq!(spliced(&mut pair, &second), udp(1000));
    assert_eq!(refused(&mut pair, &second), Refusal::Duplicate);
    let third = sliced(&mut pair, &udp(1000));
    pair.table.release(token_of(ETHERNET, &third).unwrap()).unwrap();
    assert_eq!(refused(&mut pair, &third), Refusal::Released);
    assert_eq!(pair.splicer.counters().refused, [0, 1, 1, 1, 1, 0, 0, 0, 0]);
    assert_eq!(pair.splicer.counters().packets(), 5);
}

/// An IPv4 frame of another protocol or another shape.
fn ipv4(protocol: u8, fragment: u16, payload: &[u8]) -> Vec<u8> {
    let mut frame = tcp(0)[..34].to_vec();
    frame[16..18].copy_from_slice(&((20 + payload.len()) as u16).to_be_bytes());
    frame[20..22].copy_from_slice(&fragment.to_be_bytes());
    frame[23] = protocol;
    frame.extend(payload);
    filled_ip(frame)
}

/// An IPv6 frame whose first next header is this.
fn ipv6(next: u8, payload: &[u8]) -> Vec<u8> {
    let mut frame = Spec { payload: 0, ..Spec::plain(true, false) }.build()[..54].to_vec();
    frame[18..20].copy_from_slice(&(payload.len() as u16).to_be_bytes());
    frame[20] = next;
    frame.extend(payload);
    frame
}

/// A UDP datagram of `len` bytes, to stand behind IPv6 extension headers.
fn datagram(len: u16) -> Vec<u8> {
    let mut bytes = vec![0, 1, 0, 2];
    bytes.extend(len.to_be_bytes());
    bytes.resize(usize::from(len), 7);
    bytes
}

#[test]
fn fragments_esp_sctp_icmp_and_unknown_headers_are_not_sliced() {
    let mut pair = Pair::new(&config());
    let body = vec![7u8; 1000];
    let extended = |kind: u8, header: [u8; 8]| ipv6(kind, &[&header[..], &datagram(1000)].concat());
    for (what, frame) in [
        ("first fragment", ipv4(17, 0x2000, &datagram(1000))),
        ("later fragment", ipv4(6, 100, &body)),
        ("ESP", ipv4(50, 0, &body)),
        ("AH", ipv4(51, 0, &body)),
        ("SCTP", ipv4(132, 0, &body)),
        ("ICMP", ipv4(1, 0, &[&[8, 0, 0, 0, 0, 1, 0, 1][..], &body].concat())),
        ("UDP-Lite", ipv4(136, 0, &body)),
        ("GRE", ipv4(47, 0, &body)),
        ("a UDP length that is too short", ipv4(17, 0, &[&datagram(500)[..], &[0; 500]].concat())),
        ("a TCP header that is too long", ipv4(6, 0, &[&[0; 12][..], &[0xf0], &[0; 20]].concat())),
        ("ESP over IPv6", ipv6(50, &body)),
        ("ICMPv6", ipv6(58, &[&[128, 0, 0, 0, 0, 1, 0, 1][..], &body].concat())),
        ("an IPv6 fragment", extended(44, [17, 0, 0, 1, 0, 0, 0, 9])),
        ("AH over IPv6", ipv6(51, &[&[17, 4, 0, 0][..], &[0; 20], &datagram(1000)].concat())),
        ("a routing header on its way", extended(43, [17, 0, 2, 1, 0, 0, 0, 0])),
        ("mobility", extended(135, [17, 0, 0, 0, 0, 0, 0, 0])),
        ("an unknown extension header", extended(253, [17, 0, 0, 0, 0, 0, 0, 0])),
        ("a jumbogram", {
            let mut j = ipv6(17, &datagram(1000));
            j[18..20].fill(0);
            j
        }),
        ("no IP", {
            let mut arp = tcp(100);
            arp[12..14].copy_from_slice(&[8, 6]);
            arp
        }),
        ("MPLS", {
            let mut mpls = tcp(100);
            mpls[12..14].copy_from_slice(&[0x88, 0x47]);
            mpls
        }),
        ("not wholly captured", tcp(1000)[..500].to_vec()),
        ("much behind the IP packet", [tcp(1000), vec![0; 65]].concat()),
    ] {
        assert_eq!(whole(&mut pair, &frame), Why::Kind, "{what}");
    }
    for (what, frame) in [
        ("hop-by-hop options", extended(0, [17, 0, 1, 4, 0, 0, 0, 0])),
        ("destination options", extended(60, [17, 0, 1, 4, 0, 0, 0, 0])),
        ("a routing header at its end", extended(43, [17, 0, 2, 0, 0, 0, 0, 0])),
        ("an atomic fragment", extended(44, [17, 0, 0, 0, 0, 0, 0, 9])),
        ("IPv4 marked as not to be fragmented", ipv4(17, 0x4000, &datagram(1000))),
    ] {
        let out = sliced(&mut pair, &frame);
        assert_eq!(spliced(&mut pair, &out), frame, "{what}");
    }
}

/// Whatever can't be sliced and comes with the mark keeps it, by an empty slice.
#[test]
fn marked_fragments_icmp_and_the_like_keep_their_dscp() {
    let mut pair = Pair::new(&config());
    let mut echo = [&[8, 0, 0, 0, 0, 1, 0, 1][..], &[5; 101]].concat();
    let sum = checksum(&echo);
    echo[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut multicast = udp(100);
    multicast[..6].copy_from_slice(&[1, 0, 0x5e, 0, 0, 5]);
    for frame in [
        ipv4(17, 0x2000, &datagram(300)),
        ipv4(50, 0, &[1; 200]),
        ipv4(132, 0, &[2; 200]),
        ipv4(1, 0, &echo),
        multicast,
    ] {
        let frame = with_tos(frame, 0xff);
        let (done, out) = pair.slice(ETHERNET, &frame, 0);
        assert!(matches!(done, Sliced::Empty { .. }), "{done:?}");
        let headers = classify(ETHERNET, &out).unwrap();
        assert_ne!(
            verify_transport(&out, &headers),
            if headers.key.protocol() == 132 { Verdict::Right } else { Verdict::Wrong }
        );
        assert_eq!(
            spliced(&mut pair, &Rewrite::Hop.apply(ETHERNET, out)),
            Rewrite::Hop.apply(ETHERNET, frame)
        );
    }
}

/// The mark on a packet whose last extension header is cut off: a token behind it would be read as part of
/// that.
#[test]
fn a_marked_packet_with_half_an_extension_header_loses_the_mark() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        for half in 1..8u8 {
            let mut pair = Pair::new(&SliceConfig { mode, ..config() });
            let mut frame = udp(0)[..12].to_vec();
            frame.extend([0x86, 0xdd, 0x6f, 0xc0, 0, 0, 0, half, 0, 64]);
            frame.extend([0xfd; 32]);
            frame.extend(vec![0; usize::from(half)]);
            let (done, out) = pair.slice(ETHERNET, &frame, 0);
            assert_eq!(done, Sliced::Remarked, "{half} bytes");
            assert_eq!(pair.splice(ETHERNET, &out, 0), Ok((Spliced::Untouched, out)));
            assert_eq!(pair.table.waiting(), 0);
        }
    }
}

/// A packet that looks like an ICMP error, and was taken for something else when it got its token, is no
/// quote of itself.
#[test]
fn a_marked_packet_that_begins_like_an_icmp_error_comes_back() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        for (protocol, message) in
            [(1u8, &[4u8, 0, 0, 0, 0, 0, 0, 0, 0, 0][..]), (58, &[1, 0, 0]), (58, &[2])]
        {
            let mut pair = Pair::new(&SliceConfig { mode, ..config() });
            let mut frame = udp(0)[..12].to_vec();
            frame.extend([0x86, 0xdd, 0x6f, 0xc0, 0, 0, 0, message.len() as u8, protocol, 64]);
            frame.extend([0xfd; 32]);
            frame.extend(message);
            let (done, out) = pair.slice(ETHERNET, &frame, 0);
            assert!(matches!(done, Sliced::Empty { .. }), "{done:?}");
            assert_eq!(spliced(&mut pair, &out), frame, "{mode:?}, {protocol}");
        }
    }
}

/// An ICMP error about a packet, as a router sends it.
pub(crate) fn icmp_error(about: &[u8], quoted: usize, tos: u8) -> Vec<u8> {
    let six = about[14] >> 4 == 6;
    let quote = &about[14..about.len().min(14 + quoted)];
    let kind: &[u8] = if six { &[3, 0] } else { &[11, 0] };
    let message = [kind, &[0; 6], quote].concat();
    let mut frame = about[..14].to_vec();
    if six {
        frame.extend([0x60 | tos >> 4, tos << 4, 0, 0]);
        frame.extend((message.len() as u16).to_be_bytes());
        frame.extend([58, 64]);
        frame.extend([0xfd; 16]);
        frame.extend(&about[22..38]);
    } else {
        frame.extend([0x45, tos]);
        frame.extend(((20 + message.len()) as u16).to_be_bytes());
        frame.extend([0, 0, 0, 0, 64, 1, 0, 0, 10, 9, 9, 9]);
        frame.extend(&about[26..30]);
    }
    frame.extend(message);
    let headers = classify(ETHERNET, &frame).unwrap();
    fill_ip(&mut frame, &headers);
    assert!(fill_transport(&mut frame, &headers));
    frame
}

#[test]
fn an_icmp_error_quotes_the_packet_as_it_was_and_no_token() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        for (spec, keep_bytes, tos) in [
            (Spec::plain(false, true), 0, 0xc0),
            (Spec::plain(false, false), 12, 0),
            (Spec { tos: 0x28, ..Spec::plain(true, false) }, 0, 0),
            // It has the DSCP of the packet that it is about.
            (Spec { tos: 0x28, ..Spec::plain(true, true) }, 5, 0xfc),
        ] {
            let mut pair = Pair::new(&SliceConfig { mode, keep_bytes, ..config() });
            let frame = spec.build();
            let out = sliced(&mut pair, &frame);
            // The router has dropped the packet, and said so.
            pair.table.release(token_of(ETHERNET, &out).unwrap()).unwrap();
            let error = icmp_error(&out, 500, tos);
            let (done, restored) = pair.splice(ETHERNET, &error, 0).unwrap();
            assert!(matches!(done, Spliced::Quote { len } if len == error.len() - TOKEN_LEN));
            let tos = if tos == 0xfc { 0x28 } else { tos };
            let kept = out.len() - 14 - TOKEN_LEN;
            assert_eq!(restored, icmp_error(&frame, kept, tos), "{mode:?} {spec:?}");
        }
    }
}

#[test]
fn an_icmp_error_about_a_payload_that_is_long_gone_is_dropped_not_sent_with_a_token() {
    let mut pair = Pair::new(&SliceConfig { entries: 1, ttl: 1, ..config() });
    let out = sliced(&mut pair, &tcp(1000));
    spliced(&mut pair, &out);
    sliced(&mut pair, &tcp(1000));
    assert_eq!(refused(&mut pair, &icmp_error(&out, 500, 0)), Refusal::Stale);
}

#[test]
fn an_icmp_error_from_the_network_passes_as_it_is() {
    let mut pair = Pair::new(&SliceConfig { threshold: 500, ..config() });
    let error = icmp_error(&tcp(1000), 400, 0);
    assert_eq!(whole(&mut pair, &error), Why::Small);
    assert_eq!(pair.splice(ETHERNET, &error, 0), Ok((Spliced::Untouched, error)));
}

#[test]
fn an_icmp_error_from_the_network_about_a_marked_packet_passes_as_it_is() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        let mut pair = Pair::new(&SliceConfig { mode, ..config() });
        let marked = Spec { tos: 0xfc, ..Spec::plain(false, true) }.build();
        let error = icmp_error(&marked, 400, 0);
        assert_eq!(whole(&mut pair, &error), Why::Kind);
        assert_eq!(pair.splice(ETHERNET, &error, 0), Ok((Spliced::Untouched, error)), "{mode:?}");
    }
}

#[test]
fn what_would_be_too_long_is_dropped_and_counted_and_its_payload_given_up() {
    let mut pair = Pair::new(&SliceConfig { mtu: 1040, ..config() });
    let out = sliced(&mut pair, &tcp(1000));
    assert_eq!(spliced(&mut pair, &out), tcp(1000));
    let out = sliced(&mut pair, &tcp(1001));
    assert_eq!(refused(&mut pair, &out), Refusal::Oversize);
    // A tunnel that leaves no room for the payload in 65 535 bytes.
    let tunnel = Rewrite::Tunnel {
        kind: Tunnel::Vxlan,
        six: false,
        copies_tos: true,
        checksum: false,
        keeps_trailer: false,
    };
    let mut pair = Pair::new(&config());
    let out = sliced(&mut pair, &tcp(65_450));
    assert_eq!(refused(&mut pair, &tunnel.apply(ETHERNET, out)), Refusal::Oversize);
    assert_eq!((pair.table.waiting(), pair.table.counters().released), (0, 1));
    assert_eq!(pair.splicer.counters().refused, [0, 0, 0, 0, 0, 0, 1, 0, 0]);
}

#[test]
fn short_frames_are_padded_on_the_way_and_the_padding_goes() {
    let mut pair = Pair::new(&config());
    let mut out = sliced(&mut pair, &udp(1000));
    assert_eq!(out.len(), 50);
    out.resize(60, 0);
    assert_eq!(spliced(&mut pair, &out), udp(1000));
    // The bytes behind the IP packet when it came stand there again.
    let frame = [udp(1000), b"trailer".to_vec()].concat();
    let mut out = sliced(&mut pair, &frame);
    out.resize(60, 0);
    assert_eq!(spliced(&mut pair, &out), frame);
}

#[test]
fn a_truncated_packet_gets_no_payload() {
    let mut pair = Pair::new(&config());
    let out = sliced(&mut pair, &tcp(1000));
    for len in 34..out.len() {
        assert_eq!(refused(&mut pair, &out[..len]), Refusal::Mangled, "{len}");
        // With a length that says so.
        let mut shorter = out[..len].to_vec();
        shorter[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
        assert!(pair.splice(ETHERNET, &filled_ip(shorter), 0).is_err(), "{len}");
    }
    // The packet itself is not harmed.
    assert_eq!(spliced(&mut pair, &out), tcp(1000));
}

/// The function's payload in front of the token is not what was sliced.
#[test]
fn a_packet_with_more_than_the_token_behind_its_headers_gets_no_payload() {
    let mut pair = Pair::new(&config());
    let out = sliced(&mut pair, &tcp(1000));
    let mut longer = [&out[..54], b"extra", &out[54..]].concat();
    let length = (longer.len() - 14) as u16;
    longer[16..18].copy_from_slice(&length.to_be_bytes());
    assert_eq!(refused(&mut pair, &filled_ip(longer)), Refusal::Mangled);
    assert_eq!(spliced(&mut pair, &out), tcp(1000));
}

#[test]
fn a_packet_that_returns_on_another_worker_is_handed_over() {
    let config = SliceConfig { workers: 4, entries: 250, ..config() };
    let mut tables: Vec<PayloadTable> = (0..4).map(|w| PayloadTable::new(&config, w).unwrap()).collect();
    let mut slicers: Vec<Slicer> = (0..4).map(|_| Slicer::new(&config).unwrap()).collect();
    let mut splicers: Vec<Splicer> = (0..4).map(|_| Splicer::new(&config).unwrap()).collect();
    for came in 0..4 {
        for returns in 0..4 {
            let frame = udp(500 + came * 10 + returns);
            let mut buffer = frame.clone();
            let done = slicers[came].slice(&mut tables[came], ETHERNET, &mut buffer, frame.len(), Nanos(0));
            let Sliced::Sliced { len, .. } = done else { panic!("{done:?}") };
            let mut at = returns;
            if came != returns {
                let before = buffer.clone();
                let done = splicers[at].splice(&mut tables[at], ETHERNET, &mut buffer, len, Nanos(0));
                assert_eq!(done, Err(Refusal::Elsewhere(came as u32)));
                assert_eq!(buffer, before, "it is handed over as it is");
                at = came;
            }
            let done = splicers[at].splice(&mut tables[at], ETHERNET, &mut buffer, len, Nanos(0));
            assert_eq!(done, Ok(Spliced::Whole { len: frame.len() }));
            assert_eq!(buffer, frame);
        }
    }
    assert!(splicers.iter().all(|s| s.counters().elsewhere == 3 && s.counters().spliced == 4));
    assert!(tables.iter().all(|t| t.waiting() == 0));
}

#[test]
fn frames_of_any_link_type_are_sliced() {
    let ip = udp(1000)[14..].to_vec();
    let cooked = [&[0, 0, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0, 8, 0][..], &ip].concat();
    let cooked2 = [&[8, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 6, 2, 0, 0, 0, 0, 1, 0, 0][..], &ip].concat();
    let loopback = [&[2, 0, 0, 0][..], &ip].concat();
    for (link, frame) in [
        (LinkType::RawIp, ip),
        (LinkType::LinuxSll, cooked),
        (LinkType::LinuxSll2, cooked2),
        (LinkType::Loopback, loopback),
    ] {
        let mut pair = Pair::new(&config());
        let (done, out) = pair.slice(link, &frame, 0);
        assert!(matches!(done, Sliced::Sliced { parked: 1000, .. }), "{link:?} {done:?}");
        assert_eq!(pair.splice(link, &out, 0).unwrap().1, frame, "{link:?}");
    }
    let mut pair = Pair::new(&config());
    assert_eq!(pair.slice(LinkType::Other(147), &udp(1000), 0).0, Sliced::Whole(Why::Kind));
}
