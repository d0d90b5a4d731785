//! `slipstream ctl`, `slipstream reload`: requests to a pipeline that runs with `--control`.

use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use serde_json::{Map, Value, json};
use slipstream_report::{Table, count};
use tracing::warn;

use super::Outcome;
use crate::cli::Format;
use crate::cli::ctl::{Ctl, CtlVerb, Entries, Reach, ReloadArgs};
use crate::operate::control;
use crate::ui;

/// Longest wait for an answer: longer than a pipeline needs to say that it could not do it in time.
const PATIENCE: Duration = Duration::from_secs(15);
/// The same where files are read or written for it.
const WITH_FILES: Duration = Duration::from_secs(60);
/// Entries of a page.
const PAGE: u64 = 1000;
/// Rows of a list that are printed at a time.
const BLOCK: usize = 10_000;
/// Bytes of the longest answer that is read; reports of thousands of stages have some megabytes.
const LONGEST_ANSWER: usize = 256 << 20;

pub(super) fn reload(args: &ReloadArgs) -> anyhow::Result<Outcome> {
    simple(&args.reach, &json!({ "do": "reload" }))
}

pub(super) fn run(args: &Ctl) -> anyhow::Result<Outcome> {
    let simple = |request: Value| simple(&args.reach, &request);
    match &args.verb {
        CtlVerb::Show => simple(json!({ "do": "show" })),
        CtlVerb::Report => simple(json!({ "do": "report" })),
        CtlVerb::Rules { stage } => simple(json!({ "do": "rules", "stage": stage })),
        CtlVerb::Tables => simple(json!({ "do": "tables" })),
        CtlVerb::Drain(b) => simple(json!({ "do": "drain", "stage": b.stage, "on": b.address })),
        CtlVerb::Down(b) => simple(json!({ "do": "down", "stage": b.stage, "on": b.address })),
        CtlVerb::Up(b) => simple(json!({ "do": "up", "stage": b.stage, "on": b.address })),
        CtlVerb::Reload => simple(json!({ "do": "reload" })),
        CtlVerb::Save => simple(json!({ "do": "save" })),
        CtlVerb::Ping => simple(json!({ "do": "ping" })),
        CtlVerb::List(entries) => list(&args.reach, entries),
        CtlVerb::Delete(entries) => delete(&args.reach, entries),
    }
}

/// A connection to the pipeline.
struct Client<'a>(BufReader<UnixStream>, &'a Path);

impl<'a> Client<'a> {
    fn new(path: &'a Path) -> anyhow::Result<Self> {
        control::check_length(path, 0).with_context(|| format!("--control {}", path.display()))?;
        let stream = UnixStream::connect(path).with_context(|| {
            format!(
                "no pipeline answers at {0}: start one with `slipstream run --control {0}`",
                path.display()
            )
        })?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(BufReader::new(stream), path))
    }

    /// The answer to a request.
    ///
    /// # Errors
    /// There is none in time, or it says what is wrong.
    fn ask(&mut self, request: &Value) -> anyhow::Result<Map<String, Value>> {
        let word = request.get("do").and_then(Value::as_str);
        let patience = if let Some("reload" | "save") = word { WITH_FILES } else { PATIENCE };
        let late = |error: io::Error| match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut => {
                let (at, seconds) = (self.1.display(), patience.as_secs());
                anyhow!(
                    "the pipeline at {at} has not answered within {seconds} s; it may be at work on what somebody \
                     else asked for"
                )
            }
            _ => error.into(),
        };
        let mut line = request.to_string();
        line.push('\n');
        self.0.get_mut().write_all(line.as_bytes()).map_err(late)?;
        let answer = self.line(patience, LONGEST_ANSWER).map_err(late)?;
        let answer = answer.with_context(|| {
            format!("what is at {} answers without end: it is no pipeline", self.1.display())
        })?;
        let answer: Value = serde_json::from_slice(&answer).context("the pipeline has gone away")?;
        let ok = answer.get("ok").and_then(Value::as_bool);
        let why = answer.get("error").and_then(Value::as_str).map(str::to_owned);
        match (ok, why, answer) {
            (Some(true), _, Value::Object(fields)) => Ok(fields),
            (_, Some(why), _) => bail!("{why}"),
            _ => bail!("the answer is none of a pipeline"),
        }
    }
}

