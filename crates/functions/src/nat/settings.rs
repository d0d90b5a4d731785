//! Settings of the NAT's stage, and the configuration that they make.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net};
use slipstream_core::operate::Reloading;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{EventKind, Hindrance, Meets, Properties, Translation, need};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::DropReason;

use super::operate::{NatUpdate, TABLES};
use super::{Filtering, Nat, NatConfig, NatConfigError, NatStage, NatTimeouts, Pooling, StaticMapping};
use crate::reassembly::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};
use crate::tcp_state::TcpTimeouts;
use crate::{DECIDE, FragmentLimits, stage_of};

/// The inputs of what translates between two sides.
pub(crate) const SIDES_IN: Ports = Ports::These(&[
    PortType { name: "inside", help: "packets from inside", unconnected: None },
    PortType { name: "outside", help: "packets from outside", unconnected: None },
]);
/// Its outputs.
pub(crate) const SIDES_OUT: Ports = Ports::These(&[
    PortType { name: "outside", help: "packets to outside", unconnected: None },
    PortType { name: "inside", help: "packets to inside", unconnected: Some(DropReason::Unconnected) },
]);

/// The stage type.
pub const NAT: StageType = StageType {
    name: "nat",
    group: Group::Function,
    summary: "Source NAT for IPv4: many inside hosts share external addresses (RFC 4787, 5382, 5508, 7857)",
    example: "lan -> nat(pool=[192.0.2.1]) -> wan_out; wan -> [outside]nat[inside] -> lan_out",
    inputs: SIDES_IN,
    outputs: SIDES_OUT,
    settings: &[
        Setting {
            name: "pool",
            kind: Kind::List(&Kind::Prefix),
            default: None,
            required: false,
            help: "External addresses, as addresses or prefixes; at most 4096",
        },
        Setting {
            name: "inside",
            kind: Kind::List(&Kind::Prefix),
            default: None,
            required: false,
            help: "Inside sources that are translated, others pass, but for those of static mappings; without it: every source",
        },
        Setting {
            name: "ports",
            kind: Kind::Text("range of ports, as in 1024-65535"),
            default: Some("1024-65535"),
            required: false,
            help: "External ports for inside ports from 1024 on",
        },
        Setting {
            name: "low_ports",
            kind: Kind::Text("range of ports, as in 1-1023, or none"),
            default: Some("1-1023"),
            required: false,
            help: "External ports for inside ports below 1024 (RFC 4787 REQ-3a); none: they are treated like the others",
        },
        Setting {
            name: "identifiers",
            kind: Kind::Text("range of numbers, as in 0-65535"),
            default: Some("0-65535"),
            required: false,
            help: "External identifiers for ICMP queries",
        },
        Setting {
            name: "static",
            kind: Kind::List(&Kind::Text(
                "INSIDE = EXTERNAL addresses, or tcp|udp INSIDE:PORT = EXTERNAL:PORT",
            )),
            default: None,
            required: false,
            help: "Mappings that are always there",
        },
        Setting {
            name: "filtering",
            kind: Kind::Choice(&["endpoint-independent", "address-dependent", "address-and-port-dependent"]),
            default: Some("endpoint-independent"),
            required: false,
            help: "Who outside may send to a mapping (RFC 4787 §5)",
        },
        Setting {
            name: "pooling",
            kind: Kind::Choice(&["paired", "arbitrary"]),
            default: Some("paired"),
            required: false,
            help: "Whether an inside host always gets the same external address (RFC 4787 §4.1)",
        },
        Setting {
            name: "hairpin",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "Inside hosts reach each other by external endpoints (RFC 4787 REQ-9)",
        },
        Setting {
            name: "loose",
            kind: Kind::Bool,
            default: Some("true"),
            required: false,
            help: "A TCP session may begin with an ACK: after a restart connections go on",
        },
        Setting {
            name: "sessions",
            kind: Kind::Count(1, 1 << 26),
            default: Some("131072"),
            required: false,
            help: "Sessions remembered at most",
        },
        Setting {
            name: "host_sessions",
            kind: Kind::Count(1, 1 << 26),
            default: None,
            required: false,
            help: "Sessions of one inside host at most, so that one alone can't take them all; left out: half of `sessions`",
        },
        Setting {
            name: "host_mappings",
            kind: Kind::Count(1, 1 << 26),
            default: None,
            required: false,
            help: "Mappings of one inside host at most, of each protocol, so that one alone can't take all ports; left \
                   out: half of `ports`, of ICMP half of `identifiers`; times the addresses of `pool` if `pooling` is \
                   arbitrary",
        },
        Setting {
            name: "mapping_sessions",
            kind: Kind::Count(1, 1 << 26),
            default: None,
            required: false,
            help: "Sessions of one mapping (an inside address and port) at most; left out: a quarter of `sessions`",
        },
        Setting {
            name: "inbound_refresh",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Packets from outside keep UDP and ICMP sessions and mappings alive, too (RFC 4787 REQ-6)",
        },
        Setting {
            name: "udp_timeout",
            kind: Kind::Time(1_000_000_000, 86_400_000_000_000),
            default: Some("300s"),
            required: false,
            help: "After which a UDP session ends (RFC 4787 REQ-5: at least 2 min)",
        },
        Setting {
            name: "tcp_timeout",
            kind: Kind::Time(1_000_000_000, 864_000_000_000_000),
            default: Some("7440s"),
            required: false,
            help: "After which an established TCP session ends (RFC 5382 REQ-5: at least 2 h 4 min)",
        },
        Setting {
            name: "tcp_transitory_timeout",
            kind: Kind::Time(1_000_000_000, 86_400_000_000_000),
            default: Some("240s"),
            required: false,
            help: "After which a TCP session ends that is opening, closing or was reset (RFC 5382 REQ-5: at least 4 min)",
        },
        Setting {
            name: "icmp_timeout",
            kind: Kind::Time(1_000_000_000, 86_400_000_000_000),
            default: Some("60s"),
            required: false,
            help: "After which the session of an ICMP query ends (RFC 5508 REQ-2: at least 60 s)",
        },
        Setting {
            name: "routed",
            kind: Kind::Bool,
            default: Some("false"),
            required: false,
            help: "Others send packets to the external addresses here of themselves, by their routes: nobody on the link \
                   has to answer for them",
        },
        FRAGMENTS,
        FRAGMENT_BYTES,
        FRAGMENT_TIMEOUT,
        DECIDE,
    ],
    properties: Properties {
        changes_frames: |_| true,
        rewrites_flows: |_| true,
        external,
        paired: true,
        events: Some(EventKind::Sessions),
        translation: Some(Translation {
            outside: 1,
            inside: "inside",
            ports: &["ports", "low_ports"],
            identifiers: "identifiers",
        }),
        hindrance,
        reload: Some(RELOAD),
        tables: TABLES,
        drops: &[
            DropReason::Denied,
            DropReason::Malformed,
            DropReason::NoMapping,
            DropReason::NoPort,
            DropReason::SessionLimit,
            DropReason::TableFull,
            DropReason::Unsupported,
        ],
        ..Properties::new(
            // Connections share mappings (of one inside endpoint to all destinations, RFC 4787 REQ-1), an
            // inside host's external address (§4.1), and the free ports; and from outside the external port
            // alone says whose a packet is.
            |_| Meets::Everything,
        )
    },
    build,
};

