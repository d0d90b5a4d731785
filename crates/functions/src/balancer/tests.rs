use std::collections::HashMap;
use std::net::Ipv6Addr;

use proptest::prelude::*;

use super::super::table::NONE;
use super::*;
use crate::nat::Packet;
use crate::test_packets::{ipv4, tcp};

fn key(n: u32) -> FlowKey {
    FlowKey::new(&[], Ipv4Addr::from_bits(0x0a00_0000 + n).into(), [192, 0, 2, 1].into(), 6, 5000, 80)
        .unwrap()
}

fn backend(n: u8, weight: u32, healthy: bool) -> Backend {
    Backend { address: [10, 1, 0, n].into(), weight, healthy }
}

const CONFIG: BalancerConfig = BalancerConfig { places: 1009, connections: 64, idle: 1_000_000_000, seed: 3 };

proptest! {
    /// A connection stays with its backend while both live; a map knows where it was.
    #[test]
    fn connections_stay(
        steps in proptest::collection::vec((0..100_u32, 0..400_000_000_u64, prop::option::weighted(0.1, any::<[(u8, bool); 5]>())), 1..200),
    ) {
        let all: Vec<Backend> = (0..5).map(|n| backend(n, 1, true)).collect();
        let mut balancer = Balancer::new(&CONFIG, all.clone()).unwrap();
        let mut listed = all;
        let mut twin: HashMap<u32, (IpAddr, u64)> = HashMap::new();
        let mut numbers: HashMap<u32, u32> = HashMap::new();
        let mut now = 1 << 60;
        for (n, gap, change) in steps {
            now += gap;
            if let Some(states) = change {
                let backends = (0..5).zip(states).filter(|(_, (w, _))| w % 4 != 3);
                listed = backends.map(|(n, (w, healthy))| backend(n, u32::from(w % 4), healthy)).collect();
                let by = usize::from(states[0].0) % listed.len().max(1);
                listed.rotate_left(by);
                balancer.set_backends(listed.clone(), Nanos(now)).unwrap();
            }
            // The number that the connection had last, or any: it only says where to look first.
            let known = numbers.get(&n).copied().unwrap_or(n);
            let chosen = balancer.choose(&key(n), known, Nanos(now));
            numbers.extend(chosen.and_then(|c| c.connection).map(|id| (n, id)));
            let works = |a: &IpAddr| listed.iter().any(|b| b.address == *a && b.healthy);
            let chosen = chosen.map(|c| balancer.backends()[c.backend as usize]);
            let before = twin.get(&n).filter(|(a, deadline)| *deadline > now && works(a)).copied();
            let fresh = Maglev::new(&listed.iter().map(Backend::member).collect::<Vec<_>>(), 1009).unwrap();
            let fresh = fresh.backend(key(n).hash(PLACE_SEED)).map(|at| listed[at as usize]);
            match (before, chosen) {
                // Beyond 64 connections the table may not know it any more.
                (Some((address, _)), Some(chosen)) => {
                    prop_assert!(chosen.address == address || twin.len() > 64 && Some(chosen) == fresh);
                }
                (_, chosen) => prop_assert_eq!(chosen, fresh),
            }
            if let Some(chosen) = chosen {
                prop_assert!(chosen.healthy);
                twin.insert(n, (chosen.address, now + CONFIG.idle));
            }
        }
    }
}

/// A list that is refused changes nothing.
#[test]
fn a_list_with_more_backends_than_places_is_refused() {
    let mut balancer =
        Balancer::new(&BalancerConfig { places: 3, ..CONFIG }, vec![backend(1, 1, true)]).unwrap();
    let many = (0..4).map(|n| backend(n, 1, true)).collect();
    let refused = balancer.set_backends(many, Nanos(5)).unwrap_err();
    assert_eq!(refused, MaglevError::TooMany { members: 4, size: 3 });
    assert_eq!(balancer.backends(), [backend(1, 1, true)]);
}

#[test]
fn a_full_table_still_balances() {
    let mut balancer = Balancer::new(&CONFIG, (0..3).map(|n| backend(n, 1, true)).collect()).unwrap();
    let seen: Vec<_> = (0..300).map(|n| balancer.choose(&key(n), NONE, Nanos(5)).unwrap().backend).collect();
    assert_eq!((balancer.connections(), balancer.counters().displaced), (64, 236));
    assert!((0..3).all(|b| seen.iter().filter(|s| **s == b).count() > 60));
    let again: Vec<_> = (0..300).map(|n| balancer.choose(&key(n), n, Nanos(6)).unwrap().backend).collect();
    assert_eq!(seen, again);
    // All that are remembered have a second packet.
    for n in 0..300 {
        let known = balancer.affinity.find(&key(n), balancer.affinity.hash(&key(n)));
        known.into_iter().for_each(|id| balancer.extend(id, Nanos(6)));
    }
    let before = *balancer.counters();
    let new = balancer.choose(&key(300), NONE, Nanos(7)).unwrap();
    assert_eq!((balancer.connections(), new.connection), (64, None));
    assert_eq!(balancer.counters(), &BalancerCounters { unremembered: before.unremembered + 1, ..before });
    assert_eq!(Balancer::new(&CONFIG, vec![]).unwrap().choose(&key(1), NONE, Nanos(1)), None);
}

