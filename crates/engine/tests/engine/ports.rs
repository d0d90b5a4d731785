//! A port from elsewhere, with memory of its own: its packets are received, changed and sent where they lie.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex};

use slipstream::pipeline::Plan;
use slipstream::runtime::{Driver, RunReport};
use slipstream_core::batch::{Arrivals, Batch};
use slipstream_core::frame::Frame;
use slipstream_core::interface::Interface;
use slipstream_core::pool::{BufId, Buffers, LEAD, PacketMeta, Pool, Region};
use slipstream_core::port::{Port, Transmit};
use slipstream_core::registry::{Group, IN, Made, Meets, OUT, Properties, Registry, Role, StageType};
use slipstream_core::source::{LiveSource, Source, SourceError};
use slipstream_core::stage::{Context, DropReason, Drops};
use slipstream_core::time::Nanos;

use crate::common::Polled;

const BUFFER: usize = 2048;
/// Offset of a received packet in its buffer.
const CAME: usize = 256 + LEAD;

/// The card's memory.
struct Umem {
    start: NonNull<u8>,
    buffers: usize,
    free: Vec<usize>,
    /// Buffers that stages are never given.
    kept: usize,
    /// Buffers that stages took for packets of their own.
    taken: u64,
    wire: Arc<Mutex<Wire>>,
}

// SAFETY: the memory is this value's alone.
unsafe impl Send for Umem {}

// SAFETY: it allocates what it says, zeros at first, and keeps it; a buffer is on its list, or the pool's.
unsafe impl Region for Umem {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn size(&self) -> usize {
        self.buffers * BUFFER
    }

    fn buffers(&self) -> Buffers {
        Buffers { first: 0, stride: BUFFER, len: BUFFER }
    }

    fn take(&mut self, len: usize) -> Option<usize> {
        if len > BUFFER - LEAD || self.free.len() <= self.kept {
            return None;
        }
        let buffer = self.free.pop()?;
        self.taken += 1;
        Some(buffer * BUFFER + LEAD)
    }

    fn give_back(&mut self, packets: &mut dyn Iterator<Item = usize>) {
        self.free.extend(packets.map(|packet| packet / BUFFER));
    }
}

fn layout(buffers: usize) -> Layout {
    Layout::from_size_align(buffers * BUFFER, 4096).unwrap()
}

impl Umem {
    fn new(buffers: usize, kept: usize, wire: &Arc<Mutex<Wire>>) -> Box<Self> {
        // SAFETY: the layout is not empty.
        let start = NonNull::new(unsafe { alloc_zeroed(layout(buffers)) }).unwrap();
        Box::new(Self { start, buffers, free: (0..buffers).collect(), kept, taken: 0, wire: wire.clone() })
    }
}

impl Drop for Umem {
    fn drop(&mut self) {
        self.free.sort_unstable();
        let mut wire = self.wire.lock().unwrap();
        (wire.at_end, wire.taken) = (std::mem::take(&mut self.free), self.taken);
        // SAFETY: allocated by `new` with this layout; the pool is gone, and with it all that used it.
        unsafe { dealloc(self.start.as_ptr(), layout(self.buffers)) };
    }
}

/// The wire of a card.
#[derive(Default)]
struct Wire {
    /// Frames that are to come.
    incoming: VecDeque<Vec<u8>>,
    /// Addresses of frames when they came, by their numbers.
    came: Vec<usize>,
    /// Frames that left, and where they lay then.
    left: Vec<(Vec<u8>, usize)>,
    /// Frames that had to be copied into the card's memory.
    copied: u64,
    /// Of the card's memory when it was given up: free buffers, and how many stages took.
    at_end: Vec<usize>,
    taken: u64,
    /// The port brings memory itself: so many buffers.
    brings: Option<usize>,
}

/// The card's receiving half.
struct Receiver {
    wire: Arc<Mutex<Wire>>,
    interface: [Interface; 1],
    sequence: u64,
}

impl Source for Receiver {
    fn fill(&mut self, pool: &mut Pool, arrivals: &mut Arrivals, max: usize) -> Result<usize, SourceError> {
        self.poll(pool, arrivals, max, Nanos(0))
    }

