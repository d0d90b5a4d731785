//! Slice, a function, splice: the same as the function alone.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod attacks;
mod chaos;
mod chaotic;
mod edges;
mod hidden;
mod packets;
mod pipelines;
mod rewrite;
mod same;
mod usual;
