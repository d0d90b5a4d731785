//! `--fail-if`: a key path into the JSON result, a comparison, a number.

use anyhow::bail;
use serde_json::Value;
use slipstream::stage::DropReason;

use crate::types;

/// A check that the user asked for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Check {
    text: String,
    path: Vec<String>,
    comparison: Comparison,
    number: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
    Equal,
    Unequal,
}

const COMPARISONS: [(&str, Comparison); 6] = [
    ("<=", Comparison::LessOrEqual),
    (">=", Comparison::GreaterOrEqual),
    ("==", Comparison::Equal),
    ("!=", Comparison::Unequal),
    ("<", Comparison::Less),
    (">", Comparison::Greater),
];

const SIGNS: &str = "<, <=, >, >=, == or !=";

/// Objects whose keys are reasons for which packets were dropped: reasons without a drop are left out of
/// them.
const DROPPED: [&str; 2] = ["dropped", "dropped_pps"];

fn is_reason(key: &str) -> bool {
    let registry = types::registry();
    let own = registry.types().iter().flat_map(|t| t.drop_reasons());
    DropReason::GENERAL.into_iter().chain(own).any(|r| r.name() == key)
}

/// The keys of an object, as advice.
fn keys(at: &Value) -> String {
    let all: Vec<&str> = at.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default();
    if all.is_empty() { String::new() } else { format!("; there are: {}", all.join(", ")) }
}

impl Check {
    /// From its text, before any work is done.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let is_sign = |c: char| "<>=!".contains(c);
        let Some(at) = text.find(is_sign) else {
            bail!("--fail-if {text:?}: no comparison in it; write KEY<NUMBER, with {SIGNS}");
        };
        let (path, rest) = text.split_at_checked(at).unwrap_or_default();
        let number = rest.trim_start_matches(is_sign);
        let sign = rest.strip_suffix(number).unwrap_or_default();
        let Some((_, comparison)) = COMPARISONS.iter().find(|(known, _)| *known == sign) else {
            bail!("--fail-if {text:?}: {sign:?} is no comparison; write {SIGNS}");
        };
        let (number, comparison) = (number.trim(), *comparison);
        // No value is above, below or equal to what is not a number.
        let Some(number) = number.parse().ok().filter(|n: &f64| n.is_finite()) else {
            bail!("--fail-if {text:?}: {number:?} is not a number");
        };
        let path: Vec<String> = path.trim().split('.').map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            bail!(
                "--fail-if {text:?}: a key of the JSON result is missing before {sign:?}, as in slf_out<1.5"
            );
        }
        Ok(Self { text: text.to_owned(), path, comparison, number })
    }

    /// Compares the value at the path with the number; false where the value is null.
    fn holds(&self, result: &Value) -> anyhow::Result<bool> {
        let zero = Value::from(0);
        let mut at = result;
        let mut above: Option<&str> = None;
        for key in &self.path {
            let next = match at {
                Value::Array(list) => key.parse::<usize>().ok().and_then(|i| list.get(i)),
                other => other.get(key),
            };
            match next {
                Some(next) => at = next,
                // Reasons are named once something was dropped for them.
                None if above.is_some_and(|k| DROPPED.contains(&k)) && is_reason(key) => at = &zero,
                None => bail!("--fail-if {:?}: the result has no {key:?} there{}", self.text, keys(at)),
            }
            above = Some(key.as_str());
        }
        if at.is_null() {
            return Ok(false);
        }
        let Some(value) = at.as_f64() else { bail!("--fail-if {:?}: this is not a number: {at}", self.text) };
        Ok(match self.comparison {
            Comparison::Less => value < self.number,
            Comparison::LessOrEqual => value <= self.number,
            Comparison::Greater => value > self.number,
            Comparison::GreaterOrEqual => value >= self.number,
            Comparison::Equal => value == self.number,
            Comparison::Unequal => value != self.number,
        })
    }
}

/// All checks of a command line.
pub(crate) fn parse_all(texts: &[String]) -> anyhow::Result<Vec<Check>> {
    texts.iter().map(|t| Check::parse(t)).collect()
}

/// The first check that holds, in words.
pub(crate) fn failed(checks: &[Check], result: &Value) -> anyhow::Result<Option<String>> {
    for check in checks {
        if check.holds(result)? {
            return Ok(Some(format!("the check --fail-if {:?} holds", check.text)));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn paths_comparisons_and_numbers() {
        let result = json!({"a": {"b": [1.5, 2]}, "n": null, "s": "x"});
        let holds = |text: &str| Check::parse(text).unwrap().holds(&result);
        assert!(holds("a.b.0<2").unwrap());
        assert!(!holds("a.b.1 < 2").unwrap());
        assert!(holds("a.b.1<=2").unwrap());
        assert!(holds("a.b.1==2").unwrap());
        assert!(!holds("n<2").unwrap());
        assert!(holds("s<2").is_err());
        assert!(holds("a.c<2").is_err());
        for key in ["dropped.table_full", "stages.0.dropped_pps.denied"] {
            let healthy = json!({"dropped": {}, "stages": [{"dropped_pps": {"no_route": 3}}]});
            let holds = |sign: &str| Check::parse(&format!("{key}{sign}0")).unwrap().holds(&healthy);
            assert!(!holds(">").unwrap() && holds("==").unwrap(), "{key}");
        }
        let unknown = format!("{:#}", holds("a.slf<2").unwrap_err());
        assert!(unknown.contains("there are: b"), "{unknown}");
        assert!(Check::parse("dropped.tabel_full>0").unwrap().holds(&json!({"dropped": {}})).is_err());
        let wrong = Check::parse("ip.slf=<2").unwrap_err().to_string();
        assert!(wrong.contains("\"=<\" is no comparison") && wrong.contains("<="), "{wrong}");
        for text in ["", "a", "<3", "a<", "a<b", "a..b<3", "a<nan", "a!=NaN", "a>inf", "a>-1e999"] {
            assert!(Check::parse(text).is_err(), "{text}");
        }
    }
}
