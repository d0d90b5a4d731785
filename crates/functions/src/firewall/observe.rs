//! Counters and the report of the firewall's stage.

use std::sync::Arc;

use serde_json::{Value, json};
use slipstream_core::stage::{DraftReport, Observe};

use super::{DecisionCache, FirewallStage};
use crate::conntrack::Class;

/// Rules without a hit that are told by their lines.
const MOST_WITHOUT_HITS: usize = 100;

impl Observe for FirewallStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        if let Some(files) = &self.files {
            visit("rule_reloads", files.reloads);
            visit("rule_reload_errors", files.errors);
        }
        visit("not_ip", self.unclassified);
        visit("hidden_protocol", self.hidden);
        visit("by_default", self.hits.last().map_or(0, |h| h.packets));
        if self.cache.is_some() {
            visit("cache_hits", self.cached);
        }
        visit("logged", self.logged_packets);
        visit("replies", self.answers);
        if let Some(conntrack) = &self.conntrack {
            let c = conntrack.counters();
            visit("connections", u64::from(conntrack.connections()));
            visit("connections_opened", c.opened);
            visit("connections_restored", c.restored);
            visit("connections_expired", c.expired);
            visit("connections_displaced", c.displaced.iter().sum());
            visit("connections_displaced_unanswered", c.displaced(Class::Unanswered));
            visit("connections_displaced_answered", c.displaced(Class::Answered));
            visit("connections_displaced_assured", c.displaced(Class::Assured));
            visit("connections_refused", c.refused);
            visit("long_probes", conntrack.long_probes());
        }
    }

    fn report(&self) -> Option<Value> {
        self.draft_report()()
    }

    /// There may be hundreds of thousands of rules, for whose JSON no packet waits.
    fn draft_report(&self) -> DraftReport {
        let (lines, hits) = (Arc::clone(&self.firewall.lines), self.hits.clone());
        let (logged, notes, memory) = (self.logged.clone(), self.notes(), self.firewall.memory());
        let error = self.files.as_ref().and_then(|files| files.last_error.clone());
        Box::new(move || {
            let met = lines.iter().zip(&hits).enumerate().filter(|(_, (_, h))| h.packets > 0);
            let met: Vec<_> = met
                .map(|(i, (line, h))| json!({ "rule": i, "line": line, "packets": h.packets, "bytes": h.bytes }))
                .collect();
            let unmet = lines.iter().zip(&hits).filter(|(_, h)| h.packets == 0);
            let without_hits: Vec<_> = unmet.clone().take(MOST_WITHOUT_HITS).map(|(line, _)| line).collect();
            let line = |rule: u32| lines.get(rule as usize);
            let logged: Vec<_> = logged
                .iter()
                .map(|l| json!({ "line": line(l.rule), "time": l.time.to_string(), "flow": l.key.to_string() }))
                .collect();
            let mut report = json!({
                "rules": lines.len(),
                "memory_bytes": memory,
                "hits": met,
                "rules_without_hits": unmet.count(),
                "lines_without_hits": without_hits,
                "logged": logged,
                "notes": notes,
            });
            if let (Some(error), Some(all)) = (error, report.as_object_mut()) {
                all.insert("rules_error".to_owned(), error.into());
            }
            Some(report)
        })
    }

    fn notes(&self) -> Vec<String> {
        let rules = self.firewall.rules();
        let obstacle = self.cache.as_ref().and_then(|_| DecisionCache::obstacle(rules.reads()));
        let cache = obstacle.map(|what| {
            format!("`cache` remembers nothing: rules read {what}, which differ between packets of a flow")
        });
        rules.notes().iter().map(ToString::to_string).chain(cache).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PerTrain;
    use crate::firewall::{Firewall, Method, RuleSet};

    /// A draft has all that its JSON takes: the stage may go on meanwhile.
    #[test]
    fn a_draft_is_of_its_time_and_needs_no_stage() {
        let rules = RuleSet::parse("deny tcp dst port 23\n\nallow udp\n").unwrap();
        let mut stage = FirewallStage::new(Firewall::new(rules, Method::Fast), 0, true, 1);
        stage.hits[1].packets = 3;
        let draft = stage.draft_report();
        stage.hits[1].packets = 4;
        let later = PerTrain::new(stage).draft_report();
        for (draft, packets) in [(draft, 3), (later, 4)] {
            let report = draft().unwrap();
            assert_eq!(report["hits"], json!([{ "rule": 1, "line": 3, "packets": packets, "bytes": 0 }]));
            assert_eq!((&report["rules"], &report["lines_without_hits"]), (&json!(2), &json!([1])));
        }
    }
}
