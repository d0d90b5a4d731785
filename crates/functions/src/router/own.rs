//! Packets for the router itself, and packets that it sends: ICMP, ARP, neighbour discovery.

use std::net::IpAddr;

use slipstream_wire::checksum::{Verdict as Sum, fill_ip, fill_transport, verify_transport};
use slipstream_wire::protocol::{DESTINATION_OPTIONS, HOP_BY_HOP, ICMP, ICMPV6, ROUTING, UDP};
use slipstream_wire::view::{Extension, Ipv6};
use slipstream_wire::{Flags, Headers, LinkType, classify};

use super::discovery::{self, ETHERNET, Says, read_arp, read_discovery};
use super::fib::Hop;
use super::forward::{JUMBO, check_options, check_v4, check_v6, options_v6};
use super::interface::Mac;
use super::listener::QUERY;
use super::neighbours::Claim;
use super::{Adjacency, Decision, FunctionContext, Macs, Message, NewPacket, Router, stays_on_link};
use crate::bytes::{be16, put};
use crate::icmp;
use crate::icmp::Link;
use slipstream_core::frame::{Frame, Info};
use slipstream_core::pool::PacketMeta;
use slipstream_core::stage::{Context, DropReason, Verdict};

/// First word of an echo request, and of its reply.
const ECHO_V4: (u16, u16) = (8 << 8, 0);
const ECHO_V6: (u16, u16) = (128 << 8, 129 << 8);
/// Bytes of an IPv6 header without extensions.
const IPV6_HEADER: usize = 40;
/// Time to live of what the router sends.
const LIVES: u8 = 64;

/// The reason why the extension headers of an IPv6 packet have the router not take it, and what its
/// sender is told.
type Refused = (DropReason, Option<Message>);

