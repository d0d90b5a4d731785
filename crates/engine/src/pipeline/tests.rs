//! Errors in configurations that are wrong, and drawings of right ones.

use super::diagnostics::{INPUT, OUTPUT};
use super::*;
use slipstream_core::settings::{Literal, Settings, Value};
use std::path::Path;

fn errors(text: &str) -> Vec<(usize, usize, String, String)> {
    let result = Plan::from_toml(text, "p.toml", Path::new("")).and_then(|p| p.check());
    let all = result.expect_err("an error was expected").0;
    all.into_iter()
        .map(|d| (d.error.line, d.error.column, d.error.message, d.error.hint.unwrap_or_default()))
        .collect()
}

fn has(text: &str, line: usize, column: usize, message: &str, hint: &str) {
    let all = errors(text);
    let found =
        all.iter().any(|e| (e.0, e.1) == (line, column) && e.2.contains(message) && e.3.contains(hint));
    assert!(found, "{line}:{column} {message:?} {hint:?} is not among {all:#?}");
}

const GOOD: &str = "graph = \"\"\"\nin -> reframe -> sw\nsw[dns] -> out\nsw[other] -> discard\n\"\"\"\n\
                    [stage.in]\ntype = \"synth\"\n[stage.reframe]\nhold = \"64us\"\n\
                    [stage.sw]\ntype = \"switch\"\nports = [\"dns: udp port 53\"]\n[stage.out]\ntype = \"null\"\n";

#[test]
fn a_good_one_is_good() {
    Plan::from_toml(GOOD, "p.toml", Path::new("")).unwrap().check().unwrap();
}

#[test]
fn errors_have_their_places_and_hints() {
    let with = |from: &str, to: &str| GOOD.replace(from, to);
    has(&with("hold = ", "hodl = "), 9, 1, "`hodl` is not a setting of reframe", "did you mean `hold`?");
    has(&with("\"64us\"", "\"64 parsecs\""), 9, 8, "parsecs", "");
    has(&with("\"64us\"", "64"), 9, 8, "lacks a unit", "");
    has(&with("\"64us\"", "\"5s\""), 9, 8, "out of range", "0 to 4s");
    has(&with("udp port 53", "udp prot 53"), 12, 9, "prot", "");
    has(&with("sw[dns]", "sw[dsn]"), 3, 4, "no output port `dsn`", "0 `dns`, 1 `other`");
    has(&with("-> discard", "-> diskard"), 4, 14, "diskard", "did you mean `discard`?");
    has(&with("type = \"switch\"", "type = \"swich\""), 11, 8, "swich", "switch");
    has(&with("[stage.out]", "[stage.outt]"), 3, 12, "`out` is neither", "outt");
    has(&with("[stage.in]", "[stages.in]"), 6, 2, "`stages` is not known here", "stage");
    has(&with("in -> reframe -> sw", "in -> reframe -> sw\nreframe -> sw"), 3, 1, "wired twice", "tee");
    let round = "graph = \"a :: synth -> c :: counter -> b :: counter -> c; d :: tee -> out :: null\"";
    has(round, 1, 24, "packets would go round: c, b", "");
    has(round, 1, 59, "nothing leads to `d`", "");
    // A port at both ends is one mistake, not a way round as well.
    for (graph, hint) in
        [("in :: synth -> null -> null", "a :: null"), ("in :: synth -> n :: null -> n", "two ports")]
    {
        let told = errors(&format!("graph = \"{graph}\""));
        let [(_, _, message, said)] = &told[..] else { panic!("{told:?}") };
        assert!(message.contains("both come from") && said.contains(hint), "{told:?}");
    }
}

/// A file that is no configuration may have a mistake in every line. Each place is counted from the file's
/// begin, so that telling all of them would take minutes.
#[test]
fn of_many_mistakes_the_first_are_told() {
    let many = 140_000;
    let graph = format!("graph = \"\"\"\n{}\"\"\"", "a => b\n".repeat(many));
    let table: String = (0..many).map(|i| format!("x{i} = 1\n")).collect();
    let no_toml = "a, b, c\n".repeat(many);
    for (text, first) in [(graph, (2, 3)), (table, (1, 1)), (no_toml, (1, 2))] {
        let told = errors(&text);
        assert_eq!((told.len(), (told[0].0, told[0].1)), (101, first), "{:?}", told[0]);
        assert_eq!((told[100].0, told[100].2.contains("more mistakes")), (0, true));
    }
    let graph = "a => b;".repeat(101);
    assert_eq!(Plan::from_graph(&graph, None, None, Path::new("")).unwrap_err().0.len(), 101);
    let graph = "a => b;".repeat(100);
    let told = Plan::from_graph(&graph, None, None, Path::new("")).unwrap_err().0;
    assert_eq!((told.len(), told[99].error.line), (100, 1));
}

