//! Places of packets, which are given out, taken back, and used again.

use super::{
    ADOPTED, AHEAD, BufId, CLASS, CLASS_UNITS, Freed, OVERSIZE, Pool, SLAB_UNITS, SLICED, TAIL, UNIT,
    is_sliced,
};
use crate::frame::Frame;
use crate::prefetch::prefetch_to_write;

/// Places that are sorted in one after the other: few enough for what was read of them to stay in the
/// first-level cache until they are given out.
const SORTED: usize = 64;

impl Pool {
    pub(super) fn allocate(&mut self, bytes: usize) -> (u32, u8) {
        let units = bytes.div_ceil(UNIT);
        let Some(class) = CLASS_UNITS.iter().position(|&u| units <= u) else {
            return (self.allocate_oversize(units.div_ceil(SLAB_UNITS)), OVERSIZE);
        };
        let units = CLASS_UNITS.get(class).copied().unwrap_or(units);
        if let Some(list) = self.free.get_mut(class)
            && let Some(id) = list.pop()
        {
            if self.sibling.is_some()
                && let Some(ahead) = list.len().checked_sub(AHEAD).and_then(|at| list.get(at))
            {
                // Another core freed the slot, and may have changed the packet in it.
                let at = *ahead as usize * UNIT;
                prefetch_to_write(self.memory.address(at));
                prefetch_to_write(self.memory.address(at + UNIT));
            }
            return (id, class as u8);
        }
        if let Some(id) = self.sort_out(class) {
            return (id, class as u8);
        }
        if self.bump.1 + units > SLAB_UNITS {
            return self.more(class, bytes);
        }
        let id = self.bump.0 + self.bump.1 as u32;
        self.bump.1 += units;
        (id, class as u8)
    }

    /// A slot of a class that has none free, where the slab being cut up has no room for it.
    #[cold]
    fn more(&mut self, class: usize, bytes: usize) -> (u32, u8) {
        if let Some(sibling) = &mut self.sibling
            && sibling.take_left()
            && let Some(id) = self.sort_out(class)
        {
            return (id, class as u8);
        }
        let units = CLASS_UNITS.get(class).copied().unwrap_or_default();
        let Self { free, sibling, adopted, slabs, memory, .. } = self;
        if let Some(adopted) = adopted
            && let Some(list) = free.get_mut(usize::from(ADOPTED))
            && let Some(id) = adopted.take(bytes, list)
        {
            return (id, ADOPTED);
        }
        if let Some(sibling) = sibling
            && let Some(list) = free.get_mut(class)
        {
            let id = sibling.more(class, units, list);
            self.settle();
            return (id, class as u8);
        }
        if let Some(adopted) = adopted {
            return (adopted.more(class, units, slabs, memory), class as u8);
        }
        let first = slabs.take(1);
        memory.grow(slabs.bytes());
        self.bump = (first, units);
        (first, class as u8)
    }

    /// So many slabs for one packet.
    #[cold]
    fn allocate_oversize(&mut self, n: usize) -> u32 {
        if let Some(sibling) = &self.sibling {
            return sibling.oversize(n);
        }
        let id = self.slabs.take_oversize(n);
        self.memory.grow(self.slabs.bytes());
        id
    }

    /// Gives the slabs of a packet back that has some of its own.
    #[cold]
    fn free_oversize(&mut self, id: u32) {
        let Self { sibling, slabs, memory, .. } = self;
        match sibling {
            Some(sibling) => sibling.free_oversize(id),
            None => slabs.free_oversize(id, |bytes| memory.release(bytes)),
        }
    }

    /// Bytes of a slot of this class, without the end that a sliced packet's token takes; 0 of a packet with
    /// a slab of its own.
    #[inline]
    pub(super) fn room(&self, id: u32, class: u8) -> usize {
        let bytes = match (class & CLASS, &self.adopted) {
            (ADOPTED, Some(adopted)) => adopted.room(id),
            (class, _) => CLASS_UNITS.get(usize::from(class)).map_or(0, |units| units * UNIT),
        };
        bytes.saturating_sub(if is_sliced(class) { TAIL } else { 0 })
    }

