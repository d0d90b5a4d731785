//! Traffic like that at the gateway of the campus in the Reframer paper (§3).
//!
//! Each copy has a clock whose ticks are a Poisson process. At a tick something begins: a train of one of the
//! long-lived connections, a short connection, a DNS query, a lone SYN. What follows from it (the segments of
//! the train, the acknowledgements of the other side a round-trip time later, the rest of the short
//! connection) waits in a heap for its time. The time to the next tick follows the bytes begun lately, so
//! that the rate is what it shall be, whatever the mix. A copy runs for a while before its first packet is
//! used; long-lived connections start in mid-life.

mod connection;
mod model;
mod stream;

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::packet::Packet;
use stream::Stream;

/// Superposed copies, merged by time; ties go to the lower copy.
#[derive(Clone, Debug)]
pub(super) struct Campus {
    copies: Vec<(Stream, Packet)>,
    due: BinaryHeap<Reverse<(u64, u32)>>,
    first: Packet,
    start: u64,
}

impl Campus {
    /// `copies` (at least 1) copies from time `start` (ns) on.
    pub(super) fn new(seed: u64, copies: u32, start: u64) -> Self {
        let mut due = BinaryHeap::new();
        let copies: Vec<_> = (0..copies)
            .map(|copy| {
                let mut stream = Stream::new(seed, copy);
                let (time, packet) = stream.next();
                due.push(Reverse((time, copy)));
                (stream, packet)
            })
            .collect();
        let first = match copies.first() {
            Some(&(_, packet)) => packet,
            None => Stream::new(seed, 0).next().1,
        };
        Self { copies, due, first, start }
    }

    /// The next packet and its time.
    pub(super) fn next(&mut self) -> (Packet, u64) {
        let Some(mut top) = self.due.peek_mut() else { return (self.first, self.start) };
        let Reverse((time, copy)) = *top;
        let Some((stream, pending)) = self.copies.get_mut(copy as usize) else {
            return (self.first, self.start);
        };
        let packet = *pending;
        let (next_time, next_packet) = stream.next();
        *pending = next_packet;
        *top = Reverse((next_time, copy));
        (packet, self.start.saturating_add(time))
    }
}
