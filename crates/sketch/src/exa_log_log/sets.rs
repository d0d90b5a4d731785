//! The numbers of keys that two streams share, and that only one of them has: by maximum likelihood from the
//! registers of both (Ertl, arXiv 1702.01284, §4, for HyperLogLog).
//!
//! Each event of a register occurred to both streams, to one of them or to neither. With a keys that only the
//! first stream has, b that only the second has and x that both have, for each register, it didn't occur to
//! the first with probability e^(−(a+x)p), to neither with e^(−(a+b+x)p). The a, b and x are taken under
//! which what the registers keep is the most likely; their errors follow from the information that it has
//! of them. That tells more than the difference of three counts, the most where one set is much the smaller.

use super::shape::{GROUPS, Register, Shape};
use super::sparse::{Events, event_bit};
use crate::Bounds;
use crate::sketch::SetSizes;

/// Standard errors either side that hold 95 % of answers: more than of a normal distribution, for what few
/// events tell has longer tails.
const SIGMAS: f64 = 2.3;
/// Steps to the most likely sizes, at most; a few dozen are needed.
const STEPS: usize = 400;
/// The least of a, b and x for all registers together, in keys: for less, none.
const NONE: f64 = 1e-3;

/// Events of a group by what is known of them.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    /// Neither stream, the second, the first, both.
    together: [f64; 4],
    /// Known of the first stream alone: it didn't occur, it did.
    of_first: [f64; 2],
    /// The same of the second.
    of_second: [f64; 2],
}

/// A register that says of events whether they occurred.
pub(super) trait Says: Copy {
    /// Its word on an event: nothing where it has forgotten it.
    fn said(self, shape: Shape, event: u32) -> Option<bool>;
}

impl Says for Register {
    fn said(self, shape: Shape, event: u32) -> Option<bool> {
        let (highest, below) = self;
        if event >= highest {
            return Some(event == highest && event > 0);
        }
        let apart = highest - event;
        (apart <= shape.below).then(|| below >> (shape.below - apart) & 1 == 1)
    }
}

impl Says for Events {
    fn said(self, _: Shape, event: u32) -> Option<bool> {
        Some(self & event_bit(event) != 0)
    }
}

/// Keys for each register: of the first stream alone, of the second alone, of both.
type Rates = [f64; 3];

/// The probability that an event occurred to neither, the second, the first, both; and its derivatives.
fn outcomes(rates: Rates, p: f64) -> [(f64, Rates); 4] {
    let [a, b, x] = rates.map(|rate| (-rate * p).exp());
    let [a1, b1, x1] = rates.map(|rate| -(-rate * p).exp_m1());
    let neither = a * b * x;
    // Not the first: only keys of the second stream alone.
    let (second, first) = (a * x * b1, b * x * a1);
    let both = x1 + x * a1 * b1;
    let (no_first, no_second) = (a * x, b * x);
    [
        (neither, [-neither * p; 3]),
        (second, [-second * p, neither * p, -second * p]),
        (first, [neither * p, -first * p, -first * p]),
        (both, [(no_first - neither) * p, (no_second - neither) * p, (no_first + no_second - neither) * p]),
    ]
}

/// The probability that an event didn't occur to a stream, which has its own keys and those of both, and that
/// it did; with derivatives.
fn outcomes_alone(rates: Rates, p: f64, second: bool) -> [(f64, Rates); 2] {
    let [a, b, x] = rates;
    let rate = if second { b } else { a } + x;
    let (not, slope) = ((-rate * p).exp(), (-rate * p).exp() * p);
    let own = |v: f64| if second { [0.0, v, v] } else { [v, 0.0, v] };
    [(not, own(-slope)), (-(-rate * p).exp_m1(), own(slope))]
}

struct Both {
    shape: Shape,
    registers: f64,
    events: [Told; GROUPS],
}

impl Both {
    fn of(shape: Shape, pairs: impl Iterator<Item = (impl Says, impl Says)>) -> Self {
        let mut this = Self { shape, registers: 0.0, events: [Told::default(); GROUPS] };
        for (first, second) in pairs {
            this.registers += 1.0;
            for event in 1..=shape.events() {
                let Some(events) = this.events.get_mut(shape.group(event) as usize) else { continue };
                let (counts, outcome) = match (first.said(shape, event), second.said(shape, event)) {
                    (Some(a), Some(b)) => {
                        (events.together.as_mut_slice(), usize::from(a) * 2 + usize::from(b))
                    }
                    (Some(a), None) => (events.of_first.as_mut_slice(), usize::from(a)),
                    (None, Some(b)) => (events.of_second.as_mut_slice(), usize::from(b)),
                    (None, None) => continue,
                };
                counts.get_mut(outcome).into_iter().for_each(|n| *n += 1.0);
            }
        }
        this
    }

    /// Visits all that is known: how often, its probability and derivatives; and how often the question was
    /// open.
    fn each(&self, rates: Rates, mut visit: impl FnMut(f64, f64, (f64, Rates))) {
        for (group, events) in (0..).zip(&self.events) {
            let p = self.shape.probability(group);
            let all = events.together.iter().sum::<f64>();
            if all > 0.0 {
                events
                    .together
                    .iter()
                    .zip(outcomes(rates, p))
                    .for_each(|(n, outcome)| visit(*n, all, outcome));
            }
            for (second, alone) in [false, true].into_iter().zip([&events.of_first, &events.of_second]) {
                let all = alone.iter().sum::<f64>();
                if all > 0.0 {
                    let of = outcomes_alone(rates, p, second);
                    alone.iter().zip(of).for_each(|(n, outcome)| visit(*n, all, outcome));
                }
            }
        }
    }

