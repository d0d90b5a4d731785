//! Live reports of a run: whoever wants to know asks, and the data path answers when it comes by, between two
//! batches. While nobody asks, nothing is done: counters stay where they are.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use super::report::{Draft, RunReport};
use super::shards::merged;

/// An answer of the data path: a draft, until somebody takes the time to make a report of it.
#[derive(Debug)]
struct Answer {
    draft: Option<Draft>,
    made: Option<Arc<RunReport>>,
}

impl Answer {
    fn made(&mut self) -> Option<Arc<RunReport>> {
        if let Some(draft) = self.draft.take() {
            self.made = Some(Arc::new(draft.made()));
        }
        self.made.clone()
    }
}

/// The data path never waits for the lock of an answer.
type SharedAnswer = Arc<Mutex<Answer>>;

#[derive(Debug, Default)]
struct Shown {
    answer: Option<SharedAnswer>,
    /// Answers before it, which those who ask let go: that takes time where stages tell much.
    old: Vec<SharedAnswer>,
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
        self.asked(patience).0
    }

    /// As [`ask`](Self::ask), but none where the run, or a shard of it, doesn't answer in time.
    #[must_use]
    pub fn ask_anew(&self, patience: Duration) -> Option<Arc<RunReport>> {
        let (report, is_new) = self.asked(patience);
        report.filter(|_| is_new)
    }

    /// The last report, and whether it was made after this call.
    fn asked(&self, patience: Duration) -> (Option<Arc<RunReport>>, bool) {
        let Some(parts) = self.0.parts.get() else {
            let (answer, is_new) = self.wait(self.want(), patience);
            return (answer.as_ref().and_then(made), is_new);
        };
        // All are asked before any is waited for.
        let before: Vec<u64> = parts.iter().map(Self::want).collect();
        let mut all_new = true;
        let mut answer = |(part, before): (&Self, u64)| {
            let (answer, is_new) = part.wait(before, patience);
            all_new &= is_new;
            answer
        };
        // The time for the reports of some is none that others have to answer.
        let answers: Option<Vec<_>> = parts.iter().zip(before).map(&mut answer).collect();
        let made = |answer: &SharedAnswer| Some(RunReport::clone(&*made(answer)?));
        let reports: Option<Vec<_>> = answers.and_then(|all| all.iter().map(made).collect());
        (reports.map(|all| Arc::new(merged(all))), all_new)
    }

    /// Asks; returns how many answers there were before.
    fn want(&self) -> u64 {
        let shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        self.0.wanted.store(true, Ordering::Release);
        shown.times
    }

    /// Waits for one more answer than there were before. The last one, and whether it is that.
    fn wait(&self, before: u64, patience: Duration) -> (Option<SharedAnswer>, bool) {
        let shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = |shown: &mut Shown| shown.times == before;
        let waited = self.0.changed.wait_timeout_while(shown, patience, is_old);
        let mut shown = waited.unwrap_or_else(PoisonError::into_inner).0;
        let old = std::mem::take(&mut shown.old);
        let answer = (shown.answer.clone(), shown.times != before);
        drop(shown);
        drop(old);
        answer
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
    pub(super) fn show(&self, draft: Draft) {
        self.0.wanted.store(false, Ordering::Relaxed);
        let answer = Arc::new(Mutex::new(Answer { draft: Some(draft), made: None }));
        let mut shown = self.0.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let before = shown.answer.replace(answer);
        shown.old.extend(before);
        shown.times += 1;
        self.0.changed.notify_all();
    }
}

/// The report of an answer. Others who want it meanwhile wait until it is made.
fn made(answer: &SharedAnswer) -> Option<Arc<RunReport>> {
    answer.lock().unwrap_or_else(PoisonError::into_inner).made()
}

#[cfg(test)]
mod tests {
    use slipstream_core::stage::{DraftReport, Drops};

    use super::super::graph::{StageReport, Tally};
    use super::*;

