//! An IP router (RFC 1812; RFC 8200): longest-prefix match, next hop, output port.
//!
//! In comes a packet at the port of an interface; out it goes by another, one less to live, between other
//! Ethernet addresses. All packets of a train share the look-ups (paper: "Packet Order Matters!", §5.1); what
//! is done to their headers is done packet by packet.
//!
//! - [`interface`]: what an interface is. [`fib`]: where packets go. [`watch`]: routes that change while
//!   packets go.
//! - [`neighbours`]: who has which address on a link, and what waits for that; [`open`]: unknown ones;
//!   [`discovery`]: how one asks.
//! - [`due`]: what happens although no packet comes.
//! - [`forward`]: what forwarding does to packets. [`own`]: packets for the router itself, and those it
//!   sends.
//! - [`proxy`]: addresses that something behind a port translates, such as a NAT. [`reverse`]: sources that
//!   no route leads back to.

#[cfg(test)]
mod answer_tests;
#[cfg(test)]
mod capture_tests;
#[cfg(test)]
mod context_tests;
mod discovery;
mod due;
mod fib;
mod forward;
mod function;
mod interface;
#[cfg(test)]
mod link_tests;
mod listener;
#[cfg(test)]
mod listener_tests;
mod neighbours;
#[cfg(test)]
mod neighbours_tests;
mod open;
mod own;
mod proxy;
mod reverse;
#[cfg(test)]
mod scan_tests;
mod stage;
#[cfg(test)]
mod tests;
mod watch;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use slipstream_wire::protocol::{ETHERTYPE_ARP, ETHERTYPE_IPV4, ETHERTYPE_IPV6};
use slipstream_wire::{Flags, LinkType};

pub use interface::{Interface, InterfaceError, interfaces};
pub use stage::ROUTER;

use super::bytes::{be16, be32, be128};
use super::icmp::Message;
use super::martian::{is_martian_destination, is_martian_source};
use super::{FunctionContext, NewPacket, RateLimiter};
use discovery::ETHERNET;
use fib::{Fib, Hop};
use interface::{Mac, Macs, is_link_local};
use neighbours::{Known, Neighbours};
use reverse::ReversePath;
use slipstream_core::frame::Frame;
use slipstream_core::stage::{Context, DropReason, Drops, Verdict};
use slipstream_core::time::Nanos;
use watch::Watch;

/// Counters of a router.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    icmp_sent: u64,
    icmp_suppressed: u64,
    echo_replies: u64,
    questions: u64,
    answers: u64,
    announcements: u64,
    reports: u64,
    conflicts: u64,
    unroutable: u64,
    fragmented: u64,
    fragments: u64,
    reloads: u64,
    reload_errors: u64,
}

/// A router.
#[derive(Debug)]
pub struct Router {
    interfaces: Arc<[Interface]>,
    /// All its addresses.
    own: Vec<IpAddr>,
    /// IPv4 addresses that no other host has: its own, and the broadcast addresses of its networks.
    reserved: Vec<u32>,
    fib: Fib,
    /// Numbers of the gateways of [`Fib::gateways`] among the neighbours.
    gateways: Vec<Option<u32>>,
    /// Counts the tables so far.
    generation: u32,
    neighbours: Neighbours,
    watch: Option<Watch>,
    limiter: RateLimiter,
    /// Queries of multicast listeners that are answered. Whoever is far away can use up ICMP errors, and must
    /// not make neighbours lose the router thereby.
    queries: RateLimiter,
    counters: Counters,
    drops: Drops,
    /// The capture interface of the packet that is answered, or of the last train, of whose packets that go
    /// on in the usual way the first one counts: packets that the router makes belong to it.
    capture: u32,
    /// The same as it was after the last train that was decided about slowly and was of the router's link
    /// type: packets of others have interfaces that the router's own can't have.
    own_capture: u32,
    last_error: Option<String>,
    /// The neighbour that the last decision sends to, if it does so because of what it said.
    towards: Option<u32>,
    /// Addresses, each with its port, of which the links have not been told yet that they are here.
    unannounced: Vec<(u8, IpNet)>,
    /// The time at which reports of groups are repeated, since the first ones may have been lost.
    reports_again: Nanos,
    /// The routes that sources of packets need.
    reverse_path: ReversePath,
    /// Neighbours that ask are answered: of several shards, which all hear them, the first one does.
    answers: bool,
    scratch: Vec<u8>,
    message: Vec<u8>,
}

