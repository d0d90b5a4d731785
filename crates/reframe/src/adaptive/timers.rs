//! Deadlines that differ by train: a wheel of slots, each a short stretch of time in which trains are due at
//! its beginning.
//!
//! A train that is given a later deadline stays in its slot; when that comes, it moves on to the one that it
//! is due in by then. So a packet that joins a train writes one number, and a train moves about once for
//! each time that it waits. All operations are O(1).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::GapScale;
use crate::flow_table::NONE;
use slipstream_core::time::Nanos;

/// Slots of the wheel: as many as the longest hold has units.
const SLOTS: usize = 1 << 13;
const WORDS: usize = SLOTS / 64;
/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// The place of a train in a slot.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// The times at which the train and its slot are due, in ns; [`NEVER`] if it is in none; ticks begin
    /// then.
    due: u64,
    slot: u64,
    previous: u32,
    next: u32,
}

const _: () = assert!(size_of::<Timer>() == 24);

const IDLE: Timer = Timer { due: 0, slot: NEVER, previous: NONE, next: NONE };

/// A wheel, with the scale that its ticks are of.
#[derive(Debug)]
struct Wheel {
    /// A tick has two to the power of this ns; the bits of a time that are its tick's.
    shift: u32,
    mask: u64,
    /// The first train of each slot.
    heads: Box<[u32; SLOTS]>,
    /// A bit for each slot that has a train, and one for each word of those that is not 0.
    used: [u64; WORDS],
    summary: [u64; WORDS / 64],
    /// The first time of whose slot a train is in; no train is due before.
    first: u64,
    /// A train that is due then or later has no slot yet: those that are due a turn before must leave first.
    limit: u64,
}

/// The deadlines of all trains, in a wheel for each scale of waits.
#[derive(Debug)]
pub(crate) struct Timers {
    /// By the number of the train.
    timers: Vec<Timer>,
    wheel: Wheel,
    /// The wheels behind number 0.
    others: Vec<Wheel>,
}

impl Timers {
    /// Bytes for a train.
    pub(crate) const BYTES: usize = size_of::<Timer>();

    /// No train waits. Memory for `trains` is reserved. Wheel 0 has the first of these scales.
    pub(crate) fn new<'a>(trains: usize, mut scales: impl Iterator<Item = &'a GapScale>) -> Self {
        Self {
            timers: Vec::with_capacity(trains),
            wheel: Wheel::new(scales.next().unwrap_or(&GapScale::new(0))),
            others: scales.map(Wheel::new).collect(),
        }
    }

    /// To be added to the length of a wait, so that it ends no earlier than with the tick that its end is in.
    /// A wait ends where most packets that it is for have just come; one that ends with the tick before
    /// misses some of them.
    pub(crate) fn rounding(scale: &GapScale) -> u64 {
        scale.step_ns() - 1
    }

    /// No train is due before this; [`Nanos::MAX`] when there is none. It is the first deadline after
    /// [`Timers::settle`].
    #[inline(always)]
    pub(crate) fn due(&self) -> Nanos {
        if self.others.is_empty() { Nanos(self.wheel.first) } else { self.due_of_many() }
    }

    #[inline(never)]
    fn due_of_many(&self) -> Nanos {
        Nanos(self.others.iter().fold(self.wheel.first, |first, wheel| first.min(wheel.first)))
    }

    /// Room for a train of any number below this.
    #[inline(always)]
    pub(crate) fn cover(&mut self, trains: usize) {
        if self.timers.len() < trains {
            self.timers.resize(trains, IDLE);
        }
    }

    /// The deadlines in the wheel with this number.
    #[inline(always)]
    pub(crate) fn wheel(&mut self, number: u8) -> Deadlines<'_> {
        let wheel = match number {
            0 => &mut self.wheel,
            other => self.others.get_mut(usize::from(other) - 1).unwrap_or(&mut self.wheel),
        };
        Deadlines { wheel, timers: &mut self.timers }
    }

    /// Lets trains that are first in a wheel, but due later, move on to their places, up to the first that
    /// is due, which is returned.
    pub(crate) fn settle(&mut self) -> Option<u32> {
        let first = self.wheel.settle(&mut self.timers);
        if self.others.is_empty() { first } else { self.settle_many(first) }
    }

    #[inline(never)]
    fn settle_many(&mut self, first: Option<u32>) -> Option<u32> {
        let Self { timers, wheel, others } = self;
        let mut first = (first, wheel.first);
        for wheel in others {
            let found = (wheel.settle(timers), wheel.first);
            if found.1 < first.1 {
                first = found;
            }
        }
        first.0
    }
}

/// The deadlines in one wheel.
pub(crate) struct Deadlines<'a> {
    wheel: &'a mut Wheel,
    timers: &'a mut [Timer],
}

