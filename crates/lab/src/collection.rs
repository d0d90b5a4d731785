//! The results of several labs: one JSON object, their tables, and a page that leads to a page for each.

use serde::Serialize;
use serde_json::{Value, json};
use slipstream_report::{PageError, Table, page};

use crate::claim::Claim;
use crate::results::{Verdicts, cell, machine, other};
use crate::{LABS, Lab, Results};

/// Results of several labs. One that failed is there with its error, and the others are as whole without it.
#[derive(Debug)]
pub struct Collection {
    quick: bool,
    /// True where it is of all labs that need nothing but a processor.
    all: bool,
    ended: Vec<Ended>,
}

/// A lab that was run.
#[derive(Debug)]
struct Ended {
    lab: &'static Lab,
    /// Its results, or the reason why there are none.
    outcome: Result<Results, String>,
}

#[derive(Serialize)]
struct Index {
    version: &'static str,
    machine: String,
    command: String,
    verdict: String,
    labs: Vec<Row>,
    left_out: Vec<LeftOut>,
}

/// A lab in the index.
#[derive(Serialize)]
struct Row {
    name: &'static str,
    what: &'static str,
    source: &'static str,
    /// Its page; none where it failed.
    page: Option<String>,
    command: Option<String>,
    error: Option<String>,
    claims: Vec<[String; 5]>,
}

/// A lab that is not run where all are.
#[derive(Serialize)]
struct LeftOut {
    name: &'static str,
    why: &'static str,
}

impl Collection {
    /// Nothing yet, to be filled by [`Collection::add`]. `all` says that it will have [`Collection::labs`].
    #[must_use]
    pub const fn new(quick: bool, all: bool) -> Self {
        Self { quick, all, ended: Vec::new() }
    }

    /// All labs that need nothing but a processor.
    pub fn labs() -> impl Iterator<Item = &'static Lab> {
        LABS.iter().filter(|lab| lab.needs.is_none())
    }

    /// Adds what came of a lab: its results, or the reason why there are none.
    pub fn add(&mut self, lab: &'static Lab, outcome: Result<Results, String>) {
        self.ended.push(Ended { lab, outcome });
    }

    /// Names of the labs that failed.
    #[must_use]
    pub fn failed(&self) -> Vec<&'static str> {
        self.ended.iter().filter(|e| e.outcome.is_err()).map(|e| e.lab.name).collect()
    }

    fn results(&self) -> impl Iterator<Item = &Results> {
        self.ended.iter().filter_map(|e| e.outcome.as_ref().ok())
    }

    fn claims(&self) -> impl Iterator<Item = &Claim> {
        self.results().flat_map(|r| &r.findings.claims)
    }

    fn verdicts(&self) -> Verdicts {
        Verdicts::of(self.claims())
    }

    /// The verdicts in words: on what the papers say, and on our own aims.
    fn summary(&self) -> String {
        let of = |own: bool| Verdicts::of(self.claims().filter(|claim| claim.is_own() == own));
        let Verdicts { reproduced, same_sign, contradicted, not_comparable } = of(false);
        let own = of(true);
        let failed = match self.failed().len() {
            0 => String::new(),
            n => format!(" {n} of {} labs failed.", self.ended.len()),
        };
        format!(
            "Of the papers' claims, {reproduced} are reproduced, {same_sign} have the same sign, {contradicted} are \
             contradicted, {not_comparable} are not comparable. Of our own aims, {} are met, {} are missed, {} \
             are not comparable.{failed}",
            own.reproduced,
            own.failed(),
            own.not_comparable
        )
    }

    fn left_out(&self) -> Vec<LeftOut> {
        let needy = |lab: &'static Lab| Some(LeftOut { name: lab.name, why: lab.needs? });
        if self.all { LABS.iter().filter_map(needy).collect() } else { Vec::new() }
    }

    fn command(&self) -> String {
        let names = self.ended.iter().map(|e| e.lab.name).collect::<Vec<_>>().join(" ");
        let which = if self.all { "--all" } else { &names };
        format!("slipstream lab {which}{}", if self.quick { " --quick" } else { "" })
    }

    /// The results for programs: one object with `"schema": 1`, in whose `labs` are those of
    /// [`Results::json`].
    #[must_use]
    pub fn json(&self) -> Value {
        let failed: Vec<Value> = self
            .ended
            .iter()
            .filter_map(|e| Some(json!({ "name": e.lab.name, "error": e.outcome.as_ref().err()? })))
            .collect();
        let verdicts = self.verdicts();
        json!({
            "schema": 1,
            "machine": machine(),
            "version": env!("CARGO_PKG_VERSION"),
            "command": self.command(),
            "quick": self.quick,
            "labs": self.results().map(Results::json).collect::<Vec<_>>(),
            "failed": failed,
            "failed_labs": failed.len(),
            "left_out": self.left_out(),
            "failed_claims": verdicts.failed(),
            "verdicts": verdicts,
        })
    }

    /// The results for people, a table a lab, and those that failed or were left out.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables: Vec<Table> = self.results().map(Results::table).collect();
        let mut rest = Table::default();
        let failed = self.ended.iter().filter_map(|e| Some((e.lab.name, e.outcome.as_ref().err()?.as_str())));
        let failed: Vec<(&str, &str)> = failed.collect();
        if !failed.is_empty() {
            rest.title("Failed");
            failed.iter().for_each(|(name, error)| rest.prose([*name, *error]));
        }
        let left_out = self.left_out();
        if !left_out.is_empty() {
            rest.title("Left out");
            left_out.iter().for_each(|lab| rest.prose([lab.name, lab.why]));
        }
        if !failed.is_empty() || !left_out.is_empty() {
            tables.push(rest);
        }
        tables
    }

    /// The page of HTML that has a row for each claim and leads to the pages of [`Results::files`].
    ///
    /// # Errors
    /// Only where the template doesn't fit the results.
    pub fn index(&self) -> Result<String, PageError> {
        let values = Index {
            version: env!("CARGO_PKG_VERSION"),
            machine: machine(),
            command: self.command(),
            verdict: self.summary(),
            labs: self.ended.iter().map(|e| self.row(e)).collect(),
            left_out: self.left_out(),
        };
        page(include_str!("index.html"), values)
    }

    fn row(&self, ended: &Ended) -> Row {
        let Ended { lab, outcome } = ended;
        let results = outcome.as_ref().ok();
        Row {
            name: lab.name,
            what: lab.what,
            source: lab.source,
            page: results.map(|_| format!("{}.html", lab.name)),
            command: results.map(Results::command),
            error: outcome.as_ref().err().cloned(),
            claims: results.map(|r| r.findings.claims.iter().map(line).collect()).unwrap_or_default(),
        }
    }
}

