//! Virtual reassembly: fragments wait until their datagram is complete, so that a function decides about the
//! datagram.
//!
//! Only a datagram's first fragment has ports, and a transport header may be cut in two. A function that
//! reads them would let through by fragments what it stops when it comes whole. So a function says that it
//! decides about whole datagrams ([`NetworkFunction::fragments`](super::NetworkFunction::fragments)); the
//! wrapper then keeps fragments until all of a datagram are there, shows the function the datagram as one
//! packet, and does to each fragment what it decided. The fragments leave one behind the other in the order
//! of their places, as they came: nothing is joined on the wire.
//!
//! The rules are those of Linux (`nf_defrag_ipv4`, `nf_defrag_ipv6`), so that the same datagrams pass.
//! Fragments that overlap drop their datagram (RFC 5722, RFC 8200 §4.5); one whose bytes are all there
//! already is a duplicate and dropped by itself. A datagram that is not complete in time is dropped. The
//! table is bounded in fragments and bytes. Where it is full the oldest incomplete datagram gives way: those
//! of a host are complete within milliseconds, those of a flood never are.

mod piece;
mod settings;
#[cfg(test)]
pub(crate) mod stage_tests;
#[cfg(test)]
mod tests;

pub(crate) use settings::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};

use slipstream_wire::{Flags, FlowKey};

use self::piece::{Piece, datagram};
use super::table::{NONE, Table};
use slipstream_core::batch::BATCH;
use slipstream_core::frame::Frame;
use slipstream_core::pool::Pool;
use slipstream_core::settings::Settings;
use slipstream_core::stage::{Context, DropReason, Drops};
use slipstream_core::time::Nanos;

/// Fragments that a datagram may have: as many as leave in one batch.
const MOST: u32 = BATCH as u32;

/// Bounds of reassembly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentLimits {
    /// Fragments held at most, up to 2³⁰. 0: none is held, and every fragment is decided about by itself, the
    /// first of a datagram with the ports that it has.
    pub fragments: u32,
    /// Bytes of frames held at most.
    pub bytes: u64,
    /// Time in ns for an IPv4 datagram to be complete, from its first fragment to come; IPv6 datagrams have
    /// twice as long.
    pub timeout: u64,
    /// Fragments of IPv6 are held too.
    pub ipv6: bool,
    /// Rules that ask for fragments match datagrams that came in fragments.
    pub marked: bool,
    /// Seed of the table's hash.
    pub seed: u64,
}

impl Default for FragmentLimits {
    fn default() -> Self {
        limits(&Settings::defaults(&[FRAGMENTS, FRAGMENT_BYTES, FRAGMENT_TIMEOUT]), 0)
    }
}

/// A datagram that is not complete yet.
#[derive(Clone, Copy, Debug)]
struct Datagram {
    /// When its first fragment came.
    since: Nanos,
    six: bool,
    /// Its last fragment is here: it ends at `end`.
    ends: bool,
    /// Its end, as far as is known.
    end: u32,
    /// Bytes that are here.
    covered: u32,
    /// Fragments that are here.
    count: u32,
    /// The first and the last of them by their places.
    first: u32,
    tail: u32,
    /// Its neighbours among the datagrams of its IP version, by age.
    older: u32,
    newer: u32,
}

/// A fragment that waits.
#[derive(Clone, Copy, Debug)]
struct Held {
    frame: Frame,
    start: u32,
    end: u32,
    /// The next one of its datagram by its place; of an unused entry the next unused one.
    next: u32,
    /// It came behind the one before it and begins where that ends: what repeats bytes of both is a
    /// duplicate.
    joins: bool,
}

/// The oldest and the newest datagram of an IP version.
#[derive(Clone, Copy, Debug)]
struct Ages {
    oldest: u32,
    newest: u32,
}

/// A fragment's relation to those that are there.
enum Fit {
    /// It goes behind this one ([`NONE`]: before all), which it may join.
    Behind(u32, bool),
    Duplicate,
    Overlaps,
}

/// The result of [`Reassembler::take`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The fragment waits, or was dropped.
    Kept,
    /// A datagram can be decided about: [`Reassembler::released`].
    Complete,
    /// The fragment goes on by itself.
    AsItIs,
}

