//! Arrivals on their way from one core to another, in fewer cache lines.
//!
//! A frame and its key take 48 bytes, and each cache line that one core has written costs the next one that
//! reads it about as much as a packet costs otherwise. Of most packets 40 bytes say all, and what they become
//! lies in memory that no other core writes to.

use slipstream_core::batch::Arrivals;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::BufId;
use slipstream_core::time::Nanos;
use slipstream_wire::{FlowKey, NarrowKey};

/// A packet as a source brings it, without what all such packets have alike.
#[derive(Clone, Copy, Debug)]
struct Handle {
    key: NarrowKey,
    info: Info,
    buf: BufId,
    len: u32,
    /// After the first packet, in ns.
    later_ns: u32,
}

const _: () = assert!(size_of::<Handle>() == 40);

/// Arrivals, packed.
#[derive(Debug, Default)]
pub(super) struct Packed {
    handles: Vec<Handle>,
    long_keys: Vec<FlowKey>,
    positions: Vec<u64>,
    first: u64,
    start: Nanos,
}

impl Packed {
    /// Packets in it.
    pub(super) fn packets(&self) -> usize {
        self.handles.len()
    }

    /// Forgets its packets.
    pub(super) fn clear(&mut self) {
        self.handles.clear();
        self.long_keys.clear();
        self.positions.clear();
    }

    /// Takes the packets out of `arrivals`; returns false, and leaves them there, where they can't be packed:
    /// they have no keys, bear a number or a hash already, or their times lie too far apart.
    pub(super) fn pack(&mut self, arrivals: &mut Arrivals) -> bool {
        let Arrivals { frames, keys, first, positions } = arrivals;
        self.clear();
        let start = frames.first().map_or(Nanos(0), |frame| frame.arrival);
        let mut odd = frames.len() != keys.len();
        let (keys, long_keys) = keys.as_parts();
        self.handles.extend(frames.iter().zip(keys).map(|(frame, key)| {
            let later_ns = frame.arrival.0.wrapping_sub(start.0);
            odd |= later_ns > u64::from(u32::MAX) || frame.flow != Frame::NO_FLOW || frame.hash != 0;
            let Frame { info, buf, len, .. } = *frame;
            Handle { key: *key, info, buf, len, later_ns: later_ns as u32 }
        }));
        if odd {
            return false;
        }
        self.long_keys.extend_from_slice(long_keys);
        self.positions.extend_from_slice(positions);
        (self.first, self.start) = (*first, start);
        arrivals.clear();
        true
    }

    /// The same packets, into `arrivals`, which has none.
    pub(super) fn unpack(&self, arrivals: &mut Arrivals) {
        let Arrivals { frames, keys, first, positions } = arrivals;
        frames.extend(self.handles.iter().map(|handle| {
            let arrival = Nanos(self.start.0.wrapping_add(u64::from(handle.later_ns)));
            Frame { info: handle.info, ..Frame::unclassified(arrival, handle.buf, handle.len) }
        }));
        keys.extend_parts(self.handles.iter().map(|handle| handle.key), &self.long_keys);
        positions.extend_from_slice(&self.positions);
        *first = self.first;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use slipstream_wire::WideKey;

    use super::*;

    proptest! {
        /// Whatever goes in comes out again, or stays where it is.
        #[test]
        fn packets_stay_as_they_are(
            packets in prop::collection::vec(
                (any::<u32>(), any::<u32>(), any::<u64>(), prop::array::uniform7(any::<u64>()), any::<bool>()), 0..40),
            apart in prop::sample::select(vec![1_u64, 1000, 1 << 31, 1 << 33]),
            odd in prop::sample::select(vec![0, 1, 2, 3, 3, 3, 3]),
            first in any::<u64>(),
            positions in any::<bool>(),
            start in 0..u64::MAX / 2,
        ) {
            let mut arrivals = Arrivals { first, ..Arrivals::default() };
            for (n, (buf, len, info, key, wide)) in (0_u64..).zip(&packets) {
                let [a, b, ..] = *key;
                let mut frame = Frame::unclassified(Nanos(start + n * apart), BufId(*buf), *len);
                frame.info = Info::of_halves(*info as u32, (*info >> 32) as u32);
                match odd {
                    0 => frame.flow = 7,
                    1 => frame.hash = 7,
                    _ => {}
                }
                arrivals.frames.push(frame);
                if odd != 2 || n > 0 {
                    let narrow = FlowKey::Narrow(NarrowKey([a, b]));
                    arrivals.keys.push(if *wide { FlowKey::Wide(WideKey(*key)) } else { narrow });
                }
                if positions {
                    arrivals.positions.push(first.wrapping_add(n * 3));
                }
            }
            let twin = (arrivals.frames.clone(), arrivals.keys.clone(), arrivals.first, arrivals.positions.clone());
            let mut packed = Packed::default();
            // The packets in it before are gone.
            let _ = packed.pack(&mut Arrivals {
                frames: vec![Frame::unclassified(Nanos(9), BufId(9), 9)],
                keys: [FlowKey::Wide(WideKey([9; 7]))].into_iter().collect(),
                first: 9,
                positions: vec![9],
            });
            let fits = packed.pack(&mut arrivals);
            let far = apart.saturating_mul(packets.len().saturating_sub(1) as u64) > u64::from(u32::MAX);
            prop_assert_eq!(fits, packets.is_empty() || odd == 3 && !far);
            if fits {
                prop_assert_eq!((arrivals.frames.len(), arrivals.keys.len(), arrivals.positions.len()), (0, 0, 0));
                prop_assert_eq!(packed.packets(), packets.len());
                packed.unpack(&mut arrivals);
            }
            prop_assert_eq!((arrivals.frames, arrivals.keys, arrivals.first, arrivals.positions), twin);
        }
    }
}
