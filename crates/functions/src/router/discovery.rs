//! Messages of ARP (RFC 826) and neighbour discovery (RFC 4861 §4.3, §4.4) over Ethernet: read and built.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::checksum::{fill_transport, verify_transport};
use slipstream_wire::protocol::ICMPV6;
use slipstream_wire::view::Arp;
use slipstream_wire::{LinkType, checksum, classify};

use super::fib::solicited_node;
use super::interface::{Interface, Mac};
use super::neighbours::Claim;

/// Bytes of an Ethernet header.
pub(super) const ETHERNET: usize = 14;
const BROADCAST: Mac = [0xff; 6];
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);
const ALL_NODES_MAC: Mac = [0x33, 0x33, 0, 0, 0, 1];
/// Only neighbours can send this (RFC 4861 §3.1).
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Flags of an advertisement: from a router, asked for, newer than what is known.
const ROUTER: u8 = 0x80;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;

/// The message of a neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Says {
    /// The address that is spoken for, and where it is; none where the sender has no address yet.
    pub(super) sender: Option<(IpAddr, Mac)>,
    /// The address that is asked for; none in an answer.
    pub(super) wants: Option<IpAddr>,
    /// Destination of the answer: IP and Ethernet address.
    pub(super) reply_to: (IpAddr, Mac),
    /// The weight of what is said.
    pub(super) claim: Claim,
    /// It answers a question of the router's, which so reaches it. ARP can't tell answers from what stations
    /// say of themselves: there all that they say counts (RFC 826, RFC 1122 §2.3.2.1).
    pub(super) answers: bool,
}

/// True for an Ethernet address that one station may have: no group's, and not the one of zeros.
fn is_station(mac: Mac) -> bool {
    mac[0] & 1 == 0 && mac != [0; 6]
}

/// Reads an ARP packet behind its Ethernet header.
pub(super) fn read_arp(frame: &[u8]) -> Option<Says> {
    let arp = Arp::new_checked(frame.get(ETHERNET..)?).ok()?;
    if arp.hardware() != 1 || arp.hardware_length() != 6 {
        return None;
    }
    let (sender, target) = arp.ipv4()?;
    let mac = *arp.sender_hardware().first_chunk::<6>()?;
    if !is_station(mac) || sender.is_multicast() || sender.is_broadcast() {
        return None;
    }
    let (wants, claim) = match arp.operation() {
        1 => (Some(IpAddr::V4(target)), Claim::New),
        2 => (None, Claim::Known),
        _ => return None,
    };
    // RFC 5227: a probe, of one who has no address yet.
    let known = !sender.is_unspecified();
    let reply_to = (IpAddr::V4(sender), mac);
    Some(Says { sender: known.then_some(reply_to), wants, reply_to, claim, answers: true })
}

