//! The common parts of the generator's tests: a slow dissector of their own, which knows nothing of the code
//! under test, and the locality metrics, computed the obvious way.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::HashMap;

use slipstream::io::synth::{Synth, SynthConfig};

/// One packet, taken apart.
#[derive(Clone, Debug)]
pub struct Seen {
    pub time: u64,
    pub len: usize,
    pub flow: Flow,
    pub payload: Vec<u8>,
    pub tcp: Option<Tcp>,
}

/// VLAN id, source, destination, protocol, ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Flow {
    pub vlan: Option<u16>,
    pub src: Vec<u8>,
    pub dst: Vec<u8>,
    pub protocol: u8,
    pub sport: u16,
    pub dport: u16,
}

impl Flow {
    pub fn reversed(&self) -> Self {
        let Self { vlan, src, dst, protocol, sport, dport } = self.clone();
        Self { vlan, src: dst, dst: src, protocol, sport: dport, dport: sport }
    }
}

#[derive(Clone, Debug)]
pub struct Tcp {
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub options: Vec<(u8, Vec<u8>)>,
}

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;

fn word(b: &[u8], at: usize) -> u16 {
    u16::from(b[at]) << 8 | u16::from(b[at + 1])
}

/// The sum of all words of 16 bits is a multiple of 0xffff, but not 0. Four words are added at a time: modulo
/// 0xffff that is the same, wherever carries are added back.
fn checksum_is_right(parts: &[&[u8]]) -> bool {
    let mut sum = 0_u128;
    for part in parts {
        let (words, rest) = part.as_chunks::<8>();
        for four in words {
            sum += u128::from(u64::from_be_bytes(*four));
        }
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        sum += u128::from(u64::from_be_bytes(last));
    }
    sum != 0 && sum.is_multiple_of(0xffff)
}

/// Takes a frame apart; every length and checksum must be right.
pub fn dissect(time: u64, b: &[u8]) -> Seen {
    assert!(b.len() >= 60, "frame of {} bytes", b.len());
    let (mut at, mut vlan) = (12, None);
    if word(b, at) == 0x8100 {
        vlan = Some(word(b, at + 2));
        at += 4;
    }
    let ip = at + 2;
    let (src, dst, protocol, l4, end) = match word(b, at) {
        0x0800 => {
            assert_eq!(b[ip], 0x45);
            assert!(checksum_is_right(&[&b[ip..ip + 20]]), "IPv4 header checksum");
            let end = ip + usize::from(word(b, ip + 2));
            (b[ip + 12..ip + 16].to_vec(), b[ip + 16..ip + 20].to_vec(), b[ip + 9], ip + 20, end)
        }
        0x86dd => {
            assert_eq!(b[ip] >> 4, 6);
            let end = ip + 40 + usize::from(word(b, ip + 4));
            (b[ip + 8..ip + 24].to_vec(), b[ip + 24..ip + 40].to_vec(), b[ip + 6], ip + 40, end)
        }
        other => panic!("ethertype {other:#x}"),
    };
    assert!(end == b.len() || end < b.len() && b.len() == 60, "padding only up to 60 bytes");
    assert!(b[end..].iter().all(|&x| x == 0));
    let segment = &b[l4..end];
    let length = (segment.len() as u32).to_be_bytes();
    let icmp_v4 = protocol == 1;
    let pseudo: &[&[u8]] = if icmp_v4 { &[] } else { &[&src, &dst, &length, &[0, protocol]] };
    let parts: Vec<&[u8]> = pseudo.iter().copied().chain([segment]).collect();
    assert!(checksum_is_right(&parts), "checksum of protocol {protocol}");
    let mut tcp = None;
    let (mut sport, mut dport) = (0, 0);
    let mut header = 8;
    match protocol {
        6 => {
            header = usize::from(segment[12] >> 4) * 4;
            let long = |at: usize| u32::from(word(segment, at)) << 16 | u32::from(word(segment, at + 2));
            tcp = Some(Tcp {
                seq: long(4),
                ack: long(8),
                flags: segment[13],
                options: options(&segment[20..header]),
            });
        }
        17 => {
            assert_eq!(usize::from(word(segment, 4)), segment.len());
            assert_ne!(word(segment, 6), 0, "UDP without a checksum");
        }
        1 | 58 => {}
        other => panic!("protocol {other}"),
    }
    if matches!(protocol, 6 | 17) {
        (sport, dport) = (word(segment, 0), word(segment, 2));
    }
    let flow = Flow { vlan, src, dst, protocol, sport, dport };
    Seen { time, len: b.len(), flow, payload: segment[header..].to_vec(), tcp }
}

