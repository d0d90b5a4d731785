//! The stages that a pipeline is made of: they take batches of trains and emit batches of trains.
//!
//! A stage is called once per batch, never per packet, and reads no clock: the time is handed in. What it
//! emits goes to an [`Output`]: the stages after it. Ports are numbered; a batch says which of its trains go
//! to which.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::any::Any;
use core::fmt;

use slipstream_wire::{Encapsulation, LinkType};

use crate::batch::{Arrivals, Batch};
use crate::flow_context::FlowUse;
use crate::frame::Frame;
use crate::interface::Interface;
use crate::pool::Pool;
use crate::time::Nanos;

/// The time, the packets and the links that a stage works with.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time.
    pub now: Nanos,
    /// The bytes of all packets.
    pub pool: &'a mut Pool,
    /// Number of the port at which the batch comes in.
    pub input: u8,
    /// Link types of the interfaces that packets come from, by
    /// [`PacketMeta::interface`](crate::pool::PacketMeta).
    pub links: &'a [LinkType],
}

/// The link type of a packet, where `links` are those of the interfaces.
#[inline]
pub fn link_type(links: &[LinkType], pool: &Pool, frame: &Frame) -> LinkType {
    match links {
        [one] => *one,
        all => {
            let interface = pool.meta(frame.buf).interface as usize;
            all.get(interface).copied().unwrap_or(LinkType::Other(u16::MAX))
        }
    }
}

impl Context<'_> {
    /// The link type of a packet.
    #[inline]
    #[must_use]
    pub fn link(&self, frame: &Frame) -> LinkType {
        link_type(self.links, self.pool, frame)
    }

    /// The bytes of a packet.
    #[inline]
    #[must_use]
    pub fn data(&self, frame: &Frame) -> &[u8] {
        self.pool.data(frame.buf, frame.len)
    }

    /// The bytes of a packet, to be changed.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self, frame: &Frame) -> &mut [u8] {
        self.pool.data_mut(frame.buf, frame.len)
    }
}

/// Takes what a stage emits.
pub trait Output {
    /// Takes the batch's packets, whose buffers it now owns, and leaves the batch empty.
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch);
}

