//! The aggregator against a twin that searches linearly, over all instructions, evictions and key lengths.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// An entry of a bucket: key, fingerprint, count, last use.
type Place<const N: usize> = ([u8; N], u32, u32, u64);

/// The obvious aggregator: buckets are lists of places. A block's hits come first, then its misses, in order.
struct Twin<const N: usize> {
    places: Aggregator<N>,
    buckets: BTreeMap<u32, Vec<Option<Place<N>>>>,
    next: usize,
    clock: u64,
    out: Vec<Update<N>>,
}

impl<const N: usize> Twin<N> {
    fn block(&mut self, updates: &[Update<N>]) {
        let missed: Vec<&Update<N>> = updates.iter().filter(|u| !self.add(u)).collect();
        missed.into_iter().for_each(|u| self.put(u));
    }

    fn bucket(&mut self, u: &Update<N>) -> (&mut Vec<Option<Place<N>>>, u32) {
        let place = pass::Place::of(&self.places.hasher, self.places.used.len(), &u.key);
        (self.buckets.entry(place.bucket).or_insert_with(|| vec![None; 16]), place.print)
    }

    /// Adds to a key that is there.
    fn add(&mut self, u: &Update<N>) -> bool {
        self.clock += 1;
        let clock = self.clock;
        let (bucket, _) = self.bucket(u);
        let Some(place) = bucket.iter_mut().flatten().find(|e| e.0 == u.key) else { return false };
        let Some(sum) = place.2.checked_add(u.weight) else { return false };
        (place.2, place.3) = (sum, clock);
        true
    }

    fn put(&mut self, u: &Update<N>) {
        if self.add(u) {
            return;
        }
        let (clock, next, eviction) = (self.clock, self.next, self.places.eviction);
        let (bucket, print) = self.bucket(u);
        let fresh = Some((u.key, print, u.weight, clock));
        let mut gone = None;
        if let Some(slot) = bucket.iter_mut().find(|e| e.is_some_and(|e| e.1 == print)) {
            gone = std::mem::replace(slot, fresh);
        } else if let Some(slot) = bucket.iter_mut().find(|e| e.is_none()) {
            *slot = fresh;
        } else {
            let victim = match eviction {
                Eviction::Grr => next,
                Eviction::Lru => (0..16).min_by_key(|i| bucket[*i].unwrap().3).unwrap(),
            };
            gone = std::mem::replace(&mut bucket[victim], fresh);
            self.next = if eviction == Eviction::Grr { (next + 1) % 16 } else { 0 };
        }
        self.out.extend(gone.map(|(key, _, weight, _)| Update { key, weight }));
    }

    fn drain(&mut self) {
        for bucket in self.buckets.values_mut() {
            for (key, _, weight, _) in bucket.iter_mut().filter_map(Option::take) {
                self.out.push(Update { key, weight });
            }
        }
    }
}

fn key_of<const N: usize>(n: u16) -> [u8; N] {
    let mut key = [0; N];
    key.iter_mut().zip(n.to_le_bytes()).for_each(|(k, b)| *k = b);
    // The last byte too, so that long keys differ in more than their first word.
    if let Some(last) = key.last_mut() {
        *last ^= n as u8;
    }
    key
}

fn config(buckets: usize, eviction: Eviction, instructions: Instructions, seed: u64) -> AggregatorConfig {
    AggregatorConfig { buckets, eviction, instructions, worth_from: 0.0, seed }
}

