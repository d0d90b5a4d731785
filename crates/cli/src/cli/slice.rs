//! The words of `slipstream slice`.

use clap::{Args, Subcommand, ValueEnum};

use super::flags::default_of;
use super::{Live, Pace, Reporting};
use crate::units::{Bytes, Nanoseconds, Rate, share};

/// Park payloads while functions see headers: the middlebox, and its arithmetic.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Example:\n  slipstream slice model --size 64,1518 --rate 6.5mpps"
)]
pub(crate) struct Slice {
    #[command(subcommand)]
    pub(crate) verb: SliceVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum SliceVerb {
    Run(SliceRun),
    Model(SliceModel),
    Size(SliceSize),
    Switch(SliceSwitch),
}

/// Slice what comes in, hand headers to a process that has the functions, splice what comes back.
///
/// The process with the functions is any pipeline between two ends of the same shared memory, such as
/// `slipstream run -i shm:FILE -o shm:FILE -e 'nat(pool=[203.0.113.1])'`; it may be started before or after.
/// Both end when the input does.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream run -i shm:there -o shm:there \\\n    \
                        -e 'nat(pool=[203.0.113.1])' > functions.txt & \\\n  \
                        slipstream slice run synth:packets=9k,size=1000 out.pcapng --through there")]
pub(crate) struct SliceRun {
    /// Where packets come from: a capture, `-`, `synth:KEY=VALUE,…`, `af_packet:INTERFACE`,
    /// `af_xdp:INTERFACE`, `tap:INTERFACE`.
    pub(crate) input: String,
    /// Where they go: a capture to write, `-`, `null`, `af_packet:INTERFACE`, `af_xdp:INTERFACE`,
    /// `tap:INTERFACE`.
    pub(crate) output: String,
    /// The file in memory by which the other process is reached, as in /dev/shm/slice.
    #[arg(long, value_name = "FILE")]
    pub(crate) through: String,
    /// Settings of the stage `slice`, as in a graph: 'threshold=500, entries=4096' (`slipstream list slice`).
    #[arg(long, value_name = "SETTINGS", default_value = "storage=copy, entries=4096")]
    pub(crate) slice: String,
    /// Hand whole packets to the other process: what slicing is compared with.
    #[arg(long, conflicts_with = "slice")]
    pub(crate) whole: bool,
    /// Bytes of each ring between the processes, a power of two.
    #[arg(long, value_name = "BYTES", default_value = default_of("shm", "ring"))]
    pub(crate) ring: Bytes,
    /// How long to wait for the other process to come; left out: without end.
    #[arg(long, value_name = "TIME")]
    pub(crate) wait: Option<slipstream::units::Duration>,
    /// Captures and generated traffic come at their own pace (real), or as fast as there is room for them.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) pace: Pace,
    /// Seed of hashes and random choices, as of `run`.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) live: Live,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// Bytes over PCI Express and to memory, and waits, for whole and for sliced packets: a model, no
/// measurement.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream slice model --size 64,512,1518 --rate 6.5mpps\n  \
                        slipstream slice model --rate 1mpps,4mpps,7mpps --io-ways 0 \\\n    \
                        --format json\n  \
                        slipstream slice model --generation 4 --lanes 8 --explain")]
pub(crate) struct SliceModel {
    /// Sizes of frames on the wire, frame check sequence included.
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_value = "64,512,1024,1518",
          value_parser = clap::value_parser!(u32).range(64..=65_535))]
    pub(crate) size: Vec<u32>,
    /// Packets a second, received and sent again.
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', default_value = "6.5mpps")]
    pub(crate) rate: Vec<Rate>,
    /// Bytes of headers in front of the payload: 54 for Ethernet, IPv4 and TCP without options.
    #[arg(long, value_name = "BYTES", default_value_t = 54, value_parser = clap::value_parser!(u32).range(34..=1000))]
    pub(crate) headers: u32,
    /// Smallest frame that is sliced.
    #[arg(long, value_name = "BYTES", default_value = default_of("slice", "threshold"))]
    pub(crate) threshold: u32,
    /// Generation of the slot's PCI Express, 1 to 5.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=5))]
    pub(crate) generation: u8,
    /// Its lanes.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) lanes: u8,
    /// Largest payload of a transaction (MPS).
    #[arg(long, value_name = "BYTES", default_value_t = 256, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub(crate) max_payload: u32,
    /// Most bytes that a read asks for (MRRS).
    #[arg(long, value_name = "BYTES", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..=4096))]
    pub(crate) max_read: u32,
    /// Share of the link that acknowledgements and flow control leave to transactions.
    #[arg(long, value_name = "SHARE", default_value_t = 0.92, value_parser = share)]
    pub(crate) transaction_share: f64,
    /// Bytes of a receive descriptor.
    #[arg(long, value_name = "BYTES", default_value_t = 16, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) receive_descriptor: u32,
    /// Bytes of a send descriptor.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) send_descriptor: u32,
    /// Bytes of a completion entry.
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = clap::value_parser!(u32).range(0..=4096))]
    pub(crate) completion: u32,
    /// Packets that a send completion is for.
    #[arg(long, value_name = "PACKETS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) packets_a_send_completion: u32,
    /// Packets that a doorbell is for.
    #[arg(long, value_name = "PACKETS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) packets_a_doorbell: u32,
    /// Bytes of the last-level cache.
    #[arg(long, value_name = "BYTES", default_value = "16.5MiB")]
    pub(crate) cache: Bytes,
    /// Its ways.
    #[arg(long, value_name = "N", default_value_t = 11, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) ways: u32,
    /// Ways that the card may write to (DDIO); 0: none.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=64))]
    pub(crate) io_ways: u32,
    /// Packet buffers that are used in turn.
    #[arg(long, value_name = "N", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) buffers: u32,
    /// Time of a packet among no others, for the prediction of latency.
    #[arg(long, value_name = "TIME", default_value = "4500ns")]
    pub(crate) base: Nanoseconds,
    /// Packets that come at once on average, for the prediction of latency.
    #[arg(long, value_name = "PACKETS", default_value_t = 1.0)]
    pub(crate) burst: f64,
    /// Say what is counted and what is assumed.
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// How many payloads must have room, and how many bytes that is: Little's law.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream slice size --explain\n  \
                        slipstream slice size --link 25gbps --service 50us --headroom 2 \\\n    \
                        --dropped 0.1 --format json")]
