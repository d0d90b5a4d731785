//! Watches the file of routes, and reads it anew when it changes: on a thread of its own, while packets go on
//! by the old table.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use super::fib::Fib;
use super::interface::Interface;
use crate::background::{Reading, SOON};
use crate::routes::Routes;
use slipstream_core::time::Nanos;

/// The attributes that tell one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    changed: Option<SystemTime>,
    len: u64,
    #[cfg(unix)]
    inode: u64,
}

fn stamp(path: &Path) -> Option<Stamp> {
    let meta = fs::metadata(path).ok()?;
    Some(Stamp {
        changed: meta.modified().ok(),
        len: meta.len(),
        #[cfg(unix)]
        inode: std::os::unix::fs::MetadataExt::ino(&meta),
    })
}

/// The result of a check of the file.
#[derive(Debug)]
pub(super) enum Reload {
    /// The file is as it was, or is still being read.
    Unchanged,
    /// A new table.
    Table(Box<Fib>),
    /// The file can't be used, for this reason.
    Failed(String),
}

/// The table of a file. There is room for so many neighbours, its gateways among them.
pub(super) fn load(path: &Path, interfaces: &[Interface], neighbours: u32) -> Result<Fib, String> {
    let routes = Routes::parse_file(path).map_err(|e| e.to_string())?;
    let fib = Fib::build(interfaces, routes.routes()).map_err(|e| format!("{}: {e}", path.display()))?;
    match fib.next_routers() {
        gateways if gateways > neighbours as usize => Err(format!(
            "{}: {gateways} gateways, but `neighbour_table` has places for {neighbours}; raise it",
            path.display()
        )),
        _ => Ok(fib),
    }
}

/// A file that is watched.
#[derive(Debug)]
pub(super) struct Watch {
    path: PathBuf,
    interfaces: Arc<[Interface]>,
    /// Neighbours that there is room for.
    neighbours: u32,
    /// Time between two checks, in ns.
    every: u64,
    seen: Option<Stamp>,
    due: Nanos,
    /// Packets have come since the last check: the next one is due at `due`.
    armed: bool,
    /// It is to be read, whether it has changed or not, and whether packets come or not.
    wanted: bool,
    /// It is to be read once more than it is being read.
    again: bool,
    loading: Reading<Fib>,
}

impl Watch {
    /// Reads the file, and watches it from then on. There is room for so many neighbours, gateways among
    /// them.
    pub(super) fn start(
        path: &Path,
        interfaces: Arc<[Interface]>,
        neighbours: u32,
        every: u64,
    ) -> Result<(Self, Fib), String> {
        let seen = stamp(path);
        let fib = load(path, &interfaces, neighbours)?;
        let path = path.to_owned();
        let (due, armed, wanted, again, loading) = (Nanos(0), false, false, false, Reading::default());
        Ok((Self { path, interfaces, neighbours, every, seen, due, armed, wanted, again, loading }, fib))
    }

    /// Time of the next check; never while no packets come, so that a replay ends.
    #[inline]
    pub(super) fn deadline(&self) -> Nanos {
        if self.armed { self.due } else { Nanos::MAX }
    }

    /// Notes that a packet came; returns true if a check is due.
    #[inline]
    pub(super) fn packet(&mut self, now: Nanos) -> bool {
        self.armed = true;
        self.due <= now
    }

    /// Has the file read from `now` on, also where no packets come: for live runs.
    pub(super) fn reload(&mut self, now: Nanos) {
        self.again |= self.loading.is_under_way();
        (self.due, self.armed, self.wanted) = (now, true, true);
    }

    /// Checks the file once, and sets the time of the next check.
    pub(super) fn poll(&mut self, now: Nanos) -> Reload {
        let result = self.poll_once();
        self.armed = self.wanted;
        self.due = now.after(if self.wanted { SOON.min(self.every) } else { self.every });
        result
    }

    fn poll_once(&mut self) -> Reload {
        if let Some(loaded) = self.loading.poll("routes") {
            self.wanted = std::mem::take(&mut self.again);
            return match loaded {
                Ok(fib) => Reload::Table(Box::new(fib)),
                Err(why) => Reload::Failed(why),
            };
        }
        if self.loading.is_under_way() {
            return Reload::Unchanged;
        }
        let found = stamp(&self.path);
        if found == self.seen && !self.wanted {
            return Reload::Unchanged;
        }
        self.seen = found;
        let (path, interfaces, neighbours) = (self.path.clone(), self.interfaces.clone(), self.neighbours);
        match self.loading.start("routes", move || load(&path, &interfaces, neighbours)) {
            Ok(()) => Reload::Unchanged,
            Err(why) => {
                self.wanted = false;
                Reload::Failed(why)
            }
        }
    }
}
