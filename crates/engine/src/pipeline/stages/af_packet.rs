//! Network interfaces as ports, by packet sockets.

use crate::batch::Batch;
use crate::io::af_packet::{Options, PortError, Sender};
use crate::pipeline::registry::{BuildError, Group, IN, Made, OUT, Role, Site, StageType};
use crate::pipeline::settings::{Kind, Setting, Settings};
use crate::reframe::Output;
use crate::stage::{Context, DropReason, Drops, Stage, StageError};

pub(super) const AF_PACKET: StageType = StageType {
    name: "af_packet",
    group: Group::Port,
    summary: "A network interface: where packets come from, where they go to, or both, by its place in the graph",
    example: "lan :: af_packet(interface=eth1); wan :: af_packet(interface=eth2); lan -> reframe -> wan; wan -> lan",
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
            name: "promiscuous",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Take packets for other stations too",
        },
        Setting {
            name: "ring",
            kind: Kind::Count(32, 1 << 20),
            default: Some("4096"),
            required: false,
            help: "Packets that the kernel keeps while the engine is busy; what comes beyond that is lost, and counted",
        },
        Setting {
            name: "longest",
            kind: Kind::Count(64, 1 << 17),
            default: None,
            required: false,
            help: "Longest frame in bytes; left out: as the interface's MTU says",
        },
        Setting {
            name: "bypass_queueing",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Send past the interface's queueing discipline, straight to its driver",
        },
        Setting {
            name: "send_buffer",
            kind: Kind::Bytes(1 << 12, 1 << 30),
            default: Some("4MiB"),
            required: false,
            help: "Bytes on their way out at most; when they are, the engine waits, 5 ms at most, then packets are dropped",
        },
    ],
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let interface = settings.text("interface");
    if interface.is_empty() || interface.len() > 15 || interface.contains(['/', ' ', '\0']) {
        let error = BuildError::setting("interface", format!("`{interface}` can't be an interface's name"));
        return Err(error.hint("1 to 15 characters without `/` or space"));
    }
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Dry)),
        });
    }
    let options = Options {
        promiscuous: settings.flag("promiscuous"),
        ring: settings.number("ring") as u32,
        longest: settings.number("longest") as u32,
        bypass_queueing: settings.flag("bypass_queueing"),
        send_buffer: settings.number("send_buffer") as u32,
        ..Options::new(interface)
    };
    let wrong = |e: PortError| BuildError::setting("interface", e.to_string());
    Ok(match site.role {
        Role::Source => Made::Source(Box::new(options.open_receiver().map_err(wrong)?)),
        Role::TwoWay => {
            let (receiver, sender) = options.open().map_err(wrong)?;
            Made::TwoWay(Box::new(receiver), Box::new(PortStage { sender }))
        }
        Role::Sink | Role::Inner => {
            Made::Stage(Box::new(PortStage { sender: options.open_sender().map_err(wrong)? }))
        }
    })
}

/// Stands in for a port that is only checked.
struct Dry;

impl Stage for Dry {
    fn process(&mut self, _: &mut Context<'_>, _: &mut Batch, _: &mut dyn Output) {}
}

/// Sends packets by an interface.
#[derive(Debug)]
struct PortStage {
    sender: Sender,
}

impl Stage for PortStage {
    fn process(&mut self, cx: &mut Context<'_>, batch: &mut Batch, _: &mut dyn Output) {
        self.sender.send(batch.frames.iter().map(|f| cx.data(f)));
        batch.frames.iter().for_each(|f| cx.pool.free(f.buf));
        batch.clear();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.sender.counts();
        visit("packets_sent", counts.packets);
        visit("bytes_sent", counts.bytes);
        visit("too_long", counts.too_long);
        visit("no_room", counts.no_room);
        visit("refused", counts.refused);
        visit("waits_for_room", counts.waits);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.sender.counts().not_sent());
        drops
    }

    fn finish(&mut self) -> Result<(), StageError> {
        self.sender.check().map_err(|e| StageError(e.to_string()))
    }
}
