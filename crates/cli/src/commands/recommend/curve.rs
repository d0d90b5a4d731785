//! The curve of a trace: its packet rate, its locality at each hold, and the CPU time that holding costs.

use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, anyhow, bail};
use slipstream::pipeline::Plan;
use slipstream::reframe::ReframeConfig;
use slipstream::rules::Rule;
use slipstream::runtime::{Destination, Origin, Pipeline, Replay, ReplayReport, Traffic};
use slipstream::time::Nanos;
use slipstream_lab::frontier::{Arrivals, Frontier, check_room};
use slipstream_model::Gain;
use slipstream_wire::{Encapsulation, LinkType};

use super::super::{report_backwards, report_damage};
use crate::port::Input;
use crate::ui::{self, Progress};

/// Packets on which the cost of holding is measured.
const SAMPLE: usize = 50_000;
/// The function in front of which it is measured. It looks flows up, as all do.
const FUNCTION: &str = "flow_stats";
/// Bytes of each that are kept: the headers.
const HEADERS: usize = 128;
/// The fewest packets on which a cost can be measured.
const FEW: usize = 1000;
/// The frontier is that of so many packets at most, the first ones: it keeps 90 bytes of each.
const FRONTIER: usize = 300_000;

/// The times and the first packets of a trace.
#[derive(Default)]
pub(super) struct Arrived {
    pub(super) packets: u64,
    pub(super) duration_ns: u64,
    /// Gaps between packets, in ns; times that ran backwards are left out.
    pub(super) gaps: Vec<f64>,
    sample: Traffic,
    /// The packets on which the frontier is measured.
    headers: Arrivals,
    /// Packets whose times ran backwards, which count as coming with the one before.
    backwards: u64,
    last: Option<Nanos>,
}

impl Arrived {
    /// Reads a trace to its end.
    pub(super) fn read(path: &Path, strict: bool, interrupted: &AtomicBool) -> anyhow::Result<Self> {
        let mut this = Self::default();
        match Input::open(path)? {
            Input::Capture(mut reader) => {
                while let Some(record) = reader.next_record()? {
                    ui::unless(interrupted)?;
                    this.header(record.time, record.link, record.original_len, record.data);
                    let ethernet = record.link == LinkType::Ethernet;
                    this.packet(record.time, ethernet.then_some((record.original_len, record.data)));
                }
                report_damage(&reader, strict)?;
            }
            Input::Synth(mut synth) => {
                let mut frame = Vec::new();
                while let Some(time) = synth.next_packet(&mut frame) {
                    ui::unless(interrupted)?;
                    this.header(time, LinkType::Ethernet, frame.len() as u32, &frame);
                    this.packet(time, Some((frame.len() as u32, &frame)));
                }
            }
        }
        report_backwards(this.backwards);
        let lacks = match this.packets {
            0 => "there is no packet in it",
            1 => "one packet has no rate",
            _ if this.duration_ns == 0 => {
                "no packet is later than the one before it, so that there is no rate"
            }
            _ => return Ok(this),
        };
        bail!("{}: {lacks}", path.display());
    }

    fn header(&mut self, time: Nanos, link: LinkType, len: u32, data: &[u8]) {
        if self.headers.len() < FRONTIER {
            self.headers.push(time, link, len, data, Encapsulation::Outer);
        }
    }

