use proptest::prelude::*;

use super::*;
use crate::tcp_state::{ACK, FIN, RST, SYN, TcpTimeouts};
use crate::test_packets::{echo, error, headers, ipv4, ipv4_fragment, is_right, tcp, udp};
use slipstream_core::time::SECOND;

pub(super) const A: u32 = 0x0a00_0001;
pub(super) const B: u32 = 0x0a00_0002;
pub(super) const R: u32 = 0x0808_0808;
pub(super) const EXT: u32 = 0xc000_0201;
pub(super) const NOW: Nanos = Nanos(1_700_000_000 * SECOND);

pub(super) fn config() -> NatConfig {
    NatConfig { pool: vec![EXT.into()], ..NatConfig::default() }
}

/// Translates a packet in place as the stage does.
pub(super) fn send(nat: &mut Nat, side: Side, packet: &mut [u8], now: Nanos) -> Verdict {
    let read = Packet::read(packet, 0).unwrap();
    let verdict = match side {
        Side::Inside => nat.outbound(&read, now),
        Side::Outside => nat.inbound(&read, now),
    };
    let l4 = usize::from(headers(packet).l4);
    match verdict {
        Verdict::Rewrite { rewrite, .. } => {
            rewrite.apply(packet, 0, l4).unwrap();
        }
        Verdict::Error(rewrite) => {
            rewrite.apply(packet, 0, l4).unwrap();
        }
        Verdict::Pass | Verdict::Drop(_) => {}
    }
    verdict
}

pub(super) fn read(packet: &[u8]) -> Tuple {
    Tuple::of(Packet::read(packet, 0).unwrap().key)
}

/// Checks that a packet becomes `expected`, with all checksums right.
pub(super) fn expect(nat: &mut Nat, side: Side, mut packet: Vec<u8>, expected: &[u8]) {
    send(nat, side, &mut packet, NOW);
    assert_eq!(packet, expected);
}

/// An identifier is any number, also that of a type as a key has it where a port would be.
#[test]
fn a_request_from_outside_belongs_to_no_session() {
    let mut nat = Nat::new(&config()).unwrap();
    for (ask, id) in [(8, 0x0800), (8, 0x0d00), (13, 0x0800)] {
        let went = ipv4(1, EXT, R, &echo(ask, id, b"x"));
        expect(&mut nat, Side::Inside, ipv4(1, A, R, &echo(ask, id, b"x")), &went);
        for other in [8, 13] {
            for id in [0x0800, 0x0d00] {
                let mut packet = ipv4(1, R, EXT, &echo(other, id, b"x"));
                let verdict = send(&mut nat, Side::Outside, &mut packet, NOW);
                assert_eq!(verdict, Verdict::Drop(DropReason::NoMapping));
                // The short way to a session that was found ahead.
                let packet = Packet::read(&packet, 0).unwrap();
                let session = nat.prefetch_session(Side::Outside, nat.hash(&packet));
                assert_eq!(nat.known_inbound(&packet, session, NOW), None);
            }
        }
        let came = ipv4(1, R, A, &echo(if ask == 8 { 0 } else { 14 }, id, b"x"));
        let answer = echo(if ask == 8 { 0 } else { 14 }, id, b"x");
        expect(&mut nat, Side::Outside, ipv4(1, R, EXT, &answer), &came);
    }
}

