//! `lab --report`: the result as one HTML file that needs nothing else.

use serde::Serialize;
use serde_json::{Map, Value};
use slipstream_report::svg::{About, Axis, BarChart};
use slipstream_report::{PageError, STYLE, page};

use crate::Chart;
use crate::results::{cell, tables};

#[derive(Serialize)]
struct Page<'a> {
    style: &'static str,
    version: &'static str,
    result: &'a Value,
    claims: Vec<[String; 5]>,
    figures: Vec<Figure>,
    tables: Vec<Rows>,
}

#[derive(Serialize)]
struct Figure {
    title: String,
    caption: String,
    svg: String,
}

#[derive(Serialize)]
struct Rows {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The page for a result and its charts.
///
/// # Errors
/// Only where the template doesn't fit what it is given.
pub(super) fn html(result: &Value, charts: &[Chart]) -> Result<String, PageError> {
    let list = |key: &str| result.get(key).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<Map<String, Value>> = list("rows").iter().filter_map(|r| r.as_object().cloned()).collect();
    let values = Page {
        style: STYLE,
        version: env!("CARGO_PKG_VERSION"),
        result,
        claims: list("claims").iter().map(claim).collect(),
        figures: charts.iter().enumerate().map(|(i, c)| figure(i, c)).collect(),
        tables: tables(&rows)
            .into_iter()
            .map(|(keys, rows)| Rows {
                head: keys.iter().map(|k| k.replace('_', " ")).collect(),
                rows: rows.into_iter().map(|r| r.into_iter().map(cell).collect()).collect(),
            })
            .collect(),
    };
    page(include_str!("lab.html"), values)
}

fn claim(claim: &Value) -> [String; 5] {
    let get = |key: &str| claim.get(key).unwrap_or(&Value::Null);
    let verdict = cell(get("verdict")).replace('_', " ");
    let verdict = match get("why") {
        Value::Null => verdict,
        why => format!("{verdict}: {}", cell(why)),
    };
    [cell(get("claim")), cell(get("paper")), cell(get("measured")), cell(get("criterion")), verdict]
}

fn figure(index: usize, chart: &Chart) -> Figure {
    let values = || chart.series.iter().flat_map(|(_, v)| v).flatten().copied();
    let high = values().fold(0.0, f64::max);
    let short = |v: f64| {
        if v >= 100.0 {
            format!("{v:.0}")
        } else {
            format!("{v:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
        }
    };
    let bar = |v: &Option<f64>| v.map(|v| (v, if v >= 10.0 { format!("{v:.0}") } else { format!("{v:.2}") }));
    let drawn = BarChart {
        about: About {
            id: format!("c{index}"),
            title: chart.title.clone(),
            description: chart.caption.clone(),
        },
        x_label: chart.x_label.clone(),
        y: Axis::linear(&chart.y_label, high, short),
        groups: chart.groups.clone(),
        series: chart.series.iter().map(|(name, v)| (name.clone(), v.iter().map(bar).collect())).collect(),
    };
    Figure { title: chart.title.clone(), caption: chart.caption.clone(), svg: drawn.render() }
}
