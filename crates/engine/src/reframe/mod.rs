//! The reframe stage: packets in as they come, out as trains (paper: "Packet Order Matters!", NSDI'22, §4).
//!
//! For each packet: its flow → bypass? → the flow's train → full? Then every train whose first packet has waited
//! `hold` leaves. Trains that leave at the same instant go through the scheduler (order), the compressor
//! (fewer packets), and out, whole.
//!
//! - [`flow_table`]: from key to flow.
//! - [`hold`]: the trains, and when they are due.
//! - [`stage`]: the stage itself.
//! - [`compress`], [`tcp_order`]: what may be done to a train on its way out.

mod class;
pub mod compress;
mod config;
mod finish;
pub mod flow_table;
mod hold;
mod plain;
mod slot;
mod stage;
mod stats;
pub mod tcp_order;

pub use class::ClassError;
pub use config::{Admit, Class, ConfigError, Encapsulation, Policy, ReframeConfig, Treatment};
pub use stage::{Output, Reframe};
pub use stats::{Cause, ClassStats, ReframeStats};

/// Longest frame, in captured bytes, that is classified; a longer one is passed through.
pub const MAX_FRAME_LEN: u32 = slot::MAX_LEN;
