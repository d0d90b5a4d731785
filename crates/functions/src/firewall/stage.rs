//! The firewall in a pipeline.

use serde_json::json;
use slipstream_wire::{Flags, FlowKey, NarrowKey, protocol};

use super::ahead::{Found, Kept};
use super::cache::DecisionCache;
use super::fields::NO_ICMP;
use super::limit::Credit;
use super::reload::{Files, Loaded};
use super::{Action, ConnState, Firewall, PacketFields, Verdict as Fate};
use crate::answer::{ip_packet, link_of, send_back};
use crate::conntrack::{Class, Conntrack, ConntrackConfig, CtState, Seen, Tracked};
use crate::icmp;
use crate::icmp::Message;
use crate::sound::{has_wrong_checksum, is_sound, without_trailer};
use crate::tcp_state::MOVES;
use crate::{FragmentLimits, FunctionContext, NetworkFunction, RateLimiter};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::operate::Operate;
use slipstream_core::packet::{any_key_of, fast_key_in, key_of};
use slipstream_core::prefetch::prefetch;
use slipstream_core::reads::Reads;
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;

#[path = "operate.rs"]
mod operate;

use operate::Denials;
pub(super) use operate::FirewallUpdate;
/// The bits of a packet's word; above them stands the state of its connection.
const WORD: u32 = (1 << STATE_AT) - 1;
const STATE_AT: u32 = 24;

const DENIED: u8 = 1;
const REPLIES: u8 = 2;
/// The port of packets that came by the second input port and may pass.
const BACK: u8 = 3;

/// Packets that a log rule picked which are remembered for the report.
const LOGGED: usize = 64;

/// Packets and bytes that a rule matched.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    packets: u64,
    bytes: u64,
}

/// A packet that a log rule picked.
#[derive(Clone, Copy, Debug)]
struct Logged {
    rule: u32,
    time: Nanos,
    key: FlowKey,
}

/// A firewall as a network function.
#[derive(Debug)]
pub struct FirewallStage {
    firewall: Firewall,
    reads: Reads,
    /// True if type and code of ICMP are read.
    reads_icmp: bool,
    /// Of each limit of the rules, what is left of it. With any, every packet is decided about.
    credits: Vec<Credit>,
    /// True if packets of a train share a decision where they agree in what is read, whatever else is in
    /// them.
    shares_by_fields: bool,
    cache: Option<DecisionCache>,
    allow_other: bool,
    seed: u64,
    /// It decides about whole datagrams.
    whole: bool,
    fragments: FragmentLimits,
    /// The datagram that the decision made last is about, where that is to reset.
    datagram: Option<Frame>,
    /// One a rule, and the last for the default.
    hits: Vec<Hits>,
    /// Rules passed on the way to the decision that was made last: those that count or log.
    passed: Vec<u32>,
    /// The flow of the packet that the decision made last is about, where that passed rules or is to reset.
    key: FlowKey,
    /// The connection tracker's view of the packet of the last decision.
    tracked: Option<(Tracked, Seen)>,
    cached: u64,
    logged: Vec<Logged>,
    logged_packets: u64,
    unclassified: u64,
    conntrack: Option<Conntrack>,
    pub(super) checksums: Checksums,
    /// True if the keys of packets are asked for behind their lookups.
    keeps_keys: bool,
    /// The bits of [`Info::word`](slipstream_core::frame::Info::word) that the first matching rule of a
    /// flow's packets depends on, and those that say which headers could be read, where a flow's context may
    /// keep that rule.
    contextual: Option<u32>,
    /// The same where connections are tracked, for a rule that holds in one state of them.
    stateful: Option<u32>,
    /// Counts the rule sets so far.
    generation: u32,
    pub(super) limiter: RateLimiter,
    /// The answer being made.
    answer: Vec<u8>,
    answers: u64,
    /// Flows whose decision is remembered.
    cache_size: usize,
    /// The files that rules are read from anew, where that can be asked for.
    files: Option<Box<Files>>,
    /// True if they are of iptables-save.
    pub(super) iptables: bool,
    /// Denied packets since somebody last asked, if somebody does.
    denials: Option<Box<Denials>>,
}

