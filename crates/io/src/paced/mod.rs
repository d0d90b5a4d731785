//! Traffic at a set pace, without a network card: packets come into a ring of bounded size, from which the
//! engine polls a batch at a time. A full ring drops packets, and counts them. It is the arrival process and
//! the queue of the queueing model.
//!
//! In real time a thread of its own makes them come, on another core. Where the system takes the generator's
//! core away, its clock stands still: the arrivals that it missed come later, not all at once, and how often
//! and how long that was is counted. In the engine's own time ([`Clock::Own`]) there is no such thread: the
//! loop that polls says what time it is, and what is due comes between two polls, at exactly its time.

mod arrivals;
mod ring;
mod stage;

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use slipstream_wire::LinkType;
use thiserror::Error;

use arrivals::Gaps;
pub use arrivals::Process;
use ring::{Entry, Ring};
pub use stage::PACED;

use crate::capture::{CaptureError, CaptureReader};
use crate::cpu::{self, Cores};
use crate::synth::Synth;
use slipstream_core::batch::Arrivals;
use slipstream_core::clock::LiveClock;
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::lateness::Lateness;
use slipstream_core::pool::{PacketMeta, Pool};
use slipstream_core::source::{LiveSource, OwnTimeSource, Source, SourceError};
use slipstream_core::time::Nanos;

/// Lateness from which on the generator takes itself for interrupted, in ns.
const INTERRUPTED: u64 = 20_000;
/// Packets a second from which on they come often: both sides of the ring stay awake then, but for gaps that
/// are much longer than the mean one. An experiment at such a rate is about what polls cost.
const OFTEN: f64 = 15_000.0;
/// The last stretch before an arrival, in ns, that is waited for awake where packets come often. Where they
/// come seldom, it is as long as sleeps turned out to end late, and the time before it is slept through.
const AWAKE: u64 = 250_000;
/// No sleep is shorter, in ns: one that is costs as much as to stay awake.
const LEAST_NAP: u64 = 10_000;
/// The generator looks after so many ns whether anybody still wants packets.
const LOOK: u64 = 10_000_000;
/// Frames and bytes that are made before the run and sent again and again, at most.
const FRAMES: u64 = 1 << 16;
const BYTES: usize = 64 << 20;

/// By which clock packets come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Real time, from a thread of its own.
    #[default]
    Wall,
    /// The time that the engine's polls take and nothing else.
    Own,
}

/// Settings of paced arrivals: the packets, their rate, and the sizes of queue and batch.
#[derive(Clone, Debug)]
pub struct PacedConfig {
    /// Packets a second, more than 0.
    pub rate: f64,
    /// When they come.
    pub process: Process,
    /// By which clock.
    pub clock: Clock,
    /// Places of the ring (L).
    pub queue: u32,
    /// Packets that a poll takes at most (β).
    pub batch: u32,
    /// Packets in all; none: without end.
    pub packets: Option<u64>,
    /// Seed of the arrivals.
    pub seed: u64,
    /// The least cost of a poll.
    pub cost: Cost,
}

/// A service time that is given instead of found: so much a poll, also one that finds nothing, and so much
/// for each of its packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// In ns.
    pub per_poll: u64,
    /// In ns.
    pub per_packet: u64,
}

impl Cost {
    /// Of a poll that finds so many packets, in ns.
    #[must_use]
    pub fn of(self, packets: usize) -> u64 {
        self.per_poll + self.per_packet * packets as u64
    }
}

/// The reason why the frames of a capture can't be sent.
#[derive(Debug, Error)]
pub enum PacedError {
    /// It can't be read.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// It has another link type.
    #[error("{0}: not all of its packets are Ethernet frames")]
    NotEthernet(String),
    /// There is none.
    #[error("{0}: there is no packet in it")]
    Empty(String),
}

/// The source: the engine's end of the ring.
#[derive(Debug)]
pub struct Paced {
    config: PacedConfig,
    frames: Arc<Frames>,
    ring: Arc<Ring>,
    /// The cores that the generator may have: those of the thread that made the source.
    cores: Option<Cores>,
    generator: Option<JoinHandle<()>>,
    /// The next arrivals, if packets come by the engine's own time.
    coming: Option<Coming>,
    interface: [Interface; 1],
    sequence: u64,
    /// Polls that took longer than [`PacedConfig::cost`] says.
    beyond_cost: u64,
    /// The time at which the engine was to ask next, if it was left to sleep.
    asked_again: Cell<Option<Nanos>>,
    /// The time by which it asks too late then.
    lateness: Lateness,
}

