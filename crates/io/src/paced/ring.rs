//! A bounded queue between two threads, one of which only puts in and the other only takes out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slipstream_core::time::Nanos;

/// A packet in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// When it came.
    pub(super) time: Nanos,
    /// Number of packets that came before it.
    pub(super) number: u64,
}

/// A counter in a cache line of its own, so that the two threads don't take each other's away.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Counter(AtomicU64);

/// The ring. Entries are atomics, since no other way of sharing them is safe by itself; reading and writing
/// those costs as much as plain memory. What orders them is `put`, written by one side, and `taken`, by the
/// other.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Box<[[AtomicU64; 2]]>,
    places: u64,
    put: Counter,
    taken: Counter,
    dropped: Counter,
    /// The time at which the next entry comes; it is written before each, as `put` is behind it.
    expected: Counter,
    interruptions: [AtomicU64; 3],
    closed: AtomicBool,
}

impl Ring {
    /// With so many places, at least one.
    pub(super) fn new(places: u32) -> Self {
        let places = places.max(1);
        Self {
            entries: (0..places.next_power_of_two()).map(|_| Default::default()).collect(),
            places: places.into(),
            put: Counter::default(),
            taken: Counter::default(),
            dropped: Counter::default(),
            expected: Counter::default(),
            interruptions: Default::default(),
            closed: AtomicBool::new(false),
        }
    }

    fn entry(&self, n: u64) -> Option<&[AtomicU64; 2]> {
        self.entries.get(n as usize & (self.entries.len() - 1))
    }

    /// Puts an entry in; only one thread does. A full ring counts it as dropped.
    pub(super) fn push(&self, entry: Entry) {
        let put = self.put.0.load(Ordering::Relaxed);
        // Acquire: the place was read before it was given back.
        if put - self.taken.0.load(Ordering::Acquire) >= self.places {
            self.dropped.0.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some([time, number]) = self.entry(put) {
            time.store(entry.time.0, Ordering::Relaxed);
            number.store(entry.number, Ordering::Relaxed);
        }
        // Release: whoever sees the count sees the entry.
        self.put.0.store(put + 1, Ordering::Release);
    }

    /// Takes up to `max` entries that are there now; only one thread does.
    pub(super) fn take(&self, max: usize) -> impl Iterator<Item = Entry> + '_ {
        let from = self.taken.0.load(Ordering::Relaxed);
        let until = self.put.0.load(Ordering::Acquire).min(from + max as u64);
        (from..until).filter_map(move |n| {
            let [time, number] = self.entry(n)?;
            let entry =
                Entry { time: Nanos(time.load(Ordering::Relaxed)), number: number.load(Ordering::Relaxed) };
            self.taken.0.store(n + 1, Ordering::Release);
            Some(entry)
        })
    }

