//! Plain traffic: runs of a known length of a known number of flows (paper §2.1).
//!
//! A *slot* is a place in the population that one flow after the other holds; with endless flows, a slot is a
//! flow. The slots of a pair, 2c and 2c+1, are the two directions of one TCP connection, or two UDP flows.

use super::config::{Order, Protocol, SynthConfig, TrainModel};
use super::packet::{Addresses, Packet, Path, Tcp, Transport, flag};
use super::random::{Alias, Pareto, Ranks, Rng, scatter, within};
use super::text::Size;

/// The flow that holds a slot.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// Number of the flow, or of the connection: no two have the same.
    id: u64,
    /// Packets (of a connection: segments with data, both ways) until it ends, at the end of a run.
    left: u64,
    /// Position in the flow's stream: packets sent.
    sent: u64,
}

/// The state of a TCP connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The client opens it next.
    Closed,
    /// The server answers next.
    SynSent,
    /// The client acknowledges, and may send data.
    SynReceived,
    /// Both send data.
    Open,
    /// This side (0 client, 1 server) has closed; the other one closes next.
    Closing(usize),
    /// This side acknowledges the other's FIN, and the connection is over.
    LastAck(usize),
}

/// One TCP connection. Side 0 is the client, slot 2c; side 1 the server, slot 2c+1.
#[derive(Clone, Copy, Debug)]
struct Connection {
    state: State,
    /// Next sequence number of each side.
    seq: [u32; 2],
    /// Latest timestamp that each side has sent.
    clock: [u32; 2],
}

/// Numbers of streams of random numbers.
const CHOICE: u64 = 1;

/// The generator of plain traffic.
#[derive(Clone, Debug)]
pub(super) struct Plain {
    config: SynthConfig,
    timestamps: bool,
    rng: Rng,
    slots: Vec<Slot>,
    /// One per pair of slots; none where all is UDP.
    connections: Vec<Connection>,
    next_id: u64,
    /// Slots that send after the first round.
    active: u32,
    /// Whose turn it is next, in the first round and in turn.
    turn: u32,
    warming_up: bool,
    popularity: Option<Ranks>,
    sizes: Option<Alias>,
    lifetime: Option<Pareto>,
    /// The current run.
    current: Option<u32>,
    run_left: u64,
}

impl Plain {
    /// Bytes that [`Plain::new`] takes for flows, connections and their popularity.
    pub(super) fn memory(config: &SynthConfig) -> u64 {
        let flows = u64::from(config.flows) * size_of::<Slot>() as u64;
        let connections = match config.protocol {
            Protocol::Udp => 0,
            _ => u64::from(config.flows / 2) * size_of::<Connection>() as u64,
        };
        let popularity = if config.is_weighted() { Ranks::memory(config.active_flows()) } else { 0 };
        flows + connections + popularity
    }

    /// `config` has been validated.
    pub(super) fn new(config: &SynthConfig) -> Self {
        let active = config.active_flows();
        let lifetime = config.lifetime.map(|l| Pareto::new(l.min as f64, l.max as f64 + 1.0, l.shape));
        let mut plain = Self {
            timestamps: config.timestamps(),
            rng: Rng::new(config.seed, CHOICE),
            slots: Vec::new(),
            connections: Vec::new(),
            next_id: 0,
            active,
            turn: 0,
            warming_up: config.active.is_some(),
            popularity: config.is_weighted().then(|| Ranks::zipf(active, config.zipf)),
            sizes: match &config.size {
                Size::Mix(mix) => Some(Alias::new(&mix.iter().map(|m| f64::from(m.1)).collect::<Vec<_>>())),
                _ => None,
            },
            lifetime,
            current: None,
            run_left: 0,
            config: config.clone(),
        };
        plain.slots = (0..config.flows).map(|_| plain.new_flow()).collect();
        if config.protocol != Protocol::Udp {
            let closed = Connection { state: State::Closed, seq: [0; 2], clock: [0; 2] };
            plain.connections = vec![closed; config.flows as usize / 2];
        }
        plain
    }

    fn new_flow(&mut self) -> Slot {
        let id = self.next_id;
        self.next_id += 1;
        let left = self.lifetime.map_or(u64::MAX, |pareto| pareto.quantile(self.rng.unit()));
        Slot { id, left, sent: 0 }
    }

    /// The next packet; `now_ms` is the clock of all hosts.
    pub(super) fn next(&mut self, now_ms: u32) -> Packet {
        if self.run_left == 0 {
            self.begin_run();
        }
        self.run_left -= 1;
        let slot = self.current.unwrap_or(0);
        if self.is_tcp(slot) { self.segment(slot, now_ms) } else { self.datagram(slot) }
    }

    fn begin_run(&mut self) {
        if let Some(last) = self.current {
            self.end_run(last);
        }
        let slot = self.choose();
        let slot = self.who_can_send(slot);
        self.run_left = if self.warming_up || self.single_segment(slot) { 1 } else { self.run_length() };
        if self.warming_up && self.turn >= self.config.flows {
            self.warming_up = false;
            self.turn = 0;
        }
        self.current = Some(slot);
    }

