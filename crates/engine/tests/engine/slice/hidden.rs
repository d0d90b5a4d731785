//! Functions that push and pop tags, put tunnels around packets and take them off, and quote packets in
//! errors of any length: no packet of the network gets a payload by that, and no token leaves while it is
//! good for anything.

use slipstream::slice::{Refusal, SliceConfig, Sliced, Spliced, Storage, Token, TokenKey, TokenMode};
use slipstream_wire::checksum::{Verdict, checksum, fill_ip, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::edges::{filled_ip, icmp_error, udp, with_tos};
use super::packets::Spec;
use super::rewrite::{Rewrite, Tunnel};
use super::same::{Pair, config};

const ETHERNET: LinkType = LinkType::Ethernet;

fn push(frame: &[u8], tags: usize) -> Vec<u8> {
    let mut out = frame.to_vec();
    for n in 0..tags {
        out.splice(12..12, [[0x81, 0], [0x88, 0xa8], [0x91, 0]][n % 3].into_iter().chain([0, n as u8]));
    }
    out
}

fn pop_all(frame: &[u8]) -> Vec<u8> {
    let mut out = frame.to_vec();
    while out.len() >= 18 && matches!(out[12..14], [0x81, 0] | [0x88, 0xa8] | [0x91, 0]) {
        out.drain(12..16);
    }
    out
}

/// A datagram of an attacker that ends in a token.
fn ending_in(token: Token, tos: u8) -> Vec<u8> {
    let mut frame = udp(8);
    let end = frame.len();
    frame[end - 8..].copy_from_slice(&token.to_bytes());
    frame[40..42].fill(0);
    with_tos(frame, tos)
}

/// A UDP victim: what an attacker's datagram has to look like to get its payload.
fn victim() -> Vec<u8> {
    Spec { payload: 1200, fill: 77, ..Spec::plain(false, false) }.build()
}

fn set_up(change: impl FnOnce(&mut SliceConfig)) -> (Pair, Vec<u8>, Token) {
    let mut config = SliceConfig { threshold: 500, entries: 64, ttl: 1000, ..config() };
    change(&mut config);
    let mut pair = Pair::new(&config);
    let (done, sliced) = pair.slice(ETHERNET, &victim(), 0);
    let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
    (pair, sliced, token)
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|w| w == part)
}

/// A packet of the network, changed by a function on its way, must leave without the victim's payload, and
/// the victim with it.
fn attack(pair: &mut Pair, sliced: &[u8], frame: &[u8], function: impl Fn(&[u8]) -> Vec<u8>) {
    let (done, through) = pair.slice(ETHERNET, frame, 1);
    if done != Sliced::Dropped
        && let Ok((done, out)) = pair.splice(ETHERNET, &function(&through), 2)
    {
        assert!(
            out.len() <= frame.len() + 200 && !has(&out, &victim()[42..100]),
            "disclosed: {done:?} {out:02x?}"
        );
    }
    let (_, out) = pair.splice(ETHERNET, sliced, 3).expect("the victim's payload is gone");
    assert_eq!(out, victim());
    pair.table.audit().unwrap();
}

#[test]
fn tags_that_a_function_takes_off_bring_no_token_in() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        for tags in 0..24 {
            for tos in [0, 0xfc] {
                let (mut pair, sliced, token) = set_up(|c| c.mode = mode);
                attack(&mut pair, &sliced, &push(&ending_in(token, tos), tags), pop_all);
            }
        }
    }
}

#[test]
fn any_number_of_tags_is_read_at_both_ends() {
    let mut pair = Pair::new(&config());
    for (before, then) in [(0, 0), (0, 30), (10, 1), (11, 0), (30, 3)] {
        let frame = push(&victim(), before);
        let (done, out) = pair.slice(ETHERNET, &frame, 0);
        assert!(matches!(done, Sliced::Sliced { .. }), "{before} tags: {done:?}");
        let (done, out) = pair.splice(ETHERNET, &push(&out, then), 0).unwrap();
        assert!(matches!(done, Spliced::Whole { .. }));
        assert_eq!(out, push(&frame, then), "{before} tags and {then}");
        let (_, out) = pair.slice(ETHERNET, &frame, 0);
        assert_eq!(pair.splice(ETHERNET, &pop_all(&out), 0).unwrap().1, victim());
    }
}

