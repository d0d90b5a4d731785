//! The delay stage: packets leave a time after they came, as over a longer way.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use slipstream_core::batch::{BATCH, Batch, Train};
use slipstream_core::frame::Frame;
use slipstream_core::packet::key_of;
use slipstream_core::pool::Pool;
use slipstream_core::registry::{BuildError, Group, IN, Made, Meets, OUT, Properties, Site, StageType};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, Observe, Output, Stage};
use slipstream_core::time::Nanos;

/// The longest delay, in ns: ten seconds.
const LONGEST: u64 = 10_000_000_000;
/// Flows whose last departure is known, where each packet has a delay of its own. Flows that share a place
/// keep order among each other, too.
const PLACES: usize = 1 << 16;

pub(super) const DELAY: StageType = StageType {
    name: "delay",
    group: Group::Plumbing,
    summary: "Holds every packet for a time, with jitter or without, as a longer way would",
    example: "in -> delay(time=10ms, jitter=2ms) -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "time",
            kind: Kind::Time(0, LONGEST),
            default: None,
            required: true,
            help: "Mean time for which a packet is held",
        },
        Setting {
            name: "jitter",
            kind: Kind::Time(0, LONGEST),
            default: Some("0ns"),
            required: false,
            help: "Most that a delay differs from `time`, either way; all differences are as likely",
        },
        Setting {
            name: "per_flow",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "All packets of a flow have the same delay; else each has its own, but none overtakes another of its flow",
        },
        Setting {
            name: "capacity",
            kind: Kind::Count(1, 1 << 26),
            default: Some("1000000"),
            required: false,
            help: "Packets that are held at most; over that, those that would leave first leave early",
        },
    ],
    properties: Properties {
        holds: true,
        // All packets that are held have a say in which one leaves early.
        ..Properties::new(|_| Meets::Everything)
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let (time, jitter) = (settings.number("time"), settings.number("jitter"));
    if jitter > time {
        return Err(BuildError::setting(
            "jitter",
            "it is longer than `time`, and no packet can leave before it came",
        )
        .hint("make `time` at least as long as `jitter`"));
    }
    let capacity = settings.number("capacity") as usize;
    Ok(Made::Stage(Box::new(Delay::new(time, jitter, settings.flag("per_flow"), capacity, site.seed))))
}