    fn choose(&mut self) -> u32 {
        if self.warming_up || self.config.order == Order::RoundRobin {
            let round = if self.warming_up { u32::MAX } else { self.active };
            let slot = self.turn % round;
            self.turn = slot + 1;
            return slot;
        }
        if self.active == 1 {
            return 0;
        }
        if let Some(ranks) = &self.popularity {
            return ranks.draw(self.current, &mut self.rng);
        }
        loop {
            let slot = self.rng.below(u64::from(self.active)) as u32;
            if Some(slot) != self.current {
                return slot;
            }
        }
    }

    fn run_length(&mut self) -> u64 {
        let slf = self.config.slf;
        match self.config.train {
            TrainModel::Geometric => self.rng.geometric(slf),
            TrainModel::Fixed => {
                let whole = libm::floor(slf);
                whole as u64 + u64::from(slf > whole && self.rng.chance(slf - whole))
            }
        }
    }

    /// A flow that has sent all it has makes room for a new one.
    fn end_run(&mut self, last: u32) {
        if self.is_tcp(last) {
            return;
        }
        if self.slots.get(last as usize).is_some_and(|slot| slot.left == 0) {
            let fresh = self.new_flow();
            if let Some(slot) = self.slots.get_mut(last as usize) {
                *slot = fresh;
            }
        }
    }

    /// Is the pair that a slot is in a TCP connection?
    fn is_tcp(&self, slot: u32) -> bool {
        let pair = slot / 2;
        if pair as usize >= self.connections.len() {
            return false;
        }
        match self.config.protocol {
            Protocol::Udp => false,
            Protocol::Tcp => true,
            Protocol::Mix(share) => within(scatter(self.config.seed ^ 0x7463_7000, u64::from(pair)), share),
        }
    }

    fn path(&self, id: u64) -> Path {
        let bits = scatter(self.config.seed, id);
        let vlan_bits = scatter(self.config.seed ^ 0x766c_616e, id);
        let vlan = if within(vlan_bits, self.config.vlan) {
            let pick = (vlan_bits & 0x7ff) as usize % self.config.vlan_ids.len().max(1);
            self.config.vlan_ids.get(pick).copied()
        } else {
            None
        };
        let v6 = within(scatter(self.config.seed ^ 0x6970_7636, id), self.config.ipv6);
        plain_path(id, bits, v6, vlan)
    }

    fn frame_size(&mut self) -> usize {
        let size = match (&self.config.size, &self.sizes) {
            (Size::Fixed(size), _) => *size,
            (Size::Range(lo, hi), _) => lo + self.rng.below(u64::from(hi - lo) + 1) as u32,
            (Size::Mix(mix), Some(alias)) => {
                let i = alias.draw(&mut self.rng) as usize;
                mix.get(i).map_or(super::config::MIN_FRAME, |m| m.0)
            }
            (Size::Mix(_), None) => super::config::MIN_FRAME,
        };
        size as usize
    }

    fn datagram(&mut self, slot: u32) -> Packet {
        let size = self.frame_size();
        let (mut id, mut sent) = (u64::from(slot), 0);
        if let Some(flow) = self.slots.get_mut(slot as usize) {
            (id, sent) = (flow.id, flow.sent);
            flow.sent += 1;
            flow.left = flow.left.saturating_sub(1);
        }
        let path = self.path(id);
        Packet {
            path,
            transport: Transport::Udp,
            payload_len: size.saturating_sub(path.network_headers() + 8),
            // Odd, so that no two neighbours hold the same bytes.
            position: (id ^ sent).wrapping_mul(1021),
            ip_id: sent as u16,
            ttl: 64,
        }
    }
}

/// TCP: who may send, and what.
impl Plain {
    /// The slot itself, or its peer where a connection is waiting for that.
    fn who_can_send(&self, slot: u32) -> u32 {
        if !self.is_tcp(slot) {
            return slot;
        }
        let side = match self.connections.get(slot as usize / 2).map(|c| c.state) {
            Some(State::Closed | State::SynReceived) => 0,
            Some(State::SynSent) => 1,
            Some(State::Closing(first)) => 1 - first as u32,
            Some(State::LastAck(first)) => first as u32,
            Some(State::Open) | None => return slot,
        };
        slot / 2 * 2 + side
    }

    /// Must the run that `slot` begins end after one segment? So it is while a connection opens or closes.
    fn single_segment(&self, slot: u32) -> bool {
        self.is_tcp(slot)
            && self
                .connections
                .get(slot as usize / 2)
                .is_some_and(|c| !matches!(c.state, State::Open | State::SynReceived))
    }

