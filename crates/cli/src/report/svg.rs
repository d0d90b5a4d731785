//! Line and bar charts as inline SVG: no script, no font, no colour of their own.
//!
//! Colours, dashes and type come from the page's style sheet by class: `s0` to `s5` for series, `grid`, `axis`, `mark`,
//! `label`, so that a chart follows the page into dark mode. Every chart has a title and a description for screen
//! readers. Coordinates are in a box of 480 by 300 and more, which is legible on a telephone.

use std::fmt::Write;

const WIDTH: f64 = 480.0;
const PLOT_HEIGHT: f64 = 190.0;
const LEFT: f64 = 50.0;
const RIGHT: f64 = 14.0;
const BOTTOM: f64 = 46.0;
const ROW: f64 = 20.0;
/// Width of a character of the charts' type, on average.
const CHARACTER: f64 = 7.2;
/// Angle of names below bars that don't fit side by side, in degrees.
const SLANT: f64 = 35.0;
/// Most height that such names may take; longer ones are cut.
const MOST_SLANT: f64 = 90.0;
/// Height of a line of type.
const LINE: f64 = 15.0;
/// Classes of series that the style sheet has.
const SERIES: usize = 6;

/// What a chart is called and what it shows, for those who don't see it. `id` is unique in the page.
#[derive(Clone, Debug)]
pub(crate) struct About {
    pub(crate) id: String,
    pub(crate) title: String,
    pub(crate) description: String,
}

/// An axis: how values become places, and which of them are written on it.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    label: String,
    /// The base of a logarithmic axis; `from`, `to` and `step` are exponents then.
    base: Option<f64>,
    from: f64,
    to: f64,
    step: f64,
    tick: fn(f64) -> String,
}

impl Axis {
    /// From 0 to `high` or somewhat more, in steps of 1, 2 or 5 times a power of ten.
    pub(crate) fn linear(label: &str, high: f64, tick: fn(f64) -> String) -> Self {
        let high = if high.is_finite() && high > 0.0 { high } else { 1.0 };
        let raw = high / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 5.0]
            .map(|m| m * power)
            .into_iter()
            .find(|s| *s >= raw * 0.999)
            .unwrap_or(10.0 * power);
        let to = (high / step - 1e-9).ceil() * step;
        Self { label: label.to_owned(), base: None, from: 0.0, to, step, tick }
    }

    /// Logarithmic, over whole powers of `base` (above 1) that hold `low..=high`; both at least the smallest
    /// positive value.
    pub(crate) fn log(label: &str, base: f64, (low, high): (f64, f64), tick: fn(f64) -> String) -> Self {
        let exponent = |v: f64| if v.is_finite() && v > 0.0 { v.log(base) } else { 0.0 };
        let from = (exponent(low) + 1e-9).floor();
        let to = (exponent(high) - 1e-9).ceil().max(from + 1.0);
        let step = ((to - from) / 7.0).ceil();
        Self { label: label.to_owned(), base: Some(base), from, to, step, tick }
    }

    /// Where a value lies, as a share of the axis; what is outside lies at its end.
    fn at(&self, value: f64) -> f64 {
        let value = self.base.map_or(value, |base| value.max(f64::MIN_POSITIVE).log(base));
        let share = (value - self.from) / (self.to - self.from);
        if share.is_nan() { 0.0 } else { share.clamp(0.0, 1.0) }
    }

    /// The values at the ticks.
    fn ticks(&self) -> impl Iterator<Item = f64> + '_ {
        let n = ((self.to - self.from) / self.step + 1e-9).floor() as u32;
        let place = move |i| self.from + f64::from(i) * self.step;
        (0..=n).map(move |i| self.base.map_or(place(i), |base| base.powf(place(i))))
    }
}

/// How the points of a line are joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Join {
    /// By steps: the share (or whatever the y axis has) holds from each x on, as in a cumulative
    /// distribution.
    Steps,
    /// By straight lines between marked points: what was computed, and what to expect between.
    Straight,
}

