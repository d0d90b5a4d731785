//! Pipelines: slice, functions, splice write the files that the functions alone write.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, Interface, WriterOptions};
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, RunReport};
use slipstream_wire::checksum::{Verdict, fill_ip, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify, ip_end};

pub(crate) fn run(graph: &str, directory: &Path) -> RunReport {
    let plan = Plan::from_graph(graph, None, None, directory).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    let pipeline = plan.build(7).unwrap_or_else(|e| panic!("{graph}\n{e}"));
    let report = Driver::new(pipeline).run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.live, 0, "packets or payloads are left inside");
    report
}

fn packets(path: &Path) -> Vec<(u64, u32, Vec<u8>)> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut all = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        all.push((record.time.0, record.original_len, record.data.to_vec()));
    }
    all
}

/// The counters of all stages of a type.
pub(crate) fn counters(report: &RunReport, kind: &str) -> BTreeMap<&'static str, u64> {
    let mut all = BTreeMap::new();
    for stage in report.stages.iter().filter(|s| s.kind == kind) {
        for (name, n) in &stage.counters {
            *all.entry(*name).or_default() += n;
        }
    }
    all
}

fn drops(report: &RunReport) -> BTreeMap<String, u64> {
    let mut all = BTreeMap::new();
    for (reason, n) in report.stages.iter().flat_map(|s| s.drops.iter().collect::<Vec<_>>()) {
        *all.entry(reason.to_string()).or_default() += n;
    }
    all
}

/// Functions between `{in}` and `{out}`, and further ports of theirs that packets leave by.
fn functions(directory: &Path) -> Vec<(&'static str, String)> {
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let acl = write(
        "acl.txt",
        "deny tcp dst port 1-9000\ncount udp\ndeny dscp 10\nallow length 60-900\ndeny udp dst port 40000-65535\ndefault allow\n",
    );
    let states = write(
        "states.txt",
        "allow state established,related\nallow state new src port 1-40000\ndefault deny\n",
    );
    let resets = write(
        "resets.txt",
        "reset tcp dst port 1-30000\nallow length 60-900\ndeny udp dst port 40000-65535\ndefault allow\n",
    );
    let routes = write("routes.txt", "default via 192.0.2.254\n::/0 via fd99::fe port b\n");
    let router = format!(
        "{{in}} -> f :: router(interfaces=[\"a 10.255.0.1/24 fd98::1/64 02:00:00:00:00:01 mtu 65000\", \"b 192.0.2.1/24 fd99::1/64 02:00:00:00:00:02 mtu 65000\"], routes=\"{routes}\", \
         icmp_rate=1000000, icmp_burst=100000, neighbours=[\"b 192.0.2.254 02:00:00:00:00:fe\", \"b fd99::fe 02:00:00:00:00:fe\"])\n\
         f[b] -> {{out}}"
    );
    vec![
        ("nothing", "{in} -> counter -> {out}".into()),
        ("l2fwd", "{in} -> f :: l2fwd(ports=[a, b], learn=false, unknown=drop, map=[\"a > b\"])\nf[b] -> {out}".into()),
        ("meter", "{in} -> meter(cir=2gbps, cbs=30000, ebs=30000, mark=af2) -> {out}".into()),
        ("meter by flow", "{in} -> meter(cir=10mbps, cbs=3000, pir=20mbps, pbs=6000, per=flow, mark=af1) -> {out}".into()),
        ("firewall", format!("{{in}} -> firewall(rules=\"{acl}\") -> {{out}}")),
        ("firewall with states", format!("{{in}} -> firewall(rules=\"{states}\") -> {{out}}")),
        ("firewall that resets", format!("{{in}} -> f :: firewall(rules=\"{resets}\", replies=1000000)\nf[out] -> {{out}}\nf[replies] -> {{out}}")),
        ("firewall that tracks", format!("{{in}} -> firewall(rules=\"{states}\", track=on) -> {{out}}")),
        ("delay", "{in} -> delay(time=300us, jitter=300us, per_flow=false) -> {out}".into()),
        ("delay of few", "{in} -> delay(time=300us, jitter=300us, capacity=20) -> {out}".into()),
        ("compressing reframe", "{in} -> reframe(hold=200us, bypass=none, compress=\"ack,gro\") -> {out}".into()),
        ("reframe of few", "{in} -> reframe(hold=2ms, bypass=none, capacity=16, capacity_bytes=20KB) -> {out}".into()),
        ("limit of bits", "{in} -> limit(rate=100mbps, burst=9000) -> {out}".into()),
        ("measure", "{in} -> measure(task=heavy-hitters, epoch=2000p) -> {out}".into()),
        ("nat", "{in} -> nat(pool=[192.0.2.0/30], pooling=arbitrary) -> {out}".into()),
        ("nptv6", "{in} -> nptv6(inside=2001:db8::/32, external=fd00:77::/48) -> {out}".into()),
        ("firewall and nat", format!("{{in}} -> firewall(rules=\"{acl}\") -> nat(pool=[192.0.2.0/30], pooling=arbitrary) -> {{out}}")),
        ("router", router),
        ("balancer", "{in} -> f :: balancer(service=\"10.0.0.1:80\", backends=[\"10.1.0.1\"], source=192.0.2.79)\nf[backends] -> {out}\nf[clients] -> {out}".into()),
        ("balancer of addresses", "{in} -> f :: balancer(mode=nat, service=\"10.0.0.1:80\", backends=[\"10.1.0.1\"])\nf[backends] -> {out}\nf[clients] -> {out}".into()),
        ("tags", "{in} -> vlan_push(id=7, priority=3) -> p :: vlan_pop -> q :: vlan_pop -> r :: vlan_push(id=9) -> {out}".into()),
        ("switch and limit", "{in} -> s :: switch(ports=[\"x: length 0-700\"])\ns[x] -> c :: counter -> {out}\ns[other] -> limit(rate=3gbps) -> c".into()),
        ("flow_stats", "{in} -> flow_stats(flows=64) -> {out}".into()),
        ("reframe", "{in} -> reframe(hold=200us, bypass=none) -> {out}".into()),
    ]
}

