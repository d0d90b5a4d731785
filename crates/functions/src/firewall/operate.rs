//! A firewall as its operator sees it: other rules while it runs, connections listed, saved and restored, and
//! what is denied.

use slipstream_core::frame::Frame;
use slipstream_core::operate::{Denial, Events, Operate, Update};
use slipstream_core::packet::any_key_of;
use slipstream_core::stage::Context;
use slipstream_core::time::Nanos;

use super::FirewallStage;
use crate::RateLimiter;
use crate::firewall::reload::Loaded;
use crate::firewall::stage::Checksums;

/// Least time between two denials that are told of, in ns.
const EVERY: u64 = 10_000_000;

/// Denials, for whoever asks.
#[derive(Debug, Default)]
pub(super) struct Denials {
    events: Events,
    /// Packets denied since one was last told of, and when one may be again.
    packets: u64,
    next: Nanos,
}

/// Other settings for a firewall that runs.
pub(in crate::firewall) struct FirewallUpdate {
    pub(in crate::firewall) loaded: Option<Loaded>,
    pub(in crate::firewall) files: Option<Box<crate::firewall::reload::Files>>,
    pub(in crate::firewall) iptables: bool,
    pub(in crate::firewall) allow_other: bool,
    pub(in crate::firewall) checksums: Checksums,
    pub(in crate::firewall) limiter: RateLimiter,
}

impl FirewallStage {
    /// Notes that packets of this train are denied, and by which rule.
    #[inline(never)]
    pub(super) fn note_denied(&mut self, cx: &Context<'_>, frames: &[Frame], rule: usize) {
        let Some(denials) = &mut self.denials else { return };
        denials.packets += frames.len() as u64;
        if cx.now < denials.next {
            return;
        }
        let Some(flow) = frames.first().and_then(|first| any_key_of(cx, first)) else { return };
        denials.next = cx.now.after(EVERY);
        let noted = &mut denials.events.denials;
        if noted.len() == noted.capacity() {
            // The next one that is told of counts them.
            return;
        }
        let line = self.firewall.rules().rules().get(rule).map(|rule| rule.line);
        noted.push(Denial { time: cx.now, line, flow, packets: std::mem::take(&mut denials.packets) });
    }
}

impl Operate for FirewallStage {
    fn update(&mut self, new: Update, _now: Nanos) -> Update {
        let mut update = match new.downcast::<FirewallUpdate>() {
            Ok(update) => update,
            Err(other) => return other,
        };
        if update.iptables != self.iptables {
            let files = self.files.as_mut();
            files.into_iter().for_each(|f| f.failed("the file has become one of another format".to_owned()));
            return update;
        }
        self.allow_other = update.allow_other;
        self.checksums = update.checksums;
        std::mem::swap(&mut self.limiter, &mut update.limiter);
        if let Some(mut loaded) = update.loaded.take() {
            if let Some(track) = &mut loaded.track {
                track.seed = self.seed;
            }
            update.loaded = Some(self.install(loaded));
        }
        if let (Some(old), Some(new)) = (&mut self.files, &mut update.files) {
            new.reloads = old.reloads + 1;
            new.errors = old.errors;
            std::mem::swap(old, new);
        }
        update
    }

    fn save(&self, table: usize, from: u32, places: u32, now: Nanos, out: &mut Vec<u8>) -> Option<u32> {
        self.conntrack.as_ref().filter(|_| table == 0)?.save(from, places, now, out)
    }

    fn restore(&mut self, table: usize, record: &[u8], away: u64, now: Nanos) -> bool {
        let conntrack = self.conntrack.as_mut().filter(|_| table == 0);
        conntrack.is_some_and(|conntrack| conntrack.restore(record, away, now))
    }

    fn remove(&mut self, table: usize, record: &[u8], _now: Nanos) -> bool {
        let conntrack = self.conntrack.as_mut().filter(|_| table == 0);
        conntrack.is_some_and(|conntrack| conntrack.forget(record))
    }

    fn events(&mut self, empty: &mut Events) {
        let denials = self.denials.get_or_insert_default();
        denials.events.swap(empty);
        empty.untold = denials.packets;
    }
}
