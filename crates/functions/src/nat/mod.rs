//! Network address translation for IPv4 (NAT44): the core, which knows keys and times but no frames.
//!
//! An inside host's endpoint (address and port) gets an external endpoint, the same for all destinations
//! (endpoint-independent mapping, RFC 4787 REQ-1), which no other has at the time. Each pair of endpoints
//! that an inside host made talk is a *session*, found by its key from inside and by its key from outside
//! with one look-up; sessions have the timers, and a *mapping* lives as long as it has sessions.
//!
//! Nobody outside can fill a table. A packet from outside that belongs to no session is translated by the
//! mapping alone, where the filter lets it in, and leaves no trace: only what an inside host sends begins a
//! session. A static mapping needs none at all. An inside host, and each of its mappings, has so many
//! sessions at most. What RFC 4787, RFC 5382, RFC 5508 and RFC 7857 ask for is checked off in the book's NAT
//! checklist.
//!
//! [`Packet::read`] reads a packet, [`Nat::outbound`] or [`Nat::inbound`] decides, [`Rewrite::apply`] changes
//! it:
//!
//! ```
//! use slipstream_functions::nat::{Nat, NatConfig, Packet, Verdict};
//! use slipstream_core::time::Nanos;
//!
//! let config = NatConfig { pool: vec![[192, 0, 2, 1].into()], ..NatConfig::default() };
//! let mut nat = Nat::new(&config)?;
//! let mut udp = [
//!     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 198, 51, 100, 7, 0x13, 0x88, 0, 53, 0, 8, 0, 0,
//! ];
//! let packet = Packet::read(&udp, 0).expect("an IPv4 packet");
//! let Verdict::Rewrite { rewrite, .. } = nat.outbound(&packet, Nanos(1)) else { panic!("a new session") };
//! rewrite.apply(&mut udp, 0, 20).expect("a whole header");
//! assert_eq!(udp[12..22], [192, 0, 2, 1, 198, 51, 100, 7, 0x13, 0x88]);
//! # Ok::<(), slipstream_functions::nat::NatConfigError>(())
//! ```

mod config;
mod counters;
mod error;
mod mapping;
pub mod nptv6;
mod operate;
mod packet;
mod ports;
mod rewrite;
mod session;
mod settings;
mod stage;
mod statics;

pub use config::{Filtering, NatConfig, NatConfigError, NatTimeouts, Pooling, StaticMapping};
pub use counters::{DropReason, NatCounters};
pub use packet::{Kind, Packet, ReadError, Tuple, key_of};
pub use rewrite::{ErrorRewrite, Rewrite, Truncated};
pub use settings::NAT;
pub(crate) use settings::{SIDES_IN, SIDES_OUT};
pub use stage::NatStage;

use slipstream_wire::NarrowKey;

use self::mapping::Mappings;
use self::operate::Sweep;
use self::session::Session;
use super::table::{Index, Table};
use slipstream_core::operate::Events;
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;

/// The verdict about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on, rewritten.
    Rewrite {
        /// The change; the same for all packets of its flow while the session or the mapping lives.
        rewrite: Rewrite,
        /// The session, for [`Nat::observe`]; [`NONE`] where it has none.
        session: u32,
    },
    /// An ICMP error goes on, rewritten.
    Error(ErrorRewrite),
    /// It goes on as it is: neither an inside source nor an external destination of this NAT.
    Pass,
    /// It is dropped, and counted.
    Drop(DropReason),
}

/// The side of the NAT that a packet came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// From inside.
    Inside,
    /// From outside.
    Outside,
}

/// A NAT44.
#[derive(Debug)]
pub struct Nat {
    config: NatConfig,
    /// By the key of packets from inside.
    sessions: Table<NarrowKey, Session>,
    /// The same by the key of packets from outside.
    outside: Index,
    mappings: Mappings,
    /// Under address-dependent filtering: sessions begun from inside, by external endpoint and remote
    /// address.
    contacts: Table<NarrowKey, u32>,
    counters: NatCounters,
    /// Events since somebody last asked, if somebody does.
    events: Option<Box<Events>>,
    /// Place at which the search goes on for mappings that a new configuration no longer allows.
    sweep: Option<Sweep>,
    /// Sessions are looked at by the clock, and not only when packets come.
    by_clock: bool,
    /// When they are next looked at by the clock.
    look_at: Nanos,
    /// Since when the ends of sessions wait for whoever asks for events; never where they don't.
    waits_since: Nanos,
}

