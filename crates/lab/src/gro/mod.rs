//! Super-frames: what `compress=gro` merges and what it costs, beside DPDK's `rte_gro` over the same packets,
//! and beside the kernel's GRO behind a pair of virtual interfaces.

mod packets;
mod peers;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context as _;
use serde_json::{Value, json};
use slipstream::batch::{Arrivals, Batch};
use slipstream::classify::Classifier;
use slipstream::frame::Frame;
use slipstream::io::capture::{CaptureWriter, Format, Interface, WriterOptions};
use slipstream::io::super_frame::there_and_back;
use slipstream::pipeline::Plan;
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::compress::GroStats;
use slipstream::reframe::{Reframe, ReframeConfig, Rule};
use slipstream::runtime::{Pipeline, Traffic};
use slipstream::stage::Output;
use slipstream::time::Nanos;
use slipstream_wire::{LinkType, classify};

use super::{Bench, Claim, Findings, Lab};
use peers::{Answer, RteGro};

pub(super) const LAB: Lab = Lab {
    name: "gro",
    source: "Packet Order Matters! (NSDI'22), §2.2 (receive offloads gain from order; making super-frames is our own)",
    what: "super-frames of `compress=gro`: merges and cost beside DPDK's rte_gro, and beside the kernel's GRO",
    needs: None,
    run,
};

const FLOWS: usize = 1024;
/// Packets come this far apart, in ns: 10 Mpps.
const GAP_NS: u64 = 100;
/// Packets in a burst of `rte_gro`, and between two flushes of its context.
const BURST: usize = 128;
const WINDOW: usize = 16_384;
/// Hold of the trains that are held against the kernel's, in ns: longer than any.
const HOLD_NS: u64 = 1_000_000;
/// Packets a second that a super-frame may take: at most so many ns each.
const MOST_NS: f64 = 100.0;

/// Traffic that both merge.
struct Kind {
    name: &'static str,
    slf: usize,
    /// Bytes of payload; headers are 54.
    payload: usize,
}

const KINDS: [Kind; 4] = [
    Kind { name: "60 bytes, 1024 flows in random order", slf: 1, payload: 6 },
    Kind { name: "1514 bytes, 1024 flows in random order", slf: 1, payload: 1460 },
    Kind { name: "60 bytes, 16 packets back to back", slf: 16, payload: 6 },
    Kind { name: "1514 bytes, 16 packets back to back", slf: 16, payload: 1460 },
];

fn run(lab: &Bench<'_>) -> anyhow::Result<Findings> {
    let (packets, turns, trains) = if lab.quick { (65_536, 3, 300) } else { (262_144, 9, 3000) };
    let mut findings = Findings::default();
    let dir = tempfile::tempdir()?;
    let rte = peers::rte_gro(dir.path());
    for (i, kind) in KINDS.iter().enumerate() {
        let frames = packets::streams(FLOWS, kind.slf, kind.payload, packets);
        let file = dir.path().join("streams.pcap");
        write(&file, frames.iter().map(|frame| (0, frame)))?;
        let peer = rte.clone().and_then(|program| peers::ask_rte_gro(&program, &file, WINDOW, turns));
        let mut traffic = Traffic::default();
        for (n, frame) in frames.iter().enumerate() {
            traffic.push(Nanos(1_000_000_000 + n as u64 * GAP_NS), frame.len() as u32, frame);
        }
        lab.step((i as f64 + 0.4) / 5.0)?;
        let bursts = ours(&frames, &traffic, BURST as u64 * GAP_NS, turns)?;
        let context = ours(&frames, &traffic, WINDOW as u64 * GAP_NS, turns)?;
        tell(&mut findings, kind, packets, [bursts, context], &peer);
        lab.step((i + 1) as f64 / 5.0)?;
    }
    beside_the_kernel(lab, trains, dir.path(), &mut findings)?;
    Ok(findings)
}

/// Share of the traffic that a reframer with `compress=gro` merges, and its CPU time a packet in ns.
#[derive(Clone, Copy, Debug)]
struct Ours {
    hold_ns: u64,
    merged: u64,
    mean_segments: f64,
    mean_train: f64,
    ns: f64,
    /// Without `compress=gro`.
    ns_without: f64,
}

fn pipeline(hold_ns: u64, compress: &str) -> anyhow::Result<Pipeline> {
    let graph = format!(
        "in :: null -> reframe(hold={hold_ns}ns, burst=256, capacity=65536, bypass=none, compress={compress}) -> out :: null"
    );
    Ok(Plan::from_graph(&graph, None, None, "".as_ref())?.build(3)?)
}

