//! From text to a checked plan: the graph and the tables with settings, all errors at once, each with its place.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::registry::{Ports, Role, Site, Slices, StageType, stage_type, stage_types};
use super::settings::{Settings, Wrong, did_you_mean};
use super::slicing;
use super::stages::SPLICE;
use super::syntax::{self, Argument, Chain, Literal, Mention, PortName};
use crate::rules::RuleError;

/// What is wrong, where, and what would be right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file, or what stands for one.
    pub file: String,
    /// Line and column, message, the line itself, a hint.
    pub error: RuleError,
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file, self.error)
    }
}

/// Everything that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Diagnostics(pub Vec<Diagnostic>);

impl fmt::Display for Diagnostics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, diagnostic) in self.0.iter().enumerate() {
            write!(f, "{}{diagnostic}", if i == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// Where something was written: bytes of the configuration.
type Span = Range<usize>;

/// A stage of the plan.
#[derive(Clone, Debug)]
pub struct PlannedStage {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static StageType,
    /// Its settings, checked.
    pub settings: Settings,
    /// Where it stands.
    pub role: Role,
    /// Settings as they were written, in the graph's syntax.
    pub(crate) written: Vec<(String, String)>,
    pub(crate) span: Span,
    spans: BTreeMap<&'static str, Span>,
    /// Every setting could be read.
    readable: bool,
}

/// A wire of the plan. Ports are resolved when the stages are built, since some name their own.
#[derive(Clone, Debug)]
pub struct Wire {
    /// The stage that packets leave.
    pub from: usize,
    /// Its port, as written; none is port 0.
    pub output: Option<String>,
    /// The stage that they go to.
    pub to: usize,
    /// Its port, as written; none is port 0.
    pub input: Option<String>,
    pub(crate) output_span: Span,
    pub(crate) input_span: Span,
}

/// A pipeline as written: stages and wires, checked as far as can be without building anything.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Its stages, in the order in which they are first named.
    pub stages: Vec<PlannedStage>,
    /// Its wires.
    pub wires: Vec<Wire>,
    pub(crate) text: String,
    pub(crate) file: String,
    pub(crate) base: PathBuf,
}

/// What is wrong in one place, before it is known where in the file that is.
pub(crate) struct Finding {
    pub(crate) span: Span,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
}

impl Finding {
    pub(crate) fn new(span: &Span, message: impl Into<String>) -> Self {
        Self { span: span.clone(), message: message.into(), hint: None }
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A stage's settings as written in its table.
struct Table {
    span: Span,
    kind: Option<(String, Span)>,
    settings: Vec<Written>,
    used: bool,
}

/// A setting as written.
#[derive(Clone)]
struct Written {
    key: String,
    value: Literal,
    key_span: Span,
    value_span: Span,
    /// Whether byte n of the text stands at byte n behind the start of the value's span (+ 1 for the quote).
    raw: Option<usize>,
}

struct Graph {
    chains: Vec<Chain>,
    /// Where byte 0 of the graph's text stands in the configuration; none where text and file differ by escapes.
    at: Option<usize>,
    span: Span,
}

impl Graph {
    fn span(&self, (at, len): (usize, usize)) -> Span {
        match self.at {
            Some(start) => start + at..start + at + len,
            None => self.span.clone(),
        }
    }
}

impl Plan {
    /// From a configuration file: a graph, and a table of settings for every stage that needs one.
    ///
    /// # Errors
    /// Everything that is wrong with it, or that it can't be read.
    pub fn from_file(path: &Path) -> Result<Self, Diagnostics> {
        let file = path.display().to_string();
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        match std::fs::read_to_string(path) {
            Ok(text) => Self::from_toml(&text, &file, &base),
            Err(error) => {
                let error = RuleError::new("", 0, 1, format!("can't be read: {error}"));
                Err(Diagnostics(vec![Diagnostic { file, error }]))
            }
        }
    }

    /// From the text of a configuration; `file` stands for it in errors, relative paths start at `base`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_toml(text: &str, file: &str, base: &Path) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            findings.push(Finding::new(&error.span().unwrap_or(0..1), error.message()));
        }
        let (graph, mut tables) = read_document(document.get_ref(), text, &mut findings);
        let mut plan = Self::empty(text, file, base);
        if let Some(graph) = graph {
            plan.wire_up(&graph, &mut tables, &mut findings);
        }
        for (name, table) in tables.iter().filter(|(_, t)| !t.used) {
            if plan.stages.iter().any(|s| s.name == *name) || !findings.is_empty() {
                continue;
            }
            let message = format!("stage `{name}` is not in the graph");
            findings.push(
                Finding::new(&table.span, message).hint("wire it up in `graph`, or take the table away"),
            );
        }
        plan.done(findings)
    }