/// A type that is written at two places must be the same there: one of them would count for nothing.
#[test]
fn a_stage_has_one_type() {
    let text = |graph: &str, kind: &str| {
        format!(
            "graph = \"in :: synth -> {graph} -> out :: null\"\n[stage.fw]\ntype = \"{kind}\"\n\
             [stage.counter]\ntype = \"{kind}\"\n"
        )
    };
    let right = text("fw -> counter -> x :: counter", "counter").replace("fw ->", "fw :: counter ->");
    Plan::from_toml(&right, "p.toml", Path::new("")).unwrap().check().unwrap();
    let wrong =
        text("fw -> x :: counter(rules=tcp) -> counter()", "vlan_pop").replace("fw ->", "fw :: counter ->");
    has(&wrong, 3, 8, "stage `fw` has type `counter` in the graph, not `vlan_pop`", "the same type");
    has(&wrong, 5, 8, "stage `counter` has type `counter` in the graph, not `vlan_pop`", "the same type");
    // Settings behind a name make a type of it; the hint, followed, is right.
    let wrong = text("fw(rules=tcp) -> counter", "counter");
    has(&wrong, 1, 25, "there is no stage type `fw`", "write `fw :: counter(…)`");
    let right = text("fw :: counter(rules=tcp) -> counter", "counter");
    Plan::from_toml(&right, "p.toml", Path::new("")).unwrap().check().unwrap();
    // A stage with a table is no type that could have been meant.
    has(&text("x :: fww -> fw -> counter", "counter"), 1, 30, "no stage type `fww`", "there are `");
}

/// The rest of the graph, a firewall say, would be left out.
#[test]
fn a_comment_that_is_never_closed_has_its_place() {
    let text =
        "graph = \"\"\"\nin :: synth -> /* counter\n-> out :: null\n\"\"\"\n[stage.in]\npackets = \"5\"";
    has(text, 2, 16, "this comment is never closed", "write `*/`");
    has("graph = \"synth -> null /* 1\"", 1, 24, "this comment is never closed", "");
    let graph = Plan::from_graph("counter /* -> firewall", Some(port_of("synth:")), None, Path::new(""));
    let error = &graph.unwrap_err().0[0].error;
    assert_eq!((error.line, error.column), (1, 9), "{error}");
}

