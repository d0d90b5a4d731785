//! `slipstream reframe`: packets of a flow back to back, between two captures.

use std::any::Any;
use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use slipstream::io::capture::CaptureReader;
use slipstream::new_file::is_stdout;
use slipstream::reframe::compress::GroStats;
use slipstream::reframe::{AutoStats, Cause, ClassStats, ReframeConfig, ReframeStats};
use slipstream::runtime::{Destination, Origin, Pace, Replay, ReplayReport, Stamp};
use slipstream_report::{Table, count, number, time};

use super::{Outcome, checked, ratio, reframe_live, report_backwards, report_damage};
use crate::check;
use crate::cli;
use crate::live::run_error;
use crate::port::{Input, Output};
use crate::replace::refuse_shared;
use crate::traces::{DamagedAt, Traces};
use crate::ui::{self, Progress};
use crate::units::Duration;

pub(super) fn run(args: &cli::Reframe) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    if is_stdout(&args.output) {
        ui::refuse_terminal()?;
    }
    let config = config(args)?;
    let pace = match args.pace {
        cli::Pace::Fast => Pace::Fast,
        cli::Pace::Real => Pace::Real,
    };
    if pace == Pace::Real && (args.workers > 1 || args.turns > 1 || args.preload) {
        bail!("--pace real goes with one worker and without --preload and --loop");
    }
    if reframe_live::is_live(args) {
        if pace == Pace::Real {
            bail!("--pace is for captures: a live port follows the wall clock");
        }
        let live = reframe_live::run(args)?;
        let outcome = print(args, &config, &checks, &live.report, None, Some(&live));
        // The error that ended the run is told rather than a check that can't be made.
        return live.error.map_or(outcome, Err);
    }
    crate::live::options(&args.live, false)?;
    let mut at = None;
    let replay = Replay::new(&config)?.workers(usize::from(args.workers)).pace(pace);
    let Some((first, others)) = args.inputs.split_first() else { bail!("no input was named") };
    let input = Input::open(first)?;
    let format = input.format();
    let origin: Origin = if others.is_empty() && args.selection.is_everything() {
        input.into()
    } else {
        // Rules look at the header that makes the flow.
        let (header, strict) = (config.encapsulation, args.damage.strict);
        let traces = Traces::new(input, others, &args.selection, header, strict)?;
        at = Some(traces.damaged());
        Origin::records(traces)
    };
    refuse_rules(args)?;
    refuse_a_last_input(args)?;
    let out = outlet(Output::create(&args.output, format)?, args.stamp);
    let (report, damaged);
    {
        let progress = Progress::new("reframing");
        let interrupted = ui::interrupts()?;
        let mut tick = |share| {
            progress.at(share);
            if interrupted.load(Ordering::Relaxed) {
                ControlFlow::Break(())
            } else {
                ControlFlow::Continue(())
            }
        };
        if args.preload || args.turns > 1 {
            let origin = origin.preloaded(args.turns)?;
            damaged = damage(origin.details(), args)?;
            let mut driver = replay.between(origin, out)?;
            report = driver.run(&mut tick)?;
        } else {
            let mut driver = replay.between(origin, out)?.strict(args.damage.strict);
            report = driver.run(&mut tick).map_err(run_error)?;
            damaged = driver.captures().next().map_or(Ok(None), |r| report_damage(r, args.damage.strict))?;
        }
    }
    let damaged = damaged.or_else(|| at.as_ref().and_then(DamagedAt::byte));
    print(args, &config, &checks, &ReplayReport::from(&report), damaged, None)
}

/// Refuses to replace a file of rules. A capture may take the place of its own input.
fn refuse_rules(args: &cli::Reframe) -> anyhow::Result<()> {
    let rules: Vec<_> = args.stage.settings.files(Path::new("")).map(|(_, file)| file).collect();
    let rules = rules.iter().map(PathBuf::as_path).chain(args.selection.rules_file());
    let output = Some(args.output.as_path()).filter(|output| output.as_os_str() != "null");
    refuse_shared([("OUT", output)], rules)
}

/// Refuses to replace what may be an input that nobody meant to be the output: the last of the names that a
/// shell makes of `*.pcap`.
fn refuse_a_last_input(args: &cli::Reframe) -> anyhow::Result<()> {
    let out = &args.output;
    let has_content = || fs::metadata(out).is_ok_and(|there| there.is_file() && there.len() > 0);
    if args.inputs.len() > 1 && !args.overwrite && may_be_a_pattern(&args.inputs, out) && has_content() {
        bail!(
            "OUT {}: is there already, and of several names the last is the output, not an input; name another \
             one behind the inputs, or replace this one with --overwrite",
            out.display()
        );
    }
    Ok(())
}

/// Returns true if a shell can have made these names of one pattern: they are of one folder, and each is
/// another one.
fn may_be_a_pattern(inputs: &[PathBuf], out: &Path) -> bool {
    let names: BTreeSet<&Path> = inputs.iter().map(PathBuf::as_path).chain([out]).collect();
    names.len() == inputs.len() + 1 && inputs.iter().all(|input| input.parent() == out.parent())
}

