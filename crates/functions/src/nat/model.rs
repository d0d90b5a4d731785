//! The NAT against a model: a map of live sessions, looked through from end to end for every packet.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::tcp_state::{ACK, Direction, FIN, RST, SYN, Step, TcpState};
use slipstream_core::table::NONE;
use slipstream_core::time::SECOND;

const PORTS: std::ops::RangeInclusive<u16> = 2000..=2004;
const POOL: [u32; 2] = [0xc000_0201, 0xc000_0202];

#[derive(Clone, Copy, Debug)]
enum Op {
    /// From an inside endpoint to a remote one.
    Out { protocol: u8, host: u32, port: u16, remote: u32, remote_port: u16, flags: u8 },
    /// From a remote endpoint to an external one.
    In { protocol: u8, external: usize, port: u16, remote: u32, remote_port: u16, flags: u8 },
    /// Seconds.
    Pass(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let protocol = prop_oneof![Just(6_u8), Just(17), Just(1)];
    let flags = prop_oneof![Just(SYN), Just(SYN | ACK), Just(ACK), Just(FIN | ACK), Just(RST), Just(0)];
    let out = (protocol.clone(), 0..4_u32, 2000..2007_u16, 0..3_u32, 0..2_u16, flags.clone());
    let inward = (protocol, 0..2_usize, 2000..2007_u16, 0..3_u32, 0..2_u16, flags);
    prop_oneof![
        5 => out.prop_map(|(protocol, host, port, remote, remote_port, flags)| {
            Op::Out { protocol, host: 0x0a00_0001 + host, port, remote: 0x0808_0000 + remote, remote_port, flags }
        }),
        4 => inward.prop_map(|(protocol, external, port, remote, remote_port, flags)| {
            Op::In { protocol, external, port, remote: 0x0808_0000 + remote, remote_port, flags }
        }),
        1 => prop_oneof![Just(10), Just(61), Just(150), Just(250), Just(8000)].prop_map(Op::Pass),
    ]
}

#[derive(Clone, Copy, Debug)]
struct Live {
    outside: NarrowKey,
    deadline: u64,
    tcp: TcpState,
    from_outside: bool,
    /// A FIN came from inside, from outside.
    ended: [bool; 2],
    /// Its opener has asked once more, though it was not over.
    again: bool,
    /// Packets went out.
    contact: bool,
}

/// A protocol, an external address and a port.
type External = (u8, u32, u16);

struct Model {
    config: NatConfig,
    live: BTreeMap<NarrowKey, Live>,
    /// Mappings: their inside endpoints, and until when packets from outside keep them.
    mappings: BTreeMap<External, ((u32, u16), u64)>,
    now: u64,
}

impl Model {
    fn touch(&mut self, inside: NarrowKey, side: Side, flags: u8) {
        use TcpState::{CloseWait, Established, FinWait, LastAck, TimeWait};

        let config = &self.config;
        let session = self.live.get_mut(&inside).unwrap();
        session.contact |= side == Side::Inside;
        session.deadline = match Tuple::of(inside).protocol {
            6 => {
                let direction = if (side == Side::Outside) == session.from_outside {
                    Direction::Original
                } else {
                    Direction::Reply
                };
                let revived = session.tcp == TcpState::Close && flags == ACK;
                let closing = matches!(session.tcp, FinWait | CloseWait | LastAck);
                let answer = closing && direction == Direction::Reply && flags == SYN | ACK;
                let begins = session.again && answer;
                session.again |= closing && direction == Direction::Original && flags == SYN;
                if begins {
                    (session.again, session.ended) = (false, [false; 2]);
                }
                match if revived {
                    Step::To(TcpState::Established)
                } else if begins {
                    Step::To(TcpState::SynReceived)
                } else {
                    session.tcp.step(direction, flags)
                } {
                    Step::To(state) => session.tcp = state,
                    Step::Reopen => {
                        session.tcp = TcpState::SynSent;
                        session.from_outside = side == Side::Outside;
                        (session.again, session.ended) = (false, [false; 2]);
                    }
                    Step::Ignore | Step::Invalid => return,
                }
                session.ended[side as usize] |= flags & FIN != 0;
                let closes = matches!(session.tcp, FinWait | CloseWait | LastAck | TimeWait);
                let half = closes && session.ended != [true; 2];
                self.now + config.timeouts.tcp.of(if half { Established } else { session.tcp })
            }
            _ if side == Side::Outside && !config.inbound_refresh => return,
            17 => self.now + config.timeouts.udp,
            _ => self.now + config.timeouts.icmp,
        };
    }

