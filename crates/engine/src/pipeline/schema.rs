//! The JSON Schema of configuration files, from the definitions of the stage types.

use serde_json::{Map, Value, json};

use super::registry::{Ports, stage_types};
use super::settings;

/// The JSON Schema (2020-12) that a configuration fulfils. Editors use it to complete and to check.
#[must_use]
pub fn json_schema() -> Value {
    let mut types = Vec::new();
    for kind in stage_types() {
        let (mut properties, mut required) = settings::schema(kind.settings);
        properties.insert("type".into(), json!({ "const": kind.name }));
        required.insert(0, "type");
        types.push(json!({
            "title": kind.name,
            "description": describe(kind.summary, kind.inputs, kind.outputs),
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": false,
        }));
    }
    // The type may be left out where the stage is named after it.
    let by_name: Map<String, Value> = stage_types()
        .iter()
        .map(|kind| {
            let (mut properties, required) = settings::schema(kind.settings);
            properties.insert("type".into(), json!({ "const": kind.name }));
            let bare = json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            });
            (kind.name.to_owned(), json!({ "anyOf": [bare, { "$ref": "#/$defs/stage" }] }))
        })
        .collect();
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Slipstream pipeline",
        "type": "object",
        "properties": {
            "graph": {
                "type": "string",
                "description": "The graph in Click's arrows: `in -> reframe -> out; fw[denied] -> discard`",
            },
            "stage": {
                "type": "object",
                "description": "Settings of stages, by the names that the graph gives them",
                "properties": by_name,
                "additionalProperties": { "$ref": "#/$defs/stage" },
            },
        },
        "required": ["graph"],
        "additionalProperties": false,
        "$defs": { "stage": { "oneOf": types } },
    });
    // Published as a file, which changes only where the definitions do.
    schema.sort_all_objects();
    schema
}

fn describe(summary: &str, inputs: Ports, outputs: Ports) -> String {
    let side = |ports: Ports| match ports {
        Ports::None => "none".to_owned(),
        Ports::These(all) => all.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
        Ports::AsSet(how) => how.to_owned(),
    };
    format!("{summary}. Input ports: {}; output ports: {}.", side(inputs), side(outputs))
}
