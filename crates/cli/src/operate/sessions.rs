//! A NAT's sessions and a firewall's denials in a live run: sessions go to their
//! [log](super::session_log), denials to that of the run.
//!
//! A thread of its own takes what happened from the stages, five times a second.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use slipstream::clock::LiveClock;
use slipstream::operate::{Denial, Events};
use slipstream::pipeline::{EventKind, Plan};
use slipstream::runtime::{Driver, Operator, Work};
use tracing::{info, warn};

use super::session_log::SessionLog;
use crate::log::{ASKED_FOR, LIVE};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(200);
/// Sessions that may begin or end between two looks; beyond that they are counted as missed.
const SESSIONS: usize = 1 << 15;
/// Places of a table that are saved, or whose sessions are ended, at a time when the run is over.
pub(super) const AT_ONCE: u32 = 4096;
/// Denials between two looks.
const DENIALS: usize = 64;
/// Denials that are told of between two looks.
const TOLD: usize = 2;
/// Longest wait for the data path at a look; what it has not answered by then is told when it does.
const PATIENCE: Duration = Duration::from_secs(1);

/// Packets that a stage of a shard denied and that no line has told of yet.
#[derive(Clone, Copy, Debug, Default)]
struct Untold {
    /// Those of denials that were left out of the sample.
    left_out: u64,
    /// Those behind the last denial that the stage noted.
    behind: u64,
}

impl Untold {
    /// The denials of a look that are told of, each with the packets since the one before.
    fn sample<'a>(&mut self, events: &'a Events) -> Vec<(&'a Denial, u64)> {
        let mut told = Vec::new();
        for denial in &events.denials {
            self.left_out += denial.packets;
            if told.len() < TOLD {
                told.push((denial, std::mem::take(&mut self.left_out)));
            }
        }
        self.behind = events.untold;
        told
    }
}

/// A look at a stage of a shard that the data path was asked for. It comes back in any case: with what
/// happened, or, where there is no such stage or the run has ended, without.
struct Asked {
    shard: usize,
    stage: String,
    events: Option<Events>,
    back: Sender<Answer>,
}

/// The answer of a stage of a shard.
type Answer = ((usize, String), Option<Events>);

impl Asked {
    fn come_back(mut self, events: Events) {
        self.events = Some(events);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let stage = std::mem::take(&mut self.stage);
        let _ = self.back.send(((self.shard, stage), self.events.take()));
    }
}

/// Stages and events that the thread looks for.
struct Look {
    operator: Operator,
    shards: usize,
    stages: Vec<String>,
    log: Option<SessionLog>,
    denied: bool,
    untold: BTreeMap<(usize, String), Untold>,
    answers: (Sender<Answer>, Receiver<Answer>),
    /// Stages of shards that were asked and have not answered yet.
    waits_for: BTreeSet<(usize, String)>,
}

impl Look {
    /// Memory for what happens until the next look.
    fn room(&self) -> Events {
        Events {
            sessions: Vec::with_capacity(if self.log.is_some() { SESSIONS } else { 0 }),
            denials: Vec::with_capacity(if self.denied { DENIALS } else { 0 }),
            ..Events::default()
        }
    }

    /// Looks at the stages of a pipeline that doesn't run yet, or any longer.
    fn look_at(&mut self, driver: &mut Driver) {
        for shard in 0..driver.shards() {
            for stage in self.stages.clone() {
                let mut events = self.room();
                if let Some(operated) = driver.operate_shard(shard, &stage) {
                    operated.events(&mut events);
                }
                self.tell(&stage, shard, &events);
            }
        }
    }

    /// Ends what stages of a pipeline that has ended remember, since it goes with them.
    fn end_all(&mut self, driver: &mut Driver) {
        let now = LiveClock::get().now();
        for shard in 0..driver.shards() {
            for stage in self.stages.clone() {
                let mut from = Some(0);
                while let Some(at) = from {
                    let mut events = self.room();
                    let Some(operated) = driver.operate_shard(shard, &stage) else { break };
                    from = operated.end_all(at, AT_ONCE, now);
                    operated.events(&mut events);
                    self.tell(&stage, shard, &events);
                }
            }
        }
    }

    /// Asks all stages, but for those that have yet to answer, and tells of what they say within a time.
    fn look(&mut self) {
        for shard in 0..self.shards {
            for stage in self.stages.clone() {
                if self.waits_for.insert((shard, stage.clone())) {
                    self.ask(shard, stage);
                }
            }
        }
        self.hear(PATIENCE);
    }

    fn ask(&self, shard: usize, stage: String) {
        let (mut room, back) = (self.room(), self.answers.0.clone());
        let asked = Asked { shard, stage: stage.clone(), events: None, back };
        let work: Work = Box::new(move |stage, _| {
            if let Some(stage) = stage.operate() {
                stage.events(&mut room);
                asked.come_back(room);
            }
        });
        self.operator.post(shard, vec![(stage, work)]);
    }

