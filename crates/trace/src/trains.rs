//! The trains that one holding window would build, and the order in which they would leave (paper §3.2, Fig.
//! 9).
//!
//! A batch opens with a packet of a flow that has none open, takes every further packet of the flow that
//! comes strictly less than `window` after the first, and leaves `window` after the first, or at once with
//! its `burst`-th packet. Batches that leave at the same time leave in the order of their first packets.
//!
//! Time never runs backwards here, so batches reach their deadlines in the order in which they opened: a ring
//! holds them. All deadlines up to a packet's arrival fire before the packet is looked at; hence a batch that
//! is still in the ring, and not yet full, takes the packet without a look at any clock.

use crate::block::{ACK_FLAG, ADVANCES, Block, CLASS, IN_IP, IN_TCP, NO_FLOW, PURE_ACK, Row};

const INITIAL_RING: usize = 256;

/// An open batch; `flow` is [`NO_FLOW`] once it has left.
#[derive(Clone, Copy, Debug)]
struct Batch {
    base: u64,
    flow: u32,
    packets: u16,
    /// Of all its packets, or-ed.
    bits: u8,
}

const GONE: Batch = Batch { base: 0, flow: NO_FLOW, packets: 0, bits: 0 };

/// A batch that has not left, with what becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Open {
    pub(crate) base: u64,
    pub(crate) flow: u32,
    pub(crate) packets: u16,
    pub(crate) bits: u8,
    /// It is counted already, and leaves with the instant.
    pub(crate) full: bool,
}

/// Batches that have not left, in the order in which they opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) open: Vec<Open>,
    /// The time at which the full ones leave.
    pub(crate) full_at: u64,
}

impl Held {
    /// The same with the numbers that flows have elsewhere.
    pub(crate) fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        let mut held = self.clone();
        held.open.iter_mut().for_each(|open| open.flow = number(open.flow));
        held
    }
}

/// The packets that left in one sequence: it counts runs of one flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Output {
    pub(crate) last: u32,
    pub(crate) runs: u64,
}

impl Output {
    pub(crate) const NEW: Self = Self { last: NO_FLOW, runs: 0 };

    #[inline]
    fn send(&mut self, flow: u32) {
        self.runs += u64::from(flow != self.last);
        self.last = flow;
    }
}

/// The effect of a window on one sequence.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TrainTotals {
    /// Batches by their size; index 0 is unused.
    pub(crate) sizes: Vec<u64>,
    /// Runs of one flow in the packets as they leave.
    pub(crate) runs_after: u64,
    /// Batches with a pure acknowledgement.
    pub(crate) batches_with_pure_ack: u64,
    /// Batches with a packet whose ACK flag is set.
    pub(crate) batches_with_ack_flag: u64,
    /// Packets that acknowledge more than their predecessor, a pure acknowledgement in the same batch as
    /// they.
    pub(crate) advancing: u64,
}

impl TrainTotals {
    pub(crate) fn merge(&mut self, other: &Self) {
        if self.sizes.len() < other.sizes.len() {
            self.sizes.resize(other.sizes.len(), 0);
        }
        self.sizes.iter_mut().zip(&other.sizes).for_each(|(a, b)| *a += b);
        self.runs_after += other.runs_after;
        self.batches_with_pure_ack += other.batches_with_pure_ack;
        self.batches_with_ack_flag += other.batches_with_ack_flag;
        self.advancing += other.advancing;
    }
}

/// The simulation of one window, over both sequences at once: a flow's batches are the same in either.
#[derive(Debug)]
pub(crate) struct Trains {
    window: u64,
    burst: u16,
    /// By flow: where in the ring its latest batch is, or was.
    latest: Vec<u32>,
    /// Batches in order of opening, `len` of them from `head` on, around the end; its size is a power of two.
    ring: Vec<Batch>,
    head: usize,
    len: usize,
    /// Batches that have been taken off the head so far.
    taken: u64,
    /// No deadline is earlier, and no full batch is to be sent earlier.
    next_event: u64,
    /// Full batches that leave at `full_at`: opening number, flow, bits.
    full: Vec<(u64, u32, u8)>,
    full_at: u64,
    counts: Counts,
    sent: Sent,
    /// The flows that left first in either sequence, of those that [`Trains::step`] sent.
    first: [u32; 2],
}

