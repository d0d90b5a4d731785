//! Common parts of the verbs that run by the wall clock.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Value, json};
use slipstream::io::offloads::Switched;
use slipstream::io::{confine, memory};
use slipstream::pipeline::{Group, Plan, PlannedStage, ShardPlan};
use slipstream::runtime::{Driver, LiveOptions, RunError, RunReport, StageReport};
use slipstream::seed::Seeds;
use slipstream_report::{Table, count, time};
use slipstream_stats::Histogram;
use tracing::{error, info, warn};

use crate::cli;
use crate::log::LIVE;
use crate::losses;
use crate::operate::Shared;
use crate::operate::notify::Manager;
use crate::operate::poll_log::Keeping;
use crate::operate::state::{self, Saver};
use crate::types;
use crate::ui::{self, Progress, Request};
use crate::watch::Watcher;

/// Packets that are held may leave so much later, without `--coalesce`.
const COALESCE: Duration = Duration::from_micros(40);

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

/// Refuses several threads for a live pipeline that runs on one, before a port is open: another process may
/// come to it, and would have to begin anew.
pub(crate) fn refuse_threads(plan: &Plan, workers: u16) -> anyhow::Result<()> {
    match plan.one_thread() {
        Some(one) if workers > 1 && is_live(plan) => Err(RunError::Alone(one.why()).into()),
        _ => Ok(()),
    }
}

/// The settings of a live run; an error where they are given for one that is not.
pub(crate) fn options(args: &cli::Live, live: bool) -> anyhow::Result<LiveOptions> {
    if !live && (args.duration.is_some() || args.packets.is_some() || args.busy_poll) {
        bail!("--duration, --packets and --busy-poll are for live ports, such as af_packet:INTERFACE");
    }
    if !live && args.coalesce.is_some() {
        bail!("--coalesce is for live ports, such as af_packet:INTERFACE: a replay isn't woken by packets");
    }
    if !live && args.fix_offloads {
        bail!("--fix-offloads is for live ports of type af_packet or af_xdp, such as af_packet:INTERFACE");
    }
    if !live && args.control.is_some() {
        bail!("--control is for live ports, such as af_packet:INTERFACE");
    }
    if !live && (args.shards > 1 || !args.cores.is_empty() || args.priority.is_some() || args.lock_memory) {
        bail!(
            "--shards, --cores, --priority and --lock-memory are for live ports; a replay takes several threads with --workers N"
        );
    }
    if args.shards > 1 && args.packets.is_some() {
        bail!("--packets counts what one thread takes; with --shards a run ends after --duration");
    }
    if args.cores.len() > usize::from(args.shards) {
        bail!("--cores has more numbers than there are shards (--shards {})", args.shards);
    }
    if !args.cores.is_empty() && args.cores.len() < usize::from(args.shards) {
        let why = "shards take them in turn, and those of one core share its time";
        warn!("--cores has fewer numbers than there are shards (--shards {}): {why}", args.shards);
    }
    let options = LiveOptions {
        duration: args.duration.map(|d| Duration::from_nanos(d.0)),
        packets: args.packets.map(|n| n.0),
        busy_poll: args.busy_poll,
        coalesce: args.coalesce.map_or(COALESCE, |time| Duration::from_nanos(time.0)),
        cores: args.cores.clone(),
        priority: args.priority,
        ..LiveOptions::default()
    };
    // Once ports are open, packets wait for them.
    options.check_cores()?;
    if args.lock_memory {
        memory::lock_all().context("--lock-memory")?;
    }
    Ok(options)
}