impl Client<'_> {
    /// A line, which has to come whole within this time; what there is of it where the connection ends, and
    /// none if it is longer than `most` bytes.
    fn line(&mut self, patience: Duration, most: usize) -> io::Result<Option<Vec<u8>>> {
        let until = slipstream::clock::now() + patience;
        let mut line = Vec::new();
        loop {
            let left = until.saturating_duration_since(slipstream::clock::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.0.get_ref().set_read_timeout(Some(left))?;
            let read = match self.0.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read?,
            };
            let (part, ends) = match read.iter().position(|byte| *byte == b'\n') {
                Some(at) => (read.get(..=at).unwrap_or(read), true),
                None => (read, read.is_empty()),
            };
            if line.len() + part.len() > most {
                return Ok(None);
            }
            line.extend_from_slice(part);
            let taken = part.len();
            self.0.consume(taken);
            if ends {
                return Ok(Some(line));
            }
        }
    }
}

fn simple(reach: &Reach, request: &Value) -> anyhow::Result<Outcome> {
    print(reach, &Client::new(&reach.control)?.ask(request)?)
}

fn selection(word: &str, entries: &Entries) -> anyhow::Result<Map<String, Value>> {
    let mut only = Map::new();
    for text in &entries.only {
        let (field, value) = text.split_once('=').with_context(|| format!("--only {text}: FIELD=VALUE"))?;
        if only.insert(field.to_owned(), value.into()).is_some_and(|before: Value| before != value) {
            warn!("--only {field} is given several times: entries of its last value, {value}, are meant");
        }
    }
    let all = json!({ "do": word, "stage": entries.stage, "table": entries.table, "where": only });
    Ok(if let Value::Object(fields) = all { fields } else { Map::new() })
}

/// Lists entries, page by page. A list of millions is printed as it comes, and never whole in memory.
fn list(reach: &Reach, entries: &Entries) -> anyhow::Result<Outcome> {
    let mut client = Client::new(&reach.control)?;
    let mut request = selection("list", entries)?;
    let mut left = if entries.limit == 0 { u64::MAX } else { entries.limit };
    let mut printer = Printer { format: reach.format, rows: Vec::new(), begun: false };
    let next = loop {
        request.insert("limit".to_owned(), left.clamp(1, PAGE).into());
        let mut page = client.ask(&Value::Object(request.clone()))?;
        if let Some(Value::Array(mut more)) = page.remove("rows") {
            more.truncate(usize::try_from(left).unwrap_or(usize::MAX));
            left -= more.len() as u64;
            printer.rows.extend(more);
        }
        let next = page.remove("next").unwrap_or(Value::Null);
        if next.is_null() || left == 0 {
            break next;
        }
        request.insert("from".to_owned(), next);
        if printer.rows.len() >= BLOCK {
            if !ui::write_on(printer.block()?.as_bytes())? {
                return Ok(Outcome::Done);
            }
            // Whoever reads may take longer than the pipeline waits for the next request.
            client = Client::new(&reach.control)?;
        }
    };
    ui::write_out(printer.end(!next.is_null())?.as_bytes())?;
    Ok(Outcome::Done)
}

/// Prints a list in blocks of rows.
struct Printer {
    format: Format,
    /// Rows that are not printed yet.
    rows: Vec<Value>,
    /// Some rows are printed.
    begun: bool,
}

impl Printer {
    /// The rows that there are, behind which others come: as JSON a part of the list, else a table.
    fn block(&mut self) -> anyhow::Result<String> {
        let rows = std::mem::take(&mut self.rows);
        let first = !std::mem::replace(&mut self.begun, true);
        if self.format != Format::Json {
            let mut t = Table::default();
            tabulate(&mut t, "rows", &rows);
            return Ok(t.render(ui::columns()) + "\n\n");
        }
        let mut text = String::new();
        for (n, row) in rows.iter().enumerate() {
            let before = if first && n == 0 { "{\n  \"schema\": 1,\n  \"rows\": [" } else { "," };
            let row = serde_json::to_string_pretty(row)?.replace('\n', "\n    ");
            text.push_str(before);
            text.push_str("\n    ");
            text.push_str(&row);
        }
        Ok(text)
    }

