//! The price of waiting: set by the operator, or steered to what he wants to reach.

use alloc::format;
use alloc::string::{String, ToString};
use core::fmt;
use core::str::FromStr;

use crate::stats::ClassStats;
use slipstream_core::units::Duration;

/// The budget of an adaptive hold.
///
/// ```
/// use slipstream_reframe::Budget;
///
/// assert_eq!("delay=30us".parse(), Ok(Budget::Delay(30_000)));
/// assert_eq!("train=2.5".parse::<Budget>()?.to_string(), "train=2.5");
/// assert!("delay=soon".parse::<Budget>().is_err());
/// # Ok::<(), slipstream_reframe::BudgetError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// Delay of packets, in ns, that one packet more in a train is worth, 0 to [`Budget::MAX_PRICE_NS`].
    Price(u64),
    /// Mean delay of all packets of a class, in ns, at least 1 and at most `hold`; the price is steered to
    /// it.
    Delay(u64),
    /// Mean packets a train of a class, in thousandths, more than 1000 and at most `burst`; the price is
    /// steered to it.
    Train(u32),
}

impl Budget {
    /// Highest price: 1000 s. At this one a train waits as long as its hold allows, whatever the chances: it
    /// is a fixed hold.
    pub const MAX_PRICE_NS: u64 = 1_000_000_000_000;

    /// The fault of this budget beside a hold and a burst, and its remedy; `None` where there is none.
    pub(crate) fn contradiction(self, hold: (&str, u64), burst: u16) -> Option<String> {
        let (name, hold_ns) = hold;
        let hold = Duration(hold_ns).exact();
        match self {
            Self::Price(ns) if ns > Self::MAX_PRICE_NS => {
                Some(format!("is too high; up to {} is possible", Duration(Self::MAX_PRICE_NS)))
            }
            Self::Delay(0) => Some("is nothing to wait with; use hold = 0 to hold no packet".to_string()),
            Self::Delay(ns) if ns > hold_ns => Some(format!(
                "can't be reached: no packet waits longer than {name} = {hold}; raise {name}, or lower the budget"
            )),
            Self::Train(thousandths) if thousandths <= 1000 => {
                Some("is no train; it must be more than 1 packet, as hold = 0 gives that already".to_string())
            }
            Self::Train(thousandths) if thousandths > 1000 * u32::from(burst) => {
                let packets = if burst == 1 { "packet" } else { "packets" };
                Some(format!(
                    "can't be reached: no train has more than burst = {burst} {packets}; raise burst, or lower the budget"
                ))
            }
            Self::Delay(_) if burst == 1 => Some(
                "can't be reached: no packet waits with burst = 1; raise burst, or leave the budget out"
                    .to_string(),
            ),
            Self::Train(_) if hold_ns == 0 => Some(format!(
                "can't be reached: no packet waits with {name} = 0; raise {name}, or leave the budget out"
            )),
            _ => None,
        }
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Price(ns) => write!(f, "price={}", Duration(ns).exact()),
            Self::Delay(ns) => write!(f, "delay={}", Duration(ns).exact()),
            Self::Train(thousandths) => write!(f, "train={}", f64::from(thousandths) / 1000.0),
        }
    }
}

/// A budget that can't be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetError(String);

impl fmt::Display for BudgetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl core::error::Error for BudgetError {}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(text: &str) -> Result<Self, BudgetError> {
        let wrong = |why: &str| {
            BudgetError(format!(
                "{text:?} {why}; write price=TIME, delay=TIME or train=PACKETS, such as delay=30us"
            ))
        };
        let (kind, value) = text.split_once('=').ok_or_else(|| wrong("is no budget"))?;
        let value = value.trim();
        let time =
            || value.parse::<Duration>().map(|d| d.0).map_err(|e| wrong(&format!("has no time ({e})")));
        match kind.trim() {
            "price" => Ok(Self::Price(time()?)),
            "delay" => Ok(Self::Delay(time()?)),
            "train" => {
                let packets = value.parse::<f64>().ok().filter(|n| (0.0..=1e6).contains(n));
                // The product fits, and is not negative.
                packets
                    .map(|n| Self::Train((n * 1000.0 + 0.5) as u32))
                    .ok_or_else(|| wrong("has no number of packets"))
            }
            _ => Err(wrong("is no budget")),
        }
    }
}

/// The counters of a class that a price is steered by, since the beginning.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    pub(super) packets: u64,
    pub(super) trains: u64,
    pub(super) delay_ns: u128,
}

impl Counters {
    pub(super) fn of(stats: &ClassStats) -> Self {
        Self { packets: stats.delay.count(), trains: stats.trains, delay_ns: stats.delay.sum() }
    }
}

