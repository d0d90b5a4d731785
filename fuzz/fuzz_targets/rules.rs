//! Any text as a rule, any bytes as a packet: a rule prints as an equal rule that matches the same packets,
//! an error lies within the text, and nothing panics.
#![no_main]

use libfuzzer_sys::fuzz_target;
use slipstream::rules::Rule;
use slipstream_wire::{LinkType, classify};

/// Bytes at the end of the input that make the packet.
const PACKET: usize = 60;

fuzz_target!(|data: &[u8]| {
    let (text, packet) = data.split_at(data.len().saturating_sub(PACKET));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let rule = match Rule::parse(text) {
        Ok(rule) => rule,
        Err(error) => {
            assert!(text.is_char_boundary(error.offset));
            assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
            assert!(error.to_string().len() < 2_000);
            return;
        }
    };
    let printed = rule.to_string();
    // A printout spells out every operator, so it may be too long for a rule.
    let again = if printed.len() <= 65_536 { Rule::parse(&printed).unwrap() } else { rule.clone() };
    assert_eq!(again, rule);
    for link in [LinkType::RawIp, LinkType::Ethernet] {
        let Ok(headers) = classify(link, packet) else { continue };
        let matches = rule.matches(&headers, packet.len() as u32);
        assert_eq!(again.matches(&headers, packet.len() as u32), matches);
        assert!(!(matches && rule.is_never()));
        assert!(matches || !rule.is_always());
        if let Some((mask, value)) = rule.tcp_flags_only() {
            let tcp = headers.flags.has(slipstream_wire::Flags::TCP);
            assert_eq!(tcp && headers.tcp_flags & mask == value, matches);
        }
    }
});
