//! The stage against its slow twin, and the invariants under every setting.

use std::collections::HashMap;

use crate::adaptive_twin::{Arrived, Policies, Policy as Waits};
use crate::common::{Kind, Packet, run};
use proptest::prelude::*;
use slipstream::reframe::{Admit, Budget, Class, ClassSettings, ClassStats, Policy, ReframeConfig, Top};
use slipstream::rules::Rule;

/// The stage as one would first write it down: lists that are searched from end to end.
#[derive(Default)]
struct Twin {
    trains: Vec<TwinTrain>,
    leaving: Vec<TwinTrain>,
    flows: HashMap<(u16, bool), (u64, u64)>,
    /// The flows in the order in which they came.
    numbers: Vec<(u16, bool)>,
    instant: u64,
    out: Vec<(u64, usize)>,
    /// Of each class but the default one: packets by flow in the window before and in this one, and the flows
    /// that are heavy.
    windows: Vec<[HashMap<(u16, bool), u32>; 2]>,
    heavy: Vec<Vec<(u16, bool)>>,
    /// One for each class, where the hold is adaptive.
    waits: Policies,
    arrivals: Vec<u64>,
    /// The class of each packet that has one.
    classes: HashMap<usize, usize>,
    /// Most packets held at once, by class and of all.
    held_max: HashMap<Option<usize>, usize>,
}

#[derive(Clone)]
struct TwinTrain {
    flow: (u16, bool),
    class: usize,
    base: u64,
    deadline: u64,
    packets: Vec<usize>,
    order: u64,
}

impl Twin {
    fn run(config: &ReframeConfig, packets: &[Packet]) -> Vec<(u64, usize)> {
        Self::after(config, packets).out
    }

    fn after(config: &ReframeConfig, packets: &[Packet]) -> Self {
        let mut twin = Self::default();
        if config.admit == Admit::Adaptive {
            let holds = (0..=config.classes.len()).map(|class| Self::settings(config, class));
            let waits = holds.map(|t| Waits::new(t.hold_ns, t.burst, config.budget));
            twin.waits = Policies::new(waits.collect());
        }
        twin.windows = vec![Default::default(); config.classes.len()];
        twin.heavy = vec![Vec::new(); config.classes.len()];
        let mut now = 0;
        for (i, packet) in packets.iter().enumerate() {
            now = now.max(packet.time);
            twin.arrivals.push(now);
            twin.pass_time(config, now);
            twin.packet(config, packets, i, now);
        }
        twin.pass_time(config, u64::MAX);
        twin
    }

    fn settings(config: &ReframeConfig, class: usize) -> &ClassSettings {
        if class == 0 { &config.default } else { &config.classes[class - 1].settings }
    }

    fn pass_time(&mut self, config: &ReframeConfig, now: u64) {
        while let Some(due) = self.trains.iter().map(|t| t.deadline).min().filter(|d| *d <= now) {
            if due > self.instant {
                self.emit();
                self.instant = due;
            }
            let at = self.trains.iter().position(|t| t.deadline == due).unwrap();
            self.leave(config, at);
        }
        if self.instant < now {
            self.emit();
            self.instant = now;
        }
    }

    /// Takes note of what is held. Of a train of `full`'s class the last packet makes it leave, and was never
    /// held.
    fn note(&mut self, full: Option<usize>) {
        let mut held = vec![0; self.windows.len() + 1];
        self.trains.iter().for_each(|t| held[t.class] += t.packets.len());
        let all = (None, held.iter().sum::<usize>());
        let each = held.into_iter().enumerate().map(|(class, n)| (Some(class), n));
        for (class, n) in each.chain([all]).filter(|(_, n)| *n > 0) {
            let n = n - usize::from(full.is_some() && (class.is_none() || class == full));
            let most = self.held_max.entry(class).or_default();
            *most = n.max(*most);
        }
    }

    fn leave(&mut self, config: &ReframeConfig, at: usize) {
        self.note(None);
        self.take_out(config, at);
    }

    fn take_out(&mut self, config: &ReframeConfig, at: usize) {
        let mut train = self.trains.remove(at);
        let (first_seen, count) = self.flows[&train.flow];
        let weight = u64::from(Self::settings(config, train.class).weight);
        let weighted = config.classes.iter().any(|c| c.settings.weight != 1) || config.default.weight != 1;
        let age = |since: u64| if weighted { u64::MAX - (self.instant - since) * weight } else { since };
        train.order = match config.policy {
            Policy::Oldest => age(first_seen),
            Policy::Waiting => age(train.base),
            Policy::Shortest => (count << 32) / weight,
        };
        self.leaving.push(train);
    }

