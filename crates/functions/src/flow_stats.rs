//! Flow statistics: what is known of each flow, and when it is handed out.
//!
//! A flow (directional, as the flow key has it) is handed out when it was silent for the idle timeout, when
//! it has lasted for the active timeout (then it is counted on from zero), when its place is needed, and at
//! the end. One update counts any number of packets of a train.

use slipstream_wire::{FlowKey, NarrowKey, WideKey};

use super::table::{Key, NONE, Table};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::time::Nanos;

/// The amounts that one update adds to a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Packets.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// TCP flags of all of them, or-ed.
    pub tcp_flags: u8,
    /// TOS or traffic class of the first.
    pub tos: u8,
    /// When the first of them came.
    pub first: Nanos,
    /// When the last of them came.
    pub last: Nanos,
}

/// The reason why a record ends (flowEndReason, RFC 5102 §5.11.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum EndReason {
    /// Silent for the idle timeout.
    Idle = 1,
    /// Lasting for the active timeout; the flow goes on.
    Active = 2,
    /// Everything is handed out: the end of the input.
    Forced = 4,
    /// Its place was needed.
    Resources = 5,
}

/// The record of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowRecord {
    /// The flow.
    pub key: FlowKey,
    /// Packets, since the last record of the flow.
    pub packets: u64,
    /// Bytes of IP packets.
    pub bytes: u64,
    /// When the first came.
    pub first: Nanos,
    /// When the last came.
    pub last: Nanos,
    /// TCP flags of all, or-ed.
    pub tcp_flags: u8,
    /// TOS or traffic class of the first.
    pub tos: u8,
    /// The reason why it ends.
    pub reason: EndReason,
}

/// When flows are handed out, and how many are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowStatsConfig {
    /// Flows at most, 1 to 2³⁰.
    pub flows: u32,
    /// Idle timeout in nanoseconds.
    pub idle: u64,
    /// Active timeout in nanoseconds.
    pub active: u64,
    /// Seed of the hash.
    pub seed: u64,
}

/// The settings of [`FlowStatsConfig`], in a pipeline and here by default.
pub const SETTINGS: &[Setting] = &[FLOWS, IDLE, ACTIVE];
pub(super) const FLOWS: Setting = Setting::new(
    "flows",
    Kind::Count(1, 1 << 26),
    "Flows counted at a time, at most; then one of the oldest is exported",
)
.or("131072");
pub(super) const IDLE: Setting =
    Setting::new("idle", Kind::Time(1_000_000, 86_400_000_000_000), "Silence after which a flow is exported")
        .or("15s");
pub(super) const ACTIVE: Setting = Setting::new(
    "active",
    Kind::Time(1_000_000, 86_400_000_000_000),
    "Time after which a flow that goes on is exported",
)
.or("30min");

impl FlowStatsConfig {
    /// The configuration that these values make.
    #[must_use]
    pub fn from_settings(settings: &Settings, seed: u64) -> Self {
        Self {
            flows: settings.number("flows") as u32,
            idle: settings.number("idle"),
            active: settings.number("active"),
            seed,
        }
    }
}

impl Default for FlowStatsConfig {
    fn default() -> Self {
        Self::from_settings(&Settings::defaults(SETTINGS), 0)
    }
}

#[derive(Clone, Copy, Debug)]
struct Counts {
    packets: u64,
    bytes: u64,
    first: Nanos,
    last: Nanos,
    tcp_flags: u8,
    tos: u8,
}

impl Counts {
    fn of(seen: &Observed) -> Self {
        let Observed { packets, bytes, tcp_flags, tos, first, last } = *seen;
        Self { packets, bytes, first, last, tcp_flags, tos }
    }

    /// Adds packets; the first ones anew where there are none since the last record.
    #[inline(always)]
    fn add(&mut self, seen: &Observed) {
        if self.packets == 0 {
            *self = Self::of(seen);
            return;
        }
        self.packets += seen.packets;
        self.bytes += seen.bytes;
        self.tcp_flags |= seen.tcp_flags;
        self.last = self.last.max(seen.last);
    }

