//! A network function decides about a packet, and applies the decision. Two wrappers make a stage of it:
//! [`PerTrain`] decides once for a whole train, [`PerPacket`] for every packet, as other packet processors
//! do, and is the baseline that every benchmark compares with (paper: "Packet Order Matters!", §2.4).

use std::fmt;
use std::slice::{from_mut, from_ref};

use slipstream_core::batch::{BATCH, Batch, Train};
use slipstream_core::flow_context::FlowUse;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::operate::Operate;
use slipstream_core::pool::Pool;
use slipstream_core::reads::Reads;
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, Drops, Egress, Observe, Stage, StageError, Verdict};
use slipstream_core::time::Nanos;

use super::reassembly::{FragmentLimits, Reassembler, Taken};

/// A packet that a function made, such as an ICMP error, and the port that it leaves by.
#[derive(Clone, Copy, Debug)]
pub struct NewPacket {
    /// The packet.
    pub frame: Frame,
    /// Its port.
    pub port: u8,
}

/// The context that a function decides in, besides the packets.
#[derive(Debug)]
pub struct FunctionContext<'a, 'b> {
    /// Time, bytes, input port.
    pub cx: &'a mut Context<'b>,
    /// Packets that the function makes or lets go. They leave right behind the packets that it is asked
    /// about, in this order.
    pub made: &'a mut Vec<NewPacket>,
}

/// A network function.
///
/// Packets that it [keeps](Verdict::KEPT) are those that it [holds](Observe::held). Its own
/// [drops](Observe::drops) are those of packets that it had kept.
///
/// ```
/// use slipstream_core::batch::{Batch, Train};
/// use slipstream_core::frame::{Frame, Info};
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::stage::{Context, DropReason, Observe, Output, Stage, Verdict};
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::{NetworkFunction, PerTrain, FunctionContext};
/// use slipstream_wire::{LinkType, classify};
///
/// /// Denies IPv4 packets to one host. A flow has one destination, so that one decision does for a train.
/// struct Deny([u8; 4]);
///
/// impl NetworkFunction for Deny {
///     type Decision = Verdict;
///     type Lookahead = ();
///
///     fn look_ahead(&mut self, _: &Context<'_>, _: &Frame, _: &mut ()) {}
///
///     fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, _: &()) -> Verdict {
///         let destination = usize::from(first.info.l3()) + 16;
///         let denied = fx.cx.data(first).get(destination..destination + 4) == Some(&self.0);
///         if denied { Verdict::drop(DropReason::Denied) } else { Verdict::PASS }
///     }
///
///     fn apply(&mut self, _: &mut FunctionContext<'_, '_>, verdict: &Verdict, _: &mut [Frame], all: &mut [Verdict]) {
///         all.fill(*verdict);
///     }
/// }
///
/// impl Observe for Deny {}
///
/// struct Nowhere;
///
/// impl Output for Nowhere {
///     fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
///         batch.frames.iter().for_each(|frame| pool.free(frame.buf));
///         batch.clear();
///     }
/// }
///
/// let dns = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
/// let (mut pool, mut batch) = (Pool::new(), Batch::new());
/// for _ in 0..3 {
///     let buf = pool.insert(PacketMeta::default(), &dns);
///     let info = Info::new(&classify(LinkType::RawIp, &dns).unwrap());
///     batch.frames.push(Frame { info, flow: 0, ..Frame::unclassified(Nanos(1), buf, 28) });
/// }
/// let train = Train { flow: 0, start: 0, len: 3, release: Nanos(1), order: 0, sequence: 0, continues: false };
/// batch.trains.push(train);
///
/// let mut stage = PerTrain::new(Deny([10, 0, 0, 2]));
/// let mut cx = Context { now: Nanos(1), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
/// stage.process(&mut cx, &mut batch, &mut Nowhere);
/// assert_eq!((stage.decisions(), pool.live()), (1, 0));
/// ```
pub trait NetworkFunction: Observe {
    /// A decision about a packet.
    type Decision;

    /// The result of reading a packet ahead of its decision.
    type Lookahead: Default + fmt::Debug + Send;

    /// The fields beyond the flow key that [`decide`](NetworkFunction::decide) reads.
    fn reads(&self) -> Reads {
        Reads::KEY
    }

