//! Charts of lines.

use std::fmt::Write;

use super::{About, Axis, Canvas, Key, LEFT, RIGHT, WIDTH, escape, series, width};

/// The shape of a line between its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Steps: each value holds from its x on, as in a cumulative distribution.
    Steps,
    /// Straight lines between marked points: the points were computed, the lines interpolate.
    Straight,
    /// Hollow marks, joined by a thin dotted line: points that somebody else published.
    Published {
        /// The line of the chart that they are to be compared with, whose colour they have.
        beside: usize,
    },
}

/// The range of a point's values: a vertical stroke through the point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ErrorBar {
    /// The line that it belongs to.
    pub line: usize,
    /// The place of the point.
    pub x: f64,
    /// The least value and the largest.
    pub y: (f64, f64),
}

/// A line through points.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name in the legend.
    pub name: String,
    /// The points, x first, in ascending order of x.
    pub points: Vec<(f64, f64)>,
    /// Its shape.
    pub join: Join,
}

/// Lines over one x axis, and vertical marks at places of it.
#[derive(Clone, Debug)]
pub struct LineChart {
    /// Name and content.
    pub about: About,
    /// The x axis.
    pub x: Axis,
    /// The y axis.
    pub y: Axis,
    /// The lines.
    pub lines: Vec<Line>,
    /// Values of x at which a vertical mark stands, with their names.
    pub marks: Vec<(f64, String)>,
}

/// Points of a line that are shown one by one: more of them cover the line.
const DOTS: usize = 60;

impl LineChart {
    /// The chart as an `<svg>` element.
    #[must_use]
    pub fn render(&self) -> String {
        self.render_with(&[])
    }

    /// The chart as an `<svg>` element, with the ranges of some points.
    #[must_use]
    pub fn render_with(&self, bars: &[ErrorBar]) -> String {
        // A line without points is none, and has no name in the legend.
        let drawn = || self.lines.iter().enumerate().filter(|(_, l)| !l.points.is_empty());
        let keys = drawn().map(|(i, l)| match l.join {
            Join::Published { .. } => (l.name.as_str(), Key::Published(self.number(i))),
            Join::Steps | Join::Straight => (l.name.as_str(), Key::Line(self.number(i))),
        });
        let mut canvas = Canvas::new(&self.about, &keys.collect::<Vec<_>>(), &self.y, 0.0);
        let (top, base) = (canvas.top, canvas.base());
        for value in self.x.ticks() {
            let x = self.x(value);
            let _ = write!(canvas.out, "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{base:.1}\"/>");
            let label = self.x.text(value);
            canvas.text(x.min(WIDTH - width(&label) / 2.0), base + 17.0, "middle", &label);
        }
        self.draw_marks(&mut canvas);
        for bar in bars {
            let (x, low, high) = (self.x(bar.x), canvas.y(&self.y, bar.y.0), canvas.y(&self.y, bar.y.1));
            let (left, right, class) = (x - 3.0, x + 3.0, series(self.number(bar.line)));
            let _ = write!(
                canvas.out,
                "<path class=\"range {class}\" d=\"M{left:.1} {high:.1}H{right:.1}M{x:.1} {high:.1}V{low:.1}M{left:.1} {low:.1}H{right:.1}\"/>"
            );
        }
        for (i, line) in drawn() {
            let (path, class) = (self.path(&canvas, line), series(self.number(i)));
            let kind = if matches!(line.join, Join::Published { .. }) { "published" } else { "line" };
            let _ = write!(canvas.out, "<path class=\"{kind} {class}\" d=\"{path}\"/>");
            if line.join != Join::Steps && line.points.len() <= DOTS {
                line.points.iter().for_each(|point| self.mark_point(&mut canvas, line, &class, *point));
            }
        }
        canvas.finish(&self.x.label)
    }

    /// The number of the series whose looks a line has: its own, or that of the line beside which it stands.
    fn number(&self, line: usize) -> usize {
        match self.lines.get(line).map(|l| l.join) {
            Some(Join::Published { beside }) => beside,
            _ => line,
        }
    }

