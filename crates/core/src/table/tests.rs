use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A key whose hash takes few values, so that clusters form and tags collide.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Colliding(u16);

impl Key for Colliding {
    fn hash(&self, seed: u64) -> u64 {
        (u64::from(self.0) % 7).wrapping_mul(seed) << 33
    }
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Insert(u16, u64),
    Remove(u16),
    Extend(u16, u64),
    Shorten(u16, u64),
    Pass(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let key = 0..50_u16;
    // From below a tick to far beyond the wheel.
    let time = prop_oneof![0..100_u64, 0..200_000_000_u64, 0..300_000_000_000_u64];
    let op = prop_oneof![
        4 => (key.clone(), time.clone()).prop_map(|(k, t)| Op::Insert(k, t)),
        1 => key.clone().prop_map(Op::Remove),
        2 => (key.clone(), time.clone()).prop_map(|(k, t)| Op::Extend(k, t)),
        1 => (key, time.clone()).prop_map(|(k, t)| Op::Shorten(k, t)),
        2 => time.prop_map(Op::Pass),
    ];
    proptest::collection::vec(op, 1..300)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Against a map of key to value and deadline.
    #[test]
    fn equals_a_map(ops in ops(), limit in 1..40_u32, seed in 1_u64.., start in prop_oneof![Just(0), Just(1 << 60)]) {
        const TICK: u64 = 1 << 26;
        let mut table: Table<Colliding, usize> = Table::new(limit, seed);
        let mut twin: BTreeMap<Colliding, (usize, u64)> = BTreeMap::new();
        // The numbers that keys ever had.
        let mut numbers: BTreeSet<(Colliding, u32)> = BTreeSet::new();
        let mut now = start;
        for (n, op) in ops.into_iter().enumerate() {
            match op {
                Op::Insert(k, t) => {
                    let key = Colliding(k);
                    if twin.contains_key(&key) {
                        continue;
                    }
                    let done = table.insert(key, table.hash(&key), n, Nanos(now + t));
                    prop_assert_eq!(done.is_err(), twin.len() == limit as usize);
                    if done.is_ok() {
                        twin.insert(key, (n, now + t));
                    }
                }
                Op::Remove(k) => {
                    let key = Colliding(k);
                    let id = table.find(&key, table.hash(&key)).unwrap_or(NONE);
                    let removed = table.remove(id);
                    prop_assert_eq!(removed, twin.remove(&key).map(|(value, _)| (key, value)));
                    prop_assert_eq!(table.remove(id), None, "twice");
                }
                Op::Extend(k, t) => {
                    let key = Colliding(k);
                    if let Some(id) = table.find(&key, table.hash(&key)) {
                        table.extend(id, Nanos(now + t));
                        let (_, deadline) = twin.get_mut(&key).unwrap();
                        *deadline = (*deadline).max(now + t);
                    }
                }
                Op::Shorten(k, t) => {
                    let key = Colliding(k);
                    if let Some(id) = table.find(&key, table.hash(&key)) {
                        table.set_deadline(id, Nanos(now + t));
                        twin.get_mut(&key).unwrap().1 = now + t;
                    }
                }
                Op::Pass(t) => {
                    now += t;
                    let mut visits = u32::MAX;
                    while let Some(id) = table.next_due(Nanos(now), &mut visits) {
                        let (key, value) = table.remove(id).unwrap();
                        let (expected, deadline) = twin.remove(&key).expect("it is there");
                        prop_assert_eq!(value, expected);
                        prop_assert!(deadline <= now, "too early");
                    }
                    for (_, deadline) in twin.values() {
                        prop_assert!(*deadline + TICK > now, "too late");
                    }
                }
            }
            prop_assert_eq!(table.len() as usize, twin.len());
            prop_assert_eq!(table.index.used(), twin.len());
            prop_assert_eq!(table.ids().count(), twin.len());
            for (key, (value, deadline)) in &twin {
                let id = table.find(key, table.hash(key)).expect("it is there");
                prop_assert_eq!(table.get(id), Some(value));
                prop_assert_eq!(table.deadline(id), Nanos(*deadline));
                prop_assert_eq!(table.is_due(id, Nanos(now)), *deadline <= now);
                numbers.insert((*key, id));
            }
            for (key, id) in &numbers {
                let holds = table.find(key, table.hash(key)) == Some(*id) && !table.is_due(*id, Nanos(now));
                prop_assert_eq!(table.holds(*id, key, Nanos(now)), holds);
            }
        }
    }
}

#[test]
fn a_full_table_refuses_and_says_whom_to_give_up() {
    let mut table: Table<u64, ()> = Table::new(4, 9);
    for n in 0..4_u64 {
        let hash = table.hash(&n);
        table.insert(n, hash, (), Nanos(1_000_000_000 * (10 - n))).unwrap();
    }
    assert_eq!(table.insert(9, table.hash(&9), (), Nanos(1)), Err(Full));
    assert_eq!(table.soonest().and_then(|id| table.key(id).copied()), Some(3));
    table.extend(table.find(&3, table.hash(&3)).unwrap(), Nanos(60_000_000_000));
    assert_eq!(table.soonest().and_then(|id| table.key(id).copied()), Some(2));
}

/// Flows chosen to collide under the seed that replays have cost, under a secret one, what random flows do;
/// under the public one they would cost a walk through thousands of slots each, which is counted.
#[test]
fn chosen_flows_cost_no_more_than_random_ones_under_a_secret_seed() {
    const FLOWS: usize = 60_000;
    let mut state = 9_u64;
    let mut random = || {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        state ^ state >> 29
    };
    let mut flow = || NarrowKey([random(), (random() & 0xffff_ffff) << 32 | 17 << 24]);
    let anything: Vec<_> = core::iter::repeat_with(&mut flow).take(FLOWS).collect();
    // All of them have their first slot among 4096 of 262,144.
    let chosen = |flow: &NarrowKey| flow.hash(1) >> 58 == 0;
    let chosen: Vec<_> = core::iter::repeat_with(&mut flow).filter(chosen).take(FLOWS).collect();
    let filled = |flows: &[NarrowKey], seed| {
        let mut table: Table<NarrowKey, ()> = Table::new(1 << 17, seed);
        for flow in flows {
            table.insert(*flow, table.hash(flow), (), Nanos::MAX).unwrap();
        }
        (table.index.probes() as f64 / FLOWS as f64, table.long_probes())
    };
    let (usual, far) = filled(&anything, 1);
    assert!(usual < 1.5 && far == 0, "random flows: {usual} probes a look-up, {far} far");
    let secret = crate::seed::Seeds::Secret.draw().unwrap();
    let (attacked, far) = filled(&chosen, secret);
    assert!(attacked < 1.2 * usual && far == 0, "chosen flows: {attacked} probes a look-up, {far} far");
    // Were the seed known, each look-up would read half of the cluster; fewer flows show it as well.
    let (known, far) = filled(&chosen[..12_000], 1);
    assert!(known > 500.0 && far > 6000, "seed known: {known} probes a look-up, {far} far");
}

#[test]
fn visits_are_bounded() {
    let mut table: Table<u64, ()> = Table::new(100, 9);
    for n in 0..100 {
        table.insert(n, table.hash(&n), (), Nanos(5)).unwrap();
    }
    let mut visits = 30;
    let mut due = 0;
    while let Some(id) = table.next_due(Nanos(1 << 40), &mut visits) {
        table.remove(id);
        due += 1;
    }
    assert_eq!((due, visits, table.len()), (30, 0, 70));
}

#[test]
fn an_entry_of_a_nat_is_one_cache_line() {
    assert_eq!(size_of::<Entry<NarrowKey, [u64; 5]>>(), 64);
}
