use std::collections::{BTreeMap, BTreeSet};

use super::*;
use proptest::prelude::*;

fn key(n: u8) -> FlowKey {
    if n.is_multiple_of(2) {
        FlowKey::Narrow(NarrowKey([u64::from(n), 17 << 24]))
    } else {
        FlowKey::Wide(WideKey([1, 2, 3, u64::from(n), 6 << 16, 0, 0]))
    }
}

const IDLE: u64 = 2_000_000_000;
const ACTIVE: u64 = 5_000_000_000;

proptest! {
    /// Keys come out of the table as they went in, and are told from each other as before.
    #[test]
    fn packed_keys_are_the_same(
        vlans in proptest::collection::vec(0..4_u16, 0..3), six in any::<bool>(), a in 0..2_u8, b in 0..2_u8,
        protocol in prop_oneof![Just(6_u8), Just(17), Just(0)], ports in (0..2_u16, 0..2_u16), change in 0..5_u8,
    ) {
        let key = |a: u8, b: u8, vlans: &[u16], src_port| {
            let address = |n: u8| -> std::net::IpAddr {
                if six { std::net::Ipv6Addr::from_bits(n.into()).into() } else { [0, 0, 0, n].into() }
            };
            FlowKey::new(vlans, address(a), address(b), protocol, src_port, ports.1).unwrap()
        };
        let one = key(a, b, &vlans, ports.0);
        let other = match change {
            0 => key(1 - a, b, &vlans, ports.0),
            1 => key(a, 1 - b, &vlans, ports.0),
            2 => key(a, b, &vlans, 1 - ports.0),
            3 => key(a, b, &[&vlans[..], &[3]].concat(), ports.0),
            _ => one,
        };
        prop_assert_eq!(Packed::new(&one).key(), one);
        prop_assert_eq!(Packed::new(&one) == Packed::new(&other), one == other);
        prop_assert_eq!(Packed::new(&one).hash(5), one.hash64(5));
    }

    /// Flows that end slice by slice, some of them behind their time, give the records of those that end at
    /// one go.
    #[test]
    fn sliced_ends_are_those_of_one_go(
        packets in proptest::collection::vec((any::<u8>(), 0..20_000_000_u64), 1..300),
        visits in 1..20_u32,
        late in 0..3 * ACTIVE,
    ) {
        let config = FlowStatsConfig { flows: 300, idle: IDLE, active: ACTIVE, seed: 5 };
        let (mut whole, mut sliced) = (FlowStats::new(&config), FlowStats::new(&config));
        let mut records: [Vec<FlowRecord>; 2] = Default::default();
        let mut now = 1 << 60;
        for (n, gap) in packets {
            now += gap;
            let at = Nanos(now);
            let seen = Observed { packets: 1, bytes: 9, tcp_flags: n, tos: n, first: at, last: at };
            for (stats, records) in [&mut whole, &mut sliced].into_iter().zip(&mut records) {
                stats.count(&key(n), stats.hash(&key(n)), &seen, &mut |r| records.push(*r));
            }
        }
        let now = Nanos(now + late);
        let [all, parts] = &mut records;
        prop_assert!(!whole.expire(now, u32::MAX, &mut |r| all.push(*r)));
        while sliced.expire(now, visits, &mut |r| parts.push(*r)) {}
        prop_assert_eq!(whole.flows(), sliced.flows());
        prop_assert_eq!(all, parts);
    }

    /// Every packet is in one record, and records are cut where the packets of the flow say so: never
    /// within a stretch that no timeout ends, always after one that the idle timeout does.
    #[test]
    fn every_packet_is_counted_once(
        packets in proptest::collection::vec((0..20_u8, 1..5_u64, any::<u8>(), 0..900_000_000_u64), 1..300),
        flows in prop_oneof![Just(100_u32), 1..20_u32],
    ) {
        let config = FlowStatsConfig { flows, idle: IDLE, active: ACTIVE, seed: 5 };
        let mut stats = FlowStats::new(&config);
        let mut records: Vec<FlowRecord> = vec![];
        let mut sent: BTreeMap<FlowKey, Vec<Observed>> = BTreeMap::new();
        let mut now = 1 << 60;
        for (n, packets, tcp_flags, gap) in packets {
            now += gap;
            let seen = Observed {
                packets, bytes: packets * 100 + 1, tcp_flags, tos: n, first: Nanos(now), last: Nanos(now + 1000),
            };
            stats.count(&key(n), stats.hash(&key(n)), &seen, &mut |r| records.push(*r));
            sent.entry(key(n)).or_default().push(seen);
            stats.expire(Nanos(now), 3, &mut |r| records.push(*r));
            prop_assert!(stats.flows() <= flows);
        }
        stats.drain(&mut |r| records.push(*r));
        prop_assert_eq!(stats.flows(), 0);
        for (key, all) in sent {
            let mut rest = &all[..];
            for record in records.iter().filter(|r| r.key == key) {
                let end = rest.partition_point(|o| o.last <= record.last);
                let (these, later) = rest.split_at(end);
                prop_assert!(!these.is_empty());
                prop_assert_eq!(record.packets, these.iter().map(|o| o.packets).sum::<u64>());
                prop_assert_eq!(record.bytes, these.iter().map(|o| o.bytes).sum::<u64>());
                prop_assert_eq!(record.tcp_flags, these.iter().fold(0, |all, o| all | o.tcp_flags));
                prop_assert_eq!((record.first, record.tos), (these[0].first, these[0].tos));
                for pair in these.windows(2) {
                    prop_assert!(pair[1].first < pair[0].last.after(IDLE), "silence within a record");
                    prop_assert!(pair[1].first < record.first.after(ACTIVE), "a record beyond its time");
                }
                let next = later.first().map(|o| o.first);
                match record.reason {
                    EndReason::Idle => prop_assert!(next.is_none_or(|n| n >= record.last.after(IDLE))),
                    EndReason::Active => prop_assert!(next.is_none_or(|n| n >= record.first.after(ACTIVE))),
                    EndReason::Forced => prop_assert!(next.is_none()),
                    EndReason::Resources => prop_assert!(flows < 20),
                }
                rest = later;
            }
            prop_assert!(rest.is_empty(), "packets in no record");
        }
        let keys: BTreeSet<_> = records.iter().map(|r| r.key).collect();
        prop_assert!(keys.len() <= 20);
    }
}

