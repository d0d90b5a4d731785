//! The only place that reads clocks.

#![expect(clippy::disallowed_methods, reason = "this is the module that everything else gets time from")]

use std::cell::Cell;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of the calling thread, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    let t = clock_gettime(ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// A point in real time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// How much time some work of one thread took: real time and CPU time, with pauses left out.
#[derive(Debug, Default)]
pub struct Meter {
    since: Cell<Option<(Instant, u64)>>,
    elapsed_ns: Cell<u64>,
    cpu_ns: Cell<u64>,
}

impl Meter {
    /// A meter that stands still.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Runs from now on.
    pub fn start(&self) {
        if self.since.get().is_none() {
            self.since.set(Some((Instant::now(), thread_cpu_ns())));
        }
    }

    /// Stands still; returns whether it was running.
    pub fn stop(&self) -> bool {
        let Some((real, cpu)) = self.since.take() else { return false };
        self.cpu_ns.set(self.cpu_ns.get() + (thread_cpu_ns() - cpu));
        self.elapsed_ns.set(self.elapsed_ns.get() + real.elapsed().as_nanos() as u64);
        true
    }

    /// Does something that doesn't count.
    pub fn pause<T>(&self, work: impl FnOnce() -> T) -> T {
        let was_running = self.stop();
        let result = work();
        if was_running {
            self.start();
        }
        result
    }

    /// Real time measured, in ns.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        self.elapsed_ns.get()
    }

    /// CPU time measured, in ns.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        self.cpu_ns.get()
    }
}