    /// Tells of what stages have answered, for so long as some have yet to, at most for `patience`.
    fn hear(&mut self, patience: Duration) {
        let until = slipstream::clock::now() + patience;
        while !self.waits_for.is_empty() {
            let left = until.saturating_duration_since(slipstream::clock::now());
            let Ok((of, events)) = self.answers.1.recv_timeout(left) else { return };
            self.waits_for.remove(&of);
            if let Some(events) = events {
                self.tell(&of.1, of.0, &events);
            }
        }
    }

    /// The number of a shard, where there are several.
    fn shown(&self, shard: usize) -> Option<usize> {
        (self.shards > 1).then_some(shard)
    }

    fn tell(&mut self, stage: &str, shard: usize, events: &Events) {
        let shown = self.shown(shard);
        if let Some(log) = &self.log {
            log.offer(shard, &events.sessions);
            if events.missed > 0 {
                log.missed(events.missed);
                warn!(target: LIVE, stage, shard = shown, events = events.missed, "sessions came faster than they could be logged");
            }
        }
        if !self.denied {
            return;
        }
        let untold = self.untold.entry((shard, stage.to_owned())).or_default();
        for (Denial { line, flow, .. }, packets) in untold.sample(events) {
            let rule = line.map_or("the default".to_owned(), |line| format!("line {line}"));
            info!(target: ASKED_FOR, stage, shard = shown, rule, %flow, packets, "denied");
        }
    }

    /// Tells of denied packets that no line has told of, since there will be no other.
    fn tell_rest(&self) {
        for ((shard, stage), Untold { left_out, behind }) in &self.untold {
            let packets = left_out + behind;
            if packets > 0 {
                info!(target: ASKED_FOR, stage, shard = self.shown(*shard), packets, "denied");
            }
        }
    }
}

/// The thread.
pub(crate) struct Sessions {
    over: Sender<()>,
    thread: JoinHandle<Look>,
}

impl Sessions {
    /// Logs the sessions of a plan's NATs, and denials of its firewalls, where that is wanted, from the first
    /// packet of the run that is about to begin; nothing is done where neither is.
    ///
    /// # Errors
    /// No thread is to be had.
    pub(crate) fn start(
        operator: Operator,
        driver: &mut Driver,
        plan: &Plan,
        log: Option<SessionLog>,
        denied: bool,
    ) -> std::io::Result<Option<Self>> {
        let shards = driver.shards();
        let wanted = |kind| match kind {
            EventKind::Sessions => log.is_some(),
            EventKind::Denials => denied,
        };
        let stages = plan.stages.iter().filter(|s| s.kind.properties.events.is_some_and(wanted));
        let stages: Vec<_> = stages.map(|s| s.name.clone()).collect();
        if stages.is_empty() && log.is_none() {
            return Ok(None);
        }
        let (over, ends) = channel();
        let (untold, answers, waits_for) = (BTreeMap::new(), channel(), BTreeSet::new());
        let mut look = Look { operator, shards, stages, log, denied, untold, answers, waits_for };
        look.look_at(driver);
        let run = move || {
            while ends.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout) {
                look.look();
            }
            look
        };
        let thread = thread::Builder::new().name("sessions".into()).spawn(run)?;
        Ok(Some(Self { over, thread }))
    }

    /// The run has ended: logs what is left, and that sessions end which are not `remembered`. Waits for two
    /// seconds at most until all is written; false if stdout is where it could not be.
    pub(crate) fn finish(self, driver: &mut Driver, remembered: bool) -> bool {
        drop(self.over);
        // A thread that panicked has said so.
        let Ok(mut look) = self.thread.join() else { return true };
        if let Some(log) = &look.log {
            log.end_soon();
        }
        // The run has let go of whom it was asked to visit.
        look.hear(Duration::ZERO);
        look.look_at(driver);
        if !remembered {
            look.end_all(driver);
        }
        look.tell_rest();
        look.log.as_ref().is_none_or(SessionLog::finish)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream::time::Nanos;
    use slipstream_wire::{FlowKey, NarrowKey};

    /// Lines that are told, the last one included, add up to the packets that were denied.
    #[test]
    fn lines_add_up_to_the_packets_that_were_denied() {
        let denial = |packets| Denial {
            time: Nanos(5),
            line: Some(1),
            flow: FlowKey::Narrow(NarrowKey([0; 2])),
            packets,
        };
        let looks = [(vec![1, 10, 100, 1000], 7), (vec![], 9), (vec![20_000, 100_000, 1], 3)];
        let (mut untold, mut told) = (Untold::default(), Vec::new());
        for (denials, behind) in looks {
            let denials = denials.into_iter().map(denial).collect();
            let events = Events { denials, untold: behind, ..Events::default() };
            told.push(untold.sample(&events).iter().map(|(_, packets)| *packets).collect::<Vec<_>>());
        }
        assert_eq!(told, [vec![1, 10], vec![], vec![21_100, 100_000]]);
        assert_eq!((untold.left_out, untold.behind), (1, 3));
    }
}
