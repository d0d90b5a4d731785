//! Decoding: whole up to the stated load, honest beyond, and right where the filter hid flows.

use super::*;
use crate::hash::split_mix;

fn filled(params: FlowRadarParams, flows: u64, seed: u64) -> (FlowRadar<4>, Vec<([u8; 4], u64)>) {
    let mut radar = FlowRadar::<4>::new(params, seed).unwrap();
    let mut state = seed + 1;
    let mut truth: Vec<([u8; 4], u64)> = (0..flows)
        .map(|_| ((split_mix(&mut state) as u32).to_le_bytes(), 1 + split_mix(&mut state) % 1000))
        .collect();
    truth.sort_unstable();
    truth.dedup_by_key(|f| f.0);
    for (key, size) in &truth {
        // In two parts, the second after everything else.
        radar.update(key, size - size / 2);
    }
    truth.iter().for_each(|(key, size)| radar.update(key, size / 2));
    (radar, truth)
}

#[test]
fn everything_is_decoded_at_the_stated_load() {
    for seed in 0..100 {
        let mut radar = FlowRadar::<4>::sized(Size::Memory(200_000), seed).unwrap();
        let flows = radar.capacity();
        let params = FlowRadarParams { cells: radar.width, lines: radar.filter.len() };
        let truth;
        (radar, truth) = filled(params, flows, seed);
        let decoded = radar.decoded();
        assert!(
            decoded.is_complete(),
            "seed {seed}: {} undecoded, {} hidden",
            decoded.undecoded,
            decoded.hidden
        );
        let got: Vec<_> = decoded.flows.iter().map(|f| (f.key, f.size.estimate)).collect();
        assert_eq!(got, truth, "seed {seed}");
        assert!(decoded.flows.iter().all(|f| f.size.lower == f.size.upper));
    }
}

#[test]
fn beyond_its_load_it_says_so_and_what_it_lists_is_right() {
    for seed in 0..20 {
        let (radar, truth) = filled(FlowRadarParams { cells: 500, lines: 400 }, 2500, seed);
        let decoded = radar.decoded();
        assert!(!decoded.is_complete() && decoded.undecoded > 0);
        assert_eq!(decoded.flows.len() as u64 + decoded.undecoded, truth.len() as u64);
        for flow in &decoded.flows {
            assert!(truth.binary_search_by(|t| t.0.cmp(&flow.key)).is_ok(), "an invented key");
        }
        assert!(radar.is_saturated());
        let mut other = radar.clone();
        assert_eq!(other.merge(&radar), Err(MergeError::Undecodable(Kind::FlowRadar)));
        // One side that can be decoded is enough, whichever it is.
        let few = filled(FlowRadarParams { cells: 500, lines: 400 }, 50, seed).0;
        let mut one = few.clone();
        one.merge(&radar).unwrap();
        other.merge(&few).unwrap();
        assert_eq!(crate::save::<4>(&one), crate::save::<4>(&other));
        let entropy = radar.entropy().unwrap();
        let exact = entropy_of(truth.iter().map(|t| t.1).collect());
        assert!(entropy.lower <= exact && exact <= entropy.upper + 0.2, "{entropy:?} {exact}");
    }
}

