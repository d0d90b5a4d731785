//! Times by the number of full batches before a packet: the sum over c of what is left for packets behind c
//! full batches, and c services of these.
//!
//! A short batch and a long queue make tens of thousands of such c. Neighbours are added in pairs, pairs of
//! pairs, and so on, each right half shifted by the services between; so a service is not convolved once for
//! every c with all there is. And a time of many services needn't be known to the bin of a short one: from
//! [`fine`] batches on, bins are twice as long for every doubling of c, so that the work grows with the
//! number of batches and not with its square. What that rounds is below 2⁻¹⁵ of the time itself.

/// Bins, as longest services have them, over which nothing is made coarser.
const CELLS: usize = 1 << 16;
/// Fewest batches of which nothing is made coarser.
const BATCHES: usize = 256;
/// Probabilities below this are left out at both ends of a sum.
const TAIL: f64 = 1e-24;

/// Batches from which on bins grow, where the longest service has so many bins: a power of two.
pub(crate) fn fine(bins: usize) -> usize {
    CELLS.div_ceil(bins.max(1)).max(BATCHES).next_power_of_two()
}

/// The places of a histogram's cells: at first all are of one size, then they are twice as long for every
/// doubling of the time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Cells {
    /// Slots of the first ones.
    bin: usize,
    /// The number of those of that size, which is even.
    even: usize,
}

impl Cells {
    /// For services of `bins` bins of `bin` slots at the most.
    pub(crate) fn new(bin: usize, bins: usize) -> Self {
        Self::of(bin, bins, fine(bins))
    }

    fn of(bin: usize, bins: usize, fine: usize) -> Self {
        Self { bin, even: 2 * (fine + 4) * bins.max(1) }
    }

    /// The first slot of a cell, and how many it has.
    pub(crate) fn cell(self, k: usize) -> (f64, f64) {
        let (bin, half) = (self.bin as f64, self.even / 2);
        let Some(beyond) = k.checked_sub(self.even) else { return (k as f64 * bin, bin) };
        let size = bin * 2f64.powi((beyond / half) as i32 + 1);
        ((half + beyond % half) as f64 * size, size)
    }

    /// The cell of a time in bins, and how many bins it still has from there on.
    fn at(self, time: usize) -> (usize, usize) {
        if time < self.even {
            return (time, 1);
        }
        let half = self.even / 2;
        let octave = (time / half).ilog2();
        let (size, inside) = (1 << octave, (time >> octave) - half);
        (self.even + (octave as usize - 1) * half + inside, size - time % size)
    }
}

/// A distribution of times: the probabilities of bins from `start` on.
#[derive(Clone, Debug, Default, PartialEq)]
struct Times {
    start: usize,
    p: Vec<f64>,
}

impl Times {
    fn new(start: usize, mut p: Vec<f64>) -> Self {
        p.truncate(p.iter().rposition(|p| *p > TAIL).map_or(0, |last| last + 1));
        let first = p.iter().position(|p| *p > TAIL).unwrap_or(0);
        p.drain(..first);
        Self { start: start + first, p }
    }

    /// Of the sum.
    fn and(&self, other: &Self) -> Self {
        let (short, long) = if self.p.len() < other.p.len() { (self, other) } else { (other, self) };
        let mut out = vec![0.0; (short.p.len() + long.p.len()).saturating_sub(1)];
        for (i, x) in short.p.iter().enumerate() {
            let to = out.get_mut(i..).unwrap_or_default();
            to.iter_mut().zip(&long.p).for_each(|(place, p)| *place += x * p);
        }
        Self::new(self.start + other.start, out)
    }

    /// This or the other, each with its own probability.
    fn or(self, other: Self) -> Self {
        if self.p.is_empty() {
            return other;
        }
        if other.p.is_empty() {
            return self;
        }
        let start = self.start.min(other.start);
        let end = (self.start + self.p.len()).max(other.start + other.p.len());
        let mut out = vec![0.0; end - start];
        for part in [self, other] {
            let to = out.get_mut(part.start - start..).unwrap_or_default();
            to.iter_mut().zip(&part.p).for_each(|(place, p)| *place += p);
        }
        Self { start, p: out }
    }