#[test]
fn an_echo_goes_out_and_comes_back() {
    let mut nat = Nat::new(&config()).unwrap();
    expect(
        &mut nat,
        Side::Inside,
        ipv4(1, A, R, &echo(8, 77, b"ping")),
        &ipv4(1, EXT, R, &echo(8, 77, b"ping")),
    );
    // The identifier is taken: the other host gets another one.
    let mut other = ipv4(1, B, R, &echo(8, 77, b"pong!"));
    send(&mut nat, Side::Inside, &mut other, NOW);
    let id = read(&other).src_port;
    assert!(id != 77 && is_right(&other));
    expect(
        &mut nat,
        Side::Outside,
        ipv4(1, R, EXT, &echo(0, 77, b"ping")),
        &ipv4(1, R, A, &echo(0, 77, b"ping")),
    );
    expect(
        &mut nat,
        Side::Outside,
        ipv4(1, R, EXT, &echo(0, id, b"pong!")),
        &ipv4(1, R, B, &echo(0, 77, b"pong!")),
    );
    // Nobody inside is asked for echoes, whatever identifiers are in use.
    let mut marker = ipv4(1, A, R, &echo(8, 0x0800, b""));
    send(&mut nat, Side::Inside, &mut marker, NOW);
    let mut ping = ipv4(1, R, EXT, &echo(8, 9, b""));
    assert_eq!(send(&mut nat, Side::Outside, &mut ping, NOW), Verdict::Drop(DropReason::NoMapping));
}

#[test]
fn a_port_is_forwarded() {
    let forward = StaticMapping::Port { protocol: 6, inside: (B.into(), 8080), external: (EXT.into(), 80) };
    let mut nat = Nat::new(&NatConfig { statics: vec![forward], ..config() }).unwrap();
    expect(
        &mut nat,
        Side::Outside,
        ipv4(6, R, EXT, &tcp(999, 80, SYN, b"")),
        &ipv4(6, R, B, &tcp(999, 8080, SYN, b"")),
    );
    let answer = SYN | ACK;
    expect(
        &mut nat,
        Side::Inside,
        ipv4(6, B, R, &tcp(8080, 999, answer, b"")),
        &ipv4(6, EXT, R, &tcp(80, 999, answer, b"")),
    );
    // Its external port is nobody else's.
    let mut own = ipv4(6, A, R, &tcp(80, 5, SYN, b""));
    send(&mut nat, Side::Inside, &mut own, NOW);
    assert_ne!(read(&own).src_port, 80);
    assert!((1..1024).contains(&read(&own).src_port), "a low port stays low");
}

#[test]
fn an_address_stands_for_another_with_all_protocols() {
    let external = 0xc000_0209;
    let whole = StaticMapping::Address { inside: B.into(), external: external.into() };
    let mut nat = Nat::new(&NatConfig { statics: vec![whole], ..config() }).unwrap();
    for payload in [&b"\0\0\x08\0gre"[..], b"\0\0\x88\xbesome other gre"] {
        expect(&mut nat, Side::Outside, ipv4(47, R, external, payload), &ipv4(47, R, B, payload));
        expect(&mut nat, Side::Inside, ipv4(47, B, R, payload), &ipv4(47, external, R, payload));
    }
    expect(
        &mut nat,
        Side::Outside,
        ipv4(1, R, external, &echo(8, 5, b"?")),
        &ipv4(1, R, B, &echo(8, 5, b"?")),
    );
    expect(
        &mut nat,
        Side::Inside,
        ipv4(1, B, R, &echo(0, 5, b"?")),
        &ipv4(1, external, R, &echo(0, 5, b"?")),
    );
    let sctp = [0x10, 0, 0x20, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9];
    expect(&mut nat, Side::Inside, ipv4(132, B, R, &sctp), &ipv4(132, external, R, &sctp));
    let mut gre = ipv4(47, A, R, b"\0\0\x08\0");
    assert_eq!(send(&mut nat, Side::Inside, &mut gre, NOW), Verdict::Drop(DropReason::Protocol));
    assert_eq!(nat.counters().dropped(DropReason::Protocol), 1);
}

