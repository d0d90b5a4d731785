//! Limits of a NAT's table: strangers take no room, hosts and mappings at most their share.

use super::tests::{A, B, EXT, NOW, R, config, expect, read, send};
use super::*;
use crate::tcp_state::{ACK, RST, SYN};
use crate::test_packets::{echo, error, ipv4, tcp, udp};
use slipstream_core::time::SECOND;

/// Strangers send to an open mapping from more endpoints than there are sessions, for longer than its timer:
/// no inside host notices, and the mapping ends when it would have ended.
#[test]
fn a_mapping_filled_from_outside_leaves_inside_hosts_untouched() {
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressDependent] {
        let mut nat = Nat::new(&NatConfig { filtering, sessions: 1024, ..config() }).unwrap();
        send(&mut nat, Side::Inside, &mut ipv4(17, A, R, &udp(5000, 53, b"")), NOW);
        // 440 a second, as long as the mapping lives and longer.
        let mut let_in = 0_u32;
        for n in 0..440 * 320_u32 {
            let at = NOW.after(u64::from(n) * SECOND / 440);
            let from = if filtering == Filtering::EndpointIndependent { R + 1 + n } else { R };
            let mut packet = ipv4(17, from, EXT, &udp(1024 + (n % 60_000) as u16, 5000, b"x"));
            match send(&mut nat, Side::Outside, &mut packet, at) {
                Verdict::Rewrite { .. } => {
                    let_in += 1;
                    assert_eq!((read(&packet).dst, read(&packet).dst_port), (A, 5000));
                }
                verdict => assert_eq!(verdict, Verdict::Drop(DropReason::NoMapping)),
            }
            if n % 440 == 0 {
                let mut other = ipv4(17, B, R, &udp(6000 + (n / 440) as u16, 53, b""));
                assert!(matches!(send(&mut nat, Side::Inside, &mut other, at), Verdict::Rewrite { .. }));
            }
        }
        assert!((440 * 300..440 * 301).contains(&let_in), "{let_in} were let in");
        assert_eq!(nat.counters().unsolicited, u64::from(let_in));
        assert!(nat.sessions() <= 302 && nat.counters().dropped(DropReason::SessionsFull) == 0);
    }
}

/// A connection that a stranger opens has a session from the host's answer on; a port that is closed resets
/// it.
#[test]
fn a_stranger_s_connection_begins_with_the_answer() {
    let stranger = R + 9;
    for filtering in [Filtering::EndpointIndependent, Filtering::AddressDependent] {
        let mut nat = Nat::new(&NatConfig { filtering, loose: false, ..config() }).unwrap();
        for remote in [R, stranger] {
            send(&mut nat, Side::Inside, &mut ipv4(6, A, remote, &tcp(5000, 80, SYN, b"")), NOW);
        }
        let run = |nat: &mut Nat, side, port: u16, flags| {
            let (mut packet, expected) = match side {
                Side::Outside => (
                    ipv4(6, stranger, EXT, &tcp(port, 5000, flags, b"")),
                    ipv4(6, stranger, A, &tcp(port, 5000, flags, b"")),
                ),
                Side::Inside => (
                    ipv4(6, A, stranger, &tcp(5000, port, flags, b"")),
                    ipv4(6, EXT, stranger, &tcp(5000, port, flags, b"")),
                ),
            };
            let verdict = send(nat, side, &mut packet, NOW);
            if matches!(verdict, Verdict::Rewrite { .. }) {
                assert_eq!(packet, expected);
            }
            (verdict, nat.sessions())
        };
        let passes = |(verdict, sessions): (Verdict, u32), expected| {
            assert!(matches!(verdict, Verdict::Rewrite { .. }), "{verdict:?}");
            assert_eq!(sessions, expected);
        };
        passes(run(&mut nat, Side::Outside, 999, SYN), 2);
        passes(run(&mut nat, Side::Inside, 999, SYN | ACK), 3);
        passes(run(&mut nat, Side::Outside, 999, ACK), 3);
        passes(run(&mut nat, Side::Outside, 998, SYN), 3);
        passes(run(&mut nat, Side::Inside, 998, RST | ACK), 3);
        let drop = Verdict::Drop(DropReason::NoSession);
        assert_eq!(run(&mut nat, Side::Outside, 997, ACK).0, drop);
        assert_eq!(run(&mut nat, Side::Inside, 997, ACK).0, drop);
        // Nobody answers for a host that has no mapping.
        let mut packet = ipv4(6, B, R, &tcp(80, 999, SYN | ACK, b""));
        assert_eq!(send(&mut nat, Side::Inside, &mut packet, NOW), drop);
    }
}