    fn interfaces(&self) -> &[Interface] {
        &self.interface
    }

    fn live(&mut self) -> Option<&mut dyn LiveSource> {
        Some(self)
    }

    fn region(&mut self) -> Option<Box<dyn Region>> {
        let buffers = self.wire.lock().unwrap().brings.take()?;
        Some(Umem::new(buffers, 0, &self.wire))
    }
}

impl LiveSource for Receiver {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        max: usize,
        now: Nanos,
    ) -> Result<usize, SourceError> {
        arrivals.first = self.sequence;
        let mut wire = self.wire.lock().unwrap();
        let mut came = Vec::new();
        let receive = |umem: &mut Umem| {
            while came.len() < max
                && let Some(buffer) = umem.free.last().copied()
                && let Some(frame) = wire.incoming.pop_front()
            {
                umem.free.pop();
                let offset = buffer * BUFFER + CAME;
                // SAFETY: the buffer was free, and has room: this is what a card does.
                unsafe {
                    let to = umem.start.as_ptr().add(offset);
                    to.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
                    wire.came.push(to.addr());
                }
                came.push((offset, frame.len() as u32));
            }
        };
        pool.with_region(receive)
            .ok_or_else(|| SourceError::new("the pool has not adopted the card's memory"))?;
        for (offset, len) in &came {
            let meta = PacketMeta { original_len: *len, interface: 0, time: now };
            let buf = pool.adopted(*offset, *len, meta).unwrap();
            arrivals.frames.push(Frame::unclassified(now, buf, *len));
        }
        self.sequence += came.len() as u64;
        Ok(came.len())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn patience(&self) -> Option<u64> {
        Some(10_000)
    }

    fn ended(&self) -> bool {
        self.wire.lock().unwrap().incoming.is_empty()
    }
}

/// All types, and the card.
fn registry() -> Registry {
    let mut registry = slipstream::pipeline::built_in();
    // SAFETY: its ports use packets only until they give them on, with their lengths.
    unsafe { registry.register_shared(CARD) }.unwrap();
    registry
}

/// The card's sending half: a packet has left some time after it was handed over.
struct Sender {
    wire: Arc<Mutex<Wire>>,
    on_their_way: VecDeque<(BufId, u32)>,
    now: Nanos,
    drops: Drops,
}

impl Transmit for Sender {
    fn tx(&mut self, cx: &mut Context<'_>, batch: &mut Batch) {
        self.now = cx.now;
        for frame in batch.frames.drain(..) {
            let mut buf = frame.buf;
            if cx.pool.offset(buf).is_none() {
                // Made by a stage, when the card had no buffer: the card can't reach it.
                buf = cx.pool.copy(buf, frame.len);
                cx.pool.free(frame.buf);
                self.wire.lock().unwrap().copied += 1;
                if cx.pool.offset(buf).is_none() {
                    cx.pool.free(buf);
                    self.drops.add(DropReason::NotSent, 1);
                    continue;
                }
            }
            self.on_their_way.push_back((buf, frame.len));
        }
        batch.clear();
    }

    fn complete(&mut self, pool: &mut Pool) -> u64 {
        let mut wire = self.wire.lock().unwrap();
        let half = self.on_their_way.len().div_ceil(2);
        for (buf, len) in self.on_their_way.drain(..half) {
            let data = pool.data(buf, len);
            if data[12..14] != [8, 6] {
                wire.left.push((data.to_vec(), data.as_ptr().addr()));
            }
            pool.free(buf);
        }
        half as u64
    }

    fn drain(&mut self, cx: &mut Context<'_>) {
        while self.in_flight() > 0 {
            self.complete(cx.pool);
        }
    }

    fn in_flight(&self) -> u64 {
        self.on_their_way.len() as u64
    }

    fn next_look(&self) -> Nanos {
        if self.in_flight() > 0 { self.now.after(20_000) } else { Nanos::MAX }
    }

    fn look(&mut self, cx: &mut Context<'_>) {
        self.now = cx.now;
        self.complete(cx.pool);
    }