    /// For a function that decides about whole datagrams: the bounds within which their fragments wait for
    /// each other. It is then asked about a datagram as about one packet, which stands for all of its
    /// fragments, and every fragment is treated by that decision. Fragments of other functions are packets
    /// like others.
    fn fragments(&self) -> Option<FragmentLimits> {
        None
    }

    /// The use that it makes of flow contexts: where it keeps words of a flow, it reads and writes them by
    /// [`Pool::flow_words`] and [`Pool::keep_flow_words`] while it looks ahead and decides.
    fn flow_use(&self) -> FlowUse {
        FlowUse::default()
    }

    /// True if packets may leave with another flow key than they came with; [`leaves_as`](Self::leaves_as)
    /// says which. A train then is cut where the keys differ, so that each has one.
    const CHANGES_KEYS: bool = false;

    /// Says what becomes of the flow key of packets by a decision.
    #[inline(always)]
    fn leaves_as(&self, _decision: &Self::Decision) -> LeavesAs {
        LeavesAs::Before
    }

    /// Returns true if the decision about `first` holds for `other`, a later packet of its flow.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.reads().agree(cx.pool, first, other)
    }

    /// Counts the packets at the start of `others`, those behind `first` in its train, for which the decision
    /// about `first` holds too.
    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        others.iter().position(|other| !self.shares(cx, first, other)).unwrap_or(others.len())
    }

    /// The time up to which the decision that was just made at `now` holds: a packet of the train that comes
    /// then or later is decided about anew. It is no later than the end of anything that the decision was
    /// made from, such as the timeout of an entry that was found or made, or the next question to a
    /// neighbour. It is [`Nanos::MAX`] if time doesn't matter, and `now` if a second packet may get another
    /// answer.
    #[inline(always)]
    fn holds_until(&self, _decision: &Self::Decision, _now: Nanos) -> Nanos {
        Nanos::MAX
    }

    /// Reads a packet a few decisions before its own, and prefetches the memory that the decision will read.
    /// The result must depend on the packet alone, since decisions are made in between. It replaces the
    /// contents of `found`, which are those of another packet.
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Self::Lookahead);

    /// Prefetches more for packets that [`look_ahead`](NetworkFunction::look_ahead) has read one behind the
    /// other, from the memory that it asked for: the accesses of several packets overlap. The result must
    /// depend on the packets alone.
    #[inline(always)]
    fn prefetch(&mut self, _cx: &Context<'_>, _found: &mut [Self::Lookahead]) {}

    /// Decides about a packet, of which `ahead` is the result of [`look_ahead`](NetworkFunction::look_ahead).
    fn decide(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        ahead: &Self::Lookahead,
    ) -> Self::Decision;

    /// Applies the decision to packets that share it. `verdicts`, one a packet, say
    /// [`Verdict::PASS`] until this says otherwise.
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decision: &Self::Decision,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    );

    /// See [`Stage::next_deadline`].
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Does what is due.
    fn on_deadline(&mut self, _fx: &mut FunctionContext<'_, '_>) {}

    /// Lets go of everything that it keeps: nothing more will come.
    fn drain(&mut self, _fx: &mut FunctionContext<'_, '_>) {}

    /// See [`Stage::reloads`].
    fn reloads(&self) -> Option<&'static str> {
        None
    }

    /// See [`Stage::reload`].
    fn reload(&mut self, _now: Nanos) {}

    /// See [`Stage::operate`].
    fn operate(&mut self) -> Option<&mut dyn Operate> {
        None
    }

    /// See [`Egress::finish`].
    ///
    /// # Errors
    /// Its output can't be written.
    fn finish(&mut self, _now: Nanos) -> Result<(), StageError> {
        Ok(())
    }
}

/// Flow key of packets behind a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeavesAs {
    /// It stays as it was.
    Before,
    /// It follows from this and the key before.
    Changed([u64; 2]),
    /// Nobody says: another packet of the train may get another one.
    Unknown,
}

/// Trains (or packets, where every one is decided about) that are looked at before the first of them is
/// decided about: enough for memory to come meanwhile, few enough for what comes to stay in the first-level
/// cache.
const AHEAD: usize = 16;

