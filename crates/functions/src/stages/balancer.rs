//! The load balancer in a pipeline: clients at port 0, backends at port 1, on the way in as on the way out.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use slipstream_wire::{Flags, FlowKey, NarrowKey, WideKey, classify, protocol};

use crate::answer::{ip_packet, link_of, send_back};
use crate::balancer::{Backend, Balancer, BalancerConfig, NatMode};
use crate::encap::{EncapError, Tunnel};
use crate::icmp;
use crate::icmp::Message;
use crate::nat::{ErrorRewrite, Rewrite};
use crate::packet::quoted;
use crate::reassembly::{FRAGMENT_BYTES, FRAGMENT_TIMEOUT, FRAGMENTS, limits};
use crate::{
    DECIDE, FragmentLimits, FunctionContext, LeavesAs, NetworkFunction, RateLimiter, maglev, stage_of,
};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::operate::Operate;
use slipstream_core::packet::key_of;
use slipstream_core::reads::Reads;
use slipstream_core::registry::{BuildError, Group, Made, PortType, Ports, Site, StageType};
use slipstream_core::registry::{Meets, Properties};
use slipstream_core::settings::{Kind, Setting, Settings};
use slipstream_core::stage::{Context, DropReason, Observe, Verdict};
use slipstream_core::time::Nanos;

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
        rewrites_flows: |settings| settings.text("mode") == "nat",
        reload: Some(RELOAD),
        tables: &[AFFINITY],
        ..Properties::new(
            // A connection's backend is remembered by its packets from the client; ICMP errors about the way
            // back ask for it.
            |_| Meets::Connection,
        )
    },
    build,
};

fn build(settings: &Settings, site: &Site<'_>) -> Result<Made, BuildError> {
    let service: SocketAddr = settings.text("service").parse().map_err(|_| {
        BuildError::setting("service", format!("{:?} is not ADDRESS:PORT", settings.text("service")))
            .hint("as in 192.0.2.80:80 or [2001:db8::80]:80")
    })?;
    let protocol = if settings.text("protocol") == "udp" { protocol::UDP } else { protocol::TCP };
    let backends = settings.texts("backends").map(backend).collect::<Result<Vec<_>, _>>()?;
    let mode = mode(settings, service, protocol, &backends)?;
    let places = if settings.text("places") == "large" { maglev::LARGE } else { maglev::SMALL };
    let config = BalancerConfig {
        places,
        connections: settings.number("connections") as u32,
        idle: settings.number("idle"),
        seed: site.seed,
    };
    let balancer =
        Balancer::new(&config, backends).map_err(|e| BuildError::setting("backends", e.to_string()))?;
    let mut stage = BalancerStage::new(balancer, service, protocol, mode);
    stage.fragments = limits(settings, site.seed);
    Ok(Made::Stage(stage_of(stage, settings)))
}

fn backend(text: &str) -> Result<Backend, BuildError> {
    let wrong = |what: &str| {
        BuildError::setting("backends", format!("{text:?}: {what}"))
            .hint("as in \"10.1.0.1\" or \"10.1.0.1 weight=2 down\"")
    };
    let mut words = text.split_whitespace();
    let address = words.next().and_then(|w| w.parse().ok()).ok_or_else(|| wrong("no address"))?;
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

fn mode(
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
        return Ok(Mode::Nat(NatMode { protocol, service: (address, service.port()), port }));
    }
    let Some(source) = settings.address("source") else {
        return Err(BuildError::setting("source", "dsr needs an address that its tunnels come from")
            .hint("write source = \"192.0.2.79\""));
    };
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

/// The way in which packets reach backends.
#[derive(Clone, Debug)]
pub enum Mode {
    /// Through these tunnels, one a backend.
    Dsr(Vec<Tunnel>),
    /// Rewritten.
    Nat(NatMode),
}

/// A balancer as a network function.
#[derive(Debug)]
pub struct BalancerStage {
    balancer: Balancer,
    service: SocketAddr,
    protocol: u8,
    mode: Mode,
    fragments: FragmentLimits,
    limiter: RateLimiter,
    answer: Vec<u8>,
    ident: u16,
    passed: u64,
    balanced: Vec<u64>,
    /// The connection that the last decision was about.
    asked: Asked,
}

/// Subject of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    /// No connection.
    Nothing,
    /// One that is not remembered.
    Unremembered,
    /// The one with this number.
    Connection(u32),
}