/// Reads a neighbour solicitation or advertisement whose IPv6 header begins at `l3` and whose ICMPv6 header
/// at `l4`, with the checks of RFC 4861 §7.1; none for anything else.
pub(super) fn read_discovery(frame: &[u8], l3: usize, l4: usize) -> Option<Says> {
    let ip = frame.get(l3..)?;
    let headers = classify(LinkType::Ethernet, frame).ok()?;
    let right = verify_transport(frame, &headers) == checksum::Verdict::Right;
    if ip.get(7) != Some(&HOP_LIMIT) || l4 != l3 + 40 || !right {
        return None;
    }
    let (IpAddr::V6(src), IpAddr::V6(dst)) = (headers.key.src(), headers.key.dst()) else { return None };
    let end = 40 + usize::from(u16::from_be_bytes(*ip.get(4..)?.first_chunk()?));
    let message = ip.get(40..end)?;
    let target = Ipv6Addr::from(*message.get(8..)?.first_chunk::<16>()?);
    if target.is_multicast() || message.get(1) != Some(&0) {
        return None;
    }
    let from = frame.get(6..).and_then(<[u8]>::first_chunk).copied()?;
    let options = Options::all(message.get(24..)?)?;
    match *message.first()? {
        SOLICITATION => {
            let source = options.link_layer(1);
            // A host that has no address yet asks the group of the address that it would have, and can't
            // be told.
            if src.is_unspecified() && (options.has(1) || dst != solicited_node(target).0) {
                return None;
            }
            // To who has no address yet, the answer goes to all nodes.
            let (to, at) =
                if src.is_unspecified() { (ALL_NODES, ALL_NODES_MAC) } else { (src, source.unwrap_or(from)) };
            Some(Says {
                sender: source.map(|mac| (src.into(), mac)),
                wants: Some(target.into()),
                reply_to: (to.into(), at),
                claim: Claim::New,
                answers: false,
            })
        }
        ADVERTISEMENT => {
            let flags = *message.get(4)?;
            let solicited = flags & SOLICITED != 0;
            if solicited && dst.is_multicast() {
                return None;
            }
            // An answer to a question that was sent to the known Ethernet address may leave the option out.
            let told = options.link_layer(2);
            let mac = told.or(Some(from).filter(|from| solicited && is_station(*from)));
            let claim = match told {
                None => Claim::Same,
                Some(_) if flags & OVERRIDE != 0 => Claim::Known,
                Some(_) => Claim::Weak,
            };
            let sender = mac.map(|mac| (target.into(), mac));
            Some(Says { sender, wants: None, reply_to: (src.into(), from), claim, answers: solicited })
        }
        _ => None,
    }
}

/// Options of a message (RFC 4861 §4.6), each with its type and length.
#[derive(Clone, Copy, Debug)]
struct Options<'a>(&'a [u8]);

impl<'a> Options<'a> {
    /// None where one has no length, or ends behind the message.
    fn all(bytes: &'a [u8]) -> Option<Self> {
        let mut rest = bytes;
        while let Some(length) = rest.get(1) {
            let length = usize::from(*length) * 8;
            rest = rest.get(length..).filter(|_| length > 0)?;
        }
        rest.is_empty().then_some(Self(bytes))
    }

    /// The Ethernet address in an option of this type, where that is one of a station.
    fn link_layer(&self, kind: u8) -> Option<Mac> {
        let body = self.find(|found, length| (found, length) == (kind, 1))?;
        body.first_chunk::<6>().copied().filter(|mac| is_station(*mac))
    }

    /// True if there is an option of this type, whatever it says.
    fn has(&self, kind: u8) -> bool {
        self.find(|found, _| found == kind).is_some()
    }

    /// The body of the first option whose type and length are wanted.
    fn find(&self, wanted: impl Fn(u8, u8) -> bool) -> Option<&'a [u8]> {
        let mut rest = self.0;
        while let [found, length, body @ ..] = rest {
            if wanted(*found, *length) {
                return Some(body);
            }
            rest = rest.get(usize::from(*length) * 8..)?;
        }
        None
    }
}

/// Asks who has `address`: all, or the one who had it.
pub(super) fn question(
    interface: &Interface,
    address: IpAddr,
    known: Option<Mac>,
    out: &mut Vec<u8>,
) -> bool {
    out.clear();
    let (Some(mac), Some(source)) = (interface.mac, interface.source(address)) else { return false };
    match (source, address) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            arp(1, (mac, source), ([0; 6], target), known.unwrap_or(BROADCAST), out);
        }
        (IpAddr::V6(source), IpAddr::V6(target)) => {
            let (group, group_mac) = solicited_node(target);
            let (to, at) = known.map_or((group, group_mac), |known| (target, known));
            icmpv6((mac, source), (at, to), [SOLICITATION, 0], (target, 1), out);
        }
        _ => return false,
    }
    true
}

