//! Ports, at which packets come in and leave, as the command line names them.

use std::path::Path;

use anyhow::bail;
use slipstream::io::capture::{CaptureReader, CaptureWriter, Format, WriterOptions, is_interface};
use slipstream::io::synth::{Synth, SynthConfig};
use slipstream::pipeline::{StageType, port_names};
use slipstream::rules::names::nearest;
use slipstream::runtime::Origin;

use crate::types;
use crate::ui;

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

/// Ports by the wall clock, as they stand in front of a colon, each with its stage type. One that this
/// program was built without is one, too.
fn live() -> impl Iterator<Item = (&'static str, &'static str)> {
    let registry = types::registry();
    port_names().filter(move |(_, kind)| registry.get(kind).is_none_or(StageType::live))
}

/// Returns true if a live port has this name.
fn is_live(name: &str) -> bool {
    name.split_once(':').is_some_and(|(port, _)| live().any(|(known, _)| known == port))
}

/// The live port that was meant by what would be a file of a strange name: its type is nearly that of one, or
/// an interface follows it.
fn meant(name: &str) -> Option<String> {
    let (port, rest) = name.split_once(':').filter(|(port, _)| !port.contains('/') && *port != "synth")?;
    let end = Path::new(rest).extension().and_then(|end| end.to_str()).unwrap_or_default();
    if is_live(name) || ["pcap", "pcapng", "cap", "gz", "zst"].contains(&end) {
        return None;
    }
    let interface = rest.split(':').next().unwrap_or_default();
    // Two letters of three are another word: `pcap` is not nearly `tap`.
    let words = live().flat_map(|(known, kind)| [known, kind]);
    let near = nearest(port, words).filter(|near| near.len() > 3 || port.len() <= 3);
    // A type's own name is not near itself.
    let near = near.unwrap_or(port);
    let near = live().find(|(known, kind)| [*known, *kind].contains(&near));
    let near = near.map(|(known, _)| known).or_else(|| is_interface(interface).then_some("af_packet"))?;
    Some(format!("{near}:{rest}"))
}

/// Refuses a port whose type is misspelt, or that is written as in a graph, and that would be a file, unless
/// there is a file of that name.
pub(crate) fn refuse_misspelt(name: &str) -> anyhow::Result<()> {
    if Path::new(name).exists() {
        return Ok(());
    }
    let (kind, settings) = name.split_once('(').unwrap_or_default();
    let mut words = settings.trim_end_matches(')').split([',', '=']).map(str::trim);
    let (setting, first) = (words.next(), words.next().unwrap_or("NAME"));
    // A graph has another stage of the name `tap`.
    let is_it = |port: &str, known: &str| known == kind || port == kind && setting == Some("interface");
    if let Some((port, _)) = live().find(|(port, known)| is_it(port, known)) {
        bail!("{name}: this is how a graph has it (-e); here it is `{port}:{first}`");
    }
    if settings.ends_with(')') && types::stage_type(kind).is_some() {
        bail!("{name}: this is how a graph has a stage (-e); write ./{name} for a file of that name");
    }
    match meant(name) {
        Some(port) => bail!("{name}: did you mean `{port}`? write ./{name} for a file of that name"),
        None => Ok(()),
    }
}

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
    if is_live(name) {
        bail!("{name}: a live port has no part in this; name a capture file, `-`, `synth:…` or `null`");
    }
    refuse_misspelt(name)
}

/// Returns true if a path leads to a pipe, a socket or a device: what it has can be read only once, and
/// nobody knows if it has an end. Of a path that leads nowhere the error of opening it tells.
pub(crate) fn is_special(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|about| !about.is_file() && !about.is_dir())
}

impl Input {
    /// Opens a capture, or makes packets. From here on an interrupt ends a command as it is to end: a pipe
    /// may have nobody who writes to it for a while.
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let name = path.to_string_lossy();
        refuse_live(&name)?;
        ui::interrupts()?;
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
            _ => Self::Capture(Box::new(CaptureWriter::to_named(path, options)?)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_with_a_misspelt_type_is_no_file() {
        for (name, port) in [
            ("af_paket:eth1", Some("af_packet:eth1")),
            ("AF_PACKET:eth1", Some("af_packet:eth1")),
            ("afpacket:eth1.100", Some("af_packet:eth1.100")),
            ("af_xpd:eth1:0", Some("af_xdp:eth1:0")),
            ("shn:/dev/shm/ring", Some("shm:/dev/shm/ring")),
            ("dpkd:net_tap0", Some("dpdk:net_tap0")),
            ("tap_interface:slip0", Some("tap:slip0")),
            ("tap_interfce:slip0", Some("tap:slip0")),
            ("eth:lo", Some("af_packet:lo")),
            ("pcap:lo:0", Some("af_packet:lo:0")),
            ("af_packet:eth1", None),
            ("synth:flows=1", None),
            ("./af_paket:eth1", None),
            ("monday:eth-none", None),
            ("pcap:out", None),
            ("tcp:80.pcap", None),
            ("out.pcap", None),
        ] {
            assert_eq!(meant(name).as_deref(), port, "{name}");
        }
    }

    #[test]
    fn a_port_as_a_graph_has_it_is_no_file() {
        for (name, advice) in [
            ("af_packet(interface=eth1)", "here it is `af_packet:eth1`"),
            ("tap_interface(interface=slip0)", "here it is `tap:slip0`"),
            // This one is no port: it writes copies to a file.
            ("tap(interface=slip0, up=false)", "here it is `tap:slip0`"),
            ("tap(path=copy.pcap)", "how a graph has a stage (-e)"),
            ("synth(traffic=\"flows=1\")", "how a graph has a stage (-e)"),
        ] {
            let why = refuse_misspelt(name).unwrap_err().to_string();
            assert!(why.contains(advice), "{why}");
        }
        for name in ["out(1).pcap", "counter(1).pcap", "(1)", "out.pcap", "./tap(1)"] {
            refuse_misspelt(name).unwrap();
        }
    }

    #[test]
    fn every_port_with_a_name_of_its_own_is_known() {
        for (name, kind) in port_names() {
            assert_eq!(slipstream::pipeline::port_of(&format!("{name}:x")).0, kind);
            assert_eq!(is_live(&format!("{name}:x")), name != "synth", "{name}");
            assert!(kind == "dpdk" || types::stage_type(kind).is_some(), "{kind}");
        }
    }
}
