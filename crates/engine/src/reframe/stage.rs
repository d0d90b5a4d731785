//! The stage: what happens to a batch of packets.

use slipstream_wire::FlowKey;

use super::config::{Admit, Policy, ReframeConfig, Treatment};
use super::finish::TrainFinish;
use super::flow_table::{FlowTable, NONE};
use super::hold::Hold;
use super::stats::{Cause, ReframeStats};
use crate::batch::{Arrivals, BATCH, Batch, Train};
use crate::frame::Frame;
use crate::pool::Pool;
use crate::rules::Rule;
use crate::time::Nanos;

/// Takes what a stage emits.
pub trait Output {
    /// Takes the batch's packets, whose buffers it now owns, and leaves the batch empty.
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch);
}

/// Packets whose table lines are asked for ahead of use.
const AHEAD: usize = 64;

/// How far ahead the place of a packet in its train is asked for.
const PLACES: usize = 4;

/// A train that leaves at the current instant and waits for its place among the others.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    order: u64,
    sequence: u64,
    train: u32,
    flow: u32,
    cause: Cause,
}

/// Trains of one packet that left at their deadline: all waited exactly as long, so that one counter says everything.
#[derive(Clone, Copy, Debug)]
struct Alone {
    hold_ns: u64,
    trains: u64,
}

/// What is known of a packet before its turn comes.
#[derive(Clone, Copy, Debug)]
struct Found<'a> {
    key: &'a FlowKey,
    hash: u64,
    candidate: u32,
    sequence: u64,
}

/// The reframe stage of one worker.
#[derive(Debug)]
pub struct Reframe {
    policy: Policy,
    admit_second: bool,
    bypass: Rule,
    /// The bypass rule where it is only about TCP flags: mask and value.
    bypass_flags: Option<(u8, u8)>,
    class_rules: Vec<Rule>,
    treatments: Vec<Treatment>,
    weighted: bool,
    /// No classes, nothing passes but by the bypass rule, and this is the one burst.
    plain: bool,
    burst: u16,
    capacity: u32,
    capacity_bytes: u64,
    table: FlowTable,
    hold: Hold,
    finish: Option<TrainFinish>,
    /// Trains that leave at `instant`, and how many packets they have.
    leaving: Vec<Leaving>,
    leaving_packets: u32,
    instant: Nanos,
    last_in: u32,
    out: Batch,
    /// One a class.
    alone: Vec<Alone>,
    stats: ReframeStats,
}

impl Reframe {
    /// A stage with these settings.
    ///
    /// # Errors
    /// The first setting that is out of range.
    pub fn new(config: &ReframeConfig) -> Result<Self, super::ConfigError> {
        config.validate()?;
        let mut treatments = vec![config.default.clone()];
        treatments.extend(config.classes.iter().map(|c| c.treatment.clone()));
        Ok(Self {
            policy: config.policy,
            admit_second: config.admit == Admit::Second,
            bypass: config.bypass.clone(),
            bypass_flags: config.bypass.tcp_flags_only(),
            class_rules: config.classes.iter().map(|c| c.rule.clone()).collect(),
            weighted: treatments.iter().any(|t| t.weight != 1),
            plain: treatments.len() == 1
                && config.default.hold_ns > 0
                && config.default.burst > 1
                && !config.default.bypass
                && config.admit == Admit::Always,
            burst: config.default.burst,
            capacity: config.capacity,
            capacity_bytes: config.capacity_bytes,
            table: FlowTable::new(config.table_entries(), config.seed),
            hold: Hold::new(config.capacity, treatments.iter().map(|t| t.hold_ns)),
            finish: TrainFinish::new(config.compress_ack, config.tcp_order),
            leaving: Vec::with_capacity(BATCH),
            leaving_packets: 0,
            instant: Nanos(0),
            last_in: NONE,
            out: Batch::new(),
            alone: treatments.iter().map(|t| Alone { hold_ns: t.hold_ns, trains: 0 }).collect(),
            stats: ReframeStats::new(treatments.len()),
            treatments,
        })
    }

    /// When the next held train is due; [`Nanos::MAX`] when none is held.
    #[must_use]
    pub fn next_deadline(&self) -> Nanos {
        self.hold.due()
    }

    /// As [`Reframe::next_deadline`], but also when what is on its way out at the current instant, which packets of that
    /// instant may still join, must have left.
    #[must_use]
    pub fn next_event(&self) -> Nanos {
        if self.leaving.is_empty() { self.hold.due() } else { self.instant.after(1) }
    }

