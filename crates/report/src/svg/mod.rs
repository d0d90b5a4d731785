//! Charts of lines and bars as inline SVG: no script, no font, no colour of their own.
//!
//! Colours, dashes and type come from the page's style sheet ([`STYLE`](crate::STYLE)) by class: `s0` to `s5`
//! for series, with `again1` from the seventh one on and `again2` from the thirteenth on, `grid`, `axis`,
//! `mark`, `label`, so that a chart follows the page into dark mode. Every chart has a title and a
//! description for screen readers. Coordinates are in a box of 480 by 300 and more, which is legible on a
//! telephone.
//!
//! ```
//! use slipstream_report::svg::{About, Axis, Join, Line, LineChart};
//!
//! let whole = |v: f64| format!("{v:.0}");
//! let chart = LineChart {
//!     about: About {
//!         id: "delay".into(),
//!         title: "Delay by load".into(),
//!         description: "Delay grows without bound as the load nears 1.".into(),
//!     },
//!     x: Axis::linear("load", 1.0, whole),
//!     y: Axis::linear("µs", 9.0, whole),
//!     lines: vec![Line {
//!         name: "mean".into(),
//!         points: vec![(0.5, 1.0), (0.9, 9.0)],
//!         join: Join::Straight,
//!     }],
//!     marks: Vec::new(),
//! };
//! assert!(chart.render().starts_with("<svg"));
//! ```

mod axis;
mod bar;
mod line;

use std::fmt::Write;

pub use axis::Axis;
pub use bar::{Bar, BarChart};
pub use line::{ErrorBar, Join, Line, LineChart};

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
/// The type of charts that stand in no page.
const FONT: &str = "13px system-ui, sans-serif";
/// Colours of series that the style sheet has.
const SERIES: usize = 6;

/// The classes of a series by its number: its colour and, from the seventh series on, which have the colours
/// of those before, a dash of its own.
fn series(number: usize) -> String {
    match number / SERIES {
        0 => format!("s{number}"),
        again => format!("s{} again{}", number % SERIES, again.min(2)),
    }
}

/// A chart as a file of its own: the same element, with the style sheet in it, on the sheet's colour.
///
/// ```
/// # use slipstream_report::svg::{About, Axis, BarChart, file};
/// # let about = About { id: "a".into(), title: "t".into(), description: "d".into() };
/// # let (y, groups, series) = (Axis::linear("y", 1.0, |v| v.to_string()), Vec::new(), Vec::new());
/// # let chart = BarChart { about, x_label: "x".into(), y, groups, series };
/// assert!(file(&chart.render()).contains("xmlns=\"http://www.w3.org/2000/svg\""));
/// ```
#[must_use]
pub fn file(svg: &str) -> String {
    let Some((head, rest)) = svg.strip_prefix("<svg").and_then(|all| all.split_once('>')) else {
        return svg.to_owned();
    };
    let (style, font) = (escape(crate::STYLE.replace('\n', " ").as_str()), FONT);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\"{head}>\
         <style>{style} svg {{ font: {font}; padding: 12px; background: var(--sheet); }}</style>{rest}\n",
        WIDTH * 1.5
    )
}

/// The name of a chart and its content in words, for screen readers.
#[derive(Clone, Debug)]
pub struct About {
    /// Begins the ids of the chart's elements; unique in the page.
    pub id: String,
    /// The name.
    pub title: String,
    /// The content, in a sentence or two.
    pub description: String,
}

/// The sign before a name in the legend, with the class of its colour.
#[derive(Clone, Copy)]
enum Key {
    Line(usize),
    Published(usize),
    Bar(usize),
}

impl Key {
    /// The number of the series.
    fn number(self) -> usize {
        let (Self::Line(number) | Self::Published(number) | Self::Bar(number)) = self;
        number
    }
}

/// An `<svg>` element that is being drawn.
struct Canvas {
    out: String,
    top: f64,
    /// Height for names below the x axis beyond a line of type.
    room: f64,
}

impl Canvas {
    /// Writes the head, the legend and the y axis.
    fn new(about: &About, names: &[(&str, Key)], y: &Axis, room: f64) -> Self {
        let places = legend(names.iter().map(|(name, _)| *name));
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
        for ((name, key), (x, row)) in names.iter().zip(places) {
            let y = row * ROW + 14.0;
            let class = series(key.number());
            let _ = match *key {
                Key::Line(_) => {
                    write!(out, "<path class=\"line {class}\" d=\"M{x:.1} {:.1}h18\"/>", y - 4.0)
                }
                Key::Published(_) => write!(
                    out,
                    "<path class=\"published {class}\" d=\"M{x:.1} {:.1}h18\"/>\
                     <rect class=\"open {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"5\" height=\"5\"/>",
                    y - 4.0,
                    x + 6.5,
                    y - 6.5
                ),
                Key::Bar(_) => write!(
                    out,
                    "<path class=\"bar {class}\" d=\"M{:.1} {:.1}h12v-12h-12z\"/>",
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
            canvas.text(LEFT - 6.0, at + 4.5, "end", &y.text(value));
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

/// Approximate width of a text.
fn width(text: &str) -> f64 {
    text.chars().count() as f64 * CHARACTER
}

/// Places of the series' names in the legend: x and row, wrapped to the width.
fn legend<'a>(names: impl Iterator<Item = &'a str>) -> Vec<(f64, f64)> {
    let (mut x, mut row) = (2.0, 0.0);
    let place = |name: &str| {
        let width = 23.0 + width(name) + 18.0;
        if x > 2.0 && x + width > WIDTH {
            (x, row) = (2.0, row + 1.0);
        }
        let at = (x, row);
        x += width;
        at
    };
    names.map(place).collect()
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
    use super::{About, Axis, BarChart, file};

    /// A program that reads SVG finds an element of SVG, and its style as one text.
    #[test]
    fn a_file_is_a_document_with_its_style() {
        let (y, groups, series) = (Axis::linear("y", 1.0, plain), vec!["g".into()], Vec::new());
        let text = file(&BarChart { about: about(), x_label: "x".into(), y, groups, series }.render());
        let tree = roxmltree::Document::parse(&text).unwrap();
        let root = tree.root_element();
        assert_eq!(root.tag_name().namespace(), Some("http://www.w3.org/2000/svg"));
        assert_eq!(root.attribute("viewBox").map(|v| v.starts_with("0 0 480 ")), Some(true));
        let style = root.children().find(|n| n.has_tag_name("style")).unwrap();
        assert!(style.text().unwrap().contains(".bar.s0 { fill: var(--s0); }"));
        assert!(root.children().any(|n| n.has_tag_name("title")));
    }

    pub(super) fn plain(v: f64) -> String {
        format!("{v}")
    }

    pub(super) fn about() -> About {
        About { id: "a".into(), title: "<b> & \"c\"".into(), description: "d\u{1}".into() }
    }
}
