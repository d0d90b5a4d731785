//! The report of a trace; it serialises to the keys of `analyze --format json`.

use std::net::IpAddr;

use serde::Serialize;
use slipstream_stats::{Bucket, Histogram, SignedHistogram};

use crate::endpoints::top_endpoints;
use crate::flows::FlowTable;
use crate::partial::{Partial, SequenceTotals};
use crate::trains::TrainTotals;

/// The locality of a trace. A ratio or quantile of nothing is `None`, `null` in JSON.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Packets in the file, whatever they are.
    pub records: u64,
    /// Their lengths on the wire, in bytes.
    pub bytes: u64,
    /// From the earliest record to the latest, in nanoseconds.
    pub duration_ns: u64,
    /// Records without a flow key.
    pub skipped: Skipped,
    /// IPv6 packets.
    pub ipv6: u64,
    /// Fragments of IP datagrams, first ones included.
    pub fragments: u64,
    /// Flows, both directions being one.
    pub flows_bidirectional: u64,
    /// Records whose time is earlier than that of a record before them.
    pub clock_backwards: u64,
    /// All IP packets.
    pub ip: Sequence,
    /// The TCP packets that are not fragments.
    pub tcp: Sequence,
    /// The addresses with the most TCP flows, the most first (paper, Table 1).
    pub top_endpoints: Vec<Endpoint>,
}

/// Records without a flow key, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Skipped {
    /// Not IP.
    pub non_ip: u64,
    /// A link type that is not understood.
    pub unsupported_link_type: u64,
    /// Captured bytes that end within the headers up to IP's.
    pub truncated: u64,
    /// An IP header that can't be.
    pub malformed: u64,
}

impl Skipped {
    pub(crate) fn merge(&mut self, other: &Self) {
        self.non_ip += other.non_ip;
        self.unsupported_link_type += other.unsupported_link_type;
        self.truncated += other.truncated;
        self.malformed += other.malformed;
    }
}

/// The locality of a sequence of packets. Flows are directional.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sequence {
    /// Packets in the sequence.
    pub packets: u64,
    /// Directional flows.
    pub flows: u64,
    /// Flows of one packet.
    pub single_packet_flows: u64,
    /// Maximal stretches of consecutive packets of one flow.
    pub runs: u64,
    /// Spatial locality factor: packets ÷ runs.
    pub slf: Option<f64>,
    /// Pairs of consecutive packets of one flow: what distances are taken of.
    pub pairs: u64,
    /// Share of pairs with another flow's packet in between.
    pub share_spatial_distance_gt_1: Option<f64>,
    /// Difference of positions, in packets; 1 is back to back.
    pub spatial_distance: Distribution,
    /// Difference of times as captured, in nanoseconds; negative where the clock ran backwards.
    pub temporal_distance_ns: Distribution,
    /// Packets a flow.
    pub flow_size: FlowSizes,
    /// The effect of holding, one entry a window.
    pub windows: Vec<Window>,
    /// Switches between flows, one entry a batch size, those without a complete batch left out.
    pub flow_switches: Vec<FlowSwitches>,
}

/// A distribution. The mean is exact; quantiles, interpolated between order statistics, are within 0.5 %.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Distribution {
    /// Arithmetic mean.
    pub mean: Option<f64>,
    /// First quartile.
    pub p25: Option<f64>,
    /// Median.
    pub p50: Option<f64>,
    /// Third quartile.
    pub p75: Option<f64>,
    /// 90th percentile.
    pub p90: Option<f64>,
    /// 99th percentile.
    pub p99: Option<f64>,
    /// The values that occur, in ascending order.
    pub histogram: Vec<Bucket>,
}

/// A distribution of flow sizes in packets, with its exact extremes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct FlowSizes {
    /// The smallest flow.
    pub min: Option<u64>,
    /// The largest flow.
    pub max: Option<u64>,
    /// The rest.
    #[serde(flatten)]
    pub distribution: Distribution,
}