/// A line through points.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
    pub(crate) join: Join,
}

/// Lines over one x axis, and vertical marks at places of it.
#[derive(Clone, Debug)]
pub(crate) struct LineChart {
    pub(crate) about: About,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) lines: Vec<Line>,
    pub(crate) marks: Vec<(f64, String)>,
}

/// A bar, and what is written on it; nothing where there is no value.
pub(crate) type Bar = Option<(f64, String)>;

/// Groups of bars side by side, one bar a series.
#[derive(Clone, Debug)]
pub(crate) struct BarChart {
    pub(crate) about: About,
    pub(crate) x_label: String,
    pub(crate) y: Axis,
    pub(crate) groups: Vec<String>,
    /// Name of the series, and one bar a group.
    pub(crate) series: Vec<(String, Vec<Bar>)>,
}

/// What stands before a name in the legend.
#[derive(Clone, Copy)]
enum Key {
    Line,
    Bar,
}

/// A picture in the making.
struct Canvas {
    out: String,
    top: f64,
    /// Height for names below the x axis beyond a line of type.
    room: f64,
}

impl Canvas {
    /// Writes the head, the legend and the y axis.
    fn new(about: &About, names: &[&str], y: &Axis, key: Key, room: f64) -> Self {
        let places = legend(names);
        let rows = places.last().map_or(0.0, |(_, row)| row + 1.0);
        let top = rows * ROW + ROW + 14.0;
        let height = top + PLOT_HEIGHT + room + BOTTOM;
        let id = escape(&about.id);
        let mut out = String::new();
        let _ = write!(
            out,
            "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-labelledby=\"{id}-t {id}-d\">\
             <title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
            escape(&about.title),
            escape(&about.description)
        );
        for (i, (name, (x, row))) in names.iter().zip(places).enumerate() {
            let y = row * ROW + 14.0;
            let class = i % SERIES;
            let _ = match key {
                Key::Line => write!(out, "<path class=\"line s{class}\" d=\"M{x:.1} {:.1}h18\"/>", y - 4.0),
                Key::Bar => write!(
                    out,
                    "<path class=\"bar s{class}\" d=\"M{:.1} {:.1}h12v-12h-12z\"/>",
                    x + 5.0,
                    y + 1.0
                ),
            };
            let _ = write!(
                out,
                "<text class=\"label\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
                x + 23.0,
                escape(name)
            );
        }
        let mut canvas = Self { out, top, room };
        canvas.text(2.0, top - 17.0, "start dim", &y.label);
        for value in y.ticks() {
            let at = canvas.y(y, value);
            let _ = write!(canvas.out, "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{:.1}\"/>", WIDTH - RIGHT);
            canvas.text(LEFT - 6.0, at + 4.5, "end", &(y.tick)(value));
        }
        canvas
    }

    fn y(&self, axis: &Axis, value: f64) -> f64 {
        self.top + (1.0 - axis.at(value)) * PLOT_HEIGHT
    }

    fn base(&self) -> f64 {
        self.top + PLOT_HEIGHT
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = write!(
            self.out,
            "<text class=\"label {class}\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>",
            escape(text)
        );
    }

    /// A name that rises to the place where it ends.
    fn slanted(&mut self, x: f64, y: f64, text: &str) {
        let most = (MOST_SLANT / SLANT.to_radians().sin() / CHARACTER) as usize;
        let shown = match text.char_indices().nth(most) {
            Some((end, _)) => format!("{}…", text.get(..end).unwrap_or(text)),
            None => text.to_owned(),
        };
        let _ = write!(
            self.out,
            "<text class=\"label end\" transform=\"translate({x:.1} {y:.1}) rotate(-{SLANT})\">{}</text>",
            escape(&shown)
        );
    }

