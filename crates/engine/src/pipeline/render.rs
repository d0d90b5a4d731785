//! A plan's graph as text or picture.

use std::fmt::Write;

use super::config::{Plan, Wire};
use super::topology::order;
use slipstream_core::registry::Group;

/// The format of a drawing.
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
    pub(super) fn layout(&self) -> Vec<(usize, usize)> {
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
}

/// The ports that a wire is written with.
pub(super) fn ports(wire: &Wire) -> String {
    match (&wire.output, &wire.input) {
        (None, None) => String::new(),
        (Some(output), None) => output.clone(),
        (None, Some(input)) => format!("→ {input}"),
        (Some(output), Some(input)) => format!("{output} → {input}"),
    }
}
