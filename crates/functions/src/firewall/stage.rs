//! The firewall in a pipeline.

use slipstream_wire::{Flags, FlowKey, NarrowKey, protocol};

use super::ahead::{Found, Kept};
use super::cache::DecisionCache;
use super::limit::Credit;
use super::reload::{Files, Loaded};
use super::{Firewall, Verdict as Fate};
use crate::answer::{ip_packet, link_of, send_back};
use crate::conntrack::{Conntrack, ConntrackConfig, CtState, Seen, Tracked};
use crate::icmp;
use crate::icmp::Message;
use crate::tcp_state::MOVES;
use crate::{FragmentLimits, FunctionContext, NetworkFunction, RateLimiter};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::Frame;
use slipstream_core::operate::Operate;
use slipstream_core::packet::fast_key_in;
use slipstream_core::pool::Lengths;
use slipstream_core::prefetch::prefetch;
use slipstream_core::reads::Reads;
use slipstream_core::stage::{Context, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;

#[path = "decide.rs"]
mod decide;
#[path = "observe.rs"]
mod observe;
#[path = "operate.rs"]
mod operate;

use operate::Denials;
pub(super) use operate::FirewallUpdate;
/// The bits of a packet's word; above them stands the state of its connection.
const WORD: u32 = (1 << STATE_AT) - 1;
const STATE_AT: u32 = 24;

/// In place of a rule: no rule could be asked; see [`Found::hidden`].
const HIDDEN: usize = usize::MAX - 1;

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
    /// Packets whose protocol no extension header led to.
    hidden: u64,
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
            hidden: 0,
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
        if !self.limiter.would_allow(1, fx.cx.now) {
            return;
        }
        let (packet, link) = (ip_packet(fx.cx, frame), link_of(fx.cx, frame));
        let made = if key.protocol() == protocol::TCP {
            let Lengths { elsewhere, .. } = fx.cx.pool.lengths(frame.buf, frame.len);
            icmp::reset(packet, elsewhere, link, &mut self.answer)
        } else {
            icmp::answer(Message::AdminProhibited, packet, link, key.dst(), &mut self.answer)
        };
        // A packet that gets no answer takes none from others.
        if made.is_ok() && self.limiter.allow(1, fx.cx.now) {
            self.answers += 1;
            // Whoever sends to the second input port is where the first output port leads to.
            let port = if fx.cx.input == 0 { REPLIES } else { 0 };
            send_back(fx, frame, &self.answer, port);
        }
    }

    /// The place of the first rule that matches a packet, and the verdict about it, if the flow's context
    /// says so: a rule that decides, of the rules that are in force, or none of them, found for a packet with
    /// the same bits.
    #[inline(always)]
    fn kept(&self, cx: &Context<'_>, frame: &Frame) -> Option<(u32, Fate)> {
        let mask = self.contextual?;
        let [generation, word, place] = cx.pool.flow_words()?;
        let differs = (frame.info.word() ^ word) & mask != 0;
        if generation != self.generation || differs || !self.has_no_type(frame) {
            return None;
        }
        Some((place, self.firewall.plain_verdict(place)?))
    }

    /// Has the flow's context keep the place of the first rule that matches a packet.
    #[inline(never)]
    fn keep(&self, fx: &mut FunctionContext<'_, '_>, frame: &Frame, place: u32) {
        if self.contextual.is_some() && self.has_no_type(frame) {
            fx.cx.pool.keep_flow_words([self.generation, frame.info.word(), place]);
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
        if !first.info.classified() {
            return 0;
        }
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
        if let Some((place, fate)) = self.kept(cx, first) {
            prefetch(self.hits.get(place as usize));
            (found.known, found.fate, found.by_context) = (true, Some(fate), true);
            return found.note(Some(place));
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
        let Some(fate) = found.fate else { return self.decide_any(fx, first, found) };
        // Nothing is left of the decision before: what it passed was counted when it was applied.
        let place = self.firewall.place(found.first());
        if !found.by_context && fx.cx.pool.flows().is_some() {
            self.keep(fx, first, place);
        }
        Decided { fate, rule: place as usize }
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        // As on the wire, whatever of a packet was captured, and wherever its payload waits.
        let on_wire = |frame: &Frame| u64::from(fx.cx.pool.meta(frame.buf).original_len);
        // Most trains are short: the first few take no loop, whose end no processor foresees.
        let len = |n: usize| frames.get(n).map_or(0, on_wire);
        let rest = frames.get(4..).unwrap_or_default().iter().map(on_wire).sum::<u64>();
        let (packets, bytes) = (frames.len() as u64, len(0) + len(1) + len(2) + len(3) + rest);
        self.hit(decided.rule, packets, bytes);
        if !self.passed.is_empty() {
            self.count_passed(packets, bytes, fx.cx.now);
        }
        if decided.fate != Fate::Allow && self.denials.is_some() {
            self.note_denied(fx.cx, frames, decided.rule);
        }
        if decided.fate != Fate::Allow || self.tracked.is_some() {
            if decided.rule == HIDDEN {
                self.hidden += packets;
            }
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
