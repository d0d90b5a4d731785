//! `tests/cases/*.case`: settings, packets in with their times, packets out with theirs. They read as
//! documentation.

use std::path::Path;

use crate::common::{Kind, Packet, run};
use slipstream::reframe::{Admit, Class, Policy, ReframeConfig};
use slipstream::rules::Rule;

fn micros(text: &str) -> u64 {
    text.strip_suffix("us").unwrap_or_else(|| panic!("{text:?} is not a time in us")).parse::<u64>().unwrap()
        * 1000
}

fn set(config: &mut ReframeConfig, class: usize, key: &str, value: &str) {
    let t = if class == 0 { &mut config.default } else { &mut config.classes[class - 1].settings };
    match key {
        "hold" => t.hold_ns = micros(value),
        "burst" => t.burst = value.parse().unwrap(),
        "weight" => t.weight = value.parse().unwrap(),
        "bypass" if class > 0 => t.bypass = true,
        "bypass" => config.bypass = Rule::parse(value).unwrap(),
        "top_window" => config.top_window = value.parse().unwrap(),
        "capacity" => config.capacity = value.parse().unwrap(),
        "admit" => config.admit = if value == "second" { Admit::Second } else { Admit::Always },
        "policy" => {
            config.policy = match value {
                "oldest" => Policy::Oldest,
                "waiting" => Policy::Waiting,
                "shortest" => Policy::Shortest,
                _ => panic!("no policy {value:?}"),
            }
        }
        _ => panic!("no setting {key:?}"),
    }
}

/// `key=value` pairs; a value in double quotes may hold blanks.
fn pairs(text: &str) -> Vec<(String, String)> {
    let mut out = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=').unwrap_or((rest, ""));
        let (value, left) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap(),
            None => after.split_once(' ').unwrap_or((after, "")),
        };
        out.push((key.trim().to_owned(), value.to_owned()));
        rest = left.trim();
    }
    out
}

#[derive(Default)]
struct Case {
    config: ReframeConfig,
    packets: Vec<(String, Packet)>,
    out: Vec<(u64, String)>,
    counts: Vec<(String, u64)>,
}

/// A packet is its flow's letter and a number; `S` behind it makes it a SYN, `arp…` is not IP.
fn packet(time: u64, name: &str) -> Packet {
    if name.starts_with("arp") {
        return Packet { time, flow: 0, kind: Kind::Arp, len: 60 };
    }
    let letter = name.bytes().next().unwrap();
    let kind = match letter {
        b'a'..=b'z' => Kind::Udp,
        _ => Kind::Tcp { syn: name.ends_with('S') },
    };
    Packet { time, flow: u16::from(letter.to_ascii_uppercase() - b'A') + 1, kind, len: 60 }
}

fn parse(text: &str) -> Case {
    let mut case = Case::default();
    let mut section = "";
    for line in text.lines().map(|l| l.split('#').next().unwrap().trim()).filter(|l| !l.is_empty()) {
        if let Some(settings) = line.strip_prefix("reframe ") {
            pairs(settings).iter().for_each(|(k, v)| set(&mut case.config, 0, k, v));
        } else if let Some(class) = line.strip_prefix("class ") {
            let (rule, list) = class.split_once("=>").unwrap();
            let class = Class::parse(&format!("{rule} =>"), &case.config.default, Path::new(""));
            case.config.classes.push(class.unwrap());
            let n = case.config.classes.len();
            pairs(list).iter().for_each(|(k, v)| set(&mut case.config, n, k, v));
        } else if let "in" | "out" | "count" = line {
            section = line;
        } else {
            let (first, rest) = line.split_once(char::is_whitespace).unwrap();
            for name in rest.split_whitespace() {
                match section {
                    "in" => case.packets.push((name.to_owned(), packet(micros(first), name))),
                    "out" => case.out.push((micros(first), name.to_owned())),
                    "count" => case.counts.push((first.to_owned(), name.parse().unwrap())),
                    _ => panic!("{line:?} stands in no section"),
                }
            }
        }
    }
    case
}

#[test]
fn every_case_holds() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/cases");
    let mut files: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "case"));
    files.sort();
    assert!(files.len() >= 12, "cases are missing from {}", dir.display());
    for file in files {
        let case = parse(&std::fs::read_to_string(&file).unwrap());
        let packets: Vec<Packet> = case.packets.iter().map(|p| p.1).collect();
        let (out, report) = run(&case.config, 1, &packets);
        let named: Vec<(u64, String)> =
            out.into_iter().map(|(t, i)| (t, case.packets[i].0.clone())).collect();
        assert_eq!(named, case.out, "{}", file.display());
        let total = report.stats.total();
        for (what, n) in case.counts {
            let counted = match what.as_str() {
                "full" => total.released[0],
                "deadline" => total.released[1],
                "capacity" => total.released[2],
                "bypass" => total.released[3],
                "trains" => total.trains,
                "held_max" => report.stats.held_max.into(),
                "bypassed" => total.packets_bypassed,
                "unclassified" => report.stats.unclassified,
                "futile_us" => total.futile_wait_ns / 1000,
                _ => panic!("{}: nothing is called {what:?}", file.display()),
            };
            assert_eq!(counted, n, "{}: {what}", file.display());
        }
    }
}
