//! The stages `slice` and `splice` of a pipeline: two ends of one table.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slipstream_core::batch::{BATCH, Batch};
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::stage::{Context, DropReason, Drops, Observe, Output, Stage};
use slipstream_core::time::Nanos;
use slipstream_wire::LinkType;

use super::frames::free_given_up;
use super::payload_table::{PayloadTable, Refusal};
use super::reasons::{DUPLICATE_TOKEN, FORGED_TOKEN, LATE_TOKEN, MANGLED_SLICE, MARKED, STALE_TOKEN};
use super::slicer::{SliceCounters, Sliced, Slicer, Why};
use super::splicer::{REFUSALS, SpliceCounters, Splicer};
use super::token::Token;
use super::{ConfigError, SliceConfig};

/// The state that both ends of a pair share.
#[derive(Debug)]
struct Ends {
    table: PayloadTable,
    /// Splice stages that have not been drained.
    open: u32,
}

/// The table of a `slice` stage, for the `splice` stages that belong to it.
#[derive(Clone, Debug)]
pub(crate) struct Shared {
    ends: Arc<Mutex<Ends>>,
    pub(crate) config: Arc<SliceConfig>,
    /// The number by which the pool knows whose sliced packets it frees.
    owner: u32,
    /// The payload of a packet that is dropped on its way is given up at once.
    explicit_drop: bool,
}

impl Shared {
    /// A table; `owner` differs from that of every other table of the pipeline.
    pub(crate) fn new(config: SliceConfig, owner: u32, explicit_drop: bool) -> Result<Self, ConfigError> {
        let table = PayloadTable::new(&config, 0)?;
        let ends = Ends { table, open: 0 };
        Ok(Self { ends: Arc::new(Mutex::new(ends)), config: Arc::new(config), owner, explicit_drop })
    }

    /// The payloads of packets that were dropped since are given up.
    fn release_dropped(&self, cx: &mut Context<'_>, table: &mut PayloadTable) {
        cx.pool.take_dropped(self.owner, |token| {
            if self.explicit_drop {
                // A copy of the packet may have taken the payload already.
                let _gone = table.release(Token(token));
            }
        });
        free_given_up(table, cx.pool);
    }

    /// Waits for the other end only where stages run on several threads. A stage that panicked leaves a table
    /// whose entries are each whole, so it can be used on.
    fn lock(&self) -> MutexGuard<'_, Ends> {
        self.ends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slices packets.
#[derive(Debug)]
pub(crate) struct SliceStage {
    shared: Shared,
    slicer: Slicer,
    kept: Kept,
    /// Entries as they were set: the table of a stage that is only checked is a small one.
    entries: u32,
}

impl SliceStage {
    /// The way in to `shared`, which has so many entries.
    pub(crate) fn new(shared: &Shared, entries: u32) -> Result<Self, ConfigError> {
        let slicer = Slicer::new(&shared.config)?;
        Ok(Self { shared: shared.clone(), slicer, kept: Kept::new(), entries })
    }
}

impl Stage for SliceStage {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        let Self { shared, slicer, kept, .. } = self;
        let owner = shared.owner;
        let mut ends = shared.lock();
        shared.release_dropped(cx, &mut ends.table);
        let first =
            batch.iter().next().and_then(|(train, frames)| Some(train.release.max(frames.first()?.arrival)));
        ends.table.begin_batch(first.unwrap_or(cx.now));
        kept.each(cx, batch, |pool, link, frame, now| {
            match slicer.slice_frame(&mut ends.table, pool, link, frame, now, owner) {
                Sliced::Dropped => Err(MARKED),
                _ => Ok(()),
            }
        });
        drop(ends);
        kept.emit(cx, batch, out);
    }
}

impl Observe for SliceStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let SliceCounters { sliced, empty, remarked, whole, parked_bytes, tokens_from_network, .. } =
            self.slicer.counters();
        visit("sliced", sliced);
        visit("empty_slices", empty);
        visit("remarked", remarked);
        for (why, n) in Why::ALL.into_iter().zip(whole) {
            visit(why.name(), n);
        }
        visit("parked_bytes", parked_bytes);
        visit("tokens_from_network", tokens_from_network);
        let table = self.shared.lock().table.counters();
        visit("payloads_waiting", u64::from(table.waiting));
        visit("payloads_most_waiting", u64::from(table.most_waiting));
        visit("payloads_released", table.released);
        visit("payloads_expired", table.expired);
        visit("payloads_overdue", table.overdue);
        visit("payloads_left_at_end", table.reset);
    }

    fn drops(&self) -> Drops {
        self.kept.drops
    }

    fn notes(&self) -> Vec<String> {
        let few = usize::try_from(self.entries).is_ok_and(|entries| entries < BATCH);
        let note = || {
            format!(
                "functions get up to {BATCH} packets at once, of which {} are sliced at most (`entries`) and the \
                 others go whole; set {BATCH} or more",
                self.entries
            )
        };
        few.then(note).into_iter().collect()
    }
}

