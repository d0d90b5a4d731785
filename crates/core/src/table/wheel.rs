//! A lazy timing wheel: which entries are due.
//!
//! Time is cut into ticks of 2²⁶ ns (67 ms), and entries hang in lists, one for each of the next 1,024 ticks
//! (69 s). An entry that is used again is not moved: its list is looked through when its tick comes, and what
//! is not due then, or lies beyond the wheel, is hung up anew. So a use costs nothing here, and an entry is
//! visited about once per timeout.

use alloc::vec;
use alloc::vec::Vec;

use crate::time::Nanos;

use super::NONE;

const TICK_SHIFT: u32 = 26;
const SLOTS: u32 = 1024;

/// In no list, but in use.
const UNLINKED: u32 = u32::MAX;
/// Not in use.
const FREE: u32 = u32::MAX - 1;

#[derive(Clone, Copy, Debug)]
struct Link {
    prev: u32,
    next: u32,
    slot: u32,
}

/// The lists. Entries are numbers from 0, added in order.
#[derive(Debug)]
pub(super) struct Wheel {
    links: Vec<Link>,
    heads: Vec<u32>,
    /// The last tick whose list was emptied.
    cursor: u64,
    free: u32,
}

#[inline]
const fn tick_after(deadline: Nanos) -> u64 {
    (deadline.0 >> TICK_SHIFT) + 1
}

impl Wheel {
    pub(super) fn new(limit: usize) -> Self {
        Self { links: Vec::with_capacity(limit), heads: vec![NONE; SLOTS as usize], cursor: 0, free: NONE }
    }

    /// Memory of the lists of so many entries, in bytes.
    pub(super) fn memory(limit: u32) -> u64 {
        u64::from(limit) * size_of::<Link>() as u64 + u64::from(SLOTS) * size_of::<u32>() as u64
    }

    /// Takes a free number, or the next new one. The caller keeps their count within its limit.
    pub(super) fn take(&mut self) -> u32 {
        let id = self.free;
        match self.links.get_mut(id as usize) {
            Some(link) => {
                self.free = link.next;
                *link = Link { prev: NONE, next: NONE, slot: UNLINKED };
                id
            }
            None => {
                self.links.push(Link { prev: NONE, next: NONE, slot: UNLINKED });
                (self.links.len() - 1) as u32
            }
        }
    }

    /// Gives a number back; false if it was free.
    pub(super) fn give_back(&mut self, id: u32) -> bool {
        if !self.in_use(id) {
            return false;
        }
        self.unlink(id);
        if let Some(link) = self.links.get_mut(id as usize) {
            *link = Link { prev: NONE, next: self.free, slot: FREE };
            self.free = id;
        }
        true
    }

    pub(super) fn in_use(&self, id: u32) -> bool {
        self.links.get(id as usize).is_some_and(|link| link.slot != FREE)
    }

    /// Hangs an entry up for its deadline; for one that has none ([`Nanos::MAX`]) there is no list.
    pub(super) fn link(&mut self, id: u32, deadline: Nanos) {
        self.unlink(id);
        if deadline == Nanos::MAX {
            return;
        }
        let ahead = tick_after(deadline).saturating_sub(self.cursor).clamp(1, u64::from(SLOTS) - 1);
        let slot = ((self.cursor + ahead) % u64::from(SLOTS)) as u32;
        let Some(head) = self.heads.get_mut(slot as usize) else { return };
        let first = core::mem::replace(head, id);
        if let Some(link) = self.links.get_mut(first as usize) {
            link.prev = id;
        }
        if let Some(link) = self.links.get_mut(id as usize) {
            *link = Link { prev: NONE, next: first, slot };
        }
    }

    /// Hangs an entry up anew if its deadline comes before its list is looked through.
    #[inline(never)]
    pub(super) fn advance(&mut self, id: u32, deadline: Nanos) {
        let Some(link) = self.links.get(id as usize) else { return };
        if link.slot == FREE || deadline == Nanos::MAX {
            return;
        }
        let ahead = u64::from(link.slot).wrapping_sub(self.cursor) % u64::from(SLOTS);
        if link.slot == UNLINKED || tick_after(deadline) < self.cursor + ahead {
            self.link(id, deadline);
        }
    }

    fn unlink(&mut self, id: u32) {
        let Some(&Link { prev, next, slot }) = self.links.get(id as usize) else { return };
        if slot == FREE || slot == UNLINKED {
            return;
        }
        match self.links.get_mut(prev as usize) {
            Some(before) => before.next = next,
            None => {
                if let Some(head) = self.heads.get_mut(slot as usize) {
                    *head = next;
                }
            }
        }
        if let Some(after) = self.links.get_mut(next as usize) {
            after.prev = prev;
        }
        if let Some(link) = self.links.get_mut(id as usize) {
            *link = Link { prev: NONE, next: NONE, slot: UNLINKED };
        }
    }

    /// Returns true if every list whose tick has come is known to be empty.
    #[inline(always)]
    pub(super) fn is_quiet(&self, now: Nanos) -> bool {
        self.cursor >= now.0 >> TICK_SHIFT && self.head(self.cursor).is_none()
    }

    /// The next entry of a list whose tick has come, taken out of it; `None` when there is none up to `now`.
    pub(super) fn next_due(&mut self, now: Nanos) -> Option<u32> {
        let target = now.0 >> TICK_SHIFT;
        // After a long silence every list is looked through once, not once per tick that passed.
        self.cursor = self.cursor.max(target.saturating_sub(u64::from(SLOTS)));
        loop {
            // The list of the cursor's own tick is empty but for what a visit left there.
            if let Some(id) = self.head(self.cursor) {
                self.unlink(id);
                return Some(id);
            }
            if self.cursor >= target {
                return None;
            }
            self.cursor += 1;
        }
    }

    /// The first entry of the first list that is not empty.
    pub(super) fn soonest(&self) -> Option<u32> {
        (0..u64::from(SLOTS)).find_map(|ahead| self.head(self.cursor + ahead))
    }

    #[inline(always)]
    fn head(&self, tick: u64) -> Option<u32> {
        self.heads.get((tick % u64::from(SLOTS)) as usize).copied().filter(|&id| id != NONE)
    }
}
