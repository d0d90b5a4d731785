//! The table of waiting payloads: entries given out in the order of an index (NFSlicer, §III-C), with what
//! their packets need to become whole again.
//!
//! An entry is taken when a payload is parked and given back when its packet comes for it. One whose packet
//! never comes is passed over `ttl` times as the index goes round, and is free then: the packets that met it
//! were forwarded whole. A time bound, where there is one, frees an entry as soon as the index meets it after
//! that time.
//!
//! Tokens without a payload, which marked packets get, may be asked for by anybody: they neither move that
//! index nor use up the turns of payloads, and take at most a quarter of the entries.

use slipstream_core::huge;
use slipstream_core::pool::BufId;
use slipstream_core::time::Nanos;

use super::config::{Bind, ConfigError, SliceConfig, Storage};
use super::parked::{Held, Parked};
pub use super::refusal::{Refusal, TableCounters};
use super::token::{Fields, Token, TokenFormat, TokenMode};

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
enum State {
    /// No payload has been here yet.
    #[default]
    Unused,
    /// A payload waits.
    Waiting,
    Spliced,
    Released,
    Expired,
    Reset,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Entry {
    /// That of the payload that is or was here; before the first one, a token that no packet has.
    token: Token,
    /// The token of the payload that comes next, where it was made ahead.
    next: Token,
    since: Nanos,
    start: u64,
    buf: BufId,
    buf_len: u32,
    parked: Parked,
    ttl: u16,
    in_place: bool,
    state: State,
    made: bool,
}

const LINE: usize = 64;

/// Tokens that are made at once.
const AHEAD: usize = 8;

/// Tokens without a payload take at most this part of the entries, and at least one.
const EMPTY_PART: u32 = 4;
/// Entries in a row that are looked at for a free one, for such a token.
const EMPTY_LOOKS: u32 = 8;
/// Time after which such a token gives its entry to another one, in ns.
const EMPTY_AGE_NS: u64 = 1_000_000_000;

const _: () = assert!(size_of::<Entry>() == LINE);

/// An entry that was found free and is about to be filled.
#[derive(Debug)]
#[must_use]
pub(super) struct Place {
    pub(super) entry: u32,
    /// That of the payload which it will hold.
    token: Token,
}

/// An entry whose payload a packet has come for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    pub(super) entry: u32,
    pub(super) parked: Parked,
    pub(super) held: Held,
}

/// The payloads of one worker that wait for their packets.
pub struct PayloadTable {
    pub(super) format: TokenFormat,
    pub(super) worker: u32,
    ttl: u16,
    max_age_ns: u64,
    min_age_ns: u64,
    entries: Box<[Entry]>,
    /// A hash of each entry's flow; none where tokens are not bound to flows.
    pub(super) flows: Box<[u64]>,
    /// The entry that the next payload goes to, and how often that began anew.
    next: u32,
    rounds: u64,
    /// The place of the index when the batch began that is being sliced. Turns are counted as they come if
    /// nobody tells of batches.
    batch: Option<(u64, u32)>,
    /// When that batch began. No function has had a payload yet that was parked since.
    began: Nanos,
    /// The entry at which the next token without a payload begins to look.
    next_empty: u32,
    /// Room for the payloads themselves, `entry_bytes` an entry, where they are copied.
    room: Vec<u8>,
    entry_bytes: u32,
    /// Bytes before the first entry, and from one to the next: each begins at a cache line.
    skip: usize,
    stride: usize,
    /// Buffers of payloads that were given up, where they stay in the pool.
    given_up: Vec<BufId>,
    counters: TableCounters,
}

impl std::fmt::Debug for PayloadTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PayloadTable")
            .field("worker", &self.worker)
            .field("entries", &self.entries.len())
            .field("counters", &self.counters)
            .finish_non_exhaustive()
    }
}

