//! `slipstream.reframe`: packets of a flow back to back, between two captures.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use anyhow::anyhow;
use pyo3::prelude::*;
use serde_json::{Value, json};
use slipstream::io::capture::{CaptureWriter, Format, WriterOptions};
use slipstream::pipeline::{BuildError, Settings, Value as SettingValue};
use slipstream::reframe::{ReframeConfig, SETTINGS};
use slipstream::runtime::{Destination, Origin, Replay, ReplayReport, Stamp};

use crate::error::exception;
use crate::input::{Input, OddTimes, Opened, Progress, damage};

/// A replay to be done.
struct Job {
    input: Input,
    output: Option<PathBuf>,
    config: ReframeConfig,
    stamp: Stamp,
    workers: usize,
    strict: bool,
}

/// Names of the settings with what they are for and their defaults.
#[pyfunction]
pub(crate) fn reframe_settings() -> Vec<(&'static str, &'static str, Option<&'static str>)> {
    SETTINGS.iter().map(|s| (s.name, s.help, s.default)).collect()
}

/// The command's report, what is wrong with the capture, and how many packets have [odd times](OddTimes).
type Report = (String, Option<String>, (u64, u64));

/// Reframes a capture; the settings are those of the command, by name.
#[pyfunction]
#[pyo3(signature = (input, output, settings, *, classes, arrival_stamps, workers, strict, progress))]
#[allow(clippy::too_many_arguments, reason = "each is a keyword in Python")]
pub(crate) fn reframe(
    py: Python<'_>,
    input: Input,
    output: Option<PathBuf>,
    settings: Vec<(String, String)>,
    classes: Vec<String>,
    arrival_stamps: bool,
    workers: usize,
    strict: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Report> {
    let progress = Progress { name: input.name(), callback: progress };
    py.detach(move || {
        if !(1..=256).contains(&workers) {
            return Err(anyhow!("workers={workers}: there can be 1 to 256"));
        }
        let mut values =
            Settings::defaults(SETTINGS).read(SETTINGS, &settings, Path::new("")).map_err(|e| anyhow!(e))?;
        if !classes.is_empty() {
            let classes = classes.into_iter().map(SettingValue::Text).collect();
            values = values.with("class", SettingValue::List(classes));
        }
        let config = ReframeConfig::from_settings(&values, Path::new("")).map_err(named)?;
        let stamp = if arrival_stamps { Stamp::Arrival } else { Stamp::Release };
        run(Job { input, output, config, stamp, workers, strict }, &progress)
    })
    .map_err(exception)
}

/// An error with the setting that it is about, and how to mend it.
fn named(error: BuildError) -> anyhow::Error {
    let hint = error.hint.as_ref().map(|hint| format!("; {hint}")).unwrap_or_default();
    match error.setting {
        Some(name) => anyhow!("{name}: {error}{hint}"),
        None => anyhow!("{error}{hint}"),
    }
}

fn run(job: Job, progress: &Progress) -> anyhow::Result<Report> {
    let (name, config) = (job.input.name(), job.config);
    let replay = Replay::new(&config)?.workers(job.workers);
    let (origin, format) = match job.input.open()? {
        Opened::Capture(reader) => {
            let format = reader.format();
            (Origin::capture(*reader), format)
        }
        Opened::Synth(synth) => (Origin::synth(*synth), Format::PcapNg),
    };
    let out = match &job.output {
        None => Destination::nowhere(),
        Some(path) => {
            let writer = CaptureWriter::create(path, WriterOptions::for_path(path, format))?;
            Destination::capture(writer, job.stamp)
        }
    };
    let mut driver = replay.between(origin, out)?.strict(job.strict);
    let mut stopped = None;
    let report = driver.run(&mut |share| match progress.at(share) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            stopped = Some(error);
            ControlFlow::Break(())
        }
    });
    if let Some(error) = stopped {
        return Err(error.into());
    }
    let report = ReplayReport::from(&report?);
    let (damaged, odd_times) = match driver.captures().next() {
        Some(reader) => (damage(reader, job.strict)?, OddTimes::of(reader)),
        None => (None, OddTimes::default()),
    };
    let (byte, what) = damaged.unzip();
    let output = job.output.as_ref().map_or_else(|| "null".to_owned(), |p| p.display().to_string());
    let ends = json!({ "input": name, "output": output, "truncated_at_byte": byte, "workers": job.workers });
    Ok((as_json(&config, &report, &ends).to_string(), what, odd_times.pair()))
}

fn as_json(config: &ReframeConfig, report: &ReplayReport, ends: &Value) -> Value {
    let mut result = json!({ "schema": 1, "input": ends["input"], "output": ends["output"] });
    let more = json!({
        "clock_backwards": report.clock_backwards,
        "truncated_at_byte": ends["truncated_at_byte"],
        "interrupted": report.interrupted,
        "workers": ends["workers"],
        "elapsed_ns": report.elapsed_ns,
        "cpu_ns": report.cpu_ns,
    });
    if let (Value::Object(map), Value::Object(more)) = (&mut result, more) {
        map.extend(report.stats.to_json(config));
        map.extend(more);
    }
    result
}
