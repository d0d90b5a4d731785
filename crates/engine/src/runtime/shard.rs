//! A replay on several cores, with a result that depends on the number of workers but never on scheduling.
//!
//! The capture is cut into chunks. A symmetric RSS hash gives every flow to one worker; each worker has its own stage,
//! pool and flow table, shares nothing, and works through its part of the chunk in virtual time. What the workers emit is
//! merged by (time of release, order of the policy, position of the first packet): the order in which one worker
//! alone would have emitted it, but for what a full buffer or a bypass changes.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use slipstream_wire::{FlowKey, LinkType, ToeplitzKey, rss_hash};

use super::replay::{ReplayError, ReplayReport, Tick};
use super::sink::Sink;
use super::source::{Classifier, Source};
use crate::batch::{Arrivals, BATCH, Batch, Train};
use crate::clock::Meter;
use crate::frame::Frame;
use crate::io::capture::Interface;
use crate::pool::{PacketMeta, Pool};
use crate::reframe::{Output, Reframe, ReframeConfig, ReframeStats};
use crate::time::Nanos;

/// Packets of one chunk.
const CHUNK: usize = 1 << 15;
/// Chunks that are under way at once: one is worked on while the next is read.
const UNDER_WAY: usize = 2;

#[derive(Clone, Copy, Debug)]
struct Item {
    arrival: Nanos,
    meta: PacketMeta,
    sequence: u64,
    len: u32,
}

/// One worker's part of a chunk; the packets' bytes are back to back.
#[derive(Debug, Default)]
struct Work {
    items: Vec<Item>,
    bytes: Vec<u8>,
    links: Vec<LinkType>,
    /// End of the chunk; `None` after the last one: time runs on.
    until: Option<Nanos>,
}

/// A chunk as it is dealt out: one part a worker, and the interfaces that came up with it.
struct Chunk {
    parts: Vec<Work>,
    new: Vec<Interface>,
}

/// What a worker made of it.
#[derive(Debug, Default)]
struct Done {
    trains: Vec<Train>,
    items: Vec<(PacketMeta, u32)>,
    bytes: Vec<u8>,
    elapsed_ns: u64,
    cpu_ns: u64,
    stats: Option<ReframeStats>,
}

struct Collect<'a> {
    done: &'a mut Done,
    meter: &'a Meter,
    keep_bytes: bool,
}

impl Output for Collect<'_> {
    fn emit(&mut self, pool: &mut Pool, batch: &mut Batch) {
        self.meter.pause(|| {
            self.done.trains.extend_from_slice(&batch.trains);
            for frame in &batch.frames {
                if self.keep_bytes {
                    self.done.items.push((pool.meta(frame.buf), frame.len));
                    self.done.bytes.extend_from_slice(pool.data(frame.buf, frame.len));
                }
                pool.free(frame.buf);
            }
        });
    }
}

struct Worker {
    stage: Reframe,
    pool: Pool,
    classifier: Classifier,
    arrivals: Arrivals,
    keep_bytes: bool,
}

impl Worker {
    fn run(mut self, work: &Receiver<Work>, done: &Sender<Done>) {
        while let Ok(work) = work.recv() {
            let last = work.until.is_none();
            if done.send(self.chunk(&work)).is_err() || last {
                return;
            }
        }
    }

    fn chunk(&mut self, work: &Work) -> Done {
        let mut done = Done::default();
        let meter = Meter::new();
        self.classifier.links(&work.links);
        let mut bytes = work.bytes.as_slice();
        let mut packets: Vec<Frame> = Vec::with_capacity(work.items.len());
        for item in &work.items {
            let (data, rest) = bytes.split_at_checked(item.len as usize).unwrap_or_default();
            bytes = rest;
            packets.push(Frame::unclassified(item.arrival, self.pool.insert(item.meta, data), item.len));
        }
        let mut out = Collect { done: &mut done, meter: &meter, keep_bytes: self.keep_bytes };
        meter.start();
        for (frames, items) in packets.chunks(BATCH).zip(work.items.chunks(BATCH)) {
            self.arrivals.frames.extend_from_slice(frames);
            self.arrivals.positions.extend(items.iter().map(|i| i.sequence));
            self.classifier.classify(&self.pool, &mut self.arrivals);
            self.stage.process(&mut self.pool, &mut self.arrivals, &mut out);
        }
        match work.until {
            Some(until) => self.stage.advance(&mut self.pool, until, &mut out),
            None => self.stage.finish(&mut self.pool, &mut out),
        }
        meter.stop();
        if work.until.is_none() {
            done.stats = Some(self.stage.stats());
        }
        (done.elapsed_ns, done.cpu_ns) = (meter.elapsed_ns(), meter.cpu_ns());
        done
    }
}

