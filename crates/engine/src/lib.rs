//! Slipstream's data path: packets in, trains out.
//!
//! Read it in the order in which a packet sees it:
//!
//! 1. [`io`] brings packets in from capture files or makes them ([`io::synth`]), and writes them out.
//! 2. [`pool`], [`frame`], [`batch`]: what a packet is while it is inside.
//! 3. [`rules`]: the one language that selects packets.
//! 4. [`reframe`]: the stage that holds packets and releases them as trains.
//! 5. [`stage`], [`functions`]: what else a pipeline is made of; functions decide once per train.
//! 6. [`slice`](mod@slice): headers travel, payloads wait: for functions that read headers only.
//! 7. [`measure`]: questions about flows, answered by sketches.
//! 8. [`pipeline`]: the language that wires stages.
//! 9. [`runtime`]: the loops that drive them over a capture's own clock, on one core or several.
//!
//! Beside that, [`data_movement`] is what moving packets between a network card and a server costs, on paper.

#![deny(unsafe_code)]

pub mod batch;
pub mod clock;
pub mod data_movement;
pub mod frame;
pub mod functions;
mod huge;
pub mod io;
pub mod measure;
pub mod pipeline;
pub mod pool;
mod prefetch;
pub mod reframe;
pub mod rules;
pub mod runtime;
pub mod seed;
pub mod slice;
pub mod stage;
pub mod time;
pub mod units;
