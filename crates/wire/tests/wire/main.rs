//! The promises of the crate about bytes on the wire, seen from outside.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod checksum;
mod classify;
mod etherparse;
mod frames;
mod segment;
mod tunnel;
mod views;
