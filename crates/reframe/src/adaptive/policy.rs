//! The waits of a train by its length, from what each wait would bring.

use super::scale::{GapScale, WAITS};

/// Classes of train lengths below 256: half octaves.
const LENGTHS: usize = 16;
/// Packets of each such class, times four.
const FOURFOLD: [i64; LENGTHS] = [4, 8, 8, 12, 18, 26, 38, 54, 78, 110, 158, 222, 318, 446, 638, 894];
/// The first train length of each class, and how many there are. The second class has none.
#[expect(clippy::indexing_slicing, reason = "a constant: the compiler does the indexing")]
const PACKETS: [(usize, usize); LENGTHS] = {
    let mut packets = [(1, 1); LENGTHS];
    packets[1] = (2, 0);
    let mut class = 2;
    while class < LENGTHS {
        let half = 1 << (class / 2 - 1);
        packets[class] = ((2 + class % 2) * half, half);
        class += 1;
    }
    packets
};
/// A share of 1.
pub(super) const ONE: u64 = 1 << 20;
/// A flow goes on as it is with a chance of three in four, as far as its next trains are concerned. With 1 in
/// place of it, flows that are not alike are told apart better where they are known, and worse where they are
/// not; the traffic of `crates/lab/examples/made_traffic.rs` did best between a half and 1.
const ALIKE: (i64, i64) = (3, 4);
/// The worth of a train is found in so many steps at most, from what it was before.
const ITERATIONS: usize = 4;
/// The worth is found when it is off by no more than this part of the price.
const CLOSE: i64 = 64;

/// By class of train length: number of the wait, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Waits([u8; LENGTHS]);

impl Waits {
    pub(crate) const NONE: Self = Self([0; LENGTHS]);

    /// Trains of any length wait as those of one packet do.
    pub(super) fn all_as_alone(&mut self) {
        let [alone, longer @ ..] = &mut self.0;
        longer.fill(*alone);
    }

    /// The number of the wait of a train of `count` packets: 0 is none at all.
    #[inline(always)]
    pub(crate) fn of(&self, count: u16) -> u8 {
        let class = LENGTH_CLASSES.get(usize::from(count)).copied().unwrap_or(0);
        self.0.get(usize::from(class) % LENGTHS).copied().unwrap_or(0)
    }
}

/// The length of each wait, in ns, by its number, and 0 for none; rounded up as its deadline needs it.
#[derive(Clone, Debug)]
pub(crate) struct WaitsNs([u64; 2 * WAITS]);

impl WaitsNs {
    /// Nothing waits.
    pub(crate) const NONE: Self = Self([0; 2 * WAITS]);

    /// To each wait `rounding` is added.
    pub(super) fn new(scale: &GapScale, rounding: u64) -> Self {
        let mut waits = [0; 2 * WAITS];
        let numbered = waits.iter_mut().skip(1).zip(0..WAITS as u8);
        numbered.for_each(|(ns, bucket)| *ns = scale.edge_ns(bucket) + rounding);
        Self(waits)
    }

    /// The length of the wait of this number.
    #[inline(always)]
    pub(crate) fn of(&self, wait: u8) -> u64 {
        self.0.get(usize::from(wait) % (2 * WAITS)).copied().unwrap_or(0)
    }
}

/// By the packets of a train: their class.
#[expect(clippy::indexing_slicing, reason = "a constant: the compiler does the indexing")]
const LENGTH_CLASSES: [u8; 256] = {
    let mut classes = [0; 256];
    let mut count = 1;
    while count < 256 {
        classes[count] = length_class(count as u16) as u8;
        count += 1;
    }
    classes
};

const fn length_class(count: u16) -> usize {
    if count < 2 {
        return 0;
    }
    let octave = count.ilog2();
    2 * octave as usize + (count >> (octave - 1) & 1) as usize
}

/// The result of a wait, on average, in parts of [`ONE`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Outcome {
    /// Packets that come in time.
    pub(super) joined: i64,
    /// The time that it takes, in quarters of a unit.
    pub(super) waited: i64,
}

