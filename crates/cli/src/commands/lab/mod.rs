//! `slipstream lab`: figures of the papers, reproduced, each beside what the paper says.
//!
//! A lab is one file: a function that measures and returns [`Findings`], and its line in [`LABS`]. Everything around
//! it (list, JSON, table, HTML page, checks, interrupts) is here and in `page`.

mod bench;
mod chain;
mod claim;
mod hold;
mod measure;
mod model;
mod nf_locality;
mod page;
mod slice;

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

use super::Outcome;
use crate::check;
use crate::cli;
use crate::replace::Replacement;
use crate::table::Table;
use crate::ui::{self, Progress};
use claim::{Claim, Verdict};

/// A lab: what it reproduces, and the function that does it.
pub(super) struct Lab {
    /// What it is called on the command line.
    pub(super) name: &'static str,
    /// Paper and figures.
    pub(super) source: &'static str,
    /// What it shows, in one line.
    pub(super) what: &'static str,
    /// Measures. The errors are those of the measurement itself; a claim that doesn't hold is no error.
    pub(super) run: fn(&Bench<'_>) -> anyhow::Result<Findings>,
}

/// All labs, in the order of the list.
const LABS: &[Lab] = &[nf_locality::LAB, chain::LAB, hold::LAB, measure::LAB, model::LAB, slice::LAB];

/// What a lab is run with.
pub(super) struct Bench<'a> {
    /// Inputs small enough to end within a minute.
    pub(super) quick: bool,
    progress: &'a Progress,
    interrupted: Arc<AtomicBool>,
}

impl Bench<'_> {
    /// To be called between steps: `share` of the work is done.
    ///
    /// # Errors
    /// When the user interrupted.
    pub(super) fn step(&self, share: f64) -> anyhow::Result<()> {
        self.progress.at(Some(share));
        self.check()
    }

    /// The same where nobody knows how far the work is.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(ui::Interrupted.into());
        }
        Ok(())
    }
}

/// What a lab found.
#[derive(Debug, Default)]
pub(super) struct Findings {
    /// What the figures plot, one object a point.
    pub(super) rows: Vec<Map<String, Value>>,
    /// What the paper claims, and what came out.
    pub(super) claims: Vec<Claim>,
    /// How to draw it.
    pub(super) charts: Vec<Chart>,
}

/// Bars in groups, one bar a series.
#[derive(Clone, Debug)]
pub(super) struct Chart {
    /// What it shows, and which figure of the paper it stands beside.
    pub(super) title: String,
    /// How to read it.
    pub(super) caption: String,
    /// What the groups are.
    pub(super) x_label: String,
    /// What the height is, with its unit.
    pub(super) y_label: String,
    /// Names of the groups.
    pub(super) groups: Vec<String>,
    /// Name of a series, and its value in each group.
    pub(super) series: Vec<(String, Vec<Option<f64>>)>,
}

pub(super) fn run(args: &cli::Lab) -> anyhow::Result<Outcome> {
    let Some(name) = &args.name else { return list(args.format) };
    let Some(lab) = LABS.iter().find(|l| l.name == name) else {
        let known = LABS.iter().map(|l| l.name).collect::<Vec<_>>().join(", ");
        bail!("there is no lab {name:?}; there are: {known}");
    };
    let checks = check::parse_all(&args.fail_if)?;
    let file = args.report.as_deref().map(|p| Replacement::create("--report", p)).transpose()?;
    let findings = {
        let progress = Progress::new(lab.name);
        (lab.run)(&Bench { quick: args.quick, progress: &progress, interrupted: ui::interrupts()? })?
    };
    let result = as_json(lab, args.quick, &findings);
    if let Some(mut file) = file {
        file.write_all(page::html(&result, &findings.charts)?.as_bytes()).context("--report")?;
        file.commit().context("--report")?;
    }
    match args.format {
        cli::Format::Json => ui::print(serde_json::to_string_pretty(&result)?)?,
        cli::Format::Table => ui::print(as_table(lab, &findings))?,
    }
    Ok(match check::failed(&checks, &result)? {
        Some(what) => Outcome::CheckFailed(what),
        None => Outcome::Done,
    })
}

