//! A sketch with an aggregator in front, as one thing: whoever asks the sketch has drained the aggregator
//! first, because there is no other way to get at it.

use crate::{Aggregator, AggregatorConfig, AggregatorError, AggregatorStats, MergeError, Sketch, Update};

/// The cost of a miss on top of a look-up, in hits: the second look-up, the eviction.
const MISS: f64 = 1.2;
/// A look-up of a key that doesn't fit the line, in hits on one that does.
const LONG: f64 = 1.6;

/// The share of hits from which on an aggregator pays: with it, an update costs a look-up and, of the misses,
/// what a miss costs and an update of the sketch; without it, the latter alone. Above 1 where a sketch is as
/// fast as the aggregator.
fn worth_from<const N: usize>(cost: f64) -> f64 {
    let cost = if N == 4 { cost } else { cost / LONG };
    (1.0 + MISS) / (cost + MISS)
}

/// A sketch, with or without an aggregator before it.
#[derive(Debug)]
pub struct Front<const N: usize> {
    aggregator: Option<Aggregator<N>>,
    sketch: Box<dyn Sketch<N>>,
    /// Says that something was put in since it was empty: an untouched sketch needn't be cleared.
    touched: bool,
}

impl<const N: usize> Front<N> {
    /// Updates go straight to the sketch.
    #[must_use]
    pub fn plain(sketch: Box<dyn Sketch<N>>) -> Self {
        Self { aggregator: None, touched: sketch.weight() > 0, sketch }
    }

    /// Updates go through an aggregator, which steps aside where its hits are fewer than this sketch is
    /// worth, whatever `config` says of that. A sketch whose weights are values, which mustn't be added up,
    /// has none in front nevertheless.
    ///
    /// # Errors
    /// [`AggregatorError`] where the configuration is impossible.
    pub fn aggregated(
        sketch: Box<dyn Sketch<N>>,
        config: &AggregatorConfig,
    ) -> Result<Self, AggregatorError> {
        if sketch.kind().takes_values() {
            return Ok(Self::plain(sketch));
        }
        let worth_from = worth_from::<N>(sketch.update_cost());
        let aggregator = Aggregator::new(&AggregatorConfig { worth_from, ..*config })?;
        Ok(Self { aggregator: Some(aggregator), touched: sketch.weight() > 0, sketch })
    }

    /// Takes updates in.
    #[inline]
    pub fn update_all(&mut self, updates: &[Update<N>]) {
        self.touched |= !updates.is_empty();
        let sketch = &mut self.sketch;
        match &mut self.aggregator {
            None => sketch.update_all(updates),
            Some(a) => a.offer(updates, &mut |some| sketch.update_all(some)),
        }
    }

    /// Takes one update in whose weight may be of any size, and goes past the aggregator.
    pub fn update(&mut self, key: &[u8; N], weight: u64) {
        self.touched = true;
        self.sketch.update(key, weight);
    }

    /// Empties the aggregator into the sketch.
    pub fn drain(&mut self) {
        let sketch = &mut self.sketch;
        if let Some(a) = &mut self.aggregator {
            a.drain(&mut |some| sketch.update_all(some));
        }
    }

    /// The sketch, up to date.
    pub fn settled(&mut self) -> &dyn Sketch<N> {
        self.drain();
        self.sketch.as_ref()
    }

    /// The end of an epoch whose sketch nobody needs any more: what was put in is forgotten.
    pub fn clear(&mut self) {
        self.drain();
        if std::mem::take(&mut self.touched) {
            self.sketch.clear();
        }
    }

    /// The end of an epoch: the sketch, up to date, and an empty one in its place.
    pub fn take(&mut self) -> Box<dyn Sketch<N>> {
        self.drain();
        let full = self.sketch.boxed_clone();
        self.clear();
        full
    }

    /// Adds what another one has seen, and empties that one. The state is the one of a single pass over both
    /// streams where [`Sketch::merges_exactly`] says so.
    ///
    /// # Errors
    /// [`MergeError`] where the sketches don't fit together.
    pub fn absorb(&mut self, other: &mut Self) -> Result<(), MergeError> {
        self.drain();
        self.sketch.merge(other.settled())?;
        self.touched |= other.touched;
        other.clear();
        Ok(())
    }

    /// Says that several of these can share a stream and be merged: see [`Sketch::merges_exactly`].
    #[must_use]
    pub fn merges_exactly(&self) -> bool {
        self.sketch.merges_exactly()
    }

    /// Drains both aggregators and exchanges them, with what each has learnt of the traffic's locality.
    pub fn swap_aggregators(&mut self, other: &mut Self) {
        self.drain();
        other.drain();
        std::mem::swap(&mut self.aggregator, &mut other.aggregator);
    }

    /// Memory of the sketch's tables in bytes.
    #[must_use]
    pub fn sketch_bytes(&self) -> usize {
        self.sketch.memory_bytes()
    }

    /// Memory of the aggregator's tables in bytes.
    #[must_use]
    pub fn aggregator_bytes(&self) -> usize {
        self.aggregator.as_ref().map_or(0, Aggregator::memory_bytes)
    }

    /// Counts of the aggregator's work, where there is one.
    #[must_use]
    pub fn stats(&self) -> Option<AggregatorStats> {
        self.aggregator.as_ref().map(Aggregator::stats)
    }
}
