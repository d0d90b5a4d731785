//! The trains that are being held, and when they are due.
//!
//! A train is one cache line: its first packet inside, the others in chunks of five handles (two lines each). Trains
//! of one class wait in one list, first come first served: the class has one hold time, so the list is in the order
//! of deadlines and every operation is O(1). Free lines are chained up and used again last in, first out, so that they
//! stay in cache.

use crate::frame::{Frame, Info};
use crate::huge;
use crate::pool::BufId;
use crate::prefetch::prefetch;
use crate::reframe::flow_table::NONE;
use crate::time::Nanos;

/// Longest frame that can be held, in bytes: the bytes of a train fit 32 bits.
pub(crate) const MAX_LEN: u32 = (1 << 24) - 1;

/// A held packet: a [`Frame`] without what its train knows.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Held {
    arrival: Nanos,
    buf: BufId,
    len: u32,
    info: Info,
}

const _: () = assert!(size_of::<Held>() == 24);

impl Held {
    #[inline(always)]
    fn new(frame: &Frame) -> Self {
        let Frame { arrival, buf, len, info, .. } = *frame;
        Self { arrival, buf, len, info }
    }

    #[inline(always)]
    fn frame(&self, flow: u32, hash: u32) -> Frame {
        let Self { arrival, buf, len, info } = *self;
        Frame { arrival, buf, len, info, flow, hash }
    }
}

/// A train that is being held.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct TrainSlot {
    first: Held,
    /// Position of its first packet among all that arrived.
    pub(crate) sequence: u64,
    pub(crate) flow: u32,
    hash: u32,
    previous: u32,
    next: u32,
    first_chunk: u32,
    /// Where its next packet goes.
    at: Place,
    /// Captured bytes of all its packets.
    bytes: u32,
    pub(crate) count: u16,
    pub(crate) class: u8,
}

const _: () = assert!(size_of::<TrainSlot>() == 64);

impl TrainSlot {
    /// Its first packet.
    #[inline(always)]
    pub(crate) fn frame(&self) -> Frame {
        self.first.frame(self.flow, self.hash)
    }

    /// Arrival of its first packet.
    #[inline(always)]
    pub(crate) fn base(&self) -> Nanos {
        self.first.arrival
    }

    /// Takes a free chunk, if there is one.
    #[inline(always)]
    fn extend(&mut self, chunks: &mut [Chunk], free_chunk: &mut u32) -> bool {
        let new = *free_chunk;
        let Some(chunk) = chunks.get(new as usize) else { return false };
        *free_chunk = chunk.next;
        match chunks.get_mut(self.at.chunk() as usize) {
            Some(last) => last.next = new,
            None => self.first_chunk = new,
        }
        self.at = Place(new << 3);
        true
    }

    /// Adds a packet, for which there must be a place.
    #[inline(always)]
    fn add(&mut self, chunks: &mut [Chunk], frame: &Frame) {
        let place = chunks.get_mut(self.at.chunk() as usize).and_then(|c| c.held.get_mut(self.at.number()));
        let Some(place) = place else { return };
        *place = Held::new(frame);
        self.at = self.at.next();
        self.bytes += frame.len;
        self.count += 1;
    }
}

const CHUNK: usize = 5;

/// A place of a chunk: the chunk's number, and in the lowest three bits that of the place, which is [`CHUNK`] behind its last.
#[derive(Clone, Copy, Debug)]
struct Place(u32);

impl Place {
    /// Behind the last place of no chunk.
    const NOWHERE: Self = Self(NONE << 3 | CHUNK as u32);

    #[inline(always)]
    fn chunk(self) -> u32 {
        self.0 >> 3
    }

    #[inline(always)]
    fn number(self) -> usize {
        (self.0 & 7) as usize
    }

    /// Whether the chunk has no such place.
    #[inline(always)]
    fn is_behind(self) -> bool {
        self.number() == CHUNK
    }

