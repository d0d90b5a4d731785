//! Any text as `iptables-save`, any bytes as a packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::functions::firewall::RuleSet;
use slipstream_fuzz::classifiers_agree;

fuzz_target!(|data: &[u8]| classifiers_agree(data, |text| RuleSet::parse_iptables(text, "FORWARD")));
