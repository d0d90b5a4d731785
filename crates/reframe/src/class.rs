//! A class as text: `NAME: RULE => hold=TIME, burst=N, weight=N` or `NAME: RULE => bypass`.

use std::fmt;
use std::path::Path;

use super::config::{Class, ClassSettings, ReframeConfig};
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
        let all = list.split(',').map(str::trim).filter(|s| !s.is_empty());
        // The hold comes first, so that its bounds are those of one that sets itself wherever they stand.
        let (holds, others): (Vec<_>, Vec<_>) =
            all.partition(|s| s.split_once('=').is_some_and(|(key, _)| key.trim() == "hold"));
        for setting in holds.into_iter().chain(others) {
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
    let time = || value.parse::<Duration>().map(|d| d.0).map_err(|e| format!("{key} = {value:?}: {e}"));
    let number = |e: core::num::ParseIntError| format!("{key} = {value:?}: {e}");
    match key {
        "bypass" if value.is_empty() => settings.bypass = true,
        "hold" if value == "auto" => {
            settings.hold_ns = ReframeConfig::USUAL_MAX_NS;
            settings.hold_min_ns = Some(0);
        }
        "hold" => (settings.hold_ns, settings.hold_min_ns) = (time()?, None),
        "hold_min" | "hold_max" if settings.hold_min_ns.is_none() => {
            return Err(format!("{key} is a bound of hold=auto; set that too, or leave it out"));
        }
        "hold_min" => settings.hold_min_ns = Some(time()?),
        "hold_max" => settings.hold_ns = time()?,
        "burst" => settings.burst = value.parse().map_err(number)?,
        "weight" => settings.weight = value.parse().map_err(number)?,
        _ => {
            return Err(format!(
                "{setting:?} is not a setting; there are hold, hold_min, hold_max, burst, weight and \
                 bypass"
            ));
        }
    }
    Ok(())
}
