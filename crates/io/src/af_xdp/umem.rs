//! The packet memory that sockets share with the kernel (UMEM): buffers of one size, each free, in a ring of
//! the kernel's, or the pool's.
//!
//! All AF_XDP ports of a pipeline have one memory, and the pool adopts it: a packet that came by one
//! interface leaves by another from where it lies. Each socket registers the memory with the kernel by
//! itself, so that each can be copied to or not as its driver can; the kernel doesn't mind who returned a
//! buffer.

use std::io;
use std::num::NonZeroUsize;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use slipstream_core::pool::{Buffers, LEAD, Region};
use slipstream_core::prefetch::prefetch_address;

/// Bytes that the kernel leaves free before a packet, beside what it is told to (`XDP_PACKET_HEADROOM`).
const KERNEL_HEADROOM: usize = 256;
/// From the beginning of a buffer to where the kernel puts a packet.
const FRONT: usize = KERNEL_HEADROOM + LEAD;
/// The share of buffers that stages are not given for packets of their own, as one of so many.
const KEPT: usize = 8;

/// Packet memory.
#[derive(Debug)]
pub struct Umem {
    memory: NonNull<u8>,
    /// The size of a buffer, as a power of two: it is divided by for each packet.
    shift: u32,
    buffers: u32,
    /// Numbers of buffers that nobody has.
    free: Mutex<Vec<u32>>,
    /// Buffers that wait in fill rings when these are full.
    in_rings: AtomicU32,
    /// A pool was offered the memory.
    offered: AtomicBool,
}

// SAFETY: a buffer's bytes are touched by who has the buffer alone; the rest is locked or atomic.
unsafe impl Send for Umem {}
// SAFETY: as above.
unsafe impl Sync for Umem {}

