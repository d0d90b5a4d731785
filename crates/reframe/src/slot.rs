//! A train in memory: one cache line, its first packet inside; the others in chunks of seven (two lines
//! each). Of those a chunk has 16 bytes a packet, what the first one doesn't say: the fewer lines trains
//! take, the more of them stay in the cache until they leave.

use alloc::vec::Vec;

use super::flow_table::NONE;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::BufId;
use slipstream_core::prefetch::prefetch;
use slipstream_core::time::Nanos;

/// Longest frame that can be held, in bytes: the bytes of a train fit 32 bits.
const _: () = assert!(slipstream_core::frame::MAX_FRAME_LEN == (1 << 24) - 1);

/// Layer offsets of packets that differ from their train's first in them, by their places. There are hardly
/// any: packets of one flow have the same layers but for IP options. It takes no memory before the first one.
#[derive(Debug, Default)]
pub(super) struct Odd(Vec<u64>);

impl Odd {
    /// Set beside the layers of a place that has some.
    const THERE: u64 = 1 << 32;

    /// Bytes for the places of a chunk.
    pub(super) const BYTES: usize = size_of::<[u64; 8]>();

    /// Takes the memory for all places of so many chunks.
    pub(super) fn reserve(&mut self, chunks: usize) {
        self.0.reserve_exact(8 * chunks);
    }

    fn insert(&mut self, at: u32, layers: u32, chunks: usize) {
        if self.0.len() <= at as usize {
            self.0.resize(8 * chunks, 0);
        }
        if let Some(place) = self.0.get_mut(at as usize) {
            *place = Self::THERE | u64::from(layers);
        }
    }

    fn remove(&mut self, at: u32) -> Option<u32> {
        let place = self.0.get_mut(at as usize)?;
        let layers = core::mem::take(place);
        (layers & Self::THERE != 0).then_some(layers as u32)
    }
}

/// A held packet behind the first of its train.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(16))]
struct Held {
    buf: BufId,
    len: u32,
    /// After the first one, in ns: no hold is longer than 32 bits say.
    later_ns: u32,
    /// See [`Info::rest`].
    info: u32,
}

const _: () = assert!(size_of::<Held>() == 16 && super::ReframeConfig::MAX_HOLD_NS <= u32::MAX as u64);

/// A train that is being held.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct TrainSlot {
    pub(super) first: Frame,
    /// Position of its first packet among all that arrived.
    pub(crate) sequence: u64,
    pub(super) previous: u32,
    pub(super) next: u32,
    pub(super) first_chunk: u32,
    /// Place of its next packet: the number of a chunk, and in the lowest three bits that of the place. There
    /// is no place 0: it says that the chunk before is full.
    at: u32,
    /// Captured bytes of all its packets.
    pub(super) bytes: u32,
    pub(crate) count: u16,
    pub(crate) class: u8,
    /// Some of its packets are [`Odd`].
    odd: bool,
}

const _: () = assert!(size_of::<TrainSlot>() == 64);

impl TrainSlot {
    /// Arrival of its first packet.
    #[inline(always)]
    pub(crate) fn base(&self) -> Nanos {
        self.first.arrival
    }

    /// Number of its flow.
    #[inline(always)]
    pub(crate) fn flow(&self) -> u32 {
        self.first.flow
    }

    /// The only one in the list of free ones.
    pub(super) fn free() -> Self {
        Self { next: NONE, ..Self::default() }
    }

    /// Becomes a train of one packet, the last of its class's.
    #[inline(always)]
    pub(super) fn open(&mut self, class: u8, sequence: u64, first: Frame, previous: u32) {
        let (bytes, next, first_chunk) = (first.len, NONE, NONE);
        *self =
            Self { first, sequence, previous, next, first_chunk, at: 0, bytes, count: 1, class, odd: false };
    }

