//! Makes a stretch of packets.

use std::collections::HashMap;

use slipstream_stats::SignedHistogram;

use super::certain::Certain;
use super::order::Recording;
use super::{FlowPart, Opening, Place, Stretch, Window};
use crate::analyzer::Acknowledged;
use crate::block::{Block, CLASS, IN_IP, IN_TCP, NO_FLOW, Row};
use crate::config::Config;
use crate::distances::difference;
use crate::flows::FlowTable;
use crate::partial::{Settings, Totals};
use crate::trains::Trains;

/// A holding window, with what tells when it is certain.
#[derive(Debug)]
struct Recorded {
    trains: Trains,
    certain: Option<Certain>,
    window: Window,
}

impl Recorded {
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
        while !self.trains.knows_first()
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

/// Takes blocks in place of the analyses of a whole trace.
#[derive(Debug)]
pub(crate) struct Recorder {
    opening: Opening,
    flows: Vec<FlowPart>,
    ip: Recording,
    tcp: Recording,
    temporal: [SignedHistogram; CLASS as usize + 1],
    head: Vec<Row>,
    /// The head goes on.
    keeps: bool,
    /// Time of the latest packet with a flow.
    before: u64,
    windows: Vec<Recorded>,
}

impl Recorder {
    pub(crate) fn new(config: &Config, burst: u16, opening: Opening) -> Self {
        let opens = opening == Opening::Trace;
        let recorded = |length: &u64| Recorded {
            trains: Trains::new(*length, burst),
            certain: (!opens).then(|| Certain::new(*length, burst)),
            window: Window::new(burst, opens),
        };
        Self {
            opening,
            flows: Vec::new(),
            ip: Recording::new(&config.switch_batches),
            tcp: Recording::new(&config.switch_batches),
            temporal: Default::default(),
            head: Vec::new(),
            keeps: !opens,
            before: 0,
            windows: config.windows_ns.iter().map(recorded).collect(),
        }
    }

    /// Returns true while packets without a flow are wanted, too.
    pub(crate) fn keeps(&self) -> bool {
        self.keeps
    }

    pub(crate) fn block(&mut self, block: &Block) {
        if self.flows.len() < block.flows {
            self.flows.resize(block.flows, FlowPart::default());
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

    #[inline]
    fn count(&mut self, row: &Row) {
        let Row { captured, flow: number, bits, .. } = *row;
        let Some(flow) = self.flows.get_mut(number as usize) else { return };
        let first = flow.packets == 0;
        if bits & IN_IP != 0 {
            flow.ip[1] = self.ip.packet(number, flow.ip[1]);
        }
        if bits & IN_TCP != 0 {
            flow.tcp[1] = self.tcp.packet(number, flow.tcp[1]);
        }
        if first {
            flow.class = bits & CLASS;
            (flow.ip[0], flow.tcp[0], flow.captured[0]) = (flow.ip[1], flow.tcp[1], captured);
        } else if let Some(temporal) = self.temporal.get_mut(usize::from(bits & CLASS)) {
            temporal.record(difference(captured, flow.captured[1]));
        }
        flow.captured[1] = captured;
        flow.packets += 1;
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
        let mut flows = self.flows;
        flows.resize(table.numbers(), FlowPart::default());
        for (number, flow) in flows.iter_mut().enumerate() {
            flow.ack = acknowledged.map(|acks| acks.get(number).copied().unwrap_or_default());
        }
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
            windows: self.windows.into_iter().map(Recorded::finish).collect(),
        }
    }
}
