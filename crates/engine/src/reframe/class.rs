//! A class as text: `NAME: RULE => hold=TIME, burst=N, weight=N` or `NAME: RULE => bypass`.

use std::path::Path;

use super::config::{Class, Treatment};
use crate::rules::Rule;
use crate::units::Duration;

/// A class that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ClassError(String);

const FORM: &str = "write it as 'NAME: RULE => hold=TIME, burst=N, weight=N' or 'NAME: RULE => bypass'";

impl Class {
    /// A class from its text; what it doesn't set is as in `default`. A rule `@FILE` is read from a file, relative to `base`.
    ///
    /// # Errors
    /// What can't be read, and what would be right.
    pub fn parse(text: &str, default: &Treatment, base: &Path) -> Result<Self, ClassError> {
        let wrong = |what: &str| ClassError(format!("class {text:?} {what}; {FORM}"));
        let (name, rest) = text.split_once(':').ok_or_else(|| wrong("has no name"))?;
        let (selects, settings) = rest.rsplit_once("=>").ok_or_else(|| wrong("has no =>"))?;
        let name = name.trim();
        if name.is_empty() {
            return Err(wrong("has no name"));
        }
        let mut treatment = default.clone();
        for setting in settings.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            set(&mut treatment, setting).map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        }
        let selects = selects.trim();
        let rule = match selects.strip_prefix('@') {
            Some(file) => Rule::parse_file(base.join(file)).map_err(|e| e.to_string()),
            None => Rule::parse(selects).map_err(|e| e.to_string()),
        };
        let rule = rule.map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        Ok(Self { name: name.to_owned(), rule, treatment })
    }
}

fn set(treatment: &mut Treatment, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    let (key, value) = (key.trim(), value.trim());
    let number = |e: std::num::ParseIntError| format!("{key} = {value:?}: {e}");
    match key {
        "bypass" if value.is_empty() => treatment.bypass = true,
        "hold" => {
            treatment.hold_ns = value.parse::<Duration>().map_err(|e| format!("{key} = {value:?}: {e}"))?.0
        }
        "burst" => treatment.burst = value.parse().map_err(number)?,
        "weight" => treatment.weight = value.parse().map_err(number)?,
        _ => {
            return Err(format!("{setting:?} is not a setting; there are hold, burst, weight and bypass"));
        }
    }
    Ok(())
}
