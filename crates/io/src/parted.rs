//! A capture of which several threads read parts, and store and classify their packets.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};

use slipstream_core::batch::Arrivals;
use slipstream_core::classify::classify_one;
use slipstream_core::clock::thread_cpu_ns;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::Pool;
use slipstream_core::source::SourceError;
use slipstream_wire::FlowKey;

use crate::capture::parts::Line;
use crate::capture::{CaptureReader, Part, Parts};
use crate::sources::{Order, store};

/// Bytes of a part: its packets and what becomes of them are to stay in a cache until they have gone.
const BYTES: u64 = 64 * 1024;
/// Parts for each thread that wait at most.
const WAITING: usize = 4;

/// The packets of a part.
#[derive(Debug, Default)]
struct Stored {
    frames: Vec<Frame>,
    keys: Vec<FlowKey>,
    grown: Vec<(usize, usize)>,
}

impl Stored {
    fn fill(&mut self, part: &Part, pool: &mut Pool, classify: bool) {
        self.frames.clear();
        self.keys.clear();
        self.grown.clear();
        self.grown.extend_from_slice(part.grown());
        for record in part.records() {
            let buf = store(pool, &record);
            let mut frame = Frame::unclassified(record.time, buf, record.data.len() as u32);
            if classify {
                self.keys.push(classify_one(&mut frame, record.link, record.data));
            }
            self.frames.push(frame);
        }
        // Others are to know how many packets there are.
        pool.settle();
    }
}

/// Threads that store packets. None goes on when this is gone.
#[derive(Debug)]
struct Crew {
    line: Arc<Line<Arc<Parts>, Stored>>,
    threads: Vec<JoinHandle<()>>,
}

impl Crew {
    fn join(&mut self) {
        self.line.stop();
        for thread in self.threads.drain(..) {
            if let Err(panic) = thread.join()
                && !std::thread::panicking()
            {
                std::panic::resume_unwind(panic);
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.join();
    }
}

/// The part of [`CaptureSource`](crate::sources::CaptureSource) that several threads work for.
#[derive(Debug)]
pub(crate) struct Parted {
    crew: Crew,
    parts: Arc<Parts>,
    cpu_ns: Arc<AtomicU64>,
    classify: bool,
    /// What is handed out now, and how much of it was.
    current: Stored,
    at: usize,
    interfaces: Vec<Interface>,
    part: Part,
}

impl Parted {
    /// Starts a thread for each pool; gives the reader back of a capture that one thread has to read.
    pub(crate) fn new(
        reader: CaptureReader,
        pools: Vec<Pool>,
        classify: bool,
    ) -> Result<Self, Box<CaptureReader>> {
        let interfaces = reader.interfaces().to_vec();
        let parts = Arc::new(Parts::of(reader, BYTES)?);
        let line = Arc::new(Line::new(Arc::clone(&parts), (pools.len() + 1) * WAITING));
        let cpu_ns = Arc::new(AtomicU64::new(0));
        let start = |mut pool: Pool| {
            let (line, cpu_ns) = (Arc::clone(&line), Arc::clone(&cpu_ns));
            let work = move || {
                line.work(|part, stored: &mut Stored| stored.fill(part, &mut pool, classify));
                cpu_ns.fetch_add(thread_cpu_ns(), Ordering::Relaxed);
            };
            // Without the thread its work is done by the others.
            Builder::new().name("parts".into()).spawn(work).ok()
        };
        let threads = pools.into_iter().filter_map(start).collect();
        let (current, part, crew) = (Stored::default(), Part::default(), Crew { line, threads });
        Ok(Self { crew, parts, cpu_ns, classify, current, at: 0, interfaces, part })
    }

    /// Appends `max` packets, fewer only at the end.
    pub(crate) fn fill(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        order: &mut Order,
    ) -> usize {
        let mut n = 0;
        while n < max {
            if self.at == self.current.frames.len() {
                self.crew.line.give_back(std::mem::take(&mut self.current));
                let classify = self.classify;
                let make = |part: &Part, stored: &mut Stored| stored.fill(part, pool, classify);
                let Some(next) = self.crew.line.next(&mut self.part, make) else { break };
                (self.current, self.at) = (next, 0);
                continue;
            }
            let end = self.current.frames.len().min(self.at + max - n);
            let frames = self.current.frames.get(self.at..end).unwrap_or_default();
            for frame in frames {
                arrivals.frames.push(Frame { arrival: order.arrive(frame.arrival), ..*frame });
            }
            arrivals.keys.extend_from_slice(self.current.keys.get(self.at..end).unwrap_or_default());
            if let Some((_, known)) = self.current.grown.iter().rfind(|(at, _)| *at < end)
                && *known > self.interfaces.len()
            {
                self.interfaces = self.parts.interfaces(*known);
            }
            n += end - self.at;
            self.at = end;
        }
        n
    }

    /// Interfaces of what was handed out.
    pub(crate) fn interfaces(&self) -> &[Interface] {
        &self.interfaces
    }

    pub(crate) fn progress(&self) -> f64 {
        self.parts.progress()
    }

    pub(crate) fn cpu_ns(&self) -> u64 {
        self.cpu_ns.load(Ordering::Relaxed)
    }

    /// Ends the threads; gives the reader back, the CPU time that they took in ns, and the error of the device.
    pub(crate) fn end(self) -> (Option<CaptureReader>, u64, Option<SourceError>) {
        let Self { mut crew, parts, cpu_ns, .. } = self;
        crew.join();
        let error = crew.line.take_error().map(SourceError::from);
        drop(crew);
        (Arc::into_inner(parts).map(Parts::into_reader), cpu_ns.load(Ordering::Relaxed), error)
    }
}