/// What is bounded, shared out: the shares add up to the whole.
fn share(config: &ReframeConfig, workers: usize, worker: usize) -> ReframeConfig {
    let part = |all: u64| all / workers as u64 + u64::from((worker as u64) < all % workers as u64);
    ReframeConfig {
        capacity: part(config.capacity.into()) as u32,
        capacity_bytes: part(config.capacity_bytes).max(1),
        flows: part(config.flows.into()).max(1) as u32,
        ..config.clone()
    }
}

/// Cuts chunks and deals them out.
struct Dealer<'a> {
    source: &'a mut dyn Source,
    pool: Pool,
    arrivals: Arrivals,
    classifier: Classifier,
    links: Vec<LinkType>,
    last: Option<FlowKey>,
    runs: u64,
    key: ToeplitzKey,
}

impl Dealer<'_> {
    /// The next chunk; `None` at the end.
    fn next(&mut self, workers: usize) -> Result<Option<Chunk>, ReplayError> {
        let n = self.source.fill(&mut self.pool, &mut self.arrivals, CHUNK)?;
        let all = self.source.interfaces();
        let new: Vec<Interface> = all.iter().skip(self.links.len()).cloned().collect();
        self.links.extend(new.iter().map(|i| LinkType::from_number(i.link_number as u16)));
        self.classifier.links(&self.links);
        let Some(end) = self.arrivals.frames.last().map(|f| f.arrival).filter(|_| n > 0) else {
            return Ok(None);
        };
        self.classifier.classify(&self.pool, &mut self.arrivals);
        let part = || Work { until: Some(end), links: self.links.clone(), ..Work::default() };
        let mut parts: Vec<Work> = (0..workers).map(|_| part()).collect();
        let Arrivals { frames, keys, first, .. } = &self.arrivals;
        for ((frame, key), sequence) in frames.iter().zip(keys).zip(*first..) {
            let mut to = 0;
            if frame.info.classified() {
                to = rss_hash(key, &self.key) as usize % workers;
                self.runs += u64::from(self.last != Some(*key));
                self.last = Some(*key);
            }
            if let Some(work) = parts.get_mut(to) {
                let meta = self.pool.meta(frame.buf);
                work.items.push(Item { arrival: frame.arrival, meta, sequence, len: frame.len });
                work.bytes.extend_from_slice(self.pool.data(frame.buf, frame.len));
            }
            self.pool.free(frame.buf);
        }
        self.arrivals.clear();
        Ok(Some(Chunk { parts, new }))
    }
}

/// Merges what the workers emitted and counts the runs.
struct Merger<'a> {
    sink: &'a mut dyn Sink,
    last: Option<usize>,
    runs: u64,
    report: ReplayReport,
}

