//! The trains that are being held, and when they are due.
//!
//! Trains of one class wait in one list, first come first served: the class has one hold time, so the list is
//! in the order of deadlines and every operation is O(1). Free lines are chained up and used again last in,
//! first out, so that they stay in cache.

use alloc::vec::Vec;
use core::ops::Range;

use super::adaptive::{Adaptive, Timers};
use super::block::Block;
use super::flow_table::{Entry, NONE, is_open};
use super::slot::{Chunk, Odd, TrainSlot};
use slipstream_core::frame::Frame;
use slipstream_core::huge;
use slipstream_core::prefetch::prefetch;
use slipstream_core::time::Nanos;

/// Trains of one class in the order in which they are due.
#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    hold_ns: u64,
    /// Deadline of the head, [`Nanos::MAX`] when empty.
    due: Nanos,
    /// The wheel with the deadlines of these trains, where the hold is adaptive.
    wheel: u8,
}

/// Trains that are due first; see [`Hold::leading`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leading {
    pub(crate) trains: usize,
    packets: usize,
    bytes: u64,
    last: u32,
}

/// All trains that are being held.
#[derive(Debug)]
pub(crate) struct Hold {
    trains: Vec<TrainSlot>,
    chunks: Vec<Chunk>,
    odd: Odd,
    /// The list of class 0, then the others'.
    first: List,
    others: Vec<List>,
    /// The deadlines of trains, where the hold is adaptive.
    timers: Option<Timers>,
    /// There is one list, and nothing else says when a train is due.
    single: bool,
    /// The time at which the first of all lists is due; a single list says so itself.
    due_of_many: Nanos,
    packets: u32,
    /// Most packets held so far, as far as [`Hold::note_peak`] was told.
    peak: u32,
    bytes: u64,
    /// Heads of the lists of free places; [`NONE`] if there is no free one.
    free_train: u32,
    free_chunk: u32,
}

impl Hold {
    /// Room for `capacity` packets, and one list for each class's hold time.
    pub(crate) fn new(capacity: u32, mut hold_ns: impl Iterator<Item = u64>) -> Self {
        let capacity = capacity as usize;
        let list = |hold_ns| List { head: NONE, tail: NONE, hold_ns, due: Nanos::MAX, wheel: 0 };
        Self {
            trains: huge::with_capacity(capacity + 1),
            chunks: huge::with_capacity(capacity / 2 + 1),
            odd: Odd::default(),
            first: list(hold_ns.next().unwrap_or(0)),
            others: hold_ns.map(list).collect(),
            timers: None,
            single: true,
            due_of_many: Nanos::MAX,
            packets: 0,
            peak: 0,
            bytes: 0,
            free_train: NONE,
            free_chunk: NONE,
        }
        .of_many()
    }

    /// Sizes in bytes of what room for so many packets takes, unusual ones included.
    pub(crate) fn memory(capacity: u32, timers: bool) -> [usize; 4] {
        let (trains, chunks) = (capacity as usize + 1, capacity as usize / 2 + 1);
        let timers = if timers { trains.saturating_mul(Timers::BYTES) } else { 0 };
        [
            trains.saturating_mul(size_of::<TrainSlot>()),
            chunks.saturating_mul(size_of::<Chunk>()),
            chunks.saturating_mul(Odd::BYTES),
            timers,
        ]
    }

    fn of_many(mut self) -> Self {
        self.single = self.others.is_empty() && self.timers.is_none();
        self
    }

    /// Each train has a deadline of its own, which it is given by [`Hold::wait`] as soon as it is
    /// opened.
    pub(crate) fn with_timers(mut self, adaptive: &Adaptive) -> Self {
        self.timers = Some(Timers::new(self.trains.capacity(), adaptive.scales()));
        let lists = core::iter::once(&mut self.first).chain(&mut self.others);
        lists.zip(adaptive.wheels()).for_each(|(list, wheel)| list.wheel = wheel);
        self.of_many()
    }

    /// A train, whose last packet came at `now`, waits so many ns for the next one, rounding up included, but
    /// no longer than the hold of its class. Returns false if it can't wait.
    #[inline(always)]
    pub(crate) fn wait(&mut self, id: u32, now: Nanos, ns: u64) -> bool {
        let train = self.train(id);
        let (class, base, opens) = (train.class, train.base(), train.count == 1);
        let (hold_ns, wheel) = self.list(class).map_or((0, 0), |list| (list.hold_ns, list.wheel));
        let Some(timers) = &mut self.timers else { return false };
        timers.cover(self.trains.len());
        let (wake, bound) = (at_end(now, ns), at_end(base, hold_ns));
        let mut deadlines = timers.wheel(wheel);
        if opens { deadlines.begin(id, now, wake, bound) } else { deadlines.join(id, now, wake, bound) }
    }

