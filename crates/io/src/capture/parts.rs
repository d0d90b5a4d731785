//! A capture file that several threads read at once, each a part of it at a time.
//!
//! To copy bytes from the page cache, to read headers and to find flows is most of the work of who reads a
//! capture, and can be done for several parts side by side. Only where records begin is known from the record
//! before: that is found out part by part, in order, and takes little time.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::pcap::Cut;
use super::spans::Span;
use super::window::Window;
use super::{CaptureError, CaptureReader, Notes, Record};

/// Bytes of a part by default: few enough for a core's second-level cache.
pub(super) const BYTES: u64 = 256 * 1024;

/// Parts for each thread that may have been made something of, and wait to be taken.
const WAITING: usize = 2;

/// A part of a capture: whole records, in memory.
pub struct Part {
    number: u64,
    window: Window,
    cuts: Vec<Cut>,
}

impl Default for Part {
    fn default() -> Self {
        Self { number: 0, window: Window::for_parts(), cuts: Vec::new() }
    }
}

impl std::fmt::Debug for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Part").field("number", &self.number).field("records", &self.cuts.len()).finish()
    }
}

impl Part {
    /// Its place in the order of parts, from 0.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Number of its records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.cuts.len()
    }

    /// Returns true if no record begins in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.cuts.is_empty()
    }

    /// Byte of the file behind the last of its records.
    pub(super) fn end(&self) -> u64 {
        self.window.position()
    }

    /// Its records, in order.
    pub fn records(&self) -> impl Iterator<Item = Record<'_>> {
        self.cuts.iter().map(|cut| record(&self.window, cut))
    }
}

#[inline]
fn record<'w>(window: &'w Window, cut: &Cut) -> Record<'w> {
    Record {
        time: cut.time,
        interface: cut.interface,
        link: cut.link,
        original_len: cut.original_len,
        data: window.slice(cut.data.clone()),
    }
}

/// The order in which parts are cut into records.
struct Chain {
    reader: CaptureReader,
    /// The part whose turn it is.
    turn: u64,
    /// Byte at which the next record begins.
    next: u64,
}

/// The parts of a capture file.
///
/// ```no_run
/// use slipstream_io::capture::{CaptureReader, Part, Parts};
///
/// let parts = Parts::new(CaptureReader::open("trace.pcap".as_ref())?).expect("a plain file");
/// // Any number of threads may do this, each with a part of its own.
/// let mut part = Part::default();
/// while parts.next(&mut part)? {
///     println!("part {}: {} packets", part.number(), part.len());
/// }
/// # Ok::<(), slipstream_io::capture::CaptureError>(())
/// ```
pub struct Parts {
    file: Arc<File>,
    len: u64,
    /// Records that begin here or later are not read.
    limit: u64,
    /// Bytes of a part.
    bytes: u64,
    claimed: AtomicU64,
    chain: Mutex<Chain>,
    turned: Condvar,
}

