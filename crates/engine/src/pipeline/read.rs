//! Reads a configuration's document: the graph, and the tables of settings, each thing with its place.

use slipstream_core::settings::Literal;
use std::collections::BTreeMap;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use super::contexts::PIPELINE_SETTINGS;
use super::diagnostics::{Finding, Span};
use super::syntax::{self, Chain};
use slipstream_core::registry::Registry;
use slipstream_core::rules::RuleError;
use slipstream_core::settings::did_you_mean;
use slipstream_core::text_file;
use slipstream_io::capture::CaptureReader;

/// A stage's settings as written in its table.
pub(super) struct Table {
    pub(super) span: Span,
    pub(super) kind: Option<(String, Span)>,
    pub(super) settings: Vec<Written>,
    pub(super) used: bool,
}

/// A setting as written.
#[derive(Clone)]
pub(super) struct Written {
    pub(super) key: String,
    pub(super) value: Literal,
    pub(super) key_span: Span,
    pub(super) value_span: Span,
    /// Place of the text in the configuration, if byte n of it stands at byte n behind the start of the
    /// value's span (+ 1 for the quote).
    pub(super) raw: Option<usize>,
}

/// The graph as written.
pub(super) struct Graph {
    pub(super) chains: Vec<Chain>,
    /// Place of byte 0 of the graph's text in the configuration; none if text and file differ by escapes.
    pub(super) at: Option<usize>,
    pub(super) span: Span,
}

impl Graph {
    pub(super) fn span(&self, (at, len): (usize, usize)) -> Span {
        match self.at {
            Some(start) => start + at..start + at + len,
            None => self.span.clone(),
        }
    }
}

/// The graph, the tables of settings by the names of their stages, and the settings of the pipeline itself.
pub(super) fn read_document(
    document: &DeTable<'_>,
    text: &str,
    registry: &Registry,
    findings: &mut Vec<Finding>,
) -> (Option<Graph>, BTreeMap<String, Table>, Vec<Written>) {
    let mut whole = Vec::new();
    let mut tables = BTreeMap::new();
    let mut graph = None;
    let mut has_graph = false;
    for (key, value) in document {
        let span = value.span();
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("graph", DeValue::String(content)) => {
                has_graph = true;
                graph = read_graph(content, &span, text, findings);
            }
            ("graph", _) => {
                has_graph = true;
                findings
                    .push(Finding::new(&span, "`graph` is a text").hint("graph = \"in -> reframe -> out\""));
            }
            ("stage", DeValue::Table(stages)) => tables = read_stages(stages, text, findings),
            ("stage", _) => findings.push(Finding::new(&span, "`stage` is a table").hint("[stage.NAME]")),
            (name, value) if PIPELINE_SETTINGS.iter().any(|setting| setting.name == name) => {
                whole.extend(read_setting(name, key.span(), span, value, text, findings));
            }
            (other, _) => findings.push(unknown_key(other, key.span(), registry)),
        }
    }
    if !has_graph && findings.is_empty() {
        findings.push(Finding::new(&(0..1), "there is no `graph`").hint("graph = \"in -> reframe -> out\""));
    }
    (graph, tables, whole)
}

/// Tells that a word is no key of a configuration.
fn unknown_key(key: &str, span: Span, registry: &Registry) -> Finding {
    let hint = if registry.get(key).is_some() {
        format!("settings of a stage go into [stage.{key}]")
    } else {
        let settings = PIPELINE_SETTINGS.iter().map(|setting| setting.name);
        did_you_mean(key, ["graph", "stage"].into_iter().chain(settings))
    };
    Finding::new(&span, format!("`{key}` is not known here")).hint(hint)
}

