//! `tests/cases/functions/*.case`: a pipeline with its settings, packets in, packets out. They read as
//! documentation.
//!
//! A case is made of sections; a section's lines are indented, `#` begins a comment:
//!
//! ```text
//! # The time to live goes down, and the checksum with it.
//! pipeline                                 the graph, as in a configuration
//!   lan -> [lan]r :: router(interfaces=["lan 10.0.0.1/24 02::1", "wan 192.0.2.1/24 02::2"])
//!   r[wan] -> to_wan
//! settings                                 tables of settings (TOML), as in a configuration; may be left out
//!   [stage.r]
//!   icmp_rate = 10
//! file routes.txt                          a file beside the configuration; any number of them
//!   default via 192.0.2.254
//! link raw                                 packets begin with IP; without this line with Ethernet
//! decide r                                 stages that decide: the case must hold once per train and once per packet
//! in                                       time, source, packet; sources are the stages that these lines name
//!   10us lan: eth 02::1>02::2 ip 10.0.0.5>8.8.8.8 ttl 64 udp 1000>53 len 60
//! out                                      time, sink, packet; in the order of each sink
//!   10us to_wan: eth 02::9>02::8 ip 10.0.0.5>8.8.8.8 ttl 63 udp 1000>53 len 60
//! sinks to_lan                             further sinks, which get nothing
//! count                                    counters and drops of a stage (checked where it decides per train)
//!   r.decisions 1
//!   r.drops.hop_limit 0
//! ```
//!
//! # How a packet is written
//!
//! In the order of its headers; checksums and lengths are right unless the text says otherwise. An Ethernet
//! address may leave out zeros as an IPv6 address does: `02::1` is 02:00:00:00:00:01.
//!
//! | words | meaning |
//! |---|---|
//! | `eth SRC>DST` | Ethernet |
//! | `vlan ID` | a tag, outermost first |
//! | `type HEX` | another ethertype, with `data` behind it |
//! | `arp request IP@MAC>IP`, `arp reply IP@MAC>IP@MAC` | ARP for IPv4 |
//! | `ip SRC>DST` | IPv4 or IPv6, by the addresses |
//! | `ttl N`, `tos HEX`, `id N`, `df`, `mf`, `offset N`, `options HEX`, `badsum` | what isn't 64, 0, 0, off, off, 0 (bytes), none, right |
//! | `udp S>D`, `tcp S>D FLAGS` (letters of `FSRPAUEC`, or `.`), `seq N`, `ack N` | transport, with ports; TCP's window is 65535, that of a reset 0 |
//! | `nosum` | UDP without a checksum |
//! | `echo N`, `echo-reply N` | ICMP of the packet's version, sequence number 1 and identifier N |
//! | `ns IP`, `ns IP@MAC`, `na IP@MAC` | neighbour solicitation (with source address option), and advertisement (RFC 4861; router, solicited, override) |
//! | `na-weak IP@MAC` | advertisement without the override flag |
//! | `icmp TYPE/CODE` | any other ICMP; `rest N` is the word behind the checksum |
//! | `quote [ PACKET ]` | what an ICMP error quotes: a packet, from its IP header on, cut to what fits (576 bytes of IPv4, 1280 of IPv6) |
//! | `proto N` | another transport protocol |
//! | `data HEX` | payload |
//! | `len N` | length of the frame: zeros are added to the payload |
//! | `pad N` | zeros behind the IP packet, to a frame of N bytes |
//! | `snap N` | only N bytes were captured |

mod build;
mod contexts;
mod modes;
mod show;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use self::build::Packet;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, Interface, WriterOptions};
use slipstream::pipeline::{Plan, stage_types};
use slipstream::runtime::{Driver, RunReport};
use slipstream::stage::DropReason;
use slipstream::time::Nanos;
use slipstream::units::Duration;

/// A packet at a port, and when.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Event {
    time: u64,
    port: String,
    packet: Packet,
}

#[derive(Default)]
struct Case {
    pipeline: String,
    settings: String,
    files: BTreeMap<String, String>,
    raw: bool,
    decide: Vec<String>,
    sinks: BTreeSet<String>,
    arrivals: Vec<Event>,
    departures: Vec<Event>,
    counts: Vec<(String, u64)>,
}

