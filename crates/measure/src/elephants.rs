//! Heavy flows, found by the aggregator: what stages of other members know as [`HeavyFlows`].
//!
//! A window's packets are added up by the aggregator, whose table has two entries for each packet of a
//! window, so that hardly a flow leaves it early. What has a single packet when it leaves is no heavy flow,
//! and is forgotten there and then: no list grows by mice. The others of this window and of the one before
//! are ranked.

use slipstream_core::heavy::{HeavyFlows, Top};
use slipstream_sketch::{Aggregator, AggregatorConfig, AggregatorError, Update};

/// Packets that are added up at once.
const BATCH: usize = 256;
/// Entries of a bucket of the aggregator.
const BUCKET: usize = 16;

/// A flow and its packets.
type Weight = (u32, u32);

/// Finds heavy flows by their numbers.
#[derive(Debug)]
pub struct Elephants {
    top: Top,
    aggregator: Aggregator<4>,
    /// Flows of two packets and more that have left the aggregator in this window.
    now: Vec<Weight>,
    /// All flows that have left it.
    flows: u64,
    /// Flows of two packets and more of the window before, by number.
    before: Vec<Weight>,
    /// Numbers that were given to other flows in this window, and how many of them there may be.
    renumbered: Vec<u32>,
    most: usize,
    /// The sum of both windows, to be ranked.
    both: Vec<Weight>,
}

impl Elephants {
    /// With windows of so many packets, 1 to [`Top::MAX_WINDOW`].
    ///
    /// # Errors
    /// [`AggregatorError`] where the window is out of range.
    pub fn new(top: Top, window: u32) -> Result<Self, AggregatorError> {
        let entries = 2 * window.min(Top::MAX_WINDOW) as usize;
        // Flow numbers are given in turn and say nothing about a flow, so nobody can choose them to collide.
        let usual = AggregatorConfig { seed: 1, ..AggregatorConfig::default() };
        let window = window as usize;
        Ok(Self {
            top,
            aggregator: Aggregator::new(&AggregatorConfig { buckets: entries.div_ceil(BUCKET), ..usual })?,
            now: Vec::with_capacity(window / 2 + 1),
            flows: 0,
            before: Vec::with_capacity(window / 2 + 1),
            renumbered: Vec::new(),
            most: window,
            both: Vec::with_capacity(window + 2),
        })
    }

    /// One as whoever knows no sketch takes it.
    #[must_use]
    pub fn boxed(top: Top, window: u32) -> Option<Box<dyn HeavyFlows>> {
        let elephants = Self::new(top, window).ok()?;
        Some(Box::new(elephants))
    }

    /// Memory of its tables in bytes.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let lists = self.now.capacity() + self.before.capacity() + self.both.capacity();
        self.aggregator.memory_bytes() + lists * size_of::<Weight>()
    }
}

/// Sorts by flow, and adds up what is of one.
fn add_up(flows: &mut Vec<Weight>) {
    flows.sort_unstable();
    flows.dedup_by(|from, to| {
        let same = from.0 == to.0;
        if same {
            to.1 = to.1.saturating_add(from.1);
        }
        same
    });
}

/// Takes down what leaves the aggregator.
fn take(now: &mut Vec<Weight>, flows: &mut u64, left: &[Update<4>]) {
    *flows += left.len() as u64;
    now.extend(left.iter().filter(|u| u.weight > 1).map(|u| (u32::from_le_bytes(u.key), u.weight)));
}

impl HeavyFlows for Elephants {
    fn count(&mut self, flows: &[u32]) {
        let Self { aggregator, now, flows: seen, .. } = self;
        let mut updates = [Update { key: [0; 4], weight: 1 }; BATCH];
        for some in flows.chunks(BATCH) {
            updates.iter_mut().zip(some).for_each(|(u, flow)| u.key = flow.to_le_bytes());
            let updates = updates.get(..some.len()).unwrap_or_default();
            aggregator.offer(updates, &mut |left| take(now, seen, left));
        }
    }

    fn renumber(&mut self, flow: u32) {
        if self.renumbered.len() >= self.most {
            // Where flows come and go as fast as that, none stays for long.
            self.renumbered.sort_unstable();
            self.renumbered.dedup();
            if self.renumbered.len() >= self.most {
                let Self { aggregator, now, before, renumbered, .. } = self;
                aggregator.drain(&mut |_| {});
                now.clear();
                before.clear();
                renumbered.clear();
            }
        }
        self.renumbered.push(flow);
    }

