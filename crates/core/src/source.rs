//! Sources of packets, as a replay or a live run asks them.

use std::any::Any;
use std::error::Error;
use std::os::fd::BorrowedFd;

use crate::batch::{Arrivals, BATCH};
use crate::caused::caused;
use crate::clock::LiveClock;
use crate::interface::Interface;
use crate::pool::{Pool, Region};
use crate::stage::StageError;
use crate::time::Nanos;

caused! {
    /// The reason why a source ended early, in the words of whoever implements it.
    SourceError
}

impl Error for SourceError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.0.source()
    }
}

/// A stage that is a port fails as the port does.
impl From<SourceError> for StageError {
    fn from(error: SourceError) -> Self {
        Self::new(error.0)
    }
}

/// Brings packets in.
pub trait Source {
    /// Appends up to `max` packets, not yet classified, in the order of arrival; returns how many (0 at the
    /// end). Arrival times never decrease, from one packet to the next and from one call to the next: a
    /// packet whose time is before that of the packet before it is given that one's time, and counts among
    /// [`clock_backwards`](Self::clock_backwards). Delays are wrong otherwise, and debug builds may panic.
    ///
    /// # Errors
    /// [`SourceError`] where the rest can't be had.
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError>;

    /// Interfaces seen so far; grows.
    fn interfaces(&self) -> &[Interface];

    /// Packets whose time ran backwards; they were taken to arrive with the packet before them.
    fn clock_backwards(&self) -> u64 {
        0
    }

    /// Returns true if filling is part of the data path, not of loading.
    fn preloaded(&self) -> bool {
        false
    }

    /// Progress as a share of 1, if that is known.
    fn progress(&self) -> Option<f64> {
        None
    }

    /// Details of a type that only its implementer knows, such as the reader of a capture file.
    fn details(&self) -> Option<&dyn Any> {
        None
    }

    /// Its live side, where packets come by the wall clock.
    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        None
    }

    /// Returns true if it can't go on before somebody writes to the stream that it reads, and filling would
    /// wait for that. Who has asked once is never made to wait: [`fill`](Self::fill) gives what is there.
    ///
    /// # Errors
    /// [`SourceError`] where the rest can't be had.
    fn waits(&mut self) -> Result<bool, SourceError> {
        Ok(false)
    }

    /// A descriptor that becomes readable when one that [waits](Self::waits) may go on.
    fn stream(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Threads of its own may work ahead from now on: several cores are to share the work.
    fn work_ahead(&mut self) {}

    /// CPU time in ns of threads of its own.
    fn ahead_cpu_ns(&self) -> u64 {
        0
    }

    /// Visits its counters, by name.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}

    /// Memory for packets that it would have the pool [adopt](crate::pool::Pool::adopt), so that nothing is
    /// copied on its way in. It is asked once, before the run; ports that share memory offer it once. Where
    /// the pool has adopted other memory, or none, it copies.
    fn region(&mut self) -> Option<Box<dyn Region>> {
        None
    }
}

/// Packets that came at one time and that a source has led straight to a port; see [`LiveSource::relay`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Came {
    /// The time at which they came, by the [`LiveClock`].
    pub arrival: Nanos,
    /// Their time stamp; see [`PacketMeta::time`](crate::pool::PacketMeta::time).
    pub time: Nanos,
    /// Their number.
    pub packets: usize,
}

impl Came {
    /// Appends a packet, to those that came at the same time.
    #[inline]
    pub fn add(all: &mut Vec<Self>, arrival: Nanos, time: Nanos) {
        match all.last_mut() {
            Some(last) if (last.arrival, last.time) == (arrival, time) => last.packets += 1,
            _ => all.push(Self { arrival, time, packets: 1 }),
        }
    }
}

/// A source whose packets come when they come: having none now is not the end.
pub trait LiveSource {
    /// Appends up to `max` packets that have come, not yet classified, in the order of arrival; returns how
    /// many. `now` was read from the [`LiveClock`] just before; what came since
    /// counts as coming at that time.
    ///
    /// # Errors
    /// [`SourceError`] where nothing more can come.
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError>;

    /// Polls for what has come by now: how such a source [fills](Source::fill), where 0 packets are no end,
    /// since more may come.
    ///
    /// # Errors
    /// [`SourceError`] where nothing more can come.
    fn poll_now(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
    ) -> Result<usize, SourceError> {
        self.poll(pool, arrivals, max, LiveClock::get().now())
    }

    /// Leads up to `max` packets that have come by `now` straight to a port, without a look at them: none of
    /// them comes into the pool. `to` is what that port's half returned from
    /// [`Transmit::relay`](crate::port::Transmit::relay), or an outlet from
    /// [`Egress::relay`](crate::stage::Egress::relay), and counts them as sent. All of them are appended to
    /// `came`; where none are, what is there, if anything, is to be polled. Returns false where the two don't
    /// know each other, so that all packets are.
    fn relay(
        &mut self,
        _pool: &mut Pool,
        _to: &mut dyn Any,
        _max: usize,
        _now: Nanos,
        _came: &mut Vec<Came>,
    ) -> bool {
        false
    }

    /// Packets that it gives at a time at most: so many may mean that there are more.
    fn at_once(&self) -> usize {
        BATCH
    }

    /// A descriptor that becomes readable when a packet comes; none: it has to be polled.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Without a descriptor: how long it may be left unasked when it had nothing, in ns; none: it is to be
    /// asked at once.
    fn patience(&self) -> Option<u64> {
        None
    }

    /// Returns true if nothing more will come; from a network there is always more.
    fn ended(&self) -> bool {
        false
    }

    /// The run is about to end, so that nothing more is to come in from outside. What it has for others of
    /// the same run it gives them now. Returns true as long as packets of this run may still come, such as
    /// those that others have for it; it is asked before each further poll.
    fn part(&mut self) -> bool {
        false
    }

    /// Minimum time of a poll that found so many packets, with all that is done with them, in ns: the engine
    /// stays busy until then.
    fn least_ns(&self, _packets: usize) -> u64 {
        0
    }

    /// A poll took longer than that.
    fn took_longer(&mut self) {}

    /// Its side that lets packets come in the engine's own time, where they do.
    fn own_time(&mut self) -> Option<&mut dyn OwnTimeSource> {
        None
    }
}

/// A source whose packets come in the engine's own time: between two polls, while that time stands still.
pub trait OwnTimeSource {
    /// Lets come what is due at or before `now`; the first time is that of the start.
    fn come(&mut self, now: Nanos);

    /// Calls `visit` with the arrival times of the last `n` packets that were taken, as long as nothing came
    /// since.
    fn taken(&self, n: usize, visit: &mut dyn FnMut(Nanos));

    /// Packets that have come, and how many of these were dropped.
    fn come_and_dropped(&self) -> (u64, u64);
}