/// Answers that `address` is here. `overrides` says whether it takes the place of what is known about an IPv6
/// address.
pub(super) fn answer(mac: Mac, address: IpAddr, to: (IpAddr, Mac), overrides: bool, out: &mut Vec<u8>) {
    out.clear();
    match (address, to) {
        (IpAddr::V4(address), (IpAddr::V4(ip), at)) => arp(2, (mac, address), (at, ip), at, out),
        (IpAddr::V6(address), (IpAddr::V6(ip), at)) => {
            let solicited = if ip.is_multicast() { 0 } else { SOLICITED };
            let flags = ROUTER | solicited | if overrides { OVERRIDE } else { 0 };
            icmpv6((mac, address), (at, ip), [ADVERTISEMENT, flags], (address, 2), out);
        }
        _ => {}
    }
}

/// Tells the link, unasked, that `address` is here: an ARP request for it from itself (RFC 5227 §2.3), or an
/// advertisement to all nodes (RFC 4861 §7.2.6). False where the link has no Ethernet addresses.
pub(super) fn announcement(interface: &Interface, address: IpAddr, out: &mut Vec<u8>) -> bool {
    out.clear();
    let Some(mac) = interface.mac else { return false };
    match address {
        IpAddr::V4(address) => arp(1, (mac, address), ([0; 6], address), BROADCAST, out),
        IpAddr::V6(address) => {
            let flags = [ADVERTISEMENT, ROUTER | OVERRIDE];
            icmpv6((mac, address), (ALL_NODES_MAC, ALL_NODES), flags, (address, 2), out);
        }
    }
    true
}

fn arp(operation: u8, from: (Mac, Ipv4Addr), to: (Mac, Ipv4Addr), at: Mac, out: &mut Vec<u8>) {
    out.extend(at);
    out.extend(from.0);
    out.extend([8, 6, 0, 1, 8, 0, 6, 4, 0, operation]);
    for (mac, ip) in [from, to] {
        out.extend(mac);
        out.extend(ip.octets());
    }
}

