//! The flow contexts of a pipeline: which stages get a place in them, and where flows are looked up.

mod across;

use slipstream_core::batch::Batch;
use slipstream_core::flow_context::{ContextCounts, FlowContexts, Layout, Place, Trains};
use slipstream_core::stage::Context;

use super::{Node, Pipeline};

/// Settings of flow contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowContextSettings {
    /// Flows that have a context at most (up to 2³⁰); 0 for none: every function looks flows up by itself.
    pub flows: u32,
    /// Memory that they may take, in bytes.
    pub memory: u64,
}

impl FlowContextSettings {
    /// No flow contexts.
    pub const OFF: Self = Self { flows: 0, memory: u64::MAX };
}

/// The place that a stage has in contexts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ContextPlace {
    /// Name of the stage.
    pub stage: String,
    /// Offset of its bytes.
    pub offset: usize,
    /// Number of these bytes.
    pub bytes: usize,
    /// Flows are looked up before this stage.
    pub looks_up: bool,
}

/// The flow contexts that a pipeline has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FlowContextPlan {
    /// The stages that have a place, in the order of the pipeline.
    pub places: Vec<ContextPlace>,
    /// Flows that have a context at most.
    pub flows: u32,
    /// Bytes of a context, its key included.
    pub bytes: usize,
    /// Bytes of all of them, of the index that they are found by, and of the numbers.
    pub memory: u64,
    /// Numbers that trains come with where flows are looked up behind other stages, and by which contexts are
    /// found too.
    pub numbers: u64,
    /// Bytes that long keys (IPv6, several VLAN tags) take beyond that at most.
    pub long_keys: u64,
}

/// Looks up the flows of a batch, where the pipeline has contexts.
#[inline(never)]
pub(super) fn look_up(cx: &mut Context<'_>, batch: &mut Batch, place: usize) {
    let Some(mut flows) = cx.pool.flows().take() else { return };
    flows.look_up(cx, batch, place);
    *cx.pool.flows() = Some(flows);
}

/// The numbers of contexts in the trains that come to a node, or leave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Numbers {
    /// Its packets may have another key than the first of their train, so that they can't be looked up.
    Never,
    /// None yet, or numbers that a stage before gave: flows are to be looked up.
    Unknown,
    /// Those of the contexts that were looked up before.
    Known,
}

impl Pipeline {
    /// With flow contexts by these settings, in place of those that it has.
    #[must_use]
    pub fn with_contexts(mut self, settings: &FlowContextSettings) -> Self {
        self.lay_out(settings, 1);
        self
    }

    /// Lays contexts out, and takes their memory.
    pub(super) fn lay_out(&mut self, settings: &FlowContextSettings, seed: u64) {
        let (layout, _) = self.place_words(settings.flows > 0);
        let numbers = self.flow_numbers(settings.flows);
        self.laid_out = (*settings, seed);
        self.contexts = (!numbers.is_empty())
            .then(|| Box::new(FlowContexts::new(&layout, settings.flows, seed).with_numbers(numbers)));
    }

    /// The contexts that these settings give.
    pub(super) fn plan_contexts(&mut self, settings: &FlowContextSettings) -> FlowContextPlan {
        let (layout, places) = self.place_words(settings.flows > 0);
        if places.is_empty() {
            return FlowContextPlan::default();
        }
        let numbers = self.flow_numbers(settings.flows).into_iter().map(u64::from).sum();
        FlowContextPlan {
            places,
            flows: settings.flows,
            bytes: layout.bytes(),
            memory: layout.memory(settings.flows) + numbers * Layout::NUMBER as u64,
            numbers,
            long_keys: u64::from(settings.flows) * Layout::LONG_KEY as u64,
        }
    }