/// Both hosts see each other's external endpoint, and a second look at the same session gives the same.
#[test]
fn a_hairpin_turns_packets_back_inside() {
    let mut nat = Nat::new(&config()).unwrap();
    let mut first = ipv4(17, B, R, &udp(4000, 53, b"x"));
    send(&mut nat, Side::Inside, &mut first, NOW);
    for _ in 0..2 {
        expect(
            &mut nat,
            Side::Inside,
            ipv4(17, A, EXT, &udp(5000, 4000, b"hi")),
            &ipv4(17, EXT, B, &udp(5000, 4000, b"hi")),
        );
        expect(
            &mut nat,
            Side::Inside,
            ipv4(17, B, EXT, &udp(4000, 5000, b"ho")),
            &ipv4(17, EXT, A, &udp(4000, 5000, b"ho")),
        );
    }
    // B has no such port: an error goes back the same way.
    let seen_by_b = ipv4(17, EXT, B, &udp(5000, 4000, b"hi"));
    let sent_by_a = ipv4(17, A, EXT, &udp(5000, 4000, b"hi"));
    expect(
        &mut nat,
        Side::Inside,
        ipv4(1, B, EXT, &error(3, 3, &seen_by_b)),
        &ipv4(1, EXT, A, &error(3, 3, &sent_by_a)),
    );

    assert_eq!(nat.counters().unsolicited, 0, "nothing came from outside");
    let mut straight = Nat::new(&NatConfig { hairpin: false, ..config() }).unwrap();
    let mut packet = ipv4(17, A, EXT, &udp(5000, 4000, b"hi"));
    assert_eq!(send(&mut straight, Side::Inside, &mut packet, NOW), Verdict::Drop(DropReason::Hairpin));
}

#[test]
fn errors_from_outside_reach_the_host_that_they_are_for() {
    for (protocol, payload) in
        [(6, tcp(5000, 80, SYN, b"")), (17, udp(5000, 53, b"abc")), (1, echo(8, 5, b"abc"))]
    {
        let mut nat = Nat::new(&config()).unwrap();
        // The port is taken, so that the quoted one changes.
        send(&mut nat, Side::Inside, &mut ipv4(protocol, B, R, &payload), NOW);
        let inside = ipv4(protocol, A, R, &payload);
        let mut outside = inside.clone();
        send(&mut nat, Side::Inside, &mut outside, NOW);
        assert_ne!(outside[20..], inside[20..]);
        let router = 0x0101_0101;
        for cut in [28, inside.len()] {
            let (quoted, expected) = (&outside[..cut], &inside[..cut]);
            expect(
                &mut nat,
                Side::Outside,
                ipv4(1, router, EXT, &error(11, 0, quoted)),
                &ipv4(1, router, A, &error(11, 0, expected)),
            );
        }
    }
}

#[test]
fn errors_from_inside_leave_as_from_the_host_s_external_address() {
    let mut nat = Nat::new(&config()).unwrap();
    send(&mut nat, Side::Inside, &mut ipv4(17, B, R, &udp(5000, 53, b"")), NOW);
    let mut request = ipv4(17, A, R, &udp(5000, 53, b"abc"));
    send(&mut nat, Side::Inside, &mut request, NOW);
    let port = read(&request).src_port;
    let reply = ipv4(17, R, EXT, &udp(53, port, b"abc"));
    let mut inside = reply.clone();
    send(&mut nat, Side::Outside, &mut inside, NOW);
    for sender in [A, 0x0a00_00fe] {
        expect(
            &mut nat,
            Side::Inside,
            ipv4(1, sender, R, &error(3, 3, &inside)),
            &ipv4(1, EXT, R, &error(3, 3, &reply)),
        );
    }
    let unknown = ipv4(17, R, A, &udp(53, 9, b""));
    let mut packet = ipv4(1, A, R, &error(3, 3, &unknown));
    assert_eq!(send(&mut nat, Side::Inside, &mut packet, NOW), Verdict::Drop(DropReason::UnknownError));
}

