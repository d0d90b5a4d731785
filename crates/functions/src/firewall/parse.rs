//! Rules in the project's own words: an action and a rule a line.
//!
//! ```text
//! # comments and blank lines
//! allow state established,related      # with a connection tracker
//! deny src 10.66.0.0/16
//! log 1/100 tcp syn                    # one in a hundred; goes on with the next line
//! count udp port 53                    # goes on with the next line
//! reset tcp dst port 25
//! allow tcp dst 192.0.2.0/24 port 80,443
//! default deny
//! ```

use std::num::NonZeroU32;

use super::RuleSetErrors;
use super::conjunction::Conjunction;
use super::expand::{MAX_PARTS, TooMany, expand, product};
use super::fields::ConnState;
use super::rules::{Action, FirewallRule, RuleSet, Verdict};
use crate::text::{Errors, Line, short};
use slipstream_core::rules::names::nearest;
use slipstream_core::rules::{Rule, RuleError};

const ACTIONS: [&str; 6] = ["allow", "deny", "reset", "count", "log", "default"];
const EXAMPLE: &str = "a line is an action and a rule: `allow tcp dst port 443`, `deny any`, `log 1/100 syn`";

impl RuleSet {
    /// Rules from text: `allow`, `deny`, `reset`, `count` or `log 1/N`, and a rule of the project's language,
    /// a line. The first rule that allows, denies or resets decides; `default allow` or `default deny`, once
    /// and anywhere, decides about packets that none did, and is `default deny` where it is missing. `state
    /// new,established` before the rule asks for the state of the connection.
    ///
    /// # Errors
    /// Everything that is wrong, up to twenty errors, each with its place and a hint. Text with neither a
    /// rule nor a default is an error: the file may not be the one that was meant. A rule that would become
    /// more than 4096 conjunctive rules is one, and so are more than [`MAX_PARTS`](Self::MAX_PARTS) in all.
    pub fn parse(text: &str) -> Result<Self, RuleSetErrors> {
        let mut errors = Errors::default();
        let mut set = Self { default: Verdict::Deny, ..Self::default() };
        let (mut parts, mut default_line) = (0, None);
        for (number, line) in (1_u32..).zip(Line::all(text)) {
            let parsed = line.parse(text, number, default_line);
            match parsed {
                Ok(Some(Parsed::Rule(rule))) => {
                    parts += rule.parts.len();
                    set.rules.push(rule);
                    if parts > Self::MAX_PARTS {
                        errors.push(line.too_many(text));
                        break;
                    }
                }
                Ok(Some(Parsed::Default(verdict))) => {
                    set.default = verdict;
                    default_line = Some(number);
                }
                Ok(None) => {}
                Err(error) => errors.push(error),
            }
            if errors.is_full() {
                break;
            }
        }
        if errors.is_empty() && set.rules.is_empty() && default_line.is_none() {
            let error = RuleError::new(text, 0, 1, "there is no rule here, which would deny every packet");
            errors.push(error.hint("write `default deny` if that is meant"));
        }
        errors.finish(set)
    }
}

enum Parsed {
    Rule(FirewallRule),
    Default(Verdict),
}