    /// Returns true if a packet of a flow, which the rule of a class selects, is of that class.
    fn belongs(&mut self, config: &ReframeConfig, class: usize, flow: (u16, bool)) -> bool {
        let Some(top) = config.classes[class - 1].top else { return true };
        let (windows, heavy) = (&mut self.windows[class - 1], &mut self.heavy[class - 1]);
        *windows[1].entry(flow).or_default() += 1;
        if windows[1].values().sum::<u32>() == config.top_window {
            let most = top.of(windows[1].len() as u64) as usize;
            windows.iter_mut().for_each(|w| w.retain(|_, n| *n > 1));
            let mut sums = windows[0].clone();
            windows[1].iter().for_each(|(flow, n)| *sums.entry(*flow).or_default() += n);
            let mut all: Vec<_> = sums.into_iter().collect();
            // Of equal ones, the flow that was seen first.
            let first = |flow: &(u16, bool)| self.numbers.iter().position(|f| f == flow);
            all.sort_by_key(|(flow, n)| (u32::MAX - n, first(flow)));
            *heavy = all.into_iter().take(most).map(|(flow, _)| flow).collect();
            windows.swap(0, 1);
            windows[1].clear();
        }
        heavy.contains(&flow)
    }

    fn emit(&mut self) {
        self.leaving.sort_by_key(|t| (t.order, t.packets[0]));
        for train in self.leaving.drain(..) {
            if let Some(waits) = self.waits.classes.get_mut(train.class) {
                let delays = train.packets.iter().map(|p| self.instant - self.arrivals[*p]);
                waits.left(train.packets.len() as u64, delays.sum());
            }
            self.out.extend(train.packets.iter().map(|p| (self.instant, *p)));
        }
    }

    fn packet(&mut self, config: &ReframeConfig, packets: &[Packet], i: usize, now: u64) {
        let packet = &packets[i];
        if packet.kind == Kind::Arp {
            self.out.push((now, i));
            return;
        }
        let is_tcp = packet.kind != Kind::Udp;
        let syn = packet.kind == Kind::Tcp { syn: true };
        let flow = (packet.flow, is_tcp);
        let new = !self.flows.contains_key(&flow);
        self.flows.entry(flow).or_insert((now, 0)).1 += 1;
        if new {
            self.numbers.push(flow);
        }
        // The classes of these tests go by the port: class k has the flows k, k + 4, ...
        let class = (1..=config.classes.len()).find(|k| usize::from(packet.flow) % 4 == *k).unwrap_or(0);
        let class = if class > 0 && !self.belongs(config, class, flow) { 0 } else { class };
        self.classes.insert(i, class);
        let t = Self::settings(config, class);
        let arrived = Arrived { flow, now, tcp: is_tcp, len: packet.len.max(60) };
        let context = self.waits.arrived(class, &arrived);
        let bypass = t.bypass || (!config.bypass.is_never() && syn) || (new && config.admit == Admit::Second);
        let mine = |twin: &Self| twin.trains.iter().position(|t| t.flow == flow);
        let alone = |twin: &Self| {
            let leaves = |context| twin.waits.classes[class].leaves(context);
            mine(twin).is_none() && context.is_some_and(leaves)
        };
        if bypass || t.hold_ns == 0 || t.burst == 1 || alone(self) {
            if let Some(at) = mine(self) {
                self.leave(config, at);
            }
            self.emit();
            if let Some(waits) = self.waits.classes.get_mut(class) {
                waits.left(1, 0);
            }
            self.out.push((now, i));
            return;
        }
        // A train that weighs more doesn't overtake one of its flow that leaves at the same time. Behind a
        // train that is open, and of another class, there is no need for that: it leaves, all others with it.
        if config.classes.iter().map(|c| &c.settings).chain([&config.default]).any(|t| t.weight != 1)
            && self.leaving.iter().any(|t| t.flow == flow && t.class != class)
            && mine(self).is_none()
        {
            self.emit();
        }
        // A flow that has become heavy, or is no longer, begins another train.
        if let Some(at) = mine(self).filter(|at| self.trains[*at].class != class) {
            // The packet is of the next one: when this one leaves, the flow has had all packets but it.
            self.flows.get_mut(&flow).unwrap().1 -= 1;
            self.leave(config, at);
            self.flows.get_mut(&flow).unwrap().1 += 1;
            self.emit();
        }
        let of = |trains: &[TwinTrain]| -> (usize, usize) {
            let all = trains.iter().flat_map(|t| &t.packets);
            (trains.iter().map(|t| t.packets.len()).sum(), all.map(|p| packets[*p].len.max(60)).sum())
        };
        // Trains that leave at this instant are inside until time goes on.
        let full = |twin: &Self| {
            let ((held, bytes), (leaving, leaving_bytes)) = (of(&twin.trains), of(&twin.leaving));
            held + leaving >= config.capacity as usize
                || bytes + leaving_bytes + packet.len.max(60) > config.capacity_bytes as usize
        };
        if full(self) {
            self.emit();
            while full(self) && !self.trains.is_empty() {
                let oldest = (0..self.trains.len()).min_by_key(|t| self.trains[*t].packets[0]).unwrap();
                self.leave(config, oldest);
                self.emit();
            }
        }
        let at = mine(self).unwrap_or_else(|| {
            let deadline = now.saturating_add(t.hold_ns);
            self.trains.push(TwinTrain { flow, class, base: now, deadline, packets: Vec::new(), order: 0 });
            self.trains.len() - 1
        });
        self.trains[at].packets.push(i);
        let train = &mut self.trains[at];
        if train.packets.len() >= usize::from(t.burst) {
            self.note(Some(class));
            self.take_out(config, at);
        } else if let Some(context) = context {
            match self.waits.classes[class].deadline(context, train.packets.len(), now, train.base) {
                None => self.leave(config, at),
                Some(deadline) => train.deadline = deadline,
            }
        }
    }
}

