//! From the outermost IP header of what a function made to the headers that were sliced, and back: every
//! length and checksum on the way is repaired once the payload is there again.
//!
//! A function may have put a tunnel around the packet: IP in IP (RFC 2003, RFC 2473), GRE (RFC 2784, RFC
//! 2890), VXLAN (RFC 7348), GENEVE (RFC 8926), GUE (draft-ietf-intarea-gue).

use slipstream_wire::checksum::{Delta, combine, sum};
use slipstream_wire::field::be16;
use slipstream_wire::protocol::{
    ETHERTYPE_BRIDGING, ETHERTYPE_IPV4, ETHERTYPE_IPV6, GENEVE_PORT, GRE, ICMP, ICMPV6, IPV4, IPV6, TCP, UDP,
    VXLAN_PORT, is_vlan,
};
use slipstream_wire::view::{Geneve, Gre, Vxlan};
use slipstream_wire::{Flags, Headers, LinkType, classify, ip_end};

use super::DSCP_SLICED;
use super::layout::{checksum_field, put16, set_ip, transport_checksum};
use super::parked::{Parked, Transport};
use super::payload_table::Refusal;
use super::token::TOKEN_LEN;

/// UDP port of generic UDP encapsulation.
const GUE_PORT: u16 = 6080;

/// Tunnels around a sliced packet at most.
const MAX_TUNNELS: usize = 3;

/// A checksum of a tunnel, which covers the packet inside.
#[derive(Clone, Copy, Debug)]
struct Cover {
    /// Start of the bytes that it covers.
    from: usize,
    /// Its offset.
    field: usize,
    /// Sum of what it covers while the packet is sliced.
    sum: u16,
    udp: bool,
}

/// An IP header of the packet, and what follows it.
#[derive(Clone, Copy, Debug)]
struct Layer {
    l3: usize,
    l4: usize,
    six: bool,
    /// A UDP header follows, whose length is to be repaired.
    udp: bool,
}

/// The IP headers of a packet.
#[derive(Debug)]
pub(super) struct Layers {
    /// The one that was sliced.
    inner: Layer,
    /// Those of tunnels around it, innermost first, each with the checksum that covers what is inside. Almost
    /// always none.
    tunnels: Vec<(Layer, Option<Cover>)>,
    /// Offset of the outermost IP header, and the end of the IP packet while it is sliced.
    l3: usize,
    pub(super) end: usize,
}

/// An IP header, with offsets from the start of the frame.
struct Ip {
    l3: usize,
    l4: usize,
    end: usize,
    protocol: u8,
    dst_port: u16,
    six: bool,
    fragment: bool,
}

impl Ip {
    #[inline]
    fn new(packet: &[u8], headers: &Headers) -> Self {
        Self {
            l3: usize::from(headers.l3),
            l4: usize::from(headers.l4),
            end: ip_end(packet, headers),
            protocol: headers.key.protocol(),
            dst_port: headers.key.dst_port(),
            six: headers.flags.has(Flags::IPV6),
            fragment: headers.flags.has(Flags::FRAGMENT),
        }
    }

    fn at(packet: &[u8], at: usize) -> Option<Self> {
        let inner = packet.get(at..)?;
        let ip = Self::new(inner, &classify(LinkType::RawIp, inner).ok()?);
        Some(Self { l3: at, l4: at + ip.l4, end: at + ip.end, ..ip })
    }

    #[inline]
    fn layer(&self) -> Layer {
        Layer { l3: self.l3, l4: self.l4, six: self.six, udp: self.protocol == UDP }
    }

    /// Returns true if this is the header that was sliced: behind the transport header stands what was left
    /// there.
    #[inline]
    fn is_sliced(&self, packet: &[u8], parked: &Parked) -> bool {
        let (kind, header) = match self.protocol {
            TCP => (Transport::Tcp, packet.get(self.l4 + 12).map_or(0, |b| usize::from(b >> 4) * 4)),
            UDP => (Transport::Udp, 8),
            ICMP | ICMPV6 => (Transport::Icmp, 0),
            _ => (Transport::Other, 0),
        };
        let (matches, header) = match parked.kind {
            Transport::Other => (true, 0),
            sliced => (sliced == kind && !self.fragment, header),
        };
        matches && self.l4 + header + usize::from(parked.rest) == self.end
    }

