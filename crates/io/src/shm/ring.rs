//! One ring in shared memory: packets as records, one side putting them in, the other taking them out.
//!
//! A record is a header of 32 bytes and the packet, and takes a multiple of 64 bytes; none goes round the end
//! of the ring: where one doesn't fit there, a record that says so fills the rest. Positions count bytes
//! since the beginning of the session; the producer publishes its own after the bytes are written (release),
//! the consumer reads it before it reads them (acquire), and the other way round for places that are free
//! again. Each side believes only its own position, and what it has checked of the other's.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::layout::{CLOSED, Place};
use super::memory::Memory;
use super::parked::DROPS;

/// Bytes that a record takes are a multiple of this.
const ALIGN: u64 = 64;
/// Bytes before a packet.
pub(super) const RECORD_HEADER: usize = 32;
/// In place of a length: the rest of the ring is not used.
const SKIP: u32 = u32::MAX;

/// The header of a packet in the ring.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    /// Bytes of it that there are.
    pub(super) len: u32,
    /// Bytes on the wire.
    pub(super) original_len: u32,
    /// Number of the interface that it came from, among those of the process that sent it; with the flags of
    /// [`parked`](super::parked).
    pub(super) interface: u32,
    /// That interface's link type, as in capture files.
    pub(super) link: u32,
    /// When it arrived, in ns since the Unix epoch.
    pub(super) arrival: u64,
    /// The time that it was captured at, in ns since the Unix epoch.
    pub(super) time: u64,
}

impl Record {
    fn to_bytes(self) -> [u8; RECORD_HEADER] {
        let low = u128::from(self.len)
            | u128::from(self.original_len) << 32
            | u128::from(self.interface) << 64
            | u128::from(self.link) << 96;
        let high = u128::from(self.arrival) | u128::from(self.time) << 64;
        let mut bytes = [0; RECORD_HEADER];
        let (a, b) = bytes.split_at_mut(16);
        a.copy_from_slice(&low.to_le_bytes());
        b.copy_from_slice(&high.to_le_bytes());
        bytes
    }

    fn from_bytes(bytes: &[u8; RECORD_HEADER]) -> Self {
        let (low, high) = bytes.split_at(16);
        let number = |bytes: &[u8]| bytes.try_into().map_or(0, u128::from_le_bytes);
        let (low, high) = (number(low), number(high));
        Self {
            len: low as u32,
            original_len: (low >> 32) as u32,
            interface: (low >> 64) as u32,
            link: (low >> 96) as u32,
            arrival: high as u64,
            time: (high >> 64) as u64,
        }
    }
}

/// Bytes that a packet takes in a ring.
pub(super) fn room_for(len: usize) -> u64 {
    (len as u64 + RECORD_HEADER as u64).next_multiple_of(ALIGN)
}

/// The two positions of a ring, and whether its ends are closed.
#[derive(Clone, Debug)]
struct Control {
    memory: Arc<Memory>,
    place: Place,
}

impl Control {
    fn load(&self, at: usize) -> u64 {
        self.memory.word(at).map_or(0, |w| w.load(Ordering::Acquire))
    }

    fn store(&self, at: usize, value: u64) {
        if let Some(word) = self.memory.word(at) {
            word.store(value, Ordering::Release);
        }
    }

    fn closed(&self, position: usize) -> bool {
        self.memory.half_word(position + CLOSED).is_none_or(|w| w.load(Ordering::Acquire) != 0)
    }

    fn close(&self, position: usize) {
        if let Some(word) = self.memory.half_word(position + CLOSED) {
            word.store(1, Ordering::Release);
        }
    }

    /// Offset in memory of a position.
    fn at(&self, position: u64) -> usize {
        self.place.data + (position & (self.place.bytes - 1)) as usize
    }

    /// The place of a position among all multiples of [`ALIGN`] in the ring.
    fn slot(&self, position: u64) -> usize {
        ((position & (self.place.bytes - 1)) / ALIGN) as usize
    }

    /// Bytes from a position to the end of the ring.
    fn before_end(&self, position: u64) -> u64 {
        self.place.bytes - (position & (self.place.bytes - 1))
    }
}

/// The reason why a packet can't be put in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// There is no room now.
    Full,
    /// There never is.
    TooLong,
}

/// The other side wrote something impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Damage(pub(super) &'static str);

/// Puts packets in.
#[derive(Debug)]
pub(super) struct Producer {
    control: Control,
    /// Bytes that it has put in; published up to `published`.
    tail: u64,
    published: u64,
    /// Bytes that the other side had taken when last asked.
    head: u64,
    /// Of each multiple of [`ALIGN`] bytes of the ring, whether a packet begins there. It is kept here, since
    /// the other side may write to the ring.
    begins: Box<[bool]>,
}

impl Producer {
    /// Of a ring that is empty.
    pub(super) fn new(memory: Arc<Memory>, place: Place) -> Self {
        let begins = vec![false; (place.bytes / ALIGN) as usize].into();
        Self { control: Control { memory, place }, tail: 0, published: 0, head: 0, begins }
    }

    /// Asks anew what was taken out. A position that can't be is damage.
    pub(super) fn look(&mut self) -> Result<(), Damage> {
        let head = self.control.load(self.control.place.head);
        if head < self.head || head > self.published || !head.is_multiple_of(ALIGN) {
            return Err(Damage("the other side has taken what was never put in"));
        }
        self.head = head;
        Ok(())
    }

    /// Bytes that are free, as far as is known.
    pub(super) fn free(&self) -> u64 {
        self.control.place.bytes - (self.tail - self.head)
    }

