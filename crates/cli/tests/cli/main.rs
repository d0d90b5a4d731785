//! Tests of the binary `slipstream`, as somebody at a terminal or a script uses it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod analyze_files;
mod bad_input;
mod book;
mod common;
mod everyday;
mod full_disk;
mod help;
mod in_and_out;
mod interrupts;
mod json_shape;
mod labs;
mod measure;
mod measure_states;
mod memory;
mod metrics;
mod model;
mod operation;
mod reload;