/// The quote of an error is its sender's word only: it leads neither packets of others to an inside host nor
/// anything out as it is.
#[test]
fn errors_that_are_for_somebody_else_lead_nowhere() {
    let net = |text: &str| text.parse().unwrap();
    let host = 0x0a00_0005;
    let settings = NatConfig {
        inside: vec![net("10.0.0.0/24")],
        statics: vec![StaticMapping::Address { inside: host.into(), external: (EXT + 7).into() }],
        ..config()
    };
    let mut nat = Nat::new(&settings).unwrap();
    let mut request = ipv4(17, A, R, &udp(5000, 53, b"abc"));
    send(&mut nat, Side::Inside, &mut request, NOW);
    let unknown = Verdict::Drop(DropReason::UnknownError);
    let mut tell =
        |side, from, to, about: &[u8]| send(&mut nat, side, &mut ipv4(1, from, to, &error(3, 4, about)), NOW);
    // From outside: about a session of A, to an address that is not the NAT's, and to that of another host.
    assert_eq!(tell(Side::Outside, R, 0xcb00_7163, &request), Verdict::Pass);
    assert_eq!(tell(Side::Outside, R, EXT + 7, &request), unknown);
    assert!(matches!(tell(Side::Outside, R, EXT, &request), Verdict::Error(_)));
    // From inside: about packets that never came, by a host with a mapping, one without, and one with an
    // address of its own.
    let foreign = ipv4(17, R, 0xcb00_7105, &udp(53, 1000, b"abc"));
    for sender in [A, B, host] {
        for to in [R, EXT] {
            assert_eq!(tell(Side::Inside, sender, to, &foreign), unknown);
        }
    }
    // About one that came, to somebody who did not send it.
    let came = ipv4(17, R, A, &udp(53, 5000, b"abc"));
    assert_eq!(tell(Side::Inside, A, R + 1, &came), unknown);
    assert!(matches!(tell(Side::Inside, A, R, &came), Verdict::Error(_)));
    // Those of hosts that the NAT has nothing to do with pass.
    assert_eq!(tell(Side::Inside, 0xcb00_7105, R, &foreign), Verdict::Pass);
}

#[test]
fn an_error_keeps_nothing_alive_and_ends_nothing() {
    let mut nat = Nat::new(&config()).unwrap();
    let mut request = ipv4(17, A, R, &udp(5000, 53, b"abc"));
    send(&mut nat, Side::Inside, &mut request, NOW);
    let at = |s| NOW.after(s * SECOND);
    for second in [100, 200, 299] {
        let mut packet = ipv4(1, R, EXT, &error(3, 1, &request));
        assert!(matches!(send(&mut nat, Side::Outside, &mut packet, at(second)), Verdict::Error(_)));
    }
    let mut packet = ipv4(1, R, EXT, &error(3, 1, &request));
    assert_eq!(send(&mut nat, Side::Outside, &mut packet, at(300)), Verdict::Drop(DropReason::UnknownError));
}

#[test]
fn fragments_become_what_their_datagram_becomes() {
    let data: Vec<u8> = (0..61).collect();
    for (protocol, payload) in
        [(17, udp(5000, 53, &data)), (6, tcp(5000, 80, 2, &data)), (1, echo(8, 77, &data))]
    {
        let whole = ipv4(protocol, A, R, &payload);
        let mut nat = Nat::new(&config()).unwrap();
        // The port is taken, so that it changes too.
        send(&mut nat, Side::Inside, &mut ipv4(protocol, B, R, &payload), NOW);
        let mut expected = whole.clone();
        let Verdict::Rewrite { rewrite, .. } = send(&mut nat, Side::Inside, &mut expected, NOW) else {
            panic!("a new session")
        };
        assert!(is_right(&expected));
        for size in (8..payload.len()).step_by(8) {
            let mut together = Vec::new();
            for (n, piece) in whole[20..].chunks(size).enumerate() {
                let start = n * size;
                let more = if start + piece.len() < payload.len() { 0x2000 } else { 0 };
                let mut fragment = ipv4_fragment(protocol, A, R, more | (start / 8) as u16, &[], piece);
                // Short frames are padded; what pads them stays.
                fragment.resize(fragment.len().max(46), 0xee);
                let padding = fragment[20 + piece.len()..].to_vec();
                rewrite.apply(&mut fragment, 0, 20).unwrap();
                assert_eq!(fragment[12..20], expected[12..20]);
                assert_eq!(fragment[20 + piece.len()..], padding);
                assert!(is_right(&fragment));
                together.extend_from_slice(&fragment[20..20 + piece.len()]);
            }
            assert_eq!(together, expected[20..], "protocol {protocol} in pieces of {size}");
        }
    }
}