    fn end(&mut self, heavy: &mut dyn FnMut(u32)) {
        let Self { top, aggregator, now, flows, before, renumbered, both, .. } = self;
        aggregator.drain(&mut |left| take(now, flows, left));
        add_up(now);
        if !renumbered.is_empty() {
            renumbered.sort_unstable();
            let stays = |flow: &Weight| renumbered.binary_search(&flow.0).is_err();
            now.retain(stays);
            before.retain(stays);
        }
        both.clear();
        both.extend_from_slice(before);
        both.extend_from_slice(now);
        add_up(both);
        let most = usize::try_from(top.of(*flows)).unwrap_or(usize::MAX);
        let order = |(flow, packets): &Weight| (u32::MAX - packets, *flow);
        if both.len() > most {
            both.select_nth_unstable_by_key(most, order);
            both.truncate(most);
        }
        both.sort_unstable_by_key(order);
        both.iter().for_each(|(flow, _)| heavy(*flow));
        std::mem::swap(before, now);
        now.clear();
        renumbered.clear();
        *flows = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use proptest::prelude::*;

    /// The same with a map, and every flow in it.
    #[derive(Default)]
    struct Twin {
        windows: [BTreeMap<u32, u32>; 2],
        renumbered: Vec<u32>,
    }

    impl Twin {
        fn end(&mut self, top: Top) -> Vec<u32> {
            let flows = self.windows[1].len() as u64;
            for window in &mut self.windows {
                window.retain(|flow, packets| *packets > 1 && !self.renumbered.contains(flow));
            }
            let mut all: Vec<(u32, u32)> = Vec::new();
            for flow in 0..100 {
                let packets: u32 = self.windows.iter().filter_map(|w| w.get(&flow)).sum();
                if packets > 0 {
                    all.push((u32::MAX - packets, flow));
                }
            }
            all.sort_unstable();
            all.truncate(top.of(flows) as usize);
            self.windows.swap(0, 1);
            self.windows[1].clear();
            self.renumbered.clear();
            all.into_iter().map(|(_, flow)| flow).collect()
        }
    }

    fn top() -> impl Strategy<Value = Top> {
        prop_oneof![(1u32..20).prop_map(Top::Flows), (1u32..=Top::ALL).prop_map(Top::Share)]
    }

    proptest! {
        #[test]
        fn it_finds_what_its_twin_finds(
            top in top(),
            windows in proptest::collection::vec(proptest::collection::vec((0u32..100, 0u32..40), 0..200), 1..6),
        ) {
            let (mut elephants, mut twin) = (Elephants::new(top, 400).unwrap(), Twin::default());
            for window in windows {
                for (flow, one_in) in window {
                    // Low numbers are frequent.
                    let flow = flow % (1 + one_in);
                    elephants.count(&[flow]);
                    *twin.windows[1].entry(flow).or_insert(0) += 1;
                    if one_in == 39 {
                        elephants.renumber(flow);
                        twin.renumbered.push(flow);
                    }
                }
                let mut found = Vec::new();
                elephants.end(&mut |flow| found.push(flow));
                prop_assert_eq!(found, twin.end(top));
            }
        }
    }

    /// Nine elephants among 30,000 mice that come and go; a table for windows of 4,096 packets.
    #[test]
    fn mice_hide_no_elephant() {
        let mut elephants = Elephants::new(Top::Flows(9), 4096).unwrap();
        let mut mouse = 100;
        for _ in 0..8 {
            for n in 0..4096u32 {
                mouse += 1;
                elephants.count(&[if n % 16 == 0 { n / 16 % 9 } else { mouse }]);
            }
            let mut found = Vec::new();
            elephants.end(&mut |flow| found.push(flow));
            found.sort_unstable();
            assert_eq!(found, (0..9).collect::<Vec<_>>());
        }
        assert!(elephants.memory_bytes() < 200_000, "{}", elephants.memory_bytes());
    }

    /// A storm of new flows in old places costs no memory.
    #[test]
    fn renumbering_is_bounded() {
        let mut elephants = Elephants::new(Top::Flows(9), 64).unwrap();
        for n in 0..100_000u32 {
            elephants.renumber(n);
            assert!(elephants.renumbered.len() <= 64);
        }
        elephants.renumber(7);
        elephants.count(&[7; 40]);
        elephants.count(&[8; 20]);
        let mut found = Vec::new();
        elephants.end(&mut |flow| found.push(flow));
        assert_eq!(found, [8]);
    }
}
