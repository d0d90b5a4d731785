//! The memory of the process, kept from being moved out to disk.

use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities};
use thiserror::Error;

/// The reason why memory can't be locked.
#[derive(Debug, Error)]
pub enum LockError {
    /// The process may lock so much only.
    #[error(
        "the limit of locked memory (RLIMIT_MEMLOCK) is {} KiB, and all memory takes none: `ulimit -l unlimited`, \
         LimitMEMLOCK=infinity in a unit of systemd, or the capability CAP_IPC_LOCK",
        .0 / 1024
    )]
    Limit(u64),
    /// The system refuses.
    #[error("memory can't be locked: {0}")]
    System(#[from] io::Error),
}

/// Locks all memory of the process, now and later: what was touched once stays in memory. What was never
/// touched takes none, such as most of a thread's stack (`MCL_ONFAULT`).
///
/// # Errors
/// [`LockError`]. A limit would end the process later, when it takes memory beyond it, and so is refused, be
/// it as high as it may.
pub fn lock_all() -> Result<(), LockError> {
    let limits = getrlimit(Resource::Memlock);
    // The process may raise its limit up to here. If that fails, the limit stands, and is told.
    let _ = setrlimit(Resource::Memlock, Rlimit { current: limits.maximum, ..limits });
    let may = capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::IPC_LOCK));
    if let (Some(limit), false) = (getrlimit(Resource::Memlock).current, may) {
        return Err(LockError::Limit(limit));
    }
    mlockall(MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT)
        .map_err(|error| LockError::System(error.into()))
}
