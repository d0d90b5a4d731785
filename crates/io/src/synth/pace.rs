//! When the packets of a plain stream come, in integers, so that no rounding adds up.

use super::config::{Arrivals, SynthConfig};
use super::random::Rng;
use super::text::Rate;
use slipstream_core::time::SECOND;

/// Gives each packet its time.
#[derive(Clone, Debug)]
pub(super) struct Pace {
    rate: Rate,
    arrivals: Arrivals,
    /// Time of the next packet: nanoseconds, and how far beyond them in units of 1/rate ns.
    now: u64,
    fraction: u64,
}

impl Pace {
    pub(super) const fn new(config: &SynthConfig) -> Self {
        Self { rate: config.rate, arrivals: config.arrivals, now: config.start, fraction: 0 }
    }

    /// The time of the next packet.
    pub(super) const fn now(&self) -> u64 {
        self.now
    }

    /// The time of a packet whose frame has `len` bytes; the next one follows at the distance that the rate
    /// asks for.
    pub(super) fn stamp(&mut self, len: usize, rng: &mut Rng) -> u64 {
        let time = self.now;
        let (units, per_second) = match self.rate {
            Rate::Packets(rate) => (1, rate),
            Rate::Bits(rate) => (8 * len as u64, rate),
        };
        match self.arrivals {
            Arrivals::Constant => self.advance(u128::from(units * SECOND), per_second),
            Arrivals::Poisson => {
                let amount = rng.exponential((units * SECOND) as f64);
                self.advance(amount as u128, per_second);
            }
        }
        time
    }

    /// Moves on by `amount` / `per_second` nanoseconds; what doesn't make a whole nanosecond is kept for next
    /// time.
    fn advance(&mut self, amount: u128, per_second: u64) {
        let sum = u128::from(self.fraction) + amount;
        let rate = u128::from(per_second);
        self.now = self.now.saturating_add(u64::try_from(sum / rate).unwrap_or(u64::MAX));
        self.fraction = (sum % rate) as u64;
    }
}
