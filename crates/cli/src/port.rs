//! Ports, at which packets come in and leave, as the command line names them.

use std::io;
use std::path::Path;

use anyhow::bail;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, WriterOptions, is_interface};
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::runtime::Origin;

use crate::types;

/// The source of packets.
pub(crate) enum Input {
    Capture(Box<CaptureReader>),
    Synth(Box<Synth>),
}

/// The destination of packets.
pub(crate) enum Output {
    Null,
    Capture(Box<CaptureWriter>),
}

/// Ports by the wall clock.
const LIVE: [&str; 5] = ["af_packet:", "af_xdp:", "tap:", "shm:", "dpdk:"];

/// Refuses a port of a type that this program was built without.
pub(crate) fn refuse_unbuilt(name: &str) -> anyhow::Result<()> {
    if name.starts_with("dpdk:") && types::stage_type("dpdk").is_none() {
        bail!(
            "{name}: this program was built without DPDK; `make dpdk` builds it with, or name a capture file, `-`, `synth:…`, `null` \
             or `af_packet:INTERFACE`"
        );
    }
    Ok(())
}

fn refuse_live(name: &str) -> anyhow::Result<()> {
    refuse_unbuilt(name)?;
    if LIVE.iter().any(|prefix| name.starts_with(prefix)) {
        bail!("{name}: a live port has no part in this; name a capture file, `-`, `synth:…` or `null`");
    }
    Ok(())
}

impl Input {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.to_string_lossy();
        refuse_live(&name)?;
        if let Some(settings) = name.strip_prefix("synth:") {
            return Ok(Self::Synth(Box::new(Synth::new(SynthConfig::from_text(settings)?)?)));
        }
        if name == "null" {
            bail!("null: nothing comes from there; name a capture file, `-` or `synth:…`");
        }
        let reader = match &*name {
            "-" => CaptureReader::stdin()?,
            _ => CaptureReader::open(path)?,
        };
        Ok(Self::Capture(Box::new(reader)))
    }

    /// The format of an output whose name doesn't say one.
    pub(crate) fn format(&self) -> Format {
        match self {
            Self::Capture(reader) => reader.format(),
            Self::Synth(_) => Format::PcapNg,
        }
    }
}

impl From<Input> for Origin {
    fn from(input: Input) -> Self {
        match input {
            Input::Capture(reader) => Self::capture(*reader),
            Input::Synth(synth) => Self::synth(*synth),
        }
    }
}

impl Output {
    pub(crate) fn create(path: &Path, otherwise: Format) -> anyhow::Result<Self> {
        let name = path.to_string_lossy();
        refuse_live(&name)?;
        if is_interface(&name) && !path.exists() {
            bail!(
                "{name}: a network interface has this name: write af_packet:{name}, or ./{name} for a file of that name"
            );
        }
        if name.starts_with("synth:") {
            bail!("{name}: packets can't go there; name a capture file, `-` or `null`");
        }
        let options = WriterOptions::for_path(path, otherwise);
        Ok(match &*name {
            "null" => Self::Null,
            "-" => Self::Capture(Box::new(CaptureWriter::to_writer(io::stdout(), "stdout", options)?)),
            _ => Self::Capture(Box::new(CaptureWriter::create(path, options)?)),
        })
    }
}