/// The common part of the two wrappers.
#[derive(Debug)]
struct Runner<F: NetworkFunction> {
    function: F,
    /// The fragments that it waits for, where it decides about whole datagrams.
    fragments: Option<Box<Reassembler>>,
    /// A batch whose fragments are datagrams.
    whole: Batch,
    /// Results of reading the next packets ahead.
    lookaheads: [F::Lookahead; AHEAD],
    /// The packets of a batch, each a train by itself.
    singles: Vec<Train>,
    verdicts: Vec<Verdict>,
    made: Vec<NewPacket>,
    /// Of each made packet, how many packets of the batch leave before it, and when it leaves at the
    /// earliest.
    behind: Vec<(usize, Nanos)>,
    /// The packets that decisions begin with, and what becomes of keys by them, where a train may get several
    /// keys.
    keys: Vec<(u32, LeavesAs)>,
    /// Trains that are cut.
    cut: Vec<Train>,
    sorted: Batch,
    drops: Drops,
    decisions: u64,
    packets: u64,
    now: Nanos,
}

impl<F: NetworkFunction> Runner<F> {
    fn new(function: F) -> Self {
        Self {
            fragments: function.fragments().map(|limits| Box::new(Reassembler::new(limits))),
            whole: Batch::new(),
            function,
            lookaheads: std::array::from_fn(|_| F::Lookahead::default()),
            singles: Vec::new(),
            verdicts: Vec::with_capacity(BATCH),
            made: Vec::new(),
            behind: Vec::new(),
            keys: Vec::with_capacity(BATCH),
            cut: Vec::with_capacity(BATCH),
            sorted: Batch::new(),
            drops: Drops::default(),
            decisions: 0,
            packets: 0,
            now: Nanos(0),
        }
    }

