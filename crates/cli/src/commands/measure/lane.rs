//! One IP version's sketch on its way through a trace: updates in, epochs out.

use std::fmt::Debug;

use slipstream_sketch::{AggregatorConfig, Config, Exact, Front, QueryError, Sketch, Update, build, save};

use super::answer::{Answer, Ask, Side};

/// Updates that are collected before the sketch gets them: enough that reading the clock costs nothing.
const BATCH: usize = 2048;

/// What a lane is made with.
#[derive(Clone, Debug)]
pub(super) struct LaneConfig {
    pub(super) sketch: Config,
    pub(super) aggregator: Option<AggregatorConfig>,
    /// Whether an exact table goes along.
    pub(super) compare: bool,
    /// Whether epochs are compared with the one before.
    pub(super) changes: bool,
    /// Whether states are to be saved.
    pub(super) save: bool,
}

/// The end of an epoch.
#[derive(Debug)]
pub(super) struct LaneEpoch {
    pub(super) answer: Answer,
    pub(super) weight: u64,
    pub(super) flows: Option<u64>,
    pub(super) saturated: bool,
    pub(super) memory_bytes: usize,
    pub(super) aggregator_bytes: usize,
    pub(super) state: Option<Vec<u8>>,
}

/// A sketch over keys of one length.
pub(super) trait Lane: Debug {
    /// Takes in one packet.
    fn push(&mut self, key: &[u8], weight: u32);
    /// Ends an epoch, and begins the next.
    ///
    /// # Errors
    /// Where the sketch can't answer.
    fn end_epoch(&mut self, ask: &Ask) -> Result<LaneEpoch, QueryError>;
    /// Time spent in aggregator and sketch so far, in ns.
    fn spent_ns(&self) -> u64;
}

#[derive(Debug)]
struct LaneOf<const N: usize> {
    front: Front<N>,
    batch: Vec<Update<N>>,
    truth: Option<Exact<N>>,
    before: Option<(Box<dyn Sketch<N>>, Option<Exact<N>>)>,
    config: LaneConfig,
    spent_ns: u64,
}

/// A lane for keys of `len` bytes.
///
/// # Errors
/// Where sketch or aggregator can't be made.
pub(super) fn lane(len: usize, config: &LaneConfig) -> anyhow::Result<Box<dyn Lane>> {
    Ok(match len {
        4 => Box::new(LaneOf::<4>::new(config)?),
        8 => Box::new(LaneOf::<8>::new(config)?),
        13 => Box::new(LaneOf::<13>::new(config)?),
        16 => Box::new(LaneOf::<16>::new(config)?),
        32 => Box::new(LaneOf::<32>::new(config)?),
        37 => Box::new(LaneOf::<37>::new(config)?),
        other => anyhow::bail!("there is no key of {other} bytes"),
    })
}

impl<const N: usize> LaneOf<N> {
    fn new(config: &LaneConfig) -> anyhow::Result<Self> {
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
        let since = slipstream::clock::now();
        self.front.update_all(&self.batch);
        self.spent_ns += since.elapsed().as_nanos() as u64;
        if let Some(truth) = &mut self.truth {
            truth.update_all(&self.batch);
        }
        self.batch.clear();
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
        let since = slipstream::clock::now();
        self.front.drain();
        self.spent_ns += since.elapsed().as_nanos() as u64;
        let aggregator_bytes = self.front.aggregator_bytes();
        let now = self.front.settled();
        let side = Side {
            now,
            truth: self.truth.as_ref(),
            before: self.before.as_ref().map(|b| b.0.as_ref()),
            truth_before: self.before.as_ref().and_then(|b| b.1.as_ref()),
        };
        let epoch = LaneEpoch {
            answer: side.answer(ask)?,
            weight: now.weight(),
            flows: self.truth.as_ref().map(|t| t.len() as u64),
            saturated: now.is_saturated(),
            memory_bytes: now.memory_bytes(),
            aggregator_bytes,
            state: self.config.save.then(|| save(now)),
        };
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
        Ok(epoch)
    }

    fn spent_ns(&self) -> u64 {
        self.spent_ns
    }
}
