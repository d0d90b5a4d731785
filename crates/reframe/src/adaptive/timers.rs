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
/// A tick that never comes.
const NEVER: u64 = u64::MAX;

/// The place of a train in a slot.
#[derive(Clone, Copy, Debug)]
struct Timer {
    /// The tick at which the train is due, and that of the slot which it is in; [`NEVER`] if in none.
    due: u64,
    slot: u64,
    /// The tick that it must not wait beyond.
    bound: u64,
    previous: u32,
    next: u32,
}

const _: () = assert!(size_of::<Timer>() == 32);

const IDLE: Timer = Timer { due: NEVER, slot: NEVER, bound: NEVER, previous: NONE, next: NONE };

/// The wheel.
#[derive(Debug)]
pub(crate) struct Timers {
    /// A tick has two to the power of this ns.
    shift: u32,
    /// By the number of the train.
    timers: Vec<Timer>,
    /// The first train of each slot.
    heads: Box<[u32; SLOTS]>,
    /// A bit for each slot that has a train, and one for each word of those that is not 0.
    used: [u64; WORDS],
    summary: [u64; WORDS / 64],
    /// The first tick of whose slot a train is in; no train is due before.
    first: u64,
}

impl Timers {
    /// Bytes for a train.
    pub(crate) const BYTES: usize = size_of::<Timer>();

    /// No train waits. Memory for `trains` is reserved.
    pub(crate) fn new(trains: usize, scale: &GapScale) -> Self {
        Self {
            shift: scale.shift(),
            timers: Vec::with_capacity(trains),
            heads: Box::new([NONE; SLOTS]),
            used: [0; WORDS],
            summary: [0; WORDS / 64],
            first: NEVER,
        }
    }

    /// No train is due before this; [`Nanos::MAX`] when there is none. It is the first deadline after
    /// [`Timers::settle`].
    #[inline(always)]
    pub(crate) fn due(&self) -> Nanos {
        if self.first == NEVER { Nanos::MAX } else { Nanos(self.first << self.shift) }
    }

    /// Room for a train of any number below this.
    #[inline(always)]
    pub(crate) fn cover(&mut self, trains: usize) {
        if self.timers.len() < trains {
            self.timers.resize(trains, IDLE);
        }
    }

    /// The tick that a time is in.
    #[inline(always)]
    pub(crate) fn tick(&self, time: Nanos) -> u64 {
        time.0 >> self.shift
    }

    /// The first tick that begins no earlier than `ns` from now.
    #[inline(always)]
    pub(crate) fn wake(&self, now: Nanos, ns: u64) -> u64 {
        self.tick(now.after(ns + ((1 << self.shift) - 1)))
    }

    /// Returns true if a tick has no slot yet: trains that are due more than a turn before must leave first.
    #[inline(always)]
    fn is_too_far(&self, tick: u64) -> bool {
        self.first != NEVER && tick.saturating_sub(self.first) >= SLOTS as u64
    }

    /// A train begins at the tick `now`, is to leave at `wake`, and must not wait beyond `bound`, which is no
    /// more than the longest hold away. Returns false if it can't wait at all, or if trains that are due by
    /// now must leave first. It must be covered; see [`Timers::cover`].
    #[inline(always)]
    pub(crate) fn begin(&mut self, train: u32, now: u64, wake: u64, bound: u64) -> bool {
        let bound = bound.min(NEVER - 1);
        let due = wake.min(bound);
        if due <= now || self.is_too_far(due) {
            return false;
        }
        if let Some(timer) = self.timers.get_mut(train as usize) {
            timer.bound = bound;
        }
        self.link(train, due);
        self.first = self.first.min(due);
        true
    }

    /// A packet joins a train at the tick `now`, which is to leave at `wake` from then on. Returns false if
    /// it is due already, or if others that are must leave first.
    #[inline(always)]
    pub(crate) fn join(&mut self, train: u32, now: u64, wake: u64) -> bool {
        let Some(timer) = self.timers.get_mut(train as usize).filter(|t| t.due > now) else { return false };
        let due = wake.min(timer.bound);
        if due.saturating_sub(self.first) >= SLOTS as u64 {
            return false;
        }
        timer.due = due;
        if due < timer.slot {
            self.move_to(train, due);
        }
        true
    }

    /// Moves a train to an earlier slot.
    #[inline(never)]
    fn move_to(&mut self, train: u32, due: u64) {
        self.unlink(train);
        self.link(train, due);
        self.first = self.first.min(due);
    }

