//! The table beside a slow twin that keeps every payload it was ever given.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::TokenKey;

fn config(entries: u32, ttl: u16) -> SliceConfig {
    SliceConfig { entries, ttl, key: TokenKey::from_seed(3), ..SliceConfig::default() }
}

/// Parks a payload that is known by its length, if there is room.
fn park(table: &mut PayloadTable, now: u64, len: u16) -> Option<Token> {
    let place = table.place(Nanos(now))?;
    let token = table.token(&place);
    let parked = Parked { len, ..Parked::default() };
    let held =
        Held { buf: BufId(u32::from(len)), len: u32::from(len), in_place: true, start: u64::from(len) << 40 };
    table.park_any(place, Nanos(now), parked, held);
    Some(token)
}

fn splice(table: &mut PayloadTable, token: Token, now: u64) -> Result<u16, Refusal> {
    let found = table.find(token, Nanos(now))?;
    let len = u32::from(found.parked.len);
    assert_eq!(found.held, Held { buf: BufId(len), len, in_place: true, start: u64::from(len) << 40 });
    table.leave_any(found.entry);
    Ok(found.parked.len)
}

#[derive(Clone, Debug)]
enum Op {
    Park,
    /// The packet of the token that was made so many tokens ago comes back.
    Splice(usize),
    Release(usize),
    Wait(u64),
    Reset,
    /// A batch begins.
    Batch,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Park),
        4 => (0usize..12).prop_map(Op::Splice),
        2 => (0usize..12).prop_map(Op::Release),
        1 => (0u64..500).prop_map(Op::Wait),
        1 => Just(Op::Reset),
        1 => Just(Op::Batch),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fate {
    Waiting { ttl: u16, since: u64 },
    Spliced,
    Released,
    Expired,
}

/// Every payload ever parked: its entry, its token, what became of it.
#[derive(Default)]
struct Twin {
    all: Vec<(u32, Token, Fate)>,
    next: u32,
    /// Entries that were looked at for the same batch, once there are batches.
    looked_at: Option<BTreeSet<u32>>,
    /// When that batch began.
    began: Option<u64>,
}

impl Twin {
    fn last_of(&self, entry: u32) -> Option<usize> {
        self.all.iter().rposition(|p| p.0 == entry)
    }

    fn park(&mut self, entries: u32, ttl: u16, max_age: u64, now: u64) -> Option<u32> {
        let entry = self.next;
        self.next = (self.next + 1) % entries;
        let again = self.looked_at.as_mut().is_some_and(|all| !all.insert(entry));
        if let Some(at) = self.last_of(entry)
            && let Fate::Waiting { ttl, since } = &mut self.all[at].2
        {
            // A payload that was parked for the same batch has not been handed on yet.
            if now - *since > max_age && self.began.is_none_or(|began| *since < began) {
                self.all[at].2 = Fate::Expired;
            } else if again {
                return None;
            } else {
                *ttl -= 1;
                if *ttl == 0 {
                    self.all[at].2 = Fate::Expired;
                }
                return None;
            }
        }
        self.all.push((entry, Token(0), Fate::Waiting { ttl, since: now }));
        Some(entry)
    }

