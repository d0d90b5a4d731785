//! The reframer in somebody else's data plane: packets stay where they are, and trains come out as handles.

use alloc::vec::Vec;
use core::fmt;

use slipstream_core::batch::{Arrivals, BATCH, Batch};
use slipstream_core::classify::unusual;
use slipstream_core::frame::{Frame, Info, MAX_FRAME_LEN};
use slipstream_core::memory::can_be_had;
use slipstream_core::pool::{BufId, Pool};
use slipstream_core::prefetch::prefetch_address;
use slipstream_core::stage::Output;
use slipstream_core::time::Nanos;
use slipstream_wire::{
    Encapsulation, Flags, FlowKey, Headers, LinkType, Skip, classify_usual, classify_with, protocol,
};

use crate::{ConfigError, Reframe, ReframeConfig, ReframeStats};

/// Packets whose first bytes are asked for ahead of use.
#[doc(hidden)]
pub const AHEAD: usize = 8;

/// About the bytes of what takes the same with all settings, and as many for each class.
const SMALL_PARTS: usize = 128 << 10;

/// A reframer for whoever has packets of his own: handles go in, trains of handles come out, packets of a
/// flow back to back.
///
/// A handle is any number that says to its owner which packet it is; the bytes are read while
/// [`Reframer::push`] runs and never again. Packets are pushed in the order of their arrival, each with the
/// time at which it arrived; times are nanoseconds of any clock that does not run backwards, and several
/// packets may have the same. What has left by some time is polled with that time, until there is no more, as
/// often as one likes: what comes out, in which order and with which release times depends on the packets and
/// their times alone, not on when one polled. A train leaves when it is full, when its first packet has
/// waited for `hold`, when there is no room, or when a packet of its flow passes at once; whatever leaves at
/// the same nanosecond leaves in the order of the policy, so that [`Reframer::poll`] gives it from the next
/// nanosecond on. Between packets, poll again at [`Reframer::next_deadline`]. Who pushes and never polls is
/// refused once 2 × `capacity` + [`BATCH`] handles are inside, held and waiting together; nothing is ever
/// lost, and every handle that was taken comes out exactly once. At the end, [`Reframer::drain`] and poll the
/// rest. There is no thread, no clock and no file here, and no allocation after [`Reframer::new`].
///
/// ```
/// use slipstream_reframe::embed::Reframer;
/// use slipstream_reframe::{Nanos, ReframeConfig};
///
/// # fn packet(flow: u8) -> [u8; 42] {
/// #     let mut bytes = [0; 42];
/// #     bytes[12..24].copy_from_slice(&[8, 0, 0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
/// #     bytes[26..38].copy_from_slice(&[10, 0, 0, flow, 10, 0, 0, 9, 1, 0, 2, 0]);
/// #     bytes
/// # }
/// let mut reframer = Reframer::new(&ReframeConfig::default())?; // 64 µs, 32 packets
/// for (n, flow) in [1, 2, 1, 2].into_iter().enumerate() {
///     reframer.push(Nanos(n as u64 * 1000), n as u32, &packet(flow))?;
/// }
/// let mut order = Vec::new();
/// while let Some(train) = reframer.poll(Nanos(100_000)) {
///     order.extend_from_slice(train.handles);
/// }
/// assert_eq!(order, [0, 2, 1, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reframer {
    reframe: Reframe,
    /// No packet is in it.
    pool: Pool,
    link: LinkType,
    encapsulation: Encapsulation,
    arrivals: Arrivals,
    ready: Ready,
    /// The latest time heard of, by a push.
    pushed: Nanos,
    /// The latest time heard of, by a poll.
    polled: Nanos,
    packets: u64,
}

/// Packets of one flow that left together, in the order of their arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train<'a> {
    /// The handles of its packets.
    pub handles: &'a [u32],
    /// The time at which it left.
    pub release: Nanos,
    /// Number of its flow: of two trains that leave within a hold of each other it is the same only if their
    /// flows are. [`Frame::NO_FLOW`] for a packet that can't be classified, which is a train by itself.
    pub flow: u32,
}

