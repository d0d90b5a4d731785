//! `decide=train` gives what `decide=packet` gives: the same bytes at the same times by the same ports, the
//! same drops and counters. Packets come with pauses around every timeout, in runs of a flow, from few hosts,
//! into tables that are small enough to fill.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use proptest::prelude::*;
use slipstream::io::capture::{CaptureWriter, Format, Interface, WriterOptions};
use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, RunReport};
use slipstream::time::Nanos;

use super::build;

/// A pipeline whose function is called `f`, with sources `a` and `b` and sinks `x`, `y` and `z`.
struct Setting {
    name: &'static str,
    graph: &'static str,
    settings: &'static str,
    file: &'static str,
    /// Timeouts and other times at which something ends, in ns: pauses lie around them.
    times: &'static [u64],
}

pub(super) const SECOND: u64 = 1_000_000_000;

const SETTINGS: &[Setting] = &[
    Setting {
        name: "flow statistics",
        graph: "a -> [0]m :: merge; b -> m; m -> f :: flow_stats -> x",
        settings: "export = \"flows.ipfix\"\nidle = \"100ms\"\nactive = \"1s\"\nflows = 6\n",
        file: "",
        times: &[SECOND / 10, SECOND],
    },
    Setting {
        name: "flow statistics of flows that are seldom silent",
        graph: "a -> [0]m :: merge; b -> m; m -> f :: flow_stats -> x",
        settings: "export = \"flows.ipfix\"\nidle = \"1s\"\nactive = \"100ms\"\nflows = 6\n",
        file: "",
        times: &[SECOND / 10, SECOND],
    },
    Setting {
        name: "stateful firewall",
        graph: "a -> m :: merge; b -> m; m -> f :: firewall; f -> x; f[denied] -> y; f[replies] -> z",
        settings: "rules = \"rules\"\nconnections = 8\n",
        file: "allow state established,related\nreset state new tcp dst port 83\nallow state new src net 10.0.0.0/30\n\
               default deny\n",
        times: &[10 * SECOND, 30 * SECOND, 60 * SECOND, 120 * SECOND, 5 * 86_400 * SECOND],
    },
    Setting {
        name: "NAT",
        graph: "a -> f :: nat; f -> x; b -> [outside]f; f[inside] -> y",
        settings: "pool = [\"192.0.2.1\"]\ninside = [\"10.0.0.0/8\"]\nports = \"1024-1031\"\nsessions = 8\n\
                   udp_timeout = \"10s\"\ntcp_timeout = \"20s\"\n",
        file: "",
        times: &[10 * SECOND, 20 * SECOND, 60 * SECOND, 240 * SECOND],
    },
    Setting {
        name: "meter of every flow",
        graph: "a -> m :: merge; b -> m; m -> f :: meter; f -> x; f[red] -> y",
        settings: "per = \"flow\"\ncir = \"8kbps\"\ncbs = \"200B\"\nebs = \"100B\"\nmark = \"af1\"\nred = \"port\"\nflows = 4\n",
        file: "",
        times: &[SECOND / 10, SECOND / 5, 3 * SECOND / 10],
    },
    Setting {
        name: "meter of all",
        graph: "a -> m :: merge; b -> m; m -> f :: meter; f -> x",
        settings: "cir = \"8kbps\"\ncbs = \"300B\"\npir = \"16kbps\"\npbs = \"300B\"\nmark = \"af2\"\n",
        file: "",
        times: &[SECOND / 10, 3 * SECOND / 10],
    },
    Setting {
        name: "balancer",
        graph: "a -> f :: balancer; f -> x; b -> [backends]f; f[clients] -> y",
        settings: "service = \"10.0.1.1:80\"\nprotocol = \"udp\"\nbackends = [\"10.1.0.1\", \"10.1.0.2\", \"10.1.0.3\"]\n\
                   mode = \"dsr\"\nsource = \"10.9.0.1\"\nmtu = 576\nidle = \"1s\"\nconnections = 2\n",
        file: "",
        times: &[SECOND],
    },
    Setting {
        name: "bridge",
        graph: "a -> [a]f :: l2fwd; b -> [b]f; f[a] -> x; f[b] -> y",
        settings: "ports = [\"a\", \"b\"]\nageing = \"1s\"\nstations = 16\n",
        file: "",
        times: &[SECOND],
    },
    Setting {
        name: "router",
        graph: "a -> [lan]f :: router; b -> [wan]f; f[lan] -> x; f[wan] -> y",
        settings: "interfaces = [\"lan 10.0.0.254/24 02:00:00:00:00:fe\", \"wan 10.0.1.254/24 02:00:00:00:00:fe\"]\nneighbour_timeout = \"2s\"\n\
                   neighbour_table = 16\nneighbour_hold = 3\nroutes = \"rules\"\nreload = \"1s\"\nicmp_rate = 2\nicmp_burst = 2\n",
        file: "8.0.0.0/8 via 10.0.1.1 dev wan\n",
        times: &[SECOND, 2 * SECOND, 20 * SECOND],
    },
];

