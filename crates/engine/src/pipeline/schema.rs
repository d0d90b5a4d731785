//! The JSON Schema of configuration files, from the definitions of the stage types.

use serde_json::{Map, Value, json};

use super::contexts::PIPELINE_SETTINGS;
use slipstream_core::registry::StageType;
use slipstream_core::registry::{Ports, Registry};
use slipstream_core::settings::{Kind, Setting};

/// The JSON Schema (2020-12) that a configuration with stages of these types fulfils. Editors use it to
/// complete and to check.
#[must_use]
pub fn json_schema(registry: &Registry) -> Value {
    let mut defs = kinds();
    let mut types = Vec::new();
    let mut by_name = Map::new();
    for kind in registry.types() {
        let name = format!("stage_{}", kind.name);
        let reference = format!("#/$defs/{name}");
        types.push(json!({ "$ref": reference }));
        by_name.insert(
            kind.name.to_owned(),
            json!({ "anyOf": [{ "$ref": reference }, { "$ref": "#/$defs/stage", "required": ["type"] }] }),
        );
        defs.insert(name, stage(kind));
    }
    // The type may be left out where the stage is named after it, or where the graph says it: `a :: reframe`.
    // Then the settings must be those of some type.
    defs.insert("stage".into(), json!({ "anyOf": types }));
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
        "$defs": defs,
    });
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.extend(PIPELINE_SETTINGS.iter().map(|s| (s.name.to_owned(), setting(s))));
    }
    // Published as a file, which changes only where the definitions do.
    schema.sort_all_objects();
    schema
}

/// A table with settings of a stage of this type.
fn stage(kind: &StageType) -> Value {
    let mut properties: Map<String, Value> =
        kind.settings.iter().map(|s| (s.name.to_owned(), setting(s))).collect();
    properties.insert("type".into(), json!({ "const": kind.name }));
    let required: Vec<&str> = kind.settings.iter().filter(|s| s.required).map(|s| s.name).collect();
    // Names may be written with dashes, as options are. As patterns, no editor offers them.
    let dashed = kind.settings.iter().map(|s| s.name).filter(|name| name.contains('_')).map(|name| {
        let same = format!("#/$defs/stage_{}/properties/{name}", kind.name);
        (format!("^{}$", name.replace('_', "-")), json!({ "$ref": same }))
    });
    let dashed: Map<String, Value> = dashed.collect();
    json!({
        "title": kind.name,
        "description": describe(kind.summary, kind.inputs, kind.outputs),
        "type": "object",
        "properties": properties,
        "patternProperties": dashed,
        "required": required,
        "additionalProperties": false,
    })
}

fn setting(setting: &Setting) -> Value {
    let mut schema = of_kind(&setting.kind);
    if let Some(map) = schema.as_object_mut() {
        let range = match setting.kind {
            // Its bounds can't be told to a validator, which sees a text.
            Kind::Time(..) | Kind::TimeOr(..) => format!(" ({})", setting.kind.describe()),
            _ => String::new(),
        };
        map.insert("description".into(), format!("{}{range}", setting.help).into());
        if let Some(default) = setting.default {
            map.insert("default".into(), default.into());
        }
    }
    schema
}

/// The schema of a kind of setting, by reference to the part that it shares with others.
fn of_kind(kind: &Kind) -> Value {
    let of = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
    match kind {
        Kind::Time(..) => of("time"),
        Kind::TimeOr(word, ..) => json!({ "anyOf": [{ "const": word }, of("time")] }),
        // The bounds are for what is written as a number.
        Kind::Count(low, high) => json!({ "$ref": "#/$defs/count", "minimum": low, "maximum": high }),
        Kind::Bytes(low, high) => json!({ "$ref": "#/$defs/bytes", "minimum": low, "maximum": high }),
        Kind::Rate => of("rate"),
        Kind::Share => of("share"),
        Kind::Bool => of("bool"),
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Words(words) => json!({ "enum": words.iter().map(|w| w.0).collect::<Vec<_>>() }),
        Kind::Rules => of("rules"),
        Kind::File => of("file"),
        Kind::Text(_) => of("text"),
        Kind::Address => of("address"),
        Kind::Prefix => of("prefix"),
        // One alone is a list of one.
        Kind::List(kind) => {
            let one = of_kind(kind);
            json!({ "anyOf": [{ "type": "array", "items": one }, one] })
        }
    }
}

/// A number as people write it, and what may stand around it.
const NUMBER: &str = r"\s*[0-9._]+([eE][+-]?[0-9]+)?\s*";

/// The parts that settings of a kind share: all that is read, a text in the place of a number as well as a
/// number in the place of a text.
fn kinds() -> Map<String, Value> {
    let pattern = |unit: &str| json!({ "type": "string", "pattern": format!(r"^{NUMBER}{unit}\s*$") });
    let number = |kind: &str, unit: &str, title: &str| json!({ "title": title, "anyOf": [{ "type": kind }, pattern(unit)] });
    let text = |title: &str| json!({ "title": title, "type": ["string", "number", "boolean"] });
    let all = [
        (
            "time",
            json!({
                "title": "a time with its unit, as in 64us",
                "anyOf": [{ "const": 0 }, pattern("([nNuUµμmM]?[sS]|[mM][iI][nN])?")],
            }),
        ),
        ("count", number("integer", "[kKmMgG]?", "a whole number, as in 8192 or 8k")),
        ("bytes", number("number", "([kKmMgG]([iI]?[bB]))?[bB]?", "a size in bytes, as in 64MiB")),
        (
            "rate",
            json!({
                "title": "packets or bits a second, as in 1mpps or 2.2gbps",
                "anyOf": [pattern("[kKmMgG]?([pP][pP][sS]|[bB][pP][sS]|[bB][iI][tT])")],
            }),
        ),
        (
            "share",
            json!({
                "title": "a share, 0 to 1",
                "anyOf": [
                    { "type": "number", "minimum": 0, "maximum": 1 },
                    { "type": "string", "pattern": r"^\s*[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*%?\s*$" },
                ],
            }),
        ),
        (
            "bool",
            json!({
                "title": "true or false",
                "enum": [true, false, "true", "on", "yes", "false", "off", "no"],
            }),
        ),
        ("rules", json!({ "title": "packets selected in the rule language, or @FILE", "type": "string" })),
        ("file", text("a file, relative to this one")),
        ("text", json!({ "type": ["string", "number", "boolean"] })),
        (
            "address",
            json!({
                "title": "an IP address",
                "type": "string",
                "anyOf": [{ "format": "ipv4" }, { "format": "ipv6" }],
            }),
        ),
        (
            "prefix",
            json!({
                "title": "an IP prefix, as in 10.0.0.0/8",
                "type": "string",
                "pattern": "^[0-9a-fA-F.:]+(/[0-9]+)?$",
            }),
        ),
    ];
    all.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect()
}

fn describe(summary: &str, inputs: Ports, outputs: Ports) -> String {
    let side = |ports: Ports| match ports {
        Ports::None => "none".to_owned(),
        Ports::These(all) => all.iter().map(|p| p.name).collect::<Vec<_>>().join(", "),
        Ports::AsSet(how) => how.to_owned(),
    };
    format!("{summary}. Input ports: {}; output ports: {}.", side(inputs), side(outputs))
}