/// Labels, sessions and tunnels: whatever a function takes off, it finds no packet inside that ends in a
/// token.
#[test]
fn nothing_inside_of_a_packet_brings_a_token_in() {
    let outside = |around: &'static [u8]| move |frame: &[u8]| [&frame[..12], around, &frame[14..]].concat();
    let inside = |around: usize| {
        move |frame: &[u8]| match frame.get(12 + around..) {
            Some(ip) => [&frame[..12], &[8, 0], ip].concat(),
            None => frame.to_vec(),
        }
    };
    let mpls: &[u8] = &[0x88, 0x47, 0, 1, 0x01, 64];
    let pppoe: &[u8] = &[0x88, 0x64, 0x11, 0, 0, 1, 0, 100, 0, 0x21];
    for around in [mpls, pppoe] {
        for tos in [0, 0xfc] {
            let (mut pair, sliced, token) = set_up(|_| {});
            let frame = outside(around)(&ending_in(token, tos));
            attack(&mut pair, &sliced, &frame, inside(around.len()));
        }
    }
    for kind in [Tunnel::IpInIp, Tunnel::Gre, Tunnel::Vxlan, Tunnel::Geneve, Tunnel::Gue] {
        for (six, tos, padding) in [(false, 0, 0), (true, 0xfc, 9), (false, 0xfc, 300), (true, 0, 300)] {
            let (mut pair, sliced, token) = set_up(|_| {});
            let rewrite =
                Rewrite::Tunnel { kind, six, copies_tos: true, checksum: false, keeps_trailer: false };
            let inner = ending_in(token, tos);
            let outer = rewrite.apply(ETHERNET, inner.clone());
            let length = outer.len() - inner.len();
            // Inside the tunnel bytes follow the packet, so that neither ends where the other does.
            let mut frame = [outer, vec![0; padding]].concat();
            let at = if six { 18 } else { 16 };
            let total = (frame.len() - if six { 54 } else { 14 }) as u16;
            frame[at..at + 2].copy_from_slice(&total.to_be_bytes());
            attack(&mut pair, &sliced, &filled(frame), move |frame| {
                [&inner[..14], frame.get(14 + length..).unwrap_or_default()].concat()
            });
        }
    }
}

fn filled(mut frame: Vec<u8>) -> Vec<u8> {
    if let Ok(headers) = classify(ETHERNET, &frame) {
        fill_ip(&mut frame, &headers);
    }
    frame
}

/// The part that stays of a long packet in a tunnel is searched as well.
#[test]
fn what_is_kept_of_a_tunnel_brings_no_token_in() {
    let mut pair = Pair::new(&SliceConfig { keep_bytes: 200, ..config() });
    let (done, _) = pair.slice(ETHERNET, &victim(), 0);
    let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
    let rewrite = Rewrite::Tunnel {
        kind: Tunnel::Vxlan,
        six: false,
        copies_tos: false,
        checksum: false,
        keeps_trailer: false,
    };
    let mut frame = rewrite.apply(ETHERNET, udp(900));
    frame[180..188].copy_from_slice(&token.to_bytes());
    assert_eq!(pair.slice(ETHERNET, &frame, 0).0, Sliced::Dropped);
    assert_eq!(pair.slicer.counters().tokens_from_network, 1);
    // Of what is parked nobody sees anything.
    let mut frame = rewrite.apply(ETHERNET, udp(900));
    frame[600..608].copy_from_slice(&token.to_bytes());
    assert!(matches!(pair.slice(ETHERNET, &frame, 0).0, Sliced::Sliced { .. }));
}

/// An error that quotes `quoted` bytes, zeros up to `padded`, and perhaps extensions behind them (RFC 4884).
fn error(about: &[u8], quoted: usize, padded: usize, extensions: bool, tos: u8) -> Vec<u8> {
    let mut frame = icmp_error(about, quoted, tos);
    let six = about[14] >> 4 == 6;
    let (l4, start) = if six { (54, 62) } else { (34, 42) };
    let padded = if extensions { padded.next_multiple_of(if six { 8 } else { 4 }) } else { padded };
    if frame.len() < start + padded {
        frame.resize(start + padded, 0);
    }
    if extensions {
        let words = (frame.len() - start) / if six { 8 } else { 4 };
        frame[if six { l4 + 4 } else { l4 + 5 }] = words as u8;
        // Version 2, an MPLS label stack of one entry.
        let mut extension = vec![0x20, 0, 0, 0, 0, 8, 1, 1, 0, 1, 0x11, 64];
        let sum = checksum(&extension);
        extension[2..4].copy_from_slice(&sum.to_be_bytes());
        frame.extend(extension);
    }
    let total = (frame.len() - if six { 54 } else { 14 }) as u16;
    let at = if six { 18 } else { 16 };
    frame[at..at + 2].copy_from_slice(&total.to_be_bytes());
    let headers = classify(ETHERNET, &frame).unwrap();
    fill_ip(&mut frame, &headers);
    assert!(slipstream_wire::checksum::fill_transport(&mut frame, &headers));
    frame
}

