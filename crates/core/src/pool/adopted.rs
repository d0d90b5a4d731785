//! Packet memory of somebody else, such as the UMEM of an AF_XDP socket, a DPDK mempool, or memory that two
//! processes share: packets are used where a card or another process put them, and leave from there.
//!
//! The one who has the memory implements [`Region`]. A packet's [`BufId`] is the place of its bytes in units
//! of 64 bytes, and what is kept beside it stands in the 16 bytes before them: so its bytes begin 16 bytes
//! behind a multiple of 64, counted from where the region begins. For the usual layouts that takes:
//!
//! - **AF_XDP**: chunks of 2 or 4 KiB, aligned, and `headroom = 16` in `xdp_umem_reg`. The kernel puts
//!   packets 256 bytes (`XDP_PACKET_HEADROOM`) and the head room behind the beginning of a chunk, that is 272
//!   = 4 · 64 + 16.
//! - **DPDK**: `priv_size = 16` for `rte_pktmbuf_pool_create`, and `RTE_PKTMBUF_HEADROOM` as it is (128). A
//!   buffer begins at a cache line, 128 bytes of `rte_mbuf` and the private area; its packet another 128
//!   bytes behind that, which is 16 behind a multiple of 64.
//!
//! A packet that came elsewhere than that, or in several pieces, has to be copied ([`Pool::insert_with`]).
//!
//! Packets that stages make themselves are put into free buffers of the region ([`Region::take`]). Where it
//! has none, or the packet is too long for one, they are put into memory of the pool's own, which lies beside
//! the region: a port then has to copy them to send them, which [`Pool::offset`] tells. So storing a packet
//! never fails; what memory there is beside is asked for when the region is adopted. A pool that is alone
//! uses it only while the region has nothing; siblings use up what was freed of it first.

#![allow(unsafe_code)]

use std::any::Any;
use std::fmt;
use std::mem::replace;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::{Memory, Window};
use super::slabs::Slabs;
use super::{ADOPTED, BufId, CLASS_UNITS, HEADER, MOST, PacketMeta, Pool, SLAB_UNITS, UNIT, head};
use crate::time::Nanos;

/// Buffers of freed packets that wait until they are given back, at most.
const WAITING: usize = 256;
/// From the beginning of a unit to where a packet's bytes begin.
pub const LEAD: usize = HEADER;

/// The layout of buffers in a [`Region`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Buffers {
    /// Offset of the first one, in bytes.
    pub first: usize,
    /// Bytes from one to the next. 0 where they don't lie evenly.
    pub stride: usize,
    /// Bytes of each, at most [`Buffers::stride`]. Where that is 0: bytes that a packet has from where it
    /// begins, wherever that is.
    pub len: usize,
}

impl Buffers {
    /// Bytes from this offset, where a packet begins, to the end of the buffer.
    fn room(&self, offset: usize) -> usize {
        if self.stride == 0 {
            return self.len;
        }
        let at = offset.checked_sub(self.first).and_then(|at| at.checked_rem(self.stride));
        at.map_or(0, |at| self.len.saturating_sub(at))
    }
}

/// Memory for packets that belongs to somebody else, such as a port. All offsets are bytes from where it
/// begins.
///
/// # Safety
/// As long as this value is there:
/// - from [`Region::start`] on, [`Region::size`] bytes are mapped, initialised, readable and writable, and
///   neither changes;
/// - while a buffer is the pool's, nobody but the pool writes to it, from 16 bytes before its packet on, nor,
///   but to send it, reads it. It is the pool's from [`Pool::adopted`] or [`Region::take`] on until
///   [`Region::give_back`] or [`Pool::let_go`];
/// - [`Region::take`] and [`Region::buffers`] tell the truth: so many bytes of one buffer.
pub unsafe trait Region: Any + Send {
    /// Its first byte, at an address that is a multiple of 64.
    fn start(&self) -> NonNull<u8>;

    /// Bytes.
    fn size(&self) -> usize;

    /// The layout of its buffers, which stays.
    fn buffers(&self) -> Buffers;

