//! A sketch each for IPv4 and IPv6, epoch after epoch, and the answers of both as one.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use slipstream_sketch::{Bounds, BuildError, Confidence};
use slipstream_wire::FlowKey;

use super::lane::{KeyedSketch, Past, SketchConfig, SketchEpoch, keyed_sketch};
use super::plan::memory_of;
use super::{Answer, Ask, EpochLength, Figure, MeasureError, Promise, Row, quantiles};

/// The stretch of an epoch. Times are in ns since 1970, as packets have them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// Packets that were counted.
    pub packets: u64,
    /// When it began: by time a multiple of its length, else its first packet's time.
    pub start_ns: u64,
    /// When it ended: by time where the next one begins, else its last packet's time.
    pub end_ns: u64,
    /// When its first packet came; 0 where none did.
    pub first_ns: u64,
    /// When its last packet came; 0 where none did.
    pub last_ns: u64,
    /// Of epochs by time: whether it is the first or the last one, so that measuring may have begun or ended
    /// within it.
    pub partial: bool,
    /// Of gaps: flows had been forgotten by its end, and where they went on their gaps are missing.
    pub gaps_missing: bool,
}

impl Span {
    /// An epoch that begins with a packet at `now`, but none yet counted. Epochs by time begin and end at
    /// multiples of their length, whoever measures: so those of several machines are the same ones.
    #[must_use]
    pub fn begin(epoch: EpochLength, now: u64) -> Self {
        let (start_ns, end_ns) = match epoch {
            EpochLength::Packets(_) => (now, now),
            EpochLength::Time(ns) => (now - now % ns, (now - now % ns).saturating_add(ns)),
        };
        Self { start_ns, end_ns, first_ns: now, last_ns: now, ..Self::default() }
    }

    /// Says that a time is behind its end. None is, where that lies beyond the last time that there is.
    #[inline]
    #[must_use]
    pub fn is_over(&self, time_ns: u64) -> bool {
        time_ns >= self.end_ns && self.end_ns < u64::MAX
    }

    /// This stretch and another, or the same one as others saw it.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let gaps_missing = self.gaps_missing || other.gaps_missing;
        if self.packets == 0 || other.packets == 0 {
            return Self { gaps_missing, ..if self.packets == 0 { other } else { self } };
        }
        Self {
            packets: self.packets.saturating_add(other.packets),
            start_ns: self.start_ns.min(other.start_ns),
            end_ns: self.end_ns.max(other.end_ns),
            first_ns: self.first_ns.min(other.first_ns),
            last_ns: self.last_ns.max(other.last_ns),
            partial: self.partial || other.partial,
            gaps_missing,
        }
    }
}

/// One epoch, answered.
#[derive(Clone, Debug, PartialEq)]
pub struct EpochResult {
    /// The stretch that it covered.
    pub span: Span,
    /// All weight.
    pub weight: u64,
    /// The true number of flows, where there is an exact table to compare with.
    pub flows: Option<u64>,
    /// Says that a sketch was so full that answers are worse than stated.
    pub saturated: bool,
    /// The answer.
    pub answer: Answer,
    /// Statements about it as a whole.
    pub promise: Promise,
}

/// The end of an epoch.
#[derive(Debug)]
pub struct Ended {
    /// The answer.
    pub result: EpochResult,
    /// The sketches of IPv4 and IPv6 as bytes, where states are to be saved; empty where there was none.
    pub states: [Vec<u8>; 2],
    /// Memory of the sketches, in bytes.
    pub memory_bytes: usize,
    /// The same by IP version: IPv4, IPv6.
    pub memory_by_version: [usize; 2],
    /// Memory of the aggregators, in bytes.
    pub aggregator_bytes: usize,
}

/// The sketches of one epoch: IPv4 and, from the first such packet on, IPv6.
#[derive(Debug)]
pub struct SketchSet {
    ask: Arc<Ask>,
    configs: [SketchConfig; 2],
    sketches: [Option<Box<dyn KeyedSketch>>; 2],
    /// Says that an epoch has ended.
    ended: bool,
    /// Says that a weight is a value of its own.
    takes_values: bool,
}

/// Everything that is needed to make sketches.
#[derive(Clone, Debug)]
pub(super) struct Recipe {
    ask: Arc<Ask>,
    configs: [SketchConfig; 2],
}

