//! Figures of the labs: bars, or lines with the paper's points beside them; as SVG and as CSV.

use slipstream_report::svg::{About, Axis, BarChart, ErrorBar, Join, Line, LineChart};
use slipstream_report::tick;

/// A figure to draw.
#[derive(Clone, Debug)]
pub(crate) enum Figure {
    Bars(Chart),
    Lines(Plot),
}

/// A figure of bars in groups, one bar a series.
#[derive(Clone, Debug)]
pub(crate) struct Chart {
    /// The subject, and the figure of the paper that it stands beside.
    pub(crate) title: String,
    /// A sentence on how to read the figure.
    pub(crate) caption: String,
    /// The name of the x axis.
    pub(crate) x_label: String,
    /// The name of the y axis, with its unit.
    pub(crate) y_label: String,
    /// Names of the groups.
    pub(crate) groups: Vec<String>,
    /// Name of a series, and its value in each group.
    pub(crate) series: Vec<(String, Vec<Option<f64>>)>,
}

/// A figure of lines through points with numbers on both axes.
#[derive(Clone, Debug)]
pub(crate) struct Plot {
    /// The subject, and the figure of the paper that it stands beside.
    pub(crate) title: String,
    /// A sentence on how to read the figure, and the source of the paper's points.
    pub(crate) caption: String,
    /// The x axis.
    pub(crate) x: Scale,
    /// The y axis.
    pub(crate) y: Scale,
    /// The lines, in the order of the legend.
    pub(crate) curves: Vec<Curve>,
}

/// An axis.
#[derive(Clone, Debug)]
pub(crate) struct Scale {
    /// Its name, with the unit.
    label: String,
    /// The base of a logarithmic axis.
    base: Option<f64>,
}

impl Scale {
    /// From 0 on.
    pub(crate) fn linear(label: &str) -> Self {
        Self { label: label.to_owned(), base: None }
    }

    /// Logarithmic, with ticks at powers of `base`.
    pub(crate) fn log(label: &str, base: f64) -> Self {
        Self { label: label.to_owned(), base: Some(base) }
    }

    /// An axis that holds all values.
    fn axis(&self, values: impl Iterator<Item = f64>) -> Axis {
        let (low, high) = values.fold((f64::INFINITY, 0.0f64), |(low, high), v| (low.min(v), high.max(v)));
        match self.base {
            Some(base) => Axis::log(&self.label, base, (low, high), short),
            None => Axis::linear(&self.label, high, short),
        }
    }
}

/// A line, ours or the paper's.
#[derive(Clone, Debug)]
pub(crate) struct Curve {
    /// The subject of the line, the same for ours and the paper's.
    name: String,
    of: Origin,
    /// The points, in ascending order of x.
    marks: Vec<Mark>,
}

/// The origin of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Ours,
    Paper,
}

/// A point, and the range of the values that it stands for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Mark {
    pub(crate) x: f64,
    pub(crate) y: f64,
    pub(crate) range: Option<(f64, f64)>,
}

impl Mark {
    /// The same with its values over another one.
    pub(crate) fn over(self, base: f64) -> Self {
        let range = self.range.map(|(low, high)| (low / base, high / base));
        Self { y: self.y / base, range, ..self }
    }
}

impl Curve {
    /// A line of ours; points that are no numbers are left out.
    pub(crate) fn ours(name: impl Into<String>, points: impl IntoIterator<Item = (f64, f64)>) -> Self {
        let mark =
            |(x, y): (f64, f64)| (x.is_finite() && y.is_finite()).then_some(Mark { x, y, range: None });
        Self { name: name.into(), of: Origin::Ours, marks: points.into_iter().filter_map(mark).collect() }
    }

    /// Points of the paper, which stand beside our line of the same name.
    pub(crate) fn paper(name: impl Into<String>, marks: Vec<Mark>) -> Self {
        Self { name: name.into(), of: Origin::Paper, marks }
    }

    /// Values over the first one.
    pub(crate) fn over_first(mut self) -> Self {
        if let Some(first) = self.marks.first().map(|m| m.y) {
            self.marks.iter_mut().for_each(|m| *m = m.over(first));
        }
        self
    }
}

impl From<Chart> for Figure {
    fn from(chart: Chart) -> Self {
        Self::Bars(chart)
    }
}

impl From<Plot> for Figure {
    fn from(plot: Plot) -> Self {
        Self::Lines(plot)
    }
}

