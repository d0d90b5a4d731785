//! Holds that set themselves, and the usual way of packets beside the long one.

use alloc::vec::Vec;

use proptest::prelude::*;

use crate::embed::{Packet, Reframer};
use crate::{Admit, AutoStats, Budget, Class, ClassSettings, FlowKey, Nanos, ReframeConfig, Rule};

/// Trains as they left: when, and the packets.
type Out = Vec<(u64, Vec<u32>)>;

fn key(flow: u32) -> FlowKey {
    let [.., a, b] = flow.to_be_bytes();
    FlowKey::new(&[], [10, 0, a, b].into(), [10, 1, 0, 1].into(), 17, 80, 1234).unwrap()
}

/// Runs packets (time, flow) through a reframer, in bursts of the same time; `each` sees it after each burst.
fn run(
    config: &ReframeConfig,
    packets: &[(u64, u32)],
    mut each: impl FnMut(u64, &[AutoStats]),
) -> (Out, Reframer) {
    let mut reframer = Reframer::new(config).unwrap();
    let mut out = Vec::new();
    let mut take = |reframer: &mut Reframer, now| {
        while let Some(train) = reframer.poll(now) {
            out.push((train.release.0, train.handles.to_vec()));
        }
    };
    let mut n = 0;
    for burst in packets.chunk_by(|a, b| a.0 == b.0) {
        let now = Nanos(burst[0].0);
        let of_burst: Vec<_> = burst
            .iter()
            .map(|(_, flow)| {
                n += 1;
                Packet::with_key(n - 1, 100, key(*flow))
            })
            .collect();
        reframer.push_burst(now, of_burst.into_iter()).unwrap();
        take(&mut reframer, now);
        each(now.0, &reframer.stats().auto);
    }
    take(&mut reframer, Nanos(packets.last().map_or(0, |p| p.0)).after(ReframeConfig::MAX_HOLD_NS));
    (out, reframer)
}

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut x = seed | 1;
    move |n| {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (x >> 33) % n
    }
}

/// Packets from `from` to `to` of flows that send bursts: packets of a burst `gap` apart, more or less,
/// bursts `rest` apart.
fn bursts(seed: u64, from: u64, to: u64, flows: u32, length: u64, gap: u64, rest: u64) -> Vec<(u64, u32)> {
    let mut random = random(seed);
    let mut packets = Vec::new();
    for flow in 0..flows {
        let mut time = from + random(rest);
        while time < to {
            for _ in 0..1 + random((2 * length).max(1)) {
                packets.push((time, flow));
                time += gap / 2 + random(gap);
            }
            time += rest / 2 + random(rest);
        }
    }
    packets.retain(|p| p.0 < to);
    packets.sort_unstable();
    packets
}

fn auto(min_ns: u64, max_ns: u64) -> ReframeConfig {
    let mut config = ReframeConfig { bypass: Rule::never(), ..ReframeConfig::default() };
    config.default = ClassSettings { hold_ns: max_ns, hold_min_ns: Some(min_ns), ..config.default };
    config
}

