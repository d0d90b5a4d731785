//! Three functions, a third of the packets each: a look-up of an Ethernet address, and routing of IPv4 and of
//! IPv6 (Figs. 8 to 10).

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde_json::json;
use slipstream::io::capture::{CaptureWriter, Format, Interface, WriterOptions};
use slipstream::time::Nanos;
use slipstream_model::{Interarrival, PollLog, Strategy, compare, fit};
use slipstream_wire::checksum::fill_transport;
use slipstream_wire::{FlowKey, KeyError, LinkType, classify, protocol};
use tempfile::NamedTempFile;

use super::super::bench;
use super::{
    BATCH, Bench, Chain, Chart, Findings, Measured, Point, Process, QUEUE, Speed, by_class, capacity,
    classes, effort, engine, load, mean, quantile, question, solve,
};
use crate::random::numbered;

/// Frames that are sent in a loop.
const FRAMES: usize = 4096;
/// Prefixes of each version.
const ROUTES: usize = 500;
/// The paper's low load as a share of capacity: 2.5 of the 4.34 Gbit/s that its router bore.
const LOW: f64 = 0.58;
/// The paper's high load as a share of capacity: 10 Gbit/s.
const HIGH: f64 = 2.3;
/// Batches that are shown one after the other, as in Fig. 9.
const SERIES: usize = 50;

/// A chain of the three, and the files that it reads.
struct Mixed {
    chain: Chain,
    _files: [NamedTempFile; 2],
}

fn host(bits: u32) -> IpAddr {
    Ipv4Addr::from_bits(bits).into()
}

/// An IPv4 frame to be routed.
fn v4(n: u64) -> Result<Vec<u8>, KeyError> {
    let bits = numbered(n);
    let (src, dst) = (0x0a00_0000 | bits as u32 >> 8, 0x1400_0000 | (bits >> 32) as u32 >> 4);
    let key = FlowKey::new(&[], host(src), host(dst), protocol::UDP, bits as u16 | 1024, 53)?;
    Ok(bench::frame(&key))
}

/// A frame to one of 256 stations: IPv4 and TCP, so that it can be told from those to be routed.
fn ethernet(n: u64) -> Result<Vec<u8>, KeyError> {
    let bits = numbered(n);
    let (src, dst) = (0x0a00_0000 | bits as u32 >> 8, 0x1400_0000 | (bits >> 32) as u32 >> 4);
    let key = FlowKey::new(&[], host(src), host(dst), protocol::TCP, bits as u16 | 1024, 443)?;
    let mut frame = bench::frame(&key);
    if let Some(to) = frame.get_mut(..6) {
        to.copy_from_slice(&[2, 0xaa, 0, 0, 0, bits as u8]);
    }
    Ok(frame)
}

/// An IPv6 frame to be routed.
fn v6(n: u64) -> Result<Vec<u8>, KeyError> {
    let bits = numbered(n);
    let address = |net: u128, bits: u64| Ipv6Addr::from_bits(net << 96 | u128::from(bits) << 32 | 1).octets();
    let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64];
    frame.extend(address(0x2001_0db8, bits & 0xffff));
    frame.extend(address(0x2400_0000, bits));
    frame.extend((bits as u16 | 1024).to_be_bytes());
    frame.extend([0, 53, 0, 8, 0, 0]);
    if let Ok(headers) = classify(LinkType::Ethernet, &frame) {
        fill_transport(&mut frame, &headers);
    }
    Ok(frame)
}

/// Prefixes of many lengths, and a default, for both versions.
fn routes() -> String {
    let mut lines =
        BTreeSet::from(["default via 192.0.2.254\n".to_owned(), "::/0 via 2001:db8:ffff::2\n".to_owned()]);
    for n in 0..ROUTES as u64 {
        let bits = numbered(n + 1_000_000);
        let length = 8 + bits % 17;
        let prefix = (0x1400_0000 | (bits >> 32) as u32 >> 4) & (u32::MAX << (32 - length));
        lines.insert(format!("{}/{length} via 192.0.2.254\n", Ipv4Addr::from_bits(prefix)));
        let length = 20 + bits % 45;
        let prefix = (0x2400_0000u128 << 96 | u128::from(bits) << 32) & (u128::MAX << (128 - length));
        lines.insert(format!("{}/{length} via 2001:db8:ffff::2\n", Ipv6Addr::from_bits(prefix)));
    }
    lines.into_iter().collect()
}