fn like_the_twin<const N: usize>(
    keys: &[(u16, u32)],
    buckets: usize,
    seed: u64,
    chunk: usize,
) -> Result<(), TestCaseError> {
    let updates: Vec<Update<N>> = keys.iter().map(|(k, w)| Update { key: key_of(*k), weight: *w }).collect();
    for eviction in [Eviction::Grr, Eviction::Lru] {
        for instructions in Instructions::available() {
            let config = config(buckets, eviction, instructions, seed);
            let mut real = Aggregator::<N>::new(&config).unwrap();
            let mut twin = Twin {
                places: Aggregator::new(&config).unwrap(),
                buckets: BTreeMap::new(),
                next: 0,
                clock: 0,
                out: Vec::new(),
            };
            let mut out = Vec::new();
            for some in updates.chunks(chunk) {
                real.offer(some, &mut |u| out.extend_from_slice(u));
            }
            real.drain(&mut |u| out.extend_from_slice(u));
            // Weights are small here, so where runs begin and end makes no difference.
            updates.chunks(chunk).flat_map(|c| c.chunks(pass::BLOCK)).for_each(|b| twin.block(b));
            twin.drain();
            prop_assert_eq!(&out, &twin.out, "{:?} {:?}", eviction, instructions);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn the_same_leaves_in_the_same_order(
        keys in prop::collection::vec((0u16..200, 0u32..20), 0..1200),
        buckets in 1usize..6, seed in any::<u64>(), chunk in 1usize..400,
    ) {
        like_the_twin::<4>(&keys, buckets, seed, chunk)?;
        like_the_twin::<8>(&keys, buckets, seed, chunk)?;
        like_the_twin::<13>(&keys, buckets, seed, chunk)?;
        like_the_twin::<37>(&keys, buckets, seed, chunk)?;
    }

    #[test]
    fn totals_are_kept_also_when_it_steps_aside(
        keys in prop::collection::vec(((0u16..90, prop_oneof![1u32..9, 4_000_000_000..=u32::MAX, Just(0)]), 1usize..9), 0..1000),
        worth in 0.0f64..1.5, seed in any::<u64>(), lru in any::<bool>(), chunk in 1usize..700,
    ) {
        let eviction = if lru { Eviction::Lru } else { Eviction::Grr };
        let mut config = config(2, eviction, Instructions::best(), seed);
        config.worth_from = worth;
        let mut real = Aggregator::<4>::new(&config).unwrap();
        let (mut got, mut want) = (BTreeMap::new(), BTreeMap::new());
        let mut sink = |u: &[Update<4>]| u.iter().for_each(|u| *got.entry(u.key).or_insert(0u64) += u64::from(u.weight));
        let run = |(u, n): &((u16, u32), usize)| vec![Update { key: key_of(u.0), weight: u.1 }; *n];
        let updates: Vec<Update<4>> = keys.iter().flat_map(run).collect();
        updates.iter().for_each(|u| *want.entry(u.key).or_insert(0u64) += u64::from(u.weight));
        updates.chunks(chunk).for_each(|some| real.offer(some, &mut sink));
        real.drain(&mut sink);
        prop_assert_eq!(got, want);
    }
}

/// Two keys with one fingerprint, searched for: the older leaves, and neither is counted as the other.
#[test]
fn colliding_fingerprints() {
    let mut real = Aggregator::<8>::new(&config(1, Eviction::Grr, Instructions::best(), 5)).unwrap();
    let mut seen = BTreeMap::new();
    let (a, b) = (0u64..)
        .find_map(|n| {
            let key = n.to_le_bytes();
            seen.insert(pass::Place::of(&real.hasher, 1, &key).print, key).map(|other| (other, key))
        })
        .unwrap();
    let mut out = Vec::new();
    for (key, weight) in [(a, 1), (b, 2), (b, 3), (a, 4)] {
        real.offer(&[Update { key, weight }], &mut |u| out.extend_from_slice(u));
    }
    real.drain(&mut |u| out.extend_from_slice(u));
    let update = |key, weight| Update { key, weight };
    assert_eq!(out, [update(a, 1), update(b, 5), update(a, 4)]);
}

#[test]
fn nothing_in_nothing_out_and_key_zero_is_a_key() {
    let mut real = Aggregator::<4>::new(&config(7, Eviction::Grr, Instructions::best(), 0)).unwrap();
    let mut out: Vec<Update<4>> = Vec::new();
    real.drain(&mut |u| out.extend_from_slice(u));
    assert!(out.is_empty(), "an empty table has no flow 0");
    real.offer(&[Update { key: [0; 4], weight: 3 }; 2], &mut |u| out.extend_from_slice(u));
    real.drain(&mut |u| out.extend_from_slice(u));
    assert_eq!(out, [Update { key: [0; 4], weight: 6 }]);
    real.drain(&mut |_| panic!("drained twice"));
}

#[test]
fn it_steps_aside_and_comes_back() {
    let mut c = config(250, Eviction::Grr, Instructions::best(), 0);
    c.worth_from = 0.2;
    let mut real = Aggregator::<4>::new(&c).unwrap();
    let mut n = 0u64;
    let mut sink = |u: &[Update<4>]| n += u.iter().map(|u| u64::from(u.weight)).sum::<u64>();
    for i in 0..1_000_000u32 {
        real.offer(&[Update { key: i.to_le_bytes(), weight: 1 }], &mut sink);
    }
    let distinct = real.stats();
    assert!(distinct.updates < 50_000, "distinct keys go by: {distinct:?}");
    for i in 0..1_000_000u32 {
        real.offer(&[Update { key: (i / 8 % 3000).to_le_bytes(), weight: 1 }], &mut sink);
    }
    let bursts = real.stats();
    assert!(bursts.updates - distinct.updates > 800_000, "bursts are taken in again: {bursts:?}");
    real.drain(&mut sink);
    assert_eq!(n, 2_000_000);
}

#[test]
fn impossible_numbers_of_buckets() {
    for k in [0, (1 << 24) + 1, usize::MAX] {
        let error = Aggregator::<4>::new(&config(k, Eviction::Grr, Instructions::best(), 0)).unwrap_err();
        assert_eq!(error, AggregatorError::Buckets(k));
    }
}
