//! `analyze --report`: one HTML file that needs nothing else: no network, no script, no font.
//!
//! `charts` draws a trace's distributions; the template `report.html` puts figures, charts and tables
//! together. Everything but the charts, which escape their own text, is escaped by the template engine, and
//! the page's policy forbids it to load or run anything.

mod charts;
mod groups;
pub(crate) mod model;
mod verdict;

pub(crate) use groups::GroupTable;
use serde::Serialize;
use slipstream_lab::frontier::Frontier;
use slipstream_report::{PageError, Sheet, Table, count, number, page, rates, share, time, visible};
use slipstream_trace::{Endpoint, EndpointSide, Groups, Report, Sequence, Window};
use verdict::best_window;
pub(crate) use verdict::verdict;

use crate::ui;

/// A trace to report on.
pub(crate) struct Subject<'a> {
    /// Its file, or what it is.
    pub(crate) name: String,
    /// The byte at which it is damaged.
    pub(crate) truncated_at_byte: Option<u64>,
    /// Its figures.
    pub(crate) report: &'a Report,
    /// The time that it took.
    pub(crate) taken: Taken,
    /// Its groups, where they were asked for.
    pub(crate) groups: Option<&'a Groups>,
    /// Its frontier, where that was asked for.
    pub(crate) frontier: Option<&'a Frontier>,
}

/// The time that a trace took, or several together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// From the first to the last packet, in ns.
    Whole(u64),
    /// Traces that lie so far apart that most of the time is in none of them: the sum of their durations, in
    /// ns.
    Apart(u64),
}

impl Taken {
    /// Of a report about traces of these durations together, in ns.
    pub(crate) fn of(report: &Report, durations_ns: impl Iterator<Item = u64>) -> Self {
        let sum = durations_ns.fold(0, u64::saturating_add);
        if report.duration_ns / 2 > sum { Self::Apart(sum) } else { Self::Whole(report.duration_ns) }
    }

    /// The time in which packets came, in ns, and what it is.
    pub(crate) fn told(self) -> (u64, &'static str) {
        match self {
            Self::Whole(ns) => (ns, "duration"),
            Self::Apart(ns) => (ns, "duration, without the time between the traces"),
        }
    }
}

#[derive(Serialize)]
struct Page {
    title: String,
    version: &'static str,
    command: String,
    burst: Option<u32>,
    several: bool,
    /// The two traces beside each other, where that was asked for.
    sheets: Vec<Sheet>,
    sections: Vec<Section>,
}

/// A trace, or the total, as the page shows it.
#[derive(Serialize)]
struct Section {
    id: String,
    name: String,
    damaged: Option<String>,
    /// The trace has an IP packet.
    any: bool,
    verdict: String,
    cards: Vec<Card>,
    facts: Vec<[String; 2]>,
    measures: Vec<[String; 3]>,
    figures: Vec<Figure>,
    windows: Vec<WindowTable>,
    groups: Option<GroupTable>,
    frontier: Vec<Sheet>,
    endpoints: Vec<[String; 11]>,
}

/// A headline figure: of all IP packets, and of TCP.
#[derive(Serialize)]
struct Card {
    label: String,
    value: String,
    tcp: Option<String>,
}

/// A chart and how to read it; `source` is the figure of the Reframer paper that shows the same.
#[derive(Serialize)]
struct Figure {
    title: String,
    svg: String,
    caption: String,
    source: &'static str,
}

#[derive(Serialize)]
struct WindowTable {
    name: &'static str,
    acks: bool,
    rows: Vec<Vec<String>>,
}

