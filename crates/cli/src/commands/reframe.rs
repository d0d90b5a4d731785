//! `slipstream reframe`: packets of a flow back to back, between two captures.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::Ordering;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use slipstream::pool::Pool;
use slipstream::reframe::{Admit, Cause, Class, ClassError, ClassStats, Policy, ReframeConfig, Treatment};
use slipstream::rules::Rule;
use slipstream::runtime::{CaptureSink, NullSink, Pace, Preload, Replay, ReplayReport, Sink, Stamp};
use slipstream_wire::Encapsulation;
use tracing::warn;

use super::{Outcome, reframe_live, report_damage};
use crate::check;
use crate::cli;
use crate::port::{AnySource, Input, Output};
use crate::table::{Table, count, number, plural, time};
use crate::ui::{self, Progress};
use crate::units::to_u32;

pub(super) fn run(args: &cli::Reframe) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(&args.reporting.fail_if)?;
    if args.output.as_os_str() == "-" {
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
        let outcome = report(args, &config, &checks, &live.report, None, Some(&live))?;
        return live.error.map_or(Ok(outcome), Err);
    }
    crate::live::options(&args.live, false)?;
    let replay = Replay::new(&config)?.workers(usize::from(args.workers)).pace(pace);
    let input = Input::open(&args.input)?;
    let mut output = Output::create(&args.output, input.format())?;
    let mut source = AnySource::new(input);
    let mut pool = Pool::new();
    let replayed;
    let mut sink = open_sink(&mut output, args.stamp);
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
            let mut preload = Preload::read(source.as_source(), &mut pool, args.turns)?;
            replayed = replay.run(&mut preload, pool, sink.as_sink(), &mut tick)?;
        } else {
            replayed = replay.run(source.as_source(), pool, sink.as_sink(), &mut tick)?;
        }
    }
    let truncated_at_byte = match source.reader() {
        Some(reader) => report_damage(reader, args.damage.strict)?,
        None => None,
    };
    // A file that holds only a part could be taken for the whole.
    if !replayed.interrupted {
        sink.finish()?;
    }
    report(args, &config, &checks, &replayed, truncated_at_byte, None)
}

/// Prints what happened, and checks what the user asked for.
fn report(
    args: &cli::Reframe,
    config: &ReframeConfig,
    checks: &[check::Check],
    report: &ReplayReport,
    truncated_at_byte: Option<u64>,
    live: Option<&reframe_live::Live>,
) -> anyhow::Result<Outcome> {
    if report.clock_backwards > 0 {
        warn!(
            "the times of {} ran backwards; they count as coming with the one before",
            plural(report.clock_backwards, "packet")
        );
    }
    let result = as_json(args, config, report, truncated_at_byte, live);
    let text = match args.reporting.format {
        cli::Format::Json => serde_json::to_string_pretty(&result)?,
        cli::Format::Table => as_table(args, config, report, live),
    };
    if args.output.as_os_str() == "-" {
        ui::say(&text);
    } else {
        ui::print(text)?
    }
    Ok(match check::failed(checks, &result)? {
        _ if report.interrupted => Outcome::Interrupted,
        Some(what) => Outcome::CheckFailed(what),
        None => Outcome::Done,
    })
}

/// The sink of a replay, and its end.
enum AnySink {
    Null(NullSink),
    Capture(Box<CaptureSink>),
}

fn open_sink(output: &mut Output, stamp: cli::Stamp) -> AnySink {
    let stamp = match stamp {
        cli::Stamp::Release => Stamp::Release,
        cli::Stamp::Arrival => Stamp::Arrival,
    };
    match std::mem::replace(output, Output::Null) {
        Output::Null => AnySink::Null(NullSink),
        Output::Capture(writer) => AnySink::Capture(Box::new(CaptureSink::new(*writer, stamp))),
    }
}

impl AnySink {
    fn as_sink(&mut self) -> &mut dyn Sink {
        match self {
            Self::Null(s) => s,
            Self::Capture(s) => s.as_mut(),
        }
    }

