//! The control socket: a Unix socket that only its owner may use, one JSON object a line each way.
//!
//! An answer has `"schema": 1`, and `"ok"`: true with the result beside it, or false with `"error"`.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Map, Value, json};
use slipstream::operate::Request;
use slipstream::runtime::StageReport;
use tracing::warn;

use super::{Operation, Shared, server};

/// Bytes of a socket's path at most: `sun_path` of unix(7), where a zero stands behind it.
const MOST_BYTES: usize = 107;
/// A socket that is there takes other connections than was asked for (errno(3)).
const EPROTOTYPE: i32 = 91;
/// Longest wait for a report.
const PATIENCE: Duration = Duration::from_secs(2);
/// Longest wait of a request for those before it, and the same where it reads or writes files.
const TURN: Duration = Duration::from_secs(8);
const TURN_WITH_FILES: Duration = Duration::from_secs(20);

/// The socket's file, which goes when the run is over, unless there is another one of its name by then.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Device and inode.
    file: (u64, u64),
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Refuses a path that no socket can have, or whose other name, which is `longer` by so many bytes, can't be.
///
/// # Errors
/// It says how long the path is, and how long it may be.
pub(crate) fn check_length(path: &Path, longer: usize) -> anyhow::Result<()> {
    let (bytes, most) = (path.as_os_str().len(), MOST_BYTES.saturating_sub(longer));
    if bytes > most {
        bail!("this path has {bytes} bytes, and that of a socket has {most} at most");
    }
    Ok(())
}

/// Device and inode of a file, which may be a link.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|about| (about.dev(), about.ino()))
}

/// Serves requests at `path` until the program ends.
///
/// # Errors
/// The socket can't be made, or somebody serves there already.
pub(crate) fn serve(path: &Path, operation: Shared) -> anyhow::Result<Socket> {
    let failed = || format!("--control {}", path.display());
    let (listener, socket) = bind(path).with_context(failed)?;
    listener.set_nonblocking(true).with_context(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().with_context(failed)?;
    let serve = async move {
        if let Ok(listener) = tokio::net::UnixListener::from_std(listener) {
            server::serve(listener, operation).await;
        }
    };
    let thread = std::thread::Builder::new().name("control".into());
    thread.spawn(move || runtime.block_on(serve)).with_context(failed)?;
    Ok(socket)
}

/// Refuses a path that another process has a socket at, or where something else is; warns where that can't be
/// told.
fn check_vacant(path: &Path) -> anyhow::Result<()> {
    let Ok(about) = fs::symlink_metadata(path) else { return Ok(()) };
    if !about.file_type().is_socket() {
        bail!("there is a file of this name, which is no socket")
    }
    let Err(error) = UnixStream::connect(path) else { bail!("another process serves there") };
    // The socket of a log daemon, say, which takes datagrams: its process is there.
    if error.raw_os_error() == Some(EPROTOTYPE) {
        bail!("another process has a socket of another type there")
    }
    if error.kind() == io::ErrorKind::PermissionDenied {
        warn!(
            "--control {}: another user's socket was there and is replaced; if its process still runs, nobody \
             reaches it any more",
            path.display()
        );
    }
    Ok(())
}

/// A socket at `path` with mode 0600, in place of one that a process before left behind.
fn bind(path: &Path) -> anyhow::Result<(UnixListener, Socket)> {
    // Nobody reaches it before its mode is set: until then it has another name.
    let name = path.file_name().context("this is no path of a file")?;
    let made = path.with_file_name(format!(".{}.{}", name.to_string_lossy(), std::process::id()));
    check_length(path, made.as_os_str().len().saturating_sub(path.as_os_str().len()))?;
    check_vacant(path)?;
    // A folder for it may be missing, as `/run/slipstream` is after each start of the system.
    if let Some(folder) = path.parent().filter(|folder| !folder.exists()) {
        let _ = fs::create_dir(folder);
    }
    let _ = fs::remove_file(&made);
    let listener = UnixListener::bind(&made)?;
    let named = || -> io::Result<Socket> {
        fs::set_permissions(&made, Permissions::from_mode(0o600))?;
        let file = identity(&made)?;
        fs::rename(&made, path)?;
        Ok(Socket { path: path.to_owned(), file })
    };
    match named() {
        Ok(socket) => Ok((listener, socket)),
        Err(error) => {
            let _ = fs::remove_file(&made);
            Err(error.into())
        }
    }
}

/// True of a request that is answered at once, whatever else is under way.
pub(super) fn is_short(line: &[u8]) -> bool {
    matches!(Request::parse(line), Ok(Request::Ping | Request::Show))
}

/// Longest wait of a request for those before it. Whoever asked waits for an answer for longer, so that what
/// is done late is not told as failed.
pub(super) fn longest_turn(line: &[u8]) -> Duration {
    match Request::parse(line) {
        Ok(Request::Reload | Request::Save) => TURN_WITH_FILES,
        _ => TURN,
    }
}

/// The answer to a line that is refused.
pub(super) fn refuse(why: &str) -> String {
    json!({ "schema": 1, "ok": false, "error": why }).to_string()
}

/// The answer to a line.
pub(super) fn answer(operation: &Operation, line: &[u8]) -> String {
    let answer = match Request::parse(line) {
        Ok(request) => serve_one(operation, &request),
        Err(why) => Err(why.into()),
    };
    let mut all = Map::new();
    all.insert("schema".to_owned(), 1.into());
    match answer {
        Ok(fields) => {
            all.insert("ok".to_owned(), true.into());
            all.extend(fields);
        }
        Err(why) => return refuse(&format!("{why:#}")),
    }
    Value::Object(all).to_string()
}

fn fields(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        other => Map::from_iter([("result".to_owned(), other)]),
    }
}