impl Umem {
    /// Memory for so many buffers of `chunk` bytes, 2048 or 4096.
    pub(super) fn new(buffers: u32, chunk: usize) -> io::Result<Arc<Self>> {
        let bytes = NonZeroUsize::new(buffers as usize * chunk).ok_or(io::ErrorKind::InvalidInput)?;
        if !chunk.is_power_of_two() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes.get(), access, flags) }?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        // The last in, first out: the first buffers are taken first.
        let free = Mutex::new((0..buffers).rev().collect());
        let (in_rings, offered) = (AtomicU32::new(0), AtomicBool::new(false));
        Ok(Arc::new(Self { memory, shift: chunk.ilog2(), buffers, free, in_rings, offered }))
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.memory
    }

    pub(super) fn bytes(&self) -> usize {
        (self.buffers as usize) << self.shift
    }

    pub(super) fn chunk(&self) -> usize {
        1 << self.shift
    }

    pub(super) fn buffers(&self) -> u32 {
        self.buffers
    }

    /// Longest packet that it has room for as the kernel puts it.
    pub(super) fn longest(&self) -> usize {
        self.chunk() - FRONT
    }

    /// A port's fill rings will have so many buffers; returns how many all have then.
    pub(super) fn reserve(&self, rings: u32) -> u32 {
        self.in_rings.fetch_add(rings, Ordering::Relaxed) + rings
    }

    pub(super) fn free(&self) -> MutexGuard<'_, Vec<u32>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of the buffer that an address of the kernel's lies in.
    pub(super) fn number(&self, address: u64) -> Option<u32> {
        let number = address >> self.shift;
        (number < u64::from(self.buffers)).then_some(number as u32)
    }

    /// The address of a buffer, as the kernel counts.
    pub(super) fn address(&self, number: u32) -> u64 {
        u64::from(number) << self.shift
    }

    /// Says that so many bytes from this offset on lie in one buffer.
    pub(super) fn in_one(&self, offset: usize, len: usize) -> bool {
        offset < self.bytes() && (offset & (self.chunk() - 1)) + len <= self.chunk()
    }

    /// The memory for a pool to adopt, once.
    pub(super) fn region(self: &Arc<Self>) -> Option<Box<dyn Region>> {
        (!self.offered.swap(true, Ordering::Relaxed)).then(|| Box::new(UmemRegion(Arc::clone(self))) as _)
    }

    /// Asks for the cache line at an offset.
    pub(super) fn prefetch(&self, offset: usize) {
        prefetch_address(self.memory.as_ptr().wrapping_add(offset));
    }

    /// Bytes of a buffer; none where they don't lie in one.
    ///
    /// # Safety
    /// The caller has the buffer, and nobody writes to it while the bytes are borrowed.
    pub(super) unsafe fn read(&self, offset: usize, len: usize) -> Option<&[u8]> {
        if !self.in_one(offset, len) {
            return None;
        }
        // SAFETY: they lie in the memory, which lives as long as `self`; the caller has the buffer.
        Some(unsafe { std::slice::from_raw_parts(self.memory.add(offset).as_ptr(), len) })
    }

    /// Writes a packet into a buffer, so that one may grow before it as usual; returns where. None where it
    /// is too long.
    ///
    /// # Safety
    /// The caller has the buffer of this number.
    pub(super) unsafe fn write(&self, number: u32, data: &[u8]) -> Option<usize> {
        let start = self.address(number) as usize;
        let offset = start + if data.len() <= self.longest() { FRONT } else { LEAD };
        if number >= self.buffers || !self.in_one(offset, data.len()) {
            return None;
        }
        // SAFETY: the bytes lie in the buffer, which the caller has, and not where `data` is, which is
        // borrowed.
        unsafe { self.memory.add(offset).as_ptr().copy_from_nonoverlapping(data.as_ptr(), data.len()) };
        Some(offset)
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new` with this length; sockets and pools, which use it, hold it.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes()) };
    }
}

/// The memory as a pool adopts it.
#[derive(Debug)]
pub(super) struct UmemRegion(Arc<Umem>);

impl UmemRegion {
    /// Returns true if it is this memory.
    pub(super) fn is(&self, umem: &Arc<Umem>) -> bool {
        Arc::ptr_eq(&self.0, umem)
    }
}

// SAFETY: the memory is mapped as long as this value holds it. A buffer is on the list, in a ring, or the
// pool's: ports take numbers off the list, and put back what the kernel returned. The kernel writes to
// buffers of fill rings only, and reads those that were handed over to be sent, which the pool has let go by
// then.
unsafe impl Region for UmemRegion {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn size(&self) -> usize {
        self.0.bytes()
    }

    fn buffers(&self) -> Buffers {
        Buffers { first: 0, stride: self.0.chunk(), len: self.0.chunk() }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        if len > self.0.longest() {
            return None;
        }
        let mut free = self.0.free();
        if free.len() <= self.0.buffers as usize / KEPT {
            return None;
        }
        Some(self.0.address(free.pop()?) as usize + FRONT)
    }

    fn give_back(&mut self, packets: &mut dyn Iterator<Item = usize>) {
        self.0.free().extend(packets.map(|packet| (packet >> self.0.shift) as u32));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_core::pool::{PacketMeta, Pool};

    #[test]
    fn buffers_are_taken_and_come_back() {
        let umem = Umem::new(64, 2048).unwrap();
        let mut region = umem.region().unwrap();
        assert!(umem.region().is_none(), "it was offered twice");
        let mut taken: Vec<usize> = std::iter::from_fn(|| region.take(60)).collect();
        assert_eq!((taken.len(), umem.free().len()), (56, 8));
        assert!(taken.iter().all(|at| at % 64 == LEAD && umem.in_one(*at, 1776)));
        assert_eq!((region.take(60), region.take(4000)), (None, None));
        region.give_back(&mut taken.drain(..));
        let mut free = umem.free().clone();
        free.sort_unstable();
        assert!(free.into_iter().eq(0..64), "a buffer is missing, or is there twice");
    }

    /// A packet that came, and one that a stage made, are where the kernel reaches them, and their buffers
    /// come back.
    #[test]
    fn a_pool_uses_the_buffers() {
        let umem = Umem::new(64, 2048).unwrap();
        // SAFETY: packets are freed once, or let go, and used with their lengths.
        let mut pool = unsafe { Pool::adopt(umem.region().unwrap()) }.unwrap();
        assert_eq!(pool.with_region(|region: &mut UmemRegion| region.is(&umem)), Some(true));
        let number = umem.free().pop().unwrap();
        // SAFETY: the buffer is this test's.
        let offset = unsafe { umem.write(number, b"came") }.unwrap();
        let came = pool.adopted(offset, 4, PacketMeta::default()).unwrap();
        assert_eq!((pool.data(came, 4), pool.offset(came)), (&b"came"[..], Some(offset)));
        let made = pool.insert(PacketMeta::default(), b"made");
        let at = pool.let_go(made).unwrap();
        // SAFETY: the pool has let the buffer go.
        assert_eq!(unsafe { umem.read(at, 4) }, Some(&b"made"[..]));
        umem.free().push(umem.number(at as u64).unwrap());
        pool.free(came);
        pool.give_back();
        assert_eq!((pool.live(), umem.free().len()), (0, 64));
    }

    #[test]
    fn bytes_lie_in_one_buffer() {
        let umem = Umem::new(4, 2048).unwrap();
        // SAFETY: nobody else has any buffer.
        unsafe {
            assert_eq!(umem.write(1, b"packet"), Some(2048 + 272));
            assert_eq!(umem.read(2048 + 272, 6), Some(&b"packet"[..]));
            assert_eq!(umem.write(3, &[7; 2032]), Some(3 * 2048 + 16));
            assert_eq!(umem.write(3, &[7; 2033]), None);
            assert_eq!(umem.write(4, b"packet"), None);
            assert_eq!(umem.read(2000, 49), None);
            assert_eq!(umem.read(4 * 2048, 1), None);
        }
        assert_eq!((umem.number(8191), umem.number(8192)), (Some(3), None));
    }
}
