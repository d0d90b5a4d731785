//! The adaptive hold as one would first write it down, and properties of the stage with it.

use std::collections::HashMap;

use crate::common::{Kind, Packet, run};
use proptest::prelude::*;
use slipstream::reframe::{Admit, Budget, Class, ClassSettings, ReframeConfig};
use slipstream::rules::Rule;

type Flow = (u16, bool);
/// Octave of the last gap, step of the one before, kind of the packet.
type Context = (usize, usize, usize);

/// A packet, as far as waits go by it.
pub(crate) struct Arrived {
    pub flow: Flow,
    pub now: u64,
    pub tcp: bool,
    pub len: usize,
}

/// Packets of a context, and the gaps after them.
#[derive(Clone, Default)]
struct Counts {
    packets: u64,
    gaps: [u64; 32],
}

impl Counts {
    /// Half of the counts go.
    fn halve(&mut self) -> Self {
        let half = Self { packets: self.packets / 2, gaps: self.gaps.map(|n| n / 2) };
        let before = std::mem::replace(self, half);
        Self {
            packets: before.packets - self.packets,
            gaps: std::array::from_fn(|b| before.gaps[b] - self.gaps[b]),
        }
    }

    fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.gaps.iter_mut().zip(other.gaps).for_each(|(sum, n)| *sum += n);
    }
}

/// When a context's waits are reckoned next, and what they were reckoned to be.
struct Reckoned {
    /// Packets of the context by then, and how many more they were than the last time.
    next: u64,
    interval: u64,
    price: u64,
    /// The worth that a train of one packet was found to have.
    worth: i128,
    /// By packets of the train: until which bucket's end.
    waits: Vec<Option<usize>>,
}

/// The last packet of a flow: its time, class and context, and the bucket of the gap before it.
pub(crate) struct Memory {
    now: u64,
    class: usize,
    context: Context,
    gap: usize,
}

/// The policies of all classes, and what is remembered of flows, which may change their class.
#[derive(Default)]
pub(crate) struct Policies {
    pub classes: Vec<Policy>,
    flows: HashMap<Flow, Memory>,
}

impl Policies {
    pub(crate) fn new(classes: Vec<Policy>) -> Self {
        Self { classes, flows: HashMap::new() }
    }

    /// A packet of a class comes. The class of the flow's packet before learns that it has been followed.
    pub(crate) fn arrived(&mut self, class: usize, packet: &Arrived) -> Option<Context> {
        let policy = self.classes.get(class)?;
        let (mut gap, mut before) = (31, 31);
        if let Some(last) = self.flows.get(&packet.flow) {
            gap = policy.bucket(packet.now - last.now);
            before = last.gap;
            let of = &mut self.classes[last.class];
            let bucket = of.bucket(packet.now - last.now);
            of.contexts.get_mut(&last.context).unwrap().gaps[bucket] += 1;
        }
        let context = self.classes[class].arrived(gap, before, packet);
        self.flows.insert(packet.flow, Memory { now: packet.now, class, context, gap });
        Some(context)
    }
}

/// The policy of one class.
pub(crate) struct Policy {
    shift: u32,
    hold: u64,
    burst: u16,
    budget: Budget,
    price: u64,
    contexts: HashMap<Context, Counts>,
    /// Counts that contexts of a kind have given up.
    past: [Counts; 8],
    /// Counts of each kind: those of all its contexts when they were added up last.
    kinds: [Counts; 8],
    /// Of each kind, the packets at which its shares are reckoned next, and the shares by bucket.
    shares: [(u64, Vec<u64>); 8],
    /// The time of the first packet.
    start: Option<u64>,
    waits: HashMap<Context, Reckoned>,
    arrived: u64,
    windows: u32,
    /// Packets, trains and delay that have left since the last window.
    left: (u64, u64, u64),
    /// The excess until now, in ns or in thousandths of a packet.
    debt: i128,
}

