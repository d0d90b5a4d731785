//! Gaps to the next packet of a flow, counted by context, and the waits that follow from them.

use alloc::boxed::Box;

use super::policy::{ONE, Outcome, Policy, Waits};
use super::scale::{GapScale, WAITS};
use slipstream_core::frame::Info;
use slipstream_core::time::Nanos;

/// Octaves that make a context.
const OCTAVES: usize = WAITS / 2;
/// Kinds of packets; see [`kind`].
const KINDS: usize = 8;
/// Steps of the gap before the last.
const STEPS: usize = 4;
const CONTEXTS: usize = OCTAVES * STEPS * KINDS;
/// The counts of a context are halved at so many packets.
const FULL: u32 = 2048;
/// The counts of all contexts of a kind are halved at so many packets.
const KIND_FULL: u32 = 1 << 16;
/// The waits of a context are reckoned anew after a quarter more packets, but after so many at most.
const REFRESH: u32 = 128;
/// If that many are known and have changed nothing, and the price is the same: after twice as many as the
/// last time, up to this.
const REFRESH_SETTLED: u32 = 2048;
/// The shares of a kind are reckoned anew after a quarter more packets of it, but after so many at most.
const KIND_REFRESH: u32 = 4096;
/// Packets of a kind up to which each one counts for the others at once.
const KIND_FEW: u32 = 4096;
/// As many packets as this would count as what all packets of its kind say, where a context has little to
/// say.
const OF_KIND: u64 = 96;
/// The same for a kind, and what packets of all kinds say.
const OF_ALL: u64 = 64;
/// The same for all packets, and what is taken for granted before there is any: of the packets that nothing
/// has followed until some bucket begins, one in four is followed within it.
const AT_FIRST: u64 = 16;
const ONE_IN: u64 = 4;
/// The way of counts from one scale to another.
#[cfg(feature = "std")]
#[derive(Clone, Copy)]
struct Rescale {
    /// Octaves by which numbers on the new scale are lower, and by which they are higher.
    lower: usize,
    higher: usize,
}

#[cfg(feature = "std")]
impl Rescale {
    fn new(from: &GapScale, to: &GapScale) -> Self {
        let by = |a: &GapScale, b: &GapScale| a.shift().saturating_sub(b.shift()) as usize;
        Self { lower: by(to, from), higher: by(from, to) }
    }

    /// Hands over the counts of buckets, each with its bucket on the new scale. The last bucket stays the
    /// last: in most of its gaps no packet ever comes.
    fn gaps<T: Copy>(self, gaps: &[T; WAITS], mut each: impl FnMut(usize, T)) {
        for (bucket, n) in gaps.iter().enumerate() {
            let last = bucket == WAITS - 1;
            let to = (bucket + 2 * self.higher).saturating_sub(2 * self.lower).min(WAITS - 1);
            each(if last { bucket } else { to }, *n);
        }
    }

    /// The context on the new scale: the last gap is so many octaves from where it was. The step of the one
    /// before it is as good as before, and so is the last octave.
    fn context(self, context: usize) -> usize {
        const WITHIN: usize = STEPS * KINDS;
        let (octave, rest) = (context / WITHIN, context % WITHIN);
        let last = octave == OCTAVES - 1;
        let to = (octave + self.higher).saturating_sub(self.lower).min(OCTAVES - 1);
        (if last { octave } else { to }) * WITHIN + rest
    }
}

/// The kind of a packet, as far as it tells whether another follows: a full one of TCP is seldom the last, a
/// pushed or short one often is.
#[inline(always)]
pub(super) fn kind(info: Info, len: u32) -> u16 {
    const PSH: u8 = 8;
    if !info.is_tcp() {
        return if len > 1000 { 6 } else { 7 };
    }
    let pushed = u16::from(info.tcp_flags() & PSH != 0);
    match len {
        0..=98 => 0,
        99..=999 => 1 + pushed,
        1000..=1399 => 3,
        _ => 4 + pushed,
    }
}

/// The context of a packet: the bucket of the last gap of its flow, in octaves, the step of the one before,
/// and the packet's kind. The second value is the step of the last gap, for the flow's next packet.
#[inline(always)]
pub(super) fn context(gap: u32, before: Step, kind: u16) -> (u16, Step) {
    let parts = PARTS.get(gap as usize % WAITS).copied().unwrap_or(0);
    (parts as u16 + before.0 + kind, Step::of(parts))
}