    /// When the flow is handed out if nothing more comes.
    #[inline(always)]
    fn deadline(&self, config: &FlowStatsConfig) -> Nanos {
        self.last.after(config.idle).min(self.first.after(config.active))
    }

    fn record(&self, key: FlowKey, reason: EndReason) -> FlowRecord {
        let Self { packets, bytes, first, last, tcp_flags, tos } = *self;
        FlowRecord { key, packets, bytes, first, last, tcp_flags, tos, reason }
    }
}

/// A flow key as the table holds it: the word with the ports and the protocol first, which has an IP version
/// only in a long key, and the addresses. Two words are all of a short key, so that they lie in one cache
/// line with what is counted.
#[derive(Clone, Copy, Debug)]
struct Packed([u64; 7]);

impl Packed {
    fn new(key: &FlowKey) -> Self {
        let mut packed = Self([0; 7]);
        packed.set(key);
        packed
    }

    /// Becomes another key. The words beyond a short one keep what they had, and nobody asks for it.
    #[inline(always)]
    fn set(&mut self, key: &FlowKey) {
        match *key {
            FlowKey::Narrow(NarrowKey([addresses, rest])) => {
                let Self([first, second, ..]) = self;
                (*first, *second) = (rest, addresses);
            }
            FlowKey::Wide(WideKey([a, b, c, d, rest, e, f])) => *self = Self([rest, a, b, c, d, e, f]),
        }
    }

    #[inline(always)]
    const fn is_short(&self) -> bool {
        let Self([rest, ..]) = *self;
        rest & 0xff_0000 == 0
    }

    fn key(&self) -> FlowKey {
        let Self([rest, a, b, c, d, e, f]) = *self;
        if self.is_short() {
            FlowKey::Narrow(NarrowKey([a, rest]))
        } else {
            FlowKey::Wide(WideKey([a, b, c, d, rest, e, f]))
        }
    }
}

impl PartialEq for Packed {
    #[inline(always)]
    fn eq(&self, other: &Self) -> bool {
        let (Self([rest, first, more @ ..]), Self([other_rest, other_first, others @ ..])) = (self, other);
        rest == other_rest && first == other_first && (self.is_short() || more == others)
    }
}

impl Eq for Packed {}

impl Key for Packed {
    fn hash(&self, seed: u64) -> u64 {
        self.key().hash64(seed)
    }
}

/// A flow that is looked for ahead of its packets being counted.
#[derive(Clone, Copy, Debug)]
pub struct Flow {
    key: Packed,
    hash: u64,
    /// Most likely its number.
    id: u32,
}

impl Default for Flow {
    fn default() -> Self {
        Self { key: Packed([0; 7]), hash: 0, id: NONE }
    }
}

/// The flows of one worker.
///
/// ```
/// use slipstream_core::time::Nanos;
/// use slipstream_functions::flow_stats::{EndReason, FlowStats, FlowStatsConfig, Observed};
/// use slipstream_wire::FlowKey;
///
/// let mut flows = FlowStats::new(&FlowStatsConfig::default());
/// let key = FlowKey::new(&[], [10, 0, 0, 1].into(), [10, 0, 0, 2].into(), 17, 5000, 53)?;
/// let mut records = Vec::new();
/// // Two trains, and a packet after 20 s: by then the flow was silent for the idle timeout, 15 s.
/// for (packets, at) in [(3, 0), (5, 1000), (1, 20_000_000_000)] {
///     let at = Nanos(at);
///     let train = Observed { packets, bytes: 100 * packets, first: at, last: at, ..Observed::default() };
///     flows.count(&key, flows.hash(&key), &train, &mut |record| records.push(*record));
/// }
/// flows.drain(&mut |record| records.push(*record));
/// let told: Vec<_> = records.iter().map(|record| (record.packets, record.reason)).collect();
/// assert_eq!(told, [(8, EndReason::Idle), (1, EndReason::Forced)]);
/// # Ok::<(), slipstream_wire::KeyError>(())
/// ```
#[derive(Debug)]
pub struct FlowStats {
    table: Table<Packed, Counts>,
    config: FlowStatsConfig,
}

