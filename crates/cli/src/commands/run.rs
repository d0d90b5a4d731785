//! `slipstream run`: any pipeline.

use std::path::Path;
use std::sync::Mutex;

use anyhow::bail;
use serde_json::{Value, json};
use slipstream::pipeline::{EventKind, Plan, PlannedStage};
use slipstream::runtime::{ContextCounts, Driver, Pace};
use slipstream::runtime::{RunReport, ServiceTimeReport, SourceReport, StageReport};
use slipstream::stage::Drops;
use slipstream_report::{Table, count, time};
use tracing::warn;

use super::{Outcome, checked, pipeline, ratio, report_backwards, report_damage};
use crate::check;
use crate::cli;
use crate::live::{self, is_detour, is_port, packets_in};
use crate::metrics;
use crate::operate::session_log::{SessionLog, Target};
use crate::operate::sessions::Sessions;
use crate::operate::state::Keeper;
use crate::operate::{Operation, Shared, control, poll_log};
use crate::port::{is_special, refuse_misspelt, refuse_unbuilt};
use crate::replace::{Replacement, refuse_shared, would_replace};
use crate::types;
use crate::ui::{self, Kept, LiveSignals};
use crate::units::to_u32;

/// Warns of options that have nothing to be about in this pipeline.
fn tell_idle(plan: &Plan, args: &cli::Run) {
    let has = |kind| plan.stages.iter().any(|stage| stage.kind.properties.events == Some(kind));
    let has_tables = plan.stages.iter().any(|stage| !stage.kind.properties.tables.is_empty());
    for (given, has, option, what) in [
        (
            args.session_log.is_some(),
            has(EventKind::Sessions),
            "--session-log",
            "a `nat`, whose sessions it tells of",
        ),
        (args.log_denied, has(EventKind::Denials), "--log-denied", "a `firewall`, whose denials it tells of"),
        (args.state.is_some(), has_tables, "--state", "a stage with a table to be kept"),
    ] {
        if given && !has {
            warn!("{option} has no effect: the pipeline lacks {what}");
        }
    }
}

pub(super) fn run(args: &cli::Run) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    [&args.pipeline.input, &args.pipeline.output]
        .into_iter()
        .flatten()
        .try_for_each(|name| refuse_unbuilt(name).and_then(|()| refuse_misspelt(name)))?;
    // Whoever asks for statistics may do so while a large configuration is still being read.
    ui::user_signals()?;
    let plan = ui::reading(|| pipeline::plan(&args.pipeline))?;
    let is_live = live::is_live(&plan);
    let mut options = live::options(&args.live, is_live)?;
    refuse_options(args, &plan)?;
    let again = args.pipeline.clone();
    let read = move || read_again(&again);
    let mut operation = Operation::new(&plan, read, |report| as_json(report, Vec::new()));
    operation.state =
        args.state.as_deref().map(|path| Keeper::new(path, args.state_unreadable)).transpose()?;
    options.operator = operation.operator.clone();
    options.fast = args.pace == Some(cli::Pace::Fast);
    if args.poll_log.is_some() {
        options.poll_log = Some(to_u32(args.poll_log_max, "--poll-log-max")? as usize);
    }
    // Where it can't be written, that is said now and not after hours.
    let poll_log =
        args.poll_log.as_deref().map(|path| Replacement::create("--poll-log", path)).transpose()?;
    operation.poll_log = poll_log.as_ref().map(poll_log::Keeper::new);
    let to_stdout = plan.writes_stdout();
    if to_stdout {
        ui::refuse_terminal()?;
    }
    tell_idle(&plan, args);
    // Before anything is changed that has to be put back, and before files are opened: a pipe may have nobody
    // at its other end for a while.
    let signals = LiveSignals::new(live::may_reload(&plan, args.pipeline.config.is_some()))?;
    let _offloads = Kept::new(live::fix_offloads(&plan, &args.live)?);
    let (run, sharded) = live::driver(&plan, &args.live, args.workers, args.seed)?;
    operation.shards = sharded.map(Mutex::new);
    run.notes(&plan).iter().for_each(|(stage, note)| warn!("{stage}: {note}"));
    let looks_up_apart = args.workers > 1 && run.has_contexts();
    let pace = if is_slowed_down(args, &plan) { Pace::Real } else { Pace::Fast };
    let mut driver = run.strict(args.damage.strict).live(options).pace(pace);
    let log = args.session_log.as_ref();
    operation.session_log = log.map(|target| SessionLog::start(target, driver.shards())).transpose()?;
    let operation = Shared::new(operation);
    if let Some(address) = args.metrics {
        let at = metrics::serve(address, operation.clone(), |report| as_json(report, Vec::new()))?;
        ui::tell_metrics(&format!("http://{at}/metrics"));
    }
    let socket =
        args.live.control.as_deref().map(|path| control::serve(path, operation.clone())).transpose()?;
    let socket = socket.map(Kept::new);
    let (operator, log) = (operation.operator.clone(), operation.session_log.clone());
    let sessions = Sessions::start(operator, &mut driver, &plan, log, args.log_denied)?;
    let (mut run, live::Ended { report, error }) = live::run(driver, &plan, &operation, &signals)?;
    drop(socket);
    // Nobody reads at stdout where the log of sessions got stuck there.
    let stuck = sessions.is_some_and(|sessions| !sessions.finish(&mut run, operation.state.is_some()));
    let poll_log = poll_log.zip(run.poll_log()).map_or(Ok(()), |(file, log)| poll_log::write(log, file));
    let damage = damage(&run, args.damage.strict)?;
    report_backwards(report.sources.iter().map(|s| s.clock_backwards).sum());
    // Ports close what they write to.
    drop(run);
    let mut result = as_json(&report, damage);
    if let (Some(closed), Some(all)) = (types::close(), result.as_object_mut()) {
        all.insert("dpdk".to_owned(), closed);
    }
    let text = match args.reporting.format {
        cli::Format::Json => serde_json::to_string_pretty(&result)?,
        cli::Format::Table => as_table(&report, looks_up_apart),
    };
    if to_stdout || stuck {
        ui::say(&text);
    } else {
        ui::print(text)?
    }
    if let Some(error) = error {
        return Err(error);
    }
    // The report is there nevertheless.
    poll_log?;
    if report.interrupted {
        return Ok(Outcome::Interrupted);
    }
    checked(&checks, &result)
}

