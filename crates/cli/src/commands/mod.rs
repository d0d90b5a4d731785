//! One file per verb.

mod analyze;
mod ctl;
pub(crate) mod frontier;
mod lab;
mod measure;
mod model;
mod pipeline;
mod recommend;
mod reframe;
mod reframe_live;
mod run;
mod shell;
mod slice;
mod synth;
mod top;

use serde_json::Value;
use slipstream::io::capture::{CaptureReader, Damage, Notes};
use slipstream_report::{Table, plural};
use tracing::warn;

use crate::check::{self, Check};
use crate::cli::{Cli, Reporting, Verb};
use crate::ui;

/// The way in which a verb ended.
pub(crate) enum Outcome {
    /// It did its work.
    Done,
    /// It did, and a check that the user asked for failed.
    CheckFailed(String),
    /// The user interrupted it, and what was done until then was printed.
    Interrupted,
}

/// Runs the verb of a command line.
pub(crate) fn run(cli: Cli) -> anyhow::Result<Outcome> {
    match cli.verb {
        Verb::Analyze(args) => analyze::run(&args),
        Verb::Reframe(args) => reframe::run(&args),
        Verb::Run(args) => run::run(&args),
        Verb::Graph(args) => pipeline::graph(&args),
        Verb::Validate(args) => pipeline::validate(&args),
        Verb::List(args) => pipeline::list(&args),
        Verb::Synth(args) => synth::run(&args),
        Verb::Measure(args) => measure::run(&args),
        Verb::Lab(args) => lab::run(&args),
        Verb::Model(args) => model::run(&args.verb),
        Verb::Slice(args) => slice::run(&args.verb),
        Verb::Recommend(args) => recommend::run(&args),
        Verb::Top(args) => top::run(&args),
        Verb::Ctl(args) => ctl::run(&args),
        Verb::Reload(args) => ctl::reload(&args),
        Verb::Completions(args) => shell::completions(args.shell),
        Verb::Man(args) => shell::man(&args),
    }
}

/// Says what is wrong with a capture that was read to its end: a warning, or with `--strict` an error where
/// it is damaged. Returns the byte at which it is.
pub(crate) fn report_damage(reader: &CaptureReader, strict: bool) -> anyhow::Result<Option<u64>> {
    report_times(reader.name(), reader.notes());
    let Some(damage) = reader.damage() else { return Ok(None) };
    tell_damage(reader.name(), damage, strict)?;
    Ok(Some(damage.byte))
}

/// Warns of damage to a capture; with `--strict` it is an error.
fn tell_damage(file: &str, damage: &Damage, strict: bool) -> anyhow::Result<()> {
    if strict {
        anyhow::bail!("{file}: {damage} (--strict)");
    }
    warn!("{file}: {damage}; the packets before it were used");
    Ok(())
}

/// Says that packets of a capture have other times than it gives, or none of their own.
pub(crate) fn report_times(name: &str, notes: Notes) {
    if notes.clamped_times > 0 {
        warn!(
            "{name}: the times of {} lie before 1970 or after 2554; they were moved to those bounds",
            plural(notes.clamped_times, "packet")
        );
    }
    if notes.without_time > 0 {
        warn!(
            "{name}: the times of {} are not told; they count as coming with the one before",
            plural(notes.without_time, "packet")
        );
    }
}

/// The mean of `n` values with this sum; none without a value.
fn ratio(sum: u64, n: u64) -> Option<f64> {
    (n > 0).then(|| sum as f64 / n as f64)
}

/// Says of how many packets, if any, a replay has changed the times, which ran backwards.
fn report_backwards(packets: u64) {
    if packets > 0 {
        let packets = plural(packets, "packet");
        warn!("the times of {packets} ran backwards; they count as coming with the one before");
    }
}

/// Prints a result in the format asked for, and does the checks.
fn finish(
    reporting: &Reporting,
    checks: &[Check],
    result: &Value,
    table: impl FnOnce() -> Table,
) -> anyhow::Result<Outcome> {
    finish_beside(Ok(()), reporting, checks, result, table)
}

/// The same beside a page, which may not have been `written`: the result is shown in any case.
fn finish_beside(
    written: anyhow::Result<()>,
    reporting: &Reporting,
    checks: &[Check],
    result: &Value,
    table: impl FnOnce() -> Table,
) -> anyhow::Result<Outcome> {
    if reporting.json() {
        ui::print(serde_json::to_string_pretty(result)?)?;
    } else {
        ui::print(table().render(ui::columns()))?;
    }
    written?;
    checked(checks, result)
}

/// The outcome of a verb that has shown its result, by the checks that the user asked for.
///
/// # Errors
/// A check can't be made.
fn checked(checks: &[Check], result: &Value) -> anyhow::Result<Outcome> {
    Ok(match check::failed(checks, result)? {
        Some(what) => Outcome::CheckFailed(what),
        None => Outcome::Done,
    })
}