/// A packet to be pushed in a burst.
///
/// ```
/// use slipstream_reframe::embed::Packet;
/// use slipstream_wire::FlowKey;
///
/// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 6, 80, 1234)?;
/// let with_key = Packet::with_key(7, 1514, key).tcp_flags(0x10);
/// let with_bytes = Packet::new(8, b"...").wire_len(1514);
/// assert_eq!((with_key.len, with_bytes.len), (1514, 1514));
/// # Ok::<(), slipstream_wire::KeyError>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// The number by which its owner knows it.
    pub handle: u32,
    /// Its length on the wire, in bytes; what is held counts against `capacity_bytes` with it.
    pub len: u32,
    what: What<'a>,
}

/// The origin of a packet's flow.
#[derive(Clone, Copy, Debug)]
enum What<'a> {
    Bytes(&'a [u8]),
    Headers(Headers),
    Nothing,
}

impl<'a> Packet<'a> {
    /// A packet with its bytes, from the link-layer header on; as many as reach to the end of the transport
    /// header are enough.
    #[inline]
    #[must_use]
    pub fn new(handle: u32, bytes: &'a [u8]) -> Self {
        Self { handle, len: bytes.len() as u32, what: What::Bytes(bytes) }
    }

    /// A packet whose headers were classified already.
    #[inline]
    #[must_use]
    pub fn with_headers(handle: u32, len: u32, headers: Headers) -> Self {
        Self { handle, len, what: What::Headers(headers) }
    }

    /// A packet whose flow key is known. Rules know of it what the key says; see [`Packet::tcp_flags`] too.
    #[inline]
    #[must_use]
    pub fn with_key(handle: u32, len: u32, key: FlowKey) -> Self {
        let six = if key.src().is_ipv6() { Flags::IPV6 } else { 0 };
        let ports = if protocol::has_ports(key.protocol()) { Flags::PORTS } else { 0 };
        let headers = Headers { key, l3: 0, l4: 0, flags: Flags(six | ports), tcp_flags: 0, tos: 0 };
        Self::with_headers(handle, len, headers)
    }

    /// A packet that belongs to no flow: it passes at once.
    #[inline]
    #[must_use]
    pub fn without_flow(handle: u32, len: u32) -> Self {
        Self { handle, len, what: What::Nothing }
    }

    /// The same with the TCP flags (FIN 0x01 … CWR 0x80) that rules such as `tcp syn` ask for, where it has a
    /// key.
    #[inline]
    #[must_use]
    pub fn tcp_flags(mut self, flags: u8) -> Self {
        if let What::Headers(headers) = &mut self.what
            && headers.key.protocol() == protocol::TCP
        {
            headers.flags.0 |= Flags::TCP;
            headers.tcp_flags = flags;
        }
        self
    }

    /// The same, longer on the wire than the bytes that are there.
    #[inline]
    #[must_use]
    pub fn wire_len(mut self, len: u32) -> Self {
        self.len = len;
        self
    }

    /// Its headers, where they are known, or where the `outer` ones are asked for and it is the usual frame
    /// of Ethernet.
    #[inline(always)]
    fn usual(&self, outer: bool) -> Option<Headers> {
        match self.what {
            What::Bytes(bytes) if outer => bytes.first_chunk().and_then(classify_usual),
            What::Headers(headers) => Some(headers),
            _ => None,
        }
    }

    /// Its headers.
    #[inline(never)]
    fn headers(&self, link: LinkType, encapsulation: Encapsulation) -> Result<Headers, Skip> {
        match self.what {
            What::Bytes(bytes) => classify_with(link, bytes, encapsulation),
            What::Headers(headers) => Ok(headers),
            What::Nothing => Err(Skip::NonIp),
        }
    }
}

