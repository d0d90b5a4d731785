//! The schema accepts what the pipeline language accepts, and refuses slips that an editor can point at.

use std::path::Path;

use regex::Regex;
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::*;

/// Says that `value` fulfils `schema`, by those keywords of JSON Schema that ours has.
fn valid(root: &Value, schema: &Value, value: &Value) -> bool {
    let all = |schemas: &Value| -> Vec<bool> {
        schemas.as_array().unwrap().iter().map(|s| valid(root, s, value)).collect()
    };
    schema.as_object().unwrap().iter().all(|(keyword, says)| match keyword.as_str() {
        "$ref" => {
            let path = says.as_str().unwrap().strip_prefix('#').unwrap();
            valid(root, root.pointer(path).unwrap_or_else(|| panic!("nothing is at {path}")), value)
        }
        "type" => match says.as_str().unwrap() {
            "object" => value.is_object(),
            "array" => value.is_array(),
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "number" => value.is_number(),
            "integer" => value.is_i64() || value.is_u64(),
            other => panic!("type {other}"),
        },
        "const" => value == says,
        "enum" => says.as_array().unwrap().contains(value),
        "pattern" => {
            value.as_str().is_none_or(|text| Regex::new(says.as_str().unwrap()).unwrap().is_match(text))
        }
        "minimum" => value.as_f64().is_none_or(|n| n >= says.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= says.as_f64().unwrap()),
        "anyOf" => all(says).contains(&true),
        "required" => value
            .as_object()
            .is_none_or(|map| says.as_array().unwrap().iter().all(|k| map.contains_key(k.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|map| {
            map.iter().all(|(key, value)| says.get(key).is_none_or(|schema| valid(root, schema, value)))
        }),
        "additionalProperties" => {
            let known = &schema["properties"];
            let more = value.as_object().into_iter().flatten().filter(|(key, _)| known.get(key).is_none());
            more.into_iter().all(|(_, value)| says.as_bool().unwrap_or_else(|| valid(root, says, value)))
        }
        "items" => value.as_array().is_none_or(|all| all.iter().all(|one| valid(root, says, one))),
        "title" | "description" | "default" | "format" | "$schema" | "$defs" => true,
        other => panic!("the schema has a keyword {other}, which this test doesn't know"),
    })
}

fn json_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => json!(text),
        DeValue::Integer(n) => json!(n.as_str().parse::<i64>().unwrap()),
        DeValue::Float(n) => json!(n.as_str().parse::<f64>().unwrap()),
        DeValue::Boolean(is) => json!(is),
        DeValue::Array(all) => all.iter().map(|one| json_of(one.get_ref())).collect(),
        DeValue::Table(table) => {
            table.iter().map(|(key, value)| (key.get_ref().to_string(), json_of(value.get_ref()))).collect()
        }
        DeValue::Datetime(time) => panic!("{time}"),
    }
}

fn accepts(text: &str) -> bool {
    let schema = json_schema(&built_in());
    let document = DeTable::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
    valid(&schema, &schema, &json_of(&DeValue::Table(document.get_ref().clone())))
}

#[test]
fn bundled_configurations_fulfil_it() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let files = std::fs::read_dir(configs).unwrap().map(|e| e.unwrap().path());
    let tables: Vec<_> = files.filter(|f| f.extension().is_some_and(|e| e == "toml")).collect();
    assert!(tables.len() >= 3, "{tables:?}");
    for file in tables {
        assert!(accepts(&std::fs::read_to_string(&file).unwrap()), "{}", file.display());
    }
}

#[test]
fn slips_are_refused() {
    let table = |settings: &str| format!("graph = \"a\"\n[stage.reframe]\n{settings}\n");
    for right in [
        "hold = \"64us\"\nburst = 32\nclass = [\"a: tcp => bypass\"]",
        "burst = \"32\"\ncapacity_bytes = \"64MiB\"\npolicy = \"waiting\"\ntcp_order = true",
        "type = \"reframe\"",
        "type = \"firewall\"\nrules = \"acl.txt\"",
    ] {
        assert!(accepts(&table(right)), "{right}");
    }
    for wrong in [
        "hodl = \"64us\"",
        "hold = 64",
        "hold = \"64 parsecs\"",
        "burst = 257",
        "burst = 0",
        "policy = \"oldset\"",
        "tcp_order = \"yes\"",
        "class = \"a: tcp => bypass\"",
        "type = \"refrane\"",
        "type = \"firewall\"",
        "type = \"nat\"\npool = [\"example.org\"]",
    ] {
        assert!(!accepts(&table(wrong)), "{wrong}");
    }
    assert!(!accepts("[stage.x]\ntype = \"null\""), "there is no graph");
    assert!(accepts("graph = \"a\"\n[stage.x]\nhold = \"1us\""), "the graph may say its type");
    assert!(!accepts("graph = \"a\"\n[stage.x]\nhold = \"1us\"\nchain = \"INPUT\""), "no type has both");
    assert!(!accepts("graph = \"a\"\n[stage.reframe]\nports = 2"), "the setting of another type");
    assert!(!accepts("graph = \"a\"\nhold = 1"));
}
