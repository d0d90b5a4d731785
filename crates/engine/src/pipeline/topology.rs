//! The order of stages, and cycles in the graph.
//!
//! A cycle may lead through a router: each time a packet comes by it, its time to live goes down by one (RFC
//! 1812 §5.3.1), so that a mistake in the routes drops packets but keeps none for ever. A gateway needs that:
//! packets are routed before its NAT and behind it. No stage of a cycle may make copies, which would come by
//! again and make copies in turn.

use std::collections::{BTreeMap, HashSet};

use super::config::{Plan, PlannedStage, Wire};
use super::diagnostics::Finding;
use super::slicing;
use slipstream_core::registry::{Payload, Role};

/// The stages in an order in which every wire leads onwards, except those that [close](Ways::closing) a
/// cycle. The error has the stages that lie on a cycle without a router, or behind one.
///
/// A port that stands at both ends doesn't pass packets on, so that no path leads through it; but a splice
/// comes behind its slice, also if such a port is between them.
pub(crate) fn order(stages: &[PlannedStage], wires: &[Wire]) -> Result<Vec<usize>, Vec<usize>> {
    let ways = Ways::new(stages, wires);
    let closing = ways.closing(stages, wires);
    // The stages that each one has to come before, and the number of those that it waits for.
    let mut behind = vec![Vec::new(); stages.len()];
    let mut waits_for = vec![0_usize; stages.len()];
    let onwards = wires.iter().zip(&closing).filter(|(wire, closes)| !**closes && through(stages, wire.from));
    let slices = stages.iter().enumerate().filter_map(|(id, stage)| {
        let splice = (stage.kind.properties.payload == Payload::Returns).then_some(stage)?;
        slicing::owner(stages, splice).filter(|slice| *slice != id).map(|slice| (slice, id))
    });
    for (from, to) in onwards.map(|(wire, _)| (wire.from, wire.to)).chain(slices) {
        if let (Some(all), Some(waits)) = (behind.get_mut(from), waits_for.get_mut(to)) {
            all.push(to);
            *waits += 1;
        }
    }
    let is_free = |waits_for: &[usize], id: usize| waits_for.get(id) == Some(&0);
    let mut ready: Vec<usize> = (0..stages.len()).filter(|id| is_free(&waits_for, *id)).collect();
    let mut ordered = Vec::with_capacity(stages.len());
    while !ready.is_empty() {
        let mut next = Vec::new();
        for to in ready.iter().filter_map(|from| behind.get(*from)).flatten() {
            if let Some(waits) = waits_for.get_mut(*to) {
                *waits -= 1;
                if *waits == 0 {
                    next.push(*to);
                }
            }
        }
        ordered.append(&mut ready);
        next.sort_unstable();
        ready = next;
    }
    if ordered.len() < stages.len() {
        return Err((0..stages.len()).filter(|id| !is_free(&waits_for, *id)).collect());
    }
    Ok(ordered)
}

/// Returns true if what leaves a stage is what went there.
fn through(stages: &[PlannedStage], stage: usize) -> bool {
    stages.get(stage).is_none_or(|s| s.role != Role::TwoWay)
}

/// The stages that the packets of each lead to, wire by wire; none from a port at both ends.
struct Ways(Vec<Vec<usize>>);

impl Ways {
    fn new(stages: &[PlannedStage], wires: &[Wire]) -> Self {
        let mut ways = vec![Vec::new(); stages.len()];
        for wire in wires.iter().filter(|wire| through(stages, wire.from)) {
            if let Some(ways) = ways.get_mut(wire.from) {
                ways.push(wire.to);
            }
        }
        Self(ways)
    }

    /// The stages that packets of one may come to, itself among them.
    fn reachable(&self, from: usize) -> Vec<usize> {
        search(from, |stage, next| next.extend(self.0.get(stage).into_iter().flatten()))
    }

    /// Of each wire, whether it leads back into a router that its packets have come by. What comes from a
    /// port at both ends is not what went there.
    fn closing(&self, stages: &[PlannedStage], wires: &[Wire]) -> Vec<bool> {
        let mut into: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        for (place, wire) in wires.iter().enumerate() {
            if stages.get(wire.to).is_some_and(|s| s.kind.properties.counts_hops) {
                into.entry(wire.to).or_default().push(place);
            }
        }
        let mut closing = vec![false; wires.len()];
        for (router, places) in into {
            let reached: HashSet<usize> = self.reachable(router).into_iter().collect();
            for place in places {
                if let (Some(wire), Some(closes)) = (wires.get(place), closing.get_mut(place)) {
                    *closes = through(stages, wire.from) && reached.contains(&wire.from);
                }
            }
        }
        closing
    }
}

