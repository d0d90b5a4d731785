//! `slipstream synth`: traffic with a known locality.

use serde_json::json;
use slipstream::io::capture::{Format, Interface};
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::new_file::is_stdout;
use slipstream_report::{Table, count, rates, time};

use super::Outcome;
use crate::cli;
use crate::port::Output;
use crate::ui::{self, Progress};

pub(super) fn run(args: &cli::Synth) -> anyhow::Result<Outcome> {
    let config = SynthConfig::from_settings(settings(args))?;
    if is_stdout(&args.output) {
        ui::refuse_terminal()?;
    }
    let mut synth = Synth::new(config.clone())?;
    let snap_len = config.snap_len.unwrap_or(262_144);
    let mut output = Output::create(&args.output, Format::PcapNg)?;
    if let Output::Capture(writer) = &mut output {
        writer.add_interface(&Interface { link_number: 1, snap_len, name: Some("synth".into()) });
    }
    let interrupted = ui::interrupts()?;
    let progress = Progress::new("making packets");
    let (mut packets, mut bytes, mut captured) = (0u64, 0u64, 0u64);
    let (mut first, mut last) = (None, None);
    let mut frame = Vec::new();
    while let Some(at) = synth.next_packet(&mut frame) {
        let keep = config.captured_len(frame.len());
        if let Output::Capture(writer) = &mut output {
            let data = frame.get(..keep).unwrap_or(&frame);
            writer.write(0, at, frame.len() as u32, data)?;
        }
        packets += 1;
        bytes += frame.len() as u64;
        captured += keep as u64;
        first = first.or(Some(at));
        last = Some(at);
        if packets.is_multiple_of(65_536) {
            progress.at(Some(packets as f64 / config.packets as f64));
            ui::unless(&interrupted)?;
        }
    }
    drop(progress);
    let file_bytes = match output {
        Output::Null => None,
        Output::Capture(writer) => Some(writer.finish()?.file_bytes),
    };
    let duration_ns = last.zip(first).map_or(0, |(l, f)| l.since(f));
    let report = json!({
        "schema": 1, "output": args.output.display().to_string(), "packets": packets, "bytes": bytes,
        "captured_bytes": captured, "duration_ns": duration_ns, "file_bytes": file_bytes, "seed": config.seed,
    });
    let text = match args.format {
        cli::Format::Json => serde_json::to_string_pretty(&report)?,
        cli::Format::Table => {
            let mut t = Table::default();
            t.title(format!("{}", args.output.display()));
            t.row(["packets", &count(packets)]);
            t.row(["bytes on the wire", &count(bytes)]);
            t.row(["duration", &time(Some(duration_ns as f64))]);
            t.row(["rate", &rates(packets, bytes, duration_ns)]);
            t.row(["seed", &config.seed.to_string()]);
            t.render(ui::columns())
        }
    };
    if is_stdout(&args.output) {
        ui::say(&text);
    } else {
        ui::print(text)?
    }
    Ok(Outcome::Done)
}

/// The settings that were given, by name.
fn settings(args: &cli::Synth) -> Vec<(String, String)> {
    let count = |c: &Option<crate::units::Count>| c.map(|c| c.0.to_string());
    let number = |n: &Option<f64>| n.map(|n| n.to_string());
    let all = [
        ("profile", args.profile.clone()),
        ("copies", count(&args.copies)),
        ("packets", count(&args.packets)),
        ("flows", count(&args.flows)),
        ("active", count(&args.active)),
        ("slf", number(&args.slf)),
        ("order", args.order.clone()),
        ("train", args.train.clone()),
        ("zipf", number(&args.zipf)),
        ("size", args.size.clone()),
        ("rate", args.rate.clone()),
        ("arrivals", args.arrivals.clone()),
        ("protocol", args.protocol.clone()),
        ("ipv6", number(&args.ipv6)),
        ("vlan", number(&args.vlan)),
        ("start", args.start.map(|s| s.saturating_mul(1_000_000_000).to_string())),
        ("seed", args.seed.map(|s| s.to_string())),
        ("snap-len", count(&args.snap_len)),
        ("vlan-ids", (!args.vlan_ids.is_empty()).then(|| join(&args.vlan_ids))),
    ];
    all.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

fn join(ids: &[u16]) -> String {
    ids.iter().map(u16::to_string).collect::<Vec<_>>().join(",")
}
