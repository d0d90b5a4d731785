//! A trace measured by one worker or several, with the same answers whatever their number.
//!
//! There are three kinds of work. *Reading* takes packets from the source, classifies them and cuts epochs:
//! in order, one worker at a time. *Updating* adds a block of packets to sketches. *Answering* ends an epoch:
//! in order, one worker at a time, while others go on with the next epoch. A worker takes whatever is
//! furthest along, so that no thread waits for a fixed partner.
//!
//! If a sketch's state depends only on which packets there were ([`Sketch::merges_exactly`]), every worker
//! adds blocks to sketches of its own, and an epoch's sketches are merged before they are asked. The state of
//! any other sketch depends on the order of packets: its blocks are added one after the other, and the
//! aggregator goes from epoch to epoch as it does with one worker.
//!
//! [`Sketch::merges_exactly`]: slipstream_sketch::Sketch::merges_exactly

mod cut;
mod digest;

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use slipstream_wire::{Encapsulation, LinkType};

use cut::{Block, Cutter, Item, Reading};
pub use digest::{Digest, DigestMeasurement};

use super::epoch::Recipe;
use super::lane::Past;
use super::{Ended, EpochLength, MeasureError, SketchSet, Span, Weight};

/// Packets of a block for one worker: few enough to stay in the first-level cache.
const ROWS_ALONE: usize = 512;
/// Packets of a block for several workers: enough to make the hand-over cheap.
const ROWS_SHARED: usize = 2048;
/// Blocks that may wait for each worker before no more is read.
const BACKLOG: usize = 8;

/// A packet of a trace.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Arrival in ns since 1970.
    pub time_ns: u64,
    /// The kind of header that it begins with.
    pub link: LinkType,
    /// Its length on the wire in bytes.
    pub original_len: u32,
    /// The captured bytes.
    pub data: &'a [u8],
}

/// The packets of a trace, in order.
pub trait PacketSource: Send {
    /// Why packets can't be read.
    type Error: Send;

