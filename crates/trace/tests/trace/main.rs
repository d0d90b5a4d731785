//! Tests of the analysis: a slow twin on random streams, and real captures with figures computed elsewhere.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod expected;
mod sections;
mod spans;
mod stretch;
mod twin;
