//! The shape of a graph: where its ends lead, and what each stage is by where it stands.

use std::collections::{BTreeMap, HashSet};

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::read::Table;
use slipstream_core::registry::{Common, Group, Made, Ports, Role};

/// The number of stages that a graph has at most. Stages call one another, so that each one takes some of
/// its thread's stack.
const MOST_STAGES: usize = 1024;

/// An end of a graph, to which a port may be led that the graph doesn't name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    In,
    Out,
}

impl End {
    /// The name of the port at this end.
    fn name(self) -> &'static str {
        match self {
            Self::In => "in",
            Self::Out => "out",
        }
    }

    /// The ports on the side of a stage that is towards this end.
    fn ports(self, stage: &PlannedStage) -> Ports {
        match self {
            Self::In => stage.kind.inputs,
            Self::Out => stage.kind.outputs,
        }
    }

    /// The stage of a wire's two that is nearer to this end.
    fn near(self, wire: &Wire) -> usize {
        match self {
            Self::In => wire.from,
            Self::Out => wire.to,
        }
    }

    /// The stage of a wire's two that is farther from this end.
    fn far(self, wire: &Wire) -> usize {
        match self {
            Self::In => wire.to,
            Self::Out => wire.from,
        }
    }

    /// An example of a graph that names the port.
    fn example(self) -> &'static str {
        match self {
            Self::In => "`in -> …`",
            Self::Out => "`… -> out`",
        }
    }
}

impl Plan {
    /// Leads `in` to the start and the end to `out` where the graph doesn't say.
    pub(super) fn wire_ends(&mut self, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        let all = self.stages.len();
        for end in [End::In, End::Out] {
            let name = end.name();
            let Some(table) = tables.remove(name).filter(|t| !t.used) else { continue };
            let (open, port) = match self.neighbours_of(end, all) {
                Ok(open) => open,
                Err(finding) => {
                    findings.push(finding);
                    continue;
                }
            };
            let Some(kind) = table.kind.and_then(|(k, _)| self.registry.get(&k).copied()) else { continue };
            let whole = 0..self.text.len();
            match open.as_slice() {
                [one] => {
                    let stage = self.planned(name.to_owned(), kind, whole, &table.settings, findings);
                    self.add_end(end, stage, (*one, port));
                }
                [] if all == 0 => {
                    findings.push(
                        Finding::new(&(0..1), "the graph has no stage").hint("as in 'reframe(hold=64us)'"),
                    );
                }
                [] => {
                    findings.push(self.no_neighbour(end));
                    // The other end has the same trouble.
                    return;
                }
                others => {
                    let message = format!("{} stages could be {name}'s neighbour", others.len());
                    let hint = format!("name it in the graph: {}", end.example());
                    findings.push(Finding::new(&whole, message).hint(hint));
                }
            }
        }
    }

    /// Those of the first `all` stages that could be next to the port at this end; with the output port of
    /// the one that there is, where that isn't the first.
    fn neighbours_of(&self, end: End, all: usize) -> Result<(Vec<usize>, Option<String>), Finding> {
        // A port that is one end already is no neighbour of the other end: one of files never, a live one
        // only where nothing else is.
        let candidates = |ends: bool| -> Vec<usize> {
            let stages = self.stages.iter().enumerate().take(all);
            let fits = |(i, stage): &(usize, &PlannedStage)| {
                let live_or_inner = !ends || stage.kind.live();
                end.ports(stage) != Ports::None && self.is_at(end, *i, stage) == ends && live_or_inner
            };
            stages.filter(fits).map(|(i, _)| i).collect()
        };
        let with_ports = match candidates(false) {
            none if none.is_empty() => candidates(true),
            some => some,
        };
        // A stage that leads nowhere at all comes before one of whose ports some lead somewhere.
        let loose = |i: &usize| !self.wires.iter().any(|wire| end.far(wire) == *i);
        let loose: Vec<usize> = with_ports.iter().copied().filter(loose).collect();
        if end == End::In || loose.len() == 1 {
            Ok((loose, None))
        } else {
            self.last(end.name(), &with_ports)
        }
    }

    /// Returns true if a stage is a port that the graph has at this end already.
    fn is_at(&self, end: End, id: usize, stage: &PlannedStage) -> bool {
        stage.kind.group == Group::Port && self.wires.iter().any(|wire| end.near(wire) == id)
    }

    /// Adds a port at this end, wired to its neighbour, and to this output port of it where one is named.
    fn add_end(&mut self, end: End, stage: PlannedStage, (neighbour, output): (usize, Option<String>)) {
        self.stages.push(stage);
        let added = self.stages.len() - 1;
        let (from, to) = match end {
            End::In => (added, neighbour),
            End::Out => (neighbour, added),
        };
        let at = self.stages.get(neighbour).map_or(0..self.text.len(), |stage| stage.span.clone());
        let (output_span, input_span) = (at.clone(), at);
        self.wires.push(Wire { from, output, to, input: None, output_span, input_span });
    }

    /// Says why no stage can be next to the port at this end.
    fn no_neighbour(&self, end: End) -> Finding {
        // Unless it goes round, packets come from a stage that makes them, or end in one.
        let bound = self
            .stages
            .iter()
            .enumerate()
            .find(|(i, stage)| end.ports(stage) == Ports::None || self.is_at(end, *i, stage));
        match bound {
            Some((_, stage)) => taken(end, stage),
            None => {
                let message =
                    format!("there is no way between `{}` and the graph: it goes round", end.name());
                Finding::new(&(0..self.text.len()), message).hint(named_twice("a :: reframe -> b :: reframe"))
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
        if matches!(stage.kind.outputs, Ports::These(_)) {
            return stage.kind.outputs.names();
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

/// No stage is left for the port at this end: the ways of packets begin, or end, at one like `stage` already.
fn taken(end: End, stage: &PlannedStage) -> Finding {
    let (what, option) = match end {
        End::In => ("begins", "-i"),
        End::Out => ("ends", "-o"),
    };
    let port = end.name();
    let message =
        format!("no stage is left for `{port}`: each way {what} in the graph, as at `{}`", stage.name);
    let hint = format!("leave the port out (`{option}`), or wire it up in the graph: {}", end.example());
    Finding::new(&stage.span, message).hint(hint)
}

/// The advice for where one stage stands for two, and an example of it.
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
