//! Every fuzz target without a fuzzer, as an ordinary test: it gets the seeds that it begins with, and some
//! hundred inputs that are made up. No feedback leads these anywhere: `make fuzz` searches, this sees that a
//! target fits the crates and runs.

#![allow(unused_attributes, reason = "each target is a whole program otherwise, with `no_main`")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

// The names that a target uses: the fuzzer's, and that of the code which several targets share.
extern crate self as libfuzzer_sys;
extern crate self as slipstream_fuzz;

#[path = "src/lib.rs"]
mod shared;

use std::any::Any;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{OnceLock, mpsc};
use std::time::Duration;
use std::{fs, panic, thread};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
pub use shared::{BEGIN, Input, Packet, classifiers_agree, folder, packets, read, saved, write};

/// Inputs that are made up for each target.
const INPUTS: usize = 300;
/// An input that takes for ever is a finding, too.
const LONGEST: Duration = Duration::from_secs(120);

/// What targets import from the fuzzer.
mod fuzzer {
    /// In place of the fuzzer's macro: the target becomes a function of bytes.
    #[macro_export]
    macro_rules! fuzz_target {
        (|$data:ident: &[u8]| $body:expr) => {
            pub(crate) fn target($data: &[u8]) {
                $body
            }
        };
        (|$text:ident: &str| $body:expr) => {
            pub(crate) fn target(bytes: &[u8]) {
                if let Ok($text) = std::str::from_utf8(bytes) {
                    $body
                }
            }
        };
    }
}

macro_rules! targets {
    ($($name:ident)*) => {
        mod fuzz_targets {
            $(pub(crate) mod $name;)*
        }

        $(
            #[test]
            fn $name() {
                try_out(stringify!($name), fuzz_targets::$name::target);
            }
        )*

        const TARGETS: &[&str] = &[$(stringify!($name)),*];
    };
}

targets! {
    capi capture capture_parts capture_round_trip chain checksum classify control firewall fragments
    functions gro iptables measure_state offload pipeline poll_log reframe router routes rules settings shm
    sketch_calls sketch_state sketch_tables slice stages state trace_part tunnel
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// What `make fuzz` begins with, too: made once for all targets.
fn seeds(target: &str) -> Vec<Vec<u8>> {
    static MADE: OnceLock<()> = OnceLock::new();
    MADE.get_or_init(|| {
        let made = Command::new("python3").arg(root().join("ci/fuzz_seeds.py")).status().unwrap();
        assert!(made.success(), "ci/fuzz_seeds.py: {made}");
    });
    let Ok(folder) = fs::read_dir(root().join("fuzz/corpus").join(target)) else { return Vec::new() };
    let mut paths: Vec<_> = folder.map(|entry| entry.unwrap().path()).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("seed-")));
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

/// An input of up to 600 bytes: short ones are frequent, and a third has few different bytes, as headers and
/// texts do. Every other one is a seed of which some bytes are others, where there is one.
fn made_up(rng: &mut ChaCha8Rng, number: usize, seeds: &[Vec<u8>]) -> Vec<u8> {
    if number % 2 == 1 && !seeds.is_empty() {
        let mut input = seeds[rng.random_range(0..seeds.len())].clone();
        for _ in 0..rng.random_range(1..=4) {
            if !input.is_empty() {
                let at = rng.random_range(0..input.len());
                input[at] = rng.random();
            }
        }
        if rng.random_ratio(1, 4) {
            input.truncate(rng.random_range(0..=input.len()));
        }
        return input;
    }
    let longest = rng.random_range(0..600);
    let length = rng.random_range(0..=longest);
    let kinds = if rng.random_ratio(1, 3) { rng.random_range(1..=16) } else { 256 };
    let first: u8 = rng.random();
    (0..length).map(|_| first.wrapping_add(rng.random_range(0..kinds) as u8)).collect()
}

fn said(failure: &(dyn Any + Send)) -> &str {
    let owned = failure.downcast_ref::<String>().map(String::as_str);
    owned.or_else(|| failure.downcast_ref::<&str>().copied()).unwrap_or("a panic without words")
}

/// Gives the target its inputs. The one at which it fails is told in hexadecimal: `xxd -r -p` makes a file of
/// it for `cargo fuzz run TARGET FILE`.
fn try_out(name: &'static str, target: fn(&[u8])) {
    let (ended, end) = mpsc::channel();
    thread::spawn(move || {
        let seeds = seeds(name);
        let mut rng = ChaCha8Rng::seed_from_u64(0x9e37_79b9_7f4a_7c15);
        let others = (0..INPUTS).map(|number| made_up(&mut rng, number, &seeds));
        let failed = seeds.iter().cloned().chain(others).find_map(|input| {
            let failure = panic::catch_unwind(|| target(&input)).err()?;
            let shown: String = input.iter().take(4096).map(|byte| format!("{byte:02x}")).collect();
            Some(format!("{name}: {}\nthe input, in hexadecimal: {shown}", said(&*failure)))
        });
        ended.send(failed)
    });
    match end.recv_timeout(LONGEST) {
        Ok(None) => {}
        Ok(Some(failure)) => panic!("{failure}"),
        Err(_) => panic!("{name}: no end after {LONGEST:?}, or its thread has died"),
    }
}

/// The names of crates that a manifest lists, as code writes them.
fn dependencies(manifest: &str) -> Vec<String> {
    let tables = manifest.split("\n[").filter(|table| {
        let name = table.lines().next().unwrap_or_default();
        name == "dependencies]" || name == "dev-dependencies]"
    });
    let lines = tables.flat_map(str::lines).filter(|line| line.contains('='));
    lines.map(|line| line.split(['.', ' ']).next().unwrap_or_default().replace('-', "_")).collect()
}

#[test]
fn the_fuzzers_manifest_has_every_target_and_what_it_uses() {
    let folder = root().join("fuzz/fuzz_targets");
    let mut names: Vec<_> = fs::read_dir(&folder)
        .unwrap()
        .map(|file| file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert_eq!(names, TARGETS);
    let manifest = fs::read_to_string(root().join("fuzz/Cargo.toml")).unwrap();
    let listed = dependencies(&manifest);
    assert!(listed.contains(&"slipstream_wire".to_owned()), "{listed:?}");
    let here = fs::read_to_string(root().join("crates/cli/Cargo.toml")).unwrap();
    let others: Vec<_> = dependencies(&here).into_iter().filter(|name| !listed.contains(name)).collect();
    for name in names {
        let path = format!("path = \"fuzz_targets/{name}.rs\"");
        assert!(manifest.contains(&path), "fuzz/Cargo.toml has no binary of {name}");
        let text = fs::read_to_string(folder.join(format!("{name}.rs"))).unwrap();
        for other in &others {
            let used = text.match_indices(&format!("{other}::")).any(|(at, _)| {
                !text[..at].ends_with(|before: char| before.is_alphanumeric() || "_:".contains(before))
            });
            assert!(!used, "{name} uses {other}, which fuzz/Cargo.toml doesn't list");
        }
    }
}
