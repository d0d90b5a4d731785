//! Several pools over one memory, one a thread: a packet that is handed from one thread to another stays
//! where it is, and its place goes to whichever pool frees it.
//!
//! Each pool has lists of free slots of its own, of bounded length. Slots go from one pool to another, many
//! at once, by a stash behind a lock: a list that is full leaves half of it there, one that is empty takes as
//! many. So a thread that only stores and one that only frees need no more memory than what is between them,
//! and the lock is taken about once in 256 packets.
//!
//! A thread that frees what others stored need not even look at it ([`Pool::free_elsewhere`]): the first line
//! of each packet, whose first byte says how large its slot is, would come from the other core's cache and go
//! back there to be written again.

#![allow(unsafe_code)]

use core::mem::take;
use core::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::memory::Memory;
use super::slabs::Slabs;
use super::sliced::MOST_DROPPED;
use super::{CLASS_UNITS, CLASSES, Pool, SLAB_UNITS, UNIT};
use crate::frame::Frame;

/// Slots of a class that a pool keeps free for itself: so many, or what takes so many bytes.
const KEPT: usize = 512;
const KEPT_BYTES: usize = 2 << 20;
/// Slots that are cut from a slab at once, at most.
const CUT: usize = 64;
/// Sliced packets that were dropped, of which other threads are told at once.
pub(super) const MAIL: usize = 64;

/// The state that several pools share.
#[derive(Debug)]
struct Shared {
    memory: Memory,
    state: Mutex<State>,
    /// Packets stored less packets freed, by all pools, up to when each of them settled.
    live: AtomicI64,
    /// True if somebody may have to be told of dropped packets.
    mail: AtomicBool,
}

#[derive(Debug)]
struct State {
    slabs: Slabs,
    /// Bytes from the beginning on that can be read and written.
    opened: usize,
    /// Free slots that no pool has, by class.
    stash: [Vec<u32>; CLASSES],
    /// Rests of slabs that a pool was cutting up when it went: number of the slab, in units, and its
    /// next unused unit.
    rests: Vec<(u32, usize)>,
    /// Sliced packets that were freed: whose, and their tokens.
    dropped: Vec<(u32, u64)>,
    /// Places that were freed, of whatever class: nobody has looked.
    left: Vec<u32>,
}

impl State {
    /// Makes sure of the memory of all slabs.
    fn open(&mut self, memory: &Memory) {
        let bytes = self.slabs.bytes();
        if bytes > self.opened {
            memory.open(self.opened..bytes);
            self.opened = bytes;
        }
    }

    /// A slab with room for a slot of so many units, and its next unused unit.
    fn slab(&mut self, units: usize, memory: &Memory) -> (u32, usize) {
        if let Some(at) = self.rests.iter().position(|(_, next)| next + units <= SLAB_UNITS) {
            return self.rests.swap_remove(at);
        }
        let first = self.slabs.take(1);
        self.open(memory);
        (first, 0)
    }
}

impl Shared {
    /// A thread that panicked left whole lists.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One pool's share in what it has together with others.
#[derive(Debug)]
pub(super) struct Sibling {
    shared: Arc<Shared>,
    /// Number of the slab being cut up, in units, and its next unused unit.
    bump: (u32, usize),
    /// The part of the pool's own count that is in [`Shared::live`].
    settled: i64,
    /// Places that this pool freed without a look at them.
    left: Vec<u32>,
    /// Places that any of them freed so, which are this pool's now.
    unsorted: Vec<u32>,
}

/// Free slots of a class that a pool keeps.
fn kept(class: usize) -> usize {
    let bytes = CLASS_UNITS.get(class).map_or(1, |units| units * UNIT);
    (KEPT_BYTES / bytes).clamp(2, KEPT)
}

impl Sibling {
    fn of(shared: &Arc<Shared>) -> Self {
        let shared = Arc::clone(shared);
        Self { shared, bump: (0, SLAB_UNITS), settled: 0, left: Vec::new(), unsorted: Vec::new() }
    }

    /// Packets stored and not freed, by all pools as far as is known, by this one so many.
    pub(super) fn live(&self, own: i64) -> i64 {
        self.shared.live.load(Ordering::Relaxed) + own - self.settled
    }

    /// Slabs that are used, by all pools.
    pub(super) fn slabs(&self) -> usize {
        self.shared.lock().slabs.in_use()
    }

    /// Adds what this pool counted since to what is known of all.
    fn settle(&mut self, own: i64) {
        let since = own - core::mem::replace(&mut self.settled, own);
        if since != 0 {
            self.shared.live.fetch_add(since, Ordering::Relaxed);
        }
    }