/// An inside host that a stranger reached tells him of a closed port.
#[test]
fn errors_about_a_stranger_s_packet_leave_as_from_the_mapping() {
    let mut nat = Nat::new(&config()).unwrap();
    send(&mut nat, Side::Inside, &mut ipv4(17, B, R, &udp(5000, 53, b"")), NOW);
    let mut request = ipv4(17, A, R, &udp(5000, 53, b"abc"));
    send(&mut nat, Side::Inside, &mut request, NOW);
    let sent = ipv4(17, R + 5, EXT, &udp(777, read(&request).src_port, b"hello"));
    let mut seen = sent.clone();
    assert!(matches!(send(&mut nat, Side::Outside, &mut seen, NOW), Verdict::Rewrite { .. }));
    expect(
        &mut nat,
        Side::Inside,
        ipv4(1, A, R + 5, &error(3, 3, &seen)),
        &ipv4(1, EXT, R + 5, &error(3, 3, &sent)),
    );
}

/// One host that opens all that it can leaves room for others; so does one of its ports for the others of the
/// host.
#[test]
fn a_host_and_a_mapping_have_so_many_sessions() {
    let limits = NatConfig { host_sessions: 10, mapping_sessions: 6, ..config() };
    let mut nat = Nat::new(&limits).unwrap();
    let mut open = |host, port, remote: u32, at| {
        send(&mut nat, Side::Inside, &mut ipv4(17, host, R + remote, &udp(port, 53, b"")), at)
    };
    let mut opened = |host, port, at| {
        (0..20).filter(|n| matches!(open(host, port, *n, at), Verdict::Rewrite { .. })).count()
    };
    assert_eq!((opened(A, 5000, NOW), opened(A, 5001, NOW), opened(A, 5002, NOW)), (6, 4, 0));
    assert_eq!((opened(B, 5000, NOW), opened(B, 5001, NOW)), (6, 4));
    assert_eq!(opened(A, 5002, NOW.after(301 * SECOND)), 6, "time makes room");
    let dropped = |reason| nat.counters().dropped(reason);
    assert_eq!(dropped(DropReason::MappingSessions), 14 + 14 + 14);
    assert_eq!(dropped(DropReason::HostSessions), 16 + 20 + 16);
}

/// One host that sends from all of its ports leaves half of an address's ports, and of its identifiers, to
/// others; each protocol has its own.
#[test]
fn a_host_has_so_many_mappings() {
    let ranges = |config| NatConfig { ports: 5000..=5019, identifiers: 0..=8, ..config };
    let two = vec![EXT.into(), (EXT + 1).into()];
    for (config, ports, identifiers) in [
        (config(), 10, 4),
        (NatConfig { pool: two.clone(), ..config() }, 10, 4),
        (NatConfig { pool: two, pooling: Pooling::Arbitrary, ..config() }, 20, 9),
        (NatConfig { host_mappings: Some(3), ..config() }, 3, 3),
    ] {
        let mut nat = Nat::new(&ranges(config)).unwrap();
        for host in [A, B] {
            for (protocol, most) in [(6, ports), (17, ports), (1, identifiers)] {
                let made = |nat: &mut Nat, port: u16| {
                    let payload = match protocol {
                        6 => tcp(port, 80, SYN, b""),
                        17 => udp(port, 53, b""),
                        _ => echo(8, port, b""),
                    };
                    send(nat, Side::Inside, &mut ipv4(protocol, host, R, &payload), NOW)
                };
                // Low ports are no way around.
                for (n, port) in (500..510).chain(2000..2050).enumerate() {
                    let verdict = made(&mut nat, port);
                    if n < most {
                        assert!(matches!(verdict, Verdict::Rewrite { .. }), "{verdict:?} of {protocol}");
                    } else {
                        assert_eq!(verdict, Verdict::Drop(DropReason::HostMappings));
                    }
                }
                // Its mappings stay in use.
                assert!(matches!(made(&mut nat, 500), Verdict::Rewrite { .. }));
            }
        }
        nat.expire(NOW.after(301 * SECOND), u32::MAX);
        assert_eq!((nat.sessions(), nat.mappings()), (0, 0));
        let mut again = ipv4(17, A, R, &udp(2049, 53, b""));
        assert!(matches!(
            send(&mut nat, Side::Inside, &mut again, NOW.after(302 * SECOND)),
            Verdict::Rewrite { .. }
        ));
    }
}

/// By default a host alone can use half of the ports of an address, and no more.
#[test]
fn half_of_an_address_s_ports_are_one_host_s() {
    let mut nat = Nat::new(&config()).unwrap();
    let mut made = |host, port: u16| {
        let key = key_of(17, host, port, R, 53);
        let packet = Packet { key, kind: Kind::Opens, tcp_flags: 0 };
        matches!(nat.outbound(&packet, NOW), Verdict::Rewrite { .. })
    };
    assert_eq!((1024..=65535).filter(|port| made(A, *port)).count(), 64_512 / 2);
    assert!((5000..5020).all(|port| made(B, port)));
}

