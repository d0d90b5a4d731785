//! The order of stages, and cycles in the graph.
//!
//! A cycle may lead through a router: each time a packet comes by it, its time to live goes down by one (RFC
//! 1812 §5.3.1), so that a mistake in the routes drops packets but keeps none for ever. A gateway needs that:
//! packets are routed before its NAT and behind it. No stage of a cycle may make copies, which would come by
//! again and make copies in turn.

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::slicing;
use slipstream_core::registry::{Payload, Role};

/// The stages in an order in which every wire leads onwards, except those that [close](closes) a cycle. The
/// error has the stages that lie on a cycle without a router, or behind one.
///
/// A port that stands at both ends doesn't pass packets on, so that no path leads through it; but a splice
/// comes behind its slice, also if such a port is between them.
pub(crate) fn order(stages: &[PlannedStage], wires: &[Wire]) -> Result<Vec<usize>, Vec<usize>> {
    let slice_of = |i: usize| {
        let splice = stages.get(i).filter(|s| s.kind.properties.payload == Payload::Returns)?;
        slicing::owner(stages, splice).filter(|slice| *slice != i)
    };
    let onwards: Vec<&Wire> =
        wires.iter().filter(|w| through(stages, w.from) && !closes(stages, wires, w)).collect();
    let mut left: Vec<usize> = (0..stages.len()).collect();
    let mut ordered = Vec::with_capacity(stages.len());
    while !left.is_empty() {
        let free = |i: &usize| {
            !onwards.iter().any(|w| w.to == *i && left.contains(&w.from))
                && !slice_of(*i).is_some_and(|slice| left.contains(&slice))
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.iter().copied().partition(free);
        if ready.is_empty() {
            return Err(rest);
        }
        ordered.extend(ready);
        left = rest;
    }
    Ok(ordered)
}

/// Returns true if a wire leads back into a router that its packets have come by.
fn closes(stages: &[PlannedStage], wires: &[Wire], wire: &Wire) -> bool {
    stages.get(wire.to).is_some_and(|s| s.kind.properties.counts_hops)
        && reachable(stages, wires, wire.to).contains(&wire.from)
}

/// Returns true if what leaves a stage is what went there.
fn through(stages: &[PlannedStage], stage: usize) -> bool {
    stages.get(stage).is_none_or(|s| s.role != Role::TwoWay)
}

/// The stages that packets of one may come to, itself among them.
fn reachable(stages: &[PlannedStage], wires: &[Wire], from: usize) -> Vec<usize> {
    search(from, |stage, next| {
        if through(stages, stage) {
            next.extend(wires.iter().filter(|w| w.from == stage).map(|w| w.to));
        }
    })
}

/// The stages that a breadth-first search comes to, `start` first; `next` appends those that a stage leads
/// to.
pub(super) fn search(start: usize, mut next: impl FnMut(usize, &mut Vec<usize>)) -> Vec<usize> {
    let (mut reached, mut neighbours) = (vec![start], Vec::new());
    let mut at = 0;
    while let Some(&stage) = reached.get(at) {
        at += 1;
        next(stage, &mut neighbours);
        for neighbour in neighbours.drain(..) {
            if !reached.contains(&neighbour) {
                reached.push(neighbour);
            }
        }
    }
    reached
}

impl Plan {
    /// Adds cycles that must not be to `findings`, but for those through a stage in `said`, about which it
    /// was said already.
    pub(super) fn check_cycles(&self, said: &[usize], findings: &mut Vec<Finding>) {
        let Self { stages, wires, .. } = self;
        let named = |ids: &[usize]| {
            let names: Vec<_> = ids.iter().filter_map(|i| stages.get(*i)).map(|s| s.name.as_str()).collect();
            names.join(", ")
        };
        if let Err(stuck) = order(stages, wires)
            && !stuck.iter().any(|stage| said.contains(stage))
        {
            let span = stuck.first().and_then(|i| stages.get(*i)).map(|s| s.span.clone());
            let message = format!("packets would go round: {}", named(&stuck));
            findings.push(
                Finding::new(&span.unwrap_or(0..self.text.len().min(1)), message)
                    .hint("a graph leads from its sources to its sinks, stage by stage, whichever inputs are wired to which \
                           outputs; only a router, which counts hops, may be come by again"),
            );
        }
        let mut told = Vec::new();
        for wire in wires.iter().filter(|w| closes(stages, wires, w)) {
            for id in reachable(stages, wires, wire.to) {
                let Some(stage) = stages.get(id).filter(|s| s.kind.properties.copies) else { continue };
                if told.contains(&id) || !reachable(stages, wires, id).contains(&wire.from) {
                    continue;
                }
                told.push(id);
                let router = named(&[wire.to]);
                let message =
                    format!("copies that `{}` makes would come to it again by way of `{router}`", stage.name);
                findings.push(
                    Finding::new(&stage.span, message)
                        .hint("put what makes copies before the first router or behind the last"),
                );
            }
        }
    }
}
