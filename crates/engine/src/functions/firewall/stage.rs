//! The firewall in a pipeline.

use std::path::Path;

use serde_json::json;
use slipstream_wire::FlowKey;

use super::cache::DecisionCache;
use super::{Action, Firewall, Method, PacketFields, RuleSet, Verdict as Fate};
use crate::frame::Frame;
use crate::functions::{DECIDE, NetworkFunction, Reads, Scene, key_of, stage_of};
use crate::pipeline::{BuildError, Group, Kind, Made, PortType, Ports, Setting, Settings, Site, StageType};
use crate::stage::{Context, DropReason, Verdict};
use crate::time::Nanos;

pub(crate) const FIREWALL: StageType = StageType {
    name: "firewall",
    group: Group::Function,
    summary: "Filters packets by ordered rules: the first that allows, denies or resets decides",
    example: "in -> firewall(rules=\"acl.txt\") -> out",
    inputs: Ports::These(&[PortType { name: "in", help: "packets", unconnected: None }]),
    outputs: Ports::These(&[
        PortType { name: "out", help: "packets that may pass", unconnected: None },
        PortType { name: "denied", help: "packets that may not", unconnected: Some(DropReason::Denied) },
    ]),
    settings: &[
        Setting {
            name: "rules",
            kind: Kind::File,
            default: None,
            required: true,
            help: "File of rules, one a line behind its action (allow, deny, reset, count, log 1/N), or of iptables-save",
        },
        Setting {
            name: "format",
            kind: Kind::Choice(&["auto", "rules", "iptables"]),
            default: Some("auto"),
            required: false,
            help: "What the file is; auto: iptables-save where it has a line `*filter`",
        },
        Setting {
            name: "chain",
            kind: Kind::Text("name of a chain"),
            default: Some("FORWARD"),
            required: false,
            help: "Of iptables-save: the chain that decides",
        },
        Setting {
            name: "classifier",
            kind: Kind::Choice(&["fast", "linear"]),
            default: Some("fast"),
            required: false,
            help: "Decision trees, or one rule after the other (the obvious twin, for comparison)",
        },
        Setting {
            name: "cache",
            kind: Kind::Count(0, 1 << 26),
            default: Some("0"),
            required: false,
            help: "Flows whose decision is remembered, by whole flow key; 0: none",
        },
        Setting {
            name: "other",
            kind: Kind::Choice(&["allow", "deny"]),
            default: Some("allow"),
            required: false,
            help: "What becomes of packets that are not IP, such as ARP",
        },
        DECIDE,
    ],
    build,
};

/// Packets that a log rule picked which are remembered for the report.
const LOGGED: usize = 64;

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let path = settings.file("rules").unwrap_or(Path::new(""));
    let text = std::fs::read_to_string(path)
        .map_err(|e| BuildError::setting("rules", format!("{} can't be read: {e}", path.display())))?;
    let iptables = match settings.text("format") {
        "auto" => text.lines().any(|l| l.trim() == "*filter"),
        format => format == "iptables",
    };
    let rules =
        if iptables { RuleSet::parse_iptables(&text, settings.text("chain")) } else { RuleSet::parse(&text) };
    let rules = rules.map_err(|e| BuildError::setting("rules", e.in_file(path).to_string()))?;
    let method = if settings.text("classifier") == "linear" { Method::Linear } else { Method::Fast };
    let stage = FirewallStage::new(
        Firewall::new(rules, method),
        settings.number("cache") as usize,
        settings.text("other") == "allow",
        site.seed,
    );
    Ok(Made::Stage(stage_of(stage, settings)))
}

/// Packets and bytes that a rule matched.
#[derive(Clone, Copy, Debug, Default)]
struct Hits {
    packets: u64,
    bytes: u64,
}

/// A packet that a log rule picked.
#[derive(Clone, Copy, Debug)]
struct Logged {
    rule: u32,
    time: Nanos,
    key: FlowKey,
}

/// A firewall as a network function.
#[derive(Debug)]
pub struct FirewallStage {
    firewall: Firewall,
    reads: Reads,
    cache: Option<DecisionCache>,
    allow_other: bool,
    seed: u64,
    /// One a rule, and the last for the default.
    hits: Vec<Hits>,
    /// Rules passed on the way to the decision that was made last: those that count or log.
    passed: Vec<u32>,
    cached: u64,
    logged: Vec<Logged>,
    logged_packets: u64,
    unclassified: u64,
}

/// What was decided.
#[derive(Clone, Copy, Debug)]
pub struct Decided {
    fate: Fate,
    /// Place in the hits.
    rule: usize,
    key: Option<FlowKey>,
}

