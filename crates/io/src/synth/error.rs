//! Errors in the settings of the generator.

use super::config::{MAX_COPIES, MAX_FLOWS, MAX_FRAME, MIN_FRAME};

/// The reason why no traffic can be made from these settings.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SynthError {
    /// `packets` is 0.
    #[error("packets: at least 1 is needed")]
    NoPackets,
    /// `flows` out of range.
    #[error("flows: {0} is not in 1..={MAX_FLOWS}")]
    Flows(u32),
    /// More flows than memory can be had for.
    #[error("flows: {flows} flows need {bytes} bytes of memory, which can't be had; ask for fewer")]
    Memory {
        /// Flows.
        flows: u32,
        /// Bytes of their tables, those included that are there only while others are built.
        bytes: u64,
    },
    /// `active` out of range.
    #[error("active: {active} is not in 1..={flows}, the number of flows")]
    Active {
        /// As given.
        active: u32,
        /// Flows.
        flows: u32,
    },
    /// TCP with an odd number of flows.
    #[error("flows: TCP connections have two directions, so flows (and active) must be even")]
    OddTcp,
    /// `slf` below 1, above a million, or not a number.
    #[error("slf: {0} is not in 1..=1000000")]
    Slf(f64),
    /// `zipf` negative, above 10, or not a number.
    #[error("zipf: {0} is not in 0..=10")]
    Zipf(f64),
    /// `zipf` with flows that take turns.
    #[error("zipf: {0} has no meaning where flows take turns; use the random order")]
    ZipfInTurn(f64),
    /// A rate of 0, or above 1 packet (10,000 bits) a nanosecond.
    #[error("rate: {0} is not in 1 pps..1 Gpps, or 1 bps..10 Tbps")]
    Rate(u64),
    /// So many packets that their times could overflow.
    #[error("rate: {packets} packets at {rate} last longer than 2^63 ns, which are 292 years")]
    TooLong {
        /// Packets.
        packets: u64,
        /// The rate, in words.
        rate: String,
    },
    /// A frame size out of range.
    #[error("size: {0} is not in {MIN_FRAME}..={MAX_FRAME} bytes")]
    Size(u32),
    /// A range of sizes whose end lies before its beginning.
    #[error("size: {0}..{1} is empty")]
    SizeRange(u32, u32),
    /// A mix of sizes without a size of positive weight.
    #[error("size: a mix needs at least one size with a weight above 0, and no more than {MAX_MIX} sizes", MAX_MIX = super::text::MAX_MIX)]
    SizeMix,
    /// A frame size too small for the headers.
    #[error("size: {size} bytes can't hold the headers, which take {needed} with these settings")]
    SizeBelowHeaders {
        /// The smallest size asked for.
        size: u32,
        /// Ethernet, VLAN, IP and transport headers.
        needed: u32,
    },
    /// A share that is not between 0 and 1.
    #[error("{setting}: a share of {share} is not in 0..=1")]
    Share {
        /// The setting.
        setting: &'static str,
        /// As given.
        share: f64,
    },
    /// A VLAN id that is reserved or too large.
    #[error("vlan-ids: {0} is not in 1..=4094")]
    VlanId(u16),
    /// A share of VLAN traffic, but no id.
    #[error("vlan-ids: at least one is needed")]
    NoVlanIds,
    /// VLAN ids, but no share of VLAN traffic.
    #[error("vlan-ids: no flow is in a VLAN without vlan, the share of those that are")]
    VlanIdsOfNone,
    /// Flow sizes that can't be drawn.
    #[error("lifetime: needs 1 <= min <= max and 0 < shape <= 100, not {min}..{max} with shape {shape}")]
    Lifetime {
        /// Fewest packets.
        min: u64,
        /// Most packets.
        max: u64,
        /// Shape.
        shape: f64,
    },
    /// `copies` out of range.
    #[error("copies: {0} is not in 1..={MAX_COPIES}")]
    Copies(u32),
    /// `copies` of plain traffic.
    #[error("copies: only a profile can be superposed, not plain traffic ({0} copies)")]
    CopiesOfPlain(u32),
    /// `start` so late that times could overflow.
    #[error("start: {0} ns is not below 2^62")]
    Start(u64),
    /// `snap_len` shorter than an Ethernet header.
    #[error("snap-len: {0} is below 14, an Ethernet header")]
    SnapLen(u32),
    /// Text that can't be read as a setting.
    #[error("{setting}: can't read {text:?}; {expected}")]
    Text {
        /// The setting.
        setting: &'static str,
        /// As given.
        text: String,
        /// Values that are valid.
        expected: &'static str,
    },
}