    fn begin(&mut self, inside: NarrowKey, outside: NarrowKey, from_outside: bool, flags: u8) {
        let tcp = TcpState::first(flags, true).unwrap_or_default();
        let timeout = match Tuple::of(inside).protocol {
            6 => self.config.timeouts.tcp.of(tcp),
            17 => self.config.timeouts.udp,
            _ => self.config.timeouts.icmp,
        };
        let live = Live {
            outside,
            deadline: self.now + timeout,
            tcp,
            from_outside,
            ended: [false; 2],
            again: false,
            contact: false,
        };
        self.live.insert(inside, live);
        let (inside_end, outside_end) = (Tuple::of(inside), Tuple::of(outside));
        let external = (inside_end.protocol, outside_end.dst, outside_end.dst_port);
        self.mappings.entry(external).or_insert(((inside_end.src, inside_end.src_port), 0));
        self.touch(inside, Side::Inside, flags);
    }

    /// External endpoints in use and their inside ones.
    fn endpoints(&self) -> BTreeMap<External, (u32, u16)> {
        self.mappings.iter().map(|(external, (inside, _))| (*external, *inside)).collect()
    }

    /// Returns true if the filter lets in packets from outside with these endpoints, of no session.
    fn admits(&self, to: &Tuple) -> bool {
        let known = self.live.values().any(|live| {
            let session = Tuple::of(live.outside);
            live.contact && Tuple { src_port: to.src_port, ..session } == *to
        });
        match self.config.filtering {
            Filtering::EndpointIndependent => true,
            Filtering::AddressDependent => known,
            Filtering::AddressAndPortDependent => false,
        }
    }

    /// Sessions of an inside host, and of one of its endpoints.
    fn sessions_of(&self, from: &Tuple) -> (u32, u32) {
        let all = self.live.keys().map(|key| Tuple::of(*key));
        let host: Vec<_> = all.filter(|t| t.src == from.src).collect();
        let same = |t: &&Tuple| (t.protocol, t.src_port) == (from.protocol, from.src_port);
        (host.len() as u32, host.iter().filter(same).count() as u32)
    }

    /// Mappings of an inside host of a protocol, and how many it may have.
    fn mappings_of(&self, from: &Tuple) -> (u32, u32) {
        let has = self
            .mappings
            .iter()
            .filter(|((protocol, ..), ((address, _), _))| (*protocol, *address) == (from.protocol, from.src));
        let addresses = if self.config.pooling == Pooling::Paired { 1 } else { POOL.len() };
        let numbers = if from.protocol == 1 { 1 << 16 } else { PORTS.count() };
        (has.count() as u32, self.config.host_mappings.unwrap_or((numbers * addresses / 2) as u32))
    }

