//! The interface of all sketches: they take updates, answer (or say that they can't), merge, and are saved.

use std::any::Any;
use std::fmt::Debug;

use crate::serial::Encoder;
use crate::stats::SHARE;
use crate::{Kind, order};

/// One key and what is added to it: a packet, or all packets of a train, or what the aggregator collected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Update<const N: usize> {
    /// The key.
    pub key: [u8; N],
    /// Packets or bytes. A heavier update is made as several.
    pub weight: u32,
}

/// An answer with the interval in which the truth lies: always, or with the probability that the sketch's
/// documentation states.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bounds<T> {
    /// The best guess.
    pub estimate: T,
    /// No less than this.
    pub lower: T,
    /// No more than this.
    pub upper: T,
}

impl<T: Copy> Bounds<T> {
    /// A figure that is known.
    #[must_use]
    pub const fn exact(value: T) -> Self {
        Self { estimate: value, lower: value, upper: value }
    }
}

/// A question to a sketch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Question {
    /// Sizes of flows, by name or the heaviest.
    Sizes,
    /// Flows whose sizes changed.
    Changes,
    /// Sources with many counterparts.
    Spreads,
    /// The number of flows of each size.
    Distribution,
    /// The number of flows.
    Cardinality,
    /// The entropy.
    Entropy,
    /// The second moment.
    SecondMoment,
    /// Quantiles of values.
    Quantiles,
}

/// The share of cases in which the bounds of an answer hold.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Confidence {
    /// The answer has no bounds: it is an estimate.
    None,
    /// In at least this share of cases, above 0 and below 1.
    Share(f64),
    /// Always.
    Certain,
}

impl Confidence {
    /// Of two answers that are put together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        if other < self { other } else { self }
    }
}

/// A key and its size: weight, or number of distinct counterparts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow<const N: usize> {
    /// The key.
    pub key: [u8; N],
    /// Its size.
    pub size: Bounds<u64>,
}

/// A key whose size changed between two epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<const N: usize> {
    /// The key.
    pub key: [u8; N],
    /// Later minus earlier.
    pub change: Bounds<i64>,
}

/// Which keys are asked for: those of at least `threshold`, of these the `top` greatest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Want {
    /// The least size (or size of a change) of interest; 0 and 1 = the sketch's own resolution.
    pub threshold: u64,
    /// The most keys that are listed.
    pub top: usize,
}

/// The flow sizes of an epoch: how many flows have which size, by size ascending. Estimated numbers of flows
/// needn't be whole.
pub type Distribution = Vec<(u64, f64)>;

/// A range of values, and how many of those that were put in lie in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ValueRange {
    /// The least value.
    pub low: u64,
    /// The greatest value.
    pub high: u64,
    /// Values that lie in it; at least 1.
    pub values: u64,
}

/// The value at `q` of the way (0 the least, 1 the greatest) of all values in some ranges, of one sketch or
/// of several; nothing of no values. Of n values in ascending order, it is number ⌊q·(n−1)⌋ from 0. Its
/// bounds are certain.
#[must_use]
pub fn quantile(ranges: &[ValueRange], q: f64) -> Option<Bounds<f64>> {
    let all = ranges.iter().fold(0u64, |sum, r| sum.saturating_add(r.values));
    let rank = (q.clamp(0.0, 1.0) * all.checked_sub(1)? as f64).floor() as u64;
    let at = |end: fn(&ValueRange) -> u64| {
        let mut ends: Vec<_> = ranges.iter().map(|r| (end(r), r.values)).collect();
        ends.sort_unstable();
        let mut seen = 0u64;
        let found = ends.into_iter().find(|(_, values)| {
            seen = seen.saturating_add(*values);
            seen > rank
        });
        found.map(|(end, _)| end as f64)
    };
    let (lower, upper) = (at(|r| r.low)?, at(|r| r.high)?);
    Some(Bounds { estimate: lower + (upper - lower) / 2.0, lower, upper })
}

