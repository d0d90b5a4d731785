//! The common part of the two wrappers of a [`NetworkFunction`]: it gives the function a batch, packet by
//! packet or train by train, and makes the batch that leaves of its verdicts.

use std::ops::RangeInclusive;
use std::slice::from_ref;

use slipstream_core::batch::{BATCH, Batch, Train};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::Pool;
use slipstream_core::stage::{Context, Drops, Output, Verdict};
use slipstream_core::time::Nanos;

use super::function::{FunctionContext, LeavesAs, NetworkFunction, NewPacket};
use super::reassembly::{Reassembler, Taken};
use super::steps::Steps;

/// Trains (or packets, where every one is decided about) that are looked at before the first of them is
/// decided about: enough for memory to come meanwhile, few enough for what comes to stay in the first-level
/// cache.
const AHEAD: usize = 16;

/// Runs a function over batches.
#[derive(Debug)]
pub(super) struct Runner<F: NetworkFunction> {
    pub(super) function: F,
    /// The fragments that it waits for, where it decides about whole datagrams.
    fragments: Option<Box<Reassembler>>,
    /// A batch whose fragments are datagrams, or a part of a batch.
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
    pub(super) decisions: u64,
    packets: u64,
    pub(super) now: Nanos,
}

impl<F: NetworkFunction> Runner<F> {
    pub(super) fn new(function: F) -> Self {
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

    pub(super) fn process<const PER_TRAIN: bool>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        self.packets += batch.frames.len() as u64;
        if self.fragments.is_none()
            && let Some(limits) = self.function.fragments()
        {
            // It was given other rules, which ask for whole datagrams.
            self.fragments = Some(Box::new(Reassembler::new(limits)));
        }
        match self.fragments.take_if(|_| Info::has_fragments(&batch.frames)) {
            Some(mut fragments) => {
                self.reassemble::<PER_TRAIN>(&mut fragments, cx, batch, out);
                self.fragments = Some(fragments);
            }
            None if self.lasts_too_long(batch) => self.process_in_parts::<PER_TRAIN>(cx, batch, out),
            None => self.process_whole::<PER_TRAIN>(cx, batch, out),
        }
    }

    /// Returns true if packets may leave the function by themselves before the last one of a batch came.
    #[inline(always)]
    fn lasts_too_long(&self, batch: &Batch) -> bool {
        let first = batch.frames.first().map_or(Nanos(0), |frame| frame.arrival);
        let until = self.function.leaves_by_itself(first);
        until < Nanos::MAX
            && batch
                .trains
                .last()
                .zip(batch.frames.last())
                .is_some_and(|(t, f)| t.release.max(f.arrival) >= until)
    }

    /// Takes a batch whose packets lie far apart in time: what is due between two of them happens between
    /// them, as where they come one by one.
    #[inline(never)]
    fn process_in_parts<const PER_TRAIN: bool>(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        out: &mut dyn Output,
    ) {
        let mut part = std::mem::take(&mut self.whole);
        let mut until = Nanos(0);
        let mut before = None;
        for (train, frames) in batch.iter() {
            let (mut open, mut continues) = (false, train.continues);
            for frame in frames {
                let now = train.release.max(frame.arrival);
                if now >= until {
                    if !part.is_empty() {
                        self.process_whole::<PER_TRAIN>(cx, &mut part, out);
                    }
                    self.run_to(cx, before.unwrap_or(now)..=now, out);
                    until = self.function.leaves_by_itself(now);
                    open = false;
                }
                match part.trains.last_mut() {
                    Some(last) if open => last.len += 1,
                    _ => {
                        let start = part.frames.len() as u32;
                        part.trains.push(Train { start, len: 1, continues, ..*train });
                        (open, continues) = (true, false);
                    }
                }
                part.frames.push(*frame);
                before = Some(now);
            }
        }
        batch.clear();
        self.process_whole::<PER_TRAIN>(cx, &mut part, out);
        self.whole = part;
    }

    /// Does what is due by the end of a time, each thing at its own time; what should have happened before
    /// happens at the beginning.
    fn run_to(&mut self, cx: &mut Context<'_>, time: RangeInclusive<Nanos>, out: &mut dyn Output) {
        loop {
            let due = self.next_deadline();
            if due > *time.end() {
                return;
            }
            cx.now = due.max(*time.start());
            self.on_deadline(cx, out);
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
                cx.pool.meet_flow(train.flow);
                if train.len == 1 {
                    // The most frequent case takes neither loops nor comparisons.
                    if let Some((frame, verdict)) = all.get_mut(start).zip(verdicts.get_mut(start)) {
                        steps.single(cx, train, found, frame, verdict);
                    }
                } else if let Some((frames, verdicts)) =
                    all.get_mut(start..end).zip(verdicts.get_mut(start..end))
                {
                    let done = steps.first(cx, train, 0, found, frames, verdicts);
                    if done < frames.len() {
                        steps.others(cx, train, done, found, frames, verdicts);
                    }
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
                    // There is room for all of the batch that is left.
                    if sorted.frames.len() + batch.frames.len() - at > BATCH {
                        out.emit(cx.pool, sorted);
                        sorted.clear();
                    }
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

    pub(super) fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        self.now = self.now.max(cx.now);
        if let Some(fragments) = &mut self.fragments {
            fragments.expire(cx.pool, cx.now);
        }
        if self.function.next_deadline() <= cx.now {
            self.function.on_deadline(&mut FunctionContext { cx, made: &mut self.made });
        }
        self.emit_made(cx, out);
    }

    pub(super) fn next_deadline(&self) -> Nanos {
        let fragments = self.fragments.as_ref().map_or(Nanos::MAX, |fragments| fragments.next_deadline());
        self.function.next_deadline().min(fragments)
    }

    pub(super) fn held(&self) -> u64 {
        self.function.held() + self.fragments.as_ref().map_or(0, |fragments| fragments.held())
    }

    pub(super) fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        if let Some(fragments) = &mut self.fragments {
            fragments.drain(cx.pool);
        }
        self.function.drain(&mut FunctionContext { cx, made: &mut self.made });
        self.emit_made(cx, out);
    }

    pub(super) fn drops(&self) -> Drops {
        let mut all = self.drops;
        all.merge(&self.function.drops());
        if let Some(fragments) = &self.fragments {
            all.merge(fragments.drops());
        }
        all
    }

    pub(super) fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets", self.packets);
        visit("decisions", self.decisions);
        if let Some(fragments) = &self.fragments {
            visit("datagrams", fragments.complete());
            visit("fragments_held", fragments.held());
        }
        self.function.counters(visit);
    }
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