impl std::fmt::Debug for Parts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Parts").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Parts {
    /// Of what a reader has not yet read, in parts of 256 KiB.
    ///
    /// # Errors
    /// The reader, of a capture that one thread has to read: from a pipe, or compressed.
    pub fn new(reader: CaptureReader) -> Result<Self, Box<CaptureReader>> {
        Self::of(reader, BYTES)
    }

    /// The same, in parts of so many bytes (at least 1); the last record of a part goes on behind it.
    ///
    /// # Errors
    /// As [`Parts::new`].
    pub fn of(reader: CaptureReader, bytes: u64) -> Result<Self, Box<CaptureReader>> {
        let bytes = bytes.max(1);
        let (Some((file, next)), Some(len)) = (reader.place(), reader.file_len()) else {
            return Err(Box::new(reader));
        };
        let first = next / bytes;
        Ok(Self {
            file,
            len,
            limit: u64::MAX,
            bytes,
            claimed: AtomicU64::new(first),
            chain: Mutex::new(Chain { reader, turn: first, next }),
            turned: Condvar::new(),
        })
    }

    /// The next part that nobody has, in place of what `part` has; false at the end of the capture. It may
    /// have no records.
    ///
    /// # Errors
    /// [`CaptureError::Read`]: the device failed. That ends the capture for all.
    pub fn next(&self, part: &mut Part) -> Result<bool, CaptureError> {
        let mut cuts = std::mem::take(&mut part.cuts);
        cuts.clear();
        let more = self.cut_next(part, |_, cut| cuts.push(cut));
        part.cuts = cuts;
        more.map(|more| more || !part.cuts.is_empty())
    }

    /// Reads the next part as [`Parts::next`] does, and hands its records to `visit` as they are found, for
    /// who reads alone: others wait meanwhile. `part` has none of them afterwards.
    #[inline]
    pub(super) fn visit(
        &self,
        part: &mut Part,
        mut visit: impl FnMut(Record<'_>),
    ) -> Result<bool, CaptureError> {
        part.cuts.clear();
        let mut some = false;
        let more = self.cut_next(part, |window, cut| {
            some = true;
            visit(record(window, &cut));
        })?;
        Ok(more || some)
    }

    /// Cuts the next part; false where the capture ended.
    #[inline]
    fn cut_next(&self, part: &mut Part, each: impl FnMut(&Window, Cut)) -> Result<bool, CaptureError> {
        let number = self.claimed.fetch_add(1, Ordering::Relaxed);
        let begin = number.saturating_mul(self.bytes);
        part.number = number;
        if begin >= self.len.min(self.limit) {
            return Ok(false);
        }
        let mut turn = Turn { parts: self, number };
        let read = part.window.read_part(&self.file, begin, self.bytes.min(self.len - begin) as usize);
        let mut chain = turn.wait();
        let Chain { reader, next, .. } = &mut *chain;
        if let Err(error) = read {
            return Err(reader.fail(error));
        }
        let end = (begin + self.bytes).min(self.limit);
        if *next >= end {
            // A record of a part before goes on to behind this one.
            return Ok(!reader.is_over());
        }
        part.window.pass_to(*next);
        let more = reader.cut_part(&mut part.window, end, each)?;
        *next = part.window.position();
        Ok(more)
    }

    /// Reads all parts with so many threads besides this one, which makes something of each (`make`), and
    /// hands that on in the order of the file (`take`), on this thread. Where nothing is ready to be taken,
    /// this thread makes some, too. What was taken is filled again: `make` begins by emptying it.
    ///
    /// # Errors
    /// That of `take`, which ends it; or the device failed.
    ///
    /// # Panics
    /// Never of itself; a panic of another thread is passed on.
    pub fn each<T, E>(
        &self,
        threads: usize,
        make: impl Fn(&Part, &mut T) + Sync,
        mut take: impl FnMut(&mut T) -> Result<(), E>,
    ) -> Result<(), E>
    where
        T: Default + Send,
        E: From<CaptureError>,
    {
        let (next, most) = (self.lock().turn, (threads + 1) * WAITING);
        let line = Line {
            parts: self,
            make,
            most,
            state: Mutex::new(Ready { next, end: u64::MAX, ..Ready::default() }),
            changed: Condvar::new(),
        };
        thread::scope(|scope| {
            for _ in 0..threads {
                // Without the thread its work is done by the others.
                let _ = thread::Builder::new().name("parts".into()).spawn_scoped(scope, || line.work());
            }
            let stop = Stop(&line.state, &line.changed);
            let mut part = Part::default();
            while let Some(mut made) = line.next(&mut part) {
                take(&mut made)?;
                line.give_back(made);
            }
            drop(stop);
            let failed = line.lock().failed.take();
            failed.map_or(Ok(()), |error| Err(E::from(error)))
        })
    }

    /// The reader again, which knows of interfaces, damage and what else was met. It has no further records.
    #[must_use]
    pub fn into_reader(self) -> CaptureReader {
        self.chain.into_inner().unwrap_or_else(PoisonError::into_inner).reader
    }

    /// Keeps to a span; no part may have been read.
    pub(super) fn limit(&mut self, span: Span) {
        self.limit = span.to;
        if span.from > 0 {
            let first = span.from / self.bytes;
            self.claimed = AtomicU64::new(first);
            let mut chain = self.lock();
            (chain.turn, chain.next) = (first, span.from);
        }
    }

    /// The end of the capture was met; where the next record begins; and where the span ends.
    pub(super) fn end(&self) -> (bool, u64, u64) {
        let chain = self.lock();
        (chain.reader.is_over(), chain.next, self.limit)
    }

    /// A number for what the capture has said of records from here on, never 0: see
    /// [`CaptureReader::context`].
    #[must_use]
    pub fn context(&self) -> u64 {
        self.lock().reader.context()
    }

    /// Returns true if the first packet of a span has no time and the one before it was not read. Then the
    /// times of these packets are not those that they have in the whole capture: see [`Parts::walked`].
    #[must_use]
    pub fn lacks_time(&self) -> bool {
        self.notes().lacks_time
    }

    /// The events so far that are neither packets nor damage, in the span.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.lock().reader.notes()
    }

    /// The notes so far are of packets before the span.
    pub(super) fn forget_notes(&self) {
        self.lock().reader.set_notes(Notes::default());
    }

    pub(super) fn not_there(&self, byte: u64) -> CaptureError {
        let chain = self.lock();
        CaptureError::NotThere { file: chain.reader.name().to_owned(), byte, next: chain.next }
    }

    /// The share of the file that was read, of 1.
    #[must_use]
    pub fn progress(&self) -> f64 {
        let read = self.claimed.load(Ordering::Relaxed).saturating_mul(self.bytes).min(self.len);
        read as f64 / self.len.max(1) as f64
    }

    fn lock(&self) -> MutexGuard<'_, Chain> {
        self.chain.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The turn of a part; it passes on to the next one however this one ends.
