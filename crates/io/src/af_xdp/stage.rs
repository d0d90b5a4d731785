//! Network interfaces as ports, by AF_XDP sockets.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Mode, Options, Prefilter, Program, Queues, Share, Umem, Ways, XdpError};
use slipstream_core::operate::{Apart, Reloading};
use slipstream_core::port::Port;
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, Properties, Receives, Role, Shard, Sharing, Site, StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{DropReason, Placeholder};
use slipstream_core::text_file;

/// The stage type.
pub const AF_XDP: StageType = StageType {
    name: "af_xdp",
    group: Group::Port,
    summary: "A network interface without the kernel's stack: packets come into the engine's own memory, and leave from there",
    example: "lan :: af_xdp(interface=eth1); wan :: af_xdp(interface=eth2); lan -> reframe -> wan; wan -> lan",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "interface",
            kind: Kind::Text("name of an interface, as `ip link` shows it"),
            default: None,
            required: true,
            help: "The interface, which must be up",
        },
        Setting {
            name: "queues",
            kind: Kind::Text("`all`, or numbers as in 0-3,6"),
            default: Some("all"),
            required: false,
            help: "Receive queues that are served; packets of others stay with the kernel. What is sent leaves by the first",
        },
        Setting::new(
            "only",
            Kind::Rules,
            "Packets that are taken: rules, or @FILE with rules; all others, and what isn't IP, stay with the kernel. Left out: \
             every packet is taken",
        ),
        Setting {
            name: "mode",
            kind: Kind::Words(&[
                ("auto", "native, or generic where the driver can't"),
                ("native", "in the driver"),
                ("generic", "behind the driver, with any"),
            ]),
            default: Some("auto"),
            required: false,
            help: "How the XDP program runs",
        },
        Setting {
            name: "copy",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Have the kernel copy packets, though the driver could do without",
        },
        Setting {
            name: "promiscuous",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Take packets for other stations too",
        },
        Setting {
            name: "ring",
            kind: Kind::Count(64, 1 << 15),
            default: Some("2048"),
            required: false,
            help: "Packets of a queue that find room while the engine is busy, rounded up to a power of two; what comes beyond \
                   that is lost, and counted",
        },
        Setting {
            name: "buffers",
            kind: Kind::Count(256, 1 << 22),
            default: None,
            required: false,
            help: "Packet buffers of all AF_XDP ports together, twice what their rings take at least: the first port's word \
                   counts. Left out: 8 times that port's rings, 16384 at least",
        },
        Setting {
            name: "chunk",
            kind: Kind::Choice(&["auto", "2048", "4096"]),
            default: Some("auto"),
            required: false,
            help: "Bytes of a buffer; the first port's word counts. auto: as its interface's MTU needs",
        },
        Setting {
            name: "checksums",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Fill in checksums that a neighbour on the same machine left to a network card",
        },
        Setting {
            name: "busy_poll",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Ask the driver for packets all the time instead of having it interrupt: less delay, and a whole core",
        },
        Setting {
            name: "steer",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "With --shards: lead what came by another shard's queue to the shard that it belongs to; false: it stays, which \
                   takes an interface that brings all packets of a flow by one queue, and stages that need no more",
        },
    ],
    properties: Properties {
        live: true,
        faces_a_link: true,
        receives: Some(Receives::Packets),
        sharing: |_| Sharing::Queues,
        drops: &[DropReason::NotSent],
        reload: Some(RELOAD),
        ..Properties::new(
            // Each packet is received and sent by itself; cards spread what comes over queues.
            |_| Meets::Nothing,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let interface = crate::af_packet::interface_of(settings)?;
    let queues = settings.text("queues");
    let Some(queues) = Queues::parse(queues) else {
        let error = BuildError::setting("queues", format!("`{queues}` names no queues"));
        return Err(error.hint("`all`, a number, or several as in 0-3,6"));
    };
    let only = only(settings, site)?;
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Placeholder)),
        });
    }
    let options = Options {
        queues,
        mode: match settings.text("mode") {
            "native" => Mode::Native,
            "generic" => Mode::Generic,
            _ => Mode::Auto,
        },
        copy: settings.flag("copy"),
        promiscuous: settings.flag("promiscuous"),
        ring: settings.number("ring") as u32,
        buffers: settings.optional_number("buffers").map(|n| n as u32),
        chunk: settings.text("chunk").parse().ok(),
        checksums: settings.flag("checksums"),
        busy_poll: settings.flag("busy_poll"),
        only,
        share: share(interface, &site.shard),
        ..Options::new(interface)
    };
    let ways = match site.role {
        Role::Source => Ways { receive: true, send: false },
        Role::TwoWay => Ways { receive: true, send: true },
        Role::Sink | Role::Inner => Ways { receive: false, send: true },
    };
    let shared: Option<Arc<Umem>> = site.common.find_shared();
    let is_first = shared.is_none();
    let wrong = |error: XdpError| BuildError::setting(setting(&error), error.to_string());
    let opened = options.open(ways, shared).map_err(wrong)?;
    if is_first {
        site.common.add_shared(site.name, Arc::clone(&opened.umem));
    }
    Ok(match (opened.receiver, opened.sender) {
        (Some(receiver), Some(sender)) => Port::both(receiver, sender),
        (Some(receiver), None) => Port::receiving(receiver),
        (None, Some(sender)) => Port::transmitting(sender),
        (None, None) => Port::default(),
    }
    .into())
}