    fn report(packets: u64) -> Draft {
        let report = RunReport {
            sources: Vec::new(),
            stages: Vec::new(),
            elapsed_ns: packets,
            cpu_ns: 0,
            live: 0,
            service_time: None,
            poll_log: None,
            contexts: None,
            interrupted: false,
            shards: Vec::new(),
        };
        Draft { report, drafts: Vec::new() }
    }

    #[test]
    fn who_asks_gets_a_fresh_answer_or_the_last_one() {
        let monitor = Monitor::default();
        assert!(monitor.ask(Duration::ZERO).is_none(), "nobody has answered yet");
        assert!(monitor.wanted());
        monitor.show(report(1));
        assert!(!monitor.wanted());
        assert_eq!(monitor.ask(Duration::ZERO).unwrap().elapsed_ns, 1, "the last answer");
        assert!(monitor.ask_anew(Duration::ZERO).is_none(), "there is no new one");
        monitor.show(report(1));
        let asked = monitor.clone();
        let asker = std::thread::spawn(move || asked.ask(Duration::from_secs(60)).unwrap().elapsed_ns);
        while !monitor.wanted() {
            std::thread::yield_now();
        }
        monitor.show(report(2));
        assert_eq!(asker.join().unwrap(), 2);
    }

    /// The JSON of stages is made once, and let go again, by those who ask: the data path does neither, in
    /// `show`.
    #[test]
    fn reports_are_made_and_dropped_by_those_who_ask() {
        struct Note(Arc<Mutex<Vec<&'static str>>>);
        impl Drop for Note {
            fn drop(&mut self) {
                self.0.lock().unwrap().push("dropped");
            }
        }
        let (monitor, notes) = (Monitor::default(), Arc::new(Mutex::new(Vec::new())));
        let drafts = || {
            let (made, note) = (Arc::clone(&notes), Note(Arc::clone(&notes)));
            let draft: DraftReport = Box::new(move || {
                let _note = note;
                made.lock().unwrap().push("made");
                None
            });
            Draft { drafts: vec![draft], ..report(1) }
        };
        let so_far = || std::mem::take(&mut *notes.lock().unwrap());
        let stage = StageReport {
            name: "fw".to_owned(),
            kind: "firewall",
            tally: Tally::default(),
            counters: Vec::new(),
            drops: Drops::default(),
            held: 0,
            trouble: None,
            report: None,
            reframe: None,
            excess: None,
            transit: None,
        };
        let answer = |mut draft: Draft| {
            draft.report.stages.push(stage.clone());
            monitor.show(draft);
        };
        answer(drafts());
        assert!(so_far().is_empty(), "nobody has asked for it");
        assert!(monitor.ask(Duration::ZERO).is_some() && monitor.ask(Duration::ZERO).is_some());
        assert_eq!(so_far(), ["made", "dropped"]);
        answer(drafts());
        answer(drafts());
        assert!(so_far().is_empty(), "the data path waits for what it need not");
        assert!(monitor.ask(Duration::ZERO).is_some());
        assert_eq!(so_far(), ["dropped", "made", "dropped"], "the one that nobody saw, and the last one");
    }

    /// Of two shards one may hang: what the other says is no answer of the run.
    #[test]
    fn a_run_answers_when_all_its_shards_do() {
        let (all, parts) = (Monitor::default(), [Monitor::default(), Monitor::default()]);
        all.made_of(parts.to_vec());
        parts.iter().for_each(|part| part.show(report(1)));
        let ask = |answering: &[Monitor]| {
            std::thread::scope(|scope| {
                let asker = scope.spawn(|| all.ask_anew(Duration::from_millis(300)).is_some());
                while !parts.iter().all(Monitor::wanted) {
                    std::thread::yield_now();
                }
                answering.iter().for_each(|part| part.show(report(2)));
                asker.join().unwrap()
            })
        };
        assert!(ask(&parts));
        assert!(!ask(&parts[..1]));
        parts.iter().for_each(|part| part.show(report(3)));
        assert!(!ask(&parts[1..]));
        assert!(all.ask(Duration::ZERO).is_some());
    }
}