/// The endpoints that are divided among shards must be all that there are, each with one shard's sessions.
fn hindrance(settings: &Settings) -> Option<Hindrance> {
    if settings.flag("hairpin") {
        return Some(Hindrance {
            reason: "lets inside hosts reach each other by external endpoints, and these may belong to two shards",
            remedy: "set hairpin=false, or leave out --shards",
        });
    }
    if !settings.list("static").is_empty() {
        return Some(Hindrance {
            reason: "has static mappings, whose external ports belong to no shard's range",
            remedy: "leave out --shards",
        });
    }
    // Each range is divided by itself: two shards would give a port of both, and one of them get the answers.
    let [high, low] = ["ports", "low_ports"].map(|name| range(settings.text(name)));
    let shared = high.zip(low).is_some_and(|(a, b)| a.start() <= b.end() && b.start() <= a.end());
    shared.then_some(Hindrance {
        reason: "has ports that are in `ports` and in `low_ports`, and would belong to two shards",
        remedy: "give the two ranges no port in common, as in low_ports=none, or leave out --shards",
    })
}

/// The external addresses that these settings name, those which can be read.
pub(crate) fn external(settings: &Settings) -> Vec<IpNet> {
    let statics = statics(settings).unwrap_or_default();
    let of = |mapping: &StaticMapping| match *mapping {
        StaticMapping::Address { external, .. } => external,
        StaticMapping::Port { external: (external, _), .. } => external,
    };
    let mut all: Vec<IpNet> = settings.prefixes("pool").collect();
    for address in statics.iter().map(of) {
        if !all.iter().any(|net| net.contains(&IpAddr::V4(address))) {
            all.push(IpAddr::V4(address).into());
        }
    }
    all
}

