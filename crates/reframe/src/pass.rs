//! The stage that holds nothing: with a hold of 0, one class and nothing done to trains, packets pass as they
//! came, each a train by itself. No flow need be known for that, but whether a packet is of the same flow as
//! the one before it.

use slipstream_core::batch::{Arrivals, BATCH, Train};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;
use slipstream_wire::NarrowKey;

use super::reframer::Reframe;
use super::stats::Cause;

impl Reframe {
    /// Lets packets pass. As [`Reframe::packet`] does with these settings, but that trains have no flow's
    /// number.
    pub(super) fn pass_all(&mut self, pool: &mut Pool, arrivals: &Arrivals, out: &mut dyn Output) {
        let bits = self.bypass_info.unwrap_or_default();
        let cause = if self.burst == 1 { Cause::Full } else { Cause::Deadline };
        let mut sequence = arrivals.first;
        let mut positions = arrivals.positions.iter();
        for (frames, keys) in arrivals.frames.chunks(BATCH).zip(arrivals.keys.as_slice().chunks(BATCH)) {
            let (mut classified, mut bypassed, mut runs) = (0, 0, 0);
            let mut before: Option<NarrowKey> = None;
            for (start, (frame, key)) in (0u32..).zip(frames.iter().zip(keys.kept())) {
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
                }
                let position = positions.next().copied().unwrap_or(sequence);
                sequence += 1;
                self.out.trains.push(Train {
                    flow: Frame::NO_FLOW,
                    start,
                    len: 1,
                    release: self.instant,
                    order: 0,
                    sequence: position,
                    continues,
                });
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
            self.flush(pool, out);
        }
    }
}