/// A run of packets of one flow.
#[derive(Clone, Debug)]
pub(super) struct Burst {
    /// Pause before each packet: one of the times of the setting (or none), its part in percent, and so many
    /// ns more or less.
    pub(super) pauses: Vec<(usize, u64, i64)>,
    /// By the first source or the second.
    pub(super) from_a: bool,
    /// Which packet: see [`text`].
    pub(super) kind: usize,
    pub(super) host: u8,
    pub(super) far: u8,
    pub(super) port: u16,
}

pub(super) fn burst() -> impl Strategy<Value = Burst> {
    let pause = prop_oneof![
        4 => (Just(usize::MAX), Just(0), 0i64..3_000),
        2 => (0usize..5, Just(100), -1i64..2),
        1 => (0usize..5, 1u64..130, -40_000_000i64..40_000_000),
    ];
    (
        prop::collection::vec(pause, 1..6),
        any::<bool>(),
        0usize..12,
        1u8..4,
        1u8..3,
        prop::sample::select(&[80u16, 81, 83][..]),
    )
        .prop_map(|(pauses, from_a, kind, host, far, port)| Burst {
            pauses,
            from_a,
            kind,
            host,
            far,
            port,
        })
}

/// A packet: from near to far, or back.
pub(super) fn text(burst: &Burst) -> String {
    let Burst { from_a, kind, host, far, port, .. } = *burst;
    let station = if from_a { format!("eth 02::{host}>02::fe") } else { format!("eth 02::1{far}>02::fe") };
    let (near, distant) = (format!("10.0.0.{host}"), format!("10.0.1.{far}"));
    // Through a NAT the far side knows the pool alone.
    let (src, dst) = match (from_a, kind % 4) {
        (true, _) => (near, distant),
        (false, 0) => (distant, near),
        (false, _) => (distant, "192.0.2.1".to_owned()),
    };
    let ports = match (from_a, kind % 4) {
        (true, _) => format!("{}>{port}", 1024 + u16::from(host)),
        (false, _) => format!("{port}>{}", 1023 + u16::from(host)),
    };
    let what = match kind {
        0..5 => format!("udp {ports} len 80"),
        5 => format!("udp {ports} len 700"),
        6 => format!("tcp {ports} S"),
        7 => format!("tcp {ports} {}", if from_a { "A" } else { "SA" }),
        8 => format!("tcp {ports} A"),
        9 => format!("tcp {ports} {}", if host == 1 { "R" } else { "FA" }),
        10 => "echo 7".to_owned(),
        _ => "echo-reply 7".to_owned(),
    };
    match kind {
        4 if !from_a => format!("{station} arp reply 10.0.1.{far}@02::1{far}>10.0.1.254@02::fe"),
        4 => format!("{station} ip 10.0.0.{host}>10.0.1.{far} ttl 1 udp 5>{port} len 80"),
        _ => format!("{station} ip {src}>{dst} {what}"),
    }
}

type Outcome = (BTreeMap<String, Vec<u8>>, Vec<String>);

