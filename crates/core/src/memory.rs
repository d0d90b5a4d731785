//! Memory that is asked for before it is taken.

use alloc::vec::Vec;

/// Finds out whether memory in pieces of so many bytes can be had all at once, before those take it that
/// can't do without: what is taken in vain ends the process. That is still so if another thread takes it in
/// between, or the system promises more than it has.
#[must_use]
pub fn can_be_had(pieces: impl IntoIterator<Item = usize>) -> bool {
    let mut taken: Vec<Vec<u8>> = Vec::new();
    let had = pieces.into_iter().all(|bytes| {
        let mut piece = Vec::new();
        let had = piece.try_reserve_exact(bytes).is_ok() && taken.try_reserve(1).is_ok();
        if had {
            taken.push(piece);
        }
        had
    });
    // Memory that nobody looks at need not be asked for, to a compiler.
    core::hint::black_box(&mut taken);
    had
}