    fn outcome(&self, at: usize, max_age: u64, now: u64) -> Result<u16, Refusal> {
        let (entry, _, fate) = self.all[at];
        if self.last_of(entry) != Some(at) {
            return Err(Refusal::Stale);
        }
        match fate {
            Fate::Waiting { since, .. } if now - since <= max_age => Ok(at as u16),
            Fate::Waiting { .. } | Fate::Expired => Err(Refusal::Late),
            Fate::Spliced => Err(Refusal::Duplicate),
            Fate::Released => Err(Refusal::Released),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 400 }))]

    #[test]
    fn the_table_is_as_its_twin_says(
        entries in 1u32..8,
        ttl in 1u16..5,
        max_age in prop_oneof![Just(None), (0u64..2000).prop_map(Some)],
        paper in any::<bool>(),
        ops in prop::collection::vec(op(), 0..300),
    ) {
        let mode = if paper { TokenMode::Paper } else { TokenMode::Keyed };
        let config = SliceConfig { max_age_ns: max_age, mode, ..config(entries, ttl) };
        let max_age = max_age.unwrap_or(u64::MAX);
        let mut table = PayloadTable::new(&config, 0).unwrap();
        let (mut twin, mut now, mut freed) = (Twin::default(), 0, Vec::new());
        for op in ops {
            match op {
                Op::Park => {
                    let len = twin.all.len() as u16;
                    let token = park(&mut table, now, len);
                    prop_assert_eq!(token.is_some(), twin.park(entries, ttl, max_age, now).is_some());
                    if let Some(token) = token {
                        prop_assert!(twin.all.iter().all(|p| p.1 != token), "a token came twice");
                        twin.all.last_mut().unwrap().1 = token;
                    }
                }
                Op::Splice(ago) => {
                    let Some(at) = twin.all.len().checked_sub(ago + 1) else { continue };
                    let expected = twin.outcome(at, max_age, now);
                    prop_assert_eq!(splice(&mut table, twin.all[at].1, now), expected);
                    if expected.is_ok() {
                        twin.all[at].2 = Fate::Spliced;
                    }
                }
                Op::Release(ago) => {
                    let Some(at) = twin.all.len().checked_sub(ago + 1) else { continue };
                    // One that is overdue, but still there, can be released.
                    let expected = twin.outcome(at, u64::MAX, now);
                    prop_assert_eq!(table.release(twin.all[at].1).err(), expected.err());
                    if expected.is_ok() {
                        twin.all[at].2 = Fate::Released;
                    }
                }
                Op::Wait(ns) => now += ns,
                Op::Batch => {
                    table.begin_batch(Nanos(now));
                    twin.looked_at = Some(BTreeSet::new());
                    twin.began = Some(now);
                }
                Op::Reset => {
                    table.reset();
                    for payload in twin.all.iter_mut().filter(|p| matches!(p.2, Fate::Waiting { .. })) {
                        payload.2 = Fate::Expired;
                    }
                }
            }
            freed.append(table.given_up());
            table.audit().unwrap();
        }
        let waiting = twin.all.iter().filter(|p| matches!(p.2, Fate::Waiting { .. })).count();
        prop_assert_eq!(table.waiting() as usize, waiting);
        // The buffer of every payload that was given up came back, once.
        let mut given_up: Vec<u32> = freed.iter().map(|b| b.0).collect();
        given_up.sort_unstable();
        let expected: Vec<u32> = (0..).zip(&twin.all).filter(|(_, p)| matches!(p.2, Fate::Released | Fate::Expired))
            .map(|(at, _)| at).collect();
        prop_assert_eq!(given_up, expected);
    }
}

/// A generation of 24 bits comes round again after 2²⁴ payloads in the same entry; until then no token is
/// like another.
#[test]
fn generations_wrap() {
    let mut table = PayloadTable::new(&config(1, 1), 0).unwrap();
    let last = (1 << 24) - 1;
    let generation = |generation| Fields { worker: 0, entry: 0, generation };
    table.entries[0].token = table.format.make(generation(last - 1));
    let before = park(&mut table, 0, 1).unwrap();
    assert_eq!(splice(&mut table, before, 0), Ok(1));
    let first = park(&mut table, 0, 2).unwrap();
    assert_eq!(table.format.read(before).unwrap().generation, last);
    assert_eq!(table.format.read(first).unwrap().generation, 0);
    // The one from before the wrap is the older one.
    assert_eq!(splice(&mut table, before, 0), Err(Refusal::Stale));
    assert_eq!(splice(&mut table, first, 0), Ok(2));
    // All the way round: the same token again.
    let one = park(&mut table, 0, 3).unwrap();
    splice(&mut table, one, 0).unwrap();
    table.entries[0].token = table.format.make(generation(0));
    assert_eq!(park(&mut table, 0, 4), Some(one));
}

/// A reset ends the wait, but goes on counting: a packet that was under way finds no payload of another.
#[test]
fn a_reset_clears_the_ttl_and_never_the_generation() {
    let mut table = PayloadTable::new(&config(1, 10), 0).unwrap();
    let old = park(&mut table, 0, 1).unwrap();
    table.reset();
    assert_eq!((table.waiting(), table.counters().reset), (0, 1));
    assert_eq!(splice(&mut table, old, 0), Err(Refusal::Late));
    let new = park(&mut table, 0, 2).expect("its time is over, so the entry is free");
    assert_ne!(old, new);
    assert_eq!(splice(&mut table, old, 0), Err(Refusal::Stale));
    assert_eq!(splice(&mut table, new, 0), Ok(2));
}

/// A packet that never comes back blocks its entry for `ttl` turns; at 10 % drops and 10 turns half is not
/// sliced.
#[test]
fn an_entry_waits_for_ttl_turns() {
    let mut table = PayloadTable::new(&config(1, 3), 0).unwrap();
    park(&mut table, 0, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(park(&mut table, 0, 2), None);
    }
    assert!(park(&mut table, 0, 2).is_some());
    assert_eq!((table.counters().expired, table.counters().full), (1, 3));
}

