//! Reports of the multicast groups in which a router listens for questions about its IPv6 addresses (MLD, RFC
//! 3810 and RFC 2710). Switches that snoop send the packets of a group only where somebody has reported it,
//! so that without reports nobody would find the router.

use std::net::{IpAddr, Ipv6Addr};

use ipnet::IpNet;
use slipstream_core::frame::Frame;
use slipstream_core::stage::{DropReason, Verdict};
use slipstream_wire::checksum::{Verdict as Sum, fill_transport, verify_transport};
use slipstream_wire::protocol::{HOP_BY_HOP, ICMPV6};
use slipstream_wire::{Headers, LinkType, classify};

use super::fib::{solicited_node, station};
use super::interface::{Interface, Mac};
use super::proxy::{MAX_ANNOUNCED, each};
use super::{FunctionContext, Router};

/// Type of a query.
pub(super) const QUERY: u8 = 130;
/// Type of a report of one group (RFC 2710).
const REPORT_V1: u8 = 131;
/// Type of a report of groups (RFC 3810).
const REPORT_V2: u8 = 143;
/// All routers that understand reports of the second version listen there (RFC 3810 §5.2.14).
const ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// Bytes of a query of the first version; one of the second has at least four more (RFC 3810 §8.1).
const QUERY_V1: usize = 24;
const QUERY_V2: usize = 28;
/// Queries that are answered, a second and at once.
pub(super) const QUERIES: u64 = 100;
/// Nanoseconds after which a report that nobody asked for is repeated (RFC 3810 §6.1, §9.11).
pub(super) const REPORT_INTERVAL: u64 = 1_000_000_000;
/// The option that routers look at packets for, with the value of a packet with such messages (RFC 2711).
const ROUTER_ALERT: [u8; 4] = [5, 2, 0, 0];
/// Groups in one report, so that every link takes it.
const GROUPS: usize = 50;

/// The kind of a group's record: it answers a query, or the router has begun to listen there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listens {
    /// `MODE_IS_EXCLUDE`, of nobody: to all senders.
    Already = 2,
    /// `CHANGE_TO_EXCLUDE_MODE`.
    FromNow = 4,
}

