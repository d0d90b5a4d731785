//! Another configuration for a pipeline that runs: read, compared, made ready, and handed to the stages
//! between two packets; or refused whole.

use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use anyhow::anyhow;
use slipstream::operate::{Apart, Operate, Update};
use slipstream::pipeline::Plan;
use slipstream::runtime::Work;
use tracing::{info, warn};

use super::Operation;
use crate::log::LIVE;

/// Longest wait for the data path to take what is new.
const PATIENCE: Duration = Duration::from_secs(10);
/// The pause between two looks whether a reload is over.
const AGAIN: Duration = Duration::from_millis(10);
/// The reason for which a reload is refused where it doesn't.
const NOT_TAKEN: &str = "the data path did not take the new settings";

/// A reload that was done.
#[derive(Debug)]
pub(crate) struct Reloaded {
    /// Settings that have changed, as STAGE.SETTING.
    pub(crate) changes: Vec<String>,
    /// Stages that go by what was read.
    pub(crate) stages: Vec<String>,
    /// Stages that could not go by it and stay as they were, each with the reason.
    failed: Vec<(String, String)>,
}

impl Operation {
    /// Reads the configuration and all files that it names anew. Either all stages go by them from one point
    /// in time on, or none does; of several shards each has a point in time of its own, between two of its
    /// batches. What is not for the data path follows, as the program on an interface does.
    ///
    /// # Errors
    /// Everything that is wrong with them, or can't change while the pipeline runs, each with its line; or
    /// what did not follow, and stays as it was. Another reload tries that again.
    pub(crate) fn reload(&self) -> anyhow::Result<Reloaded> {
        let began = slipstream::clock::now();
        let reloaded = self.try_reload(PATIENCE);
        self.counts.reload(reloaded.as_ref().is_ok_and(|reloaded| reloaded.failed.is_empty()));
        match &reloaded {
            Ok(Reloaded { changes, stages, failed }) => {
                let (changes, stages) = (changes.join(" "), stages.join(" "));
                let ms = format!("{:.1}", began.elapsed().as_secs_f64() * 1e3);
                if !failed.is_empty() {
                    let why = in_part(failed);
                    warn!(target: LIVE, changes, stages, ms, "{why}");
                    return Err(anyhow!(why));
                }
                info!(target: LIVE, changes, stages, ms, "reloaded");
            }
            Err(why) => {
                let why = crate::ui::in_words(why);
                warn!(target: LIVE, "reload refused; nothing is read anew, and all goes on as it is: {why}");
            }
        }
        reloaded
    }

    /// As [`reload`](Self::reload), of a data path that has so long to answer.
    fn try_reload(&self, patience: Duration) -> anyhow::Result<Reloaded> {
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever asks for the plan meanwhile gets the one that counts: files may be read slowly.
        let plan = self.plan().clone();
        let mut new: Plan = (self.read)()?;
        let changes = plan.changes(&new)?;
        let shards = self.running_shards()?;
        let mut sharded = self.sharded();
        // All of it is made before any of it counts, for each shard by itself: a NAT's ports are parted.
        let (updates, ways) = match &sharded {
            None => (vec![new.updates(&changes)?], None),
            Some(sharded) => {
                let (next, last) = (new.in_shards(shards)?, plan.in_shards(shards)?);
                (sharded.updates(&next, &changes)?, Some((next, last)))
            }
        };
        let (updates, apart): (Vec<Updates>, Vec<Vec<(String, Apart)>>) =
            updates.into_iter().map(parted).unzip();
        let of_shard = |updates: &Updates| updates.iter().map(|(name, _)| name.clone()).collect();
        let stages: Vec<Vec<String>> = updates.iter().map(of_shard).collect();
        let names = |apart: &Vec<(String, Apart)>| apart.iter().map(|(name, _)| name.clone()).collect();
        let others: Vec<Vec<String>> = apart.iter().map(names).collect();
        // All shards have the same.
        let mut all: Vec<String> = stages.iter().chain(&others).step_by(shards).flatten().cloned().collect();
        let _attention = self.operator.attention();
        // A shard or section that doesn't answer is found before another one has taken its settings.
        if !self.all_answer(&stages, patience) {
            return Err(anyhow!(NOT_TAKEN));
        }
        let (next, last) = ways.unzip();
        if let (Some(sharded), Some(next)) = (&mut sharded, next) {
            // Packets for addresses that a NAT is about to have are led to it.
            sharded.follow(next);
        }
        match self.hand_over(updates, patience) {
            Taken::All => {}
            Taken::Some => warn!(
                target: LIVE,
                "some stages have yet to take what was reloaded, and do so as soon as they answer"
            ),
            Taken::None => {
                if let (Some(sharded), Some(last)) = (&mut sharded, last) {
                    sharded.follow(last);
                }
                return Err(anyhow!(NOT_TAKEN));
            }
        }
        self.take_back(&stages, patience);
        let mut failed: Vec<(String, String)> = Vec::new();
        for (stage, Apart(work)) in apart.into_iter().flatten() {
            if let Err(why) = work()
                && !failed.iter().any(|(known, _)| *known == stage)
            {
                failed.push((stage, why));
            }
        }
        let went = |stage: &String| !failed.iter().any(|(failed, _)| failed == stage);
        all.retain(went);
        let changes = changes.iter().filter(|c| went(&c.stage));
        let changes = changes.map(|c| format!("{}.{}", c.stage, c.setting)).collect();
        // The next reload finds that these still go by what they went by.
        for stage in new.stages.iter_mut().filter(|stage| !went(&stage.name)) {
            if let Some(old) = plan.stages.iter().find(|old| old.name == stage.name) {
                stage.settings.clone_from(&old.settings);
            }
        }
        *self.plan() = new;
        Ok(Reloaded { changes, stages: all, failed })
    }

