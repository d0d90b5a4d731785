//! The ordered list of rules that classifiers are built from.

use std::fmt;
use std::num::NonZeroU32;

use super::conjunction::Conjunction;
use super::fields::Reads;
use super::limit::Limit;

/// The fate of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// It passes.
    #[default]
    Allow,
    /// It is dropped without a word.
    Deny,
    /// It is dropped, and its sender told: TCP by a RST, others by an ICMP error.
    Reset,
}

/// The action of a rule on the packets that it matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Decides; no further rule is asked.
    Decide(Verdict),
    /// Counts the packet and goes on with the next rule.
    Count,
    /// Logs one in so many of the packets and goes on with the next rule.
    Log {
        /// 1 logs every packet.
        one_in: NonZeroU32,
    },
    /// Goes on with the next rule as long as a limit lets it, and with a later one where the limit is
    /// reached.
    Limit {
        /// Its number among the rule set's limits.
        limit: u32,
        /// The index of the later rule; the number of rules where none follows.
        to: u32,
    },
    /// Goes on with a later rule: how a chain of iptables returns to the one that called it.
    Skip {
        /// The index of that rule; the number of rules where none follows.
        to: u32,
    },
}

impl Action {
    /// The verdict about the packet, if the rule decides about it.
    #[inline]
    #[must_use]
    pub const fn verdict(&self) -> Option<Verdict> {
        match self {
            Self::Decide(verdict) => Some(*verdict),
            _ => None,
        }
    }

    /// The last rule that may be the next behind a matching one, that with the index `at`.
    #[must_use]
    pub(super) const fn farthest(&self, at: u32) -> u32 {
        match self {
            Self::Skip { to } | Self::Limit { to, .. } => *to,
            _ => at + 1,
        }
    }

    /// The rule to go on with behind a matching one, that with the index `at`, within its limit where it has
    /// one.
    #[inline]
    #[must_use]
    pub const fn next(&self, at: u32) -> u32 {
        match self {
            Self::Skip { to } => *to,
            _ => at + 1,
        }
    }
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirewallRule {
    /// Its action.
    pub action: Action,
    /// The line of the file that it comes from, counted from 1; 0 for rules that come from no file.
    pub line: u32,
    /// It matches where one of these does.
    pub(super) parts: Vec<Conjunction>,
}

/// An ordered list of rules and what becomes of packets that none decides about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    pub(super) rules: Vec<FirewallRule>,
    pub(super) default: Verdict,
    /// The limits that [`Action::Limit`] names.
    pub(super) limits: Vec<Limit>,
    pub(super) notes: Vec<Note>,
}

/// A part of a file that is not among the rules, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The first line that it is about, from 1.
    pub line: u32,
    /// The last one.
    pub last: u32,
    /// Number of rules of the file that it is about.
    pub rules: u32,
    /// The remark itself.
    pub text: String,
}

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, last, rules, text } = self;
        match (rules, line == last) {
            (1, _) => write!(f, "the rule of line {line} is left out: {text}"),
            _ => write!(f, "{rules} rules of lines {line} to {last} are left out: {text}"),
        }
    }
}

impl RuleSet {
    /// Conjunctive rules that a rule set may come down to.
    pub const MAX_PARTS: usize = 1 << 18;

    /// The rules in their order.
    #[must_use]
    pub fn rules(&self) -> &[FirewallRule] {
        &self.rules
    }

    /// The verdict about packets that no rule decides about.
    #[inline]
    #[must_use]
    pub const fn default_verdict(&self) -> Verdict {
        self.default
    }

    /// The parts of the file that are not among the rules, in the order of its lines.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.notes
    }

    /// The action of a rule.
    #[inline]
    #[must_use]
    pub fn action(&self, index: u32) -> Option<&Action> {
        self.rules.get(index as usize).map(|rule| &rule.action)
    }

    /// The fields that the rules read of packets beyond their flow key.
    #[must_use]
    pub fn reads(&self) -> Reads {
        let mut reads = Reads::default();
        self.rules.iter().flat_map(|rule| &rule.parts).for_each(|part| reads.add(part.reads()));
        reads
    }

    /// Returns true if the rules ask for more than a fragment says of its datagram by itself: protocols (IPv6
    /// extension headers may hide one in a later fragment), ports, flags, lengths, states.
    #[must_use]
    pub fn reads_whole_datagrams(&self) -> bool {
        !self.rules.iter().flat_map(|rule| &rule.parts).all(Conjunction::holds_by_fragment)
    }

    /// Conjunctive rules: prefixes, port ranges and sets one by one, as a classifier holds them.
    #[must_use]
    pub fn parts(&self) -> usize {
        self.rules.iter().map(|rule| rule.parts.len()).sum()
    }
}
