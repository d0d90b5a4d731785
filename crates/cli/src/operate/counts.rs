//! Counts of reloads, saved states and troubles of the log of sessions: an alert on a count is easier to have
//! than one on a line of the log.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Operation;

/// Reloads and saved states of a run since it began.
#[derive(Debug, Default)]
pub(super) struct Counts {
    reloads: AtomicU64,
    reloads_refused: AtomicU64,
    states_saved: AtomicU64,
    states_not_saved: AtomicU64,
}

fn one_more(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

impl Counts {
    /// Counts a reload: one that was done in part is refused.
    pub(super) fn reload(&self, done: bool) {
        one_more(if done { &self.reloads } else { &self.reloads_refused });
    }

    /// Counts an attempt to save the state while the pipeline runs.
    pub(super) fn save(&self, done: bool) {
        one_more(if done { &self.states_saved } else { &self.states_not_saved });
    }
}

impl Operation {
    /// Returns the counts of the run itself, by name. Figures of a state and of a log of sessions are there
    /// where the run has such a file.
    pub(crate) fn counts(&self) -> Vec<(&'static str, u64)> {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let c = &self.counts;
        let mut all = vec![("reloads", of(&c.reloads)), ("reloads_refused", of(&c.reloads_refused))];
        if self.state.is_some() {
            let (saved, not_saved) = (of(&c.states_saved), of(&c.states_not_saved));
            all.extend([("states_saved", saved), ("states_not_saved", not_saved)]);
        }
        if let Some(log) = &self.session_log {
            let (lost, errors) = log.trouble();
            all.extend([("session_events_lost", lost), ("session_log_errors", errors)]);
        }
        all
    }
}
