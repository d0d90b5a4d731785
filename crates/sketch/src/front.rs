//! A sketch with an aggregator in front, as one thing: whoever asks the sketch has drained the aggregator first, because
//! there is no other way to get at it.

use crate::{Aggregator, AggregatorConfig, AggregatorError, AggregatorStats, Sketch, Update};

/// What a miss costs the aggregator on top of a look-up, in hits: the second look-up, the eviction.
const MISS: f64 = 1.2;
/// A look-up of a key that doesn't fit the line, in hits on one that does.
const LONG: f64 = 1.6;

/// The share of hits from which on an aggregator pays: with it, an update costs a look-up and, of the misses, what a miss costs and an
/// update of the sketch; without it, the latter alone. Above 1 where a sketch is as fast as the aggregator.
fn worth_from<const N: usize>(cost: f64) -> f64 {
    let cost = if N == 4 { cost } else { cost / LONG };
    (1.0 + MISS) / (cost + MISS)
}

/// A sketch, with or without an aggregator before it.
#[derive(Debug)]
pub struct Front<const N: usize> {
    aggregator: Option<Aggregator<N>>,
    sketch: Box<dyn Sketch<N>>,
    /// Whether anything was put in since it was empty: what was never touched needn't be cleared.
    touched: bool,
}

impl<const N: usize> Front<N> {
    /// Updates go straight to the sketch.
    #[must_use]
    pub fn plain(sketch: Box<dyn Sketch<N>>) -> Self {
        Self { aggregator: None, touched: sketch.weight() > 0, sketch }
    }

    /// Updates go through an aggregator, which steps aside where its hits are fewer than this sketch is worth, whatever
    /// `config` says of that.
    ///
    /// # Errors
    /// [`AggregatorError`] where the configuration is impossible.
    pub fn aggregated(
        sketch: Box<dyn Sketch<N>>,
        config: &AggregatorConfig,
    ) -> Result<Self, AggregatorError> {
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

    /// How often the aggregator did what, where there is one.
    #[must_use]
    pub fn stats(&self) -> Option<AggregatorStats> {
        self.aggregator.as_ref().map(Aggregator::stats)
    }
}