impl Deadlines<'_> {
    /// A train begins at `now`, is to leave at `wake`, and must not wait beyond `bound`, which is no more
    /// than the longest hold of the wheel away. Returns false if it can't wait at all, or if trains that are
    /// due by now must leave first. It must be covered; see [`Timers::cover`].
    #[inline(always)]
    pub(crate) fn begin(&mut self, train: u32, now: Nanos, wake: Nanos, bound: Nanos) -> bool {
        let due = self.wheel.tick(wake.min(bound).0);
        if due <= now.0 || due >= self.wheel.limit {
            return false;
        }
        self.wheel.add(self.timers, train, due);
        true
    }

    /// A packet joins a train at `now`, which is to leave at `wake` from then on, but by `bound` as before.
    /// Returns false if it is due already, or if others that are must leave first.
    #[inline(always)]
    pub(crate) fn join(&mut self, train: u32, now: Nanos, wake: Nanos, bound: Nanos) -> bool {
        let due = self.wheel.tick(wake.min(bound).0);
        let Some(timer) = self.timers.get_mut(train as usize) else { return false };
        if timer.due <= now.0 || due >= self.wheel.limit {
            return false;
        }
        timer.due = due;
        if due < timer.slot {
            self.wheel.move_to(self.timers, train, due);
        }
        true
    }

    /// A train has no deadline any more.
    #[inline]
    pub(crate) fn clear(&mut self, train: u32) {
        self.wheel.unlink(self.timers, train);
        if let Some(timer) = self.timers.get_mut(train as usize) {
            *timer = IDLE;
        }
    }
}

impl Wheel {
    fn new(scale: &GapScale) -> Self {
        Self {
            shift: scale.shift(),
            mask: !Timers::rounding(scale),
            heads: Box::new([NONE; SLOTS]),
            used: [0; WORDS],
            summary: [0; WORDS / 64],
            first: NEVER,
            limit: NEVER,
        }
    }

    /// The beginning of the tick that a time is in.
    #[inline(always)]
    fn tick(&self, ns: u64) -> u64 {
        ns & self.mask
    }

    #[inline(always)]
    fn slot(&self, tick: u64) -> usize {
        (tick >> self.shift) as usize % SLOTS
    }

    #[inline(always)]
    fn set_first(&mut self, tick: u64) {
        self.first = tick;
        self.limit = tick.saturating_add((SLOTS as u64) << self.shift);
    }

    /// Moves a train to an earlier slot.
    #[inline(never)]
    fn move_to(&mut self, timers: &mut [Timer], train: u32, due: u64) {
        self.unlink(timers, train);
        self.add(timers, train, due);
    }

    /// Puts a train that is in no slot into that of a time, which may become the first.
    #[inline(always)]
    fn add(&mut self, timers: &mut [Timer], train: u32, tick: u64) {
        self.link(timers, train, tick);
        if tick < self.first {
            self.set_first(tick);
        }
    }

    #[inline(always)]
    fn link(&mut self, timers: &mut [Timer], train: u32, tick: u64) {
        let slot = self.slot(tick);
        let Some(head) = self.heads.get_mut(slot) else { return };
        let next = core::mem::replace(head, train);
        if let Some(timer) = timers.get_mut(train as usize) {
            *timer = Timer { due: tick, slot: tick, previous: NONE, next };
        }
        match timers.get_mut(next as usize) {
            Some(next) => next.previous = train,
            None => self.begin_slot(slot),
        }
    }

    /// A slot has a train now.
    #[inline(always)]
    fn begin_slot(&mut self, slot: usize) {
        let Some(word) = self.used.get_mut(slot / 64) else { return };
        let empty = *word == 0;
        *word |= 1 << (slot % 64);
        if empty && let Some(words) = self.summary.get_mut(slot / 4096) {
            *words |= 1 << (slot / 64 % 64);
        }
    }

