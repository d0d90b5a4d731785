//! The way out: frames in batches of one system call.

use std::io::{self, IoSlice};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;

pub(super) use super::sys::SEND_AT_ONCE;
use super::{Port, PortError};
use crate::super_frame::{MOST, Super, Takes};
use slipstream_wire::gro::Kind;

/// Time to wait for room before the next try, and the most tries in one batch; then packets are dropped.
const WAIT: Duration = Duration::from_micros(100);
const WAITS: u32 = 50;

/// Sends frames by an interface.
#[derive(Debug)]
pub struct Sender {
    port: Arc<Port>,
    /// The super-frames that it sends; none where none are wanted.
    takes: Option<Takes>,
    /// Each frame goes behind a header, since the first super-frame.
    headers: bool,
    /// The interface was taken away.
    gone: bool,
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
    /// Super-frames that left.
    pub super_frames: u64,
    /// Packets in them, which count as packets too.
    pub super_frame_packets: u64,
    /// Super-frames that the kernel did not take: their packets left one by one.
    pub super_frames_refused: u64,
    /// Packets that left by themselves for a wrong checksum.
    pub wrong_checksums: u64,
}

impl SendCounts {
    /// Packets that did not leave.
    #[must_use]
    pub fn not_sent(&self) -> u64 {
        self.too_long + self.no_room + self.refused
    }
}

impl Sender {
    pub(super) fn new(port: Arc<Port>, super_frames: bool) -> Self {
        let takes = super_frames.then_some(Takes { mtu: port.mtu, udp: true });
        Self { port, takes, headers: false, gone: false, counts: SendCounts::default() }
    }

    /// The counters.
    #[must_use]
    pub fn counts(&self) -> SendCounts {
        self.counts
    }

    /// Sends packets in this order, those that are a super-frame as one.
    pub(super) fn transmit(&mut self, pool: &Pool, frames: &[Frame]) {
        if self.takes.is_none() || !frames.iter().any(|frame| frame.info.joins()) {
            return self.send(frames.iter().map(|f| pool.data(f.buf, f.len)));
        }
        // The first packet that has not left, and the one that is looked at.
        let (mut from, mut at) = (0, 0);
        while let Some(rest) = frames.get(at..).filter(|rest| !rest.is_empty()) {
            let wrong = &mut self.counts.wrong_checksums;
            let Some(whole) = self.takes.and_then(|takes| Super::of(pool, rest, takes, wrong)) else {
                at += 1;
                continue;
            };
            self.send(frames.get(from..at).unwrap_or_default().iter().map(|f| pool.data(f.buf, f.len)));
            let those = rest.get(..whole.packets).unwrap_or_default();
            if !self.send_super(pool, &whole, those) {
                self.send(those.iter().map(|f| pool.data(f.buf, f.len)));
            }
            at += whole.packets;
            from = at;
        }
        self.send(frames.get(from..).unwrap_or_default().iter().map(|f| pool.data(f.buf, f.len)));
    }

    /// Sends a super-frame; false where its packets are to leave one by one.
    fn send_super(&mut self, pool: &Pool, whole: &Super, frames: &[Frame]) -> bool {
        if !self.headers {
            if self.port.socket.send_headers().is_err() {
                self.takes = None;
                return false;
            }
            self.headers = true;
        }
        let mut parts = [IoSlice::new(&[]); MOST + 2];
        let payloads = frames.iter().map(|frame| whole.payload(pool, frame));
        let all = [&whole.offload[..], whole.headers.bytes()].into_iter().chain(payloads);
        for (part, bytes) in parts.iter_mut().zip(all) {
            *part = IoSlice::new(bytes);
        }
        let parts = parts.get(..frames.len() + 2).unwrap_or_default();
        let (n, mut waits) = (frames.len() as u64, WAITS);
        loop {
            let Err(error) = self.port.socket.send_parts(parts) else {
                self.counts.packets += n;
                self.counts.bytes += frames.iter().map(|f| u64::from(f.len)).sum::<u64>();
                self.counts.super_frames += 1;
                self.counts.super_frame_packets += n;
                return true;
            };
            match fate(&error) {
                Fate::Again => {}
                Fate::Later if waits > 0 => {
                    waits -= 1;
                    self.counts.waits += 1;
                    self.wait();
                }
                Fate::Later => {
                    self.counts.no_room += n;
                    return true;
                }
                Fate::TooLong | Fate::Refused => {
                    self.counts.super_frames_refused += 1;
                    let kind = whole.headers.kind;
                    if let (Some(libc::EINVAL), Kind::Udp, Some(takes)) =
                        (error.raw_os_error(), kind, &mut self.takes)
                    {
                        takes.udp = false;
                    }
                    return false;
                }
            }
        }
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

    /// Sends up to [`SEND_AT_ONCE`] frames that are in no pool; see [`Sender::send`].
    pub(super) fn relay(&mut self, frames: &[&[u8]]) {
        self.send_chunk(frames, &mut { WAITS });
    }

    fn send_chunk(&mut self, mut frames: &[&[u8]], waits: &mut u32) {
        while let Some((_, rest)) = frames.split_first() {
            match self.port.socket.send(frames, self.headers) {
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
                        let no_interface = error.raw_os_error() == Some(libc::ENXIO);
                        self.gone = self.gone || no_interface && self.port.gone().is_some();
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

    /// Returns true if the interface was taken away, and a packet has met with it.
    pub(super) fn has_lost_interface(&self) -> bool {
        self.gone
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