/// Beyond the load that it can decode, at any: bounds hold for every flow, decoded or not, and for every
/// change, save what one hidden flow in a thousand cells may spoil.
#[test]
fn overfull_its_bounds_still_hold() {
    let (mut wrong, mut sure, mut all) = (0, 0, 0);
    for (flows, lines) in [(1620, 200), (1700, 100), (2500, 400), (2500, 30), (8000, 100), (30_000, 60)] {
        for seed in 0..10 {
            let params = FlowRadarParams { cells: 500, lines };
            let ((now, truth), (then, past)) = (filled(params, flows, seed), filled(params, flows / 3, seed));
            let size = |truth: &[([u8; 4], u64)], key: &[u8; 4]| {
                truth.binary_search_by(|t| t.0.cmp(key)).map_or(0, |i| truth[i].1)
            };
            let decoded = now.decoded();
            assert!(!decoded.is_complete());
            sure += decoded.flows.iter().filter(|f| f.size.lower == f.size.upper).count();
            let most = now.unlisted().unwrap();
            for (key, true_size) in &truth {
                let listed =
                    decoded.flows.binary_search_by(|f| f.key.cmp(key)).map(|i| decoded.flows[i].size);
                let bounds =
                    listed.unwrap_or(Bounds { estimate: 0, lower: 0, upper: now.at_most(&decoded, key) });
                all += 1;
                wrong += usize::from(*true_size < bounds.lower || *true_size > bounds.upper);
                assert!(listed.is_ok() || *true_size <= most, "{true_size} isn't listed, {most} stated");
            }
            let want = Want { threshold: 1, top: usize::MAX };
            for (later, earlier, after, before) in
                [(&now, &then, &truth, &past), (&then, &now, &past, &truth)]
            {
                for c in later.heavy_changes(earlier, want).unwrap() {
                    let change = size(after, &c.key) as i64 - size(before, &c.key) as i64;
                    let Bounds { estimate, lower, upper } = c.change;
                    assert!(lower <= estimate && estimate <= upper);
                    all += 1;
                    wrong += usize::from(change < lower || change > upper);
                }
            }
        }
    }
    assert!(sure > 3000, "only {sure} sizes are sure");
    assert!(wrong * 1000 < all, "{wrong} of {all} are out of their bounds");
}

/// Flows that weren't decoded may be anyone's, and how many there are is known.
#[test]
fn overfull_it_counts_sources_and_flows_within_bounds() {
    for (flows, lines) in [(1700, 200), (2500, 30), (8000, 60)] {
        let mut radar = FlowRadar::<4>::new(FlowRadarParams { cells: 500, lines }, 7).unwrap();
        let mut state = 0;
        let mut sources = std::collections::BTreeMap::new();
        for i in 0..flows {
            let source = (split_mix(&mut state) % 9) as u8;
            radar.update(&[source, 0, (i >> 8) as u8, i as u8], 3);
            *sources.entry(source).or_insert(0u64) += 1;
        }
        for source in radar.superspreaders(2, Want { threshold: 1, top: 20 }).unwrap() {
            let spread = sources[&source.key[0]];
            let Bounds { estimate, lower, upper } = source.size;
            assert!(
                lower <= spread && spread <= upper && lower <= estimate && estimate <= upper,
                "{source:?}"
            );
        }
        let b = radar.cardinality().unwrap();
        assert!(b.lower <= flows as f64 && flows as f64 <= b.upper, "{b:?} of {flows}");
    }
}

/// A filter so small that flows are hidden: the others' sizes are solved for, and where they can't be, bounds
/// hold the truth.
#[test]
fn hidden_flows_do_not_spoil_the_others() {
    let (mut right, mut wrong, mut hidden) = (0, 0, 0);
    for seed in 0..40 {
        let (radar, truth) = filled(FlowRadarParams { cells: 600, lines: 14 }, 900, seed);
        let decoded = radar.decoded();
        assert_eq!(decoded.undecoded, 0);
        hidden += truth.len() - decoded.flows.len();
        assert_eq!(decoded.hidden > 0, truth.len() > decoded.flows.len(), "hidden flows are told");
        for flow in &decoded.flows {
            let true_size = truth[truth.binary_search_by(|t| t.0.cmp(&flow.key)).unwrap()].1;
            if flow.size.estimate == true_size { right += 1 } else { wrong += 1 }
        }
    }
    assert!(hidden > 40, "the test hides flows: {hidden}");
    assert!(wrong * 200 < right, "{wrong} of {} sizes are wrong", right + wrong);
}

/// A merge of shards that share flows equals one pass.
#[test]
fn shards_with_the_same_flows() {
    let params = FlowRadarParams { cells: 400, lines: 200 };
    let mut shards = [0; 3].map(|_| FlowRadar::<4>::new(params, 9).unwrap());
    let mut whole = FlowRadar::<4>::new(params, 9).unwrap();
    let mut state = 0;
    for _ in 0..5000 {
        let key = ((split_mix(&mut state) % 800) as u32).to_le_bytes();
        shards[(split_mix(&mut state) % 3) as usize].update(&key, 2);
        whole.update(&key, 2);
    }
    let [mut merged, b, c] = shards;
    merged.merge(&b).unwrap();
    merged.merge(&c).unwrap();
    assert_eq!(crate::save::<4>(&merged), crate::save::<4>(&whole));
}