/// The rules about packets that are taken, if there are any.
fn only(settings: &Settings, site: &Site<'_>) -> Result<Option<Prefilter>, BuildError> {
    match settings.0.get("only") {
        None => Ok(None),
        Some(_) if matches!(site.role, Role::Sink | Role::Inner) => {
            let error = BuildError::setting("only", "`only` is about packets that come in, and here they only leave");
            Err(error.hint("leave it out, or set it on the port that receives"))
        }
        Some(_) => Prefilter::new(&settings.rules("only")).map(Some).map_err(|error| {
            BuildError::setting("only", format!("{}{error}", line_beyond(settings)))
                .hint("take prefixes and ranges together, or take all packets and let a `switch` or `firewall` decide")
        }),
    }
}

/// Rules about packets that are taken can change while the port is open.
const RELOAD: Reloading = Reloading {
    settings: &["only"],
    ports: Reloading::NO_PORTS,
    reads_files: |settings| settings.rules_file("only").is_some(),
    make: |settings, site| {
        let interface = crate::af_packet::interface_of(settings)?.to_owned();
        let only = only(settings, site)?;
        let program = Program::on(&interface).ok_or_else(|| {
            BuildError::stage(format!("no program of this process stands on `{interface}`"))
        })?;
        let wrong = |error: XdpError| BuildError::setting("only", error.to_string());
        let loaded = program.load(&interface, only.as_ref()).map_err(wrong)?;
        let go_by = move || program.go_by(&interface, &loaded).map_err(|error| error.to_string());
        Ok(Box::new(Apart(Box::new(go_by))))
    },
};

/// The file and line of the rules of `only` that go beyond what is possible, where they stand in a file.
fn line_beyond(settings: &Settings) -> String {
    // A pipe can't be read again.
    let file = settings.rules_file("only").filter(|path| path.is_file());
    let place = file.and_then(|path| {
        let line = Prefilter::line_beyond(&text_file::read(path).ok()?)?;
        Some(format!("{}:{line}: ", path.display()))
    });
    place.unwrap_or_default()
}

/// Programs on the interfaces of all shards.
type Programs = Arc<Mutex<Vec<(String, Arc<Program>)>>>;

/// The part of an interface that a shard has.
fn share(interface: &str, shard: &Shard<'_>) -> Share {
    let Some(common) = shard.common else { return Share::default() };
    let programs: Programs = common.find_shared().unwrap_or_else(|| {
        let new = Programs::default();
        common.add_shared(interface, Arc::clone(&new));
        new
    });
    let mut programs = programs.lock().unwrap_or_else(PoisonError::into_inner);
    let known = programs.iter().find(|(name, _)| name == interface).map(|(_, program)| Arc::clone(program));
    let program = known.unwrap_or_else(|| {
        let new = Arc::<Program>::default();
        programs.push((interface.to_owned(), Arc::clone(&new)));
        new
    });
    Share { number: shard.number, of: shard.of, program }
}

/// The setting that is to blame for an error.
fn setting(error: &XdpError) -> &'static str {
    match error {
        XdpError::NoQueue { .. } | XdpError::QueueTaken { .. } | XdpError::FewQueues { .. } => "queues",
        XdpError::FewBuffers { .. } | XdpError::NoMemory { .. } => "buffers",
        XdpError::Length { .. } => "only",
        _ => "interface",
    }
}