    /// Keeps reloads away as long as the result is kept; none where one is under way for longer than this.
    pub(super) fn alone(&self, patience: Duration) -> Option<MutexGuard<'_, ()>> {
        let until = slipstream::clock::now() + patience;
        loop {
            match self.reloading.try_lock() {
                Ok(alone) => return Some(alone),
                Err(TryLockError::Poisoned(alone)) => return Some(alone.into_inner()),
                Err(TryLockError::WouldBlock) if slipstream::clock::now() >= until => return None,
                Err(TryLockError::WouldBlock) => std::thread::sleep(AGAIN),
            }
        }
    }

    /// Returns true if all of these stages, which are those of the shards in turn, answer in time.
    fn all_answer(&self, stages: &[Vec<String>], patience: Duration) -> bool {
        let (sender, receiver) = channel();
        for (shard, stages) in stages.iter().enumerate() {
            let work = stages.iter().map(|name| {
                let sender = sender.clone();
                let work: Work = Box::new(move |_, _| {
                    let _ = sender.send(());
                });
                (name.clone(), work)
            });
            self.operator.post(shard, work.collect());
        }
        drop(sender);
        all_come(&receiver, stages.iter().map(Vec::len).sum(), patience)
    }

    /// Frees here, and not on the data path, what these stages found to need no longer after they had taken
    /// their settings. What they find later, they give back with the next settings.
    fn take_back(&self, stages: &[Vec<String>], patience: Duration) {
        let (sender, receiver) = channel();
        for (shard, stages) in stages.iter().enumerate() {
            let work = stages.iter().map(|name| {
                let sender = sender.clone();
                let work: Work = Box::new(move |stage, _| {
                    let _ = sender.send(stage.operate().and_then(Operate::given_up));
                });
                (name.clone(), work)
            });
            self.operator.post(shard, work.collect());
        }
        drop(sender);
        all_come(&receiver, stages.iter().map(Vec::len).sum(), patience);
    }

    /// Hands each shard its updates.
    pub(super) fn hand_over(&self, updates: Vec<Updates>, patience: Duration) -> Taken {
        let (sender, receiver) = channel();
        let (offer, mut expected) = (Offer::default(), 0);
        for (shard, updates) in updates.into_iter().enumerate() {
            let work = updates.into_iter().map(|(name, update)| {
                let (sender, update) = (sender.clone(), offer.add(update));
                let work: Work = Box::new(move |stage, now| {
                    let Some(update) = update() else { return };
                    let old = stage.operate().map(|stage| stage.update(update, now));
                    // The thread that reloads frees what is given up.
                    let _ = sender.send(old);
                });
                (name, work)
            });
            let work: Vec<_> = work.collect();
            expected += work.len();
            self.operator.post(shard, work);
        }
        drop(sender);
        if all_come(&receiver, expected, patience) { Taken::All } else { offer.withdraw() }
    }
}

