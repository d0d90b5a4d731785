//! Packets that came together, and what was looked up for each before its turn comes.

use slipstream_core::frame::Frame;
use slipstream_core::keys::KeySlice;
use slipstream_wire::{FlowKey, NarrowKey};

use super::flow_table::NONE;

/// The lookup results of a packet before its turn comes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found<'a> {
    pub(super) keys: &'a KeySlice<'a>,
    /// Its key, as it is kept there.
    pub(super) kept: NarrowKey,
    pub(super) hash: u64,
    pub(super) candidate: u32,
    pub(super) sequence: u64,
}

impl Found<'_> {
    pub(super) fn key(&self) -> FlowKey {
        self.keys.key_of(self.kept)
    }
}

/// Packets that came together, and what was found out about each; all slices have one length, but that
/// `positions` may be empty.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'a> {
    pub(super) frames: &'a [Frame],
    pub(super) keys: KeySlice<'a>,
    pub(super) hashes: &'a [u64],
    pub(super) candidates: &'a [u32],
    /// A bit for each packet, the lowest for the first: set where the key may be another than that of the
    /// packet before.
    pub(super) begins: u64,
    /// Position of the first packet, where `positions` doesn't say.
    pub(super) first: u64,
    pub(super) positions: &'a [u64],
}

impl Block<'_> {
    /// A packet and what was found out about it.
    #[inline(always)]
    pub(super) fn found(&self, at: usize) -> Option<(Frame, Found<'_>)> {
        let (frame, kept) = (self.frames.get(at)?, *self.keys.kept().get(at)?);
        let hash = self.hashes.get(at).copied().unwrap_or(0);
        let candidate = self.candidates.get(at).copied().unwrap_or(NONE);
        Some((*frame, Found { keys: &self.keys, kept, hash, candidate, sequence: self.sequence(at) }))
    }

    /// The number behind the last packet of the run of one key that goes on at this one.
    #[inline(always)]
    pub(super) fn run_end(&self, at: usize) -> usize {
        at + run_len(self.begins, at)
    }

    /// Position of a packet among all that arrived.
    #[inline(always)]
    pub(super) fn sequence(&self, at: usize) -> u64 {
        self.positions.get(at).copied().unwrap_or(self.first + at as u64)
    }

    /// Upper half of a packet's hash.
    #[inline(always)]
    pub(super) fn hash(&self, at: usize) -> u32 {
        (self.hashes.get(at).copied().unwrap_or(0) >> 32) as u32
    }
}

/// Packets from this one on, of at most 64, up to the next at which a run begins. The last run goes on to the
/// end, wherever that is.
#[inline(always)]
pub(super) fn run_len(begins: u64, at: usize) -> usize {
    let behind = begins.checked_shr(at as u32 + 1).unwrap_or(0);
    1 + behind.trailing_zeros() as usize
}

/// Hands over what stands for the packets of each run, with the number of its first one.
#[inline(always)]
pub(super) fn for_each_run<T>(begins: u64, of_packets: &mut [T], mut each: impl FnMut(usize, &mut [T])) {
    let (mut rest, mut at) = (of_packets, 0);
    while !rest.is_empty() {
        let (run, later) = rest.split_at_mut(run_len(begins, at).min(rest.len()));
        each(at, run);
        at += run.len();
        rest = later;
    }
}
