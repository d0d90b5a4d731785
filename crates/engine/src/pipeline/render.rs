//! A plan's graph as text or picture.

use std::fmt::Write;

use super::config::{Plan, Wire};
use super::registry::Group;
use super::rounds::order;

/// How to draw a graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drawing {
    /// Click's arrows: what the pipeline language reads.
    Click,
    /// Graphviz.
    Dot,
    /// Mermaid.
    Mermaid,
    /// A picture.
    Svg,
}

impl Plan {
    /// The graph, drawn.
    #[must_use]
    pub fn draw(&self, how: Drawing) -> String {
        match how {
            Drawing::Click => self.click(),
            Drawing::Dot => self.dot(),
            Drawing::Mermaid => self.mermaid(),
            Drawing::Svg => self.svg(),
        }
    }

    fn name(&self, id: usize) -> &str {
        self.stages.get(id).map_or("", |s| s.name.as_str())
    }

    fn click(&self) -> String {
        let mut text = String::new();
        for stage in &self.stages {
            let settings: Vec<_> = stage.written.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let _ = write!(text, "{} :: {}", stage.name, stage.kind.name);
            let _ = writeln!(
                text,
                "{}",
                if settings.is_empty() { String::new() } else { format!("({})", settings.join(", ")) }
            );
        }
        text.push('\n');
        for wire in &self.wires {
            let output = wire.output.as_ref().map_or(String::new(), |p| format!("[{p}]"));
            let input = wire.input.as_ref().map_or(String::new(), |p| format!("[{p}]"));
            let _ = writeln!(text, "{}{output} -> {input}{}", self.name(wire.from), self.name(wire.to));
        }
        text
    }

    fn dot(&self) -> String {
        let mut text =
            "digraph pipeline {\n  rankdir=LR;\n  node [shape=box, fontname=\"sans-serif\"];\n".to_owned();
        for (i, stage) in self.stages.iter().enumerate() {
            let style = match stage.kind.group {
                Group::Port => ", shape=cds",
                Group::Locality => ", style=bold",
                Group::Function | Group::Plumbing => "",
            };
            let label = if stage.name == stage.kind.name {
                stage.name.clone()
            } else {
                format!("{}\\n{}", stage.name, stage.kind.name)
            };
            let _ = writeln!(text, "  s{i} [label=\"{label}\"{style}];");
        }
        for wire in &self.wires {
            let _ = writeln!(text, "  s{} -> s{} [label=\"{}\"];", wire.from, wire.to, ports(wire));
        }
        text.push_str("}\n");
        text
    }

    fn mermaid(&self) -> String {
        let mut text = "flowchart LR\n".to_owned();
        for (i, stage) in self.stages.iter().enumerate() {
            let (open, close) = if stage.kind.group == Group::Port { ("([", "])") } else { ("[", "]") };
            let label = if stage.name == stage.kind.name {
                stage.name.clone()
            } else {
                format!("{}<br>{}", stage.name, stage.kind.name)
            };
            let _ = writeln!(text, "  s{i}{open}\"{label}\"{close}");
        }
        for wire in &self.wires {
            let label = ports(wire);
            let arrow = if label.is_empty() { "-->".to_owned() } else { format!("-->|\"{label}\"|") };
            let _ = writeln!(text, "  s{} {arrow} s{}", wire.from, wire.to);
        }
        text
    }

    /// Column of each stage: the longest way that leads to it; and its row in that column.
    fn layout(&self) -> Vec<(usize, usize)> {
        let mut columns = vec![0usize; self.stages.len()];
        for id in order(&self.stages, &self.wires).unwrap_or_default() {
            let before = self.wires.iter().filter(|w| w.to == id).filter_map(|w| columns.get(w.from)).max();
            let column = before.map_or(0, |c| c + 1);
            if let Some(place) = columns.get_mut(id) {
                *place = column;
            }
        }
        let mut rows = vec![0usize; self.stages.len() + 1];
        let place = |column: &usize| {
            let row = rows.get_mut(*column).map_or(0, |r| {
                *r += 1;
                *r - 1
            });
            (*column, row)
        };
        columns.iter().map(place).collect()
    }