/// The byte at which the capture behind a source is damaged, if it is.
fn damage(details: Option<&dyn Any>, args: &cli::Reframe) -> anyhow::Result<Option<u64>> {
    let reader = details.and_then(|d| d.downcast_ref::<CaptureReader>());
    reader.map_or(Ok(None), |reader| report_damage(reader, args.damage.strict))
}

/// Prints what happened, and checks what the user asked for.
fn print(
    args: &cli::Reframe,
    config: &ReframeConfig,
    checks: &[check::Check],
    report: &ReplayReport,
    truncated_at_byte: Option<u64>,
    live: Option<&reframe_live::Live>,
) -> anyhow::Result<Outcome> {
    report_backwards(report.clock_backwards);
    let result = as_json(args, config, report, truncated_at_byte, live);
    let text = match args.reporting.format {
        cli::Format::Json => serde_json::to_string_pretty(&result)?,
        cli::Format::Table => as_table(args, config, report, live),
    };
    if is_stdout(&args.output) {
        ui::say(&text);
    } else {
        ui::print(text)?
    }
    if report.interrupted {
        return Ok(Outcome::Interrupted);
    }
    checked(checks, &result)
}

/// The place that packets leave for.
fn outlet(output: Output, stamp: cli::Stamp) -> Destination {
    let stamp = match stamp {
        cli::Stamp::Release => Stamp::Release,
        cli::Stamp::Arrival => Stamp::Arrival,
    };
    match output {
        Output::Null => Destination::nowhere(),
        Output::Capture(writer) => Destination::capture(*writer, stamp),
    }
}

fn config(args: &cli::Reframe) -> anyhow::Result<ReframeConfig> {
    ReframeConfig::from_settings(&args.stage.settings, Path::new("")).map_err(|error| match error.setting {
        Some(name) => {
            let option = format!("--{}", name.replace('_', "-"));
            match &error.hint {
                Some(hint) => anyhow!("{option}: {error}; {hint}"),
                None => anyhow::Error::new(error).context(option),
            }
        }
        None => error.into(),
    })
}

fn as_json(
    args: &cli::Reframe,
    config: &ReframeConfig,
    report: &ReplayReport,
    damage: Option<u64>,
    live: Option<&reframe_live::Live>,
) -> Value {
    let stats = &report.stats;
    // A name on Linux is bytes, which text may show only in part.
    let inputs: Vec<_> = args.inputs.iter().map(|p| p.display().to_string()).collect();
    let input = match inputs.as_slice() {
        [one] => json!(one),
        several => json!(several),
    };
    let mut result = json!({ "schema": 1, "input": input, "output": args.output.display().to_string() });
    if let Some(map) = result.as_object_mut() {
        map.extend(stats.to_json(config));
    }
    let more = json!({
        "clock_backwards": report.clock_backwards,
        "truncated_at_byte": damage,
        "interrupted": report.interrupted,
        "workers": args.workers,
        "elapsed_ns": report.elapsed_ns,
        "cpu_ns": report.cpu_ns,
    });
    if let (Some(map), Value::Object(more)) = (result.as_object_mut(), more) {
        map.extend(more);
    }
    if let (Some(live), Some(map)) = (live, result.as_object_mut()) {
        map.insert("excess_delay_ns".into(), live.excess.as_ref().map(crate::live::delay_json).into());
        map.insert("lost_before".into(), live.lost_before.into());
        if live.not_sent > 0 {
            map.insert("dropped".into(), json!({ "not_sent": live.not_sent }));
        }
    }
    result
}

fn as_table(
    args: &cli::Reframe,
    config: &ReframeConfig,
    report: &ReplayReport,
    live: Option<&reframe_live::Live>,
) -> String {
    let stats = &report.stats;
    let total = stats.total();
    let mut t = Table::default();
    let inputs: Vec<_> = args.inputs.iter().map(|p| p.display().to_string()).collect();
    t.title(format!("{} → {}", inputs.join(", "), args.output.display()));
    t.row(["", "before", "after"]);
    t.row(["packets", &count(stats.packets_in), &count(stats.packets_out)]);
    t.row(["spatial locality factor (SLF)", &number(stats.slf_in(), 3), &number(stats.slf_out(), 3)]);
    train_rows(&mut t, &total);
    added_delay_rows(&mut t, &total);
    if let Some(price) = stats.prices_ns.first() {
        t.row(["price of a packet more in a train, at the end", &time(Some(*price as f64))]);
    }
    for auto in &stats.auto {
        let of = match config.class_names().nth(usize::from(auto.class)) {
            Some(name) if !config.classes.is_empty() => format!(" of class {name}"),
            _ => String::new(),
        };
        t.row([&format!("hold{of} at the end"), &time(Some(auto.hold_ns as f64))]);
        t.row([&format!("changes of the hold{of}"), &count(auto.changes)]);
    }
    if let Some(excess) = live.and_then(|l| l.excess.as_ref()) {
        crate::live::delay_rows(&mut t, excess);
    }
    stats.auto.iter().for_each(|auto| other_holds(&mut t, auto));
    if let Some(gro) = &stats.gro {
        super_frames(&mut t, gro);
    }
    t.title("Also");
    t.row(["held at most", &count(u64::from(stats.held_max))]);
    for (label, n) in [
        ("bypassed", total.packets_bypassed),
        ("coalesced", total.packets_coalesced),
        ("passed through unclassified", stats.unclassified),
        ("still held at the end", stats.held.into()),
        ("not sent", live.map_or(0, |l| l.not_sent)),
        ("lost before they came in", live.map_or(0, |l| l.lost_before)),
    ] {
        if n > 0 {
            t.row([label, &count(n)]);
        }
    }
    let per_packet = ratio(report.cpu_ns, stats.packets_in);
    t.row(["CPU a packet", &time(per_packet)]);
    if !config.classes.is_empty() {
        class_rows(&mut t, config, stats);
    }
    t.render(ui::columns())
}

