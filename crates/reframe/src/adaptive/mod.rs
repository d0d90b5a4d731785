//! The adaptive hold: a train waits for its next packet as long as that one is likely enough to come soon
//! enough.
//!
//! A packet more in a train is worth `price` of delay, so that waiting for it until some time is worth
//! (chance that it comes by then) × `price` − (packets that wait) × (mean wait).
//! A train waits until the time at which that is greatest, or not at all where it is never above zero; no
//! longer than `hold`, ever. Of the price is taken what a new train would be worth more than this one, since
//! the next packet begins one if it doesn't join: so dense flows, which have long trains in any case, wait
//! less for them, and slow ones more, at the same mean delay.
//!
//! The chance is learned from the packets as they come: in a *context*, which is what is known of a packet's
//! flow and of the packet itself, the gaps to the next packets of the flows are counted in a histogram, and
//! so are packets, of which the young ones say nothing yet. That takes no clock, no random number and no
//! rounding of fractions, and does not depend on what was held: the same packets at the same times are always
//! held the same.

mod budget;
mod learner;
mod policy;
mod scale;
mod timers;

use alloc::vec::Vec;
use core::ops::Range;

pub use budget::{Budget, BudgetError};
use budget::{Counters, Steering};
pub use learner::Knowledge;
use learner::{Learner, Step};
pub(crate) use policy::{Waits, WaitsNs};
pub(crate) use scale::GapScale;
pub(crate) use timers::Timers;

use crate::block::Block;
use crate::config::ClassSettings;
use crate::reframer::AHEAD;
use crate::stats::ClassStats;
use slipstream_core::frame::Frame;
use slipstream_core::prefetch::prefetch_at;
use slipstream_core::time::Nanos;

/// The gap of a flow that has had one packet.
const NEVER: u32 = (scale::WAITS - 1) as u32;
const NO_CONTEXT: u16 = u16::MAX;

/// The memory of a flow.
#[derive(Clone, Copy, Debug)]
struct Memory {
    last: Nanos,
    /// From the lowest bits on: the context of its last packet, or [`NO_CONTEXT`] where nothing is known, the
    /// class of that packet, and in the highest eight bits the [`Step`] of the gap before it.
    known: u32,
}

const _: () = assert!(size_of::<Memory>() == 16);

const NOTHING: Memory = Memory { last: Nanos(0), known: NO_CONTEXT as u32 | learner::LAST_STEP };

impl Memory {
    #[inline(always)]
    fn new(last: Nanos, step: Step, context: u16, class: u8) -> Self {
        Self { last, known: step.bits() | u32::from(class) << 16 | u32::from(context) }
    }

    #[inline(always)]
    fn context(self) -> u16 {
        self.known as u16
    }

    #[inline(always)]
    fn class(self) -> u8 {
        (self.known >> 16) as u8
    }

    #[inline(always)]
    fn step(self) -> Step {
        Step::of(self.known)
    }
}

/// All that is learned about the packets of a class, and the price that they wait at.
#[derive(Debug)]
struct Class {
    /// The scale of its gaps and waits, and the number of the wheel with that scale.
    scale: GapScale,
    waits_ns: WaitsNs,
    wheel: u8,
    learner: Learner,
    steering: Steering,
    /// Packets until the price is set anew.
    left: u32,
}

/// The adaptive hold of all classes.
#[derive(Debug)]
pub(crate) struct Adaptive {
    /// The scales of all classes: each is that of the wheel with its number.
    scales: Vec<GapScale>,
    /// The waits after each packet of a block, by its place.
    waits: [Waits; AHEAD],
    flows: Vec<Memory>,
    classes: Vec<Class>,
    /// The part of contexts that is told apart.
    mask: u16,
}

impl Adaptive {
    /// For classes with these settings, each of which has that budget for itself.
    pub(crate) fn new(classes: &[ClassSettings], budget: Option<Budget>, knows: Knowledge) -> Self {
        let mut scales: Vec<GapScale> = Vec::new();
        let class = |c: &ClassSettings| {
            let scale = GapScale::new(c.hold_ns);
            let known = scales.iter().position(|of| of.shift() == scale.shift());
            let wheel = known.unwrap_or_else(|| {
                scales.push(scale);
                scales.len() - 1
            });
            Class {
                scale,
                waits_ns: WaitsNs::new(&scale, Timers::rounding(&scale)),
                wheel: wheel as u8,
                learner: Learner::new(&scale, c.hold_ns, c.burst, knows.train),
                steering: Steering::new(budget.unwrap_or(Budget::usual(c.hold_ns)), c.hold_ns),
                left: Steering::LOOK,
            }
        };
        let classes = classes.iter().map(class).collect();
        let waits = [Waits::NONE; AHEAD];
        Self { classes, flows: Vec::new(), scales, waits, mask: knows.mask() }
    }

