//! The loop that drives a pipeline by the wall clock: ports are asked for packets, what is held leaves on
//! time, and when there is nothing to do the thread sleeps until a packet comes or something is due.
//!
//! The clock is read once a round. A round asks each source once, hands what came to the pipeline in the
//! order of arrival, and then lets time pass to what the clock said before the sources were asked: packets
//! that come later have later times, so that no deadline fires before a packet that it should have waited
//! for. A source that has more than a batch keeps time back until it is empty: under overload packets are
//! late, but trains are those that came.
//!
//! Captures and generated traffic may take part: their packets come as long after the start as they did in
//! the capture.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};

use super::alarm::{Alarm, sleep};
use super::driver::{Clock, Driver, End, Limits, Run};
use super::feeds::{Course, Feed, Late, Round};
use super::graph::Sections;
use super::operator::Operator;
use super::report::RunError;
use super::waiting::{Wait, Waiting};
use slipstream_core::batch::{BATCH, Batch};
use slipstream_core::clock::{self, LiveClock};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::source::Came;
use slipstream_core::time::Nanos;
use slipstream_io::cpu;
use slipstream_stats::Histogram;

/// Packets that came wait so long at most for more of them, before they go to another thread, in ns.
const GATHER: u64 = 20_000;
/// Packets that have come before a run is asked to end are taken for so long at most, in ns.
const REST: u64 = 20_000_000;
/// Sleep of a source whose packets have no room, in ns.
const BLOCKED: u64 = 20_000;
/// Longest sleep while an operator asks one thing after another, in ns.
const SOON: u64 = 1_000_000;
/// Longest sleep: so often is asked whether to go on.
pub(super) const NAP: u64 = 100_000_000;

/// Settings of a live run, and its limits.
#[derive(Clone, Debug, Default)]
pub struct LiveOptions {
    /// Ends after this time.
    pub duration: Option<Duration>,
    /// Ends after so many packets, of all sources together.
    pub packets: Option<u64>,
    /// Never sleep: the least delay, and a whole core.
    pub busy_poll: bool,
    /// Where packets come faster than this one after the other, and not so fast that it pays to stay awake,
    /// those that are held may leave so much later, in order that one waking serves several, and all may
    /// wait for so long where that saves CPU time; 0: what is due leaves in time, and each packet wakes the
    /// engine.
    pub coalesce: Duration,
    /// The core of each shard's thread, in turn; none: wherever the system puts it.
    pub cores: Vec<u32>,
    /// Its precedence over other threads, 1 to 99 (`SCHED_FIFO`); none: it shares time with them.
    pub priority: Option<u8>,
    /// The number of this shard; 0 where there is one. A run in shards sets it.
    pub shard: usize,
    /// Room in the log of polls; none is kept without.
    pub poll_log: Option<usize>,
    /// In service time: what passes before anything counts in
    /// [`ServiceTimeReport`](super::ServiceTimeReport).
    pub settle: Duration,
    /// Captures and generated traffic don't keep their own pace: their packets come as soon as there is room
    /// for them.
    pub fast: bool,
    /// Set by somebody else while it runs: stages read anew what they can, see
    /// [`Driver::reloads`](super::Driver::reloads). The run takes it back.
    pub reload: Arc<AtomicBool>,
    /// By which stages are visited while it runs.
    pub operator: Operator,
}

/// The excess delay of packets: their departures against the times at which they were due, for one stage at
/// the end of a pipeline.
#[derive(Debug)]
pub(super) struct Excess {
    clock: LiveClock,
    histogram: Histogram,
    /// From the time stamps of packets that came since `since`.
    transit: Histogram,
    since: Nanos,
    /// When the packets of the batch under way were due, their time stamps, and how many had both.
    due: Vec<Came>,
    last_left: Nanos,
}

impl Default for Excess {
    fn default() -> Self {
        let (clock, due) = (LiveClock::get(), Vec::with_capacity(BATCH));
        let (histogram, transit) = (Histogram::new(), Histogram::new());
        Self { clock, histogram, transit, since: clock.now(), due, last_left: Nanos(0) }
    }
}

