//! A plan's graph as a picture (SVG).
//!
//! Stages stand in columns, by the longest way that leads to them. A wire to the next column is a curve; any
//! other goes through the space between the columns and a track below all boxes, so that no wire passes under
//! a box. The wires of a box leave and enter at places of their own, and a label stands where its wire
//! leaves.

use std::fmt::Write;

use super::config::Plan;
use super::render::ports;
use slipstream_core::registry::Group;

/// Least width of a box, and its least height.
const BOX: (f64, f64) = (130.0, 44.0);
/// Height of a box for each wire on one side.
const WIRE: f64 = 16.0;
/// Space between two boxes of a column.
const BETWEEN: f64 = 36.0;
/// Least space between two columns.
const GAP: f64 = 60.0;
/// Space between two tracks.
const TRACK: f64 = 18.0;
/// Space around all.
const MARGIN: f64 = 20.0;
/// Width of a character of a label, on average.
const CHARACTER: f64 = 6.4;
/// Width of a character of a stage's name, on average.
const LETTER: f64 = 7.6;

const STYLE: &str = "<style>rect{fill:#fff;stroke:#345;stroke-width:1.5}.port{fill:#eef4fa}.locality{fill:#fdf1dc}\
    text{fill:#123;text-anchor:middle}.kind{fill:#678;font-size:11px}path{fill:none;stroke:#345;\
    stroke-width:1.5}.label{font-size:11px;fill:#345;text-anchor:start}@media(prefers-color-scheme:dark){rect{fill:#222c36;\
    stroke:#9ab}.port{fill:#1d3040}.locality{fill:#453a22}text{fill:#e6edf3}.kind,.label{fill:#9ab}\
    path{stroke:#9ab}}</style>";

/// The layout of a drawing.
struct Picture<'a> {
    plan: &'a Plan,
    /// Column and row of each stage.
    places: Vec<(usize, usize)>,
    /// Width of all boxes: the longest name has room in one.
    width: f64,
    /// Height of all boxes.
    height: f64,
    gap: f64,
    /// Lower end of the boxes.
    bottom: f64,
}

impl Plan {
    pub(super) fn svg(&self) -> String {
        Picture::of(self).draw()
    }
}

impl<'a> Picture<'a> {
    fn of(plan: &'a Plan) -> Self {
        let places = plan.layout();
        let wires = |side: fn(&super::config::Wire) -> usize| {
            (0..plan.stages.len())
                .map(|s| plan.wires.iter().filter(|w| side(w) == s).count())
                .max()
                .unwrap_or(0)
        };
        let most = wires(|w| w.from).max(wires(|w| w.to));
        let height = BOX.1.max((most + 1) as f64 * WIRE);
        let name = plan.stages.iter().map(|s| s.name.chars().count()).max().unwrap_or(0);
        let width = BOX.0.max(name as f64 * LETTER + 16.0).ceil();
        let label = plan.wires.iter().map(|w| ports(w).chars().count()).max().unwrap_or(0);
        let gap = GAP.max(label as f64 * CHARACTER + 24.0);
        let rows = places.iter().map(|p| p.1 + 1).max().unwrap_or(1) as f64;
        let bottom = MARGIN + rows * (height + BETWEEN) - BETWEEN;
        Self { plan, places, width, height, gap, bottom }
    }

    /// Upper left corner of a box.
    fn corner(&self, stage: usize) -> (f64, f64) {
        let (column, row) = self.places.get(stage).copied().unwrap_or_default();
        (MARGIN + column as f64 * (self.width + self.gap), MARGIN + row as f64 * (self.height + BETWEEN))
    }

    /// The point at which a wire meets the box at one of its ends, and its number there.
    fn end(&self, wire: usize, leaves: bool) -> (f64, f64, usize) {
        let stage = |w: &super::config::Wire| if leaves { w.from } else { w.to };
        let Some(of) = self.plan.wires.get(wire).map(stage) else { return (0.0, 0.0, 0) };
        let beside = self.plan.wires.iter().filter(|w| stage(w) == of).count();
        let number = self.plan.wires.iter().take(wire).filter(|w| stage(w) == of).count();
        let (x, y) = self.corner(of);
        let share = (number + 1) as f64 / (beside + 1) as f64;
        (if leaves { x + self.width } else { x }, y + self.height * share, number)
    }

