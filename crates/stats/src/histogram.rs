//! A log-linear histogram: values below 256 each have a bucket, above that 128 buckets an octave.
//!
//! Recording is a shift, an add and an increment, without a branch that depends on the data but for growth.
//! Quantiles interpolate linearly between order statistics as NumPy does (`percentile(...,
//! method="linear")`), which bucketed quantiles elsewhere don't.

use alloc::vec::Vec;

const LINEAR: u64 = 256;
const SUB_BITS: u32 = 7;

/// A histogram of unsigned values.
///
/// ```
/// use slipstream_stats::Histogram;
///
/// let (mut first, mut second) = (Histogram::new(), Histogram::new());
/// first.record_n(100, 3);
/// second.record(1_000_000);
/// first.merge(&second);
/// assert_eq!((first.count(), first.sum(), first.max()), (4, 1_000_300, Some(1_000_000)));
/// // Exact below 256; above, a bucket is at most 0.8 % of its values wide.
/// assert_eq!(first.quantile(0.5), Some(100.0));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Histogram {
    counts: Vec<u64>,
    count: u64,
    sum: u128,
    min: u64,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self::new()
    }
}

/// One non-empty bucket: `count` values in `from..=to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Bucket {
    /// Smallest value of the bucket.
    pub from: i64,
    /// Largest value of the bucket.
    pub to: i64,
    /// Values recorded in it.
    pub count: u64,
}

#[inline(always)]
fn index(value: u64) -> usize {
    // Below 128 an octave of its own would be finer than a value: those are their own index, as in the octave
    // of 128.
    let shift = (value | 1 << SUB_BITS).ilog2() - SUB_BITS;
    ((shift as usize) << SUB_BITS) + (value >> shift) as usize
}

/// Values below this are exact as floating-point numbers.
const EXACT: u64 = 1 << 53;

/// Values below this fit into 64 bits when they are multiplied with a number of 32 bits.
const SHORT: u64 = 1 << 32;

/// As [`index`], of values below [`EXACT`]: such a number's exponent and the highest bits of its mantissa are
/// octave and place in it. Finding the highest bit is slow on many processors, a conversion is not.
#[inline(always)]
fn index_of_exact(value: u64) -> usize {
    const OCTAVES: u64 = (f64::MAX_EXP as u64 - 1 + SUB_BITS as u64 - 1) << SUB_BITS;
    let bits = (value as i64 as f64).to_bits();
    if value < 1 << SUB_BITS {
        value as usize
    } else {
        (bits >> (f64::MANTISSA_DIGITS - 1 - SUB_BITS)).wrapping_sub(OCTAVES) as usize
    }
}

fn bounds(index: usize) -> (u64, u64) {
    let index = index as u64;
    if index < LINEAR {
        return (index, index);
    }
    let octave = (index - LINEAR) / (1 << SUB_BITS) + 8;
    let sub = (index - LINEAR) % (1 << SUB_BITS);
    let width = 1u64 << (octave - u64::from(SUB_BITS));
    let low = (1u64 << octave) + sub * width;
    (low, low + (width - 1))
}

impl Histogram {
    /// An empty histogram. It grows with the largest value recorded, to at most 60 KB.
    #[must_use]
    pub fn new() -> Self {
        Self { counts: Vec::new(), count: 0, sum: 0, min: u64::MAX, max: 0 }
    }