/// Checks the extension headers of a packet for the router in their order (RFC 8200 §4.1): the options, and
/// that no routing header is to lead on from here. The router knows no type of them (RFC 8200 §4.4), nor type
/// 0 any more (RFC 5095 §3). One that has led the packet to its end is passed over.
fn check_extensions(ip: &[u8]) -> Result<(), Refused> {
    const TYPE: usize = 2;
    const SEGMENTS_LEFT: usize = 3;
    for header in Ipv6::new_unchecked(ip).extensions() {
        let leads_on = || header.bytes.get(SEGMENTS_LEFT).is_some_and(|left| *left > 0);
        match header.protocol {
            HOP_BY_HOP | DESTINATION_OPTIONS => check_options_v6(&header)?,
            ROUTING if leads_on() => {
                let pointer = (header.at + TYPE) as u32;
                return Err((DropReason::Unsupported, Some(Message::ParameterProblem { pointer })));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Checks the options of a header: the uppermost bits of the type of one that is unknown say what becomes of
/// the packet (RFC 8200 §4.2).
fn check_options_v6(header: &Extension<'_>) -> Result<(), Refused> {
    for option in options_v6(header.bytes) {
        let Some((at, kind, _)) = option else { return Err((DropReason::Malformed, None)) };
        match kind >> 6 {
            0 => {}
            1 => return Err((DropReason::Unsupported, None)),
            _ if kind == JUMBO && header.protocol == HOP_BY_HOP => {}
            _ => {
                let pointer = (header.at + at) as u32;
                return Err((DropReason::Unsupported, Some(Message::UnknownOption { pointer })));
            }
        }
    }
    Ok(())
}

/// Says that a datagram was changed on its way, so that nobody is told about it (RFC 1122 §4.1.3.4). With
/// IPv6 it has a checksum (RFC 8200 §8.1).
fn is_wrong_udp(data: &[u8], headers: &Headers, v6: bool) -> bool {
    match verify_transport(data, headers) {
        Sum::Wrong => true,
        Sum::Absent => v6,
        _ => false,
    }
}

impl Router {
    /// An ARP packet.
    pub(super) fn take_arp(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame) -> Verdict {
        fx.cx.now = fx.cx.now.max(frame.arrival);
        self.capture = self.capture_of(fx.cx, frame).unwrap_or(self.capture);
        match read_arp(fx.cx.data(frame)) {
            Some(says) => {
                self.heard(fx, says);
                Verdict::drop(DropReason::Local)
            }
            None => Verdict::drop(DropReason::Malformed),
        }
    }

    /// A packet for the router, or for a group.
    pub(super) fn take(&mut self, fx: &mut FunctionContext<'_, '_>, frame: &Frame) -> Verdict {
        fx.cx.now = fx.cx.now.max(frame.arrival);
        self.capture = self.capture_of(fx.cx, frame).unwrap_or(self.capture);
        let start = self.start();
        let on_wire = fx.cx.pool.lengths(frame.buf, frame.len).behind(start as u32).here;
        let link = if start == 0 { LinkType::RawIp } else { LinkType::Ethernet };
        let data = fx.cx.data(frame);
        let ip = data.get(start..).unwrap_or_default();
        let v6 = ip.first().is_some_and(|b| b >> 4 == 6);
        let Some(total) = (if v6 { check_v6(ip, on_wire) } else { check_v4(ip, on_wire) }) else {
            return Verdict::drop(DropReason::Malformed);
        };
        if let Some(Err(reason)) = (!v6).then(|| check_options(ip)) {
            return Verdict::drop(reason);
        }
        // The outer headers, whatever the flow key is of.
        let Ok(headers) = classify(link, data) else { return Verdict::drop(DropReason::Malformed) };
        let group = headers.key.dst().is_multicast();
        if v6 && let Err((reason, message)) = check_extensions(ip) {
            return self.refuse(fx, frame, reason, message);
        }
        let kind = data.get(usize::from(headers.l4)).copied();
        match (headers.key.protocol(), kind) {
            _ if headers.flags.has(Flags::FRAGMENT) => Verdict::drop(DropReason::Unsupported),
            (ICMPV6, Some(135 | 136)) if v6 && start > 0 => {
                match read_discovery(data, start, usize::from(headers.l4)) {
                    Some(says) => {
                        self.heard(fx, says);
                        Verdict::drop(DropReason::Local)
                    }
                    None => Verdict::drop(DropReason::Malformed),
                }
            }
            (ICMPV6, Some(QUERY)) if v6 && start > 0 => self.queried(fx, frame, &headers),
            _ if group => Verdict::drop(DropReason::Unsupported),
            (ICMP, Some(8)) if !v6 => self.echo(fx, frame, &headers, total),
            (ICMPV6, Some(128)) if v6 => self.echo(fx, frame, &headers, total),
            (UDP, _) if is_wrong_udp(data, &headers, v6) => Verdict::drop(DropReason::Malformed),
            (UDP, _) => self.refuse(fx, frame, DropReason::Local, Some(Message::PortUnreachable)),
            _ => Verdict::drop(DropReason::Local),
        }
    }

    /// Answers an echo request (RFC 1122 §3.2.2.6, RFC 4443 §4.2), from the address that was asked; from a
    /// unicast one of the interface where that is an anycast address. Extension headers are the request's
    /// alone: the reply has none.
    fn echo(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frame: &Frame,
        headers: &Headers,
        total: u32,
    ) -> Verdict {
        let data = fx.cx.data(frame);
        if verify_transport(data, headers) != Sum::Right {
            return Verdict::drop(DropReason::Malformed);
        }
        let start = self.start();
        let mut packet = std::mem::take(&mut self.message);
        packet.clear();
        let (src, dst) = (headers.key.src(), headers.key.dst());
        let ip = data.get(start..start + total as usize).unwrap_or_default();
        let request_at = usize::from(headers.l4) - start;
        let l4 = if src.is_ipv6() { IPV6_HEADER } else { request_at };
        packet.extend_from_slice(ip.get(..l4).unwrap_or_default());
        packet.extend_from_slice(ip.get(request_at..).unwrap_or_default());
        // A jumbogram's reply would be one, too: there is none.
        let payload = u16::try_from(packet.len().saturating_sub(l4)).ok();
        let unicast = || self.source(fx.cx.input, src).unwrap_or(dst);
        let from = if self.own.contains(&dst) { dst } else { unicast() };
        let (request, reply) = if src.is_ipv6() { ECHO_V6 } else { ECHO_V4 };
        let whole = match (src, from) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                put(&mut packet, 8, &[LIVES])
                    && put(&mut packet, 12, &b.octets())
                    && put(&mut packet, 16, &a.octets())
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                payload.is_some_and(|length| put(&mut packet, 4, &length.to_be_bytes()))
                    && put(&mut packet, 6, &[ICMPV6, LIVES])
                    && put(&mut packet, 8, &b.octets())
                    && put(&mut packet, 24, &a.octets())
            }
            _ => false,
        };
        if whole && be16(&packet, l4) == Some(request) {
            put(&mut packet, l4, &reply.to_be_bytes());
            // The checksum is made anew: one that is updated would be 0 in a reply of zeros alone, which is
            // wrong (RFC 1624 §3).
            if let Ok(headers) = classify(LinkType::RawIp, &packet) {
                fill_ip(&mut packet, &headers);
                fill_transport(&mut packet, &headers);
            }
            // No other address than the one that was asked may reply (RFC 4443 §4.2).
            let way = self.way_back(src, fx.cx.input, fx.cx.now);
            let way = way.filter(|way| self.may_come_from(from, way.port));
            let sent = way.is_some_and(|way| self.send_on(fx, way, &packet));
            let counter = if sent { &mut self.counters.echo_replies } else { &mut self.counters.unroutable };
            *counter += 1;
        }
        self.message = packet;
        Verdict::drop(DropReason::Local)
    }

    /// A neighbour said something.
    fn heard(&mut self, fx: &mut FunctionContext<'_, '_>, says: Says) {
        let port = fx.cx.input;
        let Some(interface) = self.interface(port) else { return };
        let Some(own) = interface.mac else { return };
        let asked = says.wants.filter(|wanted| interface.answers_for(*wanted));
        // Whoever has the address himself goes before (RFC 4861 §7.2.7, §7.2.8).
        let overrides = asked.is_some_and(|wanted| interface.owns(wanted));
        if let Some((address, mac)) = says.sender {
            if self.own.contains(&address) || interface.translates(address) {
                self.counters.conflicts += 1;
                return;
            }
            // A neighbour that was asked for, or that a route names, may be outside the interface's networks.
            let on_link = interface.reaches(address) || self.fib.look_up(address) == Some(Hop::Link(port));
            let new = asked.is_some() && on_link;
            let claim = if says.claim == Claim::New && !new { Claim::Known } else { says.claim };
            let waited = self.neighbours.heard(port, address, mac, (claim, says.answers), fx.cx.now);
            for frame in waited.unwrap_or_default() {
                Macs::new(mac, own).write_to(fx.cx.data_mut(&frame));
                fx.made.push(NewPacket::new(frame, port));
            }
        }
        if let Some(address) = asked.filter(|_| self.answers) {
            let mut message = std::mem::take(&mut self.message);
            discovery::answer(own, address, says.reply_to, overrides, &mut message);
            self.counters.answers += 1;
            self.emit(fx, port, &message);
            self.message = message;
        }
    }

    /// Asks for a neighbour.
    pub(super) fn question(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        port: u8,
        address: IpAddr,
        known: Option<Mac>,
    ) {
        let mut message = std::mem::take(&mut self.message);
        if self.interface(port).is_some_and(|i| discovery::question(i, address, known, &mut message)) {
            self.counters.questions += 1;
            self.emit(fx, port, &message);
        }
        self.message = message;
    }

    /// The capture interface of a packet; none where it is of another link type than what the router makes.
    #[inline]
    pub(super) fn capture_of(&self, cx: &Context<'_>, frame: &Frame) -> Option<u32> {
        let link = if self.start() == 0 { LinkType::RawIp } else { LinkType::Ethernet };
        (cx.link(frame) == link).then(|| cx.pool.meta(frame.buf).interface)
    }

    /// A new packet, which belongs to the capture interface of the last one.
    fn store(&self, fx: &mut FunctionContext<'_, '_>, bytes: &[u8]) -> Frame {
        let now = fx.cx.now;
        let meta = PacketMeta { original_len: bytes.len() as u32, interface: self.capture, time: now };
        let buf = fx.cx.pool.insert(meta, bytes);
        let link = if self.start() == 0 { LinkType::RawIp } else { LinkType::Ethernet };
        let info = classify(link, bytes).map_or(Info::default(), |h| Info::new(&h));
        Frame { info, ..Frame::unclassified(now, buf, bytes.len() as u32) }
    }

    pub(super) fn emit(&self, fx: &mut FunctionContext<'_, '_>, port: u8, bytes: &[u8]) {
        let frame = self.store(fx, bytes);
        fx.made.push(NewPacket::new(frame, port));
    }

    /// Drops a packet, and tells its sender where that may be done.
    pub(super) fn refuse(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frame: &Frame,
        reason: DropReason,
        message: Option<Message>,
    ) -> Verdict {
        if let Some(message) = message {
            fx.cx.now = fx.cx.now.max(frame.arrival);
            self.error(fx, fx.cx.input, frame, message);
        }
        Verdict::drop(reason)
    }

    /// The next hop of a packet doesn't answer (RFC 1812 §4.3.3.1).
    pub(super) fn unreachable(&mut self, fx: &mut FunctionContext<'_, '_>, port: u8, frame: &Frame) {
        self.error(fx, port, frame, Message::HostUnreachable);
    }

    /// Tells the sender of a packet what became of it. The message comes from the address of the interface
    /// that it leaves by (RFC 1812 §4.3.2.4); if the packet was sent to an IPv6 address of the router, from
    /// that one (RFC 4443 §2.2).
    fn error(&mut self, fx: &mut FunctionContext<'_, '_>, port: u8, frame: &Frame, message: Message) {
        self.capture = self.capture_of(fx.cx, frame).unwrap_or(self.capture);
        let (start, now) = (self.start(), fx.cx.now);
        let data = fx.cx.data(frame);
        let link = if start == 0 { LinkType::RawIp } else { LinkType::Ethernet };
        let Ok(headers) = classify(link, data) else { return };
        let packet = data.get(start..).unwrap_or_default();
        let on_wire = fx.cx.pool.lengths(frame.buf, frame.len).behind(start as u32).here;
        let to = headers.key.src();
        let right = if to.is_ipv6() { check_v6(packet, on_wire) } else { check_v4(packet, on_wire) };
        // No answer to a header that may be wrong, or to the router itself, unless another stands behind its
        // address.
        let translated = self.interface(port).is_some_and(|i| i.translates(to));
        if right.is_none() || self.own.contains(&to) && !translated {
            return;
        }
        let Some(way) = self.way_back(to, port, now) else {
            self.counters.unroutable += 1;
            return;
        };
        let dst = headers.key.dst();
        let here = || self.may_come_from(dst, way.port);
        let asked = (dst.is_ipv6() && self.own.contains(&dst) && here()).then_some(dst);
        let Some(source) = asked.or_else(|| self.source(way.port, to)) else {
            self.counters.unroutable += 1;
            return;
        };
        let mut scratch = std::mem::take(&mut self.message);
        if icmp::answer(message, packet, Link::Unicast, source, &mut scratch).is_ok() {
            let counter = if !self.limiter.allow(1, now) {
                &mut self.counters.icmp_suppressed
            } else if self.send_on(fx, way, &scratch) {
                &mut self.counters.icmp_sent
            } else {
                &mut self.counters.unroutable
            };
            *counter += 1;
        }
        self.message = scratch;
    }

    /// The address to speak to `to` from, at this port. One that is of the link alone speaks to nobody beyond
    /// it while the router has another (RFC 6724 §5, rule 2).
    fn source(&self, port: u8, to: IpAddr) -> Option<IpAddr> {
        let suits = |a: &IpAddr| a.is_ipv6() == to.is_ipv6() && !stays_on_link(*a);
        let any = || self.own.iter().copied().find(suits);
        let here = self.interface(port).and_then(|i| i.source(to));
        here.filter(|a| stays_on_link(to) || !stays_on_link(*a)).or_else(any).or(here)
    }

    /// The way to an address that has sent a packet that came in by `port`.
    fn way_back(&mut self, to: IpAddr, port: u8, now: slipstream_core::time::Nanos) -> Option<Adjacency> {
        // What is of the link alone is never sent to a gateway (RFC 3927 §2.6.2, RFC 4291 §2.5.6).
        let hop = if stays_on_link(to) { Hop::Link(port) } else { self.fib.look_up(to)? };
        self.way(hop, to, now)
    }

    /// Says that a packet of the router's own may leave by a port with this source: an address of one link
    /// alone is none on the others.
    fn may_come_from(&self, source: IpAddr, port: u8) -> bool {
        !stays_on_link(source) || self.interface(port).is_some_and(|i| i.owns(source))
    }

    /// Sends a packet of the router's own. Returns false if it can't leave.
    fn send_on(&mut self, fx: &mut FunctionContext<'_, '_>, way: Adjacency, packet: &[u8]) -> bool {
        let mut bytes = std::mem::take(&mut self.scratch);
        bytes.clear();
        if self.start() == ETHERNET {
            bytes.extend_from_slice(&[0; 12]);
            let v6 = packet.first().is_some_and(|b| b >> 4 == 6);
            bytes.extend_from_slice(if v6 { &[0x86, 0xdd] } else { &[8, 0] });
        }
        bytes.extend_from_slice(packet);
        let frame = self.store(fx, &bytes);
        self.scratch = bytes;
        match self.send_by(fx, way) {
            Decision::Forward { port, macs, .. } => {
                if let Some(macs) = macs {
                    macs.write_to(fx.cx.data_mut(&frame));
                }
                fx.made.push(NewPacket::new(frame, port));
                true
            }
            Decision::Wait { neighbour, .. } => {
                self.hold(fx, neighbour, frame);
                true
            }
            _ => {
                fx.cx.pool.free(frame.buf);
                false
            }
        }
    }
}
