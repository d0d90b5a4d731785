//! The reframe stage in a pipeline.

use slipstream_wire::{Encapsulation, LinkType};

use super::outermost::Outermost;
use crate::batch::{Arrivals, BATCH, Batch, Train};
use crate::pipeline::registry::{BuildError, Group, IN, Made, OUT, Site, StageType};
use crate::pipeline::settings::{Kind, Setting, Settings};
use crate::reframe::{Admit, Cause, Class, Output, Policy, Reframe, ReframeConfig, ReframeStats, Treatment};
use crate::runtime::Classifier;
use crate::stage::{Context, Stage};
use crate::time::Nanos;

pub(super) const REFRAME: StageType = StageType {
    name: "reframe",
    group: Group::Locality,
    summary: "Holds packets for microseconds and releases them as trains, packets of a flow back to back",
    example: "in -> reframe(hold=64us, burst=32) -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "hold",
            kind: Kind::Time(0, ReframeConfig::MAX_HOLD_NS),
            default: Some("64us"),
            required: false,
            help: "Longest wait of any packet; 0 = pass-through",
        },
        Setting {
            name: "burst",
            kind: Kind::Count(1, BATCH as u64),
            default: Some("32"),
            required: false,
            help: "Packets in a train at which it leaves at once",
        },
        Setting {
            name: "capacity",
            kind: Kind::Count(1, ReframeConfig::MAX_CAPACITY as u64),
            default: Some("8192"),
            required: false,
            help: "Packets held at most; then the oldest train leaves",
        },
        Setting {
            name: "capacity_bytes",
            kind: Kind::Bytes(1, ReframeConfig::MAX_CAPACITY_BYTES),
            default: Some("64MiB"),
            required: false,
            help: "Bytes held at most; then the oldest train leaves",
        },
        Setting {
            name: "flows",
            kind: Kind::Count(1, ReframeConfig::MAX_FLOWS as u64),
            default: Some("1048576"),
            required: false,
            help: "Flows whose age and size are remembered; at least 1024 and twice the capacity",
        },
        Setting {
            name: "policy",
            kind: Kind::Choice(&["oldest", "waiting", "shortest"]),
            default: Some("oldest"),
            required: false,
            help: "Order among trains that are released together",
        },
        Setting {
            name: "admit",
            kind: Kind::Choice(&["always", "second"]),
            default: Some("always"),
            required: false,
            help: "From which packet on a flow is held",
        },
        Setting {
            name: "bypass",
            kind: Kind::Rules,
            default: Some(ReframeConfig::BYPASS),
            required: false,
            help: "Packets that pass at once, after the train of their own flow; `none` for no such packets",
        },
        Setting {
            name: "class",
            kind: Kind::List(&Kind::Text(
                "NAME: RULE => hold=TIME, burst=N, weight=N, or NAME: RULE => bypass",
            )),
            default: None,
            required: false,
            help: "Packets to be treated in their own way; the first class that matches counts",
        },
        Setting {
            name: "compress",
            kind: Kind::Choice(&["off", "ack"]),
            default: Some("off"),
            required: false,
            help: "What to do to a train on its way out: ack coalesces pure TCP acknowledgements",
        },
        Setting {
            name: "tcp_order",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Restore TCP sequence order inside a train",
        },
        Setting {
            name: "tunnel",
            kind: Kind::Choice(&["outer", "inner"]),
            default: Some("outer"),
            required: false,
            help: "Which IP header of a tunnel makes the flow, and is seen by the rules of this stage; those behind it see the outermost",
        },
    ],
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let mut config = ReframeConfig {
        default: Treatment {
            hold_ns: settings.number("hold"),
            burst: settings.number("burst") as u16,
            weight: 1,
            bypass: false,
        },
        capacity: settings.number("capacity") as u32,
        capacity_bytes: settings.number("capacity_bytes"),
        flows: settings.number("flows") as u32,
        policy: match settings.text("policy") {
            "waiting" => Policy::Waiting,
            "shortest" => Policy::Shortest,
            _ => Policy::Oldest,
        },
        admit: if settings.text("admit") == "second" { Admit::Second } else { Admit::Always },
        bypass: settings.rules("bypass"),
        compress_ack: settings.text("compress") == "ack",
        tcp_order: settings.flag("tcp_order"),
        encapsulation: match settings.text("tunnel") {
            "inner" => Encapsulation::Inner,
            _ => Encapsulation::Outer,
        },
        seed: site.seed,
        ..ReframeConfig::default()
    };
    let default = config.default.clone();
    for text in settings.texts("class") {
        let class = Class::parse(text, &default, site.base)
            .map_err(|e| BuildError::setting("class", e.to_string()))?;
        config.classes.push(class);
    }
    config.validate().map_err(|e| BuildError::stage(e.to_string()))?;
    if site.dry {
        return Ok(Made::Stage(Box::new(Dry)));
    }
    ReframeStage::new(&config).map(|s| Made::Stage(Box::new(s))).map_err(|e| BuildError::stage(e.to_string()))
}