/// A claim in the index: claim, figure, paper or another program, here, verdict.
fn line(claim: &Claim) -> [String; 5] {
    let paper = cell(&claim.paper);
    let figure = figure(&claim.claim).or_else(|| figure(&paper)).unwrap_or_else(|| "–".to_owned());
    let beside = if claim.is_own() { other(claim) } else { paper };
    [claim.claim.clone(), figure, beside, cell(&claim.measured), claim.words().to_owned()]
}

/// The figure that a text names, as in `Fig. 4b` or `Figs. 12a, 15a`: numbers with letters.
fn figure(text: &str) -> Option<String> {
    let at = text.find("Fig. ").or_else(|| text.find("Figs. "))?;
    let (_, numbers) = text.get(at..)?.split_once(' ')?;
    let is_number = |word: &&str| word.starts_with(|c: char| c.is_ascii_digit());
    let ends = |c: char| !c.is_ascii_alphanumeric();
    let numbers = numbers.split(", ").map(|word| word.split(ends).next().unwrap_or_default());
    let numbers: Vec<&str> = numbers.take_while(is_number).collect();
    (!numbers.is_empty()).then(|| numbers.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Curve, Findings, Plot, Scale};

    fn collection() -> Collection {
        let [first, second, ..] = &LABS;
        let mut findings = Findings::default();
        findings.claims.push(Claim::number("Fig. 4b: a < b", 2.0, 2.1, 0.1, 1.0));
        findings.claims.push(Claim::number("cost", 2.0, 9.0, 0.1, 1.0));
        findings.claims.push(Claim { paper: Value::Null, ..Claim::number("our own", 2.0, 0.5, 0.1, 1.0) });
        findings.draw(Plot {
            title: "a plot".into(),
            caption: "a caption".into(),
            x: Scale::linear("x"),
            y: Scale::linear("y"),
            curves: vec![Curve::ours("a", [(1.0, 2.0)])],
        });
        let mut all = Collection::new(true, true);
        all.add(first, Ok(Results { lab: first, quick: true, findings }));
        all.add(second, Err("no memory <left>".to_owned()));
        all
    }

    #[test]
    fn the_index_has_claims_links_failures_and_what_is_left_out() {
        let page = collection().index().unwrap();
        for text in [
            "<td class=\"wrap\">Fig. 4b: a &lt; b</td><td>4b</td><td class=\"wrap\">2.00</td>",
            "<td class=\"wrap\">2.10</td><td>reproduced</td>",
            "<td class=\"wrap\">cost</td><td>–</td>",
            "<a href=\"nf-locality.html\">nf-locality</a>",
            "<code>slipstream lab nf-locality --quick</code>",
            "<code>slipstream lab --all --quick</code>",
            "no memory &lt;left&gt;</td><td>failed</td>",
            "Of the papers&#x27; claims, 1 are reproduced, 1 have the same sign, 0 are contradicted, 0 are not",
            "Of our own aims, 0 are met, 1 are missed, 0 are not comparable. 1 of 2 labs failed.",
            "<td>aim missed</td>",
            "<li>live: it needs root",
        ] {
            assert!(page.contains(text), "{text}: {page}");
        }
        assert!(!page.contains("href=\"chain.html\""), "a lab that failed has no page");
    }

    /// Wide tables are scrolled by keys too, and are read aloud with their names and heads.
    #[test]
    fn tables_are_reached_and_have_heads() {
        let all = collection();
        for page in [all.index().unwrap(), all.results().next().unwrap().html().unwrap()] {
            let count = |text: &str| page.matches(text).count();
            assert!(count("<table") > 0);
            assert_eq!(count("<table"), count("<table aria-label=\""), "{page}");
            assert_eq!(
                count("class=\"sheet\""),
                count("class=\"sheet\" role=\"group\" aria-label=\""),
                "{page}"
            );
            assert_eq!(count("class=\"sheet\""), count("\" tabindex=\"0\">"), "{page}");
            assert_eq!(count("<th>") + count("<th "), count(" scope=\""), "{page}");
        }
    }

    #[test]
    fn one_object_has_all_results_and_sums() {
        let json = collection().json();
        assert_eq!(json["schema"], 1);
        assert_eq!(json["labs"][0]["name"], "nf-locality");
        let version = env!("CARGO_PKG_VERSION");
        assert_eq!((&json["version"], &json["labs"][0]["version"]), (&json!(version), &json!(version)));
        assert_eq!(json["labs"][0]["failed_claims"], 2);
        assert_eq!((&json["failed_claims"], &json["failed_labs"]), (&json!(2), &json!(1)));
        assert_eq!(json["verdicts"]["reproduced"], 1);
        assert_eq!(json["failed"], json!([{ "name": "chain", "error": "no memory <left>" }]));
        assert_eq!(json["left_out"][0]["name"], "live");
        let tables: Vec<String> = collection().tables().iter().map(|t| t.render(None)).collect();
        assert_eq!(tables.len(), 2);
        assert!(tables[1].contains("no memory") && tables[1].contains("live"), "{tables:?}");
    }

    #[test]
    fn a_lab_has_a_page_and_files_for_its_figures() {
        let all = collection();
        let files = all.results().next().unwrap().files().unwrap();
        let names: Vec<&str> = files.iter().map(|f| f.0.as_str()).collect();
        assert_eq!(names, ["nf-locality.html", "nf-locality-1.svg", "nf-locality-1.csv"]);
        let page = &files[0].1;
        assert!(
            page.contains("<a href=\"index.html\">") && page.contains("href=\"nf-locality-1.csv\""),
            "{page}"
        );
        // An aim of ours that is missed contradicts nobody, on the page and in the table as in the index.
        let table = all.results().next().unwrap().table().render(None);
        assert!(
            page.contains("<td class=\"wrap\">aim missed</td>") && table.contains("aim missed"),
            "{page} {table}"
        );
        assert!(!page.contains("contradicted") && !table.contains("contradicted"), "{page} {table}");
        let alone = all.results().next().unwrap().html().unwrap();
        assert!(!alone.contains("href="), "one page needs no other file");
    }

    #[test]
    fn figures_are_found_in_claims() {
        for (text, found) in [
            ("SLF 1 costs so many times what SLF 32 costs (Fig. 4b)", Some("4b")),
            ("Fig. 5b, shuffled: the aggregator makes all nine faster", Some("5b")),
            ("Cost (Figs. 12a, 15a)", Some("12a, 15a")),
            ("1.98 (Fig. 15a)", Some("15a")),
            ("Fig. of ours", None),
            ("nothing", None),
        ] {
            assert_eq!(figure(text).as_deref(), found, "{text}");
        }
    }
}
