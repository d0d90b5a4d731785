//! Packets in memory that go through a pipeline again and again, only the pipeline's own time being counted:
//! what benchmarks and the lab measure functions with.
//!
//! Functions change packets, so that each turn starts from fresh copies, made outside of what is timed. They
//! lie in the cache then, as they do when a network card has put them there.

use slipstream_wire::{LinkType, ToeplitzKey, classify, rss_hash};

use super::feeds::into_trains;
use super::graph::{Pipeline, StageReport};
use crate::stages::with_heavy_flows;
use slipstream_core::batch::{Arrivals, BATCH, Batch};
use slipstream_core::classify::Classifier;
use slipstream_core::clock;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::stage::Output;
use slipstream_core::stage::StageError;
use slipstream_core::time::Nanos;
use slipstream_reframe::{Reframe, ReframeConfig};

/// A packet of the traffic.
#[derive(Clone, Copy, Debug)]
struct Kept {
    time: Nanos,
    /// The time of its arrival before anybody held it.
    arrived: Nanos,
    at: usize,
    len: u32,
    original_len: u32,
}

/// Traffic in memory.
#[derive(Clone, Debug, Default)]
pub struct Traffic {
    packets: Vec<Kept>,
    bytes: Vec<u8>,
}

/// Times of a number of turns.
#[derive(Clone, Debug, Default)]
pub struct Timing {
    /// Packets of a turn.
    pub packets: u64,
    /// CPU time of the pipeline, parsing included, in ns, of every turn.
    pub turns_ns: Vec<u64>,
}

impl Timing {
    /// Adds turns of the same traffic.
    pub fn extend(&mut self, more: &Self) {
        self.packets = more.packets;
        self.turns_ns.extend_from_slice(&more.turns_ns);
    }

    /// Time a packet in the turn that took least, in ns.
    #[must_use]
    pub fn least(&self) -> f64 {
        self.at(0)
    }

    /// Time a packet in the turn in the middle, in ns.
    #[must_use]
    pub fn median(&self) -> f64 {
        self.at(self.turns_ns.len() / 2)
    }

    fn at(&self, place: usize) -> f64 {
        let mut sorted = self.turns_ns.clone();
        sorted.sort_unstable();
        sorted.get(place).copied().unwrap_or(0) as f64 / self.packets.max(1) as f64
    }
}

impl Traffic {
    /// Adds an Ethernet frame that arrives at `time`, no earlier than those before, of which `data` is kept.
    pub fn push(&mut self, time: Nanos, original_len: u32, data: &[u8]) {
        self.push_held(time, time, original_len, data);
    }

    fn push_held(&mut self, time: Nanos, arrived: Nanos, original_len: u32, data: &[u8]) {
        let at = self.bytes.len();
        self.bytes.extend_from_slice(data);
        self.packets.push(Kept { time, arrived, at, len: data.len() as u32, original_len });
    }

