use std::net::{IpAddr, Ipv6Addr};

use proptest::prelude::*;
use slipstream_wire::{Flags, Headers};

use super::*;
use crate::tcp_state::{ACK, FIN, RST, SYN, URG};
use crate::test_packets::{echo, error, headers, ipv4, ipv4_fragment, ipv6, tcp, udp};

const START: Nanos = Nanos(1_700_000_000 * SECOND);

fn see(tracker: &mut Conntrack, packet: &[u8], now: Nanos) -> CtState {
    let tracked = Tracked::read(packet, &headers(packet));
    let seen = tracker.look_up(&tracked, now);
    tracker.accept(&tracked, &seen, now).unwrap();
    seen.state
}

/// The same for both versions: packets from 1 to 2 or back.
fn packet(v6: bool, protocol: u8, from_first: bool, payload: &[u8]) -> Vec<u8> {
    let (src, dst) = if from_first { (1, 2) } else { (2, 1) };
    if v6 {
        let address = |n: u128| Ipv6Addr::from_bits(0x2001_0db8 << 96 | n);
        ipv6(protocol, address(src), address(dst), payload)
    } else {
        ipv4(protocol, 0x0a00_0000 + src as u32, 0x0a00_0000 + dst as u32, payload)
    }
}

/// An identifier is any number, also that of a type as the tracker writes it where ports would be.
#[test]
fn a_request_belongs_to_no_query_of_the_other_end() {
    for (v6, icmp, [ask, answer, other]) in [(false, 1, [8, 0, 13]), (true, 58, [128, 129, 139])] {
        for (one, two) in [(true, false), (false, true)] {
            let mut tracker = Conntrack::new(&ConntrackConfig::default());
            let id = |kind: u8| u16::from(kind) << 8;
            let mut step =
                |from, kind, id| see(&mut tracker, &packet(v6, icmp, from, &echo(kind, id, b"x")), START);
            assert_eq!(step(one, ask, id(ask)), CtState::New);
            assert_eq!(step(one, answer, id(ask)), CtState::Invalid, "who asks doesn't answer");
            assert_eq!(step(two, ask, id(ask)), CtState::New, "another query");
            assert_eq!(step(two, answer, id(ask)), CtState::Established);
            assert_eq!(step(one, answer, id(ask)), CtState::Established);
            // The identifier of each is the type of the other.
            assert_eq!(step(one, other, id(ask)), CtState::New);
            assert_eq!(step(two, ask, id(other)), CtState::New);
            assert_eq!(step(two, other + 1, id(ask)), CtState::Established);
            assert_eq!(step(one, answer, id(other)), CtState::Established);
            assert_eq!(tracker.connections(), 4);
        }
    }
}

#[test]
fn a_tcp_connection() {
    for v6 in [false, true] {
        let mut tracker = Conntrack::new(&ConntrackConfig::default());
        let mut step = |out: bool, flags, second| {
            let ports = if out { (5000, 80) } else { (80, 5000) };
            let packet = packet(v6, 6, out, &tcp(ports.0, ports.1, flags, b""));
            see(&mut tracker, &packet, START.after(second * SECOND))
        };
        assert_eq!(step(false, SYN | ACK, 0), CtState::Invalid, "an answer to nothing");
        assert_eq!(step(true, SYN, 0), CtState::New);
        assert_eq!(step(true, SYN, 1), CtState::New, "once more");
        assert_eq!(step(true, ACK, 1), CtState::Invalid);
        assert_eq!(step(false, SYN | ACK, 2), CtState::Established);
        assert_eq!(step(true, ACK, 3), CtState::Established);
        assert_eq!(step(false, ACK, 400_000), CtState::Established, "days later");
        assert_eq!(step(true, FIN | ACK, 400_001), CtState::Established);
        assert_eq!(step(false, FIN | ACK, 400_001), CtState::Established);
        assert_eq!(step(true, ACK, 400_002), CtState::Established);
        assert_eq!(step(true, SYN, 400_100), CtState::New, "the same ports again, within the wait");
        assert_eq!(step(false, SYN | ACK, 400_101), CtState::Established);
        assert_eq!(step(false, RST, 400_102), CtState::Established);
        assert_eq!(step(true, FIN | ACK, 400_112), CtState::Invalid, "forgotten after ten seconds");
        assert_eq!(tracker.connections(), 1, "though not swept yet");
        tracker.expire(START.after(400_200 * SECOND), 100);
        assert_eq!((tracker.connections(), tracker.counters().expired), (0, 1));
    }
}

