//! Any calls of the C interface to sketches in any order: of every kind and length of keys, freed ones and
//! NULL, questions that a kind has no answer to, rooms that are too small, merges of any two. A code comes
//! back, and no more is written than there is room for.
#![no_main]

use std::ptr::{null, null_mut};

use libfuzzer_sys::fuzz_target;
use slipstream_capi::error::SLIP_OK;
use slipstream_capi::sketch::*;
use slipstream_fuzz::Input;

/// A sketch in C's hands, freed or not.
struct Held {
    sketch: *mut slip_sketch,
    live: bool,
    key: usize,
}

const KINDS: [&std::ffi::CStr; 14] = [
    c"count-min",
    c"flow-radar",
    c"space-saving",
    c"rev-sketch",
    c"two-level",
    c"mrac",
    c"fm",
    c"linear-counting",
    c"univmon",
    c"exaloglog",
    c"exaloglog-hip",
    c"ddsketch",
    c"exact",
    c"none",
];

fn make(input: &mut Input<'_>) -> Held {
    let mut config = std::mem::MaybeUninit::<slip_sketch_config>::uninit();
    let mut why = [1_i8; 64];
    // SAFETY: there is room for one, which is filled in; the text has a buffer of that length.
    unsafe {
        assert_eq!(slip_sketch_config_init(config.as_mut_ptr(), size_of::<slip_sketch_config>()), SLIP_OK);
        let mut config = config.assume_init();
        config.kind = KINDS.get(usize::from(input.byte() & 15)).map_or(null(), |kind| kind.as_ptr());
        // Sizes of a few KiB: whatever asks for more is another test's.
        config.memory = input.u64() % (1 << 17);
        config.seed = 1 + u64::from(input.byte() & 1);
        config.key_length = [4, 8, 13, 16, 5][usize::from(input.byte()) % 5];
        config.keep = u32::from(input.byte());
        config.source_length = u32::from(input.byte() & 31);
        config.aggregate = u32::from(input.byte() & 1);
        let sketch = slip_sketch_new(&config, why.as_mut_ptr().cast(), usize::from(input.byte() & 63));
        assert!(!sketch.is_null() || why[63] == 1);
        Held { sketch, live: !sketch.is_null(), key: config.key_length as usize }
    }
}

/// Room for so many answers, and one behind it that has to stay as it is.
fn room<T: Copy + PartialEq + std::fmt::Debug>(n: u32, mark: T, ask: impl FnOnce(*mut T) -> i32) -> Vec<T> {
    let mut all = vec![mark; n as usize + 1];
    let found = ask(all.as_mut_ptr());
    assert!(found <= n as i32);
    assert!(all.iter().skip(found.max(0) as usize).all(|one| *one == mark), "more was written than was said");
    all.truncate(found.max(0) as usize);
    all
}

fn in_order(estimate: &slip_estimate) -> bool {
    estimate.lower <= estimate.estimate && estimate.estimate <= estimate.upper
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mut all = vec![Held { sketch: null_mut(), live: false, key: 4 }];
    while !input.0.is_empty() {
        let (what, which) = (input.byte(), usize::from(input.byte()));
        let n = all.len();
        let (sketch, key) = (all[which % n].sketch, all[which % n].key);
        let live = all[which % n].live;
        match what % 10 {
            0 if n < 6 => {
                let made = make(&mut input);
                if made.live {
                    all.push(made);
                }
            }
            1 => {
                // SAFETY: NULL, or what was made by the library.
                let code = unsafe { slip_sketch_free(sketch) };
                assert_eq!(code == SLIP_OK, live || sketch.is_null());
                all[which % n].live = false;
            }
            2 => {
                let from = usize::from(input.byte()) % n;
                // SAFETY: as above.
                let code = unsafe { slip_sketch_merge(sketch, all[from].sketch) };
                assert!(code != SLIP_OK || live && all[from].live && from != which % n);
            }
            3 => {
                let want = input.u64();
                let n = u32::from(input.byte() & 31);
                let source = u32::from(input.byte() & 31);
                // SAFETY: there is room for as many as is said.
                let top = room(n, slip_heavy::default(), |to| unsafe { slip_sketch_top(sketch, want, to, n) });
                assert!(top.iter().all(|heavy| in_order(&heavy.size)));
                assert!(top.windows(2).all(|pair| pair[0].size.estimate >= pair[1].size.estimate));
                // SAFETY: as above.
                let ask = |to| unsafe { slip_sketch_spreaders(sketch, source, want, to, n) };
                assert!(room(n, slip_heavy::default(), ask).iter().all(|heavy| in_order(&heavy.size)));
            }
            4 => {
                let q = f64::from_bits(input.u64());
                let q = if input.byte() & 1 == 0 { q } else { f64::from(input.byte()) / 255.0 };
                let mut figure = slip_figure::default();
                // SAFETY: there is room for one.
                let codes = unsafe {
                    [
                        slip_sketch_cardinality(sketch, &mut figure),
                        slip_sketch_entropy(sketch, &mut figure),
                        slip_sketch_quantile(sketch, q, &mut figure),
                        slip_sketch_cardinality(sketch, null_mut()),
                    ]
                };
                assert!(live || codes.iter().all(|code| *code != SLIP_OK));
                assert!(codes[3] != SLIP_OK);
                assert!(figure.estimate.is_finite() && figure.lower <= figure.estimate);
                assert!(figure.estimate <= figure.upper, "{figure:?}");
            }
            5 => {
                let n = u32::from(input.byte());
                // SAFETY: there is room for as many as is said.
                let ask = |to| unsafe { slip_sketch_distribution(sketch, to, n) };
                let sizes = room(n, slip_size_count::default(), ask);
                assert!(sizes.windows(2).all(|pair| pair[0].size < pair[1].size));
            }
            6 => {
                let bytes: [u8; 16] = std::array::from_fn(|_| input.byte() & 3);
                let mut estimate = slip_estimate::default();
                // SAFETY: a key of that length, or NULL, and room for one.
                let code = unsafe { slip_sketch_estimate(sketch, bytes.as_ptr(), &mut estimate) };
                assert!(in_order(&estimate) && (live || code != SLIP_OK));
                // SAFETY: as above.
                assert!(unsafe { slip_sketch_estimate(sketch, null(), &mut estimate) } != SLIP_OK);
                // SAFETY: as above.
                assert!(live || unsafe { !slip_sketch_error(sketch).is_null() });
            }
            _ => {
                let n = usize::from(input.byte());
                let (mask, how) = (input.byte(), input.byte());
                let mut keys = input.bytes(n * key).to_vec();
                keys.truncate(keys.len() / key * key);
                keys.iter_mut().for_each(|byte| *byte &= mask);
                let n = keys.len() / key;
                let weights: Vec<u32> = (0..n).map(|i| (i as u32) << (how & 31)).collect();
                let given = if how & 32 == 0 { weights.as_ptr() } else { null() };
                // SAFETY: so many keys are there, and as many weights or NULL.
                let code = unsafe { slip_sketch_add_burst(sketch, keys.as_ptr(), given, n as u32) };
                assert_eq!(code == SLIP_OK, live);
            }
        }
    }
    for held in all.iter().filter(|held| held.live) {
        // SAFETY: what was made by the library, and not freed.
        assert_eq!(unsafe { slip_sketch_free(held.sketch) }, SLIP_OK);
    }
});
