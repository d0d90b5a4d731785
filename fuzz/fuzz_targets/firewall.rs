//! Any text as rules of a firewall, any bytes as a packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::functions::firewall::RuleSet;
use slipstream_fuzz::classifiers_agree;

fuzz_target!(|data: &[u8]| classifiers_agree(data, RuleSet::parse));