/// The end of a connection may not have been seen, as where its last acknowledgement was lost: the next one
/// of the same ports is an open one all the same, once its SYN is answered by a SYN-ACK.
#[test]
fn ports_that_are_used_again_open_a_connection() {
    let closing: [&[(bool, u8)]; 3] =
        [&[(true, FIN | ACK)], &[(true, FIN | ACK), (false, ACK)], &[(true, FIN | ACK), (false, FIN | ACK)]];
    for (v6, closing) in [false, true].into_iter().flat_map(|v6| closing.map(|closing| (v6, closing))) {
        let mut tracker = Conntrack::new(&ConntrackConfig::default());
        let mut step = |out: bool, flags, second| {
            let ports = if out { (5000, 80) } else { (80, 5000) };
            let packet = packet(v6, 6, out, &tcp(ports.0, ports.1, flags, b""));
            see(&mut tracker, &packet, START.after(second * SECOND))
        };
        let opening = [(true, SYN), (false, SYN | ACK), (true, ACK)];
        opening.iter().for_each(|(out, flags)| _ = step(*out, *flags, 0));
        closing.iter().for_each(|(out, flags)| _ = step(*out, *flags, 1));
        assert_eq!(step(true, SYN, 10), CtState::Established, "which moves nothing");
        assert_eq!(step(false, SYN | ACK, 10), CtState::Established);
        assert_eq!(step(true, ACK, 10), CtState::Established);
        assert_eq!(step(false, ACK, 400_000), CtState::Established, "days later");
    }
    // Without the SYN, or with another answer to it, nothing begins.
    for between in
        [&[(false, SYN | ACK)][..], &[(true, SYN), (false, ACK)], &[(false, SYN), (false, SYN | ACK)]]
    {
        let mut tracker = Conntrack::new(&ConntrackConfig::default());
        let mut step = |out: bool, flags, second| {
            let ports = if out { (5000, 80) } else { (80, 5000) };
            let packet = packet(false, 6, out, &tcp(ports.0, ports.1, flags, b""));
            see(&mut tracker, &packet, START.after(second * SECOND))
        };
        let opening = [(true, SYN), (false, SYN | ACK), (true, ACK), (true, FIN | ACK), (false, FIN | ACK)];
        opening.iter().for_each(|(out, flags)| _ = step(*out, *flags, 0));
        between.iter().for_each(|(out, flags)| _ = step(*out, *flags, 1));
        step(true, ACK, 2);
        assert_eq!(step(false, SYN | ACK, 2 + 120), CtState::Invalid, "it ended: {between:?}");
    }
}

/// Whoever sends an ACK begins a connection, and many may send many: it is kept for as long as an open one
/// once it was answered, as in Linux.
#[test]
fn what_was_open_before_is_forgotten_soon_unless_it_is_answered() {
    for v6 in [false, true] {
        let ack = |out: bool| {
            let ports = if out { (5000, 80) } else { (80, 5000) };
            packet(v6, 6, out, &tcp(ports.0, ports.1, ACK, b""))
        };
        for (answers, kept) in [(&[][..], 300), (&[1_u64][..], 5 * 86_400)] {
            for (second, state) in [(kept - 1, CtState::Established), (kept, CtState::New)] {
                let mut tracker = Conntrack::new(&ConntrackConfig::default());
                assert_eq!(see(&mut tracker, &ack(true), START), CtState::New);
                // It counts from the last packet on.
                let last = START.after(200 * SECOND);
                assert_eq!(see(&mut tracker, &ack(true), last), CtState::New);
                for _ in answers {
                    assert_eq!(see(&mut tracker, &ack(false), last), CtState::Established);
                }
                assert_eq!(see(&mut tracker, &ack(false), last.after(second * SECOND)), state, "{second} s");
            }
        }
    }
}

