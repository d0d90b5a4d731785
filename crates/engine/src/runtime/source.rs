//! Where the packets of a replay come from: a capture read as it goes, or one that lies in memory and may go round.

use std::os::fd::BorrowedFd;

use slipstream_wire::{
    Encapsulation, FlowKey, Headers, LinkType, NarrowKey, Skip, USUAL, classify, classify_usual,
    classify_with,
};
use thiserror::Error;

use crate::batch::{Arrivals, BATCH};
use crate::frame::{Frame, Info};
use crate::io::af_packet::PortError;
use crate::io::capture::{CaptureError, CaptureReader, Interface, Record};
use crate::io::shm::ShmError;
use crate::io::synth::Synth;
use crate::pool::{BufId, PacketMeta, Pool};
use crate::reframe::MAX_FRAME_LEN;
use crate::time::Nanos;

/// Why a source ended early.
#[derive(Debug, Error)]
pub enum SourceError {
    /// The capture can't be read on.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The interface can't be used any more.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The shared memory can't be used any more.
    #[error(transparent)]
    Shm(#[from] ShmError),
    /// The thread that makes packets can't be started.
    #[error("a thread can't be started: {0}")]
    Thread(String),
}

/// Brings packets in.
pub trait Source {
    /// Appends up to `max` packets, not yet classified, in the order of arrival; returns how many (0 at the end).
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

    /// Whether filling is part of the data path, not of loading.
    fn preloaded(&self) -> bool {
        false
    }

    /// How far it is, as a share of 1, where that is known.
    fn progress(&self) -> Option<f64> {
        None
    }

    /// The reader of the capture behind it, where there is one.
    fn capture(&self) -> Option<&CaptureReader> {
        None
    }

    /// Its live side, where packets come by the wall clock.
    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        None
    }

    /// What it counted, by name.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}
}

/// A source whose packets come when they come: having none now is not the end.
pub trait LiveSource {
    /// Appends up to `max` packets that have come, not yet classified, in the order of arrival; returns how many. `now` was
    /// read from the [`LiveClock`](crate::clock::LiveClock) just before; what came since counts as coming at that time.
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

    /// Packets that it gives at a time at most: so many may mean that there are more.
    fn at_once(&self) -> usize {
        BATCH
    }

    /// What becomes readable when a packet comes; none: it has to be asked again and again.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;

    /// Without a descriptor: how long it may be left unasked when it had nothing, in ns; none: it is to be asked at once.
    fn patience(&self) -> Option<u64> {
        None
    }

    /// Whether nothing more will come.
    fn ended(&self) -> bool;

    /// What a poll that found so many packets is to take at least, with all that is done with them, in ns: the engine stays busy until
    /// then.
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

    /// Calls `visit` with the arrival times of the last `n` packets that were taken, as long as nothing came since.
    fn taken(&self, n: usize, visit: &mut dyn FnMut(Nanos));

    /// Packets that have come, and how many of these were dropped.
    fn come_and_dropped(&self) -> (u64, u64);
}

/// Clamps time so that it never runs backwards, and numbers the packets.
#[derive(Debug, Default)]
struct Order {
    now: Nanos,
    sequence: u64,
    backwards: u64,
}

impl Order {
    #[inline]
    fn arrive(&mut self, time: Nanos) -> Nanos {
        if time < self.now {
            self.went_back();
        } else {
            self.now = time;
        }
        self.now
    }

    #[cold]
    fn went_back(&mut self) {
        self.backwards += 1;
    }
}

/// A capture that is read as it goes.
#[derive(Debug)]
pub struct CaptureSource {
    reader: CaptureReader,
    order: Order,
}

impl CaptureSource {
    /// Reads from here on.
    #[must_use]
    pub fn new(reader: CaptureReader) -> Self {
        Self { reader, order: Order::default() }
    }

    /// The reader, for what it knows of the file.
    #[must_use]
    pub fn reader(&self) -> &CaptureReader {
        &self.reader
    }
}

fn store(pool: &mut Pool, record: &Record<'_>) -> BufId {
    let meta =
        PacketMeta { original_len: record.original_len, interface: record.interface, time: record.time };
    pool.insert(meta, record.data)
}

impl Source for CaptureSource {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        arrivals.first = self.order.sequence;
        let mut n = 0;
        while n < max {
            let Some(record) = self.reader.next_record()? else { break };
            let arrival = self.order.arrive(record.time);
            let buf = store(pool, &record);
            arrivals.frames.push(Frame::unclassified(arrival, buf, record.data.len() as u32));
            n += 1;
        }
        self.order.sequence += n as u64;
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        self.reader.interfaces()
    }

    fn clock_backwards(&self) -> u64 {
        self.order.backwards
    }

    fn progress(&self) -> Option<f64> {
        let all = self.reader.file_len()?;
        Some(self.reader.bytes_read() as f64 / all.max(1) as f64)
    }

    fn capture(&self) -> Option<&CaptureReader> {
        Some(&self.reader)
    }
}

/// Traffic that is made as it goes.
#[derive(Debug)]
pub struct SynthSource {
    synth: Synth,
    interface: [Interface; 1],
    packets: u64,
    sequence: u64,
    frame: Vec<u8>,
}

