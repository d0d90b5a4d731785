//! Inputs that may have nothing for a while: pipes, terminals, sockets. Waiting for one can be ended.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
pub use slipstream_core::stop::{Stopped, stops_streams};

/// So often is asked whether to go on waiting.
const PATIENCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A stream that is waited for.
pub(super) struct Stream {
    file: File,
    stop: Arc<AtomicBool>,
}

impl Stream {
    pub(super) fn new(file: File) -> Self {
        Self { file, stop: stops_streams() }
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
                    // Who ends both sides of a pipe has cut the stream off; this is no capture's end.
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
    use std::os::fd::OwnedFd;

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
