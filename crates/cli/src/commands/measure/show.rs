//! The result of `measure` as JSON, CSV and table.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use slipstream::measure::{Answer, EpochResult, Figure, Row, Task, quantiles, relative_error, wmrd};
use slipstream_report::{Table, count, number, plural, time};
use slipstream_sketch::{Confidence, ValueRange};

use super::Report;
use super::windows::FailedWindow;
use crate::check::Check;
use crate::cli::measure::MeasureFormat;
use crate::commands::{Outcome, checked};
use crate::ui;
use crate::units::Duration;

/// Prints the result of a task, or those of several, and applies the checks to it.
pub(super) fn finish(reports: &[Report], format: MeasureFormat, checks: &[Check]) -> anyhow::Result<Outcome> {
    let each = |show: fn(&Report) -> String| reports.iter().map(show).collect::<Vec<_>>().join("\n");
    match format {
        MeasureFormat::Json => ui::print(match reports {
            [one] => serde_json::to_string_pretty(&Json(one))?,
            several => {
                serde_json::to_string_pretty(&Tasks { schema: 1, tasks: several.iter().map(Json).collect() })?
            }
        })?,
        MeasureFormat::Csv => ui::print(each(as_csv))?,
        MeasureFormat::Table => ui::print(each(as_table))?,
    }
    // The whole result as values takes many times the memory of what is printed.
    if checks.is_empty() {
        return Ok(Outcome::Done);
    }
    let result = match reports {
        [one] => serde_json::to_value(Json(one))?,
        several => serde_json::to_value(Tasks { schema: 1, tasks: several.iter().map(Json).collect() })?,
    };
    checked(checks, &result)
}

/// Of several tasks.
#[derive(Serialize)]
struct Tasks<'a> {
    schema: u32,
    tasks: Vec<Json<'a>>,
}

/// A report as JSON. Of epochs there may be very many: each becomes values when its turn comes.
struct Json<'a>(&'a Report);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let r = self.0;
        let mut map = to.serialize_map(None)?;
        for (key, value) in figures(r).as_object().into_iter().flatten() {
            map.serialize_entry(key, value)?;
        }
        map.serialize_entry("epochs", &Epochs(&r.epochs))?;
        // Saved states don't tell.
        if let Some(packets) = r.clock_backwards {
            map.serialize_entry("clock_backwards", &packets)?;
        }
        if let Some((first, forgotten)) = r.gaps {
            map.serialize_entry("without_gap", &first)?;
            map.serialize_entry("forgotten_flows", &forgotten)?;
        }
        if !r.failed.is_empty() {
            let failed = |w: &FailedWindow| json!({ "start_ns": w.span.start_ns, "end_ns": w.span.end_ns, "error": w.error });
            map.serialize_entry("failed", &r.failed.iter().map(failed).collect::<Vec<_>>())?;
        }
        map.end()
    }
}

struct Epochs<'a>(&'a [EpochResult]);

impl Serialize for Epochs<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.iter().map(EpochResult::to_json))
    }
}

/// All but the epochs, and what not every report has.
fn figures(r: &Report) -> Value {
    let per_packet = r.spent_ns.filter(|_| r.packets > 0).map(|ns| ns as f64 / r.packets as f64);
    json!({
        "schema": 1,
        "task": r.task.name(),
        "sketch": r.sketch,
        "key": r.key,
        "weight": r.weight,
        "aggregate": r.aggregate,
        "epoch": r.epoch,
        "tunnel": r.tunnel,
        "seed": r.seed,
        "packets": r.packets,
        // Of a saved state neither is known. Whoever reads these keys expects a number.
        "packets_skipped": r.skipped.unwrap_or_default(),
        "memory_bytes": r.memory_bytes,
        "aggregator_bytes": r.aggregator_bytes.unwrap_or_default(),
        "ns_per_packet": per_packet,
        "truncated_at_byte": r.truncated_at_byte,
    })
}