/// Of which packets the connection tracker verifies checksums. Those with a wrong one are invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Checksums {
    /// Of none.
    Off,
    /// Of those that begin a connection, and of TCP segments with SYN, FIN or RST.
    State,
    /// Of all, as Linux does with `nf_conntrack_checksum`.
    All,
}

impl Checksums {
    fn of(self, begins: bool, tcp_flags: u8) -> bool {
        match self {
            Self::Off => false,
            Self::State => begins || tcp_flags & MOVES != 0,
            Self::All => true,
        }
    }
}

/// The decision about a train.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    fate: Fate,
    /// Place in the hits.
    rule: usize,
}

impl FirewallStage {
    /// Around a firewall. `cache`: flows whose decision is remembered; `allow_other`: whether what is not IP
    /// passes.
    #[must_use]
    pub fn new(firewall: Firewall, cache: usize, allow_other: bool, seed: u64) -> Self {
        let reads = firewall.rules().reads();
        let shared = Reads::of_word(reads.word);
        Self {
            hits: vec![Hits::default(); firewall.rules().rules().len() + 1],
            reads: if reads.length { shared.and(Reads::LENGTH) } else { shared },
            reads_icmp: reads.icmp,
            shares_by_fields: !reads.icmp && firewall.rules().limits.is_empty(),
            credits: firewall.rules().limits.iter().copied().map(Credit::new).collect(),
            cache: (cache > 0).then(|| DecisionCache::new(cache, reads)),
            allow_other,
            seed,
            whole: firewall.rules().reads_whole_datagrams(),
            fragments: FragmentLimits { seed, ..FragmentLimits::default() },
            datagram: None,
            passed: Vec::new(),
            key: FlowKey::Narrow(NarrowKey([0; 2])),
            tracked: None,
            cached: 0,
            logged: Vec::with_capacity(LOGGED),
            logged_packets: 0,
            unclassified: 0,
            conntrack: None,
            checksums: Checksums::Off,
            keeps_keys: cache > 0 || !firewall.only_passes_or_denies(),
            contextual: (cache == 0 && !reads.length && !reads.state).then_some(reads.word | 0xff),
            stateful: (cache == 0 && !reads.length).then_some(reads.word | 0xff),
            generation: 1,
            limiter: RateLimiter::new(1000, 1000),
            answer: Vec::new(),
            answers: 0,
            cache_size: cache,
            files: None,
            iptables: false,
            denials: None,
            firewall,
        }
    }

    /// From now on rules can be read anew.
    pub(super) fn with_files(mut self, files: Files) -> Self {
        self.files = Some(Box::new(files));
        self
    }

    /// Puts other rules in the place of the present ones. Connections stay; what is counted by rule and what
    /// is left of limits begins anew, as do the decisions that are remembered.
    fn install(&mut self, loaded: Loaded) -> Loaded {
        let default = self.hits.last().copied().unwrap_or_default();
        let new = Self::new(loaded.firewall, self.cache_size, self.allow_other, self.seed);
        let old = std::mem::replace(&mut self.firewall, new.firewall);
        (self.reads, self.reads_icmp) = (new.reads, new.reads_icmp);
        (self.credits, self.cache, self.hits) = (new.credits, new.cache, new.hits);
        // Contexts keep decisions of the rules before; one that says nothing has 0.
        (self.contextual, self.stateful) = (new.contextual, new.stateful);
        self.generation = self.generation.wrapping_add(1).max(1);
        (self.shares_by_fields, self.keeps_keys, self.whole) =
            (new.shares_by_fields, new.keeps_keys, new.whole);
        if let Some(last) = self.hits.last_mut() {
            *last = default;
        }
        self.passed.clear();
        // Rules of packets that were logged are numbers of the rules that are gone.
        self.logged.clear();
        (self.datagram, self.tracked) = (None, None);
        // Once connections are tracked they stay so: rules that ask for a state may come back.
        match (self.conntrack.is_some(), loaded.track) {
            (true, _) => self.tracks(),
            (false, Some(config)) => self.track(&config),
            (false, None) => {}
        }
        Loaded { firewall: old, track: None }
    }

    /// Tracks connections from now on. Packets of a train share a decision then only where their TCP flags
    /// are equal.
    pub fn track(&mut self, config: &ConntrackConfig) {
        self.conntrack = Some(Conntrack::new(config));
        self.tracks();
    }

