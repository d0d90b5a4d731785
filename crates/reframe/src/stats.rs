//! Counters of the reframe stage, which are always on.

use alloc::vec;
use alloc::vec::Vec;

use slipstream_stats::Histogram;

use super::auto::AutoStats;
use super::compress::GroStats;
#[cfg(feature = "std")]
use super::config::ReframeConfig;
use slipstream_core::batch::BATCH;
use slipstream_core::frame::Frame;
use slipstream_core::time::Nanos;

/// The reason why a train left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It reached `burst` packets.
    Full,
    /// Its first packet had waited `hold` (or `hold` is 0).
    Deadline,
    /// It was the oldest when the stage was full.
    Capacity,
    /// A packet of its flow was to pass at once or be treated otherwise; the passing packet itself, too.
    Bypass,
    /// The stage was shut down.
    Drain,
}

impl Cause {
    /// All causes, in the order of [`ClassStats::released`].
    pub const ALL: [Self; 5] = [Self::Full, Self::Deadline, Self::Capacity, Self::Bypass, Self::Drain];

    /// Name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Deadline => "deadline",
            Self::Capacity => "capacity",
            Self::Bypass => "bypass",
            Self::Drain => "drain",
        }
    }
}

/// Counters of one class, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassStats {
    /// Classified packets that came in.
    pub packets_in: u64,
    /// Classified packets that went out.
    pub packets_out: u64,
    /// ... that were coalesced into others.
    pub packets_coalesced: u64,
    /// ... that passed at once, by rule or because they were their flow's first under
    /// [`Admit::Second`](super::Admit).
    pub packets_bypassed: u64,
    /// Trains that left.
    pub trains: u64,
    /// Trains by cause, in the order of [`Cause::ALL`].
    pub released: [u64; 5],
    /// Trains by packets, before coalescing; the index is the length.
    pub lengths: Vec<u64>,
    /// Added delay of every packet that went out, in ns.
    pub delay: Histogram,
    /// Time that trains of one packet waited and gained nothing, in ns.
    pub futile_wait_ns: u64,
    /// Trains of one packet that had waited.
    pub futile_trains: u64,
    /// Runs (maximal stretches of packets of one flow and of this class) among all that came in.
    pub runs_in: u64,
    /// Runs among all that went out.
    pub runs_out: u64,
    /// Most packets held at once.
    pub held_max: u32,
}

impl Default for ClassStats {
    fn default() -> Self {
        Self {
            packets_in: 0,
            packets_out: 0,
            packets_coalesced: 0,
            packets_bypassed: 0,
            trains: 0,
            released: [0; 5],
            lengths: vec![0; BATCH + 1],
            delay: Histogram::new(),
            futile_wait_ns: 0,
            futile_trains: 0,
            runs_in: 0,
            runs_out: 0,
            held_max: 0,
        }
    }
}

impl ClassStats {
    /// Adds another class's or worker's counters. Of packets held at once, the sum is a bound.
    pub fn merge(&mut self, other: &Self) {
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.packets_coalesced += other.packets_coalesced;
        self.packets_bypassed += other.packets_bypassed;
        self.trains += other.trains;
        self.futile_wait_ns += other.futile_wait_ns;
        self.futile_trains += other.futile_trains;
        self.runs_in += other.runs_in;
        self.runs_out += other.runs_out;
        self.held_max += other.held_max;
        self.released.iter_mut().zip(other.released).for_each(|(a, b)| *a += b);
        self.lengths.iter_mut().zip(&other.lengths).for_each(|(a, b)| *a += b);
        self.delay.merge(&other.delay);
    }

    /// Packets a train, before coalescing; `None` without a train.
    #[must_use]
    pub fn mean_train(&self) -> Option<f64> {
        (self.trains > 0).then(|| (self.packets_out + self.packets_coalesced) as f64 / self.trains as f64)
    }

    /// Packets a run among those that came in; `None` without packets.
    #[must_use]
    pub fn slf_in(&self) -> Option<f64> {
        (self.runs_in > 0).then(|| self.packets_in as f64 / self.runs_in as f64)
    }

    /// Packets a run among those that went out; `None` without packets.
    #[must_use]
    pub fn slf_out(&self) -> Option<f64> {
        (self.runs_out > 0).then(|| self.packets_out as f64 / self.runs_out as f64)
    }