/// Ends of the buckets, in half units: 2, 3, 4, 6, 8, 12, ...
fn edge(bucket: usize) -> u64 {
    let (octave, half) = (bucket.saturating_sub(1) / 2, bucket.saturating_sub(1) % 2);
    if bucket == 0 { 2 } else { (3 + half as u64) << octave }
}

/// A share of 1.
const ONE: u64 = 1 << 20;

/// Of packets, the share that is followed within each bucket (Kaplan and Meier): among those that are known
/// to have waited until then.
fn shares(counts: &Counts, elapsed: u64, prior: &[u64], weight: u64) -> Vec<u64> {
    // Times in quarters of a unit.
    let end = |b: usize| 2 * edge(b);
    let length = |b: usize| if b == 0 { end(0) } else { end(b) - end(b - 1) };
    let followed: u64 = counts.gaps.iter().sum();
    // Before each bucket, the share that waits on, the time until there that was waited, the packets that are
    // yet to be followed, and what is left of the prior share.
    let mut waits = vec![ONE];
    let (mut before, mut later, mut left) = (0, followed, ONE);
    for b in 0..32 {
        let young = counts.packets * (before + waits[b] * length(b)) / elapsed.max(1);
        let old = (counts.packets.saturating_sub(followed) * ONE).saturating_sub(young);
        let known = later * ONE + old + weight * left;
        let ended = counts.gaps[b] * ONE + weight * prior[b];
        waits.push(match known {
            0 => waits[b],
            _ => waits[b].saturating_sub(waits[b] * ended / known),
        });
        before += (waits[b] + waits[b + 1]) * length(b) / 2;
        later -= counts.gaps[b];
        left = left.saturating_sub(prior[b]);
    }
    waits.windows(2).map(|w| w[0] - w[1]).collect()
}

impl Policy {
    pub(crate) fn new(hold: u64, burst: u16, budget: Option<Budget>) -> Self {
        let budget = budget.unwrap_or(Budget::Delay((hold / 4).max(1)));
        // 4096 to 8191 units are the hold.
        let shift = (0..).find(|s| hold >> s < 8192).unwrap();
        let price = match budget {
            Budget::Price(ns) => ns,
            Budget::Delay(ns) => 2 * ns,
            Budget::Train(_) => hold / 4,
        };
        Self {
            shift,
            hold,
            burst,
            budget,
            price,
            contexts: HashMap::new(),
            past: Default::default(),
            kinds: Default::default(),
            shares: std::array::from_fn(|_| (1, vec![0; 32])),
            start: None,
            waits: HashMap::new(),
            arrived: 0,
            windows: 0,
            left: (0, 0, 0),
            debt: 0,
        }
    }

    pub(crate) fn price(&self) -> u64 {
        self.price
    }

    /// The bucket of a gap.
    fn bucket(&self, gap: u64) -> usize {
        (0..31).find(|b| (2 * gap) >> self.shift < edge(*b)).unwrap_or(31)
    }

    pub(crate) fn left(&mut self, packets: u64, delay: u64) {
        self.left = (self.left.0 + packets, self.left.1 + 1, self.left.2 + delay);
    }

    /// A packet comes after gaps of these buckets: the last one, and the one before that.
    fn arrived(&mut self, gap: usize, before: usize, packet: &Arrived) -> Context {
        let step = match before {
            0..12 => 0,
            12..20 => 1,
            20..28 => 2,
            _ => 3,
        };
        let kind = match (packet.tcp, packet.len) {
            (false, len) => {
                if len > 1000 {
                    6
                } else {
                    7
                }
            }
            (true, 0..99) => 0,
            (true, 99..1000) => 1,
            (true, 1000..1400) => 3,
            (true, _) => 4,
        };
        let context = (gap / 2, step, kind);
        self.arrived += 1;
        if self.arrived.is_multiple_of(256) {
            self.steer();
        }
        let counts = self.contexts.entry(context).or_default();
        counts.packets += 1;
        if counts.packets >= self.waits.get(&context).map_or(1, |w| w.next) {
            self.reckon(context, packet.now);
        }
        context
    }

