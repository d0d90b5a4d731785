//! The decision to stay awake or to sleep, and until when, from what sleeping turned out to cost.
//!
//! Falling asleep and waking up take CPU time, and a thread that a timer is to wake comes late. Both are measured:
//! how late it is at every sleep that a timer ended, the CPU time at one sleep in 16. On a virtual machine, whose
//! host has to be told to wake it, a timer may be late by ten times of what a sleep costs.
//!
//! - A deadline that is nearer than the lateness is waited for awake; a sleep before one ends that much earlier.
//! - While packets come within the cost of a sleep of each other, the thread stays awake for the next one:
//!   sleeping would cost more.
//! - Where they come further apart, but several of them within the time that packets may wait
//!   ([`coalesce`](super::LiveOptions::coalesce)), a sleep isn't ended by the next packet, but lasts for that
//!   time, so that one waking serves several. What is due meanwhile is at most that much late.

use slipstream_core::time::Nanos;

/// Bounds of the measured lateness, in ns: what is beyond was somebody else's doing.
const LEAST_LEAD: u64 = 2_000;
const MOST_LEAD: u64 = 60_000;
/// The lateness at first, in ns.
const FIRST_LEAD: u64 = 20_000;
/// Bounds of the measured cost of a sleep, in ns, and the cost at first.
const LEAST_COST: u64 = 500;
const MOST_COST: u64 = 20_000;
const FIRST_COST: u64 = 4_000;
/// The cost is measured at one sleep in so many.
const COST_EVERY: u32 = 16;
/// The estimate follows a quantile of what is measured: three quarters of all sleeps end in time.
const UP: u64 = 3;
const DOWN: u64 = 1;
/// Its steps, as a share: 1/64.
const STEP: u64 = 64;
/// Packets closer to each other than this come at once, in ns: a burst wakes the thread once.
pub(super) const AT_ONCE: u64 = 2_000;
/// The mean gap follows what is seen by 1/16.
const SMOOTH: u64 = 16;
/// No gap counts for more than this, in ns, so that the mean soon follows traffic that begins.
const LONGEST_GAP: u64 = 1_000_000;

/// The way to wait for what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Awake: the sources are asked again at once.
    Awake,
    /// Asleep for so many ns, or until a packet comes.
    Until(u64),
    /// Asleep for so many ns, whether packets come or not.
    Whole(u64),
}

/// Estimates for the decision.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Time that packets may wait so that one waking serves several, in ns.
    coalesce: u64,
    /// The lateness of a thread that a timer wakes, in ns.
    lead: u64,
    /// The CPU time of falling asleep and waking up, in ns.
    cost: u64,
    /// Sleeps so far.
    sleeps: u32,
    /// The mean time between packets that came one by one, in ns.
    gap: u64,
    /// When the last packets came.
    last: Nanos,
}

impl Waiting {
    /// Packets may wait so many ns.
    pub(super) fn new(coalesce: u64) -> Self {
        let (lead, cost, sleeps) = (FIRST_LEAD, FIRST_COST, 0);
        Self { coalesce, lead, cost, sleeps, gap: LONGEST_GAP, last: Nanos(0) }
    }

    /// A round that began at `now` had packets that came at so many different times.
    pub(super) fn came(&mut self, events: u32, now: Nanos) {
        let events = u64::from(events.max(1));
        let gap = (now.since(self.last) / events).min(LONGEST_GAP);
        self.last = now;
        // As if every one of them had been seen by itself, up to 1/2.
        let weight = events.min(SMOOTH / 2);
        self.gap = (self.gap * (SMOOTH - weight) + gap * weight) / SMOOTH;
    }

    /// A sleep that nothing but its timer ended took so many ns more than it should have.
    pub(super) fn overslept(&mut self, ns: u64) {
        let step = (self.lead / STEP).max(1);
        self.lead =
            if ns > self.lead { self.lead + step * UP } else { self.lead.saturating_sub(step * DOWN) };
        self.lead = self.lead.clamp(LEAST_LEAD, MOST_LEAD);
    }

    /// A sleep begins; says whether its cost is to be measured.
    pub(super) fn falls_asleep(&mut self) -> bool {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.sleeps % COST_EVERY == 1
    }

    /// A sleep took so much CPU time, in ns.
    pub(super) fn cost(&mut self, ns: u64) {
        // The median: what interrupts take in between happens to few sleeps.
        let step = self.cost / 8;
        self.cost = if ns > self.cost { self.cost + step } else { self.cost - step };
        self.cost = self.cost.clamp(LEAST_COST, MOST_COST);
    }

    /// Times nearer than this, in ns, are waited for awake.
    pub(super) fn lead(&self) -> u64 {
        self.lead
    }