    fn outbound(&mut self, key: NarrowKey, flags: u8, verdict: Verdict) {
        let from = Tuple::of(key);
        if let Some(live) = self.live.get(&key) {
            let Verdict::Rewrite { rewrite, .. } = verdict else { panic!("{verdict:?} of a live session") };
            assert_eq!(rewrite.endpoints(), Tuple::of(live.outside).reversed().key());
            self.touch(key, Side::Inside, flags);
            return;
        }
        let before = self.endpoints();
        let inside = (from.src, from.src_port);
        let present =
            before.iter().find(|((p, ..), i)| *p == from.protocol && **i == inside).map(|(e, _)| *e);
        let begins = from.protocol != 6 || TcpState::first(flags, self.config.loose).is_some();
        let answers = present.is_some_and(|(_, src, src_port)| {
            from.protocol == 6 && self.admits(&Tuple { src, src_port, ..from }.reversed())
        });
        let (of_host, of_mapping) = self.sessions_of(&from);
        let (host_mappings, most_mappings) = self.mappings_of(&from);
        match verdict {
            Verdict::Rewrite { rewrite, session } => {
                let new = Tuple::of(rewrite.endpoints());
                assert_eq!((new.protocol, new.dst, new.dst_port), (from.protocol, from.dst, from.dst_port));
                assert!(POOL.contains(&new.src));
                assert!(PORTS.contains(&new.src_port) || from.protocol == 1);
                let external = (new.protocol, new.src, new.src_port);
                if let Some(known) = present {
                    assert_eq!(external, known, "one endpoint, two mappings");
                }
                if !begins && flags == RST {
                    assert!(answers && session == NONE);
                    return;
                }
                assert!(begins || answers && flags == SYN | ACK);
                assert!(of_host < self.config.host_sessions && of_mapping < self.config.mapping_sessions);
                if present.is_none() {
                    assert!(host_mappings < most_mappings);
                    assert!(!before.contains_key(&external), "a live mapping was given away");
                    let taken: Vec<_> =
                        before.keys().filter(|k| (k.0, k.1) == (new.protocol, new.src)).collect();
                    let free = |p: u16| !taken.iter().any(|k| k.2 == p);
                    if from.protocol == 1 || PORTS.contains(&from.src_port) {
                        assert!(new.src_port == from.src_port || !free(from.src_port), "not preserved");
                    }
                    if from.protocol != 1 && new.src_port % 2 != from.src_port % 2 {
                        assert!(!PORTS.filter(|p| p % 2 == from.src_port % 2).any(free), "parity");
                    }
                }
                self.begin(key, new.reversed().key(), !begins, flags);
            }
            Verdict::Drop(DropReason::NoPort) => {
                let full = |external: &u32| {
                    before.keys().filter(|k| (k.0, k.1) == (from.protocol, *external)).count()
                        == PORTS.count()
                };
                assert!(begins && POOL.iter().any(full), "a port was free");
                assert!(self.config.pooling == Pooling::Paired || POOL.iter().all(full));
            }
            Verdict::Drop(DropReason::HostMappings) => {
                assert!(begins && present.is_none() && of_host < self.config.host_sessions);
                assert_eq!(host_mappings, most_mappings);
            }
            Verdict::Drop(DropReason::HostSessions) => assert_eq!(of_host, self.config.host_sessions),
            Verdict::Drop(DropReason::MappingSessions) => {
                assert_eq!(of_mapping, self.config.mapping_sessions);
            }
            Verdict::Drop(DropReason::NoSession) => {
                assert!(!begins && !(answers && (flags == SYN | ACK || flags == RST)));
            }
            other => panic!("{other:?}"),
        }
    }

    fn inbound(&mut self, key: NarrowKey, kind: Kind, flags: u8, verdict: Verdict) {
        let to = Tuple::of(key);
        let session = self.live.iter().find(|(_, live)| live.outside == key).map(|(inside, _)| *inside);
        if let Some(inside) = session {
            let Verdict::Rewrite { rewrite, .. } = verdict else { panic!("{verdict:?} of a live session") };
            assert_eq!(rewrite.endpoints(), Tuple::of(inside).reversed().key());
            self.touch(inside, Side::Outside, flags);
            return;
        }
        let external = (to.protocol, to.dst, to.dst_port);
        let expected = match self.endpoints().get(&external).copied() {
            _ if kind == Kind::Reply => Err(DropReason::NoSession),
            None => Err(DropReason::NoMapping),
            Some(_) if to.protocol == 1 => Err(DropReason::NoMapping),
            Some(_) if !self.admits(&to) => Err(DropReason::Filtered),
            Some(_) if to.protocol == 6 && flags != SYN => Err(DropReason::NoSession),
            Some(inside) => Ok(inside),
        };
        match expected {
            Ok((dst, dst_port)) => {
                let Verdict::Rewrite { rewrite, session } = verdict else {
                    panic!("{verdict:?} of an open mapping")
                };
                assert_eq!((rewrite.endpoints(), session), (Tuple { dst, dst_port, ..to }.key(), NONE));
                if self.config.inbound_refresh && to.protocol == 17 {
                    let until = self.now + self.config.timeouts.udp;
                    self.mappings.get_mut(&external).unwrap().1 = until;
                }
            }
            Err(reason) => assert_eq!(verdict, Verdict::Drop(reason)),
        }
    }

