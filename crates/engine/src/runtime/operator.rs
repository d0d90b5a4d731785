//! Work for the stages of a run that is under way: whoever operates it hands in what is to be done at a
//! stage, and the data path does it between two batches, one piece a round. While nobody asks, that costs a
//! look at a flag.
//!
//! A run on several threads passes the work on to the section that has the stage. Where a pipeline runs
//! several times side by side (shards), each of them has stages of the same names, and is asked by its
//! number.

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slipstream_core::stage::Stage;
use slipstream_core::time::Nanos;

/// Something to do at a stage.
pub type Work = Box<dyn FnOnce(&mut dyn Stage, Nanos) + Send>;

/// Pieces of work that are done at one point in time, each at the stage of this name.
#[derive(Clone, Default)]
pub(super) struct Visits(Arc<Mutex<Vec<(String, Work)>>>);

impl fmt::Debug for Visits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(lock(&self.0).iter().map(|(stage, _)| stage)).finish()
    }
}

impl Visits {
    /// Takes the work out that is for a stage of one of these names.
    pub(super) fn take(&self, mut is_mine: impl FnMut(&str) -> bool) -> Vec<(String, Work)> {
        let mut all = lock(&self.0);
        let (mine, others) = all.drain(..).partition(|(stage, _)| is_mine(stage));
        *all = others;
        mine
    }

    /// Returns true if nothing is left to be done.
    pub(super) fn is_done(&self) -> bool {
        lock(&self.0).is_empty()
    }
}

/// Requests that a run has yet to answer.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    wanted: AtomicBool,
    visits: Mutex<VecDeque<Visits>>,
}

impl Inbox {
    /// Returns true if there is something to do.
    #[inline]
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::Relaxed)
    }

    /// The next thing to do.
    pub(super) fn next(&self) -> Option<Visits> {
        let mut visits = lock(&self.visits);
        let next = visits.pop_front();
        self.wanted.store(!visits.is_empty(), Ordering::Relaxed);
        next
    }
}

#[derive(Debug, Default)]
struct Shared {
    /// By the numbers of shards, in their order.
    runs: Mutex<Vec<(usize, Arc<Inbox>)>>,
    attention: AtomicUsize,
}

/// The operator of runs: a handle that those who ask and those who do share.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::thread;
/// use std::time::Duration;
///
/// use slipstream::pipeline::Plan;
/// use slipstream::runtime::{Driver, LiveOptions, Operator};
///
/// let plan = Plan::from_graph("paced(rate=1kpps) -> counter -> null", None, None, "".as_ref())?;
/// let operator = Operator::default();
/// let duration = Some(Duration::from_millis(300));
/// let options = LiveOptions { duration, operator: operator.clone(), ..LiveOptions::default() };
/// let mut driver = Driver::new(plan.build(plan.seeds(None))?).live(options);
/// let asked = thread::spawn(move || {
///     while operator.shards() == 0 {
///         thread::yield_now();
///     }
///     operator.visit(0, "counter", Duration::from_secs(5), |stage, _| stage.held())
/// });
/// driver.run(&mut |_| ControlFlow::Continue(()))?;
/// assert_eq!(asked.join().unwrap(), Some(0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Operator(Arc<Shared>);

/// While there is one, runs don't sleep for long: somebody is about to ask them one thing after another.
#[derive(Debug)]
pub struct Attention(Arc<Shared>);

