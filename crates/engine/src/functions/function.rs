//! A network function decides about a packet, and applies the decision. Two wrappers make a stage of it:
//! [`PerTrain`] decides once for a whole train, [`PerPacket`] for every packet, as other packet processors do, and is
//! the baseline that every benchmark compares with (paper: "Packet Order Matters!", §2.4).

use std::fmt;
use std::slice::{from_mut, from_ref};

use crate::batch::{BATCH, Batch, Train};
use crate::frame::{Frame, Info};
use crate::pool::Pool;
use crate::reframe::Output;
use crate::stage::{Context, Drops, Stage, StageError, Verdict};
use crate::time::Nanos;

use super::reassembly::{FragmentLimits, Reassembler, Taken};

/// Fields beyond the flow key that a decision depends on: packets of a train that differ in one of them don't share it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads(u64);

impl Reads {
    /// The flow key alone.
    pub const KEY: Self = Self(0);
    /// Whether the packet is a fragment, and which headers could be read: always part of the comparison too.
    pub const SHAPE: Self = Self(0xff << 32);
    /// Where the IP header begins.
    pub const L3: Self = Self(0xffff);
    /// TCP flags.
    pub const TCP_FLAGS: Self = Self(0xff << 40);
    /// DSCP.
    pub const DSCP: Self = Self(0xfc << 48);
    /// ECN.
    pub const ECN: Self = Self(0x03 << 48);
    /// Length on the wire.
    pub const LENGTH: Self = Self(1 << 63);

    /// Fields by their places in a word of [`Flags`](slipstream_wire::Flags) (bits 0 to 8), TCP flags (8 to 16) and TOS (16 to 24).
    #[must_use]
    pub const fn of_word(mask: u32) -> Self {
        Self((mask as u64 & 0xff_ffff) << 32)
    }

    /// These fields and those.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether all of these fields are among them.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Whether two packets of one flow agree in these fields.
    #[inline]
    #[must_use]
    pub fn agree(self, pool: &Pool, a: &Frame, b: &Frame) -> bool {
        let mask = (self.0 | Self::SHAPE.0) & !Self::LENGTH.0;
        (a.info.bits() ^ b.info.bits()) & mask == 0
            && (self.0 & Self::LENGTH.0 == 0
                || pool.meta(a.buf).original_len == pool.meta(b.buf).original_len)
    }
}

/// A packet that a function made, such as an ICMP error, and the port that it leaves by.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// The packet.
    pub frame: Frame,
    /// Its port.
    pub port: u8,
}

/// What a function is told and may use besides the packets.
#[derive(Debug)]
pub struct Scene<'a, 'b> {
    /// Time, bytes, input port.
    pub cx: &'a mut Context<'b>,
    /// Packets that the function makes or lets go. They leave right behind the packets that it is asked about, in this
    /// order.
    pub made: &'a mut Vec<Made>,
}

/// A network function.
pub trait NetworkFunction {
    /// What it decides about a packet.
    type Decision;

    /// What it finds out about a packet ahead of the decision.
    type Look: Default + fmt::Debug + Send;

    /// The fields beyond the flow key that [`decide`](NetworkFunction::decide) reads.
    fn reads(&self) -> Reads {
        Reads::KEY
    }

    /// Where it decides about whole datagrams: the bounds within which their fragments wait for each other.
    /// It is then asked about a datagram as about one packet, which stands for all of its fragments, and
    /// every fragment is treated by that decision. Fragments of other functions are packets like others.
    fn fragments(&self) -> Option<FragmentLimits> {
        None
    }

