//! Removal of packets from a train whose other packets carry the same information.
//!
//! - [`ack`](AckCompressor): of pure acknowledgements in a row, those that the next one makes superfluous.
//!
//! Nothing here allocates or rewrites a packet: a train goes in as views, what to keep comes out.

mod ack;
mod segment;
#[cfg(test)]
pub(super) mod test_packets;

pub use ack::{AckCompressor, AckState};
pub use segment::PacketView;
pub(super) use segment::Segment;

#[cfg(test)]
mod ack_props;
#[cfg(test)]
mod ack_tests;
