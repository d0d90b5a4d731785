//! The stationary distribution of the embedded chain, eq. (1), by elimination without subtraction (GTH).
//!
//! States are eliminated from the empty queue upwards. Row `k` of the chain reaches down by at most a batch,
//! and from β on all rows are one row shifted, so a state's row is made when its turn comes, from that one
//! row and the reduced rows of the β states below it, which are all that must be kept. A few states take
//! their turn together, so that the reduced rows are read once for all of them. For the way back only the
//! part of each row below its diagonal is kept: L·β numbers at the most, whatever the load. Nothing is ever
//! subtracted, so every probability has a small relative error however small it is, at saturation and beyond.

use crate::counts::Counts;
use crate::error::Error;
use crate::kernel::{GROUP, Lanes, ROWS, add_one, add_scaled};

/// The rows of the chain. A state is the queue and, where the arrival process has a memory, one of R phases
/// of it: in one number `queue · R + phase`. `rows[v · R + phase]` is how many packets come while a batch of
/// v is served, and the phase after it, as `packets · R + phase`.
pub(crate) struct Chain<'a> {
    pub(crate) rows: &'a [Counts],
    /// Largest batch β; `rows` has (β + 1) · R elements.
    pub(crate) batch: usize,
    /// Capacity L ≥ β.
    pub(crate) queue: usize,
    /// R; 1 where nothing is remembered.
    pub(crate) phases: usize,
}

/// A state's row once all states below it are gone.
#[derive(Default)]
struct Reduced {
    /// Probabilities of the states above, from the next one on.
    above: Vec<f64>,
    /// Their sum.
    leave: f64,
}

/// The part of a state's row below the diagonal, when its turn came.
#[derive(Default)]
struct Below {
    from: usize,
    p: Vec<f64>,
}

