//! A restart, and other settings while sessions go on, change nothing for those that may stay.

use proptest::prelude::*;

use slipstream_core::pool::Pool;
use slipstream_core::stage::{Context, Observe};
use slipstream_core::time::SECOND;
use slipstream_wire::LinkType;

use super::super::{DropReason, FEW, Kind, LOOK, Packet, Verdict, WAIT_FOR_ROOM};
use super::*;
use crate::{FunctionContext, NetworkFunction};

/// The last byte of an IPv4 address.
fn octet(address: IpAddr) -> u8 {
    if let IpAddr::V4(address) = address { address.octets()[3] } else { 0 }
}

fn config(pool: &[&str]) -> NatConfig {
    NatConfig {
        pool: pool.iter().map(|a| a.parse().unwrap()).collect(),
        sessions: 256,
        mappings: 256,
        host_sessions: 128,
        mapping_sessions: 64,
        ports: 5000..=5200,
        ..NatConfig::default()
    }
}

fn stage(config: &NatConfig) -> NatStage {
    NatStage::new(Nat::new(config).unwrap())
}

fn packet(protocol: u8, host: u8, port: u16, remote: u8, tcp_flags: u8) -> Packet {
    let src = u32::from_be_bytes([10, 0, 0, host]);
    let dst = u32::from_be_bytes([198, 51, 100, remote]);
    let key = Tuple { protocol, src, src_port: port, dst, dst_port: 443 }.key();
    Packet { key, kind: Kind::Opens, tcp_flags }
}

/// Everything that a stage has, as records, by table.
fn saved(stage: &NatStage, now: Nanos) -> Vec<(usize, Vec<u8>)> {
    let mut all = Vec::new();
    for (table, kind) in TABLES.iter().enumerate() {
        let (mut out, mut from) = (Vec::new(), Some(0));
        while let Some(at) = from {
            from = stage.save(table, at, 7, now, &mut out);
        }
        all.extend(out.chunks(kind.record).map(|record| (table, record.to_vec())));
    }
    all
}

fn external(verdict: Verdict) -> Option<(u32, u16)> {
    match verdict {
        Verdict::Rewrite { rewrite, .. } => {
            let to = Tuple::of(rewrite.endpoints());
            Some((to.src, to.src_port))
        }
        _ => None,
    }
}

/// The answer to a packet from inside with this external endpoint.
fn answer(packet: &Packet, external: (u32, u16), tcp_flags: u8) -> Packet {
    let from = Tuple::of(packet.key);
    let key = Tuple { src: external.0, src_port: external.1, ..from }.reversed().key();
    Packet { key, kind: Kind::Opens, tcp_flags }
}

