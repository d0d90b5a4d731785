//! The chaos function for a moment: both kinds of tokens, both ways of keeping payloads.

use slipstream::slice::{Storage, TokenMode};

use super::chaos::{check, run};

const COPIED: Storage = Storage::Copied { entry_bytes: 1500 };

#[test]
fn chaos_never_gives_a_packet_the_payload_of_another() {
    for (n, (mode, storage)) in [
        (TokenMode::Keyed, Storage::InPlace),
        (TokenMode::Keyed, COPIED),
        (TokenMode::Paper, Storage::InPlace),
        (TokenMode::Paper, COPIED),
    ]
    .into_iter()
    .enumerate()
    {
        check(&run(60_000, n as u64 + 1, mode, storage), mode);
    }
}