/// A decision of a router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Goes out by a port of this MTU, between these Ethernet addresses (destination, source), where there
    /// are any.
    Forward {
        /// The port.
        port: u8,
        /// MTU of its interface.
        mtu: u32,
        /// The Ethernet addresses that the frame begins with.
        macs: Option<Macs>,
    },
    /// Waits until it is known where this neighbour is.
    Wait {
        /// The neighbour's number.
        neighbour: u32,
        /// MTU of its interface.
        mtu: u32,
    },
    /// For the router itself, or a group that it is in.
    Own,
    /// ARP.
    Arp,
    /// Dropped; the sender may be told.
    Refuse(DropReason, Option<Message>),
}

/// Entry of a flow's context about the way that its packets take: the table that it is by, the ports that
/// they leave and came by, and the neighbour behind it.
#[derive(Clone, Copy)]
struct Kept([u32; 3]);

impl Kept {
    /// Returns true if it is by this table, for packets that come by this port, and this one has its flow's
    /// addresses in its outermost header.
    #[inline(always)]
    fn is_of(self, generation: u32, input: u8, frame: &Frame) -> bool {
        let Self([by, ports, _]) = self;
        by == generation && ports as u8 == input && !Flags(frame.info.flags()).has(Flags::INNER)
    }

    #[inline(always)]
    const fn port(self) -> u8 {
        let Self([_, ports, _]) = self;
        (ports >> 8) as u8
    }
}

/// Source and destination, Ethernet destination.
struct Addresses {
    src: IpAddr,
    dst: IpAddr,
    to: Option<Mac>,
}

/// An adjacency: the port that packets leave by, and the neighbour behind it.
#[derive(Clone, Copy)]
struct Adjacency {
    port: u8,
    /// The neighbour that takes it; none where links have no addresses, or where something before the link
    /// does.
    neighbour: Option<u32>,
}

/// Returns true for addresses that are of one link alone: packets from and to them are not forwarded (RFC
/// 4291 §2.5.6; RFC 3927 §7).
fn stays_on_link(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(a) => a.is_link_local(),
        IpAddr::V6(_) => is_link_local(address),
    }
}

impl Router {
    fn interface(&self, port: u8) -> Option<&Interface> {
        self.interfaces.get(usize::from(port))
    }

    /// Returns true for a broadcast address of an attached network: nobody sends from it (RFC 1812 §5.3.7).
    #[inline]
    fn is_broadcast(&self, src: IpAddr) -> bool {
        matches!(src, IpAddr::V4(four) if self.reserved.contains(&four.to_bits()) && !self.own.contains(&src))
    }

    /// Reads source and destination of a packet at this port.
    fn read(&self, cx: &Context<'_>, frame: &Frame) -> Result<Addresses, Decision> {
        let drop = |reason| Err(Decision::Refuse(reason, None));
        let Some(interface) = self.interface(cx.input) else { return drop(DropReason::Unsupported) };
        let data = cx.data(frame);
        let (to, start) = match (cx.link(frame), interface.mac) {
            (LinkType::Ethernet, Some(mac)) => {
                let Some(to) = data.first_chunk::<6>().copied() else { return drop(DropReason::Malformed) };
                if to != mac && to[0] & 1 == 0 {
                    return drop(DropReason::OtherStation);
                }
                (Some(to), ETHERNET)
            }
            (LinkType::RawIp, None) => (None, 0),
            _ => return drop(DropReason::Unsupported),
        };
        if !frame.info.classified() {
            return match be16(data, 12).filter(|_| to.is_some()) {
                Some(ETHERTYPE_ARP) => Err(Decision::Arp),
                Some(ETHERTYPE_IPV4 | ETHERTYPE_IPV6) | None => drop(DropReason::Malformed),
                Some(_) => drop(DropReason::Unsupported),
            };
        }
        let v4 = match (be16(data, 12), to) {
            (Some(ETHERTYPE_IPV4), Some(_)) => true,
            (Some(ETHERTYPE_IPV6), Some(_)) => false,
            (_, None) => data.first().is_some_and(|b| b >> 4 == 4),
            // Tagged: another network.
            _ => return drop(DropReason::Unsupported),
        };
        let found = if v4 {
            let four = |at| be32(data, start + at).map(|a| IpAddr::V4(Ipv4Addr::from_bits(a)));
            four(12).zip(four(16))
        } else {
            let six = |at| be128(data, start + at).map(|a| IpAddr::V6(Ipv6Addr::from_bits(a)));
            six(8).zip(six(24))
        };
        found
            .map(|(src, dst)| Addresses { src, dst, to })
            .ok_or(Decision::Refuse(DropReason::Malformed, None))
    }

