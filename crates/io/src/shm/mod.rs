//! Shared memory as a port: two processes hand packets to each other through a pair of rings in one file, one
//! ring each way.
//!
//! Whoever opens the file first makes the rings; the second joins. Each holds a lock on its side of the file
//! that the system lets go when the process ends, however it ends, so that the other side learns of it. A
//! session has two sides and is over when both have left; the next process that opens the file begins a new
//! one.
//!
//! - [`memory`]: the mapping and the locks, the only unsafe code.
//! - [`layout`]: what lies where in the file, and whether a file is one of ours.
//! - [`ring`]: one ring: a producer, a consumer.
//! - [`parked`]: what is told of sliced packets, whose payloads wait at one side.
//! - [`receive`], [`send`]: the two ends of a side, as source and for a stage.
//!
//! Nothing that lies in the file is believed before it was checked: positions, lengths and markers are copied
//! out, held against the ring's size, and an error ([`ShmError::Damaged`]) where they can't be. What the
//! checks can't prevent is that a process that may write the file makes it shorter, which ends the other one;
//! the file is made readable and writable by its owner alone.

mod error;
mod layout;
#[allow(unsafe_code)]
mod memory;
mod parked;
mod receive;
mod ring;
mod send;
mod session;
mod stage;

use std::path::PathBuf;
use std::sync::Arc;

pub use error::ShmError;
pub use parked::Mark;
pub use receive::Receiver;
pub use send::{Outgoing, SendCounts, Sender, WhenFull};
pub use stage::SHM;

use parked::Parked;
use session::Session;

/// Settings for opening a side of a shared-memory port.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file; best in memory, as below `/dev/shm`.
    pub path: PathBuf,
    /// Bytes of each ring, a power of two from 64 KiB to 1 GiB; the side that comes first decides.
    pub ring: u64,
    /// The policy for packets that find the ring full.
    pub when_full: WhenFull,
    /// Time for which a receiving side waits for the other process to come, in ns; none: without end.
    pub wait_ns: Option<u64>,
}

impl Options {
    /// Of a file, everything else as is usual: rings of 4 MiB, waiting where one is full.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), ring: 4 << 20, when_full: WhenFull::Wait, wait_ns: None }
    }

    /// Opens a side to receive and to send.
    ///
    /// # Errors
    /// [`ShmError`], which says what to do about it.
    pub fn open(&self) -> Result<(Receiver, Sender), ShmError> {
        let (session, consumer, producer) = Session::join(self)?;
        let parked = Some(Arc::new(Parked::new()));
        Ok((
            Receiver::new(Arc::clone(&session), consumer, parked.clone(), self.wait_ns),
            Sender::new(session, producer, self.when_full, parked),
        ))
    }

    /// Opens a side that only receives: the other one is told that nothing will come.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_receiver(&self) -> Result<Receiver, ShmError> {
        let (session, consumer, producer) = Session::join(self)?;
        producer.close();
        Ok(Receiver::new(session, consumer, None, self.wait_ns))
    }

    /// Opens a side that only sends: the other one is told that nobody takes anything.
    ///
    /// # Errors
    /// As [`Options::open`].
    pub fn open_sender(&self) -> Result<Sender, ShmError> {
        let (session, consumer, producer) = Session::join(self)?;
        consumer.close();
        Ok(Sender::new(session, producer, self.when_full, None))
    }
}

#[cfg(test)]
mod parked_tests;
#[cfg(test)]
mod tests;
