//! Changes that functions make to packets, in the most obvious way: parse, change, mend checksums.

use proptest::prelude::*;
use slipstream_wire::checksum::{Delta, fill_ip, fill_transport};
use slipstream_wire::{Flags, Headers, LinkType, classify, ip_end};

/// A change that a function may make to a packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Rewrite {
    Macs,
    Hop,
    /// Addresses and ports, checksums updated.
    Translate(u32, u16),
    /// The same, checksums computed anew: not of packets that came with wrong ones, which this would mend.
    Recompute(u32, u16),
    Dscp(u8),
    Ce,
    PushTag(u16),
    PopTag,
    Tunnel {
        kind: Tunnel,
        six: bool,
        /// True if the outer header has the inner one's TOS, else 0.
        copies_tos: bool,
        /// True if it sums what it wraps.
        checksum: bool,
        /// True if what stands behind the IP packet goes along.
        keeps_trailer: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Tunnel {
    IpInIp,
    Gre,
    Vxlan,
    Geneve,
    Gue,
}

pub(crate) fn rewrite() -> impl Strategy<Value = Rewrite> {
    use Tunnel::*;
    let tunnel =
        (prop_oneof![Just(IpInIp), Just(Gre), Just(Vxlan), Just(Geneve), Just(Gue)], any::<[bool; 4]>());
    prop_oneof![
        Just(Rewrite::Macs),
        Just(Rewrite::Hop),
        (any::<u32>(), any::<u16>()).prop_map(|(a, p)| Rewrite::Translate(a, p)),
        (any::<u32>(), any::<u16>()).prop_map(|(a, p)| Rewrite::Recompute(a, p)),
        (0u8..63).prop_map(Rewrite::Dscp),
        Just(Rewrite::Ce),
        any::<u16>().prop_map(Rewrite::PushTag),
        Just(Rewrite::PopTag),
        tunnel.prop_map(|(kind, [six, copies_tos, checksum, keeps_trailer])| Rewrite::Tunnel {
            kind,
            six,
            copies_tos,
            checksum,
            keeps_trailer
        }),
    ]
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn put16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn places(headers: &Headers) -> (usize, usize, bool) {
    (usize::from(headers.l3), usize::from(headers.l4), headers.flags.has(Flags::IPV6))
}

/// Changes the 16-bit word at `at` of the IP header, and its checksum.
fn set_word(frame: &mut [u8], (l3, _, six): (usize, usize, bool), at: usize, new: u16) {
    let old = be16(frame, l3 + at);
    put16(frame, l3 + at, new);
    if !six {
        let checksum = Delta::new().word(old, new).apply(be16(frame, l3 + 10));
        put16(frame, l3 + 10, checksum);
    }
}

fn set_tos(frame: &mut [u8], headers: &Headers, tos: u8) {
    let at = places(headers);
    let word = be16(frame, at.0);
    let new = if at.2 { word & 0xf00f | u16::from(tos) << 4 } else { word & 0xff00 | u16::from(tos) };
    set_word(frame, at, 0, new);
}

fn translate(frame: &mut [u8], headers: &Headers, address: u32, port: u16) {
    let at = places(headers);
    let (l3, l4, six) = at;
    // The last four bytes of the source.
    let source = if six { 20 } else { 12 };
    let [a, b] = [be16(frame, l3 + source), be16(frame, l3 + source + 2)];
    let [c, d] = [(address >> 16) as u16, address as u16];
    set_word(frame, at, source, c);
    set_word(frame, at, source + 2, d);
    let delta = Delta::new().word(a, c).word(b, d).word(be16(frame, l4), port);
    put16(frame, l4, port);
    let tcp = headers.key.protocol() == 6;
    let field = l4 + if tcp { 16 } else { 6 };
    let old = be16(frame, field);
    put16(frame, field, if tcp { delta.apply(old) } else { delta.apply_udp(old) });
}

fn outer_ip(six: bool, tos: u8, protocol: u8, payload: &[u8]) -> Vec<u8> {
    let mut ip;
    if six {
        ip = vec![0x60 | tos >> 4, tos << 4, 0, 0];
        ip.extend((payload.len() as u16).to_be_bytes());
        ip.extend([protocol, 64]);
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
        ip.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
    } else {
        ip = vec![0x45, tos];
        ip.extend(((20 + payload.len()) as u16).to_be_bytes());
        ip.extend([0, 0, 0, 0, 64, protocol, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2]);
    }
    ip.extend(payload);
    let headers = classify(LinkType::RawIp, &ip).unwrap();
    fill_ip(&mut ip, &headers);
    ip
}

fn tunnel(frame: &[u8], headers: &Headers, rewrite: &Rewrite, link: LinkType) -> Vec<u8> {
    let Rewrite::Tunnel { kind, six, copies_tos, checksum, keeps_trailer } = *rewrite else { unreachable!() };
    let l3 = usize::from(headers.l3);
    let end = ip_end(frame, headers);
    let inner = &frame[l3..end];
    let inner_six = headers.flags.has(Flags::IPV6);
    let ip_protocol = if inner_six { 41 } else { 4 };
    let ethertype = if inner_six { [0x86, 0xdd] } else { [8, 0] };
    let bridged = || [&[2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 8][..], &ethertype, inner].concat();
    let tos = if copies_tos { headers.tos } else { 0 };
    let (protocol, mut body) = match kind {
        Tunnel::IpInIp => (ip_protocol, inner.to_vec()),
        Tunnel::Gre if checksum => {
            let mut gre = [&[0x80, 0][..], &ethertype, &[0; 4], inner].concat();
            let sum = slipstream_wire::checksum::checksum(&gre);
            put16(&mut gre, 4, sum);
            (47, gre)
        }
        Tunnel::Gre => (47, [&[0, 0][..], &ethertype, inner].concat()),
        Tunnel::Vxlan => (17, [&[8, 0, 0, 0, 0, 0, 7, 0][..], &bridged()].concat()),
        Tunnel::Geneve => (17, [&[1, 0, 0x65, 0x58, 0, 0, 7, 0, 1, 2, 3, 0][..], &bridged()].concat()),
        Tunnel::Gue => (17, [&[0, ip_protocol, 0, 0][..], inner].concat()),
    };
    if protocol == 17 {
        let port: u16 = match kind {
            Tunnel::Vxlan => 4789,
            Tunnel::Geneve => 6081,
            _ => 6080,
        };
        let length = (8 + body.len()) as u16;
        body = [&[0xc0, 1][..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0], &body].concat();
    }
    let mut ip = outer_ip(six, tos, protocol, &body);
    if protocol == 17 && checksum {
        let headers = classify(LinkType::RawIp, &ip).unwrap();
        assert!(fill_transport(&mut ip, &headers));
    }
    let mut out = frame[..l3].to_vec();
    if link == LinkType::Ethernet {
        out[l3 - 2..].copy_from_slice(if six { &[0x86, 0xdd] } else { &[8, 0] });
    }
    out.extend(ip);
    if keeps_trailer {
        out.extend(&frame[end..]);
    }
    out
}

impl Rewrite {
    /// Applies the function to a frame.
    pub(crate) fn apply(&self, link: LinkType, mut frame: Vec<u8>) -> Vec<u8> {
        let Ok(headers) = classify(link, &frame) else { return frame };
        let at = places(&headers);
        let transport = matches!(headers.key.protocol(), 6 | 17) && !headers.flags.has(Flags::FRAGMENT);
        match self {
            Self::Macs if link == LinkType::Ethernet => {
                frame[..12].copy_from_slice(&[2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1]);
            }
            Self::Hop => {
                let place = if at.2 { 6 } else { 8 };
                let word = be16(&frame, at.0 + place);
                set_word(&mut frame, at, place, if at.2 { word - 1 } else { word - 0x100 });
            }
            Self::Translate(address, port) if transport => translate(&mut frame, &headers, *address, *port),
            Self::Recompute(address, port) if transport => {
                let none = headers.key.protocol() == 17 && be16(&frame, at.1 + 6) == 0;
                translate(&mut frame, &headers, *address, *port);
                let headers = classify(link, &frame).unwrap();
                fill_ip(&mut frame, &headers);
                if !none {
                    fill_transport(&mut frame, &headers);
                }
            }
            Self::Dscp(dscp) => set_tos(&mut frame, &headers, dscp << 2 | headers.tos & 3),
            Self::Ce => set_tos(&mut frame, &headers, headers.tos | 3),
            Self::PushTag(tag) if link == LinkType::Ethernet => {
                let [a, b] = tag.to_be_bytes();
                frame.splice(12..12, [0x81, 0, a, b]);
            }
            Self::PopTag if link == LinkType::Ethernet && be16(&frame, 12) & 0x7fff != 0x800 => {
                if matches!(be16(&frame, 12), 0x8100 | 0x88a8) {
                    frame.drain(12..16);
                }
            }
            Self::Tunnel { .. } => return tunnel(&frame, &headers, self, link),
            _ => {}
        }
        frame
    }
}