/// The packets that leave the twin, and the price of the default class at the end.
pub(crate) fn twin(config: &ReframeConfig, packets: &[Packet]) -> (Vec<(u64, usize)>, u64) {
    let twin = Twin::after(config, packets);
    (twin.out, twin.waits.classes[0].price())
}

fn settings() -> impl Strategy<Value = ClassSettings> {
    let hold = prop_oneof![2 => Just(0u64), 2 => 1u64..40, 1 => Just(1000), 2 => 5000u64..300_000];
    (hold, prop_oneof![Just(1u16), 2u16..6, Just(32)], 1u32..4, prop::bool::weighted(0.2)).prop_map(
        |(hold_ns, burst, weight, bypass)| ClassSettings {
            hold_ns,
            hold_min_ns: None,
            burst,
            weight,
            bypass,
        },
    )
}

/// The price is any; whether an aim contradicts the hold is another test's.
fn admit() -> impl Strategy<Value = (Admit, Option<Budget>)> {
    let price = prop_oneof![0u64..100, 0u64..10_000].prop_map(|ns| Some(Budget::Price(ns)));
    let adaptive = prop_oneof![1 => Just(None), 3 => price].prop_map(|budget| (Admit::Adaptive, budget));
    prop_oneof![1 => Just((Admit::Always, None)), 1 => Just((Admit::Second, None)), 2 => adaptive]
}

fn config() -> impl Strategy<Value = ReframeConfig> {
    let policy = prop_oneof![Just(Policy::Oldest), Just(Policy::Waiting), Just(Policy::Shortest)];
    let top = prop_oneof![
        1 => Just(None), 1 => (1u32..4).prop_map(|n| Some(Top::Flows(n))), 1 => (1u32..=Top::ALL).prop_map(|n| Some(Top::Share(n)))
    ];
    let classes = prop_oneof![
        2 => Just(Vec::new()),
        2 => proptest::collection::vec((settings(), top), 1..4)
    ];
    let capacity = prop_oneof![Just(8192u32), 1u32..12];
    let capacity_bytes = prop_oneof![3 => Just(1u64 << 20), 1 => 50u64..500];
    (settings(), classes, policy, capacity, capacity_bytes, admit(), any::<bool>()).prop_map(
        |(default, classes, policy, capacity, capacity_bytes, (admit, budget), bypass)| {
            // Class k: source ports 1 + k, 5 + k, ..., as Twin has it.
            let ports = |k: usize| (0..4).map(|n| (4 * n + k).to_string()).collect::<Vec<_>>().join(",");
            let class = |(i, (settings, top)): (usize, (ClassSettings, Option<Top>))| Class {
                name: format!("c{i}"),
                rule: Rule::parse(&format!("src port {}", ports(i + 1))).unwrap(),
                top,
                settings,
            };
            ReframeConfig {
                default: ClassSettings { bypass: false, ..default },
                classes: classes.into_iter().enumerate().map(class).collect(),
                policy,
                top_window: 16,
                capacity,
                capacity_bytes,
                admit,
                budget,
                bypass: if bypass { Rule::parse("tcp syn").unwrap() } else { Rule::never() },
                // The packets are of 32 flows. A table for a million, the default, is cleared anew for every
                // run and every worker, which takes longer than the run.
                flows: 1 << 16,
                ..ReframeConfig::default()
            }
        },
    )
}

