//! The load balancer in a pipeline: clients at port 0, backends at port 1, on the way in as on the way out.

use std::net::{IpAddr, SocketAddr};

use serde_json::json;
use slipstream_wire::{Flags, FlowKey, LinkType, NarrowKey, WideKey, classify, protocol};

use crate::answer::{ip_packet, link_of, send_back};
use crate::balancer::{Backend, Balancer, NatMode};
use crate::conntrack::packet::untagged;
use crate::encap::{EncapError, Tunnel};
use crate::fragment;
use crate::icmp;
use crate::icmp::Message;
use crate::nat::{ErrorRewrite, Rewrite, Tuple};
use crate::packet::quoted;
use crate::{FragmentLimits, FunctionContext, LeavesAs, NetworkFunction, NewPacket, RateLimiter};
use slipstream_core::flow_context::{FlowUse, Trains};
use slipstream_core::frame::{Frame, Info};
use slipstream_core::operate::Operate;
use slipstream_core::packet::key_of;
use slipstream_core::reads::Reads;
use slipstream_core::stage::{Context, DraftReport, DropReason, Observe, Verdict};
use slipstream_core::time::Nanos;

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
    /// Identification of the last outer packet, and how far it is to the next one's: shards that send to one
    /// backend take different ones.
    ident: u32,
    ident_step: u32,
    passed: u64,
    fragmented: u64,
    fragments_made: u64,
    /// Weights by the settings, to which backends come back.
    weights: Vec<(IpAddr, u32)>,
    /// The connection that the last decision was about.
    asked: Asked,
}