    fn tracks(&mut self) {
        self.contextual = None;
        self.shares_by_fields = false;
        self.keeps_keys = true;
        self.whole = true;
        self.reads = self.reads.and(Reads::TCP_FLAGS);
    }

    /// Reassembles within these bounds where rules or connections ask for whole datagrams.
    pub fn reassemble(&mut self, limits: FragmentLimits) {
        self.fragments = limits;
    }

    /// Tells the sender of a packet that it may not pass.
    fn reply(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame, key: &FlowKey) {
        if !self.limiter.allow(1, fx.cx.now) {
            return;
        }
        let (packet, link) = (ip_packet(fx.cx, frame), link_of(fx.cx, frame));
        let made = if key.protocol() == protocol::TCP {
            icmp::reset(packet, link, &mut self.answer)
        } else {
            icmp::answer(Message::AdminProhibited, packet, link, key.dst(), &mut self.answer)
        };
        if made.is_ok() {
            self.answers += 1;
            // Whoever sends to the second input port is where the first output port leads to.
            let port = if fx.cx.input == 0 { REPLIES } else { 0 };
            send_back(fx, frame, &self.answer, port);
        }
    }

    /// The first rule that matches a packet, and the verdict about it, if the flow's context says so: a rule
    /// that decides, of the rules that are in force, found for a packet with the same bits.
    #[inline(always)]
    fn kept(&self, cx: &Context<'_>, frame: &Frame) -> Option<(u32, Fate)> {
        let mask = self.contextual?;
        let [generation, word, rule] = cx.pool.flow_words()?;
        let differs = (frame.info.word() ^ word) & mask != 0;
        if generation != self.generation || differs || !self.has_no_type(frame) {
            return None;
        }
        Some((rule, self.firewall.plain_verdict(Some(rule))?))
    }

    /// Has the flow's context keep the first rule that matches a packet.
    #[inline(never)]
    fn keep(&self, fx: &mut FunctionContext<'_, '_>, frame: &Frame, rule: u32) {
        if self.contextual.is_some() && self.has_no_type(frame) {
            fx.cx.pool.keep_flow_words([self.generation, frame.info.word(), rule]);
        }
    }

    /// Reads what the flow's context says of a packet whose connection is tracked, and whether the rule is
    /// among that: one of the rules in force, found for a packet with the same bits.
    #[inline(always)]
    fn kept_connection(&self, cx: &Context<'_>, frame: &Frame) -> (Kept, bool) {
        let Some([generation, word, rule, number]) = cx.pool.flow_words() else {
            return (Kept::NOTHING, false);
        };
        let kept = Kept { connection: number.wrapping_sub(1), rule, state: state_in(word) };
        let holds = self.stateful.is_some_and(|mask| (frame.info.word() ^ word) & mask & WORD == 0);
        (kept, holds && generation == self.generation && self.has_no_type(frame))
    }

    /// Has the flow's context keep a packet's connection, and the first rule that matches while that is in
    /// this state.
    #[inline(never)]
    fn keep_connection(&self, fx: &mut FunctionContext<'_, '_>, frame: &Frame, rule: Option<u32>) {
        let Some((_, seen)) = &self.tracked else { return };
        let number = seen.connection().map_or(0, |id| id + 1);
        let generation = if self.stateful.is_some() && self.has_no_type(frame) { self.generation } else { 0 };
        let word = frame.info.word() & WORD | (seen.state as u32) << STATE_AT;
        fx.cx.pool.keep_flow_words([generation, word, rule.unwrap_or(NONE), number]);
    }

    /// Returns true if rules read nothing of a packet's ICMP header, which no key has; what has ports has
    /// none.
    #[inline(always)]
    fn has_no_type(&self, frame: &Frame) -> bool {
        !self.reads_icmp || Flags(frame.info.flags()).has(Flags::PORTS)
    }

    /// Returns true if the first rule that matches a packet follows from the packet alone.
    #[inline(always)]
    const fn depends_on_packet_alone(&self) -> bool {
        self.cache.is_none() && self.conntrack.is_none()
    }

