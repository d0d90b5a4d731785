//! Settings of the balancer, and how one is built of them.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

use super::operate::{AFFINITY, RELOAD};
use super::{BalancerStage, Mode};
use crate::balancer::{Backend, Balancer, BalancerConfig, NatMode};
use crate::encap::Tunnel;
use crate::reassembly::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};
use crate::{DECIDE, maglev, stage_of};
use slipstream_core::registry::{
    BuildError, Group, Made, Meets, Need, Partner, PortType, Ports, Properties, Site, StageType, need,
};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::DropReason;
use slipstream_wire::protocol;

/// The stage type.
pub const BALANCER: StageType = StageType {
    name: "balancer",
    group: Group::Function,
    summary: "Spreads the connections of a service over backends (Maglev), by IP-in-IP tunnel or NAT",
    example: "in -> balancer(service=\"192.0.2.80:80\", backends=[\"10.1.0.1\", \"10.1.0.2 weight=2\"], \
              source=192.0.2.79) -> out",
    inputs: Ports::These(&[
        PortType { name: "clients", help: "packets from clients", unconnected: None },
        PortType { name: "backends", help: "packets from backends (NAT mode)", unconnected: None },
    ]),
    outputs: Ports::These(&[
        PortType {
            name: "backends",
            help: "packets to backends, and what is not for the service",
            unconnected: None,
        },
        PortType {
            name: "clients",
            help: "packets to clients: from backends, and \"too big\" errors",
            unconnected: Some(DropReason::Unconnected),
        },
    ]),
    settings: &[
        Setting {
            name: "service",
            kind: Kind::Text("ADDRESS:PORT"),
            default: None,
            required: true,
            help: "What clients connect to",
        },
        Setting {
            name: "protocol",
            kind: Kind::Choice(&["tcp", "udp"]),
            default: Some("tcp"),
            required: false,
            help: "The service's protocol",
        },
        Setting {
            name: "backends",
            kind: Kind::List(&Kind::Text("ADDRESS [weight=N] [down]")),
            default: None,
            required: true,
            help: "Who serves; `weight=0` drains, `down` says that it doesn't work",
        },
        Setting {
            name: "mode",
            kind: Kind::Choice(&["dsr", "nat"]),
            default: Some("dsr"),
            required: false,
            help: "dsr: IP-in-IP to the backend, which answers the client itself; nat: addresses rewritten, both ways",
        },
        Setting {
            name: "source",
            kind: Kind::Address,
            default: None,
            required: false,
            help: "dsr: where tunnel packets come from",
        },
        Setting {
            name: "mtu",
            kind: Kind::Count(576, 65_535),
            default: Some("1500"),
            required: false,
            help: "dsr: longest IP packet on the way to backends, in bytes",
        },
        Setting {
            name: "port",
            kind: Kind::Count(1, 65_535),
            default: None,
            required: false,
            help: "nat: the backends' port; without it the service's",
        },
        Setting {
            name: "places",
            kind: Kind::Choice(&["small", "large"]),
            default: Some("small"),
            required: false,
            help: "Size of the Maglev table: 65537 or 655373",
        },
        Setting {
            name: "connections",
            kind: Kind::Count(1, 1 << 26),
            default: Some("131072"),
            required: false,
            help: "Connections that stay with their backend when the list changes, at most",
        },
        Setting {
            name: "idle",
            kind: Kind::Time(1_000_000, 86_400_000_000_000),
            default: Some("300s"),
            required: false,
            help: "After which a silent connection is forgotten",
        },
        FRAGMENTS,
        FRAGMENT_BYTES,
        FRAGMENT_TIMEOUT,
        DECIDE,
    ],
    properties: Properties {
        drops: &[DropReason::Malformed, DropReason::NoBackend, DropReason::TooBig, DropReason::Unsupported],
        changes_frames: |_| true,
        rewrites_flows: |settings| settings.text("mode") == "nat",
        reload: Some(RELOAD),
        tables: &[AFFINITY],
        partners: &[
            Partner { of: &["source", "mtu"], need: Need::Is("mode", &["dsr"]) },
            Partner { of: &["port"], need: Need::Is("mode", &["nat"]) },
        ],
        ..Properties::new(
            // A connection's backend is remembered by its packets from the client; ICMP errors about the way
            // back ask for it.
            |_| Meets::Connection,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let service = service(settings)?;
    let protocol = if settings.text("protocol") == "udp" { protocol::UDP } else { protocol::TCP };
    let backends = backends(settings)?;
    let mode = mode(settings, service, protocol, &backends)?;
    let places = if settings.text("places") == "large" { maglev::LARGE } else { maglev::SMALL };
    let config = BalancerConfig {
        places,
        connections: settings.number("connections") as u32,
        idle: settings.number("idle"),
        seed: site.seed,
    };
    need("connections", Balancer::memory(config.connections))?;
    let balancer =
        Balancer::new(&config, backends).map_err(|e| BuildError::setting("backends", e.to_string()))?;
    let mut stage = BalancerStage::new(balancer, service, protocol, mode);
    stage.fragments = limits(settings, site.seed);
    (stage.ident, stage.ident_step) = (site.shard.number, site.shard.of.max(1));
    Ok(Made::Stage(stage_of(stage, settings)))
}

pub(super) fn service(settings: &Settings) -> Result<SocketAddr, BuildError> {
    let text = settings.text("service");
    let wrong = |what: &str| {
        BuildError::setting("service", format!("{text:?} {what}"))
            .hint("as in 192.0.2.80:80 or [2001:db8::80]:80")
    };
    let service: SocketAddr = text.parse().map_err(|_| wrong("is not ADDRESS:PORT"))?;
    if service.port() == 0 {
        return Err(wrong("has port 0, which nobody connects to"));
    }
    if !is_of_one_host(service.ip()) {
        return Err(wrong("is not the address of one host"));
    }
    Ok(service)
}

/// Returns true if one host can have the address: it is neither unspecified, nor of a group, nor of all.
fn is_of_one_host(address: IpAddr) -> bool {
    let all = matches!(address, IpAddr::V4(address) if address.is_broadcast());
    !all && !address.is_unspecified() && !address.is_multicast()
}

/// The backends, each of which is listed once.
pub(super) fn backends(settings: &Settings) -> Result<Vec<Backend>, BuildError> {
    let mut all: Vec<Backend> = Vec::new();
    let mut listed = HashSet::new();
    for text in settings.texts("backends") {
        let backend = backend(text)?;
        if !listed.insert(backend.address) {
            let what = format!("{text:?}: {} is listed before", backend.address);
            return Err(BuildError::setting("backends", what)
                .hint("`weight=N` gives a backend a larger share of the connections"));
        }
        all.push(backend);
    }
    if all.is_empty() {
        return Err(BuildError::setting(
            "backends",
            "lists none: every packet for the service would be dropped",
        )
        .hint("one that is to get no connections is listed as in \"10.1.0.1 down\""));
    }
    Ok(all)
}

fn backend(text: &str) -> Result<Backend, BuildError> {
    let wrong = |what: &str| {
        BuildError::setting("backends", format!("{text:?}: {what}"))
            .hint("as in \"10.1.0.1\" or \"10.1.0.1 weight=2 down\"")
    };
    let mut words = text.split_whitespace();
    let address = words.next().and_then(|w| w.parse().ok()).ok_or_else(|| wrong("no address"))?;
    if !is_of_one_host(address) {
        return Err(wrong("not the address of one host"));
    }
    let mut backend = Backend { address, weight: 1, healthy: true };
    for word in words {
        match word.split_once('=') {
            Some(("weight", n)) => {
                backend.weight =
                    n.parse().ok().filter(|n| *n <= 1000).ok_or_else(|| wrong("weight is 0 to 1000"))?;
            }
            None if word == "down" => backend.healthy = false,
            _ => return Err(wrong("there are `weight=N` and `down`")),
        }
    }
    Ok(backend)
}

pub(super) fn mode(
    settings: &Settings,
    service: SocketAddr,
    protocol: u8,
    backends: &[Backend],
) -> Result<Mode, BuildError> {
    if settings.text("mode") == "nat" {
        let IpAddr::V4(address) = service.ip() else {
            return Err(BuildError::setting("mode", "nat mode is for IPv4").hint("use dsr"));
        };
        if backends.iter().any(|b| b.address.is_ipv6()) {
            return Err(BuildError::setting("backends", "nat mode is for IPv4"));
        }
        let port = settings.optional_number("port").map_or(service.port(), |p| p as u16);
        if port == service.port() && backends.iter().any(|b| b.address == service.ip()) {
            let what = format!("{service} is the service itself");
            return Err(BuildError::setting("backends", what)
                .hint("nat mode sends packets to another address, or to another `port`"));
        }
        return Ok(Mode::Nat(NatMode { protocol, service: (address, service.port()), port }));
    }
    let Some(source) = settings.address("source") else {
        return Err(BuildError::setting("source", "dsr needs an address that its tunnels come from")
            .hint("write source = \"192.0.2.79\""));
    };
    if !is_of_one_host(source) {
        return Err(BuildError::setting("source", format!("{source} is not the address of one host")));
    }
    let mtu = settings.number("mtu") as u16;
    let tunnel = |b: &Backend| {
        Tunnel::new(source, b.address, mtu).ok_or_else(|| {
            BuildError::setting(
                "source",
                format!("{source} and backend {} are of different IP versions", b.address),
            )
        })
    };
    backends.iter().map(tunnel).collect::<Result<_, _>>().map(Mode::Dsr)
}
