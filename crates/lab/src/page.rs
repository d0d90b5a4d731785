//! `lab --report`: the result as one HTML file that needs nothing else.

use serde::Serialize;
use serde_json::{Map, Value};
use slipstream_report::{PageError, page};

use crate::Findings;
use crate::figure::Figure;
use crate::results::{cell, claims, tables};

#[derive(Serialize)]
struct Page<'a> {
    version: &'static str,
    result: &'a Value,
    claims: Rows,
    figures: Vec<Drawn>,
    /// It is one of several pages, which have an index.
    indexed: bool,
    tables: Vec<Rows>,
}

#[derive(Serialize)]
struct Drawn {
    title: String,
    caption: String,
    svg: String,
    /// Files of the figure beside the page.
    files: Vec<File>,
}

#[derive(Serialize)]
struct File {
    kind: &'static str,
    name: String,
}

#[derive(Serialize)]
struct Rows {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// The page for a result, its claims and its figures; of `lab`, with links, where it is one of several pages.
///
/// # Errors
/// Only where the template doesn't fit what it is given.
pub(super) fn html(result: &Value, findings: &Findings, lab: Option<&str>) -> Result<String, PageError> {
    let rows = result.get("rows").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let rows: Vec<Map<String, Value>> = rows.iter().filter_map(|r| r.as_object().cloned()).collect();
    let mut claims = claims(&findings.claims).into_iter();
    let values = Page {
        version: env!("CARGO_PKG_VERSION"),
        result,
        claims: Rows { head: claims.next().unwrap_or_default(), rows: claims.collect() },
        figures: findings.figures.iter().enumerate().map(|(i, f)| figure(i, f, lab)).collect(),
        indexed: lab.is_some(),
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

fn figure(index: usize, figure: &Figure, lab: Option<&str>) -> Drawn {
    Drawn {
        title: figure.title().to_owned(),
        caption: figure.caption().to_owned(),
        svg: figure.svg(&format!("c{index}")),
        files: lab
            .map(|lab| ["SVG", "CSV"].into_iter().zip(names(lab, index)))
            .into_iter()
            .flatten()
            .map(|(kind, name)| File { kind, name })
            .collect(),
    }
}

/// The files of a lab's figure: SVG and CSV.
pub(crate) fn names(lab: &str, index: usize) -> [String; 2] {
    ["svg", "csv"].map(|kind| format!("{lab}-{}.{kind}", index + 1))
}