impl Figure {
    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Bars(chart) => &chart.title,
            Self::Lines(plot) => &plot.title,
        }
    }

    pub(crate) fn caption(&self) -> &str {
        match self {
            Self::Bars(chart) => &chart.caption,
            Self::Lines(plot) => &plot.caption,
        }
    }

    /// True if there is a value of ours to draw.
    pub(crate) fn has_ours(&self) -> bool {
        match self {
            Self::Bars(chart) => chart.series.iter().any(|(_, values)| values.iter().any(Option::is_some)),
            Self::Lines(plot) => plot.curves.iter().any(|c| c.of == Origin::Ours && !c.marks.is_empty()),
        }
    }

    /// The figure as an `<svg>` element whose ids begin with `id`.
    pub(crate) fn svg(&self, id: &str) -> String {
        let about = About {
            id: id.to_owned(),
            title: self.title().to_owned(),
            description: self.caption().to_owned(),
        };
        match self {
            Self::Bars(chart) => chart.svg(about),
            Self::Lines(plot) => plot.svg(about),
        }
    }

    /// The numbers of the figure as CSV with a head: of bars a line a group, of lines a line a point.
    pub(crate) fn csv(&self) -> String {
        let rows = match self {
            Self::Bars(chart) => chart.rows(),
            Self::Lines(plot) => plot.rows(),
        };
        let line = |fields: Vec<String>| {
            let fields: Vec<String> = fields.iter().map(|f| quoted(f)).collect();
            format!("{}\n", fields.join(","))
        };
        rows.into_iter().map(line).collect()
    }
}

impl Chart {
    fn svg(&self, about: About) -> String {
        let high = self.series.iter().flat_map(|(_, v)| v).flatten().copied().fold(0.0, f64::max);
        let text = |v: f64| if v >= 10.0 { format!("{v:.0}") } else { format!("{v:.2}") };
        let bar = |v: &Option<f64>| v.map(|v| (v, text(v)));
        BarChart {
            about,
            x_label: self.x_label.clone(),
            y: Axis::linear(&self.y_label, high, short),
            groups: self.groups.clone(),
            series: self.series.iter().map(|(name, v)| (name.clone(), v.iter().map(bar).collect())).collect(),
        }
        .render()
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let label = if self.x_label.is_empty() { "group" } else { &self.x_label };
        let name = |name: &String| match &self.y_label {
            // The one series of a chart may be called as its axis is.
            label if label == name => name.clone(),
            label => format!("{name} ({label})"),
        };
        let names = self.series.iter().map(|(series, _)| name(series));
        let head = std::iter::once(label.to_owned()).chain(names).collect();
        let values = |g: usize| self.series.iter().map(move |(_, v)| number(v.get(g).copied().flatten()));
        let groups = self.groups.iter().enumerate();
        let row = |(g, name): (usize, &String)| std::iter::once(name.clone()).chain(values(g)).collect();
        std::iter::once(head).chain(groups.map(row)).collect()
    }
}

impl Plot {
    fn svg(&self, about: About) -> String {
        let curves: Vec<&Curve> = self.drawn();
        let marks = || curves.iter().flat_map(|c| &c.marks);
        let high = |m: &Mark| m.range.map_or(m.y, |(_, high)| high);
        let low = |m: &Mark| m.range.map_or(m.y, |(low, _)| low);
        let bar = |(line, m): (usize, &Mark)| Some(ErrorBar { line, x: m.x, y: m.range? });
        let bars: Vec<ErrorBar> = curves
            .iter()
            .enumerate()
            .flat_map(|(i, c)| c.marks.iter().map(move |m| (i, m)))
            .filter_map(bar)
            .collect();
        let lines = curves.iter().enumerate().map(|(i, curve)| self.line(i, curve)).collect();
        LineChart {
            about,
            x: self.x.axis(marks().map(|m| m.x)),
            y: self.y.axis(marks().flat_map(|m| [low(m), high(m)])),
            lines,
            marks: Vec::new(),
        }
        .render_with(&bars)
    }

    /// Our lines first, so that the paper's points lie on them and not below.
    fn drawn(&self) -> Vec<&Curve> {
        let of = |origin| self.curves.iter().filter(move |c| c.of == origin);
        of(Origin::Ours).chain(of(Origin::Paper)).collect()
    }

    /// The name of a line in the legend, which says whose it is where both are drawn.
    fn name(&self, curve: &Curve) -> String {
        let both = self.curves.iter().any(|c| c.of == Origin::Paper);
        let sign = if curve.name.is_empty() { "" } else { ", " };
        match curve.of {
            Origin::Paper => format!("{}{sign}paper", curve.name),
            Origin::Ours if both => format!("{}{sign}ours", curve.name),
            Origin::Ours => curve.name.clone(),
        }
    }