    /// A mark at a point, which says its values to whoever points at it.
    fn mark_point(&self, canvas: &mut Canvas, line: &Line, class: &str, (px, py): (f64, f64)) {
        let (x, y) = (self.x(px), canvas.y(&self.y, py));
        let _ = match line.join {
            Join::Published { .. } => write!(
                canvas.out,
                "<rect class=\"open {class}\" x=\"{:.1}\" y=\"{:.1}\" width=\"5\" height=\"5\">",
                x - 2.5,
                y - 2.5
            ),
            Join::Steps | Join::Straight => {
                write!(canvas.out, "<circle class=\"bar {class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\">")
            }
        };
        let _ = write!(
            canvas.out,
            "<title>{}, {}: {}, {}</title></{}>",
            escape(&line.name),
            escape(&self.x.text(px)),
            escape(&self.y.label),
            escape(&self.y.text(py)),
            if matches!(line.join, Join::Published { .. }) { "rect" } else { "circle" }
        );
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
        if line.join != Join::Steps {
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

#[cfg(test)]
mod tests {
    use super::super::tests::{about, plain};
    use super::*;

    fn line(name: &str, points: Vec<(f64, f64)>) -> Line {
        Line { name: name.into(), points, join: Join::Steps }
    }

    /// Nobody could tell the seventh line from the first, by colour and dash alike.
    #[test]
    fn every_line_has_its_looks() {
        let names: Vec<String> = (0..18).map(|n| format!("line {n}")).collect();
        let lines = names.iter().map(|name| line(name, vec![(1.0, 0.5), (10.0, 1.0)])).collect();
        let (x, y) = (Axis::log("x", 10.0, (1.0, 10.0), plain), Axis::linear("y", 1.0, plain));
        let svg = LineChart { about: about(), x, y, lines, marks: Vec::new() }.render();
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let classes =
            tree.descendants().filter_map(|n| n.attribute("class")).filter(|c| c.starts_with("line"));
        let mut looks: Vec<(String, String)> = classes.map(looks_of).collect();
        // Once in the legend, once in the chart.
        assert_eq!(looks.len(), 36);
        looks.sort();
        looks.dedup();
        assert_eq!(looks.len(), 18, "{looks:?}");
        // Whoever sees no colours tells the six colours by their dashes.
        let dashes: std::collections::BTreeSet<_> =
            (0..6).map(|n| looks_of(&format!("line s{n}")).1).collect();
        assert_eq!(dashes.len(), 6, "{dashes:?}");
    }

    /// Colour and dash of a line of these classes; of rules for several of them the last one counts.
    fn looks_of(classes: &str) -> (String, String) {
        let value = |name: &str| {
            let of = |class: &str| {
                let rule = crate::STYLE.split(&format!(".line.{class} {{")).nth(1)?.split('}').next()?;
                Some(rule.split(&format!("{name}: ")).nth(1)?.split(';').next()?.to_owned())
            };
            classes.split(' ').skip(1).filter_map(of).last().unwrap_or_default()
        };
        (value("stroke"), value("stroke-dasharray"))
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
        let of = |attribute: &str| -> f64 {
            let label = svg.split("best</text>").next().unwrap().rsplit(attribute).next().unwrap();
            label.split('"').next().unwrap().parse().unwrap()
        };
        let (x, y) = (of(" x=\""), of(" y=\""));
        assert!((154.0..170.0).contains(&x) && (200.0..244.0).contains(&y), "the mark's name is at {x}, {y}");
    }

    /// Published points have the colour of the line beside them, marks of their own, and their ranges.
    #[test]
    fn published_points_stand_beside_a_line() {
        let ours = Line { join: Join::Straight, ..line("ours", vec![(0.0, 1.0), (10.0, 2.0)]) };
        let published = Join::Published { beside: 0 };
        let paper = Line { join: published, ..line("paper", vec![(0.0, 1.0), (5.0, 2.0), (10.0, 0.0)]) };
        let (x, y) = (Axis::linear("x", 20.0, plain), Axis::linear("y", 2.0, plain));
        let chart = LineChart { about: about(), x, y, lines: vec![ours, paper], marks: Vec::new() };
        let svg = chart.render_with(&[ErrorBar { line: 1, x: 5.0, y: (1.0, 2.0) }]);
        roxmltree::Document::parse(&svg).unwrap();
        let count = |text: &str| svg.matches(text).count();
        assert_eq!((count("<circle class=\"bar s0\""), count("<rect class=\"open s0\"")), (2, 4), "{svg}");
        // The legend has one of each.
        assert_eq!(count("<path class=\"published s0\""), 2, "{svg}");
        assert!(svg.contains("class=\"range s0\" d=\"M151.0 54.0H157.0M154.0 54.0V149.0M"), "{svg}");
    }

    #[test]
    fn lines_are_steps_that_skip_what_no_pixel_shows() {
        let points: Vec<_> = (0..=100_000).map(|i| (1.0 + f64::from(i), f64::from(i) / 1e5)).collect();
        let x = Axis::log("x", 10.0, (1.0, 1e5), plain);
        let lines = vec![line("n", points), line("empty", Vec::new())];
        let chart =
            LineChart { about: about(), x, y: Axis::linear("y", 1.0, plain), lines, marks: Vec::new() };
        let svg = chart.render();
        assert!(!svg.contains(">empty<") && !svg.contains(" s1\""), "{svg}");
        assert!(svg.len() < 12_000, "{}", svg.len());
        let tree = roxmltree::Document::parse(&svg).unwrap();
        let node = |tag| tree.descendants().find(|n| n.has_tag_name(tag)).unwrap();
        assert_eq!(node("title").text(), Some("<b> & \"c\""));
        assert_eq!(node("desc").text(), Some("d\u{fffd}"));
        let path = tree.descendants().filter(|n| n.attribute("class") == Some("line s0")).nth(1).unwrap();
        // Up to the top of the plot at its right end.
        assert!(path.attribute("d").unwrap().ends_with("V54.0H466.0"), "{path:?}");
    }
}