fn serve_one(operation: &Operation, request: &Request) -> anyhow::Result<Map<String, Value>> {
    let report = || operation.monitor.ask_anew(PATIENCE).context("the data path does not answer");
    Ok(fields(match request {
        Request::Ping => json!({ "version": env!("CARGO_PKG_VERSION"), "pid": std::process::id() }),
        Request::Show => {
            let report = report()?;
            json!({
                "elapsed_ns": report.elapsed_ns,
                "cpu_ns": report.cpu_ns,
                "inside": report.live,
                "stages": report.stages.iter().map(shown).collect::<Vec<_>>(),
            })
        }
        Request::Report => json!({ "report": (operation.as_json)(&*report()?) }),
        Request::Rules(name) => {
            let report = report()?;
            let stage = report.stages.iter().find(|s| s.name == *name);
            let stage = stage.with_context(|| format!("there is no stage `{name}`"))?;
            let hits = stage.report.as_ref().and_then(|r| r.get("hits"));
            let rules = stage.report.as_ref().and_then(|r| r.get("rules"));
            let hits = hits.with_context(|| format!("`{name}` has no rules"))?;
            let of = |key: &str| stage.report.as_ref().and_then(|r| r.get(key));
            json!({
                "rules": rules,
                "hits": hits,
                "by_default": stage.counter("by_default"),
                "rules_without_hits": of("rules_without_hits"),
                "lines_without_hits": of("lines_without_hits"),
            })
        }
        Request::Tables => json!({ "tables": operation.tables() }),
        Request::List(selection) => {
            let page = operation.list(selection)?;
            json!({ "rows": page.rows, "next": page.next })
        }
        Request::Delete(selection) => {
            let (removed, next) = operation.delete(selection)?;
            json!({ "removed": removed, "next": next })
        }
        Request::Act { action, stage, on } => json!({ "done": operation.act(action, stage, on)? }),
        Request::Reload => {
            let reloaded = operation.reload()?;
            json!({ "changes": reloaded.changes, "stages": reloaded.stages })
        }
        Request::Save => json!({ "bytes": operation.save()? }),
    }))
}

/// A stage as VPP's `show runtime` has a node: calls, packets, packets a call, time a packet.
fn shown(stage: &StageReport) -> Value {
    let ratio = |sum: u64, n: u64| (n > 0).then(|| sum as f64 / n as f64);
    let tally = &stage.tally;
    let mut shown = json!({
        "name": stage.name,
        "type": stage.kind,
        "batches": tally.batches,
        "packets": tally.packets,
        "trains": tally.trains,
        "packets_per_batch": ratio(tally.packets, tally.batches),
        "packets_per_train": ratio(tally.packets, tally.trains),
        "ns_per_packet": ratio(tally.busy_ns, tally.packets),
        "dropped": stage.drops.total(),
        "held": stage.held,
    });
    if let (Some(stats), Some(all)) = (stage.reframe.as_deref(), shown.as_object_mut()) {
        all.insert(
            "reframe".to_owned(),
            json!({
                "slf_in": stats.slf_in(),
                "slf_out": stats.slf_out(),
                "mean_train": stats.total().mean_train(),
                "mean_added_delay_ns": stats.total().delay.mean(),
            }),
        );
    }
    shown
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixDatagram;

    use super::*;

    #[test]
    fn a_path_that_is_too_long_is_refused_with_its_length() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("x".repeat(120));
        let (bytes, extra) = (path.as_os_str().len(), std::process::id().to_string().len() + 2);
        let most = 107 - extra;
        let said = bind(&path).unwrap_err().to_string();
        assert_eq!(said, format!("this path has {bytes} bytes, and that of a socket has {most} at most"));
        let longest = scratch.path().join("x".repeat(most - scratch.path().as_os_str().len() - 1));
        drop(bind(&longest).unwrap());
        let longer = scratch.path().join("x".repeat(most - scratch.path().as_os_str().len()));
        assert!(bind(&longer).unwrap_err().to_string().contains(&format!("has {} bytes", most + 1)));
    }

    #[test]
    fn a_socket_for_datagrams_stays_while_somebody_has_it() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("log");
        let other = UnixDatagram::bind(&path).unwrap();
        assert!(bind(&path).unwrap_err().to_string().contains("of another type"));
        UnixDatagram::unbound().unwrap().send_to(b"still here", &path).unwrap();
        drop(other);
        drop(bind(&path).unwrap());
    }

    #[test]
    fn a_socket_takes_nothing_away_but_itself() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("control");
        let (_one, first) = bind(&path).unwrap();
        assert!(bind(&path).unwrap_err().to_string().contains("another process"));
        fs::remove_file(&path).unwrap();
        let (_other, second) = bind(&path).unwrap();
        drop(first);
        assert!(UnixStream::connect(&path).is_ok(), "the other one's is gone");
        drop(second);
        assert!(!path.exists());
    }
}
