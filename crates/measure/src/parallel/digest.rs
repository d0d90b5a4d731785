//! Traces of which several threads read parts: what can be found out of a packet by itself is found out part
//! by part, side by side, and sketches take the parts in order.

use slipstream_wire::{Encapsulation, FlowKey, LinkType, classify_usual, classify_with};

use super::cut::{Block, Cutter, Item};
use super::{Answers, Packet, TraceResult, TraceSettings};
use crate::{MeasureError, SketchSet};

/// The keys, times and weights of packets that follow each other in a trace.
#[derive(Clone, Debug)]
pub struct Digest {
    settings: TraceSettings,
    pub(super) rows: Block,
    pub(super) times: Vec<u64>,
    pub(super) skipped: u64,
    pub(super) ipv6: bool,
}

impl Digest {
    /// Of no packets, for a measurement with these settings.
    #[must_use]
    pub fn new(settings: TraceSettings) -> Self {
        Self { settings, rows: Block::new(), times: Vec::new(), skipped: 0, ipv6: false }
    }

    /// Forgets all packets.
    pub fn clear(&mut self) {
        (self.skipped, self.ipv6) = (0, false);
        self.rows.clear();
        self.times.clear();
    }

    /// Takes the next packet.
    #[inline]
    pub fn packet(&mut self, packet: &Packet<'_>) {
        match usual(packet, self.settings.encapsulation) {
            Some(key) => self.row(key, packet),
            None => self.uncommon(packet),
        }
    }

    /// A packet of any kind.
    #[inline(never)]
    pub(super) fn uncommon(&mut self, packet: &Packet<'_>) {
        let Ok(headers) = classify_with(packet.link, packet.data, self.settings.encapsulation) else {
            self.skipped += 1;
            return;
        };
        self.ipv6 |= headers.key.is_ipv6();
        self.row(headers.key, packet);
    }

    #[inline(always)]
    fn row(&mut self, key: FlowKey, packet: &Packet<'_>) {
        self.rows.push((key, self.settings.weight(packet)));
        self.times.push(packet.time_ns);
    }
}

/// The key of a packet of the kind that fills most links, in registers: it goes from there to its row. A key
/// of either kind would go through memory, and to read it back as a whole waits for the words that were
/// written. None says nothing of the packet.
#[inline(always)]
fn usual(packet: &Packet<'_>, encapsulation: Encapsulation) -> Option<FlowKey> {
    let frame = packet.data.first_chunk()?;
    if !matches!((packet.link, encapsulation), (LinkType::Ethernet, Encapsulation::Outer)) {
        return None;
    }
    match classify_usual(frame)?.key {
        key @ FlowKey::Narrow(_) => Some(key),
        FlowKey::Wide(_) => None,
    }
}

/// Measures a trace that comes in [digests](Digest), in order: the answers are those of
/// [`measure_trace`](super::measure_trace).
#[derive(Debug)]
pub struct DigestMeasurement {
    cutter: Cutter,
    set: SketchSet,
    answers: Answers,
}

impl DigestMeasurement {
    /// With `sketches`, which are empty.
    #[must_use]
    pub fn new(sketches: SketchSet, settings: &TraceSettings) -> Self {
        Self { cutter: Cutter::new(*settings, &sketches), set: sketches, answers: Answers::default() }
    }

    /// Takes the next packets of the trace.
    ///
    /// # Errors
    /// A sketch or an answer fails.
    pub fn add(&mut self, digest: &mut Digest) -> Result<(), MeasureError> {
        self.cutter.add(digest);
        self.work()
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// A sketch or an answer fails.
    pub fn finish(mut self) -> Result<TraceResult, MeasureError> {
        self.cutter.end_epoch(true);
        self.work()?;
        let forgotten_flows = self.cutter.forgotten_flows();
        let Cutter { packets, skipped, without_gap, clock_backwards, ipv6, .. } = self.cutter;
        let spent_ns = self.set.spent_ns();
        let mut result = TraceResult {
            packets,
            skipped,
            without_gap,
            forgotten_flows,
            clock_backwards,
            ipv6,
            spent_ns,
            epochs: self.answers.epochs,
            ..TraceResult::default()
        };
        result.measure_memory();
        Ok(result)
    }

    fn work(&mut self) -> Result<(), MeasureError> {
        let mut items = std::mem::take(&mut self.cutter.items);
        for item in items.drain(..) {
            match item {
                Item::Updates(mut block) => {
                    block.iter().try_for_each(|(key, weight)| self.set.push(key, *weight))?;
                    block.clear();
                    self.cutter.spare.push(block);
                }
                Item::End(span, ipv6) => self.answers.ask(&mut self.set, span, ipv6)?,
            }
        }
        self.cutter.items = items;
        Ok(())
    }
}