    #[inline(always)]
    fn first_rule(&mut self, found: &Found, packet: &PacketFields) -> Option<u32> {
        if self.depends_on_packet_alone() {
            return found.first();
        }
        match self.cache {
            None => self.firewall.lookup_ahead(packet, &found.leaves),
            Some(_) => self.first_rule_by_flow(&found.key, packet),
        }
    }

    #[inline(never)]
    fn first_rule_by_flow(&mut self, key: &FlowKey, packet: &PacketFields) -> Option<u32> {
        let Some(cache) = &mut self.cache else { return self.firewall.lookup(packet) };
        let hash = key.hash64(self.seed);
        if let Some(rule) = cache.get(key, hash, packet) {
            self.cached += 1;
            return rule;
        }
        let rule = self.firewall.lookup(packet);
        cache.put(key, hash, packet, rule);
        rule
    }

    /// Notes what there is to know of a packet with this key and length on the wire.
    #[inline(always)]
    fn find(&self, cx: &Context<'_>, frame: &Frame, (key, length): (&FlowKey, u32), found: &mut Found) {
        (found.known, found.fate, found.by_context) = (true, None, false);
        found.packet = PacketFields::of(key, frame.info.word(), length);
        if self.keeps_keys {
            found.key = *key;
        }
        if let Some(conntrack) = &self.conntrack {
            let packet = Tracked::read(cx.data(frame), &frame.headers(*key));
            (found.kept, found.by_context) = self.kept_connection(cx, frame);
            match found.kept.connection {
                NONE => conntrack.prefetch_connection(&packet, conntrack.hash(&packet)),
                connection => conntrack.prefetch_known(&packet, connection),
            }
        }
    }

    #[inline(never)]
    fn look_at_any(&self, cx: &Context<'_>, frame: &Frame, found: &mut Found) {
        match any_key_of(cx, frame) {
            Some(key) => {
                self.find(cx, frame, (&key, cx.pool.meta(frame.buf).original_len), found);
                if self.reads_icmp {
                    found.packet.icmp = icmp_of(cx, frame, &key);
                }
            }
            None => (found.known, found.fate, found.by_context) = (false, None, false),
        }
    }

    /// The fields of a packet with the state of its connection.
    #[inline(never)]
    fn track_packet(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        found: &Found,
    ) -> PacketFields {
        self.tracked = self.conntrack.as_mut().map(|conntrack| {
            let (data, headers) = (fx.cx.data(first), first.headers(found.key));
            let tracked = Tracked::read(without_trailer(data, &headers), &headers);
            let mut seen = conntrack.look_up_known(&tracked, found.kept.connection, fx.cx.now);
            let verify = self.checksums.of(seen.begins(), headers.tcp_flags);
            if !is_sound(data, &headers) || verify && has_wrong_checksum(data, &headers) {
                seen.state = CtState::Invalid;
            }
            (tracked, seen)
        });
        let packet = found.packet.clone();
        match &self.tracked {
            Some((_, seen)) => packet.with_state(state_of(seen.state)),
            None => packet,
        }
    }

    /// For how many packets behind the first of a train its decision holds, where more than fields counts. Of
    /// a connection that is tracked, each must be as fit for it as the first.
    #[inline(never)]
    fn sharing_with_care(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        let shared = others.iter().take_while(|other| self.shares(cx, first, other)).count();
        let others = others.get(..shared).unwrap_or_default();
        let Some(key) = key_of(cx, first).filter(|_| self.conntrack.is_some()) else { return shared };
        let fit = |frame: &Frame| {
            let (data, headers) = (cx.data(frame), frame.headers(key));
            // If what comes before it is denied, any of them may be the one that begins the connection.
            let verify = self.checksums.of(true, headers.tcp_flags);
            is_sound(data, &headers) && !(verify && has_wrong_checksum(data, &headers))
        };
        if fit(first) { others.iter().take_while(|other| fit(other)).count() } else { 0 }
    }

    /// Looks up the first rules that match packets, and asks for what is counted of them.
    #[inline(always)]
    fn prefetch_rules(&self, found: &mut [Found]) {
        let Self { firewall, hits, .. } = self;
        firewall.lookup_together(found);
        for found in found.iter_mut().filter(|found| found.known) {
            let first = found.first();
            prefetch(first.and_then(|rule| hits.get(rule as usize)));
            found.fate = firewall.plain_verdict(first);
        }
    }

