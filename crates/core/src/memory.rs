//! Memory that is asked for before it is taken.

use alloc::vec::Vec;

/// Finds out whether memory in pieces of so many bytes can be had all at once, before those take it that
/// can't do without: what is taken in vain ends the process. That is still so if another thread takes it in
/// between, or the system promises more than it has.
#[must_use]
pub fn can_be_had(pieces: impl IntoIterator<Item = usize>) -> bool {
    // In one piece: pieces of their own sizes would be kept by the allocator for those who take them.
    let bytes = pieces.into_iter().fold(0, |sum: usize, bytes| sum.saturating_add(bytes));
    let mut taken: Vec<u8> = Vec::new();
    let had = taken.try_reserve_exact(bytes).is_ok();
    // Memory that nobody looks at need not be asked for, to a compiler.
    core::hint::black_box(&mut taken);
    had
}
