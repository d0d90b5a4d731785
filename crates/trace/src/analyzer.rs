//! Entry of packets: reads a packet's headers, finds its flow, and hands blocks of packets to the analyses.

use std::collections::HashMap;
use std::hint::black_box;

use slipstream_wire::protocol::TCP;
use slipstream_wire::{Encapsulation, Flags, FlowKey, LinkType, Skip, classify_with, tcp_segment};

use crate::block::{ACK_FLAG, ADVANCES, Block, IN_IP, IN_TCP, NO_FLOW, PURE_ACK, Row};
use crate::config::{Config, ConfigError};
use crate::flows::{FlowTable, Hashing};
use crate::partial::{Partial, Totals};
use crate::sections::Section;
use crate::stretch::{Opening, Place, Recorder, Stretch};
use crate::workers::Workers;

/// Packets whose flows are looked up together, so that their cache misses overlap.
const TOGETHER: usize = 64;
/// FIN, SYN, RST and ACK: of a pure acknowledgement, only the last is set.
const DECIDING_FLAGS: u8 = 0x17;
const ACK: u8 = 0x10;

/// A packet whose flow has yet to be looked up.
#[derive(Clone, Copy, Debug)]
struct Pending {
    key: FlowKey,
    hash: u64,
    time: u64,
    captured: u64,
    acknowledged: u32,
    bits: u8,
}

/// The facts of packets that can be found without knowing those before them. Several threads may each make
/// some, of parts of a trace; an [`Analyzer`] takes them in the order of the trace.
#[derive(Clone, Debug)]
pub struct Digest {
    settings: Reading,
    totals: Totals,
    /// The latest time seen.
    clock: u64,
    /// Times of all packets, those that are skipped included.
    times: Vec<u64>,
    in_order: bool,
    packets: Vec<Pending>,
}

/// The settings that reading a packet depends on.
#[derive(Clone, Copy, Debug)]
struct Reading {
    encapsulation: Encapsulation,
    hashing: Hashing,
}

impl Digest {
    /// Forgets all packets.
    pub fn clear(&mut self) {
        (self.totals, self.clock, self.in_order) = (Totals::default(), 0, true);
        self.times.clear();
        self.packets.clear();
    }

    /// Takes the next packet, as [`Analyzer::packet`] does.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.times.push(time_ns);
        self.in_order &= time_ns >= self.clock;
        self.clock = self.clock.max(time_ns);
        let read = self.settings.read(&mut self.totals, (time_ns, self.clock), link, original_len, data);
        if let Some(packet) = read {
            self.packets.push(packet);
        }
    }
}

impl Reading {
    /// Reads a packet that came at a time, by a clock that doesn't run backwards at another.
    #[inline(always)]
    fn read(
        self,
        totals: &mut Totals,
        (captured, time): (u64, u64),
        link: LinkType,
        original_len: u32,
        data: &[u8],
    ) -> Option<Pending> {
        totals.record(captured, original_len);
        let headers = match classify_with(link, data, self.encapsulation) {
            Ok(headers) => headers,
            Err(reason) => {
                skip(totals, reason);
                return None;
            }
        };
        let flags = headers.flags;
        totals.ipv6 += u64::from(flags.has(Flags::IPV6));
        totals.fragments += u64::from(flags.has(Flags::FRAGMENT));
        let mut bits = IN_IP;
        let mut acknowledged = 0;
        if headers.key.protocol() == TCP && !flags.has(Flags::FRAGMENT) {
            bits |= IN_TCP;
            if headers.tcp_flags & ACK != 0 {
                bits |= ACK_FLAG;
                if headers.tcp_flags & DECIDING_FLAGS == ACK
                    && let Some(segment) = tcp_segment(data, &headers)
                    && segment.payload_len == 0
                {
                    bits |= PURE_ACK;
                    acknowledged = segment.ack;
                }
            }
        }
        totals.ack_flags += u64::from(bits & ACK_FLAG != 0);
        totals.pure_acks += u64::from(bits & PURE_ACK != 0);
        let hash = self.hashing.hash(&headers.key);
        Some(Pending { key: headers.key, hash, time, captured, acknowledged, bits })
    }
}

#[cold]
fn skip(totals: &mut Totals, skip: Skip) {
    let skipped = &mut totals.skipped;
    let reason = match skip {
        Skip::NonIp => &mut skipped.non_ip,
        Skip::UnsupportedLinkType => &mut skipped.unsupported_link_type,
        Skip::Truncated => &mut skipped.truncated,
        Skip::Malformed => &mut skipped.malformed,
    };
    *reason += 1;
}

/// A TCP packet of a flow, as far as the next one depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    pub(crate) number: u32,
    /// A pure acknowledgement.
    pub(crate) pure: bool,
    /// There is such a packet.
    pub(crate) seen: bool,
}

