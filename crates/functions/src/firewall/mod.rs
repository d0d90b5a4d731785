//! Packet classification: which of an ordered list of rules is the first to match, and what becomes of the
//! packet.
//!
//! Rules come as text, one a line, in the project's rule language behind an action ([`RuleSet::parse`]), or
//! as `iptables-save` prints them ([`RuleSet::parse_iptables`]). A [`Firewall`] puts a classifier over them:
//! the linear [`reference`](mod@reference), which asks one rule after the other, or the fast one
//! ([`forest`]), which gives the same answers.
//!
//! ```
//! use slipstream_functions::firewall::{Firewall, Method, PacketFields, RuleSet, Verdict};
//! use slipstream_wire::{LinkType, classify};
//!
//! let rules = RuleSet::parse("deny src 10.66.0.0/16\nlog 1/100 tcp syn\nallow udp dst port 53\ndefault deny")?;
//! let firewall = Firewall::new(rules, Method::Fast);
//! let dns = [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
//! let packet = PacketFields::new(&classify(LinkType::RawIp, &dns).unwrap(), 28);
//! assert_eq!(firewall.lookup(&packet), Some(2));
//! assert_eq!(firewall.decide(&packet, |_, _| {}).verdict, Verdict::Allow);
//! # Ok::<(), slipstream_functions::firewall::RuleSetErrors>(())
//! ```

mod ahead;
mod bitmap;
mod block;
mod build;
pub mod cache;
mod conjunction;
mod entry;
mod expand;
mod fields;
pub mod forest;
mod four;
pub mod generate;
#[cfg(test)]
mod hidden_tests;
mod ipset;
mod iptables;
mod iptables_chains;
mod iptables_icmp;
mod iptables_match;
mod iptables_modules;
#[cfg(test)]
mod iptables_tests;
mod limit;
mod parse;
pub mod reference;
mod reload;
#[cfg(test)]
mod reload_tests;
mod rules;
mod settings;
mod stage;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod text_tests;

use std::sync::Arc;

pub use super::text::RuleSetErrors;
pub use fields::{ConnState, PacketFields, Reads};
pub use ipset::{IpSet, IpSets};
pub use iptables::IptablesOptions;
pub use limit::Limit;
pub use rules::{Action, FirewallRule, Note, RuleSet, Verdict};
pub use settings::FIREWALL;
pub use stage::FirewallStage;

use ahead::Found;
use forest::{Forest, Leaves};
use reference::Linear;

/// The method of finding the first matching rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// One rule after the other.
    Linear,
    /// By decision trees.
    #[default]
    Fast,
}

#[derive(Clone, Debug)]
enum Classifier {
    Linear(Linear),
    Fast(Box<Forest>),
}

/// The verdict about a packet, and the rule that gave it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that says so; `None` where it is the default of the rule set.
    pub rule: Option<u32>,
}

/// A rule set and a classifier over it.
#[derive(Clone, Debug)]
pub struct Firewall {
    rules: RuleSet,
    /// Verdicts of the rules that decide, and behind them that of packets that match none, side by side: most
    /// decisions read nothing else.
    verdicts: Vec<Option<Verdict>>,
    /// Lines of the rules, which reports share that are made beside the data path.
    lines: Arc<[u32]>,
    classifier: Classifier,
}

impl Firewall {
    /// Builds the classifier.
    #[must_use]
    pub fn new(rules: RuleSet, method: Method) -> Self {
        let classifier = match method {
            Method::Linear => Classifier::Linear(Linear::new(&rules)),
            Method::Fast => Classifier::Fast(Box::new(Forest::new(&rules))),
        };
        let verdicts = rules.rules().iter().map(|rule| rule.action.verdict());
        let verdicts = verdicts.chain([Some(rules.default_verdict())]).collect();
        let lines = rules.rules().iter().map(|rule| rule.line).collect();
        Self { rules, verdicts, lines, classifier }
    }

    /// The rules.
    #[must_use]
    pub const fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns true if there is nothing that it does with packets but to let them pass or not.
    fn only_passes_or_denies(&self) -> bool {
        let plain = |verdict: Option<Verdict>| matches!(verdict, Some(Verdict::Allow | Verdict::Deny));
        self.verdicts.iter().all(|verdict| plain(*verdict))
    }

    /// The first rule that matches a packet, as an index into the rules, whatever its action.
    #[inline]
    #[must_use]
    pub fn lookup(&self, packet: &PacketFields) -> Option<u32> {
        match &self.classifier {
            Classifier::Linear(linear) => linear.lookup(packet),
            Classifier::Fast(forest) => forest.lookup(packet),
        }
    }