    /// Takes the memory for values up to `max`, which else is taken as they come.
    pub fn reserve(&mut self, max: u64) {
        let buckets = index(max) + 1;
        self.counts.reserve(buckets.saturating_sub(self.counts.len()));
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: u64) {
        let i = index(value);
        match self.counts.get_mut(i) {
            Some(c) => *c += 1,
            None => self.grow(i, 1),
        }
        self.count += 1;
        self.sum += u128::from(value);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Counts a value `n` times.
    #[inline]
    pub fn record_n(&mut self, value: u64, n: u64) {
        if n == 0 {
            return;
        }
        let i = index(value);
        match self.counts.get_mut(i) {
            Some(c) => *c += n,
            None => self.grow(i, n),
        }
        self.count += n;
        self.sum += u128::from(value) * u128::from(n);
        self.min = self.min.min(value);
        self.max = self.max.max(value);
    }

    /// Counts values, each so many times: as [`record_n`](Self::record_n) of each, and faster.
    #[inline]
    pub fn record_each(&mut self, values: impl Iterator<Item = (u64, u32)>) {
        let (mut sum, mut count, mut min, mut max) = (0, 0, self.min, self.max);
        for (value, n) in values {
            if value >= SHORT || n == 0 {
                self.record_n(value, n.into());
                (min, max) = (min.min(self.min), max.max(self.max));
                continue;
            }
            let n = u64::from(n);
            let i = index_of_exact(value);
            match self.counts.get_mut(i) {
                Some(c) => *c += n,
                None => self.grow(i, n),
            }
            count += n;
            sum += u128::from(value * n);
            (min, max) = (min.min(value), max.max(value));
        }
        self.count += count;
        self.sum += sum;
        (self.min, self.max) = (min, max);
    }

    /// Counts values that never increase from one to the next: what the packets of a train waited.
    #[inline]
    pub fn record_falling(&mut self, mut values: impl ExactSizeIterator<Item = u64>) {
        let Some(first) = values.next() else { return };
        // The largest comes first: what follows has its bucket.
        self.record(first);
        let n = values.len() as u64;
        self.count += n;
        // The sum of so many such values has 64 bits.
        if first >= EXACT || n > u64::MAX / EXACT {
            return values.for_each(|value| self.add_smaller(value));
        }
        let (mut sum, mut last) = (0, first);
        for value in values {
            debug_assert!(value <= last, "{value} comes after {last}");
            if let Some(c) = self.counts.get_mut(index_of_exact(value)) {
                *c += 1;
            }
            sum += value;
            last = value;
        }
        self.sum += u128::from(sum);
        self.min = self.min.min(last);
    }

    /// A value that is counted already, in a bucket that there is.
    #[cold]
    fn add_smaller(&mut self, value: u64) {
        if let Some(c) = self.counts.get_mut(index(value)) {
            *c += 1;
        }
        self.sum += u128::from(value);
        self.min = self.min.min(value);
    }

    #[cold]
    fn grow(&mut self, i: usize, n: u64) {
        self.counts.resize(i + 1, 0);
        if let Some(c) = self.counts.get_mut(i) {
            *c += n;
        }
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (a, b) in self.counts.iter_mut().zip(&other.counts) {
            *a += b;
        }
        self.count += other.count;
        self.sum += other.sum;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
    }

    /// Values recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Their exact sum.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// The smallest, exactly; `None` when empty.
    #[must_use]
    pub fn min(&self) -> Option<u64> {
        (self.count > 0).then_some(self.min)
    }

    /// The largest, exactly; `None` when empty.
    #[must_use]
    pub fn max(&self) -> Option<u64> {
        (self.count > 0).then_some(self.max)
    }

    /// The exact mean; `None` when empty.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64)
    }

    /// The quantile `q` in 0..=1, interpolated linearly between the order statistics around rank `q·(n−1)`;
    /// within 0.4 % (exact below 256). `None` when empty.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        quantile_of(self.count, q, |rank| self.at_rank(rank))
    }

    /// The value at `rank` (0 is the smallest): its bucket's middle, kept within the recorded extremes.
    fn at_rank(&self, rank: u64) -> f64 {
        let mut seen = 0;
        for (i, &c) in self.counts.iter().enumerate() {
            seen += c;
            if seen > rank {
                let (low, high) = bounds(i);
                let middle = low as f64 / 2.0 + high as f64 / 2.0;
                return middle.clamp(self.min as f64, self.max as f64);
            }
        }
        self.max as f64
    }

    /// Counts by bucket, from that of 0 on: with [`Histogram::sum`], [`Histogram::min`] and
    /// [`Histogram::max`] all that [`Histogram::from_counts`] needs to make it again. Buckets are numbered 0
    /// to 255 for the values themselves, and from there on 128 an octave.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// A histogram that was saved. `None` where the figures contradict one another: more buckets than there
    /// are, extremes outside of the first and last bucket that have values, or a sum that such values can't
    /// have.
    #[must_use]
    pub fn from_counts(counts: Vec<u64>, sum: u128, min: u64, max: u64) -> Option<Self> {
        let (mut count, mut least, mut most) = (0u64, 0u128, 0u128);
        let (mut first, mut last) = (None, None);
        if counts.len() > index(u64::MAX) + 1 {
            return None;
        }
        for (i, &n) in counts.iter().enumerate().filter(|(_, n)| **n > 0) {
            let (low, high) = bounds(i);
            count = count.checked_add(n)?;
            least = least.checked_add(u128::from(low).checked_mul(n.into())?)?;
            most = most.checked_add(u128::from(high).checked_mul(n.into())?)?;
            first = first.or(Some(i));
            last = Some(i);
        }
        let Some((first, last)) = first.zip(last) else {
            return (sum == 0 && counts.is_empty()).then(Self::new);
        };
        let sound = min <= max && index(min) == first && index(max) == last && last + 1 == counts.len();
        (sound && (least..=most).contains(&sum)).then_some(Self { counts, count, sum, min, max })
    }

    /// The non-empty buckets in ascending order.
    pub fn buckets(&self) -> impl DoubleEndedIterator<Item = Bucket> + '_ {
        self.counts.iter().enumerate().filter(|(_, c)| **c > 0).map(|(i, &count)| {
            let (low, high) = bounds(i);
            Bucket { from: clamp_i64(low), to: clamp_i64(high), count }
        })
    }
}

