//! The contracts of Slipstream: the types that its members and those who embed it agree on. Nothing here
//! knows a member.
//!
//! Read it in this order:
//!
//! 1. [`time`], [`clock`]: time is handed in; one module reads clocks.
//! 2. [`pool`], [`frame`], [`batch`]: a packet while it is inside, and trains of packets on their way.
//! 3. [`source`], [`port`]: where packets come from and go to; [`interface`]: on which they came.
//! 4. [`classify`], [`packet`], [`reads`]: headers, parsed once, and the fields that decisions read.
//! 5. [`stage`]: the steps of a pipeline, verdicts, and the reasons for which packets are dropped.
//! 6. [`registry`], [`settings`]: a type of stages with its ports and settings, each defined once.
//! 7. [`operate`]: the same stages as an operator sees them while they run.
//! 8. [`rules`]: the one language that selects packets.
//! 9. [`table`]: the hash table that flows, connections and stations are kept in; [`seed`]: what its hashes
//!    are keyed with; [`flow_context`]: one look-up for a whole chain; [`heavy`]: flows with most packets.
//!
//! | feature | default | brings |
//! |---|---|---|
//! | `std` | yes | clocks, files, ports, the registry of stages and its settings, JSON, huge pages, pools that threads share |
//! | `testing` | no | random packets and rules for property tests, and a clock that tests move |
//!
//! Without `std` the crate needs an allocator and no operating system; pools take their memory from the
//! allocator then. It needs Rust 1.95. Unsafe code is in [`pool`], [`prefetch`] and [`huge`] alone.

#![cfg_attr(not(any(test, feature = "std")), no_std)]
#![deny(unsafe_code)]

extern crate alloc;

pub mod batch;
mod caused;
pub mod classify;
#[cfg(feature = "std")]
pub mod clock;
pub mod flow_context;
pub mod frame;
pub mod heavy;
pub mod huge;
pub mod interface;
pub mod keys;
pub mod lateness;
pub mod memory;
#[cfg(feature = "std")]
pub mod new_file;
#[cfg(feature = "std")]
pub mod operate;
pub mod packet;
pub mod pool;
#[cfg(feature = "std")]
pub mod port;
pub mod prefetch;
pub mod reads;
#[cfg(feature = "std")]
pub mod registry;
pub mod rules;
#[cfg(feature = "std")]
pub mod seed;
#[cfg(feature = "std")]
pub mod settings;
#[cfg(feature = "std")]
pub mod source;
pub mod stage;
#[cfg(feature = "std")]
pub mod stop;
pub mod table;
#[cfg(feature = "std")]
pub mod text_file;
pub mod time;
pub mod units;