/// The step of a gap, in its bits of a context.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step(u16);

impl Step {
    /// The one that is kept in the highest eight bits.
    #[inline(always)]
    pub(super) fn of(bits: u32) -> Self {
        Self((bits >> 24) as u16)
    }

    /// The same, with all other bits 0.
    #[inline(always)]
    pub(super) fn bits(self) -> u32 {
        u32::from(self.0) << 24
    }
}

/// The step of the longest gaps; see [`Step::bits`].
pub(super) const LAST_STEP: u32 = (((STEPS - 1) * KINDS) as u32) << 24;

/// By the bucket of a gap: its octave, in its bits of a context, and its [`Step`].
#[expect(clippy::indexing_slicing, reason = "a constant: the compiler does the indexing")]
const PARTS: [u32; WAITS] = {
    let mut parts = [0; WAITS];
    let mut gap = 0;
    while gap < WAITS {
        let step = if gap < 4 { 0 } else { KINDS * ((gap - 4) / 8) };
        parts[gap] = (gap / 2 * STEPS * KINDS + (step << 24)) as u32;
        gap += 1;
    }
    parts
};

/// The knowledge that an adaptive hold goes by. All of it, but where somebody measures what each part is
/// worth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Knowledge {
    /// The last gap of the packet's flow.
    pub last_gap: bool,
    /// The gap before that one.
    pub gap_before: bool,
    /// The kind of the packet, by protocol, length and PSH.
    pub kind: bool,
    /// The packets that the train has already.
    pub train: bool,
}

impl Default for Knowledge {
    fn default() -> Self {
        Self { last_gap: true, gap_before: true, kind: true, train: true }
    }
}

impl Knowledge {
    /// The part of a context that is told apart.
    pub(super) fn mask(self) -> u16 {
        const WITHIN: u16 = (STEPS * KINDS) as u16;
        let part = |known: bool, bits: u16| if known { bits } else { 0 };
        part(self.last_gap, CONTEXTS as u16 - WITHIN)
            | part(self.gap_before, WITHIN - KINDS as u16)
            | part(self.kind, KINDS as u16 - 1)
    }
}

// Contexts are numbers in which each part has bits of its own.
const _: () = assert!(
    (WAITS - 1 - 4) / 8 == STEPS - 1
        && CONTEXTS.is_power_of_two()
        && STEPS.is_power_of_two()
        && KINDS.is_power_of_two()
);

/// The counts of a context and what follows from them: two cache lines, one for the packets that come, one
/// for those that follow.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Context {
    /// Packets until the waits are reckoned anew, and how many they were when that was done last.
    left: u32,
    interval: u32,
    /// Packets that had come by then.
    packets: u32,
    /// The price at that time.
    price_ns: u64,
    /// The worth that a train of one packet was found to have; see [`Policy::find`].
    worth: i64,
    waits: Waits,
    /// Gaps to the packets that followed, by bucket.
    gaps: [u16; WAITS],
}

const _: () = assert!(size_of::<Context>() == 128);

impl Context {
    const EMPTY: Self = Self {
        left: 1,
        interval: 1,
        packets: 0,
        price_ns: 0,
        worth: 0,
        waits: Waits::NONE,
        gaps: [0; WAITS],
    };

    /// Packets that came.
    fn arrived(&self) -> u32 {
        self.packets + (self.interval - self.left)
    }

    /// The waits are reckoned anew with the next packet.
    #[cfg(feature = "std")]
    fn reckon_anew(&mut self) {
        (self.packets, self.left, self.interval) = (self.arrived(), 1, 1);
    }

    /// Counts what another one has counted, on another scale, too.
    #[cfg(feature = "std")]
    fn add(&mut self, other: &Self, scale: Rescale) {
        self.packets += other.arrived();
        scale.gaps(&other.gaps, |to, n| {
            self.gaps.get_mut(to).into_iter().for_each(|sum| *sum = sum.saturating_add(n));
        });
    }
}

/// The counts of all contexts of a kind.
#[derive(Clone, Copy, Debug)]
struct Kind {
    /// The shares are reckoned anew when so many packets have come.
    next: u32,
    /// Packets that contexts no longer count, and the gaps behind them.
    past: u32,
    past_gaps: [u32; WAITS],
    /// Counts of all of them when the shares were reckoned.
    packets: u32,
    gaps: [u32; WAITS],
    /// Of the packets, the share whose next one comes after a gap of a bucket, in parts of [`ONE`].
    shares: [u32; WAITS],
}