/// Stands in for a stage that is only checked: its tables are large.
struct Dry;

impl Stage for Dry {
    fn process(&mut self, _: &mut Context<'_>, _: &mut Batch, _: &mut dyn Output) {}
}

/// [`Reframe`] as a stage.
#[derive(Debug)]
pub(crate) struct ReframeStage {
    reframe: Reframe,
    classifier: Classifier,
    arrivals: Arrivals,
    last: Nanos,
    packets: u64,
    /// Trains are made by inner headers of tunnels, for which this is scratch.
    inner: Option<Vec<Train>>,
}

impl ReframeStage {
    pub(crate) fn new(config: &ReframeConfig) -> Result<Self, crate::reframe::ConfigError> {
        Ok(Self {
            reframe: Reframe::new(config)?,
            classifier: Classifier::new(config.encapsulation),
            arrivals: Arrivals::default(),
            last: Nanos(0),
            packets: 0,
            inner: (config.encapsulation == Encapsulation::Inner).then(Vec::new),
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
        Some(trains) => work(&mut Outermost { links, trains, out }),
        None => work(out),
    }
}

impl Stage for ReframeStage {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        // Other stages may have changed the headers, and held the packets: they arrive anew.
        self.arrivals.first = self.packets;
        self.packets += batch.frames.len() as u64;
        for (train, frames) in batch.iter() {
            for frame in frames {
                self.last = self.last.max(train.release).max(frame.arrival);
                let frame = crate::frame::Frame::unclassified(self.last, frame.buf, frame.len);
                self.arrivals.frames.push(frame);
            }
        }
        batch.clear();
        self.classifier.links(cx.links);
        self.classifier.classify(cx.pool, &mut self.arrivals);
        let Self { reframe, arrivals, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.process(cx.pool, arrivals, out));
    }

    fn takes_arrivals(&self) -> bool {
        true
    }

    fn arrive(&mut self, cx: &mut Context<'_>, arrivals: &mut Arrivals, out: &mut dyn Output) -> u64 {
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
        self.reframe.next_event()
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        let Self { reframe, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.advance(cx.pool, cx.now, out));
    }

    fn drain(&mut self, cx: &mut Context<'_>, out: &mut dyn Output) {
        let Self { reframe, inner, .. } = self;
        leaving(inner, cx.links, out, |out| reframe.drain(cx.pool, out));
    }

    fn holds(&self) -> bool {
        true
    }

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
    }

    fn reframe_stats(&self) -> Option<ReframeStats> {
        Some(self.reframe.stats())
    }

    fn report(&self) -> Option<serde_json::Value> {
        let stats = self.reframe.stats();
        let total = stats.total();
        let ns = |q| total.delay.quantile(q).map(|v| v.round() as u64);
        let released: serde_json::Map<_, _> =
            Cause::ALL.iter().zip(total.released).map(|(c, n)| (c.name().to_owned(), n.into())).collect();
        Some(serde_json::json!({
            "slf_in": stats.slf_in(),
            "slf_out": stats.slf_out(),
            "mean_train": total.mean_train(),
            "delay_ns": {
                "mean": total.delay.mean(),
                "p50": ns(0.5),
                "p90": ns(0.9),
                "p99": ns(0.99),
                "max": total.delay.max(),
            },
            "released": released,
        }))
    }
}
