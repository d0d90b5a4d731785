//! The ring of frames that the kernel fills and this program empties (packet_mmap, second layout).
//!
//! Each frame is a header with its state, the link-level address, and the packet. The kernel writes a frame
//! whose state is `KERNEL` and then sets it to `USER`; the program reads it and sets it back.

use std::io;
use std::marker::PhantomData;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::offload::{HEADER, Offload};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use slipstream_core::prefetch::{prefetch_address, prefetch_to_write};

/// Bytes before the packet in a frame, at most: header, address, and what aligns the network header.
const HEADROOM: usize = 96;
/// Frames lie in blocks of this many bytes, or of one frame where that is larger.
const BLOCK: usize = 1 << 16;
/// Offset of the link-level address in a frame.
const ADDRESS: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);
/// Bytes that come from memory at a time.
const LINE: usize = 64;

/// The kernel's part of the memory of a packet socket.
#[derive(Debug)]
pub(super) struct Ring {
    memory: NonNull<u8>,
    bytes: usize,
    frame_bytes: usize,
    frames: usize,
    at: usize,
}

// SAFETY: the memory is a mapping of its own, which no other thread of this program knows of; the kernel, the
// other party, keeps to the state words, which are read and written as atomics.
unsafe impl Send for Ring {}

/// A packet in the ring, as long as its frame is not given back.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    frame: NonNull<u8>,
    frame_bytes: usize,
    header: libc::tpacket2_hdr,
    /// Kind of packet: `PACKET_HOST`, `PACKET_OUTGOING` and so on.
    pub(super) kind: u8,
    ring: PhantomData<&'a Ring>,
}

/// The size of a ring for `frames` frames (rounded up) of packets of up to `longest` bytes.
pub(super) fn request(frames: u32, longest: usize) -> libc::tpacket_req {
    let frame = (longest + HEADROOM).next_power_of_two().max(2048);
    let block = frame.max(BLOCK);
    let blocks = (frames as usize).div_ceil(block / frame).max(1);
    libc::tpacket_req {
        tp_block_size: block as u32,
        tp_block_nr: blocks as u32,
        tp_frame_size: frame as u32,
        tp_frame_nr: (blocks * (block / frame)) as u32,
    }
}

impl Ring {
    /// Maps the ring that the socket was told to use.
    pub(super) fn map(fd: BorrowedFd<'_>, request: &libc::tpacket_req) -> io::Result<Self> {
        let bytes = request.tp_block_size as usize * request.tp_block_nr as usize;
        let Some(len) = NonZeroUsize::new(bytes) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::POPULATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
        let memory = unsafe { mmap(std::ptr::null_mut(), len.get(), access, flags, fd, 0) }?;
        let memory = NonNull::new(memory.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let (frame_bytes, frames) = (request.tp_frame_size as usize, request.tp_frame_nr as usize);
        Ok(Self { memory, bytes, frame_bytes, frames, at: 0 })
    }

    /// The frame that comes after `ahead` others, of which there are more than that.
    fn frame(&self, ahead: usize) -> NonNull<u8> {
        let at = self.at + ahead;
        let at = if at < self.frames { at } else { at % self.frames };
        // SAFETY: `at` < `frames`, and frames × frame_bytes = bytes, so that the frame lies in the mapping.
        unsafe { self.memory.add(at * self.frame_bytes) }
    }

    fn state(&self, ahead: usize) -> &AtomicU32 {
        // SAFETY: a frame begins with its state, a word that is aligned as frames are, in the mapping, which
        // lives as long as `self`, and which the kernel too reads and writes as a whole.
        unsafe { AtomicU32::from_ptr(self.frame(ahead).as_ptr().cast()) }
    }

    /// Packets that are there, up to `max`. What is read of them first is asked for at once, since another
    /// core wrote it: one after the other, each would be waited for.
    pub(super) fn ready(&self, max: usize) -> usize {
        let max = max.min(self.frames);
        let there = |ahead: &usize| self.state(*ahead).load(Ordering::Acquire) & libc::TP_STATUS_USER != 0;
        (0..max)
            .take_while(there)
            .inspect(|ahead| {
                let frame = self.frame(*ahead).as_ptr();
                prefetch_to_write(frame);
                prefetch_address(frame.wrapping_add(LINE));
            })
            .count()
    }

    /// Packets that are there and were not read, looked at as seldom as may be: they come one behind the
    /// other. While more come, those that several cores write at one time may be counted or not.
    pub(super) fn waiting(&self) -> u64 {
        let there = |ahead: usize| self.state(ahead).load(Ordering::Relaxed) & libc::TP_STATUS_USER != 0;
        let (mut there_are, mut none) = (0, self.frames);
        while there_are < none {
            let middle = there_are.midpoint(none);
            if there(middle) { there_are = middle + 1 } else { none = middle }
        }
        there_are as u64
    }

    /// The packet that comes after `ahead` others, if it is there.
    pub(super) fn look(&self, ahead: usize) -> Option<Slot<'_>> {
        if ahead >= self.frames || self.state(ahead).load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let frame = self.frame(ahead);
        // SAFETY: the frame is ours until its state is set back, its header lies in the mapping and is
        // aligned as frames are, and its fields are numbers. The address that follows lies in the frame too,
        // whose headroom has room for both.
        let (header, kind) = unsafe {
            let address = frame.add(ADDRESS).cast::<libc::sockaddr_ll>().read();
            (frame.cast::<libc::tpacket2_hdr>().read(), address.sll_pkttype)
        };
        Some(Slot { frame, frame_bytes: self.frame_bytes, header, kind, ring: PhantomData })
    }

