//! From a plan to a pipeline: stages are built in order, their ports wired up.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use super::{Edge, FlowContextPlan, Head, Ledger, Node, Pipeline, Wiring};
use crate::pipeline::{Diagnostics, Finding, Plan, PlannedStage, Wire, order, proxied};
use crate::pipeline::{lost_payload_notes, port_number, received_twice_notes, unanswered_notes};
use crate::runtime::live::Excess;
use slipstream_core::flow_context::Place;
use slipstream_core::registry::{Common, Group, Made, PortType, Ports, Role, Shard, Site};
use slipstream_core::seed::Seeds;
use slipstream_core::source::Source;
use slipstream_core::stage::{DropReason, Stage};

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
        Pipeline::assemble(self, true, Seeds::Fixed(0), Shard::ALONE).map(|pipeline| self.notes_on(&pipeline))
    }

    /// The same of a pipeline that was built from this plan.
    pub(crate) fn notes_on(&self, pipeline: &Pipeline) -> Vec<(String, String)> {
        let of = |node: &Node| node.stage.notes().into_iter().map(|note| (node.name.clone(), note)).collect();
        let mut notes: Vec<_> = pipeline.nodes.iter().flat_map::<Vec<_>, _>(of).collect();
        notes.extend(unanswered_notes(self));
        notes.extend(received_twice_notes(self));
        notes.extend(lost_payload_notes(self));
        notes
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
    /// Builds the stages of a plan and wires them up. A dry run opens no port and creates no file.
    fn assemble(plan: &Plan, dry: bool, seeds: Seeds, shard: Shard<'_>) -> Result<Self, Diagnostics> {
        let mut assembly = Assembly::new(plan);
        assembly.build_stages(dry, seeds, shard);
        assembly.connect();
        assembly.check_contexts(dry);
        let Assembly { pipeline: mut this, sharing, findings, .. } = assembly;
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
}

/// A planned stage once it was built.
#[derive(Clone, Default)]
struct Built {
    /// Its place among the nodes; none for a source alone, and for what couldn't be built.
    node: Option<usize>,
    /// The names of its input ports, where the settings give them.
    inputs: Vec<String>,
    /// The names of its output ports.
    outputs: Vec<String>,
}

/// A pipeline that is being put together.
struct Assembly<'a> {
    plan: &'a Plan,
    pipeline: Pipeline,
    /// By the numbers of the planned stages.
    built: Vec<Built>,
    /// The sources, with the numbers of their stages.
    sources: Vec<(usize, Box<dyn Source + Send>)>,
    /// The nodes that share something with others.
    sharing: Vec<usize>,
    /// Everything that is wrong.
    findings: Vec<Finding>,
}

impl<'a> Assembly<'a> {
    fn new(plan: &'a Plan) -> Self {
        let mut pipeline = Pipeline::of(Vec::new(), Vec::new());
        pipeline.live = plan.stages.iter().any(|s| s.kind.live());
        let changes = |s: &PlannedStage| (s.kind.properties.changes_frames)(&s.settings);
        pipeline.changes_frames = plan.stages.iter().any(changes);
        let alone = plan.stages.iter().find(|s| !plan.may_share(&s.kind));
        pipeline.not_shared = alone.map(|stage| (stage.name.clone(), stage.kind.name));
        let built = vec![Built::default(); plan.stages.len()];
        Self { plan, pipeline, built, sources: Vec::new(), sharing: Vec::new(), findings: Vec::new() }
    }

    /// Builds all stages, in the order in which packets pass them.
    fn build_stages(&mut self, dry: bool, seeds: Seeds, shard: Shard<'_>) {
        let plan = self.plan;
        let common = Common::default();
        let translated = proxied(plan, &mut self.findings);
        for id in order(&plan.stages, &plan.wires).unwrap_or_default() {
            let Some(planned) = plan.stages.get(id) else { continue };
            let (seed, choices) = match (seeds.draw(), seeds.draw()) {
                (Ok(seed), Ok(choices)) => (seed, choices),
                (Err(error), _) | (_, Err(error)) => {
                    self.findings.push(Finding::new(&planned.span, error.to_string()));
                    break;
                }
            };
            let site = Site {
                name: &planned.name,
                role: planned.role,
                dry,
                base: &plan.base,
                seed,
                choices,
                live: self.pipeline.live,
                proxied: translated.get(id).map_or(&[][..], Vec::as_slice),
                common: &common,
                shard,
            };
            let uses = common.uses();
            match (planned.kind.build)(&planned.settings, &site) {
                Ok(made) => {
                    let node = self.take(id, planned, made);
                    if common.uses() > uses {
                        self.sharing.extend(node);
                    }
                }
                Err(error) => self.findings.push(plan.finding(planned, error)),
            }
        }
    }

