//! Tests of the model: properties that hold for every queue, and results computed by another program.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod properties;
mod reference;
mod waits;
