//! Every stage type with its ports and settings. `list`, `--help`, the JSON Schema and the checks all read these
//! definitions.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use ipnet::IpNet;

use super::settings::{Setting, Settings};
use super::stages;
use crate::runtime::Source;
use crate::slice::stage::Shared;
use crate::stage::{DropReason, Stage};

/// A port of a stage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortType {
    /// Its name.
    pub name: &'static str,
    /// What comes or goes by it.
    pub help: &'static str,
    /// What packets count as that leave by it where it leads nowhere; none: it must lead somewhere.
    pub unconnected: Option<DropReason>,
}

/// The ports on one side of a stage type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ports {
    /// None.
    None,
    /// These, numbered in this order.
    These(&'static [PortType]),
    /// As the settings name them; the text says how.
    AsSet(&'static str),
}

/// What a stage type is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Group {
    /// Where packets come from and go to.
    Port,
    /// What makes trains.
    Locality,
    /// What decides about packets.
    Function,
    /// What leads packets about.
    Plumbing,
}

impl Group {
    /// All groups.
    pub const ALL: [Self; 4] = [Self::Port, Self::Locality, Self::Function, Self::Plumbing];

    /// Its name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Port => "ports",
            Self::Locality => "locality",
            Self::Function => "functions",
            Self::Plumbing => "plumbing",
        }
    }
}

/// Where in the graph a stage stands, which decides what a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Packets come from it.
    Source,
    /// Packets go to it.
    Sink,
    /// Both.
    Inner,
    /// A port at both ends: packets come from it, and go to it.
    TwoWay,
}

/// What a stage is built with besides its settings.
#[derive(Clone, Copy, Debug)]
pub struct Site<'a> {
    /// Its name in the graph.
    pub name: &'a str,
    /// Where it stands.
    pub role: Role,
    /// Only check: create no file, open no port.
    pub dry: bool,
    /// Directory that relative paths start from.
    pub base: &'a Path,
    /// Seed of hashes: secret where packets come from a network.
    pub seed: u64,
    /// Seed of choices that others can see, such as ports: where seeds are secret, it says nothing about
    /// `seed`.
    pub choices: u64,
    /// Whether packets come or go by the wall clock somewhere in the pipeline.
    pub live: bool,
    /// Of a router: addresses that stages behind its ports, by number, translate.
    pub proxied: &'a [(usize, IpNet)],
    /// The tables of the `slice` stages built before, by name.
    pub(crate) slices: &'a Slices,
}

/// The tables that the stages of one pipeline share, by the names of the `slice` stages that they belong to.
#[derive(Debug, Default)]
pub(crate) struct Slices(RefCell<BTreeMap<String, Shared>>);

impl Slices {
    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.0.borrow().len()
    }

    /// Adds the table of the stage `name`.
    pub(crate) fn add(&self, name: &str, shared: Shared) {
        self.0.borrow_mut().insert(name.to_owned(), shared);
    }

    /// The table of the stage `name`; where no name is given, the only one that there is.
    pub(crate) fn find(&self, name: Option<&str>) -> Option<Shared> {
        let all = self.0.borrow();
        match name {
            Some(name) => all.get(name).cloned(),
            None if all.len() == 1 => all.values().next().cloned(),
            None => None,
        }
    }
}

/// What a stage type makes of its settings.
pub enum Made {
    /// A stage.
    Stage(Box<dyn Stage + Send>),
    /// A stage with these output ports.
    WithPorts(Box<dyn Stage + Send>, Vec<String>),
    /// A stage whose ports have these names, on the way in as on the way out.
    Between(Box<dyn Stage + Send>, Vec<String>),
    /// Where packets come from.
    Source(Box<dyn Source + Send>),
    /// Where packets come from, and where they go to.
    TwoWay(Box<dyn Source + Send>, Box<dyn Stage + Send>),
    /// Nothing, since it is only a check.
    Checked,
}

/// Why a stage can't be built: which setting is to blame, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct BuildError {
    /// The setting, where it is one.
    pub setting: Option<&'static str>,
    /// What is wrong.
    pub message: String,
    /// What would be right.
    pub hint: Option<String>,
}

impl BuildError {
    /// About a setting.
    #[must_use]
    pub fn setting(name: &'static str, message: impl Into<String>) -> Self {
        Self { setting: Some(name), message: message.into(), hint: None }
    }

    /// About the stage as a whole.
    #[must_use]
    pub fn stage(message: impl Into<String>) -> Self {
        Self { setting: None, message: message.into(), hint: None }
    }

    /// The same error with a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

/// A type of stages.
#[derive(Clone, Copy, Debug)]
pub struct StageType {
    /// Its name, as written behind `type =` and in graphs.
    pub name: &'static str,
    /// What it is for.
    pub group: Group,
    /// What it does, in a line.
    pub summary: &'static str,
    /// How it may stand in a graph.
    pub example: &'static str,
    /// Input ports.
    pub inputs: Ports,
    /// Output ports.
    pub outputs: Ports,
    /// Its settings.
    pub settings: &'static [Setting],
    /// Makes one.
    pub build: fn(&Settings, &Site<'_>) -> Result<Made, BuildError>,
}

impl StageType {
    /// Whether packets come or go by the wall clock here, so that the pipeline runs live.
    #[must_use]
    pub fn live(&self) -> bool {
        stages::LIVE.contains(&self.name)
    }

    /// The reasons for which its stages drop packets, as far as they are known beforehand.
    #[must_use]
    pub fn drop_reasons(&self) -> Vec<DropReason> {
        stages::drop_reasons(self)
    }

    /// Why it can't do with packets whose payload waits elsewhere, if it can't with these settings.
    #[must_use]
    pub fn needs_payload(&self, settings: &Settings) -> Option<&'static str> {
        stages::needs_payload(self, settings)
    }
}

/// The one input of most stages.
pub(crate) const IN: Ports = Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]);
/// The one output of most stages.
pub(crate) const OUT: Ports = Ports::These(&[PortType { name: "out", help: "packets", unconnected: None }]);

/// All stage types, by group and name.
#[must_use]
pub fn stage_types() -> &'static [StageType] {
    stages::ALL
}

/// The type of this name.
#[must_use]
pub fn stage_type(name: &str) -> Option<&'static StageType> {
    stage_types().iter().find(|t| t.name == name)
}