    fn steer(&mut self) {
        let (packets, trains, delay) = self.left;
        // A window is over with its packets, or when four times its delay was spent.
        if packets == 0 || packets < 1024 && !matches!(self.budget, Budget::Delay(ns) if delay > 4096 * ns) {
            return;
        }
        self.left = (0, 0, 0);
        let (aim, measured, more) = match self.budget {
            Budget::Price(_) => return,
            Budget::Delay(ns) => {
                (ns, delay / packets, i128::from(delay) - i128::from(packets) * i128::from(ns))
            }
            Budget::Train(thousandths) => {
                let all = u64::from(thousandths);
                let more = i128::from(packets * 1000) - i128::from(trains * all);
                (all - 1000, packets * 1000 / trains - 1000, more)
            }
        };
        // The excess is paid back before the price rises.
        let window = 1024 * i128::from(aim);
        self.debt = (self.debt + more).clamp(-4 * window, 4096 * window);
        if aim > measured && self.debt > 0 {
            return;
        }
        let times = |a: u64, b: u64| (a * 64 / b.max(1)).clamp(64, 256);
        let far = times(aim, measured).max(times(measured, aim)) >= 88;
        let weight = if self.windows < 16 { 4 } else { 2 + u64::from(far) };
        self.windows += 1;
        let factor = |times: u64| 64 * (8 - weight) + times * weight;
        self.price = if aim > measured {
            self.price.max(16) * factor(times(aim, measured)) / 512
        } else {
            self.price.max(16) * 512 / factor(times(measured, aim))
        };
        self.price = self.price.clamp(16, (256 * self.hold).max(16));
    }

    /// All that the contexts of a kind have counted.
    fn counted(&self, kind: usize) -> Counts {
        let mut sum = self.past[kind].clone();
        self.contexts.iter().filter(|(context, _)| context.2 == kind).for_each(|(_, n)| sum.add(n));
        sum
    }

    /// Reckons the shares of a kind, if it is time.
    fn reckon_kind(&mut self, kind: usize, elapsed: u64) {
        let counted = self.counted(kind);
        if counted.packets < self.shares[kind].0 {
            return;
        }
        if counted.packets < 4096 {
            self.kinds = std::array::from_fn(|kind| self.counted(kind));
        } else {
            self.kinds[kind] = counted;
        }
        let packets = self.kinds[kind].packets;
        let forgotten = if self.past[kind].packets >= 65536 { self.past[kind].halve().packets } else { 0 };
        let mut all = Counts::default();
        self.kinds.iter().for_each(|counts| all.add(counts));
        let mut left = ONE;
        let mut quarter = || {
            let share = left / 4;
            left -= share;
            share
        };
        let at_first: Vec<u64> = (0..32).map(|_| quarter()).collect();
        let overall = shares(&all, elapsed, &at_first, 16);
        let next = packets - forgotten + 1 + (packets / 4).min(4095);
        self.shares[kind] = (next, shares(&self.kinds[kind], elapsed, &overall, 64));
    }