    /// Takes a free buffer for a packet of `len` bytes, which a stage has made; returns where its bytes are
    /// to begin: [`LEAD`] behind a multiple of 64, and no less behind the beginning of the buffer. None where
    /// none is free, or none has room for so many, or the rest is kept for packets that come.
    fn take(&mut self, len: usize) -> Option<usize>;

    /// Takes buffers back, whose packets, which began here, are gone. A buffer is given back once.
    fn give_back(&mut self, packets: &mut dyn Iterator<Item = usize>);
}

/// The reason why memory can't be adopted.
#[derive(Debug, PartialEq, Eq)]
pub enum AdoptError {
    /// Units of 64 bytes can't be counted from its beginning.
    Misaligned(usize),
    /// The region, of so many bytes, is larger than the numbers of buffers can tell apart.
    TooLarge(usize),
    /// Packets that stages make can't be stored when the region is full.
    NoAddresses(usize),
}

impl fmt::Display for AdoptError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Misaligned(start) => {
                write!(
                    f,
                    "packet memory at {start:#x} doesn't begin at a multiple of 64; align it, to a page at best"
                )
            }
            Self::TooLarge(size) => write!(
                f,
                "packet memory of {size} bytes is too large; a pool can have 256 GiB, and some for its own"
            ),
            Self::NoAddresses(start) => write!(
                f,
                "there are no addresses within 256 GiB of the packet memory at {start:#x} for packets that are made here; \
                 raise `ulimit -v`, or have the memory elsewhere"
            ),
        }
    }
}

impl core::error::Error for AdoptError {}

/// The memory that a pool has adopted.
pub(super) struct Adopted {
    region: Arc<Mutex<Box<dyn Region>>>,
    /// Its offset in the pool's memory, in bytes.
    start: usize,
    size: usize,
    buffers: Buffers,
    /// Free slots of the pool's own memory, by class; siblings have theirs elsewhere.
    own: [Vec<u32>; CLASS_UNITS.len()],
    /// Number of the slab being cut up, in units, and its next unused unit.
    bump: (u32, usize),
}

impl Adopted {
    /// The same, for a sibling.
    pub(super) fn twin(&self) -> Self {
        let Self { start, size, buffers, .. } = *self;
        let own = [const { Vec::new() }; CLASS_UNITS.len()];
        Self { region: Arc::clone(&self.region), start, size, buffers, own, bump: (0, SLAB_UNITS) }
    }

    /// A thread that panicked left it as its owner has it.
    fn region(&self) -> MutexGuard<'_, Box<dyn Region>> {
        self.region.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves what is free of the pool's own memory to siblings: slots by class, and what is left of a slab.
    pub(super) fn leave(&mut self, stash: &mut [Vec<u32>]) -> (u32, usize) {
        for (stash, own) in stash.iter_mut().zip(&mut self.own) {
            stash.append(own);
        }
        replace(&mut self.bump, (0, SLAB_UNITS))
    }

    /// The number of the buffer of a packet that begins at this offset.
    fn id(&self, offset: usize) -> Option<u32> {
        let at = offset.checked_sub(HEADER).filter(|at| at.is_multiple_of(UNIT) && offset <= self.size)?;
        Some(((self.start + at) / UNIT) as u32)
    }

    /// Offset of a packet's bytes in the region; none for one in the pool's own memory.
    fn offset(&self, id: u32) -> Option<usize> {
        let at = (id as usize * UNIT).checked_sub(self.start)?;
        (at < self.size).then_some(at + HEADER)
    }

    /// Bytes that the slot of a packet has, with what stands before them.
    pub(super) fn room(&self, id: u32) -> usize {
        self.offset(id).map_or(0, |offset| HEADER + self.buffers.room(offset))
    }

    /// Gives buffers back.
    pub(super) fn give_back(&self, list: &mut Vec<u32>) {
        let start = self.start;
        self.region().give_back(&mut list.drain(..).map(|id| id as usize * UNIT - start + HEADER));
        // Nobody may leave an iterator half used.
        list.clear();
    }

    /// A free buffer of the region, for a slot of so many bytes.
    pub(super) fn take(&self, bytes: usize, list: &mut Vec<u32>) -> Option<u32> {
        let len = bytes - HEADER;
        let offset = self.region().take(len);
        if offset.is_none() && !list.is_empty() {
            self.give_back(list);
            return self.id(self.region().take(len)?);
        }
        self.id(offset?)
    }

