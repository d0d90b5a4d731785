//! Stretches of a trace: results that become, joined in order, exactly those of one pass over all of it.
//!
//! A [`Partial`] is of a whole trace: no distance and no train spans two of them. A [`Stretch`] is of any
//! consecutive packets. What it knows without its neighbours is counted; what depends on those before it is
//! kept until they are known: of each flow its first and last packets; the switches for each place in a batch
//! at which the stretch may begin ([`order`]); and its first packets, as far as what was held before may
//! matter to a holding window ([`certain`]), usually a few windows. Where the next stretch is joined, the
//! windows go on from what is held at the end of the one before over these packets; from there on, what was
//! counted holds.
//!
//! [`record`] makes a stretch of packets, [`join`] one of two, [`mod@format`] one of bytes.

mod certain;
mod format;
mod join;
mod order;
mod record;

use std::collections::HashMap;

use slipstream_stats::SignedHistogram;
use slipstream_wire::{FlowKey, LinkType};

use crate::analyzer::{Acknowledged, Analyzer, has_stream};
use crate::block::{CLASS, IN_IP, IN_TCP, NO_FLOW, Row};
use crate::config::{Config, ConfigError};
use crate::flows::FlowTable;
use crate::partial::{FlowPackets, MergeError, Partial, SequenceTotals, Settings, Totals};
use crate::trains::{Body, Held, Trains};
use order::Order;

pub use format::StretchError;
pub(crate) use join::{late, rows_behind, through};
pub(crate) use order::{Note, Order as OrderOfStretch};
pub(crate) use record::{Recorded, Recorder};

/// The largest batch in which switches are counted in a stretch.
pub(crate) const MAX_BATCH: u32 = 1 << 16;

/// The place of a stretch in its trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Name of the trace.
    pub file: String,
    /// Byte at which its first record begins; 0 for the whole of a trace.
    pub from: u64,
    /// Byte behind its last record, where the next stretch begins; 0 if that is not known.
    pub to: u64,
    /// A number for what records before `from` say of those behind it (interfaces of pcapng); 0 if unknown.
    pub context_from: u64,
    /// The same at `to`.
    pub context_to: u64,
    /// Byte at which the trace is damaged; it ends there.
    pub truncated_at_byte: Option<u64>,
    /// The trace ends with it, or goes on.
    pub ending: Ending,
}

/// The packets or the end that a stretch has behind it in its trace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Ending {
    /// That is not known.
    #[default]
    Unknown,
    /// Another stretch.
    Continues,
    /// Nothing: the trace ends with it.
    Ends,
}

/// The part of its trace that a stretch is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opening {
    /// It begins the trace.
    Trace,
    /// Packets may come before; as few as needed are kept.
    Middle,
    /// Packets may come before; all packets are kept, 5 to 10 bytes each, so that it joins whatever came
    /// before.
    MiddleKept,
}

impl Opening {
    /// Of a part that begins the trace or not, all of whose packets are to be kept or not.
    #[must_use]
    pub const fn new(begins: bool, keep: bool) -> Self {
        match (begins, keep) {
            (true, _) => Self::Trace,
            (false, false) => Self::Middle,
            (false, true) => Self::MiddleKept,
        }
    }
}

/// A packet's acknowledgement, as far as the next one depends on it.
type Ack = Acknowledged;

/// A flow in a stretch: its first and last packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlowPart {
    /// The sequences in which it counts.
    pub(crate) class: u8,
    pub(crate) packets: u64,
    /// Positions in either sequence, from 1; 0 where it doesn't count.
    pub(crate) ip: [u64; 2],
    pub(crate) tcp: [u64; 2],
    /// Times as captured.
    pub(crate) captured: [u64; 2],
    pub(crate) ack: [Ack; 2],
}

/// One holding window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// Rows of the head after which it no longer matters what was held before. None: all rows are there.
    pub(crate) certain: Option<usize>,
    /// Time of the packet behind them.
    pub(crate) met_at: u64,
    /// The batches that are held when it comes.
    pub(crate) meeting: Held,
    /// The batches that left behind it.
    pub(crate) body: Body,
    /// The batches that are held at the end.
    pub(crate) end: Held,
}