    /// Counts packets for the rules that were passed on the way.
    #[inline(never)]
    fn count_passed(&mut self, packets: u64, bytes: u64, now: Nanos) {
        for rule in std::mem::take(&mut self.passed) {
            let before = self.hits.get(rule as usize).map_or(0, |h| h.packets);
            self.hit(rule as usize, packets, bytes);
            let Some(Action::Log { one_in }) = self.firewall.rules().action(rule) else { continue };
            let one_in = u64::from(one_in.get());
            let picked = (before + packets) / one_in - before / one_in;
            self.logged_packets += picked;
            if picked > 0 {
                if self.logged.len() == LOGGED {
                    self.logged.remove(0);
                }
                self.logged.push(Logged { rule, time: now, key: self.key });
            }
        }
    }

    /// Notes connections of what may pass, and sees to it that the rest does not.
    #[inline(never)]
    fn conclude(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        fate: Fate,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        match (fate, &self.tracked, &mut self.conntrack) {
            (Fate::Allow, Some((packet, seen)), Some(conntrack)) => {
                let last = frames.last().map_or(fx.cx.now, |f| f.arrival.max(fx.cx.now));
                if conntrack.accept(packet, seen, last).is_err() {
                    verdicts.fill(Verdict::drop(DropReason::TableFull));
                }
            }
            (Fate::Allow, ..) => {}
            (Fate::Deny, ..) => verdicts.fill(Verdict::port(DENIED)),
            (Fate::Reset, ..) => {
                let key = self.key;
                let now = fx.cx.now;
                match self.datagram.take() {
                    Some(datagram) => self.reply(fx, &datagram, &key),
                    None => {
                        for frame in frames {
                            fx.cx.now = now.max(frame.arrival);
                            self.reply(fx, frame, &key);
                        }
                    }
                }
                verdicts.fill(Verdict::port(DENIED));
            }
        }
    }

    /// Decides about any packet.
    #[inline(never)]
    fn decide_any(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, found: &Found) -> Decided {
        self.passed.clear();
        let default = self.hits.len() - 1;
        if !found.known {
            self.unclassified += 1;
            let fate = if self.allow_other { Fate::Allow } else { Fate::Deny };
            self.tracked = None;
            return Decided { fate, rule: usize::MAX };
        }
        let tracked;
        let packet = if self.conntrack.is_some() {
            tracked = self.track_packet(fx, first, found);
            &tracked
        } else {
            &found.packet
        };
        let seen = self.tracked.as_ref().map(|(_, seen)| *seen);
        let rule = match seen.filter(|_| found.by_context) {
            Some(seen) if seen.state == found.kept.state => Some(found.kept.rule).filter(|r| *r != NONE),
            // It was not taken through the trees.
            Some(_) => self.firewall.lookup(packet),
            None => self.first_rule(found, packet),
        };
        if let Some(seen) = seen
            && fx.cx.pool.flows().is_some()
            && !(found.by_context
                && seen.state == found.kept.state
                && seen.connection() == Some(found.kept.connection))
        {
            self.keep_connection(fx, first, rule);
        }
        let (passed, credits, now) = (&mut self.passed, &mut self.credits, fx.cx.now);
        let decision = self.firewall.decide_within(rule, packet, |rule, action| {
            match action {
                Action::Skip { .. } => {}
                Action::Limit { limit, .. } => {
                    return credits.get_mut(*limit as usize).is_none_or(|credit| credit.take(now));
                }
                _ => passed.push(rule),
            }
            true
        });
        if decision.verdict == Fate::Reset || !self.passed.is_empty() {
            self.key = found.key;
            self.datagram = Some(*first).filter(|first| first.info.is_datagram());
        }
        let rule = decision.rule.map_or(default, |r| r as usize);
        Decided { fate: decision.verdict, rule }
    }

    #[inline]
    fn hit(&mut self, rule: usize, packets: u64, bytes: u64) {
        if let Some(hits) = self.hits.get_mut(rule) {
            hits.packets += packets;
            hits.bytes += bytes;
        }
    }
}

