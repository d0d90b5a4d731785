//! The loop that drives a pipeline by the wall clock: ports are asked for packets, what is held leaves on time, and when
//! there is nothing to do the thread sleeps until a packet comes or something is due.
//!
//! The clock is read once a round. A round asks each source once, hands what came to the pipeline in the order of arrival,
//! and then lets time pass to what the clock said before the sources were asked: packets that come later have later
//! times, so that no deadline fires before a packet that it should have waited for. A source that has more than a batch
//! keeps time back until it is empty: under overload packets are late, but trains are those that came.
//!
//! Captures and generated traffic may take part: their packets come as long after the start as they did in the capture.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::drive::{Feed, Run, RunError, RunReport};
use super::poll_log::PollLog;
use super::replay::Tick;
use crate::batch::{BATCH, Batch};
use crate::clock::{LiveClock, Meter};
use crate::frame::Frame;
use crate::pool::Pool;
use crate::time::Nanos;
use slipstream_stats::Histogram;

/// What is due within this time is waited for awake: waking up takes about as long.
const AWAKE: u64 = 20_000;
/// Sleep of a source whose packets have no room, in ns.
const BLOCKED: u64 = 20_000;
/// Longest sleep: so often is asked whether to go on.
pub(super) const NAP: u64 = 100_000_000;

/// How a live run goes, and when it ends.
#[derive(Clone, Debug, Default)]
pub struct LiveOptions {
    /// Ends after this time.
    pub duration: Option<Duration>,
    /// Ends after so many packets, of all sources together.
    pub packets: Option<u64>,
    /// Never sleep: the least delay, and a whole core.
    pub busy_poll: bool,
    /// Room in the log of polls; none is kept without.
    pub poll_log: Option<usize>,
    /// In the engine's own time: what passes before anything counts in [`OwnTime`](super::OwnTime).
    pub settle: Duration,
    /// Captures and generated traffic don't keep their own pace: their packets come as soon as there is room for them.
    pub fast: bool,
    /// Set by somebody else while it runs: stages read anew what they can, see
    /// [`Run::reloads`](super::Run::reloads). The run takes it back.
    pub reload: Arc<AtomicBool>,
}

/// How much later than they were due packets left, for one stage at the end of a pipeline.
#[derive(Debug)]
pub(super) struct Excess {
    clock: LiveClock,
    histogram: Histogram,
    /// From the time stamps of packets that came since `since`.
    transit: Histogram,
    since: Nanos,
    /// When the packets of the batch under way were due, and their time stamps.
    due: Vec<(Nanos, Nanos)>,
}

impl Default for Excess {
    fn default() -> Self {
        let (clock, due) = (LiveClock::get(), Vec::with_capacity(BATCH));
        let (histogram, transit) = (Histogram::new(), Histogram::new());
        Self { clock, histogram, transit, since: clock.now(), due }
    }
}

impl Excess {
    /// This batch is about to leave.
    pub(super) fn leaving(&mut self, pool: &Pool, batch: &Batch) {
        self.due.clear();
        for (train, frames) in batch.iter() {
            let times = |f: &Frame| (train.release.max(f.arrival), pool.meta(f.buf).time);
            self.due.extend(frames.iter().map(times));
        }
    }

    pub(super) fn set_clock(&mut self, clock: LiveClock) {
        self.clock = clock;
    }

    /// It has left.
    pub(super) fn left(&mut self) {
        let now = self.clock.now();
        for (due, stamp) in self.due.drain(..) {
            self.histogram.record(now.since(due));
            if stamp >= self.since && stamp <= now {
                self.transit.record(now.since(stamp));
            }
        }
    }

    pub(super) fn transit(&self) -> &Histogram {
        &self.transit
    }

    pub(super) fn histogram(&self) -> &Histogram {
        &self.histogram
    }
}

/// The limits of a run, in absolute terms.
pub(super) struct Limits {
    pub(super) end: Nanos,
    pub(super) packets: u64,
}

impl LiveOptions {
    /// The limits of a run that begins at `start`.
    pub(super) fn limits(&self, start: Nanos) -> Limits {
        Limits {
            end: self.duration.map_or(Nanos::MAX, |d| start.after(d.as_nanos() as u64)),
            packets: self.packets.unwrap_or(u64::MAX),
        }
    }
}

/// What a round found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Round {
    /// Packets came.
    pub(super) busy: bool,
    /// A source may have more.
    pub(super) more: bool,
    /// What it is to take at least, with all that is done with what came, in ns.
    pub(super) least_ns: u64,
    /// A source was asked for less than it might have, since what comes behind has no room.
    blocked: bool,
}

