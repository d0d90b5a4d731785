//! `slipstream reframe` where a port is live: the same stage in a pipeline of three, by the wall clock.

use std::path::Path;
use std::sync::Mutex;

use anyhow::{Context, anyhow, bail};
use slipstream::pipeline::{Diagnostics, Plan, Ports, Settings, StageType, Value, port_of};
use slipstream::runtime::ReplayReport;
use slipstream_stats::Histogram;

use super::run::as_json;
use crate::cli;
use crate::counters::is_loss;
use crate::live;
use crate::operate::{Operation, Shared, control};
use crate::port::{refuse_misspelt, refuse_unbuilt};
use crate::replace::refuse_shared;
use crate::types;
use crate::ui::{Kept, LiveSignals};

/// Figures of a live run that a replay doesn't have.
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

/// True for a live run.
pub(super) fn is_live(args: &cli::Reframe) -> bool {
    args.inputs.iter().chain([&args.output]).any(|path| {
        let (kind, _) = port_of(&path.to_string_lossy());
        types::stage_type(kind).is_some_and(|kind| kind.live())
    })
}

pub(super) fn run(args: &cli::Reframe) -> anyhow::Result<Live> {
    if args.turns > 1 || args.preload {
        bail!("a live port goes without --preload and --loop");
    }
    let [input] = args.inputs.as_slice() else {
        bail!("a live port goes with one input and one output");
    };
    if !args.selection.is_everything() {
        bail!("--rules, --count and --time are for captures; --bypass lets packets pass a live reframer by");
    }
    let control = args.live.control.as_deref();
    refuse_shared([("OUT", Some(args.output.as_path())), ("--control", control)], [])?;
    let (input, output) = (input.to_string_lossy(), args.output.to_string_lossy());
    for name in [&input, &output] {
        refuse_unbuilt(name)?;
        refuse_misspelt(name)?;
    }
    let registry = types::registry();
    let port = |name: &str| -> anyhow::Result<(&'static str, Settings)> {
        let (kind, texts) = port_of(name);
        let kind = types::stage_type(kind).with_context(|| format!("there is no port `{kind}`"))?;
        let settings = Settings::default().read(kind.settings, &texts, Path::new(""));
        Ok((kind.name, settings.map_err(|why| anyhow!("{name}: {why}"))?))
    };
    let (from, mut to) = (port(&input)?, port(&output)?);
    // One live port is opened once, both ways.
    let last = if from == to && registry.get(to.0).is_some_and(both_ways) { "in" } else { "out" };
    if to.0 == "pcap" {
        let stamp = if args.stamp == cli::Stamp::Arrival { "arrival" } else { "release" };
        to.1 = to.1.with("stamp", Value::Text(stamp.to_owned()));
    }
    let flags = args.stage.clone();
    let read = move || {
        let settings = flags.read_anew().map_err(|why| anyhow!("{why}"))?;
        let (from, to) = (from.clone(), to.clone());
        let stages = vec![("in", from.0, from.1), ("reframe", "reframe", settings), (last, to.0, to.1)];
        Plan::chain(&registry, stages, Path::new("")).map_err(|e| plainly(&e))
    };
    let plan = read()?;
    let mut options = live::options(&args.live, true)?;
    live::refuse_threads(&plan, args.workers)?;
    let signals = LiveSignals::new(live::may_reload(&plan, false))?;
    let _offloads = Kept::new(live::fix_offloads(&plan, &args.live)?);
    let mut operation = Operation::new(&plan, read, |report| as_json(report, Vec::new()));
    options.operator = operation.operator.clone();
    let run = live::driver(&plan, &args.live, args.workers, None);
    let (run, sharded) = run.map_err(|e| e.downcast_ref().map(plainly).unwrap_or(e))?;
    operation.shards = sharded.map(Mutex::new);
    let operation = Shared::new(operation);
    let socket = control.map(|path| control::serve(path, operation.clone())).transpose()?.map(Kept::new);
    let (run, live::Ended { report: all, error }) =
        live::run(run.live(options), &plan, &operation, &signals)?;
    drop(socket);
    drop(run);
    let stats = all.stages.iter().find_map(|s| s.reframe.as_deref()).cloned().unwrap_or_default();
    let lost = |(name, n): &(&'static str, u64)| if is_loss(name) { *n } else { 0 };
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

fn both_ways(kind: &StageType) -> bool {
    kind.live() && kind.inputs != Ports::None && kind.outputs != Ports::None
}

/// The errors, without the place in a graph that the user didn't write.
fn plainly(errors: &Diagnostics) -> anyhow::Error {
    let all: Vec<&str> = errors.0.iter().map(|d| d.error.message.as_str()).collect();
    anyhow!("{}", all.join("; "))
}