/// Steers the price of a class.
///
/// Once in [`WINDOW`] packets the price is multiplied by a weighted mean of 1 and how far the window was from
/// the aim, so that it settles without swinging: waits follow the price only after some packets.
///
/// The delay of packets that come in bursts may jump at a price, from far below the aim to far above it. So
/// what was spent above the aim is a debt, and the price doesn't rise before it is paid: then the mean of
/// all packets is as it should be, where the windows can't be. A window that has spent several times its
/// share ends before its time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Steering {
    budget: Budget,
    price_ns: u64,
    max_ns: u64,
    windows: u32,
    before: Counters,
    /// Of a delay, ns; of a train, thousandths of a packet that were too many.
    debt: i64,
}

/// Packets after which the price is set anew.
const WINDOW: u64 = 1024;
/// A window ends when so many times its delay has been spent.
const SPENT: u64 = 4;
/// Windows at the aim by which the debt is bounded, as debt and as savings.
const MOST_DEBT: u64 = 4096;
const MOST_SAVED: u64 = 4;

impl Steering {
    /// Packets after which the counters are looked at.
    pub(super) const LOOK: u32 = 256;
    /// Number of windows at the beginning in which the price is followed faster.
    const FAST: u32 = 16;

    /// In 64ths of the aim: what is so far from it, or further, is followed twice as fast. What was spent too
    /// much until then is paid back, which takes the mean below the aim for longer.
    const FAR: u64 = 88;

    pub(super) fn new(budget: Budget, hold_ns: u64) -> Self {
        let price_ns = match budget {
            Budget::Price(ns) => ns,
            Budget::Delay(ns) => 2 * ns,
            Budget::Train(_) => hold_ns / 4,
        };
        Self {
            budget,
            price_ns,
            max_ns: hold_ns.saturating_mul(256),
            windows: 0,
            before: Counters::default(),
            debt: 0,
        }
    }

    /// Nothing that was counted until now counts: it was spent under other settings.
    #[cfg(feature = "std")]
    pub(super) fn begin(&mut self, now: Counters) {
        self.before = now;
    }

    /// As [`Steering::begin`], from the price on that another one had found for the same aim, or for one of
    /// the same kind. What was spent too much counts where the aim is the same.
    #[cfg(feature = "std")]
    pub(super) fn go_on(&mut self, before: &Self, now: Counters) {
        self.begin(now);
        let steered = matches!(
            (self.budget, before.budget),
            (Budget::Delay(_), Budget::Delay(_)) | (Budget::Train(_), Budget::Train(_))
        );
        if steered {
            self.price_ns = before.price_ns.min(self.max_ns.max(16));
        }
        if self.budget == before.budget {
            (self.windows, self.debt) = (before.windows, before.debt);
        }
    }

    /// The delay that a packet more in a train is worth, in ns.
    pub(super) fn price_ns(&self) -> u64 {
        self.price_ns
    }