    fn reckon(&mut self, context: Context, now: u64) {
        let start = *self.start.get_or_insert(now);
        let elapsed = ((now - start) * 4) >> self.shift;
        let counts = self.contexts.get_mut(&context).unwrap();
        if counts.packets >= 2048 {
            self.past[context.2].add(&counts.halve());
        }
        let packets = counts.packets;
        self.reckon_kind(context.2, elapsed);
        let counts = &self.contexts[&context];
        let weights = shares(counts, elapsed, &self.shares[context.2].1, 96);
        let (all, weight) = (ONE, |b: usize| weights[b]);
        // All times from here on in quarters of a unit.
        let quarters = |ns: u64| ((ns * 4) >> self.shift).min(1 << 30);
        let hold = quarters(self.hold);
        let end = |b: usize| (2 * edge(b)).min(hold);
        let begin = |b: usize| if b == 0 { 0 } else { end(b - 1) };
        let shorter = (0..31).filter(|b| ((edge(*b) << self.shift) / 2).max(1) < self.hold).count();
        // Of waits until the end of each bucket: weight of those that come, and all waits, those in vain too.
        let (mut joined, mut waited) = (0, 0);
        let outcome = |until: usize| -> (u64, u64) {
            joined += weight(until);
            waited += weight(until) * (begin(until) + end(until)) / 2;
            (joined, waited + all.saturating_sub(joined) * end(until))
        };
        let outcomes: Vec<_> = (0..=shorter).map(outcome).collect();
        // Trains of similar lengths wait alike, as if they had the mean of them, times four.
        let alike = |packets: u64| match packets {
            1..4 => (packets, 4 * packets),
            _ => {
                let octave = 1 << packets.ilog2();
                let low = if packets >= octave * 3 / 2 { octave * 3 / 2 } else { octave };
                (low, 4 * low + octave - 2)
            }
        };
        let one = i128::from(ONE);
        let price = i128::from(4 * quarters(self.price));
        let burst = u64::from(self.burst);
        let mut worth = self.waits.get(&context).map_or(0, |before| before.worth);
        let mut waits = vec![None; usize::from(self.burst).saturating_sub(1)];
        // Howard's policy iteration: the best waits if a train of one packet is worth so much, what it is
        // worth by them, and Newton's step from the one to the other.
        for _ in 0..4 {
            let (mut rest, mut joins, mut chosen) = (0, 0, None);
            for packets in (1..burst).rev() {
                let (low, fourfold) = alike(packets);
                let gain = price - (worth - rest) * 3 / 4;
                let value = |until: usize| -> i128 {
                    let (joined, waited) = outcomes[until];
                    gain * i128::from(joined) - i128::from(fourfold) * i128::from(waited)
                };
                // The longest of those that wait alike decides.
                if packets + 1 == burst || alike(packets + 1).0 != low {
                    let values = (0..=shorter).map(|until| (value(until), until));
                    // The first of the best.
                    chosen = values.rev().filter(|v| v.0 > 0).max_by_key(|v| v.0).map(|v| v.1);
                }
                waits[packets as usize - 1] = chosen;
                let joined = chosen.map_or(0, |until| i128::from(outcomes[until].0));
                rest = chosen.map_or(0, |until| (value(until) / one).max(0));
                joins = joined * 3 / 4 * (one + joins) / one;
            }
            let off = rest - worth;
            worth += off * one / (one + joins);
            if off.abs() * 64 <= price {
                break;
            }
        }
        let mut interval = 1 + (packets / 4).min(127);
        // Waits that many packets have not changed, at the same price, are reckoned more seldom.
        if let Some(before) = self.waits.get(&context)
            && interval == 128
            && (&before.waits, before.price) == (&waits, self.price)
        {
            interval = (2 * before.interval).min(2048);
        }
        let next = packets + interval;
        self.waits.insert(context, Reckoned { next, interval, price: self.price, worth, waits });
    }

    /// When a train of `packets`, the first of which came at `base`, leaves if no further one comes; `None`
    /// if it leaves at once.
    pub(crate) fn deadline(&self, context: Context, packets: usize, now: u64, base: u64) -> Option<u64> {
        let until = self.waits[&context].waits[packets - 1]?;
        let wait = ((edge(until) << self.shift) / 2).max(1);
        // Time goes by in steps of a unit: a wait is rounded up, the hold is rounded down.
        let unit = 1 << self.shift;
        let wake = (now + wait).div_ceil(unit) * unit;
        let bound = (base + self.hold) / unit * unit;
        Some(wake.min(bound)).filter(|due| *due > now)
    }

    /// Returns true if a packet alone leaves at once, whatever its hold is.
    pub(crate) fn leaves(&self, context: Context) -> bool {
        self.waits[&context].waits.first().is_none_or(Option::is_none)
    }
}

