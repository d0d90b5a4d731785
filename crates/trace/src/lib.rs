//! Measures the locality of traffic, and what holding packets for microseconds would gain.
//!
//! The measures are those of the Reframer paper (§3, Figs. 6 to 9, 22 and 23, Table 1): the spatial locality
//! factor, the distances between consecutive packets of a flow, the trains that a holding window would build,
//! the switches between flows in a batch. The path of a packet:
//!
//! 1. [`Analyzer::packet`] takes packets in the order of the file, reads their headers, and collects a few.
//! 2. `flows` gives each of them the dense number of its flow; from here on a packet is a `block` row of 24
//!    bytes.
//! 3. Analyses read blocks, each for itself and, with [`Config::threads`] above 1, on other cores:
//!    `distances` (runs, distances, flow sizes, switches) and one `trains` a window.
//! 4. [`Analyzer::finish`] gives a [`Partial`]; partials of several files [`Partial::merge`];
//!    [`Partial::report`] computes ratios and quantiles, and a [`FlowFile`] takes the flows themselves as
//!    Parquet.
//!
//! [`Details`] count flow by flow what the report has in sum, for [`Groups`] of flows and for Parquet; a
//! [`PacketFile`] takes every packet.
//!
//! Of a part of a trace, a [`StretchAnalyzer`] makes a [`Stretch`], which is saved as bytes and joined with
//! those of the other parts, exactly.
//!
//! [`analyze_sections`] has several threads read one trace, each from one place of it to another.
//!
//! Everything is streaming: memory grows with the flows and with what a window holds open, not with the
//! packets. Results are the same, bit for bit, for any number of threads.
//!
//! ```
//! use slipstream_trace::{Analyzer, Config};
//! use slipstream_wire::LinkType;
//!
//! let mut analyzer = Analyzer::new(Config::default())?;
//! analyzer.packet(1_000, LinkType::Ethernet, 60, &[0; 60]);
//! let report = analyzer.finish().report();
//! assert_eq!(report.records, 1);
//! assert_eq!(report.ip.packets, 0);
//! # Ok::<(), slipstream_trace::ConfigError>(())
//! ```
//!
//! There is no feature and no unsafe code. It needs Rust 1.95.

#![forbid(unsafe_code)]

mod analyzer;
mod block;
mod config;
mod details;
mod distances;
mod endpoints;
mod flows;
mod groups;
mod packet_file;
mod parquet;
mod partial;
mod report;
mod sections;
mod stretch;
mod trains;
mod workers;

pub use analyzer::{Analyzer, Digest};
pub use config::{Config, ConfigError};
pub use details::{DetailConfig, DetailDigest, Details, FlowDetail};
pub use groups::{Group, GroupBy, GroupWindow, Groups, Slices, UnknownGroupBy};
pub use packet_file::{PacketFile, PacketRow};
pub use parquet::{FlowFile, FlowFileError};
pub use partial::{FlowPackets, MergeError, Partial};
pub use sections::{SectionAnalyzer, analyze_sections};
pub use stretch::{Ending, Opening, Place, Stretch, StretchAnalyzer, StretchError};

pub use report::{
    Acks, Distribution, Endpoint, EndpointSide, FlowSizes, FlowSwitches, Report, Sequence, Skipped, Window,
};
