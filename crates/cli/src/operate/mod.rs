//! An operator's work with a pipeline that runs: has it read its configuration anew ([`reload`]), asks by
//! a socket ([`control`]) for its tables ([`tables`]), keeps its state ([`state`]) in a file, has its
//! [`sessions`] logged ([`session_log`]), and hears where there is no room for a log of polls ([`poll_log`]).
//!
//! Nothing of this is done by the data path but what [`Operator`] hands to a stage: a few hundred places of a
//! table at a time, or new settings that were made before.

pub(crate) mod control;
mod counts;
pub(crate) mod notify;
pub(crate) mod poll_log;
mod reload;
mod server;
pub(crate) mod session_log;
pub(crate) mod sessions;
pub(crate) mod state;
mod tables;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::bail;
use serde_json::Value;
use slipstream::pipeline::{Plan, ShardPlan};
use slipstream::runtime::{Monitor, Operator, RunReport};

/// The reason for which nothing is done for a pipeline of which not all shards run.
const NOT_ALL: &str = "the pipeline has ended, or has not begun on all shards";

/// Reads the configuration anew.
type Read = Box<dyn Fn() -> anyhow::Result<Plan> + Send + Sync>;

/// A pipeline that runs, and what it takes to operate it; its threads share it.
pub(crate) struct Operation {
    pub(crate) operator: Operator,
    pub(crate) monitor: Monitor,
    /// The plan that the pipeline goes by now.
    plan: Mutex<Plan>,
    /// Held while a reload is under way: there is one at a time.
    reloading: Mutex<()>,
    read: Read,
    counts: counts::Counts,
    /// A report as JSON.
    as_json: fn(&RunReport) -> Value,
    /// The file that the state is kept in.
    pub(crate) state: Option<state::Keeper>,
    /// The log of sessions that begin and end.
    pub(crate) session_log: Option<session_log::SessionLog>,
    /// The file of the log of polls.
    pub(crate) poll_log: Option<poll_log::Keeper>,
    /// The way in which packets are led to shards, if the pipeline runs in some.
    pub(crate) shards: Option<Mutex<ShardPlan>>,
}

/// The handle by which threads share it.
pub(crate) type Shared = Arc<Operation>;

impl Operation {
    /// Of a pipeline by this plan, which `read` reads anew.
    pub(crate) fn new(
        plan: &Plan,
        read: impl Fn() -> anyhow::Result<Plan> + Send + Sync + 'static,
        as_json: fn(&RunReport) -> Value,
    ) -> Self {
        let plan = Mutex::new(plan.clone());
        let (operator, monitor) = (Operator::default(), Monitor::default());
        let (reloading, read) = (Mutex::default(), Box::new(read));
        Self {
            operator,
            monitor,
            plan,
            reloading,
            read,
            counts: counts::Counts::default(),
            as_json,
            state: None,
            session_log: None,
            poll_log: None,
            shards: None,
        }
    }

    /// As [`Plan::longest_hold_ns`] of the plan that counts now.
    pub(crate) fn longest_hold(&self) -> Option<u64> {
        self.plan().longest_hold_ns()
    }

    /// The way in which packets are led to shards, where there are several.
    fn sharded(&self) -> Option<MutexGuard<'_, ShardPlan>> {
        self.shards.as_ref().map(|shards| shards.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The number of shards, all of which run.
    ///
    /// # Errors
    /// One of them has ended, or has not begun: what the others answer is not all that there is.
    fn running_shards(&self) -> anyhow::Result<usize> {
        let shards = self.sharded().map_or(1, |sharded| sharded.shards());
        if self.operator.shards() < shards {
            bail!(NOT_ALL);
        }
        Ok(shards)
    }

    /// The plan that counts now. Nobody changes it while this is held, which is not for long.
    fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
