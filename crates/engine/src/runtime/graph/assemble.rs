//! From a plan to a pipeline: stages are built in order, their ports wired up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Edge, FlowContextPlan, Head, Ledger, Node, Pipeline, Wiring};
use crate::pipeline::{Common, Diagnostics, Finding, Plan, PlannedStage, Wire, order, proxied};
use crate::pipeline::{port_number, received_twice_notes, unanswered_notes};
use crate::runtime::live::Excess;
use slipstream_core::flow_context::Place;
use slipstream_core::registry::{Group, Made, Ports, Role, Shard, Site};
use slipstream_core::seed::Seeds;
use slipstream_core::stage::DropReason;

impl Plan {
    /// Checks everything that can be checked without opening a port or creating a file.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn check(&self) -> Result<(), Diagnostics> {
        Pipeline::assemble(self, true, Seeds::Fixed(0), Shard::ALONE).map(|_| ())
    }

    /// Checks everything, and gives what the stages have to say of how they understood their settings: the
    /// stage's name and what it says.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn notes(&self) -> Result<Vec<(String, String)>, Diagnostics> {
        let pipeline = Pipeline::assemble(self, true, Seeds::Fixed(0), Shard::ALONE)?;
        let of = |node: &Node| node.stage.notes().into_iter().map(|note| (node.name.clone(), note)).collect();
        let mut notes: Vec<_> = pipeline.nodes.iter().flat_map::<Vec<_>, _>(of).collect();
        notes.extend(unanswered_notes(self));
        notes.extend(received_twice_notes(self));
        Ok(notes)
    }

    /// The flow contexts that the pipeline has: which stages keep what where, and how much memory that is.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn context_plan(&self) -> Result<FlowContextPlan, Diagnostics> {
        let mut pipeline = Pipeline::assemble(self, true, Seeds::Fixed(0), Shard::ALONE)?;
        Ok(pipeline.plan_contexts(&self.contexts))
    }

    /// Builds the pipeline. `seeds` are those of its hashes and random choices: a number, or what
    /// [`seeds`](Self::seeds) gives.
    ///
    /// # Errors
    /// Everything that is wrong.
    pub fn build(&self, seeds: impl Into<Seeds>) -> Result<Pipeline, Diagnostics> {
        Pipeline::assemble(self, false, seeds.into(), Shard::ALONE)
    }

    /// The same, as one of several shards.
    pub(crate) fn build_shard(&self, seeds: Seeds, shard: Shard<'_>) -> Result<Pipeline, Diagnostics> {
        Pipeline::assemble(self, false, seeds, shard)
    }

    /// The seeds that the pipeline is to have: the one that was asked for, if any; else secret ones where
    /// packets come or go by the wall clock, and 1 in a replay, which repeats itself.
    #[must_use]
    pub fn seeds(&self, asked_for: Option<u64>) -> Seeds {
        match asked_for {
            Some(seed) => Seeds::Fixed(seed),
            None if self.stages.iter().any(|s| s.kind.live()) => Seeds::Secret,
            None => Seeds::Fixed(1),
        }
    }
}