impl Recipe {
    /// Empty sketches.
    pub(super) fn make(&self) -> Result<SketchSet, MeasureError> {
        let Self { ask, configs } = self.clone();
        let ([four, _], [len, _]) = (&configs, ask.keying.lens());
        let sketches = [Some(keyed_sketch(len, four)?), None];
        let takes_values = four.sketch.kind.takes_values();
        Ok(SketchSet { ask, configs, sketches, ended: false, takes_values })
    }
}

impl SketchSet {
    /// Empty ones, of which it is known that they can be made and can answer.
    ///
    /// # Errors
    /// [`MeasureError`] where they can't.
    pub fn new(ask: Arc<Ask>, configs: [SketchConfig; 2]) -> Result<Self, MeasureError> {
        let mut least = [None, None];
        for ((len, config), least) in ask.keying.lens().into_iter().zip(&configs).zip(&mut least) {
            match keyed_sketch(len, config) {
                Ok(mut sketch) => drop(sketch.end_epoch(&ask)?),
                Err(MeasureError::Sketch(BuildError::TooSmall { least: bytes, .. })) => *least = Some(bytes),
                Err(error) => return Err(error),
            }
        }
        if least != [None, None] {
            let [four, six] = &configs;
            return Err(MeasureError::TooSmall {
                kind: four.sketch.kind,
                least: memory_of(least.map(Option::unwrap_or_default)),
                budget: [four, six].into_iter().filter_map(|config| config.sketch.size.budget()).sum(),
            });
        }
        Recipe { ask, configs }.make()
    }

    /// Makes also the sketch of IPv6, so that no packet has to wait for it.
    ///
    /// # Errors
    /// [`MeasureError`] where it can't be made.
    pub fn make_all(&mut self) -> Result<(), MeasureError> {
        let ([_, config], [_, six]) = (&self.configs, &mut self.sketches);
        if six.is_none() {
            let [_, len] = self.ask.keying.lens();
            let mut made = keyed_sketch(len, config)?;
            if self.ended {
                made.assume_empty_past()?;
            }
            *six = Some(made);
        }
        Ok(())
    }

    /// All that is needed to make further sketches of the same kind.
    pub(super) fn recipe(&self) -> Recipe {
        Recipe { ask: self.ask.clone(), configs: self.configs.clone() }
    }

    /// Says that an epoch's packets can be spread over several of these, in any order, and merged to the same
    /// state.
    #[must_use]
    pub fn merges_exactly(&self) -> bool {
        self.sketches.iter().flatten().all(|sketch| sketch.merges_exactly())
    }

