//! The hold that sets itself, within the operator's bounds.
//!
//! A sample of flows is held in shadow, under sixteen holds at once: what trains, delay and vain waits each
//! would have given. Now and then the class takes the hold that is worth most by its budget. It takes none at
//! all, where that is allowed, while no hold is worth its delay.
//!
//! Of many flows one in 64 is sampled; while packets are few, up to all. While the hold stays as it is, only
//! one window in four is looked at. Everything follows from packets, their times and the order in which flows
//! came: a replay is the same each time.

mod shadow;

use alloc::vec::Vec;

pub use shadow::Outcome;
use shadow::Shadow;
pub(crate) use shadow::TRIED;

use crate::adaptive::Budget;
use crate::config::ClassSettings;
use slipstream_core::time::Nanos;

/// A window of traffic time lasts so long, and twice the longest hold at least, in ns.
const WINDOW_NS: u64 = 10_000_000;
/// With fewer packets than this a window goes on.
const FEW: u64 = 64;
/// When a window has so many sampled packets, a quarter of the flows is sampled from there on; when it ends
/// with less than an eighth of it, four times as many are.
const MANY: u64 = 2048;
/// One flow in two to the power of this is sampled at least.
const LEAST: u32 = 6;
/// After so many windows that left the hold as it was, so many pass that nobody looks at.
const STEADY: u32 = 4;
const REST: u64 = 3;
/// Another hold has to be better by one part in so many of what the present one is worth.
const BETTER: i64 = 16;
/// A packet more in a train for so many packets at least: with less there is nothing to be gained.
const GAIN: u64 = 64;

/// The hold that a class has set itself, and what others would have given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AutoStats {
    /// The class: 0 for the default one.
    pub class: u8,
    /// The hold at present, in ns.
    pub hold_ns: u64,
    /// Times that it was changed.
    pub changes: u64,
    /// One flow in so many is sampled at present.
    pub one_in: u32,
    /// Holds from the longest to the shortest, in ns, and the outcome of each over the last few windows.
    pub tried: Vec<(u64, Outcome)>,
}

#[cfg(feature = "std")]
impl AutoStats {
    /// As JSON: `class`, `hold_ns`, `changes`, `one_in`, and `tried`, a list of `hold_ns`, `mean_train`,
    /// `mean_delay_ns` and `futile_wait_ns` (a packet).
    #[must_use]
    pub fn report(&self) -> serde_json::Value {
        let a_packet = |sum: u64, o: &Outcome| (o.packets > 0).then(|| sum / o.packets);
        let tried = |(hold_ns, o): &(u64, Outcome)| {
            serde_json::json!({
                "hold_ns": hold_ns,
                "mean_train": (o.trains > 0).then(|| o.packets as f64 / o.trains as f64),
                "mean_delay_ns": a_packet(o.delay_ns, o),
                "futile_wait_ns": a_packet(o.futile_wait_ns, o),
            })
        };
        serde_json::json!({
            "class": self.class,
            "hold_ns": self.hold_ns,
            "changes": self.changes,
            "one_in": self.one_in,
            "tried": self.tried.iter().map(tried).collect::<Vec<_>>(),
        })
    }
}

/// A class whose hold sets itself.
#[derive(Debug)]
struct Auto {
    class: u8,
    budget: Budget,
    /// No hold at all is possible.
    aside: bool,
    window_ns: u64,
    shadow: Shadow,
    /// Outcomes of this window, and of those before, which are forgotten by halves.
    now: [Outcome; TRIED],
    before: [Outcome; TRIED],
    sampled: u64,
    /// One flow in two to the power of this is sampled.
    one_in: u32,
    /// Windows in which the hold stayed as it was, one after the other.
    steady: u32,
    /// The present window is one that nobody looks at.
    resting: bool,
    ends: Nanos,
    hold_ns: u64,
    changes: u64,
    /// The hold that was best in the window before, where it is not the present one.
    wanted: u64,
}

/// All classes whose hold sets itself.
#[derive(Debug, Default)]
pub(crate) struct Autos {
    /// By class.
    classes: Vec<Option<Auto>>,
    /// The first time at which a window ends; [`Nanos::MAX`] where there is no such class.
    ends: Nanos,
}

