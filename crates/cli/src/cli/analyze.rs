//! The words of `analyze` and `analyze merge`.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Subcommand};
use slipstream::io::capture::Span;
use slipstream_trace::{GroupBy, UnknownGroupBy};

use super::{Damage, Reporting, Tunnel};
use crate::selection::Selection;
use crate::units::Duration;

/// What packets are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct By(pub(crate) GroupBy);

impl FromStr for By {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(length) = text.strip_prefix("slice") else {
            return text.parse().map(Self).map_err(|e: UnknownGroupBy| e.to_string());
        };
        let length = length.trim_start_matches([' ', '=', ':']).trim();
        match length.parse::<Duration>() {
            Ok(Duration(0)) | Err(_) => Err(format!("{text:?} has no length of slices, as in 'slice 1s'")),
            Ok(Duration(ns)) => Ok(Self(GroupBy::Slice(ns))),
        }
    }
}

/// A part of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PartOf {
    /// This one (from 1) of so many of about the same size.
    Number(u64, u64),
    /// That between two bytes at which records begin.
    Bytes(Span),
}

impl FromStr for PartOf {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some((number, of)) = text.split_once('/') {
            return match (number.trim().parse(), of.trim().parse()) {
                (Ok(number), Ok(of)) if number >= 1 && number <= of && of <= 1_000_000 => {
                    Ok(Self::Number(number, of))
                }
                _ => Err(format!("{text:?}: write the second of four parts as 2/4")),
            };
        }
        let wrong = || format!("{text:?} is no part: write 2/4, or bytes at which records begin, FROM..TO");
        let (from, to) = text.split_once("..").ok_or_else(wrong)?;
        let byte = |text: &str, none: u64| if text.is_empty() { Ok(none) } else { text.parse() };
        match (byte(from.trim(), 0), byte(to.trim(), u64::MAX)) {
            (Ok(from), Ok(to)) if from < to => Ok(Self::Bytes(Span { from, to })),
            _ => Err(wrong()),
        }
    }
}

