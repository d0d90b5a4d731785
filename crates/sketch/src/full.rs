//! Counters of 32 bits that have reached their end.
//!
//! Every weight was added to one counter of each row, so the counters of a row make up the whole weight. What
//! they lack of it is what full counters could not take: a row with one full counter still tells its value,
//! and a row with several bounds the value of each.

use crate::sketch::Bounds;

/// The value of a full counter, at least.
pub(crate) const END: u64 = u32::MAX as u64;

/// What a row lacks of the whole weight, and its full counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullRow {
    lacks: u64,
    full: u64,
    /// False where the whole weight is at its end itself, so that nobody knows what the row lacks.
    known: bool,
}

impl FullRow {
    /// For the counters of a row of a sketch into which this weight was put.
    fn of(row: &[u32], weight: u64) -> Self {
        let sum = row.iter().fold(0u64, |sum, cell| sum.saturating_add(u64::from(*cell)));
        let full = row.iter().filter(|cell| **cell == u32::MAX).count() as u64;
        Self { lacks: weight.saturating_sub(sum), full, known: weight < u64::MAX }
    }

    /// The most that a full counter of the row stands for.
    pub(crate) const fn most(self) -> u64 {
        if self.known { END.saturating_add(self.lacks) } else { u64::MAX }
    }

    /// The least that a full counter of the row stands for.
    pub(crate) const fn least(self) -> u64 {
        if self.known && self.full == 1 { self.most() } else { END }
    }

    /// The value of a full counter of the row if all of them have as much.
    pub(crate) fn mean(self) -> u64 {
        END.saturating_add(self.lacks.checked_div(self.full).unwrap_or(0))
    }

    /// A full counter may be off its mean by this much, in either direction.
    pub(crate) fn spread(self) -> u64 {
        let (above, below) =
            (self.most().saturating_sub(self.mean()), self.mean() - self.least().min(self.mean()));
        if self.full == 0 { 0 } else { above.max(below) }
    }
}

/// The rows, of this width, of a sketch into which this weight was put.
pub(crate) fn rows(cells: &[u32], width: usize, weight: u64) -> impl Iterator<Item = FullRow> + '_ {
    cells.chunks(width.max(1)).map(move |row| FullRow::of(row, weight))
}

/// The least and the most that the least counter of a key may stand for, if that is full in each of its rows.
pub(crate) fn ends(cells: &[u32], width: usize, weight: u64) -> (u64, u64) {
    rows(cells, width, weight)
        .fold((weight, weight), |(least, most), row| (least.min(row.least()), most.min(row.most())))
}

/// The bounds of the size of a key whose least counter is `least`: of all weight, what other keys add to a
/// counter is e/w at most but for a probability of 1/e a row (Count-Min). `ends` are asked for where all
/// counters are full.
pub(crate) fn bounds(least: u64, width: usize, weight: u64, ends: &dyn Fn() -> (u64, u64)) -> Bounds<u64> {
    let error = (std::f64::consts::E / width as f64 * weight as f64).ceil() as u64;
    let (least, most) = if least < END { (least, least) } else { ends() };
    Bounds { estimate: most, lower: least.saturating_sub(error), upper: most }
}
