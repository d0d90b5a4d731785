//! Pipelines end to end: functions decide the same per train and per packet, nothing is lost, nothing
//! overtakes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, Interface, WriterOptions};
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, RunReport};
use slipstream::time::Nanos;
use slipstream_wire::checksum::{Verdict, verify_ip, verify_transport};
use slipstream_wire::{FlowKey, LinkType, classify};

/// Runs a graph whose ports write into `directory`.
fn run(graph: &str, directory: &Path) -> RunReport {
    let plan = Plan::from_graph(graph, None, None, directory).unwrap_or_else(|e| panic!("{e}"));
    let pipeline = plan.build(7).unwrap_or_else(|e| panic!("{e}"));
    Driver::new(pipeline).run(&mut |_| ControlFlow::Continue(())).unwrap()
}

/// The packets of a capture: time and bytes.
fn packets(path: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        all.push((record.time.0, record.data.to_vec()));
    }
    all
}

/// In = out + dropped + held, packet for packet; nothing is left inside.
fn check_conservation(report: &RunReport, made: u64) {
    let came: u64 = report.sources.iter().map(|s| s.packets).sum();
    let out: u64 =
        report.stages.iter().filter(|s| s.kind == "pcap" || s.kind == "null").map(|s| s.tally.packets).sum();
    let dropped: u64 = report.stages.iter().map(|s| s.drops.total()).sum();
    let held: u64 = report.stages.iter().map(|s| s.held).sum();
    assert_eq!(came + made, out + dropped + held, "{report:#?}");
    assert_eq!((report.live, held), (0, 0), "packets are left inside");
}

const TRAFFIC: &str = "flows=200,packets=6000,slf=2,protocol=0.6,ipv6=0.2,vlan=0.2,size=100..1400,seed=";

/// Functions with settings that make them do something to this traffic; what leaves by port 1 is kept, too.
fn functions(directory: &Path) -> Vec<(&'static str, String, bool)> {
    let rules = directory.join("rules.txt");
    let text = "deny tcp dst port 1-20000\ncount udp\nlog 1/10 udp\nreset tcp src port 1024-9000\n\
                deny dscp 10\nallow length 60-700\ndeny udp dst port 30000-65535\ndefault allow\n";
    std::fs::write(&rules, text).unwrap();
    // Lengths differ within a flow, and decisions by them can't be cached.
    let cacheable = directory.join("cacheable.txt");
    std::fs::write(&cacheable, text.replace("allow length 60-700\n", "")).unwrap();
    let stateful = directory.join("stateful.txt");
    std::fs::write(&stateful, "deny state invalid\nallow state established,related\nallow state new src port 1-40000\ndefault deny\n")
        .unwrap();
    let firewall = |file: &Path, more: &str| format!("firewall(rules=\"{}\"{more}", file.display());
    vec![
        ("switch", "switch(ports=[\"dns: udp dst port 1-20000\"]".into(), true),
        ("firewall", firewall(&rules, ""), true),
        ("firewall linear", firewall(&rules, ", classifier=linear"), true),
        ("firewall cached", firewall(&cacheable, ", cache=64"), true),
        ("firewall stateful", firewall(&stateful, ""), true),
        ("nat", "nat(pool=[192.0.2.0/30], pooling=arbitrary".into(), false),
        ("meter", "meter(cir=2gbps, cbs=30000, ebs=30000, mark=af2, red=port".into(), true),
        (
            "meter by flow",
            "meter(cir=10mbps, cbs=3000, pir=20mbps, pbs=6000, per=flow, mark=af1, red=port".into(),
            true,
        ),
        ("flow_stats", "flow_stats(flows=64".into(), false),
    ]
}

/// The graph of one function between reframe and files.
fn graph(seed: u64, hold: &str, function: &str, decide: &str, second: bool, tag: &str) -> String {
    let second = if second { format!("f[1] -> second :: pcap(path={tag}-1.pcap)") } else { String::new() };
    format!(
        "in :: synth(traffic=\"{TRAFFIC}{seed}\") -> reframe(hold={hold}, bypass=none) -> f :: {function}, decide={decide})\n\
         f -> out :: pcap(path={tag}-0.pcap)\n{second}"
    )
}

