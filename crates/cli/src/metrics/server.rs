//! The HTTP server. It bounds the number of connections and of descriptors, so that no behaviour of its
//! clients ends it.

use std::collections::VecDeque;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tracing::warn;

/// Connections at a time; a further one takes the place of the oldest, whose client may come again.
const CONNECTIONS: usize = 64;
/// Longest time of a connection without a whole request.
const REQUEST: Duration = Duration::from_secs(5);
/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(60);
/// Wait after an accept that failed with no connection open.
const AGAIN: Duration = Duration::from_millis(100);

/// Serves `app` for ever.
pub(super) async fn serve(listener: TcpListener, app: Router) {
    let mut open: VecDeque<JoinHandle<()>> = VecDeque::new();
    let mut told = false;
    loop {
        let accepted = listener.accept().await;
        open.retain(|c| !c.is_finished());
        match accepted {
            Ok((stream, _)) => {
                if open.len() >= CONNECTIONS {
                    close_oldest(&mut open).await;
                }
                open.push_back(tokio::spawn(connection(stream, app.clone())));
            }
            // Most likely no descriptor is left: closing a connection frees one.
            Err(error) => {
                if !std::mem::replace(&mut told, true) {
                    warn!("--metrics: a connection can't be accepted: {error}; the oldest ones are closed");
                }
                if !close_oldest(&mut open).await {
                    sleep(AGAIN).await;
                }
            }
        }
    }
}

/// Closes the connection that has been open longest; returns whether there was one.
pub(crate) async fn close_oldest(open: &mut VecDeque<JoinHandle<()>>) -> bool {
    let Some(oldest) = open.pop_front() else { return false };
    oldest.abort();
    // It is closed once the task is gone.
    let _ = oldest.await;
    true
}

/// Answers the requests of one connection.
async fn connection(stream: TcpStream, app: Router) {
    let service = TowerToHyperService::new(app);
    let mut builder = http1::Builder::new();
    // A client may end its side with the request, as `nc -N` does.
    builder.timer(TokioTimer::new()).header_read_timeout(REQUEST).half_close(true);
    // Errors are the client's: it went away, or sent something that is no request.
    let _ = timeout(LIFE, builder.serve_connection(TokioIo::new(stream), service)).await;
}
