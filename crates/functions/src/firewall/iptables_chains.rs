//! One chain of iptables and those that it calls, as one list of rules.

use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroU32;

use super::conjunction::Conjunction;
use super::expand::{TooMany, product};
use super::iptables::{Chain, Reader, Rule, too_many};
use super::iptables_match::Target;
use super::rules::{Action, FirewallRule, RuleSet, Verdict};
use crate::text::{Errors, short};
use slipstream_core::rules::RuleError;

/// Chains that may call one another in a row.
const MAX_DEPTH: usize = 32;

/// Calls of chains, each of which puts a chain in the place of a rule.
const MAX_CALLS: usize = 1 << 15;

impl Reader<'_> {
    /// Finds the chains that packets come to from the one that is asked for. What is wrong in them is an
    /// error; what is in others is noted, and so is what is left out.
    pub(super) fn settle(&mut self, errors: &mut Errors) {
        let (mut used, mut next) = (BTreeSet::new(), vec![self.how.chain.to_owned()]);
        while let Some(name) = next.pop() {
            let Some(chain) = self.chains.get(&name).filter(|_| !used.contains(&name)) else { continue };
            let rules = chain.lines.iter().filter_map(|line| line.rule.as_ref().ok());
            next.extend(rules.filter_map(|rule| match &rule.target {
                Target::Jump(name) | Target::Goto(name) => Some(name.clone()),
                _ => None,
            }));
            used.insert(name);
        }
        let mut notes = Vec::new();
        for (name, chain) in &mut self.chains {
            if !used.contains(name) {
                let text = format!("packets don't come to the chain `{}`", short(name));
                notes.extend(chain.lines.iter().map(|line| (line.number, text.clone())));
                continue;
            }
            chain.lines.retain(|line| match &line.rule {
                Err(refusal) if refusal.unsupported && self.how.leave_out_unsupported => {
                    notes.push((line.number, refusal.error.message.clone()));
                    false
                }
                Err(refusal) => {
                    errors.push(refusal.error.clone());
                    true
                }
                Ok(_) => true,
            });
        }
        notes.into_iter().for_each(|(line, text)| self.note(line, text));
        self.notes.sort_by_key(|note| note.line);
    }

    /// The rules of one chain and those that it calls.
    pub(super) fn flatten(&self) -> Result<RuleSet, RuleError> {
        let name = self.how.chain;
        let here = |message: String| RuleError::new(self.text, self.filter.unwrap_or(0), 7, message);
        let with_policy = || {
            let names: Vec<&str> =
                self.chains.iter().filter(|(_, c)| c.policy.is_some()).map(|(n, _)| n.as_str()).collect();
            format!(
                "chains with a policy are {}",
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            )
        };
        let Some(chain) = self.chains.get(name) else {
            return Err(here(format!("there is no chain `{}`", short(name))).hint(with_policy()));
        };
        let Some(policy) = chain.policy else {
            return Err(here(format!("the chain `{}` has no policy", short(name))).hint(with_policy()));
        };
        let family = Conjunction { six: Some(self.six.unwrap_or(false)), ..Conjunction::default() };
        let mut flat = Flat {
            reader: self,
            policy,
            rules: Vec::new(),
            parts: 0,
            calls: 0,
            ends: HashMap::new(),
            labels: 0,
        };
        flat.chain(chain, &[family], None, &mut vec![name])?;
        Ok(RuleSet {
            rules: flat.finish(),
            default: policy,
            limits: self.limits.clone(),
            notes: self.notes.clone(),
        })
    }
}

/// A chain while the chains that it calls are put in their place.
struct Flat<'a, 'b> {
    reader: &'a Reader<'b>,
    policy: Verdict,
    /// Skips lead to labels until all is laid out.
    rules: Vec<FirewallRule>,
    parts: usize,
    calls: usize,
    /// The rule behind each label.
    ends: HashMap<u32, u32>,
    labels: u32,
}

