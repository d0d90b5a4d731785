//! One copy of the campus: its clock, its connections, and the heap of what is still to come.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::super::packet::{Packet, flag};
use super::super::random::{Alias, Rng};
use super::connection::{Connection, Kind, Plan, QUIC_ACK};
use super::model::{self, Start, TrainShape};

/// An event of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Syn,
    SynAck,
    /// The client completes the handshake.
    Opened,
    /// The client asks for the data.
    Request {
        payload: usize,
    },
    /// A short connection sends its next round.
    Round,
    /// A data segment: the last of its train? Does the other side acknowledge it?
    Data {
        push: bool,
        acknowledge: bool,
    },
    /// An acknowledgement of this number, with this timestamp echo.
    Ack {
        ack: (u32, u32),
    },
    /// The receiver acknowledges the last data, and closes too.
    Close {
        ack: (u32, u32),
    },
    /// The end of the connection.
    LastAck,
    /// A datagram of a side, of so many bytes.
    Datagram {
        side: usize,
        payload: usize,
    },
    /// Echo request (side 0), reply (1).
    Echo {
        side: usize,
    },
    /// A lone SYN.
    Scan,
}

/// An event at its time. The order of creation decides ties.
#[derive(Clone, Copy, Debug)]
struct Due {
    at: u64,
    order: u64,
    connection: u32,
    /// Nothing comes after it.
    last: bool,
    event: Event,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

/// Number of the latest ticks that the rate is averaged over.
const RATE_MEMORY: f64 = 256.0;
/// Random numbers of copy k are stream `STREAMS` + k.
const STREAMS: u64 = 1024;

/// One copy.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    copy: u32,
    rng: Rng,
    heap: BinaryHeap<Reverse<Due>>,
    order: u64,
    connections: Vec<Option<Connection>>,
    free: Vec<u32>,
    opened: u64,
    /// The connections that hold the slots: TCP, then QUIC.
    slots: Vec<u32>,
    starts: Alias,
    tcp_ranks: Alias,
    quic_ranks: Alias,
    tick: u64,
    /// Bytes begun since the last tick, and their mean over the latest ticks.
    begun: u64,
    mean_begun: f64,
}

impl Stream {
    /// Copy number `copy`, warmed up.
    pub(super) fn new(seed: u64, copy: u32) -> Self {
        let ranks = |n: u32| {
            let weight = |r: u32| libm::pow(f64::from(r) + model::RANK_SHIFT, -model::RANK_EXPONENT);
            Alias::new(&(0..n).map(weight).collect::<Vec<_>>())
        };
        let mut stream = Self {
            copy,
            rng: Rng::new(seed, STREAMS + u64::from(copy)),
            heap: BinaryHeap::new(),
            order: 0,
            connections: Vec::new(),
            free: Vec::new(),
            opened: 0,
            slots: Vec::new(),
            starts: Alias::new(&model::STARTS.map(|s| s.1)),
            tcp_ranks: ranks(model::TCP_SLOTS),
            quic_ranks: ranks(model::QUIC_SLOTS),
            tick: 0,
            begun: 0,
            mean_begun: 5000.0,
        };
        stream.populate();
        stream
    }

    /// Long-lived connections in mid-life: sizes as a packet drawn at random sees them, one from every part
    /// of the distribution, each at a random place of its life.
    fn populate(&mut self) {
        let slots = model::TCP_SLOTS + model::QUIC_SLOTS;
        for slot in 0..slots {
            // A stride that shares no factor with the number of slots spreads the parts over ranks and
            // classes.
            let part = f64::from((slot * 83) % slots);
            let u = (part + self.rng.unit()) / f64::from(slots);
            let size = model::ELEPHANT.size_biased_quantile(u);
            let left = 1 + self.rng.below(size);
            let connection = self.open(self.slot_plan(slot, left));
            self.hold_slot(slot, connection);
        }
    }

