//! What network functions decide: cores that know keys, bytes and times, but no frames, trains or stages.
//!
//! Each is deterministic (the same calls give the same answers), is handed the time, reserves its memory when it is made
//! and allocates nothing per packet. Stages are built around them.

pub mod balancer;
mod bucket;
mod bytes;
pub mod conntrack;
pub mod encap;
pub mod flow_stats;
pub mod icmp;
pub mod ipfix;
pub mod mac_table;
pub mod maglev;
pub mod meter;
pub mod nat;
pub mod table;
pub mod tcp_state;

pub use bucket::{MAX_TOKENS, RateLimiter};

#[cfg(test)]
mod test_packets;