    /// From a graph alone, as on the command line. A port named `in` leads to its start and one named `out` from its end
    /// where `input` and `output` are given and the graph doesn't name them itself.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_graph(
        text: &str,
        input: Option<(&str, Vec<(String, String)>)>,
        output: Option<(&str, Vec<(String, String)>)>,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let mut plan = Self::empty(text, "graph", base);
        let chains = match syntax::parse(text) {
            Ok(chains) => chains,
            Err(errors) => {
                let all =
                    errors.into_iter().map(|error| Diagnostic { file: "graph".into(), error }).collect();
                return Err(Diagnostics(all));
            }
        };
        let graph = Graph { chains, at: Some(0), span: 0..text.len() };
        let mut tables = BTreeMap::new();
        for (name, port) in [("in", &input), ("out", &output)] {
            let Some((kind, settings)) = port else { continue };
            let written = |(key, value): &(String, String)| Written {
                key: key.clone(),
                value: Literal::Text(value.clone()),
                key_span: 0..0,
                value_span: 0..0,
                raw: None,
            };
            let settings = settings.iter().map(written).collect();
            tables.insert(
                name.to_owned(),
                Table { span: 0..0, kind: Some(((*kind).to_owned(), 0..0)), settings, used: false },
            );
        }
        plan.wire_up(&graph, &mut tables, &mut findings);
        if findings.is_empty() {
            plan.wire_ends(&mut tables, &mut findings);
        }
        if input.is_some() && input == output {
            plan.join_ends();
        }
        plan.done(findings)
    }

    /// `in` and `out` are one live port: that is opened once, both ways.
    fn join_ends(&mut self) {
        let find = |name| self.stages.iter().position(|s| s.name == name);
        let (Some(first), Some(last)) = (find("in"), find("out")) else { return };
        let two_way =
            |s: &PlannedStage| s.kind.live() && s.kind.inputs != Ports::None && s.kind.outputs != Ports::None;
        if first == last || !self.stages.get(last).is_some_and(two_way) {
            return;
        }
        self.stages.remove(last);
        let moved = |stage: usize| stage - usize::from(stage > last);
        for wire in &mut self.wires {
            for end in [&mut wire.from, &mut wire.to] {
                *end = moved(if *end == last { first } else { *end });
            }
        }
    }

    fn empty(text: &str, file: &str, base: &Path) -> Self {
        Self {
            stages: Vec::new(),
            wires: Vec::new(),
            text: text.to_owned(),
            file: file.to_owned(),
            base: base.to_owned(),
        }
    }

    fn done(mut self, mut findings: Vec<Finding>) -> Result<Self, Diagnostics> {
        if findings.is_empty() {
            self.check_shape(&mut findings);
            if findings.is_empty() {
                slicing::check(&self, &mut findings);
            }
        } else {
            self.check_settings_together(&mut findings);
        }
        self.fail_on(findings)?;
        Ok(self)
    }

    /// What the stages themselves say of their settings, where those can be read: all errors at once.
    fn check_settings_together(&self, findings: &mut Vec<Finding>) {
        let slices = Slices::default();
        for stage in self.stages.iter().filter(|s| s.readable) {
            // Without its table, which may come later, or not be right itself, it can't be told what it is worth.
            if stage.kind.name == super::stages::SPLICE {
                continue;
            }
            let (name, role, slices) = (&stage.name, stage.role, &slices);
            let site = Site { name, role, dry: true, base: &self.base, seed: 0, live: false, slices };
            if let Err(error) = (stage.kind.build)(&stage.settings, &site) {
                let finding = Finding::new(&self.setting_span(stage, error.setting), error.message);
                findings.push(match error.hint {
                    Some(hint) => finding.hint(hint),
                    None => finding,
                });
            }
        }
    }

