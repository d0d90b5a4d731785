//! The worth of each part of the adaptive hold's knowledge: the same traffic, held without it.

use serde_json::{Value, json};
use slipstream::clock::thread_cpu_ns;
use slipstream::reframe::{Admit, Budget, Knowledge, ReframeConfig};

use super::frontier::{Arrivals, Point, at_train, config, prices, run_with};

/// Fixed holds, ns.
const HOLDS: [u64; 6] = [8_000, 16_000, 32_000, 64_000, 128_000, 256_000];
/// The longest wait of the adaptive hold, ns.
const LONGEST_NS: u64 = 2_048_000;
const BURST: u16 = 32;
/// The fewest packets a train of a fixed hold that the adaptive one is compared with.
const FROM_TRAIN: f64 = 1.2;
/// Packets from which on their time is told.
const MANY: usize = 20_000;
/// Bytes that a flow takes for its last gap: the time of its last packet, and that packet's context.
const LAST_BYTES: u64 = 10;
/// Bytes that each class takes for estimates that flows share, and a flow that has its own.
const SHARED_BYTES: u64 = 64 << 10;

/// A way to do without something.
#[derive(Clone, Copy)]
struct Without {
    name: &'static str,
    knows: fn(&mut Knowledge),
    /// Changes what the stage is shown.
    hide: fn(&mut Arrivals),
    /// Each flow learns from itself alone.
    alone: bool,
    /// Bytes a flow that are saved.
    bytes: i64,
}

const NONE: Without = Without { name: "nothing", knows: |_| (), hide: |_| (), alone: false, bytes: 0 };

const WAYS: [Without; 9] = [
    NONE,
    Without { name: "the last gap", knows: |k| k.last_gap = false, bytes: 0, ..NONE },
    Without { name: "the gap before it", knows: |k| k.gap_before = false, bytes: 1, ..NONE },
    Without { name: "PSH of TCP", hide: Arrivals::forget_flags, ..NONE },
    Without { name: "sizes", hide: Arrivals::forget_sizes, ..NONE },
    Without { name: "the kind of a packet (both)", knows: |k| k.kind = false, ..NONE },
    Without { name: "the train so far", knows: |k| k.train = false, ..NONE },
    Without {
        name: "all but shared gaps",
        knows: |k| *k = Knowledge { last_gap: false, gap_before: false, kind: false, train: true },
        bytes: 1,
        ..NONE
    },
    Without { name: "sharing: each flow by itself", alone: true, bytes: -(SHARED_BYTES as i64), ..NONE },
];

/// A row for each way to do without something: the delay beside the fixed holds', at equal mean train (the
/// geometric mean over those that make trains), and beside that of the whole hold; futile wait likewise;
/// memory and CPU time.
pub(super) fn rows(
    name: &str,
    arrivals: &Arrivals,
    tick: &mut dyn FnMut(f64) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Value>> {
    let mut fixed = Vec::new();
    for hold in HOLDS {
        fixed.push(run_with(arrivals, &config(hold, BURST), &mut |_, _| {})?.0);
    }
    fixed.retain(|p| p.mean_train >= FROM_TRAIN);
    if fixed.is_empty() {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    let mut whole = None;
    for (done, way) in WAYS.into_iter().enumerate() {
        let mut shown = arrivals.clone();
        (way.hide)(&mut shown);
        let mut knows = Knowledge::default();
        (way.knows)(&mut knows);
        let parts = if way.alone { shown.by_flow() } else { vec![shown] };
        let (mut curve, mut ns) = (Vec::new(), f64::INFINITY);
        for price in prices(1_000, 8 * LONGEST_NS) {
            let before = thread_cpu_ns();
            curve.push(held(&parts, knows, price, way.alone)?);
            let took = thread_cpu_ns() - before;
            ns = ns.min(took as f64 / arrivals.len().max(1) as f64);
            tick((done as f64 + 0.5) / WAYS.len() as f64)?;
        }
        let ratio = |of: fn(&Point) -> f64| {
            let each =
                |f: &Point| Some((of(&at_train(&curve, f.mean_train)?).max(1.0) / of(f).max(1.0)).ln());
            let all: Vec<f64> = fixed.iter().filter_map(each).collect();
            (!all.is_empty()).then(|| (all.iter().sum::<f64>() / all.len() as f64).exp())
        };
        let delay = ratio(|p| p.mean_delay_ns);
        whole = whole.or(delay);
        rows.push(json!({
            "ablation": name,
            "without": way.name,
            "delay_of_fixed": delay,
            "delay_of_whole": delay.zip(whole).map(|(this, whole)| this / whole),
            "futile_wait_of_fixed": ratio(|p| p.futile_wait_ns),
            // This is for a flow; estimates that flows share take 64 KiB a class beside this.
            "bytes_a_flow": (LAST_BYTES + 2) as i64 - way.bytes,
            // Of few packets, or with a reframer for each flow, it would be that of making the stage.
            "ns_a_packet": (!way.alone && arrivals.len() >= MANY).then_some(ns),
        }));
    }
    Ok(rows)
}

/// Packets held at a price, in one stage or each part in one of its own.
fn held(parts: &[Arrivals], knows: Knowledge, price: u64, alone: bool) -> anyhow::Result<Point> {
    let mut config = ReframeConfig {
        admit: Admit::Adaptive,
        budget: Some(Budget::Price(price)),
        knows,
        ..config(LONGEST_NS, BURST)
    };
    if alone {
        (config.capacity, config.flows) = (1024, 1024);
    }
    let (mut packets, mut trains, mut delay, mut futile) = (0, 0, 0, 0);
    for part in parts {
        let total = run_with(part, &config, &mut |_, _| {})?.1.total();
        packets += total.packets_out;
        trains += total.trains;
        delay += total.delay.sum();
        futile += total.futile_wait_ns;
    }
    let packet = packets.max(1) as f64;
    Ok(Point {
        hold_ns: LONGEST_NS,
        price_ns: Some(price),
        mean_train: packets as f64 / trains.max(1) as f64,
        mean_delay_ns: delay as f64 / packet,
        futile_wait_ns: futile as f64 / packet,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use slipstream::io::synth::{Synth, SynthConfig};
    use slipstream_wire::{Encapsulation, LinkType};

    /// PSH and the train so far are worth something on campus traffic; each flow by itself learns too late.
    #[test]
    fn knowledge_is_worth_something() {
        let config = SynthConfig::from_text("profile=campus,packets=6000,seed=3").unwrap();
        let (mut synth, mut frame, mut arrivals) =
            (Synth::new(config).unwrap(), Vec::new(), Arrivals::default());
        while let Some(time) = synth.next_packet(&mut frame) {
            arrivals.push(time, LinkType::Ethernet, frame.len() as u32, &frame, Encapsulation::Outer);
        }
        let rows = rows("campus", &arrivals, &mut |_| Ok(())).unwrap();
        assert_eq!(rows.len(), WAYS.len());
        let delay = |name: &str| {
            let row = rows.iter().find(|r| r["without"] == name).unwrap();
            row["delay_of_whole"].as_f64().unwrap()
        };
        assert!((delay("nothing") - 1.0).abs() < 1e-9);
        for name in ["PSH of TCP", "all but shared gaps", "sharing: each flow by itself"] {
            assert!(delay(name) > 1.02, "{name}: {}", delay(name));
        }
    }
}
