//! Questions about flows, answered by sketches (Agg-Evict paper, Table 1): what the `measure` verb asks of a trace, and what
//! the `measure` stage asks of the packets that pass.
//!
//! Read it in the order in which a packet sees it: [`Keying`] makes a sketch's key of its flow key; [`Lanes`] hold a sketch
//! each for IPv4 and IPv6 (keys of four bytes cost much less than keys of sixteen) and put their answers together, exactly,
//! for no flow is of both; [`Desk`] answers while the next epoch is already under way.

mod answer;
mod desk;
mod epoch;
mod keys;
mod lane;
mod plan;
mod task;

pub use answer::{Answer, Ask, Figure, Promise, Row, Side, is_ipv6};
pub use desk::{Desk, EndError, Outcome};
pub use epoch::{Ended, EpochResult, Lanes, Span, relative_error, wmrd};
pub use keys::{KeyBytes, KeyKind, Keying, MAX_KEY};
pub use lane::{Lane, LaneConfig, LaneEpoch, lane};
pub use plan::{Plan, keying};
pub use task::{EpochLength, Task, UnknownTask};

use slipstream_sketch::{AggregatorError, BuildError, QueryError};

/// Why something can't be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The sketch can't be made.
    #[error(transparent)]
    Sketch(#[from] BuildError),
    /// The aggregator can't be made.
    #[error(transparent)]
    Aggregator(#[from] AggregatorError),
    /// The sketch can't answer.
    #[error(transparent)]
    Query(#[from] QueryError),
    /// Keys have a length that no kind of key has.
    #[error("there is no key of {0} bytes")]
    KeyLength(usize),
}