    #[inline(always)]
    fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl Default for Place {
    fn default() -> Self {
        Self::NOWHERE
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Chunk {
    held: [Held; CHUNK],
    /// The train's next chunk, or the next free one. Says nothing in a train's last chunk.
    next: u32,
}

const _: () = assert!(size_of::<Chunk>() == 128);

/// Trains of one class in the order in which they are due.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    hold_ns: u64,
    /// Deadline of the head, [`Nanos::MAX`] when empty.
    due: Nanos,
}

/// All trains that are being held.
#[derive(Debug)]
pub(crate) struct Hold {
    trains: Vec<TrainSlot>,
    chunks: Vec<Chunk>,
    /// The list of class 0, then the others'.
    first: List,
    others: Vec<List>,
    /// When the first of all lists is due; with one list that list says so itself.
    due_of_many: Nanos,
    packets: u32,
    /// Most packets held so far, as far as [`Hold::note_peak`] was told.
    peak: u32,
    bytes: u64,
    /// Where the chains of free places begin; [`NONE`] where there is no free one.
    free_train: u32,
    free_chunk: u32,
}

impl Hold {
    /// Room for `capacity` packets, and one list for each class's hold time.
    pub(crate) fn new(capacity: u32, mut hold_ns: impl Iterator<Item = u64>) -> Self {
        let capacity = capacity as usize;
        let list = |hold_ns| List { head: NONE, tail: NONE, hold_ns, due: Nanos::MAX };
        Self {
            trains: huge::with_capacity(capacity + 1),
            chunks: huge::with_capacity(capacity / 2 + 1),
            first: list(hold_ns.next().unwrap_or(0)),
            others: hold_ns.map(list).collect(),
            due_of_many: Nanos::MAX,
            packets: 0,
            peak: 0,
            bytes: 0,
            free_train: NONE,
            free_chunk: NONE,
        }
    }

    /// Packets held.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Captured bytes held.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Most packets held at once.
    pub(crate) fn peak(&self) -> u32 {
        self.peak.max(self.packets)
    }

    /// That many are held and fewer will be: to be told before a train is taken out.
    #[inline(always)]
    pub(crate) fn note_peak(&mut self, packets: u32) {
        self.peak = self.peak.max(packets);
    }

    /// When the next train is due; [`Nanos::MAX`] when none is held.
    #[inline(always)]
    pub(crate) fn due(&self) -> Nanos {
        if self.others.is_empty() { self.first.due } else { self.due_of_many }
    }

    /// As [`Hold::due`] and [`Hold::first_due`] where there is one class: the train is [`NONE`] when none is held.
    #[inline(always)]
    pub(crate) fn first_of_one_class(&self) -> (Nanos, u32) {
        (self.first.due, self.first.head)
    }

    /// How many trains of class 0, from the one that is due first on, are due before `now`, are of one packet and have no
    /// other that is due with them; at most `most`.
    #[inline(always)]
    pub(crate) fn singles(&self, now: Nanos, most: usize) -> usize {
        let hold_ns = self.first.hold_ns;
        let mut n = 0;
        let mut slot = self.trains.get(self.first.head as usize);
        while let Some(train) = slot
            && n < most
        {
            let next = self.trains.get(train.next as usize);
            let together = next.is_some_and(|next| next.base() == train.base());
            if train.count != 1 || together || train.base().after(hold_ns) >= now {
                break;
            }
            slot = next;
            n += 1;
        }
        n
    }

    /// The first `n` trains of class 0. There must be so many.
    #[inline(always)]
    pub(crate) fn leading(&self, n: usize) -> impl ExactSizeIterator<Item = &TrainSlot> {
        let mut at = self.first.head;
        (0..n).map(move |_| {
            let train = self.train(at);
            at = train.next;
            train
        })
    }

    /// Takes out the first `n` trains of class 0, which are of one packet each, and gives back their memory.
    #[inline(always)]
    pub(crate) fn close_leading(&mut self, n: usize) {
        let List { head, hold_ns, .. } = self.first;
        let (mut last, mut next, mut bytes) = (NONE, head, 0);
        for _ in 0..n {
            let train = self.train(next);
            (last, next) = (next, train.next);
            bytes += u64::from(train.bytes);
        }
        let Some(train) = self.trains.get_mut(last as usize) else { return };
        // Their list becomes the beginning of that of free ones.
        train.next = std::mem::replace(&mut self.free_train, head);
        let due = self.trains.get(next as usize).map_or(Nanos::MAX, |train| train.base().after(hold_ns));
        if next == NONE {
            self.first.tail = NONE;
        }
        (self.first.head, self.first.due) = (next, due);
        self.packets -= n as u32;
        self.bytes -= bytes;
    }

    /// Adds a packet to a train of class 0, if that neither fills it up to `burst` nor takes more memory, and the packet arrives
    /// before the train is due; returns whether it did. The packet must be counted.
    #[inline(always)]
    pub(crate) fn join(&mut self, id: u32, frame: &Frame, burst: u16) -> bool {
        let Self { trains, chunks, free_chunk, first, .. } = self;
        let Some(train) = trains.get_mut(id as usize) else { return false };
        if train.count + 1 >= burst || frame.arrival.since(train.base()) >= first.hold_ns {
            return false;
        }
        if train.at.is_behind() && !train.extend(chunks, free_chunk) {
            return false;
        }
        train.add(chunks, frame);
        true
    }

    /// Whether a train can be opened without more memory.
    #[inline(always)]
    pub(crate) fn has_free_train(&self) -> bool {
        self.free_train != NONE
    }

    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "slots are never taken away, so a number once given out is in range"
    )]
    pub(crate) fn train(&self, id: u32) -> &TrainSlot {
        &self.trains[id as usize]
    }

