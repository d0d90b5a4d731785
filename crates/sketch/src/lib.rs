//! Measurement in little memory: an aggregator, twelve sketches behind one trait, and the exact table that
//! they have to beat.
//!
//! Knows no packets: what comes in is a key of a fixed number of bytes and a weight ([`Update`]). Read it in
//! the order in which an update sees it:
//!
//! 1. [`Front`]: a sketch with or without an aggregator before it.
//! 2. [`Aggregator`]: adds up what belongs to one key, so that the sketch is updated once for many packets
//!    (*Accelerating Network Measurement in Software*, CCR 2018).
//! 3. [`Sketch`]: what every sketch can do; [`Kind`] lists them, [`build`] makes one to a size.
//! 4. [`save`], [`load`]: states as bytes, to be merged elsewhere.
//!
//! ```
//! use slipstream_sketch::{AggregatorConfig, Config, Front, Size, Update, Want, build};
//!
//! let config = Config { size: Size::Memory(65_536), seed: 1, ..Config::default() };
//! let mut front = Front::aggregated(build::<4>(&config)?, &AggregatorConfig::default())?;
//! let packets: Vec<_> = (0..1000u32).map(|i| Update { key: [10, 0, 0, (i % 3) as u8], weight: 1 }).collect();
//! front.update_all(&packets);
//! let top = front.settled().heavy_hitters(Want { threshold: 1, top: 1 })?;
//! assert_eq!((top[0].key, top[0].size.estimate), ([10, 0, 0, 0], 334));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! There is no feature. Unsafe code compares keys with SIMD instructions (`simd`), and nothing else. It needs
//! Rust 1.95.

#![deny(unsafe_code)]

mod aggregator;
mod array;
mod count_min;
mod count_sketch;
mod dd_sketch;
mod exa_log_log;
mod exact;
mod flow_radar;
mod fm;
mod front;
mod full;
mod hash;
mod kind;
mod linear_counting;
mod modular;
mod mrac;
mod multires;
mod order;
mod rev_sketch;
mod serial;
mod simd;
mod sketch;
mod space_saving;
mod state;
mod stats;
mod store;
mod sums;
mod two_level;
mod univmon;

pub use aggregator::{Aggregator, AggregatorConfig, AggregatorError, AggregatorStats, Eviction};
pub use array::{Array, Rule};
pub use count_min::{CountMin, CountMinParams};
pub use dd_sketch::DdSketch;
pub use exa_log_log::{ExaLogLog, ExaLogLogHip, Registers};
pub use exact::Exact;
pub use flow_radar::{Decoded, FlowRadar, FlowRadarParams};
pub use fm::{Bitmaps, Fm};
pub use front::Front;
pub use hash::{KeyHash, fixed_key};
pub use kind::{BuildError, Config, Kind, Params, Size, build, build_with};
pub use linear_counting::LinearCounting;
pub use mrac::Mrac;
pub use rev_sketch::RevSketch;
pub use serial::{Decoder, Encoder, StateError, load, peek, save};
pub use simd::Instructions;
pub use sketch::{
    Bounds, Change, Confidence, Distribution, Flow, MergeError, QueryError, Question, SetSizes, Sketch,
    Update, ValueRange, Want, quantile,
};
pub use space_saving::SpaceSaving;
pub use two_level::{TwoLevel, TwoLevelParams};
pub use univmon::{UnivMon, UnivMonParams};
