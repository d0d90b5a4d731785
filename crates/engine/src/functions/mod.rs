//! What network functions look up: data structures that know neither frames nor stages.
//!
//! [`lpm`] finds the route that [`routes`] reads from a file, [`firewall`] the rule that decides about a packet.

pub mod firewall;
pub mod lpm;
pub mod routes;
mod text;

use std::path::{Path, PathBuf};

use text::RuleSetErrors;

/// Why a file of rules or routes can't be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It can't be read, or isn't UTF-8.
    #[error("{path}: {source}", path = path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: std::io::Error,
    },
    /// Something in it is wrong.
    #[error(transparent)]
    Text(#[from] RuleSetErrors),
}

/// What `parse` makes of a file, errors naming the file.
fn read<T>(path: &Path, parse: impl FnOnce(&str) -> Result<T, RuleSetErrors>) -> Result<T, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    Ok(parse(&text).map_err(|errors| errors.in_file(path))?)
}
