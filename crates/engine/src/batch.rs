//! Packets and trains on their way between stages.

use slipstream_wire::FlowKey;

use crate::frame::Frame;
use crate::time::Nanos;

/// Packets that a stage is handed at once, at most.
pub const BATCH: usize = 256;

/// A train: consecutive packets of one flow that left together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Train {
    /// The flow's number, as in [`Frame::flow`].
    pub flow: u32,
    /// Where its packets begin in [`Batch::frames`].
    pub start: u32,
    /// Its packets.
    pub len: u32,
    /// When it leaves.
    pub release: Nanos,
    /// Its place among trains that leave at the same instant: lower first, then by `sequence`.
    pub order: u64,
    /// Position of its first packet among all packets that arrived.
    pub sequence: u64,
    /// It is of the same flow as the train that this stage emitted before it: one run of packets.
    pub continues: bool,
}

/// Trains on their way out of a stage. A train is never split over two batches.
#[derive(Debug, Default)]
pub struct Batch {
    /// The packets of all trains, back to back.
    pub frames: Vec<Frame>,
    /// The trains, in the order in which they leave. Packets that belong to no flow are trains of one with
    /// [`Frame::NO_FLOW`].
    pub trains: Vec<Train>,
    /// The port that each train leaves by; empty where all leave by port 0.
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

    /// Whether there is nothing in it.
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

    /// Adds a packet that is a train by itself.
    pub(crate) fn push_single(&mut self, frame: Frame, release: Nanos, port: u8) {
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
    pub keys: Vec<FlowKey>,
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