fn clamp_i64(v: u64) -> i64 {
    i64::try_from(v).unwrap_or(i64::MAX)
}

fn quantile_of(count: u64, q: f64, at: impl Fn(u64) -> f64) -> Option<f64> {
    if count == 0 {
        return None;
    }
    let rank = q.clamp(0.0, 1.0) * (count - 1) as f64;
    // The whole part: `core` has no `floor`, and a rank is not negative.
    let low = rank as u64 as f64;
    let a = at(low as u64);
    let fraction = rank - low;
    if fraction <= 0.0 {
        return Some(a);
    }
    let b = at(low as u64 + 1);
    Some(a + (b - a) * fraction)
}

/// A histogram of signed values: one of [`Histogram`] on either side of zero.
///
/// ```
/// use slipstream_stats::SignedHistogram;
///
/// let mut gaps = SignedHistogram::new();
/// [-3, 1, 2, 4].into_iter().for_each(|ns| gaps.record(ns));
/// assert_eq!((gaps.count(), gaps.negative(), gaps.mean()), (4, 1, Some(1.0)));
/// assert_eq!(gaps.quantile(0.5), Some(1.5));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SignedHistogram {
    negative: Histogram,
    positive: Histogram,
}

impl SignedHistogram {
    /// An empty histogram.
    #[must_use]
    pub fn new() -> Self {
        Self { negative: Histogram::new(), positive: Histogram::new() }
    }

    /// Counts one value.
    #[inline]
    pub fn record(&mut self, value: i64) {
        if value >= 0 {
            self.positive.record(value as u64);
        } else {
            self.negative.record(value.unsigned_abs());
        }
    }

    /// Adds another histogram's counts.
    pub fn merge(&mut self, other: &Self) {
        self.negative.merge(&other.negative);
        self.positive.merge(&other.positive);
    }

    /// The values below 0, by their amounts, and the others.
    #[must_use]
    pub fn sides(&self) -> (&Histogram, &Histogram) {
        (&self.negative, &self.positive)
    }

    /// A histogram of its [sides](Self::sides). `None` where that below 0 has zeros.
    #[must_use]
    pub fn from_sides(negative: Histogram, positive: Histogram) -> Option<Self> {
        (negative.min() != Some(0)).then_some(Self { negative, positive })
    }