    /// The findings as an error, if there are any.
    pub(crate) fn fail_on(&self, mut findings: Vec<Finding>) -> Result<(), Diagnostics> {
        if findings.is_empty() {
            return Ok(());
        }
        findings.sort_by_key(|f| f.span.start);
        let diagnostic = |f: Finding| {
            let len = f.span.end.saturating_sub(f.span.start).max(1);
            let mut error = RuleError::new(&self.text, f.span.start, len, f.message);
            if let Some(hint) = f.hint {
                error = error.hint(hint);
            }
            Diagnostic { file: self.file.clone(), error }
        };
        Err(Diagnostics(findings.into_iter().map(diagnostic).collect()))
    }

    /// The stage of this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|s| s.name == name)
    }

    pub(crate) fn setting_span(&self, stage: &PlannedStage, setting: Option<&'static str>) -> Span {
        setting.and_then(|s| stage.spans.get(s)).unwrap_or(&stage.span).clone()
    }

    fn wire_up(&mut self, graph: &Graph, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        // Declarations first, wherever they stand.
        let mut anonymous = BTreeMap::new();
        for hop in graph.chains.iter().flatten().filter(|h| h.stage.kind.is_some()) {
            self.mention(&hop.stage, graph, tables, &mut anonymous, findings);
        }
        for chain in &graph.chains {
            let mut before: Option<(usize, &Option<PortName>, Span)> = None;
            for hop in chain {
                let stage = self.mention(&hop.stage, graph, tables, &mut anonymous, findings);
                if let (Some((from, output, from_span)), Some(to)) = (&before, stage) {
                    let span = |p: &Option<PortName>, stage: &Span| {
                        p.as_ref().map_or(stage.clone(), |p| graph.span(p.at))
                    };
                    self.wires.push(Wire {
                        from: *from,
                        output: output.as_ref().map(|p| p.name.clone()),
                        to,
                        input: hop.input.as_ref().map(|p| p.name.clone()),
                        output_span: span(output, from_span),
                        input_span: span(&hop.input, &graph.span(hop.stage.at)),
                    });
                } else if let (None, Some(port)) = (&before, &hop.input) {
                    let finding = Finding::new(&graph.span(port.at), "nothing leads to this input port");
                    findings.push(finding.hint("write what does: `a -> [1]b`"));
                }
                before = stage.map(|s| (s, &hop.output, graph.span(hop.stage.at)));
            }
            if let Some(port) = chain.last().and_then(|h| h.output.as_ref()) {
                let finding = Finding::new(&graph.span(port.at), "this output port leads nowhere");
                findings.push(finding.hint("write where: `fw[denied] -> discard`"));
            }
        }
    }

    /// The stage that is meant, made at its first mention.
    fn mention(
        &mut self,
        mention: &Mention,
        graph: &Graph,
        tables: &mut BTreeMap<String, Table>,
        anonymous: &mut BTreeMap<usize, usize>,
        findings: &mut Vec<Finding>,
    ) -> Option<usize> {
        let span = graph.span(mention.at);
        if let Some(known) = anonymous.get(&mention.at.0) {
            return Some(*known);
        }
        let (mut name, kind_name, kind_span) = match &mention.kind {
            Some((kind, at)) => (mention.name.clone(), kind.clone(), graph.span(*at)),
            None if mention.arguments.is_some() => (mention.name.clone(), mention.name.clone(), span.clone()),
            None => {
                if let Some(known) = self.stage(&mention.name) {
                    return Some(known);
                }
                let table = tables.get(&mention.name);
                let (kind, kind_span) = match table.and_then(|t| t.kind.clone()) {
                    Some(kind) => kind,
                    None => (mention.name.clone(), table.map_or(span.clone(), |t| t.span.clone())),
                };
                (mention.name.clone(), kind, kind_span)
            }
        };
        if self.stage(&name).is_some() {
            if mention.kind.is_some() {
                let finding = Finding::new(&span, format!("stage `{name}` is declared twice"));
                findings.push(finding.hint("give each its own name"));
                return None;
            }
            name = (2..).map(|n| format!("{name}@{n}")).find(|n| self.stage(n).is_none()).unwrap_or(name);
        }
        let Some(kind) = stage_type(&kind_name) else {
            findings.push(unknown_type(&kind_name, &kind_span, mention, tables));
            return None;
        };
        let mut written = Vec::new();
        if let Some(table) = tables.get_mut(&name) {
            table.used = true;
            written.extend(table.settings.iter().cloned());
        }
        written.extend(mention.arguments.iter().flatten().map(|a| argument(a, graph)));
        let stage = self.planned(name, kind, span, &written, findings);
        self.stages.push(stage);
        let id = self.stages.len() - 1;
        anonymous.insert(mention.at.0, id);
        Some(id)
    }

    fn planned(
        &self,
        name: String,
        kind: &'static StageType,
        span: Span,
        written: &[Written],
        findings: &mut Vec<Finding>,
    ) -> PlannedStage {
        let before = findings.len();
        let mut settings = Settings::default();
        let mut spans: BTreeMap<&'static str, Span> = BTreeMap::new();
        for w in written {
            let Some(setting) = kind.settings.iter().find(|s| s.name == w.key.replace('-', "_")) else {
                let message = format!("`{}` is not a setting of {}", w.key, kind.name);
                let known = kind.settings.iter().map(|s| s.name);
                let hint = if kind.settings.is_empty() {
                    format!("{} has no settings", kind.name)
                } else {
                    did_you_mean(&w.key, known)
                };
                findings.push(Finding::new(&w.key_span, message).hint(hint));
                continue;
            };
            if spans.contains_key(setting.name) {
                let message = format!("`{}` is set twice for `{name}`", setting.name);
                findings.push(Finding::new(&w.key_span, message).hint("set it once"));
                continue;
            }
            spans.insert(setting.name, w.value_span.clone());
            match setting.kind.parse(&w.value, &self.base) {
                Ok(value) => {
                    settings.0.insert(setting.name, value);
                }
                Err(wrong) => findings.push(wrong_value(setting.name, w, wrong)),
            }
        }
        for setting in kind.settings.iter().filter(|s| !spans.contains_key(s.name)) {
            if setting.required {
                let message = format!("`{name}` lacks its setting `{}`: {}", setting.name, setting.help);
                let hint = format!("write {} = {}", setting.name, setting.kind.describe());
                findings.push(Finding::new(&span, message).hint(hint));
            } else if let Some(default) = setting.default
                && let Ok(value) = setting.kind.parse(&Literal::Text(default.to_owned()), &self.base)
            {
                settings.0.insert(setting.name, value);
            }
        }
        let written = written.iter().map(|w| (w.key.replace('-', "_"), show(&w.value))).collect();
        let readable = findings.len() == before;
        PlannedStage { name, kind, settings, role: Role::Inner, written, span, spans, readable }
    }

    /// Leads `in` to the start and the end to `out` where the graph doesn't say.
    fn wire_ends(&mut self, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        let all = self.stages.len();
        for (name, source) in [("in", true), ("out", false)] {
            let Some(table) = tables.remove(name).filter(|t| !t.used) else { continue };
            let open: Vec<usize> = (0..all)
                .filter(|i| {
                    let stage = self.stages.get(*i);
                    let ports = stage.map(|s| if source { s.kind.inputs } else { s.kind.outputs });
                    let wired =
                        |w: &Wire| if source { w.to == *i } else { w.from == *i && is_first(&w.output) };
                    ports.is_some_and(|p| p != Ports::None) && !self.wires.iter().any(wired)
                })
                .collect();
            // A stage that leads nowhere at all comes before one of whose ports some lead somewhere.
            let loose =
                |i: &usize| !self.wires.iter().any(|w| if source { w.to == *i } else { w.from == *i });
            let open = match open.iter().copied().filter(loose).collect::<Vec<_>>().as_slice() {
                [one] => vec![*one],
                _ => open,
            };
            let Some(kind) = table.kind.and_then(|(k, _)| stage_type(&k)) else { continue };
            let end = self.text.len();
            match open.as_slice() {
                [one] => {
                    let stage = self.planned(name.to_owned(), kind, 0..end, &table.settings, findings);
                    self.stages.push(stage);
                    let port = self.stages.len() - 1;
                    let (from, to) = if source { (port, *one) } else { (*one, port) };
                    let at = self.stages.get(*one).map_or(0..end, |s| s.span.clone());
                    let (output_span, input_span) = (at.clone(), at);
                    self.wires.push(Wire { from, output: None, to, input: None, output_span, input_span });
                }
                [] if all == 0 => {
                    findings.push(
                        Finding::new(&(0..1), "the graph has no stage").hint("as in 'reframe(hold=64us)'"),
                    );
                }
                others => {
                    let message = format!("{} stages could be {name}'s neighbour", others.len());
                    let hint = if source {
                        "name it in the graph: `in -> …`"
                    } else {
                        "name it in the graph: `… -> out`"
                    };
                    findings.push(Finding::new(&(0..end), message).hint(hint));
                }
            }
        }
    }

    /// What the shape of the graph must be: sources at the start, sinks at the end, no way round.
    fn check_shape(&mut self, findings: &mut Vec<Finding>) {
        let count = self.stages.len();
        let wires = &self.wires;
        let end = 0..self.text.len().min(1);
        if count == 0 {
            findings.push(
                Finding::new(&end, "the graph has no stage").hint("as in `graph = \"in -> reframe -> out\"`"),
            );
            return;
        }
        for (i, stage) in self.stages.iter_mut().enumerate() {
            let (fed, feeds) = (wires.iter().any(|w| w.to == i), wires.iter().any(|w| w.from == i));
            let (inputs, outputs) = (stage.kind.inputs != Ports::None, stage.kind.outputs != Ports::None);
            let two_way = fed && feeds && inputs && outputs && stage.kind.live();
            stage.role = match (fed, feeds) {
                (true, true) if two_way => Role::TwoWay,
                (true, false) if inputs && outputs && stage.kind.group == super::registry::Group::Port => {
                    Role::Sink
                }
                (false, true) if stage.kind.group == super::registry::Group::Port => Role::Source,
                (true, _) if !outputs => Role::Sink,
                _ => Role::Inner,
            };
            let span = stage.span.clone();
            let name = &stage.name;
            let say = |message: String, hint: &str| Finding::new(&span, message).hint(hint);
            if fed && feeds && !two_way && stage.kind.group == super::registry::Group::Port {
                findings.push(say(
                    format!("packets both come from `{name}` and go to it"),
                    "use two ports, one at each end",
                ));
            } else if !fed && stage.role != Role::Source {
                findings.push(say(format!("nothing leads to `{name}`"), "wire it up: `in -> …`"));
            } else if fed && !inputs {
                findings.push(say(format!("no packet can go to `{name}`"), "it only makes packets"));
            } else if feeds && !outputs {
                findings.push(say(format!("no packet leaves `{name}`"), "it is the end of the way"));
            }
        }
        if let Err(stuck) = order(&self.stages, wires) {
            let names: Vec<_> =
                stuck.iter().filter_map(|i| self.stages.get(*i)).map(|s| s.name.clone()).collect();
            let span = stuck.iter().filter_map(|i| self.stages.get(*i)).map(|s| s.span.clone()).next();
            let message = format!("packets would go round: {}", names.join(", "));
            findings.push(
                Finding::new(&span.unwrap_or(end), message)
                    .hint("a graph leads from its sources to its sinks"),
            );
        }
    }
}