/// Batches, as they leave or are full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Counts {
    /// By class and size.
    pub(crate) sizes: Vec<u64>,
    /// Sizes of a class, with 0.
    width: usize,
    /// By the bits of their packets.
    pub(crate) bits: [u64; 256],
    /// Packets that acknowledge more than their predecessor.
    pub(crate) advancing: u64,
}

impl Counts {
    pub(crate) fn new(burst: u16) -> Self {
        let width = usize::from(burst) + 1;
        Self { sizes: vec![0; (usize::from(CLASS) + 1) * width], width, bits: [0; 256], advancing: 0 }
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.sizes.iter_mut().zip(&other.sizes).for_each(|(a, b)| *a += b);
        self.bits.iter_mut().zip(&other.bits).for_each(|(a, b)| *a += b);
        self.advancing += other.advancing;
    }

    #[inline(always)]
    fn batch(&mut self, bits: u8, packets: u16) {
        if let Some(n) = self.sizes.get_mut(usize::from(bits & CLASS) * self.width + usize::from(packets)) {
            *n += 1;
        }
        if let Some(n) = self.bits.get_mut(usize::from(bits)) {
            *n += 1;
        }
    }

    /// Batches one of whose packets has this bit.
    fn with(&self, bit: u8) -> u64 {
        (0..=u8::MAX).zip(&self.bits).filter(|(bits, _)| bits & bit != 0).map(|(_, n)| n).sum()
    }

    /// Batches by size, those of all classes that count in the sequence.
    fn sizes_in(&self, sequence: u8) -> Vec<u64> {
        let mut sizes = vec![0; self.width];
        for (class, row) in self.sizes.chunks_exact(self.width).enumerate() {
            if class & usize::from(sequence) != 0 {
                sizes.iter_mut().zip(row).for_each(|(a, b)| *a += b);
            }
        }
        sizes
    }
}

/// The packets that left in both sequences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) ip: Output,
    pub(crate) tcp: Output,
}

/// Everything that a window has counted, and what left first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) counts: Counts,
    pub(crate) sent: Sent,
    /// The flow that left first in `ip` and in `tcp`; [`NO_FLOW`] if none did.
    pub(crate) first: [u32; 2],
}

impl Body {
    pub(crate) fn new(burst: u16) -> Self {
        Self { counts: Counts::new(burst), sent: Sent::NEW, first: [NO_FLOW; 2] }
    }

    /// The same with the numbers that flows have elsewhere.
    pub(crate) fn renumbered(&self, number: impl Fn(u32) -> u32) -> Self {
        let mut body = self.clone();
        body.first = body.first.map(&number);
        body.sent.ip.last = number(body.sent.ip.last);
        body.sent.tcp.last = number(body.sent.tcp.last);
        body
    }

    /// Adds what left afterwards. `first` and `last` of either are flows of the same numbering.
    pub(crate) fn append(&mut self, later: &Self) {
        self.counts.merge(&later.counts);
        let sequences = [(&mut self.sent.ip, &later.sent.ip), (&mut self.sent.tcp, &later.sent.tcp)];
        for ((sent, more), (first, next)) in sequences.into_iter().zip(self.first.iter_mut().zip(later.first))
        {
            if next != NO_FLOW {
                sent.runs += more.runs - u64::from(sent.last == next);
                sent.last = more.last;
                *first = if *first == NO_FLOW { next } else { *first };
            }
        }
    }
}

impl Sent {
    pub(crate) const NEW: Self = Self { ip: Output::NEW, tcp: Output::NEW };

    #[inline(always)]
    fn send(&mut self, flow: u32, bits: u8) {
        if bits & IN_IP != 0 {
            self.ip.send(flow);
        }
        if bits & IN_TCP != 0 {
            self.tcp.send(flow);
        }
    }
}

impl Trains {
    pub(crate) fn new(window: u64, burst: u16) -> Self {
        Self {
            window,
            burst,
            latest: Vec::new(),
            ring: vec![GONE; INITIAL_RING],
            head: 0,
            len: 0,
            taken: 0,
            next_event: u64::MAX,
            full: Vec::new(),
            full_at: 0,
            counts: Counts::new(burst),
            sent: Sent::NEW,
            first: [NO_FLOW; 2],
        }
    }