fn options(mut b: &[u8]) -> Vec<(u8, Vec<u8>)> {
    let mut found = Vec::new();
    while let Some(&kind) = b.first() {
        let len = match kind {
            0 => break,
            1 => 1,
            _ => usize::from(b[1]),
        };
        if kind != 1 {
            found.push((kind, b[2..len].to_vec()));
        }
        b = &b[len..];
    }
    found
}

/// All packets of a configuration; times never run backwards.
pub fn all(config: SynthConfig) -> Vec<Seen> {
    let (packets, start) = (config.packets, config.start);
    let mut synth = Synth::new(config).unwrap();
    let (mut frame, mut seen, mut last) = (Vec::new(), Vec::new(), start);
    while let Some(time) = synth.next_packet(&mut frame) {
        assert!(time.0 >= last);
        last = time.0;
        seen.push(dissect(time.0, &frame));
    }
    assert_eq!(seen.len() as u64, packets);
    assert!(synth.next_packet(&mut frame).is_none());
    seen
}

/// Each packet's flow as a number, in order of appearance.
pub fn flow_numbers(seen: &[Seen]) -> Vec<usize> {
    let mut numbers = HashMap::new();
    seen.iter()
        .map(|p| {
            let next = numbers.len();
            *numbers.entry(&p.flow).or_insert(next)
        })
        .collect()
}

/// Lengths of the runs.
pub fn runs(flows: &[usize]) -> Vec<usize> {
    flows.chunk_by(|a, b| a == b).map(<[usize]>::len).collect()
}

/// Packets per run.
pub fn slf(flows: &[usize]) -> f64 {
    flows.len() as f64 / runs(flows).len() as f64
}

/// SLF behind an ideal reframer: a train opens with a packet, takes those of its flow that come within
/// `hold`, up to 32, and leaves at its deadline or when it is full.
pub fn slf_held(times: &[u64], flows: &[usize], hold: u64) -> f64 {
    let mut open: HashMap<usize, (u64, usize, usize)> = HashMap::new();
    let mut trains = Vec::new();
    for (i, (&time, &flow)) in times.iter().zip(flows).enumerate() {
        match open.get_mut(&flow) {
            Some((opened, _, count)) if time - *opened < hold => {
                *count += 1;
                if *count == 32 {
                    let (_, first, _) = open.remove(&flow).unwrap();
                    trains.push((time, first, flow));
                }
            }
            _ => {
                if let Some((opened, first, _)) = open.insert(flow, (time, i, 1)) {
                    trains.push((opened + hold, first, flow));
                }
            }
        }
    }
    trains.extend(open.into_iter().map(|(flow, (opened, first, _))| (opened + hold, first, flow)));
    trains.sort_unstable();
    let order: Vec<usize> = trains.iter().map(|t| t.2).collect();
    flows.len() as f64 / runs(&order).len() as f64
}