    /// Adds what others have seen of the same epoch, and empties them.
    ///
    /// # Errors
    /// [`MeasureError`] where they don't fit together.
    pub(super) fn absorb(&mut self, other: &mut Self) -> Result<(), MeasureError> {
        self.make_missing(other)?;
        for (mine, theirs) in self.sketches.iter_mut().zip(&mut other.sketches) {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                mine.absorb(theirs.as_mut())?;
            }
        }
        Ok(())
    }

    /// Hands the aggregators on to the sketches of the next epoch, drained; takes theirs.
    ///
    /// # Errors
    /// [`MeasureError`] where the others lack the sketch of IPv6 and it can't be made.
    pub(super) fn swap_aggregators(&mut self, next: &mut Self) -> Result<(), MeasureError> {
        next.make_missing(self)?;
        for (mine, theirs) in self.sketches.iter_mut().zip(&mut next.sketches) {
            if let (Some(mine), Some(theirs)) = (mine, theirs) {
                mine.swap_aggregators(theirs.as_mut());
            }
        }
        Ok(())
    }

    /// Makes the sketch of IPv6 if the others have one.
    fn make_missing(&mut self, other: &Self) -> Result<(), MeasureError> {
        let [_, six] = &other.sketches;
        if six.is_some() { self.make_all() } else { Ok(()) }
    }

    /// The question.
    #[must_use]
    pub fn ask(&self) -> &Ask {
        &self.ask
    }

    /// Seed of the hash functions.
    pub(super) fn seed(&self) -> u64 {
        let [four, _] = &self.configs;
        four.sketch.seed
    }

    /// Adds to a flow.
    ///
    /// # Errors
    /// [`MeasureError`] where the sketch of IPv6 can't be made (never after [`SketchSet::make_all`]).
    #[inline]
    pub fn push(&mut self, flow: &FlowKey, mut weight: u64) -> Result<(), MeasureError> {
        let key = self.ask.keying.key(flow);
        let ipv6 = flow.is_ipv6();
        if ipv6 && self.sketches.last().is_some_and(Option::is_none) {
            self.make_all()?;
        }
        let [four, six] = &mut self.sketches;
        let sketch = if ipv6 { six } else { four };
        if let Some(sketch) = sketch {
            if weight > u64::from(u32::MAX) && self.takes_values {
                sketch.push_whole(key.get(), weight);
                return Ok(());
            }
            // A train may weigh more than an update holds.
            while weight > u64::from(u32::MAX) {
                sketch.push(key.get(), u32::MAX);
                weight -= u64::from(u32::MAX);
            }
            sketch.push(key.get(), weight as u32);
        }
        Ok(())
    }

    /// Time spent in aggregators and sketches, in ns, where it is taken.
    #[must_use]
    pub fn spent_ns(&self) -> u64 {
        self.sketches.iter().flatten().map(|l| l.spent_ns()).sum()
    }

    /// Takes out what these sketches remember of the epoch before.
    pub(super) fn take_past(&mut self) -> [Past; 2] {
        self.sketches.each_mut().map(|l| l.as_mut().and_then(|l| l.take_past()))
    }

    /// Lets these sketches remember an epoch that others have seen.
    pub(super) fn set_past(&mut self, past: [Past; 2]) {
        for (sketch, past) in self.sketches.iter_mut().zip(past) {
            if let Some(sketch) = sketch {
                sketch.set_past(past);
            }
        }
    }

    /// If changes are asked for, a sketch that remembers no epoch takes it that nothing came in the one
    /// before.
    ///
    /// # Errors
    /// [`MeasureError`] where a sketch can't be made.
    pub(super) fn assume_empty_past(&mut self) -> Result<(), MeasureError> {
        self.sketches.iter_mut().flatten().try_for_each(|sketch| sketch.assume_empty_past())
    }

    /// Ends an epoch, and begins the next.
    ///
    /// # Errors
    /// [`MeasureError`] where a sketch can't answer; the next epoch begins nevertheless.
    pub fn end_epoch(&mut self, span: Span) -> Result<Ended, MeasureError> {
        self.ended = true;
        let mut sides: Vec<Option<SketchEpoch>> = Vec::with_capacity(2);
        let mut failed = None;
        for sketch in &mut self.sketches {
            match sketch.as_mut().map(|l| l.end_epoch(&self.ask)).transpose() {
                Ok(side) => sides.push(side),
                Err(error) => failed = Some(error),
            }
        }
        if let Some(error) = failed {
            return Err(error.into());
        }
        let all = || sides.iter().flatten();
        let memory_bytes = all().map(|s| s.memory_bytes).sum();
        let mut memory_by_version = [0; 2];
        for (to, side) in memory_by_version.iter_mut().zip(&sides) {
            *to = side.as_ref().map_or(0, |s| s.memory_bytes);
        }
        let aggregator_bytes = all().map(|s| s.aggregator_bytes).sum();
        let weight = all().fold(0u64, |sum, s| sum.saturating_add(s.weight));
        let flows = all().filter_map(|s| s.flows).reduce(|a, b| a + b);
        let saturated = all().any(|s| s.saturated);
        let promises = all().map(|s| s.promise).reduce(Promise::and);
        let promise = promises.unwrap_or(Promise { confidence: Confidence::Certain, least_change: None });
        let promise = promise.of_epoch(&span);
        let mut states: [Vec<u8>; 2] = Default::default();
        for (to, side) in states.iter_mut().zip(&mut sides) {
            *to = side.as_mut().and_then(|s| s.state.take()).unwrap_or_default();
        }
        let mut weights = sides.iter().map(|s| s.as_ref().map_or(0, |s| s.weight));
        let weights = (weights.next().unwrap_or(0), weights.next().unwrap_or(0));
        let answers = sides.into_iter().flatten().map(|s| s.answer);
        // There is always a sketch of IPv4.
        let answer = answers.reduce(|a, b| a.join(b, weights, &self.ask));
        let answer = answer.unwrap_or(Answer::Keys { rows: Vec::new(), greatest: None, unlisted: None });
        let result = EpochResult { span, weight, flows, saturated, answer, promise };
        Ok(Ended { result, states, memory_bytes, memory_by_version, aggregator_bytes })
    }
}

