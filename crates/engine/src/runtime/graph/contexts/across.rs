//! The flow contexts of a pipeline that is cut into sections, each of which another thread may run.
//!
//! A section that looks flows up has contexts of its own, and the numbers of these go on with the trains. A
//! section behind it that keeps something of flows, too, has contexts of the same numbers: an event among the
//! others tells it which of them begin anew, so that a number means the same flow there when the trains come
//! that bear it. So flows are looked up as often as on one thread.
//!
//! A section looks flows up itself if numbers would come to it from two others, or from another beside its
//! own.

use std::ops::Range;

use slipstream_core::flow_context::{ContextCounts, FlowContexts, Layout, Place};

use super::{Numbers, Pipeline, numbers_behind};

/// The flow contexts of a section.
#[derive(Default)]
pub(in crate::runtime::graph) struct Part {
    pub(in crate::runtime::graph) contexts: Option<Box<FlowContexts>>,
    /// The section whose numbers they have.
    pub(in crate::runtime::graph) follows: Option<usize>,
    /// The last section that follows this one.
    pub(in crate::runtime::graph) followed_to: Option<usize>,
}

impl Pipeline {
    /// Lays contexts out anew for the sections that begin at these places, beside the one in front of them;
    /// gives those of each section. None have any where there are none now, or where all together would take
    /// more memory than they may.
    pub(in crate::runtime::graph) fn contexts_of_sections(&mut self, cuts: &[usize]) -> Vec<Part> {
        let nowhere = || (0..=cuts.len()).map(|_| Part::default()).collect();
        let (settings, seed) = self.laid_out;
        // The contexts that there are make room first.
        if self.contexts.take().is_none() || settings.flows == 0 {
            return nowhere();
        }
        let ends = cuts.iter().copied().chain([self.nodes.len()]);
        let sections: Vec<Range<usize>> =
            [0].into_iter().chain(cuts.iter().copied()).zip(ends).map(|(from, to)| from..to).collect();
        let (coming, from) = self.numbers_across(&sections);
        let layouts: Vec<Layout> = self.place_across(&sections, &coming);
        let mut numbers = self.flow_numbers(settings.flows).into_iter();
        let parts = sections.iter().zip(&layouts).enumerate().map(|(section, (nodes, layout))| {
            let of = |place: usize| self.nodes.get(place).map_or(Place::NONE, |node| node.place);
            let kept: Vec<usize> = nodes.clone().filter(|place| of(*place) != Place::NONE).collect();
            let look_ups = self.nodes.get(nodes.clone()).unwrap_or_default();
            let look_ups = look_ups.iter().filter(|node| node.ledger.looks_up.is_some()).count();
            let hints: Vec<u32> = numbers.by_ref().take(look_ups).collect();
            let follows = kept.iter().find_map(|place| from.get(*place).copied().flatten());
            (hints, follows.filter(|follows| look_ups == 0 && *follows != section), layout)
        });
        let parts: Vec<_> = parts.collect();
        let memory: u64 = parts
            .iter()
            .map(|(hints, follows, layout)| match (hints.is_empty(), follows) {
                (false, _) => {
                    let long = u64::from(settings.flows) * Layout::LONG_KEY as u64;
                    let hints = hints.iter().map(|n| u64::from(*n) * Layout::NUMBER as u64).sum::<u64>();
                    layout.memory(settings.flows) + hints + long
                }
                (true, Some(_)) => u64::from(settings.flows) * layout.bytes() as u64,
                (true, None) => 0,
            })
            .sum();
        if memory > settings.memory {
            return nowhere();
        }
        let last = |of: usize| {
            let follows = |(at, part): (usize, &(_, Option<usize>, _))| (part.1 == Some(of)).then_some(at);
            parts.iter().enumerate().filter_map(follows).next_back()
        };
        parts
            .iter()
            .enumerate()
            .map(|(section, (hints, follows, layout))| {
                if !hints.is_empty() {
                    let own = FlowContexts::new(layout, settings.flows, seed).with_numbers(hints.clone());
                    let followed_to = last(section);
                    let own = if followed_to.is_some() { own.listing() } else { own };
                    Part { contexts: Some(Box::new(own)), follows: None, followed_to }
                } else if follows.is_some() {
                    let contexts = Some(Box::new(FlowContexts::following(layout, settings.flows)));
                    Part { contexts, follows: *follows, followed_to: None }
                } else {
                    Part::default()
                }
            })
            .collect()
    }

