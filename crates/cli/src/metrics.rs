//! A running pipeline over HTTP: `/metrics` for Prometheus, `/report` with all figures, `/measure` with the
//! answers of `measure` stages.
//!
//! The [`server`] has a thread of its own. It asks the data path for [`snapshots`], which come between two
//! batches; while nobody asks, nothing is done.

mod formats;
mod server;
mod snapshots;

use std::fmt;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use crate::counters::is_level;
use crate::operate::Shared;
use crate::types;
use anyhow::Context;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};
use serde_json::{Value, json};
use slipstream::runtime::{RunReport, SourceReport, StageReport};
use slipstream::stage::DropReason;
use slipstream_stats::Histogram;

use self::formats::Format;
use self::snapshots::Snapshots;

/// Upper ends of the classes of delays: powers of two from 1 µs.
const CLASSES: u32 = 24;

/// Serves the figures of a run that is operated so at `address` until the program ends, at `/report` as
/// `as_json` gives them; returns the address, in which port 0 has become the port that the system chose.
///
/// # Errors
/// If the address can't be bound.
pub(crate) fn serve(
    address: SocketAddr,
    operation: Shared,
    as_json: fn(&RunReport) -> Value,
) -> anyhow::Result<SocketAddr> {
    let failed = || format!("--metrics {address}");
    let listener = TcpListener::bind(address).with_context(failed)?;
    listener.set_nonblocking(true).with_context(failed)?;
    let at = listener.local_addr().with_context(failed)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().with_context(failed)?;
    let pages = Pages { snapshots: Snapshots::of(operation.monitor.clone()), operation, as_json };
    let snapshots = pages.snapshots.clone();
    let app = Router::new()
        .route("/", get(|| async { "/metrics: Prometheus\n/healthz: does the data path answer?\n/report: the whole report, JSON\n/measure: answers of measure stages, JSON\n" }))
        .route("/metrics", get(metrics))
        .route("/healthz", get(healthz))
        .route("/report", get(report))
        .route("/measure", get(measure))
        .with_state(pages);
    let serve = async move {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        tokio::spawn(snapshots.publish());
        server::serve(listener, app).await;
        Ok::<(), std::io::Error>(())
    };
    let thread = std::thread::Builder::new().name("metrics".into());
    thread
        .spawn(move || {
            if let Err(error) = runtime.block_on(serve) {
                tracing::warn!("--metrics {address}: {error}");
            }
        })
        .with_context(failed)?;
    Ok(at)
}

/// The source of the pages.
#[derive(Clone)]
struct Pages {
    snapshots: Snapshots,
    operation: Shared,
    as_json: fn(&RunReport) -> Value,
}

fn not_yet() -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, "the pipeline has not answered yet\n").into_response()
}

