//! Common parts of the verbs that run by the wall clock.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use slipstream::io::offloads::Switched;
use slipstream::pipeline::{Group, Plan, Role};
use slipstream::runtime::{Driver, LiveOptions, PollLog, RunError, RunReport};
use slipstream::seed::Seeds;
use slipstream_report::{Table, count, time};
use slipstream_stats::Histogram;
use tracing::{info, warn};

use crate::cli;
use crate::types;
use crate::ui::{self, Progress, Request};

/// True where packets come or go by the wall clock.
pub(crate) fn is_live(plan: &Plan) -> bool {
    plan.stages.iter().any(|s| s.kind.live())
}

/// The seeds of a run, for which the user may have asked for a certain one.
pub(crate) fn seeds(plan: &Plan, asked_for: Option<u64>) -> Seeds {
    if let Some(seed) = asked_for.filter(|_| is_live(plan)) {
        warn!(
            "--seed {seed}: hashes and ports are those of this seed, and who knows it can choose flows that collide; without \
             --seed a live run takes secret ones from the operating system"
        );
    }
    plan.seeds(asked_for)
}

/// The settings of a live run; an error where they are given for one that is not.
pub(crate) fn options(args: &cli::Live, live: bool) -> anyhow::Result<LiveOptions> {
    if !live && (args.duration.is_some() || args.packets.is_some() || args.busy_poll) {
        bail!("--duration, --packets and --busy-poll are for live ports, such as af_packet:INTERFACE");
    }
    if !live && (args.shards > 1 || !args.cores.is_empty() || args.priority.is_some()) {
        bail!(
            "--shards, --cores and --priority are for live ports; a replay takes several threads with --workers N"
        );
    }
    if args.shards > 1 && args.packets.is_some() {
        bail!("--packets counts what one thread takes; with --shards a run ends after --duration");
    }
    if args.cores.len() > usize::from(args.shards) {
        bail!("--cores has more numbers than there are shards (--shards {})", args.shards);
    }
    Ok(LiveOptions {
        duration: args.duration.map(|d| Duration::from_nanos(d.0)),
        packets: args.packets.map(|n| n.0),
        busy_poll: args.busy_poll,
        coalesce: Duration::from_nanos(args.coalesce.0),
        cores: args.cores.clone(),
        priority: args.priority,
        ..LiveOptions::default()
    })
}

/// Switches off, where that was asked for, what interfaces of a plan do to packets; dropped, it is as it was.
pub(crate) fn fix_offloads(plan: &Plan, args: &cli::Live) -> anyhow::Result<Vec<Switched>> {
    let ports = plan.stages.iter().filter(|s| ["af_packet", "af_xdp"].contains(&s.kind.name));
    let mut interfaces: Vec<&str> = ports.map(|s| s.settings.text("interface")).collect();
    interfaces.sort_unstable();
    interfaces.dedup();
    if !args.fix_offloads {
        return Ok(Vec::new());
    }
    if interfaces.is_empty() {
        bail!("--fix-offloads: the pipeline has no port of type af_packet or af_xdp");
    }
    let mut all = Vec::new();
    for interface in interfaces {
        let switched = Switched::off(interface).with_context(|| {
            format!(
                "--fix-offloads: the features of `{interface}` can't be set (takes root or CAP_NET_ADMIN)"
            )
        })?;
        switched.features().for_each(|(interface, what)| info!("{interface}: {} off", what.name()));
        all.push(switched);
    }
    Ok(all)
}

/// The run of a plan, in shards where that was asked for.
pub(crate) fn driver(
    plan: &Plan,
    args: &cli::Live,
    workers: u16,
    seed: Option<u64>,
) -> anyhow::Result<Driver> {
    let seeds = || seeds(plan, seed);
    if args.shards == 1 {
        return Ok(types::driver(plan.build(seeds())?).workers(usize::from(workers)));
    }
    if workers > 1 {
        bail!(
            "--shards and --workers: a pipeline runs whole on each shard, or in sections on the workers, not both"
        );
    }
    let mut drivers = plan.in_shards(usize::from(args.shards))?.build(seeds)?.into_iter().map(types::driver);
    let first = drivers.next().context("no shard")?;
    Ok(first.beside(drivers.collect()))
}

