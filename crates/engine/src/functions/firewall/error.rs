//! Everything that is wrong with a file, not only the first thing.

use std::fmt;
use std::path::PathBuf;

use crate::rules::RuleError;

/// Errors after which nobody reads on.
pub(crate) const MAX_ERRORS: usize = 20;

/// What is wrong with a text of rules or routes: at least one error, at most twenty, in the order of the text.
///
/// Its `Display` gives for each the file (where there is one), line and column, the line with carets under the error, and a
/// hint where there is one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct RuleSetErrors {
    /// The file that the text is from.
    pub path: Option<PathBuf>,
    /// The errors.
    pub errors: Vec<RuleError>,
    /// Whether there are more.
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
            if let Some(path) = &self.path {
                write!(f, "{}:{}:{}: ", path.display(), error.line, error.column)?;
            }
            write!(f, "{error}")?;
        }
        if self.more { write!(f, "\nand more after these {}", self.errors.len()) } else { Ok(()) }
    }
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

    /// Whether further errors would only be counted.
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
