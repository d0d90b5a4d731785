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
