//! Histograms that the engine and the trace analysis share: exact counts, sums and means, quantiles to 0.4 %.

#![forbid(unsafe_code)]

mod histogram;

pub use histogram::{Bucket, Histogram, SignedHistogram};
