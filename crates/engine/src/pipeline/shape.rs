//! The shape of a graph: where its ends lead, and what each stage is by where it stands.

use std::collections::{BTreeMap, HashSet};

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::read::Table;
use slipstream_core::registry::{Common, Group, Made, Ports, Role};

/// The number of stages that a graph has at most. Stages call one another, so that each one takes some of
/// its thread's stack.
const MOST_STAGES: usize = 1024;

impl Plan {
    /// Leads `in` to the start and the end to `out` where the graph doesn't say.
    pub(super) fn wire_ends(&mut self, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        let all = self.stages.len();
        for (name, source) in [("in", true), ("out", false)] {
            let Some(table) = tables.remove(name).filter(|t| !t.used) else { continue };
            let has_ports = |stage: &PlannedStage| {
                (if source { stage.kind.inputs } else { stage.kind.outputs }) != Ports::None
            };
            // A port that is one end already is no neighbour of the other end: one of files never, a live one
            // only where nothing else is.
            let is_end = |i: usize, stage: &PlannedStage| {
                let meets = |w: &Wire| (if source { w.from } else { w.to }) == i;
                stage.kind.group == Group::Port && self.wires.iter().any(meets)
            };
            let candidates = |ends: bool| -> Vec<usize> {
                let stages = self.stages.iter().enumerate().take(all).filter(|(_, s)| has_ports(s));
                let fits =
                    |(i, s): &(usize, &PlannedStage)| is_end(*i, s) == ends && (!ends || s.kind.live());
                stages.filter(fits).map(|(i, _)| i).collect()
            };
            let with_ports = match candidates(false) {
                none if none.is_empty() => candidates(true),
                some => some,
            };
            // A stage that leads nowhere at all comes before one of whose ports some lead somewhere.
            let loose =
                |i: &usize| !self.wires.iter().any(|w| if source { w.to == *i } else { w.from == *i });
            let loose: Vec<usize> = with_ports.iter().copied().filter(loose).collect();
            let neighbours =
                if source || loose.len() == 1 { Ok((loose, None)) } else { self.last(name, &with_ports) };
            let (open, port) = match neighbours {
                Ok(open) => open,
                Err(finding) => {
                    findings.push(finding);
                    continue;
                }
            };
            let Some(kind) = table.kind.and_then(|(k, _)| self.registry.get(&k).copied()) else { continue };
            let end = self.text.len();
            match open.as_slice() {
                [one] => {
                    let stage = self.planned(name.to_owned(), kind, 0..end, &table.settings, findings);
                    self.stages.push(stage);
                    let end = self.stages.len() - 1;
                    let (from, to) = if source { (end, *one) } else { (*one, end) };
                    let at = self.stages.get(*one).map_or(0..end, |s| s.span.clone());
                    let (output_span, input_span) = (at.clone(), at);
                    self.wires.push(Wire { from, output: port, to, input: None, output_span, input_span });
                }
                [] if all == 0 => {
                    findings.push(
                        Finding::new(&(0..1), "the graph has no stage").hint("as in 'reframe(hold=64us)'"),
                    );
                }
                [] => {
                    // Unless it goes round, packets come from a stage that makes them, or end in one.
                    let bound = self.stages.iter().enumerate().find(|(i, s)| {
                        let ports = if source { s.kind.inputs } else { s.kind.outputs };
                        ports == Ports::None || is_end(*i, s)
                    });
                    findings.push(match bound {
                        Some((_, stage)) => taken(name, source, stage),
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

    /// The stages among these whose first port is free to lead to the end `port`. Where there is none, the
    /// only stage with a free port, and that port, of those that settings name: the others of a type have
    /// meanings of their own.
    fn last(&self, port: &str, among: &[usize]) -> Result<(Vec<usize>, Option<String>), Finding> {
        let (mut first, mut other) = (Vec::new(), Vec::new());
        for (id, stage) in among.iter().filter_map(|id| Some((*id, self.stages.get(*id)?))) {
            let names = self.outputs_of(stage);
            let free = self.free_outputs(id, &names);
            if free.first() == Some(&0) {
                first.push(id);
            } else if matches!(stage.kind.outputs, Ports::AsSet(_)) {
                other.extend(free.iter().filter_map(|n| Some((id, stage, names.get(*n)?.clone()))));
            }
        }
        match other.as_slice() {
            _ if !first.is_empty() => Ok((first, None)),
            [] => Ok((Vec::new(), None)),
            [(id, _, free)] => Ok((vec![*id], Some(free.clone()))),
            [(_, stage, free), ..] => Err(several(port, stage, free, other.len())),
        }
    }

    /// The names of a stage's output ports. Where its settings name them it is built for that; there are none
    /// where it can't be built, which is told later.
    fn outputs_of(&self, stage: &PlannedStage) -> Vec<String> {
        if let Ports::These(ports) = stage.kind.outputs {
            return ports.iter().map(|port| port.name.to_owned()).collect();
        }
        match self.build_dry(stage, &Common::default()) {
            Ok(Made::WithPorts(_, names) | Made::Between(_, names)) => names,
            _ => Vec::new(),
        }
    }

    /// The numbers of a stage's output ports, of these names, that lead nowhere. Without names its first port
    /// is free unless a wire leaves by it.
    fn free_outputs(&self, id: usize, names: &[String]) -> Vec<usize> {
        let number = |wire: &Wire| match wire.output.as_deref() {
            None => Some(0),
            written => port_number(written, names),
        };
        let wired: HashSet<usize> = self.wires.iter().filter(|w| w.from == id).filter_map(number).collect();
        (0..names.len().max(1)).filter(|n| !wired.contains(n)).collect()
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

/// Several ports could lead to the end `port`: this one of `stage` is the first of `count`.
fn several(port: &str, stage: &PlannedStage, free: &str, count: usize) -> Finding {
    let message =
        format!("{count} output ports could lead to `{port}`, and none is the first one of its stage");
    let hint = format!("name it in the graph, as in `{}[{free}] -> {port}`", stage.name);
    Finding::new(&stage.span, message).hint(hint)
}

/// A port's number by its name or number; none written means 0.
pub(crate) fn port_number(written: Option<&str>, names: &[String]) -> Option<usize> {
    let Some(port) = written else { return (!names.is_empty()).then_some(0) };
    names.iter().position(|n| n == port).or_else(|| port.parse().ok().filter(|n| *n < names.len()))
}