#[test]
fn errors_of_any_length_leave_without_a_token() {
    for spec in [
        Spec { payload: 1200, ..Spec::plain(false, true) },
        Spec { payload: 1200, ..Spec::plain(false, false) },
        Spec { payload: 1200, options: 2, tos: 0x28, ..Spec::plain(false, true) },
        Spec { payload: 1200, ..Spec::plain(true, false) },
        Spec { payload: 1200, options: 1, ..Spec::plain(true, true) },
    ] {
        for released in [false, true] {
            let mut pair = Pair::new(&SliceConfig { ttl: 1000, ..config() });
            let (done, sliced) = pair.slice(ETHERNET, &spec.build(), 0);
            let Sliced::Sliced { token, .. } = done else { panic!("{done:?}") };
            if released {
                pair.table.release(token).unwrap();
            }
            let ip = sliced.len() - 14;
            for quoted in 20 + 20 * usize::from(spec.six)..=ip {
                for (padded, extensions) in
                    [(0, false), (60, false), (ip + 1, false), (128, false), (128, true)]
                {
                    for tos in [0, 0xc0, 0xfc] {
                        let about = error(&sliced, quoted, padded, extensions, tos);
                        let what =
                            format!("{quoted} of {ip} bytes, {padded}, {extensions}, TOS {tos:x}, {spec:?}");
                        // An error with the mark and no token that could be found is dropped.
                        let Ok((done, out)) = pair.splice(ETHERNET, &about, 1) else {
                            assert!(tos == 0xfc && quoted + 3 < ip, "{what}");
                            continue;
                        };
                        assert!(!has(&out, &token.to_bytes()[..5]), "a token leaves: {what}\n{out:02x?}");
                        if quoted + 3 >= ip {
                            assert!(matches!(done, Spliced::Quote { .. }), "{done:?}: {what}");
                            // The quote is that of the packet as it came.
                            let start = if spec.six { 62 } else { 42 };
                            let headers = ip - 8;
                            assert_eq!(out[start..start + headers], spec.build()[14..14 + headers], "{what}");
                            let seen = classify(ETHERNET, &out).unwrap();
                            assert_ne!(verify_ip(&out, &seen), Verdict::Wrong, "{what}");
                            // A sum that happens to be 0 can't be told from none.
                            assert_ne!(verify_transport(&out, &seen), Verdict::Wrong, "{what}");
                        }
                    }
                }
            }
        }
    }
}

/// A packet that the function makes of a sliced one, and that the splicer can't read, is dropped and counted.
#[test]
fn nothing_leaves_with_a_good_token() {
    let (mut pair, sliced, token) = set_up(|_| {});
    let labelled = [&sliced[..12], &[0x88, 0x47, 0, 1, 0x01, 64][..], &sliced[14..]].concat();
    let mut unmarked = with_tos(sliced.clone(), 0);
    // The token behind the end of the IP packet, wholly and by half.
    let mut behind = Vec::new();
    for less in [8u16, 4] {
        let mut frame = unmarked.clone();
        let length = u16::from_be_bytes([frame[16], frame[17]]) - less;
        frame[16..18].copy_from_slice(&length.to_be_bytes());
        behind.push(filled_ip(frame));
    }
    unmarked[16..18].copy_from_slice(&2000u16.to_be_bytes());
    let longer = filled_ip(unmarked);
    let mirrored = {
        // A mirror's header that nobody reads, in GRE.
        let inner = [&[0x10, 0, 0x88, 0xbe, 0, 0, 0, 1][..], &[1; 8], &sliced, &[0; 4]].concat();
        let mut frame = sliced[..34].to_vec();
        frame[15] = 0;
        frame[23] = 47;
        frame[16..18].copy_from_slice(&((20 + inner.len()) as u16).to_be_bytes());
        frame.extend(inner);
        filled_ip(frame)
    };
    let echo = icmp_error(&[&sliced[..], &sliced[14..]].concat(), 200, 0);
    assert_eq!(pair.splice(ETHERNET, &echo, 1).err(), Some(Refusal::Mangled));
    let frames = [labelled, longer, mirrored].into_iter().chain(behind);
    let mut dropped = 0;
    for frame in frames {
        assert!(has(&frame, &token.to_bytes()));
        assert_eq!(pair.splice(ETHERNET, &frame, 1).err(), Some(Refusal::Hidden), "{frame:02x?}");
        dropped += 1;
    }
    assert_eq!(pair.splicer.counters().refused[8], dropped);
    assert_eq!(pair.splice(ETHERNET, &sliced, 2).unwrap().1, victim());
}

