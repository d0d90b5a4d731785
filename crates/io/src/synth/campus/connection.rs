//! A connection (or an exchange of one or two packets) of the campus model.

use super::super::packet::{Addresses, Packet, Path, Tcp, Transport, flag};
use super::super::random::{Rng, scatter};
use super::model;

/// The kind of a connection's packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Tcp,
    Quic,
    Dns,
    Ping,
}

/// Both ends of an exchange. Side 0 is the client, side 1 the server.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    pub(super) kind: Kind,
    /// From client to server.
    path: Path,
    /// Is the client a host of the campus?
    pub(super) client_on_campus: bool,
    /// The side that sends the bulk of the data.
    pub(super) data_side: usize,
    /// Round-trip time between the gateway and each side, ns.
    delays: [u64; 2],
    /// Pace of a full frame, ns.
    pub(super) pace: u64,
    /// Data segments that no train has been made of yet, and that have not been sent yet.
    pub(super) unplanned: u64,
    pub(super) unsent: u64,
    /// Trains may be sent from this time on.
    pub(super) ready: u64,
    /// The slot that this long-lived connection holds.
    pub(super) slot: Option<u32>,
    /// Short connections: segments of the next round.
    pub(super) window: u64,
    sides: [Side; 2],
}

/// State of one side: the data that it has sent so far.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    seq: u32,
    clock_offset: u32,
    clock: u32,
    sent: u64,
}

/// The parameters of a new connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) kind: Kind,
    pub(super) client_on_campus: bool,
    pub(super) data_side: usize,
    pub(super) segments: u64,
    pub(super) pace: u64,
}

impl Connection {
    /// Connection number `number` of copy `copy`. Two numbers of a copy give different clients or ports, two
    /// copies different campus addresses.
    pub(super) fn new(plan: Plan, copy: u32, number: u64, rng: &mut Rng) -> Self {
        let between = |(lo, hi): (u64, u64), rng: &mut Rng| lo + rng.below(hi - lo + 1);
        let (campus, internet) = (between(model::CAMPUS_DELAY, rng), between(model::INTERNET_DELAY, rng));
        let side = |rng: &mut Rng| {
            let bits = rng.bits();
            let clock_offset = (bits >> 32) as u32;
            Side { seq: bits as u32, clock_offset, clock: clock_offset, sent: bits >> 48 }
        };
        Self {
            kind: plan.kind,
            path: path(plan, copy, number, rng),
            client_on_campus: plan.client_on_campus,
            data_side: plan.data_side,
            delays: if plan.client_on_campus { [campus, internet] } else { [internet, campus] },
            pace: plan.pace,
            unplanned: plan.segments,
            unsent: plan.segments,
            ready: 0,
            slot: None,
            window: 10,
            sides: [side(rng), side(rng)],
        }
    }

    /// Time from a packet towards `side` at the gateway to the answer at the gateway.
    pub(super) const fn delay(&self, side: usize) -> u64 {
        if side == 0 { self.delays[0] } else { self.delays[1] }
    }

    const fn path_from(&self, side: usize) -> Path {
        if side == 0 { self.path } else { self.path.reversed() }
    }

    const fn sides(&mut self, side: usize) -> (&mut Side, &mut Side) {
        let [client, server] = &mut self.sides;
        if side == 0 { (client, server) } else { (server, client) }
    }

    /// Payload of a full segment.
    pub(super) const fn full_payload(&self) -> usize {
        match self.kind {
            Kind::Tcp => model::FULL_FRAME - self.path.network_headers() - Tcp::header_len(flag::ACK, true),
            _ => model::QUIC_PAYLOAD,
        }
    }

    /// Frame length of a full segment, and of an acknowledgement.
    pub(super) fn frame_lens(&self) -> (u64, u64) {
        match self.kind {
            Kind::Tcp => (
                model::FULL_FRAME as u64,
                (self.path.network_headers() + Tcp::header_len(flag::ACK, true)) as u64,
            ),
            _ => {
                let headers = self.path.network_headers() + 8;
                ((headers + self.full_payload()) as u64, (headers + QUIC_ACK) as u64)
            }
        }
    }

    fn packet(
        &self,
        side: usize,
        transport: Transport,
        payload_len: usize,
        position: u64,
        sent: u64,
    ) -> Packet {
        // Hosts of the Internet are some hops away.
        let on_campus = (side == 0) == self.client_on_campus;
        let ttl = if on_campus { 63 } else { 48 + (self.delays[0] % 12) as u8 };
        Packet { path: self.path_from(side), transport, payload_len, position, ip_id: sent as u16, ttl }
    }