    /// Whether the decision about `first` holds for `other`, a later packet of its flow.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.reads().agree(cx.pool, first, other)
    }

    /// For how many of `others`, the packets behind `first` in its train, the decision about `first` holds too, before the
    /// first for which it doesn't.
    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        others.iter().position(|other| !self.shares(cx, first, other)).unwrap_or(others.len())
    }

    /// Up to when the decision that was just made at `now` holds: a packet of the train that comes then or
    /// later is decided about anew. It is no later than any time at which what the decision was made from may
    /// end: the timeout of an entry that was found or made, the next question to a neighbour. [`Nanos::MAX`]
    /// where time doesn't matter, `now` where a second packet may get another answer.
    #[inline(always)]
    fn holds_until(&self, _decision: &Self::Decision, _now: Nanos) -> Nanos {
        Nanos::MAX
    }

    /// Reads a packet a few decisions before its own, and asks for the memory that the decision will read. What it finds
    /// must depend on the packet alone: decisions are made in between. `found` holds what was found out about another
    /// packet.
    fn look(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Self::Look);

    /// Goes on with what was found out about packets that were looked at one behind the other, a few ahead of their
    /// decisions: what one of them waits for comes while the others' is asked for. The same holds as for
    /// [`look`](NetworkFunction::look).
    #[inline(always)]
    fn look_on(&mut self, _cx: &Context<'_>, _found: &mut [Self::Look]) {}

    /// Decides about a packet that it has looked at.
    fn decide(&mut self, scene: &mut Scene<'_, '_>, first: &Frame, look: &Self::Look) -> Self::Decision;

    /// Does what was decided to packets that share the decision. `verdicts`, one a packet, say
    /// [`Verdict::PASS`] until this says otherwise.
    fn apply(
        &mut self,
        scene: &mut Scene<'_, '_>,
        decision: &Self::Decision,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    );

    /// See [`Stage::next_deadline`].
    fn next_deadline(&self) -> Nanos {
        Nanos::MAX
    }

    /// Does what is due.
    fn on_deadline(&mut self, _scene: &mut Scene<'_, '_>) {}

    /// Lets go of everything that it keeps: nothing more will come.
    fn drain(&mut self, _scene: &mut Scene<'_, '_>) {}

    /// Packets that it keeps ([`Verdict::KEPT`]).
    fn held(&self) -> u64 {
        0
    }

    /// Packets that it dropped after it had kept them.
    fn drops(&self) -> Drops {
        Drops::default()
    }

    /// See [`Stage::counters`].
    fn counters(&self, _visit: &mut dyn FnMut(&'static str, u64)) {}

    /// See [`Stage::report`].
    fn report(&self) -> Option<serde_json::Value> {
        None
    }

    /// See [`Stage::reloads`].
    fn reloads(&self) -> Option<&'static str> {
        None
    }

    /// See [`Stage::reload`].
    fn reload(&mut self, _now: Nanos) {}

    /// See [`Stage::notes`].
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// See [`Stage::finish`].
    ///
    /// # Errors
    /// What can't be written.
    fn finish(&mut self, _now: Nanos) -> Result<(), StageError> {
        Ok(())
    }
}

/// Trains (or packets, where every one is decided about) that are looked at before the first of them is decided about: enough
/// for memory to come meanwhile, few enough for what comes to stay in the first-level cache.
const AHEAD: usize = 16;

/// What the two wrappers have in common.
#[derive(Debug)]
struct Runner<F: NetworkFunction> {
    function: F,
    /// The fragments that it waits for, where it decides about whole datagrams.
    fragments: Option<Box<Reassembler>>,
    /// A batch whose fragments are datagrams.
    whole: Batch,
    /// What was found out about the packets to come.
    looks: [F::Look; AHEAD],
    /// The packets of a batch, each a train by itself.
    singles: Vec<Train>,
    verdicts: Vec<Verdict>,
    made: Vec<Made>,
    /// Of each made packet, how many packets of the batch leave before it, and when it leaves at the earliest.
    behind: Vec<(usize, Nanos)>,
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
            looks: std::array::from_fn(|_| F::Look::default()),
            singles: Vec::new(),
            verdicts: Vec::with_capacity(BATCH),
            made: Vec::new(),
            behind: Vec::new(),
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
                if fragments.wants(frame) {
                    cx.now = train.release.max(frame.arrival);
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
                        let release = if of_datagram.is_empty() { train.release } else { cx.now };
                        whole.trains.push(Train { start, len, release, continues: false, ..*train });
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
        let Self { function, looks, singles, verdicts, made, behind, decisions, .. } = self;
        let mut steps = Steps { function, made, behind, decisions };
        let trains = if PER_TRAIN { batch.trains.as_slice() } else { singles.as_slice() };
        let (all, verdicts) = (batch.frames.as_mut_slice(), verdicts.as_mut_slice());
        *steps.decisions += trains.len() as u64;
        for trains in trains.chunks(AHEAD) {
            for (train, found) in trains.iter().zip(looks.iter_mut()) {
                if let Some(first) = all.get(train.start as usize) {
                    steps.function.look(cx, first, found);
                }
            }
            steps.function.look_on(cx, looks.get_mut(..trains.len()).unwrap_or_default());
            for (train, found) in trains.iter().zip(looks.iter_mut()) {
                let (start, end) = (train.start as usize, train.start as usize + train.len as usize);
                let packets = all.get_mut(start..end).zip(verdicts.get_mut(start..end));
                let Some((frames, verdicts)) = packets else { continue };
                let done = steps.first(cx, train, 0, found, frames, verdicts);
                if done < frames.len() {
                    steps.others(cx, train, done, found, frames, verdicts);
                }
            }
        }
        self.now = self.now.max(cx.now);
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

    /// Takes out of a batch what is dropped or kept, puts in what was made, and says of every train which port it
    /// leaves by.
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
                    // What stood for its fragments has done so.
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
            self.function.on_deadline(&mut Scene { cx, made: &mut self.made });
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
        self.function.drain(&mut Scene { cx, made: &mut self.made });
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

/// What one decision after the other needs.
struct Steps<'a, F: NetworkFunction> {
    function: &'a mut F,
    made: &'a mut Vec<Made>,
    behind: &'a mut Vec<(usize, Nanos)>,
    decisions: &'a mut u64,
}

impl<F: NetworkFunction> Steps<'_, F> {
    /// Decides about the packet at `at` of a train, of which `found` was found out, and does what was decided to all behind it
    /// that share the decision. Returns where the first is that doesn't.
    #[inline(always)]
    fn first(
        &mut self,
        cx: &mut Context<'_>,
        train: &Train,
        at: usize,
        found: &F::Look,
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
        let mut scene = Scene { cx, made: self.made };
        let decision = self.function.decide(&mut scene, first, found);
        if self.behind.len() < scene.made.len() {
            // What the decision made leaves right behind the packet that it was made about.
            shared = 0;
        } else if let Some(last) = shared.checked_sub(1).and_then(|last| others.get(last))
            && last.arrival > time
        {
            let until = self.function.holds_until(&decision, time);
            if last.arrival >= until {
                // Packets come in the order of time.
                shared =
                    others.iter().take(shared).take_while(|other| time.max(other.arrival) < until).count();
            }
        }
        let end = at + 1 + shared;
        match (frames.get_mut(at..end), verdicts.get_mut(at..end)) {
            // Where it is clear that there is one packet no loop is made.
            (Some([frame]), Some([verdict])) => {
                self.function.apply(&mut scene, &decision, from_mut(frame), from_mut(verdict));
            }
            (Some(frames), Some(verdicts)) => self.function.apply(&mut scene, &decision, frames, verdicts),
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
        found: &F::Look,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) -> usize {
        let (len, time) = (frames.len(), cx.now);
        let mut scene = Scene { cx, made: self.made };
        if let ([datagram, fragments @ ..], [kept, verdicts @ ..]) = (frames, verdicts) {
            *kept = Verdict::KEPT;
            let decision = self.function.decide(&mut scene, datagram, found);
            self.function.apply(&mut scene, &decision, fragments, verdicts);
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
        found: &mut F::Look,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        while let Some(first) = frames.get(at) {
            *self.decisions += 1;
            self.function.look(cx, first, found);
            self.function.look_on(cx, from_mut(found));
            at = self.first(cx, train, at, found, frames, verdicts);
        }
    }
}

/// Adds a packet that the function made to what leaves; a batch that is full leaves at once.
fn push_made(pool: &mut Pool, sorted: &mut Batch, made: &Made, time: Nanos, out: &mut dyn Output) {
    if sorted.frames.len() >= BATCH {
        out.emit(pool, sorted);
        sorted.clear();
    }
    sorted.push_single(made.frame, time.max(made.frame.arrival), made.port);
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

            fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                self.0.counters(visit);
            }

            fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
                self.0.drain(cx, out);
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

            fn reloads(&self) -> Option<&'static str> {
                self.0.function.reloads()
            }

            fn reload(&mut self, now: Nanos) {
                self.0.function.reload(now);
            }

            fn notes(&self) -> Vec<String> {
                self.0.function.notes()
            }

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
