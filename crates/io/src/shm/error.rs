//! Errors of shared memory.

use slipstream_core::source::SourceError;
use std::io;
use std::path::PathBuf;

use thiserror::Error;

/// The reason why a shared-memory port can't be opened or used any more.
#[derive(Debug, Error)]
pub enum ShmError {
    /// The file has something else in it.
    #[error(
        "`{0}` is not a shared-memory port, and is left alone; name a file that doesn't exist yet, as in shm:/dev/shm/slice"
    )]
    NotOurs(PathBuf),
    /// Another user made the file, or others than its owner may use it.
    #[error(
        "`{path}` {why}: whoever made it could read and change packets on their way; remove it, or name a file that doesn't exist yet"
    )]
    NotPrivate {
        /// The file.
        path: PathBuf,
        /// The reason: who has it, or who may use it.
        why: String,
    },
    /// Made by another version of this program.
    #[error("`{path}` is a shared-memory port of version {found}; this program has version {known}")]
    Version {
        /// The file.
        path: PathBuf,
        /// The version in its header.
        found: u32,
        /// The version that this program writes.
        known: u32,
    },
    /// Header or ring say what can't be.
    #[error("`{path}` is damaged: {what}")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The contradiction, in words.
        what: &'static str,
    },
    /// Two processes have joined already.
    #[error("`{0}` has two sides, and both are taken; end one of the processes or name another file")]
    InUse(PathBuf),
    /// A process that takes a side, or leaves one, doesn't get on.
    #[error(
        "another process has been about to take or leave a side of `{0}` for too long; let it go on, or end it"
    )]
    Locked(PathBuf),
    /// The side that is free was used before in this session.
    #[error(
        "the process that had this side of `{0}` has left; end the one at the other side, then both can begin anew"
    )]
    Over(PathBuf),
    /// The process at the other side ended without saying so.
    #[error("the process at the other side of `{0}` ended without finishing; what it had is lost")]
    PeerDied(PathBuf),
    /// The file has its name no more, so that nobody finds it.
    #[error(
        "`{0}` was removed or replaced before anybody came to the other side, and nobody can come any more; start anew"
    )]
    Removed(PathBuf),
    /// The other process did not come in time.
    #[error(
        "nobody came to the other side of `{path}` within {} s; start the process there, or wait for longer",
        *.wait_ns as f64 / 1e9
    )]
    NobodyCame {
        /// The file.
        path: PathBuf,
        /// Time that it was waited for, in ns.
        wait_ns: u64,
    },
    /// The size that was asked for is no size of a ring.
    #[error("a ring of {0} bytes can't be; a power of two from 64 KiB to 1 GiB can")]
    Size(u64),
    /// Anything that the system refuses.
    #[error("{what} `{path}`: {error}")]
    System {
        /// The file.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
        error: io::Error,
    },
}

impl From<ShmError> for SourceError {
    fn from(error: ShmError) -> Self {
        Self::new(error)
    }
}