#[test]
fn echoes_and_errors() {
    for (v6, icmp, ask, answer, unreachable) in [(false, 1, 8, 0, 3), (true, 58, 128, 129, 1)] {
        let mut tracker = Conntrack::new(&ConntrackConfig::default());
        let ping = packet(v6, icmp, true, &echo(ask, 7, b"x"));
        let pong = packet(v6, icmp, false, &echo(answer, 7, b"x"));
        assert_eq!(see(&mut tracker, &pong, START), CtState::Invalid);
        assert_eq!(see(&mut tracker, &ping, START), CtState::New);
        assert_eq!(
            see(&mut tracker, &packet(v6, icmp, false, &echo(answer, 8, b"x")), START),
            CtState::Invalid
        );
        assert_eq!(see(&mut tracker, &pong, START), CtState::Established);
        assert_eq!(see(&mut tracker, &ping, START), CtState::Established);
        let about_ping = packet(v6, icmp, false, &error(unreachable, 1, &ping));
        assert_eq!(see(&mut tracker, &about_ping, START), CtState::Related);
        assert_eq!(see(&mut tracker, &about_ping, START.after(30 * SECOND)), CtState::Invalid);

        let query = packet(v6, 17, true, &udp(4000, 53, b"?"));
        let about = packet(v6, icmp, false, &error(unreachable, 3, &query));
        assert_eq!(see(&mut tracker, &about, START), CtState::Invalid);
        assert_eq!(see(&mut tracker, &query, START), CtState::New);
        assert_eq!(see(&mut tracker, &about, START), CtState::Related);
        let misled = packet(v6, icmp, true, &error(unreachable, 3, &query));
        assert_eq!(see(&mut tracker, &misled, START), CtState::Invalid, "not to who sent the quoted packet");
        let nested = packet(v6, icmp, false, &error(unreachable, 3, &about));
        assert_eq!(see(&mut tracker, &nested, START), CtState::Invalid, "an error about an error");
    }
    let mut tracker = Conntrack::new(&ConntrackConfig::default());
    let solicitation = packet(true, 58, true, &echo(135, 0, b"neighbour"));
    assert_eq!(see(&mut tracker, &solicitation, START), CtState::Untracked);
    assert_eq!(tracker.connections(), 0);
}

#[test]
fn vlans_do_not_count() {
    let mut tracker = Conntrack::new(&ConntrackConfig::default());
    let (a, b): (IpAddr, IpAddr) = ([10, 0, 0, 1].into(), [10, 0, 0, 2].into());
    let read = |vlans: &[u16], src, dst, ports: (u16, u16)| {
        let key = FlowKey::new(vlans, src, dst, 17, ports.0, ports.1).unwrap();
        Tracked::read(&[], &Headers { key, l3: 14, l4: 34, flags: Flags(Flags::PORTS), tcp_flags: 0, tos: 0 })
    };
    let out = read(&[5], a, b, (1000, 53));
    let seen = tracker.look_up(&out, START);
    tracker.accept(&out, &seen, START).unwrap();
    for vlans in [&[][..], &[6], &[1, 2], &[1, 2, 3]] {
        assert_eq!(tracker.look_up(&read(vlans, b, a, (53, 1000)), START).state, CtState::Established);
    }
}

fn room(connections_v4: u32) -> ConntrackConfig {
    ConntrackConfig { connections_v4, connections_v6: connections_v4, ..Default::default() }
}

/// As [`see`], of a packet that may find no room.
fn try_see(tracker: &mut Conntrack, packet: &[u8], now: Nanos) -> Result<CtState, Full> {
    let tracked = Tracked::read(packet, &headers(packet));
    let seen = tracker.look_up(&tracked, now);
    tracker.accept(&tracked, &seen, now).map(|()| seen.state)
}

/// A segment between a client's port and a server.
fn segment(v6: bool, out: bool, port: u16, flags: u8) -> Vec<u8> {
    let ports = if out { (port, 80) } else { (80, port) };
    packet(v6, 6, out, &tcp(ports.0, ports.1, flags, b""))
}

#[test]
fn a_full_table_keeps_those_that_were_answered() {
    let mut tracker = Conntrack::new(&room(3));
    let out = |port| packet(false, 17, true, &udp(port, 53, b""));
    let back = |port| packet(false, 17, false, &udp(53, port, b""));
    see(&mut tracker, &out(1), START);
    assert_eq!(see(&mut tracker, &back(1), START), CtState::Established);
    for port in 2..=6 {
        assert_eq!(see(&mut tracker, &out(port), START.after(port.into())), CtState::New);
    }
    assert_eq!((tracker.connections(), tracker.counters().displaced), (3, [3, 0, 0]));
    assert_eq!(see(&mut tracker, &back(1), START), CtState::Established, "answered, so it stays");
}

