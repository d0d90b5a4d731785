//! One function that only forwards all packets (Figs. 4 to 7): our cross-connect, and one that takes
//! exactly as long as is stated.
//!
//! The time of our own cross-connect depends on the core, and a core that others use too is now twice as fast
//! and now not: then nobody can say which service times to put into the model. With a stated cost the
//! polling, the ring, the batches and the losses are the engine's as before, and service times are known, so
//! that the model is all that is put to the test.

use serde_json::{Value, json};
use slipstream_model::{Fit, Interarrival, PollLog, Solution, Strategy, compare, fit};

use super::{
    BATCH, Bench, Chain, Chart, Findings, Measured, PROCESSES, Process, QUEUE, Speed, by_class, capacity,
    classes, effort, engine, load, mean, processes, quantile, question, solve,
};

/// The packets that are sent in a loop.
const TRAFFIC: &str = "traffic=\"flows=1000,size=60,packets=4096\"";
/// Stated cost of a poll and of each of its packets, in ns: four times the 1008 ns + 71.3 ns
/// that fit the measurements which the paper's authors published, which any core can keep to. In the model
/// the unit of time changes nothing.
const STATED: (u32, u32) = (4032, 285);
const STATED_KEY: &str = "stated cost";

/// The chain of functions behind the ring.
pub(super) struct Subject {
    pub(super) chain: Chain,
    /// The beginning of its claims.
    name: String,
    /// Its name in rows and charts.
    pub(super) key: &'static str,
}

impl Subject {
    /// The paper's cross-connect, all packets from one port to the other. They are of many flows and are
    /// counted by flow, since the cross-connect alone takes more packets than a generator on the other core
    /// can make.
    pub(super) fn cross_connect() -> Self {
        let graph = "[a]xc :: l2fwd(ports=[a, b], map=[\"a > b\"], decide=packet); xc[b] -> flow_stats(decide=packet) -> \
                     out :: null";
        let chain = Chain { traffic: TRAFFIC.to_owned(), graph: graph.to_owned() };
        Self { chain, name: "our cross-connect".to_owned(), key: "cross-connect" }
    }

    /// A function that takes a stated time.
    pub(super) fn stated() -> Self {
        let (poll, packet) = STATED;
        let traffic = format!("per_poll={poll}ns, per_packet={packet}ns, {TRAFFIC}");
        let chain = Chain { traffic, graph: "out :: null".to_owned() };
        Self {
            chain,
            name: format!("the solver against a replay at a stated cost, {poll} ns + {packet} ns a packet"),
            key: STATED_KEY,
        }
    }

    /// The paper's figure for a claim about it; none for a stated cost, since the paper measured a VPP.
    pub(super) fn paper(&self, figure: impl Into<Value>) -> Value {
        if self.key == STATED_KEY { Value::Null } else { figure.into() }
    }

    /// A claim about it.
    pub(super) fn says(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }
}

/// The calibrated chain, for other parts of the lab.
pub(super) struct Calibrated {
    pub(super) subject: Subject,
    pub(super) fit: Fit,
    /// Capacity of the chain, packets a second.
    pub(super) capacity_pps: f64,
    /// The core had its full speed for long enough.
    pub(super) steady: bool,
}

/// A load and the measurements at it.
struct LoadPoint {
    load: f64,
    name: String,
    rate_pps: f64,
    measured: Measured,
    pmf: Vec<f64>,
}

