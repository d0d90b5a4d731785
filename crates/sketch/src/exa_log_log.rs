//! ExaLogLog (Ertl, EDBT 2025, arXiv 2402.13726), of the family of HyperLogLog: how many distinct keys, in
//! the least memory that a constant-time update is known to need.
//!
//! A key chooses one of m registers and in it an event k with probability pₖ: four events of 2⁻³ each, four
//! of 2⁻⁴, and so on (the paper's t = 2). A register of 32 bits keeps the highest event that occurred (8
//! bits), and which of the 24 below it did (d = 24); HyperLogLog keeps only the highest. The number of keys
//! is the one under which what is kept is the most likely: event k of a register hasn't occurred with
//! probability e^(−λpₖ), where λ = n/m. One formula holds from the first key on, at a standard error of at
//! most 0.345/√m: in the same memory, four fifths of what HyperLogLog with 6-bit registers errs by, and half
//! of what [`Fm`](crate::Fm) does. States depend on the set of keys alone, and merge without loss.

use crate::array::{Array, Rule};
use crate::stats::{SIGMAS, crossing, two_sided};
use crate::{Bounds, BuildError, Kind, QueryError};

/// Standard error of one register that sees many keys, relative.
const ERROR: f64 = 0.345;
/// Events that a register remembers below the highest.
const BELOW: u32 = 24;
/// Groups of four events of the same probability; the last has that of all groups that would follow, too.
const GROUPS: usize = 62;

/// Distinct keys, from registers of 32 bits (1 to 2³⁰ of them). An accuracy needs (z·0.345/error)² of them, z
/// the normal quantile of the confidence.
pub type ExaLogLog<const N: usize> = Array<N, Registers>;

/// A cell is a register: the highest event, from 1 (0: none), in the upper 8 bits; below, from the highest
/// bit down, a bit for each of the 24 events before it, set where that occurred.
#[derive(Clone, Copy, Debug)]
pub struct Registers;

impl Rule for Registers {
    type Cell = u32;
    const KIND: Kind = Kind::ExaLogLog;
    const PURPOSE: u64 = 0x65_6c_6c;
    const CELLS: (&'static str, &'static str) = ("the number of registers", "1 to 2^30");

    #[inline(always)]
    fn mark([a, b]: [u64; 2]) -> (u32, u32) {
        // The group by leading zeros, 61 at most; which of its events, by the lowest two bits.
        let group = (b | 4).leading_zeros();
        (a as u32, group * 4 + (b as u32 & 3) + 1)
    }

    #[inline(always)]
    fn add(register: &mut u32, event: u32, _: u32) {
        let (highest, below) = (*register >> BELOW, *register & ((1 << BELOW) - 1));
        if event > highest {
            *register = event << BELOW | shifted(highest, below, event - highest);
        } else if event < highest && highest - event <= BELOW {
            *register |= 1 << (BELOW - (highest - event));
        }
    }

    fn unite(register: &mut u32, other: u32) {
        let (high, low) = if other > *register { (other, *register) } else { (*register, other) };
        let (highest, below) = (low >> BELOW, low & ((1 << BELOW) - 1));
        let apart = (high >> BELOW) - highest;
        // Of the same highest event, both may have seen different ones below it.
        *register = high | if apart == 0 { below } else { shifted(highest, below, apart) };
    }

    fn shape(n: usize) -> String {
        format!("{n} registers of 32 bits")
    }

    fn cells_for(error: f64, confidence: f64, _: f64) -> Result<f64, BuildError> {
        Ok((two_sided(confidence) * ERROR / error).powi(2))
    }

    fn cardinality(registers: &[u32]) -> Result<Bounds<f64>, QueryError> {
        let seen = Seen::of(registers);
        // Every key causes one event.
        let least = seen.occurred.iter().sum::<u64>() as f64;
        if least == 0.0 {
            return Ok(Bounds::exact(0.0));
        }
        let m = registers.len() as f64;
        let rate = crossing(|log| -seen.slope(log.exp2()), -40.0, 62.0).exp2();
        // The bias of the first order (Cox and Snell, J. R. Stat. Soc. B 30, 1968).
        let (second, third) = (seen.information(rate, 2), seen.information(rate, 3));
        let estimate = (m * rate / (1.0 + third / (2.0 * second * second))).max(least);
        // The information is that of a Poisson number of keys, whose own variance is none of the error's.
        let variance = (1.0 / second - 1.0 / estimate).max(0.0);
        // The fewer the registers, the longer the tails.
        let spread = (SIGMAS * (1.0 + 0.5 / m) * variance.sqrt()).exp();
        let lower = ((estimate - 0.5) / spread).max(least).min(estimate);
        Ok(Bounds { estimate, lower, upper: (estimate + 0.5) * spread })
    }

    fn is_saturated(registers: &[u32]) -> bool {
        registers.iter().all(|r| (*r >> BELOW) as usize > (GROUPS - 1) * 4)
    }
}

/// The bits below an event that is `by` above the highest one until now.
#[inline(always)]
fn shifted(highest: u32, below: u32, by: u32) -> u32 {
    let with_highest = below | u32::from(highest > 0) << BELOW;
    with_highest.checked_shr(by).unwrap_or(0)
}

/// The probability of each of the events of a group.
fn probability(group: usize) -> f64 {
    (-(group.min(GROUPS - 2) as f64 + 3.0)).exp2()
}

