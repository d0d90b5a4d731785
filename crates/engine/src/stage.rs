//! What a pipeline is made of: stages, which take batches of trains and emit batches of trains.
//!
//! A stage is called once per batch, never per packet, and reads no clock: the time is handed in. What it emits goes to
//! an [`Output`]: the stages after it. Ports are numbered; a batch says which of its trains go to which.

use std::fmt;

use slipstream_wire::LinkType;

use crate::batch::{Arrivals, Batch};
use crate::frame::Frame;
use crate::io::capture::Interface;
use crate::pool::Pool;
use crate::reframe::{Output, ReframeStats};
use crate::time::Nanos;

/// What a stage may use while it works.
#[derive(Debug)]
pub struct Context<'a> {
    /// The time.
    pub now: Nanos,
    /// The bytes of all packets.
    pub pool: &'a mut Pool,
    /// Number of the port at which the batch comes in.
    pub input: u8,
    /// Link types of the interfaces that packets come from, by [`PacketMeta::interface`](crate::pool::PacketMeta).
    pub links: &'a [LinkType],
}

/// The link type of a packet, where `links` are those of the interfaces.
#[inline]
pub(crate) fn link_type(links: &[LinkType], pool: &Pool, frame: &Frame) -> LinkType {
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

/// A step of a pipeline (Click: element, VPP: node).
pub trait Stage {
    /// Takes a batch, whose packets it now owns, and leaves it empty.
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output);

    /// When it wants to be called although no packet comes; [`Nanos::MAX`] for never.
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Does what is due at or before `cx.now`.
    fn on_deadline(&mut self, _cx: &mut Context<'_>, _out: &mut dyn Output) {}

    /// Emits everything that it holds: nothing more will come.
    fn drain(&mut self, _cx: &mut Context<'_>, _out: &mut dyn Output) {}

    /// What it counted, by name.
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}

    /// Packets that it dropped, by reason.
    fn drops(&self) -> Drops {
        Drops::default()
    }

    /// Packets that it holds.
    fn held(&self) -> u64 {
        0
    }

    /// What it has to say beyond counters, as JSON.
    fn report(&self) -> Option<serde_json::Value> {
        None
    }

    /// What a user should know of how it understood its settings, such as rules that it leaves out.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// The figures of a reframe stage.
    fn reframe_stats(&self) -> Option<ReframeStats> {
        None
    }

    /// Learns of interfaces that packets come from, in the order of their numbers.
    ///
    /// # Errors
    /// What it writes can't hold them.
    fn interfaces(&mut self, _new: &[Interface]) -> Result<(), StageError> {
        Ok(())
    }

    /// Whether it takes packets as they arrive, keys and all, if it stands first.
    fn takes_arrivals(&self) -> bool {
        false
    }

    /// Takes packets as they arrive; leaves none. Returns how many trains they came as: runs of one flow, and
    /// packets without a flow.
    fn arrive(&mut self, _cx: &mut Context<'_>, _arrivals: &mut Arrivals, _out: &mut dyn Output) -> u64 {
        0
    }

    /// Whether it may let a packet go later than it came.
    fn holds(&self) -> bool {
        false
    }

    /// Whether a live run is to go on, all sources having ended, since what it sent has yet to be taken.
    fn unfinished(&self) -> bool {
        false
    }

    /// Packets that it can take now without losing any, where that is limited: sources that lead here are then asked for no
    /// more.
    fn room(&mut self) -> usize {
        usize::MAX
    }

    /// Learns, in a live run, that nothing more will come: all sources that lead here have ended, and no stage on the way
    /// holds anything.
    fn no_more(&mut self) {}

    /// Names what it can read anew while it runs, as in "its routes"; none where there is nothing.
    fn reloads(&self) -> Option<&'static str> {
        None
    }

    /// Reads that anew, from `now` on; what is wrong changes nothing, and is in its report.
    fn reload(&mut self, _now: Nanos) {}

    /// Finishes what it writes, such as a capture file.
    ///
    /// # Errors
    /// What went wrong, in words for the user.
    fn finish(&mut self) -> Result<(), StageError> {
        Ok(())
    }
}