/// A message about `target` with the sender's Ethernet address in an option.
fn icmpv6(
    from: (Mac, Ipv6Addr),
    to: (Mac, Ipv6Addr),
    [kind, flags]: [u8; 2],
    (target, option): (Ipv6Addr, u8),
    out: &mut Vec<u8>,
) {
    out.extend(to.0);
    out.extend(from.0);
    out.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 32, ICMPV6, HOP_LIMIT]);
    out.extend(from.1.octets());
    out.extend(to.1.octets());
    out.extend([kind, 0, 0, 0, flags, 0, 0, 0]);
    out.extend(target.octets());
    out.extend([option, 1]);
    out.extend(from.0);
    if let Ok(headers) = classify(LinkType::Ethernet, out) {
        fill_transport(out, &headers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Mac = [2, 0, 0, 0, 0, 1];
    const B: Mac = [2, 0, 0, 0, 0, 2];

    fn interface() -> Interface {
        Interface::parse("lan 10.0.0.1/24 2001:db8::1/64 02:00:00:00:00:01").unwrap()
    }

    #[test]
    fn questions_are_read_as_they_were_built() {
        for (address, own) in
            [("10.0.0.7", "10.0.0.1"), ("2001:db8::7", "2001:db8::1"), ("fe80::7", "fe80::ff:fe00:1")]
        {
            let (address, own): (IpAddr, IpAddr) = (address.parse().unwrap(), own.parse().unwrap());
            for known in [None, Some(B)] {
                let mut out = Vec::new();
                assert!(question(&interface(), address, known, &mut out));
                let says =
                    if address.is_ipv4() { read_arp(&out) } else { read_discovery(&out, 14, 54) }.unwrap();
                let reply_to = (own, A);
                let (sender, wants, answers) = (Some(reply_to), Some(address), address.is_ipv4());
                assert_eq!(says, Says { sender, wants, reply_to, claim: Claim::New, answers });
                assert_eq!(out[0] & 1 == 1, known.is_none());
                answer(B, address, says.reply_to, true, &mut out);
                let says =
                    if address.is_ipv4() { read_arp(&out) } else { read_discovery(&out, 14, 54) }.unwrap();
                assert_eq!((says.sender, says.wants, says.claim), (Some((address, B)), None, Claim::Known));
                assert!(says.answers);
                assert_eq!(out[..6], A);
            }
        }
    }

    #[test]
    fn forged_and_broken_ones_are_not_read() {
        let mut out = Vec::new();
        question(&interface(), "2001:db8::7".parse().unwrap(), None, &mut out);
        for (at, value) in [(21, 254), (40, 7), (57, 1), (79, 0), (62, 0xff)] {
            let mut wrong = out.clone();
            wrong[at] = value;
            assert_eq!(read_discovery(&wrong, 14, 54).and_then(|s| s.sender), None, "byte {at}");
        }
        for len in 0..out.len() {
            assert_eq!(read_discovery(&out[..len], 14, 54), None);
            assert_eq!(read_arp(&out[..len]), None);
        }
        // Bytes from the Ethernet header on that are other ones, with the right checksum: options without a
        // length and ones that are too long; a question of one without an address that tells it, or that is
        // sent to another group.
        let changed = |message: &[u8], changes: &[(usize, &[u8])]| {
            let mut frame = message.to_vec();
            for (at, bytes) in changes {
                frame[*at..at + bytes.len()].copy_from_slice(bytes);
            }
            let headers = classify(LinkType::Ethernet, &frame).unwrap();
            fill_transport(&mut frame, &headers);
            read_discovery(&frame, 14, 54)
        };
        assert!(changed(&out, &[]).is_some());
        let nobody: &[u8] = &[0; 16];
        for changes in
            [&[(79, &[0][..])][..], &[(79, &[2])], &[(22, nobody)], &[(22, nobody), (53, &[8]), (78, &[14])]]
        {
            assert_eq!(changed(&out, changes), None, "{changes:?}");
        }
        let asks = changed(&out, &[(22, nobody), (78, &[14])]).unwrap();
        assert_eq!((asks.sender, asks.reply_to.0), (None, ALL_NODES.into()));
        // An answer that doesn't tell the Ethernet address is none to a question that was sent to all.
        let mut told = Vec::new();
        answer(
            B,
            "2001:db8::7".parse().unwrap(),
            (interface().source("2001:db8::9".parse().unwrap()).unwrap(), A),
            true,
            &mut told,
        );
        assert_eq!(changed(&told, &[]).unwrap().claim, Claim::Known);
        assert_eq!(changed(&told, &[(78, &[14])]).unwrap().claim, Claim::Same);
        assert!(!changed(&told, &[(58, &[OVERRIDE])]).unwrap().answers, "nobody asked");
        // Zeros, as the addresses of groups, are no station's: what is said of them counts as not said. The
        // question of one without an address is no right one, whatever its option says.
        for at in [[0; 6], [0xff; 6], [1, 0, 0x5e, 0, 0, 1]] {
            let says = changed(&told, &[(80, &at)]).unwrap();
            assert_eq!((says.sender.unwrap().1, says.claim), (B, Claim::Same), "the frame's own address");
            assert_eq!(changed(&told, &[(6, &at), (80, &at)]).unwrap().sender, None);
            assert_eq!(changed(&told, &[(58, &[OVERRIDE]), (80, &at)]).unwrap().sender, None);
            let says = changed(&out, &[(80, &at)]).unwrap();
            assert_eq!((says.sender, says.reply_to.1), (None, A));
            assert_eq!(changed(&out, &[(22, nobody), (80, &at)]), None);
        }
        question(&interface(), "10.0.0.7".parse().unwrap(), None, &mut out);
        for (at, value) in [(15, 6), (16, 9), (18, 5), (21, 3), (22, 3), (28, 224)] {
            let mut wrong = out.clone();
            wrong[at] = value;
            assert_eq!(read_arp(&wrong), None, "byte {at}");
        }
    }
}