    /// In bins of twice the size: what lies in them.
    fn coarser(&self) -> Self {
        let lead = self.start % 2;
        let mut out = vec![0.0; (lead + self.p.len()).div_ceil(2)];
        for (i, p) in self.p.iter().enumerate() {
            if let Some(place) = out.get_mut((lead + i) / 2) {
                *place += p;
            }
        }
        Self { start: self.start / 2, p: out }
    }

    /// At places of twice the distance; what lies between two of them is shared, so that means stay.
    fn sparser(&self) -> Self {
        let lead = self.start % 2;
        let mut out = vec![0.0; (lead + self.p.len()) / 2 + 1];
        for (i, p) in self.p.iter().enumerate() {
            let at = lead + i;
            for (place, share) in [(at / 2, 0.5), (at.div_ceil(2), 0.5)] {
                if let Some(place) = out.get_mut(place) {
                    *place += share * p;
                }
            }
        }
        Self::new(self.start / 2, out)
    }
}

/// The distribution over `cells` of the sum over c below `blocks` of `mass(c)` and c times `full`; a mass is
/// told in bins, an empty one is nothing.
pub(crate) fn sum(
    cells: Cells,
    blocks: usize,
    full: &[f64],
    fine: usize,
    mass: impl FnMut(usize) -> Vec<f64>,
) -> Vec<f64> {
    let first = vec![vec![Times::new(0, full.to_vec())]];
    let mut sums = Sums { blocks, fine: fine.ilog2() as usize, powers: first, mass };
    let mut out = Vec::new();
    let (mut first, mut octave) = (0, 0);
    while first < blocks {
        // From none to `fine`, then as many more as there were.
        let level = first.max(fine).ilog2() as usize;
        let mut here = sums.node(first, level, octave);
        if !here.p.is_empty() {
            if first > 0 {
                here = here.and(&sums.power(level - octave, octave));
            }
            pour(cells, octave, &here, &mut out);
        }
        octave += usize::from(first > 0);
        first += 1 << level;
    }
    out
}

/// Adds bins of 2^`octave` of the first ones to the cells.
fn pour(cells: Cells, octave: usize, times: &Times, out: &mut Vec<f64>) {
    let size = 1usize << octave;
    for (at, p) in (times.start..).zip(&times.p).filter(|(_, p)| **p > 0.0) {
        let (mut from, to) = (at * size, (at + 1) * size);
        while from < to {
            let (cell, room) = cells.at(from);
            let here = room.min(to - from);
            out.resize(out.len().max(cell + 1), 0.0);
            if let Some(place) = out.get_mut(cell) {
                *place += p * here as f64 / size as f64;
            }
            from += here;
        }
    }
}

/// The parts that sums are made of.
struct Sums<M> {
    blocks: usize,
    /// 2 to this power batches are the most in bins of their size.
    fine: usize,
    /// By size of bins: times of 1, 2, 4, … services, or of as many times more as the bins are longer.
    powers: Vec<Vec<Times>>,
    mass: M,
}

impl<M: FnMut(usize) -> Vec<f64>> Sums<M> {
    /// The sum over 2^`level` batches from `first` on, without the services of those before, in bins of
    /// 2^`octave` or, of fewer batches than these, in bins of 2^`level`.
    fn node(&mut self, first: usize, level: usize, octave: usize) -> Times {
        if first >= self.blocks {
            return Times::default();
        }
        let Some(below) = level.checked_sub(1) else { return Times::new(0, (self.mass)(first)) };
        let left = self.node(first, below, octave);
        let right = self.node(first + (1 << below), below, octave);
        let both = if right.p.is_empty() {
            left
        } else {
            let bins = below.min(octave);
            let before = self.power(below - bins, bins);
            left.or(right.and(&before))
        };
        if level <= octave { both.coarser() } else { both }
    }