/// Puts packets together again.
#[derive(Debug)]
pub(crate) struct SpliceStage {
    shared: Shared,
    splicer: Splicer,
    kept: Kept,
    drained: bool,
}

impl SpliceStage {
    /// A way out of `shared`; no IP packet longer than `mtu` bytes leaves by it.
    pub(crate) fn new(shared: &Shared, mtu: u32) -> Result<Self, ConfigError> {
        let splicer = Splicer::new(&SliceConfig { mtu, ..(*shared.config).clone() })?;
        shared.lock().open += 1;
        Ok(Self { shared: shared.clone(), splicer, kept: Kept::new(), drained: false })
    }
}

/// The drop reason of a packet that gets no payload.
fn reason(refusal: Refusal) -> DropReason {
    match refusal {
        // There is one table in a pipeline, so that no token leads to another.
        Refusal::Forged | Refusal::Elsewhere(_) => FORGED_TOKEN,
        Refusal::Stale => STALE_TOKEN,
        Refusal::Late | Refusal::Released => LATE_TOKEN,
        Refusal::Duplicate => DUPLICATE_TOKEN,
        Refusal::Mangled | Refusal::Swapped | Refusal::Hidden => MANGLED_SLICE,
        Refusal::Oversize => DropReason::TooBig,
    }
}

impl Stage for SpliceStage {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        let Self { shared, splicer, kept, .. } = self;
        let mut ends = shared.lock();
        kept.each(cx, batch, |pool, link, frame, now| {
            splicer.splice_frame(&mut ends.table, pool, link, frame, now).map(drop).map_err(reason)
        });
        drop(ends);
        kept.emit(cx, batch, out);
    }

    /// Nothing more will come: payloads that still wait are given up once every splice stage of theirs knows
    /// that.
    fn drain(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        if std::mem::replace(&mut self.drained, true) {
            return;
        }
        let mut ends = self.shared.lock();
        ends.open = ends.open.saturating_sub(1);
        if ends.open == 0 {
            self.shared.release_dropped(cx, &mut ends.table);
            ends.table.reset();
            free_given_up(&mut ends.table, cx.pool);
        }
    }
}

impl Observe for SpliceStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let SpliceCounters { untouched, spliced, quotes, refused, .. } = self.splicer.counters();
        visit("spliced", spliced);
        visit("untouched", untouched);
        visit("quotes_restored", quotes);
        for (name, n) in REFUSALS.into_iter().zip(refused) {
            visit(name, n);
        }
    }

    fn drops(&self) -> Drops {
        self.kept.drops
    }
}

/// The packets of a batch that a stage keeps, and the reasons for which it dropped others.
#[derive(Debug)]
struct Kept {
    keep: Vec<bool>,
    drops: Drops,
}

impl Kept {
    fn new() -> Self {
        Self { keep: Vec::with_capacity(BATCH), drops: Drops::default() }
    }

    /// Applies `work` to every packet of a batch, with its link type and its time; drops those that it has a
    /// reason for.
    #[inline(always)]
    fn each(
        &mut self,
        cx: &mut Context<'_>,
        batch: &mut Batch,
        mut work: impl FnMut(&mut Pool, LinkType, &mut Frame, Nanos) -> Result<(), DropReason>,
    ) {
        self.keep.clear();
        let Batch { frames, trains, .. } = batch;
        for train in trains.iter() {
            let of_train = train.start as usize..(train.start + train.len) as usize;
            for frame in frames.get_mut(of_train).unwrap_or_default() {
                let (link, now) = (cx.link(frame), train.release.max(frame.arrival));
                let done = work(cx.pool, link, frame, now);
                self.keep.push(done.is_ok());
                if let Err(reason) = done {
                    self.drops.add(reason, 1);
                    cx.pool.free(frame.buf);
                }
            }
        }
    }

    /// Emits the packets that it keeps.
    fn emit(&self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        if self.keep.iter().any(|kept| !kept) {
            batch.retain(&self.keep);
        }
        // A packet that comes in by a port goes out by the one of the same number.
        batch.ports.clear();
        if cx.input > 0 {
            batch.ports.resize(batch.trains.len(), cx.input);
        }
        if !batch.is_empty() {
            out.emit(cx.pool, batch);
        }
        batch.clear();
    }
}