    /// The connection in a slot: its kind is fixed for the slot, so that the mix is the same for every seed.
    fn slot_plan(&self, slot: u32, segments: u64) -> Plan {
        let tcp = slot < model::TCP_SLOTS;
        // Multiples of the golden ratio and of √2 fill the unit interval evenly.
        let spread = |factor: f64| {
            let x = f64::from(slot) * factor;
            x - libm::floor(x)
        };
        let mut rest = spread(0.618_033_988_749_895);
        let mut pace = model::PACES[0].0;
        for &(ns, weight) in &model::PACES {
            pace = ns;
            rest -= weight;
            if rest < 0.0 {
                break;
            }
        }
        let outward = spread(0.414_213_562_373_095) < model::OUTWARD;
        // Clients are on the campus; what leaves it is uploaded.
        Plan {
            kind: if tcp { Kind::Tcp } else { Kind::Quic },
            client_on_campus: true,
            data_side: usize::from(!outward),
            segments,
            pace,
        }
    }

    fn hold_slot(&mut self, slot: u32, connection: u32) {
        if let Some(Some(c)) = self.connections.get_mut(connection as usize) {
            c.slot = Some(slot);
        }
        match self.slots.get_mut(slot as usize) {
            Some(place) => *place = connection,
            None => self.slots.push(connection),
        }
    }

    fn open(&mut self, plan: Plan) -> u32 {
        let connection = Connection::new(plan, self.copy, self.opened, &mut self.rng);
        self.opened += 1;
        if let Some(index) = self.free.pop() {
            if let Some(place) = self.connections.get_mut(index as usize) {
                *place = Some(connection);
            }
            return index;
        }
        self.connections.push(Some(connection));
        (self.connections.len() - 1) as u32
    }

    fn push(&mut self, at: u64, connection: u32, event: Event, last: bool) {
        self.order += 1;
        self.heap.push(Reverse(Due { at, order: self.order, connection, last, event }));
    }

    /// The next packet and its time since the copy was warm.
    pub(super) fn next(&mut self) -> (u64, Packet) {
        loop {
            match self.heap.peek() {
                Some(Reverse(due)) if due.at < self.tick => {
                    let due = *due;
                    self.heap.pop();
                    if let Some(packet) = self.happen(due)
                        && let Some(time) = due.at.checked_sub(model::WARM_UP)
                    {
                        return (time, packet);
                    }
                }
                _ => self.on_tick(),
            }
        }
    }

    /// Begins something, and sets the time of the next tick by the bytes begun lately.
    fn on_tick(&mut self) {
        let now = self.tick;
        let i = self.starts.draw(&mut self.rng) as usize;
        match model::STARTS.get(i).map(|s| s.0) {
            Some(Start::TcpTrain) => self.long_lived(now, true),
            Some(Start::QuicTrain) => self.long_lived(now, false),
            Some(Start::Mouse) => self.mouse(now),
            Some(Start::Dns) => self.dns(now),
            Some(Start::Scan) => self.scan(now),
            Some(Start::Ping) => self.ping(now),
            None => {}
        }
        self.mean_begun += (self.begun as f64 - self.mean_begun) / RATE_MEMORY;
        self.begun = 0;
        let mean_gap = self.mean_begun * 8e9 / model::RATE;
        self.tick += 1 + self.rng.exponential(mean_gap) as u64;
    }

    /// A train of a connection drawn by rank; a connection that is still opening is drawn again.
    fn long_lived(&mut self, now: u64, tcp: bool) {
        for _ in 0..16 {
            let slot = if tcp {
                self.tcp_ranks.draw(&mut self.rng)
            } else {
                model::TCP_SLOTS + self.quic_ranks.draw(&mut self.rng)
            };
            let Some(&index) = self.slots.get(slot as usize) else { continue };
            if let Some(Some(c)) = self.connections.get(index as usize)
                && c.ready <= now
                && c.unplanned > 0
            {
                let shape = if tcp { model::TCP_TRAIN } else { model::QUIC_TRAIN };
                let segments = shape.segments(&mut self.rng);
                self.train(now, index, segments, &shape);
                return;
            }
        }
    }