    fn line(&self, index: usize, curve: &Curve) -> Line {
        let beside = || self.drawn().iter().position(|c| c.of == Origin::Ours && c.name == curve.name);
        Line {
            name: self.name(curve),
            points: curve.marks.iter().map(|m| (m.x, m.y)).collect(),
            join: match curve.of {
                Origin::Ours => Join::Straight,
                Origin::Paper => Join::Published { beside: beside().unwrap_or(index) },
            },
        }
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let head = ["series", "of", &self.x.label, &self.y.label, "low", "high"];
        let mut rows = vec![head.map(str::to_owned).to_vec()];
        for curve in &self.curves {
            let of = if curve.of == Origin::Paper { "paper" } else { "ours" };
            rows.extend(curve.marks.iter().map(|m| {
                let (low, high) = (m.range.map(|r| r.0), m.range.map(|r| r.1));
                let [x, y, low, high] = [Some(m.x), Some(m.y), low, high].map(number);
                vec![curve.name.clone(), of.to_owned(), x, y, low, high]
            }));
        }
        rows
    }
}

/// A number at a tick.
fn short(v: f64) -> String {
    if v >= 100.0 { format!("{v:.0}") } else { tick(v) }
}

/// A number as a field of CSV; nothing where there is none.
fn number(value: Option<f64>) -> String {
    value.filter(|v| v.is_finite()).map(|v| v.to_string()).unwrap_or_default()
}

/// A field of CSV (RFC 4180).
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let range = Some((9.0, 11.0));
        Plot {
            title: "t".into(),
            caption: "c".into(),
            x: Scale::log("SLF", 2.0),
            y: Scale::linear("cycles"),
            curves: vec![
                Curve::paper(
                    "a",
                    vec![Mark { x: 1.0, y: 10.0, range }, Mark { x: 32.0, y: 5.0, range: None }],
                ),
                Curve::ours("b, c", [(1.0, 4.0), (2.0, f64::NAN)]),
                Curve::ours("a", [(1.0, 8.0), (32.0, 2.0)]),
            ],
        }
    }

    /// A reader tells the paper's points from ours, and which belong together.
    #[test]
    fn the_papers_points_stand_beside_the_line_of_the_same_name() {
        let svg = Figure::from(plot()).svg("x");
        for text in [">a, paper<", ">a, ours<", ">b, c, ours<", "published s1", "range s1", "open s1"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("open s0"), "{svg}");
        let alone = Plot { curves: vec![Curve::ours("a", [(1.0, 8.0)])], ..plot() };
        assert!(Figure::from(alone).svg("x").contains(">a<"));
    }

    #[test]
    fn figures_are_csv() {
        let lines = "series,of,SLF,cycles,low,high\na,paper,1,10,9,11\na,paper,32,5,,\n\"b, c\",ours,1,4,,\n\
                     a,ours,1,8,,\na,ours,32,2,,\n";
        assert_eq!(Figure::from(plot()).csv(), lines);
        let bars = Chart {
            title: String::new(),
            caption: String::new(),
            x_label: "batch".into(),
            y_label: "ns".into(),
            groups: vec!["32".into(), "\"64\"".into()],
            series: vec![("plain".into(), vec![Some(1.5), None]), ("with".into(), vec![Some(2.0)])],
        };
        assert_eq!(
            Figure::from(bars.clone()).csv(),
            "batch,plain (ns),with (ns)\n32,1.5,2\n\"\"\"64\"\"\",,\n"
        );
        let alone = Chart { series: vec![("ns".into(), vec![Some(1.5), None])], ..bars };
        assert_eq!(Figure::from(alone).csv(), "batch,ns\n32,1.5\n\"\"\"64\"\"\",\n");
    }

    /// Nothing is drawn of what wasn't measured, be it that the paper's points are there.
    #[test]
    fn a_figure_of_ours_has_a_point_of_ours() {
        let mut findings = crate::Findings::default();
        let without = |plot: Plot| Plot {
            curves: plot.curves.into_iter().filter(|c| c.of == Origin::Paper).collect(),
            ..plot
        };
        let mut bars = Chart {
            title: String::new(),
            caption: String::new(),
            x_label: String::new(),
            y_label: String::new(),
            groups: vec!["a".into()],
            series: vec![("s".into(), vec![None])],
        };
        findings.draw(without(plot()));
        findings.draw(Plot { curves: vec![Curve::ours("a", [(1.0, f64::NAN)])], ..plot() });
        findings.draw(bars.clone());
        assert_eq!(findings.figures.len(), 0);
        bars.series[0].1[0] = Some(0.0);
        findings.draw(bars);
        findings.draw(plot());
        assert_eq!(findings.figures.len(), 2);
    }

    #[test]
    fn curves_are_taken_over_their_first_point() {
        let marks = plot().curves.remove(0).over_first().marks;
        assert_eq!(marks[0], Mark { x: 1.0, y: 1.0, range: Some((0.9, 1.1)) });
        assert_eq!(marks[1], Mark { x: 32.0, y: 0.5, range: None });
    }
}