impl Pipeline {
    fn assemble(plan: &Plan, dry: bool, seeds: Seeds, shard: Shard<'_>) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let mut this = Self::of(Vec::new(), Vec::new());
        this.live = plan.stages.iter().any(|s| s.kind.live());
        let changes = |s: &PlannedStage| (s.kind.properties.changes_frames)(&s.settings);
        this.changes_frames = plan.stages.iter().any(changes);
        let alone = plan.stages.iter().find(|s| !plan.may_share(&s.kind));
        this.not_shared = alone.map(|stage| (stage.name.clone(), stage.kind.name));
        let ordered = order(&plan.stages, &plan.wires).unwrap_or_default();
        // Place of each planned stage among the nodes, and the names of its ports where settings give them.
        let mut places = vec![None; plan.stages.len()];
        let mut outputs = vec![Vec::new(); plan.stages.len()];
        let mut inputs = vec![Vec::new(); plan.stages.len()];
        let (mut sources, mut sharing) = (Vec::new(), Vec::new());
        let common = Common::default();
        let translated = proxied(plan, &mut findings);
        for id in ordered {
            let Some(planned) = plan.stages.get(id) else { continue };
            let (name, role, base) = (&planned.name, planned.role, &plan.base);
            let proxied = translated.get(id).map_or(&[][..], Vec::as_slice);
            let (seed, choices) = match (seeds.draw(), seeds.draw()) {
                (Ok(seed), Ok(choices)) => (seed, choices),
                (Err(error), _) | (_, Err(error)) => {
                    findings.push(Finding::new(&planned.span, error.to_string()));
                    break;
                }
            };
            let (live, common) = (this.live, &common);
            let site = Site { name, role, dry, base, seed, choices, live, proxied, common, shard };
            let mut ports = match planned.kind.outputs {
                Ports::These(ports) => ports.iter().map(|p| p.name.to_owned()).collect(),
                Ports::None | Ports::AsSet(_) => Vec::new(),
            };
            let uses = common.uses();
            let made = match (planned.kind.build)(&planned.settings, &site) {
                Ok(made) => made,
                Err(error) => {
                    findings.push(plan.finding(planned, error));
                    continue;
                }
            };
            let stage = match made {
                Made::Stage(stage) => Some(stage),
                Made::WithPorts(stage, names) => {
                    ports = names;
                    Some(stage)
                }
                Made::Between(stage, names) => {
                    if let Some(place) = inputs.get_mut(id) {
                        place.clone_from(&names);
                    }
                    ports = names;
                    Some(stage)
                }
                Made::Source(source) => {
                    sources.push((id, source));
                    None
                }
                Made::TwoWay(source, stage) => {
                    sources.push((id, source));
                    Some(stage)
                }
                Made::Checked => None,
            };
            let mut wiring = Wiring { edges: vec![None; ports.len()], ..Wiring::default() };
            if let Ports::These(ports) = planned.kind.outputs {
                wiring.reasons =
                    ports.iter().map(|p| p.unconnected.unwrap_or(DropReason::Unconnected)).collect();
            }
            if let Some(place) = outputs.get_mut(id) {
                *place = ports;
            }
            if let Some(stage) = stage {
                if stage.holds() && !planned.kind.properties.holds {
                    let message =
                        format!("`{}` holds packets, of which its type says nothing", planned.kind.name);
                    findings.push(Finding::new(&planned.span, message).hint("set `holds` in its properties"));
                }
                let name = planned.name.clone();
                let end = this.live && planned.kind.group == Group::Port;
                let excess = end.then(|| Box::new(Excess::default()));
                this.nodes.push(Node {
                    name,
                    kind: planned.kind.name,
                    stage,
                    wiring,
                    ledger: Ledger { excess, ..Ledger::default() },
                    place: Place::NONE,
                });
                if common.uses() > uses {
                    sharing.push(this.nodes.len() - 1);
                }
                if let Some(place) = places.get_mut(id) {
                    *place = Some(this.nodes.len() - 1);
                }
            }
        }
        let mut heads = this.connect(plan, &places, (&inputs, &outputs), &mut findings);
        for (id, source) in sources {
            if let (Some(edge), Some(planned)) = (heads.remove(&id), plan.stages.get(id)) {
                let (name, kind) = (planned.name.clone(), planned.kind.name);
                this.heads.push(Head::new(name, kind, source, edge));
            }
        }
        if findings.is_empty()
            && let Some((message, hint)) = plan.contexts.refuses(&this.plan_contexts(&plan.contexts))
        {
            findings.push(Finding::new(&plan.contexts_span, message).hint(hint));
        }
        if findings.is_empty()
            && !dry
            && let Err(error) = plan.contexts.need(&this.plan_contexts(&plan.contexts))
        {
            findings.push(Finding::new(&plan.contexts_span, error.message).hinted(error.hint));
        }
        plan.fail_on(findings)?;
        this.find_reunions();
        this.look_over();
        if !dry {
            let seed = seeds.draw().map_err(|error| plan.error(error.to_string()))?;
            this.lay_out(&plan.contexts, seed);
        }
        this.together = this.among(&sharing);
        Ok(this)
    }