    /// The way to wait at `now`, where something is due at `due`; `end` is a time at which the thread must be
    /// awake in any case, such as the end of the run.
    pub(super) fn wait(&self, now: Nanos, due: Nanos, end: Nanos) -> Wait {
        if self.gap < self.cost && now.since(self.last) < self.cost {
            return Wait::Awake;
        }
        let left = due.min(end).since(now);
        if (self.cost..self.coalesce).contains(&self.gap) {
            // Packets that are due leave so much later at most; those that come meanwhile wait at most twice
            // that.
            let more = if due.since(now) < self.coalesce { due.since(now) } else { 0 };
            let nap = (self.coalesce + more).min(end.since(now));
            if let Some(nap) = nap.checked_sub(self.lead).filter(|nap| *nap > 0) {
                return Wait::Whole(nap);
            }
        }
        match left.checked_sub(self.lead) {
            None | Some(0) => Wait::Awake,
            Some(nap) => Wait::Until(nap),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const COALESCE: u64 = 40_000;
    const NEVER: Nanos = Nanos::MAX;

    /// Returns what it expects after packets every `gap` ns, with timers that are `late` ns late.
    fn used_to(gap: u64, late: u64) -> (Waiting, Nanos) {
        let mut waiting = Waiting::new(COALESCE);
        let mut now = Nanos(1_000_000_000);
        for _ in 0..1000 {
            now = now.after(gap);
            waiting.came(1, now);
            waiting.overslept(late);
            waiting.cost(4_000);
        }
        (waiting, now)
    }

    #[test]
    fn dense_packets_keep_it_awake_but_not_for_longer_than_a_sleep_costs() {
        let (waiting, now) = used_to(2_000, 12_000);
        assert_eq!(waiting.wait(now, NEVER, NEVER), Wait::Awake);
        let later = now.after(8_000);
        assert!(matches!(waiting.wait(later, NEVER, NEVER), Wait::Until(_)));
    }

    #[test]
    fn packets_at_a_medium_rate_share_a_waking() {
        let (waiting, now) = used_to(25_000, 10_000);
        let nap = |due: u64| waiting.wait(now, now.after(due), NEVER);
        let lead = waiting.lead();
        assert_eq!(nap(1_000), Wait::Whole(41_000 - lead));
        assert_eq!(nap(1_000_000), Wait::Whole(40_000 - lead));
        // The end of the run isn't late.
        assert_eq!(waiting.wait(now, NEVER, now.after(30_000)), Wait::Whole(30_000 - lead));
        assert_eq!(
            Waiting { coalesce: 0, ..waiting }.wait(now, now.after(64_000), NEVER),
            Wait::Until(64_000 - lead)
        );
    }

    #[test]
    fn late_timers_alone_do_not_keep_it_awake() {
        let (waiting, now) = used_to(25_000, 30_000);
        assert!(matches!(waiting.wait(now, now.after(20_000), NEVER), Wait::Whole(_)));
        let (waiting, now) = used_to(5_000, 30_000);
        assert!(matches!(waiting.wait(now, NEVER, NEVER), Wait::Whole(_)));
    }

    #[test]
    fn at_a_low_rate_packets_wake_it_and_deadlines_are_kept() {
        let (waiting, now) = used_to(100_000, 10_000);
        assert_eq!(waiting.wait(now, now.after(64_000), NEVER), Wait::Until(64_000 - waiting.lead()));
        assert_eq!(waiting.wait(now, now.after(5_000), NEVER), Wait::Awake);
        assert_eq!(waiting.wait(now, now, NEVER), Wait::Awake);
    }

    #[test]
    fn bursts_wake_it_once_each() {
        let mut waiting = Waiting::new(COALESCE);
        let mut now = Nanos(1_000_000_000);
        for _ in 0..100 {
            now = now.after(200_000);
            waiting.came(1, now);
            // The rest of the burst, in further rounds.
            waiting.came(1, now.after(1_000));
            waiting.came(1, now.after(2_000));
        }
        let quiet = now.after(60_000);
        assert!(matches!(waiting.wait(quiet, NEVER, NEVER), Wait::Until(_) | Wait::Whole(_)));
    }

    proptest! {
        /// The lateness that it reckons with is that which three of four sleeps stay below.
        #[test]
        fn the_lead_is_the_upper_quartile(late in proptest::collection::vec(3_000u64..50_000, 8)) {
            let mut waiting = Waiting::new(0);
            (0..500).flat_map(|_| &late).for_each(|ns| waiting.overslept(*ns));
            let mut sorted = late.clone();
            sorted.sort_unstable();
            let (low, high) = (sorted[4], sorted[7]);
            prop_assert!(
                (low * 7 / 8..=high * 9 / 8).contains(&waiting.lead()),
                "{} of {:?}", waiting.lead(), sorted
            );
        }

        /// The cost that it reckons with is about the median.
        #[test]
        fn the_cost_is_the_median(cost in proptest::collection::vec(1_000u64..15_000, 9)) {
            let mut waiting = Waiting::new(0);
            (0..200).flat_map(|_| &cost).for_each(|ns| waiting.cost(*ns));
            let mut sorted = cost.clone();
            sorted.sort_unstable();
            prop_assert!(
                (sorted[3] / 2..=sorted[5] * 2).contains(&waiting.cost), "{} of {:?}", waiting.cost, sorted
            );
        }

        /// Whatever came before: nothing that is due is later than was allowed, if timers are as late as it
        /// reckons with; and the end of a run is kept.
        #[test]
        fn nothing_waits_for_longer_than_it_may(
            gaps in proptest::collection::vec((0u64..200_000, 1u32..40), 1..60),
            due in 0u64..300_000, end in 0u64..300_000,
        ) {
            let mut waiting = Waiting::new(COALESCE);
            let mut now = Nanos(1_000_000_000);
            for (gap, events) in gaps {
                now = now.after(gap);
                waiting.came(events, now);
            }
            let sleeps = match waiting.wait(now, now.after(due), now.after(end)) {
                Wait::Awake => return Ok(()),
                Wait::Until(nap) => {
                    prop_assert!(nap + waiting.lead() <= due);
                    nap
                }
                Wait::Whole(nap) => {
                    prop_assert!(nap + waiting.lead() <= (due + COALESCE).min(2 * COALESCE));
                    nap
                }
            };
            prop_assert!(sleeps + waiting.lead() <= end);
        }
    }
}
