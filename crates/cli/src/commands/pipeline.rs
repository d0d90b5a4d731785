//! `slipstream graph`, `validate`, `list`: pipelines drawn, checked, and what they are made of.

use std::path::Path;

use anyhow::{anyhow, bail};
use serde_json::{Value, json};
use slipstream::flow_context::Layout;
use slipstream::pipeline::{
    Diagnostics, Drawing, Group, Kind, Meets, Plan, Ports, Setting, ShardPlan, StageType, json_schema,
    port_of,
};
use slipstream::runtime::{ContextPlace, FlowContextPlan};
use slipstream_report::{Table, plural};

use super::Outcome;
use crate::cli;
use crate::types;
use crate::ui;

/// The plan that the command line asks for.
pub(super) fn plan(args: &cli::PipelineArgs) -> Result<Plan, Diagnostics> {
    let cli::PipelineArgs { context, context_flows, context_memory, .. } = args;
    let given = [("context", context), ("context_flows", context_flows), ("context_memory", context_memory)];
    let given: Vec<_> = given.iter().filter_map(|(name, text)| Some((*name, text.as_deref()?))).collect();
    written_plan(args)?.with_pipeline_settings(&given)
}

fn written_plan(args: &cli::PipelineArgs) -> Result<Plan, Diagnostics> {
    match (&args.config, &args.expression) {
        (Some(path), _) => {
            let plan = Plan::from_file_with(&types::registry(), path)?;
            let port = |p: &Option<String>| p.is_some();
            if port(&args.input) || port(&args.output) {
                plan.replace_ends(args.input.as_deref().map(port_of), args.output.as_deref().map(port_of))
            } else {
                Ok(plan)
            }
        }
        (None, expression) => Plan::from_graph_with(
            &types::registry(),
            expression.as_deref().unwrap_or_default(),
            args.input.as_deref().map(port_of),
            args.output.as_deref().map(port_of),
            Path::new(""),
        ),
    }
}

pub(super) fn graph(args: &cli::Graph) -> anyhow::Result<Outcome> {
    let how = match args.to {
        cli::Drawing::Click => Drawing::Click,
        cli::Drawing::Dot => Drawing::Dot,
        cli::Drawing::Mermaid => Drawing::Mermaid,
        cli::Drawing::Svg => Drawing::Svg,
    };
    ui::print(ui::reading(|| plan(&args.pipeline))?.draw(how).trim_end())?;
    Ok(Outcome::Done)
}

fn contexts_json(contexts: &FlowContextPlan) -> Value {
    let place = |p: &ContextPlace| json!({ "stage": p.stage, "offset": p.offset, "bytes": p.bytes, "looks_up": p.looks_up });
    json!({
        "flows": contexts.flows,
        "bytes_per_flow": contexts.bytes,
        "memory_bytes": contexts.memory,
        "numbers_bytes": contexts.numbers * Layout::NUMBER as u64,
        "long_keys_bytes": contexts.long_keys,
        "places": contexts.places.iter().map(place).collect::<Vec<_>>(),
    })
}

fn contexts_table(contexts: &FlowContextPlan) -> String {
    let mut t = Table::default();
    t.title("Flow contexts");
    if contexts.places.is_empty() {
        t.row(["none", "no two stages could share a look-up, or they are off"]);
        return t.render(ui::columns());
    }
    t.row(["", "offset", "bytes", ""]);
    t.row(["key, last use", "0", &Layout::HEADER.to_string(), ""]);
    for place in &contexts.places {
        let note = if place.looks_up { "flows are looked up before it" } else { "" };
        t.row([&place.stage, &place.offset.to_string(), &place.bytes.to_string(), note]);
    }
    t.row(["a flow", "", &contexts.bytes.to_string(), ""]);
    let flows = u64::from(contexts.flows);
    let numbers = contexts.numbers * Layout::NUMBER as u64;
    let index = contexts.memory - flows * contexts.bytes as u64 - numbers;
    let mut sum = format!("{} bytes each, and an index of {index} bytes", contexts.bytes);
    if numbers > 0 {
        sum += &format!("; {numbers} bytes for the numbers that trains come with");
    }
    t.row([&plural(flows, "flow"), "", &contexts.memory.to_string(), &sum]);
    t.row(["long keys", "", &contexts.long_keys.to_string(), "at most, if all flows are of IPv6"]);
    t.row([
        "--workers",
        "",
        "",
        "on several threads each stage has its own; where all together take more than `context_memory`, none",
    ]);
    t.render(ui::columns())
}

fn meets(what: Meets) -> &'static str {
    match what {
        Meets::Nothing => "nothing",
        Meets::Flow => "flow",
        Meets::Connection => "connection",
        Meets::Everything => "everything",
    }
}