/// A step of a pipeline (Click: element, VPP: node): it processes packets.
///
/// A stage that only passes packets on implements [`process`](Self::process) and an empty [`Observe`]. One
/// that writes something outside of the pipeline implements [`Egress`] too, and returns itself from
/// [`egress`](Self::egress).
///
/// ```
/// use slipstream_core::batch::Batch;
/// use slipstream_core::frame::Frame;
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::stage::{Context, Observe, Output, Stage};
/// use slipstream_core::time::Nanos;
/// use slipstream_wire::LinkType;
///
/// /// Writes this over the first byte of every packet.
/// struct Mark(u8);
///
/// impl Stage for Mark {
///     fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
///         for frame in &batch.frames {
///             if let Some(first) = cx.data_mut(frame).first_mut() {
///                 *first = self.0;
///             }
///         }
///         out.emit(cx.pool, batch);
///     }
/// }
///
/// impl Observe for Mark {}
///
/// /// The end: bytes are gathered, and packets freed.
/// #[derive(Default)]
/// struct End(Vec<u8>);
///
/// impl Output for End {
///     fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
///         for frame in &batch.frames {
///             self.0.extend_from_slice(pool.data(frame.buf, frame.len));
///             pool.free(frame.buf);
///         }
///         batch.clear();
///     }
/// }
///
/// let (mut pool, mut batch, mut end) = (Pool::new(), Batch::new(), End::default());
/// let buf = pool.insert(PacketMeta::default(), &[1, 2, 3]);
/// batch.push_single(Frame::unclassified(Nanos(5), buf, 3), Nanos(5), 0);
/// let mut cx = Context { now: Nanos(5), pool: &mut pool, input: 0, links: &[LinkType::Ethernet] };
/// Mark(9).process(&mut cx, &mut batch, &mut end);
/// assert_eq!((end.0, batch.is_empty(), pool.live()), (vec![9, 2, 3], true, 0));
/// ```
pub trait Stage: Observe {
    /// Takes a batch, whose packets it now owns, and leaves it empty.
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output);

    /// The time at which it is called although no packet comes; [`Nanos::MAX`] for never.
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns true if nothing is ever due here: [`next_deadline`](Self::next_deadline) is always
    /// [`Nanos::MAX`].
    fn is_timeless(&self) -> bool {
        false
    }

    /// Does everything that is due at or before `cx.now`.
    fn on_deadline(&mut self, _cx: &mut Context<'_>, _out: &mut dyn Output) {}

    /// Emits everything that it holds: nothing more will come.
    fn drain(&mut self, _cx: &mut Context<'_>, _out: &mut dyn Output) {}

    /// The headers by which it classifies packets, if it takes them as they arrive, where it stands right
    /// behind a source: packets that are not classified yet, or were by these headers.
    fn takes_arrivals(&self) -> Option<Encapsulation> {
        None
    }

    /// Takes packets as they arrive; leaves none. Returns the number of trains that they came as: runs of one
    /// flow, and packets without a flow.
    fn arrive(&mut self, _cx: &mut Context<'_>, _arrivals: &mut Arrivals, _out: &mut dyn Output) -> u64 {
        0
    }

    /// The use that it makes of flow contexts.
    fn flow_use(&self) -> FlowUse {
        FlowUse::default()
    }

    /// Numbers that it gives flows in trains that it makes anew are below this; 0 where it leaves those that
    /// came. A number may come to mean another flow.
    fn flow_numbers(&self) -> u32 {
        0
    }

    /// Returns true if a packet may leave it later than it came.
    fn holds(&self) -> bool {
        false
    }

    /// Names the tables that it can read anew while it runs, as in "its routes"; none where there are none.
    fn reloads(&self) -> Option<&'static str> {
        None
    }

    /// Reads these tables anew; they hold from `now` on. An error leaves the old ones in place, and is in its
    /// report.
    fn reload(&mut self, _now: Nanos) {}

    /// The stage as its operator sees it, if there is anything for one to do or to see.
    #[cfg(feature = "std")]
    fn operate(&mut self) -> Option<&mut dyn crate::operate::Operate> {
        None
    }

    /// The stage as one that writes something outside of the pipeline, if it does.
    fn egress(&mut self) -> Option<&mut dyn Egress> {
        None
    }
}

/// A stage in place of one that is only checked, and not to open a port or take memory. It keeps what it
/// gets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Placeholder;

impl Stage for Placeholder {
    fn process(&mut self, _: &mut Context<'_>, _: &mut Batch, _: &mut dyn Output) {}
}

impl Observe for Placeholder {}

/// Everything about a stage that is observed from outside, and changes nothing in it.
pub trait Observe {
    /// Visits its counters, by name.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}

    /// Packets that it dropped, by reason.
    fn drops(&self) -> Drops {
        Drops::default()
    }

    /// Packets that it holds.
    fn held(&self) -> u64 {
        0
    }

    /// Its report beyond counters, as JSON.
    #[cfg(feature = "std")]
    fn report(&self) -> Option<serde_json::Value> {
        None
    }

    /// Remarks for the user on how it understood its settings, such as rules that it leaves out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Figures of a type that only its implementer and those who ask for them know.
    fn figures(&self) -> Option<Box<dyn Any + Send>> {
        None
    }
}

/// The side of a stage that writes something outside of the pipeline: to a port, a capture file, a collector
/// of records.
pub trait Egress {
    /// Memory for packets that it would have the pool adopt, as
    /// [`Source::region`](crate::source::Source::region) says.
    #[cfg(feature = "std")]
    fn region(&mut self) -> Option<Box<dyn crate::pool::Region>> {
        None
    }

