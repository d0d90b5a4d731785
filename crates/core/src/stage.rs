//! The stages that a pipeline is made of: they take batches of trains and emit batches of trains.
//!
//! A stage is called once per batch, never per packet, and reads no clock: the time is handed in. What it
//! emits goes to an [`Output`]: the stages after it. Ports are numbered; a batch says which of its trains go
//! to which.

use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::any::Any;
use core::error::Error;

use slipstream_wire::{Encapsulation, LinkType};

use crate::batch::{Arrivals, Batch};
use crate::caused::caused;
use crate::flow_context::FlowUse;
use crate::frame::Frame;
use crate::interface::Interface;
use crate::pool::Pool;
use crate::time::Nanos;

mod drops;

pub use drops::{DropReason, Drops, OwnReason};

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

    /// The time at which it is called although no packet comes; [`Nanos::MAX`] for never. Once that has come,
    /// [`on_deadline`](Self::on_deadline) is called until this is a later time: a run in which that happens a
    /// million times in a row for one time, while no packet leaves the stage and as many are held, ends with
    /// an error that names the stage.
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Returns true if nothing is ever due here: [`next_deadline`](Self::next_deadline) is always
    /// [`Nanos::MAX`].
    fn is_timeless(&self) -> bool {
        false
    }

    /// Returns true if it is to be called for each deadline that has passed, at the time of that deadline.
    /// Otherwise it is called once for all of them, at the time that time has come to: a stage that does its
    /// work in slices, as where very many entries of a table end at one time, then does one at a time, and
    /// packets come in between, however long the slices take. A replay needs the former: what happens in it
    /// follows from the times of packets alone.
    fn catches_up(&self) -> bool {
        true
    }

    /// Does everything that is due at or before `cx.now`: [`next_deadline`](Self::next_deadline) is later
    /// then.
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

    /// Returns true if all that it looks at of a batch are its packets. Where it stands right behind a live
    /// source, batches come to it without trains, and most of the packets were not classified.
    fn takes_unread(&self) -> bool {
        false
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

    /// Returns true if it emits what leaves by each of its ports by itself, batch by batch: where these ways
    /// meet again, packets are in the order of time only if they come one by one.
    fn emits_apart(&self) -> bool {
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

/// A stage's report of which everything was copied that the stage has, and whose JSON is made when this is
/// called, wherever that may take its time.
#[cfg(feature = "std")]
pub type DraftReport = Box<dyn FnOnce() -> Option<serde_json::Value> + Send>;

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

    /// The same, for a pipeline that runs: packets wait until this returns. A stage whose report has
    /// thousands of entries only copies their numbers here.
    #[cfg(feature = "std")]
    fn draft_report(&self) -> DraftReport {
        let report = self.report();
        Box::new(move || report)
    }

    /// Remarks for the user on how it understood its settings, such as rules that it leaves out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The reason why it can't write now what it writes outside of the pipeline, in words for the user.
    fn trouble(&self) -> Option<String> {
        None
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

    /// Returns true if it sends Ethernet frames only: a live run whose packets for it are none fails at its
    /// start.
    fn ethernet_only(&self) -> bool {
        false
    }

    /// Packets that it can take now without losing any, where that is limited: sources that lead here are
    /// then asked for no more.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// The half of a port that takes packets without their coming into the pool:
    /// [`Transmit::relay`](crate::port::Transmit::relay).
    #[cfg(feature = "std")]
    fn relay(&mut self) -> Option<&mut dyn core::any::Any> {
        None
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

    /// Returns true if what it sends by was taken away, such as its interface: a live run ends then, whatever
    /// others can still write. It has [`failed`](Self::failed), too.
    fn is_gone(&self) -> bool {
        false
    }

    /// Returns true if it only throws packets away, so that its own time is not worth measuring.
    fn discards(&self) -> bool {
        false
    }

    /// Has all that it writes reach its files, which [`finish`](Self::finish) then only gives their names: a
    /// replay asks every end for this first, so that no file appears where another one can't be written.
    /// Nothing comes after it.
    ///
    /// # Errors
    /// As [`finish`](Self::finish).
    fn flush(&mut self) -> Result<(), StageError> {
        Ok(())
    }

    /// Finishes the files that it writes, such as captures.
    ///
    /// # Errors
    /// The cause of a failure to write, in words for the user.
    fn finish(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

caused! {
    /// A stage fails while it works: its output can't be written.
    StageError
}

/// The text says all, the cause's own causes included.
impl Error for StageError {}

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

    /// The port that the packet leaves by. Of [`Verdict::KEPT`] it is not to be asked.
    ///
    /// # Errors
    /// The reason why the packet is dropped.
    #[inline]
    pub fn outcome(self) -> Result<u8, DropReason> {
        if self.0 < Self::MAX_PORTS {
            return Ok(self.0);
        }
        let reason = usize::from(self.0 - Self::MAX_PORTS);
        Err(DropReason::GENERAL.get(reason).copied().unwrap_or(DropReason::Malformed))
    }
}
