//! The figures of the model: Figs. 9, 14 and 15, and a prediction beside Fig. 10. Nothing is measured.

use serde_json::json;
use slipstream::slice::TOKEN_LEN;
use slipstream_model::data_movement::latency::{Path, predict};
use slipstream_model::data_movement::memory::Cache;
use slipstream_model::data_movement::pcie::Card;
use slipstream_model::data_movement::sliced_frame;
use slipstream_model::data_movement::sram::Demand;
use slipstream_model::data_movement::switch::{Growth, Switch};

use super::super::{Claim, Curve, Findings, Paper, Plot, Scale};
use super::{BYTES, SIZES, told};

/// The rate of Figs. 11 to 15, in packets a second.
const RATE: f64 = 6.5e6;
/// Bytes of Ethernet, IPv4 and TCP headers.
const HEADERS: u32 = 54;

pub(super) fn add(findings: &mut Findings) -> anyhow::Result<()> {
    pcie(findings)?;
    memory(findings);
    latency(findings);
    switch(findings);
    room(findings);
    Ok(())
}

fn pcie(findings: &mut Findings) -> anyhow::Result<()> {
    let card = Card::default();
    let of = |frame: u32| card.per_packet(frame);
    let mut series: [Vec<(f64, f64)>; 2] = Default::default();
    for size in SIZES {
        for (sliced, series) in [false, true].into_iter().zip(&mut series) {
            let frame = if sliced { sliced_frame(HEADERS, TOKEN_LEN as u32).min(size) } else { size };
            let bytes = of(frame);
            let [to_host, from_host] = bytes.utilization(&card.link, RATE);
            series.push((f64::from(size), bytes.memory_lines * RATE / 1e9));
            findings.row(json!({
                "model": "PCI Express (Fig. 15)",
                "size": size,
                "sliced": sliced,
                "rate_mpps": RATE / 1e6,
                "gigabytes_per_second": bytes.memory_lines * RATE / 1e9,
                "share_of_peak": bytes.share_of_peak(&card.link, RATE),
                "to_host_utilization": to_host,
                "from_host_utilization": from_host,
            }));
        }
    }
    for (size, paper) in [(64, 1.9), (1518, 21.0)] {
        let ours = of(size).memory_lines * RATE / 1e9;
        let claim = format!("model: GB/s over PCI Express at 6.5 Mpps, {size} B, both ways (Fig. 15)");
        findings.claims.push(Claim::number(claim, paper, ours, 0.1, 0.0));
    }
    let peak = of(1518).share_of_peak(&card.link, RATE);
    findings.claims.push(Claim::number(
        "model: share of the slot's peak at 1518 B (Fig. 15)",
        0.67,
        peak,
        0.1,
        0.0,
    ));
    let [whole, sliced] = series;
    findings.draw(Plot {
        title: "Model: bytes over PCI Express at 6.5 Mpps (Fig. 15)".into(),
        caption: format!(
            "What a network card reads and writes in memory, in whole cache lines, by the model. The paper's text \
             says 1.9 GB/s for sliced packets of every size. {}",
            Paper::Nfslicer.caption()
        ),
        x: Scale::linear(BYTES),
        y: Scale::linear("GB/s"),
        curves: vec![
            Curve::ours("whole", whole),
            Curve::ours("sliced", sliced),
            Curve::paper("whole", Paper::Nfslicer.series("15", "whole")?),
            Curve::paper("sliced", Paper::Nfslicer.series("15", "sliced")?),
        ],
    });
    Ok(())
}

fn memory(findings: &mut Findings) {
    let with = |io_ways| Cache { io_ways, ..Cache::default() };
    for ways in [2, 8, 0] {
        for size in SIZES {
            findings.row(json!({
                "model": "memory (Fig. 14)",
                "io_ways": ways,
                "size": size,
                "rate_mpps": RATE / 1e6,
                "memory_gigabytes_per_second": with(ways).per_packet(size).total() * RATE / 1e9,
            }));
        }
    }
    let fits = |ways, size| with(ways).per_packet(size).total() == 0.0;
    let shape = format!(
        "2 ways: 512 B {}, 1518 B {}; 8 ways: 1518 B {}",
        if fits(2, 512) { "none" } else { "some" },
        if fits(2, 1518) { "none" } else { "some" },
        if fits(8, 1518) { "none" } else { "some" }
    );
    findings.claims.push(told(
        "model: traffic to memory by ways for the card (Fig. 14)".into(),
        json!("2 ways: 512 B none, 1518 B some; 8 ways: 1518 B none"),
        json!(shape),
        "the number of buffers in turn, which the paper doesn't give, was chosen so",
    ));
}

fn latency(findings: &mut Findings) {
    let (card, path) = (Card::default(), Path::default());
    let mean = |size, rate| predict(&card, &path, size, rate).mean_ns;
    let gap = |rate| Some(mean(1518, rate)? / mean(64, rate)?);
    for rate in [1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 6.5e6, 7e6] {
        for size in [64, 1518] {
            findings.row(json!({
                "prediction": "latency (Fig. 10), mean, by queueing for PCI Express alone",
                "size": size,
                "rate_mpps": rate / 1e6,
                "predicted_mean_ns": mean(size, rate),
                "gap": gap(rate),
            }));
        }
    }
    for (rate, paper) in [(1e6, 1.05), (4e6, 1.2), (7e6, 1.46)] {
        findings.claims.push(told(
            format!("prediction: mean latency of 1518 B over 64 B at {} Mpps (Fig. 10)", rate / 1e6),
            json!(paper),
            json!(gap(rate)),
            "a prediction by queueing theory, random arrivals one by one, not a measurement; how the paper's packets were spaced is not known",
        ));
    }
}

fn switch(findings: &mut Findings) {
    let switch = Switch::default();
    for growth in Growth::BOTH {
        for gbps in [40.0, 100.0] {
            findings.row(json!({
                "model": "switch (Fig. 9)",
                "growth": growth.name(),
                "card_gbps": gbps,
                "servers": switch.servers(growth, gbps),
                "sram_share_8_servers": switch.share(growth, 8.0, gbps),
            }));
        }
    }
    let both = |gbps| json!(Growth::BOTH.map(|g| switch.servers(g, gbps).to_string()).join(" or "));
    findings.claims.push(told(
        "model: servers with cards of 40 Gbit/s that a switch can slice for (Fig. 9)".into(),
        json!("up to 38, by the most optimistic extrapolation"),
        both(40.0),
        "the paper does not say how it extrapolates; a line through its two points ends at 28 servers, growth in proportion at 21",
    ));
    let proportional = switch.servers(Growth::Proportional, 100.0);
    findings.claims.push(Claim::checked(
        "model: servers with cards of 100 Gbit/s that a switch can slice for, by Little's law in proportion (Fig. 9)",
        8,
        proportional,
        "equal",
        proportional == 8,
    ));
}

fn room(findings: &mut Findings) {
    let room = Demand::default().room();
    findings.row(json!({
        "model": "room on a card of 100 Gbit/s (section VII)",
        "entries": room.entries,
        "entry_bytes": room.entry_bytes,
        "payload_bytes": room.payload_bytes,
    }));
    findings.claims.push(Claim::checked(
        "model: payloads that a card of 100 Gbit/s must have room for, 10 us at the functions, and KiB of that",
        "250, 355",
        format!("{}, {:.0}", room.entries, room.payload_bytes as f64 / 1024.0),
        "equal",
        room.entries == 250 && room.payload_bytes.div_ceil(1024) == 355,
    ));
}