/// What locality does my traffic have, and what would holding it gain?
#[derive(Debug, Args)]
#[command(
    args_conflicts_with_subcommands = true,
    subcommand_negates_reqs = true,
    after_help = "Examples:\n  \
                        slipstream analyze traces/campus.pcap.gz\n  \
                        slipstream analyze --window 10us,1ms --burst 64 --format json \\\n    \
                        traces/campus.pcap.gz\n  \
                        slipstream analyze --report campus.html --parquet campus.parquet \\\n    \
                        traces/campus.pcap.gz\n  \
                        slipstream analyze --frontier traces/campus.pcap.gz\n  \
                        slipstream analyze --rules 'tcp port 443' --time 0s..5ms --by endpoint \\\n    \
                        traces/campus.pcap.gz\n  \
                        slipstream analyze --by 'slice 1ms' -c 10000 traces/campus.pcap.gz\n  \
                        slipstream analyze --diff traces/campus.pcap.gz \\\n    \
                        synth:flows=1000,packets=10000,slf=4\n  \
                        slipstream synth --packets 50000 big.pcap\n  \
                        slipstream analyze --part 1/2 --save 1.part big.pcap\n  \
                        slipstream analyze --part 2/2 --save 2.part big.pcap\n  \
                        slipstream analyze merge 1.part 2.part"
)]
pub(crate) struct Analyze {
    #[command(subcommand)]
    pub(crate) action: Option<AnalyzeAction>,
    /// Captures (pcap, pcapng; plain, gzip or zstd), `-` for stdin, or `synth:KEY=VALUE,…`.
    #[arg(required = true, value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Holding windows.
    #[arg(long, value_name = "TIME,…", value_delimiter = ',', default_value = "16us,64us,128us")]
    pub(crate) window: Vec<Duration>,
    /// Packets at which a train leaves at once.
    #[arg(long, value_name = "PACKETS", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) burst: u32,
    /// Also compare fixed holds of these times with the adaptive hold and with one that knows the future:
    /// mean delay at equal mean train. Keeps 90 bytes a packet.
    #[arg(long)]
    pub(crate) frontier: bool,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Also by group: dst-port, endpoint (either address), vlan, or stretches of time, 'slice 1s'. A group's
    /// SLF and trains are those of its packets among all others; a slice is as a trace of its own.
    #[arg(long, value_name = "GROUP")]
    pub(crate) by: Option<By>,
    /// Groups to list at most, those with the most packets, or the first slices; all others are summed up
    /// [default: 20; of slices 10000].
    #[arg(long, value_name = "N", requires = "by")]
    pub(crate) groups: Option<usize>,
    /// Print two traces beside each other, and how every figure changed.
    #[arg(long)]
    pub(crate) diff: bool,
    /// Traces that can't be read (with --strict, damaged ones too) are listed, and don't make the exit status
    /// 2 as long as one of them could be.
    #[arg(long)]
    pub(crate) keep_going: bool,
    /// Analyse a part of a trace alone: '2/4', the second of four of about the same size, or 'FROM..TO',
    /// bytes at which records begin. What can't be cut (compressed, stdin) is all in the first part.
    #[arg(long, value_name = "PART", conflicts_with_all = ["by", "groups", "diff", "frontier", "parquet", "parquet_packets", "rules", "count", "time"])]
    pub(crate) part: Option<PartOf>,
    /// Write the analysis of the trace, or of the part, to a file that joins exactly with those of the other
    /// parts: for `analyze merge`, Python and Spark. Works on one thread.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["by", "groups", "diff", "frontier", "parquet", "parquet_packets", "rules", "count", "time"])]
    pub(crate) save: Option<PathBuf>,
    /// With --save: keep all packets, 5 to 10 bytes each, so that the part joins the one before however far
    /// times run back from that one to this.
    #[arg(long, requires = "save")]
    pub(crate) keep_packets: bool,
    /// With --part: go over the file up to the part first. What a pcapng file says there of its interfaces
    /// holds for the part, too.
    #[arg(long, requires = "part")]
    pub(crate) walk: bool,
    /// Which IP header of a tunnel makes the flow.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) tunnel: Tunnel,
    /// Addresses to list as top endpoints.
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub(crate) top: usize,
    /// Write the result as one HTML file with charts, which needs nothing else: no network, no script.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write every flow of every trace, one row each, to a Parquet file.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) parquet: Option<PathBuf>,
    /// Write every packet of every trace, one row each, to a Parquet file.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) parquet_packets: Option<PathBuf>,
    /// Worker threads; all cores by default. Results don't depend on it.
    #[arg(long, visible_alias = "workers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    #[command(flatten)]
    pub(crate) damage: Damage,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Debug, Subcommand)]
pub(crate) enum AnalyzeAction {
    Merge(MergeParts),
}

/// Join saved parts of traces, in any order: exactly what `analyze` gives of the whole traces.
///
/// Parts of a trace join by their bytes; several traces are as several of `analyze`, in the order in which
/// they are first named. Where two parts don't join, the later one is analysed anew if the trace is there.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream synth --packets 50000 big.pcap\n  \
                        slipstream analyze --part 1/2 --save 1.part big.pcap\n  \
                        slipstream analyze --part 2/2 --save 2.part big.pcap\n  \
                        slipstream analyze merge 1.part 2.part --format json")]
pub(crate) struct MergeParts {
    /// Files that `analyze --save`, or `Partial.save` of the Python package, wrote.
    #[arg(required = true, value_name = "PART")]
    pub(crate) parts: Vec<PathBuf>,
    /// Write the joined parts to a file; parts of the trace may be missing then.
    #[arg(long, short = 'o', value_name = "FILE", visible_alias = "output")]
    pub(crate) save: Option<PathBuf>,
    /// Write the result as one HTML file with charts, which needs nothing else: no network, no script.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    /// Write every flow of every trace, one row each, to a Parquet file.
    #[arg(long, value_name = "FILE.parquet")]
    pub(crate) parquet: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}