/// Refuses options that don't go with the pipeline or with each other, and files that are in use.
fn refuse_options(args: &cli::Run, plan: &Plan) -> anyhow::Result<()> {
    let is_live = live::is_live(plan);
    live::refuse_threads(plan, args.workers)?;
    if !is_live && (args.state.is_some() || args.session_log.is_some() || args.log_denied) {
        bail!("--state, --session-log and --log-denied are for live ports, such as af_packet:INTERFACE");
    }
    refuse_shared(outputs(args), args.pipeline.config.as_deref())?;
    for (option, path) in outputs(args) {
        let used = path.and_then(|path| Some((path, plan.in_use(path)?)));
        used.map_or(Ok(()), |(path, used)| Err(would_replace(option, path, &used)))?;
    }
    if is_slowed_down(args, plan) && args.workers > 1 {
        bail!("--pace real goes with one worker where no port is live");
    }
    if args.poll_log.is_some() && !is_live {
        bail!("--poll-log is for live ports: a replay doesn't poll");
    }
    if args.poll_log.is_some() && args.live.shards > 1 {
        bail!("--poll-log is of one thread; leave out --shards");
    }
    Ok(())
}

/// Returns true for a replay that is to take as long as its capture did.
fn is_slowed_down(args: &cli::Run, plan: &Plan) -> bool {
    args.pace == Some(cli::Pace::Real) && !live::is_live(plan)
}

/// The plan as its files have it now, for a reload.
fn read_again(pipeline: &cli::PipelineArgs) -> anyhow::Result<Plan> {
    pipeline.config.as_deref().map_or(Ok(()), refuse_endless)?;
    let plan = super::pipeline::plan(pipeline)?;
    read_anew(&plan).try_for_each(refuse_endless)?;
    Ok(plan)
}

/// The captures that turned out to be damaged, each with the byte at which it is.
fn damage(run: &Driver, strict: bool) -> anyhow::Result<Vec<Value>> {
    let mut damage = Vec::new();
    for reader in run.captures() {
        if let Some(byte) = report_damage(reader, strict)? {
            damage.push(json!({ "file": reader.name(), "byte": byte }));
        }
    }
    Ok(damage)
}

