//! `slipstream.synth`: traffic with a known locality.

use std::path::{Path, PathBuf};

use pyo3::prelude::*;
use slipstream::io::capture::{CaptureWriter, Format, WriterOptions};
use slipstream::io::synth::{Synth, SynthConfig};

use crate::error::exception;
use crate::input::Progress;

/// Makes a capture, or nothing but the report of one; the settings are those of the command, by name. Gives
/// the command's report.
#[pyfunction]
pub(crate) fn synth(
    py: Python<'_>,
    output: Option<PathBuf>,
    settings: Vec<(String, String)>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let name = output.clone().unwrap_or_else(|| PathBuf::from("null"));
    let progress = Progress { name: name.display().to_string(), callback: progress };
    py.detach(move || make(output.as_deref(), &name, settings, &progress)).map_err(exception)
}

fn make(
    output: Option<&Path>,
    name: &Path,
    settings: Vec<(String, String)>,
    progress: &Progress,
) -> anyhow::Result<String> {
    let synth = Synth::new(SynthConfig::from_settings(settings)?)?;
    let create = |path| CaptureWriter::create(path, WriterOptions::for_path(path, Format::PcapNg));
    let capture = output.map(create).transpose()?;
    let made = synth.write_to(capture, |share| progress.at(Some(share)).map_err(anyhow::Error::from))?;
    Ok(serde_json::to_string(&made.report(name))?)
}
