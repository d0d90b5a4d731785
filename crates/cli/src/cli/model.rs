//! The words of `slipstream model`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{Format, Reporting};
use crate::units::{Count, Nanoseconds, Rate, packets, share};

/// Predict batch sizes, loss and latency of a processor that works in batches, and size it.
#[derive(Debug, Args)]
#[command(
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Example:\n  slipstream model solve --rate 11.97mpps \\\n    --service-base 600ns --service-per-packet 77ns"
)]
pub(crate) struct Model {
    #[command(subcommand)]
    pub(crate) verb: ModelVerb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ModelVerb {
    Solve(Solve),
    Fit(Fit),
    Compare(Compare),
    Dimension(Dimension),
    Sweep(Sweep),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Process {
    /// Always the same time.
    Deterministic,
    /// Poisson-distributed times: 1/√mean of variation, so it depends on the slot.
    #[default]
    Poisson,
    /// A packet in every slot with the same probability: what Poisson arrivals are in slots.
    Geometric,
    /// Negative binomial times, with the variation that --cv says.
    Negbin,
    /// As observed, from --interarrivals.
    Empirical,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ServiceKind {
    /// Poisson around the mean of the batch size, in slots.
    #[default]
    Poisson,
    /// Always the mean of the batch size.
    Deterministic,
    /// As in the poll log (--log).
    Empirical,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StartKind {
    /// A whole interarrival time begins at every poll; biased.
    Renewal,
    /// The residual of an interarrival time, drawn anew at every poll.
    #[default]
    Equilibrium,
    /// The residual that the last poll left: nothing is drawn anew. Short times only, and geometric ones;
    /// --simulate does it for all.
    Exact,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum FitKind {
    /// One line through all loads.
    #[default]
    Global,
    /// One line for every load.
    PerRate,
    /// Two lines with a knee between.
    Piecewise,
}

/// When packets come.
#[derive(Clone, Debug, Args)]
pub(crate) struct Arrivals {
    /// How the times between packets are distributed.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) interarrival: Process,
    /// Coefficient of variation of negbin times; above 1/√mean.
    #[arg(long, value_name = "CV")]
    pub(crate) cv: Option<f64>,
    /// Observed times between packets, in ns, a line each, or a capture; `-` for stdin.
    #[arg(long, value_name = "FILE")]
    pub(crate) interarrivals: Option<PathBuf>,
}

/// The queue.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Ring {
    /// Packets that the queue holds.
    #[arg(long, value_name = "PACKETS", default_value_t = 4096, value_parser = packets)]
    pub(crate) queue: usize,
    /// Packets that a poll takes at most.
    #[arg(long, value_name = "PACKETS", default_value_t = 256, value_parser = packets)]
    pub(crate) batch: usize,
}

/// Options about the counting of times, and about logs.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Reading {
    /// Length of a slot.
    #[arg(long, value_name = "TIME", default_value = "1ns")]
    pub(crate) slot: Nanoseconds,
    /// Where the count of arrivals of a service begins.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) start: StartKind,
    /// How service times vary.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) service: ServiceKind,
    /// Mean time of a poll that finds nothing [default: as in the log, else that of an empty batch; without a
    /// log 100ns].
    #[arg(long, value_name = "TIME")]
    pub(crate) empty_poll: Option<Nanoseconds>,
    /// Which lines to take for batch sizes that the log has not.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) fit: FitKind,
    /// Frequency of the clock of the log, where its times are ticks.
    #[arg(long, value_name = "MHZ")]
    pub(crate) clock: Option<f64>,
}

/// The server.
#[derive(Clone, Debug, Args)]
pub(crate) struct Server {
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Mean time of a batch, without its packets.
    #[arg(long, value_name = "TIME", required_unless_present = "log")]
    pub(crate) service_base: Option<Nanoseconds>,
    /// Mean time that a packet adds.
    #[arg(long, value_name = "TIME", required_unless_present = "log")]
    pub(crate) service_per_packet: Option<Nanoseconds>,
    /// A poll log, from which to take service times.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["service_base", "service_per_packet"])]
    pub(crate) log: Option<PathBuf>,
}

/// Solve the model for one load.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream model solve --queue 4096 --batch 256 --slot 1ns \\\n    \
                        --interarrival poisson --mean 83.5197 --service-base 600ns \\\n    \
                        --service-per-packet 77ns --empty-poll 100ns --start equilibrium\n  \
                        slipstream model solve --rate 11mpps --interarrival negbin --cv 2 \\\n    \
                        --service-base 600ns --service-per-packet 77ns --format json")]
pub(crate) struct Solve {
    #[command(flatten)]
    pub(crate) ring: Ring,
    #[command(flatten)]
    pub(crate) arrivals: Arrivals,
    /// Mean time between packets, in slots.
    #[arg(long, value_name = "SLOTS", conflicts_with = "rate")]
    pub(crate) mean: Option<f64>,
    /// Packets that come in a second, as in 11.97mpps.
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<Rate>,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Also simulate so many polls, packet by packet: 1k to 1G.
    #[arg(long, value_name = "POLLS")]
    pub(crate) simulate: Option<Count>,
    /// Where the simulation's random numbers begin.
    #[arg(long, value_name = "N", default_value_t = 1, requires = "simulate")]
    pub(crate) seed: u64,
    /// Write the result as one HTML file with charts.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// Get service times from a poll log.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream model fit <(printf '%s\\n' time_ns,batch \\\n    \
                        0,4 900,9 2300,12 4000,8)")]
pub(crate) struct Fit {
    /// A poll log (CSV with the columns time_ns,batch, or binary), `-` for stdin.
    pub(crate) log: PathBuf,
    /// Frequency of the clock of the log, where its times are ticks.
    #[arg(long, value_name = "MHZ")]
    pub(crate) clock: Option<f64>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// Hold the model's prediction against a poll log.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream model compare <(printf '%s\\n' time_ns,batch \\\n    \
                        0,4 900,9 2300,12 4000,8 5200,7)")]
pub(crate) struct Compare {
    /// A poll log (CSV with the columns time_ns,batch, or binary), `-` for stdin.
    pub(crate) log: PathBuf,
    #[command(flatten)]
    pub(crate) ring: Ring,
    #[command(flatten)]
    pub(crate) arrivals: Arrivals,
    /// Packets that came in a second, for a log of one load; else what was served is taken to be what came.
    #[arg(long, value_name = "RATE", conflicts_with = "frame_bytes")]
    pub(crate) rate: Option<Rate>,
    /// The log's rates are Mbit/s on an Ethernet link, of frames of so many bytes.
    #[arg(long, value_name = "BYTES")]
    pub(crate) frame_bytes: Option<u32>,
    #[command(flatten)]
    pub(crate) reading: Reading,
    /// Write the result as one HTML file with charts.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// Find the smallest machine that keeps loss and latency within bounds.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream model dimension --rate 30mpps --max-loss 1e-5 --max-p99 60us \\\n    \
                        --queues 1024 --batches 64,256 --interarrival geometric --slot 10ns \\\n    \
                        --service-base 600ns --service-per-packet 77ns")]
pub(crate) struct Dimension {
    /// Packets that come in a second, on all cores together.
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Rate,
    #[command(flatten)]
    pub(crate) arrivals: Arrivals,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Largest share of packets that may be lost.
    #[arg(long, value_name = "SHARE", default_value_t = 1e-5, value_parser = share)]
    pub(crate) max_loss: f64,
    /// Longest time from arrival to the end of service, for 99 of 100 packets.
    #[arg(long, value_name = "TIME")]
    pub(crate) max_p99: Option<Nanoseconds>,
    /// Cores to choose from: 1 to so many.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) max_cores: u32,
    /// Queues to choose from, in packets.
    #[arg(long, value_name = "PACKETS,…", value_delimiter = ',', default_value = "512,1024,2048,4096", value_parser = packets)]
    pub(crate) queues: Vec<usize>,
    /// Largest batches to choose from, in packets.
    #[arg(long, value_name = "PACKETS,…", value_delimiter = ',', default_value = "32,64,128,256", value_parser = packets)]
    pub(crate) batches: Vec<usize>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// Solve the model for many loads and arrival processes.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream model sweep --loads 0.5,0.9,1,1.2 --processes poisson,negbin:2 \\\n    \
                        --queue 512 --batch 32 --service-base 600ns --service-per-packet 77ns")]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) ring: Ring,
    /// Packets that come in a second.
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', required_unless_present = "loads")]
    pub(crate) rates: Vec<Rate>,
    /// Loads instead of rates: packets that come while a full batch is served, divided by its size.
    #[arg(long, value_name = "LOAD,…", value_delimiter = ',', conflicts_with = "rates")]
    pub(crate) loads: Vec<f64>,
    /// Arrival processes: deterministic, poisson, geometric, negbin:CV.
    #[arg(
        long,
        value_name = "PROCESS,…",
        value_delimiter = ',',
        default_value = "poisson,geometric,negbin:0.5,negbin:2"
    )]
    pub(crate) processes: Vec<String>,
    #[command(flatten)]
    pub(crate) server: Server,
    /// Threads; all cores by default.
    #[arg(long, visible_alias = "workers", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) threads: Option<u16>,
    /// Write the result as one HTML file with charts.
    #[arg(long, alias = "html", value_name = "FILE.html")]
    pub(crate) report: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

impl Reporting {
    /// Returns true if the result is for programs.
    pub(crate) fn json(&self) -> bool {
        self.format == Format::Json
    }
}
