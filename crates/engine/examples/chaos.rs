//! Slice and splice with a function between that does whatever can go wrong, for as many packets as one
//! likes.
//!
//! `cargo run --release -p slipstream --example chaos -- [--packets 100000000] [--seed 1]`
//!
//! Half of the packets have their payloads in place, half copied; tokens are keyed in two runs and the
//! paper's in two. It ends with an error if a packet leaves that is not itself, byte for byte, if an entry or
//! a buffer is lost, or if the counters don't add up.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../tests/engine/slice/chaos.rs"]
mod chaos;

use slipstream::slice::splicer::REFUSALS;
use slipstream::slice::{Storage, TokenMode};

fn option(name: &str, default: u64) -> u64 {
    let mut words = std::env::args().skip_while(|word| word != name).skip(1);
    words
        .next()
        .map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("{name} {word}: not a number")))
}

fn main() {
    let (packets, seed) = (option("--packets", 100_000_000), option("--seed", 1));
    let copied = Storage::Copied { entry_bytes: 1500 };
    for (n, (mode, storage)) in [
        (TokenMode::Keyed, Storage::InPlace),
        (TokenMode::Keyed, copied),
        (TokenMode::Paper, Storage::InPlace),
        (TokenMode::Paper, copied),
    ]
    .into_iter()
    .enumerate()
    {
        let outcome = chaos::run(packets / 4, seed + n as u64, mode, storage);
        println!("{mode:?} {storage:?}: {} packets came, {} of them attacks", outcome.came, outcome.attacks);
        println!("  whole again {}, untouched {}, wrong 0", outcome.whole, outcome.untouched);
        for (name, n) in REFUSALS.iter().zip(outcome.splicer.refused) {
            println!("  {name} {n}");
        }
        println!("  {:?}\n  {:?}", outcome.slicer, outcome.table);
        chaos::check(&outcome, mode);
    }
}
