//! The aggregator: a small table in front of a sketch that adds up what belongs to one key, so that the
//! sketch is updated once for many packets (Agg-Evict paper, §3.3 to §3.5).
//!
//! k buckets of 16 keys of 4 bytes, one cache line of keys and one of counts each. A key's bucket comes from
//! a keyed hash; within the bucket all keys are compared at once (SIMD). Where a bucket is full, one entry
//! leaves: the one at the global round-robin index (GRR), or the least recently used (LRU). Keys of other
//! lengths have a 32-bit fingerprint in the line and themselves beside it; where fingerprints collide, the
//! older key leaves, so counts stay exact.
//!
//! Which entries are there is told by a mask, not by a key or count that stands for "empty": key 0 is a key
//! as any other.
//!
//! Packets of one flow that follow one another are added up even before they are looked up. What the table
//! saves is the hits; where there are none, it only costs. So it watches its share of hits and steps aside
//! where that doesn't pay ([`Aggregator::offer`]).

mod pass;
#[cfg(test)]
mod tests;

use crate::Update;
use crate::hash::Hasher;
use crate::simd::{Checked, Instructions, Line};
use pass::{OUT, Pass, Tally, join_runs};

/// Which entry of a full bucket leaves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// Global round robin: position after position, one index for all buckets.
    #[default]
    Grr,
    /// The entry that was updated least recently.
    Lru,
}

/// Parameters of an aggregator.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AggregatorConfig {
    /// Buckets of 16 entries, 1 to 2²⁴. The paper's 2000 take 256 KB, of long keys 16 × their length more.
    pub buckets: usize,
    /// Which entry leaves.
    pub eviction: Eviction,
    /// Which instructions compare keys; one that the processor lacks is replaced by the best that it has.
    pub instructions: Instructions,
    /// The share of hits, runs of one key counted once, below which the aggregator steps aside: 0 = never,
    /// above 1 = always, so that it does nothing but join runs.
    pub worth_from: f64,
    /// Seed of the hash that chooses buckets.
    pub seed: u64,
}

impl Default for AggregatorConfig {
    fn default() -> Self {
        Self {
            buckets: 2000,
            eviction: Eviction::Grr,
            instructions: Instructions::best(),
            worth_from: 0.0,
            seed: 0,
        }
    }
}

/// Why an aggregator can't be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AggregatorError {
    /// Number of buckets out of range.
    #[error("an aggregator has 1 to {max} buckets, not {0}", max = Aggregator::<4>::MAX_BUCKETS)]
    Buckets(usize),
}

/// Counts of the aggregator's work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AggregatorStats {
    /// Updates that went through the table.
    pub updates: u64,
    /// Of these, the ones that found their key there, or followed an update of the same key.
    pub hits: u64,
    /// Updates that were passed on while it stood aside.
    pub aside: u64,
    /// Updates that were given to the sketch: everything that left, from the table or past it.
    pub out: u64,
}

/// Sixteen keys (or fingerprints) and their counts: a cache line each.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Bucket {
    keys: Line,
    counts: [u32; 16],
}

/// Adds up weights by key, in bounded memory.
#[derive(Clone, Debug)]
pub struct Aggregator<const N: usize> {
    buckets: Vec<Bucket>,
    /// One bit an entry: whether it is there.
    used: Vec<u16>,
    /// The keys themselves, where they don't fit the line.
    keys: Vec<[u8; N]>,
    /// Of LRU: when an entry was last updated.
    stamps: Vec<[u32; 16]>,
    out: Box<[Update<N>; OUT]>,
    out_len: usize,
    /// Of GRR: the position that is next to leave.
    next: usize,
    clock: u32,
    hasher: Hasher,
    eviction: Eviction,
    instructions: Checked,
    watch: Watch,
    stats: AggregatorStats,
}

/// When to step aside.
#[derive(Clone, Copy, Debug)]
struct Watch {
    worth_from: f64,
    /// Updates after which the share of hits is judged.
    window: u64,
    /// Updates of this window.
    seen: u64,
    tally: Tally,
    /// Updates still to be passed on.
    aside: u64,
    /// For how many windows to stand aside next time.
    patience: u64,
    /// Says that the table was filled before this window began.
    warm: bool,
    /// While aside: updates still to be handed on as they are.
    unseen: usize,
}

