//! Packets that say who they are, and runs of the stage over them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing, unreachable_pub)]

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

use slipstream::io::capture::{CaptureError, Interface};
use slipstream::pool::{PacketMeta, Pool};
use slipstream::reframe::ReframeConfig;
use slipstream::runtime::{Preload, Replay, ReplayReport, Sink};
use slipstream::time::Nanos;
use slipstream_core::batch::Arrivals;
use slipstream_core::source::{LiveSource, Source, SourceError};

/// A source of one Ethernet interface that has packets only where it is asked for those that are there.
pub struct Polled<L> {
    interface: [Interface; 1],
    live: L,
}

impl<L> Polled<L> {
    pub fn new(interface: &str, live: L) -> Self {
        Self {
            interface: [Interface { link_number: 1, snap_len: 0, name: Some(interface.to_owned()) }],
            live,
        }
    }
}

impl<L: LiveSource> Source for Polled<L> {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.live.poll(pool, arrivals, max, Nanos(0))
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(&mut self.live)
    }
}

/// The kind of a packet, as far as the stage can tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Udp,
    Tcp {
        syn: bool,
    },
    /// Not IP.
    Arp,
}

/// A packet to be sent through.
#[derive(Clone, Copy, Debug)]
pub struct Packet {
    pub time: u64,
    pub flow: u16,
    pub kind: Kind,
    /// Bytes of the frame, at least 60.
    pub len: usize,
}

/// An Ethernet frame that carries `id` in its last four bytes; the flow is in the source port. One in four of
/// those over UDP has an IP option, so that packets of a flow differ in where their layers begin.
pub fn frame(packet: &Packet, id: u32) -> Vec<u8> {
    let mut f = vec![0u8; packet.len.max(60)];
    let len = f.len();
    f[12..14].copy_from_slice(&if packet.kind == Kind::Arp { [8, 6] } else { [8, 0] });
    f[14] = 0x45;
    f[16..18].copy_from_slice(&((len - 14) as u16).to_be_bytes());
    f[22] = 64;
    f[23] = if packet.kind == Kind::Udp { 17 } else { 6 };
    f[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 0, 0, 2]);
    let option = packet.kind == Kind::Udp && len % 4 == 3;
    let l4 = if option { 38 } else { 34 };
    if option {
        f[14] = 0x46;
        f[34..38].copy_from_slice(&[1, 1, 1, 0]);
    }
    f[l4..l4 + 2].copy_from_slice(&packet.flow.to_be_bytes());
    f[l4 + 2..l4 + 4].copy_from_slice(&80u16.to_be_bytes());
    f[46] = 0x50;
    f[47] = if packet.kind == (Kind::Tcp { syn: true }) { 2 } else { 16 };
    f[len - 4..].copy_from_slice(&id.to_be_bytes());
    f
}

/// Which packet a frame is.
pub fn id_of(data: &[u8]) -> usize {
    u32::from_be_bytes(data[data.len() - 4..].try_into().unwrap()) as usize
}

/// Remembers what leaves, and when.
#[derive(Default)]
pub struct Collect(pub Vec<(u64, usize)>);

impl Sink for Collect {
    fn interface(&mut self, _: &Interface) -> Result<(), CaptureError> {
        Ok(())
    }

    fn packet(&mut self, release: Nanos, _: PacketMeta, data: &[u8]) -> Result<(), CaptureError> {
        self.0.push((release.0, id_of(data)));
        Ok(())
    }
}

/// Sends packets through a stage; returns (time of release, index of the packet) in the order of release.
pub fn run(config: &ReframeConfig, workers: usize, packets: &[Packet]) -> (Vec<(u64, usize)>, ReplayReport) {
    let frames: Vec<_> =
        packets.iter().enumerate().map(|(i, p)| (Nanos(p.time), frame(p, i as u32))).collect();
    let mut pool = Pool::new();
    let source = Preload::from_frames(frames.iter().map(|(t, f)| (*t, f.as_slice())), &mut pool, 1);
    let sink = Arc::new(Mutex::new(Collect::default()));
    // SAFETY: the source is the library's, with the pool that it was made with, and the sink reads packets
    // that it was given.
    let replay = unsafe { Replay::new(config).unwrap().workers(workers).vouched() };
    let report = replay.run(source, pool, Arc::clone(&sink), &mut |_| ControlFlow::Continue(())).unwrap();
    let left = std::mem::take(&mut sink.lock().unwrap().0);
    (left, report)
}
