//! The NAT in a pipeline: port 0 is inside, port 1 outside, on the way in as on the way out.

use serde_json::json;
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::operate::Operate;
use slipstream_core::reads::Reads;
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;
use slipstream_wire::protocol::TCP;
use slipstream_wire::{Flags, NarrowKey, Skip, classify};

use super::Verdict as Fate;
use super::{
    DropReason as Why, ErrorRewrite, Kind as PacketKind, Nat, Packet, ReadError, Rewrite, Side, Truncated,
};
use crate::tcp_state::MOVES;
use crate::{FragmentLimits, FunctionContext, LeavesAs, NetworkFunction};

/// A NAT as a network function.
#[derive(Debug)]
pub struct NatStage {
    pub(super) nat: Nat,
    pub(super) fragments: FragmentLimits,
    /// Packets that are not IPv4, and IPv4 packets without endpoints that could be translated: those that end
    /// before them, and the others.
    not_ipv4: u64,
    truncated: u64,
    unreadable: u64,
    /// When sessions are next looked at, after a change of settings.
    pub(super) sweep_at: Nanos,
}

/// Time between two slices of what there is to do after a change of settings, in ns.
const SWEEP_EVERY: u64 = 100_000;

/// The part of a decision that is looked up ahead.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// True if it can be read.
    readable: bool,
    packet: Packet,
    hash: u64,
    /// Most likely the number of its session.
    session: u32,
    /// That is what the flow's context says; of the packet its key and flags alone are known.
    by_context: bool,
}

impl Default for Found {
    fn default() -> Self {
        let key = NarrowKey([0; 2]);
        let packet = Packet { key, kind: PacketKind::Opens, tcp_flags: 0 };
        Self { readable: false, packet, hash: 0, session: NONE, by_context: false }
    }
}

/// The decision about a train.
#[derive(Clone, Copy, Debug)]
pub enum Decided {
    /// Rewritten, as the others of its session.
    Rewrite(Rewrite, u32, Side),
    /// An ICMP error, rewritten inside too.
    Error(ErrorRewrite),
    /// Goes on as it is.
    Pass,
    /// Not IPv4: goes on as it is.
    NotIpv4,
    /// IPv4 without endpoints that could be translated: goes on as it is, or is dropped.
    Unreadable(ReadError, Option<DropReason>),
    /// Dropped.
    Drop(DropReason),
}

impl NatStage {
    /// Around a NAT.
    #[must_use]
    pub fn new(nat: Nat) -> Self {
        let fragments = FragmentLimits { ipv6: false, ..FragmentLimits::default() };
        Self { nat, fragments, not_ipv4: 0, truncated: 0, unreadable: 0, sweep_at: Nanos(0) }
    }

    #[inline(always)]
    fn find(&self, cx: &Context<'_>, packet: Packet, found: &mut Found) {
        (found.readable, found.by_context) = (true, false);
        found.packet = packet;
        found.hash = self.nat.hash(&packet);
        self.nat.prefetch_index(side(cx), found.hash);
    }

    #[inline(never)]
    fn look_at_any(&self, cx: &Context<'_>, frame: &Frame, found: &mut Found) {
        let ipv4 = frame.info.classified() && !Flags(frame.info.flags()).has(Flags::IPV6 | Flags::INNER);
        match Packet::read(cx.data(frame), usize::from(frame.info.l3())) {
            Ok(packet) if ipv4 => self.find(cx, packet, found),
            _ => (found.readable, found.by_context) = (false, false),
        }
    }

    /// Finds the session of a packet from either side by the flow's context, where the flow key has all that
    /// a NAT reads but TCP flags, and those are known. Returns false, and changes nothing, elsewhere.
    #[inline(always)]
    fn find_kept(&self, cx: &Context<'_>, first: &Frame, found: &mut Found) -> bool {
        let info = first.info;
        let Some((key, [number])) = cx.pool.keyed_flow_words() else { return false };
        let NarrowKey([_, rest]) = key;
        let known = number > 0
            && info.flags() & (Flags::PORTS | Flags::IPV6 | Flags::INNER | Flags::FRAGMENT) == Flags::PORTS
            && ((rest >> 24) as u8 != TCP || info.is_tcp())
            && has_fields(cx, first);
        if known {
            (found.readable, found.by_context) = (true, true);
            found.packet = Packet { key, kind: PacketKind::Opens, tcp_flags: info.tcp_flags() };
            found.session = number - 1;
            self.nat.prefetch_known(found.session);
        }
        known
    }

