//! Slice and splice: functions that read headers only get headers only, and the payloads wait (NFSlicer,
//! §III).
//!
//! - [`token`]: what stands in a packet for its payload.
//! - [`payload_table`]: where payloads wait, and for how long.
//! - [`slicer`]: from a packet to headers, token and a payload that waits.
//! - [`splicer`]: from what a function made of headers and token to the packet that it would have made of the
//!   whole one.
//! - [`config`]: what there is to set, and the arithmetic behind the number of entries.
//!
//! Neither knows pipelines: bytes in, bytes out. Two ways to keep payloads share everything else:
//! [`Storage::Copied`] copies them into the table, for middleboxes that pass headers across a boundary,
//! through [`Slicer::slice`] and [`Splicer::splice`]; [`Storage::InPlace`] leaves them in the pool's buffers,
//! for the stages of one process, through [`Slicer::slice_frame`] and [`Splicer::splice_frame`].
//!
//! ```
//! use slipstream_slice::{PayloadTable, SliceConfig, Sliced, Slicer, Spliced, Splicer, Storage};
//! use slipstream_core::time::Nanos;
//! use slipstream_wire::LinkType;
//!
//! let config = SliceConfig { storage: Storage::Copied { entry_bytes: 1500 }, ..SliceConfig::default() };
//! let mut table = PayloadTable::new(&config, 0)?;
//! let (mut slicer, mut splicer) = (Slicer::new(&config)?, Splicer::new(&config)?);
//!
//! // 20 bytes of IPv4, 8 of UDP without a checksum, 972 of payload.
//! let mut packet = vec![7u8; 1000];
//! packet[..28].copy_from_slice(&[
//!     0x45, 0, 3, 232, 0, 0, 0, 0, 64, 17, 99, 3, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 3, 212, 0, 0,
//! ]);
//! let whole = packet.clone();
//! let len = match slicer.slice(&mut table, LinkType::RawIp, &mut packet, 1000, Nanos(0)) {
//!     Sliced::Sliced { len, .. } => len,
//!     other => panic!("{other:?}"),
//! };
//! assert_eq!(len, 28 + 8);
//! packet[20] = 99; // The function gives it another source port.
//! let spliced = splicer.splice(&mut table, LinkType::RawIp, &mut packet, len, Nanos(1)).unwrap();
//! assert_eq!(spliced, Spliced::Whole { len: 1000 });
//! assert!(packet[..20] == whole[..20] && packet[20] == 99 && packet[21..] == whole[21..]);
//! # Ok::<(), slipstream_slice::ConfigError>(())
//! ```
//!
//! The stage types [`SLICE`] and [`SPLICE`] put both ends into a pipeline (`stage`, `stages`, `frames`).
//! There is no feature and no unsafe code. It needs Rust 1.95.

pub mod config;
mod fast_path;
mod frames;
mod hidden;
mod layers;
mod layout;
mod parked;
pub mod payload_table;
mod quote;
pub mod reasons;
mod refusal;
pub mod slicer;
pub mod splicer;
mod stage;
mod stages;
pub mod token;

pub use config::{
    Amount, Bind, ConfigError, Marked, SliceConfig, Storage, entries_for, generation_wraps_ns, guessing_s,
    residence_ns, unsliced_share, waiting,
};
pub use payload_table::{PayloadTable, Refusal, TableCounters};
pub use slicer::{SliceCounters, Sliced, Slicer, Why};
pub use splicer::{SpliceCounters, Spliced, Splicer};
pub use stage::{SLICE, SPLICE};
pub use token::{MAX_PLACES, MOST_TAG_BITS, TAG_BITS, TOKEN_LEN, Token, TokenFormat, TokenKey, TokenMode};

/// The DSCP that marks a sliced packet: 0b111111, reserved for local use (NFSlicer, §III-B).
pub const DSCP_SLICED: u8 = 0b11_1111;
