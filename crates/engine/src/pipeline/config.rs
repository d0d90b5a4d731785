//! From text to a checked plan: the graph and the tables with settings, all errors at once, each with its
//! place.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use toml::de::DeTable;

use super::contexts;
use super::diagnostics::{Diagnostic, Diagnostics, Finding, INPUT, OUTPUT, Span};
use super::ends::tables_of_ends;
use super::read::{Graph, Table, Written, read_document, text_of};
use super::slicing;
use super::syntax::{self, Argument, Mention, PortName};
use crate::runtime::FlowContextSettings;
use crate::stages::built_in;
use slipstream_core::registry::{
    BuildError, Common, Made, OneThread, Payload, Registry, Role, Shard, Site, StageType,
};
use slipstream_core::rules::RuleError;
use slipstream_core::settings::{Kind, Literal, Setting, Settings, Wrong, did_you_mean};
use slipstream_reframe::ReframeConfig;

/// A stage of the plan.
#[derive(Clone, Debug)]
pub struct PlannedStage {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: StageType,
    /// Its settings, checked.
    pub settings: Settings,
    /// Its role in the graph.
    pub role: Role,
    /// Settings as they were written, in the graph's syntax.
    pub(crate) written: Vec<(String, String)>,
    pub(crate) span: Span,
    pub(super) spans: BTreeMap<&'static str, Span>,
    /// Every setting could be read.
    pub(super) readable: bool,
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
    /// Its flow contexts.
    pub contexts: FlowContextSettings,
    /// Place of a setting of its flow contexts.
    pub(crate) contexts_span: Span,
    pub(crate) text: String,
    pub(crate) file: String,
    /// The file that it was read from, where that is known.
    pub(super) path: Option<PathBuf>,
    pub(crate) base: PathBuf,
    /// The types that it is made of.
    pub(super) registry: Arc<Registry>,
}

/// The stages that a graph has mentioned so far.
#[derive(Default)]
struct Mentioned {
    /// By the byte of the graph where the mention stands; none where something is wrong with it.
    at: BTreeMap<usize, Option<usize>>,
    /// The names whose declarations are wrong.
    wrong: BTreeSet<String>,
    /// The stages by their names.
    named: BTreeMap<String, usize>,
    /// Of a name that several stages were to have, the number that the next one may have behind it.
    next: BTreeMap<String, usize>,
}

impl Plan {
    /// Returns true if stages of this type may run on several threads.
    pub(crate) fn may_share(&self, kind: &StageType) -> bool {
        self.registry.is_shared(kind)
    }

    /// From a configuration file: a graph, and a table of settings for every stage that needs one.
    ///
    /// # Errors
    /// Everything that is wrong with it, or that it can't be read.
    pub fn from_file(path: &Path) -> Result<Self, Diagnostics> {
        Self::from_file_with(&built_in(), path)
    }

    /// As [`from_file`](Self::from_file), with stages of the types in `registry`.
    ///
    /// # Errors
    /// Everything that is wrong with it, or that it can't be read.
    pub fn from_file_with(registry: &Registry, path: &Path) -> Result<Self, Diagnostics> {
        let file = path.display().to_string();
        let base = path.parent().unwrap_or(Path::new("")).to_owned();
        match text_of(path) {
            Ok(text) => Self::read(registry, &text, &file, Some(path), &base),
            Err(error) => Err(Diagnostics(vec![Diagnostic { file, error: *error }])),
        }
    }