fn is_first(port: &Option<String>) -> bool {
    port.as_ref().is_none_or(|p| p == "0" || p == "out")
}

/// The stages in an order in which every wire leads onwards, or those that lie on a way round.
///
/// What leaves a port at both ends is not what went there, so that no way leads through it; but a splice comes behind its slice,
/// also where such a port is between them.
pub(crate) fn order(stages: &[PlannedStage], wires: &[Wire]) -> Result<Vec<usize>, Vec<usize>> {
    let through = |i: usize| stages.get(i).is_none_or(|s| s.role != Role::TwoWay);
    let slice_of = |i: usize| {
        let splice = stages.get(i).filter(|s| s.kind.name == SPLICE)?;
        slicing::owner(stages, splice).filter(|slice| *slice != i)
    };
    let mut left: Vec<usize> = (0..stages.len()).collect();
    let mut ordered = Vec::with_capacity(stages.len());
    while !left.is_empty() {
        let free = |i: &usize| {
            !wires.iter().any(|w| w.to == *i && through(w.from) && left.contains(&w.from))
                && !slice_of(*i).is_some_and(|slice| left.contains(&slice))
        };
        let (ready, rest): (Vec<_>, Vec<_>) = left.iter().copied().partition(free);
        if ready.is_empty() {
            return Err(rest);
        }
        ordered.extend(ready);
        left = rest;
    }
    Ok(ordered)
}