/// The packets that a stage of a pipeline in shards needs to meet.
fn need(what: Meets) -> &'static str {
    match what {
        Meets::Nothing => "needs nothing on one shard",
        Meets::Flow => "needs all packets of a flow on one shard",
        Meets::Connection => "needs all packets of a connection on one shard",
        Meets::Everything => {
            "needs more than a connection on one shard; how it gets that stands at the sources"
        }
    }
}

fn shards_json(shards: &Result<ShardPlan, Diagnostics>) -> Value {
    match shards {
        Ok(plan) => json!({
            "possible": true,
            "meets": plan.needs.iter().map(|(name, what)| json!({ "stage": name, "what": meets(*what) })).collect::<Vec<_>>(),
            "sources": plan.steering().map(|(name, how)| json!({ "source": name, "how": how })).collect::<Vec<_>>(),
            "reasons": [],
        }),
        Err(errors) => json!({
            "possible": false,
            "meets": [],
            "sources": [],
            "reasons": errors.0.iter().map(|d| json!({ "message": d.error.message, "hint": d.error.hint })).collect::<Vec<_>>(),
        }),
    }
}

/// The needs of a pipeline that is to run in shards, and what it gets.
fn shards_table(shards: &Result<ShardPlan, Diagnostics>) -> String {
    let mut t = Table::default();
    t.title("Shards (--shards N)");
    match shards {
        Ok(plan) => {
            for (name, what) in plan.needs.iter().filter(|(_, what)| *what != Meets::Nothing) {
                t.prose([name, need(*what)]);
            }
            for (name, how) in plan.steering() {
                t.prose([name, &how]);
            }
        }
        Err(errors) => {
            for error in errors.0.iter().map(|d| &d.error) {
                let hint = error.hint.as_ref().map_or(String::new(), |hint| format!(" ({hint})"));
                t.prose(["not possible", &format!("{}{hint}", error.message)]);
            }
        }
    }
    t.render(ui::columns())
}

pub(super) fn validate(args: &cli::Validate) -> anyhow::Result<Outcome> {
    let read = || plan(&args.pipeline).and_then(|plan| plan.notes().map(|notes| (plan, notes)));
    let result = ui::reading(|| Ok::<_, anyhow::Error>(read()))?;
    let contexts = match (&result, args.explain) {
        (Ok((plan, _)), true) => Some(plan.context_plan()?),
        _ => None,
    };
    let shards = match (&result, args.explain) {
        (Ok((plan, _)), true) => Some(plan.in_shards(2)),
        _ => None,
    };
    if args.format == cli::Format::Json {
        let errors = result.as_ref().err().map_or(&[][..], |d| d.0.as_slice());
        // What stands on the command line has no place in a file.
        let place = |at: usize| (at > 0).then_some(at);
        let error = |d: &slipstream::pipeline::Diagnostic| {
            json!({
                "file": d.file,
                "line": place(d.error.line),
                "column": place(d.error.column),
                "message": d.error.message,
                "hint": d.error.hint,
            })
        };
        let errors: Vec<Value> = errors.iter().map(error).collect();
        let stages = result.as_ref().map_or(0, |(plan, _)| plan.stages.len());
        let notes: Vec<Value> = result
            .iter()
            .flat_map(|(_, notes)| notes)
            .map(|(stage, note)| json!({ "stage": stage, "note": note }))
            .collect();
        let mut all = json!({ "schema": 1, "valid": result.is_ok(), "stages": stages, "errors": errors, "notes": notes });
        if let (Some(contexts), Some(all)) = (&contexts, all.as_object_mut()) {
            all.insert("flow_contexts".to_owned(), contexts_json(contexts));
        }
        if let (Some(shards), Some(all)) = (&shards, all.as_object_mut()) {
            all.insert("shards".to_owned(), shards_json(shards));
        }
        ui::print(serde_json::to_string_pretty(&all)?)?;
    }
    match result {
        Ok((plan, notes)) => {
            if args.format == cli::Format::Table {
                for (stage, note) in notes {
                    ui::print(format!("note: {stage}: {note}"))?;
                }
                if let Some(contexts) = &contexts {
                    ui::print(contexts_table(contexts).trim_end())?;
                }
                if let Some(shards) = &shards {
                    ui::print(shards_table(shards).trim_end())?;
                }
                let wires = plan.wires.len();
                ui::print(format!("valid: {} stages, {wires} wires", plan.stages.len()))?;
            }
            Ok(Outcome::Done)
        }
        Err(errors) if args.format == cli::Format::Json => {
            bail!("{} in the configuration", plural(errors.0.len() as u64, "error"))
        }
        Err(errors) => Err(errors.into()),
    }
}

