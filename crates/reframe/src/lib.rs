//! The reframe stage: packets in as they come, out as trains (paper: "Packet Order Matters!", NSDI'22, §4).
//!
//! For each packet: its flow → bypass? → the flow's train → full? Then every train whose first packet has
//! waited `hold` leaves. Trains that leave at the same instant go through the scheduler (order), the
//! compressor (fewer packets), and out, whole.
//!
//! Whoever has packets of his own begins with [`embed`]. The code is to be read in this order:
//!
//! 1. [`ReframeConfig`]: what there is to set.
//! 2. [`Reframe`]: the stage itself, without a pipeline around it.
//! 3. [`flow_table`]: from key to flow.
//! 4. `hold`, `slot`: the trains, and when they are due; `plain`: the same for usual settings, in few loops.
//!    `adaptive`, `waiting`: waits that are learned, and the packets' way through them. `auto`, `tune`: a
//!    hold that sets itself.
//!    `elephants`: classes of heavy flows.
//! 5. [`compress`], [`tcp_order`]: what may be done to a train on its way out (`finish`).
//! 6. [`ReframeStats`]: what is counted.
//! 7. `settings`, `class`, `stage`: the stage in a pipeline.
//!
//! The feature `std`, on by default, has the stage of a pipeline with its settings and report, classes from
//! text, and rules from files. Without it the crate needs an allocator and no operating system: the reframer
//! works on flow keys or bytes that it is given, and never asks for the time. There is no unsafe code. It
//! needs Rust 1.95.

#![cfg_attr(not(any(test, feature = "std")), no_std)]

extern crate alloc;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod adaptive;
mod auto;
mod block;
mod by_class;
#[cfg(feature = "std")]
mod class;
pub mod compress;
mod config;
mod elephants;
pub mod embed;
mod finish;
pub mod flow_table;
mod hold;
mod leaving;
mod pass;
mod plain;
mod reframer;
#[cfg(feature = "std")]
mod regroup;
#[cfg(feature = "std")]
mod renew;
#[cfg(feature = "std")]
mod settings;
mod slot;
#[cfg(feature = "std")]
mod stage;
mod stats;
pub mod tcp_order;
mod tune;
#[cfg(test)]
mod tune_tests;
mod waiting;

pub use adaptive::{Budget, BudgetError, Knowledge};
pub use auto::{AutoStats, Outcome};
#[cfg(feature = "std")]
pub use class::ClassError;
pub use config::{Admit, Class, ClassSettings, ConfigError, Encapsulation, Policy, ReframeConfig};
pub use reframer::Reframe;
#[cfg(feature = "std")]
pub use settings::SETTINGS;
pub use slipstream_core::frame::MAX_FRAME_LEN;
pub use slipstream_core::heavy::Top;
pub use slipstream_core::rules::{Rule, RuleError};
pub use slipstream_core::stage::Output;
pub use slipstream_core::time::Nanos;
pub use slipstream_wire::{FlowKey, Headers, LinkType};
#[cfg(feature = "std")]
pub use stage::{REFRAME, ReframeStage, build_with, update_with};
pub use stats::{Cause, ClassStats, ReframeStats};
