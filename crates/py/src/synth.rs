//! `slipstream.synth`: traffic with a known locality.

use std::path::PathBuf;

use pyo3::prelude::*;
use slipstream::io::capture::{CaptureWriter, Format, WriterOptions};
use slipstream::io::synth::{Synth, SynthConfig};

use crate::error::exception;
use crate::input::Progress;

/// Makes a capture; the settings are those of the command, by name. Gives the command's report.
#[pyfunction]
pub(crate) fn synth(
    py: Python<'_>,
    output: PathBuf,
    settings: Vec<(String, String)>,
    progress: Option<Py<PyAny>>,
) -> PyResult<String> {
    let progress = Progress { name: output.display().to_string(), callback: progress };
    py.detach(move || make(&output, settings, &progress)).map_err(exception)
}

fn make(
    output: &std::path::Path,
    settings: Vec<(String, String)>,
    progress: &Progress,
) -> anyhow::Result<String> {
    let synth = Synth::new(SynthConfig::from_settings(settings)?)?;
    let capture = CaptureWriter::create(output, WriterOptions::for_path(output, Format::PcapNg))?;
    let made =
        synth.write_to(Some(capture), |share| progress.at(Some(share)).map_err(anyhow::Error::from))?;
    Ok(serde_json::to_string(&made.report(output))?)
}