pub(crate) struct SliceSize {
    /// Speed of the link, or packets worth slicing a second.
    #[arg(long, value_name = "RATE", default_value = "100gbps")]
    pub(crate) link: slipstream::units::Rate,
    /// Smallest frame that is sliced.
    #[arg(long, value_name = "BYTES", default_value = default_of("slice", "threshold"), value_parser = clap::value_parser!(u32).range(64..=65_535))]
    pub(crate) threshold: u32,
    /// Largest frame.
    #[arg(long, value_name = "BYTES", default_value_t = 1518, value_parser = clap::value_parser!(u32).range(65..=65_535))]
    pub(crate) largest: u32,
    /// Bytes between frames on the wire: 20 on Ethernet; the paper leaves them out.
    #[arg(long, value_name = "BYTES", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=1000))]
    pub(crate) framing: u32,
    /// How long functions have a packet on average.
    #[arg(long, value_name = "TIME", default_value = "10us")]
    pub(crate) service: slipstream::units::Duration,
    /// Entries for every one that is needed on average, for bursts.
    #[arg(long, value_name = "FACTOR", default_value_t = 1.0)]
    pub(crate) headroom: f64,
    /// Turns of the index that a payload may wait.
    #[arg(long, value_name = "TURNS", default_value = default_of("slice", "ttl"), value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) ttl: u16,
    /// Share of packets that the functions drop.
    #[arg(long, value_name = "SHARE", default_value_t = 0.0, value_parser = share)]
    pub(crate) dropped: f64,
    /// Say how it was worked out.
    #[arg(long)]
    pub(crate) explain: bool,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum GrowthKind {
    /// Both ways.
    #[default]
    Both,
    /// The line through both points.
    Line,
    /// In proportion to the second point.
    Proportional,
}

/// How many servers a switch could slice for, beside a card that slices for itself.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  slipstream slice switch --card 40,100")]
pub(crate) struct SliceSwitch {
    /// Speeds of the servers' cards in Gbit/s.
    #[arg(long, value_name = "GBPS,…", value_delimiter = ',', default_value = "40,100")]
    pub(crate) card: Vec<f64>,
    /// Two measured points, SERVERS:SHARE of the SRAM, with cards of 40 Gbit/s.
    #[arg(long, value_name = "SERVERS:SHARE", num_args = 2, default_values = ["4:0.26", "8:0.38"])]
    pub(crate) points: Vec<String>,
    /// How the use of SRAM is taken to grow.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) growth: GrowthKind,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}
