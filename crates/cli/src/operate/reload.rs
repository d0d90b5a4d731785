//! Another configuration for a pipeline that runs: read, compared, made ready, and handed to the stages
//! between two packets; or refused whole.

use std::sync::PoisonError;
use std::sync::mpsc::channel;
use std::time::Duration;

use anyhow::{Context, anyhow};
use slipstream::pipeline::Plan;
use slipstream::runtime::Work;
use tracing::{info, warn};

use super::Operation;
use crate::log::LIVE;

/// Longest wait for the data path to take what is new.
const PATIENCE: Duration = Duration::from_secs(10);

/// A reload that was done.
#[derive(Debug)]
pub(crate) struct Reloaded {
    /// Settings that have changed, as STAGE.SETTING.
    pub(crate) changes: Vec<String>,
    /// Stages that go by what was read.
    pub(crate) stages: Vec<String>,
}

impl Operation {
    /// Reads the configuration and all files that it names anew. Either all stages go by them from one point
    /// in time on, or none does; of several shards each has a point in time of its own, between two of its
    /// batches.
    ///
    /// # Errors
    /// Everything that is wrong with them, or can't change while the pipeline runs, each with its line.
    pub(crate) fn reload(&self) -> anyhow::Result<Reloaded> {
        let began = slipstream::clock::now();
        let reloaded = self.try_reload();
        match &reloaded {
            Ok(Reloaded { changes, stages }) => {
                let (changes, stages) = (changes.join(" "), stages.join(" "));
                let ms = format!("{:.1}", began.elapsed().as_secs_f64() * 1e3);
                info!(target: LIVE, changes, stages, ms, "reloaded");
            }
            Err(why) => {
                let why = crate::ui::in_words(why);
                warn!(target: LIVE, "reload refused; nothing is read anew, and all goes on as it is: {why}");
            }
        }
        reloaded
    }

    fn try_reload(&self) -> anyhow::Result<Reloaded> {
        let _alone = self.reloading.lock().unwrap_or_else(PoisonError::into_inner);
        // Whoever asks for the plan meanwhile gets the one that counts: files may be read slowly.
        let plan = self.plan().clone();
        let new: Plan = (self.read)()?;
        let changes = plan.changes(&new)?;
        let mut sharded = self.sharded();
        let shards = sharded.as_ref().map_or(1, |sharded| sharded.shards());
        if self.operator.shards() < shards {
            return Err(anyhow!("the pipeline has ended, or has not begun on all shards"));
        }
        // All of it is made before any of it counts, for each shard by itself: a NAT's ports are parted.
        let updates = match &mut sharded {
            None => vec![new.updates(&changes)?],
            Some(sharded) => {
                let next = new.in_shards(shards)?;
                let updates = sharded.updates(&next, &changes)?;
                // Packets for addresses that a NAT is about to have are led to it.
                sharded.follow(next);
                updates
            }
        };
        let stages: Vec<String> = updates.iter().take(1).flatten().map(|(name, _)| name.clone()).collect();
        let (sender, receiver) = channel();
        let mut expected = 0;
        let _attention = self.operator.attention();
        for (shard, updates) in updates.into_iter().enumerate() {
            let work = updates.into_iter().map(|(name, update)| {
                let sender = sender.clone();
                let work: Work = Box::new(move |stage, now| {
                    let old = stage.operate().map(|stage| stage.update(update, now));
                    // This thread frees what is given up.
                    let _ = sender.send(old);
                });
                (name, work)
            });
            let work: Vec<_> = work.collect();
            expected += work.len();
            self.operator.post(shard, work);
        }
        drop(sender);
        let until = slipstream::clock::now() + PATIENCE;
        for _ in 0..expected {
            let left = until.saturating_duration_since(slipstream::clock::now());
            let old = receiver.recv_timeout(left).context("the data path did not take the new settings")?;
            drop(old);
        }
        let changes = changes.iter().map(|c| format!("{}.{}", c.stage, c.setting)).collect();
        *self.plan() = new;
        Ok(Reloaded { changes, stages })
    }
}
