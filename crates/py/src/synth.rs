//! `slipstream.synth`: traffic with a known locality.

use std::path::PathBuf;

use pyo3::prelude::*;
use serde_json::json;
use slipstream::io::capture::{CaptureWriter, Format, Interface, WriterOptions};
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
    let config = SynthConfig::from_settings(settings)?;
    let mut synth = Synth::new(config.clone())?;
    let mut writer = CaptureWriter::create(output, WriterOptions::for_path(output, Format::PcapNg))?;
    let snap_len = config.snap_len.unwrap_or(262_144);
    writer.add_interface(&Interface { link_number: 1, snap_len, name: Some("synth".into()) });
    let (mut packets, mut bytes, mut captured) = (0u64, 0u64, 0u64);
    let (mut first, mut last) = (None, None);
    let mut frame = Vec::new();
    while let Some(at) = synth.next_packet(&mut frame) {
        let keep = config.captured_len(frame.len());
        writer.write(0, at, frame.len() as u32, frame.get(..keep).unwrap_or(&frame))?;
        packets += 1;
        bytes += frame.len() as u64;
        captured += keep as u64;
        first = first.or(Some(at));
        last = Some(at);
        if packets.is_multiple_of(65_536) {
            progress.at(Some(packets as f64 / config.packets as f64))?;
        }
    }
    let file_bytes = writer.finish()?.file_bytes;
    let duration_ns = last.zip(first).map_or(0, |(l, f)| l.since(f));
    Ok(json!({
        "schema": 1, "output": output.display().to_string(), "packets": packets, "bytes": bytes, "captured_bytes": captured,
        "duration_ns": duration_ns, "file_bytes": file_bytes, "seed": config.seed,
    })
    .to_string())
}