    /// Plans up to `segments` data segments from `at` on; gives the time of the last.
    fn train(&mut self, mut at: u64, index: u32, segments: u64, shape: &TrainShape) -> u64 {
        let Some(Some(c)) = self.connections.get_mut(index as usize) else { return at };
        let segments = segments.min(c.unplanned);
        c.unplanned -= segments;
        let (frame, ack_frame) = c.frame_lens();
        let line = frame * model::LINE_PS_PER_BYTE / 1000;
        let pace = c.pace;
        let (mut unacknowledged, mut chunk) = (0, 1);
        for left in (0..segments).rev() {
            unacknowledged += 1;
            let together = left > 0 && self.rng.chance(shape.back_to_back);
            let acknowledge = left == 0 || (!together && unacknowledged >= shape.ack_every);
            self.push(at, index, Event::Data { push: left == 0, acknowledge }, false);
            self.begun += frame;
            if acknowledge {
                self.begun += ack_frame;
                unacknowledged = 0;
            }
            if left == 0 {
                break;
            }
            if together {
                at += line;
                chunk += 1;
            } else {
                // The narrowest link, more or less a twentieth, has spread what came together here.
                let gap = pace * chunk;
                at += gap * 19 / 20 + self.rng.below(gap / 10 + 1);
                chunk = 1;
            }
        }
        at
    }

    /// Opens a TCP connection; gives the time at which its data may flow.
    fn handshake(&mut self, at: u64, index: u32) -> u64 {
        let think = 50_000 + self.rng.below(2_000_000);
        let request = 100 + self.rng.below(500) as usize;
        let Some(Some(c)) = self.connections.get_mut(index as usize) else { return at };
        let (near, far, kind, data_side) = (c.delay(0), c.delay(1), c.kind, c.data_side);
        let opened = at + near + far;
        let begin = if data_side == 0 { opened + think } else { opened + 20_000 + far + think };
        c.ready = begin;
        if kind == Kind::Tcp {
            self.push(at, index, Event::Syn, false);
            self.push(at + far, index, Event::SynAck, false);
            self.push(opened, index, Event::Opened, false);
            if data_side == 1 {
                self.push(opened + 20_000, index, Event::Request { payload: request }, false);
            }
            self.begun += 66 + 74 + 74 + if data_side == 1 { 66 + request as u64 } else { 0 };
        } else {
            // QUIC (RFC 9000 §14.1): both sides fill their first datagrams.
            self.push(at, index, Event::Datagram { side: 0, payload: 1200 }, false);
            self.push(at + far, index, Event::Datagram { side: 1, payload: 1200 }, false);
            self.push(at + far + 500, index, Event::Datagram { side: 1, payload: 1200 }, false);
            self.push(opened, index, Event::Datagram { side: 0, payload: request }, false);
            self.begun += 3 * 1242 + 42 + request as u64;
        }
        begin
    }

    fn mouse(&mut self, now: u64) {
        let segments = model::MOUSE.quantile(self.rng.unit());
        let class = self.rng.below(model::PACES.len() as u64) as usize;
        let pace = model::PACES.get(class).map_or(0, |p| p.0);
        let client_on_campus = self.rng.chance(0.8);
        let data_side = usize::from(self.rng.chance(0.8));
        let index = self.open(Plan { kind: Kind::Tcp, client_on_campus, data_side, segments, pace });
        let begin = self.handshake(now, index);
        self.push(begin, index, Event::Round, false);
    }

    /// A round of a short connection: twice the last one's segments, a round-trip time after it (slow start).
    fn round(&mut self, now: u64, index: u32) {
        let Some(Some(c)) = self.connections.get_mut(index as usize) else { return };
        let (segments, round_trip) = (c.window, c.delay(0) + c.delay(1));
        c.window *= 2;
        let more = c.unplanned > segments;
        let end = self.train(now, index, segments, &model::TCP_TRAIN);
        if more {
            self.push(end + round_trip, index, Event::Round, false);
        }
    }

    fn exchange(&mut self, kind: Kind, client_on_campus: bool) -> (u32, u64) {
        let index = self.open(Plan { kind, client_on_campus, data_side: 1, segments: 0, pace: 0 });
        let delay = self.connections.get(index as usize).and_then(Option::as_ref).map_or(0, |c| c.delay(1));
        (index, delay)
    }

