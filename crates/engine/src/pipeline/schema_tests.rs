//! The schema accepts what the pipeline language accepts, and refuses slips that an editor can point at.

use std::cell::RefCell;
use std::collections::HashMap;
use std::path::Path;

use regex::Regex;
use serde_json::{Value, json};
use toml::de::{DeTable, DeValue};

use super::*;

thread_local! {
    static PATTERNS: RefCell<HashMap<String, Regex>> = RefCell::default();
}

fn matches(pattern: &str, text: &str) -> bool {
    PATTERNS.with_borrow_mut(|all| {
        let known = all.entry(pattern.to_owned()).or_insert_with(|| Regex::new(pattern).unwrap());
        known.is_match(text)
    })
}

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
        "type" => {
            let types = says.as_array().cloned().unwrap_or_else(|| vec![says.clone()]);
            types.iter().any(|kind| match kind.as_str().unwrap() {
                "object" => value.is_object(),
                "array" => value.is_array(),
                "string" => value.is_string(),
                "boolean" => value.is_boolean(),
                "number" => value.is_number(),
                // 8.0 is one, too.
                "integer" => value.as_f64().is_some_and(|n| n.fract() == 0.0),
                other => panic!("type {other}"),
            })
        }
        "const" => value == says || value.as_f64().is_some_and(|n| says.as_f64() == Some(n)),
        "enum" => says.as_array().unwrap().contains(value),
        "pattern" => value.as_str().is_none_or(|text| matches(says.as_str().unwrap(), text)),
        "minimum" => value.as_f64().is_none_or(|n| n >= says.as_f64().unwrap()),
        "maximum" => value.as_f64().is_none_or(|n| n <= says.as_f64().unwrap()),
        "anyOf" => all(says).contains(&true),
        "required" => value
            .as_object()
            .is_none_or(|map| says.as_array().unwrap().iter().all(|k| map.contains_key(k.as_str().unwrap()))),
        "properties" => value.as_object().is_none_or(|map| {
            map.iter().all(|(key, value)| says.get(key).is_none_or(|schema| valid(root, schema, value)))
        }),
        "patternProperties" => value.as_object().is_none_or(|map| {
            says.as_object().unwrap().iter().all(|(pattern, schema)| {
                map.iter().all(|(key, value)| !matches(pattern, key) || valid(root, schema, value))
            })
        }),
        "additionalProperties" => {
            let (known, patterns) = (&schema["properties"], schema["patternProperties"].as_object());
            let fits = |key: &str| {
                let mut patterns = patterns.into_iter().flatten();
                patterns.any(|(pattern, _)| matches(pattern, key))
            };
            let more = value.as_object().into_iter().flatten();
            let more = more.filter(|(key, _)| known.get(key).is_none() && !fits(key));
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
        DeValue::Integer(n) => json!(i64::from_str_radix(&n.as_str().replace('_', ""), n.radix()).unwrap()),
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
        // Words for a flag, a list of one, names as options have them.
        "tcp_order = \"yes\"",
        "tcp_order = \"off\"",
        "class = \"a: tcp => bypass\"",
        "hold = 0",
        "hold = \"64US\"",
        "gro-bytes = 9000",
        "type = \"slice\"\nfraction = \"0.5\"",
        "type = \"slice\"\nports = 1",
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
        "tcp_order = \"perhaps\"",
        "tcp_order = 1",
        "gro-bites = 9000",
        "class = { a = 1 }",
        "type = \"slice\"\nfraction = 1.5",
        "type = \"slice\"\nfraction = \"half\"",
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

/// Values as a configuration may have them, of every kind of setting, and slips.
const VALUES: &[&str] = &[
    "true",
    "false",
    "0",
    "0.0",
    "1",
    "7",
    "2.5",
    "8.0",
    "1e3",
    "0x20",
    "0o17",
    "0b1",
    "1_000",
    "+7",
    "+8.0",
    "65535",
    "-1",
    "0.5",
    "'true'",
    "'on'",
    "'yes'",
    "'false'",
    "'off'",
    "'no'",
    "'Yes'",
    "''",
    "'0'",
    "'1'",
    "'0.5'",
    "'.5'",
    "'1.'",
    "'+1'",
    "'1e-3'",
    "'5e-1'",
    "'50%'",
    "' 1 % '",
    "' .5 '",
    "'-0'",
    "'8'",
    "'8k'",
    "'8 K'",
    "'1.5M'",
    "'2G'",
    "'1_000'",
    "' 9 '",
    "'9\t'",
    "'64us'",
    "'64US'",
    "'1.5 ms'",
    "'2s'",
    "'3min'",
    "'3MIN'",
    "'1e3ns'",
    "'10µs'",
    "'10μs'",
    "'64 parsecs'",
    "'64KiB'",
    "'64kib'",
    "'2MB'",
    "'9b'",
    "'1 GiB'",
    "'1k'",
    "'1mpps'",
    "'2.2gbps'",
    "'10Mbit'",
    "'5 PPS'",
    "'auto'",
    "'oldest'",
    "'ack,gro'",
    "'flow'",
    "'none'",
    "'any'",
    "'tcp dst port 443'",
    "'x.pcap'",
    "'name'",
    "'10.0.0.1'",
    "'10.0.0.0/8'",
    "'2001:db8::1'",
    "'2001:db8::/32'",
    "'::ffff:10.0.0.1'",
    "'10.0.0.1/24'",
    "'example.org'",
];

/// All that the program takes as the value of a setting, the schema takes: each value above alone, as a list
/// of one and as a list of two.
#[test]
fn it_accepts_all_that_is_read() {
    let registry = built_in();
    let schema = json_schema(&registry);
    let stages =
        registry.types().iter().map(|kind| (format!("/$defs/stage_{}/properties", kind.name), kind.settings));
    let all = stages.chain([("/properties".to_owned(), contexts::PIPELINE_SETTINGS)]);
    let (mut read, mut refused) = (0, 0);
    for (at, settings) in all {
        let properties = schema.pointer(&at).unwrap();
        for setting in settings {
            // Half a byte counts as one, which an editor may well point at.
            let half_a_byte = |value: &str| value == "0.5" && matches!(setting.kind, Kind::Bytes(1, _));
            for value in VALUES.iter().filter(|value| !half_a_byte(value)) {
                for text in [(*value).to_owned(), format!("[{value}]"), format!("[{value}, {value}]")] {
                    let text = format!("x = {text}");
                    let document = DeTable::parse(&text).unwrap_or_else(|e| panic!("{text}: {e}"));
                    let value = document.get_ref().get("x").unwrap().get_ref();
                    let literal = read::literal(value);
                    let taken = literal.is_some_and(|one| setting.kind.parse(&one, Path::new("")).is_ok());
                    let fits = valid(&schema, &properties[setting.name], &json_of(value));
                    assert!(
                        fits || !taken,
                        "{at}/{}: {text} is read, and the schema refuses it",
                        setting.name
                    );
                    read += usize::from(taken);
                    refused += usize::from(!fits);
                }
            }
        }
    }
    assert!(read > 5_000 && refused > 10_000, "{read} {refused}");
}
