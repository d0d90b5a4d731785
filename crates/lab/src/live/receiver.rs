//! Fig. 1a in small: what a packet takes in a receiver's network stack by locality, where packets in a row
//! are merged before the stack (the paper's LRO), where the kernel merges them (GRO), and where nobody does.
//!
//! The receiver has a core of its own, on which its interrupts, its stack and the program that reads run, and
//! what is counted is that core's time. The client and the machine in the middle share the other one. There a
//! delay that is drawn per connection mixes the packets, and trains of so many packets are made of them.
//!
//! A card that merges packets in a row (LRO) has no virtual counterpart. The reframer in the middle does what
//! it would do: `compress=gro` makes super-frames of a train and nothing else, and a virtual pair hands them
//! over as they are.

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::net::{End, Net, SERVER, idle_ns};
use super::{READY, connections, median, middle_on, seen};
use crate::{Bench, Chart, Claim, Findings};

/// Who merges packets of a flow before the receiver's stack sees them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merging {
    /// What makes the trains does, packets that come in a row: as the paper's card with LRO.
    InRow,
    /// The receiver's kernel does, out of some packets of many flows: GRO.
    Kernel,
    Nobody,
}

const KINDS: [Merging; 3] = [Merging::InRow, Merging::Kernel, Merging::Nobody];
/// Longest trains by packets; 1 is traffic as it comes, which is not held.
const TRAINS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// The first and the last of them.
const ENDS: [u32; 2] = [1, 32];
/// Bytes of TCP in a packet of 1500 bytes.
const SEGMENT: f64 = 1448.0;
/// The cores of the receiver, and of everybody else.
const RECEIVER: usize = 1;
const OTHERS: usize = 0;
/// The paper's cycles a packet at SLF 1 to 16, with LRO on and off (Fig. 1a, means of five runs).
const PAPER_ON: [f64; 16] = [
    9561.35, 9044.55, 7607.11, 6134.35, 5640.9, 4902.03, 4357.9, 3996.53, 4081.04, 3619.29, 3444.26, 3437.96,
    3152.82, 3275.31, 3269.27, 2979.92,
];
const PAPER_OFF: [f64; 16] = [
    9520.95, 9087.65, 8389.4, 7077.74, 6797.39, 6167.91, 5869.35, 5649.58, 5192.18, 5095.51, 4815.56,
    4828.25, 4636.5, 4578.12, 4497.77, 4419.76,
];

impl Merging {
    const fn key(self) -> &'static str {
        match self {
            Self::InRow => "in_row",
            Self::Kernel => "kernel",
            Self::Nobody => "nobody",
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::InRow => "packets in a row merged (LRO)",
            Self::Kernel => "merged by the kernel (GRO)",
            Self::Nobody => "not merged",
        }
    }

    const fn paper(self) -> &'static [f64; 16] {
        match self {
            Self::InRow | Self::Kernel => &PAPER_ON,
            Self::Nobody => &PAPER_OFF,
        }
    }

    /// Why the paper's figure is not reached, where it is known that it can't be.
    const fn why(self) -> Option<&'static str> {
        match self {
            Self::InRow => None,
            Self::Kernel => Some(
                "the kernel's GRO merges packets of up to 64 flows that come mixed, so there is little left for \
                 locality to win; the paper's card merges packets in a row only",
            ),
            Self::Nobody => Some(
                "the state of a few connections stays in the cache in any order of packets; the paper has \
                 100 Gbit/s and its misses",
            ),
        }
    }
}

/// The paper's cycles a packet at this SLF, over those at SLF 1: its points, straight lines between them, and
/// the last one beyond.
fn paper_ratio(points: &[f64; 16], slf: f64) -> f64 {
    let at = (slf - 1.0).clamp(0.0, 15.0);
    let point = |n: f64| points.get(n as usize).copied().unwrap_or(f64::NAN);
    let (below, above) = (point(at.floor()), point(at.ceil()));
    (below + (above - below) * at.fract()) / point(0.0)
}

/// The result of one transfer: the receiving core's time a packet, SLF towards it, bytes a second.
#[derive(Debug)]
struct Received {
    ns_per_packet: f64,
    slf: f64,
    bytes_per_second: f64,
}