#[test]
fn deciding_once_per_train_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (name, function, second) in functions(directory.path()) {
        for (seed, hold) in [(1, "0"), (2, "100us"), (3, "2ms")] {
            let mut all = Vec::new();
            for decide in ["train", "packet"] {
                let report = run(&graph(seed, hold, &function, decide, second, decide), directory.path());
                let made = report.stages.iter().find_map(|s| s.counter("replies")).unwrap_or(0);
                check_conservation(&report, made);
                let decisions = |s: &slipstream::runtime::StageReport| s.counter("decisions").unwrap_or(0);
                let decided = report.stages.iter().map(decisions).sum::<u64>();
                let files = if second { 2 } else { 1 };
                let out: Vec<_> = (0..files)
                    .map(|n| packets(&directory.path().join(format!("{decide}-{n}.pcap"))))
                    .collect();
                all.push((decided, out));
            }
            let (trains, packets) = (&all[0], &all[1]);
            // Not printed: it would be megabytes.
            let same = |(a, b): (&Vec<_>, &Vec<_>)| a.iter().zip(b).take_while(|(a, b)| a == b).count();
            let agree: Vec<usize> = trains.1.iter().zip(&packets.1).map(same).collect();
            assert!(trains.1 == packets.1, "{name}, hold {hold}: only {agree:?} packets agree");
            assert_eq!(packets.0, 6000, "{name}");
            // Rules that ask for the length of packets leave little to share.
            let shared = !function.contains("rules.txt") && hold != "0";
            assert!(!shared || trains.0 < 5000, "{name}: {} decisions", trains.0);
        }
    }
}

#[test]
fn checksums_stay_right_and_flows_in_order() {
    let directory = tempfile::tempdir().unwrap();
    for (name, function, second) in functions(directory.path()) {
        run(&graph(5, "500us", &function, "train", second, "x"), directory.path());
        let mut last: HashMap<FlowKey, u64> = HashMap::new();
        let mut checked = 0;
        for (time, data) in packets(&directory.path().join("x-0.pcap")) {
            let Ok(headers) = classify(LinkType::Ethernet, &data) else { continue };
            assert_ne!(verify_ip(&data, &headers), Verdict::Wrong, "{name}");
            assert_ne!(verify_transport(&data, &headers), Verdict::Wrong, "{name}");
            checked += 1;
            let before = last.insert(headers.key, time).unwrap_or(0);
            assert!(before <= time, "{name}: {} overtook", headers.key);
        }
        assert!(checked > 500, "{name}: only {checked} packets");
    }
}

#[test]
fn ways_that_part_and_meet_keep_the_order_of_flows() {
    let directory = tempfile::tempdir().unwrap();
    // TCP flags send packets of one flow different ways, which meet again behind a second reframe stage on
    // one of them.
    let graph = "in :: synth(traffic=\"flows=40,packets=5000,protocol=tcp,slf=3,seed=9\")\n\
                 in -> counter -> sw :: switch(ports=[\"a: length 0-600\", \"b: tcp psh\"])\n\
                 sw[a] -> c1 :: counter -> out :: pcap(path=out.pcap)\n\
                 sw[b] -> c2 :: counter -> out\n sw[other] -> out";
    let report = run(graph, directory.path());
    check_conservation(&report, 0);
    let input = "in :: synth(traffic=\"flows=40,packets=5000,protocol=tcp,slf=3,seed=9\") -> out :: pcap(path=in.pcap)";
    run(input, directory.path());
    assert_eq!(packets(&directory.path().join("out.pcap")), packets(&directory.path().join("in.pcap")));
}

#[test]
fn tee_tap_and_tags() {
    let directory = tempfile::tempdir().unwrap();
    let graph = "in :: synth(traffic=\"flows=10,packets=1000,vlan=0.5\") -> t :: tee(ports=2)\n\
                 t[0] -> tap(path=tap.pcap, rules=\"udp\") -> vlan_push(id=7, priority=3) -> vlan_pop -> a :: pcap(path=a.pcap)\n\
                 t[1] -> vlan_push(id=9) -> b :: pcap(path=b.pcap)";
    let report = run(graph, directory.path());
    check_conservation(&report, 1000);
    let (a, b, tap) = (
        packets(&directory.path().join("a.pcap")),
        packets(&directory.path().join("b.pcap")),
        packets(&directory.path().join("tap.pcap")),
    );
    assert_eq!((a.len(), b.len(), tap), (1000, 1000, a.clone()));
    for ((_, a), (_, b)) in a.iter().zip(&b) {
        assert_eq!(a[..12], b[..12]);
        assert_eq!(b[12..16], [0x81, 0, 0, 9]);
        assert_eq!(a[12..], b[16..]);
        let tags = |data: &[u8]| classify(LinkType::Ethernet, data).unwrap().key.vlans().collect::<Vec<_>>();
        let mut expected = vec![9];
        expected.extend(tags(a));
        assert_eq!(tags(b), expected);
    }
}