#[test]
fn packets_from_outside_keep_a_mapping_only_where_that_was_asked_for() {
    for inbound_refresh in [false, true] {
        let mut nat = Nat::new(&NatConfig { inbound_refresh, ..config() }).unwrap();
        send(&mut nat, Side::Inside, &mut ipv4(17, A, R, &udp(5000, 53, b"")), NOW);
        let mut come = |from, second: u64| {
            let mut packet = ipv4(17, from, EXT, &udp(53, 5000, b""));
            let verdict = send(&mut nat, Side::Outside, &mut packet, NOW.after(second * SECOND));
            (matches!(verdict, Verdict::Rewrite { .. }), nat.sessions(), nat.mappings())
        };
        assert_eq!(come(R, 200), (true, 1, 1));
        assert_eq!(come(R + 1, 299), (true, 1, 1), "a stranger");
        let refreshed = if inbound_refresh { (true, 1, 1) } else { (false, 0, 0) };
        assert_eq!(come(R, 301), refreshed);
        assert_eq!(come(R + 1, 600), if inbound_refresh { (true, 1, 1) } else { (false, 0, 0) });
        // The session is over, the mapping isn't.
        assert_eq!(come(R + 1, 899), if inbound_refresh { (true, 0, 1) } else { (false, 0, 0) });
        assert_eq!(come(R + 1, 1200), (false, 0, 0));
    }
}

/// Static mappings translate whatever comes, however much, and keep nothing.
#[test]
fn a_static_mapping_has_no_sessions() {
    let forward = StaticMapping::Port { protocol: 6, inside: (B.into(), 8080), external: (EXT.into(), 80) };
    let mut nat = Nat::new(&NatConfig { statics: vec![forward], sessions: 4, ..config() }).unwrap();
    for n in 0..1000 {
        let inside = ipv4(6, R + n, B, &tcp(999, 8080, SYN, b""));
        let outside = ipv4(6, R + n, EXT, &tcp(999, 80, SYN, b""));
        expect(&mut nat, Side::Outside, outside, &inside);
        let answer = ipv4(6, B, R + n, &tcp(8080, 999, SYN | ACK, b""));
        let answer_outside = ipv4(6, EXT, R + n, &tcp(80, 999, SYN | ACK, b""));
        expect(&mut nat, Side::Inside, answer, &answer_outside);
        // Errors about what it sent, and about what came.
        expect(
            &mut nat,
            Side::Outside,
            ipv4(1, 0x0101_0101, EXT, &error(3, 1, &answer_outside)),
            &ipv4(1, 0x0101_0101, B, &error(3, 1, &ipv4(6, B, R + n, &tcp(8080, 999, SYN | ACK, b"")))),
        );
    }
    // Reached by its external endpoint from inside, too.
    expect(
        &mut nat,
        Side::Inside,
        ipv4(6, A, EXT, &tcp(7000, 80, SYN, b"")),
        &ipv4(6, EXT, B, &tcp(7000, 8080, SYN, b"")),
    );
    expect(
        &mut nat,
        Side::Inside,
        ipv4(6, B, EXT, &tcp(8080, 7000, SYN | ACK, b"")),
        &ipv4(6, EXT, A, &tcp(80, 7000, SYN | ACK, b"")),
    );
    assert_eq!((nat.sessions(), nat.mappings()), (1, 1));
}

/// Ports that others see tell nothing of those to come to who doesn't know the seed, not even that of the
/// tables.
#[test]
fn fallback_ports_follow_the_seed_of_choices_alone() {
    let ports = |seed, choices| -> Vec<u16> {
        let mut nat = Nat::new(&NatConfig { seed, choices, ..config() }).unwrap();
        send(&mut nat, Side::Inside, &mut ipv4(17, B, R, &udp(5000, 53, b"")), NOW);
        let taken = (0..50).map(|n| {
            let mut packet = ipv4(17, A + 256 * n, R, &udp(5000, 53, b""));
            send(&mut nat, Side::Inside, &mut packet, NOW);
            read(&packet).src_port
        });
        taken.collect()
    };
    assert_eq!(ports(1, 7), ports(2, 7));
    let same = ports(1, 7).into_iter().zip(ports(1, 8)).filter(|(a, b)| a == b).count();
    assert!(same <= 1, "{same} of 50 ports are the same under another seed");
}

/// Where time is the clock's, a packet that begins a session waits for the end of few others, however many
/// end then; none of them is used any longer.
#[test]
fn sessions_that_end_at_one_time_hold_nobody_up() {
    let later = NOW.after(301 * SECOND);
    for by_clock in [false, true] {
        let mut nat = Nat::new(&config()).unwrap();
        if by_clock {
            nat.go_by_clock();
        }
        for n in 0..2000 {
            send(&mut nat, Side::Inside, &mut ipv4(17, A, R, &udp(2000 + n, 53, b"")), NOW);
        }
        let mut other = ipv4(17, B, R, &udp(5000, 53, b""));
        assert!(matches!(send(&mut nat, Side::Inside, &mut other, later), Verdict::Rewrite { .. }));
        let left = nat.sessions() - 1;
        assert_eq!(left, if by_clock { 2000 - ROOM } else { 0 });
        for n in 0..2000 {
            let mut late = ipv4(17, R, EXT, &udp(53, 2000 + n, b""));
            let verdict = send(&mut nat, Side::Outside, &mut late, later);
            assert_eq!(verdict, Verdict::Drop(DropReason::NoMapping), "port {}", 2000 + n);
        }
        while by_clock && nat.sessions() > 1 {
            nat.look(later);
        }
        assert_eq!((nat.sessions(), nat.mappings()), (1, 1));
    }
}
