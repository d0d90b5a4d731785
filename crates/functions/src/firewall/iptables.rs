//! Rules as `iptables-save` and `ip6tables-save` print them: one chain of the filter table, the chains that
//! it calls put in its place.
//!
//! Chains that packets don't come to from that one, and the other tables, are left out, whatever they ask; a
//! note says so. What iptables asks of packets that can't be told here (marks, owners, routes) is an error in
//! a chain that is used: a rule without one of its conditions is another rule.

use std::collections::BTreeMap;

use super::RuleSetErrors;
use super::conjunction::Conjunction;
use super::expand::{MAX_PARTS, TooMany, product};
use super::ipset::IpSets;
use super::iptables_match::{Match, Refusal, Target};
use super::limit::Limit;
use super::rules::{Note, RuleSet, Verdict};
use crate::text::{Errors, short};
use slipstream_core::rules::RuleError;
use slipstream_core::rules::names::nearest;

/// Settings for reading a file of `iptables-save`.
#[derive(Clone, Copy, Debug)]
pub struct IptablesOptions<'a> {
    /// The chain of the filter table that decides: one with a policy.
    pub chain: &'a str,
    /// The interface that packets come in by, for `-i`; without it a rule that asks for one is an error.
    pub input: Option<&'a str>,
    /// The interface that packets go out by, for `-o`.
    pub output: Option<&'a str>,
    /// The sets of `-m set`.
    pub sets: Option<&'a IpSets>,
    /// True if a rule that asks for what isn't supported is left out with a note, instead of being an error.
    pub leave_out_unsupported: bool,
}

impl<'a> IptablesOptions<'a> {
    /// For a chain, and nothing else known.
    #[must_use]
    pub const fn new(chain: &'a str) -> Self {
        Self { chain, input: None, output: None, sets: None, leave_out_unsupported: false }
    }
}

/// A word of a line and where it begins, in bytes from the start of the text; quotes and what they escape are
/// resolved.
#[derive(Clone, Debug)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) offset: usize,
    pub(super) len: usize,
}

impl Word {
    pub(super) fn error(&self, text: &str, message: impl Into<String>) -> RuleError {
        RuleError::new(text, self.offset, self.len, message)
    }
}

/// One rule of a chain.
pub(super) struct Line {
    pub(super) number: u32,
    /// Or why it can't be used, which matters only where it would be.
    pub(super) rule: Result<Rule, Refusal>,
}

/// The conditions and the target of a rule.
pub(super) struct Rule {
    pub(super) parts: Vec<Conjunction>,
    /// The number of its limit, and what it asks of packets that the limit lets go on.
    pub(super) limit: Option<(u32, Vec<Conjunction>)>,
    pub(super) target: Target,
    /// The name of the chain that it calls, or its first word.
    pub(super) at: Word,
}

#[derive(Default)]
pub(super) struct Chain {
    /// `None` for chains that users add.
    pub(super) policy: Option<Verdict>,
    pub(super) lines: Vec<Line>,
}

impl RuleSet {
    /// The rules of a chain of the filter table (`FORWARD`, `INPUT`, `OUTPUT`) as `iptables-save` or
    /// `ip6tables-save` prints them, where nothing is known but the chain; see
    /// [`parse_iptables_with`](Self::parse_iptables_with).
    ///
    /// # Errors
    /// Those of [`parse_iptables_with`](Self::parse_iptables_with).
    pub fn parse_iptables(text: &str, chain: &str) -> Result<Self, RuleSetErrors> {
        Self::parse_iptables_with(text, &IptablesOptions::new(chain))
    }

    /// The rules of a chain of the filter table as `iptables-save` or `ip6tables-save` prints them. Other
    /// tables, and chains that packets don't come to from this one, are passed over; [`notes`](Self::notes)
    /// say so.
    ///
    /// The rules are about one IP version: IPv6 where an address is IPv6 or the header names
    /// `ip6tables-save`, else IPv4. Packets of the other one get the policy. `REJECT` is [`Verdict::Reset`].
    /// They are about whole datagrams, as in Linux where it tracks connections. `LOG` and `NFLOG` log every
    /// packet; a rule without a target counts.
    ///
    /// # Errors
    /// Everything that is wrong or not supported, up to twenty errors, each with its place and a hint; a
    /// table without `COMMIT` at its end; a missing chain; chains that call one another in a circle; rules
    /// that come down to more than [`MAX_PARTS`](Self::MAX_PARTS) conjunctive rules.
    pub fn parse_iptables_with(text: &str, how: &IptablesOptions<'_>) -> Result<Self, RuleSetErrors> {
        let mut errors = Errors::default();
        let mut reader = Reader::new(text, how);
        let mut offset = 0;
        for (number, line) in (1_u32..).zip(text.split_inclusive('\n')) {
            if let Err(error) = reader.line(number, line, offset) {
                errors.push(error);
            }
            offset += line.len();
            if errors.is_full() {
                break;
            }
        }
        if !errors.is_full()
            && let Err(error) = reader.end()
        {
            errors.push(error);
        }
        if reader.filter.is_none() {
            let error = RuleError::new(text, 0, 1, "there is no filter table: no line `*filter`");
            errors.push(error.hint("save it with `iptables-save -t filter`"));
        }
        reader.settle(&mut errors);
        if errors.is_empty() {
            match reader.flatten() {
                Ok(set) => return Ok(set),
                Err(error) => errors.push(error),
            }
        }
        errors.finish(Self::default())
    }
}

