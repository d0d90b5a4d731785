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
            self.pass_some(frames, keys, first, here, |_, _, _| ());
            self.flush(pool, out);
            first += frames.len() as u64;
            positions = later;
        }
    }

    /// Returns true if the hold that sets itself may be 0, so that [`Reframe::pass_while_aside`] is to be asked.
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
        let n = frames.iter().take_while(|frame| frame.arrival < ends).count();
        let n = if self.hold.packets() == 0 { n } else { 0 };
        if n == 0 {
            self.last_key = None;
            return 0;
        }
        let Some(mut auto) = self.auto.take() else { return 0 };
        self.emit_leaving(pool, out);
        if self.out.frames.len() + n > BATCH {
            self.flush(pool, out);
        }
        let here = frames.get(..n).unwrap_or_default();
        let (seed, mut hash) = (self.table.seed(), None);
        self.pass_some(here, keys, first, positions, |key, continues, now| {
            let hash = match hash {
                Some(hash) if continues => hash,
                _ => *hash.insert(keys.key_of(key).hash64(seed)),
            };
            auto.packet(0, hash, now);
        });
        self.auto = Some(auto);
        // Neighbours that come by different ways are not compared: they have no number here, and no key
        // there.
        self.table.forget_last();
        self.last_in = NONE;
        if n < frames.len() {
            self.last_key = None;
        }
        n
    }

    /// Lets packets pass into the batch that leaves, where there is room for them, and calls `each` for every
    /// one that has a flow: with its key as it is kept, true if it is that of the packet before, and the time.
    #[inline(always)]
    fn pass_some(
        &mut self,
        frames: &[Frame],
        keys: KeySlice<'_>,
        first: u64,
        positions: &[u64],
        mut each: impl FnMut(NarrowKey, bool, Nanos),
    ) {
        let bits = self.bypass_info.unwrap_or_default();
        let cause = if self.burst == 1 { Cause::Full } else { Cause::Deadline };
        let mut positions = positions.iter();
        let (mut classified, mut bypassed, mut runs) = (0, 0, 0);
        let mut before: Option<NarrowKey> = None;
        let starts = self.out.frames.len() as u32..;
        for ((start, sequence), (frame, key)) in starts.zip(first..).zip(frames.iter().zip(keys.kept())) {
            self.instant = self.instant.max(frame.arrival);
            let mut continues = false;
            if frame.info.classified() {
                classified += 1;
                bypassed += u64::from(self.all_bypass || frame.info.is(bits));
                continues = match before {
                    Some(before) => keys.are_same(*key, before),
                    None => self.last_key == Some(keys.key_of(*key)),
                };
                before = Some(*key);
                runs += u64::from(!continues);
                each(*key, continues, self.instant);
            }
            let sequence = positions.next().copied().unwrap_or(sequence);
            let (flow, release) = (Frame::NO_FLOW, self.instant);
            self.out.trains.push(Train { flow, start, len: 1, release, order: 0, sequence, continues });
        }
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