fn unknown_type(kind: &str, span: &Span, mention: &Mention, tables: &BTreeMap<String, Table>) -> Finding {
    let types = stage_types().iter().map(|t| t.name);
    if mention.kind.is_none()
        && mention.arguments.is_none()
        && tables.get(kind).is_some_and(|t| t.kind.is_none())
    {
        let message = format!("the table of stage `{kind}` says no type, and there is no type `{kind}`");
        return Finding::new(span, message)
            .hint("write type = \"…\" in it; `slipstream list` shows all types");
    }
    let known: Vec<&str> = types.chain(tables.keys().map(String::as_str)).collect();
    let message = if mention.kind.is_some() || mention.arguments.is_some() {
        format!("there is no stage type `{kind}`")
    } else {
        format!("`{kind}` is neither a stage type nor a stage with a table [stage.{kind}]")
    };
    Finding::new(span, message).hint(did_you_mean(kind, known.into_iter()))
}

fn wrong_value(setting: &str, written: &Written, wrong: Wrong) -> Finding {
    let mut span = written.value_span.clone();
    if let (Some(quote), true) = (written.raw, wrong.offset > 0) {
        span.start = (span.start + quote + wrong.offset).min(span.end.saturating_sub(1).max(span.start));
    }
    let finding = Finding::new(&span, format!("{setting}: {}", wrong.message));
    match wrong.hint {
        Some(hint) => finding.hint(hint),
        None => finding,
    }
}