    /// Takes a free chunk, if there is one.
    #[inline(always)]
    pub(super) fn extend(&mut self, chunks: &mut [Chunk], free_chunk: &mut u32) -> bool {
        let new = *free_chunk;
        let Some(chunk) = chunks.get(new as usize) else { return false };
        *free_chunk = chunk.next();
        match chunks.get_mut((self.at >> 3).wrapping_sub(1) as usize) {
            Some(last) => last.set_next(new),
            None => self.first_chunk = new,
        }
        self.at = new << 3 | 1;
        true
    }

    /// Returns true if its next packet needs another chunk.
    #[inline(always)]
    pub(super) fn is_behind(&self) -> bool {
        self.at & 7 == 0
    }

    /// Returns true if a packet differs from its first in what is kept but once.
    #[inline(always)]
    pub(super) fn is_odd(&self, frame: &Frame) -> bool {
        self.first.info.layers() != frame.info.layers()
    }

    /// Adds a packet, for which there must be a place.
    #[inline(always)]
    pub(super) fn add(&mut self, chunks: &mut [Chunk], frame: &Frame) {
        let place = chunks.get_mut((self.at >> 3) as usize).and_then(|c| c.0.get_mut((self.at & 7) as usize));
        let Some(place) = place else { return };
        let later_ns = frame.arrival.0.wrapping_sub(self.first.arrival.0) as u32;
        *place = Held { buf: frame.buf, len: frame.len, later_ns, info: frame.info.rest() };
        self.at += 1;
        self.bytes += frame.len;
        self.count += 1;
    }

    /// Adds packets of its flow one after the other, up to the first that fills it up to `burst`, comes
    /// `hold_ns` after its first or later, is odd, or finds no place and no free chunk. Returns how many it
    /// added.
    #[inline(always)]
    pub(super) fn join(
        &mut self,
        chunks: &mut [Chunk],
        free_chunk: &mut u32,
        frames: &[Frame],
        burst: u16,
        hold_ns: u64,
    ) -> usize {
        let (base, layers) = (self.first.arrival.0, self.first.info.layers());
        let later = |frame: &Frame| frame.arrival.0.wrapping_sub(base);
        let joins = |frame: &Frame| later(frame) < hold_ns && frame.info.layers() == layers;
        let room = usize::from(burst.saturating_sub(self.count).saturating_sub(1));
        let mut left = frames.get(..room).unwrap_or(frames);
        let (most, mut at, mut bytes) = (left.len(), self.at, 0);
        while let Some(next) = left.first()
            && joins(next)
        {
            if at & 7 == 0 {
                self.at = at;
                if !self.extend(chunks, free_chunk) {
                    break;
                }
                at = self.at;
            }
            let chunk = chunks.get_mut((at >> 3) as usize);
            let Some(places) = chunk.and_then(|c| c.0.get_mut((at & 7) as usize..)) else { break };
            let mut n = 0;
            for (place, frame) in places.iter_mut().zip(left) {
                if !joins(frame) {
                    break;
                }
                let (later_ns, info) = (later(frame) as u32, frame.info.rest());
                *place = Held { buf: frame.buf, len: frame.len, later_ns, info };
                bytes += frame.len;
                n += 1;
            }
            at += n;
            left = left.get(n as usize..).unwrap_or_default();
        }
        let added = most - left.len();
        self.at = at;
        self.bytes += bytes;
        self.count += added as u16;
        added
    }

    /// As [`TrainSlot::add`], of any packet.
    pub(super) fn add_any(&mut self, chunks: &mut [Chunk], odd: &mut Odd, frame: &Frame) {
        if self.is_odd(frame) {
            self.odd = true;
            odd.insert(self.at, frame.info.layers(), chunks.len());
        }
        self.add(chunks, frame);
    }

