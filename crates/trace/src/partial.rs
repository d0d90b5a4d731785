//! The counts of one trace, or of several together, before any ratio is computed.

use std::collections::HashMap;

use slipstream_wire::{Encapsulation, FlowKey};
use thiserror::Error;

use crate::analyzer::has_stream;
use crate::config::Config;
use crate::distances::{Distances, OrderTotals};
use crate::flows::FlowTable;
use crate::report::{Report, Skipped};
use crate::trains::{TrainTotals, Trains};

/// The reason why two partial results don't go together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MergeError {
    /// They come from different settings (windows, burst, switch batches, encapsulation, number of top
    /// addresses).
    #[error("results of different settings can't be merged")]
    Settings,
    /// The later stretch begins its trace: nothing comes before it.
    #[error("the second part begins its trace: no other comes before it")]
    Opens,
    /// The stretches are of different traces, or the trace ends in the first one.
    #[error("the second part is not of the same trace as the first, or the first one ends with damage")]
    OtherTrace,
    /// The later stretch doesn't begin where the earlier one ends.
    #[error("the second part begins at byte {begins} of its trace, and the first one ends at byte {ends}")]
    Gap {
        /// Byte at which the earlier one ends.
        ends: u64,
        /// Byte at which the later one begins.
        begins: u64,
    },
    /// Times run backwards over the boundary, farther than packets were kept.
    #[error(
        "times run backwards from one part to the next, farther than packets were kept: make the second part anew, \
         with all packets kept"
    )]
    Unresolved,
    /// Parts of a trace, but not the first one.
    #[error("no part begins the trace: the earliest one begins at byte {begins}")]
    First {
        /// Byte at which the earliest one begins.
        begins: u64,
    },
    /// Parts of a trace, but not the last one.
    #[error("no part ends the trace: the latest one ends at byte {ends}, and another one followed there")]
    Last {
        /// Byte at which the latest one ends.
        ends: u64,
    },
}

/// The settings that results depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) windows_ns: Vec<u64>,
    pub(crate) burst: u32,
    pub(crate) switch_batches: Vec<u32>,
    pub(crate) top: usize,
    pub(crate) encapsulation: Encapsulation,
}

impl Settings {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            windows_ns: config.windows_ns.clone(),
            burst: config.burst,
            switch_batches: config.switch_batches.clone(),
            top: config.top,
            encapsulation: config.encapsulation,
        }
    }
}

/// Counts over all records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Totals {
    pub(crate) records: u64,
    pub(crate) bytes: u64,
    pub(crate) first_ns: u64,
    pub(crate) last_ns: u64,
    pub(crate) clock_backwards: u64,
    pub(crate) skipped: Skipped,
    pub(crate) ipv6: u64,
    pub(crate) fragments: u64,
    pub(crate) pure_acks: u64,
    pub(crate) ack_flags: u64,
}

impl Default for Totals {
    fn default() -> Self {
        Self {
            records: 0,
            bytes: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            clock_backwards: 0,
            skipped: Skipped::default(),
            ipv6: 0,
            fragments: 0,
            pure_acks: 0,
            ack_flags: 0,
        }
    }
}

impl Totals {
    #[inline]
    pub(crate) fn record(&mut self, time_ns: u64, original_len: u32) {
        self.records += 1;
        self.bytes += u64::from(original_len);
        self.first_ns = self.first_ns.min(time_ns);
        self.last_ns = self.last_ns.max(time_ns);
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        self.records += other.records;
        self.bytes += other.bytes;
        self.first_ns = self.first_ns.min(other.first_ns);
        self.last_ns = self.last_ns.max(other.last_ns);
        self.clock_backwards += other.clock_backwards;
        self.skipped.merge(&other.skipped);
        self.ipv6 += other.ipv6;
        self.fragments += other.fragments;
        self.pure_acks += other.pure_acks;
        self.ack_flags += other.ack_flags;
    }
}

/// Everything about `ip` or `tcp` but its flows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SequenceTotals {
    pub(crate) order: OrderTotals,
    /// By window.
    pub(crate) trains: Vec<TrainTotals>,
}

