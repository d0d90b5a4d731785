//! Measurement in the data path: packets pass untouched, and sketches answer at the end of every epoch.
//! Behind `reframe` a train is an update that was aggregated already: one update a train.

use std::path::Path;
use std::sync::Arc;

use slipstream_sketch::{Eviction, Kind as Sketch, Size, Want};
use slipstream_wire::FlowKey;

use crate::weigh::{Gaps, Weight};
use crate::{
    Ask, Description, EndError, EpochLength, Keeper, MeasureError, Outcome, Plan, SketchSet, Snapshots, Span,
    Task, keying,
};
use slipstream_core::batch::Batch;
use slipstream_core::flow_context::FlowUse;
use slipstream_core::frame::Frame;
use slipstream_core::packet::{headers_of, key_of};
use slipstream_core::registry::{BuildError, Group, IN, Made, Meets, OUT, Properties, Site, StageType};
use slipstream_core::rules::Rule;
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::Output;
use slipstream_core::stage::{Context, Egress, Observe, Stage, StageError};
use slipstream_core::time::Nanos;

/// The stage type.
pub const MEASURE: StageType = StageType {
    name: "measure",
    group: Group::Plumbing,
    summary: "Answers questions about flows by sketches, epoch by epoch",
    example: "in -> reframe -> measure(task=heavy-hitters, key=src, epoch=1s) -> out",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "task",
            kind: Kind::Choice(&Task::NAMES),
            default: Some("heavy-hitters"),
            required: false,
            help: "What is asked at the end of every epoch",
        },
        Setting {
            name: "sketch",
            kind: Kind::Choice(&SKETCHES),
            default: Some("auto"),
            required: false,
            help: "What answers; `auto`: the sketch made for the task",
        },
        Setting {
            name: "key",
            kind: Kind::Text("src, dst, src-dst, 5tuple, or networks: src/24 (IPv4), src/24/56 (IPv4/IPv6)"),
            default: None,
            required: false,
            help: "What makes a flow; src, and dst for ddos-victims, where nothing is written",
        },
        Setting {
            name: "memory",
            kind: Kind::Bytes(1 << 10, 1 << 36),
            default: Some("1MiB"),
            required: false,
            help: "Memory of the sketches of IPv4 (three quarters) and IPv6; there are two sets of them. The aggregators take more: \
                   `aggregator_bytes` of the report",
        },
        Setting {
            name: "weight",
            kind: Kind::Choice(&Weight::NAMES),
            default: Some("packets"),
            required: false,
            help: "What the size of a flow is; of quantiles the value: `bytes`, `gap` (ns since the flow's packet before) or `delay` \
                   (ns that the pipeline has held the packet until here)",
        },
        Setting {
            name: "epoch",
            kind: Kind::Text("packets (2000000p) or a time (1s)"),
            default: Some("2000000p"),
            required: false,
            help: "After what the question is asked, and counting begins anew; by time, at multiples of it since 1970",
        },
        Setting {
            name: "by",
            kind: Kind::Choice(&["trains", "packets"]),
            default: Some("trains"),
            required: false,
            help: "One update a train, or one a packet",
        },
        Setting {
            name: "aggregate",
            kind: Kind::Choice(&["grr", "lru", "off"]),
            default: Some("grr"),
            required: false,
            help: "What leaves the aggregator in front of the sketch, or none",
        },
        Setting {
            name: "top",
            kind: Kind::Count(1, 1 << 20),
            default: Some("20"),
            required: false,
            help: "Flows that are listed, at most",
        },
        Setting {
            name: "threshold",
            kind: Kind::Count(0, u64::MAX),
            default: Some("0"),
            required: false,
            help: "The least size of a flow that is listed; 0: the sketch's own resolution",
        },
        Setting {
            name: "keep",
            kind: Kind::Count(1, 10_000),
            default: Some("1"),
            required: false,
            help: "Epochs whose answers are reported: the last ones",
        },
        Setting {
            name: "seed",
            kind: Kind::Count(0, u64::MAX),
            default: None,
            required: false,
            help: "Seed of the sketches' hashes; left out: live one from the system, so that nobody can choose colliding flows, in a \
                   replay that of `run --seed`",
        },
        Setting {
            name: "rules",
            kind: Kind::Rules,
            default: Some("any"),
            required: false,
            help: "The packets that are measured",
        },
        Setting {
            name: "save",
            kind: Kind::File,
            default: None,
            required: false,
            help: "A folder to which the sketches of every epoch are saved as START.state (its begin in ns since 1970), for \
                   `measure query` and `measure merge`",
        },
    ],
    properties: Properties {
        writes: Some("save"),
        ..Properties::new(
            // An answer is about all packets of an epoch, which one set of sketches has seen.
            |_| Meets::Everything,
        )
    },
    build,
};

