//! The present speed of a core, measured by a piece of work that is always the same.
//!
//! A core may be one of two threads of the same real one, and is then slower by nearly half while the other
//! works; neighbours on the same machine slow it down as well. That lasts from fractions of a millisecond to
//! minutes, so no single poll stands out: all of them are slower. Work that uses as many units of the core at
//! once as it can shows it.

use slipstream_core::clock;

/// Numbers that the work goes over, eight side by side: a small part of the first-level cache.
const NUMBERS: u64 = 32;
/// Number of passes over them.
const ROUNDS: usize = 8;

/// The work: less than a microsecond.
#[derive(Clone, Debug)]
pub struct Probe {
    numbers: Vec<[u64; 8]>,
}

impl Default for Probe {
    fn default() -> Self {
        Self { numbers: (0..NUMBERS).map(|i| [i; 8]).collect() }
    }
}

impl Probe {
    /// Does the work once; returns what it took in ns, at least 1.
    #[must_use]
    pub fn run(&self) -> u64 {
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
        (start.elapsed().as_nanos() as u64).max(1)
    }
}