    /// A simulation that goes on where another one was.
    pub(crate) fn resumed(window: u64, burst: u16, held: &Held, body: Body) -> Self {
        let mut all = Self::new(window, burst);
        (all.counts, all.sent, all.first) = (body.counts, body.sent, body.first);
        all.ring = vec![GONE; (held.open.len() + 1).next_power_of_two().max(INITIAL_RING)];
        all.len = held.open.len();
        for (at, (slot, open)) in all.ring.iter_mut().zip(&held.open).enumerate() {
            let Open { base, flow, packets, bits, full } = *open;
            *slot = Batch { base, flow, packets, bits };
            if full {
                slot.flow = NO_FLOW;
                all.full.push((at as u64, flow, bits));
                continue;
            }
            if all.latest.len() <= flow as usize {
                all.latest.resize(flow as usize + 1, 0);
            }
            if let Some(latest) = all.latest.get_mut(flow as usize) {
                *latest = at as u32;
            }
        }
        all.full_at = held.full_at;
        all.next_event = all.next_deadline();
        all
    }

    /// The batches that have not left. [`ADVANCES`] is counted by packet, not by batch: it is left out.
    pub(crate) fn held(&self) -> Held {
        let slots = (0..self.len).filter_map(|k| self.ring.get((self.head + k) & (self.ring.len() - 1)));
        let open = slots.zip(self.taken..).filter(|(slot, _)| slot.flow != NO_FLOW).map(|(slot, number)| {
            let Batch { base, flow, packets, bits } = *slot;
            (number, Open { base, flow, packets, bits: bits & !ADVANCES, full: false })
        });
        let full = self.full.iter().map(|&(number, flow, bits)| {
            let at = self.head.wrapping_add(number.wrapping_sub(self.taken) as usize) & (self.ring.len() - 1);
            let base = self.ring.get(at).map_or(0, |slot| slot.base);
            (number, Open { base, flow, packets: self.burst, bits: bits & !ADVANCES, full: true })
        });
        let mut all: Vec<(u64, Open)> = open.chain(full).collect();
        all.sort_by_key(|(number, _)| *number);
        let full_at = if self.full.is_empty() { 0 } else { self.full_at };
        Held { open: all.into_iter().map(|(_, open)| open).collect(), full_at }
    }

    /// Takes what was counted so far; counting begins anew from here on.
    pub(crate) fn take_body(&mut self) -> Body {
        let counts = std::mem::replace(&mut self.counts, Counts::new(self.burst));
        let sent = std::mem::replace(&mut self.sent, Sent::NEW);
        Body { counts, sent, first: std::mem::replace(&mut self.first, [NO_FLOW; 2]) }
    }

    /// Returns true once packets have left in both sequences since [`Trains::take_body`].
    pub(crate) fn knows_first(&self) -> bool {
        !self.first.contains(&NO_FLOW)
    }

    /// Returns true if [`Trains::rows`], which doesn't note what leaves first, can take these packets: that
    /// is known, or nothing is held or among them of a sequence in which it isn't. A trace may have no TCP.
    pub(crate) fn can_take(&self, rows: &[Row]) -> bool {
        let unknown = self.first.iter().zip([IN_IP, IN_TCP]).filter(|(first, _)| **first == NO_FLOW);
        let unknown = unknown.fold(0, |all, (_, sequence)| all | sequence);
        let open = (0..self.len).filter_map(|k| self.ring.get((self.head + k) & (self.ring.len() - 1)));
        let open = open.filter(|slot| slot.flow != NO_FLOW).map(|slot| slot.bits);
        let full = self.full.iter().map(|(_, _, bits)| *bits);
        unknown == 0
            || open.chain(full).chain(rows.iter().map(|row| row.bits)).all(|bits| bits & unknown == 0)
    }

    /// Takes one packet, as [`Trains::rows`] takes many, and notes what leaves first.
    pub(crate) fn step(&mut self, row: Row) {
        if self.latest.len() <= row.flow as usize {
            self.latest.resize(row.flow as usize + 1, 0);
        }
        if row.time >= self.next_event {
            self.advance(row.time);
        }
        self.packet(row.time, row.flow, row.bits);
    }

