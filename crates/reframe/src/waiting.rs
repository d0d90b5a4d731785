//! The way of packets through the stage where the hold is adaptive.

use super::flow_table::NONE;
use super::reframer::{Block, Reframe};
use super::stats::Cause;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;

impl Reframe {
    /// Takes the packets of a block. It is apart from other holds so that it costs them nothing.
    #[inline(never)]
    pub(super) fn block_of_adaptive(&mut self, pool: &mut Pool, block: &Block<'_>, out: &mut dyn Output) {
        for at in 0..block.frames.len() {
            let Some((frame, found)) = block.found(at) else { break };
            self.packet::<true>(pool, frame, found, out);
        }
    }

    /// Learns from a packet that has come; returns its context.
    #[inline]
    pub(super) fn observe(&mut self, pool: &Pool, frame: &Frame, new: bool, class: u8) -> u16 {
        let len = self.wire_len(pool, frame);
        let Some(adaptive) = &mut self.adaptive else { return 0 };
        let stats = self.stats.classes.get(usize::from(class));
        adaptive.observe(frame, new, class, len, self.instant, stats)
    }

    /// Gives the train of a flow, whose packet of this context was just held, the time that it waits for the
    /// next one.
    #[inline]
    pub(super) fn wait(&mut self, flow: u32, class: u8, context: u16) {
        let train = self.table.get_mut(flow).train;
        let Some(adaptive) = &self.adaptive else { return };
        if train == NONE {
            return;
        }
        match adaptive.wait(class, context, self.hold.train(train).count) {
            0 => self.leave(train, Cause::Deadline),
            wait => self.hold.due_at(train, wait - 1, self.instant.after(adaptive.wait_ns(wait))),
        }
    }
}