    /// The last rows, and whether the table has more of them.
    fn end(mut self, more: bool) -> anyhow::Result<String> {
        if self.begun && self.format == Format::Json {
            return Ok(format!("{}\n  ],\n  \"more\": {more}\n}}\n", self.block()?));
        }
        let rows = (!self.begun || !self.rows.is_empty()).then(|| ("rows".to_owned(), self.rows.into()));
        let all = rows.into_iter().chain([("more".to_owned(), more.into())]).collect();
        Ok(as_text(self.format, &all)? + "\n")
    }
}

fn delete(reach: &Reach, entries: &Entries) -> anyhow::Result<Outcome> {
    let mut client = Client::new(&reach.control)?;
    let mut request = selection("delete", entries)?;
    request.insert("limit".to_owned(), PAGE.into());
    let mut removed = 0;
    loop {
        let page = client.ask(&Value::Object(request.clone()));
        let mut page = match (page, removed) {
            (Err(why), 1..) => return Err(why.context(format!("{removed} entries were taken out, and then"))),
            (page, _) => page?,
        };
        removed += page.get("removed").and_then(Value::as_u64).unwrap_or(0);
        match page.remove("next") {
            None | Some(Value::Null) => break,
            Some(next) => request.insert("from".to_owned(), next),
        };
    }
    print(reach, &Map::from_iter([("removed".to_owned(), removed.into())]))
}

/// Prints an answer.
fn print(reach: &Reach, answer: &Map<String, Value>) -> anyhow::Result<Outcome> {
    ui::print(as_text(reach.format, answer)?)?;
    Ok(Outcome::Done)
}

/// An answer as JSON, or what is a list of objects in it as a table.
fn as_text(format: Format, answer: &Map<String, Value>) -> anyhow::Result<String> {
    let fields = || answer.iter().filter(|(k, _)| *k != "ok" && *k != "schema");
    if format == Format::Json {
        let mut all = Map::from_iter([("schema".to_owned(), 1.into())]);
        all.extend(fields().map(|(k, v)| (k.clone(), v.clone())));
        return Ok(serde_json::to_string_pretty(&all)?);
    }
    let mut t = Table::default();
    for (name, value) in fields() {
        match value {
            Value::Array(rows) if rows.iter().all(Value::is_object) => tabulate(&mut t, name, rows),
            Value::Object(fields) => nested(&mut t, fields),
            value => t.row([name.replace('_', " "), shown(value)]),
        }
    }
    Ok(t.render(ui::columns()).trim_end().to_owned())
}

/// The fields of an object: values in a row each, lists of objects as tables behind them.
fn nested(t: &mut Table, fields: &Map<String, Value>) {
    for (name, value) in fields {
        match value {
            Value::Array(rows) if !rows.is_empty() && rows.iter().all(Value::is_object) => {}
            Value::Object(inner) if inner.values().all(is_plain) => {
                for (part, value) in inner {
                    t.row([format!("{name} {part}").replace('_', " "), shown(value)]);
                }
            }
            Value::Object(_) => {}
            value => t.row([name.replace('_', " "), shown(value)]),
        }
    }
    for (name, value) in fields {
        if let Value::Array(rows) = value
            && !rows.is_empty()
            && rows.iter().all(Value::is_object)
        {
            tabulate(t, name, rows);
        }
    }
}

/// Says that a value fits a cell.
fn is_plain(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().all(|one| !one.is_object() && !one.is_array()),
        value => !value.is_object(),
    }
}