/// The weights of the backends on the list.
fn weights(balancer: &Balancer) -> Vec<(IpAddr, u32)> {
    balancer.listed().map(|(backend, _)| (backend.address, backend.weight)).collect()
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
#[path = "balancer_settings.rs"]
mod settings;

pub use settings::BALANCER;

const BACKENDS: u8 = 0;
const CLIENTS: u8 = 1;

impl BalancerStage {
    /// Around a balancer of one service.
    #[must_use]
    pub fn new(balancer: Balancer, service: SocketAddr, protocol: u8, mode: Mode) -> Self {
        Self {
            weights: weights(&balancer),
            balancer,
            service,
            protocol,
            mode,
            fragments: FragmentLimits::default(),
            limiter: RateLimiter::new(1000, 1000),
            answer: Vec::new(),
            ident: 0,
            ident_step: 1,
            passed: 0,
            fragmented: 0,
            fragments_made: 0,
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
        match (of_ipv4(key), address) {
            (Some(key), Some(IpAddr::V4(address))) => match nat.to_backend(key, address) {
                Some(rewrite) => Decided::Rewrite(Some(backend), rewrite),
                None => Decided::Pass,
            },
            _ => Decided::Drop(DropReason::Unsupported),
        }
    }

    fn towards_client(&self, key: &FlowKey) -> Decided {
        match (&self.mode, of_ipv4(key)) {
            (Mode::Nat(nat), Some(key)) if self.balancer.knows(Tuple::of(key).src) => {
                nat.from_backend(key).map_or(Decided::Pass, |rewrite| Decided::Rewrite(None, rewrite))
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
        let address = self.balancer.backends().get(backend as usize).map(|b| b.address);
        match (of_ipv4(outer), of_ipv4(quoted), address) {
            (Some(outer), Some(quoted), Some(IpAddr::V4(address))) => {
                Some(Decided::Error(Some(backend), nat.error_to_backend(outer, quoted, address)))
            }
            _ => Some(Decided::Drop(DropReason::Unsupported)),
        }
    }

    /// An ICMP error about a packet that went to a backend: the client knows of the service alone.
    fn error_towards_client(&self, outer: &FlowKey, quoted: &FlowKey) -> Option<Decided> {
        match (&self.mode, of_ipv4(outer), of_ipv4(quoted)) {
            (Mode::Nat(nat), Some(outer), Some(quoted)) if self.balancer.knows(Tuple::of(quoted).dst) => {
                nat.error_from_backend(outer, quoted).map(|rewrite| Decided::Error(None, rewrite))
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
            // A redirect is of the link on which it was sent.
            (false, 3 | 4 | 11 | 12) => outer.protocol() == protocol::ICMP,
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

    /// Puts the tunnel's header on. What is too long then leaves in fragments, or its sender is told.
    fn encapsulate(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &mut Frame, backend: u32) -> Verdict {
        let Mode::Dsr(tunnels) = &self.mode else { return Verdict::PASS };
        let Some(tunnel) = tunnels.get(backend as usize) else { return Verdict::drop(DropReason::NoBackend) };
        self.ident = self.ident.wrapping_add(self.ident_step);
        let l3 = u32::from(frame.info.l3());
        let (packet, lengths) =
            (ip_packet(fx.cx, frame), fx.cx.pool.lengths(frame.buf, frame.len).behind(l3));
        match tunnel.header_of(packet, lengths, self.ident) {
            Ok(outer) => {
                let mut front = [0u8; 128];
                let link = fx.cx.data(frame).get(..l3 as usize).unwrap_or_default();
                let versions =
                    (packet.first().is_some_and(|byte| byte >> 4 == 6), matches!(tunnel, Tunnel::V6 { .. }));
                let kind = fx.cx.link(frame);
                let len = link.len() + outer.bytes().len();
                if let Some((head, tail)) =
                    front.get_mut(..len).and_then(|f| f.split_at_mut_checked(link.len()))
                {
                    head.copy_from_slice(link);
                    tail.copy_from_slice(outer.bytes());
                    if versions.0 != versions.1 && !set_version(kind, head, versions.1) {
                        return Verdict::drop(DropReason::Unsupported);
                    }
                }
                let front = front.get(..len).unwrap_or_default();
                (frame.buf, frame.len) = fx.cx.pool.replace_front(frame.buf, frame.len, l3, front);
                let headers = classify(fx.cx.link(frame), fx.cx.data(frame));
                frame.info = headers.map_or(Info::default(), |h| Info::new(&h));
                if outer.oversize { self.cut(fx, frame, backend, l3 as usize) } else { Verdict::PASS }
            }
            Err(EncapError::TooBig { mtu }) => {
                let (message, link) = (Message::TooBig { mtu: u32::from(mtu) }, link_of(fx.cx, frame));
                let source = self.service.ip();
                if self.limiter.would_allow(1, fx.cx.now)
                    && icmp::answer(message, packet, link, source, &mut self.answer).is_ok()
                    && self.limiter.allow(1, fx.cx.now)
                {
                    send_back(fx, frame, &self.answer, CLIENTS);
                }
                Verdict::drop(DropReason::TooBig)
            }
            Err(EncapError::NotIp | EncapError::Expired) => Verdict::drop(DropReason::Malformed),
        }
    }

    /// Sends a tunnel packet, which begins at `start`, in fragments.
    #[inline(never)]
    fn cut(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frame: &Frame,
        backend: u32,
        start: usize,
    ) -> Verdict {
        let Mode::Dsr(tunnels) = &self.mode else { return Verdict::PASS };
        let lengths = fx.cx.pool.lengths(frame.buf, frame.len).behind(start as u32);
        if lengths.elsewhere != 0 {
            // A payload that waits elsewhere can't be cut, nor can a token.
            return Verdict::drop(DropReason::TooBig);
        }
        let packet = fx.cx.data(frame).get(start..).unwrap_or_default();
        let parts = tunnels.get(backend as usize).and_then(|t| t.fragments(packet, lengths.here, self.ident));
        let Some(made) = parts.and_then(|parts| fragment::frames(fx.cx, frame, start, parts)) else {
            return Verdict::drop(DropReason::Malformed);
        };
        self.fragmented += 1;
        self.fragments_made += made.len() as u64;
        fx.made.extend(made.into_iter().map(|frame| NewPacket::new(frame, BACKENDS)));
        fx.cx.pool.free(frame.buf);
        Verdict::KEPT
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

/// Has a link-layer header say that another version of IP follows. Returns false where it can't: address
/// families of BSD's loopback are other numbers on each system.
fn set_version(kind: LinkType, link: &mut [u8], six: bool) -> bool {
    let place = match kind {
        LinkType::RawIp => return true,
        // The first field of this header, but for tags, which come last.
        LinkType::LinuxSll2 if link.len() == 20 => link.first_chunk_mut::<2>(),
        LinkType::Ethernet | LinkType::LinuxSll | LinkType::LinuxSll2 => link.last_chunk_mut::<2>(),
        LinkType::Loopback | LinkType::Other(_) => None,
    };
    place.map(|place| *place = if six { [0x86, 0xdd] } else { [0x08, 0x00] }).is_some()
}

/// The key of an IPv4 packet without its VLAN ids; none of IPv6.
fn of_ipv4(key: &FlowKey) -> Option<NarrowKey> {
    match untagged(*key) {
        FlowKey::Narrow(key) => Some(key),
        FlowKey::Wide(_) => None,
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
            Decided::Tunnel(backend) => LeavesAs::Changed([self.balancer.serial(*backend); 2]),
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
        {
            self.balancer.went(*backend, frames.len() as u64);
        }
        let now = fx.cx.now;
        if let [_, more @ .., last] = &*frames {
            match self.asked {
                Asked::Nothing => {}
                Asked::Unremembered => {
                    let found = !matches!(decided, Decided::Drop(DropReason::NoBackend));
                    self.balancer.more_unremembered(more.len() as u64 + 1, found);
                }
                Asked::Connection(id) => self.balancer.extend(id, now.max(last.arrival)),
            }
        }
        if let Decided::Error(_, rewrite) = decided {
            rewrite.apply_apart(fx.cx, frames);
        }
        for (at, (frame, verdict)) in frames.iter_mut().zip(verdicts).enumerate() {
            fx.cx.now = now.max(frame.arrival);
            *verdict = match decided {
                Decided::Tunnel(backend) => {
                    let made_before = fx.made.len();
                    let verdict = self.encapsulate(fx, frame, *backend);
                    if verdict != Verdict::PASS {
                        fx.made_by(made_before, at);
                    }
                    verdict
                }
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
        visit("displaced", c.displaced);
        visit("unremembered", c.unremembered);
        visit("not_for_service", self.passed);
        visit("fragmented", self.fragmented);
        visit("fragments", self.fragments_made);
        visit("long_probes", self.balancer.long_probes());
    }

    fn report(&self) -> Option<serde_json::Value> {
        self.draft_report()()
    }

    fn draft_report(&self) -> DraftReport {
        let of = |(b, packets): (&Backend, u64)| (b.address, b.weight, b.healthy, packets);
        let listed: Vec<_> = self.balancer.listed().map(of).collect();
        Box::new(move || {
            let backend = |(address, weight, healthy, packets)| json!({ "address": address, "weight": weight, "healthy": healthy, "packets": packets });
            let backends: Vec<_> = listed.into_iter().map(backend).collect();
            Some(json!({ "backends": backends }))
        })
    }
}

#[cfg(test)]
mod link_tests {
    use super::*;

    /// Each link type has its word for the version of IP at another place, or none.
    #[test]
    fn headers_say_which_version_follows() {
        let was: Vec<u8> = (1..=20).collect();
        let said = |kind, six| {
            let mut link = was.clone();
            set_version(kind, &mut link, six).then_some(link)
        };
        let with = |at: usize, word: [u8; 2]| {
            let mut link = was.clone();
            link[at..at + 2].copy_from_slice(&word);
            Some(link)
        };
        for (six, word) in [(true, [0x86, 0xdd]), (false, [0x08, 0x00])] {
            assert_eq!(said(LinkType::Ethernet, six), with(18, word));
            assert_eq!(said(LinkType::LinuxSll, six), with(18, word));
            assert_eq!(said(LinkType::LinuxSll2, six), with(0, word));
            let tagged = [&was[..], &[0, 5, 0, 0]].concat();
            let mut link = tagged.clone();
            assert!(set_version(LinkType::LinuxSll2, &mut link, six), "the tag comes last");
            assert_eq!(link, [&tagged[..22], &word].concat());
            assert_eq!(said(LinkType::RawIp, six), Some(was.clone()));
            assert_eq!(said(LinkType::Loopback, six), None);
        }
    }
}
