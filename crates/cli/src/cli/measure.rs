//! The words of `measure`, `measure merge`, `measure query` and `measure sets`. Names of tasks and sketches
//! are those of the engine.

use std::path::PathBuf;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand, ValueEnum};
use slipstream::measure::{EpochLength, Task};
use slipstream_sketch::Kind;

use super::Tunnel;
use super::flags::default_of;
use crate::selection::Selection;
use crate::units::{Bytes, Count, Duration, share};

/// The most bytes that a sketch may be given: what the `measure` stage takes, too.
const MEMORY: u64 = 1 << 36;

fn tasks() -> impl TypedValueParser<Value = Task> {
    let values = Task::ALL.map(|t| PossibleValue::new(t.name()).help(t.about()));
    PossibleValuesParser::new(values).try_map(|name| name.parse::<Task>())
}

fn sketches() -> impl TypedValueParser<Value = Kind> {
    let value = |kind: Kind| {
        let value = PossibleValue::new(kind.name());
        if kind == Kind::Exact {
            value.help("A hash table of everything: no error, no bound on memory")
        } else if kind == Kind::ExaLogLog {
            value.alias("hll").help("Of the family of HyperLogLog; also called hll")
        } else if kind == Kind::ExaLogLogHip {
            value.help("Errs less than exaloglog in as much memory, as long as nothing is merged")
        } else {
            value
        }
    };
    let known = |name: String| Kind::from_name(&name).ok_or("no such sketch");
    PossibleValuesParser::new(Kind::ALL.map(value)).try_map(known)
}