#[test]
fn a_long_flow_is_handed_out_as_it_lasts() {
    let mut stats = FlowStats::new(&FlowStatsConfig { flows: 4, idle: IDLE, active: ACTIVE, seed: 1 });
    let mut records = vec![];
    for second in 0..12 {
        let at = Nanos(second * 1_000_000_000);
        let seen = Observed { packets: 1, bytes: 10, first: at, last: at, ..Observed::default() };
        stats.count(&key(2), stats.hash(&key(2)), &seen, &mut |r| records.push((r.packets, r.reason)));
    }
    stats.expire(Nanos(14_000_000_000), 100, &mut |r| records.push((r.packets, r.reason)));
    assert_eq!(records, [(5, EndReason::Active), (5, EndReason::Active), (2, EndReason::Idle)]);
}

/// Behind a record that the active timeout has ended, a train may last longer than the record that it begins.
#[test]
fn a_record_that_begins_ends_by_the_active_timeout_wherever_silence_lasts_longer() {
    let (idle, active) = (ACTIVE, IDLE);
    let mut stats = FlowStats::new(&FlowStatsConfig { flows: 4, idle, active, seed: 1 });
    let count = |stats: &mut FlowStats, at: Nanos| {
        let seen = Observed { packets: 1, first: at, last: at, ..Observed::default() };
        stats.count(&key(2), stats.hash(&key(2)), &seen, &mut |_| {});
    };
    let known = |stats: &FlowStats| stats.table.find(&Packed::new(&key(2)), stats.hash(&key(2)));
    count(&mut stats, Nanos(0));
    stats.expire(Nanos(active + 100_000_000), 100, &mut |_| {});
    let again = Nanos(active + 200_000_000);
    let until = stats.holds_until(known(&stats), again);
    count(&mut stats, again);
    assert_eq!(until, again.after(active), "as a decision about the first packet alone");
    assert_eq!(stats.holds_until(known(&stats), again), until);
}
