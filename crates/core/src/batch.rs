//! Packets and trains on their way between stages.

use alloc::vec::Vec;

use crate::frame::Frame;
use crate::keys::Keys;
use crate::time::Nanos;

/// Packets that a stage is handed at once, at most.
pub const BATCH: usize = 256;

/// A train: consecutive packets of one flow that left together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The flow's number, as in [`Frame::flow`].
    pub flow: u32,
    /// Index of its first packet in [`Batch::frames`].
    pub start: u32,
    /// Its packets.
    pub len: u32,
    /// The time at which it leaves.
    pub release: Nanos,
    /// Its place among trains that leave at the same instant: lower first, then by `sequence`.
    pub order: u64,
    /// Position of its first packet among all packets that arrived.
    pub sequence: u64,
    /// It is of the same flow as the train that this stage emitted before it: one run of packets.
    pub continues: bool,
}

/// Trains on their way out of a stage. A train is never split over two batches.
///
/// ```
/// use slipstream_core::batch::{Batch, Train};
/// use slipstream_core::frame::Frame;
/// use slipstream_core::pool::{PacketMeta, Pool};
/// use slipstream_core::time::Nanos;
///
/// let (mut pool, mut batch) = (Pool::new(), Batch::new());
/// for arrival in [10, 20, 30] {
///     let buf = pool.insert(PacketMeta::default(), &[0; 60]);
///     batch.frames.push(Frame::unclassified(Nanos(arrival), buf, 60));
/// }
/// // Two of the packets are a train, and leave together; the third is one by itself.
/// for (start, len) in [(0, 2), (2, 1)] {
///     let (release, order, sequence) = (Nanos(30), 0, start.into());
///     batch.trains.push(Train { flow: 7, start, len, release, order, sequence, continues: false });
/// }
/// let lengths: Vec<_> = batch.iter().map(|(train, frames)| (train.start, frames.len())).collect();
/// assert_eq!(lengths, [(0, 2), (2, 1)]);
///
/// // Who takes packets out of a batch frees them.
/// pool.free(batch.frames[0].buf);
/// batch.retain(&[false, true, true]);
/// assert_eq!((batch.frames.len(), batch.trains[0].len, pool.live()), (2, 1, 2));
/// ```
#[derive(Debug, Default)]
pub struct Batch {
    /// The packets of all trains, back to back.
    pub frames: Vec<Frame>,
    /// The trains, in the order in which they leave. Packets that belong to no flow are trains of one with
    /// [`Frame::NO_FLOW`].
    pub trains: Vec<Train>,
    /// The port that each train leaves by. Trains for which it has none leave by port 0: all of them where it
    /// is empty.
    pub ports: Vec<u8>,
}

impl Batch {
    /// An empty batch with room for [`BATCH`] packets.
    #[must_use]
    pub fn new() -> Self {
        Self {
            frames: Vec::with_capacity(BATCH),
            trains: Vec::with_capacity(BATCH),
            ports: Vec::with_capacity(BATCH),
        }
    }

    /// Returns true if there is nothing in it.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Forgets its packets.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
        self.trains.clear();
        self.ports.clear();
    }

    /// Takes out the packets for which `keep`, one a packet, says no, and trains that have none left.
    pub fn retain(&mut self, keep: &[bool]) {
        let Self { frames, trains, ports } = self;
        let mut at = 0;
        for train in trains.iter_mut() {
            let (start, end) = (train.start as usize, (train.start + train.len) as usize);
            train.start = at;
            train.len = keep.get(start..end).map_or(0, |k| k.iter().filter(|k| **k).count()) as u32;
            train.continues &= train.len as usize == end - start;
            at += train.len;
        }
        let mut kept = keep.iter();
        frames.retain(|_| kept.next() == Some(&true));
        let mut port = trains.iter();
        ports.retain(|_| port.next().is_some_and(|t| t.len > 0));
        trains.retain(|t| t.len > 0);
    }

    /// Adds a packet that is a train by itself.
    pub fn push_single(&mut self, frame: Frame, release: Nanos, port: u8) {
        let start = self.frames.len() as u32;
        self.frames.push(frame);
        let flow = frame.flow;
        self.trains.push(Train { flow, start, len: 1, release, order: 0, sequence: 0, continues: false });
        self.ports.push(port);
    }

    /// The trains with their packets.
    pub fn iter(&self) -> impl Iterator<Item = (&Train, &[Frame])> {
        self.trains.iter().map(|t| {
            let end = (t.start + t.len) as usize;
            (t, self.frames.get(t.start as usize..end).unwrap_or_default())
        })
    }
}

/// Packets as they arrive: handles and, for those that could be classified, their flow keys.
#[derive(Debug, Default)]
pub struct Arrivals {
    /// Handles, arrival times never decreasing.
    pub frames: Vec<Frame>,
    /// Keys, one a frame; meaningless where [`Info::classified`](crate::frame::Info::classified) is 0.
    pub keys: Keys,
    /// Position of the first frame among all packets that arrived.
    pub first: u64,
    /// Positions, one a frame, ascending, where they are not just `first`, `first + 1`, …
    pub positions: Vec<u64>,
}

impl Arrivals {
    /// Forgets its packets.
    #[inline]
    pub fn clear(&mut self) {
        self.frames.clear();
        self.keys.clear();
        self.positions.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::BufId;
    use proptest::prelude::*;

    proptest! {
        /// Against the obvious twin: a list of trains, each a list of packets.
        #[test]
        fn what_is_not_kept_is_gone(trains in prop::collection::vec(prop::collection::vec(any::<bool>(), 1..5), 0..20)) {
            let mut batch = Batch::new();
            let mut twin: Vec<(u8, Vec<u32>)> = Vec::new();
            let mut keep = Vec::new();
            for (n, train) in trains.iter().enumerate() {
                let start = batch.frames.len() as u32;
                for kept in train {
                    let buf = BufId(batch.frames.len() as u32);
                    batch.frames.push(Frame::unclassified(Nanos(0), buf, 1));
                    keep.push(*kept);
                }
                let len = train.len() as u32;
                batch.trains.push(Train { flow: 0, start, len, release: Nanos(0), order: 0, sequence: 0, continues: true });
                batch.ports.push(n as u8);
                let left = (start..).zip(train).filter(|(_, kept)| **kept).map(|(id, _)| id).collect::<Vec<_>>();
                if !left.is_empty() {
                    twin.push((n as u8, left));
                }
            }
            batch.retain(&keep);
            let ids = |frames: &[Frame]| frames.iter().map(|f| f.buf.0).collect::<Vec<_>>();
            let now: Vec<_> = batch.iter().zip(&batch.ports).map(|((_, f), port)| (*port, ids(f))).collect();
            prop_assert_eq!(now, twin);
            prop_assert_eq!(batch.ports.len(), batch.trains.len());
            prop_assert_eq!(batch.frames.len(), keep.iter().filter(|k| **k).count());
        }
    }
}