    /// Takes what was made of a planned stage. Returns its place among the nodes, if it has one.
    fn take(&mut self, id: usize, planned: &PlannedStage, made: Made) -> Option<usize> {
        let (mut inputs, mut outputs) = (Vec::new(), planned.kind.outputs.names());
        let stage = match made {
            Made::Stage(stage) => Some(stage),
            Made::WithPorts(stage, names) => {
                outputs = names;
                Some(stage)
            }
            Made::Between(stage, names) => {
                (inputs, outputs) = (names.clone(), names);
                Some(stage)
            }
            Made::Source(source) => {
                self.sources.push((id, source));
                None
            }
            Made::TwoWay(source, stage) => {
                self.sources.push((id, source));
                Some(stage)
            }
            Made::Checked => None,
        };
        let node = stage.map(|stage| self.add_node(planned, stage, outputs.len()));
        if let Some(built) = self.built.get_mut(id) {
            *built = Built { node, inputs, outputs };
        }
        node
    }

    /// Adds a node with so many output ports, none of them wired yet. Returns its place.
    fn add_node(&mut self, planned: &PlannedStage, stage: Box<dyn Stage + Send>, outputs: usize) -> usize {
        let kind = &planned.kind;
        if stage.holds() && !kind.properties.holds {
            let message = format!("`{}` holds packets, of which its type says nothing", kind.name);
            let finding = Finding::new(&planned.span, message).hint("set `holds` in its properties");
            self.findings.push(finding);
        }
        let reason = |port: &PortType| port.unconnected.unwrap_or(DropReason::Unconnected);
        let wiring = Wiring {
            edges: vec![None; outputs],
            reasons: kind.outputs.of_type().iter().map(reason).collect(),
            ..Wiring::default()
        };
        let end = self.pipeline.live && kind.group == Group::Port;
        let excess = end.then(|| Box::new(Excess::default()));
        self.pipeline.nodes.push(Node {
            name: planned.name.clone(),
            kind: kind.name,
            stage,
            wiring,
            ledger: Ledger { excess, ..Ledger::default() },
            place: Place::NONE,
        });
        self.pipeline.nodes.len() - 1
    }