pub(super) fn list(args: &cli::List) -> anyhow::Result<Outcome> {
    if args.schema {
        ui::print(serde_json::to_string_pretty(&json_schema(&types::registry()))?)?;
        return Ok(Outcome::Done);
    }
    let mut chosen = Vec::new();
    for name in &args.types {
        chosen.push(
            types::stage_type(name)
                .ok_or_else(|| anyhow!("there is no stage type {name:?}; `slipstream list` shows all"))?,
        );
    }
    if args.markdown {
        ui::print(chosen.iter().map(markdown).collect::<Vec<_>>().join("\n\n"))?;
        return Ok(Outcome::Done);
    }
    let text = match args.format {
        cli::Format::Json => {
            let all = if chosen.is_empty() { types::registry().types().to_vec() } else { chosen };
            let types: Vec<Value> = all.iter().map(type_json).collect();
            serde_json::to_string_pretty(&json!({ "schema": 1, "stages": types }))?
        }
        cli::Format::Table if chosen.is_empty() => overview(),
        cli::Format::Table => chosen.iter().map(in_full).collect::<Vec<_>>().join("\n\n"),
    };
    ui::print(text)?;
    Ok(Outcome::Done)
}

fn overview() -> String {
    let mut t = Table::default();
    let registry = types::registry();
    for group in Group::ALL {
        let mut of_group = registry.types().iter().filter(|t| t.group == group).peekable();
        if of_group.peek().is_some() {
            t.title(group.name());
        }
        for kind in of_group {
            t.prose([kind.name, kind.summary]);
        }
    }
    format!("{}\n\n`slipstream list TYPE` shows ports and settings.", t.render(ui::columns()).trim_end())
}

fn ports(ports: Ports) -> String {
    match ports {
        Ports::None => "none".into(),
        Ports::These(all) => {
            let one = |(n, p): (usize, &slipstream::pipeline::PortType)| {
                let fate = p.unconnected.map_or(String::new(), |r| format!("; unconnected: dropped as {r}"));
                format!("{n} {} ({}{fate})", p.name, p.help)
            };
            all.iter().enumerate().map(one).collect::<Vec<_>>().join(", ")
        }
        Ports::AsSet(how) => how.into(),
    }
}

fn in_full(kind: &StageType) -> String {
    let mut t = Table::default();
    t.title(format!("{}: {}", kind.name, kind.summary));
    t.prose(["example", kind.example]);
    t.prose(["input ports", &ports(kind.inputs)]);
    t.prose(["output ports", &ports(kind.outputs)]);
    if !kind.settings.is_empty() {
        t.title("Settings");
        t.prose(["", "value", "default", "meaning"]);
    }
    for setting in kind.settings {
        let default = if setting.required { "must be set" } else { setting.default.unwrap_or("–") };
        t.prose([setting.name, &setting.kind.describe(), default, setting.help]);
    }
    t.render(ui::columns()).trim_end().to_owned()
}

/// The settings as a table in Markdown.
fn markdown(kind: &StageType) -> String {
    let quoted = |words: &mut dyn Iterator<Item = &str>| {
        words.map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ")
    };
    let value = |setting: &Setting| match setting.kind {
        Kind::Choice(words) => quoted(&mut words.iter().copied()),
        Kind::Words(words) => quoted(&mut words.iter().map(|w| w.0)),
        kind => kind.describe(),
    };
    let default = |setting: &Setting| match setting.default {
        _ if setting.required => "must be set".to_owned(),
        Some("") | None => String::new(),
        Some(text) => format!("`{text}`"),
    };
    let mut lines =
        vec!["| setting | value | default | meaning |".to_owned(), "|---|---|---|---|".to_owned()];
    for setting in kind.settings {
        let cells =
            [format!("`{}`", setting.name), value(setting), default(setting), setting.help.to_owned()];
        // A bar would end the cell, and < would begin a tag.
        let cells = cells.map(|cell| cell.replace('|', "\\|").replace('<', "&lt;"));
        lines.push(format!("| {} |", cells.join(" | ")));
    }
    lines.join("\n")
}

fn type_json(kind: &StageType) -> Value {
    let side = |ports: Ports| match ports {
        Ports::None => json!([]),
        Ports::These(all) => all
            .iter()
            .map(
                |p| json!({ "name": p.name, "help": p.help, "unconnected": p.unconnected.map(|r| r.name()) }),
            )
            .collect(),
        Ports::AsSet(how) => json!({ "as_set": how }),
    };
    let setting = |s: &Setting| {
        json!({
            "name": s.name,
            "value": s.kind.describe(),
            "unit": s.kind.unit(),
            "default": s.default,
            "required": s.required,
            "help": s.help,
        })
    };
    json!({
        "name": kind.name,
        "group": kind.group.name(),
        "summary": kind.summary,
        "example": kind.example,
        "inputs": side(kind.inputs),
        "outputs": side(kind.outputs),
        "settings": kind.settings.iter().map(setting).collect::<Vec<_>>(),
    })
}