/// Arrivals by the engine's own time.
#[derive(Debug)]
struct Coming {
    gaps: Gaps,
    /// The time at which the process began, once it has.
    start: Option<Nanos>,
    /// When the next packet comes, in ns since then.
    due: u64,
    /// Packets that have come.
    number: u64,
}

/// Frames made before the run.
#[derive(Debug, Default)]
struct Frames {
    bytes: Vec<u8>,
    /// End of each.
    ends: Vec<u32>,
}

impl Frames {
    fn make(mut synth: Synth) -> Self {
        let (mut this, mut frame) = (Self::default(), Vec::new());
        while !this.full() && synth.next_packet(&mut frame).is_some() {
            this.push(&frame);
        }
        this
    }

    fn full(&self) -> bool {
        self.ends.len() >= FRAMES as usize || self.bytes.len() >= BYTES
    }

    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len() as u32);
    }

    fn get(&self, n: u64) -> &[u8] {
        let i = (n % self.ends.len().max(1) as u64) as usize;
        let start = i.checked_sub(1).and_then(|i| self.ends.get(i)).copied().unwrap_or(0);
        let end = self.ends.get(i).copied().unwrap_or(0);
        self.bytes.get(start as usize..end as usize).unwrap_or_default()
    }
}

impl Paced {
    /// The frames are those of `synth`, up to 65,536, over and over; nothing comes before the first poll.
    #[must_use]
    pub fn new(config: PacedConfig, synth: Synth) -> Self {
        Self::with(config, Frames::make(synth))
    }

    /// The frames are those of a capture, up to 65,536 or 64 MiB, over and over; its times don't count.
    ///
    /// # Errors
    /// [`PacedError`] where it can't be read, has no frame, or frames of another kind than Ethernet.
    pub fn of_capture(config: PacedConfig, mut capture: CaptureReader) -> Result<Self, PacedError> {
        let mut frames = Frames::default();
        while !frames.full()
            && let Some(record) = capture.next_record()?
        {
            if record.link != LinkType::Ethernet {
                return Err(PacedError::NotEthernet(capture.name().to_owned()));
            }
            frames.push(record.data);
        }
        if frames.ends.is_empty() {
            return Err(PacedError::Empty(capture.name().to_owned()));
        }
        Ok(Self::with(config, frames))
    }

    fn with(config: PacedConfig, frames: Frames) -> Self {
        Self {
            frames: Arc::new(frames),
            ring: Arc::new(Ring::new(config.queue)),
            cores: Cores::of_this_thread(),
            generator: None,
            coming: (config.clock == Clock::Own).then(|| {
                let mut gaps = Gaps::new(config.rate, config.process, config.seed);
                let due = gaps.next();
                Coming { gaps, start: None, due, number: 0 }
            }),
            interface: [Interface { link_number: 1, snap_len: 0, name: Some("paced".into()) }],
            sequence: 0,
            beyond_cost: 0,
            asked_again: Cell::new(None),
            lateness: Lateness::SELDOM_EXCEEDED,
            config,
        }
    }

    fn start(&mut self) -> Result<(), SourceError> {
        let (config, ring, cores) = (self.config.clone(), Arc::clone(&self.ring), self.cores.clone());
        let generator = thread::Builder::new().name("paced".into()).spawn(move || {
            // The engine's thread, which starts this one, may have a core of its own.
            cores.iter().for_each(Cores::take);
            cpu::punctual_timers();
            generate(&config, &ring, |ns| thread::sleep(Duration::from_nanos(ns)));
        });
        self.generator =
            Some(generator.map_err(|e| SourceError::new(format!("a thread can't be started: {e}")))?);
        Ok(())
    }
}

/// The time before an arrival, in ns, that is waited for awake.
fn guard(rate: f64, lateness: Lateness) -> u64 {
    if rate > OFTEN { AWAKE } else { lateness.lead() }
}

/// The sleep for a packet that comes in so many ns; none if it doesn't pay.
fn nap(ahead: u64, guard: u64) -> Option<u64> {
    ahead.checked_sub(guard).filter(|nap| *nap >= LEAST_NAP)
}

