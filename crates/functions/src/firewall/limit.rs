//! `-m limit` of iptables: how often a rule may match, as the kernel counts it (net/netfilter/xt_limit.c),
//! but for its clock, which ticks a few hundred times a second; ours has the packets' own times, in
//! nanoseconds.

use slipstream_core::time::Nanos;

/// Units of the kernel's average, in a second.
const SCALE: u64 = 10_000;
/// The same unit in nanoseconds.
const UNIT: u64 = 1_000_000_000 / SCALE;

/// Maximum rate of a rule's matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Time for which one match is good, in nanoseconds; a multiple of 100 µs, as the kernel has it.
    pub(super) interval: u64,
    /// Matches at once, at most, after a pause.
    pub(super) burst: u32,
}

impl Default for Limit {
    /// The default of iptables: `--limit 3/hour --limit-burst 5`.
    fn default() -> Self {
        Self { interval: 1200 * SCALE * UNIT, burst: 5 }
    }
}

impl Limit {
    /// The interval of `5/minute`, `5/min`, `5/m`, or `5`, which is a second's; `None` for what is no rate or
    /// above 10,000 a second.
    pub(super) fn interval(text: &str) -> Option<u64> {
        let (count, unit) = text.split_once('/').unwrap_or((text, "second"));
        let unit = unit.to_ascii_lowercase();
        let units = [("second", 1), ("minute", 60), ("hour", 3600), ("day", 86_400)];
        let (_, seconds) = units.into_iter().find(|(name, _)| !unit.is_empty() && name.starts_with(&unit))?;
        let average = (SCALE * seconds).checked_div(count.parse::<u32>().ok()?.into())?;
        (average > 0).then_some(average * UNIT)
    }
}

/// The credit of a limit; it is full at first.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    limit: Limit,
    left: u64,
    last: Nanos,
}

impl Credit {
    pub(super) const fn new(limit: Limit) -> Self {
        Self { limit, left: Self::most(limit), last: Nanos(0) }
    }

    const fn most(limit: Limit) -> u64 {
        limit.interval.saturating_mul(limit.burst as u64)
    }

    /// Returns true if a packet that comes now matches; if so it counts.
    pub(super) fn take(&mut self, now: Nanos) -> bool {
        self.left = self.left.saturating_add(now.since(self.last)).min(Self::most(self.limit));
        self.last = self.last.max(now);
        let enough = self.left >= self.limit.interval;
        if enough {
            self.left -= self.limit.interval;
        }
        enough
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_iptables() {
        let second = 1_000_000_000;
        for (text, interval) in [
            ("5/min", Some(12 * second)),
            ("5/m", Some(12 * second)),
            ("3/hour", Some(1200 * second)),
            ("1/day", Some(86_400 * second)),
            ("7/sec", Some(142_800_000)),
            ("7", Some(142_800_000)),
            ("10000/second", Some(100_000)),
            ("10001/second", None),
            ("0/s", None),
            ("5/week", None),
            ("5/", None),
            ("x/s", None),
        ] {
            assert_eq!(Limit::interval(text), interval, "{text}");
        }
        assert_eq!(Limit::default().interval, 1200 * second);
    }

    /// As many as the burst at once, then one an interval; a pause fills it up again, and no further.
    #[test]
    fn credit_comes_back_with_time() {
        let mut credit = Credit::new(Limit { interval: 100, burst: 3 });
        let times = [1_000, 1_000, 1_000, 1_000, 1_099, 1_100, 1_150, 1_200, 9_000, 9_000, 9_000, 9_000];
        let seen: String = times.map(|t| if credit.take(Nanos(t)) { '+' } else { '-' }).iter().collect();
        assert_eq!(seen, "+++--+-++++-");
        // Time that runs backwards gives nothing.
        assert!(!credit.take(Nanos(8_000)) && !credit.take(Nanos(9_099)) && credit.take(Nanos(9_100)));
    }
}