/// Switches off, where that was asked for, what interfaces of a plan do to packets; dropped, it is as it was.
pub(crate) fn fix_offloads(plan: &Plan, args: &cli::Live) -> anyhow::Result<Vec<Switched>> {
    let ports = plan.stages.iter().filter(|s| s.kind.properties.receives.is_some());
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

/// The run of a plan, in shards where that was asked for: then also how packets are led to them.
pub(crate) fn driver(
    plan: &Plan,
    args: &cli::Live,
    workers: u16,
    seed: Option<u64>,
) -> anyhow::Result<(Driver, Option<ShardPlan>)> {
    let seeds = || seeds(plan, seed);
    if args.shards == 1 {
        return Ok((types::driver(plan.build(seeds())?).workers(usize::from(workers)), None));
    }
    if workers > 1 {
        bail!(
            "--shards and --workers: a pipeline runs whole on each shard, or in sections on the workers, not both"
        );
    }
    let sharded = plan.in_shards(usize::from(args.shards))?;
    let mut drivers = sharded.build(seeds)?.into_iter().map(types::driver);
    let first = drivers.next().context("no shard")?;
    Ok((first.beside(drivers.collect()), Some(sharded)))
}

/// The report of a run, and the error that ended it early, if one did: it is told behind the report.
pub(crate) struct Ended {
    pub(crate) report: RunReport,
    pub(crate) error: Option<anyhow::Error>,
}

/// True where a hang-up has the pipeline read its configuration anew: it has a file, or a stage has.
pub(crate) fn may_reload(plan: &Plan, has_file: bool) -> bool {
    let reads = |s: &PlannedStage| s.kind.properties.reload.is_some_and(|r| (r.reads_files)(&s.settings));
    is_live(plan) && (has_file || plan.stages.iter().any(reads))
}

/// Has the configuration read anew on a thread of its own, so that packets don't wait. Requests that come
/// meanwhile are one.
struct Reloader {
    operation: Shared,
    manager: Arc<Manager>,
    under_way: Arc<AtomicBool>,
    again: bool,
}

impl Reloader {
    /// A hang-up came, or there was one before that is waiting.
    fn start(&mut self) {
        self.again = self.under_way.swap(true, Ordering::AcqRel);
        if self.again {
            return;
        }
        let (operation, manager, under_way) =
            (self.operation.clone(), self.manager.clone(), self.under_way.clone());
        let reload = move || {
            // The manager takes no note for an answer that is older than its request.
            let now_us = slipstream::clock::monotonic().0.div_ceil(1000);
            manager.tell(&format!("RELOADING=1\nMONOTONIC_USEC={now_us}"));
            // It is logged, whatever comes of it.
            let _ = operation.reload();
            manager.tell("READY=1");
            under_way.store(false, Ordering::Release);
        };
        if let Err(error) = thread::Builder::new().name("reload".into()).spawn(reload) {
            self.under_way.store(false, Ordering::Release);
            warn!(target: LIVE, "hang-up: nothing is read anew: there is no thread for it: {error}");
        }
    }
}

/// Time between two notes to the service manager that a start goes on.
const STARTS: Duration = Duration::from_secs(1);
/// Such a note: the start may take half a minute more from now on, however long it has taken.
const STARTS_STILL: &str = "EXTEND_TIMEOUT_USEC=30000000";

/// Runs the pipeline of a plan until it ends or is interrupted.
pub(crate) fn run(
    driver: Driver,
    plan: &Plan,
    operation: &Shared,
    signals: &ui::LiveSignals,
) -> anyhow::Result<(Driver, Ended)> {
    let mut run = driver.monitor(operation.monitor.clone());
    let manager = Arc::new(Manager::from_environment());
    if let Some(state) = &operation.state {
        let mut told = slipstream::clock::now();
        let mut goes_on = || {
            if told.elapsed() >= STARTS {
                told = slipstream::clock::now();
                manager.tell(STARTS_STILL);
            }
            ui::unless(signals.stop())
        };
        state.restore(&mut run, plan, operation.session_log.as_ref(), &mut goes_on)?;
    }
    // A live run has its log: a terminal that is stopped must not stop the packets.
    let live = is_live(plan);
    let progress = (!live).then(|| Progress::new("running"));
    let (kept, under_way) = (operation.clone(), Arc::default());
    let mut reloader = Reloader { operation: kept, manager: manager.clone(), under_way, again: false };
    let watcher = if live {
        crate::log::dont_wait()?;
        tell_start(plan);
        let (operation, manager) = (operation.clone(), manager.clone());
        let held = operation.clone();
        let hold = move || held.longest_hold();
        let (watchdog, mut saver) = (manager.has_watchdog(), Saver::new(operation, state::EVERY));
        let mut poll_log = Keeping::new(reloader.operation.clone());
        let each = move |report: Option<&RunReport>| {
            if watchdog && report.is_some() {
                manager.tell("WATCHDOG=1");
            }
            report.into_iter().for_each(|report| poll_log.look(report));
            saver.save_if_due();
        };
        let (monitor, asked) = (reloader.operation.monitor.clone(), Arc::clone(&signals.statistics));
        Some(Watcher::start(monitor, plan, hold, asked, each)?)
    } else {
        None
    };
    if live && let Err(error) = confine::confine() {
        info!(target: LIVE, "system calls that a run has no use for are not refused: {error}");
    }
    manager.tell("READY=1\nSTATUS=running");
    let mut stopped = false;
    let result = run.run(&mut |share| {
        if let Some(progress) = &progress {
            progress.at(share);
        }
        match signals.request() {
            Request::Stop => {
                stopped = true;
                return ControlFlow::Break(());
            }
            Request::Reload => reloader.start(),
            Request::Nothing if reloader.again => reloader.start(),
            Request::Nothing => {}
        }
        ControlFlow::Continue(())
    });
    drop(progress);
    manager.tell_end();
    drop(watcher);
    let saved = operation.save_ended(&mut run, plan);
    if let (Err(_), Err(why)) = (&result, &saved) {
        // The run's own error is what it ends with.
        warn!(target: LIVE, "the state could not be saved: {why:#}");
    }
    let (report, error) = match (result, run.take_partial()) {
        (Ok(report), _) => (report, saved.err()),
        (Err(error), Some(report)) => (report, Some(error.into())),
        (Err(error), None) => return Err(run_error(error)),
    };
    if live {
        tell_end(&report, run.live_options(), stopped, error.as_ref());
    }
    losses::warn_of(&report);
    crate::log::drain();
    Ok((run, Ended { report, error }))
}

/// Logs that a run begins, and by which ports.
fn tell_start(plan: &Plan) {
    let port = |s: &PlannedStage| {
        let interface = s.settings.text("interface");
        let behind = if interface.is_empty() { String::new() } else { format!(":{interface}") };
        format!("{}={}{behind}", s.name, s.kind.name)
    };
    let ports: Vec<_> = plan.stages.iter().filter(|s| s.kind.group == Group::Port).map(port).collect();
    let (version, pid, stages) = (env!("CARGO_PKG_VERSION"), std::process::id(), plan.stages.len());
    info!(target: LIVE, version, pid, stages, ports = ports.join(" "), "running");
}

pub(crate) fn is_port(stage: &StageReport) -> bool {
    types::stage_type(stage.kind).is_some_and(|t| t.group == Group::Port)
}

/// Packets that have come in.
pub(crate) fn packets_in(report: &RunReport) -> u64 {
    report.sources.iter().filter(|s| !is_detour(report, &s.name)).map(|s| s.packets).sum()
}

/// True for a port to a process beside this one, from which packets come back on their way from another
/// port to another: they have come in once, and leave once.
pub(crate) fn is_detour(report: &RunReport, name: &str) -> bool {
    let beside = |kind| types::stage_type(kind).is_some_and(|t| t.properties.faces_a_process);
    let both = report.sources.iter().any(|s| s.name == name && beside(s.kind))
        && report.stages.iter().any(|s| s.name == name && beside(s.kind));
    both && report.sources.iter().any(|s| !beside(s.kind))
        && report.stages.iter().any(|s| is_port(s) && !beside(s.kind))
}

/// Logs that it has ended, and why.
fn tell_end(report: &RunReport, limits: &LiveOptions, stopped: bool, error: Option<&anyhow::Error>) {
    let packets = packets_in(report);
    let dropped: u64 = report.stages.iter().map(|s| s.drops.total()).sum();
    let seconds = format!("{:.3}", report.elapsed_ns as f64 / 1e9);
    match error {
        Some(why) => error!(target: LIVE, reason = ui::in_words(why), packets, dropped, seconds, "ended"),
        None => {
            let reason = reason(report, limits, stopped);
            info!(target: LIVE, reason, packets, dropped, seconds, "ended");
        }
    }
}

/// The reason why a run ended well.
fn reason(report: &RunReport, limits: &LiveOptions, stopped: bool) -> &'static str {
    // Those that come back from a process beside this one count here, as they do for the driver.
    let packets: u64 = report.sources.iter().map(|s| s.packets).sum();
    let elapsed = Duration::from_nanos(report.elapsed_ns);
    if stopped {
        "it was asked to"
    } else if limits.packets.is_some_and(|most| packets >= most) {
        "as many packets as it was to take have come (--packets)"
    } else if limits.duration.is_some_and(|most| elapsed >= most) {
        "its time is over (--duration)"
    } else {
        "nothing more comes, or nobody reads what leaves"
    }
}

/// The error of a run, with the option that made it one.
pub(crate) fn run_error(error: RunError) -> anyhow::Error {
    match error {
        RunError::Damaged { .. } => anyhow!("{error} (--strict)"),
        _ => error.into(),
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