impl Outcome {
    /// Returns true if there is more joining for the time than with the other one.
    fn is_better(&self, other: &Self) -> bool {
        self.joined.saturating_mul(other.waited) > other.joined.saturating_mul(self.waited)
    }
}

/// Trains of a class: how long they may become, and what a packet more in them is worth.
#[derive(Clone, Copy, Debug)]
pub(super) struct Policy {
    /// Packets of a full train.
    pub(super) burst: usize,
    /// The price of a packet more, in sixteenths of a unit.
    pub(super) price: i64,
}

impl Policy {
    /// Sets the waits by what each would bring (`outcomes`, from the shortest on), and `worth` to what a
    /// train of one packet is worth from then on: it is where the search begins.
    ///
    /// A packet that joins is worth the price. But it is no loss if the train is gone: the packet then begins
    /// a new one, which is worth more from then on than a long one, since fewer packets wait in it. So a
    /// train of n packets is worth, for a flow that goes on as it is,
    ///
    /// > w(n) = max over all waits of joined · (price − loss) − n · waited,
    /// > loss = w(1) − w(n + 1), w(burst) = 0,
    ///
    /// which is a semi-Markov decision problem; the loss counts [`ALIKE`], as flows change. w(1) is
    /// found by policy iteration (Howard, *Dynamic Programming and Markov Processes*, 1960), each step of
    /// which is one of Newton's for it. Where packets come by chance, one in g on average, and flows go on as
    /// they are, trains of √(2 · price / g) packets are best.
    pub(super) fn find(self, waits: &mut Waits, worth: &mut i64, outcomes: &[Outcome]) {
        let mut best = Outcome::default();
        for outcome in outcomes {
            if outcome.is_better(&best) || best.joined == 0 {
                best = *outcome;
            }
        }
        for _ in 0..ITERATIONS {
            let (found, joins) = self.step(waits, *worth, outcomes, &best);
            let off = found - *worth;
            *worth += off * ONE as i64 / (ONE as i64 + joins);
            if off.abs() * CLOSE <= self.price {
                break;
            }
        }
    }