impl PayloadTable {
    /// The table of `worker` (from 0) out of `config.workers`. Memory is taken here and never again.
    ///
    /// # Errors
    /// [`ConfigError`] as [`SliceConfig::validate`] finds it.
    pub fn new(config: &SliceConfig, worker: u32) -> Result<Self, ConfigError> {
        let format = config.format()?;
        if worker >= config.workers {
            return Err(ConfigError::Worker { worker, workers: config.workers });
        }
        let fresh = |entry| Entry { token: format.first_token(worker, entry), ..Entry::default() };
        let entries = (0..config.entries).map(fresh).collect();
        let flows = match config.bind {
            Bind::Nothing => Box::default(),
            Bind::Flow => vec![0; config.entries as usize].into(),
        };
        let entry_bytes = match config.storage {
            Storage::InPlace => 0,
            Storage::Copied { entry_bytes } => entry_bytes,
        };
        let stride = (entry_bytes as usize).next_multiple_of(LINE);
        let mut room = match entry_bytes {
            0 => Vec::new(),
            _ => vec![0; config.entries as usize * stride + LINE],
        };
        huge::advise(&mut room);
        let skip = room.as_ptr().align_offset(LINE).min(LINE);
        Ok(Self {
            format,
            worker,
            ttl: config.ttl,
            max_age_ns: config.max_age_ns.unwrap_or(u64::MAX),
            min_age_ns: config.min_age_ns,
            entries,
            flows,
            next: 0,
            rounds: 0,
            batch: None,
            began: Nanos::MAX,
            next_empty: 0,
            room,
            entry_bytes,
            skip,
            stride,
            given_up: Vec::new(),
            counters: TableCounters::default(),
        })
    }

    /// Memory that a table takes when it is made, in bytes, piece by piece.
    pub(crate) fn memory_for(config: &SliceConfig) -> [u64; 3] {
        let entry = size_of::<Entry>() as u64;
        let flow = if config.bind == Bind::Flow { size_of::<u64>() as u64 } else { 0 };
        let room = match config.storage {
            Storage::InPlace => 0,
            Storage::Copied { entry_bytes } => u64::from(entry_bytes).next_multiple_of(LINE as u64),
        };
        [entry, flow, room].map(|bytes| bytes.saturating_mul(config.entries.into()))
    }

    /// Counters of the payloads' fates.
    #[must_use]
    pub fn counters(&self) -> TableCounters {
        self.counters
    }

    /// Payloads that wait.
    #[must_use]
    pub fn waiting(&self) -> u32 {
        self.counters.waiting
    }

    /// The format of its tokens.
    #[must_use]
    pub fn format(&self) -> &TokenFormat {
        &self.format
    }

    /// The worker whose payloads these are.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// Bytes that an entry has room for where payloads are copied; 0 where they stay in their buffers.
    #[must_use]
    pub fn entry_bytes(&self) -> u32 {
        self.entry_bytes
    }

