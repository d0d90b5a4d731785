//! Reads packets, classifies them, and cuts them into blocks and epochs.

use slipstream_wire::{FlowKey, classify_with};

use super::digest::Digest;
use super::{Packet, PacketSource, TraceSettings};
use crate::weigh::Gaps;
use crate::{EpochLength, Keying, SketchSet, Span, Weight};

/// Flow keys with what is added to them.
pub(super) type Block = Vec<(FlowKey, u64)>;

/// A result of reading; they come in the order of the trace.
#[derive(Debug)]
pub(super) enum Item {
    Updates(Block),
    /// An epoch is over; the flag: IPv6 was seen before its end.
    End(Span, bool),
}

/// The source, and the epoch that its next packet belongs to.
pub(super) struct Reading<'s, S> {
    pub(super) source: &'s mut S,
    pub(super) cutter: Cutter,
}

impl<S: PacketSource> Reading<'_, S> {
    /// Reads so many packets; false at the end of the trace.
    pub(super) fn read(&mut self, rows: usize) -> Result<bool, S::Error> {
        let goes_on = self.source.read(rows, |packet| self.cutter.packet(packet))?;
        if goes_on {
            self.cutter.end_block();
        } else {
            self.cutter.end_epoch(true);
        }
        Ok(goes_on)
    }
}

/// Classifies packets, and cuts them into blocks and epochs.
#[derive(Debug)]
pub(super) struct Cutter {
    settings: TraceSettings,
    /// The last packets of flows, and what makes a flow, where gaps are measured.
    gaps: Option<(Gaps, Keying)>,
    /// The epoch under way.
    span: Span,
    ended_epochs: u64,
    pub(super) packets: u64,
    pub(super) skipped: u64,
    /// First packets of flows, which have no gap before them.
    pub(super) without_gap: u64,
    /// Packets that came earlier than one before them, and the latest time so far.
    pub(super) clock_backwards: u64,
    clock: u64,
    pub(super) ipv6: bool,
    block: Block,
    pub(super) items: Vec<Item>,
    /// Blocks that are no longer needed.
    pub(super) spare: Vec<Block>,
}

impl Cutter {
    pub(super) fn new(settings: TraceSettings, sketches: &SketchSet) -> Self {
        let gaps = settings.weight == Weight::Gap;
        Self {
            settings,
            gaps: gaps.then(|| (Gaps::new(sketches.seed()), sketches.ask().keying)),
            span: Span::default(),
            ended_epochs: 0,
            packets: 0,
            skipped: 0,
            without_gap: 0,
            clock_backwards: 0,
            clock: 0,
            ipv6: false,
            block: Block::new(),
            items: Vec::new(),
            spare: Vec::new(),
        }
    }

    #[inline]
    fn packet(&mut self, packet: &Packet<'_>) {
        match classify_with(packet.link, packet.data, self.settings.encapsulation) {
            Ok(headers) => self.row(headers.key, packet.time_ns, self.settings.weight(packet)),
            Err(_) => self.skipped += 1,
        }
    }

    /// Takes the packets of a digest, whose rows are some other block's then.
    pub(super) fn add(&mut self, digest: &mut Digest) {
        self.skipped += digest.skipped;
        let more = digest.rows.len() as u64;
        let (mut clock, mut late) = (self.clock, 0);
        for &time in &digest.times {
            late += u64::from(time < clock);
            clock = clock.max(time);
        }
        let last = clock.max(self.span.last_ns);
        let in_epoch = match self.settings.epoch {
            EpochLength::Packets(n) => self.span.packets + more <= n,
            EpochLength::Time(_) => !self.span.is_over(last),
        };
        if self.packets == 0 || !in_epoch || !self.block.is_empty() || self.gaps.is_some() {
            for ((key, weight), time) in digest.rows.iter().zip(&digest.times) {
                self.row(*key, *time, *weight);
            }
            return self.end_block();
        }
        if more == 0 {
            return;
        }
        (self.clock, self.clock_backwards) = (clock, self.clock_backwards + late);
        self.span.last_ns = last;
        if let EpochLength::Packets(_) = self.settings.epoch {
            self.span.end_ns = last;
        }
        (self.span.packets, self.packets) = (self.span.packets + more, self.packets + more);
        self.ipv6 |= digest.ipv6;
        std::mem::swap(&mut self.block, &mut digest.rows);
        self.end_block();
    }

    #[inline]
    fn row(&mut self, key: FlowKey, time: u64, mut weight: u64) {
        self.clock_backwards += u64::from(time < self.clock);
        self.clock = self.clock.max(time);
        // A packet whose time runs backwards comes with the one before it.
        let time = self.clock;
        if let Some((gaps, keying)) = &mut self.gaps {
            let Some(gap) = gaps.since_last(&keying.key(&key), time) else {
                self.without_gap += 1;
                return;
            };
            weight = gap;
        }
        let epoch = self.settings.epoch;
        if self.packets == 0 {
            self.span = Span::begin(epoch, time);
        }
        match epoch {
            EpochLength::Packets(n) if self.span.packets == n => {
                self.end_epoch(false);
                self.span = Span::begin(epoch, time);
            }
            EpochLength::Time(_) if self.span.is_over(time) => self.pass_time(time),
            _ => {}
        }
        self.span.last_ns = time;
        if let EpochLength::Packets(_) = epoch {
            self.span.end_ns = time;
        }
        (self.span.packets, self.packets) = (self.span.packets + 1, self.packets + 1);
        self.ipv6 |= key.is_ipv6();
        self.block.push((key, weight));
    }

    /// Ends epochs that are over; one without packets stands for any number of them in a row.
    #[cold]
    fn pass_time(&mut self, time: u64) {
        self.end_epoch(false);
        let next = Span::begin(self.settings.epoch, time);
        let ended = self.span.end_ns;
        if next.start_ns > ended {
            self.span = Span { start_ns: ended, end_ns: next.start_ns, ..Span::default() };
            self.end_epoch(false);
        }
        self.span = next;
    }

    #[cold]
    pub(super) fn end_epoch(&mut self, last: bool) {
        self.end_block();
        let by_time = matches!(self.settings.epoch, EpochLength::Time(_)) && self.span.packets > 0;
        self.span.partial = by_time && (last || self.ended_epochs == 0);
        self.span.gaps_missing = self.forgotten_flows() > 0;
        self.ended_epochs += 1;
        self.items.push(Item::End(self.span, self.ipv6));
    }

    /// Flows whose last packets had to give way.
    pub(super) fn forgotten_flows(&self) -> u64 {
        self.gaps.as_ref().map_or(0, |(gaps, _)| gaps.forgotten())
    }

    fn end_block(&mut self) {
        if !self.block.is_empty() {
            let next = self.spare.pop().unwrap_or_default();
            self.items.push(Item::Updates(std::mem::replace(&mut self.block, next)));
        }
    }
}