impl Autos {
    /// `None` where the hold of no class sets itself.
    pub(crate) fn new(classes: &[ClassSettings], budget: Option<Budget>) -> Option<Self> {
        let auto = |(class, c): (u8, &ClassSettings)| {
            let shortest_ns = c.hold_min_ns.filter(|_| !c.bypass && c.burst > 1 && c.hold_ns > 0)?;
            Some(Auto {
                class,
                budget: budget.unwrap_or(Budget::Price(c.hold_ns)),
                aside: shortest_ns == 0,
                window_ns: WINDOW_NS.max(2 * c.hold_ns),
                shadow: Shadow::new(shortest_ns, c.hold_ns, c.burst),
                now: [Outcome::default(); TRIED],
                before: [Outcome::default(); TRIED],
                sampled: 0,
                one_in: 0,
                steady: 0,
                resting: false,
                ends: Nanos(0),
                hold_ns: c.hold_ns,
                changes: 0,
                wanted: c.hold_ns,
            })
        };
        let classes: Vec<_> = (0u8..).zip(classes).map(auto).collect();
        classes.iter().any(Option::is_some).then_some(Self { classes, ends: Nanos(0) })
    }

    /// Goes on counting where `before`, which had other settings, has ended; where the classes are the
    /// `same`, also by what that knew.
    #[cfg(feature = "std")]
    pub(crate) fn follow(&mut self, before: &mut Self, same: bool) {
        for (new, old) in self.classes.iter_mut().zip(&mut before.classes) {
            if let (Some(new), Some(old)) = (new, old) {
                new.changes = old.changes;
                if same && core::mem::discriminant(&new.budget) == core::mem::discriminant(&old.budget) {
                    new.learn_from(old);
                }
            }
        }
        self.ends = self.classes.iter().flatten().map(|a| a.ends).min().unwrap_or(Nanos::MAX);
    }

    /// The classes whose hold sets itself, and the hold of each at present.
    #[cfg(feature = "std")]
    pub(crate) fn holds(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.classes.iter().flatten().map(|a| (a.class, a.hold_ns))
    }

    /// Packets that arrive before this can't change a hold.
    #[inline(always)]
    pub(crate) fn ends(&self) -> Nanos {
        self.ends
    }

    /// A packet of a flow of a class has come. Which flows are sampled follows from the hash, so that
    /// packets which pass need not be looked up.
    #[inline(always)]
    pub(crate) fn packet(&mut self, class: u8, hash: u64, now: Nanos) {
        let key = hash as u32;
        if let Some(Some(auto)) = self.classes.get_mut(usize::from(class))
            && !auto.resting
            && key & ((1 << auto.one_in) - 1) == 0
        {
            auto.packet((hash >> 32) as u32, key >> LEAST, now);
        }
    }

    /// Returns true if packets of a class are of no interest before the present window ends.
    #[inline(always)]
    pub(crate) fn rests(&self, class: u8) -> bool {
        self.classes.get(usize::from(class)).is_none_or(|auto| auto.as_ref().is_none_or(|a| a.resting))
    }

    /// The time has come to `now`: ends the windows that are over. Returns a class that is to have another
    /// hold, and that hold, until there is none.
    #[cold]
    pub(crate) fn tune(&mut self, now: Nanos) -> Option<(u8, u64)> {
        let changed = self.classes.iter_mut().flatten().filter(|a| a.ends <= now).find_map(|a| a.end(now));
        if changed.is_none() {
            self.ends = self.classes.iter().flatten().map(|a| a.ends).min().unwrap_or(Nanos::MAX);
        }
        changed
    }

    /// The state of every class whose hold sets itself.
    pub(crate) fn stats(&self) -> Vec<AutoStats> {
        let stats = |a: &Auto| AutoStats {
            class: a.class,
            hold_ns: a.hold_ns,
            changes: a.changes,
            one_in: 1 << a.one_in,
            tried: a.shadow.holds().zip(a.before).collect(),
        };
        self.classes.iter().flatten().map(stats).collect()
    }
}

impl Auto {
    fn packet(&mut self, flow: u32, key: u32, now: Nanos) {
        self.shadow.packet(flow, key, now, &mut self.now);
        self.sampled += 1;
        if self.sampled.is_multiple_of(MANY) {
            self.one_in = (self.one_in + 2).min(LEAST);
        }
    }

    /// Goes by what `before` knew, whose budget was of the same kind. Where other holds are tried now, that
    /// is the hold alone.
    #[cfg(feature = "std")]
    fn learn_from(&mut self, before: &mut Self) {
        if self.shadow.tries_as(&before.shadow) {
            let budget = core::mem::replace(&mut before.budget, self.budget);
            core::mem::swap(self, before);
            if budget != self.budget {
                // Another hold may be the best now.
                (self.resting, self.steady) = (false, 0);
            }
            return;
        }
        let none = (before.hold_ns == 0 && self.aside).then_some(0);
        let shorter = || self.shadow.holds().find(|ns| *ns <= before.hold_ns);
        let hold_ns = none.or_else(shorter).or_else(|| self.shadow.holds().last());
        self.hold_ns = hold_ns.unwrap_or(self.hold_ns);
        self.wanted = self.hold_ns;
    }

