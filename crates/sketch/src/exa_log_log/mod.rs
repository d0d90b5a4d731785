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

mod coding;
mod fields;
mod hip;
mod sets;
mod shape;
mod sparse;

pub use hip::ExaLogLogHip;
use shape::{Register, Seen, Shape};

use crate::array::{Array, Rule};
use crate::serial::{Decoder, Encoder};
use crate::stats::two_sided;
use crate::{Bounds, BuildError, Kind, QueryError, SetSizes, StateError};

/// Standard error of one register that sees many keys, relative.
const ERROR: f64 = 0.345;
/// Events that a register remembers below the highest.
const BELOW: u32 = 24;
const SHAPE: Shape = Shape { t: 2, below: BELOW };

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
        (a as u32, SHAPE.event(b))
    }

    #[inline(always)]
    fn add(register: &mut u32, event: u32, _: u32) {
        if let Some(now) = SHAPE.add(parts(*register), event) {
            *register = whole(now);
        }
    }

    fn unite(register: &mut u32, other: u32) {
        *register = whole(SHAPE.united(parts(*register), parts(other)));
    }

    fn shape(n: usize) -> String {
        format!("{n} registers of 32 bits")
    }

    fn cells_for(error: f64, confidence: f64, _: f64) -> Result<f64, BuildError> {
        Ok((two_sided(confidence) * ERROR / error).powi(2))
    }

    fn cardinality(registers: &[u32]) -> Result<Bounds<f64>, QueryError> {
        Ok(Seen::of(SHAPE, registers.iter().map(|r| parts(*r))).cardinality())
    }

    fn set_sizes(a: &[u32], b: &[u32], keys: [Bounds<f64>; 3]) -> SetSizes {
        sets::sizes(SHAPE, a.iter().map(|r| parts(*r)).zip(b.iter().map(|r| parts(*r))), keys)
    }

    fn is_saturated(registers: &[u32]) -> bool {
        registers.iter().all(|r| SHAPE.group(parts(*r).0) + 1 >= SHAPE.groups())
    }

    /// By the entropy of what they keep; in version 1 as they are.
    fn write(registers: &[u32], out: &mut Encoder) {
        coding::write(SHAPE, registers.iter().map(|r| parts(*r)), out);
    }

    fn read(n: usize, d: &mut Decoder<'_>) -> Result<Vec<u32>, StateError> {
        let mut registers = Vec::new();
        if d.version() == 1 {
            let words = d.all(n)?;
            coding::read_raw(SHAPE, &words, |r| registers.push(whole(r)))?;
        } else {
            coding::read(SHAPE, n, d, |r| registers.push(whole(r)))?;
        }
        Ok(registers)
    }
}

/// The highest event, and the bits below it.
#[inline(always)]
const fn parts(register: u32) -> Register {
    (register >> BELOW, register & ((1 << BELOW) - 1))
}

#[inline(always)]
const fn whole((highest, below): Register) -> u32 {
    highest << BELOW | below
}

#[cfg(test)]
mod tests;