    /// Looks at the counters, and sets the price anew when a window has passed.
    pub(super) fn steer(&mut self, now: Counters) {
        let packets = now.packets - self.before.packets;
        let trains = now.trains - self.before.trains;
        let delay = (now.delay_ns - self.before.delay_ns) as u64;
        if packets == 0 || trains == 0 {
            return;
        }
        // The aim and what was measured, in the same unit, and what was spent beside what might be.
        let (aim, measured, share, spent) = match self.budget {
            Budget::Price(_) => return,
            Budget::Delay(ns) => (ns, delay / packets, ns.saturating_mul(packets), delay),
            Budget::Train(all) => {
                let (all, packets) = (u64::from(all), packets * 1000);
                (all - 1000, packets / trains - 1000, all * trains, packets)
            }
        };
        let is_delay = matches!(self.budget, Budget::Delay(_));
        let ends = packets >= WINDOW || is_delay && delay > aim.saturating_mul(SPENT * WINDOW);
        if !ends {
            return;
        }
        self.before = now;
        let window = aim.saturating_mul(WINDOW).min(1 << 48) as i64;
        let most = (-(MOST_SAVED as i64) * window, MOST_DEBT as i64 * window);
        let more = spent.min(1 << 60) as i64 - share.min(1 << 60) as i64;
        self.debt = self.debt.saturating_add(more).clamp(most.0, most.1);
        let rises = aim > measured;
        if rises && self.debt > 0 {
            return;
        }
        // The larger over the smaller, in 64ths, at most four times. A price that is too high falls by as
        // much as one that is too low rises, so that windows that differ by chance don't raise it.
        let (more, less) = (aim.max(measured), aim.min(measured));
        let ratio = (more.saturating_mul(64) / less.max(1)).clamp(64, 256);
        let weight = if self.windows < Self::FAST { 4 } else { 2 + u64::from(ratio >= Self::FAR) };
        self.windows = self.windows.saturating_add(1);
        let factor = u128::from(64 * (8 - weight) + ratio * weight);
        let price = u128::from(self.price_ns.max(16));
        let price = if rises { price * factor / 512 } else { price * 512 / factor };
        self.price_ns = (price as u64).clamp(16, self.max_ns.max(16));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budgets_are_read_as_they_are_written() {
        for (text, budget) in [
            ("price=20us", Budget::Price(20_000)),
            (" delay = 1ms ", Budget::Delay(1_000_000)),
            ("train=1.5", Budget::Train(1500)),
        ] {
            let read: Budget = text.parse().unwrap();
            assert_eq!((read, read.to_string().parse()), (budget, Ok(budget)), "{text}");
        }
        for text in ["", "20us", "price=", "price=-1us", "train=-1", "train=nan", "wait=3us", "delay=3"] {
            let error = text.parse::<Budget>().unwrap_err().to_string();
            assert!(error.contains("such as delay=30us"), "{text}: {error}");
        }
    }

    #[test]
    fn what_cannot_be_reached_is_told() {
        for (budget, says) in [
            (Budget::Delay(0), "hold = 0"),
            (Budget::Delay(64_001), "hold = 64us"),
            (Budget::Train(1000), "more than 1 packet"),
            (Budget::Train(32_001), "burst = 32"),
            (Budget::Price(Budget::MAX_PRICE_NS + 1), "too high"),
        ] {
            let fault = budget.contradiction(("hold", 64_000), 32).unwrap();
            assert!(fault.contains(says), "{budget}: {fault}");
        }
        for budget in [Budget::Delay(64_000), Budget::Train(32_000), Budget::Price(0)] {
            assert_eq!(budget.contradiction(("hold", 64_000), 32), None, "{budget}");
        }
        for (budget, hold_ns, burst, says) in [
            (Budget::Delay(64_000), 64_000, 1, "no packet waits with burst = 1"),
            (Budget::Train(2000), 64_000, 1, "burst = 1 packet;"),
            (Budget::Delay(1), 0, 32, "hold = 0"),
            (Budget::Train(2000), 0, 32, "no packet waits with hold = 0"),
        ] {
            let fault = budget.contradiction(("hold", hold_ns), burst).unwrap();
            assert!(fault.contains(says), "{budget}: {fault}");
        }
        assert_eq!(Budget::Price(5).contradiction(("hold", 0), 1), None);
    }

    /// The delays of 200 windows in a world in which they are in proportion to the price; from the middle on
    /// the same price gives three times the delay.
    fn delays_around_a_step() -> Vec<u64> {
        let mut steering = Steering::new(Budget::Delay(30_000), 500_000);
        let mut sum = Counters::default();
        let window = |n: u64| {
            let delay = steering.price_ns() * if n < 100 { 1 } else { 3 } / 5;
            sum.packets += 1024;
            sum.trains += 500;
            sum.delay_ns += u128::from(delay) * 1024;
            steering.steer(sum);
            delay
        };
        (0..200).map(window).collect()
    }

    #[test]
    fn the_price_settles() {
        for (n, delay) in delays_around_a_step().into_iter().enumerate() {
            assert!(n % 100 <= 60 || delay.abs_diff(30_000) < 1500, "{n}: {delay}");
        }
    }

    #[test]
    fn a_step_is_followed_within_a_few_windows() {
        let delays = delays_around_a_step();
        let settled =
            delays[100..].iter().rposition(|delay| delay.abs_diff(30_000) > 7500).map_or(0, |n| n + 1);
        assert!((1..=6).contains(&settled), "{settled} windows");
    }

    /// A world in which the delay jumps at a price, from nothing to sixty times the aim, and follows the
    /// price half a window later.
    #[test]
    fn a_delay_that_jumps_is_kept_as_a_mean() {
        for aim in [10_000, 100_000, 300_000] {
            let mut steering = Steering::new(Budget::Delay(aim), 1_000_000);
            let (mut sum, mut before) = (Counters::default(), [0u64; 2]);
            for n in 0..16_000u64 {
                let delay = if before[1] > 2_000_000 { 600_000u64 } else { 1000 };
                sum.packets += 256;
                sum.trains += 60;
                sum.delay_ns += u128::from(delay) * 256;
                before = [steering.price_ns(), before[0]];
                steering.steer(sum);
                if n > 4000 {
                    let mean = (sum.delay_ns / u128::from(sum.packets)) as u64;
                    assert!((aim / 2..=aim * 5 / 4).contains(&mean), "{aim}: {mean} after {n} looks");
                }
            }
        }
    }
}