/// Connections that go on keep their places, and new ones find one, however many have one packet only.
#[test]
fn a_flood_of_first_packets_displaces_none_that_goes_on() {
    let listed = |weight| (0..3).map(|n| backend(n, if n > 0 { 1 } else { weight }, true)).collect();
    let mut balancer = Balancer::new(&CONFIG, listed(1)).unwrap();
    let (mut forged, mut had) = (1000.., Vec::new());
    for n in 0..40 {
        for from in forged.by_ref().take(100) {
            balancer.choose(&key(from), NONE, Nanos(5)).unwrap();
        }
        had.push(balancer.choose(&key(n), NONE, Nanos(5)).unwrap());
        // As two packets on their own, and as two of a train.
        let id = had[n as usize].connection.unwrap();
        if n % 2 == 0 {
            assert_eq!(balancer.choose(&key(n), id, Nanos(6)), Some(had[n as usize]));
        } else {
            balancer.extend(id, Nanos(6));
        }
    }
    // One of the backends drains: its connections are not where the table would put them.
    balancer.set_backends(listed(0), Nanos(7)).unwrap();
    for from in forged.take(1000) {
        balancer.choose(&key(from), NONE, Nanos(7)).unwrap();
    }
    let again: Vec<_> = (0..40).map(|n| balancer.choose(&key(n), NONE, Nanos(7)).unwrap()).collect();
    assert_eq!((again, balancer.counters().unremembered), (had, 0));
    assert!(balancer.forget(&key(3)) && !balancer.forget(&key(3)));
    balancer.expire(Nanos(2 * CONFIG.idle), u32::MAX);
    assert_eq!((balancer.connections(), balancer.young.len()), (0, 0));
}

/// A connection has one backend by whatever VLANs its packets come, at this balancer and at others.
#[test]
fn vlans_are_no_part_of_a_connection() {
    let listed = |weight| (0..5).map(|n| backend(n, if n > 0 { 1 } else { weight }, true)).collect();
    let new = || Balancer::new(&CONFIG, listed(1)).unwrap();
    let (mut balancer, tags): (_, [&[u16]; 4]) = (new(), [&[], &[7], &[8], &[7, 8]]);
    let six = |n| ([0x2001, 0xdb8, 0, 0, 0, 0, 0, n].into(), Ipv6Addr::LOCALHOST.into());
    let four = |n| ([10, 0, 0, n as u8].into(), [192, 0, 2, 1].into());
    let keys = |n: u16, tags: &[u16]| {
        let (from, to): (IpAddr, IpAddr) = if n < 30 { six(n) } else { four(n) };
        FlowKey::new(tags, from, to, 6, 5000, 80).unwrap()
    };
    let had: Vec<_> = (0..60).map(|n| balancer.choose(&keys(n, &[]), NONE, Nanos(5))).collect();
    for tags in tags {
        let other: Vec<_> = (0..60).map(|n| new().choose(&keys(n, tags), NONE, Nanos(5)).unwrap()).collect();
        assert!(other.iter().zip(&had).all(|(other, had)| had.is_some_and(|h| h.backend == other.backend)));
    }
    // One of the backends drains: its connections are not where the table would put them.
    balancer.set_backends(listed(0), Nanos(6)).unwrap();
    for tags in tags {
        let again: Vec<_> = (0..60).map(|n| balancer.choose(&keys(n, tags), NONE, Nanos(6))).collect();
        assert_eq!(again, had);
        let errors: Vec<_> = (0..60).map(|n| balancer.backend_of(&keys(n, tags), Nanos(6))).collect();
        assert!(errors.iter().zip(&had).all(|(error, had)| *error == had.map(|had| had.backend)));
    }
    assert_eq!((balancer.connections(), balancer.counters().connections), (60, 60));
    assert!(balancer.forget(&keys(3, &[9])) && !balancer.forget(&keys(3, &[])));
}

#[test]
fn nat_mode_there_and_back() {
    let mode = NatMode { protocol: 6, service: ([192, 0, 2, 1].into(), 80), port: 8080 };
    let (client, backend) = (0x0808_0808, Ipv4Addr::new(10, 1, 0, 1));
    let service = mode.service.0.to_bits();
    let mut request = ipv4(6, client, service, &tcp(5000, 80, 2, b""));
    let packet = Packet::read(&request, 0).unwrap();
    mode.to_backend(packet.key, backend).unwrap().apply(&mut request, 0, 20).unwrap();
    assert_eq!(request, ipv4(6, client, backend.to_bits(), &tcp(5000, 8080, 2, b"")));
    let mut reply = ipv4(6, backend.to_bits(), client, &tcp(8080, 5000, 18, b"x"));
    let packet = Packet::read(&reply, 0).unwrap();
    mode.from_backend(packet.key).unwrap().apply(&mut reply, 0, 20).unwrap();
    assert_eq!(reply, ipv4(6, service, client, &tcp(80, 5000, 18, b"x")));
    assert_eq!(mode.to_backend(packet.key, backend), None);
}