/// Settings that a reframer can't have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EmbedError {
    /// A setting is out of range.
    Config(ConfigError),
    /// A setting asks for the packets' bytes when trains leave, and those are their owner's.
    NeedsBytes(&'static str),
    /// The settings ask for more memory than there is, so many bytes.
    Memory(usize),
}

impl fmt::Display for EmbedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Config(error) => error.fmt(f),
            Self::NeedsBytes(setting) => write!(
                f,
                "reframe: {setting} reads the bytes of packets when their train leaves, and the embedded reframer doesn't have \
                 them; leave it off, or use the stage of a pipeline"
            ),
            Self::Memory(bytes) => write!(
                f,
                "reframe: {bytes} bytes of memory can't be had; lower flows or capacity, which ask for them"
            ),
        }
    }
}

impl core::error::Error for EmbedError {}

impl From<ConfigError> for EmbedError {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

/// The reason why packets were not taken. None of a burst was then, and nothing else has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PushError {
    /// The time is before that of an earlier packet.
    TimeRanBackwards {
        /// The time given.
        now: Nanos,
        /// The latest one so far.
        last: Nanos,
    },
    /// The packets would arrive after [`Reframer::LAST`]; the time says when.
    EndOfTime(Nanos),
    /// More packets in a burst than [`BATCH`].
    TooMany(usize),
    /// So many packets have left and wait for [`Reframer::poll`] that there is no room for more: with those
    /// held, 2 × `capacity` + [`BATCH`] at most are inside.
    Unpolled(usize),
}

impl fmt::Display for PushError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TimeRanBackwards { now, last } => {
                write!(
                    f,
                    "the time {now} s is before {last} s, when a packet was pushed; times must not run backwards"
                )
            }
            Self::EndOfTime(arrival) => {
                let last = Reframer::LAST;
                write!(
                    f,
                    "a packet that arrives at {arrival} s; {last} s is the latest time, also to be polled before"
                )
            }
            Self::TooMany(n) => write!(f, "{n} packets in one burst; at most {BATCH} are possible"),
            Self::Unpolled(n) => {
                write!(f, "{n} packets have left and wait; poll them before more are pushed")
            }
        }
    }
}

impl core::error::Error for PushError {}

impl Reframer {
    /// The latest time at which packets can arrive: trains with the longest hold still leave before the last
    /// nanosecond that there is.
    pub const LAST: Nanos = Nanos(u64::MAX - ReframeConfig::MAX_HOLD_NS - 2);

    /// A reframer of Ethernet frames. All memory is taken now.
    ///
    /// # Errors
    /// The first setting that is out of range; `compress_ack`, `compress_gro` and `tcp_order`, which
    /// can't be had here; memory that the allocator refuses. All of it is asked for first and given back:
    /// where another thread takes it in between, the program ends as it does where any memory is missing.
    pub fn new(config: &ReframeConfig) -> Result<Self, EmbedError> {
        if config.compress_ack {
            return Err(EmbedError::NeedsBytes("compress_ack"));
        }
        if config.compress_gro {
            return Err(EmbedError::NeedsBytes("compress_gro"));
        }
        if config.tcp_order {
            return Err(EmbedError::NeedsBytes("tcp_order"));
        }
        config.validate()?;
        Self::ask_for_memory(config)?;
        let mut reframe = Reframe::new(config)?;
        reframe.embed();
        let mut arrivals = Arrivals::default();
        arrivals.frames.reserve_exact(BATCH);
        arrivals.keys.reserve_long(BATCH);
        Ok(Self {
            reframe,
            pool: Pool::new(),
            link: LinkType::Ethernet,
            encapsulation: config.encapsulation,
            arrivals,
            ready: Ready::new(Self::limit(config)),
            pushed: Nanos(0),
            polled: Nanos(0),
            packets: 0,
        })
    }

    /// Most handles inside.
    fn limit(config: &ReframeConfig) -> usize {
        2 * config.capacity as usize + BATCH
    }

