//! The only place that reads clocks.

#![expect(clippy::disallowed_methods, reason = "this is the module that everything else gets time from")]

use std::cell::Cell;
use std::sync::OnceLock;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use crate::time::Nanos;

fn read(clock: ClockId) -> u64 {
    let t = clock_gettime(clock);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The clock of live runs, in ns since the Unix epoch: real time as it was when the process first asked, and
/// from then on as the monotonic clock runs, so that it never goes backwards nor jumps when somebody sets the
/// time. Both are disciplined alike (NTP), so that kernel time stamps, which are real time, differ from it by
/// nothing but such jumps.
#[derive(Clone, Copy, Debug)]
pub struct LiveClock {
    /// Of the monotonic clock to this one.
    offset: u64,
}

impl LiveClock {
    /// A difference of the two clocks below this is how far apart they were read, no jump, in ns.
    const NOISE: u64 = 1_000_000;

    /// The one clock of the process.
    #[must_use]
    pub fn get() -> Self {
        static CLOCK: OnceLock<LiveClock> = OnceLock::new();
        *CLOCK
            .get_or_init(|| Self { offset: read(ClockId::Realtime).saturating_sub(read(ClockId::Monotonic)) })
    }

    /// The time.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Nanos {
        #[cfg(any(test, feature = "testing"))]
        if let Some(time) = stand_in::read() {
            return Nanos(time);
        }
        Nanos(read(ClockId::Monotonic).saturating_add(self.offset))
    }

    /// The time that the monotonic clock had when it showed so many ns.
    #[inline]
    #[must_use]
    pub fn at_monotonic(&self, ns: u64) -> Nanos {
        Nanos(ns.saturating_add(self.offset))
    }

    /// A clock that is so many ns behind this one.
    #[must_use]
    pub fn behind(self, ns: u64) -> Self {
        Self { offset: self.offset.saturating_sub(ns) }
    }

    /// Lead of real time over this clock, in ns; `before` is the last known lead: only a jump changes it.
    #[must_use]
    pub fn real_time_ahead(&self, before: i64) -> i64 {
        let (real, mine) = (read(ClockId::Realtime), self.now().0);
        let ahead = real.wrapping_sub(mine) as i64;
        if ahead.abs_diff(before) < Self::NOISE { before } else { ahead }
    }
}

/// Real time for times of a [`LiveClock`], which others compare with their own. Somebody may set the clock of
/// the machine while a pipeline runs, as it is first set after a boot.
#[derive(Clone, Copy, Debug)]
pub struct RealTime {
    clock: LiveClock,
    ahead: i64,
}

impl RealTime {
    /// As far ahead of this clock as real time is now.
    #[must_use]
    pub fn of(clock: LiveClock) -> Self {
        Self { clock, ahead: clock.real_time_ahead(0) }
    }

    /// Looks by how much real time is ahead now. Returns true if it was set back since the last look.
    pub fn look(&mut self) -> bool {
        let before = self.ahead;
        self.ahead = self.clock.real_time_ahead(before);
        self.ahead < before
    }

    /// A time of the clock in real time, by the last look.
    #[must_use]
    pub fn at(&self, time: Nanos) -> Nanos {
        Nanos(time.0.saturating_add_signed(self.ahead))
    }
}

/// Real time as it is now, in ns since the Unix epoch: it jumps when somebody sets it, and is what times of
/// other processes are compared with.
#[must_use]
pub fn real_time() -> Nanos {
    Nanos(read(ClockId::Realtime))
}

/// The monotonic clock, in ns since some time before the start of the system: other processes of the machine
/// read the same.
#[must_use]
pub fn monotonic() -> Nanos {
    Nanos(read(ClockId::Monotonic))
}

/// A clock that tests set and move, in place of [`LiveClock`] on their thread. Every look at it takes a
/// little, as it does in truth.
#[cfg(any(test, feature = "testing"))]
pub mod stand_in {
    use std::cell::Cell;

    /// Time that it takes to look at the clock, in ns.
    const LOOK: u64 = 50;

    thread_local! {
        static TIME: Cell<Option<u64>> = const { Cell::new(None) };
    }

    /// Sets the time, in ns; with none the real clock counts again.
    pub fn set(time: Option<u64>) {
        TIME.set(time);
    }

    /// So many ns pass.
    pub fn pass(ns: u64) {
        TIME.set(TIME.get().map(|time| time + ns));
    }

    pub(super) fn read() -> Option<u64> {
        pass(LOOK);
        TIME.get()
    }
}

/// CPU time of the calling thread, in ns.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    read(ClockId::ThreadCPUTime)
}

/// A point in real time.
#[must_use]
pub fn now() -> Instant {
    Instant::now()
}

/// A stopwatch of one thread's work: real time and CPU time, with pauses left out.
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

    /// Real time measured, in ns; where it runs, up to now.
    #[must_use]
    pub fn elapsed_ns(&self) -> u64 {
        let running = self.since.get().map_or(0, |(real, _)| real.elapsed().as_nanos() as u64);
        self.elapsed_ns.get() + running
    }

    /// CPU time measured, in ns; where it runs, up to now.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        let running = self.since.get().map_or(0, |(_, cpu)| thread_cpu_ns() - cpu);
        self.cpu_ns.get() + running
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_live_clock_is_real_time_that_never_runs_backwards() {
        let clock = LiveClock::get();
        let mut last = clock.now();
        for _ in 0..1000 {
            let now = clock.now();
            assert!(now >= last);
            last = now;
        }
        assert!(read(ClockId::Realtime).abs_diff(clock.now().0) < 60_000_000_000);
        let ahead = clock.real_time_ahead(0);
        assert_eq!(clock.real_time_ahead(ahead), ahead);
        assert_ne!(clock.real_time_ahead(ahead + 3_600_000_000_000), ahead + 3_600_000_000_000);
    }

    #[test]
    fn real_time_is_told_of_a_clock_that_is_behind() {
        const HOUR: u64 = 3_600_000_000_000;
        let clock = LiveClock::get().behind(HOUR);
        let mut real = RealTime::of(clock);
        assert!(real.at(clock.now()).0.abs_diff(read(ClockId::Realtime)) < 60_000_000_000);
        assert!(!real.look());
        // As if it had been an hour earlier at the last look, then an hour later.
        real.ahead -= HOUR as i64;
        assert!(!real.look());
        real.ahead += HOUR as i64;
        assert!(real.look() && !real.look());
    }
}
