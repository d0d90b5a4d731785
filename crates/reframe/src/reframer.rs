//! The stage: what happens to a batch of packets.

use alloc::string::String;
use alloc::vec;
use alloc::vec::Vec;

use slipstream_wire::FlowKey;

use super::adaptive::{Adaptive, Budget, Waits};
use super::auto::Autos;
use super::block::{Block, Found};
use super::by_class::ByClass;
use super::compress::{Gro, GroStats};
use super::config::{Admit, ClassSettings, Policy, ReframeConfig};
use super::elephants::Heavy;
use super::finish::TrainFinish;
use super::flow_table::{FlowTable, NONE, is_open};
use super::hold::Hold;
use super::leaving::{Alone, Leaving};
use super::stats::{Cause, ReframeStats};
use slipstream_core::batch::{Arrivals, BATCH, Batch};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::Pool;
use slipstream_core::rules::Rule;
use slipstream_core::stage::Output;
use slipstream_core::time::Nanos;

/// Packets whose table lines are asked for ahead of use.
pub(super) const AHEAD: usize = 64;

/// The reframe stage of one worker: the fast way, for who has packets in a [`Pool`], with what was classified
/// of them. [`embed::Reframer`](crate::embed::Reframer) is the easy way.
///
/// ```
/// use slipstream_core::batch::{Arrivals, Batch};
/// use slipstream_core::frame::{Frame, Info};
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::stage::Output;
/// use slipstream_core::time::Nanos;
/// use slipstream_reframe::{Reframe, ReframeConfig};
/// use slipstream_wire::{LinkType, classify};
///
/// /// Notes how long each train is, and frees its packets.
/// struct Lengths(Vec<usize>);
///
/// impl Output for Lengths {
///     fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
///         self.0.extend(batch.iter().map(|(_, frames)| frames.len()));
///         batch.frames.iter().for_each(|frame| pool.free(frame.buf));
///         batch.clear();
///     }
/// }
///
/// // UDP from 10.0.0.1, 10.0.0.2 and again, a packet each microsecond.
/// let mut udp = [
///     0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 9,
///     0, 53, 4, 210, 0, 8, 0, 0,
/// ];
/// let (mut pool, mut arrivals, mut out) = (Pool::new(), Arrivals::default(), Lengths(Vec::new()));
/// for (at, host) in [1, 2, 1, 2, 1].into_iter().enumerate() {
///     udp[15] = host;
///     let headers = classify(LinkType::RawIp, &udp)?;
///     let buf = pool.insert(PacketMeta::default(), &udp);
///     let arrival = Nanos(1000 * at as u64);
///     let info = Info::new(&headers);
///     arrivals.frames.push(Frame { info, ..Frame::unclassified(arrival, buf, udp.len() as u32) });
///     arrivals.keys.push(headers.key);
/// }
/// let mut reframe = Reframe::new(&ReframeConfig::default())?; // 64 µs, 32 packets
/// reframe.process(&mut pool, &mut arrivals, &mut out);
/// assert_eq!(out.0, [0; 0]);
/// reframe.advance(&mut pool, Nanos(64_500), &mut out);
/// assert_eq!(out.0, [3]);
/// reframe.finish(&mut pool, &mut out);
/// assert_eq!((out.0, pool.live()), (vec![3, 2], 0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Reframe {
    pub(super) policy: Policy,
    admit_second: bool,
    bypass: Rule,
    /// The bypass rule where it is only about TCP flags, or never matches: mask and value of [`Info`].
    pub(super) bypass_info: Option<(u64, u64)>,
    class_rules: Vec<Rule>,
    /// The names of all classes, the default class's first; none where there is no other.
    names: Vec<String>,
    /// The heavy flows of each class that is about such.
    pub(super) heavy: Vec<Option<Heavy>>,
    pub(super) class_settings: Vec<ClassSettings>,
    /// Names and rules of all classes: what was learned of each counts on where they are the same.
    #[cfg(feature = "std")]
    pub(super) parted: String,
    pub(super) weighted: bool,
    /// The most frequent and fastest configuration: no classes, nothing passes but by TCP flags, trains leave
    /// as they are.
    pub(super) plain: bool,
    /// As `plain`, but that the hold may be 0 at present.
    pub(super) plain_while_held: bool,
    /// As `plain`, but that the hold is adaptive.
    pub(super) plain_adaptive: bool,
    /// Nothing is ever held, and trains leave as they are.
    pub(super) passes: bool,
    /// Everything passes by the rule of its class.
    pub(super) all_bypass: bool,
    /// Key of the last packet that has one, if nothing is ever held.
    pub(super) last_key: Option<FlowKey>,
    /// The burst of class 0.
    pub(super) burst: u16,
    pub(super) capacity: u32,
    pub(super) capacity_bytes: u64,
    pub(super) table: FlowTable,
    pub(super) hold: Hold,
    /// Waits that are learned, where the hold is adaptive.
    pub(super) adaptive: Option<Adaptive>,
    /// The hold is adaptive, and has the highest price: see [`ReframeConfig::learns`].
    at_any_price: bool,
    /// Holds that set themselves.
    pub(super) auto: Option<Autos>,
    pub(super) finish: Option<TrainFinish>,
    /// Marks super-frames in trains that leave.
    pub(super) gro: Option<Gro>,
    /// Counters of the one before, where the settings were others.
    pub(super) gro_before: Option<GroStats>,
    /// Trains that leave at `instant`, and how many packets they have.
    pub(super) leaving: Vec<Leaving>,
    pub(super) leaving_packets: u32,
    /// Their captured bytes.
    pub(super) leaving_bytes: u64,
    /// Packets that count as held but arrive only after `instant`: they were stored ahead of their time.
    pub(super) early: u32,
    /// Most packets of late joined a train.
    pub(super) joining: bool,
    /// Most packets of late had the flow of the one before them.
    pub(super) in_runs: bool,
    pub(super) instant: Nanos,
    pub(super) last_in: u32,
    pub(super) out: Batch,
    /// No packet is in any pool: their owner has the bytes, and [`Frame::len`] is the length on the wire.
    pub(super) embedded: bool,
    /// Counters of each class, if there are several.
    pub(super) by_class: ByClass,
    /// Of trains without classes.
    pub(super) alone: Alone,
    pub(super) stats: ReframeStats,
}

