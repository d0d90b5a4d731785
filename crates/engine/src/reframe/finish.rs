//! What is done to a train on its way out: TCP order restored, acknowledgements coalesced.

use super::compress::{AckCompressor, AckState, PacketView};
use super::tcp_order;
use crate::frame::Frame;
use crate::pool::Pool;

/// The steps that are switched on, and what they remember.
#[derive(Debug)]
pub(crate) struct TrainFinish {
    order: bool,
    ack: Option<AckCompressor>,
    /// By flow number.
    states: Vec<AckState>,
    keep: Vec<bool>,
    permutation: Vec<u16>,
    reordered: Vec<Frame>,
}

impl TrainFinish {
    /// `None` where nothing is switched on.
    pub(crate) fn new(compress_ack: bool, order: bool) -> Option<Self> {
        (compress_ack || order).then(|| Self {
            order,
            ack: compress_ack.then(AckCompressor::default),
            states: Vec::new(),
            keep: Vec::new(),
            permutation: Vec::new(),
            reordered: Vec::new(),
        })
    }

    /// The flow of this number is a new one.
    pub(crate) fn forget(&mut self, flow: u32) {
        if self.ack.is_some() {
            if self.states.len() <= flow as usize {
                self.states.resize(flow as usize + 1, AckState::default());
            } else if let Some(state) = self.states.get_mut(flow as usize) {
                *state = AckState::default();
            }
        }
    }

    /// A packet of a flow passes at once.
    pub(crate) fn observe(&mut self, pool: &Pool, frame: &Frame) {
        if let Some(views) = views(pool, std::slice::from_ref(frame)) {
            self.coalesce(frame.flow, &views);
        }
    }

    fn coalesce(&mut self, flow: u32, views: &[PacketView<'_>]) -> usize {
        match (&mut self.ack, self.states.get_mut(flow as usize)) {
            (Some(ack), Some(state)) => ack.compress(state, views, &mut self.keep),
            _ => 0,
        }
    }

    /// Finishes the train that begins at `start` of `frames`; returns how many packets were coalesced away.
    pub(crate) fn finish(&mut self, pool: &mut Pool, frames: &mut Vec<Frame>, start: usize) -> usize {
        let Some(train) = frames.get_mut(start..) else { return 0 };
        let Some(flow) = train.first().map(|f| f.flow) else { return 0 };
        if self.order && train.len() > 1 {
            let changed = views(pool, train).is_some_and(|v| tcp_order::restore(&v, &mut self.permutation));
            if changed {
                self.reordered.clear();
                self.reordered.extend_from_slice(train);
                for (to, from) in train.iter_mut().zip(&self.permutation) {
                    if let Some(frame) = self.reordered.get(usize::from(*from)) {
                        *to = *frame;
                    }
                }
            }
        }
        let dropped = match views(pool, train) {
            Some(views) => self.coalesce(flow, &views),
            None => 0,
        };
        if dropped > 0 {
            let mut at = 0;
            let mut kept = start;
            for i in start..frames.len() {
                let Some(&frame) = frames.get(i) else { break };
                let keep = self.keep.get(at).copied().unwrap_or(true);
                at += 1;
                if keep {
                    if let Some(place) = frames.get_mut(kept) {
                        *place = frame;
                    }
                    kept += 1;
                } else {
                    pool.free(frame.buf);
                }
            }
            frames.truncate(kept);
        }
        dropped
    }
}

/// The packets' bytes, where all are TCP segments whose headers lie where their handles say.
fn views<'a>(pool: &'a Pool, frames: &[Frame]) -> Option<Vec<PacketView<'a>>> {
    if !frames.iter().all(|f| f.info.is_tcp()) {
        return None;
    }
    let view = |f: &Frame| PacketView { data: pool.data(f.buf, f.len), l3: f.info.l3(), l4: f.info.l4() };
    Some(frames.iter().map(view).collect())
}
