//! The reframe stage in a pipeline.

use alloc::boxed::Box;
use alloc::format;
use alloc::string::String;
use core::any::Any;

use slipstream_wire::{Encapsulation, LinkType};

use crate::class::is_about_heavy_flows;
use crate::regroup::Regroup;
use crate::settings::PARTNERS;
use crate::{AutoStats, ConfigError, Reframe, ReframeConfig, SETTINGS};
use slipstream_core::batch::{Arrivals, Batch, Train};
use slipstream_core::classify::Classifier;
use slipstream_core::flow_context::FlowUse;
use slipstream_core::heavy::MakeHeavyFlows;
use slipstream_core::operate::{Operate, Reloading, Update};
use slipstream_core::registry::{BuildError, Group, IN, Made, Meets, OUT, Properties, Site, StageType, need};
use slipstream_core::settings::Settings;
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, Observe, Stage};
use slipstream_core::time::Nanos;

/// The stage type.
pub const REFRAME: StageType = StageType {
    name: "reframe",
    group: Group::Locality,
    summary: "Holds packets for microseconds and releases them as trains, packets of a flow back to back",
    example: "in -> reframe(hold=64us, burst=32) -> out",
    inputs: IN,
    outputs: OUT,
    settings: SETTINGS,
    properties: Properties {
        holds: true,
        needs_payload,
        reload: Some(RELOAD),
        partners: PARTNERS,
        without_meeting: Some(
            "with tunnel=outer and another `admit` than adaptive a reframer needs one flow at a time",
        ),
        ..Properties::new(meets)
    },
    build,
};

/// A flow's packets make its trains. Where inner headers of tunnels make the flow, its packets may come in
/// tunnels of several flows, so that nobody can tell by the outer headers where they belong. An adaptive hold
/// learns from all of them, and flows are heavy beside all others.
fn meets(settings: &Settings) -> Meets {
    let heavy = settings.texts("class").any(is_about_heavy_flows);
    let all = settings.text("tunnel") == "inner" || settings.text("admit") == "adaptive" || heavy;
    if all { Meets::Everything } else { Meets::Flow }
}

fn needs_payload(settings: &Settings) -> Option<&'static str> {
    if settings.flag("tcp_order") {
        return Some("`tcp_order` adds up the lengths of payloads");
    }
    let inner = settings.text("tunnel") == "inner";
    inner.then_some("`tunnel=inner` reads headers that are payload of the outer packet")
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    build_with(settings, site, None)
}

/// Builds a stage of the type [`REFRAME`], whose heavy flows are found by what this makes.
///
/// # Errors
/// A setting is wrong.
pub fn build_with(
    settings: &Settings,
    site: &Site<'_>,
    heavy_flows: Option<MakeHeavyFlows>,
) -> Result<Made, BuildError> {
    let config = ReframeConfig::from_settings(settings, site.base)?;
    let config = ReframeConfig { seed: site.seed, heavy_flows, ..config };
    if site.dry {
        return Ok(Made::Stage(Box::new(Checked { flow_numbers: config.table_entries() })));
    }
    room(&config)?;
    let stage = ReframeStage::in_its_room(&config).map_err(|e| BuildError::stage(e.to_string()))?;
    Ok(Made::Stage(Box::new(stage)))
}

/// Asks whether a reframer's memory can be had before it is taken.
fn room(config: &ReframeConfig) -> Result<(), BuildError> {
    let (flows, held) = Reframe::memory(config);
    let of_flows = if config.flows < config.table_entries() { "capacity" } else { "flows" };
    need(of_flows, flows.map(|n| n as u64))?;
    need("capacity", held.map(|n| n as u64))
}

/// The settings that can change while a reframer runs: all but the size of its flow table, whose numbers
/// others know flows by, and the headers that make a flow.
const RELOAD: Reloading = Reloading {
    settings: &[
        "hold",
        "hold_min",
        "hold_max",
        "burst",
        "capacity_bytes",
        "policy",
        "admit",
        "budget",
        "bypass",
        "class",
        "top_window",
        "compress",
        "gro_bytes",
        "gro_segments",
        "gro_verify",
        "tcp_order",
    ],
    ports: Reloading::NO_PORTS,
    reads_files: |settings| {
        settings.rules_file("bypass").is_some() || settings.texts("class").any(|class| class.contains('@'))
    },
    make: |settings, site| update_with(settings, site, None),
};