    /// Gives the next packets to `visit`, `most` at most; false at the end of the trace.
    ///
    /// # Errors
    /// Whatever keeps the trace from being read.
    fn read(&mut self, most: usize, visit: impl FnMut(&Packet<'_>)) -> Result<bool, Self::Error>;
}

/// Settings of a measurement besides its sketches.
#[derive(Clone, Copy, Debug)]
pub struct TraceSettings {
    /// Length of an epoch.
    pub epoch: EpochLength,
    /// The weight of a packet; a delay is none, since a trace holds no packet.
    pub weight: Weight,
    /// The IP header of a tunnel that makes the key.
    pub encapsulation: Encapsulation,
    /// Threads that share the work, the caller's included; 0 is taken as 1. Answers don't depend on it.
    pub workers: usize,
}

impl TraceSettings {
    /// The weight of a packet by itself: its gap is known where packets are taken in order.
    fn weight(&self, packet: &Packet<'_>) -> u64 {
        match self.weight {
            Weight::Packets => 1,
            Weight::Bytes => u64::from(packet.original_len),
            Weight::Gap | Weight::Delay => 0,
        }
    }
}

/// An epoch and its answer.
#[derive(Debug)]
pub struct TraceEpoch {
    /// The stretch of the trace.
    pub span: Span,
    /// Answers, states and memory.
    pub ended: Ended,
}

/// Everything that was measured.
#[derive(Debug, Default)]
pub struct TraceResult {
    /// The epochs, in order.
    pub epochs: Vec<TraceEpoch>,
    /// IP packets.
    pub packets: u64,
    /// Packets that were left out, because they are no IP packets.
    pub skipped: u64,
    /// Packets that were left out, because they are the first of their flow and have no gap before them.
    pub without_gap: u64,
    /// Flows whose last packets were forgotten for others'. Those that went on count as `without_gap` once
    /// more, and lack a gap each.
    pub forgotten_flows: u64,
    /// IP packets whose times are earlier than that of one before; epochs take them to come with that one.
    pub clock_backwards: u64,
    /// IPv6 packets were among them.
    pub ipv6: bool,
    /// The most memory that sketches took, in bytes: the greatest of each IP version, added up. A table that
    /// grows keeps its size from epoch to epoch.
    pub memory_bytes: usize,
    /// The most memory that aggregators took, in bytes.
    pub aggregator_bytes: usize,
    /// Time in aggregators and sketches in ns, of all workers together, where it is taken.
    pub spent_ns: u64,
}

impl TraceResult {
    /// Takes memory from the epochs.
    fn measure_memory(&mut self) {
        let mut most = [0; 2];
        for ended in self.epochs.iter().map(|e| &e.ended) {
            most.iter_mut().zip(ended.memory_by_version).for_each(|(most, now)| *most = now.max(*most));
            self.aggregator_bytes = self.aggregator_bytes.max(ended.aggregator_bytes);
        }
        self.memory_bytes = most.iter().sum();
    }
}

/// Why a trace can't be measured.
#[derive(Debug)]
pub enum TraceError<E> {
    /// The source failed.
    Source(E),
    /// The sketches failed.
    Measure(MeasureError),
}

impl<E> From<MeasureError> for TraceError<E> {
    fn from(error: MeasureError) -> Self {
        Self::Measure(error)
    }
}

/// Measures all packets of a source with `sketches`, which are empty.
///
/// # Errors
/// [`TraceError`] where the source, a sketch or an answer fails; nothing is answered then.
///
/// # Panics
/// Never of itself; a panic of a worker is passed on.
pub fn measure_trace<S: PacketSource>(
    sketches: SketchSet,
    settings: &TraceSettings,
    source: &mut S,
) -> Result<TraceResult, TraceError<S::Error>> {
    let workers = settings.workers.max(1);
    let spread = sketches.merges_exactly();
    let job = Job {
        recipe: sketches.recipe(),
        state: Mutex::new({
            let cutter = Cutter::new(*settings, &sketches);
            State::new(sketches, Reading { source, cutter })
        }),
        changed: Condvar::new(),
        spread,
        rows: if workers > 1 { ROWS_SHARED } else { ROWS_ALONE },
        backlog: if workers > 1 { workers * BACKLOG } else { 1 },
        sets: match workers {
            1 => 1,
            _ if spread => workers,
            _ => 2,
        },
    };
    thread::scope(|scope| {
        for _ in 1..workers {
            // Without the thread its work is done by the others.
            let _ = thread::Builder::new().name("measure".into()).spawn_scoped(scope, || job.work());
        }
        job.work();
    });
    let state = job.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    if let Some(error) = state.failed {
        return Err(error);
    }
    let mut result = state.read;
    let sets = state.idle.iter().chain(&state.current);
    result.spent_ns = sets.map(SketchSet::spent_ns).sum();
    result.epochs = state.answers.map(|a| a.epochs).unwrap_or_default();
    result.measure_memory();
    Ok(result)
}

/// The answers so far, and what the next one is compared with.
#[derive(Debug, Default)]
struct Answers {
    epochs: Vec<TraceEpoch>,
    past: [Past; 2],
}

impl Answers {
    /// Asks the sketches of the next epoch.
    fn ask(&mut self, set: &mut SketchSet, span: Span, ipv6: bool) -> Result<(), MeasureError> {
        if ipv6 {
            set.make_all()?;
        }
        set.set_past(std::mem::take(&mut self.past));
        if !self.epochs.is_empty() {
            set.assume_empty_past()?;
        }
        let ended = set.end_epoch(span)?;
        self.past = set.take_past();
        self.epochs.push(TraceEpoch { span, ended });
        Ok(())
    }
}

/// An epoch whose packets have all been added, spread over these sketches.
struct Full {
    span: Span,
    ipv6: bool,
    sets: Vec<SketchSet>,
}

/// The state that workers share. A part that a worker has taken out is absent meanwhile.
struct State<'s, S: PacketSource> {
    reading: Option<Reading<'s, S>>,
    /// The source has no more packets.
    at_end: bool,
    items: VecDeque<Item>,
    /// Sketches of the epoch that is being filled, and how many of them workers have taken out.
    current: Vec<SketchSet>,
    in_use: usize,
    full: VecDeque<Full>,
    /// Empty sketches, and how many there are in all.
    idle: Vec<SketchSet>,
    made: usize,
    answers: Option<Answers>,
    spare: Vec<Block>,
    /// Counts of the whole trace, once it is at its end.
    read: TraceResult,
    failed: Option<TraceError<S::Error>>,
    stopped: bool,
}

impl<'s, S: PacketSource> State<'s, S> {
    fn new(sketches: SketchSet, reading: Reading<'s, S>) -> Self {
        Self {
            reading: Some(reading),
            at_end: false,
            items: VecDeque::new(),
            current: vec![sketches],
            in_use: 0,
            full: VecDeque::new(),
            idle: Vec::new(),
            made: 1,
            answers: Some(Answers::default()),
            spare: Vec::new(),
            read: TraceResult::default(),
            failed: None,
            stopped: false,
        }
    }

