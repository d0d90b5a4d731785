//! Locality analysis of packet traces.

#![forbid(unsafe_code)]