impl SequenceTotals {
    fn merge(&mut self, other: &Self) {
        self.order.merge(&other.order);
        self.trains.iter_mut().zip(&other.trains).for_each(|(a, b)| a.merge(b));
    }
}

/// Packets of one flow in either sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FlowPackets {
    /// All its packets; at least 1.
    pub ip: u64,
    /// Those that are TCP packets and not fragments: 0, or nearly always as many as `ip`.
    pub tcp: u64,
}

/// The result of one trace, which merges with those of others.
#[derive(Clone, Debug)]
pub struct Partial {
    pub(crate) settings: Settings,
    pub(crate) totals: Totals,
    pub(crate) ip: SequenceTotals,
    pub(crate) tcp: SequenceTotals,
    pub(crate) table: FlowTable,
    /// By number of the flow.
    pub(crate) packets: Vec<FlowPackets>,
}

impl Partial {
    /// `portless`: see [`crate::block::Row`].
    pub(crate) fn new(
        config: &Config,
        totals: Totals,
        distances: Option<Distances>,
        trains: Vec<Trains>,
        table: FlowTable,
        portless: &HashMap<u32, u32>,
    ) -> Self {
        let (ip, tcp, sizes) = distances.map(Distances::finish).unwrap_or_default();
        let size = |flow: u32| sizes.get(flow as usize).copied().unwrap_or(0);
        let mut packets = vec![FlowPackets::default(); table.numbers()];
        for (key, flow) in table.iter() {
            let ip = size(flow);
            let tcp = if has_stream(&key) { ip } else { portless.get(&flow).map_or(0, |alone| size(*alone)) };
            if let Some(p) = packets.get_mut(flow as usize) {
                *p = FlowPackets { ip, tcp };
            }
        }
        let (ip_trains, tcp_trains) = trains.into_iter().map(Trains::finish).unzip();
        Self {
            settings: Settings::of(config),
            totals,
            ip: SequenceTotals { order: ip, trains: ip_trains },
            tcp: SequenceTotals { order: tcp, trains: tcp_trains },
            table,
            packets,
        }
    }

    /// Adds the result of another trace. The order of merging makes no difference.
    ///
    /// Counts and distributions of packets, pairs, runs, batches and switches add up: no distance and no
    /// train spans two traces. Flows are the union: one that occurs in both traces is one flow, with the
    /// packets of both, so that a rotated capture counts right. The duration is from the earliest start to
    /// the latest end.
    ///
    /// # Errors
    /// [`MergeError::Settings`] where the two don't come from the same settings; nothing is merged then.
    pub fn merge(&mut self, other: &Self) -> Result<(), MergeError> {
        if self.settings != other.settings {
            return Err(MergeError::Settings);
        }
        self.totals.merge(&other.totals);
        self.ip.merge(&other.ip);
        self.tcp.merge(&other.tcp);
        for (key, more) in other.flows() {
            let hash = self.table.hash(&key);
            let flow = self.table.number(&key, hash) as usize;
            if self.packets.len() <= flow {
                self.packets.resize(flow + 1, FlowPackets::default());
            }
            if let Some(p) = self.packets.get_mut(flow) {
                p.ip += more.ip;
                p.tcp += more.tcp;
            }
        }
        Ok(())
    }

    /// Every flow with its packets, in no particular order.
    pub(crate) fn flows(&self) -> impl Iterator<Item = (FlowKey, FlowPackets)> + '_ {
        self.table
            .iter()
            .map(|(key, flow)| (key, self.packets.get(flow as usize).copied().unwrap_or_default()))
    }

    /// Every directional flow with its packets, in order of first appearance.
    pub fn flows_in_order(&self) -> impl Iterator<Item = (FlowKey, FlowPackets)> + '_ {
        let packets = |flow: u32| self.packets.get(flow as usize).copied().unwrap_or_default();
        self.table.in_order().map(move |(key, flow)| (key, packets(flow)))
    }

    /// Computes ratios and quantiles.
    #[must_use]
    pub fn report(&self) -> Report {
        Report::of(self)
    }
}
