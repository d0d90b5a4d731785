//! Other settings for a reframer that runs: what is held leaves, and the flows that it knows stay, as does
//! what it has learned.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use super::compress::Gro;
use super::flow_table::FlowTable;
use super::{Reframe, ReframeConfig, ReframeStats};
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;

impl Reframe {
    /// One whose settings [`Reframe::renew`] is to go on with: it has no room for flows, since those stay
    /// where they are.
    pub(crate) fn successor(config: &ReframeConfig) -> Result<Self, super::ConfigError> {
        Self::with_table(config, FlowTable::new(1, config.seed))
    }

    /// Lets go of everything, as at the end, and goes on with the settings that `new` was made with, whose
    /// flows must be as many, and made by the same headers. `new` is then all that is no longer needed, so
    /// that another thread may free it.
    ///
    /// The age and size of flows are kept, as are the counters: by class where there are as many classes,
    /// else all of them as those of the default class. Where the classes have the same names and rules, all
    /// that was learned is kept: what an adaptive hold knows, and, under a budget of the same kind, its
    /// price; under such a budget, too, the hold that set itself; and the heavy flows, where their window is
    /// the same.
    pub(crate) fn renew(&mut self, new: &mut Self, pool: &mut Pool, out: &mut dyn Output) {
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
        std::mem::swap(&mut self.table, &mut new.table);
        if self.passes {
            // The last packets were not known by number: those before them are not the last ones.
            new.table.forget_last();
        } else {
            new.last_in = self.last_in;
        }
        let same = self.parted == new.parted;
        let mut heavy = self.heavy.iter_mut().filter(|_| same);
        for new_heavy in &mut new.heavy {
            let before = heavy.next().and_then(Option::as_mut);
            if let Some(new_heavy) = new_heavy {
                new_heavy.follow(before, new.table.len());
            }
        }
        if let Some(finish) = &mut new.finish {
            finish.follow(self.finish.take(), new.table.len());
        }
        new.hold.note_peak(self.hold.peak());
        match (&mut new.adaptive, &mut self.adaptive) {
            (Some(new_one), Some(before)) if same => new_one.learn_from(before, &new.stats.classes),
            (Some(new_one), _) => new_one.follow(&new.stats.classes),
            (None, _) => {}
        }
        new.gro_before = self.gro.as_ref().map(Gro::stats).or_else(|| self.gro_before.take());
        if let (Some(gro), Some(before)) = (&mut new.gro, &new.gro_before) {
            gro.follow(before);
        }
        if let (Some(auto), Some(before)) = (&mut new.auto, &mut self.auto) {
            auto.follow(before, same);
            let holds: Vec<(u8, u64)> = auto.holds().collect();
            holds.into_iter().for_each(|(class, hold_ns)| new.set_hold(class, hold_ns));
        }
        new.instant = self.instant;
        new.last_key = self.last_key.take().filter(|_| new.passes);
        std::mem::swap(self, new);
    }

    /// A text that is the same where the classes are, but for their settings.
    pub(super) fn parted(config: &ReframeConfig) -> String {
        let classes = config.classes.iter().map(|class| (&class.name, &class.rule, class.top));
        format!("{:?}", classes.collect::<Vec<_>>())
    }

    /// A text that is the same where all settings are.
    pub(crate) fn fingerprint(config: &ReframeConfig) -> String {
        // Seeds are the stage's own.
        format!("{:?}", ReframeConfig { seed: 0, ..config.clone() })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use slipstream_core::batch::{Arrivals, Batch};
    use slipstream_core::classify::Classifier;
    use slipstream_core::frame::Frame;
    use slipstream_core::heavy::{HeavyFlows, Top};
    use slipstream_core::pool::PacketMeta;
    use slipstream_core::time::Nanos;
    use slipstream_wire::{LinkType, classify};

    use super::*;
    use crate::compress::test_packets::Packet;
    use crate::{Admit, Budget, Class, ClassSettings, Policy, Rule};

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
        let last = arrivals.frames.last().map_or(0, |frame| frame.arrival.0);
        reframe.process(pool, &mut arrivals, &mut Nowhere);
        reframe.advance(pool, Nanos(last + 2_000_000), &mut Nowhere);
    }