    fn finish(self) -> anyhow::Result<()> {
        if let Self::Capture(sink) = self {
            sink.into_writer().finish()?;
        }
        Ok(())
    }
}

fn config(args: &cli::Reframe) -> anyhow::Result<ReframeConfig> {
    let default = Treatment { hold_ns: args.hold.0, burst: args.burst, weight: 1, bypass: false };
    let config = ReframeConfig {
        capacity: to_u32(args.capacity, "--capacity")?,
        capacity_bytes: args.capacity_bytes.0,
        flows: to_u32(args.flows, "--flows")?,
        policy: match args.policy {
            cli::Policy::Oldest => Policy::Oldest,
            cli::Policy::Waiting => Policy::Waiting,
            cli::Policy::Shortest => Policy::Shortest,
        },
        admit: match args.admit {
            cli::Admit::Always => Admit::Always,
            cli::Admit::Second => Admit::Second,
        },
        bypass: rule(&args.bypass).context("--bypass")?,
        classes: classes(args, &default).context("--class")?,
        compress_ack: args.compress.contains(&cli::Compress::Ack),
        tcp_order: args.tcp_order,
        encapsulation: match args.tunnel {
            cli::Tunnel::Outer => Encapsulation::Outer,
            cli::Tunnel::Inner => Encapsulation::Inner,
        },
        default,
        ..ReframeConfig::default()
    };
    config.validate()?;
    Ok(config)
}

/// Rules, or a file of them behind an @.
fn rule(text: &str) -> anyhow::Result<Rule> {
    Ok(match text.strip_prefix('@') {
        Some(file) => Rule::parse_file(Path::new(file))?,
        None => Rule::parse(text)?,
    })
}

fn classes(args: &cli::Reframe, default: &Treatment) -> Result<Vec<Class>, ClassError> {
    args.class.iter().map(|text| Class::parse(text, default, Path::new(""))).collect()
}

fn ns(value: Option<f64>) -> Option<u64> {
    value.map(|v| v.round() as u64)
}

fn delay(stats: &ClassStats) -> Value {
    let d = &stats.delay;
    json!({
        "mean": d.mean(),
        "p50": ns(d.quantile(0.5)),
        "p90": ns(d.quantile(0.9)),
        "p99": ns(d.quantile(0.99)),
        "max": d.max(),
    })
}

fn released(stats: &ClassStats) -> Value {
    let causes = Cause::ALL.iter().zip(stats.released).map(|(c, n)| (c.name().to_owned(), n.into()));
    Value::Object(causes.collect::<Map<_, _>>())
}

fn lengths(stats: &ClassStats) -> Value {
    let bucket = |(length, n): (usize, &u64)| json!({ "from": length, "to": length, "count": n });
    stats.lengths.iter().enumerate().filter(|(_, n)| **n > 0).map(bucket).collect::<Vec<_>>().into()
}

fn class_json(name: &str, stats: &ClassStats) -> Value {
    json!({
        "name": name,
        "packets_in": stats.packets_in,
        "packets_out": stats.packets_out,
        "packets_coalesced": stats.packets_coalesced,
        "packets_bypassed": stats.packets_bypassed,
        "trains": stats.trains,
        "mean_train": stats.mean_train(),
        "train_lengths": lengths(stats),
        "delay_ns": delay(stats),
        "futile_wait_ns": stats.futile_wait_ns,
        "futile_trains": stats.futile_trains,
        "released": released(stats),
    })
}

fn class_names(config: &ReframeConfig) -> impl Iterator<Item = &str> {
    std::iter::once("default").chain(config.classes.iter().map(|c| c.name.as_str()))
}