impl FlowStats {
    /// No flows yet.
    #[must_use]
    pub fn new(config: &FlowStatsConfig) -> Self {
        Self { table: Table::new(config.flows, config.seed), config: *config }
    }

    /// Memory that statistics of so many flows take when they are made, in bytes, piece by piece.
    pub(crate) fn memory(flows: u32) -> [u64; 3] {
        Table::<Packed, Counts>::memory(flows)
    }

    /// The hash of a flow, as the other functions want it.
    #[inline]
    #[must_use]
    pub fn hash(&self, key: &FlowKey) -> u64 {
        key.hash64(self.config.seed)
    }

    /// Computes the hash of a flow, and prefetches its line of the index.
    #[inline(always)]
    pub fn prefetch_index(&self, key: &FlowKey, flow: &mut Flow) {
        flow.key.set(key);
        flow.hash = self.hash(key);
        self.table.prefetch_index(flow.hash);
    }

    /// As [`prefetch_index`](Self::prefetch_index) and [`prefetch_record`](Self::prefetch_record) of a flow
    /// that had this number when it was seen last.
    #[inline(always)]
    pub fn prefetch_known(&self, key: NarrowKey, id: u32, flow: &mut Flow) {
        flow.key.set(&FlowKey::Narrow(key));
        flow.id = id;
        self.table.prefetch_entry(id);
    }

    /// Looks a flow up that was not found with the number that it was taken to have: it may have begun since,
    /// or have another one. `hashed`: its hash is known.
    #[inline(never)]
    pub fn seek(&self, flow: &mut Flow, hashed: bool) {
        if !hashed {
            flow.hash = self.hash(&flow.key.key());
        }
        flow.id = self.table.find(&flow.key, flow.hash).unwrap_or(NONE);
    }

    /// Finds the flow's number in that line, once it has come, and prefetches its record.
    #[inline(always)]
    pub fn prefetch_record(&self, flow: &mut Flow) {
        flow.id = self.table.candidate(flow.hash);
    }

    /// The number of a flow that was looked for, if it is known and its time has not passed at `now`. It may
    /// be known and not be found here.
    #[inline(always)]
    #[must_use]
    pub fn known(&self, flow: &Flow, now: Nanos) -> Option<u32> {
        self.table.holds(flow.id, &flow.key, now).then_some(flow.id)
    }

    /// Up to when packets are sure to belong to the same record as one that came at `now`: to that of a known
    /// flow, or to one that is not known or whose time had passed.
    #[must_use]
    #[inline]
    pub fn holds_until(&self, known: Option<u32>, now: Nanos) -> Nanos {
        match known {
            // Of a flow whose record the active timeout has ended, the deadline is that of silence. The
            // record that begins now ends by the active timeout, too.
            Some(id) => self.table.deadline(id).min(now.after(self.config.active)),
            None => now,
        }
    }

    /// Counts packets of a known flow, whose time has not passed when they come.
    #[inline(always)]
    pub fn count_known(&mut self, id: u32, seen: &Observed) {
        let config = &self.config;
        self.table.touch(id, |counts| {
            counts.add(seen);
            counts.deadline(config)
        });
    }

    /// Counts packets of a flow with this hash. `ended` gets the record that ends by it, if one does: that of
    /// the flow itself whose time had passed, or of another whose place it takes.
    pub fn count(&mut self, key: &FlowKey, hash: u64, seen: &Observed, ended: &mut impl FnMut(&FlowRecord)) {
        let flow = Flow { key: Packed::new(key), hash, id: self.table.candidate(hash) };
        match self.known(&flow, seen.first) {
            Some(id) => self.count_known(id, seen),
            None => {
                self.count_anew(&flow, seen, ended);
            }
        }
    }

