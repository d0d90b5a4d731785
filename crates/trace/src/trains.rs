//! The trains that one holding window would build, and the order in which they would leave (paper §3.2, Fig. 9).
//!
//! A batch opens with a packet of a flow that has none open, takes every further packet of the flow that comes strictly
//! less than `window` after the first, and leaves `window` after the first, or at once with its `burst`-th packet.
//! Batches that leave at the same time leave in the order of their first packets.
//!
//! Time never runs backwards here, so batches reach their deadlines in the order in which they opened: a ring holds
//! them. All deadlines up to a packet's arrival fire before the packet is looked at; hence a batch that is still in the
//! ring, and not yet full, takes the packet without a look at any clock.

use crate::block::{ACK_FLAG, ADVANCES, Block, CLASS, IN_IP, IN_TCP, NO_FLOW, PURE_ACK};

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

/// What left in one sequence: how many runs of one flow there were.
#[derive(Clone, Copy, Debug)]
struct Output {
    last: u32,
    runs: u64,
}

impl Output {
    const NEW: Self = Self { last: NO_FLOW, runs: 0 };

    #[inline]
    fn send(&mut self, flow: u32) {
        self.runs += u64::from(flow != self.last);
        self.last = flow;
    }
}

/// What a window did to one sequence.
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
    /// Packets that acknowledge more than their predecessor, a pure acknowledgement in the same batch as they.
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
    /// By class and size.
    sizes: Vec<u64>,
    batches_with_pure_ack: u64,
    batches_with_ack_flag: u64,
    advancing: u64,
    ip: Output,
    tcp: Output,
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
            sizes: vec![0; (usize::from(CLASS) + 1) * (usize::from(burst) + 1)],
            batches_with_pure_ack: 0,
            batches_with_ack_flag: 0,
            advancing: 0,
            ip: Output::NEW,
            tcp: Output::NEW,
        }
    }

    pub(crate) fn block(&mut self, block: &Block) {
        if self.latest.len() < block.flows {
            self.latest.resize(block.flows, 0);
        }
        for row in &block.rows {
            if row.time >= self.next_event {
                self.advance(row.time);
            }
            self.packet(row.time, row.flow, row.bits);
        }
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
            self.advancing += u64::from(bits & ADVANCES != 0);
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
        self.count(batch.bits, batch.packets);
        self.full.push((number, batch.flow, batch.bits));
        self.full_at = now;
        self.next_event = self.next_event.min(now.saturating_add(1));
    }

    /// Sends what leaves up to `now`: first the full batches of an earlier instant, then those whose deadline has come.
    ///
    /// A batch that fills at an instant opened later than any whose deadline that is, so full batches come last.
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
        self.next_event = self
            .ring
            .get(self.head)
            .filter(|_| self.len > 0)
            .map_or(u64::MAX, |b| b.base.saturating_add(self.window));
        if !self.full.is_empty() {
            self.next_event = self.next_event.min(self.full_at.saturating_add(1));
        }
    }

    #[inline]
    fn take_head(&mut self, batch: Batch) {
        self.head = (self.head + 1) & (self.ring.len() - 1);
        self.len -= 1;
        self.taken += 1;
        if batch.flow != NO_FLOW {
            self.count(batch.bits, batch.packets);
            self.send(batch.flow, batch.bits);
        }
    }

    #[cold]
    fn send_full(&mut self) {
        let mut full = std::mem::take(&mut self.full);
        full.sort_unstable();
        full.drain(..).for_each(|(_, flow, bits)| self.send(flow, bits));
        self.full = full;
    }

    #[inline]
    fn send(&mut self, flow: u32, bits: u8) {
        if bits & IN_IP != 0 {
            self.ip.send(flow);
        }
        if bits & IN_TCP != 0 {
            self.tcp.send(flow);
        }
    }

    #[inline]
    fn count(&mut self, bits: u8, packets: u16) {
        let row = usize::from(bits & CLASS) * (usize::from(self.burst) + 1);
        if let Some(n) = self.sizes.get_mut(row + usize::from(packets)) {
            *n += 1;
        }
        self.batches_with_pure_ack += u64::from(bits & PURE_ACK != 0);
        self.batches_with_ack_flag += u64::from(bits & ACK_FLAG != 0);
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
        let ip =
            TrainTotals { sizes: self.sizes_in(IN_IP), runs_after: self.ip.runs, ..TrainTotals::default() };
        let tcp = TrainTotals {
            sizes: self.sizes_in(IN_TCP),
            runs_after: self.tcp.runs,
            batches_with_pure_ack: self.batches_with_pure_ack,
            batches_with_ack_flag: self.batches_with_ack_flag,
            advancing: self.advancing,
        };
        (ip, tcp)
    }

    /// Batches by size, those of all classes that count in the sequence.
    fn sizes_in(&self, sequence: u8) -> Vec<u64> {
        let width = usize::from(self.burst) + 1;
        let mut sizes = vec![0; width];
        for (class, row) in self.sizes.chunks_exact(width).enumerate() {
            if class & usize::from(sequence) != 0 {
                sizes.iter_mut().zip(row).for_each(|(a, b)| *a += b);
            }
        }
        sizes
    }
}