    fn acks(from: u32) -> Vec<Packet> {
        (0..10).map(|n| Packet { ack: from + 100 * n, ..Packet::default() }).collect()
    }

    fn renewed(old: &ReframeConfig, new: &ReframeConfig) -> [ReframeStats; 2] {
        let (mut pool, mut reframe) = (Pool::new(), Reframe::new(old).unwrap());
        pass(&mut reframe, &mut pool, 1_000, &acks(100));
        let before = reframe.stats();
        reframe.renew(&mut Reframe::new(new).unwrap(), &mut pool, &mut Nowhere);
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

    /// While there are no super-frames, those that were made still count.
    #[test]
    fn super_frames_are_counted_on_after_a_time_without() {
        let gro = |on| config(20, |c| c.compress_gro = on);
        let (mut pool, mut reframe) = (Pool::new(), Reframe::new(&gro(true)).unwrap());
        for (time, on, trains) in [(1_000, false, 1), (10_000_000, true, 1), (20_000_000, true, 2)] {
            pass(&mut reframe, &mut pool, time, &acks(100));
            reframe.renew(&mut Reframe::new(&gro(on)).unwrap(), &mut pool, &mut Nowhere);
            assert_eq!(reframe.stats().gro.map(|gro| gro.trains), Some(trains));
        }
    }

    /// A flow that comes again after others have passed, which nobody knew by number, does not go on.
    #[test]
    fn runs_end_where_others_passed_between() {
        let (mut pool, mut reframe) = (Pool::new(), Reframe::new(&config(20, |_| {})).unwrap());
        let [one, other] = [false, true].map(|ipv6| Packet { ipv6, ..Packet::default() });
        pass(&mut reframe, &mut pool, 1_000, std::slice::from_ref(&one));
        reframe.renew(&mut Reframe::new(&config(0, |_| {})).unwrap(), &mut pool, &mut Nowhere);
        pass(&mut reframe, &mut pool, 10_000_000, &[other]);
        reframe.renew(&mut Reframe::new(&config(20, |_| {})).unwrap(), &mut pool, &mut Nowhere);
        pass(&mut reframe, &mut pool, 20_000_000, &[one]);
        assert_eq!((reframe.stats().runs_in, reframe.stats().runs_out), (3, 3));
    }

    /// Delays of the time before are no debt: the price is that of a stage that begins.
    #[test]
    fn a_price_is_steered_by_what_came_since() {
        let adaptive = config(1_000, |c| {
            c.admit = Admit::Adaptive;
            c.budget = Some(Budget::Delay(20_000));
        });
        // Pairs 100 ns apart; a second packet seldom has a third behind it.
        let send = |reframe: &mut Reframe, pool: &mut Pool, from: u64| {
            for n in 0..4_000 {
                pass(reframe, pool, from + n * 5_000_000, &acks(100)[..2]);
            }
            reframe.stats().prices_ns
        };
        let (mut pool, mut fresh) = (Pool::new(), Reframe::new(&adaptive).unwrap());
        let expected = send(&mut fresh, &mut pool, 50_000_000_000);
        let mut reframe = Reframe::new(&config(1_000, |_| {})).unwrap();
        send(&mut reframe, &mut pool, 1_000);
        reframe.renew(&mut Reframe::new(&adaptive).unwrap(), &mut pool, &mut Nowhere);
        assert_eq!(send(&mut reframe, &mut pool, 50_000_000_000), expected);
    }

    /// Packets of flows that come in pairs 30 us apart, pair after pair.
    fn pairs(flows: std::ops::Range<u16>, from: u64) -> Vec<(u64, Vec<u8>)> {
        let pair = |(flow, time): (u16, u64)| {
            [0, 30_000].map(|later| (time + later, bytes(flow, &Packet::default())))
        };
        let mut packets: Vec<_> = flows.zip((from..).step_by(11_000)).flat_map(pair).collect();
        packets.sort_by_key(|(time, _)| *time);
        packets
    }

    fn adaptive(hold_us: u64, budget: &str, change: impl FnOnce(&mut ReframeConfig)) -> ReframeConfig {
        config(hold_us, |c| {
            (c.admit, c.budget) = (Admit::Adaptive, Some(budget.parse().unwrap()));
            change(c);
        })
    }

    /// All goes on as if nothing had happened, where what was changed decides nothing.
    #[test]
    fn an_adaptive_hold_goes_on_by_what_it_has_learned() {
        for budget in ["price=100us", "delay=10us", "train=1.7"] {
            let old = adaptive(200, budget, |_| {});
            let new = adaptive(200, budget, |c| c.capacity_bytes /= 2);
            let (mut pool, mut logs) = (Pool::new(), [Log::default(), Log::default()]);
            for (renews, log) in [false, true].into_iter().zip(&mut logs) {
                let mut reframe = Reframe::new(&old).unwrap();
                offer(&mut reframe, &mut pool, &pairs(0..2_000, 1_000), 0, &mut Nowhere);
                reframe.advance(&mut pool, Nanos(100_000_000), &mut Nowhere);
                let prices = reframe.stats().prices_ns;
                if renews {
                    reframe.renew(&mut Reframe::successor(&new).unwrap(), &mut pool, &mut Nowhere);
                }
                assert_eq!(reframe.stats().prices_ns, prices, "{budget}");
                // Less than the packets between two looks at the price.
                offer(&mut reframe, &mut pool, &pairs(3_000..3_100, 100_000_000), 0, log);
                reframe.finish(&mut pool, log);
            }
            assert_eq!(logs[1].0, logs[0].0, "{budget}");
        }
    }

    /// The delay of 100 flows of one packet each, after a thousand of these that were held at first.
    fn delay_of_singles(again: Option<&ReframeConfig>) -> u128 {
        let (mut pool, mut reframe) =
            (Pool::new(), Reframe::new(&adaptive(50, "price=50us", |_| {})).unwrap());
        let singles = |flows: std::ops::Range<u16>, from: u64| -> Vec<_> {
            flows
                .zip((from..).step_by(10_000))
                .map(|(flow, time)| (time, bytes(flow, &Packet::default())))
                .collect()
        };
        offer(&mut reframe, &mut pool, &singles(0..1_000, 1_000), 0, &mut Nowhere);
        reframe.advance(&mut pool, Nanos(100_000_000), &mut Nowhere);
        let before = reframe.stats().total().delay.sum();
        assert!(before > 100_000, "some are held before it is known that none comes");
        if let Some(config) = again {
            reframe.renew(&mut Reframe::successor(config).unwrap(), &mut pool, &mut Nowhere);
        }
        offer(&mut reframe, &mut pool, &singles(2_000..2_100, 100_000_000), 0, &mut Nowhere);
        reframe.finish(&mut pool, &mut Nowhere);
        reframe.stats().total().delay.sum() - before
    }

    /// Gaps are counted on another scale then.
    #[test]
    fn another_hold_goes_by_what_was_learned_under_the_one_before() {
        assert_eq!(delay_of_singles(None), 0);
        for hold_us in [20, 49, 51, 100, 400] {
            let other = adaptive(hold_us, "price=50us", |_| {});
            assert_eq!(delay_of_singles(Some(&other)), 0, "{hold_us} us");
        }
        let other_classes = adaptive(50, "price=50us", |c| {
            let settings = c.default.clone();
            c.classes.push(Class { top: None, ..heavy(Top::Flows(1), settings) });
        });
        assert!(delay_of_singles(Some(&other_classes)) > 0, "of other classes nothing is known");
    }

    #[test]
    fn a_price_is_kept_under_a_budget_of_its_kind() {
        let price = |old: &str, new: &str| {
            let (mut pool, mut reframe) = (Pool::new(), Reframe::new(&adaptive(200, old, |_| {})).unwrap());
            offer(&mut reframe, &mut pool, &pairs(0..3_000, 1_000), 0, &mut Nowhere);
            let before = reframe.stats().prices_ns;
            reframe.renew(
                &mut Reframe::successor(&adaptive(200, new, |_| {})).unwrap(),
                &mut pool,
                &mut Nowhere,
            );
            (before[0], reframe.stats().prices_ns[0])
        };
        let (before, after) = price("delay=10us", "delay=12us");
        assert!(before == after && before != 24_000, "{before} {after}");
        assert_eq!(price("delay=10us", "train=1.5").1, 50_000);
        assert_eq!(price("delay=10us", "price=7us").1, 7_000);
        assert_eq!(price("price=9us", "price=7us"), (9_000, 7_000));
    }

    /// A hold that had set itself stays where it is, within its bounds.
    #[test]
    fn a_hold_that_set_itself_is_kept() {
        let auto = |max_us: u64, budget: &str, change: &dyn Fn(&mut ReframeConfig)| {
            config(max_us, |c| {
                (c.default.hold_min_ns, c.budget) = (Some(0), Some(budget.parse().unwrap()));
                change(c);
            })
        };
        let hold = |config: &ReframeConfig| {
            let (mut pool, old) = (Pool::new(), auto(1_000, "price=1ms", &|_| {}));
            let mut reframe = Reframe::new(&old).unwrap();
            offer(&mut reframe, &mut pool, &pairs(0..10_000, 1_000), 0, &mut Nowhere);
            let before = reframe.stats().auto.remove(0);
            assert!(before.hold_ns < 100_000 && before.hold_ns > 30_000, "{before:?}");
            reframe.renew(&mut Reframe::successor(config).unwrap(), &mut pool, &mut Nowhere);
            let after = reframe.stats().auto.remove(0);
            // Packets are held for as long as it says.
            let mut log = Log::default();
            offer(&mut reframe, &mut pool, &[(10_000_000_000, bytes(1, &Packet::default()))], 0, &mut log);
            reframe.finish(&mut pool, &mut log);
            (before, log.0.last().unwrap().0 - 10_000_000_000, after)
        };
        let (before, held_ns, after) = hold(&auto(1_000, "price=1ms", &|c| c.capacity_bytes /= 2));
        assert_eq!((&after, held_ns), (&before, before.hold_ns));
        let (before, held_ns, after) = hold(&auto(1_000, "price=2ms", &|_| {}));
        assert_eq!((&after.tried, held_ns), (&before.tried, before.hold_ns));
        for max_us in [40, 500, 800, 2_000] {
            let (before, held_ns, after) = hold(&auto(max_us, "price=1ms", &|_| {}));
            let expected = after.tried.iter().map(|(ns, _)| *ns).find(|ns| *ns <= before.hold_ns).unwrap();
            assert_eq!((after.hold_ns, held_ns), (expected, expected), "{max_us} us");
        }
        let (_, _, after) = hold(&auto(1_000, "train=1.5", &|_| {}));
        assert_eq!(after.hold_ns, 1_000_000, "a budget of another kind");
    }

    /// Flows are as heavy after a reload as before.
    #[test]
    fn heavy_flows_stay_heavy() {
        let with = |hold_us: u64, window: u32| {
            config(hold_us, |c| {
                let settings = ClassSettings { bypass: true, ..c.default.clone() };
                with_heavy(c, heavy(Top::Flows(1), settings), window);
            })
        };
        for (window, more) in [(64, 10), (128, 0)] {
            let (mut pool, mut reframe) = (Pool::new(), Reframe::new(&with(20, 64)).unwrap());
            let one = |from: u64| -> Vec<_> {
                (from..).step_by(100).take(100).map(|time| (time, bytes(7, &Packet::default()))).collect()
            };
            offer(&mut reframe, &mut pool, &one(1_000), 0, &mut Nowhere);
            let before = reframe.stats().classes[1].packets_out;
            assert!(before > 30);
            reframe.renew(&mut Reframe::successor(&with(30, window)).unwrap(), &mut pool, &mut Nowhere);
            offer(&mut reframe, &mut pool, &one(1_000_000)[..10], 0, &mut Nowhere);
            assert_eq!(reframe.stats().classes[1].packets_out - before, more, "a window of {window}");
        }
    }

    /// Counts with a map: the obvious twin of what finds heavy flows.
    #[derive(Debug)]
    struct Finder(Top, BTreeMap<u32, u32>);

    impl HeavyFlows for Finder {
        fn count(&mut self, flows: &[u32]) {
            flows.iter().for_each(|flow| *self.1.entry(*flow).or_default() += 1);
        }

        fn renumber(&mut self, flow: u32) {
            self.1.remove(&flow);
        }

        fn end(&mut self, heavy: &mut dyn FnMut(u32)) {
            let mut flows: Vec<_> = std::mem::take(&mut self.1).into_iter().filter(|(_, n)| *n > 1).collect();
            flows.sort_unstable_by_key(|(flow, n)| (u32::MAX - n, *flow));
            let most = self.0.of(flows.len() as u64) as usize;
            flows.into_iter().take(most).for_each(|(flow, _)| heavy(flow));
        }
    }

    fn heavy(top: Top, settings: ClassSettings) -> Class {
        Class { name: "heavy".into(), rule: Rule::parse("ip or ip6").unwrap(), top: Some(top), settings }
    }

    fn with_heavy(c: &mut ReframeConfig, class: Class, window: u32) {
        c.classes.push(class);
        c.top_window = window;
        c.heavy_flows = Some(|top, _| Some(Box::new(Finder(top, BTreeMap::new()))));
    }

    /// Bytes of a packet of this flow, of TCP or UDP.
    fn bytes(flow: u16, packet: &Packet) -> Vec<u8> {
        let mut bytes = packet.frame();
        if !packet.ipv6 {
            bytes[26..28].copy_from_slice(&flow.to_be_bytes());
        }
        bytes
    }

    /// Hands over packets with their times.
    fn offer(
        reframe: &mut Reframe,
        pool: &mut Pool,
        packets: &[(u64, Vec<u8>)],
        first: u64,
        out: &mut dyn Output,
    ) {
        let mut arrivals = Arrivals { first, ..Arrivals::default() };
        for (n, (time, bytes)) in (first..).zip(packets) {
            let original_len = bytes.len() as u32;
            let meta = PacketMeta { time: Nanos(*time), original_len, interface: n as u32 };
            let buf = pool.insert(meta, bytes);
            arrivals.frames.push(Frame::unclassified(Nanos(*time), buf, original_len));
        }
        let mut classifier = Classifier::default();
        classifier.links(&[LinkType::Ethernet]);
        classifier.classify(pool, &mut arrivals);
        reframe.process(pool, &mut arrivals, out);
    }

    /// A flow that gets the number of a heavy one is not heavy, also where that number was given before.
    #[test]
    fn no_flow_inherits_that_it_is_heavy() {
        let with = |hold_us| {
            config(hold_us, |c| {
                c.flows = 1024;
                c.capacity = 16;
                let settings = ClassSettings { bypass: true, ..c.default.clone() };
                with_heavy(c, heavy(Top::Flows(1), settings), 1024);
            })
        };
        let (mut pool, mut reframe) = (Pool::new(), Reframe::new(&with(20)).unwrap());
        let mut time = 0;
        let mut send = |reframe: &mut Reframe, flows: &mut dyn Iterator<Item = u16>| {
            let packets: Vec<_> = flows
                .map(|flow| {
                    time += 100_000;
                    (time, bytes(flow, &Packet::default()))
                })
                .collect();
            offer(reframe, &mut pool, &packets, 0, &mut Nowhere);
            time += 1_000_000;
            reframe.advance(&mut pool, Nanos(time), &mut Nowhere);
            reframe.stats().classes[1].packets_out
        };
        send(&mut reframe, &mut (0..1024));
        reframe.renew(&mut Reframe::new(&with(30)).unwrap(), &mut Pool::new(), &mut Nowhere);
        assert_eq!(
            send(&mut reframe, &mut std::iter::repeat_n(500, 1024)),
            1,
            "heavy from the next window on"
        );
        assert_eq!(send(&mut reframe, &mut (2000..3000)), 1, "none of these is heavy");
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

    /// Takes down when each packet left, and which.
    #[derive(Default)]
    struct Log(Vec<(u64, u64)>);

    impl Output for Log {
        fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
            for (train, frames) in batch.iter() {
                self.0
                    .extend(frames.iter().map(|f| (train.release.0, u64::from(pool.meta(f.buf).interface))));
            }
            Nowhere.emit(pool, batch);
        }
    }

    fn settings() -> impl Strategy<Value = ClassSettings> {
        let hold = prop_oneof![Just(0u64), Just(1), 1..3_000u64, Just(40_000)];
        (hold, any::<bool>(), prop_oneof![1..6u16, Just(32)], 1..3u32, prop::bool::weighted(0.1)).prop_map(
            |(hold_ns, auto, burst, weight, bypass)| ClassSettings {
                hold_ns,
                hold_min_ns: auto.then_some(0),
                burst,
                weight,
                bypass,
            },
        )
    }

    /// Settings as reloads may give them: the capacity and the number of flows stay.
    fn any_config() -> impl Strategy<Value = ReframeConfig> {
        let admit =
            prop_oneof![3 => Just(Admit::Always), 1 => Just(Admit::Second), 2 => Just(Admit::Adaptive)];
        let policy = prop_oneof![Just(Policy::Oldest), Just(Policy::Waiting), Just(Policy::Shortest)];
        let classes = prop::collection::vec((settings(), 0..4usize, any::<bool>()), 0..3);
        let finish = prop_oneof![3 => Just(0u8), 1 => 0..8u8];
        let bytes = prop_oneof![2 => Just(1u64 << 20), 1 => 1..400u64];
        let bypass = prop_oneof![2 => Just("none"), 1 => Just("tcp syn"), 1 => Just("length 81-1500")];
        (settings(), admit, policy, classes, finish, bytes, bypass).prop_map(
            |(default, admit, policy, classes, finish, capacity_bytes, bypass)| {
                let adaptive = admit == Admit::Adaptive;
                let fit = |t: ClassSettings| ClassSettings {
                    hold_min_ns: t.hold_min_ns.filter(|_| !adaptive),
                    ..t
                };
                let mut config = ReframeConfig {
                    default: ClassSettings { bypass: false, ..fit(default) },
                    capacity: 8,
                    capacity_bytes,
                    flows: 1024,
                    admit,
                    policy,
                    bypass: if bypass == "none" { Rule::never() } else { Rule::parse(bypass).unwrap() },
                    compress_ack: finish & 1 != 0,
                    tcp_order: finish & 2 != 0,
                    compress_gro: finish & 4 != 0,
                    ..ReframeConfig::default()
                };
                for (n, (settings, rule, top)) in classes.into_iter().enumerate() {
                    let rule = ["tcp", "ip", "tcp syn", "length 0-70"][rule];
                    let mut class = heavy(Top::Flows(2), fit(settings));
                    (class.name, class.rule) = (n.to_string(), Rule::parse(rule).unwrap());
                    class.top = class.top.filter(|_| top);
                    with_heavy(&mut config, class, 16);
                }
                config
            },
        )
    }

    /// Packets: the gap before each in ns, and its bytes.
    fn any_packets() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
        let gap = prop_oneof![3 => Just(0u64), 5 => 0..500u64, 1 => 0..20_000u64, 1 => Just(12_000_000u64)];
        let packet =
            (gap, 0..5u16, 0..12u8, 0..4u32, 0..3usize).prop_map(|(gap, flow, kind, seq, payload)| {
                let flags = [0x10, 0x10, 0x10, 0x18, 0x11, 0x02][usize::from(kind) % 6];
                let packet = Packet {
                    ipv6: kind == 7,
                    seq: 1000 + 20 * seq,
                    ack: 100 + seq,
                    flags,
                    payload: 20 * payload,
                    fragment: if kind == 8 { 0x2000 } else { 0x4000 },
                    ..Packet::default()
                };
                let mut bytes = bytes(flow, &packet);
                if kind == 9 {
                    bytes[12] = 0x55;
                }
                (gap, bytes)
            });
        prop::collection::vec(packet, 0..120)
    }