fn memory(text: &str) -> Result<Bytes, String> {
    let bytes: Bytes = text.parse()?;
    if bytes.0 > MEMORY { Err("a sketch is given 64GiB at most".to_owned()) } else { Ok(bytes) }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Aggregate {
    /// An aggregator in front; where it is full, entries leave in turn.
    #[default]
    Grr,
    /// An aggregator in front; the entry that was not used for longest leaves.
    Lru,
    /// Every packet straight to the sketch.
    Off,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Weight {
    #[default]
    Packets,
    /// Bytes on the wire.
    Bytes,
    /// Of quantiles: time since the packet of the flow before it, in ns. First packets of flows have none,
    /// nor have those of a flow that was forgotten: the last packets of 65,536 flows are remembered. Where
    /// flows were forgotten (forgotten_flows), gaps may be missing and bounds promise nothing.
    Gap,
    /// Of quantiles: time in a pipeline, in ns. A trace has none: ask the stage `measure`.
    Delay,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Compare {
    /// A hash table of everything.
    Exact,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum MeasureFormat {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON object with `"schema": 1`.
    Json,
    /// One line an answer.
    Csv,
}

/// Which answers, and how they are printed.
#[derive(Clone, Debug, Args)]
pub(crate) struct Answers {
    /// Keys to list at most [default: 20].
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) top: Option<u32>,
    /// Leave out what is lighter, changed less or spread less; by default what the sketch can tell from
    /// noise.
    #[arg(long, value_name = "WEIGHT", default_value = default_of("measure", "threshold"))]
    pub(crate) threshold: Count,
    /// Flow-size: the flow to ask for, as it would be printed. May be given several times.
    #[arg(long, value_name = "KEY")]
    pub(crate) flow: Vec<String>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: MeasureFormat,
    /// Exit with status 1 if this holds for the result: a JSON key path, a comparison, a number, as in
    /// 'epochs.0.estimate>100000'. May be given several times.
    #[arg(long, value_name = "CHECK")]
    pub(crate) fail_if: Vec<String>,
}

/// Answer questions about flows in little memory: sketches, with an aggregator in front.
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
                  slipstream measure traces/campus.pcap.gz --task heavy-hitters \\\n    \
                  --sketch space-saving --key src --memory 64KiB --compare exact\n  \
                  slipstream measure traces/campus.pcap.gz --task entropy --key 5tuple\n  \
                  slipstream measure traces/campus.pcap.gz --task heavy-changes \\\n    \
                  --epoch 10ms --key dst --weight bytes --format json\n  \
                  slipstream measure traces/campus.pcap.gz --task cardinality \\\n    \
                  --rules 'tcp port 443' --time 1ms..5ms --key 5tuple\n  \
                  slipstream measure traces/campus.pcap.gz --task quantiles --weight bytes\n  \
                  slipstream measure traces/campus.pcap.gz --task quantiles --weight gap \\\n    \
                  --key 5tuple\n  \
                  slipstream measure traces/campus.pcap.gz --task cardinality --sketch hll \\\n    \
                  --window 40ms --slide 10ms --memory 4KiB\n  \
                  slipstream measure traces/campus.pcap.gz --sketch univmon --time ..20ms \\\n    \
                  --save a.state\n  \
                  slipstream measure traces/campus.pcap.gz --sketch univmon --time 20ms.. \\\n    \
                  --save b.state\n  \
                  slipstream measure merge a.state b.state --save both.state\n  \
                  slipstream measure query both.state --task cardinality\n  \
                  slipstream measure sets a.state both.state"
)]
pub(crate) struct Measure {
    #[command(subcommand)]
    pub(crate) action: Option<MeasureAction>,
    /// Captures (pcap, pcapng; plain, gzip or zstd), `-` for stdin, or `synth:KEY=VALUE,…`: several are one
    /// stream, in the order in which they are named. Only IP packets count.
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) trace: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// What to measure. May be given several times: each task has sketches of its own, over one pass.
    #[arg(long, value_parser = tasks(), default_values_t = [Task::default()])]
    pub(crate) task: Vec<Task>,
    /// The sketch; by default the one made for the task.
    #[arg(long, value_parser = sketches())]
    pub(crate) sketch: Option<Kind>,
    /// What makes a flow: src, dst, src-dst, 5tuple; src/24 and the like for networks of IPv4 (IPv6 addresses
    /// stay whole), src/24/56 for those of both. By default src; for ddos-victims dst.
    #[arg(long, value_name = "KEY")]
    pub(crate) key: Option<String>,
    /// What a packet adds to its flow, or the value of which quantiles are asked.
    #[arg(long, value_enum, default_value = default_of("measure", "weight"))]
    pub(crate) weight: Weight,
    /// Length of an epoch: packets (2000000p) or time (1s). By time, epochs begin at multiples of it since
    /// 1970.
    #[arg(long, value_name = "LENGTH", default_value = default_of("measure", "epoch"))]
    pub(crate) epoch: EpochLength,
    /// Windows of this length, one from every --slide on, instead of epochs: each is the sum of its panes,
    /// which are as long as the slide. The sketches of all panes lie in memory until the end.
    #[arg(long, value_name = "TIME", requires = "slide", conflicts_with = "epoch")]
    pub(crate) window: Option<Duration>,
    /// With --window: the time from one window's begin to the next one's, of which the window is a multiple.
    #[arg(long, value_name = "TIME", requires = "window")]
    pub(crate) slide: Option<Duration>,
    /// What stands in front of the sketch.
    #[arg(long, value_enum, default_value = default_of("measure", "aggregate"))]
    pub(crate) aggregate: Aggregate,
    /// Memory of the sketch: three quarters for IPv4, one for IPv6. The aggregator's isn't part of it; the
    /// output has both.
    #[arg(long, value_name = "BYTES", default_value = default_of("measure", "memory"), conflicts_with = "error", value_parser = memory)]
    pub(crate) memory: Bytes,
    /// Make the sketch as large as this error needs (a share: of all weight or of the figure), instead of
    /// --memory.
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) error: Option<f64>,
    /// With --error: the share of answers that must be within it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.95, requires = "error", value_parser = share)]
    pub(crate) confidence: f64,
    /// With --error: distinct flows that are expected.
    #[arg(long, value_name = "N", default_value = "200000", requires = "error")]
    pub(crate) flows: Count,
    /// Print the true values and the errors beside the answers.
    #[arg(long, value_enum, value_name = "WITH")]
    pub(crate) compare: Option<Compare>,
    /// Seed of all hash functions. Only states of one seed can be merged, whichever machine made them; where
    /// an attacker may choose packets, name a secret one.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Which IP header of a tunnel makes the flow.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) tunnel: Tunnel,
    /// Worker threads; all cores by default. Results don't depend on it.
    #[arg(long, visible_alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) workers: Option<u16>,
    /// Write the sketches of all epochs to a file, for `measure merge` and `measure query`.
    #[arg(long, value_name = "FILE")]
    pub(crate) save: Option<PathBuf>,
    /// Take a damaged input for an error (exit status 2), not for a warning.
    #[arg(long)]
    pub(crate) strict: bool,
    #[command(flatten)]
    pub(crate) answers: Answers,
}