fn sweep(stage: &mut NatStage, now: Nanos) {
    while stage.nat.sweep_on(now) {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// A NAT that was saved and restored translates every packet of what was there as the one does that went
    /// on, whichever side speaks first.
    #[test]
    fn a_restart_changes_no_translation(
        packets in proptest::collection::vec((0..3u8, 0..5u8, 4990..5010u16, 0..4u8, 0..5u64), 1..100),
        outside_first in any::<bool>(),
        away in 0..30u64,
        choices in any::<u64>(),
    ) {
        let config = config(&["192.0.2.1", "192.0.2.2"]);
        let mut before = stage(&config);
        let mut now = 1_000 * SECOND;
        let mut talked = Vec::new();
        for (protocol, host, port, remote, gap) in packets {
            now += gap * SECOND / 10;
            let protocol = [6, 17, 6][usize::from(protocol)];
            let out = packet(protocol, host, port, remote, 0x02);
            let Some(ext) = external(before.nat.outbound(&out, Nanos(now))) else { continue };
            if host % 2 == 0 {
                before.nat.inbound(&answer(&out, ext, 0x12), Nanos(now));
                before.nat.outbound(&packet(protocol, host, port, remote, 0x10), Nanos(now));
            }
            talked.push((out, ext));
        }
        let state = saved(&before, Nanos(now));
        let later = now + away * SECOND;
        let mut after = stage(&NatConfig { seed: 99, choices, ..config });
        for (table, record) in &state {
            prop_assert!(after.restore(*table, record, away * SECOND, Nanos(later)));
            prop_assert!(!after.restore(*table, record, away * SECOND, Nanos(later)), "it is there already");
        }
        prop_assert_eq!(after.nat.sessions(), before.nat.sessions());
        prop_assert_eq!(after.nat.mappings(), before.nat.mappings());
        let mut again = saved(&after, Nanos(later));
        let mut as_it_went_on = saved(&before, Nanos(later));
        again.sort();
        as_it_went_on.sort();
        prop_assert_eq!(again, as_it_went_on);
        for (out, ext) in &talked {
            let go = |stage: &mut NatStage| {
                let inward = answer(out, *ext, 0x10);
                let outward = Packet { tcp_flags: 0x10, ..*out };
                let mut both = Vec::new();
                for turn in [outside_first, !outside_first] {
                    both.push(if turn {
                        match stage.nat.inbound(&inward, Nanos(later)) {
                            Verdict::Rewrite { rewrite, .. } => Some(rewrite.endpoints()),
                            _ => None,
                        }
                    } else {
                        external(stage.nat.outbound(&outward, Nanos(later))).map(|(a, p)| NarrowKey([a.into(), p.into()]))
                    });
                }
                both
            };
            prop_assert_eq!(go(&mut after), go(&mut before));
        }
        prop_assert_eq!(after.nat.sessions(), before.nat.sessions());
        let saved_sessions = state.iter().filter(|(table, _)| *table == 0).count() as u64;
        // All ports come back, and of every session the counters say where it came from and that it ended.
        for (stage, restored) in [(&mut before, 0), (&mut after, saved_sessions)] {
            stage.nat.expire(Nanos(later + 100_000 * SECOND), u32::MAX);
            prop_assert_eq!((stage.nat.sessions(), stage.nat.mappings()), (0, 0));
            let mut counted = std::collections::BTreeMap::new();
            stage.counters(&mut |name, n| {
                counted.insert(name, n);
            });
            prop_assert_eq!(counted["sessions_restored"], restored);
            prop_assert_eq!(counted["sessions_opened"] + restored, counted["sessions_closed"]);
        }
    }

    /// Any bytes are a record, or are refused, and leave nothing behind.
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..40), table in 0..3usize) {
        let mut stage = stage(&config(&["192.0.2.1"]));
        let restored = stage.restore(table, &bytes, 0, Nanos(5));
        prop_assert_eq!(restored, stage.nat.sessions() + stage.nat.mappings() > 0);
        let _ = (describe_session(&bytes), describe_mapping(&bytes), stage.remove(table, &bytes, Nanos(6)));
    }

    /// When the pool changes, what may stay is translated as before, the rest ends, and no port is given
    /// twice or lost.
    #[test]
    fn another_pool_keeps_what_it_may(
        hosts in proptest::collection::vec((0..20u8, 4990..5010u16), 1..60),
        pools in proptest::collection::vec(1..8u8, 1..5),
    ) {
        let all = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
        let chosen = |mask: u8| all.iter().enumerate().filter(|(i, _)| mask >> i & 1 != 0).map(|(_, a)| *a).collect::<Vec<_>>();
        let mut stage = stage(&config(&all));
        let mut now = 1_000 * SECOND;
        let mut talked: Vec<(Packet, (u32, u16))> = Vec::new();
        for mask in pools {
            now += SECOND;
            for (host, port) in &hosts {
                let out = packet(17, *host, *port, 1, 0);
                let Some(ext) = external(stage.nat.outbound(&out, Nanos(now))) else { continue };
                match talked.iter().find(|(known, _)| known.key == out.key) {
                    Some((_, known)) => prop_assert_eq!(*known, ext),
                    None => {
                        prop_assert!(talked.iter().all(|(known, used)| known.key == out.key || *used != ext), "a port twice");
                        talked.push((out, ext));
                    }
                }
            }
            let pool = chosen(mask);
            let update: Update = Box::new(NatUpdate::new(config(&pool)));
            drop(stage.update(update, Nanos(now)));
            sweep(&mut stage, Nanos(now));
            let kept = |ext: &(u32, u16)| pool.iter().any(|a| a.parse::<Ipv4Addr>().unwrap().to_bits() == ext.0);
            talked.retain(|(_, ext)| kept(ext));
            prop_assert_eq!(stage.nat.sessions() as usize, talked.len());
            for (out, ext) in &talked {
                let inward = stage.nat.inbound(&answer(out, *ext, 0), Nanos(now));
                let to_inside = |key| Tuple::of(key).dst == Tuple::of(out.key).src;
                let reached = matches!(inward, Verdict::Rewrite { rewrite, .. } if to_inside(rewrite.endpoints()));
                prop_assert!(reached);
            }
        }
        stage.nat.expire(Nanos(now + 100_000 * SECOND), u32::MAX);
        prop_assert_eq!((stage.nat.sessions(), stage.nat.mappings()), (0, 0));
    }
}

