//! The pages of `model … --report`: a sentence and charts, in one HTML file that needs nothing else.

use serde::Serialize;
use slipstream_report::svg::{About, Axis, Join, Line, LineChart};
use slipstream_report::{Sheet, Table, page, tick};

use super::Figure;
use crate::replace::Replacement;
use crate::ui;

/// A page to which figures are added.
#[derive(Serialize)]
pub(crate) struct Page {
    title: String,
    verdict: String,
    version: &'static str,
    command: String,
    figures: Vec<Figure>,
    sheets: Vec<Sheet>,
}

/// Lines of a chart, with the names of its axes.
pub(crate) struct Curves {
    lines: Vec<(String, Vec<(f64, f64)>)>,
    x: &'static str,
    y: &'static str,
    marks: Vec<(f64, String)>,
    join: Join,
    /// The y axis is logarithmic.
    log: bool,
}

/// Least value that a logarithmic axis is made for.
const LEAST: f64 = 1e-9;

impl From<Vec<(String, Vec<(f64, f64)>)>> for Curves {
    fn from(lines: Vec<(String, Vec<(f64, f64)>)>) -> Self {
        Self { lines, x: "µs", y: "share of packets", marks: Vec::new(), join: Join::Straight, log: false }
    }
}

impl Curves {
    pub(crate) fn named(self, x: &'static str, y: &'static str) -> Self {
        Self { x, y, ..self }
    }

    /// Over a logarithmic y axis.
    pub(crate) fn log(self) -> Self {
        Self { log: true, ..self }
    }

    /// With a vertical mark.
    pub(crate) fn marked(mut self, x: f64, label: &str) -> Self {
        self.marks.push((x, label.to_owned()));
        self
    }
}

/// Distributions over 0, 1, 2, … as curves, cumulated or not.
pub(crate) fn distribution(x: &'static str, of: &[(&str, &[f64])], cumulated: bool) -> Curves {
    let line = |(name, pmf): &(&str, &[f64])| {
        let last = pmf.iter().rposition(|p| *p > 1e-9).map_or(0, |i| i + 2);
        let mut sum = 0.0;
        let points = pmf.iter().take(last).enumerate().map(|(k, p)| {
            sum += p;
            (k as f64, if cumulated { sum } else { *p })
        });
        let mut points: Vec<_> = points.collect();
        if !cumulated {
            points.push((points.len() as f64, 0.0));
        }
        ((*name).to_owned(), points)
    };
    let lines: Vec<_> = of.iter().map(line).collect();
    Curves { join: Join::Steps, ..Curves::from(lines).named(x, "share of polls") }
}

impl Page {
    pub(crate) fn new(title: &str, verdict: &str) -> Self {
        let version = env!("CARGO_PKG_VERSION");
        Self {
            title: title.to_owned(),
            verdict: verdict.to_owned(),
            version,
            command: ui::command_line(),
            figures: Vec::new(),
            sheets: Vec::new(),
        }
    }

    /// Adds a chart; `id` is unique in the page.
    pub(crate) fn figure(&mut self, id: &str, title: &str, caption: &str, curves: Curves) {
        let about = About { id: id.to_owned(), title: title.to_owned(), description: caption.to_owned() };
        let all = || curves.lines.iter().flat_map(|l| &l.1);
        let highest = |f: fn(&(f64, f64)) -> f64| all().map(f).fold(0.0, f64::max);
        let chart = LineChart {
            about,
            x: Axis::linear(curves.x, highest(|p| p.0), short),
            y: y_axis(&curves),
            lines: curves
                .lines
                .into_iter()
                .map(|(name, points)| Line { name, points, join: curves.join })
                .collect(),
            marks: curves.marks,
        };
        let (title, caption) = (title.to_owned(), caption.to_owned());
        self.figures.push(Figure { title, svg: chart.render(), caption, source: "" });
    }

    /// Adds the figures of a table.
    pub(crate) fn figures_of(&mut self, table: &Table) {
        self.sheets.extend(table.sheets());
    }

