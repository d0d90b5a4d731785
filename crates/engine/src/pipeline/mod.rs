//! The pipeline language: a graph in Click's arrows, and tables of settings (TOML).
//!
//! - [`registry`]: every stage type with its ports and settings.
//! - [`syntax`]: the graph, from text to chains of stages.
//! - [`settings`]: values and what they may be.
//! - [`config`]: both together, checked; all errors at once, each with its place.
//! - [`render`]: the graph as Click, DOT, Mermaid or SVG; [`schema`]: the JSON Schema of configurations.
//!
//! ```
//! use slipstream::pipeline::Plan;
//!
//! let plan = Plan::from_graph("in :: null -> reframe(hold=64us) -> out :: null", None, None, "".as_ref()).unwrap();
//! plan.check().unwrap();
//! let errors = Plan::from_graph("in :: null -> refrane -> out :: null", None, None, "".as_ref()).unwrap_err();
//! assert!(errors.to_string().contains("did you mean `reframe`?"));
//! ```

mod chain;
mod changes;
mod config;
mod contexts;
mod diagnostics;
mod ends;
#[cfg(test)]
mod function_tests;
mod links;
#[cfg(test)]
mod output_tests;
mod outputs;
mod picture;
#[cfg(test)]
mod property_tests;
mod proxied;
mod read;
mod render;
mod schema;
#[cfg(test)]
mod schema_tests;
mod shape;
#[cfg(test)]
mod shape_tests;
mod shards;
mod slicing;
mod syntax;
#[cfg(test)]
mod tests;
mod topology;

pub use crate::stages::{built_in, port_names, port_of, stage_type, stage_types};
pub use changes::Change;
pub use config::{Plan, PlannedStage, Wire};
pub use contexts::PIPELINE_SETTINGS;
pub(crate) use diagnostics::Finding;
pub use diagnostics::{Diagnostic, Diagnostics};
pub use links::LongestPackets;
pub(crate) use links::received_twice_notes;
pub(crate) use proxied::{proxied, unanswered_notes};
pub use render::Drawing;
pub use schema::json_schema;
pub(crate) use shape::port_number;
pub use shards::ShardPlan;
pub(crate) use slicing::lost_payload_notes;
pub use slipstream_core::registry::{
    Attachment, BuildError, Common, EventKind, Group, Made, Meets, OneThread, Payload, PortType, Ports,
    Properties, Receives, RegisterError, Registry, Role, Site, StageType,
};
pub use slipstream_core::settings::{Kind, Setting, Settings, Value};
pub use slipstream_core::{registry, settings};
pub(crate) use topology::order;