/// The result of reading a packet ahead.
#[derive(Clone, Copy, Debug, Default)]
pub struct Found {
    key: Option<FlowKey>,
    /// Most likely the number of its connection, plus one; 0 where the flow's context says nothing.
    number: u32,
}

/// A decision of the balancer.
#[derive(Clone, Copy, Debug)]
pub enum Decided {
    /// To this backend, by tunnel.
    Tunnel(u32),
    /// To this backend, or from one, rewritten.
    Rewrite(Option<u32>, Rewrite),
    /// An ICMP error about a connection, to this backend or from one, rewritten.
    Error(Option<u32>, ErrorRewrite),
    /// Not for the service.
    Pass,
    /// Dropped.
    Drop(DropReason),
}

#[path = "balancer_operate.rs"]
mod operate;

use operate::{AFFINITY, RELOAD};

const CLIENTS: u8 = 1;

impl BalancerStage {
    /// Around a balancer of one service.
    #[must_use]
    pub fn new(balancer: Balancer, service: SocketAddr, protocol: u8, mode: Mode) -> Self {
        Self {
            balanced: vec![0; balancer.backends().len()],
            balancer,
            service,
            protocol,
            mode,
            fragments: FragmentLimits::default(),
            limiter: RateLimiter::new(1000, 1000),
            answer: Vec::new(),
            ident: 0,
            passed: 0,
            asked: Asked::Nothing,
        }
    }

    fn is_for_service(&self, key: &FlowKey) -> bool {
        key.protocol() == self.protocol
            && key.dst_port() == self.service.port()
            && key.dst() == self.service.ip()
    }

    fn towards_backend(&mut self, fx: &mut FunctionContext<'_, '_>, key: &FlowKey, number: u32) -> Decided {
        if !self.is_for_service(key) {
            return Decided::Pass;
        }
        self.asked = Asked::Unremembered;
        let Some(chosen) = self.balancer.choose(key, number.wrapping_sub(1), fx.cx.now) else {
            return Decided::Drop(DropReason::NoBackend);
        };
        if let Some(id) = chosen.connection {
            self.asked = Asked::Connection(id);
            if number != id + 1 {
                fx.cx.pool.keep_flow_words([id + 1]);
            }
        }
        let backend = chosen.backend;
        let Mode::Nat(nat) = &self.mode else { return Decided::Tunnel(backend) };
        let address = self.balancer.backends().get(backend as usize).map(|b| b.address);
        match (key, address) {
            (FlowKey::Narrow(key), Some(IpAddr::V4(address))) => match nat.to_backend(*key, address) {
                Some(rewrite) => Decided::Rewrite(Some(backend), rewrite),
                None => Decided::Pass,
            },
            _ => Decided::Drop(DropReason::Unsupported),
        }
    }

    fn towards_client(&self, key: &FlowKey) -> Decided {
        let known = self.balancer.backends().iter().any(|b| b.address == key.src());
        match (&self.mode, key) {
            (Mode::Nat(nat), FlowKey::Narrow(key)) if known => {
                nat.from_backend(*key).map_or(Decided::Pass, |rewrite| Decided::Rewrite(None, rewrite))
            }
            _ => Decided::Pass,
        }
    }