    fn is_done(&self) -> bool {
        self.stopped
            || self.at_end
                && self.items.is_empty()
                && self.full.is_empty()
                && self.in_use == 0
                && self.answers.is_some()
    }
}

/// A piece of work, with everything that it needs.
enum Work<'s, S: PacketSource> {
    Read(Reading<'s, S>),
    Update(SketchSet, Block),
    /// Goes on with these sketches where the epoch's own are full, in the order of packets.
    HandOver(Full, SketchSet),
    Answer(Answers, Full),
}

struct Job<'s, S: PacketSource> {
    state: Mutex<State<'s, S>>,
    changed: Condvar,
    recipe: Recipe,
    /// An epoch's packets may be spread over several sets of sketches.
    spread: bool,
    rows: usize,
    backlog: usize,
    /// Sets of sketches at most.
    sets: usize,
}

/// Ends the work of all if one of them panics, so that none waits for it for ever.
struct StopOnPanic<'a, 's, S: PacketSource>(&'a Job<'s, S>);

impl<S: PacketSource> Drop for StopOnPanic<'_, '_, S> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.lock().stopped = true;
            self.0.changed.notify_all();
        }
    }
}

impl<'s, S: PacketSource> Job<'s, S> {
    fn lock(&self) -> MutexGuard<'_, State<'s, S>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Works until all is answered, or something failed.
    fn work(&self) {
        let _stop = StopOnPanic(self);
        let mut state = self.lock();
        while !state.is_done() {
            let next = self.next(&mut state);
            let done = match next {
                Ok(None) => {
                    state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                Ok(Some(work)) => {
                    drop(state);
                    let done = self.carry_out(work);
                    state = self.lock();
                    done
                }
                Err(error) => Err(error.into()),
            };
            if let Err(error) = done {
                state.failed.get_or_insert(error);
                state.stopped = true;
            }
            self.changed.notify_all();
        }
    }

    /// The piece of work that is furthest along, if there is one that can be done now.
    fn next(&self, state: &mut State<'s, S>) -> Result<Option<Work<'s, S>>, MeasureError> {
        if !state.full.is_empty()
            && let Some(answers) = state.answers.take()
        {
            if let Some(full) = state.full.pop_front() {
                return Ok(Some(Work::Answer(answers, full)));
            }
            state.answers = Some(answers);
        }
        match state.items.front() {
            Some(Item::Updates(_)) => {
                let most = if self.spread { self.sets } else { 1 };
                if state.in_use < most
                    && let Some(set) = self.set(state)?
                    && let Some(Item::Updates(block)) = state.items.pop_front()
                {
                    state.in_use += 1;
                    return Ok(Some(Work::Update(set, block)));
                }
            }
            Some(Item::End(span, ipv6)) if state.in_use == 0 => {
                let (span, ipv6) = (*span, *ipv6);
                if let Some(set) = self.set(state)? {
                    state.current.push(set);
                    let next = if self.spread || self.sets == 1 { None } else { self.another(state)? };
                    let waits = !self.spread && self.sets > 1 && next.is_none();
                    if !waits {
                        state.items.pop_front();
                        let full = Full { span, ipv6, sets: std::mem::take(&mut state.current) };
                        let Some(next) = next else {
                            state.full.push_back(full);
                            return self.next(state);
                        };
                        state.in_use += 1;
                        return Ok(Some(Work::HandOver(full, next)));
                    }
                }
            }
            _ => {}
        }
        if state.items.len() < self.backlog
            && let Some(mut reading) = state.reading.take()
        {
            reading.cutter.spare.append(&mut state.spare);
            return Ok(Some(Work::Read(reading)));
        }
        Ok(None)
    }

    /// Sketches for the epoch that is being filled.
    fn set(&self, state: &mut State<'s, S>) -> Result<Option<SketchSet>, MeasureError> {
        match state.current.pop() {
            Some(set) => Ok(Some(set)),
            None => self.another(state),
        }
    }

    /// Empty sketches.
    fn another(&self, state: &mut State<'s, S>) -> Result<Option<SketchSet>, MeasureError> {
        if let Some(set) = state.idle.pop() {
            return Ok(Some(set));
        }
        if state.made >= self.sets {
            return Ok(None);
        }
        state.made += 1;
        self.recipe.make().map(Some)
    }

    fn carry_out(&self, work: Work<'s, S>) -> Result<(), TraceError<S::Error>> {
        match work {
            Work::Read(mut reading) => {
                let goes_on = reading.read(self.rows).map_err(TraceError::Source)?;
                let mut state = self.lock();
                state.items.extend(reading.cutter.items.drain(..));
                if goes_on {
                    state.reading = Some(reading);
                } else {
                    let forgotten_flows = reading.cutter.forgotten_flows();
                    let Cutter { packets, skipped, without_gap, clock_backwards, ipv6, .. } = reading.cutter;
                    state.read = TraceResult {
                        packets,
                        skipped,
                        without_gap,
                        forgotten_flows,
                        clock_backwards,
                        ipv6,
                        ..TraceResult::default()
                    };
                    state.at_end = true;
                }
            }
            Work::Update(mut set, mut block) => {
                block.iter().try_for_each(|(key, weight)| set.push(key, *weight))?;
                block.clear();
                let mut state = self.lock();
                state.spare.push(block);
                state.current.push(set);
                state.in_use -= 1;
            }
            Work::HandOver(mut full, mut next) => {
                full.sets.iter_mut().try_for_each(|set| set.swap_aggregators(&mut next))?;
                let mut state = self.lock();
                state.full.push_back(full);
                state.current.push(next);
                state.in_use -= 1;
            }
            Work::Answer(answers, full) => self.answer(answers, full)?,
        }
        Ok(())
    }

    /// Merges an epoch's sketches and asks them.
    fn answer(&self, mut answers: Answers, full: Full) -> Result<(), MeasureError> {
        let Full { span, ipv6, sets } = full;
        let mut sets = sets.into_iter();
        // There is always one, also for an epoch without packets.
        let Some(mut set) = sets.next() else { return Ok(()) };
        for mut other in sets {
            set.absorb(&mut other)?;
            self.lock().idle.push(other);
            self.changed.notify_all();
        }
        answers.ask(&mut set, span, ipv6)?;
        let mut state = self.lock();
        state.answers = Some(answers);
        state.idle.push(set);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