/// The rows about trains: their number and lengths, and why they left.
fn train_rows(t: &mut Table, total: &ClassStats) {
    t.title("Trains");
    t.row(["trains", &count(total.trains)]);
    t.row(["packets a train, mean", &number(total.mean_train(), 3)]);
    let packets = (total.packets_out + total.packets_coalesced).max(1);
    for (label, range) in [
        ("of 1", 1..2),
        ("of 2 to 3", 2..4),
        ("of 4 to 7", 4..8),
        ("of 8 to 15", 8..16),
        ("of 16 and more", 16..257),
    ] {
        let in_range = total.lengths.iter().enumerate().filter(|(n, _)| range.contains(n));
        let n: u64 = in_range.map(|(n, count)| n as u64 * count).sum();
        let share = format!("{:.1} %", n as f64 * 100.0 / packets as f64);
        t.row([&format!("packets in trains {label}"), &share]);
    }
    for (cause, n) in Cause::ALL.iter().zip(total.released).filter(|(_, n)| *n > 0) {
        t.row([&format!("released by {}", cause.name()), &count(n)]);
    }
}

/// The rows about the time for which packets were held.
fn added_delay_rows(t: &mut Table, total: &ClassStats) {
    t.title("Added delay");
    let d = &total.delay;
    t.row(["mean", &time(d.mean())]);
    t.row(["median", &time(d.quantile(0.5))]);
    t.row(["99th percentile", &time(d.quantile(0.99))]);
    t.row(["longest", &time(d.max().map(|m| m as f64))]);
    t.row(["futile wait (trains of one), mean", &time(ratio(total.futile_wait_ns, total.futile_trains))]);
    t.row(["trains that waited in vain", &count(total.futile_trains)]);
}

/// The rows about the holds that a class with a hold of its own choice has tried.
fn other_holds(t: &mut Table, auto: &AutoStats) {
    t.title("Other holds, for one flow in some, of late");
    t.row(["hold", "mean train", "delay, mean", "futile wait a packet"]);
    for (hold_ns, o) in &auto.tried {
        t.row([
            Duration(*hold_ns).to_string(),
            number(ratio(o.packets, o.trains), 3),
            time(ratio(o.delay_ns, o.packets)),
            time(ratio(o.futile_wait_ns, o.packets)),
        ]);
    }
}

/// The rows about classes.
fn class_rows(t: &mut Table, config: &ReframeConfig, stats: &ReframeStats) {
    t.title("Classes");
    t.row(["", "packets", "SLF before", "after", "mean train", "delay, mean", "futile wait, mean"]);
    for (name, s) in config.class_names().zip(&stats.classes) {
        t.row([
            name.to_owned(),
            count(s.packets_in),
            number(s.slf_in(), 3),
            number(s.slf_out(), 3),
            number(s.mean_train(), 3),
            time(s.delay.mean()),
            time(ratio(s.futile_wait_ns, s.futile_trains)),
        ]);
    }
    for (class, flows) in config.classes.iter().zip(&stats.heavy_flows) {
        if let Some(flows) = flows {
            t.row([&format!("heavy flows of {} at the end", class.name), &count(*flows as u64)]);
        }
    }
}

/// The rows about super-frames.
fn super_frames(t: &mut Table, gro: &GroStats) {
    t.title("Super-frames");
    t.row(["super-frames", &count(gro.super_frames)]);
    t.row(["packets in them", &count(gro.segments)]);
    t.row(["packets a super-frame, mean", &number(gro.mean_segments(), 3)]);
    t.row(["bytes of super-frames", &count(gro.bytes)]);
    for (reason, packets) in gro.refused() {
        t.row([&format!("not joined: {}", reason.name().replace('_', " ")), &count(packets)]);
    }
}
