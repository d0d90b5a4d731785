//! The settings of a pipeline as a whole: those of its flow contexts.

use slipstream_core::flow_context::Layout;
use slipstream_core::registry::{BuildError, need};
use slipstream_core::settings::{Kind, Setting, Settings};

use super::config::{Plan, wrong_value};
use super::diagnostics::{Diagnostics, Finding};
use super::read::Written;
use crate::runtime::{FlowContextPlan, FlowContextSettings};
use slipstream_core::settings::did_you_mean;

/// The settings that a configuration has beside `graph` and the tables of stages.
pub const PIPELINE_SETTINGS: &[Setting] = &[
    Setting {
        name: "context",
        kind: Kind::Choice(&["auto", "off"]),
        default: Some("auto"),
        required: false,
        help: "Flow contexts, in which functions keep what they decided about a flow: where they save look-ups, or nowhere",
    },
    Setting {
        name: "context_flows",
        kind: Kind::Count(1, 1 << 26),
        default: Some("65536"),
        required: false,
        help: "Flows that have a context at most; packets of others are looked up by each function",
    },
    Setting {
        name: "context_memory",
        kind: Kind::Bytes(1, 1 << 40),
        default: None,
        required: false,
        help: "Memory that flow contexts may take; a pipeline that would take more is refused",
    },
];

impl Default for FlowContextSettings {
    fn default() -> Self {
        Self::from_settings(&Settings::defaults(PIPELINE_SETTINGS))
    }
}

impl FlowContextSettings {
    fn from_settings(settings: &Settings) -> Self {
        let wanted = settings.text("context") != "off";
        Self {
            flows: if wanted { settings.number("context_flows") as u32 } else { 0 },
            memory: settings.optional_number("context_memory").unwrap_or(u64::MAX),
        }
    }

    /// The reason why contexts as planned can't be had, if they can't: the arithmetic.
    pub(crate) fn refuses(&self, plan: &FlowContextPlan) -> Option<(String, String)> {
        let needed = plan.memory + plan.long_keys;
        if needed <= self.memory || plan.places.is_empty() {
            return None;
        }
        let flows = u64::from(plan.flows);
        let contexts = flows * plan.bytes as u64;
        let numbers = plan.numbers * Layout::NUMBER as u64;
        let message = format!(
            "flow contexts would take {needed} bytes, {} are given: {flows} flows of {} bytes are {contexts}, their \
             index is {}, numbers that trains come with are {numbers}, long keys (IPv6) are up to {}",
            self.memory,
            plan.bytes,
            plan.memory - contexts - numbers,
            plan.long_keys,
        );
        let hint = "give `context_memory` more, `context_flows` less, or write context = \"off\"";
        Some((message, hint.to_owned()))
    }

    /// Asks whether the memory of contexts as planned can be had, before it is taken.
    pub(crate) fn need(&self, plan: &FlowContextPlan) -> Result<(), BuildError> {
        let contexts = u64::from(plan.flows) * plan.bytes as u64;
        need("context_flows", [contexts, plan.memory.saturating_sub(contexts), plan.long_keys])
    }
}

/// Settings of the pipeline as they were written, read; their places are those of findings.
pub(super) fn read(plan: &mut Plan, written: &[Written], findings: &mut Vec<Finding>) {
    let mut settings = Settings::defaults(PIPELINE_SETTINGS);
    for written in written {
        let Some(setting) = PIPELINE_SETTINGS.iter().find(|s| s.name == written.key) else { continue };
        match setting.kind.parse(&written.value, &plan.base) {
            Ok(value) => {
                settings.0.insert(setting.name, value);
            }
            Err(wrong) => findings.push(wrong_value(setting.name, written, wrong)),
        }
        plan.contexts_span = written.key_span.clone();
    }
    plan.contexts = FlowContextSettings::from_settings(&settings);
}

impl Plan {
    /// With settings of the pipeline by their names, as on the command line.
    ///
    /// # Errors
    /// A setting that there is not, or can't have this value.
    pub fn with_pipeline_settings(mut self, all: &[(&str, &str)]) -> Result<Self, Diagnostics> {
        let mut settings = Settings::defaults(PIPELINE_SETTINGS);
        for (name, text) in all {
            let setting = PIPELINE_SETTINGS.iter().find(|s| s.name == *name).ok_or_else(|| {
                let known = PIPELINE_SETTINGS.iter().map(|s| s.name);
                self.error(format!("`{name}` is not a setting of a pipeline; {}", did_you_mean(name, known)))
            })?;
            let value =
                setting.parse(text, &self.base).map_err(|wrong| self.error(format!("{name}: {wrong}")))?;
            settings.0.insert(setting.name, value);
        }
        let given = FlowContextSettings::from_settings(&settings);
        let has = |name: &str| all.iter().any(|(given, _)| *given == name);
        if has("context") || has("context_flows") {
            self.contexts.flows = given.flows;
        }
        if has("context_memory") {
            self.contexts.memory = given.memory;
        }
        Ok(self)
    }
}