pub(super) fn run(
    lab: &Bench<'_>,
    subject: Subject,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<Option<Calibrated>> {
    let chain = &subject.chain;
    let Some(capacity_pps) = capacity(lab, chain, speed)? else {
        findings.claim(
            subject.says("the mean batch is off by packets, at most (Fig. 5)"),
            subject.paper(1),
            "at most 1 packet",
            None,
            false,
        );
        return Ok(None);
    };
    let loads: &[f64] = if lab.quick {
        &[0.2, 0.5, 0.8, 1.15]
    } else {
        &[0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.1, 1.2, 1.3, 1.4]
    };
    let asked: Vec<_> =
        loads.iter().map(|of| (format!("{of}"), load(capacity_pps, *of, Process::Constant))).collect();
    let measured = engine::measure(lab, chain, &asked, speed, effort(lab, 35))?;
    let each = loads.iter().zip(asked).zip(measured);
    let points: Vec<LoadPoint> =
        each.map(|((of, (name, load)), m)| LoadPoint::new(*of, name, load.rate_pps, m)).collect();
    let runs = points.iter().filter_map(|p| p.measured.log.as_ref()).flat_map(|log| log.runs.clone());
    let log = PollLog { runs: runs.collect() };
    let found = fit(&log)?;
    services(&subject, &found, &points, findings);
    distributions(&subject, &found, &points, findings);
    other_arrivals(lab, (&subject, capacity_pps), &found, speed, findings)?;
    let steady = steady(&points);
    Ok(Some(Calibrated { subject, fit: found, capacity_pps, steady }))
}

impl LoadPoint {
    fn new(load: f64, name: String, rate_pps: f64, measured: Measured) -> Self {
        let pmf = measured.log.as_ref().map(PollLog::batch_pmf).unwrap_or_default();
        Self { load, name, rate_pps, measured, pmf }
    }

    fn is_above_saturation(&self) -> bool {
        self.load > 1.0
    }

    /// Share of packets lost: above saturation those that were not served, below it those that the ring
    /// dropped.
    fn p_loss(&self) -> Option<f64> {
        if self.is_above_saturation() { self.measured.unserved(self.rate_pps) } else { self.measured.p_loss }
    }
}

fn steady(points: &[LoadPoint]) -> bool {
    points.iter().all(|p| p.measured.steady)
}

/// Fig. 4: service times by batch size, and lines through them.
fn services(subject: &Subject, found: &Fit, points: &[LoadPoint], findings: &mut Findings) {
    let line = |name: &str, l: &slipstream_model::Line| {
        json!({
            "chain": subject.key, "figure": "4", "fit": name, "services": l.services, "batch_min": l.batch_min, "batch_max": l.batch_max,
            "service_base_ns": l.service_base_ns, "service_per_packet_ns": l.service_per_packet_ns,
            "r_squared": l.r_squared,
        })
    };
    findings.row(line("all loads", &found.global));
    for (name, l) in &found.per_rate {
        if let Ok(l) = l {
            findings.row(line(&format!("load {name}"), l));
        }
    }
    let sizes: Vec<_> = found.by_size.iter().filter(|s| s.batch > 0 && s.services >= 5).collect();
    let step = sizes.len().div_ceil(24).max(1);
    let shown = || sizes.iter().step_by(step);
    let at = |v: u32| found.global.service_base_ns + found.global.service_per_packet_ns * f64::from(v);
    findings.draw(Chart {
        title: format!("Fig. 4: service time by batch size ({})", subject.key),
        caption: format!(
            "Means over all {} loads, and the line through them: {:.0} ns + {:.1} ns a packet.",
            points.len(),
            found.global.service_base_ns,
            found.global.service_per_packet_ns
        ),
        x_label: "packets in the batch".into(),
        y_label: "µs".into(),
        groups: shown().map(|s| s.batch.to_string()).collect(),
        series: vec![
            ("measured".into(), shown().map(|s| Some(s.mean_ns / 1e3)).collect()),
            ("line".into(), shown().map(|s| Some(at(s.batch) / 1e3)).collect()),
        ],
    });
    findings.claim(
        subject.says("service times follow a line over the batch size (R²; Fig. 4)"),
        subject.paper("linear fits"),
        "R² above 0.95",
        Some((json!(found.global.r_squared), found.global.r_squared > 0.95)),
        steady(points),
    );
}

/// Figs. 5 to 7: mean, distribution and loss by load, for both fits and all arrival processes.
fn distributions(subject: &Subject, found: &Fit, points: &[LoadPoint], findings: &mut Findings) {
    let all = predict(found, points);
    let mut off = Off { mean: Some(0.0), mean_per_rate: None, loss: None, poisson_is_nearest: true };
    for (p, predicted) in points.iter().zip(&all) {
        off.poisson_is_nearest &= batch_sizes(subject, p, predicted, findings);
        means(subject, p, predicted, findings);
        off.add(p, predicted);
    }
    charts(subject, points, &all, findings);
    off.claims(subject, steady(points), findings);
}

/// The model's answers for a load.
struct Predicted {
    /// By the line over all loads, for each of [`processes`].
    by_process: Vec<Option<Solution>>,
    /// By the line of this load alone, with Poisson times between packets.
    per_rate: Option<Solution>,
}

impl Predicted {
    /// By the line over all loads, with Poisson times between packets: the first of [`processes`].
    fn global(&self) -> Option<&Solution> {
        self.by_process.first()?.as_ref()
    }
}

fn predict(found: &Fit, points: &[LoadPoint]) -> Vec<Predicted> {
    let mut questions = Vec::new();
    for p in points {
        let gap = 1e9 / p.rate_pps;
        let size = (QUEUE, BATCH);
        for (_, process) in processes(gap) {
            questions.push(process.and_then(|a| question(found, (Strategy::Global, None), a, size)));
        }
        let per_rate = (Strategy::PerRate, Some(p.name.as_str()));
        questions.push(Interarrival::poisson(gap).and_then(|a| question(found, per_rate, a, size)));
    }
    let mut answers = solve(questions).into_iter();
    let of_load = |_| Predicted {
        by_process: answers.by_ref().take(PROCESSES).collect(),
        per_rate: answers.next().flatten(),
    };
    points.iter().map(of_load).collect()
}

/// Fig. 6: rows of the batch sizes at a load; says whether no process of arrivals comes nearer to them than
/// Poisson times, by more than 0.01.
fn batch_sizes(subject: &Subject, p: &LoadPoint, predicted: &Predicted, findings: &mut Findings) -> bool {
    let mut divergences = Vec::new();
    for ((name, _), s) in processes(1e9 / p.rate_pps).iter().zip(&predicted.by_process) {
        let compared = s.as_ref().and_then(|s| Some((s, compare(&p.pmf, &s.batch_pmf).ok()?)));
        divergences.push(compared.as_ref().map(|(_, c)| c.jsd));
        let Some((s, c)) = compared else { continue };
        findings.row(json!({
            "chain": subject.key, "figure": "6", "load": p.load, "rate_mpps": p.rate_pps / 1e6, "model": name,
            "measured_p5": quantile(&p.pmf, 0.05), "measured_p50": quantile(&p.pmf, 0.5),
            "measured_p95": quantile(&p.pmf, 0.95), "predicted_p5": s.batch_quantile(0.05),
            "predicted_p50": s.batch_quantile(0.5), "predicted_p95": s.batch_quantile(0.95),
            "relative_error": c.relative_error, "jsd": c.jsd,
        }));
    }
    let least = divergences.iter().flatten().copied().fold(f64::INFINITY, f64::min);
    divergences.first().copied().flatten().is_some_and(|poisson| poisson <= least + 0.01)
}

/// Figs. 5 and 7: a row of the mean batch, the loss and the sojourn at a load.
fn means(subject: &Subject, p: &LoadPoint, predicted: &Predicted, findings: &mut Findings) {
    let (global, per_rate) = (predicted.global(), predicted.per_rate.as_ref());
    findings.row(json!({
        "chain": subject.key, "figure": "5, 7", "load": p.load, "rate_mpps": p.rate_pps / 1e6, "polls": p.measured.polls(),
        "slices": p.measured.slices, "full_speed": p.measured.full_speed, "interrupted": p.measured.interrupted,
        "mean_batch": mean(&p.pmf), "mean_batch_global": global.map(|s| s.mean_batch),
        "mean_batch_per_rate": per_rate.map(|s| s.mean_batch), "p_loss": p.p_loss(),
        "p_loss_predicted": global.map(|s| s.p_loss),
        "sojourn_p99_ns": p.measured.sojourn.quantile(0.99),
        "sojourn_p99_predicted_ns": global.map(|s| s.sojourn.quantile_ns(0.99)),
    }));
}

/// The largest errors of predictions, over all loads; none where nothing can be told.
struct Off {
    /// Mean batch by the line over all loads, in packets.
    mean: Option<f64>,
    /// Mean batch by the line of each load, in packets.
    mean_per_rate: Option<f64>,
    /// Share lost above saturation.
    loss: Option<f64>,
    /// At every load, no process of arrivals comes nearer to the batch sizes than Poisson times.
    poisson_is_nearest: bool,
}

impl Off {
    fn add(&mut self, p: &LoadPoint, predicted: &Predicted) {
        let off = |s: &Solution| (s.mean_batch - mean(&p.pmf)).abs();
        let global = predicted.global();
        self.mean = self.mean.zip(global).map(|(most, s)| most.max(off(s)));
        if let Some(s) = &predicted.per_rate {
            self.mean_per_rate = Some(self.mean_per_rate.unwrap_or(0.0).max(off(s)));
        }
        if let Some((s, measured)) = global.zip(p.p_loss()).filter(|_| p.is_above_saturation()) {
            self.loss = Some(self.loss.unwrap_or(0.0).max((s.p_loss - measured).abs()));
        }
    }

    fn claims(&self, subject: &Subject, steady: bool, findings: &mut Findings) {
        findings.claim(
            subject.says("the mean batch is off by packets, at most, global fit (Fig. 5)"),
            subject.paper(1),
            "at most 1 packet",
            self.mean.map(|m| (json!(m), m <= 1.0)),
            steady,
        );
        findings.claim(
            subject.says("the mean batch is off by packets, at most, one fit a rate (Fig. 5)"),
            subject.paper(8),
            "at most 8 packets",
            self.mean_per_rate.map(|m| (json!(m), m <= 8.0)),
            steady,
        );
        findings.claim(
            subject.says(
                "of four arrival processes Poisson times are nearest to a constant rate (JSD, to 0.01; Fig. 6)",
            ),
            subject.paper(true),
            "no other process nearer by more than 0.01",
            Some((json!(self.poisson_is_nearest), self.poisson_is_nearest)),
            steady,
        );
        findings.claim(
            subject.says("above saturation the share lost is off by points, at most (Fig. 7)"),
            subject.paper("bars of equal height"),
            "at most 0.1 points",
            self.loss.map(|l| (json!(l * 100.0), l <= 0.001)),
            steady,
        );
    }
}

fn charts(subject: &Subject, points: &[LoadPoint], all: &[Predicted], findings: &mut Findings) {
    let mean_batches = |of: fn(&Predicted) -> Option<&Solution>| -> Vec<Option<f64>> {
        all.iter().map(|predicted| of(predicted).map(|s| s.mean_batch)).collect()
    };
    findings.draw(Chart {
        title: format!("Fig. 5: mean batch by load ({})", subject.key),
        caption: "Constant rate; the model with Poisson times between packets.".into(),
        x_label: "load".into(),
        y_label: "packets".into(),
        groups: points.iter().map(|p| p.name.clone()).collect(),
        series: vec![
            ("global fit".into(), mean_batches(Predicted::global)),
            ("measured".into(), points.iter().map(|p| Some(mean(&p.pmf))).collect()),
            ("a fit a rate".into(), mean_batches(|predicted| predicted.per_rate.as_ref())),
        ],
    });
    for target in [0.2, 0.5, 0.8] {
        if let Some((p, predicted)) = points.iter().zip(all).find(|(p, _)| (p.load - target).abs() < 1e-9) {
            draw_batch_sizes(subject, p, predicted, findings);
        }
    }
    let above: Vec<_> = points.iter().zip(all).filter(|(p, _)| p.is_above_saturation()).collect();
    if !above.is_empty() {
        let percent = |share: Option<f64>| share.map(|share| share * 100.0);
        let measured = |p: &LoadPoint| percent(p.measured.unserved(p.rate_pps));
        let model = |predicted: &Predicted| percent(predicted.global().map(|s| s.p_loss));
        findings.draw(Chart {
            title: format!("Fig. 7: loss by load ({})", subject.key),
            caption: "Share of packets that find the ring full.".into(),
            x_label: "load".into(),
            y_label: "%".into(),
            groups: above.iter().map(|(p, _)| p.name.clone()).collect(),
            series: vec![
                ("measured".into(), above.iter().map(|(p, _)| measured(p)).collect()),
                ("predicted".into(), above.iter().map(|(_, predicted)| model(predicted)).collect()),
            ],
        });
    }
}

fn draw_batch_sizes(subject: &Subject, p: &LoadPoint, predicted: &Predicted, findings: &mut Findings) {
    let mut series = vec![("measured".to_owned(), by_class(&p.pmf))];
    for ((name, _), s) in processes(1e9 / p.rate_pps).iter().zip(&predicted.by_process) {
        series.extend(s.as_ref().map(|s| ((*name).to_owned(), by_class(&s.batch_pmf))));
    }
    findings.draw(Chart {
        title: format!("Fig. 6: batch sizes at load {} ({})", p.name, subject.key),
        caption: "Share of polls by size of the batch, measured and for four processes of arrivals.".into(),
        x_label: "packets".into(),
        y_label: "share of polls".into(),
        groups: classes(),
        series,
    });
}

/// Random arrivals, which the paper's generator didn't make.
fn other_arrivals(
    lab: &Bench<'_>,
    (subject, capacity_pps): (&Subject, f64),
    found: &Fit,
    speed: &mut Speed,
    findings: &mut Findings,
) -> anyhow::Result<()> {
    let both = [Process::Poisson, Process::Bursty(8)];
    let cases: Vec<_> = both.into_iter().flat_map(|process| [0.3, 0.7].map(|of| (process, of))).collect();
    let asked: Vec<_> = cases
        .iter()
        .map(|(process, of)| (format!("{} {of}", process.name()), load(capacity_pps, *of, *process)))
        .collect();
    let measured = engine::measure(lab, &subject.chain, &asked, speed, effort(lab, 15))?;
    for (((process, of), (name, load)), m) in cases.into_iter().zip(asked).zip(measured) {
        varied(subject, process, &LoadPoint::new(of, name, load.rate_pps, m), found, findings);
    }
    Ok(())
}

fn varied(subject: &Subject, process: Process, p: &LoadPoint, found: &Fit, findings: &mut Findings) {
    let gap = 1e9 / p.rate_pps;
    // Exponential gaps are geometric in slots; bursts of mean b with exponential gaps between have a squared
    // CV of 2b − 1.
    let (name, model) = match process {
        Process::Bursty(b) => {
            ("negbin", Interarrival::negative_binomial(gap, (2.0 * f64::from(b) - 1.0).sqrt()))
        }
        _ => ("geometric", Interarrival::geometric(gap)),
    };
    let size = (QUEUE, BATCH);
    let poisson = Interarrival::poisson(gap);
    let asked = [model, poisson].map(|a| a.and_then(|a| question(found, (Strategy::Global, None), a, size)));
    let solved = solve(asked.into());
    let mut jsd = Vec::new();
    for (name, s) in [name, "poisson"].iter().zip(&solved) {
        let Some((s, c)) = s.as_ref().and_then(|s| Some((s, compare(&p.pmf, &s.batch_pmf).ok()?))) else {
            continue;
        };
        jsd.push(c.jsd);
        findings.row(json!({
            "chain": subject.key, "arrivals": process.name(), "load": p.load, "model": name, "polls": p.measured.polls(),
            "full_speed": p.measured.full_speed, "mean_batch": c.measured_mean,
            "mean_batch_predicted": c.predicted_mean, "relative_error": c.relative_error, "jsd": c.jsd,
            "p_loss": p.measured.p_loss, "p_loss_predicted": s.p_loss,
        }));
    }
    if let [own, poisson] = jsd.as_slice() {
        findings.claim(
            subject.says(&format!(
                "{} arrivals at load {}: JSD of the model of these arrivals, below that of Poisson times",
                process.name(),
                p.load
            )),
            Value::Null,
            "lower",
            Some((json!(format!("{own:.4} against {poisson:.4}")), own < poisson)),
            p.measured.steady,
        );
    }
}