fn ours(frames: &[Vec<u8>], traffic: &Traffic, hold_ns: u64, turns: usize) -> anyhow::Result<Ours> {
    let (mut with, mut without) = (pipeline(hold_ns, "gro")?, pipeline(hold_ns, "off")?);
    let (timing, reports) = traffic.rehearse(&mut with, turns, BURST)?;
    let (plain, _) = traffic.rehearse(&mut without, turns, BURST)?;
    let stats =
        reports.iter().find_map(|r| r.reframe.as_deref()).context("the reframe stage tells nothing")?;
    let merged = merge(frames.iter().map(Vec::as_slice), hold_ns, false)?;
    let left: usize = merged.by_flow.values().map(Vec::len).sum();
    Ok(Ours {
        hold_ns,
        merged: merged.packets - left as u64,
        mean_segments: stats.gro.as_ref().and_then(GroStats::mean_segments).unwrap_or(1.0),
        mean_train: stats.total().mean_train().unwrap_or(1.0),
        ns: timing.least(),
        ns_without: plain.least(),
    })
}

fn tell(findings: &mut Findings, kind: &Kind, packets: usize, ours: [Ours; 2], peer: &Answer<RteGro>) {
    let theirs = |window: usize, peer: &RteGro| {
        if window == 0 { (peer.burst_merged, peer.burst_ns) } else { (peer.context_merged, peer.context_ns) }
    };
    for (window, (o, mode)) in ours.iter().zip(["bursts of 128", "a context"]).enumerate() {
        let peer = peer.as_ref().map(|peer| theirs(window, peer));
        findings.row(json!({
            "traffic": kind.name,
            "packets": packets,
            "hold_ns": o.hold_ns,
            "merged": o.merged,
            "mean_segments": o.mean_segments,
            "mean_train": o.mean_train,
            "ns_per_packet": o.ns,
            "ns_per_packet_without": o.ns_without,
            "mpps": 1e3 / o.ns,
            "rte_gro_mode": mode,
            "rte_gro_merged": peer.ok().map(|p| p.0),
            "rte_gro_ns_per_packet": peer.ok().map(|p| p.1),
        }));
        let name = format!(
            "{}: packets merged at a hold of {} us, beside rte_gro in {mode}",
            kind.name,
            o.hold_ns as f64 / 1e3
        );
        findings.claims.push(match peer {
            Ok((merged, _)) => {
                let enough = o.merged >= merged;
                Claim::checked(name, Value::Null, o.merged, "at least as many", enough)
                    .beside("rte_gro", merged)
            }
            Err(why) => Claim::not_comparable(name, Value::Null, o.merged, why.as_str()),
        });
    }
    let [_, o] = ours;
    let claim = Claim::checked(
        format!("{}: packets a second of holding, merging and releasing in order, one core", kind.name),
        Value::Null,
        format!("{:.1} Mpps ({:.1} ns a packet, {:.1} without merging)", 1e3 / o.ns, o.ns, o.ns_without),
        "at least 10 Mpps",
        o.ns <= MOST_NS,
    );
    findings.claims.push(match peer {
        Ok(p) => {
            let [burst, context] = [p.burst_ns, p.context_ns].map(|ns| 1e3 / ns);
            claim.beside("rte_gro", format!("{burst:.1} Mpps in bursts, {context:.2} in a context"))
        }
        Err(_) => claim,
    });
}

/// Writes frames with their times in seconds.
fn write<'a>(path: &Path, frames: impl Iterator<Item = (u64, &'a Vec<u8>)>) -> anyhow::Result<()> {
    let mut writer = CaptureWriter::create(path, WriterOptions::for_path(path, Format::Pcap))?;
    let interface = writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    for (seconds, frame) in frames {
        writer.write(interface, Nanos(seconds * 1_000_000_000), frame.len() as u32, frame)?;
    }
    writer.finish()?;
    Ok(())
}

/// The lengths of the super-frames of each flow, in their order, as they leave a reframer.
#[derive(Default)]
struct Lengths {
    by_flow: BTreeMap<u16, Vec<u16>>,
    packets: u64,
    /// Packets that came back as they were when super-frames were cut again.
    same: u64,
}

impl Output for Lengths {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (_, frames) in batch.iter() {
            let mut came = frames.iter();
            there_and_back(pool, frames, &mut |bytes| {
                self.same += u64::from(came.next().is_some_and(|f| pool.data(f.buf, f.len) == bytes));
            });
            self.packets += frames.len() as u64;
            for frame in frames {
                let headers = classify(LinkType::Ethernet, pool.data(frame.buf, frame.len));
                let lengths = self.by_flow.entry(headers.map_or(0, |h| h.key.dst_port())).or_default();
                match lengths.last_mut() {
                    Some(last) if frame.info.joins() => *last += 1,
                    _ => lengths.push(1),
                }
            }
        }
        batch.frames.iter().for_each(|f| pool.free(f.buf));
        batch.clear();
    }
}