fn as_csv(r: &Report) -> String {
    let mut out = String::new();
    let optional = |v: Option<f64>| v.map(|v| v.to_string()).unwrap_or_default();
    let truth = |v: Option<u64>| v.map(|v| v.to_string()).unwrap_or_default();
    out.push_str(match r.task {
        Task::SizeDistribution => "epoch,size,flows,true\n",
        Task::Cardinality | Task::Entropy => {
            "epoch,packets,weight,estimate,lower,upper,true,relative_error\n"
        }
        Task::HeavyChanges => "epoch,key,estimate,lower,upper,true,direction\n",
        Task::Quantiles => "epoch,quantile,estimate,lower,upper\n",
        _ => "epoch,key,estimate,lower,upper,true\n",
    });
    for (i, e) in r.epochs.iter().enumerate() {
        match &e.answer {
            Answer::Keys { rows, .. } => {
                for row in rows {
                    let (s, t) = (row.size, truth(row.truth));
                    let _ = write!(out, "{i},{},{},{},{},{t}", row.key, s.estimate, s.lower, s.upper);
                    let _ = match row.up {
                        Some(up) => writeln!(out, ",{}", if up { "up" } else { "down" }),
                        None => writeln!(out),
                    };
                }
            }
            Answer::Figure(f) => {
                let (estimate, upper, true_value) =
                    (optional(f.estimate), optional(f.upper), optional(f.truth));
                let error = optional(relative_error(f));
                let _ = writeln!(
                    out,
                    "{i},{},{},{estimate},{},{upper},{true_value},{error}",
                    e.span.packets, e.weight, f.lower
                );
            }
            Answer::Distribution { sizes, compared } => {
                for (size, (flows, t)) in sizes {
                    let _ = writeln!(out, "{i},{size},{flows},{}", truth(compared.then_some(*t)));
                }
            }
            Answer::Values(values) => {
                for (q, value) in quantiles(values) {
                    let _ = writeln!(out, "{i},{q},{},{},{}", value.estimate, value.lower, value.upper);
                }
            }
        }
    }
    out.truncate(out.trim_end().len());
    out
}

fn as_table(r: &Report) -> String {
    let mut t = Table::default();
    t.title(format!("{} by {}, in {}: {}", r.task.name(), r.key, r.weight, r.sketch));
    t.row(["IP packets", &count(r.packets)]);
    // A dash stands for what is not known, no row for what there is none of.
    let dash = || "–".to_owned();
    if r.skipped != Some(0) {
        t.row(["left out: not IP, or cut off in the headers", &r.skipped.map_or_else(dash, count)]);
    }
    let (first, forgotten) = r.gaps.unwrap_or_default();
    if first > 0 {
        t.row(["left out: first packets of flows, without a gap", &count(first)]);
    }
    if forgotten > 0 {
        t.row(["flows forgotten, which lack a gap where they went on", &count(forgotten)]);
    }
    t.row(["memory of the sketch, bytes", &count(r.memory_bytes as u64)]);
    let aggregator = if r.aggregate == "off" { Some(0) } else { r.aggregator_bytes };
    if aggregator != Some(0) {
        let bytes = |n: usize| count(n as u64);
        t.row(["memory of the aggregator, bytes", &aggregator.map_or_else(dash, bytes)]);
        t.row(["together, bytes", &aggregator.map_or_else(dash, |n| bytes(r.memory_bytes + n))]);
    }
    if let Some(ns) = r.spent_ns.filter(|_| r.packets > 0) {
        let place = if aggregator == Some(0) { "the sketch" } else { "both" };
        t.row([format!("time a packet in {place}"), time(Some(ns as f64 / r.packets as f64))]);
    }
    let what = if r.windows { "Window" } else { "Epoch" };
    let first = r.epochs.iter().find(|e| e.span.packets > 0).map_or(0, |e| e.span.start_ns);
    for (i, e) in r.epochs.iter().enumerate() {
        let since = |ns: u64| Duration(ns.saturating_sub(first));
        let (from, to) = (since(e.span.start_ns), since(e.span.end_ns));
        let when = if r.epochs.len() > 1 { format!(" (+{from} to +{to})") } else { String::new() };
        let flows = e.flows.map(|f| format!(", {}", plural(f, "flow"))).unwrap_or_default();
        let full = if e.saturated { ", saturated" } else { "" };
        let partial = if e.span.partial { ", partial" } else { "" };
        t.title(format!(
            "{what} {i}{when}: {}, weight {}{flows}{full}{partial}",
            plural(e.span.packets, "packet"),
            count(e.weight)
        ));
        match &e.answer {
            Answer::Keys { .. } if i == 0 && r.task == Task::HeavyChanges => {
                t.row([if r.windows {
                    "changes: from the second window on"
                } else {
                    "changes: from the second epoch on; a shorter --epoch makes more epochs"
                }]);
            }
            Answer::Keys { rows, unlisted, .. } => {
                keys_table(&mut t, rows, e.answer.recall(), r.compared);
                if let Some(most) = unlisted {
                    t.row(["any other flow, at most".to_owned(), count(*most)]);
                }
            }
            Answer::Figure(f) => figure_table(&mut t, f, if r.task == Task::Entropy { " bits" } else { "" }),
            Answer::Distribution { sizes, compared } => distribution_table(&mut t, sizes, *compared),
            Answer::Values(values) => quantiles_table(&mut t, values, r.weight == "gap"),
        }
        match e.promise.confidence {
            Confidence::None => t.row(["bounds", "none: an estimate"]),
            Confidence::Share(share) => t.row(["bounds hold in", &format!("{} % of cases", percent(share))]),
            Confidence::Certain => t.row(["bounds hold", "always"]),
        };
        if let Some(least) = e.promise.least_change {
            t.row(["every change listed from", &count(least)]);
        }
    }
    t.render(ui::columns())
}