/// `auto` and the names of all sketches.
const SKETCHES: [&str; Sketch::ALL.len() + 1] = {
    let mut names = ["auto"; Sketch::ALL.len() + 1];
    let mut i = 0;
    while i < Sketch::ALL.len() {
        #[allow(clippy::indexing_slicing, reason = "evaluated at compile time")]
        {
            names[i + 1] = Sketch::ALL[i].name();
        }
        i += 1;
    }
    names
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let about = About::read(settings)?;
    let plan = about.plan(settings, site.seed);
    let keeper = settings.file("save").map(|folder| about.keeper(folder, plan.seed)).transpose()?;
    let configs = plan.configs(&about.ask);
    let unfit = |e: MeasureError| {
        let setting = if matches!(e, MeasureError::Query(_)) { "sketch" } else { "memory" };
        BuildError::setting(setting, e.to_string())
    };
    if site.dry {
        return SketchSet::new(about.ask, configs).map(|_| Made::Checked).map_err(unfit);
    }
    let keep = settings.number("keep") as usize;
    let snapshots = Snapshots::new(&about.ask, &configs, about.epoch, keep, !site.live, keeper);
    let snapshots = snapshots.map_err(|e| match e {
        EndError::Measure(e) => unfit(e),
        other => BuildError::stage(other.to_string()),
    })?;
    // Of a train's packets each is a value of its own.
    let per_train = settings.text("by") == "trains" && !about.kind.takes_values();
    let measure = Measure::new(about, snapshots, plan.seed, settings.rules("rules"), per_train);
    Ok(Made::Stage(Box::new(measure)))
}

/// The measurement that the settings ask for, as its report tells it.
#[derive(Debug)]
struct About {
    ask: Arc<Ask>,
    kind: Sketch,
    weight: Weight,
    epoch: EpochLength,
    aggregate: Option<Eviction>,
}

impl About {
    /// Reads the settings, and refuses what doesn't go together.
    fn read(settings: &Settings) -> Result<Self, BuildError> {
        let task: Task = settings.text("task").parse().unwrap_or_default();
        let named = Sketch::ALL.into_iter().find(|k| k.name() == settings.text("sketch"));
        let kind = named.unwrap_or_else(|| task.sketch());
        let key = Some(settings.text("key")).filter(|k| !k.is_empty());
        let keying = keying(key, task, kind).map_err(|e| BuildError::setting("key", e))?;
        let epoch: EpochLength =
            settings.text("epoch").parse().map_err(|e: String| BuildError::setting("epoch", e))?;
        let weight = Weight::named(settings.text("weight"));
        weight.refuse(kind, task).map_err(|e| BuildError::setting("weight", e))?;
        let want = Want { threshold: settings.number("threshold"), top: settings.number("top") as usize };
        let aggregate = match settings.text("aggregate") {
            // No aggregator can stand in front of values.
            _ if kind.takes_values() => None,
            "grr" => Some(Eviction::Grr),
            "lru" => Some(Eviction::Lru),
            _ => None,
        };
        let ask = Arc::new(Ask { task, keying, want, flows: Vec::new() });
        Ok(Self { ask, kind, weight, epoch, aggregate })
    }

    /// The sketches; where the settings name no seed, with that of the pipeline.
    fn plan(&self, settings: &Settings, seed: u64) -> Plan {
        Plan {
            kind: self.kind,
            size: Size::Memory(usize::try_from(settings.number("memory")).unwrap_or(usize::MAX)),
            aggregate: self.aggregate,
            seed: settings.optional_number("seed").unwrap_or(seed),
            compare: false,
            save: settings.file("save").is_some(),
            timed: false,
        }
    }

    /// The keeper that saves states in a folder, which must be there.
    fn keeper(&self, folder: &Path, seed: u64) -> Result<Keeper, BuildError> {
        if !folder.is_dir() {
            let message = format!("{}: there is no such folder; make it first", folder.display());
            return Err(BuildError::setting("save", message));
        }
        let about = Description {
            task: self.ask.task,
            sketch: self.kind.name().to_owned(),
            key: self.ask.keying.kind(),
            pairs: self.ask.keying.is_pairs(),
            weight: self.weight.name().to_owned(),
            epoch: self.epoch.to_string(),
            aggregate: self.aggregate_name().to_owned(),
            // Flow keys of a pipeline are those of the outermost header.
            tunnel: "outer".to_owned(),
            seed,
        };
        Ok(Keeper { folder: folder.to_path_buf(), about })
    }

