//! Runs, distances, flow sizes and flow switches: what locality traffic has as it comes (paper §3.1, Figs. 6
//! to 8).

use slipstream_stats::{Histogram, SignedHistogram};

use crate::block::{Block, CLASS, IN_IP, IN_TCP, NO_FLOW, Row};
use crate::sections::Numbers;
use crate::stretch::{Note, OrderOfStretch as Recorded, Recorded as SectionRecorded};

/// Packets of a section that are counted together.
const TOGETHER: usize = 512;

/// The latest packet of a flow; positions count from 1, 0 is none.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    pub(crate) ip_position: u64,
    pub(crate) tcp_position: u64,
    pub(crate) captured: u64,
    pub(crate) packets: u64,
}

/// Flow switches in batches of one size, over all complete batches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SwitchTotals {
    /// Complete batches.
    pub(crate) batches: u64,
    /// Neighbours within a batch that are of different flows.
    pub(crate) unordered: u64,
    /// The same, were each batch sorted by flow: its distinct flows less one.
    pub(crate) ordered: u64,
}

impl SwitchTotals {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.batches += other.batches;
        self.unordered += other.unordered;
        self.ordered += other.ordered;
    }
}

#[derive(Debug)]
struct Switches {
    size: u64,
    /// Packets of the batch under way, and its counts.
    filled: u64,
    changes: u64,
    distinct: u64,
    totals: SwitchTotals,
}

impl Switches {
    fn new(size: u32) -> Self {
        Self { size: size.into(), filled: 0, changes: 0, distinct: 0, totals: SwitchTotals::default() }
    }

    /// The next packets of the sequence.
    fn packets(&mut self, mut steps: &[Step]) {
        while !steps.is_empty() {
            let room = usize::try_from(self.size - self.filled).unwrap_or(usize::MAX);
            let (now, later) = steps.split_at(room.min(steps.len()));
            // Of the batch under way, so many packets come before each.
            let places = self.filled as u32..;
            let new = |(step, place): (&Step, u32)| u32::from(step.distance() > place);
            self.distinct += u64::from(now.iter().zip(places).map(new).sum::<u32>());
            let inside = if self.filled == 0 { now.get(1..).unwrap_or_default() } else { now };
            self.changes += u64::from(inside.iter().map(|s| s.changed()).sum::<u32>());
            self.filled += now.len() as u64;
            if self.filled == self.size {
                self.totals.batches += 1;
                self.totals.unordered += self.changes;
                self.totals.ordered += self.distinct - 1;
                (self.filled, self.changes, self.distinct) = (0, 0, 0);
            }
            steps = later;
        }
    }
}

/// Of a packet: how far back its flow's packet before is (31 bits), and whether its neighbour before is of
/// another flow.
#[derive(Clone, Copy, Debug)]
struct Step(u32);

impl Step {
    /// Farther than any batch reaches, or there is none.
    const FAR: u32 = i32::MAX as u32;

    #[inline]
    fn new(distance: u64, changed: bool) -> Self {
        Self(distance.min(u64::from(Self::FAR)) as u32 | u32::from(changed) << 31)
    }

    #[inline]
    fn distance(self) -> u32 {
        self.0 & Self::FAR
    }

    #[inline]
    fn changed(self) -> u32 {
        self.0 >> 31
    }
}

/// One sequence: all IP packets, or the TCP packets among them.
#[derive(Debug)]
struct Order {
    packets: u64,
    last: u32,
    runs: u64,
    spatial: Histogram,
    switches: Vec<Switches>,
    /// Of the block under way.
    steps: Vec<Step>,
}

impl Order {
    fn new(batches: &[u32]) -> Self {
        Self {
            packets: 0,
            last: NO_FLOW,
            runs: 0,
            spatial: Histogram::new(),
            switches: batches.iter().copied().map(Switches::new).collect(),
            steps: Vec::new(),
        }
    }

    /// The next packet is of `flow`, last seen at `previous`. Returns its position.
    #[inline(always)]
    fn packet(&mut self, flow: u32, previous: u64) -> u64 {
        self.packets += 1;
        let changed = flow != self.last;
        self.last = flow;
        self.runs += u64::from(changed);
        let distance = self.packets - previous;
        self.steps.push(Step::new(if previous > 0 { distance } else { u64::MAX }, changed));
        if previous > 0 {
            self.spatial.record(distance);
        }
        self.packets
    }

    /// Takes packets that were recorded without those before: `pairs` has, for each flow of both, the
    /// position of its first packet there, and of its last one here; `first` and `last` are the flows at the
    /// ends.
    fn append(&mut self, next: &mut Recorded, (first, last): (u32, u32), pairs: &[(u64, u64)]) {
        if next.packets == 0 {
            return;
        }
        let (before, changed) = (self.packets, first != self.last);
        for (there, here) in pairs {
            let distance = before + there - here;
            self.spatial.record(distance);
            if let Some(note) = next.notes.get_mut(*there as usize - 1) {
                *note = Note::new(distance, note.read().1);
            }
        }
        if let Some(note) = next.notes.first_mut() {
            *note = Note::new(note.read().0, changed);
        }
        for notes in next.notes.chunks(TOGETHER) {
            self.steps.extend(notes.iter().map(|note| {
                let (distance, changed) = note.read();
                Step::new(distance, changed)
            }));
            self.end_block();
        }
        self.spatial.merge(&next.spatial);
        self.runs += next.runs - u64::from(!changed);
        self.packets += next.packets;
        self.last = last;
    }

