//! `slipstream synth`: traffic with a known locality.

use slipstream::io::capture::Format;
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::new_file::is_stdout;
use slipstream_report::{Table, count, rates, time};
use tracing::warn;

use super::Outcome;
use crate::cli;
use crate::port::Output;
use crate::ui::{self, Progress};

pub(super) fn run(args: &cli::Synth) -> anyhow::Result<Outcome> {
    let config = SynthConfig::from_settings(settings(args))?;
    if is_stdout(&args.output) {
        ui::refuse_terminal()?;
    }
    if config.slf > 1.0 && config.active_flows() == 1 {
        warn!(
            "slf {} is not met: a flow that sends alone makes one run of all its packets; give `{}` 2 or more",
            config.slf,
            if config.flows == 1 { "flows" } else { "active" },
        );
    }
    let synth = Synth::new(config)?;
    let capture = match Output::create(&args.output, Format::PcapNg)? {
        Output::Null => None,
        Output::Capture(writer) => Some(*writer),
    };
    let interrupted = ui::interrupts()?;
    let progress = Progress::new("making packets");
    let made = synth.write_to(capture, |share| {
        progress.at(Some(share));
        ui::unless(&interrupted).map_err(anyhow::Error::from)
    })?;
    drop(progress);
    let report = made.report(&args.output);
    let text = match args.format {
        cli::Format::Json => serde_json::to_string_pretty(&report)?,
        cli::Format::Table => {
            let mut t = Table::default();
            t.title(format!("{}", args.output.display()));
            t.row(["packets", &count(made.packets)]);
            t.row(["bytes on the wire", &count(made.bytes)]);
            t.row(["duration", &time(Some(made.duration_ns as f64))]);
            t.row(["rate", &rates(made.packets, made.bytes, made.duration_ns)]);
            t.row(["seed", &made.seed.to_string()]);
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