/// Events of all registers by group: those that occurred, and those of which it is known that they didn't.
struct Seen {
    occurred: [u64; GROUPS],
    missed: [u64; GROUPS],
}

impl Seen {
    fn of(registers: &[u32]) -> Self {
        let (mut occurred, mut missed) = ([0; GROUPS], [0; GROUPS]);
        let mut highest_of = [0u64; 256];
        let mut count = |event: u32, happened: bool| {
            let group = (event.saturating_sub(1) / 4) as usize;
            let table = if happened { &mut occurred } else { &mut missed };
            if let Some(n) = table.get_mut(group) {
                *n += 1;
            }
        };
        for register in registers {
            let highest = register >> BELOW;
            if let Some(n) = highest_of.get_mut(highest as usize) {
                *n += 1;
            }
            if highest > 0 {
                count(highest, true);
            }
            for distance in 1..=BELOW.min(highest.saturating_sub(1)) {
                count(highest - distance, register >> (BELOW - distance) & 1 == 1);
            }
        }
        // Nothing above the highest event occurred.
        let mut registers_below = 0;
        for (event, n) in (0u32..).zip(highest_of) {
            if event > 0
                && let Some(missed) = missed.get_mut((event as usize - 1) / 4)
            {
                *missed += registers_below;
            }
            registers_below += n;
        }
        Self { occurred, missed }
    }

    /// The slope of the likelihood's logarithm, by rate; it falls from plus infinity to less than nothing.
    fn slope(&self, rate: f64) -> f64 {
        let of = |(group, (occurred, missed)): (usize, (&u64, &u64))| {
            let p = probability(group);
            *occurred as f64 * p / (rate * p).exp_m1() - *missed as f64 * p
        };
        self.occurred.iter().zip(&self.missed).enumerate().map(of).sum()
    }

    /// Σ xᵏ/(eˣ − 1) over all events that are known, x = λp: for k = 2 the Fisher information of ln λ.
    fn information(&self, rate: f64, power: i32) -> f64 {
        let of = |(group, (occurred, missed)): (usize, (&u64, &u64))| {
            let x = rate * probability(group);
            (occurred + missed) as f64 * x.powi(power) / x.exp_m1()
        };
        self.occurred.iter().zip(&self.missed).enumerate().map(of).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;
    use crate::Sketch;

    /// The events that a register keeps of a set: the highest, and those within 24 below it.
    fn twin(events: &BTreeSet<u32>) -> u32 {
        let Some(highest) = events.last() else { return 0 };
        let below = events.iter().filter(|e| *e < highest && highest - *e <= BELOW);
        highest << BELOW | below.map(|e| 1 << (BELOW - (highest - e))).sum::<u32>()
    }

    proptest! {
        #[test]
        fn a_register_keeps_what_it_should(
            a in proptest::collection::vec(1u32..249, 0..40),
            b in proptest::collection::vec(1u32..249, 0..40),
        ) {
            let of = |events: &[u32]| {
                let mut register = 0;
                events.iter().for_each(|e| Registers::add(&mut register, *e, 1));
                register
            };
            prop_assert_eq!(of(&a), twin(&a.iter().copied().collect()));
            let mut both = of(&a);
            Registers::unite(&mut both, of(&b));
            prop_assert_eq!(both, twin(&a.iter().chain(&b).copied().collect()));
        }
    }

    #[test]
    fn the_error_is_as_stated_at_every_number_of_keys() {
        for (registers, trials) in [(16, 400u64), (256, 200)] {
            for n in [1u32, 2, 5, 20, 100, 1000, 20_000] {
                let (mut square, mut bias, mut held) = (0.0, 0.0, 0u64);
                for seed in 0..trials {
                    let mut sketch = ExaLogLog::<4>::new(registers, seed).unwrap();
                    (0..n).for_each(|i| sketch.update(&i.to_le_bytes(), 1));
                    let got = sketch.cardinality().unwrap();
                    let error = got.estimate / f64::from(n) - 1.0;
                    (square, bias) = (square + error * error, bias + error);
                    held += u64::from((got.lower..=got.upper).contains(&f64::from(n)));
                }
                let (rms, bias) = ((square / trials as f64).sqrt(), bias / trials as f64);
                let stated = ERROR / (registers as f64).sqrt();
                assert!(rms < 1.2 * stated, "{registers} registers, {n} keys: {rms} instead of {stated}");
                assert!(bias.abs() < 0.25 * stated, "{registers} registers, {n} keys: a bias of {bias}");
                assert!(
                    held * 100 >= trials * 92,
                    "{registers} registers, {n} keys: {held} of {trials} held"
                );
            }
        }
    }

    #[test]
    fn nothing_and_the_most() {
        let mut sketch = ExaLogLog::<4>::new(4, 1).unwrap();
        assert_eq!(sketch.cardinality().unwrap(), Bounds::exact(0.0));
        sketch.update(&[1; 4], 7);
        assert!((sketch.cardinality().unwrap().estimate - 1.0).abs() < 0.1);
        // A register whose bits no traffic would set is no reason to fail.
        for register in [u32::MAX, 0xff00_0000, 0x01ff_ffff] {
            let bounds = Registers::cardinality(&[register; 3]).unwrap();
            assert!(bounds.lower <= bounds.estimate && bounds.estimate <= bounds.upper, "{bounds:?}");
        }
        assert!(Registers::is_saturated(&[u32::MAX]) && !Registers::is_saturated(&[0, u32::MAX]));
    }
}
