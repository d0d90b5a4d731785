//! The NAT in a pipeline: port 0 is inside, port 1 outside, on the way in as on the way out.

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;

use ipnet::{IpNet, Ipv4Net};
use serde_json::json;
use slipstream_wire::protocol::TCP;
use slipstream_wire::{Flags, NarrowKey};

use super::operate::{NatUpdate, TABLES};
use super::{DropReason as Why, Filtering, StaticMapping};
use super::{
    ErrorRewrite, Kind as PacketKind, Nat, NatConfig, NatTimeouts, Packet, Pooling, Rewrite, Side, Truncated,
    Verdict as Fate,
};
use crate::reassembly::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};
use crate::tcp_state::{MOVES, TcpTimeouts};
use crate::{DECIDE, FragmentLimits, FunctionContext, LeavesAs, NetworkFunction, stage_of};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::operate::{Operate, Reloading};
use slipstream_core::reads::Reads;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Properties};
use slipstream_core::settings::{Kind, Setting, Settings, Value};
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::table::NONE;
use slipstream_core::time::Nanos;

/// The stage type.
pub const NAT: StageType = StageType {
    name: "nat",
    group: Group::Function,
    summary: "Source NAT for IPv4: many inside hosts share external addresses (RFC 4787, 5382, 5508, 7857)",
    example: "lan -> nat(pool=[192.0.2.1]) -> wan_out; wan -> [outside]nat[inside] -> lan_out",
    inputs: Ports::These(&[
        PortType { name: "inside", help: "packets from inside", unconnected: None },
        PortType { name: "outside", help: "packets from outside", unconnected: None },
    ]),
    outputs: Ports::These(&[
        PortType { name: "outside", help: "packets to outside", unconnected: None },
        PortType { name: "inside", help: "packets to inside", unconnected: Some(DropReason::Unconnected) },
    ]),
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
            help: "Inside sources that are translated, others pass; without it: every source",
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
        rewrites_flows: |_| true,
        external,
        reload: Some(RELOAD),
        tables: TABLES,
        drops: &[
            DropReason::Denied,
            DropReason::Malformed,
            DropReason::NoMapping,
            DropReason::NoPort,
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
        "mapping_sessions",
        "inbound_refresh",
        "udp_timeout",
        "tcp_timeout",
        "tcp_transitory_timeout",
        "icmp_timeout",
        "routed",
    ],
    reads_files: |_| false,
    make: |settings, site| {
        let config = config(settings, site)?;
        Nat::new(&NatConfig { sessions: 1, mappings: 1, ..config.clone() })
            .map_err(|e| BuildError::stage(e.to_string()))?;
        Ok(Box::new(NatUpdate::new(config)))
    },
};

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
    let nat = Nat::new(&config).map_err(|e| BuildError::stage(e.to_string()))?;
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
    let transitory = settings.number("tcp_transitory_timeout");
    let tcp = TcpTimeouts {
        established: settings.number("tcp_timeout"),
        syn_sent: transitory,
        syn_received: transitory,
        fin_wait: transitory,
        close_wait: transitory,
        last_ack: transitory,
        time_wait: transitory,
        close: transitory,
    };
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

/// A NAT as a network function.
#[derive(Debug)]
pub struct NatStage {
    pub(super) nat: Nat,
    fragments: FragmentLimits,
    not_ipv4: u64,
    truncated: u64,
    /// When sessions are next looked at, after a change of settings.
    pub(super) sweep_at: Nanos,
}

/// Time between two slices of what there is to do after a change of settings, in ns.
const SWEEP_EVERY: u64 = 100_000;

/// The part of a decision that is looked up ahead.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// True if it can be read.
    readable: bool,
    packet: Packet,
    hash: u64,
    /// Most likely the number of its session.
    session: u32,
    /// That is what the flow's context says; of the packet its key and flags alone are known.
    by_context: bool,
}

impl Default for Found {
    fn default() -> Self {
        let key = NarrowKey([0; 2]);
        let packet = Packet { key, kind: PacketKind::Opens, tcp_flags: 0 };
        Self { readable: false, packet, hash: 0, session: NONE, by_context: false }
    }
}