/// The fragments that one function waits for.
#[derive(Debug)]
pub(super) struct Reassembler {
    limits: FragmentLimits,
    datagrams: Table<FlowKey, Datagram>,
    held: Vec<Held>,
    /// An unused entry of `held`.
    free: u32,
    count: u32,
    bytes: u64,
    /// IPv4 and IPv6.
    ages: [Ages; 2],
    drops: Drops,
    complete: u64,
    /// The fragments let go last, with their bytes of the datagram, in order.
    ordered: Vec<(Frame, u32)>,
    /// The datagram, and the same fragments.
    released: Vec<Frame>,
    scratch: Vec<u8>,
}

impl Datagram {
    fn new(since: Nanos, six: bool) -> Self {
        let (first, tail, older, newer) = (NONE, NONE, NONE, NONE);
        Self { since, six, ends: false, end: 0, covered: 0, count: 0, first, tail, older, newer }
    }

    /// Checks that a fragment can be one of this datagram; the error tells if the datagram goes with it.
    /// Linux drops an IPv4 datagram by every contradiction, and of IPv6 most often just the fragment.
    fn admits(&self, piece: &Piece) -> Result<(), (DropReason, bool)> {
        let beyond = self.ends && piece.end > self.end;
        if piece.start == piece.end || piece.too_long {
            Err((DropReason::Malformed, !self.six))
        } else if !piece.last && !piece.end.is_multiple_of(8) {
            Err((DropReason::Malformed, true))
        } else if beyond || piece.last && (piece.end < self.end || self.ends && piece.end != self.end) {
            Err((DropReason::FragmentOverlap, !self.six))
        } else {
            Ok(())
        }
    }
}

impl Reassembler {
    pub(super) fn new(limits: FragmentLimits) -> Self {
        let none = Ages { oldest: NONE, newest: NONE };
        Self {
            datagrams: Table::new(limits.fragments, limits.seed),
            held: Vec::new(),
            free: NONE,
            count: 0,
            bytes: 0,
            ages: [none; 2],
            drops: Drops::default(),
            complete: 0,
            ordered: Vec::new(),
            released: Vec::new(),
            scratch: Vec::new(),
            limits,
        }
    }

    /// Returns true if a packet is a fragment that it takes.
    #[inline]
    pub(super) fn wants(&self, frame: &Frame) -> bool {
        let unwanted = if self.limits.ipv6 { Flags::INNER } else { Flags::INNER | Flags::IPV6 };
        frame.info.classified() && frame.info.flags() & (Flags::FRAGMENT | unwanted) == Flags::FRAGMENT
    }

    /// Fragments that wait.
    pub(super) fn held(&self) -> u64 {
        self.count.into()
    }

    /// Fragments dropped.
    pub(super) fn drops(&self) -> &Drops {
        &self.drops
    }

    /// Datagrams that were complete.
    pub(super) fn complete(&self) -> u64 {
        self.complete
    }

    /// The datagram that became complete as one packet, whose place is the caller's to give back, and its
    /// fragments.
    pub(super) fn released(&self) -> &[Frame] {
        &self.released
    }