    /// An ICMP error from clients about a packet that the service sent: it goes to the backend of the
    /// connection.
    fn error_towards_backend(&self, cx: &Context<'_>, outer: &FlowKey, quoted: &FlowKey) -> Option<Decided> {
        let connection = opposite(outer, quoted).filter(|key| self.is_for_service(key))?;
        let Some(backend) = self.balancer.backend_of(&connection, cx.now) else {
            return Some(Decided::Drop(DropReason::NoBackend));
        };
        let Mode::Nat(nat) = &self.mode else { return Some(Decided::Tunnel(backend)) };
        match (outer, quoted, self.balancer.backends().get(backend as usize).map(|b| b.address)) {
            (FlowKey::Narrow(outer), FlowKey::Narrow(quoted), Some(IpAddr::V4(address))) => {
                Some(Decided::Error(Some(backend), nat.error_to_backend(*outer, *quoted, address)))
            }
            _ => Some(Decided::Drop(DropReason::Unsupported)),
        }
    }

    /// An ICMP error about a packet that went to a backend: the client knows of the service alone.
    fn error_towards_client(&self, outer: &FlowKey, quoted: &FlowKey) -> Option<Decided> {
        let known = self.balancer.backends().iter().any(|b| b.address == quoted.dst());
        match (&self.mode, outer, quoted) {
            (Mode::Nat(nat), FlowKey::Narrow(outer), FlowKey::Narrow(quoted)) if known => {
                nat.error_from_backend(*outer, *quoted).map(|rewrite| Decided::Error(None, rewrite))
            }
            _ => None,
        }
    }

    /// Decides about an ICMP error of a connection; `None` for other packets.
    #[inline(never)]
    fn decide_error(&self, cx: &Context<'_>, frame: &Frame, outer: &FlowKey) -> Option<Decided> {
        let data = cx.data(frame);
        let at = usize::from(frame.info.l4());
        let error = match (outer.is_ipv6(), data.get(at)?) {
            (false, 3 | 4 | 5 | 11 | 12) => outer.protocol() == protocol::ICMP,
            (true, 1..=4) => outer.protocol() == protocol::ICMPV6,
            _ => false,
        };
        let (_, quoted) = quoted(data, at + 8).filter(|_| error)?;
        if cx.input == 0 {
            self.error_towards_backend(cx, outer, &quoted.key)
        } else {
            self.error_towards_client(outer, &quoted.key)
        }
    }

    /// Puts the tunnel's header on; where the packet is too long its sender is told.
    fn encapsulate(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &mut Frame, backend: u32) -> Verdict {
        let Mode::Dsr(tunnels) = &self.mode else { return Verdict::PASS };
        let Some(tunnel) = tunnels.get(backend as usize) else { return Verdict::drop(DropReason::NoBackend) };
        self.ident = self.ident.wrapping_add(1);
        let packet = ip_packet(fx.cx, frame);
        match tunnel.header(packet, self.ident) {
            Ok(outer) => {
                let l3 = u32::from(frame.info.l3());
                let mut front = [0u8; 128];
                let link = fx.cx.data(frame).get(..l3 as usize).unwrap_or_default();
                let len = link.len() + outer.bytes().len();
                if let Some((head, tail)) =
                    front.get_mut(..len).and_then(|f| f.split_at_mut_checked(link.len()))
                {
                    head.copy_from_slice(link);
                    tail.copy_from_slice(outer.bytes());
                    set_ethertype(head, matches!(tunnel, Tunnel::V6 { .. }));
                }
                let front = front.get(..len).unwrap_or_default();
                (frame.buf, frame.len) = fx.cx.pool.replace_front(frame.buf, frame.len, l3, front);
                let headers = classify(fx.cx.link(frame), fx.cx.data(frame));
                frame.info = headers.map_or(Info::default(), |h| Info::new(&h));
                Verdict::PASS
            }
            Err(EncapError::TooBig { mtu }) => {
                let (message, link) = (Message::TooBig { mtu: u32::from(mtu) }, link_of(fx.cx, frame));
                let source = self.service.ip();
                if self.limiter.allow(1, fx.cx.now)
                    && icmp::answer(message, packet, link, source, &mut self.answer).is_ok()
                {
                    send_back(fx, frame, &self.answer, CLIENTS);
                }
                Verdict::drop(DropReason::TooBig)
            }
            Err(EncapError::NotIp) => Verdict::drop(DropReason::Malformed),
        }
    }
}

