//! Settings of stages: what kinds there are, how they are written, and their values once checked.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use ipnet::IpNet;

use crate::rules::Rule;
use crate::units::{Bytes, Count, Duration, Rate, share};

mod given;

pub use given::Settings;

/// A value of a setting as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Literal {
    /// A word, number or quoted text.
    Text(String),
    /// `[a, b]`.
    List(Vec<Literal>),
}

/// The kind of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A time, in ns, within a range.
    Time(u64, u64),
    /// This word, or a time in ns within a range.
    TimeOr(&'static str, u64, u64),
    /// A whole number within a range.
    Count(u64, u64),
    /// A size in bytes within a range.
    Bytes(u64, u64),
    /// Packets or bits a second.
    Rate,
    /// A share, 0 to 1.
    Share,
    /// true or false.
    Bool,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// One of these words, each with what it means.
    Words(&'static [(&'static str, &'static str)]),
    /// Packets selected in the rule language.
    Rules,
    /// A file; relative to the file that names it.
    File,
    /// Any text; the words say of what form.
    Text(&'static str),
    /// An address.
    Address,
    /// A prefix.
    Prefix,
    /// Several of a kind.
    List(&'static Kind),
}

/// A setting of a stage type.
///
/// ```
/// use std::path::Path;
///
/// use slipstream_core::settings::{Kind, Setting, Settings};
///
/// const SETTINGS: &[Setting] = &[
///     Setting::new("hold", Kind::Time(0, 4_000_000_000), "Longest wait of any packet").or("64us"),
///     Setting::new("burst", Kind::Count(1, 256), "Packets in a train at most").or("32"),
/// ];
/// let texts = [("hold".to_owned(), "1ms".to_owned())];
/// let settings = Settings::defaults(SETTINGS).read(SETTINGS, &texts, Path::new(""))?;
/// assert_eq!((settings.number("hold"), settings.number("burst")), (1_000_000, 32));
///
/// let wrong = SETTINGS[1].parse("300", Path::new(""));
/// assert_eq!(wrong, Err("300 is out of range; 1 to 256 are possible".to_owned()));
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setting {
    /// Its name, in snake_case.
    pub name: &'static str,
    /// The kind of its values.
    pub kind: Kind,
    /// Its value where nothing is written; none: it must be written, or may be left out (see `required`).
    pub default: Option<&'static str>,
    /// True if it must be written.
    pub required: bool,
    /// Its meaning, in words.
    pub help: &'static str,
}

/// The value of a setting.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of [`Kind::Time`], [`Kind::TimeOr`], [`Kind::Count`] and [`Kind::Bytes`].
    Number(u64),
    /// Of [`Kind::Rate`].
    Rate(Rate),
    /// Of [`Kind::Share`].
    Share(f64),
    /// Of [`Kind::Bool`].
    Bool(bool),
    /// Of [`Kind::Choice`] and [`Kind::Text`], and the word of [`Kind::TimeOr`].
    Text(String),
    /// Of [`Kind::Rules`].
    Rules(Rule),
    /// Of the same, where a file has them: its name, and what it had when it was read.
    RulesIn(PathBuf, Rule),
    /// Of [`Kind::File`].
    File(PathBuf),
    /// Of [`Kind::Address`].
    Address(IpAddr),
    /// Of [`Kind::Prefix`].
    Prefix(IpNet),
    /// Of [`Kind::List`].
    List(Vec<Value>),
}

/// A mistake in a value: the cause, its place (bytes from the start), and a way to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct Wrong {
    /// The fault.
    pub message: String,
    /// The remedy, where one is known.
    pub hint: Option<String>,
    /// Its place, in bytes from the start of the value.
    pub offset: usize,
}

impl fmt::Display for Value {
    /// As the graph's syntax reads it, but for quotes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(n) => write!(f, "{n}"),
            Self::Rate(Rate::Packets(n)) => write!(f, "{n}pps"),
            Self::Rate(Rate::Bits(n)) => write!(f, "{n}bps"),
            Self::Share(share) => write!(f, "{share}"),
            Self::Bool(is) => write!(f, "{is}"),
            Self::Text(text) => f.write_str(text),
            Self::Rules(rule) => write!(f, "{rule}"),
            Self::RulesIn(path, _) => write!(f, "@{}", path.display()),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Address(address) => write!(f, "{address}"),
            Self::Prefix(net) => write!(f, "{net}"),
            Self::List(all) => {
                let all: Vec<String> = all.iter().map(ToString::to_string).collect();
                f.write_str(&all.join(", "))
            }
        }
    }
}