/// A packet that is held.
#[derive(Debug)]
struct Held {
    /// The time at which it leaves, then its position among all that came: those that leave at one time keep
    /// their order.
    due: (Nanos, u64),
    frame: Frame,
    /// Hash of its flow; 0 of what could not be classified.
    flow: u64,
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Held {}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Held {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

#[derive(Debug)]
struct Delay {
    shortest: u64,
    /// Delays are the shortest one and up to so many ns more.
    spread: u64,
    capacity: usize,
    seed: u64,
    held: BinaryHeap<Reverse<Held>>,
    /// The last departure of flows, where packets of a flow have several delays.
    last: Option<Vec<Nanos>>,
    /// Packets that came so far.
    came: u64,
    /// No packet arrives before this time: that of the latest one so far.
    now: Nanos,
    early: u64,
    held_max: usize,
    /// Packets that were let go, and the flow and the time of the last of them.
    out: Batch,
    before: Option<(u64, Nanos)>,
}

impl Delay {
    fn new(time: u64, jitter: u64, per_flow: bool, capacity: usize, seed: u64) -> Self {
        Self {
            shortest: time - jitter.min(time),
            spread: jitter.saturating_mul(2),
            capacity,
            seed,
            held: BinaryHeap::new(),
            last: (!per_flow && jitter > 0).then(|| vec![Nanos(0); PLACES]),
            came: 0,
            now: Nanos(0),
            early: 0,
            held_max: 0,
            out: Batch::new(),
            before: None,
        }
    }

    /// The delay of a packet, in ns: drawn from its flow, or from its position.
    fn draw(&self, flow: u64) -> u64 {
        if self.spread == 0 {
            return self.shortest;
        }
        let drawn = mix(self.seed ^ if self.last.is_some() { self.came } else { flow });
        self.shortest + ((u128::from(drawn) * (u128::from(self.spread) + 1)) >> 64) as u64
    }

    /// Takes a packet that came at `now`.
    fn hold(&mut self, cx: &Context<'_>, frame: Frame, now: Nanos) {
        let flow = key_of(cx, &frame).map_or(0, |key| key.hash64(self.seed));
        self.now = self.now.max(now);
        let mut due = self.now.after(self.draw(flow));
        let places = self.last.as_mut();
        if let Some(last) = places.and_then(|places| places.get_mut(flow as usize % PLACES)) {
            due = due.max(*last);
            *last = due;
        }
        self.held.push(Reverse(Held { due: (due, self.came), frame, flow }));
        self.came += 1;
    }

    /// Lets packets go as long as `goes` says so of the next one, which is due at a time; they leave at `now`
    /// at the latest. Those of the last batch are yet to be [emitted](Self::emit).
    fn let_go(
        &mut self,
        pool: &mut Pool,
        now: Nanos,
        out: &mut dyn Output,
        goes: impl Fn(&Self, Nanos) -> bool,
    ) {
        while let Some(Reverse(next)) = self.held.peek()
            && goes(self, next.due.0)
            && let Some(Reverse(Held { due: (due, sequence), frame, flow })) = self.held.pop()
        {
            let release = due.min(now);
            if self.out.frames.len() == BATCH {
                self.emit(pool, out);
            }
            let start = self.out.frames.len() as u32;
            self.out.frames.push(frame);
            match self.out.trains.last_mut() {
                Some(train) if flow != 0 && self.before == Some((flow, release)) => train.len += 1,
                _ => self.out.trains.push(Train {
                    flow: Frame::NO_FLOW,
                    start,
                    len: 1,
                    release,
                    order: 0,
                    sequence,
                    continues: false,
                }),
            }
            self.before = Some((flow, release));
        }
    }

    /// Emits the packets that were let go.
    fn emit(&mut self, pool: &mut Pool, out: &mut dyn Output) {
        if !self.out.frames.is_empty() {
            out.emit(pool, &mut self.out);
            self.out.clear();
        }
        self.before = None;
    }
}

/// A number that looks random, of every number another one (the finaliser of SplitMix64).
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let n = (n ^ n >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let n = (n ^ n >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    n ^ n >> 31
}

impl Stage for Delay {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        for (train, frames) in batch.iter() {
            for frame in frames {
                // Each packet of a batch finds what it would find if it came by itself: what is due by then
                // has left, and only what is not can leave early.
                let came = train.release.max(frame.arrival);
                let now = self.now.max(came);
                self.let_go(cx.pool, now, out, |_, due| due <= now);
                self.hold(cx, *frame, came);
                if self.held.len() > self.capacity {
                    self.early += 1;
                    self.let_go(cx.pool, now, out, |this, _| this.held.len() > this.capacity);
                }
                self.held_max = self.held_max.max(self.held.len());
            }
        }
        batch.clear();
        self.emit(cx.pool, out);
    }

    fn next_deadline(&self) -> Nanos {
        self.held.peek().map_or(Nanos::MAX, |Reverse(next)| next.due.0)
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        let now = cx.now;
        self.let_go(cx.pool, now, out, |_, due| due <= now);
        self.emit(cx.pool, out);
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        self.let_go(cx.pool, cx.now, out, |_, _| true);
        self.emit(cx.pool, out);
    }

    fn holds(&self) -> bool {
        true
    }
}

impl Observe for Delay {
    fn held(&self) -> u64 {
        self.held.len() as u64
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("packets_early", self.early);
        visit("held_max", self.held_max as u64);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::ops::ControlFlow;

    use proptest::prelude::*;

    use crate::pipeline::Plan;
    use crate::runtime::{Driver, RunReport};
    use slipstream_io::capture::CaptureReader;

    /// Packets: time and bytes.
    type Packets = Vec<(u64, Vec<u8>)>;

    /// Runs traffic through a delay stage; the packets of both sides.
    fn run(delay: &str, traffic: &str, workers: usize) -> (Packets, Packets, RunReport) {
        run_in_batches(delay, traffic, workers, 256)
    }

    /// The same, of which at most so many packets go in at once.
    fn run_in_batches(
        delay: &str,
        traffic: &str,
        workers: usize,
        most: usize,
    ) -> (Packets, Packets, RunReport) {
        let dir = tempfile::tempdir().unwrap();
        let graph = format!(
            "in :: synth(traffic=\"{traffic}\") -> before :: tap(path=before.pcapng) -> delay({delay}) -> out :: pcap(path=after.pcapng)"
        );
        let plan = Plan::from_graph(&graph, None, None, dir.path()).unwrap();
        let report = Driver::new(plan.build(7).unwrap())
            .workers(workers)
            .largest_batch(most)
            .run(&mut |_| ControlFlow::Continue(()))
            .unwrap();
        let read = |name: &str| {
            let mut reader = CaptureReader::open(&dir.path().join(name)).unwrap();
            let mut packets = Vec::new();
            while let Some(record) = reader.next_record().unwrap() {
                packets.push((record.time.0, record.data.to_vec()));
            }
            packets
        };
        (read("before.pcapng"), read("after.pcapng"), report)
    }

    /// Addresses and ports: the flow of a packet.
    fn flow(packet: &[u8]) -> Vec<u8> {
        packet[26..38].to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// Every packet leaves once, within the bounds of its delay, and behind those of its flow that came
        /// before it; in one mode all packets of a flow are held equally long.
        #[test]
        fn packets_leave_in_time_and_in_the_order_of_their_flow(
            time in 0u64..100, jitter in 0u64..100, per_flow: bool, flows in 1u32..30, workers in 1usize..3,
        ) {
            let jitter = jitter.min(time);
            let delay = format!("time={time}us, jitter={jitter}us, per_flow={per_flow}");
            let traffic = format!("flows={flows},packets=600,rate=1mpps,protocol=1,ipv6=0,vlan=0,size=64..200");
            let (before, after, report) = run(&delay, &traffic, workers);
            prop_assert_eq!((before.len(), after.len(), report.live), (600, 600, 0));
            prop_assert!(after.is_sorted_by_key(|(time, _)| *time));
            let mut came: HashMap<_, Vec<_>> = HashMap::new();
            before.iter().for_each(|(time, data)| came.entry(flow(data)).or_default().push((*time, data)));
            let mut left: HashMap<_, Vec<_>> = HashMap::new();
            after.iter().for_each(|(time, data)| left.entry(flow(data)).or_default().push((*time, data)));
            for (flow, came) in &came {
                let left = &left[flow];
                prop_assert_eq!(came.len(), left.len());
                let mut held = Vec::new();
                for ((came, data), (left, same)) in came.iter().zip(left) {
                    prop_assert_eq!(data, same, "a packet overtook another of its flow");
                    held.push(left - came);
                }
                let bounds = (time - jitter) * 1000..=(time + jitter) * 1000;
                prop_assert!(held.iter().all(|held| bounds.contains(held)), "{:?}", held);
                prop_assert!(!per_flow || held.iter().all(|h| *h == held[0]), "{:?}", held);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// A batch is treated as its packets one by one: none leaves early, or later than it would, because
        /// of packets that came behind it in the same batch.
        #[test]
        fn how_many_packets_come_at_once_changes_nothing(
            time in 0u64..400, jitter in 0u64..400, per_flow: bool, capacity in 1u32..60, most in 1usize..256,
        ) {
            let jitter = jitter.min(time);
            let delay = format!("time={time}us, jitter={jitter}us, per_flow={per_flow}, capacity={capacity}");
            let traffic = "flows=20,packets=600,rate=100kpps,protocol=1,ipv6=0,vlan=0,size=64..200";
            let (_, after, report) = run_in_batches(&delay, traffic, 1, most);
            let (_, alone, twin) = run_in_batches(&delay, traffic, 1, 1);
            prop_assert!(after == alone);
            let counters = |report: &RunReport| {
                report.stages.iter().find(|s| s.name == "delay").map(|s| s.counters.clone())
            };
            prop_assert_eq!(counters(&report), counters(&twin));
            // At 10 µs between packets, so many are inside at most.
            let [early, _] = counters(&report).unwrap()[..] else { panic!("two counters") };
            prop_assert!(early.1 == 0 || u64::from(capacity) < (time + jitter) / 10 + 1, "{} early", early.1);
        }
    }

    #[test]
    fn over_its_capacity_the_next_packets_leave_early() {
        let (before, after, report) =
            run("time=1s, capacity=10", "flows=1,packets=100,rate=1mpps,ipv6=0,vlan=0", 1);
        assert_eq!((before.len(), after.len(), report.live), (100, 100, 0));
        let stage = report.stages.iter().find(|s| s.name == "delay").unwrap();
        assert_eq!(stage.counters, [("packets_early", 90), ("held_max", 10)]);
        let data =
            |packets: &[(u64, Vec<u8>)]| packets.iter().map(|(_, data)| data.clone()).collect::<Vec<_>>();
        assert_eq!(data(&before), data(&after));
        assert_eq!(after[99].0 - before[99].0, 1_000_000_000);
    }

    #[test]
    fn a_jitter_over_the_delay_is_refused() {
        let graph = "in :: synth(traffic=\"packets=1\") -> delay(time=1ms, jitter=2ms) -> null";
        let wrong = Plan::from_graph(graph, None, None, "".as_ref()).and_then(|plan| plan.build(1).map(drop));
        assert!(wrong.unwrap_err().to_string().contains("jitter"));
    }
}
