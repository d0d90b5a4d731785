//! The shape of graphs: their ends, and wires that lead nowhere.

use std::path::Path;

use super::*;

#[test]
fn a_graph_that_ends_by_itself_does_not_go_round() {
    let plan = |graph: &str, from: Option<&str>, to: Option<&str>| {
        let result = Plan::from_graph(graph, from.map(port_of), to.map(port_of), Path::new(""));
        result
            .map(drop)
            .map_err(|e| e.0.iter().map(|d| d.error.message.clone()).collect::<Vec<_>>().join(", "))
    };
    for (graph, from, to, says) in [
        (
            "counter -> discard; counter -> discard",
            Some("synth:"),
            Some("null"),
            "each way ends in the graph, as at `discard`",
        ),
        (
            "paced(rate=1pps) -> counter",
            Some("synth:"),
            Some("null"),
            "each way begins in the graph, as at `paced`",
        ),
        ("reframe -> reframe", Some("synth:"), Some("null"), "it goes round"),
    ] {
        let error = plan(graph, from, to).unwrap_err();
        assert!(error.contains(says), "{graph}: {error}");
        assert_eq!(error.contains("goes round"), says.contains("goes round"), "{graph}: {error}");
    }
    plan("counter", Some("synth:"), Some("null")).unwrap();
}

/// Red packets would pass with the others, though the graph says that they don't.
#[test]
fn a_wire_that_no_packet_takes_is_refused() {
    let told = |settings: &str, rest: &str| {
        let graph = format!("in :: synth -> m :: meter(cir=1mbps{settings}) -> out :: null; {rest}");
        Plan::from_graph(&graph, None, None, Path::new("")).and_then(|plan| plan.check())
    };
    for rest in ["m[red] -> discard", "m[1] -> counter -> n :: null"] {
        let all = told("", rest).unwrap_err().0;
        assert_eq!(all.len(), 1, "{all:?}");
        let error = all[0].error.to_string();
        assert!(error.contains("no packet leaves `m` by its port `red` without red = port"), "{error}");
        assert!(error.contains("set that too, or leave this out"), "{error}");
        told(", red=port", rest).unwrap();
    }
    told("", "").unwrap();
    told(", red=port", "").unwrap();
}

/// The end leaves a stage by its first port; where that is wired, by the only one of those that its settings
/// name which is not.
#[test]
fn the_end_takes_a_port_that_is_free() {
    let wire = |graph: &str| {
        let plan = Plan::from_graph(graph, Some(port_of("synth:")), Some(port_of("null")), Path::new(""))?;
        plan.check()?;
        let wire = plan.wires.iter().find(|w| plan.stages[w.to].name == "out").unwrap();
        let written = wire.output.as_deref().map_or(String::new(), |port| format!("[{port}]"));
        Ok(format!("{}{written}", plan.stages[wire.from].name))
    };
    let told = |graph: &str| wire(graph).map_err(|e: Diagnostics| e.0[0].error.to_string());
    let sw = |ports: &str, rest: &str| told(&format!("sw :: switch(ports=[{ports}]); {rest}"));
    for (ports, rest, from) in [
        ("'a: tcp'", "sw[a] -> discard", "sw[other]"),
        ("'a: tcp'", "sw[0] -> discard", "sw[other]"),
        ("'a: tcp'", "sw[other] -> discard", "sw"),
        ("'a: tcp'", "sw[a] -> counter", "counter"),
        ("'a: tcp', 'b: udp'", "sw[a] -> d :: discard; sw[other] -> d", "sw[b]"),
        ("'a: tcp', 'out: udp'", "sw[out] -> discard", "sw"),
        ("'1: tcp', '0: udp'", "sw[1] -> d :: discard; sw[0] -> d", "sw[other]"),
        ("'a: tcp'", "sw[a] -> t :: tee; t[1] -> discard", "t"),
    ] {
        assert_eq!(sw(ports, rest).unwrap(), from, "{ports} {rest}");
    }
    assert_eq!(told("t :: tee; t[0] -> discard").unwrap(), "t[1]");
    let says = |told: Result<String, String>, what: &[&str]| {
        let told = told.unwrap_err();
        assert!(what.iter().all(|what| told.contains(what)), "{told}");
    };
    says(sw("'a: tcp', 'b: udp'", "sw[a] -> discard"), &["2 output ports", "as in `sw[b] -> out`"]);
    says(sw("'a: tcp'", "sw[a] -> discard; sw[other] -> discard"), &["each way ends in the graph"]);
    says(sw("'a: tcp'", "sw[a] -> c :: counter; sw[other] -> counter"), &["2 stages could be"]);
    // Captures at the end of one way are no neighbours of the other way's end.
    let capture = "pcap(path=rest.pcap)";
    assert_eq!(sw("'a: tcp'", &format!("sw[other] -> {capture}")).unwrap(), "sw");
    assert_eq!(told(&format!("limit(rate=1mbps)[exceeded] -> {capture}")).unwrap(), "limit");
    assert_eq!(told("limit(rate=1mbps)[exceeded] -> af_packet(interface=lo)").unwrap(), "limit");
    says(told(&format!("counter -> {capture}")), &["each way ends in the graph, as at `pcap`"]);
    says(told("pcap(path=first.pcap) -> counter"), &["each way begins in the graph, as at `pcap`"]);
    // Ports that a type has keep their meanings: refused packets aren't what comes out at the end.
    says(told("limit(rate=1mbps)[out] -> discard"), &["each way ends in the graph"]);
    // A wrong setting or port is told, and nothing that follows from it.
    says(sw("'a: tpc'", "sw[a] -> discard"), &["tpc"]);
    says(sw("'a: tcp'", "sw[b] -> discard"), &["no output port `b`"]);
}

#[test]
fn ends_are_wired_by_themselves() {
    let ports =
        |graph| Plan::from_graph(graph, Some(("null", vec![])), Some(("null", vec![])), Path::new(""));
    let plan = ports("reframe(hold=64us) -> counter").unwrap();
    assert_eq!(
        plan.draw(Drawing::Click),
        "reframe :: reframe(hold=64us)\ncounter :: counter\nin :: null\nout :: null\n\nreframe -> counter\nin -> reframe\ncounter -> out\n"
    );
    plan.check().unwrap();
    ports("counter -> out; in -> counter").unwrap().check().unwrap();
    let error = ports("counter; c2 :: counter").unwrap_err().to_string();
    assert!(error.contains("could be in's neighbour"), "{error}");
    assert!(ports("").is_err());
    let plan = ports("switch(ports=[\"dns: udp port 53\"])[other] -> counter").unwrap();
    assert!(plan.draw(Drawing::Click).ends_with("switch[other] -> counter\nin -> switch\ncounter -> out\n"));
}
