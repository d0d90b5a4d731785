//! The results of stages, for reports.

use slipstream_core::stage::{DraftReport, Drops};
use slipstream_reframe::ReframeStats;
use slipstream_stats::Histogram;

use super::{Node, Pipeline, Tally};
use crate::runtime::report::counter;

/// The results of a stage.
#[derive(Clone, Debug)]
pub struct StageReport {
    /// Its name.
    pub name: String,
    /// Its type.
    pub kind: &'static str,
    /// Counts of its packets, trains, batches and time.
    pub tally: Tally,
    /// Its own counters.
    pub counters: Vec<(&'static str, u64)>,
    /// Its drops, those at ports that lead nowhere included.
    pub drops: Drops,
    /// Packets that it holds.
    pub held: u64,
    /// The reason why it can't write now what it writes outside of the pipeline.
    pub trouble: Option<String>,
    /// Its own report, if it makes one.
    pub report: Option<serde_json::Value>,
    /// The figures of a reframe stage.
    pub reframe: Option<Box<ReframeStats>>,
    /// Of a stage at the end of a live pipeline: how much later than they were due packets left, in ns. Due
    /// is the end of the hold time, and the arrival for what is not held.
    pub excess: Option<Histogram>,
    /// Of the same: how long packets were on their way, in ns, from the time stamp that they came with to
    /// when they had left; only of those whose time stamp lies within the run, as those of interfaces and of
    /// `paced` do.
    pub transit: Option<Histogram>,
}

impl StageReport {
    /// One of its own counters by its name; none where it has no such counter.
    #[must_use]
    pub fn counter(&self, name: &str) -> Option<u64> {
        counter(&self.counters, name)
    }
}

impl Pipeline {
    /// The results of every stage.
    #[must_use]
    pub fn reports(&self) -> Vec<StageReport> {
        let made = |(report, draft): (StageReport, DraftReport)| StageReport { report: draft(), ..report };
        self.draft_reports().map(made).collect()
    }

    /// The results of every stage, but for its own report, which is still to be made.
    pub(in crate::runtime) fn draft_reports(&self) -> impl Iterator<Item = (StageReport, DraftReport)> {
        let report = |node: &Node| {
            let mut counters = Vec::new();
            node.stage.counters(&mut |name, n| counters.push((name, n)));
            let mut drops = node.stage.drops();
            drops.merge(&node.wiring.unconnected);
            let all = StageReport {
                name: node.name.clone(),
                kind: node.kind,
                tally: node.ledger.scaled(node.wiring.packets_out),
                counters,
                drops,
                held: node.stage.held(),
                trouble: node.stage.trouble(),
                report: None,
                reframe: node.stage.figures().and_then(|f| f.downcast().ok()),
                excess: node.ledger.excess.as_ref().map(|e| e.histogram().clone()),
                transit: node.ledger.excess.as_ref().map(|e| e.transit().clone()),
            };
            (all, node.stage.draft_report())
        };
        self.nodes.iter().map(report)
    }
}