/// What goes wrong in a stage while it works: what it writes can't be written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StageError(pub String);

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
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
    /// What a live port can't send.
    NotSent,
    /// Addresses that no packet on its way may have, such as a source that is no single host.
    Martian,
    /// Sent to another station of the link.
    OtherStation,
    /// For the stage itself, which has done what was asked.
    Local,
    /// Nobody says who has the address of the next hop.
    Unresolved,
    /// It carries the mark of sliced packets, and came from the network.
    Marked,
    /// Its token was never made, or for another packet.
    ForgedToken,
    /// The entry of its token holds a later payload.
    StaleToken,
    /// Its payload was given up before it came for it.
    LateToken,
    /// Its payload left with another packet.
    DuplicateToken,
    /// What stands around its token is not what was sliced.
    MangledSlice,
    /// A fragment whose datagram was not complete in time.
    FragmentTimeout,
    /// A fragment of a datagram whose fragments overlap, or disagree about its end.
    FragmentOverlap,
    /// A fragment that was there already.
    FragmentDuplicate,
    /// A fragment whose incomplete datagram gave way to later ones, or has too many of them.
    FragmentLimit,
}

impl DropReason {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 32] = [
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
        Self::Marked,
        Self::ForgedToken,
        Self::StaleToken,
        Self::LateToken,
        Self::DuplicateToken,
        Self::MangledSlice,
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
            Self::Marked => "marked",
            Self::ForgedToken => "forged_token",
            Self::StaleToken => "stale_token",
            Self::LateToken => "late_token",
            Self::DuplicateToken => "duplicate_token",
            Self::MangledSlice => "mangled_slice",
            Self::FragmentTimeout => "fragment_timeout",
            Self::FragmentOverlap => "fragment_overlap",
            Self::FragmentDuplicate => "fragment_duplicate",
            Self::FragmentLimit => "fragment_limit",
        }
    }
}

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Packets dropped, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Drops([u64; DropReason::ALL.len()]);

impl Drops {
    /// Counts packets.
    #[inline]
    pub fn add(&mut self, reason: DropReason, packets: u64) {
        if let Some(n) = self.0.get_mut(reason as usize) {
            *n += packets;
        }
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Self) {
        for (mine, theirs) in self.0.iter_mut().zip(other.0) {
            *mine += theirs;
        }
    }

    /// All packets.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The reasons for which packets were dropped, and how many.
    pub fn iter(&self) -> impl Iterator<Item = (DropReason, u64)> {
        DropReason::ALL.into_iter().zip(self.0).filter(|(_, n)| *n > 0)
    }
}

/// What becomes of a packet: it leaves by a port, or is dropped.
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

    /// It is dropped.
    #[inline]
    #[must_use]
    pub const fn drop(reason: DropReason) -> Self {
        Self(Self::MAX_PORTS | reason as u8)
    }

    /// Whether all of these packets leave by port 0.
    #[inline]
    pub(crate) fn all_pass(verdicts: &[Self]) -> bool {
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
        Err(DropReason::ALL.get(reason).copied().unwrap_or(DropReason::Malformed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_keep_their_numbers_and_names() {
        let mut names: Vec<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        for (i, reason) in DropReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
            assert_eq!(Verdict::drop(reason).outcome(), Err(reason));
            assert_ne!(Verdict::drop(reason), Verdict::KEPT);
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), DropReason::ALL.len());
        for port in 0..Verdict::MAX_PORTS {
            assert_eq!(Verdict::port(port).outcome(), Ok(port));
        }
    }

    #[test]
    fn drops_add_up() {
        let mut drops = Drops::default();
        drops.add(DropReason::Denied, 3);
        drops.add(DropReason::NotSent, 1);
        let mut all = drops;
        all.merge(&drops);
        assert_eq!(all.total(), 8);
        assert_eq!(all.iter().collect::<Vec<_>>(), [(DropReason::Denied, 6), (DropReason::NotSent, 2)]);
    }
}
