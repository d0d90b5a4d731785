//! The ring of frames that the kernel fills and this program empties (packet_mmap, second layout).
//!
//! Each frame is a header with its state, the link-level address, and the packet. The kernel writes a frame
//! whose state is `KERNEL` and then sets it to `USER`; the program reads it and sets it back.

use std::io;
use std::mem::size_of;
use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::offload::{HEADER, Offload};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes before the packet in a frame, at most: header, address, and what aligns the network header.
const HEADROOM: usize = 96;
/// Frames lie in blocks of this many bytes, or of one frame where that is larger.
const BLOCK: usize = 1 << 16;
/// Offset of the link-level address in a frame.
const ADDRESS: usize = size_of::<libc::tpacket2_hdr>().next_multiple_of(libc::TPACKET_ALIGNMENT);

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

/// A packet in the ring; its frame goes back to the kernel when this is dropped.
#[derive(Debug)]
pub(super) struct Slot<'a> {
    ring: &'a mut Ring,
    header: libc::tpacket2_hdr,
    /// Kind of packet: `PACKET_HOST`, `PACKET_OUTGOING` and so on.
    pub(super) kind: u8,
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

    fn frame(&self) -> NonNull<u8> {
        // SAFETY: `at` < `frames`, and frames × frame_bytes = bytes, so that the frame lies in the mapping.
        unsafe { self.memory.add(self.at * self.frame_bytes) }
    }

    fn state(&self) -> &AtomicU32 {
        // SAFETY: a frame begins with its state, a word that is aligned as frames are, in the mapping, which
        // lives as long as `self`, and which the kernel too reads and writes as a whole.
        unsafe { AtomicU32::from_ptr(self.frame().as_ptr().cast()) }
    }

    /// The next packet, if one is there.
    pub(super) fn next(&mut self) -> Option<Slot<'_>> {
        if self.state().load(Ordering::Acquire) & libc::TP_STATUS_USER == 0 {
            return None;
        }
        let frame = self.frame();
        // SAFETY: the frame is ours until its state is set back, its header lies in the mapping and is
        // aligned as frames are, and its fields are numbers. The address that follows lies in the frame too,
        // whose headroom has room for both.
        let (header, kind) = unsafe {
            let address = frame.add(ADDRESS).cast::<libc::sockaddr_ll>().read();
            (frame.cast::<libc::tpacket2_hdr>().read(), address.sll_pkttype)
        };
        Some(Slot { ring: self, header, kind })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

impl Slot<'_> {
    /// The bytes that the frame has of the packet; nothing where the kernel says what can't be.
    pub(super) fn data(&self) -> &[u8] {
        let (start, len) = (usize::from(self.header.tp_mac), self.header.tp_snaplen as usize);
        if start + len > self.ring.frame_bytes {
            return &[];
        }
        // SAFETY: start + len lies within the frame, which the kernel leaves alone until it is given back,
        // when this slot, from which is borrowed, is gone.
        unsafe { std::slice::from_raw_parts(self.ring.frame().add(start).as_ptr(), len) }
    }

    /// The header before the packet, of a socket that was told to give one.
    pub(super) fn offload(&self) -> Offload {
        let start = usize::from(self.header.tp_mac);
        if start < HEADER + size_of::<libc::tpacket2_hdr>() || start > self.ring.frame_bytes {
            return Offload::default();
        }
        // SAFETY: these bytes lie within the frame, which the kernel leaves alone until it is given back,
        // when this slot is gone.
        let bytes = unsafe { self.ring.frame().add(start - HEADER).cast::<[u8; HEADER]>().read() };
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

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.ring.state().store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.ring.at = (self.ring.at + 1) % self.ring.frames;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
