//! Memory that is asked for before it is taken.

use alloc::vec::Vec;

/// Bytes that are taken without asking. What glibc's allocator gets back below this size it keeps for later,
/// and clears it by hand for whoever wants zeros: of tables that were asked for before, all memory would be
/// touched. Larger pieces come from the system each time, and are clear until somebody writes to them.
const LITTLE: usize = 32 << 20;

/// Finds out whether memory in pieces of so many bytes can be had all at once, before those take it that
/// can't do without: what is taken in vain ends the process. That is still so if another thread takes it in
/// between, or the system promises more than it has. Less than 32 MiB in all is not asked for.
#[must_use]
pub fn can_be_had(pieces: impl IntoIterator<Item = usize>) -> bool {
    let bytes = pieces.into_iter().fold(0, |sum: usize, bytes| sum.saturating_add(bytes));
    if bytes < LITTLE {
        return true;
    }
    let mut taken: Vec<u8> = Vec::new();
    let had = taken.try_reserve_exact(bytes).is_ok();
    // Memory that nobody looks at need not be asked for, to a compiler.
    core::hint::black_box(&mut taken);
    had
}
