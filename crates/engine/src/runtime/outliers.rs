//! Detection of interrupted polls, by the usual time of polls of the same size.
//!
//! The system takes a thread's core away, and the host that of a virtual machine, for longer than a poll
//! lasts; the thread can't be told of the second. What remains to go by is the time itself. So of each size
//! the latest polls are remembered, and a poll that took far longer than their median is taken to be
//! interrupted. The median follows where polls really become slower, and needs more than half of the polls of
//! a size to be interrupted to be deceived.

use slipstream_core::batch::BATCH;

/// Polls of a size that are remembered: with their number, a cache line.
const KEPT: usize = 15;
/// A size with fewer is judged by its neighbours.
const FEW: u32 = 5;
/// The time of a poll, against the usual one, above which it was interrupted: a factor, and ns beside it.
const FACTOR: u64 = 2;
const SLACK: u64 = 2_000;
/// Bounds for a poll and for each of its packets while nothing is known yet, in ns.
const UNKNOWN: (u64, u64) = (50_000, 2_000);

/// The latest polls of a size.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Recent {
    ns: [u32; KEPT],
    /// Polls of this size so far.
    seen: u32,
}

impl Recent {
    fn known(&self) -> &[u32] {
        self.ns.get(..(self.seen as usize).min(KEPT)).unwrap_or_default()
    }

    fn push(&mut self, ns: u64) {
        if let Some(place) = self.ns.get_mut(self.seen as usize % KEPT) {
            *place = ns.min(u64::from(u32::MAX)) as u32;
        }
        // Past the first round only the place matters.
        self.seen = if self.seen as usize + 1 == 2 * KEPT { KEPT as u32 } else { self.seen + 1 };
    }

    fn median(&self) -> Option<u64> {
        let mut times = self.ns;
        let times = times.get_mut(..self.known().len()).filter(|t| t.len() >= FEW as usize)?;
        let (_, median, _) = times.select_nth_unstable((times.len() - 1) / 2);
        Some(u64::from(*median))
    }
}

/// The latest polls by size.
#[derive(Debug)]
pub(super) struct OutlierFilter {
    sizes: Vec<Recent>,
    /// State of the random numbers.
    random: u64,
}

impl OutlierFilter {
    pub(super) fn new() -> Self {
        Self { sizes: vec![Recent::default(); BATCH + 1], random: 0 }
    }

    /// Judges a poll that brought `size` packets and took `ns`. Returns the time to count, and true if the
    /// poll was interrupted: it then counts with the time of one of the latest of its size that were not, or
    /// with the time that other sizes suggest.
    pub(super) fn judge(&mut self, size: usize, ns: u64) -> (u64, bool) {
        let expected = self.expected(size);
        let limit = match expected {
            Some(expected) => FACTOR * expected + SLACK,
            None => UNKNOWN.0 + UNKNOWN.1 * size as u64,
        };
        let interrupted = ns > limit;
        let counts = if interrupted { self.redraw(size, limit).or(expected).unwrap_or(limit) } else { ns };
        if let Some(recent) = self.sizes.get_mut(size) {
            recent.push(ns);
        }
        (counts, interrupted)
    }

    /// The expected time of a poll of a size.
    fn expected(&self, size: usize) -> Option<u64> {
        let (smaller, rest) = self.sizes.split_at_checked(size)?;
        let (own, larger) = rest.split_first()?;
        if own.seen >= FEW {
            return own.median();
        }
        let known = |(i, r): (usize, &Recent)| Some((i as u64, r.median()?));
        let below = smaller.iter().enumerate().rev().find_map(known);
        let above = larger.iter().enumerate().map(|(i, r)| (i + size + 1, r)).find_map(known);
        match (below, above) {
            (Some((a, low)), Some((b, high))) => {
                Some(low + high.saturating_sub(low) * (size as u64 - a) / (b - a))
            }
            // No packet takes longer in a larger batch.
            (Some((a, low)), None) if a > 0 => Some(low * size as u64 / a),
            (_, above) => above.map(|(_, high)| high),
        }
    }

    fn redraw(&mut self, size: usize, limit: u64) -> Option<u64> {
        let known = self.sizes.get(size)?.known();
        let whole = || known.iter().map(|ns| u64::from(*ns)).filter(|ns| *ns <= limit);
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let n = (self.random >> 33) as usize % whole().count().max(1);
        whole().nth(n)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The same by all polls of a size, kept in full.
    #[derive(Default)]
    struct Twin(std::collections::BTreeMap<usize, Vec<u64>>);

    impl Twin {
        fn median(&self, size: usize) -> Option<u64> {
            let all = self.0.get(&size)?;
            let mut last: Vec<u64> = all.iter().rev().take(KEPT).copied().collect();
            last.sort_unstable();
            (last.len() >= FEW as usize).then(|| last[(last.len() - 1) / 2])
        }
    }

    proptest! {
        #[test]
        fn the_median_of_the_latest_is_what_is_usual(polls in prop::collection::vec((0usize..4, 1u64..100_000), 1..400)) {
            let (mut filter, mut twin) = (OutlierFilter::new(), Twin::default());
            for (size, ns) in polls {
                let median = twin.median(size);
                if let Some(median) = median {
                    prop_assert_eq!(filter.expected(size), Some(median));
                }
                let (counts, interrupted) = filter.judge(size, ns);
                if let Some(median) = median {
                    prop_assert_eq!(interrupted, ns > 2 * median + 2_000);
                }
                if interrupted {
                    let last = twin.0.get(&size).map(|all| all.iter().rev().take(KEPT).copied().collect::<Vec<_>>());
                    let from_size = last.is_some_and(|l| l.contains(&counts));
                    prop_assert!(from_size || median.is_none());
                    prop_assert!(counts < ns);
                } else {
                    prop_assert_eq!(counts, ns);
                }
                twin.0.entry(size).or_default().push(ns);
            }
        }
    }

    #[test]
    fn sizes_that_are_new_are_judged_by_those_beside_them() {
        let mut filter = OutlierFilter::new();
        assert_eq!((filter.expected(0), filter.expected(256)), (None, None));
        for _ in 0..10 {
            filter.judge(0, 50);
            filter.judge(10, 2_000);
            filter.judge(20, 3_000);
        }
        let of = |n| filter.expected(n);
        assert_eq!([of(5), of(10), of(15), of(40)], [Some(1_025), Some(2_000), Some(2_500), Some(6_000)]);
        assert_eq!(filter.judge(15, 7_001), (2_500, true));
        assert_eq!(filter.judge(15, 7_000), (7_000, false));
        // Beyond all sizes there are.
        assert_eq!(filter.judge(BATCH + 1, 100), (100, false));
    }

    /// Seldom interrupted polls don't become usual; those that are slower from some time on do.
    #[test]
    fn what_lasts_becomes_usual() {
        let mut filter = OutlierFilter::new();
        for i in 0..1000u64 {
            let interrupted = i > 20 && i % 3 == 0;
            let (counts, found) = filter.judge(8, if interrupted { 4_000_000 } else { 1_000 + i % 7 });
            assert_eq!(found, interrupted, "{i}");
            assert!((1_000..1_007).contains(&counts));
        }
        let slower: Vec<bool> = (0..30).map(|_| filter.judge(8, 9_000).1).collect();
        assert!(slower[0] && !slower[20]);
    }
}