impl Acknowledged {
    /// Returns true if it acknowledges more than the flow's packet before, both pure acknowledgements.
    #[inline]
    pub(crate) fn advances(self, previous: Self) -> bool {
        let ahead = (1..1 << 31).contains(&self.number.wrapping_sub(previous.number));
        self.pure & previous.pure & ahead
    }
}

/// Analyses one trace, fed packet by packet in the order of the file.
#[derive(Debug)]
pub struct Analyzer {
    pub(crate) config: Config,
    reading: Reading,
    pub(crate) totals: Totals,
    /// The latest time seen.
    pub(crate) clock: u64,
    pending: Vec<Pending>,
    pub(crate) table: FlowTable,
    /// By the flow that TCP packets without ports share with fragments: the flow of these packets alone.
    pub(crate) portless: HashMap<u32, u32>,
    pub(crate) acknowledged: Vec<Acknowledged>,
    /// Of a stretch: the first TCP packets of flows.
    first_acknowledged: Vec<Acknowledged>,
    block: Block,
    pub(crate) workers: Workers,
    /// Takes the blocks in place of the workers.
    recorder: Option<Box<Recorder>>,
}

impl Analyzer {
    /// An analysis that has seen no packet; starts the threads that the configuration asks for.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of its range.
    pub fn new(config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        let burst = u16::try_from(config.burst).map_err(|_| ConfigError::Burst(config.burst))?;
        let workers = Workers::new(&config, burst);
        let table = FlowTable::new();
        Ok(Self {
            reading: Reading { encapsulation: config.encapsulation, hashing: table.hashing() },
            config,
            totals: Totals::default(),
            clock: 0,
            pending: Vec::with_capacity(TOGETHER),
            table,
            portless: HashMap::new(),
            acknowledged: Vec::new(),
            first_acknowledged: Vec::new(),
            block: workers.empty_block(),
            workers,
            recorder: None,
        })
    }

    /// The same, of a stretch of a trace.
    pub(crate) fn recording(config: Config, opening: Opening) -> Result<Self, ConfigError> {
        Self::with(config, |config, burst| Recorder::new(config, burst, opening))
    }

    /// The same, of a section of a trace that others come before.
    pub(crate) fn of_section(config: Config) -> Result<Self, ConfigError> {
        Self::with(config, Recorder::of_section)
    }

    fn with(config: Config, recorder: impl Fn(&Config, u16) -> Recorder) -> Result<Self, ConfigError> {
        config.validate()?;
        let burst = u16::try_from(config.burst).map_err(|_| ConfigError::Burst(config.burst))?;
        let recorder = Some(Box::new(recorder(&config, burst)));
        let idle = Config { windows_ns: Vec::new(), switch_batches: Vec::new(), ..config.clone() };
        Ok(Self { config, recorder, ..Self::new(idle)? })
    }