/// The settings that can change while a NAT runs.
const RELOAD: Reloading = Reloading {
    settings: &[
        "pool",
        "inside",
        "ports",
        "low_ports",
        "static",
        "pooling",
        "hairpin",
        "loose",
        "host_sessions",
        "host_mappings",
        "mapping_sessions",
        "inbound_refresh",
        "udp_timeout",
        "tcp_timeout",
        "tcp_transitory_timeout",
        "icmp_timeout",
        "routed",
    ],
    ports: Reloading::NO_PORTS,
    reads_files: |_| false,
    make: |settings, site| {
        let config = config(settings, site)?;
        Nat::new(&NatConfig { sessions: 1, mappings: 1, ..config.clone() }).map_err(|e| wrong(&config, e))?;
        Ok(Box::new(NatUpdate::new(config)))
    },
};

/// An error about a configuration, at the setting that it is about.
fn wrong(config: &NatConfig, error: NatConfigError) -> BuildError {
    let in_pool = |address| config.pool.iter().filter(|other| **other == address).count();
    let setting = match error {
        NatConfigError::TwiceAddress(address) if in_pool(address) > 1 => "pool",
        NatConfigError::NoHost(address) if in_pool(address) > 0 => "pool",
        NatConfigError::TwiceAddress(_)
        | NatConfigError::TwiceEndpoint(..)
        | NatConfigError::NoHost(_)
        | NatConfigError::Protocol(_)
        | NatConfigError::PortZero => "static",
        NatConfigError::Ports => "ports",
        NatConfigError::Nothing | NatConfigError::PoolSize(_) => "pool",
    };
    BuildError::setting(setting, error.to_string())
}

fn config(settings: &Settings, site: &Site<'_>) -> Result<NatConfig, BuildError> {
    let v4 = |name: &'static str| -> Result<Vec<Ipv4Net>, BuildError> {
        let only = |net: IpNet| match net {
            IpNet::V4(net) => Ok(net),
            IpNet::V6(_) => Err(BuildError::setting(name, format!("{net} is not IPv4"))),
        };
        settings.prefixes(name).map(only).collect()
    };
    let mut config = NatConfig {
        inside: v4("inside")?,
        pool: pool(&v4("pool")?)?,
        statics: statics(settings)?,
        seed: site.seed,
        choices: site.choices,
        ..NatConfig::without_addresses(settings)
    };
    config.ports = ports(settings, "ports")?;
    config.low_ports = low_ports(settings)?;
    config.identifiers = range(settings.text("identifiers"))
        .ok_or_else(|| BuildError::setting("identifiers", "not a range of numbers").hint("as in 0-65535"))?;
    if config.pool.is_empty() && config.statics.is_empty() {
        return Err(
            BuildError::setting("pool", "there is no external address").hint("write pool = [\"192.0.2.1\"]")
        );
    }
    Ok(config)
}

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let config = config(settings, site)?;
    need("sessions", Nat::memory(&config))?;
    let mut nat = Nat::new(&config).map_err(|e| wrong(&config, e))?;
    if site.live {
        nat.go_by_clock();
    }
    let mut stage = NatStage::new(nat);
    stage.fragments = FragmentLimits { ipv6: false, ..limits(settings, site.seed) };
    Ok(Made::Stage(stage_of(stage, settings)))
}

fn range(text: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = text.split_once('-')?;
    let (first, last): (u16, u16) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    (first <= last).then_some(first..=last)
}

fn ports(settings: &Settings, name: &'static str) -> Result<RangeInclusive<u16>, BuildError> {
    let range = range(settings.text(name)).filter(|range| *range.start() > 0);
    range.ok_or_else(|| BuildError::setting(name, "not a range of ports").hint("as in 1024-65535"))
}