/// One thing that happens to a NAT while it runs.
#[derive(Clone, Debug)]
enum Event {
    /// A packet from inside: protocol, host, port, and where it goes to, an external address too.
    Out(bool, u8, u16, u8),
    /// A packet from outside to an external address and port.
    In(bool, u8, u8, u16),
    /// Other settings: the pool as bits, static ports as bits, hairpin.
    Update(u8, u8, bool),
    /// A slice of what there is to do after that.
    Sweep,
    /// Time goes by, in seconds.
    Pass(u16),
    /// An operator takes out the entry with this number.
    Remove(u8),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let one = prop_oneof![
        8 => (any::<bool>(), 0..4u8, 5000..5006u16, 0..8u8).prop_map(|(tcp, host, port, to)| Event::Out(tcp, host, port, to)),
        4 => (any::<bool>(), 0..3u8, 0..4u8, 5000..5006u16).prop_map(|(tcp, from, to, port)| Event::In(tcp, from, to, port)),
        2 => (1..16u8, 0..8u8, any::<bool>()).prop_map(|(pool, statics, hairpin)| Event::Update(pool, statics, hairpin)),
        2 => Just(Event::Sweep),
        1 => (0..400u16).prop_map(Event::Pass),
        1 => any::<u8>().prop_map(Event::Remove),
    ];
    proptest::collection::vec(one, 1..150)
}

