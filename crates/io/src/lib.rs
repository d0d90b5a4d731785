//! Sources and destinations of packets: capture files, generated traffic, network interfaces, other
//! processes.
//!
//! Read it in this order:
//!
//! 1. [`capture`]: pcap and pcapng, read and written, whatever is wrong with them.
//! 2. [`synth`]: traffic of known locality, the same on every machine.
//! 3. [`sources`], [`preload`], [`sink`]: both as sources and ends of a pipeline; [`ports`]: their stage
//!    types.
//! 4. [`af_packet`], [`af_xdp`]: network interfaces; [`tap`]: one that this program makes; [`paced`]: made
//!    traffic by the wall clock; [`shm`]: another process. [`spread`]: flows over cores.
//!
//! All are [`Port`](slipstream_core::port::Port)s. [`confine`] gives up what a run has no use for once they
//! are open. There is no feature. Unsafe code is in [`af_packet`], [`af_xdp`], [`tap`] and [`shm`], where
//! memory is shared with the kernel or with a process, and in calls that the standard library doesn't have.
//! It needs Rust 1.95, and Linux for these.

pub mod af_packet;
pub mod af_xdp;
pub mod capture;
#[allow(unsafe_code)]
pub mod confine;
#[allow(unsafe_code)]
pub mod cpu;
pub mod link;
pub mod memory;
mod netlink;
mod offload;
#[allow(unsafe_code)]
pub mod offloads;
pub mod paced;
pub mod ports;
pub mod preload;
pub mod rotation;
pub mod shm;
pub mod sink;
#[allow(unsafe_code)]
mod socket;
pub mod sources;
pub mod spread;
pub mod super_frame;
pub mod synth;
pub mod tap;
