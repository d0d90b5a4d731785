//! Runs, distances and flow switches of a stretch, such that those of a longer one follow.
//!
//! The batches in which switches are counted begin at the trace's first packet, so that a stretch does not
//! know where in a batch its packets are. It counts for each place at which it may begin: neighbours of
//! different flows by their place in a batch, so that those across two batches can be left out; and the
//! packets that are the first of their flow in the batch, for each beginning.

use slipstream_stats::Histogram;

use crate::block::NO_FLOW;
use crate::distances::{OrderTotals, SwitchTotals};

/// The counts for batches of one size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Phases {
    /// Neighbours of different flows, by the position of the later one modulo the size.
    pub(crate) changes: Vec<u64>,
    /// Counted by the number of packets of the batch that came before the stretch: packets that are the first
    /// of their flow in their batch, but for those that are the first of their flow in the stretch.
    pub(crate) fresh: Vec<u64>,
}

impl Phases {
    pub(crate) fn new(size: u32) -> Self {
        Self { changes: vec![0; size as usize], fresh: vec![0; size as usize] }
    }
}

/// One sequence of a stretch. Positions count from 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) packets: u64,
    pub(crate) runs: u64,
    /// Flows of the first and the last packet; [`NO_FLOW`] if there is none.
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) spatial: Histogram,
    /// By size of the batches.
    pub(crate) phases: Vec<Phases>,
    /// Flows of the last packets: as many as can be in a batch that is not complete.
    pub(crate) tail: Vec<u32>,
    /// In place of the two before, of a [section](crate::sections): every packet, to be counted once it is
    /// known where in a batch the first one is.
    pub(crate) notes: Vec<Note>,
}

/// Of a packet: how far back its flow's packet before is (15 bits, [`Note::FAR`] if farther), and whether its
/// neighbour before is of another flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Note(u16);

impl Note {
    /// Farther than any batch may reach, or there is none.
    pub(crate) const FAR: u16 = i16::MAX as u16;

    #[inline(always)]
    pub(crate) fn new(distance: u64, changed: bool) -> Self {
        Self(distance.min(u64::from(Self::FAR)) as u16 | u16::from(changed) << 15)
    }

    /// The distance, `u64::MAX` if it is far; and the other.
    #[inline(always)]
    pub(crate) fn read(self) -> (u64, bool) {
        let distance = self.0 & Self::FAR;
        (if distance == Self::FAR { u64::MAX } else { distance.into() }, self.0 >> 15 != 0)
    }
}

/// The most packets of a batch that is not complete.
pub(crate) fn tail_len(batches: &[u32]) -> usize {
    batches.iter().max().map_or(0, |size| *size as usize - 1)
}

