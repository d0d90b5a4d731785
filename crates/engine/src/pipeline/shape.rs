//! The shape of a graph: where its ends lead, and what each stage is by where it stands.

use std::collections::{BTreeMap, HashSet};

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::read::Table;
use slipstream_core::registry::{Group, Ports, Role};

/// The number of stages that a graph has at most. Stages call one another, so that each one takes some of
/// its thread's stack.
const MOST_STAGES: usize = 1024;

impl Plan {
    /// Leads `in` to the start and the end to `out` where the graph doesn't say.
    pub(super) fn wire_ends(&mut self, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        let all = self.stages.len();
        for (name, source) in [("in", true), ("out", false)] {
            let Some(table) = tables.remove(name).filter(|t| !t.used) else { continue };
            let open: Vec<usize> = (0..all)
                .filter(|i| {
                    let stage = self.stages.get(*i);
                    let ports = stage.map(|s| if source { s.kind.inputs } else { s.kind.outputs });
                    let wired =
                        |w: &Wire| if source { w.to == *i } else { w.from == *i && is_first(&w.output) };
                    ports.is_some_and(|p| p != Ports::None) && !self.wires.iter().any(wired)
                })
                .collect();
            // A stage that leads nowhere at all comes before one of whose ports some lead somewhere.
            let loose =
                |i: &usize| !self.wires.iter().any(|w| if source { w.to == *i } else { w.from == *i });
            let open = match open.iter().copied().filter(loose).collect::<Vec<_>>().as_slice() {
                [one] => vec![*one],
                _ => open,
            };
            let Some(kind) = table.kind.and_then(|(k, _)| self.registry.get(&k).copied()) else { continue };
            let end = self.text.len();
            match open.as_slice() {
                [one] => {
                    let stage = self.planned(name.to_owned(), kind, 0..end, &table.settings, findings);
                    self.stages.push(stage);
                    let port = self.stages.len() - 1;
                    let (from, to) = if source { (port, *one) } else { (*one, port) };
                    let at = self.stages.get(*one).map_or(0..end, |s| s.span.clone());
                    let (output_span, input_span) = (at.clone(), at);
                    self.wires.push(Wire { from, output: None, to, input: None, output_span, input_span });
                }
                [] if all == 0 => {
                    findings.push(
                        Finding::new(&(0..1), "the graph has no stage").hint("as in 'reframe(hold=64us)'"),
                    );
                }
                [] => {
                    // Unless it goes round, packets come from a stage that makes them, or end in one.
                    let bound = self.stages.iter().find(|s| {
                        let ports = if source { s.kind.inputs } else { s.kind.outputs };
                        ports == Ports::None
                    });
                    findings.push(match bound {
                        Some(stage) => taken(name, source, stage),
                        None => {
                            let message =
                                format!("there is no way between `{name}` and the graph: it goes round");
                            let hint = named_twice("a :: reframe -> b :: reframe");
                            Finding::new(&(0..end), message).hint(hint)
                        }
                    });
                    // The other end has the same trouble.
                    return;
                }
                others => {
                    let message = format!("{} stages could be {name}'s neighbour", others.len());
                    let hint = if source {
                        "name it in the graph: `in -> …`"
                    } else {
                        "name it in the graph: `… -> out`"
                    };
                    findings.push(Finding::new(&(0..end), message).hint(hint));
                }
            }
        }
    }

    /// Checks the shape of the graph: sources at the start, sinks at the end, no cycle but
    /// through a router.
    pub(super) fn check_shape(&mut self, findings: &mut Vec<Finding>) {
        let count = self.stages.len();
        let wires = &self.wires;
        let end = 0..self.text.len().min(1);
        if count == 0 {
            findings.push(
                Finding::new(&end, "the graph has no stage").hint("as in `graph = \"in -> reframe -> out\"`"),
            );
            return;
        }
        if let Some(stage) = self.stages.get(MOST_STAGES) {
            let message = format!("the graph has {count} stages, and may have {MOST_STAGES}");
            let hint = "run several pipelines, one behind the other: ports `shm` connect them";
            findings.push(Finding::new(&stage.span, message).hint(hint));
            return;
        }
        let mut both_ends = Vec::new();
        let fed: HashSet<usize> = wires.iter().map(|w| w.to).collect();
        let feeding: HashSet<usize> = wires.iter().map(|w| w.from).collect();
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let (fed, feeds) = (fed.contains(&i), feeding.contains(&i));
            let (inputs, outputs) = (stage.kind.inputs != Ports::None, stage.kind.outputs != Ports::None);
            let two_way = fed && feeds && inputs && outputs && stage.kind.live();
            stage.role = match (fed, feeds) {
                (true, true) if two_way => Role::TwoWay,
                (true, false) if inputs && outputs && stage.kind.group == Group::Port => Role::Sink,
                (false, true) if stage.kind.group == Group::Port => Role::Source,
                (true, _) if !outputs => Role::Sink,
                _ => Role::Inner,
            };
            let span = stage.span.clone();
            let name = &stage.name;
            let say = |message: String, hint: &str| Finding::new(&span, message).hint(hint);
            if fed && feeds && !two_way && stage.kind.group == Group::Port {
                let hint = if *name == stage.kind.name {
                    named_twice(&format!("a :: {name}"))
                } else {
                    "use two ports, one at each end".to_owned()
                };
                findings.push(say(format!("packets both come from `{name}` and go to it"), &hint));
                both_ends.push(i);
            } else if !fed && stage.role != Role::Source {
                findings.push(say(format!("nothing leads to `{name}`"), "wire it up: `in -> …`"));
            } else if fed && !inputs {
                findings.push(say(format!("no packet can go to `{name}`"), "it only makes packets"));
            } else if feeds && !outputs {
                findings.push(say(format!("no packet leaves `{name}`"), "it is the end of the way"));
            }
        }
        self.check_cycles(&both_ends, findings);
    }
}

/// No stage is left for a port: the ways of packets begin, or end, at one like `stage` already.
fn taken(port: &str, source: bool, stage: &PlannedStage) -> Finding {
    let (what, hint) = if source {
        ("begins", "leave the port out (`-i`), or wire it up in the graph: `in -> …`")
    } else {
        ("ends", "leave the port out (`-o`), or wire it up in the graph: `… -> out`")
    };
    let message =
        format!("no stage is left for `{port}`: each way {what} in the graph, as at `{}`", stage.name);
    Finding::new(&stage.span, message).hint(hint)
}

/// What to do where one stage stands for two, and an example of it.
fn named_twice(example: &str) -> String {
    format!("a stage that is named twice is one stage; two of a type have names: `{example}`")
}

fn is_first(port: &Option<String>) -> bool {
    port.as_ref().is_none_or(|p| p == "0" || p == "out")
}