/// The numbers of keys that two streams have together, share, or have alone.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SetSizes {
    /// Keys of either stream.
    pub union: Bounds<f64>,
    /// Keys of both.
    pub intersection: Bounds<f64>,
    /// Keys of the first stream that the second doesn't have.
    pub only_first: Bounds<f64>,
    /// Keys of the second stream that the first doesn't have.
    pub only_second: Bounds<f64>,
}

impl SetSizes {
    /// From the numbers of keys of either stream and of both together, by inclusion and exclusion: what is
    /// shared is what both have less what they have together. Bounds are the widest that the three allow.
    pub(crate) fn between(first: Bounds<f64>, second: Bounds<f64>, union: Bounds<f64>) -> Self {
        let least = |of: Bounds<f64>| of.upper;
        let part = |estimate: f64, lower: f64, upper: f64, most: f64| {
            let estimate = estimate.clamp(0.0, most);
            Bounds { estimate, lower: lower.clamp(0.0, estimate), upper: upper.clamp(estimate, most) }
        };
        let only = |union: Bounds<f64>, other: Bounds<f64>, own: Bounds<f64>| {
            let (lower, upper) = (union.lower - other.upper, union.upper - other.lower);
            part(union.estimate - other.estimate, lower, upper, least(own))
        };
        let shared = |f: fn(Bounds<f64>) -> f64, g: fn(Bounds<f64>) -> f64| f(first) + f(second) - g(union);
        Self {
            union,
            intersection: part(
                shared(|b| b.estimate, |b| b.estimate),
                shared(|b| b.lower, |b| b.upper),
                shared(|b| b.upper, |b| b.lower),
                least(first).min(least(second)),
            ),
            only_first: only(union, second, first),
            only_second: only(union, first, second),
        }
    }
}

/// Why a question has no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum QueryError {
    /// The sketch doesn't keep what the question needs.
    #[error("{sketch} keeps nothing that could answer {question}")]
    Unsupported {
        /// Which sketch.
        sketch: Kind,
        /// The question, as the error says it.
        question: &'static str,
    },
    /// The sketch is full: its memory was too small for this traffic.
    #[error("{sketch} is saturated: there are more than about {at_least:.0}; give it more memory")]
    Saturated {
        /// Which sketch.
        sketch: Kind,
        /// The greatest figure that it could have told.
        at_least: f64,
    },
    /// The two states that a question compares don't fit together.
    #[error(transparent)]
    Mismatch(#[from] MergeError),
}

/// Why two states can't be merged or compared.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// Of different kinds.
    #[error("one state is of {0}, the other of {1}")]
    Kind(Kind, Kind),
    /// Drawn with different seeds.
    #[error("the states were made with different seeds ({0} and {1})")]
    Seed(u64, u64),
    /// Of different sizes.
    #[error("the states have different shapes ({0} and {1})")]
    Shape(String, String),
    /// Both hold more flows than they can list.
    #[error(
        "both states of {0} hold more flows than can be decoded, so they can't be merged; give them more memory"
    )]
    Undecodable(Kind),
}

/// A sketch: a small summary of a stream of (key, weight).
///
/// Every question but [`Sketch::weight`] has a default answer: that this sketch can't tell. A new sketch is
/// one file that implements this trait, its line in [`Kind`], and its tests. A sketch of another crate
/// implements it with [`Kind::Other`]: it is filled, asked, merged and saved as any other, and its own crate
/// reads what was saved.
pub trait Sketch<const N: usize>: Debug + Send + Sync {
    /// Which sketch this is.
    fn kind(&self) -> Kind;

    /// The seed of its hash functions.
    fn seed(&self) -> u64;

    /// The version of the format in which it is saved: the newest, but of states that mean what only an older
    /// one says.
    fn state_version(&self) -> u16 {
        self.kind().state_version()
    }

    /// Its parameters, in words; equal for states that can be merged.
    fn shape(&self) -> String;

    /// All weight that was put in; saturates.
    fn weight(&self) -> u64;

    /// Memory of the state in bytes: its tables, as allocated.
    fn memory_bytes(&self) -> usize;

    /// Adds to a key.
    fn update(&mut self, key: &[u8; N], weight: u64);