fn list(format: cli::Format) -> anyhow::Result<Outcome> {
    match format {
        cli::Format::Json => {
            let one = |l: &Lab| json!({ "name": l.name, "source": l.source, "what": l.what });
            let labs: Vec<Value> = LABS.iter().map(one).collect();
            ui::print(serde_json::to_string_pretty(&json!({ "schema": 1, "labs": labs }))?)?;
        }
        cli::Format::Table => {
            let mut t = Table::default();
            t.title("Labs (slipstream lab NAME)");
            for lab in LABS {
                t.prose([lab.name, lab.what, lab.source]);
            }
            ui::print(t.render())?;
        }
    }
    Ok(Outcome::Done)
}

fn as_json(lab: &Lab, quick: bool, findings: &Findings) -> Value {
    let of = |verdict: Verdict| findings.claims.iter().filter(|c| c.verdict == verdict).count();
    json!({
        "schema": 1,
        "name": lab.name,
        "source": lab.source,
        "what": lab.what,
        "machine": machine(),
        "command": format!("slipstream lab {}{}", lab.name, if quick { " --quick" } else { "" }),
        "quick": quick,
        "rows": findings.rows,
        "claims": findings.claims,
        "failed_claims": of(Verdict::SameSign) + of(Verdict::Contradicted),
        "verdicts": {
            "reproduced": of(Verdict::Reproduced),
            "same_sign": of(Verdict::SameSign),
            "contradicted": of(Verdict::Contradicted),
            "not_comparable": of(Verdict::NotComparable),
        },
    })
}

/// The processor, and how many of it.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cpu = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |name: &str| {
        let line = cpu.lines().find(|l| l.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    let model = field("model name").unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let family = match (field("cpu family"), field("model\t")) {
        (Some(family), Some(model)) => format!(" (family {family}, model {model})"),
        _ => String::new(),
    };
    format!("{model}{family}, {cores} cores")
}

/// A value as a cell of a table.
fn cell(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) if n.is_f64() => {
            let n = n.as_f64().unwrap_or_default();
            if n != 0.0 && n.abs() < 0.01 { format!("{n:.2e}") } else { format!("{n:.2}") }
        }
        other => other.to_string(),
    }
}

/// The keys of rows that have the same ones, and the values of these rows in the same order.
type Rows<'a> = (Vec<&'a str>, Vec<Vec<&'a Value>>);

/// Rows with the same keys make a table, whose columns are in the order in which its first row was written.
fn tables(rows: &[Map<String, Value>]) -> Vec<Rows<'_>> {
    let mut tables: Vec<Rows<'_>> = Vec::new();
    for row in rows {
        let same = |keys: &[&str]| keys.len() == row.len() && keys.iter().all(|k| row.contains_key(*k));
        let values = |keys: &[&str]| keys.iter().map(|k| row.get(*k).unwrap_or(&Value::Null)).collect();
        match tables.iter_mut().find(|(keys, _)| same(keys)) {
            Some((keys, rows)) => rows.push(values(keys)),
            None => tables.push((row.keys().map(String::as_str).collect(), vec![row.values().collect()])),
        }
    }
    tables
}

fn as_table(lab: &Lab, findings: &Findings) -> String {
    let mut t = Table::default();
    t.title(format!("{}: {}", lab.name, lab.what));
    t.prose(["source", lab.source]);
    t.prose(["machine", &machine()]);
    for (keys, rows) in tables(&findings.rows) {
        t.title("Measured");
        t.row(keys.iter().map(|k| k.replace('_', " ")));
        for row in rows {
            t.row(row.into_iter().map(cell));
        }
    }
    t.title("Claims");
    t.prose(["", "paper", "here", "criterion", "verdict"]);
    for c in &findings.claims {
        let verdict = match &c.why {
            Some(why) => format!("{}: {why}", c.verdict.name()),
            None => c.verdict.name().to_owned(),
        };
        t.prose([c.claim.clone(), cell(&c.paper), cell(&c.measured), c.criterion.clone(), verdict]);
    }
    t.render()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_in_the_order_in_which_they_were_written() {
        let row = |value: Value| value.as_object().cloned().unwrap();
        let rows = [
            row(json!({ "sketch": "exact", "memory": 1, "error": 0.5 })),
            row(json!({ "sketch": "fm", "memory": 2, "error": 0.25 })),
            row(json!({ "alone": 3 })),
            row(json!({ "error": 0.125, "memory": 4, "sketch": "late" })),
        ];
        let tables = tables(&rows);
        assert_eq!(tables.len(), 2);
        assert_eq!(tables[0].0, ["sketch", "memory", "error"]);
        let cells: Vec<String> = tables[0].1[2].iter().map(|v| cell(v)).collect();
        assert_eq!(cells, ["late", "4", "0.12"]);
    }
}
