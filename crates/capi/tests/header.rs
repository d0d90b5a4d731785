//! The header that is checked in is the one that the code has. `SLIPSTREAM_WRITE_HEADER=1` writes it anew.

use std::path::Path;

#[test]
fn the_header_is_that_of_the_code() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(here.join("cbindgen.toml")).unwrap();
    // The files one by one: nothing is asked of cargo, so that no network and no lock file is needed.
    let mut builder = cbindgen::Builder::new().with_config(config);
    for file in ["error", "config", "packet", "stats", "reframe", "sketch"] {
        builder = builder.with_src(here.join(format!("src/{file}.rs")));
    }
    let mut made = Vec::new();
    builder.generate().unwrap().write(&mut made);
    let made = String::from_utf8(made).unwrap();
    let path = here.join("include/slipstream.h");
    if std::env::var_os("SLIPSTREAM_WRITE_HEADER").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let checked_in = std::fs::read_to_string(&path).unwrap_or_default();
    let differ = made.lines().zip(checked_in.lines()).position(|(a, b)| a != b);
    let line = differ.unwrap_or_else(|| made.lines().count().min(checked_in.lines().count())) + 1;
    assert!(
        made == checked_in,
        "include/slipstream.h is not what the code has, from line {line} on; \
         SLIPSTREAM_WRITE_HEADER=1 cargo test -p slipstream-capi --test header writes it anew"
    );
}
