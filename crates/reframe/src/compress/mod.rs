//! Fewer packets of the same information.
//!
//! - [`ack`](AckCompressor): of pure acknowledgements in a row, those that the next one makes superfluous.
//!
//! - [`gro`](Gro): TCP segments and UDP datagrams in sequence become super-frames. Their packets stay apart,
//!   and are marked.
//!
//! Nothing here allocates or rewrites a packet: a train goes in, what to keep or to join comes out.

mod ack;
mod gro;
mod segment;
#[cfg(test)]
pub(super) mod test_packets;

pub use ack::{AckCompressor, AckState};
pub use gro::{Gro, GroStats};
pub use segment::PacketView;
pub(super) use segment::Segment;

#[cfg(test)]
mod ack_props;
#[cfg(test)]
mod ack_tests;
#[cfg(test)]
mod gro_tests;