    /// Writes the x axis and the end.
    fn finish(mut self, x_label: &str) -> String {
        let (base, middle) = (self.base(), (LEFT + WIDTH - RIGHT) / 2.0);
        let _ = write!(self.out, "<path class=\"axis\" d=\"M{LEFT} {base:.1}H{:.1}\"/>", WIDTH - RIGHT);
        self.text(middle, base + self.room + 38.0, "middle dim", x_label);
        self.out.push_str("</svg>");
        self.out
    }
}

/// How wide a text is, about.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Where the names of series go: x and row, wrapped to the width.
fn legend(names: &[&str]) -> Vec<(f64, f64)> {
    let (mut x, mut row) = (2.0, 0.0);
    let place = |name: &&str| {
        let width = 23.0 + width(name) + 18.0;
        if x > 2.0 && x + width > WIDTH {
            (x, row) = (2.0, row + 1.0);
        }
        let at = (x, row);
        x += width;
        at
    };
    names.iter().map(place).collect()
}

impl LineChart {
    /// The chart as an `<svg>` element.
    pub(crate) fn render(&self) -> String {
        let names: Vec<&str> = self.lines.iter().map(|l| l.name.as_str()).collect();
        let mut canvas = Canvas::new(&self.about, &names, &self.y, Key::Line, 0.0);
        let (top, base) = (canvas.top, canvas.base());
        for value in self.x.ticks() {
            let x = self.x(value);
            let _ = write!(canvas.out, "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{base:.1}\"/>");
            let label = (self.x.tick)(value);
            canvas.text(x.min(WIDTH - width(&label) / 2.0), base + 17.0, "middle", &label);
        }
        self.draw_marks(&mut canvas);
        for (i, line) in self.lines.iter().enumerate() {
            let (path, class) = (self.path(&canvas, line), i % SERIES);
            let _ = write!(canvas.out, "<path class=\"line s{class}\" d=\"{path}\"/>");
            if line.join == Join::Straight {
                for &(px, py) in &line.points {
                    let (x, y) = (self.x(px), canvas.y(&self.y, py));
                    let _ = write!(
                        canvas.out,
                        "<circle class=\"bar s{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{}, {}: {}, {}</title></circle>",
                        escape(&line.name),
                        escape(&(self.x.tick)(px)),
                        escape(&self.y.label),
                        escape(&(self.y.tick)(py))
                    );
                }
            }
        }
        canvas.finish(&self.x.label)
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + self.x.at(value) * (WIDTH - LEFT - RIGHT)
    }

    /// Marks with their names at the foot, one above the other where they would cover one another.
    fn draw_marks(&self, canvas: &mut Canvas) {
        let (top, base) = (canvas.top, canvas.base());
        for (value, _) in &self.marks {
            let x = self.x(*value);
            let _ = write!(canvas.out, "<path class=\"mark\" d=\"M{x:.1} {top:.1}V{base:.1}\"/>");
        }
        let mut rows = [0.0; 6];
        for (value, name) in &self.marks {
            let (x, width) = (self.x(*value), width(name));
            // The name of a single mark stands above the plot, where there are no lines.
            if self.marks.len() == 1 {
                let x = (x - width / 2.0).min(WIDTH - width).max(2.0);
                canvas.text(x, top - 4.0, "start", name);
                continue;
            }
            let x = if x + 4.0 + width > WIDTH { x - 4.0 - width } else { x + 4.0 };
            if let Some((row, free)) = rows.iter_mut().enumerate().find(|(_, free)| **free <= x) {
                *free = x + width + 4.0;
                canvas.text(x, base - 6.0 - row as f64 * 15.0, "start halo", name);
            }
        }
    }