/// Four external addresses, of which those of these bits are the pool, and static ports at the first of them.
fn chosen(pool: u8, statics: u8, hairpin: bool) -> NatConfig {
    let address = |n: u8| Ipv4Addr::new(198, 51, 100, n);
    let port = |n: u8| super::super::StaticMapping::Port {
        protocol: 17,
        inside: (Ipv4Addr::new(10, 0, 0, 9), 53 + u16::from(n)),
        external: (address(0), 5000 + u16::from(n)),
    };
    let bits = |of: u8| (0..4u8).filter(move |n| of >> n & 1 != 0);
    NatConfig {
        pool: bits(pool).map(address).collect(),
        statics: bits(statics).map(port).collect(),
        ports: 5000..=5004,
        hairpin,
        inbound_refresh: true,
        ..config(&[])
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever happens in whatever order, nobody has an external endpoint that somebody else has, no packet
    /// of a host that is translated leaves with its own source, and in the end all ports are free again.
    #[test]
    fn endpoints_have_one_owner_whatever_happens(events in events()) {
        let (mut nat, mut now) = (stage(&chosen(3, 0, true)), 1_000 * SECOND);
        for event in events {
            match event {
                Event::Out(tcp, host, port, to) => {
                    let (protocol, flags) = if tcp { (6, 2) } else { (17, 0) };
                    let verdict = nat.nat.outbound(&packet(protocol, host, port, to, flags), Nanos(now));
                    prop_assert!(verdict != Verdict::Pass, "untranslated");
                    if let Some((source, _)) = external(verdict) {
                        prop_assert_eq!(source >> 24, 198);
                    }
                }
                Event::In(tcp, from, to, port) => {
                    let src = u32::from_be_bytes([203, 0, 113, from]);
                    let dst = u32::from_be_bytes([198, 51, 100, to]);
                    let protocol = if tcp { 6 } else { 17 };
                    let key = Tuple { protocol, src, src_port: 443, dst, dst_port: port }.key();
                    let packet = Packet { key, kind: Kind::Opens, tcp_flags: if tcp { 2 } else { 0 } };
                    nat.nat.inbound(&packet, Nanos(now));
                }
                Event::Update(pool, statics, hairpin) => {
                    let update: Update = Box::new(NatUpdate::new(chosen(pool, statics, hairpin)));
                    drop(nat.update(update, Nanos(now)));
                }
                Event::Sweep => drop(nat.nat.sweep_on(Nanos(now))),
                Event::Pass(seconds) => now += u64::from(seconds) * SECOND,
                Event::Remove(n) => {
                    let all = saved(&nat, Nanos(now));
                    if let Some((table, record)) = all.get(usize::from(n) % all.len().max(1)) {
                        prop_assert!(nat.remove(*table, record, Nanos(now)));
                    }
                }
            }
            let mut owners = std::collections::HashMap::new();
            for (inside, outside) in nat.nat.live(Nanos(now)) {
                let (inside, outside) = (Tuple::of(inside), Tuple::of(outside));
                let owner = (inside.src, inside.src_port);
                let had = owners.insert((outside.protocol, outside.dst, outside.dst_port), owner);
                prop_assert!(had.is_none_or(|had| had == owner), "{:?} and {:?} have {:?}", had, owner, outside);
            }
        }
        drop(nat.update(Box::new(NatUpdate::new(chosen(1, 0, true))), Nanos(now)));
        sweep(&mut nat, Nanos(now));
        let end = Nanos(now + 100_000 * SECOND);
        nat.nat.expire(end, u32::MAX);
        prop_assert_eq!((nat.nat.sessions(), nat.nat.mappings()), (0, 0));
        let ports = (0..4u8).map(|host| external(nat.nat.outbound(&packet(17, host, 5000 + u16::from(host), 9, 0), end)));
        let ports: Vec<_> = ports.map(|found| found.map(|(_, port)| port)).collect();
        prop_assert_eq!(ports, [5000, 5001, 5002, 5003].map(Some));
    }
}

/// A host gets back as many mappings as it may have now.
#[test]
fn a_restart_gives_a_host_no_more_mappings_than_it_may_have() {
    let now = Nanos(1_000 * SECOND);
    let mut before = stage(&config(&["192.0.2.1"]));
    for port in 5000..5010 {
        before.nat.outbound(&packet(17, 1, port, 1, 0), now);
    }
    before.nat.outbound(&packet(17, 2, 5050, 1, 0), now);
    let mut after = stage(&NatConfig { host_mappings: Some(4), ..config(&["192.0.2.1"]) });
    let restored =
        saved(&before, now).iter().filter(|(table, record)| after.restore(*table, record, 0, now)).count();
    assert_eq!((restored, after.nat.sessions(), after.nat.mappings()), (5, 5, 5));
    // With fewer by other settings those that it has go on, and it gets no others.
    let fewer = NatConfig { host_mappings: Some(1), ..config(&["192.0.2.1"]) };
    drop(after.update(Box::new(NatUpdate::new(fewer)), now));
    sweep(&mut after, now);
    assert_eq!(after.nat.mappings(), 5);
    assert_eq!(after.nat.outbound(&packet(17, 2, 6000, 1, 0), now), Verdict::Drop(DropReason::HostMappings));
    assert!(external(after.nat.outbound(&packet(6, 2, 6000, 1, 2), now)).is_some(), "another protocol");
    after.nat.expire(Nanos(100_000 * SECOND), u32::MAX);
    assert_eq!((after.nat.sessions(), after.nat.mappings()), (0, 0));
}

#[test]
fn a_port_that_becomes_static_is_taken_from_whoever_has_it_and_not_given_again() {
    let mut nat = stage(&config(&["192.0.2.1"]));
    let now = Nanos(1_000 * SECOND);
    let out = packet(17, 1, 5001, 1, 0);
    assert_eq!(external(nat.nat.outbound(&out, now)).map(|e| e.1), Some(5001));
    let address = Ipv4Addr::new(192, 0, 2, 1);
    let inside = (Ipv4Addr::new(10, 0, 0, 9), 53);
    let mapping = super::super::StaticMapping::Port { protocol: 17, inside, external: (address, 5001) };
    let with = NatConfig { statics: vec![mapping], ..config(&["192.0.2.1"]) };
    drop(nat.update(Box::new(NatUpdate::new(with)), now));
    sweep(&mut nat, now);
    assert_eq!(nat.nat.sessions(), 0);
    let other = external(nat.nat.outbound(&out, now)).unwrap();
    assert_ne!(other.1, 5001, "the port is the static mapping's");
    // And back: the port is free again.
    drop(nat.update(Box::new(NatUpdate::new(config(&["192.0.2.1"]))), now));
    sweep(&mut nat, now);
    assert_eq!(external(nat.nat.outbound(&packet(17, 2, 5001, 1, 0), now)).map(|e| e.1), Some(5001));
    assert_eq!(external(nat.nat.outbound(&out, now)), Some(other), "a session that may stay does");
}

/// Two reloads come one right after the other: the first one makes a port static, the second one doesn't.
#[test]
fn a_port_that_was_static_for_a_moment_is_given_to_nobody_else() {
    let mut nat = stage(&config(&["192.0.2.1"]));
    let now = Nanos(1_000 * SECOND);
    let out = packet(17, 1, 5001, 1, 0);
    let had = external(nat.nat.outbound(&out, now)).unwrap();
    assert_eq!(had.1, 5001);
    let inside = (Ipv4Addr::new(10, 0, 0, 9), 53);
    let mapping = super::super::StaticMapping::Port {
        protocol: 17,
        inside,
        external: (Ipv4Addr::new(192, 0, 2, 1), 5001),
    };
    let with = NatConfig { statics: vec![mapping], ..config(&["192.0.2.1"]) };
    drop(nat.update(Box::new(NatUpdate::new(with)), now));
    drop(nat.update(Box::new(NatUpdate::new(config(&["192.0.2.1"]))), now));
    sweep(&mut nat, now);
    assert_eq!(external(nat.nat.outbound(&out, now)), Some(had));
    let other = packet(17, 2, 5001, 1, 0);
    let others = external(nat.nat.outbound(&other, now)).unwrap();
    assert_ne!(others, had, "the port is the first host's");
    // Once it has ended, anybody may have it.
    nat.nat.expire(Nanos(10_000 * SECOND), u32::MAX);
    let later = Nanos(10_000 * SECOND);
    assert_eq!(external(nat.nat.outbound(&other, later)), Some(had));
}

/// Sessions between two inside hosts, by external addresses, follow the settings: with `hairpin = false` they
/// end; to an address that is the NAT's no longer they go out, translated; and to one that is its own only
/// now they begin anew.
#[test]
fn sessions_by_external_addresses_follow_the_settings() {
    let now = Nanos(1_000 * SECOND);
    let all = ["192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4"];
    let begin = |nat: &mut NatStage| {
        let of = |nat: &mut NatStage, host| external(nat.nat.outbound(&packet(17, host, 5001, 1, 0), now));
        let (one, host) = (of(nat, 1).unwrap(), 2..20u8);
        let other = host.filter_map(|host| of(nat, host)).find(|other| other.0 != one.0).unwrap();
        let from = Tuple::of(packet(17, 1, 5001, 1, 0).key);
        let key = Tuple { dst: other.0, dst_port: other.1, ..from }.key();
        (one, other, Packet { key, kind: Kind::Opens, tcp_flags: 0 })
    };
    let update = |nat: &mut NatStage, config: NatConfig| {
        drop(nat.update(Box::new(NatUpdate::new(config)), now));
    };
    let goes_to = |verdict| match verdict {
        Verdict::Rewrite { rewrite, .. } => {
            let Tuple { src, dst, .. } = Tuple::of(rewrite.endpoints());
            Some((src, dst))
        }
        _ => None,
    };
    let mut nat = stage(&config(&all));
    let (one, _, hairpin) = begin(&mut nat);
    let (src, dst) = goes_to(nat.nat.outbound(&hairpin, now)).unwrap();
    assert_eq!((src, dst >> 24), (one.0, 10));
    update(&mut nat, NatConfig { hairpin: false, ..config(&all) });
    sweep(&mut nat, now);
    assert_eq!(nat.nat.outbound(&hairpin, now), Verdict::Drop(DropReason::Hairpin));

    let mut nat = stage(&config(&all));
    let (one, other, hairpin) = begin(&mut nat);
    goes_to(nat.nat.outbound(&hairpin, now)).unwrap();
    let without: Vec<&str> =
        all.into_iter().filter(|a| a.parse::<Ipv4Addr>().unwrap().to_bits() != other.0).collect();
    update(&mut nat, config(&without));
    for _ in 0..2 {
        assert_eq!(goes_to(nat.nat.outbound(&hairpin, now)), Some((one.0, other.0)), "never untranslated");
        sweep(&mut nat, now);
    }

    let mut nat = stage(&config(&["192.0.2.1"]));
    let from = Tuple::of(packet(17, 1, 5001, 1, 0).key);
    let dst = Ipv4Addr::new(192, 0, 2, 2).to_bits();
    let to_host = Packet { key: Tuple { dst, ..from }.key(), kind: Kind::Opens, tcp_flags: 0 };
    assert!(goes_to(nat.nat.outbound(&to_host, now)).is_some_and(|(_, to)| to == dst));
    update(&mut nat, config(&["192.0.2.1", "192.0.2.2"]));
    sweep(&mut nat, now);
    assert_eq!(nat.nat.outbound(&to_host, now), Verdict::Drop(DropReason::NoMapping), "nobody is there");
}

/// Sessions between inside hosts end with a restart whose settings don't let them be any more.
#[test]
fn a_restart_brings_no_session_back_between_hosts_that_may_not_reach_each_other() {
    let now = Nanos(1_000 * SECOND);
    let mut before = stage(&config(&["192.0.2.1"]));
    let other = external(before.nat.outbound(&packet(17, 2, 5001, 1, 0), now)).unwrap();
    let from = Tuple::of(packet(17, 1, 5002, 1, 0).key);
    let key = Tuple { dst: other.0, dst_port: other.1, ..from }.key();
    let hairpin = Packet { key, kind: Kind::Opens, tcp_flags: 0 };
    assert!(matches!(before.nat.outbound(&hairpin, now), Verdict::Rewrite { .. }));
    let state = saved(&before, now);
    let restart = |hairpin: bool| {
        let mut after = stage(&NatConfig { hairpin, ..config(&["192.0.2.1"]) });
        let restored = state.iter().filter(|(table, record)| after.restore(*table, record, 0, now)).count();
        (after, restored)
    };
    let (mut may, all) = restart(true);
    assert!(matches!(may.nat.outbound(&hairpin, now), Verdict::Rewrite { .. }));
    let (mut after, restored) = restart(false);
    assert_eq!((all, restored), (state.len(), state.len() - 1));
    assert_eq!(after.nat.outbound(&hairpin, now), Verdict::Drop(DropReason::Hairpin));
}

/// An operator takes a mapping out that strangers keep, as he does a session.
#[test]
fn a_mapping_without_sessions_is_taken_out() {
    let config = NatConfig { inbound_refresh: true, ..config(&["192.0.2.1"]) };
    let (mut nat, begin) = (stage(&config), 1_000 * SECOND);
    let out = packet(17, 1, 5001, 1, 0);
    let had = external(nat.nat.outbound(&out, Nanos(begin))).unwrap();
    let late = Nanos(begin + config.timeouts.udp - SECOND);
    let stranger = packet(17, 1, 5001, 9, 0);
    assert!(matches!(nat.nat.inbound(&answer(&stranger, had, 0), late), Verdict::Rewrite { .. }));
    let all = saved(&nat, late);
    let [(0, session)] = all.as_slice() else { panic!("a session: {all:?}") };
    let of_it = Saved::read(session).unwrap();
    let mut used = Vec::new();
    used.extend(of_it.from.src.to_le_bytes());
    used.extend(of_it.from.src_port.to_le_bytes());
    used.extend([17, 0]);
    used.extend(had.0.to_le_bytes());
    used.extend(had.1.to_le_bytes());
    used.resize(MAPPING, 0);
    assert!(!nat.remove(1, &used, late), "it has a session");
    let later = Nanos(begin + config.timeouts.udp + SECOND);
    nat.expire(later);
    let all = saved(&nat, later);
    let [(1, record)] = all.as_slice() else { panic!("a mapping: {all:?}") };
    assert_eq!((nat.nat.sessions(), nat.nat.mappings()), (0, 1));
    assert!(nat.remove(1, record, later) && !nat.remove(1, record, later));
    assert_eq!(nat.nat.mappings(), 0);
    let verdict = nat.nat.inbound(&answer(&stranger, had, 0), later);
    assert_eq!(verdict, Verdict::Drop(DropReason::NoMapping));
    assert_eq!(external(nat.nat.outbound(&packet(17, 2, 5001, 1, 0), later)), Some(had), "its port is free");
}

#[test]
fn events_tell_of_sessions_from_when_they_are_asked_for() {
    let mut nat = stage(&config(&["192.0.2.1"]));
    let now = Nanos(1_000 * SECOND);
    nat.nat.outbound(&packet(17, 1, 5001, 1, 0), now);
    let room = || Events { sessions: Vec::with_capacity(2), ..Events::default() };
    let mut events = room();
    nat.events(&mut events);
    assert_eq!(events.sessions.len(), 0, "nobody had asked");
    for host in 2..5 {
        nat.nat.outbound(&packet(17, host, 5002, 1, 0), now);
    }
    events = room();
    nat.events(&mut events);
    let first = events.sessions[0];
    assert_eq!((first.begins, first.protocol, first.external.1), (true, 17, 5002));
    assert_eq!((first.inside.0.to_string(), first.remote), ("10.0.0.2".into(), (address(0xc633_6401), 443)));
    assert_eq!((events.sessions.len(), events.missed), (2, 1), "there was room for two");
    nat.nat.expire(Nanos(10_000 * SECOND), u32::MAX);
    events = room();
    nat.events(&mut events);
    assert!(events.sessions.iter().all(|e| !e.begins));
}

/// By the clock sessions end though no packet comes, a second late at most, in slices; and what is told of
/// their end is when it was, not when somebody looked. Without it nothing happens between packets.
#[test]
fn by_the_clock_sessions_end_while_no_packet_comes() {
    let begins = 1_000 * SECOND;
    let config = NatConfig {
        sessions: 2048,
        mappings: 2048,
        host_sessions: 2048,
        ports: 5000..=9000,
        ..config(&["192.0.2.1"])
    };
    let timeout = config.timeouts.udp;
    let opened = |by_clock| {
        let mut nat = Nat::new(&config).unwrap();
        if by_clock {
            nat.go_by_clock();
        }
        NatStage::new(nat)
    };
    let mut still = opened(false);
    still.nat.outbound(&packet(17, 1, 5001, 1, 0), Nanos(begins));
    assert_eq!(still.next_deadline(), Nanos::MAX);
    let mut stage = opened(true);
    assert_eq!(stage.next_deadline(), Nanos::MAX, "there is no session");
    let room = || Events { sessions: Vec::with_capacity(4096), ..Events::default() };
    stage.events(&mut room());
    for host in 0..10 {
        for port in 5000..5100 {
            stage.nat.outbound(&packet(17, host, port, 1, 0), Nanos(begins + u64::from(host)));
        }
    }
    let sessions = stage.nat.sessions();
    assert!(sessions > LOOK, "there are more than a look takes");
    let (mut pool, mut calls) = (Pool::new(), 0);
    let mut now = Nanos(0);
    while stage.next_deadline() < Nanos::MAX {
        now = stage.next_deadline();
        let mut cx = Context { now, pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        stage.on_deadline(&mut FunctionContext { cx: &mut cx, made: &mut Vec::new() });
        calls += 1;
    }
    assert_eq!((stage.nat.sessions(), stage.nat.mappings()), (0, 0));
    let over = begins + timeout;
    assert!((over..over + SECOND + SECOND / 10).contains(&now.0), "{} ns late", now.0 - over);
    // One a second, and some more where a look does not visit all that it comes upon.
    assert!(calls < timeout / SECOND * 13 / 10, "{calls} looks");
    let mut events = room();
    stage.events(&mut events);
    let ends: Vec<_> = events.sessions.iter().filter(|e| !e.begins).collect();
    assert_eq!(ends.len(), sessions as usize);
    assert!(ends.iter().all(|e| e.time.0 == over + u64::from(octet(e.inside.0))), "ends have other times");
}

proptest! {
    /// Sessions that a look ends slice by slice are those that end at one go, with the same counters and the
    /// same events, whatever room there is for these.
    #[test]
    fn sliced_ends_are_those_of_one_go(
        sessions in prop::collection::vec((0..3_u8, 5000..5100_u16, 0..4_u8, any::<bool>(), 0..90 * SECOND), 1..400),
        room in 4..100_usize,
    ) {
        let config = config(&["192.0.2.1", "192.0.2.2"]);
        let (mut whole, mut sliced) = (stage(&config), stage(&config));
        sliced.nat.go_by_clock();
        let mut now = Nanos(1_000 * SECOND);
        let empty = |room| Events { sessions: Vec::with_capacity(room), ..Events::default() };
        whole.events(&mut empty(10_000));
        sliced.events(&mut empty(10_000));
        for (host, port, remote, tcp, gap) in sessions {
            let (protocol, flags) = if tcp { (6, 2) } else { (17, 0) };
            let packet = packet(protocol, host, port, remote, flags);
            // Nothing ends yet.
            now = Nanos(now.0 + gap / 400);
            prop_assert_eq!(whole.nat.outbound(&packet, now), sliced.nat.outbound(&packet, now));
        }
        let told = |events: Events| -> Vec<_> {
            let line = |e: &SessionEvent| (e.time, e.protocol, e.inside, e.external, e.remote);
            let mut ends: Vec<_> = events.sessions.iter().filter(|e| !e.begins).map(line).collect();
            ends.sort_unstable();
            ends
        };
        let taken = |stage: &mut NatStage, room| {
            let mut events = empty(room);
            stage.events(&mut events);
            events
        };
        taken(&mut whole, 10_000);
        taken(&mut sliced, room);
        let late = now.after(250 * SECOND);
        whole.nat.expire(late, u32::MAX);
        let want = taken(&mut whole, 0);
        let (mut at, mut got) = (late, empty(10_000));
        while sliced.nat.sessions() > whole.nat.sessions() || sliced.nat.mappings() > whole.nat.mappings() {
            sliced.nat.look(at);
            at = at.after(1000);
            if sliced.nat.events.as_ref().is_some_and(|e| e.sessions.len() >= room - room / 4) {
                got.sessions.extend(taken(&mut sliced, room).sessions);
            }
        }
        let rest = taken(&mut sliced, 0);
        prop_assert_eq!(rest.missed, 0);
        got.sessions.extend(rest.sessions);
        prop_assert_eq!(told(got), told(want));
        prop_assert_eq!(saved(&whole, late), saved(&sliced, late));
        prop_assert_eq!(whole.nat.counters(), sliced.nat.counters());
    }
}

/// Ends wait for room among the events, which nobody takes for a while, but not for ever; and they leave room
/// for sessions that begin meanwhile.
#[test]
fn ends_wait_for_room_among_the_events() {
    let config = config(&["192.0.2.1"]);
    let mut stage = stage(&config);
    stage.nat.go_by_clock();
    let begins = Nanos(1_000 * SECOND);
    let room = || Events { sessions: Vec::with_capacity(40), ..Events::default() };
    let mut events = Events { sessions: Vec::with_capacity(1000), ..Events::default() };
    stage.events(&mut events);
    for n in 0..100 {
        stage.nat.outbound(&packet(17, (n % 2) as u8, 5000 + n, 1, 0), begins);
    }
    stage.events(&mut room());
    let over = begins.after(config.timeouts.udp);
    for n in 0..10 {
        stage.nat.look(over.after(n * SECOND / 100));
    }
    assert_eq!(stage.nat.sessions(), 70, "a quarter of the room is for those that begin");
    stage.nat.outbound(&packet(17, 5, 5005, 1, 0), over);
    assert_eq!(stage.nat.sessions(), 70 - FEW + 1, "few are missed for the sake of one");
    let mut events = room();
    stage.events(&mut events);
    assert_eq!((events.sessions.len(), events.missed), (35, 0));
    stage.nat.look(over);
    assert_eq!(stage.nat.sessions(), 67 - 30);
    stage.nat.look(over);
    stage.nat.look(over.after(WAIT_FOR_ROOM));
    assert_eq!(stage.nat.sessions(), 1, "nobody asks any longer");
}

/// Whoever ends all sessions hears of each, those included whose time has passed.
#[test]
fn all_sessions_end_in_slices() {
    let (now, timeout) = (Nanos(1_000 * SECOND), config(&[]).timeouts.udp);
    let mut nat = stage(&config(&["192.0.2.1"]));
    nat.events(&mut Events { sessions: Vec::with_capacity(99), ..Events::default() });
    let late = now.after(timeout + SECOND);
    for host in 1..20 {
        nat.nat.outbound(&packet(17, host, 5002, 1, 0), if host == 7 { now } else { late });
    }
    let (mut from, mut slices) = (Some(0), 0);
    while let Some(at) = from {
        from = nat.end_all(at, 4, late.after(5));
        slices += 1;
    }
    assert_eq!((slices, nat.nat.sessions(), nat.nat.mappings()), (5, 0, 0));
    let mut events = Events::default();
    nat.events(&mut events);
    let ends = events.sessions.iter().filter(|e| !e.begins);
    let seen: Vec<_> = ends.map(|e| (octet(e.inside.0), e.time)).collect();
    let want: Vec<_> =
        (1..20).map(|host| (host, if host == 7 { now.after(timeout) } else { late.after(5) })).collect();
    let (mut seen, mut want) = (seen, want);
    seen.sort_unstable();
    want.sort_unstable();
    assert_eq!(seen, want);
}