impl Chain<'_> {
    /// Packets left in the queue when the batch is taken, and the arrivals during its service.
    fn row(&self, state: usize) -> (usize, Option<&Counts>) {
        let (queue, phase) = (state / self.phases, state % self.phases);
        let batch = queue.min(self.batch);
        ((queue - batch) * self.phases, self.rows.get(batch * self.phases + phase))
    }

    /// The first state of the full queue, which is the last of all where nothing is remembered.
    fn full(&self) -> usize {
        self.queue * self.phases
    }

    fn states(&self) -> usize {
        self.full() + self.phases
    }

    /// Calls `add` with every state that a row reaches from another, and its probability.
    fn visit_row(&self, state: usize, mut add: impl FnMut(usize, f64)) {
        let (left, Some(counts)) = self.row(state) else { return };
        let first = left + counts.start;
        let mut p = counts.p.iter();
        for (to, p) in (first..self.full()).zip(p.by_ref()) {
            add(to, *p);
        }
        // The rest is the full queue: arrivals that fill it exactly, and more, of which some are lost.
        let rest = p.as_slice();
        if self.phases == 1 {
            add(self.queue, rest.iter().sum());
        } else {
            let at = first + counts.p.len() - rest.len();
            rest.iter().zip(at..).for_each(|(p, at)| add(self.full() + at % self.phases, *p));
        }
    }

    /// Adds `weight` times the row of a state to `to`, which has a place for every state.
    fn add_row(&self, state: usize, weight: f64, to: &mut [f64]) {
        self.visit_row(state, |at, p| {
            if let Some(place) = to.get_mut(at) {
                *place += weight * p;
            }
        });
    }

    /// The first and last state that a row reaches.
    fn span(&self, state: usize) -> (usize, usize) {
        let (left, counts) = self.row(state);
        let (start, last) = counts.map_or((0, 0), |c| (c.start, c.last()));
        let highest = if left + last < self.full() { left + last } else { self.states() - 1 };
        ((left + start).min(self.full()), highest)
    }

    /// Refuses what would take too long.
    fn check_work(&self) -> Result<(), Error> {
        // A row is reduced by those of a batch of states, each as long as what comes is more than a batch.
        let last = self.rows.iter().map(Counts::last).max().unwrap_or(0);
        let above = last.saturating_sub(self.batch * self.phases).clamp(1, self.states());
        let work = self.states() as f64 * (self.batch * self.phases) as f64 * above as f64;
        if work <= MAX_WORK {
            return Ok(());
        }
        Err(Error::TooLarge {
            what: "the elimination",
            needed: format!("{work:.1e} additions"),
            limit: format!("{MAX_WORK:.0e}"),
            advice: "choose a shorter queue, a smaller batch, or packets that come less unevenly",
        })
    }

    /// The stationary distribution over the states.
    ///
    /// # Errors
    /// [`Error::NotUnique`] where there is more than one, [`Error::TooLarge`] where it would take too long.
    pub(crate) fn stationary(&self) -> Result<Vec<f64>, Error> {
        self.check_work()?;
        let mut work = Elimination {
            // A row reaches down by a batch, from the first phase to the last.
            reduced: (0..(self.batch * self.phases + self.phases - 1).max(1))
                .map(|_| Reduced::default())
                .collect(),
            below: Vec::with_capacity(self.states()),
            leaves: Vec::with_capacity(self.states()),
            buffer: vec![[0.0; ROWS]; self.states()],
            reach: 0,
        };
        for first in (0..self.states()).step_by(ROWS) {
            if work.rows(self, first)? {
                break;
            }
        }
        Ok(self.back(&work.below, &work.leaves))
    }

    /// From the highest state down: how much more often the chain is in each than in the highest.
    fn back(&self, below: &[Below], leaves: &[f64]) -> Vec<f64> {
        let mut q = vec![0.0; self.states()];
        let top = below.len().saturating_sub(1);
        if let Some(place) = q.get_mut(top) {
            *place = 1.0;
        }
        // The times that numbers were scaled down when a state's own was found, and the lowest state that has
        // one.
        let (mut scaled, mut lowest) = (0u32, top);
        let mut found_at = vec![0u32; q.len()];
        for (state, (row, leave)) in below.iter().zip(leaves).enumerate().rev() {
            let (lower, upper) = q.split_at_mut(state);
            let Some(here) = upper.first_mut() else { continue };
            if state < top {
                *here /= leave;
            }
            if *here > HUGE {
                // Those above are done with, and are scaled in the end.
                *here /= HUGE;
                lower.iter_mut().skip(lowest).for_each(|p| *p /= HUGE);
                scaled += 1;
            }
            let weight = *here;
            if let Some(found_at) = found_at.get_mut(state) {
                *found_at = scaled;
            }
            for (place, p) in lower.iter_mut().skip(row.from).zip(&row.p) {
                *place += weight * p;
            }
            lowest = lowest.min(row.from);
        }
        for (p, found_at) in q.iter_mut().zip(found_at) {
            // After a few times nothing is left of any number.
            (0..(scaled - found_at).min(4)).for_each(|_| *p /= HUGE);
        }
        let sum: f64 = q.iter().sum();
        q.iter_mut().for_each(|p| *p /= sum);
        q
    }

    /// The difference between `q` and what it becomes after one more poll: the sum over states, with no sign.
    pub(crate) fn residual(&self, q: &[f64]) -> f64 {
        let mut next = vec![0.0; self.states()];
        for (state, p) in q.iter().enumerate().filter(|(_, p)| **p > 0.0) {
            self.add_row(state, *p, &mut next);
        }
        next.iter().zip(q).map(|(a, b)| (a - b).abs()).sum()
    }
}

/// Most additions of one elimination: a minute or two of a core.
const MAX_WORK: f64 = 2e11;
/// Back substitution scales its values down above this, so that none overflows; those that underflow are
/// negligible.
const HUGE: f64 = 1e200;
/// Weights below this are dropped, so that no time goes into numbers too small to be held in full.
const SMALL: f64 = 1e-250;

/// The elimination under way.
struct Elimination {
    /// Of each of the states below that a row may reach, by number modulo how many that are.
    reduced: Vec<Reduced>,
    below: Vec<Below>,
    leaves: Vec<f64>,
    /// [`ROWS`] rows side by side, with a place for every state.
    buffer: Vec<Lanes>,
    /// The highest state that one so far leads to.
    reach: usize,
}

