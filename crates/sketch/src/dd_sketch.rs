//! DDSketch (Masson, Rim and Lee, PVLDB 12, 2019): quantiles of values, each with a relative error that is
//! certain.
//!
//! A value counts in a bucket whose ends are apart by a fixed share of it. The buckets are those of
//! DDSketch's linearly interpolated mapping: every power of two is cut into 2ᵇ equal parts, so that a
//! bucket's number is found with integers alone, and is the same on every machine. Half of a bucket is
//! 2⁻⁽ᵇ⁺¹⁾ of its lower end; values below 2ᵇ⁺¹ have a bucket each. All values of 64 bits have their bucket
//! from the beginning: none is ever collapsed into another, and what holds for one value holds for all.
//! States add up.
//!
//! As a [`Sketch`], it takes each update's weight for a value (a size in bytes, a delay in ns), whatever the
//! key. An aggregator in front of it would add values up: it must have none.

use crate::kind::need;
use crate::serial::{Decoder, Encoder, StateError};
use crate::state::{Add, State, state_methods, tables};
use crate::{BuildError, Confidence, Kind, QueryError, Question, Size, Sketch, Update, ValueRange};

/// The most bits of a part of a power of two.
const MAX_BITS: u32 = 16;

/// Quantiles of values.
#[derive(Clone, Debug)]
pub struct DdSketch<const N: usize> {
    /// Values by bucket.
    buckets: Vec<u64>,
    bits: u32,
    seed: u64,
    /// The sum of all values; saturates.
    weight: u64,
}

impl<const N: usize> DdSketch<N> {
    /// The most bits of a part of a power of two.
    pub const MAX_BITS: u32 = MAX_BITS;

    /// An empty sketch that cuts every power of two into 2ᵇ parts, b from 0 to 16: values are known to within
    /// 2⁻⁽ᵇ⁺¹⁾ of themselves. The seed says nothing here, but states of one measurement share it.
    ///
    /// # Errors
    /// [`BuildError`] where the number is out of range.
    pub fn new(bits: u32, seed: u64) -> Result<Self, BuildError> {
        if bits > Self::MAX_BITS {
            let (what, range) = ("the bits of a part", "0 to 16");
            return Err(BuildError::Parameter { kind: Kind::DdSketch, what, range });
        }
        need(Kind::DdSketch, count(bits) * 8)?;
        Ok(Self { buckets: vec![0; count(bits)], bits, seed, weight: 0 })
    }

    /// The sketch for a size: the finest that fits, or the coarsest whose error is no more than the accuracy
    /// asks for (a share of the value; its confidence and number of flows make no difference).
    ///
    /// # Errors
    /// [`BuildError`] where the size is impossible.
    pub fn sized(size: Size, seed: u64) -> Result<Self, BuildError> {
        Self::new(bits_for(size)?, seed)
    }

    /// The most by which a value that is told differs from one that was put in, relative.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        half_width(self.bits)
    }

    /// Number of values.
    #[must_use]
    pub fn values(&self) -> u64 {
        values(&self.buckets)
    }

    #[inline(always)]
    fn add(&mut self, value: u64) {
        let bucket = bucket_of(value, self.bits);
        if let Some(n) = self.buckets.get_mut(bucket) {
            *n = n.saturating_add(1);
        }
    }
}

/// The bits of a part for a size.
fn bits_for(size: Size) -> Result<u32, BuildError> {
    let kind = Kind::DdSketch;
    let bits = match size {
        Size::Memory(budget) => (0..=MAX_BITS).rev().find(|b| count(*b) * 8 <= budget),
        Size::Accuracy { error, .. } => (0..=MAX_BITS).find(|b| half_width(*b) <= error),
    };
    match (bits, size) {
        (Some(bits), _) => Ok(bits),
        (None, Size::Memory(budget)) => Err(BuildError::TooSmall { kind, least: count(0) * 8, budget }),
        (None, Size::Accuracy { .. }) => {
            let (what, range) = ("the error", "at least 2^-17");
            Err(BuildError::Parameter { kind, what, range })
        }
    }
}

fn values(buckets: &[u64]) -> u64 {
    buckets.iter().fold(0, |sum, n| sum.saturating_add(*n))
}

/// The ranges of buckets that have values.
fn ranges(buckets: &[u64], bits: u32) -> Vec<ValueRange> {
    let held = buckets.iter().enumerate().filter(|(_, n)| **n > 0);
    let range = |(bucket, values): (usize, &u64)| {
        let (low, high) = ends(bucket, bits);
        ValueRange { low, high, values: *values }
    };
    held.map(range).collect()
}

/// Buckets of all values of 64 bits.
fn count(bits: u32) -> usize {
    bucket_of(u64::MAX, bits) + 1
}

/// Half of a bucket, relative to its lower end.
fn half_width(bits: u32) -> f64 {
    0.5 / f64::from(1u32 << bits)
}

/// The bucket of a value. Below 2ᵇ⁺¹ it is the value itself; above, the number of its power of two and the b
/// bits behind its highest.
#[inline(always)]
fn bucket_of(value: u64, bits: u32) -> usize {
    let power = (value | 1).ilog2();
    let shift = power.saturating_sub(bits);
    (u64::from(shift) << bits) as usize + (value >> shift) as usize
}