    /// What fixed holds, the adaptive one and one that knows the future make of the first packets, and how
    /// many those are.
    pub(super) fn frontier(
        &self,
        holds: &[u64],
        burst: u16,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<(Frontier, usize)> {
        let holds: Vec<u64> = holds.iter().copied().filter(|hold| *hold > 0).collect();
        let progress = Progress::new("frontier");
        let frontier = Frontier::measure(&self.headers, &holds, burst, |share| {
            progress.at(Some(share));
            Ok(ui::unless(interrupted)?)
        })?;
        Ok((frontier, self.headers.len()))
    }

    fn packet(&mut self, time: Nanos, ethernet: Option<(u32, &[u8])>) {
        self.packets += 1;
        let last = self.last.unwrap_or(time);
        self.backwards += u64::from(time < last);
        let time = time.max(last);
        if self.last.is_some() {
            self.gaps.push(time.since(last) as f64);
            self.duration_ns += time.since(last);
        }
        self.last = Some(time);
        if let Some((len, data)) = ethernet.filter(|_| self.sample.len() < SAMPLE) {
            self.sample.push(time, len, data.get(..HEADERS).unwrap_or(data));
        }
    }

    /// Packets a second, by the mean gap between two: that is what the model has packets come by. Packets
    /// divided by the duration are more by one gap.
    pub(super) fn rate_pps(&self) -> f64 {
        (self.packets - 1) as f64 / self.duration_ns as f64 * 1e9
    }

    /// Coefficient of variation of the gaps.
    pub(super) fn cv(&self) -> f64 {
        let n = self.gaps.len() as f64;
        let mean = self.gaps.iter().sum::<f64>() / n;
        (self.gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / n).sqrt() / mean
    }

    /// CPU time that the reframe stage adds to a packet, in ns: the first packets of the trace with the stage
    /// in front of a function, and the same trains without it, least of several turns, median over the holds.
    /// Behind the stage a function takes longer, which is what holding costs, too. None where there are too
    /// few packets on Ethernet.
    pub(super) fn hold_cost_ns(
        &self,
        holds: &[u64],
        burst: u16,
        interrupted: &AtomicBool,
    ) -> anyhow::Result<Option<f64>> {
        const TURNS: usize = 5;
        if self.sample.len() < FEW {
            return Ok(None);
        }
        let cost = |traffic: &Traffic, stages: &str| -> anyhow::Result<f64> {
            ui::unless(interrupted)?;
            let graph = format!("in :: null -> {stages} -> out :: null");
            let plan = Plan::from_graph(&graph, None, None, Path::new(""))?;
            let mut pipeline = Pipeline::chain(plan.build(1)?.into_stages());
            Ok(traffic.rehearse(&mut pipeline, TURNS, burst.into())?.0.least())
        };
        let adds = |hold: &u64| -> anyhow::Result<f64> {
            let reframe = format!("reframe(hold={hold}ns, burst={burst}, capacity=65536)");
            let with = cost(&self.sample, &format!("{reframe} -> {FUNCTION}"))?;
            let mut config = ReframeConfig { capacity: 65_536, ..ReframeConfig::default() };
            (config.default.hold_ns, config.default.burst) = (*hold, burst);
            Ok((with - cost(&self.sample.reframed(&config)?, FUNCTION)?).max(0.0))
        };
        let mut all = holds.iter().filter(|h| **h > 0).map(adds).collect::<Result<Vec<_>, _>>()?;
        all.sort_by(f64::total_cmp);
        Ok(all.get(all.len() / 2).copied())
    }
}

/// The gain curve: what `reframe` does to the trace at every hold, several at a time.
pub(super) fn gains(
    path: &Path,
    holds: &[u64],
    burst: u16,
    interrupted: &AtomicBool,
) -> anyhow::Result<Vec<Gain>> {
    let progress = Progress::new("holding");
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(holds.len()));
    let work = || {
        while let Some((i, hold)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|i| Some((i, holds.get(i)?)))
        {
            let gain = gain(path, *hold, burst, interrupted);
            let failed = gain.is_err();
            if let Ok(mut done) = done.lock() {
                done.push((i, gain));
                progress.at(Some(done.len() as f64 / holds.len() as f64));
            }
            if failed {
                next.store(holds.len(), Ordering::Relaxed);
            }
        }
    };
    thread::scope(|scope| {
        for _ in 1..thread::available_parallelism().map_or(1, usize::from).min(holds.len()) {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().map_err(|_| anyhow!("a thread of the replay failed"))?;
    done.sort_by_key(|d| d.0);
    done.into_iter().map(|d| d.1).collect()
}

fn gain(path: &Path, hold_ns: u64, burst: u16, interrupted: &AtomicBool) -> anyhow::Result<Gain> {
    // As `reframe` does it unless told otherwise, with room for as much as there is memory for.
    let mut config = ReframeConfig {
        capacity: 1 << 20,
        capacity_bytes: ReframeConfig::MAX_CAPACITY_BYTES,
        flows: 1 << 21,
        bypass: Rule::parse("tcp syn")?,
        ..ReframeConfig::default()
    };
    config.default.hold_ns = hold_ns;
    config.default.burst = burst;
    let origin = Origin::from(Input::open(path)?);
    let mut tick = |_| {
        if interrupted.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    let mut driver = Replay::new(&config)?.between(origin, Destination::nowhere())?;
    let report = ReplayReport::from(&driver.run(&mut tick)?);
    if report.interrupted {
        return Err(ui::Interrupted.into());
    }
    let total = report.stats.total();
    check_room(&total, hold_ns).with_context(|| path.display().to_string())?;
    let slf = report.stats.slf_out();
    let slf = slf.with_context(|| format!("{}: there is no packet with a flow in it", path.display()))?;
    let delay = total.delay;
    Ok(Gain {
        hold_ns: hold_ns as f64,
        slf,
        mean_delay_ns: delay.mean().unwrap_or(0.0),
        p995_delay_ns: delay.quantile(0.995).unwrap_or(0.0),
    })
}