/// The stages that a breadth-first search comes to, `start` first; `next` appends those that a stage leads
/// to.
pub(super) fn search(start: usize, mut next: impl FnMut(usize, &mut Vec<usize>)) -> Vec<usize> {
    let (mut reached, mut neighbours) = (vec![start], Vec::new());
    let mut known = HashSet::from([start]);
    let mut at = 0;
    while let Some(&stage) = reached.get(at) {
        at += 1;
        next(stage, &mut neighbours);
        reached.extend(neighbours.drain(..).filter(|neighbour| known.insert(*neighbour)));
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
        let ways = Ways::new(stages, wires);
        let closing = ways.closing(stages, wires);
        for (wire, _) in wires.iter().zip(closing).filter(|(_, closes)| *closes) {
            for id in ways.reachable(wire.to) {
                let Some(stage) = stages.get(id).filter(|s| s.kind.properties.copies) else { continue };
                if told.contains(&id) || !ways.reachable(id).contains(&wire.from) {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// As [`order`], found anew from all wires for each stage.
    fn order_slowly(stages: &[PlannedStage], wires: &[Wire]) -> Result<Vec<usize>, Vec<usize>> {
        let reachable = |from: usize| {
            let mut reached = vec![from];
            let mut at = 0;
            while let Some(&stage) = reached.get(at) {
                at += 1;
                for wire in wires.iter().filter(|w| w.from == stage && through(stages, stage)) {
                    if !reached.contains(&wire.to) {
                        reached.push(wire.to);
                    }
                }
            }
            reached
        };
        let closes = |w: &Wire| stages[w.to].kind.properties.counts_hops && reachable(w.to).contains(&w.from);
        let onwards: Vec<&Wire> = wires.iter().filter(|w| through(stages, w.from) && !closes(w)).collect();
        let slice_of = |i: usize| {
            let splice = Some(&stages[i]).filter(|s| s.kind.properties.payload == Payload::Returns)?;
            slicing::owner(stages, splice).filter(|slice| *slice != i)
        };
        let mut left: Vec<usize> = (0..stages.len()).collect();
        let mut ordered = Vec::new();
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

    /// Stages of all that matters here: inner ones, routers, a port at both ends, a slice and its splice.
    fn stages() -> Vec<PlannedStage> {
        let graph = "in :: null -> a :: counter -> r :: router(interfaces=[\"x 10.0.0.1/24\"]) -> b :: counter \
                     -> q :: router(interfaces=[\"x 10.0.1.1/24\"]) -> s :: slice -> p :: splice -> c :: counter \
                     -> out :: null; t :: shm(path=x) -> d :: counter -> t";
        Plan::from_graph(graph, None, None, "".as_ref()).unwrap().stages
    }

    /// Packets that leave by a port don't come in by it, so that their copies don't come by again either.
    #[test]
    fn copies_may_leave_by_a_port_at_both_ends() {
        let graph = "lan :: af_packet(interface=e1); wan :: af_packet(interface=e2); \
                     r :: router(interfaces=[\"lan 10.0.0.1/24\", \"wan 10.0.1.1/24\"]); lan -> [lan]r; \
                     r[lan] -> t :: tee; t[0] -> lan; t[1] -> null; r[wan] -> wan; wan -> [wan]r";
        Plan::from_graph(graph, None, None, "".as_ref()).unwrap();
    }

    proptest::proptest! {
        /// Stages come in the same order, and stuck ones are the same, whatever is wired to what.
        #[test]
        fn the_order_is_that_of_the_slow_way(ends in proptest::collection::vec((0usize..11, 0usize..11), 0..24)) {
            let stages = stages();
            assert_eq!(stages.len(), 11);
            let wire = |(from, to): (usize, usize)| {
                Wire { from, output: None, to, input: None, output_span: 0..1, input_span: 0..1 }
            };
            let wires: Vec<Wire> = ends.into_iter().map(wire).collect();
            assert_eq!(order(&stages, &wires), order_slowly(&stages, &wires));
        }
    }
}
