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

/// The bytes of an input, from which a target takes what it makes of them; behind their end they are 0.
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// The next byte.
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// The next number, mostly a large one.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// The next number, of any size.
    pub fn u64(&mut self) -> u64 {
        let bytes = std::array::from_fn(|_| self.byte());
        u64::from_le_bytes(bytes) >> (self.byte() & 63)
    }

    /// The next bytes, as many as are left at most.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(n.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
