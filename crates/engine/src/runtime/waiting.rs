//! The decision to stay awake or to sleep, and until when, from what sleeping turned out to cost.
//!
//! Falling asleep and waking up take CPU time, and a thread that a timer is to wake comes late. Both are
//! measured: how late it is at every sleep that a timer ended, the CPU time at one sleep in 16 that a packet
//! ended. On a virtual machine, whose host has to be told of timers, one may be late by ten times of what a
//! sleep costs, and cost four times as much as a packet that wakes the thread.
//!
//! - A deadline that is nearer than the lateness is waited for awake; a sleep before one ends that much
//!   earlier.
//! - The thread stays awake for the next packet as long as that has paid of late: the times for which it had
//!   nothing to do are held against a few waits up to the cost of a sleep, and the wait that would have taken
//!   least CPU time is done. So it stays awake within a burst, and sleeps soon behind it.
//! - Where they come further apart, but steadily and several of them within the time that packets may wait
//!   ([`coalesce`](super::LiveOptions::coalesce)), what is due may leave when the next packet wakes the
//!   thread, and a timer is only set for the case that none comes in time ([`Way::Woken`]). Or one waking
//!   serves several packets: a sleep lasts for that time whatever comes ([`Way::Naps`]). Which of the two
//!   takes less CPU time depends on what timers cost, so both are tried, and the better one is done.

use slipstream_core::lateness::Lateness;
use slipstream_core::time::Nanos;

/// Bounds of the measured cost of a sleep, in ns, and the cost at first.
const LEAST_COST: u64 = 500;
const MOST_COST: u64 = 20_000;
const FIRST_COST: u64 = 4_000;
/// The cost is measured at one sleep in so many.
const COST_EVERY: u32 = 16;
/// Packets closer to each other than this come at once, in ns: a burst wakes the thread once.
pub(super) const AT_ONCE: u64 = 2_000;
/// Of a sleep that is as long as this, in ns, a timer that was set before may take away half: to set one anew
/// takes longer than to wake up once in vain, and packets mostly come before.
const LONG: u64 = 1_000_000;
/// Packets of a trial, in which the thread waits in one way.
const TRIAL: u32 = 256;
/// A trial that takes longer, in ns, says nothing: packets have ceased to come.
const TRIAL_MOST: u64 = 100_000_000;
/// The time that a packet takes in one way follows trials by 1/4.
const TRIAL_WEIGHT: u64 = 4;
/// One trial in so many is of the way that is not the better one.
const OTHER_EVERY: u32 = 32;
/// The mean gap, and what waiting awake takes, follow what is seen by 1/16.
const SMOOTH: u64 = 16;
/// Waits that are compared: none, and so many parts of the cost of a sleep.
const PARTS: u64 = 4;
/// No gap counts for more than this, in ns, so that the mean soon follows traffic that begins.
const LONGEST_GAP: u64 = 1_000_000;

/// The way to wait for what comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Awake: the sources are asked again at once.
    Awake,
    /// Asleep until a packet comes, for so many ns at most. A timer that was set before may stay as it is if
    /// it ends before that, but not within the second number of ns.
    Until(u64, u64),
    /// Asleep for so many ns, whether packets come or not.
    Whole(u64),
}

/// The way to wait where several packets come within the time that they may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Each packet wakes the thread, and what is due leaves then, that time late at most.
    Woken,
    /// Asleep for that time, whether packets come or not: they wait for twice that time at most.
    Naps,
}

/// The times that the two ways take.
#[derive(Clone, Debug)]
struct Trials {
    way: Way,
    /// CPU time of a packet in ns, by way; 0: not known.
    ns: [u64; 2],
    /// The mean gap when that was found.
    gap: u64,
    /// Of the trial under way: its packets, its beginning, and the thread's CPU time then.
    packets: u32,
    since: Option<(Nanos, u64)>,
    /// Trials so far.
    n: u32,
}

impl Trials {
    const NONE: Self = Self { way: Way::Woken, ns: [0; 2], gap: 0, packets: 0, since: None, n: 0 };

