//! One Count-Sketch table (Charikar, Chen and Farach-Colton, 2002) and keys that are known to be in it: how
//! large each is, and how far off that may be.
//!
//! The keys that a store kept are the heaviest, and they are each other's worst noise. So they are estimated
//! together: what one of them has is taken out of its counters before the others are looked at. Where *all*
//! keys are known, most counters have one key only, and sizes follow one after the other without any error
//! (peeling, as in an invertible Bloom lookup table, Goodrich and Mitzenmacher, 2011). Elsewhere each key
//! takes in turn the median of what the others leave it, until nothing moves.
//!
//! Unknown keys leave a noise in every counter, which is seen in the counters that no known key shares. Signs
//! are drawn by a hash, so an estimate, the middle of five rows, is off by more than t in one direction only
//! where three rows are: from the share of such counters beyond t follows how often bounds hold, whatever the
//! sizes of flows.

use crate::stats::crossing;

/// Rows of a table: odd, so that a median is one of them.
pub(crate) const ROWS: usize = 5;
/// Rounds in which keys take what the others leave.
const ROUNDS: usize = 24;
/// Times that keys are taken out, each time only those that the one before found to be more than noise:
const PASSES: usize = 3;
/// than what noise is with this probability.
const CLEAR: f64 = 1e-3;
/// Counters without a known key that tell the noise; where there are fewer, all counters do.
const ENOUGH: usize = 16;

/// The place of a key in a table: its counters, row by row, and its signs (bit per row; set = minus).
pub(crate) type Place = ([usize; ROWS], u32);

/// A table with its known keys taken out.
pub(crate) struct Solved {
    /// The keys' sizes, in the order in which they were given.
    pub(crate) sizes: Vec<i64>,
    /// Says that the sizes are exact, and that there are no other keys.
    pub(crate) exact: bool,
    /// The counters, with the known keys taken out.
    rest: Vec<i64>,
    /// Magnitudes that unknown keys leave in a counter, in ascending order.
    noise: Vec<u64>,
    /// A factor for what else disturbs a key's counters: the errors of known keys beside it.
    spread: f64,
}

/// The middle of five.
#[inline(always)]
pub(crate) fn median_of_five([a, b, c, d, e]: [i64; ROWS]) -> i64 {
    // The greater of the two lesser, and the lesser of the two greater, of the first four; with the fifth,
    // the middle of three.
    let (a, b) = (a.min(b), a.max(b));
    let (c, d) = (c.min(d), c.max(d));
    let (low, high) = (a.max(c), b.min(d));
    low.min(high).max(low.max(high).min(e))
}

/// Takes the median of a key's counters, each with its sign.
#[inline(always)]
pub(crate) fn middle(cells: &[i64], (places, signs): &Place) -> i64 {
    let mut values = [0; ROWS];
    for ((i, place), value) in places.iter().enumerate().zip(&mut values) {
        let cell = cells.get(*place).copied().unwrap_or(0);
        *value = if signs >> i & 1 == 1 { cell.saturating_neg() } else { cell };
    }
    median_of_five(values)
}

/// Takes so much of a key out of its counters.
fn take(cells: &mut [i64], (places, signs): &Place, size: i64) {
    for (i, place) in places.iter().enumerate() {
        if let Some(cell) = cells.get_mut(*place) {
            *cell = if signs >> i & 1 == 1 { cell.saturating_add(size) } else { cell.saturating_sub(size) };
        }
    }
}

/// Solves a table for the keys at these places; `all`: no other key is in it.
pub(crate) fn solve(cells: Vec<i64>, places: &[Place], all: bool) -> Solved {
    let mut shared = vec![0u32; cells.len()];
    places.iter().for_each(|p| share(&mut shared, p));
    let ended = cells.iter().any(|c| *c == i64::MAX || *c == i64::MIN);
    let every = || (0..places.len()).collect::<Vec<_>>();
    let mut solved = Solved {
        sizes: vec![0; places.len()],
        exact: false,
        rest: cells.clone(),
        noise: Vec::new(),
        spread: 1.0,
    };
    let open = if all { solved.peel(places, shared) } else { every() };
    solved.exact = all && !ended && open.is_empty() && solved.rest.iter().all(|c| *c == 0);
    if solved.exact {
        return solved;
    }
    if all {
        solved.noise = ordered(cells.iter());
        solved.settle(places, open);
        return solved;
    }
    // A store keeps keys the rather, the more the others in their counters agree with them; to take out what
    // noise made of them would make the others too small. So only those that are well above it are taken out.
    let mut heavy = open;
    for _ in 0..PASSES {
        solved.rest.clone_from(&cells);
        solved.sizes.fill(0);
        solved.listen(places, &heavy);
        solved.settle(places, heavy.clone());
        let least = solved.error(CLEAR);
        heavy.retain(|key| solved.sizes.get(*key).is_some_and(|s| s.unsigned_abs() > least));
    }
    let mut light = vec![true; places.len()];
    heavy.iter().for_each(|key| light.get_mut(*key).into_iter().for_each(|l| *l = false));
    for ((size, place), _) in solved.sizes.iter_mut().zip(places).zip(&light).filter(|(_, light)| **light) {
        // Of those that the last pass took out, what it took and what it left.
        *size = size.saturating_add(middle(&solved.rest, place));
    }
    solved
}