/// Packets of a few flows; gaps of 0 are common, and the clock runs backwards now and then. In some cases
/// most packets are of the flow of the one before them.
fn packets() -> impl Strategy<Value = Vec<Packet>> {
    let gap =
        prop_oneof![4 => Just(0i64), 6 => 1i64..30, 1 => Just(2000), 1 => 3000i64..100_000, 1 => -20i64..0];
    let kind = prop_oneof![
        5 => Just(Kind::Udp), 4 => Just(Kind::Tcp { syn: false }), 1 => Just(Kind::Tcp { syn: true }), 1 => Just(Kind::Arp)
    ];
    let packet = (gap, 0u16..16, kind, 60usize..200, 0u32..32);
    let stay = prop_oneof![1 => Just(0u32), 1 => 16u32..32];
    (proptest::collection::vec(packet, 0..200), stay, any::<bool>()).prop_map(|(steps, stay, dense)| {
        let (mut time, mut last) = (1000i64, None);
        let step = |(gap, flow, kind, len, n): (i64, u16, Kind, usize, u32)| {
            let (flow, kind) = last.filter(|_| n < stay).unwrap_or((flow, kind));
            last = Some((flow, kind));
            time = (time + if dense && n < stay { gap.clamp(0, 1) } else { gap }).max(0);
            Packet { time: time as u64, flow, kind, len }
        };
        steps.into_iter().map(step).collect()
    })
}