    /// The aggregator's way of eviction, by its name in the settings.
    fn aggregate_name(&self) -> &'static str {
        match self.aggregate {
            Some(Eviction::Grr) => "grr",
            Some(Eviction::Lru) => "lru",
            None => "off",
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    packets: u64,
    updates: u64,
    not_ip: u64,
    /// First packets of their flows, which have no gap before them.
    first: u64,
    /// Ends of epochs that were put off, because the one before was still being answered.
    late: u64,
}

/// The stage.
#[derive(Debug)]
struct Measure {
    snapshots: Snapshots,
    about: About,
    /// The last packets of flows, where gaps are measured.
    gaps: Option<Gaps>,
    rules: Rule,
    per_train: bool,
    /// Packets until the epoch ends; of epochs by time, more than ever come.
    left: u64,
    /// The epoch under way; its packets are 0 until the first one comes.
    span: Span,
    /// When the epoch ends; never, where packets end it.
    end: Nanos,
    /// Says that an epoch has ended.
    begun: bool,
    counts: Counts,
    failed: Option<StageError>,
    /// The last epoch has ended.
    over: bool,
}

fn epoch_packets(epoch: EpochLength) -> u64 {
    match epoch {
        EpochLength::Packets(n) => n,
        EpochLength::Time(_) => u64::MAX,
    }
}

impl Measure {
    fn new(about: About, snapshots: Snapshots, seed: u64, rules: Rule, per_train: bool) -> Self {
        Self {
            snapshots,
            gaps: (about.weight == Weight::Gap).then(|| Gaps::new(seed)),
            rules,
            per_train,
            left: epoch_packets(about.epoch),
            about,
            span: Span::default(),
            end: Nanos::MAX,
            begun: false,
            counts: Counts::default(),
            failed: None,
            over: false,
        }
    }

    /// Ends the epoch if its time is over.
    fn pass_time(&mut self, now: Nanos) {
        if now >= self.end && self.end < Nanos::MAX && self.span.packets > 0 {
            self.span.end_ns = self.end.0;
            self.end_epoch();
        }
    }

    fn end_epoch(&mut self) {
        // Measuring may have begun within the first one.
        self.span.partial = self.end < Nanos::MAX && !self.begun;
        self.span.gaps_missing = self.forgotten_flows() > 0;
        match self.snapshots.end_epoch(self.span) {
            Ok(Outcome::Ended) => {
                self.begun = true;
                self.left = epoch_packets(self.about.epoch);
                self.span.packets = 0;
            }
            Ok(Outcome::GoesOn) => {
                self.counts.late += 1;
                match self.about.epoch {
                    EpochLength::Packets(n) => self.left = n,
                    EpochLength::Time(ns) => self.end = self.end.after(ns),
                }
            }
            Err(error) => {
                self.failed.get_or_insert_with(|| StageError::new(error));
                (self.left, self.end) = (u64::MAX, Nanos::MAX);
            }
        }
    }

    /// An epoch begins with its first packet; one by time where the clock says, but not before the one before
    /// has ended.
    fn begin(&mut self, now: Nanos) {
        let from = if self.end < Nanos::MAX { now.max(self.end) } else { now };
        self.span = Span { first_ns: now.0, last_ns: now.0, ..Span::begin(self.about.epoch, from.0) };
        if let EpochLength::Time(_) = self.about.epoch {
            self.end = Nanos(self.span.end_ns);
        }
    }

    /// Packets of one flow that leave at `release` at the earliest. An epoch may end between any two of them.
    fn take(&mut self, cx: &Context<'_>, release: Nanos, frames: &[Frame]) {
        let Some(first) = frames.first() else { return };
        let Some(key) = key_of(cx, first) else {
            self.counts.not_ip += frames.len() as u64;
            return;
        };
        let all = self.rules.is_always();
        let (mut packets, mut weight, mut last) = (0u64, 0u64, release);
        for frame in frames {
            let now = release.max(frame.arrival);
            let len = cx.pool.meta(frame.buf).original_len;
            if !all && !headers_of(cx, frame).is_some_and(|h| self.rules.matches(&h, len)) {
                continue;
            }
            let Some(own) = self.weight_of(&key, frame, len, now) else {
                self.counts.first += 1;
                continue;
            };
            if now >= self.end && self.span.packets + packets > 0 {
                self.add(last, &key, packets, weight);
                self.pass_time(now);
                (packets, weight) = (0, 0);
            }
            if self.span.packets + packets == 0 {
                self.begin(now);
            }
            last = now;
            packets += 1;
            weight += own;
            if packets == self.left {
                self.add(now, &key, packets, weight);
                self.end_epoch();
                (packets, weight) = (0, 0);
            }
        }
        self.add(last, &key, packets, weight);
    }

