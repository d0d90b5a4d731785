//! The common parts of the readers of rules, routes and settings: lines, words, Ethernet addresses, and
//! errors that are collected to the end of the text.

use std::fmt;
use std::path::PathBuf;

use slipstream_core::rules::RuleError;

/// Errors after which nobody reads on.
const MAX_ERRORS: usize = 20;

/// Errors in a text of rules or routes: at least one, at most twenty, in the order of the text.
///
/// Its `Display` gives for each the file (where there is one), line and column, the line with carets under
/// the error, and a hint where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RuleSetErrors {
    /// The file that the text is from.
    pub path: Option<PathBuf>,
    /// The errors.
    pub errors: Vec<RuleError>,
    /// True if there are more.
    pub more: bool,
}

impl RuleSetErrors {
    /// The same errors in a file.
    #[must_use]
    pub fn in_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.path = Some(path.into());
        self
    }
}

impl fmt::Display for RuleSetErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, error) in self.errors.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            match &self.path {
                Some(path) if error.line > 0 => {
                    write!(f, "{}:{}:{}: {error:#}", path.display(), error.line, error.column)?;
                }
                Some(path) => write!(f, "{}: {error}", path.display())?,
                None => write!(f, "{error}")?,
            }
        }
        if self.more { write!(f, "\nand more after these {}", self.errors.len()) } else { Ok(()) }
    }
}

/// An Ethernet address, as in `02:00:00:00:00:01`; hyphens may stand for the colons.
pub(crate) fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split([':', '-']);
    for byte in &mut mac {
        let part = parts.next().filter(|p| matches!(p.len(), 1 | 2))?;
        *byte = part.bytes().all(|b| b.is_ascii_hexdigit()).then(|| u8::from_str_radix(part, 16).ok())??;
    }
    parts.next().is_none().then_some(mac)
}

/// Collects errors while a text is read to its end.
#[derive(Debug, Default)]
pub(crate) struct Errors {
    errors: Vec<RuleError>,
    more: bool,
}

impl Errors {
    /// Adds an error, unless there are enough.
    pub(crate) fn push(&mut self, error: RuleError) {
        if self.errors.len() < MAX_ERRORS {
            self.errors.push(error);
        } else {
            self.more = true;
        }
    }

    /// Returns true if nothing was wrong so far.
    pub(crate) const fn is_empty(&self) -> bool {
        self.errors.is_empty()
    }

    /// Returns true if further errors would only be counted.
    pub(crate) const fn is_full(&self) -> bool {
        self.more
    }

    /// `value`, if nothing was wrong.
    pub(crate) fn finish<T>(mut self, value: T) -> Result<T, RuleSetErrors> {
        if self.errors.is_empty() {
            return Ok(value);
        }
        self.errors.sort_by_key(|e| e.offset);
        Err(RuleSetErrors { path: None, errors: self.errors, more: self.more })
    }
}

/// A line of a text and where it begins, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Line<'a> {
    pub(crate) text: &'a str,
    pub(crate) offset: usize,
}

impl<'a> Line<'a> {
    /// The lines of a text without what follows a `#`.
    pub(crate) fn all(text: &'a str) -> impl Iterator<Item = Self> {
        let mut offset = 0;
        text.split_inclusive('\n').map(move |line| {
            let at = offset;
            offset += line.len();
            Self { text: line.split('#').next().unwrap_or(""), offset: at }
        })
    }

    /// The first word, and the line behind it.
    pub(crate) fn word(self) -> (Self, Self) {
        let start = self.text.len() - self.text.trim_start().len();
        let rest = self.text.get(start..).unwrap_or("");
        let end = start + rest.find(char::is_whitespace).unwrap_or(rest.len());
        let cut = |range: std::ops::Range<usize>| Self {
            offset: self.offset + range.start,
            text: self.text.get(range).unwrap_or(""),
        };
        (cut(start..end), cut(end..self.text.len()))
    }

    pub(crate) fn error(self, text: &str, message: impl Into<String>) -> RuleError {
        RuleError::new(text, self.offset, self.text.trim_end().len(), message)
    }

    /// The line without blanks around it.
    pub(crate) fn trimmed(self) -> Self {
        let start = self.text.len() - self.text.trim_start().len();
        Self { text: self.text.trim(), offset: self.offset + start }
    }
}

/// A word short enough for a message.
pub(crate) fn short(word: &str) -> String {
    match word.char_indices().nth(40) {
        Some((i, _)) => format!("{}…", word.get(..i).unwrap_or("")),
        None => word.to_owned(),
    }
}
