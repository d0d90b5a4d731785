//! The results of a lab as JSON, as a table and as a page.

use serde_json::{Map, Value, json};
use slipstream_report::{PageError, Table};

use crate::claim::Verdict;
use crate::{Findings, Lab, page};

/// The results of a lab that was run.
#[derive(Debug)]
pub struct Results {
    pub(crate) lab: &'static Lab,
    pub(crate) quick: bool,
    pub(crate) findings: Findings,
}

impl Results {
    /// The results for programs: one object with `"schema": 1`.
    #[must_use]
    pub fn json(&self) -> Value {
        let Self { lab, quick, findings } = self;
        let of = |verdict: Verdict| findings.claims.iter().filter(|c| c.verdict == verdict).count();
        json!({
            "schema": 1,
            "name": lab.name,
            "source": lab.source,
            "what": lab.what,
            "machine": machine(),
            "command": format!("slipstream lab {}{}", lab.name, if *quick { " --quick" } else { "" }),
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

    /// The results for people.
    #[must_use]
    pub fn table(&self) -> Table {
        let Self { lab, findings, .. } = self;
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
        t
    }

    /// The results as one HTML file with charts, which needs nothing else: no network, no script.
    ///
    /// # Errors
    /// Only where the template doesn't fit the results.
    pub fn html(&self) -> Result<String, PageError> {
        page::html(&self.json(), &self.findings.charts)
    }
}

/// The processor and its number of cores.
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
pub(crate) fn cell(value: &Value) -> String {
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
pub(crate) type Rows<'a> = (Vec<&'a str>, Vec<Vec<&'a Value>>);

/// Rows with the same keys make a table, whose columns are in the order in which its first row was written.
pub(crate) fn tables(rows: &[Map<String, Value>]) -> Vec<Rows<'_>> {
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
