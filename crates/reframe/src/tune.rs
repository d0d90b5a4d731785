//! The way of packets where a hold sets itself.

use core::ops::Range;

use super::block::Block;
use super::reframer::Reframe;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;

impl Reframe {
    /// The packets of a block, as far as none from number `from` on arrives when a hold may change.
    #[inline(always)]
    pub(super) fn before_tuning<'a>(&self, block: &Block<'a>, from: usize) -> Block<'a> {
        let Some(auto) = &self.auto else { return *block };
        let ends = auto.ends();
        if block.frames.last().is_none_or(|last| last.arrival < ends) {
            return *block;
        }
        let rest = block.frames.get(from..).unwrap_or_default();
        let n = from + rest.iter().take_while(|frame| frame.arrival < ends).count();
        Block { frames: block.frames.get(..n).unwrap_or_default(), ..*block }
    }

    /// Holds the sampled ones of some packets of class 0, whose flows are known, in shadow.
    #[inline(always)]
    pub(super) fn shadow(&mut self, block: &Block<'_>, range: Range<usize>) {
        let Some(auto) = self.auto.as_mut().filter(|auto| !auto.rests(0)) else { return };
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let hashes = block.hashes.get(range).unwrap_or_default();
        frames.iter().zip(hashes).for_each(|(frame, hash)| auto.packet(0, *hash, frame.arrival));
    }

    /// Gives classes another hold at this instant, where theirs are to change.
    #[cold]
    pub(super) fn tune(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        let now = self.instant;
        while let Some((class, hold_ns)) = self.auto.as_mut().and_then(|auto| auto.tune(now)) {
            // Trains alone so far have waited for the hold until now.
            let alone = core::mem::take(&mut self.alone.trains);
            if let Some(stats) = self.stats.classes.first_mut().filter(|_| alone > 0) {
                stats.trains_of_one_at_deadline(self.alone.hold_ns, alone);
            }
            self.set_hold(class, hold_ns);
        }
        // Trains that have waited as long as that leave now.
        self.run_to(pool, now, out);
    }

    /// From now on this is the hold of a class.
    pub(super) fn set_hold(&mut self, class: u8, hold_ns: u64) {
        if let Some(settings) = self.class_settings.get_mut(usize::from(class)) {
            settings.hold_ns = hold_ns;
        }
        if class == 0 {
            self.alone.hold_ns = hold_ns;
            self.plain = self.plain_while_held && hold_ns > 0;
        }
        self.hold.set_hold(class, hold_ns);
    }
}