    /// Of each place where flows are looked up: the numbers that flows may have in trains which come there
    /// are below this. They are those of a reframer before it, or of contexts, `flows` of which there are.
    fn flow_numbers(&self, flows: u32) -> Vec<u32> {
        let mut coming = vec![0; self.nodes.len()];
        let mut places = Vec::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let comes = coming.get(place).copied().unwrap_or(0);
            if node.ledger.looks_up.is_some() {
                places.push(comes);
            }
            let leaves = match (node.stage.flow_numbers(), node.place != Place::NONE) {
                (0, true) => flows,
                (0, false) => comes,
                (numbers, _) => numbers,
            };
            for edge in node.wiring.edges.iter().flatten() {
                if let Some(known) = coming.get_mut(edge.node) {
                    *known = leaves.max(*known);
                }
            }
        }
        places
    }

    /// Gives places to stages, and says where flows are looked up.
    fn place_words(&mut self, wanted: bool) -> (Layout, Vec<ContextPlace>) {
        let coming = self.numbers_at_stages(&[]);
        let shared = self.shared_numbers(&coming);
        let (mut layout, mut places, mut look_ups) = (Layout::default(), Vec::new(), 0..);
        for ((node, coming), shared) in self.nodes.iter_mut().zip(coming).zip(shared) {
            let words = if wanted && shared { node.stage.flow_use().words } else { 0 };
            node.place = layout.place(words);
            let looks_up = node.place != Place::NONE && coming == Numbers::Unknown;
            node.ledger.looks_up = if looks_up { look_ups.next() } else { None };
            if node.place != Place::NONE {
                places.push(ContextPlace {
                    stage: node.name.clone(),
                    offset: node.place.offset(),
                    bytes: usize::from(words) * size_of::<u32>(),
                    looks_up,
                });
            }
        }
        (layout, places)
    }

    /// The numbers in the trains that come to each node. Nodes stand in an order in which wires lead onwards;
    /// what a wire leads back waits, while other batches are looked up. Before nodes of which `again` says so
    /// flows are looked up again.
    fn numbers_at_stages(&self, again: &[bool]) -> Vec<Numbers> {
        let mut coming: Vec<Option<Numbers>> = vec![None; self.nodes.len()];
        let meet = |place: usize, numbers: Numbers, all: &mut [Option<Numbers>]| {
            if let Some(known) = all.get_mut(place) {
                *known = Some(match (*known, numbers) {
                    (None, numbers) => numbers,
                    (Some(Numbers::Never), _) | (_, Numbers::Never) => Numbers::Never,
                    (Some(Numbers::Known), Numbers::Known) => Numbers::Known,
                    _ => Numbers::Unknown,
                });
            }
        };
        for head in &self.heads {
            meet(head.edge.node, Numbers::Unknown, &mut coming);
        }
        // Whoever is led back to gets what others made of the packets.
        for (place, node) in self.nodes.iter().enumerate() {
            for edge in node.wiring.edges.iter().flatten().filter(|edge| edge.node <= place) {
                meet(edge.node, Numbers::Never, &mut coming);
            }
        }
        // Sources that are only checked are not there, so that nothing leads to some nodes.
        for (place, node) in self.nodes.iter().enumerate() {
            let mut before = coming.get(place).copied().flatten().unwrap_or(Numbers::Unknown);
            if before == Numbers::Known && again.get(place) == Some(&true) {
                before = Numbers::Unknown;
                if let Some(known) = coming.get_mut(place) {
                    *known = Some(before);
                }
            }
            let leaving = numbers_behind(node, before);
            for edge in node.wiring.edges.iter().flatten().filter(|edge| edge.node > place) {
                meet(edge.node, leaving, &mut coming);
            }
        }
        coming.into_iter().map(|numbers| numbers.unwrap_or(Numbers::Unknown)).collect()
    }

    /// Says of each node whether a look-up is worth it: where it is for one stage alone, or two share it.
    fn shared_numbers(&self, coming: &[Numbers]) -> Vec<bool> {
        // Nodes between which numbers are carried on are of one group, named after the first.
        let mut group: Vec<usize> = (0..self.nodes.len()).collect();
        for (place, node) in self.nodes.iter().enumerate() {
            for edge in node.wiring.edges.iter().flatten() {
                if coming.get(edge.node) == Some(&Numbers::Known) {
                    let (a, b) = (root(&group, place), root(&group, edge.node));
                    if let Some(parent) = group.get_mut(a.max(b)) {
                        *parent = a.min(b);
                    }
                }
            }
        }
        // Of each group, how many of it use numbers, and whether it is worth it for one alone.
        let mut users = vec![(0_u32, false); self.nodes.len()];
        for (place, (node, _)) in
            self.nodes.iter().zip(coming).enumerate().filter(|(_, (_, c))| **c != Numbers::Never)
        {
            let uses = node.stage.flow_use();
            if let Some((count, alone)) = users.get_mut(root(&group, place)).filter(|_| uses.words > 0) {
                *count += 1;
                *alone |= uses.alone;
            }
        }
        let worth =
            |place: usize| users.get(root(&group, place)).is_some_and(|(count, alone)| *count > 1 || *alone);
        (0..self.nodes.len())
            .map(|place| coming.get(place) != Some(&Numbers::Never) && worth(place))
            .collect()
    }

    /// Counts of what happened to contexts, in all sections once they are one again; none where there are
    /// none.
    #[must_use]
    pub fn context_counts(&self) -> Option<ContextCounts> {
        let own = self.contexts.as_ref().map(|flows| flows.counts());
        own.filter(|_| !self.split).or(self.counted)
    }
}

/// The numbers in what leaves a node, by those in what comes to it.
fn numbers_behind(node: &Node, coming: Numbers) -> Numbers {
    let uses = node.stage.flow_use();
    match (uses.trains, coming) {
        (Trains::Unknown, _) | (Trains::Changed, Numbers::Never) => Numbers::Never,
        (Trains::Made | Trains::Changed, _) => Numbers::Unknown,
        (Trains::Pass, Numbers::Unknown) if uses.words > 0 => Numbers::Known,
        (Trains::Pass, other) => other,
    }
}

/// The first of a node's group.
fn root(group: &[usize], mut place: usize) -> usize {
    while let Some(&parent) = group.get(place).filter(|parent| **parent != place) {
        place = parent;
    }
    place
}
