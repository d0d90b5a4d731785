//! A class as text: `NAME: RULE => hold=TIME, burst=N, weight=N` or `NAME: RULE => bypass`. In place of RULE,
//! `top 20` or `top 1 %` selects the flows with the most packets of late, and `top 1 % of RULE` those with
//! most packets of the rule.

use std::fmt;
use std::path::Path;

use super::config::{Class, ClassSettings, ReframeConfig};
use slipstream_core::heavy::Top;
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

const FORM: &str = "write it as 'NAME: RULE => hold=TIME, burst=N, weight=N' or 'NAME: RULE => bypass', where RULE \
                    may also be 'top 1 %', 'top 20' or 'top 1 % of RULE'";

impl Class {
    /// A class from its text; what it doesn't set is as in `default`. A rule `@FILE` is read from a file,
    /// relative to `base`.
    ///
    /// # Errors
    /// The text can't be read, sets something twice, or sets something beside `bypass`; the error says what
    /// would be right.
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
        contradiction(all.clone()).map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        // The hold comes first, so that its bounds are those of one that sets itself wherever they stand.
        let (holds, others): (Vec<_>, Vec<_>) =
            all.partition(|s| s.split_once('=').is_some_and(|(key, _)| key.trim() == "hold"));
        for setting in holds.into_iter().chain(others) {
            set(&mut settings, setting).map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        }
        let (top, selects) =
            heaviest(selects.trim()).map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        let everything = top.is_some() && selects.is_empty();
        let rule = if everything { Ok(Rule::always()) } else { Rule::parse_or_read(selects, base) };
        let rule = rule.map_err(|e| ClassError(format!("class {name:?}: {e}")))?;
        Ok(Self { name: name.to_owned(), rule, top, settings })
    }
}

/// Returns true if a class, as text, is about heavy flows.
pub(crate) fn is_about_heavy_flows(class: &str) -> bool {
    let selects = class.split_once(':').and_then(|(_, rest)| rest.rsplit_once("=>"));
    selects.is_some_and(|(selects, _)| !matches!(heaviest(selects.trim()), Ok((None, _))))
}

/// The part of a text that is about heavy flows, and the rule behind it: `top 20`, `top 1 %`,
/// `top 1 % of RULE`.
fn heaviest(text: &str) -> Result<(Option<Top>, &str), String> {
    let spaced = |text: &str| text.is_empty() || text.starts_with(char::is_whitespace);
    let Some(rest) = text.strip_prefix("top").filter(|rest| spaced(rest)) else { return Ok((None, text)) };
    let rest = rest.trim_start();
    let wrong = || {
        format!(
            "{text:?} names no heavy flows; write 'top 20' for twenty, 'top 1 %' for a share, or 'top 1 % of RULE'"
        )
    };
    let (number, rest) =
        rest.split_at(rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len()));
    let after = rest.trim_start();
    let (top, rest) = match after.strip_prefix('%') {
        Some(rest) => {
            let share = number.parse::<f64>().map_err(|_| wrong())?;
            let range = || format!("top {number} % is out of range; more than 0 % up to 100 % is possible");
            // The product is above 0 and fits.
            let millionths = Some((share * 1e4).round()).filter(|n| (1.0..=f64::from(Top::ALL)).contains(n));
            (Top::Share(millionths.ok_or_else(range)? as u32), rest)
        }
        None => (Top::Flows(number.parse().ok().filter(|n| *n > 0).ok_or_else(wrong)?), rest),
    };
    let rule = rest.trim_start();
    match rule.strip_prefix("of") {
        _ if rule.is_empty() => Ok((Some(top), "")),
        Some(rule) if rule.starts_with(char::is_whitespace) && !rule.trim().is_empty() => {
            Ok((Some(top), rule.trim()))
        }
        _ => Err(wrong()),
    }
}

/// The setting's name, and its value where it has one.
fn parts(setting: &str) -> (&str, &str) {
    let (key, value) = setting.split_once('=').unwrap_or((setting, ""));
    (key.trim(), value.trim())
}