/// Makes other settings for a stage of [`build_with`].
///
/// # Errors
/// A setting is wrong.
pub fn update_with(
    settings: &Settings,
    site: &Site<'_>,
    heavy_flows: Option<MakeHeavyFlows>,
) -> Result<Update, BuildError> {
    let config = ReframeConfig { heavy_flows, ..ReframeConfig::from_settings(settings, site.base)? };
    let reframe = Reframe::successor(&config).map_err(|e| BuildError::stage(e.to_string()))?;
    Ok(Box::new(ReframeUpdate { reframe: Box::new(reframe), fingerprint: Reframe::fingerprint(&config) }))
}

/// Other settings for a reframer that runs.
struct ReframeUpdate {
    reframe: Box<Reframe>,
    fingerprint: String,
}

/// A reframer that is only checked, and takes no memory.
struct Checked {
    flow_numbers: u32,
}

impl Stage for Checked {
    fn process(&mut self, _: &mut Context<'_>, _: &mut Batch, _: &mut dyn Output) {}

    fn flow_use(&self) -> FlowUse {
        FlowUse::MAKES
    }

    fn flow_numbers(&self) -> u32 {
        self.flow_numbers
    }
}

impl Observe for Checked {}

/// [`Reframe`] as a stage.
#[derive(Debug)]
pub struct ReframeStage {
    reframe: Reframe,
    classifier: Classifier,
    arrivals: Arrivals,
    last: Nanos,
    packets: u64,
    /// Trains are made by inner headers of tunnels, for which this is scratch.
    inner: Option<Vec<Train>>,
    fingerprint: String,
    /// The reframer that takes over before anything else happens, and when it was given.
    next: Option<Box<Reframe>>,
    given: Nanos,
    /// The remains of the one before, for another thread to free.
    given_up: Option<Box<Reframe>>,
}

impl ReframeStage {
    /// With these settings.
    ///
    /// # Errors
    /// [`ConfigError`] where one is out of range, or asks for memory that can't be had.
    pub fn new(config: &ReframeConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        room(config).map_err(|BuildError { message, hint, .. }| {
            ConfigError::Memory(format!("{message}; {}", hint.unwrap_or_default()))
        })?;
        Self::in_its_room(config)
    }

    /// The same, where memory was asked for already.
    fn in_its_room(config: &ReframeConfig) -> Result<Self, ConfigError> {
        Ok(Self {
            reframe: Reframe::new(config)?,
            classifier: Classifier::new(config.encapsulation),
            arrivals: Arrivals::default(),
            last: Nanos(0),
            packets: 0,
            inner: (config.encapsulation == Encapsulation::Inner).then(Vec::new),
            fingerprint: Reframe::fingerprint(config),
            next: None,
            given: Nanos(0),
            given_up: None,
        })
    }
}

/// Calls `work` with the way out, by which what left by inner headers goes on by the outermost ones.
fn leaving(
    inner: &mut Option<Vec<Train>>,
    links: &[LinkType],
    out: &mut dyn Output,
    work: impl FnOnce(&mut dyn Output),
) {
    match inner {
        Some(trains) => work(&mut Regroup { links, trains, out }),
        None => work(out),
    }
}

impl ReframeStage {
    /// Lets another reframer take over at a time, where one is to.
    #[inline(always)]
    fn take_over(&mut self, at: Option<Nanos>, cx: &mut Context<'_>, out: &mut dyn Output) {
        if self.next.is_some() {
            self.renew(at, cx, out);
        }
    }

    #[cold]
    fn renew(&mut self, at: Option<Nanos>, cx: &mut Context<'_>, out: &mut dyn Output) {
        let Self { reframe, inner, next, .. } = self;
        let Some(mut next) = next.take() else { return };
        leaving(inner, cx.links, out, |out| {
            // The packets that are held leave now, and not when the last packet came.
            if let Some(at) = at {
                reframe.advance(cx.pool, at, out);
            }
            reframe.renew(&mut next, cx.pool, out);
        });
        self.given_up = Some(next);
    }
}

impl Operate for ReframeStage {
    fn update(&mut self, new: Update, now: Nanos) -> Update {
        match new.downcast::<ReframeUpdate>() {
            // Nothing changes: what is held may stay.
            Ok(update) if update.fingerprint == self.fingerprint => update,
            Ok(update) => {
                let ReframeUpdate { reframe, fingerprint } = *update;
                self.fingerprint = fingerprint;
                self.given = now;
                Box::new((self.next.replace(reframe), self.given_up.take()))
            }
            Err(other) => other,
        }
    }

