//! Tables of plain text.

use std::fmt::Write;

use serde::Serialize;

use crate::text::visible;

/// Width of prose where the result doesn't go to a terminal.
const PROSE: usize = 110;
/// Least width of a column of prose.
const NARROW: usize = 12;

/// Rows of a label and values, aligned.
///
/// ```
/// use slipstream_report::Table;
///
/// let mut table = Table::default();
/// table.row(["", "before", "after"]);
/// table.row(["trains", "24,000", "8,216"]);
/// assert_eq!(table.render(None), "          before  after\n  trains  24,000  8,216");
/// ```
#[derive(Debug, Default)]
pub struct Table {
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

/// The figures under a heading, as a page shows them.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Sheet {
    title: String,
    /// The names of the columns, where there is more than one beside the labels.
    head: Option<Vec<String>>,
    rows: Vec<Vec<String>>,
}

impl Table {
    fn push(&mut self, kind: Kind, cells: impl IntoIterator<Item = impl Into<String>>) {
        let cells = cells.into_iter().map(|c| visible(&c.into())).collect();
        self.rows.push(Row { kind, cells });
    }

    /// A heading over the rows that follow.
    pub fn title(&mut self, text: impl Into<String>) {
        self.push(Kind::Title, [text]);
    }

    /// A row; the first cell is its label.
    pub fn row(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.push(Kind::Figures, cells);
    }

    /// A row of words.
    pub fn prose(&mut self, cells: impl IntoIterator<Item = impl Into<String>>) {
        self.push(Kind::Prose, cells);
    }

    /// The table as text for a terminal of so many columns, or for a file. Columns under one heading are
    /// aligned.
    #[must_use]
    pub fn render(&self, terminal: Option<usize>) -> String {
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

    /// The figures by their headings, for a page; words are left out. Of rows with several figures the first
    /// one names the columns.
    #[must_use]
    pub fn sheets(&self) -> Vec<Sheet> {
        let blocks = self.rows.chunk_by(|_, next| next.kind != Kind::Title);
        let sheet = |block: &[Row]| {
            let title =
                block.iter().filter(|r| r.kind == Kind::Title).flat_map(|r| r.cells.clone()).collect();
            let figures = block.iter().filter(|r| r.kind == Kind::Figures).map(|r| r.cells.clone());
            let mut rows: Vec<_> = figures.collect();
            let named = rows.first().is_some_and(|first| first.len() > 2);
            let head = named.then(|| rows.remove(0));
            Sheet { title, head, rows }
        };
        blocks.map(sheet).filter(|sheet| !sheet.rows.is_empty()).collect()
    }
}

/// The width of each column.
fn widths(rows: &[Row]) -> Vec<usize> {
    let columns = rows.iter().map(|r| r.cells.len()).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| r.cells.get(c)).map(|s| s.chars().count()).max();
    (0..columns).map(|c| width(c).unwrap_or(0)).collect()
}

/// The columns that a row takes, with the space before each.
fn full(widths: &[usize]) -> usize {
    widths.iter().map(|w| w + 2).sum()
}

/// Rows of figures. Where a terminal would break lines anywhere, the names of columns are wrapped, and a
/// label that is too long for it gets a line of its own.
fn figures(rows: &[Row], terminal: Option<usize>, out: &mut String) {
    let mut widths = widths(rows);
    let named = terminal.and_then(|columns| named_over_lines(rows, columns, &mut widths));
    let rows = match (&named, rows) {
        (Some(head), [_, rest @ ..]) => {
            lines_of(head, terminal, &mut widths.clone(), out);
            rest
        }
        _ => rows,
    };
    lines_of(rows, terminal, &mut widths, out);
}

/// The row that names the columns as several ones, in columns that are only as wide as the terminal has room
/// for; none where they need not be or have no words to wrap between.
fn named_over_lines(rows: &[Row], terminal: usize, widths: &mut [usize]) -> Option<Vec<Row>> {
    let (head, rest) = rows.split_first().filter(|(head, rest)| head.cells.len() > 2 && !rest.is_empty())?;
    if full(widths) <= terminal {
        return None;
    }
    let figures = self::widths(rest);
    let word = |cell: &String| cell.split(' ').map(|w| w.chars().count()).max().unwrap_or(0);
    let least = |c: usize| figures.get(c).copied().max(head.cells.get(c).map(word)).unwrap_or(0);
    // The widest names give way.
    while full(widths) > terminal
        && let Some((_, widest)) =
            widths.iter_mut().enumerate().skip(1).filter(|(c, w)| **w > least(*c)).max_by_key(|(_, w)| **w)
    {
        *widest -= 1;
    }
    let cells = head.cells.iter().zip(widths.iter()).enumerate();
    let cells: Vec<_> =
        cells.map(|(c, (cell, w))| if c == 0 { vec![cell.clone()] } else { wrapped(cell, *w) }).collect();
    let high = cells.iter().map(Vec::len).max().unwrap_or(0);
    // They end where the figures begin.
    let line = |n: usize| {
        let part = |cell: &Vec<String>| (n + cell.len()).checked_sub(high).and_then(|n| cell.get(n)).cloned();
        Row { kind: head.kind, cells: cells.iter().map(|cell| part(cell).unwrap_or_default()).collect() }
    };
    Some((0..high).map(line).collect())
}