    fn end_block(&mut self) {
        for s in &mut self.switches {
            s.packets(&self.steps);
        }
        self.steps.clear();
    }
}

/// The locality of one sequence as it comes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OrderTotals {
    pub(crate) packets: u64,
    pub(crate) runs: u64,
    pub(crate) spatial: Histogram,
    pub(crate) temporal: SignedHistogram,
    pub(crate) switches: Vec<SwitchTotals>,
}

impl OrderTotals {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.packets += other.packets;
        self.runs += other.runs;
        self.spatial.merge(&other.spatial);
        self.temporal.merge(&other.temporal);
        self.switches.iter_mut().zip(&other.switches).for_each(|(a, b)| a.merge(b));
    }
}

/// The analysis that measures both sequences as they come.
#[derive(Debug)]
pub(crate) struct Distances {
    flows: Vec<Flow>,
    ip: Order,
    tcp: Order,
    /// By class: a TCP flow's distances in time are the same in both sequences, so they are recorded once.
    temporal: [SignedHistogram; CLASS as usize + 1],
}

impl Distances {
    pub(crate) fn new(switch_batches: &[u32]) -> Self {
        Self {
            flows: Vec::new(),
            ip: Order::new(switch_batches),
            tcp: Order::new(switch_batches),
            temporal: Default::default(),
        }
    }

    pub(crate) fn block(&mut self, block: &Block) {
        if self.flows.len() < block.flows {
            self.flows.resize(block.flows, Flow::default());
        }
        for &Row { captured, flow: number, bits, .. } in &block.rows {
            let Some(flow) = self.flows.get_mut(number as usize) else { continue };
            if bits & IN_IP != 0 {
                flow.ip_position = self.ip.packet(number, flow.ip_position);
            }
            if bits & IN_TCP != 0 {
                flow.tcp_position = self.tcp.packet(number, flow.tcp_position);
            }
            if flow.packets > 0
                && let Some(temporal) = self.temporal.get_mut(usize::from(bits & CLASS))
            {
                temporal.record(difference(captured, flow.captured));
            }
            flow.captured = captured;
            flow.packets += 1;
        }
        self.ip.end_block();
        self.tcp.end_block();
    }

    /// Takes the packets of a section; `numbers` are those that its flows have here.
    pub(crate) fn append(&mut self, section: &mut SectionRecorded, numbers: &Numbers) {
        let (ip, tcp) = (self.ip.packets, self.tcp.packets);
        let flows = numbers.iter().max().map_or(0, |most| most as usize + 1);
        if self.flows.len() < flows {
            self.flows.resize(flows, Flow::default());
        }
        let (mut of_ip, mut of_tcp) = (Vec::new(), Vec::new());
        for ((first, latest), number) in section.first.iter().zip(&section.latest).zip(numbers.iter()) {
            let Some(flow) = self.flows.get_mut(number as usize) else { continue };
            if flow.packets > 0
                && let Some(temporal) = self.temporal.get_mut(usize::from(first.class))
            {
                temporal.record(difference(first.captured, flow.captured));
            }
            for (mine, there, then, before, pairs) in [
                (&mut flow.ip_position, first.ip, latest.ip_position, ip, &mut of_ip),
                (&mut flow.tcp_position, first.tcp, latest.tcp_position, tcp, &mut of_tcp),
            ] {
                if there > 0 {
                    if *mine > 0 {
                        pairs.push((there, *mine));
                    }
                    *mine = before + then;
                }
            }
            flow.captured = latest.captured;
            flow.packets += latest.packets;
        }
        for (order, recorded, pairs) in
            [(&mut self.ip, &mut section.ip, of_ip), (&mut self.tcp, &mut section.tcp, of_tcp)]
        {
            let ends = (numbers.of(recorded.first), numbers.of(recorded.last));
            order.append(recorded, ends, &pairs);
        }
        self.temporal.iter_mut().zip(&section.temporal).for_each(|(mine, more)| mine.merge(more));
    }

    /// The totals of `ip` and of `tcp`, and the packets of every flow.
    pub(crate) fn finish(self) -> (OrderTotals, OrderTotals, Vec<u64>) {
        let sizes = self.flows.iter().map(|f| f.packets).collect();
        (totals(self.ip, &self.temporal, IN_IP), totals(self.tcp, &self.temporal, IN_TCP), sizes)
    }
}

fn totals(order: Order, by_class: &[SignedHistogram], sequence: u8) -> OrderTotals {
    let mut temporal = SignedHistogram::new();
    for (class, part) in by_class.iter().enumerate() {
        if class & usize::from(sequence) != 0 {
            temporal.merge(part);
        }
    }
    OrderTotals {
        packets: order.packets,
        runs: order.runs,
        spatial: order.spatial,
        temporal,
        switches: order.switches.into_iter().map(|s| s.totals).collect(),
    }
}

/// `a − b`, at most what fits.
#[inline]
pub(crate) fn difference(a: u64, b: u64) -> i64 {
    if a >= b {
        i64::try_from(a - b).unwrap_or(i64::MAX)
    } else {
        i64::try_from(b - a).map_or(i64::MIN + 1, |d| -d)
    }
}
