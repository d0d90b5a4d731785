//! Waiting times of packets on their way over PCI Express, predicted by queueing theory. Nothing of it is
//! measured.
//!
//! Each way of the slot is taken for a queue with one server and constant service times, bursts of equal size
//! arriving at random (a Poisson process): M^X/D/1. A packet waits S (ρ + b − 1) / (2 (1 − ρ)) on average, S
//! being the time that a packet takes, ρ the utilisation, b the packets of a burst (Pollaczek and Khinchine;
//! with bursts: Kleinrock, Queueing Systems I, 5.1 and exercises).

use super::pcie::Card;

/// The assumptions beside the card and its slot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Path {
    /// Time of a packet without any other, in ns, wire to wire: 4500, the least that the paper measured at
    /// any size.
    pub base_ns: f64,
    /// Mean packets of a burst, 1 or more. The paper doesn't say how its traffic generator spaces packets; 1
    /// is the least that is possible.
    pub burst: f64,
}

impl Default for Path {
    fn default() -> Self {
        Self { base_ns: 4500.0, burst: 1.0 }
    }
}

/// Mean times in ns.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// Utilisation of the busier way.
    pub utilization: f64,
    /// Waiting times for the two ways, towards the host and away from it; none where one of them is
    /// overloaded.
    pub waits_ns: Option<[f64; 2]>,
    /// Mean time of a packet, the base included; none where a way is overloaded.
    pub mean_ns: Option<f64>,
}

/// The mean time of a packet of `frame` bytes on the wire among others like it, at `rate` packets a second.
#[must_use]
pub fn predict(card: &Card, path: &Path, frame: u32, rate: f64) -> Predicted {
    let bytes = card.per_packet(frame);
    let busy = bytes.utilization(&card.link, rate);
    let speed = card.link.transaction_bytes_per_second();
    let utilization = busy.into_iter().fold(0.0, f64::max);
    let wait = |bytes: f64, busy: f64| {
        bytes / speed * 1e9 * (busy + path.burst.max(1.0) - 1.0) / (2.0 * (1.0 - busy))
    };
    let [to, from] = busy;
    let waits_ns = (utilization < 1.0).then(|| [wait(bytes.to_host, to), wait(bytes.from_host, from)]);
    Predicted { utilization, waits_ns, mean_ns: waits_ns.map(|[to, from]| path.base_ns + to + from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The formula against a simulation of the queue, arrivals in bursts of four.
    #[test]
    fn waits_are_those_of_a_simulated_queue() {
        let (card, frame, rate) = (Card::default(), 1518, 5e6);
        for burst in [1u32, 4] {
            let path = Path { burst: f64::from(burst), base_ns: 0.0 };
            let predicted = predict(&card, &path, frame, rate).waits_ns.unwrap()[0];
            let bytes = card.per_packet(frame).to_host;
            let service = bytes / card.link.transaction_bytes_per_second() * 1e9;
            let (mut state, mut at, mut free, mut sum) = (1u64, 0.0, 0.0f64, 0.0);
            let all = 400_000;
            for _ in 0..all {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let uniform = ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
                at += -uniform.ln() * f64::from(burst) * 1e9 / rate;
                for _ in 0..burst {
                    let start = free.max(at);
                    sum += start - at;
                    free = start + service;
                }
            }
            let simulated = sum / f64::from(all * burst);
            assert!((simulated / predicted - 1.0).abs() < 0.03, "{burst}: {simulated} for {predicted}");
        }
    }

    #[test]
    fn more_load_waits_longer_until_there_is_no_room() {
        let mut last = 0.0;
        for rate in [1e6, 4e6, 6.5e6, 7e6] {
            let mean = predict(&Card::default(), &Path::default(), 1518, rate).mean_ns.unwrap();
            assert!(mean > last && mean > 4500.0);
            last = mean;
        }
        let over = predict(&Card::default(), &Path::default(), 1518, 12e6);
        assert!(over.utilization > 1.0 && over.mean_ns.is_none());
    }
}
