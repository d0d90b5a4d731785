//! Any line to the control socket: an error in words, or a request.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::operate::{LONGEST_LINE, MOST_ROWS, Request};

fuzz_target!(|data: &[u8]| {
    match Request::parse(data) {
        Err(why) => assert!(!why.to_string().is_empty()),
        Ok(request) => {
            assert!(data.len() <= LONGEST_LINE);
            if let Request::List(all) | Request::Delete(all) = request {
                assert!((1..=MOST_ROWS).contains(&all.limit));
                let _ = all.matches(&serde_json::json!({ "inside": "10.0.0.1", "inside_port": 5 }));
            }
        }
    }
});
