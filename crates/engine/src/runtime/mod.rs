//! The driver of pipelines, and its clocks.
//!
//! A [`Driver`] has one loop: its clock says up to when packets may come, [`feeds`] asks the sources for
//! them, the pipeline ([`graph`]) takes them, the clock lets time pass. There are three clocks:
//! [`capture_time`] of replays, the wall clock of [`live`] runs, and [`service_time`], which counts what
//! polls take ([`outliers`] tells which of them were interrupted, [`probe`] the speed of the core).
//! [`waiting`] says when a live run sleeps, and [`shards`] run one on several cores. [`replay`] is the driver
//! over the reframer alone, [`rehearsal`] measures a pipeline over packets that lie ready; [`poll_log`]
//! remembers how many packets came at a time, a [`monitor`] reports on a run while it goes on, and an
//! [`operator`] has work done at its stages.

mod alarm;
mod capture_time;
mod driver;
mod ends;
mod feeds;
mod graph;
mod live;
mod monitor;
mod operator;
mod outliers;
mod poll_log;
mod probe;
mod rehearsal;
mod replay;
mod report;
mod service_time;
pub(crate) mod shards;
mod waiting;

pub use driver::Driver;
pub use ends::{Destination, Origin};
pub use graph::{ContextPlace, FlowContextPlan, FlowContextSettings, Pipeline, StageReport, Tally};
pub use live::LiveOptions;
pub use monitor::Monitor;
pub use operator::{Attention, Operator, Work};
pub use poll_log::{Poll, PollCounts, PollLog};
pub use probe::Probe;
pub use rehearsal::{Timing, Traffic};
pub use replay::{Pace, Replay, ReplayError, ReplayReport, Tick, ToSink};
pub use report::{RunError, RunReport, SourceReport};
pub use service_time::ServiceTimeReport;
pub use slipstream_core::flow_context::ContextCounts;
pub use slipstream_core::source::{LiveSource, OwnTimeSource, Source, SourceError};
pub use slipstream_io::preload::Preload;
pub use slipstream_io::sink::{CaptureSink, NullSink, Sink, Stamp};
pub use slipstream_io::sources::{CaptureSource, SynthSource};
