//! Packets of every shape, from a description that proptest can make smaller.

use proptest::prelude::*;
use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify};

/// The description of a packet.
#[derive(Clone, Debug)]
pub(crate) struct Spec {
    pub(crate) ethernet: bool,
    pub(crate) tags: Vec<u16>,
    pub(crate) six: bool,
    /// IPv4 options, or the content of a destination options header, in units of 4 or 8 bytes.
    pub(crate) options: u8,
    pub(crate) tcp: bool,
    pub(crate) tcp_options: u8,
    pub(crate) tos: u8,
    pub(crate) payload: usize,
    pub(crate) fill: u8,
    pub(crate) ports: (u16, u16),
    /// Bytes behind the IP packet.
    pub(crate) trailer: usize,
    pub(crate) no_checksum: bool,
    /// Amounts that are added to the right checksums of IP and transport.
    pub(crate) wrong: (u16, u16),
}

pub(crate) fn spec() -> impl Strategy<Value = Spec> {
    let shape = (
        any::<bool>(),
        prop::collection::vec(any::<u16>(), 0..3),
        any::<bool>(),
        0u8..=4,
        any::<bool>(),
        0u8..=10,
    );
    let wrong = prop_oneof![3 => Just(0u16), 1 => any::<u16>()];
    let rest = (
        any::<u8>(),
        prop_oneof![4 => 0usize..1500, 1 => 1400usize..9000, 1 => 0usize..20],
        any::<u8>(),
        (1024u16..60000, 1024u16..60000),
        prop_oneof![3 => Just(0usize), 1 => 0usize..80],
        any::<bool>(),
        (wrong.clone(), wrong),
    );
    (shape, rest).prop_map(|(shape, rest)| Spec {
        ethernet: shape.0 || !shape.1.is_empty(),
        tags: shape.1,
        six: shape.2,
        options: shape.3,
        tcp: shape.4,
        tcp_options: shape.5,
        tos: if rest.2 < 32 { rest.0 | 0xfc } else { rest.0 },
        payload: rest.1,
        fill: rest.2,
        ports: rest.3,
        trailer: if shape.0 { rest.4 } else { 0 },
        no_checksum: rest.5 && rest.2 % 4 == 0,
        wrong: rest.6,
    })
}

impl Spec {
    /// A packet of 1000 bytes of payload that nothing is odd about.
    pub(crate) fn plain(six: bool, tcp: bool) -> Self {
        Self {
            ethernet: true,
            tags: Vec::new(),
            six,
            options: 0,
            tcp,
            tcp_options: 0,
            tos: 0,
            payload: 1000,
            fill: 1,
            ports: (5000, 443),
            trailer: 0,
            no_checksum: false,
            wrong: (0, 0),
        }
    }

    pub(crate) fn link(&self) -> LinkType {
        if self.ethernet { LinkType::Ethernet } else { LinkType::RawIp }
    }

    /// Returns true if all its checksums are right.
    pub(crate) fn is_right(&self) -> bool {
        self.wrong == (0, 0)
    }

    /// The payload's byte at `at`: no two places near each other look alike, nor do two packets.
    fn byte(&self, at: usize) -> u8 {
        let n = at as u32 ^ u32::from(self.fill) << 16 ^ u32::from(self.ports.0);
        (n.wrapping_mul(2_654_435_761) >> 13) as u8
    }

    fn transport(&self) -> Vec<u8> {
        let mut bytes = [self.ports.0.to_be_bytes(), self.ports.1.to_be_bytes()].concat();
        if self.tcp {
            bytes.extend([0, 0, 0, 7, 0, 0, 0, 9, 0x50 + (self.tcp_options << 4), 0x18, 1, 0, 0, 0, 0, 0]);
            bytes.extend(vec![1; usize::from(self.tcp_options) * 4]);
        } else {
            bytes.extend(((8 + self.payload) as u16).to_be_bytes());
            bytes.extend([0, 0]);
        }
        bytes.extend((0..self.payload).map(|at| self.byte(at)));
        bytes
    }

    fn ip(&self) -> Vec<u8> {
        let transport = self.transport();
        let protocol = if self.tcp { 6 } else { 17 };
        let mut ip;
        if self.six {
            let extension = usize::from(self.options) * 8;
            ip = vec![0x60 | self.tos >> 4, self.tos << 4, 0x12, 0x34];
            ip.extend(((extension + transport.len()) as u16).to_be_bytes());
            ip.extend([if extension > 0 { 60 } else { protocol }, 64]);
            ip.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
            ip.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
            if extension > 0 {
                ip.extend([protocol, self.options - 1, 1, (extension - 4) as u8]);
                ip.extend(vec![0; extension - 4]);
            }
        } else {
            let header = 20 + usize::from(self.options) * 4;
            ip = vec![0x45 + self.options, self.tos];
            ip.extend(((header + transport.len()) as u16).to_be_bytes());
            ip.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
            ip.extend(vec![1; header - 20]);
        }
        ip.extend(transport);
        let headers = classify(LinkType::RawIp, &ip).unwrap();
        fill_ip(&mut ip, &headers);
        assert!(fill_transport(&mut ip, &headers));
        let l4 = usize::from(headers.l4);
        let field = l4 + if self.tcp { 16 } else { 6 };
        let right = u16::from_be_bytes([ip[field], ip[field + 1]]);
        let value = if !self.tcp && self.no_checksum { 0 } else { right.wrapping_add(self.wrong.1) };
        // UDP without a checksum is another case.
        let value = if !self.tcp && value == 0 && !self.no_checksum { right } else { value };
        ip[field..field + 2].copy_from_slice(&value.to_be_bytes());
        if !self.six {
            let right = u16::from_be_bytes([ip[10], ip[11]]);
            ip[10..12].copy_from_slice(&right.wrapping_add(self.wrong.0).to_be_bytes());
        }
        ip
    }

    /// The frame.
    pub(crate) fn build(&self) -> Vec<u8> {
        let mut frame = Vec::new();
        if self.ethernet {
            frame.extend([2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1]);
            for (n, tag) in self.tags.iter().enumerate() {
                frame.extend(if n + 1 < self.tags.len() { [0x88, 0xa8] } else { [0x81, 0] });
                frame.extend(tag.to_be_bytes());
            }
            frame.extend(if self.six { [0x86, 0xdd] } else { [8, 0] });
        }
        frame.extend(self.ip());
        frame.extend((0..self.trailer).map(|n| n as u8 ^ 0x5a));
        frame
    }
}
