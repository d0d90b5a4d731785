//! Answers while packets go on: there are two sets of sketches. One takes packets in; the other is asked by a
//! thread of its own, about the epoch before, and then comes back empty.

use std::collections::VecDeque;
use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde_json::{Value, json};
use slipstream_core::new_file::NewFile;
use slipstream_wire::FlowKey;

use super::lane::Past;
use super::{
    Ask, Description, EpochLength, MeasureError, Saved, SavedEpoch, SketchConfig, SketchSet, Span, Task,
};

/// The answers of the last epochs.
#[derive(Debug, Default)]
struct Results {
    ended: u64,
    saturated: u64,
    memory_bytes: usize,
    aggregator_bytes: usize,
    last: VecDeque<Value>,
    /// Epochs whose states were saved, and those whose weren't.
    saved: (u64, u64),
    /// Why the first of the latter wasn't.
    not_saved: Option<String>,
}

/// Saves the states of every epoch.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// The folder: a file for each epoch, `START.state`, its begin in ns since 1970. Epochs by packets may
    /// begin at the same time as the one before: `START-2.state`, `START-3.state`, ….
    pub folder: PathBuf,
    /// The head of every file.
    pub about: Description,
}

impl Keeper {
    /// Writes the states of an epoch, the `nth` that begins then; the file appears complete, in place of any
    /// of an older run, or not at all.
    fn save(&self, span: Span, nth: u64, states: [Vec<u8>; 2]) -> Result<(), String> {
        let start = span.start_ns;
        let name = if nth < 2 { format!("{start}.state") } else { format!("{start}-{nth}.state") };
        let path = self.folder.join(name);
        let saved = Saved { about: self.about.clone(), epochs: vec![SavedEpoch { span, states }] };
        let written = NewFile::create(&path).and_then(|mut file| {
            file.write_all(&saved.to_bytes())?;
            file.persist()
        });
        written.map_err(|e| format!("{}: {e}", path.display()))
    }
}

/// The fate of an epoch that was to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is being answered, and the next one is under way.
    Ended,
    /// The epoch before is still being answered: this one goes on.
    GoesOn,
}

/// Why there are no more answers.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The thread that answers ended early.
    #[error("the thread that answers has failed")]
    Thread,
    /// Nothing can be measured.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// States could not be saved.
    #[error("states of {0} were not saved: {1}")]
    Save(String, String),
    /// No thread could be started.
    #[error("no thread can be started: {0}")]
    Start(#[from] std::io::Error),
}

/// Two sets of sketches and the thread that answers.
#[derive(Debug)]
pub struct Snapshots {
    sketches: SketchSet,
    full: Option<Sender<(SketchSet, Span)>>,
    free: Receiver<SketchSet>,
    results: Arc<Mutex<Results>>,
    thread: Option<JoinHandle<()>>,
    may_wait: bool,
    /// Says that the trace may end within the last epoch: of a replay by time, whose clock runs on to the
    /// epoch's end.
    cut: bool,
}

impl Snapshots {
    /// With these sketches, for epochs of this length; of those that have ended, the answers of the last
    /// `keep` are kept, and with a keeper the states of all are saved. Where it may not wait
    /// ([`Snapshots::end_epoch`]), packets come by the wall clock.
    ///
    /// # Errors
    /// [`EndError`] where sketches or thread can't be made.
    pub fn new(
        ask: &Arc<Ask>,
        configs: &[SketchConfig; 2],
        epoch: EpochLength,
        keep: usize,
        may_wait: bool,
        keeper: Option<Keeper>,
    ) -> Result<Self, EndError> {
        let make = || -> Result<SketchSet, MeasureError> {
            let mut sketches = SketchSet::new(ask.clone(), configs.clone())?;
            sketches.make_all()?;
            Ok(sketches)
        };
        let (sketches, spare) = (make()?, make()?);
        let (full, to_answer) = channel();
        let (back, free) = channel();
        // Both ends are here, so this can't fail.
        let _ = back.send(spare);
        let results = Arc::new(Mutex::new(Results::default()));
        let answerer = Answerer {
            results: results.clone(),
            keep,
            keeper,
            begun: (0, 0),
            past: Default::default(),
            ended_at: None,
            // Only changes tell an epoch in which nothing came from none.
            quiet: (ask.task == Task::HeavyChanges && matches!(epoch, EpochLength::Time(_)))
                .then(make)
                .transpose()?,
        };
        let thread = std::thread::Builder::new()
            .name("measure".into())
            .spawn(move || answerer.run(&to_answer, &back))?;
        let cut = may_wait && matches!(epoch, EpochLength::Time(_));
        Ok(Self { sketches, full: Some(full), free, results, thread: Some(thread), may_wait, cut })
    }

    /// Adds to a flow in the epoch that is under way.
    #[inline]
    pub fn push(&mut self, flow: &FlowKey, weight: u64) {
        // All sketches are made already.
        let _ = self.sketches.push(flow, weight);
    }