    fn draw(&self) -> String {
        let columns = self.places.iter().map(|p| p.0 + 1).max().unwrap_or(1) as f64;
        let mut wires = String::new();
        let mut tracks = 0;
        for (i, wire) in self.plan.wires.iter().enumerate() {
            let ((x1, y1, n1), (x2, y2, n2)) = (self.end(i, true), self.end(i, false));
            let column = |stage: usize| self.places.get(stage).map_or(0, |p| p.0);
            let path = if column(wire.to) == column(wire.from) + 1 {
                let bend = (x2 - x1) / 2.0;
                format!("M{x1},{y1} C{},{y1} {},{y2} {x2},{y2}", x1 + bend, x2 - bend)
            } else {
                tracks += 1;
                let track = self.bottom + f64::from(tracks) * TRACK;
                // Down and up again beside the boxes, each wire at a place of its own.
                let (down, up) = (x1 + self.gap - 14.0 - n1 as f64 * 5.0, x2 - 14.0 - n2 as f64 * 5.0);
                format!("M{x1},{y1} H{down} V{track} H{up} V{y2} H{x2}")
            };
            let _ = writeln!(wires, "<path marker-end=\"url(#a)\" d=\"{path}\"/>");
            let label = ports(wire);
            if !label.is_empty() {
                let (x, y) = (x1 + 5.0, y1 - 4.0);
                let _ =
                    writeln!(wires, "<text class=\"label\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(&label));
            }
        }
        let beside = if tracks > 0 { self.gap } else { 0.0 };
        let (left, width) =
            (0.0 - beside, columns * (self.width + self.gap) - self.gap + 2.0 * (MARGIN + beside));
        let height = self.bottom + f64::from(tracks) * TRACK + MARGIN;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"{left} 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\" \
             aria-label=\"pipeline\">\n{STYLE}\n\
             <defs><marker id=\"a\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" \
             orient=\"auto\"><path d=\"M0,1 L9,5 L0,9\"/></marker></defs>\n{wires}"
        );
        (0..self.plan.stages.len()).for_each(|stage| self.stage(stage, &mut text));
        text.push_str("</svg>\n");
        text
    }

    fn stage(&self, id: usize, text: &mut String) {
        let Some(stage) = self.plan.stages.get(id) else { return };
        let (x, y) = self.corner(id);
        let class = match stage.kind.group {
            Group::Port => "port",
            Group::Locality => "locality",
            Group::Function | Group::Plumbing => "",
        };
        let (w, h) = (self.width, self.height);
        let _ = writeln!(
            text,
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"6\"/>"
        );
        let (middle, base) = (x + w / 2.0, y + h / 2.0);
        let name = escaped(&stage.name);
        if stage.name == stage.kind.name {
            let _ = writeln!(text, "<text x=\"{middle}\" y=\"{}\">{name}</text>", base + 5.0);
        } else {
            let _ = writeln!(text, "<text x=\"{middle}\" y=\"{}\">{name}</text>", base - 3.0);
            let kind = stage.kind.name;
            let _ = writeln!(text, "<text class=\"kind\" x=\"{middle}\" y=\"{}\">{kind}</text>", base + 13.0);
        }
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    /// The value of an attribute of an element's text.
    fn number(text: &str, name: &str) -> f64 {
        let at = text.split(&format!(" {name}=\"")).nth(1).unwrap();
        at.split('"').next().unwrap().parse().unwrap()
    }

    /// Names don't run out of their boxes, into wires and other names.
    #[test]
    fn a_box_has_room_for_its_name() {
        for (name, most) in [("fw", 130.0), ("a-name-of-forty-letters-as-people-write-it", 400.0)] {
            let graph = format!("in :: synth -> {name} :: counter -> out :: null");
            let svg = Plan::from_graph(&graph, None, None, Path::new("")).unwrap().svg();
            let boxes = svg.lines().filter(|l| l.starts_with("<rect"));
            let mut boxes: Vec<_> = boxes.map(|l| (number(l, "x"), number(l, "width"))).collect();
            boxes.sort_by(|a, b| a.0.total_cmp(&b.0));
            let room = name.len() as f64 * 7.0;
            assert!(boxes.iter().all(|(_, width)| (room..=most).contains(width)), "{svg}");
            assert!(boxes.windows(2).all(|two| two[0].0 + two[0].1 + GAP <= two[1].0), "{svg}");
            assert!(svg.contains("viewBox=\"0 0 "), "{svg}");
        }
    }

    /// A wire back leads below all boxes, and labels of one stage stand one below the other.
    #[test]
    fn wires_back_go_round_the_boxes() {
        let graph = "in :: synth -> [a]r :: router(interfaces=[\"a 10.0.0.1/24\", \"b 10.1.0.1/24\"])[b] -> reframe -> [b]r; \
                     r[a] -> out :: null";
        let plan = Plan::from_graph(graph, None, None, Path::new("")).unwrap();
        let svg = plan.svg();
        let lowest = svg
            .lines()
            .filter(|l| l.starts_with("<rect"))
            .map(|l| number(l, "y") + number(l, "height"))
            .fold(0.0, f64::max);
        let back = svg.lines().find(|l| l.starts_with("<path") && l.contains(" V")).unwrap();
        let track: f64 = back.split(" V").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        assert!(track > lowest, "{track} {lowest}");
        let mut labels: Vec<f64> =
            svg.lines().filter(|l| l.starts_with("<text class=\"label\"")).map(|l| number(l, "y")).collect();
        labels.dedup_by(|a, b| (*a - *b).abs() < 10.0);
        assert!(labels.len() >= 3, "labels lie on one another: {svg}");
    }
}