    /// Decides about a packet whose session is not the one that its flow's context says, or no longer.
    fn decide_again(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame) -> Decided {
        let mut found = Found::default();
        fx.cx.pool.keep_flow_words([0]);
        self.look_ahead(fx.cx, first, &mut found);
        NetworkFunction::prefetch(self, fx.cx, std::slice::from_mut(&mut found));
        self.decide(fx, first, &found)
    }
}

impl NatStage {
    /// Decides about a packet that is not of a session that was found ahead.
    #[inline(never)]
    fn decide_other(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        found: &Found,
        decided: &mut Decided,
    ) {
        *decided = if !found.readable {
            self.decide_unreadable(fx.cx, first)
        } else if found.by_context {
            self.decide_again(fx, first)
        } else {
            self.decide_any(&found.packet, side(fx.cx), fx.cx.now)
        };
        if let Decided::Rewrite(_, session, _) = decided
            && !found.by_context
        {
            keep(fx, &found.packet, *session);
        }
    }

    /// Decides about any packet.
    fn decide_any(&mut self, packet: &Packet, side: Side, now: Nanos) -> Decided {
        let fate = match side {
            Side::Inside => self.nat.outbound(packet, now),
            Side::Outside => self.nat.inbound(packet, now),
        };
        match fate {
            Fate::Rewrite { rewrite, session } => Decided::Rewrite(rewrite, session, side),
            Fate::Error(rewrite) => Decided::Error(rewrite),
            Fate::Pass => Decided::Pass,
            Fate::Drop(why) => Decided::Drop(reason(why)),
        }
    }

    /// Decides about a packet that can't be translated: it goes on only if it would have been left alone.
    fn decide_unreadable(&self, cx: &Context<'_>, first: &Frame) -> Decided {
        let flags = Flags(first.info.flags());
        let (data, l3) = (cx.data(first), usize::from(first.info.l3()));
        if !first.info.classified() {
            return match classify(cx.link(first), data) {
                // It may be IPv4, from whatever address, and doesn't pass as something else.
                Err(Skip::Truncated | Skip::Malformed) => {
                    Decided::Unreadable(ReadError::Truncated, Some(DropReason::Malformed))
                }
                _ => Decided::NotIpv4,
            };
        }
        if flags.has(Flags::IPV6) {
            return Decided::NotIpv4;
        }
        // Of a packet in a tunnel it doesn't know the addresses that it would translate.
        let addresses = Packet::addresses(data, l3).filter(|_| !flags.has(Flags::INNER));
        let ours = addresses.is_none_or(|(src, dst)| self.nat.concerns(side(cx), src, dst));
        let why = Packet::read(data, l3).err().unwrap_or(ReadError::NotIpv4);
        let drop = match why {
            ReadError::IcmpType(_) | ReadError::QuotedFragment => DropReason::Unsupported,
            ReadError::NotIpv4 | ReadError::Truncated => DropReason::Malformed,
        };
        Decided::Unreadable(why, ours.then_some(drop))
    }

    /// Tells of the last packet behind the first of a train, whose time counts.
    #[inline]
    fn observe(&mut self, cx: &Context<'_>, session: u32, side: Side, others: &[Frame]) {
        let (now, Some(last)) = (cx.now, others.last()) else { return };
        if session == NONE && side == Side::Outside {
            // Those that end before their ports are dropped.
            self.nat.unsolicited_too(others.iter().filter(|frame| has_ports(cx, frame)).count() as u64);
            return;
        }
        self.nat.observe(session, side, last.info.tcp_flags(), now.max(last.arrival));
    }

    /// Rewrites packets; `change` says whether a packet has another destination address now.
    #[inline(always)]
    fn rewrite(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frames: &[Frame],
        verdicts: &mut [Verdict],
        change: impl Fn(&mut [u8], usize, usize) -> Result<bool, Truncated>,
    ) {
        let inside = fx.cx.input == 0;
        for (frame, verdict) in frames.iter().zip(verdicts) {
            let (l3, l4) = (usize::from(frame.info.l3()), usize::from(frame.info.l4()));
            *verdict = match change(fx.cx.data_mut(frame), l3, l4) {
                // A packet from inside whose destination changes goes back inside: a hairpin.
                Ok(other) if !inside || other => Verdict::port(1),
                Ok(_) => Verdict::PASS,
                Err(Truncated) => {
                    self.truncated += 1;
                    Verdict::drop(DropReason::Malformed)
                }
            };
        }
    }

