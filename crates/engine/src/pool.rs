//! Where the bytes of packets live while they are inside.
//!
//! Memory comes in slabs of 8 MiB, cut into slots of 64-byte units by size class; a freed slot is used again by the
//! next packet of its class. A 60-byte packet takes 128 bytes, not a 2 KiB buffer, so thousands of held packets
//! fit a cache. Slabs are taken when first needed and kept. They lie one behind the other, so that a packet's number says
//! where its bytes are.

use std::fmt;

use memory::Memory;

use crate::prefetch::prefetch_at;
use crate::time::Nanos;

mod memory;
mod sliced;

pub(crate) use sliced::SHORT;

const UNIT: usize = 64;
const SLAB_UNITS: usize = 1 << 17;
const SLAB_BYTES: usize = SLAB_UNITS * UNIT;
/// Bytes that numbers of 32 bits can tell apart.
const MOST: usize = UNIT << 32;
const HEADER: usize = 16;
/// Slot sizes in units, up to 1 MiB. Larger packets get a slab of their own.
const CLASS_UNITS: [usize; 21] =
    [1, 2, 3, 4, 6, 8, 12, 16, 20, 26, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
const OVERSIZE: u8 = u8::MAX;
/// What of the first byte of a slot is its size class. [`OVERSIZE`] has all of it, and all that can be set beside it.
const CLASS: u8 = (1 << 5) - 1;
/// Set beside the size class of a packet whose payload waits elsewhere.
const SLICED: u8 = 1 << 6;
/// Set beside [`SLICED`]: the payload waits in the same slot, behind the packet. The slot is its table's as well.
const IN_PLACE: u8 = 1 << 5;
/// Set beside both: the packet is gone, and the slot is its table's alone.
const LEFT: u8 = 1 << 7;
/// What stands at the end of the slot of such a packet: its token, and whose it is.
const TAIL: usize = 12;

/// Bytes of a slot of this class, without the end that a sliced packet's token takes; 0 of a packet with a slab of its own.
#[inline]
fn room(class: u8) -> usize {
    let units = CLASS_UNITS.get(usize::from(class & CLASS)).copied().unwrap_or(0);
    (units * UNIT).saturating_sub(if is_sliced(class) { TAIL } else { 0 })
}

#[inline]
fn is_sliced(class: u8) -> bool {
    class != OVERSIZE && class & SLICED != 0
}

#[inline]
fn is_in_place(class: u8) -> bool {
    class != OVERSIZE && class & IN_PLACE != 0
}

/// The place of a packet in its [`Pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BufId(pub u32);

/// What is kept beside a packet's bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PacketMeta {
    /// Bytes on the wire.
    pub original_len: u32,
    /// Interface it was captured on, up to [`PacketMeta::MAX_INTERFACE`].
    pub interface: u32,
    /// The time that its capture gives, not clamped.
    pub time: Nanos,
}

impl PacketMeta {
    /// Highest interface number.
    pub const MAX_INTERFACE: u32 = (1 << 24) - 1;
}

/// A packet's meta data and size class as they stand before its bytes.
#[inline]
fn head(meta: PacketMeta, class: u8) -> [u8; HEADER] {
    let interface = meta.interface.min(PacketMeta::MAX_INTERFACE);
    let low = u64::from(meta.original_len) << 32 | u64::from(interface << 8 | u32::from(class));
    (u128::from(meta.time.0) << 64 | u128::from(low)).to_le_bytes()
}

/// What stands before a packet's bytes, to be carried to another packet as it is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head([u8; HEADER]);

impl Head {
    /// The same meta data, before a packet of another size class.
    #[inline(always)]
    fn of_class(self, class: u8) -> [u8; HEADER] {
        let Self([_, rest @ ..]) = self;
        let mut head = [class; HEADER];
        if let Some(place) = head.last_chunk_mut() {
            *place = rest;
        }
        head
    }
}

#[inline]
fn meta_of(head: &[u8; HEADER]) -> PacketMeta {
    let head = u128::from_le_bytes(*head);
    PacketMeta {
        original_len: (head >> 32) as u32,
        interface: head as u32 >> 8,
        time: Nanos((head >> 64) as u64),
    }
}

