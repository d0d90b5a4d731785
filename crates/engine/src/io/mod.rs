//! Where packets come from and where they go: capture files, generated traffic.

pub mod capture;
pub mod synth;
