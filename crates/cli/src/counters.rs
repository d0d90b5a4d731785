//! The meaning of what sources and stages count by themselves, by the names of the counters. Reports,
//! metrics, the log and `top` go by these lists, and tests hold the board and the alert rules in `contrib/`
//! to them.

/// Counters of sources that are packets lost before any stage saw them. They have no packet in common. In
/// alphabetical order.
pub(crate) const LOST: [&str; 6] =
    ["dropped_by_kernel", "dropped_by_queue", "lost_between_shards", "missed", "no_mbuf", "too_long"];

/// Counts of stages and sources that may also fall; all others only grow while a run lasts. In alphabetical
/// order.
pub(crate) const LEVELS: [&str; 23] = [
    "connections",
    "flows",
    "fragments_held",
    "fragments_waiting",
    "generator_away_longest_ns",
    "heavy_flows",
    "held_max",
    "hold_ns",
    "in_flight",
    "left_in_queue",
    "left_in_ring",
    "mappings",
    "native",
    "neighbours",
    "payloads_most_waiting",
    "payloads_waiting",
    "price_ns",
    "queues",
    "route_memory_bytes",
    "routes",
    "sessions",
    "stations",
    "zero_copy",
];

/// True of a counter of a source that is packets lost before any stage saw them.
pub(crate) fn is_loss(name: &str) -> bool {
    LOST.binary_search(&name).is_ok()
}

/// True of a count that may also fall.
pub(crate) fn is_level(name: &str) -> bool {
    LEVELS.binary_search(&name).is_ok()
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::fs;
    use std::path::{Path, PathBuf};

    use super::*;

    /// Counters of sources that sound like losses and are none, each with the reason.
    const NO_LOSSES: [(&str, &str); 5] = [
        ("errors", "packets that a card found damaged: the board and an alert have them by themselves"),
        ("mempool_empty", "polls, not packets"),
        ("no_buffer", "is part of dropped_by_kernel"),
        ("ring_full", "is part of dropped_by_kernel"),
        ("told_of_drops", "packets that another process was told of"),
    ];

    fn sources_below(folder: &Path, all: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                sources_below(&entry, all);
            } else if entry.extension().is_some_and(|end| end == "rs") {
                all.push(entry);
            }
        }
    }

    /// The counters that are written as `visit("name", …)`, by file.
    fn visited() -> BTreeMap<PathBuf, BTreeSet<String>> {
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        let mut all = Vec::new();
        for krate in fs::read_dir(crates).unwrap().map(|entry| entry.unwrap().path().join("src")) {
            if krate.is_dir() {
                sources_below(&krate, &mut all);
            }
        }
        let names = |path: &PathBuf| -> BTreeSet<String> {
            let text = fs::read_to_string(path).unwrap();
            let calls = text.split("visit(\"").skip(1);
            calls.filter_map(|rest| Some(rest.split_once("\",")?.0.to_owned())).collect()
        };
        all.into_iter().map(|path| (path.clone(), names(&path))).collect()
    }

    #[test]
    fn every_name_is_that_of_a_counter() {
        assert!(LOST.is_sorted() && LEVELS.is_sorted());
        let counted: BTreeSet<String> = visited().into_values().flatten().collect();
        let none_such: Vec<_> = LOST.iter().chain(&LEVELS).filter(|name| !counted.contains(**name)).collect();
        assert!(none_such.is_empty(), "nobody counts {none_such:?}");
        for counter in ["sessions_opened", "neighbours_changed", "connections_begun", "datagrams"] {
            assert!(counted.contains(counter) && !is_level(counter), "{counter}");
        }
        // Numbers of what is there now may fall.
        for level in ["fragments_waiting", "heavy_flows", "left_in_ring", "payloads_waiting", "sessions"] {
            assert!(is_level(level), "{level}");
        }
    }

    /// The board and the alerts name the losses of sources, each of them once, and what a device finds
    /// damaged.
    #[test]
    fn board_and_alerts_have_the_losses_of_sources() {
        let board = include_str!("../../../contrib/grafana/slipstream.json").replace('\\', "");
        let rules = include_str!("../../../contrib/prometheus/slipstream.rules.yml");
        for (text, least) in [(board.as_str(), 1), (rules, 2)] {
            let queries = text.split("slipstream_source_count_total{").skip(1);
            let queries: Vec<_> = queries.map(|rest| rest.split_once('}').unwrap().0).collect();
            let (damaged, lost): (Vec<_>, Vec<_>) =
                queries.into_iter().partition(|query| query.ends_with("name=\"errors\""));
            assert!(lost.len() >= least && damaged.len() == 1, "{lost:?} {damaged:?}");
            for query in lost {
                let names =
                    query.split_once("name=~\"").and_then(|(_, rest)| rest.split_once('"')).unwrap().0;
                assert_eq!(names.split('|').collect::<Vec<_>>(), LOST);
            }
        }
    }

    /// A source whose counter sounds like a loss has it here, or a reason why it isn't one.
    #[test]
    fn counters_that_sound_like_losses_are_judged() {
        let sources = ["receive.rs", "ring.rs", "steered.rs"];
        let is_source = |path: &Path| sources.iter().any(|name| path.ends_with(name));
        let names: BTreeSet<String> =
            visited().into_iter().filter(|(path, _)| is_source(path)).flat_map(|(_, names)| names).collect();
        let sounds = ["drop", "empty", "error", "full", "lost", "missed", "no_", "too_"];
        let heard: Vec<_> = names.iter().filter(|name| sounds.iter().any(|s| name.contains(s))).collect();
        assert!(heard.len() > 8, "{heard:?}");
        let is_known = |name: &str| is_loss(name) || NO_LOSSES.iter().any(|(known, _)| *known == name);
        let unknown: Vec<_> = heard.into_iter().filter(|name| !is_known(name)).collect();
        assert!(unknown.is_empty(), "is it a loss? {unknown:?}");
    }
}