    /// Begins the lookups of packets ahead of [`lookup_ahead`](Self::lookup_ahead), so that memory can come
    /// meanwhile.
    #[inline(always)]
    fn walk_together(&self, found: &mut [Found]) {
        if let Classifier::Fast(forest) = &self.classifier {
            forest.walk_together(found);
        }
    }

    /// The place of the first matching rule, or behind all rules where none matches.
    #[inline(always)]
    fn place(&self, first: Option<u32>) -> u32 {
        first.unwrap_or(self.verdicts.len() as u32 - 1)
    }

    /// The verdict about a packet that has this [`place`](Self::place), if the rule does nothing else.
    #[inline(always)]
    fn plain_verdict(&self, place: u32) -> Option<Verdict> {
        let verdict = self.verdicts.get(place as usize).copied().flatten();
        verdict.filter(|verdict| *verdict != Verdict::Reset)
    }

    /// Looks packets up.
    #[inline(always)]
    fn lookup_together(&self, found: &mut [Found]) {
        match &self.classifier {
            Classifier::Linear(linear) => {
                for found in found.iter_mut().filter(|f| f.known) {
                    found.note(linear.lookup(&found.packet));
                }
            }
            Classifier::Fast(forest) => forest.lookup_together(found),
        }
    }

    /// As [`lookup`](Self::lookup), of a packet whose lookup was begun by
    /// [`walk_together`](Self::walk_together).
    #[inline(always)]
    fn lookup_ahead(&self, packet: &PacketFields, leaves: &Leaves) -> Option<u32> {
        match &self.classifier {
            Classifier::Linear(linear) => linear.lookup(packet),
            Classifier::Fast(forest) => forest.lookup_in(packet, leaves),
        }
    }

    /// The first rule from `start` on that matches a packet. It must be one that evaluation can come to: 0,
    /// the rule after a matching one that counts or logs, or the one that a matching one skips to. (Rules
    /// that evaluation can't come to may be left out of the classifier.)
    #[inline]
    #[must_use]
    pub fn lookup_from(&self, packet: &PacketFields, start: u32) -> Option<u32> {
        match &self.classifier {
            Classifier::Linear(linear) => linear.lookup_from(packet, start),
            Classifier::Fast(forest) => forest.lookup_from(packet, start),
        }
    }

    /// Decides about a packet. `passed` is told of every matching rule that is passed on the way: those that
    /// count, log or skip. No limit is ever reached.
    #[inline]
    pub fn decide(&self, packet: &PacketFields, mut passed: impl FnMut(u32, &Action)) -> Decision {
        self.decide_within(self.lookup(packet), packet, |rule, action| {
            passed(rule, action);
            true
        })
    }

    /// As [`decide`](Self::decide), where the first matching rule is known already, say from a
    /// [`DecisionCache`](cache::DecisionCache), and `passed` says of each [`Action::Limit`] whether its limit
    /// lets the packet go on with the next rule.
    #[inline]
    pub fn decide_within(
        &self,
        first: Option<u32>,
        packet: &PacketFields,
        mut passed: impl FnMut(u32, &Action) -> bool,
    ) -> Decision {
        let decides = |rule: Option<u32>| self.verdicts.get(rule? as usize).copied().flatten();
        match decides(first) {
            Some(verdict) => Decision { verdict, rule: first },
            None => self.decide_on(first, packet, &mut passed),
        }
    }

    /// As [`decide_within`](Self::decide_within), where the first rule doesn't decide.
    #[inline(never)]
    fn decide_on(
        &self,
        first: Option<u32>,
        packet: &PacketFields,
        passed: &mut dyn FnMut(u32, &Action) -> bool,
    ) -> Decision {
        let mut found = first;
        while let Some(index) = found {
            if let Some(&Some(verdict)) = self.verdicts.get(index as usize) {
                return Decision { verdict, rule: found };
            }
            let Some(action) = self.rules.action(index) else { break };
            let next = if passed(index, action) { action.next(index) } else { action.farthest(index) };
            found = self.lookup_from(packet, next);
        }
        Decision { verdict: self.rules.default_verdict(), rule: None }
    }

    /// Memory that lookups may touch, in bytes.
    #[must_use]
    pub fn memory(&self) -> usize {
        match &self.classifier {
            Classifier::Linear(linear) => linear.memory(),
            Classifier::Fast(forest) => forest.memory(),
        }
    }
}