/// A table with a column for each field that some of the objects have. Objects in them are told by their
/// fields; what has further parts is for JSON.
fn tabulate(t: &mut Table, name: &str, rows: &[Value]) {
    t.title(name.replace('_', " "));
    if rows.is_empty() {
        t.row(["none".to_owned()]);
        return;
    }
    let mut columns: Vec<(&str, Option<&str>)> = Vec::new();
    for (field, value) in rows.iter().filter_map(Value::as_object).flatten() {
        let parts: Vec<_> = match value {
            Value::Object(inner) if inner.values().all(is_plain) => {
                inner.keys().map(|part| (field.as_str(), Some(part.as_str()))).collect()
            }
            value if is_plain(value) => vec![(field.as_str(), None)],
            _ => Vec::new(),
        };
        for part in parts {
            if !columns.contains(&part) {
                columns.push(part);
            }
        }
    }
    // A field that is an object somewhere, and nothing elsewhere.
    let whole = |field: &str| columns.iter().any(|(other, part)| *other == field && part.is_some());
    let columns: Vec<_> =
        columns.iter().filter(|(field, part)| part.is_some() || !whole(field)).copied().collect();
    let head = |(field, part): &(&str, Option<&str>)| part.unwrap_or(field).replace('_', " ");
    t.row(columns.iter().map(head));
    for row in rows {
        t.row(columns.iter().map(|(field, part)| {
            let value = row.get(field);
            let value = match part {
                Some(part) => value.and_then(|value| value.get(part)),
                None => value,
            };
            value.map_or_else(String::new, shown)
        }));
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".to_owned(),
        Value::String(text) => text.clone(),
        Value::Number(n) => match (n.as_u64(), n.as_f64()) {
            (Some(n), _) if n < 100_000 => n.to_string(),
            (Some(n), _) => count(n),
            (_, Some(n)) => format!("{n:.1}"),
            _ => n.to_string(),
        },
        Value::Array(all) => all.iter().map(shown).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> (Client<'static>, UnixStream) {
        let (here, there) = UnixStream::pair().unwrap();
        (Client(BufReader::new(here), Path::new("control")), there)
    }

    /// Whoever goes on sending, a little at a time or as much as is taken, is left in time.
    #[test]
    fn an_answer_without_end_is_not_waited_for() {
        let (mut client, mut there) = client();
        let sender = std::thread::spawn(move || while there.write_all(&[b'x'; 4096]).is_ok() {});
        assert_eq!(client.line(Duration::from_secs(30), 1 << 20).unwrap(), None);
        drop(client);
        sender.join().unwrap();

        let (mut client, mut there) = self::client();
        let sender = std::thread::spawn(move || {
            while there.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let since = slipstream::clock::now();
        let error = client.line(Duration::from_millis(200), 1 << 20).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::TimedOut | ErrorKind::WouldBlock), "{error}");
        assert!(since.elapsed() < Duration::from_secs(10));
        drop(client);
        sender.join().unwrap();
    }

    /// A list that is printed in parts reads as one that is printed at once.
    #[test]
    fn a_long_list_is_printed_in_blocks() {
        let row = |n: u64| json!({ "inside": format!("10.0.0.{n}"), "port": n, "state": null });
        let (mut parts, mut text) =
            (Printer { format: Format::Json, rows: Vec::new(), begun: false }, String::new());
        for block in [0..2, 2..3, 3..3] {
            parts.rows.extend(block.map(row));
            text += &parts.block().unwrap();
        }
        parts.rows.push(row(3));
        text += &parts.end(true).unwrap();
        let whole = Printer { format: Format::Json, rows: (0..4).map(row).collect(), begun: false };
        assert_eq!(text, whole.end(true).unwrap());
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap()["rows"][3]["port"], 3);

        let mut tables = Printer { format: Format::Table, rows: vec![row(100)], begun: false };
        let first = tables.block().unwrap();
        assert_eq!(first, "rows\n  inside      port  state\n  10.0.0.100   100      –\n\n");
        tables.rows.push(row(1));
        assert_eq!(
            tables.end(false).unwrap(),
            "rows\n  inside     port  state\n  10.0.0.1      1      –\n  more      false\n"
        );
    }

    #[test]
    fn answers_are_read_line_by_line() {
        let (mut client, mut there) = client();
        there.write_all(b"{\"ok\":true}\n{}\nrest").unwrap();
        drop(there);
        let mut line = || client.line(Duration::from_secs(30), 12).unwrap();
        assert_eq!(line().unwrap(), b"{\"ok\":true}\n");
        assert_eq!(line().unwrap(), b"{}\n");
        assert_eq!(line().unwrap(), b"rest");
        assert_eq!(line().unwrap(), b"");
    }
}
