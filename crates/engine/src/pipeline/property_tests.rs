//! Checks of the properties that stage types declare.

use std::path::Path;

use super::*;
use crate::stage::DropReason;

/// The stages of a graph, for what their types say with the settings there.
fn stage(text: &str) -> PlannedStage {
    let graph = format!("in :: null -> [0]s :: {text}");
    let registry = built_in();
    let kind = text.split('(').next().unwrap();
    let inputs = registry.get(kind).unwrap().inputs;
    let graph = if inputs == Ports::None { format!("s :: {text} -> out :: null") } else { graph };
    let ends = [" -> out :: null", "; s[1] -> out :: null", ""];
    let plans = ends.map(|end| Plan::from_graph(&format!("{graph}{end}"), None, None, Path::new("")));
    let plan = plans.into_iter().find_map(Result::ok).unwrap_or_else(|| panic!("{text}"));
    plan.stages.into_iter().find(|s| s.name == "s").unwrap()
}

#[test]
fn what_must_meet_depends_on_settings() {
    for (text, meets) in [
        ("reframe", Meets::Flow),
        ("reframe(tunnel=inner)", Meets::Everything),
        ("reframe(admit=adaptive)", Meets::Everything),
        ("firewall(rules=a.txt)", Meets::Connection),
        ("firewall(rules=a.txt, track=off)", Meets::Flow),
        ("firewall(rules=a.txt, track=off, fragments=0)", Meets::Nothing),
        ("meter(cir=1mbps)", Meets::Everything),
        ("meter(cir=1mbps, per=flow)", Meets::Flow),
        ("flow_stats", Meets::Flow),
        ("flow_stats(export=\"udp:192.0.2.9:4739\")", Meets::Flow),
        ("flow_stats(export=flows.ipfix)", Meets::Everything),
        ("nat(pool=192.0.2.1)", Meets::Everything),
        (
            "balancer(service=\"192.0.2.80:80\", backends=[\"10.1.0.1\"], source=192.0.2.79)",
            Meets::Connection,
        ),
        ("counter", Meets::Nothing),
        ("limit(rate=1mpps)", Meets::Everything),
        ("vlan_pop", Meets::Nothing),
        ("measure", Meets::Everything),
        ("tap(path=x.pcap)", Meets::Everything),
        ("synth", Meets::Everything),
    ] {
        let stage = stage(text);
        assert_eq!(stage.kind.meets(&stage.settings), meets, "{text}");
    }
    // Settings alone, where a whole graph would say no more.
    let of = |kind: &str, texts: &[(&str, &str)]| {
        let kind = stage_type(kind).unwrap();
        let texts: Vec<_> = texts.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
        let settings = Settings::defaults(kind.settings).read(kind.settings, &texts, Path::new("")).unwrap();
        kind.meets(&settings)
    };
    assert_eq!(of("l2fwd", &[]), Meets::Everything);
    assert_eq!(of("l2fwd", &[("learn", "false")]), Meets::Nothing);
    assert_eq!(of("router", &[("interfaces", "a 10.0.0.1/24")]), Meets::Nothing);
    assert_eq!(of("router", &[("interfaces", "a 10.0.0.1/24 02:00:00:00:00:01")]), Meets::Everything);
    assert_eq!((of("slice", &[]), of("splice", &[])), (Meets::Nothing, Meets::Everything));
    assert!(
        Meets::Nothing < Meets::Flow
            && Meets::Flow < Meets::Connection
            && Meets::Connection < Meets::Everything
    );
}

