//! The `slipstream` command.
fn main() {}
