//! Packets whose payloads wait at one side and whose headers travel at the other: what is told of them.
//!
//! Behind the headers goes whose payload it is, and its token. A packet that the other side frees without
//! sending it back is dropped, which it says in a record of its own; so the payload is given up at once, as
//! it is where slicer and function share a process. A message that is lost, or finds no room for long, costs
//! no more than that the payload waits its turns.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use slipstream_core::pool::Pool;

/// Set in a record's interface: the packet is sliced, and a [`Mark`] follows it.
pub(super) const SLICED: u32 = 1 << 30;
/// Set in a record's interface: no packet, but marks of packets that were dropped.
pub(super) const DROPS: u32 = 1 << 31;
/// Bytes of a mark.
pub(super) const MARK: usize = 12;
/// Marks of a record at most.
pub(super) const MOST: usize = 64;
/// Marks that wait for room in the ring at most, and owners at the other side that can be told apart.
const MOST_WAITING: usize = 1 << 16;
const MOST_OWNERS: usize = 1 << PLACE_BITS;

/// Owners of payloads are numbered from 0 in a pipeline; those at the other side of a port have the highest
/// bit set, the number of the port and a place in its list.
const PORT: u32 = 1 << 31;
const PLACE_BITS: u32 = 6;

/// Whose payload a sliced packet left behind, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of the slicer in the sending process.
    pub owner: u32,
    /// The token that stands for the payload.
    pub token: u64,
}

impl Mark {
    pub(super) fn to_bytes(self) -> [u8; MARK] {
        let [a, b, c, d] = self.owner.to_le_bytes();
        let [e, f, g, h, i, j, k, l] = self.token.to_le_bytes();
        [a, b, c, d, e, f, g, h, i, j, k, l]
    }

    pub(super) fn from_bytes([a, b, c, d, token @ ..]: [u8; MARK]) -> Self {
        Self { owner: u32::from_le_bytes([a, b, c, d]), token: u64::from_le_bytes(token) }
    }
}

/// State, shared by both ends of a side, of packets whose payloads wait at the other side.
#[derive(Debug)]
pub(super) struct Parked {
    /// True if there is something to tell: it saves the sending end the lock.
    any: AtomicBool,
    list: Mutex<List>,
}

#[derive(Debug)]
struct List {
    /// Common prefix of the owners of this port.
    base: u32,
    /// The numbers that owners have over there.
    owners: Vec<u32>,
    /// Dropped packets that the other side has not been told of.
    waiting: Vec<Mark>,
}

impl Parked {
    pub(super) fn new() -> Self {
        static PORTS: AtomicU32 = AtomicU32::new(0);
        let port = PORTS.fetch_add(1, Ordering::Relaxed);
        let list = List { base: PORT | port << PLACE_BITS, owners: Vec::new(), waiting: Vec::new() };
        Self { any: AtomicBool::new(false), list: Mutex::new(list) }
    }

    /// A thread that panicked left whole marks.
    fn lock(&self) -> MutexGuard<'_, List> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number here of an owner there; `None` for one too many.
    pub(super) fn owner(&self, there: u32) -> Option<u32> {
        let List { base, owners, .. } = &mut *self.lock();
        let place = match owners.iter().position(|known| *known == there) {
            Some(place) => place,
            None if owners.len() == MOST_OWNERS => return None,
            None => {
                owners.push(there);
                owners.len() - 1
            }
        };
        Some(*base | place as u32)
    }

    /// Learns from the pool which of the packets were dropped.
    pub(super) fn collect(&self, pool: &mut Pool) {
        if !pool.has_dropped() {
            return;
        }
        let List { base, owners, waiting } = &mut *self.lock();
        let places = MOST_OWNERS as u32 - 1;
        pool.take_dropped_of(
            |owner| owner & !places == *base,
            |owner, token| {
                if let Some(&owner) = owners.get((owner & places) as usize)
                    && waiting.len() < MOST_WAITING
                {
                    waiting.push(Mark { owner, token });
                }
            },
        );
        self.any.store(!waiting.is_empty(), Ordering::Release);
    }

    /// Returns true if the other side is to be told of any.
    pub(super) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Tells of as many as a record takes at a time, by `send`; those that it could not send stay.
    pub(super) fn tell(&self, mut send: impl FnMut(&[u8]) -> bool) {
        let waiting = &mut self.lock().waiting;
        while !waiting.is_empty() {
            let some = waiting.len().min(MOST);
            let bytes: Vec<u8> = waiting.iter().take(some).flat_map(|mark| mark.to_bytes()).collect();
            if !send(&bytes) {
                break;
            }
            waiting.drain(..some);
        }
        self.any.store(!waiting.is_empty(), Ordering::Release);
    }
}