/// The result of consecutive packets of a trace.
#[derive(Clone, Debug)]
pub struct Stretch {
    pub(crate) settings: Settings,
    pub(crate) place: Place,
    /// It begins the trace.
    pub(crate) opens: bool,
    pub(crate) totals: Totals,
    /// Time of the first record.
    pub(crate) opening: u64,
    /// The latest time.
    pub(crate) clock: u64,
    pub(crate) table: FlowTable,
    /// By the flow that TCP packets without ports share with fragments: the flow of these packets alone.
    pub(crate) twins: HashMap<u32, u32>,
    /// By number.
    pub(crate) flows: Vec<FlowPart>,
    pub(crate) ip: Order,
    pub(crate) tcp: Order,
    /// By class.
    pub(crate) temporal: [SignedHistogram; CLASS as usize + 1],
    /// The first packets; those without a flow have [`NO_FLOW`] and no bits.
    pub(crate) head: Vec<Row>,
    /// The head has every packet.
    pub(crate) kept: bool,
    pub(crate) windows: Vec<Window>,
}

/// Analyses a stretch of a trace, fed packet by packet in the order of the file.
///
/// ```
/// use slipstream_trace::{Config, Opening, Place, StretchAnalyzer};
/// use slipstream_wire::LinkType;
///
/// let stretch = |opening, time| {
///     let mut analyzer = StretchAnalyzer::new(Config::default(), opening)?;
///     analyzer.packet(time, LinkType::Ethernet, 60, &[0; 60]);
///     Ok::<_, slipstream_trace::ConfigError>(analyzer.finish(Place::default()))
/// };
/// let mut all = stretch(Opening::Trace, 1_000)?;
/// all.join(&stretch(Opening::Middle, 2_000)?)?;
/// assert_eq!(all.into_partial().report().records, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct StretchAnalyzer {
    analyzer: Analyzer,
    /// Time of the first record.
    opening: Option<u64>,
}

impl StretchAnalyzer {
    /// An analysis that has seen no packet. It works on the caller's thread alone, whatever the configuration
    /// says.
    ///
    /// # Errors
    /// [`ConfigError`] where a setting is out of its range; batches for flow switches have 65,536 packets at
    /// most.
    pub fn new(config: Config, opening: Opening) -> Result<Self, ConfigError> {
        if let Some(size) = config.switch_batches.iter().find(|size| **size > MAX_BATCH) {
            return Err(ConfigError::StretchBatch(*size));
        }
        let analyzer = Analyzer::recording(Config { threads: 1, ..config }, opening)?;
        Ok(Self { analyzer, opening: None })
    }

    /// Takes the next packet: see [`Analyzer::packet`].
    #[inline]
    pub fn packet(&mut self, time_ns: u64, link: LinkType, original_len: u32, data: &[u8]) {
        self.opening.get_or_insert(time_ns);
        self.analyzer.packet(time_ns, link, original_len, data);
    }

    /// Ends the stretch.
    #[must_use]
    pub fn finish(self, place: Place) -> Stretch {
        self.analyzer.finish_stretch(place, self.opening.unwrap_or(0))
    }
}

impl Stretch {
    /// Its place in the trace.
    #[must_use]
    pub fn place(&self) -> &Place {
        &self.place
    }

    /// The settings that it was made with.
    #[must_use]
    pub fn config(&self) -> Config {
        let Settings { windows_ns, burst, switch_batches, top, encapsulation } = self.settings.clone();
        Config { windows_ns, burst, switch_batches, top, encapsulation, threads: 1 }
    }

