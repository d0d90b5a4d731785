//! The words of the command line; help, man page and completions come from here.

pub(crate) mod analyze;
pub(crate) mod ctl;
pub(crate) mod flags;
pub(crate) mod measure;
pub(crate) mod model;
pub(crate) mod recommend;
pub(crate) mod slice;
pub(crate) mod top;

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use slipstream::pipeline::Setting;

pub(crate) use self::analyze::{Analyze, AnalyzeAction, By, MergeParts, PartOf};
use self::flags::{Flagged, Flags};
use crate::log::{Level, LogFormat};
use crate::operate::session_log::Target;
use crate::operate::state::Unreadable;
use crate::selection::Selection;
use crate::units::{Count, Duration, metrics_address, share};

/// Puts packets of a flow back to back, and tells what that gains.
#[derive(Debug, Parser)]
#[command(
    name = "slipstream",
    version,
    max_term_width = 110,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = "Exit status: 0 done; 1 done, but a check asked for with --fail-if failed; 2 usage, configuration or \
                  input/output error; 130 interrupted.\n\nExample:\n  \
                  slipstream synth --profile campus --packets 100000 campus.pcapng\n  \
                  slipstream analyze campus.pcapng"
)]
pub(crate) struct Cli {
    /// Say more on stderr: time and memory that it took.
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,
    /// Tell on stderr what is at least so important. Without it: of live runs links, reloads and drops, from
    /// `info` on; of everything else warnings.
    #[arg(long, value_enum, global = true, value_name = "LEVEL")]
    pub(crate) log_level: Option<Level>,
    /// The form of these lines.
    #[arg(long, value_enum, global = true, value_name = "FORM", default_value_t)]
    pub(crate) log_format: LogFormat,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    Analyze(Analyze),
    Reframe(Reframe),
    Run(Run),
    Graph(Graph),
    Validate(Validate),
    List(List),
    Synth(Synth),
    Measure(measure::Measure),
    Lab(Lab),
    Model(model::Model),
    Slice(slice::Slice),
    Recommend(recommend::Recommend),
    Top(top::Top),
    Ctl(ctl::Ctl),
    Reload(ctl::ReloadArgs),
    Completions(Completions),
    Man(Man),
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Table,
    /// For programs: one JSON object with `"schema": 1`.
    Json,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tunnel {
    /// The outermost IP header makes the flow.
    #[default]
    Outer,
    /// The innermost IP header of GRE, VXLAN, GENEVE and IP-in-IP does.
    Inner,
}

/// Options about the result, the same for every verb that reports.
#[derive(Clone, Debug, Args)]
pub(crate) struct Reporting {
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Exit with status 1 if this holds for the result: a JSON key path, a comparison, a number, as in
    /// 'slf_out<1.5' or 'ip.windows.1.mean_train<2'. May be given several times.
    #[arg(long, value_name = "CHECK")]
    pub(crate) fail_if: Vec<String>,
}

/// Options about damaged captures, for verbs that read some.
#[derive(Clone, Copy, Debug, Default, Args)]
pub(crate) struct Damage {
    /// Take a damaged input for an error (exit status 2), not for a warning.
    #[arg(long)]
    pub(crate) strict: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Stamp {
    /// The time of release.
    #[default]
    Release,
    /// The time that the input gave.
    Arrival,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Pace {
    /// As fast as it goes, by the capture's own clock; live: as fast as there is room.
    #[default]
    Fast,
    /// By the wall clock.
    Real,
}

/// The settings of the stage `reframe` as flags.
#[derive(Debug)]
pub(crate) struct ReframeFlags;

impl Flagged for ReframeFlags {
    const SETTINGS: &'static [Setting] = slipstream::reframe::SETTINGS;
    const VALUES: &'static [(&'static str, &'static str)] = &[
        ("burst", "PACKETS"),
        ("capacity", "PACKETS"),
        ("flows", "FLOWS"),
        ("compress", "HOW"),
        ("gro_segments", "PACKETS"),
    ];
}

/// Put packets of a flow back to back: the main job.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream reframe traces/campus.pcap.gz trains.pcapng\n  \
                        slipstream reframe traces/campus.pcap.gz null --hold 128us \\\n    \
                        --policy waiting --format json\n  \
                        slipstream reframe traces/campus.pcap.gz trains.pcapng \\\n    \
                        --class 'voice: udp dst port 16384-32767 => bypass' \\\n    \
                        --class 'web: tcp port 80,443 => hold=200us, burst=64'\n  \
                        slipstream reframe traces/campus.pcap.gz null --hold 16us \\\n    \
                        --class 'elephants: top 1 % => hold=256us, burst=64'\n  \
                        slipstream reframe traces/campus.pcap.gz null --hold 1ms \\\n    \
                        --admit adaptive --budget delay=30us\n  \
                        slipstream reframe traces/campus.pcap.gz null --hold auto --hold-max 256us\n  \
                        slipstream reframe synth:profile=campus,packets=50000 null \\\n    \
                        --hold 1ms --compress ack,gro\n  \
                        slipstream reframe traces/campus.pcap.gz null --preload --loop 20\n  \
                        slipstream reframe traces/campus.pcap.gz traces/campus.pcap.gz \\\n    \
                        web.pcapng --rules 'tcp port 443' --time ..10ms")]
pub(crate) struct Reframe {
    /// Captures (pcap, pcapng; plain, gzip or zstd), `-` for stdin, `synth:KEY=VALUE,…`: several are one
    /// stream, in the order in which they are named. Or a live port: `af_packet:INTERFACE`,
    /// `af_xdp:INTERFACE[:QUEUES]`, `tap:INTERFACE`.
    #[arg(required = true, value_name = "IN")]
    pub(crate) inputs: Vec<PathBuf>,
    /// A capture to write (.pcap or .pcapng, also .gz or .zst; else as the input), `-` for stdout, `null` for
    /// nothing, or a live port: `af_packet:INTERFACE`, `af_xdp:INTERFACE`, `tap:INTERFACE`.
    #[arg(value_name = "OUT")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) stage: Flags<ReframeFlags>,
    #[command(flatten)]
    pub(crate) selection: Selection,
    /// Which time is written with a packet.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) stamp: Stamp,
    /// Threads. What comes out of a replay is the same to the byte, whatever their number; live, one of them
    /// asks the ports.
    #[arg(long, visible_alias = "threads", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    /// With several inputs of the folder of OUT: replace OUT though it is there already, and may be an input
    /// as well, the last one of *.pcap. A single input needs no such word.
    #[arg(long)]
    pub(crate) overwrite: bool,
    /// Read the whole input into memory first.
    #[arg(long)]
    pub(crate) preload: bool,
    /// Replay the input this many times, time shifted on; implies --preload.
    #[arg(long = "loop", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) turns: u32,
    /// By which clock packets come and go.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) pace: Pace,
    #[command(flatten)]
    pub(crate) live: Live,
    #[command(flatten)]
    pub(crate) damage: Damage,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

/// A pipeline: a configuration, or a graph on the command line.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("pipeline").args(["config", "expression"]).required(true)))]
pub(crate) struct PipelineArgs {
    /// A configuration (TOML): `graph`, and a table [stage.NAME] for each stage with settings.
    #[arg(value_name = "CONFIG.toml")]
    pub(crate) config: Option<PathBuf>,
    /// The graph, in place of a configuration: 'reframe(hold=64us) -> counter'.
    #[arg(short, long, value_name = "GRAPH")]
    pub(crate) expression: Option<String>,
    /// Where packets come from: a capture, `-`, `synth:KEY=VALUE,…`, `af_packet:INTERFACE`,
    /// `af_xdp:INTERFACE[:QUEUES]`, `tap:INTERFACE`, `shm:FILE`. With -e it leads to the start of the graph;
    /// with a configuration it stands in for the only port there that packets come from.
    #[arg(short, long, value_name = "PORT")]
    pub(crate) input: Option<String>,
    /// Where packets go: a capture to write, `-`, `null`, `af_packet:INTERFACE`, `af_xdp:INTERFACE`,
    /// `tap:INTERFACE`, `shm:FILE`. With -e it is led to from the end of the graph; with a configuration it
    /// stands in for the only port there that packets go to.
    #[arg(short, long, value_name = "PORT")]
    pub(crate) output: Option<String>,
    /// Flow contexts, in which functions keep what they decided about a flow: `auto` or `off`. As `context`
    /// of the configuration.
    #[arg(long, value_name = "auto|off")]
    pub(crate) context: Option<String>,
    /// Flows that have a context at most (65536). As `context_flows` of the configuration.
    #[arg(long, value_name = "N")]
    pub(crate) context_flows: Option<String>,
    /// Memory that flow contexts may take, as in 64MiB. As `context_memory` of the configuration.
    #[arg(long, value_name = "SIZE")]
    pub(crate) context_memory: Option<String>,
}

/// Options of a live run: its pace, and its end.
#[derive(Clone, Debug, Args)]
pub(crate) struct Live {
    /// Live: end after this time; without, at an interrupt (Ctrl-C). What is held then leaves.
    #[arg(long, value_name = "TIME")]
    pub(crate) duration: Option<Duration>,
    /// Live: end after so many packets came in.
    #[arg(long, value_name = "N")]
    pub(crate) packets: Option<Count>,
    /// Live: never sleep, which takes a whole core and saves the time of waking up.
    #[arg(long)]
    pub(crate) busy_poll: bool,
    /// Live: where packets come faster than this one after the other, what is held may leave so much later,
    /// and packets may wait for so long where that saves CPU time, so that one waking serves several; 0: each
    /// packet wakes the engine, and what is due leaves in time [default: 40us].
    #[arg(long, value_name = "TIME")]
    pub(crate) coalesce: Option<Duration>,
    /// Live: run the whole pipeline so many times, each on a thread of its own with tables of its own.
    /// Packets that must meet, such as both directions of a connection, are led to the same one, and what
    /// can't be led is refused; `validate` explains it.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) shards: u16,
    /// Live: cores to run on, one number for each shard, as in 2,3; fewer are taken in turn. Without, the
    /// system decides.
    #[arg(long, value_name = "CORES", value_delimiter = ',')]
    pub(crate) cores: Vec<u32>,
    /// Live: precede all threads that share time, 1 to 99 (`SCHED_FIFO`; takes `CAP_SYS_NICE`).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=99))]
    pub(crate) priority: Option<u8>,
    /// Live: lock all memory, so that none is moved out to disk while packets come. Takes no limit of locked
    /// memory (`RLIMIT_MEMLOCK`), or `CAP_IPC_LOCK`.
    #[arg(long)]
    pub(crate) lock_memory: bool,
    /// Live: switch off what merges packets on interfaces of the pipeline (GRO, LRO) or takes out VLAN tags,
    /// and what the other end of a virtual pair in this namespace leaves to a card; restored at the end.
    #[arg(long)]
    pub(crate) fix_offloads: bool,
    /// Live: serve an operator at this Unix socket (`slipstream ctl`, `slipstream reload`): who may write to
    /// it, its owner alone, may list and delete sessions, drain backends, and have the configuration read
    /// anew.
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<PathBuf>,
}

/// Run a pipeline.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream run -i traces/campus.pcap.gz -o trains.pcapng \\\n    \
                        -e 'reframe(hold=64us) -> counter(rules=\"tcp port 443\")'\n  \
                        slipstream run -i traces/campus.pcap.gz -o null --format json \\\n    \
                        -e 'switch(ports=[\"dns: udp port 53\"])[other] -> flow_stats'\n  \
                        slipstream run --poll-log polls.csv \\\n    \
                        -e 'paced(rate=100kpps, arrivals=poisson, packets=1000) -> counter -> null'")]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Threads. What comes out of a replay is the same to the byte, whatever their number; live, one of them
    /// asks the ports.
    #[arg(long, visible_alias = "threads", value_name = "N", default_value = "1", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(crate) workers: u16,
    #[command(flatten)]
    pub(crate) live: Live,
    /// By which clock packets of captures and generated traffic come [default: real where there are live
    /// ports, else fast, which takes them as they are and `--workers` threads].
    #[arg(long, value_enum)]
    pub(crate) pace: Option<Pace>,
    /// Serve how the run goes at this address while it lasts: /metrics for Prometheus, and as JSON /report,
    /// which is what --format json prints at the end (`slipstream top` shows it), /measure, the answers
    /// of `measure` stages, and /healthz for probes. Anyone who reaches the address can read it; without one
    /// it is 127.0.0.1. Port 0 takes a free one.
    #[arg(long, value_name = "[ADDRESS]:PORT", value_parser = metrics_address)]
    pub(crate) metrics: Option<std::net::SocketAddr>,
    /// Live: keep the state of NATs, firewalls and balancers in this file, so that a restart loses no
    /// connection: read at the start, written every minute and at the end.
    #[arg(long, value_name = "FILE")]
    pub(crate) state: Option<PathBuf>,
    /// What becomes of a state that is damaged, or none of ours.
    #[arg(long, value_enum, default_value_t, requires = "state", value_name = "HOW")]
    pub(crate) state_unreadable: Unreadable,
    /// Live: log sessions of NATs, as they begin and end (RFC 6888): ipfix:ADDRESS:PORT (RFC 8158),
    /// syslog:ADDRESS:PORT, or json:FILE, which may be moved away to begin another one.
    #[arg(long, value_name = "TARGET")]
    pub(crate) session_log: Option<Target>,
    /// Live: log packets that firewalls deny, with the rule; ten a second at most.
    #[arg(long)]
    pub(crate) log_denied: bool,
    /// Live: write when sources were polled and how many packets they had: CSV with the columns `time_ns`,
    /// `batch`, `empty_before` (polls without packets since the line before), `source` and `newest_ns` (when
    /// the last of the packets came).
    #[arg(long, value_name = "FILE.csv")]
    pub(crate) poll_log: Option<PathBuf>,
    /// Polls that the log has room for; they lie in memory until the end, 32 bytes each, and room for them is
    /// kept on the disk.
    #[arg(long, value_name = "N", default_value = "1M", requires = "poll_log")]
    pub(crate) poll_log_max: Count,
    /// Seed of hashes and random choices. Without it: 1 in a replay, which repeats itself; live, secret ones
    /// from the operating system, which nobody can choose colliding flows for.
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) damage: Damage,
    #[command(flatten)]
    pub(crate) reporting: Reporting,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drawing {
    /// The graph in Click's arrows, with every setting that was written.
    #[default]
    Click,
    /// For Graphviz.
    Dot,
    /// For Mermaid.
    Mermaid,
    /// A picture.
    Svg,
}

/// Draw a pipeline.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream graph --to mermaid -i a.pcap -o b.pcap -e 'reframe -> counter'")]
pub(crate) struct Graph {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// How.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) to: Drawing,
}

/// Check a pipeline: every error at once, with line, column and a hint. Opens no port and writes no file.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  \
                        slipstream validate -i synth: -o null -e 'reframe(hold=64us) -> counter'")]
pub(crate) struct Validate {
    #[command(flatten)]
    pub(crate) pipeline: PipelineArgs,
    /// Say what flow contexts keep of each flow, and how much memory that is.
    #[arg(long)]
    pub(crate) explain: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// List the stage types with their ports and settings.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  slipstream list\n  slipstream list reframe\n  \
                        slipstream list --schema > pipeline.schema.json")]
pub(crate) struct List {
    /// Stage types to show in full.
    #[arg(value_name = "TYPE")]
    pub(crate) types: Vec<String>,
    /// Print the JSON Schema of configurations, for editors.
    #[arg(long, conflicts_with = "types")]
    pub(crate) schema: bool,
    /// Print the settings of these types as tables in Markdown, as the book has them.
    #[arg(long, requires = "types", conflicts_with_all = ["schema", "format"])]
    pub(crate) markdown: bool,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Make traffic with a known locality.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream synth --flows 1024 --packets 100000 --slf 4 \\\n    \
                        --order round-robin --size 60 --rate 10mpps four.pcap\n  \
                        slipstream synth --profile campus --copies 4 --packets 200000 \\\n    \
                        --seed 7 --snap-len 96 campus.pcapng.gz")]
pub(crate) struct Synth {
    /// A capture to write (.pcap or .pcapng, also .gz or .zst), `-` for stdout, `null` for nothing.
    pub(crate) output: PathBuf,
    /// Kind of traffic: plain (known locality), campus (as the Reframer paper's trace) [default: plain].
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<String>,
    /// Campus: independent campuses superposed, 2.2 Gbit/s each [default: 1].
    #[arg(long, value_name = "K")]
    pub(crate) copies: Option<Count>,
    /// Packets to make [default: 100000].
    #[arg(long, value_name = "N")]
    pub(crate) packets: Option<Count>,
    /// Flows alive at a time [default: 10000].
    #[arg(long, value_name = "N")]
    pub(crate) flows: Option<Count>,
    /// After every flow has sent one packet, only so many go on [default: all].
    #[arg(long, value_name = "N")]
    pub(crate) active: Option<Count>,
    /// Mean packets of a run (the spatial locality factor), 1 and more [default: 1].
    #[arg(long, value_name = "PACKETS")]
    pub(crate) slf: Option<f64>,
    /// Which flow sends the next run: random, round-robin [default: random].
    #[arg(long, value_name = "ORDER")]
    pub(crate) order: Option<String>,
    /// How long a run is: fixed, geometric [default: fixed].
    #[arg(long, value_name = "MODEL")]
    pub(crate) train: Option<String>,
    /// Exponent of the flows' popularity; 0 = all alike [default: 0].
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) zipf: Option<f64>,
    /// Frame sizes in bytes: 64, 64..1500, imix, or SIZE:WEIGHT,… [default: 64..1500]
    #[arg(long, value_name = "SIZE")]
    pub(crate) size: Option<String>,
    /// Mean rate: 1mpps, 500kpps, 2.2gbps; a number alone is packets a second [default: 1mpps].
    #[arg(long, value_name = "RATE")]
    pub(crate) rate: Option<String>,
    /// When packets come: constant, poisson [default: constant].
    #[arg(long, value_name = "ARRIVALS")]
    pub(crate) arrivals: Option<String>,
    /// Transport: udp, tcp, or the share of TCP, 0 to 1 [default: udp].
    #[arg(long, value_name = "PROTOCOL")]
    pub(crate) protocol: Option<String>,
    /// Share of flows over IPv6, 0 to 1 [default: 0].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) ipv6: Option<f64>,
    /// Share of flows in a VLAN, 0 to 1 [default: 0].
    #[arg(long, value_name = "SHARE", value_parser = share)]
    pub(crate) vlan: Option<f64>,
    /// VLAN ids to choose from [default: 100].
    #[arg(long, value_name = "ID,…", value_delimiter = ',')]
    pub(crate) vlan_ids: Vec<u16>,
    /// Time of the first packet, in seconds since 1970 [default: 0].
    #[arg(long, value_name = "SECONDS")]
    pub(crate) start: Option<u64>,
    /// The same settings and seed give the same bytes on every machine [default: 1].
    #[arg(long, value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Bytes that the capture keeps of a frame [default: all].
    #[arg(long, value_name = "BYTES")]
    pub(crate) snap_len: Option<Count>,
    /// How to print what was made (on stderr where the packets go to stdout).
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
}

/// Reproduce figures of the papers, each beside what the paper says.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("which").args(["names", "all"]),
    after_help = "Examples:\n  \
                  slipstream lab\n  \
                  slipstream lab --format json\n\n\
                  Some take minutes:\n  \
                  slipstream lab hold --quick --report hold.html\n  \
                  slipstream lab --all --report figures"
)]
pub(crate) struct Lab {
    /// Which labs; without a name, all are listed.
    #[arg(value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Run all that need nothing but a processor, one after the other: not `live`, which needs root and a
    /// network.
    #[arg(long)]
    pub(crate) all: bool,
    /// Smaller inputs: each lab ends within a minute.
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write the result as one HTML file with charts, which needs nothing else: no network, no script. Of
    /// several labs, or of all, write into this folder an index, a page each, and every figure as SVG and as
    /// CSV.
    #[arg(long, alias = "html", value_name = "FILE.html|FOLDER", requires = "which")]
    pub(crate) report: Option<PathBuf>,
    /// How to print the result.
    #[arg(long, value_enum, default_value_t)]
    pub(crate) format: Format,
    /// Exit with status 1 if this holds for the result, as in 'failed_claims>0', which is the sum of several
    /// labs. May be given several times.
    #[arg(long, value_name = "CHECK", requires = "which")]
    pub(crate) fail_if: Vec<String>,
}

/// Print a completion script for a shell.
#[derive(Debug, Args)]
#[command(after_help = "Example:\n  slipstream completions bash > slipstream.bash")]
pub(crate) struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub(crate) shell: Shell,
}

/// Print the manual page.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
                        slipstream man | man -l -\n  \
                        slipstream man model solve | man -l -")]
pub(crate) struct Man {
    /// Of this verb only, which may have several words: model solve.
    #[arg(value_name = "VERB")]
    pub(crate) verbs: Vec<String>,
    /// Write all pages there instead, each under its name, as in slipstream-model-solve.1.
    #[arg(long, value_name = "FOLDER", conflicts_with = "verbs")]
    pub(crate) into: Option<PathBuf>,
}