    /// Goes by what these counters, one for each class, count from now on.
    #[cfg(feature = "std")]
    pub(crate) fn follow(&mut self, stats: &[ClassStats]) {
        for (class, stats) in self.classes.iter_mut().zip(stats) {
            class.steering.begin(Counters::of(stats));
        }
    }

    /// Goes by what `before` has learned, which parted packets into the same classes, and by what these
    /// counters, one for each class, count from now on.
    #[cfg(feature = "std")]
    pub(crate) fn learn_from(&mut self, before: &mut Self, stats: &[ClassStats]) {
        // A flow whose last packet has a context of another scale counts there once more: that is not worth
        // a look at all flows.
        core::mem::swap(&mut self.flows, &mut before.flows);
        for ((class, before), stats) in self.classes.iter_mut().zip(&mut before.classes).zip(stats) {
            class.learner.learn_from(&mut before.learner);
            class.steering.go_on(&before.steering, Counters::of(stats));
        }
    }

    /// The scales of gaps and deadlines: each is that of a wheel.
    pub(crate) fn scales(&self) -> impl Iterator<Item = &GapScale> {
        self.scales.iter()
    }

    /// The number of each class's wheel.
    pub(crate) fn wheels(&self) -> impl Iterator<Item = u8> {
        self.classes.iter().map(|class| class.wheel)
    }

    /// Bytes that are remembered of a flow.
    pub(crate) const BYTES: usize = size_of::<Memory>();

    /// Takes the memory for so many flows, which is else taken as they come.
    pub(crate) fn reserve_all(&mut self, flows: usize) {
        self.flows.reserve_exact(flows);
    }

    /// Asks for what is remembered of flows that packets will soon be observed of.
    #[inline]
    pub(crate) fn prefetch(&self, flows: &[u32]) {
        flows.iter().for_each(|flow| prefetch_at(&self.flows, *flow as usize));
    }

    /// Packets of a class that may come before its price is set anew.
    pub(crate) fn until_steered(&self, class: u8) -> usize {
        self.classes.get(usize::from(class)).map_or(0, |c| c.left as usize - 1)
    }

    /// Flows with numbers below this may come.
    #[inline(always)]
    pub(crate) fn cover(&mut self, flows: usize) {
        if self.flows.len() < flows {
            self.flows.resize(flows, NOTHING);
        }
    }

    /// A packet has come at `now`, of a class with these counters, of a flow that is `new` or not, which is
    /// covered; see [`Adaptive::cover`]. Returns the waits of its train.
    #[inline(always)]
    pub(crate) fn observe(
        &mut self,
        frame: &Frame,
        new: bool,
        class: u8,
        len: u32,
        now: Nanos,
        stats: Option<&ClassStats>,
    ) -> Waits {
        let Some(memory) = self.flows.get_mut(frame.flow as usize) else { return Waits::NONE };
        let before = if new { NOTHING } else { *memory };
        let (mut gap, known) = (NEVER, before.context() != NO_CONTEXT);
        if known && let Some(class) = self.classes.get_mut(usize::from(before.class())) {
            gap = class.scale.bucket(before.last, now);
            class.learner.counts().came(before.context(), gap);
        }
        let Some(of) = self.classes.get_mut(usize::from(class)) else { return Waits::NONE };
        if known && before.class() != class {
            gap = of.scale.bucket(before.last, now);
        }
        let (context, step) = learner::context(gap, before.step(), learner::kind(frame.info, len));
        let context = context & self.mask;
        *memory = Memory::new(now, step, context, class);
        of.arrived(context, now, stats)
    }