    /// Packets in it, whatever they are.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.totals.records
    }

    /// Returns true if no packet comes before it in its trace.
    #[must_use]
    pub fn opens(&self) -> bool {
        self.opens
    }

    /// Packets that are kept as they are, since what came before them may matter.
    #[must_use]
    pub fn kept_packets(&self) -> usize {
        self.head.len()
    }

    /// Checks that nothing of its trace is missing before or behind it, as far as that is known.
    ///
    /// # Errors
    /// [`MergeError::First`], [`MergeError::Last`].
    pub fn complete(&self) -> Result<(), MergeError> {
        if !self.opens {
            return Err(MergeError::First { begins: self.place.from });
        }
        let goes_on = self.place.ending == Ending::Continues && self.place.truncated_at_byte.is_none();
        if goes_on { Err(MergeError::Last { ends: self.place.to }) } else { Ok(()) }
    }

    /// Returns true for a part of a trace in which nothing was left for it: it has no place in the order of
    /// parts, and may be left out.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        !self.opens && self.totals.records == 0 && self.place.from == u64::MAX
    }

    /// The result of a trace that is this stretch: what is held at its end leaves at its own deadline.
    #[must_use]
    pub fn into_partial(self) -> Partial {
        let count = |sequence: u8| self.flows.iter().filter(|f| f.class & sequence != 0).count() as u64;
        let temporal = |sequence: u8| {
            let mut all = SignedHistogram::new();
            let parts = self.temporal.iter().enumerate();
            parts
                .filter(|(class, _)| class & usize::from(sequence) != 0)
                .for_each(|(_, part)| all.merge(part));
            all
        };
        let mut ip = SequenceTotals { order: self.ip.totals(count(IN_IP)), trains: Vec::new() };
        let mut tcp = SequenceTotals { order: self.tcp.totals(count(IN_TCP)), trains: Vec::new() };
        (ip.order.temporal, tcp.order.temporal) = (temporal(IN_IP), temporal(IN_TCP));
        let burst = self.burst();
        for (window, length) in self.windows.iter().zip(&self.settings.windows_ns) {
            let (of_ip, of_tcp) = window.begun(*length, burst, &self.head, self.opens).finish();
            ip.trains.push(of_ip);
            tcp.trains.push(of_tcp);
        }
        let size = |flow: u32| self.flows.get(flow as usize).map_or(0, |f| f.packets);
        let mut packets = vec![FlowPackets::default(); self.flows.len()];
        for (key, flow) in self.table.iter() {
            let tcp = if has_stream(&key) {
                size(flow)
            } else {
                self.twins.get(&flow).map_or(0, |twin| size(*twin))
            };
            if let Some(p) = packets.get_mut(flow as usize) {
                *p = FlowPackets { ip: size(flow), tcp };
            }
        }
        Partial { settings: self.settings, totals: self.totals, ip, tcp, table: self.table, packets }
    }

    fn burst(&self) -> u16 {
        u16::try_from(self.settings.burst).unwrap_or(u16::MAX)
    }

    /// Every flow in order of its number: its key, or the flow of which it has the TCP packets alone.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        keys(&self.table, &self.twins, self.flows.len())
    }
}

/// The first so many flows in order of their numbers: their keys, or the flow of which one has the TCP
/// packets alone.
pub(crate) fn keys<'a>(
    table: &'a FlowTable,
    twins: &HashMap<u32, u32>,
    flows: usize,
) -> impl Iterator<Item = Key> + use<'a> {
    let mut keys = table.in_order().peekable();
    let mut twins: Vec<(u32, u32)> = twins.iter().map(|(of, twin)| (*twin, *of)).collect();
    twins.sort_unstable();
    let mut twins = twins.into_iter().peekable();
    (0..flows as u32).map_while(move |number| {
        let key = keys.next_if(|(_, n)| *n == number).map(|(key, _)| Key::Flow(key));
        key.or_else(|| twins.next_if(|(n, _)| *n == number).map(|(_, of)| Key::Twin(of)))
    })
}

/// The flow that has a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    Flow(FlowKey),
    /// The TCP packets without ports of the flow with this number.
    Twin(u32),
}

impl Window {
    /// Of a stretch that has no packets yet.
    pub(crate) fn new(burst: u16, opens: bool) -> Self {
        let (meeting, end) = (Held::default(), Held::default());
        Self { certain: opens.then_some(0), met_at: 0, meeting, body: Body::new(burst), end }
    }

    /// The rows up to the meeting, or all.
    pub(crate) fn head<'a>(&self, head: &'a [Row]) -> &'a [Row] {
        head.get(..self.certain.unwrap_or(head.len())).unwrap_or(head)
    }

    /// The window over a trace that begins with this stretch.
    fn begun(&self, length: u64, burst: u16, head: &[Row], opens: bool) -> Trains {
        if opens {
            return Trains::resumed(length, burst, &self.end, self.body.clone());
        }
        let mut trains = Trains::new(length, burst);
        self.head(head).iter().filter(|row| row.flow != NO_FLOW).for_each(|row| trains.step(*row));
        if self.certain.is_none() {
            return trains;
        }
        trains.settle(self.met_at);
        let mut body = trains.take_body();
        body.append(&self.body);
        Trains::resumed(length, burst, &self.end, body)
    }
}