    /// The counters so far.
    #[must_use]
    pub fn stats(&self) -> ReframeStats {
        let mut stats = self.stats.clone();
        stats.held = self.hold.packets() + self.leaving_packets;
        stats.packets_out += self.out.frames.len() as u64;
        stats.flow_evictions = self.table.evictions();
        let leaving = self.leaving.iter().map(|l| self.hold.train(l.train)).map(|t| (t.class, t.count));
        let mut held = self.hold.by_class();
        for (class, count) in leaving {
            if let Some(n) = held.get_mut(class as usize) {
                *n += u64::from(count);
            }
        }
        for (class, alone) in stats.classes.iter_mut().zip(&self.alone) {
            class.trains_of_one_at_deadline(alone.hold_ns, alone.trains);
        }
        for (class, held) in stats.classes.iter_mut().zip(held) {
            class.packets_in = class.packets_out + class.packets_coalesced + held;
        }
        stats
    }

    /// Takes packets in the order of their arrival. Every deadline at or before an arrival fires before it, at its
    /// own time.
    pub fn process(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, out: &mut dyn Output) {
        if self.plain {
            self.process_all::<true>(pool, arrivals, out);
        } else {
            self.process_all::<false>(pool, arrivals, out);
        }
    }

    /// `PLAIN`: every classified packet that is not bypassed is held, all in one way.
    fn process_all<const PLAIN: bool>(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        out: &mut dyn Output,
    ) {
        let mut hashes = [0u64; AHEAD];
        let mut candidates = [NONE; AHEAD];
        self.stats.packets_in += arrivals.frames.len() as u64;
        let mut position = arrivals.first;
        let Arrivals { frames, keys, positions, .. } = arrivals;
        let mut positions = positions.iter();
        for (frames, keys) in frames.chunks(AHEAD).zip(keys.chunks(AHEAD)) {
            for (key, hash) in keys.iter().zip(&mut hashes) {
                *hash = self.table.hash(key);
                self.table.prefetch_index(*hash);
            }
            for (hash, candidate) in hashes.iter().zip(&mut candidates).take(keys.len()) {
                *candidate = self.table.candidate(*hash);
            }
            // Where trains are long, a packet most likely joins one; where they are short, it opens one.
            let joins = if self.hold.packets() >= 2 * self.hold.trains() { keys.len() } else { 0 };
            let joining = candidates.get(..joins).unwrap_or_default();
            for &candidate in joining {
                self.hold.prefetch(self.table.train_of(candidate));
            }
            let mut coming = joining.get(PLACES..).unwrap_or_default().iter();
            let ahead = hashes.iter().zip(&candidates);
            for ((frame, key), (&hash, &candidate)) in frames.iter().zip(keys).zip(ahead) {
                if let Some(&candidate) = coming.next() {
                    self.hold.prefetch_place(self.table.train_of(candidate));
                }
                let sequence = positions.next().copied().unwrap_or(position);
                self.packet::<PLAIN>(pool, *frame, Found { key, hash, candidate, sequence }, out);
                position += 1;
            }
        }
        arrivals.clear();
        self.flush(pool, out);
    }