/// Time between two looks at sessions by the clock, in ns.
const LOOK_EVERY: u64 = 1_000_000_000;
/// The same while there are more whose time has passed than one look takes.
const LOOK_AGAIN: u64 = 100_000;
/// The same while events have no room for those that end.
const LOOK_FOR_ROOM: u64 = 10_000_000;
/// Longest wait of ends for room among the events, in ns. Behind it they are missed there.
const WAIT_FOR_ROOM: u64 = 1_000_000_000;
/// Entries that a look by the clock visits: few enough for packets that come meanwhile not to notice.
const LOOK: u32 = 64;
/// Entries that are visited by the clock's time before a session begins: many that end at one time, as a host
/// may have begun them, hold nobody up.
const ROOM: u32 = 64;
/// The same while events have little room.
const FEW: u32 = 4;

impl Nat {
    /// A NAT with no sessions.
    ///
    /// # Errors
    /// [`NatConfigError`] where the configuration contradicts itself.
    pub fn new(config: &NatConfig) -> Result<Self, NatConfigError> {
        config.check()?;
        let contacts = Self::contacts(config);
        Ok(Self {
            sessions: Table::new(config.sessions, config.seed),
            outside: Index::new(config.sessions),
            mappings: Mappings::new(config),
            contacts: Table::new(contacts, config.seed),
            counters: NatCounters::default(),
            events: None,
            sweep: None,
            by_clock: false,
            look_at: Nanos::MAX,
            waits_since: Nanos::MAX,
            config: config.clone(),
        })
    }

    /// Pairs of hosts that are remembered at most.
    fn contacts(config: &NatConfig) -> u32 {
        if config.filtering == Filtering::AddressDependent { config.sessions } else { 1 }
    }

    /// Memory that a NAT takes for sessions and mappings when it is made, in bytes, piece by piece.
    pub(crate) fn memory(config: &NatConfig) -> Vec<u64> {
        let mut all = Table::<NarrowKey, Session>::memory(config.sessions).to_vec();
        all.push(Index::memory(config.sessions));
        all.extend(Mappings::memory(config.mappings));
        all.extend(Table::<NarrowKey, u32>::memory(Self::contacts(config)));
        all
    }

    /// The hash of a packet's key.
    #[inline]
    #[must_use]
    pub fn hash(&self, packet: &Packet) -> u64 {
        self.sessions.hash(&packet.key)
    }

    /// Asks for the index line of a packet, a batch ahead of its verdict.
    #[inline]
    pub fn prefetch_index(&self, side: Side, hash: u64) {
        match side {
            Side::Inside => self.sessions.prefetch_index(hash),
            Side::Outside => self.outside.prefetch(hash),
        }
    }

    /// Asks for the session of a packet, a few packets ahead of its verdict; most likely this is its number.
    #[inline]
    pub fn prefetch_session(&self, side: Side, hash: u64) -> u32 {
        match side {
            Side::Inside => self.sessions.candidate(hash),
            Side::Outside => {
                let id = self.outside.candidate(hash);
                self.sessions.prefetch_entry(id);
                id
            }
        }
    }

    /// Asks for a session by its number.
    #[inline(always)]
    pub(super) fn prefetch_known(&self, session: u32) {
        self.sessions.prefetch_entry(session);
    }

    /// Translates a packet from inside that most likely belongs to the session of this number, in the simple
    /// case: the packet does belong to it, and the session leads outside. Otherwise returns `None` and does
    /// nothing: [`outbound`](Self::outbound) handles every case.
    #[inline(always)]
    pub(super) fn known_outbound(&mut self, packet: &Packet, id: u32, now: Nanos) -> Option<(Rewrite, u32)> {
        if packet.kind != Kind::Opens || !self.sessions.holds(id, &packet.key, now) {
            return None;
        }
        let rewrite = self.simple_rewrite(id)?;
        self.note_use(id, Side::Inside, packet.tcp_flags, now);
        Some((rewrite, id))
    }