    /// Packets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.packets.len()
    }

    /// Returns true if there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Mean length on the wire, in bytes.
    #[must_use]
    pub fn mean_len(&self) -> f64 {
        let all: u64 = self.packets.iter().map(|p| u64::from(p.original_len)).sum();
        all as f64 / self.packets.len().max(1) as f64
    }

    /// The times at which packets come, and those at which they came before a reframer held them.
    pub fn times(&self) -> impl Iterator<Item = (Nanos, Nanos)> {
        self.packets.iter().map(|p| (p.time, p.arrived))
    }

    /// The packets of each of `workers`, as a symmetric RSS hash deals them out; what has no flow goes to the
    /// first.
    #[must_use]
    pub fn shared_out(&self, workers: usize) -> Vec<Self> {
        let key = ToeplitzKey::new(ToeplitzKey::SYMMETRIC);
        let mut shares = vec![Self::default(); workers.max(1)];
        for packet in &self.packets {
            let data = self.data(packet);
            let hash = classify(LinkType::Ethernet, data).map_or(0, |h| rss_hash(&h.key, &key));
            let worker = hash as usize % workers.max(1);
            if let Some(share) = shares.get_mut(worker) {
                share.push_held(packet.time, packet.arrived, packet.original_len, data);
            }
        }
        shares
    }

    /// Mean packets of a flow back to back.
    #[must_use]
    pub fn slf(&self) -> f64 {
        let key = |p: &Kept| classify(LinkType::Ethernet, self.data(p)).ok().map(|h| h.key);
        let mut last = None;
        let mut runs = 0u64;
        for packet in &self.packets {
            let key = key(packet);
            runs += u64::from(key.is_none() || key != last);
            last = key;
        }
        self.packets.len() as f64 / runs.max(1) as f64
    }

    fn data(&self, packet: &Kept) -> &[u8] {
        self.bytes.get(packet.at..packet.at + packet.len as usize).unwrap_or_default()
    }

    /// The same packets as a reframer in front would deliver them.
    ///
    /// # Errors
    /// A setting that is out of range.
    pub fn reframed(&self, config: &ReframeConfig) -> Result<Self, slipstream_reframe::ConfigError> {
        let mut stage = Reframe::new(&with_heavy_flows(config))?;
        let mut pool = Pool::new();
        let mut classifier = Classifier::default();
        classifier.links(&[LinkType::Ethernet]);
        let mut arrivals = Arrivals::default();
        let mut out = Collect { traffic: Self::default() };
        for (n, packets) in self.packets.chunks(BATCH).enumerate() {
            self.load(packets, 0, (n * BATCH) as u64, &mut pool, &mut arrivals);
            classifier.classify(&pool, &mut arrivals);
            stage.process(&mut pool, &mut arrivals, &mut out);
        }
        stage.finish(&mut pool, &mut out);
        Ok(out.traffic)
    }

    fn load(&self, packets: &[Kept], shift: u64, first: u64, pool: &mut Pool, arrivals: &mut Arrivals) {
        arrivals.clear();
        arrivals.first = first;
        for packet in packets {
            let time = packet.time.after(shift);
            let arrived = packet.arrived.after(shift);
            let meta = PacketMeta { original_len: packet.original_len, interface: 0, time: arrived };
            let buf = pool.insert(meta, self.data(packet));
            arrivals.frames.push(Frame::unclassified(time, buf, packet.len));
        }
    }

    /// Runs the traffic through a pipeline `turns` times after one turn that doesn't count, `at_once` packets
    /// at a time (up to [`BATCH`]); time goes on from turn to turn.
    ///
    /// # Errors
    /// A stage that can't write.
    pub fn rehearse(
        &self,
        pipeline: &mut Pipeline,
        turns: usize,
        at_once: usize,
    ) -> Result<(Timing, Vec<StageReport>), StageError> {
        pipeline.untimed();
        pipeline.interfaces(&[Interface { link_number: 1, snap_len: 0, name: None }])?;
        let mut bench = Bench {
            pool: Pool::new(),
            classifier: Classifier::default(),
            batch: Batch::new(),
            ready: Vec::new(),
        };
        bench.classifier.links(&[LinkType::Ethernet]);
        let (first, last) = (self.packets.first().map(|p| p.time), self.packets.last().map(|p| p.time));
        let period = last.unwrap_or_default().since(first.unwrap_or_default()) + 1_000_000;
        let mut turns_ns = Vec::with_capacity(turns);
        for turn in 0..=turns as u64 {
            let ns = bench.turn(self, pipeline, turn, turn * period, at_once.clamp(1, BATCH));
            if turn > 0 {
                turns_ns.push(ns);
            }
        }
        let timing = Timing { packets: self.packets.len() as u64, turns_ns };
        Ok((timing, pipeline.reports()))
    }
}

struct Bench {
    pool: Pool,
    classifier: Classifier,
    batch: Batch,
    /// Packets that lie ready, a batch each.
    ready: Vec<Arrivals>,
}

/// Packets that lie ready at a time: few enough for the second-level cache, many enough for the clock not to
/// matter.
const READY: usize = 1024;

