//! Connections of a server whose clients may do what they like: their number is bounded, and so are the
//! descriptors that they take, so that nothing that clients do ends it.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tracing::warn;

/// Connections at a time; a further one takes the place of the oldest, whose client may come again.
const CONNECTIONS: usize = 64;
/// Wait after an accept that failed with no connection open.
const AGAIN: Duration = Duration::from_millis(100);

/// A socket that connections come to.
pub(crate) trait Listener {
    type Stream;

    async fn next(&self) -> io::Result<Self::Stream>;
}

impl Listener for TcpListener {
    type Stream = TcpStream;

    async fn next(&self) -> io::Result<TcpStream> {
        Ok(self.accept().await?.0)
    }
}

impl Listener for UnixListener {
    type Stream = UnixStream;

    async fn next(&self) -> io::Result<UnixStream> {
        Ok(self.accept().await?.0)
    }
}

/// Serves for ever: `serve` begins a connection. `option` is the one that asked for this server.
pub(crate) async fn serve<L: Listener>(
    listener: L,
    option: &str,
    mut serve: impl FnMut(L::Stream) -> JoinHandle<()>,
) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    let mut told = false;
    loop {
        let accepted = listener.next().await;
        open.retain(|c| !c.is_finished());
        match accepted {
            Ok(stream) => {
                if open.len() >= CONNECTIONS {
                    close_oldest(&mut open).await;
                }
                open.push_back(serve(stream));
            }
            // Most likely no descriptor is left: closing a connection frees one.
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    warn!("{option}: a connection can't be accepted: {error}; the oldest ones are closed");
                }
                if !close_oldest(&mut open).await {
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

/// Closes the connection that has been open longest; returns whether there was one.
async fn close_oldest(open: &mut VecDeque<JoinHandle<()>>) -> bool {
    let Some(oldest) = open.pop_front() else { return false };
    oldest.abort();
    // It is closed once the task is gone.
    let _ = oldest.await;
    true
}
