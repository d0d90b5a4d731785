//! The waits of a train by its length, from what each wait would bring.

use super::learner::{GapScale, WAITS};

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
/// Steps at most by which the worth of a train is found, from what it was before.
const STEPS: usize = 4;
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
    /// > w(n) = max over all waits of joined · (price − (w(1) − w(n + 1))) − n · waited, and w(burst) = 0,
    ///
    /// which is a semi-Markov decision problem. w(1) is found by policy iteration (Howard, *Dynamic
    /// Programming and Markov Processes*, 1960), each step of which is one of Newton's for it. Where packets
    /// come by chance, one in g on average, trains of √(2 · price / g) packets are best.
    pub(super) fn find(self, waits: &mut Waits, worth: &mut i64, outcomes: &[Outcome]) {
        let mut best = Outcome::default();
        for outcome in outcomes {
            if outcome.is_better(&best) || best.joined == 0 {
                best = *outcome;
            }
        }
        for _ in 0..STEPS {
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
            let gain = price - (worth - rest) * alike / of;
            *wait = 0;
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
