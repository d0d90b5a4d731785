//! Charts of lines.

use std::fmt::Write;

use super::{About, Axis, Canvas, Key, LEFT, RIGHT, SERIES, WIDTH, escape, width};

/// The shape of a line between its points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Steps: each value holds from its x on, as in a cumulative distribution.
    Steps,
    /// Straight lines between marked points: the points were computed, the lines interpolate.
    Straight,
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
        let names: Vec<&str> = self.lines.iter().map(|l| l.name.as_str()).collect();
        let mut canvas = Canvas::new(&self.about, &names, &self.y, Key::Line, 0.0);
        let (top, base) = (canvas.top, canvas.base());
        for value in self.x.ticks() {
            let x = self.x(value);
            let _ = write!(canvas.out, "<path class=\"grid\" d=\"M{x:.1} {top:.1}V{base:.1}\"/>");
            let label = self.x.text(value);
            canvas.text(x.min(WIDTH - width(&label) / 2.0), base + 17.0, "middle", &label);
        }
        self.draw_marks(&mut canvas);
        for (i, line) in self.lines.iter().enumerate() {
            let (path, class) = (self.path(&canvas, line), i % SERIES);
            let _ = write!(canvas.out, "<path class=\"line s{class}\" d=\"{path}\"/>");
            if line.join == Join::Straight && line.points.len() <= DOTS {
                for &(px, py) in &line.points {
                    let (x, y) = (self.x(px), canvas.y(&self.y, py));
                    let _ = write!(
                        canvas.out,
                        "<circle class=\"bar s{class}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"><title>{}, {}: {}, {}</title></circle>",
                        escape(&line.name),
                        escape(&self.x.text(px)),
                        escape(&self.y.label),
                        escape(&self.y.text(py))
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

#[cfg(test)]
mod tests {
    use super::super::tests::{about, plain};
    use super::*;

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
        let of = |attribute: &str| -> f64 {
            let label = svg.split("best</text>").next().unwrap().rsplit(attribute).next().unwrap();
            label.split('"').next().unwrap().parse().unwrap()
        };
        let (x, y) = (of(" x=\""), of(" y=\""));
        assert!((154.0..170.0).contains(&x) && (200.0..244.0).contains(&y), "the mark's name is at {x}, {y}");
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
}
