//! The shape of ExaLogLog's registers, and the likelihood of what they keep.

use super::sparse::Events;
use crate::Bounds;
use crate::stats::{SIGMAS, crossing};

/// Events that a register may tell apart, at most: 62 groups of four.
const EVENTS: usize = 256;
/// Groups, at most.
pub(super) const GROUPS: usize = 63;

/// Events come in groups of 2ᵗ that have one probability, half of the group's before; a register keeps the
/// highest event that occurred, from 1 (0: none), and which of the `below` events before it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Binary logarithm of the events of a group: 1 or 2.
    pub(super) t: u32,
    /// Events below the highest one that are remembered: at most 24.
    pub(super) below: u32,
}

/// A register keeps the highest event; and from the highest of `below` bits down, a bit for each event
/// before it, set where that occurred.
pub(super) type Register = (u32, u32);

impl Shape {
    /// Groups of events. The last one has the probability of all that would follow, too.
    pub(super) const fn groups(self) -> u32 {
        64 - self.t
    }

    /// The highest event that there is.
    pub(super) const fn events(self) -> u32 {
        self.groups() << self.t
    }

    /// The event of a key, from half of its hash.
    #[inline(always)]
    pub(super) const fn event(self, hash: u64) -> u32 {
        let group = (hash | 1 << self.t).leading_zeros();
        (group << self.t) + (hash as u32 & ((1 << self.t) - 1)) + 1
    }

    /// The group of an event, which is at least 1.
    #[inline(always)]
    pub(super) const fn group(self, event: u32) -> u32 {
        event.saturating_sub(1) >> self.t
    }

    /// The probability of each event of a group.
    pub(super) fn probability(self, group: u32) -> f64 {
        (-f64::from(group.min(self.groups() - 2) + self.t + 1)).exp2()
    }

    /// Adds an event; says whether that changed the register.
    #[inline(always)]
    pub(super) fn add(self, (highest, below): Register, event: u32) -> Option<Register> {
        if event > highest {
            return Some((event, self.shifted((highest, below), event - highest)));
        }
        let apart = highest - event;
        if apart == 0 || apart > self.below || below >> (self.below - apart) & 1 == 1 {
            return None;
        }
        Some((highest, below | 1 << (self.below - apart)))
    }

    /// The content of a register that has seen what two have.
    pub(super) fn united(self, a: Register, b: Register) -> Register {
        let (high, low) = if a.0 >= b.0 { (a, b) } else { (b, a) };
        let apart = high.0 - low.0;
        // Of the same highest event, both may have seen different ones below it.
        (high.0, high.1 | if apart == 0 { low.1 } else { self.shifted(low, apart) })
    }

    /// The bits below an event that is `by` above the highest one until now.
    #[inline(always)]
    fn shifted(self, (highest, below): Register, by: u32) -> u32 {
        let with_highest = below | u32::from(highest > 0) << self.below;
        with_highest.checked_shr(by).unwrap_or(0)
    }
}

/// Events of all registers by group: those that occurred, and those of which it is known that they didn't.
pub(super) struct Seen {
    shape: Shape,
    registers: usize,
    occurred: [u64; GROUPS],
    missed: [u64; GROUPS],
}

impl Seen {
    pub(super) fn of(shape: Shape, registers: impl Iterator<Item = Register>) -> Self {
        let (mut occurred, mut missed) = ([0; GROUPS], [0; GROUPS]);
        let mut highest_of = [0u64; EVENTS];
        let mut count = |event: u32, happened: bool| {
            let table = if happened { &mut occurred } else { &mut missed };
            if let Some(n) = table.get_mut(shape.group(event) as usize) {
                *n += 1;
            }
        };
        let mut n = 0;
        for (highest, below) in registers {
            n += 1;
            if let Some(n) = highest_of.get_mut(highest as usize) {
                *n += 1;
            }
            if highest > 0 {
                count(highest, true);
            }
            for distance in 1..=shape.below.min(highest.saturating_sub(1)) {
                count(highest - distance, below >> (shape.below - distance) & 1 == 1);
            }
        }
        // Nothing above the highest event occurred.
        let mut registers_below = 0;
        for (event, n) in (0u32..).zip(highest_of) {
            if event > 0
                && let Some(missed) = missed.get_mut(shape.group(event) as usize)
            {
                *missed += registers_below;
            }
            registers_below += n;
        }
        // Events that don't exist did not fail to occur.
        missed.iter_mut().skip(shape.groups() as usize).for_each(|n| *n = 0);
        Self { shape, registers: n, occurred, missed }
    }

    /// Of registers that forgot nothing.
    pub(super) fn of_all(shape: Shape, registers: &[Events]) -> Self {
        let (mut occurred, mut missed) = ([0; GROUPS], [0; GROUPS]);
        let width = 1 << shape.t;
        for (group, (occurred, missed)) in occurred.iter_mut().zip(&mut missed).enumerate() {
            if (group as u32) < shape.groups() {
                let of = |events: &Events| (events >> (group << shape.t) & ((1 << width) - 1)).count_ones();
                *occurred = registers.iter().map(|r| u64::from(of(r))).sum();
                *missed = (registers.len() as u64 * width).saturating_sub(*occurred);
            }
        }
        Self { shape, registers: registers.len(), occurred, missed }
    }

    /// The number of keys under which all of this is the most likely. Lower and upper hold in 95 % of cases.
    pub(super) fn cardinality(&self) -> Bounds<f64> {
        // Every key causes one event.
        let least = self.occurred.iter().sum::<u64>() as f64;
        if least == 0.0 {
            return Bounds::exact(0.0);
        }
        let m = self.registers as f64;
        let rate = crossing(|log| -self.slope(log.exp2()), -40.0, 62.0).exp2();
        // The bias of the first order (Cox and Snell, J. R. Stat. Soc. B 30, 1968).
        let (second, third) = (self.information(rate, 2), self.information(rate, 3));
        let estimate = (m * rate / (1.0 + third / (2.0 * second * second))).max(least);
        // The information is that of a Poisson number of keys, whose own variance is none of the error's.
        let variance = (1.0 / second - 1.0 / estimate).max(0.0);
        bounds(estimate, variance, least, m)
    }

    /// The slope of the likelihood's logarithm, by rate; it falls from plus infinity to less than nothing.
    fn slope(&self, rate: f64) -> f64 {
        let of = |(group, (occurred, missed)): (u32, (&u64, &u64))| {
            let p = self.shape.probability(group);
            *occurred as f64 * p / (rate * p).exp_m1() - *missed as f64 * p
        };
        (0..).zip(self.occurred.iter().zip(&self.missed)).map(of).sum()
    }

    /// Σ xᵏ/(eˣ − 1) over all events that are known, x = λp: for k = 2 the Fisher information of ln λ.
    fn information(&self, rate: f64, power: i32) -> f64 {
        let of = |(group, (occurred, missed)): (u32, (&u64, &u64))| {
            let x = rate * self.shape.probability(group);
            (occurred + missed) as f64 * x.powi(power) / x.exp_m1()
        };
        (0..).zip(self.occurred.iter().zip(&self.missed)).map(of).sum()
    }
}

/// Bounds of an estimate from m registers, given the variance of its logarithm.
pub(super) fn bounds(estimate: f64, variance: f64, least: f64, m: f64) -> Bounds<f64> {
    // The fewer the registers, the longer the tails.
    let spread = (SIGMAS * (1.0 + 0.5 / m) * variance.sqrt()).exp();
    let lower = ((estimate - 0.5) / spread).max(least).min(estimate);
    Bounds { estimate, lower, upper: (estimate + 0.5) * spread }
}
