//! Plain tables for people.

use std::borrow::Cow;
use std::fmt::Write;

/// Text as it can be shown in one line of a terminal: characters that would move the cursor, colour what follows or turn round
/// the direction of writing stand there as escapes, as in `\u{1b}`. Names come from captures and configurations of others.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    let odd = |c: char| {
        c.is_control()
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(odd) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if odd(c) {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    Cow::Owned(out)
}

/// Rows of a label and values, aligned.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

#[derive(Debug)]
enum Row {
    Title(String),
    Cells(Vec<String>),
}

impl Table {
    /// A heading over the rows that follow.
    pub(crate) fn title(&mut self, text: impl Into<String>) {
        self.rows.push(Row::Title(printable(&text.into()).into_owned()));
    }

    /// A row; the first cell is its label.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells = cells.into_iter().map(|cell| printable(&cell.into()).into_owned());
        self.rows.push(Row::Cells(cells.collect()));
    }

    /// The table as text: labels to the left, values to the right, columns of one heading as wide as they must be.
    pub(crate) fn render(&self) -> String {
        let mut out = String::new();
        let mut rest = self.rows.as_slice();
        while let Some((first, after)) = rest.split_first() {
            if let Row::Title(text) = first {
                let gap = if out.is_empty() { "" } else { "\n" };
                let _ = writeln!(out, "{gap}{text}");
                rest = after;
                continue;
            }
            let n = rest.iter().take_while(|r| matches!(r, Row::Cells(_))).count();
            let (block, after) = rest.split_at(n);
            render_block(block, &mut out);
            rest = after;
        }
        out.truncate(out.trim_end().len());
        out
    }
}

fn render_block(rows: &[Row], out: &mut String) {
    let cells = |row: &Row| match row {
        Row::Cells(cells) => cells.clone(),
        Row::Title(_) => Vec::new(),
    };
    let rows: Vec<Vec<String>> = rows.iter().map(cells).collect();
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| s.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in &rows {
        let mut line = String::from("  ");
        for (c, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let pad = " ".repeat(width - cell.chars().count());
            if c == 0 {
                let _ = write!(line, "{cell}{pad}");
            } else {
                let _ = write!(line, "  {pad}{cell}");
            }
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// A count with thousands apart.
pub(crate) fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, d) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(d);
    }
    out
}

/// A number with `decimals`, or a dash for nothing.
pub(crate) fn number(value: Option<f64>, decimals: usize) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{v:.decimals$}"))
}

/// A share as a percentage.
pub(crate) fn share(value: Option<f64>) -> String {
    value.map_or_else(|| "–".to_owned(), |v| format!("{:.1} %", v * 100.0))
}

/// A time in ns, in the unit that suits it.
pub(crate) fn time(ns: Option<f64>) -> String {
    let Some(ns) = ns else { return "–".to_owned() };
    let (value, unit) = match ns.abs() {
        0.0..1e3 => (ns, "ns"),
        1e3..1e6 => (ns / 1e3, "µs"),
        1e6..1e9 => (ns / 1e6, "ms"),
        _ => (ns / 1e9, "s"),
    };
    let decimals = if unit == "ns" && value.fract() == 0.0 { 0 } else { 1 };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut t = Table::default();
        t.title("Trains");
        t.row(["a", "1", "22"]);
        t.row(["longer", "333", "4"]);
        assert_eq!(t.render(), "Trains\n  a         1  22\n  longer  333   4");
    }

    #[test]
    fn names_of_others_move_no_cursor() {
        let mut t = Table::default();
        t.title("a\u{1b}[2J");
        t.row(["b\r\n\u{9b}1m", "é–\u{202e}"]);
        assert_eq!(t.render(), "a\\u{1b}[2J\n  b\\r\\n\\u{9b}1m  é–\\u{202e}");
        assert!(matches!(printable("24 µs – naïve"), Cow::Borrowed(_)));
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Some(64_000.0)), "64.0 µs");
        assert_eq!(time(None), "–");
        assert_eq!(share(Some(0.5)), "50.0 %");
    }
}