/// Streams go on for more than two seconds, both ways; they make room only where that was asked for.
#[test]
fn a_table_of_assured_connections_refuses_unless_early_drop_is_asked_for() {
    for early_drop in [false, true] {
        let mut tracker = Conntrack::new(&ConntrackConfig { early_drop, ..room(3) });
        let out = |port| packet(false, 17, true, &udp(port, 53, b""));
        let back = |port| packet(false, 17, false, &udp(53, port, b""));
        let later = START.after(3 * SECOND);
        for port in 1..=3 {
            see(&mut tracker, &out(port), START.after(port.into()));
            see(&mut tracker, &back(port), START.after(port.into()));
            see(&mut tracker, &out(port), later);
        }
        assert_eq!(try_see(&mut tracker, &out(77), later).is_ok(), early_drop);
        let expected = if early_drop { (0, [0, 0, 1]) } else { (1, [0, 0, 0]) };
        assert_eq!((tracker.counters().refused, tracker.counters().displaced), expected);
        let oldest = Tracked::read(&back(1), &headers(&back(1)));
        let state = if early_drop { CtState::New } else { CtState::Established };
        assert_eq!(tracker.look_up(&oldest, later).state, state);
        assert_eq!(see(&mut tracker, &out(78), later.after(120 * SECOND)), CtState::New, "time makes room");
    }
}

#[test]
fn one_answered_connection_does_not_make_a_flood_refuse() {
    let mut tracker = Conntrack::new(&room(1000));
    let ping = packet(false, 1, true, &echo(8, 7, b"x"));
    let pong = packet(false, 1, false, &echo(0, 7, b"x"));
    see(&mut tracker, &ping, START);
    see(&mut tracker, &pong, START);
    for port in 0..5000 {
        see(&mut tracker, &segment(false, true, port, SYN), START.after(u64::from(port) + 1));
    }
    assert_eq!((tracker.counters().refused, tracker.counters().displaced), (0, [4001, 0, 0]));
    assert_eq!(see(&mut tracker, &pong, START.after(10_000)), CtState::Established);
}

/// A flood of twice the table a round-trip, whose every SYN is answered or none is: each real connection's
/// handshake ends well with an answer that takes 100 times as long as those to the flood, and goes on
/// afterwards.
#[test]
fn handshakes_end_well_under_a_flood() {
    for (v6, answered) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut tracker = Conntrack::new(&room(4096));
        let mut now = START;
        let mut flood = 0_u32;
        // 5,000 a second: 4,096 connections are 0.8 s.
        let mut for_a_while = |tracker: &mut Conntrack, packets: u32, now: &mut Nanos| {
            for _ in 0..packets {
                *now = now.after(SECOND / 5000);
                let port = (10_000 + flood % 50_000) as u16;
                flood += 1;
                try_see(tracker, &segment(v6, true, port, SYN), *now).expect("the flood makes room itself");
                if answered {
                    see(tracker, &segment(v6, false, port, SYN | ACK), *now);
                }
            }
        };
        for_a_while(&mut tracker, 10_000, &mut now);
        for port in 1..=100 {
            assert_eq!(see(&mut tracker, &segment(v6, true, port, SYN), now), CtState::New);
            for_a_while(&mut tracker, 500, &mut now);
            assert_eq!(see(&mut tracker, &segment(v6, false, port, SYN | ACK), now), CtState::Established);
            for_a_while(&mut tracker, 500, &mut now);
            assert_eq!(see(&mut tracker, &segment(v6, true, port, ACK), now), CtState::Established);
        }
        for_a_while(&mut tracker, 10_000, &mut now);
        for port in 1..=100 {
            let data = segment(v6, false, port, ACK);
            assert_eq!(see(&mut tracker, &data, now), CtState::Established, "connection {port}");
        }
        let c = tracker.counters();
        assert_eq!((c.refused, c.displaced(Class::Assured), tracker.connections()), (0, 0, 4096));
    }
}

/// Whoever forges the acknowledgement, too, is told off by the server: what is reset makes room again.
#[test]
fn a_reset_connection_makes_room() {
    let mut tracker = Conntrack::new(&room(2));
    for (port, end) in [(1, ACK), (2, RST)] {
        see(&mut tracker, &segment(false, true, port, SYN), START);
        see(&mut tracker, &segment(false, false, port, SYN | ACK), START);
        see(&mut tracker, &segment(false, true, port, ACK), START);
        see(&mut tracker, &segment(false, false, port, end), START);
    }
    assert_eq!(try_see(&mut tracker, &segment(false, true, 3, SYN), START), Ok(CtState::New));
    assert_eq!(tracker.counters().displaced, [0, 1, 0]);
    assert_eq!(see(&mut tracker, &segment(false, false, 1, ACK), START), CtState::Established);
}

