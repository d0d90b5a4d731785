//! Counters and the report of the firewall's stage.

use serde_json::json;
use slipstream_core::stage::Observe;

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

    fn report(&self) -> Option<serde_json::Value> {
        let rules = self.firewall.rules();
        let hits = rules.rules().iter().zip(&self.hits).enumerate().filter(|(_, (_, h))| h.packets > 0);
        let hits: Vec<_> = hits
            .map(|(i, (rule, h))| json!({ "rule": i, "line": rule.line, "packets": h.packets, "bytes": h.bytes }))
            .collect();
        let unmet = rules.rules().iter().zip(&self.hits).filter(|(_, h)| h.packets == 0);
        let without_hits: Vec<_> = unmet.clone().take(MOST_WITHOUT_HITS).map(|(rule, _)| rule.line).collect();
        let line = |rule: u32| rules.rules().get(rule as usize).map(|r| r.line);
        let logged: Vec<_> = self
            .logged
            .iter()
            .map(|l| json!({ "line": line(l.rule), "time": l.time.to_string(), "flow": l.key.to_string() }))
            .collect();
        let mut report = json!({
            "rules": rules.rules().len(),
            "memory_bytes": self.firewall.memory(),
            "hits": hits,
            "rules_without_hits": unmet.count(),
            "lines_without_hits": without_hits,
            "logged": logged,
            "notes": self.notes(),
        });
        if let (Some(error), Some(all)) =
            (self.files.as_ref().and_then(|files| files.last_error.as_deref()), report.as_object_mut())
        {
            all.insert("rules_error".to_owned(), error.into());
        }
        Some(report)
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