/// `10us lan: PACKET`
fn event(line: &str, raw: bool) -> Event {
    let (head, packet) = line.split_once(": ").unwrap_or_else(|| panic!("{line:?} lacks `: `"));
    let (time, port) =
        head.split_once(char::is_whitespace).unwrap_or_else(|| panic!("{line:?} lacks a port"));
    let time = time.parse::<Duration>().unwrap_or_else(|e| panic!("{line:?}: {e}")).0;
    let packet = build::packet(packet, raw).unwrap_or_else(|e| panic!("{line:?}: {e}"));
    Event { time, port: port.trim().to_owned(), packet }
}

fn parse(text: &str) -> Case {
    let mut case = Case { raw: text.lines().any(|l| l.trim() == "link raw"), ..Case::default() };
    let mut section = String::new();
    for line in text.lines() {
        let line = if section.starts_with("settings") || section.starts_with("file ") {
            line
        } else {
            line.split('#').next().unwrap()
        };
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        if !line.starts_with(' ') {
            section = line.trim().to_owned();
            match section.split_once(' ') {
                Some(("decide", names)) => case.decide = names.split_whitespace().map(Into::into).collect(),
                Some(("sinks", names)) => case.sinks.extend(names.split_whitespace().map(Into::into)),
                Some(("file", name)) => drop(case.files.insert(name.trim().to_owned(), String::new())),
                Some(("link", "raw")) => {}
                None if matches!(section.as_str(), "pipeline" | "settings" | "in" | "out" | "count") => {}
                _ => panic!("{section:?} is no section"),
            }
            continue;
        }
        let line = line.trim();
        match section.split_once(' ').map_or((section.as_str(), ""), |s| s) {
            ("pipeline", _) => case.pipeline += &format!("{line}\n"),
            ("settings", _) => case.settings += &format!("{line}\n"),
            ("file", name) => case.files.get_mut(name).unwrap().push_str(&format!("{line}\n")),
            ("in", _) => case.arrivals.push(event(line, case.raw)),
            ("out", _) => case.departures.push(event(line, case.raw)),
            ("count", _) => {
                let (name, n) = line.rsplit_once(' ').unwrap_or_else(|| panic!("{line:?} lacks a number"));
                case.counts.push((name.trim().to_owned(), n.parse().unwrap()));
            }
            _ => panic!("{line:?} stands in no section"),
        }
    }
    case
}

