//! The socket's connections. The length of a request and the time that one may take are bounded, so that no
//! behaviour of clients ends the server; the data path hears of one request at a time.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::OwnedWriteHalf;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use super::Shared;
use super::control::{answer, is_short, longest_turn, refuse};
use crate::connections;
use slipstream::operate::LONGEST_LINE;

/// Longest time without a whole request, and for a client to take an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Whose turn it is among requests that are answered at once, and among those that may take long: these keep
/// nobody from hearing how the pipeline is.
#[derive(Clone)]
struct Turns {
    short: Arc<Semaphore>,
    long: Arc<Semaphore>,
}

/// Serves for ever.
pub(super) async fn serve(listener: UnixListener, operation: Shared) {
    let turns = Turns { short: Arc::new(Semaphore::new(1)), long: Arc::new(Semaphore::new(1)) };
    let begin = |stream| tokio::spawn(connection(stream, operation.clone(), turns.clone()));
    connections::serve(listener, "--control", begin).await;
}

/// Answers the requests of one connection, a line each.
async fn connection(stream: UnixStream, operation: Shared, turns: Turns) {
    let (read, mut write) = stream.into_split();
    // One byte more than is allowed shows that a line is too long.
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = (&mut read).take(LONGEST_LINE as u64 + 2);
        let Ok(Ok(1..)) = timeout(PATIENCE, bounded.read_until(b'\n', &mut line)).await else { return };
        let whole = line.ends_with(b"\n");
        let text = line.trim_ascii().to_vec();
        if whole && text.is_empty() {
            continue;
        }
        let turn = if is_short(&text) { &turns.short } else { &turns.long };
        let mut answer = match timeout(longest_turn(&text), turn.clone().acquire_owned()).await {
            Err(_) => refuse("the pipeline is at work on what somebody else asked for; nothing was done"),
            Ok(Err(_)) => return,
            Ok(Ok(_)) if has_gone(&write).await => return,
            Ok(Ok(permit)) => {
                let asked = operation.clone();
                let answered = spawn_blocking(move || {
                    let answer = answer(&asked, &text);
                    drop(permit);
                    answer
                });
                let Ok(answer) = answered.await else { return };
                answer
            }
        };
        answer.push('\n');
        // A slow reader costs its own connection.
        let Ok(Ok(())) = timeout(PATIENCE, write.write_all(answer.as_bytes())).await else { return };
        if !whole {
            return;
        }
    }
}

/// Returns true if a client has closed its connection: what it has asked for, and that has not begun, is not
/// done.
async fn has_gone(write: &OwnedWriteHalf) -> bool {
    let ready = timeout(Duration::ZERO, write.ready(Interest::WRITABLE)).await;
    matches!(ready, Ok(Ok(ready)) if ready.is_write_closed())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use anyhow::bail;
    use slipstream::pipeline::Plan;

    use tokio::time::sleep;

    use super::super::Operation;
    use super::*;

    /// A request that waits for its turn is done for a client that still reads, though it sends nothing more,
    /// and isn't for one that is gone.
    #[test]
    fn nothing_is_done_for_a_client_that_is_gone() {
        let plan = Plan::from_graph("paced(rate=1kpps) -> null", None, None, "".as_ref()).unwrap();
        let reads = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&reads);
        let read = move || {
            counted.fetch_add(1, Ordering::Relaxed);
            bail!("nothing is read anew")
        };
        let operation = Shared::new(Operation::new(&plan, read, |_| serde_json::Value::Null));
        let turns = Turns { short: Arc::new(Semaphore::new(1)), long: Arc::new(Semaphore::new(1)) };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for (leaves, done) in [(true, 0), (false, 1)] {
            runtime.block_on(async {
                let (ours, mut theirs) = UnixStream::pair().unwrap();
                let others = turns.long.clone().acquire_owned().await.unwrap();
                let served = tokio::spawn(connection(ours, operation.clone(), turns.clone()));
                theirs.write_all(b"{\"do\": \"reload\"}\n").await.unwrap();
                theirs.shutdown().await.unwrap();
                sleep(Duration::from_millis(50)).await;
                let stays = (!leaves).then_some(theirs);
                sleep(Duration::from_millis(50)).await;
                drop(others);
                timeout(Duration::from_secs(30), served).await.unwrap().unwrap();
                drop(stays);
            });
            assert_eq!(reads.load(Ordering::Relaxed), done);
        }
    }
}