    /// Appends its packets to `frames`, and gives its chunks back.
    #[inline(always)]
    pub(super) fn take_out(
        &self,
        chunks: &mut [Chunk],
        free_chunk: &mut u32,
        odd: &mut Odd,
        frames: &mut Vec<Frame>,
    ) {
        let first = self.first;
        frames.push(first);
        if self.count == 1 {
            return;
        }
        let (layers, mut left, mut at) = (first.info.layers(), usize::from(self.count) - 1, self.first_chunk);
        while left > 0
            && let Some(chunk) = chunks.get(at as usize)
        {
            let [_, held @ ..] = &chunk.0;
            let held = held.get(..left).unwrap_or(held);
            let start = frames.len();
            frames.extend(held.iter().map(|held| Frame {
                arrival: Nanos(first.arrival.0.wrapping_add(u64::from(held.later_ns))),
                buf: held.buf,
                len: held.len,
                info: Info::of_halves(layers, held.info),
                ..first
            }));
            if self.odd {
                correct(odd, at, frames.get_mut(start..).unwrap_or_default());
            }
            left -= held.len();
            at = chunk.next();
            prefetch(chunks.get(at as usize));
        }
        if let Some(last) = chunks.get_mut((self.at.wrapping_sub(1) >> 3) as usize) {
            last.set_next(*free_chunk);
            *free_chunk = self.first_chunk;
        }
    }
}

/// Gives odd packets of a chunk what is kept of them elsewhere.
#[cold]
fn correct(odd: &mut Odd, chunk: u32, frames: &mut [Frame]) {
    for (place, frame) in (chunk << 3 | 1..).zip(frames) {
        if let Some(layers) = odd.remove(place) {
            frame.info = Info::of_halves(layers, frame.info.rest());
        }
    }
}

/// Packets of a train in the places 1 to 7. Place 0 has none: its `info` is the number of the train's next
/// chunk, or the next free one; it says nothing in a train's last chunk.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(super) struct Chunk([Held; 8]);

const _: () = assert!(size_of::<Chunk>() == 128);

impl Chunk {
    /// The only one in the list of free ones.
    pub(super) fn free() -> Self {
        Self([Held { info: NONE, ..Held::default() }; 8])
    }

    #[inline(always)]
    fn next(&self) -> u32 {
        let [link, ..] = &self.0;
        link.info
    }

    #[inline(always)]
    fn set_next(&mut self, chunk: u32) {
        let [link, ..] = &mut self.0;
        link.info = chunk;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::hold::Hold;
    use super::*;

    proptest! {
        /// Against the obvious twin: a list of frames for each train.
        #[test]
        fn packets_come_out_as_they_went_in(
            steps in prop::collection::vec((0usize..4, 0u64..1_000_000_000, any::<u64>(), 0u32..3, 0u32..2000, any::<bool>()), 0..200),
        ) {
            let mut hold = Hold::new(1000, [4_000_000_000].into_iter());
            let mut trains: [Option<(u32, Vec<Frame>)>; 4] = Default::default();
            let mut now = 0;
            for (n, (flow, gap, rest, layers, len, leaves)) in steps.into_iter().enumerate() {
                // Most packets of a flow have the same layers.
                let layers = if layers == 0 { n as u32 } else { 34 << 16 | 14 };
                let train = &mut trains[flow];
                now += gap / 1000;
                let info = Info::of_halves(layers, rest as u32 & 0x00ff_ffff);
                let frame = Frame { arrival: Nanos(now), buf: BufId(n as u32), len, info, flow: flow as u32, hash: 7 };
                hold.grow();
                hold.count(1, u64::from(len));
                match train {
                    Some((id, twin)) => {
                        twin.push(frame);
                        prop_assert_eq!(usize::from(hold.append(*id, &frame)), twin.len());
                    }
                    None => *train = Some((hold.open(0, n as u64, frame), vec![frame])),
                }
                if leaves && let Some((id, twin)) = train.take() {
                    hold.unlink(id);
                    let mut frames = Vec::new();
                    hold.close(id, &mut frames);
                    prop_assert_eq!(frames, twin);
                }
            }
            let left: usize = trains.iter().flatten().map(|(_, twin)| twin.len()).sum();
            prop_assert_eq!(hold.packets() as usize, left);
        }
    }
}