    /// A trial is over, or has to begin: the thread's CPU time is so many ns by now.
    fn turn(&mut self, now: Nanos, cpu: u64, gap: u64) {
        let Self { way, ns: [woken, naps], .. } = self;
        let ns = match way {
            Way::Woken => &mut *woken,
            Way::Naps => &mut *naps,
        };
        if let Some((since, before)) = self.since
            && self.packets >= TRIAL
            && now.since(since) <= TRIAL_MOST
        {
            let here = (cpu.saturating_sub(before) / u64::from(self.packets)).max(1);
            *ns = if *ns == 0 { here } else { (*ns * (TRIAL_WEIGHT - 1) + here) / TRIAL_WEIGHT };
            self.n = self.n.wrapping_add(1);
        }
        // Trials at another rate say little about this one.
        if gap > 2 * self.gap || 2 * gap < self.gap {
            (*woken, *naps, self.gap) = (0, 0, gap);
        }
        // Naps make packets wait: they must be worth it.
        let better = match (*woken, *naps) {
            (0, _) => Way::Woken,
            (_, 0) => Way::Naps,
            (woken, naps) if naps < woken - woken / 8 => Way::Naps,
            _ => Way::Woken,
        };
        self.way = match better {
            Way::Woken if self.n % OTHER_EVERY == OTHER_EVERY - 1 => Way::Naps,
            Way::Naps if self.n % OTHER_EVERY == OTHER_EVERY - 1 => Way::Woken,
            way => way,
        };
        (self.packets, self.since) = (0, Some((now, cpu)));
    }
}

/// The cost of waiting awake, for each of some times after which the thread would fall asleep: parts of the
/// cost of a sleep.
#[derive(Clone, Debug)]
struct Awake {
    /// The time at which there was nothing to do for the first time since packets came.
    since: Option<Nanos>,
    /// CPU time that it takes until the next packet, in sixteenths of a ns.
    taken: [u64; PARTS as usize + 1],
    /// The part that takes least; of several the longest.
    part: u64,
    /// The mean time in ns for which there was nothing to do.
    mean: u64,
}

impl Awake {
    const NEW: Self = Self { since: None, taken: [0; PARTS as usize + 1], part: PARTS, mean: LONGEST_GAP };

    /// The next packet came at `first`, where a sleep takes so many ns.
    fn ends(&mut self, first: Nanos, cost: u64) {
        let Some(since) = self.since.take() else { return };
        let gap = first.since(since);
        self.mean = (self.mean * (SMOOTH - 1) + gap.min(LONGEST_GAP)) / SMOOTH;
        let mut least = u64::MAX;
        for (taken, part) in self.taken.iter_mut().zip(0..) {
            *taken = *taken - *taken / SMOOTH + takes(gap, part, cost);
            if *taken <= least {
                (least, self.part) = (*taken, part);
            }
        }
    }

    /// Returns true if at `now` it still pays to stay awake.
    fn pays(&mut self, now: Nanos, cost: u64) -> bool {
        now.since(*self.since.get_or_insert(now)) < cost * self.part / PARTS
    }
}

/// The CPU time that it takes until a packet comes after `gap` ns, by a thread that stays awake for this part
/// of what a sleep takes.
fn takes(gap: u64, part: u64, cost: u64) -> u64 {
    let most = cost * part / PARTS;
    if gap <= most { gap } else { most + cost }
}

/// Estimates for the decision.
#[derive(Clone, Debug)]
pub(super) struct Waiting {
    /// Time that packets may wait so that one waking serves several, in ns.
    coalesce: u64,
    /// The lateness of a thread that a timer wakes.
    lateness: Lateness,
    /// The CPU time of falling asleep and being woken by a packet, in ns.
    cost: u64,
    /// Sleeps so far.
    sleeps: u32,
    /// The mean time between packets that came one by one, in ns.
    gap: u64,
    /// The time at which the last packets came.
    last: Nanos,
    awake: Awake,
    /// It slept for a set time, and nothing has come since.
    napped: bool,
    trials: Trials,
}

impl Waiting {
    /// Packets may wait so many ns.
    pub(super) fn new(coalesce: u64) -> Self {
        let (lateness, cost, sleeps) = (Lateness::default(), FIRST_COST, 0);
        let (gap, last, awake, trials) = (LONGEST_GAP, Nanos(0), Awake::NEW, Trials::NONE);
        Self { coalesce, lateness, cost, sleeps, gap, last, awake, napped: false, trials }
    }

    /// A round that began at `now` had packets that came at so many different times, from `first` on.
    pub(super) fn came(&mut self, events: u32, first: Nanos, now: Nanos) {
        self.awake.ends(first, self.cost);
        self.napped = false;
        let events = u64::from(events.max(1));
        let gap = (now.since(self.last) / events).min(LONGEST_GAP);
        self.last = now;
        // As if every one of them had been seen by itself, up to 1/2.
        let weight = events.min(SMOOTH / 2);
        self.gap = (self.gap * (SMOOTH - weight) + gap * weight) / SMOOTH;
        self.trials.packets = self.trials.packets.saturating_add(events as u32);
    }

