//! Reports of the data path. One report answers all requests of its time: it costs the data path some time
//! between two batches, so that at most one is made in [`LEAST_BETWEEN`], for any number of clients.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use slipstream::clock::LiveClock;
use slipstream::runtime::{Monitor, RunReport};
use slipstream::time::Nanos;
use tokio::sync::{Notify, oneshot};

/// Longest wait for the data path. It answers at least every 100 ms where packets come, or the
/// pipeline is live.
const PATIENCE: Duration = Duration::from_secs(2);
/// Least time between two reports.
pub(super) const LEAST_BETWEEN: Duration = Duration::from_millis(100);

/// A report, when it was given, and the pages made of it so far.
#[derive(Debug)]
pub(super) struct Snapshot {
    pub(super) report: Arc<RunReport>,
    pub(super) time: Nanos,
    /// `/metrics`; none where it can't be rendered.
    pub(super) metrics: OnceLock<Option<String>>,
    /// `/report`.
    pub(super) page: OnceLock<String>,
}

type Answer = Option<Arc<Snapshot>>;

/// The source of reports.
#[derive(Clone, Debug)]
pub(super) struct Snapshots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    monitor: Monitor,
    waiting: Mutex<Vec<oneshot::Sender<Answer>>>,
    asked: Notify,
}

impl Snapshots {
    /// Reports of the run that this monitor watches.
    pub(super) fn of(monitor: Monitor) -> Self {
        Self(Arc::new(Shared { monitor, waiting: Mutex::default(), asked: Notify::new() }))
    }

    /// Waits for a report that is made after this call; none where the run doesn't answer.
    pub(super) async fn next(&self) -> Answer {
        let (sender, receiver) = oneshot::channel();
        self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(sender);
        self.0.asked.notify_one();
        receiver.await.ok().flatten()
    }

    /// Asks the data path while somebody waits for it.
    pub(super) async fn publish(self) {
        loop {
            self.0.asked.notified().await;
            let waiting = std::mem::take(&mut *self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner));
            if waiting.iter().all(oneshot::Sender::is_closed) {
                continue;
            }
            let monitor = self.0.monitor.clone();
            let report = tokio::task::spawn_blocking(move || monitor.ask_anew(PATIENCE)).await.ok().flatten();
            let snapshot = report.map(|report| {
                let time = LiveClock::get().now();
                Arc::new(Snapshot { report, time, metrics: OnceLock::new(), page: OnceLock::new() })
            });
            for sender in waiting {
                // A client that went away needs no answer.
                let _ = sender.send(snapshot.clone());
            }
            tokio::time::sleep(LEAST_BETWEEN).await;
        }
    }
}