#[derive(Debug, Subcommand)]
pub(crate) enum MeasureAction {
    /// Add up saved states: those of shards, workers, machines. Epochs by time are added to those of the same
    /// time; of epochs by packets, a state has one.
    #[command(after_help = "Examples:\n  \
                      slipstream measure traces/campus.pcap.gz --sketch univmon --time ..20ms \\\n    \
                      --save a.state\n  \
                      slipstream measure traces/campus.pcap.gz --sketch univmon --time 20ms.. \\\n    \
                      --save b.state\n  \
                      slipstream measure merge a.state b.state --save both.state")]
    Merge {
        /// Files that `measure --save` wrote.
        #[arg(required = true, value_name = "STATE")]
        states: Vec<PathBuf>,
        /// Write the result to a file.
        #[arg(long, short = 'o', value_name = "FILE", visible_alias = "output")]
        save: Option<PathBuf>,
        /// What to answer; by default what the states were made for.
        #[arg(long, value_parser = tasks())]
        task: Option<Task>,
        #[command(flatten)]
        answers: Answers,
    },
    /// Tell how many keys two saved states have together, share, and have alone: which sources of today
    /// weren't there yesterday? All epochs of a state are taken together. For states of cardinality
    /// (exaloglog tells most in the least memory), and of any other sketch that counts keys.
    #[command(after_help = "Examples:\n  \
                      slipstream measure traces/campus.pcap.gz --task cardinality \\\n    \
                      --sketch exaloglog --memory 4KiB --time ..20ms --save early.state\n  \
                      slipstream measure traces/campus.pcap.gz --task cardinality \\\n    \
                      --sketch exaloglog --memory 4KiB --time 20ms.. --save late.state\n  \
                      slipstream measure sets early.state late.state --format json")]
    Sets {
        /// A file that `measure --save` or `measure merge` wrote.
        #[arg(value_name = "FIRST")]
        first: PathBuf,
        /// Another one, of the same key, sketch, memory and seed.
        #[arg(value_name = "SECOND")]
        second: PathBuf,
        /// How to print the result.
        #[arg(long, value_enum, default_value_t)]
        format: MeasureFormat,
        /// Exit with status 1 if this holds for the result: a JSON key path, a comparison, a number, as in
        /// 'only_second.estimate>1000'. May be given several times.
        #[arg(long, value_name = "CHECK")]
        fail_if: Vec<String>,
    },
    /// Ask a saved state, also for something else than it was made for.
    #[command(after_help = "Examples:\n  \
                      slipstream measure traces/campus.pcap.gz --sketch univmon --save a.state\n  \
                      slipstream measure query a.state --task cardinality --format json")]
    Query {
        /// A file that `measure --save` or `measure merge` wrote.
        #[arg(value_name = "STATE")]
        state: PathBuf,
        /// What to answer; by default what the state was made for.
        #[arg(long, value_parser = tasks())]
        task: Option<Task>,
        #[command(flatten)]
        answers: Answers,
    },
}