pub(super) struct Reader<'a> {
    pub(super) text: &'a str,
    pub(super) how: &'a IptablesOptions<'a>,
    pub(super) chains: BTreeMap<String, Chain>,
    /// True if the rules are about IPv6, once an address or the header has told.
    pub(super) six: Option<bool>,
    /// Line at which the filter table begins.
    pub(super) filter: Option<usize>,
    /// The table that lines belong to; empty in front of the first and behind `COMMIT`.
    table: String,
    pub(super) limits: Vec<Limit>,
    pub(super) notes: Vec<Note>,
}

impl<'a> Reader<'a> {
    const fn new(text: &'a str, how: &'a IptablesOptions<'a>) -> Self {
        Self {
            text,
            how,
            chains: BTreeMap::new(),
            six: None,
            filter: None,
            table: String::new(),
            limits: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn line(&mut self, number: u32, line: &str, offset: usize) -> Result<(), RuleError> {
        let trimmed = line.trim();
        if trimmed.starts_with('#') {
            if trimmed.starts_with("# Generated by ip6tables") {
                self.six = Some(true);
            }
            return Ok(());
        }
        if let Some(table) = trimmed.strip_prefix('*') {
            let open = std::mem::take(&mut self.table);
            if !open.is_empty() {
                let message = format!("the table `{}` is not closed before this one", short(&open));
                let error = RuleError::new(self.text, offset, trimmed.len(), message);
                return Err(error.hint("write `COMMIT` behind its rules"));
            }
            table.clone_into(&mut self.table);
            if table == "filter" {
                self.filter = self.filter.or(Some(offset));
            }
            return Ok(());
        }
        if trimmed.is_empty() {
            return Ok(());
        }
        if trimmed == "COMMIT" && !self.table.is_empty() {
            self.table.clear();
            return Ok(());
        }
        if self.table != "filter" {
            return self.other_table(number, trimmed, offset);
        }
        let mut words = match words(self.text, line, offset) {
            Ok(words) => words,
            Err(error) => return self.keep_broken(number, trimmed, error),
        };
        // Counters, as `iptables-save -c` prints them.
        if words.first().is_some_and(|w| w.text.starts_with('[')) {
            words.remove(0);
        }
        let Some(first) = words.first().cloned() else { return Ok(()) };
        match first.text.as_str() {
            "-A" | "--append" => self.append(number, &words),
            _ if first.text.starts_with(':') => self.declare(&first, words.get(1)),
            other => {
                let message = format!("expected `-A`, found `{}`", short(other));
                Err(first
                    .error(self.text, message)
                    .hint("a line of iptables-save is `:CHAIN POLICY`, `-A CHAIN …` or `COMMIT`"))
            }
        }
    }

    /// Refuses a table that is open at the end: rules may be missing, as `iptables-restore` takes it too.
    fn end(&self) -> Result<(), RuleError> {
        if self.table.is_empty() {
            return Ok(());
        }
        let whole = self.text.trim_end();
        let last = whole.rfind('\n').map_or(0, |at| at + 1);
        let message = format!(
            "`COMMIT` is expected behind this line: the table `{}` is not closed",
            short(&self.table)
        );
        let error = RuleError::new(self.text, last, whole.len() - last, message);
        Err(error.hint("iptables-save ends each table with it: has the file been cut short?"))
    }

    /// Notes the rules of tables that don't filter.
    fn other_table(&mut self, number: u32, trimmed: &str, offset: usize) -> Result<(), RuleError> {
        if self.table.is_empty() {
            let error = RuleError::new(self.text, offset, trimmed.len(), "this line is in no table");
            return Err(error.hint("write `*filter` before the chains, and `COMMIT` behind the last rule"));
        }
        if !trimmed.starts_with(':') {
            let text = format!("the table `{}` is not used", short(&self.table));
            self.note(number, text);
        }
        Ok(())
    }

    /// Counts a rule for the note that says this, or begins it.
    pub(super) fn note(&mut self, line: u32, text: String) {
        match self.notes.iter_mut().find(|note| note.text == text) {
            Some(note) => {
                note.rules += 1;
                note.last = note.last.max(line);
            }
            None => self.notes.push(Note { line, last: line, rules: 1, text }),
        }
    }

    /// Keeps a line that has no words as one of its chain, where that can be told: it may be one that nobody
    /// asks for.
    fn keep_broken(&mut self, number: u32, trimmed: &str, error: RuleError) -> Result<(), RuleError> {
        let mut words = trimmed.split_whitespace().skip_while(|word| word.starts_with('['));
        let chain = match (words.next(), words.next()) {
            (Some("-A" | "--append"), Some(name)) => self.chains.get_mut(name),
            _ => None,
        };
        let Some(chain) = chain else { return Err(error) };
        chain.lines.push(Line { number, rule: Err(error.into()) });
        Ok(())
    }

    fn declare(&mut self, name: &Word, policy: Option<&Word>) -> Result<(), RuleError> {
        let policy = match policy.map(|w| (w, w.text.as_str())) {
            Some((_, "ACCEPT")) => Some(Verdict::Allow),
            Some((_, "DROP")) => Some(Verdict::Deny),
            Some((_, "-")) => None,
            Some((word, other)) => {
                let error = word.error(self.text, format!("`{}` is no policy", short(other)));
                return Err(error.hint("policies are `ACCEPT`, `DROP`, and `-` for chains that have none"));
            }
            None => {
                return Err(name
                    .error(self.text, "the chain has no policy")
                    .hint("write `:FORWARD DROP [0:0]`"));
            }
        };
        let key = name.text.trim_start_matches(':').to_owned();
        let taken = self.chains.insert(key, Chain { policy, lines: Vec::new() });
        if taken.is_some() { Err(name.error(self.text, "this chain is declared twice")) } else { Ok(()) }
    }

    fn append(&mut self, number: u32, words: &[Word]) -> Result<(), RuleError> {
        let [first, name, options @ ..] = words else {
            return Err(RuleError::new(
                self.text,
                words.first().map_or(0, |w| w.offset),
                2,
                "`-A` names no chain",
            ));
        };
        if !self.chains.contains_key(&name.text) {
            return Err(self.no_chain(name));
        }
        let rule = self.rule(first, options);
        if let Some(chain) = self.chains.get_mut(&name.text) {
            chain.lines.push(Line { number, rule });
        }
        Ok(())
    }

    fn rule(&mut self, first: &Word, options: &[Word]) -> Result<Rule, Refusal> {
        let read = Match::read(self.text, options, self.how)?;
        if let Some((six, at)) = read.six {
            if self.six.is_some_and(|before| before != six) {
                let message = "an address of the other IP version than before";
                let error = at.error(self.text, message).hint("iptables and ip6tables have a file each");
                return Err(error.into());
            }
            self.six = Some(six);
        }
        let text = self.text;
        let all = |factors: Vec<Vec<Conjunction>>| {
            product(factors.into_iter().map(Ok)).map_err(|TooMany| too_many(text, first))
        };
        let (mut before, mut after) = (read.first, read.factors);
        let limit = match read.limit {
            Some((at, limit)) => {
                let behind = after.split_off(at.min(after.len()));
                before.append(&mut after);
                let number = u32::try_from(self.limits.len()).unwrap_or(u32::MAX);
                self.limits.push(limit);
                Some((number, all(behind)?))
            }
            None => {
                before.append(&mut after);
                None
            }
        };
        let at = read.target_at.unwrap_or_else(|| first.clone());
        Ok(Rule { parts: all(before)?, limit, target: read.target, at })
    }

    pub(super) fn no_chain(&self, name: &Word) -> RuleError {
        let error = name.error(self.text, format!("there is no chain `{}`", short(&name.text)));
        match nearest(&name.text, self.chains.keys().map(String::as_str)) {
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint(format!("declare it before its rules: `:{} - [0:0]`", short(&name.text))),
        }
    }
}

pub(super) fn too_many(text: &str, at: &Word) -> RuleError {
    at.error(text, format!("with this rule the chain comes down to more than {MAX_PARTS} prefixes and ranges for one rule, or {} in all", RuleSet::MAX_PARTS))
        .hint("split the rule, or call the chain from a rule with fewer conditions")
}

/// The words of a line, quotes resolved.
fn words(text: &str, line: &str, base: usize) -> Result<Vec<Word>, RuleError> {
    let mut words: Vec<Word> = Vec::new();
    let (mut word, mut start, mut quoted, mut escaped) = (String::new(), None, false, false);
    for (at, c) in line.char_indices() {
        let begin = *start.get_or_insert(at);
        match c {
            _ if escaped => {
                word.push(c);
                escaped = false;
            }
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            c if c.is_whitespace() && !quoted => {
                if begin < at {
                    words.push(Word {
                        text: std::mem::take(&mut word),
                        offset: base + begin,
                        len: at - begin,
                    });
                }
                start = None;
            }
            c => word.push(c),
        }
    }
    match start {
        Some(begin) if quoted => Err(RuleError::new(
            text,
            base + begin,
            line.trim_end().len() - begin.min(line.trim_end().len()),
            "this quote is never closed",
        )),
        Some(begin) => {
            words.push(Word { text: word, offset: base + begin, len: line.len() - begin });
            Ok(words)
        }
        None => Ok(words),
    }
}