    /// Adds to many keys, in order; the same as one [`Sketch::update`] after the other, and faster.
    fn update_all(&mut self, updates: &[Update<N>]) {
        for u in updates {
            self.update(&u.key, u64::from(u.weight));
        }
    }

    /// The cost of one update, in hits of the aggregator on keys of four bytes (about 6 ns), measured on a
    /// table of usual size: from this follows which share of hits makes an aggregator in front worth it.
    fn update_cost(&self) -> f64;

    /// Forgets everything that was put in.
    fn clear(&mut self);

    /// Adds another state: afterwards this one has seen both streams.
    ///
    /// # Errors
    /// [`MergeError`] where the two don't fit; this state is unchanged then.
    fn merge(&mut self, other: &dyn Sketch<N>) -> Result<(), MergeError>;

    /// Says that the state depends on the multiset of updates alone: merged states of any parts of a stream,
    /// each in any order, are bit for bit the state of one pass. Such a sketch can be filled on several
    /// cores.
    fn merges_exactly(&self) -> bool {
        false
    }

    /// An independent copy.
    fn boxed_clone(&self) -> Box<dyn Sketch<N>>;

    /// For [`Sketch::merge`]: the sketch itself.
    fn as_any(&self) -> &dyn Any;

    /// Writes parameters and tables.
    fn encode(&self, out: &mut Encoder);

    /// The size of one flow.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn flow_size(&self, _key: &[u8; N]) -> Result<Bounds<u64>, QueryError> {
        Err(self.unsupported("the size of a flow"))
    }

    /// The heaviest flows, in descending order of their estimates.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn heavy_hitters(&self, _want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        Err(self.unsupported("which flows are heavy"))
    }

    /// The most that a flow may weigh which isn't among [`Sketch::heavy_hitters`], however many are wanted: 0
    /// where all flows are; nothing where the sketch can't bound it. After a merge it is what the merged
    /// states' bounds add up to.
    fn unlisted(&self) -> Option<u64> {
        None
    }

    /// The flows that changed most since an earlier epoch, in descending order of the estimated change's
    /// size.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell, or the states don't fit together.
    fn heavy_changes(&self, _earlier: &dyn Sketch<N>, _want: Want) -> Result<Vec<Change<N>>, QueryError> {
        Err(self.unsupported("which flows changed"))
    }

    /// Keys are pairs of `source_len` bytes and a counterpart: the sources with the most distinct
    /// counterparts, in descending order. The counterpart's bytes of the keys are 0.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn superspreaders(&self, _source_len: usize, _want: Want) -> Result<Vec<Flow<N>>, QueryError> {
        Err(self.unsupported("which sources have many counterparts"))
    }

    /// Estimates how many flows have which size.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn size_distribution(&self) -> Result<Distribution, QueryError> {
        Err(self.unsupported("the distribution of flow sizes"))
    }

    /// Estimates the number of distinct keys.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn cardinality(&self) -> Result<Bounds<f64>, QueryError> {
        Err(self.unsupported("the number of flows"))
    }

    /// Estimates how many distinct keys this stream and another have together, share, and have alone.
    ///
    /// Of most sketches by inclusion and exclusion, whose error is that of the whole union, however little is
    /// shared; of ExaLogLog by maximum likelihood from both states. Lower and upper hold in about 95 % of
    /// cases; of an exact table always.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell, or the states don't fit together.
    fn set_sizes(&self, other: &dyn Sketch<N>) -> Result<SetSizes, QueryError> {
        united_sizes(self.cardinality()?, other, &|| self.boxed_clone())
    }

    /// Entropy of the weight over keys, in bits: −Σ pᵢ log₂ pᵢ; 0 for nothing.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn entropy(&self) -> Result<Bounds<f64>, QueryError> {
        Err(self.unsupported("the entropy"))
    }

    /// The second moment: Σ weight².
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn second_moment(&self) -> Result<Bounds<f64>, QueryError> {
        Err(self.unsupported("the second moment"))
    }

    /// The values that were put in as weights: how many lie in which range, least and greatest value
    /// included, in ascending order.
    ///
    /// # Errors
    /// [`QueryError`] where this sketch can't tell.
    fn value_ranges(&self) -> Result<Vec<ValueRange>, QueryError> {
        Err(self.unsupported("quantiles"))
    }

    /// The share of cases in which the bounds of its answers hold.
    fn confidence(&self, _question: Question) -> Confidence {
        Confidence::Share(SHARE)
    }

    /// The least change against an earlier epoch that is sure to be listed by [`Sketch::heavy_changes`], but
    /// for what the sketch's documentation excepts; nothing where none is.
    ///
    /// # Errors
    /// [`MergeError`] where the states don't fit together.
    fn least_change(&self, _earlier: &dyn Sketch<N>) -> Result<Option<u64>, MergeError> {
        Ok(None)
    }

    /// Says that some table or counter is so full that answers are worse than stated: of a sketch that
    /// counts nothing but weights, that all weight together has reached its end.
    fn is_saturated(&self) -> bool {
        self.weight() == u64::MAX
    }

    /// The error for what this sketch can't tell.
    fn unsupported(&self, question: &'static str) -> QueryError {
        QueryError::Unsupported { sketch: self.kind(), question }
    }
}

