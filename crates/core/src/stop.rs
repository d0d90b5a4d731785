//! Waiting that can be ended from outside: for a stream that has nothing for a while, for a reader of a pipe.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time after which whoever waits for a stream asks whether to go on.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// The flag that ends all waiting for streams once it is set, such as by a signal.
#[must_use]
pub fn stops_streams() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// Waiting for a stream was ended by [`stops_streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it was asked to end")]
pub struct Stopped;

impl Stopped {
    /// This error, once [`stops_streams`] was set.
    ///
    /// # Errors
    /// Itself.
    pub fn check() -> Result<(), Self> {
        if STOP.load(Ordering::Relaxed) { Err(Self) } else { Ok(()) }
    }

    /// Returns true if this is why something was not read or written.
    #[must_use]
    pub fn is_why(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Self>())
    }
}

/// A pipe, a terminal, a socket or a device that is read, where waiting for bytes ends when it is asked to.
#[derive(Debug)]
pub struct Stream {
    file: File,
    stop: Arc<AtomicBool>,
}

impl Stream {
    /// Of an open file.
    #[must_use]
    pub fn new(file: File) -> Self {
        Self { file, stop: stops_streams() }
    }

    /// Opens what has this name. To open a named pipe waits for nobody: reading does, until somebody writes.
    ///
    /// # Errors
    /// The system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path).map(Self::new)
    }

    /// Opens stdin.
    ///
    /// # Errors
    /// The system's.
    pub fn stdin() -> io::Result<Self> {
        io::stdin().as_fd().try_clone_to_owned().map(|file| Self::new(file.into()))
    }

    /// A descriptor that becomes readable when there is something to read.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.file.as_fd().try_clone_to_owned()
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(io::Error::other(Stopped));
            }
            let mut fds = [PollFd::from_borrowed_fd(self.file.as_fd(), PollFlags::IN)];
            match poll(&mut fds, Some(&PATIENCE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // Reading from a file that can't be waited for says what is wrong.
                _ => match self.file.read(into) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    // A stop that ends both sides of a pipe has cut the stream off: no capture ends here.
                    Ok(0) if self.stop.load(Ordering::Relaxed) => {}
                    read => return read,
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn waiting_ends_when_it_is_asked_to() {
        let (from, mut to) = io::pipe().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let mut stream = Stream { file: File::from(OwnedFd::from(from)), stop: Arc::clone(&stop) };
        to.write_all(b"ab").unwrap();
        let mut bytes = [0; 4];
        assert_eq!(stream.read(&mut bytes).unwrap(), 2);
        let asks = std::thread::spawn(move || stop.store(true, Ordering::Relaxed));
        let error = stream.read(&mut bytes).unwrap_err();
        asks.join().unwrap();
        assert!(Stopped::is_why(&error));
        drop(to);
    }

    #[test]
    fn the_end_of_a_stream_is_one() {
        let (from, to) = io::pipe().unwrap();
        drop(to);
        let mut stream = Stream { file: File::from(OwnedFd::from(from)), stop: Arc::default() };
        assert_eq!(stream.read(&mut [0; 4]).unwrap(), 0);
    }

    /// Whoever writes to it was asked to end by the same signal, and did so first.
    #[test]
    fn the_end_of_a_stream_after_a_request_to_end_is_that_request() {
        let (from, to) = io::pipe().unwrap();
        let stop = Arc::<AtomicBool>::default();
        let mut stream = Stream { file: File::from(OwnedFd::from(from)), stop: Arc::clone(&stop) };
        let ends = std::thread::spawn(move || {
            stop.store(true, Ordering::Relaxed);
            drop(to);
        });
        assert!(Stopped::is_why(&stream.read(&mut [0; 4]).unwrap_err()));
        ends.join().unwrap();
    }
}
