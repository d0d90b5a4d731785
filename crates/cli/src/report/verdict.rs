//! The verdict on a trace, in words: what holding its packets is worth, and its price.

use slipstream_lab::frontier::Frontier;
use slipstream_report::{share, time};
use slipstream_trace::{Sequence, Window};

use super::short_time;

/// The window after which the SLF is highest, the shortest of equals; none where there are no packets.
pub(super) fn best_window(s: &Sequence) -> Option<&Window> {
    let better = |best: Option<&Window>, w: &Window| {
        best.is_none_or(|b| (w.slf_after, b.window_ns) > (b.slf_after, w.window_ns))
    };
    s.windows
        .iter()
        .filter(|w| w.slf_after.is_some())
        .fold(None, |best, w| if better(best, w) { Some(w) } else { best })
}

/// The gain of holding and its price, in a few sentences; empty where there is no packet with a flow.
pub(crate) fn verdict(ip: &Sequence, frontier: Option<&Frontier>) -> String {
    if ip.packets == 0 {
        return "There is no IP packet in it, so there are no flows and there is no locality to measure."
            .into();
    }
    let (Some(now), Some(best)) = (ip.slf, best_window(ip)) else { return String::new() };
    let Some(after) = best.slf_after else { return String::new() };
    let (hold, gain) = (short_time(best.window_ns as f64), after / now);
    let so = match gain {
        1.5.. => "Holding pays: every decision per flow would be made that much less often.",
        1.1..1.5 => "Holding gains something; whether it pays depends on what a decision per flow costs.",
        _ => {
            "Holding gains next to nothing here: packets of a flow come too far apart, or back to back already."
        }
    };
    let gains = format!(
        "As captured, {now:.2} packets of a flow come back to back, on average. Holding packets for at most {hold} would \
         make that {after:.2}, {gain:.2} times as many. {so}"
    );
    match price(best, frontier) {
        Some(price) => format!("{gains} {price}"),
        None => gains,
    }
}

/// The price of the best window: delay and vain waits; and what an adaptive hold takes for the same trains,
/// where that was measured.
fn price(best: &Window, frontier: Option<&Frontier>) -> Option<String> {
    let hold = short_time(best.window_ns as f64);
    // Its unit goes with a number, whatever the width.
    let whole = |text: String| text.replace(' ', "\u{a0}");
    let alone = whole(share(Some(1.0 - best.share_packets_in_trains?)));
    let beside = frontier.and_then(|f| f.holds.iter().find(|b| b.fixed.hold_ns == best.window_ns));
    let Some(beside) = beside else {
        return Some(format!(
            "The price: no packet waits longer than {hold}, and {alone} of them wait that long in vain, alone in \
             their trains; --frontier tells the mean delay for each trace."
        ));
    };
    let mean = |ns: f64| whole(time(Some(ns)));
    let fixed = format!(
        "The price: packets wait {} on average, {} of which in vain, alone in their trains ({alone} of them).",
        mean(beside.fixed.mean_delay_ns),
        mean(beside.fixed.futile_wait_ns)
    );
    Some(if beside.is_fixed() {
        format!("{fixed} Nothing that an adaptive hold learns makes them wait less.")
    } else {
        format!(
            "{fixed} The adaptive hold gives trains of that length for {} on average, {} of which in vain.",
            mean(beside.adaptive.mean_delay_ns),
            mean(beside.adaptive.futile_wait_ns)
        )
    })
}
