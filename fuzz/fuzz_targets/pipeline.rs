//! Graphs and configurations of any text: an error with a place in the text, or a plan whose drawing reads
//! back as itself, and whose stages are built or say what is wrong with their settings.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::pipeline::{Drawing, Plan};

/// Mistakes that are told at most.
const MOST_TOLD: usize = 100;

/// Settings that name files, which are no matter of this.
const FILES: [&str; 7] = ["rules", "routes", "path", "sets", "export", "save", "@"];

/// Returns true if building what the text says reads no file and takes little memory: its numbers are small.
fn is_small(text: &str) -> bool {
    let bytes = text.as_bytes();
    let unit = |pair: &[u8]| pair[0].is_ascii_digit() && b"kKmMgGtT".contains(&pair[1]);
    let long = bytes.windows(5).any(|five| five.iter().all(u8::is_ascii_digit));
    !long && !bytes.windows(2).any(unit) && !FILES.iter().any(|word| text.contains(word))
}

fuzz_target!(|text: &str| {
    let base = "".as_ref();
    for plan in [Plan::from_graph(text, None, None, base), Plan::from_toml(text, "fuzz.toml", base)] {
        match plan {
            Ok(plan) => {
                for how in [Drawing::Dot, Drawing::Mermaid, Drawing::Svg] {
                    assert!(!plan.draw(how).is_empty());
                }
                let click = plan.draw(Drawing::Click);
                let again = Plan::from_graph(&click, None, None, base).expect("what was drawn reads back");
                assert_eq!(again.draw(Drawing::Click), click);
                if is_small(text)
                    && let Err(errors) = plan.check()
                {
                    assert!(errors.0.iter().all(|one| !one.error.message.is_empty()) && !errors.0.is_empty());
                }
            }
            Err(errors) => {
                assert!(!errors.0.is_empty());
                assert!(errors.0.len() <= MOST_TOLD + 1);
                for (number, diagnostic) in errors.0.into_iter().enumerate() {
                    // The last one only says that there are more, and has no place.
                    let has_place = diagnostic.error.line >= 1 || number == MOST_TOLD;
                    assert!(diagnostic.error.offset <= text.len() && has_place);
                }
            }
        }
    }
});
