//! Settings of functions as a pipeline reads them.

use super::*;

#[test]
fn wrong_settings_of_a_bridge_are_said() {
    let check = |settings: &str| {
        let graph = format!("a :: null -> br :: l2fwd({settings}); br[0] -> o :: null");
        let plan = Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
        plan.check().map_err(|e| e.to_string())
    };
    assert_eq!(check("ports=[a, b], map=[\"a > b\"], static=[\"vlan 7 02:00:00:00:00:05 b\"]"), Ok(()));
    for (settings, part) in [
        ("ports=[a]", "2 to 64 ports, not 1"),
        ("ports=[a, a]", "`a` is no name, or that of two ports"),
        ("ports=[a, b], map=[\"a\"]", "no pair of ports"),
        ("ports=[a, b], map=[\"a > a\"]", "the port that they came in by"),
        ("ports=[a, b], map=[\"a > c\"]", "no port is called \"c\""),
        ("ports=[a, b], static=[\"vlan 4095 02:00:00:00:00:05 b\"]", "1 to 4094"),
        ("ports=[a, b], static=[\"03:00:00:00:00:05 b\"]", "group address"),
        ("ports=[a, b], static=[\"02:00:00:00:00 b\"]", "no Ethernet address"),
        ("ports=[a, b], static=[\"b\"]", "no station"),
    ] {
        let said = check(settings).unwrap_err();
        assert!(said.contains(part), "{settings}: {said}");
    }
}

/// Settings that can't be are refused with what would be right, all in one go with the wires that lead
/// nowhere.
#[test]
fn wrong_settings_of_a_router_are_said() {
    let check = |settings: &str, wires: &str| {
        let graph = format!("a :: null -> r :: router({settings}); r[lan] -> o :: null; {wires}");
        let plan = Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
        plan.check().map_err(|e| e.to_string())
    };
    let lan = "interfaces=[\"lan 10.0.0.1/24 02:00:00:00:00:01\"";
    assert_eq!(check(&format!("{lan}]"), ""), Ok(()));
    assert_eq!(
        check(&format!("{lan}], neighbours=[\"10.0.0.5 02:00:00:00:00:05\"]"), "b :: null -> [lan]r"),
        Ok(())
    );
    for (settings, wires, part) in [
        (format!("{lan}, \"wan 192.0.2.1\"]"), "", "`192.0.2.1` of interface `wan`"),
        (format!("{lan}, \"wan 192.0.2.1/24 mtu 20\"]"), "", "576 to 65535"),
        (format!("{lan}]"), "b :: null -> [dmz]r", "`r` has no input port `dmz`"),
        (format!("{lan}]"), "r[dmz] -> p :: null", "it has 0 `lan`"),
        (format!("{lan}], neighbours=[\"10.0.0.5 03:00:00:00:00:05\"]"), "", "no station's Ethernet address"),
        (
            format!("{lan}], neighbours=[\"10.9.0.5 02:00:00:00:00:05\"]"),
            "",
            "no interface has a network with 10.9.0.5",
        ),
        (format!("{lan}], neighbours=[\"fe80::5 02:00:00:00:00:05\"]"), "", "name its port"),
        (format!("{lan}], routes=\"/nowhere/routes.txt\""), "", "/nowhere/routes.txt"),
    ] {
        let said = check(&settings, wires).unwrap_err();
        assert!(said.contains(part), "{settings} {wires}: {said}");
    }
}

#[test]
fn wrong_settings_of_a_balancer_are_said() {
    let check = |service: &str, backends: &str, settings: &str| {
        let graph = format!(
            "a :: null -> b :: balancer(service=\"{service}\", backends=[{backends}], {settings}) -> o :: null"
        );
        let plan = Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
        plan.check().map_err(|e| e.to_string())
    };
    let (four, six) = ("192.0.2.80:80", "[2001:db8::80]:80");
    let (nat, dsr) = ("mode=nat", "source=192.0.2.79");
    for (service, backends, settings) in [
        (four, "10.1.0.1, 10.1.0.2", nat),
        (six, "10.1.0.1", dsr),
        // The same host at another port.
        (four, "192.0.2.80", "mode=nat, port=8080"),
    ] {
        assert_eq!(check(service, backends, settings), Ok(()));
    }
    for (service, backends, settings, part) in [
        ("192.0.2.80", "10.1.0.1", dsr, "\"192.0.2.80\" is not ADDRESS:PORT"),
        ("192.0.2.80:0", "10.1.0.1", dsr, "\"192.0.2.80:0\" has port 0"),
        ("0.0.0.0:80", "10.1.0.1", dsr, "\"0.0.0.0:80\" is not the address of one host"),
        ("[ff02::1]:80", "10.1.0.1", dsr, "\"[ff02::1]:80\" is not the address of one host"),
        (four, "224.0.0.1", nat, "\"224.0.0.1\": not the address of one host"),
        (four, "\"255.255.255.255 down\"", dsr, "\"255.255.255.255 down\": not the address of one host"),
        (four, "", dsr, "lists none"),
        (four, "\"::\"", dsr, "\"::\": not the address of one host"),
        (four, "10.1.0.1", "source=0.0.0.0", "0.0.0.0 is not the address of one host"),
        (four, "10.1.0.1, 192.0.2.80", nat, "192.0.2.80:80 is the service itself"),
        (four, "\"10.1.0.1 down\", 10.1.0.2, 10.1.0.1", nat, "\"10.1.0.1\": 10.1.0.1 is listed before"),
        (four, "10.1.0.1, \"10.1.0.1 weight=2\"", dsr, "10.1.0.1 is listed before"),
    ] {
        let said = check(service, backends, settings).unwrap_err();
        assert!(said.contains(part), "{service} {backends} {settings}: {said}");
    }
}

#[test]
fn who_checks_a_plan_is_told_what_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules.txt"), include_str!("../../../functions/tests/gateway.rules"))
        .unwrap();
    let graph = r#"firewall(rules="rules.txt", in=wan0, out=docker0)"#;
    let (from, to) = (port_of("synth:"), port_of("null"));
    let plan = Plan::from_graph(graph, Some(from), Some(to), dir.path()).unwrap();
    let notes = plan.notes().unwrap();
    assert_eq!(notes.len(), 5, "{notes:?}");
    assert!(notes.iter().all(|(stage, _)| stage == "firewall"), "{notes:?}");
    let without = plan.check().and_then(|()| {
        let graph = r#"firewall(rules="rules.txt", in=wan0)"#;
        let (from, to) = (port_of("synth:"), port_of("null"));
        Plan::from_graph(graph, Some(from), Some(to), dir.path())?.check()
    });
    assert!(without.unwrap_err().to_string().contains("out = \"docker0\""));
}

#[test]
fn a_table_of_payloads_smaller_than_a_batch_is_told_of() {
    let notes = |entries: &str| {
        let graph = format!("slice({entries}) -> splice");
        let (from, to) = (port_of("synth:"), port_of("null"));
        Plan::from_graph(&graph, Some(from), Some(to), std::path::Path::new("")).unwrap().notes().unwrap()
    };
    let [(stage, note)] = &notes("entries=4")[..] else { panic!("one note") };
    assert!(stage == "slice" && note.contains("256 packets at once, of which 4 are sliced"), "{note}");
    assert_eq!((notes("entries=255").len(), notes("entries=256"), notes("")), (1, vec![], vec![]));
}
