//! Other settings for a reframer that runs: what is held leaves, and the flows that it knows stay.

use super::{Reframe, ReframeConfig, ReframeStats};
use slipstream_core::pool::Pool;
use slipstream_core::stage::Output;

impl Reframe {
    /// Lets go of everything, as at the end, and goes on with the settings that `new` was made with. The age
    /// and size of flows are kept where `new` remembers as many, as are the counters: by class where there
    /// are as many classes, else all of them as those of the default class.
    pub(crate) fn renew(&mut self, mut new: Self, pool: &mut Pool, out: &mut dyn Output) {
        self.drain(pool, out);
        let mut stats = self.stats();
        if stats.classes.len() != new.stats.classes.len() {
            let all = stats.total();
            stats.classes.clone_from(&new.stats.classes);
            if let Some(first) = stats.classes.first_mut() {
                *first = all;
            }
        }
        new.stats = ReframeStats { held: 0, ..stats };
        if self.table.limit() == new.table.limit() {
            std::mem::swap(&mut self.table, &mut new.table);
            new.last_in = self.last_in;
        }
        new.instant = self.instant;
        new.last_key = self.last_key.take().filter(|_| new.passes);
        *self = new;
    }

    /// A text that is the same where all settings are.
    pub(crate) fn fingerprint(config: &ReframeConfig) -> String {
        // Seeds are the stage's own.
        format!("{:?}", ReframeConfig { seed: 0, ..config.clone() })
    }
}
