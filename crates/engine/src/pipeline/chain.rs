//! Plans of stages in a row, from values: nothing is written as text to be read again.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::{Plan, PlannedStage, Wire, show};
use super::diagnostics::{Diagnostics, Finding};
use super::registry::{Registry, Role, StageType};
use super::settings::{Kind, Settings, Value, did_you_mean};
use slipstream_core::settings::Literal;

impl Plan {
    /// Stages in a row, by name, type and settings; a name that comes again is the same stage, as a live port
    /// at both ends is. Nothing is read from text, so that values are whatever the caller has.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn chain(
        registry: &Registry,
        stages: Vec<(&str, &str, Settings)>,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let mut plan = Self::empty(registry, "", "chain", base);
        let mut before = None;
        for (name, kind, settings) in stages {
            let id = plan.stage(name);
            let id = match (id, registry.get(kind)) {
                (Some(id), _) => id,
                (None, Some(kind)) => {
                    plan.stages.push(PlannedStage::of(name, kind, settings, &mut findings));
                    plan.stages.len() - 1
                }
                (None, None) => {
                    let known = registry.types().iter().map(|t| t.name);
                    let finding = Finding::new(&(0..1), format!("there is no stage type `{kind}`"));
                    findings.push(finding.hint(did_you_mean(kind, known)));
                    continue;
                }
            };
            if let Some(from) = before.replace(id) {
                let (output_span, input_span) = (0..1, 0..1);
                plan.wires.push(Wire { from, output: None, to: id, input: None, output_span, input_span });
            }
        }
        plan.done(findings, Vec::new())
    }
}

impl PlannedStage {
    /// A stage with these values; what they leave out has its default.
    fn of(name: &str, kind: &StageType, settings: Settings, findings: &mut Vec<Finding>) -> Self {
        let defaults = Settings::defaults(kind.settings);
        let mut written = Vec::new();
        for (key, value) in &settings.0 {
            let Some(setting) = kind.settings.iter().find(|s| s.name == *key) else {
                let message = format!("`{key}` is not a setting of {}", kind.name);
                let hint = did_you_mean(key, kind.settings.iter().map(|s| s.name));
                findings.push(Finding::new(&(0..1), message).hint(hint));
                continue;
            };
            if !setting.kind.accepts(value) {
                let message = format!("{key}: {value} is not possible");
                let hint = format!("{key} is a {}", setting.kind.describe());
                findings.push(Finding::new(&(0..1), message).hint(hint));
            }
            if defaults.0.get(key) != Some(value) {
                written.push(((*key).to_owned(), drawn(&setting.kind, value)));
            }
        }
        for setting in kind.settings.iter().filter(|s| s.required && !settings.0.contains_key(s.name)) {
            findings.push(Finding::new(
                &(0..1),
                format!("`{name}` lacks its setting `{}`: {}", setting.name, setting.help),
            ));
        }
        let mut all = defaults;
        all.0.extend(settings.0);
        findings.extend(kind.lonely(&all).map(|e| Finding::new(&(0..1), e.message).hinted(e.hint)));
        Self {
            name: name.to_owned(),
            kind: *kind,
            settings: all,
            role: Role::Inner,
            written,
            span: 0..1,
            spans: BTreeMap::new(),
            readable: true,
        }
    }
}

/// A value as the graph's syntax reads it.
fn drawn(kind: &Kind, value: &Value) -> String {
    match (kind, value) {
        (Kind::List(kind), Value::List(all)) => {
            format!("[{}]", all.iter().map(|one| drawn(kind, one)).collect::<Vec<_>>().join(", "))
        }
        (Kind::Time(..) | Kind::TimeOr(..), Value::Number(ns)) => format!("{ns}ns"),
        (_, one) => show(&Literal::Text(one.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Drawing, built_in};

    /// A plan from values is the plan from the graph that says the same, and is drawn as one that says it.
    #[test]
    fn values_make_the_plan_that_text_makes() {
        let registry = built_in();
        let reframe = registry.get("reframe").unwrap();
        let texts =
            [("hold", "128us"), ("burst", "8"), ("bypass", "udp port 53"), ("class", "a: tcp => hold=1us")];
        let texts = texts.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let settings = Settings::default().read(reframe.settings, &texts, Path::new("")).unwrap();
        let none = Settings::default;
        let stages = vec![("in", "null", none()), ("r", "reframe", settings), ("out", "null", none())];
        let plan = Plan::chain(&registry, stages, Path::new("")).unwrap();
        plan.check().unwrap();
        let written = "in :: null -> r :: reframe(hold=128us, burst=8, bypass=\"udp port 53\", \
                       class=[\"a: tcp => hold=1us\"]) -> out :: null";
        let twin = Plan::from_graph(written, None, None, Path::new("")).unwrap();
        let drawn = Plan::from_graph(&plan.draw(Drawing::Click), None, None, Path::new("")).unwrap();
        for other in [twin, drawn] {
            for (stage, other) in plan.stages.iter().zip(&other.stages) {
                assert_eq!(
                    (&stage.name, stage.role, &stage.settings),
                    (&other.name, other.role, &other.settings)
                );
            }
            let ends = |plan: &Plan| plan.wires.iter().map(|w| (w.from, w.to)).collect::<Vec<_>>();
            assert_eq!(ends(&plan), ends(&other));
        }
    }

    #[test]
    fn what_is_wrong_is_told_all_at_once() {
        let wrong = Settings::default().with("burst", Value::Number(300)).with("hodl", Value::Bool(true));
        let stages = vec![
            ("in", "null", Settings::default()),
            ("r", "reframe", wrong),
            ("out", "pcap", Settings::default()),
        ];
        let said = Plan::chain(&built_in(), stages, Path::new("")).unwrap_err().to_string();
        for part in
            ["burst: 300 is not possible", "1 to 256", "`hodl` is not a setting", "lacks its setting `path`"]
        {
            assert!(said.contains(part), "{part}: {said}");
        }
        let unknown = vec![("in", "nul", Settings::default())];
        let said = Plan::chain(&built_in(), unknown, Path::new("")).unwrap_err().to_string();
        assert!(said.contains("did you mean `null`"), "{said}");
    }
}
