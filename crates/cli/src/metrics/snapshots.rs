//! Reports of the data path, made for all who ask together: a report costs the data path some time between
//! two batches, so that there is at most one in [`LEAST_BETWEEN`], however many ask and however fast.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use slipstream::clock::LiveClock;
use slipstream::runtime::{Board, RunReport};
use slipstream::time::Nanos;
use tokio::sync::{Notify, oneshot};

/// How long the data path is waited for. It comes by at least every 100 ms where packets come, or the
/// pipeline is live.
const PATIENCE: Duration = Duration::from_millis(500);
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

/// Where reports come from.
#[derive(Clone, Debug)]
pub(super) struct Snapshots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    board: Board,
    waiting: Mutex<Vec<oneshot::Sender<Answer>>>,
    asked: Notify,
}

impl Snapshots {
    /// Of the run that answers at this board.
    pub(super) fn of(board: Board) -> Self {
        Self(Arc::new(Shared { board, waiting: Mutex::default(), asked: Notify::new() }))
    }

    /// The next report, which is made after this was called; nothing where the run has never answered.
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
            let board = self.0.board.clone();
            let report = tokio::task::spawn_blocking(move || board.ask(PATIENCE)).await.ok().flatten();
            let snapshot = report.map(|report| {
                let time = LiveClock::get().now();
                Arc::new(Snapshot { report, time, metrics: OnceLock::new(), page: OnceLock::new() })
            });
            for sender in waiting {
                // Who went away needs no answer.
                let _ = sender.send(snapshot.clone());
            }
            tokio::time::sleep(LEAST_BETWEEN).await;
        }
    }
}