impl Watch {
    /// The share of a run of distinct keys that goes through the table, at most: one in 32 windows, later in
    /// 128.
    const FIRST: u64 = 32;
    const LAST: u64 = 128;
    /// The part of what the table must hit that it must hit while it fills: a full one hits more.
    const COLD: f64 = 0.6;
    /// While aside: so many updates tell whether there are runs,
    const GLANCE: usize = 64;
    /// and where there are none, so many are handed on as they are.
    const UNSEEN: usize = 8192;
}

impl<const N: usize> Aggregator<N> {
    /// The most buckets.
    pub const MAX_BUCKETS: usize = 1 << 24;

    /// An empty aggregator.
    ///
    /// # Errors
    /// [`AggregatorError`] where the number of buckets is out of range.
    pub fn new(config: &AggregatorConfig) -> Result<Self, AggregatorError> {
        let k = config.buckets;
        if k == 0 || k > Self::MAX_BUCKETS {
            return Err(AggregatorError::Buckets(k));
        }
        let empty = Bucket { keys: Line([0; 16]), counts: [0; 16] };
        let lru = config.eviction == Eviction::Lru;
        // An aggregator that never steps aside needs no window to be judged by.
        let window = if config.worth_from > 0.0 { (k as u64 * 4).clamp(512, 1 << 16) } else { u64::MAX };
        Ok(Self {
            buckets: vec![empty; k],
            used: vec![0; k],
            keys: vec![[0; N]; if N == 4 { 0 } else { k * 16 }],
            stamps: vec![[0; 16]; if lru { k } else { 0 }],
            out: Box::new([Update { key: [0; N], weight: 0 }; OUT]),
            out_len: 0,
            next: 0,
            clock: 0,
            hasher: Hasher::new(config.seed, 0x61_67_67),
            eviction: config.eviction,
            instructions: Checked::new(config.instructions),
            watch: Watch {
                worth_from: config.worth_from,
                window,
                seen: 0,
                tally: Tally::default(),
                aside: if config.worth_from > 1.0 { u64::MAX } else { 0 },
                patience: Watch::FIRST,
                warm: false,
                unseen: 0,
            },
            stats: AggregatorStats::default(),
        })
    }