impl Kind {
    const EMPTY: Self =
        Self { next: 1, past: 0, past_gaps: [0; WAITS], packets: 0, gaps: [0; WAITS], shares: [0; WAITS] };
}

/// Of packets, the share that is followed after a gap of each bucket, in parts of [`ONE`]: the estimator of
/// Kaplan and Meier (JASA 1958), since of packets that nothing has followed yet the young ones say nothing
/// about long gaps. `gaps` counts those that were followed, in `elapsed` quarters of a unit; `prior` counts
/// as so many packets more (`weight`) of which everything is known.
///
/// Nobody keeps the ages of packets. But where they come evenly, as many have come in the last while as it
/// has its part in the time elapsed, and of those the share that no gap has ended is still waiting.
fn shares(
    packets: u64,
    gaps: impl Iterator<Item = u64> + Clone,
    elapsed: u64,
    prior: &[u32; WAITS],
    weight: u64,
) -> [u32; WAITS] {
    let followed: u64 = gaps.clone().sum();
    let waiting = packets.saturating_sub(followed) * ONE;
    let (mut left, mut prior_left) = (followed * ONE, ONE);
    // Share that no gap has ended so far, and its sum over time.
    let (mut still, mut area, mut from) = (ONE, 0, 0);
    let mut shares = [0; WAITS];
    for (bucket, ((n, prior), share)) in (0u8..).zip(gaps.zip(prior).zip(&mut shares)) {
        let to = 2 * GapScale::edge(bucket);
        let young = packets * (area + still * (to - from)) / elapsed.max(1);
        let known = left + waiting.saturating_sub(young) + weight * prior_left;
        let ended = n * ONE + weight * u64::from(*prior);
        let next = if ended < known || known == 0 { still - still * ended / known.max(1) } else { 0 };
        *share = (still - next) as u32;
        area += (still + next) * (to - from) / 2;
        left -= n * ONE;
        prior_left = prior_left.saturating_sub(u64::from(*prior));
        (still, from) = (next, to);
    }
    shares
}

/// All that was learned about the packets of a class.
#[derive(Debug)]
pub(super) struct Learner {
    contexts: Box<[Context; CONTEXTS]>,
    kinds: [Kind; KINDS],
    scale: GapScale,
    /// The time of the first packet.
    start: Option<Nanos>,
    hold_quarters: i64,
    /// Waits that are shorter than the hold, and the one that is not.
    waits: usize,
    /// Packets of a full train.
    burst: usize,
    /// Waits go by the length of a train.
    train: bool,
}

/// The counts of all contexts, as each packet changes them.
pub(super) struct Counts<'a>(&'a mut [Context; CONTEXTS]);

impl Counts<'_> {
    /// The flow of a packet of this context has had its next packet.
    #[inline(always)]
    pub(super) fn came(&mut self, context: u16, gap: u32) {
        let gap = gap as usize % WAITS;
        let counts = self.0.get_mut(usize::from(context) % CONTEXTS).and_then(|c| c.gaps.get_mut(gap));
        if let Some(n) = counts {
            // Full, it stays so.
            *n += u16::from(*n != u16::MAX);
        }
    }

    /// A packet of this context has come. Returns true where its waits are to be reckoned anew before they
    /// are used: see [`Learner::refresh`].
    #[inline(always)]
    pub(super) fn arrived(&mut self, context: u16) -> bool {
        let Some(context) = self.0.get_mut(usize::from(context) % CONTEXTS) else { return false };
        context.left -= 1;
        context.left == 0
    }

    /// The waits after a packet of this context.
    #[inline(always)]
    pub(super) fn waits(&self, context: u16) -> Waits {
        self.0.get(usize::from(context) % CONTEXTS).map_or(Waits::NONE, |context| context.waits)
    }
}

