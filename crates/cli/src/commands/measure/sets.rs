//! `measure sets`: how many keys two saved states have together, share, and have alone.

use std::path::Path;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use slipstream::measure::{Description, Saved, SavedEpoch, compare_states};
use slipstream_report::{Table, count, number};
use slipstream_sketch::{Bounds, Confidence};

use super::state::{self, check_state};
use crate::check;
use crate::cli::measure::MeasureFormat;
use crate::commands::{Outcome, checked};
use crate::ui;

/// The names of the two states.
const STATES: [&str; 2] = ["first", "second"];
/// The figures that are told of the keys of two states, in this order.
const PARTS: [&str; 4] = ["union", "intersection", "only_first", "only_second"];
/// The same, for people.
const LABELS: [&str; 4] = ["in either", "in both", "in the first alone", "in the second alone"];

type Sizes = [Bounds<f64>; 4];

/// The two states that are compared, and what came of it.
struct Comparison<'a> {
    about: Description,
    /// Their files, each with all its epochs as one.
    states: [(&'a Path, SavedEpoch); 2],
    sizes: Sizes,
    confidence: Confidence,
}

pub(super) fn sets(paths: [&Path; 2], format: MeasureFormat, checks: &[String]) -> anyhow::Result<Outcome> {
    let checks = check::parse_all(checks)?;
    let compared = Comparison::of(paths)?;
    let result = compared.to_json();
    ui::print(match format {
        MeasureFormat::Json => serde_json::to_string_pretty(&result)?,
        MeasureFormat::Csv => compared.to_csv(),
        MeasureFormat::Table => compared.to_table().render(ui::columns()),
    })?;
    checked(&checks, &result)
}

impl<'a> Comparison<'a> {
    fn of([first, second]: [&'a Path; 2]) -> anyhow::Result<Self> {
        let (a, b) = (state::read(first)?, state::read(second)?);
        state::check_keys(&a.about, &b.about)?;
        let lens = a.about.keying()?.lens();
        let (about, (a, b)) = (a.about.clone(), (whole(a, lens, first)?, whole(b, lens, second)?));
        let (mut sizes, mut confidence): (Option<Sizes>, _) = (None, Confidence::Certain);
        for (side, len) in lens.into_iter().enumerate() {
            let state = |epoch: &SavedEpoch| epoch.states.get(side).cloned().unwrap_or_default();
            let (mine, theirs) = (state(&a), state(&b));
            if mine.is_empty() && theirs.is_empty() {
                continue;
            }
            // One that has seen no packet of this IP version has no sketch of it.
            let or_none = |state: Vec<u8>, other: &[u8]| {
                if state.is_empty() { state::emptied(other, len) } else { Ok(state) }
            };
            let (mine, theirs) = (or_none(mine.clone(), &theirs)?, or_none(theirs, &mine)?);
            for (state, path) in [(&mine, first), (&theirs, second)] {
                check_state(state, &about.sketch, len).with_context(|| path.display().to_string())?;
            }
            let (told, sure) = compare_states(len, &mine, &theirs)?;
            let more = [told.union, told.intersection, told.only_first, told.only_second];
            confidence = confidence.and(sure);
            sizes = Some(match sizes {
                None => more,
                // Keys of IPv4 and of IPv6 are different ones: their numbers add up.
                Some(sizes) => std::array::from_fn(|i| plus(sizes.get(i), more.get(i))),
            });
        }
        let Some(sizes) = sizes else { bail!("the states have no sketch") };
        Ok(Self { about, states: [(first, a), (second, b)], sizes, confidence })
    }

    fn to_json(&self) -> Value {
        let about = &self.about;
        let mut result = Map::new();
        let mut put = |key: &str, value: Value| result.insert(key.to_owned(), value);
        put("schema", 1.into());
        put("sketch", about.sketch.as_str().into());
        put("key", about.key.to_string().into());
        put("tunnel", about.tunnel.as_str().into());
        put("seed", about.seed.into());
        for (name, (path, epoch)) in STATES.iter().zip(&self.states) {
            let (file, packets) = (path.display().to_string(), epoch.span.packets);
            put(name, json!({ "file": file, "packets": packets }));
        }
        put("confidence", if let Confidence::Share(share) = self.confidence { share } else { 1.0 }.into());
        for (part, size) in PARTS.iter().zip(&self.sizes) {
            put(part, json!({ "estimate": size.estimate, "lower": size.lower, "upper": size.upper }));
        }
        result.into()
    }

    fn to_csv(&self) -> String {
        let mut lines = vec!["part,estimate,lower,upper".to_owned()];
        let line =
            |(part, s): (&&str, &Bounds<f64>)| format!("{part},{},{},{}", s.estimate, s.lower, s.upper);
        lines.extend(PARTS.iter().zip(&self.sizes).map(line));
        lines.join("\n")
    }

    fn to_table(&self) -> Table {
        let mut t = Table::default();
        t.title(format!("keys ({}) of two states: {}", self.about.key, self.about.sketch));
        for (which, (path, epoch)) in STATES.iter().zip(&self.states) {
            t.row([(*which).to_owned(), path.display().to_string()]);
            t.row(["  packets".to_owned(), count(epoch.span.packets)]);
        }
        t.row(["", "estimate", "at least", "at most"]);
        for (label, size) in LABELS.iter().zip(&self.sizes) {
            let figure = |v: f64| number(Some(v), if v.fract() == 0.0 { 0 } else { 1 });
            t.row([(*label).to_owned(), figure(size.estimate), figure(size.lower), figure(size.upper)]);
        }
        match self.confidence {
            Confidence::Share(share) => {
                t.row(["bounds hold in".to_owned(), format!("{:.0} % of cases", share * 100.0)]);
            }
            _ => t.row(["bounds hold", "always"]),
        }
        t
    }
}

/// All epochs of a state as one: a key is in it if it was in any of them.
fn whole(saved: Saved, lens: [usize; 2], path: &Path) -> anyhow::Result<SavedEpoch> {
    let mut epochs = saved.epochs.into_iter();
    let mut all = epochs.next().unwrap_or_default();
    for epoch in epochs {
        state::merge_epoch(&mut all, epoch, lens).with_context(|| path.display().to_string())?;
    }
    Ok(all)
}

fn plus(a: Option<&Bounds<f64>>, b: Option<&Bounds<f64>>) -> Bounds<f64> {
    let (a, b) = (a.copied().unwrap_or(Bounds::exact(0.0)), b.copied().unwrap_or(Bounds::exact(0.0)));
    Bounds { estimate: a.estimate + b.estimate, lower: a.lower + b.lower, upper: a.upper + b.upper }
}
