//! Slipstream: packets in, trains out. This crate puts the others together, and is the one that most programs
//! need.
//!
//! Read it in the order in which a packet sees it:
//!
//! 1. [`io`] brings packets in from capture files or makes them ([`io::synth`]), and writes them out;
//!    [`port`] is the contract.
//! 2. [`pool`], [`frame`], [`batch`]: what a packet is while it is inside.
//! 3. [`rules`]: the one language that selects packets.
//! 4. [`reframe`]: the stage that holds packets and releases them as trains.
//! 5. [`stage`], [`functions`]: what else a pipeline is made of; functions decide once per train.
//! 6. [`slice`](mod@slice): headers travel, payloads wait: for functions that read headers only.
//! 7. [`measure`]: questions about flows, answered by sketches.
//! 8. [`pipeline`]: the language that wires stages, and the [registry](pipeline::built_in) of their types.
//! 9. [`runtime`]: the [`Driver`](runtime::Driver), which runs a pipeline: a replay by the captures' clock,
//!    on one thread or several, or live, by the wall clock.
//! 10. [`operate`]: what whoever operates a running pipeline asks for, and the state that survives a restart.
//!
//! Only the last three are code of this crate, with the stages that lead packets about; the others are crates
//! of their own, under their usual names. A stage type of one's own is registered beside the built-in ones:
//! see `examples/own_stage.rs`.
//!
//! There is no feature. Unsafe code shares packet memory between the threads of a replay
//! (`runtime::graph::sections`), and nothing else. It needs Rust 1.95 and Linux.

#![deny(unsafe_code)]

pub use slipstream_core::{
    batch, classify, clock, flow_context, frame, interface, new_file, pool, port, rules, seed, source, stage,
    text_file, time, units,
};
pub use {
    slipstream_functions as functions, slipstream_io as io, slipstream_measure as measure,
    slipstream_reframe as reframe, slipstream_slice as slice,
};

pub mod operate;
/// The README's program compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod pipeline;
pub mod runtime;
mod stages;
