//! Makes a stretch of packets.

use std::collections::HashMap;

use slipstream_stats::SignedHistogram;

use super::certain::Certain;
use super::order::{Order, Recording};
use super::{FlowPart, Opening, Place, Stretch, Window};
use crate::analyzer::Acknowledged;
use crate::block::{Block, CLASS, IN_IP, IN_TCP, NO_FLOW, Row};
use crate::config::Config;
use crate::distances::{Flow as Latest, difference};
use crate::flows::FlowTable;
use crate::partial::{Settings, Totals};
use crate::trains::Trains;

/// A holding window, with what tells when it is certain.
#[derive(Debug)]
struct Holding {
    trains: Trains,
    certain: Option<Certain>,
    window: Window,
}

impl Holding {
    /// Takes a packet, before which the head has `rows` and the time is `before`; the head is kept on, or not
    /// (`ever`), once all is certain.
    fn head_row(&mut self, row: Row, rows: usize, before: u64, ever: bool) {
        if let Some(certain) = &mut self.certain {
            if !ever && row.time > before && certain.at(row.time) {
                self.trains.settle(row.time);
                self.window.met_at = row.time;
                self.window.meeting = self.trains.held();
                self.trains.take_body();
                self.window.certain = Some(rows);
                self.certain = None;
            } else {
                certain.packet(&row);
            }
        }
        self.trains.step(row);
    }

    fn rows(&mut self, rows: &[Row], flows: usize) {
        let mut rows = rows;
        let noting = !self.trains.can_take(rows);
        while noting
            && !self.trains.knows_first()
            && let Some((row, later)) = rows.split_first()
        {
            if row.flow != NO_FLOW {
                self.trains.step(*row);
            }
            rows = later;
        }
        // Nothing without a flow comes here any more but in the block in which the head ended.
        for rows in rows.split(|row| row.flow == NO_FLOW) {
            self.trains.rows(rows, flows);
        }
    }

    fn finish(mut self) -> Window {
        if self.certain.is_none() {
            self.window.end = self.trains.held();
            self.window.body = self.trains.take_body();
        }
        self.window
    }
}

/// The first packet of a flow: its positions in either sequence, from 1, and its time as captured.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct First {
    pub(crate) ip: u64,
    pub(crate) tcp: u64,
    pub(crate) captured: u64,
    /// The sequences in which the flow counts.
    pub(crate) class: u8,
}

/// The parts that a section is made of, beside its flows' keys and what was counted of all records.
#[derive(Debug)]
pub(crate) struct Recorded {
    pub(crate) latest: Vec<Latest>,
    pub(crate) first: Vec<First>,
    pub(crate) ip: Order,
    pub(crate) tcp: Order,
    pub(crate) temporal: [SignedHistogram; CLASS as usize + 1],
    pub(crate) head: Vec<Row>,
    pub(crate) kept: bool,
    pub(crate) windows: Vec<Window>,
}

/// Takes blocks in place of the analyses of a whole trace.
#[derive(Debug)]
pub(crate) struct Recorder {
    opening: Opening,
    /// Of each flow, the latest packet, and the first.
    latest: Vec<Latest>,
    first: Vec<First>,
    ip: Recording,
    tcp: Recording,
    temporal: [SignedHistogram; CLASS as usize + 1],
    head: Vec<Row>,
    /// The head goes on.
    keeps: bool,
    /// Time of the latest packet with a flow.
    before: u64,
    windows: Vec<Holding>,
}

impl Recorder {
    pub(crate) fn new(config: &Config, burst: u16, opening: Opening) -> Self {
        let opens = opening == Opening::Trace;
        let holding = |length: &u64| Holding {
            trains: Trains::new(*length, burst),
            certain: (!opens).then(|| Certain::new(*length, burst)),
            window: Window::new(burst, opens),
        };
        Self {
            opening,
            latest: Vec::new(),
            first: Vec::new(),
            ip: Recording::new(&config.switch_batches),
            tcp: Recording::new(&config.switch_batches),
            temporal: Default::default(),
            head: Vec::new(),
            keeps: !opens,
            before: 0,
            windows: config.windows_ns.iter().map(holding).collect(),
        }
    }

