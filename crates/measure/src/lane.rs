//! One IP version's sketch on its way through a trace: updates in, epochs out.

use std::any::Any;
use std::fmt::Debug;

use slipstream_sketch::{
    AggregatorConfig, Config, Exact, Front, QueryError, Sketch, Update, build, by_key_length, save,
};

use super::MeasureError;
use super::answer::{Answer, Ask, Promise, Side};
use slipstream_core::clock;

/// Updates that are collected before the sketch gets them: enough that reading the clock costs nothing.
const BATCH: usize = 2048;

/// Parameters of a sketch and of what goes with it.
#[derive(Clone, Debug)]
pub struct SketchConfig {
    /// The sketch.
    pub sketch: Config,
    /// The aggregator before it.
    pub aggregator: Option<AggregatorConfig>,
    /// Fills an exact table beside the sketch.
    pub compare: bool,
    /// Compares epochs with the one before.
    pub changes: bool,
    /// Saves the states.
    pub save: bool,
    /// Takes the time of updates.
    pub timed: bool,
}

/// The end of an epoch.
#[derive(Debug)]
pub struct SketchEpoch {
    /// The answer.
    pub answer: Answer,
    /// Statements about it as a whole.
    pub promise: Promise,
    /// All weight.
    pub weight: u64,
    /// The true number of flows, where there is an exact table to compare with.
    pub flows: Option<u64>,
    /// Says that the sketch was so full that answers are worse than stated.
    pub saturated: bool,
    /// Memory of the sketch, in bytes.
    pub memory_bytes: usize,
    /// Memory of the aggregator, in bytes.
    pub aggregator_bytes: usize,
    /// The sketch as bytes, where states are to be saved.
    pub state: Option<Vec<u8>>,
}

/// The epoch before, as a sketch remembers it; it can be handed to another sketch of the same kind.
pub(super) type Past = Option<Box<dyn Any + Send>>;

/// A sketch over keys of one length.
pub trait KeyedSketch: Debug + Send {
    /// Takes in one packet, or a train.
    fn push(&mut self, key: &[u8], weight: u32);
    /// Takes in a weight of any size as one update: what takes values must not see it in parts.
    fn push_whole(&mut self, key: &[u8], weight: u64);
    /// Ends an epoch, and begins the next.
    ///
    /// # Errors
    /// The sketch can't answer; the next epoch begins nevertheless.
    fn end_epoch(&mut self, ask: &Ask) -> Result<SketchEpoch, QueryError>;
    /// Time spent in aggregator and sketch so far, in ns; 0 where it isn't taken.
    fn spent_ns(&self) -> u64;
    /// Forgets the epoch before, and hands over what it remembered of it.
    fn take_past(&mut self) -> Option<Box<dyn Any + Send>>;
    /// Remembers an epoch that another sketch of the same kind has seen.
    fn set_past(&mut self, past: Option<Box<dyn Any + Send>>);
    /// If changes are asked for and no epoch is remembered, takes it that the epoch before had no packets.
    ///
    /// # Errors
    /// A sketch can't be made.
    fn assume_empty_past(&mut self) -> Result<(), MeasureError>;
    /// Says that epochs can be filled by several sketches at once, see [`Sketch::merges_exactly`].
    fn merges_exactly(&self) -> bool;
    /// Adds what another sketch of the same kind has seen of this epoch, and empties that one.
    ///
    /// # Errors
    /// The states don't fit together.
    fn absorb(&mut self, other: &mut dyn KeyedSketch) -> Result<(), MeasureError>;
    /// Empties the aggregator into the sketch and exchanges it with that of another sketch of the same kind.
    fn swap_aggregators(&mut self, other: &mut dyn KeyedSketch);
    /// The sketch itself, to tell its type.
    fn as_any(&mut self) -> &mut dyn Any;
}

/// The sketch and the exact table of an epoch that is over.
type Before<const N: usize> = (Box<dyn Sketch<N>>, Option<Exact<N>>);

#[derive(Debug)]
struct SketchOf<const N: usize> {
    front: Front<N>,
    batch: Vec<Update<N>>,
    truth: Option<Exact<N>>,
    before: Option<Before<N>>,
    config: SketchConfig,
    spent_ns: u64,
}

/// A sketch for keys of `len` bytes.
///
/// # Errors
/// The sketch or the aggregator can't be made.
pub fn keyed_sketch(len: usize, config: &SketchConfig) -> Result<Box<dyn KeyedSketch>, MeasureError> {
    fn of<const N: usize>(config: &SketchConfig) -> Result<Box<dyn KeyedSketch>, MeasureError> {
        Ok(Box::new(SketchOf::<N>::new(config)?))
    }
    by_key_length!(len, of(config), other => Err(MeasureError::KeyLength(other)))
}

