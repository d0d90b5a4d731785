//! Progress of the lab, and the repetitions that it may add where other programs take the cores.

use std::cell::Cell;

use super::super::Bench;
use super::middlebox::{self, Load, Outcome};

/// Times that an experiment is repeated beyond its turns because something disturbed all of them, in the
/// whole lab.
const SPARE: u32 = 40;

/// The steps of the lab, and the number of them that are done.
pub(super) struct Steps<'a> {
    lab: &'a Bench<'a>,
    all: u32,
    done: Cell<u32>,
    spare: Cell<u32>,
    /// Milliseconds of experiments, and those in which another program took a core.
    windows: Cell<(u64, u64)>,
}

impl<'a> Steps<'a> {
    /// For `all` steps.
    pub(super) fn new(lab: &'a Bench<'a>, all: usize) -> Self {
        let (done, windows) = (Cell::new(0), Cell::new((0, 0)));
        Self { lab, all: all as u32, done, spare: Cell::new(SPARE), windows }
    }

    /// True if inputs are to be small.
    pub(super) fn quick(&self) -> bool {
        self.lab.quick
    }

    /// Counts a step that is done.
    ///
    /// # Errors
    /// When the user interrupted.
    pub(super) fn step(&self) -> anyhow::Result<()> {
        self.done.set(self.done.get() + 1);
        self.lab.step(f64::from(self.done.get()) / f64::from(self.all.max(1)))
    }

    /// Runs an experiment.
    pub(super) fn run(&self, load: &Load<'_>) -> anyhow::Result<Outcome> {
        let outcome = middlebox::run(&self.lab.program, load)?;
        let (all, disturbed) = self.windows.get();
        self.windows.set((all + outcome.windows, disturbed + outcome.disturbed));
        Ok(outcome)
    }

    /// Runs an experiment once more if there are repetitions left.
    pub(super) fn run_again(&self, load: &Load<'_>) -> anyhow::Result<Option<Outcome>> {
        let Some(left) = self.spare.get().checked_sub(1) else { return Ok(None) };
        self.spare.set(left);
        self.lab.check()?;
        self.run(load).map(Some)
    }

    /// Share of all milliseconds of experiments in which another program took a core.
    pub(super) fn disturbed(&self) -> f64 {
        let (all, disturbed) = self.windows.get();
        disturbed as f64 / all.max(1) as f64
    }

    /// Experiments that were repeated because of that.
    pub(super) fn repeated(&self) -> u32 {
        SPARE - self.spare.get()
    }
}