impl SynthSource {
    /// Makes what `synth` makes.
    #[must_use]
    pub fn new(synth: Synth) -> Self {
        let snap_len = synth.config().snap_len.unwrap_or(0);
        let interface = [Interface { link_number: 1, snap_len, name: Some("synth".into()) }];
        Self { packets: synth.remaining(), synth, interface, sequence: 0, frame: Vec::new() }
    }
}

impl Source for SynthSource {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        arrivals.first = self.sequence;
        let mut n = 0;
        while n < max {
            let Some(time) = self.synth.next_packet(&mut self.frame) else { break };
            let captured = self.synth.config().captured_len(self.frame.len());
            let data = self.frame.get(..captured).unwrap_or(&self.frame);
            let meta = PacketMeta { original_len: self.frame.len() as u32, interface: 0, time };
            let buf = pool.insert(meta, data);
            arrivals.frames.push(Frame::unclassified(time, buf, data.len() as u32));
            n += 1;
        }
        self.sequence += n as u64;
        Ok(n)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn progress(&self) -> Option<f64> {
        Some(self.sequence as f64 / self.packets.max(1) as f64)
    }
}

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
    /// [`SourceError`] where the source can't be read.
    pub fn read(source: &mut dyn Source, pool: &mut Pool, turns: u32) -> Result<Self, SourceError> {
        let mut this = Self::empty(turns);
        let mut arrivals = Arrivals::default();
        while source.fill(pool, &mut arrivals, BATCH)? > 0 {
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

    /// As [`Preload::from_frames`], once, each packet's number in place of its original length: tests tell packets of
    /// any bytes apart by it.
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

    /// Whether there is no packet.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }
}

/// How far one turn shifts the next: from the earliest to the latest packet, and one mean gap.
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
        // Classification asks ahead for what it has been given; nobody else would for the first packets of the next fill.
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

/// Parses the headers of packets that have arrived.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classifier {
    links: Vec<LinkType>,
    encapsulation: Encapsulation,
}

impl Classifier {
    pub(crate) fn new(encapsulation: Encapsulation) -> Self {
        Self { links: Vec::new(), encapsulation }
    }

    /// Learns of interfaces that have come up since.
    pub(crate) fn interfaces(&mut self, interfaces: &[Interface]) {
        for interface in interfaces.iter().skip(self.links.len()) {
            self.links.push(LinkType::from_number(interface.link_number as u16));
        }
    }

    /// As [`Classifier::interfaces`], the whole list of link types.
    pub(crate) fn links(&mut self, links: &[LinkType]) {
        self.links.clear();
        self.links.extend_from_slice(links);
    }

    fn link(&self, interface: u32) -> LinkType {
        self.links.get(interface as usize).copied().unwrap_or(LinkType::Other(u16::MAX))
    }

    /// Classifies what was appended to `arrivals` and is not classified yet.
    #[inline(never)]
    pub(crate) fn classify(&self, pool: &Pool, arrivals: &mut Arrivals) {
        let only = match self.links.as_slice() {
            [one] if self.encapsulation == Encapsulation::Outer => Some(*one),
            _ => None,
        };
        match only {
            Some(LinkType::Ethernet) => {
                classify_all(pool, arrivals, classify_usual, |_, data| classify(LinkType::Ethernet, data))
            }
            _ => classify_all(
                pool,
                arrivals,
                |_| None,
                |interface, data| classify_with(self.link(interface), data, self.encapsulation),
            ),
        }
    }
}

/// Packets whose first bytes are asked for ahead of use.
const DISTANCE: usize = 12;

/// `usual` is asked first; `other` about what it doesn't know.
#[inline(always)]
fn classify_all(
    pool: &Pool,
    arrivals: &mut Arrivals,
    usual: impl Fn(&[u8; USUAL]) -> Option<Headers>,
    other: impl Fn(u32, &[u8]) -> Result<Headers, Skip>,
) {
    let Arrivals { frames, keys, .. } = arrivals;
    let Some(frames) = frames.get_mut(keys.len()..) else { return };
    keys.reserve(frames.len());
    for i in 0..frames.len() {
        if let Some(ahead) = frames.get(i + DISTANCE) {
            pool.prefetch_headers(ahead.buf, ahead.len);
        }
        let Some(frame) = frames.get_mut(i) else { break };
        if (USUAL as u32..=MAX_FRAME_LEN).contains(&frame.len)
            && let Some(headers) = pool.front(frame.buf).and_then(&usual)
        {
            frame.info = Info::new(&headers);
            keys.push(headers.key);
        } else {
            let (interface, data) = pool.packet(frame.buf, frame.len);
            keys.push(unusual(frame, other(interface, data)));
        }
    }
}

/// Notes what classification said of a frame; returns its key.
#[inline(never)]
fn unusual(frame: &mut Frame, headers: Result<Headers, Skip>) -> FlowKey {
    match headers {
        Ok(headers) if frame.len <= MAX_FRAME_LEN => {
            frame.info = Info::new(&headers);
            headers.key
        }
        _ => FlowKey::Narrow(NarrowKey([0, 0])),
    }
}