    /// Finds out whether the memory can be had, before those take it that can't do without.
    fn ask_for_memory(config: &ReframeConfig) -> Result<(), EmbedError> {
        let ready = [size_of::<u32>(), size_of::<Left>()]
            .map(|size| Ready::room(Self::limit(config)).saturating_mul(size));
        let small = core::iter::repeat_n(SMALL_PARTS, 1 + config.classes.len());
        let parts = Reframe::embedded_memory(config).chain(ready).chain(small);
        if can_be_had(parts.clone()) {
            return Ok(());
        }
        Err(EmbedError::Memory(parts.fold(0, usize::saturating_add)))
    }

    /// The same for packets that begin with another link-layer header, or none: [`LinkType::RawIp`].
    #[must_use]
    pub fn with_link(mut self, link: LinkType) -> Self {
        self.link = link;
        self
    }

    /// Takes a packet that arrived at `now`.
    ///
    /// # Errors
    /// See [`PushError`]; the packet is still its owner's then.
    #[inline]
    pub fn push(&mut self, now: Nanos, handle: u32, bytes: &[u8]) -> Result<(), PushError> {
        self.push_burst(now, [Packet::new(handle, bytes)].iter().copied())
    }

    /// Takes a packet that arrived at `now`, whose flow key is known. Rules know of it what the key says.
    ///
    /// # Errors
    /// As [`Reframer::push`].
    #[inline]
    pub fn push_key(&mut self, now: Nanos, handle: u32, len: u32, key: FlowKey) -> Result<(), PushError> {
        self.push_burst(now, [Packet::with_key(handle, len, key)].iter().copied())
    }

    /// Takes up to [`BATCH`] packets that arrived at `now`: the fast way.
    ///
    /// # Errors
    /// As [`Reframer::push`]; all packets are still their owner's then.
    #[inline]
    pub fn push_burst<'a, P>(&mut self, now: Nanos, packets: P) -> Result<(), PushError>
    where
        P: ExactSizeIterator<Item = Packet<'a>> + Clone,
    {
        let ahead = packets.clone().skip(AHEAD).map(|packet| match packet.what {
            What::Bytes(bytes) => bytes.as_ptr(),
            _ => core::ptr::null(),
        });
        self.push_burst_if(now, packets, ahead, || true).map(drop)
    }