    fn connect(
        &mut self,
        plan: &Plan,
        places: &[Option<usize>],
        (inputs, outputs): (&[Vec<String>], &[Vec<String>]),
        findings: &mut Vec<Finding>,
    ) -> BTreeMap<usize, Edge> {
        let mut heads = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for wire in &plan.wires {
            let (Some(from), Some(to)) = (plan.stages.get(wire.from), plan.stages.get(wire.to)) else {
                continue;
            };
            let names: &[String] = outputs.get(wire.from).map_or(&[], Vec::as_slice);
            let source = from.kind.inputs == Ports::None || matches!(from.role, Role::Source | Role::TwoWay);
            let output = match port_number(wire.output.as_deref(), names) {
                Some(port) => port,
                None if source && is_default(wire.output.as_deref()) => 0,
                // Its ports are not known, since it couldn't be built.
                None if names.is_empty() && !findings.is_empty() => continue,
                None => {
                    findings.push(no_port(
                        wire.output.as_deref(),
                        &from.name,
                        "output",
                        names,
                        &wire.output_span,
                    ));
                    continue;
                }
            };
            let idle = names.get(output).and_then(|name| from.kind.idle_output(name, &from.settings));
            if let (Some((fault, hint)), Some(name)) = (idle, names.get(output)) {
                let message = format!("no packet leaves `{}` by its port `{name}` {fault}", from.name);
                findings.push(Finding::new(&wire.output_span, message).hint(hint));
                continue;
            }
            if !taken.insert((wire.from, output)) {
                let message = format!("output port {output} of `{}` is wired twice", from.name);
                findings.push(
                    Finding::new(&wire.output_span, message).hint("use `tee` to send packets two ways"),
                );
                continue;
            }
            let names: Vec<String> = match to.kind.inputs {
                Ports::These(ports) => ports.iter().map(|p| p.name.to_owned()).collect(),
                Ports::None | Ports::AsSet(_) => inputs.get(wire.to).cloned().unwrap_or_default(),
            };
            // Its ports are not known, since it couldn't be built.
            if matches!(to.kind.inputs, Ports::AsSet(_)) && names.is_empty() && !findings.is_empty() {
                continue;
            }
            let Some(input) = port_number(wire.input.as_deref(), &names) else {
                findings.push(no_port(wire.input.as_deref(), &to.name, "input", &names, &wire.input_span));
                continue;
            };
            let Some(node) = places.get(wire.to).copied().flatten() else { continue };
            let edge = Edge { node, input: input as u8 };
            let node = if source { None } else { places.get(wire.from).copied().flatten() };
            match node.and_then(|n| self.nodes.get_mut(n)) {
                Some(node) => {
                    if let Some(place) = node.wiring.edges.get_mut(output) {
                        *place = Some(edge);
                    }
                }
                None => {
                    heads.insert(wire.from, edge);
                }
            }
        }
        for (id, stage) in plan.stages.iter().enumerate() {
            let Ports::These(ports) = stage.kind.outputs else { continue };
            if stage.role == Role::Sink && stage.kind.group == Group::Port {
                continue;
            }
            for (n, port) in ports.iter().enumerate().filter(|(_, p)| p.unconnected.is_none()) {
                let means = |port_name: &str| port_name == port.name || port_name.parse() == Ok(n);
                let named = |w: &Wire| w.from == id && w.output.as_deref().map_or(n == 0, means);
                if !taken.contains(&(id, n)) && !plan.wires.iter().any(named) {
                    let message =
                        format!("packets that leave `{}` by its port `{}` go nowhere", stage.name, port.name);
                    findings.push(
                        Finding::new(&stage.span, message).hint("wire it up: `… -> out`, or `… -> discard`"),
                    );
                }
            }
        }
        heads
    }
}

fn is_default(port: Option<&str>) -> bool {
    port.is_none_or(|p| p == "0" || p == "out")
}

fn no_port(port: Option<&str>, stage: &str, side: &str, names: &[String], span: &Range<usize>) -> Finding {
    let message = match port {
        Some(port) => format!("`{stage}` has no {side} port `{port}`"),
        None => format!("`{stage}` has no {side} port"),
    };
    let known: Vec<String> = names.iter().enumerate().map(|(i, n)| format!("{i} `{n}`")).collect();
    let hint = if known.is_empty() {
        format!("it has no {side} ports at all")
    } else {
        format!("it has {}", known.join(", "))
    };
    Finding::new(span, message).hint(hint)
}