    /// Wires up what was built: every node's outputs, and the sources as the pipeline's heads.
    fn connect(&mut self) {
        let plan = self.plan;
        let mut heads = BTreeMap::new();
        let mut taken = BTreeSet::new();
        for wire in &plan.wires {
            let (Some(from), Some(to)) = (plan.stages.get(wire.from), plan.stages.get(wire.to)) else {
                continue;
            };
            let Some(output) = self.output_port(wire, from) else { continue };
            if !taken.insert((wire.from, output)) {
                let message = format!("output port {output} of `{}` is wired twice", from.name);
                self.findings.push(
                    Finding::new(&wire.output_span, message).hint("use `tee` to send packets two ways"),
                );
                continue;
            }
            let Some(input) = self.input_port(wire, to) else { continue };
            let Some(node) = self.node_of(wire.to) else { continue };
            let edge = Edge { node, input: input as u8 };
            let node = if is_source(from) { None } else { self.node_of(wire.from) };
            match node.and_then(|n| self.pipeline.nodes.get_mut(n)) {
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
        self.check_loose_ends(&taken);
        for (id, source) in std::mem::take(&mut self.sources) {
            if let (Some(edge), Some(planned)) = (heads.remove(&id), plan.stages.get(id)) {
                let (name, kind) = (planned.name.clone(), planned.kind.name);
                self.pipeline.heads.push(Head::new(name, kind, source, edge));
            }
        }
    }

    fn node_of(&self, id: usize) -> Option<usize> {
        self.built.get(id)?.node
    }

    /// The number of the output port by which a wire leaves the stage `from`. None where there is no such
    /// port or no packet leaves by it, which is among the findings then, and where the ports are not known
    /// because the stage couldn't be built.
    fn output_port(&mut self, wire: &Wire, from: &PlannedStage) -> Option<usize> {
        let names = self.built.get(wire.from).map_or(&[][..], |built| built.outputs.as_slice());
        let written = wire.output.as_deref();
        let output = match port_number(written, names) {
            Some(port) => port,
            None if is_source(from) && is_default(written) => 0,
            None if names.is_empty() && !self.findings.is_empty() => return None,
            None => {
                let finding = no_port(written, &from.name, "output", names, &wire.output_span);
                self.findings.push(finding);
                return None;
            }
        };
        let name = names.get(output);
        let idle = name.and_then(|name| Some((name, from.kind.idle_output(name, &from.settings)?)));
        if let Some((name, (fault, hint))) = idle {
            let message = format!("no packet leaves `{}` by its port `{name}` {fault}", from.name);
            self.findings.push(Finding::new(&wire.output_span, message).hint(hint));
            return None;
        }
        Some(output)
    }

    /// The number of the input port by which a wire enters the stage `to`. None as of
    /// [`output_port`](Self::output_port).
    fn input_port(&mut self, wire: &Wire, to: &PlannedStage) -> Option<usize> {
        let as_set = matches!(to.kind.inputs, Ports::AsSet(_));
        let names = match to.kind.inputs {
            Ports::These(_) => to.kind.inputs.names(),
            Ports::None | Ports::AsSet(_) => {
                self.built.get(wire.to).map_or_else(Vec::new, |built| built.inputs.clone())
            }
        };
        if as_set && names.is_empty() && !self.findings.is_empty() {
            return None;
        }
        let written = wire.input.as_deref();
        let port = port_number(written, &names);
        if port.is_none() {
            self.findings.push(no_port(written, &to.name, "input", &names, &wire.input_span));
        }
        port
    }

    /// Finds the output ports that are not among those wired up, `taken`, and that have to lead somewhere.
    fn check_loose_ends(&mut self, taken: &BTreeSet<(usize, usize)>) {
        for (id, stage) in self.plan.stages.iter().enumerate() {
            if stage.role == Role::Sink && stage.kind.group == Group::Port {
                continue;
            }
            let ports = stage.kind.outputs.of_type().iter().enumerate();
            for (n, port) in ports.filter(|(_, port)| port.unconnected.is_none()) {
                let means = |port_name: &str| port_name == port.name || port_name.parse() == Ok(n);
                let named = |w: &Wire| w.from == id && w.output.as_deref().map_or(n == 0, means);
                if !taken.contains(&(id, n)) && !self.plan.wires.iter().any(named) {
                    let message =
                        format!("packets that leave `{}` by its port `{}` go nowhere", stage.name, port.name);
                    self.findings.push(
                        Finding::new(&stage.span, message).hint("wire it up: `… -> out`, or `… -> discard`"),
                    );
                }
            }
        }
    }

    /// Checks, where nothing else is wrong, that the flow contexts get the memory that they need.
    fn check_contexts(&mut self, dry: bool) {
        if !self.findings.is_empty() {
            return;
        }
        let plan = self.plan;
        let contexts = self.pipeline.plan_contexts(&plan.contexts);
        if let Some((message, hint)) = plan.contexts.refuses(&contexts) {
            self.findings.push(Finding::new(&plan.contexts_span, message).hint(hint));
        } else if !dry && let Err(error) = plan.contexts.need(&contexts) {
            self.findings.push(Finding::new(&plan.contexts_span, error.message).hinted(error.hint));
        }
    }
}

/// Returns true if the packets of this stage come from outside of the pipeline.
fn is_source(stage: &PlannedStage) -> bool {
    stage.kind.inputs == Ports::None || matches!(stage.role, Role::Source | Role::TwoWay)
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