    /// The time of 2^(`level` + `octave`) services in bins of 2^`octave`.
    fn power(&mut self, level: usize, octave: usize) -> Times {
        let known = |powers: &[Vec<Times>]| powers.get(octave).and_then(|p| p.get(level)).cloned();
        if let Some(power) = known(&self.powers) {
            return power;
        }
        let power = if octave > 0 && level < self.fine {
            self.power(level + 1, octave - 1).sparser()
        } else {
            let half = self.power(level.saturating_sub(1), octave);
            half.and(&half)
        };
        // Levels are asked for in order, but for those that are known from shorter bins.
        if self.powers.len() <= octave {
            self.powers.resize_with(octave + 1, Vec::new);
        }
        if let Some(powers) = self.powers.get_mut(octave).filter(|p| p.len() == level) {
            powers.push(power.clone());
        }
        power
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// One batch after the other, each convolved with all services before, and nothing made coarser.
    fn slow(masses: &[Vec<f64>], full: &[f64]) -> Vec<f64> {
        let mut behind = vec![1.0];
        let mut out: Vec<f64> = Vec::new();
        let convolve = |a: &[f64], b: &[f64]| {
            let mut out = vec![0.0; (a.len() + b.len()).saturating_sub(1)];
            for (i, x) in a.iter().enumerate() {
                b.iter().enumerate().for_each(|(j, y)| out[i + j] += x * y);
            }
            out
        };
        for mass in masses {
            let here = convolve(mass, &behind);
            out.resize(out.len().max(here.len()), 0.0);
            out.iter_mut().zip(&here).for_each(|(a, b)| *a += b);
            behind = convolve(&behind, full);
        }
        out
    }

    fn normal(mut p: Vec<f64>) -> Vec<f64> {
        let sum: f64 = p.iter().sum();
        p.iter_mut().for_each(|p| *p /= sum);
        p
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(60))]
        /// The sum is the same while nothing is made coarser; else no share of packets is moved by more than
        /// a few bins as they are at its time.
        #[test]
        fn pairs_of_pairs_are_one_after_the_other(
            full in (0..9usize, prop::collection::vec(0.0..1.0f64, 1..9)),
            masses in prop::collection::vec(prop::option::weighted(0.8, prop::collection::vec(0.0..1.0f64, 1..12)), 1..260),
            fine in prop::sample::select(vec![16usize, 32, 512]),
        ) {
            let (lead, shape) = full;
            let full = [vec![0.0; lead], normal([shape, vec![0.5]].concat())].concat();
            let masses: Vec<Vec<f64>> = masses.into_iter().map(Option::unwrap_or_default).collect();
            let all: f64 = masses.iter().flatten().sum();
            prop_assume!(all > 0.0);
            let masses: Vec<Vec<f64>> =
                masses.into_iter().map(|m| m.into_iter().map(|p| p / all).collect()).collect();
            let want = slow(&masses, &full);
            let bins = 18;
            let cells = Cells::of(1, bins, fine);
            let got = sum(cells, masses.len(), &full, fine, |c| masses[c].clone());
            prop_assert!((got.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            if masses.len() <= 2 * fine {
                for (k, p) in want.iter().enumerate() {
                    prop_assert!((got.get(k).copied().unwrap_or(0.0) - p).abs() < 1e-14, "{} {}", k, p);
                }
                return Ok(());
            }
            let upto = |x: f64| want.iter().enumerate().take_while(|(k, _)| *k as f64 + 1.0 <= x).map(|(_, p)| p).sum::<f64>();
            let mut share = 0.0;
            for (k, p) in got.iter().enumerate() {
                share += p;
                let (start, size) = cells.cell(k);
                let end = start + size;
                let width = 1.0f64.max(end / (fine * 2) as f64);
                prop_assert!(share <= upto(end + 6.0 * width) + 2e-3, "{}: {} {}", end, share, upto(end + 6.0 * width));
                prop_assert!(share >= upto(end - 6.0 * width) - 2e-3, "{}: {} {}", end, share, upto(end - 6.0 * width));
            }
        }
    }

    #[test]
    fn cells_lie_end_to_end_and_double() {
        for (bin, bins, fine) in [(1, 1, 4), (3, 5, 8), (7, 2, 16)] {
            let cells = Cells::of(bin, bins, fine);
            let mut next = 0.0;
            for k in 0..cells.even * 4 {
                let (start, size) = cells.cell(k);
                assert_eq!(start, next, "{k}");
                let time = (start / bin as f64) as usize;
                assert_eq!(cells.at(time), (k, (size / bin as f64) as usize));
                next = start + size;
            }
            assert!(next >= (cells.even * bin * 8) as f64);
        }
        assert_eq!((fine(257), fine(11), fine(1)), (256, 8192, 65_536));
    }
}