/// One key more in each of these counters.
fn share(shared: &mut [u32], place: &Place) {
    for cell in place.0 {
        if let Some(n) = shared.get_mut(cell) {
            *n += 1;
        }
    }
}

/// Sizes in ascending order.
fn ordered<'a>(cells: impl Iterator<Item = &'a i64>) -> Vec<u64> {
    let mut sizes: Vec<u64> = cells.map(|c| c.unsigned_abs()).collect();
    sizes.sort_unstable();
    sizes
}

impl Solved {
    /// Takes the noise from the counters that none of these keys shares.
    fn listen(&mut self, places: &[Place], keys: &[usize]) {
        let mut shared = vec![0u32; self.rest.len()];
        keys.iter().filter_map(|key| places.get(*key)).for_each(|p| share(&mut shared, p));
        let free = || self.rest.iter().zip(&shared).filter(|(_, n)| **n == 0).map(|(c, _)| c);
        self.noise = if free().count() < ENOUGH { ordered(self.rest.iter()) } else { ordered(free()) };
        // A median of five has a variance of 0.29 of a row's.
        let width = (self.rest.len() / ROWS).max(1) as f64;
        self.spread = (1.0 + 0.29 * keys.len() as f64 / width).sqrt();
    }

    /// Takes keys that have a counter for themselves out, one after the other; those that are left.
    fn peel(&mut self, places: &[Place], mut shared: Vec<u32>) -> Vec<usize> {
        let mut who = vec![0usize; self.rest.len()];
        for (key, (cells, _)) in places.iter().enumerate() {
            cells.iter().for_each(|c| who.get_mut(*c).into_iter().for_each(|w| *w ^= key));
        }
        let single = |(cell, n): (usize, &u32)| (*n == 1).then_some(cell);
        let mut ready: Vec<usize> = shared.iter().enumerate().filter_map(single).collect();
        let mut known = vec![false; places.len()];
        while let Some(cell) = ready.pop() {
            if shared.get(cell) != Some(&1) {
                continue;
            }
            let key = who.get(cell).copied().unwrap_or(0);
            let Some(place) = places.get(key) else { continue };
            let row = place.0.iter().position(|c| *c == cell).unwrap_or(0);
            let value = self.rest.get(cell).copied().unwrap_or(0);
            let size = if place.1 >> row & 1 == 1 { value.saturating_neg() } else { value };
            take(&mut self.rest, place, size);
            for cell in place.0 {
                if let (Some(n), Some(who)) = (shared.get_mut(cell), who.get_mut(cell)) {
                    (*n, *who) = (n.saturating_sub(1), *who ^ key);
                    if *n == 1 {
                        ready.push(cell);
                    }
                }
            }
            if let (Some(to), Some(known)) = (self.sizes.get_mut(key), known.get_mut(key)) {
                (*to, *known) = (size, true);
            }
        }
        known.iter().enumerate().filter_map(|(key, known)| (!known).then_some(key)).collect()
    }

    /// Lets every key take in turn what the others leave it, the heaviest first.
    fn settle(&mut self, places: &[Place], mut keys: Vec<usize>) {
        let raw = |key: &usize| places.get(*key).map_or(0, |p| middle(&self.rest, p).unsigned_abs());
        keys.sort_by_cached_key(|key| std::cmp::Reverse(raw(key)));
        for _ in 0..ROUNDS {
            let mut moved = 0;
            for key in &keys {
                let (Some(place), Some(size)) = (places.get(*key), self.sizes.get_mut(*key)) else {
                    continue;
                };
                let more = middle(&self.rest, place);
                if more != 0 {
                    take(&mut self.rest, place, more);
                    *size = size.saturating_add(more);
                    moved = moved.max(more.unsigned_abs());
                }
            }
            if moved <= 1 {
                break;
            }
        }
    }