impl Learner {
    pub(super) fn new(scale: &GapScale, hold_ns: u64, burst: u16, train: bool) -> Self {
        let shorter = (0..WAITS as u8 - 1).filter(|b| scale.edge_ns(*b) < hold_ns).count();
        Self {
            contexts: Box::new([Context::EMPTY; CONTEXTS]),
            kinds: [Kind::EMPTY; KINDS],
            scale: *scale,
            start: None,
            hold_quarters: scale.quarters(hold_ns),
            waits: shorter + 1,
            burst: burst.into(),
            train,
        }
    }

    /// Goes by what `before` has counted. Where hold or burst were others, waits are reckoned anew, each
    /// before it is used.
    #[cfg(feature = "std")]
    pub(super) fn learn_from(&mut self, before: &mut Self) {
        let limits = |l: &Self| (l.scale.shift(), l.hold_quarters, l.waits, l.burst, l.train);
        if limits(self) == limits(before) {
            return core::mem::swap(self, before);
        }
        self.start = before.start;
        let scale = Rescale::new(&before.scale, &self.scale);
        if self.scale.shift() == before.scale.shift() {
            core::mem::swap(&mut self.contexts, &mut before.contexts);
            self.contexts.iter_mut().for_each(Context::reckon_anew);
        } else {
            for (number, old) in (0..).zip(before.contexts.iter()) {
                if let Some(new) = self.contexts.get_mut(scale.context(number)) {
                    new.add(old, scale);
                }
            }
        }
        for (new, old) in self.kinds.iter_mut().zip(&before.kinds) {
            *new = Kind { packets: old.packets, past: old.past, ..Kind::EMPTY };
            scale.gaps(&old.gaps, |to, n| new.gaps.get_mut(to).into_iter().for_each(|sum| *sum += n));
            scale.gaps(&old.past_gaps, |to, n| {
                new.past_gaps.get_mut(to).into_iter().for_each(|sum| *sum += n)
            });
        }
    }

    /// Gaps that were counted behind packets of a context, by bucket.
    #[cfg(test)]
    pub(super) fn gaps(&self, context: u16) -> [u16; WAITS] {
        self.contexts[usize::from(context)].gaps
    }