    /// Becomes the section of this number, with these contexts.
    pub(in crate::runtime::graph) fn become_section(&mut self, number: usize, part: Part) {
        (self.number, self.contexts, self.follows) = (number, part.contexts, part.follows);
        self.later.followed = part.followed_to.map(|last| (number, last));
    }

    /// Is a section no longer: what it keeps of flows is gone. Returns the counts of its contexts, if it had
    /// any that flows were looked up in.
    pub(in crate::runtime::graph) fn end_contexts(&mut self) -> Option<ContextCounts> {
        self.later.followed = None;
        let contexts = self.contexts.take()?;
        self.follows.take().is_none().then(|| contexts.counts())
    }

    /// The numbers in the trains that come to each node, and the section that gave them. Flows are looked up
    /// again where numbers of two sections would meet.
    fn numbers_across(&self, sections: &[Range<usize>]) -> (Vec<Numbers>, Vec<Option<usize>>) {
        let mut again = vec![false; self.nodes.len()];
        loop {
            let coming = self.numbers_at_stages(&again);
            let (from, mut wrong) = self.givers(sections, &coming);
            wrong.retain(|place| coming.get(*place) == Some(&Numbers::Known));
            if wrong.is_empty() {
                return (coming, from);
            }
            for place in wrong {
                if let Some(again) = again.get_mut(place) {
                    *again = true;
                }
            }
        }
    }

    /// The section that gave each node the numbers which come to it, and nodes to which they come from two.
    fn givers(&self, sections: &[Range<usize>], coming: &[Numbers]) -> (Vec<Option<usize>>, Vec<usize>) {
        let keeps = self.keeping(coming);
        let looks_up =
            |place: usize| keeps.get(place) == Some(&true) && coming.get(place) == Some(&Numbers::Unknown);
        let (mut from, mut wrong) = (vec![None; self.nodes.len()], Vec::new());
        for (section, nodes) in sections.iter().enumerate() {
            let own = nodes.clone().any(looks_up);
            let mut giver = own.then_some(section);
            for place in nodes.clone() {
                let (Some(node), Some(&comes)) = (self.nodes.get(place), coming.get(place)) else { continue };
                let here = from.get(place).copied().flatten();
                // A section's words are of one set of numbers.
                if keeps.get(place) == Some(&true) && comes == Numbers::Known {
                    if giver.is_some_and(|giver| here != Some(giver)) {
                        wrong.push(place);
                    }
                    giver = giver.or(here);
                }
                let leaves = if looks_up(place) { Some(section) } else { here };
                if numbers_behind(node, comes) != Numbers::Known {
                    continue;
                }
                for edge in node.wiring.edges.iter().flatten().filter(|edge| edge.node > place) {
                    match from.get_mut(edge.node) {
                        Some(known @ None) => *known = leaves,
                        Some(known) if *known != leaves => wrong.push(edge.node),
                        _ => {}
                    }
                }
            }
        }
        (from, wrong)
    }

    /// Gives places to stages, by section, and says where flows are looked up.
    fn place_across(&mut self, sections: &[Range<usize>], coming: &[Numbers]) -> Vec<Layout> {
        let keeps = self.keeping(coming);
        let mut layouts = Vec::with_capacity(sections.len());
        for nodes in sections {
            let (mut layout, mut look_ups) = (Layout::default(), 0..);
            for place in nodes.clone() {
                let (Some(node), Some(coming)) = (self.nodes.get_mut(place), coming.get(place)) else {
                    continue;
                };
                let words = if keeps.get(place) == Some(&true) { node.stage.flow_use().words } else { 0 };
                node.place = layout.place(words);
                let looks_up = node.place != Place::NONE && *coming == Numbers::Unknown;
                node.ledger.looks_up = if looks_up { look_ups.next() } else { None };
            }
            layouts.push(layout);
        }
        layouts
    }

    /// The nodes that keep something of flows.
    fn keeping(&self, coming: &[Numbers]) -> Vec<bool> {
        let shared = self.shared_numbers(coming);
        let keeps = |(node, shared): (&super::Node, bool)| shared && node.stage.flow_use().words > 0;
        self.nodes.iter().zip(shared).map(keeps).collect()
    }
}