    /// Sees to it that [`Hold::due`] is when the next train is due, and not only a time before which none is.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if let Some(timers) = &mut self.timers {
            timers.settle();
        }
    }

    /// A train has left its list, whose deadlines are in this wheel.
    #[inline(always)]
    fn left(&mut self, train: u32, wheel: u8) {
        match &mut self.timers {
            Some(timers) => timers.wheel(wheel).clear(train),
            None => self.find_due(),
        }
    }

    #[inline(never)]
    fn find_due(&mut self) {
        self.due_of_many = self.others.iter().fold(self.first.due, |due, list| due.min(list.due));
    }

    /// From now on this is the hold of a class, also for trains that wait already. Where it is shorter than
    /// before, some may be due before now.
    pub(crate) fn set_hold(&mut self, class: u8, hold_ns: u64) {
        let Some(list) = self.list(class) else { return };
        list.hold_ns = hold_ns;
        let head = list.head;
        let due = self.trains.get(head as usize).map_or(Nanos::MAX, |train| train.base().after(hold_ns));
        if let Some(list) = self.list(class) {
            list.due = due;
        }
        if !self.single {
            self.find_due();
        }
    }

    /// Takes the memory that unusual packets need, which is else taken when the first of them comes.
    pub(crate) fn reserve_all(&mut self) {
        self.odd.reserve(self.chunks.capacity());
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

    /// The time at which the next train is due, or one before that where deadlines are not settled;
    /// [`Nanos::MAX`] when none is held.
    #[inline(always)]
    pub(crate) fn due(&self) -> Nanos {
        match &self.timers {
            _ if self.single => self.first.due,
            Some(timers) => timers.due(),
            None => self.due_of_many,
        }
    }

    /// As [`Hold::due`] and [`Hold::first_due`] where there is one class: the train is [`NONE`] when none is
    /// held.
    #[inline(always)]
    pub(crate) fn first_of_one_class(&self) -> (Nanos, u32) {
        (self.first.due, self.first.head)
    }

    /// The trains of class 0, from the one that is due first on, that are due before `now`, have no other
    /// that is due with them, and have no more than `room` packets in all.
    #[inline(always)]
    pub(crate) fn leading(&self, now: Nanos, room: usize) -> Leading {
        let List { head, hold_ns, .. } = self.first;
        let mut leading = Leading { trains: 0, packets: 0, bytes: 0, last: NONE };
        // Due before `now` is what came before this.
        let early = Nanos(now.0.saturating_sub(hold_ns));
        let mut at = head;
        while let Some(train) = self.trains.get(at as usize) {
            let next = self.trains.get(train.next as usize);
            let together = next.is_some_and(|next| next.base() == train.base());
            let packets = leading.packets + usize::from(train.count);
            if train.base() >= early || together || packets > room {
                break;
            }
            if let Some(next) = next {
                prefetch(self.trains.get(next.next as usize));
                prefetch(self.chunks.get(next.first_chunk as usize));
            }
            let bytes = leading.bytes + u64::from(train.bytes);
            leading = Leading { trains: leading.trains + 1, packets, bytes, last: at };
            at = train.next;
        }
        leading
    }

    /// The trains of class 0 that are due first, all at one time, if that is before `now` and they have no
    /// more than `room` packets in all.
    #[inline(always)]
    pub(crate) fn leading_together(&self, now: Nanos, room: usize) -> Option<Leading> {
        let List { head, due, .. } = self.first;
        let mut leading = Leading { trains: 0, packets: 0, bytes: 0, last: NONE };
        if due >= now {
            return None;
        }
        let (mut at, base) = (head, self.train(head).base());
        while let Some(train) = self.trains.get(at as usize).filter(|train| train.base() == base) {
            let packets = leading.packets + usize::from(train.count);
            if packets > room {
                return None;
            }
            prefetch(self.chunks.get(train.first_chunk as usize));
            let bytes = leading.bytes + u64::from(train.bytes);
            leading = Leading { trains: leading.trains + 1, packets, bytes, last: at };
            at = train.next;
        }
        Some(leading)
    }

    /// The first trains of class 0, with their numbers. There must be so many.
    #[inline(always)]
    pub(crate) fn first(&self, n: usize) -> impl ExactSizeIterator<Item = (u32, &TrainSlot)> {
        let mut at = self.first.head;
        (0..n).map(move |_| {
            let (id, train) = (at, self.train(at));
            at = train.next;
            (id, train)
        })
    }

    /// Appends a train's packets to `frames`; it is to be closed by [`Hold::close_first`].
    #[inline(always)]
    pub(crate) fn take_out(&mut self, id: u32, frames: &mut Vec<Frame>) {
        let Self { trains, chunks, odd, free_chunk, .. } = self;
        if let Some(train) = trains.get(id as usize) {
            train.take_out(chunks, free_chunk, odd, frames);
        }
    }

    /// Takes these trains out. Appends their packets to `frames`, and hands those of each train to `each`
    /// with the time at which it is due.
    #[inline(always)]
    pub(crate) fn close_leading(
        &mut self,
        leading: &Leading,
        frames: &mut Vec<Frame>,
        mut each: impl FnMut(Nanos, &[Frame]),
    ) {
        if leading.packets == leading.trains {
            frames.extend(self.first(leading.trains).map(|(_, train)| train.first));
        } else {
            let Self { trains, chunks, odd, free_chunk, first, .. } = self;
            let mut at = first.head;
            for _ in 0..leading.trains {
                let Some(train) = trains.get(at as usize) else { break };
                at = train.next;
                let start = frames.len();
                train.take_out(chunks, free_chunk, odd, frames);
                if train.count > 1 {
                    each(train.base().after(first.hold_ns), frames.get(start..).unwrap_or_default());
                }
            }
        }
        self.close_first(leading);
    }

    /// Takes these trains out, whose packets are taken out already.
    #[inline(always)]
    pub(crate) fn close_first(&mut self, leading: &Leading) {
        let Self { trains, first, .. } = self;
        let Some(last) = trains.get_mut(leading.last as usize) else { return };
        // The beginning of their list becomes that of the list of free ones.
        let at = core::mem::replace(&mut last.next, self.free_train);
        self.free_train = first.head;
        if at == NONE {
            first.tail = NONE;
        }
        first.head = at;
        first.due = trains.get(at as usize).map_or(Nanos::MAX, |train| train.base().after(first.hold_ns));
        self.packets -= leading.packets as u32;
        self.bytes -= leading.bytes;
    }

    #[inline(always)]
    #[expect(
        clippy::indexing_slicing,
        reason = "slots are never taken away, so a number once given out is in range"
    )]
    pub(crate) fn train(&self, id: u32) -> &TrainSlot {
        &self.trains[id as usize]
    }

    /// Stores packets of class 0 in the trains of their flows, and opens those, as long as that neither fills
    /// a train up to `burst` nor takes more memory, and no packet arrives after its train is due. Returns how
    /// many it stored, and how many of them opened a train. They are counted.
    #[inline(always)]
    pub(crate) fn store(
        &mut self,
        flows: &mut [Entry],
        block: &Block<'_>,
        range: Range<usize>,
        burst: u16,
    ) -> (usize, usize) {
        let Self { trains, chunks, free_chunk, free_train, first, .. } = self;
        let (trains, chunks) = (trains.as_mut_slice(), chunks.as_mut_slice());
        let List { mut head, mut tail, mut due, hold_ns, .. } = *first;
        let (mut chunk, mut free) = (*free_chunk, *free_train);
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let candidates = block.candidates.get(range.clone()).unwrap_or_default();
        let (mut stored, mut opened, mut bytes) = (0, 0, 0);
        for (frame, &flow) in frames.iter().zip(candidates) {
            let Some(entry) = flows.get_mut(flow as usize) else { break };
            match trains.get_mut(entry.train as usize) {
                Some(train) => {
                    let waited = frame.arrival.0.wrapping_sub(train.base().0);
                    if train.count + 1 >= burst || waited >= hold_ns || train.is_odd(frame) {
                        break;
                    }
                    if train.is_behind() && !train.extend(chunks, &mut chunk) {
                        break;
                    }
                    train.add(chunks, frame);
                }
                None => {
                    let Some(train) = trains.get_mut(free as usize) else { break };
                    let id = core::mem::replace(&mut free, train.next);
                    let at = range.start + stored;
                    let first = Frame { flow, hash: block.hash(at), ..*frame };
                    train.open(0, block.sequence(at), first, tail);
                    entry.train = id;
                    let previous = core::mem::replace(&mut tail, id);
                    match trains.get_mut(previous as usize) {
                        Some(previous) => previous.next = id,
                        None => (head, due) = (id, frame.arrival.after(hold_ns)),
                    }
                    opened += 1;
                }
            }
            bytes += u64::from(frame.len);
            stored += 1;
        }
        (*free_chunk, *free_train) = (chunk, free);
        *first = List { head, tail, due, ..*first };
        self.count(stored as u32, bytes);
        (stored, opened)
    }

    /// As [`Hold::store`], a run of packets of one flow at a time, whose flow and train are looked at once.
    #[inline(always)]
    pub(crate) fn store_runs(
        &mut self,
        flows: &mut [Entry],
        block: &Block<'_>,
        range: Range<usize>,
        burst: u16,
    ) -> (usize, usize) {
        let (mut at, mut opened, mut bytes) = (range.start, 0, 0);
        while at < range.end {
            let end = block.run_end(at).min(range.end);
            let (Some(&flow), Some(frame)) = (block.candidates.get(at), block.frames.get(at)) else { break };
            let Some(entry) = flows.get_mut(flow as usize) else { break };
            if !is_open(entry.train) {
                if self.free_train == NONE {
                    break;
                }
                let first = Frame { flow, hash: block.hash(at), ..*frame };
                entry.train = self.open(0, block.sequence(at), first);
                bytes += u64::from(frame.len);
                (at, opened) = (at + 1, opened + 1);
            }
            let Self { trains, chunks, free_chunk, first, .. } = self;
            let Some(train) = trains.get_mut(entry.train as usize) else { break };
            let before = train.bytes;
            let rest = block.frames.get(at..end).unwrap_or_default();
            at += train.join(chunks, free_chunk, rest, burst, first.hold_ns);
            bytes += u64::from(train.bytes - before);
            if at < end {
                break;
            }
        }
        let stored = at - range.start;
        self.count(stored as u32, bytes);
        (stored, opened)
    }

    /// As [`Hold::store`], where `adaptive` knows how long a packet's train waits for the next one. It stops
    /// before a packet, too, that doesn't wait or comes when its train is due.
    #[inline(always)]
    pub(crate) fn store_waiting(
        &mut self,
        flows: &mut [Entry],
        block: &Block<'_>,
        range: Range<usize>,
        burst: u16,
        adaptive: &Adaptive,
    ) -> usize {
        let Self { trains, chunks, free_chunk, free_train, first, timers, .. } = self;
        let Some(timers) = timers else { return 0 };
        timers.cover(trains.len());
        let (trains, chunks) = (trains.as_mut_slice(), chunks.as_mut_slice());
        let List { mut head, mut tail, hold_ns, wheel, .. } = *first;
        let mut deadlines = timers.wheel(wheel);
        let (mut chunk, mut free) = (*free_chunk, *free_train);
        let frames = block.frames.get(range.clone()).unwrap_or_default();
        let candidates = block.candidates.get(range.clone()).unwrap_or_default();
        let (waits, waits_ns) = (adaptive.waits_of_block(range.clone()), adaptive.waits_ns(0));
        let (mut stored, mut bytes) = (0, 0);
        for ((frame, &flow), waits) in frames.iter().zip(candidates).zip(waits) {
            let Some(entry) = flows.get_mut(flow as usize) else { break };
            match trains.get_mut(entry.train as usize) {
                Some(train) => {
                    let ns = waits_ns.of(waits.of(train.count + 1));
                    let (wake, bound) = (at_end(frame.arrival, ns), at_end(train.base(), hold_ns));
                    if ns == 0
                        || train.count + 1 >= burst
                        || train.is_odd(frame)
                        || !deadlines.join(entry.train, frame.arrival, wake, bound)
                        || train.is_behind() && !train.extend(chunks, &mut chunk)
                    {
                        break;
                    }
                    train.add(chunks, frame);
                }
                None => {
                    let ns = waits_ns.of(waits.of(1));
                    let Some(train) = trains.get_mut(free as usize) else { break };
                    let (wake, bound) = (at_end(frame.arrival, ns), at_end(frame.arrival, hold_ns));
                    if ns == 0 || !deadlines.begin(free, frame.arrival, wake, bound) {
                        break;
                    }
                    let id = core::mem::replace(&mut free, train.next);
                    let at = range.start + stored;
                    let first = Frame { flow, hash: block.hash(at), ..*frame };
                    train.open(0, block.sequence(at), first, tail);
                    entry.train = id;
                    let previous = core::mem::replace(&mut tail, id);
                    match trains.get_mut(previous as usize) {
                        Some(previous) => previous.next = id,
                        None => head = id,
                    }
                }
            }
            bytes += u64::from(frame.len);
            stored += 1;
        }
        (*free_chunk, *free_train) = (chunk, free);
        (first.head, first.tail) = (head, tail);
        self.count(stored as u32, bytes);
        stored
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
        core::iter::once(&self.first).chain(&self.others)
    }

    /// Makes room for a train and for a chunk, where there is none; returns whether that was so.
    #[inline(always)]
    pub(crate) fn grow(&mut self) -> bool {
        let full = self.free_train == NONE || self.free_chunk == NONE;
        if self.free_train == NONE {
            self.free_train = self.trains.len() as u32;
            self.trains.push(TrainSlot::free());
        }
        if self.free_chunk == NONE {
            self.free_chunk = self.chunks.len() as u32;
            self.chunks.push(Chunk::free());
        }
        full
    }

    /// Counts packets that [`Hold::open`] and [`Hold::append`] stored, and their captured bytes.
    #[inline(always)]
    pub(crate) fn count(&mut self, packets: u32, bytes: u64) {
        self.packets += packets;
        self.bytes += bytes;
    }

    /// Starts a train with its first packet. There must be room; see [`Hold::grow`]. The packet must be
    /// counted.
    #[inline(always)]
    pub(crate) fn open(&mut self, class: u8, sequence: u64, frame: Frame) -> u32 {
        let id = self.free_train;
        let Some(list) = self.list(class) else { return NONE };
        let previous = core::mem::replace(&mut list.tail, id);
        if previous == NONE {
            list.head = id;
            list.due = frame.arrival.after(list.hold_ns);
            if !self.single && self.timers.is_none() {
                self.find_due();
            }
        } else if let Some(previous) = self.trains.get_mut(previous as usize) {
            previous.next = id;
        }
        let Some(train) = self.trains.get_mut(id as usize) else { return NONE };
        self.free_train = train.next;
        train.open(class, sequence, frame, previous);
        id
    }

    /// Adds a packet to a train; returns how many it has now. There must be room; see [`Hold::grow`]. The
    /// packet must be counted.
    #[inline(always)]
    pub(crate) fn append(&mut self, id: u32, frame: &Frame) -> u16 {
        let Self { trains, chunks, odd, free_chunk, .. } = self;
        let Some(train) = trains.get_mut(id as usize) else { return 0 };
        if train.is_behind() {
            train.extend(chunks, free_chunk);
        }
        train.add_any(chunks, odd, frame);
        train.count
    }

    /// The train that is due first. Deadlines are settled.
    #[inline(always)]
    pub(crate) fn first_due(&mut self) -> Option<u32> {
        if self.single {
            return (self.first.head != NONE).then_some(self.first.head);
        }
        self.first_due_of_many()
    }

    #[inline(never)]
    fn first_due_of_many(&mut self) -> Option<u32> {
        if let Some(timers) = &mut self.timers {
            return timers.settle();
        }
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
        let (first, wheel) = (list.head == id, list.wheel);
        if after.is_none() {
            list.tail = if first { NONE } else { previous };
        }
        if first {
            list.head = next;
            list.due = after.map_or(Nanos::MAX, |(base, ..)| base.after(list.hold_ns));
            let (_, train, chunk) = after.unwrap_or((Nanos::MAX, NONE, NONE));
            prefetch(self.chunks.get(chunk as usize));
            prefetch(self.trains.get(train as usize));
            if !self.single {
                self.left(id, wheel);
            }
        } else {
            if let Some(previous) = self.trains.get_mut(previous as usize) {
                previous.next = next;
            }
            if self.timers.is_some() {
                self.left(id, wheel);
            }
        }
    }

    /// Hands over an unlinked train's packets and gives its memory back.
    #[inline(always)]
    pub(crate) fn close(&mut self, id: u32, frames: &mut Vec<Frame>) {
        let Some(train) = self.trains.get_mut(id as usize) else { return };
        train.take_out(&mut self.chunks, &mut self.free_chunk, &mut self.odd, frames);
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

/// The end of so many ns. A train that would wait beyond the end of time, in the year 2554, doesn't wait.
#[inline(always)]
fn at_end(start: Nanos, ns: u64) -> Nanos {
    Nanos(start.0.wrapping_add(ns))
}