/// The trains that a holding window would build. All figures are exact.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Window {
    /// The time that a train waits from its first packet on, in nanoseconds.
    pub window_ns: u64,
    /// Packets at which a train leaves at once.
    pub burst: u32,
    /// Trains, those of one packet included.
    pub batches: u64,
    /// Packets a train.
    pub mean_train: Option<f64>,
    /// Share of packets in trains of two and more.
    pub share_packets_in_trains: Option<f64>,
    /// First quartile of the packets a train.
    pub p25: Option<f64>,
    /// Median of the packets a train.
    pub p50: Option<f64>,
    /// Third quartile of the packets a train.
    pub p75: Option<f64>,
    /// 90th percentile of the packets a train.
    pub p90: Option<f64>,
    /// Trains by their packets.
    pub histogram: Vec<Bucket>,
    /// The spatial locality factor of the packets as they leave.
    pub slf_after: Option<f64>,
    /// Only of TCP.
    #[serde(flatten)]
    pub acks: Option<Acks>,
}

/// Acknowledgements in the trains of a window.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Acks {
    /// Pure acknowledgements: of FIN, SYN, RST and ACK only ACK is set, and there is no payload.
    pub pure_acks: u64,
    /// Share of them that are not the first of their train.
    pub ack_coalescable_simple: Option<f64>,
    /// Share of them that directly follow, in flow and train, another one that acknowledged less.
    pub ack_coalescable_strict: Option<f64>,
    /// Packets with the ACK flag a train that has any (paper, Fig. 22).
    pub ack_flag_mean: Option<f64>,
}

/// Flow switches a batch of consecutive packets (paper, Fig. 8).
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct FlowSwitches {
    /// Packets a batch.
    pub batch: u32,
    /// Complete batches.
    pub batches: u64,
    /// Mean number of neighbours in a batch that are of different flows.
    pub unordered: f64,
    /// The same, were each batch sorted by flow.
    pub ordered: f64,
}

/// An address and its TCP flows.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Endpoint {
    /// IPv4 or IPv6 address.
    pub address: IpAddr,
    /// Flows that it sends.
    pub tx: EndpointSide,
    /// Flows that it receives.
    pub rx: EndpointSide,
}

/// The flows of an address in one direction, their sizes in packets; all exact.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct EndpointSide {
    /// Directional flows.
    pub flows: u64,
    /// Packets of the smallest.
    pub min: Option<u64>,
    /// Mean packets.
    pub mean: Option<f64>,
    /// Median packets.
    pub median: Option<f64>,
    /// Packets of the largest.
    pub max: Option<u64>,
}

impl Report {
    pub(crate) fn of(partial: &Partial) -> Self {
        let totals = &partial.totals;
        let mut both = FlowTable::new();
        for (key, _) in partial.flows() {
            let key = key.bidirectional();
            let hash = both.hash(&key);
            both.number(&key, hash);
        }
        let mut ip_sizes = Histogram::new();
        let mut tcp_sizes = Histogram::new();
        for (_, packets) in partial.flows() {
            ip_sizes.record_n(packets.ip, u64::from(packets.ip > 0));
            tcp_sizes.record_n(packets.tcp, u64::from(packets.tcp > 0));
        }
        Self {
            records: totals.records,
            bytes: totals.bytes,
            duration_ns: totals.last_ns.saturating_sub(totals.first_ns),
            skipped: totals.skipped,
            ipv6: totals.ipv6,
            fragments: totals.fragments,
            flows_bidirectional: both.numbers() as u64,
            clock_backwards: totals.clock_backwards,
            ip: sequence(partial, &partial.ip, &ip_sizes, false),
            tcp: sequence(partial, &partial.tcp, &tcp_sizes, true),
            top_endpoints: top_endpoints(partial, partial.settings.top),
        }
    }
}