    /// Learns of interfaces that packets come from, in the order of their numbers.
    ///
    /// # Errors
    /// The format that it writes can't hold them.
    fn interfaces(&mut self, _new: &[Interface]) -> Result<(), StageError> {
        Ok(())
    }

    /// Packets that it can take now without losing any, where that is limited: sources that lead here are
    /// then asked for no more.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// Learns, in a live run, that nothing more will come: all sources that lead here have ended, and no
    /// stage on the way holds anything.
    fn no_more(&mut self) {}

    /// Returns true if a live run must go on although all sources have ended, since packets that it sent have
    /// yet to be taken.
    fn unfinished(&self) -> bool {
        false
    }

    /// Returns true if it can write nothing more, so that a replay need not go on: [`finish`](Self::finish)
    /// tells why.
    fn failed(&self) -> bool {
        false
    }

    /// Returns true if it only throws packets away, so that its own time is not worth measuring.
    fn discards(&self) -> bool {
        false
    }

    /// Finishes the files that it writes, such as captures.
    ///
    /// # Errors
    /// The cause of a failure to write, in words for the user.
    fn finish(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

/// A stage fails while it works: its output can't be written.
#[derive(Debug)]
pub struct StageError(pub String);

impl fmt::Display for StageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for StageError {}

/// Why a packet was dropped: a reason that stages of several types may have, or one of a type's own.
///
/// ```
/// use slipstream_core::stage::{DropReason, Drops, OwnReason};
///
/// const TOO_SALTY: DropReason = DropReason::Own(OwnReason::new(0, "too_salty"));
/// let mut drops = Drops::default();
/// drops.add(TOO_SALTY, 3);
/// drops.add(DropReason::Denied, 1);
/// let names: Vec<_> = drops.iter().map(|(reason, packets)| (reason.name(), packets)).collect();
/// assert_eq!(names, [("denied", 1), ("too_salty", 3)]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DropReason {
    /// The stage is there to throw packets away.
    Discarded,
    /// The port that the packet left by leads nowhere.
    Unconnected,
    /// A firewall rule says so.
    Denied,
    /// Connection tracking takes it for no part of any connection.
    Invalid,
    /// No route to the destination.
    NoRoute,
    /// A route that says so.
    Blackhole,
    /// Time to live or hop limit used up.
    HopLimit,
    /// Longer than the way out allows, and must not be fragmented.
    TooBig,
    /// Headers that can't be, or were not captured far enough.
    Malformed,
    /// The function has no use for this kind of packet.
    Unsupported,
    /// No address or port is left for translation.
    NoPort,
    /// No translation exists for a packet from outside, and none may be made.
    NoMapping,
    /// The table of connections is full.
    TableFull,
    /// A host, or a port of it, has as many connections as it may have.
    SessionLimit,
    /// Over the rate.
    RateLimited,
    /// No backend is healthy.
    NoBackend,
    /// It would go out by the port that it came in by.
    SamePort,
    /// A live port can't send it.
    NotSent,
    /// Addresses that no packet on its way may have, such as a source that is no single host.
    Martian,
    /// Sent to another station of the link.
    OtherStation,
    /// For the stage itself, which has done what was asked.
    Local,
    /// Nobody says who has the address of the next hop.
    Unresolved,
    /// A fragment whose datagram was not complete in time.
    FragmentTimeout,
    /// A fragment of a datagram whose fragments overlap, or disagree about its end.
    FragmentOverlap,
    /// A fragment that was there already.
    FragmentDuplicate,
    /// A fragment whose incomplete datagram gave way to later ones, or has too many of them.
    FragmentLimit,
    /// One that only this type of stages has, or a few that know of each other.
    Own(OwnReason),
}

/// A reason for dropping packets that is a stage type's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct OwnReason {
    place: u8,
    name: &'static str,
}

impl OwnReason {
    /// Reasons of its own that a stage type can have.
    pub const MOST: usize = 16;

