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

mod config;
mod picture;
mod proxied;
mod read;
pub mod registry;
mod render;
mod rounds;
mod schema;
pub mod settings;
mod shape;
mod slicing;
mod stages;
mod syntax;
#[cfg(test)]
mod tests;

pub(crate) use config::Finding;
pub use config::{Diagnostic, Diagnostics, Plan, PlannedStage, Wire};
pub(crate) use proxied::{proxied, unanswered_notes};
pub(crate) use registry::Slices;
pub use registry::{
    BuildError, Group, Made, PortType, Ports, Role, Site, StageType, stage_type, stage_types,
};
pub use render::Drawing;
pub(crate) use rounds::order;
pub use schema::json_schema;
pub use settings::{Kind, Setting, Settings, Value};
pub use stages::port_of;
