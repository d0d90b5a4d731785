//! The mapping of the file and the locks on it: all unsafe code of the port.
//!
//! Other processes write this memory. No reference to its bytes is ever made: they are copied in and out, and
//! single words are atomics.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// A file that other processes have mapped too.
#[derive(Debug)]
pub(super) struct Memory {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: what may be done with the memory by several threads at once, atomics and copies, is what other
// processes do anyway; who copies where is settled by the ring's positions.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Maps the first `bytes` of a file, which has as many.
    pub(super) fn map(file: &File, bytes: usize) -> io::Result<Self> {
        let Some(len) = NonZeroUsize::new(bytes) else { return Err(io::ErrorKind::InvalidInput.into()) };
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the system's choice touches no memory of this program.
        let start =
            unsafe { mmap(std::ptr::null_mut(), len.get(), access, MapFlags::SHARED, file.as_fd(), 0) }?;
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// The place of `len` bytes at `at`, a multiple of `align`, which is one that pages are aligned to; none
    /// beyond the end.
    fn place(&self, at: usize, len: usize, align: usize) -> Option<NonNull<u8>> {
        let end = at.checked_add(len)?;
        if end > self.bytes || !at.is_multiple_of(align) {
            return None;
        }
        // SAFETY: at + len lies within the mapping.
        Some(unsafe { self.start.add(at) })
    }

    /// The word at `at`; none beyond the end or where no word can be.
    #[inline]
    pub(super) fn word(&self, at: usize) -> Option<&AtomicU64> {
        let place = self.place(at, size_of::<u64>(), align_of::<AtomicU64>())?;
        // SAFETY: the place lies in the mapping, which lives as long as `self`, is aligned, and is only ever
        // used as an atomic.
        Some(unsafe { AtomicU64::from_ptr(place.as_ptr().cast()) })
    }

    /// As [`Memory::word`], half as long.
    #[inline]
    pub(super) fn half_word(&self, at: usize) -> Option<&AtomicU32> {
        let place = self.place(at, size_of::<u32>(), align_of::<AtomicU32>())?;
        // SAFETY: as in `word`.
        Some(unsafe { AtomicU32::from_ptr(place.as_ptr().cast()) })
    }

    /// Copies bytes to `at`; says whether there is room.
    #[inline]
    pub(super) fn write(&self, at: usize, bytes: &[u8]) -> bool {
        let Some(place) = self.place(at, bytes.len(), 1) else { return false };
        // SAFETY: the place lies in the mapping, which no reference leads to, so that it doesn't overlap with
        // `bytes`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), place.as_ptr(), bytes.len()) };
        true
    }

    /// Copies the bytes at `at`; says whether there are so many.
    #[inline]
    pub(super) fn read(&self, at: usize, to: &mut [u8]) -> bool {
        let Some(place) = self.place(at, to.len(), 1) else { return false };
        // SAFETY: as in `write`, the other way round. Should another process write there at the same time,
        // against the protocol, then `to` has some bytes or others.
        unsafe { std::ptr::copy_nonoverlapping(place.as_ptr(), to.as_mut_ptr(), to.len()) };
        true
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

fn lock_of(byte: u8, kind: libc::c_int) -> libc::flock {
    // SAFETY: a `flock` is numbers, of which all zero bytes are a value.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = kind as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = libc::off_t::from(byte);
    lock.l_len = 1;
    lock
}

fn control(file: &File, command: libc::c_int, lock: &mut libc::flock) -> io::Result<()> {
    loop {
        // SAFETY: the command is one that takes a pointer to a `flock`, which outlives the call.
        let result = unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) };
        let error = io::Error::last_os_error();
        match result {
            -1 if error.kind() == io::ErrorKind::Interrupted => {}
            -1 => return Err(error),
            _ => return Ok(()),
        }
    }
}

/// Locks a byte of a file for this opening of it (an open file description lock, which goes with it:
/// fcntl(2)); says whether it was free.
pub(super) fn lock(file: &File, byte: u8) -> io::Result<bool> {
    match control(file, libc::F_OFD_SETLK, &mut lock_of(byte, libc::F_WRLCK)) {
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Gives a byte back.
pub(super) fn unlock(file: &File, byte: u8) -> io::Result<()> {
    control(file, libc::F_OFD_SETLK, &mut lock_of(byte, libc::F_UNLCK))
}

/// Checks if another opening of the file has a byte locked.
pub(super) fn locked_elsewhere(file: &File, byte: u8) -> io::Result<bool> {
    let mut lock = lock_of(byte, libc::F_WRLCK);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    Ok(libc::c_int::from(lock.l_type) != libc::F_UNLCK)
}