    /// Ends the epoch that is under way. Where the one before is still being answered, a replay waits, so
    /// that it gives the same answers every time; live, packets don't wait: the epoch goes on.
    ///
    /// # Errors
    /// [`EndError::Thread`] where nobody answers any more.
    pub fn end_epoch(&mut self, span: Span) -> Result<Outcome, EndError> {
        let next = match self.free.try_recv() {
            Ok(next) => next,
            Err(TryRecvError::Empty) if self.may_wait => self.free.recv().map_err(|_| EndError::Thread)?,
            Err(TryRecvError::Empty) => return Ok(Outcome::GoesOn),
            Err(TryRecvError::Disconnected) => return Err(EndError::Thread),
        };
        let over = std::mem::replace(&mut self.sketches, next);
        let full = self.full.as_ref().ok_or(EndError::Thread)?;
        full.send((over, span)).map_err(|_| EndError::Thread)?;
        Ok(Outcome::Ended)
    }

    /// Ends the last epoch, if packets came, and waits until all answers are there. Nothing may be added
    /// afterwards.
    ///
    /// # Errors
    /// [`EndError::Thread`] where the thread failed.
    pub fn finish(&mut self, span: Span) -> Result<(), EndError> {
        self.may_wait = true;
        if span.packets > 0 {
            self.end_epoch(span)?;
        }
        self.full = None;
        self.thread.take().map_or(Ok(()), |t| t.join().map_err(|_| EndError::Thread))?;
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = results.last.back_mut().and_then(Value::as_object_mut).filter(|_| self.cut) {
            last.insert("partial".into(), true.into());
        }
        match &results.not_saved {
            Some(why) => {
                let epochs = results.saved.1;
                Err(EndError::Save(
                    format!("{epochs} epoch{}", if epochs == 1 { "" } else { "s" }),
                    why.clone(),
                ))
            }
            None => Ok(()),
        }
    }

    /// Epochs that have been answered, and how many of them found a sketch saturated.
    #[must_use]
    pub fn ended(&self) -> (u64, u64) {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        (results.ended, results.saturated)
    }

    /// Epochs whose states were saved, and those whose states could not be.
    #[must_use]
    pub fn saved(&self) -> (u64, u64) {
        self.results.lock().unwrap_or_else(PoisonError::into_inner).saved
    }

    /// The answers of the last epochs, the latest last, and memory.
    #[must_use]
    pub fn report(&self) -> Value {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "memory_bytes": results.memory_bytes,
            "aggregator_bytes": results.aggregator_bytes,
            "epochs_ended": results.ended,
            "epochs": results.last,
        })
    }
}

/// The state of the thread that answers.
struct Answerer {
    results: Arc<Mutex<Results>>,
    keep: usize,
    keeper: Option<Keeper>,
    /// The begin of the latest epoch that was to be saved, and how many of these have begun then.
    begun: (u64, u64),
    /// The sketches of the epoch before.
    past: [Past; 2],
    /// When the epoch before ended.
    ended_at: Option<u64>,
    /// Sketches for stretches in which nothing came, where the answers depend on them.
    quiet: Option<SketchSet>,
}

impl Answerer {
    fn run(mut self, full: &Receiver<(SketchSet, Span)>, back: &Sender<SketchSet>) {
        while let Ok((mut sketches, span)) = full.recv() {
            self.pass_silence(span.start_ns);
            self.answer(&mut sketches, span);
            // Nobody takes it where the pipeline has ended.
            let _ = back.send(sketches);
        }
    }

    /// A stretch without packets is an epoch of its own: everything that was there before has gone, and what
    /// comes next is new.
    fn pass_silence(&mut self, until: u64) {
        let Some(start_ns) = self.ended_at.filter(|end| *end < until) else { return };
        if let Some(mut quiet) = self.quiet.take() {
            self.answer(&mut quiet, Span { start_ns, end_ns: until, ..Span::default() });
            self.quiet = Some(quiet);
        }
    }

    fn answer(&mut self, sketches: &mut SketchSet, span: Span) {
        sketches.set_past(std::mem::take(&mut self.past));
        let ended = sketches.end_epoch(span);
        self.past = sketches.take_past();
        self.ended_at = Some(span.end_ns);
        let (mut ended, mut saved) = (ended, None);
        if let (Some(keeper), Ok(ended), true) = (&self.keeper, &mut ended, span.packets > 0) {
            let before = if self.begun.0 == span.start_ns { self.begun.1 } else { 0 };
            self.begun = (span.start_ns, before + 1);
            saved = Some(keeper.save(span, before + 1, std::mem::take(&mut ended.states)));
        }
        let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        results.ended += 1;
        match saved {
            Some(Ok(())) => results.saved.0 += 1,
            Some(Err(why)) => {
                results.saved.1 += 1;
                results.not_saved.get_or_insert(why);
            }
            None => {}
        }
        let value = match ended {
            Ok(ended) => {
                results.saturated += u64::from(ended.result.saturated);
                results.memory_bytes = ended.memory_bytes;
                results.aggregator_bytes = ended.aggregator_bytes;
                ended.result.to_json()
            }
            Err(error) => json!({ "packets": span.packets, "start_ns": span.start_ns, "end_ns": span.end_ns,
                                  "error": error.to_string() }),
        };
        results.last.push_back(value);
        while results.last.len() > self.keep {
            results.last.pop_front();
        }
    }
}