    fn hold_settings(config: &ReframeConfig) -> impl Iterator<Item = &ClassSettings> {
        config.classes.iter().map(|c| &c.settings).chain([&config.default])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// Other settings at any time, one after the other: every packet leaves once, in the order of its
        /// flow and within the hold, and the counters say what has been. Where nothing is to be remembered,
        /// all is as if another stage had begun.
        #[test]
        fn any_settings_may_follow_any_others(
            parts in prop::collection::vec((any_config(), any_packets(), any::<bool>()), 1..5),
        ) {
            let flow = |bytes: &[u8]| classify(LinkType::Ethernet, bytes).ok().map(|headers| headers.key);
            let (mut pool, mut log) = (Pool::new(), Log::default());
            let mut reframe: Option<Reframe> = None;
            let mut all: Vec<(u64, Vec<u8>, u64)> = Vec::new();
            let (mut now, mut ordered, mut forgetful) = (1_000, true, true);
            let mut expected = Log::default();
            for (config, packets, ends) in &parts {
                match &mut reframe {
                    Some(reframe) => {
                        reframe.renew(&mut Reframe::successor(config).unwrap(), &mut pool, &mut log);
                    }
                    None => reframe = Some(Reframe::new(config).unwrap()),
                }
                let hold = hold_settings(config).map(|t| t.hold_ns).max().unwrap();
                ordered &= !config.tcp_order;
                forgetful &= config.policy == Policy::Waiting
                    && config.admit == Admit::Always
                    && !config.compress_ack
                    && config.classes.iter().all(|class| class.top.is_none())
                    && hold_settings(config).all(|settings| settings.hold_min_ns.is_none());
                let packets: Vec<_> = packets
                    .iter()
                    .map(|(gap, bytes)| {
                        now += gap;
                        (now, bytes.clone())
                    })
                    .collect();
                let first = all.len() as u64;
                all.extend(packets.iter().map(|(time, bytes)| (*time, bytes.clone(), hold)));
                let reframe = reframe.as_mut().unwrap();
                let mut twin = Reframe::new(config).unwrap();
                for (first, packets) in (first..).step_by(40).zip(packets.chunks(40)) {
                    offer(reframe, &mut pool, packets, first, &mut log);
                    offer(&mut twin, &mut pool, packets, first, &mut expected);
                }
                if *ends {
                    now += hold + 1;
                    reframe.advance(&mut pool, Nanos(now), &mut log);
                    twin.advance(&mut pool, Nanos(now), &mut expected);
                }
                twin.drain(&mut pool, &mut expected);
            }
            let mut reframe = reframe.unwrap();
            reframe.drain(&mut pool, &mut log);
            prop_assert_eq!(pool.live(), 0);
            let (stats, log) = (reframe.stats(), log.0);
            if forgetful {
                prop_assert_eq!(&log, &expected.0);
            }
            let total = stats.total();
            prop_assert_eq!(stats.packets_in, all.len() as u64);
            prop_assert_eq!(stats.packets_out, log.len() as u64);
            prop_assert_eq!(stats.packets_out + total.packets_coalesced, stats.packets_in);
            prop_assert_eq!(total.packets_in + stats.unclassified, stats.packets_in);
            prop_assert_eq!(total.packets_out + stats.unclassified, stats.packets_out);
            prop_assert_eq!(stats.held, 0);
            for class in &stats.classes {
                let of_lengths: u64 = (0..).zip(&class.lengths).map(|(n, trains): (u64, &u64)| n * trains).sum();
                prop_assert_eq!(of_lengths, class.packets_out + class.packets_coalesced);
                prop_assert_eq!(class.delay.count(), of_lengths);
                prop_assert_eq!(class.released.iter().sum::<u64>(), class.trains);
                prop_assert_eq!(class.lengths.iter().sum::<u64>(), class.trains);
                prop_assert!(class.held_max <= stats.held_max && stats.held_max <= 8);
            }
            let (mut last, mut seen) = (BTreeMap::new(), vec![false; all.len()]);
            let mut clock = 0;
            for &(release, n) in &log {
                let (arrival, bytes, hold) = &all[n as usize];
                prop_assert!(!std::mem::replace(&mut seen[n as usize], true), "{} left twice", n);
                prop_assert!(release >= clock && release >= *arrival && release - arrival <= *hold);
                clock = release;
                if let Some(key) = flow(bytes) {
                    let before = last.insert(format!("{key:?}"), n);
                    prop_assert!(!ordered || before.is_none_or(|before| before < n), "{} overtakes", n);
                }
            }
            let runs = |packets: &mut dyn Iterator<Item = u64>| {
                let mut before = None;
                packets.filter_map(|n| flow(&all[n as usize].1)).filter(|key| before.replace(*key) != Some(*key)).count() as u64
            };
            prop_assert!(stats.runs_in >= runs(&mut (0..all.len() as u64)));
            if total.packets_coalesced == 0 {
                prop_assert!(stats.runs_out >= runs(&mut log.iter().map(|(_, n)| *n)));
            }
        }
    }
}