    /// Sets the waits where a train of one packet is taken to be worth so much. Returns its worth by these
    /// waits, and how much less it were if it were taken to be worth one more, in parts of [`ONE`]. `best`
    /// is the outcome with most joining for its time.
    fn step(self, waits: &mut Waits, worth: i64, outcomes: &[Outcome], best: &Outcome) -> (i64, i64) {
        let Self { burst, price } = self;
        let (alike, of) = ALIKE;
        // Of the train with a packet more.
        let (mut rest, mut joins) = (0i64, 0i64);
        let mut shortest = 0;
        let lengths = length_class(burst.saturating_sub(1).min(255) as u16) + 1;
        let by_length = waits.0.iter_mut().zip(FOURFOLD).zip(PACKETS).take(lengths);
        for ((wait, packets), (first, more)) in by_length.rev() {
            *wait = 0;
            if more == 0 {
                continue;
            }
            let gain = price - (worth - rest) * alike / of;
            // A train of fewer packets never waits shorter than one of more.
            let mut chosen = Outcome::default();
            if gain.saturating_mul(best.joined) > packets.saturating_mul(best.waited) {
                let mut most = 0;
                for (number, outcome) in (1u8..).zip(outcomes).skip(shortest) {
                    let value = gain * outcome.joined - packets * outcome.waited;
                    if value > most {
                        (most, *wait, chosen) = (value, number, *outcome);
                    }
                }
            }
            shortest = usize::from(*wait).saturating_sub(1);
            for _ in 0..more.min(burst.saturating_sub(first)) {
                let gain = price - (worth - rest) * alike / of;
                rest = ((gain * chosen.joined - packets * chosen.waited) / ONE as i64).max(0);
                joins = chosen.joined * alike / of * (ONE as i64 + joins) / ONE as i64;
            }
        }
        (rest, joins)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    /// Outcomes of waits that end at these times, where such parts of the packets come before each of them.
    fn outcomes(shares: &[u64], ends: impl Iterator<Item = i64>) -> Vec<Outcome> {
        let all = shares.iter().sum::<u64>().max(1);
        let (mut joined, mut waited, mut from) = (0, 0, 0);
        let of_bucket = |(share, to): (&u64, i64)| {
            let share = (share * ONE / all) as i64;
            joined += share;
            waited += share * (from + to) / 2;
            from = to;
            Outcome { joined, waited: waited + (ONE as i64 - joined) * to }
        };
        shares.iter().zip(ends).map(of_bucket).collect()
    }

    /// The worth of a train of one packet by the best waits for each number of packets, where it is taken to
    /// be worth `worth`.
    fn worth_by_number(policy: Policy, worth: f64, outcomes: &[Outcome]) -> f64 {
        let alike = ALIKE.0 as f64 / ALIKE.1 as f64;
        (1..policy.burst).rev().fold(0.0, |rest, packets| {
            let packets = FOURFOLD[usize::from(LENGTH_CLASSES[packets])] as f64;
            let gain = policy.price as f64 - (worth - rest) * alike;
            let value = |o: &Outcome| (gain * o.joined as f64 - packets * o.waited as f64) / ONE as f64;
            outcomes.iter().map(value).fold(0.0, f64::max)
        })
    }

    /// The worth that is what it is taken to be, found by halving.
    fn worth(policy: Policy, outcomes: &[Outcome]) -> f64 {
        let (mut low, mut high) = (0.0, policy.price as f64 * policy.burst as f64);
        for _ in 0..100 {
            let middle = (low + high) / 2.0;
            if worth_by_number(policy, middle, outcomes) > middle { low = middle } else { high = middle }
        }
        low
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Against a search by halving, in which each number of packets has a wait of its own.
        #[test]
        fn waits_are_worth_what_the_best_ones_are(
            shares in prop::collection::vec(0u64..1000, 2..24),
            never in 0u64..20_000,
            unit in 1i64..100,
            burst in 1usize..=256,
            price in 0i64..1 << 20,
            before in 0i64..1 << 20,
        ) {
            let ends = (0..shares.len()).map(|n| (unit * (2 + n as i64 % 2)) << (n / 2));
            let mut results = outcomes(&[&shares[..], &[never]].concat(), ends);
            results.truncate(shares.len());
            let policy = Policy { burst, price };
            let (mut waits, mut found) = (Waits::NONE, before);
            policy.find(&mut waits, &mut found, &results);
            let best = worth(policy, &results);
            prop_assert!((found as f64 - best).abs() <= best / 16.0 + price as f64 / 32.0 + 32.0, "{found} {best}");
            // Trains of more packets never wait longer.
            let by_count: Vec<u8> = (1..burst as u16).map(|count| waits.of(count)).collect();
            prop_assert!(by_count.is_sorted_by(|a, b| a >= b), "{by_count:?}");
        }
    }

    /// Packets that come by chance, one in ten units. If the flow's next trains were nothing, they would be
    /// let go at a tenth of the price, in packets; if they were as sure as this one, at the root of a fifth
    /// of it. With three in four it is between the two, and long trains are let go at a quarter of the
    /// former.
    #[test]
    fn trains_of_chance_are_as_long_as_their_price() {
        let share =
            |n: i32| ((1e6 * (-f64::from(n) / 10.0).exp()) - 1e6 * (-f64::from(n + 1) / 10.0).exp()) as u64;
        let shares: Vec<u64> = (0..200).map(share).collect();
        let results = outcomes(&shares, (1i64..).map(|end| 4 * end));
        let longest = |price: i64| {
            let mut waits = Waits::NONE;
            Policy { burst: 256, price: 16 * price }.find(&mut waits, &mut 0, &results);
            (1u16..256).take_while(|count| waits.of(*count) > 0).count()
        };
        let lengths = [5, 20, 250, 1000, 4000].map(longest);
        assert_eq!(lengths, [0, 1, 7, 31, 95]);
    }
}