    /// The weight of a packet, at the time at which it is here; nothing of one that has no gap before it.
    #[inline]
    fn weight_of(&mut self, key: &FlowKey, frame: &Frame, len: u32, now: Nanos) -> Option<u64> {
        match (self.about.weight, &mut self.gaps) {
            (Weight::Bytes, _) => Some(u64::from(len)),
            (Weight::Delay, _) => Some(now.0.saturating_sub(frame.arrival.0)),
            (Weight::Gap, Some(gaps)) => gaps.since_last(&self.about.ask.keying.key(key), frame.arrival.0),
            _ => Some(1),
        }
    }

    /// Flows whose last packets had to give way.
    fn forgotten_flows(&self) -> u64 {
        self.gaps.as_ref().map_or(0, Gaps::forgotten)
    }

    fn add(&mut self, now: Nanos, key: &FlowKey, packets: u64, weight: u64) {
        if packets == 0 {
            return;
        }
        self.snapshots.push(key, weight);
        self.span.packets += packets;
        self.span.last_ns = now.0;
        if let EpochLength::Packets(_) = self.about.epoch {
            self.span.end_ns = now.0;
        }
        self.left -= packets;
        self.counts.packets += packets;
        self.counts.updates += 1;
    }
}

impl Stage for Measure {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, out: &mut dyn Output) {
        for (train, frames) in batch.iter() {
            if self.per_train {
                self.take(cx, train.release, frames);
            } else {
                frames.chunks(1).for_each(|frame| self.take(cx, train.release, frame));
            }
        }
        batch.ports.clear();
        out.emit(cx.pool, batch);
    }

    fn next_deadline(&self) -> Nanos {
        if self.span.packets > 0 { self.end } else { Nanos::MAX }
    }

    fn on_deadline(&mut self, cx: &mut Context<'_>, _: &mut dyn Output) {
        self.pass_time(cx.now);
    }

    /// What it asks about flows lies in sketches; packets pass as they came.
    fn flow_use(&self) -> FlowUse {
        FlowUse::PASSES
    }

    fn egress(&mut self) -> Option<&mut dyn Egress> {
        Some(self)
    }
}

impl Observe for Measure {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let (ended, saturated) = self.snapshots.ended();
        visit("packets_counted", self.counts.packets);
        visit("updates", self.counts.updates);
        visit("not_ip", self.counts.not_ip);
        visit("without_gap", self.counts.first);
        visit("forgotten_flows", self.forgotten_flows());
        visit("epochs", ended);
        visit("epochs_saturated", saturated);
        visit("epochs_put_off", self.counts.late);
        let (saved, failed) = self.snapshots.saved();
        visit("states_saved", saved);
        visit("states_not_saved", failed);
    }

    fn report(&self) -> Option<serde_json::Value> {
        let about = &self.about;
        let mut report = self.snapshots.report();
        if let Some(map) = report.as_object_mut() {
            map.insert("task".into(), about.ask.task.name().into());
            map.insert("sketch".into(), about.kind.name().into());
            map.insert("key".into(), about.ask.keying.kind().to_string().into());
            map.insert("weight".into(), about.weight.name().into());
            map.insert("by".into(), if self.per_train { "trains" } else { "packets" }.into());
            map.insert("aggregate".into(), about.aggregate_name().into());
            map.insert("epoch".into(), about.epoch.to_string().into());
        }
        Some(report)
    }
}

impl Egress for Measure {
    fn flush(&mut self) -> Result<(), StageError> {
        if std::mem::replace(&mut self.over, true) {
            return Ok(());
        }
        if let EpochLength::Time(_) = self.about.epoch {
            (self.span.end_ns, self.span.partial) = (self.end.0, true);
        }
        self.span.gaps_missing = self.forgotten_flows() > 0;
        let done = self.snapshots.finish(self.span).map_err(StageError::new);
        self.failed.take().map_or(done, Err)
    }

    fn finish(&mut self) -> Result<(), StageError> {
        self.flush()
    }
}

#[cfg(test)]
#[path = "stage_tests.rs"]
mod tests;