    fn pass(&mut self, seconds: u64) {
        self.now += seconds * SECOND;
        let now = self.now;
        self.live.retain(|_, live| live.deadline > now);
        let used: BTreeSet<External> = self
            .live
            .values()
            .map(|live| Tuple::of(live.outside))
            .map(|t| (t.protocol, t.dst, t.dst_port))
            .collect();
        self.mappings.retain(|external, (_, kept)| used.contains(external) || *kept > now);
    }
}

fn packet(key: NarrowKey, kind: Kind, tcp_flags: u8) -> Packet {
    Packet { key, kind, tcp_flags }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn equals_the_model(
        ops in proptest::collection::vec(op(), 1..250),
        filtering in prop_oneof![
            Just(Filtering::EndpointIndependent),
            Just(Filtering::AddressDependent),
            Just(Filtering::AddressAndPortDependent),
        ],
        paired: bool, inbound_refresh: bool, loose: bool, seed: u64,
        limits in prop_oneof![Just((1 << 14, 1 << 13)), (1..6_u32, 1..4_u32)],
        host_mappings in prop_oneof![Just(None), Just(Some(1 << 14)), (1..5_u32).prop_map(Some)],
    ) {
        // Half seconds: nothing is due within a tick of when it is asked about.
        let mut timeouts = NatTimeouts::default();
        timeouts.udp += SECOND / 2;
        timeouts.icmp += SECOND / 2;
        for t in [
            &mut timeouts.tcp.syn_sent, &mut timeouts.tcp.syn_received, &mut timeouts.tcp.established,
            &mut timeouts.tcp.fin_wait, &mut timeouts.tcp.close_wait, &mut timeouts.tcp.last_ack,
            &mut timeouts.tcp.time_wait, &mut timeouts.tcp.close,
        ] {
            *t += SECOND / 2;
        }
        let config = NatConfig {
            pool: POOL.map(Into::into).to_vec(),
            ports: PORTS,
            filtering,
            pooling: if paired { Pooling::Paired } else { Pooling::Arbitrary },
            inbound_refresh,
            loose,
            timeouts,
            host_sessions: limits.0,
            mapping_sessions: limits.1,
            host_mappings,
            seed,
            choices: seed,
            ..NatConfig::default()
        };
        let mut nat = Nat::new(&config).unwrap();
        let mut again = Nat::new(&config).unwrap();
        let mut model = Model { config, live: BTreeMap::new(), mappings: BTreeMap::new(), now: 1_700_000_000 * SECOND };
        for op in ops {
            let now = Nanos(model.now);
            match op {
                Op::Out { protocol, host, port, remote, remote_port, flags } => {
                    let (kind, remote_port) = match protocol {
                        1 => (Kind::Asks, 0x0800),
                        _ => (Kind::Opens, remote_port),
                    };
                    let key = key_of(protocol, host, port, remote, remote_port);
                    let packet = packet(key, kind, if protocol == 6 { flags } else { 0 });
                    let verdict = nat.outbound(&packet, now);
                    // The other NAT goes the short way where there is one.
                    let session = again.prefetch_session(Side::Inside, again.hash(&packet));
                    let known = again.known_outbound(&packet, session, now);
                    let same = match known {
                        Some((rewrite, session)) => Verdict::Rewrite { rewrite, session },
                        None => again.outbound(&packet, now),
                    };
                    prop_assert_eq!(verdict, same, "not deterministic");
                    model.outbound(key, packet.tcp_flags, verdict);
                }
                Op::In { protocol, external, port, remote, remote_port, flags } => {
                    let (kind, remote_port) = match protocol {
                        1 => (Kind::Reply, 0x0800),
                        _ => (Kind::Opens, remote_port),
                    };
                    let key = key_of(protocol, remote, remote_port, POOL[external], port);
                    let packet = packet(key, kind, if protocol == 6 { flags } else { 0 });
                    let verdict = nat.inbound(&packet, now);
                    prop_assert_eq!(verdict, again.inbound(&packet, now), "not deterministic");
                    model.inbound(key, kind, packet.tcp_flags, verdict);
                }
                Op::Pass(seconds) => {
                    model.pass(seconds);
                    nat.expire(Nanos(model.now), u32::MAX);
                    again.expire(Nanos(model.now), u32::MAX);
                }
            }
            let live: BTreeSet<_> = nat.live(Nanos(model.now)).collect();
            let expected: BTreeSet<_> = model.live.iter().map(|(inside, l)| (*inside, l.outside)).collect();
            prop_assert_eq!(live, expected);
            let mappings: BTreeSet<_> = model.endpoints().into_iter().collect();
            prop_assert_eq!(nat.mappings() as usize, mappings.len());
        }
    }
}
