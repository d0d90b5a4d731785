//! Settings of the generator as text: `flows=1024,packets=1M,size=60`.

use serde_json::{Map, Value, json};

use super::config::{Profile, SynthConfig};
use slipstream_core::units::Count;

/// Settings that can't be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SettingsError(String);

/// Settings whose values are words, whatever they look like.
const WORDS: [&str; 7] = ["profile", "order", "train", "size", "rate", "arrivals", "protocol"];

/// The settings that campus traffic has.
const OF_CAMPUS: [&str; 6] = ["profile", "copies", "packets", "seed", "start", "snap-len"];

impl SynthConfig {
    /// Settings written as `key=value,key=value`. A value may hold commas where no key follows, as in
    /// `size=64:7,594:4,1518:1`.
    ///
    /// # Errors
    /// The text that can't be read, and a right one.
    pub fn from_text(text: &str) -> Result<Self, SettingsError> {
        let mut settings: Vec<(String, String)> = Vec::new();
        for part in text.split(',').filter(|p| !p.is_empty()) {
            match (part.split_once('='), settings.last_mut()) {
                (Some((key, value)), _) => {
                    settings.push((key.trim().replace('_', "-"), value.trim().to_owned()));
                }
                (None, Some((_, value))) => value.extend([",", part]),
                (None, None) => {
                    return Err(SettingsError(format!(
                        "synth:{text}: {part:?} is not KEY=VALUE, as in synth:flows=1024,packets=1M,size=60"
                    )));
                }
            }
        }
        Self::from_settings(settings).map_err(|e| SettingsError(format!("synth:{text}: {e}")))
    }

    /// Settings by name, as on the command line; numbers are told from words by their look.
    ///
    /// # Errors
    /// The setting that can't be read, that is given twice, or that the profile doesn't have.
    pub fn from_settings(
        settings: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, SettingsError> {
        let mut map = Map::new();
        for (key, value) in settings {
            let value = value_of(&key, value)?;
            if map.contains_key(&key) {
                return Err(SettingsError(format!("{key} is given twice")));
            }
            map.insert(key, value);
        }
        let config: Self =
            serde_json::from_value(map.clone().into()).map_err(|all| SettingsError(blamed(&map, &all)))?;
        let foreign = map.keys().find(|key| !OF_CAMPUS.contains(&key.as_str()));
        if let (Profile::Campus, Some(key)) = (config.profile, foreign) {
            return Err(SettingsError(format!(
                "{key}: campus traffic has no such setting; it has copies, packets, seed, start and snap-len"
            )));
        }
        Ok(config)
    }
}

/// The mistakes in settings that are refused, with the name of the setting: each is tried alone.
fn blamed(map: &Map<String, Value>, all: &serde_json::Error) -> String {
    for (key, value) in map {
        let alone = Map::from_iter([(key.clone(), value.clone())]);
        let Err(error) = serde_json::from_value::<SynthConfig>(alone.into()) else { continue };
        let error = error.to_string();
        // Some errors name the setting themselves.
        let error = error.strip_prefix(&format!("{key}: ")).unwrap_or(&error).to_owned();
        let wanted = error.rsplit_once("expected ").map_or("", |(_, type_name)| type_name);
        let whole = ["u32", "u64"].contains(&wanted);
        return match value {
            // Of a name that there is not, the error says all.
            _ if error.starts_with("unknown field") => error,
            Value::Number(n) if whole && n.is_f64() => format!("{key}: {n} is not a whole number"),
            Value::Number(n) if whole => format!("{key}: {n} is out of range"),
            Value::String(word) if whole || wanted == "f64" => format!("{key}: {word:?} is not a number"),
            _ => format!("{key}: {error}"),
        };
    }
    all.to_string()
}

fn value_of(key: &str, value: String) -> Result<Value, SettingsError> {
    if key == "protocol" && !["udp", "tcp"].contains(&value.as_str()) {
        let share =
            value.strip_prefix("mix:").unwrap_or(&value).parse::<f64>().ok().filter(|n| n.is_finite());
        return match share {
            Some(tcp) => Ok(json!({ "mix": tcp })),
            None => Err(SettingsError(format!(
                "protocol: can't read {value:?}; write udp, tcp, or the share of TCP, 0 to 1"
            ))),
        };
    }
    if WORDS.contains(&key) {
        return Ok(value.into());
    }
    if key == "vlan-ids" {
        let ids = value.split(',').map(str::parse::<u16>).collect::<Result<Vec<_>, _>>();
        return match ids {
            Ok(ids) => Ok(ids.into()),
            Err(_) => Err(SettingsError(format!("vlan-ids: {value:?} is not a list of numbers"))),
        };
    }
    Ok(if let Ok(n) = value.parse::<u64>() {
        n.into()
    } else if let Ok(n) = value.parse::<i64>() {
        n.into()
    } else if let Ok(Count(n)) = value.parse()
        && !value.contains('.')
    {
        n.into()
    } else if let Some(n) = value.parse::<f64>().ok().filter(|n| n.is_finite()) {
        n.into()
    } else if let Ok(b) = value.parse::<bool>() {
        b.into()
    } else {
        value.into()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read_as_people_write_them() {
        let config = SynthConfig::from_text("flows=1k,packets=2M,size=64:7,594:4,slf=1.5,vlan=0.5").unwrap();
        assert_eq!((config.flows, config.packets, config.slf), (1000, 2_000_000, 1.5));
        let campus = "profile=campus,copies=2,packets=10,seed=3,start=5,snap-len=96";
        assert_eq!(SynthConfig::from_text(campus).unwrap().copies, 2);
        for (text, part) in [
            ("flows", "KEY=VALUE"),
            ("flos=3", ": unknown field `flos`, expected one of"),
            ("vlan-ids=a", "list of numbers"),
            ("seed=1,flows=70000000000", ": flows: 70000000000 is out of range"),
            ("flows=-1", ": flows: -1 is out of range"),
            ("packets=2.5", ": packets: 2.5 is not a whole number"),
            ("slf=x", r#": slf: "x" is not a number"#),
            ("slf=inf", r#": slf: "inf" is not a number"#),
            ("zipf=nan", r#": zipf: "nan" is not a number"#),
            ("flows=x", r#": flows: "x" is not a number"#),
            ("order=none", ": order: "),
            ("size=", r#"synth:size=: size: can't read """#),
            ("rate=fast", r#"synth:rate=fast: rate: can't read "fast""#),
            ("protocol=nan", r#": protocol: can't read "nan"; write udp, tcp, or the share of TCP, 0 to 1"#),
            ("protocol=mix", r#": protocol: can't read "mix"; write udp, tcp, or the share of TCP, 0 to 1"#),
            ("tcp-timestamps=1", ": tcp-timestamps: invalid type: integer `1`, expected a boolean"),
            ("lifetime=2.5", ": lifetime: invalid type: floating point `2.5`, expected struct Lifetime"),
            ("flows=1,flows=2", ": flows is given twice"),
            ("profile=campus,flows=10", ": flows: campus traffic has no such setting; it has copies, "),
            ("rate=2mpps,packets=10,profile=campus", ": rate: campus traffic has no such setting"),
            ("profile=campus,slf=1", ": slf: campus traffic has no such setting"),
            ("profile=campus,tcp-timestamps=true", ": tcp-timestamps: campus traffic has no such setting"),
        ] {
            let error = SynthConfig::from_text(text).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}