fn low_ports(settings: &Settings) -> Result<RangeInclusive<u16>, BuildError> {
    match settings.text("low_ports") {
        #[allow(clippy::reversed_empty_ranges, reason = "the empty range stands for no ports")]
        "none" => Ok(1..=0),
        _ => ports(settings, "low_ports"),
    }
}

impl NatConfig {
    /// The configuration that these values make, without external addresses, and for every source inside.
    /// Ports that can't be read are all.
    fn without_addresses(settings: &Settings) -> Self {
        let sessions = settings.number("sessions") as u32;
        let limit = |name: &str, share: u32| {
            settings.optional_number(name).map_or((sessions / share).max(1), |n| n as u32)
        };
        Self {
            inside: Vec::new(),
            pool: Vec::new(),
            ports: ports(settings, "ports").unwrap_or(1..=u16::MAX),
            low_ports: low_ports(settings).unwrap_or(1..=u16::MAX),
            identifiers: range(settings.text("identifiers")).unwrap_or(0..=u16::MAX),
            statics: Vec::new(),
            filtering: match settings.text("filtering") {
                "address-dependent" => Filtering::AddressDependent,
                "address-and-port-dependent" => Filtering::AddressAndPortDependent,
                _ => Filtering::EndpointIndependent,
            },
            pooling: if settings.text("pooling") == "arbitrary" {
                Pooling::Arbitrary
            } else {
                Pooling::Paired
            },
            hairpin: settings.flag("hairpin"),
            inbound_refresh: settings.flag("inbound_refresh"),
            loose: settings.flag("loose"),
            timeouts: timeouts(settings),
            sessions,
            host_sessions: limit("host_sessions", 2),
            host_mappings: settings.optional_number("host_mappings").map(|n| n as u32),
            mapping_sessions: limit("mapping_sessions", 4),
            mappings: sessions,
            seed: 0,
            choices: 0,
        }
    }
}

impl Default for NatConfig {
    fn default() -> Self {
        Self::without_addresses(&Settings::defaults(NAT.settings))
    }
}

impl Default for NatTimeouts {
    fn default() -> Self {
        timeouts(&Settings::defaults(NAT.settings))
    }
}

fn timeouts(settings: &Settings) -> NatTimeouts {
    let tcp =
        TcpTimeouts::by_phase(settings.number("tcp_timeout"), settings.number("tcp_transitory_timeout"));
    let (udp, icmp) = (settings.number("udp_timeout"), settings.number("icmp_timeout"));
    NatTimeouts { tcp, udp, icmp }
}

fn pool(nets: &[Ipv4Net]) -> Result<Vec<Ipv4Addr>, BuildError> {
    let addresses: u64 = nets.iter().map(|n| 1u64 << (32 - n.prefix_len())).sum();
    if addresses > 4096 {
        return Err(BuildError::setting("pool", format!("{addresses} addresses; at most 4096 are possible")));
    }
    // All addresses of a prefix: it is a pool, not a network with hosts.
    let all = |n: &Ipv4Net| (n.network().to_bits()..=n.broadcast().to_bits()).map(Ipv4Addr::from_bits);
    Ok(nets.iter().flat_map(all).collect())
}

fn statics(settings: &Settings) -> Result<Vec<StaticMapping>, BuildError> {
    let mut all = Vec::new();
    for value in settings.list("static") {
        let Value::Text(text) = value else { continue };
        let mapping = static_mapping(text).ok_or_else(|| {
            BuildError::setting("static", format!("{text:?} is no mapping"))
                .hint("as in \"10.0.0.5 = 192.0.2.5\" or \"tcp 10.0.0.5:80 = 192.0.2.1:8080\"")
        })?;
        all.push(mapping);
    }
    Ok(all)
}

fn static_mapping(text: &str) -> Option<StaticMapping> {
    let (inside, external) = text.split_once('=')?;
    let (inside, external) = (inside.trim(), external.trim());
    if let Some((protocol, inside)) = inside.split_once(' ') {
        let protocol = match protocol {
            "tcp" => 6,
            "udp" => 17,
            _ => return None,
        };
        let end =
            |text: &str| text.trim().parse::<std::net::SocketAddrV4>().map(|a| (*a.ip(), a.port())).ok();
        return Some(StaticMapping::Port { protocol, inside: end(inside)?, external: end(external)? });
    }
    Some(StaticMapping::Address { inside: inside.parse().ok()?, external: external.parse().ok()? })
}