    /// As [`Reframer::push_burst`], for a caller who checks packets while he describes them, in one pass:
    /// `fits` is asked when all were described, and if it returns false, none is taken and this returns
    /// false. `ahead` gives the addresses of packets' bytes, from the eighth packet on, to be asked for ahead
    /// of use.
    ///
    /// # Errors
    /// As [`Reframer::push`].
    #[doc(hidden)]
    #[inline]
    pub fn push_burst_if<'a>(
        &mut self,
        now: Nanos,
        packets: impl ExactSizeIterator<Item = Packet<'a>>,
        mut ahead: impl Iterator<Item = *const u8>,
        fits: impl FnOnce() -> bool,
    ) -> Result<bool, PushError> {
        let n = packets.len();
        if n > BATCH {
            return Err(PushError::TooMany(n));
        }
        if now < self.pushed {
            return Err(PushError::TimeRanBackwards { now, last: self.pushed });
        }
        // Trains polled ahead of the clock have left already: nothing joins them any more.
        let arrival = now.max(self.polled);
        if arrival > Self::LAST {
            return Err(PushError::EndOfTime(arrival));
        }
        if !self.ready.has_room(self.reframe.held() as usize + n) {
            return Err(PushError::Unpolled(self.ready.packets()));
        }
        // An iterator that panicked, which was caught, has left packets here that were not taken.
        self.arrivals.clear();
        let Arrivals { frames, keys, first, .. } = &mut self.arrivals;
        *first = self.packets;
        let outer = self.link == LinkType::Ethernet && self.encapsulation == Encapsulation::Outer;
        // An iterator that is longer than it said is no reason to take more.
        for packet in packets.take(n) {
            if let Some(address) = ahead.next() {
                prefetch_address(address);
            }
            let mut frame = Frame::unclassified(arrival, BufId(packet.handle), packet.len);
            if packet.len <= MAX_FRAME_LEN
                && let Some(headers) = packet.usual(outer)
            {
                frames.push(Frame { info: Info::new(&headers), ..frame });
                keys.push(headers.key);
            } else {
                keys.push(unusual(&mut frame, packet.headers(self.link, self.encapsulation)));
                frames.push(frame);
            }
        }
        if !fits() {
            self.arrivals.clear();
            return Ok(false);
        }
        self.pushed = now;
        self.packets += frames.len() as u64;
        self.reframe.process(&mut self.pool, &mut self.arrivals, &mut self.ready);
        Ok(true)
    }

    /// The next train that left before `now`, or at that time for good; `None` when there is no more. Time
    /// passes to `now`: a packet that is pushed with an earlier time later on counts as one that arrives at
    /// `now`. An earlier time than before asks for what has left already. Whoever polls a time after
    /// [`Reframer::LAST`] has all that was pushed, and can push no more.
    #[inline]
    pub fn poll(&mut self, now: Nanos) -> Option<Train<'_>> {
        self.advance(now);
        self.ready.next()
    }

    /// Lets time pass to `now`.
    #[inline]
    fn advance(&mut self, now: Nanos) {
        self.polled = self.polled.max(now);
        if self.reframe.next_release() <= now {
            self.reframe.advance(&mut self.pool, now, &mut self.ready);
        }
    }

    /// Lends the handles of trains that left before `now`, or at that time for good, at most `trains` of
    /// them, one train behind the other, and hands each train's release time, flow and packets to `each`;
    /// returns how many trains, and the handles. This is [`Reframer::poll`] for many trains at once: nothing
    /// is copied.
    ///
    /// ```
    /// # use slipstream_reframe::embed::{Packet, Reframer};
    /// # use slipstream_reframe::{Nanos, ReframeConfig};
    /// # let mut reframer = Reframer::new(&ReframeConfig::default())?;
    /// reframer.push_burst(Nanos(0), (0..3).map(|handle| Packet::without_flow(handle, 60)))?;
    /// let mut sizes = Vec::new();
    /// let (trains, handles) = reframer.poll_lent(Nanos(1), 64, |_, train| sizes.push(train.handles.len()));
    /// assert_eq!((trains, handles), (3, &[0, 1, 2][..]));
    /// assert_eq!(sizes, [1, 1, 1]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[inline]
    pub fn poll_lent(
        &mut self,
        now: Nanos,
        trains: usize,
        each: impl FnMut(usize, Train<'_>),
    ) -> (usize, &[u32]) {
        self.advance(now);
        self.ready.next_many(trains, usize::MAX, each)
    }

    /// Copies handles of trains that left before `now`, or at that time for good, to `handles`, whole trains
    /// only, as far as both `handles` and `trains` have room, and hands each train's release time, flow and
    /// packets to `each`; returns how many trains and handles.
    #[inline]
    pub fn poll_burst(
        &mut self,
        now: Nanos,
        trains: usize,
        handles: &mut [u32],
        each: impl FnMut(usize, Train<'_>),
    ) -> (usize, usize) {
        self.advance(now);
        let (n, lent) = self.ready.next_many(trains, handles.len(), each);
        if let Some(to) = handles.get_mut(..lent.len()) {
            to.copy_from_slice(lent);
        }
        (n, lent.len())
    }

    /// The first time at which [`Reframer::poll`] will give something if no packet comes; [`Nanos::MAX`] when
    /// nothing is inside.
    #[inline]
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        if self.ready.packets() > 0 { self.pushed } else { self.reframe.next_release() }
    }

    /// Everything that is inside leaves now, to be polled. The reframer can go on afterwards.
    pub fn drain(&mut self) {
        self.reframe.drain(&mut self.pool, &mut self.ready);
    }

    /// Packets that are inside: held, or waiting to be polled.
    #[must_use]
    pub fn packets(&self) -> usize {
        self.reframe.held() as usize + self.ready.packets()
    }

    /// Packets that have left and wait to be polled.
    #[must_use]
    pub fn unpolled(&self) -> usize {
        self.ready.packets()
    }

    /// The counters so far. This copies histograms: it allocates.
    #[must_use]
    pub fn stats(&self) -> ReframeStats {
        self.reframe.stats()
    }
}

