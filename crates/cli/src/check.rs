//! `--fail-if`: a key path into the JSON result, a comparison, a number.

use anyhow::{Context, bail};
use serde_json::Value;

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

impl Check {
    /// From its text, before any work is done.
    pub(crate) fn parse(text: &str) -> anyhow::Result<Self> {
        let found = COMPARISONS.iter().filter_map(|(sign, c)| Some((text.find(sign)?, *sign, *c)));
        let Some((at, sign, comparison)) = found.min_by_key(|(at, sign, _)| (*at, 2 - sign.len())) else {
            bail!("--fail-if {text:?}: no comparison in it; write KEY<NUMBER, with <, <=, >, >=, == or !=");
        };
        let (path, rest) = text.split_at_checked(at).unwrap_or_default();
        let number = rest.strip_prefix(sign).unwrap_or_default().trim();
        let number =
            number.parse().with_context(|| format!("--fail-if {text:?}: {number:?} is not a number"))?;
        let path: Vec<String> = path.trim().split('.').map(str::to_owned).collect();
        if path.iter().any(String::is_empty) {
            bail!(
                "--fail-if {text:?}: a key of the JSON result is missing before {sign:?}, as in slf_out<1.5"
            );
        }
        Ok(Self { text: text.to_owned(), path, comparison, number })
    }

    /// Whether it holds for a result.
    fn holds(&self, result: &Value) -> anyhow::Result<bool> {
        let mut at = result;
        for key in &self.path {
            let next = match at {
                Value::Array(list) => key.parse::<usize>().ok().and_then(|i| list.get(i)),
                other => other.get(key),
            };
            let Some(next) = next else {
                bail!("--fail-if {:?}: the result has no {key:?} there", self.text)
            };
            at = next;
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
        for text in ["", "a", "<3", "a<", "a<b", "a..b<3"] {
            assert!(Check::parse(text).is_err(), "{text}");
        }
    }
}
