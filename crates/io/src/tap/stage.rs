//! TAP interfaces as ports.

use super::{Options, TapError};
use slipstream_core::port::Port;
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, Properties, Role, Sharing, Site, StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::{DropReason, Placeholder};

/// The stage type.
pub const TAP_INTERFACE: StageType = StageType {
    name: "tap_interface",
    group: Group::Port,
    summary: "A TAP interface, made if need be: what this machine sends by it comes in, and it receives what goes out",
    example: "host :: tap_interface(interface=tap0); wire :: af_packet(interface=eth1); host -> reframe -> wire; wire -> host",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            name: "interface",
            kind: Kind::Text("name of an interface, of one that is there or is to be made"),
            default: None,
            required: true,
            help: "The interface; one that is made here goes away with the program",
        },
        Setting {
            name: "up",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Bring the interface up",
        },
        Setting {
            name: "offloads",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Have the machine leave checksums and segmentation to this port: one read then brings many packets",
        },
        Setting {
            name: "multi_queue",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Open a queue of an interface that may have several, each with a share of the flows; with --shards it is set",
        },
        Setting {
            name: "super_frames",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Hand super-frames of `compress=gro` over as such: one write then brings many packets",
        },
    ],
    properties: Properties {
        live: true,
        faces_a_link: true,
        sharing: |_| Sharing::Kernel,
        shared: |settings, _| settings.clone().with("multi_queue", Value::Bool(true)),
        drops: &[DropReason::NotSent],
        ..Properties::new(
            // Each packet is received and sent by itself.
            |_| Meets::Nothing,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let interface = crate::af_packet::interface_of(settings)?;
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Placeholder)),
        });
    }
    let options = Options {
        up: settings.flag("up"),
        offloads: settings.flag("offloads"),
        multi_queue: settings.flag("multi_queue"),
        super_frames: settings.flag("super_frames"),
        counts_lost: site.shard.number == 0,
        ..Options::new(interface)
    };
    let wrong = |e: TapError| BuildError::setting("interface", e.to_string());
    let (receiver, sender) = options.open().map_err(wrong)?;
    Ok(match site.role {
        Role::Source => Port::receiving(receiver),
        Role::TwoWay => Port::both(receiver, sender),
        Role::Sink | Role::Inner => Port::transmitting(sender),
    }
    .into())
}