/// A file that can't be read, or is something else, is wrong as a whole and nowhere in particular.
#[test]
fn a_file_that_is_no_configuration() {
    let dir = tempfile::tempdir().unwrap();
    let error = |name: &str, bytes: Option<&[u8]>| {
        let path = dir.path().join(name);
        bytes.iter().for_each(|bytes| std::fs::write(&path, bytes).unwrap());
        let errors = Plan::from_file(&path).unwrap_err().0;
        assert_eq!((errors.len(), errors[0].error.line), (1, 0), "{name}: {errors:?}");
        assert!(!errors[0].to_string().contains("line 1"), "{name}: {}", errors[0]);
        errors[0].error.to_string()
    };
    assert!(error("none.toml", None).contains("can't be read: No such file"));
    assert!(error(".", None).contains("can't be read: Is a directory"));
    let text = error("latin.toml", Some(b"graph = \"a\"\n# \xe9t\xe9\n"));
    assert!(text.contains("byte 14, counted from 0, is not UTF-8"), "{text}");
    let mut pcap = vec![0xd4, 0xc3, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    let text = error("x.pcap", Some(&pcap));
    assert!(text.contains("a capture, not a configuration") && text.contains("`-i`"), "{text}");
    pcap[0] = 0;
    assert!(error("x.bin", Some(&pcap)).contains("not UTF-8"));
}

#[test]
fn text_in_the_place_of_its_file() {
    let firewall = |rules: &str| {
        let stage = "in :: synth -> firewall(rules='RULES') -> out :: null".replace("RULES", rules);
        let plan = Plan::from_graph(&stage, None, None, Path::new(""));
        plan.and_then(|plan| plan.check()).unwrap_err().to_string()
    };
    let (text, file) = (firewall("deny tcp port 80"), firewall("no-such-file"));
    assert!(text.contains("No such file") && text.contains("write rules = FILE: File of rules"), "{text}");
    assert!(file.contains("No such file") && !file.contains("hint"), "{file}");
}

/// A mistake is told once, wherever else its stage stands, and nothing that follows from it.
#[test]
fn every_error_is_said_once() {
    let graph = |text: &str| errors(&format!("graph = \"{text}\""));
    for (text, message) in [
        ("in :: foo -> null", "there is no stage type `foo`"),
        (
            "x :: foo; in :: synth -> x -> out :: null; x[1] -> y :: counter; y -> x",
            "there is no stage type `foo`",
        ),
        ("in :: foo -> [0]counter -> out :: null", "there is no stage type `foo`"),
        ("in :: synth -> x :: counter -> out :: null; x :: counter", "`x` is declared twice"),
        ("in :: synth -> a :: reframe(hold=1) -> out :: null; a -> b :: null", "lacks a unit"),
    ] {
        let all = graph(text);
        assert!(matches!(&all[..], [(.., told, _)] if told.contains(message)), "{text}: {all:#?}");
    }
    let all = errors(&GOOD.replace("type = \"switch\"", "type = \"swich\""));
    assert!(matches!(&all[..], [(11, 8, ..)]), "{all:#?}");
    let all = errors(&GOOD.replace("type = \"switch\"\n", ""));
    assert!(matches!(&all[..], [(10, 8, told, _)] if told.contains("says no type")), "{all:#?}");
    let all = graph("in :: foo -> bar -> out :: null");
    assert_eq!(all.len(), 2, "{all:#?}");
}

/// Only a router may be come by again, and nothing on the way may make copies.
#[test]
fn ways_round_lead_through_routers() {
    const ROUTER: &str = "r :: router(interfaces=[\"a 10.0.0.1/24\", \"b 10.1.0.1/24\"])";
    let errors = |graph: &str| {
        let plan = Plan::from_graph(graph, None, None, Path::new("."));
        plan.and_then(|p| p.check()).map_or_else(|e| e.to_string(), |()| String::new())
    };
    let round = |middle: &str, more: &str| {
        errors(&format!("in :: synth -> [a]{ROUTER}[b] -> {middle} -> [b]r; r[a] -> out :: null{more}"))
    };
    assert_eq!(round("counter", ""), "");
    assert_eq!(round("reframe(hold=64us) -> counter", ""), "");
    assert_eq!(
        round("counter -> [a]s :: router(interfaces=[\"a 10.0.0.2/24\", \"b 10.2.0.1/24\"])[b]", ""),
        ""
    );
    let copies = round("t :: tee[0]", "; t[1] -> discard");
    assert!(copies.contains("copies that `t` makes would come to it again by way of `r`"), "{copies}");
    // Copies that don't come by again are no trouble.
    assert_eq!(
        errors(&format!(
            "in :: synth -> t :: tee[0] -> [a]{ROUTER}[b] -> counter -> [b]r; r[a] -> out :: null; t[1] -> discard"
        )),
        ""
    );
    let without = errors("in :: synth -> c :: counter -> l :: limit(rate=1kpps) -> c");
    assert!(
        without.contains("packets would go round: c, l") && without.contains("only a router"),
        "{without}"
    );
}

#[test]
fn all_errors_come_at_once() {
    let text = GOOD
        .replace("hold = \"64us\"", "hold = \"64 parsecs\"\nbrust = 3")
        .replace("-> discard", "-> nowhere");
    let lines: Vec<usize> = errors(&text).iter().map(|e| e.0).collect();
    assert_eq!(lines, [4, 9, 10]);
}

#[test]
fn the_longest_hold_is_that_of_a_class_too() {
    let longest = |stages: &str| {
        let graph = format!("synth -> {stages} -> null");
        Plan::from_graph(&graph, None, None, Path::new("")).unwrap().longest_hold_ns()
    };
    assert_eq!(longest("counter"), None);
    assert_eq!(longest("reframe(hold=0us)"), None);
    assert_eq!(longest("a :: reframe(hold=64us) -> b :: reframe(hold=1us)"), Some(64_000));
    assert_eq!(longest("reframe(hold=1us, class=[\"a: any => hold=5ms\"])"), Some(5_000_000));
    assert_eq!(longest("reframe(hold=auto)"), Some(256_000));
    assert_eq!(longest("reframe(hold=auto, hold_max=3ms)"), Some(3_000_000));
}

/// The one value that a stage needs has no need of a name.
#[test]
fn the_only_setting_that_must_be_written_needs_no_name() {
    let plan = |graph: &str| Plan::from_graph(graph, None, None, Path::new(""));
    let graph = "synth -> delay(10ms, jitter=2ms) -> null";
    let named = plan("synth -> delay(time=10ms, jitter=2ms) -> null").unwrap();
    let delay = |plan: &Plan| plan.stages.iter().find(|s| s.name == "delay").unwrap().settings.clone();
    assert_eq!(delay(&plan(graph).unwrap()), delay(&named));
    for (graph, column, message) in [
        ("synth -> counter(10) -> null", 18, "this value has no name of a setting"),
        ("synth -> delay(10ms, time=2ms) -> null", 22, "`time` is set twice for `delay`"),
        ("synth -> delay(ten) -> null", 16, "setting `ten` has no value"),
        ("synth -> delay(time=1ms, 10ms) -> null", 26, "setting `10ms` has no value"),
    ] {
        let errors = plan(graph).unwrap_err().0;
        assert_eq!((errors.len(), errors[0].error.column), (1, column), "{errors:#?}");
        assert_eq!(errors[0].error.message, message);
    }
}

/// A stage that can't be built is the only thing that is wrong with what leads to it and from it.
#[test]
fn a_stage_that_can_not_be_built_has_its_ports() {
    for stage in ["firewall(rules=\"frobnicate\")", "tap(path=\"/no/such/folder/x.pcap\")"] {
        let graph = format!("in :: synth -> {stage} -> out :: null");
        let plan = Plan::from_graph(&graph, None, None, Path::new("")).and_then(|p| p.build(1).map(|_| ()));
        let errors = plan.unwrap_err().0;
        assert_eq!(errors.len(), 1, "{errors:#?}");
        assert!(!errors[0].error.message.contains("go nowhere"), "{errors:#?}");
    }
}

/// A table that nothing uses keeps nothing else from being told, nor does anything else keep it.
#[test]
fn an_unused_table_hides_nothing() {
    let spare =
        "[stage.spare]\ntype = \"reframe\"\nhold = \"99s\"\nhodl = 1\n[stage.other]\ntype = \"nul\"\n";
    let text = format!("{}{spare}", GOOD.replace("hold = \"64us\"", "hold = \"64 parsecs\""));
    let lines: Vec<usize> = errors(&text).iter().map(|e| e.0).collect();
    let start = GOOD.lines().count();
    assert_eq!(lines, [9, start + 1, start + 3, start + 4, start + 5, start + 6]);
    let text = GOOD.replace("\"64us\"", "\"64us\"\nclass = [\"web: tcp port 80 => hold=9s\"]");
    let alone: Vec<usize> = errors(&text).iter().map(|e| e.0).collect();
    let both: Vec<usize> =
        errors(&format!("{text}[stage.spare]\ntype = \"null\"\n")).iter().map(|e| e.0).collect();
    assert_eq!(both, [alone, vec![16]].concat());
    let round =
        "graph = \"in :: synth -> c :: counter -> b :: counter -> c\"\n[stage.spare]\ntype = \"null\"\n";
    has(round, 1, 25, "packets would go round", "");
    has(round, 2, 8, "stage `spare` is not in the graph", "");
}

#[test]
fn toml_errors_have_places_too() {
    has("graph = \"in -> out\nx = 3", 1, 19, "", "");
    has("nothing = 1", 1, 1, "not known", "graph");
    has("[stage.x]\ntype=\"null\"", 1, 1, "there is no `graph`", "");
}

#[test]
fn drawings_read_back() {
    let plan = Plan::from_toml(GOOD, "p.toml", Path::new("")).unwrap();
    let click = plan.draw(Drawing::Click);
    let again = Plan::from_graph(&click, None, None, Path::new("")).unwrap();
    assert_eq!(again.draw(Drawing::Click), click);
    for (stage, other) in plan.stages.iter().zip(&again.stages) {
        assert_eq!((&stage.name, &stage.settings), (&other.name, &other.settings));
    }
    assert!(plan.draw(Drawing::Dot).contains("s2 -> s3 [label=\"dns\"];"));
    assert!(plan.draw(Drawing::Mermaid).contains("s2 -->|\"dns\"| s3"));
    assert!(plan.draw(Drawing::Svg).starts_with("<svg "));
}

#[test]
fn every_type_is_described_and_its_defaults_are_good() {
    for kind in stage_types() {
        assert!(!kind.summary.is_empty() && !kind.summary.ends_with('.'), "{}", kind.name);
        assert!(kind.example.contains(kind.name), "{}: {}", kind.name, kind.example);
        for setting in kind.settings {
            assert!(
                !setting.help.is_empty() && (!setting.required || setting.default.is_none()),
                "{}",
                setting.name
            );
            assert_eq!(setting.name, setting.name.to_lowercase().replace('-', "_"));
            if let Some(default) = setting.default {
                let value = setting.kind.parse(&Literal::Text(default.into()), Path::new(""));
                assert!(value.is_ok(), "{}.{} = {default}: {value:?}", kind.name, setting.name);
            }
        }
    }
    let names: std::collections::BTreeSet<_> = stage_types().iter().map(|t| t.name).collect();
    assert_eq!(names.len(), stage_types().len());
}

#[test]
fn the_schema_names_every_stage_and_setting() {
    let schema = json_schema(&built_in());
    let types = schema["$defs"]["stage"]["anyOf"].as_array().unwrap();
    assert_eq!(types.len(), stage_types().len());
    for kind in stage_types() {
        let schema = &schema["$defs"][format!("stage_{}", kind.name)];
        assert_eq!(schema["properties"]["type"]["const"], kind.name);
        assert_eq!(schema["properties"].as_object().unwrap().len(), kind.settings.len() + 1);
    }
}

#[test]
fn what_is_in_configs_is_right() {
    let configs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs");
    let published = std::fs::read_to_string(configs.join("pipeline.schema.json")).unwrap();
    let published: serde_json::Value = serde_json::from_str(&published).unwrap();
    assert_eq!(
        published,
        json_schema(&built_in()),
        "slipstream list --schema > configs/pipeline.schema.json"
    );
    let mut found = 0;
    for file in std::fs::read_dir(&configs).unwrap().map(|e| e.unwrap().path()) {
        if file.extension().is_some_and(|e| e == "toml") {
            Plan::from_file(&file).and_then(|plan| plan.check()).unwrap_or_else(|e| panic!("{e}"));
            found += 1;
        }
    }
    assert!(found >= 2);
}

/// A function that takes the mark off is warned of where nothing else tells sliced packets from others.
#[test]
fn payloads_that_a_changed_mark_loses_are_told() {
    let said = |graph: &str| {
        let graph = format!("in :: null -> {graph} -> out :: null");
        Plan::from_graph(&graph, None, None, Path::new("")).unwrap().notes().unwrap()
    };
    let marking = "m :: meter(cir=1mbps, mark=af1)";
    let lost = said(&format!("s :: slice(mode=paper) -> counter -> {marking} -> splice"));
    let [(stage, note)] = lost.as_slice() else { panic!("{lost:?}") };
    assert!(stage == "m" && note.contains("`s` sliced lose their payloads") && note.contains("mode=paper"));
    for harmless in [
        format!("slice -> {marking} -> splice"),
        format!("{marking} -> slice(mode=paper) -> splice"),
        format!("slice(mode=paper) -> splice -> {marking}"),
        "slice(mode=paper) -> meter(cir=1mbps) -> splice".into(),
    ] {
        assert_eq!(said(&harmless), [], "{harmless}");
    }
}

/// The conditions on a graph with slice and splice: errors name the stage and suggest a change.
#[test]
fn payloads_come_back_before_anything_leaves() {
    let errors = |graph: &str| {
        let graph = format!("in :: null -> {graph} -> out :: null");
        match Plan::from_graph(&graph, None, None, Path::new("")).and_then(|p| p.check()) {
            Ok(()) => String::new(),
            Err(e) => e.to_string(),
        }
    };
    for good in [
        "slice -> splice",
        "slice -> counter -> tap(path=x.pcap) -> nat(pool=192.0.2.1) -> splice",
        "slice -> reframe -> splice(mtu=1500)",
        "slice(rate=4mpps, service=25us) -> splice",
        "a :: slice -> sa :: splice -> b :: slice -> splice(of=b)",
        "reframe(tcp_order=true) -> s :: slice -> splice -> c :: counter",
        "s :: slice -> sw :: switch(ports=[\"x: tcp\"])[x] -> t :: splice; sw[other] -> t",
        "s :: slice -> sw :: switch(ports=[\"x: tcp\"])[x] -> discard; sw[other] -> splice",
    ] {
        let all = errors(good);
        // Of two slice stages each splice must say whose it is.
        let named = good.contains("sa :: splice");
        assert_eq!(all.is_empty(), !named, "{good}\n{all}");
    }
    assert_eq!(errors("a :: slice -> splice(of=a) -> b :: slice -> sb :: splice(of=b)"), "");
    for (bad, message) in [
        ("slice", "packets that `slice` sliced leave by `out` without their payloads"),
        ("splice", "`splice` has no slice stage to bring payloads back from"),
        ("splice -> slice", "packets would go round"),
        ("slice -> splice(of=x)", "`splice` has no slice stage"),
        ("a :: slice -> b :: slice -> splice(of=b) -> splice(of=a)", "before a splice of their own"),
        ("a :: slice -> splice -> b :: slice -> sb :: splice(of=b)", "there are several slice stages"),
        (
            "slice(bind=flow) -> nat(pool=192.0.2.1) -> splice",
            "`nat` changes addresses or ports, and `slice` binds",
        ),
        ("slice(min_age=2s, max_age=1s) -> splice", "a payload must wait for 2s at least"),
        ("slice -> reframe(tcp_order=true) -> splice", "needs payloads, which wait at `slice`: `tcp_order`"),
        ("slice -> reframe(tunnel=inner) -> splice", "needs payloads, which wait at `slice`: `tunnel=inner`"),
        (
            "slice -> firewall(rules=a.txt, checksum=state) -> splice",
            "needs payloads, which wait at `slice`: `checksum`",
        ),
        (
            "slice -> firewall(rules=a.txt, checksum=all) -> splice",
            "needs payloads, which wait at `slice`: `checksum`",
        ),
        ("slice -> t :: tee[0] -> splice", "it multiplies packets"),
        ("slice(entries=10, rate=1mpps, service=1us) -> splice", "both `entries` and what to reckon it from"),
        ("slice(rate=1mpps) -> splice", "without `service`"),
        ("slice(service=1us) -> splice", "without `rate`"),
        ("slice(rate=1gbps, service=1us) -> splice", "packets a second are asked for"),
        ("slice(fraction=0.5, part=160) -> splice", "both `fraction` and `part`"),
        ("slice(ports=[a, a]) -> splice", "two ports are named `a`"),
        ("slice(entries=70000) -> splice", "out of range"),
    ] {
        let all = errors(bad);
        assert!(all.contains(message), "{bad}: {message:?} is not in\n{all}");
    }
    let past = "in :: null -> s :: slice -> t :: splice -> out :: null; other :: null -> t";
    let error = Plan::from_graph(past, None, None, Path::new("")).unwrap_err().to_string();
    assert!(
        error.contains("packets of `other` get to `t` past `s`: their tokens can't be trusted"),
        "{error}"
    );
    let aside = "in :: null -> s :: slice -> sw :: switch(ports=[\"x: tcp\"])[x] -> splice -> out :: null; sw[other] -> out";
    let error = Plan::from_graph(aside, None, None, Path::new("")).unwrap_err().to_string();
    assert!(error.contains("leave by `out` without their payloads"), "{error}");
    let never = "in :: null -> s :: slice -> discard";
    let error = Plan::from_graph(never, None, None, Path::new("")).unwrap_err().to_string();
    assert!(error.contains("no splice brings the payloads of `s` back"), "{error}");
}

/// A port that isn't in the text has no place there, nor have the settings that it leaves out.
#[test]
fn settings_that_a_port_of_the_command_line_leaves_out_are_not_in_the_graph() {
    let port = || Some(("pcap", vec![("path".to_owned(), "a.pcap".to_owned())]));
    let plan = Plan::from_graph("c :: counter", port(), port(), Path::new("")).unwrap();
    for (name, place) in [("in", INPUT), ("out", OUTPUT), ("c", 0..1)] {
        let stage = &plan.stages[plan.stage(name).unwrap()];
        assert_eq!(plan.setting_span(stage, Some("stamp")), place, "{name}");
    }
}

/// A setting without the one that it goes with: the stage, and the message.
const LONELY: &[(&str, &str)] = &[
    ("reframe(gro_bytes=9000)", "`gro_bytes` has no effect without compress = gro or ack,gro"),
    ("reframe(compress=ack, gro_segments=9)", "`gro_segments` has no effect"),
    ("reframe(gro_verify=true)", "`gro_verify` has no effect"),
    ("reframe(top_window=64)", "`top_window` has no effect without a class `top …`"),
    ("reframe(hold_max=1ms)", "is a bound of hold = auto"),
    ("meter(cir=1mbps, pbs=9000)", "`pbs` has no effect without `pir`"),
    ("meter(cir=1mbps, pir=2mbps, ebs=9000)", "`ebs` has no effect beside `pir`"),
    ("meter(cir=1mbps, flows=9)", "`flows` has no effect without per = flow"),
    ("router(interfaces=[\"a 10.0.0.1/24\"], reload=5s)", "`reload` has no effect without `routes`"),
    ("router(interfaces=[\"a 10.0.0.1/24\"], icmp_rate=0, icmp_burst=9)", "`icmp_burst` has no effect"),
    ("l2fwd(ports=[a, b], learn=false, ageing=5s)", "`ageing` has no effect without learn = true"),
    ("flow_stats(domain=5)", "`domain` has no effect with export = none"),
    ("slice(remark=5)", "`remark` has no effect without marked = remark"),
    ("slice(entry_bytes=99)", "`entry_bytes` has no effect without storage = copy"),
    ("slice(mode=paper, tag_bits=40)", "`tag_bits` has no effect without mode = keyed"),
    ("pcap(path=x, keep=3)", "`keep` has no effect without `rotate_size` or `rotate_time`"),
    ("paced(rate=1mpps, arrivals=poisson, burst=3)", "`burst` has no effect without arrivals = bursty"),
    ("paced(rate=1mpps, file=x, traffic=\"size=99\")", "`traffic` has no effect beside `file`"),
    ("firewall(rules=x, track=off, checksum=all)", "`checksum` has no effect with track = off"),
    ("firewall(rules=x, fragments=0, fragment_timeout=5s)", "`fragment_timeout` has no effect"),
    ("firewall(rules=x, format=rules, chain=INPUT)", "`chain` has no effect with format = rules"),
    (
        "balancer(service=\"192.0.2.80:80\", backends=10.1.0.1, mode=nat, source=192.0.2.9)",
        "`source` has no effect without mode = dsr",
    ),
    (
        "balancer(service=\"192.0.2.80:80\", backends=10.1.0.1, mode=nat, mtu=1400)",
        "`mtu` has no effect without mode = dsr",
    ),
    (
        "balancer(service=\"192.0.2.80:80\", backends=10.1.0.1, source=192.0.2.9, port=8080)",
        "`port` has no effect without mode = nat",
    ),
];

/// What has no effect is told at its place, in a graph as in a table; with its partner, or where it says what
/// is so anyway, it isn't.
#[test]
fn settings_without_their_partner_are_refused() {
    let told = |text: &str| -> Vec<_> {
        let plan = Plan::from_toml(text, "p.toml", Path::new("")).and_then(|plan| plan.check());
        plan.err().map(|all| all.0).unwrap_or_default()
    };
    for (stage, message) in LONELY {
        let all = told(&format!("graph = 'a :: null -> {stage} -> b :: null'"));
        let said = all.iter().filter(|d| d.error.message.contains(message)).count();
        assert_eq!(said, 1, "{stage}: {all:#?}");
    }
    // The place in a table, and in a graph.
    let table =
        "graph = \"a :: null -> reframe -> b :: null\"\n[stage.reframe]\nburst = 8\ngro_segments = 9\n";
    has(table, 4, 16, "`gro_segments` has no effect", "set that too, or leave this out");
    let graph = "graph = \"a :: null -> slice(remark=5) -> splice -> b :: null\"";
    has(graph, 1, 36, "`remark` has no effect", "set that too, or leave this out");
    for fine in [
        "reframe(gro_bytes=65535, gro_segments=64, gro_verify=false, top_window=4096)",
        "reframe(compress=\"ack,gro\", gro_bytes=9000, gro_segments=9, gro_verify=true)",
        "reframe(class=\"heavy: top 1 % => burst=64\", top_window=64)",
        "meter(cir=1mbps, pbs=128KiB, flows=65536)",
        "meter(cir=1mbps, pir=2mbps, pbs=9000, ebs=64KiB, per=flow, flows=9)",
        "slice(remark=0, entry_bytes=2048, mode=paper, tag_bits=24) -> splice",
        "slice(marked=remark, remark=5, storage=copy, entry_bytes=99, tag_bits=40) -> splice",
        "l2fwd(ports=[a, b], learn=false, ageing=300s)",
        "flow_stats(domain=0)",
    ] {
        let all = told(&format!("graph = 'a :: null -> {fine} -> b :: null'"));
        let lonely = all.iter().any(|d| d.error.message.contains("has no effect"));
        assert!(!lonely, "{fine}: {all:#?}");
    }
    // From values, as Python and the command line have them.
    let lonely = Settings::default().with("gro_bytes", Value::Number(9000));
    let stages = vec![("in", "null", Settings::default()), ("r", "reframe", lonely)];
    let told = Plan::chain(&built_in(), stages, Path::new("")).unwrap_err().to_string();
    assert!(told.contains("`gro_bytes` has no effect"), "{told}");
}

/// Of a file of our own rules, settings about iptables' files say nothing.
#[test]
fn settings_of_another_kind_of_rules_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("own.rules"), "allow any\n").unwrap();
    let check = |settings: &str| {
        let graph = format!("a :: null -> firewall(rules=own.rules{settings}) -> b :: null");
        Plan::from_graph(&graph, None, None, dir.path()).and_then(|plan| plan.check())
    };
    check(", chain=FORWARD, unsupported=error").unwrap();
    for setting in ["chain=INPUT", "in=eth0", "out=eth0", "unsupported=leave_out"] {
        let told = check(&format!(", {setting}")).unwrap_err().to_string();
        assert!(
            told.contains("is about files of iptables-save, and") && told.contains("own.rules is none"),
            "{told}"
        );
    }
}