    /// The end of a window; returns the class and its new hold, where that is another.
    fn end(&mut self, now: Nanos) -> Option<(u8, u64)> {
        let first = self.ends == Nanos(0);
        self.ends = now.after(self.window_ns);
        if core::mem::take(&mut self.resting) {
            // Time has passed for what was known, too.
            (0..REST).for_each(|_| self.before.iter_mut().for_each(Outcome::halve));
            return None;
        }
        if first {
            return self.begin();
        }
        if self.sampled < FEW {
            return None;
        }
        let changed = self.end_of_window(now);
        self.steady = if changed.is_some() || self.wanted != self.hold_ns { 0 } else { self.steady + 1 };
        if self.steady >= STEADY {
            self.resting = true;
            self.ends = now.after(REST * self.window_ns);
            self.shadow.forget();
        }
        changed
    }

    /// The hold to begin with, where that isn't the longest: under a mean delay none longer than that, which
    /// can't be overspent, whatever comes.
    fn begin(&mut self) -> Option<(u8, u64)> {
        let Budget::Delay(aim) = self.budget else { return None };
        let within = self.shadow.holds().find(|ns| *ns <= aim);
        let hold_ns = within.or_else(|| self.shadow.holds().last()).filter(|ns| *ns < self.hold_ns)?;
        (self.hold_ns, self.wanted) = (hold_ns, hold_ns);
        Some((self.class, hold_ns))
    }

    fn end_of_window(&mut self, now: Nanos) -> Option<(u8, u64)> {
        self.shadow.end(now, &mut self.now);
        if self.sampled < MANY / 8 {
            self.one_in = self.one_in.saturating_sub(2);
        }
        self.sampled = 0;
        for (before, now) in self.before.iter_mut().zip(&mut self.now) {
            before.halve();
            before.add(now);
            *now = Outcome::default();
        }
        let best = self.best();
        let wanted = core::mem::replace(&mut self.wanted, best);
        // A hold that is wanted but once may be chance, unless the present one is far from it.
        let far = best == 0 || self.hold_ns == 0 || best > 2 * self.hold_ns || self.hold_ns > 2 * best;
        if best == self.hold_ns || (best != wanted && !far) {
            return None;
        }
        self.hold_ns = best;
        self.changes += 1;
        Some((self.class, best))
    }

    /// The hold that is worth most by the budget. The present one stays where it is about as good.
    fn best(&self) -> u64 {
        let holds = || self.shadow.holds().zip(&self.before).filter(|(_, o)| o.packets > 0);
        let gains = |o: &Outcome| (o.packets - o.trains) * GAIN >= o.packets;
        let best = match self.budget {
            Budget::Price(price) => {
                // Joins at their price, less the delay, in parts of a packet: each hold has packets of its
                // own.
                let worth = |o: &Outcome| {
                    let joins = i128::from(o.packets - o.trains) * i128::from(price);
                    ((joins - i128::from(o.delay_ns)) * 1024 / i128::from(o.packets)) as i64
                };
                let all = || holds().filter(|(_, o)| gains(o)).map(|(ns, o)| (worth(o), ns));
                let present = all().find(|(_, ns)| *ns == self.hold_ns);
                let best = all().max_by_key(|(worth, _)| *worth).filter(|(worth, _)| *worth > 0);
                match (best, present) {
                    (Some((most, _)), Some((worth, ns))) if worth > 0 && most - worth <= worth / BETTER => {
                        Some(ns)
                    }
                    (best, _) => best.map(|(_, ns)| ns),
                }
            }
            Budget::Delay(aim) => holds()
                .filter(|(_, o)| gains(o))
                .find(|(_, o)| o.delay_ns / o.packets <= aim)
                .map(|(ns, _)| ns),
            Budget::Train(thousandths) => {
                let reached = |o: &Outcome| o.packets * 1000 / o.trains.max(1) >= u64::from(thousandths);
                let shortest = holds().filter(|(_, o)| reached(o)).last();
                let longest = holds().find(|(_, o)| gains(o));
                shortest.or(longest).map(|(ns, _)| ns)
            }
        };
        match best {
            Some(ns) => ns,
            None if self.aside => 0,
            None => self.shadow.holds().last().unwrap_or(self.hold_ns),
        }
    }
}