    fn process<const PER_TRAIN: bool>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.packets += batch.frames.len() as u64;
        match self.fragments.take_if(|_| Info::has_fragments(&batch.frames)) {
            Some(mut fragments) => {
                self.reassemble::<PER_TRAIN>(&mut fragments, cx, batch, out);
                self.fragments = Some(fragments);
            }
            None => self.process_whole::<PER_TRAIN>(cx, batch, out),
        }
    }

    /// Takes a batch with fragments: datagrams that are complete take their place.
    #[inline(never)]
    fn reassemble<const PER_TRAIN: bool>(
        &mut self,
        fragments: &mut Reassembler,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        let mut whole = std::mem::take(&mut self.whole);
        for (train, frames) in batch.iter() {
            let mut open = false;
            for frame in frames {
                let mut of_datagram: &[Frame] = &[];
                // A batch that is full goes on in between, at the times of its packets.
                let now = train.release.max(frame.arrival);
                if fragments.wants(frame) {
                    cx.now = now;
                    match fragments.take(cx, frame) {
                        Taken::Kept => continue,
                        Taken::Complete => of_datagram = fragments.released(),
                        Taken::AsItIs => {}
                    }
                }
                let packets = if of_datagram.is_empty() { from_ref(frame) } else { of_datagram };
                if whole.frames.len() + packets.len() > BATCH && !whole.is_empty() {
                    self.process_whole::<PER_TRAIN>(cx, &mut whole, out);
                    open = false;
                }
                match whole.trains.last_mut() {
                    Some(last) if open && of_datagram.is_empty() => last.len += 1,
                    _ => {
                        let (start, len) = (whole.frames.len() as u32, packets.len() as u32);
                        // A datagram is there when the last of its fragments is.
                        let release = if of_datagram.is_empty() { train.release } else { now };
                        // The key of a datagram is not that of its fragments.
                        let flow = Frame::NO_FLOW;
                        whole.trains.push(Train { flow, start, len, release, continues: false, ..*train });
                    }
                }
                whole.frames.extend_from_slice(packets);
                open = of_datagram.is_empty();
            }
        }
        batch.clear();
        self.process_whole::<PER_TRAIN>(cx, &mut whole, out);
        self.whole = whole;
    }

    fn process_whole<const PER_TRAIN: bool>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.verdicts.clear();
        self.verdicts.resize(batch.frames.len(), Verdict::PASS);
        if !PER_TRAIN {
            self.singles.clear();
            for (train, frames) in batch.iter() {
                if frames.first().is_some_and(|first| first.info.is_datagram()) {
                    self.singles.push(*train);
                    continue;
                }
                let packets = train.start..train.start + train.len;
                self.singles.extend(packets.map(|start| Train { start, len: 1, ..*train }));
            }
        }
        let Self { function, lookaheads, singles, verdicts, made, behind, keys, decisions, .. } = self;
        keys.clear();
        let mut steps = Steps { function, made, behind, keys, each: !PER_TRAIN, decisions };
        let trains = if PER_TRAIN { batch.trains.as_slice() } else { singles.as_slice() };
        let (all, verdicts) = (batch.frames.as_mut_slice(), verdicts.as_mut_slice());
        *steps.decisions += trains.len() as u64;
        for trains in trains.chunks(AHEAD) {
            for (train, found) in trains.iter().zip(lookaheads.iter_mut()) {
                if let Some(first) = all.get(train.start as usize) {
                    cx.pool.meet_flow(train.flow);
                    steps.function.look_ahead(cx, first, found);
                }
            }
            steps.function.prefetch(cx, lookaheads.get_mut(..trains.len()).unwrap_or_default());
            for (train, found) in trains.iter().zip(lookaheads.iter_mut()) {
                let (start, end) = (train.start as usize, train.start as usize + train.len as usize);
                let packets = all.get_mut(start..end).zip(verdicts.get_mut(start..end));
                let Some((frames, verdicts)) = packets else { continue };
                cx.pool.meet_flow(train.flow);
                let done = steps.first(cx, train, 0, found, frames, verdicts);
                if done < frames.len() {
                    steps.others(cx, train, done, found, frames, verdicts);
                }
            }
        }
        self.now = self.now.max(cx.now);
        // Of packets by themselves there is a note each, of trains only where there are several decisions.
        if F::CHANGES_KEYS && self.keys.len() > if PER_TRAIN { 0 } else { batch.trains.len() } {
            self.cut_by_keys(batch);
        }
        self.emit(cx, batch, out);
    }

    fn emit(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        if !Verdict::all_pass(&self.verdicts) || !self.made.is_empty() {
            self.sort_out(cx, batch, out);
        } else {
            batch.ports.clear();
        }
        if !batch.is_empty() {
            out.emit(cx.pool, batch);
            batch.clear();
        }
    }

    /// Cuts trains where packets leave with another flow key than those before them.
    #[inline(never)]
    fn cut_by_keys(&mut self, batch: &mut Batch) {
        let Self { keys, cut, .. } = self;
        cut.clear();
        let mut decisions = keys.iter().peekable();
        for train in &batch.trains {
            let (mut open, end) = (*train, train.start + train.len);
            let mut before = None;
            while let Some((at, key)) = decisions.next_if(|(at, _)| *at < end) {
                let same = before == Some(*key) && *key != LeavesAs::Unknown;
                if before.is_some() && !same && *at > open.start {
                    cut.push(Train { len: at - open.start, ..open });
                    open = Train { start: *at, len: end - at, continues: false, ..open };
                }
                before = Some(*key);
            }
            cut.push(open);
        }
        std::mem::swap(&mut batch.trains, cut);
    }

    /// Takes out of a batch what is dropped or kept, puts in what was made, and says of every train which
    /// port it leaves by.
    fn sort_out(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        let Self { verdicts, made, behind, sorted, drops, .. } = self;
        let mut coming = made.iter().zip(behind.iter().copied()).peekable();
        for (train, frames) in batch.iter() {
            let mut last: Option<Verdict> = None;
            let start = train.start as usize;
            let verdicts = verdicts.get(start..).unwrap_or_default();
            for (at, (frame, verdict)) in (start..).zip(frames.iter().zip(verdicts)) {
                while let Some((made, (_, time))) = coming.next_if(|(_, (behind, _))| *behind <= at) {
                    push_made(cx.pool, sorted, made, time, out);
                    last = None;
                }
                if *verdict == Verdict::KEPT {
                    // The packet that stood for its fragments has done so.
                    if frame.info.is_datagram() {
                        cx.pool.free(frame.buf);
                    }
                    continue;
                }
                match verdict.outcome() {
                    Err(reason) => {
                        drops.add(reason, 1);
                        cx.pool.free(frame.buf);
                    }
                    Ok(port) => {
                        let start = sorted.frames.len() as u32;
                        match sorted.trains.last_mut() {
                            Some(open) if last == Some(*verdict) => open.len += 1,
                            _ => {
                                sorted.trains.push(Train { start, len: 1, continues: false, ..*train });
                                sorted.ports.push(port);
                                last = Some(*verdict);
                            }
                        }
                        sorted.frames.push(*frame);
                    }
                }
            }
        }
        for (made, (_, time)) in coming {
            push_made(cx.pool, sorted, made, time, out);
        }
        self.made.clear();
        self.behind.clear();
        if self.sorted.ports.iter().all(|p| *p == 0) {
            self.sorted.ports.clear();
        }
        std::mem::swap(batch, &mut self.sorted);
        self.sorted.clear();
    }

    fn emit_made(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        for made in &self.made {
            push_made(cx.pool, &mut self.sorted, made, cx.now, out);
        }
        self.made.clear();
        if !self.sorted.is_empty() {
            out.emit(cx.pool, &mut self.sorted);
            self.sorted.clear();
        }
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        self.now = self.now.max(cx.now);
        if let Some(fragments) = &mut self.fragments {
            fragments.expire(cx.pool, cx.now);
        }
        if self.function.next_deadline() <= cx.now {
            self.function.on_deadline(&mut FunctionContext { cx, made: &mut self.made });
            if self.fragments.is_none() {
                // It may have been given other rules, which ask for whole datagrams.
                self.fragments = self.function.fragments().map(|limits| Box::new(Reassembler::new(limits)));
            }
        }
        self.emit_made(cx, out);
    }

    fn next_deadline(&self) -> Nanos {
        let fragments = self.fragments.as_ref().map_or(Nanos::MAX, |fragments| fragments.next_deadline());
        self.function.next_deadline().min(fragments)
    }

    fn held(&self) -> u64 {
        self.function.held() + self.fragments.as_ref().map_or(0, |fragments| fragments.held())
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        if let Some(fragments) = &mut self.fragments {
            fragments.drain(cx.pool);
        }
        self.function.drain(&mut FunctionContext { cx, made: &mut self.made });
        self.emit_made(cx, out);
    }

    fn drops(&self) -> Drops {
        let mut all = self.drops;
        all.merge(&self.function.drops());
        if let Some(fragments) = &self.fragments {
            all.merge(fragments.drops());
        }
        all
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets", self.packets);
        visit("decisions", self.decisions);
        if let Some(fragments) = &self.fragments {
            visit("datagrams", fragments.complete());
            visit("fragments_held", fragments.held());
        }
        self.function.counters(visit);
    }
}