/// Sends frames through a reframer; `gro_verify`: it says itself which of them have a wrong checksum.
fn merge<'a>(
    frames: impl Iterator<Item = &'a [u8]>,
    hold_ns: u64,
    gro_verify: bool,
) -> anyhow::Result<Lengths> {
    let (bypass, capacity, compress_gro) = (Rule::never(), 65_536, true);
    let mut config = ReframeConfig { compress_gro, gro_verify, bypass, capacity, ..ReframeConfig::default() };
    (config.default.hold_ns, config.default.burst) = (hold_ns, 256);
    let (mut reframe, mut pool) = (Reframe::new(&config)?, Pool::new());
    let (mut arrivals, mut out, mut classifier) =
        (Arrivals::default(), Lengths::default(), Classifier::default());
    classifier.links(&[LinkType::Ethernet]);
    for (n, frame) in frames.enumerate() {
        let (len, time) = (frame.len() as u32, Nanos(1_000_000_000 + n as u64 * GAP_NS));
        let buf = pool.insert(PacketMeta { original_len: len, interface: 0, time }, frame);
        arrivals.first = n as u64;
        arrivals.frames.push(Frame::unclassified(time, buf, len));
        classifier.classify(&pool, &mut arrivals);
        reframe.process(&mut pool, &mut arrivals, &mut out);
    }
    reframe.finish(&mut pool, &mut out);
    Ok(out)
}

/// A frame without its VLAN tag.
fn untagged(frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if frame.get(12..14) == Some(&[0x81, 0]) {
        frame.drain(12..16);
    }
    frame
}

fn beside_the_kernel(
    lab: &Bench<'_>,
    count: usize,
    dir: &Path,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let trains = packets::trains(count);
    let [left, ours] =
        [false, true].map(|verify| merge(trains.iter().flatten().map(Vec::as_slice), HOLD_NS, verify));
    let (left, ours) = (left?, ours?);
    let packets = trains.iter().flatten().count() as u64;
    findings.claims.push(Claim::checked(
        format!("{count} trains in which one packet in eight differs in something: packets that are as they came, after cutting"),
        Value::Null,
        format!("{} of {packets}", left.same.min(ours.same)),
        "all",
        [&left, &ours].iter().all(|cut| cut.same == packets && cut.packets == packets),
    ));
    let file = dir.join("trains.pcap");
    // A card takes VLAN tags out of a frame before the kernel's GRO sees it.
    let plain: Vec<Vec<Vec<u8>>> =
        trains.iter().map(|train| train.iter().map(|f| untagged(f)).collect()).collect();
    write(&file, (1..).zip(&plain).flat_map(|(n, train)| train.iter().map(move |frame| (n, frame))))?;
    lab.step(0.85)?;
    let name = format!(
        "{count} such trains, TCP and UDP, IPv4 and IPv6, tagged and not: merged as the kernel's GRO on a veth merges them"
    );
    let kernel = match peers::ask_kernel(dir, &file, 5) {
        Ok(kernel) => kernel,
        Err(why) => {
            findings.claims.push(Claim::not_comparable(name, Value::Null, Value::Null, why));
            return Ok(());
        }
    };
    // The kernel lets a packet that it can't merge overtake those that it holds: the order is not compared.
    let sorted = |lengths: Option<&Vec<u16>>| {
        let mut lengths = lengths.cloned().unwrap_or_default();
        lengths.sort_unstable();
        lengths
    };
    let agree = |flow: &u16, lengths: &Vec<u16>| sorted(kernel.get(flow)) == sorted(Some(lengths));
    let same = ours.by_flow.iter().filter(|(flow, lengths)| agree(flow, lengths)).count();
    let frames = |of: &BTreeMap<u16, Vec<u16>>| of.values().map(Vec::len).sum::<usize>();
    findings.row(json!({
        "trains": count,
        "packets": packets,
        "frames": frames(&ours.by_flow),
        "kernel_frames": frames(&kernel),
        "same": same,
    }));
    for (flow, lengths) in ours.by_flow.iter().filter(|(flow, lengths)| !agree(flow, lengths)).take(5) {
        findings.row(json!({ "flow": flow, "lengths": lengths, "kernel_lengths": kernel.get(flow) }));
    }
    let text = format!("{same} of {count}; {} frames, the kernel {}", frames(&ours.by_flow), frames(&kernel));
    findings.claims.push(Claim::checked(name, Value::Null, text, "all", same == count));
    lab.step(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_become_super_frames_and_come_back() {
        let trains = packets::trains(300);
        let packets = trains.iter().flatten().count();
        let merge = |verify| merge(trains.iter().flatten().map(Vec::as_slice), HOLD_NS, verify).unwrap();
        let left = merge(false);
        assert_eq!((left.packets, left.same), (packets as u64, packets as u64));
        let ours = merge(true);
        assert_eq!((ours.packets, ours.same), (packets as u64, packets as u64));
        let frames: usize = ours.by_flow.values().map(Vec::len).sum();
        assert!(ours.by_flow.len() == 300 && frames > 300 && 2 * frames < packets, "{frames} of {packets}");
        // A train that is like itself from end to end, and not too long, is one super-frame.
        assert!(ours.by_flow.values().any(|lengths| lengths.len() == 1));
    }

    #[test]
    fn streams_go_on_where_they_were() {
        let frames = packets::streams(4, 3, 6, 48);
        assert!(frames.len() == 48 && frames.iter().all(|frame| frame.len() == 60));
        let ours = merge(frames.iter().map(Vec::as_slice), HOLD_NS, false).unwrap();
        assert!(ours.by_flow.values().all(|lengths| lengths.len() == 1), "{:?}", ours.by_flow);
    }
}
