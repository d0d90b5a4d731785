//! Addresses that something behind a port of the router translates, such as the pool of a NAT.
//!
//! Nobody on the link has them, so that the router answers questions about them (proxy ARP, RFC 1027; RFC
//! 4861 §7.2.8). A packet to one of them leaves by that port, addressed to the interface itself: whatever
//! translates it hands it back to the same port with another destination (a hairpin, RFC 4787 §6), and its
//! source may be an address of the router.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use slipstream_wire::protocol::{ICMP, ICMPV6};

use super::listener::REPORT_INTERVAL;
use super::{Decision, FunctionContext, Interface, Router, discovery};
use slipstream_core::frame::Frame;
use slipstream_core::stage::{Context, DropReason};
use slipstream_core::time::Nanos;

/// Addresses of an interface that are announced at a time.
pub(super) const MAX_ANNOUNCED: usize = 256;
/// Types of echo requests.
const ECHO_V4: u8 = 8;
const ECHO_V6: u8 = 128;

impl Router {
    /// Decides about a packet to an address that something behind `port` translates, where it doesn't go
    /// there: it came from there as it is, or it asks whether the router itself is alive.
    pub(super) fn stays(&self, cx: &Context<'_>, frame: &Frame, dst: IpAddr, port: u8) -> Option<Decision> {
        let own = self.own.contains(&dst);
        if cx.input == port {
            return Some(if own { Decision::Own } else { Decision::Refuse(DropReason::NoRoute, None) });
        }
        (own && self.is_echo_request(cx, frame)).then_some(Decision::Own)
    }

    fn is_echo_request(&self, cx: &Context<'_>, frame: &Frame) -> bool {
        let ip = cx.data(frame).get(self.start()..).unwrap_or_default();
        let is = |at, protocol, kind, l4| ip.get(at) == Some(&protocol) && ip.get(l4) == Some(&kind);
        match ip.first() {
            Some(first) if first >> 4 == 4 => is(9, ICMP, ECHO_V4, usize::from(first & 15) * 4),
            Some(_) => is(6, ICMPV6, ECHO_V6, 40),
            None => false,
        }
    }

    /// Says that an address is the router's, or is translated behind this port: nobody else may send from it.
    pub(super) fn is_ours(&self, port: u8, src: IpAddr) -> bool {
        self.own.contains(&src) || self.interface(port).is_some_and(|i| i.translates(src))
    }

    /// Says that a packet is back from what translates addresses behind its port: its source is one of them,
    /// and on Ethernet the router itself was the last that sent it. What the router says about a packet that
    /// has come back, to whoever sent it, goes the same way, from the interface's own address.
    pub(super) fn came_round(&self, cx: &Context<'_>, frame: &Frame, src: IpAddr) -> bool {
        self.interface(cx.input).is_some_and(|interface| {
            let sent = |mac: [u8; 6]| cx.data(frame).get(6..12) == Some(&mac[..]);
            let told = !interface.proxied.is_empty() && interface.mac.is_some() && interface.owns(src);
            (interface.translates(src) || told) && interface.mac.is_none_or(sent)
        })
    }

    /// Takes note of addresses that were not those of the interfaces `before`. One that is gone before its
    /// link was told is announced no more.
    pub(super) fn announce_new(&mut self, before: &[Interface]) {
        let all = to_announce(&self.interfaces, None);
        self.unannounced.retain(|one| all.contains(one));
        for one in to_announce(&self.interfaces, Some(before)) {
            if !self.unannounced.contains(&one) {
                self.unannounced.push(one);
            }
        }
    }

    /// Tells the links which addresses are here (RFC 5227 §2.3, RFC 4861 §7.2.6): a host that had the address
    /// before, or another router, may have left entries in their tables.
    #[inline(never)]
    pub(super) fn announce(&mut self, fx: &mut FunctionContext<'_, '_>) {
        let new = std::mem::take(&mut self.unannounced);
        // Hosts that would ask for them, and switches between, know where first.
        if new.iter().any(|(_, net)| net.addr().is_ipv6()) {
            self.report_all(fx);
            self.reports_again = Nanos(fx.cx.now.0.saturating_add(REPORT_INTERVAL));
        }
        let mut message = std::mem::take(&mut self.message);
        for (port, interface) in (0u8..).zip(&*self.interfaces.clone()) {
            let here = new.iter().filter(|(at, _)| *at == port);
            for address in here.flat_map(|(_, net)| each(net)).take(MAX_ANNOUNCED) {
                if discovery::announcement(interface, address, &mut message) {
                    self.counters.announcements += 1;
                    self.emit(fx, port, &message);
                }
            }
        }
        self.message = message;
    }
}

/// The addresses, each with its port, of which the links are to be told: those of the interfaces themselves
/// and what neighbours ask for of that which is translated behind them, but for what was `before`.
pub(super) fn to_announce(interfaces: &[Interface], before: Option<&[Interface]>) -> Vec<(u8, IpNet)> {
    let mut all = Vec::new();
    for (number, interface) in interfaces.iter().enumerate() {
        let own = interface.addresses.iter().map(|net| IpNet::from(net.addr()));
        let own = own.filter(|net| !interface.translates(net.addr()));
        let known = before.and_then(|before| before.get(number));
        let is_new = |net: &IpNet| {
            known.is_none_or(|i| !i.owns(net.addr()) && !i.proxied.iter().any(|old| old.contains(net)))
        };
        all.extend(own.chain(interface.asked_for().copied()).filter(is_new).map(|net| (number as u8, net)));
    }
    all
}

/// All addresses of a prefix: a pool has no network or broadcast address.
pub(super) fn each(net: &IpNet) -> Box<dyn Iterator<Item = IpAddr>> {
    match net {
        IpNet::V4(net) => {
            let all = net.network().to_bits()..=net.broadcast().to_bits();
            Box::new(all.map(|bits| Ipv4Addr::from_bits(bits).into()))
        }
        IpNet::V6(net) => {
            let all = net.network().to_bits()..=net.broadcast().to_bits();
            Box::new(all.map(|bits| Ipv6Addr::from_bits(bits).into()))
        }
    }
}
