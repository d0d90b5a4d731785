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
    pub const NAMES: [&'static str; 4] = {
        let [a, b, c, d] = Self::ALL;
        [a.name(), b.name(), c.name(), d.name()]
    };

    /// The one of a name; packets for a word that names none.
    #[must_use]
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|weight| weight.name() == name).unwrap_or_default()
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

/// Buckets for the last packets of flows.
const BUCKETS: usize = 1 << 14;
/// Flows of a bucket.
const WAYS: usize = 8;
/// Flows of the first bucket up to which nobody looks at the second one.
const ROOMY: usize = 6;

/// The time of the last packet of each flow, in a table of 2 MiB: of the last 65,536 flows, but for one in
/// some ten thousands where there are many more.
///
/// A flow has two buckets, and its place in the first one, or in the other where that has more room and the
/// first is nearly full. So the table is two thirds full before any flow has to give way, and most look-ups
/// see one bucket. Then, of the flows of both buckets, it is the one that was seen longest ago; its next
/// packet is a first one.
#[derive(Debug)]
pub(crate) struct Gaps {
    buckets: Vec<Bucket>,
    hash: KeyHash,
    forgotten: u64,
}

/// Flows with the times of their last packets, in two cache lines.
#[derive(Clone, Debug, Default)]
#[repr(align(64))]
struct Bucket {
    /// Hashes of flows; 0 where there is none, behind all that are.
    flows: [u64; WAYS],
    /// In ns.
    last: [u64; WAYS],
}

impl Bucket {
    /// The time of a flow's last packet. Which way it takes can't be foreseen, so that all are looked at.
    #[inline]
    fn last_of(&mut self, hash: u64) -> Option<&mut u64> {
        let ways = self.flows.iter().enumerate();
        let way = ways.fold(WAYS, |found, (way, flow)| if *flow == hash { way } else { found });
        self.last.get_mut(way)
    }

    /// The flows that there are.
    #[inline]
    fn filled(&self) -> usize {
        self.flows.iter().filter(|flow| **flow != 0).count()
    }

    /// The flow that was seen longest ago in a full one: when, and its way.
    #[inline]
    fn oldest(&self) -> (u64, usize) {
        let ways = self.last.iter().enumerate();
        ways.fold((u64::MAX, 0), |oldest, (way, last)| if *last < oldest.0 { (*last, way) } else { oldest })
    }
}

impl Gaps {
    pub(crate) fn new(seed: u64) -> Self {
        Self::of(BUCKETS, seed)
    }

    fn of(buckets: usize, seed: u64) -> Self {
        Self { buckets: vec![Bucket::default(); buckets], hash: KeyHash::new(seed), forgotten: 0 }
    }

    /// The time since the flow's packet before; nothing of the first that is known. Time that runs back is
    /// none.
    #[inline]
    pub(crate) fn since_last(&mut self, flow: &KeyBytes, now: u64) -> Option<u64> {
        let hash = self.hash.of(flow.get()).max(1);
        let buckets = self.buckets.len() as u64;
        // One by each half of the hash.
        let places = [hash >> 32, hash & u64::from(u32::MAX)].map(|half| ((half * buckets) >> 32) as usize);
        for place in places {
            if let Some(last) = self.buckets.get_mut(place).and_then(|bucket| bucket.last_of(hash)) {
                let gap = now.saturating_sub(*last);
                *last = now.max(*last);
                return Some(gap);
            }
        }
        self.remember(places, hash, now);
        None
    }

    /// Makes room for a flow.
    fn remember(&mut self, [first, second]: [usize; 2], hash: u64, now: u64) {
        let (Some(one), Some(other)) = (self.buckets.get(first), self.buckets.get(second)) else { return };
        let (in_one, in_other) = (one.filled(), other.filled());
        let (at, way) = if in_one < ROOMY || in_one < WAYS && in_one <= in_other {
            (first, in_one)
        } else if in_other < WAYS {
            (second, in_other)
        } else {
            self.forgotten += 1;
            let (oldest, oldest_other) = (one.oldest(), other.oldest());
            if oldest.0 <= oldest_other.0 { (first, oldest.1) } else { (second, oldest_other.1) }
        };
        let Some(bucket) = self.buckets.get_mut(at) else { return };
        if let (Some(flow), Some(last)) = (bucket.flows.get_mut(way), bucket.last.get_mut(way)) {
            (*flow, *last) = (hash, now);
        }
    }