/// A share in percent, rounded down to a tenth.
fn percent(share: f64) -> f64 {
    (share * 1000.0 + 1e-9).floor() / 10.0
}

fn keys_table(t: &mut Table, rows: &[Row], recall: Option<(usize, usize)>, compared: bool) {
    if rows.is_empty() {
        t.row(["none"]);
        return;
    }
    let head = ["", "estimate", "at least", "at most"].into_iter().chain(compared.then_some("true"));
    t.row(head);
    for row in rows {
        let sign = match row.up {
            Some(true) => "+",
            Some(false) => "−",
            None => "",
        };
        let signed = |n: u64| if n == u64::MAX { "–".to_owned() } else { format!("{sign}{}", count(n)) };
        // Of a fall the greatest size is the least change.
        let (least, most) = match row.up {
            Some(false) => (row.size.upper, row.size.lower),
            _ => (row.size.lower, row.size.upper),
        };
        let cells = [row.key.clone(), signed(row.size.estimate), signed(least), signed(most)];
        t.row(cells.into_iter().chain(row.truth.map(count)));
    }
    if let Some((found, of)) = recall {
        t.row([format!("of the {of} greatest, listed"), found.to_string()]);
    }
}

fn quantiles_table(t: &mut Table, values: &[ValueRange], of_gaps: bool) {
    t.row(["share of packets up to", "estimate", "at least", "at most"]);
    for (q, value) in quantiles(values) {
        let figure = |v: f64| if of_gaps { time(Some(v)) } else { count(v.round() as u64) };
        let share = format!("{} %", percent(q));
        t.row([share, figure(value.estimate), figure(value.lower), figure(value.upper)]);
    }
}

fn figure_table(t: &mut Table, f: &Figure, unit: &str) {
    let mut row = |label: &str, value: Option<f64>| t.row([label.to_owned(), number(value, 3) + unit]);
    row("estimate", f.estimate);
    row("at least", Some(f.lower));
    row("at most", f.upper);
    if f.truth.is_some() {
        row("true", f.truth);
        t.row([
            "relative error",
            &relative_error(f).map_or("–".to_owned(), |e| format!("{:.2} %", e * 100.0)),
        ]);
    }
}

/// Sizes by powers of two.
fn distribution_table(t: &mut Table, sizes: &BTreeMap<u64, (f64, u64)>, compared: bool) {
    let mut bins: BTreeMap<u32, (f64, u64)> = BTreeMap::new();
    for (size, (flows, truth)) in sizes {
        let bin = bins.entry(size.max(&1).ilog2()).or_default();
        (bin.0, bin.1) = (bin.0 + flows, bin.1 + truth);
    }
    if bins.is_empty() {
        t.row(["none"]);
        return;
    }
    t.row(["size", "flows"].into_iter().chain(compared.then_some("true")));
    for (bin, (flows, truth)) in bins {
        let (low, high) = (1u64 << bin, u64::MAX >> (63 - bin));
        let label = if low == high { count(low) } else { format!("{} to {}", count(low), count(high)) };
        let cells = [label, count(flows.round() as u64)];
        t.row(cells.into_iter().chain(compared.then(|| count(truth))));
    }
    if compared {
        t.row(["difference (WMRD)".to_owned(), number(wmrd(sizes), 3)]);
    }
}
