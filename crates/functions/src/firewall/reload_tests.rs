//! Rules read anew, against a firewall that had them from the beginning.

use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use slipstream_core::flow_context::{FlowContexts, Layout};
use slipstream_core::operate::{Events, Operate};
use slipstream_core::pool::Pool;
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

use super::reload::{Files, Loaded};
use super::stage::FirewallStage;
use super::{Firewall, Method, RuleSet};
use crate::conntrack::ConntrackConfig;
use crate::reassembly::stage_tests::{Collect, run, run_with};
use crate::test_packets::{echo, ipv4, ipv4_fragment, tcp, udp};
use crate::{PerPacket, PerTrain};

/// The contents of the files: rules, or an error.
type Text = Arc<Mutex<&'static str>>;

/// Sets of rules of all kinds, the last of them wrong.
const SETS: [&str; 7] = [
    "allow udp\ndefault deny",
    "deny udp dst port 53\ncount tcp",
    "deny length 500-\ndefault allow",
    "allow icmp\nlog 1/2 udp\ndeny tcp dst port 80",
    "deny flags syn,!ack dst port 80\nallow tcp\ndefault deny",
    "allow state established\nallow flags syn,!ack\ndefault deny",
    "allow what",
];

fn load(text: &str) -> Result<Loaded, String> {
    let rules = RuleSet::parse(text).map_err(|e| e.to_string())?;
    let track = rules.reads().state.then(ConntrackConfig::default);
    Ok(Loaded { firewall: Firewall::new(rules, Method::Fast), track })
}

fn stage(text: &'static str, cache: usize) -> (FirewallStage, Text) {
    let Loaded { firewall, track } = load(text).unwrap();
    let mut stage = FirewallStage::new(firewall, cache, true, 7);
    if let Some(config) = track {
        stage.track(&config);
    }
    let file: Text = Arc::new(Mutex::new(text));
    let from = file.clone();
    (stage.with_files(Files::new(move || load(*from.lock().unwrap()))), file)
}

/// Has the rules read anew, and waits for it; returns reloads and errors.
fn reload(stage: &mut dyn Stage) -> (u64, u64) {
    assert_eq!(stage.reloads(), Some("its rules"));
    stage.reload(Nanos(5));
    let (mut pool, mut counted) = (Pool::new(), [0; 2]);
    while stage.next_deadline() < Nanos::MAX {
        let mut cx =
            Context { now: stage.next_deadline(), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        stage.on_deadline(&mut cx, &mut Collect::default());
        std::thread::yield_now();
    }
    stage.counters(&mut |name, n| match name {
        "rule_reloads" => counted[0] = n,
        "rule_reload_errors" => counted[1] = n,
        _ => {}
    });
    (counted[0], counted[1])
}

fn packets() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let one = (0u8..6, 0u8..4, 0usize..700).prop_map(|(kind, flow, size)| {
        let (port, data) = (4000 + u16::from(flow), vec![flow; size]);
        let of = |protocol, payload: &[u8]| ipv4(protocol, 0x0a00_0001, 0x0a00_0002, payload);
        match kind {
            0 => of(17, &udp(port, 53, &data)),
            1 => of(17, &udp(port, 5353, &data)),
            2 => of(6, &tcp(port, 80, 2, &data)),
            3 => of(6, &tcp(port, 80, 16, &data)),
            4 => of(1, &echo(8, u16::from(flow), &data)),
            // A fragment that its datagram may lack.
            _ => ipv4_fragment(17, 0x0a00_0001, 0x0a00_0002, 0x2000, &[], &[flow; 64]),
        }
    });
    prop::collection::vec(one, 1..60)
}