/// Settings about the writing of a capture are refused where one is read.
#[test]
fn settings_of_a_written_capture_are_refused_where_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let header = [0x4d, 0x3c, 0xb2, 0xa1, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4, 0, 1, 0, 0, 0];
    std::fs::write(dir.path().join("in.pcap"), header).unwrap();
    let check = |graph: &str| Plan::from_graph(graph, None, None, dir.path()).and_then(|plan| plan.check());
    for setting in ["stamp=arrival", "format=pcap", "rotate_size=1MiB", "rotate_time=1s"] {
        let told = check(&format!("pcap(path=in.pcap, {setting}) -> null")).unwrap_err().to_string();
        let (name, _) = setting.split_once('=').unwrap();
        assert!(told.contains(&format!("`{name}` is about a file that is written")), "{told}");
        check(&format!("synth -> pcap(path=out.pcap, {setting})")).unwrap();
    }
    check("pcap(path=in.pcap, stamp=release, format=pcapng) -> null").unwrap();
}

/// A condition names settings that there are, and values that they can have.
#[test]
fn conditions_on_other_settings_can_be_met() {
    use slipstream_core::registry::Need;
    for kind in built_in().types() {
        let setting = |name: &str| {
            let found = kind.settings.iter().find(|setting| setting.name == name);
            *found.unwrap_or_else(|| panic!("{} has no setting {name}", kind.name))
        };
        for partner in kind.properties.partners {
            partner.of.iter().for_each(|name| assert_eq!(setting(name).name, *name));
            match partner.need {
                Need::Is(name, values) => {
                    for value in values {
                        let parsed = setting(name).parse(value, Path::new("")).unwrap();
                        assert_eq!(parsed.to_string(), *value);
                    }
                }
                Need::IsNot(name, value) => {
                    assert_eq!(setting(name).parse(value, Path::new("")).unwrap().to_string(), value);
                }
                Need::Given(names) => names.iter().for_each(|n| assert_eq!(setting(n).default, None)),
                Need::Without(name) => assert_eq!(setting(name).default, None),
            }
        }
    }
}