/// The other state as the same kind of sketch, if it has the same seed and shape.
pub(crate) fn same<'a, const N: usize, S: Sketch<N> + 'static>(
    this: &S,
    other: &'a dyn Sketch<N>,
) -> Result<&'a S, MergeError> {
    let Some(that) = other.as_any().downcast_ref::<S>() else {
        return Err(MergeError::Kind(this.kind(), other.kind()));
    };
    alike(this, that)?;
    Ok(that)
}

/// Says that two states have the same seed and shape.
fn alike<const N: usize>(this: &dyn Sketch<N>, that: &dyn Sketch<N>) -> Result<(), MergeError> {
    if this.seed() != that.seed() {
        return Err(MergeError::Seed(this.seed(), that.seed()));
    }
    let shapes = (this.shape(), that.shape());
    if shapes.0 == shapes.1 { Ok(()) } else { Err(MergeError::Shape(shapes.0, shapes.1)) }
}

/// [`Sketch::set_sizes`] of most sketches, from a copy of the first.
fn united_sizes<const N: usize>(
    first: Bounds<f64>,
    other: &dyn Sketch<N>,
    copy: &dyn Fn() -> Box<dyn Sketch<N>>,
) -> Result<SetSizes, QueryError> {
    let second = other.cardinality()?;
    let mut all = copy();
    all.merge(other)?;
    Ok(SetSizes::between(first, second, all.cardinality()?))
}

/// Sorts flows as answers are, and keeps what is wanted.
pub(crate) fn select<const N: usize>(mut flows: Vec<Flow<N>>, want: Want) -> Vec<Flow<N>> {
    flows.retain(|f| f.size.estimate >= want.threshold.max(1));
    order::by_rank(&mut flows, |f| f.size.estimate, |f| &f.key);
    flows.truncate(want.top);
    flows
}

/// Sorts changes as answers are, and keeps what is wanted.
pub(crate) fn select_changes<const N: usize>(mut all: Vec<Change<N>>, want: Want) -> Vec<Change<N>> {
    all.retain(|c| c.change.estimate.unsigned_abs() >= want.threshold.max(1));
    order::by_rank(&mut all, |c| c.change.estimate.unsigned_abs(), |c| &c.key);
    all.truncate(want.top);
    all
}

/// Flows of an epoch, sorted by key, and the most that a flow may weigh which isn't among them.
type Listed<'a, const N: usize> = (&'a [Flow<N>], &'a dyn Fn(&[u8; N]) -> u64);