/// Allowed by port 0, or denied by port 1, of each packet in turn.
fn fates(stage: &mut dyn Stage, packets: &[Vec<u8>], sizes: &[usize]) -> Vec<(u8, Vec<u8>)> {
    run(stage, packets, sizes).0.into_iter().map(|(port, packet, _)| (port, packet)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// After a reload packets fare as with a firewall that began with the new rules; of rules that track
    /// connections it only those that don't have them.
    #[test]
    fn other_rules_decide_as_if_they_had_been_there(
        (from, to) in (0usize..5, 0usize..5),
        (before, after) in (packets(), packets()),
        sizes in prop::collection::vec(1..256_usize, 1..6),
        cache in prop::sample::select(vec![0usize, 16]),
    ) {
        let (made, file) = stage(SETS[from], cache);
        let mut old = PerTrain::new(made);
        fates(&mut old, &before, &sizes);
        *file.lock().unwrap() = SETS[to];
        prop_assert_eq!(reload(&mut old), (1, 0));
        let mut new = PerPacket::new(stage(SETS[to], 0).0);
        // Fragments wait at one that has read whole datagrams before, and leave in another order.
        let got = fates(&mut old, &after, &sizes);
        let want = fates(&mut new, &after, &[1]);
        let sorted = |mut all: Vec<(u8, Vec<u8>)>| {
            all.sort();
            all
        };
        let fragment = |packet: &[u8]| packet[6] & 0x20 != 0;
        let whole = |all: Vec<(u8, Vec<u8>)>| all.into_iter().filter(|(_, p)| !fragment(p)).collect::<Vec<_>>();
        prop_assert_eq!(sorted(whole(got)), sorted(whole(want)));
    }

    /// Flow contexts keep decisions of the rules in force: rules that change again and again, back to earlier
    /// ones too, decide and count as without contexts.
    #[test]
    fn contexts_forget_rules_that_are_gone(
        phases in prop::collection::vec((0usize..6, packets()), 1..6),
        sizes in prop::collection::vec(1..256_usize, 1..6),
        flows in prop::sample::select(vec![1u32, 3, 64]),
    ) {
        let first = SETS[phases[0].0];
        let (with, file) = stage(first, 0);
        let (without, other_file) = stage(first, 0);
        let mut layout = Layout::default();
        let place = layout.place(3);
        let mut contexts = Some(Box::new(FlowContexts::new(&layout, flows, 7)));
        contexts.as_mut().unwrap().turn_to(place);
        let (mut with, mut without) = (PerTrain::new(with), PerTrain::new(without));
        for (set, packets) in &phases {
            *file.lock().unwrap() = SETS[*set];
            *other_file.lock().unwrap() = SETS[*set];
            prop_assert_eq!(reload(&mut with), reload(&mut without));
            let got = run_with(&mut with, packets, &sizes, &mut contexts);
            prop_assert_eq!(got, run(&mut without, packets, &sizes));
        }
        prop_assert_eq!(with.report(), without.report());
    }

    /// Wrong rules change nothing, and say what is wrong with them.
    #[test]
    fn wrong_rules_are_refused(from in 0usize..4, packets in packets(), cache in prop::sample::select(vec![0usize, 16])) {
        let (made, file) = stage(SETS[from], cache);
        let mut old = PerTrain::new(made);
        *file.lock().unwrap() = SETS[6];
        prop_assert_eq!(reload(&mut old), (0, 1));
        let said = old.report().unwrap()["rules_error"].as_str().unwrap().to_owned();
        prop_assert!(said.contains("line 1"), "{}", said);
        let mut twin = PerTrain::new(stage(SETS[from], cache).0);
        prop_assert_eq!(fates(&mut old, &packets, &[64]), fates(&mut twin, &packets, &[64]));
        // The same rules again are read without an error.
        *file.lock().unwrap() = SETS[from];
        prop_assert_eq!(reload(&mut old), (1, 1));
        prop_assert!(old.report().unwrap().get("rules_error").is_none());
    }
}

/// The context of a flow keeps which rule matched, and that none did: then that of the default, behind all.
#[test]
fn contexts_keep_that_no_rule_matches() {
    let packets = [ipv4(17, 0x0a00_0001, 0x0a00_0002, &udp(4000, 5353, &[1]))];
    for (rules, place) in [
        ("deny tcp\nallow udp", Some(1)),
        ("deny udp dst port 53\ndefault allow", Some(1)),
        ("allow udp dst port 53\nallow tcp\ndefault deny", Some(2)),
        ("count udp\ndefault deny", None),
        ("reset udp\ndefault allow", None),
    ] {
        let (mut layout, mut stage) = (Layout::default(), PerTrain::new(stage(rules, 0).0));
        let words = layout.place(3);
        let mut contexts = Some(Box::new(FlowContexts::new(&layout, 4, 7)));
        contexts.as_mut().unwrap().turn_to(words);
        run_with(&mut stage, &packets, &[1], &mut contexts);
        let contexts = contexts.as_mut().unwrap();
        contexts.meet(0);
        let [generation, _, kept] = contexts.read().unwrap();
        assert_eq!((generation == 1).then_some(kept), place, "{rules}");
    }
}

/// Who asks again and again gets other rules in between, and the last ones in the end.
#[test]
fn asking_again_does_not_keep_rules_from_coming() {
    let (made, file) = stage("deny udp", 0);
    let mut stage = PerTrain::new(made);
    let (mut pool, mut reloads, mut last) = (Pool::new(), 0, "deny udp");
    for n in 0.. {
        // A file may have been read when its turn comes or not yet: both are right.
        if n % 2 == 0 && reloads < 3 {
            last = SETS[n % 4];
            *file.lock().unwrap() = last;
            stage.reload(Nanos(n as u64));
        }
        match (stage.next_deadline() == Nanos::MAX, reloads < 3) {
            (true, true) => continue,
            (true, false) => break,
            (false, _) => {}
        }
        let mut cx =
            Context { now: stage.next_deadline(), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        stage.on_deadline(&mut cx, &mut Collect::default());
        stage.counters(&mut |name, n| reloads = if name == "rule_reloads" { n } else { reloads });
    }
    assert!(reloads >= 3, "{reloads}");
    let rules = stage.report().unwrap()["rules"].as_u64().unwrap();
    assert_eq!(rules, load(last).unwrap().firewall.rules().rules().len() as u64);
}

/// Connections outlive a reload, and rules that don't ask for states; who begins to track doesn't know what
/// came before.
#[test]
fn connections_stay() {
    let segment = |flags: u8| ipv4(6, 0x0a00_0001, 0x0a00_0002, &tcp(4000, 80, flags, b""));
    let back = |flags: u8| ipv4(6, 0x0a00_0002, 0x0a00_0001, &tcp(80, 4000, flags, b""));
    let ports = |stage: &mut dyn Stage, packets: &[Vec<u8>]| -> Vec<u8> {
        fates(stage, packets, &[1]).into_iter().map(|(port, _)| port).collect()
    };
    let (made, file) = stage(SETS[5], 0);
    let mut stage = PerTrain::new(made);
    assert_eq!(ports(&mut stage, &[segment(2), back(18), segment(16)]), [0, 0, 0]);
    // No new connections any more.
    *file.lock().unwrap() = "allow state established\ndefault deny";
    assert_eq!(reload(&mut stage), (1, 0));
    assert_eq!(ports(&mut stage, &[segment(24), back(16)]), [0, 0]);
    *file.lock().unwrap() = "allow udp\ndefault deny";
    assert_eq!(reload(&mut stage), (2, 0));
    assert_eq!(ports(&mut stage, &[segment(24)]), [1]);
    *file.lock().unwrap() = SETS[5];
    assert_eq!(reload(&mut stage), (3, 0));
    assert_eq!(ports(&mut stage, &[segment(24), back(16)]), [0, 0]);
}

/// Rules that a reload of the configuration brings decide about whole datagrams, where those before read
/// nothing that a fragment hasn't: what they deny comes through in no pieces.
#[test]
fn rules_of_a_new_configuration_see_whole_datagrams() {
    use super::stage::{Checksums, FirewallUpdate};
    use crate::RateLimiter;

    let datagram = udp(4000, 53, &[7; 40]);
    let part = |at: usize, end: usize, more: u16| {
        let word = more | (at / 8) as u16;
        ipv4_fragment(17, 0x0a00_0001, 0x0a00_0002, word, &[], &datagram[at..end])
    };
    let fragments = [part(0, 24, 0x2000), part(24, datagram.len(), 0)];
    for per_train in [true, false] {
        let firewall = stage("deny src net 10.9.0.0/16\ndefault allow", 0).0;
        let mut stage: Box<dyn Stage> =
            if per_train { Box::new(PerTrain::new(firewall)) } else { Box::new(PerPacket::new(firewall)) };
        assert!(fates(&mut *stage, &fragments, &[1]).iter().all(|(port, _)| *port == 0));
        let update = FirewallUpdate {
            loaded: Some(load("deny udp dst port 53\ndefault allow").unwrap()),
            files: None,
            iptables: false,
            allow_other: true,
            checksums: Checksums::Off,
            limiter: RateLimiter::new(1000, 1000),
        };
        drop(stage.operate().unwrap().update(Box::new(update), Nanos(5)));
        let seen = fates(&mut *stage, &fragments, &[1]);
        assert_eq!(seen.iter().map(|(port, _)| *port).collect::<Vec<_>>(), [1, 1]);
    }
}

/// Denials that are told of, and the packets that the next one will count, add up to all that were denied.
#[test]
fn denials_add_up() {
    let (mut firewall, _) = stage("deny udp", 0);
    let room = || Events { denials: Vec::with_capacity(2), ..Events::default() };
    firewall.events(&mut room());
    let mut stage = PerPacket::new(firewall);
    let packet = ipv4(17, 0x0a00_0001, 0x0a00_0002, &udp(4000, 53, b""));
    // They come 1 µs apart, and are told of every 10 ms at most.
    let mut seen = Vec::new();
    for packets in [15_000, 45_000, 5_000] {
        run(&mut stage, &vec![packet.clone(); packets], &[50]);
        let mut events = room();
        stage.operate().unwrap().events(&mut events);
        let told: u64 = events.denials.iter().map(|denial| denial.packets).sum();
        seen.push((events.denials.len(), told, events.untold, events.missed));
    }
    assert!(seen.iter().all(|(count, .., missed)| *count <= 2 && *missed == 0), "{seen:?}");
    let told: u64 = seen.iter().map(|(_, told, ..)| told).sum();
    assert_eq!(told + seen.last().map_or(0, |(.., untold, _)| *untold), 65_000, "{seen:?}");
    assert!(seen.iter().any(|(count, ..)| *count == 2), "{seen:?}");
}

/// Fields that packets of a flow don't share can't be remembered of it, and nobody would look for that.
#[test]
fn a_cache_that_remembers_nothing_is_noted() {
    let notes = |rules: &str, cache| {
        let firewall = Firewall::new(RuleSet::parse(rules).unwrap(), Method::Fast);
        FirewallStage::new(firewall, cache, true, 7).notes()
    };
    for (rules, what) in [("deny length 500-\ndefault allow", "lengths"), ("allow state new", "states")] {
        let told = notes(rules, 64);
        assert!(told.len() == 1 && told[0].contains("`cache`") && told[0].contains(what), "{told:?}");
        assert_eq!(notes(rules, 0), Vec::<String>::new());
    }
    assert_eq!(notes("deny udp dst port 53\nallow dscp 10", 64), Vec::<String>::new());
}
