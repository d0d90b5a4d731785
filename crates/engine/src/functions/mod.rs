//! What network functions decide: cores that know keys, bytes and times, but no frames, trains or stages.
//!
//! Each is deterministic (the same calls give the same answers), is handed the time, reserves its memory when it is made
//! and allocates nothing per packet. Stages are built around them.

mod bytes;
pub mod nat;
pub mod table;
pub mod tcp_state;

#[cfg(test)]
mod test_packets;
