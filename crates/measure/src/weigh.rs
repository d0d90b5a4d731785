//! The weight of a packet: what is counted of it, or the value of which quantiles are asked.

use slipstream_sketch::{KeyHash, Kind};

use crate::{KeyBytes, Task};

/// The figure that is taken for a packet's weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Weight {
    /// 1.
    #[default]
    Packets,
    /// Its bytes on the wire.
    Bytes,
    /// Time since the packet of its flow before it, in ns.
    Gap,
    /// Time that the pipeline has held it until here, in ns. A trace by itself has none.
    Delay,
}

impl Weight {
    const ALL: [Self; 4] = [Self::Packets, Self::Bytes, Self::Gap, Self::Delay];
    /// As they are written in settings.
    pub const NAMES: [&'static str; 4] = ["packets", "bytes", "gap", "delay"];

    /// The one of a name; packets for a word that names none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let named = Self::NAMES.iter().zip(Self::ALL).find(|(known, _)| **known == name);
        named.map_or(Self::Packets, |(_, weight)| weight)
    }

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Bytes => "bytes",
            Self::Gap => "gap",
            Self::Delay => "delay",
        }
    }

    /// Refuses what doesn't go with a sketch and a task.
    ///
    /// # Errors
    /// Says what to do instead.
    pub fn refuse(self, kind: Kind, task: Task) -> Result<(), String> {
        if matches!(self, Self::Gap | Self::Delay) && !kind.takes_values() {
            return Err(format!(
                "a {} is a value of a single packet, and {kind} adds up: ask for the task quantiles",
                self.name()
            ));
        }
        if kind == Kind::Mrac && self == Self::Bytes {
            return Err(
                "mrac: its estimate is for sizes in packets; use weight packets, or exact or flow-radar"
                    .into(),
            );
        }
        if task == Task::Quantiles && self == Self::Packets {
            return Err(
                "every packet weighs 1 packet: quantiles are of weight bytes, the sizes of packets, or gap, the \
                 time since the flow's packet before (of the stage `measure` also delay)".into(),
            );
        }
        Ok(())
    }
}

/// Flows whose last packets are remembered: buckets of four.
const BUCKETS: usize = 1 << 14;
const WAYS: usize = 4;

/// The time of the last packet of each flow, in a table of 1 MiB: of the last 65,536 flows or a little fewer.
/// In a bucket that is full the flow gives way that was seen longest ago; its next packet is a first one
/// then.
#[derive(Debug)]
pub(crate) struct Gaps {
    /// Hashes of flows, 0 where there is none, and times in ns.
    buckets: Vec<[(u64, u64); WAYS]>,
    hash: KeyHash,
}

impl Gaps {
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(BUCKETS, seed)
    }

    fn of(buckets: usize, seed: u64) -> Self {
        Self { buckets: vec![[(0, 0); WAYS]; buckets], hash: KeyHash::new(seed) }
    }

    /// The time since the flow's packet before; nothing of the first that is known. Time that runs back is
    /// none.
    #[inline]
    pub(crate) fn since_last(&mut self, flow: &KeyBytes, now: u64) -> Option<u64> {
        let hash = self.hash.of(flow.get()).max(1);
        let n = self.buckets.len();
        let bucket = self.buckets.get_mut(((u128::from(hash) * n as u128) >> 64) as usize)?;
        if let Some((_, last)) = bucket.iter_mut().find(|(of, _)| *of == hash) {
            let gap = now.saturating_sub(*last);
            *last = now.max(*last);
            return Some(gap);
        }
        if let Some(oldest) = bucket.iter_mut().min_by_key(|(of, last)| (*of != 0, *last)) {
            *oldest = (hash, now);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use slipstream_wire::{LinkType, classify};

    use super::*;
    use crate::{KeyKind, Keying};

    /// The key of a host.
    fn host(n: u8) -> KeyBytes {
        let mut dns =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
        dns[15] = n;
        Keying::plain("src".parse::<KeyKind>().unwrap()).key(&classify(LinkType::RawIp, &dns).unwrap().key)
    }

    proptest! {
        /// As many flows as a bucket holds: none is ever forgotten.
        #[test]
        fn gaps_are_those_of_a_dictionary(packets in prop::collection::vec((0u8..4, 0u64..1000), 0..200)) {
            let (mut gaps, mut last, mut now) = (Gaps::of(1, 7), HashMap::new(), 0u64);
            for (flow, later) in packets {
                now += later;
                let want = last.insert(flow, now).map(|before| now - before);
                prop_assert_eq!(gaps.since_last(&host(flow), now), want);
            }
        }
    }

    #[test]
    fn the_flow_of_longest_ago_gives_way() {
        let mut gaps = Gaps::of(1, 7);
        for flow in 0..5 {
            assert_eq!(gaps.since_last(&host(flow), 10 + u64::from(flow)), None);
        }
        assert_eq!(gaps.since_last(&host(0), 20), None);
        assert_eq!(gaps.since_last(&host(4), 20), Some(6));
        // A clock that runs back.
        assert_eq!(gaps.since_last(&host(4), 15), Some(0));
        assert_eq!(gaps.since_last(&host(4), 25), Some(5));
    }
}
