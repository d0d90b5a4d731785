//! Any text as routes: a table that knows every route at its first address, or errors within the text;
//! nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::functions::routes::Routes;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Routes::parse(text) {
        Ok(routes) => {
            let table = routes.table();
            assert_eq!(table.v4.len() + table.v6.len(), routes.routes().len());
            for route in routes.routes() {
                let found = table.lookup(route.net.network()).unwrap();
                let longer = routes.routes()[found as usize].net;
                assert!(route.net.contains(&longer), "{} {longer}", route.net);
            }
        }
        Err(errors) => {
            assert!((1..=20).contains(&errors.errors.len()));
            for error in &errors.errors {
                assert!(text.is_char_boundary(error.offset));
                assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
            }
        }
    }
});