/// The least and the greatest value of a bucket.
fn ends(bucket: usize, bits: u32) -> (u64, u64) {
    let part = 1u64 << bits;
    let bucket = bucket as u64;
    if bucket < 2 * part {
        return (bucket, bucket);
    }
    let shift = (bucket >> bits) - 1;
    let low = (part | bucket & (part - 1)) << shift;
    (low, low + ((1 << shift) - 1))
}

impl<const N: usize> State<N> for DdSketch<N> {
    fn read_parameters(seed: u64, d: &mut Decoder<'_>) -> Result<Self, StateError> {
        let bits = d.u32()?;
        if bits > Self::MAX_BITS {
            return Err(StateError::Damaged("its shape is impossible"));
        }
        Ok(Self { buckets: Vec::new(), bits, seed, weight: 0 })
    }

    fn write_parameters(&self, out: &mut Encoder) {
        out.u32(self.bits);
    }

    tables! { self: buckets: Add, count(self.bits); }
}

impl<const N: usize> Sketch<N> for DdSketch<N> {
    state_methods!();

    fn kind(&self) -> Kind {
        Kind::DdSketch
    }

    fn shape(&self) -> String {
        format!("powers of two in {} parts", 1u32 << self.bits)
    }

    fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets.as_slice())
    }

    /// The weight is a value; the key makes no difference.
    fn update(&mut self, _: &[u8; N], value: u64) {
        self.weight = self.weight.saturating_add(value);
        self.add(value);
    }

    fn update_all(&mut self, updates: &[Update<N>]) {
        for u in updates {
            self.weight = self.weight.saturating_add(u64::from(u.weight));
            self.add(u64::from(u.weight));
        }
    }

    fn update_cost(&self) -> f64 {
        0.3
    }

    fn merges_exactly(&self) -> bool {
        true
    }

    fn confidence(&self, _: Question) -> Confidence {
        Confidence::Certain
    }

    /// Quantiles ask how many values there are, however great their sum is.
    fn is_saturated(&self) -> bool {
        self.buckets.contains(&u64::MAX)
    }

    fn value_ranges(&self) -> Result<Vec<ValueRange>, QueryError> {
        Ok(ranges(&self.buckets, self.bits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::quantile;

    #[test]
    fn buckets_follow_one_another_and_are_as_narrow_as_stated() {
        for bits in [0, 1, 5, 16] {
            let mut next = 0u64;
            for bucket in 0..count(bits) {
                let (low, high) = ends(bucket, bits);
                assert_eq!(low, next, "bucket {bucket} of {bits} bits");
                assert_eq!((bucket_of(low, bits), bucket_of(high, bits)), (bucket, bucket));
                assert!((high - low) as f64 / 2.0 <= half_width(bits) * low as f64);
                next = high.wrapping_add(1);
            }
            assert_eq!(next, 0, "the last bucket ends with the greatest value");
        }
    }

    proptest! {
        #[test]
        fn quantiles_are_those_of_the_sorted_values(
            values in proptest::collection::vec((0u32..64).prop_flat_map(|s| 0..=u64::MAX >> s), 1..200),
            q in 0.0f64..=1.0, bits in 0u32..9, cut in 0usize..200,
        ) {
            let of = |values: &[u64]| {
                let mut sketch = DdSketch::<4>::new(bits, 1).unwrap();
                values.iter().for_each(|v| sketch.update(&[0; 4], *v));
                sketch
            };
            let cut = cut.min(values.len());
            let mut sketch = of(&values[..cut]);
            sketch.merge(&of(&values[cut..])).unwrap();
            prop_assert_eq!(&sketch.buckets, &of(&values).buckets);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            let truth = sorted[(q * (sorted.len() - 1) as f64).floor() as usize] as f64;
            let got = quantile(&sketch.value_ranges().unwrap(), q).unwrap();
            prop_assert!(got.lower <= truth && truth <= got.upper, "{truth} in {got:?}");
            prop_assert!((got.estimate - truth).abs() <= sketch.relative_error() * truth * 1.000_001);
            // Two sketches of different widths, asked together.
            let mut coarse = DdSketch::<4>::new(0, 1).unwrap();
            values[cut..].iter().for_each(|v| coarse.update(&[0; 4], *v));
            let both = [of(&values[..cut]).value_ranges().unwrap(), coarse.value_ranges().unwrap()].concat();
            let got = quantile(&both, q).unwrap();
            prop_assert!(got.lower <= truth && truth <= got.upper, "{truth} in {got:?}");
        }
    }

    #[test]
    fn sizes() {
        let of = |size| DdSketch::<4>::sized(size, 1);
        assert_eq!(of(Size::Memory(1 << 16)).unwrap().bits, 7);
        assert!(of(Size::Memory(1 << 16)).unwrap().memory_bytes() <= 1 << 16);
        assert!(of(Size::Memory(100)).is_err());
        let accuracy = |error| Size::Accuracy { error, confidence: 0.95, flows: 1 };
        assert_eq!(of(accuracy(0.01)).unwrap().bits, 6);
        assert!(of(accuracy(1e-9)).is_err());
        assert_eq!(quantile(&DdSketch::<4>::new(3, 1).unwrap().value_ranges().unwrap(), 0.5), None);
    }
}