/// Traffic whose flows differ: some send in bursts, some evenly, some at random.
fn traffic(packets: usize, seed: u64, scale: u64) -> Vec<Packet> {
    let mut x = seed | 1;
    let mut random = move |n: u64| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    };
    let mut next: Vec<(u64, u64)> = (0..40).map(|_| (random(500 * scale), 0)).collect();
    let packet = |_| {
        let flow = (0..next.len()).min_by_key(|f| next[*f].0).unwrap();
        let (time, burst) = next[flow];
        let gap = match flow % 3 {
            0 if burst % 8 != 7 => random(20 * scale),
            0 => 3000 * scale + random(1000 * scale),
            1 => 400 * scale + random(10 * scale),
            _ => random(900 * scale),
        };
        next[flow] = (time + gap, burst + 1);
        let kind = if flow % 2 == 0 { Kind::Udp } else { Kind::Tcp { syn: false } };
        Packet { time, flow: flow as u16, kind, len: if flow % 3 == 0 { 1200 } else { 60 } }
    };
    (0..packets).map(packet).collect()
}

fn config(hold_ns: u64, budget: Option<Budget>) -> ReframeConfig {
    ReframeConfig {
        default: ClassSettings { hold_ns, hold_min_ns: None, burst: 32, weight: 1, bypass: false },
        admit: Admit::Adaptive,
        budget,
        bypass: Rule::never(),
        ..ReframeConfig::default()
    }
}