    /// From point to point, or in steps from the foot of the first one on; of steps, points closer than a
    /// pixel to the last one drawn are left out.
    fn path(&self, canvas: &Canvas, line: &Line) -> String {
        let mut path = String::new();
        let Some(&(first, _)) = line.points.first() else { return path };
        if line.join == Join::Straight {
            for (i, &(px, py)) in line.points.iter().enumerate() {
                let (to, x, y) = (if i == 0 { 'M' } else { 'L' }, self.x(px), canvas.y(&self.y, py));
                let _ = write!(path, "{to}{x:.1} {y:.1}");
            }
            return path;
        }
        let (mut x, mut y) = (self.x(first), canvas.base());
        let _ = write!(path, "M{x:.1} {y:.1}");
        for (i, &(px, py)) in line.points.iter().enumerate() {
            let (nx, ny) = (self.x(px), canvas.y(&self.y, py));
            if (nx - x).abs() + (ny - y).abs() >= 0.8 || i + 1 == line.points.len() {
                let _ = write!(path, "H{nx:.1}V{ny:.1}");
                (x, y) = (nx, ny);
            }
        }
        let _ = write!(path, "H{:.1}", WIDTH - RIGHT);
        path
    }
}

impl BarChart {
    /// The chart as an `<svg>` element.
    pub(crate) fn render(&self) -> String {
        let names: Vec<&str> = self.series.iter().map(|s| s.0.as_str()).collect();
        let group = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let longest = self.groups.iter().map(|g| self::width(g)).fold(0.0, f64::max);
        // Names that don't fit side by side stand aslant, below one another.
        let aslant = longest + 6.0 > group;
        let room = if aslant { (longest * SLANT.to_radians().sin()).min(MOST_SLANT) } else { 0.0 };
        let mut canvas = Canvas::new(&self.about, &names, &self.y, Key::Bar, room);
        let base = canvas.base();
        let width = (group * 0.8 / self.series.len().max(1) as f64).min(64.0);
        let every = if aslant { (LINE / group).ceil().max(1.0) as usize } else { 1 };
        for (g, name) in self.groups.iter().enumerate() {
            let middle = LEFT + (g as f64 + 0.5) * group;
            if g % every == 0 && aslant {
                canvas.slanted(middle + 4.0, base + 14.0, name);
            } else if g % every == 0 {
                canvas.text(middle, base + 17.0, "middle", name);
            }
            let left = middle - width * self.series.len() as f64 / 2.0;
            for (s, (series, bars)) in self.series.iter().enumerate() {
                let Some(Some((value, label))) = bars.get(g) else { continue };
                let (x, top) = (left + s as f64 * width, canvas.y(&self.y, *value));
                let _ = write!(
                    canvas.out,
                    "<rect class=\"bar s{}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                     <title>{}, {}: {}</title></rect>",
                    s % SERIES,
                    x + 1.0,
                    (width - 2.0).max(0.5),
                    base - top,
                    escape(series),
                    escape(name),
                    escape(label)
                );
                if self::width(label) <= width + 3.0 {
                    canvas.text(x + width / 2.0, top - 4.0, "middle", label);
                }
            }
        }
        canvas.finish(&self.x_label)
    }
}

