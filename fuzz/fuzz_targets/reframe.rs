//! Any settings, any packets: everything comes out, every flow in its order, nothing later than its hold.
#![no_main]

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use libfuzzer_sys::fuzz_target;
use slipstream::io::capture::{CaptureError, Interface};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::{Admit, Budget, Class, ClassSettings, Policy, ReframeConfig, Top};
use slipstream::rules::Rule;
use slipstream::runtime::{Preload, Replay, Sink};
use slipstream::time::Nanos;
use slipstream_wire::{FlowKey, LinkType, classify};

#[derive(Default)]
struct Check {
    clock: u64,
    hold_ns: u64,
    ordered: bool,
    arrivals: Vec<u64>,
    last: HashMap<Option<FlowKey>, u64>,
    seen: u64,
}

impl Sink for Check {
    fn interface(&mut self, _: &Interface) -> Result<(), CaptureError> {
        Ok(())
    }

    fn packet(&mut self, release: Nanos, meta: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        // The number of a packet is in its original length.
        let id = u64::from(meta.original_len);
        let arrival = self.arrivals[id as usize];
        assert!(release.0 >= self.clock && release.0 >= arrival && release.0 - arrival <= self.hold_ns);
        self.clock = release.0;
        self.seen += 1;
        let key = classify(LinkType::Ethernet, data).ok().map(|h| h.key);
        let before = self.last.insert(key, id + 1).unwrap_or(0);
        assert!(!self.ordered || before <= id, "a packet left before an earlier one of its flow");
        Ok(())
    }
}

fn settings(a: u8, b: u8) -> ClassSettings {
    let hold_ns = [0, 1, 10, 1000][usize::from(a & 3)];
    ClassSettings {
        hold_ns,
        hold_min_ns: None,
        burst: u16::from(b & 31) + 1,
        weight: u32::from(a >> 6) + 1,
        bypass: a & 32 != 0,
    }
}

fuzz_target!(|data: &[u8]| {
    let Some((head, mut rest)) = data.split_first_chunk::<8>() else { return };
    let [a, b, c, d, e, f, g, h] = *head;
    let policy = [Policy::Oldest, Policy::Waiting, Policy::Shortest][usize::from(c) % 3];
    // Heavy flows: ranked every sixteen packets, so that flows change their class often.
    let top = (b & 64 != 0).then_some(if b & 128 == 0 { Top::Flows(2) } else { Top::Share(200_000) });
    let class =
        |settings| Class { name: "tcp".into(), rule: Rule::parse("tcp or port 1-100").unwrap(), top, settings };
    let admit = [Admit::Always, Admit::Second, Admit::Adaptive, Admit::Adaptive][usize::from(e >> 4 & 3)];
    // A budget that contradicts the hold would be refused; any price is right.
    let priced = admit == Admit::Adaptive && e & 2 == 0;
    let budget = priced.then(|| Budget::Price(u64::from(e >> 6) << (g & 15)));
    let auto = (admit != Admit::Adaptive && h & 16 != 0).then_some(0);
    let config = ReframeConfig {
        default: ClassSettings { bypass: false, hold_min_ns: auto, ..settings(a, b) },
        capacity: u32::from(d) + 1,
        capacity_bytes: if e & 1 == 0 { 1 << 20 } else { 200 },
        flows: 1,
        policy,
        admit,
        budget,
        bypass: if e & 4 == 0 { Rule::never() } else { Rule::parse("tcp syn").unwrap() },
        classes: if e & 8 == 0 { Vec::new() } else { vec![class(settings(f, g))] },
        top_window: 16,
        compress_ack: h & 1 != 0,
        compress_gro: h & 8 != 0,
        tcp_order: h & 2 != 0,
        ..ReframeConfig::default()
    };
    // A hold sets itself every ten milliseconds: packets have to come that far apart.
    let stretch = u32::from(h >> 5) * 3;
    let mut frames = Vec::new();
    let (mut time, mut now, mut arrivals) = (1_000_000u64, 0, Vec::new());
    while let Some(([gap, len], after)) = rest.split_first_chunk::<2>() {
        let len = usize::from(*len).min(after.len());
        let (frame, after) = after.split_at(len);
        time = time.saturating_add_signed(i64::from(*gap as i8) << stretch);
        now = now.max(time);
        arrivals.push(now);
        frames.push((Nanos(time), frame));
        rest = after;
    }
    let mut pool = Pool::new();
    let source = Preload::from_numbered_frames(frames.iter().copied(), &mut pool);
    let sink = Arc::new(Mutex::new(Check {
        hold_ns: config
            .classes
            .iter()
            .map(|c| c.settings.hold_ns)
            .max()
            .unwrap_or(0)
            .max(config.default.hold_ns),
        ordered: !config.tcp_order,
        arrivals,
        ..Check::default()
    }));
    let workers = if h & 4 == 0 { 1 } else { 2 };
    // SAFETY: the source forgets a packet when it has given it on, and the sink reads it only.
    let replay = unsafe { Replay::new(&config).unwrap().workers(workers).vouched() };
    let report = replay.run(source, pool, Arc::clone(&sink), &mut |_| ControlFlow::Continue(())).unwrap();
    let coalesced = report.stats.total().packets_coalesced;
    assert_eq!(report.stats.packets_in, frames.len() as u64);
    assert_eq!(sink.lock().unwrap().seen + coalesced, frames.len() as u64);
    assert_eq!(report.stats.held, 0);
});