    /// Offset of the next IP header, and the checksum that covers it.
    fn tunnel(&self, packet: &[u8]) -> Option<(usize, Option<Cover>)> {
        let l4 = self.l4;
        let body = packet.get(l4..self.end).filter(|_| !self.fragment)?;
        let cover = |field: usize, udp| {
            let length = if udp { body.len() as u16 } else { 0 };
            (be16(body, field)? != 0 || !udp).then(|| {
                let sum = combine(sum(body), length);
                Cover { from: l4, field: l4 + field, sum, udp }
            })
        };
        match self.protocol {
            IPV4 | IPV6 => Some((l4, None)),
            GRE => {
                let gre = Gre::new_checked(body).ok()?;
                let next = l4 + gre.header_len();
                let covered = gre.checksum().and_then(|_| cover(4, false));
                Some((behind(packet, next, gre.protocol())?, covered))
            }
            UDP => {
                let payload = body.get(8..)?;
                let next = match self.dst_port {
                    VXLAN_PORT => {
                        Vxlan::new_checked(payload).ok()?.vni()?;
                        behind(packet, l4 + 16, ETHERTYPE_BRIDGING)?
                    }
                    GENEVE_PORT => {
                        let geneve = Geneve::new_checked(payload).ok()?;
                        let next = l4 + 8 + payload.len() - geneve.payload().len();
                        behind(packet, next, geneve.protocol())?
                    }
                    GUE_PORT => gue(payload)? + l4 + 8,
                    _ => return None,
                };
                Some((next, cover(6, true)))
            }
            _ => None,
        }
    }
}

/// Bytes of a GUE header: version 0 with IP inside, or version 1, which has none.
fn gue(payload: &[u8]) -> Option<usize> {
    let [first, protocol, ..] = *payload else { return None };
    match first >> 6 {
        0 if first & 0x20 == 0 && matches!(protocol, IPV4 | IPV6) => Some(4 + usize::from(first & 0x1f) * 4),
        1 => Some(0),
        _ => None,
    }
}

/// Offset of the IP header behind the bytes at `at`, which have this ethertype.
fn behind(packet: &[u8], at: usize, ethertype: u16) -> Option<usize> {
    match ethertype {
        ETHERTYPE_IPV4 | ETHERTYPE_IPV6 => Some(at),
        ETHERTYPE_BRIDGING => {
            let mut at = at + 12;
            while is_vlan(be16(packet, at)?) {
                at += 4;
            }
            matches!(be16(packet, at)?, ETHERTYPE_IPV4 | ETHERTYPE_IPV6).then_some(at + 2)
        }
        _ => None,
    }
}

impl Layers {
    /// Finds the headers that were sliced in a packet with these outermost headers.
    ///
    /// # Errors
    /// [`Refusal::Mangled`] where they are not there.
    #[inline]
    pub(super) fn find(packet: &[u8], headers: &Headers, parked: &Parked) -> Result<Self, Refusal> {
        let ip = Ip::new(packet, headers);
        if ip.is_sliced(packet, parked) {
            return Ok(Self { inner: ip.layer(), tunnels: Vec::new(), l3: ip.l3, end: ip.end });
        }
        Self::nested(packet, ip, parked)
    }

    #[cold]
    fn nested(packet: &[u8], mut ip: Ip, parked: &Parked) -> Result<Self, Refusal> {
        let (l3, end, mut tunnels) = (ip.l3, ip.end, Vec::new());
        while tunnels.len() < MAX_TUNNELS {
            let (next, cover) = ip.tunnel(packet).ok_or(Refusal::Mangled)?;
            tunnels.insert(0, (ip.layer(), cover));
            ip = Ip::at(packet, next).filter(|inner| inner.end == end).ok_or(Refusal::Mangled)?;
            if ip.is_sliced(packet, parked) {
                return Ok(Self { inner: ip.layer(), tunnels, l3, end });
            }
        }
        Err(Refusal::Mangled)
    }