/// The graph of a function behind a source, alone or sliced.
fn graph(source: &str, function: &str, slice: Option<&str>, file: &str) -> String {
    let start = format!("{source} -> reframe(hold=100us, bypass=none)");
    let end = format!("out :: pcap(path={file})");
    match slice {
        None => function.replace("{in}", &start).replacen("{out}", &end, 1).replace("{out}", "out"),
        Some(settings) => function
            .replace("{in}", &format!("{start} -> sl :: slice({settings})"))
            .replacen("{out}", &format!("sp :: splice -> {end}"), 1)
            .replace("{out}", "sp"),
    }
}

/// Gives a packet that is wholly there DSCP 63, which marks sliced ones.
fn mark(frame: &mut [u8]) {
    let Ok(headers) = classify(LinkType::Ethernet, frame) else { return };
    if !(usize::from(headers.l4) + 1..=frame.len()).contains(&ip_end(frame, &headers)) {
        return;
    }
    match frame.get_mut(usize::from(headers.l3)..).and_then(<[u8]>::first_chunk_mut) {
        Some([version, tos]) if *version >> 4 == 6 => {
            *version |= 0x0f;
            *tos |= 0xc0;
        }
        Some([_, tos]) => {
            *tos |= 0xfc;
            fill_ip(frame, &headers);
        }
        None => {}
    }
}

