//! Code that several targets share.

use slipstream::functions::firewall::{ConnState, Firewall, Method, PacketFields, RuleSet, RuleSetErrors};
use slipstream_wire::{LinkType, classify};

/// Bytes at the end of the input that make the packet.
const PACKET: usize = 60;

/// Text for `parse`, and the bytes of a packet behind it: both classifiers decide alike, and an error lies
/// within the text.
pub fn classifiers_agree(data: &[u8], parse: impl Fn(&str) -> Result<RuleSet, RuleSetErrors>) {
    let (text, packet) = data.split_at(data.len().saturating_sub(PACKET));
    let Ok(text) = std::str::from_utf8(text) else { return };
    let rules = match parse(text) {
        Ok(rules) => rules,
        Err(errors) => {
            assert!((1..=20).contains(&errors.errors.len()));
            for error in &errors.errors {
                assert!(text.is_char_boundary(error.offset));
                assert_eq!(error.line, text[..error.offset].matches('\n').count() + 1);
            }
            return;
        }
    };
    let linear = Firewall::new(rules.clone(), Method::Linear);
    let fast = Firewall::new(rules, Method::Fast);
    for link in [LinkType::RawIp, LinkType::Ethernet] {
        let Ok(headers) = classify(link, packet) else { continue };
        for state in [ConnState::Untracked, ConnState::New] {
            let fields = PacketFields::new(&headers, packet.len() as u32).with_state(state);
            let (mut one, mut other) = (Vec::new(), Vec::new());
            let a = linear.decide(&fields, |i, action| one.push((i, *action)));
            let b = fast.decide(&fields, |i, action| other.push((i, *action)));
            assert_eq!((a, one), (b, other));
        }
    }
}