fn chain() -> anyhow::Result<Mixed> {
    let (frames, table) = (NamedTempFile::with_suffix(".pcap")?, NamedTempFile::new()?);
    let mut writer =
        CaptureWriter::create(frames.path(), WriterOptions::for_path(frames.path(), Format::Pcap))?;
    let interface = writer.add_interface(&Interface { link_number: 1, snap_len: 0, name: None });
    for n in 0..FRAMES as u64 {
        let frame = match numbered(n + 2_000_000) % 3 {
            0 => ethernet(n)?,
            1 => v4(n)?,
            _ => v6(n)?,
        };
        writer.write(interface, Nanos(n), frame.len() as u32, &frame)?;
    }
    writer.finish()?;
    std::fs::write(table.path(), routes())?;
    let stations: Vec<String> = (0..256).map(|n| format!("\"02:aa:00:00:00:{n:02x} b\"")).collect();
    let graph = format!(
        "sw :: switch(ports=[\"eth: tcp\"]); sw[eth] -> [a]l2 :: l2fwd(ports=[a, b], learn=false, unknown=drop, \
         static=[{}]); l2[b] -> out; sw[other] -> [lan]r :: router(routes=\"{}\", interfaces=[\"lan 192.168.77.1/24 \
         2001:db8:fffe::1/64 02:00:00:00:00:02\", \"wan 192.0.2.1/24 2001:db8:ffff::1/64 02:00:00:00:00:03\"], \
         neighbours=[\"wan 192.0.2.254 02:00:00:00:01:01\", \"wan 2001:db8:ffff::2 02:00:00:00:01:02\"]); \
         r[wan] -> out :: null; r[lan] -> back :: null",
        stations.join(", "),
        table.path().display(),
    );
    let traffic = format!("file=\"{}\"", frames.path().display());
    Ok(Mixed { chain: Chain { traffic, graph }, _files: [frames, table] })
}

pub(super) fn run(lab: &Bench<'_>, speed: &mut Speed, findings: &mut Findings) -> anyhow::Result<()> {
    let mixed = chain()?;
    let Some(capacity_pps) = capacity(lab, &mixed.chain, speed)? else {
        findings.claim(LOST, PAPER_LOST, LOST_CRITERION, None, false);
        return Ok(());
    };
    let loads: &[f64] = if lab.quick { &[LOW, HIGH] } else { &[0.2, LOW, 0.8, HIGH] };
    let asked: Vec<Point> =
        loads.iter().map(|of| (format!("{of:.2}"), load(capacity_pps, *of, Process::Constant))).collect();
    let measured = engine::measure(lab, &mixed.chain, &asked, speed, effort(lab, 20))?;
    lab.step(0.9)?;
    let runs = measured.iter().filter_map(|m| m.log.as_ref()).flat_map(|log| log.runs.clone());
    let found = fit(&PollLog { runs: runs.collect() })?;
    for ((of, (_, load)), m) in loads.iter().zip(&asked).zip(&measured) {
        point(*of, load.rate_pps, m, &found, findings);
    }
    knee(&found, findings);
    Ok(())
}

const LOST: &str = "mixed, high load: share lost, predicted against measured";
const LOST_CRITERION: &str = "0.1 points apart at most";
const PAPER_LOST: &str = "56.61 % against 56.65 %";