fn argument(argument: &Argument, graph: &Graph) -> Written {
    let Argument { key, value, key_at, value_at } = argument;
    let (key_span, value_span) = (graph.span(*key_at), graph.span(*value_at));
    let raw = match value {
        Literal::Text(text) if graph.at.is_some() && text.len() == value_at.1 => Some(0),
        Literal::Text(text) if graph.at.is_some() && text.len() + 2 == value_at.1 => Some(1),
        _ => None,
    };
    Written { key: key.clone(), value: value.clone(), key_span, value_span, raw }
}

/// A value as the graph's syntax reads it.
fn show(value: &Literal) -> String {
    match value {
        Literal::Text(text) => {
            let plain =
                !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._-/:@".contains(c));
            if plain {
                text.clone()
            } else {
                format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
            }
        }
        Literal::List(all) => format!("[{}]", all.iter().map(show).collect::<Vec<_>>().join(", ")),
    }
}

/// The graph, and the tables of settings by the names of their stages.
fn read_document(
    document: &DeTable<'_>,
    text: &str,
    findings: &mut Vec<Finding>,
) -> (Option<Graph>, BTreeMap<String, Table>) {
    let mut tables = BTreeMap::new();
    let mut graph = None;
    let mut has_graph = false;
    for (key, value) in document {
        let span = value.span();
        match (key.get_ref().as_ref(), value.get_ref()) {
            ("graph", DeValue::String(content)) => {
                has_graph = true;
                graph = read_graph(content, &span, text, findings);
            }
            ("graph", _) => {
                has_graph = true;
                findings
                    .push(Finding::new(&span, "`graph` is a text").hint("graph = \"in -> reframe -> out\""));
            }
            ("stage", DeValue::Table(stages)) => {
                for (name, table) in stages {
                    match table.get_ref() {
                        DeValue::Table(settings) => {
                            let table = read_table(settings, name.span(), text, findings);
                            tables.insert(name.get_ref().to_string(), table);
                        }
                        _ => {
                            let finding =
                                Finding::new(&table.span(), format!("stage `{}` is a table", name.get_ref()));
                            findings.push(finding.hint(format!("[stage.{}]", name.get_ref())));
                        }
                    }
                }
            }
            ("stage", _) => findings.push(Finding::new(&span, "`stage` is a table").hint("[stage.NAME]")),
            (other, _) => {
                let finding = Finding::new(&key.span(), format!("`{other}` is not known here"));
                let hint = if stage_type(other).is_some() {
                    format!("settings of a stage go into [stage.{other}]")
                } else {
                    did_you_mean(other, ["graph", "stage"].into_iter())
                };
                findings.push(finding.hint(hint));
            }
        }
    }
    if !has_graph && findings.is_empty() {
        findings.push(Finding::new(&(0..1), "there is no `graph`").hint("graph = \"in -> reframe -> out\""));
    }
    (graph, tables)
}