    /// As [`choose`](Self::choose), for the most frequent kind of packet: IPv4 in an untagged Ethernet frame
    /// for this station, from one host to another behind a gateway whose Ethernet address is known. Returns
    /// `None`, and does nothing, for any other. `kept` is what the flow's context says, and what it is to say
    /// comes with the decision.
    #[inline(always)]
    fn choose_fast(
        &self,
        cx: &Context<'_>,
        frame: &Frame,
        data: &[u8],
        kept: Option<Kept>,
    ) -> Option<(Decision, Kept)> {
        let interface = self.interface(cx.input)?;
        let mac = interface.mac?;
        let bytes: &[u8; ETHERNET + 20] = data.first_chunk()?;
        let (link, ip) = bytes.split_first_chunk::<ETHERNET>()?;
        let to_us = *link.first_chunk()? == mac && [link[12], link[13]] == [0x08, 0x00];
        if !to_us || !frame.info.classified() || cx.link(frame) != LinkType::Ethernet {
            return None;
        }
        let way = match kept.filter(|kept| kept.is_of(self.generation, cx.input, frame)) {
            Some(kept) => kept,
            None => self.find_way(cx.input, interface, ip)?,
        };
        let Kept([_, _, neighbour]) = way;
        let port = way.port();
        let interface = self.interface(port)?;
        let (mtu, own) = (interface.mtu, interface.mac?);
        let to = self.neighbours.settled(neighbour, cx.now)?;
        Some((Decision::Forward { port, mtu, macs: Some(Macs::new(to, own)) }, way))
    }

    /// The way of a packet with this IPv4 header that came by this interface, from one host to another behind
    /// a gateway: it follows from the addresses alone while the routes stay.
    #[inline(always)]
    fn find_way(&self, input: u8, interface: &Interface, ip: &[u8]) -> Option<Kept> {
        let [src, dst] = [be32(ip, 12)?, be32(ip, 16)?].map(Ipv4Addr::from_bits);
        // An address that may not be a source is no host's.
        let host = |a: Ipv4Addr| !(is_martian_source(a.into()) || stays_on_link(a.into()));
        if !host(src)
            || !host(dst)
            || self.reserved.contains(&src.to_bits())
            || interface.translates(src.into())
            || !self.may_come_by(input, src.into())
        {
            return None;
        }
        let Some(Hop::Gateway(port, gateway)) = self.fib.look_up_v4(dst) else { return None };
        let neighbour = self.gateways.get(gateway as usize).copied().flatten()?;
        Some(Kept([self.generation, u32::from(port) << 8 | u32::from(input), neighbour]))
    }

    /// Decides about a packet that the fast way has no decision for, which may be of another link type.
    #[inline(never)]
    fn choose_slowly(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame) -> Decision {
        self.belongs_to(self.capture_of(fx.cx, frame));
        self.choose(fx, frame)
    }

    /// Packets that the router makes from now on belong to this capture interface; without one, to that of
    /// the last train of its link type that was decided about slowly.
    fn belongs_to(&mut self, capture: Option<u32>) {
        self.capture = capture.unwrap_or(self.own_capture);
        self.own_capture = self.capture;
    }

    fn choose(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame) -> Decision {
        let drop = |reason| Decision::Refuse(reason, None);
        self.towards = None;
        if !self.unannounced.is_empty() {
            self.announce(fx);
        }
        let Addresses { src, dst, to } = match self.read(fx.cx, frame) {
            Ok(addresses) => addresses,
            Err(decision) => return decision,
        };
        if dst.is_multicast() {
            // Neighbour discovery is for groups; multicast is not forwarded.
            return if dst.is_ipv6() { Decision::Own } else { drop(DropReason::Unsupported) };
        }
        if to.is_some_and(|to| to[0] & 1 == 1) {
            // RFC 1812 §5.3.4: what was sent to all stations is not forwarded.
            return drop(DropReason::OtherStation);
        }
        let own = self.is_ours(fx.cx.input, src) && !self.came_round(fx.cx, frame, src);
        let broadcast = self.is_broadcast(src);
        let martian = is_martian_source(src) || is_martian_destination(dst);
        if martian || own || broadcast || !self.may_come_by(fx.cx.input, src) {
            return drop(DropReason::Martian);
        }
        let hop = self.fib.look_up(dst);
        if let Some(Hop::Translated(port)) = hop
            && let Some(decision) = self.stays(fx.cx, frame, dst, port)
        {
            return decision;
        }
        match hop {
            None | Some(Hop::Nowhere) => Decision::Refuse(DropReason::NoRoute, Some(Message::NetUnreachable)),
            Some(Hop::Own) => Decision::Own,
            Some(Hop::Broadcast) => drop(DropReason::Unsupported),
            Some(Hop::Blackhole) => drop(DropReason::Blackhole),
            Some(Hop::Unreachable) => Decision::Refuse(DropReason::Blackhole, Some(Message::NetUnreachable)),
            Some(Hop::Prohibit) => Decision::Refuse(DropReason::Blackhole, Some(Message::AdminProhibited)),
            Some(_) if stays_on_link(src) || stays_on_link(dst) => drop(DropReason::Martian),
            Some(hop @ (Hop::Link(_) | Hop::Gateway(..) | Hop::Translated(_))) => {
                match self.way(hop, dst, fx.cx.now) {
                    Some(way) => self.send_by(fx, way),
                    None => drop(DropReason::TableFull),
                }
            }
        }
    }

