//! Network interfaces as ports, by packet sockets.

use std::any::Any;

use crate::af_packet::{Options, PortError, Sender, interface_of};
use slipstream_core::batch::Batch;
use slipstream_core::port::{self, Port, Transmit};
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, Properties, Receives, Role, Shared, Sharing, Site, StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::{Context, DropReason, Drops, Placeholder};

/// The stage type.
pub const AF_PACKET: StageType = StageType {
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
            name: "offloads",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Complete checksums and cut super-frames that senders left to a network card; false: only complete checksums",
        },
        Setting {
            name: "fanout",
            kind: Kind::Count(1, 65535),
            default: None,
            required: false,
            help: "Share the interface's packets with all ports of this group, in this process and others; both directions of \
                   a connection come to the same port",
        },
        Setting {
            name: "bypass_queueing",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Send past the interface's queueing discipline, straight to its driver",
        },
        Setting {
            name: "super_frames",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Send super-frames of `compress=gro` as such, to be cut by the kernel or the card; not with bypass_queueing",
        },
        Setting {
            name: "send_buffer",
            kind: Kind::Bytes(1 << 12, 1 << 30),
            default: Some("4MiB"),
            required: false,
            help: "Bytes on their way out at most; when they are, the engine waits, 5 ms at most, then packets are dropped",
        },
    ],
    properties: Properties {
        live: true,
        faces_a_link: true,
        receives: Some(Receives::Copies),
        sharing: |_| Sharing::Kernel,
        shared,
        drops: &[DropReason::NotSent],
        ..Properties::new(
            // Each packet is received and sent by itself; the kernel can spread what comes over several
            // sockets.
            |_| Meets::Nothing,
        )
    },
    build,
};

/// Packets that come by the interface are spread over the sockets of a fanout group.
fn shared(settings: &Settings, with: Shared) -> Settings {
    let settings = settings.clone();
    if with.role == Role::Sink || settings.optional_number("fanout").is_some() {
        return settings;
    }
    settings.with("fanout", Value::Number(with.group))
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let interface = interface_of(settings)?;
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Placeholder)),
        });
    }
    let options = Options {
        promiscuous: settings.flag("promiscuous"),
        ring: settings.number("ring") as u32,
        longest: settings.number("longest") as u32,
        bypass_queueing: settings.flag("bypass_queueing"),
        send_buffer: settings.number("send_buffer") as u32,
        offloads: settings.flag("offloads"),
        fanout: settings.optional_number("fanout").map(|n| n as u16),
        super_frames: settings.flag("super_frames"),
        ..Options::new(interface)
    };
    let wrong = |e: PortError| BuildError::setting("interface", e.to_string());
    let port = match site.role {
        Role::Source => Port::receiving(options.open_receiver().map_err(wrong)?),
        Role::TwoWay => {
            let (receiver, sender) = options.open().map_err(wrong)?;
            Port::both(receiver, sender)
        }
        Role::Sink | Role::Inner => Port::transmitting(options.open_sender().map_err(wrong)?),
    };
    Ok(port.into())
}

/// The kernel copies what it sends, so that buffers are free at once.
impl Transmit for Sender {
    fn takes_unread(&self) -> bool {
        true
    }

    fn ethernet_only(&self) -> bool {
        true
    }

    fn relay(&mut self) -> Option<&mut dyn Any> {
        Some(self)
    }

    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        self.transmit(cx.pool, &batch.frames);
        // Not dropped: should its payload wait here, it goes on waiting.
        batch.frames.iter().for_each(|f| cx.pool.free_spliced(f.buf));
        batch.clear();
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let counts = self.counts();
        visit("packets_sent", counts.packets);
        visit("bytes_sent", counts.bytes);
        visit("too_long", counts.too_long);
        visit("no_room", counts.no_room);
        visit("refused", counts.refused);
        visit("waits_for_room", counts.waits);
        visit("super_frames_sent", counts.super_frames);
        visit("packets_in_super_frames", counts.super_frame_packets);
        visit("super_frames_refused", counts.super_frames_refused);
        visit("packets_with_wrong_checksums", counts.wrong_checksums);
    }

    fn drops(&self) -> Drops {
        let mut drops = Drops::default();
        drops.add(DropReason::NotSent, self.counts().not_sent());
        drops
    }

    fn is_gone(&self) -> bool {
        self.has_lost_interface()
    }

    fn finish(&mut self) -> Result<(), port::PortError> {
        Ok(self.check()?)
    }
}