    /// Sends everything that leaves up to `now`, as is done before a packet of that time. All packets so far
    /// came earlier.
    pub(crate) fn settle(&mut self, now: u64) {
        self.advance(now);
    }

    pub(crate) fn block(&mut self, block: &Block) {
        self.rows(&block.rows, block.flows);
    }

    /// Takes packets, all of the first `flows` flows.
    pub(crate) fn rows(&mut self, mut rows: &[Row], flows: usize) {
        if self.latest.len() < flows {
            self.latest.resize(flows, 0);
        }
        loop {
            rows = self.usual(rows);
            let Some((row, later)) = rows.split_first() else { break };
            if row.time >= self.next_event {
                self.advance(row.time);
            }
            self.packet(row.time, row.flow, row.bits);
            rows = later;
        }
    }

    /// Takes rows as far as no batch fills, none that is full waits to be sent, and the ring has room;
    /// returns the others. The same as [`Trains::advance`] and [`Trains::packet`] for each, with what changes
    /// in registers.
    fn usual<'a>(&mut self, mut rows: &'a [Row]) -> &'a [Row] {
        if !self.full.is_empty() || self.burst == 1 {
            return rows;
        }
        let Self { window, burst, counts, .. } = self;
        let (window, last_but_one) = (*window, *burst - 1);
        let (latest, ring) = (self.latest.as_mut_slice(), self.ring.as_mut_slice());
        let (mut head, mut len, mut sent, mut due) = (self.head, self.len, self.sent, self.next_event);
        let (first_head, mask) = (head, ring.len() - 1);
        while let Some((&Row { time, flow, bits, .. }, later)) = rows.split_first() {
            if time >= due {
                due = u64::MAX;
                while len > 0
                    && let Some(slot) = ring.get_mut(head & mask)
                {
                    if time - slot.base < window {
                        due = slot.base.saturating_add(window);
                        break;
                    }
                    let Batch { flow, packets, bits, .. } = *slot;
                    slot.flow = NO_FLOW;
                    if flow != NO_FLOW {
                        counts.batch(bits, packets);
                        sent.send(flow, bits);
                    }
                    head += 1;
                    len -= 1;
                }
            }
            let Some(latest) = latest.get_mut(flow as usize) else { break };
            if let Some(batch) = ring.get_mut(*latest as usize)
                && batch.flow == flow
            {
                if batch.packets >= last_but_one {
                    break;
                }
                batch.packets += 1;
                batch.bits |= bits;
                counts.advancing += u64::from(bits & ADVANCES != 0);
            } else {
                if len > mask {
                    break;
                }
                let at = (head + len) & mask;
                if let Some(slot) = ring.get_mut(at) {
                    *slot = Batch { base: time, flow, packets: 1, bits };
                }
                *latest = at as u32;
                if len == 0 {
                    due = time.saturating_add(window);
                }
                len += 1;
            }
            rows = later;
        }
        self.taken += (head - first_head) as u64;
        (self.head, self.len, self.sent, self.next_event) = (head & mask, len, sent, due);
        rows
    }

    #[inline]
    fn packet(&mut self, time: u64, flow: u32, bits: u8) {
        let Some(latest) = self.latest.get_mut(flow as usize) else { return };
        let at = *latest as usize;
        if let Some(batch) = self.ring.get_mut(at)
            && batch.flow == flow
        {
            batch.packets += 1;
            batch.bits |= bits;
            self.counts.advancing += u64::from(bits & ADVANCES != 0);
            if batch.packets == self.burst {
                self.fill(at, time);
            }
            return;
        }
        if self.len == self.ring.len() {
            self.grow();
        }
        let at = (self.head + self.len) & (self.ring.len() - 1);
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = Batch { base: time, flow, packets: 1, bits };
        }
        if let Some(latest) = self.latest.get_mut(flow as usize) {
            *latest = at as u32;
        }
        self.len += 1;
        if self.len == 1 {
            self.next_event = self.next_event.min(time.saturating_add(self.window));
        }
        if self.burst == 1 {
            self.fill(at, time);
        }
    }

    /// The batch at `at` has its last packet: it leaves now, after others that leave now and opened earlier.
    fn fill(&mut self, at: usize, now: u64) {
        let number = self.taken + (at.wrapping_sub(self.head) & (self.ring.len() - 1)) as u64;
        let Some(slot) = self.ring.get_mut(at) else { return };
        let batch = std::mem::replace(slot, GONE);
        slot.base = batch.base;
        self.counts.batch(batch.bits, batch.packets);
        self.full.push((number, batch.flow, batch.bits));
        self.full_at = now;
        self.next_event = self.next_event.min(now.saturating_add(1));
    }

    /// Sends what leaves up to `now`: first the full batches of an earlier instant, then those whose deadline
    /// has come.
    ///
    /// A batch that fills at an instant opened later than any whose deadline that is, so full batches come
    /// last.
    fn advance(&mut self, now: u64) {
        if self.full_at < now && !self.full.is_empty() {
            self.send_full();
        }
        while self.len > 0
            && let Some(slot) = self.ring.get_mut(self.head)
            && now - slot.base >= self.window
        {
            let batch = std::mem::replace(slot, GONE);
            self.take_head(batch);
        }
        self.next_event = self.next_deadline();
    }

    /// The time at which something leaves next.
    fn next_deadline(&self) -> u64 {
        let first = self.ring.get(self.head).filter(|_| self.len > 0);
        let deadline = first.map_or(u64::MAX, |b| b.base.saturating_add(self.window));
        if self.full.is_empty() { deadline } else { deadline.min(self.full_at.saturating_add(1)) }
    }

    /// Notes what leaves first.
    fn note(&mut self, flow: u32, bits: u8) {
        for (first, sequence) in self.first.iter_mut().zip([IN_IP, IN_TCP]) {
            if *first == NO_FLOW && bits & sequence != 0 {
                *first = flow;
            }
        }
    }

    #[inline]
    fn take_head(&mut self, batch: Batch) {
        self.head = (self.head + 1) & (self.ring.len() - 1);
        self.len -= 1;
        self.taken += 1;
        if batch.flow != NO_FLOW {
            self.counts.batch(batch.bits, batch.packets);
            self.note(batch.flow, batch.bits);
            self.sent.send(batch.flow, batch.bits);
        }
    }

    #[cold]
    fn send_full(&mut self) {
        let mut full = std::mem::take(&mut self.full);
        full.sort_unstable();
        for (_, flow, bits) in full.drain(..) {
            self.note(flow, bits);
            self.sent.send(flow, bits);
        }
        self.full = full;
    }

    /// Doubles the ring, its head at 0 again.
    #[cold]
    fn grow(&mut self) {
        let (late, early) = self.ring.split_at(self.head.min(self.ring.len()));
        let mut ring: Vec<Batch> = early.iter().chain(late).copied().collect();
        for (at, batch) in ring.iter().enumerate().filter(|(_, b)| b.flow != NO_FLOW) {
            if let Some(latest) = self.latest.get_mut(batch.flow as usize) {
                *latest = at as u32;
            }
        }
        ring.resize(ring.len() * 2, GONE);
        self.ring = ring;
        self.head = 0;
    }

    /// Lets time run on until everything has left. What comes out: the totals of `ip` and of `tcp`.
    pub(crate) fn finish(mut self) -> (TrainTotals, TrainTotals) {
        self.send_full();
        while self.len > 0
            && let Some(slot) = self.ring.get_mut(self.head)
        {
            let batch = std::mem::replace(slot, GONE);
            self.take_head(batch);
        }
        let Self { counts, sent, .. } = self;
        let totals = |sequence, runs_after| TrainTotals {
            sizes: counts.sizes_in(sequence),
            runs_after,
            ..TrainTotals::default()
        };
        let tcp = TrainTotals {
            batches_with_pure_ack: counts.with(PURE_ACK),
            batches_with_ack_flag: counts.with(ACK_FLAG),
            advancing: counts.advancing,
            ..totals(IN_TCP, sent.tcp.runs)
        };
        (totals(IN_IP, sent.ip.runs), tcp)
    }
}