/// The key of packets in the other direction than `quoted`, in the network of `outer`, which is to go to its
/// source.
fn opposite(outer: &FlowKey, quoted: &FlowKey) -> Option<FlowKey> {
    if outer.dst() != quoted.src() {
        return None;
    }
    let ports = u64::from(quoted.dst_port()) << 48 | u64::from(quoted.src_port()) << 32;
    let transport = ports | u64::from(quoted.protocol()) << 24;
    match (*outer, *quoted) {
        (FlowKey::Narrow(NarrowKey([_, tags])), FlowKey::Narrow(NarrowKey([addresses, _]))) => {
            Some(FlowKey::Narrow(NarrowKey([addresses.rotate_left(32), transport | tags & 0xff_ffff])))
        }
        (FlowKey::Wide(WideKey([.., tags, f, g])), FlowKey::Wide(WideKey([a, b, c, d, ..]))) => {
            Some(FlowKey::Wide(WideKey([c, d, a, b, transport | tags & 0xff_ffff, f, g])))
        }
        // IPv4 with several tags.
        (FlowKey::Wide(WideKey([a, _, c, _, tags, f, g])), FlowKey::Narrow(NarrowKey([addresses, _]))) => {
            let (src, dst) = (addresses & 0xffff_ffff, addresses >> 32);
            Some(FlowKey::Wide(WideKey([a, src, c, dst, transport | tags & 0xff_ffff, f, g])))
        }
        (FlowKey::Narrow(_), FlowKey::Wide(_)) => None,
    }
}

/// The type of a link-layer header that ends with one: Ethernet's, tagged or not.
fn set_ethertype(link: &mut [u8], six: bool) {
    if let Some(kind) = link.last_chunk_mut::<2>() {
        *kind = if six { [0x86, 0xdd] } else { [0x08, 0x00] };
    }
}

impl NetworkFunction for BalancerStage {
    type Decision = Decided;
    type Lookahead = Found;

    const CHANGES_KEYS: bool = true;

    /// Of a flow it keeps the number of its connection, plus one.
    fn flow_use(&self) -> FlowUse {
        FlowUse { words: 1, alone: false, trains: Trains::Changed }
    }

    fn leaves_as(&self, decided: &Decided) -> LeavesAs {
        match decided {
            Decided::Tunnel(backend) => LeavesAs::Changed([u64::from(*backend); 2]),
            Decided::Rewrite(_, rewrite) => LeavesAs::Changed(rewrite.endpoints().0),
            Decided::Pass => LeavesAs::Before,
            Decided::Error(..) | Decided::Drop(_) => LeavesAs::Unknown,
        }
    }

    fn reads(&self) -> Reads {
        Reads::KEY
    }

    fn fragments(&self) -> Option<FragmentLimits> {
        Some(self.fragments)
    }

    fn operate(&mut self) -> Option<&mut dyn Operate> {
        Some(self)
    }

    /// Packets with ports share; ICMP errors quote packets of any connection.
    #[inline]
    fn shares(&self, cx: &Context<'_>, first: &Frame, other: &Frame) -> bool {
        Flags(first.info.flags()).has(Flags::PORTS) && self.reads().agree(cx.pool, first, other)
    }

    #[inline]
    fn look_ahead(&mut self, cx: &Context<'_>, first: &Frame, found: &mut Self::Lookahead) {
        if let Some((key, [number])) = cx.pool.keyed_flow_words()
            && number > 0
        {
            self.balancer.prefetch_known(number - 1);
            *found = Found { key: Some(FlowKey::Narrow(key)), number };
            return;
        }
        *found = Found { key: key_of(cx, first), number: 0 };
        if let Some(key) = &found.key {
            self.balancer.prefetch(key);
        }
    }