#[test]
fn a_later_fragment_by_itself_is_translated_by_nobody() {
    let mut nat = Nat::new(&config()).unwrap();
    let mut ours = ipv4_fragment(17, A, R, 0x0003, &[], &[7; 24]);
    assert_eq!(send(&mut nat, Side::Inside, &mut ours, NOW), Verdict::Drop(DropReason::UnknownFragment));
    let mut foreign = ipv4_fragment(17, R, R + 1, 0x0003, &[], &[7; 24]);
    assert_eq!(send(&mut nat, Side::Outside, &mut foreign, NOW), Verdict::Pass);
}

#[test]
fn what_is_not_ours_passes() {
    let inside = vec!["10.0.0.0/24".parse().unwrap()];
    let mut nat = Nat::new(&NatConfig { inside, ..config() }).unwrap();
    let mut packet = ipv4(17, 0x0b00_0001, R, &udp(1, 2, b""));
    assert_eq!(send(&mut nat, Side::Inside, &mut packet, NOW), Verdict::Pass);
    let mut packet = ipv4(17, R, 0x0b00_0001, &udp(1, 2, b""));
    assert_eq!(send(&mut nat, Side::Outside, &mut packet, NOW), Verdict::Pass);
}

#[test]
fn full_tables_are_counted_drops_and_leave_no_port_taken() {
    let mut nat = Nat::new(&NatConfig { sessions: 2, mappings: 8, ..config() }).unwrap();
    for (port, dst) in [(1024, 1), (1025, 1)] {
        assert!(matches!(
            send(&mut nat, Side::Inside, &mut ipv4(17, A, R + dst, &udp(port, 9, b"")), NOW),
            Verdict::Rewrite { .. }
        ));
    }
    for n in 0..5 {
        let mut packet = ipv4(17, A, R, &udp(3000 + n, 9, b""));
        assert_eq!(send(&mut nat, Side::Inside, &mut packet, NOW), Verdict::Drop(DropReason::SessionsFull));
    }
    assert_eq!((nat.sessions(), nat.mappings(), nat.counters().dropped(DropReason::SessionsFull)), (2, 2, 5));
    // Time makes room without anybody calling `expire`.
    let later = NOW.after(301 * SECOND);
    assert!(matches!(
        send(&mut nat, Side::Inside, &mut ipv4(17, B, R, &udp(1024, 9, b"")), later),
        Verdict::Rewrite { .. }
    ));
    assert_eq!((nat.sessions(), nat.mappings()), (1, 1));

    let mut nat = Nat::new(&NatConfig { mappings: 1, ..config() }).unwrap();
    send(&mut nat, Side::Inside, &mut ipv4(17, A, R, &udp(1024, 9, b"")), NOW);
    let verdict = send(&mut nat, Side::Inside, &mut ipv4(17, A, R, &udp(1025, 9, b"")), NOW);
    assert_eq!(verdict, Verdict::Drop(DropReason::MappingsFull));
}

/// Sends a segment of the connection of `A` and `R`.
fn send_segment(nat: &mut Nat, side: Side, flags: u8, second: u64) -> Verdict {
    let mut packet = match side {
        Side::Inside => ipv4(6, A, R, &tcp(5000, 80, flags, b"")),
        Side::Outside => ipv4(6, R, EXT, &tcp(80, 5000, flags, b"")),
    };
    send(nat, side, &mut packet, NOW.after(second * SECOND))
}

