//! Flags that are settings of a stage: built from the definitions that the pipeline language has them from.

use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use slipstream::pipeline::{Kind, Setting, Settings, Value, stage_type};

/// The settings of a stage that are flags of a verb.
pub(crate) trait Flagged {
    /// Their definitions.
    const SETTINGS: &'static [Setting];
    /// Words that stand for values in the help, where the kind's own word says too little.
    const VALUES: &'static [(&'static str, &'static str)] = &[];
}

/// The values of these settings: those that flags have given, and the defaults of the others.
pub(crate) struct Flags<F> {
    pub(crate) settings: Settings,
    /// The flags that name files with rules, as they were written.
    files: Vec<(String, String)>,
    of: PhantomData<F>,
}

impl<F: Flagged> Flags<F> {
    /// The same values, of rules that are in files those that the files have now.
    ///
    /// # Errors
    /// A file can't be read, or has something wrong in it.
    pub(crate) fn read_anew(&self) -> Result<Settings, String> {
        self.settings.clone().read(F::SETTINGS, &self.files, Path::new(""))
    }
}

impl<F> Clone for Flags<F> {
    fn clone(&self) -> Self {
        Self { settings: self.settings.clone(), files: self.files.clone(), of: PhantomData }
    }
}

impl<F> fmt::Debug for Flags<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings.fmt(f)
    }
}

impl<F: Flagged> Args for Flags<F> {
    fn augment_args(command: Command) -> Command {
        F::SETTINGS.iter().fold(command, |command, setting| command.arg(arg::<F>(setting)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl<F: Flagged> FromArgMatches for Flags<F> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let settings = Settings::defaults(F::SETTINGS);
        let mut flags = Self { settings, files: Vec::new(), of: PhantomData };
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        for setting in F::SETTINGS {
            if matches.value_source(setting.name) != Some(ValueSource::CommandLine) {
                continue;
            }
            let value = match setting.kind {
                Kind::Bool => Some(Value::Bool(matches.get_flag(setting.name))),
                Kind::List(_) => {
                    let all = matches.get_many::<Value>(setting.name).unwrap_or_default();
                    Some(Value::List(all.cloned().collect()))
                }
                _ => matches.get_many::<Value>(setting.name).and_then(Iterator::last).cloned(),
            };
            if let Some(Value::RulesIn(path, _)) = &value {
                self.files.push((setting.name.to_owned(), format!("@{}", path.display())));
            }
            if let Some(value) = value {
                self.settings = std::mem::take(&mut self.settings).with(setting.name, value);
            }
        }
        Ok(())
    }
}

/// The default of a setting of a stage, for a flag of the same meaning whose value is of another type.
pub(crate) fn default_of(kind: &str, name: &str) -> &'static str {
    let setting = stage_type(kind).and_then(|kind| kind.settings.iter().find(|s| s.name == name));
    setting.and_then(|setting| setting.default).unwrap_or_default()
}

/// The number that a setting of a stage makes of a text, within its range, for a flag of the same meaning
/// whose value is of another type.
pub(crate) fn number_of(kind: &str, name: &str, text: &str) -> Result<u64, String> {
    let setting = stage_type(kind).and_then(|kind| kind.settings.iter().find(|s| s.name == name));
    match setting.map(|setting| setting.parse(text, Path::new(""))).transpose()? {
        Some(Value::Number(n)) => Ok(n),
        _ => Err(format!("{text:?} is not a number")),
    }
}

/// The flag of a setting.
fn arg<F: Flagged>(setting: &'static Setting) -> Arg {
    let named =
        F::VALUES.iter().find(|(name, _)| *name == setting.name).map(|(_, value)| (*value).to_owned());
    let arg = Arg::new(setting.name).long(setting.name.replace('_', "-"));
    let arg = arg.value_name(named.unwrap_or_else(|| value_name(setting)));
    let arg = match setting.kind {
        Kind::Bool => return arg.help(setting.help).action(ArgAction::SetTrue),
        Kind::List(_) => arg.action(ArgAction::Append),
        _ => arg.action(ArgAction::Set),
    };
    let arg = arg.help(help(setting));
    let arg = match setting.default {
        Some(default) => arg.default_value(default),
        None => arg,
    };
    match setting.kind {
        Kind::Choice(words) => arg.value_parser(PossibleValuesParser::new(words).map(Value::Text)),
        Kind::Words(words) => {
            let words = words.iter().map(|(word, help)| PossibleValue::new(*word).help(*help));
            arg.value_parser(PossibleValuesParser::new(words).map(Value::Text))
        }
        Kind::List(one) => {
            let one = Setting::new(setting.name, *one, setting.help);
            arg.value_parser(move |text: &str| one.parse(text, Path::new("")))
        }
        _ => arg.value_parser(|text: &str| setting.parse(text, Path::new(""))),
    }
}

/// The word that stands for the value in the help.
fn value_name(setting: &Setting) -> String {
    match setting.kind {
        Kind::Time(..) | Kind::TimeOr(..) => "TIME",
        Kind::Count(..) => "N",
        Kind::Bytes(..) => "BYTES",
        Kind::Rate => "RATE",
        Kind::Share => "SHARE",
        Kind::Rules => "RULES",
        Kind::File => "FILE",
        Kind::Address => "ADDRESS",
        Kind::Prefix => "PREFIX",
        _ => return setting.name.to_uppercase(),
    }
    .to_owned()
}

/// The setting's own text, and what may be written where that doesn't say it.
fn help(setting: &Setting) -> String {
    let help = setting.help;
    match setting.kind {
        Kind::TimeOr(_, low, high) => {
            let all = Kind::Time(low, high).describe();
            format!("{help} ({})", all.split_once(", ").map_or(all.as_str(), |(_, range)| range))
        }
        Kind::Time(..) | Kind::Count(..) | Kind::Bytes(..) => {
            let all = setting.kind.describe();
            // The kind comes before the range, as in "time, 0 to 4s".
            format!("{help} ({})", all.split_once(", ").map_or(all.as_str(), |(_, range)| range))
        }
        Kind::List(Kind::Text(form)) => format!("{help}: {form}. May be given several times"),
        _ => help.to_owned(),
    }
}