    /// The one with this place among the type's own, below [`MOST`](Self::MOST), and with this name in
    /// reports: a-z, 0-9 and _.
    ///
    /// # Panics
    /// If there is no such place, which a constant tells when it is compiled.
    #[must_use]
    pub const fn new(place: u8, name: &'static str) -> Self {
        assert!((place as usize) < Self::MOST, "a stage type has 16 reasons of its own at most");
        Self { place, name }
    }
}

impl DropReason {
    /// Those that are no type's own, in the order of their numbers.
    pub const GENERAL: [Self; 26] = [
        Self::Discarded,
        Self::Unconnected,
        Self::Denied,
        Self::Invalid,
        Self::NoRoute,
        Self::Blackhole,
        Self::HopLimit,
        Self::TooBig,
        Self::Malformed,
        Self::Unsupported,
        Self::NoPort,
        Self::NoMapping,
        Self::TableFull,
        Self::SessionLimit,
        Self::RateLimited,
        Self::NoBackend,
        Self::SamePort,
        Self::NotSent,
        Self::Martian,
        Self::OtherStation,
        Self::Local,
        Self::Unresolved,
        Self::FragmentTimeout,
        Self::FragmentOverlap,
        Self::FragmentDuplicate,
        Self::FragmentLimit,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Discarded => "discarded",
            Self::Unconnected => "unconnected",
            Self::Denied => "denied",
            Self::Invalid => "invalid",
            Self::NoRoute => "no_route",
            Self::Blackhole => "blackhole",
            Self::HopLimit => "hop_limit",
            Self::TooBig => "too_big",
            Self::Malformed => "malformed",
            Self::Unsupported => "unsupported",
            Self::NoPort => "no_port",
            Self::NoMapping => "no_mapping",
            Self::TableFull => "table_full",
            Self::SessionLimit => "session_limit",
            Self::RateLimited => "rate_limited",
            Self::NoBackend => "no_backend",
            Self::SamePort => "same_port",
            Self::NotSent => "not_sent",
            Self::Martian => "martian",
            Self::OtherStation => "other_station",
            Self::Local => "local",
            Self::Unresolved => "unresolved",
            Self::FragmentTimeout => "fragment_timeout",
            Self::FragmentOverlap => "fragment_overlap",
            Self::FragmentDuplicate => "fragment_duplicate",
            Self::FragmentLimit => "fragment_limit",
            Self::Own(own) => own.name,
        }
    }

    /// Its number: the place in [`GENERAL`](Self::GENERAL); those of a type's own come behind.
    #[inline]
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Discarded => 0,
            Self::Unconnected => 1,
            Self::Denied => 2,
            Self::Invalid => 3,
            Self::NoRoute => 4,
            Self::Blackhole => 5,
            Self::HopLimit => 6,
            Self::TooBig => 7,
            Self::Malformed => 8,
            Self::Unsupported => 9,
            Self::NoPort => 10,
            Self::NoMapping => 11,
            Self::TableFull => 12,
            Self::SessionLimit => 13,
            Self::RateLimited => 14,
            Self::NoBackend => 15,
            Self::SamePort => 16,
            Self::NotSent => 17,
            Self::Martian => 18,
            Self::OtherStation => 19,
            Self::Local => 20,
            Self::Unresolved => 21,
            Self::FragmentTimeout => 22,
            Self::FragmentOverlap => 23,
            Self::FragmentDuplicate => 24,
            Self::FragmentLimit => 25,
            Self::Own(own) => GENERAL as u8 + own.place,
        }
    }
}

