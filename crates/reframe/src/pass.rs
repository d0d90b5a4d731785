//! The stage that holds nothing: with a hold of 0, one class and nothing done to trains, packets pass as they
//! came, each a train by itself. No flow need be known for that, but whether a packet is of the same flow as
//! the one before it. So it is, too, while a hold that sets itself stands aside; of the flows that it samples
//! it keeps account in the same pass.

use slipstream_core::batch::{Arrivals, BATCH, Train};
use slipstream_core::frame::Frame;
use slipstream_core::keys::KeySlice;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_core::time::Nanos;
use slipstream_wire::NarrowKey;

use super::auto::Autos;
use super::flow_table::NONE;
use super::reframer::Reframe;
use super::stats::Cause;

impl Reframe {
    /// Lets packets pass. As [`Reframe::packet`] does with these settings, but that trains have no flow's
    /// number.
    pub(super) fn pass_all(&mut self, pool: &mut Pool, arrivals: &Arrivals, out: &mut dyn Output) {
        let mut first = arrivals.first;
        let mut positions = arrivals.positions.as_slice();
        for (frames, keys) in arrivals.frames.chunks(BATCH).zip(arrivals.keys.as_slice().chunks(BATCH)) {
            let (here, later) = positions.split_at_checked(frames.len()).unwrap_or_default();
            self.pass_some(frames, keys, first, here);
            self.flush(pool, out);
            first += frames.len() as u64;
            positions = later;
        }
    }

    /// Returns true if the hold that sets itself may be 0, so that [`Reframe::pass_while_aside`] is to be
    /// asked.
    #[inline(always)]
    pub(super) fn may_stand_aside(&self) -> bool {
        self.plain_while_held && !self.plain && !self.embedded
    }

    /// Lets packets pass while the hold that sets itself is 0, and keeps account of those whose flows it
    /// samples. Returns how many: all, unless the hold may change before; none while some are held, or the
    /// hold is another. As [`Reframe::packet`] does, but that flows aren't entered in the table: those that
    /// come meanwhile count as seen first when packets are held again.
    #[inline(never)]
    pub(super) fn pass_while_aside(
        &mut self,
        pool: &mut Pool,
        frames: &[Frame],
        keys: KeySlice<'_>,
        first: u64,
        positions: &[u64],
        out: &mut dyn Output,
    ) -> usize {
        let ends = self.auto.as_ref().map_or(Nanos(0), Autos::ends);
        let n = match frames.last() {
            Some(last) if last.arrival < ends => frames.len(),
            _ => frames.iter().take_while(|frame| frame.arrival < ends).count(),
        };
        let n = if self.hold.packets() == 0 { n } else { 0 };
        if n == 0 {
            self.last_key = None;
            return 0;
        }
        self.emit_leaving(pool, out);
        if self.out.frames.len() + n > BATCH {
            self.flush(pool, out);
        }
        let (here, before) = (frames.get(..n).unwrap_or_default(), self.instant);
        self.pass_some(here, keys, first, positions);
        if let Some(auto) = self.auto.as_mut().filter(|auto| !auto.rests(0)) {
            let seed = self.table.seed();
            let classified = here.iter().zip(keys.kept()).filter(|(frame, _)| frame.info.classified());
            let mut last: Option<(NarrowKey, u64)> = None;
            for (frame, &key) in classified {
                let hash = match last {
                    Some((before, hash)) if keys.are_same(key, before) => hash,
                    _ => keys.key_of(key).hash64(seed),
                };
                last = Some((key, hash));
                auto.packet(0, hash, frame.arrival.max(before));
            }
        }
        // Neighbours that come by different ways are not compared: they have no number here, and no key
        // there.
        self.table.forget_last();
        self.last_in = NONE;
        if n < frames.len() {
            self.last_key = None;
        }
        n
    }

    /// Lets packets pass into the batch that leaves, where there is room for them.
    #[inline(always)]
    fn pass_some(&mut self, frames: &[Frame], keys: KeySlice<'_>, first: u64, positions: &[u64]) {
        let bits = self.bypass_info.unwrap_or_default();
        let cause = if self.burst == 1 { Cause::Full } else { Cause::Deadline };
        let instant = self.instant;
        let (mut classified, mut bypassed, mut runs) = (0, 0, 0);
        let mut before: Option<NarrowKey> = None;
        let last_key = self.last_key;
        let starts = self.out.frames.len() as u32..;
        let packets = starts.zip(first..).zip(frames.iter().zip(keys.kept()));
        self.out.trains.extend(packets.map(|((start, sequence), (frame, key))| {
            let mut continues = false;
            if frame.info.classified() {
                classified += 1;
                bypassed += u64::from(frame.info.is(bits));
                continues = match before {
                    Some(before) => keys.are_same(*key, before),
                    None => last_key == Some(keys.key_of(*key)),
                };
                before = Some(*key);
                runs += u64::from(!continues);
            }
            // Packets come in the order of time.
            let (flow, release) = (Frame::NO_FLOW, frame.arrival.max(instant));
            Train { flow, start, len: 1, release, order: 0, sequence, continues }
        }));
        if !positions.is_empty() {
            let start = self.out.trains.len() - frames.len();
            let trains = self.out.trains.get_mut(start..).unwrap_or_default();
            trains.iter_mut().zip(positions).for_each(|(train, position)| train.sequence = *position);
        }
        if self.all_bypass {
            bypassed = classified;
        }
        self.instant = frames.last().map_or(instant, |last| last.arrival.max(instant));
        self.last_key = before.map(|key| keys.key_of(key)).or(self.last_key);
        self.out.frames.extend_from_slice(frames);
        self.stats.unclassified += frames.len() as u64 - classified;
        self.stats.runs_in += runs;
        self.stats.runs_out += runs;
        if let Some(class) = self.stats.classes.first_mut() {
            class.passed(Cause::Bypass, bypassed);
            class.passed(cause, classified - bypassed);
            class.packets_bypassed += bypassed;
        }
    }
}