    /// As JSON, with the names of these counters: a JSON object of what reports have of a class, or of all.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn to_json(&self) -> serde_json::Map<alloc::string::String, serde_json::Value> {
        use serde_json::{Map, json};
        let ns = |q| self.delay.quantile(q).map(|v| v.round() as u64);
        let released: Map<_, _> =
            Cause::ALL.iter().zip(self.released).map(|(c, n)| (c.name().into(), n.into())).collect();
        let lengths = self.lengths.iter().enumerate().filter(|(_, n)| **n > 0);
        let lengths: Vec<_> =
            lengths.map(|(length, n)| json!({ "from": length, "to": length, "count": n })).collect();
        let all = json!({
            "packets_in": self.packets_in,
            "packets_out": self.packets_out,
            "packets_coalesced": self.packets_coalesced,
            "packets_bypassed": self.packets_bypassed,
            // It drops nothing.
            "dropped": {},
            "trains": self.trains,
            "slf_in": self.slf_in(),
            "slf_out": self.slf_out(),
            "mean_train": self.mean_train(),
            "train_lengths": lengths,
            "delay_ns": {
                "mean": self.delay.mean(),
                "p50": ns(0.5),
                "p90": ns(0.9),
                "p99": ns(0.99),
                "max": self.delay.max(),
            },
            "futile_wait_ns": self.futile_wait_ns,
            "futile_trains": self.futile_trains,
            "released": released,
            "held_max": self.held_max,
        });
        match all {
            serde_json::Value::Object(map) => map,
            _ => Map::new(),
        }
    }

    /// Counts trains of one packet that waited for `hold_ns` and left at their deadline.
    pub(crate) fn trains_of_one_at_deadline(&mut self, hold_ns: u64, trains: u64) {
        self.trains += trains;
        self.packets_out += trains;
        if let Some(count) = self.released.get_mut(Cause::Deadline as usize) {
            *count += trains;
        }
        if let Some(count) = self.lengths.get_mut(1) {
            *count += trains;
        }
        self.delay.record_n(hold_ns, trains);
        self.futile_wait_ns += hold_ns * trains;
        self.futile_trains += trains;
    }

    /// Counts a train that left at `release`, before anything is coalesced.
    #[inline(always)]
    pub(crate) fn train_left(&mut self, cause: Cause, release: Nanos, frames: &[Frame]) {
        self.train(cause, frames.len());
        self.packets_out += frames.len() as u64;
        // No packet arrives after its train has left.
        self.delay.record_falling(frames.iter().map(move |f| release.0.wrapping_sub(f.arrival.0)));
        if let [one] = frames {
            let waited = release.since(one.arrival);
            self.futile_wait_ns += waited;
            self.futile_trains += u64::from(waited > 0);
        }
    }

    /// Counts packets that passed at once, each a train by itself.
    pub(crate) fn passed(&mut self, cause: Cause, packets: u64) {
        self.packets_out += packets;
        self.trains += packets;
        if let Some(count) = self.released.get_mut(cause as usize) {
            *count += packets;
        }
        if let Some(count) = self.lengths.get_mut(1) {
            *count += packets;
        }
        self.delay.record_n(0, packets);
    }

    /// Counts a train that left; `n` packets.
    #[inline(always)]
    pub(crate) fn train(&mut self, cause: Cause, n: usize) {
        self.trains += 1;
        if let Some(count) = self.released.get_mut(cause as usize) {
            *count += 1;
        }
        if let Some(count) = self.lengths.get_mut(n) {
            *count += 1;
        }
    }
}

/// Counters of one reframe stage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReframeStats {
    /// Packets that came in.
    pub packets_in: u64,
    /// Packets that went out.
    pub packets_out: u64,
    /// Packets that could not be classified, passed through untouched.
    pub unclassified: u64,
    /// Runs (maximal stretches of one flow) among classified packets that came in.
    pub runs_in: u64,
    /// Runs among classified packets that went out.
    pub runs_out: u64,
    /// Most packets held at once.
    pub held_max: u32,
    /// Packets held now.
    pub held: u32,
    /// Flows forgotten because the flow table was full.
    pub flow_evictions: u64,
    /// Flows whose place in the flow table's index lay far from where their hash says; only who knows the
    /// seed brings that about.
    pub long_probes: u64,
    /// One for each class, the default class first.
    pub classes: Vec<ClassStats>,
    /// Under [`Admit::Adaptive`](super::Admit), the price of each class: the delay that one packet more in a
    /// train is worth at present, in ns.
    pub prices_ns: Vec<u64>,
    /// One for each class whose hold sets itself.
    pub auto: Vec<AutoStats>,
    /// Super-frames, where they are made.
    pub gro: Option<GroStats>,
    /// Of each class after the default one that is about heavy flows: how many there are at present. Empty
    /// where no class is.
    pub heavy_flows: Vec<Option<usize>>,
}