impl Elimination {
    /// The rows of `first` and of the states after it: what lies below all of them is eliminated from all at
    /// once, then they from one another. Returns whether nothing leads further up.
    fn rows(&mut self, chain: &Chain<'_>, first: usize) -> Result<bool, Error> {
        let end = (first + ROWS).min(chain.states());
        let mut from = [first; ROWS];
        let (mut lowest, mut last) = (first, first);
        for ((lane, state), from) in (first..end).enumerate().zip(&mut from) {
            let (low, high) = chain.span(state);
            *from = low.min(state);
            (lowest, last) = (lowest.min(*from), last.max(high).max(state));
            let buffer = &mut self.buffer;
            chain.visit_row(state, |at, p| {
                if let Some(place) = buffer.get_mut(at).and_then(|lanes| lanes.get_mut(lane)) {
                    *place += p;
                }
            });
        }
        let mut turn = lowest;
        while turn < first {
            let group = (first - turn).min(GROUP);
            last = last.max(self.eliminate(turn, group, 0));
            turn += group;
        }
        for ((lane, state), from) in (first..end).enumerate().zip(from) {
            if self.keep(lane, state, from, last) {
                return if self.reach > state { Err(Error::NotUnique { state }) } else { Ok(true) };
            }
            if state + 1 < end {
                last = last.max(self.eliminate(state, 1, lane + 1));
            }
        }
        self.buffer.get_mut(lowest..=last).unwrap_or_default().fill([0.0; ROWS]);
        Ok(false)
    }

