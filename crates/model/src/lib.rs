//! The discrete-time queue of a packet processor that works in batches: batch sizes, loss and latency,
//! predicted.
//!
//! A finite queue of L packets; a server that polls it, takes at most β of them, and serves them in a time
//! that depends on how many they are. Packets come with independent, equally distributed interarrival times.
//! Everything is counted in slots of a stated length. This is the model of *Discrete-Time Modeling of NFV
//! Accelerators that Exploit Batched Processing*; equation and section numbers are that paper's.
//!
//! From the inputs to the answer:
//!
//! 1. [`Interarrival`] and [`ServiceTimes`] with a [`Variation`] say how packets come and are served;
//!    [`Parameters`] has all of it, every choice that the paper leaves open included, and [`Model::new`]
//!    checks it.
//! 2. `counts` works out how many packets come during the service of each batch size, `chain` the stationary
//!    distribution of the queue at polls, `residual` and `delay` waiting times and sojourns. [`Model::solve`]
//!    puts them together and gives out nothing that fails its own checks.
//! 3. [`simulate()`] is the same queue packet by packet, with confidence intervals.
//! 4. [`PollLog`] and [`fit()`] get service times from measurements, [`compare()`] holds a prediction against
//!    them; [`dimension()`] chooses cores, β and L for a target, and [`outlook`] says what holding packets
//!    would bring.
//!
//! Beside the queue, [`data_movement`] is the cost of moving packets between a network card and a server.
//!
//! On a full ring the oldest packets may be overwritten instead of the newest dropped. That changes which
//! packets are lost, not how many, so loss, batch and queue sizes hold for it as well; waiting times are
//! those of packets that come through a queue that drops the newest.
//!
//! ```
//! use slipstream_model::{Interarrival, Model, Parameters, ServiceTimes, Start, Variation};
//!
//! let model = Model::new(Parameters {
//!     queue: 512,
//!     batch: 32,
//!     slot_ns: 10.0,
//!     interarrival: Interarrival::geometric(12.0)?, // slots: 8.3 million packets a second
//!     service: ServiceTimes::linear(600.0, 80.0, 100.0)?, // ns: a batch, a packet, an empty poll
//!     variation: Variation::Poisson,
//!     start: Start::Equilibrium,
//! })?;
//! let solution = model.solve()?;
//! assert!(solution.p_loss < 1e-6 && solution.mean_batch > 10.0);
//! # Ok::<(), slipstream_model::Error>(())
//! ```
//!
//! There is no feature. Unsafe code is in one loop of sums (`kernel`). It needs Rust 1.95.

#![deny(unsafe_code)]

mod arrivals;
mod behind;
mod chain;
mod compare;
mod counts;
pub mod data_movement;
mod delay;
mod dimension;
mod error;
mod fit;
mod joint;
mod kernel;
mod locality;
mod model;
mod pmf;
mod polls;
mod residual;
mod service;
mod simulate;
mod summary;

pub use arrivals::{Interarrival, Start};
pub use compare::{Comparison, compare};
pub use delay::Delay;
pub use dimension::{Candidate, Choices, Dimension, Target, dimension, solve_all};
pub use error::Error;
pub use fit::{BySize, Fit, Line, Strategy, fit, variation};
pub use locality::{Aim, Costs, Gain, Goal, Outlook, outlook, recommend};
pub use model::{MAX_QUEUE, Model, Parameters, Solution};
pub use pmf::{MAX_SUPPORT, Pmf, TAIL};
pub use polls::{MAGIC, MAX_POLLS, Poll, PollLog, PollWriter, Run};
pub use service::{Piece, ServiceTimes, Variation};
pub use simulate::{Effort, Estimate, Simulated, simulate};
pub use summary::{DelaySummary, Report, Summary};