/// Checks the invariants of any run, whatever the settings (architecture: invariants 1 to 3).
pub(crate) fn check_invariants(
    config: &ReframeConfig,
    packets: &[Packet],
    out: &[(u64, usize)],
) -> Result<(), TestCaseError> {
    let mut seen: Vec<usize> = out.iter().map(|o| o.1).collect();
    seen.sort_unstable();
    prop_assert_eq!(seen, (0..packets.len()).collect::<Vec<_>>(), "conservation");
    let mut now = 0;
    let clamp = |p: &Packet| {
        now = now.max(p.time);
        now
    };
    let clamped: Vec<u64> = packets.iter().map(clamp).collect();
    let longest =
        config.classes.iter().map(|c| c.settings.hold_ns).max().unwrap_or(0).max(config.default.hold_ns);
    let mut last: HashMap<(u16, u8), usize> = HashMap::new();
    let mut before = 0;
    for &(release, id) in out {
        prop_assert!(release >= before, "time of release runs backwards");
        before = release;
        prop_assert!(release >= clamped[id] && release - clamped[id] <= longest, "bounded delay");
        let p = &packets[id];
        let proto = match p.kind {
            Kind::Udp => 17,
            Kind::Tcp { .. } => 6,
            Kind::Arp => 0,
        };
        let flow = if proto == 0 { (0, 0) } else { (p.flow, proto) };
        if let Some(previous) = last.insert(flow, id) {
            prop_assert!(previous < id, "packet {} left before {}", previous, id);
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_stage_does_what_its_twin_does(config in config(), packets in packets()) {
        let (out, report) = run(&config, 1, &packets);
        prop_assert_eq!(&out, &Twin::run(&config, &packets));
        check_invariants(&config, &packets, &out)?;
        let stats = &report.stats;
        let total = stats.total();
        prop_assert_eq!(stats.packets_in, packets.len() as u64);
        prop_assert_eq!(stats.packets_out, packets.len() as u64);
        prop_assert_eq!(total.packets_in, total.packets_out);
        prop_assert_eq!(stats.unclassified + total.packets_out, stats.packets_out);
        prop_assert_eq!(total.released.iter().sum::<u64>(), total.trains);
        prop_assert_eq!(total.lengths.iter().sum::<u64>(), total.trains);
        prop_assert_eq!(total.delay.count(), total.packets_out);
        prop_assert!(stats.held_max <= config.capacity);
        prop_assert_eq!(stats.held, 0);
    }

    #[test]
    fn workers_keep_the_invariants_and_repeat_themselves(config in config(), packets in packets(), workers in 2usize..5) {
        let (out, report) = run(&config, workers, &packets);
        check_invariants(&config, &packets, &out)?;
        prop_assert_eq!(report.stats.packets_out, packets.len() as u64);
        prop_assert_eq!(&run(&config, workers, &packets).0, &out);
    }

    /// While nothing overflows and nothing is bypassed, more workers change nothing at all.
    #[test]
    fn workers_do_what_one_does(mut config in config(), packets in packets(), workers in 2usize..5) {
        config.capacity = 8192;
        config.capacity_bytes = 1 << 20;
        config.bypass = Rule::never();
        if config.admit == Admit::Second {
            config.admit = Admit::Always;
        }
        config.classes.clear();
        config.default.burst = config.default.burst.max(2);
        config.default.hold_ns = config.default.hold_ns.max(1);
        let packets: Vec<Packet> = packets.into_iter().filter(|p| p.kind != Kind::Arp).collect();
        let (one, alone) = run(&config, 1, &packets);
        let (many, together) = run(&config, workers, &packets);
        prop_assert_eq!(one, many);
        prop_assert_eq!(alone.stats.runs_in, together.stats.runs_in);
        prop_assert_eq!(alone.stats.runs_out, together.stats.runs_out);
        prop_assert_eq!(alone.stats.total(), together.stats.total());
    }

    /// SLF out is that of the packets as they leave.
    #[test]
    fn runs_are_counted_right(config in config(), packets in packets(), workers in 1usize..4) {
        let (out, report) = run(&config, workers, &packets);
        let flow = |i: usize| (packets[i].flow, packets[i].kind == Kind::Udp);
        let runs = |order: Vec<usize>| {
            let flows: Vec<_> = order.into_iter().filter(|i| packets[*i].kind != Kind::Arp).map(flow).collect();
            flows.len().min(1) + flows.windows(2).filter(|w| w[0] != w[1]).count()
        };
        prop_assert_eq!(report.stats.runs_in as usize, runs((0..packets.len()).collect()));
        prop_assert_eq!(report.stats.runs_out as usize, runs(out.iter().map(|o| o.1).collect()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    /// Each class counts runs of its own packets among all, and how many of them are held at once.
    #[test]
    fn classes_count_for_themselves(config in config(), packets in packets()) {
        let (_, report) = run(&config, 1, &packets);
        let twin = Twin::after(&config, &packets);
        let key = |i: usize| Some((packets[i].flow, packets[i].kind == Kind::Udp, *twin.classes.get(&i)?));
        let runs = |order: Vec<usize>, class: usize| {
            let keys: Vec<_> = order.into_iter().filter_map(key).collect();
            let begins = |at: usize| at == 0 || keys[at - 1] != keys[at];
            (0..keys.len()).filter(|at| keys[*at].2 == class && begins(*at)).count() as u64
        };
        let most = |of: Option<usize>| twin.held_max.get(&of).copied().unwrap_or(0) as u32;
        for (class, stats) in report.stats.classes.iter().enumerate() {
            prop_assert_eq!(stats.runs_in, runs((0..packets.len()).collect(), class), "in, class {}", class);
            prop_assert_eq!(stats.runs_out, runs(twin.out.iter().map(|o| o.1).collect(), class), "out, class {}", class);
            prop_assert_eq!(stats.held_max, most(Some(class)), "class {}", class);
        }
        prop_assert_eq!(report.stats.held_max, most(None));
    }
}

/// More flows than the flow table holds: flows are forgotten, packets are not.
#[test]
fn a_full_flow_table_drops_nothing() {
    for policy in [Policy::Oldest, Policy::Waiting, Policy::Shortest] {
        let config = ReframeConfig {
            default: ClassSettings { hold_ns: 500, hold_min_ns: None, burst: 4, weight: 1, bypass: false },
            capacity: 300,
            flows: 1,
            policy,
            bypass: Rule::never(),
            ..ReframeConfig::default()
        };
        let mut x = 1u64;
        let packet = |i: u64| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Packet { time: i * 3, flow: (x >> 50) as u16, kind: Kind::Udp, len: 60 }
        };
        let packets: Vec<Packet> = (0..60_000).map(packet).collect();
        let (out, report) = run(&config, 1, &packets);
        assert!(report.stats.flow_evictions > 1000);
        check_invariants(&config, &packets, &out).unwrap();
        if policy == Policy::Waiting {
            // Needs no memory of flows, so forgetting them must not show.
            assert_eq!(out, Twin::run(&config, &packets));
        }
    }
}

/// Packets of 16 flows over many windows of a hold that sets itself: stretches of bursts, by which packets
/// have company soon, and of packets far from each other.
fn stretches() -> impl Strategy<Value = Vec<Packet>> {
    let stretch = (any::<u64>(), 50usize..600, prop_oneof![Just(300u64), Just(30_000), Just(200_000)]);
    proptest::collection::vec(stretch, 1..5).prop_map(|stretches| {
        let (mut time, mut packets) = (1000u64, Vec::new());
        for (mut x, count, gap) in stretches {
            for _ in 0..count {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = |shift: u32, n: u64| (x >> shift) % n;
                // The clock runs backwards now and then.
                let back = random(20, 50) == 0;
                time = if back { time.saturating_sub(random(30, 900)) } else { time + random(30, 2 * gap) };
                let kind = match random(45, 20) {
                    0 => Kind::Arp,
                    1 => Kind::Tcp { syn: true },
                    2..9 => Kind::Tcp { syn: false },
                    _ => Kind::Udp,
                };
                packets.push(Packet { time, flow: random(50, 16) as u16, kind, len: 60 });
            }
        }
        packets
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// While a hold that sets itself stands aside, packets pass without being looked up. With a class that no
    /// packet is of they take the long way.
    #[test]
    fn standing_aside_shows_in_nothing_but_speed(
        packets in stretches(),
        hold_ns in 1000u64..3_000_000,
        price in 0u64..400_000,
        bypass: bool,
    ) {
        let default = ClassSettings { hold_ns, hold_min_ns: Some(0), burst: 8, weight: 1, bypass: false };
        let config = ReframeConfig {
            default: default.clone(),
            // The order of flows by age is not kept where they aren't looked up.
            policy: Policy::Waiting,
            budget: Some(Budget::Price(price)),
            bypass: if bypass { Rule::parse("tcp syn").unwrap() } else { Rule::never() },
            ..ReframeConfig::default()
        };
        let none = Class { name: "none".into(), rule: Rule::never(), top: None, settings: default };
        let long = ReframeConfig { classes: vec![none], ..config.clone() };
        let ((out, report), (twin_out, twin)) = (run(&config, 1, &packets), run(&long, 1, &packets));
        prop_assert_eq!(out, twin_out);
        let (stats, twin) = (report.stats, twin.stats);
        let but_runs = |total: ClassStats| ClassStats { runs_in: 0, runs_out: 0, ..total };
        prop_assert_eq!(but_runs(stats.total()), but_runs(twin.total()));
        prop_assert_eq!(&stats.auto[0], &twin.auto[0]);
        prop_assert_eq!((stats.held_max, stats.unclassified), (twin.held_max, twin.unclassified));
        // Neighbours by different ways are not compared: at most one run is cut in two whenever the way
        // changes, twice a window.
        let windows = packets.iter().map(|p| p.time).max().unwrap_or(0) / 10_000_000 + 2;
        for (runs, twin) in [(stats.runs_in, twin.runs_in), (stats.runs_out, twin.runs_out)] {
            prop_assert!((twin..=twin + 2 * windows).contains(&runs), "{} runs, {} by the long way", runs, twin);
        }
    }
}

/// Packets that nothing follows soon: after some windows nothing is held, and each leaves when it comes.
#[test]
fn a_hold_that_sets_itself_stands_aside() {
    let packet = |i: u64| Packet { time: i * 50_000, flow: (i * 7 % 16) as u16, kind: Kind::Udp, len: 60 };
    let packets: Vec<Packet> = (0..4000).map(packet).collect();
    let default =
        ClassSettings { hold_ns: 100_000, hold_min_ns: Some(0), burst: 8, weight: 1, bypass: false };
    let config = ReframeConfig { default, ..ReframeConfig::default() };
    let (out, report) = run(&config, 1, &packets);
    assert_eq!(report.stats.auto[0].hold_ns, 0);
    assert!(out.iter().skip(1000).all(|(release, id)| *release == packets[*id].time));
}