    fn svg(&self) -> String {
        const BOX: (f64, f64) = (130.0, 44.0);
        const STEP: (f64, f64) = (190.0, 84.0);
        let layout = self.layout();
        let columns = layout.iter().map(|p| p.0 + 1).max().unwrap_or(1) as f64;
        let rows = layout.iter().map(|p| p.1 + 1).max().unwrap_or(1) as f64;
        let (width, height) =
            (columns * STEP.0 - STEP.0 + BOX.0 + 40.0, rows * STEP.1 - STEP.1 + BOX.1 + 40.0);
        let at = |id: usize| {
            let (column, row) = layout.get(id).copied().unwrap_or_default();
            (20.0 + column as f64 * STEP.0, 20.0 + row as f64 * STEP.1)
        };
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, sans-serif\" font-size=\"13\" role=\"img\" aria-label=\"pipeline\">\n\
             <style>rect{{fill:#fff;stroke:#345;stroke-width:1.5}}.port{{fill:#eef4fa}}.locality{{fill:#fdf1dc}}\
             text{{fill:#123;text-anchor:middle}}.kind{{fill:#678;font-size:11px}}path{{fill:none;stroke:#345;\
             stroke-width:1.5}}.label{{font-size:11px;fill:#345}}@media(prefers-color-scheme:dark){{rect{{fill:#222c36;\
             stroke:#9ab}}.port{{fill:#1d3040}}.locality{{fill:#453a22}}text{{fill:#e6edf3}}.kind,.label{{fill:#9ab}}\
             path{{stroke:#9ab}}}}</style>\n\
             <defs><marker id=\"a\" viewBox=\"0 0 10 10\" refX=\"9\" refY=\"5\" markerWidth=\"8\" markerHeight=\"8\" \
             orient=\"auto\"><path d=\"M0,1 L9,5 L0,9\"/></marker></defs>\n"
        );
        for wire in &self.wires {
            let ((x1, y1), (x2, y2)) = (at(wire.from), at(wire.to));
            let (x1, y1, x2, y2) = (x1 + BOX.0, y1 + BOX.1 / 2.0, x2, y2 + BOX.1 / 2.0);
            // A wire that leads back goes round below the boxes.
            let (bend, dip) = if x2 > x1 { ((x2 - x1) / 2.0, 0.0) } else { (40.0, BOX.1) };
            let _ = writeln!(
                text,
                "<path marker-end=\"url(#a)\" d=\"M{x1},{y1} C{},{} {},{} {x2},{y2}\"/>",
                x1 + bend,
                y1 + dip,
                x2 - bend,
                y2 + dip
            );
            let label = ports(wire);
            if !label.is_empty() {
                let (x, y) = (f64::midpoint(x1, x2), f64::midpoint(y1, y2) + 0.75 * dip - 5.0);
                let _ =
                    writeln!(text, "<text class=\"label\" x=\"{x}\" y=\"{y}\">{}</text>", escaped(&label));
            }
        }
        for (id, stage) in self.stages.iter().enumerate() {
            let (x, y) = at(id);
            let class = match stage.kind.group {
                Group::Port => "port",
                Group::Locality => "locality",
                Group::Function | Group::Plumbing => "",
            };
            let (w, h) = BOX;
            let _ = writeln!(
                text,
                "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\" rx=\"6\"/>"
            );
            let middle = x + w / 2.0;
            if stage.name == stage.kind.name {
                let _ =
                    writeln!(text, "<text x=\"{middle}\" y=\"{}\">{}</text>", y + 27.0, escaped(&stage.name));
            } else {
                let _ =
                    writeln!(text, "<text x=\"{middle}\" y=\"{}\">{}</text>", y + 19.0, escaped(&stage.name));
                let _ = writeln!(
                    text,
                    "<text class=\"kind\" x=\"{middle}\" y=\"{}\">{}</text>",
                    y + 35.0,
                    stage.kind.name
                );
            }
        }
        text.push_str("</svg>\n");
        text
    }
}

fn ports(wire: &Wire) -> String {
    match (&wire.output, &wire.input) {
        (None, None) => String::new(),
        (Some(output), None) => output.clone(),
        (None, Some(input)) => format!("→ {input}"),
        (Some(output), Some(input)) => format!("{output} → {input}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