impl NetworkFunction for FirewallStage {
    type Decision = Decided;
    type Lookahead = Found;

    fn reads(&self) -> Reads {
        self.reads
    }

    /// Of a flow it keeps the first rule that matches its packets, the rules that this is one of, and the
    /// bits that it depends on; where connections are tracked, which may begin once rules are read anew, the
    /// number of its connection too, the same for both directions. That saves a walk through the trees, so
    /// that a look-up is worth it for this alone.
    fn flow_use(&self) -> FlowUse {
        let words = if self.cache_size == 0 { 4 } else { 0 };
        FlowUse { words, alone: words > 0, trains: Trains::Pass }
    }

    fn fragments(&self) -> Option<FragmentLimits> {
        self.whole.then_some(self.fragments)
    }

    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        // ICMP queries differ by what the flow key doesn't have.
        let differ = self.conntrack.is_some() || self.reads_icmp;
        let kind = !differ
            || Flags(first.info.flags()).has(Flags::PORTS)
                && (self.conntrack.is_none() || first.info.tcp_flags() & MOVES == 0);
        kind && self.credits.is_empty() && self.reads.agree(cx.pool, first, other)
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        if self.shares_by_fields {
            return self.reads.agreeing(cx.pool, first, others);
        }
        self.sharing_with_care(cx, first, others)
    }

    #[inline]
    fn holds_until(&self, _: &Decided, now: Nanos) -> Nanos {
        match (&self.conntrack, &self.tracked) {
            (Some(conntrack), Some((packet, seen))) => conntrack.holds_until(packet, seen, now),
            _ => Nanos::MAX,
        }
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Self::Lookahead) {
        if let Some((rule, fate)) = self.kept(cx, first) {
            prefetch(self.hits.get(rule as usize));
            (found.known, found.fate, found.by_context) = (true, Some(fate), true);
            return found.note(Some(rule));
        }
        // Most keys are short: what follows from such a one is written with fewer words.
        let (meta, data) = cx.pool.meta_and_data(first.buf, first.len);
        match fast_key_in(first.info, data) {
            Some(key) => self.find(cx, first, (&FlowKey::Narrow(key), meta.original_len), found),
            None => self.look_at_any(cx, first, found),
        }
    }

    #[inline(always)]
    fn prefetch(&mut self, _: &Context<'_>, found: &mut [Found]) {
        if self.depends_on_packet_alone() {
            // Those next to each other that contexts say nothing of go through the trees together.
            for found in found.chunk_by_mut(|a, b| a.by_context == b.by_context) {
                if found.first().is_some_and(|first| !first.by_context) {
                    self.prefetch_rules(found);
                }
            }
        } else if self.cache.is_none() {
            for found in found.chunk_by_mut(|a, b| a.by_context == b.by_context) {
                if found.first().is_some_and(|first| !first.by_context) {
                    self.firewall.walk_together(found);
                }
            }
        }
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, found: &Found) -> Decided {
        match (found.fate, found.first()) {
            // Nothing is left of the decision before: what it passed was counted when it was applied.
            (Some(fate), Some(rule)) => {
                if !found.by_context && fx.cx.pool.flows().is_some() {
                    self.keep(fx, first, rule);
                }
                Decided { fate, rule: rule as usize }
            }
            _ => self.decide_any(fx, first, found),
        }
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        // Most trains are short: the first few take no loop, whose end no processor foresees.
        let len = |n: usize| frames.get(n).map_or(0, |frame| u64::from(frame.len));
        let rest = frames.get(4..).unwrap_or_default().iter().map(|frame| u64::from(frame.len)).sum::<u64>();
        let (packets, bytes) = (frames.len() as u64, len(0) + len(1) + len(2) + len(3) + rest);
        self.hit(decided.rule, packets, bytes);
        if !self.passed.is_empty() {
            self.count_passed(packets, bytes, fx.cx.now);
        }
        if decided.fate != Fate::Allow && self.denials.is_some() {
            self.note_denied(fx.cx, frames, decided.rule);
        }
        if decided.fate != Fate::Allow || self.tracked.is_some() {
            self.conclude(fx, decided.fate, frames, verdicts);
        }
        if fx.cx.input != 0 {
            let passed = verdicts.iter_mut().filter(|v| **v == Verdict::PASS);
            passed.for_each(|verdict| *verdict = Verdict::port(BACK));
        }
    }

    fn next_deadline(&self) -> Nanos {
        self.files.as_ref().map_or(Nanos::MAX, |files| files.deadline())
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        if let Some(loaded) = self.files.as_mut().and_then(|files| files.poll(fx.cx.now)) {
            drop(self.install(loaded));
        }
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }

    fn reloads(&self) -> Option<&'static str> {
        self.files.as_ref().map(|_| "its rules")
    }

    fn reload(&mut self, now: Nanos) {
        if let Some(files) = &mut self.files {
            files.reload(now);
        }
    }
}

