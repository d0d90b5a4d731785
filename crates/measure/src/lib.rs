//! Questions about flows, answered by sketches (Agg-Evict paper, Table 1): what the `measure` verb asks of a
//! trace, and what the `measure` stage asks of the packets that pass.
//!
//! Read it in the order in which a packet sees it: [`Keying`] makes a sketch's key of its flow key;
//! [`SketchSet`] hold a sketch each for IPv4 and IPv6 (keys of four bytes cost much less than keys of
//! sixteen) and put their answers together, exactly, for no flow is of both; [`Snapshots`] answers while the
//! next epoch is already under way. [`measure_trace`] does all of it for a trace, on any number of threads.
//!
//! ```
//! use std::sync::Arc;
//!
//! use slipstream_measure::{Answer, Ask, Plan, SketchSet, Span, Task, keying};
//! use slipstream_sketch::{Kind, Size, Want};
//! use slipstream_wire::{LinkType, classify};
//!
//! let (task, kind) = (Task::HeavyHitters, Kind::SpaceSaving);
//! let want = Want { threshold: 1, top: 1 };
//! let ask = Ask { task, keying: keying(Some("src"), task, kind)?, want, flows: Vec::new() };
//! let plan = Plan {
//!     kind,
//!     size: Size::Memory(1 << 16),
//!     aggregate: None,
//!     seed: 1,
//!     compare: false,
//!     save: false,
//!     timed: false,
//! };
//! let mut sketches = SketchSet::new(Arc::new(ask.clone()), plan.configs(&ask))?;
//!
//! // Ten packets of three hosts; the first of them sends four.
//! let mut dns = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
//! for n in 0..10 {
//!     dns[15] = n % 3;
//!     sketches.push(&classify(LinkType::RawIp, &dns).unwrap().key, 1)?;
//! }
//! let ended = sketches.end_epoch(Span { packets: 10, ..Span::default() })?;
//! let Answer::Keys { rows, .. } = ended.result.answer else { panic!("heavy hitters are keys") };
//! assert_eq!((rows[0].key.as_str(), rows[0].size.estimate), ("10.0.0.0", 4));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is no feature and no unsafe code. It needs Rust 1.95.

mod answer;
mod desk;
mod elephants;
mod epoch;
mod keys;
mod lane;
mod parallel;
mod plan;
mod saved;
mod stage;
mod state;
mod task;
mod weigh;

pub use answer::{Answer, Ask, Figure, Promise, QUANTILES, Row, quantiles};
pub use desk::{EndError, Keeper, Outcome, Snapshots};
pub use elephants::Elephants;
pub use epoch::{Ended, EpochResult, SketchSet, Span, relative_error, wmrd};
use keys::is_ipv6;
pub use keys::{KeyBytes, KeyKind, Keying, MAX_KEY};
pub use lane::{KeyedSketch, SketchConfig, SketchEpoch, keyed_sketch};
pub use parallel::{
    Digest, DigestMeasurement, Packet, PacketSource, TraceEpoch, TraceError, TraceResult, TraceSettings,
    measure_trace,
};
pub use plan::{Plan, keying};
pub use saved::{Description, Saved, SavedEpoch, SavedError};
pub use state::{StateAnswer, ask_state, compare_states, empty_state, merge_states, sum_states};
pub use task::{EpochLength, Task, UnknownTask};
pub use weigh::Weight;

use slipstream_sketch::{AggregatorError, BuildError, Kind, MergeError, QueryError, StateError};

/// Why something can't be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The sketch can't be made.
    #[error(transparent)]
    Sketch(#[from] BuildError),
    /// The budget doesn't hold the smallest sketches of this kind.
    #[error("{kind} needs at least {least} bytes for IPv4 and IPv6 together, {budget} are too few")]
    TooSmall {
        /// Which sketch.
        kind: Kind,
        /// The bytes that both IP versions need.
        least: usize,
        /// The bytes that they were given.
        budget: usize,
    },
    /// The aggregator can't be made.
    #[error(transparent)]
    Aggregator(#[from] AggregatorError),
    /// The sketch can't answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Keys have a length that no kind of key has.
    #[error("there is no key of {0} bytes")]
    KeyLength(usize),
    /// Parts of an epoch can't be put together.
    #[error(transparent)]
    Merge(#[from] MergeError),
    /// A saved state can't be read.
    #[error(transparent)]
    State(#[from] StateError),
}
pub use stage::MEASURE;