impl FirewallStage {
    /// Around a firewall. `cache`: flows whose decision is remembered; `allow_other`: whether what is not IP passes.
    #[must_use]
    pub fn new(firewall: Firewall, cache: usize, allow_other: bool, seed: u64) -> Self {
        let reads = firewall.rules().reads();
        let shared = Reads::of_word(reads.word);
        Self {
            hits: vec![Hits::default(); firewall.rules().rules().len() + 1],
            reads: if reads.length { shared.and(Reads::LENGTH) } else { shared },
            cache: (cache > 0).then(|| DecisionCache::new(cache, reads)),
            firewall,
            allow_other,
            seed,
            passed: Vec::new(),
            cached: 0,
            logged: Vec::with_capacity(LOGGED),
            logged_packets: 0,
            unclassified: 0,
        }
    }

    fn first_rule(&mut self, key: &FlowKey, packet: &PacketFields) -> Option<u32> {
        let Some(cache) = &mut self.cache else { return self.firewall.lookup(packet) };
        let hash = key.hash64(self.seed);
        if let Some(rule) = cache.get(key, hash, packet) {
            self.cached += 1;
            return rule;
        }
        let rule = self.firewall.lookup(packet);
        cache.put(key, hash, packet, rule);
        rule
    }

    /// Counts packets for the rules that were passed on the way.
    fn count_passed(&mut self, decided: &Decided, packets: u64, bytes: u64, now: Nanos) {
        for rule in std::mem::take(&mut self.passed) {
            let before = self.hits.get(rule as usize).map_or(0, |h| h.packets);
            self.hit(rule as usize, packets, bytes);
            let Some(Action::Log { one_in }) = self.firewall.rules().action(rule) else { continue };
            let one_in = u64::from(one_in.get());
            let picked = (before + packets) / one_in - before / one_in;
            self.logged_packets += picked;
            if let (true, Some(key)) = (picked > 0, decided.key) {
                if self.logged.len() == LOGGED {
                    self.logged.remove(0);
                }
                self.logged.push(Logged { rule, time: now, key });
            }
        }
    }

    fn hit(&mut self, rule: usize, packets: u64, bytes: u64) {
        if let Some(hits) = self.hits.get_mut(rule) {
            hits.packets += packets;
            hits.bytes += bytes;
        }
    }
}

impl NetworkFunction for FirewallStage {
    type Decision = Decided;

    fn reads(&self) -> Reads {
        self.reads
    }

    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.reads.agree(cx.pool, first, other)
    }

    fn decide(&mut self, scene: &mut Scene<'_, '_>, first: &Frame) -> Decided {
        self.passed.clear();
        let default = self.hits.len() - 1;
        let Some(key) = key_of(scene.cx, first) else {
            self.unclassified += 1;
            let fate = if self.allow_other { Fate::Allow } else { Fate::Deny };
            return Decided { fate, rule: usize::MAX, key: None };
        };
        let length = scene.cx.pool.meta(first.buf).original_len;
        let packet = PacketFields::new(&first.headers(key), length);
        let found = self.first_rule(&key, &packet);
        let passed = &mut self.passed;
        let decision = self.firewall.decide_from(found, &packet, |rule, action| {
            if !matches!(action, Action::Skip { .. }) {
                passed.push(rule);
            }
        });
        let rule = decision.rule.map_or(default, |r| r as usize);
        Decided { fate: decision.verdict, rule, key: Some(key) }
    }

    fn apply(
        &mut self,
        scene: &mut Scene<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        let (packets, bytes) = (frames.len() as u64, frames.iter().map(|f| u64::from(f.len)).sum());
        self.hit(decided.rule, packets, bytes);
        if !self.passed.is_empty() {
            self.count_passed(decided, packets, bytes, scene.cx.now);
        }
        if decided.fate != Fate::Allow {
            verdicts.fill(Verdict::port(1));
        }
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        visit("not_ip", self.unclassified);
        visit("by_default", self.hits.last().map_or(0, |h| h.packets));
        if self.cache.is_some() {
            visit("cache_hits", self.cached);
        }
        visit("logged", self.logged_packets);
    }

    fn report(&self) -> Option<serde_json::Value> {
        let rules = self.firewall.rules();
        let hits = rules.rules().iter().zip(&self.hits).enumerate().filter(|(_, (_, h))| h.packets > 0);
        let hits: Vec<_> = hits
            .map(|(i, (rule, h))| json!({ "rule": i, "line": rule.line, "packets": h.packets, "bytes": h.bytes }))
            .collect();
        let line = |rule: u32| rules.rules().get(rule as usize).map(|r| r.line);
        let logged: Vec<_> = self
            .logged
            .iter()
            .map(|l| json!({ "line": line(l.rule), "time": l.time.to_string(), "flow": l.key.to_string() }))
            .collect();
        Some(json!({
            "rules": rules.rules().len(),
            "memory_bytes": self.firewall.memory(),
            "hits": hits,
            "logged": logged,
        }))
    }
}