/// Refuses settings of which one would silently lose against another.
fn contradiction<'a>(all: impl Iterator<Item = &'a str> + Clone) -> Result<(), String> {
    let keys = all.map(|setting| parts(setting).0);
    for (i, key) in keys.clone().enumerate() {
        if keys.clone().take(i).any(|before| before == key) {
            return Err(format!("{key} is set twice; leave one of them out"));
        }
    }
    let bypass = keys.clone().any(|key| key == "bypass");
    match keys.clone().find(|key| *key != "bypass") {
        Some(other) if bypass => Err(format!(
            "packets that bypass the buffer are not held, and {other} says nothing about them; leave out one or \
             the other"
        )),
        _ => Ok(()),
    }
}

fn set(settings: &mut ClassSettings, setting: &str) -> Result<(), String> {
    let (key, value) = parts(setting);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Class, String> {
        let default = ReframeConfig::default().default;
        Class::parse(text, &default, Path::new("")).map_err(|e| e.to_string())
    }

    #[test]
    fn heavy_flows_are_named_by_number_or_share() {
        for (text, top, rule) in [
            ("e: top 1 % => hold=128us", Some(Top::Share(10_000)), "always"),
            ("e:top 0.5% => bypass", Some(Top::Share(5_000)), "always"),
            ("e: top 100 % =>", Some(Top::Share(Top::ALL)), "always"),
            ("e: top 20 => burst=64", Some(Top::Flows(20)), "always"),
            ("e: top 1 % of tcp port 443 => burst=64", Some(Top::Share(10_000)), "tcp port 443"),
            ("e: top 3 of udp => burst=64", Some(Top::Flows(3)), "udp"),
            ("e: tcp port 443 => burst=64", None, "tcp port 443"),
        ] {
            let class = parse(text).unwrap();
            let rule = if rule == "always" { Rule::always() } else { Rule::parse(rule).unwrap() };
            assert_eq!((class.top, class.rule.to_string()), (top, rule.to_string()), "{text}");
            assert_eq!(is_about_heavy_flows(text), top.is_some(), "{text}");
        }
    }

    #[test]
    fn settings_that_contradict_one_another_are_refused() {
        for (text, says) in [
            ("a: udp => hold=0, hold=1ms", "hold is set twice"),
            ("a: udp => hold=1ms, burst=8 , hold = 1ms", "hold is set twice"),
            ("a: udp => burst=8, weight=2, burst=8", "burst is set twice"),
            ("a: udp => hold=auto, hold_max=1ms, hold_max=2ms", "hold_max is set twice"),
            ("a: udp => bypass, bypass", "bypass is set twice"),
            ("a: udp => bypass, hold=1ms", "hold says nothing"),
            ("a: udp => weight=2, bypass", "weight says nothing"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says) && error.contains("\"a\""), "{text}: {error}");
        }
        for text in ["a: udp => bypass", "a: udp => hold=auto, hold_min=1us, hold_max=1ms, burst=8, weight=2"]
        {
            parse(text).unwrap();
        }
    }

    #[test]
    fn what_names_no_heavy_flows_is_told() {
        for (text, says) in [
            ("e: top => hold=1us", "top 1 % of RULE"),
            ("e: top 0 => hold=1us", "top 20"),
            ("e: top 1.5 => hold=1us", "top 20"),
            ("e: top 0 % => hold=1us", "more than 0 %"),
            ("e: top 101 % => hold=1us", "up to 100 %"),
            ("e: top 1..2 % => hold=1us", "top 1 %"),
            ("e: top 1 % tcp => hold=1us", "of RULE"),
            ("e: top 1 % of => hold=1us", "of RULE"),
            ("e: top 1 % often => hold=1us", "of RULE"),
            ("e: top 1 % of nothing => hold=1us", "nothing"),
            ("e: topmost => hold=1us", "topmost"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(says) && error.contains("\"e\""), "{text}: {error}");
        }
    }
}