/// Rows in columns of these widths; the first one gives way to what the others need.
fn lines_of(rows: &[Row], terminal: Option<usize>, widths: &mut [usize], out: &mut String) {
    let label = widths.first().copied().unwrap_or(0);
    let most = terminal.map_or(label, |t| label.min((t + label).saturating_sub(full(widths)).max(NARROW)));
    if let Some(first) = widths.first_mut() {
        *first = most;
    }
    for row in rows {
        let mut line = String::from("  ");
        for (c, (cell, width)) in row.cells.iter().zip(&*widths).enumerate() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned() {
        let mut t = Table::default();
        t.title("Trains");
        t.row(["a", "1", "22"]);
        t.row(["longer", "333", "4"]);
        assert_eq!(t.render(None), "Trains\n  a         1  22\n  longer  333   4");
    }

    #[test]
    fn words_wrap_between_words_and_figures_not_at_all() {
        let mut t = Table::default();
        t.prose(["name", "what it is for, in so many words that a line is too short for it"]);
        let text = t.render(Some(40));
        assert!(text.lines().count() == 2 && text.lines().all(|l| l.chars().count() <= 40), "{text}");
        assert!(text.starts_with("  name  what it is for") && text.contains("\n        "), "{text}");
        let mut t = Table::default();
        t.row(["", "estimate", "true"]);
        t.row(["[2001:db8::1]:12345 > [2001:db8::2]:443 tcp", "1,234,567", "1,234,568"]);
        t.row(["short", "1", "2"]);
        let narrow = t.render(Some(50));
        assert!(narrow.lines().all(|l| l.chars().count() <= 50), "{narrow}");
        assert!(narrow.contains("443 tcp\n") && narrow.contains("  1,234,567  1,234,568"), "{narrow}");
        assert_eq!(t.render(None).lines().count(), 3, "nothing is broken that goes to a file");
    }

    /// A table of 94 columns on a terminal of 80, which would break every line of it.
    #[test]
    fn names_of_columns_wrap_before_lines_do() {
        let mut t = Table::default();
        t.row([
            "",
            "flows sent",
            "received",
            "packets a flow sent, mean",
            "largest",
            "received, mean",
            "largest",
        ]);
        t.row(["10.9.1.1", "210", "210", "390.6", "2,455", "593.0", "3,029"]);
        let wide = t.render(None);
        assert_eq!((wide.lines().count(), wide.lines().next().unwrap().chars().count()), (2, 93), "{wide}");
        assert_eq!(t.render(Some(93)), wide);
        let lines = t.render(Some(80));
        let lines: Vec<_> = lines.lines().collect();
        assert!(lines.iter().all(|l| l.chars().count() <= 80), "{lines:#?}");
        assert_eq!(lines.len(), 4, "{lines:#?}");
        assert!(lines[0].trim() == "packets a" && lines[1].contains("flow sent, "), "{lines:#?}");
        let ends = |line: &str, text: &str| line.split(text).next().map(|l| l.chars().count() + text.len());
        assert_eq!(ends(lines[1], "flow sent,"), ends(lines[3], "390.6"), "{lines:#?}");
        assert_eq!(ends(lines[2], "received"), ends(lines[3], "210       210"), "{lines:#?}");
        // As narrow as its words and figures.
        let lines = t.render(Some(20));
        assert!(lines.lines().all(|l| l.chars().count() <= 66), "{lines}");
    }

    #[test]
    fn names_do_nothing_to_a_terminal() {
        let mut t = Table::default();
        t.title("a\u{1b}]0;x\u{7}");
        t.row(["b\u{1b}[31m", "c\n"]);
        assert!(!t.render(None).contains(['\u{1b}', '\u{7}']), "{:?}", t.render(None));
    }
}