    /// The size of a key that isn't known.
    pub(crate) fn of_other(&self, place: &Place) -> i64 {
        middle(&self.rest, place)
    }

    /// A size is off by more than this with no more than this probability (0 to 1).
    pub(crate) fn error(&self, probability: f64) -> u64 {
        if self.exact {
            return 0;
        }
        let row = crossing(|q| 2.0 * three(q) - probability, 0.0, 0.5);
        let beyond = (2.0 * row * self.noise.len() as f64) as usize;
        let at = self.noise.len().saturating_sub(beyond + 1);
        (self.noise.get(at).copied().unwrap_or(0) as f64 * self.spread).ceil() as u64
    }

    /// The probability that a size is too great by this much or more.
    pub(crate) fn beyond(&self, error: f64) -> f64 {
        let less = self.noise.partition_point(|noise| (*noise as f64 * self.spread) < error);
        three(0.5 * (self.noise.len() - less) as f64 / self.noise.len().max(1) as f64)
    }
}

/// The probability that three of five rows or more are off in one direction, where each one is with
/// probability `q`.
fn three(q: f64) -> f64 {
    q.powi(3) * (10.0 - 15.0 * q + 6.0 * q * q)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::hash::split_mix;

    /// Keys at random places in a table of this width.
    fn places(n: usize, width: usize, seed: u64) -> Vec<Place> {
        let mut state = seed;
        let mut place = || {
            let cells = std::array::from_fn(|row| row * width + split_mix(&mut state) as usize % width);
            (cells, split_mix(&mut state) as u32 & 0x1f)
        };
        (0..n).map(|_| place()).collect()
    }

    fn table(width: usize, keys: &[(Place, i64)]) -> Vec<i64> {
        let mut cells = vec![0; ROWS * width];
        keys.iter().for_each(|(place, size)| take(&mut cells, place, -size));
        cells
    }

    proptest! {
        /// All keys known: sizes are right, or not called exact.
        #[test]
        fn what_is_called_exact_is(sizes in prop::collection::vec(-50i64..1000, 0..120), width in 2usize..60, seed in any::<u64>()) {
            let keys: Vec<_> = places(sizes.len(), width, seed).into_iter().zip(sizes.iter().copied()).collect();
            let at: Vec<Place> = keys.iter().map(|k| k.0).collect();
            let solved = solve(table(width, &keys), &at, true);
            prop_assert!(!solved.exact || solved.sizes == sizes);
            prop_assert!(solved.exact || sizes.len() * 2 > width, "{} keys of a width of {width}", sizes.len());
        }
    }

    #[test]
    fn medians_of_five_are_those_of_sorting() {
        let mut state = 1;
        for _ in 0..10_000 {
            let values: [i64; ROWS] = std::array::from_fn(|_| (split_mix(&mut state) % 7) as i64 - 3);
            let mut sorted = values;
            sorted.sort_unstable();
            assert_eq!(median_of_five(values), sorted[2]);
        }
    }

    /// Known keys among unknown ones: errors are beyond the bound no more often than it says.
    #[test]
    fn errors_are_as_rare_as_stated() {
        for (probability, unknown) in [(0.3, 300), (0.05, 300), (0.05, 3000), (0.01, 30_000)] {
            let (mut beyond, mut all) = (0, 0);
            for seed in 0..60 {
                let mut state = seed;
                let size = |i: usize| {
                    if i < 50 { 5_000 + 1_000 * i as i64 } else { (split_mix(&mut state) % 20) as i64 }
                };
                let keys: Vec<_> =
                    places(50 + unknown, 200, seed ^ 0x5a).into_iter().zip((0..).map(size)).collect();
                let at: Vec<Place> = keys.iter().take(50).map(|k| k.0).collect();
                let solved = solve(table(200, &keys), &at, false);
                let error = solved.error(probability);
                all += at.len();
                beyond +=
                    solved.sizes.iter().zip(&keys).filter(|(got, key)| got.abs_diff(key.1) > error).count();
            }
            let (share, n) = (beyond as f64 / all as f64, all as f64);
            assert!(
                share < probability + 3.0 * (probability / n).sqrt(),
                "{unknown} unknown: {share}, not {probability}"
            );
            assert!(share > probability / 10.0, "{unknown} unknown: {share}, far less than {probability}");
        }
    }
}