/// Lets packets come until there are enough or nobody wants more. `sleep` is for so many ns.
fn generate(config: &PacedConfig, ring: &Ring, sleep: impl Fn(u64)) {
    let clock = LiveClock::get();
    let mut lateness = Lateness::SELDOM_EXCEEDED;
    let mut gaps = Gaps::new(config.rate, config.process, config.seed);
    let mut start = clock.now();
    let mut number = 0;
    while config.packets.is_none_or(|all| number < all) {
        let due = gaps.next();
        let mut now = clock.now();
        let guard = guard(config.rate, lateness);
        ring.expect(start.after(due));
        while now < start.after(due) {
            if let Some(nap) = nap(start.after(due).since(now), guard) {
                let nap = nap.min(LOOK);
                sleep(nap);
                lateness.overslept(clock.now().since(now.after(nap)));
            } else {
                std::hint::spin_loop();
            }
            now = clock.now();
            if ring.closed() {
                return;
            }
        }
        let late = now.since(start.after(due));
        if late > INTERRUPTED {
            ring.interrupted(late);
            start = start.after(late);
        }
        ring.push(Entry { time: start.after(due), number });
        number += 1;
        if ring.closed() {
            return;
        }
    }
    ring.close();
}

impl LiveSource for Paced {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        if let Some(time) = self.asked_again.take()
            && time <= now
        {
            self.lateness.overslept(now.since(time));
        }
        if self.generator.is_none() && self.coming.is_none() {
            self.start()?;
        }
        arrivals.first = self.sequence;
        let mut n = 0;
        for entry in self.ring.take(max.min(self.config.batch as usize)) {
            let data = self.frames.get(entry.number);
            let meta = PacketMeta { original_len: data.len() as u32, interface: 0, time: entry.time };
            let buf = pool.insert(meta, data);
            arrivals.frames.push(Frame::unclassified(entry.time, buf, data.len() as u32));
            n += 1;
        }
        self.sequence += n as u64;
        Ok(n)
    }

    fn at_once(&self) -> usize {
        self.config.batch as usize
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Of polls that have a stated cost, those that find nothing count, too: they come one after the other.
    fn patience(&self) -> Option<u64> {
        if self.config.cost != Cost::default() {
            return None;
        }
        let (expected, now) = (self.ring.expected(), LiveClock::get().now());
        // One that came since the last poll must not wait for the next one's time.
        if !self.ring.is_empty() {
            return None;
        }
        let nap = nap(expected.since(now), guard(self.config.rate, self.lateness));
        self.asked_again.set(nap.map(|ns| now.after(ns)));
        nap
    }

    fn ended(&self) -> bool {
        self.ring.closed() && self.ring.is_empty()
    }

    fn least_ns(&self, packets: usize) -> u64 {
        self.config.cost.of(packets)
    }

    fn took_longer(&mut self) {
        self.beyond_cost += 1;
    }

    fn own_time(&mut self) -> Option<&mut dyn OwnTimeSource> {
        self.coming.is_some().then_some(self)
    }
}

impl OwnTimeSource for Paced {
    fn come(&mut self, now: Nanos) {
        let Some(coming) = &mut self.coming else { return };
        let start = *coming.start.get_or_insert(now);
        loop {
            if self.config.packets.is_some_and(|all| coming.number >= all) {
                self.ring.close();
                return;
            }
            let time = start.after(coming.due);
            if time > now {
                return;
            }
            self.ring.push(Entry { time, number: coming.number });
            coming.number += 1;
            coming.due = coming.gaps.next();
        }
    }

    fn taken(&self, n: usize, visit: &mut dyn FnMut(Nanos)) {
        self.ring.last_taken(n as u64).for_each(|entry| visit(entry.time));
    }

    fn come_and_dropped(&self) -> (u64, u64) {
        (self.coming.as_ref().map_or(0, |c| c.number), self.ring.dropped())
    }
}

