//! The screen: figures of all, how the rate went, and a row for every source and stage.

use slipstream_report::{time, visible};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Block, Cell, Row, Sparkline, Table};

use super::rates::{HEADING, Rates, per_second};

/// The content of the screen.
pub(super) struct Screen<'a> {
    /// The address of the pipeline.
    pub(super) address: &'a str,
    /// The rates since the last report; none before the second one.
    pub(super) rates: Option<&'a Rates>,
    /// Packets a second that came in, the oldest first.
    pub(super) history: &'a [u64],
    /// The error of the last attempt to fetch a report.
    pub(super) trouble: Option<&'a str>,
    /// Rows that were scrolled past.
    pub(super) skipped: usize,
}

/// Columns of a terminal of 80: the place of a cell in a row, and its width.
const NARROW: [(usize, u16); 8] = [(0, 13), (2, 8), (3, 8), (4, 8), (5, 7), (6, 7), (7, 6), (8, 14)];
/// Columns where there is more room, with the stage's type.
const WIDE: [(usize, u16); 9] = [(0, 16), (1, 13), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8), (8, 24)];
/// The same where there is plenty, for long names.
const WIDEST: [(usize, u16); 9] = [(0, 40), (1, 16), (2, 9), (3, 9), (4, 9), (5, 9), (6, 9), (7, 9), (8, 40)];
/// The cells that a narrower one does without, one after the other: a figure that is cut reads as another
/// one.
const LEFT_OUT: [usize; 7] = [6, 5, 7, 4, 3, 8, 2];
/// Columns of a terminal that has that room, and that plenty.
const WIDE_FROM: u16 = 112;
const WIDEST_FROM: u16 = 162;
/// Lines of a terminal that has room for the curve of the rate, and what that takes.
const CURVE_FROM: u16 = 16;
const CURVE: u16 = 6;

/// Between two figures.
const BETWEEN: &str = "   ";

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self.head(area.width.into());
        let curve = if area.height < CURVE_FROM { 0 } else { CURVE };
        let [head, chart, table, foot] = Layout::vertical([
            Constraint::Length(u16::try_from(lines.len()).unwrap_or(1)),
            Constraint::Length(curve),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(area);
        frame.render_widget(Text::from(lines), head);
        let width = usize::from(chart.width.saturating_sub(2));
        let shown = self.history.get(self.history.len().saturating_sub(width)..).unwrap_or_default();
        let most = shown.iter().max().copied().unwrap_or(0);
        let title = format!(" packets in, a second; highest {} ", per_second(most as f64));
        let line = Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan));
        if curve > 0 {
            frame.render_widget(line.block(Block::bordered().title(title)), chart);
        }
        frame.render_widget(self.table(table.width), table);
        let foot_line = match self.trouble {
            Some(trouble) => Line::from(trouble).fg(Color::Red),
            None => Line::from("q: end   arrows, page up, page down: scroll").dim(),
        };
        frame.render_widget(foot_line, foot);
    }

    /// The address, and the figures of all, in as many lines as they take.
    fn head(&self, width: usize) -> Vec<Line<'_>> {
        let first = Line::from(vec![Span::from("slipstream top ").bold(), Span::from(self.address)]);
        let Some(rates) = self.rates else { return vec![first, Line::from("waiting for figures")] };
        let mut figures: Vec<Span<'_>> = vec![
            format!("in {}/s", per_second(rates.came)).into(),
            format!("out {}/s", per_second(rates.left)).into(),
            format!("inside {}", rates.inside).into(),
            format!("CPU {:.2} cores", rates.cpu).into(),
        ];
        if let Some((p50, p99)) = rates.excess_ns {
            figures.push(format!("late by {} (p99 {})", time(Some(p50)), time(Some(p99))).into());
        }
        let dropped = rates.dropped.iter().map(|(reason, rate)| ("", reason, rate));
        let lost = rates.lost.iter().map(|(counter, rate)| ("lost before the pipeline: ", counter, rate));
        for (said, reason, rate) in dropped.chain(lost) {
            let figure = format!("{said}{} {}/s", visible(reason), per_second(*rate));
            figures.push(Span::from(figure).fg(Color::Yellow));
        }
        let mut lines = vec![first, Line::default()];
        for figure in figures {
            if let Some(last) = lines.last_mut().filter(|last| last.width() > 0) {
                if last.width() + BETWEEN.len() + figure.width() <= width {
                    last.push_span(BETWEEN);
                    last.push_span(figure);
                    continue;
                }
                lines.push(Line::default());
            }
            if let Some(last) = lines.last_mut() {
                last.push_span(figure);
            }
        }
        lines
    }

    fn table(&self, width: u16) -> Table<'_> {
        let columns = columns(width);
        let rows = self.rates.map_or(&[][..], |r| r.rows.as_slice());
        let line = |row: &super::rates::Row| {
            let style = if row.dropped.is_empty() { Style::new() } else { Style::new().fg(Color::Yellow) };
            let mut cells = row.cells();
            let taken = columns.iter().filter_map(|(at, _)| Some(std::mem::take(cells.get_mut(*at)?)));
            Row::new(taken.map(Cell::from).collect::<Vec<_>>()).style(style)
        };
        let heading = columns.iter().filter_map(|(at, _)| HEADING.get(*at).copied()).collect::<Vec<_>>();
        let widths = columns.iter().map(|(_, width)| Constraint::Length(*width));
        let skipped = self.skipped.min(rows.len().saturating_sub(1));
        Table::new(rows.iter().skip(skipped).map(line), widths)
            .header(Row::new(heading).bold())
            .block(Block::bordered())
    }
}