    /// The same for a packet from outside.
    #[inline(always)]
    pub(super) fn known_inbound(&mut self, packet: &Packet, id: u32, now: Nanos) -> Option<(Rewrite, u32)> {
        let session = self.sessions.get(id)?;
        if packet.kind != Kind::Opens || session.outside != packet.key || self.sessions.is_due(id, now) {
            return None;
        }
        self.note_use(id, Side::Outside, packet.tcp_flags, now);
        Some((self.inbound_rewrite(id, packet.key), id))
    }

    /// Decides about a packet from inside.
    #[inline]
    pub fn outbound(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let verdict = match packet.kind {
            Kind::Opens | Kind::Asks | Kind::Reply => self.outbound_session(packet, now),
            Kind::Error(quoted) => self.outbound_error(packet.key, quoted, now),
            Kind::LaterFragment => self.later_fragment(packet, Side::Inside),
        };
        self.conclude(verdict)
    }

    /// Decides about a packet from outside.
    #[inline]
    pub fn inbound(&mut self, packet: &Packet, now: Nanos) -> Verdict {
        let verdict = match packet.kind {
            Kind::Opens | Kind::Asks | Kind::Reply => {
                let verdict = self.inbound_session(packet, now);
                self.counters.unsolicited +=
                    u64::from(matches!(verdict, Verdict::Rewrite { session: NONE, .. }));
                verdict
            }
            Kind::Error(quoted) => self.inbound_error(packet.key, quoted, now),
            Kind::LaterFragment => self.later_fragment(packet, Side::Outside),
        };
        self.conclude(verdict)
    }

    /// Up to when a packet with the same key and flags is sure to be rewritten as the one that was at `now`
    /// by this session; `now` where two sessions take part.
    #[must_use]
    #[inline]
    pub fn holds_until(&self, session: u32, now: Nanos) -> Nanos {
        if self.is_hairpin(session) { now } else { self.sessions.deadline(session) }
    }

    /// Counts further packets of a stranger's train, whose first one was translated by the mapping alone.
    pub(super) fn unsolicited_too(&mut self, packets: u64) {
        self.counters.unsolicited += packets;
    }

    /// Tells of the last packet of a train whose first one got the verdict with this session. No packet of it
    /// has SYN, FIN or RST set: each of those is asked about.
    pub fn observe(&mut self, session: u32, side: Side, tcp_flags: u8, now: Nanos) {
        self.note_use(session, side, tcp_flags, now);
    }

    /// Ends sessions whose time has passed, `visits` at most. A session whose time has passed is never used,
    /// called or not.
    #[inline(always)]
    pub fn expire(&mut self, now: Nanos, visits: u32) {
        if !self.sessions.is_quiet(now) {
            self.release_due(now, visits);
        }
    }

    /// Ends all sessions whose time has passed, before another one begins: which mappings are left, and what
    /// there is room for, follows from the packets and their times then, not from how many decisions were
    /// made about them. By the clock's time it ends some, and [`look`](Self::look) the others soon.
    fn make_room(&mut self, now: Nanos) {
        let visits = match &self.events {
            _ if !self.by_clock => u32::MAX,
            Some(events) if events.sessions.len() > events.sessions.capacity() / 2 => FEW,
            _ => ROOM,
        };
        self.expire(now, if self.sessions.is_full() { visits.max(ROOM) } else { visits });
    }

    /// Returns true if there may be more.
    #[inline(never)]
    fn release_due(&mut self, now: Nanos, mut visits: u32) -> bool {
        while let Some(id) = self.sessions.next_due(now, &mut visits) {
            self.release(id, now);
        }
        self.counters.mappings_released += self.mappings.expire(now, &mut visits);
        visits == 0
    }

    /// From now on has [`look_at`](Self::look_at) say when to [`look`](Self::look), so that sessions end,
    /// and are told of, within about a second though no packet comes; very many that end at one time take
    /// some seconds. Without it what ends when depends on packets and their times alone.
    pub(super) fn go_by_clock(&mut self) {
        self.by_clock = true;
    }