/// The report of a run, and the error that ended it early, if one did: it is told behind the report.
pub(crate) struct Ended {
    pub(crate) report: RunReport,
    pub(crate) error: Option<anyhow::Error>,
}

/// Has stages read anew what they can, once all of it is known to be right.
struct Reloader {
    plan: Arc<Plan>,
    /// The stages and what they read, in words.
    what: Arc<str>,
    flag: Arc<AtomicBool>,
}

impl Reloader {
    fn new(run: &Driver, plan: &Plan) -> Self {
        let all = run.reloads();
        let what: Vec<_> = all.iter().map(|(stage, what)| format!("`{stage}` reads {what} anew")).collect();
        Self { plan: Arc::new(plan.clone()), what: what.join(", ").into(), flag: run.reload_flag() }
    }

    /// Checks everything on a thread of its own, so that packets don't wait. Where something is wrong,
    /// nothing is read anew, and all goes on as it is.
    fn start(&self) {
        let (plan, what, flag) = (self.plan.clone(), self.what.clone(), self.flag.clone());
        let check = move || match plan.check() {
            Ok(()) => {
                warn!("hang-up: {what}; all other settings stay as they are until the next start");
                flag.store(true, Ordering::Relaxed);
            }
            Err(errors) => warn!("hang-up: nothing is read anew, and all goes on as it is:\n{errors}"),
        };
        if let Err(error) = thread::Builder::new().name("reload".into()).spawn(check) {
            warn!("hang-up: nothing is read anew: there is no thread to check it: {error}");
        }
    }
}

/// Runs the pipeline of a plan until it ends or is interrupted. At a hang-up stages read anew what they can.
pub(crate) fn run(run: &mut Driver, plan: &Plan) -> anyhow::Result<Ended> {
    let progress = Progress::new("running");
    let reloader = Reloader::new(run, plan);
    let signals = ui::LiveSignals::new(run.is_live() && !reloader.what.is_empty())?;
    let result = run.run(&mut |share| {
        progress.at(share);
        match signals.request() {
            Request::Stop => return ControlFlow::Break(()),
            Request::Reload => reloader.start(),
            Request::Nothing => {}
        }
        ControlFlow::Continue(())
    });
    drop(progress);
    let (report, error) = match (result, run.take_partial()) {
        (Ok(report), _) => (report, None),
        (Err(error), Some(report)) => (report, Some(error.into())),
        (Err(error), None) => return Err(run_error(error)),
    };
    complain(&report);
    Ok(Ended { report, error })
}

/// The error of a run, with the option that made it one.
pub(crate) fn run_error(error: RunError) -> anyhow::Error {
    match error {
        RunError::Damaged { .. } => anyhow!("{error} (--strict)"),
        _ => error.into(),
    }
}