    /// Bytes that were taken out since the beginning, as far as is known.
    pub(super) fn taken(&self) -> u64 {
        self.head
    }

    /// The most bytes that one packet may take.
    pub(super) fn most(&self) -> u64 {
        self.control.place.bytes / 2
    }

    /// Bytes that were put in and not taken out, as far as is known.
    pub(super) fn waiting(&self) -> u64 {
        self.tail - self.head
    }

    /// Counts the packets that were put in and not taken out, as far as is known.
    pub(super) fn left(&self) -> u64 {
        let places = (self.head..self.tail).step_by(ALIGN as usize);
        places.filter(|at| self.begins.get(self.control.slot(*at)) == Some(&true)).count() as u64
    }

    /// Notes what lies from the end of the ring's contents on.
    fn note(&mut self, bytes: u64, is_packet: bool) {
        let from = self.control.slot(self.tail);
        if let Some(places) = self.begins.get_mut(from..from + (bytes / ALIGN) as usize) {
            places.fill(false);
            places.iter_mut().take(1).for_each(|place| *place = is_packet);
        }
    }

    /// Puts a packet in, to be seen at [`Producer::publish`].
    /// Its bytes come in two pieces.
    pub(super) fn push(&mut self, record: &Record, [data, more]: [&[u8]; 2]) -> Result<(), Refused> {
        let bytes = room_for(data.len() + more.len());
        if bytes > self.most() {
            return Err(Refused::TooLong);
        }
        let end = self.control.before_end(self.tail);
        let skip = if bytes > end { end } else { 0 };
        if bytes + skip > self.free() {
            return Err(Refused::Full);
        }
        let memory = &self.control.memory;
        if skip > 0 {
            let marker = Record { len: SKIP, ..Record::default() };
            memory.write(self.control.at(self.tail), &marker.to_bytes());
            self.note(skip, false);
            self.tail += skip;
        }
        self.note(bytes, record.interface & DROPS == 0);
        let memory = &self.control.memory;
        let at = self.control.at(self.tail);
        memory.write(at, &record.to_bytes());
        memory.write(at + RECORD_HEADER, data);
        memory.write(at + RECORD_HEADER + data.len(), more);
        self.tail += bytes;
        Ok(())
    }

    /// Lets the other side see what was put in.
    pub(super) fn publish(&mut self) {
        if self.published != self.tail {
            self.control.store(self.control.place.tail, self.tail);
            self.published = self.tail;
        }
    }

    /// Nothing more will come.
    pub(super) fn close(&self) {
        self.control.close(self.control.place.tail);
    }

    /// Returns true if nobody will take anything out.
    pub(super) fn abandoned(&self) -> bool {
        self.control.closed(self.control.place.head)
    }
}

/// Takes packets out.
#[derive(Debug)]
pub(super) struct Consumer {
    control: Control,
    /// Bytes that it has taken out; given back up to `given_back`.
    head: u64,
    given_back: u64,
    /// Bytes that the other side had put in when last asked.
    tail: u64,
}

impl Consumer {
    /// Of a ring from which nothing was taken yet.
    pub(super) fn new(memory: Arc<Memory>, place: Place) -> Self {
        Self { control: Control { memory, place }, head: 0, given_back: 0, tail: 0 }
    }

    /// Asks anew what was put in. A position that can't be is damage.
    fn look(&mut self) -> Result<(), Damage> {
        let tail = self.control.load(self.control.place.tail);
        let most = self.given_back.saturating_add(self.control.place.bytes);
        if tail < self.tail || tail > most || !tail.is_multiple_of(ALIGN) {
            return Err(Damage("the other side has put in more than there is room for"));
        }
        self.tail = tail;
        Ok(())
    }

    /// The next packet's record, if there is one now. Its bytes are to be [read](Consumer::read), then it is
    /// to be [passed](Consumer::pass).
    pub(super) fn next(&mut self) -> Result<Option<Record>, Damage> {
        loop {
            if self.head == self.tail {
                self.look()?;
                if self.head == self.tail {
                    return Ok(None);
                }
            }
            let left = self.tail - self.head;
            let mut bytes = [0; RECORD_HEADER];
            self.control.memory.read(self.control.at(self.head), &mut bytes);
            let record = Record::from_bytes(&bytes);
            let end = self.control.before_end(self.head);
            if record.len == SKIP {
                if end >= left {
                    return Err(Damage("a record leads beyond what was put in"));
                }
                self.head += end;
                continue;
            }
            if room_for(record.len as usize) > left.min(end) {
                return Err(Damage("a record is longer than what was put in"));
            }
            return Ok(Some(record));
        }
    }

    /// Copies the bytes of the next packet from `from` on, as many as there is room for; the record said how
    /// many there are.
    pub(super) fn read(&self, from: usize, to: &mut [u8]) {
        self.control.memory.read(self.control.at(self.head) + RECORD_HEADER + from, to);
    }

    /// Goes on behind the next packet, which has so many bytes.
    pub(super) fn pass(&mut self, len: u32) {
        self.head = self.tail.min(self.head + room_for(len as usize));
    }

    /// Lets the other side use the places of what was taken out.
    pub(super) fn give_back(&mut self) {
        if self.given_back != self.head {
            self.control.store(self.control.place.head, self.head);
            self.given_back = self.head;
        }
    }

    /// Nothing more will be taken out.
    pub(super) fn close(&self) {
        self.control.close(self.control.place.head);
    }

    /// Returns true if nothing more will be put in; what was put in before may still be there.
    pub(super) fn finished(&self) -> bool {
        self.control.closed(self.control.place.tail)
    }
}