/// Runs them in turn; progress goes from `progress[0]` to `progress[1]`.
pub(super) fn run(lab: &Bench<'_>, findings: &mut Findings, progress: [f64; 2]) -> anyhow::Result<()> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        bail!("a receiver with a core of its own takes two cores");
    }
    let (runs, seconds) = if lab.quick { (1, 1) } else { (3, 2) };
    let connections = connections(1)?;
    let trains: &[u32] = if lab.quick { &ENDS } else { &TRAINS };
    let of_kind = |kind| trains.iter().map(move |train| (kind, *train));
    let points: Vec<(Merging, u32)> = KINDS.into_iter().flat_map(of_kind).collect();
    let mut all: Vec<Vec<Received>> = points.iter().map(|_| Vec::new()).collect();
    let steps = (runs * points.len()) as f64;
    let mut done = 0.0;
    for _ in 0..runs {
        for ((merging, train), of) in points.iter().zip(&mut all) {
            of.push(transfer(lab, *merging, *train, seconds, connections)?);
            done += 1.0;
            lab.step(progress[0] + (progress[1] - progress[0]) * done / steps)?;
        }
    }
    let of = |kind: usize, train: usize, f: fn(&Received) -> f64| {
        median(all.get(kind * trains.len() + train).into_iter().flatten().map(f).collect())
    };
    let mut series = Vec::new();
    for (k, merging) in KINDS.into_iter().enumerate() {
        let ratio = |t: usize| of(k, t, |r| r.ns_per_packet) / of(k, 0, |r| r.ns_per_packet);
        // Traffic as it comes has an SLF of its own, from which the paper's points count, too.
        let paper = |t: usize| {
            let at = |t: usize| paper_ratio(merging.paper(), of(k, t, |r| r.slf));
            at(t) / at(0)
        };
        for (t, train) in trains.iter().enumerate() {
            findings.row(json!({
                "part": "receiver", "merging": merging.key(), "longest_train": train, "slf": of(k, t, |r| r.slf),
                "receiver_ns_per_packet": of(k, t, |r| r.ns_per_packet), "of_traffic_as_it_comes": ratio(t),
                "paper_of_traffic_as_it_comes": paper(t), "connections": connections, "runs": runs,
                "megabytes_per_second": of(k, t, |r| r.bytes_per_second) / 1e6,
            }));
        }
        series.push((merging.name().to_owned(), (0..trains.len()).map(|t| Some(ratio(t))).collect()));
        if merging != Merging::Kernel {
            let paper: Vec<Option<f64>> = (0..trains.len()).map(|t| Some(paper(t))).collect();
            series.push((
                format!("the paper, LRO {}", if merging == Merging::InRow { "on" } else { "off" }),
                paper,
            ));
        }
        let last = trains.len() - 1;
        let text = format!(
            "a receiver's CPU a packet, {}, at SLF {:.1} over SLF {:.1} (Fig. 1a)",
            merging.name(),
            of(k, last, |r| r.slf),
            of(k, 0, |r| r.slf)
        );
        findings.claims.push(Claim {
            why: merging.why().map(str::to_owned),
            ..Claim::number(text, paper(last), ratio(last), 0.25, 1.0)
        });
    }
    findings.draw(Chart {
        title: "A receiver's CPU a packet by longest train (Fig. 1a)".into(),
        caption: "iperf3 with many connections; time of the core that receives, over that of traffic as it \
                  comes. The paper's points are at the SLF that was seen here."
            .into(),
        x_label: "longest train, packets".into(),
        y_label: "of traffic as it comes".into(),
        groups: trains.iter().map(u32::to_string).collect(),
        series,
    });
    Ok(())
}

fn transfer(
    lab: &Bench<'_>,
    merging: Merging,
    train: u32,
    seconds: u32,
    connections: u32,
) -> anyhow::Result<Received> {
    let net = Net::new()?;
    net.receive_on(RECEIVER, merging == Merging::Kernel)?;
    let compress = if merging == Merging::InRow { ", compress=gro" } else { "" };
    let hold = if train == 1 { "hold=0".to_owned() } else { format!("hold=64us, burst={train}") };
    let graph =
        format!("c -> delay(time=2ms, jitter=1ms, per_flow=true) -> reframe({hold}{compress}) -> s; s -> c");
    let box_ = middle_on(lab, &net, Some(OTHERS), &graph)?;
    let mut server = net.start_on(End::Server, Some(RECEIVER), "iperf3", &["-s"])?;
    server.settle(READY)?;
    let (t, p) = (seconds.to_string(), connections.to_string());
    let (idle, clock) = (idle_ns(RECEIVER)?, slipstream::clock::now());
    let text = net.run_on(End::Clients, Some(OTHERS), "iperf3", &["-c", SERVER, "-t", &t, "-P", &p, "-J"])?;
    let took = clock.elapsed().as_nanos() as f64;
    let busy = took - (idle_ns(RECEIVER)? - idle) as f64;
    let result: Value = serde_json::from_str(&text).context("the output of iperf3")?;
    let bytes = result.pointer("/end/sum_received/bytes").and_then(Value::as_f64).unwrap_or_default();
    if bytes <= 0.0 {
        bail!("iperf3 received nothing: {text}");
    }
    let (slf, _) = seen(&box_.interrupt()?, "s")?;
    let packets = bytes / SEGMENT;
    Ok(Received { ns_per_packet: busy / packets, slf, bytes_per_second: bytes / f64::from(seconds) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_the_papers_points_are_straight_lines() {
        assert!((paper_ratio(&PAPER_ON, 1.0) - 1.0).abs() < 1e-12);
        assert!((paper_ratio(&PAPER_ON, 16.0) - 2979.92 / 9561.35).abs() < 1e-12);
        assert!((paper_ratio(&PAPER_ON, 40.0) - 2979.92 / 9561.35).abs() < 1e-12);
        let between = (9087.65 * 0.75 + 8389.4 * 0.25) / 9520.95;
        assert!((paper_ratio(&PAPER_OFF, 2.25) - between).abs() < 1e-12);
    }
}
