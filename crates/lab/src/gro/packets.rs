//! Packets to merge: long flows of equal segments, and short trains in which now and then a packet differs in
//! one thing.

use slipstream_wire::checksum::{fill_ip, fill_transport};
use slipstream_wire::{LinkType, classify};

use crate::random::Random;

const ACK: u8 = 0x10;
const PSH: u8 = 0x08;
const CWR: u8 = 0x80;
/// Longest train of those with differences.
const LONGEST: usize = 40;

/// A packet by its fields.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    v6: bool,
    udp: bool,
    tagged: bool,
    /// The flow: source address and destination port.
    flow: u16,
    tos: u8,
    ttl: u8,
    label: u8,
    id: u16,
    df: bool,
    seq: u32,
    ack: u32,
    flags: u8,
    window: u16,
    stamp: Option<u32>,
    payload: usize,
    padding: usize,
    wrong: bool,
}

impl Packet {
    fn new(flow: u16, payload: usize) -> Self {
        Self {
            v6: false,
            udp: false,
            tagged: false,
            flow,
            tos: 0,
            ttl: 64,
            label: 0,
            id: 1,
            df: true,
            seq: 1000,
            ack: 5,
            flags: ACK,
            window: 500,
            stamp: None,
            payload,
            padding: 0,
            wrong: false,
        }
    }

    /// The next one of its flow.
    fn after(&self, grows: bool) -> Self {
        Self {
            seq: self.seq.wrapping_add(self.payload as u32),
            id: if grows { self.id.wrapping_add(1) } else { self.id },
            ..self.clone()
        }
    }

    /// Its bytes.
    fn frame(&self) -> Vec<u8> {
        let mut transport = 4000_u16.to_be_bytes().to_vec();
        transport.extend(self.flow.to_be_bytes());
        if self.udp {
            transport.extend((8 + self.payload as u16).to_be_bytes());
            transport.extend([0, 0]);
        } else {
            transport.extend(self.seq.to_be_bytes());
            transport.extend(self.ack.to_be_bytes());
            transport.extend([if self.stamp.is_some() { 0x80 } else { 0x50 }, self.flags]);
            transport.extend(self.window.to_be_bytes());
            transport.extend([0; 4]);
            if let Some(stamp) = self.stamp {
                transport.extend([1, 1, 8, 10]);
                transport.extend(stamp.to_be_bytes());
                transport.extend([0, 0, 0, 3]);
            }
        }
        transport.extend((0..self.payload).map(|n| (n as u32).wrapping_add(self.seq) as u8));
        let mut frame = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
        if self.tagged {
            frame.extend([0x81, 0, 0, 7]);
        }
        let [high, low] = self.flow.to_be_bytes();
        let protocol = if self.udp { 17 } else { 6 };
        if self.v6 {
            frame.extend([0x86, 0xdd, 0x60 | self.tos >> 4, self.tos << 4, 0, self.label]);
            frame.extend((transport.len() as u16).to_be_bytes());
            frame.extend([protocol, self.ttl]);
            for last in [high, 2] {
                frame.extend([0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, low, last]);
            }
        } else {
            frame.extend([8, 0, 0x45, self.tos]);
            frame.extend((20 + transport.len() as u16).to_be_bytes());
            frame.extend(self.id.to_be_bytes());
            frame.extend([u8::from(self.df) << 6, 0, self.ttl, protocol, 0, 0]);
            frame.extend([10, 1, high, low, 10, 2, 0, 1]);
        }
        frame.extend(transport);
        if let Ok(headers) = classify(LinkType::Ethernet, &frame) {
            fill_ip(&mut frame, &headers);
            fill_transport(&mut frame, &headers);
        }
        if let (true, Some(last)) = (self.wrong, frame.last_mut()) {
            *last ^= 0x55;
        }
        frame.resize(frame.len() + self.padding, 0);
        frame
    }
}

/// Frames of `flows` TCP connections over IPv4, `slf` of one back to back, in an order that nobody foresees;
/// each has `payload` bytes that follow those before.
pub(super) fn streams(flows: usize, slf: usize, payload: usize, packets: usize) -> Vec<Vec<u8>> {
    let mut random = Random(11);
    let mut next: Vec<Packet> = (0..flows).map(|flow| Packet::new(flow as u16 + 1, payload)).collect();
    let mut frames = Vec::with_capacity(packets);
    let mut last = usize::MAX;
    while frames.len() < packets {
        let flow = random.below(flows);
        if flow == last && flows > 1 {
            continue;
        }
        last = flow;
        for _ in 0..slf.min(packets - frames.len()) {
            if let Some(packet) = next.get_mut(flow) {
                frames.push(packet.frame());
                *packet = packet.after(true);
            }
        }
    }
    frames
}

/// The frames of trains, each of a flow of its own, number 1 and up: TCP and UDP over IPv4 and IPv6, tagged
/// or not, with and without timestamps, near where numbers wrap and not; one packet in eight is not what the
/// one before it leads to expect.
pub(super) fn trains(count: usize) -> Vec<Vec<Vec<u8>>> {
    let mut random = Random(5);
    (1..=count as u16).map(|flow| train(flow, &mut random)).collect()
}

fn train(flow: u16, random: &mut Random) -> Vec<Vec<u8>> {
    let sizes = [1, 6, 100, 536, 1200, 1400];
    let size = sizes.get(random.below(sizes.len())).copied().unwrap_or(1);
    let mut next = Packet::new(flow, size);
    next.v6 = random.below(3) == 0;
    next.udp = random.below(3) == 0;
    next.tagged = random.below(4) == 0;
    next.df = random.below(4) > 0;
    next.stamp = (!next.udp && random.below(2) == 0).then_some(9);
    if random.below(4) == 0 {
        (next.seq, next.id) = (u32::MAX - 500, u16::MAX - 3);
    }
    let grows = random.below(4) > 0;
    let even = random.below(4) == 0;
    let len = 2 + random.below(LONGEST - 1);
    let mut frames = Vec::with_capacity(len);
    for _ in 0..len {
        next.payload = size;
        let mut packet = next.clone();
        if !even && random.below(8) == 0 {
            differ(&mut packet, random);
        }
        let last = packet.udp && (packet.wrong || packet.padding > 0);
        next = Packet { payload: packet.payload, ..next }.after(grows);
        frames.push(packet.frame());
        // The kernel has datagrams overtake one that is not right.
        if last {
            break;
        }
    }
    frames
}

/// Changes one thing.
fn differ(packet: &mut Packet, random: &mut Random) {
    match random.below(14) {
        0 => packet.payload = 1 + random.below(packet.payload),
        1 => packet.payload += 10,
        2 => packet.flags |= PSH,
        3 => packet.flags |= CWR,
        4 => packet.flags |= 0x40,
        5 => packet.ack += 1,
        6 => packet.window += 1,
        7 => packet.stamp = packet.stamp.map(|stamp| stamp + 1),
        8 => packet.seq = packet.seq.wrapping_add(1),
        9 => packet.id = packet.id.wrapping_add(7),
        10 => packet.ttl -= 1,
        11 => packet.tos = 4,
        12 => packet.wrong = true,
        _ => packet.padding = 4,
    }
}