/// All packet bytes of one worker.
pub struct Pool {
    memory: Memory,
    /// Slabs that `memory` was taken for.
    slabs: usize,
    free: [Vec<u32>; CLASS_UNITS.len()],
    /// Slabs that nobody uses: where each stretch of them begins, and how many it has; in order, with others between them.
    free_slabs: Vec<(usize, usize)>,
    /// Packets with slabs of their own, and how many.
    oversize: Vec<(u32, usize)>,
    /// Number of the slab being cut up, in units, and its next unused unit.
    bump: (u32, usize),
    retain: bool,
    live: u64,
    /// For a packet that moves.
    scratch: Vec<u8>,
    /// Sliced packets that were freed: whose, and their tokens.
    dropped: Vec<(u32, u64)>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool").field("slabs", &self.slabs).field("live", &self.live).finish_non_exhaustive()
    }
}

impl Default for Pool {
    fn default() -> Self {
        Self::new()
    }
}

impl Pool {
    /// An empty pool.
    #[must_use]
    pub fn new() -> Self {
        Self {
            memory: Memory::new(),
            slabs: 0,
            free: [const { Vec::new() }; CLASS_UNITS.len()],
            free_slabs: Vec::new(),
            oversize: Vec::new(),
            bump: (0, SLAB_UNITS),
            retain: false,
            live: 0,
            scratch: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// Whether freed packets are kept.
    #[inline]
    #[must_use]
    pub fn retains(&self) -> bool {
        self.retain
    }

    /// From now on [`Pool::free`] keeps the bytes: the packets of a preloaded trace are read again and again.
    pub fn retain(&mut self) {
        self.retain = true;
    }

    /// Packets stored and not freed. Reads 0 when everything that came in has left.
    #[must_use]
    pub fn live(&self) -> u64 {
        self.live
    }

    /// Bytes of memory taken so far.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let unused: usize = self.free_slabs.iter().map(|(_, n)| n).sum();
        ((self.slabs - unused) * SLAB_BYTES) as u64
    }

    /// Stores a packet.
    pub fn insert(&mut self, meta: PacketMeta, data: &[u8]) -> BufId {
        self.insert_with(meta, data.len(), |to| to.copy_from_slice(data))
    }

    /// Stores a packet of `len` bytes, which `fill` writes; what was there before is some other packet's.
    #[inline]
    pub fn insert_with(&mut self, meta: PacketMeta, len: usize, fill: impl FnOnce(&mut [u8])) -> BufId {
        let (id, class) = self.allocate(len + HEADER);
        let slot = self.slot_mut(id);
        if let Some((header, rest)) = slot.split_first_chunk_mut::<HEADER>() {
            *header = head(meta, class);
            if let Some(to) = rest.get_mut(..len) {
                fill(to);
            }
        }
        self.live += 1;
        BufId(id)
    }

    fn allocate(&mut self, bytes: usize) -> (u32, u8) {
        let units = bytes.div_ceil(UNIT);
        let Some(class) = CLASS_UNITS.iter().position(|&u| units <= u) else {
            let slabs = units.div_ceil(SLAB_UNITS);
            let id = self.new_slabs(slabs);
            self.oversize.push((id, slabs));
            return (id, OVERSIZE);
        };
        let units = CLASS_UNITS.get(class).copied().unwrap_or(units);
        if let Some(id) = self.free.get_mut(class).and_then(Vec::pop) {
            return (id, class as u8);
        }
        if self.bump.1 + units > SLAB_UNITS {
            self.bump = (self.new_slabs(1), 0);
        }
        let id = self.bump.0 + self.bump.1 as u32;
        self.bump.1 += units;
        (id, class as u8)
    }

    /// So many slabs, one behind the other; returns the number of the first in units.
    #[cold]
    fn new_slabs(&mut self, n: usize) -> u32 {
        let first = match self.free_slabs.iter().position(|(_, free)| *free >= n) {
            Some(at) => match self.free_slabs.get_mut(at) {
                Some((first, free)) if *free > n => {
                    *free -= n;
                    *first + *free
                }
                _ => self.free_slabs.remove(at).0,
            },
            None => {
                let first = self.slabs;
                self.slabs += n;
                self.memory.grow(self.slabs * SLAB_BYTES);
                first
            }
        };
        (first * SLAB_UNITS) as u32
    }

    /// Gives the slabs of a packet back that has some of its own.
    #[cold]
    fn free_oversize(&mut self, id: u32) {
        let Some(at) = self.oversize.iter().position(|(of, _)| *of == id) else { return };
        let (_, n) = self.oversize.swap_remove(at);
        let first = id as usize / SLAB_UNITS;
        self.memory.release(first * SLAB_BYTES..(first + n) * SLAB_BYTES);
        self.free_slabs.push((first, n));
        self.free_slabs.sort_unstable();
        self.free_slabs.dedup_by(|next, (first, n)| {
            let adjacent = *first + *n == next.0;
            *n += if adjacent { next.1 } else { 0 };
            adjacent
        });
        // What lies behind all that is used needs no remembering.
        if let Some((first, _)) = self.free_slabs.pop_if(|(first, n)| *first + *n == self.slabs) {
            self.slabs = first;
        }
    }

    #[inline(always)]
    fn slot(&self, id: u32) -> &[u8] {
        self.memory.bytes().get(id as usize * UNIT..).unwrap_or_default()
    }

    #[inline(always)]
    fn slot_mut(&mut self, id: u32) -> &mut [u8] {
        self.memory.bytes_mut().get_mut(id as usize * UNIT..).unwrap_or_default()
    }

    /// A packet with what is kept beside it: one check for both.
    #[inline(always)]
    fn packet_bytes(&self, id: BufId, len: u32) -> Option<(&[u8; HEADER], &[u8])> {
        let start = id.0 as usize * UNIT;
        self.memory.bytes().get(start..start + HEADER + len as usize)?.split_first_chunk()
    }

    /// The same, to be changed.
    #[inline(always)]
    fn packet_bytes_mut(&mut self, id: BufId, len: u32) -> Option<(&mut [u8; HEADER], &mut [u8])> {
        let start = id.0 as usize * UNIT;
        self.memory.bytes_mut().get_mut(start..start + HEADER + len as usize)?.split_first_chunk_mut()
    }

    /// The first `len` bytes of a packet. Empty for a place that holds none.
    #[inline]
    #[must_use]
    pub fn data(&self, id: BufId, len: u32) -> &[u8] {
        self.packet_bytes(id, len).map(|(_, data)| data).unwrap_or_default()
    }

    /// As [`Pool::data`], to be changed.
    #[inline]
    #[must_use]
    pub fn data_mut(&mut self, id: BufId, len: u32) -> &mut [u8] {
        self.packet_bytes_mut(id, len).map(|(_, data)| data).unwrap_or_default()
    }

    /// Puts `front` in place of the first `cut` bytes of a packet of `len` bytes; returns where the packet is now and
    /// how long. Its length on the wire changes by as much. A packet that still fits its place stays there.
    pub fn replace_front(&mut self, id: BufId, len: u32, cut: u32, front: &[u8]) -> (BufId, u32) {
        let cut = cut.min(len);
        let (rest, new) = ((len - cut) as usize, len - cut + front.len() as u32);
        let mut meta = self.meta(id);
        meta.original_len =
            (meta.original_len - cut.min(meta.original_len)).saturating_add(front.len() as u32);
        let class = self.slot(id.0).first().copied().unwrap_or(OVERSIZE);
        let room = room(class);
        if HEADER + new as usize <= room && !self.retain && !is_in_place(class) {
            let slot = self.slot_mut(id.0);
            let from = HEADER + cut as usize;
            if slot.len() >= room {
                slot.copy_within(from..from + rest, HEADER + front.len());
            }
            if let Some(to) = slot.get_mut(HEADER..HEADER + front.len()) {
                to.copy_from_slice(front);
            }
            self.set_header(id, meta, class);
            return (id, new);
        }
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(front);
        bytes.extend_from_slice(self.data(id, len).get(cut as usize..).unwrap_or_default());
        let sliced = self.tail(id.0, class);
        self.free_spliced(id);
        let id = match sliced {
            Some((owner, token)) => self.insert_sliced(meta, &bytes, owner, token),
            None => self.insert(meta, &bytes),
        };
        self.scratch = bytes;
        (id, new)
    }

    /// Another packet of the same `len` bytes and meta data.
    pub fn copy(&mut self, id: BufId, len: u32) -> BufId {
        let meta = self.meta(id);
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(self.data(id, len));
        let copy = self.insert(meta, &bytes);
        self.scratch = bytes;
        copy
    }

    /// Gives a packet another length on the wire and another interface.
    pub fn set_meta(&mut self, id: BufId, meta: PacketMeta) {
        let class = self.slot(id.0).first().copied().unwrap_or(OVERSIZE);
        self.set_header(id, meta, class);
    }

    /// Gives a packet of `len` bytes these meta data; its bytes, to be changed.
    #[inline]
    pub(crate) fn replace_meta(&mut self, id: BufId, meta: Head, len: u32) -> Option<&mut [u8]> {
        let (header, data) = self.packet_bytes_mut(id, len)?;
        let [class, ..] = *header;
        *header = meta.of_class(class);
        Some(data)
    }

    #[inline]
    fn set_header(&mut self, id: BufId, meta: PacketMeta, class: u8) {
        if let Some(header) = self.slot_mut(id.0).first_chunk_mut::<HEADER>() {
            *header = head(meta, class);
        }
    }

    /// What is kept beside a packet.
    #[inline]
    #[must_use]
    pub fn meta(&self, id: BufId) -> PacketMeta {
        self.packet_bytes(id, 0).map_or_else(PacketMeta::default, |(head, _)| meta_of(head))
    }

    /// The first `N` bytes of a packet of at least so many.
    #[inline(always)]
    pub(crate) fn front<const N: usize>(&self, id: BufId) -> Option<&[u8; N]> {
        self.packet_bytes(id, N as u32)?.1.first_chunk()
    }

    /// What is kept beside a packet, and its first `len` bytes.
    #[inline]
    #[must_use]
    pub fn meta_and_data(&self, id: BufId, len: u32) -> (PacketMeta, &[u8]) {
        match self.packet_bytes(id, len) {
            Some((head, data)) => (meta_of(head), data),
            None => (PacketMeta::default(), &[]),
        }
    }

    /// A packet's first `len` bytes and its length on the wire, unless its payload waits elsewhere.
    #[inline(always)]
    pub(crate) fn unsliced(&self, id: BufId, len: u32) -> Option<(u32, &[u8])> {
        let (head, data) = self.packet_bytes(id, len)?;
        (head[0] & SLICED == 0).then(|| (meta_of(head).original_len, data))
    }

    /// As [`Pool::meta_and_data`], the meta data as they stand there; `None` for a place that holds none.
    #[inline]
    pub(crate) fn head_and_data(&self, id: BufId, len: u32) -> Option<(Head, &[u8])> {
        self.packet_bytes(id, len).map(|(head, data)| (Head(*head), data))
    }

    /// As [`Pool::meta_and_data`], the bytes to be changed.
    #[inline]
    #[must_use]
    pub fn meta_and_data_mut(&mut self, id: BufId, len: u32) -> (PacketMeta, &mut [u8]) {
        match self.packet_bytes_mut(id, len) {
            Some((head, data)) => (meta_of(head), data),
            None => (PacketMeta::default(), &mut []),
        }
    }

    /// A packet's interface and its first `len` bytes.
    #[inline]
    pub(crate) fn packet(&self, id: BufId, len: u32) -> (u32, &[u8]) {
        let (meta, data) = self.meta_and_data(id, len);
        (meta.interface, data)
    }

    /// Gives a packet's place back.
    #[inline]
    pub fn free(&mut self, id: BufId) {
        if !self.retain {
            self.free_slot(id);
        }
    }

    fn free_slot(&mut self, id: BufId) {
        let Some(class) = self.slot(id.0).first().copied() else { return };
        self.free_class(id, class);
    }

    #[inline]
    fn free_class(&mut self, id: BufId, class: u8) {
        if class & SLICED != 0 {
            return self.free_unusual(id, class);
        }
        self.live = self.live.saturating_sub(1);
        if let Some(list) = self.free.get_mut(usize::from(class)) {
            list.push(id.0);
        }
    }

    /// Gives back the place of a packet that has a slab of its own, or whose payload waits elsewhere.
    #[cold]
    fn free_unusual(&mut self, id: BufId, class: u8) {
        if class == OVERSIZE {
            self.live = self.live.saturating_sub(1);
            self.free_oversize(id.0);
            return;
        }
        self.dropped.extend(self.tail(id.0, class));
        self.leave(id, class);
    }

    /// Asks for a packet's first cache line ahead of use.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: BufId) {
        prefetch_at(self.memory.bytes(), id.0 as usize * UNIT);
    }

    /// Asks for a packet's first two cache lines ahead of use: the headers of all but the longest lie in them. A packet of `len`
    /// bytes that is little more than its headers has them in the first.
    #[inline(always)]
    pub(crate) fn prefetch_headers(&self, id: BufId, len: u32) {
        let start = id.0 as usize * UNIT;
        let second = start + (usize::from(len > 2 * UNIT as u32) * UNIT);
        prefetch_at(self.memory.bytes(), start);
        prefetch_at(self.memory.bytes(), second);
    }
}

#[cfg(test)]
mod tests;
