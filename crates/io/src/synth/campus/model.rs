//! The numbers of the campus model. What they stand for, and how they were fitted, is in the book, page
//! "Synth".

use super::super::random::{Pareto, Rng};

/// Bits a second of one copy (paper §3.1, §5).
pub(super) const RATE: f64 = 2.2e9;
/// Time for which a copy runs before its first packet is used, in ns: longer than any connection takes to
/// open, and than any acknowledgement takes to come back.
pub(super) const WARM_UP: u64 = 300_000_000;
/// Distance of packets that come back to back, per byte of the frame, in picoseconds: a 100 Gbps link.
pub(super) const LINE_PS_PER_BYTE: u64 = 80;

/// Long-lived TCP connections at a time.
pub(super) const TCP_SLOTS: u32 = 192;
/// Long-lived QUIC connections at a time.
pub(super) const QUIC_SLOTS: u32 = 80;
/// The r-th of them sends in proportion to (r + `RANK_SHIFT`)^-`RANK_EXPONENT`.
pub(super) const RANK_SHIFT: f64 = 12.0;
pub(super) const RANK_EXPONENT: f64 = 0.7;

/// The events that a tick of a copy's clock may begin, and their proportions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A train of a long-lived TCP connection.
    TcpTrain,
    /// A train of a long-lived QUIC connection.
    QuicTrain,
    /// A short TCP connection.
    Mouse,
    /// A DNS query.
    Dns,
    /// A lone SYN from the Internet (the paper suspects SYN attacks behind its single-packet flows).
    Scan,
    /// An ICMP echo request.
    Ping,
}

/// Weights of the starts.
pub(super) const STARTS: [(Start, f64); 6] = [
    (Start::TcpTrain, 0.46),
    (Start::QuicTrain, 0.51),
    (Start::Mouse, 0.01),
    (Start::Dns, 0.006),
    (Start::Scan, 0.013),
    (Start::Ping, 0.002),
];

/// Segments of a short connection: Pareto, so shallow that a fifth of all connections is longer.
pub(super) const MOUSE: Pareto = Pareto::new(1.0, 64.0, 0.4);
/// Segments of a long connection.
pub(super) const ELEPHANT: Pareto = Pareto::new(64.0, 5e7, 1.1);
/// Share of connections over IPv6.
pub(super) const IPV6: f64 = 0.08;
/// Share of the long-lived connections whose data leaves the campus (the paper's TX).
pub(super) const OUTWARD: f64 = 0.56;

/// The spacing of the segments of a train.
#[derive(Clone, Copy, Debug)]
pub(super) struct TrainShape {
    /// Share of trains of one segment.
    pub(super) single: f64,
    /// The others have 2 to so many segments, uniform.
    pub(super) longest: u64,
    /// Probability that the next segment of a train comes back to back.
    pub(super) back_to_back: f64,
    /// Segments that one acknowledgement covers at least, but at the end of a train.
    pub(super) ack_every: u32,
}

/// TCP: offloads send two and more segments at once, which a fast link keeps together.
pub(super) const TCP_TRAIN: TrainShape =
    TrainShape { single: 0.2, longest: 11, back_to_back: 0.4, ack_every: 2 };
/// QUIC: paced datagram by datagram.
pub(super) const QUIC_TRAIN: TrainShape =
    TrainShape { single: 0.27, longest: 10, back_to_back: 0.01, ack_every: 8 };

impl TrainShape {
    /// Segments of one train.
    pub(super) fn segments(&self, rng: &mut Rng) -> u64 {
        if rng.chance(self.single) { 1 } else { 2 + rng.below(self.longest - 1) }
    }
}

/// Pace of a full frame on the narrowest link of a connection, in ns (1.6 Gbps and 0.8 Gbps), and the share
/// of connections.
pub(super) const PACES: [(u64, f64); 2] = [(7_600, 0.74), (14_500, 0.26)];

/// Frame of the longest TCP segment, in bytes.
pub(super) const FULL_FRAME: usize = 1514;
/// UDP payload of a QUIC datagram with data.
pub(super) const QUIC_PAYLOAD: usize = 1100;

/// Round-trip times between the gateway and a host of the campus, and a host of the Internet, in ns: uniform
/// between.
pub(super) const CAMPUS_DELAY: (u64, u64) = (200_000, 2_000_000);
pub(super) const INTERNET_DELAY: (u64, u64) = (4_000_000, 40_000_000);
