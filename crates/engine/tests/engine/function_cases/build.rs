//! Packets from their text.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify};

/// A packet as captured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packet {
    pub(crate) bytes: Vec<u8>,
    pub(crate) original_len: u32,
}

/// `02::1` or all six bytes.
fn mac(text: &str) -> Result<[u8; 6], String> {
    let wrong = || format!("{text:?} is no Ethernet address");
    let bytes = |part: &str| -> Result<Vec<u8>, String> {
        let all = part.split(':').filter(|p| !p.is_empty());
        all.map(|p| u8::from_str_radix(p, 16).map_err(|_| wrong())).collect()
    };
    let all = match text.split_once("::") {
        Some((front, back)) => {
            let (mut front, back) = (bytes(front)?, bytes(back)?);
            front.resize(6usize.checked_sub(back.len()).ok_or_else(wrong)?, 0);
            [front, back].concat()
        }
        None => bytes(text)?,
    };
    all.try_into().map_err(|_| wrong())
}

fn number(text: &str) -> Result<u64, String> {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.map_err(|_| format!("{text:?} is no number"))
}

fn hex(text: &str) -> Result<Vec<u8>, String> {
    let digits = text.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).unwrap_or(""));
    digits
        .map(|pair| u8::from_str_radix(pair, 16).map_err(|_| format!("{text:?} is not hexadecimal")))
        .collect()
}

fn pair<T>(text: &str, read: impl Fn(&str) -> Result<T, String>) -> Result<(T, T), String> {
    let (a, b) = text.split_once('>').ok_or_else(|| format!("{text:?} lacks `>`"))?;
    Ok((read(a)?, read(b)?))
}

fn address(text: &str) -> Result<IpAddr, String> {
    text.parse().map_err(|_| format!("{text:?} is no IP address"))
}

/// `IP@MAC`
fn station(text: &str) -> Result<(IpAddr, [u8; 6]), String> {
    let (ip, station) = text.split_once('@').ok_or_else(|| format!("{text:?} lacks `@`"))?;
    Ok((address(ip)?, mac(station)?))
}

#[derive(Default)]
struct Ip {
    ttl: Option<u8>,
    tos: u8,
    id: u16,
    fragment: u16,
    options: Vec<u8>,
    bad_sum: bool,
}

/// The text written so far.
#[derive(Default)]
struct Draft {
    link: Vec<u8>,
    ethertype: Option<u16>,
    addresses: Option<(IpAddr, IpAddr)>,
    ip: Ip,
    protocol: Option<u8>,
    /// Transport header.
    transport: Vec<u8>,
    no_sum: bool,
    payload: Vec<u8>,
    len: Option<usize>,
    pad: Option<usize>,
    snap: Option<usize>,
}

/// A packet of this text.
pub(crate) fn packet(text: &str, raw: bool) -> Result<Packet, String> {
    let mut draft = Draft::default();
    let spaced = text.replace('[', " [ ").replace(']', " ] ");
    let mut words = spaced.split_whitespace();
    while let Some(word) = words.next() {
        if !draft.plain(word) {
            let value = words.next().ok_or_else(|| format!("`{word}` lacks its value"))?;
            if word == "quote" {
                draft.quote(value, &mut words)?;
            } else if !(draft.link(word, value)? || draft.network(word, value)?) {
                draft.transport(word, value, &mut words)?;
            }
        }
    }
    draft.finish(raw)
}

impl Draft {
    /// Words without a value.
    fn plain(&mut self, word: &str) -> bool {
        match word {
            "df" => self.ip.fragment |= 0x4000,
            "mf" => self.ip.fragment |= 0x2000,
            "badsum" => self.ip.bad_sum = true,
            "nosum" => self.no_sum = true,
            "arp" => {}
            _ => return false,
        }
        true
    }

