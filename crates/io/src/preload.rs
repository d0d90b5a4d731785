//! A capture that lies in memory as a whole and may be replayed several times.

use slipstream_core::batch::{Arrivals, BATCH};
use slipstream_core::classify::DISTANCE;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{BufId, Pool};
use slipstream_core::source::{Source, SourceError};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

use crate::capture::{Record, Stopped};
use crate::sources::{Order, store};

/// A packet that lies in memory.
#[derive(Clone, Copy, Debug)]
struct Stored {
    time: Nanos,
    buf: BufId,
    len: u32,
}

/// A capture that lies in memory as a whole, and may be replayed several times, time shifted on.
#[derive(Debug, Default)]
pub struct Preload {
    packets: Vec<Stored>,
    interfaces: Vec<Interface>,
    order: Order,
    at: usize,
    turns_left: u32,
    turns: u32,
    shift: u64,
    period: u64,
}

impl Preload {
    /// Reads all that a source has into `pool`, to be replayed `turns` times.
    ///
    /// # Errors
    /// [`SourceError`] where the source can't be read, or reading was ended by
    /// [`stops_streams`](crate::capture::stops_streams).
    pub fn read(source: &mut dyn Source, pool: &mut Pool, turns: u32) -> Result<Self, SourceError> {
        let mut this = Self::empty(turns);
        let mut arrivals = Arrivals::default();
        while source.fill(pool, &mut arrivals, BATCH)? > 0 {
            Stopped::check().map_err(SourceError::new)?;
            this.packets.extend(arrivals.frames.iter().map(|f| Stored {
                time: f.arrival,
                buf: f.buf,
                len: f.len,
            }));
            arrivals.clear();
        }
        this.order.backwards = source.clock_backwards();
        this.interfaces = source.interfaces().to_vec();
        this.ready(pool);
        Ok(this)
    }

    /// Takes Ethernet frames that were made, not captured, to be replayed `turns` times.
    #[must_use]
    pub fn from_frames<'a>(
        frames: impl Iterator<Item = (Nanos, &'a [u8])>,
        pool: &mut Pool,
        turns: u32,
    ) -> Self {
        Self::made(frames.map(|(time, data)| (time, data.len() as u32, data)), pool, turns)
    }

    /// As [`Preload::from_frames`], once, each packet's number in place of its original length: tests tell
    /// packets of any bytes apart by it.
    #[must_use]
    pub fn from_numbered_frames<'a>(
        frames: impl Iterator<Item = (Nanos, &'a [u8])>,
        pool: &mut Pool,
    ) -> Self {
        Self::made((0..).zip(frames).map(|(number, (time, data))| (time, number, data)), pool, 1)
    }

    fn made<'a>(frames: impl Iterator<Item = (Nanos, u32, &'a [u8])>, pool: &mut Pool, turns: u32) -> Self {
        let mut this = Self::empty(turns);
        for (time, original_len, data) in frames {
            this.push(pool, &Record { time, interface: 0, link: LinkType::Ethernet, original_len, data });
        }
        this.interfaces = vec![Interface { link_number: 1, snap_len: 0, name: None }];
        this.ready(pool);
        this
    }

    fn empty(turns: u32) -> Self {
        Self { turns_left: turns, turns, ..Self::default() }
    }

    fn push(&mut self, pool: &mut Pool, record: &Record<'_>) {
        let buf = store(pool, record);
        self.packets.push(Stored { time: record.time, buf, len: record.data.len() as u32 });
    }

    fn ready(&mut self, pool: &mut Pool) {
        pool.retain();
        self.period = period(&self.packets);
    }

    /// Packets of one turn.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// Shift of one turn against the last: from the earliest to the latest packet, and one mean gap.
fn period(packets: &[Stored]) -> u64 {
    let times = || packets.iter().map(|p| p.time);
    let (Some(first), Some(last)) = (times().min(), times().max()) else { return 0 };
    let span = last.since(first);
    span.saturating_add((span / (packets.len() as u64).saturating_sub(1).max(1)).max(1))
}

impl Source for Preload {
    #[inline]
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        if self.at == self.packets.len() {
            self.at = 0;
            self.shift =
                self.shift.saturating_add(if self.turns_left < self.turns { self.period } else { 0 });
        }
        if self.at == 0 {
            if self.turns_left == 0 {
                return Ok(0);
            }
            self.turns_left -= 1;
        }
        let end = (self.at + max).min(self.packets.len());
        let Self { packets, order, shift, at, .. } = self;
        // Classification asks ahead for what it has been given; nobody else would for the first packets of
        // the next fill.
        packets.iter().skip(end).take(DISTANCE).for_each(|p| pool.prefetch_headers(p.buf, p.len));
        let packets = packets.get(*at..end).unwrap_or_default();
        arrivals.first = order.sequence;
        arrivals.frames.extend(packets.iter().map(|p| {
            let arrival = order.arrive(p.time.after(*shift));
            Frame::unclassified(arrival, p.buf, p.len)
        }));
        let n = packets.len();
        self.order.sequence += n as u64;
        self.at = end;
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    fn clock_backwards(&self) -> u64 {
        self.order.backwards
    }

    fn preloaded(&self) -> bool {
        true
    }

    fn progress(&self) -> Option<f64> {
        let turn = f64::from(self.turns - self.turns_left) - 1.0;
        let part = self.at as f64 / self.packets.len().max(1) as f64;
        Some((turn + part) / f64::from(self.turns.max(1)))
    }
}