impl Value {
    /// The files that it names.
    fn files(&self, base: &Path) -> Vec<PathBuf> {
        match self {
            Self::File(path) | Self::RulesIn(path, _) => vec![path.clone()],
            Self::List(all) => all.iter().flat_map(|one| one.files(base)).collect(),
            // Rules of a port, `dns: @FILE`, or of a class, `web: @FILE => hold=9s`.
            Self::Text(text) => {
                let file = text.split_once('@').map(|(_, file)| file.split("=>").next().unwrap_or(file));
                file.map(|file| file_at(base, file.trim())).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }
}

impl Wrong {
    fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), hint: None, offset: 0 }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl Setting {
    /// A setting that may be left out and has no value then.
    #[must_use]
    pub const fn new(name: &'static str, kind: Kind, help: &'static str) -> Self {
        Self { name, kind, default: None, required: false, help }
    }

    /// The same setting with this value where nothing is written.
    #[must_use]
    pub const fn or(self, default: &'static str) -> Self {
        Self { default: Some(default), ..self }
    }

    /// The same setting, which must be written.
    #[must_use]
    pub const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    /// The value that a text stands for. Paths are relative to `base`.
    ///
    /// # Errors
    /// The mistake, and what would be right, in words.
    pub fn parse(&self, text: &str, base: &Path) -> Result<Value, String> {
        // An error in a rule shows its place, since nothing else will.
        if self.kind == Kind::Rules && !text.starts_with('@') {
            return Rule::parse(text).map(Value::Rules).map_err(|e| e.to_string());
        }
        self.kind.parse_text(text, base).map_err(|wrong| match wrong.hint {
            Some(hint) => format!("{}; {hint}", wrong.message),
            None => wrong.message,
        })
    }

    /// The value where nothing is written; none where there is none.
    ///
    /// # Errors
    /// The mistake in the default, in words.
    pub fn default_value(&self, base: &Path) -> Result<Option<Value>, String> {
        self.default.map(|text| self.parse(text, base)).transpose()
    }
}

impl Kind {
    /// The values that may be written, in words.
    #[must_use]
    pub fn describe(&self) -> String {
        match self {
            Self::Time(low, high) => format!("time, {}", range(*low, *high, |n| Duration(n).to_string())),
            Self::TimeOr(word, low, high) => format!("{word}, or {}", Self::Time(*low, *high).describe()),
            Self::Count(low, high) => format!("number, {}", range(*low, *high, |n| n.to_string())),
            Self::Bytes(low, high) => format!("size in bytes, {}", range(*low, *high, size)),
            Self::Rate => "rate, as in 1mpps or 2.2gbps".into(),
            Self::Share => "share, 0 to 1".into(),
            Self::Bool => "true or false".into(),
            Self::Choice(words) => words.join(" | "),
            Self::Words(words) => words.iter().map(|w| w.0).collect::<Vec<_>>().join(" | "),
            Self::Rules => "rules".into(),
            Self::File => "file".into(),
            Self::Text(form) => (*form).into(),
            Self::Address => "IP address".into(),
            Self::Prefix => "IP prefix, as in 10.0.0.0/8".into(),
            Self::List(kind) => format!("list of: {}", kind.describe()),
        }
    }

    /// The unit of the number that it stands for, where it has one.
    #[must_use]
    pub fn unit(&self) -> Option<&'static str> {
        match self {
            Self::Time(..) | Self::TimeOr(..) => Some("ns"),
            Self::Bytes(..) => Some("bytes"),
            Self::Rate => Some("packets/s or bits/s"),
            Self::List(kind) => kind.unit(),
            _ => None,
        }
    }

