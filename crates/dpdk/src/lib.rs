//! DPDK: any device that EAL knows as a port, be it a card or a virtual one such as `net_null0`. The mempool is the
//! engine's packet memory: packets are received into mbufs, changed there, and handed over to be sent. Nothing is
//! copied on the way in or out, but for packets in several mbufs, and those that stages made when no mbuf was free.
//!
//! Read it in the order in which things happen:
//!
//! - [`eal`]: DPDK's environment is started once a process, with the first port.
//! - [`mempool`]: the memory of packets, as the engine's pool adopts it.
//! - [`device`]: a device is opened once, and closed when both of its halves are gone.
//! - [`receive`], [`send`]: the halves of a port; [`stage`]: the stage type.
//! - [`sys`]: what there is of C, the only unsafe code.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use slipstream::pipeline::{Plan, built_in};
//! use slipstream::runtime::Driver;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut registry = built_in();
//! registry.register(slipstream_dpdk::DPDK)?;
//! let graph = "in :: dpdk(device=net_null0) -> reframe -> out :: dpdk(device=net_null1)";
//! let plan = Plan::from_graph_with(&registry, graph, None, None, "".as_ref())?;
//! let mut driver = Driver::new(plan.build(plan.seeds(None))?);
//! // The pool whose memory is the mempool of these ports.
//! if let Some(pool) = slipstream_dpdk::take_pool() {
//!     driver = driver.pool(pool);
//! }
//! driver.run(&mut |_| ControlFlow::Continue(()))?;
//! // Closes the devices; then all mbufs must be back.
//! drop(driver);
//! let closed = slipstream_dpdk::close();
//! assert_eq!(closed.map(|closed| closed.mbufs_left), Some(0));
//! # Ok(())
//! # }
//! ```

#![cfg(feature = "libdpdk")]
#![deny(unsafe_code)]

pub mod device;
pub mod eal;
mod error;
mod mempool;
mod receive;
mod send;
mod stage;
#[allow(unsafe_code)]
mod sys;

pub use eal::{Closed, close, take_pool};
pub use error::DpdkError;
pub use receive::Receiver;
pub use send::Sender;
pub use stage::DPDK;