    /// Several packets come within the time that they may wait, but not so fast that it pays to stay awake;
    /// nor do they come in bursts, with longer times between.
    fn is_medium(&self) -> bool {
        (self.cost..self.coalesce).contains(&self.gap) && self.awake.mean < self.coalesce
    }

    /// Says whether [`Waiting::spent`] is to be told how much CPU time the thread has taken.
    pub(super) fn asks(&self) -> bool {
        self.is_medium() && (self.trials.since.is_none() || self.trials.packets >= TRIAL)
    }

    /// The thread has taken so many ns of CPU time, as [`Waiting::asks`] wanted to know.
    pub(super) fn spent(&mut self, now: Nanos, cpu: u64) {
        self.trials.turn(now, cpu, self.gap);
    }

    /// A sleep that nothing but its timer ended took so many ns more than it should have.
    pub(super) fn overslept(&mut self, ns: u64) {
        self.lateness.overslept(ns);
    }

    /// A sleep begins; says whether its cost is to be measured.
    pub(super) fn falls_asleep(&mut self) -> bool {
        self.sleeps = self.sleeps.wrapping_add(1);
        self.sleeps % COST_EVERY == 1
    }

    /// A sleep that a packet ended took so much CPU time, in ns.
    pub(super) fn cost(&mut self, ns: u64) {
        // The median: what interrupts take in between happens to few sleeps.
        let step = self.cost / 8;
        self.cost = if ns > self.cost { self.cost + step } else { self.cost - step };
        self.cost = self.cost.clamp(LEAST_COST, MOST_COST);
    }

    /// Times nearer than this, in ns, are waited for awake.
    pub(super) fn lead(&self) -> u64 {
        self.lateness.lead()
    }

