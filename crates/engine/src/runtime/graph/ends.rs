//! The ends of a pipeline: stages that write something outside of it. They say how much they have room for
//! and whether they still can, and hear that nothing more will come.

use slipstream_core::stage::{Egress, Stage};

use super::{Pipeline, Sections};

impl Pipeline {
    /// Returns true if a stage takes only so many packets at a time.
    pub(in crate::runtime) fn is_bounded(&mut self) -> bool {
        (0..self.heads.len()).any(|head| self.room(head) < usize::MAX)
    }

    /// Returns true if a stage can write nothing more, or time can't go on.
    pub(in crate::runtime) fn failed(&mut self) -> bool {
        self.stuck.is_some() || self.ends().any(|end| end.failed())
    }

    /// Returns true if what a stage sends by was taken away, or time can't go on.
    pub(in crate::runtime) fn is_gone(&mut self) -> bool {
        self.stuck.is_some() || self.ends().any(|end| end.is_gone())
    }

    /// The stages that write something outside of the pipeline and still can.
    pub(in crate::runtime) fn ends_left(&mut self) -> usize {
        self.ends().filter(|end| !end.failed()).count()
    }

    /// The stages that write something outside of the pipeline.
    pub(super) fn ends(&mut self) -> impl Iterator<Item = &mut dyn Egress> {
        self.nodes.iter_mut().filter_map(|n| n.stage.egress())
    }

    /// Packets that all stages on the ways of a source have room for.
    pub(in crate::runtime) fn room(&mut self, head: usize) -> usize {
        let way = self.ways.get(head).map_or(&[][..], Vec::as_slice);
        let rooms = way.iter().filter_map(|n| self.nodes.get_mut(*n)?.stage.egress().map(|end| end.room()));
        rooms.min().unwrap_or(usize::MAX)
    }

    /// Tells stages that nothing more will come to them, where `at_end` says that of a source; those of
    /// `sections` too, which have done all that was sent to them.
    pub(in crate::runtime) fn tell_ends(
        &mut self,
        sections: Option<&Sections>,
        at_end: impl Fn(usize) -> bool,
    ) {
        for node in 0..self.told.len() {
            let mut heads = self.ways.iter().enumerate().filter(|(_, way)| way.contains(&node));
            let held = |place: &usize| match (self.nodes.get(*place), sections) {
                (None, Some(sections)) => sections.with_stage(*place, |stage| stage.held()) > Some(0),
                (here, _) => here.is_some_and(|n| n.stage.held() > 0),
            };
            let over = self.told.get(node) == Some(&false)
                && heads.all(|(head, _)| at_end(head))
                && !self.before.get(node).is_some_and(|before| before.iter().any(held));
            if !over {
                continue;
            }
            let tell = |stage: &mut dyn Stage| {
                if let Some(end) = stage.egress() {
                    end.no_more();
                }
            };
            let was_told = match (self.nodes.get_mut(node), sections) {
                (Some(n), _) => {
                    tell(n.stage.as_mut());
                    true
                }
                (None, Some(sections)) => sections.with_stage(node, tell).is_some(),
                (None, None) => false,
            };
            if let Some(told) = self.told.get_mut(node) {
                *told = was_told;
            }
        }
    }
}
