//! Packets of a pool whose payloads wait elsewhere: their slot ends in whose payload it is, and its token, so
//! that it is known of those that are dropped.
//!
//! A payload may wait in the packet's own slot, behind the packet. Such a slot is free when both the packet
//! and its payload are gone: a packet that is dropped leaves the slot to its payload, a payload that is given
//! up leaves it to the packet.

use alloc::vec::Vec;

use super::{
    BufId, CLASS, CLASS_UNITS, HEADER, Head, IN_PLACE, LEFT, Memory, OVERSIZE, PacketMeta, Pool, SLICED,
    TAIL, UNIT, head, is_in_place, is_sliced, siblings,
};

/// Tokens of dropped packets that another process may report before they are asked about.
pub(super) const MOST_DROPPED: usize = 1 << 16;
/// Bytes of a sliced packet whose slot is two cache lines: almost every one.
pub const SHORT: usize = 2 * UNIT - HEADER - TAIL;

const _: () = assert!(CLASS_UNITS[1] == 2);

/// The bytes at the end of a sliced packet's slot: its token, and its owner.
#[inline]
fn tail_of(owner: u32, token: u64) -> [u8; TAIL] {
    let [a, b, c, d] = owner.to_le_bytes();
    let [e, f, g, h, i, j, k, l] = token.to_le_bytes();
    [e, f, g, h, i, j, k, l, a, b, c, d]
}

/// The slot of a packet that is about to be sliced in its place.
#[derive(Debug)]
pub struct Slot<'a> {
    class: &'a mut u8,
    /// The packet, to be changed.
    pub packet: &'a mut [u8],
    tail: &'a mut [u8; TAIL],
}

impl Slot<'_> {
    /// The packet is sliced now, and its payload, which stays where it is, this owner's as well.
    #[inline(always)]
    pub fn slice(self, owner: u32, token: u64) {
        *self.class |= SLICED | IN_PLACE;
        *self.tail = tail_of(owner, token);
    }
}

/// The slot of a packet that may have been sliced in its place.
#[derive(Debug)]
pub struct SlicedSlot<'a> {
    memory: &'a mut Memory,
    start: usize,
}

impl SlicedSlot<'_> {
    /// The first `len` bytes of the packet, and where it was sliced in its place, of its payload behind it.
    #[inline(always)]
    pub fn packet(&mut self, len: usize) -> Option<&mut [u8]> {
        let start = self.start + HEADER;
        self.memory.get_mut(start..start + len)
    }

    /// The packet has its payload again.
    #[inline(always)]
    pub fn make_whole(self) {
        if let Some([class]) = self.memory.get_mut(self.start..self.start + 1) {
            *class &= CLASS;
        }
    }
}

/// Lengths of a packet whose payload may wait elsewhere, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Its length on the wire, the waiting payload included, a token not.
    pub wire: u32,
    /// The most that its headers can tell of: what was on the wire, captured or not; of a sliced packet what
    /// is here.
    pub here: u32,
    /// Bytes that the whole packet has beyond those that the headers tell of: the waiting payload less the
    /// token that stands for it. -8 where a token stands for none.
    pub elsewhere: i64,
}

impl Lengths {
    /// The lengths of what lies from byte `start` of the packet on.
    #[inline]
    #[must_use]
    pub fn behind(self, start: u32) -> Self {
        let Self { wire, here, elsewhere } = self;
        Self { wire: wire.saturating_sub(start), here: here.saturating_sub(start), elsewhere }
    }

    /// Length of the whole packet whose header says `said` bytes.
    #[inline]
    #[must_use]
    pub fn whole(&self, said: u32) -> u32 {
        (i64::from(said) + self.elsewhere).clamp(0, i64::from(u32::MAX)) as u32
    }
}

