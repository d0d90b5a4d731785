//! Other settings for a reframer that runs: what is held leaves, and the flows that it knows stay.

use super::{Reframe, ReframeConfig, ReframeStats};
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;

impl Reframe {
    /// Lets go of everything, as at the end, and goes on with the settings that `new` was made with. The age
    /// and size of flows are kept where `new` remembers as many, as are the counters: by class where there
    /// are as many classes, else all of them as those of the default class.
    pub(crate) fn renew(&mut self, mut new: Self, pool: &mut Pool, out: &mut dyn Output) {
        self.drain(pool, out);
        let mut stats = self.stats();
        if stats.classes.len() != new.stats.classes.len() {
            let all = stats.total();
            stats.classes.clone_from(&new.stats.classes);
            if let Some(first) = stats.classes.first_mut() {
                *first = all;
            }
        }
        new.stats = ReframeStats { held: 0, ..stats };
        if self.table.limit() == new.table.limit() {
            std::mem::swap(&mut self.table, &mut new.table);
            new.last_in = self.last_in;
            if let Some(finish) = &mut new.finish {
                finish.follow(self.finish.take(), new.table.len());
            }
        }
        new.hold.note_peak(self.hold.peak());
        if let (Some(new), Some(old)) = (&mut new.gro, &self.gro) {
            new.follow(old);
        }
        if let (Some(new), Some(old)) = (&mut new.auto, &self.auto) {
            new.follow(old);
        }
        new.instant = self.instant;
        new.last_key = self.last_key.take().filter(|_| new.passes);
        *self = new;
    }

    /// A text that is the same where all settings are.
    pub(crate) fn fingerprint(config: &ReframeConfig) -> String {
        // Seeds are the stage's own.
        format!("{:?}", ReframeConfig { seed: 0, ..config.clone() })
    }
}

#[cfg(test)]
mod tests {
    use slipstream_core::batch::{Arrivals, Batch};
    use slipstream_core::classify::Classifier;
    use slipstream_core::frame::Frame;
    use slipstream_core::pool::PacketMeta;
    use slipstream_core::time::Nanos;
    use slipstream_wire::LinkType;

    use super::*;
    use crate::compress::test_packets::Packet;
    use crate::{ClassSettings, Rule};

    /// Lets everything go.
    struct Nowhere;

    impl Output for Nowhere {
        fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
            batch.frames.iter().for_each(|frame| pool.free(frame.buf));
            batch.clear();
        }
    }

    fn config(hold_us: u64, change: impl FnOnce(&mut ReframeConfig)) -> ReframeConfig {
        let mut config = ReframeConfig { bypass: Rule::never(), ..ReframeConfig::default() };
        config.default = ClassSettings { hold_ns: hold_us * 1000, ..config.default };
        change(&mut config);
        config
    }

    /// Gives a reframer packets that come 100 ns after each other, and waits for them to leave.
    fn pass(reframe: &mut Reframe, pool: &mut Pool, from: u64, packets: &[Packet]) {
        let mut arrivals = Arrivals::default();
        for (time, packet) in (from..).step_by(100).zip(packets) {
            let bytes = packet.frame();
            let meta = PacketMeta { time: Nanos(time), ..PacketMeta::default() };
            let buf = pool.insert(meta, &bytes);
            arrivals.frames.push(Frame::unclassified(Nanos(time), buf, bytes.len() as u32));
        }
        let mut classifier = Classifier::default();
        classifier.links(&[LinkType::Ethernet]);
        classifier.classify(pool, &mut arrivals);
        reframe.process(pool, &mut arrivals, &mut Nowhere);
        reframe.finish(pool, &mut Nowhere);
    }

    fn acks(from: u32) -> Vec<Packet> {
        (0..10).map(|n| Packet { ack: from + 100 * n, ..Packet::default() }).collect()
    }

    fn renewed(old: &ReframeConfig, new: &ReframeConfig) -> [ReframeStats; 2] {
        let (mut pool, mut reframe) = (Pool::new(), Reframe::new(old).unwrap());
        pass(&mut reframe, &mut pool, 1_000, &acks(100));
        let before = reframe.stats();
        reframe.renew(Reframe::new(new).unwrap(), &mut pool, &mut Nowhere);
        assert_eq!(reframe.stats().packets_out, before.packets_out);
        pass(&mut reframe, &mut pool, 1_000_000_000, &acks(2_000));
        [before, reframe.stats()]
    }

    #[test]
    fn flows_that_were_there_before_are_compressed_on() {
        let ack = |hold| config(hold, |c| c.compress_ack = true);
        let coalesced = |stats: &ReframeStats| stats.classes[0].packets_coalesced;
        let [before, after] = renewed(&ack(20), &ack(30));
        // The first one of all stays, since nothing is known yet.
        assert_eq!((coalesced(&before), coalesced(&after)), (8, 17));
        let [before, after] = renewed(&config(20, |_| {}), &ack(20));
        assert_eq!((coalesced(&before), coalesced(&after)), (0, 8));
    }

    #[test]
    fn counters_go_on() {
        let gro = |hold| {
            config(hold, |c| {
                c.compress_gro = true;
                c.default.hold_min_ns = Some(1_000);
            })
        };
        let [mut before, mut after] = renewed(&gro(20), &gro(10));
        assert_eq!((before.held_max, after.held_max), (10, 10));
        assert_eq!((before.packets_in, after.packets_in), (10, 20));
        assert_eq!((before.gro.take().unwrap().trains, after.gro.take().unwrap().trains), (1, 2));
        assert_eq!(before.auto.pop().unwrap().hold_ns, 20_000);
        assert!(after.auto.pop().is_some());
    }
}
