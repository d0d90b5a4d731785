//! Traffic at a set pace, by the wall clock or in the engine's own time.

use crate::capture::CaptureReader;
use crate::paced::{Clock, Cost, Paced, PacedConfig, Process};
use crate::synth::{Synth, SynthConfig};
use slipstream_core::port::Port;
use slipstream_core::registry::{
    BuildError, Group, Made, Meets, Need, OUT, OneThread, Partner, Ports, Properties, Sharing, Site,
    StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::units::Rate;

/// The stage type.
pub const PACED: StageType = StageType {
    name: "paced",
    group: Group::Port,
    summary: "Makes traffic at a set pace, through a ring of bounded size that the engine polls: for experiments",
    example: "in :: paced(rate=1mpps, arrivals=poisson, queue=4096, batch=256) -> router -> out :: null",
    inputs: Ports::None,
    outputs: OUT,
    settings: &[
        Setting {
            name: "rate",
            kind: Kind::Rate,
            default: None,
            required: true,
            help: "Packets a second, as in 1mpps",
        },
        Setting {
            name: "arrivals",
            kind: Kind::Choice(&["constant", "poisson", "bursty"]),
            default: Some("constant"),
            required: false,
            help: "When packets come: all gaps alike, exponential gaps, or bursts with exponential gaps between them",
        },
        Setting {
            name: "burst",
            kind: Kind::Count(1, 100_000),
            default: Some("8"),
            required: false,
            help: "Mean packets of a burst, whose number is geometric; only where arrivals are bursty",
        },
        Setting {
            name: "clock",
            kind: Kind::Choice(&["wall", "own"]),
            default: Some("wall"),
            required: false,
            help: "wall: packets come in real time, from another core; own: in a time that counts what the engine's polls take, \
                   and nothing that interrupts them, from the same core between two polls",
        },
        Setting {
            name: "queue",
            kind: Kind::Count(1, 1 << 20),
            default: Some("4096"),
            required: false,
            help: "Places of the ring; a packet that finds it full is dropped and counted",
        },
        Setting {
            name: "batch",
            kind: Kind::Count(1, 256),
            default: Some("256"),
            required: false,
            help: "Packets that a poll takes at most",
        },
        Setting {
            name: "per_poll",
            kind: Kind::Time(0, 1_000_000_000),
            default: Some("0"),
            required: false,
            help: "What a poll takes at least, also one that finds nothing: the engine stays busy until then, whatever comes behind. \
                   With `per_packet` it makes service times that are known",
        },
        Setting {
            name: "per_packet",
            kind: Kind::Time(0, 1_000_000),
            default: Some("0"),
            required: false,
            help: "The same for each of its packets, beside `per_poll`",
        },
        Setting {
            name: "packets",
            kind: Kind::Count(1, u64::MAX),
            default: None,
            required: false,
            help: "Packets in all; left out: without end",
        },
        Setting {
            name: "traffic",
            kind: Kind::Text("KEY=VALUE,… as for `slipstream synth`"),
            default: Some("size=60,packets=65536"),
            required: false,
            help: "The frames, whose times don't count: the first 65,536 of this, over and over",
        },
        Setting {
            name: "file",
            kind: Kind::File,
            default: None,
            required: false,
            help: "A capture of Ethernet frames to take in place of `traffic`; its times don't count either",
        },
        Setting {
            name: "seed",
            kind: Kind::Count(0, u64::MAX),
            default: Some("1"),
            required: false,
            help: "Seed of the arrivals",
        },
    ],
    properties: Properties {
        live: true,
        one_thread: |settings, _| (settings.text("clock") == "own").then_some(OneThread::OwnTime),
        partners: &[
            Partner { of: &["burst"], need: Need::Is("arrivals", &["bursty"]) },
            Partner { of: &["traffic"], need: Need::Without("file") },
        ],
        // The engine's own time is that of one thread.
        sharing: |settings| if settings.text("clock") == "own" { Sharing::Not } else { Sharing::First },
        ..Properties::new(
            // One ring, which the engine polls, is what is measured.
            |_| Meets::Everything,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let rate = match settings.rate("rate") {
        Some(Rate::Packets(rate)) if rate > 0 => rate as f64,
        _ => {
            return Err(
                BuildError::setting("rate", "a rate in packets a second is needed").hint("as in 1mpps")
            );
        }
    };
    let wrong = |e: &dyn std::error::Error| BuildError::setting("traffic", e.to_string());
    let traffic = SynthConfig::from_text(settings.text("traffic")).map_err(|e| wrong(&e))?;
    let synth = Synth::new(traffic).map_err(|e| wrong(&e))?;
    if site.dry {
        return Ok(Made::Checked);
    }
    let config = PacedConfig {
        rate,
        process: match settings.text("arrivals") {
            "poisson" => Process::Poisson,
            "bursty" => Process::Bursty(settings.number("burst") as f64),
            _ => Process::Constant,
        },
        clock: if settings.text("clock") == "own" { Clock::Own } else { Clock::Wall },
        queue: settings.number("queue") as u32,
        batch: settings.number("batch") as u32,
        packets: settings.optional_number("packets"),
        seed: settings.number("seed"),
        cost: Cost { per_poll: settings.number("per_poll"), per_packet: settings.number("per_packet") },
    };
    let source = match settings.file("file") {
        Some(path) => {
            let wrong = |e: &dyn std::error::Error| BuildError::setting("file", e.to_string());
            let capture = CaptureReader::open(path).map_err(|e| wrong(&e))?;
            Paced::of_capture(config, capture).map_err(|e| wrong(&e))?
        }
        None => Paced::new(config, synth),
    };
    Ok(Port::receiving(source).into())
}