impl<const N: usize> SketchOf<N> {
    fn new(config: &SketchConfig) -> Result<Self, MeasureError> {
        let sketch = build::<N>(&config.sketch)?;
        let front = match &config.aggregator {
            Some(aggregator) => Front::aggregated(sketch, aggregator)?,
            None => Front::plain(sketch),
        };
        Ok(Self {
            front,
            batch: Vec::with_capacity(BATCH),
            truth: config.compare.then(|| Exact::new(config.sketch.seed)),
            before: None,
            config: config.clone(),
            spent_ns: 0,
        })
    }

    fn flush(&mut self) {
        self.spend(|this| this.front.update_all(&this.batch));
        if let Some(truth) = &mut self.truth {
            truth.update_all(&self.batch);
        }
        self.batch.clear();
    }

    /// Does something in time that is taken, if it is.
    fn spend(&mut self, work: impl FnOnce(&mut Self)) {
        let since = self.config.timed.then(clock::now);
        work(self);
        self.spent_ns += since.map_or(0, |s| s.elapsed().as_nanos() as u64);
    }

    fn epoch(&mut self, ask: &Ask) -> Result<SketchEpoch, QueryError> {
        let aggregator_bytes = self.front.aggregator_bytes();
        let now = self.front.settled();
        let side = Side {
            now,
            truth: self.truth.as_ref(),
            before: self.before.as_ref().map(|b| b.0.as_ref()),
            truth_before: self.before.as_ref().and_then(|b| b.1.as_ref()),
        };
        Ok(SketchEpoch {
            answer: side.answer(ask)?,
            promise: side.promise(ask.task)?,
            weight: now.weight(),
            flows: self.truth.as_ref().map(|t| t.len() as u64),
            // A change is no better than the worse of its two ends.
            saturated: now.is_saturated() || side.before.is_some_and(Sketch::is_saturated),
            memory_bytes: now.memory_bytes(),
            aggregator_bytes,
            state: self.config.save.then(|| save(now)),
        })
    }
}

impl<const N: usize> KeyedSketch for SketchOf<N> {
    #[inline]
    fn push(&mut self, key: &[u8], weight: u32) {
        if let Some(key) = key.first_chunk::<N>() {
            self.batch.push(Update { key: *key, weight });
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
    }

    fn push_whole(&mut self, key: &[u8], weight: u64) {
        let Some(key) = key.first_chunk::<N>() else { return };
        self.spend(|this| this.front.update(key, weight));
        if let Some(truth) = &mut self.truth {
            truth.update(key, weight);
        }
    }

    fn end_epoch(&mut self, ask: &Ask) -> Result<SketchEpoch, QueryError> {
        self.flush();
        self.spend(|this| this.front.drain());
        let epoch = self.epoch(ask);
        if self.config.changes {
            let now = self.front.take();
            let truth =
                self.truth.replace(Exact::new(self.config.sketch.seed)).filter(|_| self.config.compare);
            self.before = Some((now, truth));
            if !self.config.compare {
                self.truth = None;
            }
        } else {
            self.front.clear();
            if let Some(truth) = &mut self.truth {
                truth.clear();
            }
        }
        epoch
    }

    fn take_past(&mut self) -> Past {
        self.before.take().map(|before| Box::new(before) as _)
    }

    fn set_past(&mut self, past: Past) {
        self.before = past.and_then(|p| p.downcast().ok()).map(|before| *before);
    }

    fn assume_empty_past(&mut self) -> Result<(), MeasureError> {
        if self.config.changes && self.before.is_none() {
            let truth = self.config.compare.then(|| Exact::new(self.config.sketch.seed));
            self.before = Some((build::<N>(&self.config.sketch)?, truth));
        }
        Ok(())
    }

    fn merges_exactly(&self) -> bool {
        self.front.merges_exactly()
    }

    fn absorb(&mut self, other: &mut dyn KeyedSketch) -> Result<(), MeasureError> {
        let Some(other) = other.as_any().downcast_mut::<Self>() else {
            return Err(MeasureError::KeyLength(N));
        };
        self.flush();
        other.flush();
        let mut merged = Ok(());
        self.spend(|this| merged = this.front.absorb(&mut other.front));
        if let (Some(truth), Some(more)) = (&mut self.truth, &mut other.truth) {
            truth.merge(more)?;
            more.clear();
        }
        Ok(merged?)
    }

    fn swap_aggregators(&mut self, other: &mut dyn KeyedSketch) {
        if let Some(other) = other.as_any().downcast_mut::<Self>() {
            self.flush();
            self.spend(|this| this.front.swap_aggregators(&mut other.front));
        }
    }

    fn as_any(&mut self) -> &mut dyn Any {
        self
    }

    fn spent_ns(&self) -> u64 {
        self.spent_ns
    }
}
