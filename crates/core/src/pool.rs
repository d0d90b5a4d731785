//! The memory of packets while they are inside.
//!
//! Memory comes in slabs of 8 MiB, cut into slots of 64-byte units by size class; a freed slot is used again
//! by the next packet of its class. A 60-byte packet takes 128 bytes, not a 2 KiB buffer, so thousands of
//! held packets fit a cache. Slabs are taken when first needed and kept. They lie one behind the other, so
//! that a packet's number says where its bytes are.
//!
//! Threads that hand packets to each other have pools that are siblings ([`Pool::siblings`]): what one of
//! them stored, another reads, changes and frees.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;

use slipstream_wire::NarrowKey;

use adopted::Adopted;
use memory::Memory;
use meta::{head, meta_of};
use siblings::Sibling;
use slabs::Slabs;

use crate::flow_context::FlowContexts;
use crate::prefetch::{prefetch_address, prefetch_to_write};

#[cfg_attr(not(feature = "std"), path = "pool/not_adopted.rs")]
mod adopted;
mod memory;
mod meta;
mod places;
#[cfg_attr(not(feature = "std"), path = "pool/alone.rs")]
mod siblings;
mod slabs;
mod sliced;

#[cfg(feature = "std")]
pub use adopted::{AdoptError, Buffers, LEAD, Region};
pub use meta::{Head, PacketMeta};
pub use sliced::{Lengths, SHORT, SlicedSlot, Slot};

const UNIT: usize = 64;
/// Slots that will be filled after this one, before the one whose memory is asked for.
const AHEAD: usize = 12;
const SLAB_UNITS: usize = 1 << 17;
const SLAB_BYTES: usize = SLAB_UNITS * UNIT;
/// Bytes that numbers of 32 bits can tell apart.
const MOST: usize = UNIT << 32;
const HEADER: usize = 16;
/// Slot sizes in units, up to 1 MiB. Larger packets get a slab of their own.
const CLASS_UNITS: [usize; 21] =
    [1, 2, 3, 4, 6, 8, 12, 16, 20, 26, 32, 48, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16_384];
const OVERSIZE: u8 = u8::MAX;
/// Of packets in memory that was adopted: a class of its own, whose slots are as large as their owner says.
const ADOPTED: u8 = CLASS_UNITS.len() as u8;
const CLASSES: usize = CLASS_UNITS.len() + 1;
/// Bits of the first byte of a slot that are its size class. [`OVERSIZE`] has all of them, and all that can
/// be set beside them.
const CLASS: u8 = (1 << 5) - 1;
/// Set beside the size class of a packet whose payload waits elsewhere.
const SLICED: u8 = 1 << 6;
/// Set beside [`SLICED`]: the payload waits in the same slot, behind the packet. The slot is its table's as
/// well.
const IN_PLACE: u8 = 1 << 5;
/// Set beside both: the packet is gone, and the slot is its table's alone.
const LEFT: u8 = 1 << 7;
/// Bytes at the end of the slot of such a packet: its token, and its owner.
const TAIL: usize = TOKEN_LEN + 4;
/// Bytes that stand in a packet for the payload that waits elsewhere.
pub const TOKEN_LEN: usize = 8;

#[inline]
fn is_sliced(class: u8) -> bool {
    class != OVERSIZE && class & SLICED != 0
}

#[inline]
fn is_in_place(class: u8) -> bool {
    class != OVERSIZE && class & IN_PLACE != 0
}

/// The pool that sorts in the places of freed packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Freed {
    Here,
    /// By a sibling that stores packets.
    Elsewhere,
    /// They keep their places.
    Never,
}

/// The place of a packet in its [`Pool`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct BufId(pub u32);