    /// A slot of so many units; more of them go to the pool's own list, which is empty.
    pub(super) fn more(&mut self, class: usize, units: usize, list: &mut Vec<u32>) -> u32 {
        let kept = kept(class);
        if list.capacity() == 0 {
            list.reserve_exact(kept);
        }
        let mut state = self.shared.lock();
        if let Some(stash) = state.stash.get_mut(class).filter(|stash| !stash.is_empty()) {
            list.extend(stash.drain(stash.len().saturating_sub(kept / 2)..));
        }
        if let Some(id) = list.pop() {
            return id;
        }
        if self.bump.1 + units > SLAB_UNITS {
            self.bump = state.slab(units, &self.shared.memory);
        }
        let (first, next) = self.bump;
        let n = ((SLAB_UNITS - next) / units).min(kept / 2).min(CUT);
        list.extend((1..n).rev().map(|i| first + (next + i * units) as u32));
        self.bump.1 += n * units;
        first + next as u32
    }

    /// Makes room in the pool's own list of free slots, which is full.
    pub(super) fn make_room(&self, class: usize, list: &mut Vec<u32>) {
        if list.capacity() == 0 {
            return list.reserve_exact(kept(class));
        }
        // Those that were freed first: the others are still in this core's cache.
        if let Some(stash) = self.shared.lock().stash.get_mut(class) {
            stash.extend(list.drain(..list.len().div_ceil(2)));
        }
    }

    /// Takes a place that is free, of a class that others find out.
    #[inline]
    pub(super) fn leave(&mut self, id: u32) {
        if self.left.len() == KEPT {
            self.leave_all();
        }
        self.left.push(id);
    }

    /// The same for the places of packets that leave together.
    #[inline]
    pub(super) fn leave_all_of(&mut self, frames: &[Frame]) {
        if self.left.len() + frames.len() > KEPT {
            self.leave_all();
        }
        self.left.extend(frames.iter().map(|frame| frame.buf.0));
    }

    fn leave_all(&mut self) {
        if !self.left.is_empty() {
            self.shared.lock().left.append(&mut self.left);
        }
    }

    /// Takes the places that pools freed without a look at them; returns false if there are none.
    pub(super) fn take_left(&mut self) -> bool {
        let mut state = self.shared.lock();
        if self.unsorted.is_empty() {
            core::mem::swap(&mut self.unsorted, &mut state.left);
        }
        !self.unsorted.is_empty()
    }

    /// Takes as many of them as there is room for, if there are so many; returns how many. Those that come
    /// next are named.
    pub(super) fn take_unsorted(&mut self, into: &mut [u32], next: impl FnMut(u32)) -> usize {
        let rest = self.unsorted.len().saturating_sub(into.len());
        let taken = self.unsorted.get(rest..).unwrap_or_default();
        for (place, id) in into.iter_mut().zip(taken) {
            *place = *id;
        }
        let n = taken.len();
        self.unsorted.truncate(rest);
        let soon = self.unsorted.get(rest.saturating_sub(into.len())..).unwrap_or_default();
        soon.iter().copied().for_each(next);
        n
    }

    /// So many slabs for one packet.
    pub(super) fn oversize(&self, n: usize) -> u32 {
        let mut state = self.shared.lock();
        let id = state.slabs.take_oversize(n);
        state.open(&self.shared.memory);
        id
    }

    /// Takes the slabs of a packet back.
    pub(super) fn free_oversize(&self, id: u32) {
        let release = |bytes| {
            // SAFETY: the slabs are those of one packet, which is freed: nobody uses it any more, as the
            // caller of `Pool::siblings` promised, and nobody can be given them before the lock is.
            unsafe { self.shared.memory.release_shared(bytes) }
        };
        self.shared.lock().slabs.free_oversize(id, release);
    }

    /// Leaves for the others what a pool knows of dropped packets, if that is `least` or more.
    pub(super) fn mail(&self, dropped: &mut Vec<(u32, u64)>, least: usize) {
        if dropped.is_empty() || dropped.len() < least {
            return;
        }
        let mut state = self.shared.lock();
        let room = MOST_DROPPED.saturating_sub(state.dropped.len());
        state.dropped.extend(dropped.drain(..).take(room));
        self.shared.mail.store(true, Ordering::Release);
    }

    /// Returns true if others may have left something.
    #[inline]
    pub(super) fn has_mail(&self) -> bool {
        self.shared.mail.load(Ordering::Acquire)
    }