/// The parts of a runner that each decision needs.
struct Steps<'a, F: NetworkFunction> {
    function: &'a mut F,
    made: &'a mut Vec<NewPacket>,
    behind: &'a mut Vec<(usize, Nanos)>,
    keys: &'a mut Vec<(u32, LeavesAs)>,
    /// Keys behind the function are noted of every decision.
    each: bool,
    decisions: &'a mut u64,
}

impl<F: NetworkFunction> Steps<'_, F> {
    /// Decides about the packet at `at` of a train, of which `found` was found out, and does what was decided
    /// to all behind it that share the decision. Returns where the first is that doesn't.
    #[inline(always)]
    fn first(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        at: usize,
        found: &F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) -> usize {
        let Some((first, others)) = frames.get(at..).and_then(<[Frame]>::split_first) else { return at };
        let time = train.release.max(first.arrival);
        cx.now = time;
        let mut shared = match others {
            [] => 0,
            _ if first.info.is_datagram() => return self.datagram(cx, train, found, frames, verdicts),
            _ => self.function.sharing(cx, first, others),
        };
        let mut fx = FunctionContext { cx, made: self.made };
        let decision = self.function.decide(&mut fx, first, found);
        if shared > 0 {
            // A packet that the decision made leaves right behind the packet that the decision is about.
            let alone = self.behind.len() < fx.made.len();
            let others = if alone { &[] } else { others.get(..shared).unwrap_or_default() };
            shared = shared_in_time(self.function, &decision, time, others);
        }
        let end = at + 1 + shared;
        // Packets of one decision leave with one key.
        if F::CHANGES_KEYS && (self.each || end - at < frames.len()) {
            self.keys.push((train.start + at as u32, self.function.leaves_as(&decision)));
        }
        match (frames.get_mut(at..end), verdicts.get_mut(at..end)) {
            // A single packet, the most frequent case, takes no loop.
            (Some([frame]), Some([verdict])) => {
                self.function.apply(&mut fx, &decision, from_mut(frame), from_mut(verdict));
            }
            (Some(frames), Some(verdicts)) => self.function.apply(&mut fx, &decision, frames, verdicts),
            _ => {}
        }
        if self.behind.len() < self.made.len() {
            self.behind.resize(self.made.len(), (train.start as usize + end, time));
        }
        end
    }

    /// Decides about a datagram, which stands before its fragments, and does to those what was decided.
    #[inline(never)]
    fn datagram(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        found: &F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) -> usize {
        let (len, time) = (frames.len(), cx.now);
        let mut fx = FunctionContext { cx, made: self.made };
        if let ([datagram, fragments @ ..], [kept, verdicts @ ..]) = (frames, verdicts) {
            *kept = Verdict::KEPT;
            let decision = self.function.decide(&mut fx, datagram, found);
            if F::CHANGES_KEYS && self.each {
                self.keys.push((train.start, self.function.leaves_as(&decision)));
            }
            self.function.apply(&mut fx, &decision, fragments, verdicts);
        }
        if self.behind.len() < self.made.len() {
            self.behind.resize(self.made.len(), (train.start as usize + len, time));
        }
        len
    }

    /// The same for all packets from `at` on, each of which shares no decision with the one before it.
    #[inline(never)]
    fn others(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        mut at: usize,
        found: &mut F::Lookahead,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        while let Some(first) = frames.get(at) {
            *self.decisions += 1;
            self.function.look_ahead(cx, first, found);
            self.function.prefetch(cx, from_mut(found));
            at = self.first(cx, train, at, found, frames, verdicts);
        }
    }
}