    /// Packets of a block have come, of class 0 and of flows that are known; see [`Adaptive::observe`]. Their
    /// trains' waits are then told by [`Adaptive::waits_of_block`]. The price must not be due to be set anew;
    /// see [`Adaptive::until_steered`].
    #[inline(always)]
    pub(crate) fn observe_all(
        &mut self,
        block: &Block<'_>,
        range: Range<usize>,
        len: impl Fn(&Frame) -> u32,
    ) {
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let flows = block.candidates.get(range.clone()).unwrap_or_default();
        let Self { flows: memories, classes, mask, waits, .. } = self;
        let (mask, memories) = (*mask, memories.as_mut_slice());
        let mut packets = frames.iter().zip(flows).zip(waits.get_mut(range).unwrap_or_default());
        let [class, others @ ..] = classes.as_mut_slice() else { return };
        debug_assert!(others.is_empty());
        let scale = class.scale;
        class.left -= frames.len() as u32;
        // Up to a packet whose waits are to be reckoned anew, all that the loop needs stays in registers.
        loop {
            let mut counts = class.learner.counts();
            let due = packets.find_map(|((frame, flow), waits)| {
                let memory = memories.get_mut(*flow as usize)?;
                let before = *memory;
                let mut gap = NEVER;
                if before.context() != NO_CONTEXT {
                    gap = scale.bucket(before.last, frame.arrival);
                    // A flow has been of this class since there is no other.
                    counts.came(before.context(), gap);
                }
                let (context, step) =
                    learner::context(gap, before.step(), learner::kind(frame.info, len(frame)));
                let context = context & mask;
                *memory = Memory::new(frame.arrival, step, context, 0);
                if counts.arrived(context) {
                    return Some((frame, context, waits));
                }
                *waits = counts.waits(context);
                None
            });
            let Some((frame, context, waits)) = due else { break };
            class.learner.refresh(context, class.steering.price_ns(), frame.arrival);
            *waits = class.learner.counts().waits(context);
        }
    }

    /// The waits of the trains of these packets of a block.
    #[inline(always)]
    pub(crate) fn waits_of_block(&self, range: Range<usize>) -> &[Waits] {
        self.waits.get(range).unwrap_or_default()
    }

    /// The waits of the train of this packet of a block.
    #[inline(always)]
    pub(crate) fn waits_after(&self, at: usize) -> Waits {
        self.waits.get(at).copied().unwrap_or(Waits::NONE)
    }

    /// The lengths of all waits of a class.
    #[inline(always)]
    pub(crate) fn waits_ns(&self, class: u8) -> &WaitsNs {
        self.classes.get(usize::from(class)).map_or(&WaitsNs::NONE, |class| &class.waits_ns)
    }

    /// The price of each class, in ns of delay that a packet more in a train is worth.
    pub(crate) fn prices(&self) -> impl Iterator<Item = u64> + '_ {
        self.classes.iter().map(|c| c.steering.price_ns())
    }
}

impl Class {
    #[inline(always)]
    fn arrived(&mut self, context: u16, now: Nanos, stats: Option<&ClassStats>) -> Waits {
        self.left -= 1;
        if self.left == 0 {
            self.steer(stats);
        }
        if self.learner.counts().arrived(context) {
            self.learner.refresh(context, self.steering.price_ns(), now);
        }
        self.learner.counts().waits(context)
    }

    #[cold]
    fn steer(&mut self, stats: Option<&ClassStats>) {
        self.left = Steering::LOOK;
        if let Some(stats) = stats {
            self.steering.steer(Counters::of(stats));
        }
    }
}

impl Budget {
    /// The budget of a class with this hold where none is set: a mean delay of a quarter of it.
    pub(crate) fn usual(hold_ns: u64) -> Self {
        Self::Delay((hold_ns / 4).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReframeConfig;

    /// A flow comes back in another class, whose hold is far longer: to the first class the gap is too long
    /// to be told, and to the second one it is short.
    #[test]
    fn a_gap_counts_to_each_class_on_its_own_scale() {
        const GAP_NS: u64 = 1_000_000;
        let class = |hold_ns| ClassSettings { hold_ns, ..ReframeConfig::default().default };
        let classes = [class(1_000), class(100_000_000)];
        let mut adaptive = Adaptive::new(&classes, None, Knowledge::default());
        adaptive.cover(1);
        let frame = Frame::default();
        adaptive.observe(&frame, true, 0, 60, Nanos(0), None);
        let first = adaptive.flows[0].context();
        adaptive.observe(&frame, false, 1, 60, Nanos(GAP_NS), None);
        let gaps = |class: usize| adaptive.classes[class].learner.gaps(first);
        assert_eq!(gaps(0)[NEVER as usize], 1);
        assert_eq!(gaps(1).iter().sum::<u16>(), 0);
        let bucket = GapScale::new(100_000_000).bucket(Nanos(0), Nanos(GAP_NS));
        assert!((8..16).contains(&bucket), "{bucket}");
        let kind = learner::kind(frame.info, 60);
        assert_eq!(adaptive.flows[0].context(), learner::context(bucket, NOTHING.step(), kind).0);
    }
}