    fn drops(&self) -> Drops {
        self.drops
    }
}

thread_local! {
    /// The wire that the next ports are connected to.
    static WIRE: RefCell<Arc<Mutex<Wire>>> = RefCell::default();
}

const CARD: StageType = StageType {
    name: "card",
    group: Group::Port,
    summary: "A card with memory of its own",
    example: "in :: card -> out :: card",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties {
        live: true,
        drops: &[DropReason::NotSent],
        ..Properties::new(|_| Meets::Nothing)
    },
    build: |_, site| {
        let wire = WIRE.with(|wire| wire.borrow().clone());
        let interface = Interface { link_number: 1, snap_len: 0, name: Some("card".into()) };
        let receiver = Receiver { wire: wire.clone(), interface: [interface], sequence: 0 };
        let sender = Sender { wire, on_their_way: VecDeque::new(), now: Nanos(0), drops: Drops::default() };
        Ok(match (site.dry, site.role) {
            (true, _) => Made::Checked,
            (_, Role::Source) => Port::receiving(receiver).into(),
            (_, Role::TwoWay) => Port::both(receiver, sender).into(),
            _ => Port::transmitting(sender).into(),
        })
    },
};

/// A UDP datagram of a flow to the router, with its number in the payload.
fn frame(number: u32, flow: u8, ttl: u8, port: u16, len: usize) -> Vec<u8> {
    let mut frame = vec![2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 5, 8, 0];
    let ip_len = (len - 14) as u16;
    let mut ip = vec![0x45, 0];
    ip.extend(ip_len.to_be_bytes());
    ip.extend([0, 0, 0x40, 0, ttl, 17, 0, 0, 10, 0, 0, flow, 192, 0, 2, 200]);
    let sum: u32 = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
    let sum = !(((sum & 0xffff) + (sum >> 16)) as u16);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    frame.extend(ip);
    frame.extend((2000 + u16::from(flow)).to_be_bytes());
    frame.extend(port.to_be_bytes());
    frame.extend((ip_len - 20).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(number.to_be_bytes());
    frame.resize(len, number as u8);
    frame
}

fn number(frame: &[u8]) -> usize {
    u32::from_be_bytes(frame[42..46].try_into().unwrap()) as usize
}

/// Packets that the router makes of itself: it announces an address on each of its two links.
const ANNOUNCED: u64 = 2;

/// Runs frames through a gateway between two cards that share memory of so many buffers.
fn run(frames: Vec<Vec<u8>>, buffers: usize, kept: usize) -> (RunReport, Wire) {
    let wire = Arc::new(Mutex::new(Wire { incoming: frames.into(), ..Wire::default() }));
    WIRE.with(|next| *next.borrow_mut() = wire.clone());
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("rules"), "deny udp dst port 9\ndefault allow\n").unwrap();
    let graph = "in :: card -> reframe(hold=50us, burst=16) -> fw :: firewall(rules=rules) -> [lan]r; fw[denied] -> discard
        r :: router(interfaces=[\"lan 10.0.0.1/24 02:00:00:00:00:01\", \"wan 192.0.2.2/24 02:00:00:00:00:02\"],
                    neighbours=[\"192.0.2.200 02:00:00:00:00:c8\", \"10.0.0.10 02:00:00:00:00:05\"], icmp_rate=1000000, icmp_burst=1000)
        r[wan] -> [inside]nat(pool=[192.0.2.2])[outside] -> out :: card; r[lan] -> back :: card";
    let registry = registry();
    let plan = Plan::from_graph_with(&registry, graph, None, None, directory.path()).unwrap();
    // SAFETY: stages and ports use packets of the pool that they were handed, which they give on or free,
    // with their lengths.
    let pool = unsafe { Pool::adopt(Umem::new(buffers, kept, &wire)) }.unwrap();
    let mut run = Driver::new(plan.build(1).unwrap()).pool(pool);
    let report = run.run(&mut |_| ControlFlow::Continue(())).unwrap();
    drop(run);
    WIRE.with(|next| *next.borrow_mut() = Arc::default());
    let wire = Arc::into_inner(wire).unwrap().into_inner().unwrap();
    assert_eq!((report.live, wire.at_end.len()), (0, buffers), "{report:#?}");
    assert!(wire.at_end.iter().copied().eq(0..buffers), "a buffer came back twice");
    (report, wire)
}

fn dropped(report: &RunReport, reason: DropReason) -> u64 {
    report.stages.iter().flat_map(|s| s.drops.iter()).filter(|(r, _)| *r == reason).map(|(_, n)| n).sum()
}

#[test]
fn packets_leave_from_where_they_came() {
    let frames: Vec<_> = (0..3000)
        .map(|n| {
            frame(n, (n / 3 % 20) as u8 + 10, 64, if n % 10 == 7 { 9 } else { 53 }, 60 + n as usize % 1400)
        })
        .collect();
    let (report, wire) = run(frames.clone(), 512, 0);
    assert_eq!((wire.left.len(), wire.came.len()), (2700, 3000));
    assert_eq!(dropped(&report, DropReason::Discarded), 300);
    for (frame, at) in &wire.left {
        let before = &frames[number(frame)];
        assert_eq!(*at, wire.came[number(frame)], "a packet moved");
        // Routed and translated, and otherwise as it came.
        assert_eq!((&frame[..12], frame[22]), (&[2, 0, 0, 0, 0, 0xc8, 2, 0, 0, 0, 0, 2][..], 63));
        assert_eq!((&frame[26..30], &frame[42..]), (&[192, 0, 2, 2][..], &before[42..]));
    }
    assert_eq!(wire.taken + wire.copied, ANNOUNCED, "a packet was stored anew");
}

/// Packets that stages make are put into the card's buffers, as long as it has any for them; then beside
/// them, to be copied when they are sent.
#[test]
fn packets_that_stages_make_find_room() {
    let frames: Vec<_> = (0..200).map(|n| frame(n, 10, if n % 2 == 0 { 1 } else { 9 }, 53, 100)).collect();
    let (_, wire) = run(frames.clone(), 512, 0);
    assert_eq!((wire.left.len(), wire.taken, wire.copied), (200, 100 + ANNOUNCED, 0));
    let errors = wire.left.iter().filter(|(frame, _)| frame[23] == 1 && frame[34..36] == [11, 0]);
    assert_eq!(errors.count(), 100);

    let (report, wire) = run(frames, 32, 32);
    assert_eq!((wire.left.len(), wire.taken, wire.copied), (100, 0, 100 + ANNOUNCED));
    assert_eq!(dropped(&report, DropReason::NotSent), 100 + ANNOUNCED);
}

/// A pool that is not the card's is an error of the port, in its own words.
#[test]
fn a_port_says_what_is_wrong() {
    let wire = Arc::new(Mutex::new(Wire { incoming: vec![frame(0, 1, 2, 3, 60)].into(), ..Wire::default() }));
    WIRE.with(|next| *next.borrow_mut() = wire);
    let plan = Plan::from_graph_with(&registry(), "card -> null", None, None, Path::new("")).unwrap();
    let error = Driver::new(plan.build(1).unwrap()).run(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("has not adopted the card's memory"), "{error}");
}

/// A port brings its memory itself, and the driver has its pool adopt it.
#[test]
fn a_port_brings_its_memory() {
    let frames: Vec<_> = (0..500).map(|n| frame(n, (n % 7) as u8 + 10, 64, 53, 100)).collect();
    let wire =
        Arc::new(Mutex::new(Wire { incoming: frames.clone().into(), brings: Some(128), ..Wire::default() }));
    WIRE.with(|next| *next.borrow_mut() = wire.clone());
    let graph = "in :: card -> reframe(hold=50us, burst=16) -> out :: card";
    let plan = Plan::from_graph_with(&registry(), graph, None, None, Path::new("")).unwrap();
    let mut run = Driver::new(plan.build(1).unwrap());
    let report = run.run(&mut |_| ControlFlow::Continue(())).unwrap();
    drop(run);
    WIRE.with(|next| *next.borrow_mut() = Arc::default());
    let wire = Arc::into_inner(wire).unwrap().into_inner().unwrap();
    assert_eq!((report.live, wire.left.len(), wire.at_end.len(), wire.copied), (0, 500, 128, 0));
    for (frame, at) in &wire.left {
        assert_eq!((frame, *at), (&frames[number(frame)], wire.came[number(frame)]), "a packet moved");
    }
}

/// A stage that nobody vouches for must not reach into what a port has mapped.
#[test]
fn memory_is_not_adopted_where_nobody_vouches_for_a_stage() {
    let wire = Arc::new(Mutex::new(Wire {
        incoming: vec![frame(0, 1, 2, 3, 60)].into(),
        brings: Some(128),
        ..Wire::default()
    }));
    WIRE.with(|next| *next.borrow_mut() = wire);
    let mut registry = slipstream::pipeline::built_in();
    registry.register(CARD).unwrap();
    let plan = Plan::from_graph_with(&registry, "card -> null", None, None, Path::new("")).unwrap();
    let error = Driver::new(plan.build(1).unwrap()).run(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("has not adopted the card's memory"), "{error}");
}

/// A port that brings packets until it fails, if it does; with or without some more of them.
struct Failing {
    polls: u32,
    fails: bool,
    with_packets: bool,
}

impl LiveSource for Failing {
    fn poll(
        &mut self,
        pool: &mut Pool,
        arrivals: &mut Arrivals,
        _: usize,
        _: Nanos,
    ) -> Result<usize, SourceError> {
        self.polls += 1;
        let fails = self.fails && self.polls == 40;
        if !fails || self.with_packets {
            for n in 0..5 {
                let frame = frame(n, 10, 64, 53, 100);
                let meta = PacketMeta { original_len: 100, interface: 0, time: Nanos::MAX };
                arrivals.frames.push(Frame::unclassified(Nanos::MAX, pool.insert(meta, &frame), 100));
            }
        }
        if fails { Err(SourceError::new("the port is gone")) } else { Ok(5) }
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn ended(&self) -> bool {
        false
    }
}

const FAILING: StageType = StageType {
    name: "failing",
    group: Group::Port,
    summary: "Fails",
    example: "in :: failing -> null",
    inputs: IN,
    outputs: OUT,
    settings: &[],
    properties: Properties { live: true, ..Properties::new(|_| Meets::Nothing) },
    build: |_, site| {
        let (fails, with_packets) = (site.name != "well", site.name == "with");
        Ok(Port::receiving(Polled::new(site.name, Failing { polls: 0, fails, with_packets })).into())
    },
};

/// Packets that came before a port failed leave: those of that port, those of others that were asked before
/// it in the same round, and on any thread.
#[test]
fn what_came_before_a_port_failed_leaves() {
    let mut registry = slipstream::pipeline::built_in();
    // SAFETY: it gives its packets on, with their lengths.
    unsafe { registry.register_shared(FAILING) }.unwrap();
    for (name, polled) in [("with", 40), ("without", 39)] {
        for workers in 1..4 {
            let graph = format!(
                "well :: failing -> c :: counter -> delay(time=10ms) -> out :: null; {name} :: failing -> c"
            );
            let plan = Plan::from_graph_with(&registry, &graph, None, None, Path::new("")).unwrap();
            let mut run = Driver::new(plan.build(1).unwrap()).workers(workers);
            let error = run.run(&mut |_| ControlFlow::Continue(())).unwrap_err();
            assert!(error.to_string().contains("the port is gone"), "{error}");
            let report = run.take_partial().unwrap();
            let case = format!("{name} packets, {workers} workers");
            assert_eq!(report.live, 0, "{case}: some are left inside");
            let came: Vec<_> = report.sources.iter().map(|source| source.packets).collect();
            assert_eq!(came, [5 * 40, 5 * polled], "{case}");
            let out = report.stages.iter().find(|stage| stage.name == "out").unwrap();
            assert_eq!(out.tally.packets, 5 * (40 + polled), "{case}");
        }
    }
}