/// The decision about a train.
#[derive(Clone, Copy, Debug)]
pub enum Decided {
    /// Rewritten, as the others of its session.
    Rewrite(Rewrite, u32, Side),
    /// An ICMP error, rewritten inside too.
    Error(ErrorRewrite),
    /// Goes on as it is.
    Pass,
    /// Dropped.
    Drop(DropReason),
}

impl NatStage {
    /// Around a NAT.
    #[must_use]
    pub fn new(nat: Nat) -> Self {
        let fragments = FragmentLimits { ipv6: false, ..FragmentLimits::default() };
        Self { nat, fragments, not_ipv4: 0, truncated: 0, sweep_at: Nanos(0) }
    }

    #[inline(always)]
    fn find(&self, cx: &Context<'_>, packet: Packet, found: &mut Found) {
        (found.readable, found.by_context) = (true, false);
        found.packet = packet;
        found.hash = self.nat.hash(&packet);
        self.nat.prefetch_index(side(cx), found.hash);
    }

    #[inline(never)]
    fn look_at_any(&self, cx: &Context<'_>, frame: &Frame, found: &mut Found) {
        let ipv4 = frame.info.classified() && !Flags(frame.info.flags()).has(Flags::IPV6 | Flags::INNER);
        match Packet::read(cx.data(frame), usize::from(frame.info.l3())) {
            Ok(packet) if ipv4 => self.find(cx, packet, found),
            _ => (found.readable, found.by_context) = (false, false),
        }
    }

    /// Finds the session of a packet from either side by the flow's context, where the flow key has all that
    /// a NAT reads but TCP flags, and those are known. Returns false, and changes nothing, elsewhere.
    #[inline(always)]
    fn find_kept(&self, cx: &Context<'_>, info: Info, found: &mut Found) -> bool {
        let Some((key, [number])) = cx.pool.keyed_flow_words() else { return false };
        let NarrowKey([_, rest]) = key;
        let known = number > 0
            && info.flags() & (Flags::PORTS | Flags::IPV6 | Flags::INNER | Flags::FRAGMENT) == Flags::PORTS
            && ((rest >> 24) as u8 != TCP || info.is_tcp());
        if known {
            (found.readable, found.by_context) = (true, true);
            found.packet = Packet { key, kind: PacketKind::Opens, tcp_flags: info.tcp_flags() };
            found.session = number - 1;
            self.nat.prefetch_known(found.session);
        }
        known
    }

    /// Decides about a packet whose session is not the one that its flow's context says, or no longer.
    #[inline(never)]
    fn decide_again(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame) -> Decided {
        let mut found = Found::default();
        fx.cx.pool.keep_flow_words([0]);
        self.look_ahead(fx.cx, first, &mut found);
        NetworkFunction::prefetch(self, fx.cx, std::slice::from_mut(&mut found));
        self.decide(fx, first, &found)
    }
}

impl NatStage {
    /// Decides about any packet.
    #[inline(never)]
    fn decide_any(&mut self, packet: &Packet, side: Side, now: Nanos) -> Decided {
        let fate = match side {
            Side::Inside => self.nat.outbound(packet, now),
            Side::Outside => self.nat.inbound(packet, now),
        };
        match fate {
            Fate::Rewrite { rewrite, session } => Decided::Rewrite(rewrite, session, side),
            Fate::Error(rewrite) => Decided::Error(rewrite),
            Fate::Pass => Decided::Pass,
            Fate::Drop(why) => Decided::Drop(reason(why)),
        }
    }

    /// Tells of the last packet behind the first of a train, whose time counts.
    #[inline]
    fn observe(&mut self, session: u32, side: Side, now: Nanos, others: &[Frame]) {
        let Some(last) = others.last() else { return };
        if session == NONE && side == Side::Outside {
            self.nat.unsolicited_too(others.len() as u64);
            return;
        }
        self.nat.observe(session, side, last.info.tcp_flags(), now.max(last.arrival));
    }