/// A copy of up to `most` Ethernet frames of a capture, those to one station addressed to the router; one in
/// `marked` has DSCP 63.
fn addressed(from: &Path, to: &Path, most: usize, marked: usize) {
    let mut reader = CaptureReader::open(from).unwrap();
    let mut file = Vec::new();
    for word in [0xa1b2_3c4d_u32, 2 | 4 << 16, 0, 0, 262_144, 1] {
        file.extend(word.to_le_bytes());
    }
    let mut written = 0;
    while let Some(record) = reader.next_record().unwrap() {
        if record.link != LinkType::Ethernet || record.data.len() < 14 || written == most {
            continue;
        }
        let mut data = record.data.to_vec();
        if data[0] & 1 == 0 {
            data[..6].copy_from_slice(&[2, 0, 0, 0, 0, 1]);
        }
        if written % marked == marked - 1 {
            mark(&mut data);
        }
        let (seconds, ns) = (record.time.0 / 1_000_000_000, record.time.0 % 1_000_000_000);
        for word in [seconds as u32, ns as u32, data.len() as u32, record.original_len] {
            file.extend(word.to_le_bytes());
        }
        file.extend(data);
        written += 1;
    }
    std::fs::write(to, file).unwrap();
}

/// Made traffic, addressed to the router.
fn made(directory: &Path, traffic: &str, marked: usize) -> String {
    run(&format!("in :: synth(traffic=\"{traffic}\") -> out :: pcap(path=made.pcap)"), directory);
    addressed(&directory.join("made.pcap"), &directory.join("in.pcap"), usize::MAX, marked);
    format!("in :: pcap(path=\"{}\")", directory.join("in.pcap").display())
}

const TRAFFIC: &str = "flows=200,packets=3000,slf=2,protocol=0.6,ipv6=0.2,vlan=0.2,size=90..1500,seed=11";

/// Both ways of keeping payloads, both kinds of tokens, all and part of the payload.
const WAYS: [&str; 4] = [
    "threshold=100, entries=4096",
    "threshold=100, entries=4096, storage=copy, keep_bytes=12",
    "threshold=100, entries=4096, part=160",
    "entries=4096, fraction=0.5, storage=copy",
];

fn compare(source: &str, wants_sliced: u64) {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    for (name, function) in functions(at) {
        let alone = run(&graph(source, &function, None, "alone.pcap"), at);
        let expected = packets(&at.join("alone.pcap"));
        for way in WAYS {
            let report = run(&graph(source, &function, Some(way), "sliced.pcap"), at);
            let out = packets(&at.join("sliced.pcap"));
            let same = out.iter().zip(&expected).take_while(|(a, b)| a == b).count();
            assert!(
                out == expected,
                "{name}, {way}: {same} of {} and {} packets agree",
                out.len(),
                expected.len()
            );
            assert_eq!(drops(&alone), drops(&report), "{name}, {way}");
            let (slice, splice) = (counters(&report, "slice"), counters(&report, "splice"));
            let sliced = slice["sliced"];
            assert!(sliced >= wants_sliced, "{name}, {way}: {slice:?}");
            let gone = slice["payloads_released"] + slice["payloads_left_at_end"] + splice["spliced"];
            assert_eq!(gone, sliced + slice["empty_slices"], "{name}, {way}: {slice:?} {splice:?}");
            // Functions that count by length count the whole length.
            for kind in [
                "meter",
                "flow_stats",
                "counter",
                "firewall",
                "measure",
                "limit",
                "delay",
                "nat",
                "nptv6",
                "switch",
                "balancer",
            ] {
                assert_eq!(counters(&alone, kind), counters(&report, kind), "{name}, {way}");
                let said = |report: &RunReport| {
                    report
                        .stages
                        .iter()
                        .filter(|s| s.kind == kind)
                        .map(|s| s.report.clone())
                        .collect::<Vec<_>>()
                };
                assert_eq!(said(&alone), said(&report), "{name}, {way}");
            }
        }
    }
}

#[test]
fn made_traffic_comes_out_as_from_the_functions_alone() {
    let directory = tempfile::tempdir().unwrap();
    compare(&made(directory.path(), TRAFFIC, usize::MAX), 1500);
}

/// A token that stands for no payload is no byte of the packet, to whatever function.
#[test]
fn packets_that_come_with_the_mark_come_out_as_from_the_functions_alone() {
    let directory = tempfile::tempdir().unwrap();
    compare(&made(directory.path(), TRAFFIC, 3), 1500);
}

