//! Any bytes as a saved sketch, with the checksum made right: an error, or a sketch that can be asked,
//! updated, merged with itself and saved again, without a panic, a number that isn't one, or more memory than
//! the bytes account for.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream_sketch::{Sketch, Want, load, peek, save};

fn read<const N: usize>(bytes: &[u8]) {
    let Ok(mut sketch) = load::<N>(bytes) else { return };
    let want = Want { threshold: 1, top: 10 };
    let _ = (sketch.heavy_hitters(want), sketch.heavy_changes(sketch.as_ref(), want));
    let _ = (sketch.superspreaders(2, want), sketch.flow_size(&[7; N]), sketch.is_saturated());
    for figure in [sketch.cardinality(), sketch.entropy(), sketch.second_moment()].into_iter().flatten() {
        assert!(figure.estimate.is_finite() && figure.lower.is_finite());
    }
    if let Ok(sizes) = sketch.size_distribution() {
        assert!(sizes.iter().all(|(_, flows)| flows.is_finite()));
    }
    let saved = save(sketch.as_ref());
    let again: Box<dyn Sketch<N>> = load(&saved).unwrap();
    assert_eq!(save(again.as_ref()), saved);
    sketch.update(&[9; N], 3);
    let _ = sketch.merge(again.as_ref());
}

fuzz_target!(|data: &[u8]| {
    if data.len() > 100_000 {
        return;
    }
    let _ = peek(data);
    let _ = load::<4>(data);
    let mut sealed = data.to_vec();
    sealed.extend(crc32fast::hash(data).to_le_bytes());
    read::<4>(&sealed);
    read::<13>(&sealed);
});
