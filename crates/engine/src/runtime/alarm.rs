//! Sleeps that a packet ends, or a timer. The timer stays set from one sleep to the next where it can: to set
//! one anew at each costs more CPU time than all else where a host has to be told, as on a virtual machine.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::read;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create, timerfd_settime,
};

use slipstream_core::time::Nanos;

/// A sleep may end that early, in ns, where it would be longer: what wakes nobody in vain more than some ten
/// times a second is left as it is.
const KEEP: u64 = 25_000_000;

/// Sleeps, and the timer that ends them.
#[derive(Debug)]
pub(super) struct Alarm {
    /// None where the system gives none: then each sleep has a time-out of its own.
    timer: Option<OwnedFd>,
    /// The time at which it goes off, if it is set.
    at: Option<Nanos>,
}

fn timespec(ns: u64) -> Timespec {
    Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as _ }
}

/// Sleeps for `nap` ns, or until one of these has something. Returns the time at which a time-out should have
/// ended the sleep, if one has.
pub(super) fn sleep(fds: &mut [PollFd<'_>], now: Nanos, nap: u64) -> Option<Nanos> {
    // An interrupted sleep is a short one.
    (poll(fds, Some(&timespec(nap))) == Ok(0)).then(|| now.after(nap))
}

impl Alarm {
    pub(super) fn new() -> Self {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC);
        Self { timer: timer.ok(), at: None }
    }

    /// As [`sleep`], with the timer: it isn't set anew if it goes off within `nap` ns, but not within `keep`,
    /// of which no more than [`KEEP`] counts. No time-out is set beside it, which each sleep would pay for.
    pub(super) fn sleep_until<'a>(
        &'a mut self,
        fds: &mut Vec<PollFd<'a>>,
        now: Nanos,
        nap: u64,
        keep: u64,
    ) -> Option<Nanos> {
        let Some(timer) = &self.timer else { return sleep(fds, now, nap) };
        let keep = keep.min(nap).min(KEEP);
        let stays = self.at.is_some_and(|at| at >= now.after(keep) && at <= now.after(nap));
        if !stays {
            let once = Itimerspec { it_interval: timespec(0), it_value: timespec(nap.max(1)) };
            if timerfd_settime(timer, TimerfdTimerFlags::empty(), &once).is_err() {
                return sleep(fds, now, nap);
            }
            self.at = Some(now.after(nap));
        }
        let packets = fds.len();
        fds.push(PollFd::from_borrowed_fd(timer.as_fd(), PollFlags::IN));
        let woken = poll(fds, None).is_ok();
        let has = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let rang = woken && fds.get(packets).is_some_and(has);
        if !rang {
            return None;
        }
        // It would end every sleep from now on.
        let _ = read(timer, &mut [0; 8]);
        let at = self.at.take();
        at.filter(|_| !fds.iter().take(packets).any(has))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::super::live::NAP;
    use super::*;
    use slipstream_core::clock::LiveClock;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_timer_ends_one_sleep_and_not_the_next() {
        let mut alarm = Alarm::new();
        assert!(alarm.timer.is_some());
        let now = LiveClock::get().now();
        assert_eq!(alarm.sleep_until(&mut Vec::new(), now, MS, MS), Some(now.after(MS)));
        let woken = LiveClock::get().now();
        assert!(woken >= now.after(MS));
        assert_eq!(alarm.at, None);
        // A timer that had not been read would end this one at once.
        assert_eq!(alarm.sleep_until(&mut Vec::new(), woken, 2 * MS, 2 * MS), Some(woken.after(2 * MS)));
        assert!(LiveClock::get().now() >= woken.after(2 * MS));
    }

    #[test]
    fn a_packet_ends_a_sleep_and_leaves_the_timer_as_it_is() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        let mut alarm = Alarm::new();
        let now = Nanos(1_000_000_000);
        let mut sleep = |alarm: &mut Alarm, nap: u64, keep: u64| {
            near.write_all(&[1]).unwrap();
            let mut fds = vec![PollFd::new(&far, PollFlags::IN)];
            assert_eq!(alarm.sleep_until(&mut fds, now, nap, keep), None);
            far.read_exact(&mut [0]).unwrap();
            alarm.at
        };
        assert_eq!(sleep(&mut alarm, 15 * MS, 15 * MS), Some(now.after(15 * MS)));
        // It goes off in time, and not too soon.
        assert_eq!(sleep(&mut alarm, 20 * MS, 10 * MS), Some(now.after(15 * MS)));
        // Too soon, and too late.
        assert_eq!(sleep(&mut alarm, 22 * MS, 20 * MS), Some(now.after(22 * MS)));
        assert_eq!(sleep(&mut alarm, 10 * MS, 5 * MS), Some(now.after(10 * MS)));
        // A long sleep may end early, but not at once.
        assert_eq!(sleep(&mut alarm, NAP, NAP), Some(now.after(NAP)));
        let later = NAP + 50 * MS;
        assert_eq!(sleep(&mut alarm, later, later), Some(now.after(NAP)));
    }

    #[test]
    fn without_a_timer_sleeps_have_time_outs() {
        let mut alarm = Alarm { timer: None, at: None };
        let now = LiveClock::get().now();
        assert_eq!(alarm.sleep_until(&mut Vec::new(), now, MS, 0), Some(now.after(MS)));
        assert!(LiveClock::get().now() >= now.after(MS));
    }
}