/// Sends one; returns true if the connection has a session then.
fn is_alive(nat: &mut Nat, side: Side, flags: u8, second: u64) -> bool {
    matches!(send_segment(nat, side, flags, second), Verdict::Rewrite { session, .. } if session != NONE)
}

#[test]
fn a_reset_shortens_and_traffic_revives() {
    let mut nat = Nat::new(&config()).unwrap();
    let mut run = |side, flags, second| send_segment(&mut nat, side, flags, second);
    let alive = |verdict| matches!(verdict, Verdict::Rewrite { .. });
    assert!(alive(run(Side::Inside, SYN, 0)));
    assert!(alive(run(Side::Outside, SYN | ACK, 1)));
    assert!(alive(run(Side::Inside, ACK, 1)));
    assert!(alive(run(Side::Outside, RST, 2)));
    assert!(alive(run(Side::Inside, ACK, 200)), "a forged reset did not end it");
    assert!(alive(run(Side::Outside, ACK, 200 + 7439)), "established: 2 h 4 min");
    assert!(alive(run(Side::Outside, RST, 7700)));
    assert_eq!(run(Side::Outside, ACK, 7700 + 240), Verdict::Drop(DropReason::NoMapping));
}

/// A connection that one end alone has closed lasts as long as an open one, however often its FIN comes.
#[test]
fn one_end_alone_closes_no_session() {
    for (first, second) in [(Side::Inside, Side::Outside), (Side::Outside, Side::Inside)] {
        let mut nat = Nat::new(&config()).unwrap();
        let mut alive = |side, flags, second| is_alive(&mut nat, side, flags, second);
        let opening = [(Side::Inside, SYN), (Side::Outside, SYN | ACK), (Side::Inside, ACK)];
        assert!(opening.into_iter().all(|(side, flags)| alive(side, flags, 0)));
        assert!(alive(first, FIN | ACK, 1) && alive(first, FIN | ACK, 2) && alive(second, ACK, 3));
        assert!(alive(second, ACK, 3 + 7439), "half closed: 2 h 4 min");
        assert!(alive(first, ACK, 7443 + 7438));
        assert!(alive(second, FIN | ACK, 15_000) && alive(first, ACK, 15_001));
        assert!(alive(first, ACK, 15_240) && !alive(Side::Outside, ACK, 15_240 + 240), "closed: 4 min");
        // The next connection of the same ends begins anew.
        assert!(alive(Side::Inside, SYN, 20_000) && alive(Side::Outside, SYN | ACK, 20_000));
        assert!(alive(Side::Inside, ACK, 20_000) && alive(second, FIN | ACK, 20_001));
        assert!(alive(first, ACK, 20_002) && alive(second, ACK, 20_002 + 7439));
    }
}

/// By default it forgets TCP connections as early as RFC 5382 allows, and no earlier.
#[test]
fn the_timeouts_of_tcp_are_those_of_rfc_5382() {
    assert_eq!(NatTimeouts::default().tcp, TcpTimeouts::RFC_5382);
}

/// The end of a connection may not have been seen, as where its last acknowledgement was lost: the next one
/// of the same ports is an open one all the same, once its SYN is answered by a SYN-ACK (RFC 5382 REQ-5).
#[test]
fn ports_that_are_used_again_open_a_connection() {
    for (opener, other) in [(Side::Inside, Side::Outside), (Side::Outside, Side::Inside)] {
        let mut nat = Nat::new(&config()).unwrap();
        let mut alive = |side, flags, second| is_alive(&mut nat, side, flags, second);
        // The first connection is opened from inside in any case: that makes the mapping.
        let first = [(Side::Inside, SYN), (Side::Outside, SYN | ACK), (Side::Inside, ACK)];
        assert!(first.into_iter().all(|(side, flags)| alive(side, flags, 0)));
        if opener == Side::Outside {
            let over = [(Side::Inside, FIN | ACK), (Side::Outside, FIN | ACK), (Side::Inside, ACK)];
            assert!(over.into_iter().all(|(side, flags)| alive(side, flags, 1)));
            let second = [(opener, SYN), (other, SYN | ACK), (opener, ACK)];
            assert!(second.into_iter().all(|(side, flags)| alive(side, flags, 2)));
        }
        assert!(alive(opener, FIN | ACK, 3) && alive(other, FIN | ACK, 3));
        assert!(
            [(opener, SYN), (other, SYN | ACK), (opener, ACK)].into_iter().all(|(s, f)| alive(s, f, 100))
        );
        assert!(alive(other, ACK, 100 + 7439), "established: 2 h 4 min");
    }
}

