//! Huge pages for what is large and read at random: with 4 KiB pages, looking up a flow in a table of a
//! million costs more in page walks than in cache misses.

#![allow(unsafe_code)]

use alloc::vec;
use alloc::vec::Vec;

/// Below this, huge pages would only waste memory.
#[cfg(feature = "std")]
const WORTH_IT: usize = 4 << 20;
#[cfg(feature = "std")]
const PAGE: usize = 4096;

/// Asks for huge pages under a vector's whole capacity. Nothing changes but the speed; a refusal is no error.
#[cfg(feature = "std")]
pub fn advise<T>(vector: &mut Vec<T>) {
    use rustix::mm::{Advice, madvise};

    let bytes = vector.capacity() * size_of::<T>();
    if bytes < WORTH_IT || !cfg!(target_os = "linux") {
        return;
    }
    let start = vector.as_mut_ptr() as usize;
    let first = start.next_multiple_of(PAGE);
    let len = (start + bytes - first) / PAGE * PAGE;
    // SAFETY: the range lies within one allocation of this vector, rounded inwards to whole pages, and this
    // advice leaves contents and validity of memory as they are.
    let _ = unsafe { madvise(first as *mut _, len, Advice::LinuxHugepage) };
}

/// Without an operating system there is nobody to ask.
#[cfg(not(feature = "std"))]
pub fn advise<T>(_: &mut Vec<T>) {}

/// A vector of zeros, on huge pages where that is worth it. The system gives it zeros as they are first used:
/// what is never used takes no memory.
pub fn zeros<T: Copy + From<u8>>(n: usize) -> Vec<T> {
    let mut vector = vec![T::from(0); n];
    advise(&mut vector);
    vector
}

/// An empty vector with room for `n`, on huge pages where that is worth it.
pub fn with_capacity<T>(n: usize) -> Vec<T> {
    let mut vector = Vec::with_capacity(n);
    advise(&mut vector);
    vector
}