/// A packet without a token passes, however it looks: frames that are no IP, tunnels, errors, at both ends.
#[test]
fn what_holds_no_token_passes_as_it_is() {
    let (mut pair, sliced, token) = set_up(|_| {});
    let vxlan = Rewrite::Tunnel {
        kind: Tunnel::Vxlan,
        six: true,
        copies_tos: true,
        checksum: true,
        keeps_trailer: false,
    };
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 1, 8, 6]);
    arp.extend([0; 46]);
    let nearly = Token(token.0 ^ 1);
    for frame in [
        arp,
        push(&udp(60), 14),
        vxlan.apply(ETHERNET, udp(60)),
        icmp_error(&udp(300), 200, 0),
        vxlan.apply(ETHERNET, ending_in(nearly, 0)),
        [udp(30), vec![0; 20]].concat(),
    ] {
        let (done, out) = pair.slice(ETHERNET, &frame, 1);
        assert!(matches!(done, Sliced::Whole(_)) && out == frame, "{done:?} {frame:02x?}");
        assert_eq!(pair.splice(ETHERNET, &frame, 1), Ok((Spliced::Untouched, frame)));
    }
    assert_eq!(pair.splice(ETHERNET, &sliced, 2).unwrap().1, victim());
}

/// A function at random: tags on and off, tunnels, labels, quotes of any length, cuts; victims and attackers
/// among each other.
#[test]
fn functions_that_push_pop_and_quote_disclose_nothing() {
    let config = SliceConfig {
        entries: 32,
        ttl: 8,
        threshold: 200,
        storage: Storage::Copied { entry_bytes: 2000 },
        key: TokenKey::from_seed(77),
        ..SliceConfig::default()
    };
    let mut pair = Pair::new(&config);
    let mut state = 7u64;
    let mut random = move |n: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % n
    };
    let mut tokens = vec![Token(0)];
    let mut under_way: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    let (mut quotes, mut whole, mut stopped) = (0, 0, 0);
    for now in 0..40_000u64 {
        let attacker = random(3) == 0;
        let frame = if attacker {
            let token = tokens[tokens.len() - 1 - random(tokens.len().min(40))];
            let frame = ending_in(token, if random(2) == 0 { 0xfc } else { 0 });
            match random(4) {
                0 => frame,
                1 => push(&frame, random(20)),
                2 => error(&frame, 28 + random(9), random(2) * 60, random(2) == 0, 0),
                _ => [&frame[..12], &[0x88, 0x47, 0, 1, 0x01, 64][..], &frame[14..]].concat(),
            }
        } else {
            let ports = (1024 + random(100) as u16, 443);
            Spec {
                payload: 200 + random(300),
                ports,
                fill: random(200) as u8,
                ..Spec::plain(false, random(2) == 0)
            }
            .build()
        };
        let (done, out) = pair.slice(ETHERNET, &frame, now);
        if let Sliced::Sliced { token, .. } = done {
            tokens.push(token);
        }
        if done != Sliced::Dropped {
            under_way.push((frame, out));
        }
        while under_way.len() > random(20) {
            let (came, packet) = under_way.swap_remove(random(under_way.len()));
            let (l3, is_ip) = (14, packet[12..14] == [8, 0]);
            let changed = match random(6) {
                0 => push(&packet, random(24)),
                1 => pop_all(&packet),
                2 if is_ip && came.len() > 200 => {
                    let tos = [0, 0xc0, 0xfc][random(3)];
                    error(&packet, 20 + random(packet.len() - l3 - 19), random(3) * 64, random(2) == 0, tos)
                }
                3 if packet[12..14] == [0x88, 0x47] => [&packet[..12], &[8, 0], &packet[18..]].concat(),
                _ => packet,
            };
            let Ok((done, out)) = pair.splice(ETHERNET, &changed, now) else {
                stopped += 1;
                continue;
            };
            match done {
                Spliced::Whole { .. } => {
                    let (a, b) = (pop_all(&out), pop_all(&came));
                    assert_eq!(a, b, "a packet got what is not its own");
                    whole += 1;
                }
                Spliced::Quote { .. } => quotes += 1,
                Spliced::Untouched => {}
            }
            let live = |token: &&Token| pair.table.is_waiting(**token);
            // A packet that came with a token may leave with it.
            let leaves = tokens
                .iter()
                .rev()
                .take(64)
                .filter(live)
                .find(|t| has(&out, &t.to_bytes()) && !has(&came, &t.to_bytes()));
            assert!(leaves.is_none(), "{leaves:?} leaves: {done:?} {out:02x?}");
        }
    }
    assert!(quotes > 100 && whole > 1000 && stopped > 1000, "{quotes} {whole} {stopped}");
    pair.table.audit().unwrap();
}
