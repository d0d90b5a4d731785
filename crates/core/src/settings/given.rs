//! The values that a stage was given.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use super::{Setting, Value, did_you_mean};
use crate::rules::Rule;
use crate::units::Rate;

/// The settings of one stage, checked; what was not written has its default.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Settings(pub BTreeMap<&'static str, Value>);

impl Settings {
    /// The values that settings have where nothing is written.
    #[must_use]
    pub fn defaults(all: &[Setting]) -> Self {
        let value = |s: &Setting| Some((s.name, s.default_value(Path::new("")).ok().flatten()?));
        Self(all.iter().filter_map(value).collect())
    }

    /// The same with another value for a setting.
    #[must_use]
    pub fn with(mut self, name: &'static str, value: Value) -> Self {
        self.0.insert(name, value);
        self
    }

    /// The same with the values of `texts`, each behind the name of its setting. Paths are relative to
    /// `base`.
    ///
    /// # Errors
    /// The first name that isn't among the definitions, or value that can't be read.
    pub fn read(mut self, all: &[Setting], texts: &[(String, String)], base: &Path) -> Result<Self, String> {
        for (name, text) in texts {
            let known = all.iter().map(|s| s.name);
            let setting = all
                .iter()
                .find(|s| s.name == name)
                .ok_or_else(|| format!("`{name}` is not a setting; {}", did_you_mean(name, known)))?;
            let value = setting.parse(text, base).map_err(|why| format!("{name}: {why}"))?;
            self.0.insert(setting.name, value);
        }
        Ok(self)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        self.0.get(name)
    }

    /// A time in ns, a count, or a size in bytes; 0 where there is none.
    #[must_use]
    pub fn number(&self, name: &str) -> u64 {
        self.optional_number(name).unwrap_or(0)
    }

    /// As [`Settings::number`], where it may be left out.
    #[must_use]
    pub fn optional_number(&self, name: &str) -> Option<u64> {
        match self.get(name) {
            Some(Value::Number(n)) => Some(*n),
            _ => None,
        }
    }

    /// Returns true if it is on.
    #[must_use]
    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some(&Value::Bool(true))
    }

    /// A text or choice; empty where there is none.
    #[must_use]
    pub fn text(&self, name: &str) -> &str {
        match self.get(name) {
            Some(Value::Text(text)) => text,
            _ => "",
        }
    }

    /// Rules; `none` where there are none.
    #[must_use]
    pub fn rules(&self, name: &str) -> Rule {
        match self.get(name) {
            Some(Value::Rules(rule) | Value::RulesIn(_, rule)) => rule.clone(),
            _ => Rule::never(),
        }
    }

    /// The file that rules are from, where they are from one.
    #[must_use]
    pub fn rules_file(&self, name: &str) -> Option<&Path> {
        match self.get(name) {
            Some(Value::RulesIn(path, _)) => Some(path),
            _ => None,
        }
    }

    /// A file, where one is named.
    #[must_use]
    pub fn file(&self, name: &str) -> Option<&Path> {
        match self.get(name) {
            Some(Value::File(path)) => Some(path),
            _ => None,
        }
    }

    /// The files that values name, each with its setting: also those of rules, be they within a text, as in
    /// `dns: @FILE`. Such a text is relative to `base`; stdin is no file.
    pub fn files(&self, base: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
        let of = |(name, value): (&&'static str, &Value)| {
            let files = value.files(base).into_iter().filter(|path| path.as_os_str() != "-");
            files.map(|path| (*name, path)).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of)
    }

    /// A rate, where there is one.
    #[must_use]
    pub fn rate(&self, name: &str) -> Option<Rate> {
        match self.get(name) {
            Some(Value::Rate(rate)) => Some(*rate),
            _ => None,
        }
    }

    /// A share of 1, where there is one.
    #[must_use]
    pub fn share(&self, name: &str) -> Option<f64> {
        match self.get(name) {
            Some(Value::Share(share)) => Some(*share),
            _ => None,
        }
    }

    /// An address, where there is one.
    #[must_use]
    pub fn address(&self, name: &str) -> Option<IpAddr> {
        match self.get(name) {
            Some(Value::Address(address)) => Some(*address),
            _ => None,
        }
    }

    /// The values of a list.
    #[must_use]
    pub fn list(&self, name: &str) -> &[Value] {
        match self.get(name) {
            Some(Value::List(all)) => all,
            _ => &[],
        }
    }

    /// A prefix, where there is one.
    #[must_use]
    pub fn prefix(&self, name: &str) -> Option<IpNet> {
        match self.get(name) {
            Some(Value::Prefix(net)) => Some(*net),
            _ => None,
        }
    }

    /// The prefixes of a list.
    pub fn prefixes(&self, name: &str) -> impl Iterator<Item = IpNet> {
        self.list(name).iter().filter_map(|v| match v {
            Value::Prefix(net) => Some(*net),
            _ => None,
        })
    }

    /// The texts of a list.
    pub fn texts(&self, name: &str) -> impl Iterator<Item = &str> {
        self.list(name).iter().filter_map(|v| match v {
            Value::Text(text) => Some(text.as_str()),
            _ => None,
        })
    }
}
