//! The screen: figures of all, how the rate went, and a row for every source and stage.

use slipstream_report::{time, visible};

use ratatui::Frame;
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Color, Style, Stylize};
use ratatui::text::{Line, Span};
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

/// Columns that fit every terminal: the place of a cell in a row, and its width.
const NARROW: [(usize, u16); 8] = [(0, 13), (2, 8), (3, 8), (4, 8), (5, 7), (6, 7), (7, 6), (8, 14)];
/// Columns where there is more room, with the stage's type.
const WIDE: [(usize, u16); 9] = [(0, 16), (1, 13), (2, 8), (3, 8), (4, 8), (5, 8), (6, 8), (7, 8), (8, 24)];
/// Columns of a terminal that has that room.
const WIDE_FROM: u16 = 112;

impl Screen<'_> {
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let [head, chart, table, foot] = Layout::vertical([
            Constraint::Length(2),
            Constraint::Length(6),
            Constraint::Min(3),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(self.head(), head);
        let width = usize::from(chart.width.saturating_sub(2));
        let shown = self.history.get(self.history.len().saturating_sub(width)..).unwrap_or_default();
        let most = shown.iter().max().copied().unwrap_or(0);
        let title = format!(" packets in, a second; highest {} ", per_second(most as f64));
        let line = Sparkline::default().data(shown).style(Style::new().fg(Color::Cyan));
        frame.render_widget(line.block(Block::bordered().title(title)), chart);
        frame.render_widget(self.table(table.width), table);
        let foot_line = match self.trouble {
            Some(trouble) => Line::from(trouble).fg(Color::Red),
            None => Line::from("q: end   arrows, page up, page down: scroll").dim(),
        };
        frame.render_widget(foot_line, foot);
    }

    fn head(&self) -> ratatui::text::Text<'_> {
        let first = Line::from(vec![Span::from("slipstream top ").bold(), Span::from(self.address)]);
        let Some(rates) = self.rates else { return vec![first, Line::from("waiting for figures")].into() };
        let mut figures = format!(
            "in {}/s   out {}/s   inside {}   CPU {:.2} cores",
            per_second(rates.came),
            per_second(rates.left),
            rates.inside,
            rates.cpu
        );
        if let Some((p50, p99)) = rates.excess_ns {
            figures.push_str(&format!("   late by {} (p99 {})", time(Some(p50)), time(Some(p99))));
        }
        let mut second = vec![Span::from(figures)];
        for (reason, rate) in &rates.dropped {
            second.push(
                Span::from(format!("   {} {}/s", visible(reason), per_second(*rate))).fg(Color::Yellow),
            );
        }
        vec![first, Line::from(second)].into()
    }

    fn table(&self, width: u16) -> Table<'_> {
        let columns = if width >= WIDE_FROM { &WIDE[..] } else { &NARROW[..] };
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
