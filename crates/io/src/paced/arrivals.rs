//! When packets come: a process of arrivals, from a seed.

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Exp1, Geometric};

/// A process of arrivals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Process {
    /// All gaps alike.
    Constant,
    /// Gaps exponential.
    Poisson,
    /// Bursts of so many packets on average (geometric, 1 and more), each at one instant; gaps between bursts
    /// exponential.
    Bursty(f64),
}

/// The times of the packets, in ns since the start, never decreasing.
#[derive(Debug)]
pub(super) struct Gaps {
    process: Process,
    /// Mean gap between packets, in ns.
    mean: f64,
    random: ChaCha8Rng,
    at: f64,
    /// Packets that this burst still has.
    burst: u64,
    more: Option<Geometric>,
}

impl Gaps {
    /// `rate` in packets a second.
    pub(super) fn new(rate: f64, process: Process, seed: u64) -> Self {
        let more = match process {
            Process::Bursty(mean) => Geometric::new(1.0 / mean.max(1.0)).ok(),
            _ => None,
        };
        Self { process, mean: 1e9 / rate, random: ChaCha8Rng::seed_from_u64(seed), at: 0.0, burst: 0, more }
    }

    /// The time of the next packet.
    pub(super) fn next(&mut self) -> u64 {
        let exponential = |random: &mut ChaCha8Rng| -> f64 { Exp1.sample(random) };
        match self.process {
            Process::Constant => self.at += self.mean,
            Process::Poisson => self.at += self.mean * exponential(&mut self.random),
            Process::Bursty(_) if self.burst > 0 => self.burst -= 1,
            Process::Bursty(mean) => {
                self.burst = self.more.map_or(0, |g| g.sample(&mut self.random));
                self.at += self.mean * mean.max(1.0) * exponential(&mut self.random);
            }
        }
        self.at as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(process: Process) -> Vec<u64> {
        let mut gaps = Gaps::new(1e6, process, 7);
        (0..200_000).map(|_| gaps.next()).collect()
    }

    /// Mean and squared coefficient of variation of the gaps.
    fn moments(times: &[u64]) -> (f64, f64) {
        let gaps: Vec<f64> = times.windows(2).map(|w| (w[1] - w[0]) as f64).collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        (mean, variance / mean.powi(2))
    }

    #[test]
    fn rates_and_variation_are_those_asked_for() {
        let (mean, cv2) = moments(&times(Process::Constant));
        assert!((mean - 1000.0).abs() < 1e-6 && cv2 < 1e-9);
        let (mean, cv2) = moments(&times(Process::Poisson));
        assert!((mean - 1000.0).abs() < 15.0 && (cv2 - 1.0).abs() < 0.03, "{mean} {cv2}");
        // A gap is 0 with probability 1 - 1/8, else exponential with mean 8: the squared CV is 2 * 8 - 1.
        let (mean, cv2) = moments(&times(Process::Bursty(8.0)));
        assert!((mean - 1000.0).abs() < 40.0 && (cv2 - 15.0).abs() < 1.0, "{mean} {cv2}");
        assert_eq!(times(Process::Poisson), times(Process::Poisson));
    }
}