/// Every segment of every connection must make sense: the handshake first (where the trace shows it),
/// sequence numbers without gaps, acknowledgements of what the peer has sent and never going back, nothing
/// after FIN but its acknowledgement. Gives the numbers of connections seen to open and to close.
pub fn check_tcp(seen: &[Seen]) -> (usize, usize) {
    /// One direction: next sequence number, latest acknowledgement, greatest timestamp, FIN sent,
    /// SYN sent, without ACK.
    #[derive(Default, Clone)]
    struct Side {
        next: Option<u32>,
        first: u32,
        acked: Option<u32>,
        stamp: Option<u32>,
        fin: bool,
        syn: bool,
        opener: bool,
    }
    let mut sides: HashMap<Flow, Side> = HashMap::new();
    let (mut opened, mut closed) = (0, 0);
    for p in seen {
        let Some(tcp) = &p.tcp else { continue };
        let peer = sides.get(&p.flow.reversed()).cloned().unwrap_or_default();
        let me = sides.entry(p.flow.clone()).or_default();
        let syn = tcp.flags & SYN != 0;
        if syn {
            assert!(me.next.is_none() && p.payload.is_empty(), "SYN first, and once");
            me.opener = tcp.flags & ACK == 0;
            // The SYN itself may have passed before the trace began.
            let answers = if me.opener { peer.next.is_none() } else { peer.opener || peer.next.is_none() };
            assert!(answers, "SYN opens, SYN-ACK answers SYN");
            for kind in [2, 3, 4] {
                assert!(tcp.options.iter().any(|o| o.0 == kind), "option {kind} on SYN");
            }
            (me.syn, me.first) = (true, tcp.seq);
        } else {
            assert_ne!(tcp.flags & ACK, 0);
            assert!(!me.opener || peer.syn, "nothing between SYN and SYN-ACK");
        }
        if let Some(next) = me.next {
            assert_eq!(tcp.seq, next, "no gap in {:?}", p.flow);
        } else if !syn {
            me.first = tcp.seq;
        }
        if tcp.flags & ACK != 0
            && let Some(theirs) = peer.next
        {
            assert!(theirs.wrapping_sub(tcp.ack) < 1 << 31, "acknowledges what was never sent");
            assert!(
                !peer.syn || tcp.ack.wrapping_sub(peer.first) < 1 << 31,
                "acknowledges before the beginning"
            );
        }
        if tcp.flags & ACK != 0 {
            if let Some(acked) = me.acked {
                assert!(tcp.ack.wrapping_sub(acked) < 1 << 31, "acknowledgement went back");
            }
            me.acked = Some(tcp.ack);
        }
        if let Some((_, stamp)) = tcp.options.iter().find(|o| o.0 == 8) {
            let value = u32::from_be_bytes(stamp[..4].try_into().unwrap());
            let echo = u32::from_be_bytes(stamp[4..].try_into().unwrap());
            assert!(me.stamp.is_none_or(|s| value.wrapping_sub(s) < 1 << 31), "clock went back");
            me.stamp = Some(value);
            if let Some(theirs) = peer.stamp {
                assert!(theirs.wrapping_sub(echo) < 1 << 31, "echo of a stamp never sent");
            }
        }
        assert!(!me.fin || p.payload.is_empty() && tcp.flags & (SYN | FIN) == 0, "data after FIN");
        me.fin |= tcp.flags & FIN != 0;
        me.next =
            Some(tcp.seq.wrapping_add(p.payload.len() as u32 + u32::from(tcp.flags & (SYN | FIN) != 0)));
        opened += usize::from(syn && tcp.flags & ACK != 0);
        closed += usize::from(tcp.flags & FIN != 0 && peer.fin);
    }
    (opened, closed)
}

/// A hash of the bytes and times of all packets (FNV-1a).
pub fn fingerprint(config: SynthConfig) -> u64 {
    let mut synth = Synth::new(config).unwrap();
    let (mut frame, mut hash) = (Vec::new(), 0xcbf2_9ce4_8422_2325_u64);
    while let Some(time) = synth.next_packet(&mut frame) {
        let len = (frame.len() as u32).to_be_bytes();
        for &byte in time.0.to_be_bytes().iter().chain(&len).chain(&frame) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}