    fn segment(&mut self, slot: u32, now_ms: u32) -> Packet {
        let (pair, side) = (slot as usize / 2, slot as usize % 2);
        let first = slot / 2 * 2;
        let (id, left) = self.slots.get(first as usize).map_or((0, 0), |s| (s.id, s.left));
        let Some(mut conn) = self.connections.get(pair).copied() else { return self.datagram(slot) };
        let path = if side == 0 { self.path(id) } else { self.path(id).reversed() };
        let clock = now_ms.wrapping_add(scatter(id, side as u64) as u32);
        let before = conn.state;
        if before == State::Closed {
            let isn = scatter(self.config.seed ^ 0x69_736e, id);
            conn.seq = [isn as u32, (isn >> 32) as u32];
            conn.clock = [0; 2];
        }
        let last_of_run = self.run_left == 0;
        // A connection closes with the run that uses it up, and never with its handshake unfinished.
        let close = before == State::Open && last_of_run && left <= 1;
        let flags = match before {
            State::Closed => flag::SYN,
            State::SynSent => flag::SYN | flag::ACK,
            State::Closing(_) => flag::FIN | flag::ACK,
            State::Open if close => flag::FIN | flag::PSH | flag::ACK,
            State::Open if last_of_run => flag::PSH | flag::ACK,
            State::Open | State::SynReceived | State::LastAck(_) => flag::ACK,
        };
        let [peer_seq, peer_clock] =
            if side == 0 { [conn.seq[1], conn.clock[1]] } else { [conn.seq[0], conn.clock[0]] };
        let mut tcp = Tcp {
            seq: if side == 0 { conn.seq[0] } else { conn.seq[1] },
            ack: if flags & flag::ACK == 0 { 0 } else { peer_seq },
            flags,
            window: 0xfa00,
            timestamps: self.timestamps.then_some((clock, peer_clock)),
            mss: 0,
        };
        let headers = path.network_headers();
        tcp.mss = (1514_usize + path.vlan.map_or(0, |_| 4)).saturating_sub(headers + 20) as u16;
        let payload_len = match before {
            State::Open => {
                self.frame_size().saturating_sub(headers + Tcp::header_len(flags, self.timestamps))
            }
            _ => 0,
        };
        conn.state = match before {
            State::Closed => State::SynSent,
            State::SynSent => State::SynReceived,
            State::Open if close => State::Closing(side),
            State::SynReceived | State::Open => State::Open,
            State::Closing(first) => State::LastAck(first),
            State::LastAck(_) => State::Closed,
        };
        let advance = payload_len as u32 + u32::from(flags & (flag::SYN | flag::FIN) != 0);
        let (seq, last_clock) = if side == 0 {
            (&mut conn.seq[0], &mut conn.clock[0])
        } else {
            (&mut conn.seq[1], &mut conn.clock[1])
        };
        *seq = seq.wrapping_add(advance);
        *last_clock = clock;
        self.account(first, side, before);
        if let Some(place) = self.connections.get_mut(pair) {
            *place = conn;
        }
        let ip_id = self.slots.get(slot as usize).map_or(0, |s| s.sent as u16);
        Packet {
            path,
            transport: Transport::Tcp(tcp),
            payload_len,
            position: u64::from(tcp.seq),
            ip_id,
            ttl: 64,
        }
    }

    /// Counts a segment of the connection whose client is slot `first`; a new connection follows the last
    /// one.
    fn account(&mut self, first: u32, side: usize, before: State) {
        if let State::LastAck(_) = before {
            let fresh = self.new_flow();
            if let Some(client) = self.slots.get_mut(first as usize) {
                *client = fresh;
            }
            return;
        }
        if before == State::Open
            && let Some(client) = self.slots.get_mut(first as usize)
        {
            client.left = client.left.saturating_sub(1);
        }
        if let Some(sender) = self.slots.get_mut(first as usize + side) {
            sender.sent += 1;
        }
    }
}

/// Addresses and ports of flow or connection `id`. Clients are in 10.0.0.0/8 or 2001:db8::/32, servers in
/// 198.18.0.0/15 or 2001:2::/48 (RFC 2544, 5180). Two of 2^40 ids differ in the client's address or port.
fn plain_path(id: u64, bits: u64, v6: bool, vlan: Option<u16>) -> Path {
    // Multiplication by an odd number permutes the 24-bit numbers.
    let host = (id as u32).wrapping_mul(0x9e_3779) & 0xff_ffff;
    let client_port = 1024 + (((id >> 24) + u64::from(host.wrapping_mul(0x85eb_ca6b) >> 16)) % 64_512) as u16;
    let [_, b, c, d] = host.to_be_bytes();
    let [e, f, g, ..] = bits.to_be_bytes();
    let server_port = match (bits >> 8) & 7 {
        0 => 53,
        1 | 2 => 80,
        3 => 8080,
        _ => 443,
    };
    let addresses = if v6 {
        let client = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, b, 0, 0, 0, 0, 0, b, c, d];
        let server = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, e & 1, f, g];
        Addresses::V6(client, server)
    } else {
        Addresses::V4([10, b, c, d], [198, 18 + (e & 1), f, g])
    };
    Path { addresses, ports: (client_port, server_port), vlan }
}
