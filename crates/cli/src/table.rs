//! Plain tables for people.

use std::fmt::Write;
use std::io::{IsTerminal, stdout};

use ratatui::crossterm::terminal;

/// Width of prose where the result doesn't go to a terminal.
const PROSE: usize = 110;
/// Least width of a column of prose.
const NARROW: usize = 12;

/// Rows of a label and values, aligned.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Row>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Title,
    /// The label to the left, values to the right.
    Figures,
    /// All to the left, wrapped between words.
    Prose,
}

#[derive(Debug)]
struct Row {
    kind: Kind,
    cells: Vec<String>,
}

impl Table {
    fn push(&mut self, kind: Kind, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells = cells.into_iter().map(|c| visible(&c.into())).collect();
        self.rows.push(Row { kind, cells });
    }

    /// A heading over the rows that follow.
    pub(crate) fn title(&mut self, text: impl Into<String>) {
        self.push(Kind::Title, [text]);
    }

    /// A row; the first cell is its label.
    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.push(Kind::Figures, cells);
    }

    /// A row of words.
    pub(crate) fn prose(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.push(Kind::Prose, cells);
    }

    /// The table as text, as wide as the terminal, if it goes to one.
    pub(crate) fn render(&self) -> String {
        let width = terminal::size().ok().filter(|_| stdout().is_terminal());
        self.render_for(width.map(|(columns, _)| usize::from(columns)))
    }

    /// The table as text for a terminal of so many columns; columns of one heading as wide as they must be.
    fn render_for(&self, terminal: Option<usize>) -> String {
        let mut out = String::new();
        for block in self.rows.chunk_by(|a, b| a.kind == b.kind && a.kind != Kind::Title) {
            match block {
                [Row { kind: Kind::Title, cells }] => {
                    let gap = if out.is_empty() { "" } else { "\n" };
                    let _ = writeln!(out, "{gap}{}", cells.concat());
                }
                [Row { kind: Kind::Prose, .. }, ..] => prose(block, terminal.unwrap_or(PROSE), &mut out),
                _ => figures(block, terminal, &mut out),
            }
        }
        out.truncate(out.trim_end().len());
        out
    }
}

/// The width of each column.
fn widths(rows: &[Row]) -> Vec<usize> {
    let columns = rows.iter().map(|r| r.cells.len()).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.cells.get(c)).map(|s| s.chars().count()).max();
    (0..columns).map(|c| width(c).unwrap_or(0)).collect()
}