fn read_graph(content: &str, span: &Span, text: &str, findings: &mut Vec<Finding>) -> Option<Graph> {
    let raw = text.get(span.clone()).unwrap_or_default();
    let quotes = if raw.starts_with("\"\"\"") || raw.starts_with("'''") { 3 } else { 1 };
    // A line break right behind three quotes does not belong to the text.
    let skipped = raw.get(quotes..).unwrap_or_default();
    let line =
        skipped.len() - skipped.strip_prefix("\r\n").or(skipped.strip_prefix('\n')).unwrap_or(skipped).len();
    let start = span.start + quotes + if quotes == 3 { line } else { 0 };
    let same = text.get(start..start + content.len()) == Some(content);
    let at = same.then_some(start);
    match syntax::parse(content) {
        Ok(chains) => Some(Graph { chains, at, span: span.clone() }),
        Err(errors) => {
            for error in errors {
                let span = at.map_or(span.clone(), |at| at + error.offset..at + error.offset + 1);
                let finding = Finding::new(&span, error.message);
                findings.push(match error.hint {
                    Some(hint) => finding.hint(hint),
                    None => finding,
                });
            }
            None
        }
    }
}

fn read_table(table: &DeTable<'_>, span: Span, text: &str, findings: &mut Vec<Finding>) -> Table {
    let mut read = Table { span, kind: None, settings: Vec::new(), used: false };
    for (key, value) in table {
        let (name, value_span) = (key.get_ref().as_ref(), value.span());
        if name == "type" {
            match value.get_ref() {
                DeValue::String(kind) => read.kind = Some((kind.to_string(), value_span)),
                _ => findings.push(Finding::new(&value_span, "`type` is a text").hint("type = \"reframe\"")),
            }
            continue;
        }
        match literal(value.get_ref()) {
            Some(literal) => {
                let raw = match &literal {
                    Literal::Text(t)
                        if text.get(value_span.start + 1..value_span.start + 1 + t.len()) == Some(t) =>
                    {
                        Some(1)
                    }
                    _ => None,
                };
                read.settings.push(Written {
                    key: name.to_owned(),
                    value: literal,
                    key_span: key.span(),
                    value_span,
                    raw,
                });
            }
            None => {
                let finding = Finding::new(&value_span, format!("`{name}` can't have such a value"));
                findings.push(finding.hint("write a text, a number, true or false, or a list of these"));
            }
        }
    }
    read
}

fn literal(value: &DeValue<'_>) -> Option<Literal> {
    Some(match value {
        DeValue::String(text) => Literal::Text(text.to_string()),
        DeValue::Integer(n) if n.radix() == 10 => Literal::Text(n.as_str().to_owned()),
        DeValue::Integer(n) => Literal::Text(u64::from_str_radix(n.as_str(), n.radix()).ok()?.to_string()),
        DeValue::Float(n) => Literal::Text(n.as_str().to_owned()),
        DeValue::Boolean(b) => Literal::Text(b.to_string()),
        DeValue::Array(all) => {
            Literal::List(all.iter().map(|v| literal(v.get_ref())).collect::<Option<_>>()?)
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}