/// A train that left: its release time, its flow and how many packets it has.
#[derive(Clone, Copy, Debug)]
struct Left {
    release: Nanos,
    flow: u32,
    len: u32,
}

/// Trains that left and wait to be polled.
#[derive(Debug)]
struct Ready {
    handles: Vec<u32>,
    trains: Vec<Left>,
    /// Number of both that were polled.
    handles_polled: usize,
    trains_polled: usize,
    /// Most packets that wait, and that will be able to.
    limit: usize,
}

impl Ready {
    /// Places for `limit` packets that wait. There are half as many again: what waits is moved to the front
    /// once that many were polled, however full it is. Whoever is always near the limit, since he can send
    /// no faster, would else have all of it moved with each packet.
    fn room(limit: usize) -> usize {
        limit + limit / 2
    }

    fn new(limit: usize) -> Self {
        Self {
            handles: Vec::with_capacity(Self::room(limit)),
            trains: Vec::with_capacity(Self::room(limit)),
            handles_polled: 0,
            trains_polled: 0,
            limit,
        }
    }

    #[inline(always)]
    fn packets(&self) -> usize {
        self.handles.len() - self.handles_polled
    }

    /// Returns true if there is room for so many more.
    #[inline(always)]
    fn has_room(&self, packets: usize) -> bool {
        self.packets() + packets <= self.limit
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Train<'_>> {
        let Left { release, flow, len } = *self.trains.get(self.trains_polled)?;
        let start = self.handles_polled;
        self.trains_polled += 1;
        self.handles_polled += len as usize;
        Some(Train { handles: self.handles.get(start..self.handles_polled)?, release, flow })
    }

    /// The next trains, at most so many, and with at most so many packets together; their handles stand one
    /// train behind the other.
    #[inline(always)]
    fn next_many(
        &mut self,
        trains: usize,
        packets: usize,
        mut each: impl FnMut(usize, Train<'_>),
    ) -> (usize, &[u32]) {
        let all = self.handles.get(self.handles_polled..).unwrap_or_default();
        let waiting = self.trains.get(self.trains_polled..).unwrap_or_default();
        let (mut n, mut at) = (0, 0);
        for &Left { release, flow, len } in waiting.iter().take(trains) {
            let end = at + len as usize;
            let Some(handles) = all.get(at..end).filter(|_| end <= packets) else { break };
            each(n, Train { handles, release, flow });
            at = end;
            n += 1;
        }
        self.trains_polled += n;
        self.handles_polled += at;
        (n, all.get(..at).unwrap_or_default())
    }

    /// Forgets what was polled.
    #[inline(always)]
    fn compact(&mut self) {
        if self.packets() == 0 {
            self.handles.clear();
            self.trains.clear();
        } else {
            self.handles.drain(..self.handles_polled);
            self.trains.drain(..self.trains_polled);
        }
        (self.handles_polled, self.trains_polled) = (0, 0);
    }
}

impl Output for Ready {
    fn emit(&mut self, _: &mut Pool, batch: &mut Batch) {
        let Batch { frames, trains, .. } = batch;
        if self.packets() == 0 || self.handles.len() + frames.len() > self.handles.capacity() {
            self.compact();
        }
        self.handles.extend(frames.iter().map(|frame| frame.buf.0));
        self.trains.extend(trains.iter().map(|t| Left { release: t.release, flow: t.flow, len: t.len }));
        batch.clear();
    }
}

#[cfg(test)]
mod tests;
