//! The linear classifier: every rule in its order, by the letter. It is the oracle for the fast one, and a
//! setting for who wants to see what first-match costs without one.

use std::mem::size_of;

use super::conjunction::Conjunction;
use super::{PacketFields, RuleSet};

/// All conjunctive rules in the order of their rules.
#[derive(Clone, Debug)]
pub struct Linear {
    parts: Vec<(u32, Conjunction)>,
}

impl Linear {
    /// Lays the rules out one behind the other.
    #[must_use]
    pub fn new(rules: &RuleSet) -> Self {
        let parts = (0_u32..).zip(rules.rules());
        Self { parts: parts.flat_map(|(i, rule)| rule.parts.iter().map(move |p| (i, p.clone()))).collect() }
    }

    /// The first rule that matches.
    #[must_use]
    pub fn lookup(&self, packet: &PacketFields) -> Option<u32> {
        self.lookup_from(packet, 0)
    }

    /// The first rule from `start` on that matches.
    #[must_use]
    pub fn lookup_from(&self, packet: &PacketFields, start: u32) -> Option<u32> {
        let from = self.parts.partition_point(|&(rule, _)| rule < start);
        let rest = self.parts.get(from..).unwrap_or(&[]);
        rest.iter().find(|(_, part)| part.matches(packet)).map(|&(rule, _)| rule)
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.parts.len() * size_of::<(u32, Conjunction)>()
    }
}
