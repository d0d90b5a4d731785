//! Entry of packets: reads a packet's headers, finds its flow, and hands blocks of packets to the analyses.

use std::collections::HashMap;
use std::hint::black_box;

use slipstream_wire::{Encapsulation, Flags, FlowKey, LinkType, Skip, classify, classify_with, tcp_segment};

use crate::block::{ACK_FLAG, ADVANCES, Block, IN_IP, IN_TCP, PURE_ACK, Row};
use crate::config::{Config, ConfigError};
use crate::flows::FlowTable;
use crate::partial::{Partial, Totals};
use crate::workers::Workers;

/// Packets whose flows are looked up together, so that their cache misses overlap.
const TOGETHER: usize = 64;
const TCP: u8 = 6;
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

/// The latest TCP packet of a flow.
#[derive(Clone, Copy, Debug, Default)]
struct Acknowledged {
    number: u32,
    pure: bool,
}

/// Analyses one trace, fed packet by packet in the order of the file.
#[derive(Debug)]
pub struct Analyzer {
    config: Config,
    totals: Totals,
    /// The latest time seen.
    clock: u64,
    pending: Vec<Pending>,
    table: FlowTable,
    /// By the flow that TCP packets without ports share with fragments: the flow of these packets alone.
    portless: HashMap<u32, u32>,
    acknowledged: Vec<Acknowledged>,
    block: Block,
    workers: Workers,
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
        Ok(Self {
            config,
            totals: Totals::default(),
            clock: 0,
            pending: Vec::with_capacity(TOGETHER),
            table: FlowTable::new(),
            portless: HashMap::new(),
            acknowledged: Vec::new(),
            block: workers.empty_block(),
            workers,
        })
    }

    /// Takes the next packet of the file: `data` is what was captured of its `original_len` bytes at
    /// `time_ns` nanoseconds (since any epoch), beginning with the header that `link` says.
    ///
    /// A packet whose time is earlier than that of one before it is counted (`clock_backwards`); distances in
    /// time take its time as it is, windows take the latest time seen, as the reframe stage does.
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.totals.record(time_ns, original_len);
        self.totals.clock_backwards += u64::from(time_ns < self.clock);
        self.clock = self.clock.max(time_ns);
        let headers = match self.config.encapsulation {
            Encapsulation::Outer => classify(link, data),
            inner => classify_with(link, data, inner),
        };
        let headers = match headers {
            Ok(headers) => headers,
            Err(skip) => return self.skip(skip),
        };
        let flags = headers.flags;
        self.totals.ipv6 += u64::from(flags.has(Flags::IPV6));
        self.totals.fragments += u64::from(flags.has(Flags::FRAGMENT));
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
        self.totals.ack_flags += u64::from(bits & ACK_FLAG != 0);
        self.totals.pure_acks += u64::from(bits & PURE_ACK != 0);
        let hash = self.table.hash(&headers.key);
        self.pending.push(Pending {
            key: headers.key,
            hash,
            time: self.clock,
            captured: time_ns,
            acknowledged,
            bits,
        });
        if self.pending.len() == TOGETHER {
            self.number_pending();
        }
    }

    #[cold]
    fn skip(&mut self, skip: Skip) {
        let skipped = &mut self.totals.skipped;
        let reason = match skip {
            Skip::NonIp => &mut skipped.non_ip,
            Skip::UnsupportedLinkType => &mut skipped.unsupported_link_type,
            Skip::Truncated => &mut skipped.truncated,
            Skip::Malformed => &mut skipped.malformed,
        };
        *reason += 1;
    }

    /// Moves the pending packets to the block, and a full block to the analyses.
    fn number_pending(&mut self) {
        let mut pending = std::mem::take(&mut self.pending);
        let hashes = pending.iter().map(|p| (p.hash, matches!(p.key, FlowKey::Narrow(_))));
        black_box(self.table.touch(hashes));
        for packet in &pending {
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
        pending.clear();
        self.pending = pending;
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
        let now = Acknowledged { number: packet.acknowledged, pure: packet.bits & PURE_ACK != 0 };
        let previous = std::mem::replace(latest, now);
        let ahead = (1..1 << 31).contains(&now.number.wrapping_sub(previous.number));
        if now.pure & previous.pure & ahead { ADVANCES } else { 0 }
    }

    fn run_block(&mut self) {
        self.block.flows = self.table.numbers();
        self.workers.run(&mut self.block);
    }

    /// Ends the trace: everything that a window still holds leaves at its own deadline.
    ///
    /// # Panics
    /// Never of itself; a panic in another thread is passed on.
    #[must_use]
    pub fn finish(mut self) -> Partial {
        self.number_pending();
        self.run_block();
        let (distances, trains) = self.workers.finish();
        Partial::new(&self.config, self.totals, distances, trains, self.table, &self.portless)
    }
}

/// Says that all packets of a flow are TCP packets with ports, none of them a fragment: then they count in
/// both sequences, or in none.
pub(crate) fn has_stream(key: &FlowKey) -> bool {
    key.protocol() == TCP && (key.src_port() != 0 || key.dst_port() != 0)
}