    /// Rewrites packets; `change` says whether a packet has another destination address now.
    #[inline(always)]
    fn rewrite(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frames: &[Frame],
        verdicts: &mut [Verdict],
        change: impl Fn(&mut [u8], usize, usize) -> Result<bool, Truncated>,
    ) {
        let inside = fx.cx.input == 0;
        for (frame, verdict) in frames.iter().zip(verdicts) {
            let (l3, l4) = (usize::from(frame.info.l3()), usize::from(frame.info.l4()));
            *verdict = match change(fx.cx.data_mut(frame), l3, l4) {
                // A packet from inside whose destination changes goes back inside: a hairpin.
                Ok(other) if !inside || other => Verdict::port(1),
                Ok(_) => Verdict::PASS,
                Err(Truncated) => {
                    self.truncated += 1;
                    Verdict::drop(DropReason::Malformed)
                }
            };
        }
    }

    /// Applies what is seldom decided.
    #[inline(never)]
    fn apply_other(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        match decided {
            Decided::Rewrite(rewrite, ..) => {
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            Decided::Error(_) if !ErrorRewrite::reaches(fx.cx, frames) => {
                verdicts.fill(Verdict::drop(DropReason::Unsupported));
            }
            Decided::Error(rewrite) => {
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            Decided::Pass => self.rewrite(fx, frames, verdicts, |_, _, _| Ok(false)),
            Decided::Drop(reason) => verdicts.fill(Verdict::drop(*reason)),
        }
    }
}

/// Has the flow's context keep the session of a packet, where the flow key is all that a NAT
/// knows it by: a VLAN makes another flow, and no other session.
#[inline(never)]
fn keep(fx: &mut FunctionContext<'_, '_>, packet: &Packet, session: u32) {
    if let Some((key, [_])) = fx.cx.pool.keyed_flow_words()
        && key == packet.key
        && session != NONE
    {
        fx.cx.pool.keep_flow_words([session + 1]);
    }
}

fn side(cx: &Context<'_>) -> Side {
    if cx.input == 0 { Side::Inside } else { Side::Outside }
}

impl NetworkFunction for NatStage {
    type Decision = Decided;
    type Lookahead = Found;

    /// FIN, SYN, RST and ACK move the state of a session.
    fn reads(&self) -> Reads {
        Reads::of_word(0x17 << 8)
    }

    fn fragments(&self) -> Option<FragmentLimits> {
        Some(self.fragments)
    }

    /// Of a flow it keeps the number of the session, plus one: those of a session's two flows are the same.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 1, alone: false, trains: Trains::Changed }
    }

    const CHANGES_KEYS: bool = true;

    #[inline(always)]
    fn leaves_as(&self, decided: &Decided) -> LeavesAs {
        match decided {
            Decided::Rewrite(rewrite, ..) => LeavesAs::Changed(rewrite.endpoints().0),
            Decided::Pass => LeavesAs::Before,
            Decided::Error(_) | Decided::Drop(_) => LeavesAs::Unknown,
        }
    }

    /// Packets with ports share; ICMP, whose identifiers the flow key doesn't have, don't, nor do packets of
    /// which each may move the state of a TCP session.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        self.sharing(cx, first, std::slice::from_ref(other)) == 1
    }

    #[inline]
    fn sharing(&self, cx: &Context<'_>, first: &Frame, others: &[Frame]) -> usize {
        if !Flags(first.info.flags()).has(Flags::PORTS) || first.info.tcp_flags() & MOVES != 0 {
            return 0;
        }
        self.reads().agreeing(cx.pool, first, others)
    }

    fn holds_until(&self, decided: &Decided, now: Nanos) -> Nanos {
        match decided {
            Decided::Rewrite(_, session, _) => self.nat.holds_until(*session, now),
            _ => now,
        }
    }