    /// The same, of a section that others come before.
    pub(crate) fn of_section(config: &Config, burst: u16) -> Self {
        let (ip, tcp) = (Recording::noting(), Recording::noting());
        Self { ip, tcp, ..Self::new(config, burst, Opening::Middle) }
    }

    /// Packets that are kept so far, while further ones will be.
    pub(crate) fn keeping(&self) -> usize {
        if self.keeps { self.head.len() } else { 0 }
    }

    /// Returns true while packets without a flow are wanted, too.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    pub(crate) fn block(&mut self, block: &Block) {
        if self.latest.len() < block.flows {
            self.latest.resize(block.flows, Latest::default());
            self.first.resize(block.flows, First::default());
        }
        for row in block.rows.iter().filter(|row| row.flow != NO_FLOW) {
            self.count(row);
        }
        let mut rows = block.rows.as_slice();
        while self.keeps
            && let Some((row, later)) = rows.split_first()
        {
            self.head_row(*row);
            rows = later;
        }
        for window in &mut self.windows {
            window.rows(rows, block.flows);
        }
    }

    fn head_row(&mut self, row: Row) {
        if row.flow != NO_FLOW {
            let ever = self.opening == Opening::MiddleKept;
            for window in &mut self.windows {
                window.head_row(row, self.head.len(), self.before, ever);
            }
            self.before = row.time;
        }
        self.keeps = self.opening == Opening::MiddleKept || self.windows.iter().any(|w| w.certain.is_some());
        if self.keeps {
            self.head.push(row);
        }
    }

    #[inline(always)]
    fn count(&mut self, row: &Row) {
        let Row { captured, flow: number, bits, .. } = *row;
        let Some(flow) = self.latest.get_mut(number as usize) else { return };
        if bits & IN_IP != 0 {
            flow.ip_position = self.ip.packet(number, flow.ip_position);
        }
        if bits & IN_TCP != 0 {
            flow.tcp_position = self.tcp.packet(number, flow.tcp_position);
        }
        if flow.packets == 0 {
            let (ip, tcp, class) = (flow.ip_position, flow.tcp_position, bits & CLASS);
            if let Some(first) = self.first.get_mut(number as usize) {
                *first = First { ip, tcp, captured, class };
            }
        } else if let Some(temporal) = self.temporal.get_mut(usize::from(bits & CLASS)) {
            temporal.record(difference(captured, flow.captured));
        }
        flow.captured = captured;
        flow.packets += 1;
    }

    /// Ends a section.
    pub(crate) fn finish_section(self) -> Recorded {
        Recorded {
            latest: self.latest,
            first: self.first,
            ip: self.ip.finish(),
            tcp: self.tcp.finish(),
            temporal: self.temporal,
            head: self.head,
            kept: self.keeps,
            windows: self.windows.into_iter().map(Holding::finish).collect(),
        }
    }

    /// `acknowledged`: of each flow, its first and its latest TCP packet.
    pub(crate) fn finish(
        self,
        config: &Config,
        place: Place,
        (totals, opening, clock): (Totals, u64, u64),
        (table, twins): (FlowTable, HashMap<u32, u32>),
        acknowledged: [&[Acknowledged]; 2],
    ) -> Stretch {
        let part = |number: usize| {
            let latest = self.latest.get(number).copied().unwrap_or_default();
            let first = self.first.get(number).copied().unwrap_or_default();
            FlowPart {
                class: first.class,
                packets: latest.packets,
                ip: [first.ip, latest.ip_position],
                tcp: [first.tcp, latest.tcp_position],
                captured: [first.captured, latest.captured],
                ack: acknowledged.map(|acks| acks.get(number).copied().unwrap_or_default()),
            }
        };
        let flows = (0..table.numbers()).map(part).collect();
        Stretch {
            settings: Settings::of(config),
            place,
            opens: self.opening == Opening::Trace,
            totals,
            opening,
            clock,
            table,
            twins,
            flows,
            ip: self.ip.finish(),
            tcp: self.tcp.finish(),
            temporal: self.temporal,
            head: self.head,
            kept: self.keeps,
            windows: self.windows.into_iter().map(Holding::finish).collect(),
        }
    }
}
