//! The trains that are being held, and when they are due.
//!
//! A train is one cache line: its first packet inside, the others in chunks of five handles (two lines each). Trains
//! of one class wait in one list, first come first served: the class has one hold time, so the list is in the order
//! of deadlines and every operation is O(1). Lines are used again last in, first out, so that they stay in cache.

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
    last_chunk: u32,
    /// Captured bytes of all its packets.
    bytes: u32,
    pub(crate) count: u16,
    pub(crate) class: u8,
    /// Free places in its last chunk.
    room: u8,
}

const _: () = assert!(size_of::<TrainSlot>() == 64);

impl TrainSlot {
    /// Arrival of its first packet.
    #[inline]
    pub(crate) fn base(&self) -> Nanos {
        self.first.arrival
    }
}

const CHUNK: usize = 5;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(64))]
struct Chunk {
    held: [Held; CHUNK],
    next: u32,
    used: u32,
}

const _: () = assert!(size_of::<Chunk>() == 128);

/// Slots that are given out by number and taken back; room for all is reserved at the start.
#[derive(Debug)]
struct Arena<T> {
    slots: Vec<T>,
    free: Vec<u32>,
}

impl<T: Default> Arena<T> {
    fn new(limit: usize) -> Self {
        Self { slots: huge::with_capacity(limit), free: Vec::with_capacity(limit) }
    }

    /// A slot to be filled in; it holds whatever it held last.
    #[inline(always)]
    fn take(&mut self) -> u32 {
        match self.free.pop() {
            Some(id) => id,
            None => self.take_new(),
        }
    }

    #[cold]
    #[inline(never)]
    fn take_new(&mut self) -> u32 {
        self.slots.push(T::default());
        (self.slots.len() - 1) as u32
    }

    #[inline(always)]
    fn give_back(&mut self, id: u32) {
        self.free.push(id);
    }

    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "numbers come from `take`, and slots are never taken away")]
    fn get(&self, id: u32) -> &T {
        &self.slots[id as usize]
    }

    #[inline(always)]
    #[expect(clippy::indexing_slicing, reason = "numbers come from `take`, and slots are never taken away")]
    fn get_mut(&mut self, id: u32) -> &mut T {
        &mut self.slots[id as usize]
    }
}

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
    trains: Arena<TrainSlot>,
    chunks: Arena<Chunk>,
    lists: Vec<List>,
    packets: u32,
    bytes: u64,
    due: Nanos,
}

impl Hold {
    /// Room for `capacity` packets, and one list for each class's hold time.
    pub(crate) fn new(capacity: u32, hold_ns: impl Iterator<Item = u64>) -> Self {
        let capacity = capacity as usize;
        Self {
            trains: Arena::new(capacity + 1),
            chunks: Arena::new(capacity / 2 + 1),
            lists: hold_ns.map(|hold_ns| List { head: NONE, tail: NONE, hold_ns, due: Nanos::MAX }).collect(),
            packets: 0,
            bytes: 0,
            due: Nanos::MAX,
        }
    }

    /// Packets held.
    #[inline]
    pub(crate) fn packets(&self) -> u32 {
        self.packets
    }

    /// Trains that are held, or on their way out.
    #[inline(always)]
    pub(crate) fn trains(&self) -> u32 {
        (self.trains.slots.len() - self.trains.free.len()) as u32
    }

    /// Captured bytes held.
    #[inline]
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// When the next train is due; [`Nanos::MAX`] when none is held.
    #[inline]
    pub(crate) fn due(&self) -> Nanos {
        self.due
    }

    #[inline(always)]
    pub(crate) fn train(&self, id: u32) -> &TrainSlot {
        self.trains.get(id)
    }