impl Merger<'_> {
    fn merge(&mut self, parts: &[Done]) -> Result<(), ReplayError> {
        let mut heads: Vec<_> =
            parts.iter().map(|p| (p.trains.as_slice(), p.items.as_slice(), p.bytes.as_slice())).collect();
        loop {
            let next = heads.iter().enumerate().filter_map(|(i, (trains, ..))| Some((i, trains.first()?)));
            let Some((i, train)) = next.min_by_key(|(i, t)| (t.release, t.order, t.sequence, *i)) else {
                break;
            };
            let train = *train;
            if train.flow != Frame::NO_FLOW {
                self.runs += u64::from(!(train.continues && self.last == Some(i)));
                self.last = Some(i);
            }
            let Some((trains, items, bytes)) = heads.get_mut(i) else { break };
            *trains = trains.get(1..).unwrap_or_default();
            if self.sink.discards() {
                continue;
            }
            let (out, rest) = items.split_at_checked(train.len as usize).unwrap_or_default();
            *items = rest;
            for (meta, len) in out {
                let (data, rest) = bytes.split_at_checked(*len as usize).unwrap_or_default();
                *bytes = rest;
                self.sink.packet(train.release, *meta, data).map_err(ReplayError::Sink)?;
            }
        }
        self.report.elapsed_ns += parts.iter().map(|p| p.elapsed_ns).max().unwrap_or(0);
        self.report.cpu_ns += parts.iter().map(|p| p.cpu_ns).sum::<u64>();
        parts.iter().filter_map(|p| p.stats.as_ref()).for_each(|s| self.report.stats.merge(s));
        Ok(())
    }
}

/// The channels to and from one worker.
type Lines = (Sender<Work>, Receiver<Done>);

fn collect(lines: &[Lines]) -> Result<Vec<Done>, ReplayError> {
    let gone = |_| ReplayError::Worker("it ended before its work did".into());
    lines.iter().map(|(_, done)| done.recv().map_err(gone)).collect()
}

pub(super) fn run(
    config: &ReframeConfig,
    workers: usize,
    source: &mut dyn Source,
    pool: Pool,
    sink: &mut dyn Sink,
    tick: &mut Tick<'_>,
) -> Result<ReplayReport, ReplayError> {
    let keep_bytes = !sink.discards();
    // A worker that may hold nothing would be of no use.
    let workers = workers.min(config.capacity as usize);
    thread::scope(|scope| {
        let mut lines: Vec<Lines> = Vec::with_capacity(workers);
        for n in 0..workers {
            let worker = Worker {
                stage: Reframe::new(&share(config, workers, n))?,
                pool: Pool::new(),
                classifier: Classifier::new(config.encapsulation),
                arrivals: Arrivals::default(),
                keep_bytes,
            };
            let (work, work_in) = channel();
            let (done, done_in) = channel();
            let body = move || worker.run(&work_in, &done);
            thread::Builder::new()
                .name(format!("worker-{n}"))
                .spawn_scoped(scope, body)
                .map_err(|e| ReplayError::Worker(e.to_string()))?;
            lines.push((work, done_in));
        }
        let mut dealer = Dealer {
            source,
            pool,
            arrivals: Arrivals::default(),
            classifier: Classifier::new(config.encapsulation),
            links: Vec::new(),
            last: None,
            runs: 0,
            key: ToeplitzKey::new(ToeplitzKey::SYMMETRIC),
        };
        let mut merger = Merger { sink, last: None, runs: 0, report: ReplayReport::default() };
        let (mut under_way, mut interrupted) = (0, false);
        while let Some(Chunk { parts, new }) = dealer.next(workers)? {
            new.iter().try_for_each(|i| merger.sink.interface(i)).map_err(ReplayError::Sink)?;
            for ((line, _), part) in lines.iter().zip(parts) {
                // A worker that is gone is noticed when its result is missing.
                let _ = line.send(part);
            }
            under_way += 1;
            if under_way == UNDER_WAY {
                merger.merge(&collect(&lines)?)?;
                under_way -= 1;
            }
            if tick(dealer.source.progress()).is_break() {
                interrupted = true;
                break;
            }
        }
        for (line, _) in &lines {
            let _ = line.send(Work { links: dealer.links.clone(), ..Work::default() });
        }
        for _ in 0..=under_way {
            merger.merge(&collect(&lines)?)?;
        }
        let mut report = merger.report;
        report.interrupted = interrupted;
        report.stats.runs_in = dealer.runs;
        report.stats.runs_out = merger.runs;
        report.clock_backwards = dealer.source.clock_backwards();
        Ok(report)
    })
}
