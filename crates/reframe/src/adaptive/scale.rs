//! The scale of gaps between packets: buckets of half an octave, from what is short beside the hold.

use slipstream_core::time::Nanos;

/// Buckets of gaps, half an octave each; the last one has all that are longer. Also the number of waits: a
/// wait ends where a bucket does.
pub(crate) const WAITS: usize = 32;
/// The hold has at least so many units of the scale, and fewer than twice as many, unless it is too short.
const UNITS: u32 = 12;

/// The scale of gaps: bucket 0 is below one unit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GapScale {
    shift: u32,
    /// The number of the half octave before that which begins with a unit: see [`GapScale::bucket`].
    before: u32,
}

impl GapScale {
    /// The scale that goes with this hold.
    pub(crate) fn new(hold_ns: u64) -> Self {
        let shift = (u64::BITS - hold_ns.leading_zeros()).saturating_sub(UNITS + 1);
        const ONE_NS: u32 = 2 * (f64::MAX_EXP as u32 - 1);
        Self { shift, before: ONE_NS + 2 * shift - 1 }
    }

    /// A unit has two to the power of this ns.
    pub(crate) fn shift(&self) -> u32 {
        self.shift
    }

    /// A unit, in ns: deadlines are multiples of it.
    pub(crate) fn step_ns(&self) -> u64 {
        1 << self.shift
    }

    /// The bucket of the gap between two packets.
    #[inline(always)]
    pub(crate) fn bucket(&self, from: Nanos, to: Nanos) -> u32 {
        // As a number with a fraction, it is an exponent of two behind which the upper half of an octave has
        // a 1. What it rounds away, of gaps longer than three months, decides nothing.
        let gap_ns = to.0.wrapping_sub(from.0) as i64 as f64;
        let halves = (gap_ns.to_bits() >> (f64::MANTISSA_DIGITS - 2)) as u32;
        halves.saturating_sub(self.before).min(WAITS as u32 - 1)
    }

    /// Upper end of a bucket, in half units: no gap of it is that long.
    #[inline(always)]
    pub(super) fn edge(bucket: u8) -> u64 {
        match bucket {
            0 => 2,
            b => (3 + u64::from((b - 1) & 1)) << ((b - 1) / 2),
        }
    }

    /// Upper end of a bucket, in ns; at least 1.
    #[inline(always)]
    pub(crate) fn edge_ns(&self, bucket: u8) -> u64 {
        ((Self::edge(bucket) << self.shift) >> 1).max(1)
    }

    /// A time, in quarters of a unit.
    pub(super) fn quarters(&self, ns: u64) -> i64 {
        ((ns.min(1 << 48) << 2) >> self.shift).min(1 << 30) as i64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against their ends: each bucket begins where the one before ends.
        #[test]
        fn a_gap_is_between_the_ends_of_its_bucket(hold in 1u64..1 << 32, bits in 0u32..62, part: u64) {
            let (scale, gap) = (GapScale::new(hold), part >> (63 - bits));
            let bucket = scale.bucket(Nanos(part), Nanos(part.wrapping_add(gap))) as u8;
            prop_assert!(usize::from(bucket) == WAITS - 1 || gap < scale.edge_ns(bucket));
            prop_assert!(bucket == 0 || gap >= scale.edge_ns(bucket - 1));
        }
    }
}
