//! Two traces beside each other: every figure of both reports, and what changed.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use slipstream_report::{Table, count, number};
use slipstream_trace::{Group, GroupBy, Groups};

use super::{Analyzed, most_groups};
use crate::cli;

/// A figure of both traces. Its name is its path in the result of one.
#[derive(Serialize)]
struct Row {
    key: String,
    a: Option<f64>,
    b: Option<f64>,
    /// Of the second trace minus that of the first.
    change: Option<f64>,
    /// Of the second trace over that of the first.
    ratio: Option<f64>,
}

/// A group of flows in both traces.
#[derive(Serialize)]
struct GroupRow {
    name: String,
    a: Option<Group>,
    b: Option<Group>,
}

/// The figures in which two traces differ.
#[derive(Serialize)]
pub(super) struct Difference {
    a: String,
    b: String,
    rows: Vec<Row>,
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<GroupRow>>,
}

/// Figures that the table has, with their names there; windows follow.
const SHOWN: [(&str, &str); 12] = [
    ("records", "packets"),
    ("bytes", "bytes on the wire"),
    ("duration_ns", "duration, ns"),
    ("flows_bidirectional", "flows, both directions as one"),
    ("ip.packets", "IP packets"),
    ("ip.flows", "IP flows, each direction"),
    ("ip.flow_size.mean", "packets a flow, mean"),
    ("ip.slf", "spatial locality factor (SLF)"),
    ("tcp.slf", "SLF of TCP"),
    ("ip.share_spatial_distance_gt_1", "pairs with another flow between"),
    ("ip.spatial_distance.p50", "spatial distance, median"),
    ("ip.temporal_distance_ns.p50", "temporal distance, median, ns"),
];

impl Difference {
    pub(super) fn of(args: &cli::Analyze, a: &Analyzed, b: &Analyzed) -> anyhow::Result<Self> {
        let figures = |one: &Analyzed| -> anyhow::Result<BTreeMap<String, f64>> {
            let mut found = BTreeMap::new();
            collect(&serde_json::to_value(&one.report)?, &mut String::new(), &mut found);
            Ok(found)
        };
        let (of_a, of_b) = (figures(a)?, figures(b)?);
        let mut keys: Vec<_> = of_a.keys().chain(of_b.keys()).cloned().collect();
        keys.sort_unstable();
        keys.dedup();
        let row = |key: String| {
            let (a, b) = (of_a.get(&key).copied(), of_b.get(&key).copied());
            let both = a.zip(b);
            let ratio = both.filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a);
            Row { key, a, b, change: both.map(|(a, b)| b - a), ratio }
        };
        Ok(Self {
            a: a.file.clone(),
            b: b.file.clone(),
            rows: keys.into_iter().map(row).collect(),
            groups: args.by.and_then(|by| groups(by.0, most_groups(args, by.0), a, b)),
        })
    }

    pub(super) fn as_table(&self, t: &mut Table) {
        t.title(format!("A: {}, B: {}", self.a, self.b));
        t.row(["", "A", "B", "B / A"]);
        let figure = |v: Option<f64>| match v {
            Some(v) if v.fract() == 0.0 && (0.0..1e15).contains(&v) => count(v as u64),
            v => number(v, 3),
        };
        let mut show =
            |row: &Row, label: &str| t.row([label, &figure(row.a), &figure(row.b), &number(row.ratio, 3)]);
        for (key, label) in SHOWN {
            self.rows.iter().filter(|r| r.key == key).for_each(|r| show(r, label));
        }
        for i in 0.. {
            let find = |key: &str| self.rows.iter().find(|r| r.key == format!("ip.windows.{i}.{key}"));
            let Some(window) = find("window_ns").and_then(|r| r.a) else { break };
            let window = crate::units::Duration(window as u64);
            for (key, what) in [("mean_train", "mean train"), ("slf_after", "SLF after")] {
                find(key).into_iter().for_each(|r| show(r, &format!("{what} of a hold of {window}")));
            }
        }
        let Some(groups) = &self.groups else { return };
        t.title("Groups");
        t.row(["", "packets, A", "B", "SLF, A", "B"]);
        for row in groups {
            let packets = |g: &Option<Group>| count(g.as_ref().map_or(0, |g| g.packets));
            let slf = |g: &Option<Group>| number(g.as_ref().and_then(|g| g.slf), 3);
            t.row([&row.name, &packets(&row.a), &packets(&row.b), &slf(&row.a), &slf(&row.b)]);
        }
    }
}

/// Collects all figures of a result by their paths, but for histograms and lists of addresses.
fn collect(value: &Value, path: &mut String, found: &mut BTreeMap<String, f64>) {
    let mut within = |key: &str, value: &Value, path: &mut String| {
        let len = path.len();
        if !path.is_empty() {
            path.push('.');
        }
        path.push_str(key);
        collect(value, path, found);
        path.truncate(len);
    };
    match value {
        Value::Object(map) => {
            let figures =
                map.iter().filter(|(key, _)| !matches!(key.as_str(), "histogram" | "top_endpoints"));
            figures.for_each(|(key, value)| within(key, value, path));
        }
        Value::Array(all) => all.iter().enumerate().for_each(|(i, v)| within(&i.to_string(), v, path)),
        Value::Number(n) => {
            found.extend(n.as_f64().map(|n| (path.clone(), n)));
        }
        _ => {}
    }
}

/// The groups of both traces by name, the largest first; none of slices, whose times differ.
fn groups(by: GroupBy, most: usize, a: &Analyzed, b: &Analyzed) -> Option<Vec<GroupRow>> {
    let mut rows: BTreeMap<String, GroupRow> = BTreeMap::new();
    for (second, one) in [(false, a), (true, b)] {
        let groups = Groups::of(one.details.as_ref()?, by, usize::MAX);
        for group in groups.listed {
            let name = group.name.clone();
            let row = rows.entry(name.clone()).or_insert(GroupRow { name, a: None, b: None });
            *(if second { &mut row.b } else { &mut row.a }) = Some(group);
        }
    }
    let mut rows: Vec<_> = rows.into_values().collect();
    let packets = |g: &Option<Group>| g.as_ref().map_or(0, |g| g.packets);
    rows.sort_by_key(|r| std::cmp::Reverse(packets(&r.a).max(packets(&r.b))));
    rows.truncate(most);
    Some(rows)
}