/// A connection as the twin of the lists by class has it.
#[derive(Clone, Debug, PartialEq)]
struct Plain {
    id: (bool, bool, u16),
    forward: bool,
    replied: bool,
    again: bool,
    tcp: TcpState,
    class: Class,
    opened: Nanos,
    /// When it came into its class.
    turn: usize,
}

/// Finds the connection that a full table displaces, by a search of all of them.
fn to_displace(list: &[Plain], limit: usize, now: Nanos) -> Option<usize> {
    let oldest = |class| {
        let all = list.iter().enumerate().filter(|(_, c)| c.class == class);
        all.min_by_key(|(_, c)| c.turn).map(|(at, c)| (at, c.opened))
    };
    let waiting = list.iter().filter(|c| c.class == Class::Unanswered).count();
    match (oldest(Class::Unanswered), oldest(Class::Answered)) {
        (Some((at, opened)), Some((other, earlier))) => {
            let young = waiting <= limit / 16 && now.0 - opened.0 < 3 * SECOND;
            Some(if young && earlier < opened { other } else { at })
        }
        (one, other) => one.or(other).map(|(at, _)| at),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn room_is_made_as_a_list_looked_through_says(
        packets in proptest::collection::vec(
            (any::<[bool; 2]>(), 0..60_u16, 0..4_usize, 0..300_u64), 1..120),
        limit in 1..40_u32, v6: bool,
    ) {
        let config = room(limit);
        let mut tracker = Conntrack::new(&config);
        let mut list: Vec<Plain> = vec![];
        let mut now = START;
        let mut displaced = [0; 3];
        for (turn, ([out, datagram], port, kind, passed)) in packets.into_iter().enumerate() {
            // Nothing's time passes: the shortest is 30 s.
            now = now.after(passed * 1_000_000 / 2);
            let flags = [SYN, SYN | ACK, ACK, FIN | ACK][kind];
            let ports = if out { (1000 + port, 53) } else { (53, 1000 + port) };
            let bytes = match datagram {
                true => packet(v6, 17, out, &udp(ports.0, ports.1, b"")),
                false => packet(v6, 6, out, &tcp(ports.0, ports.1, flags, b"")),
            };
            let id = (v6, datagram, port);
            let full = list.len() == limit as usize;
            let mut refused = false;
            match list.iter_mut().find(|c| c.id == id) {
                None if !datagram && TcpState::first(flags, true).is_none() => {}
                None => {
                    if full {
                        match to_displace(&list, limit as usize, now) {
                            Some(at) => displaced[list.remove(at).class as usize] += 1,
                            None => refused = true,
                        }
                    }
                    if !refused {
                        let tcp = TcpState::first(flags, true).unwrap_or_default();
                        let (forward, class) = (out, Class::Unanswered);
                        let (replied, again) = (false, false);
                        list.push(Plain { id, forward, replied, again, tcp, class, opened: now, turn });
                    }
                }
                Some(c) => {
                    let back = c.forward != out;
                    let before = c.tcp;
                    let direction = if back { Direction::Reply } else { Direction::Original };
                    let mut step = if datagram { Step::Ignore } else { c.tcp.step(direction, flags) };
                    if !datagram {
                        step = anew(step, &mut c.again, c.tcp, back, flags);
                    }
                    let mut class = c.class;
                    if step != Step::Invalid {
                        c.replied |= back;
                        match step {
                            Step::To(state) => c.tcp = state,
                            Step::Reopen => {
                                (c.forward, c.replied, c.tcp, c.opened) = (out, false, TcpState::SynSent, now);
                                c.again = false;
                            }
                            _ => {}
                        }
                        let over = matches!(c.tcp, TcpState::TimeWait | TcpState::Close);
                        let was_open = matches!(before, TcpState::SynReceived | TcpState::Established);
                        class = match c.replied {
                            false => Class::Unanswered,
                            true if !datagram && over => Class::Answered,
                            true if !datagram && was_open && c.tcp == TcpState::Established => Class::Assured,
                            true if datagram && now.0 - c.opened.0 > 2 * SECOND => Class::Assured,
                            true => class.max(Class::Answered),
                        };
                    }
                    if class != c.class {
                        (c.class, c.turn) = (class, turn);
                    }
                }
            }
            prop_assert_eq!(try_see(&mut tracker, &bytes, now).is_err(), refused);
            prop_assert_eq!(tracker.connections() as usize, list.len());
            prop_assert_eq!(tracker.counters().displaced, displaced);
            for c in &list {
                let bytes = match datagram_of(c) {
                    true => packet(v6, 17, true, &udp(1000 + c.id.2, 53, b"")),
                    false => packet(v6, 6, true, &tcp(1000 + c.id.2, 53, ACK, b"")),
                };
                let tracked = Tracked::read(&bytes, &headers(&bytes));
                prop_assert!(tracker.look_up(&tracked, now).id != NONE, "{c:?} is gone");
            }
        }
    }
}

/// The step of a segment on a connection whose opener has asked once more, or does so by it, though it was
/// not over.
fn anew(step: Step, again: &mut bool, tcp: TcpState, back: bool, flags: u8) -> Step {
    let closing = [TcpState::FinWait, TcpState::CloseWait, TcpState::LastAck].contains(&tcp);
    if closing && *again && back && flags == SYN | ACK {
        *again = false;
        return Step::To(TcpState::SynReceived);
    }
    *again |= closing && !back && flags == SYN;
    step
}

fn datagram_of(connection: &Plain) -> bool {
    connection.id.1
}

/// A connection of the model, looked for from end to end.
#[derive(Clone, Debug)]
struct Slow {
    src: (IpAddr, u16),
    dst: (IpAddr, u16),
    protocol: u8,
    replied: bool,
    again: bool,
    tcp: TcpState,
    deadline: u64,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn equals_a_list_of_connections(
        packets in proptest::collection::vec(
            (any::<[bool; 3]>(), 0..3_u16, 0..10_usize, prop_oneof![9 => 0..2_u64, 1 => 25..200_u64], any::<bool>()), 1..200),
        loose: bool, seed: u64,
    ) {
        let config = ConntrackConfig { loose, seed, ..Default::default() };
        let mut tracker = Conntrack::new(&config);
        let mut list: Vec<Slow> = vec![];
        let mut now = START.0;
        for ([v6, out, udp_packet], port, kind, seconds, accepted) in packets {
            now += seconds * SECOND;
            list.retain(|c| c.deadline > now);
            let flags = [SYN, SYN | ACK, ACK, FIN | ACK, RST, 0, SYN | FIN, FIN, FIN | RST | ACK, RST | URG][kind];
            let can_be = kind < 5;
            let (src_port, dst_port) = if out { (1000 + port, 53) } else { (53, 1000 + port) };
            let (protocol, payload) = if udp_packet {
                (17, udp(src_port, dst_port, b""))
            } else {
                (6, tcp(src_port, dst_port, flags, b""))
            };
            let bytes = packet(v6, protocol, out, &payload);
            let parsed = headers(&bytes);
            let (src, dst) = ((parsed.key.src(), src_port), (parsed.key.dst(), dst_port));

            let found = list.iter_mut().find(|c| {
                c.protocol == protocol && ((c.src, c.dst) == (src, dst) || (c.src, c.dst) == (dst, src))
            });
            let mut expected = CtState::New;
            let begins = udp_packet || can_be && TcpState::first(flags, loose).is_some();
            match found {
                None if !begins => expected = CtState::Invalid,
                None => {
                    if accepted {
                        let tcp = TcpState::first(flags, loose).unwrap_or_default();
                        let one_way = config.tcp.of(tcp).min(config.tcp_one_way);
                        let timeout = if udp_packet { config.udp } else { one_way };
                        let (replied, again, deadline) = (false, false, now + timeout);
                        list.push(Slow { src, dst, protocol, replied, again, tcp, deadline });
                    }
                }
                Some(c) => {
                    let back = c.src != src;
                    let mut again = c.again;
                    let step = if udp_packet { Step::To(c.tcp) } else if !can_be { Step::Invalid } else {
                        let step = c.tcp.step(if back { Direction::Reply } else { Direction::Original }, flags);
                        anew(step, &mut again, c.tcp, back, flags)
                    };
                    if accepted {
                        c.again = again && step != Step::Reopen;
                    }
                    expected = match step {
                        Step::Invalid => CtState::Invalid,
                        Step::Reopen => CtState::New,
                        _ if back || c.replied => CtState::Established,
                        _ => CtState::New,
                    };
                    if accepted && step != Step::Invalid && !udp_packet && !c.replied && flags & RST != 0 {
                        // Nothing but a reset has come of it.
                        c.deadline = now;
                    } else if accepted && step != Step::Invalid {
                        c.replied |= back;
                        match step {
                            Step::To(state) => c.tcp = state,
                            Step::Reopen => {
                                (c.src, c.dst, c.replied, c.tcp) = (src, dst, false, TcpState::SynSent);
                            }
                            _ => {}
                        }
                        if step != Step::Ignore {
                            let udp = if c.replied { config.udp_replied } else { config.udp };
                            let most = if c.replied { u64::MAX } else { config.tcp_one_way };
                            c.deadline = now + if udp_packet { udp } else { config.tcp.of(c.tcp).min(most) };
                        }
                    }
                }
            }
            let tracked = Tracked::read(&bytes, &parsed);
            let seen = tracker.look_up(&tracked, Nanos(now));
            prop_assert_eq!(seen.state, expected);
            if accepted {
                tracker.accept(&tracked, &seen, Nanos(now)).unwrap();
            }
            tracker.expire(Nanos(now), 8);
            list.retain(|c| c.deadline > now);
            prop_assert!(tracker.connections() as usize >= list.len());
        }
    }

    #[test]
    fn any_bytes_can_be_read(bytes in proptest::collection::vec(any::<u8>(), 0..120), v6: bool, icmp: bool) {
        let mut bytes = bytes;
        if let Some(first) = bytes.first_mut() {
            *first = if v6 { 0x60 } else { 0x45 };
        }
        if icmp && let Some(protocol) = bytes.get_mut(if v6 { 6 } else { 9 }) {
            *protocol = if v6 { 58 } else { 1 };
        }
        if let Ok(headers) = slipstream_wire::classify(slipstream_wire::LinkType::RawIp, &bytes) {
            let mut tracker = Conntrack::new(&ConntrackConfig::default());
            let tracked = Tracked::read(&bytes, &headers);
            let seen = tracker.look_up(&tracked, START);
            tracker.accept(&tracked, &seen, START).unwrap();
            prop_assert_eq!(tracker.connections(), u32::from(seen.state == CtState::New));
        }
    }
}

/// As Linux has it: what was refused, or taken back before an answer, is no connection.
#[test]
fn a_reset_before_any_other_answer_ends_a_connection_at_once() {
    for v6 in [false, true] {
        let mut tracker = Conntrack::new(&ConntrackConfig::default());
        let mut step = |out: bool, flags| {
            let (from, to) = if out { (5000, 80) } else { (80, 5000) };
            let state = see(&mut tracker, &packet(v6, 6, out, &tcp(from, to, flags, b"")), START);
            (state, tracker.connections())
        };
        assert_eq!(step(true, SYN), (CtState::New, 1));
        assert_eq!(step(false, RST | ACK), (CtState::Established, 0));
        assert_eq!(step(false, RST | ACK), (CtState::Invalid, 0));
        assert_eq!(step(false, ACK), (CtState::New, 1), "the server's own, which rules may refuse");
        assert_eq!(step(false, RST), (CtState::New, 0));
        assert_eq!(step(true, SYN), (CtState::New, 1));
        assert_eq!(step(true, RST), (CtState::New, 0), "taken back");
        // Once there was an answer, it is remembered for a while.
        assert_eq!(step(true, SYN), (CtState::New, 1));
        assert_eq!(step(false, SYN | ACK), (CtState::Established, 1));
        assert_eq!(step(false, RST), (CtState::Established, 1));
    }
}

#[test]
fn ports_of_0_make_no_fragment() {
    for v6 in [false, true] {
        let state = |flags| {
            let mut tracker = Conntrack::new(&ConntrackConfig::default());
            see(&mut tracker, &packet(v6, 6, true, &tcp(0, 0, flags, b"")), START)
        };
        for flags in [SYN | FIN, 0, SYN | RST, FIN | URG, FIN] {
            assert_eq!(state(flags), CtState::Invalid, "{flags:#x}");
        }
        assert_eq!(state(SYN), CtState::New);
    }
    let mut tracker = Conntrack::new(&ConntrackConfig::default());
    let fragment = ipv4_fragment(6, 0x0a00_0001, 0x0a00_0002, 0x2000, &[], &[0; 8]);
    assert_eq!(see(&mut tracker, &fragment, START), CtState::New);
}