fn as_json(
    args: &cli::Reframe,
    config: &ReframeConfig,
    report: &ReplayReport,
    damage: Option<u64>,
    live: Option<&reframe_live::Live>,
) -> Value {
    let stats = &report.stats;
    let total = stats.total();
    let mut result = json!({
        "schema": 1,
        "input": args.input,
        "output": args.output,
        "packets_in": stats.packets_in,
        "packets_out": stats.packets_out,
        "packets_coalesced": total.packets_coalesced,
        "packets_bypassed": total.packets_bypassed,
        "packets_unclassified": stats.unclassified,
        "dropped": {},
        "trains": total.trains,
        "slf_in": stats.slf_in(),
        "slf_out": stats.slf_out(),
        "mean_train": total.mean_train(),
        "train_lengths": lengths(&total),
        "delay_ns": delay(&total),
        "futile_wait_ns": total.futile_wait_ns,
        "futile_trains": total.futile_trains,
        "released": released(&total),
        "held_max": stats.held_max,
        "flow_evictions": stats.flow_evictions,
        "long_probes": stats.long_probes,
        "clock_backwards": report.clock_backwards,
        "truncated_at_byte": damage,
        "interrupted": report.interrupted,
        "workers": args.workers,
        "elapsed_ns": report.elapsed_ns,
        "cpu_ns": report.cpu_ns,
    });
    if let (Some(live), Some(map)) = (live, result.as_object_mut()) {
        map.insert("excess_delay_ns".into(), live.excess.as_ref().map(crate::live::delay_json).into());
        map.insert("lost_before".into(), live.lost_before.into());
        if live.not_sent > 0 {
            map.insert("dropped".into(), json!({ "not_sent": live.not_sent }));
        }
    }
    if !config.classes.is_empty()
        && let Some(map) = result.as_object_mut()
    {
        let classes =
            class_names(config).zip(&stats.classes).map(|(name, s)| class_json(name, s)).collect::<Vec<_>>();
        map.insert("classes".into(), classes.into());
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
    t.title(format!("{} → {}", args.input.display(), args.output.display()));
    t.row(["", "before", "after"]);
    t.row(["packets", &count(stats.packets_in), &count(stats.packets_out)]);
    t.row(["spatial locality factor (SLF)", &number(stats.slf_in(), 3), &number(stats.slf_out(), 3)]);
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
    t.title("Added delay");
    let d = &total.delay;
    t.row(["mean", &time(d.mean())]);
    t.row(["median", &time(d.quantile(0.5))]);
    t.row(["99th percentile", &time(d.quantile(0.99))]);
    t.row(["longest", &time(d.max().map(|m| m as f64))]);
    t.row(["futile wait (trains of one), mean", &time(mean(total.futile_wait_ns, total.futile_trains))]);
    t.row(["trains that waited in vain", &count(total.futile_trains)]);
    if let Some(excess) = live.and_then(|l| l.excess.as_ref()) {
        crate::live::delay_rows(&mut t, excess);
    }
    t.title("Also");
    t.row(["held at most", &count(u64::from(stats.held_max))]);
    for (label, n) in [
        ("bypassed", total.packets_bypassed),
        ("coalesced", total.packets_coalesced),
        ("passed through unclassified", stats.unclassified),
        ("not sent", live.map_or(0, |l| l.not_sent)),
        ("lost before they came in", live.map_or(0, |l| l.lost_before)),
    ] {
        if n > 0 {
            t.row([label, &count(n)]);
        }
    }
    let per_packet = mean(report.cpu_ns, stats.packets_in);
    t.row(["CPU a packet", &time(per_packet)]);
    if !config.classes.is_empty() {
        t.title("Classes");
        t.row(["", "packets", "mean train", "delay, mean", "futile wait, mean"]);
        for (name, s) in class_names(config).zip(&stats.classes) {
            t.row([
                name.to_owned(),
                count(s.packets_in),
                number(s.mean_train(), 3),
                time(s.delay.mean()),
                time(mean(s.futile_wait_ns, s.futile_trains)),
            ]);
        }
    }
    t.render()
}

fn mean(sum: u64, n: u64) -> Option<f64> {
    (n > 0).then(|| sum as f64 / n as f64)
}
