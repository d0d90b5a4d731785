//! The time by which threads that a timer wakes come late, as it was measured at the sleeps before.

/// The least estimate, in ns.
const LEAST: u64 = 2_000;

/// An estimate of how late a sleep ends: a quantile of what is measured, within bounds.
#[derive(Clone, Copy, Debug)]
pub struct Lateness {
    lead: u64,
    /// It rises by so many steps where a sleep ended later, and sinks by one where it didn't.
    up: u64,
    /// Its steps, as a share.
    step: u64,
    /// What is beyond, in ns, was somebody else's doing.
    most: u64,
}

impl Default for Lateness {
    /// Three quarters of all sleeps end in time.
    fn default() -> Self {
        Self { lead: 20_000, up: 3, step: 64, most: 60_000 }
    }
}

impl Lateness {
    /// 31 of 32 sleeps end in time.
    pub const SELDOM_EXCEEDED: Self = Self { lead: 30_000, up: 31, step: 256, most: 120_000 };

    /// A sleep that nothing but its timer ended took so many ns more than it should have.
    pub fn overslept(&mut self, ns: u64) {
        let step = (self.lead / self.step).max(1);
        self.lead = if ns > self.lead { self.lead + step * self.up } else { self.lead.saturating_sub(step) };
        self.lead = self.lead.clamp(LEAST, self.most);
    }

    /// The lateness in ns.
    #[must_use]
    pub fn lead(self) -> u64 {
        self.lead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOTH: [fn() -> Lateness; 2] = [Lateness::default, || Lateness::SELDOM_EXCEEDED];

    #[test]
    fn it_follows_what_is_measured_within_bounds() {
        for new in BOTH {
            let after = |late: u64| {
                let mut lateness = new();
                (0..2000).for_each(|_| lateness.overslept(late));
                lateness.lead()
            };
            assert!((9_000..12_000).contains(&after(10_000)), "{}", after(10_000));
            assert_eq!((after(0), after(10_000_000)), (LEAST, new().most));
        }
    }

    #[test]
    fn some_sleeps_may_end_later() {
        for (new, quantile) in BOTH.into_iter().zip([24_000..36_000, 32_000..44_000]) {
            let mut lateness = new();
            // 0 to 39 µs, evenly, in a mixed order.
            (0..40_000).for_each(|n| lateness.overslept(n * 17 % 40 * 1000));
            assert!(quantile.contains(&lateness.lead()), "{lateness:?}");
        }
    }
}