impl Pool {
    /// The slot of a whole packet of `len` bytes; `None` where it can't be sliced in its place: packets of a
    /// preloaded trace, those whose slot has no room behind them, and where a sibling may free the one while
    /// this pool has the other.
    #[inline(always)]
    pub fn sliceable(&mut self, id: BufId, len: u32) -> Option<Slot<'_>> {
        if self.fixed {
            return None;
        }
        // No other than a whole packet has just a size class there.
        let units = *CLASS_UNITS.get(usize::from(self.class(id.0)?))?;
        let (slot, tail) = self.slot_mut(id.0, units * UNIT)?.split_last_chunk_mut()?;
        let ([class, ..], packet) = slot.split_first_chunk_mut::<HEADER>()?;
        Some(Slot { class, packet: packet.get_mut(..len as usize)?, tail })
    }

    /// The slot of a packet that may have been sliced in its place.
    #[inline(always)]
    pub fn sliced_slot(&mut self, id: BufId) -> SlicedSlot<'_> {
        SlicedSlot { memory: &mut self.memory, start: id.0 as usize * UNIT }
    }

    /// Takes over the slot of a payload whose packet is gone from there: it is a whole packet's, as it was
    /// before that was sliced; not where the packet is still there.
    pub fn take_back(&mut self, id: BufId) -> bool {
        let Some(class) = self.class_mut(id.0) else { return false };
        let gone = is_in_place(*class) && *class & LEFT != 0;
        if gone {
            *class &= CLASS;
        }
        gone
    }

    /// Gives back the place of a payload that nobody waits for any more. It may be that of its packet too.
    pub fn free_payload(&mut self, id: BufId) {
        if !self.take_back(id)
            && let Some(class) = self.class_mut(id.0).filter(|class| is_in_place(**class))
        {
            *class &= !IN_PLACE;
            return;
        }
        self.free(id);
    }

    /// A sliced packet goes; where its payload waits in the slot, that stays.
    #[inline]
    pub(super) fn leave(&mut self, id: BufId, class: u8) {
        if class & IN_PLACE == 0 {
            return self.free_class(id, class & CLASS);
        }
        if let Some(place) = self.class_mut(id.0) {
            *place = class | LEFT;
        }
    }

    /// Stores a packet whose payload waits elsewhere. Freed with [`Pool::free`], as a packet is that is
    /// dropped, it is reported to `owner`: [`Pool::take_dropped`].
    #[inline]
    pub fn insert_sliced(&mut self, meta: PacketMeta, data: &[u8], owner: u32, token: u64) -> BufId {
        self.insert_sliced_with(meta, data.len(), (owner, token), |to| to.copy_from_slice(data))
    }

    /// The same, of `len` bytes, which `fill` writes.
    #[inline]
    pub fn insert_sliced_with(
        &mut self,
        meta: PacketMeta,
        len: usize,
        (owner, token): (u32, u64),
        fill: impl FnOnce(&mut [u8]),
    ) -> BufId {
        let (id, class) = self.allocate(len + HEADER + TAIL);
        let class = if class == OVERSIZE { class } else { class | SLICED };
        self.live += 1;
        if let Some((header, data)) = self.packet_bytes_mut(BufId(id), len as u32) {
            *header = head(meta, class);
            fill(data);
        }
        let at = self.room(id, class);
        if is_sliced(class)
            && let Some(slot) = self.slot_mut(id, at + TAIL)
            && let Some(tail) = slot.last_chunk_mut::<TAIL>()
        {
            *tail = tail_of(owner, token);
        }
        BufId(id)
    }

    /// As [`Pool::insert_sliced`] for a packet of at most [`SHORT`] bytes: those given, which `change` makes
    /// the packet.
    #[inline]
    pub fn insert_short(
        &mut self,
        meta: Head,
        bytes: &[u8; SHORT],
        owner: u32,
        token: u64,
        change: impl FnOnce(&mut [u8; SHORT]),
    ) -> BufId {
        const CLASS: u8 = 1;
        let (id, class) = match self.free.get_mut(usize::from(CLASS)).and_then(Vec::pop) {
            Some(id) => (id, CLASS),
            None => self.allocate(2 * UNIT),
        };
        self.live += 1;
        if class != CLASS {
            return self.fill_short(id, class, meta, bytes, tail_of(owner, token), change);
        }
        if let Some(slot) = self.slot_mut(id, 2 * UNIT)
            && let Some((header, rest)) = slot.split_first_chunk_mut::<HEADER>()
            && let Some((short, rest)) = rest.split_first_chunk_mut::<SHORT>()
            && let Some(tail) = rest.first_chunk_mut::<TAIL>()
        {
            *short = *bytes;
            *header = meta.of_class(CLASS | SLICED);
            change(short);
            *tail = tail_of(owner, token);
        }
        BufId(id)
    }

    /// As [`Pool::insert_short`], in a slot of another class.
    #[cold]
    fn fill_short(
        &mut self,
        id: u32,
        class: u8,
        meta: Head,
        bytes: &[u8; SHORT],
        tail: [u8; TAIL],
        change: impl FnOnce(&mut [u8; SHORT]),
    ) -> BufId {
        let class = class | SLICED;
        let end = self.room(id, class) + TAIL;
        if let Some((slot, to)) = self.slot_mut(id, end).and_then(<[u8]>::split_last_chunk_mut::<TAIL>)
            && let Some((header, rest)) = slot.split_first_chunk_mut::<HEADER>()
            && let Some(short) = rest.first_chunk_mut::<SHORT>()
        {
            *short = *bytes;
            *header = meta.of_class(class);
            change(short);
            *to = tail;
        }
        BufId(id)
    }

    /// A sliced packet is freed: its owner is to know.
    pub(super) fn report_freed(&mut self, id: BufId) {
        self.dropped.extend(self.sliced_of(id));
        if let Some(sibling) = &self.sibling {
            sibling.mail(&mut self.dropped, siblings::MAIL);
        }
    }

    /// The owner of a sliced packet, and its token; `None` for a packet that is whole.
    pub(super) fn tail(&self, id: u32, class: u8) -> Option<(u32, u64)> {
        if !is_sliced(class) {
            return None;
        }
        let tail = self.slot(id, self.room(id, class) + TAIL)?.last_chunk::<TAIL>()?;
        let [a, b, c, d, e, f, g, h, owner @ ..] = *tail;
        Some((u32::from_le_bytes(owner), u64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }

    /// Returns true if a packet's payload waits elsewhere: it is shorter by as much as its length on the wire
    /// says.
    #[inline]
    #[must_use]
    pub fn is_sliced(&self, id: BufId) -> bool {
        self.class(id.0).is_some_and(is_sliced)
    }

    /// The lengths of a packet of which `len` bytes are here.
    #[inline]
    #[must_use]
    pub fn lengths(&self, id: BufId, len: u32) -> Lengths {
        let wire = self.meta(id).original_len;
        if self.is_sliced(id) {
            Lengths { wire, here: len, elsewhere: i64::from(wire) - i64::from(len) }
        } else {
            Lengths { wire, here: wire, elsewhere: 0 }
        }
    }

    /// Gives back the place of a sliced packet that is whole again elsewhere.
    #[inline]
    pub fn free_spliced(&mut self, id: BufId) {
        let class = self.class(id.0).unwrap_or(OVERSIZE);
        if self.retains() {
            return;
        }
        if class == OVERSIZE { self.free_class(id, class) } else { self.leave(id, class) }
    }

    /// Calls `each` with the tokens of this owner's sliced packets that were dropped since this was asked
    /// last.
    #[inline]
    pub fn take_dropped(&mut self, owner: u32, mut each: impl FnMut(u64)) {
        if self.has_dropped() {
            self.take_dropped_of(|whose| whose == owner, |_, token| each(token));
        }
    }

    /// As [`Pool::take_dropped`], of all owners that `whose` says.
    pub fn take_dropped_of(&mut self, whose: impl Fn(u32) -> bool, mut each: impl FnMut(u32, u64)) {
        let mut stays = |&(owner, token): &(u32, u64)| {
            let taken = whose(owner);
            if taken {
                each(owner, token);
            }
            !taken
        };
        self.dropped.retain(&mut stays);
        if let Some(sibling) = &self.sibling {
            sibling.take_mail(stays);
        }
    }

    /// Returns true if sliced packets were dropped that nobody has asked about.
    #[inline]
    pub fn has_dropped(&self) -> bool {
        !self.dropped.is_empty() || self.sibling.as_ref().is_some_and(|sibling| sibling.has_mail())
    }

    /// A sliced packet of this owner was dropped elsewhere. Beyond `MOST_DROPPED` that nobody asks about it
    /// is forgotten.
    pub fn report_dropped(&mut self, owner: u32, token: u64) {
        if self.dropped.len() < MOST_DROPPED {
            self.dropped.push((owner, token));
        }
    }

    /// The owner of a sliced packet, and its token; `None` for a packet that is whole.
    pub fn sliced_of(&self, id: BufId) -> Option<(u32, u64)> {
        let class = self.class(id.0)?;
        self.tail(id.0, class)
    }

    /// As [`Pool::free_spliced`], for a packet that begins so.
    #[inline]
    pub fn free_short(&mut self, id: BufId, Head([class, ..]): Head) {
        if class == OVERSIZE || self.retains() {
            return self.free_spliced(id);
        }
        self.leave(id, class);
    }
}