/// Says of a reload which stages stay as they were, and why.
fn in_part(failed: &[(String, String)]) -> String {
    let each: Vec<_> =
        failed.iter().map(|(stage, why)| format!("`{stage}` stays as it was: {why}")).collect();
    format!("reloaded in part; another reload tries the rest again: {}", each.join("; "))
}

/// The stages that took their updates in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// All of them.
    All,
    /// Some; the others do as soon as they answer.
    Some,
    /// None, and none ever does.
    None,
}

/// The updates of a shard, each with the name of its stage.
pub(super) type Updates = Vec<(String, Update)>;

/// Parts what is for stages on the data path from what isn't.
fn parted(updates: Updates) -> (Updates, Vec<(String, Apart)>) {
    let (mut of_stages, mut apart) = (Updates::new(), Vec::new());
    for (stage, update) in updates {
        match update.downcast::<Apart>() {
            Ok(work) => apart.push((stage, *work)),
            Err(update) => of_stages.push((stage, update)),
        }
    }
    (of_stages, apart)
}

/// Waits for so many; false if they don't come in time.
fn all_come<T>(receiver: &Receiver<T>, count: usize, patience: Duration) -> bool {
    let until = slipstream::clock::now() + patience;
    let left = || until.saturating_duration_since(slipstream::clock::now());
    (0..count).all(|_| receiver.recv_timeout(left()).is_ok())
}

/// Updates that stages may take: all of them do, or none does.
#[derive(Clone, Default)]
struct Offer(Arc<Mutex<Offered>>);

#[derive(Default)]
struct Offered {
    updates: Vec<Option<Update>>,
    /// A stage has taken one.
    begun: bool,
}

impl Offer {
    fn lock(&self) -> MutexGuard<'_, Offered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds one. The result takes it, unless all were withdrawn.
    fn add(&self, update: Update) -> impl FnOnce() -> Option<Update> + Send + use<> {
        let mut offered = self.lock();
        let (offer, at) = (self.clone(), offered.updates.len());
        offered.updates.push(Some(update));
        move || {
            let mut offered = offer.lock();
            let update = offered.updates.get_mut(at)?.take();
            offered.begun |= update.is_some();
            update
        }
    }