/// Text as it may stand in an element or a quoted attribute; characters that XML doesn't allow become U+FFFD.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(v: f64) -> String {
        format!("{v}")
    }

    fn about() -> About {
        About { id: "a".into(), title: "<b> & \"c\"".into(), description: "d\u{1}".into() }
    }

    #[test]
    fn ticks_are_round_and_hold_the_values() {
        let ticks = |a: Axis| a.ticks().collect::<Vec<_>>();
        assert_eq!(ticks(Axis::linear("", 1.0, plain)).len(), 6);
        assert_eq!(ticks(Axis::linear("", 9.3, plain)), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(ticks(Axis::linear("", f64::NAN, plain)).len(), 6);
        assert_eq!(ticks(Axis::log("", 10.0, (1.0, 1000.0), plain)), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(Axis::log("", 10.0, (30.0, 31.0), plain)), [10.0, 100.0]);
        assert_eq!(ticks(Axis::log("", 2.0, (1.0, 32.0), plain)), [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]);
        // A long axis has labels at every second power or so.
        assert!(ticks(Axis::log("", 10.0, (1.0, 1e18), plain)).len() <= 8);
    }

    #[test]
    fn places_are_shares_of_the_axis() {
        let log = Axis::log("", 10.0, (1.0, 100.0), plain);
        for (value, share) in
            [(1.0, 0.0), (10.0, 0.5), (100.0, 1.0), (1e9, 1.0), (-3.0, 0.0), (f64::NAN, 0.0)]
        {
            assert!((log.at(value) - share).abs() < 1e-9, "{value}");
        }
    }

    fn line(name: &str, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, join: Join::Steps }
    }

    /// A curve goes through what was computed, and ends there.
    #[test]
    fn curves_are_straight_between_marked_points() {
        let lines =
            vec![Line { join: Join::Straight, ..line("n", vec![(0.0, 1.0), (5.0, 2.0), (10.0, 0.0)]) }];
        let (x, y) = (Axis::linear("x", 20.0, plain), Axis::linear("y", 2.0, plain));
        let chart = LineChart { about: about(), x, y, lines, marks: vec![(5.0, "best".into())] };
        let svg = chart.render();
        assert!(svg.contains(" d=\"M50.0 149.0L154.0 54.0L258.0 244.0\""), "{svg}");
        assert_eq!(svg.matches("<circle").count(), 3);
        let label = svg.split("best</text>").next().unwrap().rsplit(" y=\"").next().unwrap();
        assert!(
            label.split('"').next().unwrap().parse::<f64>().unwrap() < 54.0,
            "the mark's name is above the plot"
        );
    }

    #[test]
    fn every_bar_has_its_name() {
        let groups: Vec<String> = (0..10).map(|n| format!("a long name of bar {n}")).collect();
        let bars = groups.iter().map(|g| Some((1.0, g.clone()))).collect();
        let chart = BarChart {
            about: about(),
            x_label: "x".into(),
            y: Axis::linear("y", 1.0, plain),
            groups: groups.clone(),
            series: vec![("s".into(), bars)],
        };
        let svg = chart.render();
        assert_eq!(svg.matches("rotate(").count(), groups.len(), "{svg}");
    }

    #[test]
    fn lines_are_steps_that_skip_what_no_pixel_shows() {
        let points: Vec<_> = (0..=100_000).map(|i| (1.0 + f64::from(i), f64::from(i) / 1e5)).collect();
        let x = Axis::log("x", 10.0, (1.0, 1e5), plain);
        let lines = vec![line("n", points), line("empty", Vec::new())];
        let chart =
            LineChart { about: about(), x, y: Axis::linear("y", 1.0, plain), lines, marks: Vec::new() };
        let svg = chart.render();
        assert!(svg.len() < 12_000, "{}", svg.len());
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let node = |tag| tree.descendants().find(|n| n.has_tag_name(tag)).unwrap();
        assert_eq!(node("title").text(), Some("<b> & \"c\""));
        assert_eq!(node("desc").text(), Some("d\u{fffd}"));
        let path = tree.descendants().filter(|n| n.attribute("class") == Some("line s0")).nth(1).unwrap();
        // Up to the top of the plot at its right end.
        assert!(path.attribute("d").unwrap().ends_with("V54.0H466.0"), "{path:?}");
    }

    #[test]
    fn bars_are_as_high_as_their_values() {
        let series =
            vec![("one".to_owned(), vec![Some((2.0, "2".to_owned())), None]), ("two".to_owned(), Vec::new())];
        let chart = BarChart {
            about: about(),
            x_label: "x".into(),
            y: Axis::linear("y", 4.0, plain),
            groups: vec!["g".into(), "h".into()],
            series,
        };
        let svg = chart.render();
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let bars: Vec<_> = tree.descendants().filter(|n| n.has_tag_name("rect")).collect();
        assert_eq!(bars.len(), 1);
        assert_eq!(bars[0].attribute("height"), Some("95.0"));
    }
}
