//! Requests to a running pipeline: one JSON object a line, which says in `do` what is to be done.
//!
//! ```
//! use slipstream::operate::Request;
//!
//! let line = r#"{"do": "list", "stage": "nat", "table": "sessions", "where": {"inside": "10.0.0.5"}}"#;
//! let Ok(Request::List(all)) = Request::parse(line.as_bytes()) else { panic!("a list") };
//! assert_eq!((all.stage.as_str(), all.table.as_str(), all.limit), ("nat", "sessions", 100));
//! assert!(all.matches(&serde_json::json!({ "inside": "10.0.0.5", "inside_port": 5000 })));
//! let why = Request::parse(br#"{"do": "lits"}"#).unwrap_err().to_string();
//! assert!(why.contains("did you mean `list`?"), "{why}");
//! ```

use serde::Deserialize;
use serde_json::{Map, Value};
use slipstream_core::settings::did_you_mean;

/// Bytes of a request at most, its line end left out.
pub const LONGEST_LINE: usize = 16 * 1024;
/// Rows of an answer at most.
pub const MOST_ROWS: u32 = 1000;

/// Entries of a stage's table.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Selection {
    /// The stage.
    pub stage: String,
    /// Its table.
    pub table: String,
    /// First row wanted, as the answer before said.
    #[serde(default)]
    pub from: u64,
    /// Rows at most, 1 to [`MOST_ROWS`].
    #[serde(default = "usual_limit")]
    pub limit: u32,
    /// Only entries that have these values.
    #[serde(default, rename = "where")]
    pub only: Map<String, Value>,
}

const fn usual_limit() -> u32 {
    100
}

impl Selection {
    /// Returns true if an entry is among those that are meant. A value is that of a field if both are written
    /// alike.
    #[must_use]
    pub fn matches(&self, entry: &Value) -> bool {
        self.only.iter().all(|(name, wanted)| match entry.get(name) {
            Some(value) => value == wanted || written(value) == written(wanted),
            None => false,
        })
    }
}

fn written(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Is anybody there?
    Ping,
    /// Counters of each stage: packets, batches, trains, time.
    Show,
    /// Everything that is counted, as `run --format json` has it at the end.
    Report,
    /// Packets and bytes by rule, of a stage that has rules.
    Rules(String),
    /// The tables that there are.
    Tables,
    /// Entries of a table, a page of them.
    List(Selection),
    /// Takes entries out of a table.
    Delete(Selection),
    /// Has a stage do what its type alone knows.
    Act {
        /// The action's name.
        action: String,
        /// The stage.
        stage: String,
        /// To what.
        on: String,
    },
    /// Reads the configuration anew.
    Reload,
    /// Saves the state now.
    Save,
}

/// The reason why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(String);

/// Names of all requests; the last three are actions of a balancer.
const WORDS: [&str; 12] =
    ["ping", "show", "report", "rules", "tables", "list", "delete", "reload", "save", "drain", "down", "up"];

impl Request {
    /// Reads a line, without its end.
    ///
    /// # Errors
    /// It is longer than [`LONGEST_LINE`], no JSON object, or asks for nothing that there is: why.
    pub fn parse(line: &[u8]) -> Result<Self, RequestError> {
        let wrong = |why: String| RequestError(why);
        if line.len() > LONGEST_LINE {
            return Err(wrong(format!("a request has {LONGEST_LINE} bytes at most")));
        }
        let mut fields: Map<String, Value> = serde_json::from_slice(line)
            .map_err(|e| wrong(format!("a request is a JSON object, as in {{\"do\": \"show\"}}: {e}")))?;
        let word = match fields.remove("do") {
            Some(Value::String(word)) => word,
            _ => return Err(wrong("a request says in `do` what is to be done".to_owned())),
        };
        let request = match word.as_str() {
            "ping" => Self::Ping,
            "show" => Self::Show,
            "report" => Self::Report,
            "tables" => Self::Tables,
            "reload" => Self::Reload,
            "save" => Self::Save,
            "rules" => Self::Rules(text(&mut fields, "stage")?),
            "list" | "delete" => {
                let selection: Selection = serde_json::from_value(Value::Object(std::mem::take(&mut fields)))
                    .map_err(|e| wrong(format!("{word}: {e}")))?;
                if !(1..=MOST_ROWS).contains(&selection.limit) {
                    return Err(wrong(format!("{word}: `limit` is 1 to {MOST_ROWS}")));
                }
                if word == "list" { Self::List(selection) } else { Self::Delete(selection) }
            }
            "drain" | "down" | "up" => {
                let (stage, on) = (text(&mut fields, "stage")?, text(&mut fields, "on")?);
                Self::Act { action: word.clone(), stage, on }
            }
            _ => {
                let hint = did_you_mean(&word, WORDS.iter().copied());
                return Err(wrong(format!("`{word}` is nothing that can be done; {hint}")));
            }
        };
        match fields.keys().next() {
            Some(other) => Err(wrong(format!("{word}: `{other}` has no meaning here"))),
            None => Ok(request),
        }
    }
}

fn text(fields: &mut Map<String, Value>, name: &str) -> Result<String, RequestError> {
    match fields.remove(name) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(RequestError(format!("`{name}` is missing, or no text"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_word_is_a_request() {
        for word in WORDS {
            let line = match word {
                "rules" => format!(r#"{{"do":"{word}","stage":"fw"}}"#),
                "list" | "delete" => {
                    format!(r#"{{"do":"{word}","stage":"n","table":"t","limit":5,"where":{{}}}}"#)
                }
                "drain" | "down" | "up" => format!(r#"{{"do":"{word}","stage":"lb","on":"10.1.0.1"}}"#),
                _ => format!(r#"{{"do":"{word}"}}"#),
            };
            assert!(Request::parse(line.as_bytes()).is_ok(), "{line}");
            let more = line.replace("{\"do\"", "{\"loud\":true,\"do\"");
            assert!(Request::parse(more.as_bytes()).is_err(), "{more}");
        }
    }

    #[test]
    fn what_is_wrong_is_told() {
        let cases = [
            ("", "JSON object"),
            ("[]", "JSON object"),
            ("{}", "`do`"),
            (r#"{"do":"sing"}"#, "nothing that can be done"),
            (r#"{"do":"rules"}"#, "`stage`"),
            (r#"{"do":"list","stage":"n","table":"t","limit":0}"#, "`limit`"),
            (r#"{"do":"list","stage":"n","table":"t","limit":1001}"#, "`limit`"),
            (r#"{"do":"list","stage":"n","table":"t","from":-1}"#, "list"),
            (r#"{"do":"delete","stage":"n"}"#, "table"),
        ];
        for (line, part) in cases {
            let why = Request::parse(line.as_bytes()).unwrap_err().to_string();
            assert!(why.contains(part), "{line}: {why}");
        }
        assert!(Request::parse(&vec![b' '; LONGEST_LINE + 1]).is_err());
    }

    proptest! {
        #[test]
        fn any_line_is_read(line in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Request::parse(&line);
        }
    }
}