    /// A connection's backend may be another one once its time has passed, or where it was not remembered.
    fn holds_until(&self, _: &Decided, now: Nanos) -> Nanos {
        match self.asked {
            Asked::Nothing => Nanos::MAX,
            Asked::Unremembered => now,
            Asked::Connection(id) => self.balancer.holds_until(id),
        }
    }

    fn decide(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        first: &Frame,
        ahead: &Self::Lookahead,
    ) -> Decided {
        self.asked = Asked::Nothing;
        let Some(key) = &ahead.key else { return Decided::Pass };
        if matches!(key.protocol(), protocol::ICMP | protocol::ICMPV6)
            && let Some(decided) = self.decide_error(fx.cx, first, key)
        {
            return decided;
        }
        if fx.cx.input == 0 { self.towards_backend(fx, key, ahead.number) } else { self.towards_client(key) }
    }

    fn apply(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decided: &Decided,
        frames: &mut [Frame],
        verdicts: &mut [Verdict],
    ) {
        let on = if fx.cx.input == 0 { Verdict::PASS } else { Verdict::port(CLIENTS) };
        if matches!(decided, Decided::Error(..)) && !ErrorRewrite::reaches(fx.cx, frames) {
            verdicts.fill(Verdict::drop(DropReason::Unsupported));
            return;
        }
        if let Decided::Tunnel(backend)
        | Decided::Rewrite(Some(backend), _)
        | Decided::Error(Some(backend), _) = decided
            && let Some(n) = self.balanced.get_mut(*backend as usize)
        {
            *n += frames.len() as u64;
        }
        let now = fx.cx.now;
        if let ([_, .., last], Asked::Connection(id)) = (&*frames, self.asked) {
            self.balancer.extend(id, now.max(last.arrival));
        }
        for (frame, verdict) in frames.iter_mut().zip(verdicts) {
            fx.cx.now = now.max(frame.arrival);
            *verdict = match decided {
                Decided::Tunnel(backend) => self.encapsulate(fx, frame, *backend),
                Decided::Rewrite(_, rewrite) => {
                    let (l3, l4) = (usize::from(frame.info.l3()), usize::from(frame.info.l4()));
                    match rewrite.apply(fx.cx.data_mut(frame), l3, l4) {
                        Ok(_) => on,
                        Err(_) => Verdict::drop(DropReason::Malformed),
                    }
                }
                Decided::Error(_, rewrite) => {
                    let (l3, l4) = (usize::from(frame.info.l3()), usize::from(frame.info.l4()));
                    match rewrite.apply(fx.cx.data_mut(frame), l3, l4) {
                        Ok(_) => on,
                        Err(_) => Verdict::drop(DropReason::Malformed),
                    }
                }
                Decided::Pass => {
                    self.passed += 1;
                    on
                }
                Decided::Drop(reason) => Verdict::drop(*reason),
            };
        }
    }
}

impl Observe for BalancerStage {
    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        let c = self.balancer.counters();
        visit("connections", u64::from(self.balancer.connections()));
        visit("connections_begun", c.connections);
        visit("moved", c.moved);
        visit("unremembered", c.unremembered);
        visit("not_for_service", self.passed);
        visit("long_probes", self.balancer.long_probes());
    }

    fn report(&self) -> Option<serde_json::Value> {
        let all: Vec<_> = self.balancer.backends().iter().zip(&self.balanced).collect();
        let listed = self.balancer.chosen().iter().filter_map(|place| all.get(*place as usize));
        let backends: Vec<_> = listed
            .map(|(b, n)| json!({ "address": b.address, "weight": b.weight, "healthy": b.healthy, "packets": n }))
            .collect();
        Some(json!({ "backends": backends }))
    }
}
