//! The way out: frames in batches of one system call.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::sys::SEND_AT_ONCE;
use super::{Port, PortError};

/// Time to wait for room before the next try, and the most tries in one batch; then packets are dropped.
const WAIT: Duration = Duration::from_micros(100);
const WAITS: u32 = 50;

/// Sends frames by an interface.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
    counts: SendCounts,
}

/// Counters of a [`Sender`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendCounts {
    /// Packets that left.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets that the interface takes for too long (its MTU).
    pub too_long: u64,
    /// Packets for which no room was found in time.
    pub no_room: u64,
    /// Packets that the interface can't send, such as while it is down.
    pub refused: u64,
    /// Times that it waited for room.
    pub waits: u64,
}

impl SendCounts {
    /// Packets that did not leave.
    #[must_use]
    pub fn not_sent(&self) -> u64 {
        self.too_long + self.no_room + self.refused
    }
}

impl Sender {
    pub(super) fn new(port: Arc<Port>) -> Self {
        Self { port, counts: SendCounts::default() }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    /// Sends frames in this order. Where there is no room, it waits for some, 5 ms in all; what can't leave
    /// is counted.
    pub fn send<'a>(&mut self, frames: impl Iterator<Item = &'a [u8]>) {
        let mut frames = frames.peekable();
        let mut waits = WAITS;
        while frames.peek().is_some() {
            let mut chunk = [&[][..]; SEND_AT_ONCE];
            let mut n = 0;
            for (place, frame) in chunk.iter_mut().zip(frames.by_ref()) {
                *place = frame;
                n += 1;
            }
            self.send_chunk(chunk.get(..n).unwrap_or_default(), &mut waits);
        }
    }

    fn send_chunk(&mut self, mut frames: &[&[u8]], waits: &mut u32) {
        while let Some((_, rest)) = frames.split_first() {
            match self.port.socket.send(frames) {
                Ok(n) => {
                    let (sent, left) = frames.split_at(n.clamp(1, frames.len()));
                    self.counts.packets += sent.len() as u64;
                    self.counts.bytes += sent.iter().map(|f| f.len() as u64).sum::<u64>();
                    frames = left;
                }
                Err(error) => match fate(&error) {
                    Fate::Again => {}
                    Fate::Later if *waits > 0 => {
                        *waits -= 1;
                        self.counts.waits += 1;
                        self.wait();
                    }
                    Fate::Later => {
                        self.counts.no_room += 1;
                        frames = rest;
                    }
                    Fate::TooLong => {
                        self.counts.too_long += 1;
                        frames = rest;
                    }
                    Fate::Refused => {
                        self.counts.refused += 1;
                        frames = rest;
                    }
                },
            }
        }
    }

    /// Until there is room, or for a while: of a full queue of the interface the socket knows nothing.
    fn wait(&self) {
        let mut fds = [PollFd::from_borrowed_fd(self.port.socket.fd(), PollFlags::OUT)];
        let pause = Timespec { tv_sec: 0, tv_nsec: WAIT.subsec_nanos().into() };
        if matches!(poll(&mut fds, Some(&pause)), Ok(n) if n > 0) {
            let _ = poll(&mut [], Some(&pause));
        }
    }

    /// Checks that there still is an interface to send by.
    ///
    /// # Errors
    /// [`PortError::Gone`].
    pub fn check(&self) -> Result<(), PortError> {
        self.port.gone().map_or(Ok(()), Err)
    }
}

enum Fate {
    Again,
    Later,
    TooLong,
    Refused,
}

fn fate(error: &io::Error) -> Fate {
    match error.raw_os_error() {
        Some(libc::EINTR) => Fate::Again,
        Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => Fate::Later,
        Some(libc::EMSGSIZE) => Fate::TooLong,
        _ => Fate::Refused,
    }
}
