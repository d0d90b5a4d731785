//! Finds out when it no longer matters which batches were held when a stretch of a trace began.
//!
//! A batch of a flow that was held then takes some first packets of the flow, none or up to `burst` − 1 of
//! them; the next packet opens a batch. So all that is unknown of a flow is which of its first packets opens
//! one, and each of these openings leads to a chain of later ones: the next is the first packet that comes
//! `window` or more, or `burst` packets, behind the one before. Two chains that meet once are the same from
//! there on. Flows that send nothing for `window` are certain again; so is one whose chains have all met; so
//! is one of which nothing came in the first `window`, since nothing of it can have been held.
//!
//! A flow that always fills bursts before `window` is over keeps as many chains as a burst has packets, for
//! ever.

use std::collections::{HashMap, VecDeque};

use crate::block::Row;

/// The chains of one flow that have not met.
#[derive(Clone, Debug)]
struct Chains {
    packets: u64,
    /// Of each chain the latest opening: number of the packet, and its time.
    openings: VecDeque<(u64, u64)>,
    /// The batch that its first packet would have opened is not over: what was held may take the next one,
    /// too.
    beginning: bool,
    latest: u64,
}

impl Chains {
    fn new(time: u64) -> Self {
        Self { packets: 1, openings: VecDeque::from([(1, time)]), beginning: true, latest: time }
    }

    /// Takes the next packet of the flow; returns true if all chains have met.
    fn packet(&mut self, time: u64, window: u64, burst: u64) -> bool {
        self.packets += 1;
        self.latest = time;
        let mut opens = false;
        while let Some(&(number, base)) = self.openings.front()
            && (time - base >= window || self.packets - number >= burst)
        {
            self.openings.pop_front();
            opens = true;
        }
        if opens || self.beginning {
            self.openings.push_back((self.packets, time));
            self.beginning &= !opens;
        }
        !self.beginning && self.openings.len() == 1
    }
}

/// The flows of which it matters.
#[derive(Clone, Debug)]
pub(crate) struct Certain {
    window: u64,
    burst: u64,
    /// Time of the stretch's first packet.
    origin: Option<u64>,
    /// Flows that had a packet in the first `window`; None once they are certain.
    flows: HashMap<u32, Option<Chains>>,
    /// Number of these that are not certain.
    unsure: usize,
    /// The next time at which flows that have sent nothing for long are looked for.
    sweep: u64,
}

impl Certain {
    pub(crate) fn new(window: u64, burst: u16) -> Self {
        let flows = HashMap::new();
        Self { window, burst: burst.into(), origin: None, flows, unsure: 0, sweep: 0 }
    }

    /// Takes the next packet. Times never run backwards.
    pub(crate) fn packet(&mut self, row: &Row) {
        let origin = *self.origin.get_or_insert(row.time);
        if self.burst == 1 || self.window == 0 {
            return;
        }
        match self.flows.get_mut(&row.flow) {
            Some(state) => {
                if let Some(chains) = state
                    && chains.packet(row.time, self.window, self.burst)
                {
                    *state = None;
                    self.unsure -= 1;
                }
            }
            None if row.time - origin < self.window => {
                self.flows.insert(row.flow, Some(Chains::new(row.time)));
                self.unsure += 1;
            }
            None => {}
        }
    }

    /// Returns true if, at a time later than that of all packets so far, all flows are certain. Not before
    /// twice the window is over: where packets come a little late over the boundary, that is time to meet
    /// again.
    pub(crate) fn at(&mut self, now: u64) -> bool {
        let Some(origin) = self.origin else { return false };
        if now - origin < self.window.saturating_mul(2) {
            return false;
        }
        if self.unsure > 0 && now >= self.sweep {
            self.sweep = now.saturating_add(self.window / 4 + 1);
            for state in self.flows.values_mut() {
                if state.as_ref().is_some_and(|chains| now - chains.latest >= self.window) {
                    *state = None;
                    self.unsure -= 1;
                }
            }
        }
        self.unsure == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::block::IN_IP;
    use crate::trains::{Held, Open, Trains};

    fn row(time: u64, flow: u32) -> Row {
        Row { time, captured: time, flow, bits: IN_IP }
    }

    proptest! {
        /// From any batches that are held at the beginning, the same are held once the flows are certain.
        #[test]
        fn any_beginning_leads_to_the_same(
            gaps in proptest::collection::vec((0u64..7, 0u32..3), 1..200),
            window in 0u64..12,
            burst in 1u16..5,
            held in proptest::collection::vec((0u32..3, 0u64..12, 1u16..5), 0..4),
        ) {
            let mut time = 1000;
            let rows: Vec<Row> = gaps.iter().map(|(gap, flow)| { time += gap; row(time, *flow) }).collect();
            let mut open: Vec<Open> = Vec::new();
            for (flow, age, packets) in held {
                if packets < burst && age < window && !open.iter().any(|o| o.flow == flow) {
                    open.push(Open { base: 1000 - age, flow, packets, bits: IN_IP, full: false });
                }
            }
            open.sort_by_key(|o| o.base);
            let body = crate::trains::Body::new(burst);
            let mut some = Trains::resumed(window, burst, &Held { open, full_at: 0 }, body);
            let mut none = Trains::new(window, burst);
            let mut certain = Certain::new(window, burst);
            let mut before = 0;
            for row in rows {
                if row.time > before && certain.at(row.time) {
                    some.settle(row.time);
                    none.settle(row.time);
                    prop_assert_eq!(some.held(), none.held());
                }
                certain.packet(&row);
                some.step(row);
                none.step(row);
                before = row.time;
            }
        }
    }

    #[test]
    fn a_flow_that_fills_bursts_is_never_certain_and_others_soon_are() {
        let (mut busy, mut others) = (Certain::new(100, 4), Certain::new(100, 4));
        for n in 0..10_000 {
            busy.packet(&row(n, 0));
            others.packet(&row(n, (n % 400) as u32));
        }
        assert!(!busy.at(10_000) && others.at(10_000));
        assert!(busy.at(10_200), "it has sent nothing for a window");
    }
}
