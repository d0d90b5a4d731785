//! Deadlines that differ by train: one list for each time that a train may wait for its next packet.
//!
//! There are few such times, and trains join a list in the order of time; hence a list is in the order of its
//! deadlines, every operation is O(1), and deadlines are exact.

use alloc::vec::Vec;

use super::WAITS;
use crate::flow_table::NONE;
use slipstream_core::time::Nanos;

/// The list of a train that is in none.
const NO_LIST: u8 = u8::MAX;

/// The place of a train in a list.
#[derive(Clone, Copy, Debug)]
struct Timer {
    due: Nanos,
    previous: u32,
    next: u32,
    list: u8,
}

const IDLE: Timer = Timer { due: Nanos::MAX, previous: NONE, next: NONE, list: NO_LIST };

#[derive(Clone, Copy, Debug)]
struct Ends {
    head: u32,
    tail: u32,
}

/// The lists.
#[derive(Debug)]
pub(crate) struct Timers {
    /// By the number of the train.
    timers: Vec<Timer>,
    lists: [Ends; WAITS],
    /// A bit for each list that is not empty.
    used: u32,
    /// The first deadline of all, and the list that has it.
    due: Nanos,
    first: u8,
}

impl Timers {
    /// No train waits. Memory for `trains` is reserved.
    pub(crate) fn new(trains: usize) -> Self {
        Self {
            timers: Vec::with_capacity(trains),
            lists: [Ends { head: NONE, tail: NONE }; WAITS],
            used: 0,
            due: Nanos::MAX,
            first: 0,
        }
    }

    /// When the first train is due; [`Nanos::MAX`] when none is.
    #[inline(always)]
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }

    /// The train that is due first.
    pub(crate) fn first_due(&self) -> Option<u32> {
        self.lists.get(usize::from(self.first)).map(|l| l.head).filter(|h| *h != NONE)
    }

    /// A train is to leave at `due`, which is not before any that list `list` has got.
    #[inline]
    pub(crate) fn set(&mut self, train: u32, list: u8, due: Nanos) {
        self.clear(train);
        if self.timers.len() <= train as usize {
            self.timers.resize(train as usize + 1, IDLE);
        }
        let Some(ends) = self.lists.get_mut(usize::from(list)) else { return };
        let previous = core::mem::replace(&mut ends.tail, train);
        if previous == NONE {
            ends.head = train;
            self.used |= 1 << list;
            if due < self.due {
                (self.due, self.first) = (due, list);
            }
        } else if let Some(previous) = self.timers.get_mut(previous as usize) {
            previous.next = train;
        }
        if let Some(timer) = self.timers.get_mut(train as usize) {
            *timer = Timer { due, previous, next: NONE, list };
        }
    }

    /// A train has no such deadline any more.
    #[inline]
    pub(crate) fn clear(&mut self, train: u32) {
        let Some(timer) = self.timers.get_mut(train as usize).filter(|t| t.list != NO_LIST) else { return };
        let Timer { previous, next, list, .. } = core::mem::replace(timer, IDLE);
        let Some(ends) = self.lists.get_mut(usize::from(list)) else { return };
        match self.timers.get_mut(next as usize) {
            Some(next) => next.previous = previous,
            None => ends.tail = previous,
        }
        match self.timers.get_mut(previous as usize) {
            Some(previous) => previous.next = next,
            None => {
                ends.head = next;
                if next == NONE {
                    self.used &= !(1 << list);
                }
                if self.first == list {
                    self.find_first();
                }
            }
        }
    }

    fn find_first(&mut self) {
        let (mut used, mut first) = (self.used, (Nanos::MAX, 0));
        while used != 0 {
            let list = used.trailing_zeros() as u8;
            used &= used - 1;
            let head = self.lists.get(usize::from(list)).map_or(NONE, |l| l.head);
            let due = self.timers.get(head as usize).map_or(Nanos::MAX, |t| t.due);
            if due < first.0 {
                first = (due, list);
            }
        }
        (self.due, self.first) = first;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is searched from end to end.
        #[test]
        fn the_first_is_found(steps in prop::collection::vec((0u32..12, 0u8..6, 0u64..3, 0u8..4), 0..200)) {
            let mut timers = Timers::new(4);
            let mut twin: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for (train, list, gap, what) in steps {
                now += gap;
                match what {
                    0 => {
                        timers.clear(train);
                        twin.retain(|t| t.1 != train);
                    }
                    1 => while let Some(first) = timers.first_due().filter(|_| timers.due().0 <= now) {
                        let due = twin.iter().map(|t| t.0).min().unwrap();
                        prop_assert!(twin.contains(&(due, first)) && due == timers.due().0);
                        timers.clear(first);
                        twin.retain(|t| t.1 != first);
                    },
                    _ => {
                        let due = now + [1, 2, 4, 9, 20, 50][usize::from(list)];
                        timers.set(train, list, Nanos(due));
                        twin.retain(|t| t.1 != train);
                        twin.push((due, train));
                    }
                }
                prop_assert_eq!(timers.due().0, twin.iter().map(|t| t.0).min().unwrap_or(u64::MAX));
            }
        }
    }
}