    /// Asks for the line of a train that a packet may be added to soon, if there is one.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: u32) {
        prefetch(self.trains.get(id as usize));
    }

    #[inline(always)]
    fn list(&mut self, class: u8) -> Option<&mut List> {
        match class {
            0 => Some(&mut self.first),
            n => self.others.get_mut(usize::from(n) - 1),
        }
    }

    fn lists(&self) -> impl Iterator<Item = &List> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Makes room for a train and for a chunk, where there is none; returns whether that was so.
    #[inline(always)]
    pub(crate) fn grow(&mut self) -> bool {
        let full = self.free_train == NONE || self.free_chunk == NONE;
        if self.free_train == NONE {
            self.free_train = self.trains.len() as u32;
            self.trains.push(TrainSlot { next: NONE, ..TrainSlot::default() });
        }
        if self.free_chunk == NONE {
            self.free_chunk = self.chunks.len() as u32;
            self.chunks.push(Chunk { next: NONE, ..Chunk::default() });
        }
        full
    }

    /// Counts packets that [`Hold::open`] and [`Hold::append`] stored, and their captured bytes.
    #[inline(always)]
    pub(crate) fn count(&mut self, packets: u32, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Starts a train with its first packet. There must be room; see [`Hold::grow`]. The packet must be counted.
    #[inline(always)]
    pub(crate) fn open(&mut self, class: u8, sequence: u64, frame: &Frame, flow: u32, hash: u32) -> u32 {
        let id = self.free_train;
        let Some(list) = self.list(class) else { return NONE };
        let previous = std::mem::replace(&mut list.tail, id);
        if previous == NONE {
            list.head = id;
            list.due = frame.arrival.after(list.hold_ns);
            if !self.others.is_empty() {
                self.due_of_many = self.lists().map(|l| l.due).min().unwrap_or(Nanos::MAX);
            }
        } else if let Some(previous) = self.trains.get_mut(previous as usize) {
            previous.next = id;
        }
        let Some(train) = self.trains.get_mut(id as usize) else { return NONE };
        self.free_train = train.next;
        train.first = Held::new(frame);
        train.sequence = sequence;
        train.flow = flow;
        train.hash = hash;
        train.previous = previous;
        train.next = NONE;
        train.first_chunk = NONE;
        train.at = Place::NOWHERE;
        train.bytes = frame.len;
        train.count = 1;
        train.class = class;
        id
    }

    /// As [`Hold::join`], where most packets open a train.
    #[inline(never)]
    pub(crate) fn join_seldom(&mut self, id: u32, frame: &Frame, burst: u16) -> bool {
        self.join(id, frame, burst)
    }

    /// As [`Hold::open`] with class 0, where most packets join a train.
    #[inline(never)]
    pub(crate) fn open_seldom(&mut self, sequence: u64, frame: &Frame, flow: u32, hash: u32) -> u32 {
        self.open(0, sequence, frame, flow, hash)
    }

    /// Adds a packet to a train; returns how many it has now. There must be room; see [`Hold::grow`]. The
    /// packet must be counted.
    #[inline(always)]
    pub(crate) fn append(&mut self, id: u32, frame: &Frame) -> u16 {
        let Self { trains, chunks, free_chunk, .. } = self;
        let Some(train) = trains.get_mut(id as usize) else { return 0 };
        if train.at.is_behind() {
            train.extend(chunks, free_chunk);
        }
        train.add(chunks, frame);
        train.count
    }

    /// The train that is due first.
    #[inline(always)]
    pub(crate) fn first_due(&self) -> Option<u32> {
        if self.others.is_empty() {
            return (self.first.head != NONE).then_some(self.first.head);
        }
        self.first_due_of_many()
    }

    fn first_due_of_many(&self) -> Option<u32> {
        if self.due_of_many == Nanos::MAX {
            // A deadline at the end of time still has to be met at the end of input.
            return self.lists().find(|l| l.head != NONE).map(|l| l.head);
        }
        self.lists().find(|l| l.due == self.due_of_many && l.head != NONE).map(|l| l.head)
    }

    /// The train whose first packet came first.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let heads = self.lists().map(|l| l.head).filter(|h| *h != NONE);
        heads.min_by_key(|h| self.train(*h).sequence)
    }

    /// Takes a train out of its list: it is about to leave, and no longer counts as held.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, id: u32) {
        let TrainSlot { previous, next, class, count, bytes, .. } = *self.train(id);
        self.packets -= u32::from(count);
        self.bytes -= u64::from(bytes);
        let after = self.trains.get_mut(next as usize).map(|next| {
            next.previous = previous;
            (next.base(), next.next, next.first_chunk)
        });
        let Some(list) = self.list(class) else { return };
        let first = list.head == id;
        if after.is_none() {
            list.tail = if first { NONE } else { previous };
        }
        if first {
            list.head = next;
            list.due = after.map_or(Nanos::MAX, |(base, ..)| base.after(list.hold_ns));
            let (_, train, chunk) = after.unwrap_or((Nanos::MAX, NONE, NONE));
            prefetch(self.chunks.get(chunk as usize));
            prefetch(self.trains.get(train as usize));
            if !self.others.is_empty() {
                self.due_of_many = self.lists().map(|l| l.due).min().unwrap_or(Nanos::MAX);
            }
        } else if let Some(previous) = self.trains.get_mut(previous as usize) {
            previous.next = next;
        }
    }

    /// Hands over an unlinked train's packets and gives its memory back.
    #[inline(always)]
    pub(crate) fn close(&mut self, id: u32, frames: &mut Vec<Frame>) {
        let Some(train) = self.trains.get_mut(id as usize) else { return };
        let (flow, hash) = (train.flow, train.hash);
        frames.push(train.first.frame(flow, hash));
        let mut left = usize::from(train.count) - 1;
        let mut at = train.first_chunk;
        while left > 0 {
            let Some(chunk) = self.chunks.get(at as usize) else { break };
            prefetch(self.chunks.get(chunk.next as usize));
            let held = chunk.held.get(..left).unwrap_or(&chunk.held);
            frames.extend(held.iter().map(|held| held.frame(flow, hash)));
            left -= held.len();
            at = chunk.next;
        }
        if let Some(last) = self.chunks.get_mut(train.at.chunk() as usize) {
            last.next = self.free_chunk;
            self.free_chunk = train.first_chunk;
        }
        train.next = self.free_train;
        self.free_train = id;
    }

    /// Packets held, by class.
    pub(crate) fn by_class(&self) -> Vec<u64> {
        let count = |list: &List| {
            let mut at = list.head;
            let mut n = 0;
            while at != NONE {
                let train = self.train(at);
                n += u64::from(train.count);
                at = train.next;
            }
            n
        };
        self.lists().map(count).collect()
    }
}
