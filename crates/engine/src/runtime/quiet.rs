//! Whether a core has its full speed now.
//!
//! A core may be one of two threads of the same real one, and is then slower by nearly half while the other works; neighbours on
//! the same machine slow it down as well. That lasts from fractions of a millisecond to minutes, so no single poll stands out:
//! all of them are slower. A piece of work that is always the same, and uses as many units of the core at once as it can,
//! shows it.

use std::time::Duration;

use crate::clock;

/// Numbers that the work goes over, eight side by side: a small part of the first-level cache.
const NUMBERS: usize = 32;
/// How often.
const ROUNDS: usize = 8;
/// How much longer than at best the work may take, in eighths.
const EIGHTHS: u64 = 9;
/// Times that the work is done for an answer, which is that of the median.
const PROBES: usize = 9;

/// The work, and how fast it can be done.
#[derive(Clone, Debug)]
pub struct Quiet {
    numbers: Vec<[u64; 8]>,
    best_ns: u64,
}

impl Quiet {
    /// Finds out in so much real time how fast this core is at its best.
    #[must_use]
    pub fn find(within: Duration) -> Self {
        let numbers = (0..NUMBERS as u64).map(|i| [i; 8]).collect();
        let mut this = Self { numbers, best_ns: u64::MAX };
        let end = clock::now() + within;
        while clock::now() < end || this.best_ns == u64::MAX {
            this.probe();
        }
        this
    }

    /// The least that the work has taken so far, in ns, at least 1.
    #[must_use]
    pub fn best_ns(&self) -> u64 {
        self.best_ns
    }

    /// Whether the core has its full speed now, as far as that is known. It takes some µs.
    pub fn now(&mut self) -> bool {
        let mut all = [0; PROBES];
        all.iter_mut().for_each(|ns| *ns = self.probe());
        let (_, median, _) = all.select_nth_unstable(PROBES / 2);
        full_speed(*median, self.best_ns)
    }

    /// Does the work once; returns what it took in ns.
    fn probe(&mut self) -> u64 {
        let start = clock::now();
        let mut lanes = [1u64; 8];
        for _ in 0..ROUNDS {
            for numbers in &self.numbers {
                for (lane, n) in lanes.iter_mut().zip(numbers) {
                    *lane = (*lane ^ n).rotate_left(7).wrapping_add(*n);
                }
            }
        }
        std::hint::black_box(lanes);
        let ns = (start.elapsed().as_nanos() as u64).max(1);
        self.best_ns = self.best_ns.min(ns);
        ns
    }
}

fn full_speed(ns: u64, best_ns: u64) -> bool {
    ns.saturating_mul(8) <= best_ns.saturating_mul(EIGHTHS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_eighth_slower_is_too_slow() {
        assert!(full_speed(900, 800) && !full_speed(901, 800) && full_speed(u64::MAX, u64::MAX));
    }

    #[test]
    fn the_best_is_the_best_so_far() {
        let mut quiet = Quiet::find(Duration::ZERO);
        let first = quiet.best_ns();
        assert!((1..1_000_000_000).contains(&first));
        for _ in 0..100 {
            let ns = quiet.probe();
            assert!(quiet.best_ns() <= first.min(ns));
        }
        // What can't be as fast as that is not quiet.
        quiet.best_ns = 1;
        assert!(!quiet.now());
    }
}
