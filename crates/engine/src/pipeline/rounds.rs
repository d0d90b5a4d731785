//! The order of stages, and ways round.
//!
//! Packets may go round where a router is on every way round: each time a packet comes by, it has one less to live (RFC 1812
//! §5.3.1), so that a mistake in its routes drops packets but doesn't keep any for ever. A gateway needs that: what comes back
//! from its NAT has to be routed, and so has what goes there. Nothing on a way round may make copies, which would come by again
//! and make copies in turn.

use super::config::{Finding, Plan, PlannedStage, Wire};
use super::registry::Role;
use super::slicing;
use super::stages::{SPLICE, copies, counts_hops};

/// The stages in an order in which every wire leads onwards but those that [`closes`] tells, or those that lie on a way round
/// without a router.
///
/// What leaves a port at both ends is not what went there, so that no way leads through it; but a splice comes behind its slice,
/// also where such a port is between them.
pub(crate) fn order(stages: &[PlannedStage], wires: &[Wire]) -> Result<Vec<usize>, Vec<usize>> {
    let slice_of = |i: usize| {
        let splice = stages.get(i).filter(|s| s.kind.name == SPLICE)?;
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

/// Whether a wire leads back into a router that its packets have come by.
fn closes(stages: &[PlannedStage], wires: &[Wire], wire: &Wire) -> bool {
    stages.get(wire.to).is_some_and(|s| counts_hops(s.kind))
        && reachable(stages, wires, wire.to).contains(&wire.from)
}

/// Whether what leaves a stage is what went there.
fn through(stages: &[PlannedStage], stage: usize) -> bool {
    stages.get(stage).is_none_or(|s| s.role != Role::TwoWay)
}

/// The stages that packets of one may come to, itself among them.
fn reachable(stages: &[PlannedStage], wires: &[Wire], from: usize) -> Vec<usize> {
    let mut all = vec![from];
    let mut at = 0;
    while let Some(&stage) = all.get(at) {
        at += 1;
        for wire in wires.iter().filter(|w| w.from == stage && through(stages, stage)) {
            if !all.contains(&wire.to) {
                all.push(wire.to);
            }
        }
    }
    all
}

impl Plan {
    /// Adds ways round that must not be to `findings`.
    pub(super) fn check_rounds(&self, findings: &mut Vec<Finding>) {
        let Self { stages, wires, .. } = self;
        let named = |ids: &[usize]| {
            let names: Vec<_> = ids.iter().filter_map(|i| stages.get(*i)).map(|s| s.name.as_str()).collect();
            names.join(", ")
        };
        if let Err(stuck) = order(stages, wires) {
            let span = stuck.first().and_then(|i| stages.get(*i)).map(|s| s.span.clone());
            let message = format!("packets would go round: {}", named(&stuck));
            findings.push(
                Finding::new(&span.unwrap_or(0..self.text.len().min(1)), message)
                    .hint("a graph leads from its sources to its sinks; only a router, which counts hops, may be come by again"),
            );
        }
        let mut told = Vec::new();
        for wire in wires.iter().filter(|w| closes(stages, wires, w)) {
            for id in reachable(stages, wires, wire.to) {
                let Some(stage) = stages.get(id).filter(|s| copies(s.kind)) else { continue };
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