async fn metrics(State(pages): State<Pages>, asked: HeaderMap) -> Response {
    let Some(snapshot) = pages.snapshots.next().await else { return not_yet() };
    match snapshot.metrics.get_or_init(|| as_text(snapshot.report.clone(), pages.operation.counts()).ok()) {
        Some(text) => {
            let accept = asked.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
            let format = Format::of(accept);
            ([(header::CONTENT_TYPE, format.name()), (header::VARY, "accept")], format.of_text(text))
                .into_response()
        }
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// For probes: the data path answers, or it doesn't.
async fn healthz(State(pages): State<Pages>) -> Response {
    match pages.snapshots.next().await {
        Some(_) => (StatusCode::OK, "ok\n").into_response(),
        None => (StatusCode::SERVICE_UNAVAILABLE, "the data path doesn't answer\n").into_response(),
    }
}

async fn measure(State(pages): State<Pages>) -> Response {
    let Some(snapshot) = pages.snapshots.next().await else { return not_yet() };
    let stages = snapshot.report.stages.iter().filter(|s| s.kind == MEASURE);
    let stage = |s: &StageReport| json!({ "name": s.name, "measure": s.report });
    Json(json!({ "schema": 1, "stages": stages.map(stage).collect::<Vec<_>>() })).into_response()
}

/// The report, and when it was given.
async fn report(State(pages): State<Pages>) -> Response {
    let Some(snapshot) = pages.snapshots.next().await else { return not_yet() };
    let page = snapshot.page.get_or_init(|| {
        let mut value = (pages.as_json)(&snapshot.report);
        if let Value::Object(fields) = &mut value {
            fields.insert("time_ns".to_owned(), snapshot.time.0.into());
        }
        value.to_string()
    });
    ([(header::CONTENT_TYPE, "application/json")], page.clone()).into_response()
}

/// The type of stages that measure.
const MEASURE: &str = "measure";

/// A report, and what is counted of the run itself, as OpenMetrics.
fn as_text(report: Arc<RunReport>, of_run: Vec<(&'static str, u64)>) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("slipstream");
    registry.register_collector(Box::new(Figures { report, of_run }));
    let mut out = String::new();
    text::encode(&mut out, &registry)?;
    Ok(out)
}

#[derive(Debug)]
struct Figures {
    report: Arc<RunReport>,
    /// The counts of the run itself, by name.
    of_run: Vec<(&'static str, u64)>,
}

/// The labels of a figure.
type Labels = Vec<(&'static str, String)>;
/// A figure with its labels.
type Sample = (Labels, f64);

/// A family of figures, if there are any.
fn family(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help, unit): (&str, &str, Option<&Unit>),
    kind: MetricType,
    samples: &[Sample],
) -> fmt::Result {
    if samples.is_empty() {
        return Ok(());
    }
    let mut family = encoder.encode_descriptor(name, help, unit, kind)?;
    for (labels, value) in samples {
        let mut one = family.encode_family(labels)?;
        match kind {
            MetricType::Counter => one.encode_counter::<NoLabelSet, _, f64>(value, None)?,
            _ => one.encode_gauge(value)?,
        }
    }
    Ok(())
}

impl Collector for Figures {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let report = &*self.report;
        self.sources(&mut encoder)?;
        self.stages(&mut encoder)?;
        self.measures(&mut encoder)?;
        self.reframes(&mut encoder)?;
        let build = [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0)];
        let help = "The version of the program; its value is 1";
        family(&mut encoder, ("build_info", help, None), MetricType::Gauge, &build)?;
        let of_run = |(name, n): &(&'static str, u64)| (vec![("name", (*name).to_owned())], *n as f64);
        let of_run: Vec<Sample> = self.of_run.iter().map(of_run).collect();
        let help = "What is counted of the run itself, since it began";
        family(&mut encoder, ("run_count", help, None), MetricType::Counter, &of_run)?;
        let mut single = |name, help, unit: Option<&Unit>, kind, value| {
            family(&mut encoder, (name, help, unit), kind, &[(Vec::new(), value)])
        };
        single("packets_inside", "Packets in the pipeline", None, MetricType::Gauge, report.live as f64)?;
        let (elapsed, cpu) = (report.elapsed_ns as f64 / 1e9, report.cpu_ns as f64 / 1e9);
        single("elapsed", "Time of the data path", Some(&Unit::Seconds), MetricType::Counter, elapsed)?;
        single("cpu", "CPU time of the data path", Some(&Unit::Seconds), MetricType::Counter, cpu)?;
        let mut delays = self.all_stages().filter_map(|s| Some((s, s.0.excess.as_ref()?))).peekable();
        if delays.peek().is_none() {
            return Ok(());
        }
        let help = "How much later than due packets left";
        let unit = Unit::Seconds;
        let mut all = encoder.encode_descriptor("excess_delay", help, Some(&unit), MetricType::Histogram)?;
        for (stage, delay) in delays {
            let (sum, count, buckets) = classes(delay);
            all.encode_family(&labels(stage))?.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }
}

/// Writes the counts of stages or sources (`of`) of their own: counters, levels, and both as gauges.
fn own_counts(encoder: &mut DescriptorEncoder<'_>, of: &str, values: Vec<Sample>) -> fmt::Result {
    let help = format!("What a {of} counts by itself: counters and levels");
    family(encoder, (&format!("{of}_value"), &help, None), MetricType::Gauge, &values)?;
    let is_level =
        |(labels, _): &Sample| labels.iter().any(|(label, name)| *label == "name" && is_level(name));
    let (levels, counters): (Vec<_>, Vec<_>) = values.into_iter().partition(is_level);
    let help = format!("What a {of} counts by itself, since it began");
    family(encoder, (&format!("{of}_count"), &help, None), MetricType::Counter, &counters)?;
    let help = format!("What a {of} has or is set to at the moment");
    family(encoder, (&format!("{of}_level"), &help, None), MetricType::Gauge, &levels)
}

/// A stage or a source, with the number of its shard where there are several.
type Placed<'a, T> = (&'a T, Option<usize>);

fn labels((stage, shard): Placed<'_, StageReport>) -> Labels {
    in_shard(vec![("stage", stage.name.clone()), ("type", stage.kind.to_owned())], shard)
}

impl Figures {
    /// The labels of a source. Its type is that of the whole run's: a shard that packets of this source only
    /// come to by way of another one has something in its place that gives none.
    fn source_labels(&self, (source, shard): Placed<'_, SourceReport>) -> Labels {
        let whole = self.report.sources.iter().find(|whole| whole.name == source.name);
        let kind = whole.map_or(source.kind, |whole| whole.kind);
        in_shard(vec![("source", source.name.clone()), ("type", kind.to_owned())], shard)
    }
}

fn in_shard(labels: Labels, shard: Option<usize>) -> Labels {
    match shard {
        Some(shard) => with(labels, "shard", &shard.to_string()),
        None => labels,
    }
}

fn with(mut labels: Labels, name: &'static str, value: &str) -> Labels {
    labels.push((name, value.to_owned()));
    labels
}

/// Packets that a stage dropped, by reason. Reasons that its type has are 0 before their first drop: an alert
/// on a series that doesn't exist yet never fires.
fn dropped(stage: &StageReport) -> Vec<(DropReason, u64)> {
    let known = types::stage_type(stage.kind).map(|t| t.drop_reasons()).unwrap_or_default();
    let mut all: Vec<(DropReason, u64)> = stage.drops.iter().collect();
    let none_yet = |why: &DropReason| !all.iter().any(|(seen, _)| seen == why);
    let none_yet: Vec<_> = known.into_iter().filter(none_yet).map(|why| (why, 0)).collect();
    all.extend(none_yet);
    all.sort_unstable_by_key(|(why, _)| why.number());
    all
}

/// A histogram of ns in seconds: sum, count, and how many fell into each class.
///
/// The end of each class is the least value of one of the histogram's buckets, and that bucket counts to the
/// class: the end is often a stage's hold, and many delays equal it. So delays that are up to 0.4 % longer
/// than the end are in the class, too.
fn classes(delays: &Histogram) -> (f64, u64, Vec<(f64, u64)>) {
    let end_ns = |class: u32| 1000i64 << class;
    let mut counts: Vec<(i64, u64)> = (0..CLASSES).map(|c| (end_ns(c), 0)).collect();
    counts.push((i64::MAX, 0));
    for bucket in delays.buckets() {
        if let Some(class) = counts.iter_mut().find(|c| bucket.from <= c.0) {
            class.1 += bucket.count;
        }
    }
    let seconds = |ns: i64| if ns == i64::MAX { f64::MAX } else { ns as f64 / 1e9 };
    let counts = counts.into_iter().map(|(end, count)| (seconds(end), count)).collect();
    let sum = delays.mean().unwrap_or(0.0) * delays.count() as f64 * 1e-9;
    (sum, delays.count(), counts)
}

impl Figures {
    /// The reports that figures are of: that of the run, or those of its shards.
    fn parts(&self) -> impl Iterator<Item = (&RunReport, Option<usize>)> {
        let alone = self.report.shards.is_empty().then_some((&*self.report, None));
        alone.into_iter().chain(self.report.shards.iter().enumerate().map(|(n, shard)| (shard, Some(n))))
    }

    fn all_stages(&self) -> impl Iterator<Item = Placed<'_, StageReport>> {
        self.parts().flat_map(|(report, shard)| report.stages.iter().map(move |s| (s, shard)))
    }

    fn sources(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let sources: Vec<Placed<'_, SourceReport>> =
            self.parts().flat_map(|(report, shard)| report.sources.iter().map(move |s| (s, shard))).collect();
        let of = |value: fn(&SourceReport) -> u64| -> Vec<Sample> {
            sources.iter().map(|s| (self.source_labels(*s), value(s.0) as f64)).collect()
        };
        let counter = MetricType::Counter;
        let help = "Packets that came from a source";
        family(encoder, ("source_packets", help, None), counter, &of(|s| s.packets))?;
        let help = "Packets of a source whose time ran backwards";
        family(encoder, ("source_clock_backwards", help, None), counter, &of(|s| s.clock_backwards))?;
        let value =
            |s, (name, n): &(&'static str, u64)| (with(self.source_labels(s), "name", name), *n as f64);
        let values: Vec<Sample> =
            sources.iter().flat_map(|s| s.0.counters.iter().map(move |c| value(*s, c))).collect();
        own_counts(encoder, "source", values)
    }

    fn stages(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let stages: Vec<Placed<'_, StageReport>> = self.all_stages().collect();
        let of = |value: fn(&StageReport) -> f64| -> Vec<Sample> {
            stages.iter().map(|s| (labels(*s), value(s.0))).collect()
        };
        let counter = MetricType::Counter;
        let mut count = |name, help, value: fn(&StageReport) -> f64| {
            family(encoder, (name, help, None), counter, &of(value))
        };
        count("stage_packets", "Packets that a stage took", |s| s.tally.packets as f64)?;
        count("stage_packets_out", "Packets that a stage emitted", |s| s.tally.packets_out as f64)?;
        count("stage_batches", "Batches that a stage took", |s| s.tally.batches as f64)?;
        count("stage_trains", "Trains that a stage took", |s| s.tally.trains as f64)?;
        let busy = of(|s| s.tally.busy_ns as f64 / 1e9);
        family(encoder, ("stage_busy", "Time spent in a stage", Some(&Unit::Seconds)), counter, &busy)?;
        let troubled = of(|s| f64::from(u8::from(s.trouble.is_some())));
        let help = "1 where a stage can't write what it is to write";
        family(encoder, ("stage_trouble", help, None), MetricType::Gauge, &troubled)?;
        let held = of(|s| s.held as f64);
        family(encoder, ("stage_held", "Packets that a stage holds", None), MetricType::Gauge, &held)?;
        let (mut drops, mut values) = (Vec::new(), Vec::new());
        for s in stages {
            drops.extend(
                dropped(s.0).into_iter().map(|(why, n)| (with(labels(s), "reason", why.name()), n as f64)),
            );
            values.extend(s.0.counters.iter().map(|(name, n)| (with(labels(s), "name", name), *n as f64)));
        }
        family(encoder, ("dropped_packets", "Packets dropped, by reason", None), counter, &drops)?;
        own_counts(encoder, "stage", values)
    }

    /// Trains of `reframe` stages, and what they cost in delay.
    fn reframes(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let all = || self.all_stages().filter_map(|s| Some((s, s.0.reframe.as_deref()?)));
        let (mut factors, mut lengths) = (Vec::new(), Vec::new());
        let (mut packets, mut runs) = (Vec::new(), Vec::new());
        let (mut trains, mut train_packets) = (Vec::new(), Vec::new());
        for (stage, stats) in all() {
            let total = stats.total();
            for (side, slf) in [("in", stats.slf_in()), ("out", stats.slf_out())] {
                factors.extend(slf.map(|slf| (with(labels(stage), "side", side), slf)));
            }
            lengths.extend(total.mean_train().map(|mean| (labels(stage), mean)));
            for (side, of_packets, of_runs) in
                [("in", total.packets_in, total.runs_in), ("out", total.packets_out, total.runs_out)]
            {
                packets.push((with(labels(stage), "side", side), of_packets as f64));
                runs.push((with(labels(stage), "side", side), of_runs as f64));
            }
            trains.push((labels(stage), total.trains as f64));
            train_packets.push((labels(stage), (total.packets_out + total.packets_coalesced) as f64));
        }
        // The means above are of the whole run; rates of these are those of any time.
        let counter = MetricType::Counter;
        let help = "Classified packets that came in and went out";
        family(encoder, ("reframe_packets", help, None), counter, &packets)?;
        let help = "Runs, maximal stretches of packets of one flow, among them";
        family(encoder, ("reframe_runs", help, None), counter, &runs)?;
        family(encoder, ("reframe_trains", "Trains that left", None), counter, &trains)?;
        let help = "Packets of the trains that left, before some of them were merged";
        family(encoder, ("reframe_train_packets", help, None), counter, &train_packets)?;
        let gauge = MetricType::Gauge;
        let help =
            "Spatial locality factor: mean number of packets of a flow back to back, since the run began";
        family(encoder, ("reframe_slf", help, None), gauge, &factors)?;
        family(
            encoder,
            ("reframe_mean_train", "Mean packets of a train, since the run began", None),
            gauge,
            &lengths,
        )?;
        if all().next().is_none() {
            return Ok(());
        }
        let help = "Time that packets were held";
        let mut delays = encoder.encode_descriptor(
            "reframe_added_delay",
            help,
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for (stage, stats) in all() {
            let (sum, count, buckets) = classes(&stats.total().delay);
            delays
                .encode_family(&labels(stage))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, None)?;
        }
        Ok(())
    }

    /// Answers of `measure` stages about the last epoch: sizes of flows, or one figure with its bounds.
    /// Distributions are in `/measure`.
    fn measures(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (mut flows, mut figures, mut ends) = (Vec::new(), Vec::new(), Vec::new());
        for (s, _) in self.all_stages().filter(|(s, _)| s.kind == MEASURE) {
            let Some(report) = &s.report else { continue };
            let Some(epoch) = report.get("epochs").and_then(|e| e.as_array()?.last()) else { continue };
            let task = report.get("task").and_then(Value::as_str).unwrap_or_default();
            let labels = || vec![("stage", s.name.clone()), ("task", task.to_owned())];
            let number = |of: &Value, name: &str| of.get(name).and_then(Value::as_f64);
            for row in epoch.get("answers").and_then(Value::as_array).into_iter().flatten() {
                let key = row.get("key").and_then(Value::as_str).unwrap_or_default();
                flows.extend(number(row, "estimate").map(|n| (with(labels(), "key", key), n)));
            }
            for bound in ["estimate", "lower", "upper"] {
                figures.extend(number(epoch, bound).map(|n| (with(labels(), "bound", bound), n)));
            }
            ends.extend(number(epoch, "end_ns").map(|ns| (labels(), ns / 1e9)));
        }
        let gauge = MetricType::Gauge;
        let help = "Size of a flow, or of its change, in the last epoch";
        family(encoder, ("measure_flow", help, None), gauge, &flows)?;
        let help = "A figure of the last epoch, and its bounds";
        family(encoder, ("measure_figure", help, None), gauge, &figures)?;
        let help = "End of the last epoch, since 1970";
        family(encoder, ("measure_epoch_end", help, Some(&Unit::Seconds)), gauge, &ends)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_that_ends_a_class_is_in_it() {
        for class in 0..CLASSES {
            let (end_ns, mut delays) = (1000u64 << class, Histogram::new());
            delays.record(end_ns);
            let (_, count, classes) = classes(&delays);
            let within = classes.iter().find(|(_, n)| *n > 0).map(|(end, _)| *end);
            assert_eq!((count, within), (1, Some(end_ns as f64 / 1e9)));
            // What is longer by more than the histogram's precision is in the next one.
            let mut delays = Histogram::new();
            delays.record(end_ns + end_ns / 128);
            let classes = super::classes(&delays).2;
            let within = classes.iter().position(|(_, n)| *n > 0);
            assert_eq!(within, Some(class as usize + 1), "{end_ns}");
        }
    }
}