    /// From the text of a configuration; `file` stands for it in errors, relative paths start at `base`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_toml(text: &str, file: &str, base: &Path) -> Result<Self, Diagnostics> {
        Self::from_toml_with(&built_in(), text, file, base)
    }

    /// As [`from_toml`](Self::from_toml), with stages of the types in `registry`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_toml_with(
        registry: &Registry,
        text: &str,
        file: &str,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        Self::read(registry, text, file, None, base)
    }

    /// From the text of the file `path`, where it is from one.
    fn read(
        registry: &Registry,
        text: &str,
        file: &str,
        path: Option<&Path>,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let (document, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            findings.push(Finding::new(&error.span().unwrap_or(0..1), error.message()));
        }
        let (graph, mut tables, whole) = read_document(document.get_ref(), text, registry, &mut findings);
        let mut plan = Self::empty(registry, text, file, base);
        plan.path = path.filter(|path| path.as_os_str() != "-").map(Path::to_owned);
        contexts::read(&mut plan, &whole, &mut findings);
        let span = graph.as_ref().map(|graph| graph.span.clone());
        if let Some(graph) = graph {
            plan.wire_up(&graph, &mut tables, &mut findings);
        }
        // A mistake in the graph may be why a table has no stage; the mistake is what is told then.
        let in_graph = |finding: &Finding| span.as_ref().is_none_or(|s| s.contains(&finding.span.start));
        let mut unused = Vec::new();
        if !findings.iter().any(in_graph) {
            // The graph has a stage of a table whose type was found to be wrong, or missing.
            let told = |table: &Table| {
                let at = table.kind.as_ref().map_or(&table.span, |kind| &kind.1);
                findings.iter().any(|finding| finding.span == *at)
            };
            tables.retain(|name, table| !table.used && !told(table) && plan.stage(name).is_none());
            tables.iter().for_each(|(name, table)| plan.check_unused(name, table, &mut unused));
        }
        plan.done(findings, unused)
    }

    /// Says that a table has no stage, and what is wrong in it.
    fn check_unused(&self, name: &str, table: &Table, findings: &mut Vec<Finding>) {
        let finding = Finding::new(&table.span, format!("stage `{name}` is not in the graph"));
        findings.push(finding.hint("wire it up in `graph`, or take the table away"));
        let Some((kind, span)) = &table.kind else { return };
        match self.registry.get(kind) {
            Some(kind) => {
                let mut inside = Vec::new();
                self.planned(name.to_owned(), *kind, table.span.clone(), &table.settings, &mut inside);
                // Settings that it lacks are told once it is wired up.
                findings.extend(inside.into_iter().filter(|finding| finding.span != table.span));
            }
            None => {
                let known = did_you_mean(kind, self.registry.types().iter().map(|t| t.name));
                findings.push(Finding::new(span, format!("there is no stage type `{kind}`")).hint(known));
            }
        }
    }

    /// From a graph alone, as on the command line. A port named `in` leads to its start and one named `out`
    /// from its end where `input` and `output` are given and the graph doesn't name them itself.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_graph(
        text: &str,
        input: Option<(&str, Vec<(String, String)>)>,
        output: Option<(&str, Vec<(String, String)>)>,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        Self::from_graph_with(&built_in(), text, input, output, base)
    }

    /// As [`from_graph`](Self::from_graph), with stages of the types in `registry`.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn from_graph_with(
        registry: &Registry,
        text: &str,
        input: Option<(&str, Vec<(String, String)>)>,
        output: Option<(&str, Vec<(String, String)>)>,
        base: &Path,
    ) -> Result<Self, Diagnostics> {
        let mut findings = Vec::new();
        let mut plan = Self::empty(registry, text, "graph", base);
        let chains = match syntax::parse(text) {
            Ok(chains) => chains,
            Err(errors) => {
                let all = errors.into_iter().map(|error| Diagnostic { file: "graph".into(), error });
                return Err(Diagnostics::first(all, "graph"));
            }
        };
        let graph = Graph { chains, at: Some(0), span: 0..text.len() };
        let mut tables = tables_of_ends(&input, &output);
        plan.wire_up(&graph, &mut tables, &mut findings);
        if findings.is_empty() {
            plan.wire_ends(&mut tables, &mut findings);
        }
        if input.is_some() && input == output {
            plan.join_ends();
        }
        plan.done(findings, Vec::new())?.with_ends(input.is_some(), output.is_some())
    }

    /// The reason why it runs on one thread where it is live, as far as settings say so. A run on several
    /// [workers](crate::runtime::Driver::workers) is refused only once its ports are open, and other
    /// processes may have come to them by then.
    #[must_use]
    pub fn one_thread(&self) -> Option<OneThread> {
        self.stages.iter().find_map(|stage| (stage.kind.properties.one_thread)(&stage.settings, stage.role))
    }

    /// The longest time for which a stage of it may hold a packet, in ns, those of classes and the bounds of
    /// holds that set themselves included; none where no stage does.
    #[must_use]
    pub fn longest_hold_ns(&self) -> Option<u64> {
        let hold = |stage: &PlannedStage| match ReframeConfig::from_settings(&stage.settings, &self.base) {
            Ok(config) => {
                let classes = config.classes.iter().map(|class| class.settings.hold_ns);
                classes.chain([config.default.hold_ns]).max()
            }
            Err(_) => stage.settings.optional_number("hold"),
        };
        let holding = self.stages.iter().filter(|stage| stage.kind.properties.holds);
        holding.filter_map(hold).max().filter(|ns| *ns > 0)
    }

    pub(super) fn empty(registry: &Registry, text: &str, file: &str, base: &Path) -> Self {
        Self {
            stages: Vec::new(),
            wires: Vec::new(),
            contexts: FlowContextSettings::default(),
            contexts_span: 0..1,
            text: text.to_owned(),
            file: file.to_owned(),
            path: None,
            base: base.to_owned(),
            registry: Arc::new(registry.clone()),
        }
    }

    /// Checks the whole; `aside` are findings that keep nothing else from being looked for.
    pub(super) fn done(
        mut self,
        mut findings: Vec<Finding>,
        aside: Vec<Finding>,
    ) -> Result<Self, Diagnostics> {
        let readable = findings.is_empty();
        if readable {
            self.check_shape(&mut findings);
            if findings.is_empty() {
                slicing::check(&self, &mut findings);
                self.check_outputs(&mut findings);
            }
        }
        if !readable || !aside.is_empty() {
            self.check_settings_together(&mut findings);
        }
        findings.extend(aside);
        self.fail_on(findings)?;
        Ok(self)
    }

    /// Lets the stages themselves check their settings, where those can be read: all errors at once.
    fn check_settings_together(&self, findings: &mut Vec<Finding>) {
        let common = Common::default();
        for stage in self.stages.iter().filter(|s| s.readable) {
            // Without its table, which may come later, or not be right itself, it can't be told what it is
            // worth.
            if stage.kind.properties.payload == Payload::Returns {
                continue;
            }
            if let Err(error) = self.build_dry(stage, &common) {
                findings.push(self.finding(stage, error));
            }
        }
    }

    /// Builds a stage by itself, which touches nothing outside: to see whether that can be, and its ports.
    pub(super) fn build_dry(&self, stage: &PlannedStage, common: &Common) -> Result<Made, BuildError> {
        let (name, role) = (&stage.name, stage.role);
        let site = Site {
            name,
            role,
            dry: true,
            base: &self.base,
            seed: 0,
            choices: 0,
            live: false,
            proxied: &[],
            common,
            shard: Shard::ALONE,
        };
        (stage.kind.build)(&stage.settings, &site)
    }

    /// The mistake that keeps a stage from being made, at its place.
    pub(crate) fn finding(&self, stage: &PlannedStage, error: BuildError) -> Finding {
        let about = |name| stage.kind.settings.iter().find(|setting| setting.name == name);
        // A rule that stands where its file should, say.
        let is_text = |path: &Path| path.to_string_lossy().contains(' ') && !path.exists();
        let in_place_of_a_file = error.setting.and_then(about).filter(|setting| {
            setting.kind == Kind::File && stage.settings.file(setting.name).is_some_and(is_text)
        });
        let write = |setting: &Setting| format!("write {} = FILE: {}", setting.name, setting.help);
        let hint = error.hint.or_else(|| in_place_of_a_file.map(write));
        Finding::new(&self.setting_span(stage, error.setting), error.message).hinted(hint)
    }

    /// The findings as an error, if there are any.
    pub(crate) fn fail_on(&self, mut findings: Vec<Finding>) -> Result<(), Diagnostics> {
        if findings.is_empty() {
            return Ok(());
        }
        findings.sort_by_key(|f| f.span.start);
        // The table of a stage that stands in several places is read at each of them.
        findings.dedup_by(|f, before| f.span == before.span && f.message == before.message);
        let diagnostic = |f: Finding| {
            let len = f.span.end.saturating_sub(f.span.start).max(1);
            let (file, error) = match &f.span {
                span if *span == INPUT => ("in", RuleError::elsewhere(f.message)),
                span if *span == OUTPUT => ("out", RuleError::elsewhere(f.message)),
                span => (self.file.as_str(), RuleError::new(&self.text, span.start, len, f.message)),
            };
            let error = match f.hint {
                Some(hint) => error.hint(hint),
                None => error,
            };
            Diagnostic { file: file.to_owned(), error }
        };
        Err(Diagnostics::first(findings.into_iter().map(diagnostic), &self.file))
    }

    /// An error that is of no place in particular.
    pub(crate) fn error(&self, message: String) -> Diagnostics {
        let error = RuleError::new(&self.text, 0, 1, message);
        Diagnostics(vec![Diagnostic { file: self.file.clone(), error }])
    }

    /// The stage of this name.
    #[must_use]
    pub fn stage(&self, name: &str) -> Option<usize> {
        self.stages.iter().position(|s| s.name == name)
    }

    pub(crate) fn setting_span(&self, stage: &PlannedStage, setting: Option<&'static str>) -> Span {
        // A port from the command line isn't part of the text, a setting that it leaves out included.
        let end = || stage.spans.values().find(|span| [INPUT, OUTPUT].contains(span));
        setting.and_then(|s| stage.spans.get(s)).or_else(end).unwrap_or(&stage.span).clone()
    }

    fn wire_up(&mut self, graph: &Graph, tables: &mut BTreeMap<String, Table>, findings: &mut Vec<Finding>) {
        // Declarations first, wherever they stand.
        let mut mentioned = Mentioned::default();
        for hop in graph.chains.iter().flatten().filter(|h| h.stage.kind.is_some()) {
            self.mention(&hop.stage, graph, tables, &mut mentioned, findings);
        }
        for chain in &graph.chains {
            let mut before: Option<(usize, &Option<PortName>, Span)> = None;
            for (place, hop) in chain.iter().enumerate() {
                let stage = self.mention(&hop.stage, graph, tables, &mut mentioned, findings);
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
                } else if let (0, Some(port)) = (place, &hop.input) {
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

    /// The stage that is meant, made at its first mention; none where something is wrong with it, which is
    /// said once.
    fn mention(
        &mut self,
        mention: &Mention,
        graph: &Graph,
        tables: &mut BTreeMap<String, Table>,
        mentioned: &mut Mentioned,
        findings: &mut Vec<Finding>,
    ) -> Option<usize> {
        let declares = mention.kind.is_some();
        if !declares && mention.arguments.is_none() && mentioned.wrong.contains(&mention.name) {
            return None;
        }
        if let Some(known) = mentioned.at.get(&mention.at.0) {
            return *known;
        }
        let stage = self.first_mention(mention, graph, tables, mentioned, findings);
        mentioned.at.insert(mention.at.0, stage);
        if declares && stage.is_none() {
            mentioned.wrong.insert(mention.name.clone());
        }
        stage
    }

    fn first_mention(
        &mut self,
        mention: &Mention,
        graph: &Graph,
        tables: &mut BTreeMap<String, Table>,
        mentioned: &mut Mentioned,
        findings: &mut Vec<Finding>,
    ) -> Option<usize> {
        let span = graph.span(mention.at);
        let Mentioned { named: stages, next, .. } = mentioned;
        let (mut name, kind_name, kind_span) = match &mention.kind {
            Some((kind, at)) => (mention.name.clone(), kind.clone(), graph.span(*at)),
            None if mention.arguments.is_some() => (mention.name.clone(), mention.name.clone(), span.clone()),
            None => {
                if let Some(known) = stages.get(&mention.name) {
                    return Some(*known);
                }
                let table = tables.get(&mention.name);
                let (kind, kind_span) = match table.and_then(|t| t.kind.clone()) {
                    Some(kind) => kind,
                    None => (mention.name.clone(), table.map_or(span.clone(), |t| t.span.clone())),
                };
                (mention.name.clone(), kind, kind_span)
            }
        };
        if stages.contains_key(&name) {
            if mention.kind.is_some() {
                let finding = Finding::new(&span, format!("stage `{name}` is declared twice"));
                findings.push(finding.hint("give each its own name"));
                return None;
            }
            // Numbers before this one are given away, and stay so.
            let next = next.entry(name.clone()).or_insert(2);
            while stages.contains_key(&format!("{name}@{next}")) {
                *next += 1;
            }
            name = format!("{name}@{next}");
        }
        let Some(kind) = self.registry.get(&kind_name).copied() else {
            findings.push(self.unknown_type(&kind_name, &kind_span, mention, tables));
            return None;
        };
        let mut written = Vec::new();
        if let Some(table) = tables.get_mut(&name) {
            table.used = true;
            if let Some((other, at)) = table.kind.as_ref().filter(|(other, _)| *other != kind_name) {
                let message = format!("stage `{name}` has type `{kind_name}` in the graph, not `{other}`");
                let finding = Finding::new(at, message);
                findings.push(finding.hint("write the same type at both places, or at one of them"));
            }
            written.extend(table.settings.iter().cloned());
        }
        for one in mention.arguments.iter().flatten().map(|a| argument(a, graph)) {
            match named(one, &kind) {
                Ok(one) => written.push(one),
                Err(finding) => findings.push(finding),
            }
        }
        stages.insert(name.clone(), self.stages.len());
        let stage = self.planned(name, kind, span, &written, findings);
        self.stages.push(stage);
        Some(self.stages.len() - 1)
    }

    fn unknown_type(
        &self,
        kind: &str,
        span: &Span,
        mention: &Mention,
        tables: &BTreeMap<String, Table>,
    ) -> Finding {
        let types = self.registry.types().iter().map(|t| t.name);
        if mention.kind.is_some() || mention.arguments.is_some() {
            let finding = Finding::new(span, format!("there is no stage type `{kind}`"));
            // The type is in the table of the stage, but settings behind a name make a type of it.
            let table = tables.get(kind).filter(|_| mention.kind.is_none());
            return match table.and_then(|table| table.kind.as_ref()) {
                Some((of, _)) => finding.hint(format!("write `{kind} :: {of}(…)`")),
                None => finding.hint(did_you_mean(kind, types)),
            };
        }
        if tables.get(kind).is_some_and(|t| t.kind.is_none()) {
            let message = format!("the table of stage `{kind}` says no type, and there is no type `{kind}`");
            return Finding::new(span, message)
                .hint("write type = \"…\" in it; `slipstream list` shows all types");
        }
        let known: Vec<&str> = types.chain(tables.keys().map(String::as_str)).collect();
        let message = format!("`{kind}` is neither a stage type nor a stage with a table [stage.{kind}]");
        Finding::new(span, message).hint(did_you_mean(kind, known.into_iter()))
    }

    pub(super) fn planned(
        &self,
        name: String,
        kind: StageType,
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
        if readable {
            for error in kind.lonely(&settings) {
                let span = error.setting.and_then(|setting| spans.get(setting)).unwrap_or(&span);
                findings.push(Finding::new(span, error.message).hinted(error.hint));
            }
        }
        PlannedStage { name, kind, settings, role: Role::Inner, written, span, spans, readable }
    }
}

/// A written value with the name of its setting: without one it is that of the only setting that must be
/// written.
fn named(written: Written, kind: &StageType) -> Result<Written, Finding> {
    if !written.key.is_empty() {
        return Ok(written);
    }
    let mut required = kind.settings.iter().filter(|setting| setting.required);
    match (required.next(), required.next()) {
        (Some(only), None) => Ok(Written { key: only.name.to_owned(), ..written }),
        _ => {
            let finding = Finding::new(&written.key_span, "this value has no name of a setting");
            let like = kind.settings.first().map_or("key", |setting| setting.name);
            Err(finding.hint(format!("write settings of {} as `{like}=value`", kind.name)))
        }
    }
}

/// A setting of a port that was named on the command line.
pub(super) fn wrong_value(setting: &str, written: &Written, wrong: Wrong) -> Finding {
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
pub(super) fn show(value: &Literal) -> String {
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