    #[inline(always)]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Found) {
        let info = first.info;
        if self.find_kept(cx, info, found) {
            return;
        }
        let plain = info.classified() && info.flags() & (Flags::IPV6 | Flags::INNER) == 0;
        match Packet::parse_fast(cx.data(first), usize::from(info.l3())) {
            Some(packet) if plain => self.find(cx, packet, found),
            _ => self.look_at_any(cx, first, found),
        }
    }

    #[inline(always)]
    fn prefetch(&mut self, cx: &Context<'_>, found: &mut [Found]) {
        let side = side(cx);
        let sought = found.iter_mut().filter(|found| !found.by_context);
        sought.for_each(|found| found.session = self.nat.prefetch_session(side, found.hash));
    }

    #[inline(always)]
    fn decide(&mut self, fx: &mut FunctionContext<'_, '_>, first: &Frame, found: &Found) -> Decided {
        let (side, now) = (side(fx.cx), fx.cx.now);
        if !found.readable {
            self.not_ipv4 += 1;
            // A packet that it can't translate goes on only if it would have been left alone.
            let ipv4 = first.info.classified() && !Flags(first.info.flags()).has(Flags::IPV6);
            return if ipv4 { Decided::Drop(DropReason::Malformed) } else { Decided::Pass };
        }
        let packet = &found.packet;
        if side == Side::Inside
            && let Some((rewrite, session)) = self.nat.known_outbound(packet, found.session, now)
        {
            if !found.by_context && fx.cx.pool.flows().is_some() {
                keep(fx, packet, session);
            }
            return Decided::Rewrite(rewrite, session, side);
        }
        if side == Side::Outside
            && let Some(Fate::Rewrite { rewrite, session }) =
                self.nat.known_inbound(packet, found.session, now)
        {
            if !found.by_context && fx.cx.pool.flows().is_some() {
                keep(fx, packet, session);
            }
            return Decided::Rewrite(rewrite, session, side);
        }
        if found.by_context {
            return self.decide_again(fx, first);
        }
        let decided = self.decide_any(packet, side, now);
        if let Decided::Rewrite(_, session, _) = &decided {
            keep(fx, packet, *session);
        }
        decided
    }

    #[inline(always)]
    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        match decided {
            Decided::Rewrite(rewrite, session, side) => {
                // Fragments have no flags: the datagram was told of when it was decided about.
                if let [first, others @ ..] = frames
                    && !others.is_empty()
                    && !Flags(first.info.flags()).has(Flags::FRAGMENT)
                {
                    self.observe(*session, *side, fx.cx.now, others);
                }
                self.rewrite(fx, frames, verdicts, |data, l3, l4| rewrite.apply(data, l3, l4));
            }
            other => self.apply_other(fx, other, frames, verdicts),
        }
    }

    /// After a change of settings there is something to do until all sessions were looked at.
    fn next_deadline(&self) -> Nanos {
        if self.nat.is_sweeping() { self.sweep_at } else { Nanos::MAX }
    }

    fn on_deadline(&mut self, fx: &mut FunctionContext<'_, '_>) {
        self.nat.sweep_on(fx.cx.now);
        self.sweep_at = fx.cx.now.after(SWEEP_EVERY);
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }
}

impl Observe for NatStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let c = self.nat.counters();
        visit("sessions", u64::from(self.nat.sessions()));
        visit("mappings", u64::from(self.nat.mappings()));
        visit("sessions_opened", c.sessions_opened);
        visit("sessions_closed", c.sessions_closed);
        visit("unsolicited", c.unsolicited);
        visit("long_probes", self.nat.long_probes());
        visit("not_ipv4", self.not_ipv4);
        visit("truncated", self.truncated);
    }

    fn report(&self) -> Option<serde_json::Value> {
        let c = self.nat.counters();
        let refused: serde_json::Map<_, _> =
            Why::ALL.iter().map(|why| (why.name().to_owned(), c.dropped(*why).into())).collect();
        Some(json!({ "refused_decisions": refused }))
    }
}

fn reason(why: Why) -> DropReason {
    match why {
        Why::NoPort => DropReason::NoPort,
        Why::HostSessions | Why::MappingSessions => DropReason::SessionLimit,
        Why::SessionsFull | Why::MappingsFull => DropReason::TableFull,
        Why::NoMapping | Why::NoSession | Why::UnknownError | Why::UnknownFragment => DropReason::NoMapping,
        Why::Filtered | Why::Hairpin => DropReason::Denied,
        Why::Protocol => DropReason::Unsupported,
    }
}