    /// The last `n` entries that were taken, as long as nothing was put in since.
    pub(super) fn last_taken(&self, n: u64) -> impl Iterator<Item = Entry> + '_ {
        let until = self.taken.0.load(Ordering::Relaxed);
        (until.saturating_sub(n)..until).filter_map(|n| {
            let [time, number] = self.entry(n)?;
            Some(Entry { time: Nanos(time.load(Ordering::Relaxed)), number: number.load(Ordering::Relaxed) })
        })
    }

    /// The next entry will come at this time.
    pub(super) fn expect(&self, time: Nanos) {
        // Release: whoever sees it sees the entries before.
        self.expected.0.store(time.0, Ordering::Release);
    }

    /// When the next entry comes; of a time that is over, nobody knows.
    pub(super) fn expected(&self) -> Nanos {
        Nanos(self.expected.0.load(Ordering::Acquire))
    }

    /// Entries in it.
    pub(super) fn len(&self) -> u64 {
        let taken = self.taken.0.load(Ordering::Acquire);
        self.put.0.load(Ordering::Acquire).saturating_sub(taken)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Nothing more will be put in, or nobody will take anything out.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Release);
    }

    pub(super) fn closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// The generator was away for this long, in ns.
    pub(super) fn interrupted(&self, ns: u64) {
        let [times, sum, longest] = &self.interruptions;
        times.fetch_add(1, Ordering::Relaxed);
        sum.fetch_add(ns, Ordering::Relaxed);
        longest.fetch_max(ns, Ordering::Relaxed);
    }

    /// Entries for which there was no place.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.0.load(Ordering::Relaxed)
    }

    /// Those of one point in time: what was offered was dropped, taken, or is left, also while more comes.
    pub(super) fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let dropped = self.dropped();
        let taken = self.taken.0.load(Ordering::Acquire);
        let put = self.put.0.load(Ordering::Acquire);
        let [times, sum, longest] = &self.interruptions;
        visit("offered", put + dropped);
        visit("dropped_by_queue", dropped);
        visit("generator_interruptions", times.load(Ordering::Relaxed));
        visit("generator_away_ns", sum.load(Ordering::Relaxed));
        visit("generator_away_longest_ns", longest.load(Ordering::Relaxed));
        visit("left_in_queue", put.saturating_sub(taken));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        /// Against the obvious twin, a queue of one thread.
        #[test]
        fn does_what_a_queue_does(places in 1u32..20, steps in proptest::collection::vec((any::<bool>(), 0usize..9), 0..400)) {
            let ring = Ring::new(places);
            let mut twin = VecDeque::new();
            let (mut next, mut dropped) = (0u64, 0);
            for (put, n) in steps {
                if put {
                    for _ in 0..n {
                        let entry = Entry { time: Nanos(next * 7), number: next };
                        ring.push(entry);
                        if twin.len() < places as usize { twin.push_back(entry) } else { dropped += 1 }
                        next += 1;
                    }
                } else {
                    let got: Vec<_> = ring.take(n).collect();
                    let want: Vec<_> = (0..n).map_while(|_| twin.pop_front()).collect();
                    let again: Vec<_> = ring.last_taken(got.len() as u64).collect();
                    prop_assert_eq!(&again, &want);
                    prop_assert_eq!(got, want);
                }
                prop_assert_eq!(ring.len(), twin.len() as u64);
            }
            prop_assert_eq!(ring.dropped.0.load(Ordering::Relaxed), dropped);
        }
    }

    /// Whoever reads the counters is told of one point in time: entries that come meanwhile are in all of
    /// them or in none.
    #[test]
    fn what_comes_while_counters_are_read_is_in_all_or_none() {
        let ring = Ring::new(4);
        let push = |number| ring.push(Entry { time: Nanos(number), number });
        (0..3).for_each(push);
        assert_eq!(ring.take(2).count(), 2);
        let mut counts = std::collections::HashMap::new();
        ring.counters(&mut |name, n| {
            counts.insert(name, n);
            push(9);
        });
        assert_eq!((counts["offered"], counts["dropped_by_queue"], counts["left_in_queue"]), (3, 0, 1));
    }

    #[test]
    fn between_two_threads_nothing_is_lost_or_torn() {
        const ALL: u64 = 200_000;
        let ring = Ring::new(64);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for number in 0..ALL {
                    ring.push(Entry { time: Nanos(number ^ 0xabcd), number });
                    if number % 64 == 0 {
                        std::thread::yield_now();
                    }
                }
                ring.close();
            });
            let (mut last, mut taken) = (None, 0);
            while !(ring.closed() && ring.is_empty()) {
                for entry in ring.take(32) {
                    assert_eq!(entry.time.0, entry.number ^ 0xabcd);
                    assert!(last < Some(entry.number));
                    last = Some(entry.number);
                    taken += 1;
                }
                std::thread::yield_now();
            }
            assert_eq!(taken + ring.dropped.0.load(Ordering::Relaxed), ALL);
        });
    }
}