    /// Writes the page.
    pub(crate) fn write(self, file: Replacement) -> anyhow::Result<()> {
        file.commit_with(page(include_str!("model.html"), self)?.as_bytes())
    }
}

/// Linear from 0, or logarithmic over the values that there are above [`LEAST`].
fn y_axis(curves: &Curves) -> Axis {
    let values = || curves.lines.iter().flat_map(|l| &l.1).map(|p| p.1);
    let high = values().fold(0.0, f64::max);
    let low = values().filter(|v| *v > LEAST).fold(high, f64::min);
    if curves.log && low > LEAST {
        // Smaller values lie at the foot, below all others.
        if values().any(|v| v <= LEAST) {
            return Axis::log(curves.y, 10.0, (low / 10.0, high), short).with_zero();
        }
        Axis::log(curves.y, 10.0, (low, high), short)
    } else {
        // Values that no logarithmic axis is made for are as good as 0, and stand there.
        Axis::linear(curves.y, if curves.log && high <= LEAST { 0.0 } else { high }, short)
    }
}

/// A number at a tick.
fn short(v: f64) -> String {
    match v.abs() {
        a if a >= 1e4 => format!("{:.0}k", v / 1e3),
        a if a >= 10.0 => format!("{v:.0}"),
        _ => tick(v),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_short() {
        assert_eq!(
            [0.0, 0.5, 2.0, 250.0, 20_000.0, 5e-5].map(short),
            ["0", "0.5", "2", "250", "20k", "5e-5"]
        );
    }

    /// The ticks of the one distribution that every page of `solve` has.
    #[test]
    fn no_two_ticks_have_the_same_text() {
        let curves = Curves::from(vec![("a".to_owned(), vec![(0.0, 0.001), (1.0, 0.018)])]);
        let mut page = Page::new("t", "v");
        page.figure("batches", "Batches", "c", curves);
        let svg = &page.figures[0].svg;
        for tick in ["0.005", "0.01", "0.015", "0.02"] {
            assert_eq!(svg.matches(&format!(">{tick}</text>")).count(), 1, "{tick}: {svg}");
        }
    }

    /// What remains of a probability that is 0 but for rounding is no curve.
    #[test]
    fn losses_that_are_none_lie_at_zero() {
        let curves = Curves::from(vec![("a".to_owned(), vec![(0.0, 0.0), (4.0, 2e-292)])]).log();
        let mut page = Page::new("t", "v");
        page.figure("loss", "Loss", "c", curves);
        let svg = &page.figures[0].svg;
        assert!(svg.contains(">1</text>") && !svg.contains("e-292</text>"), "{svg}");
    }

    #[test]
    fn rare_losses_are_to_be_seen_beside_common_ones() {
        let curves = Curves::from(vec![("a".to_owned(), vec![(0.5, 0.0), (0.9, 1e-7), (1.5, 0.4)])]).log();
        let mut page = Page::new("t", "v");
        page.figure("loss", "Loss", "c", curves);
        let svg = &page.figures[0].svg;
        for tick in ["0", "1e-6", "1"] {
            assert!(svg.contains(&format!(">{tick}</text>")), "{tick}: {svg}");
        }
    }

    #[test]
    fn a_distribution_ends_where_its_mass_does() {
        let curves = distribution("packets", &[("a", &[0.25, 0.75, 0.0, 0.0])], true);
        assert_eq!(curves.lines[0].1, [(0.0, 0.25), (1.0, 1.0), (2.0, 1.0)]);
    }

    /// Also where the largest value is the most likely one.
    #[test]
    fn a_distribution_ends_at_zero() {
        for (pmf, points) in [
            (&[0.0, 0.25, 0.75][..], &[(0.0, 0.0), (1.0, 0.25), (2.0, 0.75), (3.0, 0.0)][..]),
            (&[1.0, 0.0, 0.0], &[(0.0, 1.0), (1.0, 0.0), (2.0, 0.0)]),
            (&[], &[(0.0, 0.0)]),
        ] {
            assert_eq!(distribution("packets", &[("model", pmf)], false).lines[0].1, points);
        }
    }
}