    /// Goes through what others left, which `stays` or not.
    pub(super) fn take_mail(&self, stays: impl FnMut(&(u32, u64)) -> bool) {
        if self.has_mail() {
            let mut state = self.shared.lock();
            state.dropped.retain(stays);
            self.shared.mail.store(!state.dropped.is_empty(), Ordering::Release);
        }
    }
}

impl Pool {
    /// Makes `n` pools of this one, for `n` threads: packets of any of them, and those that this one has, can
    /// be used with each of them. All have the memory together, up to 256 GiB; where the system gives a
    /// process less, half of what is left to it.
    ///
    /// The state that belongs to a pool and not to its memory starts anew: counts add up in [`Pool::live`],
    /// and all are [retained](Pool::retain) if this one was. In siblings no packet is sliced in its place.
    /// Adopted memory is that of all of them: its [`Region`](super::Region) is behind a lock, and ends with
    /// the last of them.
    ///
    /// # Safety
    /// A pool that is alone answers for every [`BufId`](super::BufId) and length that it is asked for;
    /// siblings do not. As long as any of them is there, of them and of all that are made of them in this
    /// way:
    ///
    /// - a `BufId` that one of them is given is one that one of them (or `self`, before) returned, and that
    ///   was not freed since; the `len` given with it is at most the length of its packet;
    /// - a packet is used with one of them at a time: between its use with one and with another on another
    ///   thread there is what makes the one happen before the other, such as a channel, a lock, or the end of
    ///   the thread;
    /// - packets of retained pools may be used with several at a time, as long as that changes none of them.
    #[must_use]
    pub unsafe fn siblings(mut self, n: usize) -> Vec<Self> {
        let shared = match &self.sibling {
            Some(sibling) => Arc::clone(&sibling.shared),
            None => Arc::new(self.share()),
        };
        let (retains, adopted) = (self.retains(), self.adopted.as_ref().map(|adopted| adopted.twin()));
        // Everything that a sibling has becomes that of the others.
        drop(self);
        let one = || {
            let sibling = Sibling::of(&shared);
            let mut pool = Self::new();
            (pool.memory, pool.sibling) = (shared.memory.twin(), Some(Box::new(sibling)));
            if let Some(adopted) = &adopted {
                pool.adopt_too(adopted);
            }
            pool.fixed = true;
            if retains {
                pool.retain();
            }
            pool
        };
        (0..n).map(|_| one()).collect()
    }

    /// All that it has, for several; it has nothing then.
    fn share(&mut self) -> Shared {
        let (slabs, bump) = (take(&mut self.slabs), core::mem::replace(&mut self.bump, (0, SLAB_UNITS)));
        let memory = core::mem::replace(&mut self.memory, Memory::new()).into_shared();
        self.give_back();
        let mut stash = self.free.each_mut().map(take);
        let mut rests = vec![bump];
        if let Some(adopted) = &mut self.adopted {
            rests.push(adopted.leave(&mut stash));
        }
        rests.retain(|(_, next)| *next < SLAB_UNITS);
        let dropped = take(&mut self.dropped);
        let mail = AtomicBool::new(!dropped.is_empty());
        let mut state = State { opened: memory.own_part(), slabs, stash, rests, dropped, left: Vec::new() };
        state.open(&memory);
        Shared { memory, live: AtomicI64::new(take(&mut self.live)), state: Mutex::new(state), mail }
    }

    /// Lets siblings know what they should: how many packets this one stored and freed, and which sliced ones
    /// were dropped. It does so by itself every few hundred packets; to be called now and then, and when
    /// there is nothing to do. A pool that is alone has nobody to tell.
    pub fn settle(&mut self) {
        if let Some(sibling) = &mut self.sibling {
            sibling.settle(self.live);
            sibling.leave_all();
            sibling.mail(&mut self.dropped, 1);
        }
    }
}

impl Drop for Pool {
    /// Leaves what it has to its siblings, and buffers to whom they belong.
    fn drop(&mut self) {
        self.settle();
        self.give_back();
        if let Some(mut sibling) = self.sibling.take() {
            let unsorted = take(&mut sibling.unsorted);
            let mut state = sibling.shared.lock();
            state.left.extend(unsorted);
            for (stash, list) in state.stash.iter_mut().zip(&mut self.free) {
                stash.append(list);
            }
            if sibling.bump.1 < SLAB_UNITS {
                state.rests.push(sibling.bump);
            }
        }
    }
}

#[cfg(test)]
mod tests;