/// Writes what arrives at a source.
fn write_capture(path: &Path, case: &Case, port: &str) {
    let options = WriterOptions::for_path(path, Format::PcapNg);
    let mut writer = CaptureWriter::create(path, options).unwrap();
    let link_number = if case.raw { 101 } else { 1 };
    writer.add_interface(&Interface { link_number, snap_len: 0, name: None });
    for Event { time, packet, .. } in case.arrivals.iter().filter(|e| e.port == port) {
        writer.write(0, Nanos(*time), packet.original_len, &packet.bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn read_capture(path: &Path, port: &str) -> Vec<Event> {
    let mut reader = CaptureReader::open(path).unwrap();
    let mut events = Vec::new();
    while let Some(record) = reader.next_record().unwrap() {
        let packet = Packet { bytes: record.data.to_vec(), original_len: record.original_len };
        events.push(Event { time: record.time.0, port: port.to_owned(), packet });
    }
    events
}

/// Runs a case, its stages deciding for every packet or not; gives what left by each sink.
fn run(case: &Case, per_packet: bool) -> (BTreeMap<String, Vec<Event>>, RunReport) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in &case.files {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let sources: BTreeSet<&str> = case.arrivals.iter().map(|e| e.port.as_str()).collect();
    let sinks: BTreeSet<&str> = case
        .departures
        .iter()
        .map(|e| e.port.as_str())
        .chain(case.sinks.iter().map(String::as_str))
        .collect();
    let mut settings = case.settings.clone();
    for name in case.decide.iter().filter(|_| per_packet) {
        let (table, mode) = (format!("[stage.{name}]\n"), "decide = \"packet\"\n");
        match settings.find(&table) {
            Some(at) => settings.insert_str(at + table.len(), mode),
            None => settings += &(table + mode),
        }
    }
    let mut text = format!("graph = '''\n{}'''\n{settings}\n", case.pipeline);
    for port in sources.union(&sinks) {
        text += &format!("[stage.{port}]\ntype = \"pcap\"\npath = \"{port}.pcapng\"\n");
    }
    for port in sources {
        write_capture(&dir.path().join(format!("{port}.pcapng")), case, port);
    }
    let plan = Plan::from_toml(&text, "case", dir.path()).unwrap_or_else(|e| panic!("{e}"));
    let mut pipeline = plan.build(1).unwrap_or_else(|e| panic!("{e}"));
    pipeline.untimed();
    let report = Driver::new(pipeline).run(&mut |_| ControlFlow::Continue(())).unwrap();
    let read = |port: &str| (port.to_owned(), read_capture(&dir.path().join(format!("{port}.pcapng")), port));
    (sinks.into_iter().map(read).collect(), report)
}

/// The value of `stage.counter` or `stage.drops.reason`.
fn counted(report: &RunReport, name: &str) -> u64 {
    let (stage, counter) = name.split_once('.').unwrap_or_else(|| panic!("{name:?} lacks a stage"));
    let stage =
        report.stages.iter().find(|s| s.name == stage).unwrap_or_else(|| panic!("no stage {stage:?}"));
    match counter.split_once('.') {
        Some(("drops", reason)) => {
            let own = stage_types().iter().flat_map(|t| t.drop_reasons());
            let mut known = DropReason::GENERAL.into_iter().chain(own);
            assert!(known.any(|r| r.name() == reason), "no reason {reason:?}");
            stage.drops.iter().find(|(r, _)| r.name() == reason).map_or(0, |(_, n)| n)
        }
        _ => stage
            .counters
            .iter()
            .find(|(c, _)| *c == counter)
            .map(|(_, n)| *n)
            .unwrap_or_else(|| panic!("nothing is called {name:?}; there are {:?}", stage.counters)),
    }
}

fn lines(events: &[Event], raw: bool) -> String {
    let line = |e: &Event| format!("  {} {}: {}\n", Duration(e.time), e.port, show::packet(&e.packet, raw));
    events.iter().map(line).collect()
}

fn check(name: &str, case: &Case) {
    for per_packet in [false, true] {
        if per_packet && case.decide.is_empty() {
            continue;
        }
        let (out, report) = run(case, per_packet);
        for (port, events) in &out {
            let expected: Vec<Event> = case.departures.iter().filter(|e| e.port == *port).cloned().collect();
            if *events != expected {
                let (expected, found) = (lines(&expected, case.raw), lines(events, case.raw));
                panic!("{name}, per packet {per_packet}: expected\n{expected}but found\n{found}");
            }
        }
        assert_eq!(report.live, 0, "{name}: packets were lost");
        for (what, n) in case.counts.iter().filter(|_| !per_packet) {
            assert_eq!(counted(&report, what), *n, "{name}: {what}");
        }
    }
}

#[test]
fn every_case_holds() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases/functions");
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "case"));
    files.sort();
    assert!(files.len() >= 2, "cases are missing from {}", dir.display());
    for file in files {
        let case = parse(&std::fs::read_to_string(&file).unwrap());
        assert!(!case.arrivals.is_empty(), "{} lets no packet in", file.display());
        check(&file.file_name().unwrap().to_string_lossy(), &case);
    }
}

/// A case that doesn't hold is noticed, and said in the words of cases.
#[test]
#[should_panic(expected = "ip 10.0.0.5>10.0.0.6 udp 1>2")]
fn a_wrong_case_fails() {
    let packet = "eth 02::1>02::2 ip 10.0.0.5>10.0.0.6 udp 1>2";
    let text =
        format!("pipeline\n  a -> counter -> b\nin\n  1us a: {packet}\nout\n  1us b: {packet} data 00\n");
    check("wrong", &parse(&text));
}