#[test]
fn captured_traffic_comes_out_as_from_the_functions_alone() {
    let Some(directory) = traces() else { return };
    for (file, sliced) in [("mix-ndpi.pcap", 100u64), ("ndpi-netflix.pcap", 300)] {
        let copy = tempfile::tempdir().unwrap();
        let path = copy.path().join("in.pcap");
        addressed(&directory.join("multi").join(file), &path, 2000, 5);
        compare(&format!("in :: pcap(path=\"{}\")", path.display()), sliced);
    }
}

/// The directory of captures; `None` where `SLIPSTREAM_TRACES=none` says that there is none.
pub(crate) fn traces() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let path = std::env::var_os("SLIPSTREAM_TRACES").map_or(beside, PathBuf::from);
    if path.is_dir() {
        return Some(path);
    }
    assert_eq!(
        path,
        Path::new("none"),
        "no captures there: SLIPSTREAM_TRACES names their folder, or is `none`"
    );
    println!("SLIPSTREAM_TRACES=none: nothing was tested");
    None
}

/// Every way of a gateway: both directions share one table, by ports.
#[test]
fn both_directions_share_a_table() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let graph = |sliced: bool, tag: &str| {
        let sources = "lan :: synth(traffic=\"flows=100,packets=3000,size=80..1500,seed=3\")\n\
                       wan :: synth(traffic=\"flows=100,packets=3000,size=80..1500,seed=4\")\n";
        let nat = "nat :: nat(pool=[192.0.2.0/30], pooling=arbitrary, inside=[10.0.0.0/8])\n";
        let ends = format!("to_lan :: pcap(path={tag}-lan.pcap)\nto_wan :: pcap(path={tag}-wan.pcap)\n");
        let ways = if sliced {
            "lan -> [lan]s :: slice(ports=[lan, wan], threshold=100)\nwan -> [wan]s\ns[lan] -> [inside]nat\ns[wan] -> [outside]nat\n\
             nat[inside] -> [lan]t :: splice(ports=[lan, wan])\nnat[outside] -> [wan]t\nt[lan] -> to_lan\nt[wan] -> to_wan"
        } else {
            "lan -> [inside]nat\nwan -> [outside]nat\nnat[inside] -> to_lan\nnat[outside] -> to_wan"
        };
        format!("{sources}{nat}{ends}{ways}")
    };
    run(&graph(false, "a"), at);
    let report = run(&graph(true, "b"), at);
    assert!(counters(&report, "splice")["spliced"] > 2000, "{:?}", counters(&report, "splice"));
    for side in ["lan", "wan"] {
        let read = |tag| packets(&at.join(format!("{tag}-{side}.pcap")));
        assert!(read("a") == read("b"), "{side}");
    }
}

/// Functions that give every packet back lose none, however few entries there are: those of a batch don't use
/// up each other's turns.
#[test]
fn small_tables_lose_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (settings, most_whole) in [
        ("entries=1, ttl=1", 10_000),
        ("entries=16", 9_400),
        ("entries=100, ttl=1", 6_100),
        ("rate=100kpps, service=25us", 0),
        ("rate=4mpps, service=25us", 0),
    ] {
        for between in ["counter", "reframe(hold=20us)"] {
            let graph = format!(
                "in :: synth(traffic=\"packets=10000,size=1000,rate=100kpps\") -> slice({settings}) -> {between} -> splice -> out :: null"
            );
            let report = run(&graph, directory.path());
            assert_eq!(drops(&report), BTreeMap::new(), "{settings}");
            let (slice, splice) = (counters(&report, "slice"), counters(&report, "splice"));
            assert_eq!(splice["spliced"] + splice["untouched"], 10_000, "{settings}");
            assert!(slice["whole_full"] <= most_whole, "{settings}, {between}: {slice:?}");
        }
    }
}