/// Rows of figures. Where a terminal would break lines anywhere, a label that is too long for it gets a line
/// of its own.
fn figures(rows: &[Row], terminal: Option<usize>, out: &mut String) {
    let mut widths = widths(rows);
    let full = |widths: &[usize]| widths.iter().map(|w| w + 2).sum::<usize>();
    let label = widths.first().copied().unwrap_or(0);
    let most = terminal.map_or(label, |t| label.min((t + label).saturating_sub(full(&widths)).max(NARROW)));
    if let Some(first) = widths.first_mut() {
        *first = most;
    }
    for row in rows {
        let mut line = String::from("  ");
        for (c, (cell, width)) in row.cells.iter().zip(&widths).enumerate() {
            let len = cell.chars().count();
            let pad = " ".repeat(width.saturating_sub(len));
            if c > 0 {
                let _ = write!(line, "  {pad}{cell}");
            } else if len > *width && row.cells.len() > 1 {
                let _ = write!(line, "{cell}\n  {}", " ".repeat(*width));
            } else {
                let _ = write!(line, "{cell}{pad}");
            }
        }
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

/// Rows of words, in lines of at most `terminal` columns where words allow it.
fn prose(rows: &[Row], terminal: usize, out: &mut String) {
    let mut widths = widths(rows);
    // The widest columns give way.
    while widths.iter().map(|w| w + 2).sum::<usize>() > terminal.max(NARROW)
        && let Some(widest) = widths.iter_mut().max().filter(|w| **w > NARROW)
    {
        *widest -= 1;
    }
    for row in rows {
        let cells: Vec<Vec<String>> = row.cells.iter().zip(&widths).map(|(c, w)| wrapped(c, *w)).collect();
        let lines = cells.iter().map(Vec::len).max().unwrap_or(0);
        for n in 0..lines {
            let mut line = String::new();
            for (cell, width) in cells.iter().zip(&widths) {
                let text = cell.get(n).map_or("", String::as_str);
                let _ = write!(line, "  {text:<width$}");
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}

/// A text in lines of at most `width` characters, where no word is longer.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// A text without characters that would do something to a terminal or that a page can't have: each becomes
/// U+FFFD.
pub(crate) fn visible(text: &str) -> String {
    let bad = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    text.chars().map(|c| if bad(c) { '\u{fffd}' } else { c }).collect()
}

/// A count and its noun.
pub(crate) fn plural(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", count(n), if n == 1 { "" } else { "s" })
}

/// A value in the unit of a thousand that suits it, four digits of it.
fn scaled(value: f64, unit: &str) -> String {
    let (value, prefix) = match value.abs() {
        v if v >= 1e9 => (value / 1e9, "G"),
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let decimals = match value.abs() {
        0.0 => 0,
        v if v >= 100.0 => 1,
        v if v >= 10.0 => 2,
        _ => 3,
    };
    format!("{value:.decimals$} {prefix}{unit}")
}

/// Packets and bytes in so many ns as rates.
pub(crate) fn rates(packets: u64, bytes: u64, ns: u64) -> String {
    if ns == 0 {
        return "–".into();
    }
    [packet_rate(packets, ns), bit_rate(bytes, ns)].join(", ")
}

/// Packets in so many ns as a rate.
pub(crate) fn packet_rate(packets: u64, ns: u64) -> String {
    scaled(packets as f64 / (ns as f64 / 1e9), "pps")
}

/// Bytes in so many ns as a rate of bits.
pub(crate) fn bit_rate(bytes: u64, ns: u64) -> String {
    scaled(bytes as f64 * 8.0 / (ns as f64 / 1e9), "bit/s")
}

/// A time in ns, with its error where it has one.
pub(crate) fn with_error(ns: f64, error: f64) -> String {
    match error {
        e if e < 0.05 => format!("{ns:.0} ns"),
        e if e < 0.5 => format!("{ns:.1} ± {e:.1} ns"),
        e => format!("{ns:.0} ± {e:.0} ns"),
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
        1e9..6e11 => (ns / 1e9, "s"),
        6e11..7.2e12 => (ns / 6e10, "min"),
        7.2e12..1.728e14 => (ns / 3.6e12, "h"),
        _ => (ns / 8.64e13, "days"),
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
    fn words_wrap_between_words_and_figures_not_at_all() {
        let mut t = Table::default();
        t.prose(["name", "what it is for, in so many words that a line is too short for it"]);
        let text = t.render_for(Some(40));
        assert!(text.lines().count() == 2 && text.lines().all(|l| l.chars().count() <= 40), "{text}");
        assert!(text.starts_with("  name  what it is for") && text.contains("\n        "), "{text}");
        let mut t = Table::default();
        t.row(["", "estimate", "true"]);
        t.row(["[2001:db8::1]:12345 > [2001:db8::2]:443 tcp", "1,234,567", "1,234,568"]);
        t.row(["short", "1", "2"]);
        let narrow = t.render_for(Some(50));
        assert!(narrow.lines().all(|l| l.chars().count() <= 50), "{narrow}");
        assert!(narrow.contains("443 tcp\n") && narrow.contains("  1,234,567  1,234,568"), "{narrow}");
        assert_eq!(t.render_for(None).lines().count(), 3, "nothing is broken that goes to a file");
    }

    #[test]
    fn names_do_nothing_to_a_terminal() {
        let mut t = Table::default();
        t.title("a\u{1b}]0;x\u{7}");
        t.row(["b\u{1b}[31m", "c\n"]);
        assert!(!t.render().contains(['\u{1b}', '\u{7}']), "{:?}", t.render());
        assert_eq!(visible("a\u{0}b\u{1b}[31m\u{ffff}"), "a\u{fffd}b\u{fffd}[31m\u{fffd}");
    }

    #[test]
    fn units_suit_the_values() {
        assert_eq!(rates(12, 480, 60_000_000_000), "0.200 pps, 64.00 bit/s");
        assert_eq!(rates(2_000_000, 2_000_000_000, 1_000_000_000), "2.000 Mpps, 16.00 Gbit/s");
        assert_eq!(time(Some(184_280_863.5e9)), "2132.9 days");
        assert_eq!(
            ["90", "900", "9000"].map(|s| time(s.parse().ok().map(|s: f64| s * 1e9))),
            ["90.0 s", "15.0 min", "2.5 h"]
        );
        assert_eq!(
            [with_error(600.0, 0.0), with_error(77.0, 0.04), with_error(77.0, 3.0)],
            ["600 ns", "77 ns", "77 ± 3 ns"]
        );
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(count(1_234_567), "1,234,567");
        assert_eq!(time(Some(64_000.0)), "64.0 µs");
        assert_eq!(time(None), "–");
        assert_eq!(share(Some(0.5)), "50.0 %");
    }
}