    /// Applies what is seldom decided.
    #[inline(never)]
    fn apply_other(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        match decided {
            Decided::Rewrite(rewrite, ..) => {
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            Decided::Error(_) if !ErrorRewrite::reaches(fx.cx, frames) => {
                verdicts.fill(Verdict::drop(DropReason::Unsupported));
            }
            Decided::Error(rewrite) => {
                rewrite.apply_apart(fx.cx, frames);
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            Decided::Pass => {
                self.rewrite(fx, frames, verdicts, |_, _, _| Ok(false));
                self.truncated += without_ports(fx.cx, frames).count() as u64;
            }
            Decided::NotIpv4 => {
                self.not_ipv4 += frames.len() as u64;
                self.rewrite(fx, frames, verdicts, |_, _, _| Ok(false));
            }
            Decided::Unreadable(why, drop) => {
                let ended = *why == ReadError::Truncated;
                let counter = if ended { &mut self.truncated } else { &mut self.unreadable };
                *counter += frames.len() as u64;
                match drop {
                    Some(reason) => verdicts.fill(Verdict::drop(*reason)),
                    None => self.rewrite(fx, frames, verdicts, |_, _, _| Ok(false)),
                }
            }
            Decided::Drop(reason) => {
                verdicts.fill(Verdict::drop(*reason));
                for at in without_ports(fx.cx, frames) {
                    self.truncated += 1;
                    if let Some(verdict) = verdicts.get_mut(at) {
                        *verdict = Verdict::drop(DropReason::Malformed);
                    }
                }
            }
        }
    }
}

/// Has the flow's context keep the session of a packet, where the flow key is all that a NAT
/// knows it by: a VLAN makes another flow, and no other session.
#[inline(never)]
fn keep(fx: &mut FunctionContext<'_, '_>, packet: &Packet, session: u32) {
    if let Some((key, [_])) = fx.cx.pool.keyed_flow_words()
        && key == packet.key
        && session != NONE
    {
        fx.cx.pool.keep_flow_words([session + 1]);
    }
}

/// Returns true if an IPv4 packet that is no fragment has the ports and TCP flags that were classified: its
/// own length says whether they are padding.
#[inline(always)]
fn has_fields(cx: &Context<'_>, frame: &Frame) -> bool {
    let (info, fields) = (frame.info, if frame.info.is_tcp() { 14 } else { 4 });
    Packet::reaches(cx.data(frame), usize::from(info.l3()), usize::from(info.l4()) + fields)
}

/// The same of the ports alone.
fn has_ports(cx: &Context<'_>, frame: &Frame) -> bool {
    Packet::reaches(cx.data(frame), usize::from(frame.info.l3()), usize::from(frame.info.l4()) + 4)
}

/// The places of packets in a train that end before their ports, though the first one doesn't.
fn without_ports(cx: &Context<'_>, frames: &[Frame]) -> impl Iterator<Item = usize> {
    let fragments = frames.first().is_some_and(|first| Flags(first.info.flags()).has(Flags::FRAGMENT));
    let others = frames.iter().enumerate().skip(if fragments { frames.len() } else { 1 });
    others.filter(|(_, frame)| !has_ports(cx, frame)).map(|(at, _)| at)
}

fn side(cx: &Context<'_>) -> Side {
    if cx.input == 0 { Side::Inside } else { Side::Outside }
}

impl NetworkFunction for NatStage {
    type Decision = Decided;
    type Lookahead = Found;

    /// FIN, SYN, RST and ACK move the state of a session.
    fn reads(&self) -> Reads {
        Reads::of_word(0x17 << 8)
    }

    fn fragments(&self) -> Option<FragmentLimits> {
        Some(self.fragments)
    }

    /// Of a flow it keeps the number of the session, plus one: those of a session's two flows are the same.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 1, alone: false, trains: Trains::Changed }
    }

    const CHANGES_KEYS: bool = true;

    #[inline(always)]
    fn leaves_as(&self, decided: &Decided) -> LeavesAs {
        match decided {
            Decided::Rewrite(rewrite, ..) => LeavesAs::Changed(rewrite.endpoints().0),
            Decided::Pass | Decided::NotIpv4 | Decided::Unreadable(_, None) => LeavesAs::Before,
            Decided::Error(_) | Decided::Unreadable(_, Some(_)) | Decided::Drop(_) => LeavesAs::Unknown,
        }
    }

    /// Packets with ports share; ICMP, whose identifiers the flow key doesn't have, don't, nor do packets of
    /// which each may move the state of a TCP session.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.sharing(cx, first, std::slice::from_ref(other)) == 1
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        if !Flags(first.info.flags()).has(Flags::PORTS) || first.info.tcp_flags() & MOVES != 0 {
            return 0;
        }
        if !Flags(first.info.flags()).has(Flags::IPV6 | Flags::FRAGMENT) && !has_fields(cx, first) {
            return 0;
        }
        self.reads().agreeing(cx.pool, first, others)
    }

