//! Later fragments that came before the first one of their datagram, which alone says where they belong.
//!
//! They wait for it, copied, for a bounded time and in a bounded number; who waits for too long goes by its
//! addresses.

use std::collections::VecDeque;

use slipstream_core::pool::PacketMeta;
use slipstream_core::time::Nanos;

use super::steer::DatagramKey;

/// Fragments that wait at most, and their bytes.
pub(super) const MOST: usize = 256;
const MOST_BYTES: usize = 1 << 20;
/// Longest wait, in ns; it may last as long again where nothing else comes.
pub(super) const PATIENCE: u64 = 100_000_000;

/// A fragment that waits.
#[derive(Debug)]
pub(super) struct Fragment {
    pub(super) key: DatagramKey,
    /// The shard that it goes to if the first one doesn't come.
    pub(super) otherwise: usize,
    pub(super) arrival: Nanos,
    pub(super) meta: PacketMeta,
    pub(super) data: Vec<u8>,
}

/// All that wait, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Early {
    waiting: VecDeque<(Nanos, Fragment)>,
    bytes: usize,
    /// Memory of those that are gone.
    spare: Vec<Vec<u8>>,
}

impl Early {
    pub(super) fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Has a fragment wait, from `now` on. There may be too many then: [`next_over`](Self::next_over).
    pub(super) fn hold(&mut self, fragment: Fragment, now: Nanos) {
        self.bytes += fragment.data.len();
        self.waiting.push_back((now, fragment));
    }

    /// A copy of a packet, in memory that was used before.
    pub(super) fn copy(&mut self, data: &[u8]) -> Vec<u8> {
        let mut copy = self.spare.pop().unwrap_or_default();
        copy.extend_from_slice(data);
        copy
    }

    /// Takes that memory back.
    pub(super) fn put_back(&mut self, mut data: Vec<u8>) {
        if self.spare.len() < MOST {
            data.clear();
            self.spare.push(data);
        }
    }

    /// The next fragment that waits for this datagram's first one, which has come.
    pub(super) fn next_of(&mut self, key: &DatagramKey) -> Option<Fragment> {
        let at = self.waiting.iter().position(|(_, fragment)| fragment.key == *key)?;
        self.take(at)
    }

    /// The next fragment whose time is over at `now`, or for which there is no room.
    pub(super) fn next_over(&mut self, now: Nanos) -> Option<Fragment> {
        let (since, _) = self.waiting.front()?;
        let over = now.since(*since) >= PATIENCE || self.waiting.len() > MOST || self.bytes > MOST_BYTES;
        if over { self.take(0) } else { None }
    }

    fn take(&mut self, at: usize) -> Option<Fragment> {
        let (_, fragment) = self.waiting.remove(at)?;
        self.bytes -= fragment.data.len();
        Some(fragment)
    }
}