impl Line<'_> {
    fn too_many(self, text: &str) -> RuleError {
        let most = RuleSet::MAX_PARTS;
        self.error(text, format!("the rules so far come down to more than {most} prefixes and ranges"))
    }

    fn parse(self, text: &str, number: u32, default_line: Option<u32>) -> Result<Option<Parsed>, RuleError> {
        let (word, rest) = self.word();
        let decide = |verdict| Ok((Action::Decide(verdict), rest));
        let (action, rest) = match word.text {
            "" => return Ok(None),
            "allow" => decide(Verdict::Allow),
            "deny" => decide(Verdict::Deny),
            "reset" => decide(Verdict::Reset),
            "count" => Ok((Action::Count, rest)),
            "log" => rest.log(text),
            "default" => return rest.default(text, default_line).map(Parsed::Default).map(Some),
            other => {
                let hint = nearest(other, ACTIONS.into_iter())
                    .or_else(|| foreign(other))
                    .map_or_else(|| EXAMPLE.to_owned(), |n| format!("did you mean `{n}`?"));
                Err(word.error(text, format!("`{}` is no action", short(other))).hint(hint))
            }
        }?;
        let parts = rest.parts(text)?;
        Ok(Some(Parsed::Rule(FirewallRule { action, line: number, parts })))
    }

    /// Parses the words behind `log`: `1/N` or nothing, and then the rule.
    fn log(self, text: &str) -> Result<(Action, Self), RuleError> {
        let (word, rest) = self.word();
        match word.text.split_once('/') {
            Some(("1", n)) => match n.parse() {
                Ok(one_in) => Ok((Action::Log { one_in }, rest)),
                Err(_) => Err(word
                    .error(text, format!("`{}` is no share of packets", short(word.text)))
                    .hint("write `log 1/100` for one packet in a hundred")),
            },
            _ => Ok((Action::Log { one_in: NonZeroU32::MIN }, self)),
        }
    }

    fn default(self, text: &str, before: Option<u32>) -> Result<Verdict, RuleError> {
        let (word, rest) = self.word();
        let verdict = match word.text {
            "allow" => Verdict::Allow,
            "deny" => Verdict::Deny,
            _ => {
                let message = format!("expected `allow` or `deny`, found `{}`", short(word.text));
                return Err(word.error(text, message).hint("write `default deny`"));
            }
        };
        let (more, _) = rest.word();
        if !more.text.is_empty() {
            return Err(more.error(text, format!("unexpected `{}` behind the default", short(more.text))));
        }
        match before {
            Some(line) => Err(self.error(text, format!("line {line} sets the default already"))),
            None => Ok(verdict),
        }
    }

    /// The rule that the line ends with, in parts.
    fn parts(self, text: &str) -> Result<Vec<Conjunction>, RuleError> {
        let (word, rest) = self.word();
        let (states, rule) = match word.text {
            "state" => {
                let (list, rest) = rest.word();
                (Some(list.states(text)?), rest)
            }
            _ => (None, self),
        };
        let body = rule.text.trim();
        if body.is_empty() && states.is_none() {
            let end = RuleError::new(text, rule.offset, 1, "the line ends where a rule is missing");
            return Err(end.hint("write `any` for every packet"));
        }
        let expanded = if body.is_empty() {
            Ok(vec![Conjunction::default()])
        } else {
            let parsed = Rule::parse(rule.text).map_err(|e| e.within(text, rule.offset))?;
            expand(parsed.expr())
        };
        let parts = expanded.and_then(|parts| match states {
            Some(states) => {
                product([Ok(vec![Conjunction::rest(|r| r.states = states)]), Ok(parts)].into_iter())
            }
            None => Ok(parts),
        });
        parts.map_err(|TooMany| {
            rule.error(text, format!("this rule comes down to more than {MAX_PARTS} prefixes and ranges"))
                .hint("split it: several lines with the same action mean the same")
        })
    }

    /// `new,established`.
    fn states(self, text: &str) -> Result<u8, RuleError> {
        let mut states = 0;
        for name in self.text.split(',') {
            let known = ConnState::NAMES.iter().find(|(n, _)| name.eq_ignore_ascii_case(n));
            let Some((_, state)) = known else {
                let names = ConnState::NAMES.map(|(n, _)| n);
                let hint = nearest(name, names.into_iter()).map_or_else(
                    || format!("states are {}", names.join(", ")),
                    |n| format!("did you mean `{n}`?"),
                );
                let message = format!("`{}` is no state of a connection", short(name));
                return Err(self.error(text, message).hint(hint));
            };
            states |= *state as u8;
        }
        Ok(states)
    }
}

/// The action that another firewall calls by this name.
fn foreign(word: &str) -> Option<&'static str> {
    Some(match word.to_ascii_lowercase().as_str() {
        "accept" | "permit" | "pass" => "allow",
        "drop" | "block" => "deny",
        "reject" => "reset",
        "policy" => "default",
        _ => return None,
    })
}
