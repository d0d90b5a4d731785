//! A class as text: `NAME: RULE => hold=TIME, burst=N, weight=N` or `NAME: RULE => bypass`.

use std::fmt;
use std::path::Path;

use super::config::{Class, ClassSettings};
use slipstream_core::rules::Rule;
use slipstream_core::units::Duration;

/// A class that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassError(String);

impl fmt::Display for ClassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for ClassError {}

const FORM: &str = "write it as 'NAME: RULE => hold=TIME, burst=N, weight=N' or 'NAME: RULE => bypass'";

impl Class {
    /// A class from its text; what it doesn't set is as in `default`. A rule `@FILE` is read from a file,
    /// relative to `base`.
    ///
    /// # Errors
    /// The text can't be read; the error says what would be right.
    pub fn parse(text: &str, default: &ClassSettings, base: &Path) -> Result<Self, ClassError> {
        let wrong = |what: &str| ClassError(format!("class {text:?} {what}; {FORM}"));
        let (name, rest) = text.split_once(':').ok_or_else(|| wrong("has no name"))?;
        let (selects, list) = rest.rsplit_once("=>").ok_or_else(|| wrong("has no =>"))?;
        let name = name.trim();
        if name.is_empty() {
            return Err(wrong("has no name"));
        }
        let mut settings = default.clone();
        for setting in list.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            set(&mut settings, setting).map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        }
        let selects = selects.trim();
        let rule = match selects.strip_prefix('@') {
            Some(file) => Rule::parse_file(base.join(file)).map_err(|e| e.to_string()),
            None => Rule::parse(selects).map_err(|e| e.to_string()),
        };
        let rule = rule.map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        Ok(Self { name: name.to_owned(), rule, settings })
    }
}

fn set(settings: &mut ClassSettings, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    let (key, value) = (key.trim(), value.trim());
    let number = |e: core::num::ParseIntError| format!("{key} = {value:?}: {e}");
    match key {
        "bypass" if value.is_empty() => settings.bypass = true,
        "hold" => {
            settings.hold_ns = value.parse::<Duration>().map_err(|e| format!("{key} = {value:?}: {e}"))?.0
        }
        "burst" => settings.burst = value.parse().map_err(number)?,
        "weight" => settings.weight = value.parse().map_err(number)?,
        _ => {
            return Err(format!("{setting:?} is not a setting; there are hold, burst, weight and bypass"));
        }
    }
    Ok(())
}