    #[inline(always)]
    fn link(&mut self, train: u32, tick: u64) {
        let slot = tick as usize % SLOTS;
        let Some(head) = self.heads.get_mut(slot) else { return };
        let next = core::mem::replace(head, train);
        if let Some(timer) = self.timers.get_mut(train as usize) {
            (timer.due, timer.slot) = (tick, tick);
            (timer.previous, timer.next) = (NONE, next);
        }
        match self.timers.get_mut(next as usize) {
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

    /// A train has no deadline any more.
    #[inline]
    pub(crate) fn clear(&mut self, train: u32) {
        self.unlink(train);
        if let Some(timer) = self.timers.get_mut(train as usize) {
            *timer = IDLE;
        }
    }

    #[inline(always)]
    fn unlink(&mut self, train: u32) {
        let Some(&Timer { previous, next, slot, .. }) = self.timers.get(train as usize) else { return };
        if slot == NEVER {
            return;
        }
        if let Some(next) = self.timers.get_mut(next as usize) {
            next.previous = previous;
        }
        match self.timers.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => self.set_head(slot, next),
        }
    }

    #[inline]
    fn set_head(&mut self, tick: u64, train: u32) {
        let slot = tick as usize % SLOTS;
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
                self.first = self.after(tick);
            }
        }
    }

    /// The first tick with a train, where none is before `tick`.
    fn after(&self, tick: u64) -> u64 {
        let slot = tick as usize % SLOTS;
        let of_turn = |found: usize| tick + (found.wrapping_sub(slot) % SLOTS) as u64;
        // The rest of this word, the words behind it, then those before it, and its beginning.
        let word = |at: usize| self.used.get(at).copied().unwrap_or(0);
        let rest = word(slot / 64) >> (slot % 64) << (slot % 64);
        if rest != 0 {
            return of_turn(slot / 64 * 64 + rest.trailing_zeros() as usize);
        }
        let begin = slot / 64 + 1;
        let found = self.word_from(begin).or_else(|| self.word_from(0));
        found.map_or(NEVER, |at| of_turn(at * 64 + word(at).trailing_zeros() as usize))
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

    /// Lets trains that are first in the wheel, but due later, move on to their places, up to the first that
    /// is due, which is returned.
    pub(crate) fn settle(&mut self) -> Option<u32> {
        while self.first != NEVER {
            let tick = self.first;
            let mut at = self.heads.get(tick as usize % SLOTS).copied().unwrap_or(NONE);
            while let Some(timer) = self.timers.get_mut(at as usize) {
                let (due, next) = (timer.due, timer.next);
                if due == tick {
                    // Those before it have gone.
                    timer.previous = NONE;
                    if let Some(head) = self.heads.get_mut(tick as usize % SLOTS) {
                        *head = at;
                    }
                    return Some(at);
                }
                // It is due later than anything that `first` may become by its going.
                self.link(at, due);
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
            hold in prop_oneof![100u64..5000, 8000u64..10_000_000],
            steps in prop::collection::vec((0u32..12, 0u64..1000, 0u64..1000, 0u8..5), 0..300),
        ) {
            let mut timers = Timers::new(4, &GapScale::new(hold));
            let mut twin: Vec<(u64, u32)> = Vec::new();
            let (mut now, unit, mut bounds) = (0, 1 << timers.shift, [0; 12]);
            for (train, gap, wait, what) in steps {
                now += hold * gap * gap / 4_000_000;
                while let Some(first) = timers.settle().filter(|_| timers.due().0 <= now) {
                    let due = twin.iter().map(|t| t.0).min().unwrap();
                    prop_assert!(twin.contains(&(due, first)) && due == timers.due().0);
                    timers.clear(first);
                    twin.retain(|t| t.1 != first);
                }
                prop_assert!(twin.iter().all(|t| t.0 > now));
                if what == 0 {
                    timers.clear(train);
                    twin.retain(|t| t.1 != train);
                } else {
                    let (tick, wake) = (timers.tick(Nanos(now)), timers.wake(Nanos(now), 1 + hold * wait / 1000));
                    let known = twin.iter().any(|t| t.1 == train);
                    let bound = timers.tick(Nanos(now + hold));
                    timers.cover(train as usize + 1);
                    if known {
                        prop_assert!(timers.join(train, tick, wake));
                    } else {
                        bounds[train as usize] = bound;
                        prop_assert_eq!(timers.begin(train, tick, wake, bound), bound > tick);
                    }
                    twin.retain(|t| t.1 != train);
                    let due = wake.min(bounds[train as usize]);
                    if due > tick {
                        twin.push((due * unit, train));
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
