//! Packet headers, checksums, flow keys and RSS hashing: everything that Slipstream knows about bytes on the
//! wire.
//!
//! A captured frame and its [`LinkType`] go into [`classify`](fn@classify); out come [`Headers`]: the flow
//! key, where layer 3 and layer 4 begin, and the few fields that rules and stages ask for. No function here
//! allocates, and none panics on any bytes.
//!
//! Read it in this order: [`classify`](fn@classify) and [`Headers`], [`FlowKey`], then [`view`] for one
//! header each, [`field`] for single fields, [`checksum`], [`protocol`] and [`rss_hash`]. There is no
//! feature, no dependency, no unsafe code and no `std`; it needs Rust 1.95.

#![cfg_attr(not(test), no_std)]
#![forbid(unsafe_code)]

mod bytes;
pub mod checksum;
mod classify;
mod crc32c;
mod fast;
pub mod field;
mod general;
pub mod gro;
mod key;
mod link;
pub mod protocol;
mod rss;
mod segment;
mod tunnel;
pub mod view;

pub use classify::{
    Encapsulation, Flags, Headers, Skip, USUAL, classify, classify_reference, classify_usual, classify_with,
};
pub use key::{FlowKey, KeyError, NarrowKey, Vlans, WideKey};
pub use link::LinkType;
pub use rss::{ToeplitzKey, rss_hash};
pub use segment::{TcpSegment, ip_end, tcp_segment, ttl};