    /// Takes a fragment that it [`wants`](Self::wants), at the time `cx.now`.
    pub(super) fn take(&mut self, cx: &mut Context<'_>, frame: &Frame) -> Taken {
        self.expire(cx.pool, cx.now);
        let Some(piece) = Piece::read(cx, frame) else {
            return self.drop_one(cx.pool, frame, DropReason::Malformed);
        };
        if self.limits.fragments == 0 {
            return self.alone(cx, frame, &piece);
        }
        let hash = self.datagrams.hash(&piece.key);
        let mut id = self.datagrams.find(&piece.key, hash).unwrap_or(NONE);
        let known = if id == NONE { None } else { self.datagrams.get(id).copied() };
        let known = known.unwrap_or_else(|| Datagram::new(cx.now, piece.six));
        if let Err((reason, whole)) = known.admits(&piece) {
            self.kill(cx.pool, if whole { id } else { NONE }, reason);
            return self.drop_one(cx.pool, frame, reason);
        }
        let (before, joins) = match self.fit(&known, &piece) {
            Fit::Behind(before, joins) => (before, joins),
            Fit::Duplicate if known.ends || !piece.last => {
                return self.drop_one(cx.pool, frame, DropReason::FragmentDuplicate);
            }
            // A duplicate that ends the datagram, where the fragment that was there doesn't, contradicts it
            // too: with that as it is nobody behind would see an end.
            Fit::Duplicate | Fit::Overlaps => {
                self.kill(cx.pool, id, DropReason::FragmentOverlap);
                return self.drop_one(cx.pool, frame, DropReason::FragmentOverlap);
            }
        };
        if known.count >= MOST || !self.make_room(cx.pool, id, frame) {
            self.kill(cx.pool, id, DropReason::FragmentLimit);
            return self.drop_one(cx.pool, frame, DropReason::FragmentLimit);
        }
        if id == NONE {
            let Some(new) = self.begin(piece.key, hash, known) else {
                return self.drop_one(cx.pool, frame, DropReason::FragmentLimit);
            };
            id = new;
        }
        self.place(id, before, Held { frame: *frame, start: piece.start, end: piece.end, next: NONE, joins });
        if self.datagrams.get_mut(id).is_some_and(|datagram| datagram.grow(&piece)) {
            return self.release(cx, id);
        }
        Taken::Kept
    }

    /// Drops datagrams whose time has passed.
    pub(super) fn expire(&mut self, pool: &mut Pool, now: Nanos) {
        while let Some((deadline, id)) = self.first_due()
            && deadline <= now
        {
            self.kill(pool, id, DropReason::FragmentTimeout);
        }
    }

    /// Drops all that waits: nothing more will come.
    pub(super) fn drain(&mut self, pool: &mut Pool) {
        self.expire(pool, Nanos::MAX);
    }

    /// When the next datagram is to be dropped.
    pub(super) fn next_deadline(&self) -> Nanos {
        self.first_due().map_or(Nanos::MAX, |(deadline, _)| deadline)
    }

    fn first_due(&self) -> Option<(Nanos, u32)> {
        let due = |Ages { oldest, .. }: &Ages| {
            let datagram = self.datagrams.get(*oldest)?;
            let factor = if datagram.six { 2 } else { 1 };
            Some((datagram.since.after(self.limits.timeout.saturating_mul(factor)), *oldest))
        };
        self.ages.iter().filter_map(due).min()
    }

    /// A fragment where none is held: the first of a datagram is decided about as a packet that ends with it.
    fn alone(&mut self, cx: &mut Context<'_>, frame: &Frame, piece: &Piece) -> Taken {
        if piece.start > 0 || piece.end == 0 {
            return Taken::AsItIs;
        }
        self.ordered.clear();
        self.ordered.push((*frame, piece.end));
        self.show(cx)
    }

    /// The fragment that another one goes behind, by their places; or why it has none.
    fn fit(&self, datagram: &Datagram, piece: &Piece) -> Fit {
        let Some(tail) = self.held.get(datagram.tail as usize) else { return Fit::Behind(NONE, false) };
        if tail.end <= piece.start {
            return Fit::Behind(datagram.tail, tail.end == piece.start);
        }
        let (mut before, mut at) = (NONE, datagram.first);
        // Runs, one after the other: fragments of which each joins the one before it.
        while let Some(first) = self.held.get(at as usize) {
            let (mut last_id, mut last) = (at, first);
            while let Some(next) = self.held.get(last.next as usize).filter(|next| next.joins) {
                (last_id, last) = (last.next, next);
            }
            if piece.end <= first.start {
                return Fit::Behind(before, false);
            }
            if piece.start < last.end {
                let within = first.start <= piece.start && piece.end <= last.end;
                return if within { Fit::Duplicate } else { Fit::Overlaps };
            }
            (before, at) = (last_id, last.next);
        }
        Fit::Behind(before, false)
    }

    /// Makes room for one more fragment, of this datagram. False where only that datagram could give way.
    fn make_room(&mut self, pool: &mut Pool, of: u32, frame: &Frame) -> bool {
        while self.count >= self.limits.fragments || self.bytes + u64::from(frame.len) > self.limits.bytes {
            let oldest = |Ages { oldest, .. }: &Ages| {
                let mut id = *oldest;
                if id == of {
                    id = self.datagrams.get(id)?.newer;
                }
                Some((self.datagrams.get(id)?.since, id))
            };
            let Some((_, id)) = self.ages.iter().filter_map(oldest).min() else { return false };
            self.kill(pool, id, DropReason::FragmentLimit);
        }
        true
    }