    /// A slot of a class in memory of the pool's own.
    pub(super) fn more(&mut self, class: usize, units: usize, slabs: &mut Slabs, memory: &mut Memory) -> u32 {
        if let Some(id) = self.own.get_mut(class).and_then(Vec::pop) {
            return id;
        }
        if self.bump.1 + units > SLAB_UNITS {
            self.bump = (slabs.take(1), 0);
            memory.grow(slabs.bytes());
        }
        let id = self.bump.0 + self.bump.1 as u32;
        self.bump.1 += units;
        id
    }

    /// Takes a slot of the pool's own memory back.
    pub(super) fn keep(&mut self, class: usize, id: u32) {
        if let Some(list) = self.own.get_mut(class) {
            list.push(id);
        }
    }
}

impl Pool {
    /// A pool whose memory is that of `region`, and some of its own beside it, up to 16 GiB.
    ///
    /// # Errors
    /// [`AdoptError`] where it doesn't lie as it must.
    ///
    /// # Safety
    /// As long as the pool is there:
    ///
    /// - as with [`Pool::siblings`], every [`BufId`] that it is given is one that it returned, and that was
    ///   not freed since, and the `len` given with it is at most the length of its packet;
    /// - every offset that [`Pool::adopted`] and [`Pool::adopt_all`] are given is that of a packet in a
    ///   buffer that was the caller's until then;
    /// - what [`Pool::with_region`] is told to do leaves the region where it is: another one in its place
    ///   would have the pool use memory that is gone.
    pub unsafe fn adopt(region: Box<dyn Region>) -> Result<Self, AdoptError> {
        let (start, size) = (region.start().as_ptr().expose_provenance(), region.size());
        let buffers = region.buffers();
        if !start.is_multiple_of(UNIT) {
            return Err(AdoptError::Misaligned(start));
        }
        if size > MOST / 2 {
            return Err(AdoptError::TooLarge(size));
        }
        let window = Window::beside(start, size).ok_or(AdoptError::NoAddresses(start))?;
        let mut pool = Self::new();
        let (memory, base) = Memory::beside(start, size, Arc::new(window));
        pool.slabs = Slabs::behind(memory.own_part());
        pool.memory = memory;
        let own = [const { Vec::new() }; CLASS_UNITS.len()];
        let (region, bump) = (Arc::new(Mutex::new(region)), (0, SLAB_UNITS));
        pool.adopt_too(&Adopted { region, start: start - base, size, buffers, own, bump });
        Ok(pool)
    }

    /// Adopts what a sibling has adopted.
    pub(super) fn adopt_too(&mut self, adopted: &Adopted) {
        if let Some(list) = self.free.get_mut(usize::from(ADOPTED)) {
            list.reserve_exact(WAITING);
        }
        self.adopted = Some(Box::new(adopted.twin()));
        // The owner says how much room a buffer has, and nothing of what a payload that stays in it needs.
        self.fixed = true;
    }

    /// Makes a packet of what a port received into a buffer of the region: `len` bytes from this offset on.
    /// The buffer is the pool's from now on. None where it doesn't begin [`LEAD`] behind a multiple of 64, or
    /// is not in the region; then nothing has changed.
    #[inline]
    pub fn adopted(&mut self, offset: usize, len: u32, meta: PacketMeta) -> Option<BufId> {
        let adopted = self.adopted.as_ref()?;
        let id = adopted.id(offset).filter(|_| len as usize <= adopted.size - offset)?;
        let (header, _) = self.packet_bytes_mut(BufId(id), 0)?;
        *header = head(meta, ADOPTED);
        self.live += 1;
        Some(BufId(id))
    }

