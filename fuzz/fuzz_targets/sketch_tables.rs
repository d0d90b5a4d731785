//! Any parameters and tables behind a head that is right, of every kind and version of sketch: an error, or a
//! sketch that answers every question, is saved as it was read, and merges.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_sketch::{Kind, Sketch, Want, load, quantile, save};

fn ask<const N: usize>(state: &[u8]) {
    let Ok(mut sketch) = load::<N>(state) else { return };
    let want = Want { threshold: 1, top: 10 };
    let finite = |v: f64| assert!(v.is_finite(), "{v}");
    let _ = (sketch.heavy_hitters(want), sketch.heavy_changes(sketch.as_ref(), want), sketch.unlisted());
    let _ = (sketch.superspreaders(N / 2, want), sketch.flow_size(&[7; N]), sketch.is_saturated());
    for figure in [sketch.cardinality(), sketch.entropy(), sketch.second_moment()].into_iter().flatten() {
        finite(figure.estimate);
        finite(figure.lower);
        assert!(figure.lower <= figure.estimate && figure.estimate <= figure.upper, "{figure:?}");
    }
    if let Ok(sizes) = sketch.set_sizes(sketch.as_ref()) {
        for part in [sizes.union, sizes.intersection, sizes.only_first, sizes.only_second] {
            finite(part.estimate);
            assert!(part.lower <= part.estimate && part.estimate <= part.upper, "{sizes:?}");
        }
    }
    if let Ok(ranges) = sketch.value_ranges() {
        let _ = [0.0, 0.3, 1.0].map(|q| quantile(&ranges, q));
    }
    let saved = save(sketch.as_ref());
    let again: Box<dyn Sketch<N>> = load(&saved).unwrap();
    assert_eq!(save(again.as_ref()), saved);
    assert_eq!((again.weight(), again.shape(), again.seed()), (sketch.weight(), sketch.shape(), sketch.seed()));
    sketch.update(&[9; N], 3);
    let _ = sketch.merge(again.as_ref());
    let _ = sketch.cardinality();
}

fuzz_target!(|data: &[u8]| {
    // Kind, version and weight; then parameters and tables.
    let Some(([kind, version, weight @ ..], tables)) = data.split_first_chunk::<10>() else { return };
    if data.len() > 60_000 {
        return;
    }
    for len in [4u16, 13] {
        let mut state = b"SLIPSKCH".to_vec();
        state.extend(u16::from(version % 3).to_le_bytes());
        state.extend([1 + kind % Kind::ALL.len() as u8, 0]);
        state.extend(len.to_le_bytes());
        state.extend([0; 2]);
        state.extend(42u64.to_le_bytes());
        state.extend(weight);
        state.extend(tables);
        state.extend(crc32fast::hash(&state).to_le_bytes());
        if len == 4 { ask::<4>(&state) } else { ask::<13>(&state) }
    }
});