    /// Counts packets of a flow that is not known, or whose time had passed. Returns its number, unless there
    /// is none.
    #[inline(never)]
    pub fn count_anew(
        &mut self,
        flow: &Flow,
        seen: &Observed,
        ended: &mut impl FnMut(&FlowRecord),
    ) -> Option<u32> {
        let Flow { key, hash, .. } = *flow;
        let found = self.table.find(&key, hash);
        if let Some(id) = found.filter(|&id| self.table.is_due(id, seen.first)) {
            self.end(id, seen.first, ended);
        }
        match found.and_then(|_| self.table.find(&key, hash)) {
            Some(id) => {
                self.count_known(id, seen);
                Some(id)
            }
            None => self.begin(key, hash, seen, ended),
        }
    }

    #[inline(never)]
    fn begin(
        &mut self,
        key: Packed,
        hash: u64,
        seen: &Observed,
        ended: &mut impl FnMut(&FlowRecord),
    ) -> Option<u32> {
        self.expire(seen.first, 16, ended);
        if self.table.is_full()
            && let Some(id) = self.table.soonest()
            && let Some((key, counts)) = self.table.remove(id)
            && counts.packets > 0
        {
            ended(&counts.record(key.key(), EndReason::Resources));
        }
        let counts = Counts::of(seen);
        let deadline = counts.deadline(&self.config);
        // There is room now: a table has a place at least, and every flow in it a deadline.
        self.table.insert(key, hash, counts, deadline).ok()
    }

    /// A flow's time has passed: hands it out; it stays, at zero, where only the active timeout has.
    fn end(&mut self, id: u32, now: Nanos, ended: &mut impl FnMut(&FlowRecord)) {
        let (Some(&key), Some(&counts)) = (self.table.key(id), self.table.get(id)) else { return };
        let idle_at = counts.last.after(self.config.idle);
        let reason = if idle_at <= now { EndReason::Idle } else { EndReason::Active };
        if counts.packets > 0 {
            ended(&counts.record(key.key(), reason));
        }
        if reason == EndReason::Idle {
            self.table.remove(id);
        } else {
            if let Some(counts) = self.table.get_mut(id) {
                counts.packets = 0;
            }
            self.table.renew(id, idle_at);
        }
    }

    /// Hands out flows whose time has passed, `visits` at most, within 67 ms if called that often. Returns
    /// true if there may be more.
    pub fn expire(&mut self, now: Nanos, mut visits: u32, ended: &mut impl FnMut(&FlowRecord)) -> bool {
        while let Some(id) = self.table.next_due(now, &mut visits) {
            self.end(id, now, ended);
        }
        visits == 0
    }

    /// Hands out everything, in no order that means anything, but always the same.
    pub fn drain(&mut self, ended: &mut impl FnMut(&FlowRecord)) {
        let ids: Vec<u32> = self.table.ids().collect();
        for id in ids {
            if let Some((key, counts)) = self.table.remove(id)
                && counts.packets > 0
            {
                ended(&counts.record(key.key(), EndReason::Forced));
            }
        }
    }

    /// About when the next flow's time will have passed; `None` where no flow is remembered.
    pub fn next_end(&mut self) -> Option<Nanos> {
        self.table.soonest().map(|id| self.table.deadline(id))
    }

    /// Entries far from where their hash says; see [`Index::long_probes`](super::table::Index::long_probes).
    #[must_use]
    pub const fn long_probes(&self) -> u64 {
        self.table.long_probes()
    }

    /// Flows remembered.
    #[must_use]
    pub fn flows(&self) -> u32 {
        self.table.len()
    }
}

#[cfg(test)]
mod tests;