    /// As [`adopted`](Self::adopted), of many packets at once, each with its offset and its length, all of
    /// which came at `time` by interface 0: `taken` is told of each in turn, and whether it was adopted.
    #[inline]
    pub fn adopt_all(
        &mut self,
        packets: impl Iterator<Item = (usize, u32)>,
        time: Nanos,
        mut taken: impl FnMut(&mut Self, usize, u32, Option<BufId>),
    ) {
        let (start, size) = self.adopted.as_ref().map_or((0, 0), |adopted| (adopted.start, adopted.size));
        let meta = head(PacketMeta { original_len: 0, interface: 0, time }, ADOPTED);
        let mut meta = u128::from_le_bytes(meta);
        for (n, (offset, len)) in packets.enumerate() {
            // As `Adopted::id` says, and that the packet ends within the region, which is inside of the
            // memory.
            let at = offset.wrapping_sub(HEADER);
            let fits =
                offset >= HEADER && at.is_multiple_of(UNIT) && offset.saturating_add(len as usize) <= size;
            meta = meta & !(u128::from(u32::MAX) << 32) | u128::from(len) << 32;
            let place = if fits { self.memory.get_mut(start + at..start + offset) } else { None };
            let id = place.and_then(|place| place.first_chunk_mut::<HEADER>()).map(|header| {
                *header = meta.to_le_bytes();
                BufId(((start + at) / UNIT) as u32)
            });
            self.live += i64::from(id.is_some());
            taken(self, n, len, id);
        }
    }

    /// Offset of a packet's bytes in the region: from there a port can send it. None for one in memory of
    /// the pool's own.
    #[inline]
    #[must_use]
    pub fn offset(&self, id: BufId) -> Option<usize> {
        self.adopted.as_ref()?.offset(id.0)
    }

    /// The packet whose bytes begin at this offset in the region, if the pool has one there.
    #[inline]
    #[must_use]
    pub fn at_offset(&self, offset: usize) -> Option<BufId> {
        self.adopted.as_ref()?.id(offset).map(BufId)
    }

    /// Takes a packet out of the pool with its buffer, which is its owner's again: where a driver frees what
    /// it has sent, nothing comes back here. Returns where its bytes begin; none for one that is not in the
    /// region, or of a retained pool: it stays.
    #[inline]
    pub fn let_go(&mut self, id: BufId) -> Option<usize> {
        let offset = self.offset(id).filter(|_| !self.retains())?;
        if self.is_sliced(id) {
            self.report_freed(id);
        }
        self.live -= 1;
        Some(offset)
    }

    /// As [`let_go`](Self::let_go), of many packets at once: `gone` is told of each in turn where its bytes
    /// begin, or that it stays.
    #[inline]
    pub fn let_all_go(
        &mut self,
        packets: impl Iterator<Item = BufId>,
        mut gone: impl FnMut(&mut Self, BufId, Option<usize>),
    ) {
        let (start, size) = match &self.adopted {
            Some(adopted) if !self.retains() => (adopted.start, adopted.size),
            _ => (0, 0),
        };
        for id in packets {
            let at = (id.0 as usize * UNIT).wrapping_sub(start);
            let offset = (at < size).then_some(at.wrapping_add(HEADER));
            if offset.is_some() {
                if self.is_sliced(id) {
                    self.report_freed(id);
                }
                self.live -= 1;
            }
            gone(self, id, offset);
        }
    }

    /// Gives the region the buffers of packets that were freed, as this does by itself whenever there are
    /// 256. A port does so before it looks for free ones.
    pub fn give_back(&mut self) {
        let Self { adopted: Some(adopted), free, .. } = self else { return };
        if let Some(list) = free.get_mut(usize::from(ADOPTED)).filter(|list| !list.is_empty()) {
            adopted.give_back(list);
        }
    }

    /// Does something with the memory that was adopted, if it is of this type; buffers of freed packets are
    /// given back first. Siblings wait for each other: it is to be asked for once a batch, not for each
    /// packet.
    pub fn with_region<R: Region, T>(&mut self, what: impl FnOnce(&mut R) -> T) -> Option<T> {
        self.give_back();
        let mut region = self.adopted.as_ref()?.region();
        let region: &mut dyn Any = region.as_mut();
        region.downcast_mut().map(what)
    }

    /// Ends the pool; the memory that it had adopted, all buffers given back but those of packets that were
    /// not freed. None where a sibling still has it.
    #[must_use]
    pub fn into_region(mut self) -> Option<Box<dyn Region>> {
        self.give_back();
        let region = Arc::into_inner(self.adopted.take()?.region)?;
        Some(region.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

#[cfg(test)]
#[cfg(all(target_os = "linux", not(miri)))]
mod tests;