    /// Memory of its tables in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        size_of_val(self.buckets.as_slice())
            + size_of_val(self.used.as_slice())
            + size_of_val(self.keys.as_slice())
            + size_of_val(self.stamps.as_slice())
            + size_of_val(&*self.out)
    }

    /// Which instructions it uses.
    #[must_use]
    pub const fn instructions(&self) -> Instructions {
        self.instructions.which()
    }

    /// Counts of its work so far.
    #[must_use]
    pub const fn stats(&self) -> AggregatorStats {
        self.stats
    }

    /// Takes updates in; what leaves goes to `sink`, any number of times. Nothing is lost and nothing
    /// counted twice: after [`Aggregator::drain`], `sink` was given every key's whole weight.
    ///
    /// If the share of hits stays below `worth_from` for 4 × buckets updates, what is in the table goes to
    /// `sink`, and updates pass by it, first for 32 times as many, then up to 128 times; then it tries again.
    /// Runs of one key are joined also then.
    #[inline]
    pub fn offer(&mut self, mut updates: &[Update<N>], sink: &mut dyn FnMut(&[Update<N>])) {
        while !updates.is_empty() {
            let (limit, aside) = match self.watch.aside {
                0 => (self.watch.window - self.watch.seen, false),
                left => (left, true),
            };
            let limit = usize::try_from(limit).unwrap_or(usize::MAX);
            let (now, later) = updates.split_at(limit.min(updates.len()));
            if aside {
                self.pass_by(now, sink);
            } else {
                self.pass(now, sink);
                if self.watch.seen >= self.watch.window {
                    self.judge(sink);
                }
            }
            updates = later;
        }
    }

    /// At the end of a window: is the table worth it?
    fn judge(&mut self, sink: &mut dyn FnMut(&[Update<N>])) {
        let w = &mut self.watch;
        let share = w.tally.hits as f64 / w.tally.runs.max(1) as f64;
        (w.seen, w.tally) = (0, Tally::default());
        let least = if w.warm { w.worth_from } else { w.worth_from * Watch::COLD };
        w.warm = share >= least;
        if !w.warm {
            w.aside = w.window * w.patience;
            w.patience = (w.patience * 2).min(Watch::LAST);
            self.drain(sink);
        } else {
            w.patience = Watch::FIRST;
        }
    }

    /// Everything past the table: where a glance shows no runs, the next updates are handed on as they are.
    fn pass_by(&mut self, updates: &[Update<N>], sink: &mut dyn FnMut(&[Update<N>])) {
        let mut rest = updates;
        while let Some(glance) = rest.get(..rest.len().min(Watch::GLANCE)).filter(|g| !g.is_empty()) {
            if self.watch.unseen == 0 && pass::are_rare(pass::count_runs(glance), glance.len()) {
                self.watch.unseen = Watch::UNSEEN;
            }
            let as_they_are = self.watch.unseen > 0;
            let (some, later) =
                rest.split_at(rest.len().min(if as_they_are { self.watch.unseen } else { OUT }));
            let mut runs = some;
            if as_they_are {
                self.watch.unseen -= some.len();
            } else {
                // Nothing waits in this buffer while the table is empty.
                let n = join_runs(some, &mut self.out);
                runs = self.out.get(..n).unwrap_or_default();
            }
            self.stats.out += runs.len() as u64;
            sink(runs);
            rest = later;
        }
        self.stats.aside += updates.len() as u64;
        // A limit of u64::MAX has no end.
        if self.watch.aside < u64::MAX {
            self.watch.aside -= updates.len() as u64;
        }
    }

    /// Everything through the table.
    fn pass(&mut self, updates: &[Update<N>], sink: &mut dyn FnMut(&[Update<N>])) {
        let instructions = self.instructions;
        let mut left = 0;
        let mut counting = |some: &[Update<N>]| {
            left += some.len() as u64;
            sink(some);
        };
        let tally = if self.eviction == Eviction::Lru {
            let mut pass =
                Pass::<N, true> { table: self, updates, sink: &mut counting, tally: Tally::default() };
            instructions.run(&mut pass);
            pass.tally
        } else {
            let mut pass =
                Pass::<N, false> { table: self, updates, sink: &mut counting, tally: Tally::default() };
            instructions.run(&mut pass);
            pass.tally
        };
        self.stats.updates += updates.len() as u64;
        self.stats.hits += updates.len() as u64 - tally.runs + tally.hits;
        self.stats.out += left;
        self.watch.seen += updates.len() as u64;
        self.watch.tally.runs += tally.runs;
        self.watch.tally.hits += tally.hits;
    }

    /// Gives everything that is in the table to `sink`, and empties it. To be called before the sketch behind
    /// is asked.
    pub fn drain(&mut self, sink: &mut dyn FnMut(&[Update<N>])) {
        for index in 0..self.used.len() {
            let Some(used) = self.used.get_mut(index) else { break };
            let mut mask = std::mem::take(used);
            let Some(bucket) = self.buckets.get(index) else { break };
            while mask != 0 {
                let slot = mask.trailing_zeros() as usize;
                mask &= mask - 1;
                let (Some(word), Some(weight)) = (bucket.keys.0.get(slot), bucket.counts.get(slot)) else {
                    break;
                };
                let key = match self.keys.get(index * 16 + slot) {
                    Some(key) => *key,
                    None => pass::short_key(*word),
                };
                if let Some(out) = self.out.get_mut(self.out_len) {
                    *out = Update { key, weight: *weight };
                    self.out_len += 1;
                }
            }
            // A bucket gives at most 16, and there is room for more than that above this mark.
            if self.out_len >= pass::FLUSH {
                self.flush(sink);
            }
        }
        self.flush(sink);
    }

    fn flush(&mut self, sink: &mut dyn FnMut(&[Update<N>])) {
        if let Some(out) = self.out.get(..self.out_len).filter(|o| !o.is_empty()) {
            self.stats.out += out.len() as u64;
            sink(out);
        }
        self.out_len = 0;
    }
}
