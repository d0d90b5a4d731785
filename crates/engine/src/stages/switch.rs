//! The stage that leads packets to ports by rules.

use slipstream_core::flow_context::FlowUse;
use slipstream_core::frame::Frame;
use slipstream_core::operate::{Operate, Reloading, Update};
use slipstream_core::packet::headers_of;
use slipstream_core::reads::Reads;
use slipstream_core::registry::{BuildError, Made, Site};
use slipstream_core::rules::Rule;
use slipstream_core::settings::Settings;
use slipstream_core::stage::{Context, Observe, Verdict};
use slipstream_core::time::Nanos;
use slipstream_functions::{FunctionContext, NetworkFunction, stage_of};

/// The rules can change while a switch runs. Its ports can't.
pub(super) const RELOAD: Reloading = Reloading {
    settings: &["ports"],
    ports: |settings| settings.texts("ports").filter_map(split).map(|(name, _)| name.to_owned()).collect(),
    reads_files: |settings| settings.texts("ports").filter_map(split).any(|(_, rule)| rule.starts_with('@')),
    make: |settings, site| Ok(Box::new(SwitchUpdate(rules(settings, site)?))),
};

/// Other rules for a switch that runs.
struct SwitchUpdate(Vec<(String, Rule)>);

/// A port's name, and its rule.
fn split(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').map(|(name, rule)| (name.trim(), rule.trim()))
}

/// Each port's name, and its rule.
fn rules(settings: &Settings, site: &Site<'_>) -> Result<Vec<(String, Rule)>, BuildError> {
    let mut all: Vec<(String, Rule)> = Vec::new();
    for text in settings.texts("ports") {
        let wrong = |what: String| BuildError::setting("ports", format!("{text:?}: {what}"));
        let Some((name, rule)) = split(text) else {
            return Err(wrong("no name".into()).hint("write \"NAME: RULE\", as in \"dns: udp port 53\""));
        };
        if all.iter().any(|(n, _)| n == name) || name == "other" || name.is_empty() {
            return Err(
                wrong("the name is taken".into()).hint("give each port its own; `other` is for the rest")
            );
        }
        all.push((name.to_owned(), Rule::parse_or_read(rule, site.base).map_err(wrong)?));
    }
    if all.is_empty() || all.len() >= usize::from(Verdict::MAX_PORTS) {
        return Err(BuildError::setting("ports", "1 to 127 ports are possible"));
    }
    Ok(all)
}

pub(super) fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let all = rules(settings, site)?;
    let names: Vec<String> = all.iter().map(|(name, _)| name.clone()).collect();
    let mut switch = Switch { names: names.clone(), rules: Vec::new(), reads: Reads::KEY };
    switch.go_by(all);
    let names = names.into_iter().chain(["other".to_owned()]).collect();
    Ok(Made::WithPorts(stage_of(switch, settings), names))
}

#[derive(Debug)]
struct Switch {
    /// The names of its ports but the last one.
    names: Vec<String>,
    /// Rules in the order in which they count, each with the number of its port.
    rules: Vec<(u8, Rule)>,
    reads: Reads,
}

impl Switch {
    /// Goes by these rules, in this order.
    fn go_by(&mut self, rules: Vec<(String, Rule)>) {
        self.reads = rules.iter().fold(Reads::KEY, |reads, (_, rule)| reads.and(rule.reads()));
        let port = |name: &String| self.names.iter().position(|n| n == name).unwrap_or(self.names.len());
        self.rules = rules.into_iter().map(|(name, rule)| (port(&name) as u8, rule)).collect();
    }
}

impl NetworkFunction for Switch {
    type Decision = Verdict;
    type Lookahead = ();

    fn reads(&self) -> Reads {
        self.reads
    }

    fn flow_use(&self) -> FlowUse {
        FlowUse::PASSES
    }

    fn look_ahead(&mut self, _: &Context<'_>, _: &Frame, (): &mut ()) {}

    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, (): &()) -> Verdict {
        let other = Verdict::port(self.names.len() as u8);
        let len = fx.cx.pool.meta(first.buf).original_len;
        let headers = headers_of(fx.cx, first);
        let first = self.rules.iter().find(|(_, rule)| match &headers {
            Some(headers) => rule.matches(headers, len),
            None => rule.is_always(),
        });
        first.map_or(other, |(port, _)| Verdict::port(*port))
    }

    fn apply(
        &mut self,
        _: &mut FunctionContext<'_, '_>,
        port: &Verdict,
        _: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        verdicts.fill(*port);
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }
}

impl Operate for Switch {
    fn update(&mut self, new: Update, _: Nanos) -> Update {
        match new.downcast::<SwitchUpdate>() {
            Ok(mut new) => {
                let before = std::mem::take(&mut self.rules);
                self.go_by(std::mem::take(&mut new.0));
                Box::new(before)
            }
            Err(other) => other,
        }
    }
}

impl Observe for Switch {}