    /// Bytes of the outermost IP packet once its payload is there again.
    #[inline]
    pub(super) fn whole_len(&self, parked: &Parked) -> usize {
        self.end - TOKEN_LEN + usize::from(parked.len) - self.l3
    }

    /// Offsets of the headers that were sliced, those of IP and of transport, and true if they are IPv6.
    #[inline]
    pub(super) fn sliced(&self) -> ((usize, usize), bool) {
        ((self.inner.l3, self.inner.l4), self.inner.six)
    }

    /// The DSCP of the outermost IP header.
    #[inline]
    pub(super) fn dscp(&self, packet: &[u8]) -> u8 {
        let word = be16(packet, self.l3).unwrap_or(0);
        let six = word >> 12 == 6;
        (word >> if six { 6 } else { 2 }) as u8 & DSCP_SLICED
    }

    /// Repairs all headers. `packet` has its payload again; in what an ICMP error quotes it may be missing.
    #[inline]
    pub(super) fn repair(&self, packet: &mut [u8], parked: &Parked) {
        let end = self.end - TOKEN_LEN + usize::from(parked.len);
        let Self { inner, tunnels, .. } = self;
        // The checksum that the sliced packet had: it came with that of the whole one. With another DSCP than
        // the mark it can be the same by chance, since something else that changed makes up for it.
        let as_sliced = !inner.six
            && be16(packet, inner.l3 + 10) == Some(parked.ip.sliced)
            && inner.dscp(packet) == DSCP_SLICED;
        inner.lengths(packet, parked.dscp, end, parked.kind == Transport::Udp);
        if as_sliced {
            put16(packet, inner.l3 + 10, parked.ip.whole);
        }
        inner.checksum(packet, parked, end);
        for (layer, cover) in tunnels {
            layer.lengths(packet, parked.dscp, end, layer.udp);
            if let Some(cover) = cover {
                cover.repair(packet, end);
            }
        }
    }
}

impl Layer {
    /// The DSCP that stands in the header.
    #[inline]
    fn dscp(&self, packet: &[u8]) -> u8 {
        let word = be16(packet, self.l3).unwrap_or(0);
        (word >> if self.six { 6 } else { 2 }) as u8 & DSCP_SLICED
    }

    /// Lengths, and the DSCP where the mark still stands: another value is the function's and stays.
    #[inline]
    fn lengths(&self, packet: &mut [u8], dscp: u8, end: usize, udp: bool) {
        let now = self.dscp(packet);
        set_ip(packet, self.l3, self.six, if now == DSCP_SLICED { dscp } else { now }, end);
        if udp {
            put16(packet, self.l4 + 4, (end - self.l4) as u16);
        }
    }

    /// The transport checksum: what the function left, and what came off when the packet was sliced. A wrong
    /// one stays wrong.
    #[inline]
    fn checksum(&self, packet: &mut [u8], parked: &Parked, end: usize) {
        let Some(field) = checksum_field(parked.kind).map(|field| self.l4 + field) else { return };
        let Some(left) = be16(packet, field) else { return };
        let (udp, pair) = (parked.kind == Transport::Udp, parked.transport);
        let value = if udp && left == 0 {
            return;
        } else if udp && pair.whole == 0 {
            // It came without, and the function gave it one, over what it saw.
            if end > packet.len() {
                return;
            }
            put16(packet, field, 0);
            transport_checksum(packet, (self.l3, self.l4, end), self.six, parked.kind)
        } else if left == pair.sliced {
            pair.whole
        } else {
            let delta = Delta::new().word(!pair.sliced, !pair.whole);
            if udp { delta.apply_udp(left) } else { delta.apply(left) }
        };
        put16(packet, field, value);
    }
}

impl Cover {
    /// Repairs the checksum of bytes that changed as a whole; the difference of both sums changes it, right
    /// or wrong.
    fn repair(&self, packet: &mut [u8], end: usize) {
        let Some(body) = packet.get(self.from..end) else { return };
        let length = if self.udp { body.len() as u16 } else { 0 };
        let delta = Delta::new().word(self.sum, combine(sum(body), length));
        let left = be16(packet, self.field).unwrap_or(0);
        put16(packet, self.field, if self.udp { delta.apply_udp(left) } else { delta.apply(left) });
    }
}