#[test]
fn a_time_bound_frees_an_entry_at_the_next_turn() {
    let config = SliceConfig { max_age_ns: Some(1000), ..config(1, 100) };
    let mut table = PayloadTable::new(&config, 0).unwrap();
    let late = park(&mut table, 0, 1).unwrap();
    assert_eq!(park(&mut table, 1000, 2), None);
    assert!(table.find(late, Nanos(1000)).is_ok());
    assert_eq!(table.find(late, Nanos(1001)).map(|f| f.entry), Err(Refusal::Late));
    assert!(park(&mut table, 1001, 2).is_some());
    assert_eq!(table.counters().overdue, 1);
}

/// Packets of one batch may have come far apart. No function has had them yet, so none of their payloads is
/// given up for another one, with bytes in it or without.
#[test]
fn no_payload_grows_old_within_its_batch() {
    let config = SliceConfig { max_age_ns: Some(1000), ..config(4, 100) };
    let mut table = PayloadTable::new(&config, 0).unwrap();
    table.begin_batch(Nanos(0));
    let mut tokens: Vec<_> = (1..4).map(|len| park(&mut table, 0, len).unwrap()).collect();
    let place = table.place_empty(Nanos(0)).unwrap();
    tokens.push(table.token(&place));
    table.park_any(place, Nanos(0), Parked::default(), Held::default());
    assert!(table.place_empty(Nanos(10 * EMPTY_AGE_NS)).is_none());
    for _ in 0..4 {
        assert_eq!(park(&mut table, 5000, 9), None);
    }
    for token in &tokens {
        assert!(table.find(*token, Nanos(0)).is_ok());
    }
    // The next batch finds them too old.
    table.begin_batch(Nanos(5000));
    assert!(table.place_empty(Nanos(10 * EMPTY_AGE_NS)).is_some());
    for _ in 0..2 {
        assert!(park(&mut table, 5000, 9).is_some());
    }
    assert_eq!(table.counters().overdue, 2);
}

/// A token that was never made is forged, whether its index, its generation or its tag says so.
#[test]
fn tokens_that_were_never_made_are_forged() {
    for mode in [TokenMode::Keyed, TokenMode::Paper] {
        let mut table = PayloadTable::new(&SliceConfig { mode, ..config(5, 1) }, 0).unwrap();
        let token = park(&mut table, 0, 1).unwrap();
        let Fields { generation, .. } = table.format.read(token).unwrap();
        let make = |entry, generation| table.format.make(Fields { worker: 0, entry, generation });
        // Entries 5 to 7 can be named, but are not there.
        for entry in 5..8 {
            assert_eq!(table.find(make(entry, 1), Nanos(0)).err(), Some(Refusal::Forged));
        }
        assert_eq!(table.find(make(0, generation + 1), Nanos(0)).err(), Some(Refusal::Forged));
        assert_eq!(table.find(make(0, generation.wrapping_sub(1)), Nanos(0)).err(), Some(Refusal::Stale));
        // The first generation, which no payload has.
        assert_eq!(
            table.find(make(1, table.format.generation(table.entries[1].token)), Nanos(0)).err(),
            Some(Refusal::Forged)
        );
        if mode == TokenMode::Keyed {
            assert_eq!(table.find(Token(token.0 ^ 1), Nanos(0)).err(), Some(Refusal::Forged));
        }
    }
}

#[test]
fn configurations_that_cannot_be() {
    let fails = |config: SliceConfig| PayloadTable::new(&config, 0).unwrap_err();
    let good = config(16, 10);
    assert!(matches!(fails(SliceConfig { entries: 0, ..good.clone() }), ConfigError::Entries { .. }));
    assert!(matches!(fails(SliceConfig { entries: 65_537, ..good.clone() }), ConfigError::Entries { .. }));
    assert!(matches!(fails(SliceConfig { workers: 5000, ..good.clone() }), ConfigError::Entries { .. }));
    assert_eq!(fails(SliceConfig { ttl: 0, ..good.clone() }), ConfigError::Ttl);
    let copied = |entry_bytes| SliceConfig { storage: Storage::Copied { entry_bytes }, ..good.clone() };
    assert_eq!(fails(copied(0)), ConfigError::EntryBytes(0));
    assert_eq!(fails(copied(65_536)), ConfigError::EntryBytes(65_536));
    let share = SliceConfig { amount: crate::Amount::Share(1.5), ..good.clone() };
    assert_eq!(fails(share), ConfigError::Share(1.5));
    let marked = SliceConfig { marked: crate::Marked::Remark(63), ..good.clone() };
    assert_eq!(fails(marked), ConfigError::Remark(63));
    assert_eq!(fails(SliceConfig { mtu: 67, ..good.clone() }), ConfigError::Mtu(67));
    let worker = PayloadTable::new(&good, 1).unwrap_err();
    assert_eq!(worker, ConfigError::Worker { worker: 1, workers: 1 });
    let table = PayloadTable::new(&copied(1454), 0).unwrap();
    assert!(table.memory() >= 16 * 1454 && table.entry_bytes() == 1454);
}