    fn link(&mut self, word: &str, value: &str) -> Result<bool, String> {
        match word {
            "eth" => {
                let (src, dst) = pair(value, mac)?;
                self.link = [dst, src].concat();
            }
            "vlan" => {
                let id = number(value)? as u16;
                self.link.extend([[0x81, 0x00], id.to_be_bytes()].concat());
            }
            "type" => self.ethertype = u16::from_str_radix(value, 16).ok(),
            "request" | "reply" => self.arp(word == "reply", value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn arp(&mut self, reply: bool, value: &str) -> Result<(), String> {
        let (from, to) = value.split_once('>').ok_or_else(|| format!("{value:?} lacks `>`"))?;
        let (from, to) = (station(from)?, if reply { station(to)? } else { (address(to)?, [0; 6]) });
        self.ethertype = Some(0x0806);
        self.payload = vec![0, 1, 8, 0, 6, 4, 0, if reply { 2 } else { 1 }];
        for (ip, mac) in [from, to] {
            let IpAddr::V4(ip) = ip else { return Err("ARP is for IPv4".into()) };
            self.payload.extend(mac);
            self.payload.extend(ip.octets());
        }
        Ok(())
    }

    fn network(&mut self, word: &str, value: &str) -> Result<bool, String> {
        match word {
            "ip" => self.addresses = Some(pair(value, address)?),
            "ttl" => self.ip.ttl = Some(number(value)? as u8),
            "tos" => self.ip.tos = number(&format!("0x{value}"))? as u8,
            "id" => self.ip.id = number(value)? as u16,
            "offset" => self.ip.fragment |= (number(value)? / 8) as u16,
            "options" => self.ip.options = hex(value)?,
            "proto" => self.protocol = Some(number(value)? as u8),
            "data" => self.payload.extend(hex(value)?),
            "len" => self.len = Some(number(value)? as usize),
            "pad" => self.pad = Some(number(value)? as usize),
            "snap" => self.snap = Some(number(value)? as usize),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn is_v6(&self) -> bool {
        matches!(self.addresses, Some((IpAddr::V6(_), _)))
    }

    fn transport<'a>(
        &mut self,
        word: &str,
        value: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), String> {
        let v6 = self.is_v6();
        let icmp = if v6 { 58 } else { 1 };
        match word {
            "udp" => {
                let (src, dst) = pair(value, number)?;
                self.protocol = Some(17);
                self.transport = [src as u16, dst as u16, 0, 0].map(u16::to_be_bytes).concat();
            }
            "tcp" => {
                let (src, dst) = pair(value, number)?;
                let letters = words.next().ok_or("`tcp` lacks its flags")?;
                let bit = |c: char| "FSRPAUEC".find(c).map(|i| 1u8 << i);
                let flags = letters.chars().filter_map(bit).fold(0, |a, b| a | b);
                self.protocol = Some(6);
                self.transport = [src as u16, dst as u16].map(u16::to_be_bytes).concat();
                let window = if flags & 4 == 0 { 0xff } else { 0 };
                self.transport.extend([0, 0, 0, 0, 0, 0, 0, 0, 0x50, flags, window, window, 0, 0, 0, 0]);
            }
            "seq" => self.put(4, number(value)? as u32),
            "ack" => self.put(8, number(value)? as u32),
            "rest" => self.put(4, number(value)? as u32),
            "echo" | "echo-reply" => {
                let kind = match (word == "echo", v6) {
                    (true, false) => 8,
                    (false, false) => 0,
                    (true, true) => 128,
                    (false, true) => 129,
                };
                self.protocol = Some(icmp);
                self.transport =
                    [&[kind, 0, 0, 0][..], &(number(value)? as u16).to_be_bytes(), &[0, 1]].concat();
            }
            "icmp" => {
                let (kind, code) = value.split_once('/').ok_or("`icmp` wants TYPE/CODE")?;
                self.protocol = Some(icmp);
                self.transport = vec![number(kind)? as u8, number(code)? as u8, 0, 0, 0, 0, 0, 0];
            }
            "ns" => self.discovery(None, value)?,
            "na" => self.discovery(Some(0xe0), value)?,
            // An advertisement without the Override flag.
            "na-weak" => self.discovery(Some(0xc0), value)?,
            _ => return Err(format!("unknown word `{word}`")),
        }
        Ok(())
    }

    /// A solicitation, or an advertisement with these flags.
    fn discovery(&mut self, flags: Option<u8>, value: &str) -> Result<(), String> {
        let advertisement = flags.is_some();
        let (ip, option) = match value.contains('@') {
            true => station(value).map(|(ip, mac)| (ip, Some(mac)))?,
            false => (address(value)?, None),
        };
        let IpAddr::V6(ip) = ip else { return Err("neighbour discovery is for IPv6".into()) };
        self.protocol = Some(58);
        self.transport = vec![135 + u8::from(advertisement), 0, 0, 0, flags.unwrap_or(0), 0, 0, 0];
        self.transport.extend(ip.octets());
        if let Some(mac) = option {
            self.transport.extend([1 + u8::from(advertisement), 1]);
            self.transport.extend(mac);
        }
        Ok(())
    }

    fn put(&mut self, at: usize, value: u32) {
        if let Some(place) = self.transport.get_mut(at..at + 4) {
            place.copy_from_slice(&value.to_be_bytes());
        }
    }

    /// `[ PACKET ]`, which an ICMP error quotes.
    fn quote<'a>(&mut self, open: &str, words: &mut impl Iterator<Item = &'a str>) -> Result<(), String> {
        if open != "[" {
            return Err("`quote` wants [ PACKET ]".into());
        }
        let inner: Vec<&str> = words.take_while(|w| *w != "]").collect();
        let mut quoted = packet(&inner.join(" "), true)?.bytes;
        let (headers, limit) = if self.is_v6() { (48, 1280) } else { (28, 576) };
        quoted.truncate(limit - headers);
        self.payload = quoted;
        Ok(())
    }

    fn finish(mut self, raw: bool) -> Result<Packet, String> {
        let network = match self.addresses {
            Some((IpAddr::V4(_), IpAddr::V4(_))) => 20 + self.ip.options.len(),
            Some((IpAddr::V6(_), IpAddr::V6(_))) => 40,
            None => 0,
            _ => return Err("addresses of two IP versions".into()),
        };
        let link = if raw { 0 } else { self.link.len() + 2 };
        if let Some(len) = self.len {
            let payload =
                len.checked_sub(link + network + self.transport.len()).ok_or("`len` is too short")?;
            self.payload.resize(payload, 0);
        }
        let mut bytes = Vec::new();
        if !raw {
            if self.link.is_empty() {
                return Err("the packet has no `eth`".into());
            }
            let ethertype = self.ethertype.unwrap_or(if self.is_v6() { 0x86dd } else { 0x0800 });
            bytes = [&self.link[..], &ethertype.to_be_bytes()].concat();
        }
        match self.addresses {
            Some((IpAddr::V4(src), IpAddr::V4(dst))) => self.ipv4(&mut bytes, src, dst),
            Some((IpAddr::V6(src), IpAddr::V6(dst))) => self.ipv6(&mut bytes, src, dst),
            _ => {}
        }
        let l4 = bytes.len();
        bytes.extend(&self.transport);
        bytes.extend(&self.payload);
        if self.protocol == Some(17) && bytes.len() >= l4 + 8 {
            let length = (bytes.len() - l4) as u16;
            bytes[l4 + 4..l4 + 6].copy_from_slice(&length.to_be_bytes());
        }
        let link_type = if raw { LinkType::RawIp } else { LinkType::Ethernet };
        if let Ok(headers) = classify(link_type, &bytes) {
            fill_ip(&mut bytes, &headers);
            if !self.no_sum {
                fill_transport(&mut bytes, &headers);
            }
            if self.ip.bad_sum {
                bytes[usize::from(headers.l3) + 10] ^= 0x55;
            }
        }
        bytes.resize(bytes.len().max(self.pad.unwrap_or(0)), 0);
        let original_len = bytes.len() as u32;
        bytes.truncate(self.snap.unwrap_or(usize::MAX));
        Ok(Packet { bytes, original_len })
    }

    fn ipv4(&self, bytes: &mut Vec<u8>, src: Ipv4Addr, dst: Ipv4Addr) {
        let header = 20 + self.ip.options.len();
        let total = (header + self.transport.len() + self.payload.len()) as u16;
        bytes.extend([0x40 | (header / 4) as u8, self.ip.tos]);
        for word in [total, self.ip.id, self.ip.fragment] {
            bytes.extend(word.to_be_bytes());
        }
        bytes.extend([self.ip.ttl.unwrap_or(64), self.protocol.unwrap_or(253), 0, 0]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
        bytes.extend(&self.ip.options);
    }

    fn ipv6(&self, bytes: &mut Vec<u8>, src: Ipv6Addr, dst: Ipv6Addr) {
        bytes.extend((6u32 << 28 | u32::from(self.ip.tos) << 20).to_be_bytes());
        bytes.extend(((self.transport.len() + self.payload.len()) as u16).to_be_bytes());
        bytes.extend([self.protocol.unwrap_or(253), self.ip.ttl.unwrap_or(64)]);
        bytes.extend(src.octets());
        bytes.extend(dst.octets());
    }
}