/// A load, predicted beside measured (Fig. 8).
fn point(
    of: f64,
    rate_pps: f64,
    measured: &Measured,
    found: &slipstream_model::Fit,
    findings: &mut Findings,
) {
    let Some(log) = &measured.log else { return };
    let pmf = log.batch_pmf();
    let asked = Interarrival::poisson(1e9 / rate_pps)
        .and_then(|a| question(found, (Strategy::Global, None), a, (QUEUE, BATCH)));
    let Some(s) = solve(vec![asked]).into_iter().next().flatten() else { return };
    let Ok(c) = compare(&pmf, &s.batch_pmf) else { return };
    let lost = measured.unserved(rate_pps).unwrap_or(0.0);
    findings.row(json!({
        "figure": "8", "load": of, "rate_mpps": rate_pps / 1e6, "polls": log.polls(), "slices": measured.slices,
        "full_speed": measured.full_speed, "interrupted": measured.interrupted, "mean_batch": c.measured_mean,
        "mean_batch_predicted": c.predicted_mean, "relative_error": c.relative_error, "jsd": c.jsd,
        "measured_p50": quantile(&pmf, 0.5), "predicted_p50": s.batch_quantile(0.5),
        "p_loss": if of > 1.0 { Some(lost) } else { measured.p_loss }, "p_loss_predicted": s.p_loss,
    }));
    findings.draw(Chart {
        title: format!("Fig. 8: batch sizes of mixed traffic at load {of:.2}"),
        caption: "Share of polls by size of the batch.".into(),
        x_label: "packets".into(),
        y_label: "share of polls".into(),
        groups: classes(),
        series: vec![("measured".into(), by_class(&pmf)), ("predicted".into(), by_class(&s.batch_pmf))],
    });
    if of > 1.0 {
        let text = format!("{:.2} % against {:.2} %, at load {of:.2}", s.p_loss * 100.0, lost * 100.0);
        let full = pmf.get(BATCH).copied().unwrap_or(0.0);
        let near = (s.p_loss - lost).abs() <= 0.001;
        findings.claim(LOST, PAPER_LOST, LOST_CRITERION, Some((json!(text), near)), measured.steady);
        let all_full = Some((json!(full), full > 0.999));
        findings.claim(
            "mixed, high load: share of full batches",
            1.0,
            "above 0.999",
            all_full,
            measured.steady,
        );
    } else if (of - LOW).abs() < 1e-9 {
        let off = (mean(&pmf) - s.mean_batch).abs();
        findings.claim(
            "mixed, low load: the mean batch is off by packets (Fig. 8)",
            "a very high accuracy",
            "at most 1 packet",
            Some((json!(off), off <= 1.0)),
            measured.steady,
        );
        series(log, findings);
    }
}

/// Fig. 9: batches one after the other.
fn series(log: &PollLog, findings: &mut Findings) {
    let Some(longest) = log.runs.iter().max_by_key(|r| r.polls.len()) else { return };
    let batches = longest.polls.iter().take(SERIES).map(|p| Some(f64::from(p.batch)));
    findings.draw(Chart {
        title: "Fig. 9: batches one after the other, mixed, low load".into(),
        caption: "The paper's router swings between batches of 80 and below 32, where its input takes 32 at a time.".into(),
        x_label: "poll".into(),
        y_label: "packets".into(),
        groups: (1..=batches.len()).map(|n| n.to_string()).collect(),
        series: vec![("batch".into(), batches.collect())],
    });
}

/// Fig. 10: service times by batch size, and whether they have a knee.
fn knee(found: &slipstream_model::Fit, findings: &mut Findings) {
    for s in found.by_size.iter().filter(|s| s.batch > 0 && s.services >= 5) {
        findings.row(json!({
            "figure": "10", "batch": s.batch, "services": s.services, "mean_ns": s.mean_ns, "sd_ns": s.sd_ns,
        }));
    }
    let measured = match &found.piecewise {
        Some((low, high)) => format!(
            "from {} packets on {:.1} ns a packet, below {:.1}",
            high.batch_min, high.service_per_packet_ns, low.service_per_packet_ns
        ),
        None => "none: two lines explain no more than one".to_owned(),
    };
    findings.claims.push(super::Claim::not_comparable(
        "mixed: a knee in the service time, where the input's own batches end (Fig. 10)",
        "at 32 packets",
        measured,
        "our engine takes packets from the ring singly, there is no batch of 32 inside the batch",
    ));
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream::runtime::Driver;

    /// All packets that the chain gets leave, a third by each function, and with them those that tell the
    /// links of the router's addresses. Packets that a busy machine has no time for are lost at the port.
    #[test]
    fn every_function_gets_its_third() {
        let mixed = chain().unwrap();
        let graph = format!(
            "in :: paced(rate=100kpps, packets=3000, {}) -> {}",
            mixed.chain.traffic, mixed.chain.graph
        );
        let plan = slipstream::pipeline::Plan::from_graph(&graph, None, None, "".as_ref()).unwrap();
        let report =
            Driver::new(plan.build(1).unwrap()).run(&mut |_| std::ops::ControlFlow::Continue(())).unwrap();
        let of = |name: &str| report.stages.iter().find(|s| s.name == name).unwrap().tally.packets;
        assert!(report.stages.iter().filter(|s| s.name != "in").all(|s| s.drops.total() == 0));
        let router = report.stages.iter().find(|s| s.name == "r").unwrap();
        let says = |name: &str| router.counter(name).unwrap();
        let told = says("neighbour_announcements") + says("listener_reports");
        assert_eq!(of("l2") + of("r") + told, of("out") + of("back"));
        let taken = (of("l2") + of("r")) as f64;
        assert!((of("l2") as f64 / taken - 1.0 / 3.0).abs() < 0.05, "{} of {taken}", of("l2"));
    }
}