    #[inline]
    fn holds_until(&self, decided: &Decided, now: Nanos) -> Nanos {
        match decided {
            Decided::Rewrite(_, session, _) => self.nat.holds_until(*session, now),
            _ => now,
        }
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        let info = first.info;
        if self.find_kept(cx, first, found) {
            return;
        }
        let plain = info.classified() && info.flags() & (Flags::IPV6 | Flags::INNER) == 0;
        match Packet::parse_fast(cx.data(first), usize::from(info.l3())) {
            Some(packet) if plain => self.find(cx, packet, found),
            _ => self.look_at_any(cx, first, found),
        }
    }

    #[inline(always)]
    fn prefetch(&mut self, cx: &Context<'_>, found: &mut [Found]) {
        let side = side(cx);
        let sought = found.iter_mut().filter(|found| !found.by_context);
        sought.for_each(|found| found.session = self.nat.prefetch_session(side, found.hash));
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, found: &Found) -> Decided {
        let (side, now, packet) = (side(fx.cx), fx.cx.now, &found.packet);
        let known = match side {
            _ if !found.readable => None,
            Side::Inside => self.nat.known_outbound(packet, found.session, now),
            Side::Outside => self.nat.known_inbound(packet, found.session, now),
        };
        let Some((rewrite, session)) = known else {
            // It is written to a place of its own, so that what is most often decided stays in registers.
            let mut decided = Decided::Pass;
            self.decide_other(fx, first, found, &mut decided);
            return decided;
        };
        if !found.by_context && fx.cx.pool.flows().is_some() {
            keep(fx, packet, session);
        }
        Decided::Rewrite(rewrite, session, side)
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        match decided {
            Decided::Rewrite(rewrite, session, side) => {
                // Fragments have no flags: the datagram was told of when it was decided about.
                if let [first, others @ ..] = frames
                    && !others.is_empty()
                    && !Flags(first.info.flags()).has(Flags::FRAGMENT)
                {
                    self.observe(fx.cx, *session, *side, others);
                }
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            // A copy goes by reference, so that what is most often decided stays in registers.
            &other => self.apply_other(fx, &other, frames, verdicts),
        }
    }

    /// After a change of settings there is something to do until all sessions were looked at. Where time is
    /// the clock's, sessions end while no packet comes, too.
    fn next_deadline(&self) -> Nanos {
        let sweep = if self.nat.is_sweeping() { self.sweep_at } else { Nanos::MAX };
        sweep.min(self.nat.look_at())
    }

    fn catches_up(&self) -> bool {
        !self.nat.goes_by_clock()
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let now = fx.cx.now;
        if self.nat.is_sweeping() && self.sweep_at <= now {
            self.nat.sweep_on(now);
            self.sweep_at = now.after(SWEEP_EVERY);
        }
        if self.nat.look_at() <= now {
            self.nat.look(now);
        }
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }
}

impl Observe for NatStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let c = self.nat.counters();
        visit("sessions", u64::from(self.nat.sessions()));
        visit("mappings", u64::from(self.nat.mappings()));
        visit("sessions_opened", c.sessions_opened);
        visit("sessions_restored", c.sessions_restored);
        visit("sessions_closed", c.sessions_closed);
        visit("unsolicited", c.unsolicited);
        visit("long_probes", self.nat.long_probes());
        visit("not_ipv4", self.not_ipv4);
        visit("truncated", self.truncated);
        visit("unreadable", self.unreadable);
    }

    fn report(&self) -> Option<serde_json::Value> {
        let c = self.nat.counters();
        let refused: serde_json::Map<_, _> =
            Why::ALL.iter().map(|why| (why.name().to_owned(), c.dropped(*why).into())).collect();
        Some(json!({ "refused_decisions": refused }))
    }
}

fn reason(why: Why) -> DropReason {
    match why {
        Why::NoPort => DropReason::NoPort,
        Why::HostSessions | Why::MappingSessions | Why::HostMappings => DropReason::SessionLimit,
        Why::SessionsFull | Why::MappingsFull => DropReason::TableFull,
        Why::NoMapping | Why::NoSession | Why::UnknownError | Why::UnknownFragment => DropReason::NoMapping,
        Why::Filtered | Why::Hairpin => DropReason::Denied,
        Why::Protocol => DropReason::Unsupported,
    }
}
