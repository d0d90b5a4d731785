//! Graphs and configurations of any text: an error with a place in the text, or a plan whose drawing reads
//! back as itself.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::pipeline::{Drawing, Plan};

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
            }
            Err(errors) => {
                assert!(!errors.0.is_empty());
                for diagnostic in errors.0 {
                    assert!(diagnostic.error.offset <= text.len() && diagnostic.error.line >= 1);
                }
            }
        }
    }
});
