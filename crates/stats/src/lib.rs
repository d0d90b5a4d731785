//! Histograms that the engine and the trace analysis share: exact counts, sums and means, quantiles to 0.4 %.
//!
//! ```
//! use slipstream_stats::Histogram;
//!
//! let mut waits = Histogram::default();
//! (1..=1000u64).for_each(|ns| waits.record(ns));
//! assert_eq!((waits.count(), waits.mean()), (1000, Some(500.5)));
//! ```
//!
//! The crate needs an allocator and no `std`. The feature `serde`, off by default, makes buckets
//! serialisable. It needs Rust 1.95.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

extern crate alloc;

mod histogram;

pub use histogram::{Bucket, Histogram, SignedHistogram};