/// Warns of losses that a user can remedy.
fn complain(report: &RunReport) {
    for source in &report.sources {
        let counter = |name| source.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        let name = &source.name;
        if counter("too_long") > 0 {
            warn!(
                "{name}: {} packets were longer than the interface's MTU and are lost: its neighbour leaves segmentation \
                 to the card, or this side merges packets; switch that off: ethtool -K INTERFACE gro off lro off (here), \
                 tso off gso off tx off (there)",
                counter("too_long")
            );
        }
        if counter("mempool_empty") > 0 {
            warn!(
                "{name}: {} polls found no free mbuf, and packets had to wait or were lost: the pipeline holds as many as there \
                 are; set more `mbufs`, or hold for a shorter time",
                counter("mempool_empty")
            );
        }
        if counter("missed") > 0 {
            warn!(
                "{name}: {} packets found the ring of the device full and are lost; a larger `ring` takes longer bursts",
                counter("missed")
            );
        }
        if counter("dropped_by_kernel") > 0 {
            warn!(
                "{name}: {} packets found the ring full, or no buffer free, and are lost; a larger `ring` takes longer bursts",
                counter("dropped_by_kernel")
            );
        }
    }
    for stage in &report.stages {
        let counter = |name| stage.counters.iter().find(|(n, _)| *n == name).map_or(0, |(_, n)| *n);
        if counter("long_probes") > 0 {
            warn!(
                "{}: {} flows collided in its table as chance doesn't make them: somebody chose them and knows the seed; \
                 leave out --seed, so that it is secret",
                stage.name,
                counter("long_probes")
            );
        }
        if counter("whole_full") > 0 {
            warn!(
                "{}: {} packets went whole because the entry whose turn it was still waited for its packet; more `entries`, \
                  or a smaller `ttl`, let more be sliced",
                stage.name,
                counter("whole_full")
            );
        }
        let given_up = ["payloads_expired", "payloads_overdue", "payloads_left_at_end"].map(counter);
        if given_up.iter().sum::<u64>() > 0 {
            let [turns, time, end] = given_up;
            warn!(
                "{}: {} payloads were given up because their packets did not come back ({turns} after `ttl` turns, {time} \
                  after a time, {end} at the end): the functions dropped them, or had them for too long",
                stage.name,
                turns + time + end
            );
        }
        if counter("refused") > 0 {
            warn!(
                "{}: {} packets could not be sent; was the interface down?",
                stage.name,
                counter("refused")
            );
        }
    }
}

/// Delay of packets beyond their due time, all ends of the pipeline together.
pub(crate) fn excess(report: &RunReport) -> Option<Histogram> {
    let mut all = report.stages.iter().filter_map(|s| s.excess.as_ref());
    let mut sum = all.next()?.clone();
    all.for_each(|h| sum.merge(h));
    Some(sum)
}

/// A histogram of times as JSON.
pub(crate) fn delay_json(histogram: &Histogram) -> Value {
    let ns = |q| histogram.quantile(q).map(|v| v.round() as u64);
    json!({
        "mean": histogram.mean(),
        "p50": ns(0.5),
        "p90": ns(0.9),
        "p99": ns(0.99),
        "p999": ns(0.999),
        "max": histogram.max(),
    })
}

/// Its figures as rows of a table.
pub(crate) fn delay_rows(t: &mut Table, histogram: &Histogram) {
    t.title("Later than due");
    t.row(["mean", &time(histogram.mean())]);
    t.row(["median", &time(histogram.quantile(0.5))]);
    t.row(["99th percentile", &time(histogram.quantile(0.99))]);
    t.row(["longest", &time(histogram.max().map(|m| m as f64))]);
    // Powers of two from a microsecond on say enough about the shape.
    let mut bounds = [(0u64, 0u64); 16];
    for bucket in histogram.buckets() {
        let class = (bucket.from.unsigned_abs() / 1000)
            .checked_ilog2()
            .map_or(0, |n| n as usize + 1)
            .min(bounds.len() - 1);
        if let Some((n, _)) = bounds.get_mut(class) {
            *n += bucket.count;
        }
    }
    for (class, (n, _)) in bounds.iter().enumerate().filter(|(_, (n, _))| *n > 0) {
        let upper = 1000u64 << class;
        let label = if class + 1 == bounds.len() {
            "more".to_owned()
        } else {
            format!("below {}", time(Some(upper as f64)))
        };
        t.row([&label, &count(*n)]);
    }
}

/// Writes the log of polls.
pub(crate) fn write_poll_log(log: &PollLog, path: &Path) -> anyhow::Result<()> {
    let failed = || format!("{}: the log of polls can't be written", path.display());
    let file = std::fs::File::create(path).with_context(failed)?;
    log.write(std::io::BufWriter::new(file)).with_context(failed)?;
    if log.missed() > 0 {
        warn!("{}: {} polls found no room; --poll-log-max makes more", path.display(), log.missed());
    }
    Ok(())
}

/// True where packets go to stdout, so that results must not.
pub(crate) fn to_stdout(plan: &Plan) -> bool {
    plan.stages.iter().any(|s| {
        s.role == Role::Sink
            && s.kind.group == Group::Port
            && s.settings.file("path").is_some_and(|p| p.as_os_str() == "-")
    })
}