/// Whom a static mapping stands for answers by it, though others like it are not translated.
#[test]
fn static_mappings_lead_both_ways_whoever_is_inside() {
    let inside = vec!["10.9.0.0/24".parse().unwrap()];
    let port = StaticMapping::Port { protocol: 6, inside: (A.into(), 8080), external: (EXT.into(), 80) };
    let whole = StaticMapping::Address { inside: B.into(), external: (EXT + 1).into() };
    let mut nat = Nat::new(&NatConfig { inside, statics: vec![port, whole], ..config() }).unwrap();
    for (to, host, ports) in [(EXT, A, (80, 8080)), (EXT + 1, B, (22, 22))] {
        let (outer, inner) = ports;
        let asks = ipv4(6, R, host, &tcp(999, inner, SYN, b""));
        expect(&mut nat, Side::Outside, ipv4(6, R, to, &tcp(999, outer, SYN, b"")), &asks);
        let answer = tcp(outer, 999, SYN | ACK, b"");
        let answers = ipv4(6, host, R, &tcp(inner, 999, SYN | ACK, b""));
        expect(&mut nat, Side::Inside, answers, &ipv4(6, to, R, &answer));
    }
    // Endpoints that no static mapping stands for are not translated.
    let mut other = ipv4(6, A, R, &tcp(8081, 999, SYN, b""));
    assert_eq!(send(&mut nat, Side::Inside, &mut other, NOW), Verdict::Pass);
    assert!(nat.concerns(Side::Inside, B, R) && !nat.concerns(Side::Inside, A, R));
}

#[test]
fn contradictions_are_errors() {
    let address = |inside: u32, external: u32| StaticMapping::Address {
        inside: inside.into(),
        external: external.into(),
    };
    let port = |protocol, inside: (u32, u16), external: (u32, u16)| StaticMapping::Port {
        protocol,
        inside: (inside.0.into(), inside.1),
        external: (external.0.into(), external.1),
    };
    let with = |statics| NatConfig { statics, ..config() };
    let ext = EXT.into();
    for (config, error) in [
        (NatConfig::default(), NatConfigError::Nothing),
        (NatConfig { pool: vec![ext; 2], ..config() }, NatConfigError::TwiceAddress(ext)),
        (NatConfig { pool: (0..5000).map(Into::into).collect(), ..config() }, NatConfigError::PoolSize(5000)),
        (NatConfig { ports: 0..=5, ..config() }, NatConfigError::Ports),
        (NatConfig { low_ports: 0..=5, ..config() }, NatConfigError::Ports),
        (with(vec![address(A, EXT)]), NatConfigError::TwiceAddress(ext)),
        (with(vec![address(A, 1), address(A, 2)]), NatConfigError::TwiceAddress(A.into())),
        (with(vec![port(47, (A, 1), (EXT, 1))]), NatConfigError::Protocol(47)),
        (with(vec![port(6, (A, 0), (EXT, 1))]), NatConfigError::PortZero),
        (
            with(vec![port(6, (A, 1), (EXT, 1)), port(6, (B, 1), (EXT, 1))]),
            NatConfigError::TwiceEndpoint(ext, 1),
        ),
        (with(vec![port(6, (A, 1), (1, 1)), address(B, 1)]), NatConfigError::TwiceEndpoint(1.into(), 1)),
        (with(vec![port(6, (A, 1), (EXT, 1)), address(A, 1)]), NatConfigError::TwiceEndpoint(A.into(), 1)),
    ] {
        assert_eq!(Nat::new(&config).err(), Some(error));
    }
    for text in ["0.0.0.0", "0.1.2.3", "127.0.0.1", "224.0.0.1", "239.255.255.255", "255.255.255.255"] {
        let no_host: std::net::Ipv4Addr = text.parse().unwrap();
        let bits = no_host.to_bits();
        for config in [
            NatConfig { pool: vec![ext, no_host], ..config() },
            with(vec![address(A, bits)]),
            with(vec![port(6, (A, 1), (bits, 1))]),
        ] {
            assert_eq!(Nat::new(&config).err(), Some(NatConfigError::NoHost(no_host)));
        }
    }
    let both = with(vec![port(6, (A, 1), (EXT, 1)), port(17, (A, 1), (EXT, 1)), port(6, (B, 2), (EXT, 2))]);
    assert!(Nat::new(&both).is_ok());
}