impl Excess {
    /// This batch is about to leave.
    pub(super) fn leaving(&mut self, pool: &Pool, batch: &Batch) {
        self.due.clear();
        if let Some(came) = at_once(pool, batch) {
            return self.due.push(came);
        }
        for (train, frames) in batch.iter() {
            frames.iter().for_each(|f| self.leaves(pool, train.release.max(f.arrival), f));
        }
    }

    /// Notes when these packets, which nobody held and which are about to leave, were due.
    pub(super) fn leaving_unread(&mut self, pool: &Pool, frames: &[Frame]) {
        self.due.clear();
        if let [first, .., last] = frames
            && first.arrival == last.arrival
            && pool.meta(first.buf).time == pool.meta(last.buf).time
        {
            // Neither time runs backwards: all came at once.
            let (arrival, time) = (first.arrival, pool.meta(first.buf).time);
            return self.due.push(Came { arrival, time, packets: frames.len() });
        }
        frames.iter().for_each(|f| self.leaves(pool, f.arrival, f));
    }

    /// These packets came, and have left since.
    pub(super) fn relayed(&mut self, came: &[Came]) {
        self.due.clear();
        self.due.extend_from_slice(came);
        self.left();
    }

    #[inline]
    fn leaves(&mut self, pool: &Pool, due: Nanos, frame: &Frame) {
        Came::add(&mut self.due, due, pool.meta(frame.buf).time);
    }

    pub(super) fn set_clock(&mut self, clock: LiveClock) {
        self.clock = clock;
    }

    /// Notes that the packets that were about to leave have left.
    pub(super) fn left(&mut self) {
        let now = self.clock.now();
        self.last_left = now;
        let Self { histogram, transit, due, since, .. } = self;
        histogram.record_each(due.iter().map(|came| (now.since(came.arrival), came.packets as u32)));
        let stamped = due.iter().filter(|came| (*since..=now).contains(&came.time));
        transit.record_each(stamped.map(|came| (now.since(came.time), came.packets as u32)));
        due.clear();
    }

    /// The time at which packets left for the last time.
    pub(super) fn last_left(&self) -> Nanos {
        self.last_left
    }

    pub(super) fn transit(&self) -> &Histogram {
        &self.transit
    }

    pub(super) fn histogram(&self) -> &Histogram {
        &self.histogram
    }
}

/// The times of a batch of which all packets came at once and none was held: the most frequent one where
/// nothing makes trains.
fn at_once(pool: &Pool, batch: &Batch) -> Option<Came> {
    let times = |frame: &Frame| (frame.arrival, pool.meta(frame.buf).time);
    let (first, others) = batch.frames.split_first()?;
    let (arrival, time) = times(first);
    let same = others.iter().all(|other| times(other) == (arrival, time));
    let held = batch.trains.iter().any(|train| train.release > arrival);
    (same && !held).then_some(Came { arrival, time, packets: batch.frames.len() })
}

impl LiveOptions {
    /// Finds out whether threads can have the cores and the priority, before there is anything to run.
    ///
    /// # Errors
    /// [`RunError::Core`], which names the core or priority, and the cores that there are.
    pub fn check_cores(&self) -> Result<(), RunError> {
        if self.cores.is_empty() && self.priority.is_none() {
            return Ok(());
        }
        // A thread is put there and ends: that says more than any account of what a process may do.
        let check = || (0..self.cores.len().max(1)).try_for_each(|n| self.take_core_of(n));
        thread::scope(|scope| scope.spawn(check).join()).unwrap_or(Ok(()))
    }

    /// Puts the calling thread on the core that it is to have.
    pub(super) fn take_core(&self) -> Result<(), RunError> {
        self.take_core_of(self.shard)
    }

    fn take_core_of(&self, shard: usize) -> Result<(), RunError> {
        let core = self.cores.get(shard % self.cores.len().max(1));
        if let Some(core) = core {
            cpu::pin(*core).map_err(|error| RunError::Core { what: no_core(*core), error })?;
        }
        if let Some(priority) = self.priority {
            let what = || format!("priority {priority} can't be had (CAP_SYS_NICE)");
            cpu::precede(priority).map_err(|error| RunError::Core { what: what(), error })?;
        }
        Ok(())
    }