/// The groups in which neighbours ask for the addresses that an interface answers for: of a long prefix that
/// something behind it translates, those of its first addresses.
fn groups(interface: &Interface) -> Vec<Ipv6Addr> {
    let own = interface.addresses.iter().map(IpNet::addr).chain(interface.anycast());
    let proxied = interface.asked_for().flat_map(|net| each(net).take(MAX_ANNOUNCED));
    let group = |address| match address {
        IpAddr::V6(address) => Some(solicited_node(address).0),
        IpAddr::V4(_) => None,
    };
    let mut all: Vec<Ipv6Addr> = own.chain(proxied).filter_map(group).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// An ICMPv6 message to a group of the link, with the option for which routers look at it (RFC 2711).
fn message(from: (Mac, Ipv6Addr), to: Ipv6Addr, icmp: &[u8], out: &mut Vec<u8>) {
    out.clear();
    out.extend(station(to));
    out.extend(from.0);
    out.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
    out.extend((8 + icmp.len() as u16).to_be_bytes());
    out.extend([HOP_BY_HOP, 1]);
    out.extend(from.1.octets());
    out.extend(to.octets());
    out.extend([ICMPV6, 0]);
    out.extend(ROUTER_ALERT);
    out.extend([1, 0]);
    out.extend_from_slice(icmp);
    if let Ok(headers) = classify(LinkType::Ethernet, out) {
        fill_transport(out, &headers);
    }
}

/// A report of some groups.
fn report(from: (Mac, Ipv6Addr), groups: &[Ipv6Addr], listens: Listens, out: &mut Vec<u8>) {
    let mut icmp = vec![REPORT_V2, 0, 0, 0, 0, 0];
    icmp.extend((groups.len() as u16).to_be_bytes());
    for group in groups {
        icmp.extend([listens as u8, 0, 0, 0]);
        icmp.extend(group.octets());
    }
    message(from, ROUTERS, &icmp, out);
}

/// A report of the first version.
fn old_report(from: (Mac, Ipv6Addr), group: Ipv6Addr, out: &mut Vec<u8>) {
    let mut icmp = vec![REPORT_V1, 0, 0, 0, 0, 0, 0, 0];
    icmp.extend(group.octets());
    message(from, group, &icmp, out);
}

/// Says that an IPv6 packet has a router alert among its hop-by-hop options (RFC 8200 §4.2).
fn alerts_routers(ip: &[u8]) -> bool {
    let Some([_, length, first @ ..]) = ip.get(40..).filter(|_| ip.get(6) == Some(&HOP_BY_HOP)) else {
        return false;
    };
    let mut options = first.get(..6 + 8 * usize::from(*length)).unwrap_or_default();
    while let [kind, rest @ ..] = options {
        if options.starts_with(&ROUTER_ALERT) {
            return true;
        }
        options = match (kind, rest) {
            (0, rest) => rest,
            (_, [length, rest @ ..]) => rest.get(usize::from(*length)..).unwrap_or_default(),
            (_, []) => break,
        };
    }
    false
}

/// A query that is to be answered: the group that it asks about, none for all, and its version.
fn read_query(frame: &[u8], l3: usize, headers: &Headers) -> Option<(Option<Ipv6Addr>, u8)> {
    let ip = frame.get(l3..)?;
    // Only neighbours can send it (RFC 3810 §5.1.14, §6.2).
    let IpAddr::V6(from) = headers.key.src() else { return None };
    let right = verify_transport(frame, headers) == Sum::Right;
    if ip.get(7) != Some(&1) || !from.is_unicast_link_local() || !right || !alerts_routers(ip) {
        return None;
    }
    let end = l3 + 40 + usize::from(u16::from_be_bytes(*ip.get(4..)?.first_chunk()?));
    let icmp = frame.get(usize::from(headers.l4)..end)?;
    let group = Ipv6Addr::from(*icmp.get(8..)?.first_chunk::<16>()?);
    let version = match icmp.len() {
        QUERY_V1 => 1,
        QUERY_V2.. => 2,
        _ => return None,
    };
    Some(((!group.is_unspecified()).then_some(group), version))
}

impl Router {
    /// A query of the groups in which somebody listens. It is answered at once, which is among the times that
    /// an answer may take.
    pub(super) fn queried(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        frame: &Frame,
        headers: &Headers,
    ) -> Verdict {
        let query = read_query(fx.cx.data(frame), self.start(), headers);
        let Some((asked, version)) = query else { return Verdict::drop(DropReason::Malformed) };
        let port = fx.cx.input;
        if self.answers && self.queries.allow(1, fx.cx.now) {
            self.report_groups(fx, port, asked, version, Listens::Already);
        }
        Verdict::drop(DropReason::Local)
    }

    /// Reports the groups of all ports unasked.
    pub(super) fn report_all(&mut self, fx: &mut FunctionContext<'_, '_>) {
        for port in (0u8..).take(self.interfaces.len()) {
            self.report_groups(fx, port, None, 2, Listens::FromNow);
        }
    }

    /// Reports the groups of a port, or the one that is asked for.
    pub(super) fn report_groups(
        &mut self,
        fx: &mut FunctionContext<'_, '_>,
        port: u8,
        asked: Option<Ipv6Addr>,
        version: u8,
        listens: Listens,
    ) {
        let Some(interface) = self.interface(port) else { return };
        let own = interface.addresses.iter().find_map(|net| match net.addr() {
            IpAddr::V6(address) if address.is_unicast_link_local() => Some(address),
            _ => None,
        });
        let Some(from) = interface.mac.zip(own) else { return };
        let mut all = groups(interface);
        all.retain(|group| asked.is_none_or(|asked| asked == *group));
        let mut packet = std::mem::take(&mut self.message);
        let each = if version == 1 { 1 } else { GROUPS };
        for some in all.chunks(each) {
            match some {
                [group] if version == 1 => old_report(from, *group, &mut packet),
                _ => report(from, some, listens, &mut packet),
            }
            self.counters.reports += 1;
            self.emit(fx, port, &packet);
        }
        self.message = packet;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: (Mac, Ipv6Addr) = ([2, 0, 0, 0, 0, 1], Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1));

    #[test]
    fn reports_are_whole_packets() {
        let mut out = Vec::new();
        let some: Vec<Ipv6Addr> = (0..3).map(|n| solicited_node(Ipv6Addr::from_bits(n)).0).collect();
        report(FROM, &some, Listens::FromNow, &mut out);
        let headers = classify(LinkType::Ethernet, &out).unwrap();
        assert_eq!((headers.l3, headers.l4, out.len()), (14, 62, 62 + 8 + 3 * 20));
        assert_eq!(verify_transport(&out, &headers), Sum::Right);
        assert_eq!(out[..6], [0x33, 0x33, 0, 0, 0, 0x16]);
        assert_eq!(out[62 + 8..62 + 12], [4, 0, 0, 0]);
        old_report(FROM, some[2], &mut out);
        let headers = classify(LinkType::Ethernet, &out).unwrap();
        assert_eq!(verify_transport(&out, &headers), Sum::Right);
        assert_eq!((&out[..6], out.len()), (&[0x33, 0x33, 0xff, 0, 0, 2][..], 62 + 24));
    }
}
