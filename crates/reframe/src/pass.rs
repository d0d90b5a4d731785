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
use slipstream_wire::{FlowKey, NarrowKey};

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
            self.no_longer_aside(frames, keys);
            return 0;
        }
        self.emit_leaving(pool, out);
        if self.out.frames.len() + n > BATCH {
            self.flush(pool, out);
        }
        let (here, before) = (frames.get(..n).unwrap_or_default(), self.instant);
        if self.last_in != NONE {
            self.stand_aside(here, keys);
        }
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
        if n < frames.len() {
            self.no_longer_aside(frames.get(n..).unwrap_or_default(), keys.after(n));
        }
        n
    }

    /// Packets that were known by their entries come by their keys from here on: the one that came last
    /// before and the one that left last are found by their keys, too.
    #[cold]
    #[inline(never)]
    fn stand_aside(&mut self, frames: &[Frame], keys: KeySlice<'_>) {
        if let Some(key) = first_flow(frames, keys) {
            let (came, left) = (self.table.key_at(self.last_in), self.table.last_flow());
            // Those that pass are counted as what leaves is: a run more or less came in.
            self.stats.runs_in += u64::from(came != Some(key));
            self.stats.runs_in -= u64::from(left != Some(key));
            self.last_key = left;
            self.last_in = NONE;
            self.table.forget_last();
        }
    }

    /// Packets that came by their keys are known by their entries from here on, these being the first.
    #[cold]
    #[inline(never)]
    fn no_longer_aside(&mut self, frames: &[Frame], keys: KeySlice<'_>) {
        if self.last_in == NONE
            && let Some(last) = self.last_key
            && let Some(key) = first_flow(frames, keys)
        {
            // It will count as a run, as there is no entry before it.
            self.stats.runs_in -= u64::from(key == last);
            self.table.set_last(&last);
            self.last_key = None;
        }
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

/// The key of the first packet that has one.
fn first_flow(frames: &[Frame], keys: KeySlice<'_>) -> Option<FlowKey> {
    let (_, key) = frames.iter().zip(keys.kept()).find(|(frame, _)| frame.info.classified())?;
    Some(keys.key_of(*key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ClassSettings, ReframeConfig, Rule};
    use slipstream_core::batch::Batch;
    use slipstream_core::frame::Info;
    use slipstream_core::pool::BufId;
    use slipstream_wire::{Flags, Headers};

    /// The numbers of packets as they leave, and of the trains that are said to begin a run.
    #[derive(Default)]
    struct Log {
        packets: Vec<u32>,
        runs: u64,
    }

    impl Output for Log {
        fn emit(&mut self, _: &mut Pool, batch: &mut Batch) {
            self.packets.extend(batch.frames.iter().map(|frame| frame.buf.0));
            let classified = |train: &&Train| batch.frames[train.start as usize].info.classified();
            self.runs +=
                batch.trains.iter().filter(classified).filter(|train| !train.continues).count() as u64;
            batch.clear();
        }
    }

    fn key(flow: u64) -> FlowKey {
        match flow % 2 {
            0 => FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 1, flow as u8].into(), 17, 1, 2),
            _ => FlowKey::new(&[], [7u16; 8].into(), [8u16; 8].into(), 17, 1, flow as u16),
        }
        .unwrap()
    }

    /// Locality is that of the packets, wherever the hold goes to 0 and comes back.
    #[test]
    fn runs_go_on_where_the_stage_stands_aside_and_where_it_holds_again() {
        let mut config = ReframeConfig { bypass: Rule::never(), ..ReframeConfig::default() };
        config.default = ClassSettings { hold_ns: 256_000, hold_min_ns: Some(0), ..config.default };
        for seed in 1..9u64 {
            let mut x = seed;
            let mut random = |n: u64| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (x >> 33) % n
            };
            let (mut reframe, mut pool, mut log) =
                (Reframe::new(&config).unwrap(), Pool::new(), Log::default());
            let (mut keys, mut now) = (Vec::new(), 0);
            // Flows come together for a time, then one after the other, each for a while.
            for phase in 0..8 {
                let (apart, same) = if phase % 2 == 0 { (10_000, 2) } else { (700_000, 6) };
                let mut flow = 0;
                for _ in 0..300_000_000 / apart / 25 {
                    let mut arrivals = Arrivals { first: keys.len() as u64, ..Arrivals::default() };
                    for _ in 0..25 {
                        now += random(2 * apart);
                        if random(same) == 0 {
                            flow = random(12);
                        }
                        let key = Some(key(flow)).filter(|_| random(9) > 0);
                        let mut frame = Frame::unclassified(Nanos(now), BufId(keys.len() as u32), 60);
                        let flags = Flags(Flags::PORTS);
                        if let Some(key) = key {
                            let headers = Headers { key, l3: 14, l4: 34, flags, tcp_flags: 0, tos: 0 };
                            frame.info = Info::new(&headers);
                        }
                        arrivals.frames.push(frame);
                        arrivals.keys.push(key.unwrap_or(FlowKey::Narrow(NarrowKey([0, 0]))));
                        keys.push(key);
                    }
                    reframe.process(&mut pool, &mut arrivals, &mut log);
                }
            }
            reframe.finish(&mut pool, &mut log);
            let stats = reframe.stats();
            assert!(stats.auto[0].changes > 2, "the hold has to go up and down, not {:?}", stats.auto);
            let runs = |packets: &mut dyn Iterator<Item = u32>| {
                let mut before = None;
                packets
                    .filter_map(|n| keys[n as usize])
                    .filter(|key| before.replace(*key) != Some(*key))
                    .count() as u64
            };
            assert_eq!(stats.runs_in, runs(&mut (0..keys.len() as u32)), "seed {seed}");
            assert_eq!(stats.runs_out, runs(&mut log.packets.iter().copied()), "seed {seed}");
            assert_eq!(stats.runs_out, log.runs, "seed {seed}");
        }
    }
}