    /// Says that a value is one of this kind, within its range.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        match (self, value) {
            (Self::Time(low, high) | Self::Count(low, high) | Self::Bytes(low, high), Value::Number(n)) => {
                (low..=high).contains(&n)
            }
            (Self::TimeOr(word, ..), Value::Text(text)) => text == word,
            (Self::TimeOr(_, low, high), Value::Number(n)) => (low..=high).contains(&n),
            (Self::Share, Value::Share(share)) => (0.0..=1.0).contains(share),
            (Self::Choice(words), Value::Text(text)) => words.contains(&text.as_str()),
            (Self::Words(words), Value::Text(text)) => words.iter().any(|w| w.0 == text),
            (Self::List(kind), Value::List(all)) => all.iter().all(|one| kind.accepts(one)),
            (Self::Rate, Value::Rate(_))
            | (Self::Bool, Value::Bool(_))
            | (Self::Rules, Value::Rules(_) | Value::RulesIn(..))
            | (Self::File, Value::File(_))
            | (Self::Text(_), Value::Text(_))
            | (Self::Address, Value::Address(_))
            | (Self::Prefix, Value::Prefix(_)) => true,
            _ => false,
        }
    }

    /// The value of what was written. Paths are relative to `base`.
    ///
    /// # Errors
    /// The text is no value of this kind or is out of its range, or a file of rules can't be used.
    pub fn parse(&self, literal: &Literal, base: &Path) -> Result<Value, Wrong> {
        let text = match (self, literal) {
            (Self::List(kind), Literal::List(all)) => {
                return all.iter().map(|l| kind.parse(l, base)).collect::<Result<_, _>>().map(Value::List);
            }
            // One alone is a list of one.
            (Self::List(kind), one) => return kind.parse(one, base).map(|v| Value::List(vec![v])),
            (_, Literal::List(_)) => {
                return Err(
                    Wrong::new("a list is not expected here").hint(format!("write {}", self.describe()))
                );
            }
            (_, Literal::Text(text)) => text.as_str(),
        };
        self.parse_text(text, base)
    }

    fn parse_text(&self, text: &str, base: &Path) -> Result<Value, Wrong> {
        match self {
            Self::Time(low, high) => {
                let ns = text.parse::<Duration>().map_err(Wrong::new)?.0;
                within(ns, *low, *high, |ns| Duration(ns).exact())
            }
            Self::TimeOr(word, ..) if text == *word => Ok(Value::Text(text.to_owned())),
            Self::TimeOr(word, low, high) => {
                Self::Time(*low, *high).parse_text(text, base).map_err(|wrong| {
                    let hint = format!("write {word}, or a time");
                    if wrong.hint.is_some() { wrong } else { wrong.hint(hint) }
                })
            }
            Self::Count(low, high) => {
                let n = text.parse::<Count>().map_err(Wrong::new)?.0;
                within(n, *low, *high, |n| n.to_string())
            }
            Self::Bytes(low, high) => {
                let n = text.parse::<Bytes>().map_err(Wrong::new)?.0;
                within(n, *low, *high, |n| format!("{n} bytes"))
            }
            Self::Rate => text.parse().map(Value::Rate).map_err(Wrong::new),
            Self::Share => share(text).map(Value::Share).map_err(Wrong::new),
            Self::Bool => match text {
                "true" | "on" | "yes" => Ok(Value::Bool(true)),
                "false" | "off" | "no" => Ok(Value::Bool(false)),
                _ => {
                    Err(Wrong::new(format!("{text:?} is neither true nor false")).hint("write true or false"))
                }
            },
            Self::Choice(words) if words.contains(&text) => Ok(Value::Text(text.to_owned())),
            Self::Choice(words) => Err(Wrong::new(format!("{text:?} is not possible here"))
                .hint(did_you_mean(text, words.iter().copied()))),
            Self::Words(words) if words.iter().any(|w| w.0 == text) => Ok(Value::Text(text.to_owned())),
            Self::Words(words) => Err(Wrong::new(format!("{text:?} is not possible here"))
                .hint(did_you_mean(text, words.iter().map(|w| w.0)))),
            Self::Rules => rules(text, base),
            Self::File if text.is_empty() => {
                Err(Wrong::new("the name of a file is empty").hint("name a file, or leave the setting out"))
            }
            Self::File => Ok(Value::File(file_at(base, text))),
            Self::Text(_) => Ok(Value::Text(text.to_owned())),
            Self::Address => text.parse().map(Value::Address).map_err(|_| {
                Wrong::new(format!("{text:?} is not an IP address")).hint("as in 192.0.2.1 or 2001:db8::1")
            }),
            Self::Prefix => prefix(text),
            Self::List(kind) => kind.parse_text(text, base).map(|v| Value::List(vec![v])),
        }
    }
}

/// Rules from their text, or from the file that it names behind an `@`.
fn rules(text: &str, base: &Path) -> Result<Value, Wrong> {
    if let Some(file) = text.strip_prefix('@') {
        let path = file_at(base, file);
        return match Rule::parse_file(&path) {
            Ok(rule) => Ok(Value::RulesIn(path, rule)),
            Err(error) => Err(Wrong::new(error.to_string())),
        };
    }
    Rule::parse(text).map(Value::Rules).map_err(|error| Wrong {
        message: format!("in the rule: {}", error.message),
        hint: error.hint,
        offset: error.offset,
    })
}

/// The file of a name that is relative to `base`; `-` is stdin wherever the name stands.
pub(crate) fn file_at(base: &Path, name: &str) -> PathBuf {
    if name == "-" { name.into() } else { base.join(name) }
}