/// Changes between two lists of flows, each sorted by key, with the most that a flow may weigh which isn't in
/// the list. Of such a flow the estimate is the least change that the bounds allow.
pub(crate) fn changes_between<const N: usize>(
    earlier: Listed<'_, N>,
    later: Listed<'_, N>,
    want: Want,
) -> Vec<Change<N>> {
    let ((earlier, before_at_most), (later, after_at_most)) = (earlier, later);
    let mut changes = Vec::new();
    let (mut before, mut after) = (0, 0);
    loop {
        let (b, a) = match (earlier.get(before), later.get(after)) {
            (None, None) => break,
            (Some(b), Some(a)) if b.key < a.key => (Some(b), None),
            (Some(b), Some(a)) if b.key > a.key => (None, Some(a)),
            either => either,
        };
        before += usize::from(b.is_some());
        after += usize::from(a.is_some());
        let change = match (b, a) {
            (Some(b), Some(a)) => Change { key: a.key, change: minus(a.size, b.size) },
            (None, Some(a)) => {
                Change { key: a.key, change: minus(a.size, absent(a.size, before_at_most(&a.key))) }
            }
            (Some(b), None) => {
                Change { key: b.key, change: minus(absent(b.size, after_at_most(&b.key)), b.size) }
            }
            (None, None) => continue,
        };
        changes.push(change);
    }
    select_changes(changes, want)
}

/// The change from one size to another.
fn minus(later: Bounds<u64>, earlier: Bounds<u64>) -> Bounds<i64> {
    let signed = |v: u64| i64::try_from(v).unwrap_or(i64::MAX);
    Bounds {
        estimate: signed(later.estimate).saturating_sub(signed(earlier.estimate)),
        lower: signed(later.lower).saturating_sub(signed(earlier.upper)),
        upper: signed(later.upper).saturating_sub(signed(earlier.lower)),
    }
}

/// The size of a flow in an epoch that doesn't list it, given its size in the other one.
fn absent(known: Bounds<u64>, upper: u64) -> Bounds<u64> {
    Bounds { estimate: known.estimate.min(upper), lower: 0, upper }
}

/// Counts the keys, which are pairs, of each source. The list lacks `missing` keys: any of
/// them may be of any source, and most likely as many of each as its share of those that are there.
pub(crate) fn spreads<const N: usize>(
    mut keys: Vec<[u8; N]>,
    missing: u64,
    source_len: usize,
    want: Want,
) -> Vec<Flow<N>> {
    for key in &mut keys {
        if let Some(counterpart) = key.get_mut(source_len..) {
            counterpart.fill(0);
        }
    }
    order::keys(&mut keys);
    let mut flows: Vec<Flow<N>> = Vec::new();
    for key in &keys {
        match flows.last_mut() {
            Some(flow) if flow.key == *key => flow.size.lower += 1,
            _ => flows.push(Flow { key: *key, size: Bounds::exact(1) }),
        }
    }
    let all = keys.len().max(1) as f64;
    for flow in &mut flows {
        flow.size = spread(flow.size.lower, missing, all);
    }
    select(flows, want)
}

/// The number of keys of a source that has `n` of those that are there.
fn spread(n: u64, missing: u64, all: f64) -> Bounds<u64> {
    Bounds {
        estimate: n.saturating_add((missing as f64 * n as f64 / all).round() as u64),
        lower: n,
        upper: n.saturating_add(missing),
    }
}

/// The sizes of a complete list of flows.
pub(crate) fn distribution_of(mut sizes: Vec<u64>) -> Distribution {
    sizes.sort_unstable();
    let of = |alike: &[u64]| Some((*alike.first()?, alike.len() as f64));
    sizes.chunk_by(|a, b| a == b).filter_map(of).collect()
}

/// The second moment of a complete list of sizes.
pub(crate) fn second_moment_of(sizes: &[u64]) -> f64 {
    sizes.iter().map(|size| (*size as f64).powi(2)).sum()
}

/// Entropy in bits of a complete list of sizes: to the last digit the same, in whatever order they come.
pub(crate) fn entropy_of(mut sizes: Vec<u64>) -> f64 {
    sizes.retain(|size| *size > 0);
    sizes.sort_unstable();
    let (mut n, mut sum) = (0.0, 0.0);
    for size in sizes.into_iter().map(|s| s as f64) {
        n += size;
        sum += size * size.log2();
    }
    if n > 0.0 { (n.log2() - sum / n).max(0.0) } else { 0.0 }
}