fn sequence(partial: &Partial, totals: &SequenceTotals, sizes: &Histogram, tcp: bool) -> Sequence {
    let order = &totals.order;
    let pairs = order.spatial.count();
    // Packets that continue a run are exactly the pairs at distance 1.
    let apart = pairs.saturating_sub(order.packets.saturating_sub(order.runs));
    let window = |(window_ns, trains): (&u64, &TrainTotals)| Window {
        acks: tcp.then(|| acks(partial, trains)),
        ..window(partial, *window_ns, order.packets, trains)
    };
    let switches = partial.settings.switch_batches.iter().zip(&order.switches);
    Sequence {
        packets: order.packets,
        flows: sizes.count(),
        single_packet_flows: sizes.buckets().find(|b| b.from == 1).map_or(0, |b| b.count),
        runs: order.runs,
        slf: ratio(order.packets, order.runs),
        pairs,
        share_spatial_distance_gt_1: ratio(apart, pairs),
        spatial_distance: distribution(&order.spatial),
        temporal_distance_ns: signed_distribution(&order.temporal),
        flow_size: FlowSizes { min: sizes.min(), max: sizes.max(), distribution: distribution(sizes) },
        windows: partial.settings.windows_ns.iter().zip(&totals.trains).map(window).collect(),
        flow_switches: switches
            .filter(|(_, s)| s.batches > 0)
            .map(|(&batch, s)| FlowSwitches {
                batch,
                batches: s.batches,
                unordered: s.unordered as f64 / s.batches as f64,
                ordered: s.ordered as f64 / s.batches as f64,
            })
            .collect(),
    }
}

fn window(partial: &Partial, window_ns: u64, packets: u64, trains: &TrainTotals) -> Window {
    let sizes = &trains.sizes;
    let batches = sizes.iter().sum();
    let alone = sizes.get(1).copied().unwrap_or(0);
    let quantile = |q| size_quantile(sizes, batches, q);
    let bucket = |(size, &count): (usize, &u64)| {
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        Bucket { from: size, to: size, count }
    };
    Window {
        window_ns,
        burst: partial.settings.burst,
        batches,
        mean_train: ratio(packets, batches),
        share_packets_in_trains: ratio(packets.saturating_sub(alone), packets),
        p25: quantile(0.25),
        p50: quantile(0.5),
        p75: quantile(0.75),
        p90: quantile(0.9),
        histogram: sizes.iter().enumerate().filter(|(_, c)| **c > 0).map(bucket).collect(),
        slf_after: ratio(packets, trains.runs_after),
        acks: None,
    }
}

fn acks(partial: &Partial, trains: &TrainTotals) -> Acks {
    let pure = partial.totals.pure_acks;
    Acks {
        pure_acks: pure,
        ack_coalescable_simple: ratio(pure.saturating_sub(trains.batches_with_pure_ack), pure),
        ack_coalescable_strict: ratio(trains.advancing, pure),
        ack_flag_mean: ratio(partial.totals.ack_flags, trains.batches_with_ack_flag),
    }
}

/// `a ÷ b`; `None` for a ratio to nothing.
pub(crate) fn ratio(a: u64, b: u64) -> Option<f64> {
    (b > 0).then(|| a as f64 / b as f64)
}

/// The quantile `q` of sizes of which `counts` says how many there are of each, interpolated linearly.
fn size_quantile(counts: &[u64], total: u64, q: f64) -> Option<f64> {
    let rank = q * total.checked_sub(1)? as f64;
    let at = |rank: u64| {
        let mut seen = 0;
        counts.iter().position(|c| {
            seen += c;
            seen > rank
        })
    };
    let low = at(rank.floor() as u64)? as f64;
    let high = at(rank.ceil() as u64)? as f64;
    Some(low + (high - low) * rank.fract())
}

fn distribution(h: &Histogram) -> Distribution {
    summary(h.mean(), |q| h.quantile(q), h.buckets().collect())
}

fn signed_distribution(h: &SignedHistogram) -> Distribution {
    summary(h.mean(), |q| h.quantile(q), h.buckets().collect())
}

fn summary(mean: Option<f64>, quantile: impl Fn(f64) -> Option<f64>, histogram: Vec<Bucket>) -> Distribution {
    Distribution {
        mean,
        p25: quantile(0.25),
        p50: quantile(0.5),
        p75: quantile(0.75),
        p90: quantile(0.9),
        p99: quantile(0.99),
        histogram,
    }
}
