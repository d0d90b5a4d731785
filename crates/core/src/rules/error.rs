//! Errors in rules: the cause, the place, and the likely intention.

use alloc::boxed::Box;
use alloc::string::String;
use core::fmt;

/// Bytes of a line that an error message shows on either side of the error.
const EXCERPT: usize = 60;

/// A rule that can't be parsed.
///
/// Its `Display` names line and column (`{:#}` does not: for whoever has named them with the file), shows the
/// line with carets under the error, and ends with a hint where there is one:
///
/// ```
/// let error = slipstream_core::rules::Rule::parse("tcp sny").unwrap_err();
/// assert_eq!(
///     error.to_string(),
///     "line 1, column 5: unknown word `sny`\n  \
///      | tcp sny\n  \
///      |     ^^^\n  \
///      = hint: did you mean `syn`?"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Start of the error, in bytes from the start of the text.
    pub offset: usize,
    /// Its line, from 1; 0 if it is of no place in the text.
    pub line: usize,
    /// Its column, in characters from 1; 0 if it is of no place in the text.
    pub column: usize,
    /// The error, in words.
    pub message: String,
    /// A suggestion: the nearest word, the valid range, the usual spelling.
    pub hint: Option<String>,
    excerpt: Box<Excerpt>,
}

/// The part of a line around an error.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Excerpt {
    text: String,
    /// Column of the first caret, and the number of carets, in characters.
    caret: usize,
    width: usize,
}

impl RuleError {
    /// An error about `len` bytes at `offset` of `text`.
    pub fn new(text: &str, offset: usize, len: usize, message: impl Into<String>) -> Self {
        let offset = text.floor_char_boundary(offset);
        let (before, after) = text.split_at_checked(offset).unwrap_or((text, ""));
        let line = before.matches('\n').count() + 1;
        let left = before.rsplit('\n').next().unwrap_or("");
        let right = after.split('\n').next().unwrap_or("").trim_end_matches('\r');
        let shown_left =
            left.get(left.floor_char_boundary(left.len().saturating_sub(EXCERPT))..).unwrap_or("");
        let shown_right = right.get(..right.floor_char_boundary(EXCERPT)).unwrap_or("");
        let width = shown_right.get(..shown_right.floor_char_boundary(len)).unwrap_or("");
        Self {
            offset,
            line,
            column: left.chars().count() + 1,
            message: message.into(),
            hint: None,
            excerpt: Box::new(Excerpt {
                text: shown_left.chars().chain(shown_right.chars()).map(visible).collect(),
                caret: shown_left.chars().count(),
                width: width.chars().count().max(1),
            }),
        }
    }

    /// An error about something that doesn't stand in the text.
    pub fn elsewhere(message: impl Into<String>) -> Self {
        Self { line: 0, column: 0, ..Self::new("", 0, 0, message) }
    }

    /// The same error about a text in which the one that it is about begins at `base`.
    pub fn within(self, text: &str, base: usize) -> Self {
        let error = Self::new(text, base + self.offset, self.excerpt.width, self.message);
        Self { hint: self.hint, ..error }
    }

    /// The same error with a hint.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A character that takes one column and can't move the cursor.
fn visible(c: char) -> char {
    match c {
        '\t' => ' ',
        c if c.is_control() => '\u{fffd}',
        c => c,
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { line, column, message, .. } = self;
        let Excerpt { text, caret, width } = &*self.excerpt;
        if *line > 0 && !f.alternate() {
            write!(f, "line {line}, column {column}: ")?;
        }
        f.write_str(message)?;
        let text = text.trim_end();
        if !text.is_empty() {
            write!(f, "\n  | {text}\n  | {:caret$}{:^^width$}", "", "")?;
        }
        match &self.hint {
            Some(hint) => write!(f, "\n  = hint: {hint}"),
            None => Ok(()),
        }
    }
}

impl core::error::Error for RuleError {}

/// A file of rules that can't be used.
#[cfg(feature = "std")]
#[derive(Debug, thiserror::Error)]
pub enum RuleFileError {
    /// The file can't be read, or isn't UTF-8.
    #[error("can't read the rules in {}: {source}", path.display())]
    Read {
        /// The file.
        path: std::path::PathBuf,
        /// The reason why it can't.
        source: std::io::Error,
    },
    /// The file was read, but isn't a rule.
    #[error("{}: {error}", path.display())]
    Syntax {
        /// The file.
        path: std::path::PathBuf,
        /// The error in it.
        error: RuleError,
    },
}