struct Turn<'a> {
    parts: &'a Parts,
    number: u64,
}

impl<'a> Turn<'a> {
    fn wait(&mut self) -> MutexGuard<'a, Chain> {
        let mut chain = self.parts.lock();
        while chain.turn < self.number {
            chain = self.parts.turned.wait(chain).unwrap_or_else(PoisonError::into_inner);
        }
        chain
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Whoever ends before its turn came lets those before it have theirs.
        let mut chain = self.wait();
        chain.turn = self.number + 1;
        drop(chain);
        self.parts.turned.notify_all();
    }
}

/// Results of parts, until they are taken.
struct Ready<T> {
    made: BTreeMap<u64, T>,
    spare: Vec<T>,
    /// The part whose turn it is.
    next: u64,
    /// No part from here on has anything.
    end: u64,
    failed: Option<CaptureError>,
    /// Nobody takes anything any more.
    stopped: bool,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        let (made, spare) = (BTreeMap::new(), Vec::new());
        Self { made, spare, next: 0, end: 0, failed: None, stopped: false }
    }
}

/// Threads that make something of parts.
struct Line<'a, T, M> {
    parts: &'a Parts,
    make: M,
    most: usize,
    state: Mutex<Ready<T>>,
    changed: Condvar,
}

/// Ends the work of all.
struct Stop<'a, T>(&'a Mutex<Ready<T>>, &'a Condvar);

impl<T> Drop for Stop<'_, T> {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).stopped = true;
        self.1.notify_all();
    }
}

impl<T: Default, M: Fn(&Part, &mut T)> Line<'_, T, M> {
    fn lock(&self) -> MutexGuard<'_, Ready<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, state: MutexGuard<'s, Ready<T>>) -> MutexGuard<'s, Ready<T>> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes something of parts until there are no more.
    fn work(&self) {
        let panics = StopOnPanic(Stop(&self.state, &self.changed));
        let mut part = Part::default();
        loop {
            let mut state = self.lock();
            while state.made.len() >= self.most && !state.stopped {
                state = self.wait(state);
            }
            if state.stopped || state.end < u64::MAX {
                break;
            }
            self.one(state, &mut part);
        }
        panics.over();
    }

    /// Makes something of the next part.
    fn one(&self, mut state: MutexGuard<'_, Ready<T>>, part: &mut Part) {
        let mut made = state.spare.pop().unwrap_or_default();
        drop(state);
        let next = self.parts.next(part);
        if let Ok(true) = next {
            (self.make)(part, &mut made);
        }
        let mut state = self.lock();
        match next {
            Ok(true) => {
                state.made.insert(part.number(), made);
            }
            Ok(false) => state.end = state.end.min(part.number()),
            Err(error) => {
                state.end = state.end.min(part.number());
                state.failed.get_or_insert(error);
            }
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes the result of the next part; None if there are no more.
    fn next(&self, part: &mut Part) -> Option<T> {
        loop {
            let mut state = self.lock();
            let next = state.next;
            if let Some(made) = state.made.remove(&next) {
                state.next += 1;
                drop(state);
                self.changed.notify_all();
                return Some(made);
            }
            if state.stopped || next >= state.end {
                return None;
            }
            if state.end == u64::MAX {
                self.one(state, part);
            } else {
                // Others are at the last parts.
                drop(self.wait(state));
            }
        }
    }

    fn give_back(&self, made: T) {
        self.lock().spare.push(made);
    }
}

/// Ends the work of all if a thread panics, so that none waits for it for ever.
struct StopOnPanic<'a, T>(Stop<'a, T>);

impl<T> StopOnPanic<'_, T> {
    fn over(self) {
        std::mem::forget(self.0);
    }
}