    /// Flows that had to give way. Nobody knows which of them went on: each that did lacks a gap.
    pub(crate) const fn forgotten(&self) -> u64 {
        self.forgotten
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
    fn host(n: u32) -> KeyBytes {
        let mut dns =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
        dns[12..16].copy_from_slice(&n.to_be_bytes());
        Keying::plain("src".parse::<KeyKind>().unwrap()).key(&classify(LinkType::RawIp, &dns).unwrap().key)
    }

    /// A table, and the dictionary that it stands for.
    struct Both {
        gaps: Gaps,
        last: HashMap<u32, u64>,
        now: u64,
    }

    impl Both {
        fn new(buckets: usize, seed: u64) -> Self {
            Self { gaps: Gaps::of(buckets, seed), last: HashMap::new(), now: 0 }
        }

        /// The gap that each of the two sees.
        fn packet(&mut self, flow: u32, later: u64) -> (Option<u64>, Option<u64>) {
            self.now += later;
            let true_gap = self.last.insert(flow, self.now).map(|before| self.now - before);
            (self.gaps.since_last(&host(flow), self.now), true_gap)
        }
    }

    proptest! {
        /// As many flows as the two buckets hold: none is ever forgotten.
        #[test]
        fn gaps_are_those_of_a_dictionary(packets in prop::collection::vec((0u32..8, 0u64..1000), 0..200)) {
            let mut both = Both::new(1, 7);
            for (flow, later) in packets {
                let (gap, true_gap) = both.packet(flow, later);
                prop_assert_eq!(gap, true_gap);
            }
            prop_assert_eq!(both.gaps.forgotten(), 0);
        }

        /// Half as many flows as there are places, whichever they are: none is forgotten.
        #[test]
        fn half_of_the_places_are_enough(
            seed in any::<u64>(),
            flows in prop::collection::hash_set(any::<u32>(), 2048),
        ) {
            let mut both = Both::new(512, seed);
            for flow in flows.iter().chain(&flows) {
                let (gap, true_gap) = both.packet(*flow, 3);
                prop_assert_eq!(gap, true_gap);
            }
            prop_assert_eq!(both.gaps.forgotten(), 0);
        }

        /// More flows than there are places: a gap is the true one or none, and no more gaps are missing than
        /// flows were forgotten.
        #[test]
        fn what_is_forgotten_is_counted(
            seed in any::<u64>(),
            packets in prop::collection::vec(0u32..400, 0..1500),
        ) {
            let mut both = Both::new(16, seed);
            let mut missing = 0;
            for flow in packets {
                let (gap, true_gap) = both.packet(flow, 5);
                missing += u64::from(gap != true_gap);
                prop_assert!(gap == true_gap || gap.is_none());
                prop_assert!(missing <= both.gaps.forgotten());
            }
        }
    }

    /// Of 65,536 flows none is forgotten, and with many more flows hardly one of the last 65,536.
    #[test]
    #[cfg_attr(miri, ignore = "millions of packets")]
    fn the_last_65536_flows_are_remembered() {
        for seed in 0..5 {
            let mut both = Both::new(BUCKETS, seed);
            for flow in (0..65_536).chain((0..65_536).rev()) {
                let (gap, true_gap) = both.packet(flow, 7);
                assert_eq!(gap, true_gap, "seed {seed}");
            }
            assert_eq!(both.gaps.forgotten(), 0, "seed {seed}");
        }
        // Every flow has a second packet, when 65,534 other flows have been seen since its first one: half of
        // them for the first time, half for the second.
        let (mut both, mut missing) = (Both::new(BUCKETS, 9), 0u32);
        let flows = 600_000;
        for flow in 0..flows {
            both.packet(flow, 1);
            if let Some(earlier) = flow.checked_sub(32_767) {
                let (gap, true_gap) = both.packet(earlier, 1);
                missing += u32::from(gap != true_gap);
            }
        }
        assert!(missing < flows / 10_000, "{missing}");
        assert!(both.gaps.forgotten() > u64::from(flows) / 2);
    }

    #[test]
    fn the_flow_of_longest_ago_gives_way() {
        let mut gaps = Gaps::of(1, 7);
        for flow in 0..9 {
            assert_eq!(gaps.forgotten(), 0);
            assert_eq!(gaps.since_last(&host(flow), 10 + u64::from(flow)), None);
        }
        assert_eq!(gaps.forgotten(), 1);
        assert_eq!(gaps.since_last(&host(0), 20), None);
        assert_eq!(gaps.forgotten(), 2);
        assert_eq!(gaps.since_last(&host(8), 20), Some(2));
        // A clock that runs back.
        assert_eq!(gaps.since_last(&host(8), 15), Some(0));
        assert_eq!(gaps.since_last(&host(8), 25), Some(5));
    }
}
