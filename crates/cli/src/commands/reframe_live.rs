//! `slipstream reframe` where a port is live: the same stage in a pipeline of three, by the wall clock.

use std::fmt::Write;
use std::path::Path;

use anyhow::{anyhow, bail};
use slipstream::pipeline::{Diagnostics, Plan, port_of};
use slipstream::runtime::{ReplayReport, Run};
use slipstream_stats::Histogram;

use crate::cli;
use crate::live;
use crate::port::refuse_unbuilt;

/// What a live run gives beyond what a replay does.
pub(super) struct Live {
    pub(super) report: ReplayReport,
    /// Packets that the output could not send.
    pub(super) not_sent: u64,
    /// Packets that never came in: no room in the ring, or longer than the interface allows.
    pub(super) lost_before: u64,
    pub(super) excess: Option<Histogram>,
    /// The error that ended it early.
    pub(super) error: Option<anyhow::Error>,
}

/// Whether this is a live run.
pub(super) fn is_live(args: &cli::Reframe) -> bool {
    [&args.input, &args.output].into_iter().any(|path| {
        let (kind, _) = port_of(&path.to_string_lossy());
        slipstream::pipeline::stage_type(kind).is_some_and(|t| t.live())
    })
}

pub(super) fn run(args: &cli::Reframe) -> anyhow::Result<Live> {
    if args.workers > 1 || args.turns > 1 || args.preload {
        bail!("a live port goes with one worker and without --preload and --loop");
    }
    let (input, output) = (args.input.to_string_lossy(), args.output.to_string_lossy());
    [&input, &output].into_iter().try_for_each(|name| refuse_unbuilt(name))?;
    let mut out = port_of(&output);
    if out.0 == "pcap" {
        let stamp = if args.stamp == cli::Stamp::Arrival { "arrival" } else { "release" };
        out.1.push(("stamp".into(), stamp.into()));
    }
    let plan = Plan::from_graph(&stage(args), Some(port_of(&input)), Some(out), Path::new(""));
    let pipeline = plan.and_then(|p| p.build(p.seeds(None))).map_err(|e| plainly(&e))?;
    let mut run = Run::new(pipeline).live(live::options(&args.live, true)?);
    let live::Ended { report: all, error } = live::run(&mut run)?;
    let stats = all.stages.iter().find_map(|s| s.reframe.as_deref()).cloned().unwrap_or_default();
    let lost = |(name, n): &(&'static str, u64)| {
        if ["dropped_by_kernel", "too_long"].contains(name) { *n } else { 0 }
    };
    Ok(Live {
        report: ReplayReport {
            stats,
            clock_backwards: all.sources.iter().map(|s| s.clock_backwards).sum(),
            elapsed_ns: all.elapsed_ns,
            cpu_ns: all.cpu_ns,
            interrupted: false,
        },
        not_sent: all.stages.iter().map(|s| s.drops.total()).sum(),
        lost_before: all.sources.iter().flat_map(|s| &s.counters).map(lost).sum(),
        excess: live::excess(&all),
        error,
    })
}

/// What is wrong, without the place in a graph that the user didn't write.
fn plainly(errors: &Diagnostics) -> anyhow::Error {
    let all: Vec<&str> = errors.0.iter().map(|d| d.error.message.as_str()).collect();
    anyhow!("{}", all.join("; "))
}

/// The stage as a graph writes it. Its settings have the names and values of the options.
fn stage(args: &cli::Reframe) -> String {
    let choice = |c: &str, on: bool, off: &str| if on { c.to_owned() } else { off.to_owned() };
    let settings = [
        ("hold", args.hold.to_string()),
        ("burst", args.burst.to_string()),
        ("capacity", args.capacity.0.to_string()),
        ("capacity_bytes", args.capacity_bytes.0.to_string()),
        ("flows", args.flows.0.to_string()),
        (
            "policy",
            match args.policy {
                cli::Policy::Oldest => "oldest",
                cli::Policy::Waiting => "waiting",
                cli::Policy::Shortest => "shortest",
            }
            .to_owned(),
        ),
        ("admit", choice("second", args.admit == cli::Admit::Second, "always")),
        ("bypass", args.bypass.clone()),
        ("compress", choice("ack", args.compress.contains(&cli::Compress::Ack), "off")),
        ("tcp_order", args.tcp_order.to_string()),
        ("tunnel", choice("inner", args.tunnel == cli::Tunnel::Inner, "outer")),
    ];
    let mut text = String::from("reframe(");
    for (name, value) in settings {
        let _ = write!(text, "{name}={}, ", quoted(&value));
    }
    let classes: Vec<String> = args.class.iter().map(|c| quoted(c)).collect();
    let _ = write!(text, "class=[{}])", classes.join(", "));
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}
