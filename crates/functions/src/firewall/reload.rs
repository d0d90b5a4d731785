//! Rules that are read anew: on a thread of their own, while packets go on by the old ones.

use std::fmt;
use std::sync::Arc;

use slipstream_core::time::Nanos;

use super::Firewall;
use crate::background::{Reading, SOON};
use crate::conntrack::ConntrackConfig;

/// Rules that were read, and the tracking of connections that they need.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) firewall: Firewall,
    pub(super) track: Option<ConntrackConfig>,
}

/// Reads the files of rules; an error says which file and line is wrong, and why.
type Load = Arc<dyn Fn() -> Result<Loaded, String> + Send + Sync>;

/// The files that rules come from.
pub(super) struct Files {
    load: Load,
    loading: Reading<Loaded>,
    /// They are to be read again afterwards, since files may have changed meanwhile.
    again: bool,
    due: Nanos,
    pub(super) reloads: u64,
    pub(super) errors: u64,
    pub(super) last_error: Option<String>,
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Files")
            .field("reloads", &self.reloads)
            .field("errors", &self.errors)
            .finish_non_exhaustive()
    }
}

impl Files {
    pub(super) fn new(load: impl Fn() -> Result<Loaded, String> + Send + Sync + 'static) -> Self {
        Self {
            load: Arc::new(load),
            loading: Reading::default(),
            again: false,
            due: Nanos::MAX,
            reloads: 0,
            errors: 0,
            last_error: None,
        }
    }

    /// Time of the next check; never while nothing is being read.
    #[inline]
    pub(super) fn deadline(&self) -> Nanos {
        self.due
    }

    /// Begins to read at `now`. Rules that are being read will be read again, and do their work until then.
    pub(super) fn reload(&mut self, now: Nanos) {
        if self.loading.is_under_way() {
            self.again = true;
            return;
        }
        let load = self.load.clone();
        match self.loading.start("rules", move || load()) {
            Ok(()) => self.due = now,
            Err(why) => self.failed(why),
        }
    }

    /// The rules, once they have been read; sets the time of the next check.
    pub(super) fn poll(&mut self, now: Nanos) -> Option<Loaded> {
        let Some(loaded) = self.loading.poll("rules") else {
            self.due = now.after(SOON);
            return None;
        };
        self.due = Nanos::MAX;
        if std::mem::take(&mut self.again) {
            self.reload(now);
        }
        match loaded {
            Ok(loaded) => {
                self.reloads += 1;
                self.last_error = None;
                Some(loaded)
            }
            Err(why) => {
                self.failed(why);
                None
            }
        }
    }

    pub(super) fn failed(&mut self, why: String) {
        self.errors += 1;
        self.last_error = Some(why);
    }
}