/// With a class that no packet is of, packets take the long way.
fn the_long_way(config: &ReframeConfig) -> ReframeConfig {
    let never =
        Class { name: "none".into(), rule: Rule::never(), top: None, settings: config.default.clone() };
    ReframeConfig { classes: vec![never], ..config.clone() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_usual_way_does_what_the_long_way_does(
        seed: u64,
        (flows, length) in (1u32..60, 1u64..12),
        (gap, rest) in (2u64..3000, 10u64..1_000_000),
        hold in 1u64..300_000,
        budget in prop_oneof![
            (1u64..1_000_000).prop_map(Budget::Price),
            (1u64..1000).prop_map(Budget::Delay),
            (1001u32..9000).prop_map(Budget::Train),
        ],
        (adaptive, burst, capacity) in (any::<bool>(), 2u16..40, prop_oneof![Just(8192u32), 5u32..50]),
    ) {
        let mut config = auto(seed % 2 * hold / 9, hold);
        if adaptive {
            config.default.hold_min_ns = None;
            config.admit = Admit::Adaptive;
        }
        config.default.burst = burst;
        config.capacity = capacity;
        config.budget = Some(budget).filter(|b| match b {
            Budget::Delay(ns) => *ns <= hold,
            Budget::Train(n) => *n <= 1000 * u32::from(burst),
            Budget::Price(_) => true,
        });
        let mut packets = bursts(seed, 0, 60_000_000, flows, length, gap, rest);
        packets.truncate(6000);
        let (usual, reframer) = run(&config, &packets, |_, _| ());
        let (long, twin) = run(&the_long_way(&config), &packets, |_, _| ());
        prop_assert_eq!(usual, long);
        let (stats, twin) = (reframer.stats(), twin.stats());
        prop_assert_eq!(stats.total(), twin.total());
        prop_assert_eq!(&stats.prices_ns[..], &twin.prices_ns[..stats.prices_ns.len()]);
        prop_assert_eq!(&stats.auto[..], &twin.auto[..stats.auto.len()]);
        prop_assert_eq!((stats.held_max, stats.runs_out), (twin.held_max, twin.runs_out));
    }

    /// Whatever the hold is just now, no packet waits longer than its upper bound, and flows keep their
    /// order.
    #[test]
    fn the_bound_holds_while_the_hold_changes(seed: u64, min in 0u64..2, gap in 100u64..20_000, steps in 1usize..4) {
        let hold = 100_000;
        let mut packets = Vec::new();
        for step in 0..steps as u64 {
            let (from, to) = (step * 50_000_000, (step + 1) * 50_000_000);
            packets.extend(bursts(seed ^ step, from, to, 40, 1 + step * 5 % 7, gap << step, 2_000_000));
        }
        let (out, reframer) = run(&auto(min * 10_000, hold), &packets, |_, stats| {
            assert!(stats[0].hold_ns >= min * 10_000 && stats[0].hold_ns <= hold);
        });
        let mut last = [0; 40];
        let mut n = 0;
        for (release, train) in out {
            for packet in train {
                let (time, flow) = packets[packet as usize];
                prop_assert!(release >= time && release - time <= hold);
                prop_assert!(last[flow as usize] <= packet);
                last[flow as usize] = packet;
                n += 1;
            }
        }
        prop_assert_eq!(n, packets.len());
        prop_assert!(reframer.stats().total().delay.max().unwrap_or(0) <= hold);
    }
}

/// Delay, less what packets that joined are worth, in all.
fn cost(out: &Out, packets: &[(u64, u32)], price: u64, from: u64) -> i64 {
    let mut cost = 0;
    for (release, train) in out.iter().filter(|t| t.0 >= from) {
        cost += train.iter().map(|p| (release - packets[*p as usize].0) as i64).sum::<i64>();
        cost -= price as i64 * (train.len() as i64 - 1);
    }
    cost
}

/// Three kinds of traffic, each for 400 ms: bursts for which a short hold is best, slower ones for which a
/// longer one is, and single packets, for which nothing is.
fn steps() -> (Vec<(u64, u32)>, [u64; 3]) {
    const MS: u64 = 1_000_000;
    let mut packets = bursts(1, 0, 400 * MS, 60, 6, 2000, 4 * MS);
    packets.extend(bursts(2, 400 * MS, 800 * MS, 60, 6, 20_000, 4 * MS));
    packets
        .extend(bursts(3, 800 * MS, 1200 * MS, 400, 0, 2000, 20 * MS).into_iter().map(|(t, f)| (t, f + 60)));
    (packets, [0, 400 * MS, 800 * MS])
}

#[test]
fn it_follows_steps_and_stays_there() {
    let (packets, begins) = steps();
    let mut changes: Vec<(u64, u64)> = Vec::new();
    let config = auto(0, 256_000);
    let (out, _) = run(&config, &packets, |now, stats| {
        if changes.last().is_none_or(|last| last.1 != stats[0].hold_ns) {
            changes.push((now, stats[0].hold_ns));
        }
    });
    let hold_at = |time| changes.iter().rev().find(|c| c.0 <= time).unwrap().1;
    for begin in begins {
        // Settled after 100 ms, and for good.
        let late = changes.iter().filter(|c| c.0 > begin + 100_000_000 && c.0 < begin + 400_000_000);
        assert_eq!(late.count(), 0, "{changes:?}");
        let early = changes.iter().filter(|c| c.0 > begin && c.0 <= begin + 100_000_000);
        assert!(early.count() <= 3, "{changes:?}");
    }
    let holds = begins.map(|begin| hold_at(begin + 399_000_000));
    assert!((4000..40_000).contains(&holds[0]), "{changes:?}");
    assert!(holds[1] > 2 * holds[0], "{changes:?}");
    assert_eq!(holds[2], 0, "{changes:?}");
    // Regret: beside the best fixed hold of each part by itself, that part being known beforehand.
    let price = 256_000;
    for begin in begins {
        let part: Vec<_> =
            packets.iter().copied().filter(|p| (begin..begin + 400_000_000).contains(&p.0)).collect();
        let of_part = |hold: u64| {
            let mut fixed = auto(0, hold);
            fixed.default.hold_min_ns = None;
            cost(&run(&fixed, &part, |_, _| ()).0, &part, price, 0)
        };
        let best = (0..18).map(|n| of_part(if n == 17 { 0 } else { 256_000 >> (n / 2) })).min().unwrap();
        let upto = begin + 400_000_000;
        let mine: Out = out.iter().filter(|t| (begin..upto).contains(&t.0)).cloned().collect();
        let mine = cost(&mine, &packets, price, begin);
        let all = price as i64 * part.len() as i64;
        // In parts of what it would be worth if every packet joined a train.
        let regret = (mine - best) as f64 / all as f64;
        assert!(regret < 0.1, "at {begin}: {mine} instead of {best} ({regret:.3})");
    }
}

#[test]
fn a_step_of_load_alone_changes_little() {
    const MS: u64 = 1_000_000;
    // The same flows, then four times as many of the same kind.
    let mut packets = bursts(5, 0, 400 * MS, 50, 6, 4000, 4 * MS);
    packets.extend(bursts(6, 400 * MS, 800 * MS, 800, 6, 4000, 4 * MS));
    let mut holds = Vec::new();
    let (_, reframer) = run(&auto(1000, 256_000), &packets, |now, stats| {
        if now > 100 * MS {
            holds.push(stats[0].hold_ns);
        }
    });
    let (low, high) = (holds.iter().min().unwrap(), holds.iter().max().unwrap());
    assert!(high <= &(2 * low), "{low} to {high}");
    let stats = &reframer.stats().auto[0];
    assert!(stats.changes <= 5, "{}", stats.changes);
    assert!(stats.one_in > 1, "all flows are sampled");
}

#[test]
fn budgets_choose_the_hold() {
    let packets = bursts(9, 0, 600_000_000, 60, 6, 10_000, 4_000_000);
    let settled = |budget| {
        let config = ReframeConfig { budget: Some(budget), ..auto(0, 512_000) };
        let reframer = run(&config, &packets, |_, _| ()).1;
        let auto = reframer.stats().auto.remove(0);
        let found = auto.tried.iter().find(|t| t.0 == auto.hold_ns);
        let (_, outcome) = *found.unwrap_or_else(|| panic!("{budget}: {auto:?}"));
        (outcome.delay_ns / outcome.packets, outcome.packets as f64 / outcome.trains as f64)
    };
    let (delay, _) = settled(Budget::Delay(20_000));
    assert!((8_000..=20_000).contains(&delay), "{delay}");
    let (_, train) = settled(Budget::Train(3000));
    assert!((3.0..4.5).contains(&train), "{train}");
    let (cheap, dear) = (settled(Budget::Price(60_000)), settled(Budget::Price(400_000)));
    assert!(cheap.0 < dear.0 && cheap.1 < dear.1);
}

#[test]
fn contradictions_are_refused() {
    let error = |config: ReframeConfig| config.validate().unwrap_err().to_string();
    let wrong = error(auto(20_000, 10_000));
    assert_eq!(wrong, "reframe: hold_min = 20us is above hold_max = 10us; exchange them");
    let wrong = error(ReframeConfig { admit: Admit::Adaptive, ..auto(0, 10_000) });
    assert!(wrong.starts_with("reframe: hold = auto doesn't go with admit = adaptive"), "{wrong}");
    let wrong = error(ReframeConfig { budget: Some(Budget::Delay(10_001)), ..auto(0, 10_000) });
    assert!(wrong.contains("no packet waits longer than hold_max = 10us"), "{wrong}");
}
