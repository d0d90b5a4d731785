//! The HTTP server.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use crate::connections;

/// Longest time of a connection without a whole request.
const REQUEST: Duration = Duration::from_secs(5);
/// Longest life of a connection.
const LIFE: Duration = Duration::from_secs(60);

/// Serves `app` for ever.
pub(super) async fn serve(listener: TcpListener, app: Router) {
    connections::serve(listener, "--metrics", |stream| tokio::spawn(connection(stream, app.clone()))).await;
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
