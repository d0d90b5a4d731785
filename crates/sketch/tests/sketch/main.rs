//! Tests of the sketches: what each promises, over many seeds; states and merges.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod bounds;
mod common;
mod guarantees;
mod merge;
mod states;
mod versions;