    /// The way to wait at `now`, where something is due at `due`; `end` is a time at which the thread must be
    /// awake in any case, such as the end of the run.
    pub(super) fn wait(&mut self, now: Nanos, due: Nanos, end: Nanos) -> Wait {
        if self.awake.pays(now, self.cost) {
            self.trials.since = None;
            return Wait::Awake;
        }
        let lead = self.lead();
        let ahead = |time: Nanos| time.since(now).checked_sub(lead).filter(|nap| *nap > 0);
        let shared = if !self.is_medium() {
            self.trials.since = None;
            None
        } else {
            match self.trials.way {
                Way::Woken => ahead(end.min(due.after(self.coalesce)))
                    .map(|nap| Wait::Until(nap, self.gap + self.gap / 4)),
                // Nothing came in a nap: a packet is to end the next sleep, and there may be none for long.
                Way::Naps if self.napped => None,
                // Packets that are due leave so much later at most; those that come meanwhile wait at most
                // twice that.
                Way::Naps => {
                    self.napped = true;
                    let more = if due.since(now) < self.coalesce { due.since(now) } else { 0 };
                    ahead(end.min(now.after(self.coalesce + more))).map(Wait::Whole)
                }
            }
        };
        shared.unwrap_or_else(|| match ahead(due.min(end)) {
            None => Wait::Awake,
            Some(nap) if nap >= LONG => Wait::Until(nap, nap / 2),
            Some(nap) => Wait::Until(nap, nap.saturating_sub(AT_ONCE)),
        })
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
            waiting.wait(now, NEVER, NEVER);
            now = now.after(gap);
            waiting.came(1, now, now);
            waiting.overslept(late);
            waiting.cost(4_000);
        }
        (waiting, now)
    }

    #[test]
    fn dense_packets_keep_it_awake_but_not_for_longer_than_a_sleep_costs() {
        let (mut waiting, now) = used_to(2_000, 12_000);
        assert_eq!(waiting.wait(now, NEVER, NEVER), Wait::Awake);
        let later = now.after(8_000);
        assert!(matches!(waiting.wait(later, NEVER, NEVER), Wait::Until(..)));
    }

    #[test]
    fn packets_at_a_medium_rate_share_a_waking() {
        let (mut waiting, mut now) = used_to(25_000, 10_000);
        waiting.trials.way = Way::Naps;
        let lead = waiting.lead();
        let mut nap = |due: u64| {
            waiting.napped = false;
            waiting.wait(now, now.after(due), NEVER)
        };
        assert_eq!(nap(1_000), Wait::Whole(41_000 - lead));
        assert_eq!(nap(1_000_000), Wait::Whole(40_000 - lead));
        // The end of the run isn't late.
        waiting.napped = false;
        assert_eq!(waiting.wait(now, NEVER, now.after(30_000)), Wait::Whole(30_000 - lead));
        // Nothing came meanwhile: the next sleep ends with a packet.
        let next = waiting.wait(now.after(40_000), NEVER, NEVER);
        assert!(matches!(next, Wait::Until(nap, _) if nap > 1_000_000), "{next:?}");
        now = now.after(50_000);
        waiting.came(1, now, now);
        assert!(matches!(waiting.wait(now, NEVER, NEVER), Wait::Whole(_)));
        assert!(matches!(
            Waiting { coalesce: 0, ..waiting }.wait(now, now.after(64_000), NEVER),
            Wait::Until(nap, _) if nap == 64_000 - lead
        ));
    }

    #[test]
    fn packets_at_a_medium_rate_wake_it_before_a_timer_does() {
        let (mut waiting, now) = used_to(25_000, 10_000);
        let lead = waiting.lead();
        let Wait::Until(nap, keep) = waiting.wait(now, now.after(5_000), NEVER) else { panic!() };
        assert_eq!(nap, 45_000 - lead);
        // The next packet is to come first, also where the timer was set before.
        assert!((25_000..32_000).contains(&keep), "{keep}");
        let Wait::Until(nap, _) = waiting.wait(now, now.after(5_000), now.after(30_000)) else { panic!() };
        assert_eq!(nap, 30_000 - lead);
    }

    #[test]
    fn late_timers_alone_do_not_keep_it_awake() {
        for (gap, way) in [(25_000, Way::Naps), (5_000, Way::Naps), (25_000, Way::Woken), (5_000, Way::Woken)]
        {
            let (mut waiting, now) = used_to(gap, 30_000);
            waiting.trials.way = way;
            assert_ne!(waiting.wait(now, now.after(20_000), NEVER), Wait::Awake);
            assert_ne!(waiting.wait(now, NEVER, NEVER), Wait::Awake);
        }
    }

    #[test]
    fn at_a_low_rate_packets_wake_it_and_deadlines_are_kept() {
        let (mut waiting, now) = used_to(100_000, 10_000);
        let Wait::Until(nap, keep) = waiting.wait(now, now.after(64_000), NEVER) else { panic!() };
        assert_eq!(nap, 64_000 - waiting.lead());
        assert!(keep <= nap && nap - keep <= AT_ONCE);
        let Wait::Until(nap, keep) = waiting.wait(now, now.after(10_000_000), NEVER) else { panic!() };
        assert_eq!((nap, keep), (10_000_000 - waiting.lead(), nap / 2));
        assert_eq!(waiting.wait(now, now.after(5_000), NEVER), Wait::Awake);
        assert_eq!(waiting.wait(now, now, NEVER), Wait::Awake);
    }

    /// A thread to which packets come every 25 µs, for so many trials: one that wakes it takes `woken` ns of
    /// CPU time, one in a nap `naps`. Returns the share of packets that came in naps.
    fn share_of_naps(waiting: &mut Waiting, now: &mut Nanos, woken: u64, naps: u64, trials: u32) -> f64 {
        let (mut cpu, mut napped) = (0, 0);
        let packets = trials * TRIAL;
        for _ in 0..packets {
            *now = now.after(25_000);
            waiting.came(1, *now, *now);
            if waiting.asks() {
                waiting.spent(*now, cpu);
            }
            let is_nap = matches!(waiting.wait(*now, NEVER, NEVER), Wait::Whole(_));
            cpu += if is_nap { naps } else { woken };
            napped += u32::from(is_nap);
        }
        f64::from(napped) / f64::from(packets)
    }

    #[test]
    fn what_takes_less_cpu_time_is_done() {
        for (woken, naps, expected) in [(4_000, 9_000, 0.0), (9_000, 4_000, 1.0), (9_000, 8_900, 0.0)] {
            let (mut waiting, mut now) = used_to(25_000, 10_000);
            share_of_naps(&mut waiting, &mut now, woken, naps, 4);
            let share = share_of_naps(&mut waiting, &mut now, woken, naps, 320);
            assert!((share - expected).abs() < 0.05, "{share} where {woken} and {naps}");
            // And what comes to take less is found.
            share_of_naps(&mut waiting, &mut now, 10_000 - woken, 10_000 - naps, 320);
            let share = share_of_naps(&mut waiting, &mut now, 10_000 - woken, 10_000 - naps, 64);
            let expected = if naps > woken + 1_000 { 1.0 } else { 0.0 };
            assert!((share - expected).abs() < 0.05, "{share} after {woken} and {naps}");
        }
    }

    #[test]
    fn a_pause_in_a_trial_is_not_counted() {
        let (mut waiting, mut now) = used_to(25_000, 10_000);
        share_of_naps(&mut waiting, &mut now, 4_000, 9_000, 4);
        let before = waiting.trials.ns;
        waiting.trials.since = Some((now, 0));
        waiting.trials.packets = TRIAL;
        let later = now.after(TRIAL_MOST + 1);
        waiting.spent(later, 1_000_000_000);
        assert_eq!(waiting.trials.ns, before);
    }

    #[test]
    fn behind_a_burst_it_falls_asleep_soon() {
        let (mut waiting, mut now) = used_to(2_000, 10_000);
        let mut burst = |waiting: &mut Waiting| {
            for gap in [900; 20].into_iter().chain([300_000]) {
                let is_awake = waiting.wait(now, NEVER, NEVER) == Wait::Awake;
                let later = waiting.wait(now.after(gap.min(1_100)), NEVER, NEVER);
                now = now.after(gap);
                waiting.came(1, now, now);
                if gap > 900 {
                    return (is_awake, later);
                }
            }
            unreachable!("each ends with a long gap")
        };
        assert_eq!(burst(&mut waiting), (true, Wait::Awake), "nothing else is known yet");
        for _ in 0..20 {
            burst(&mut waiting);
        }
        let (awake, later) = burst(&mut waiting);
        assert!(awake, "within a burst it pays");
        assert!(matches!(later, Wait::Until(..)), "{later:?}");
    }

    /// Bursts whose packets come at a medium rate in the mean, in one round or in several.
    #[test]
    fn between_bursts_it_sleeps_until_a_packet_comes() {
        for rounds in [1, 2, 4] {
            let (mut waiting, mut now) = used_to(300_000, 10_000);
            waiting.trials.way = Way::Naps;
            for _ in 0..100 {
                now = now.after(300_000);
                for round in 0..rounds {
                    let first = now.after(10_000 * round);
                    waiting.came(16 / rounds as u32, first, first.after(8_000));
                    let waits = waiting.wait(first.after(9_000), NEVER, NEVER);
                    assert!(!matches!(waits, Wait::Whole(_)), "{waits:?} in a burst of {rounds} rounds");
                }
            }
        }
    }

    #[test]
    fn bursts_wake_it_once_each() {
        let mut waiting = Waiting::new(COALESCE);
        let mut now = Nanos(1_000_000_000);
        for _ in 0..100 {
            now = now.after(200_000);
            waiting.came(1, now, now);
            // The rest of the burst, in further rounds.
            waiting.came(1, now.after(1_000), now.after(1_000));
            waiting.came(1, now.after(2_000), now.after(2_000));
            waiting.wait(now.after(3_000), NEVER, NEVER);
        }
        let quiet = now.after(60_000);
        assert!(matches!(waiting.wait(quiet, NEVER, NEVER), Wait::Until(..) | Wait::Whole(_)));
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

        /// It stays awake for about as long as it takes least CPU time, of all times there are.
        #[test]
        fn the_wait_takes_little(gaps in proptest::collection::vec(0u64..20_000, 1..6)) {
            const COST: u64 = 4_000;
            let (mut awake, mut now) = (Awake::NEW, Nanos(1_000_000_000));
            for gap in (0..200).flat_map(|_| &gaps) {
                awake.pays(now, COST);
                now = now.after(*gap);
                awake.ends(now, COST);
            }
            let all = |part| gaps.iter().map(|gap| takes(*gap, part, COST)).sum::<u64>();
            let least = (0..=PARTS).map(all).min().unwrap();
            prop_assert!(all(awake.part) <= least + least / 2, "{} of {:?}", awake.part, gaps);
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
            due in 0u64..300_000, end in 0u64..300_000, naps in any::<bool>(),
        ) {
            let mut waiting = Waiting::new(COALESCE);
            waiting.trials.way = if naps { Way::Naps } else { Way::Woken };
            let mut now = Nanos(1_000_000_000);
            for (gap, events) in gaps {
                now = now.after(gap);
                waiting.came(events, now, now);
            }
            let sleeps = match waiting.wait(now, now.after(due), now.after(end)) {
                Wait::Awake => return Ok(()),
                Wait::Until(nap, _) => {
                    let more = if waiting.is_medium() { COALESCE } else { 0 };
                    prop_assert!(nap + waiting.lead() <= due + more);
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