/// Nothing is wrong with a packet that a function between sees, though it is short.
#[test]
fn a_tap_between_sees_right_packets() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    run(
        &format!(
            "in :: synth(traffic=\"{TRAFFIC}\") -> slice(threshold=100) -> tap(path=tap.pcapng) -> splice -> out :: null"
        ),
        at,
    );
    let mut short = 0;
    for (_, original_len, data) in packets(&at.join("tap.pcapng")) {
        let headers = classify(LinkType::Ethernet, &data).unwrap();
        assert_ne!(verify_ip(&data, &headers), Verdict::Wrong);
        assert_ne!(verify_transport(&data, &headers), Verdict::Wrong);
        short += u32::from((data.len() as u32) < original_len);
        assert!(headers.tos >> 2 != 63 || data.len() < 100, "{} bytes", data.len());
    }
    assert!(short > 1500, "{short}");
}

/// The sender of a packet that a router gives up reads in the error what it sent, without the payload.
#[test]
fn errors_quote_what_was_sent() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let traffic = made(at, "flows=50,packets=600,protocol=0.5,ipv6=0.5,size=600..1500,seed=2", usize::MAX);
    let routes = "prohibit 198.18.0.0/15\nprohibit 2001:2::/48\n10.0.0.0/8 via 10.255.0.2\n2001:db8::/32 via fd98::2 port a\n";
    std::fs::write(at.join("routes.txt"), routes).unwrap();
    let router = "f :: router(interfaces=[\"a 10.255.0.1/24 fd98::1/64 02:00:00:00:00:01\"], routes=routes.txt, icmp_rate=1000000, \
                  icmp_burst=100000, neighbours=[\"10.255.0.2 02:00:00:00:00:05\", \"fd98::2 02:00:00:00:00:05\"])";
    let [alone, sliced] = [
        ("alone", format!("{traffic} -> {router}\nf[a] -> out :: pcap(path=alone.pcap)")),
        (
            "sliced",
            format!("{traffic} -> slice -> {router}\nf[a] -> splice -> out :: pcap(path=sliced.pcap)"),
        ),
    ]
    .map(|(name, graph)| {
        let report = run(&graph, at);
        (packets(&at.join(format!("{name}.pcap"))), report)
    });
    let (splice, slice) = (counters(&sliced.1, "splice"), counters(&sliced.1, "slice"));
    assert!(splice["quotes_restored"] > 300, "{splice:?} {:?}", drops(&alone.1));
    assert_eq!(slice["payloads_released"], splice["quotes_restored"], "dropped packets keep their entries");
    assert_eq!(sliced.0.len(), alone.0.len());
    for ((_, _, a), (_, _, b)) in alone.0.iter().zip(&sliced.0) {
        let headers = classify(LinkType::Ethernet, b).unwrap();
        assert_ne!(verify_ip(b, &headers), Verdict::Wrong);
        assert_eq!(verify_transport(b, &headers), Verdict::Right);
        if a.len() == b.len() {
            assert_eq!(a, b);
            continue;
        }
        // From the quoted IP header on, the whole packet's bytes, as far as they go.
        let quote = usize::from(headers.l4) + 8;
        assert!(b.len() < quote + 100, "{} bytes", b.len());
        assert_eq!(a[quote..b.len()], b[quote..], "{a:02x?}\n{b:02x?}");
    }
}

/// Packets of `from` for a router whose way out takes 1400 bytes: every second one of IPv4 may be fragmented,
/// and of those that are short enough with a token one in three has DSCP 63.
fn of_many_lengths(from: &Path, to: &Path) {
    let mut reader = CaptureReader::open(from).unwrap();
    let mut writer = CaptureWriter::create(to, WriterOptions::for_path(to, Format::PcapNg)).unwrap();
    let interface = Interface { link_number: 1, snap_len: 0, name: None };
    writer.add_interface(&interface);
    let mut n = 0;
    while let Some(record) = reader.next_record().unwrap() {
        let mut data = record.data.to_vec();
        let headers = classify(LinkType::Ethernet, &data).unwrap();
        let l3 = usize::from(headers.l3);
        if data[l3] >> 4 == 4 {
            data[l3 + 6] = if n % 2 == 0 { 0x40 } else { 0 };
            fill_ip(&mut data, &headers);
        }
        if n % 3 == 0 && data.len() - l3 <= 1392 {
            mark(&mut data);
        }
        writer.write(0, record.time, data.len() as u32, &data).unwrap();
        n += 1;
    }
    writer.finish().unwrap();
}