    fn dns(&mut self, now: u64) {
        let (index, delay) = self.exchange(Kind::Dns, true);
        let (query, response) = (28 + self.rng.below(30) as usize, 44 + self.rng.below(400) as usize);
        self.push(now, index, Event::Datagram { side: 0, payload: query }, false);
        self.push(now + delay, index, Event::Datagram { side: 1, payload: response }, true);
        self.begun += (84 + query + response) as u64;
    }

    fn scan(&mut self, now: u64) {
        let (index, _) = self.exchange(Kind::Tcp, false);
        self.push(now, index, Event::Scan, true);
        self.begun += 74;
    }

    fn ping(&mut self, now: u64) {
        let (index, delay) = self.exchange(Kind::Ping, true);
        self.push(now, index, Event::Echo { side: 0 }, false);
        self.push(now + delay, index, Event::Echo { side: 1 }, true);
        self.begun += 2 * 98;
    }

    /// Carries out an event, at its time; most are a packet.
    fn happen(&mut self, due: Due) -> Option<Packet> {
        let (at, index) = (due.at, due.connection);
        if due.event == Event::Round {
            self.round(at, index);
            return None;
        }
        if let Event::Data { push, acknowledge } = due.event {
            return self.data(at, index, push, acknowledge);
        }
        let place = self.connections.get_mut(index as usize)?;
        let c = place.as_mut()?;
        let receiver = 1 - c.data_side;
        let packet = match due.event {
            Event::Syn | Event::Scan => c.segment(0, flag::SYN, 0, None, at),
            Event::SynAck => c.segment(1, flag::SYN | flag::ACK, 0, None, at),
            Event::Opened => c.segment(0, flag::ACK, 0, None, at),
            Event::Request { payload } => c.segment(0, flag::PSH | flag::ACK, payload, None, at),
            Event::Ack { ack } if c.kind == Kind::Tcp => c.segment(receiver, flag::ACK, 0, Some(ack), at),
            Event::Ack { .. } => c.datagram(receiver, QUIC_ACK),
            Event::Close { ack } => c.segment(receiver, flag::FIN | flag::ACK, 0, Some(ack), at),
            Event::LastAck => c.segment(c.data_side, flag::ACK, 0, None, at),
            Event::Datagram { side, payload } => c.datagram(side, payload),
            Event::Echo { side } => c.echo(side),
            Event::Round | Event::Data { .. } => return None,
        };
        if due.last {
            *place = None;
            self.free.push(index);
        }
        Some(packet)
    }

    /// A data segment; the last one of a connection closes it, and the next connection takes its slot.
    fn data(&mut self, at: u64, index: u32, push: bool, acknowledge: bool) -> Option<Packet> {
        let c = self.connections.get_mut(index as usize)?.as_mut()?;
        c.unsent = c.unsent.saturating_sub(1);
        let (sender, done, tcp) = (c.data_side, c.unsent == 0, c.kind == Kind::Tcp);
        // The last segment is rarely full.
        let payload = if done { 1 + (at % c.full_payload() as u64) as usize } else { c.full_payload() };
        let packet = if tcp {
            let mut flags = flag::ACK;
            flags |= if push || done { flag::PSH } else { 0 };
            flags |= if done { flag::FIN } else { 0 };
            c.segment(sender, flags, payload, None, at)
        } else {
            c.datagram(sender, payload)
        };
        let (slot, ack) = (c.slot, c.acknowledging(sender));
        let (back, forth) = (c.delay(1 - sender), c.delay(sender));
        if !done {
            if acknowledge {
                self.push(at + back, index, Event::Ack { ack }, false);
            }
            return Some(packet);
        }
        if tcp {
            self.push(at + back, index, Event::Close { ack }, false);
            self.push(at + back + forth, index, Event::LastAck, true);
            self.begun += 132;
        } else {
            self.push(at + back, index, Event::Ack { ack }, true);
        }
        if let Some(slot) = slot {
            let segments = model::ELEPHANT.quantile(self.rng.unit());
            let next = self.open(self.slot_plan(slot, segments));
            self.hold_slot(slot, next);
            let pause = self.rng.below(1_000_000);
            self.handshake(at + pause, next);
        }
        Some(packet)
    }
}