/// A range in words; beyond half of all numbers there is no end worth telling.
fn range(low: u64, high: u64, show: impl Fn(u64) -> String) -> String {
    if high >= u64::MAX / 2 {
        format!("{} or more", show(low))
    } else {
        format!("{} to {}", show(low), show(high))
    }
}

/// Bytes by the largest binary unit that leaves a whole number.
fn size(bytes: u64) -> String {
    let units = [(30, "GiB"), (20, "MiB"), (10, "KiB")];
    let unit = units.into_iter().find(|(bits, _)| bytes > 0 && bytes.trailing_zeros() >= *bits);
    unit.map_or_else(|| bytes.to_string(), |(bits, unit)| format!("{}{unit}", bytes >> bits))
}

fn within(n: u64, low: u64, high: u64, show: impl Fn(u64) -> String) -> Result<Value, Wrong> {
    if (low..=high).contains(&n) {
        return Ok(Value::Number(n));
    }
    Err(Wrong::new(format!("{} is out of range", show(n))).hint(format!(
        "{} to {} are possible",
        show(low),
        show(high)
    )))
}

fn prefix(text: &str) -> Result<Value, Wrong> {
    let net = match text.parse::<IpNet>() {
        Ok(net) => net,
        Err(_) => match text.parse::<IpAddr>() {
            Ok(address) => IpNet::from(address),
            Err(_) => {
                return Err(
                    Wrong::new(format!("{text:?} is not a prefix")).hint("as in 10.0.0.0/8 or 2001:db8::/32")
                );
            }
        },
    };
    if net != net.trunc() {
        let hint = format!("write {} for the network, or {} for the one address", net.trunc(), net.addr());
        return Err(Wrong::new(format!("{text:?} has bits set behind its length")).hint(hint));
    }
    Ok(Value::Prefix(net))
}

/// A hint: the word that was probably meant, else all that there are.
pub fn did_you_mean<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> String {
    let nearest = known.clone().map(|k| (distance(word, k), k)).min();
    // Any two words of three letters are near one another.
    let most = if word.len() < 4 { 1 } else { 2.max(word.len() / 3) };
    match nearest {
        Some((d, k)) if d <= most && d < k.len() => format!("did you mean `{k}`?"),
        _ => format!("there are {}", known.map(|k| format!("`{k}`")).collect::<Vec<_>>().join(", ")),
    }
}