/// A router reads what a packet is long by its whole length: with `mtu` its fragments and its errors are
/// those that it makes without slicing; without, it never lets out what is longer than the link takes.
#[test]
fn a_router_between_sees_what_is_too_long() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    made(at, "flows=200,packets=3000,protocol=0.5,ipv6=0.3,size=90..1500,seed=5", usize::MAX);
    of_many_lengths(&at.join("in.pcap"), &at.join("lengths.pcapng"));
    std::fs::write(
        at.join("routes.txt"),
        "default via 192.0.2.254\n::/0 via fd99::fe port b\n10.0.0.0/8 via 10.255.0.2\n2001:db8::/32 via fd98::2 port a\n",
    )
    .unwrap();
    let router = "f :: router(interfaces=[\"a 10.255.0.1/24 fd98::1/64 02:00:00:00:00:01\", \
                  \"b 192.0.2.1/24 fd99::1/64 02:00:00:00:00:02 mtu 1400\"], routes=routes.txt, icmp_rate=1000000, icmp_burst=100000, \
                  neighbours=[\"10.255.0.2 02:00:00:00:00:05\", \"fd98::2 02:00:00:00:00:05\", \
                  \"b 192.0.2.254 02:00:00:00:00:fe\", \"b fd99::fe 02:00:00:00:00:fe\"])";
    let source = "in :: pcap(path=lengths.pcapng)";
    let ends = |tag: &str| (format!("pcap(path={tag}-a.pcap)"), format!("pcap(path={tag}-b.pcap)"));
    let through = |tag: &str, slice: Option<&str>| {
        let (a, b) = ends(tag);
        let graph = match slice {
            None => format!("{source} -> {router}\nf[a] -> oa :: {a}\nf[b] -> ob :: {b}"),
            Some(settings) => format!(
                "{source} -> sl :: slice({settings}) -> {router}\nf[a] -> sa :: splice -> oa :: {a}\nf[b] -> sb :: splice -> ob :: {b}"
            ),
        };
        let report = run(&graph, at);
        let read = |side: &str| packets(&at.join(format!("{tag}-{side}.pcap")));
        (report, read("a"), read("b"))
    };
    let (alone, errors, forwarded) = through("alone", None);
    let made = counters(&alone, "router");
    assert!(
        made["fragmented"] > 50 && errors.len() > 100 && forwarded.len() > 2000,
        "{made:?} {}",
        errors.len()
    );
    for way in WAYS {
        let (report, a, b) = through("with", Some(&format!("{way}, mtu=1400")));
        let slice = counters(&report, "slice");
        assert!(
            slice["sliced"] > 1000 && slice["empty_slices"] > 0 && slice["whole_too_long"] > 100,
            "{way} {slice:?}"
        );
        assert!(a == errors && b == forwarded, "{way}: errors or fragments differ");
        assert_eq!(drops(&alone), drops(&report), "{way}");

        let (report, a, b) = through("without", Some(way));
        let (spliced, given_up) = (counters(&report, "splice"), drops(&report));
        assert_eq!(a.len(), errors.len(), "{way}: {given_up:?}");
        // Of what parks a part of the payload the quote may end before the token.
        let cut_off = way.contains("part") || way.contains("fraction");
        assert!(cut_off || spliced["quotes_restored"] > 50, "{way}: {spliced:?}");
        // Fragments are cut of whole packets only. All of the others come out.
        let cut = made["fragmented"] - counters(&report, "router")["fragmented"];
        assert_eq!(given_up["too_big"], drops(&alone)["too_big"] + cut, "{way}");
        assert!(b.iter().all(|(_, len, _)| *len <= 1400 + 14), "{way}: longer than the link takes");
        let mut rest = forwarded.iter();
        assert!(b.iter().all(|packet| rest.any(|alone| alone == packet)), "{way}: packets have changed");
    }
}
