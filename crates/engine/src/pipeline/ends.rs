//! The ports at the ends of a graph that doesn't name them: those of the command line.

use std::collections::BTreeMap;

use slipstream_core::registry::{Group, Ports, Role};
use slipstream_core::settings::Literal;

use super::config::{Plan, PlannedStage};
use super::diagnostics::{Diagnostics, Finding, INPUT, OUTPUT, Span};
use super::read::{Table, Written};

/// The type of a port, and its settings as they are written.
pub(super) type End<'a> = Option<(&'a str, Vec<(String, String)>)>;

/// The settings of the stages `in` and `out`, as if tables had them.
pub(super) fn tables_of_ends(input: &End<'_>, output: &End<'_>) -> BTreeMap<String, Table> {
    let mut tables = BTreeMap::new();
    for (name, port, span) in [("in", input, INPUT), ("out", output, OUTPUT)] {
        let Some((kind, settings)) = port else { continue };
        let settings = settings.iter().map(|setting| written(setting, &span)).collect();
        tables.insert(
            name.to_owned(),
            Table { span: span.clone(), kind: Some(((*kind).to_owned(), span)), settings, used: false },
        );
    }
    tables
}

/// A setting of a port that doesn't stand in the text; `span` says which port.
fn written((key, value): &(String, String), span: &Span) -> Written {
    let value = Literal::Text(value.clone());
    Written { key: key.clone(), value, key_span: span.clone(), value_span: span.clone(), raw: None }
}

impl Plan {
    /// With another port in place of the only one that packets come from, or of the only one that they go to.
    /// Paths of these ports are as they stand, not from the directory of the configuration.
    ///
    /// # Errors
    /// There is none that could be meant, or more than one, or the port doesn't fit there.
    pub fn replace_ends(
        mut self,
        input: Option<(&str, Vec<(String, String)>)>,
        output: Option<(&str, Vec<(String, String)>)>,
    ) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let base = std::mem::take(&mut self.base);
        for (option, role, port, span) in
            [("-i", Role::Source, input, INPUT), ("-o", Role::Sink, output, OUTPUT)]
        {
            let Some((kind, settings)) = port else { continue };
            let is = |s: &PlannedStage| s.role == role && s.kind.group == Group::Port;
            let all: Vec<usize> =
                self.stages.iter().enumerate().filter(|(_, s)| is(s)).map(|(i, _)| i).collect();
            let (&[one], Some(kind)) = (all.as_slice(), self.registry.get(kind).copied()) else {
                let names: Vec<&str> =
                    all.iter().filter_map(|i| self.stages.get(*i)).map(|s| s.name.as_str()).collect();
                let message = match names.as_slice() {
                    [] => format!("{option}: there is no port in the graph that it could stand in for"),
                    names => format!("{option} could stand in for each of {}", names.join(", ")),
                };
                findings.push(Finding::new(&(0..1), message).hint("change the port in the configuration"));
                continue;
            };
            let Some(name) = self.stages.get(one).map(|s| s.name.clone()) else { continue };
            let written: Vec<Written> = settings.iter().map(|setting| written(setting, &span)).collect();
            let stage = self.planned(name, kind, span, &written, &mut findings);
            if let Some(place) = self.stages.get_mut(one) {
                *place = stage;
            }
        }
        self.base = base;
        self.done(findings, Vec::new())
    }

    /// The same, if packets come from what was given to come from, and go to what was given to go to: a graph
    /// that turns them round would write to the input.
    pub(super) fn with_ends(self, input: bool, output: bool) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        for (given, name, turned, what) in [
            (input, "in", Role::Sink, "`in` is the input (`-i`), and here packets go to it"),
            (output, "out", Role::Source, "`out` is the output (`-o`), and here packets come from it"),
        ] {
            let is = |s: &&PlannedStage| given && s.name == name && s.role == turned;
            if let Some(stage) = self.stages.iter().find(is) {
                findings.push(Finding::new(&stage.span, what.to_owned()).hint("as in `in -> … -> out`"));
            }
        }
        self.fail_on(findings)?;
        Ok(self)
    }

    /// `in` and `out` are one live port: that is opened once, both ways.
    pub(super) fn join_ends(&mut self) {
        let find = |name| self.stages.iter().position(|s| s.name == name);
        let (Some(first), Some(last)) = (find("in"), find("out")) else { return };
        let two_way =
            |s: &PlannedStage| s.kind.live() && s.kind.inputs != Ports::None && s.kind.outputs != Ports::None;
        if first == last || !self.stages.get(last).is_some_and(two_way) {
            return;
        }
        self.stages.remove(last);
        let moved = |stage: usize| stage - usize::from(stage > last);
        for wire in &mut self.wires {
            for end in [&mut wire.from, &mut wire.to] {
                *end = moved(if *end == last { first } else { *end });
            }
        }
    }
}