/// Stages call one another, so that a chain without end would overflow the stack. One of 20,000 stages is
/// refused, named or not; where every stage is looked at for every other one, that takes minutes.
#[test]
fn a_graph_has_1024_stages_at_most() {
    let chain = |stages: usize, stage: &dyn Fn(usize) -> String| {
        let graph = (0..stages).map(stage).collect::<Vec<_>>().join(" -> ");
        Plan::from_graph(&format!("synth -> {graph} -> null"), None, None, "".as_ref())
    };
    for stage in
        [&|n| format!("c{n} :: counter"), &|_| "counter()".to_owned()] as [&dyn Fn(usize) -> String; 2]
    {
        let plan = chain(1022, stage).unwrap();
        plan.check().unwrap();
        assert_eq!(order(&plan.stages, &plan.wires).unwrap().len(), 1024);
        for stages in [1023, 20_000] {
            let error = chain(stages, stage).unwrap_err().0[0].error.to_string();
            let says = format!("the graph has {} stages, and may have 1024", stages + 2);
            assert!(error.contains(&says), "{error}");
        }
    }
}

#[test]
fn stages_without_a_name_are_numbered() {
    let graph = "in :: synth -> counter@3 :: counter -> counter() -> counter() -> counter() -> out :: null";
    let plan = Plan::from_graph(graph, None, None, "".as_ref());
    let names = |plan: Plan| plan.stages.into_iter().map(|s| s.name).collect::<Vec<_>>().join(" ");
    assert_eq!(
        plan.map(names).unwrap_or_else(|e| e.to_string()),
        "in counter@3 out counter counter@2 counter@4"
    );
}