impl Observe for FirewallStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        if let Some(files) = &self.files {
            visit("rule_reloads", files.reloads);
            visit("rule_reload_errors", files.errors);
        }
        visit("not_ip", self.unclassified);
        visit("by_default", self.hits.last().map_or(0, |h| h.packets));
        if self.cache.is_some() {
            visit("cache_hits", self.cached);
        }
        visit("logged", self.logged_packets);
        visit("replies", self.answers);
        if let Some(conntrack) = &self.conntrack {
            let c = conntrack.counters();
            visit("connections", u64::from(conntrack.connections()));
            visit("connections_opened", c.opened);
            visit("connections_expired", c.expired);
            visit("connections_displaced", c.displaced.iter().sum());
            visit("connections_displaced_unanswered", c.displaced(Class::Unanswered));
            visit("connections_displaced_answered", c.displaced(Class::Answered));
            visit("connections_displaced_assured", c.displaced(Class::Assured));
            visit("connections_refused", c.refused);
            visit("long_probes", conntrack.long_probes());
        }
    }

    fn report(&self) -> Option<serde_json::Value> {
        let rules = self.firewall.rules();
        let hits = rules.rules().iter().zip(&self.hits).enumerate().filter(|(_, (_, h))| h.packets > 0);
        let hits: Vec<_> = hits
            .map(|(i, (rule, h))| json!({ "rule": i, "line": rule.line, "packets": h.packets, "bytes": h.bytes }))
            .collect();
        let line = |rule: u32| rules.rules().get(rule as usize).map(|r| r.line);
        let logged: Vec<_> = self
            .logged
            .iter()
            .map(|l| json!({ "line": line(l.rule), "time": l.time.to_string(), "flow": l.key.to_string() }))
            .collect();
        let mut report = json!({
            "rules": rules.rules().len(),
            "memory_bytes": self.firewall.memory(),
            "hits": hits,
            "logged": logged,
            "notes": self.notes(),
        });
        if let (Some(error), Some(all)) =
            (self.files.as_ref().and_then(|files| files.last_error.as_deref()), report.as_object_mut())
        {
            all.insert("rules_error".to_owned(), error.into());
        }
        Some(report)
    }

    fn notes(&self) -> Vec<String> {
        self.firewall.rules().notes().iter().map(ToString::to_string).collect()
    }
}

/// Type and code of ICMP or ICMPv6, as rules have them.
fn icmp_of(cx: &Context<'_>, frame: &Frame, key: &FlowKey) -> u32 {
    let expected = if key.is_ipv6() { protocol::ICMPV6 } else { protocol::ICMP };
    let at = usize::from(frame.info.l4());
    match cx.data(frame).get(at..).unwrap_or_default() {
        [kind, code, ..] if key.protocol() == expected && frame.info.flags() & Flags::FRAGMENT == 0 => {
            u32::from(*kind) << 8 | u32::from(*code)
        }
        _ => NO_ICMP,
    }
}

/// The state of a connection that a context keeps beside a packet's word.
fn state_in(word: u32) -> CtState {
    match word >> STATE_AT {
        0 => CtState::New,
        1 => CtState::Established,
        2 => CtState::Related,
        4 => CtState::Untracked,
        _ => CtState::Invalid,
    }
}

fn state_of(state: CtState) -> ConnState {
    match state {
        CtState::New => ConnState::New,
        CtState::Established => ConnState::Established,
        CtState::Related => ConnState::Related,
        CtState::Invalid => ConnState::Invalid,
        CtState::Untracked => ConnState::Untracked,
    }
}