    /// Values recorded.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.negative.count + self.positive.count
    }

    /// Values below zero.
    #[must_use]
    pub fn negative(&self) -> u64 {
        self.negative.count
    }

    /// The exact mean; `None` when empty.
    #[must_use]
    pub fn mean(&self) -> Option<f64> {
        let n = self.count();
        let sum = self.positive.sum as i128 - self.negative.sum as i128;
        (n > 0).then(|| sum as f64 / n as f64)
    }

    /// As [`Histogram::quantile`].
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<f64> {
        let below = self.negative.count;
        quantile_of(self.count(), q, |rank| {
            if rank < below {
                -self.negative.at_rank(below - 1 - rank)
            } else {
                self.positive.at_rank(rank - below)
            }
        })
    }

    /// The non-empty buckets in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = Bucket> + '_ {
        let negative =
            self.negative.buckets().rev().map(|b| Bucket { from: -b.to, to: -b.from, count: b.count });
        negative.chain(self.positive.buckets())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn exact(values: &[i64], q: f64) -> f64 {
        let mut v = values.to_vec();
        v.sort_unstable();
        let rank = q * (v.len() - 1) as f64;
        let low = rank.floor() as usize;
        let high = (low + 1).min(v.len() - 1);
        v[low] as f64 + (v[high] - v[low]) as f64 * (rank - low as f64)
    }

    proptest! {
        #[test]
        fn buckets_partition_the_values(v in any::<u64>()) {
            let (low, high) = bounds(index(v));
            prop_assert!(low <= v && v <= high);
            prop_assert!((high - low) as f64 <= low as f64 / 127.0);
        }

        #[test]
        fn it_is_made_again_of_its_counts(values in proptest::collection::vec(any::<i64>(), 0..20), n in 0u64..3) {
            let mut h = SignedHistogram::new();
            values.iter().for_each(|v| h.record(*v));
            let (below, above) = h.sides();
            let again = |h: &Histogram, sum| {
                Histogram::from_counts(h.counts().to_vec(), sum, h.min().unwrap_or(0), h.max().unwrap_or(0))
            };
            let both = again(below, below.sum()).zip(again(above, above.sum()));
            prop_assert_eq!(both.and_then(|(b, a)| SignedHistogram::from_sides(b, a)), Some(h.clone()));
            if above.count() > 0 && n > 0 {
                let (low, high) = (above.min().unwrap_or(0), above.max().unwrap_or(0));
                let mut more = above.counts().to_vec();
                more.push(0);
                prop_assert_eq!(Histogram::from_counts(more, above.sum(), low, high), None);
                prop_assert_eq!(again(above, u128::MAX), None);
            }
        }

        #[test]
        fn values_are_counted_each_so_many_times(
            parts in proptest::collection::vec(
                proptest::collection::vec(
                    (prop_oneof![0u64..300, 0u64..10_000_000, SHORT - 2..SHORT + 2, any::<u64>()],
                     prop_oneof![0u32..3, any::<u32>()]),
                    0..10),
                0..5),
        ) {
            let (mut one_by_one, mut together) = (Histogram::new(), Histogram::new());
            for part in parts {
                part.iter().for_each(|(value, n)| one_by_one.record_n(*value, u64::from(*n)));
                together.record_each(part.into_iter());
                prop_assert_eq!(&one_by_one, &together);
            }
        }

        #[test]
        fn falling_values_are_counted_as_any_others(
            mut values in prop_oneof![
                proptest::collection::vec(prop_oneof![0u64..300, any::<u64>()], 0..50),
                proptest::collection::vec(prop_oneof![0u64..300, 0u64..10_000_000], 0..50),
                proptest::collection::vec((0u32..54, 0u64..3).prop_map(|(bit, more)| (1 << bit) + more - 1), 0..50),
            ],
            before in proptest::collection::vec(0u64..100_000, 0..3),
        ) {
            values.sort_unstable_by(|a, b| b.cmp(a));
            let (mut one_by_one, mut together) = (Histogram::new(), Histogram::new());
            for &v in &before {
                one_by_one.record(v);
                together.record(v);
            }
            values.iter().for_each(|&v| one_by_one.record(v));
            together.record_falling(values.into_iter());
            prop_assert_eq!(one_by_one, together);
        }

        #[test]
        fn quantiles_follow_the_sorted_list(
            values in proptest::collection::vec(prop_oneof![0i64..300, -5_000_000i64..5_000_000], 1..200),
            q in 0.0f64..=1.0,
        ) {
            let mut h = SignedHistogram::new();
            for &v in &values {
                h.record(v);
            }
            let want = exact(&values, q);
            let got = h.quantile(q).unwrap();
            let widest = values.iter().map(|v| v.unsigned_abs()).max().unwrap() as f64;
            // Between two order statistics of opposite sign the error of both counts, so it is bounded by the
            // widest.
            let same_sign = values.iter().all(|v| *v >= 0);
            let tolerance = if same_sign { want.abs() * 0.005 } else { widest * 0.005 };
            prop_assert!((got - want).abs() <= tolerance + 1e-9, "{got} against {want}");
        }

        #[test]
        fn merging_equals_recording_in_one(
            a in proptest::collection::vec(any::<i32>(), 0..50),
            b in proptest::collection::vec(any::<i32>(), 0..50),
        ) {
            let mut parts = (SignedHistogram::new(), SignedHistogram::new(), SignedHistogram::new());
            a.iter().for_each(|&v| parts.0.record(v.into()));
            b.iter().for_each(|&v| parts.1.record(v.into()));
            a.iter().chain(&b).for_each(|&v| parts.2.record(v.into()));
            parts.0.merge(&parts.1);
            prop_assert_eq!(parts.0.mean(), parts.2.mean());
            prop_assert_eq!(parts.0.quantile(0.5), parts.2.quantile(0.5));
            prop_assert_eq!(parts.0.buckets().collect::<Vec<_>>(), parts.2.buckets().collect::<Vec<_>>());
        }
    }
}