impl ReframeStats {
    pub(crate) fn new(classes: usize) -> Self {
        Self { classes: vec![ClassStats::default(); classes], ..Self::default() }
    }

    /// All classes together.
    #[must_use]
    pub fn total(&self) -> ClassStats {
        let mut total = ClassStats::default();
        self.classes.iter().for_each(|c| total.merge(c));
        // A flow may change its class within a run, and no class need hold most when all together do.
        ClassStats { runs_in: self.runs_in, runs_out: self.runs_out, held_max: self.held_max, ..total }
    }

    /// Adds another worker's counters. Runs are those of its own stream: whoever puts the streams together
    /// has others.
    pub fn merge(&mut self, other: &Self) {
        self.runs_in += other.runs_in;
        self.runs_out += other.runs_out;
        self.packets_in += other.packets_in;
        self.packets_out += other.packets_out;
        self.unclassified += other.unclassified;
        self.held_max += other.held_max;
        self.held += other.held;
        self.flow_evictions += other.flow_evictions;
        self.long_probes += other.long_probes;
        if self.classes.len() < other.classes.len() {
            self.classes.resize(other.classes.len(), ClassStats::default());
        }
        self.classes.iter_mut().zip(&other.classes).for_each(|(a, b)| a.merge(b));
        if self.auto.is_empty() {
            self.auto.clone_from(&other.auto);
        }
        if self.prices_ns.is_empty() {
            self.prices_ns.clone_from(&other.prices_ns);
        }
        if self.heavy_flows.is_empty() {
            self.heavy_flows.clone_from(&other.heavy_flows);
        }
        if let Some(gro) = &other.gro {
            self.gro.get_or_insert_default().merge(gro);
        }
    }

    /// As JSON, with the names of these counters: those of all classes together and of the stage; and, where
    /// the settings `config` make any, `price_ns`, `auto`, `gro` and `classes`.
    #[cfg(feature = "std")]
    #[must_use]
    pub fn to_json(
        &self,
        config: &ReframeConfig,
    ) -> serde_json::Map<alloc::string::String, serde_json::Value> {
        let mut all = self.total().to_json();
        all.insert("packets_in".into(), self.packets_in.into());
        all.insert("packets_out".into(), self.packets_out.into());
        all.insert("packets_unclassified".into(), self.unclassified.into());
        all.insert("left_inside".into(), self.held.into());
        all.insert("flow_evictions".into(), self.flow_evictions.into());
        all.insert("long_probes".into(), self.long_probes.into());
        if let Some(price) = self.prices_ns.first() {
            all.insert("price_ns".into(), (*price).into());
        }
        if !self.auto.is_empty() {
            all.insert("auto".into(), self.auto.iter().map(AutoStats::report).collect());
        }
        if let Some(gro) = &self.gro {
            all.insert("gro".into(), gro.to_json());
        }
        if !config.classes.is_empty() {
            let mut classes: Vec<_> = self.classes_to_json(config.class_names()).collect();
            // The default class has no heavy flows of its own.
            for (class, flows) in classes.iter_mut().skip(1).zip(&self.heavy_flows) {
                if let Some(flows) = flows {
                    class.insert("heavy_flows".into(), (*flows).into());
                }
            }
            all.insert("classes".into(), classes.into());
        }
        all
    }

    /// The counters of each class as JSON, with its name in front.
    #[cfg(feature = "std")]
    pub fn classes_to_json<'a>(
        &self,
        names: impl IntoIterator<Item = &'a str>,
    ) -> impl Iterator<Item = serde_json::Map<alloc::string::String, serde_json::Value>> {
        names.into_iter().zip(&self.classes).map(|(name, stats)| {
            let mut class = serde_json::Map::new();
            class.insert("name".into(), name.into());
            class.extend(stats.to_json());
            class
        })
    }

    /// Packets a run among those that came in; `None` without packets.
    #[must_use]
    pub fn slf_in(&self) -> Option<f64> {
        let packets: u64 = self.classes.iter().map(|c| c.packets_in).sum();
        (self.runs_in > 0).then(|| packets as f64 / self.runs_in as f64)
    }

    /// Packets a run among those that went out; `None` without packets.
    #[must_use]
    pub fn slf_out(&self) -> Option<f64> {
        let packets: u64 = self.classes.iter().map(|c| c.packets_out).sum();
        (self.runs_out > 0).then(|| packets as f64 / self.runs_out as f64)
    }
}
