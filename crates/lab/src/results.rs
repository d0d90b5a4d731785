//! The results of a lab as JSON, as a table and as a page.

use serde::Serialize;
use serde_json::{Map, Value, json};
use slipstream_report::{PageError, Table};

use crate::claim::{Claim, Verdict};
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
        let verdicts = Verdicts::of(&findings.claims);
        json!({
            "schema": 1,
            "name": lab.name,
            "source": lab.source,
            "what": lab.what,
            "machine": machine(),
            "version": env!("CARGO_PKG_VERSION"),
            "command": self.command(),
            "quick": quick,
            "rows": findings.rows,
            "claims": findings.claims,
            "failed_claims": verdicts.failed(),
            "verdicts": verdicts,
        })
    }

    /// The command that gives them.
    pub(crate) fn command(&self) -> String {
        format!("slipstream lab {}{}", self.lab.name, if self.quick { " --quick" } else { "" })
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
        let [head, rows @ ..] = &claims(&findings.claims)[..] else { return t };
        t.prose(std::iter::once(&String::new()).chain(head.iter().skip(1)));
        for row in rows {
            t.prose(row);
        }
        t
    }

    /// The results as one HTML file with charts, which needs nothing else: no network, no script.
    ///
    /// # Errors
    /// Only where the template doesn't fit the results.
    pub fn html(&self) -> Result<String, PageError> {
        page::html(&self.json(), &self.findings, None)
    }

    /// The files of the results in a folder of several labs', each with its name: the page, and every figure
    /// as SVG and as CSV.
    ///
    /// # Errors
    /// Only where the template doesn't fit the results.
    pub fn files(&self) -> Result<Vec<(String, String)>, PageError> {
        let name = self.lab.name;
        let html = page::html(&self.json(), &self.findings, Some(name))?;
        let mut files = vec![(format!("{name}.html"), html)];
        for (index, figure) in self.findings.figures.iter().enumerate() {
            let [svg, csv] = page::names(name, index);
            files.push((svg, slipstream_report::svg::file(&figure.svg("f"))));
            files.push((csv, figure.csv()));
        }
        Ok(files)
    }
}

/// Numbers of claims by verdict.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Verdicts {
    pub(crate) reproduced: usize,
    pub(crate) same_sign: usize,
    pub(crate) contradicted: usize,
    pub(crate) not_comparable: usize,
}

impl Verdicts {
    pub(crate) fn of<'a>(claims: impl IntoIterator<Item = &'a Claim>) -> Self {
        let mut all = Self::default();
        for claim in claims {
            *match claim.verdict {
                Verdict::Reproduced => &mut all.reproduced,
                Verdict::SameSign => &mut all.same_sign,
                Verdict::Contradicted => &mut all.contradicted,
                Verdict::NotComparable => &mut all.not_comparable,
            } += 1;
        }
        all
    }

    /// Claims that could be compared and were not reproduced.
    pub(crate) fn failed(self) -> usize {
        self.same_sign + self.contradicted
    }
}

/// The processor and its number of cores.
pub(crate) fn machine() -> String {
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

/// The claims as the rows of a table below its head. The paper has a column, and so have other programs where
/// ours is held against them; a lab that is held against nothing but other programs has no column of a paper.
pub(crate) fn claims(claims: &[Claim]) -> Vec<Vec<String>> {
    let others = claims.iter().any(|c| c.other.is_some());
    let papers = !others || claims.iter().any(|c| !c.is_own());
    let row = |claim: String, paper: String, other: String, rest: [String; 3]| {
        let columns = [papers.then_some(paper), others.then_some(other)].into_iter().flatten();
        std::iter::once(claim).chain(columns).chain(rest).collect()
    };
    let head = ["here", "criterion", "verdict"].map(str::to_owned);
    let head = row("claim".to_owned(), "paper".to_owned(), "another program".to_owned(), head);
    let rows = claims.iter().map(|c| {
        let rest = [cell(&c.measured), c.criterion.clone(), c.words_and_reason()];
        row(c.claim.clone(), cell(&c.paper), other(c), rest)
    });
    std::iter::once(head).chain(rows).collect()
}

/// The figure of another program, with its name.
pub(crate) fn other(claim: &Claim) -> String {
    let other = claim.other.as_ref();
    other.map_or_else(|| "–".to_owned(), |other| format!("{}: {}", other.name, cell(&other.measured)))
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
    fn figures_of_other_programs_are_not_a_papers() {
        let own = || Claim::checked("packets merged", Value::Null, 20, "at least as many", true);
        let all = claims(&[own().beside("rte_gro", 18), own()]);
        assert_eq!(all[0], ["claim", "another program", "here", "criterion", "verdict"]);
        assert_eq!(all[1], ["packets merged", "rte_gro: 18", "20", "at least as many", "aim met"]);
        assert_eq!(all[2][1], "–");
        let paper = Claim::number("gain", 2.0, 2.0, 0.1, 1.0);
        let all = claims(&[own().beside("rte_gro", 18), paper.clone()]);
        assert_eq!(
            (&all[0][1..3], &all[2][1..3]),
            (
                &["paper".to_owned(), "another program".to_owned()][..],
                &["2.00".to_owned(), "–".to_owned()][..],
            )
        );
        assert_eq!(claims(&[paper])[0], ["claim", "paper", "here", "criterion", "verdict"]);
        let json = json!(own().beside("rte_gro", 18));
        assert_eq!(
            (&json["paper"], &json["other"]),
            (&Value::Null, &json!({ "name": "rte_gro", "measured": 18 }))
        );
    }

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
