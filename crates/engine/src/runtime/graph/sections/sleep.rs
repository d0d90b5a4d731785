//! Sleeping and waking of the threads of sections.

use std::sync::atomic::Ordering;

use super::{NAP, Sections, lock};

impl Sections {
    /// A chunk has come to a section, or went through the one before it: wakes who sleeps, if it is worth it.
    pub(super) fn tell(&self, at: usize) {
        let last = || self.under_way.load(Ordering::Acquire) == 0 || self.closed.load(Ordering::Acquire);
        if self.several == 1 || self.waiting(at) >= self.several || last() {
            self.ring();
        }
    }

    /// Something has changed: wakes who sleeps.
    pub(super) fn ring(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        if self.sleeping.load(Ordering::SeqCst) > 0 {
            let _held = lock(&self.bell.0);
            self.bell.1.notify_all();
        }
    }

    /// Sleeps a little, unless something has changed since there were so many changes.
    pub(super) fn sleep(&self, changes: usize) {
        self.sleeping.fetch_add(1, Ordering::SeqCst);
        let held = lock(&self.bell.0);
        if self.changes() == changes {
            drop(self.bell.1.wait_timeout(held, NAP));
        }
        self.sleeping.fetch_sub(1, Ordering::SeqCst);
    }

    /// Sleeps a little, unless there is room for several chunks before a section.
    pub(super) fn sleep_before(&self, at: usize) {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        let held = lock(&self.room.0);
        if !self.has_room(at) && !self.is_stopped() {
            drop(self.room.1.wait_timeout(held, NAP));
        }
        self.blocked.fetch_sub(1, Ordering::SeqCst);
    }

    /// There is more room before a section: wakes who waits for it, once there is enough.
    pub(super) fn made_room(&self, at: usize) {
        if self.blocked.load(Ordering::SeqCst) > 0 && self.has_room(at) {
            let _held = lock(&self.room.0);
            self.room.1.notify_all();
        }
    }

    pub(super) fn has_room(&self, at: usize) -> bool {
        self.waiting(at) + self.several <= self.most
    }

    /// Sleeps until a thread may find something to do again.
    pub(super) fn rest(&self, thread: usize, changes: usize) {
        let behind = self.own(thread).end;
        if self.is_full(behind) {
            self.sleep_before(behind);
        } else {
            self.sleep(changes);
        }
    }

    /// The number of changes so far.
    pub(super) fn changes(&self) -> usize {
        self.changes.load(Ordering::SeqCst)
    }
}