    #[inline(always)]
    fn unlink(&mut self, timers: &mut [Timer], train: u32) {
        let Some(&Timer { previous, next, slot, .. }) = timers.get(train as usize) else { return };
        if slot == NEVER {
            return;
        }
        if let Some(next) = timers.get_mut(next as usize) {
            next.previous = previous;
        }
        match timers.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.set_head(slot, next),
        }
    }

    #[inline]
    fn set_head(&mut self, tick: u64, train: u32) {
        let slot = self.slot(tick);
        if let Some(head) = self.heads.get_mut(slot) {
            *head = train;
        }
        if train == NONE {
            if let Some(word) = self.used.get_mut(slot / 64) {
                *word &= !(1 << (slot % 64));
                if *word == 0
                    && let Some(word) = self.summary.get_mut(slot / 4096)
                {
                    *word &= !(1 << (slot / 64 % 64));
                }
            }
            if tick == self.first {
                self.set_first(self.after(slot));
            }
        }
    }

    /// The time at which the first slot with a train is due, all of which are behind this one.
    fn after(&self, slot: usize) -> u64 {
        // The rest of this word, the words behind it, then those before it, and its beginning.
        let word = |at: usize| self.used.get(at).copied().unwrap_or(0);
        let rest = word(slot / 64) >> (slot % 64);
        if rest != 0 {
            return self.first + (u64::from(rest.trailing_zeros()) << self.shift);
        }
        let found = self.word_from(slot / 64 + 1).or_else(|| self.word_from(0));
        found.map_or(NEVER, |at| {
            let found = at * 64 + word(at).trailing_zeros() as usize;
            self.first + (((found.wrapping_sub(slot) % SLOTS) as u64) << self.shift)
        })
    }

    /// The first word that is not 0, from number `from` on.
    fn word_from(&self, from: usize) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for at in from / 64..self.summary.len() {
            let rest = self.summary.get(at).map_or(0, |bits| bits & mask);
            if rest != 0 {
                return Some(at * 64 + rest.trailing_zeros() as usize);
            }
            mask = u64::MAX;
        }
        None
    }

    /// See [`Timers::settle`].
    fn settle(&mut self, timers: &mut [Timer]) -> Option<u32> {
        while self.first != NEVER {
            let tick = self.first;
            let slot = self.slot(tick);
            let mut at = self.heads.get(slot).copied().unwrap_or(NONE);
            while let Some(timer) = timers.get_mut(at as usize) {
                let (due, next) = (timer.due, timer.next);
                if due == tick {
                    // Those before it have gone.
                    timer.previous = NONE;
                    if let Some(head) = self.heads.get_mut(slot) {
                        *head = at;
                    }
                    return Some(at);
                }
                // It is due later than anything that `first` may become by its going.
                self.link(timers, at, due);
                at = next;
            }
            self.set_head(tick, NONE);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn the_first_is_found(
            holds in prop::collection::vec(prop_oneof![100u64..5000, 8000u64..10_000_000], 1..4),
            steps in prop::collection::vec((0u32..12, 0u64..1000, 0u64..1000, 0u8..5), 0..300),
        ) {
            let scales: Vec<GapScale> = holds.iter().map(|hold| GapScale::new(*hold)).collect();
            let mut timers = Timers::new(4, scales.iter());
            let wheel = |train: u32| train as usize % holds.len();
            let mut twin: Vec<(u64, u32)> = Vec::new();
            let (mut now, mut bounds) = (0, [Nanos(0); 12]);
            for (train, gap, wait, what) in steps {
                let (at, hold) = (wheel(train), holds[wheel(train)]);
                now += hold * gap * gap / 4_000_000;
                while let Some(first) = timers.settle().filter(|_| timers.due().0 <= now) {
                    let due = twin.iter().map(|t| t.0).min().unwrap();
                    prop_assert!(twin.contains(&(due, first)) && due == timers.due().0);
                    timers.wheel(wheel(first) as u8).clear(first);
                    twin.retain(|t| t.1 != first);
                }
                prop_assert!(twin.iter().all(|t| t.0 > now));
                if what == 0 {
                    timers.wheel(at as u8).clear(train);
                    twin.retain(|t| t.1 != train);
                } else {
                    let wait = 1 + hold * wait / 1000;
                    let wake = Nanos(now + wait + Timers::rounding(&scales[at]));
                    let known = twin.iter().any(|t| t.1 == train);
                    let bound = if known { bounds[train as usize] } else { Nanos(now + hold) };
                    bounds[train as usize] = bound;
                    // The first tick that begins no earlier than the wait ends, but no tick behind the bound.
                    let tick = 1 << scales[at].shift();
                    let end = (now + wait).div_ceil(tick) * tick;
                    let due = end.min(bound.0 / tick * tick);
                    timers.cover(train as usize + 1);
                    if known {
                        prop_assert!(timers.wheel(at as u8).join(train, Nanos(now), wake, bound));
                    } else {
                        prop_assert_eq!(timers.wheel(at as u8).begin(train, Nanos(now), wake, bound), due > now);
                    }
                    twin.retain(|t| t.1 != train);
                    if due > now {
                        twin.push((due, train));
                    }
                }
                prop_assert!(timers.due().0 <= twin.iter().map(|t| t.0).min().unwrap_or(u64::MAX));
                if what == 4 {
                    timers.settle();
                    prop_assert_eq!(timers.due().0, twin.iter().map(|t| t.0).min().unwrap_or(u64::MAX));
                }
            }
        }
    }
}
