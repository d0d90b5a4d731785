//! Cache lines that a section will need, asked for one event before they are.
//!
//! A line that another core has written last takes as long to come as a function takes for a packet. Lines
//! of packets are asked for where a thread begins with them, for all of its sections. Flow contexts that have
//! the numbers of others were not looked up here: they are asked for in every section that has some.

use slipstream_core::batch::Batch;
use slipstream_core::flow_context::Trains;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Egress;

use super::super::{Event, Pipeline};

/// The lines of packets that stages need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Ahead {
    /// Their first line.
    reads: bool,
    /// The line with the checksum of the transport header, which changes with addresses.
    changes: bool,
}

impl Ahead {
    /// Of the stages of a section.
    pub(super) fn of(section: &mut Pipeline) -> Self {
        let changes = section.nodes.iter().any(|node| node.stage.flow_use().trains == Trains::Changed);
        let discards = |end: Option<&mut dyn Egress>| end.is_some_and(|end| end.discards());
        let reads = section.nodes.iter_mut().any(|node| !discards(node.stage.egress()));
        Self { reads, changes }
    }

    /// Returns the lines that a section asks for that needs these, where `needs` are those of all sections
    /// of a thread that begins with it; `needs` are none where its thread begins with another one. Few lines
    /// come at a time: each section asks by itself for lines that no other one needs.
    pub(super) fn behind(self, mut needs: impl Iterator<Item = Self>) -> Self {
        Self { reads: needs.any(|needs| needs.reads), ..self }
    }

    /// Asks for what an event needs.
    #[inline]
    pub(super) fn ask_for(self, event: &Event, section: &Pipeline, pool: &Pool) {
        // Packets that have just arrived come to a stage that has their keys.
        let Event::Batch { batch, .. } = event else { return };
        let Batch { frames, trains, .. } = batch;
        if let Some(contexts) = section.contexts.as_ref().filter(|_| section.follows.is_some()) {
            trains.iter().for_each(|train| contexts.prefetch(train.flow));
        }
        if self.reads {
            frames.iter().for_each(|frame| pool.prefetch_to_change(frame.buf, 0));
        }
        if self.changes {
            for frame in frames {
                let checksum = if frame.info.is_tcp() { 16 } else { 6 };
                pool.prefetch_to_change(frame.buf, u32::from(frame.info.l4()) + checksum);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_asks_for_packets_once_and_for_checksums_where_they_change() {
        let needs = |reads, changes| Ahead { reads, changes };
        let (counts, translates, discards) = (needs(true, false), needs(true, true), needs(false, false));
        let all = [counts, translates, discards];
        assert_eq!(counts.behind(all.into_iter()), needs(true, false));
        assert_eq!(translates.behind([].into_iter()), needs(false, true));
        assert_eq!(translates.behind([translates, discards].into_iter()), needs(true, true));
        assert_eq!(discards.behind([discards].into_iter()), needs(false, false));
    }
}
