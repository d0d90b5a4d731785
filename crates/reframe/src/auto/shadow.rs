//! Shadow accounting: the trains, delays and vain waits that other holds would have given, for a sample of
//! flows.

use alloc::vec;
use alloc::vec::Vec;

use slipstream_core::time::Nanos;

/// Holds that are tried: half octaves downwards from the longest.
pub(crate) const TRIED: usize = 16;
/// Sampled flows remembered: another one takes the place of an older one.
const FLOWS: usize = 256;

/// The outcome of a hold over a stretch of time, for the sampled flows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Packets.
    pub packets: u64,
    /// Trains that they left in.
    pub trains: u64,
    /// Delay of all packets, in ns.
    pub delay_ns: u64,
    /// Of it, that of packets that were alone in their trains.
    pub futile_wait_ns: u64,
}

impl Outcome {
    pub(super) fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.trains += other.trains;
        self.delay_ns += other.delay_ns;
        self.futile_wait_ns += other.futile_wait_ns;
    }

    pub(super) fn halve(&mut self) {
        self.packets /= 2;
        self.trains /= 2;
        self.delay_ns /= 2;
        self.futile_wait_ns /= 2;
    }

    fn train(&mut self, count: u64, delay_ns: u64) {
        self.packets += count;
        self.trains += 1;
        self.delay_ns += delay_ns;
        if count == 1 {
            self.futile_wait_ns += delay_ns;
        }
    }
}

/// A train as it would be under some hold.
#[derive(Clone, Copy, Debug, Default)]
struct Train {
    base: Nanos,
    /// Sum of how much later than the first one its packets came, in ns.
    later_ns: u64,
    /// 0: there is none.
    count: u16,
}

#[derive(Clone, Copy, Debug)]
struct Sampled {
    flow: u32,
    trains: [Train; TRIED],
}

/// The trains of the sampled flows of a class, under each hold that is tried.
#[derive(Debug)]
pub(super) struct Shadow {
    /// Holds tried, in ns, from the longest to the shortest; 0 behind the last.
    holds: [u64; TRIED],
    burst: u16,
    flows: Vec<Sampled>,
}

impl Shadow {
    /// Holds up to `longest_ns`, but not below `shortest_ns`, with trains of at most `burst` packets.
    pub(super) fn new(shortest_ns: u64, longest_ns: u64, burst: u16) -> Self {
        let mut holds = [0; TRIED];
        for (n, hold) in holds.iter_mut().enumerate() {
            let octaves = longest_ns >> (n / 2);
            // By the root of two: 181/256.
            let ns = if n % 2 == 0 { octaves } else { (u128::from(octaves) * 181 / 256) as u64 };
            if ns >= shortest_ns.max(1) {
                *hold = ns;
            }
        }
        let none = Sampled { flow: u32::MAX, trains: [Train::default(); TRIED] };
        Self { holds, burst, flows: vec![none; FLOWS] }
    }

    /// Returns true if the outcomes are of the same holds and bursts as those of another one.
    #[cfg(feature = "std")]
    pub(super) fn tries_as(&self, other: &Self) -> bool {
        (self.holds, self.burst) == (other.holds, other.burst)
    }

    /// The holds that are tried, in ns, from the longest to the shortest.
    pub(super) fn holds(&self) -> impl Iterator<Item = u64> + '_ {
        self.holds.iter().copied().take_while(|ns| *ns > 0)
    }

    /// A packet of a sampled flow has come: `flow` and `key` are of its hash.
    pub(super) fn packet(&mut self, flow: u32, key: u32, now: Nanos, outcomes: &mut [Outcome; TRIED]) {
        let Self { holds, burst, flows } = self;
        let Some(sampled) = flows.get_mut(key as usize % FLOWS) else { return };
        if sampled.flow != flow {
            end(&mut sampled.trains, holds, Nanos::MAX, outcomes);
            sampled.flow = flow;
        }
        for ((train, hold), outcome) in sampled.trains.iter_mut().zip(&*holds).zip(outcomes) {
            if *hold == 0 {
                break;
            }
            let waited = now.since(train.base);
            if train.count > 0 && waited >= *hold {
                outcome.train(train.count.into(), u64::from(train.count) * hold - train.later_ns);
                train.count = 0;
            }
            if train.count == 0 {
                *train = Train { base: now, later_ns: 0, count: 1 };
            } else {
                train.count += 1;
                train.later_ns += waited;
            }
            if train.count >= *burst {
                let waited = now.since(train.base);
                outcome.train(train.count.into(), u64::from(train.count) * waited - train.later_ns);
                train.count = 0;
            }
        }
    }

    /// Forgets the trains that are not over: what comes next is not seen.
    pub(super) fn forget(&mut self) {
        self.flows.iter_mut().flat_map(|sampled| &mut sampled.trains).for_each(|train| train.count = 0);
    }

    /// Counts the trains that are due by `now`.
    pub(super) fn end(&mut self, now: Nanos, outcomes: &mut [Outcome; TRIED]) {
        let Self { holds, flows, .. } = self;
        flows.iter_mut().for_each(|sampled| end(&mut sampled.trains, holds, now, outcomes));
    }
}

/// Ends those trains of a flow that are due by `now`.
fn end(trains: &mut [Train; TRIED], holds: &[u64; TRIED], now: Nanos, outcomes: &mut [Outcome; TRIED]) {
    for ((train, hold), outcome) in trains.iter_mut().zip(holds).zip(outcomes) {
        if train.count > 0 && now.since(train.base) >= *hold {
            outcome.train(train.count.into(), u64::from(train.count) * hold - train.later_ns);
            train.count = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn holds_are_tried_in_half_octaves() {
        let holds = |low, high| Shadow::new(low, high, 32).holds().collect::<Vec<_>>();
        assert_eq!(holds(20_000, 64_000), [64_000, 45_250, 32_000, 22_625]);
        assert_eq!(holds(0, 64_000).len(), TRIED);
        assert_eq!(holds(0, 3), [3, 2, 1]);
        assert_eq!(holds(64_000, 64_000), [64_000]);
    }

    proptest! {
        /// Against the trains of each flow by themselves.
        #[test]
        fn it_counts_what_a_hold_gives(
            packets in prop::collection::vec((0u32..4, 0u64..60), 0..200),
            burst in 2u16..6,
            longest in 1u64..200,
        ) {
            let mut shadow = Shadow::new(0, longest, burst);
            let mut outcomes = [Outcome::default(); TRIED];
            let (mut now, mut times) = (0, vec![Vec::new(); 4]);
            for (flow, gap) in packets {
                now += gap;
                shadow.packet(flow, flow, Nanos(now), &mut outcomes);
                times[flow as usize].push(now);
            }
            shadow.end(Nanos::MAX, &mut outcomes);
            for (hold, outcome) in shadow.holds().zip(outcomes) {
                let mut twin = Outcome::default();
                for times in &times {
                    let mut rest = times.as_slice();
                    while let Some(first) = rest.first() {
                        let n = rest.iter().take_while(|t| *t - first < hold).count().min(burst.into());
                        let leaves = if n == usize::from(burst) { rest[n - 1] } else { first + hold };
                        twin.train(n as u64, rest[..n].iter().map(|t| leaves - t).sum());
                        rest = &rest[n..];
                    }
                }
                prop_assert_eq!(outcome, twin, "hold {}", hold);
            }
        }
    }
}