    /// The limits of a run that begins at `start`.
    pub(super) fn limits(&self, start: Nanos) -> Limits {
        Limits {
            end: self.duration.map_or(Nanos::MAX, |d| start.after(d.as_nanos() as u64)),
            packets: self.packets.unwrap_or(u64::MAX),
        }
    }
}

/// Says that a core can't be had, and which can.
fn no_core(core: u32) -> String {
    let there: Vec<String> = cpu::widen().unwrap_or_default().iter().map(u32::to_string).collect();
    match there.as_slice() {
        [] => format!("core {core} can't be had"),
        _ => format!("core {core} can't be had; there are {}", there.join(", ")),
    }
}

/// The wall clock. It is read once a round.
pub(super) struct WallTime {
    clock: LiveClock,
    options: LiveOptions,
    /// The time at which it was last asked whether to go on.
    asked: Nanos,
    now: Nanos,
    limit: Nanos,
    begun: bool,
    /// By when the run ends at the latest, once it was asked to: packets that have come go in before.
    leaves: Option<Nanos>,
    /// Since when packets wait to go to another thread.
    gathers: Option<Nanos>,
    /// Packets may have left since `now`, and nothing that takes its time came behind them.
    fresh: bool,
    waiting: Waiting,
    alarm: Alarm,
}

impl WallTime {
    pub(super) fn new(options: &LiveOptions) -> Self {
        cpu::punctual_timers();
        let (asked, now, limit) = (Nanos(0), Nanos(0), Nanos::MAX);
        let waiting = Waiting::new(u64::try_from(options.coalesce.as_nanos()).unwrap_or(u64::MAX / 4));
        Self {
            clock: LiveClock::get(),
            options: options.clone(),
            asked,
            now,
            limit,
            begun: false,
            leaves: None,
            gathers: None,
            fresh: false,
            waiting,
            alarm: Alarm::new(),
        }
    }
}