/// All packet bytes of one worker.
///
/// ```
/// use slipstream_core::pool::{PacketMeta, Pool};
///
/// let mut pool = Pool::new();
/// let meta = PacketMeta { original_len: 60, ..PacketMeta::default() };
/// let packet = pool.insert(meta, &[7; 60]);
/// pool.data_mut(packet, 60)[0] = 8;
/// assert_eq!((pool.data(packet, 2), pool.meta(packet), pool.live()), (&[8, 7][..], meta, 1));
/// pool.free(packet);
/// assert_eq!(pool.live(), 0);
/// ```
pub struct Pool {
    memory: Memory,
    /// The slabs of `memory`; siblings keep them elsewhere.
    slabs: Slabs,
    /// Free slots, by class. Of adopted memory: buffers that are to be given back, and no others.
    free: [Vec<u32>; CLASSES],
    /// Number of the slab being cut up, in units, and its next unused unit. Siblings have none here, nor have
    /// pools with adopted memory.
    bump: (u32, usize),
    freed: Freed,
    /// True if packets have to leave their places to be sliced: retained ones, and those that another thread
    /// may free.
    fixed: bool,
    /// Packets stored less packets freed: of one of several siblings it may be negative.
    live: i64,
    /// The part that it shares with other pools.
    sibling: Option<Box<Sibling>>,
    /// The memory that it adopted.
    adopted: Option<Box<Adopted>>,
    /// For a packet that moves.
    scratch: Vec<u8>,
    /// Sliced packets that were freed: whose, and their tokens.
    dropped: Vec<(u32, u64)>,
    /// The flow contexts of the worker, while its stages are at work.
    flows: Option<Box<FlowContexts>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("memory", &self.memory())
            .field("live", &self.live())
            .finish_non_exhaustive()
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
            slabs: Slabs::default(),
            free: [const { Vec::new() }; CLASSES],
            bump: (0, SLAB_UNITS),
            freed: Freed::Here,
            fixed: false,
            live: 0,
            sibling: None,
            adopted: None,
            scratch: Vec::new(),
            dropped: Vec::new(),
            flows: None,
        }
    }

    /// The flow contexts of the worker, where its pipeline has any. They lie here since whoever has packets
    /// to decide about has the pool.
    #[inline(always)]
    pub fn flows(&mut self) -> &mut Option<Box<FlowContexts>> {
        &mut self.flows
    }

    /// From now on the context of this flow is meant.
    #[inline(always)]
    pub fn meet_flow(&mut self, flow: u32) {
        if let Some(flows) = &mut self.flows {
            flows.meet(flow);
        }
    }

    /// The words that the stage at hand keeps of the flow at hand; none where there are none.
    #[inline(always)]
    #[must_use]
    pub fn flow_words<const N: usize>(&self) -> Option<[u32; N]> {
        self.flows.as_ref()?.read()
    }

    /// The same with the flow's key, if it is a short one.
    #[inline(always)]
    #[must_use]
    pub fn keyed_flow_words<const N: usize>(&self) -> Option<(NarrowKey, [u32; N])> {
        let flows = self.flows.as_ref()?;
        Some((flows.key()?, flows.read()?))
    }

    /// Keeps words of the flow at hand for the stage at hand, where there is a place for them.
    #[inline(always)]
    pub fn keep_flow_words<const N: usize>(&mut self, words: [u32; N]) {
        if let Some(flows) = &mut self.flows {
            flows.write(words);
        }
    }

    /// Returns true if freed packets are kept.
    #[inline]
    #[must_use]
    pub fn retains(&self) -> bool {
        self.freed == Freed::Never
    }

    /// From now on [`Pool::free`] keeps the bytes: the packets of a preloaded trace are read again and again.
    /// Siblings have to be told one by one.
    pub fn retain(&mut self) {
        (self.freed, self.fixed) = (Freed::Never, true);
    }

    /// From now on [`Pool::free`] doesn't look at a packet: a sibling that stores packets, in whose core's
    /// cache it most likely still is, sorts its place in when it needs some. For a thread that frees what
    /// others stored and hardly stores any itself. No effect on a pool that is alone, adopted memory or
    /// retained.
    pub fn free_elsewhere(&mut self) {
        if self.sibling.is_some() && self.adopted.is_none() && self.freed == Freed::Here {
            self.freed = Freed::Elsewhere;
        }
    }

    /// Packets stored and not freed. Reads 0 when everything that came in has left. Siblings count together,
    /// what others did since they last [settled](Pool::settle) left out.
    #[must_use]
    pub fn live(&self) -> u64 {
        let live = self.sibling.as_ref().map_or(self.live, |sibling| sibling.live(self.live));
        live.max(0) as u64
    }

    /// Bytes of memory taken so far, by all siblings together.
    #[must_use]
    pub fn memory(&self) -> u64 {
        let slabs = self.sibling.as_ref().map_or_else(|| self.slabs.in_use(), |sibling| sibling.slabs());
        (slabs * SLAB_BYTES) as u64
    }

    /// Stores a packet.
    #[inline]
    pub fn insert(&mut self, meta: PacketMeta, data: &[u8]) -> BufId {
        self.insert_with(meta, data.len(), |to| to.copy_from_slice(data))
    }

    /// Stores a packet of `len` bytes, which `fill` writes; what was there before is some other packet's.
    #[inline]
    pub fn insert_with(&mut self, meta: PacketMeta, len: usize, fill: impl FnOnce(&mut [u8])) -> BufId {
        let (id, class) = self.allocate(len + HEADER);
        if let Some(slot) = self.slot_mut(id, HEADER + len)
            && let Some((header, rest)) = slot.split_first_chunk_mut::<HEADER>()
        {
            *header = head(meta, class);
            fill(rest);
        }
        self.live += 1;
        BufId(id)
    }

    /// So many bytes from where a slot begins.
    #[inline(always)]
    fn slot(&self, id: u32, len: usize) -> Option<&[u8]> {
        let start = id as usize * UNIT;
        self.memory.get(start..start + len)
    }

    /// The same, to be changed.
    #[inline(always)]
    fn slot_mut(&mut self, id: u32, len: usize) -> Option<&mut [u8]> {
        let start = id as usize * UNIT;
        self.memory.get_mut(start..start + len)
    }

    /// The first byte of a slot: its size class, and what is set beside it.
    #[inline(always)]
    fn class(&self, id: u32) -> Option<u8> {
        self.slot(id, 1)?.first().copied()
    }

    /// The same, to be changed.
    #[inline(always)]
    fn class_mut(&mut self, id: u32) -> Option<&mut u8> {
        self.slot_mut(id, 1)?.first_mut()
    }

    /// A packet with what is kept beside it: one check for both.
    #[inline(always)]
    fn packet_bytes(&self, id: BufId, len: u32) -> Option<(&[u8; HEADER], &[u8])> {
        self.slot(id.0, HEADER + len as usize)?.split_first_chunk()
    }

    /// The same, to be changed.
    #[inline(always)]
    fn packet_bytes_mut(&mut self, id: BufId, len: u32) -> Option<(&mut [u8; HEADER], &mut [u8])> {
        self.slot_mut(id.0, HEADER + len as usize)?.split_first_chunk_mut()
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

    /// Puts `front` in place of the first `cut` bytes of a packet of `len` bytes; returns where the packet is
    /// now and how long. Its length on the wire changes by as much. A packet that still fits its place stays
    /// there.
    pub fn replace_front(&mut self, id: BufId, len: u32, cut: u32, front: &[u8]) -> (BufId, u32) {
        let cut = cut.min(len);
        let (rest, new) = ((len - cut) as usize, len - cut + front.len() as u32);
        let mut meta = self.meta(id);
        meta.original_len = meta.original_len.saturating_add(front.len() as u32).saturating_sub(cut);
        let class = self.class(id.0).unwrap_or(OVERSIZE);
        let room = self.room(id.0, class);
        if HEADER + new as usize <= room && !self.retains() && !is_in_place(class) {
            let from = HEADER + cut as usize;
            if let Some(slot) = self.slot_mut(id.0, HEADER + len.max(new) as usize) {
                slot.copy_within(from..from + rest, HEADER + front.len());
                if let Some(to) = slot.get_mut(HEADER..HEADER + front.len()) {
                    to.copy_from_slice(front);
                }
            }
            self.set_header(id, meta, class);
            return (id, new);
        }
        let mut bytes = core::mem::take(&mut self.scratch);
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
        let mut bytes = core::mem::take(&mut self.scratch);
        bytes.clear();
        bytes.extend_from_slice(self.data(id, len));
        let copy = self.insert(meta, &bytes);
        self.scratch = bytes;
        copy
    }

    /// Gives a packet another length on the wire and another interface.
    pub fn set_meta(&mut self, id: BufId, meta: PacketMeta) {
        let class = self.class(id.0).unwrap_or(OVERSIZE);
        self.set_header(id, meta, class);
    }

    /// Gives a packet of `len` bytes these meta data; its bytes, to be changed.
    #[inline]
    pub fn replace_meta(&mut self, id: BufId, meta: Head, len: u32) -> Option<&mut [u8]> {
        let (header, data) = self.packet_bytes_mut(id, len)?;
        let [class, ..] = *header;
        *header = meta.of_class(class);
        Some(data)
    }

    #[inline]
    fn set_header(&mut self, id: BufId, meta: PacketMeta, class: u8) {
        if let Some((header, _)) = self.packet_bytes_mut(id, 0) {
            *header = head(meta, class);
        }
    }

    /// The meta data of a packet.
    #[inline]
    #[must_use]
    pub fn meta(&self, id: BufId) -> PacketMeta {
        self.packet_bytes(id, 0).map_or_else(PacketMeta::default, |(head, _)| meta_of(head))
    }

    /// The first `N` bytes of a packet of at least so many.
    #[inline(always)]
    pub fn front<const N: usize>(&self, id: BufId) -> Option<&[u8; N]> {
        self.packet_bytes(id, N as u32)?.1.first_chunk()
    }

    /// The meta data of a packet, and its first `len` bytes.
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
    pub fn unsliced(&self, id: BufId, len: u32) -> Option<(u32, &[u8])> {
        let (head, data) = self.packet_bytes(id, len)?;
        (head[0] & SLICED == 0).then(|| (meta_of(head).original_len, data))
    }

    /// As [`Pool::meta_and_data`], the meta data as they stand there; `None` for a place that holds none.
    #[inline]
    pub fn head_and_data(&self, id: BufId, len: u32) -> Option<(Head, &[u8])> {
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
    pub fn packet(&self, id: BufId, len: u32) -> (u32, &[u8]) {
        let (meta, data) = self.meta_and_data(id, len);
        (meta.interface, data)
    }

    /// Asks for a packet's first cache line ahead of use.
    #[inline(always)]
    pub fn prefetch(&self, id: BufId) {
        prefetch_address(self.memory.address(id.0 as usize * UNIT));
    }

    /// Asks for the cache line with a packet's byte at `offset` ahead of use, to be changed: another core
    /// that has it gives it up. Its first byte lies in the first line, as does what is kept beside it.
    #[inline(always)]
    pub fn prefetch_to_change(&self, id: BufId, offset: u32) {
        prefetch_to_write(self.memory.address(id.0 as usize * UNIT + HEADER + offset as usize));
    }

    /// Asks for a packet's first two cache lines ahead of use: the headers of all but the longest lie in
    /// them. A packet of `len` bytes that is little more than its headers has them in the first.
    #[inline(always)]
    pub fn prefetch_headers(&self, id: BufId, len: u32) {
        let start = id.0 as usize * UNIT;
        let second = start + (usize::from(len > 2 * UNIT as u32) * UNIT);
        prefetch_address(self.memory.address(start));
        prefetch_address(self.memory.address(second));
    }
}

impl Pool {
    /// Asks for all of a packet's `len` bytes ahead of use.
    #[inline(always)]
    pub fn prefetch_all(&self, id: BufId, len: u32) {
        let start = id.0 as usize * UNIT;
        for line in 0..(HEADER + len as usize).div_ceil(UNIT) {
            prefetch_address(self.memory.address(start + line * UNIT));
        }
    }
}

#[cfg(test)]
mod tests;
