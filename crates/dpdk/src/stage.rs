//! Devices of DPDK as stages of a pipeline.

use slipstream_core::port::Port;
use slipstream_core::registry::{
    BuildError, Group, IN, Made, Meets, OUT, Properties, Role, Sharing, Site, StageType,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{DropReason, Placeholder};

use crate::device::{Options, Share};
use crate::eal::Environment;
use crate::error::DpdkError;

/// The stage type.
pub const DPDK: StageType = StageType {
    name: "dpdk",
    group: Group::Port,
    summary: "A device of DPDK, a card or a virtual one: where packets come from, where they go to, or both",
    example: "in :: dpdk(device=net_null0) -> reframe -> out :: dpdk(device=net_null1)",
    inputs: IN,
    outputs: OUT,
    settings: &[
        Setting {
            required: true,
            ..Setting::new(
                "device",
                Kind::Text("NAME[,ARGUMENT=VALUE…] as for EAL's --vdev, or a PCI address"),
                "The device; a virtual one that isn't there yet is made",
            )
        },
        Setting::new(
            "eal",
            Kind::Text("arguments of EAL, between spaces"),
            "Of all DPDK ports together, given to the first: arguments of EAL, such as --no-huge",
        )
        .or(""),
        Setting::new(
            "mbufs",
            Kind::Count(256, 1 << 24),
            "Of all DPDK ports together: packets that are inside or in the rings of devices, at most",
        )
        .or("16383"),
        Setting::new(
            "buffer",
            Kind::Bytes(256, 32 << 10),
            "Of all DPDK ports together: bytes of an mbuf; longer packets are copied",
        )
        .or("2KiB"),
        Setting::new(
            "queues",
            Kind::Count(1, 64),
            "Queues to receive from; the card spreads connections over them (RSS, symmetric). With --shards each has one at \
             least, where the device has so many",
        )
        .or("1"),
        Setting::new(
            "ring",
            Kind::Count(32, 32 << 10),
            "Packets that wait in each ring of the device, at most",
        )
        .or("1024"),
        Setting::new(
            "mtu",
            Kind::Count(68, 65_000),
            "Longest packet in bytes, Ethernet header left out; left out: as the device has it",
        ),
        Setting::new("promiscuous", Kind::Bool, "Take packets for other stations too").or("true"),
        Setting::new("burst", Kind::Count(1, 256), "Packets received at once, at most").or("64"),
        Setting::new(
            "time",
            Kind::Words(&[
                ("arrival", "packets come when they are received"),
                ("captured", "they come at the times of the capture that net_pcap reads, up to its end"),
            ]),
            "When packets come",
        )
        .or("arrival"),
        Setting::new(
            "idle",
            Kind::Time(0, 100_000_000),
            "How long it may be left unasked when it had nothing; 0: never, which takes a core",
        )
        .or("0ns"),
        Setting::new(
            "send_wait",
            Kind::Time(0, 100_000_000),
            "How long to wait for room in the ring of a device before packets are dropped",
        )
        .or("50us"),
        Setting::new(
            "steer",
            Kind::Bool,
            "With --shards: lead what came by another shard's queue to the shard that it belongs to; false: it stays, which takes \
             a device that brings all packets of a flow by one queue, and stages that need no more",
        )
        .or("true"),
    ],
    properties: Properties {
        live: true,
        faces_a_link: true,
        sharing: |settings| match settings.text("time") {
            // A capture has one sequence of times.
            "captured" => Sharing::Not,
            _ => Sharing::Rss,
        },
        drops: &[DropReason::NotSent],
        ..Properties::new(
            // Each packet is received and sent by itself; a card can spread what comes over several queues.
            |_| Meets::Nothing,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let device = settings.text("device");
    if device.is_empty() || device.starts_with(',') {
        let error = BuildError::setting("device", format!("`{device}` has no name of a device"));
        return Err(error.hint("such as net_null0, or 0000:01:00.0"));
    }
    let options = Options {
        device: device.to_owned(),
        environment: Environment {
            arguments: settings.text("eal").split_whitespace().collect::<Vec<_>>().join(" "),
            mbufs: settings.number("mbufs") as u32,
            room: settings.number("buffer").next_multiple_of(64) as u16,
        },
        queues: settings.number("queues") as u16,
        ring: settings.number("ring") as u16,
        mtu: settings.optional_number("mtu").unwrap_or_default() as u16,
        promiscuous: settings.flag("promiscuous"),
        burst: settings.number("burst") as usize,
        captured: settings.text("time") == "captured",
        idle: settings.number("idle"),
        send_wait: settings.number("send_wait"),
        share: Share { number: site.shard.number as u16, of: site.shard.of as u16 },
    };
    if site.dry {
        return Ok(match site.role {
            Role::Source => Made::Checked,
            _ => Made::Stage(Box::new(Placeholder)),
        });
    }
    let wrong = |error: DpdkError| BuildError::setting(error.setting(), error.to_string());
    let port = match site.role {
        Role::Source => Port::receiving(options.open_receiver().map_err(wrong)?),
        Role::TwoWay => {
            Port::both(options.open_receiver().map_err(wrong)?, options.open_sender().map_err(wrong)?)
        }
        Role::Sink | Role::Inner => Port::transmitting(options.open_sender().map_err(wrong)?),
    };
    Ok(port.into())
}