    fn given_up(&mut self) -> Option<Update> {
        self.given_up.take().map(|old| old as Update)
    }
}

impl Stage for ReframeStage {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        self.take_over(batch.trains.first().map(|train| train.release), cx, out);
        // Other stages may have changed the headers, and held the packets: they arrive anew.
        self.arrivals.first = self.packets;
        self.packets += batch.frames.len() as u64;
        for (train, frames) in batch.iter() {
            for frame in frames {
                self.last = self.last.max(train.release).max(frame.arrival);
                let frame = slipstream_core::frame::Frame::unclassified(self.last, frame.buf, frame.len);
                self.arrivals.frames.push(frame);
            }
        }
        batch.clear();
        self.classifier.links(cx.links);
        self.classifier.classify(cx.pool, &mut self.arrivals);
        let Self { reframe, arrivals, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.process(cx.pool, arrivals, out));
    }

    fn takes_arrivals(&self) -> Option<Encapsulation> {
        Some(if self.inner.is_some() { Encapsulation::Inner } else { Encapsulation::Outer })
    }

    fn arrive(&mut self, cx: &mut Context<'_>, arrivals: &mut Arrivals, out: &mut dyn Output) -> u64 {
        self.take_over(arrivals.frames.first().map(|frame| frame.arrival), cx, out);
        self.classifier.links(cx.links);
        self.packets = self.packets.max(arrivals.first + arrivals.frames.len() as u64);
        self.last = self.last.max(arrivals.frames.last().map_or(Nanos(0), |f| f.arrival));
        self.classifier.classify(cx.pool, arrivals);
        let Self { reframe, inner, .. } = self;
        let before = reframe.trains_in();
        leaving(inner, cx.links, out, |out| reframe.process(cx.pool, arrivals, out));
        self.reframe.trains_in() - before
    }

    fn next_deadline(&self) -> Nanos {
        // By then what is due has left: packets that come when it is due may still join it.
        let due = self.reframe.next_release();
        // Packets that are held don't wait for the time that they had if no other comes.
        if self.next.is_some() { due.min(self.given) } else { due }
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        self.take_over(Some(cx.now), cx, out);
        let Self { reframe, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.advance(cx.pool, cx.now, out));
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        let Self { reframe, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.drain(cx.pool, out));
    }

    fn flow_use(&self) -> FlowUse {
        FlowUse::MAKES
    }

    /// It numbers flows by the entries of its table.
    fn flow_numbers(&self) -> u32 {
        self.reframe.table.limit() as u32
    }

    fn holds(&self) -> bool {
        true
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }
}

impl Observe for ReframeStage {
    fn held(&self) -> u64 {
        u64::from(self.reframe.stats().held)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let stats = self.reframe.stats();
        let total = stats.total();
        visit("packets_unclassified", stats.unclassified);
        visit("packets_coalesced", total.packets_coalesced);
        visit("packets_bypassed", total.packets_bypassed);
        visit("trains", total.trains);
        visit("futile_wait_ns", total.futile_wait_ns);
        visit("held_max", u64::from(stats.held_max));
        visit("flow_evictions", stats.flow_evictions);
        visit("long_probes", stats.long_probes);
        if let Some(price) = stats.prices_ns.first() {
            visit("price_ns", *price);
        }
        // The default class comes first; that of others is in the report.
        if let Some(auto) = stats.auto.first() {
            visit("hold_ns", auto.hold_ns);
            visit("hold_changes", auto.changes);
        }
        if !stats.heavy_flows.is_empty() {
            visit("heavy_flows", stats.heavy_flows.iter().flatten().sum::<usize>() as u64);
        }
        if let Some(gro) = &stats.gro {
            visit("super_frames", gro.super_frames);
            visit("super_frame_packets", gro.segments);
            visit("super_frame_bytes", gro.bytes);
        }
    }

    fn figures(&self) -> Option<Box<dyn Any + Send>> {
        Some(Box::new(self.reframe.stats()))
    }

    fn report(&self) -> Option<serde_json::Value> {
        let stats = self.reframe.stats();
        // The counters that are sums, the pipeline's report has already.
        let shown = ["slf_in", "slf_out", "mean_train", "delay_ns", "released"];
        let all = stats.total().to_json().into_iter();
        let mut report: serde_json::Map<_, _> =
            all.filter(|(name, _)| shown.contains(&name.as_str())).collect();
        let names = self.reframe.class_names();
        if !names.is_empty() {
            let classes = stats.classes_to_json(names.iter().map(String::as_str));
            report.insert("classes".into(), classes.map(serde_json::Value::Object).collect());
        }
        if !stats.auto.is_empty() {
            report.insert("auto".into(), stats.auto.iter().map(AutoStats::report).collect());
        }
        if let Some(gro) = &stats.gro {
            report.insert("gro".into(), gro.to_json());
        }
        Some(report.into())
    }
}

#[cfg(all(test, feature = "std"))]
mod tests {
    use super::*;
    use slipstream_core::pool::Pool;

