//! The errors of a configuration, with their places and advice.

use std::fmt;
use std::ops::Range;

use slipstream_core::rules::RuleError;

/// The place of a text: bytes of the configuration.
pub(super) type Span = Range<usize>;

/// Mistakes that are told at most. A file that is no configuration at all may have one in every line.
pub(super) const MOST_TOLD: usize = 100;

/// In place of a span: the port that packets come from, where it isn't part of the text.
pub(super) const INPUT: Span = usize::MAX - 1..usize::MAX - 1;

/// In place of a span: the port that packets go to, where it isn't part of the text.
pub(super) const OUTPUT: Span = usize::MAX..usize::MAX;

/// An error: its place, and a suggestion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, or what stands for one: `graph`, or `in` and `out` for the ports at its ends.
    pub file: String,
    /// Line and column, message, the line itself, a hint.
    pub error: RuleError,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.error)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl Diagnostics {
    /// All of them, or the first [`MOST_TOLD`] and a word that there are more; `file` has them.
    pub(super) fn first(all: impl IntoIterator<Item = Diagnostic>, file: &str) -> Self {
        let mut all = all.into_iter();
        let mut told: Vec<Diagnostic> = all.by_ref().take(MOST_TOLD).collect();
        if all.next().is_some() {
            let error = RuleError::elsewhere(format!("there are more mistakes than these {MOST_TOLD}"));
            told.push(Diagnostic { file: file.to_owned(), error: error.hint("mend these first") });
        }
        Self(told)
    }
}

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            write!(f, "{}{diagnostic}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// An error, before its place in the file is known.
pub(crate) struct Finding {
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Finding {
    pub(crate) fn new(span: &Span, message: impl Into<String>) -> Self {
        Self { span: span.clone(), message: message.into(), hint: None }
    }

    pub(crate) fn hinted(mut self, hint: Option<String>) -> Self {
        self.hint = hint.or(self.hint);
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}