    /// Bytes of memory that the table takes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.room.len() + size_of_val(&*self.entries) + size_of_val(&*self.flows)) as u64
    }

    /// Gives up every payload. Their time is over, but the generations go on: a packet that is still under
    /// way finds no payload of another.
    pub fn reset(&mut self) {
        for at in 0..self.entries.len() as u32 {
            self.counters.reset += u64::from(self.give_up(at, State::Reset));
        }
    }

    /// The packet of this token was dropped: its payload is given up at once (an explicit drop).
    ///
    /// # Errors
    /// [`Refusal`] where no payload waits for the token.
    pub fn release(&mut self, token: Token) -> Result<(), Refusal> {
        // Whoever drops a packet need not hurry.
        let found = self.find(token, Nanos(0))?;
        self.give_up(found.entry, State::Released);
        self.counters.released += 1;
        Ok(())
    }

    /// Returns true if a payload waits for a token, for whatever time.
    #[must_use]
    pub fn is_waiting(&self, token: Token) -> bool {
        self.find(token, Nanos(0)).is_ok()
    }

    /// Buffers of payloads that were given up since this was asked last, to be freed by their owner.
    pub(super) fn given_up(&mut self) -> &mut Vec<BufId> {
        &mut self.given_up
    }

    /// Payloads of several packets are about to be parked before functions get the first of them, which came
    /// at `now`: whatever their number, the index makes one turn by them for each payload that waits; and
    /// however far apart they came, none of them grows too old meanwhile.
    #[inline]
    pub fn begin_batch(&mut self, now: Nanos) {
        self.batch = Some((self.rounds, self.next));
        self.began = now;
    }

    /// Returns true if a payload that waits since then has done so for more than `most` ns, and not only
    /// because the packets of one batch came far apart.
    fn is_older(&self, since: Nanos, now: Nanos, most: u64) -> bool {
        now.since(since) > most && since < self.began
    }

    /// Returns true if the entry that was just looked at has been looked at before for the same batch.
    fn is_again_in_batch(&self) -> bool {
        let Some((rounds, next)) = self.batch else { return false };
        let looks = (self.rounds - rounds) * self.entries.len() as u64 + u64::from(self.next);
        looks - u64::from(next) > self.entries.len() as u64
    }

    /// The next entry, if it is free; the index goes on in any case.
    #[inline]
    pub(super) fn place(&mut self, now: Nanos) -> Option<Place> {
        let at = self.next;
        let again = at + 1 == self.entries.len() as u32;
        self.next = if again { 0 } else { at + 1 };
        self.rounds += u64::from(again);
        let entry = self.entries.get_mut(at as usize)?;
        if entry.state == State::Waiting {
            return self.occupied(at, now);
        }
        Some(self.free_place(at))
    }

    /// A free entry for a token without a payload; the index of payloads stays where it is, and so do their
    /// turns.
    #[cold]
    pub(super) fn place_empty(&mut self, now: Nanos) -> Option<Place> {
        let count = self.entries.len() as u32;
        for looks in 0..(2 * EMPTY_LOOKS).min(count) {
            if looks == EMPTY_LOOKS {
                // Here payloads wait that came one after another. The other half of the table is the one that
                // the index is not in.
                self.next_empty = (self.next + count / 2) % count;
            }
            let at = self.next_empty;
            self.next_empty = if at + 1 < count { at + 1 } else { 0 };
            let entry = self.entries.get(at as usize)?;
            if entry.state == State::Waiting {
                let most = EMPTY_AGE_NS.min(self.max_age_ns);
                if entry.parked.len != 0 || !self.is_older(entry.since, now, most) {
                    continue;
                }
                self.give_up(at, State::Expired);
                self.counters.overdue += 1;
            }
            if self.counters.empties < (count / EMPTY_PART).max(1) {
                return Some(self.free_place(at));
            }
        }
        None
    }

    #[inline]
    fn free_place(&mut self, at: u32) -> Place {
        let token = match self.entries.get(at as usize) {
            Some(&Entry { next, made: true, .. }) => next,
            _ => self.make_ahead(at),
        };
        Place { entry: at, token }
    }

    /// Makes the token that comes next of an entry, and of those behind it: many at once take little longer
    /// than one, and the entries are at hand when the index comes to them. Returns that of the first.
    #[inline(never)]
    fn make_ahead(&mut self, at: u32) -> Token {
        let Self { entries, format, worker, .. } = self;
        let behind = entries.get_mut(at as usize..).unwrap_or_default();
        let mut fields = [Fields { worker: *worker, entry: at, generation: 0 }; AHEAD];
        for ((fields, entry), n) in fields.iter_mut().zip(behind.iter()).zip(at..) {
            let generation = format.next_generation(format.generation(entry.token));
            *fields = Fields { worker: *worker, entry: n, generation };
        }
        for (entry, token) in behind.iter_mut().zip(format.make_all(&fields)) {
            (entry.next, entry.made) = (token, true);
        }
        behind.first().map_or_else(Default::default, |entry| entry.next)
    }

    #[cold]
    fn occupied(&mut self, at: u32, now: Nanos) -> Option<Place> {
        let again = self.is_again_in_batch();
        let since = self.entries.get(at as usize)?.since;
        let overdue = self.is_older(since, now, self.max_age_ns);
        let entry = self.entries.get_mut(at as usize)?;
        if overdue {
            self.give_up(at, State::Expired);
            self.counters.overdue += 1;
            return Some(self.free_place(at));
        }
        entry.ttl = entry.ttl.saturating_sub(u16::from(!again));
        if entry.ttl == 0 && !again && now.since(entry.since) >= self.min_age_ns {
            self.give_up(at, State::Expired);
            self.counters.expired += 1;
        }
        self.counters.full += 1;
        None
    }

    /// Ends the wait of an entry's payload, if one waits.
    fn give_up(&mut self, at: u32, state: State) -> bool {
        let in_place = self.entry_bytes == 0;
        let Some(entry) = self.entries.get_mut(at as usize) else { return false };
        if entry.state != State::Waiting {
            return false;
        }
        entry.state = state;
        self.counters.waiting -= 1;
        self.counters.empties -= u32::from(entry.parked.len == 0);
        if in_place {
            self.given_up.push(entry.buf);
        }
        true
    }

    /// The token that a payload parked at `place` will have.
    #[inline]
    pub(super) fn token(&self, place: &Place) -> Token {
        place.token
    }

    /// Parks what there is of a payload: perhaps none.
    pub(super) fn park_any(&mut self, place: Place, now: Nanos, parked: Parked, held: Held) {
        self.counters.empties += u32::from(parked.len == 0);
        self.park(place, now, parked, held);
    }

    /// Parks a payload, of at least a byte.
    #[inline]
    pub(super) fn park(&mut self, place: Place, now: Nanos, parked: Parked, held: Held) {
        let Some(entry) = self.entries.get_mut(place.entry as usize) else { return };
        entry.token = place.token;
        (entry.state, entry.made) = (State::Waiting, false);
        (entry.since, entry.ttl) = (now, self.ttl);
        entry.parked = parked;
        Held { buf: entry.buf, len: entry.buf_len, in_place: entry.in_place, start: entry.start } = held;
        self.counters.parked += 1;
        self.counters.waiting += 1;
        self.counters.most_waiting = self.counters.most_waiting.max(self.counters.waiting);
    }

    /// The memory for a payload of `len` bytes in an entry; none if payloads stay in their buffers.
    #[inline]
    pub(super) fn room_mut(&mut self, place: &Place, len: usize) -> Option<&mut [u8]> {
        if self.entry_bytes == 0 {
            return None;
        }
        let start = self.skip + place.entry as usize * self.stride;
        self.room.get_mut(start..start + len).filter(|room| room.len() <= self.entry_bytes as usize)
    }

    /// The payload that a packet has come for.
    #[inline]
    pub(super) fn payload(&self, entry: u32, len: u16) -> &[u8] {
        let start = self.skip + entry as usize * self.stride;
        self.room.get(start..start + usize::from(len)).unwrap_or_default()
    }

    /// Returns true if a token is one that only this table, or another with its key, makes: no packet from
    /// the network may have it.
    #[inline]
    pub(super) fn is_ours(&self, token: Token) -> bool {
        self.format.read(token).is_some() && self.format.is_genuine(token)
    }

    /// Returns true if a token names a place that there is.
    #[inline]
    pub(super) fn names_one(&self, token: Token) -> bool {
        self.format.read(token).is_some()
    }

    /// The entry of the payload that waits for a token, and what is remembered of its packet.
    #[inline(always)]
    pub(super) fn waits(&self, token: Token, now: Nanos) -> Option<(u32, &Parked)> {
        let at = self.format.entry(token);
        let entry = self.entries.get(at as usize)?;
        let waits = entry.token == token
            && entry.state == State::Waiting
            && now.since(entry.since) <= self.max_age_ns;
        waits.then_some((at, &entry.parked))
    }

    /// The place of an entry's waiting payload.
    #[inline(always)]
    pub(super) fn held(&self, entry: u32) -> Option<Held> {
        let Entry { buf, buf_len: len, in_place, start, .. } = *self.entries.get(entry as usize)?;
        Some(Held { buf, len, in_place, start })
    }

    /// The payload that waits for a token.
    #[inline]
    pub(super) fn find(&self, token: Token, now: Nanos) -> Result<Found, Refusal> {
        match self.waits(token, now) {
            Some((entry, &parked)) => Ok(Found { entry, parked, held: self.held(entry).unwrap_or_default() }),
            None => Err(self.refusal(token)),
        }
    }

    /// The record parked under a token, even if it no longer waits, as long as the entry holds nothing later.
    pub(super) fn recall(&self, token: Token) -> Option<Parked> {
        let fields = self.format.read(token)?;
        let entry = self.entries.get(fields.entry as usize)?;
        (entry.token == token && entry.state != State::Unused).then_some(entry.parked)
    }

    /// The last token that the entry of this one was given to a packet, if there was one.
    #[inline]
    pub(super) fn last_of_entry(&self, token: Token) -> Option<Token> {
        let fields = self.format.read(token).filter(|fields| fields.worker == self.worker)?;
        let entry = self.entries.get(fields.entry as usize)?;
        (entry.state != State::Unused).then_some(entry.token)
    }

    #[cold]
    fn refusal(&self, token: Token) -> Refusal {
        let Some(fields) = self.format.read(token) else { return Refusal::Forged };
        if self.format.mode() == TokenMode::Keyed && !self.format.is_genuine(token) {
            return Refusal::Forged;
        }
        if fields.worker != self.worker {
            return Refusal::Elsewhere(fields.worker);
        }
        let Some(entry) = self.entries.get(fields.entry as usize) else { return Refusal::Forged };
        let generation = self.format.generation(entry.token);
        if generation != fields.generation {
            let older = self.format.is_older(fields.generation, generation);
            return if older { Refusal::Stale } else { Refusal::Forged };
        }
        match entry.state {
            State::Spliced => Refusal::Duplicate,
            State::Released => Refusal::Released,
            // The first generation is one that no payload has.
            State::Unused => Refusal::Forged,
            State::Expired | State::Reset | State::Waiting => Refusal::Late,
        }
    }

    /// Ends an entry whose payload, if it has one, leaves with its packet.
    pub(super) fn leave_any(&mut self, entry: u32) {
        let empty = |e: &Entry| e.state == State::Waiting && e.parked.len == 0;
        self.counters.empties -= u32::from(self.entries.get(entry as usize).is_some_and(empty));
        self.leave(entry);
    }

    /// The payload, of at least a byte, leaves with its packet.
    #[inline]
    pub(super) fn leave(&mut self, entry: u32) {
        if let Some(entry) = self.entries.get_mut(entry as usize)
            && entry.state == State::Waiting
        {
            entry.state = State::Spliced;
            self.counters.waiting -= 1;
            self.counters.spliced += 1;
        }
    }

    /// The packet came, but can't leave: its payload is given up with it.
    #[cold]
    pub(super) fn abandon(&mut self, found: &Found) {
        if self.give_up(found.entry, State::Released) {
            self.counters.released += 1;
        }
    }

    /// Counts that must agree with the entries; what does not is said.
    ///
    /// # Errors
    /// Checks that the counters and the entries add up; the error says in words what doesn't.
    pub fn audit(&self) -> Result<(), String> {
        let c = &self.counters;
        let of_all = || self.entries.iter().filter(|e| e.state == State::Waiting);
        let (waiting, empties) = (of_all().count() as u64, of_all().filter(|e| e.parked.len == 0).count());
        if empties != c.empties as usize {
            return Err(format!("{empties} tokens without a payload are out, {} are counted", c.empties));
        }
        if waiting != u64::from(c.waiting) {
            return Err(format!("{waiting} payloads wait, {} are counted", c.waiting));
        }
        let gone = c.spliced + c.released + c.expired + c.overdue + c.reset;
        if c.parked != gone + waiting {
            return Err(format!("{} payloads were parked, {gone} are gone and {waiting} wait", c.parked));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "payload_table_tests.rs"]
mod tests;
