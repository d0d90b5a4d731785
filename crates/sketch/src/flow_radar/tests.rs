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
        let mut other = FlowRadar::<4>::new(FlowRadarParams { cells: 500, lines: 400 }, seed).unwrap();
        assert_eq!(other.merge(&radar), Err(MergeError::Undecodable(Kind::FlowRadar)));
        let entropy = radar.entropy().unwrap();
        let exact = entropy_of(truth.iter().map(|t| t.1));
        assert!(entropy.lower <= exact && exact <= entropy.upper + 0.2, "{entropy:?} {exact}");
    }
}

/// A filter so small that flows are hidden: the others' sizes are solved for, and where they can't be, bounds hold the truth.
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
