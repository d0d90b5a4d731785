//! DPDK: any device that EAL knows as a port, be it a card or a virtual one such as `net_null0`. The
//! mempool is the engine's packet memory: packets are received into mbufs, changed there, and handed over
//! to be sent. Nothing is copied on the way in or out, but for packets in several mbufs, and those that
//! stages made when no mbuf was free.
//!
//! Without the feature `libdpdk` the crate is empty, and nothing of DPDK is needed to build it.
//!
//! Read it in the order in which things happen:
//!
//! - `eal`: DPDK's environment is started once a process, with the first port.
//! - `mempool`: the memory of packets, as the engine's pool adopts it.
//! - `device`: a device is opened once, and closed when both of its halves are gone.
//! - `receive`, `send`: the halves of a port; `stage`: the stage type.
//! - `sys`: what there is of C, `shim.c`.

#![deny(unsafe_code)]

#[cfg(feature = "libdpdk")]
pub mod device;
#[cfg(feature = "libdpdk")]
pub mod eal;
#[cfg(feature = "libdpdk")]
mod error;
#[cfg(feature = "libdpdk")]
mod mempool;
#[cfg(feature = "libdpdk")]
mod receive;
#[cfg(feature = "libdpdk")]
mod send;
#[cfg(feature = "libdpdk")]
mod stage;
#[cfg(feature = "libdpdk")]
#[allow(unsafe_code)]
mod sys;

#[cfg(feature = "libdpdk")]
pub use self::{
    eal::{Closed, close, take_pool},
    error::DpdkError,
    receive::Receiver,
    send::Sender,
    stage::DPDK,
};
