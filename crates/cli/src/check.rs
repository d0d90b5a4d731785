//! `--fail-if`: a key path into the JSON result, a comparison, a number.

use anyhow::bail;
use serde_json::Value;
use slipstream::stage::DropReason;

use crate::counters::is_loss;
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

/// Objects whose keys are reasons for which packets were dropped, or counters of packets that were lost:
/// those without a packet are left out of them.
const DROPPED: [&str; 3] = ["dropped", "dropped_pps", "lost_pps"];

fn is_reason(key: &str) -> bool {
    let registry = types::registry();
    let own = registry.types().iter().flat_map(|t| t.drop_reasons());
    DropReason::GENERAL.into_iter().chain(own).any(|r| r.name() == key) || is_loss(key)
}

/// The keys of an object, or the numbers of a list's entries, as advice.
fn keys(at: &Value) -> String {
    let all: Vec<&str> = at.as_object().map(|o| o.keys().map(String::as_str).collect()).unwrap_or_default();
    match at.as_array().map(Vec::len) {
        Some(0) => "; the list is empty".to_owned(),
        Some(1) => "; the list has the entry 0 alone".to_owned(),
        Some(entries) => format!("; the list has the entries 0 to {}", entries - 1),
        None if all.is_empty() => String::new(),
        None => format!("; there are: {}", all.join(", ")),
    }
}

/// A value that can't be compared with a number, in words; one with many parts is not shown.
fn kind(at: &Value) -> String {
    match at {
        Value::Object(_) => format!("it has parts; name one of them{}", keys(at)),
        Value::Array(_) => format!("it has entries; name one of them{}", keys(at)),
        other => other.to_string(),
    }
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
        let Some(value) = at.as_f64() else {
            bail!("--fail-if {:?}: this is not a number: {}", self.text, kind(at))
        };
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

/// All checks that hold, in words.
///
/// # Errors
/// One of them can't be made, whatever the others say.
pub(crate) fn failed(checks: &[Check], result: &Value) -> anyhow::Result<Option<String>> {
    let mut held = Vec::new();
    for check in checks {
        if check.holds(result)? {
            held.push(format!("--fail-if {:?}", check.text));
        }
    }
    Ok(match held.as_slice() {
        [] => None,
        [one] => Some(format!("the check {one} holds")),
        several => Some(format!("the checks {} hold", several.join(", "))),
    })
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
        for key in ["dropped.table_full", "stages.0.dropped_pps.denied", "lost_pps.missed"] {
            let healthy =
                json!({"dropped": {}, "lost_pps": {}, "stages": [{"dropped_pps": {"no_route": 3}}]});
            let holds = |sign: &str| Check::parse(&format!("{key}{sign}0")).unwrap().holds(&healthy);
            assert!(!holds(">").unwrap() && holds("==").unwrap(), "{key}");
        }
        let unknown = format!("{:#}", holds("a.slf<2").unwrap_err());
        assert!(unknown.contains("there are: b"), "{unknown}");
        assert!(Check::parse("dropped.tabel_full>0").unwrap().holds(&json!({"dropped": {}})).is_err());
        let wrong = Check::parse("ip.slf=<2").unwrap_err().to_string();
        assert!(wrong.contains("\"=<\" is no comparison") && wrong.contains("<="), "{wrong}");
        let list = format!("{:#}", holds("a.b.2<2").unwrap_err());
        assert!(list.ends_with("no \"2\" there; the list has the entries 0 to 1"), "{list}");
        for (text, advice) in
            [("a<2", "it has parts; name one of them; there are: b"), ("a.b<2", "entries 0 to 1")]
        {
            let whole = format!("{:#}", holds(text).unwrap_err());
            assert!(whole.contains("not a number") && whole.ends_with(advice), "{whole}");
        }
        for text in ["", "a", "<3", "a<", "a<b", "a..b<3", "a<nan", "a!=NaN", "a>inf", "a>-1e999"] {
            assert!(Check::parse(text).is_err(), "{text}");
        }
    }
    #[test]
    fn every_check_is_made() {
        let result = json!({"a": 1, "b": 2});
        let failed = |texts: &[&str]| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            failed(&parse_all(&texts).unwrap(), &result)
        };
        assert_eq!(failed(&["a<1", "b<1"]).unwrap(), None);
        assert_eq!(failed(&["a<1", "b>1"]).unwrap().unwrap(), "the check --fail-if \"b>1\" holds");
        let both = failed(&["a>0", "b>1"]).unwrap().unwrap();
        assert_eq!(both, "the checks --fail-if \"a>0\", --fail-if \"b>1\" hold");
        // One that can't be made is an error behind one that holds, too.
        assert!(failed(&["a>0", "c>1"]).is_err());
    }
}