    /// A TCP segment of `side`, its acknowledgement and echo those of all that the other side has sent so far
    /// unless `ack` says otherwise.
    pub(super) fn segment(
        &mut self,
        side: usize,
        flags: u8,
        payload_len: usize,
        ack: Option<(u32, u32)>,
        now: u64,
    ) -> Packet {
        let mss = (model::FULL_FRAME - self.path.network_headers() - 20) as u16;
        let (me, peer) = self.sides(side);
        me.clock = ((now / 1_000_000) as u32).wrapping_add(me.clock_offset);
        me.sent += 1;
        let (ack, echo) = match ack {
            _ if flags & flag::ACK == 0 => (0, 0),
            Some(given) => given,
            None => (peer.seq, peer.clock),
        };
        let window = if flags & flag::SYN == 0 { 501 } else { 64_240 };
        let tcp = Tcp { seq: me.seq, ack, flags, window, timestamps: Some((me.clock, echo)), mss };
        let advance = payload_len as u32 + u32::from(flags & (flag::SYN | flag::FIN) != 0);
        me.seq = me.seq.wrapping_add(advance);
        let sent = me.sent;
        self.packet(side, Transport::Tcp(tcp), payload_len, u64::from(tcp.seq), sent)
    }

    /// Number and timestamp echo of an acknowledgement of everything that `side` has sent so far.
    pub(super) const fn acknowledging(&self, side: usize) -> (u32, u32) {
        let [client, server] = &self.sides;
        let sender = if side == 0 { client } else { server };
        (sender.seq, sender.clock)
    }

    /// A UDP datagram of `side`.
    pub(super) fn datagram(&mut self, side: usize, payload_len: usize) -> Packet {
        let (me, _) = self.sides(side);
        me.sent += 1;
        let sent = me.sent;
        self.packet(side, Transport::Udp, payload_len, sent.wrapping_mul(1021), sent)
    }

    /// An ICMP echo request (of side 0) or reply.
    pub(super) fn echo(&mut self, side: usize) -> Packet {
        let id = self.path.ports.0;
        self.packet(side, Transport::Echo { reply: side == 1, id, seq: 1 }, 56, u64::from(id), u64::from(id))
    }
}

/// UDP payload of a QUIC acknowledgement.
pub(super) const QUIC_ACK: usize = 37;

/// Campus hosts of copy k are 10.k.0.0/16 (2001:db8:0:k::/64), hosts of the Internet 198.18.0.0/15
/// (2001:2::/48): clients in its lower half, servers in its upper one.
fn path(plan: Plan, copy: u32, number: u64, rng: &mut Rng) -> Path {
    let [.., copy] = copy.to_be_bytes();
    // 2^12 clients, each of which takes one port after the other.
    let client = (number as u32).wrapping_mul(0x5bd1) & 0xfff;
    let client_port = 32_768 + ((number >> 12) + u64::from(client) * 41) % 28_232;
    // Few servers are popular: the square of a uniform number favours the low ones.
    let popular = libm::floor(4096.0 * rng.unit() * rng.unit()) as u32;
    let server = (scatter(1, u64::from(popular)) & 0xfff) as u32;
    let spread = |host: u32| [(host >> 8) as u8, host as u8];
    let ([c, d], [s, t]) = (spread(client), spread(server));
    let (campus, internet) =
        if plan.client_on_campus { ([c, d], [128 | s, t]) } else { ([128 | s, t], [c, d]) };
    let addresses = if rng.chance(model::IPV6) {
        let campus = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, copy, 0, 0, 0, 0, 0, copy, campus[0], campus[1]];
        let internet = [0x20, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, internet[0], internet[1]];
        if plan.client_on_campus { Addresses::V6(campus, internet) } else { Addresses::V6(internet, campus) }
    } else {
        let campus = [10, copy, campus[0], campus[1]];
        let internet = [198, 18 | u8::from(!plan.client_on_campus), internet[0], internet[1]];
        if plan.client_on_campus { Addresses::V4(campus, internet) } else { Addresses::V4(internet, campus) }
    };
    let server_port = match plan.kind {
        Kind::Dns => 53,
        Kind::Tcp if rng.chance(0.15) => 80,
        Kind::Tcp | Kind::Quic | Kind::Ping => 443,
    };
    Path { addresses, ports: (client_port as u16, server_port), vlan: None }
}