    /// Takes the next packet of the file: `data` is what was captured of its `original_len` bytes at
    /// `time_ns` nanoseconds (since any epoch), beginning with the header that `link` says.
    ///
    /// A packet whose time is earlier than that of one before it is counted (`clock_backwards`); distances in
    /// time take its time as it is, windows take the latest time seen, as the reframe stage does.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.totals.clock_backwards += u64::from(time_ns < self.clock);
        self.clock = self.clock.max(time_ns);
        let read = self.reading.read(&mut self.totals, (time_ns, self.clock), link, original_len, data);
        if let Some(packet) = read {
            self.pending.push(packet);
            if self.pending.len() == TOGETHER {
                self.number_pending();
            }
        } else if self.recorder.is_some() {
            self.skipped(time_ns);
        }
    }

    /// Hands a packet without a flow on, if the recorder wants it.
    #[cold]
    fn skipped(&mut self, captured: u64) {
        if self.recorder.as_ref().is_some_and(|recorder| recorder.keeps()) {
            self.number_pending();
            self.block.rows.push(Row { time: self.clock, captured, flow: NO_FLOW, bits: 0 });
            if self.block.rows.len() >= self.workers.rows() {
                self.run_block();
            }
        }
    }

    /// Nothing yet, for packets that are to be [added](Self::add).
    #[must_use]
    pub fn digest(&self) -> Digest {
        let (settings, totals) = (self.reading, Totals::default());
        Digest { settings, totals, clock: 0, times: Vec::new(), in_order: true, packets: Vec::new() }
    }

    /// Takes the next packets of the file, which a digest of [this analyzer's](Self::digest) was made of: the
    /// same as to give it [packet](Self::packet) by packet.
    pub fn add(&mut self, digest: &Digest) {
        self.number_pending();
        self.totals.merge(&digest.totals);
        let before = self.clock;
        self.clock = before.max(digest.clock);
        if digest.in_order && digest.times.first().is_none_or(|first| *first >= before) {
            digest.packets.chunks(TOGETHER).for_each(|packets| self.number(packets));
            return;
        }
        let mut clock = before;
        for time in &digest.times {
            self.totals.clock_backwards += u64::from(*time < clock);
            clock = clock.max(*time);
        }
        for packets in digest.packets.chunks(TOGETHER) {
            self.pending.extend(packets.iter().map(|p| Pending { time: p.time.max(before), ..*p }));
            self.number_pending();
        }
    }

    /// Moves the pending packets to the block, and a full block to the analyses.
    fn number_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        self.number(&pending);
        pending.clear();
        self.pending = pending;
    }

    fn number(&mut self, pending: &[Pending]) {
        let hashes = pending.iter().map(|p| (p.hash, matches!(p.key, FlowKey::Narrow(_))));
        black_box(self.table.touch(hashes));
        for packet in pending {
            let flow = self.table.number(&packet.key, packet.hash);
            if packet.bits & IN_TCP == 0 {
                self.push(packet, flow, packet.bits);
            } else if has_stream(&packet.key) {
                let bits = packet.bits | self.advances(packet, flow);
                self.push(packet, flow, bits);
            } else {
                self.push(packet, flow, IN_IP);
                let table = &mut self.table;
                let alone = *self.portless.entry(flow).or_insert_with(|| table.spare_number());
                let bits = packet.bits & !IN_IP | self.advances(packet, alone);
                self.push(packet, alone, bits);
            }
            if self.block.rows.len() >= self.workers.rows() {
                self.run_block();
            }
        }
    }

    #[inline]
    fn push(&mut self, packet: &Pending, flow: u32, bits: u8) {
        self.block.rows.push(Row { time: packet.time, captured: packet.captured, flow, bits });
    }

    /// [`ADVANCES`] if the TCP packet acknowledges more than the flow's previous one, both pure
    /// acknowledgements.
    #[inline]
    fn advances(&mut self, packet: &Pending, flow: u32) -> u8 {
        if self.acknowledged.len() <= flow as usize {
            self.acknowledged.resize(flow as usize + 1, Acknowledged::default());
        }
        let Some(latest) = self.acknowledged.get_mut(flow as usize) else { return 0 };
        let now = Acknowledged { number: packet.acknowledged, pure: packet.bits & PURE_ACK != 0, seen: true };
        let previous = std::mem::replace(latest, now);
        if !previous.seen && self.recorder.is_some() {
            self.first_acknowledged.resize(self.acknowledged.len(), Acknowledged::default());
            if let Some(first) = self.first_acknowledged.get_mut(flow as usize) {
                *first = now;
            }
        }
        if now.advances(previous) { ADVANCES } else { 0 }
    }

    fn run_block(&mut self) {
        self.block.flows = self.table.numbers();
        match &mut self.recorder {
            None => self.workers.run(&mut self.block),
            Some(recorder) => {
                recorder.block(&self.block);
                self.block.rows.clear();
            }
        }
    }

    /// Packets that are kept so far for who comes before, while further ones will be.
    pub(crate) fn keeping(&self) -> usize {
        self.recorder.as_ref().map_or(0, |recorder| recorder.keeping())
    }

    /// Hands all packets that wait to the analyses.
    pub(crate) fn flush(&mut self) {
        self.number_pending();
        self.run_block();
    }

    /// Ends a section whose first record came at `opening`.
    pub(crate) fn finish_section(mut self, opening: u64) -> Section {
        self.flush();
        let Self { config, totals, clock, table, portless, acknowledged, first_acknowledged, .. } = self;
        let recorder = self.recorder.unwrap_or_else(|| Box::new(Recorder::of_section(&config, 1)));
        let acknowledged = [first_acknowledged, acknowledged];
        let recorded = recorder.finish_section();
        Section { totals, opening, clock, table, portless, acknowledged, recorded }
    }

    /// Ends a stretch whose first record came at `opening`.
    pub(crate) fn finish_stretch(mut self, place: Place, opening: u64) -> Stretch {
        self.flush();
        let Self { config, totals, clock, table, portless, acknowledged, first_acknowledged, .. } = self;
        let recorder = self.recorder.unwrap_or_else(|| Box::new(Recorder::new(&config, 1, Opening::Trace)));
        let acknowledged = [first_acknowledged.as_slice(), acknowledged.as_slice()];
        recorder.finish(&config, place, (totals, opening, clock), (table, portless), acknowledged)
    }

    /// Ends the trace: everything that a window still holds leaves at its own deadline.
    ///
    /// # Panics
    /// Never of itself; a panic in another thread is passed on.
    #[must_use]
    pub fn finish(mut self) -> Partial {
        self.flush();
        let (distances, trains) = self.workers.finish();
        Partial::new(&self.config, self.totals, distances, trains, self.table, &self.portless)
    }
}

/// Says that all packets of a flow are TCP packets with ports, none of them a fragment: then they count in
/// both sequences, or in none.
pub(crate) fn has_stream(key: &FlowKey) -> bool {
    key.protocol() == TCP && (key.src_port() != 0 || key.dst_port() != 0)
}