impl Run {
    /// Runs until the pipeline's sources have ended, a limit is reached, or `tick` wants no more; then all that is held
    /// leaves.
    pub(super) fn run_live(&mut self, tick: &mut Tick<'_>) -> Result<RunReport, RunError> {
        if self.in_own_time() {
            return self.run_own_time(tick);
        }
        // By default the kernel is 50 µs late with a thread's timers; where that can't be changed, they stay so.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let clock = LiveClock::get();
        let options = self.live.clone();
        let meter = Meter::new();
        let mut feeds = self.feeds();
        self.align(&mut feeds, clock.now())?;
        self.pipeline.find_ways();
        let start = clock.now();
        let limits = options.limits(start);
        self.log = options.poll_log.map(PollLog::new);
        let mut asked = start;
        meter.start();
        let result = loop {
            let now = clock.now();
            if now.since(asked) >= NAP || now == start {
                asked = now;
                if tick(None) == ControlFlow::Break(()) {
                    break Ok(());
                }
                if options.reload.swap(false, Ordering::Relaxed) {
                    self.pipeline.reload(now);
                }
            }
            let taken: u64 = feeds.iter().map(Feed::packets).sum();
            if now >= limits.end || taken >= limits.packets {
                break Ok(());
            }
            let round = match self.round(&mut feeds, now, limits.packets - taken) {
                Ok(round) => round,
                Err(error) => break Err(error),
            };
            if !round.more {
                self.pipeline.run_to(&mut self.pool, now);
                self.now = self.now.max(now);
            }
            self.answer(&feeds, &meter);
            if round.least_ns > 0 {
                self.stay_busy(round.least_ns, now);
            }
            if round.busy {
                continue;
            }
            self.pipeline.tell_ends(|head| feeds.get(head).is_some_and(Feed::at_end));
            if feeds.iter().all(Feed::at_end) && self.pipeline.finished() {
                break Ok(());
            }
            if !options.busy_poll && self.sleep(&feeds, round, now, limits.end) {
                // Signals interrupt sleep: ask at once.
                asked = Nanos(0);
            }
        };
        meter.stop();
        self.pipeline.drain(&mut self.pool, clock.now());
        self.end(result, &feeds, &meter)
    }

    /// The end of a live run: what was written is whole, also where a port failed, and what happened until
    /// then is kept.
    pub(super) fn end(
        &mut self,
        result: Result<(), RunError>,
        feeds: &[Feed],
        meter: &Meter,
    ) -> Result<RunReport, RunError> {
        let finished = self.finish(feeds, meter);
        if result.is_err() || finished.is_err() {
            self.partial = Some(self.report(feeds, meter));
        }
        result.and(finished)
    }

    /// Lets the packets of captures begin at `now`.
    fn align(&mut self, feeds: &mut [Feed], now: Nanos) -> Result<(), RunError> {
        for (head, feed) in feeds.iter_mut().enumerate().filter(|(_, f)| !f.live) {
            self.refill(head, feed)?;
        }
        let first = feeds.iter().filter_map(Feed::next).min().unwrap_or(now);
        let shift = now.0.wrapping_sub(first.0);
        feeds.iter_mut().for_each(|f| f.shift_by(shift));
        Ok(())
    }

    /// Asks every source once and hands on what has come.
    pub(super) fn round(&mut self, feeds: &mut [Feed], now: Nanos, max: u64) -> Result<Round, RunError> {
        let mut round = Round::default();
        let mut left = max;
        for (head, feed) in feeds.iter_mut().enumerate() {
            let wanted = BATCH.min(usize::try_from(left).unwrap_or(BATCH));
            feed.room = self.pipeline.room(head);
            round.blocked |= feed.room == 0;
            if feed.live {
                let most = wanted.min(feed.room);
                // One that was asked for nothing has not ended.
                let (n, more) = if most == 0 { (0, false) } else { self.poll(head, feed, most, now)? };
                round.more |= more;
                round.least_ns = round.least_ns.max(if most == 0 { 0 } else { feed.least_ns });
                left -= n as u64;
            } else {
                self.refill(head, feed)?;
                if self.live.fast { feed.come_now(now) } else { feed.not_before(self.now) }
            }
        }
        // In the order of time, as far as each source goes before another one has a packet.
        while let Some((_, head)) =
            feeds.iter().enumerate().filter_map(|(i, f)| Some((f.ready(now)?, i))).min()
        {
            let others = feeds.iter().enumerate().filter(|(i, _)| *i != head);
            let until = others.filter_map(|(i, f)| Some((f.ready(Nanos::MAX)?, i))).min();
            let Some(feed) = feeds.get_mut(head) else { break };
            // Live ones were asked for no more than are wanted.
            let most = if feed.live { BATCH } else { BATCH.min(usize::try_from(left).unwrap_or(BATCH)) };
            if most == 0 {
                break;
            }
            let came = |t: Nanos| t <= now && until.is_none_or(|u| (t, head) < u);
            let n = self.take_from(head, feed, most.min(feed.room), came);
            feed.room -= n.min(feed.room);
            left -= if feed.live { 0 } else { n as u64 };
            round.busy = true;
        }
        Ok(round)
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
    fn sleep(&mut self, feeds: &[Feed], round: Round, now: Nanos, end: Nanos) -> bool {
        let free = feeds.iter().filter(|f| f.room > 0);
        let next = free.filter_map(Feed::next).min().unwrap_or(Nanos::MAX);
        let next = if round.blocked { next.min(now.after(AWAKE + BLOCKED)) } else { next };
        let mut due = next.min(self.pipeline.next_deadline()).min(end);
        let mut fds = Vec::with_capacity(feeds.len());
        for source in self.pipeline.heads.iter_mut().filter_map(|h| h.source.live()) {
            match source.descriptor() {
                Some(fd) => fds.push(PollFd::from_borrowed_fd(fd, PollFlags::IN)),
                None if source.ended() => {}
                // Only asking tells whether it has something.
                None => match source.patience() {
                    Some(ns) => due = due.min(now.after(AWAKE + ns)),
                    None => return false,
                },
            }
        }
        let left = due.since(now).min(NAP);
        if left <= AWAKE {
            std::hint::spin_loop();
            return false;
        }
        let nap = left - AWAKE;
        let timeout = Timespec { tv_sec: (nap / 1_000_000_000) as i64, tv_nsec: (nap % 1_000_000_000) as _ };
        // An interrupted sleep is a short one.
        let _ = poll(&mut fds, Some(&timeout));
        true
    }
}
