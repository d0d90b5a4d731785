//! Packets of a pool whose payloads wait elsewhere: their slot ends in whose payload it is, and its token, so that it is known
//! of those that are dropped.
//!
//! A payload may wait in the packet's own slot, behind the packet. Such a slot is free when both the packet and its payload
//! are gone: a packet that is dropped leaves the slot to its payload, a payload that is given up leaves it to the packet.

use super::{
    BufId, CLASS, CLASS_UNITS, HEADER, Head, IN_PLACE, LEFT, OVERSIZE, PacketMeta, Pool, SLICED, TAIL, UNIT,
    head, is_in_place, is_sliced, room,
};

/// Tokens of dropped packets that another process may report before they are asked about.
const MOST_DROPPED: usize = 1 << 16;
/// Bytes of a sliced packet whose slot is two cache lines: almost every one.
pub(crate) const SHORT: usize = 2 * UNIT - HEADER - TAIL;

const _: () = assert!(CLASS_UNITS[1] == 2);

/// What the end of a sliced packet's slot says.
#[inline]
fn tail_of(owner: u32, token: u64) -> [u8; TAIL] {
    let [a, b, c, d] = owner.to_le_bytes();
    let [e, f, g, h, i, j, k, l] = token.to_le_bytes();
    [e, f, g, h, i, j, k, l, a, b, c, d]
}

/// The slot of a packet that is about to be sliced in its place.
#[derive(Debug)]
pub(crate) struct Slot<'a> {
    class: &'a mut u8,
    /// The packet, to be changed.
    pub(crate) packet: &'a mut [u8],
    tail: &'a mut [u8; TAIL],
}

impl Slot<'_> {
    /// The packet is sliced now, and its payload, which stays where it is, this owner's as well.
    #[inline(always)]
    pub(crate) fn slice(self, owner: u32, token: u64) {
        *self.class |= SLICED | IN_PLACE;
        *self.tail = tail_of(owner, token);
    }
}

/// The slot of a packet that may have been sliced in its place.
#[derive(Debug)]
pub(crate) struct SlicedSlot<'a> {
    class: &'a mut u8,
    /// The packet, and what stands behind it in the slot and further on.
    pub(crate) bytes: &'a mut [u8],
}

impl SlicedSlot<'_> {
    /// The packet has its payload again.
    #[inline(always)]
    pub(crate) fn make_whole(self) {
        *self.class &= CLASS;
    }
}