const GENERAL: usize = DropReason::GENERAL.len();

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Packets that a stage dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops {
    general: [u64; GENERAL],
    /// By place; the name is empty before the first such packet.
    own: [(&'static str, u64); OwnReason::MOST],
}

impl Drops {
    /// Counts packets.
    #[inline]
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        if let Some(n) = self.general.get_mut(usize::from(reason.number())) {
            *n += packets;
        } else if let DropReason::Own(OwnReason { place, name }) = reason
            && let Some(own) = self.own.get_mut(usize::from(place))
        {
            *own = (name, own.1 + packets);
        }
    }

    /// Adds the counts of another stage of the same type.
    pub fn merge(&mut self, other: &Self) {
        other.iter().for_each(|(reason, packets)| self.add(reason, packets));
    }

    /// All packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.iter().map(|(_, packets)| packets).sum()
    }

    /// The reasons for which packets were dropped, and how many, in the order of the reasons' numbers.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        let own = |(place, (name, packets))| (DropReason::Own(OwnReason { place, name }), packets);
        let own = (0..).zip(self.own).map(own);
        DropReason::GENERAL.into_iter().zip(self.general).chain(own).filter(|(_, n)| *n > 0)
    }
}

/// The verdict about a packet: it leaves by a port, or is dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(transparent)]
pub struct Verdict(u8);

impl Verdict {
    /// It leaves by port 0.
    pub const PASS: Self = Self(0);
    /// The function keeps it, to let it go later or never.
    pub const KEPT: Self = Self(u8::MAX);
    /// Ports that there can be.
    pub const MAX_PORTS: u8 = 128;

    /// It leaves by this port (up to [`Verdict::MAX_PORTS`] − 1).
    #[inline]
    #[must_use]
    pub const fn port(port: u8) -> Self {
        Self(port & (Self::MAX_PORTS - 1))
    }

    /// It is dropped, for a reason that is no type's own: one that is becomes [`DropReason::Discarded`].
    #[inline]
    #[must_use]
    pub const fn drop(reason: DropReason) -> Self {
        match reason {
            DropReason::Own(_) => Self(Self::MAX_PORTS),
            general => Self(Self::MAX_PORTS | general.number()),
        }
    }

    /// Returns true if all of these packets leave by port 0.
    #[inline]
    pub fn all_pass(verdicts: &[Self]) -> bool {
        // All of them are looked at, so that many are at once.
        verdicts.iter().fold(0, |all, verdict| all | verdict.0) == Self::PASS.0
    }

    /// The port, or why the packet is dropped; of [`Verdict::KEPT`] neither is to be asked.
    #[inline]
    pub fn outcome(self) -> Result<u8, DropReason> {
        if self.0 < Self::MAX_PORTS {
            return Ok(self.0);
        }
        let reason = usize::from(self.0 - Self::MAX_PORTS);
        Err(DropReason::GENERAL.get(reason).copied().unwrap_or(DropReason::Malformed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_their_numbers_and_names() {
        let mut names: Vec<_> = DropReason::GENERAL.iter().map(|r| r.name()).collect();
        for (i, reason) in DropReason::GENERAL.into_iter().enumerate() {
            assert_eq!(usize::from(reason.number()), i);
            assert_eq!(Verdict::drop(reason).outcome(), Err(reason));
            assert_ne!(Verdict::drop(reason), Verdict::KEPT);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::GENERAL.len());
        let own = DropReason::Own(OwnReason::new(15, "own"));
        assert_eq!((own.number(), own.name()), (GENERAL as u8 + 15, "own"));
        assert_eq!(Verdict::drop(own).outcome(), Err(DropReason::Discarded));
        for port in 0..Verdict::MAX_PORTS {
            assert_eq!(Verdict::port(port).outcome(), Ok(port));
        }
    }

    #[test]
    fn drops_add_up() {
        let mut drops = Drops::default();
        drops.add(DropReason::Denied, 3);
        drops.add(DropReason::NotSent, 1);
        let own = [3, 15].map(|place| DropReason::Own(OwnReason::new(place, "own")));
        drops.add(own[1], 5);
        let mut all = drops;
        all.merge(&drops);
        all.add(own[0], 1);
        assert_eq!(all.total(), 19);
        let want = [(DropReason::Denied, 6), (DropReason::NotSent, 2), (own[0], 1), (own[1], 10)];
        assert_eq!(all.iter().collect::<Vec<_>>(), want);
    }
}
