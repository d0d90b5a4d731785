//! One IP version's sketch on its way through a trace: updates in, epochs out.

use std::any::Any;
use std::fmt::Debug;

use slipstream_sketch::{AggregatorConfig, Config, Exact, Front, QueryError, Sketch, Update, build, save};

use super::MeasureError;
use super::answer::{Answer, Ask, Promise, Side};
use crate::clock;

/// Updates that are collected before the sketch gets them: enough that reading the clock costs nothing.
const BATCH: usize = 2048;

/// What a lane is made with.
#[derive(Clone, Debug)]
pub struct LaneConfig {
    /// The sketch.
    pub sketch: Config,
    /// What stands before it.
    pub aggregator: Option<AggregatorConfig>,
    /// Whether an exact table goes along.
    pub compare: bool,
    /// Whether epochs are compared with the one before.
    pub changes: bool,
    /// Whether states are to be saved.
    pub save: bool,
    /// Whether time is taken.
    pub timed: bool,
}

/// The end of an epoch.
#[derive(Debug)]
pub struct LaneEpoch {
    /// What was answered.
    pub answer: Answer,
    /// What can be said of it as a whole.
    pub promise: Promise,
    /// All weight.
    pub weight: u64,
    /// The true number of flows, where there is an exact table to compare with.
    pub flows: Option<u64>,
    /// Whether the sketch was so full that answers are worse than stated.
    pub saturated: bool,
    /// Memory of the sketch, in bytes.
    pub memory_bytes: usize,
    /// Memory of the aggregator, in bytes.
    pub aggregator_bytes: usize,
    /// The sketch as bytes, where states are to be saved.
    pub state: Option<Vec<u8>>,
}

/// What a lane remembers of the epoch before, to be handed to another lane of the same kind.
pub(super) type Past = Option<Box<dyn Any + Send>>;

/// A sketch over keys of one length.
pub trait Lane: Debug + Send {
    /// Takes in one packet, or a train.
    fn push(&mut self, key: &[u8], weight: u32);
    /// Ends an epoch, and begins the next.
    ///
    /// # Errors
    /// Where the sketch can't answer; the next epoch begins nevertheless.
    fn end_epoch(&mut self, ask: &Ask) -> Result<LaneEpoch, QueryError>;
    /// Time spent in aggregator and sketch so far, in ns; 0 where it isn't taken.
    fn spent_ns(&self) -> u64;
    /// Forgets the epoch before, and hands over what it remembered of it.
    fn take_past(&mut self) -> Option<Box<dyn Any + Send>>;
    /// Remembers an epoch that another lane of the same kind has seen.
    fn set_past(&mut self, past: Option<Box<dyn Any + Send>>);
}

/// The sketch and the exact table of an epoch that is over.
type Before<const N: usize> = (Box<dyn Sketch<N>>, Option<Exact<N>>);

#[derive(Debug)]
struct LaneOf<const N: usize> {
    front: Front<N>,
    batch: Vec<Update<N>>,
    truth: Option<Exact<N>>,
    before: Option<Before<N>>,
    config: LaneConfig,
    spent_ns: u64,
}

/// A lane for keys of `len` bytes.
///
/// # Errors
/// Where sketch or aggregator can't be made.
pub fn lane(len: usize, config: &LaneConfig) -> Result<Box<dyn Lane>, MeasureError> {
    Ok(match len {
        4 => Box::new(LaneOf::<4>::new(config)?),
        8 => Box::new(LaneOf::<8>::new(config)?),
        13 => Box::new(LaneOf::<13>::new(config)?),
        16 => Box::new(LaneOf::<16>::new(config)?),
        32 => Box::new(LaneOf::<32>::new(config)?),
        37 => Box::new(LaneOf::<37>::new(config)?),
        other => return Err(MeasureError::KeyLength(other)),
    })
}

impl<const N: usize> LaneOf<N> {
    fn new(config: &LaneConfig) -> Result<Self, MeasureError> {
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

    fn epoch(&mut self, ask: &Ask) -> Result<LaneEpoch, QueryError> {
        let aggregator_bytes = self.front.aggregator_bytes();
        let now = self.front.settled();
        let side = Side {
            now,
            truth: self.truth.as_ref(),
            before: self.before.as_ref().map(|b| b.0.as_ref()),
            truth_before: self.before.as_ref().and_then(|b| b.1.as_ref()),
        };
        Ok(LaneEpoch {
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

impl<const N: usize> Lane for LaneOf<N> {
    #[inline]
    fn push(&mut self, key: &[u8], weight: u32) {
        if let Some(key) = key.first_chunk::<N>() {
            self.batch.push(Update { key: *key, weight });
            if self.batch.len() >= BATCH {
                self.flush();
            }
        }
    }

    fn end_epoch(&mut self, ask: &Ask) -> Result<LaneEpoch, QueryError> {
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

    fn spent_ns(&self) -> u64 {
        self.spent_ns
    }
}