/// The text of a configuration; an error is of the whole file, not of a place in it.
pub(super) fn text_of(path: &Path) -> Result<String, Box<RuleError>> {
    let failed = |what: String| Box::new(RuleError::elsewhere(what));
    let bytes = text_file::bytes(path, text_file::MAX_BYTES + 1)
        .map_err(|error| failed(format!("can't be read: {error}")))?;
    // Some captures are UTF-8.
    let capture = || bytes.starts_with(&[0x0a, 0x0d, 0x0d, 0x0a]) || std::str::from_utf8(&bytes).is_err();
    if capture() && CaptureReader::open(path).is_ok() {
        let error = RuleError::elsewhere("a capture, not a configuration");
        return Err(Box::new(
            error.hint("name it behind `-i`, and a configuration or a graph (`-e`) beside it"),
        ));
    }
    if bytes.len() as u64 > text_file::MAX_BYTES {
        return Err(failed(format!("it has more than {} MiB", text_file::MAX_BYTES >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let byte = error.utf8_error().valid_up_to();
        failed(format!("no text: byte {byte}, counted from 0, is not UTF-8"))
    })
}

pub(super) fn read_graph(
    content: &str,
    span: &Span,
    text: &str,
    findings: &mut Vec<Finding>,
) -> Option<Graph> {
    let raw = text.get(span.clone()).unwrap_or_default();
    let quotes = if raw.starts_with("\"\"\"") || raw.starts_with("'''") { 3 } else { 1 };
    // A line break right behind three quotes does not belong to the text.
    let skipped = raw.get(quotes..).unwrap_or_default();
    let line =
        skipped.len() - skipped.strip_prefix("\r\n").or(skipped.strip_prefix('\n')).unwrap_or(skipped).len();
    let start = span.start + quotes + if quotes == 3 { line } else { 0 };
    let same = text.get(start..start + content.len()) == Some(content);
    let at = same.then_some(start);
    match syntax::parse(content) {
        Ok(chains) => Some(Graph { chains, at, span: span.clone() }),
        Err(errors) => {
            for error in errors {
                let span = at.map_or(span.clone(), |at| at + error.offset..at + error.offset + 1);
                findings.push(Finding::new(&span, error.message).hinted(error.hint));
            }
            None
        }
    }
}

/// The tables of stages, by the names of these.
fn read_stages(stages: &DeTable<'_>, text: &str, findings: &mut Vec<Finding>) -> BTreeMap<String, Table> {
    let mut tables = BTreeMap::new();
    for (name, table) in stages {
        let stage = name.get_ref();
        if let DeValue::Table(settings) = table.get_ref() {
            tables.insert(stage.to_string(), read_table(settings, name.span(), text, findings));
        } else {
            let finding = Finding::new(&table.span(), format!("stage `{stage}` is a table"));
            findings.push(finding.hint(format!("[stage.{stage}]")));
        }
    }
    tables
}

fn read_table(table: &DeTable<'_>, span: Span, text: &str, findings: &mut Vec<Finding>) -> Table {
    let mut read = Table { span, kind: None, settings: Vec::new(), used: false };
    for (key, value) in table {
        let (name, value_span) = (key.get_ref().as_ref(), value.span());
        if name == "type" {
            match value.get_ref() {
                DeValue::String(kind) => read.kind = Some((kind.to_string(), value_span)),
                _ => findings.push(Finding::new(&value_span, "`type` is a text").hint("type = \"reframe\"")),
            }
            continue;
        }
        read.settings.extend(read_setting(name, key.span(), value_span, value.get_ref(), text, findings));
    }
    read
}

/// A setting; none where it can't have such a value.
fn read_setting(
    name: &str,
    key_span: Span,
    value_span: Span,
    value: &DeValue<'_>,
    text: &str,
    findings: &mut Vec<Finding>,
) -> Option<Written> {
    let Some(literal) = literal(value) else {
        let finding = Finding::new(&value_span, format!("`{name}` can't have such a value"));
        findings.push(finding.hint("write a text, a number, true or false, or a list of these"));
        return None;
    };
    let raw = match &literal {
        Literal::Text(t) if text.get(value_span.start + 1..value_span.start + 1 + t.len()) == Some(t) => {
            Some(1)
        }
        _ => None,
    };
    Some(Written { key: name.to_owned(), value: literal, key_span, value_span, raw })
}

pub(super) fn literal(value: &DeValue<'_>) -> Option<Literal> {
    Some(match value {
        DeValue::String(text) => Literal::Text(text.to_string()),
        DeValue::Integer(n) if n.radix() == 10 => Literal::Text(unsigned(n.as_str())),
        DeValue::Integer(n) => Literal::Text(u64::from_str_radix(n.as_str(), n.radix()).ok()?.to_string()),
        DeValue::Float(n) => Literal::Text(unsigned(n.as_str())),
        DeValue::Boolean(b) => Literal::Text(b.to_string()),
        DeValue::Array(all) => {
            Literal::List(all.iter().map(|v| literal(v.get_ref())).collect::<Option<_>>()?)
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}

/// A number without the plus that TOML allows before it, and numbers with units don't have.
fn unsigned(number: &str) -> String {
    number.strip_prefix('+').unwrap_or(number).to_owned()
}