/// Files that are made beside what stages write.
fn outputs(args: &cli::Run) -> [(&'static str, Option<&Path>); 4] {
    let sessions = match &args.session_log {
        Some(Target::Json(path)) => Some(path.as_path()),
        _ => None,
    };
    let [state, polls] = [&args.state, &args.poll_log].map(|path| path.as_deref());
    let control = args.live.control.as_deref();
    [("--state", state), ("--session-log", sessions), ("--poll-log", polls), ("--control", control)]
}

/// Files that a stage reads or writes.
fn files_of(stage: &PlannedStage) -> impl Iterator<Item = &Path> {
    let names = stage.kind.settings.iter().map(|setting| setting.name);
    names.filter_map(|name| stage.settings.file(name).or_else(|| stage.settings.rules_file(name)))
}

/// Files that stages read again at a reload.
fn read_anew(plan: &Plan) -> impl Iterator<Item = &Path> {
    let reads = |s: &&PlannedStage| s.kind.properties.reload.is_some_and(|r| (r.reads_files)(&s.settings));
    plan.stages.iter().filter(reads).flat_map(files_of)
}

/// Refuses to read a pipe, a socket or a device again: nobody knows whether it has an end, and a reload would
/// wait for it.
fn refuse_endless(path: &Path) -> anyhow::Result<()> {
    if is_special(path) {
        bail!("{}: this is no regular file, which alone can be read again", path.display());
    }
    Ok(())
}

fn counters(counters: &[(&'static str, u64)]) -> Value {
    Value::Object(counters.iter().map(|(name, n)| ((*name).to_owned(), (*n).into())).collect())
}

fn drops(drops: &Drops) -> Value {
    Value::Object(drops.iter().map(|(reason, n)| (reason.name().to_owned(), n.into())).collect())
}

fn all_drops(report: &RunReport) -> Drops {
    let mut all = Drops::default();
    report.stages.iter().for_each(|s| all.merge(&s.drops));
    all
}

fn packets_out(report: &RunReport) -> u64 {
    let out = report.stages.iter().filter(|s| is_port(s) && !is_detour(report, &s.name));
    out.map(|s| s.tally.packets - s.drops.total()).sum()
}

pub(super) fn as_json(report: &RunReport, damage: Vec<Value>) -> Value {
    let stage = |s: &StageReport| {
        json!({
            "name": s.name,
            "type": s.kind,
            "packets_in": s.tally.packets,
            "packets_out": s.tally.packets_out,
            "batches": s.tally.batches,
            "trains": s.tally.trains,
            "held": s.held,
            "busy_ns": s.tally.busy_ns,
            "dropped": drops(&s.drops),
            "excess_delay_ns": s.excess.as_ref().map(live::delay_json),
            "transit_ns": s.transit.as_ref().filter(|t| t.count() > 0).map(live::delay_json),
            "counters": counters(&s.counters),
            "report": s.report,
        })
    };
    let source = |s: &SourceReport| {
        json!({
            "name": s.name,
            "type": s.kind,
            "packets": s.packets,
            "clock_backwards": s.clock_backwards,
            "counters": counters(&s.counters),
        })
    };
    json!({
        "schema": 1,
        "packets_in": packets_in(report),
        "packets_out": packets_out(report),
        "dropped": drops(&all_drops(report)),
        "sources": report.sources.iter().map(source).collect::<Vec<_>>(),
        "stages": report.stages.iter().map(stage).collect::<Vec<_>>(),
        "damage": damage,
        "excess_delay_ns": live::excess(report).as_ref().map(live::delay_json),
        "own_time": report.service_time.as_ref().map(|own| json!({
            "elapsed_ns": own.elapsed_ns,
            "polls": own.polls,
            "interrupted": own.interrupted,
            "interruptions_ns": own.interruptions_ns,
            "sojourn_ns": live::delay_json(&own.sojourn),
            "probe_ns": live::delay_json(&own.probes),
        })),
        "flow_contexts": report.contexts.map(|contexts| json!({
            "lookups": contexts.lookups,
            "by_number": contexts.by_number,
            "begun": contexts.begun,
            "evicted": contexts.evicted,
            "without": contexts.without,
        })),
        "shards": (!report.shards.is_empty())
            .then(|| report.shards.iter().map(|shard| as_json(shard, Vec::new())).collect::<Vec<_>>()),
        "left_inside": report.live,
        "interrupted": report.interrupted,
        "elapsed_ns": report.elapsed_ns,
        "cpu_ns": report.cpu_ns,
    })
}

fn as_table(report: &RunReport, looks_up_apart: bool) -> String {
    let mut t = Table::default();
    t.title("Packets");
    t.row(["in", &count(packets_in(report))]);
    t.row(["out", &count(packets_out(report))]);
    for (reason, n) in all_drops(report).iter() {
        t.row([&format!("dropped: {reason}"), &count(n)]);
    }
    t.row(["CPU a packet", &time(ratio(report.cpu_ns, packets_in(report)))]);
    stage_rows(&mut t, &report.stages);
    if !report.shards.is_empty() {
        shard_rows(&mut t, &report.shards);
    }
    if let Some(excess) = live::excess(report) {
        live::delay_rows(&mut t, &excess);
    }
    if let Some(own) = &report.service_time {
        service_time_rows(&mut t, own);
    }
    if looks_up_apart && report.contexts.is_none() {
        t.title("Flow contexts");
        let why = "on several threads no two stages share a look-up, or all of theirs take more than \
                   `context_memory` gives";
        t.prose(["none", why]);
    }
    if let Some(contexts) = &report.contexts {
        context_rows(&mut t, contexts);
    }
    let sources = report.sources.iter().map(|s| (format!("{} (in)", s.name), &s.counters));
    let stages = report.stages.iter().map(|s| (s.name.clone(), &s.counters));
    for (title, counters) in sources.chain(stages).filter(|(_, counters)| !counters.is_empty()) {
        t.title(title);
        for (name, n) in counters {
            t.row([name.replace('_', " "), count(*n)]);
        }
    }
    t.render(ui::columns())
}

fn stage_rows(t: &mut Table, stages: &[StageReport]) {
    t.title("Stages");
    t.row(["", "type", "packets", "a batch", "a train", "wall ns a packet", "dropped"]);
    for s in stages {
        let mean = |n| ratio(s.tally.packets, n).map_or("–".into(), |v: f64| format!("{v:.1}"));
        t.row([
            s.name.clone(),
            s.kind.to_owned(),
            count(s.tally.packets),
            mean(s.tally.batches),
            mean(s.tally.trains),
            ratio(s.tally.busy_ns, s.tally.packets).map_or("–".into(), |v| format!("{v:.0}")),
            count(s.drops.total()),
        ]);
    }
}

fn shard_rows(t: &mut Table, shards: &[RunReport]) {
    t.title("Shards");
    t.row(["", "in", "out", "from others", "CPU"]);
    for (n, shard) in shards.iter().enumerate() {
        let handed: u64 = shard.sources.iter().filter_map(|s| s.counter("from_other_shards")).sum();
        t.row([
            n.to_string(),
            count(packets_in(shard)),
            count(packets_out(shard)),
            count(handed),
            time(Some(shard.cpu_ns as f64)),
        ]);
    }
}

fn service_time_rows(t: &mut Table, own: &ServiceTimeReport) {
    t.title("The engine's own time");
    t.row(["passed", &time(Some(own.elapsed_ns as f64))]);
    t.row(["polls", &count(own.polls)]);
    t.row(["interrupted", &count(own.interrupted)]);
    t.row(["left out for that", &time(Some(own.interruptions_ns as f64))]);
    t.row(["from arrival to the end of the poll", &time(own.sojourn.mean())]);
    t.row(["99th percentile", &time(own.sojourn.quantile(0.99))]);
}

fn context_rows(t: &mut Table, contexts: &ContextCounts) {
    t.title("Flow contexts");
    t.row(["trains looked up", &count(contexts.lookups)]);
    t.row(["of them by number", &count(contexts.by_number)]);
    t.row(["flows that began", &count(contexts.begun)]);
    t.row(["made room for others", &count(contexts.evicted)]);
    t.row(["trains without", &count(contexts.without)]);
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    /// A socket that takes the place of a file is replaced by it later, and the other way round.
    #[test]
    fn a_control_socket_has_a_name_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name).display().to_string();
        let (one, two) = (at("one"), at("two"));
        let refused = |options: &[&str]| {
            let words = ["slipstream", "run", "-e", "paced(rate=1kpps) -> nat(pool=[192.0.2.1])"];
            let cli = cli::Cli::try_parse_from(words.iter().chain(options)).unwrap();
            let cli::Verb::Run(args) = cli.verb else { panic!("this is another verb") };
            let plan = pipeline::plan(&args.pipeline).unwrap();
            refuse_options(&args, &plan).err().map(|why| why.to_string())
        };
        let told = refused(&["-o", "null", "--state", &one, "--control", &one]).unwrap();
        assert!(
            told.contains("--state ") && told.contains("--control ") && told.contains("replace"),
            "{told}"
        );
        let told = refused(&["-o", &one, "--control", &one]).unwrap();
        assert!(told.starts_with("--control ") && told.contains("would replace"), "{told}");
        assert_eq!(refused(&["-o", "null", "--state", &one, "--control", &two]), None);
    }
}