    /// The way that a hop stands for; none where no more neighbours can be remembered.
    fn way(&mut self, hop: Hop, dst: IpAddr, now: Nanos) -> Option<Adjacency> {
        let (port, gateway) = match hop {
            Hop::Link(port) => (port, None),
            Hop::Gateway(port, gateway) => (port, Some(gateway)),
            Hop::Translated(port) => return Some(Adjacency { port, neighbour: None }),
            _ => return None,
        };
        if self.interface(port)?.mac.is_none() {
            return Some(Adjacency { port, neighbour: None });
        }
        let neighbour = match gateway {
            Some(gateway) => self.gateways.get(gateway as usize).copied().flatten(),
            None => self.neighbours.number(port, dst, now),
        };
        neighbour.map(|id| Adjacency { port, neighbour: Some(id) })
    }

    /// Decides about packets on this way out; asks for the neighbour if that is due.
    fn send_by(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        Adjacency { port, neighbour }: Adjacency,
    ) -> Decision {
        let Some(interface) = self.interface(port) else {
            return Decision::Refuse(DropReason::Unsupported, None);
        };
        let (mtu, own) = (interface.mtu, interface.mac);
        let (Some(id), Some(own)) = (neighbour, own) else {
            // To what translates it, which gives it back to this interface.
            return Decision::Forward { port, mtu, macs: own.map(|own| Macs::new(own, own)) };
        };
        let known = self.neighbours.ask(id, fx.cx.now);
        self.towards = Some(id);
        for frame in self.neighbours.take_displaced() {
            self.drops.add(DropReason::Unresolved, 1);
            fx.cx.pool.free(frame.buf);
        }
        let ask_at = match known {
            Known::Asks => Some(None),
            Known::Doubtful(mac) => Some(Some(mac)),
            _ => None,
        };
        if let Some(at) = ask_at
            && let Some((port, address)) = self.neighbours.name(id)
        {
            self.question(fx, port, address, at);
        }
        match known {
            Known::At(to) | Known::Doubtful(to) => {
                Decision::Forward { port, mtu, macs: Some(Macs::new(to, own)) }
            }
            Known::Waits | Known::Asks => Decision::Wait { neighbour: id, mtu },
            Known::Forgotten => Decision::Refuse(DropReason::TableFull, None),
        }
    }

    /// Offset of the IP header.
    #[inline]
    fn start(&self) -> usize {
        if self.interfaces.first().is_some_and(|i| i.mac.is_some()) { ETHERNET } else { 0 }
    }

    /// Applies what is seldom decided.
    #[inline(never)]
    fn apply_other(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        decision: Decision,
        frames: &[Frame],
        verdicts: &mut [Verdict],
    ) {
        let capture = frames.last().and_then(|last| self.capture_of(fx.cx, last));
        // Anything that a later packet of the train sets off happens at that packet's time.
        match decision {
            Decision::Forward { port, mtu, macs } => self.forward(fx, (port, mtu, macs), frames, verdicts),
            Decision::Wait { neighbour, mtu } => self.wait(fx, (neighbour, mtu), frames, verdicts),
            Decision::Own => {
                for (frame, verdict) in frames.iter().zip(verdicts) {
                    fx.cx.now = fx.cx.now.max(frame.arrival);
                    *verdict = self.take(fx, frame);
                }
            }
            Decision::Arp => {
                for (frame, verdict) in frames.iter().zip(verdicts) {
                    fx.cx.now = fx.cx.now.max(frame.arrival);
                    *verdict = self.take_arp(fx, frame);
                }
            }
            Decision::Refuse(reason, message) => {
                for (frame, verdict) in frames.iter().zip(verdicts) {
                    fx.cx.now = fx.cx.now.max(frame.arrival);
                    *verdict = self.refuse(fx, frame, reason, message);
                }
            }
        }
        self.belongs_to(capture);
    }
}