fn budgets() -> impl Strategy<Value = Budget> {
    prop_oneof![
        (1u64..500_000).prop_map(Budget::Price),
        (1u64..100_000).prop_map(Budget::Delay),
        (1001u32..32_000).prop_map(Budget::Train)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Long enough for prices to be steered and counts to be halved, and at times for waits to be reckoned as
    /// seldom as they ever are.
    #[test]
    fn the_stage_steers_as_its_twin_does(
        budget in budgets(), seed: u64, scale in 1u64..200,
        packets in prop_oneof![5 => Just(6000), 1 => Just(30_000)],
    ) {
        let packets = traffic(packets, seed, scale);
        let config = config(100_000, Some(budget));
        let (out, report) = run(&config, 1, &packets);
        let (twin, price) = crate::reframe_twin::twin(&config, &packets);
        prop_assert_eq!(&out, &twin);
        prop_assert_eq!(report.stats.prices_ns, vec![price]);
        crate::reframe_twin::check_invariants(&config, &packets, &out)?;
        prop_assert_eq!(&run(&config, 3, &packets).0, &out);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// However long another class is held: packets leave when they would if there were none of it.
    #[test]
    fn classes_wait_as_if_they_were_alone(
        hold_ns in 1u64..1_000_000, other_ns in prop_oneof![1u64..2_000_000, 2_000_000u64..4_000_000_000],
        seed: u64, scale in 1u64..200,
    ) {
        let packets = traffic(6000, seed, scale);
        let alone: Vec<usize> = (0..packets.len()).filter(|p| packets[*p].flow.is_multiple_of(2)).collect();
        let mut config = config(hold_ns, None);
        // Nothing leaves for want of room.
        config.capacity = 6000;
        let (out, _) = run(&config, 1, &alone.iter().map(|p| packets[*p]).collect::<Vec<_>>());
        let mut expected: Vec<_> = out.iter().map(|(release, p)| (*release, alone[*p])).collect();
        let rule = format!("other: tcp => hold={other_ns}ns");
        config.classes = vec![Class::parse(&rule, &config.default, "".as_ref()).unwrap()];
        let (mut out, _) = run(&config, 1, &packets);
        out.retain(|(_, p)| packets[*p].flow.is_multiple_of(2));
        // At one time, either class may be first.
        out.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(out, expected);
    }
}

/// Mean delay of the packets of some flows.
fn delay(packets: &[Packet], out: &[(u64, usize)], of: impl Fn(u16) -> bool) -> f64 {
    let delays = out.iter().filter(|o| of(packets[o.1].flow)).map(|o| o.0 - packets[o.1].time);
    let (n, sum) = delays.fold((0, 0), |(n, sum), d| (n + 1, sum + d));
    sum as f64 / f64::from(n)
}

#[test]
fn budgets_are_kept() {
    let packets = traffic(60_000, 1, 50);
    for (budget, low, high) in
        [(Budget::Delay(4000), 3000.0, 5000.0), (Budget::Delay(12_000), 10_500.0, 13_500.0)]
    {
        let (out, _) = run(&config(400_000, Some(budget)), 1, &packets);
        // Without the beginning, in which the price is found.
        let mean = delay(&packets, &out[20_000..], |_| true);
        assert!((low..high).contains(&mean), "{budget}: {mean}");
    }
    let trains = |packets: &[Packet]| {
        run(&config(400_000, Some(Budget::Train(1800))), 1, packets).1.stats.total().trains
    };
    let mean = 40_000.0 / (trains(&packets) - trains(&packets[..20_000])) as f64;
    assert!((1.75..1.85).contains(&mean), "{mean}");
}

/// Fewer packets wait, and those in vain wait less, for trains of the same length.
#[test]
fn it_beats_the_fixed_hold() {
    let packets = traffic(60_000, 2, 50);
    let fixed = ReframeConfig { admit: Admit::Always, ..config(20_000, None) };
    let (out, report) = run(&fixed, 1, &packets);
    let (total, mean) = (report.stats.total(), delay(&packets, &out, |_| true));
    let train = total.mean_train().unwrap();
    let budget = Budget::Train((train * 1000.0) as u32);
    let (out, report) = run(&config(400_000, Some(budget)), 1, &packets);
    let (adaptive, adaptive_mean) = (report.stats.total(), delay(&packets, &out, |_| true));
    assert!(adaptive.mean_train().unwrap() > 0.97 * train);
    assert!(adaptive_mean < 0.7 * mean, "{adaptive_mean} {mean}");
    assert!(adaptive.futile_wait_ns * 10 < 4 * total.futile_wait_ns);
}

/// A flow that sends a packet just after its train has left, as far as it can know, and as often as all
/// others together.
#[test]
fn a_flow_that_misleads_costs_little() {
    const HOLD: u64 = 200_000;
    let honest = traffic(30_000, 3, 50);
    let config = config(HOLD, Some(Budget::Price(20_000)));
    let (before, _) = run(&config, 1, &honest);
    let mut packets = honest.clone();
    let (mut time, end, mut n) = (0, honest[honest.len() - 1].time, 0u64);
    while time < end {
        // Bursts teach that more will come; then nothing comes for longer than the hold.
        packets.push(Packet { time, flow: 999, kind: Kind::Udp, len: 1200 });
        n += 1;
        time += if n % 1024 < 1020 { 100 } else { HOLD + 1 };
    }
    packets.sort_by_key(|p| p.time);
    assert!(packets.len() > 3 * honest.len() / 2, "{}", packets.len());
    let (after, report) = run(&config, 1, &packets);
    assert_eq!(after.len(), packets.len());
    assert!(after.iter().all(|o| o.0 - packets[o.1].time <= HOLD));
    assert!(report.stats.total().delay.max().unwrap() <= HOLD);
    let others = |flow| flow != 999;
    let (without, with) = (delay(&honest, &before, others), delay(&packets, &after, others));
    assert!(with < 1.3 * without, "{with} instead of {without}");
}

#[test]
fn budgets_that_contradict_the_hold_are_refused() {
    for (budget, says) in [
        (
            Budget::Delay(64_001),
            "reframe: budget = delay=64.001us can't be reached: no packet waits longer than hold = 64us",
        ),
        (
            Budget::Train(33_000),
            "reframe: budget = train=33 can't be reached: no train has more than burst = 32",
        ),
        (Budget::Train(900), "reframe: budget = train=0.9 is no train"),
    ] {
        let error = config(64_000, Some(budget)).validate().unwrap_err().to_string();
        assert!(error.starts_with(says), "{error}");
    }
    let error = ReframeConfig { admit: Admit::Second, ..config(64_000, Some(Budget::Train(2000))) };
    let error = error.validate().unwrap_err().to_string();
    assert_eq!(
        error,
        "reframe: budget = train=2 goes with admit = adaptive or hold = auto; set one of them too, or leave the budget \
         out"
    );
}