impl Clock for WallTime {
    /// Lets the packets of captures begin now.
    fn begin(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<Limits, RunError> {
        if self.begun {
            // The rest of a run that had several threads.
            run.meter.start();
            return Ok(Limits { end: self.limit, packets: self.options.packets.unwrap_or(u64::MAX) });
        }
        self.begun = true;
        let now = self.clock.now();
        for (head, feed) in run.feeds.iter_mut().enumerate().filter(|(_, f)| !f.live) {
            feed.may_wait = true;
            driver.refill(head, feed)?;
            feed.begins = feed.waits;
        }
        let first = run.feeds.iter().filter_map(Feed::next).min().unwrap_or(now);
        let shift = now.0.wrapping_sub(first.0);
        run.feeds.iter_mut().for_each(|f| f.shift_by(shift));
        let limits = self.options.limits(self.clock.now());
        self.limit = limits.end;
        run.meter.start();
        Ok(limits)
    }

    fn next(&mut self, driver: &mut Driver, run: &mut Run<'_>) -> Result<ControlFlow<End, Course>, RunError> {
        // Under load the clock was read when the last packets had left, which is just now.
        self.now = match driver.pipeline.last_left() {
            left if self.fresh && left > self.now => left,
            _ => self.clock.now(),
        };
        self.fresh = false;
        if self.now.since(self.asked) >= NAP {
            self.asked = self.now;
            if driver.writes_in_vain(run) {
                return Ok(ControlFlow::Break(End::Well));
            }
            if self.leaves.is_none() && run.tick(None).is_break() {
                self.leaves = Some(self.now.after(REST));
            }
            if self.options.reload.swap(false, Ordering::Relaxed) {
                driver.pipeline.reload(self.now);
            }
        }
        let late = if self.options.fast { Late::ComesNow } else { Late::ComesAtOnce };
        let course = Course { now: self.now, max: u64::MAX, at_once: BATCH, late, meters: false };
        Ok(ControlFlow::Continue(course))
    }

    fn passed(&mut self, driver: &mut Driver, run: &mut Run<'_>, round: Round) -> ControlFlow<End> {
        if !round.more {
            driver.let_pass(self.now);
        }
        if self.leaves.is_some_and(|by| !round.busy || self.now >= by) {
            return ControlFlow::Break(End::Well);
        }
        if let Some(sections) = run.sections {
            // Each hand-over costs both threads: while a source has more, small bursts go over together.
            let since = *self.gathers.get_or_insert(self.now);
            let gathers = round.more && self.now.since(since) < GATHER;
            driver.pipeline.send(sections, &mut run.crossing, !gathers);
            if run.crossing.is_empty() {
                self.gathers = None;
            }
            if !round.busy {
                // Only when they have done all is it known when something is due.
                sections.catch_up();
                if run.at_end() {
                    return ControlFlow::Break(End::Well);
                }
            }
        }
        if round.least_ns > 0 {
            driver.stay_busy(round.least_ns, self.now);
        }
        if round.busy {
            self.waiting.came(round.events, round.first.unwrap_or(self.now), self.now);
            self.fresh = round.least_ns == 0;
            return ControlFlow::Continue(());
        }
        driver.pipeline.tell_ends(run.sections, |head| run.feeds.get(head).is_some_and(Feed::at_end));
        if run.at_end() && driver.pipeline.finished() {
            return ControlFlow::Break(End::Well);
        }
        let limit = run.sections.map_or(self.limit, |sections| self.limit.min(sections.next_deadline()));
        let limit =
            if self.options.operator.has_attention() { limit.min(self.now.after(SOON)) } else { limit };
        if !self.options.busy_poll {
            let ways = (&mut self.waiting, &mut self.alarm);
            if driver.sleep(&run.feeds, round, self.now, limit, ways) {
                // Signals interrupt sleep: ask at once.
                self.asked = Nanos(0);
            }
        }
        ControlFlow::Continue(())
    }

    fn all_came(&mut self, _: &mut Driver, _: &mut Run<'_>) {}

    fn end(&mut self, driver: &mut Driver, run: &mut Run<'_>, _: bool) {
        run.meter.stop();
        driver.pipeline.drain(&mut driver.pool, self.clock.now());
    }
}

impl Driver {
    /// Packet memory that a port brings becomes the pool's, so that nothing is copied there. The first port
    /// that offers some is taken at its word; where packets lie in the pool already, it stays as it is. So it
    /// does where nobody vouches for a stage: one that used a packet which it doesn't have would reach beyond
    /// what a port has mapped. Packets are copied then.
    #[allow(unsafe_code)]
    pub(super) fn adopt_memory(&mut self) -> Result<(), RunError> {
        if self.own_pool || self.pool.live() > 0 {
            return Ok(());
        }
        self.own_pool = true;
        if self.pipeline.not_shared().is_some() {
            return Ok(());
        }
        let Some(region) = self.pipeline.region() else { return Ok(()) };
        // SAFETY: somebody vouches for all stages and ports: they, and the driver, give a `BufId` on with its
        // packet, or free it, and forget it then; lengths are those that came with packets, or less.
        self.pool = unsafe { Pool::adopt(region) }?;
        Ok(())
    }

    /// Returns true if nothing that the run is for can be written any more, or an interface that it sends by
    /// was taken away. Where something still can be written, as by a gateway beside a capture for which the
    /// disk is full, it goes on.
    fn writes_in_vain(&mut self, run: &Run<'_>) -> bool {
        if !self.pipeline.failed() && !run.sections.is_some_and(Sections::failed) {
            return false;
        }
        if self.pipeline.is_gone() || run.sections.is_some_and(Sections::is_gone) {
            return true;
        }
        self.pipeline.ends_left() + run.sections.map_or(0, Sections::ends_left) == 0
    }

    /// Lets time pass to `now`.
    pub(super) fn let_pass(&mut self, now: Nanos) {
        self.pipeline.run_to(&mut self.pool, now);
        self.now = self.now.max(now);
    }

    /// Lets pass what a round that began at `now` is to take at least.
    fn stay_busy(&mut self, least: u64, now: Nanos) {
        let clock = LiveClock::get();
        if clock.now().since(now) > least {
            self.took_longer();
        }
        while clock.now().since(now) < least {
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a packet comes or something is due; returns whether it slept at all.
    fn sleep(
        &mut self,
        feeds: &[Feed],
        round: Round,
        now: Nanos,
        end: Nanos,
        (waiting, alarm): (&mut Waiting, &mut Alarm),
    ) -> bool {
        let free = feeds.iter().filter(|f| f.room > 0);
        let next = free.filter_map(Feed::next).min().unwrap_or(Nanos::MAX);
        let lead = waiting.lead();
        let next = if round.blocked { next.min(now.after(lead + BLOCKED)) } else { next };
        let (mut ask, due) = (Nanos::MAX, self.pipeline.next_deadline());
        // The timer comes behind them.
        let mut fds = Vec::with_capacity(feeds.len() + 1);
        for (head, feed) in self.pipeline.heads.iter_mut().zip(feeds) {
            if feed.waits {
                fds.extend(head.source.stream().map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
                continue;
            }
            let Some(source) = head.source.live() else { continue };
            match source.descriptor() {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                None if source.ended() => {}
                // Only asking tells whether it has something.
                None => match source.patience() {
                    Some(ns) => ask = ask.min(now.after(lead + ns)),
                    None => return false,
                },
            }
        }
        // Sources and the room behind them are not to be asked late; what stages hold may leave late.
        let end = end.min(next).min(ask).min(now.after(NAP));
        if waiting.asks() {
            waiting.spent(now, clock::thread_cpu_ns());
        }
        let slept = match waiting.wait(now, due, end) {
            Wait::Awake => {
                std::hint::spin_loop();
                return false;
            }
            Wait::Whole(nap) => sleep(&mut [], now, nap),
            Wait::Until(nap, keep) => {
                let measured = waiting.falls_asleep().then(clock::thread_cpu_ns);
                let slept = alarm.sleep_until(&mut fds, now, nap, keep);
                if let (Some(before), None) = (measured, slept) {
                    waiting.cost(clock::thread_cpu_ns().saturating_sub(before));
                }
                slept
            }
        };
        if let Some(due) = slept {
            waiting.overslept(LiveClock::get().now().since(due));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use slipstream_core::batch::Train;
    use slipstream_core::pool::PacketMeta;

    proptest! {
        /// Packet by packet: when it was due and its time stamp, those that have both alike together.
        #[test]
        fn packets_leave_with_the_times_of_each(
            trains in prop::collection::vec((0u64..3, prop::collection::vec((0u64..2, 0u64..2), 1..4)), 0..6),
            alike: bool,
        ) {
            let (mut pool, mut batch, mut twin) = (Pool::new(), Batch::new(), Vec::new());
            for (release, packets) in trains {
                let (start, len) = (batch.frames.len() as u32, packets.len() as u32);
                let release = if alike { 0 } else { release };
                for (arrival, time) in packets {
                    let (arrival, time) = if alike { (1, 0) } else { (arrival, time) };
                    let meta = PacketMeta { time: Nanos(time), ..PacketMeta::default() };
                    let buf = pool.insert(meta, &[0; 60]);
                    batch.frames.push(Frame::unclassified(Nanos(arrival), buf, 60));
                    twin.push((Nanos(arrival.max(release)), Nanos(time)));
                }
                let (release, flow, order, sequence) = (Nanos(release), Frame::NO_FLOW, 0, 0);
                batch.trains.push(Train { flow, start, len, release, order, sequence, continues: false });
            }
            let mut excess = Excess::default();
            excess.leaving(&pool, &batch);
            let due: Vec<(Nanos, Nanos, usize)> =
                excess.due.iter().map(|came| (came.arrival, came.time, came.packets)).collect();
            let runs: Vec<_> = twin.chunk_by(|a, b| a == b).map(|run| (run[0].0, run[0].1, run.len())).collect();
            prop_assert_eq!(due, runs);
        }
    }
}