    /// Gives a packet's place back.
    #[inline]
    pub fn free(&mut self, id: BufId) {
        match self.freed {
            Freed::Here => self.free_slot(id),
            Freed::Elsewhere => self.leave_to_siblings(id),
            Freed::Never => {}
        }
    }

    /// The same for packets that leave together.
    #[inline]
    pub fn free_all(&mut self, frames: &[Frame]) {
        match (self.freed, &mut self.sibling) {
            (Freed::Never, _) => {}
            (Freed::Elsewhere, Some(sibling)) => {
                self.live -= frames.len() as i64;
                sibling.leave_all_of(frames);
            }
            _ => frames.iter().for_each(|frame| self.free_slot(frame.buf)),
        }
    }

    fn leave_to_siblings(&mut self, id: BufId) {
        let Some(sibling) = &mut self.sibling else { return self.free_slot(id) };
        self.live -= 1;
        sibling.leave(id.0);
    }

    /// A place of a class, where siblings freed some without a look at them: these are sorted in, many at a
    /// time, until there is one.
    #[inline(never)]
    fn sort_out(&mut self, class: usize) -> Option<u32> {
        let (mut some, mut odd) = ([0; SORTED], [0; SORTED]);
        loop {
            let Self { free, sibling, memory, .. } = self;
            let (list, sibling) = (free.get_mut(class)?, sibling.as_mut()?);
            if list.capacity() == 0 {
                sibling.make_room(class, list);
            }
            // No more than the list, which is empty, has room for.
            let some = some.get_mut(..list.capacity().min(SORTED))?;
            let n =
                sibling.take_unsorted(some, |next| prefetch_to_write(memory.address(next as usize * UNIT)));
            if n == 0 {
                return None;
            }
            // Most are of the class that is asked for, as most packets are about as long.
            let mut odds = odd.iter_mut();
            for id in some.iter().take(n) {
                let start = *id as usize * UNIT;
                if memory.get(start..start + 1).is_some_and(|first| *first == [class as u8]) {
                    list.push(*id);
                } else if let Some(odd) = odds.next() {
                    *odd = *id;
                }
            }
            let found = list.pop();
            let others = SORTED - odds.len();
            for id in odd.iter().take(others) {
                // It counts as freed already.
                self.live += 1;
                self.free_slot(BufId(*id));
            }
            if found.is_some() {
                return found;
            }
        }
    }

    #[inline]
    pub(super) fn free_slot(&mut self, id: BufId) {
        let Some(class) = self.class(id.0) else { return };
        self.free_class(id, class);
    }

    #[inline]
    pub(super) fn free_class(&mut self, id: BufId, class: u8) {
        if class & SLICED != 0 {
            return self.free_unusual(id, class);
        }
        self.live -= 1;
        if let Some(list) = self.free.get_mut(usize::from(class)) {
            if list.len() == list.capacity() {
                return self.overflow(usize::from(class), id.0);
            }
            list.push(id.0);
        }
    }

    /// Gives a slot back to a class whose list of free ones is full.
    #[cold]
    fn overflow(&mut self, class: usize, id: u32) {
        let Self { free, sibling, adopted, .. } = self;
        let Some(list) = free.get_mut(class) else { return };
        match (sibling, adopted) {
            (_, Some(adopted)) if class == usize::from(ADOPTED) => adopted.give_back(list),
            (Some(sibling), _) => sibling.make_room(class, list),
            (None, Some(adopted)) => return adopted.keep(class, id),
            (None, None) => {}
        }
        list.push(id);
        self.settle();
    }

    /// Gives back the place of a packet that has a slab of its own, or whose payload waits elsewhere.
    #[cold]
    fn free_unusual(&mut self, id: BufId, class: u8) {
        if class == OVERSIZE {
            self.live -= 1;
            self.free_oversize(id.0);
            return;
        }
        self.report_freed(id);
        self.leave(id, class);
    }
}