    /// Returns true if it does.
    pub(super) const fn goes_by_clock(&self) -> bool {
        self.by_clock
    }

    /// When to look for sessions and mappings whose time has passed; never while there are none.
    pub(super) const fn look_at(&self) -> Nanos {
        self.look_at
    }

    /// A session or mapping has begun: it is to be looked at.
    fn look_later(&mut self, now: Nanos) {
        if self.by_clock && self.look_at == Nanos::MAX {
            self.look_at = now.after(LOOK_EVERY);
        }
    }

    /// Ends that may be told of now. Whoever asks for events takes them now and then: the ends of very many
    /// sessions at one time wait for that, and leave room for sessions that begin.
    fn room_for_ends(&mut self, now: Nanos) -> u32 {
        let Some(events) = &self.events else { return LOOK };
        let (len, most) = (events.sessions.len(), events.sessions.capacity());
        // Without any room nobody takes events.
        let room = if most == 0 { LOOK as usize } else { (most - most / 4).saturating_sub(len) };
        if room > 0 {
            self.waits_since = Nanos::MAX;
            return room.min(LOOK as usize) as u32;
        }
        self.waits_since = self.waits_since.min(now);
        if now.since(self.waits_since) >= WAIT_FOR_ROOM { LOOK } else { 0 }
    }

    /// Ends some of the sessions and mappings whose time has passed.
    pub(super) fn look(&mut self, now: Nanos) {
        let visits = self.room_for_ends(now);
        if visits == 0 {
            self.look_at = now.after(LOOK_FOR_ROOM);
            return;
        }
        let more = self.release_due(now, visits);
        let any = self.sessions() > 0 || self.mappings() > 0;
        self.look_at = match (more, any) {
            (true, _) => now.after(LOOK_AGAIN),
            (false, true) => now.after(LOOK_EVERY),
            (false, false) => Nanos::MAX,
        };
    }

    /// Sessions remembered.
    #[must_use]
    pub fn sessions(&self) -> u32 {
        self.sessions.len()
    }

    /// Dynamic mappings in force.
    #[must_use]
    pub fn mappings(&self) -> u32 {
        self.mappings.len()
    }

    /// Entries of its tables far from where their hash says; see [`Index::long_probes`].
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.sessions.long_probes() + self.outside.long_probes() + self.mappings.long_probes()
    }

    /// The counters.
    #[must_use]
    pub fn counters(&self) -> &NatCounters {
        &self.counters
    }

    /// Live sessions, as the keys of their packets: (from inside before translation, from outside before
    /// translation).
    pub fn live(&self, now: Nanos) -> impl Iterator<Item = (NarrowKey, NarrowKey)> + '_ {
        self.sessions
            .ids()
            .filter(move |&id| !self.sessions.is_due(id, now))
            .filter_map(|id| Some((*self.sessions.key(id)?, self.sessions.get(id)?.outside)))
    }

    /// Counts a drop.
    #[inline(always)]
    fn conclude(&mut self, verdict: Verdict) -> Verdict {
        if let Verdict::Drop(reason) = verdict {
            self.counters.count(reason);
        }
        verdict
    }

    /// Returns true if a packet with these addresses is one to translate: others pass.
    pub(super) fn concerns(&self, side: Side, src: u32, dst: u32) -> bool {
        match side {
            Side::Inside => self.mappings.translates(&self.config, src) || self.mappings.has_whole(src),
            Side::Outside => self.mappings.owns(dst),
        }
    }

    /// A later fragment by itself has no ports: whoever has the whole datagram asks about that.
    fn later_fragment(&self, packet: &Packet, side: Side) -> Verdict {
        let Tuple { src, dst, .. } = Tuple::of(packet.key);
        if self.concerns(side, src, dst) { Verdict::Drop(DropReason::UnknownFragment) } else { Verdict::Pass }
    }
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod rewrite_tests;
#[cfg(test)]
mod room_tests;
#[cfg(test)]
mod stage_tests;
#[cfg(test)]
mod tests;