    /// Withdraws all, unless one was taken already: then the others will be.
    fn withdraw(&self) -> Taken {
        let mut offered = self.lock();
        if !offered.begun {
            offered.updates.clear();
            return Taken::None;
        }
        if offered.updates.iter().all(Option::is_none) { Taken::All } else { Taken::Some }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::ops::ControlFlow;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::thread;

    use slipstream::runtime::{Driver, LiveOptions};

    use super::*;
    use crate::types;

    /// Runs a pipeline on a thread of its own, until what is returned is called.
    fn started(mut driver: Driver) -> impl FnOnce() {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let run = thread::spawn(move || {
            driver.run(&mut |_| match stopped.load(Ordering::Relaxed) {
                true => ControlFlow::Break(()),
                false => ControlFlow::Continue(()),
            })
        });
        move || {
            stop.store(true, Ordering::Relaxed);
            run.join().unwrap().unwrap();
        }
    }

    /// Settings that nobody takes while the data path waits for a reader aren't taken when it goes on.
    #[test]
    fn what_was_refused_is_not_taken_later() {
        let scratch = tempfile::tempdir().unwrap();
        let [fifo, rules] = ["fifo", "rules"].map(|name| scratch.path().join(name));
        assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        fs::write(&rules, "allow any\n").unwrap();
        let graph =
            "paced(rate=50kpps, traffic=\"flows=4\") -> fw :: firewall(rules=rules) -> pcap(path=fifo)";
        let folder = scratch.path().to_owned();
        let read = move || Ok(Plan::from_graph(graph, None, None, &folder)?);
        let plan: Plan = read().unwrap();
        let operation = Arc::new(Operation::new(&plan, read, |_| serde_json::Value::Null));
        let (go_on, goes_on) = channel::<()>();
        let reader = thread::spawn(move || {
            let mut pipe = File::open(&fifo).unwrap();
            let _ = goes_on.recv();
            std::io::copy(&mut pipe, &mut std::io::sink()).unwrap()
        });
        let options = LiveOptions { operator: operation.operator.clone(), ..LiveOptions::default() };
        let driver = types::driver(plan.build(plan.seeds(None)).unwrap());
        let driver = driver.live(options).monitor(operation.monitor.clone());
        let end = started(driver);
        let long = Duration::from_secs(30);
        // It answers until the pipe is full.
        let answers = || operation.operator.visit(0, "fw", Duration::from_millis(300), |_, _| ()).is_some();
        let since = slipstream::clock::now();
        while operation.operator.shards() == 0 || answers() {
            assert!(since.elapsed() < long, "the pipe takes everything");
        }
        fs::write(&rules, "deny any\n").unwrap();
        let updates = || vec![operation.plan().updates(&[]).unwrap()];
        assert_eq!(operation.hand_over(updates(), Duration::from_millis(100)), Taken::None);
        let why = operation.try_reload(Duration::from_millis(100)).unwrap_err().to_string();
        assert_eq!(why, NOT_TAKEN);
        go_on.send(()).unwrap();
        let denied = || {
            operation.operator.visit(0, "fw", long, |_, _| ()).unwrap();
            thread::sleep(Duration::from_millis(200));
            let report = operation.monitor.ask(long).unwrap();
            report.stages.iter().find(|stage| stage.name == "fw").unwrap().drops.total() > 0
        };
        assert!(!denied(), "it goes by what was refused");
        assert_eq!(operation.try_reload(long).unwrap().stages, ["fw"]);
        assert!(denied());
        end();
        drop(go_on);
        assert!(reader.join().unwrap() > 0);
    }

    /// Times that a stage was to go by a new setting beside the data path; the first time it can't.
    static TRIES: AtomicUsize = AtomicUsize::new(0);

    /// A change that can't be made beside the data path is told as an error, and the next reload of the same
    /// text tries it again.
    #[test]
    fn what_did_not_follow_is_told_and_tried_again() {
        let counter = slipstream::pipeline::stage_type("counter").unwrap();
        let reload = slipstream::operate::Reloading {
            settings: &["rules"],
            ports: slipstream::operate::Reloading::NO_PORTS,
            reads_files: |_| false,
            make: |_, _| {
                let work = || match TRIES.fetch_add(1, Ordering::Relaxed) {
                    0 => Err("there is no interface".to_owned()),
                    _ => Ok(()),
                };
                Ok(Box::new(Apart(Box::new(work))))
            },
        };
        let properties = slipstream::pipeline::Properties { reload: Some(reload), ..counter.properties };
        let mut registry = slipstream::pipeline::built_in();
        registry
            .register(slipstream::pipeline::StageType { name: "beside", properties, ..*counter })
            .unwrap();
        let rules = Arc::new(Mutex::new("tcp"));
        let text = rules.clone();
        let read = move || {
            let rules = text.lock().unwrap();
            let graph = format!("paced(rate=1kpps) -> b :: beside(rules=\"{rules}\") -> null");
            Ok(Plan::from_graph_with(&registry, &graph, None, None, "".as_ref())?)
        };
        let plan: Plan = read().unwrap();
        let operation = Arc::new(Operation::new(&plan, read, |_| serde_json::Value::Null));
        let options = LiveOptions { operator: operation.operator.clone(), ..LiveOptions::default() };
        let driver = types::driver(plan.build(plan.seeds(None)).unwrap()).live(options);
        let end = started(driver);
        while operation.operator.shards() == 0 {
            thread::sleep(AGAIN);
        }
        *rules.lock().unwrap() = "udp";
        let answer = super::super::control::answer(&operation, br#"{"do": "reload"}"#);
        assert!(answer.contains(r#""ok":false"#), "{answer}");
        assert!(answer.contains("`b` stays as it was: there is no interface"), "{answer}");
        let reloaded = operation.reload().unwrap();
        assert_eq!((reloaded.changes, reloaded.stages), (vec!["b.rules".to_owned()], vec!["b".to_owned()]));
        assert!(operation.reload().unwrap().changes.is_empty());
        assert_eq!(TRIES.load(Ordering::Relaxed), 2);
        end();
    }

    /// The last stage follows the first.
    #[test]
    fn an_offer_is_taken_whole_or_not_at_all() {
        let update = || -> Update { Box::new(7) };
        let offer = Offer::default();
        let (first, last) = (offer.add(update()), offer.add(update()));
        assert!(first().is_some());
        assert_eq!(offer.withdraw(), Taken::Some);
        assert!(last().is_some());
        assert_eq!(offer.withdraw(), Taken::All);
        let offer = Offer::default();
        let (first, last) = (offer.add(update()), offer.add(update()));
        assert_eq!(offer.withdraw(), Taken::None);
        assert!(first().is_none() && last().is_none());
    }
}