    /// Lets time pass to `now`: what is due before it leaves at its own time. What leaves at `now` itself may still be
    /// joined by packets that arrive at `now`.
    pub fn advance(&mut self, pool: &mut Pool, now: Nanos, out: &mut dyn Output) {
        if now > self.instant {
            self.run_to(pool, now, out);
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
    fn run_to(&mut self, pool: &mut Pool, now: Nanos, out: &mut dyn Output) {
        self.pass_time(pool, now, out);
    }

    #[inline(always)]
    fn pass_time(&mut self, pool: &mut Pool, now: Nanos, out: &mut dyn Output) {
        loop {
            let due = self.hold.due();
            let next = due.min(now);
            if next > self.instant {
                match self.leaving.as_slice() {
                    [] => {}
                    [one] => {
                        let one = *one;
                        self.leaving.clear();
                        self.leaving_packets = 0;
                        self.emit_train(pool, one, out);
                    }
                    _ => self.emit_group(pool, out),
                }
                self.instant = next;
            }
            if due > now {
                break;
            }
            let Some(train) = self.hold.first_due() else { break };
            self.leave(train, Cause::Deadline);
        }
    }

    #[inline(always)]
    fn packet<const PLAIN: bool>(
        &mut self,
        pool: &mut Pool,
        mut frame: Frame,
        found: Found<'_>,
        out: &mut dyn Output,
    ) {
        if frame.arrival > self.instant {
            if self.hold.due() > frame.arrival && self.leaving.is_empty() {
                self.instant = frame.arrival;
            } else if PLAIN {
                self.pass_time(pool, frame.arrival, out);
            } else {
                self.run_to(pool, frame.arrival, out);
            }
        }
        if !frame.info.classified() {
            self.stats.unclassified += 1;
            frame.flow = Frame::NO_FLOW;
            self.emit_single(pool, &frame, found.sequence, out);
            return;
        }
        let Self { table, leaving, .. } = self;
        let busy = |id| leaving.iter().any(|l| l.flow == id);
        let (id, new) = table.entry(found.key, found.hash, found.candidate, self.instant, busy);
        frame.flow = id;
        frame.hash = (found.hash >> 32) as u32;
        self.stats.runs_in += u64::from(new || id != self.last_in);
        self.last_in = id;
        let entry = self.table.get_mut(id);
        entry.count_packet();
        let train = entry.train;
        if new && let Some(finish) = &mut self.finish {
            finish.forget(id);
        }
        if PLAIN {
            if self.bypasses(pool, &frame, found.key) {
                self.pass(pool, &frame, 0, train, Cause::Bypass, found.sequence, out);
            } else {
                self.keep(pool, &frame, 0, train, self.burst, found.sequence, out);
            }
            return;
        }
        let class = if self.class_rules.is_empty() { 0 } else { self.class_of(pool, &frame, found.key) };
        let Some(&Treatment { hold_ns, burst, bypass, .. }) = self.treatments.get(class as usize) else {
            return;
        };
        let bypass = bypass || self.bypasses(pool, &frame, found.key) || (new && self.admit_second);
        if bypass || hold_ns == 0 || burst == 1 {
            let cause = match (bypass, burst) {
                (true, _) => Cause::Bypass,
                (false, 1) => Cause::Full,
                (false, _) => Cause::Deadline,
            };
            self.pass(pool, &frame, class, train, cause, found.sequence, out);
            return;
        }
        self.keep(pool, &frame, class, train, burst, found.sequence, out);
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
        if train != NONE && self.hold.train(train).class != class {
            self.leave(train, Cause::Bypass);
            self.emit_leaving(pool, out);
            train = NONE;
        }
        let bytes = self.hold.bytes() + u64::from(frame.len);
        if self.hold.packets() + self.leaving_packets >= self.capacity || bytes > self.capacity_bytes {
            self.make_room(pool, frame.len, out);
            train = self.table.get_mut(frame.flow).train;
        }
        if train == NONE {
            let train = self.hold.open(class, sequence, frame);
            self.table.get_mut(frame.flow).train = train;
        } else if self.hold.append(train, frame) >= burst {
            self.leave(train, Cause::Full);
            return;
        }
        self.stats.held_max = self.stats.held_max.max(self.hold.packets());
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

    /// Lets a packet pass at once, behind what its flow has inside.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "one packet with all that was found out about it")]
    fn pass(
        &mut self,
        pool: &mut Pool,
        frame: &Frame,
        class: u8,
        train: u32,
        cause: Cause,
        sequence: u64,
        out: &mut dyn Output,
    ) {
        if train != NONE {
            self.leave(train, Cause::Bypass);
        }
        self.emit_leaving(pool, out);
        if let Some(finish) = &mut self.finish {
            finish.observe(pool, frame);
        }
        if let Some(stats) = self.stats.classes.get_mut(class as usize) {
            stats.packets_out += 1;
            stats.packets_bypassed += u64::from(cause == Cause::Bypass);
            stats.train(cause, 1);
            stats.delay.record(0);
        }
        self.emit_single(pool, frame, sequence, out);
    }

    fn emit_single(&mut self, pool: &mut Pool, frame: &Frame, sequence: u64, out: &mut dyn Output) {
        if self.out.frames.len() + 1 > BATCH {
            self.flush(pool, out);
        }
        let classified = frame.info.classified();
        let continues = classified && self.table.continues(frame.flow);
        self.stats.runs_out += u64::from(classified && !continues);
        let start = self.out.frames.len() as u32;
        self.out.frames.push(*frame);
        let (flow, release) = (frame.flow, self.instant);
        self.out.trains.push(Train { flow, start, len: 1, release, order: 0, sequence, continues });
    }

    /// Takes a train from its list: it leaves at the current instant.
    #[inline(always)]
    fn leave(&mut self, train: u32, cause: Cause) {
        let slot = self.hold.unlink(train);
        let entry = self.table.get_mut(slot.flow);
        entry.train = NONE;
        let order = match self.policy {
            Policy::Oldest => entry.first_seen.0,
            Policy::Waiting => slot.base().0,
            Policy::Shortest => u64::from(entry.packets()) << 32,
        };
        let weight =
            if self.weighted { self.treatments.get(slot.class as usize).map_or(1, |t| t.weight) } else { 0 };
        let order = match (weight, self.policy) {
            (0, _) => order,
            (weight, Policy::Shortest) => order / u64::from(weight),
            (weight, _) => u64::MAX - self.instant.since(Nanos(order)).saturating_mul(u64::from(weight)),
        };
        self.leaving_packets += u32::from(slot.count);
        self.leaving.push(Leaving { order, sequence: slot.sequence, train, flow: slot.flow, cause });
    }

    /// Emits what leaves at the current instant, in the order of the policy.
    #[inline(always)]
    fn emit_leaving(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if !self.leaving.is_empty() {
            self.emit_group(pool, out);
        }
    }

    #[inline(never)]
    fn emit_group(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if self.leaving.len() > 1 {
            self.leaving.sort_unstable_by_key(|l| (l.order, l.sequence));
        }
        let mut at = 0;
        while let Some(&leaving) = self.leaving.get(at) {
            self.emit_train(pool, leaving, out);
            at += 1;
        }
        self.leaving.clear();
        self.leaving_packets = 0;
    }

    #[inline(always)]
    fn emit_train(&mut self, pool: &mut Pool, leaving: Leaving, out: &mut dyn Output) {
        let Leaving { order, sequence, train, flow, cause } = leaving;
        let slot = self.hold.train(train);
        let (class, count, base) = (slot.class, usize::from(slot.count), slot.base());
        if self.out.frames.len() + count > BATCH {
            self.flush(pool, out);
        }
        let release = self.instant;
        if count == 1
            && cause == Cause::Deadline
            && self.finish.is_none()
            && let Some(alone) = self.alone.get_mut(class as usize)
            && alone.hold_ns == release.since(base)
        {
            alone.trains += 1;
            let start = self.out.frames.len() as u32;
            self.out.frames.push(self.hold.close_single(train));
            let continues = self.table.continues(flow);
            self.stats.runs_out += u64::from(!continues);
            self.out.trains.push(Train { flow, start, len: 1, release, order, sequence, continues });
            return;
        }
        let Some(stats) = self.stats.classes.get_mut(class as usize) else { return };
        stats.train(cause, count);
        let start = self.out.frames.len();
        let frames = &mut self.out.frames;
        self.hold.close(train, |frame| {
            stats.delay.record(release.since(frame.arrival));
            frames.push(frame);
        });
        if count == 1 {
            let waited = release.since(base);
            stats.futile_wait_ns += waited;
            stats.futile_trains += u64::from(waited > 0);
        }
        if let Some(finish) = &mut self.finish {
            stats.packets_coalesced += finish.finish(pool, frames, start) as u64;
        }
        let len = frames.len() - start;
        stats.packets_out += len as u64;
        let continues = self.table.continues(flow);
        self.stats.runs_out += u64::from(!continues);
        let (start, len) = (start as u32, len as u32);
        self.out.trains.push(Train { flow, start, len, release, order, sequence, continues });
    }

    #[inline(never)]
    fn flush(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if !self.out.is_empty() {
            self.stats.packets_out += self.out.frames.len() as u64;
            out.emit(pool, &mut self.out);
            self.out.clear();
        }
    }

    #[inline(always)]
    fn bypasses(&self, pool: &Pool, frame: &Frame, key: &FlowKey) -> bool {
        match self.bypass_flags {
            Some((mask, value)) => frame.info.is_tcp() && frame.info.tcp_flags() & mask == value,
            None => {
                !self.bypass.is_never() && self.bypass.matches(&frame.headers(*key), wire_len(pool, frame))
            }
        }
    }

    fn class_of(&self, pool: &Pool, frame: &Frame, key: &FlowKey) -> u8 {
        let (headers, len) = (frame.headers(*key), wire_len(pool, frame));
        let found = self.class_rules.iter().position(|rule| rule.matches(&headers, len));
        found.map_or(0, |i| i as u8 + 1)
    }
}

fn wire_len(pool: &Pool, frame: &Frame) -> u32 {
    pool.meta(frame.buf).original_len
}