    /// Replaces `group` states from `turn` on, in the rows from `lane` on, by where the chain goes from them.
    /// Returns the last state reached.
    #[expect(
        clippy::indexing_slicing,
        reason = "states lie in the row, and a reduced row ends where the row does"
    )]
    fn eliminate(&mut self, turn: usize, group: usize, lane: usize) -> usize {
        let ring = self.reduced.len();
        let mut factors = [[0.0; ROWS]; GROUP];
        let mut last = 0;
        // Within the group, one after the other.
        for (i, factors) in factors.iter_mut().enumerate().take(group) {
            let state = turn + i;
            let r = &self.reduced[state % ring];
            if r.leave == 0.0 {
                continue;
            }
            for (factor, weight) in factors.iter_mut().zip(&self.buffer[state]).skip(lane) {
                *factor = if *weight < SMALL { 0.0 } else { weight / r.leave };
            }
            if *factors == [0.0; ROWS] {
                continue;
            }
            last = last.max(state + r.above.len());
            let within = (group - 1 - i).min(r.above.len());
            add_one(&mut self.buffer[state + 1..], &r.above[..within], factors);
        }
        if last == 0 {
            return 0;
        }
        // Beyond the group, all at once as far as all of them reach.
        let parts: [&[f64]; GROUP] = std::array::from_fn(|i| {
            if i >= group || factors[i] == [0.0; ROWS] {
                return [].as_slice();
            }
            let above = self.reduced[(turn + i) % ring].above.as_slice();
            above.get(group - 1 - i..).unwrap_or_default()
        });
        let to = &mut self.buffer[turn + group..];
        let all = add_scaled(to, parts, &factors);
        for (part, factor) in parts.iter().zip(&factors).filter(|(p, _)| p.len() > all) {
            add_one(&mut to[all..], &part[all..], factor);
        }
        last
    }

    /// Takes the finished row of a state out of the buffer. Returns whether it leads nowhere above.
    fn keep(&mut self, lane: usize, state: usize, from: usize, last: usize) -> bool {
        let lanes =
            |range: &[Lanes]| -> Vec<f64> { range.iter().filter_map(|l| l.get(lane)).copied().collect() };
        self.below.push(Below { from, p: lanes(self.buffer.get(from..state).unwrap_or_default()) });
        let mut above = lanes(self.buffer.get(state + 1..=last).unwrap_or_default());
        above.truncate(above.iter().rposition(|p| *p > 0.0).map_or(0, |i| i + 1));
        let leave: f64 = above.iter().sum();
        self.leaves.push(leave);
        self.reach = self.reach.max(state + above.len());
        let ring = self.reduced.len();
        if let Some(slot) = self.reduced.get_mut(state % ring) {
            *slot = Reduced { above, leave };
        }
        leave == 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The stationary distribution by textbook GTH on the whole matrix, from the full queue downwards.
    #[expect(clippy::needless_range_loop, reason = "a matrix is read by row and column")]
    fn dense(chain: &Chain<'_>) -> Vec<f64> {
        let n = chain.states();
        let mut m: Vec<Vec<f64>> = (0..n)
            .map(|i| {
                let mut row = vec![0.0; n];
                chain.add_row(i, 1.0, &mut row);
                row
            })
            .collect();
        for k in (1..n).rev() {
            let s: f64 = m[k][..k].iter().sum();
            for i in 0..k {
                m[i][k] /= s;
                for j in 0..k {
                    let add = m[i][k] * m[k][j];
                    m[i][j] += add;
                }
            }
        }
        let mut q = vec![1.0];
        for k in 1..n {
            q.push((0..k).map(|i| q[i] * m[i][k]).sum());
        }
        let sum: f64 = q.iter().sum();
        q.iter().map(|p| p / sum).collect()
    }

    fn rows(batch: usize, width: usize) -> impl Strategy<Value = Vec<Counts>> {
        let row = (0..3usize, prop::collection::vec(0.01..1.0f64, 1..width));
        let normal = move |(start, mut p): (usize, Vec<f64>)| {
            // Something must be able to go down, else the full queue is all there is.
            p[0] += 0.01;
            let sum: f64 = p.iter().sum();
            p.iter_mut().for_each(|x| *x /= sum);
            Counts { start: start.min(batch.saturating_sub(1)), p, beyond: 0.0 }
        };
        prop::collection::vec(row.prop_map(normal), batch + 1)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn banded_elimination_is_dense_elimination(
            (batch, rows, extra) in (1..12usize).prop_flat_map(|b| (Just(b), rows(b, 2 * b + 6), 0..40usize)),
        ) {
            let chain = Chain { rows: &rows, batch, queue: batch + extra, phases: 1 };
            let q = match chain.stationary() {
                Ok(q) => q,
                // One class must be reachable from all states for the dense one to hold, too.
                Err(Error::NotUnique { .. }) => return Ok(()),
                Err(other) => return Err(TestCaseError::fail(other.to_string())),
            };
            prop_assert!((q.iter().sum::<f64>() - 1.0).abs() < 1e-12);
            prop_assert!(chain.residual(&q) < 1e-13);
            let dense = dense(&chain);
            if dense.iter().all(|p| p.is_finite()) {
                for (a, b) in q.iter().zip(&dense) {
                    prop_assert!((a - b).abs() <= 1e-11 * b + 1e-30, "{} {}", a, b);
                }
            }
        }
    }

    #[test]
    fn tiny_probabilities_keep_their_digits() {
        // Up with probability u, else down by one: a birth-death chain, geometric with ratio u/(1−u).
        let up = 1e-3;
        let rows = [
            Counts { start: 0, p: vec![1.0 - up, up], beyond: 0.0 },
            Counts { start: 0, p: vec![1.0 - up, 0.0, up], beyond: 0.0 },
        ];
        let chain = Chain { rows: &rows, batch: 1, queue: 90, phases: 1 };
        let q = chain.stationary().unwrap();
        let ratio = up / (1.0 - up);
        for k in 1..89 {
            assert!((q[k + 1] / q[k] / ratio - 1.0).abs() < 1e-10, "{k}: {}", q[k + 1] / q[k]);
        }
        assert!(q[90] > 0.0 && q[90] < 1e-250);
    }

    #[test]
    fn overload_fills_the_queue_and_two_classes_are_refused() {
        let certain = |n: usize| Counts { start: n, p: vec![1.0], beyond: 0.0 };
        let rows: Vec<Counts> = (0..=4).map(|_| certain(9)).collect();
        let q = Chain { rows: &rows, batch: 4, queue: 20, phases: 1 }.stationary().unwrap();
        assert_eq!(q[20], 1.0);
        // From 0 to 2 or to 4; both stay where they are.
        let split = Counts { start: 2, p: vec![0.5, 0.0, 0.5], beyond: 0.0 };
        let rows = [split, certain(2), certain(2), certain(4), certain(4)];
        let chain = Chain { rows: &rows, batch: 4, queue: 20, phases: 1 };
        assert!(matches!(chain.stationary(), Err(Error::NotUnique { .. })));
    }
}
