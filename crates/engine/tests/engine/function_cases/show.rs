//! Packets as text, in the words that they are written with.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::checksum::{Verdict, verify_ip, verify_transport};
use slipstream_wire::{LinkType, classify};

use super::build::Packet;

fn mac(bytes: &[u8]) -> String {
    let all: Vec<String> = bytes.iter().map(|b| format!("{b:02x}")).collect();
    match bytes {
        [_, 0, 0, 0, 0, last] => format!("{}::{last:x}", all[0]),
        _ => all.join(":"),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

/// The text of a packet; bytes that make no sense are shown as they are.
pub(crate) fn packet(packet: &Packet, raw: bool) -> String {
    let bytes = &packet.bytes;
    let mut text = String::new();
    let mut at = 0;
    let mut ethertype = if bytes.first().is_some_and(|b| b >> 4 == 6) { 0x86dd } else { 0x0800 };
    if !raw && bytes.len() >= 14 {
        text = format!("eth {}>{} ", mac(&bytes[6..12]), mac(&bytes[..6]));
        at = 12;
        while be16(bytes, at) == 0x8100 && bytes.len() >= at + 6 {
            text += &format!("vlan {} ", be16(bytes, at + 2));
            at += 4;
        }
        ethertype = be16(bytes, at);
        at += 2;
    }
    let link = if raw { LinkType::RawIp } else { LinkType::Ethernet };
    match (ethertype, classify(link, bytes)) {
        (0x0806, _) if bytes.len() >= at + 28 => text += &arp(&bytes[at..at + 28]),
        (_, Ok(headers)) => {
            text += &ip(&bytes[usize::from(headers.l3)..], usize::from(headers.l4 - headers.l3));
            if verify_ip(bytes, &headers) == Verdict::Wrong {
                text += " badsum";
            }
            if verify_transport(bytes, &headers) == Verdict::Wrong {
                text += " (transport checksum wrong)";
            }
        }
        (other, Err(_)) => text += &format!("type {other:04x} data {}", hex(&bytes[at..])),
    }
    if packet.original_len as usize != bytes.len() {
        text += &format!(" snap {}", bytes.len());
    }
    format!("{text}  # {} bytes", packet.original_len)
}

fn arp(arp: &[u8]) -> String {
    let station = |at: usize| {
        let ip: [u8; 4] = arp[at + 6..at + 10].try_into().unwrap();
        (Ipv4Addr::from(ip), mac(&arp[at..at + 6]))
    };
    let ((src, from), (dst, to)) = (station(8), station(18));
    match be16(arp, 6) {
        1 => format!("arp request {src}@{from}>{dst}"),
        2 => format!("arp reply {src}@{from}>{dst}@{to}"),
        other => format!("arp operation {other}"),
    }
}

/// `l4` is where the transport header begins in `ip`.
fn ip(ip: &[u8], l4: usize) -> String {
    let v6 = ip[0] >> 4 == 6;
    let address = |at: usize| -> IpAddr {
        match v6 {
            true => Ipv6Addr::from(<[u8; 16]>::try_from(&ip[at..at + 16]).unwrap()).into(),
            false => Ipv4Addr::from(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap()).into(),
        }
    };
    let (src, dst, ttl, protocol, end) = match v6 {
        true => (address(8), address(24), ip[7], ip[6], 40 + usize::from(be16(ip, 4))),
        false => (address(12), address(16), ip[8], ip[9], usize::from(be16(ip, 2))),
    };
    let mut text = format!("ip {src}>{dst}");
    let tos = if v6 { (be16(ip, 0) >> 4) as u8 } else { ip[1] };
    let fragment = if v6 { 0 } else { be16(ip, 6) };
    let id = if v6 { 0 } else { be16(ip, 4) };
    let mut word = |there: bool, word: String| text += &if there { word } else { String::new() };
    word(ttl != 64, format!(" ttl {ttl}"));
    word(tos != 0, format!(" tos {tos:x}"));
    word(id != 0, format!(" id {id}"));
    word(fragment & 0x4000 != 0, " df".into());
    word(fragment & 0x2000 != 0, " mf".into());
    word(fragment & 0x1fff != 0, format!(" offset {}", u32::from(fragment & 0x1fff) * 8));
    word(!v6 && l4 > 20, format!(" options {}", hex(ip.get(20..l4).unwrap_or_default())));
    let payload = ip.get(l4..end.min(ip.len())).unwrap_or_default();
    text + " " + &transport(protocol, payload, v6)
}

fn transport(protocol: u8, bytes: &[u8], v6: bool) -> String {
    let with = |head: String, at: usize| match bytes.get(at..) {
        None | Some([]) => head,
        Some(rest) if rest.iter().all(|b| *b == 0) => format!("{head} (and {} zeros)", rest.len()),
        Some(rest) => format!("{head} data {}", hex(rest)),
    };
    match protocol {
        17 if bytes.len() >= 8 => {
            let sum = if be16(bytes, 6) == 0 { " nosum" } else { "" };
            with(format!("udp {}>{}{sum}", be16(bytes, 0), be16(bytes, 2)), 8)
        }
        6 if bytes.len() >= 20 => {
            let all = "FSRPAUEC".chars().enumerate();
            let flags: String = all.filter(|(i, _)| bytes[13] & (1 << i) != 0).map(|(_, c)| c).collect();
            let flags = if flags.is_empty() { ".".into() } else { flags };
            let word = |at: usize| u32::from(be16(bytes, at)) << 16 | u32::from(be16(bytes, at + 2));
            let numbers = format!("seq {} ack {}", word(4), word(8));
            with(format!("tcp {}>{} {flags} {numbers}", be16(bytes, 0), be16(bytes, 2)), 20)
        }
        1 | 58 if bytes.len() >= 8 => icmp(bytes, v6, with),
        _ => with(format!("proto {protocol}"), 0),
    }
}

fn icmp(bytes: &[u8], v6: bool, with: impl Fn(String, usize) -> String) -> String {
    let (kind, code) = (bytes[0], bytes[1]);
    let id = be16(bytes, 4);
    match (v6, kind) {
        (false, 8) | (true, 128) => with(format!("echo {id}"), 8),
        (false, 0) | (true, 129) => with(format!("echo-reply {id}"), 8),
        (true, 135 | 136) if bytes.len() >= 24 => {
            let target = Ipv6Addr::from(<[u8; 16]>::try_from(&bytes[8..24]).unwrap());
            let at = bytes.get(26..32).map(|m| format!("@{}", mac(m))).unwrap_or_default();
            let word = match (kind, bytes[4] & 0x20) {
                (135, _) => "ns",
                (_, 0) => "na-weak",
                _ => "na",
            };
            format!("{word} {target}{at}")
        }
        (false, 3 | 5 | 11 | 12) | (true, 1..=4) => {
            let rest = u32::from(id) << 16 | u32::from(be16(bytes, 6));
            let quoted = Packet { bytes: bytes[8..].to_vec(), original_len: bytes.len() as u32 - 8 };
            let rest = if rest == 0 { String::new() } else { format!(" rest {rest}") };
            format!("icmp {kind}/{code}{rest} quote [ {} ]", packet(&quoted, true))
        }
        _ => with(format!("icmp {kind}/{code} rest {}", u32::from(id) << 16 | u32::from(be16(bytes, 6))), 8),
    }
}