proptest! {
    /// Any bytes, any cut, any length that the header says: nothing panics, and a packet that is translated
    /// has its new endpoints, a datagram's first fragment too.
    #[test]
    fn hostile_bytes_cost_nothing(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..120), proto in 0..3_u8, seed: u64,
        place in prop_oneof![Just(0_u16), Just(0x2000), any::<u16>()], total in prop_oneof![0..80_u16, any::<u16>()],
    ) {
        if let [first, _, l0, l1, _, _, f0, f1, _, protocol, _, _, source, ..] = &mut bytes[..] {
            *first = 0x45 + (*first & 1);
            *source = 10; // an address inside
            *protocol = [1, 6, 17][usize::from(proto)];
            ([*l0, *l1], [*f0, *f1]) = (total.to_be_bytes(), place.to_be_bytes());
        }
        // Ports that hardly any packet has.
        let mut nat = Nat::new(&NatConfig { seed, ports: 5000..=5003, ..config() }).unwrap();
        for side in [Side::Inside, Side::Outside] {
            if let Ok(packet) = Packet::read(&bytes, 0) {
                let verdict = match side {
                    Side::Inside => nat.outbound(&packet, NOW),
                    Side::Outside => nat.inbound(&packet, NOW),
                };
                let l4 = usize::from(bytes[0] & 15) * 4;
                match verdict {
                    Verdict::Rewrite { rewrite, .. } => {
                        let other = rewrite.apply(&mut bytes, 0, l4).unwrap();
                        prop_assert_eq!(Packet::read(&bytes, 0).map(|packet| packet.key), Ok(rewrite.endpoints()));
                        other
                    }
                    Verdict::Error(rewrite) => rewrite.apply(&mut bytes, 0, l4).unwrap(),
                    _ => false,
                };
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    /// The short way of reading a packet against the one for all packets.
    #[test]
    fn the_fast_path_reads_packets_as_the_general_one(
        mut bytes in proptest::collection::vec(any::<u8>(), 0..60),
        first in prop_oneof![4 => Just(0x45u8), 1 => any::<u8>()],
        protocol in prop_oneof![4 => Just(6u8), 4 => Just(17), 1 => any::<u8>()],
        fragment in prop_oneof![4 => Just([0u8, 0]), 2 => Just([0x40, 0]), 1 => any::<[u8; 2]>()],
        length in prop_oneof![Just(0u16), 20..60u16, any::<u16>()],
        l3 in 0usize..16,
    ) {
        let [l0, l1] = length.to_be_bytes();
        for (at, value) in [(0, first), (2, l0), (3, l1), (6, fragment[0]), (7, fragment[1]), (9, protocol)] {
            if let Some(place) = bytes.get_mut(l3 + at) {
                *place = value;
            }
        }
        prop_assert_eq!(Packet::read(&bytes, l3), Packet::any(&bytes, l3));
    }
}
