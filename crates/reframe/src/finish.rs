//! The last steps on a train on its way out: TCP order restored, acknowledgements coalesced.

use alloc::vec::Vec;

use super::compress::{AckCompressor, AckState, PacketView};
use super::tcp_order;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;

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
    views: Vec<PacketView<'static>>,
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
            views: Vec::new(),
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

    /// Goes on where `before`, which had other settings, has ended: flows with numbers below `flows` are
    /// known.
    #[cfg(feature = "std")]
    pub(crate) fn follow(&mut self, before: Option<Self>, flows: usize) {
        if self.ack.is_some() {
            if let Some(before) = before {
                self.states = before.states;
            }
            self.states.resize(flows.max(self.states.len()), AckState::default());
        }
    }

    /// A packet of a flow passes at once.
    pub(crate) fn observe(&mut self, pool: &Pool, frame: &Frame) {
        self.coalesce(pool, core::slice::from_ref(frame));
    }

    /// Marks in `keep` which packets of a train stay; returns how many don't.
    fn coalesce(&mut self, pool: &Pool, train: &[Frame]) -> usize {
        let Some(flow) = train.first().map(|f| f.flow as usize) else { return 0 };
        let (Some(ack), Some(state)) = (&self.ack, self.states.get_mut(flow)) else { return 0 };
        let Some(views) = views(pool, train, &mut self.views) else {
            // Nothing will ever be known of a flow that is not TCP.
            if !state.is_unknown() || train.first().is_some_and(|f| f.info.is_tcp()) {
                note_all(state, pool, train);
            }
            return 0;
        };
        let dropped = ack.compress(state, &views, &mut self.keep);
        give_back(views, &mut self.views);
        dropped
    }

    fn restore_order(&mut self, pool: &Pool, train: &mut [Frame]) {
        let Some(views) = views(pool, train, &mut self.views) else { return };
        let changed = tcp_order::restore(&views, &mut self.permutation);
        give_back(views, &mut self.views);
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

    /// Finishes the train that begins at `start` of `frames`; returns how many packets were coalesced away.
    pub(crate) fn finish(&mut self, pool: &mut Pool, frames: &mut Vec<Frame>, start: usize) -> usize {
        let Some(train) = frames.get_mut(start..) else { return 0 };
        if self.order && train.len() > 1 {
            self.restore_order(pool, train);
        }
        let dropped = self.coalesce(pool, train);
        if dropped == 0 {
            return 0;
        }
        let mut kept = start;
        for at in start..frames.len() {
            let Some(&frame) = frames.get(at) else { break };
            if self.keep.get(at - start).copied().unwrap_or(true) {
                if let Some(place) = frames.get_mut(kept) {
                    *place = frame;
                }
                kept += 1;
            } else {
                pool.free(frame.buf);
            }
        }
        frames.truncate(kept);
        dropped
    }
}

/// Notes packets of which not all can be read.
#[cold]
#[inline(never)]
fn note_all(state: &mut AckState, pool: &Pool, train: &[Frame]) {
    for frame in train {
        if frame.info.is_tcp() {
            state.note(&view(pool, frame));
        } else {
            state.unreadable();
        }
    }
}

/// The packets' bytes in the memory of `spare`, where all are TCP segments whose headers can be read.
fn views<'a>(
    pool: &'a Pool,
    frames: &[Frame],
    spare: &mut Vec<PacketView<'static>>,
) -> Option<Vec<PacketView<'a>>> {
    if !frames.iter().all(|f| f.info.is_tcp()) {
        return None;
    }
    let mut views: Vec<PacketView<'a>> = core::mem::take(spare);
    views.extend(frames.iter().map(|frame| view(pool, frame)));
    Some(views)
}

fn view<'a>(pool: &'a Pool, frame: &Frame) -> PacketView<'a> {
    PacketView { data: pool.data(frame.buf, frame.len), l3: frame.info.l3(), l4: frame.info.l4() }
}

/// Keeps the memory for the next train: collecting no items in place takes none of its own.
fn give_back(mut views: Vec<PacketView<'_>>, spare: &mut Vec<PacketView<'static>>) {
    views.clear();
    *spare = views.into_iter().map(|v| PacketView { data: &[], l3: v.l3, l4: v.l4 }).collect();
}

#[cfg(test)]
mod tests {
    use slipstream_core::frame::Info;
    use slipstream_core::pool::PacketMeta;
    use slipstream_core::time::Nanos;
    use slipstream_wire::{LinkType, classify};

    use super::super::compress::test_packets::Packet;
    use super::*;

    /// Packets with these acknowledgement numbers, as frames of flow 0; of `None` the TCP header is cut.
    fn train(pool: &mut Pool, numbers: &[Option<u32>]) -> Vec<Frame> {
        let mut frame = |number: &Option<u32>| {
            let ports_only = number.is_none().then_some(14 + 20 + 4);
            let data = Packet { ack: number.unwrap_or(0), snap: ports_only, ..Packet::default() }.frame();
            let info =
                classify(LinkType::Ethernet, &data).map_or_else(|_| Info::default(), |h| Info::new(&h));
            assert_eq!(info.is_tcp(), number.is_some());
            let len = data.len() as u32;
            let buf = pool.insert(PacketMeta::default(), &data);
            Frame { info, flow: 0, ..Frame::unclassified(Nanos(0), buf, len) }
        };
        numbers.iter().map(&mut frame).collect()
    }

    /// Nobody knows which acknowledgements are duplicates of one that could not be read, wherever in its
    /// train that one came.
    #[test]
    fn behind_a_packet_that_cannot_be_read_nothing_goes() {
        let cases: [(&[Option<u32>], usize); 4] =
            [(&[Some(1000)], 1), (&[None], 0), (&[None, Some(1500)], 0), (&[Some(1500), None], 0)];
        for (between, gone) in cases {
            let mut pool = Pool::new();
            let mut finish = TrainFinish::new(true, false).unwrap();
            finish.forget(0);
            for numbers in [&[Some(1000)], between] {
                let mut frames = train(&mut pool, numbers);
                assert_eq!(finish.finish(&mut pool, &mut frames, 0), 0);
            }
            let mut frames = train(&mut pool, &[Some(2000), Some(3000)]);
            let last = frames[1].buf;
            assert_eq!(finish.finish(&mut pool, &mut frames, 0), gone, "{between:?}");
            assert_eq!((frames.len(), frames[frames.len() - 1].buf), (2 - gone, last));
        }
    }
}