/// The page for traces, in order; of several, the total comes first, behind what compares them.
///
/// # Errors
/// Only where the template doesn't fit what it is given.
pub(crate) fn html(subjects: &[Subject<'_>], beside: &Table) -> Result<String, PageError> {
    let sections: Vec<Section> = subjects.iter().enumerate().map(|(i, s)| section(i, s)).collect();
    let values = Page {
        title: sections.first().map(|s| s.name.clone()).unwrap_or_default(),
        version: env!("CARGO_PKG_VERSION"),
        command: ui::command_line(),
        burst: subjects.iter().flat_map(|s| &s.report.ip.windows).map(|w| w.burst).next(),
        several: sections.len() > 1,
        sheets: beside.sheets(),
        sections,
    };
    page(include_str!("report.html"), values)
}

fn section(index: usize, subject: &Subject<'_>) -> Section {
    let report = subject.report;
    let id = format!("t{index}");
    Section {
        name: visible(&subject.name),
        damaged: subject.truncated_at_byte.map(count),
        any: report.ip.packets > 0,
        verdict: verdict(&report.ip, subject.frontier),
        cards: cards(report),
        facts: facts(report, subject.taken),
        measures: measures(report),
        figures: charts::all(&id, report, subject.frontier),
        windows: [("all IP", &report.ip), ("TCP", &report.tcp)]
            .into_iter()
            .filter(|(_, s)| s.packets > 0)
            .map(|(name, s)| window_table(name, s))
            .collect(),
        groups: subject.groups.map(GroupTable::new),
        frontier: subject.frontier.map(frontier_sheets).unwrap_or_default(),
        endpoints: report.top_endpoints.iter().map(endpoint).collect(),
        id,
    }
}

fn frontier_sheets(frontier: &Frontier) -> Vec<Sheet> {
    let mut table = Table::default();
    crate::commands::frontier::as_table(&mut table, frontier);
    table.sheets()
}

fn cards(report: &Report) -> Vec<Card> {
    let tcp = (report.tcp.packets > 0).then_some(&report.tcp);
    let card = |label: &str, value: &dyn Fn(&Sequence) -> String| Card {
        label: label.to_owned(),
        value: value(&report.ip),
        tcp: tcp.map(value),
    };
    let of_best = |f: fn(&Window) -> String| {
        move |s: &Sequence| {
            let hold = |w: &Window| format!("{} ({})", f(w), short_time(w.window_ns as f64));
            best_window(s).map_or_else(|| "–".to_owned(), hold)
        }
    };
    vec![
        card("SLF now", &|s| number(s.slf, 2)),
        card("SLF after holding, at best", &of_best(|w| number(w.slf_after, 2))),
        card("pairs with other flows in between", &|s| share(s.share_spatial_distance_gt_1)),
        card("packets a train", &of_best(|w| number(w.mean_train, 2))),
    ]
}

fn facts(r: &Report, taken: Taken) -> Vec<[String; 2]> {
    let (ns, what) = taken.told();
    let mut facts = vec![
        ("packets", count(r.records)),
        ("bytes on the wire", count(r.bytes)),
        (what, time(Some(ns as f64))),
    ];
    if ns > 0 {
        facts.push(("rate", rates(r.records, r.bytes, ns)));
    }
    facts.extend([
        ("flows, both directions as one", count(r.flows_bidirectional)),
        ("IPv6 packets", count(r.ipv6)),
        ("fragments", count(r.fragments)),
    ]);
    let odd = [
        ("left out: not IP", r.skipped.non_ip),
        ("left out: unsupported link type", r.skipped.unsupported_link_type),
        ("left out: cut off in the headers", r.skipped.truncated),
        ("left out: malformed", r.skipped.malformed),
        ("times that ran backwards", r.clock_backwards),
    ];
    facts.extend(odd.into_iter().filter(|o| o.1 > 0).map(|(what, n)| (what, count(n))));
    facts.into_iter().map(|(what, value)| [what.to_owned(), value]).collect()
}

fn measures(r: &Report) -> Vec<[String; 3]> {
    let row = |label: &str, f: &dyn Fn(&Sequence) -> String| [label.to_owned(), f(&r.ip), f(&r.tcp)];
    vec![
        row("packets", &|s| count(s.packets)),
        row("flows, each direction", &|s| count(s.flows)),
        row("… of a single packet", &|s| count(s.single_packet_flows)),
        row("packets a flow, mean", &|s| number(s.flow_size.distribution.mean, 1)),
        row("packets a flow, largest", &|s| s.flow_size.max.map_or_else(|| "–".to_owned(), count)),
        row("runs of one flow", &|s| count(s.runs)),
        row("spatial locality factor (SLF)", &|s| number(s.slf, 3)),
        row("pairs with other flows in between", &|s| share(s.share_spatial_distance_gt_1)),
        row("spatial distance, median", &|s| number(s.spatial_distance.p50, 0)),
        row("spatial distance, 99th percentile", &|s| number(s.spatial_distance.p99, 0)),
        row("temporal distance, median", &|s| time(s.temporal_distance_ns.p50)),
        row("temporal distance, 99th percentile", &|s| time(s.temporal_distance_ns.p99)),
    ]
}

fn window_table(name: &'static str, s: &Sequence) -> WindowTable {
    let row = |w: &Window| {
        let mut row = vec![
            short_time(w.window_ns as f64),
            number(w.slf_after, 3),
            count(w.batches),
            number(w.mean_train, 3),
            share(w.share_packets_in_trains),
            [w.p25, w.p50, w.p75, w.p90].map(|p| number(p, 0)).join(" / "),
        ];
        row.extend(w.acks.iter().flat_map(|a| [share(a.ack_coalescable_strict), number(a.ack_flag_mean, 2)]));
        row
    };
    WindowTable {
        name,
        acks: s.windows.iter().any(|w| w.acks.is_some()),
        rows: s.windows.iter().map(row).collect(),
    }
}

fn endpoint(e: &Endpoint) -> [String; 11] {
    let whole = |n: Option<u64>| n.map_or_else(|| "–".to_owned(), count);
    let both = |f: &dyn Fn(&EndpointSide) -> String| [f(&e.tx), f(&e.rx)];
    let [flows_tx, flows_rx] = both(&|s| count(s.flows));
    let [min_tx, min_rx] = both(&|s| whole(s.min));
    let [mean_tx, mean_rx] = both(&|s| number(s.mean, 2));
    let [median_tx, median_rx] = both(&|s| number(s.median, 0));
    let [max_tx, max_rx] = both(&|s| whole(s.max));
    let address = e.address.to_string();
    [address, flows_tx, flows_rx, min_tx, min_rx, mean_tx, mean_rx, median_tx, median_rx, max_tx, max_rx]
}

/// A time in ns, short: `64 µs`, `1.5 ms`.
fn short_time(ns: f64) -> String {
    let (value, unit) = match ns.abs() {
        0.0..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "µs"),
        1e6..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    format!("{}\u{a0}{unit}", (value * 1000.0).round() / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_window_is_the_shortest_of_the_highest() {
        let mut analyzer = slipstream_trace::Analyzer::new(slipstream_trace::Config {
            windows_ns: vec![128_000, 64_000, 16_000],
            ..Default::default()
        })
        .unwrap();
        let mut report = analyzer_report(&mut analyzer);
        for (w, slf) in report.ip.windows.iter_mut().zip([2.0, 2.0, 1.5]) {
            w.slf_after = Some(slf);
        }
        assert_eq!(best_window(&report.ip).map(|w| w.window_ns), Some(64_000));
        report.ip.windows.clear();
        assert!(best_window(&report.ip).is_none());
    }

    fn analyzer_report(analyzer: &mut slipstream_trace::Analyzer) -> Report {
        std::mem::replace(analyzer, slipstream_trace::Analyzer::new(Default::default()).unwrap())
            .finish()
            .report()
    }

    #[test]
    fn short_times() {
        let times = [0.0, 1e3, 64e3, 1.5e6, 2e9].map(|ns| short_time(ns).replace('\u{a0}', " "));
        assert_eq!(times, ["0 ns", "1 µs", "64 µs", "1.5 ms", "2 s"]);
    }
}
