//! A train in memory: one cache line, its first packet inside; the others in chunks of four handles (two lines each).

use super::flow_table::NONE;
use crate::frame::{Frame, Info};
use crate::pool::BufId;
use crate::prefetch::prefetch;
use crate::time::Nanos;

/// Longest frame that can be held, in bytes: the bytes of a train fit 32 bits.
pub(crate) const MAX_LEN: u32 = (1 << 24) - 1;

/// A held packet: a [`Frame`] without what its train knows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(super) struct Held {
    arrival: Nanos,
    buf: BufId,
    len: u32,
    info: Info,
}

const _: () = assert!(size_of::<Held>() == 24);

impl Held {
    #[inline(always)]
    pub(super) fn new(frame: &Frame) -> Self {
        let Frame { arrival, buf, len, info, .. } = *frame;
        Self { arrival, buf, len, info }
    }

    #[inline(always)]
    pub(super) fn frame(&self, flow: u32, hash: u32) -> Frame {
        let Self { arrival, buf, len, info } = *self;
        Frame { arrival, buf, len, info, flow, hash }
    }
}

/// A train that is being held.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct TrainSlot {
    pub(super) first: Held,
    /// Position of its first packet among all that arrived.
    pub(crate) sequence: u64,
    pub(crate) flow: u32,
    pub(super) hash: u32,
    pub(super) previous: u32,
    pub(super) next: u32,
    pub(super) first_chunk: u32,
    /// Where its next packet goes: the number of a chunk, and in the lowest two bits that of the place. A place 0 is not there
    /// yet: it is in a chunk still to be taken, behind the last place of the chunk before.
    at: u32,
    /// Captured bytes of all its packets.
    pub(super) bytes: u32,
    pub(crate) count: u16,
    pub(crate) class: u8,
}

const _: () = assert!(size_of::<TrainSlot>() == 64);

impl TrainSlot {
    /// Arrival of its first packet.
    #[inline(always)]
    pub(crate) fn base(&self) -> Nanos {
        self.first.arrival
    }

    /// The only one in the list of free ones.
    pub(super) fn free() -> Self {
        Self { next: NONE, ..Self::default() }
    }

    /// Becomes a train of one packet, the last of its class's.
    #[inline(always)]
    pub(super) fn open(
        &mut self,
        class: u8,
        sequence: u64,
        frame: &Frame,
        flow: u32,
        hash: u32,
        previous: u32,
    ) {
        *self = Self {
            first: Held::new(frame),
            sequence,
            flow,
            hash,
            previous,
            next: NONE,
            first_chunk: NONE,
            at: 0,
            bytes: frame.len,
            count: 1,
            class,
        };
    }

    /// Takes a free chunk, if there is one.
    #[inline(always)]
    pub(super) fn extend(&mut self, chunks: &mut [Chunk], free_chunk: &mut u32) -> bool {
        let new = *free_chunk;
        let Some(chunk) = chunks.get(new as usize) else { return false };
        *free_chunk = chunk.next();
        match chunks.get_mut((self.at >> 2).wrapping_sub(1) as usize) {
            Some(last) => last.set_next(new),
            None => self.first_chunk = new,
        }
        self.at = new << 2;
        true
    }

    /// Whether its next packet needs another chunk.
    #[inline(always)]
    pub(super) fn is_behind(&self) -> bool {
        self.at & 3 == 0
    }

    /// Adds a packet, for which there must be a place.
    #[inline(always)]
    pub(super) fn add(&mut self, chunks: &mut [Chunk], frame: &Frame) {
        let place = chunks.get_mut((self.at >> 2) as usize).and_then(|c| c.0.get_mut((self.at & 3) as usize));
        let Some((place, _)) = place else { return };
        *place = Held::new(frame);
        self.at += 1;
        self.bytes += frame.len;
        self.count += 1;
    }

    /// Appends its packets behind the first to `frames`, and gives its chunks back.
    #[inline(always)]
    pub(super) fn take_out(&self, chunks: &mut [Chunk], free_chunk: &mut u32, frames: &mut Vec<Frame>) {
        let mut left = usize::from(self.count) - 1;
        let mut at = self.first_chunk;
        while left > 0
            && let Some(chunk) = chunks.get(at as usize)
        {
            at = chunk.next();
            prefetch(chunks.get(at as usize));
            let held = chunk.0.get(..left).unwrap_or(&chunk.0);
            frames.extend(held.iter().map(|(held, _)| held.frame(self.flow, self.hash)));
            left -= held.len();
        }
        if let Some(last) = chunks.get_mut((self.at.wrapping_sub(1) >> 2) as usize) {
            last.set_next(*free_chunk);
            *free_chunk = self.first_chunk;
        }
    }
}

pub(super) const CHUNK: usize = 4;

/// Packets of a train, and beside the first of them the train's next chunk, or the next free one; it says nothing in a
/// train's last chunk.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(super) struct Chunk(pub(super) [(Held, u32); CHUNK]);

const _: () = assert!(size_of::<Chunk>() == 128);

impl Chunk {
    /// The only one in the list of free ones.
    pub(super) fn free() -> Self {
        Self([(Held::default(), NONE); CHUNK])
    }

    #[inline(always)]
    pub(super) fn next(&self) -> u32 {
        let [(_, next), ..] = self.0;
        next
    }

    #[inline(always)]
    fn set_next(&mut self, chunk: u32) {
        let [(_, next), ..] = &mut self.0;
        *next = chunk;
    }
}
