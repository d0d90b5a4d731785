//! Any text as `iptables-save` and as `ipset save`, any bytes as a packet.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::functions::firewall::{IpSets, IptablesOptions, RuleSet};
use slipstream_fuzz::classifiers_agree;

const SETS: &str = "create hosts hash:ip\nadd hosts 10.0.0.1\ncreate ports hash:net,port\nadd ports 10.0.0.0/8,tcp:80\n";

fuzz_target!(|data: &[u8]| {
    let sets = IpSets::parse(SETS).ok();
    let how = IptablesOptions {
        input: Some("eth0"),
        output: Some("wan0"),
        sets: sets.as_ref(),
        leave_out_unsupported: data.len().is_multiple_of(2),
        ..IptablesOptions::new("FORWARD")
    };
    classifiers_agree(data, |text| RuleSet::parse_iptables_with(text, &how));
    classifiers_agree(data, |text| IpSets::parse(text).map(|_| RuleSet::default()));
});