/// Runs the packets through a pipeline; gives all files that it wrote, and what it counted.
fn outcome(setting: &Setting, packets: &[(u64, bool, Vec<u8>)], hold: &str, decide: &str) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("rules"), setting.file).unwrap();
    let mut ports = String::new();
    for source in ["a", "b"] {
        write(&dir.path().join(format!("{source}.pcapng")), packets, source == "a");
        ports += &format!("[stage.{source}]\ntype = \"pcap\"\npath = \"{source}.pcapng\"\n");
    }
    let sinks = ["x", "y", "z"].into_iter().filter(|sink| setting.graph.contains(&format!("-> {sink}")));
    for sink in sinks.clone() {
        ports += &format!("[stage.{sink}]\ntype = \"pcap\"\npath = \"{sink}.pcapng\"\n");
    }
    let mut graph = setting.graph.replace("merge", "counter");
    if !hold.is_empty() {
        graph = graph.replace("a -> ", &format!("a -> reframe(hold={hold}, burst=4) -> "));
    }
    let text =
        format!("graph = '''\n{graph}\n'''\n[stage.f]\n{}decide = \"{decide}\"\n{ports}", setting.settings);
    let plan =
        Plan::from_toml(&text, "modes", dir.path()).unwrap_or_else(|e| panic!("{}: {e}", setting.name));
    let mut pipeline = plan.build(1).unwrap_or_else(|e| panic!("{}: {e}", setting.name));
    pipeline.untimed();
    let report = Driver::new(pipeline).run(&mut |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(report.live, 0, "{}: packets were lost", setting.name);
    let mut files = BTreeMap::new();
    for name in sinks.map(|sink| format!("{sink}.pcapng")).chain(["flows.ipfix".to_owned()]) {
        let _ = std::fs::read(dir.path().join(&name)).map(|bytes| files.insert(name, bytes));
    }
    (files, counted(&report, OF_DECISIONS))
}

pub(super) fn write(path: &Path, packets: &[(u64, bool, Vec<u8>)], from_a: bool) {
    let mut writer = CaptureWriter::create(path, WriterOptions::for_path(path, Format::PcapNg)).unwrap();
    writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    for (time, _, bytes) in packets.iter().filter(|(_, a, _)| *a == from_a) {
        writer.write(0, Nanos(*time), bytes.len() as u32, bytes).unwrap();
    }
    writer.finish().unwrap();
}

/// Counters of decisions and of the answers that were sought.
const OF_DECISIONS: &[&str] = &["decisions", "connections_refused"];

/// Everything that a run counted, but for these counters.
pub(super) fn counted(report: &RunReport, but_for: &[&str]) -> Vec<String> {
    let mut all = Vec::new();
    for stage in &report.stages {
        let counters = stage.counters.iter().filter(|(name, _)| !but_for.contains(name));
        all.extend(counters.map(|(name, n)| format!("{}.{name} {n}", stage.name)));
        all.extend(stage.drops.iter().map(|(reason, n)| format!("{}.{} {n}", stage.name, reason.name())));
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// With every function, whatever the pauses, behind a stage that holds packets or not.
    #[test]
    fn trains_get_what_packets_get(bursts in prop::collection::vec(burst(), 1..60), hold in prop::sample::select(&["", "2us", "50ms"][..])) {
        for setting in SETTINGS {
            let mut now = SECOND;
            let mut packets = Vec::new();
            for burst in &bursts {
                let packet = build::packet(&text(burst), false).unwrap();
                for (which, percent, more) in &burst.pauses {
                    let base = setting.times.get(*which).map_or(0, |time| time / 100 * percent);
                    now += base.saturating_add_signed(*more);
                    packets.push((now, burst.from_a, packet.bytes.clone()));
                }
            }
            let (train, packet) = (outcome(setting, &packets, hold, "train"), outcome(setting, &packets, hold, "packet"));
            prop_assert_eq!(&train.1, &packet.1, "counters of {}", setting.name);
            prop_assert!(train.0 == packet.0, "{}: the files differ", setting.name);
        }
    }
}