#[test]
fn properties_that_only_some_have() {
    let all = |is: fn(&Properties) -> bool| -> Vec<&str> {
        stage_types().iter().filter(|t| is(&t.properties)).map(|t| t.name).collect()
    };
    assert_eq!(all(|p| p.live), ["af_packet", "af_xdp", "paced", "shm", "tap_interface"]);
    assert_eq!(all(|p| p.holds), ["reframe", "delay"]);
    assert_eq!(all(|p| p.copies), ["l2fwd", "tee"]);
    assert_eq!(all(|p| p.counts_hops), ["router"]);
    assert_eq!(all(|p| p.faces_a_link), ["af_packet", "af_xdp", "tap_interface"]);
    assert_eq!(all(|p| p.receives == Some(Receives::Copies)), ["af_packet"]);
    assert_eq!(all(|p| p.receives == Some(Receives::Packets)), ["af_xdp"]);
    assert_eq!(all(|p| p.faces_a_process), ["shm"]);
    assert_eq!(all(|p| p.leads_nowhere), ["null"]);
    assert_eq!(all(|p| p.events == Some(EventKind::Sessions)), ["nat"]);
    assert_eq!(all(|p| p.events == Some(EventKind::Denials)), ["firewall"]);
    assert_eq!(all(|p| p.payload == Payload::Parks), ["slice"]);
    assert_eq!(all(|p| p.payload == Payload::Returns), ["splice"]);
}

#[test]
fn a_type_that_contradicts_itself_is_refused() {
    const GOOD: StageType = StageType {
        name: "mine",
        group: Group::Plumbing,
        summary: "",
        example: "",
        inputs: Ports::None,
        outputs: Ports::None,
        settings: &[Setting::new("n", Kind::Count(1, 9), "").or("3")],
        properties: Properties::new(|_| Meets::Nothing),
        build: |_, _| Ok(Made::Checked),
    };
    let refused = |kind: StageType| built_in().register(kind).unwrap_err();
    let mut registry = built_in();
    assert_eq!(registry.register(GOOD), Ok(()));
    assert_eq!(registry.register(GOOD), Err(RegisterError::Taken("mine")));
    assert_eq!(registry.types().len(), stage_types().len() + 1);
    assert_eq!(refused(StageType { name: "reframe", ..GOOD }), RegisterError::Taken("reframe"));
    for name in ["", "Mine", "1st", "a b", "a->b", "a-b"] {
        assert_eq!(refused(StageType { name, ..GOOD }), RegisterError::Name(name));
    }
    const N: Setting = Setting::new("n", Kind::Count(1, 9), "");
    let with = |settings| refused(StageType { settings, ..GOOD });
    assert_eq!(with(&[N, N]), RegisterError::TwoSettings { kind: "mine", setting: "n" });
    assert_eq!(
        with(const { &[N.or("3").required()] }),
        RegisterError::RequiredDefault { kind: "mine", setting: "n" }
    );
    assert!(
        matches!(with(const { &[N.or("10")] }), RegisterError::Default { why, .. } if why.contains("1 to 9"))
    );
    assert_eq!(with(&[Setting { name: "type", ..N }]), RegisterError::SettingType("mine"));
    // The built-in types themselves would all be taken.
    let mut registry = Registry::default();
    for kind in stage_types() {
        assert_eq!(registry.register(*kind), Ok(()));
    }
}

#[test]
fn stages_share_by_name_and_type() {
    let common = Common::default();
    assert_eq!((common.find::<u8>(None), common.count::<u8>()), (None, 0));
    common.add("a", 1u8);
    common.add("x", "another type");
    assert_eq!((common.find::<u8>(None), common.find::<u8>(Some("a"))), (Some(1), Some(1)));
    common.add("b", 2u8);
    // Of two, the name has to say which.
    assert_eq!(
        (common.find::<u8>(None), common.find::<u8>(Some("b")), common.count::<u8>()),
        (None, Some(2), 2)
    );
    assert_eq!((common.find::<u8>(Some("x")), common.find::<&str>(None)), (None, Some("another type")));
}

#[test]
fn drop_reasons_are_those_of_the_stage_and_of_its_open_ports() {
    let reasons = |kind: &str| stage_type(kind).unwrap().drop_reasons();
    assert_eq!(reasons("firewall"), [DropReason::Unconnected, DropReason::Denied, DropReason::TableFull]);
    assert_eq!(reasons("meter"), [DropReason::RateLimited]);
    assert_eq!(reasons("reframe"), []);
}