impl EpochResult {
    /// As `measure --format json` shows it.
    #[must_use]
    pub fn to_json(&self) -> Value {
        let mut map = Map::new();
        let mut put = |key: &str, value: Value| map.insert(key.to_owned(), value);
        put("packets", self.span.packets.into());
        put("weight", self.weight.into());
        put("start_ns", self.span.start_ns.into());
        put("end_ns", self.span.end_ns.into());
        if self.span.packets > 0 {
            put("first_packet_ns", self.span.first_ns.into());
            put("last_packet_ns", self.span.last_ns.into());
        }
        put("partial", self.span.partial.into());
        put("saturated", self.saturated.into());
        if let Some(flows) = self.flows {
            put("flows", flows.into());
        }
        match self.promise.confidence {
            Confidence::None => put("bounds", "none".into()),
            Confidence::Share(share) => put("confidence", share.into()),
            Confidence::Certain => put("confidence", 1.0.into()),
        };
        if let Some(least) = self.promise.least_change {
            put("promised", least.into());
        }
        match &self.answer {
            Answer::Keys { rows, unlisted, .. } => {
                put("answers", rows.iter().map(row_json).collect::<Vec<_>>().into());
                if let Some(most) = unlisted {
                    put("unlisted_at_most", (*most).into());
                }
                if let Some((found, of)) = self.answer.recall() {
                    put("recall", json!(found as f64 / of as f64));
                }
            }
            Answer::Figure(f) => {
                put("estimate", json!(f.estimate));
                put("lower", json!(f.lower));
                put("upper", json!(f.upper));
                if self.flows.is_some() {
                    put("true", json!(f.truth));
                    put("relative_error", json!(relative_error(f)));
                }
            }
            Answer::Distribution { sizes, compared } => {
                let row = |(size, (flows, truth)): (&u64, &(f64, u64))| match compared {
                    true => json!({ "size": size, "flows": flows, "true": truth }),
                    false => json!({ "size": size, "flows": flows }),
                };
                put("distribution", sizes.iter().map(row).collect::<Vec<_>>().into());
                if *compared {
                    put("wmrd", json!(wmrd(sizes)));
                }
            }
            Answer::Values(values) => {
                let row = |(q, value): (f64, Bounds<f64>)| json!({ "quantile": q, "estimate": value.estimate, "lower": value.lower, "upper": value.upper });
                put("quantiles", quantiles(values).into_iter().map(row).collect::<Vec<_>>().into());
            }
        }
        map.into()
    }
}

fn row_json(row: &Row) -> Value {
    let mut map = Map::new();
    map.insert("key".into(), row.key.as_str().into());
    map.insert("estimate".into(), row.size.estimate.into());
    map.insert("lower".into(), row.size.lower.into());
    map.insert("upper".into(), row.size.upper.into());
    if let Some(up) = row.up {
        map.insert("direction".into(), if up { "up" } else { "down" }.into());
    }
    if let Some(truth) = row.truth {
        map.insert("true".into(), truth.into());
    }
    map.into()
}

/// The error of an estimate relative to the truth, where both are known and the truth isn't 0.
#[must_use]
pub fn relative_error(f: &Figure) -> Option<f64> {
    f.estimate.zip(f.truth).filter(|(_, t)| *t != 0.0).map(|(e, t)| (e - t).abs() / t)
}

/// The weighted mean relative difference of two distributions (Kumar et al., 2004): 0 = the same, 2 = nothing
/// in common.
#[must_use]
pub fn wmrd(sizes: &BTreeMap<u64, (f64, u64)>) -> Option<f64> {
    let (apart, all) = sizes.values().fold((0.0, 0.0), |(apart, all), (flows, truth)| {
        let truth = *truth as f64;
        (apart + (flows - truth).abs(), all + (flows + truth) / 2.0)
    });
    (all > 0.0).then(|| apart / all)
}
