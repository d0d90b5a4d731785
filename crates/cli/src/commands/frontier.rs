//! `slipstream analyze --frontier`: fixed holds, the adaptive hold and clairvoyance, side by side.

use anyhow::bail;
use slipstream::batch::BATCH;
use slipstream_lab::frontier::{Arrivals, Frontier};
use slipstream_report::{Table, number, time};

use crate::cli;
use crate::ui::Progress;
use crate::units::Duration;

/// The burst as the reframer has it.
fn burst(args: &cli::Analyze) -> Option<u16> {
    u16::try_from(args.burst).ok().filter(|b| usize::from(*b) <= BATCH)
}

/// Checks what only the frontier asks of the arguments.
pub(super) fn check(args: &cli::Analyze) -> anyhow::Result<()> {
    if args.frontier && burst(args).is_none() {
        bail!("--frontier: --burst {} is more than a train can have; up to {BATCH} is possible", args.burst);
    }
    Ok(())
}

/// Measures the frontier of a trace.
pub(super) fn measure(args: &cli::Analyze, arrivals: &Arrivals) -> anyhow::Result<Frontier> {
    let progress = Progress::new("frontier");
    let holds: Vec<u64> = args.window.iter().map(|w| w.0).collect();
    Frontier::measure(arrivals, &holds, burst(args).unwrap_or(1), |share| Ok(progress.goes_on(Some(share))?))
}

/// The frontier as rows of a table.
pub(crate) fn as_table(t: &mut Table, frontier: &Frontier) {
    // Without a packet that has a flow there is nothing to tell.
    if frontier.holds.iter().all(|b| b.fixed.mean_train.is_nan()) {
        return;
    }
    t.title("Mean delay at equal mean train");
    t.row([
        "hold",
        "mean train",
        "fixed",
        "adaptive",
        "future known",
        "futile wait, fixed",
        "adaptive",
        "price",
    ]);
    for b in &frontier.holds {
        // Without a packet that has a flow there is no mean.
        let mean = |n: f64| Some(n).filter(|n| !n.is_nan());
        let delay = |n: f64| time(mean(n));
        t.row([
            Duration(b.fixed.hold_ns).to_string(),
            number(mean(b.fixed.mean_train), 3),
            delay(b.fixed.mean_delay_ns),
            delay(b.adaptive.mean_delay_ns),
            time(b.clairvoyant.map(|p| p.mean_delay_ns)),
            delay(b.fixed.futile_wait_ns),
            delay(b.adaptive.futile_wait_ns),
            match b.adaptive.price_ns {
                // As it is set: the highest price makes a fixed hold.
                Some(ns) if b.is_fixed() => Duration(ns).to_string(),
                ns => time(ns.map(|ns| ns as f64)),
            },
        ]);
    }
}