impl Source for Paced {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.poll_now(pool, arrivals, max)
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn progress(&self) -> Option<f64> {
        self.config.packets.map(|all| self.sequence as f64 / all.max(1) as f64)
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn counters(&self, visit: &mut dyn FnMut(&'static str, u64)) {
        self.ring.counters(visit);
        if self.config.cost != Cost::default() {
            visit("polls_beyond_cost", self.beyond_cost);
        }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.ring.close();
        if let Some(generator) = self.generator.take() {
            // It can't fail: it only counts.
            let _ = generator.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synth::SynthConfig;
    use slipstream_core::clock::stand_in;

    const CONFIG: PacedConfig = PacedConfig {
        rate: 1e6,
        process: Process::Constant,
        clock: Clock::Wall,
        queue: 64,
        batch: 64,
        packets: None,
        seed: 1,
        cost: Cost { per_poll: 0, per_packet: 0 },
    };

    fn paced(config: PacedConfig) -> Paced {
        let synth = SynthConfig {
            packets: 100,
            flows: 10,
            size: "64..200".parse().unwrap(),
            ..SynthConfig::default()
        };
        Paced::new(config, Synth::new(synth).unwrap())
    }

    /// Everything that is made arrives in order and with the bytes that were made, or is counted as dropped.
    #[test]
    fn every_packet_is_taken_or_counted() {
        let config = PacedConfig {
            rate: 1e6,
            process: Process::Poisson,
            queue: 64,
            batch: 16,
            packets: Some(5000),
            seed: 3,
            ..CONFIG
        };
        let mut source = paced(config);
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        let mut last = Nanos(0);
        let mut taken = 0;
        while !source.ended() {
            let n = source.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap();
            assert!(n <= 16 && arrivals.first == taken);
            taken += n as u64;
            for frame in arrivals.frames.drain(..) {
                assert!(frame.arrival >= last);
                last = frame.arrival;
                assert!((64..=200).contains(&pool.data(frame.buf, frame.len).len()));
                pool.free(frame.buf);
            }
            arrivals.clear();
        }
        let mut counts = std::collections::HashMap::new();
        source.counters(&mut |name, n| {
            counts.insert(name, n);
        });
        assert_eq!(taken + counts["dropped_by_queue"], 5000);
        assert_eq!(counts["offered"], 5000);
        assert_eq!(counts["left_in_queue"], 0);
    }

    #[test]
    fn frames_come_from_a_capture() {
        let config =
            |packets| PacedConfig { rate: 1e6, queue: 64, batch: 64, packets: Some(packets), ..CONFIG };
        let file = |link_number, frames: u8| {
            let mut bytes = vec![
                0xd4,
                0xc3,
                0xb2,
                0xa1,
                2,
                0,
                4,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0,
                0xff,
                0xff,
                0,
                0,
                link_number,
                0,
                0,
                0,
            ];
            for n in 0..frames {
                bytes.extend([0, 0, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 60, 0, 0, 0]);
                bytes.extend([n; 60]);
            }
            CaptureReader::from_reader(std::io::Cursor::new(bytes), "made").unwrap()
        };
        let mut source = Paced::of_capture(config(5), file(1, 2)).unwrap();
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        while !source.ended() {
            source.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap();
        }
        let first: Vec<u8> = arrivals.frames.iter().map(|f| pool.data(f.buf, f.len)[0]).collect();
        assert_eq!(first, [0, 1, 0, 1, 0]);
        assert!(matches!(Paced::of_capture(config(5), file(101, 1)), Err(PacedError::NotEthernet(_))));
        assert!(matches!(Paced::of_capture(config(5), file(1, 0)), Err(PacedError::Empty(_))));
    }

    /// Packets that come seldom are slept for, on both sides, up to shortly before they come; those that come
    /// often are not, and polls that have a stated cost never are.
    #[test]
    fn the_time_until_a_packet_is_slept_through() {
        let cost = Cost { per_poll: 1000, per_packet: 0 };
        for (rate, cost, sleeps) in
            [(1e-2, Cost::default(), true), (1e6, Cost::default(), false), (1e-2, cost, false)]
        {
            let mut source = paced(PacedConfig { rate, cost, ..CONFIG });
            assert_eq!(source.patience(), None, "nothing has been asked for yet");
            let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
            source.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap();
            while source.ring.expected() == Nanos(0) {
                thread::yield_now();
            }
            match source.patience() {
                // The first of them comes within 100 seconds.
                Some(ns) => {
                    let most = 100_000_000_000 - source.lateness.lead();
                    assert!(sleeps && ns > 1_000_000_000 && ns <= most, "{ns}");
                }
                None => assert!(!sleeps),
            }
        }
    }

    /// Under a clock of the test's own, in which a look takes 50 ns: both sides sleep until shortly before a
    /// packet, wherever sleeps end no later than they did before, and no packet comes late.
    #[test]
    fn little_time_is_spent_awake_where_packets_come_seldom() {
        for (rate, most) in [(1_000.0, 40_000), (5_000.0, 200_000), (100_000.0, 1_000_000)] {
            let config = PacedConfig { rate, packets: Some(rate as u64), ..CONFIG };
            let ring = Ring::new(1 << 20);
            stand_in::set(Some(1_000_000_000));
            let slept = Cell::new(0);
            generate(&config, &ring, |ns| {
                slept.set(slept.get() + ns + 10_000);
                stand_in::pass(ns + 10_000);
            });
            let awake = (LiveClock::get().now().0 - 1_000_000_000 - slept.get()) / 1_000;
            stand_in::set(None);
            assert!(awake <= most, "{awake} µs of a second at {rate} packets a second");
            assert!((rate > OFTEN) == (slept.get() == 0), "{} µs asleep at {rate}", slept.get() / 1000);
            let mut counts = std::collections::HashMap::new();
            ring.counters(&mut |name, n| {
                counts.insert(name, n);
            });
            assert_eq!((counts["generator_interruptions"], counts["offered"]), (0, rate as u64));
        }
    }

    /// As the engine does: it asks, and sleeps for as long as the source may be left unasked.
    #[test]
    fn a_source_is_seldom_asked_before_its_packet_comes() {
        let mut source = paced(PacedConfig { rate: 1_000.0, ..CONFIG });
        source.generator = Some(thread::spawn(|| {}));
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        stand_in::set(Some(1_000_000_000));
        let mut polls = 0;
        for packet in 1..=100 {
            let due = Nanos(1_000_000_000 + packet * 1_000_000);
            source.ring.expect(due);
            while LiveClock::get().now() < due {
                polls += 1;
                assert_eq!(source.poll_now(&mut pool, &mut arrivals, 256).unwrap(), 0);
                if let Some(ns) = source.patience() {
                    stand_in::pass(ns + 10_000);
                    assert!(LiveClock::get().now() < due, "it is asked late");
                }
            }
        }
        stand_in::set(None);
        // For each of them 20 µs are spent awake at most, of which a poll takes 150 ns.
        assert!(polls < 100 * 200, "{polls} polls for 100 packets");
    }

    /// A packet comes right behind an empty poll, and the generator waits for the next one.
    #[test]
    fn what_came_since_the_last_poll_is_asked_for_at_once() {
        let source = paced(PacedConfig { rate: 1.0, ..CONFIG });
        stand_in::set(Some(1_000_000_000));
        source.ring.expect(Nanos(9_000_000_000));
        assert!(source.patience().is_some());
        source.ring.push(Entry { time: Nanos(1_000_000_000), number: 0 });
        let patience = source.patience();
        stand_in::set(None);
        assert_eq!(patience, None);
    }

    /// The engine's thread has one core, from which the generator keeps away.
    #[test]
    fn the_generator_has_the_cores_of_whoever_made_the_source() {
        let mut source = paced(PacedConfig { rate: 1.0, ..CONFIG });
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        let of_the_generator = thread::spawn(move || {
            crate::cpu::pin(rustix::thread::sched_getcpu() as u32).unwrap();
            source.start().unwrap();
            while source.ring.expected() == Nanos(0) {
                thread::yield_now();
            }
            let threads = std::fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path());
            let named = |task: &std::path::PathBuf| {
                std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "paced\n")
            };
            let counts = threads.filter(named).filter_map(|task| {
                let id = task.file_name()?.to_str()?.parse().ok()?;
                Some(rustix::thread::sched_getaffinity(rustix::thread::Pid::from_raw(id)).ok()?.count())
            });
            counts.min()
        });
        // Generators of other tests, in threads beside this one, have all cores, too.
        assert_eq!(of_the_generator.join().unwrap(), Some(all.count()));
    }

    /// Nobody polls: the ring keeps what it has room for.
    #[test]
    fn a_full_ring_drops() {
        let config = PacedConfig { rate: 5e6, queue: 8, batch: 4, packets: Some(100), ..CONFIG };
        let mut source = paced(config);
        source.start().unwrap();
        while !source.ring.closed() {
            std::thread::yield_now();
        }
        assert_eq!(source.ring.len(), 8);
        let (mut pool, mut arrivals) = (Pool::new(), Arrivals::default());
        assert_eq!(source.poll(&mut pool, &mut arrivals, 256, Nanos(0)).unwrap(), 4);
        let first: Vec<_> = (0..4).map(|n| source.frames.get(n).to_vec()).collect();
        let got: Vec<_> = arrivals.frames.iter().map(|f| pool.data(f.buf, f.len).to_vec()).collect();
        assert_eq!(got, first);
        assert!(!source.ended());
    }
}