impl<'a> Flat<'a, '_> {
    /// Adds the rules of a chain for the packets that come to it. `end` is the label of where `RETURN` leads;
    /// without one it is the policy.
    fn chain(
        &mut self,
        chain: &'a Chain,
        coming: &[Conjunction],
        end: Option<u32>,
        calls: &mut Vec<&'a str>,
    ) -> Result<(), RuleError> {
        for line in &chain.lines {
            let Ok(rule) = &line.rule else { continue };
            let mut parts = self.both(coming, &rule.parts, rule)?;
            let mut limited = None;
            if let Some((limit, behind)) = &rule.limit {
                let to = self.label();
                self.add(line.number, rule, Action::Limit { limit: *limit, to }, parts.clone())?;
                parts = self.both(&parts, behind, rule)?;
                limited = Some(to);
            }
            self.target(line.number, rule, parts, end, calls)?;
            if let Some(label) = limited {
                self.ends.insert(label, self.next());
            }
        }
        Ok(())
    }

    /// Adds what a rule does with packets of these parts.
    fn target(
        &mut self,
        line: u32,
        rule: &'a Rule,
        parts: Vec<Conjunction>,
        end: Option<u32>,
        calls: &mut Vec<&'a str>,
    ) -> Result<(), RuleError> {
        let back = end.map_or(Action::Decide(self.policy), |to| Action::Skip { to });
        match &rule.target {
            Target::Decide(verdict) => self.add(line, rule, Action::Decide(*verdict), parts),
            Target::Count => self.add(line, rule, Action::Count, parts),
            Target::Log => self.add(line, rule, Action::Log { one_in: NonZeroU32::MIN }, parts),
            Target::Return => self.add(line, rule, back, parts),
            Target::Jump(name) => {
                let label = self.label();
                self.call(rule, name, &parts, Some(label), calls)?;
                self.ends.insert(label, self.next());
                Ok(())
            }
            Target::Goto(name) => {
                self.call(rule, name, &parts, end, calls)?;
                self.add(line, rule, back, parts)
            }
        }
    }

    /// A place that skips lead to, which is said later.
    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels - 1
    }

    /// The conjunctions that hold if both hold.
    fn both(
        &self,
        coming: &[Conjunction],
        parts: &[Conjunction],
        rule: &Rule,
    ) -> Result<Vec<Conjunction>, RuleError> {
        let both = [Ok(coming.to_vec()), Ok(parts.to_vec())];
        product(both.into_iter()).map_err(|TooMany| too_many(self.reader.text, &rule.at))
    }

    fn call(
        &mut self,
        rule: &'a Rule,
        name: &'a str,
        parts: &[Conjunction],
        end: Option<u32>,
        calls: &mut Vec<&'a str>,
    ) -> Result<(), RuleError> {
        let text = self.reader.text;
        let Some((name, chain)) = self.reader.chains.get_key_value(name) else {
            return Err(self.reader.no_chain(&rule.at));
        };
        if calls.contains(&name.as_str()) {
            return Err(rule.at.error(text, format!("the chain `{}` calls itself", short(name))));
        }
        if calls.len() >= MAX_DEPTH {
            return Err(rule
                .at
                .error(text, format!("more than {MAX_DEPTH} chains call one another in a row")));
        }
        self.calls += 1;
        if self.calls > MAX_CALLS {
            let message = format!("chains are called more than {MAX_CALLS} times in all");
            return Err(rule
                .at
                .error(text, message)
                .hint("each call counts as often as its own chain is called"));
        }
        calls.push(name);
        self.chain(chain, parts, end, calls)?;
        calls.pop();
        Ok(())
    }

    fn next(&self) -> u32 {
        u32::try_from(self.rules.len()).unwrap_or(u32::MAX)
    }

    fn add(
        &mut self,
        line: u32,
        rule: &Rule,
        action: Action,
        parts: Vec<Conjunction>,
    ) -> Result<(), RuleError> {
        // A chain called twice is there twice, and so on: rules without parts count as well.
        self.parts += parts.len().max(1);
        if self.parts > RuleSet::MAX_PARTS {
            return Err(too_many(self.reader.text, &rule.at));
        }
        self.rules.push(FirewallRule { action, line, parts });
        Ok(())
    }

    /// The rules, skips leading to rules.
    fn finish(mut self) -> Vec<FirewallRule> {
        for rule in &mut self.rules {
            if let Action::Skip { to } | Action::Limit { to, .. } = &mut rule.action {
                *to = self.ends.get(to).copied().unwrap_or(*to);
            }
        }
        self.rules
    }
}