    /// The data path frees nothing: what the settings before needed goes to whoever asks for it, or with the
    /// next settings.
    #[test]
    fn what_is_given_up_is_handed_back() {
        struct Nowhere;
        impl Output for Nowhere {
            fn emit(&mut self, _: &mut Pool, batch: &mut Batch) {
                batch.clear();
            }
        }
        let config = |hold_ns: u64| {
            let mut config = ReframeConfig::default();
            config.default.hold_ns = hold_ns;
            config
        };
        let update = |hold_ns: u64| -> Update {
            let config = config(hold_ns);
            let reframe = Box::new(Reframe::successor(&config).unwrap());
            Box::new(ReframeUpdate { reframe, fingerprint: Reframe::fingerprint(&config) })
        };
        let mut stage = ReframeStage::new(&config(10_000)).unwrap();
        let flows = stage.flow_numbers();
        let mut pool = Pool::new();
        let mut pass = |stage: &mut ReframeStage| {
            let mut cx = Context { now: Nanos(1), pool: &mut pool, links: &[LinkType::Ethernet], input: 0 };
            stage.process(&mut cx, &mut Batch::new(), &mut Nowhere);
        };
        for (hold_ns, asked) in [(20_000, true), (30_000, false), (40_000, true)] {
            let old = stage.update(update(hold_ns), Nanos(1));
            let (next, given_up) = *old.downcast::<(Option<Box<Reframe>>, Option<Box<Reframe>>)>().unwrap();
            assert!(next.is_none(), "the one before has taken over");
            assert_eq!(given_up.map(|old| old.hold.packets()), (hold_ns == 40_000).then_some(0));
            assert!(stage.given_up().is_none(), "it takes over with the next packet");
            pass(&mut stage);
            assert_eq!((stage.flow_numbers(), stage.reframe.class_settings[0].hold_ns), (flows, hold_ns));
            if asked {
                let old = stage.given_up().unwrap().downcast::<Reframe>().unwrap();
                assert_eq!(old.table.limit(), 1, "the table of flows stays where it is");
            }
        }
    }

    /// Packets that are held leave by other settings at once, whether another comes or none, and are not late
    /// then.
    #[test]
    fn what_is_held_leaves_with_other_settings() {
        #[derive(Default)]
        struct Left(Vec<u64>);
        impl Output for Left {
            fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
                let trains = batch.iter();
                self.0.extend(trains.flat_map(|(train, frames)| frames.iter().map(|_| train.release.0)));
                batch.frames.iter().for_each(|frame| pool.free(frame.buf));
                batch.clear();
            }
        }
        let config = |hold_ns: u64| {
            let mut config = ReframeConfig::default();
            config.default.hold_ns = hold_ns;
            config
        };
        let packet = crate::compress::test_packets::Packet::default().frame();
        for comes in [false, true] {
            let (mut pool, mut left) = (Pool::new(), Left::default());
            let mut stage = ReframeStage::new(&config(1_000_000_000)).unwrap();
            let arrive = |stage: &mut ReframeStage, pool: &mut Pool, left: &mut Left, time: u64| {
                let now = Nanos(time);
                let meta = slipstream_core::pool::PacketMeta { time: now, ..Default::default() };
                let buf = pool.insert(meta, &packet);
                let mut arrivals = Arrivals::default();
                let frame = slipstream_core::frame::Frame::unclassified(now, buf, packet.len() as u32);
                arrivals.frames.push(frame);
                let mut cx = Context { now, pool, links: &[LinkType::Ethernet], input: 0 };
                stage.arrive(&mut cx, &mut arrivals, left);
            };
            arrive(&mut stage, &mut pool, &mut left, 1_000);
            assert_eq!((stage.held(), stage.next_deadline()), (1, Nanos(1_000_001_001)));
            let next = config(2_000_000_000);
            let reframe = Box::new(Reframe::successor(&next).unwrap());
            let update = ReframeUpdate { reframe, fingerprint: Reframe::fingerprint(&next) };
            stage.update(Box::new(update), Nanos(500_000_000));
            assert_eq!(stage.next_deadline(), Nanos(500_000_000));
            if comes {
                arrive(&mut stage, &mut pool, &mut left, 600_000_000);
                assert_eq!((left.0, stage.held()), (vec![600_000_000], 1));
                assert_eq!(stage.next_deadline(), Nanos(2_600_000_001));
            } else {
                let now = stage.next_deadline();
                let mut cx = Context { now, pool: &mut pool, links: &[LinkType::Ethernet], input: 0 };
                stage.on_deadline(&mut cx, &mut left);
                assert_eq!((left.0, stage.held()), (vec![500_000_000], 0));
                assert_eq!(stage.next_deadline(), Nanos::MAX);
            }
        }
    }
}