    /// The counts to which each packet is added.
    #[inline(always)]
    pub(super) fn counts(&mut self) -> Counts<'_> {
        Counts(&mut self.contexts)
    }

    /// Packets that have come of a kind.
    fn arrived_of(&self, number: usize) -> u32 {
        let past = self.kinds.get(number).map_or(0, |kind| kind.past);
        past + self.contexts.iter().skip(number).step_by(KINDS).map(Context::arrived).sum::<u32>()
    }

    /// Adds up what the contexts of a kind have counted.
    fn add_up(&mut self, number: usize) {
        let packets = self.arrived_of(number);
        let Some(kind) = self.kinds.get_mut(number) else { return };
        (kind.packets, kind.gaps) = (packets, kind.past_gaps);
        for context in self.contexts.iter().skip(number).step_by(KINDS) {
            kind.gaps.iter_mut().zip(context.gaps).for_each(|(sum, n)| *sum += u32::from(n));
        }
    }

    /// Reckons the shares of a kind anew.
    #[inline(never)]
    fn refresh_kind(&mut self, number: usize, elapsed: u64) {
        // While few packets have come, each one counts; later, other kinds have what they had at their turn.
        if self.arrived_of(number) < KIND_FEW {
            (0..KINDS).for_each(|kind| self.add_up(kind));
        } else {
            self.add_up(number);
        }
        let Some(kind) = self.kinds.get_mut(number) else { return };
        let mut forgotten = 0;
        if kind.past >= KIND_FULL {
            forgotten = kind.past - kind.past / 2;
            kind.past /= 2;
            kind.past_gaps.iter_mut().for_each(|n| *n /= 2);
        }
        kind.next = kind.packets - forgotten + 1 + (kind.packets / 4).min(KIND_REFRESH - 1);
        let (mut packets, mut gaps) = (0, [0; WAITS]);
        for kind in &self.kinds {
            packets += u64::from(kind.packets);
            gaps.iter_mut().zip(kind.gaps).for_each(|(sum, n)| *sum += u64::from(n));
        }
        let (mut at_first, mut still) = ([0; WAITS], ONE);
        for share in &mut at_first {
            *share = (still / ONE_IN) as u32;
            still -= u64::from(*share);
        }
        let overall = shares(packets, gaps.into_iter(), elapsed, &at_first, AT_FIRST);
        let Some(kind) = self.kinds.get_mut(number) else { return };
        let gaps = kind.gaps.iter().map(|n| u64::from(*n));
        kind.shares = shares(kind.packets.into(), gaps, elapsed, &overall, OF_ALL);
    }

    /// Reckons the waits of a context anew, at this time: as many packets have come as [`Counts::arrived`]
    /// waits for.
    #[inline(never)]
    pub(super) fn refresh(&mut self, context: u16, price_ns: u64, now: Nanos) {
        let elapsed = (now.since(*self.start.get_or_insert(now)).min(1 << 60) << 2) >> self.scale.shift();
        let (number, at) = (usize::from(context) % KINDS, usize::from(context) % CONTEXTS);
        let (Some(kind), Some(context)) = (self.kinds.get_mut(number), self.contexts.get_mut(at)) else {
            return;
        };
        let interval = context.interval;
        context.packets += interval;
        if context.packets >= FULL {
            kind.past += context.packets - context.packets / 2;
            context.packets /= 2;
            for (n, past) in context.gaps.iter_mut().zip(&mut kind.past_gaps) {
                *past += u32::from(*n - *n / 2);
                *n /= 2;
            }
        }
        let usual = 1 + (context.packets / 4).min(REFRESH - 1);
        (context.interval, context.left) = (usual, usual);
        let next = kind.next;
        if self.arrived_of(number) >= next {
            self.refresh_kind(number, elapsed);
        }
        let Some(prior) = self.kinds.get(number).map(|k| &k.shares) else { return };
        let Some(context) = self.contexts.get_mut(at) else { return };
        let before = (context.waits, core::mem::replace(&mut context.price_ns, price_ns));
        let gaps = context.gaps.iter().map(|n| u64::from(*n));
        let shares = shares(context.packets.into(), gaps, elapsed, prior, OF_KIND);
        // For each wait: share of the packets that come before its end, and the mean of all waits, in
        // quarters of a unit.
        let (mut joined, mut waited, mut from) = (0i64, 0i64, 0i64);
        let mut outcomes = [Outcome::default(); WAITS];
        let outcomes = outcomes.get_mut(..self.waits).unwrap_or_default();
        for (bucket, (share, outcome)) in (0u8..).zip(shares.iter().zip(outcomes.iter_mut())) {
            let to = (2 * GapScale::edge(bucket) as i64).min(self.hold_quarters);
            waited += i64::from(*share) * (from + to) / 2;
            joined += i64::from(*share);
            let in_vain = (ONE as i64 - joined) * to;
            *outcome = Outcome { joined, waited: waited + in_vain };
            from = to;
        }
        let policy = Policy { burst: self.burst, price: 4 * self.scale.quarters(price_ns) };
        policy.find(&mut context.waits, &mut context.worth, outcomes);
        if !self.train {
            context.waits.all_as_alone();
        }
        // A price that is being steered must be followed.
        if usual == REFRESH && (context.waits, price_ns) == before {
            let longer = (2 * interval).min(REFRESH_SETTLED);
            (context.interval, context.left) = (longer, longer);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// Against plain counts by kind: contexts that halve their counts lose nothing of what their kind
        /// knows.
        #[test]
        fn kinds_know_what_their_contexts_counted(
            steps in prop::collection::vec((0u16..4, 0u16..3, 0u8..32, 1u32..2000), 1..40),
        ) {
            let mut learner = Learner::new(&GapScale::new(64_000), 64_000, 32, true);
            let mut twin: Vec<(u32, [u32; WAITS])> = alloc::vec![(0, [0; WAITS]); KINDS];
            let mut now = 0;
            for (within, kind, gap, times) in steps {
                let context = within * KINDS as u16 + kind;
                for _ in 0..times {
                    now += 100;
                    if learner.counts().arrived(context) {
                        learner.refresh(context, 20_000, Nanos(now));
                    }
                    learner.counts().came(context, u32::from(gap));
                    twin[usize::from(kind)].0 += 1;
                    twin[usize::from(kind)].1[usize::from(gap)] += 1;
                }
            }
            for (number, (packets, gaps)) in twin.into_iter().enumerate() {
                // Older packets than these are forgotten.
                if packets < KIND_FULL {
                    learner.add_up(number);
                    prop_assert_eq!((learner.kinds[number].packets, learner.kinds[number].gaps), (packets, gaps));
                }
            }
        }
    }
}
