//! Live reports of a run: whoever wants to know asks, and the data path answers when it comes by, between two
//! batches. While nobody asks, nothing is done: counters stay where they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::report::RunReport;
use super::shards::merged;

#[derive(Debug, Default)]
struct Shown {
    report: Option<Arc<RunReport>>,
    times: u64,
}

#[derive(Debug, Default)]
struct Shared {
    wanted: AtomicBool,
    shown: Mutex<Shown>,
    changed: Condvar,
    /// Of a run in shards: the monitors of these.
    parts: OnceLock<Vec<Monitor>>,
}

/// A monitor of a run, which the run and those that watch it share.
#[derive(Clone, Debug, Default)]
pub struct Monitor(Arc<Shared>);

impl Monitor {
    /// A report on the state of the run. Waits for it to answer, up to `patience`; then the answer is that of
    /// the last time, if there was one.
    #[must_use]
    pub fn ask(&self, patience: Duration) -> Option<Arc<RunReport>> {
        if let Some(parts) = self.0.parts.get() {
            // All are asked before any is waited for.
            parts.iter().for_each(|part| part.0.wanted.store(true, Ordering::Release));
            let reports: Option<Vec<_>> = parts.iter().map(|part| part.ask(patience)).collect();
            return reports
                .map(|all| Arc::new(merged(all.iter().map(|one| RunReport::clone(one)).collect())));
        }
        let shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown.times;
        self.0.wanted.store(true, Ordering::Release);
        let old = |shown: &mut Shown| shown.times == before;
        let waited = self.0.changed.wait_timeout_while(shown, patience, old);
        waited.unwrap_or_else(PoisonError::into_inner).0.report.clone()
    }

    /// Reports are those of these parts together.
    pub(super) fn made_of(&self, parts: Vec<Self>) {
        let _ = self.0.parts.set(parts);
    }

    /// Returns true if somebody has asked since the last answer.
    #[inline]
    pub(super) fn wanted(&self) -> bool {
        self.0.wanted.load(Ordering::Relaxed)
    }

    /// Answers.
    pub(super) fn show(&self, report: RunReport) {
        self.0.wanted.store(false, Ordering::Relaxed);
        let mut shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        shown.report = Some(Arc::new(report));
        shown.times += 1;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(packets: u64) -> RunReport {
        RunReport {
            sources: Vec::new(),
            stages: Vec::new(),
            elapsed_ns: packets,
            cpu_ns: 0,
            live: 0,
            service_time: None,
            contexts: None,
            interrupted: false,
            shards: Vec::new(),
        }
    }

    #[test]
    fn who_asks_gets_a_fresh_answer_or_the_last_one() {
        let monitor = Monitor::default();
        assert!(monitor.ask(Duration::ZERO).is_none(), "nobody has answered yet");
        assert!(monitor.wanted());
        monitor.show(report(1));
        assert!(!monitor.wanted());
        assert_eq!(monitor.ask(Duration::ZERO).unwrap().elapsed_ns, 1, "the last answer");
        monitor.show(report(1));
        let asked = monitor.clone();
        let asker = std::thread::spawn(move || asked.ask(Duration::from_secs(60)).unwrap().elapsed_ns);
        while !monitor.wanted() {
            std::thread::yield_now();
        }
        monitor.show(report(2));
        assert_eq!(asker.join().unwrap(), 2);
    }
}