    /// A new datagram, the newest of its IP version.
    fn begin(&mut self, key: FlowKey, hash: u64, datagram: Datagram) -> Option<u32> {
        let ages = self.ages.get_mut(usize::from(datagram.six))?;
        let datagram = Datagram { older: ages.newest, ..datagram };
        let id = self.datagrams.insert(key, hash, datagram, Nanos::MAX).ok()?;
        let before = std::mem::replace(&mut ages.newest, id);
        match self.datagrams.get_mut(before) {
            Some(before) => before.newer = id,
            None => ages.oldest = id,
        }
        Some(id)
    }

    /// Puts a fragment into its datagram behind another.
    fn place(&mut self, id: u32, before: u32, mut held: Held) {
        let Some(datagram) = self.datagrams.get_mut(id) else { return };
        self.count += 1;
        self.bytes += u64::from(held.frame.len);
        let at = if self.free == NONE { self.held.len() as u32 } else { self.free };
        held.next = match self.held.get_mut(before as usize) {
            Some(before) => std::mem::replace(&mut before.next, at),
            None => std::mem::replace(&mut datagram.first, at),
        };
        if held.next == NONE {
            datagram.tail = at;
        }
        match self.held.get_mut(at as usize) {
            Some(place) => {
                self.free = place.next;
                *place = held;
            }
            None => self.held.push(held),
        }
    }

    /// Takes a datagram out; its fragments are in `ordered`.
    fn take_out(&mut self, id: u32) {
        self.ordered.clear();
        let Some((_, datagram)) = self.datagrams.remove(id) else { return };
        let mut at = datagram.first;
        while let Some(held) = self.held.get_mut(at as usize) {
            self.ordered.push((held.frame, held.end - held.start));
            self.count -= 1;
            self.bytes -= u64::from(held.frame.len);
            let next = std::mem::replace(&mut held.next, self.free);
            self.free = at;
            at = next;
        }
        let Some(ages) = self.ages.get_mut(usize::from(datagram.six)) else { return };
        match self.datagrams.get_mut(datagram.older) {
            Some(older) => older.newer = datagram.newer,
            None => ages.oldest = datagram.newer,
        }
        match self.datagrams.get_mut(datagram.newer) {
            Some(newer) => newer.older = datagram.older,
            None => ages.newest = datagram.older,
        }
    }

    /// Drops a datagram, if there is one.
    fn kill(&mut self, pool: &mut Pool, id: u32, reason: DropReason) {
        if id == NONE {
            return;
        }
        self.take_out(id);
        self.drops.add(reason, self.ordered.len() as u64);
        self.ordered.iter().for_each(|(frame, _)| pool.free(frame.buf));
    }

    fn drop_one(&mut self, pool: &mut Pool, frame: &Frame, reason: DropReason) -> Taken {
        self.drops.add(reason, 1);
        pool.free(frame.buf);
        Taken::Kept
    }

    /// Lets a complete datagram go.
    fn release(&mut self, cx: &mut Context<'_>, id: u32) -> Taken {
        self.take_out(id);
        self.complete += 1;
        self.show(cx)
    }

    /// Makes one packet of the fragments in `ordered`.
    fn show(&mut self, cx: &mut Context<'_>) -> Taken {
        self.released.clear();
        let Some(whole) = datagram(cx, &self.ordered, self.limits.marked, &mut self.scratch) else {
            self.drops.add(DropReason::Malformed, self.ordered.len() as u64);
            self.ordered.iter().for_each(|(frame, _)| cx.pool.free(frame.buf));
            return Taken::Kept;
        };
        self.released.push(whole);
        self.released.extend(self.ordered.iter().map(|(frame, _)| *frame));
        Taken::Complete
    }
}

impl Datagram {
    /// Has one more fragment; says whether it is complete by that.
    fn grow(&mut self, piece: &Piece) -> bool {
        self.count += 1;
        self.covered += piece.end - piece.start;
        self.ends |= piece.last;
        self.end = self.end.max(piece.end);
        self.ends && self.covered == self.end
    }
}