/// The columns that a terminal of this width has room for.
fn columns(width: u16) -> Vec<(usize, u16)> {
    let mut columns = match width {
        WIDEST_FROM.. => WIDEST.to_vec(),
        WIDE_FROM.. => WIDE.to_vec(),
        _ => NARROW.to_vec(),
    };
    for place in LEFT_OUT {
        // One between two of them, and a border at both ends.
        if columns.iter().map(|(_, of)| of + 1).sum::<u16>() < width {
            break;
        }
        columns.retain(|(at, _)| *at != place);
    }
    columns
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::super::rates::Row;
    use super::*;

    #[test]
    fn everything_is_on_the_screen() {
        let row = |name: &str, dropped| Row {
            name: name.into(),
            kind: "firewall".into(),
            came: Some(2e6),
            left: 1.5e6,
            bits: Some(1.2e9),
            held: 3,
            dropped,
            ..Row::default()
        };
        let rates = Rates {
            seconds: 1.0,
            came: 2e6,
            left: 1.5e6,
            dropped: vec![("denied".into(), 5e5)],
            lost: vec![("missed".into(), 2e3)],
            inside: 12,
            cpu: 0.8,
            excess_ns: Some((1200.0, 45_000.0)),
            rows: vec![row("fw", vec![("denied".into(), 5e5)]), row("behind", vec![])],
            holds: Vec::new(),
        };
        let mut terminal = Terminal::new(TestBackend::new(110, 16)).unwrap();
        let screen = Screen {
            address: "[::1]:9464",
            rates: Some(&rates),
            history: &[1, 5, 2_000_000],
            trouble: Some("it has ended"),
            skipped: 0,
        };
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        for text in [
            "[::1]:9464",
            "in 2.00 M/s",
            "out 1.50 M/s",
            "inside 12",
            "lost before the pipeline: missed 2.00 k/s",
            "late by 1.2 µs",
            "denied 500 k/s",
            "highest 2.00 M",
            "behind",
            "500 k denied",
            "it has ended",
        ] {
            assert!(shown.contains(text), "{text:?} is not in\n{shown}");
        }
        // All columns but the type are there at 80, and rows can be scrolled past.
        let mut terminal = Terminal::new(TestBackend::new(80, 16)).unwrap();
        terminal.draw(|frame| Screen { skipped: 1, ..screen }.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        for text in ["in/s", "out/s", "bit/s", "1.20 G", "a train", "busy", "held", "dropped/s", "behind"] {
            assert!(shown.contains(text), "{text:?} is not in\n{shown}");
        }
        assert!(!shown.contains("500 k denied"), "{shown}");
        for text in ["late by 1.2 µs (p99 45.0 µs)", "denied 500 k/s"] {
            assert!(shown.contains(text), "{text:?} is not in\n{shown}");
        }
        // On a small one the stages are there, and where there is room the whole of a long name.
        let mut terminal = Terminal::new(TestBackend::new(60, 10)).unwrap();
        terminal.draw(|frame| Screen { skipped: 0, trouble: None, ..screen }.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        assert!(["fw", "behind", "(p99"].iter().all(|text| shown.contains(text)), "{shown}");
        let long = Rates { rows: vec![row("a-name-of-twenty-nine-letters", vec![])], ..rates.clone() };
        let mut terminal = Terminal::new(TestBackend::new(200, 20)).unwrap();
        let screen = Screen { rates: Some(&long), skipped: 0, ..screen };
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        let shown = terminal.backend().to_string();
        assert!(shown.contains("a-name-of-twenty-nine-letters"), "{shown}");
    }

    /// A figure that there is no room for is left out; a part of it would be another one.
    #[test]
    fn figures_are_whole_whatever_the_width() {
        let row = Row {
            name: "fw".into(),
            kind: "firewall".into(),
            came: Some(123_456.0),
            left: 98_765.0,
            bits: Some(12.3e6),
            mean_train: Some(17.5),
            busy: Some(0.5),
            held: 123_456_789,
            dropped: vec![("denied".into(), 24_691.0)],
        };
        let cells = row.cells();
        let rates = Rates { rows: vec![row], ..Rates::default() };
        for width in 24..200 {
            let mut terminal = Terminal::new(TestBackend::new(width, 10)).unwrap();
            let (rates, history) = (Some(&rates), &[][..]);
            let screen = Screen { address: "a", rates, history, trouble: None, skipped: 0 };
            terminal.draw(|frame| screen.draw(frame)).unwrap();
            let shown = terminal.backend().to_string();
            let line = shown.lines().find(|line| line.contains("fw")).unwrap();
            let figures: Vec<_> = line.split(['"', '│']).flat_map(|part| part.split("  ")).collect();
            let whole = |figure: &str| figure.is_empty() || cells.iter().any(|cell| cell == figure);
            assert!(figures.iter().all(|figure| whole(figure.trim())), "{width}: {line}");
            assert!(line.contains(&cells[2]), "{width}: {line}");
            let all = cells.iter().enumerate().all(|(at, cell)| at == 1 || line.contains(cell));
            assert_eq!(all, width >= 80, "{width}: {line}");
        }
    }

    #[test]
    fn a_screen_of_any_size_does() {
        for (width, height) in [(1, 1), (3, 30), (200, 2), (40, 8)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            let screen = Screen { address: "a", rates: None, history: &[], trouble: None, skipped: 0 };
            terminal.draw(|frame| screen.draw(frame)).unwrap();
        }
    }
}