impl Reframe {
    /// A stage with these settings.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn new(config: &ReframeConfig) -> Result<Self, super::ConfigError> {
        Self::with_table(config, FlowTable::new(config.table_entries(), config.seed))
    }

    /// The same with this table.
    pub(super) fn with_table(config: &ReframeConfig, table: FlowTable) -> Result<Self, super::ConfigError> {
        config.validate()?;
        let mut class_settings = vec![config.default.clone()];
        class_settings.extend(config.classes.iter().map(|c| c.settings.clone()));
        let bypass_info = if config.bypass.is_never() {
            Some(Info::NOTHING)
        } else {
            config.bypass.tcp_flags_only().map(|(mask, value)| Info::of_tcp_flags(mask, value))
        };
        let finish = TrainFinish::new(config.compress_ack, config.tcp_order);
        let adaptive = config.learns().then(|| Adaptive::new(&class_settings, config.budget, config.knows));
        let fixed = matches!(config.admit, Admit::Always | Admit::Adaptive) && adaptive.is_none();
        let usual = class_settings.len() == 1
            && bypass_info.is_some()
            && finish.is_none()
            && config.default.weight == 1
            && config.default.holds();
        let plain = usual && fixed;
        let hold = Hold::new(config.capacity, class_settings.iter().map(|t| t.hold_ns));
        Ok(Self {
            policy: config.policy,
            admit_second: config.admit == Admit::Second,
            bypass: config.bypass.clone(),
            bypass_info,
            class_rules: config.classes.iter().map(|c| c.rule.clone()).collect(),
            names: config
                .class_names()
                .map(Into::into)
                .filter(|_: &String| !config.classes.is_empty())
                .collect(),
            heavy: Heavy::of_classes(config)?,
            #[cfg(feature = "std")]
            parted: Self::parted(config),
            weighted: class_settings.iter().any(|t| t.weight != 1),
            plain,
            plain_while_held: plain,
            plain_adaptive: usual && adaptive.is_some(),
            passes: class_settings.len() == 1
                && bypass_info.is_some()
                && finish.is_none()
                && config.default.hold_ns == 0
                && fixed,
            at_any_price: config.admit == Admit::Adaptive && fixed,
            all_bypass: config.default.bypass,
            last_key: None,
            burst: config.default.burst,
            capacity: config.capacity,
            capacity_bytes: config.capacity_bytes,
            table,
            hold: match &adaptive {
                Some(adaptive) => hold.with_timers(adaptive),
                None => hold,
            },
            adaptive,
            auto: Autos::new(&class_settings, config.budget),
            finish,
            gro: config.compress_gro.then(|| Gro::new(config.gro, config.gro_verify)),
            gro_before: None,
            leaving: Vec::with_capacity(BATCH),
            leaving_packets: 0,
            leaving_bytes: 0,
            early: 0,
            joining: false,
            in_runs: false,
            instant: Nanos(0),
            last_in: NONE,
            out: Batch::new(),
            embedded: false,
            by_class: ByClass::new(class_settings.len()),
            alone: Alone { hold_ns: config.default.hold_ns, trains: 0 },
            stats: ReframeStats::new(class_settings.len()),
            class_settings,
        })
    }

    /// Sizes in bytes of what an embedded stage with these settings takes, as far as that grows with them.
    pub(crate) fn embedded_memory(config: &ReframeConfig) -> impl Iterator<Item = usize> + Clone {
        let (flows, learns) = (config.table_entries(), config.learns());
        let of_flows = move |bytes: usize| (flows as usize).saturating_mul(bytes);
        let heavy = config.classes.iter().filter(|c| c.top.is_some()).map(move |_| of_flows(1) / 8);
        FlowTable::memory(flows)
            .into_iter()
            .chain(Hold::memory(config.capacity, learns))
            .chain([
                if learns { of_flows(Adaptive::BYTES) } else { 0 },
                (config.capacity as usize + 1).saturating_mul(size_of::<Leaving>()),
            ])
            .chain(heavy)
    }

    /// Sizes in bytes of what a reframer takes when it is made: the pieces of its flow table, and those for
    /// the packets that it holds. Unusual keys and packets take theirs as they come.
    #[cfg(feature = "std")]
    pub(crate) fn memory(config: &ReframeConfig) -> ([usize; 2], [usize; 3]) {
        let [index, entries, _] = FlowTable::memory(config.table_entries());
        let [trains, chunks, _, timers] = Hold::memory(config.capacity, config.learns());
        ([index, entries], [trains, chunks, timers])
    }

    /// From now on the packets are in no pool, and their lengths are those on the wire. All memory is taken
    /// now.
    pub(crate) fn embed(&mut self) {
        self.embedded = true;
        self.table.reserve_all();
        self.hold.reserve_all();
        self.leaving.reserve_exact(self.capacity as usize + 1);
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.reserve_all(self.table.limit());
        }
        self.heavy.iter_mut().flatten().for_each(|heavy| heavy.reserve_all(self.table.limit()));
        for (class, settings) in self.stats.classes.iter_mut().zip(&self.class_settings) {
            class.delay.reserve(settings.hold_ns);
        }
    }

    /// Packets that are inside.
    pub(crate) fn held(&self) -> u32 {
        self.hold.packets() + self.leaving_packets
    }

    /// The first time by which something will have left, if no packet comes; [`Nanos::MAX`] when nothing is
    /// inside. Packets that come when a train is due, and not later, may still join what leaves then.
    #[must_use]
    pub fn next_release(&self) -> Nanos {
        if self.leaving.is_empty() { self.hold.due().after(1) } else { self.instant.after(1) }
    }

    /// The time at which the next held train is due; [`Nanos::MAX`] when none is held.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.hold.due()
    }

    /// Trains that packets came as: runs of one flow, and packets without a flow.
    #[must_use]
    pub fn trains_in(&self) -> u64 {
        self.stats.runs_in + self.stats.unclassified
    }

    /// The names of all classes, the default class's first; none where there is no other.
    #[must_use]
    pub fn class_names(&self) -> &[String] {
        &self.names
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> ReframeStats {
        let mut stats = self.stats.clone();
        stats.held_max = self.hold.peak();
        stats.held = self.hold.packets() + self.leaving_packets;
        stats.packets_out += self.out.frames.len() as u64;
        stats.flow_evictions = self.table.evictions();
        stats.long_probes = self.table.long_probes();
        stats.auto = self.auto.as_ref().map(Autos::stats).unwrap_or_default();
        stats.gro = self.gro.as_ref().map(Gro::stats).or_else(|| self.gro_before.clone());
        stats.heavy_flows = self.heavy.iter().map(|heavy| heavy.as_ref().map(Heavy::flows)).collect();
        stats.prices_ns = match &self.adaptive {
            Some(adaptive) => adaptive.prices().collect(),
            None if self.at_any_price => vec![Budget::MAX_PRICE_NS; self.class_settings.len()],
            None => Vec::new(),
        };
        self.by_class.tell(&mut stats);
        let leaving = self.leaving.iter().map(|l| self.hold.train(l.train)).map(|t| (t.class, t.count));
        let mut held = self.hold.by_class();
        for (class, count) in leaving {
            if let Some(n) = held.get_mut(class as usize) {
                *n += u64::from(count);
            }
        }
        if let Some(class) = stats.classes.first_mut() {
            class.trains_of_one_at_deadline(self.alone.hold_ns, self.alone.trains);
        }
        for (class, held) in stats.classes.iter_mut().zip(held) {
            class.packets_in = class.packets_out + class.packets_coalesced + held;
        }
        stats
    }

    /// Takes packets in the order of their arrival. Every deadline at or before an arrival fires before it,
    /// at its own time.
    pub fn process(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, out: &mut dyn Output) {
        let mut hashes = [0u64; AHEAD];
        let mut candidates = [NONE; AHEAD];
        self.stats.packets_in += arrivals.frames.len() as u64;
        if self.passes && !self.embedded {
            self.pass_all(pool, arrivals, out);
            return arrivals.clear();
        }
        let mut first = arrivals.first;
        let mut positions = arrivals.positions.as_slice();
        for (frames, keys) in arrivals.frames.chunks(AHEAD).zip(arrivals.keys.as_slice().chunks(AHEAD)) {
            let passed = if self.may_stand_aside() {
                self.pass_while_aside(pool, frames, keys, first, positions, out)
            } else {
                0
            };
            first += passed as u64;
            positions = positions.get(passed..).unwrap_or_default();
            let (frames, keys) = (frames.get(passed..).unwrap_or_default(), keys.after(passed));
            let (hashes, candidates) = (hashes.get_mut(..keys.len()), candidates.get_mut(..keys.len()));
            let (Some(hashes), Some(candidates)) = (hashes, candidates) else { break };
            let begins = if self.in_runs {
                self.table.look_ahead_in_runs(keys, hashes, candidates)
            } else {
                self.table.look_ahead(keys, hashes, candidates);
                u64::MAX
            };
            if (self.plain || self.plain_adaptive) && candidates.contains(&NONE) {
                self.admit(frames, keys, hashes, candidates);
            }
            let (here, later) = positions.split_at_checked(keys.len()).unwrap_or_default();
            let block = Block { frames, keys, hashes, candidates, begins, first, positions: here };
            if let Some(adaptive) = &mut self.adaptive {
                adaptive.cover(self.table.len());
                adaptive.prefetch(block.candidates);
                self.block_of_adaptive(pool, &block, out);
            } else {
                self.block(pool, &block, out);
            }
            first += keys.len() as u64;
            positions = later;
        }
        arrivals.clear();
        self.hold.settle();
        self.flush(pool, out);
    }

    fn block(&mut self, pool: &mut Pool, block: &Block<'_>, out: &mut dyn Output) {
        let mut at = 0;
        while at < block.frames.len() {
            if self.plain && self.may_go_fast(block, at) {
                let whole = block;
                let block = &self.before_tuning(block, at);
                // While trains are long, a packet most likely joins one; while they are short, it opens one.
                let end = if self.in_runs {
                    self.fast_runs(block, at)
                } else if self.joining {
                    self.fast_run::<true>(block, at)
                } else {
                    self.fast_run::<false>(block, at)
                };
                self.shadow(block, at..end);
                let block = whole;
                self.hold_fast(pool, block, at..end, out);
                at = end;
            }
            let Some((frame, found)) = block.found(at) else { break };
            self.packet::<false>(pool, frame, found, out);
            at += 1;
        }
    }

    /// Lets time pass to `now`: what is due before it leaves at its own time. What leaves at `now` itself may
    /// still be joined by packets that arrive at `now`.
    pub fn advance(&mut self, pool: &mut Pool, now: Nanos, out: &mut dyn Output) {
        if now > self.instant && self.plain {
            self.catch_up(pool, &[], now, out);
        } else if now > self.instant {
            self.run_to(pool, now, out);
            self.hold.settle();
        }
        self.flush(pool, out);
    }

    /// After the last arrival: time runs on until everything held has left at its own deadline.
    pub fn finish(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        self.run_to(pool, Nanos::MAX, out);
        self.emit_leaving(pool, out);
        self.flush(pool, out);
    }

    /// Shutdown: everything held leaves now.
    pub fn drain(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        while let Some(train) = self.hold.oldest() {
            self.leave(train, Cause::Drain);
        }
        self.emit_leaving(pool, out);
        self.flush(pool, out);
    }

    /// Time moves on to `now`, which is later than the instant so far.
    #[inline(never)]
    pub(super) fn run_to(&mut self, pool: &mut Pool, now: Nanos, out: &mut dyn Output) {
        loop {
            if self.hold.due() <= now {
                self.hold.settle();
            }
            let due = self.hold.due();
            let next = due.min(now);
            if next > self.instant {
                self.emit_leaving(pool, out);
                self.instant = next;
            }
            if due > now {
                break;
            }
            let Some(train) = self.hold.first_due() else { break };
            self.leave(train, Cause::Deadline);
        }
    }

    /// Any packet under any setting; [`Reframe::hold_fast`] does the same for most of them, faster.
    pub(super) fn packet<const ADAPTIVE: bool>(
        &mut self,
        pool: &mut Pool,
        mut frame: Frame,
        found: Found<'_>,
        out: &mut dyn Output,
    ) {
        if frame.arrival > self.instant {
            if self.hold.due() > frame.arrival && self.leaving.is_empty() {
                self.instant = frame.arrival;
            } else {
                self.run_to(pool, frame.arrival, out);
            }
        }
        if self.auto.as_ref().is_some_and(|auto| auto.ends() <= frame.arrival) {
            self.tune(pool, out);
        }
        if !frame.info.classified() {
            self.stats.unclassified += 1;
            frame.flow = Frame::NO_FLOW;
            self.emit_single(pool, &frame, 0, found.sequence, out);
            return;
        }
        let known = (found.hash, found.candidate);
        let (id, new) = self.table.entry_of(found.keys, found.kept, known, self.instant);
        frame.flow = id;
        frame.hash = (found.hash >> 32) as u32;
        let begins = new || id != self.last_in;
        self.stats.runs_in += u64::from(begins);
        self.last_in = id;
        let entry = self.table.get_mut(id);
        let train = entry.train;
        if new && let Some(finish) = &mut self.finish {
            finish.forget(id);
        }
        let mut class = 0;
        if !self.class_rules.is_empty() {
            class = self.classed(pool, &frame, &found, (new, begins), out);
        }
        let Some(&ClassSettings { hold_ns, burst, bypass, .. }) = self.class_settings.get(class as usize)
        else {
            return;
        };
        if let Some(auto) = &mut self.auto {
            auto.packet(class, found.hash, self.instant);
        }
        let waits = if ADAPTIVE { self.observe(pool, &frame, new, class) } else { Waits::NONE };
        let bypass = bypass || self.bypasses(pool, &frame, &found) || (new && self.admit_second);
        // A packet alone that is not worth waiting for need not be held first.
        let alone = ADAPTIVE && !is_open(train) && waits.of(1) == 0;
        if bypass || hold_ns == 0 || burst == 1 || alone {
            let cause = match (bypass, burst) {
                (true, _) => Cause::Bypass,
                (false, 1) => Cause::Full,
                (false, _) => Cause::Deadline,
            };
            self.table.get_mut(id).count(1);
            self.pass(pool, &frame, class, train, cause, found.sequence, out);
            return;
        }
        self.keep(pool, &frame, class, train, burst, found.sequence, out);
        if ADAPTIVE {
            self.wait(id, waits);
        }
    }

    /// Holds a packet.
    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "one packet with all that was found out about it")]
    fn keep(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        class: u8,
        mut train: u32,
        burst: u16,
        sequence: u64,
        out: &mut dyn Output,
    ) {
        if is_open(train) && self.hold.train(train).class != class {
            self.leave(train, Cause::Bypass);
            self.emit_leaving(pool, out);
            train = NONE;
        }
        let bytes = self.hold.bytes() + self.leaving_bytes + u64::from(frame.len);
        if self.hold.packets() + self.leaving_packets >= self.capacity || bytes > self.capacity_bytes {
            self.make_room(pool, frame.len, out);
            train = self.table.get_mut(frame.flow).train;
        }
        self.hold.grow();
        self.hold.count(1, u64::from(frame.len));
        self.by_class.keep(class);
        if !is_open(train) {
            let train = self.hold.open(class, sequence, *frame);
            self.table.get_mut(frame.flow).train = train;
        } else if self.hold.append(train, frame) >= burst {
            self.leave(train, Cause::Full);
        }
    }

    /// The stage is full: what leaves anyway goes first, then the oldest trains.
    #[cold]
    fn make_room(&mut self, pool: &mut Pool, len: u32, out: &mut dyn Output) {
        self.emit_leaving(pool, out);
        while self.hold.packets() >= self.capacity
            || (self.hold.bytes() + u64::from(len) > self.capacity_bytes && self.hold.packets() > 0)
        {
            let Some(oldest) = self.hold.oldest() else { break };
            self.leave(oldest, Cause::Capacity);
            self.emit_leaving(pool, out);
        }
    }

    #[inline(always)]
    fn bypasses(&self, pool: &Pool, frame: &Frame, found: &Found<'_>) -> bool {
        match self.bypass_info {
            Some(bits) => frame.info.is(bits),
            None => self.bypass.matches(&frame.headers(found.key()), self.wire_len(pool, frame)),
        }
    }

    /// The class of a packet, which begins a run or not.
    #[inline(never)]
    fn classed(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        found: &Found<'_>,
        (new, begins): (bool, bool),
        out: &mut dyn Output,
    ) -> u8 {
        let class = self.class_of(pool, frame, found, new);
        self.by_class.came(&mut self.stats, class, begins);
        // Of two trains of a flow that leave at this instant, the later one may weigh more.
        if self.weighted && self.table.get_mut(frame.flow).leaves_from_other(class) {
            self.emit_leaving(pool, out);
        }
        class
    }

    fn class_of(&mut self, pool: &Pool, frame: &Frame, found: &Found<'_>, new: bool) -> u8 {
        let (headers, len) = (frame.headers(found.key()), self.wire_len(pool, frame));
        if !self.heavy.is_empty() {
            return self.class_or_heavy(frame.flow, new, |rule| rule.matches(&headers, len));
        }
        let found = self.class_rules.iter().position(|rule| rule.matches(&headers, len));
        found.map_or(0, |i| i as u8 + 1)
    }

    /// The same where some classes are about heavy flows. They count the packets that no class before has
    /// taken.
    #[inline]
    fn class_or_heavy(&mut self, flow: u32, new: bool, matches: impl Fn(&Rule) -> bool) -> u8 {
        if new {
            self.heavy.iter_mut().flatten().for_each(|heavy| heavy.new_flow(flow));
        }
        let mut classes = self.class_rules.iter().zip(&mut self.heavy);
        let found = classes
            .position(|(rule, heavy)| matches(rule) && heavy.as_mut().is_none_or(|heavy| heavy.packet(flow)));
        found.map_or(0, |i| i as u8 + 1)
    }

    pub(super) fn wire_len(&self, pool: &Pool, frame: &Frame) -> u32 {
        wire_len(self.embedded, pool, frame)
    }
}

/// The length of a packet on the wire.
#[inline(always)]
pub(super) fn wire_len(embedded: bool, pool: &Pool, frame: &Frame) -> u32 {
    if embedded { frame.len } else { pool.meta(frame.buf).original_len }
}
