//! Charts of bars.

use std::fmt::Write;

use super::{About, Axis, Canvas, Key, LEFT, LINE, MOST_SLANT, RIGHT, SLANT, WIDTH, escape, series, width};

/// The height of a bar and the text on it; none where there is no value.
pub type Bar = Option<(f64, String)>;

/// Groups of bars side by side, one bar a series.
#[derive(Clone, Debug)]
pub struct BarChart {
    /// Name and content.
    pub about: About,
    /// The name of the x axis.
    pub x_label: String,
    /// The y axis.
    pub y: Axis,
    /// Names of the groups.
    pub groups: Vec<String>,
    /// Names of the series, and one bar a group of each.
    pub series: Vec<(String, Vec<Bar>)>,
}

impl BarChart {
    /// The chart as an `<svg>` element.
    #[must_use]
    pub fn render(&self) -> String {
        let names = self.series.iter().enumerate().map(|(i, s)| (s.0.as_str(), Key::Bar(i)));
        let names: Vec<_> = names.collect();
        let group = (WIDTH - LEFT - RIGHT) / self.groups.len().max(1) as f64;
        let longest = self.groups.iter().map(|g| self::width(g)).fold(0.0, f64::max);
        // Names that don't fit side by side stand aslant, below one another.
        let aslant = longest + 6.0 > group;
        let room = if aslant { (longest * SLANT.to_radians().sin()).min(MOST_SLANT) } else { 0.0 };
        let mut canvas = Canvas::new(&self.about, &names, &self.y, room);
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
            for (s, (name_of_series, bars)) in self.series.iter().enumerate() {
                let Some(Some((value, label))) = bars.get(g) else { continue };
                let (x, top) = (left + s as f64 * width, canvas.y(&self.y, *value));
                let _ = write!(
                    canvas.out,
                    "<rect class=\"bar {}\" x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\">\
                     <title>{}, {}: {}</title></rect>",
                    series(s),
                    x + 1.0,
                    (width - 2.0).max(0.5),
                    base - top,
                    escape(name_of_series),
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

#[cfg(test)]
mod tests {
    use super::super::tests::{about, plain};
    use super::*;

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