impl Bench {
    /// One turn; returns the pipeline's CPU time in ns.
    fn turn(
        &mut self,
        traffic: &Traffic,
        pipeline: &mut Pipeline,
        turn: u64,
        shift: u64,
        at_once: usize,
    ) -> u64 {
        let takes_arrivals = pipeline.takes_arrivals(0);
        let mut position = turn * traffic.packets.len() as u64;
        let mut ns = 0;
        for packets in traffic.packets.chunks(READY) {
            let batches = packets.chunks(at_once);
            self.ready.resize_with(batches.len(), Arrivals::default);
            for (packets, arrivals) in batches.zip(&mut self.ready) {
                traffic.load(packets, shift, position, &mut self.pool, arrivals);
                position += packets.len() as u64;
            }
            let start = clock::thread_cpu_ns();
            if turn == 0 {
                self.warm_up(pipeline, takes_arrivals);
            } else {
                self.pass(pipeline, takes_arrivals);
            }
            ns += clock::thread_cpu_ns() - start;
        }
        // Packets that are held leave before the next turn begins.
        let end = traffic.packets.last().map_or(Nanos(0), |p| p.time.after(shift));
        let start = clock::thread_cpu_ns();
        pipeline.run_to(&mut self.pool, end.after(900_000));
        ns + (clock::thread_cpu_ns() - start)
    }
}

impl Bench {
    /// A turn that counts. Not inlined: profilers tell it from the first one by its name.
    #[inline(never)]
    fn pass(&mut self, pipeline: &mut Pipeline, takes_arrivals: bool) {
        self.through(pipeline, takes_arrivals);
    }

    /// The turn that fills the tables of the functions.
    #[inline(never)]
    fn warm_up(&mut self, pipeline: &mut Pipeline, takes_arrivals: bool) {
        // The compiler makes one function of two that are alike.
        std::hint::black_box(&pipeline);
        self.through(pipeline, takes_arrivals);
    }

    /// Sends the prepared packets through the pipeline.
    #[inline(always)]
    fn through(&mut self, pipeline: &mut Pipeline, takes_arrivals: bool) {
        for arrivals in &mut self.ready {
            let now = arrivals.frames.last().map_or(Nanos(0), |f| f.arrival);
            if takes_arrivals {
                pipeline.arrive(0, &mut self.pool, now, arrivals);
            } else {
                self.classifier.classify(&self.pool, arrivals);
                into_trains(arrivals, &mut self.batch);
                pipeline.push(0, &mut self.pool, now, &mut self.batch);
                self.batch.clear();
            }
        }
    }
}

/// Keeps what comes out.
struct Collect {
    traffic: Traffic,
}

impl Output for Collect {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        for (train, frames) in batch.iter() {
            for frame in frames {
                let meta = pool.meta(frame.buf);
                self.traffic.push_held(
                    train.release.max(frame.arrival),
                    meta.time,
                    meta.original_len,
                    pool.data(frame.buf, frame.len),
                );
                pool.free(frame.buf);
            }
        }
        batch.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::Plan;
    use slipstream_io::synth::{Synth, SynthConfig};

    fn traffic() -> Traffic {
        let mut synth =
            Synth::new(SynthConfig { flows: 64, packets: 5000, ..SynthConfig::default() }).unwrap();
        let mut traffic = Traffic::default();
        let mut frame = Vec::new();
        while let Some(time) = synth.next_packet(&mut frame) {
            traffic.push(time, frame.len() as u32, &frame[..60]);
        }
        traffic
    }

    #[test]
    fn every_packet_goes_through_in_every_turn() {
        let traffic = traffic();
        for graph in ["counter", "reframe(hold=20us) -> counter"] {
            let plan =
                Plan::from_graph(graph, Some(("null", vec![])), Some(("null", vec![])), "".as_ref()).unwrap();
            let mut pipeline = plan.build(1).unwrap();
            let (timing, reports) = traffic.rehearse(&mut pipeline, 3, 64).unwrap();
            assert_eq!(timing.packets, 5000);
            let counter = reports.iter().find(|r| r.name == "counter").unwrap();
            assert_eq!(counter.counters[0], ("packets_counted", 20_000), "{graph}");
        }
    }

    #[test]
    fn a_reframer_in_front_changes_order_and_times_alone() {
        let traffic = traffic();
        let mut config = ReframeConfig::default();
        config.default.hold_ns = 640_000;
        let after = traffic.reframed(&config).unwrap();
        assert_eq!(after.len(), traffic.len());
        assert!(after.slf() > 2.0 * traffic.slf(), "{} to {}", traffic.slf(), after.slf());
        let sorted = |t: &Traffic| {
            let mut all: Vec<Vec<u8>> = t.packets.iter().map(|p| t.data(p).to_vec()).collect();
            all.sort();
            all
        };
        assert_eq!(sorted(&after), sorted(&traffic));
        assert!(after.packets.is_sorted_by_key(|p| p.time));
    }
}