impl Pool {
    /// The slot of a whole packet of `len` bytes; `None` where it can't be sliced in its place: packets of a preloaded trace,
    /// and those whose slot has no room behind them.
    #[inline(always)]
    pub(crate) fn sliceable(&mut self, id: BufId, len: u32) -> Option<Slot<'_>> {
        if self.retain {
            return None;
        }
        let slot = self.slot_mut(id.0);
        // No other than a whole packet has just a size class there.
        let units = *CLASS_UNITS.get(usize::from(*slot.first()?))?;
        let (slot, tail) = slot.get_mut(..units * UNIT)?.split_last_chunk_mut()?;
        let ([class, ..], packet) = slot.split_first_chunk_mut::<HEADER>()?;
        Some(Slot { class, packet: packet.get_mut(..len as usize)?, tail })
    }

    /// A packet that may have been sliced in its place, and what stands behind it in the slot and further on.
    #[inline(always)]
    pub(crate) fn sliced_slot(&mut self, id: BufId) -> Option<SlicedSlot<'_>> {
        let ([class, ..], bytes) = self.slot_mut(id.0).split_first_chunk_mut::<HEADER>()?;
        Some(SlicedSlot { class, bytes })
    }

    /// Takes over the slot of a payload whose packet is gone from there: it is a whole packet's, as it was before that was
    /// sliced; not where the packet is still there.
    pub(crate) fn take_back(&mut self, id: BufId) -> bool {
        let Some(class) = self.slot_mut(id.0).first_mut() else { return false };
        let gone = is_in_place(*class) && *class & LEFT != 0;
        if gone {
            *class &= CLASS;
        }
        gone
    }

    /// Gives back the place of a payload that nobody waits for any more. It may be that of its packet too.
    pub(crate) fn free_payload(&mut self, id: BufId) {
        if !self.take_back(id)
            && let Some(class) = self.slot_mut(id.0).first_mut().filter(|class| is_in_place(**class))
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
        if let Some(place) = self.slot_mut(id.0).first_mut() {
            *place = class | LEFT;
        }
    }

    /// Stores a packet whose payload waits elsewhere. Freed with [`Pool::free`], as a packet is that is dropped, it is
    /// reported to `owner`: [`Pool::take_dropped`].
    #[inline]
    pub(crate) fn insert_sliced(&mut self, meta: PacketMeta, data: &[u8], owner: u32, token: u64) -> BufId {
        self.insert_sliced_with(meta, data.len(), (owner, token), |to| to.copy_from_slice(data))
    }

    /// The same, of `len` bytes, which `fill` writes.
    #[inline]
    pub(crate) fn insert_sliced_with(
        &mut self,
        meta: PacketMeta,
        len: usize,
        (owner, token): (u32, u64),
        fill: impl FnOnce(&mut [u8]),
    ) -> BufId {
        let (id, class) = self.allocate(len + HEADER + TAIL);
        let class = if class == OVERSIZE { class } else { class | SLICED };
        self.live += 1;
        let at = room(class);
        let slot = self.slot_mut(id);
        if let Some((header, rest)) = slot.split_first_chunk_mut::<HEADER>() {
            *header = head(meta, class);
            if let Some(to) = rest.get_mut(..len) {
                fill(to);
            }
        }
        if is_sliced(class)
            && let Some(tail) = slot.get_mut(at..).and_then(<[u8]>::first_chunk_mut::<TAIL>)
        {
            *tail = tail_of(owner, token);
        }
        BufId(id)
    }

    /// As [`Pool::insert_sliced`] for a packet of at most [`SHORT`] bytes: those given, which `change` makes the packet.
    #[inline]
    pub(crate) fn insert_short(
        &mut self,
        meta: Head,
        bytes: &[u8; SHORT],
        owner: u32,
        token: u64,
        change: impl FnOnce(&mut [u8; SHORT]),
    ) -> BufId {
        const CLASS: u8 = 1;
        let id = match self.free.get_mut(usize::from(CLASS)).and_then(Vec::pop) {
            Some(id) => id,
            None => self.allocate(2 * UNIT).0,
        };
        self.live += 1;
        if let Some((header, rest)) = self.slot_mut(id).split_first_chunk_mut::<HEADER>()
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

    /// Whose sliced packet it is, and its token, if it is one.
    pub(super) fn tail(&self, id: u32, class: u8) -> Option<(u32, u64)> {
        let tail = self.slot(id).get(room(class)..)?.first_chunk::<TAIL>().filter(|_| is_sliced(class))?;
        let [a, b, c, d, e, f, g, h, owner @ ..] = *tail;
        Some((u32::from_le_bytes(owner), u64::from_le_bytes([a, b, c, d, e, f, g, h])))
    }

    /// Whether a packet's payload waits elsewhere: it is shorter by as much as its length on the wire says.
    #[inline]
    #[must_use]
    pub fn is_sliced(&self, id: BufId) -> bool {
        self.slot(id.0).first().copied().is_some_and(is_sliced)
    }

    /// Gives back the place of a sliced packet that is whole again elsewhere.
    #[inline]
    pub(crate) fn free_spliced(&mut self, id: BufId) {
        let class = self.slot(id.0).first().copied().unwrap_or(OVERSIZE);
        if self.retain {
            return;
        }
        if class == OVERSIZE { self.free_class(id, class) } else { self.leave(id, class) }
    }

    /// Calls `each` with the tokens of this owner's sliced packets that were dropped since this was asked last.
    #[inline]
    pub fn take_dropped(&mut self, owner: u32, mut each: impl FnMut(u64)) {
        if self.dropped.is_empty() {
            return;
        }
        self.dropped.retain(|&(whose, token)| {
            if whose == owner {
                each(token);
            }
            whose != owner
        });
    }

    /// As [`Pool::take_dropped`], of all owners that `whose` says.
    pub(crate) fn take_dropped_of(&mut self, whose: impl Fn(u32) -> bool, mut each: impl FnMut(u32, u64)) {
        self.dropped.retain(|&(owner, token)| {
            let taken = whose(owner);
            if taken {
                each(owner, token);
            }
            !taken
        });
    }

    /// Whether sliced packets were dropped that nobody has asked about.
    #[inline]
    pub(crate) fn has_dropped(&self) -> bool {
        !self.dropped.is_empty()
    }

    /// A sliced packet of this owner was dropped elsewhere. Beyond [`MOST_DROPPED`] that nobody asks about it is forgotten.
    pub(crate) fn report_dropped(&mut self, owner: u32, token: u64) {
        if self.dropped.len() < MOST_DROPPED {
            self.dropped.push((owner, token));
        }
    }

    /// Whose sliced packet it is, and its token; `None` for one that is whole.
    pub(crate) fn sliced_of(&self, id: BufId) -> Option<(u32, u64)> {
        let class = self.slot(id.0).first().copied()?;
        self.tail(id.0, class)
    }

    /// As [`Pool::free_spliced`], for a packet that begins so.
    #[inline]
    pub(crate) fn free_short(&mut self, id: BufId, Head([class, ..]): Head) {
        if class == OVERSIZE || self.retain {
            return self.free_spliced(id);
        }
        self.leave(id, class);
    }
}
