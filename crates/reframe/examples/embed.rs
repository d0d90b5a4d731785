//! The reframer inside another program: a toy data plane with its own buffers, its own clock and its own idea
//! of a packet.
//!
//! `cargo run -p slipstream-reframe --example embed` sends packets of forty flows through, mixed, and says
//! how many runs of one flow they came as and left as.

use std::error::Error;

use slipstream_reframe::embed::{Packet, Reframer, Train};
use slipstream_reframe::{ClassSettings, Nanos, ReframeConfig, Rule};

/// The buffers of this data plane, some of them in use. A handle is the number of a buffer.
struct Buffers {
    bytes: Vec<Vec<u8>>,
    free: Vec<u32>,
}

/// The packets that left: the last flow, and runs of one flow so far.
#[derive(Default)]
struct Wire {
    last: Option<u8>,
    packets: u64,
    runs: u64,
}

impl Wire {
    fn send(&mut self, bytes: &[u8]) {
        let flow = bytes.get(29).copied();
        self.packets += 1;
        self.runs += u64::from(flow != self.last);
        self.last = flow;
    }
}

/// Writes a UDP packet of a flow into a buffer: Ethernet, IPv4 from 10.0.0.FLOW to 10.0.0.99.
fn receive(bytes: &mut Vec<u8>, flow: u8) {
    bytes.clear();
    bytes.extend_from_slice(&[2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    bytes.extend_from_slice(&[0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, flow, 10, 0, 0, 99]);
    bytes.extend_from_slice(&[19, 136, 0, 53, 0, 26, 0, 0]);
    bytes.resize(60, 0);
}

/// Sends a train and gives its buffers back.
fn send(train: Train<'_>, buffers: &mut Buffers, wire: &mut Wire) {
    for &handle in train.handles {
        if let Some(bytes) = buffers.bytes.get(handle as usize) {
            wire.send(bytes);
        }
        buffers.free.push(handle);
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let config = ReframeConfig {
        default: ClassSettings { hold_ns: 20_000, hold_min_ns: None, burst: 16, weight: 1, bypass: false },
        bypass: Rule::parse("tcp syn or udp port 123")?,
        capacity: 1024,
        ..ReframeConfig::default()
    };
    let mut reframer = Reframer::new(&config)?;
    let mut buffers = Buffers { bytes: vec![Vec::new(); 4096], free: (0..4096).collect() };
    let (mut came, mut left) = (Wire::default(), Wire::default());

    let (mut now, mut random) = (0_u64, 1_u64);
    for _ in 0..2000 {
        // A burst arrives, mixed, 32 packets of forty flows; the clock is read once for all.
        now += 2000;
        let mut burst = Vec::with_capacity(32);
        while burst.len() < 32 {
            let Some(handle) = buffers.free.pop() else { break };
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if let Some(bytes) = buffers.bytes.get_mut(handle as usize) {
                receive(bytes, (random >> 33) as u8 % 40);
                came.send(bytes);
            }
            burst.push(handle);
        }
        let bytes = |handle: &u32| buffers.bytes.get(*handle as usize).map(Vec::as_slice).unwrap_or_default();
        reframer.push_burst(Nanos(now), burst.iter().map(|handle| Packet::new(*handle, bytes(handle))))?;
        while let Some(train) = reframer.poll(Nanos(now)) {
            send(train, &mut buffers, &mut left);
        }
    }
    reframer.drain();
    while let Some(train) = reframer.poll(Nanos(now)) {
        send(train, &mut buffers, &mut left);
    }

    let slf = |wire: &Wire| wire.packets as f64 / wire.runs as f64;
    println!(
        "{} packets came, {:.2} a run; {} left, {:.2} a run",
        came.packets,
        slf(&came),
        left.packets,
        slf(&left)
    );
    println!("longest wait: {} ns", reframer.stats().total().delay.max().unwrap_or(0));
    if came.packets != left.packets || slf(&left) < 2.0 * slf(&came) {
        return Err("packets are missing, or no trains came out".into());
    }
    Ok(())
}
