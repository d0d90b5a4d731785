//! The cores that a thread runs on, its precedence there, and its timers.

use std::io;
use std::num::NonZeroU64;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity, set_current_timer_slack};

/// Has the calling thread, and those that it starts, run on this core alone.
///
/// # Errors
/// There is no such core, or the process may not use it.
pub fn pin(core: u32) -> io::Result<()> {
    let core = core as usize;
    if core >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}

/// The cores that the calling thread can be put on: it may run on all of them from now on.
///
/// # Errors
/// The system doesn't say.
pub fn widen() -> io::Result<Vec<u32>> {
    let mut set = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|core| set.set(core));
    // The system leaves out those that are not there, or that the process may not use.
    let _ = sched_setaffinity(None, &set);
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|core| set.is_set(*core)).map(|core| core as u32).collect())
}

/// The cores that a thread may run on.
#[derive(Clone, Debug)]
pub struct Cores(CpuSet);

impl Cores {
    /// Those of the calling thread; none where the system doesn't say.
    #[must_use]
    pub fn of_this_thread() -> Option<Self> {
        sched_getaffinity(None).ok().map(Self)
    }

    /// Has the calling thread run on them. Where that can't be had, it stays where it is.
    pub fn take(&self) {
        let _ = sched_setaffinity(None, &self.0);
    }
}

/// Has sleeps of the calling thread end in time: by default the kernel is 50 µs late with a thread's timers.
/// Where that can't be had, it stays so.
pub fn punctual_timers() {
    let _ = set_current_timer_slack(NonZeroU64::new(1));
}

/// Has the calling thread precede all threads that share time, and those of a lower priority, 1 to 99
/// (`SCHED_FIFO`).
///
/// # Errors
/// It takes `CAP_SYS_NICE`, or a limit (`RLIMIT_RTPRIO`) that allows it.
pub fn precede(priority: u8) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: priority.into() };
    // SAFETY: the call reads the parameters, which outlive it; 0 stands for the calling thread.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_thread_is_pinned_and_a_core_that_is_not_there_is_refused() {
        let pinned = std::thread::spawn(|| {
            let core = rustix::thread::sched_getcpu() as u32;
            super::pin(core).unwrap();
            (core, rustix::thread::sched_getcpu() as u32)
        });
        let (asked, got) = pinned.join().unwrap();
        assert_eq!(asked, got);
        assert!(super::pin(1_000).is_err() && super::pin(u32::MAX).is_err());
        let (there, wide) = std::thread::spawn(move || {
            super::pin(asked).unwrap();
            (rustix::thread::sched_getaffinity(None).unwrap().count(), super::widen().unwrap())
        })
        .join()
        .unwrap();
        assert_eq!(there, 1);
        assert!(wide.contains(&asked) && wide.iter().all(|core| super::pin(*core).is_ok()), "{wide:?}");
    }
}