impl Drop for Attention {
    fn drop(&mut self) {
        self.0.attention.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A run that takes work; not any longer when this goes.
#[derive(Debug)]
pub(super) struct Attached {
    shared: Arc<Shared>,
    inbox: Arc<Inbox>,
}

impl Attached {
    pub(super) fn inbox(&self) -> Arc<Inbox> {
        Arc::clone(&self.inbox)
    }
}

impl Drop for Attached {
    fn drop(&mut self) {
        lock(&self.shared.runs).retain(|(_, run)| !Arc::ptr_eq(run, &self.inbox));
        // A caller that waits for an answer is to hear that there will be none.
        lock(&self.inbox.visits).clear();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operator {
    /// Runs that are under way.
    #[must_use]
    pub fn shards(&self) -> usize {
        lock(&self.0.runs).len()
    }

    /// Has runs answer quickly for as long as the result is kept, at the price of waking up every
    /// millisecond.
    #[must_use]
    pub fn attention(&self) -> Attention {
        self.0.attention.fetch_add(1, Ordering::Relaxed);
        Attention(Arc::clone(&self.0))
    }

    /// Has `work` done at the stage `stage` of a run, by its number, and gives its result; none where there
    /// is no such run or stage, or the run didn't begin with it within `patience`: then it never does. Work
    /// that has begun by then is waited for.
    pub fn visit<T: Send + 'static>(
        &self,
        shard: usize,
        stage: &str,
        patience: Duration,
        work: impl FnOnce(&mut dyn Stage, Nanos) -> T + Send + 'static,
    ) -> Option<T> {
        let (sender, receiver) = channel();
        let offered = Arc::new(Mutex::new(Some(work)));
        let taken = Arc::clone(&offered);
        let work: Work = Box::new(move |stage, now| {
            let work = lock(&taken).take();
            if let Some(work) = work {
                let _ = sender.send(work(stage, now));
            }
        });
        self.post(shard, vec![(stage.to_owned(), work)]);
        match receiver.recv_timeout(patience) {
            Ok(result) => Some(result),
            Err(_) if lock(&offered).take().is_some() => None,
            Err(_) => receiver.recv().ok(),
        }
    }

    /// Has all of this done at one point in time, between two packets. Doesn't wait for it.
    pub fn post(&self, shard: usize, work: Vec<(String, Work)>) {
        // A run that ends meanwhile, which takes its inbox out first and then lets go what is in it, finds
        // this there: whoever waits for it hears so.
        let runs = lock(&self.0.runs);
        let Some((_, inbox)) = runs.iter().find(|(number, _)| *number == shard) else { return };
        lock(&inbox.visits).push_back(Visits(Arc::new(Mutex::new(work))));
        inbox.wanted.store(true, Ordering::Release);
    }

    /// Returns true if somebody wants quick answers.
    #[inline]
    pub(super) fn has_attention(&self) -> bool {
        self.0.attention.load(Ordering::Relaxed) > 0
    }

    /// The run of a shard begins.
    pub(super) fn attach(&self, shard: usize) -> Attached {
        let inbox = Arc::<Inbox>::default();
        lock(&self.0.runs).push((shard, Arc::clone(&inbox)));
        Attached { shared: Arc::clone(&self.0), inbox }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream_core::stage::Placeholder;

    #[test]
    fn work_is_done_in_order_and_whoever_asks_a_run_that_ended_hears_so() {
        let operator = Operator::default();
        assert_eq!(operator.visit(0, "a", Duration::from_secs(60), |_, _| 1), None, "there is no run");
        let run = operator.attach(0);
        let inbox = run.inbox();
        assert!(!inbox.is_wanted());
        let asked = operator.clone();
        let asker = std::thread::spawn(move || {
            let first = asked.visit(0, "a", Duration::from_secs(60), |_, now| now.0);
            let second = asked.visit(0, "b", Duration::from_secs(60), |_, now| now.0);
            let third = asked.visit(0, "a", Duration::from_secs(60), |_, now| now.0);
            (first, second, third)
        });
        for now in [7, 8] {
            while !inbox.is_wanted() {
                std::thread::yield_now();
            }
            let visits = inbox.next().unwrap();
            for (_, work) in visits.take(|stage| stage == "a") {
                work(&mut Placeholder, Nanos(now));
            }
            assert_eq!(visits.is_done(), now == 7, "there is no stage `b`");
        }
        while !inbox.is_wanted() {
            std::thread::yield_now();
        }
        drop(run);
        assert_eq!(asker.join().unwrap(), (Some(7), None, None));
        assert_eq!(operator.shards(), 0);
    }

    /// Whoever has given up is not surprised later by what was not done.
    #[test]
    fn work_that_nobody_waits_for_any_longer_is_not_done() {
        let operator = Operator::default();
        let run = operator.attach(0);
        let done = Arc::new(AtomicBool::new(false));
        let sets = Arc::clone(&done);
        let set = move |_: &mut dyn Stage, _| sets.store(true, Ordering::Relaxed);
        assert_eq!(operator.visit(0, "a", Duration::from_millis(1), set), None);
        assert!(do_next(&run.inbox()));
        assert!(!done.load(Ordering::Relaxed), "it is done after all");
    }

    #[test]
    fn work_that_has_begun_is_waited_for() {
        let operator = Operator::default();
        let run = operator.attach(0);
        let inbox = run.inbox();
        let asked = operator.clone();
        let (begins, begun) = channel();
        let (go_on, goes_on) = channel::<()>();
        let work = move |_: &mut dyn Stage, _| {
            begins.send(()).unwrap();
            goes_on.recv().unwrap();
            7
        };
        let asker = std::thread::spawn(move || asked.visit(0, "a", Duration::from_millis(100), work));
        let does = std::thread::spawn(move || while !do_next(&inbox) {});
        begun.recv().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        assert!(!asker.is_finished(), "it gave up what was under way");
        go_on.send(()).unwrap();
        assert_eq!(asker.join().unwrap(), Some(7));
        does.join().unwrap();
    }

    /// Does the next piece of work at a stage `a`; false where there is none.
    fn do_next(inbox: &Inbox) -> bool {
        let next = inbox.next();
        let works = next.iter().flat_map(|visits| visits.take(|name| name == "a"));
        works.map(|(_, work)| work(&mut Placeholder, Nanos(0))).count() > 0
    }
}
