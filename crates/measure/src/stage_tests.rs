//! Tests of the weights of packets in the stage, with values that are told apart by size.

use slipstream_core::frame::Info;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_wire::{LinkType, classify};

use super::*;

struct End;

impl Output for End {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        batch.frames.iter().for_each(|frame| pool.free(frame.buf));
        batch.clear();
    }
}

fn stage(weight: Weight) -> Measure {
    let (task, kind) = (Task::Quantiles, Sketch::DdSketch);
    let want = Want { threshold: 0, top: 1 };
    let ask = Arc::new(Ask { task, keying: keying(None, task, kind).unwrap(), want, flows: Vec::new() });
    let plan = Plan {
        kind,
        size: Size::Memory(1 << 16),
        aggregate: None,
        seed: 1,
        compare: false,
        save: false,
        timed: false,
    };
    let epoch = EpochLength::Packets(1 << 40);
    let snapshots = Snapshots::new(&ask, &plan.configs(&ask), epoch, 1, true, None).unwrap();
    let about = About { ask, kind, weight, epoch, aggregate: None };
    Measure::new(about, snapshots, plan.seed, Rule::always(), false)
}

/// The packets that the stage has seen, and its report, after packets of some hosts: host, arrival, release.
fn seen(weight: Weight, packets: &[(u32, u64, u64)]) -> (Measure, serde_json::Value) {
    let (mut stage, mut pool) = (stage(weight), Pool::new());
    for (host, arrival, release) in packets {
        let mut dns =
            [0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 4, 210, 0, 53, 0, 8, 0, 0];
        dns[12..16].copy_from_slice(&host.to_be_bytes());
        let meta = PacketMeta { original_len: 28, ..PacketMeta::default() };
        let frame = Frame::unclassified(Nanos(*arrival), pool.insert(meta, &dns), 28);
        let frame = Frame { info: Info::new(&classify(LinkType::RawIp, &dns).unwrap()), ..frame };
        let mut batch = Batch::new();
        batch.push_single(frame, Nanos(*release), 0);
        let mut cx = Context { now: Nanos(*release), pool: &mut pool, input: 0, links: &[LinkType::RawIp] };
        stage.process(&mut cx, &mut batch, &mut End);
    }
    stage.finish().unwrap();
    let report = stage.report().unwrap();
    (stage, report)
}

/// The values of all packets, as (least, greatest, packets counted).
fn measured(weight: Weight, packets: &[(u32, u64, u64)]) -> (f64, f64, u64) {
    let (stage, report) = seen(weight, packets);
    let quantiles = report["epochs"][0]["quantiles"].as_array().unwrap();
    let of = |q: Option<&serde_json::Value>, end: &str| q.unwrap()[end].as_f64().unwrap();
    (of(quantiles.first(), "lower"), of(quantiles.last(), "upper"), stage.counts.packets)
}

/// Of more flows than are remembered, bounds of gaps aren't certain.
#[test]
#[cfg_attr(miri, ignore = "hundreds of thousands of packets")]
fn forgotten_flows_are_told() {
    for (flows, forgets) in [(1000, false), (140_000, true)] {
        let packets: Vec<_> = (0..flows).chain(flows - 10..flows).zip(1..).map(|(f, t)| (f, t, t)).collect();
        let (stage, report) = seen(Weight::Gap, &packets);
        let mut told = 0;
        stage.counters(&mut |name, n| told = if name == "forgotten_flows" { n } else { told });
        assert_eq!((told > 0, stage.counts.packets), (forgets, 10), "{told}");
        let epoch = &report["epochs"][0];
        assert_eq!((epoch["bounds"] == "none", epoch["confidence"] == 1.0), (forgets, !forgets), "{epoch}");
    }
}

#[test]
fn values_are_gaps_delays_or_sizes() {
    // One gap of ten seconds, which 32 bits don't hold.
    let long = 10_000_000_000;
    let packets = [(1, 1000, 1000), (2, 1100, 1300), (1, 1050, 1400), (2, 1100 + long, 1150 + long)];
    let (least, most, counted) = measured(Weight::Gap, &packets);
    assert_eq!((least, counted), (50.0, 2));
    assert!((1e10..1.01e10).contains(&most), "{most}");
    let (least, most, counted) = measured(Weight::Delay, &packets);
    assert_eq!((least, counted), (0.0, 4));
    assert!((350.0..354.0).contains(&most), "{most}");
    assert_eq!(measured(Weight::Bytes, &packets), (28.0, 28.0, 4));
}

#[test]
fn what_adds_up_takes_no_values() {
    for weight in [Weight::Gap, Weight::Delay] {
        assert!(weight.refuse(Sketch::CountMin, Task::FlowSize).is_err());
        assert!(weight.refuse(Sketch::DdSketch, Task::Quantiles).is_ok());
        assert_eq!(Weight::named(weight.name()), weight);
    }
    assert!(Weight::Packets.refuse(Sketch::DdSketch, Task::Quantiles).is_err());
}
