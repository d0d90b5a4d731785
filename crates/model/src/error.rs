//! Errors of questions to the model and of its answers: one variant per cause.

use thiserror::Error;

/// The reason why the model gives no answer.
#[derive(Clone, Debug, Error, PartialEq)]
#[non_exhaustive]
pub enum Error {
    /// A number that must be finite and above zero isn't.
    #[error("{what} is {value}; it must be a number above zero")]
    NotPositive {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A number that must be finite and not below zero isn't.
    #[error("{what} is {value}; it must be a number of at least zero")]
    Negative {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
    },
    /// A number lies outside of what it can be.
    #[error("{what} is {value}; it must lie between {low} and {high}")]
    OutOfRange {
        /// The name of the number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// The least that it may be.
        low: f64,
        /// The most that it may be.
        high: f64,
    },
    /// A batch can't hold more packets than the queue.
    #[error(
        "the largest batch, {batch} packets, is larger than the queue of {queue}; a poll can't take what isn't there"
    )]
    BatchAboveQueue {
        /// Largest batch β, packets.
        batch: usize,
        /// Capacity L, packets.
        queue: usize,
    },
    /// The coefficient of variation is not one that the distribution can have.
    #[error(
        "a {distribution} distribution with a mean of {mean} slots can't have a coefficient of variation of {cv}: {limit}"
    )]
    Variation {
        /// The distribution.
        distribution: &'static str,
        /// Its mean, slots.
        mean: f64,
        /// The coefficient of variation asked for.
        cv: f64,
        /// The range of possible values.
        limit: String,
    },
    /// A distribution that was given as numbers is none.
    #[error("{what}: {why}")]
    Distribution {
        /// The name of the distribution.
        what: String,
        /// The fault.
        why: String,
    },
    /// The mean service time of a batch is not above zero.
    #[error("a batch of {size} packets would take {value_ns} ns; service times must be above zero")]
    ServiceTime {
        /// Packets in the batch; 0 is an empty poll.
        size: usize,
        /// The mean that follows from the inputs, ns.
        value_ns: f64,
    },
    /// The question is too large for the stated limits.
    #[error("{what} needs {needed}, and the limit is {limit}; {advice}")]
    TooLarge {
        /// The name of the input or table.
        what: &'static str,
        /// Its size or work, with the unit.
        needed: String,
        /// The bound.
        limit: String,
        /// The remedy.
        advice: &'static str,
    },
    /// The exact start has too many states.
    #[error(
        "the exact start has a state for every queue and residual, {states:.1e} with {interarrival} interarrival times of up to {residuals} \
         slots; that takes {mebibytes:.1e} MiB (the limit is {limit_mebibytes}) and {additions:.1e} additions: choose a longer slot or a smaller \
         queue, take the equilibrium start, or simulate, which is exact up to its confidence interval"
    )]
    ExactStart {
        /// The kind of interarrival times.
        interarrival: &'static str,
        /// The longest interarrival time, slots.
        residuals: usize,
        /// States of the chain.
        states: f64,
        /// Memory for how they follow one another, MiB.
        mebibytes: f64,
        /// Additions that the elimination would take.
        additions: f64,
        /// Bound on memory, MiB.
        limit_mebibytes: usize,
    },
    /// The state in which the queue settles depends on how it started, so there is no one answer.
    #[error(
        "the queue doesn't settle in one way: from a queue of {state} packets it stays at or below {state}, from others above it; \
         let services or arrivals vary (--service poisson, --interarrival poisson)"
    )]
    NotUnique {
        /// The highest state of the lower class.
        state: usize,
    },
    /// No packet ever comes, so there is no share of packets.
    #[error(
        "no packet ever comes: with the renewal start a whole interarrival time begins at every poll, and none is as short as an \
         empty poll; take the equilibrium start"
    )]
    NoArrivals,
    /// The solution doesn't satisfy its equations; it is not given out.
    #[error("the solution did not converge: {what} is {value:e}, and at most {limit:e} is allowed")]
    NotConverged {
        /// The name of the check that failed.
        what: &'static str,
        /// The value found.
        value: f64,
        /// The bound.
        limit: f64,
    },
    /// Measurements that can't be used.
    #[error("{0}")]
    Measurement(String),
    /// A poll log that can't be read.
    #[error("{name}: line {line}: {why}")]
    PollLog {
        /// The file.
        name: String,
        /// Line, from 1; in a binary log the record.
        line: u64,
        /// The fault.
        why: String,
    },
    /// No configuration among those asked for meets the target.
    #[error("no configuration meets the target: {0}")]
    Unreachable(String),
}

/// Checks that `value` is finite and above zero.
pub(crate) fn positive(what: &'static str, value: f64) -> Result<f64, Error> {
    if value.is_finite() && value > 0.0 { Ok(value) } else { Err(Error::NotPositive { what, value }) }
}

/// Checks that `value` is finite and not below zero.
pub(crate) fn not_negative(what: &'static str, value: f64) -> Result<f64, Error> {
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(Error::Negative { what, value }) }
}
