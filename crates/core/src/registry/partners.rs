//! Settings that say nothing by themselves: they are refused where the setting is missing that they go with.

use super::{BuildError, StageType};
use crate::settings::{Setting, Settings, Value};

/// Settings that have an effect only where another one is as it has to be.
#[derive(Clone, Copy, Debug)]
pub struct Partner {
    /// The settings.
    pub of: &'static [&'static str],
    /// The condition under which they have an effect.
    pub need: Need,
}

/// A condition on another setting.
#[derive(Clone, Copy, Debug)]
pub enum Need {
    /// The setting has one of these values.
    Is(&'static str, &'static [&'static str]),
    /// The setting has another value than this.
    IsNot(&'static str, &'static str),
    /// One of these settings is given.
    Given(&'static [&'static str]),
    /// The setting is left out.
    Without(&'static str),
}

impl Need {
    fn is_met(&self, settings: &Settings) -> bool {
        let text = |name: &str| settings.0.get(name).map(Value::to_string).unwrap_or_default();
        match self {
            Self::Is(name, values) => values.contains(&text(name).as_str()),
            Self::IsNot(name, value) => text(name) != *value,
            Self::Given(names) => names.iter().any(|name| settings.0.contains_key(name)),
            Self::Without(name) => !settings.0.contains_key(name),
        }
    }

    /// The fault of a setting whose condition isn't met, and the remedy.
    fn fault(&self) -> (String, &'static str) {
        const SET: &str = "set that too, or leave this out";
        match self {
            Self::Is(name, values) => (format!("without {name} = {}", values.join(" or ")), SET),
            Self::IsNot(name, value) => (format!("with {name} = {value}"), "change that, or leave this out"),
            Self::Given(names) => {
                let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
                (format!("without {}", names.join(" or ")), SET)
            }
            Self::Without(name) => (format!("beside `{name}`"), "leave one of them out"),
        }
    }
}

/// An error for each setting that has no effect beside the others. What has its default says nothing anyway,
/// be it written or not.
pub fn lonely(
    partners: &[Partner],
    all: &[Setting],
    settings: &Settings,
) -> impl Iterator<Item = BuildError> {
    let unmet = partners.iter().filter(|partner| !partner.need.is_met(settings));
    let names = unmet.flat_map(|partner| partner.of.iter().map(|name| (*name, partner.need)));
    names.filter(|(name, _)| is_said(all, settings, name)).map(|(name, need)| {
        let (fault, remedy) = need.fault();
        BuildError::setting(name, format!("`{name}` has no effect {fault}")).hint(remedy)
    })
}

/// Returns true if the setting has another value than where nothing is written.
fn is_said(all: &[Setting], settings: &Settings, name: &str) -> bool {
    let Some(value) = settings.0.get(name) else { return false };
    let default = all.iter().find(|setting| setting.name == name).and_then(|setting| {
        let default = setting.default_value(std::path::Path::new(""));
        default.ok().flatten()
    });
    default.as_ref() != Some(value)
}

impl StageType {
    /// The fault of a wire at this output, and the remedy, where the settings let no packet leave by it.
    #[must_use]
    pub fn idle_output(&self, name: &str, settings: &Settings) -> Option<(String, &'static str)> {
        let of = |(output, need): &&(&str, Need)| *output == name && !need.is_met(settings);
        self.properties.output_needs.iter().find(of).map(|(_, need)| need.fault())
    }

    /// An error for each setting that has no effect beside the others.
    pub fn lonely(&self, settings: &Settings) -> impl Iterator<Item = BuildError> {
        lonely(self.properties.partners, self.settings, settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Kind;
    use std::path::Path;

    const ALL: &[Setting] = &[
        Setting::new("mode", Kind::Choice(&["a", "b", "c"]), "").or("a"),
        Setting::new("n", Kind::Count(0, 9), "").or("3"),
        Setting::new("rate", Kind::Count(0, 9), ""),
        Setting::new("flag", Kind::Bool, "").or("false"),
    ];
    const PARTNERS: &[Partner] = &[
        Partner { of: &["n"], need: Need::Is("mode", &["b", "c"]) },
        Partner { of: &["rate"], need: Need::IsNot("n", "0") },
        Partner { of: &["flag"], need: Need::Given(&["rate"]) },
        Partner { of: &["mode"], need: Need::Without("rate") },
    ];

    fn faults(texts: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = texts.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let settings = Settings::defaults(ALL).read(ALL, &texts, Path::new("")).unwrap();
        lonely(PARTNERS, ALL, &settings).map(|error| error.message).collect()
    }

    #[test]
    fn a_setting_without_its_partner_is_told() {
        assert_eq!(faults(&[("n", "4")]), ["`n` has no effect without mode = b or c"]);
        assert_eq!(faults(&[("flag", "true")]), ["`flag` has no effect without `rate`"]);
        assert_eq!(faults(&[("mode", "b"), ("rate", "1")]), ["`mode` has no effect beside `rate`"]);
        let two = faults(&[("n", "0"), ("rate", "1")]);
        assert_eq!(two, ["`n` has no effect without mode = b or c", "`rate` has no effect with n = 0"]);
    }

    #[test]
    fn defaults_and_what_has_its_partner_are_fine() {
        for fine in [
            &[][..],
            &[("n", "3"), ("flag", "no"), ("mode", "a")],
            &[("n", "4"), ("mode", "c")],
            &[("flag", "true"), ("rate", "1")],
        ] {
            assert_eq!(faults(fine), [""; 0], "{fine:?}");
        }
    }
}