    /// Asks for the line of a train that a packet may be added to soon, if there is one.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: u32) {
        prefetch(self.trains.slots.get(id as usize));
    }

    /// Asks for the place where a train's next packet goes.
    #[inline(always)]
    pub(crate) fn prefetch_place(&self, id: u32) {
        if let Some(train) = self.trains.slots.get(id as usize) {
            let place = self.chunks.slots.get(train.last_chunk as usize).map(|c| &c.held);
            prefetch(place.and_then(|held| held.get(CHUNK - usize::from(train.room).min(CHUNK))));
        }
    }

    /// Starts a train with its first packet.
    #[inline(always)]
    pub(crate) fn open(&mut self, class: u8, sequence: u64, frame: &Frame) -> u32 {
        let Some(list) = self.lists.get_mut(class as usize) else { return NONE };
        let previous = list.tail;
        let id = self.trains.take();
        list.tail = id;
        if previous == NONE {
            list.head = id;
            list.due = frame.arrival.after(list.hold_ns);
            self.due = self.due.min(list.due);
        } else {
            self.trains.get_mut(previous).next = id;
        }
        let train = self.trains.get_mut(id);
        train.first = Held::new(frame);
        train.sequence = sequence;
        train.flow = frame.flow;
        train.hash = frame.hash;
        train.previous = previous;
        train.next = NONE;
        train.first_chunk = NONE;
        train.last_chunk = NONE;
        train.bytes = frame.len;
        train.count = 1;
        train.class = class;
        train.room = 0;
        self.packets += 1;
        self.bytes += u64::from(frame.len);
        id
    }

    /// Adds a packet to a train; returns how many it has now.
    #[inline(always)]
    pub(crate) fn append(&mut self, id: u32, frame: &Frame) -> u16 {
        self.packets += 1;
        self.bytes += u64::from(frame.len);
        if self.trains.get(id).room == 0 {
            self.add_chunk(id);
        }
        let train = self.trains.get_mut(id);
        train.count += 1;
        train.bytes += frame.len;
        train.room -= 1;
        let count = train.count;
        let chunk = self.chunks.get_mut(train.last_chunk);
        if let Some(slot) = chunk.held.get_mut(chunk.used as usize) {
            *slot = Held::new(frame);
        }
        chunk.used += 1;
        count
    }

    fn add_chunk(&mut self, id: u32) {
        let new = self.chunks.take();
        let chunk = self.chunks.get_mut(new);
        chunk.next = NONE;
        chunk.used = 0;
        let train = self.trains.get_mut(id);
        let last = std::mem::replace(&mut train.last_chunk, new);
        train.room = CHUNK as u8;
        if last == NONE {
            train.first_chunk = new;
        } else {
            self.chunks.get_mut(last).next = new;
        }
    }

    /// The train that is due first.
    #[inline(always)]
    pub(crate) fn first_due(&self) -> Option<u32> {
        if let [one] = self.lists.as_slice() {
            return (one.head != NONE).then_some(one.head);
        }
        self.first_due_of_many()
    }

    fn first_due_of_many(&self) -> Option<u32> {
        if self.due == Nanos::MAX {
            // A deadline at the end of time still has to be met at the end of input.
            return self.lists.iter().find(|l| l.head != NONE).map(|l| l.head);
        }
        self.lists.iter().find(|l| l.due == self.due && l.head != NONE).map(|l| l.head)
    }

    /// The train whose first packet came first.
    pub(crate) fn oldest(&self) -> Option<u32> {
        let heads = self.lists.iter().map(|l| l.head).filter(|h| *h != NONE);
        heads.min_by_key(|h| self.trains.get(*h).sequence)
    }

    /// Takes a train out of its list: it is about to leave, and no longer counts as held.
    #[inline(always)]
    pub(crate) fn unlink(&mut self, id: u32) -> &TrainSlot {
        let TrainSlot { previous, next, class, count, bytes, .. } = *self.trains.get(id);
        self.packets -= u32::from(count);
        self.bytes -= u64::from(bytes);
        let mut next_base = Nanos::MAX;
        if next != NONE {
            let next = self.trains.get_mut(next);
            next.previous = previous;
            next_base = next.base();
            let (after, chunk) = (next.next, next.first_chunk);
            prefetch(self.trains.slots.get(after as usize));
            prefetch(self.chunks.slots.get(chunk as usize));
        }
        if previous != NONE {
            self.trains.get_mut(previous).next = next;
        }
        if let Some(list) = self.lists.get_mut(class as usize) {
            if next == NONE {
                list.tail = previous;
            }
            if previous == NONE {
                list.head = next;
                list.due = next_base.after(list.hold_ns);
                self.due = match self.lists.as_slice() {
                    [one] => one.due,
                    all => all.iter().map(|l| l.due).min().unwrap_or(Nanos::MAX),
                };
            }
        }
        self.trains.get(id)
    }

    /// Hands over an unlinked train's packets and gives its memory back.
    #[inline(always)]
    pub(crate) fn close(&mut self, id: u32, mut take: impl FnMut(Frame)) {
        self.trains.give_back(id);
        let train = self.trains.get(id);
        let (flow, hash) = (train.flow, train.hash);
        take(train.first.frame(flow, hash));
        let mut at = train.first_chunk;
        while at != NONE {
            let chunk = self.chunks.get(at);
            prefetch(self.chunks.slots.get(chunk.next as usize));
            for held in chunk.held.iter().take(chunk.used as usize) {
                take(held.frame(flow, hash));
            }
            let next = chunk.next;
            self.chunks.give_back(at);
            at = next;
        }
    }

    /// As [`Hold::close`] for a train of one packet.
    #[inline(always)]
    pub(crate) fn close_single(&mut self, id: u32) -> Frame {
        self.trains.give_back(id);
        let train = self.trains.get(id);
        train.first.frame(train.flow, train.hash)
    }

    /// Packets held, by class.
    pub(crate) fn by_class(&self) -> Vec<u64> {
        let count = |list: &List| {
            let mut at = list.head;
            let mut n = 0;
            while at != NONE {
                let train = self.trains.get(at);
                n += u64::from(train.count);
                at = train.next;
            }
            n
        };
        self.lists.iter().map(count).collect()
    }
}
