//! Conditions on a graph with `slice` and `splice`: whatever a `slice` lets through sliced comes by a
//! `splice` of its own before it leaves, only what came through the `slice` gets there, and nothing between
//! needs payloads.
//!
//! The functions between may be somewhere else: a port at both ends that the `slice` leads to, and that
//! doesn't lead back into it, is one at their side. Sliced packets leave by it, and what comes from it goes
//! to the `splice`.

use super::config::{Plan, PlannedStage};
use super::diagnostics::Finding;
use super::topology::search;
use slipstream_core::registry::{Group, Payload, Role};

/// Adds what is wrong to `findings`.
pub(super) fn check(plan: &Plan, findings: &mut Vec<Finding>) {
    let that = |payload: Payload| {
        let does = move |(_, s): &(usize, &PlannedStage)| s.kind.properties.payload == payload;
        plan.stages.iter().enumerate().filter(does).collect::<Vec<_>>()
    };
    let slices = that(Payload::Parks);
    for (id, slice) in &slices {
        follow(plan, *id, slice, findings);
    }
    for (id, splice) in that(Payload::Returns) {
        match owner(&plan.stages, splice) {
            Some(owner) => trace_back(plan, id, owner, findings),
            None if splice.settings.text("of").is_empty() && slices.len() > 1 => findings.push(
                Finding::new(&splice.span, "there are several slice stages")
                    .hint("say whose payloads it brings back: splice(of=NAME)"),
            ),
            None => findings.push(
                Finding::new(
                    &splice.span,
                    format!("`{}` has no slice stage to bring payloads back from", splice.name),
                )
                .hint("in -> slice -> … -> splice -> out"),
            ),
        }
    }
}

/// The slice stage that a splice stage belongs to.
pub(super) fn owner(stages: &[PlannedStage], splice: &PlannedStage) -> Option<usize> {
    let name = splice.settings.text("of");
    let mut slices = stages.iter().enumerate().filter(|(_, s)| s.kind.properties.payload == Payload::Parks);
    if !name.is_empty() {
        return slices.find(|(_, s)| s.name == name).map(|(id, _)| id);
    }
    slices.next().map(|(id, _)| id).filter(|_| slices.next().is_none())
}

/// Remarks about functions that change the DSCP of sliced packets where nothing else tells these from others:
/// each one's name, and the advice. Somebody may want to see what is lost so, which is why this is no error.
pub(crate) fn lost_payload_notes(plan: &Plan) -> Vec<(String, String)> {
    let by_mark = |(_, s): &(usize, &PlannedStage)| {
        s.kind.properties.payload == Payload::Parks && s.settings.text("mode") == "paper"
    };
    let mut notes = Vec::new();
    for (id, slice) in plan.stages.iter().enumerate().filter(by_mark) {
        let met = before_splice(plan, id).0;
        for stage in met.into_iter().skip(1).filter_map(|id| plan.stages.get(id)) {
            if (stage.kind.properties.rewrites_dscp)(&stage.settings) {
                let text = format!(
                    "packets that `{}` sliced lose their payloads here: with mode=paper nothing but the DSCP \
                     tells them from others, and it is changed; leave out mode=paper, or put this elsewhere",
                    slice.name
                );
                notes.push((stage.name.clone(), text));
            }
        }
    }
    notes
}

/// The stages that a slice stage's packets meet before a splice stage of its own, itself first, and true if
/// they come to such a one.
fn before_splice(plan: &Plan, slice: usize) -> (Vec<usize>, bool) {
    let splices = |id: usize| {
        let stage = plan.stages.get(id).filter(|s| s.kind.properties.payload == Payload::Returns);
        stage.is_some_and(|s| owner(&plan.stages, s) == Some(slice))
    };
    let mut spliced = false;
    let met = search(slice, |from, next| {
        for wire in plan.wires.iter().filter(|w| w.from == from) {
            if splices(wire.to) {
                spliced = true;
            } else {
                next.push(wire.to);
            }
        }
    });
    (met, spliced)
}

/// Checks the stages that a slice stage's packets meet before a splice stage of its own.
fn follow(plan: &Plan, slice: usize, named: &PlannedStage, findings: &mut Vec<Finding>) {
    let (met, spliced) = before_splice(plan, slice);
    for id in met.into_iter().skip(1) {
        let Some(stage) = plan.stages.get(id) else { continue };
        let say = |message: String, hint: &str| Finding::new(&stage.span, message).hint(hint);
        let (name, sliced) = (&stage.name, &named.name);
        if stage.kind.properties.payload != Payload::Passes {
            let message =
                format!("packets that `{sliced}` sliced meet `{name}` before a splice of their own");
            findings.push(say(message, "put slice, functions and splice in a row, one pair after the other"));
        } else if let Some(why) = stage.kind.needs_payload(&stage.settings) {
            let message = format!("`{name}` needs payloads, which wait at `{sliced}`: {why}");
            findings.push(say(message, "put it before the slice or behind the splice"));
        } else if named.settings.text("bind") == "flow"
            && (stage.kind.properties.rewrites_flows)(&stage.settings)
        {
            let message = format!(
                "`{name}` changes addresses or ports, and `{sliced}` binds payloads to them: none would come back"
            );
            findings.push(say(message, "leave out `bind=flow`, or put the function elsewhere"));
        } else if stage.kind.group == Group::Port
            && stage.role != Role::Source
            && !function_side(plan, slice, id)
        {
            let message = format!("packets that `{sliced}` sliced leave by `{name}` without their payloads");
            findings.push(say(message, "lead them through a splice: … -> splice -> out"));
        }
    }
    if !spliced && findings.is_empty() {
        let finding =
            Finding::new(&named.span, format!("no splice brings the payloads of `{}` back", named.name));
        findings.push(finding.hint("in -> slice -> … -> splice -> out"));
    }
}

/// Nothing may reach a splice stage past its slice stage: tokens would be taken from the network.
fn trace_back(plan: &Plan, splice: usize, slice: usize, findings: &mut Vec<Finding>) {
    let role = |id: usize| plan.stages.get(id).map(|s| s.role);
    let enters = |id: usize| matches!(role(id), Some(Role::Source | Role::TwoWay));
    let met = search(splice, |to, next| {
        if !enters(to) && !function_side(plan, slice, to) {
            next.extend(plan.wires.iter().filter(|w| w.to == to && w.from != slice).map(|w| w.from));
        }
    });
    let named = |id: usize| plan.stages.get(id).map_or("", |s| s.name.as_str());
    for id in met.into_iter().filter(|id| enters(*id) && !function_side(plan, slice, *id)) {
        let Some(stage) = plan.stages.get(id) else { continue };
        let message = format!(
            "packets of `{}` get to `{}` past `{}`: their tokens can't be trusted",
            stage.name,
            named(splice),
            named(slice)
        );
        let finding = Finding::new(&stage.span, message);
        findings.push(finding.hint("lead them through the slice, or round the splice"));
    }
}

/// Returns true if `port` is one at both ends behind which the functions of a slice stage are: no packet gets
/// from it to the slice, and what the slice lets through goes to it.
fn function_side(plan: &Plan, slice: usize, port: usize) -> bool {
    let two_way = |id: usize| plan.stages.get(id).is_some_and(|s| s.role == Role::TwoWay);
    // The stages on all paths to `end`, as far as the ports where packets come in.
    let before = |end: usize| {
        search(end, |to, next| {
            if to == end || !two_way(to) {
                next.extend(plan.wires.iter().filter(|w| w.to == to).map(|w| w.from));
            }
        })
    };
    two_way(port) && !before(slice).contains(&port) && before(port).contains(&slice)
}