/// Letters to insert, delete, replace or swap with their neighbour to make one word of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().take(64).collect(), b.chars().take(64).collect());
    let mut before: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    let at = |row: &[usize], i: usize| row.get(i).copied().unwrap_or(usize::MAX / 2);
    for (i, x) in a.iter().enumerate() {
        let mut next = vec![i + 1];
        for (j, y) in b.iter().enumerate() {
            let mut best = (at(&row, j) + usize::from(x != y)).min(at(&row, j + 1) + 1).min(at(&next, j) + 1);
            let swapped = i > 0 && j > 0 && a.get(i - 1) == Some(y) && b.get(j - 1) == Some(x);
            if swapped {
                best = best.min(at(&before, j - 1) + 1);
            }
            next.push(best);
        }
        before = std::mem::replace(&mut row, next);
    }
    at(&row, b.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(kind: Kind, text: &str) -> Result<Value, Wrong> {
        kind.parse(&Literal::Text(text.into()), Path::new("/etc/x"))
    }

    #[test]
    fn values_of_every_kind() {
        assert_eq!(parse(Kind::Time(0, 4_000_000_000), "64us"), Ok(Value::Number(64_000)));
        assert_eq!(parse(Kind::Count(1, 10_000), "8k"), Ok(Value::Number(8000)));
        assert_eq!(parse(Kind::Bytes(0, 1 << 30), "64MiB"), Ok(Value::Number(64 << 20)));
        assert_eq!(parse(Kind::Rate, "1mpps"), Ok(Value::Rate(Rate::Packets(1_000_000))));
        assert_eq!(parse(Kind::Share, "0.25"), Ok(Value::Share(0.25)));
        assert_eq!(parse(Kind::Bool, "on"), Ok(Value::Bool(true)));
        assert_eq!(parse(Kind::File, "a.txt"), Ok(Value::File("/etc/x/a.txt".into())));
        assert_eq!(parse(Kind::File, "/a.txt"), Ok(Value::File("/a.txt".into())));
        assert_eq!(parse(Kind::Address, "::1"), Ok(Value::Address("::1".parse().unwrap())));
        assert_eq!(parse(Kind::Prefix, "10.0.0.0/8"), Ok(Value::Prefix("10.0.0.0/8".parse().unwrap())));
        assert_eq!(parse(Kind::List(&Kind::Bool), "on"), Ok(Value::List(vec![Value::Bool(true)])));
    }

    #[test]
    fn what_is_wrong_is_said_with_what_would_be_right() {
        let hint = |kind, text| parse(kind, text).unwrap_err().hint.unwrap_or_default();
        assert_eq!(hint(Kind::Count(1, 256), "300"), "1 to 256 are possible");
        assert_eq!(hint(Kind::Choice(&["oldest", "waiting"]), "oldset"), "did you mean `oldest`?");
        assert_eq!(hint(Kind::Choice(&["oldest", "waiting"]), "x"), "there are `oldest`, `waiting`");
        assert!(hint(Kind::Prefix, "10.1.0.0/8").contains("10.0.0.0/8"));
        assert_eq!(parse(Kind::Rules, "tcp sny").unwrap_err().offset, 4);
        assert!(parse(Kind::Time(0, 10), "64 parsecs").unwrap_err().message.contains("parsecs"));
        let message = |text| parse(Kind::Time(0, 4_000_000_000), text).unwrap_err().message;
        assert_eq!(message("4000000001ns"), "4000000001ns is out of range");
        assert_eq!(message("5s"), "5s is out of range");
    }

    #[test]
    fn ranges_are_told_as_people_write_them() {
        assert_eq!(Kind::Bytes(1, 3 << 30).describe(), "size in bytes, 1 to 3GiB");
        assert_eq!(Kind::Bytes(1 << 12, 65_535).describe(), "size in bytes, 4KiB to 65535");
        assert_eq!(Kind::Count(0, u64::MAX).describe(), "number, 0 or more");
        assert_eq!(Kind::Time(0, 4_000_000_000).describe(), "time, 0 to 4s");
        let or_auto = || Kind::TimeOr("auto", 0, 1000);
        assert_eq!(or_auto().describe(), "auto, or time, 0 to 1us");
        assert_eq!(parse(or_auto(), "auto"), Ok(Value::Text("auto".into())));
        assert_eq!(parse(or_auto(), "1us"), Ok(Value::Number(1000)));
        assert!(parse(or_auto(), "2us").is_err() && parse(or_auto(), "Auto").is_err());
        assert!(or_auto().accepts(&Value::Text("auto".into())));
        assert!(!or_auto().accepts(&Value::Text("x".into())));
    }

    /// A kind accepts what it reads, and nothing of another kind or beyond its range.
    #[test]
    fn kinds_accept_what_they_read() {
        let kinds = [
            (Kind::Time(1, 10), "5ns"),
            (Kind::Count(1, 10), "5"),
            (Kind::Rate, "1mpps"),
            (Kind::Share, "0.5"),
            (Kind::Bool, "on"),
            (Kind::Choice(&["a"]), "a"),
            (Kind::Words(&[("b", "")]), "b"),
            (Kind::Rules, "tcp"),
            (Kind::File, "x"),
            (Kind::Address, "::1"),
            (Kind::Prefix, "10.0.0.0/8"),
            (Kind::List(&Kind::Count(1, 10)), "5"),
        ];
        for (kind, text) in kinds {
            let value = parse(kind, text).unwrap();
            assert!(kind.accepts(&value), "{kind:?}");
            let others = kinds.iter().filter(|(other, _)| other.accepts(&value)).count();
            // A time and a count are both numbers.
            assert!(others == 1 || matches!(value, Value::Number(_)), "{kind:?}: {others}");
            assert!(!value.to_string().is_empty());
        }
        assert!(!Kind::Count(1, 10).accepts(&Value::Number(11)) && !Kind::Share.accepts(&Value::Share(1.5)));
        assert!(!Kind::List(&Kind::Count(1, 10)).accepts(&Value::List(vec![Value::Number(0)])));
    }

    /// A configuration in another folder may leave rules to stdin, too; nothing is read here, since `-` alone
    /// would be.
    #[test]
    fn stdin_is_in_no_folder() {
        assert_eq!(file_at(Path::new("configs"), "-"), Path::new("-"));
        assert_eq!(file_at(Path::new("configs"), "a-"), Path::new("configs/a-"));
        let text = Value::Text("dns: @- => bypass".into());
        assert_eq!(text.files(Path::new("configs")), [Path::new("-")]);
    }

    #[test]
    fn distances() {
        for (a, b, d) in
            [("", "", 0), ("abc", "abd", 1), ("acb", "abc", 1), ("abc", "", 3), ("kitten", "sitting", 3)]
        {
            assert_eq!((distance(a, b), distance(b, a)), (d, d), "{a} {b}");
        }
    }
}