/// For how many of these packets a decision holds that was just made at `time`.
#[inline(always)]
fn shared_in_time<F: NetworkFunction>(
    function: &F,
    decision: &F::Decision,
    time: Nanos,
    others: &[Frame],
) -> usize {
    let last = others.last().map_or(time, |last| last.arrival);
    if last <= time {
        return others.len();
    }
    let until = function.holds_until(decision, time);
    if last < until {
        return others.len();
    }
    // Packets come in the order of time.
    others.iter().take_while(|other| time.max(other.arrival) < until).count()
}

/// Adds a packet that the function made to what leaves; a batch that is full leaves at once.
fn push_made(pool: &mut Pool, sorted: &mut Batch, made: &NewPacket, time: Nanos, out: &mut dyn Output) {
    if sorted.frames.len() >= BATCH {
        out.emit(pool, sorted);
        sorted.clear();
    }
    // Whatever context its flow had when it came, by now another flow may have it.
    let frame = Frame { flow: Frame::NO_FLOW, ..made.frame };
    sorted.push_single(frame, time.max(frame.arrival), made.port);
}

macro_rules! wrapper {
    ($(#[$doc:meta])* $name:ident, $per_train:literal) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name<F: NetworkFunction>(Runner<F>);

        impl<F: NetworkFunction> $name<F> {
            /// A stage of this function.
            #[must_use]
            pub fn new(function: F) -> Self {
                Self(Runner::new(function))
            }

            /// The function.
            #[must_use]
            pub fn function(&self) -> &F {
                &self.0.function
            }

            /// Decisions made so far.
            #[must_use]
            pub fn decisions(&self) -> u64 {
                self.0.decisions
            }
        }

        impl<F: NetworkFunction> Stage for $name<F> {
            fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
                self.0.process::<$per_train>(cx, batch, out);
            }

            fn next_deadline(&self) -> Nanos {
                self.0.next_deadline()
            }

            fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
                self.0.on_deadline(cx, out);
            }

            fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
                self.0.drain(cx, out);
            }

            fn flow_use(&self) -> FlowUse {
                self.0.function.flow_use()
            }

            fn reloads(&self) -> Option<&'static str> {
                self.0.function.reloads()
            }

            fn reload(&mut self, now: Nanos) {
                self.0.function.reload(now);
            }

            fn operate(&mut self) -> Option<&mut dyn Operate> {
                self.0.function.operate()
            }

            fn egress(&mut self) -> Option<&mut dyn Egress> {
                Some(self)
            }
        }

        impl<F: NetworkFunction> Observe for $name<F> {
            fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                self.0.counters(visit);
            }

            fn held(&self) -> u64 {
                self.0.held()
            }

            fn drops(&self) -> Drops {
                self.0.drops()
            }

            fn report(&self) -> Option<serde_json::Value> {
                self.0.function.report()
            }

            fn notes(&self) -> Vec<String> {
                self.0.function.notes()
            }
        }

        impl<F: NetworkFunction> Egress for $name<F> {
            fn finish(&mut self) -> Result<(), StageError> {
                let now = self.0.now;
                self.0.function.finish(now)
            }
        }
    };
}

wrapper! {
    /// Decides once for all packets of a train that share the decision.
    PerTrain, true
}
wrapper! {
    /// Decides for every packet.
    PerPacket, false
}