/// `any` is every packet, whether it is IP or not; other rules see only what is.
#[test]
fn any_sees_what_is_not_ip() {
    let directory = tempfile::tempdir().unwrap();
    let header: [u32; 6] = [0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65_535, 1];
    let mut arp = [0u8; 60];
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let words = header.into_iter().chain([1, 0, 60, 60]).flat_map(u32::to_le_bytes);
    std::fs::write(directory.path().join("in.pcap"), words.chain(arp).collect::<Vec<_>>()).unwrap();
    for (rule, by_it) in [("any", 1), ("ip", 0), ("not tcp", 0), ("none", 0)] {
        let graph = format!(
            "in :: pcap(path=in.pcap) -> sw :: switch(ports=[\"a: {rule}\"])\n\
             sw[a] -> a :: pcap(path=a.pcap)\n sw[other] -> other :: pcap(path=other.pcap)"
        );
        run(&graph, directory.path());
        let [a, other] = ["a.pcap", "other.pcap"].map(|file| packets(&directory.path().join(file)).len());
        assert_eq!((a, other), (by_it, 1 - by_it), "{rule}");
    }
}

#[test]
fn a_pipe_is_opened_once() {
    let directory = tempfile::tempdir().unwrap();
    run("in :: synth(traffic=\"packets=100\") -> out :: pcap(path=in.pcap)", directory.path());
    let (file, pipe) = (directory.path().join("in.pcap"), directory.path().join("pipe"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    // A check doesn't open it at all: with nobody at the other end it would wait for ever.
    Plan::from_graph("in :: pcap(path=pipe) -> out :: null", None, None, directory.path())
        .unwrap()
        .check()
        .unwrap();
    let writer = std::thread::spawn(move || std::fs::write(pipe, std::fs::read(file).unwrap()));
    let report = run("in :: pcap(path=pipe) -> out :: null", directory.path());
    writer.join().unwrap().unwrap();
    assert_eq!(report.sources[0].packets, 100);
}

#[test]
fn a_pipeline_that_cannot_be_built_leaves_no_file() {
    let directory = tempfile::tempdir().unwrap();
    let graph = "in :: synth(traffic=\"packets=9\") -> firewall(rules=nowhere.txt) -> tap(path=tap.pcap) -> out :: pcap(path=out.pcap)";
    let plan = Plan::from_graph(graph, None, None, directory.path()).unwrap();
    assert!(plan.build(1).is_err());
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn years_of_silence_cost_nothing() {
    let directory = tempfile::tempdir().unwrap();
    // A packet a day, for 27 years; every flow ends by itself long before the next.
    run(
        "in :: synth(traffic=\"flows=50,packets=10000,size=100,rate=1pps\") -> out :: pcap(path=in.pcap)",
        directory.path(),
    );
    let sparse = directory.path().join("sparse.pcap");
    let mut bytes = std::fs::read(directory.path().join("in.pcap")).unwrap();
    let (mut at, mut day) = (24, 0u32);
    while at + 16 <= bytes.len() {
        bytes[at..at + 4].copy_from_slice(&(day * 86_400).to_le_bytes());
        let len = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap());
        at += 16 + len as usize;
        day += 1;
    }
    assert_eq!(day, 10_000);
    std::fs::write(&sparse, bytes).unwrap();
    let report = run("in :: pcap(path=sparse.pcap) -> flow_stats(idle=1s) -> out :: null", directory.path());
    let flows = report.stages.iter().find(|s| s.name == "flow_stats").unwrap();
    assert!(flows.counters.contains(&("records", 10_000)), "{:?}", flows.counters);
    let turns = flows.counter("expiry_turns").unwrap();
    assert!(turns <= 20_001, "{turns} turns, not one or two a flow");
}

#[test]
fn sources_are_merged_by_time() {
    let directory = tempfile::tempdir().unwrap();
    let graph = "a :: synth(traffic=\"packets=500,rate=1mpps,seed=1\") -> c :: counter -> out :: pcap(path=out.pcap)\n\
                 b :: synth(traffic=\"packets=700,rate=300kpps,seed=2\") -> c";
    let report = run(graph, directory.path());
    check_conservation(&report, 0);
    let out = packets(&directory.path().join("out.pcap"));
    assert_eq!(out.len(), 1200);
    assert!(out.is_sorted_by_key(|p| p.0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Any chain of stages gives back every packet, in the order of its flow, no later than all holds
    /// together.
    #[test]
    fn chains_lose_nothing(
        stages in proptest::collection::vec(0usize..6, 0..5),
        hold in 0u64..300_000,
        seed in 0u64..1000,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let names = ["counter()".to_owned(), format!("reframe(hold={hold}ns, bypass=none)"), "switch(ports=[\"x: none\"])[other]".into(),
            "flow_stats()".into(), "meter(cir=1gbps)".into(), "vlan_push(id=1) -> vlan_pop()".into()];
        let holds = stages.iter().filter(|s| **s == 1).count() as u64;
        let middle: String = stages.iter().map(|s| format!("{} -> ", names[*s])).collect();
        let source = format!("in :: synth(traffic=\"flows=20,packets=800,size=80..200,ipv6=0.3,seed={seed}\")");
        let report = run(&format!("{source} -> {middle} out :: pcap(path=out.pcap)"), directory.path());
        check_conservation(&report, 0);
        run(&format!("{source} -> out :: pcap(path=in.pcap)"), directory.path());
        let (input, output) = (packets(&directory.path().join("in.pcap")), packets(&directory.path().join("out.pcap")));
        prop_assert!(output.is_sorted_by_key(|p| p.0));
        let by_flow = |all: &[(u64, Vec<u8>)]| {
            let mut flows: HashMap<FlowKey, Vec<(u64, Vec<u8>)>> = HashMap::new();
            for (time, data) in all {
                let key = classify(LinkType::Ethernet, data).unwrap().key;
                flows.entry(key).or_default().push((*time, data.clone()));
            }
            flows
        };
        let (input, output) = (by_flow(&input), by_flow(&output));
        prop_assert_eq!(input.len(), output.len());
        for (key, sent) in &input {
            let got = &output[key];
            prop_assert_eq!(sent.len(), got.len());
            for ((came, a), (left, b)) in sent.iter().zip(got) {
                prop_assert_eq!(a, b, "{} is out of order", key);
                prop_assert!(came <= left && *left <= came + holds * hold);
            }
        }
    }
}

/// Two tunnels carry packets of one flow in turn: by the inner headers they are one train, but what is behind
/// decides by the outermost ones, and once for each tunnel.
#[test]
fn behind_trains_by_inner_headers_the_outermost_ones_count() {
    let directory = tempfile::tempdir().unwrap();
    let inner = |n: u8, six: bool| {
        let udp = [0x10, 0, 0x20, 0, 0, 12, 0, 0, n, 0, 0, 0];
        let ends = [10, 0, 0, 1, 10, 0, 0, 2];
        let ip = [&[0x45, 0, 0, 32, 0, 0, 0, 0, 9, 17, 0, 0][..], &ends, &udp].concat();
        let header = [&[0x60, 0, 0, 0, 0, 12, 17, 9][..], &[7; 16], &[8; 16], &udp].concat();
        if six { header } else { ip }
    };
    let outer = |n: u8| {
        // Two thirds in two tunnels; the rest as it is.
        let six = n.is_multiple_of(2);
        let inner = inner(n, six);
        if n % 3 == 2 {
            return [
                &[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1][..],
                if six { &[0x86, 0xdd] } else { &[8, 0] },
                &inner,
            ]
            .concat();
        }
        let (len, protocol) = (20 + inner.len() as u8, if six { 41 } else { 4 });
        let header = [0x45, 0, 0, len, 0, 0, 0, 0, 9, protocol, 0, 0, 192, 0, 2, n % 3 + 1, 192, 0, 2, 9];
        [&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0][..], &header, &inner].concat()
    };
    let path = directory.path().join("in.pcap");
    let mut writer = CaptureWriter::create(&path, WriterOptions::for_path(&path, Format::Pcap)).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    for n in 0..60 {
        let frame = outer(n);
        writer.write(0, Nanos(1_000_000_000 + 1000 * u64::from(n)), frame.len() as u32, &frame).unwrap();
    }
    writer.finish().unwrap();
    std::fs::write(directory.path().join("rules.txt"), "deny src 192.0.2.1\ndefault allow\n").unwrap();
    let mut all = Vec::new();
    for (reframe, decide) in [
        ("tunnel=inner, hold=1ms", "train"),
        ("tunnel=inner, hold=1ms", "packet"),
        ("tunnel=outer, hold=0", "packet"),
    ] {
        let graph = format!(
            "in :: pcap(path=in.pcap) -> r :: reframe({reframe}, burst=256, bypass=none) -> count :: counter
             count -> f :: firewall(rules=rules.txt, decide={decide}) -> out :: pcap(path=out.pcap)"
        );
        let report = run(&graph, directory.path());
        check_conservation(&report, 0);
        let mut out: Vec<_> = packets(&directory.path().join("out.pcap")).into_iter().map(|p| p.1).collect();
        let of = |family: &[u8]| out.iter().filter(|p| p.ends_with(family)).count();
        assert_eq!((out.len(), of(&[0, 0, 0])), (40, 40));
        let trains = report
            .stages
            .iter()
            .find(|s| s.name == "r")
            .unwrap()
            .counters
            .iter()
            .find(|c| c.0 == "trains")
            .unwrap()
            .1;
        assert_eq!(
            trains,
            if decide == "train" || reframe.contains("inner") { 2 } else { 60 },
            "{report:#?}"
        );
        out.sort();
        all.push(out);
    }
    assert!(all[0] == all[2] && all[1] == all[2]);
    assert!(all[0].iter().all(|p| p.len() < 60 || p[29] != 1), "a packet of the tunnel that is denied");
}

/// A reframe stage that takes packets as they arrive says how many trains they were, as any other stage in
/// its place would.
#[test]
fn a_reframe_stage_counts_the_trains_that_come() {
    let dir = tempfile::tempdir().unwrap();
    let trains = |stage: &str| {
        let graph = format!("in :: synth(traffic=\"{TRAFFIC}5\") -> s :: {stage} -> out :: null");
        run(&graph, dir.path()).stages.iter().find(|s| s.name == "s").unwrap().tally.trains
    };
    let counted = trains("counter");
    assert!(counted > 2000, "{counted} trains of 6000 packets");
    // A run that goes on behind a poll of 256 packets is two trains where packets come in batches.
    let reframed = trains("reframe(hold=64us)");
    assert!((counted - 6000 / 256 - 1..=counted).contains(&reframed), "{reframed} beside {counted}");
}

/// A damaged stamp may say the last time that there is.
#[test]
fn packets_at_the_end_of_time_come() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.pcapng");
    let interface = Interface { link_number: 1, snap_len: 0, name: None };
    let options = WriterOptions::for_path(&path, Format::PcapNg);
    let mut writer = CaptureWriter::create(&path, options).unwrap();
    let id = writer.add_interface(&interface);
    let packet = [2; 60];
    for time in [7, u64::MAX - 1, u64::MAX, u64::MAX] {
        writer.write(id, Nanos(time), 60, &packet).unwrap();
    }
    writer.finish().unwrap();
    for stages in ["counter", "reframe(hold=0ns)", "reframe", "reframe(admit=adaptive)"] {
        let report = run(&format!("in :: pcap(path=in.pcapng) -> {stages} -> out :: null"), directory.path());
        check_conservation(&report, 0);
        assert_eq!(report.sources[0].packets, 4, "{stages}");
    }
}

/// More VLAN tags than are read, which something behind the firewall takes off, carry nothing past it; ARP
/// and others that are not IP pass, in the same trains or not.
#[test]
fn tags_carry_nothing_past_a_firewall() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("rules.txt"), "default deny\n").unwrap();
    let path = directory.path().join("in.pcap");
    let mut writer = CaptureWriter::create(&path, WriterOptions::for_path(&path, Format::Pcap)).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    let tagged = |tags: usize, kind: [u8; 2]| {
        let mut frame = vec![2; 12];
        (0..tags).for_each(|tag| {
            frame.extend([if tag % 2 == 0 { 0x81 } else { 0x88 }, if tag % 2 == 0 { 0 } else { 0xa8 }, 0, 5])
        });
        frame.extend(kind);
        frame.extend([0x45, 0, 0, 40, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        frame.resize(frame.len() + 20, 7);
        frame
    };
    let arp = |tags| tagged(tags, [8, 6]);
    let mut n = 0;
    for tags in 0..20 {
        for frame in [arp(tags.min(10)), tagged(tags, [8, 0]), arp(0), tagged(tags, [0x86, 0xdd])] {
            writer.write(0, Nanos(1_000_000_000 + n), frame.len() as u32, &frame).unwrap();
            n += 1;
        }
    }
    writer.finish().unwrap();
    for before in ["counter", "reframe(hold=1ms)"] {
        for decide in ["train", "packet"] {
            let graph = format!(
                "in :: pcap(path=in.pcap) -> {before} -> firewall(rules=rules.txt, decide={decide}) -> out :: pcap(path=out.pcap)"
            );
            let report = run(&graph, directory.path());
            let left = packets(&directory.path().join("out.pcap"));
            // Frames that say IPv6 and aren't are no IP; behind many tags nobody looks.
            let others = left
                .iter()
                .filter(|(_, frame)| frame.chunks(4).skip(3).any(|part| part[..2] == [0x86, 0xdd]));
            assert_eq!((left.len(), others.count()), (40 + 11, 11), "{graph}");
            let firewall = report.stages.iter().find(|stage| stage.kind == "firewall").unwrap();
            let count = |name| firewall.counter(name).unwrap();
            assert_eq!((count("not_ip"), count("hidden_protocol")), (51, 18), "{graph}");
        }
    }
}

/// A capture says that its frames end with a check sequence. What leaves says so too where they stay as they
/// are, and doesn't where a stage changes frames, whose sequence is wrong then, or makes some, which have
/// none.
#[test]
fn frames_that_were_changed_are_not_said_to_end_with_a_check_sequence() {
    const FCS: u32 = 2 << 28 | 1 << 26;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.pcap");
    let mut writer = CaptureWriter::create(&path, WriterOptions::for_path(&path, Format::Pcap)).unwrap();
    writer.add_interface(&Interface { link_number: 1 | FCS, snap_len: 0, name: None });
    let mut frame = vec![2; 12];
    frame.extend([8, 0, 0x45, 0, 0, 32, 0, 1, 0x40, 0, 64, 17, 0x26, 0xb7, 10, 0, 0, 2, 10, 0, 1, 2]);
    frame.extend([0, 7, 0, 9, 0, 12, 0, 0, 1, 2, 3, 4]);
    frame.resize(64, 0);
    writer.write(0, Nanos(1_000_000_000), 64, &frame).unwrap();
    writer.finish().unwrap();
    std::fs::write(directory.path().join("rules.txt"), "allow any\n").unwrap();
    for (stages, same) in [
        ("counter -> reframe(compress=gro) -> flow_stats -> limit(rate=1mpps)", true),
        ("meter(cir=1mbps, cbs=9000, ebs=0)", true),
        ("meter(cir=1mbps, cbs=9000, ebs=0, mark=af1)", false),
        ("vlan_push(id=5)", false),
        ("vlan_pop", false),
        ("firewall(rules=rules.txt)", false),
        ("nat(pool=[192.0.2.1], routed=true)", false),
        ("nptv6(inside=fd00::/48, external=2001:db8::/48)", false),
        ("balancer(service=\"10.0.1.2:9\", protocol=udp, backends=[10.9.0.1], source=10.9.0.2)", false),
        ("slice(threshold=0) -> splice", true),
        ("slice(threshold=0, marked=remark) -> splice", false),
        ("counter -> router(interfaces=[\"a 10.0.1.1/24 02:02:02:02:02:02\"])", false),
    ] {
        for (workers, out) in [(1, "out.pcap"), (2, "out.pcapng")] {
            let graph = format!("in :: pcap(path=in.pcap) -> {stages} -> out :: pcap(path={out})");
            let plan = Plan::from_graph(&graph, None, None, directory.path()).unwrap();
            let mut driver = Driver::new(plan.build(7).unwrap()).workers(workers);
            driver.run(&mut |_| ControlFlow::Continue(())).unwrap();
            let mut reader = CaptureReader::open(&directory.path().join(out)).unwrap();
            // A router's question and error, which it sends first, are made by it.
            assert!(reader.next_record().unwrap().is_some(), "{stages}");
            let link = reader.interfaces()[0].link_number;
            assert_eq!(link, if same { 1 | FCS } else { 1 }, "{stages} {out}");
        }
    }
}
