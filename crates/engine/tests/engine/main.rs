//! Tests of the engine by what it makes public: slow twins, cases as text, captures, whole pipelines.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod adaptive_twin;
mod capture_errors;
mod capture_formats;
mod capture_oracle;
mod capture_support;
mod capture_writer;
mod cases;
mod common;
mod function_cases;
mod ipfix;
mod live;
mod measure;
mod own_stage;
mod pipelines;
mod ports;
mod reframe_twin;
mod relay;
mod rules;
mod shm;
mod slice;
mod super_frames;
mod synth_campus;
mod synth_config;
mod synth_plain;
mod synth_support;
mod synth_tcp;
mod two_sources;
mod workers;