    /// Gives the frames of the next `packets` back to the kernel, which are there.
    pub(super) fn release(&mut self, packets: usize) {
        for ahead in 0..packets {
            self.state(ahead).store(libc::TP_STATUS_KERNEL, Ordering::Release);
        }
        self.at = (self.at + packets) % self.frames;
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

impl<'a> Slot<'a> {
    /// The bytes that the frame has of the packet; nothing where the kernel says what can't be.
    pub(super) fn data(&self) -> &'a [u8] {
        let (start, len) = (usize::from(self.header.tp_mac), self.header.tp_snaplen as usize);
        if start + len > self.frame_bytes {
            return &[];
        }
        // SAFETY: start + len lies within the frame, which the kernel leaves alone until it is given back,
        // for which the ring must not be borrowed.
        unsafe { std::slice::from_raw_parts(self.frame.add(start).as_ptr(), len) }
    }

    /// The header before the packet, of a socket that was told to give one.
    pub(super) fn offload(&self) -> Offload {
        let start = usize::from(self.header.tp_mac);
        if start < HEADER + size_of::<libc::tpacket2_hdr>() || start > self.frame_bytes {
            return Offload::default();
        }
        // SAFETY: these bytes lie within the frame, which the kernel leaves alone until it is given back, for
        // which the ring must not be borrowed.
        let bytes = unsafe { self.frame.add(start - HEADER).cast::<[u8; HEADER]>().read() };
        Offload::read(&bytes)
    }

    /// Returns true if the whole packet waits beside the ring, since it is too long for the frame.
    pub(super) fn waits_beside(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_COPY != 0
    }

    /// Its length on the wire, without a tag that was taken out.
    pub(super) fn wire_len(&self) -> u32 {
        self.header.tp_len
    }

    /// When the kernel got it, in ns since the Unix epoch.
    pub(super) fn time(&self) -> u64 {
        u64::from(self.header.tp_sec) * 1_000_000_000 + u64::from(self.header.tp_nsec)
    }

    /// The outermost VLAN tag, where the kernel took it out: EtherType and tag control information.
    pub(super) fn vlan(&self) -> Option<(u16, u16)> {
        let tag = self.header.tp_status & libc::TP_STATUS_VLAN_VALID != 0;
        let tpid = if self.header.tp_status & libc::TP_STATUS_VLAN_TPID_VALID != 0 {
            self.header.tp_vlan_tpid
        } else {
            libc::ETH_P_8021Q as u16
        };
        tag.then_some((tpid, self.header.tp_vlan_tci))
    }

    /// Returns true if its sender left the transport checksum to a network card that it never met.
    pub(super) fn lacks_checksum(&self) -> bool {
        self.header.tp_status & libc::TP_STATUS_CSUMNOTREADY != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Over memory of the test's own, with the next frame anywhere.
    #[test]
    fn packets_that_wait_are_counted() {
        const FRAME: usize = 2048;
        for frames in [1, 2, 7, 32] {
            let bytes = frames * FRAME;
            let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of this program.
            let memory =
                unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), bytes, access, flags) }.unwrap();
            let memory = NonNull::new(memory.cast::<u8>()).unwrap();
            let mut ring = Ring { memory, bytes, frame_bytes: FRAME, frames, at: 0 };
            for round in 0..2 * frames {
                assert_eq!(ring.waiting(), 0);
                let come = round % (frames + 1);
                for ahead in 0..come {
                    ring.state(ahead).store(libc::TP_STATUS_USER, Ordering::Release);
                    assert_eq!((ring.waiting(), ring.ready(frames)), (ahead as u64 + 1, ahead + 1));
                }
                ring.release(come / 2);
                assert_eq!(ring.waiting(), (come - come / 2) as u64);
                ring.release(come - come / 2);
            }
        }
    }

    #[test]
    fn rings_have_room_for_what_is_asked() {
        for frames in [1u32, 7, 32, 1000, 65_536] {
            for longest in [60usize, 1522, 1952, 1953, 9022, 65_557] {
                let r = request(frames, longest);
                assert!(r.tp_frame_nr >= frames && r.tp_frame_size as usize >= longest + HEADROOM);
                assert_eq!(r.tp_frame_nr, r.tp_block_nr * (r.tp_block_size / r.tp_frame_size));
                assert_eq!(r.tp_block_size % 4096, 0);
                assert_eq!(r.tp_block_size % r.tp_frame_size, 0);
                assert!(r.tp_frame_nr < 2 * frames + 64);
            }
        }
        assert!(ADDRESS + size_of::<libc::sockaddr_ll>() <= HEADROOM);
    }
}