    fn likelihood(&self, rates: Rates) -> f64 {
        let mut sum = 0.0;
        self.each(rates, |n, _, (p, _)| {
            if n > 0.0 {
                sum += n * p.max(f64::MIN_POSITIVE).ln();
            }
        });
        sum
    }

    /// The slope of the likelihood's logarithm, and the information: of a, b and x.
    fn slope(&self, rates: Rates) -> (Rates, [Rates; 3]) {
        let (mut slope, mut information) = ([0.0; 3], [[0.0; 3]; 3]);
        self.each(rates, |n, all, (p, by)| {
            let p = p.max(f64::MIN_POSITIVE);
            for (i, row) in information.iter_mut().enumerate() {
                let own = by.get(i).copied().unwrap_or(0.0);
                slope.iter_mut().skip(i).take(1).for_each(|s| *s += n * own / p);
                row.iter_mut().zip(by).for_each(|(cell, other)| *cell += all * own * other / p);
            }
        });
        (slope, information)
    }

    /// The most likely a, b and x, from a guess, and what their variances are.
    fn solve(&self, guess: Rates) -> (Rates, Rates) {
        let least = NONE / self.registers;
        let mut rates = guess.map(|rate| rate.max(least));
        let mut best = self.likelihood(rates);
        for _ in 0..STEPS {
            let (slope, information) = self.slope(rates);
            // In logarithms, in which no size falls below none.
            let scale = |row: Rates, by: f64| {
                let mut row = row;
                row.iter_mut().zip(rates).for_each(|(cell, rate)| *cell *= rate * by);
                row
            };
            let mut scaled = information;
            scaled.iter_mut().zip(rates).for_each(|(row, rate)| *row = scale(*row, rate));
            let Some(inverse) = inverted(scaled) else { break };
            let mut step = [0.0; 3];
            for (to, row) in step.iter_mut().zip(inverse) {
                *to = row.iter().zip(slope).zip(rates).map(|((i, s), r)| i * s * r).sum::<f64>();
                *to = f64::clamp(*to, -2.0, 2.0);
            }
            let mut length = 1.0;
            let next = loop {
                let mut next = rates;
                next.iter_mut()
                    .zip(step)
                    .for_each(|(rate, by)| *rate = (*rate * (by * length).exp()).max(least));
                let now = self.likelihood(next);
                if now >= best {
                    best = now;
                    break Some(next);
                }
                length /= 2.0;
                if length < 1e-6 {
                    break None;
                }
            };
            let Some(next) = next else { break };
            let moved = next.iter().zip(rates).map(|(a, b)| (a / b).ln().abs()).fold(0.0, f64::max);
            rates = next;
            if moved < 1e-7 {
                break;
            }
        }
        let (_, information) = self.slope(rates);
        let variance = inverted(information).map_or([f64::INFINITY; 3], |[a, b, x]| [a[0], b[1], x[2]]);
        (rates, variance)
    }
}

/// The inverse of a symmetric matrix; nothing where there is none.
fn inverted(m: [Rates; 3]) -> Option<[Rates; 3]> {
    let [[a, b, c], [_, d, e], [_, _, f]] = m;
    let (aa, bb, cc) = (d * f - e * e, c * e - b * f, b * e - c * d);
    let determinant = a * aa + b * bb + c * cc;
    if !determinant.is_normal() {
        return None;
    }
    let rows = [[aa, bb, cc], [bb, a * f - c * c, b * c - a * e], [cc, b * c - a * e, a * d - b * b]];
    Some(rows.map(|row| row.map(|cell| cell / determinant)))
}

/// The sizes of what two sets of registers share, given the numbers of keys of either and of both together.
pub(super) fn sizes(
    shape: Shape,
    pairs: impl Iterator<Item = (impl Says, impl Says)>,
    [first, second, union]: [Bounds<f64>; 3],
) -> SetSizes {
    let both = Both::of(shape, pairs);
    let m = both.registers;
    let (a, b, u) = (first.estimate / m, second.estimate / m, union.estimate / m);
    // From far below a size grows too slowly.
    let least = 0.1 * a.min(b);
    let (rates, variance) = both.solve([u - b, u - a, a + b - u].map(|guess| guess.max(least)));
    let part = |rate: f64, variance: f64, most: f64| {
        let (n, sigmas) = (rate * m, SIGMAS * variance.max(0.0).sqrt() * m);
        let estimate = if n < 0.5 { 0.0 } else { n.min(most) };
        // A part of which nothing is seen may be as large as what would seldom leave a trace.
        let (lower, upper) = ((n - sigmas).max(0.0), (n + sigmas + 0.5).min(most));
        Bounds { estimate, lower: lower.min(estimate), upper: upper.max(estimate) }
    };
    let [a, b, x] = rates;
    let [va, vb, vx] = variance;
    SetSizes {
        union,
        intersection: part(x, vx, first.upper.min(second.upper)),
        only_first: part(a, va, first.upper),
        only_second: part(b, vb, second.upper),
    }
}