impl Order {
    pub(crate) fn new(batches: &[u32]) -> Self {
        Self {
            packets: 0,
            runs: 0,
            first: NO_FLOW,
            last: NO_FLOW,
            spatial: Histogram::new(),
            phases: batches.iter().copied().map(Phases::new).collect(),
            tail: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Adds the stretch that follows, its flows numbered as here. `pairs` has, for each flow of both, the
    /// position of its first packet there and of its last one here.
    pub(crate) fn append(&mut self, next: &Self, map: impl Fn(u32) -> u32, pairs: &[(u64, u64)]) {
        if next.packets == 0 {
            return;
        }
        let (first, before) = (map(next.first), self.packets);
        let changed = before > 0 && first != self.last;
        for (mine, theirs) in self.phases.iter_mut().zip(&next.phases) {
            mine.append(theirs, before, changed, pairs);
        }
        self.spatial.merge(&next.spatial);
        pairs.iter().for_each(|(there, here)| self.spatial.record(before + there - here));
        self.runs += next.runs - u64::from(before > 0 && !changed);
        self.packets += next.packets;
        if before == 0 {
            self.first = first;
        }
        self.last = map(next.last);
        let room = self.phases.iter().map(|p| p.changes.len()).max().map_or(0, |size| size - 1);
        self.tail.extend(next.tail.iter().map(|flow| map(*flow)));
        self.tail.drain(..self.tail.len().saturating_sub(room));
    }

    /// The totals of a trace that is this stretch; `flows` of it have packets in this sequence.
    pub(crate) fn totals(&self, flows: u64) -> OrderTotals {
        OrderTotals {
            packets: self.packets,
            runs: self.runs,
            spatial: self.spatial.clone(),
            temporal: Default::default(),
            switches: self.phases.iter().map(|phases| self.switches(phases, flows)).collect(),
        }
    }

    fn switches(&self, phases: &Phases, flows: u64) -> SwitchTotals {
        let size = phases.changes.len() as u64;
        let (batches, left) = (self.packets / size.max(1), self.packets % size.max(1));
        let rest = self.tail.get(self.tail.len().saturating_sub(left as usize)..).unwrap_or_default();
        let mut distinct = rest.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let changes_in_rest = rest.windows(2).filter(|pair| pair.first() != pair.last()).count() as u64;
        let inside: u64 = phases.changes.iter().skip(1).sum();
        let fresh = phases.fresh.first().copied().unwrap_or(0) + flows;
        SwitchTotals {
            batches,
            unordered: inside.saturating_sub(changes_in_rest),
            ordered: fresh.saturating_sub(distinct.len() as u64).saturating_sub(batches),
        }
    }
}

impl Phases {
    fn append(&mut self, next: &Self, before: u64, changed: bool, pairs: &[(u64, u64)]) {
        let size = self.changes.len() as u64;
        if size == 0 {
            return;
        }
        let by = (before % size) as usize;
        let later = next.changes.iter().cycle().skip(size as usize - by);
        self.changes.iter_mut().zip(later).for_each(|(a, b)| *a += b);
        if let Some(n) = self.changes.get_mut(by) {
            *n += u64::from(changed);
        }
        let later = next.fresh.iter().cycle().skip(by);
        self.fresh.iter_mut().zip(later).for_each(|(a, b)| *a += b);
        let mut fresh = Fresh::new(size as u32);
        for (there, here) in pairs {
            fresh.packet((before + there - 1) % size, before + there - here);
        }
        fresh.add_to(&mut self.fresh);
    }
}

/// Packets that are the first of their flow in their batch, by where the first batch begins.
#[derive(Clone, Debug)]
struct Fresh {
    size: u64,
    always: u64,
    /// Differences from one beginning to the next.
    steps: Vec<i64>,
}

impl Fresh {
    fn new(size: u32) -> Self {
        Self { size: size.into(), always: 0, steps: vec![0; size as usize] }
    }

    /// A packet at a position modulo the size, counted from 0, `distance` behind its flow's packet before: it
    /// is the first of its flow if fewer than `distance` packets of its batch come before it.
    #[inline]
    fn packet(&mut self, position: u64, distance: u64) {
        if distance >= self.size {
            self.always += 1;
            return;
        }
        let from = if position == 0 { 0 } else { self.size - position };
        self.step(from, 1);
        if from + distance < self.size {
            self.step(from + distance, -1);
        } else {
            self.step(0, 1);
            self.step(from + distance - self.size, -1);
        }
    }

    #[inline]
    fn step(&mut self, at: u64, by: i64) {
        if let Some(step) = self.steps.get_mut(at as usize) {
            *step += by;
        }
    }

    fn add_to(&self, fresh: &mut [u64]) {
        let mut sum = self.always as i64;
        for (n, step) in fresh.iter_mut().zip(&self.steps) {
            sum += step;
            *n += sum as u64;
        }
    }
}

/// A sequence that is being recorded.
#[derive(Debug)]
pub(crate) struct Recording {
    order: Order,
    fresh: Vec<Fresh>,
    /// Positions, counted from 0, of the next packet, modulo the sizes.
    places: Vec<u64>,
    tail_len: usize,
    /// Packets are noted, not counted.
    noted: bool,
}

impl Recording {
    pub(crate) fn new(batches: &[u32]) -> Self {
        Self {
            order: Order::new(batches),
            fresh: batches.iter().copied().map(Fresh::new).collect(),
            places: vec![0; batches.len()],
            tail_len: tail_len(batches),
            noted: false,
        }
    }

    /// Of a section: packets are noted.
    pub(crate) fn noting() -> Self {
        Self { noted: true, ..Self::new(&[]) }
    }

    /// The next packet is of `flow`, last seen at `previous`, 0 if never. Returns its position.
    #[inline(always)]
    pub(crate) fn packet(&mut self, flow: u32, previous: u64) -> u64 {
        let order = &mut self.order;
        let changed = flow != order.last;
        order.runs += u64::from(changed);
        order.last = flow;
        order.packets += 1;
        if order.packets == 1 {
            order.first = flow;
        }
        let distance = if previous > 0 { order.packets - previous } else { u64::MAX };
        if previous > 0 {
            order.spatial.record(distance);
        }
        if self.noted {
            // The first packet's neighbour is known only where the section is joined, which tells it.
            order.notes.push(Note::new(distance, changed));
            return order.packets;
        }
        self.count(flow, distance, changed);
        self.order.packets
    }

    /// Counts the latest packet, `distance` behind its flow's packet before, `u64::MAX` if there is none.
    fn count(&mut self, flow: u32, distance: u64, changed: bool) {
        let order = &mut self.order;
        let changed = changed && order.packets > 1;
        for ((phases, fresh), place) in order.phases.iter_mut().zip(&mut self.fresh).zip(&mut self.places) {
            if let Some(n) = phases.changes.get_mut(*place as usize) {
                *n += u64::from(changed);
            }
            if distance < u64::MAX {
                fresh.packet(*place, distance);
            }
            *place = if *place + 1 == fresh.size { 0 } else { *place + 1 };
        }
        order.tail.push(flow);
        if order.tail.len() >= 2 * self.tail_len + 4096 {
            order.tail.drain(..order.tail.len() - self.tail_len);
        }
    }

    pub(crate) fn finish(mut self) -> Order {
        for (phases, fresh) in self.order.phases.iter_mut().zip(&self.fresh) {
            fresh.add_to(&mut phases.fresh);
        }
        self.order.tail.drain(..self.order.tail.len().saturating_sub(self.tail_len));
        self.order
    }
}
